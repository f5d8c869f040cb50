/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which quantum does the path carry, and which of several paths (paths.h) do packets take?
 *
 * The quantum: a connection begins in doubt: it sends padded probes until the
 * peer acknowledges one, and takes a smaller quantum if the peer acknowledges none. Later, large
 * packets that are lost in a row put the quantum in doubt again. Runs on the polling core.
 */
#include "packet/pkt.h"
#include "packet/make.h"
#include "packet/op.h"
#include "packet/timer.h"

#include <errno.h>

#define PKT_PROVE_NS	20000000 /* between two padded probes */
#define PKT_PROVE_TRIES 4	 /* probes before a smaller quantum */
#define PKT_LARGE_B	512	 /* a path that carries smaller packets may not carry larger ones */
#define PKT_RAISE_NS	600000000000ull /* RFC 8899 5.1.1: PMTU_RAISE_TIMER */
#define PKT_DRAIN_NS	1000000000	/* so long new messages wait for the end of old ones */
#define PKT_LARGE_LOST	8 /* large packets lost in a row that put their size in doubt */

/* Quanta to fall back to when padded probes do not come through: FACTS of common MTUs, see
 * docs/wire.md. */
static const uint32_t preferred[] = {8192, 4096, 3328, 1392, GX_WIRE_QUANTUM_MIN};

static uint32_t smaller_quantum(uint32_t quantum)
{
	for (unsigned i = 0; i < GX_ARRAY_SIZE(preferred); i++)
		if (preferred[i] < quantum)
			return preferred[i];
	return 0;
}

void hole_forget(struct pkt_ep *e)
{
	e->path.hole_b = UINT32_MAX;
	e->path.hole_lost = 0;
}

/* These operations get their mids before new ones, or they might wait for ever: the peer is done
 * with an old mid only when its message has begun again. */
static void ops_again(struct pkt_ep *e)
{
	uint32_t head = PKT_NONE, tail = PKT_NONE;

	for (uint32_t place = 0; place < GX_WIRE_MIDS; place++) {
		uint32_t i = e->out[place].op;
		struct pkt_op *op = i == PKT_NONE ? NULL : &e->ops[i];

		if (!op || !op_outgrown(e, op))
			continue;
		op_withdraw(e, op, i);
		op_push(e, &head, &tail, i);
	}
	if (head == PKT_NONE)
		return;
	e->ops[tail].next = e->tx.wait_head;
	if (e->tx.wait_head == PKT_NONE)
		e->tx.wait_tail = tail;
	e->tx.wait_head = head;
}

static void prove_fail(struct pkt_ep *e)
{
	rx_fault(e, -EHOSTUNREACH);
}

/* Padded probes do not come through: take a smaller quantum, and prove it before data goes out with
 * it. False: there is no smaller one. */
static bool prove_fall(struct pkt_ep *e)
{
	uint32_t next = smaller_quantum(e->shape.quantum);

	if (!next) {
		prove_fail(e);
		return false;
	}
	msg_shape_init(&e->shape, next, e->ep.conn->agreed.chunk_b, e->ep.conn->agreed.window);
	atomic_store_explicit(&e->ep.quantum_b, next, memory_order_relaxed);
	hole_forget(e);
	e->path.proven = false;
	e->path.prove_tries = 0;
	e->path.grow_b = 0;
	e->path.raise_ns = e->now_ns + PKT_RAISE_NS;
	ops_again(e);
	return true;
}

/* The connection ends when the data half has let nothing through for so long. */
static uint64_t prove_limit_ns(const struct pkt_ep *e)
{
	/* The receiver may be waiting for its GPU. */
	return e->timer.peer_timeout_ns + (e->tx.begun ? e->ep.core->gx->opts.gpu->timeout_ns : 0);
}

/* Send a padded probe now and then until the peer acknowledges one. A probe counts as too large
 * only if a small one came through that went out with it, on the same half. A path that carries
 * nothing for a while need not be narrow: the peer's core may not turn, or may wait for its GPU. */
void tick_prove(struct pkt_ep *e)
{
	if (!e->path.proving || e->now_ns < e->path.prove_ns || trial_waits(e))
		return;
	if (e->path.prove_tries >= PKT_PROVE_TRIES && e->path.small_passed && !prove_fall(e)) {
		e->path.proving = false;
		return;
	}
	if (!e->path.prove_tries || e->path.small_passed) {
		e->path.prove_tries++;
		e->path.small_passed = false;
		e->path.try_ns = e->now_ns;
		e->path.prove_waits = 0;
	} else if (!e->trial.on && /* which has a limit of its own */
		   ++e->path.prove_waits * (uint64_t)PKT_PROVE_NS >= prove_limit_ns(e)) {
		prove_fail(e);
	}
	e->path.prove_ns = e->now_ns + PKT_PROVE_NS;
	e->path.prove_due = true;
}

/* ---- A path that carries more again ---- */

static void raise_ask(struct pkt_ep *e)
{
	for (unsigned i = GX_ARRAY_SIZE(preferred); i-- > 0;)
		if (preferred[i] > e->shape.quantum && preferred[i] < e->path.full_b)
			make_probe(e, preferred[i], 0);
	make_probe(e, e->path.full_b, 0);
}

/* All packets of an endpoint have one quantum, so no message is under way when it grows. */
static void raise_end(struct pkt_ep *e)
{
	if (!e->tx.nr_mids) {
		msg_shape_init(&e->shape, e->path.grow_b, e->ep.conn->agreed.chunk_b,
			       e->ep.conn->agreed.window);
		atomic_store_explicit(&e->ep.quantum_b, e->path.grow_b, memory_order_relaxed);
		hole_forget(e);
	} else if (e->now_ns < e->path.raise_ns) {
		return;
	}
	e->path.grow_b = 0;
	e->path.proven = true;
	e->path.raise_ns = e->now_ns + PKT_RAISE_NS;
}

/* A lost probe says nothing: the path is as narrow as it was. */
void tick_raise(struct pkt_ep *e)
{
	if (e->path.grow_b) {
		raise_end(e);
		return;
	}
	if (e->path.proving || !e->path.proven || e->now_ns < e->path.raise_ns ||
	    e->link->q->ops->tx_room(e->link->q, GX_HALF_DATA, e->port_peer) <
		    GX_ARRAY_SIZE(preferred))
		return;
	e->path.raise_ns = e->now_ns + PKT_RAISE_NS;
	raise_ask(e);
}

void link_proven(struct pkt_ep *e, uint32_t quantum)
{
	if (quantum > e->shape.quantum && e->path.proven | (e->path.grow_b > 0)) {
		e->path.grow_b = GX_MAX(e->path.grow_b, quantum);
		e->path.proven = false; /* no message begins */
		e->path.raise_ns = e->now_ns + PKT_DRAIN_NS;
	}
	if (quantum != e->shape.quantum || e->path.grow_b)
		return;
	e->path.proven = true;
	e->path.proving = false;
	hole_forget(e);
}

void link_acked(struct pkt_ep *e, const struct flow_pkt *p)
{
	if (p->len >= e->path.hole_b) {
		hole_forget(e);
		if (e->path.proven)
			e->path.proving = false;
	} else if (p->kind == PKT_K_PROBE && p->ref == PKT_SMALL_B &&
		   p->sent_ns >= e->path.try_ns) {
		e->path.small_passed = true;
	}
}

/* Not while nobody knows whether it is the path that is dead. */
static void link_doubt(struct pkt_ep *e)
{
	if (e->path.hole_lost < PKT_LARGE_LOST || e->path.proving ||
	    (e->paths && paths_asks(e->paths, GX_HALF_DATA)))
		return;
	e->path.proving = true;
	e->path.prove_tries = 0;
	e->path.prove_ns = e->now_ns;
}

void link_lost(struct pkt_ep *e, const struct flow_pkt *p)
{
	if (!e->path.probed || e->path.proving || p->len <= PKT_LARGE_B ||
	    p->len > e->shape.quantum || p->sent_ns < e->path.moved_ns)
		return;
	e->path.hole_b = GX_MIN(e->path.hole_b, (uint32_t)p->len);
	e->path.hole_lost++;
	link_doubt(e);
}

/* ---- Several paths ---- */

static void path_set(struct pkt_ep *e, enum gx_half half, unsigned path)
{
	if (path == e->path.by[half])
		return;
	e->path.by[half] = (uint8_t)path;
	e->link->q->ops->path(e->link->q, half, e->port_peer, path);
}

void path_take(struct pkt_ep *e, enum gx_half half)
{
	path_set(e, half, paths_pick(e->paths, half));
}

void path_tell(struct pkt_ep *e, bool ends)
{
	struct paths_state ctl, data;
	uint64_t moves, dead;

	paths_state(e->paths, GX_HALF_CTL, &ctl);
	paths_state(e->paths, GX_HALF_DATA, &data);
	moves = ctl.moves + data.moves;
	dead = ends ? 0 : (uint64_t)__builtin_popcount(ctl.dead | data.dead << GX_PATHS_MAX);
	gx_stat_add(pkt_stats(e->link), GX_STAT_PATH_MOVES, moves - e->path.counted_moves);
	gx_stat_add(pkt_stats(e->link), GX_STAT_PATH_DEAD, dead - e->path.counted_dead);
	e->path.counted_moves = moves;
	e->path.counted_dead = dead;
}

/* Probes that are due, as far as the port has room: before the data, which may fill it for good. */
static void path_probe(struct pkt_ep *e, enum gx_half half)
{
	const struct gx_port_ops *ops = e->link->q->ops;
	uint8_t flags = e->path.seeks ? GX_PKT_SEEK : 0;

	for (; e->path.probe[half]; e->path.probe[half] &= e->path.probe[half] - 1) {
		if (!ops->tx_room(e->link->q, half, e->port_peer))
			break;
		path_set(e, half, (unsigned)__builtin_ctz(e->path.probe[half]));
		make_probe(e, half == GX_HALF_DATA ? PKT_SMALL_B : 0, flags);
	}
	path_take(e, half);
}

/* The peer hears nothing of us. So acknowledgements go by all paths for a while, and by probes we learn
 * which of them it hears. Not more often than slow timers run, whatever the peer says. */
static void path_seek(struct pkt_ep *e)
{
	e->path.seek_due = false;
	if (e->now_ns - e->path.sought_ns < PKT_TICK_NS)
		return;
	e->path.sought_ns = e->now_ns;
	e->path.probe[GX_HALF_CTL] |= paths_seek(e->paths, e->now_ns, GX_HALF_CTL);
}

/* Nobody knows by which path the peer hears us: by each of them. */
void path_ack(struct pkt_ep *e, const uint8_t *b, uint32_t len)
{
	for (unsigned i = 0; i < e->link->port->caps.paths && make_ctl_room(e); i++) {
		path_set(e, GX_HALF_CTL, i);
		make_ctl(e, GX_PKT_ACK, 0, e->ack.apsn++, 0, b, len);
	}
	path_take(e, GX_HALF_CTL);
}

/* A round may end, or a new one begin. What was lost on the path that was left was not too large. */
static void path_look(struct pkt_ep *e)
{
	uint64_t moves = paths_moves(e->paths, GX_HALF_DATA);
	uint32_t probe[2];

	e->path.seeks = paths_tick(e->paths, e->now_ns, probe);
	e->path.probe[GX_HALF_CTL] |= probe[GX_HALF_CTL];
	e->path.probe[GX_HALF_DATA] |= probe[GX_HALF_DATA];
	path_take(e, GX_HALF_CTL);
	if (paths_moves(e->paths, GX_HALF_DATA) != moves) {
		e->path.moved_ns = e->now_ns;
		hole_forget(e);
	} else {
		link_doubt(e);
	}
}

void tick_paths(struct pkt_ep *e)
{
	if (e->path.seek_due)
		path_seek(e);
	if (e->now_ns >= paths_due(e->paths) &&
	    (flow_outstanding(e->flow) || paths_asks(e->paths, GX_HALF_CTL) ||
	     paths_asks(e->paths, GX_HALF_DATA)))
		path_look(e);
	if (e->path.probe[GX_HALF_CTL])
		path_probe(e, GX_HALF_CTL);
	if (e->path.probe[GX_HALF_DATA])
		path_probe(e, GX_HALF_DATA);
}

/* ---- For people who look for the bad one ---- */

static bool ep_path(const struct pkt_ep *e, enum gx_half half, unsigned path, struct gx_path *out)
{
	struct paths_look l;

	paths_look(e->paths, half, path, &l);
	*out = (struct gx_path){.sent = l.sent,
				.lost = l.lost,
				.rtt_ns = l.rtt_ns,
				.lane = e->ep.lane,
				.source_port = e->link->q->from[half][path],
				.data = half == GX_HALF_DATA,
				.dead = l.dead};
	return l.sent;
}

/* Paths are numbered by lane, half, and source port. */
bool pkt_conn_path(const struct gx_conn *c, unsigned *at, struct gx_path *out)
{
	while (*at < c->nr_lanes * 2 * GX_PATHS_MAX) {
		unsigned n = (*at)++, path = n % GX_PATHS_MAX;
		enum gx_half half = n / GX_PATHS_MAX % 2 ? GX_HALF_CTL : GX_HALF_DATA;
		const struct pkt_ep *e = pkt_of(c->ep[n / (2 * GX_PATHS_MAX)]);

		if (!path && (!e->paths || !paths_several(e->paths, half)))
			*at += GX_PATHS_MAX - 1;
		else if (ep_path(e, half, path, out))
			return true;
	}
	return false;
}
