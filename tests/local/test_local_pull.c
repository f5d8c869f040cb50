/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Long messages of the local link that the receiver reads out of the sender's process: sizes around
 * the limit, order, errors of the system call (a script in its place), and a sender that takes its
 * memory back while the receiver reads. Two contexts of one process, both turned by this thread;
 * two tests have a second process.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gx/gx.h"
#include "local/local.h"
#include "packet/pull.h"

#include <cmocka.h>

#include "kit/common_gx.h"
#include "local/local_rig.h"

#define OVER_B	(64u << 10) /* the default of gx_host_opts.pull_over_b */
#define LONG_B	(4 * (uint64_t)PULL_SLICE_B)
#define POISON	0x5b
#define KILL_B	(64u << 20)
#define KILL_MS 20000

/* ---- The system call, scripted ---- */

/* What the calls that read bytes of messages do, by their number; else the kernel has its way. */
static struct script {
	unsigned nr;		 /* calls so far */
	unsigned at;		 /* this one and later ones fail: */
	ssize_t err;		 /* 0: none does */
	size_t most_b;		 /* bytes that each moves, the word included; 0: all */
	bool once;		 /* only call .at fails */
	bool wrong_word;	 /* from call .at on, another process answers */
	_Atomic unsigned probes; /* of connections so far: both ends have a thread for that */
	unsigned probe_no;	 /* bit i: probe i is refused */
	unsigned slow_us;	 /* a read that is timed takes so long */
	bool own_no;		 /* the sender's memory is not plain */
} script;

static ssize_t script_message(pid_t pid, const struct iovec *to, const struct iovec *from)
{
	bool now = script.once ? script.nr == script.at : script.nr >= script.at;
	struct iovec here[2] = {to[0], to[1]}, there[2] = {from[0], from[1]};
	ssize_t n;

	script.nr++;
	if (script.err && now)
		return script.err;
	if (script.most_b && here[0].iov_len + here[1].iov_len > script.most_b)
		here[1].iov_len = there[1].iov_len = script.most_b - here[0].iov_len;
	n = pull_sys_kernel.read(pid, here, 2, there, 2);
	if (script.wrong_word && now)
		((char *)to[0].iov_base)[3] ^= 1;
	return n;
}

static ssize_t script_read(pid_t pid, const struct iovec *to, unsigned nr_to,
			   const struct iovec *from, unsigned nr_from)
{
	if (nr_to == 2)
		return script_message(pid, to, from);
	if (nr_from == 1 && to[0].iov_len > PULL_WORD_B) {
		if (script.slow_us) /* usleep(0) gives the CPU away all the same */
			usleep(script.slow_us);
		return (ssize_t)to[0].iov_len;
	}
	if (nr_from == 2)
		return script.own_no ? 1 : pull_sys_kernel.read(pid, to, nr_to, from, nr_from);
	if (script.probe_no >> atomic_fetch_add(&script.probes, 1) & 1)
		return -EPERM;
	return pull_sys_kernel.read(pid, to, nr_to, from, nr_from);
}

static const struct pull_sys scripted = {.read = script_read};

/* ---- The rig ---- */

static const struct gx_opts on = {
	.host = GX_WITH(gx_host_opts, .pull = GX_PULL_ON)}; /* auto depends on the machine */

static struct rig *rig_make(struct gx_opts client, struct gx_opts server)
{
	struct rig *r = rig_new();

	pull_sys = &scripted;
	server.server = true;
	end_open(&r->server, server, "shm");
	end_open(&r->client, client, "shm");
	assert_int_equal(rig_connect(r, "local", NULL), 0);
	return r;
}

static int setup(void **state)
{
	script = (struct script){0};
	*state = rig_make(on, on);
	return 0;
}

static int teardown(void **state)
{
	rig_free(*state);
	pull_sys = &pull_sys_kernel;
	return 0;
}

static void fill(char *p, uint64_t len, unsigned seed)
{
	for (uint64_t i = 0; i < len; i++)
		p[i] = (char)(i * 7 + i / 251 + seed);
}

static void post(struct end *e, enum gx_op_kind kind, void *addr, uint64_t len, uint64_t tag)
{
	struct gx_op op = {.kind = kind, .addr = addr, .len = len, .tag = tag, .user = 7};

	assert_int_equal(common_post(e->ep, &op, 1), 1);
}

static bool both_ended(const struct rig *r, unsigned n)
{
	return r->client.nr_done == n && r->server.nr_done == n;
}

/* A send of @len bytes from @at on, from the client, into the server's memory. */
static void send_one(struct rig *r, uint64_t len, uint64_t at)
{
	unsigned n = r->client.nr_done + 1;

	fill(r->buf + at, len, (unsigned)len);
	memset(r->server.base, POISON, len + 128);
	post(&r->server, GX_OP_RECV, r->server.base + 64, len, 3);
	post(&r->client, GX_OP_SEND, r->buf + at, len, 3);
	UNTIL(r, both_ended(r, n));
}

static void send_good(struct rig *r, uint64_t len, uint64_t at)
{
	send_one(r, len, at);
	assert_int_equal(r->client.nr_failed + r->server.nr_failed, 0);
	assert_int_equal(r->server.last.len, len);
	assert_memory_equal(r->server.base + 64, r->buf + at, len);
	for (unsigned i = 0; i < 64; i++) {
		assert_int_equal(r->server.base[i], POISON);
		assert_int_equal(r->server.base[64 + len + i], POISON);
	}
}

static void send_fails(struct rig *r, int server_err, int client_err)
{
	send_one(r, LONG_B, 0);
	assert_int_equal(r->server.status, server_err);
	assert_int_equal(r->client.status, client_err);
	r->server.nr_failed = r->client.nr_failed = 0;
}

static uint64_t pulls(const struct rig *r)
{
	return end_stat(&r->server, "pulls");
}

static bool says(const struct end *e, const char *what)
{
	struct gx_conn_info info = GX_INIT(info);

	gx_conn_info(e->conn, &info);
	return strstr(info.why, what);
}

static uint64_t over_b(const struct end *e)
{
	struct gx_conn_info info = GX_INIT(info);

	gx_conn_info(e->conn, &info);
	return info.pull_over_b;
}

/* ---- Bytes and order ---- */

static void send__sizes_around_the_limit(void **state)
{
	static const uint64_t sizes[] = {OVER_B + 1,   OVER_B + 15,	 PULL_SLICE_B - 1,
					 PULL_SLICE_B, PULL_SLICE_B + 1, 3 * PULL_SLICE_B + 4097,
					 5u << 20};
	struct rig *r = *state;
	uint64_t bytes = 0;

	assert_true(says(&r->client, "long messages in one copy"));
	assert_true(says(&r->server, "long messages in one copy"));
	assert_int_equal(over_b(&r->client), OVER_B);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(sizes); i++) {
		send_good(r, sizes[i], i % 3 * 5);
		bytes += sizes[i];
		assert_int_equal(pulls(r), i + 1);
		assert_int_equal(end_stat(&r->server, "pull_bytes"), bytes);
	}
	assert_int_equal(end_stat(&r->server, "rx_bytes"), 0);
	send_good(r, OVER_B, 1);
	send_good(r, 1, 0);
	assert_int_equal(pulls(r), GX_ARRAY_SIZE(sizes));
}

/* Short messages go in their OPEN. A limit below that size changes nothing for them. */
static void send__a_limit_below_an_open(void **state)
{
	const struct gx_opts low = {
		.host = GX_WITH(gx_host_opts, .pull = GX_PULL_ON, .pull_over_b = 1)};
	static const uint64_t sizes[] = {1, 2, GX_WIRE_INLINE_MAX, GX_WIRE_INLINE_MAX + 1};
	struct rig *r = rig_make(low, low);
	(void)state;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(sizes); i++)
		send_good(r, sizes[i], i);
	assert_int_equal(pulls(r), 1); /* the last one */
	rig_free(r);
	pull_sys = &pull_sys_kernel;
}

static void send__the_larger_limit_counts(void **state)
{
	const struct gx_opts far = {
		.host = GX_WITH(gx_host_opts, .pull = GX_PULL_ON, .pull_over_b = 2 * OVER_B)};
	(void)state;

	for (unsigned i = 0; i < 2; i++) {
		struct rig *r = rig_make(i ? far : on, i ? on : far);

		assert_int_equal(over_b(&r->client), 2 * OVER_B);
		assert_int_equal(over_b(&r->server), 2 * OVER_B);
		send_good(r, OVER_B + 1, 0);
		send_good(r, 2 * OVER_B, 0);
		assert_int_equal(pulls(r), 0);
		send_good(r, 2 * OVER_B + 1, 0);
		assert_int_equal(pulls(r), 1);
		rig_free(r);
	}
	pull_sys = &pull_sys_kernel;
}

static void send__as_packets_where_one_end_does_not_pull(void **state)
{
	const struct gx_opts off = {.host = GX_WITH(gx_host_opts, .pull = GX_PULL_OFF)},
			     allow = {.host = GX_WITH(gx_host_opts, .pull = GX_PULL_ALLOW)};
	(void)state;

	for (unsigned i = 0; i < 3; i++) {
		struct rig *r;

		script = (struct script){0};
		r = rig_make(i & 1 ? allow : off, i & 2 ? allow : off);
		assert_true(says(&r->client, "long messages as packets"));
		assert_true(says(&r->server, "long messages as packets"));
		assert_int_equal(over_b(&r->client) | over_b(&r->server), 0);
		send_good(r, LONG_B, 0);
		assert_int_equal(pulls(r), 0);
		assert_int_equal(script.nr, 0);
		rig_free(r);
	}
	pull_sys = &pull_sys_kernel;
}

/* Memory that the peer has not mapped: a region that was registered. */
static void put_get__of_registered_memory(void **state)
{
	struct rig *r = *state;
	struct gx_region to = GX_INIT(to);
	struct gx_op op = {.kind = GX_OP_PUT, .flags = GX_OP_IMM, .imm = 5, .len = LONG_B};
	struct gx_mem *reg;
	struct gx_conn *first = r->client.conn;

	r->server.plain = calloc(1, LONG_B);
	assert_non_null(r->server.plain);
	assert_int_equal(gx_mem_reg(r->server.gx, GX_MEM_HOST, 0, r->server.plain, LONG_B, &reg),
			 0);
	assert_int_equal(gx_mem_share(reg, "reg", GX_ACCESS_PUT | GX_ACCESS_GET), 0);
	r->client.conn = rig_connect_more(r); /* it knows the region */
	assert_ptr_not_equal(r->client.conn, first);
	r->client.ep = gx_conn_ep(r->client.conn, 0);
	assert_int_equal(gx_conn_region(r->client.conn, "reg", 0, &to), 0);
	fill(r->buf, LONG_B, 1);
	op.addr = r->buf;
	op.token = to.token;
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	UNTIL(r, r->client.nr_done == 1 && r->server.nr_notify == 1);
	assert_int_equal(r->client.nr_failed, 0);
	assert_int_equal(r->server.notify.imm, 5);
	assert_memory_equal(r->server.plain, r->buf, LONG_B);
	assert_int_equal(pulls(r), 1);
	op.kind = GX_OP_GET;
	op.flags = 0;
	op.addr = r->client.base;
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	UNTIL(r, r->client.nr_done == 2);
	assert_int_equal(r->client.nr_failed, 0);
	assert_memory_equal(r->client.base, r->buf, LONG_B);
	assert_int_equal(end_stat(&r->client, "pulls"), 1);
}

/* Long and short sends of one tag meet the receives in the order of posting. */
static void order__of_one_tag(void **state)
{
	static const uint64_t sizes[] = {LONG_B, 8, OVER_B + 1, OVER_B, PULL_SLICE_B + 3, 100};
	struct rig *r = *state;
	uint64_t at = 0;

	fill(r->buf, KV_B, 9);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(sizes); i++) {
		post(&r->server, GX_OP_RECV, r->server.base + at, sizes[i], 1);
		at += sizes[i];
	}
	at = 0;
	for (unsigned i = 0; i < GX_ARRAY_SIZE(sizes); i++) {
		post(&r->client, GX_OP_SEND, r->buf + at, sizes[i], 1);
		at += sizes[i];
	}
	UNTIL(r, both_ended(r, GX_ARRAY_SIZE(sizes)));
	assert_int_equal(r->client.nr_failed + r->server.nr_failed, 0);
	assert_memory_equal(r->server.base, r->buf, at);
	assert_int_equal(pulls(r), 3);
}

/* A turn reads a piece, and of two messages in turn. */
static void turn__is_bounded(void **state)
{
	struct rig *r = *state;

	for (unsigned i = 0; i < 2; i++)
		post(&r->server, GX_OP_RECV, r->server.base + i * LONG_B, LONG_B, i);
	end_turn(&r->server);
	end_turn(&r->client);
	fill(r->buf, 2 * LONG_B, 2);
	for (unsigned i = 0; i < 2; i++)
		post(&r->client, GX_OP_SEND, r->buf + i * LONG_B, LONG_B, i);
	end_turn(&r->client);
	end_turn(&r->server);
	assert_int_equal(end_stat(&r->server, "pull_bytes"), PULL_SLICE_B);
	end_turn(&r->server);
	assert_int_equal(end_stat(&r->server, "pull_bytes"), 2 * PULL_SLICE_B);
	assert_memory_equal(r->server.base, r->buf, PULL_SLICE_B);
	assert_memory_equal(r->server.base + LONG_B, r->buf + LONG_B, PULL_SLICE_B);
	UNTIL(r, both_ended(r, 2));
	assert_memory_equal(r->server.base, r->buf, 2 * LONG_B);
}

#define MANY 5 /* endpoints: one more than PULL_TURN_B has pieces for */
_Static_assert(PULL_TURN_B / PULL_SLICE_B == MANY - 1, "a turn leaves one of them out");

/* All endpoints of a core together read PULL_TURN_B in a turn, and none is left out for good. */
static void turn__is_bounded_over_all_endpoints(void **state)
{
	struct rig *r = *state;
	struct gx_ep *to[MANY] = {r->server.ep}, *from[MANY] = {r->client.ep};

	for (unsigned i = 1; i < MANY; i++) {
		from[i] = gx_conn_ep(rig_connect_more(r), 0);
		to[i] = gx_conn_ep(atomic_load(&r->server.up), 0);
	}
	fill(r->buf, MANY * LONG_B, 4);
	for (unsigned i = 0; i < MANY; i++) {
		r->server.ep = to[i];
		post(&r->server, GX_OP_RECV, r->server.base + i * LONG_B, LONG_B, i);
	}
	end_turn(&r->server);
	end_turn(&r->client);
	for (unsigned i = 0; i < MANY; i++) {
		r->client.ep = from[i];
		post(&r->client, GX_OP_SEND, r->buf + i * LONG_B, LONG_B, i);
	}
	end_turn(&r->client);
	for (unsigned i = 1; i <= MANY; i++) {
		end_turn(&r->server);
		assert_int_equal(end_stat(&r->server, "pull_bytes"), i * PULL_TURN_B);
	}
	UNTIL(r, both_ended(r, MANY));
	assert_int_equal(r->client.nr_failed + r->server.nr_failed, 0);
	assert_memory_equal(r->server.base, r->buf, MANY * LONG_B);
	assert_int_equal(script.nr, MANY * LONG_B / PULL_SLICE_B);
}

/* ---- The kernel says no ---- */

static void probe__refused(void **state)
{
	static const struct {
		unsigned no;
		const char *client, *server; /* what they say */
		unsigned out, in; /* messages in one copy, of the client's point of view */
	} table[] = {
		{3, "as packets", "as packets", 0, 0},
		{1, "in one copy", "in one copy", 0, 0},
		{2, "in one copy", "in one copy", 0, 0},
	};
	(void)state;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(table); i++) {
		struct rig *r;
		uint64_t in, out;

		script = (struct script){.probe_no = table[i].no};
		r = rig_make(on, on);
		assert_int_equal(script.probes, 2); /* once, each way */
		assert_true(says(&r->client, table[i].client));
		assert_true(says(&r->server, table[i].server));
		send_good(r, LONG_B, 0);
		post(&r->client, GX_OP_RECV, r->client.base, LONG_B, 4);
		post(&r->server, GX_OP_SEND, r->buf, LONG_B, 4);
		UNTIL(r, both_ended(r, 2));
		assert_memory_equal(r->client.base, r->buf, LONG_B);
		out = pulls(r);
		in = end_stat(&r->client, "pulls");
		assert_int_equal(in + out, table[i].no == 3 ? 0 : 1);
		assert_true(!in || says(&r->client, "in one copy in, as packets out"));
		assert_true(!out || says(&r->client, "in one copy out, as packets in"));
		rig_free(r);
	}
	pull_sys = &pull_sys_kernel;
}

static void options__refused(void **state)
{
	struct gx *gx;
	(void)state;

	assert_int_equal(
		common_gx_open(
			(struct gx_opts){.host = GX_WITH(gx_host_opts, .pull = GX_PULL_ALLOW + 1)},
			"shm", &gx),
		-EINVAL);
	assert_non_null(strstr(gx_error(), "gx_host_opts.pull 4"));
}

/* Without a word of the program's each end reads if that is fast. */
static void auto__is_timed(void **state)
{
	static const unsigned slow_us[] = {0, 20000};
	(void)state;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(slow_us); i++) {
		struct rig *r;

		script = (struct script){.slow_us = slow_us[i]};
		r = rig_make((struct gx_opts){0}, on);
		assert_true(says(&r->client, i ? "long messages in one copy out, as packets in"
					       : "long messages in one copy"));
		send_good(r, LONG_B, 0);
		assert_int_equal(pulls(r), 1);
		rig_free(r);
	}
	pull_sys = &pull_sys_kernel;
}

/* The process of the peer is gone, or is another one: the connection ends. */
static void gone(struct rig *r)
{
	send_one(r, LONG_B, 0);
	assert_int_equal(r->server.status, -ECONNRESET);
	assert_true(r->client.status == -ECONNRESET || r->client.status == -ECANCELED);
	assert_int_equal(end_stat(&r->server, "pulls_failed"), 1);
	UNTIL(r, atomic_load(&r->server.nr_down) == 1 && atomic_load(&r->client.nr_down) == 1);
	assert_int_equal(r->server.down_err, -ECONNRESET);
}

static void read__of_a_process_that_is_gone(void **state)
{
	static const struct script table[] = {
		{.err = -ESRCH},
		{.err = -ESRCH, .at = 2},
		{.err = -EFAULT, .at = 1},
		{.err = 7, .at = 1}, /* bytes: not the whole word */
		{.wrong_word = true, .at = 2},
	};
	(void)state;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(table); i++) {
		struct rig *r;

		script = (struct script){0};
		r = rig_make(on, on);
		script = table[i];
		gone(r);
		rig_free(r);
	}
	pull_sys = &pull_sys_kernel;
}

/* Both ends hear of it, and the connection goes on, by packets. */
static void read__fails_in_another_way(void **state)
{
	struct rig *r = *state;

	script = (struct script){.err = -EINVAL, .at = 1};
	send_fails(r, -EIO, -EIO);
	send_good(r, LONG_B, 1);
	assert_int_equal(pulls(r), 0);
	assert_int_equal(script.nr, 2);
}

/* The right was taken away after the probe: the message fails, and later ones come as packets. */
static void read__is_forbidden_later(void **state)
{
	struct rig *r = *state;

	send_good(r, LONG_B, 0);
	script = (struct script){.err = -EPERM, .at = 1};
	send_fails(r, -EPERM, -EPERM);
	send_good(r, LONG_B, 0);
	assert_int_equal(pulls(r), 1);
	assert_int_equal(script.nr, 2);
}

/* All messages that were announced by then fail alike, and the next one is none of them. */
static void read__is_forbidden_with_more_under_way(void **state)
{
	struct rig *r = *state;
	uint64_t len = 2 * PULL_SLICE_B;

	for (unsigned i = 0; i < 4; i++) {
		post(&r->server, GX_OP_RECV, r->server.base + i * len, len, i);
		post(&r->client, GX_OP_SEND, r->buf + i * len, len, i);
	}
	for (unsigned i = 0; i < 4; i++) /* each OPEN is there, and a piece was read */
		end_turn(i & 1 ? &r->server : &r->client);
	assert_true(end_stat(&r->server, "pull_bytes") > 0);
	assert_int_equal(r->server.nr_done, 0);
	script.err = -EPERM;
	UNTIL(r, both_ended(r, 4));
	assert_int_equal(r->server.nr_failed, 4);
	assert_int_equal(r->client.nr_failed, 4);
	assert_int_equal(r->server.status, -EPERM);
	assert_int_equal(r->client.status, -EPERM);
	assert_int_equal(end_stat(&r->server, "pulls_failed"), 4);
	r->server.nr_failed = r->client.nr_failed = 0;
	for (unsigned i = 0; i < 4; i++)
		send_good(r, len, 0);
	assert_int_equal(pulls(r), 0);
}

static void read__short_counts(void **state)
{
	struct rig *r = *state;

	script.most_b = PULL_WORD_B + 4097;
	send_good(r, LONG_B, 3);
	assert_true(script.nr > LONG_B / 4097);
	script.most_b = PULL_WORD_B; /* nothing moves: there is no memory */
	send_fails(r, -EFAULT, -EFAULT);
	script.most_b = 0;
	send_good(r, LONG_B, 3);
}

static void read__is_tried_again(void **state)
{
	static const ssize_t errs[] = {-EINTR, -ENOMEM};
	struct rig *r = *state;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(errs); i++) {
		script = (struct script){.err = errs[i], .at = 1, .once = true};
		send_good(r, LONG_B, 0);
		assert_int_equal(script.nr, LONG_B / PULL_SLICE_B + 1);
	}
	assert_int_equal(pulls(r), GX_ARRAY_SIZE(errs));
}

/* Memory that only its own process reads goes as packets. */
static void send__of_memory_that_is_not_plain(void **state)
{
	struct rig *r = *state;

	script.own_no = true;
	send_good(r, LONG_B, 0);
	assert_int_equal(pulls(r), 0);
	assert_int_equal(script.nr, 0);
}

/* ---- Early ends ---- */

/* The server has read one piece of a send from @src, and the client has not been turned since. */
static void begin(struct rig *r, const struct gx_op *send)
{
	struct gx_op op = {.kind = GX_OP_SEND, .len = LONG_B, .tag = 3, .user = 9};

	op.addr = send->addr;
	op.mem = send->mem;
	op.deadline_ns = send->deadline_ns;
	memset(r->server.base, POISON, LONG_B);
	post(&r->server, GX_OP_RECV, r->server.base, LONG_B, 3);
	end_turn(&r->server);
	end_turn(&r->client);
	assert_int_equal(common_post(r->client.ep, &op, 1), 1);
	end_turn(&r->client);
	end_turn(&r->server);
	assert_int_equal(end_stat(&r->server, "pull_bytes"), PULL_SLICE_B);
}

/* The client's operation has ended with @err. The server reads no byte for good any more, however
 * often it turns before it hears of that. */
static void ended(struct rig *r, int err)
{
	assert_int_equal(r->client.nr_done, 1);
	assert_int_equal(r->client.status, err);
	for (unsigned i = 0; i < 10; i++)
		end_turn(&r->server);
	assert_int_equal(end_stat(&r->server, "pull_bytes"), PULL_SLICE_B);
	UNTIL(r, r->server.nr_done == 1);
	assert_int_equal(r->server.status, -ECANCELED);
	assert_int_equal(pulls(r), 0);
	r->client.nr_failed = r->server.nr_failed = r->client.nr_done = r->server.nr_done = 0;
	send_good(r, LONG_B, 0); /* the message's place is free again */
}

static void cancel__while_the_peer_reads(void **state)
{
	struct rig *r = *state;

	fill(r->buf, LONG_B, 1);
	begin(r, &(struct gx_op){.addr = r->buf});
	assert_int_equal(common_cancel(r->client.ep, 9), 1);
	end_take(&r->client); /* at once: nobody was turned */
	memset(r->buf, 0, LONG_B);
	ended(r, -ECANCELED);
}

static void deadline__while_the_peer_is_stopped(void **state)
{
	struct rig *r = *state;

	begin(r, &(struct gx_op){.addr = r->buf, .deadline_ns = gx_now() + 20000000});
	while (!r->client.nr_done)
		end_turn(&r->client);
	ended(r, -ETIMEDOUT);
}

/* gx_mem_free() does not wait for the peer. What it reads then is void, also where nothing is. */
static void freed__while_the_peer_reads(void **state)
{
	struct rig *r = *state;
	char *src = mmap(NULL, LONG_B, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct gx_mem *mem;

	assert_ptr_not_equal(src, MAP_FAILED);
	fill(src, LONG_B, 1);
	assert_int_equal(gx_mem_reg(r->client.gx, GX_MEM_HOST, 0, src, LONG_B, &mem), 0);
	begin(r, &(struct gx_op){.mem = mem});
	assert_int_equal(gx_mem_free(mem), 0);
	munmap(src, LONG_B);
	end_take(&r->client);
	ended(r, -ECANCELED);
}

/* The program took its memory away without a word to gx. */
static void unmapped__while_the_peer_reads(void **state)
{
	struct rig *r = *state;
	char *src = mmap(NULL, LONG_B, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(src, MAP_FAILED);
	fill(src, LONG_B, 1);
	begin(r, &(struct gx_op){.addr = src});
	munmap(src, LONG_B);
	UNTIL(r, both_ended(r, 1));
	assert_int_equal(r->client.status, -EFAULT);
	assert_int_equal(r->server.status, -EFAULT);
	r->client.nr_failed = r->server.nr_failed = 0;
	send_good(r, LONG_B, 0);
}

static void receiver__cancels(void **state)
{
	struct rig *r = *state;

	begin(r, &(struct gx_op){.addr = r->buf});
	assert_int_equal(common_cancel(r->server.ep, 7), 1);
	UNTIL(r, both_ended(r, 1));
	assert_int_equal(r->server.status, -ECANCELED);
	assert_int_equal(r->client.status, -ECANCELED);
	assert_int_equal(end_stat(&r->server, "pull_bytes"), PULL_SLICE_B);
	r->client.nr_failed = r->server.nr_failed = 0;
	send_good(r, LONG_B, 0);
}

static void close__while_the_peer_reads(void **state)
{
	struct rig *r = *state;

	begin(r, &(struct gx_op){.addr = r->buf});
	gx_conn_close(r->client.conn);
	while (!r->client.nr_done)
		end_turn(&r->client);
	assert_int_equal(r->client.status, -ECANCELED);
	memset(r->buf, 0, LONG_B);
	UNTIL(r, r->server.nr_done == 1);
	assert_true(r->server.status != 0);
	assert_int_equal(pulls(r), 0);
}

/* The peer tells of bytes to read although this end never said that it reads. */
static void hostile__open_that_nobody_asked_for(void **state)
{
	struct rig *r;
	(void)state;

	script = (struct script){.probe_no = 3};
	r = rig_make(on, on);
	atomic_store(&local_conn_of(r->client.conn)->tx->hdr.reads, 1);
	send_fails(r, -EPROTO, -EPROTO);
	assert_int_equal(script.nr, 0);
	rig_free(r);
	pull_sys = &pull_sys_kernel;
}

/* The peer says that it reads although this end told it of no word. */
static void hostile__it_says_that_it_reads(void **state)
{
	const struct gx_opts crc = {
		.host = GX_WITH(gx_host_opts, .pull = GX_PULL_ON),
		.packet = GX_WITH(gx_packet_opts, .integrity = GX_INTEGRITY_MODE_CRC32C)};
	struct local_conn *l;
	struct pull p = {0};
	struct rig *r;
	(void)state;

	script = (struct script){0};
	r = rig_make(crc, crc);
	l = local_conn_of(r->client.conn);
	assert_int_equal(l->rx->hdr.pull_at, 0);
	assert_int_equal(script.probes, 0);
	atomic_store(&l->tx->hdr.reads, 1);
	send_good(r, LONG_B, 0);
	assert_int_equal(pulls(r), 0);
	assert_int_equal(over_b(&r->client), 0);
	rig_free(r);
	r = rig_make(on, on);
	l = local_conn_of(r->client.conn);
	local_pull_ep(r->client.conn, 0, &p);
	assert_ptr_equal(p.peer_reads, &l->tx->hdr.reads);
	l->uid++; /* another user's */
	local_pull_ep(r->client.conn, 0, &p);
	assert_null(p.peer_reads);
	assert_int_equal(over_b(&r->client), 0);
	rig_free(r);
	pull_sys = &pull_sys_kernel;
}

/* ---- Another process ---- */

/* Send KILL_B bytes to the parent, and turn until killed. */
static void child_run(int fd)
{
	struct gx_connect_opts o = GX_INIT(o);
	struct gx_opts g = on;
	struct gx_op op = {.kind = GX_OP_SEND, .len = KILL_B, .tag = 1};
	char addr[32];
	struct gx *gx;
	struct gx_conn *c;

	if (read(fd, addr, sizeof(addr)) != sizeof(addr) || common_gx_open(g, "shm", &gx))
		_exit(1);
	o.link = "local";
	op.addr = calloc(1, KILL_B);
	if (!op.addr || gx_connect(gx, addr, &o, &c) || gx_conn_wait(c, WAIT_NS))
		_exit(2);
	memset(op.addr, POISON, KILL_B);
	if (common_post(gx_conn_ep(c, 0), &op, 1) != 1)
		_exit(3);
	for (;;)
		gx_core_turn(gx_core(gx, 0), gx_now());
}

/* A server, and its connection from the child to which @fd leads. */
static struct rig *rig_of_child(int fd, uint64_t until)
{
	struct rig *r = rig_new();

	end_open(
		&r->server,
		(struct gx_opts){.server = true, .host = GX_WITH(gx_host_opts, .pull = GX_PULL_ON)},
		"shm");
	common_gx_listen(r->server.gx, r->addr);
	assert_int_equal(write(fd, r->addr, sizeof(r->addr)), sizeof(r->addr));
	while (!atomic_load(&r->server.up) && gx_now() < until)
		end_turn(&r->server);
	r->server.conn = atomic_load(&r->server.up);
	assert_non_null(r->server.conn);
	r->server.ep = gx_conn_ep(r->server.conn, 0);
	r->server.plain = malloc(KILL_B);
	assert_non_null(r->server.plain);
	return r;
}

static _Atomic bool over;

static void *helper(void *core)
{
	while (!atomic_load_explicit(&over, memory_order_relaxed))
		gx_help(core);
	return NULL;
}

/* @helps: another thread reads as well */
static void killed(bool helps)
{
	uint64_t until = gx_now() + KILL_MS * 1000000ull;
	pthread_t thread = 0;
	struct rig *r;
	bool reads;
	int fd[2];
	pid_t pid;

	assert_int_equal(pipe(fd), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid)
		child_run(fd[0]);
	r = rig_of_child(fd[1], until);
	reads = local_conn_of(r->server.conn)->pulls.pid;
	atomic_store(&over, false);
	if (helps)
		assert_int_equal(pthread_create(&thread, NULL, helper, r->server.core), 0);
	post(&r->server, GX_OP_RECV, r->server.plain, KILL_B, 1);
	while (reads && end_stat(&r->server, "pull_bytes") < LONG_B && gx_now() < until)
		end_turn(&r->server);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	while (reads && !r->server.nr_done && gx_now() < until)
		end_turn(&r->server);
	if (reads) {
		assert_true(end_stat(&r->server, "pull_bytes") >= LONG_B);
		assert_int_equal(r->server.nr_done, 1);
		assert_true(r->server.status < 0);
		assert_int_equal(pulls(r), 0);
	}
	atomic_store(&over, true);
	if (helps)
		pthread_join(thread, NULL);
	rig_free(r);
	close(fd[0]);
	close(fd[1]);
	if (!reads) {
		print_message("the kernel does not let this process read its child: Yama "
			      "(kernel.yama.ptrace_scope), or a sandbox\n");
		skip();
	}
}

static void killed__while_this_process_reads(void **state)
{
	(void)state;
	killed(false);
}

static void killed__while_a_helper_reads(void **state)
{
	(void)state;
	killed(true);
}

/* An argument chooses tests, as freed__*. */
int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
		/* First, while this is the only thread. */
		cmocka_unit_test(killed__while_this_process_reads),
		cmocka_unit_test(killed__while_a_helper_reads),
		T(send__sizes_around_the_limit),
		cmocka_unit_test(send__a_limit_below_an_open),
		cmocka_unit_test(send__the_larger_limit_counts),
		cmocka_unit_test(send__as_packets_where_one_end_does_not_pull),
		T(put_get__of_registered_memory),
		T(order__of_one_tag),
		T(turn__is_bounded),
		T(turn__is_bounded_over_all_endpoints),
		cmocka_unit_test(probe__refused),
		cmocka_unit_test(options__refused),
		cmocka_unit_test(auto__is_timed),
		cmocka_unit_test(read__of_a_process_that_is_gone),
		T(read__fails_in_another_way),
		T(read__is_forbidden_later),
		T(read__is_forbidden_with_more_under_way),
		T(read__short_counts),
		T(read__is_tried_again),
		T(send__of_memory_that_is_not_plain),
		T(cancel__while_the_peer_reads),
		T(deadline__while_the_peer_is_stopped),
		T(freed__while_the_peer_reads),
		T(unmapped__while_the_peer_reads),
		T(receiver__cancels),
		T(close__while_the_peer_reads),
		cmocka_unit_test(hostile__open_that_nobody_asked_for),
		cmocka_unit_test(hostile__it_says_that_it_reads),
#undef T
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
