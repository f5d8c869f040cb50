/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys that come and go while many connections read by them, over the link that the argument names
 * (verbs: and its RDMA device), with gx's own threads on the cores. The memory has another owner as soon as a key is withdrawn: a
 * get that succeeds has not one byte of his; every third one gathers runs by a view. GX_TEST_FULL=1: 100,000 withdrawals. Prints what a key
 * costs.
 */
#include "kit/common_gx.h"
#include "kit/common_seeds.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONNS	32
#define PART_B	(128u << 10)
#define SMALL_B 4096u
#define NEXT	0xdeadbeefu
#define TURNS                                                                                      \
	8 /* keys that are mapped: each is for every so many-th connection, which asks for it */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) /* where memory is not counted */
#define MANY 2000
#else
#define MANY 10000
#endif

/* What the readers use now. */
static struct {
	pthread_mutex_t lock;
	uint32_t number;
	struct gx_key key;
} now = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct reader {
	struct gx *gx;
	struct gx_list *runs; /* SMALL_B bytes, every other line */
	struct gx_conn *conn[CONNS];
	struct {
		uint32_t number, len;
		bool busy;
		uint32_t buf[PART_B / 4];
	} get[CONNS];
	_Atomic bool stop;
	_Atomic uint64_t good, stale, wrong;
	int odd; /* a status that no get may have */
};

static uint32_t heap[PART_B / 4], *part = heap;
static const char *link_name = "packet", *device;
static bool mapped; /* link local maps the memory of the keys */

static void fill(uint32_t v)
{
	for (unsigned i = 0; i < PART_B / 4; i++)
		part[i] = v;
}

/* Return: the number of *@key. */
static uint32_t key_now(struct gx_key *key)
{
	uint32_t n;

	pthread_mutex_lock(&now.lock);
	*key = now.key;
	n = now.number;
	pthread_mutex_unlock(&now.lock);
	return n;
}

static void key_set(const struct gx_key *key, uint32_t number)
{
	pthread_mutex_lock(&now.lock);
	now.key = *key;
	now.number = number;
	pthread_mutex_unlock(&now.lock);
}

static void get_post(struct reader *r, struct gx_queue *q, unsigned i)
{
	struct gx_region region = GX_INIT(region);
	struct gx_key key;
	struct gx_op op = {.kind = GX_OP_GET, .user = i, .addr = r->get[i].buf};

	r->get[i].number = key_now(&key);
	if (mapped && r->get[i].number % TURNS != i % TURNS)
		return;
	r->get[i].len = i % 4 ? SMALL_B : PART_B;
	op.len = r->get[i].len;
	if (i % 3 == 1 && op.len == SMALL_B && !mapped)
		op.list = r->runs;
	if (gx_conn_key(r->conn[i], &key, &region)) {
		r->wrong++;
		return;
	}
	op.token = region.token;
	r->get[i].busy = gx_post(q, gx_conn_ep(r->conn[i], 0), &op, 1) == 1;
}

static void get_done(struct reader *r, const struct gx_comp *comp)
{
	unsigned i = comp->user;

	r->get[i].busy = false;
	if (comp->status == -ESTALE) {
		r->stale++;
		return;
	}
	if (comp->status && comp->status != -ECANCELED) {
		r->odd = comp->status;
		r->wrong++;
	}
	for (unsigned n = 0; n < r->get[i].len / 4 && !comp->status; n++)
		if (r->get[i].buf[n] != r->get[i].number) {
			r->wrong++;
			break;
		}
	r->good += !comp->status;
}

static void *reader_run(void *arg)
{
	struct reader *r = arg;
	struct gx_core *core = gx_core(r->gx, 0);
	struct gx_queue *q = gx_core_queue(core);
	struct gx_comp comps[CONNS];
	unsigned busy;
	const struct gx_view view = {.run_b = 64, .dim = {{SMALL_B / 64, 128}}, .nr_dims = 1};
	const struct gx_views views = {.remote = &view};

	if (gx_views_open(r->gx, &views, &r->runs) || (!mapped && gx_queue_open(r->gx, NULL, &q))) {
		r->wrong++;
		return NULL;
	}
	do {
		unsigned n = mapped ? gx_core_turn(core, gx_now()) : 0;

		n = gx_poll(q, comps, CONNS);

		for (unsigned i = 0; i < n; i++)
			get_done(r, &comps[i]);
		busy = 0;
		for (unsigned i = 0; i < CONNS; i++) {
			if (!r->get[i].busy && !r->stop)
				get_post(r, q, i);
			busy += r->get[i].busy;
		}
		if (!n)
			sched_yield();
	} while (busy || !r->stop);
	while (!mapped && gx_queue_close(q) == -EAGAIN)
		;
	gx_list_close(r->runs);
	return NULL;
}

static struct gx_key key_new(struct gx_mem *mem)
{
	struct gx_key_opts o = GX_INIT(o);
	struct gx_key key;

	o.access = GX_ACCESS_GET;
	assert_int_equal(gx_mem_key(mem, &o, &key), 0);
	return key;
}

/* Gets that were good so far, by the way that the test is about. */
static uint64_t gets_good(const struct reader *r)
{
	uint64_t copied = 0;

	gx_core_stat(gx_core(r->gx, 0), "local_gets", &copied);
	return mapped ? copied : r->good;
}

static void withdraw__while_32_read(void **state)
{
	unsigned rounds = getenv("GX_TEST_FULL") ? 100000 : device ? 20 : common_rounds(300);
	struct reader *r = calloc(1, sizeof(*r));
	struct common_rig *rig = *state;
	uint64_t begin_ns = 0, spent_ns = 0, seen;
	pthread_t thread;
	struct gx_mem *mem;
	struct gx_key key;

	assert_non_null(r);
	r->gx = rig->client;
	for (unsigned i = 0; i < CONNS; i++)
		r->conn[i] = common_gx_connect(rig->client, rig->addr, link_name);
	if (mapped)
		assert_int_equal(gx_mem_alloc(rig->server, GX_MEM_HOST, 0, PART_B, &mem), 0);
	else
		assert_int_equal(gx_mem_reg(rig->server, GX_MEM_HOST, 0, heap, PART_B, &mem), 0);
	part = gx_mem_addr(mem);
	fill(2);
	key = key_new(mem);
	key_set(&key, 2);
	assert_int_equal(pthread_create(&thread, NULL, reader_run, r), 0);
	for (unsigned k = 1; k <= rounds && !r->wrong; k++) {
		seen = gets_good(r);
		while (gets_good(r) == seen && !r->wrong)
			usleep(10);
		begin_ns = gx_now();
		assert_int_equal(gx_key_withdraw(rig->server, &key), 0);
		spent_ns += gx_now() - begin_ns;
		fill(NEXT);
		fill(k + 2);
		key = key_new(mem);
		key_set(&key, k + 2);
	}
	r->stop = true;
	pthread_join(thread, NULL);
	print_message(
		"%s: %u withdrawals, %.1f us each; %llu gets good%s, %llu stale, %llu wrong\n",
		link_name, rounds, (double)spent_ns / rounds / 1e3,
		(unsigned long long)gets_good(r), mapped ? " by the mapping" : "",
		(unsigned long long)r->stale, (unsigned long long)r->wrong);
	assert_int_equal(r->wrong, 0);
	assert_int_equal(r->odd, 0);
	assert_true(r->stale > 0);
	assert_int_equal(gx_mem_free(mem), 0);
	for (unsigned i = 0; i < CONNS; i++)
		gx_conn_close(r->conn[i]);
	free(r);
}

static long resident_kb(void)
{
	long pages = 0, resident = 0;
	FILE *f = fopen("/proc/self/statm", "re");

	assert_non_null(f);
	assert_int_equal(fscanf(f, "%ld %ld", &pages, &resident), 2);
	fclose(f);
	return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Registered, given a key, withdrawn and freed again, all of them at once. */
static void keys__many(void **state)
{
	unsigned many = device ? 50 : MANY; /* a virtual machine has the device */
	struct common_rig *rig = *state;
	struct gx_mem **mem = calloc(many, sizeof(struct gx_mem *));
	struct gx_key *key = calloc(many, sizeof(struct gx_key));
	uint64_t at_ns[5] = {0};
	long kb[2] = {0};

	assert_true(mem && key);
	for (unsigned round = 0; round < 4; round++) {
		at_ns[0] = gx_now();
		for (unsigned i = 0; i < many; i++)
			assert_int_equal(gx_mem_reg(rig->server, GX_MEM_HOST, 0,
						    (char *)heap + i % 1024, SMALL_B, &mem[i]),
					 0);
		at_ns[1] = gx_now();
		for (unsigned i = 0; i < many; i++)
			key[i] = key_new(mem[i]);
		at_ns[2] = gx_now();
		for (unsigned i = 0; i < many; i++)
			assert_int_equal(gx_key_withdraw(rig->server, &key[i]), 0);
		at_ns[3] = gx_now();
		for (unsigned i = 0; i < many; i++)
			assert_int_equal(gx_mem_free(mem[i]), 0);
		at_ns[4] = gx_now();
		kb[round > 1] = resident_kb();
	}
	print_message("%u at once: register %.1f us, key %.1f us, withdraw %.1f us, free %.1f us; "
		      "%ld KiB resident, before %ld\n",
		      many, (double)(at_ns[1] - at_ns[0]) / many / 1e3,
		      (double)(at_ns[2] - at_ns[1]) / many / 1e3,
		      (double)(at_ns[3] - at_ns[2]) / many / 1e3,
		      (double)(at_ns[4] - at_ns[3]) / many / 1e3, kb[1], kb[0]);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) /* it keeps what was freed */
	kb[1] = kb[0];
#endif
	assert_true(kb[1] - kb[0] < 1024);
	free(key);
	free(mem);
}

static int setup(void **state)
{
	static struct common_rig rig;

	common_rig_open(&rig,
			(struct gx_opts){.peer_timeout_ns = COMMON_WAIT_NS / 2,
					 .verbs = common_gx_verbs(device)},
			4096);
	if (!mapped) /* else the reader turns it */
		assert_int_equal(gx_core_start(gx_core(rig.client, 0)), 0);
	*state = &rig;
	return 0;
}

static int teardown(void **state)
{
	common_rig_close(*state);
	return 0;
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(keys__many),
		cmocka_unit_test(withdraw__while_32_read),
	};

	mapped = argc > 1 && !strcmp(argv[1], "mapped");
	if (argc > 1)
		link_name = mapped ? "local" : argv[1];
	if (argc > 2)
		device = argv[2];
	return cmocka_run_group_tests_name("withdraw", tests, setup, teardown);
}
