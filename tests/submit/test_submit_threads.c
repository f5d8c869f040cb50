/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that post through queues while gx's own threads turn the cores, over the link that the
 * argument names (packet, over shm, local, tcp, or verbs and its RDMA device): for the thread
 * sanitizer, and for what only happens when nobody waits for anybody. Server and client are contexts
 * of this process, of two cores each.
 */
#include "gx/gx.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "kit/common_cuda.h"
#include "kit/common_gx.h"

#define CORES	2
#define THREADS 3
#define KV_B	(6u << 20)
#define SHARE_B (KV_B / THREADS)
#define OPS	16 /* of a thread and round */
#define WAIT_NS 60000000000ull

/* One posting thread. Failures are counted: only the test's own thread may fail a test. */
struct poster {
	struct common_rig *rig;
	struct gx_conn *conn;
	unsigned index, rounds;
	bool striped;
	_Atomic unsigned wrong;
	char why[256];
	struct gx_comp comp; /* the last one that failed, or came twice */
};

static char out[KV_B], in[KV_B];
static const char *link_name = "packet", *device;

static void nap(void)
{
	nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

static int setup(void **state)
{
	static struct common_rig rig;

	/* Under the thread sanitizer, on a busy machine, a core of the peer may stand for seconds. */
	common_rig_open(&rig,
			(struct gx_opts){.nr_cores = CORES,
					 .packet = GX_WITH(gx_packet_opts, .chunk_b = 16384),
					 .peer_timeout_ns = WAIT_NS / 2,
					 .verbs = common_gx_verbs(device)},
			KV_B);
	for (unsigned i = 0; i < CORES; i++)
		assert_int_equal(gx_core_start(gx_core(rig.client, i)), 0);
	*state = &rig;
	return 0;
}

static int teardown(void **state)
{
	common_rig_close(*state);
	return 0;
}

static struct gx_conn *connect_one(struct common_rig *r)
{
	struct gx_conn *c = common_gx_connect(r->client, r->addr, link_name);

	assert_non_null(gx_conn_ep(c, CORES - 1));
	return c;
}

static void close_queue(struct gx_queue *q)
{
	while (gx_queue_close(q))
		nap();
}

/* ---- one thread's work ---- */

static void wrong(struct poster *p, const char *why)
{
	snprintf(p->why, sizeof(p->why), "%s", why); /* gx_error() is the thread's */
	atomic_fetch_add(&p->wrong, 1);
}

static bool post_all(struct poster *p, struct gx_queue *q, struct gx_op ops[], unsigned n)
{
	unsigned at = 0;

	while (at < n) {
		struct gx_ep *ep = gx_conn_ep(p->conn, at % CORES);
		int ret = p->striped ? gx_post_striped(q, p->conn, ops + at, n - at)
				     : gx_post(q, ep, ops + at, 1);

		if (ret < 0) {
			wrong(p, gx_error());
			return false;
		}
		at += (unsigned)ret;
	}
	return true;
}

/* Each operation completes once. */
static bool wait_all(struct poster *p, struct gx_queue *q, unsigned n)
{
	uint64_t until = gx_now() + WAIT_NS;
	struct gx_comp comps[OPS];
	unsigned seen = 0, bits = 0;

	while (seen < n && gx_now() < until) {
		unsigned got = gx_poll(q, comps, OPS);

		for (unsigned i = 0; i < got; i++) {
			if (comps[i].status || bits >> comps[i].user & 1) {
				p->comp = comps[i];
				wrong(p, "a completion that failed, or came twice");
			}
			bits |= 1u << comps[i].user;
		}
		seen += got;
		if (!got)
			nap();
	}
	if (seen != n)
		wrong(p, "a completion is missing");
	return seen == n;
}

static bool round_run(struct poster *p, struct gx_queue *q, unsigned seed)
{
	const uint64_t len = SHARE_B / OPS, at = (uint64_t)p->index * SHARE_B;
	struct gx_region kv = GX_INIT(kv);
	struct gx_op ops[OPS];

	gx_conn_region(p->conn, "kv", 0, &kv);
	for (unsigned i = 0; i < SHARE_B; i++)
		out[at + i] = (char)(i * 7 + i / 4096 + seed);
	memset(in + at, 0, SHARE_B);
	for (unsigned i = 0; i < OPS; i++)
		ops[i] = (struct gx_op){.kind = GX_OP_PUT,
					.user = i,
					.addr = out + at + i * len,
					.len = i % 2 ? len : 64,
					.token = kv.token,
					.remote_off = at + i * len};
	if (!post_all(p, q, ops, OPS) || !wait_all(p, q, OPS))
		return false;
	for (unsigned i = 0; i < OPS; i++) {
		ops[i].kind = GX_OP_GET;
		ops[i].addr = in + at + i * len;
	}
	if (!post_all(p, q, ops, OPS) || !wait_all(p, q, OPS))
		return false;
	for (unsigned i = 0; i < OPS; i++)
		if (memcmp(in + at + i * len, out + at + i * len, i % 2 ? len : 64))
			wrong(p, "wrong bytes");
	return !atomic_load(&p->wrong);
}

static void *poster_run(void *arg)
{
	struct poster *p = arg;
	struct gx_queue *q;

	if (gx_queue_open(p->rig->client, NULL, &q)) {
		wrong(p, gx_error());
		return NULL;
	}
	for (unsigned i = 0; i < p->rounds && round_run(p, q, i + p->index); i++)
		;
	close_queue(q);
	return NULL;
}

static void posters_fail(const struct poster *p)
{
	struct gx_conn_info info = GX_INIT(info);

	gx_conn_info(p->conn, &info);
	fail_msg("thread %u: %s; the last such: status %d, op %d, user %u; the connection: %d %s",
		 p->index, p->why, p->comp.status, p->comp.op, (unsigned)p->comp.user, info.err,
		 info.text);
}

static void threads_run(struct common_rig *r, void *(*run)(void *), bool striped, unsigned rounds)
{
	struct poster p[THREADS];
	pthread_t thread[THREADS];
	struct gx_conn *c = connect_one(r);

	for (unsigned i = 0; i < THREADS; i++) {
		p[i] = (struct poster){
			.rig = r, .conn = c, .index = i, .rounds = rounds, .striped = striped};
		assert_int_equal(pthread_create(&thread[i], NULL, run, &p[i]), 0);
	}
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	for (unsigned i = 0; i < THREADS; i++)
		if (atomic_load(&p[i].wrong))
			posters_fail(&p[i]);
	gx_conn_close(c);
}

/* ---- tests ---- */

static void submit__threads_share_a_connection(void **state)
{
	threads_run(*state, poster_run, false, 10);
}

static void submit_striped__threads_share_a_connection(void **state)
{
	threads_run(*state, poster_run, true, 10);
}

/* Lists over each link, on an endpoint and striped, with an immediate and without: each block is
 * there when the list is done. */
static void submit__lists(void **state)
{
	enum { SEGS = 2000, BLOCK = 1024 };
	struct common_rig *r = *state;
	struct gx_conn *c = connect_one(r);
	struct gx_region kv = GX_INIT(kv);
	static struct gx_seg segs[SEGS];
	struct gx_queue *q;

	gx_conn_region(c, "kv", 0, &kv);
	assert_int_equal(gx_queue_open(r->client, NULL, &q), 0);
	for (unsigned round = 0; round < 8; round++) {
		struct gx_op op = {.kind = GX_OP_PUT, .segs = segs, .nr_segs = SEGS};
		struct poster p = {.rig = r, .conn = c, .striped = round & 1};

#ifdef __SANITIZE_THREAD__ /* it does not see that a put over one lane is before a get over another */
		p.striped = false;
#endif
		for (unsigned i = 0; i < KV_B; i++)
			out[i] = (char)(i / 256 + i + round);
		memset(in, 0, KV_B);
		for (unsigned i = 0; i < SEGS; i++)
			segs[i] = (struct gx_seg){.off = (uintptr_t)out + i * 2 * BLOCK,
						  .token = kv.token,
						  .remote_off = (uint64_t)i * 1499 % SEGS * BLOCK,
						  .len = BLOCK};
		op.flags = round & 2 ? GX_OP_IMM : 0;
		assert_true(post_all(&p, q, &op, 1) && wait_all(&p, q, 1));
		op.kind = GX_OP_GET;
		op.flags = 0;
		for (unsigned i = 0; i < SEGS; i++)
			segs[i].off = (uintptr_t)in + i * 2 * BLOCK;
		assert_true(post_all(&p, q, &op, 1) && wait_all(&p, q, 1));
		for (unsigned i = 0; i < SEGS; i++)
			assert_memory_equal(in + i * 2 * BLOCK, out + i * 2 * BLOCK, BLOCK);
	}
	close_queue(q);
	gx_conn_close(c);
}

/* ---- fences ---- */

/* In one place of the peer's for each lane: a put, and behind a fence each a get, a second put, and a
 * get. So the first get has the bytes of the first put, whole. */
static bool fence_round(struct poster *p, struct gx_queue *q, uint64_t token, unsigned round)
{
	const uint64_t len = round % 3 ? 64 : SHARE_B / CORES / 2;
	const uint64_t at = (uint64_t)p->index * SHARE_B + round % CORES * (SHARE_B / CORES);
	struct gx_ep *ep = gx_conn_ep(p->conn, round % CORES);
	struct gx_op ops[] = {{.kind = GX_OP_PUT},
			      {.kind = GX_OP_GET, .flags = GX_OP_FENCE},
			      {.kind = GX_OP_PUT, .flags = GX_OP_FENCE},
			      {.kind = GX_OP_GET, .flags = GX_OP_FENCE},
			      {.kind = GX_OP_FLUSH}};
	unsigned n = sizeof(ops) / sizeof(ops[0]), done = 0;

	for (unsigned i = 0; i < n; i++)
		ops[i].user = i;
	for (unsigned i = 0; i + 1 < n; i++) {
		ops[i].addr = (i % 2 ? in : out) + at + i / 2 * len;
		ops[i].len = len;
		ops[i].token = token;
		ops[i].remote_off = at;
		memset(ops[i].addr, i % 2 ? 0 : (int)(2 * round + i / 2 + 1), len);
	}
	while (done < n) {
		int ret = gx_post(q, ep, ops + done, n - done);

		if (ret < 0) {
			wrong(p, gx_error());
			return false;
		}
		done += (unsigned)ret;
	}
	if (!wait_all(p, q, n))
		return false;
	if (memcmp(in + at, out + at, 2 * len))
		wrong(p, "a get behind a fence has other bytes than the put before it");
	return !atomic_load(&p->wrong);
}

/* The last thread has nothing but flushes to post, and polls. */
static void *fencer_run(void *arg)
{
	struct gx_op flush = {.kind = GX_OP_FLUSH};
	struct gx_region kv = GX_INIT(kv);
	struct poster *p = arg;
	struct gx_queue *q;

	if (gx_conn_region(p->conn, "kv", 0, &kv) || gx_queue_open(p->rig->client, NULL, &q)) {
		wrong(p, gx_error());
		return NULL;
	}
	for (unsigned i = 0; i < p->rounds && !atomic_load(&p->wrong); i++) {
		if (p->index < THREADS - 1)
			fence_round(p, q, kv.token, i);
		else if (gx_post(q, gx_conn_ep(p->conn, i % CORES), &flush, 1) != 1 ||
			 !wait_all(p, q, 1))
			wrong(p, "a flush");
	}
	close_queue(q);
	return NULL;
}

static void fence__threads_share_a_connection(void **state)
{
	threads_run(*state, fencer_run, false, 60);
}

/* ---- notes ---- */

#define NOTES_EACH  600 /* of a stream: of a lane, or striped */
#define NOTES_PLACE 80	/* of them have data in places of their own; more than can be on the way */
#define NOTES_DATA  (KV_B / (CORES + 1) / NOTES_PLACE / 64 * 64) /* more than a chunk */

/* What the server's cores have seen of each stream. */
static struct {
	struct gx_mem *kv;
	_Atomic unsigned got[CORES + 1], wrong;
} notes;

static uint64_t note_place(unsigned stream, unsigned i)
{
	return ((uint64_t)stream * NOTES_PLACE + i % NOTES_PLACE) * NOTES_DATA;
}

static uint32_t note_data(unsigned stream, unsigned i)
{
	return stream == CORES && i % 2 ? NOTES_DATA : 1024;
}

/* 4 bytes: which it is. Behind them, more of them. */
static uint32_t note_make(uint32_t note[], unsigned stream, unsigned i)
{
	uint32_t len = i % 3 == 0 ? 4 : i % 3 == 1 ? 64 : GX_NOTE_MAX;

	for (unsigned k = 0; k < len / 4; k++)
		note[k] = stream << 16 | i;
	return len;
}

static void note_seen(const struct gx_comp *comp)
{
	uint32_t want[GX_NOTE_MAX / 4], which;
	unsigned stream, i;
	const char *data;

	if (comp->kind != GX_COMP_NOTIFY || !comp->note || comp->note_len < 4) {
		notes.wrong++;
		return;
	}
	memcpy(&which, comp->note, 4);
	stream = which >> 16;
	i = which & 0xffff;
	if (stream > CORES || i != notes.got[stream] ||
	    comp->note_len != note_make(want, stream, i) ||
	    memcmp(comp->note, want, comp->note_len)) {
		notes.wrong++;
		return;
	}
	data = (const char *)gx_mem_addr(notes.kv) + note_place(stream, i);
#ifdef __SANITIZE_THREAD__ /* as in submit__lists() */
	if (stream == CORES)
		data = NULL;
#endif
	if (data && (memcmp(data, &which, 4) || memcmp(data + note_data(stream, i) - 4, &which, 4)))
		notes.wrong++;
	notes.got[stream]++;
}

static bool notes_poll(void *arg, uint64_t now_ns)
{
	struct gx_comp comps[8];
	unsigned n = gx_poll(gx_core_queue(arg), comps, 8);

	for (unsigned i = 0; i < n; i++)
		note_seen(&comps[i]);
	return n;
}

/* Return: operations that completed. */
static unsigned notes_done(struct gx_queue *q)
{
	struct gx_comp comp;

	if (!gx_poll(q, &comp, 1))
		return 0;
	assert_int_equal(comp.status, 0);
	return 1;
}

static unsigned note_post(struct poster *p, struct gx_queue *q, unsigned stream, unsigned i,
			  uint64_t token)
{
	unsigned done = 0;
	uint32_t note[GX_NOTE_MAX / 4], which = stream << 16 | i;
	char *data = out + note_place(stream, i);
	struct gx_op op = {.kind = GX_OP_PUT,
			   .flags = GX_OP_NOTE,
			   .addr = data,
			   .len = note_data(stream, i),
			   .token = token,
			   .remote_off = note_place(stream, i),
			   .note = note,
			   .note_len = note_make(note, stream, i)};
	int ret;

	memcpy(data, &which, 4);
	memcpy(data + op.len - 4, &which, 4);
	while (!(ret = stream == CORES ? gx_post_striped(q, p->conn, &op, 1)
				       : gx_post(q, gx_conn_ep(p->conn, stream), &op, 1)))
		done += notes_done(q);
	assert_int_equal(ret, 1);
	return done;
}

/* A child of fork() writes to all that it has of ours, and ends. */
static void fork_one(void)
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (!pid) {
		memset(out, 0x99, sizeof(out));
		memset(in, 0x99, sizeof(in));
		nap();
		_exit(0);
	}
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* Each lane's come in the order of posting, and so do those of the connection as a whole. Half of
 * the latter have parts on several lanes. The process forks meanwhile. */
static void submit__notes(void **state)
{
	struct common_rig *r = *state;
	struct gx_conn *c = connect_one(r);
	struct gx_region kv = GX_INIT(kv);
	struct poster p = {.rig = r, .conn = c};
	unsigned done = 0, all = NOTES_EACH * (CORES + 1);
	struct gx_queue *q;

	memset(&notes, 0, sizeof(notes));
	notes.kv = r->kv;
	for (unsigned i = 0; i < CORES; i++) {
		struct gx_core *core = gx_core(r->server, i);

		gx_core_stop(core);
		assert_int_equal(gx_core_poller(core, notes_poll, core), 0);
		assert_int_equal(gx_core_start(core), 0);
	}
	gx_conn_region(c, "kv", 0, &kv);
	assert_int_equal(gx_queue_open(r->client, NULL, &q), 0);
	for (unsigned i = 0; i < all; i++) {
		done += note_post(&p, q, i % (CORES + 1), i / (CORES + 1), kv.token);
		if (i % NOTES_EACH == NOTES_EACH / 2)
			fork_one();
		while (i - done > NOTES_PLACE / 2)
			done += notes_done(q);
	}
	while (done < all)
		done += notes_done(q);
	for (unsigned i = 0; i <= CORES; i++)
		while (notes.got[i] < NOTES_EACH && !notes.wrong)
			nap();
	assert_int_equal(notes.wrong, 0);
	gx_conn_close(c);
	close_queue(q);
}

/* (No two operations name the same bytes: who writes them last would be a race.) Queues come and go
 * under load; what is under way when one is closed is cancelled. */
static void submit_close__under_way(void **state)
{
	struct common_rig *r = *state;
	struct gx_conn *c = connect_one(r);
	struct gx_region kv = GX_INIT(kv);

	gx_conn_region(c, "kv", 0, &kv);
	for (unsigned round = 0; round < 30; round++) {
		struct gx_op op = {.kind = round & 1 ? GX_OP_PUT : GX_OP_SEND,
				   .addr = out,
				   .len = 300000,
				   .token = kv.token,
				   .flags = GX_OP_LOCAL};
		struct gx_queue *q;

		assert_int_equal(gx_queue_open(r->client, NULL, &q), 0);
		for (unsigned i = 0; i < OPS; i++) {
			op.remote_off = (uint64_t)i * (KV_B / OPS);
			assert_int_equal(gx_post(q, gx_conn_ep(c, i % CORES), &op, 1), 1);
		}
		for (unsigned i = 0; i < round; i++)
			nap();
		close_queue(q);
	}
	gx_conn_close(c);
}

/* The text for Prometheus that a stats socket of the client gives. */
static void stats_get(const struct common_rig *r, char *buf, size_t room)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	size_t len = 0;
	ssize_t n;

	snprintf(un.sun_path + 1, sizeof(un.sun_path) - 1, "gx-test-%d-queues", getpid());
	assert_int_equal(connect(fd, (struct sockaddr *)&un,
				 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
					     strlen(un.sun_path + 1))),
			 0);
	assert_int_equal(send(fd, "GET /", 5, 0), 5);
	while ((n = recv(fd, buf + len, room - 1 - len, 0)) > 0)
		len += (size_t)n;
	close(fd);
	buf[len] = 0;
}

static uint64_t stats_value(const char *text, const char *what)
{
	const char *at = strstr(text, what);

	if (!at)
		fail_msg("no '%s' in:\n%s", what, strstr(text, "gx_msgs_active") ?: text);
	return strtoull(at + strlen(what), NULL, 10);
}

/* Operations by size and time, also of a queue that is closed, and the connection. */
static void stats__operations_and_connections(void **state)
{
	static char text[1 << 20];
	struct common_rig *r = *state;
	struct gx_conn *c = connect_one(r);
	struct gx_region kv = GX_INIT(kv);
	struct gx_queue *q;
	char name[64];

	snprintf(name, sizeof(name), "@gx-test-%d-queues", getpid());
	assert_int_equal(gx_stats_listen(r->client, name), 0);
	gx_conn_region(c, "kv", 0, &kv);
	assert_int_equal(gx_queue_open(r->client, NULL, &q), 0);
	for (unsigned i = 0; i < 64; i++) {
		struct gx_op op = {
			.kind = GX_OP_PUT,
			.addr = out,
			.len = i < 32 ? 64 : 65, /* the last of a bucket, the next one's first */
			.token = kv.token,
			.remote_off = i * 128}; /* two cores write, so not to one place */
		struct gx_comp comp;
		int ret = i % 2 ? gx_post_striped(q, c, &op, 1)
				: gx_post(q, gx_conn_ep(c, 0), &op, 1);

		assert_int_equal(ret, 1);
		while (!gx_poll(q, &comp, 1))
			nap();
		assert_int_equal(comp.status, 0);
	}
	for (unsigned closed = 0; closed < 2; closed++) {
		stats_get(r, text, sizeof(text));
		assert_int_equal(stats_value(text, "gx_operation_bytes_bucket{le=\"64.0\"} "), 32);
		assert_int_equal(stats_value(text, "gx_operation_bytes_bucket{le=\"256.0\"} "), 64);
		assert_int_equal(stats_value(text, "gx_operation_bytes_count "), 64);
		assert_int_equal(stats_value(text, "gx_operation_bytes_sum "), 32 * 64 + 32 * 65);
		assert_int_equal(stats_value(text, "gx_operation_seconds_count "), 4);
		assert_int_equal(stats_value(text, "gx_operation_seconds_bucket{le=\"1.0\"} "), 4);
		assert_non_null(strstr(text, "gx_operation_seconds_bucket{le=\"0.000001\"} "));
		if (!closed)
			close_queue(q);
	}
	snprintf(name, sizeof(name), "\",link=\"%s\",integrity=", link_name);
	assert_non_null(strstr(strstr(text, "\ngx_connection_info{"), name));
	stats_value(text, "\ngx_connection_messages{connection=\"1\"} ");
	if (strcmp(link_name, "packet"))
		assert_in_range(
			stats_value(text, "\ngx_connection_sent_bytes_total{connection=\"1\"} "), 1,
			1 << 20);
	gx_conn_close(c);
}

/* The connection goes while a thread cancels and polls: every operation ends once. */
static void conn_close__under_way(void **state)
{
	struct common_rig *r = *state;

	for (unsigned round = 0; round < 20; round++) {
		struct gx_conn *c = connect_one(r);
		uint64_t until = gx_now() + WAIT_NS;
		struct gx_region kv = GX_INIT(kv);
		struct gx_comp comps[OPS];
		struct gx_queue *q;
		unsigned seen = 0;

		gx_conn_region(c, "kv", 0, &kv);
		assert_int_equal(gx_queue_open(r->client, NULL, &q), 0);
		for (unsigned i = 0; i < OPS; i++) {
			struct gx_op op = {.kind = i % 4 ? GX_OP_PUT : GX_OP_GET,
					   .user = i,
					   .addr = (i % 4 ? out : in) + i * (KV_B / OPS),
					   .len = 300000,
					   .token = kv.token,
					   .remote_off = (uint64_t)i * (KV_B / OPS)};
			int ret = i & 1 ? gx_post_striped(q, c, &op, 1)
					: gx_post(q, gx_conn_ep(c, i / 2 % CORES), &op, 1);

			assert_int_equal(ret, 1);
		}
		for (unsigned i = 0; i < round % 8; i++)
			nap();
		gx_cancel(q, gx_conn_ep(c, 0), 3);
		gx_conn_close(c);
		while (seen < OPS && gx_now() < until) {
			seen += gx_poll(q, comps, OPS);
			nap();
		}
		assert_int_equal(seen, OPS);
		nap();
		assert_int_equal(gx_poll(q, comps, OPS), 0);
		close_queue(q);
	}
}

/* gx_close() ends what is left, in any state. */
static void gx_close__with_queues_left(void **state)
{
	struct common_rig *r = *state;
	struct gx_conn *c = connect_one(r);
	struct gx_region kv = GX_INIT(kv);

	gx_conn_region(c, "kv", 0, &kv);
	for (unsigned k = 0; k < 3; k++) {
		struct gx_op op = {
			.kind = GX_OP_PUT, .addr = out, .len = 300000, .token = kv.token};
		struct gx_queue *q;

		assert_int_equal(gx_queue_open(r->client, NULL, &q), 0);
		for (unsigned i = 0; i < OPS / 4; i++) {
			op.remote_off = (uint64_t)(k * OPS / 4 + i) * (KV_B / OPS);
			assert_int_equal(gx_post_striped(q, c, &op, 1), 1);
		}
	}
}

/* ---- streams of a GPU ---- */

#define GPU_B	    (2u << 20)
#define USER_COPIES 8

/* CUDA as the program of a user calls it. */
static struct {
	void *ctx, *stream;
	unsigned (*retain)(void **ctx, int device);
	unsigned (*release)(int device);
	unsigned (*set_current)(void *ctx);
	unsigned (*create)(void **stream, unsigned flags, int priority);
	unsigned (*destroy)(void *stream);
	unsigned (*copy)(unsigned long long dst, unsigned long long src, size_t len, void *stream);
} cuda;

static void cuda_open(void)
{
	cuda.retain = common_cuda_symbol("cuDevicePrimaryCtxRetain");
	cuda.release = common_cuda_symbol("cuDevicePrimaryCtxRelease_v2");
	cuda.set_current = common_cuda_symbol("cuCtxSetCurrent");
	cuda.create = common_cuda_symbol("cuStreamCreateWithPriority");
	cuda.destroy = common_cuda_symbol("cuStreamDestroy_v2");
	cuda.copy = common_cuda_symbol("cuMemcpyAsync");
	assert_int_equal(cuda.retain(&cuda.ctx, 0), 0);
	assert_int_equal(cuda.set_current(cuda.ctx), 0);
	assert_int_equal(cuda.create(&cuda.stream, 1, 0), 0); /* not blocked by the NULL stream */
}

static void cuda_close(void)
{
	assert_int_equal(cuda.destroy(cuda.stream), 0);
	assert_int_equal(cuda.set_current(NULL), 0);
	assert_int_equal(cuda.release(0), 0);
}

/* Work that takes its time; the last copy is the one that counts. */
static void cuda_work(void *dst, const void *src, const void *other)
{
	for (unsigned i = 0; i < USER_COPIES; i++)
		assert_int_equal(cuda.copy((uintptr_t)dst,
					   (uintptr_t)(i + 1 < USER_COPIES ? other : src), GPU_B,
					   cuda.stream),
				 0);
}

static void pattern(char *at, unsigned seed)
{
	for (unsigned i = 0; i < GPU_B; i++)
		at[i] = (char)(i * 13 + i / 4096 + seed);
}

static void wait_done(struct gx_queue *q, unsigned n)
{
	struct poster p = {.why = ""};

	if (!wait_all(&p, q, n) || atomic_load(&p.wrong))
		fail_msg("%s", p.why);
}

/* Puts send what the stream has left there, gets overwrite only what it has read. */
static void stream_rounds(struct common_rig *r, struct gx_conn *c, struct gx_queue *q,
			  struct gx_mem *mem)
{
	char *kv = gx_mem_addr(r->kv), *host = in, *was = in + 2 * GPU_B, *now = out;
	struct gx_region region = GX_INIT(region);

	gx_conn_region(c, "kv", 0, &region);
	memset(out + GPU_B, 0x77, GPU_B);
	for (unsigned round = 0; round < 10; round++) {
		struct gx_op op = {.kind = GX_OP_PUT,
				   .mem = mem,
				   .len = GPU_B,
				   .token = region.token,
				   .stream = cuda.stream};

		pattern(now, round);
		cuda_work(gx_mem_addr(mem), now, out + GPU_B);
		assert_int_equal(gx_post_striped(q, c, &op, 1), 1);
		cuda_work(host, now, out + GPU_B); /* to memory of the host */
		op.user = 1;
		op.mem = NULL;
		op.addr = host;
		op.remote_off = GPU_B;
		assert_int_equal(gx_post(q, gx_conn_ep(c, 0), &op, 1), 1);
		wait_done(q, 2);
		assert_memory_equal(kv, now, GPU_B);
		assert_memory_equal(kv + GPU_B, now, GPU_B);
		pattern(kv, round + 100);
		cuda_work(was, gx_mem_addr(mem), out + GPU_B);
		op = (struct gx_op){.kind = GX_OP_GET,
				    .mem = mem,
				    .len = GPU_B,
				    .token = region.token,
				    .stream = cuda.stream};
		assert_int_equal(gx_post(q, gx_conn_ep(c, round % CORES), &op, 1), 1);
		wait_done(q, 1);
		assert_memory_equal(was, now, GPU_B);
		assert_int_equal(gx_mem_copy_out(mem, 0, host, GPU_B), 0);
		assert_memory_equal(host, kv, GPU_B);
	}
}

static void stream__of_a_gpu(void **state)
{
	struct common_rig *r = *state;
	struct gx_queue *q;
	struct gx_mem *mem;
	struct gx_conn *c;

	for (unsigned i = 0; i < CORES; i++)
		gx_core_stop(gx_core(r->client, i));
	if (gx_mem_alloc(r->client, GX_MEM_CUDA, 0, GPU_B, &mem)) {
		printf("skipped: %s\n", gx_error());
		skip();
	}
	for (unsigned i = 0; i < CORES; i++)
		assert_int_equal(gx_core_start(gx_core(r->client, i)), 0);
	cuda_open();
	assert_int_equal(gx_queue_open(r->client, NULL, &q), 0);
	c = connect_one(r);
	stream_rounds(r, c, q, mem);
	gx_conn_close(c);
	close_queue(q);
	gx_mem_free(mem);
	cuda_close();
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(submit__threads_share_a_connection, setup,
						teardown),
		cmocka_unit_test_setup_teardown(submit_striped__threads_share_a_connection, setup,
						teardown),
		cmocka_unit_test_setup_teardown(fence__threads_share_a_connection, setup, teardown),
		cmocka_unit_test_setup_teardown(submit__lists, setup, teardown),
		cmocka_unit_test_setup_teardown(submit__notes, setup, teardown),
		cmocka_unit_test_setup_teardown(submit_close__under_way, setup, teardown),
		cmocka_unit_test_setup_teardown(stats__operations_and_connections, setup, teardown),
		cmocka_unit_test_setup_teardown(conn_close__under_way, setup, teardown),
		cmocka_unit_test_setup_teardown(gx_close__with_queues_left, setup, teardown),
		cmocka_unit_test_setup_teardown(stream__of_a_gpu, setup, teardown),
	};

	if (argc > 1)
		link_name = argv[1];
	if (argc > 2)
		device = argv[2];
	return cmocka_run_group_tests_name(link_name, tests, NULL, NULL);
}
