/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The paths of one endpoint: by which of the port's source ports do its packets leave? Routers that
 * share load choose a way through the network by a packet's ports, so another source port is another
 * way. No I/O, no clock, no allocation after open: time is an argument. Owner: poll core. Only where
 * the port has several (gx_port_caps.paths); else there is no struct paths.
 *
 * Each half of the port has its own paths, for its packets have other ports. A half keeps to its home:
 * path 0, or for spread data the first few. Where a path says nothing for one and a half round trips
 * while packets of it are under way, a round of small probes leaves by all paths at once. A path that
 * is silent while another one answers is dead: the one that answered first takes its place. A path of
 * which nothing is heard while nobody else answers either is kept, for the peer or its
 * acknowledgements may be what is silent. A dead one is asked now and then; a home that answers has
 * its place again.
 */
#ifndef GX_PATHS_H
#define GX_PATHS_H

#include "flow/flow.h"

#include "gx_internal/port.h"

struct paths;

struct paths_cfg {
	uint32_t places; /* of packets, as flow_at() has them: power of two */
	unsigned nr;	 /* 2 to GX_PATHS_MAX */
	unsigned spread; /* data leaves by so many of them at a time; 1 to nr */
};

int paths_open(const struct paths_cfg *cfg,
	       struct paths **out); /* control path; 0, -ENOMEM, -EINVAL */
void paths_close(struct paths *p);

/* The path for the next packets of @half: of several, the one with the fewest under way. */
unsigned paths_pick(const struct paths *p, enum gx_half half);
/* What @f has sent since the last call left by @path of @half. */
void paths_sent(struct paths *p, const struct flow *f, enum gx_half half, unsigned path);
/* After flow_ack() or flow_tick(), before packets are taken out of the flow. */
void paths_ack_end(struct paths *p, const struct flow *f, uint64_t now_ns);
/* When paths_tick() has work; UINT64_MAX: never. While nothing is under way, only with paths_asks(). */
uint64_t paths_due(const struct paths *p);
bool paths_asks(const struct paths *p, enum gx_half half); /* a round is under way */
/* Asks: the caller sends a small probe by each path (bit) of @probe[half]. Return: nothing at all is
 * heard, so the peer is to try all its paths as well. */
bool paths_tick(struct paths *p, uint64_t now_ns, uint32_t probe[2]);
/* The peer hears nothing of @half. Return: paths to probe. */
uint32_t paths_seek(struct paths *p, uint64_t now_ns, enum gx_half half);

uint64_t paths_moves(const struct paths *p, enum gx_half half); /* as in paths_state */

/* A path of @half. Any thread, while the core goes on. */
struct paths_look {
	uint64_t sent, lost; /* packets */
	uint64_t rtt_ns;     /* smoothed; 0: no sample yet */
	bool dead;
};
void paths_look(const struct paths *p, enum gx_half half, unsigned path, struct paths_look *out);
/* Have packets of @half left by more than one? Any thread. */
bool paths_several(const struct paths *p, enum gx_half half);

struct paths_state {
	uint32_t use, dead;  /* bits of paths: packets leave by these; these are dead */
	uint64_t moves;	     /* times that a path was left because it was dead */
	uint64_t rtt_ns;     /* smoothed, of the first one in use */
	uint64_t sent, lost; /* packets of all its paths ... */
	uint64_t path_sent[GX_PATHS_MAX], path_lost[GX_PATHS_MAX], path_rtt_ns[GX_PATHS_MAX];
};
void paths_state(const struct paths *p, enum gx_half half, struct paths_state *out);

#endif
