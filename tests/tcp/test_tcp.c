/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an endpoint of the tcp link does with a peer that keeps the protocol: each size, splits at
 * each byte, full windows both ways, sends that meet receives, early ends.
 */
#include "tcp/tcp_conn.h"
#include "tcp/tcp_live.h"
#include "tcp/tcp_match.h"
#include "tcp/tcp_pair.h"
#include "tcp/tcp_sock.h"
#include "tcp/tcp_turn.h"

#include <sys/socket.h>
#include <unistd.h>

/* ---- Bytes ---- */

static void there_and_back(struct pair *p, unsigned from, uint64_t len, uint64_t off)
{
	struct side *a = &p->side[from], *b = &p->side[!from];
	struct gx_op op = op_of(GX_OP_PUT, p->buf, len);
	unsigned done = a->nr_done, notes = b->nr_notify;

	bytes_fill(p->buf, len, (unsigned)len);
	memset(b->mem.addr, POISON, off + len + 64);
	op.remote_off = off;
	op.flags = GX_OP_IMM;
	op.imm = len + 5;
	assert_int_equal(side_post(p, from, &op), 0);
	UNTIL(p, a->nr_done == done + 1 && b->nr_notify == notes + 1);
	assert_int_equal(a->last.status, 0);
	assert_int_equal(a->last.len, len);
	assert_int_equal(a->last.user, 7);
	assert_int_equal(b->note.imm, len + 5);
	assert_int_equal(b->note.off, off);
	assert_int_equal(b->note.token, TOKEN);
	assert_memory_equal(b->mem.addr + off, p->buf, len);
	for (unsigned i = 0; i < 64; i++)
		assert_int_equal(b->mem.addr[off + len + i], POISON);
	assert_true(!off || b->mem.addr[off - 1] == POISON);
	memset(a->mem.addr, POISON, len + 64);
	op = op_of(GX_OP_GET, a->mem.addr, len);
	op.remote_off = off;
	assert_int_equal(side_post(p, from, &op), 0);
	UNTIL(p, a->nr_done == done + 2);
	assert_int_equal(a->last.status, 0);
	assert_memory_equal(a->mem.addr, p->buf, len);
	assert_int_equal(a->mem.addr[len], POISON);
}

static const uint64_t sizes[] = {0,	 1,	  63,	   64,		 65,	 4095,
				 65535,	 65536,	  65537,   131072,	 196609, 262144,
				 262145, 1000000, 2 << 20, (3 << 20) + 1};

static void put_get__sizes(void **state)
{
	for (unsigned nr = 1; nr <= TCP_SOCKS_MAX; nr += nr < 5 ? 1 : 11) {
		struct pair *p = pair_new(nr);

		for (unsigned i = 0; i < GX_ARRAY_SIZE(sizes); i++) {
			there_and_back(p, 0, sizes[i], i * 13);
			there_and_back(p, 1, sizes[i], i % 3 * 64);
		}
		pair_done(p);
	}
}

static void put_get__split_anywhere(void **state)
{
	for (dribble_b = 1; dribble_b < 200; dribble_b += dribble_b < 70 ? 1 : 13) {
		struct pair *p = pair_new(dribble_b % 3 + 1);

		p->side[0].e->sys = p->side[1].e->sys = &dribble;
		there_and_back(p, 0, 0, 0);
		there_and_back(p, 0, 1, 3);
		there_and_back(p, 1, 100, 0);
		if (dribble_b > 60)
			there_and_back(p, 0, 2 * CHUNK_B + 1, 5);
		pair_done(p);
	}
}

/* Both ends send more than sockets hold, and neither waits for the other. */
static void put__both_ways_at_once(void **state)
{
	struct pair *p = pair_new(2);
	struct gx_op op = op_of(GX_OP_PUT, p->buf, 1 << 20);
	unsigned nr[2] = {0};

	bytes_fill(p->buf, MEM_B, 9);
	for (unsigned i = 0; i < 60; i++)
		for (unsigned k = 0; k < 2; k++) {
			op.remote_off = i % 3 << 20;
			nr[k] += !side_post(p, k, &op);
		}
	assert_true(nr[0] == 60 && nr[1] == 60);
	UNTIL(p, p->side[0].nr_done == 60 && p->side[1].nr_done == 60);
	for (unsigned k = 0; k < 2; k++)
		for (unsigned i = 0; i < 3; i++)
			assert_memory_equal(p->side[k].mem.addr + (i << 20), p->buf, 1 << 20);
	pair_done(p);
}

static void put__many_small(void **state)
{
	struct pair *p = pair_new(3);
	struct gx_op op = op_of(GX_OP_PUT, p->buf, 16);
	unsigned posted = 0;

	while (posted < 20000) {
		op.flags = posted % 3 ? 0 : GX_OP_LOCAL;
		op.remote_off = posted % 1000 * 16;
		if (!side_post(p, 0, &op))
			posted++;
		side_turn(p, 0);
		side_turn(p, 1);
		p->now_ns += 1000;
	}
	UNTIL(p, p->side[0].nr_done == posted);
	assert_int_equal(p->side[0].nr_local, (posted + 2) / 3);
	pair_done(p);
}

/* All counters of both ends shortly before their wrap. */
static void pair_wrap(struct pair *p)
{
	const uint32_t round = 0u - 2 * TCP_MIDS;

	for (unsigned side = 0; side < 2; side++) {
		struct tcp_ep *e = p->side[side].e;

		for (uint32_t i = 0; i < TCP_MIDS; i++) {
			e->tx.mids[i] = round + i;
			e->in[i].round = round;
		}
		e->tx.mid_tail = 0u - TCP_MIDS;
		e->tx.mid_head = 0;
		e->ctls.head = e->ctls.tail = UINT32_MAX - 5;
		e->match.gets_head = e->match.gets_tail = UINT32_MAX - 5;
		for (unsigned i = 0; i < TCP_SLOTS; i++)
			e->match.slots[i].gen = 0x7ffffffe;
		for (unsigned i = 0; i < e->nr_socks; i++)
			e->sock[i].head = e->sock[i].tail = UINT32_MAX - 7;
	}
}

static void put_get__counters_wrap(void **state)
{
	struct pair *p = pair_new(2);

	pair_wrap(p);
	for (unsigned i = 0; i < 4 * TCP_MIDS; i++)
		there_and_back(p, i & 1, i % 256 ? 16 : 3 * CHUNK_B + 1, 0);
	assert_int_equal(p->side[1].e->in[0].round, 0u + TCP_MIDS * 2);
	pair_done(p);
}

/* One chunk takes longer than the peer time-out, and PING waits behind it. */
static void put__slow_path(void **state)
{
	struct pair *p = pair_new(1);
	struct gx_op op = op_of(GX_OP_PUT, p->buf, CHUNK_B);
	uint64_t begin_ns = p->now_ns;

	bytes_fill(p->buf, CHUNK_B, 4);
	dribble_b = 8;
	p->side[0].e->sys = &dribble;
	assert_int_equal(side_post(p, 0, &op), 0);
	while (!p->side[0].nr_done && p->now_ns - begin_ns < 20000 * MS) {
		p->now_ns += MS;
		side_turn(p, 0);
		side_turn(p, 1);
		assert_int_equal(side_fault(p, 0), 0);
	}
	assert_true(p->now_ns - begin_ns > p->side[0].conn.agreed.peer_timeout_ns * 3 / 2);
	assert_int_equal(p->side[0].nr_done, 1);
	assert_int_equal(p->side[0].last.status, 0);
	assert_memory_equal(p->side[1].mem.addr, p->buf, CHUNK_B);
	pair_done(p);
}

/* ---- Sends, receives ---- */

static void send_recv(struct pair *p, bool send_first, uint64_t len, uint64_t room, int want)
{
	struct side *a = &p->side[0], *b = &p->side[1];
	struct gx_op send = op_of(GX_OP_SEND, p->buf, len);
	struct gx_op recv = op_of(GX_OP_RECV, b->mem.addr, room);
	unsigned done = a->nr_done;

	bytes_fill(p->buf, len, 3);
	send.tag = 0x55;
	recv.tag = 0x05;
	recv.tag_mask = 0x0f;
	assert_int_equal(side_post(p, !send_first, send_first ? &send : &recv), 0);
	for (unsigned i = 0; i < 10; i++)
		side_turn(p, i & 1);
	assert_int_equal(side_post(p, send_first, send_first ? &recv : &send), 0);
	UNTIL(p, a->nr_done == done + 1);
	assert_int_equal(a->last.status, want);
	if (want)
		return;
	UNTIL(p, b->last.op == GX_OP_RECV && b->last.len == len);
	assert_int_equal(b->last.tag, 0x55);
	assert_memory_equal(b->mem.addr, p->buf, len);
}

static void send_recv__meets(void **state)
{
	struct pair *p = pair_new(2);
	struct gx_op send = op_of(GX_OP_SEND, p->buf, 8);

	send_recv(p, true, 10, 100, 0);
	send_recv(p, false, 300000, 300000, 0);
	send_recv(p, true, 0, 0, 0);
	send_recv(p, true, 11, 10, -EMSGSIZE); /* the receive stays, ... */
	send.tag = 5;
	assert_int_equal(side_post(p, 0, &send), 0);
	UNTIL(p, p->side[1].last.len == 8); /* ... and another send fits it */
	pair_done(p);
}

/* A sender makes the room larger that the receiver has told, and an answer has not the length that was
 * asked for. Not a byte is placed, and nothing ends well. */
/* Words of @at that are neither what was there nor what comes. */
static unsigned words_torn(const char *at, const char *right, uint64_t len)
{
	static const char before[8] = {POISON, POISON, POISON, POISON,
				       POISON, POISON, POISON, POISON};
	unsigned n = 0;

	for (uint64_t i = 0; i + 8 <= len; i += 8)
		n += memcmp(at + i, before, 8) && memcmp(at + i, right + i, 8);
	return n;
}

/* Return: how many were seen while the message came. */
static unsigned words_recv(struct pair *p, uint64_t len, unsigned flags)
{
	struct gx_op recv = op_of(GX_OP_RECV, p->side[1].mem.addr, len);
	struct gx_op send = op_of(GX_OP_SEND, p->buf, len);
	unsigned mine = p->side[0].nr_done, theirs = p->side[1].nr_done, n = 0;
	char *at = p->side[1].mem.addr;

	recv.flags = flags;
	bytes_fill(p->buf, len, (unsigned)len);
	memset(at, POISON, len + 64);
	assert_int_equal(side_post(p, 1, &recv), 0);
	assert_int_equal(side_post(p, 0, &send), 0);
	for (unsigned i = 0; p->side[1].nr_done == theirs && i < 2000000; i++) {
		p->now_ns += 1000;
		side_turn(p, 0);
		side_turn(p, 1);
		n += words_torn(at, p->buf, len);
	}
	assert_int_equal(p->side[1].last.status, 0);
	assert_memory_equal(at, p->buf, len);
	assert_int_equal(at[len], POISON);
	UNTIL(p, p->side[0].nr_done == mine + 1);
	return n;
}

/* The kernel gives any number of bytes, and who reads while they come sees no half word. */
static void recv__by_words(void **state)
{
	static const size_t cuts[] = {1, 3, 7, 9, 61, 1021, 4097, 40003};

	for (unsigned i = 0; i < 2 * GX_ARRAY_SIZE(cuts); i++) {
		struct pair *p;

		pair_sealed = i & 1;
		p = pair_new(1 + i % 3);
		dribble_b = cuts[i / 2];
		p->side[0].e->sys = p->side[1].e->sys = &dribble;
		for (uint64_t len = 1; len < 40 * dribble_b; len += 1 + len / 2)
			assert_int_equal(words_recv(p, len, GX_OP_WORDS), 0);
		if (dribble_b > 1000)
			assert_int_equal(words_recv(p, 2 * CHUNK_B + 3, GX_OP_WORDS), 0);
		if (!pair_sealed && dribble_b < 1000) /* else this test sees nothing */
			assert_true(words_recv(p, 16 * dribble_b + 5, 0));
		pair_done(p);
	}
	pair_sealed = false;
}

static void send_recv__lies_about_lengths(void **state)
{
	struct pair *p = pair_new(2);
	struct tcp_ep *e = p->side[0].e;
	struct gx_op op = op_of(GX_OP_RECV, p->side[1].mem.addr, 10);
	const char *at = p->side[1].mem.addr;

	assert_int_equal(side_post(p, 1, &op), 0);
	UNTIL(p, e->match.offers[0].used);
	e->match.offers[0].len = 300000;
	memset(p->buf, 1, 300000);
	memset(p->side[1].mem.addr, 0, 300000);
	op = op_of(GX_OP_SEND, p->buf, 300000);
	assert_int_equal(side_post(p, 0, &op), 0);
	UNTIL(p, p->side[0].nr_done == 1);
	assert_int_equal(p->side[0].last.status, -EMSGSIZE);
	assert_int_equal(p->side[1].nr_done, 0);
	for (unsigned i = 0; i < 300000; i++)
		assert_int_equal(at[i], 0);
	for (unsigned i = 0; i < 2; i++) {
		op = op_of(GX_OP_GET, p->buf, 1000);
		assert_int_equal(side_post(p, 0, &op), 0);
		for (unsigned k = 0; k < GX_ARRAY_SIZE(e->ops); k++)
			if (e->ops[k].len == 1000)
				e->ops[k].len = i ? 1100 : 900;
		for (unsigned k = 0; k < 100; k++)
			side_turn(p, k & 1);
		assert_int_equal(p->side[0].nr_done, 1);
		assert_int_equal(p->buf[0], 1);
	}
	pair_free(p);
}

/* ---- Errors, early ends ---- */

/* Return: how many operations of op_of() it found. */
static int cancel(struct pair *p, unsigned side)
{
	int n = gx_link_tcp_ops.cancel(&p->side[side].e->ep, 7, NULL);

	side_take(&p->side[side]);
	return n;
}

static void region__errors(void **state)
{
	static const struct {
		uint64_t token, off, len;
		unsigned access;
		int want;
	} cases[] = {
		{TOKEN + 0x100, 0, 8, 3, -ENOENT},
		{TOKEN + 1, 0, 8, 3, -ENOENT},
		{TOKEN, 0, 8, 0, -EACCES},
		{TOKEN, MEM_B, 1, 3, -ERANGE},
		{TOKEN, UINT64_MAX, 8, 3, -ERANGE},
		{TOKEN, MEM_B - 7, 300000, 3, -ERANGE},
		{TOKEN, MEM_B, 0, 3, 0},
	};
	struct pair *p = pair_new(2);

	for (unsigned i = 0; i < 2 * GX_ARRAY_SIZE(cases); i++) {
		struct gx_op op = op_of(i & 1 ? GX_OP_GET : GX_OP_PUT, p->buf, cases[i / 2].len);
		unsigned done = p->side[0].nr_done;

		p->side[1].mem.access = cases[i / 2].access ? GX_ACCESS_PUT | GX_ACCESS_GET : 0;
		op.token = cases[i / 2].token;
		op.remote_off = cases[i / 2].off;
		assert_int_equal(side_post(p, 0, &op), 0);
		UNTIL(p, p->side[0].nr_done == done + 1);
		assert_int_equal(p->side[0].last.status, cases[i / 2].want);
	}
	pair_done(p);
}

static void cancel__at_any_time(void **state)
{
	struct pair *p = pair_new(3);
	struct side *a = &p->side[0];

	for (unsigned turns = 0; turns < 40; turns++)
		for (unsigned get = 0; get < 2; get++) {
			struct gx_op op =
				op_of(get ? GX_OP_GET : GX_OP_PUT, a->mem.addr, (1 << 20) + 9);
			unsigned done = a->nr_done;

			assert_int_equal(side_post(p, 0, &op), 0);
			for (unsigned i = 0; i < turns; i++)
				side_turn(p, i & 1);
			gx_link_tcp_ops.cancel(&a->e->ep, 7, NULL);
			/* From now on the memory is the user's. */
			side_take(a);
			assert_int_equal(a->nr_done, done + 1);
			assert_true(!a->last.status || a->last.status == -ECANCELED);
			memset(a->mem.addr, turns, (1 << 20) + 9);
			UNTIL(p, pair_is_at_rest(p));
			for (unsigned i = 0; a->last.status && i <= 1 << 20; i += 4096)
				assert_int_equal(a->mem.addr[i], (char)turns);
		}
	pair_done(p);
}

static void recv__cancel(void **state)
{
	struct pair *p = pair_new(1);
	struct side *b = &p->side[1];
	struct gx_op recv = op_of(GX_OP_RECV, b->mem.addr, 64), send = op_of(GX_OP_SEND, p->buf, 8);

	assert_int_equal(side_post(p, 1, &recv), 0);
	assert_int_equal(gx_link_tcp_ops.cancel(&b->e->ep, 7, NULL), 1);
	side_take(b);
	assert_int_equal(b->last.status, -ECANCELED);
	pair_settle(p); /* REVOKE has come: until then a send may take the offer, and is refused */
	assert_int_equal(side_post(p, 0, &send), 0); /* the offer is gone: it waits */
	for (unsigned i = 0; i < 100; i++) {
		side_turn(p, 0);
		side_turn(p, 1);
	}
	assert_int_equal(p->side[0].nr_done, 0);
	assert_int_equal(side_post(p, 1, &recv), 0);
	UNTIL(p, p->side[0].nr_done == 1);
	assert_int_equal(p->side[0].last.status, 0);
	pair_done(p);
}

/* The receive is taken back, and a send of the peer has taken its offer already. */
static void recv__cancel_crosses_a_send(void **state)
{
	struct pair *p = pair_new(1);
	struct side *b = &p->side[1];
	struct gx_op recv = op_of(GX_OP_RECV, b->mem.addr, 64), send = op_of(GX_OP_SEND, p->buf, 8);

	assert_int_equal(side_post(p, 1, &recv), 0);
	side_turn(p, 0);
	assert_int_equal(side_post(p, 0, &send), 0);
	assert_int_equal(cancel(p, 1), 1);
	UNTIL(p, p->side[0].nr_done == 1);
	assert_int_equal(p->side[0].last.status, -ECANCELED);
	assert_int_equal(b->nr_done, 1);
	assert_int_equal(b->mem.addr[0], POISON);
	pair_done(p);
}

/* The sender's side is the cause, in the middle of a message: the receiver hears why. */
static void send__fails_for_a_reason(void **state)
{
	struct pair *p = pair_new(2);
	struct side *a = &p->side[0], *b = &p->side[1];
	struct gx_op recv = op_of(GX_OP_RECV, b->mem.addr, 1 << 20);
	struct gx_op send = op_of(GX_OP_SEND, p->buf, 1 << 20);

	assert_int_equal(side_post(p, 1, &recv), 0);
	side_turn(p, 0);
	assert_int_equal(side_post(p, 0, &send), 0);
	assert_int_equal(a->e->ops[0].state, TCP_OP_SENDING);
	tcp_abort_let_go(a->e, 0, -EIO, -EIO);
	UNTIL(p, a->nr_done && b->nr_done);
	assert_int_equal(a->last.status, -EIO);
	assert_int_equal(b->last.status, -EIO);
	pair_done(p);
}

/* Posted, and nothing of it may leave yet. */
static void post_only(struct pair *p, unsigned side, const struct gx_op *op)
{
	assert_int_equal(gx_link_tcp_ops.post(&p->side[side].e->ep, op, NULL), 0);
}

/* A send that ends before a byte of it left gives its offer back: the receive waits for another. */
static void send__cancelled_before_it_leaves(void **state)
{
	struct pair *p = pair_new(1);
	struct side *a = &p->side[0], *b = &p->side[1];
	struct gx_op recv = op_of(GX_OP_RECV, b->mem.addr, 64), send = op_of(GX_OP_SEND, p->buf, 8);

	assert_int_equal(side_post(p, 1, &recv), 0);
	side_turn(p, 0);
	assert_int_equal(a->e->match.nr_offers, 1);
	post_only(p, 0, &send);
	assert_int_equal(a->e->match.nr_offers, 0);
	assert_int_equal(cancel(p, 0), 1);
	assert_int_equal(a->last.status, -ECANCELED);
	assert_int_equal(a->e->match.nr_offers, 1);
	assert_int_equal(side_post(p, 0, &send), 0);
	UNTIL(p, a->nr_done == 2 && b->nr_done == 1);
	assert_int_equal(a->last.status, 0);
	assert_int_equal(b->last.status, 0);
	/* But one that was revoked meanwhile is gone. */
	assert_int_equal(side_post(p, 1, &recv), 0);
	side_turn(p, 0);
	post_only(p, 0, &send);
	assert_int_equal(cancel(p, 1), 1);
	side_turn(p, 1);
	tcp_rx(a->e);
	assert_int_equal(cancel(p, 0), 1);
	assert_int_equal(a->e->match.nr_offers, 0);
	pair_done(p);
}

/* Either side gives up, then the other one. The receiver's buffer is its own from then on. */
static void cancel__send_recv_at_any_time(void **state)
{
	const uint64_t len = (1 << 20) + 9;
	struct pair *p = pair_new(2);
	struct side *a = &p->side[0], *b = &p->side[1];

	for (unsigned k = 0; k < 80; k++) {
		unsigned who = k & 1, done[2] = {a->nr_done, b->nr_done};
		struct gx_op recv = op_of(GX_OP_RECV, b->mem.addr, len);
		struct gx_op send = op_of(GX_OP_SEND, p->buf, len);

		assert_int_equal(side_post(p, 1, &recv), 0);
		assert_int_equal(side_post(p, 0, &send), 0);
		for (unsigned i = 0; i < k / 2; i++)
			side_turn(p, i & 1);
		cancel(p, who);
		assert_int_equal(p->side[who].nr_done, done[who] + 1);
		if (who == 1 && b->last.status) {
			assert_int_equal(b->last.status, -ECANCELED);
			memset(b->mem.addr, (int)k, len);
		}
		for (unsigned i = 0; i < 100; i++)
			side_turn(p, i & 1);
		cancel(p, !who);
		assert_int_equal(a->nr_done, done[0] + 1);
		assert_int_equal(b->nr_done, done[1] + 1);
		pair_settle(p);
		for (uint64_t i = 0; who == 1 && b->last.status && i < len; i += 4096)
			assert_int_equal(b->mem.addr[i], (char)k);
	}
	pair_done(p);
}

/* The endpoint ends with everything under way, both ways. */
static void fail__at_any_time(void **state)
{
	static const enum gx_op_kind kinds[] = {GX_OP_PUT, GX_OP_GET, GX_OP_RECV, GX_OP_SEND};

	for (unsigned turns = 0; turns < 60; turns += turns < 20 ? 1 : 7) {
		struct pair *p = pair_new(3);

		for (unsigned i = 0; i < 2 * GX_ARRAY_SIZE(kinds); i++) {
			struct side *s = &p->side[i & 1];
			struct gx_op op = op_of(kinds[i / 2], s->mem.addr, 1 << 20);

			op.flags = op.kind == GX_OP_PUT ? GX_OP_LOCAL | GX_OP_IMM : 0;
			assert_int_equal(side_post(p, i & 1, &op), 0);
		}
		for (unsigned i = 0; i < turns; i++)
			side_turn(p, i & 1);
		for (unsigned i = 0; i < 2; i++) {
			struct gx_ep *ep = &p->side[i].e->ep;

			ep->ops->ep_fail(ep, -ECONNRESET);
			side_take(&p->side[i]);
			assert_int_equal(p->side[i].nr_done, 4);
			assert_int_equal(p->side[i].nr_local, 1);
		}
		pair_free(p);
	}
}

static void deadline__passes(void **state)
{
	struct pair *p = pair_new(1);
	struct gx_op op = op_of(GX_OP_PUT, p->buf, 2 << 20);

	op.deadline_ns = p->now_ns + 5 * MS;
	assert_int_equal(side_post(p, 0, &op), 0);
	for (unsigned i = 0; i < 20; i++) { /* the peer stands still */
		p->now_ns += MS;
		side_turn(p, 0);
	}
	assert_int_equal(p->side[0].nr_done, 1);
	assert_int_equal(p->side[0].last.status, -ETIMEDOUT);
	pair_done(p);
}

/* ---- How much the kernel is offered ---- */

static ssize_t brake_recv(int fd, const struct iovec *iov, unsigned n)
{
	return tcp_sys_kernel.recv(fd, iov, n);
}

static uint64_t offer_b[8]; /* bytes of each call, */
static unsigned nr_offers;
static uint64_t offer_most_b; /* of which the kernel takes so many */

static ssize_t offer_send(int fd, const struct iovec *iov, unsigned n)
{
	uint64_t len = 0;

	for (unsigned i = 0; i < n; i++)
		len += iov[i].iov_len;
	if (nr_offers < GX_ARRAY_SIZE(offer_b))
		offer_b[nr_offers] = len;
	nr_offers++;
	return (ssize_t)GX_MIN(len, offer_most_b);
}

/* A call has more bytes while the kernel takes all of them, and few again where it does not. */
static void queue__grows_with_the_room(void **state)
{
	static const struct tcp_sys offers = {
		.send = offer_send, .recv = brake_recv, .lead = offer_send, .push = push_none};
	struct pair *p = pair_new(1);
	struct tcp_ep *e = p->side[0].e;
	struct gx_op op = op_of(GX_OP_PUT, p->buf, MEM_B);
	const uint64_t most = TCP_OUT_B << TCP_OUT_SHIFT, spare = 2 * CHUNK_B;

	e->sys = &offers;
	offer_most_b = 0;
	for (unsigned i = 0; i < 24; i++)
		assert_int_equal(side_post(p, 0, &op), 0);
	nr_offers = 0;
	offer_most_b = UINT64_MAX;
	side_turn(p, 0);
	side_turn(p, 0);
	assert_int_equal(nr_offers, 4);
	for (unsigned k = 0; k < 4; k++) {
		uint64_t b = GX_MIN((uint64_t)TCP_OUT_B << k, most);

		assert_in_range(offer_b[k], b, b + spare);
	}
	offer_most_b = TCP_OUT_B + most / 2; /* not all of these */
	nr_offers = 0;
	side_turn(p, 0);
	assert_int_equal(nr_offers, 1);
	side_turn(p, 0); /* what is left in the queue, and what has room there */
	assert_in_range(offer_b[1], TCP_OUT_B, TCP_OUT_B + spare);
	p->side[0].e->ep.ops->ep_fail(&e->ep, -ECONNRESET);
	p->side[1].e->ep.ops->ep_fail(&p->side[1].e->ep, -ECONNRESET);
	pair_free(p);
}

/* ---- A kernel that lacks memory for a moment ---- */

/* One call of four, in no rhythm that the ends could have, too. */
static int lacks(void)
{
	static uint32_t random = 1;

	random = random * 1664525u + 1013904223u;
	return random >> 30 ? 0 : random >> 28 & 1 ? -ENOBUFS : -ENOMEM;
}

static ssize_t lack_send(int fd, const struct iovec *iov, unsigned n)
{
	int err = lacks();

	return err ? err : dribble.send(fd, iov, n);
}

static ssize_t lack_recv(int fd, const struct iovec *iov, unsigned n)
{
	int err = lacks();

	return err ? err : dribble.recv(fd, iov, n);
}

static const struct tcp_sys lack = {
	.send = lack_send, .recv = lack_recv, .lead = lack_send, .push = push_none};

/* It is asked again, and all bytes come. That is counted at both ends. */
static void put_get__kernel_lacks_memory(void **state)
{
	struct pair *p = pair_new(2);

	dribble_b = 50000;
	p->side[0].e->sys = p->side[1].e->sys = &lack;
	there_and_back(p, 0, 300000, 64);
	there_and_back(p, 1, 5, 0);
	for (unsigned i = 0; i < 2; i++) {
		assert_true(gx_stat_get(tcp_stats(p->side[i].e), GX_STAT_TX_FULL));
		assert_true(gx_stat_get(tcp_stats(p->side[i].e), GX_STAT_RX_NOBUF));
	}
	pair_done(p);
}

/* ---- All frames are in queues, and the kernel has few of their bytes ---- */

static size_t brake_b; /* bytes that may still leave */

static ssize_t brake_send(int fd, const struct iovec *iov, unsigned n)
{
	ssize_t ret;

	if (!brake_b)
		return -EAGAIN;
	dribble_b = brake_b;
	ret = dribble.send(fd, iov, n);
	if (ret > 0)
		brake_b -= (size_t)ret;
	return ret;
}

static const struct tcp_sys brake = {
	.send = brake_send, .recv = brake_recv, .lead = brake_send, .push = push_none};

/* At each turn of a get the lease of its region ends, and the next owner writes there. */
static void get__lease(void **state)
{
	static const uint64_t lens[] = {8, 3 * CHUNK_B};

	for (unsigned l = 0; l < GX_ARRAY_SIZE(lens); l++) {
		unsigned nr[2] = {0, 0};

		for (unsigned k = 0; k < 40; k++) {
			struct pair *p = pair_new(2);
			struct side *a = &p->side[0], *b = &p->side[1];
			struct gx_op op = op_of(GX_OP_GET, p->buf, lens[l]);
			uint8_t *want = malloc(lens[l]);

			assert_non_null(want);
			bytes_fill(b->mem.addr, lens[l], 3);
			memcpy(want, b->mem.addr, lens[l]);
			b->mem.until_ns = p->now_ns + 1000 * MS;
			assert_int_equal(side_post(p, 0, &op), 0);
			for (unsigned i = 0; i < k; i++)
				side_turn(p, i % 2 ? 0 : 1);
			p->now_ns = b->mem.until_ns;
			memset(b->mem.addr, 0x11, lens[l]);
			UNTIL(p, a->nr_done == 1);
			assert_true(!a->last.status || a->last.status == -ESTALE);
			if (!a->last.status)
				assert_memory_equal(p->buf, want, lens[l]);
			nr[!a->last.status]++;
			UNTIL(p, pair_is_at_rest(p));
			pair_done(p);
			free(want);
		}
		assert_true(nr[0] > 2 && nr[1] > 2);
	}
}

/* At each turn of a get from a region with a lease that region is withdrawn, also between the bytes
 * and the word. */
static void get__lease_withdrawn(void **state)
{
	unsigned nr[2] = {0, 0};

	for (unsigned k = 0; k < 40; k++) {
		struct pair *p = pair_new(2);
		struct side *a = &p->side[0], *b = &p->side[1];
		struct gx_op op = op_of(GX_OP_GET, p->buf, 3 * CHUNK_B);
		struct drop d = {.want = 1, .first = 1, .upto = 1};

		b->mem.until_ns = p->now_ns + 1000 * MS;
		assert_int_equal(side_post(p, 0, &op), 0);
		for (unsigned i = 0; i < k; i++)
			side_turn(p, i % 2 ? 0 : 1);
		atomic_store(&b->mem.dead, true);
		atomic_store(&b->gx->region[0], NULL);
		atomic_store(&b->gx->region_top, 1);
		link_tcp_drop(tcp_core(b->core), &d);
		UNTIL(p, a->nr_done == 1);
		assert_true(!a->last.status || a->last.status == -ESTALE ||
			    a->last.status == -ECANCELED);
		nr[!a->last.status]++;
		UNTIL(p, pair_is_at_rest(p));
		pair_done(p);
	}
	assert_true(nr[0] > 2 && nr[1] > 2);
}

enum end_how { END_CANCEL, END_DEADLINE, END_SEND, END_GET, END_HOWS };

/* The operation of the first side ends; of a get, the memory that it reads. */
static void queued_end(struct pair *p, enum end_how how)
{
	struct side *a = &p->side[0];
	struct drop d = {.want = 1, .first = 1, .upto = 1};

	if (how == END_GET) {
		atomic_store(&a->mem.dead, true);
		atomic_store(&a->gx->region[0], NULL);
		link_tcp_drop(tcp_core(a->core), &d);
		return;
	}
	if (how == END_DEADLINE) {
		p->now_ns += 6 * MS;
		side_turn(p, 0);
	} else {
		assert_int_equal(cancel(p, 0), 1);
	}
	assert_int_equal(a->nr_done, 1);
	assert_int_equal(a->last.status, how == END_DEADLINE ? -ETIMEDOUT : -ECANCELED);
}

static void queued_post(struct pair *p, enum end_how how, char *from, uint64_t len, size_t cut)
{
	struct gx_op op = op_of(how == END_SEND ? GX_OP_SEND : GX_OP_PUT, from, len);
	struct gx_op at_b =
		op_of(how == END_SEND ? GX_OP_RECV : GX_OP_GET, p->side[1].mem.addr, len);

	op.flags = how == END_SEND ? 0 : GX_OP_IMM;
	op.deadline_ns = how == END_DEADLINE ? p->now_ns + 5 * MS : 0;
	if (how >= END_SEND)
		assert_int_equal(side_post(p, 1, &at_b), 0);
	if (how == END_SEND)
		side_turn(p, 0); /* the offer comes */
	brake_b = cut;
	p->side[0].e->sys = &brake;
	if (how == END_GET)
		side_turn(p, 0);
	else
		assert_int_equal(side_post(p, 0, &op), 0);
	assert_int_equal(p->side[0].e->ops[0].state, TCP_OP_SENT);
	assert_true(p->side[0].e->ops[0].queued);
}

/* The receiver hears of the message only if the kernel had all its bytes. */
static void queued_ends(enum end_how how, uint64_t len, size_t cut)
{
	struct pair *p = pair_new(1);
	struct side *a = &p->side[0], *b = &p->side[1];
	char *from = how == END_GET ? a->mem.addr : p->buf, *want = malloc(len);
	bool told;

	assert_non_null(want);
	bytes_fill(from, len, 9);
	memcpy(want, from, len);
	queued_post(p, how, from, len, cut);
	queued_end(p, how);
	memset(from, 0x11, len); /* it is the user's again */
	a->e->sys = &tcp_sys_kernel;
	pair_settle(p);
	if (how >= END_SEND)
		assert_int_equal(b->nr_done, 1);
	told = how >= END_SEND ? !b->last.status : b->nr_notify;
	if (!pair_sealed) /* else what is encrypted already goes out as it is */
		assert_int_equal(told, len <= CHUNK_B && cut >= TCP_HDR_B + len);
	if (told)
		assert_memory_equal(b->mem.addr, want, len);
	else if (how >= END_SEND)
		assert_int_equal(b->last.status, how == END_GET ? -ESTALE : -ECANCELED);
	pair_done(p);
	free(want);
}

static void queued__ends_early(void **state)
{
	static const uint64_t lens[] = {100, CHUNK_B, CHUNK_B + 1, 4 * CHUNK_B};

	for (enum end_how how = 0; how < END_HOWS; how++)
		for (unsigned i = 0; i < GX_ARRAY_SIZE(lens); i++) {
			size_t chunk_b = GX_MIN(lens[i], (uint64_t)CHUNK_B);
			const size_t cuts[] = {1,
					       TCP_HDR_B - 1,
					       TCP_HDR_B,
					       TCP_HDR_B + 1,
					       TCP_HDR_B + chunk_b - 1,
					       TCP_HDR_B + chunk_b,
					       TCP_HDR_B + chunk_b + 1,
					       TCP_HDR_B + chunk_b + TCP_TAIL_B - 1};

			for (unsigned k = 0; k < GX_ARRAY_SIZE(cuts); k++)
				queued_ends(how, lens[i], cuts[k]);
		}
}

/* ---- Memory that goes ---- */

/* The peer's region is freed while bytes come in, and our source while bytes go out. */
static void mem__freed_under_way(void **state)
{
	struct pair *p = pair_new(2);

	for (unsigned side = 0; side < 2; side++) {
		struct side *s = &p->side[side];
		struct gx_op op = op_of(GX_OP_PUT, NULL, 2 << 20);
		struct drop d = {.want = 1, .first = 1, .upto = 1};
		unsigned done = p->side[0].nr_done;

		op.mem = &p->side[0].mem;
		assert_int_equal(side_post(p, 0, &op), 0);
		side_turn(p, 1);
		side_turn(p, 0);
		atomic_store(&s->mem.dead, true);
		atomic_store(&s->gx->region[0], NULL);
		link_tcp_drop(tcp_core(s->core), &d);
		assert_int_equal(d.upto, 1);
		memset(s->mem.addr, side, MEM_B);
		UNTIL(p, p->side[0].nr_done == done + 1);
		assert_int_equal(p->side[0].last.status, side ? -ESTALE : -ECANCELED);
		UNTIL(p, pair_is_at_rest(p));
		for (unsigned i = 0; i < MEM_B; i += 4096)
			assert_int_equal(s->mem.addr[i], side);
		atomic_store(&s->mem.dead, false);
		atomic_store(&s->gx->region[0], &s->mem);
	}
	pair_done(p);
}

#define PART_B	  60000u
#define PART_STEP 60500u
#define PARTS	  24u

static void gaps_check(const struct side *s)
{
	for (uint64_t at = 0; at < PARTS * PART_STEP; at += PART_STEP)
		for (uint64_t i = PART_B; i < PART_STEP; i++)
			assert_int_equal(s->mem.addr[at + i], POISON);
}

static void parts_post(struct pair *p, enum gx_op_kind kind)
{
	for (unsigned i = 0; i < PARTS; i++) {
		struct gx_op op = op_of(kind, NULL, PART_B);

		op.mem = &p->side[0].mem;
		op.off = op.remote_off = i * PART_STEP;
		assert_int_equal(side_post(p, 0, &op), 0);
	}
}

/* Parts of a list are cancelled, or lose their memory, when a few are done, and one has left or come
 * by half: nothing comes between the segments of the end that takes bytes, nor to memory of gets
 * that have ended. */
static void parts_end(enum gx_op_kind kind, unsigned turns, bool freed)
{
	struct pair *p = pair_new(1 + turns % 3);
	struct side *a = &p->side[0], *takes = &p->side[kind == GX_OP_PUT];
	struct drop d = {.want = 1, .first = 1, .upto = 1};
	char *want = malloc(MEM_B);

	assert_non_null(want);
	bytes_fill(p->side[kind == GX_OP_GET].mem.addr, PARTS * PART_STEP, 3);
	dribble_b = 20000;
	for (unsigned i = 0; i < 2; i++)
		p->side[i].e->sys = &dribble;
	parts_post(p, kind);
	for (unsigned i = 0; i < turns; i++)
		side_turn(p, i & 1);
	if (freed) {
		atomic_store(&a->mem.dead, true);
		link_tcp_drop(tcp_core(a->core), &d);
	} else {
		gx_link_tcp_ops.cancel(&a->e->ep, 7, NULL);
	}
	side_take(a);
	assert_int_equal(a->nr_done, PARTS);
	memcpy(want, a->mem.addr, MEM_B);
	dribble_b = 50000;
	UNTIL(p, pair_is_at_rest(p));
	gaps_check(takes);
	assert_memory_equal(want, a->mem.addr, MEM_B);
	free(want);
	pair_done(p);
}

static void parts__end_half_sent(void **state)
{
	for (unsigned turns = 0; turns < 160; turns += 1 + turns / 12)
		for (unsigned freed = 0; freed < 2; freed++) {
			parts_end(GX_OP_PUT, turns, freed);
			parts_end(GX_OP_GET, turns, freed);
		}
}

/* Memory that the program frees between the post and the core's first turn with the endpoint. */
static void mem__freed_before_attach(void **state)
{
	struct pair *p = pair_new(1);
	struct side *a = &p->side[0];
	struct gx_op op = op_of(GX_OP_PUT, NULL, 4096);
	struct drop d = {.want = 1, .first = 1, .upto = 1};

	tcp_live_remove(a->e);
	atomic_store(&a->e->ep.attached, false);
	op.mem = &a->mem;
	assert_int_equal(side_post(p, 0, &op), 0);
	atomic_store(&a->mem.dead, true);
	link_tcp_drop(tcp_core(a->core), &d);
	gx_link_tcp_ops.ep_attach(&a->e->ep);
	side_take(a);
	assert_int_equal(a->nr_done, 1);
	assert_int_equal(a->last.status, -ECANCELED);
	pair_done(p);
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(put_get__sizes),
		cmocka_unit_test(put_get__split_anywhere),
		cmocka_unit_test(put_get__kernel_lacks_memory),
		cmocka_unit_test(put_get__counters_wrap),
		cmocka_unit_test(put__both_ways_at_once),
		cmocka_unit_test(get__lease),
		cmocka_unit_test(get__lease_withdrawn),
		cmocka_unit_test(put__many_small),
		cmocka_unit_test(put__slow_path),
		cmocka_unit_test(send_recv__meets),
		cmocka_unit_test(recv__by_words),
		cmocka_unit_test(send_recv__lies_about_lengths),
		cmocka_unit_test(region__errors),
		cmocka_unit_test(cancel__at_any_time),
		cmocka_unit_test(recv__cancel),
		cmocka_unit_test(recv__cancel_crosses_a_send),
		cmocka_unit_test(send__cancelled_before_it_leaves),
		cmocka_unit_test(send__fails_for_a_reason),
		cmocka_unit_test(cancel__send_recv_at_any_time),
		cmocka_unit_test(fail__at_any_time),
		cmocka_unit_test(deadline__passes),
		cmocka_unit_test(queued__ends_early),
		cmocka_unit_test(mem__freed_under_way),
		cmocka_unit_test(parts__end_half_sent),
		cmocka_unit_test(mem__freed_before_attach),
	};

	/* Where the sizes of calls are the link's own. */
	const struct CMUnitTest clear[] = {
		cmocka_unit_test(queue__grows_with_the_room),
	};

	pair_sealed = argc > 1 && !strcmp(argv[1], "sealed");
	if (!pair_sealed && cmocka_run_group_tests_name("tcp clear", clear, NULL, NULL))
		return 1;
	return cmocka_run_group_tests_name("tcp", tests, NULL, NULL);
}
