/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does a lane let packets through, each way and in each half? A firewall may let the bootstrap pass and
 * drop what a port sends. So the lanes of a connection over a network are attached before it is up, and send
 * small probes. An end says UP when it hears the peer on all of them: that the other way carries packets
 * as well, the peer's UP says.
 *
 * Slow is not dead. Each end says by the bootstrap when its lanes have sent for long enough (TRIAL_SENT).
 * Only an end that has this word, whose own cores have turned since, and that heard nothing on a lane, finds
 * that way dead. A program that turns its cores itself may wait for the connection meanwhile: an end whose
 * cores do not turn gives up, and the connection comes up untried.
 */
#include "packet/trial.h"
#include "packet/make.h"
#include "packet/pkt.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define TRIAL_NS       20000000u /* between packets of a lane */
#define TRIAL_OUT      1024	 /* with more that are out none follows: the peer stands still */
#define TRIAL_ENOUGH   40	 /* of them: no path loses all */
#define TRIAL_GRACE    8 /* packets of our own behind the peer's word: its own came by then */
#define TRIAL_AGAIN_NS 1000000000u /* between two such words: the peer may not have been ready */
#define TRIAL_LOOK_NS  15000000u   /* between two looks whether the cores turn, at least */
#define TRIAL_STALLED  8   /* such looks without a packet of some lane: a core does not turn */
#define TRIAL_STUCK    100 /* the same, of a core whose thread runs, or waits for a CPU */
#define TRIAL_BOTH     (1u << GX_HALF_CTL | 1u << GX_HALF_DATA)

/* A connection's part of it. owner: ctl */
struct trial_conn {
	bool peer_can; /* server: the client has said so */
	bool said;     /* this end has said that both can; its cores may stop meanwhile */
	bool on;       /* both ends try; frozen once the peer has said what it can */
	bool said_ready;
	uint64_t said_ns; /* TRIAL_SENT was said; 0: not yet */
	bool peer_sent;	  /* the peer's came, ... */
	uint32_t
		sent_then; /* ... when each of our lanes had sent so often; UINT32_MAX: not looked yet */
	uint32_t sent_seen; /* the same at the last look that counts, ... */
	uint64_t look_ns;   /* ... its time, ... */
	unsigned stalls;    /* ... and how many before it saw the same */
};

/* ---- on the core ---- */

/* A packet that comes before the other end is attached would count as lost. So the client waits a little for the
 * word of the server, and the server for packets of the client. */
void trial_attach(struct pkt_ep *e)
{
	if (!e->path.probed || !e->ep.conn->trying || conn_state(e->ep.conn) == GX_CONN_STATE_UP)
		return;
	e->trial.on = true;
	e->trial.due_ns = e->path.prove_ns = e->now_ns + TRIAL_NS;
}

bool trial_waits(const struct pkt_ep *e)
{
	return e->trial.on && flow_outstanding(e->flow) > TRIAL_OUT;
}

static void trial_begin(struct pkt_ep *e)
{
	e->trial.due_ns = e->path.prove_ns = e->timer.tick_ns = 0;
}

/* Also of one that went down before it was up: its program has never seen it. */
bool trial_holds(struct pkt_ep *e)
{
	e->trial.on = conn_state(e->ep.conn) != GX_CONN_STATE_UP;
	return e->trial.on;
}

void trial_heard(struct pkt_ep *e, enum gx_half half)
{
	uint32_t was = atomic_load_explicit(&e->trial.heard, memory_order_relaxed);

	atomic_store_explicit(&e->trial.heard, was | 1u << half, memory_order_relaxed);
	if (!was)
		trial_begin(e);
}

void trial_tick(struct pkt_ep *e)
{
	const struct gx_port_ops *ops = e->link->q->ops;
	uint32_t sent = atomic_load_explicit(&e->trial.sent, memory_order_relaxed);

	if (!sent && e->now_ns < e->trial.due_ns &&
	    atomic_load_explicit(&e->trial.go, memory_order_relaxed))
		trial_begin(e);
	if (e->now_ns < e->trial.due_ns || !trial_holds(e) || trial_waits(e))
		return;
	if (!ops->tx_room(e->link->q, GX_HALF_DATA, e->port_peer) || !make_ctl_room(e))
		return;
	e->trial.due_ns = e->now_ns + TRIAL_NS;
	make_probe(e, PKT_SMALL_B, 0);
	make_probe(e, 0, 0);
	atomic_store_explicit(&e->trial.sent, sent + 1, memory_order_relaxed);
}

/* ---- what the ends can ---- */

static struct pkt_trial *trial_of(const struct gx_conn *c, unsigned lane)
{
	return &pkt_of(c->ep[lane])->trial;
}

/* A path that gx knows, as within a host, needs no trial. And a core that nobody turns yet cannot try. */
static bool conn_can(const struct gx_conn *c)
{
	bool can = c->nr_lanes > 0;

	for (unsigned i = 0; i < c->nr_lanes; i++)
		can &= pkt_of(c->ep[i])->link->port->caps.flags & GX_PORT_NEEDS_PROBE &&
		       atomic_load_explicit(&c->ep[i]->core->turner, memory_order_relaxed) !=
			       CORE_NOBODY;
	return can;
}

int trial_open(struct gx_conn *c, const struct gx_link_want *want)
{
	struct trial_conn *t = calloc(1, sizeof(*t));

	if (!t)
		return gx_fail(-ENOMEM, "out of memory");
	c->link_state = t;
	if (want->blob_b > 1 || (want->blob_b && want->blob[0] != 1))
		return gx_fail(-EPROTO, "malformed words of link packet");
	t->peer_can = want->blob_b;
	return 0;
}

void trial_close(struct gx_conn *c)
{
	free(c->link_state);
	c->link_state = NULL;
}

uint32_t trial_offer(const struct gx *gx, bool server, uint8_t *b)
{
	b[0] = 1;
	return server;
}

uint32_t trial_say(const struct gx_conn *c, uint8_t *b)
{
	struct trial_conn *t = c->link_state;

	b[0] = 1;
	t->said = (c->server ? t->peer_can : c->peer.offer[GX_LINK_PACKET].len == 1) && conn_can(c);
	return t->said;
}

int trial_hear(struct gx_conn *c, const uint8_t *b, uint32_t len)
{
	struct trial_conn *t = c->link_state;

	if (len > 1 || (len && b[0] != 1) || (len && !c->server && !t->said))
		return gx_fail(-EPROTO, "malformed words of link packet");
	t->on = len && t->said;
	return 0;
}

bool trial_tries(const struct gx_conn *c)
{
	const struct trial_conn *t = c->link_state;

	return t && t->on;
}

/* ---- what it shows ---- */

/* Numbers of UDP ports of some lanes: from the first to the last. */
struct trial_range {
	unsigned from, to;
};

static void range_add(struct trial_range *r, unsigned first)
{
	r->from = r->from ? GX_MIN(r->from, first) : first;
	r->to = GX_MAX(r->to, first + 1); /* data and control */
}

static void way_add(const struct pkt_ep *e, struct gx_port_way *way, struct trial_range *own,
		    struct trial_range *peer)
{
	e->link->q->ops->peer_way(e->link->q, e->port_peer, way);
	range_add(own, way->own_port);
	range_add(peer, way->peer_port);
}

/* Whose packets do not come. Return: -EHOSTUNREACH */
static int trial_fail(const struct gx_conn *c, bool peer_up)
{
	struct trial_range own = {0}, peer = {0};
	struct gx_port_way way = {0};
	unsigned nr = 0;

	for (unsigned i = 0; i < c->nr_lanes; i++) {
		const struct pkt_ep *e = pkt_of(c->ep[i]);

		if (atomic_load_explicit(&e->trial.heard, memory_order_relaxed) == TRIAL_BOTH)
			continue;
		way_add(e, &way, &own, &peer);
		nr++;
	}
	if (!way.own_port)
		return gx_fail(-EHOSTUNREACH,
			       "no packet of the peer comes over port %s on %u of %u lanes%s",
			       c->gx->port[c->port].name, nr, c->nr_lanes,
			       peer_up ? ", while ours arrive there" : "");
	return gx_fail(
		-EHOSTUNREACH,
		"no UDP packet of %s comes to %s ports %u-%u, %s %s ports %u-%u %s; TCP works: "
		"open these UDP ports",
		way.peer, way.own, own.from, own.to, peer_up ? "while those to" : "and none to",
		way.peer, peer.from, peer.to, peer_up ? "arrive" : "is known to arrive");
}

int trial_take(struct gx_conn *c, uint8_t word)
{
	struct trial_conn *t = c->link_state;

	switch (word) {
	case TRIAL_GIVEN_UP:
		t->on = false;
		return 0;
	case TRIAL_READY:
		if (c->server)
			return -EPROTO;
		for (unsigned i = 0; i < c->nr_lanes; i++)
			atomic_store_explicit(&trial_of(c, i)->go, true, memory_order_relaxed);
		return 0;
	case TRIAL_SENT:
		if (!t->peer_sent)
			t->sent_then = UINT32_MAX;
		t->peer_sent = true;
		return 0;
	}
	return -EPROTO;
}

/* Each of our lanes has sent @sent times at least. Does a core not turn, though nothing but its program keeps
 * it from that? One that waits for a CPU will turn, but a thread that computes looks the same. */
static bool trial_stalls(const struct gx_conn *c, uint32_t sent, uint64_t now_ns)
{
	struct trial_conn *t = c->link_state;

	if (now_ns - t->look_ns < TRIAL_LOOK_NS)
		return false;
	t->look_ns = now_ns;
	t->stalls = sent == t->sent_seen ? t->stalls + 1 : 0;
	t->sent_seen = sent;
	if (t->stalls < TRIAL_STALLED || t->stalls >= TRIAL_STUCK)
		return t->stalls >= TRIAL_STUCK;
	for (unsigned i = 0; i < c->nr_lanes; i++)
		if (core_is_runnable(c->ep[i]->core))
			return false;
	return true;
}

int trial_look(struct gx_conn *c, bool peer_up,
	       void (*say)(struct gx_conn *c, const uint8_t *b, uint32_t len))
{
	struct trial_conn *t = c->link_state;
	uint64_t now_ns = gx_now_ns();
	uint32_t sent = UINT32_MAX;
	bool heard = true, ready = c->server && !t->said_ready;

	for (unsigned i = 0; i < c->nr_lanes; i++) {
		const struct pkt_trial *l = trial_of(c, i);
		int fault = atomic_load_explicit(&c->ep[i]->fault, memory_order_acquire);

		if (fault)
			return gx_fail(fault, "lane %u failed: %s", i, strerror(-fault));
		ready &= atomic_load_explicit(&c->ep[i]->attached, memory_order_acquire);
		heard &= atomic_load_explicit(&l->heard, memory_order_relaxed) == TRIAL_BOTH;
		sent = GX_MIN(sent, atomic_load_explicit(&l->sent, memory_order_relaxed));
	}
	if (ready) {
		t->said_ready = true;
		say(c, &(uint8_t){TRIAL_READY}, 1);
	}
	if (sent >= TRIAL_ENOUGH && (!t->said_ns || now_ns - t->said_ns >= TRIAL_AGAIN_NS)) {
		t->said_ns = now_ns;
		say(c, &(uint8_t){TRIAL_SENT}, 1);
	}
	if (trial_stalls(c, sent, now_ns)) {
		t->on = false;
		say(c, &(uint8_t){TRIAL_GIVEN_UP}, 1);
		return 1;
	}
	if (t->peer_sent && t->sent_then == UINT32_MAX)
		t->sent_then = sent;
	if (heard)
		return 1;
	return t->peer_sent && sent - t->sent_then >= TRIAL_GRACE ? trial_fail(c, peer_up) : 0;
}

bool trial_fault(const struct gx_conn *c, int err, char *buf, size_t room)
{
	struct trial_range own = {0}, peer = {0};
	struct gx_port_way way = {0};
	unsigned nr = 0;

	for (unsigned i = 0; i < c->nr_lanes && (err == -ETIMEDOUT || err == -EHOSTUNREACH); i++)
		if (atomic_load_explicit(&c->ep[i]->fault, memory_order_relaxed) == err) {
			way_add(pkt_of(c->ep[i]), &way, &own, &peer);
			nr++;
		}
	if (!way.own_port)
		return false;
	if (err == -EHOSTUNREACH)
		snprintf(
			buf, room,
			"no data packet reaches peer %s on %u of %u lanes, not even one of %u bytes: is the "
			"path's MTU too small, or are UDP ports %u-%u of %s blocked now?",
			c->peer_name, nr, c->nr_lanes, GX_WIRE_QUANTUM_MIN, peer.from, peer.to,
			way.peer);
	else
		snprintf(
			buf, room,
			"peer %s was not heard for %.1f s on %u of %u lanes: is it stopped, or are UDP ports %u-%u "
			"of %s, or %u-%u of %s, blocked now?",
			c->peer_name, (double)c->agreed.peer_timeout_ns / 1e9, nr, c->nr_lanes,
			own.from, own.to, way.own, peer.from, peer.to, way.peer);
	return true;
}
