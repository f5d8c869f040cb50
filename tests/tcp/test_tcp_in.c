/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an endpoint of the tcp link does with peers that lie, stand still, do not read, or are cut
 * off, and with frames that overtook one another.
 */
#include "tcp/tcp_conn.h"
#include "tcp/tcp_pair.h"
#include "tcp/tcp_turn.h"

#include <sys/socket.h>
#include <unistd.h>

/* ---- Peers ---- */

static void peer__silent(void **state)
{
	struct pair *p = pair_new(2);
	struct gx_op op = op_of(GX_OP_PUT, p->buf, 2 << 20);

	assert_int_equal(side_post(p, 0, &op), 0);
	for (unsigned i = 0; i < 4900; i++) {
		p->now_ns += MS;
		side_turn(p, 0);
	}
	assert_int_equal(atomic_load(&p->side[0].e->ep.fault), 0);
	for (unsigned i = 0; i < 200; i++) {
		p->now_ns += MS;
		side_turn(p, 0);
	}
	assert_int_equal(atomic_load(&p->side[0].e->ep.fault), -ETIMEDOUT);
	pair_free(p);
}

/* One socket ends in the middle of a chunk, wholly or for one direction. */
static void peer__cut_off(void **state)
{
	for (unsigned how = 0; how < 3; how++) {
		struct pair *p = pair_new(2);
		struct side *a = &p->side[0];
		struct gx_op op = op_of(GX_OP_PUT, p->buf, 2 << 20);

		assert_int_equal(side_post(p, 0, &op), 0);
		side_turn(p, 1);
		side_turn(p, 0);
		shutdown(p->side[1].e->sock[1].fd, how ? SHUT_RDWR : SHUT_WR);
		if (how == 2)
			shutdown(p->side[1].e->sock[0].fd, SHUT_RDWR);
		for (unsigned i = 0; i < 300; i++) {
			p->now_ns += MS;
			side_turn(p, 0);
			if (i < 190) /* the reason may still come */
				assert_int_equal(atomic_load(&a->e->ep.fault), 0);
		}
		assert_int_equal(atomic_load(&a->e->ep.fault), -ECONNRESET);
		a->e->ep.ops->ep_fail(&a->e->ep, -ECONNRESET);
		side_take(a);
		assert_int_equal(a->last.status, -ECONNRESET);
		pair_free(p);
	}
}

static const uint8_t good_tail[TCP_TAIL_B];

static ssize_t broken_send(int fd, const struct iovec *iov, unsigned n)
{
	return -EPIPE;
}

static ssize_t broken_recv(int fd, const struct iovec *iov, unsigned n)
{
	return tcp_sys_kernel.recv(fd, iov, n);
}

static const struct tcp_sys broken = {
	.send = broken_send, .recv = broken_recv, .lead = broken_send, .push = push_none};

/* The peer is gone, and its last words lie in the socket when a send finds that out. */
static void peer__leaves_an_answer(void **state)
{
	struct pair *p = pair_new(1);
	struct side *a = &p->side[0];
	struct gx_op op = op_of(GX_OP_PUT, p->buf, 8);

	assert_int_equal(side_post(p, 0, &op), 0);
	side_turn(p, 1); /* it answers DONE */
	a->e->sys = &broken;
	assert_int_equal(side_post(p, 0, &op), 0);
	assert_true(a->e->sock[0].tx_ended && !a->e->sock[0].rx_ended);
	side_turn(p, 0);
	assert_int_equal(a->nr_done, 1);
	assert_int_equal(a->last.status, 0);
	/* The connection ends also if the peer never closes its side. */
	for (unsigned i = 0; i < 300; i++) {
		p->now_ns += MS;
		side_turn(p, 0);
	}
	assert_int_equal(side_fault(p, 0), -ECONNRESET);
	assert_int_equal(a->nr_done, 1);
	pair_free(p);
}

static unsigned nr_sends;

static ssize_t counted_send(int fd, const struct iovec *iov, unsigned n)
{
	nr_sends++;
	return tcp_sys_kernel.send(fd, iov, n);
}

static unsigned nr_leads, nr_pushes;

static ssize_t counted_lead(int fd, const struct iovec *iov, unsigned n)
{
	nr_leads++;
	return tcp_sys_kernel.lead(fd, iov, n);
}

static void counted_push(int fd)
{
	nr_pushes++;
}

static const struct tcp_sys counted = {
	.send = counted_send, .recv = broken_recv, .lead = counted_lead, .push = counted_push};

/* DONE waits one turn for what the program says to a short message, and no longer; no turn after a
 * long one. */
static void done__goes_with_an_answer(void **state)
{
	struct pair *p = pair_new(1);
	struct side *b = &p->side[1];
	struct gx_op op = op_of(GX_OP_PUT, p->buf, 8), large = op_of(GX_OP_PUT, p->buf, 65536);

	b->e->sys = &counted;
	atomic_store(&b->core->loop.started, true);
	nr_sends = 0;
	assert_int_equal(side_post(p, 0, &op), 0);
	side_turn(p, 1);
	assert_int_equal(nr_sends, 0);
	assert_int_equal(side_post(p, 1, &op), 0);
	assert_int_equal(nr_sends, 1);
	side_turn(p, 0);
	assert_int_equal(p->side[0].nr_done, 1);

	side_turn(p, 0); /* its DONE */
	side_turn(p, 1);
	assert_int_equal(b->nr_done, 1);
	nr_sends = 0;
	assert_int_equal(side_post(p, 0, &op), 0);
	side_turn(p, 1);
	assert_int_equal(nr_sends, 0);
	assert_int_equal(side_post(p, 0, &op), 0);
	side_turn(p, 1); /* it brings a second one, and yet */
	assert_int_equal(nr_sends, 1);

	assert_int_equal(side_post(p, 0, &large), 0);
	side_turn(p, 1);
	assert_int_equal(nr_sends, 2);
	side_turn(p, 0);
	assert_int_equal(p->side[0].nr_done, 4);

	/* The program closes as soon as it has the message. */
	assert_int_equal(side_post(p, 0, &op), 0);
	side_turn(p, 1);
	assert_int_equal(nr_sends, 2);
	b->e->ep.ops->ep_fail(&b->e->ep, -ECANCELED);
	side_turn(p, 0);
	assert_int_equal(p->side[0].nr_done, 5);
	assert_int_equal(p->side[0].last.status, 0);
	pair_free(p);
}

/* A short message comes to the second side, which its program turns. */
static void short_in(struct pair *p)
{
	struct gx_op op = op_of(GX_OP_PUT, p->buf, 8);

	assert_int_equal(side_post(p, 0, &op), 0);
	side_turn(p, 1);
}

/* And the program answers. */
static void short_out(struct pair *p)
{
	struct gx_op op = op_of(GX_OP_PUT, p->buf, 8);
	unsigned done = p->side[1].nr_done;

	assert_int_equal(side_post(p, 1, &op), 0);
	side_turn(p, 0);
	side_turn(p, 0); /* its DONE */
	side_turn(p, 1);
	assert_int_equal(p->side[1].nr_done, done + 1);
}

#define SENT(sends, leads, pushes)                                                                 \
	do {                                                                                       \
		assert_int_equal(nr_sends, sends);                                                 \
		assert_int_equal(nr_leads, leads);                                                 \
		assert_int_equal(nr_pushes, pushes);                                               \
	} while (0)

/* The next turn of a program may come late. So where programs answer, DONE waits in the kernel, for
 * the answer or for a push. */
static void done__leads_where_the_program_turns(void **state)
{
	struct pair *p = pair_new(1);
	struct side *b = &p->side[1];
	struct gx_op large = op_of(GX_OP_PUT, p->buf, 65536);

	b->e->sys = &counted;
	nr_sends = nr_leads = nr_pushes = 0;
	short_in(p);
	SENT(1, 0, 0); /* nobody knows that it answers */
	short_out(p);
	SENT(2, 0, 0);
	short_in(p);
	SENT(2, 1, 0);
	assert_true(b->e->sock[0].leads);
	short_out(p);
	SENT(3, 1, 0);
	assert_false(b->e->sock[0].leads);

	short_in(p);
	side_turn(p, 1); /* no answer */
	SENT(3, 2, 1);
	side_turn(p, 1);
	SENT(3, 2, 1);
	short_in(p); /* it does not expect one now */
	SENT(4, 2, 1);
	short_out(p);
	SENT(5, 2, 1);

	short_in(p);
	SENT(5, 3, 1);
	short_in(p); /* a second message: nothing waits on */
	SENT(6, 3, 1);
	short_out(p);
	assert_int_equal(side_post(p, 0, &large), 0);
	side_turn(p, 1);
	SENT(8, 3, 1);
	UNTIL(p, p->side[0].nr_done == 7);
	pair_done(p);
}

/* The program closes and turns no more: its last DONE does not wait behind the news of that. */
static void done__leads_and_the_program_closes(void **state)
{
	struct pair *p = pair_new(1);
	struct side *b = &p->side[1];
	char c;

	b->e->sys = &counted;
	nr_sends = nr_leads = nr_pushes = 0;
	short_in(p);
	short_out(p);
	short_in(p);
	SENT(2, 1, 0);
	b->conn.ep[0] = &b->e->ep;
	b->conn.nr_lanes = 1;
	link_tcp_push(&b->conn);
	SENT(2, 1, 1);
	side_turn(p, 0);
	assert_int_equal(p->side[0].nr_done, 2);
	pair_settle(p);
	assert_int_equal(recv(p->side[0].e->sock[0].fd, &c, 1, MSG_DONTWAIT), -1);
	b->e->ep.ops->ep_fail(&b->e->ep, -ECANCELED);
	link_tcp_release(&b->conn);
	link_tcp_push(&b->conn); /* it has no sockets any more */
	SENT(2, 1, 2);
	b->conn.nr_lanes = 0;
	pair_free(p);
}

/* Frames, one after another, on socket 0; the last breaks the protocol. */
static void lie(unsigned sock, const struct tcp_frame *f, unsigned n)
{
	static char payload[CHUNK_B];
	struct pair *p = pair_new(2);
	uint8_t b[TCP_HDR_B];
	int fd = p->side[0].e->sock[sock].fd;

	for (unsigned i = 0; i < n; i++) {
		assert_int_equal(atomic_load(&p->side[1].e->ep.fault), 0);
		tcp_frame_put(b, &f[i]);
		assert_int_equal(write(fd, b, sizeof(b)), sizeof(b));
		for (uint32_t left = f[i].plen; left && i + 1 < n;) {
			ssize_t ret = write(fd, payload, GX_MIN(left, 4096u));

			assert_true(ret > 0);
			left -= (uint32_t)ret;
			side_turn(p, 1);
		}
		if (f[i].plen && i + 1 < n)
			assert_int_equal(write(fd, good_tail, TCP_TAIL_B), TCP_TAIL_B);
		side_turn(p, 1);
	}
	assert_int_equal(atomic_load(&p->side[1].e->ep.fault), -EPROTO);
	for (unsigned i = CHUNK_B * 8; i < MEM_B; i += 512)
		assert_int_equal(p->side[1].mem.addr[i], POISON);
	pair_free(p);
}

#define DATA(...)                                                                                  \
	{                                                                                          \
		.type = TCP_DATA, .token = TOKEN, __VA_ARGS__                                      \
	}
#define LIE(...)                                                                                   \
	do {                                                                                       \
		const struct tcp_frame f_[] = {__VA_ARGS__};                                       \
		lie(0, f_, GX_ARRAY_SIZE(f_));                                                     \
	} while (0)

static void peer__lies(void **state)
{
	const struct tcp_frame ping = {.type = TCP_PING};

	LIE({.type = TCP_END + 1});
	LIE(DATA(.mid = 1024, .len = 8, .plen = 8)); /* not the next one there */
	LIE(DATA(.len = 8, .plen = 8), DATA(.len = 8, .plen = 8));
	LIE(DATA(.len = 8, .plen = 4));					    /* no whole chunk */
	LIE(DATA(.len = 8, .moff = 4, .plen = 4));			    /* not at a chunk */
	LIE(DATA(.len = MEM_B, .plen = CHUNK_B + 1));			    /* more than a chunk */
	LIE(DATA(.len = MEM_B, .moff = WINDOW * CHUNK_B, .plen = CHUNK_B)); /* beyond the window */
	LIE(DATA(.len = MEM_B, .plen = CHUNK_B), DATA(.len = MEM_B, .plen = CHUNK_B)); /* twice */
	LIE(DATA(.len = MEM_B, .moff = CHUNK_B, .plen = CHUNK_B),
	    DATA(.len = MEM_B, .moff = CHUNK_B,
		 .plen = CHUNK_B)); /* with the first still to come */
	LIE(DATA(.len = MEM_B, .plen = CHUNK_B),
	    DATA(.len = MEM_B - 1, .moff = CHUNK_B, .plen = CHUNK_B)); /* another length */
	LIE(DATA(.len = MEM_B, .plen = CHUNK_B),
	    DATA(.off = 1, .len = MEM_B, .moff = CHUNK_B, .plen = CHUNK_B)); /* another place */
	LIE({.type = TCP_DATA, .flags = TCP_F_SLOT, .token = TOKEN, .len = 1, .plen = 1});
	LIE({.type = TCP_DATA, .token = TOKEN | TCP_SLOT_BIT, .len = 1, .plen = 1});
	LIE({.type = TCP_DONE, .mid = 0});
	LIE({.type = TCP_ACK, .mid = 0, .moff = 1});
	LIE({.type = TCP_FAIL, .mid = 5, .err = -EIO});
	LIE({.type = TCP_FAIL, .flags = TCP_F_SLOT, .token = TCP_SLOT_BIT, .err = -EIO});
	LIE({.type = TCP_CANCEL, .mid = 0});
	LIE({.type = TCP_CANCEL, .mid = TCP_MIDS, .moff = 1}); /* not begun there */
	LIE(DATA(.len = MEM_B, .plen = CHUNK_B), {.type = TCP_CANCEL, .moff = MEM_B / CHUNK_B + 1});
	LIE({.type = TCP_CANCEL, .moff = 1}, {.type = TCP_CANCEL, .moff = 1});
	LIE({.type = TCP_OFFER, .token = 5});
	LIE({.type = TCP_OFFER, .token = TCP_SLOT_BIT | TCP_SLOTS});
	LIE({.type = TCP_GET, .token = TOKEN, .len = 8, .imm = 5});
	lie(1, &ping, 1); /* control goes by socket 0 */
}

/* More gets than a peer may have under way, and questions without reading the answers. */
static void peer__floods(void **state)
{
	struct pair *p = pair_new(1);
	struct tcp_frame f = {
		.type = TCP_GET, .token = TOKEN, .len = 1 << 20, .imm = TCP_SLOT_BIT | 1};
	int fd = p->side[0].e->sock[0].fd;
	uint8_t b[TCP_HDR_B];

	tcp_frame_put(b, &f);
	for (unsigned i = 0; i < 20000; i++) {
		if (send(fd, b, sizeof(b), MSG_DONTWAIT) != sizeof(b))
			break;
		side_turn(p, 1);
	}
	assert_int_equal(atomic_load(&p->side[1].e->ep.fault), -EPROTO);
	pair_free(p);
}

/* ---- Frames by hand ---- */

/* The first side is not turned: the test writes what the second one reads. */
static void raw_put_tail(struct pair *p, unsigned sock, const struct tcp_frame *f,
			 const uint8_t tail[TCP_TAIL_B])
{
	static char payload[CHUNK_B];
	int fd = p->side[0].e->sock[sock].fd;
	uint8_t b[TCP_HDR_B];

	tcp_frame_put(b, f);
	assert_int_equal(write(fd, b, sizeof(b)), sizeof(b));
	for (uint32_t at = 0; at < f->plen;) {
		ssize_t ret = write(fd, payload, GX_MIN(f->plen - at, 16384u));

		assert_true(ret > 0);
		at += (uint32_t)ret;
		side_turn(p, 1);
	}
	for (unsigned i = 0; f->plen && i < TCP_TAIL_B; i++) {
		assert_int_equal(write(fd, tail + i, 1), 1);
		side_turn(p, 1);
	}
	side_turn(p, 1);
}

static void raw_put(struct pair *p, unsigned sock, const struct tcp_frame *f)
{
	raw_put_tail(p, sock, f, good_tail);
}

#define RAW(p, sock, ...) raw_put(p, sock, &(struct tcp_frame)__VA_ARGS__)

static void mem_poison(struct pair *p)
{
	memset(p->side[1].mem.addr, POISON, MEM_B);
}

static void mem_is_poison(const struct pair *p)
{
	const char *at = p->side[1].mem.addr;

	assert_true(at[0] == POISON && !memcmp(at, at + 1, MEM_B - 1));
}

/* CANCEL comes first, for fewer frames than the place's last message had. */
static void cancel__before_its_data(void **state)
{
	struct pair *p = pair_new(2);
	const struct tcp_ep *e = p->side[1].e;

	for (unsigned i = 0; i < 5; i++)
		RAW(p, 0, DATA(.len = 5 * CHUNK_B, .moff = i * CHUNK_B, .plen = CHUNK_B));
	assert_int_equal(e->rx.nr_in, 0);
	mem_poison(p);
	RAW(p, 0, {.type = TCP_CANCEL, .mid = TCP_MIDS, .moff = 1});
	assert_int_equal(e->rx.nr_in, 1);
	RAW(p, 1, DATA(.mid = TCP_MIDS, .len = 8, .plen = 8));
	assert_int_equal(e->rx.nr_in, 0);
	assert_int_equal(side_fault(p, 1), 0);
	mem_is_poison(p);
	pair_free(p);
}

/* Socket 0 stood, and other sockets went on meanwhile. */
static void cancel__long_after(void **state)
{
	struct pair *p = pair_new(2);

	for (unsigned i = 0; i < 3; i++)
		RAW(p, 1, DATA(.mid = i * TCP_MIDS, .len = 8, .plen = 8));
	RAW(p, 0, {.type = TCP_CANCEL, .mid = 0, .moff = 1});
	RAW(p, 0, {.type = TCP_CANCEL, .mid = TCP_MIDS, .moff = 1});
	RAW(p, 1, DATA(.mid = 3 * TCP_MIDS, .len = 8, .plen = 8));
	assert_int_equal(side_fault(p, 1), 0);
	assert_int_equal(p->side[1].e->rx.nr_in, 0);
	pair_free(p);
}

/* What a key named goes while a message to it is under way. The refused message stays until its last
 * frame, and a later pass over what died looks at it. */
static void refused__forgets_memory_that_goes(void **state)
{
	struct pair *p = pair_new(1);
	struct side *b = &p->side[1];
	struct drop first = {.want = 1, .first = 1, .upto = 1},
		    next = {.want = 2, .first = 2, .upto = 2};
	struct gx_mem *part = malloc(sizeof(*part));

	assert_non_null(part);
	*part = b->mem;
	part->token = TOKEN + 1;
	atomic_store(&b->gx->region[1], part);
	RAW(p, 0, {.type = TCP_DATA, .token = TOKEN + 1, .len = 2 * CHUNK_B, .plen = CHUNK_B});
	assert_ptr_equal(b->e->in[0].mem, part);
	atomic_store(&b->gx->region[1], NULL);
	atomic_store(&part->dead, true);
	link_tcp_drop(tcp_core(b->core), &first);
	assert_int_equal(b->e->in[0].state, TCP_IN_REFUSED);
	assert_int_equal(first.upto, 1); /* nothing holds it */
	assert_null(b->e->in[0].mem);
	free(part);
	link_tcp_drop(tcp_core(b->core), &next);
	assert_int_equal(next.upto, 2);
	assert_int_equal(b->e->rx.nr_in, 1);
	assert_int_equal(side_fault(p, 1), 0);
	pair_free(p);
}

/* A frame that says of itself that it is void counts, and its message never lands. */
static void data__void(void **state)
{
	const struct tcp_frame f[] = {
		DATA(.flags = TCP_F_IMM, .len = CHUNK_B + 8, .plen = CHUNK_B),
		DATA(.flags = TCP_F_IMM, .len = CHUNK_B + 8, .moff = CHUNK_B, .plen = 8)};
	uint8_t tail[TCP_TAIL_B];

	tcp_tail_put(tail, TCP_TAIL_VOID);
	for (unsigned bad = 0; bad < 2; bad++) {
		struct pair *p = pair_new(2);
		const struct tcp_ep *e = p->side[1].e;

		for (unsigned i = 0; i < 2; i++)
			raw_put_tail(p, i, &f[i], i == bad ? tail : good_tail);
		assert_int_equal(e->rx.nr_in, 1);
		assert_int_equal(p->side[1].nr_notify, 0);
		RAW(p, 0, {.type = TCP_CANCEL, .moff = 2});
		assert_int_equal(e->rx.nr_in, 0);
		assert_int_equal(p->side[1].nr_notify, 0);
		RAW(p, 1, DATA(.mid = TCP_MIDS, .flags = TCP_F_IMM, .len = 8, .plen = 8));
		assert_int_equal(p->side[1].nr_notify, 1);
		assert_int_equal(side_fault(p, 1), 0);
		pair_free(p);
	}
}

static void data__bad_trailer(void **state)
{
	const struct tcp_frame f = DATA(.flags = TCP_F_IMM, .len = 8, .plen = 8);

	for (unsigned i = 0; i < TCP_TAIL_B; i++) {
		struct pair *p = pair_new(2);
		uint8_t tail[TCP_TAIL_B] = {0};

		tail[i] = i ? 1 : 2;
		raw_put_tail(p, 1, &f, tail);
		assert_int_equal(side_fault(p, 1), -EPROTO);
		assert_int_equal(p->side[1].nr_notify, 0);
		pair_free(p);
	}
}

/* A message without a destination: none of its bytes goes anywhere, on no socket. */
static void data__of_no_region(void **state)
{
	struct pair *p = pair_new(2);

	RAW(p, 0, {.type = TCP_DATA, .token = TOKEN + 0x100, .len = 2 * CHUNK_B, .plen = CHUNK_B});
	RAW(p, 1,
	    {.type = TCP_DATA,
	     .token = TOKEN + 0x100,
	     .len = 2 * CHUNK_B,
	     .moff = CHUNK_B,
	     .plen = CHUNK_B});
	assert_int_equal(side_fault(p, 1), 0);
	mem_is_poison(p);
	pair_free(p);
}

/* The first frame lies in two ways; the second would find its message open. */
static void breach__on_one_socket_silences_all(void **state)
{
	struct pair *p = pair_new(2);
	const struct tcp_ep *e = p->side[1].e;

	RAW(p, 0, {.type = TCP_DATA, .token = TOKEN + 0x100, .len = MEM_B, .moff = 4, .plen = 8});
	assert_int_equal(side_fault(p, 1), -EPROTO);
	RAW(p, 1, {.type = TCP_DATA, .token = TOKEN + 0x100, .len = MEM_B, .plen = CHUNK_B});
	assert_true(e->sock[1].rx_ended && !e->sock[1].sink.left && !e->sock[1].to);
	mem_is_poison(p);
	pair_free(p);
}

static void peer__half_a_header(void **state)
{
	struct pair *p = pair_new(1);
	struct gx_op op = op_of(GX_OP_RECV, p->side[1].mem.addr, 64);
	const uint8_t half[TCP_HDR_B / 2] = {TCP_DATA};

	assert_int_equal(side_post(p, 1, &op), 0);
	assert_int_equal(write(p->side[0].e->sock[0].fd, half, sizeof(half)), sizeof(half));
	for (unsigned i = 0; i < 4900; i++) {
		p->now_ns += MS;
		side_turn(p, 1);
	}
	assert_int_equal(side_fault(p, 1), 0);
	for (unsigned i = 0; i < 300; i++) {
		p->now_ns += MS;
		side_turn(p, 1);
	}
	assert_int_equal(side_fault(p, 1), -ETIMEDOUT);
	pair_free(p);
}

/* ---- A peer that speaks, and does not read ---- */

static unsigned nr_sends;

static ssize_t count_send(int fd, const struct iovec *iov, unsigned n)
{
	nr_sends++;
	return tcp_sys_kernel.send(fd, iov, n);
}

static ssize_t count_recv(int fd, const struct iovec *iov, unsigned n)
{
	return tcp_sys_kernel.recv(fd, iov, n);
}

static const struct tcp_sys counting = {
	.send = count_send, .recv = count_recv, .lead = count_send, .push = push_none};

static void peer__does_not_read(void **state)
{
	struct pair *p = pair_new(2);
	struct side *a = &p->side[0];
	struct gx_op op = op_of(GX_OP_PUT, p->buf, 300000);
	unsigned posted = 0;
	uint8_t ping[TCP_HDR_B];

	tcp_frame_put(ping, &(struct tcp_frame){.type = TCP_PING});
	a->e->sys = &counting;
	while (!side_post(p, 0, &op))
		posted++;
	assert_true(posted > 100 && posted < TCP_OPS);
	for (unsigned i = 0; i < 10; i++)
		side_turn(p, 0);
	for (unsigned i = 0; i < 20000; i++) {
		unsigned before = nr_sends;

		p->now_ns += MS;
		if (i % 4 == 0)
			assert_int_equal(write(p->side[1].e->sock[0].fd, ping, sizeof(ping)),
					 sizeof(ping));
		side_turn(p, 0);
		assert_true(nr_sends - before <= 2);
	}
	assert_int_equal(side_fault(p, 0), 0);
	assert_true(tcp_ctl_room(a->e) >= TCP_CTLS_KEPT);
	assert_int_equal(a->nr_done, 0);
	assert_int_equal(gx_link_tcp_ops.cancel(&a->e->ep, 7, NULL), posted);
	side_take(a);
	assert_int_equal(a->nr_done, posted);
	assert_int_equal(side_fault(p, 0), 0);
	pair_free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(peer__silent),
		cmocka_unit_test(peer__cut_off),
		cmocka_unit_test(peer__leaves_an_answer),
		cmocka_unit_test(done__goes_with_an_answer),
		cmocka_unit_test(done__leads_where_the_program_turns),
		cmocka_unit_test(done__leads_and_the_program_closes),
		cmocka_unit_test(peer__lies),
		cmocka_unit_test(peer__floods),
		cmocka_unit_test(cancel__before_its_data),
		cmocka_unit_test(cancel__long_after),
		cmocka_unit_test(refused__forgets_memory_that_goes),
		cmocka_unit_test(data__void),
		cmocka_unit_test(data__bad_trailer),
		cmocka_unit_test(data__of_no_region),
		cmocka_unit_test(breach__on_one_socket_silences_all),
		cmocka_unit_test(peer__half_a_header),
		cmocka_unit_test(peer__does_not_read),
	};

	return cmocka_run_group_tests_name("tcp_in", tests, NULL, NULL);
}
