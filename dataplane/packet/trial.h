/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trial.c: while a connection is set up, small packets of both ends show whether its lanes let anything
 * through. Private to dataplane/.
 */
#ifndef GX_PACKET_TRIAL_H
#define GX_PACKET_TRIAL_H

#include "gx_internal/port.h"

#include <stdatomic.h>

struct gx;
struct gx_conn;
struct gx_link_want;
struct pkt_ep;

struct pkt_trial {
	bool on;		/* core */
	uint64_t due_ns;	/* core: the next packets */
	_Atomic bool go;	/* ctl: the peer hears what is sent now */
	_Atomic uint32_t heard; /* core: bits of enum gx_half by which packets of the peer came */
	_Atomic uint32_t sent;	/* core: how often packets of both halves went out */
};

/* -- on the core -- */

void trial_attach(struct pkt_ep *e);
void trial_tick(struct pkt_ep *e);
void trial_heard(struct pkt_ep *e, enum gx_half half); /* while .on */
/** trial_holds() - Does no record count yet? This end's program does not know of the connection: they come
 * again. */
bool trial_holds(struct pkt_ep *e); /* while .on */
/** trial_waits() - Are so many packets out that no other one is tried? */
bool trial_waits(const struct pkt_ep *e);

/* -- on the control thread: slots of struct gx_link_conn_ops -- */

/* In LINK, one byte. */
enum trial_word {
	TRIAL_SENT = 1, /* packets have left on all lanes, for long enough */
	TRIAL_GIVEN_UP, /* a core here does not turn: the connection comes up untried */
	TRIAL_READY,	/* server: all lanes are attached */
};

int trial_open(struct gx_conn *c, const struct gx_link_want *want);
void trial_close(struct gx_conn *c);
uint32_t trial_offer(const struct gx *gx, bool server, uint8_t *b);
uint32_t trial_say(const struct gx_conn *c, uint8_t *b);
int trial_hear(struct gx_conn *c, const uint8_t *b, uint32_t len);
bool trial_tries(const struct gx_conn *c);
int trial_look(struct gx_conn *c, bool peer_up,
	       void (*say)(struct gx_conn *c, const uint8_t *b, uint32_t len));
/* Of a lane that was up: which ports are silent. */
bool trial_fault(const struct gx_conn *c, int err, char *buf, size_t room);
int trial_take(struct gx_conn *c, uint8_t word); /* the peer's. Return: 0, -EPROTO */

#endif
