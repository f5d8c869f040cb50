/* SPDX-License-Identifier: Apache-2.0 */
/* The links of the tests here: see fake_link.c. */
#ifndef FAKE_LINK_H
#define FAKE_LINK_H

#include "gx_internal/link.h"

#define FAKE_BLOB_B (2 + 16) /* of a link with data sockets: 0xfa, sockets, token */

extern const char *fake_fit;	    /* link local: why the ends cannot take it; NULL: they can */
extern bool fake_quiet;		    /* nobody need know */
extern _Atomic int fake_proof;	    /* link verbs: what prove() returns */
extern _Atomic unsigned fake_asked; /* calls of it */
extern bool fake_tries;		    /* link packet: its lanes are tried, ... */
extern _Atomic int fake_trial[2];   /* ... with this result: of the client, of the server */
extern _Atomic unsigned fake_tried; /* calls of trial(), the client's */
extern _Atomic unsigned fake_taken; /* bytes that take() was given, all links */

void fake_seals(bool seals); /* link packet; not since fake_reset() */
void fake_reset(void);

#endif
