/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Long messages that the receiver's core reads out of the sender's process, while other threads help
 * (gx_help()): which pieces they get, and whatever may happen while one of them reads. Two contexts
 * of one process, both turned by this thread, which also plays the helper: the system call of a
 * helper is scripted, and calls back in its midst. The last test has helpers of its own.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gx/gx.h"
#include "local/local.h"
#include "packet/pull.h"

#include <cmocka.h>

#include "kit/common_gx.h"
#include "kit/common_seeds.h"
#include "local/local_rig.h"

#define PIECE_B PULL_LENT_B
#define LONG_B	(8 * (uint64_t)PIECE_B)
#define POISON	0x5b
#define HELPERS 2
#define ROUNDS	150

/* ---- The system call of a helper, scripted ---- */

static struct script {
	ssize_t err;		     /* each call fails so; 0: none does */
	size_t most_b;		     /* bytes that each moves, the word included; 0: all */
	bool wrong_word;	     /* another process answers */
	void (*amid)(struct rig *r); /* once, when the bytes have been moved */
	unsigned nr;		     /* calls so far */
} script;
static _Atomic bool helping; /* this thread is in gx_help() */
static struct rig *rig;
static uint64_t deadline_ns; /* of the next receive of begin(); 0: none */

static ssize_t script_read(pid_t pid, const struct iovec *to, unsigned nr_to,
			   const struct iovec *from, unsigned nr_from)
{
	struct iovec here[2] = {to[0], nr_to > 1 ? to[1] : to[0]};
	struct iovec there[2] = {from[0], nr_from > 1 ? from[1] : from[0]};
	void (*amid)(struct rig * r) = script.amid;
	ssize_t n;

	if (!helping)
		return pull_sys_kernel.read(pid, to, nr_to, from, nr_from);
	assert_int_equal(nr_to, 2);
	script.nr++;
	if (script.err)
		return script.err;
	if (script.most_b && here[0].iov_len + here[1].iov_len > script.most_b)
		here[1].iov_len = there[1].iov_len = script.most_b - here[0].iov_len;
	n = pull_sys_kernel.read(pid, here, 2, there, 2);
	if (script.wrong_word)
		((char *)to[0].iov_base)[3] ^= 1;
	script.amid = NULL;
	if (amid) { /* what it calls is no helper's */
		helping = false;
		amid(rig);
		helping = true;
	}
	return n;
}

static const struct pull_sys scripted = {.read = script_read};

static bool help(struct rig *r)
{
	bool did;

	helping = true;
	did = gx_help(r->server.core);
	helping = false;
	return did;
}

/* ---- The rig ---- */

static const struct gx_opts on = {.host = GX_WITH(gx_host_opts, .pull = GX_PULL_ON),
				  .gpu = GX_WITH(gx_gpu_opts, .timeout_ns = 1000000)};

static struct rig *rig_make(void)
{
	struct gx_opts server = on;
	struct rig *r = rig_new();

	server.server = true;
	end_open(&r->server, server, "shm");
	end_open(&r->client, on, "shm");
	assert_int_equal(rig_connect(r, "local", NULL), 0);
	return r;
}

static int setup(void **state)
{
	script = (struct script){0};
	deadline_ns = 0;
	pull_sys = &scripted;
	rig = *state = rig_make();
	assert_false(help(rig)); /* its core knows now */
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

static void post_at(struct gx_ep *ep, enum gx_op_kind kind, void *addr, uint64_t len, uint64_t tag)
{
	struct gx_op op = {.kind = kind, .addr = addr, .len = len, .tag = tag, .user = 7};

	assert_int_equal(common_post(ep, &op, 1), 1);
}

static bool both_ended(const struct rig *r, unsigned n)
{
	return r->client.nr_done == n && r->server.nr_done == n;
}

static uint64_t helped_b(const struct rig *r)
{
	return end_stat(&r->server, "pull_helped_bytes");
}

static uint64_t pulled_b(const struct rig *r)
{
	return end_stat(&r->server, "pull_bytes");
}

static void turns(struct rig *r, unsigned n)
{
	while (n--) {
		end_turn(&r->server);
		end_turn(&r->client);
	}
}

/* A send of @len bytes, while the helper reads @most pieces after each turn. */
static void send_good(struct rig *r, uint64_t len, unsigned most)
{
	unsigned n = r->client.nr_done + 1;
	uint64_t until = gx_now() + WAIT_NS;

	fill(r->buf, len, (unsigned)len);
	memset(r->server.base, POISON, len + 128);
	post_at(r->server.ep, GX_OP_RECV, r->server.base + 64, len, 3);
	post_at(r->client.ep, GX_OP_SEND, r->buf, len, 3);
	while (!both_ended(r, n) && gx_now() < until) {
		turns(r, 1);
		for (unsigned i = 0; i < most && help(r); i++)
			;
	}
	assert_true(both_ended(r, n));
	assert_int_equal(r->client.nr_failed + r->server.nr_failed, 0);
	assert_int_equal(r->server.last.len, len);
	assert_memory_equal(r->server.base + 64, r->buf, len);
	for (unsigned i = 0; i < 64; i++) {
		assert_int_equal(r->server.base[i], POISON);
		assert_int_equal(r->server.base[64 + len + i], POISON);
	}
	assert_false(help(r)); /* nothing is left on the board */
}

/* The server's core has read one piece, and has lent some. @mem: where the server receives; NULL:
 * into its own memory. */
static void begin(struct rig *r, struct gx_mem *mem)
{
	struct gx_op op = {.kind = GX_OP_RECV,
			   .addr = r->server.base,
			   .mem = mem,
			   .len = LONG_B,
			   .tag = 3,
			   .user = 7};

	op.deadline_ns = deadline_ns;
	fill(r->buf, LONG_B, 1);
	memset(r->server.base, POISON, LONG_B);
	assert_int_equal(common_post(r->server.ep, &op, 1), 1);
	end_turn(&r->server);
	end_turn(&r->client);
	post_at(r->client.ep, GX_OP_SEND, r->buf, LONG_B, 3);
	end_turn(&r->client);
	end_turn(&r->server);
	assert_int_equal(pulled_b(r), PIECE_B);
	assert_int_equal(help_nr_offered(&r->server.core->help, ~0u), PULL_AHEAD);
}

/* The server's operation has ended with @err and not before the helper was through. Whatever comes,
 * its memory stays as it is from here on, and the endpoint does its next work. */
static void ended(struct rig *r, int err, bool goes_on)
{
	UNTIL(r, r->server.nr_done == 1);
	assert_int_equal(r->server.status, err);
	assert_int_equal(end_stat(&r->server, "pulls"), 0);
	memset(r->server.base, 0, LONG_B);
	assert_false(help(r));
	turns(r, 10);
	for (uint64_t i = 0; i < LONG_B; i++)
		assert_int_equal(r->server.base[i], 0);
	assert_int_equal(r->server.core->help.used, 0);
	if (!goes_on)
		return;
	UNTIL(r, both_ended(r, 1));
	r->client.nr_failed = r->server.nr_failed = 0;
	send_good(r, LONG_B, 1);
}

/* ---- Pieces ---- */

static void help__has_a_part(void **state)
{
	struct rig *r = *state;

	begin(r, NULL);
	for (unsigned i = 0; i < PULL_AHEAD; i++)
		assert_true(help(r));
	assert_false(help(r));
	assert_int_equal(pulled_b(r), PIECE_B); /* the core has not turned */
	end_turn(&r->server);
	assert_int_equal(helped_b(r), PULL_AHEAD * PIECE_B);
	assert_int_equal(pulled_b(r), (PULL_AHEAD + 2) * PIECE_B);
	for (unsigned i = 0; i < PULL_AHEAD; i++)
		assert_true(help(r));
	UNTIL(r, both_ended(r, 1));
	assert_int_equal(r->client.nr_failed + r->server.nr_failed, 0);
	assert_memory_equal(r->server.base, r->buf, LONG_B);
	assert_int_equal(pulled_b(r), LONG_B);
	assert_int_equal(helped_b(r), 2 * PULL_AHEAD * PIECE_B);
	assert_int_equal(end_stat(&r->server, "pulls"), 1);
}

static void help__of_all_sizes(void **state)
{
	static const uint64_t sizes[] = {65537,		  PIECE_B - 1,	   PIECE_B,
					 PIECE_B + 1,	  2 * PIECE_B,	   2 * PIECE_B + 1,
					 3 * PIECE_B - 1, 9 * PIECE_B + 7, 5u << 20};
	struct rig *r = *state;

	for (unsigned most = 0; most < 4; most++)
		for (unsigned i = 0; i < GX_ARRAY_SIZE(sizes); i++)
			send_good(r, sizes[i], most);
	assert_true(helped_b(r) > 0);
	assert_int_equal(end_stat(&r->server, "pulls"), 4 * GX_ARRAY_SIZE(sizes));
	assert_int_equal(end_stat(&r->server, "rx_bytes"), 0);
}

/* It came once, and never again: the core takes all back. */
static void help__does_not_come(void **state)
{
	struct rig *r = *state;

	send_good(r, LONG_B + 5, 0);
	assert_int_equal(helped_b(r), 0);
	assert_int_equal(pulled_b(r), LONG_B + 5);
}

/* It never came: nothing is lent, and the core reads as long pieces as without any of this. */
static void help__is_not_awaited(void **state)
{
	struct rig *r = *state;

	atomic_store(&r->server.core->help.comes, false);
	post_at(r->server.ep, GX_OP_RECV, r->server.base, LONG_B, 3);
	turns(r, 2);
	post_at(r->client.ep, GX_OP_SEND, r->buf, LONG_B, 3);
	end_turn(&r->client);
	end_turn(&r->server);
	assert_int_equal(pulled_b(r), PULL_SLICE_B);
	assert_int_equal(r->server.core->help.used, 0);
	UNTIL(r, both_ended(r, 1));
	assert_int_equal(r->client.nr_failed + r->server.nr_failed, 0);
}

/* Messages of many endpoints want more pieces than there are. */
static void help__for_many_endpoints(void **state)
{
	enum { MANY = HELP_SLICES / PULL_AHEAD + 2 };
	struct rig *r = *state;
	struct gx_ep *to[MANY] = {r->server.ep}, *from[MANY] = {r->client.ep};

	for (unsigned i = 1; i < MANY; i++) {
		from[i] = gx_conn_ep(rig_connect_more(r), 0);
		to[i] = gx_conn_ep(atomic_load(&r->server.up), 0);
	}
	fill(r->buf, MANY * LONG_B, 4);
	for (unsigned i = 0; i < 2 * MANY; i++) /* two messages each */
		post_at(to[i / 2], GX_OP_RECV, r->server.base + i * LONG_B / 2, LONG_B / 2, i);
	turns(r, 2);
	for (unsigned i = 0; i < 2 * MANY; i++)
		post_at(from[i / 2], GX_OP_SEND, r->buf + i * LONG_B / 2, LONG_B / 2, i);
	for (unsigned i = 0; i < 8; i++) {
		turns(r, 1);
		for (unsigned k = 0; k < i % 4; k++)
			help(r);
	}
	UNTIL(r, both_ended(r, 2 * MANY));
	assert_int_equal(r->client.nr_failed + r->server.nr_failed, 0);
	assert_memory_equal(r->server.base, r->buf, MANY * LONG_B);
	assert_true(helped_b(r) > 0);
	assert_int_equal(r->server.core->help.used, 0);
}

/* The core reads all that is left, and the message waits for the helper alone. */
static void amid_waits(struct rig *r)
{
	turns(r, 20);
	assert_int_equal(pulled_b(r), LONG_B - PIECE_B);
	assert_int_equal(r->server.nr_done, 0);
	assert_true(gx_core_turn(r->server.core, gx_now())); /* it does not fall asleep */
}

static void helper__is_the_last(void **state)
{
	struct rig *r = *state;

	begin(r, NULL);
	script.amid = amid_waits;
	assert_true(help(r));
	UNTIL(r, both_ended(r, 1));
	assert_int_equal(r->server.nr_failed, 0);
	assert_memory_equal(r->server.base, r->buf, LONG_B);
	assert_int_equal(helped_b(r), PIECE_B);
}

/* ---- The kernel says no to a helper ---- */

static void read__faults(void **state)
{
	struct rig *r = *state;

	begin(r, NULL);
	script.most_b = PULL_WORD_B; /* nothing moves */
	assert_true(help(r));
	assert_int_equal(script.nr, 1);
	script.most_b = 0;
	ended(r, -EFAULT, true);
	assert_int_equal(r->client.status, -EFAULT);
	assert_int_equal(end_stat(&r->server, "pulls_failed"), 1);
}

static void read__is_forbidden(void **state)
{
	struct rig *r = *state;

	begin(r, NULL);
	script.err = -EPERM;
	assert_true(help(r));
	UNTIL(r, both_ended(r, 1));
	assert_int_equal(r->server.status, -EPERM);
	assert_int_equal(r->client.status, -EPERM);
	r->client.nr_failed = r->server.nr_failed = 0;
	send_good(r, LONG_B, 1); /* as packets */
	assert_int_equal(end_stat(&r->server, "pulls"), 0);
}

/* Errors that pass, and parts: the rest is lent once more, or read by the core. */
static void read__is_tried_again(void **state)
{
	static const struct script table[] = {
		{.err = -EINTR}, {.err = -ENOMEM}, {.most_b = PULL_WORD_B + 4097}};
	struct rig *r = *state;

	for (unsigned most = 1; most < 4; most++)
		for (unsigned i = 0; i < GX_ARRAY_SIZE(table); i++) {
			script = table[i];
			send_good(r, LONG_B, most);
			assert_true(script.nr > 0);
		}
	assert_int_equal(end_stat(&r->server, "pulls_failed"), 0);
}

static void read__of_a_process_that_is_gone(void **state)
{
	static const struct script table[] = {
		{.err = -ESRCH}, {.err = -EFAULT}, {.wrong_word = true}};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(table); i++) {
		struct rig *r = *state;

		begin(r, NULL);
		script = table[i];
		assert_true(help(r));
		assert_int_equal(r->server.nr_done, 0);
		UNTIL(r, r->server.nr_done == 1);
		assert_int_equal(r->server.status, -ECONNRESET);
		UNTIL(r, atomic_load(&r->server.nr_down) == 1);
		assert_int_equal(r->server.down_err, -ECONNRESET);
		teardown(state);
		setup(state);
	}
}

/* ---- Ends while a helper reads ---- */

static struct gx_mem *reg; /* the server's memory, in freed__* */

/* The server's operation is over, but for the helper. */
static void amid_is_held(struct rig *r)
{
	turns(r, 20);
	assert_int_equal(r->server.nr_done, 0);
	assert_int_equal(pulled_b(r), PIECE_B);
	assert_int_equal(help_nr_offered(&r->server.core->help, ~0u),
			 0); /* the other was taken back */
}

static void amid_receiver_cancels(struct rig *r)
{
	assert_int_equal(common_cancel(r->server.ep, 7), 1);
	amid_is_held(r);
}

static void cancel__by_the_receiver(void **state)
{
	struct rig *r = *state;

	begin(r, NULL);
	script.amid = amid_receiver_cancels;
	assert_true(help(r));
	assert_int_equal(r->server.nr_done, 0); /* it has not turned since */
	ended(r, -ECANCELED, true);
}

/* The sender does not wait for the helper, whose bytes are void. */
static void amid_sender_cancels(struct rig *r)
{
	assert_int_equal(common_cancel(r->client.ep, 7), 1);
	end_take(&r->client);
	assert_int_equal(r->client.nr_done, 1);
	assert_int_equal(r->client.status, -ECANCELED);
	amid_is_held(r);
}

static void cancel__by_the_sender(void **state)
{
	struct rig *r = *state;

	begin(r, NULL);
	script.amid = amid_sender_cancels;
	assert_true(help(r));
	ended(r, -ECANCELED, true);
}

/* The core hears of the helper's bytes before it hears of the CANCEL. */
static void amid_sender_cancels_alone(struct rig *r)
{
	assert_int_equal(common_cancel(r->client.ep, 7), 1);
	memset(r->buf, 0, LONG_B);
}

static void cancel__that_the_core_has_not_heard(void **state)
{
	struct rig *r = *state;

	begin(r, NULL);
	script.amid = amid_sender_cancels_alone;
	assert_true(help(r));
	for (unsigned i = 0; i < 10; i++)
		end_turn(&r->server);
	assert_int_equal(pulled_b(r), PIECE_B);
	assert_int_equal(help_nr_offered(&r->server.core->help, ~0u), 0);
	ended(r, -ECANCELED, true);
}

static void amid_is_late(struct rig *r)
{
	while (gx_now() <= deadline_ns)
		usleep(1000);
	amid_is_held(r);
}

static void deadline__of_the_receiver(void **state)
{
	struct rig *r = *state;

	deadline_ns = gx_now() + 1000000000;
	begin(r, NULL);
	script.amid = amid_is_late;
	assert_true(help(r));
	ended(r, -ETIMEDOUT, true);
}

static void amid_frees(struct rig *r)
{
	assert_int_equal(gx_mem_free(reg), -EAGAIN);
	assert_non_null(strstr(gx_error(), "or a thread in gx_help()"));
	amid_is_held(r);
}

/* gx_mem_free() of the receiver's memory waits for the helper: it says that it has not waited long
 * enough. */
static void freed__at_the_receiver(void **state)
{
	struct rig *r = *state;

	assert_int_equal(gx_mem_reg(r->server.gx, GX_MEM_HOST, 0, r->server.base, LONG_B, &reg), 0);
	begin(r, reg);
	script.amid = amid_frees;
	assert_true(help(r));
	assert_int_equal(gx_mem_free(reg),
			 0); /* this thread turns the core, and is not in a turn */
	end_take(&r->server);
	ended(r, -ECANCELED, true);
}

static void amid_closes(struct rig *r)
{
	uint64_t until = gx_now() + 200000000;

	gx_conn_close(r->client.conn);
	while (gx_now() < until || !r->client.nr_done)
		turns(r, 1);
	assert_int_equal(r->server.nr_done, 0);
}

/* The connection ends. The endpoint's end waits for the helper. */
static void close__by_the_sender(void **state)
{
	struct rig *r = *state;

	begin(r, NULL);
	script.amid = amid_closes;
	assert_true(help(r));
	UNTIL(r, r->server.nr_done == 1);
	assert_true(r->server.status < 0);
	ended(r, r->server.status, false);
}

static void amid_closes_here(struct rig *r)
{
	uint64_t until = gx_now() + 200000000;

	gx_conn_close(r->server.conn);
	while (gx_now() < until)
		turns(r, 1);
	assert_int_equal(r->server.nr_done, 0);
}

/* The endpoint that a helper reads for is there as long as it does. */
static void close__by_the_receiver(void **state)
{
	struct rig *r = *state;

	begin(r, NULL);
	script.amid = amid_closes_here;
	assert_true(help(r));
	ended(r, -ECANCELED, false);
}

/* Offered pieces of an endpoint that ends, and nobody has taken any. */
static void close__with_pieces_on_the_board(void **state)
{
	struct rig *r = *state;

	begin(r, NULL);
	gx_conn_close(r->server.conn);
	ended(r, -ECANCELED, false);
}

/* ---- Threads that help ---- */

static _Atomic bool over;

static void *helper(void *arg)
{
	struct rig *r = arg;

	while (!atomic_load_explicit(&over, memory_order_relaxed))
		if (!gx_help(r->server.core))
			sched_yield();
	return NULL;
}

static bool is_all(const char *p, uint64_t len, char c)
{
	for (uint64_t i = 0; i < len; i++)
		if (p[i] != c)
			return false;
	return true;
}

/* Round @i: a message that comes whole, or that one of the ends cancels under way. */
static void round_run(struct rig *r, unsigned i)
{
	uint64_t len = PIECE_B * (1 + i * 7 % 20) + i, until = gx_now() + WAIT_NS;
	unsigned n = i + 1, cancel_at = i % 3 ? i * 5 % 11 : ~0u, turn = 0;
	bool mine = false; /* the server's memory is the program's again */

	fill(r->buf, len, i);
	post_at(r->server.ep, GX_OP_RECV, r->server.base, len, i);
	post_at(r->client.ep, GX_OP_SEND, r->buf, len, i);
	while (!both_ended(r, n) && gx_now() < until) {
		turns(r, 1);
		if (turn++ == cancel_at)
			common_cancel(i % 3 == 1 ? r->server.ep : r->client.ep, 7);
		if (!mine && r->server.nr_done == n && r->server.last.status)
			mine = memset(r->server.base, POISON, len);
	}
	assert_true(both_ended(r, n));
	if (r->server.last.status)
		assert_true(i % 3 && is_all(r->server.base, len, POISON));
	else
		assert_memory_equal(r->server.base, r->buf, len);
}

static void threads__help_through_many_ends(void **state)
{
	uint64_t until = gx_now() + WAIT_NS;
	pthread_t thread[HELPERS];
	struct rig *r;
	(void)state;

	r = rig_make();
	atomic_store(&over, false);
	for (unsigned i = 0; i < HELPERS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, helper, r), 0);
	/* The helpers may have no CPU for long. */
	for (unsigned i = 0; i < common_rounds(ROUNDS) || (!helped_b(r) && gx_now() < until); i++)
		round_run(r, i);
	atomic_store(&over, true);
	for (unsigned i = 0; i < HELPERS; i++)
		pthread_join(thread[i], NULL);
	assert_int_equal(r->server.core->help.used, 0);
	assert_true(helped_b(r) > 0);
	rig_free(r);
}

/* An argument chooses tests, as cancel__*. */
int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
		T(help__has_a_part),
		T(help__of_all_sizes),
		T(help__does_not_come),
		T(help__is_not_awaited),
		T(help__for_many_endpoints),
		T(helper__is_the_last),
		T(read__faults),
		T(read__is_forbidden),
		T(read__is_tried_again),
		T(read__of_a_process_that_is_gone),
		T(cancel__by_the_receiver),
		T(cancel__by_the_sender),
		T(cancel__that_the_core_has_not_heard),
		T(deadline__of_the_receiver),
		T(freed__at_the_receiver),
		T(close__by_the_sender),
		T(close__by_the_receiver),
		T(close__with_pieces_on_the_board),
		cmocka_unit_test(threads__help_through_many_ends),
#undef T
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
