/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a client may do by the key that it has shown: rights.c. core_rights() and core_region() hold it
 * to that. Control thread.
 */
#ifndef GX_RIGHTS_H
#define GX_RIGHTS_H

#include "auth/auth.h"

/** rights_take() - The peer of @c has shown @key, which the caller holds; NULL: none. A server then
 * knows what the peer may do, before it names its regions. Return: a verdict: the key was revoked
 * meanwhile, or has all the connections that it may have. */
int rights_take(struct gx_conn *c, struct auth_key *key);
/** rights_tell() - The log has a line of a peer that is limited. It is up. */
void rights_tell(const struct gx_conn *c);
/** rights_drop() - @c is freed. */
void rights_drop(struct gx_conn *c);
/** rights_lane() - @ep is about to be opened: its part of what may be under way by its key. */
void rights_lane(struct gx_ep *ep);
/** rights_share() - Connections by the key of @c come or go: divide that anew. */
void rights_share(struct gx_conn *c);
/** rights_are_gone() - Was the key that the client of @c has shown revoked? */
bool rights_are_gone(const struct gx_conn *c);
/** rights_region() - Place @at of gx->region[] is about to have a region of that name. */
void rights_region(struct gx *gx, unsigned at, const char *name);

#endif
