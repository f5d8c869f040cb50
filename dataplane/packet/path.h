/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which quantum does an endpoint's path carry, and which of several paths (paths.h) do its packets
 * take? path.c has the code. Owner: poll core.
 */
#ifndef GX_PATH_H
#define GX_PATH_H

#include "flow/flow.h"

#include "gx_internal/port.h"

struct pkt_ep;

/* path.c: which quantum the path carries, and the glue of paths.h. */
struct pkt_path {
	bool probed;	   /* nobody knows the port's path: quanta are proven, and losses watched */
	bool proven;	   /* the quantum passed the path (padded probe), or need not */
	bool proving;	   /* padded probes of the quantum are under way */
	bool prove_due;	   /* two are due: one of the quantum, one of PKT_SMALL_B */
	bool small_passed; /* the peer acknowledged a small probe that went out with the last padded
			      one, or later */
	uint32_t prove_tries;
	uint64_t prove_ns;    /* when the next padded probe is due */
	uint32_t prove_waits; /* waits in which no small probe came through */
	uint64_t try_ns;      /* when the last one that counts went out */
	uint32_t hole_b;      /* smallest of the large packets lost in a row; UINT32_MAX: none */
	uint32_t hole_lost;   /* number of them */
	uint32_t full_b;      /* the quantum that both ends can take. Frozen */
	uint32_t grow_b;   /* one that the path carries again: taken when no message is under way */
	uint64_t raise_ns; /* when larger ones are tried, or when the end of messages is too far */
	uint8_t by[2];	   /* enum gx_half: the source port that the port takes now */
	bool seek_due;	   /* the peer hears nothing: try all paths */
	bool seeks;	   /* we hear nothing: probes say so */
	uint32_t probe[2]; /* paths by which a probe is due */
	uint64_t sought_ns;		      /* when we last did */
	uint64_t moved_ns;		      /* data left a path that was dead */
	uint64_t counted_moves, counted_dead; /* our part of the core's counters */
};

void link_proven(struct pkt_ep *e, uint32_t quantum);	     /* a padded probe came through */
void link_acked(struct pkt_ep *e, const struct flow_pkt *p); /* while link_watches() */
void link_lost(struct pkt_ep *e, const struct flow_pkt *p);  /* was its size the cause? */
void tick_prove(struct pkt_ep *e);
void tick_raise(struct pkt_ep *e); /* does the path carry more again? */
void hole_forget(struct pkt_ep *e);

/* With several paths: */
void path_take(struct pkt_ep *e, enum gx_half half); /* the next packets leave by the right one */
void path_ack(struct pkt_ep *e, const uint8_t *b, uint32_t len); /* while path_in_doubt() */
void tick_paths(struct pkt_ep *e);
void path_tell(struct pkt_ep *e, bool ends); /* the core's counters */

#endif
