/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several processes over one port (the first argument: shm, udp, ..., or a link: local, tcp):
 * transfers of all sizes, many connections and cores, and what must not follow from a process that
 * is killed, stopped, hostile, or gone. The test's own process is the survivor; the others are this
 * program again, in a role. GX_TEST_FULL=1 does more rounds, GX_TEST_SEED changes the random
 * instants.
 */
#include "proc/proc_node.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/core.h"

#include <cmocka.h>

#define MIB	   (1ull << 20)
#define ROOM	   (8 * MIB) /* of the largest transfer */
#define ZONE_B	   (4 * MIB) /* of the region, for each client of a test */
#define POISON	   0x6b
#define VICTIM_OPS 16
#define WAIT_MS	   30000

extern char **environ;

#ifdef __SANITIZE_ADDRESS__
static const bool is_asan = true;
#else
static const bool is_asan;
#endif
static const uint64_t sizes[] = {0, 1, 15, 4095, 4097, 1000003, ROOM};
static const char *port;
static bool is_full;
static uint64_t seed = 1;

/* ---- Roles ---- */

/* key=value arguments of a role. */
struct role {
	char port[64];
	unsigned long addr, seed, off, cores, slots, threads, timeout_ms, rounds, echo;
};

static unsigned long role_arg(int argc, char *argv[], const char *key, unsigned long unset)
{
	size_t len = strlen(key);

	for (int i = 2; i < argc; i++)
		if (!strncmp(argv[i], key, len) && argv[i][len] == '=')
			return strtoul(argv[i] + len + 1, NULL, 10);
	return unset;
}

static void role_parse(int argc, char *argv[], struct role *r)
{
	*r = (struct role){.addr = role_arg(argc, argv, "addr", 0),
			   .seed = role_arg(argc, argv, "seed", 1),
			   .off = role_arg(argc, argv, "off", 0),
			   .cores = role_arg(argc, argv, "cores", 1),
			   .slots = role_arg(argc, argv, "slots", 0),
			   .threads = role_arg(argc, argv, "threads", 0),
			   .timeout_ms = role_arg(argc, argv, "timeout_ms", 0),
			   .rounds = role_arg(argc, argv, "rounds", 0),
			   .echo = role_arg(argc, argv, "echo", 0)};
	for (int i = 2; i < argc; i++)
		if (!strncmp(argv[i], "port=", 5))
			snprintf(r->port, sizeof(r->port), "%s", argv[i] + 5);
}

static void role_open(struct node *n, const struct role *r, bool server)
{
	struct node_cfg cfg = {.port = r->port,
			       .server = server,
			       .threads = r->threads && server,
			       .nr_cores = r->cores,
			       .slots = r->slots,
			       .timeout_ns = r->timeout_ms * 1000000ull,
			       .echo_b = r->echo};

	node_open(n, &cfg);
}

/* ---- Hostility ---- */

struct seg {
	char *base;
	size_t len;
};

/* Segments of the port shm that are mapped here, of which we hold no descriptor: the peer's. With
 * @own: those we hold. */
static unsigned segs_find(struct seg segs[], unsigned max, bool own)
{
	FILE *f = fopen("/proc/self/maps", "re");
	unsigned nr = 0;
	char line[512];

	CHECK(f);
	while (nr < max && fgets(line, sizeof(line), f)) {
		unsigned long from, to, inode;
		bool held = false;

		if ((!strstr(line, "memfd:gx-shm") && !strstr(line, "memfd:gx-rings")) ||
		    sscanf(line, "%lx-%lx %*s %*s %*s %lu", &from, &to, &inode) != 3)
			continue;
		for (int fd = 0; fd < 256; fd++) {
			struct stat st;

			held |= !fstat(fd, &st) && st.st_ino == inode;
		}
		if (held == own)
			segs[nr++] = (struct seg){(char *)from, to - from};
	}
	fclose(f);
	return nr;
}

/* Mostly the rings in front, where the numbers are; sizes and places at random, and single bits.
 * Some go slowly, so that much is still in order when one thing is not. */
static void seg_scribble(const struct seg *s, uint64_t *state, bool slow)
{
	uint64_t r = rnd(state);
	size_t reach = r & 3 ? GX_MIN(s->len, (size_t)512 << 10) : s->len;
	size_t at = (r >> 8) % reach, len = GX_MIN((r >> 2 & 63) + 1, s->len - at);

	if (slow)
		usleep(20);
	if (slow || r >> 60 < 8) {
		s->base[at] ^= 1 << (r >> 56 & 7);
		return;
	}
	for (size_t i = 0; i < len; i++)
		s->base[at + i] = (char)rnd(state);
}

/* A thread that writes into segments. Its process may well die of it. */
struct scribbler {
	struct seg segs[2];
	unsigned nr;
	uint64_t state;
	bool slow;
};

static void *scribble_run(void *arg)
{
	struct scribbler *s = arg;

	for (;;)
		seg_scribble(&s->segs[rnd(&s->state) % s->nr], &s->state, s->slow);
	return NULL;
}

/* Never returns to order: the process is to be killed. With an odd seed our own segment is
 * scribbled over as well. */
static void scribble_start(uint64_t from, bool peers)
{
	static struct scribbler s;
	const struct rlimit none = {0, 0};
	pthread_t thread;

	s = (struct scribbler){.state = from, .slow = from & 2};
	if (peers)
		s.nr = segs_find(s.segs, 1, false);
	CHECK(s.nr == peers, "the peer's segment is not found");
	if (!peers || from & 1)
		s.nr += segs_find(s.segs + s.nr, 1, true);
	CHECK(s.nr, "our segment is not found");
	setrlimit(RLIMIT_CORE, &none);
	CHECK(freopen("/dev/null", "w", stderr));
	CHECK(!pthread_create(&thread, NULL, scribble_run, &s));
}

/* ---- Roles that serve ---- */

/* Exercises the last client's region, as a client would. */
static void server_work(struct node *n)
{
	struct exercise x;

	exercise_init(&x, n->last, 0, 0, ROOM, 77);
	exercise_sizes(n, &x, 1, sizes, GX_ARRAY_SIZE(sizes));
	exercise_fini(&x);
	child_say(CHILD_FD, "worked");
}

static void server_stat(struct node *n)
{
	child_say(CHILD_FD, "stat %u %llu %llu", n->nr_notify,
		  (unsigned long long)node_stat(n, "bufs_held_now"),
		  (unsigned long long)node_stat(n, "msgs_active_now"));
}

/* Serves until it is told to quit. */
static int role_server(const struct role *r)
{
	char text[CHILD_TEXT_MAX];
	struct node n;

	role_open(&n, r, true);
	child_say(CHILD_FD, "port %u", node_listen(&n));
	for (;;) {
		for (unsigned i = 0; i < 16; i++)
			node_turn(&n);
		if (!child_heard(CHILD_FD, text))
			continue;
		if (!strcmp(text, "quit"))
			break;
		if (!strncmp(text, "scribble ", 9))
			scribble_start(strtoull(text + 9, NULL, 10), false);
		else if (!strcmp(text, "work"))
			server_work(&n);
		else
			server_stat(&n);
	}
	CHECK(NODE_UNTIL(&n, !n.nr_live && !n.nr_echoes, WAIT_MS),
	      "%u connections, %u echoes do not end", n.nr_live, n.nr_echoes);
	node_close(&n);
	return 0;
}

/* Verified puts and gets until it is told to stop, or @rounds times. */
static int role_verify(const struct role *r)
{
	char text[CHILD_TEXT_MAX];
	struct exercise x;
	struct gx_conn *c;
	struct node n;

	role_open(&n, r, false);
	c = node_connect(&n, r->addr, 0, NULL);
	child_say(CHILD_FD, "up");
	exercise_init(&x, c, 0, r->off, 256 << 10, r->seed);
	for (unsigned i = 0; !r->rounds || i < r->rounds; i++) {
		exercise_random(&n, &x, 0, 1);
		if (child_heard(CHILD_FD, text))
			break;
	}
	exercise_fini(&x);
	gx_conn_close(c);
	node_run(&n, 20);
	node_close(&n);
	child_say(CHILD_FD, "ok");
	return 0;
}

struct lane_thread {
	struct node *n;
	struct exercise x;
	unsigned lane, rounds;
	pthread_t thread;
};

static void *lane_run(void *arg)
{
	struct lane_thread *t = arg;

	exercise_random(t->n, &t->x, t->lane, t->rounds);
	return NULL;
}

/* A thread for each lane and core. */
static int role_lanes(const struct role *r)
{
	struct lane_thread t[NODE_CORES_MAX];
	struct gx_conn *c;
	struct node n;

	role_open(&n, r, false);
	c = node_connect(&n, r->addr, r->cores, NULL);
	for (unsigned i = 0; i < r->cores; i++) {
		t[i] = (struct lane_thread){.n = &n, .lane = i, .rounds = r->rounds};
		exercise_init(&t[i].x, c, i, i * ZONE_B, MIB, r->seed + i);
		CHECK(gx_ep_core(t[i].x.ep) == n.core[i]);
		CHECK(!pthread_create(&t[i].thread, NULL, lane_run, &t[i]));
	}
	for (unsigned i = 0; i < r->cores; i++) {
		pthread_join(t[i].thread, NULL);
		exercise_fini(&t[i].x);
	}
	gx_conn_close(c);
	node_close(&n);
	child_say(CHILD_FD, "ok");
	return 0;
}

/* Work that goes on until the connection ends: each operation is posted again when it is done. */
struct victim {
	struct batch batch;
	struct gx_ep *ep;
	struct gx_region kv;
	uint64_t off, seed;
	char *buf;
};

/* Puts, some with notes of all lengths, some of them lists of two parts; gets. */
static void victim_post(struct node *n, struct victim *v)
{
	struct gx_op op = {0};
	struct gx_seg segs[2];
	uint64_t r = rnd(&v->seed);
	unsigned slot = v->batch.nr_out % VICTIM_OPS;

	op.kind = r & 3 ? GX_OP_PUT : GX_OP_GET;
	op.len = (r >> 8) % (ZONE_B / 2 / VICTIM_OPS) >> (r >> 60);
	op_into(n, &op, v->buf, ZONE_B / 2, v->buf + slot * (ZONE_B / 2 / VICTIM_OPS));
	op.token = v->kv.token;
	op.remote_off = v->off + ZONE_B / 2 + slot * (ZONE_B / 2 / VICTIM_OPS);
	if (op.kind == GX_OP_PUT && r & 4) {
		op.flags = GX_OP_NOTE;
		op.note = v->buf;
		op.note_len = (r >> 40) % (GX_NOTE_MAX + 1) >> (r >> 61);
	}
	if (op.kind == GX_OP_PUT && r & 8 && !op.mem && op.len > 1) {
		for (unsigned i = 0; i < 2; i++)
			segs[i] =
				(struct gx_seg){.off = (uintptr_t)op.addr + (1 - i) * (op.len / 2),
						.token = op.token,
						.remote_off = op.remote_off + i * (op.len / 2),
						.len = op.len / 2};
		op.segs = segs;
		op.nr_segs = 2;
	}
	op.user = (uintptr_t)&v->batch;
	v->batch.nr_out++;
	if (common_post(v->ep, &op, 1) != 1) /* a peer that scribbles may give back no note */
		v->batch.nr_out--;
}

static void victim_init(struct victim *v, struct gx_conn *c, uint64_t off, uint64_t from)
{
	*v = (struct victim){
		.ep = gx_conn_ep(c, 0), .kv = GX_INIT(v->kv), .off = off, .seed = from};
	batch_init(&v->batch);
	CHECK(v->ep && !gx_conn_region(c, "kv", 0, &v->kv), "%s", gx_error());
	v->buf = malloc(ZONE_B / 2);
	CHECK(v->buf);
	memset(v->buf, 0x11, ZONE_B / 2);
}

static int victim_put(const struct victim *v)
{
	struct gx_op op = {0};

	op.kind = GX_OP_PUT;
	op.addr = v->buf;
	op.len = 64;
	op.token = v->kv.token;
	return common_post(v->ep, &op, 1);
}

/* A receive that nobody will ever serve. */
static void victim_recv(struct node *n, struct victim *v)
{
	struct gx_op op = {0};

	op.kind = GX_OP_RECV;
	op_into(n, &op, v->buf, ZONE_B / 2, v->buf);
	op.len = 64;
	op.tag = 1ull << 50;
	node_post(n, v->ep, &op, &v->batch);
}

static void victim_turn(struct node *n, struct victim *v)
{
	if (!v->batch.nr_failed && v->batch.nr_out < VICTIM_OPS)
		victim_post(n, v);
	node_turn(n);
}

/* One put that the other side checks, then work until the connection ends; every operation must end
 * then. */
static int role_victim(const struct role *r)
{
	struct victim v;
	struct gx_conn *c;
	struct gx_op op = {0};
	struct node n;

	role_open(&n, r, false);
	c = node_connect(&n, r->addr, 0, NULL);
	victim_init(&v, c, r->off, r->seed);
	v.ep = gx_conn_ep(c, r->seed % r->cores);
	CHECK(v.ep);
	pattern_fill(v.buf, 100003, r->seed);
	op.kind = GX_OP_PUT;
	op.addr = v.buf;
	op.len = 100003;
	op.token = v.kv.token;
	op.remote_off = r->off;
	CHECK(!node_post(&n, v.ep, &op, &v.batch));
	node_wait(&n, &v.batch);
	child_say(CHILD_FD, "put");
	victim_recv(&n, &v);
	while (!v.batch.nr_failed)
		victim_turn(&n, &v);
	CHECK(NODE_UNTIL(&n, !v.batch.nr_out, WAIT_MS), "%u operations do not end", v.batch.nr_out);
	CHECK(common_post(v.ep, &op, 1) == -ENOTCONN);
	child_say(CHILD_FD, "failed %u %d", v.batch.nr_failed, v.batch.err);
	block_free(v.buf);
	gx_conn_close(c);
	node_close(&n);
	return 0;
}

/* Works on region "bad" while it scribbles. */
static int role_hostile(const struct role *r)
{
	struct victim v;
	struct gx_conn *c;
	struct node n;

	role_open(&n, r, false);
	c = node_connect(&n, r->addr, 0, NULL);
	victim_init(&v, c, 0, r->seed);
	CHECK(!gx_conn_region(c, "bad", 0, &v.kv), "%s", gx_error());
	child_say(CHILD_FD, "up");
	scribble_start(r->seed, true);
	for (;;) {
		struct gx_op op = {0};
		uint64_t x = rnd(&v.seed);

		if (v.batch.nr_out < VICTIM_OPS) {
			op.kind = x & 1 ? GX_OP_PUT : GX_OP_GET;
			op.len = (x >> 8) % (NODE_BAD_B / 2) >> (x >> 61);
			op.addr = v.buf;
			op.token = v.kv.token;
			op.remote_off = (x >> 32) % (NODE_BAD_B / 2);
			if (node_post(&n, v.ep, &op, &v.batch))
				break;
		}
		node_turn(&n);
	}
	for (;;) /* the connection has ended, the segments are still mapped */
		pause();
}

/* ---- The test's own side ---- */

static unsigned rounds(unsigned few, unsigned full)
{
	return is_full ? full : few;
}

static bool is_shm(void)
{
	return !strcmp(port, "shm") || is_local(port) || is_bounce(port);
}

static void own_open(struct node *n, bool server, uint64_t timeout_ms)
{
	struct node_cfg cfg = {.port = port, .server = server, .timeout_ns = timeout_ms * 1000000};

	node_open(n, &cfg);
}

/* Returns the port it listens at. */
static unsigned server_start(struct node *n, struct child *c, const char *more)
{
	child_start(c, "@server", "port=%s %s", port, more);
	return atoi(child_hear(n, c, "port ", WAIT_MS));
}

static void server_quit(struct node *n, struct child *c)
{
	child_say(c->fd, "quit");
	child_end(n, c, WAIT_MS);
}

/* It stands for those that have done nothing: whatever else this machine does, it waits. */
static void verify_start(struct node *n, struct child *c, unsigned addr, unsigned zone, unsigned nr)
{
	child_start(c, "@verify", "port=%s addr=%u off=%llu seed=%u rounds=%u timeout_ms=%u", port,
		    addr, zone * ZONE_B, 1000 * zone, nr, WAIT_MS);
	child_hear(n, c, "up", WAIT_MS);
}

static void verify_wait(struct node *n, struct child *c)
{
	child_hear(n, c, "ok", WAIT_MS);
	child_end(n, c, WAIT_MS);
}

static void verify_stop(struct node *n, struct child *c)
{
	child_say(c->fd, "stop");
	verify_wait(n, c);
}

/* What we hold when no connection is left is the measure. */
static struct snap rest_take(struct node *n)
{
	CHECK(NODE_UNTIL(n, !n->nr_live && !node_conns(n), WAIT_MS),
	      "%u connections are up, %u exist", n->nr_live, node_conns(n));
	node_run(n, 50);
	return snap_take();
}

/* A first client, so that what is made once is made. */
static void own_settle(struct node *n, unsigned addr, struct snap *base)
{
	struct child c;

	verify_start(n, &c, addr, 0, 3);
	verify_wait(n, &c);
	*base = rest_take(n);
	CHECK(!base->segs, "a segment of a client that has left is still mapped");
}

static void rest_check(struct node *n, const struct snap *base)
{
	struct snap now;

	if (NODE_UNTIL(n, node_at_rest(n, base), WAIT_MS))
		return;
	now = snap_take();
	CHECK(false,
	      "not at rest: %llu buffers, %llu messages, %u descriptors (%u before), %u segments "
	      "(%u)",
	      (unsigned long long)node_stat(n, "bufs_held_now"),
	      (unsigned long long)node_stat(n, "msgs_active_now"), now.fds, base->fds, now.segs,
	      base->segs);
}

/* Connect, put, close, again and again. */
static int role_churn(const struct role *r)
{
	struct exercise x;
	struct snap base;
	struct node n;

	role_open(&n, r, false);
	for (unsigned i = 0; i < r->rounds; i++) {
		struct gx_conn *c = node_connect(&n, r->addr, 0, NULL);

		exercise_init(&x, c, 0, r->off, 64 << 10, r->seed + i);
		exercise_random(&n, &x, 0, 1);
		exercise_fini(&x);
		gx_conn_close(c);
		if (i == 4)
			base = rest_take(&n);
		if (i % 50 == 4)
			rest_check(&n, &base);
	}
	node_close(&n);
	child_say(CHILD_FD, "ok");
	return 0;
}

/* ---- Transfers ---- */

/* Both sides at once, each into the other's region; and every size echoed. */
static void transfer__sizes(void **state)
{
	struct exercise x;
	struct child server;
	struct gx_conn *c;
	unsigned nr, bufs, msgs;
	struct node n;
	uint64_t until;

	own_open(&n, false, 0);
	c = node_connect(&n, server_start(&n, &server, "echo=8388608"), 0, NULL);
	exercise_init(&x, c, 0, 0, ROOM, seed);
	x.echo = true;
	exercise_sizes(&n, &x, 1, sizes, GX_ARRAY_SIZE(sizes));
	child_say(server.fd, "work");
	exercise_sizes(&n, &x, 1, sizes, GX_ARRAY_SIZE(sizes));
	child_hear(&n, &server, "worked", WAIT_MS);
	CHECK(n.nr_notify == GX_ARRAY_SIZE(sizes), "%u puts of the server were notified",
	      n.nr_notify);
	until = gx_now() + WAIT_MS * 1000000ull;
	do { /* its last acknowledgements may still be on their way */
		node_run(&n, 20);
		child_say(server.fd, "stat");
		CHECK(sscanf(child_hear(&n, &server, "stat ", WAIT_MS), "%u %u %u", &nr, &bufs,
			     &msgs) == 3);
	} while ((nr < x.nr_puts || bufs || msgs > 1) && gx_now() < until);
	CHECK(nr == x.nr_puts, "%u of %u puts were notified", nr, x.nr_puts);
	CHECK(bufs == 0 && msgs <= 1, "the server holds %u buffers, %u messages", bufs, msgs);
	exercise_fini(&x);
	gx_conn_close(c);
	server_quit(&n, &server);
	node_close(&n);
}

#define MANY 64

static void transfer__64_connections(void **state)
{
	static struct exercise x[MANY];
	struct gx_conn *c[MANY];
	struct child server;
	struct node n;
	struct node_cfg cfg = {.port = port, .slots = 128};
	unsigned addr;

	node_open(&n, &cfg);
	addr = server_start(&n, &server, "echo=100003 slots=128");
	for (unsigned i = 0; i < MANY; i++) {
		c[i] = node_connect(&n, addr, 0, NULL);
		exercise_init(&x[i], c[i], 0, i * (NODE_KV_B / MANY), 100003, seed + i * 1000);
		x[i].echo = true;
	}
	exercise_sizes(&n, x, MANY, (uint64_t[]){0, 1, 15, 4095, 4097, 100003}, 6);
	for (unsigned i = 0; i < MANY; i++) {
		exercise_fini(&x[i]);
		gx_conn_close(c[i]);
	}
	node_run(&n, 20);
	server_quit(&n, &server);
	node_close(&n);
}

/* Two cores at each end, on threads of gx's and of the program's. */
static void transfer__two_cores(void **state)
{
	struct child server, client;
	unsigned addr = server_start(NULL, &server, "cores=2 threads=1");

	child_start(&client, "@lanes", "port=%s addr=%u cores=2 seed=5 rounds=%u", port, addr,
		    rounds(40, 1000));
	verify_wait(NULL, &client);
	server_quit(NULL, &server);
}

/* ---- Killed ---- */

/* @nr clients one after the other, each on @cores lanes, killed while they put (some perhaps while
 * they connect). */
static void clients_killed(struct node *n, unsigned nr, unsigned cores)
{
	unsigned addr = node_listen(n);
	struct snap base;

	own_settle(n, addr, &base);
	for (unsigned i = 0; i < nr; i++) {
		uint64_t from = rnd(&seed) >> 1, off = (i & 1) * ZONE_B;
		struct child c;

		child_start(&c, "@victim", "port=%s addr=%u off=%llu seed=%llu cores=%u", port,
			    addr, (unsigned long long)off, (unsigned long long)from, cores);
		if (i % 5 == 4) {
			node_run(n, rnd(&seed) % 150);
		} else {
			child_hear(n, &c, "put", WAIT_MS);
			CHECK(pattern_is(n->base + off, 100003, from), "client %u: wrong bytes", i);
			node_run(n, rnd(&seed) % 20);
		}
		child_kill(&c);
		rest_check(n, &base);
	}
	own_settle(n, addr, &base);
}

static void client_killed__in_a_put(void **state)
{
	struct node n;

	own_open(&n, true, 0);
	clients_killed(&n, is_shm() ? rounds(20, 200) : rounds(6, 60), 1);
	CHECK(!node_ctl_stat(&n, GX_STAT_QUARANTINED_B), "the dead are quarantined");
	node_close(&n);
}

/* The server's two cores run on threads of gx's. */
static void client_killed__on_two_lanes(void **state)
{
	struct node_cfg cfg = {.port = port, .server = true, .threads = true, .nr_cores = 2};
	struct node n;

	node_open(&n, &cfg);
	clients_killed(&n, rounds(5, 60), 2);
	node_close(&n);
}

/* Puts, gets and receives under way, all kept going until the first of them fails. */
static void victim_until_failed(struct node *n, struct victim *v)
{
	uint64_t until = gx_now() + 20000000000ull;

	while (!v->batch.nr_failed && gx_now() < until)
		victim_turn(n, v);
	CHECK(v->batch.nr_failed, "no operation has failed");
	CHECK(NODE_UNTIL(n, !v->batch.nr_out, WAIT_MS), "%u operations do not end",
	      v->batch.nr_out);
}

static void verify_here(struct node *n, unsigned addr)
{
	struct gx_conn *c = node_connect(n, addr, 0, NULL);
	struct exercise x;

	exercise_init(&x, c, 0, 0, 256 << 10, rnd(&seed) >> 1);
	exercise_random(n, &x, 0, 5);
	exercise_fini(&x);
	gx_conn_close(c);
}

static void server_killed__in_put_get_recv(void **state)
{
	struct child server;
	struct snap base = {0};
	struct node n;
	unsigned addr;

	own_open(&n, false, 0);
	for (unsigned i = 0; i < rounds(4, 50); i++) {
		struct gx_conn *c;
		struct victim v;

		addr = server_start(&n, &server, "");
		c = node_connect(&n, addr, 0, NULL);
		verify_here(&n, addr);
		victim_init(&v, c, 0, seed);
		victim_recv(&n, &v);
		for (uint64_t end = gx_now() + rnd(&seed) % 20000000; gx_now() < end;)
			victim_turn(&n, &v);
		child_kill(&server);
		victim_until_failed(&n, &v);
		CHECK(v.batch.err == -ECONNRESET, "%s", strerror(-v.batch.err));
		/* Its memory does not wait for gx_conn_close(); who posts now touches none of it.
		 */
		CHECK(NODE_UNTIL(&n, !node_ctl_stat(&n, GX_STAT_MAPS), WAIT_MS), "%u maps stay",
		      (unsigned)node_ctl_stat(&n, GX_STAT_MAPS));
		CHECK(victim_put(&v) == -ENOTCONN, "a put to the dead is taken");
		block_free(v.buf);
		gx_conn_close(c);
		if (!i) {
			base = rest_take(&n);
			CHECK(!base.segs, "segments of connections that have ended are mapped");
		}
		rest_check(&n, &base);
	}
	node_close(&n);
}

#define QUEUE_OPS 16

/* Take what has ended. Return: how many; the first error is in *@err. */
static unsigned queue_take(struct gx_queue *q, int *err)
{
	struct gx_comp comps[QUEUE_OPS];
	unsigned n = gx_poll(q, comps, QUEUE_OPS);

	for (unsigned i = 0; i < n; i++)
		if (comps[i].status && !*err)
			*err = comps[i].status;
	return n;
}

static void queue_wait(struct node *n, struct gx_queue *q, unsigned nr, int *err)
{
	unsigned seen = 0;

	CHECK(NODE_UNTIL(n, (seen += queue_take(q, err)) >= nr, WAIT_MS), "%u of %u ended", seen,
	      nr);
	CHECK(seen == nr);
}

/* There and back over all lanes, from this thread, which turns no core. */
static void queue_verify(struct node *n, struct gx_queue *q, struct gx_conn *c, char *buf)
{
	struct gx_region kv = GX_INIT(kv);
	struct gx_op op = {.kind = GX_OP_PUT, .addr = buf, .len = 3 * MIB + 5};
	int err = 0;

	CHECK(!gx_conn_region(c, "kv", 0, &kv));
	op.token = kv.token;
	pattern_fill(buf, op.len, seed);
	CHECK(gx_post_striped(q, c, &op, 1) == 1, "%s", gx_error());
	queue_wait(n, q, 1, &err);
	op.kind = GX_OP_GET;
	op_into(n, &op, buf, 8 * MIB, buf + 4 * MIB);
	CHECK(gx_post_striped(q, c, &op, 1) == 1, "%s", gx_error());
	queue_wait(n, q, 1, &err);
	CHECK(!err && pattern_is(buf + 4 * MIB, op.len, seed), "wrong bytes, or %s",
	      strerror(-err));
}

/* Keeps operations under way, striped and not, until one fails or @until. Return: how many are out.
 */
static unsigned queue_load(struct node *n, struct gx_queue *q, struct gx_conn *c, char *buf,
			   uint64_t until, int *err)
{
	struct gx_region kv = GX_INIT(kv);
	unsigned out = 0;

	CHECK(!gx_conn_region(c, "kv", 0, &kv));
	for (unsigned i = 0; gx_now() < until && !*err; i++) {
		struct gx_op op = {
			.kind = i % 3 ? GX_OP_PUT : GX_OP_GET, .len = 2 * MIB, .token = kv.token};
		struct gx_ep *ep = gx_conn_ep(c, i / 2 % 2);
		int ret = 0;

		op_into(n, &op, buf, 8 * MIB, i % 3 ? buf : buf + 4 * MIB);
		out -= queue_take(q, err);
		if (out < QUEUE_OPS && i % 2)
			ret = gx_post_striped(q, c, &op, 1);
		else if (out < QUEUE_OPS && ep)
			ret = gx_post(q, ep, &op, 1);
		CHECK(ret >= 0 || ret == -ENOTCONN, "%s", gx_error());
		out += ret > 0;
	}
	return out;
}

/* What a thread has submitted when the server is killed ends, once, and the queue can be used on.
 */
static void server_killed__under_a_queue(void **state)
{
	struct node_cfg cfg = {.port = port, .threads = true, .nr_cores = 2};
	char *buf = malloc(8 * MIB);
	struct gx_queue *q;
	struct child server;
	struct node n;

	node_open(&n, &cfg);
	CHECK(!gx_queue_open(n.gx, NULL, &q), "%s", gx_error());
	for (unsigned i = 0; i < rounds(4, 50); i++) {
		unsigned addr = server_start(&n, &server, "cores=2 threads=1");
		struct gx_conn *c = node_connect(&n, addr, 2, NULL);
		int err = 0;
		unsigned out;

		queue_verify(&n, q, c, buf);
		out = queue_load(&n, q, c, buf, gx_now() + rnd(&seed) % 20000000, &err);
		CHECK(!err, "%s", strerror(-err));
		child_kill(&server);
		if (!out) /* so that there is one that fails */
			out = queue_load(&n, q, c, buf, gx_now() + 20 * 1000000000ull, &err);
		queue_wait(&n, q, out, &err);
		CHECK(err == -ECONNRESET || err == -ENOTCONN || err == 0, "%s", strerror(-err));
		gx_conn_close(c);
		CHECK(NODE_UNTIL(&n, !node_conns(&n), WAIT_MS), "the connection does not go");
	}
	CHECK(NODE_UNTIL(&n, !gx_queue_close(q), WAIT_MS), "%s", gx_error());
	block_free(buf);
	node_close(&n);
}

/* ---- Stopped ---- */

/* Bytes that are not poison any more. */
static uint64_t written(const char *p, uint64_t len)
{
	uint64_t n = 0;

	for (uint64_t i = 0; i < len; i++)
		n += p[i] != (char)POISON;
	return n;
}

/* What a client that goes on may still write: over the local link, the rest of a slice. */
#define STOPPED_B (is_local(port) ? 256u << 10 : 0)

static uint64_t quarantined(const struct node *n)
{
	return node_ctl_stat(n, GX_STAT_QUARANTINED_B);
}

/* While a stopped client lives: what it may have mapped of ours and write to. */
#define QUARANTINE_B (is_local(port) ? NODE_KV_B + NODE_BAD_B : 0)

/* A client stops longer than its peer time-out and goes on: nobody else's bytes change, and it gets
 * errors. */
static void client_stopped__and_continued(void **state)
{
	/* A receive that is posted here makes the client's silence matter at every instant. */
	struct node_cfg cfg = {.port = port, .server = true, .echo_b = 64};
	struct child victim, other, later;
	struct snap base;
	struct node n;
	unsigned addr;

	node_open(&n, &cfg);
	addr = node_listen(&n);
	own_settle(&n, addr, &base);
	verify_start(&n, &other, addr, 2, 0);
	for (unsigned i = 0; i < rounds(2, 20); i++) {
		child_start(&victim, "@victim", "port=%s addr=%u off=0 seed=%u timeout_ms=1000",
			    port, addr, i);
		child_hear(&n, &victim, "put", WAIT_MS);
		NODE_UNTIL(&n, false, rnd(&seed) % 20);
		kill(victim.pid, SIGSTOP);
		n.awaited = (uint32_t)victim.pid; /* another one may end late */
		CHECK(NODE_UNTIL(&n, !n.awaited, WAIT_MS), "the stopped client is not given up");
		CHECK(NODE_UNTIL(&n, quarantined(&n) == QUARANTINE_B, WAIT_MS), "%llu quarantined",
		      (unsigned long long)quarantined(&n));
		verify_start(&n, &later, addr, 1, 20);
		verify_wait(&n, &later);
		memset(n.base, POISON, ZONE_B);
		verify_start(&n, &later, addr, 1, 40);
		kill(victim.pid, SIGCONT);
		child_hear(&n, &victim, "failed ", WAIT_MS);
		child_end(&n, &victim, WAIT_MS);
		verify_wait(&n, &later);
		CHECK(written(n.base, ZONE_B) <= STOPPED_B,
		      "a client that was given up has written");
		CHECK(NODE_UNTIL(&n, !quarantined(&n), WAIT_MS), "%llu quarantined",
		      (unsigned long long)quarantined(&n));
	}
	verify_stop(&n, &other);
	rest_check(&n, &base);
	node_close(&n);
}

/* Stopped, given up, freed under it, and killed: others go on meanwhile, and afterwards. */
static void client_stopped__and_killed(void **state)
{
	struct node_cfg cfg = {.port = port, .server = true, .echo_b = 64};
	struct child victim, later;
	struct node n;
	unsigned addr;

	node_open(&n, &cfg);
	addr = node_listen(&n);
	for (unsigned i = 0; i < rounds(1, 10); i++) {
		child_start(&victim, "@victim", "port=%s addr=%u off=0 seed=%u timeout_ms=1000",
			    port, addr, i);
		child_hear(&n, &victim, "put", WAIT_MS);
		NODE_UNTIL(&n, false, rnd(&seed) % 20);
		kill(victim.pid, SIGSTOP);
		CHECK(NODE_UNTIL(&n, quarantined(&n) == QUARANTINE_B, WAIT_MS), "%llu quarantined",
		      (unsigned long long)quarantined(&n));
		if (n.bad) {
			gx_mem_free(n.bad); /* nothing keeps it */
			n.bad = NULL;
			CHECK(NODE_UNTIL(&n, quarantined(&n) == (QUARANTINE_B ? NODE_KV_B : 0),
					 WAIT_MS));
		}
		verify_start(&n, &later, addr, 1, 20);
		verify_wait(&n, &later);
		child_kill(&victim);
		CHECK(NODE_UNTIL(&n, !quarantined(&n), WAIT_MS), "%llu quarantined",
		      (unsigned long long)quarantined(&n));
		verify_start(&n, &later, addr, 1, 20);
		verify_wait(&n, &later);
	}
	node_close(&n);
}

/* The other way round: a server stops; its client gets errors, and its memory is its own again. */
static void server_stopped__and_continued(void **state)
{
	struct child server, other;
	struct gx_conn *c;
	struct snap base;
	struct victim v;
	struct node n;
	unsigned addr, other_addr;

	own_open(&n, false, 1000);
	addr = server_start(&n, &server, "");
	other_addr = server_start(&n, &other, "");
	verify_here(&n, addr);
	base = rest_take(&n);
	c = node_connect(&n, addr, 0, NULL);
	victim_init(&v, c, 0, seed);
	victim_recv(&n, &v);
	for (uint64_t end = gx_now() + rnd(&seed) % 20000000; gx_now() < end;)
		victim_turn(&n, &v);
	kill(server.pid, SIGSTOP);
	victim_until_failed(&n, &v);
	CHECK(v.batch.err == -ETIMEDOUT, "%s", strerror(-v.batch.err));
	memset(v.buf, POISON, ZONE_B / 2);
	memset(n.base, POISON, NODE_KV_B);
	gx_conn_close(c);
	verify_here(&n, other_addr);
	kill(server.pid, SIGCONT);
	verify_here(&n, other_addr);
	verify_here(&n, addr);
	CHECK(bytes_are(v.buf, ZONE_B / 2, POISON) && bytes_are(n.base, NODE_KV_B, POISON),
	      "a server that was given up has written");
	block_free(v.buf);
	rest_check(&n, &base);
	server_quit(&n, &server);
	server_quit(&n, &other);
	node_close(&n);
}

/* A posted receive alone must not wait for ever for a peer that stopped. */
static void server_stopped__in_a_receive(void **state)
{
	struct child server;
	struct gx_conn *c;
	struct victim v;
	struct node n;
	unsigned addr;

	own_open(&n, false, 1000);
	addr = server_start(&n, &server, "");
	c = node_connect(&n, addr, 0, NULL);
	victim_init(&v, c, 0, seed);
	victim_recv(&n, &v);
	node_run(&n, 1500);
	CHECK(v.batch.nr_out == 1, "a receive failed although the peer lives: %s",
	      strerror(-v.batch.err));
	kill(server.pid, SIGSTOP);
	CHECK(NODE_UNTIL(&n, !v.batch.nr_out, WAIT_MS), "the receive does not end");
	CHECK(v.batch.err == -ETIMEDOUT, "%s", strerror(-v.batch.err));
	block_free(v.buf);
	gx_conn_close(c);
	child_kill(&server);
	node_close(&n);
}

/* ---- Hostile ---- */

static void hostile__scribbles_over_segments(void **state)
{
	struct child other, c;
	struct snap base;
	uint64_t bad = 0;
	struct node n;
	unsigned addr;

	if (!is_shm())
		return;
	own_open(&n, true, 0);
	addr = node_listen(&n);
	own_settle(&n, addr, &base);
	verify_start(&n, &other, addr, 1, 0);
	memset(n.base, POISON, ZONE_B);
	for (unsigned i = 0; i < rounds(20, 300); i++) {
		child_start(&c, "@hostile", "port=%s addr=%u seed=%llu", port, addr,
			    (unsigned long long)((rnd(&seed) >> 2) * 2 + i % 2));
		child_hear(&n, &c, "up", WAIT_MS);
		n.awaited = (uint32_t)c.pid;
		NODE_UNTIL(&n, !n.awaited, 150);
		node_run(&n, 5);
		child_kill(&c);
	}
	verify_stop(&n, &other);
	CHECK(bytes_are(n.base, ZONE_B, POISON), "a hostile client reached what is not its own");
	bad = node_stat(&n, "rx_bad") + node_stat(&n, "rx_stray") +
	      node_ctl_stat(&n, GX_STAT_PEERS_LOST);
	CHECK(bad, "no violation was counted");
	rest_check(&n, &base);
	verify_start(&n, &c, addr, 0, 3);
	verify_wait(&n, &c);
	node_close(&n);
}

/* A server scribbles over what its client reads when it sends. It may go on to answer and let
 * operations wait; closing the connection ends them. */
static void hostile__server_scribbles(void **state)
{
	struct snap base = snap_take();
	struct child server;
	struct node n;

	if (!is_shm())
		return;
	own_open(&n, false, 1000);
	for (unsigned i = 0; i < rounds(6, 100); i++) {
		struct gx_conn *c;
		struct victim v;

		c = node_connect(&n, server_start(&n, &server, ""), 0, NULL);
		victim_init(&v, c, 0, seed);
		victim_recv(&n, &v);
		child_say(server.fd, "scribble %llu", (unsigned long long)rnd(&seed));
		for (uint64_t end = gx_now() + 300000000; n.nr_live && gx_now() < end;)
			victim_turn(&n, &v);
		gx_conn_close(c);
		CHECK(NODE_UNTIL(&n, !v.batch.nr_out, WAIT_MS), "%u operations do not end",
		      v.batch.nr_out);
		block_free(v.buf);
		child_kill(&server);
	}
	CHECK(NODE_UNTIL(&n, !node_conns(&n), WAIT_MS));
	node_close(&n);
	CHECK(snap_take().fds == base.fds && snap_take().segs == base.segs);
}

/* ---- Noise ---- */

static void noise_fill(uint8_t *b, size_t len)
{
	for (size_t i = 0; i < len; i++)
		b[i] = (uint8_t)(rnd(&seed) >> 13);
}

static void noise_stream(const struct sockaddr *sa, socklen_t len)
{
	int fd = socket(sa->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	uint8_t b[4096];
	size_t n = rnd(&seed) % sizeof(b);

	CHECK(fd >= 0);
	noise_fill(b, n);
	if (!(rnd(&seed) & 3)) /* something that begins like a frame */
		memcpy(b, "\x01\0\0\0", 4);
	if (connect(fd, sa, len) && errno == EINPROGRESS)
		usleep(100);
	send(fd, b, n, MSG_NOSIGNAL | MSG_DONTWAIT);
	close(fd);
}

static void noise_udp(unsigned to)
{
	struct sockaddr_in sa = {.sin_family = AF_INET,
				 .sin_port = htons((uint16_t)to),
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	uint8_t b[2048];

	CHECK(fd >= 0);
	for (unsigned i = 0; i < 20; i++) {
		size_t n = rnd(&seed) % sizeof(b);

		noise_fill(b, n);
		if (n && i & 1) /* a likely version and type */
			b[0] = (uint8_t)(0x10 | (b[0] & 7));
		sendto(fd, b, n, MSG_DONTWAIT, (struct sockaddr *)&sa, sizeof(sa));
	}
	close(fd);
}

static bool inode_is_ours(unsigned long inode)
{
	for (int fd = 0; fd < 256; fd++) {
		struct stat st;

		if (!fstat(fd, &st) && S_ISSOCK(st.st_mode) && st.st_ino == inode)
			return true;
	}
	return false;
}

/* Every UDP port of this process. Return: how many. */
static unsigned noise_udp_all(void)
{
	FILE *f = fopen("/proc/net/udp", "re");
	unsigned nr = 0;
	char line[512];

	CHECK(f);
	while (fgets(line, sizeof(line), f)) {
		unsigned to;
		unsigned long inode;

		if (sscanf(line, " %*d: %*[^:]:%x %*s %*s %*s %*s %*s %*s %*s %lu", &to, &inode) !=
			    2 ||
		    !inode_is_ours(inode))
			continue;
		noise_udp(to);
		nr++;
	}
	fclose(f);
	return nr;
}

/* Every listening abstract Unix socket of this process. */
static unsigned noise_unix_all(void)
{
	FILE *f = fopen("/proc/net/unix", "re");
	unsigned nr = 0;
	char line[512];

	CHECK(f);
	while (fgets(line, sizeof(line), f)) {
		struct sockaddr_un sa = {.sun_family = AF_UNIX};
		unsigned long inode;
		char name[100];
		size_t len;

		if (sscanf(line, "%*s %*s %*s %*s %*s %*s %lu @%99s", &inode, name) != 2 ||
		    !inode_is_ours(inode))
			continue;
		len = strlen(name);
		memcpy(sa.sun_path + 1, name, len);
		noise_stream((struct sockaddr *)&sa,
			     offsetof(struct sockaddr_un, sun_path) + 1 + len);
		nr++;
	}
	fclose(f);
	return nr;
}

static void noise__at_every_socket(void **state)
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	unsigned addr, nr_udp = 0, nr_unix = 0;
	struct child other;
	struct snap base;
	struct node n;

	own_open(&n, true, 0);
	addr = node_listen(&n);
	own_settle(&n, addr, &base);
	sa.sin_port = htons((uint16_t)addr);
	verify_start(&n, &other, addr, 1, 0);
	for (uint64_t end = gx_now() + rounds(1, 20) * 1000000000ull; gx_now() < end;) {
		noise_stream((struct sockaddr *)&sa, sizeof(sa));
		nr_udp += noise_udp_all();
		nr_unix += noise_unix_all();
		node_run(&n, 2);
	}
	verify_stop(&n, &other);
	CHECK(gx_stat_get(&n.gx->ctl_stats, GX_STAT_CTL_BAD), "nothing bad was counted");
	if (is_shm())
		CHECK(nr_unix, "no Unix socket was found");
	if (!strcmp(port, "udp"))
		CHECK(nr_udp && node_stat(&n, "rx_nobuf"), "%u UDP ports were found", nr_udp);
	rest_check(&n, &base);
	verify_start(&n, &other, addr, 1, 5);
	verify_wait(&n, &other);
	node_close(&n);
}

/* ---- Ends ---- */

/* gx_close() under load: clients get errors, nobody hangs. */
static void close__with_active_clients(void **state)
{
	struct snap before = snap_take(), after;
	struct child c[3];
	struct node n;
	uint64_t begin;
	unsigned addr;

	own_open(&n, true, 0);
	addr = node_listen(&n);
	for (unsigned i = 0; i < 3; i++) {
		child_start(&c[i], "@victim", "port=%s addr=%u off=%llu seed=%u", port, addr,
			    i * ZONE_B, i);
		child_hear(&n, &c[i], "put", WAIT_MS);
	}
	node_run(&n, 30);
	begin = gx_now();
	node_close(&n);
	CHECK(gx_now() - begin < 20000000000ull, "gx_close took %.1f s", (gx_now() - begin) / 1e9);
	for (unsigned i = 0; i < 3; i++) {
		child_hear(NULL, &c[i], "failed ", WAIT_MS);
		child_end(NULL, &c[i], WAIT_MS);
	}
	after = snap_take();
	CHECK(after.fds == before.fds && after.segs == before.segs, "%u descriptors, %u before",
	      after.fds, before.fds);
}

/* A client that is stopped says nothing more: gx_close() does not wait for it. */
static void close__with_a_stopped_client(void **state)
{
	struct child c;
	struct node n;
	uint64_t begin;

	own_open(&n, true, 0);
	child_start(&c, "@victim", "port=%s addr=%u off=0 seed=1", port, node_listen(&n));
	child_hear(&n, &c, "put", WAIT_MS);
	kill(c.pid, SIGSTOP);
	node_run(&n, 20);
	begin = gx_now();
	node_close(&n);
	CHECK(gx_now() - begin < 20000000000ull, "gx_close took %.1f s", (gx_now() - begin) / 1e9);
	kill(c.pid, SIGCONT);
	child_hear(NULL, &c, "failed ", WAIT_MS);
	child_end(NULL, &c, WAIT_MS);
}

#define CROWD 300 /* more than a core's inbox holds */

/* Connections come and go while the program does not turn its core. */
static void churn__without_a_turn(void **state)
{
	static struct gx_conn *c[CROWD];
	struct gx_connect_opts o = GX_INIT(o);
	struct child server;
	struct snap base;
	char addr[32];
	struct node n;

	if (strcmp(port, "udp")) /* so many segments are too much memory */
		return;
	own_open(&n, false, 0);
	snprintf(addr, sizeof(addr), "127.0.0.1:%u", server_start(&n, &server, ""));
	o.timeout_ns = 20000000000ull;
	base = snap_take();
	for (unsigned i = 0; i < CROWD; i++) {
		CHECK(!gx_connect(n.gx, addr, &o, &c[i]), "%s", gx_error());
		CHECK(!gx_conn_wait(c[i], o.timeout_ns), "%s", gx_error());
	}
	for (unsigned i = 0; i < CROWD; i++)
		gx_conn_close(c[i]);
	rest_check(&n, &base);
	verify_here(&n, atoi(strchr(addr, ':') + 1));
	node_run(&n, 100);
	server_quit(&n, &server);
	node_close(&n);
}

static void churn__connections(void **state)
{
	struct child c;
	struct snap base, now;
	struct node n;
	unsigned addr;

	own_open(&n, true, 0);
	addr = node_listen(&n);
	own_settle(&n, addr, &base);
	child_start(&c, "@churn", "port=%s addr=%u rounds=%u", port, addr,
		    rounds(is_shm() && !is_asan ? 200 : 60, 2000)); /* it counts no memory */
	child_hear(&n, &c, "ok", 4 * WAIT_MS);
	child_end(&n, &c, WAIT_MS);
	rest_check(&n, &base);
	now = snap_take();
	if (!is_asan) /* which keeps what was freed for a while */
		CHECK(now.maps < base.maps + 16 && now.rss_b < base.rss_b + 16 * MIB,
		      "%u mappings, %u before; %llu bytes, %llu before", now.maps, base.maps,
		      (unsigned long long)now.rss_b, (unsigned long long)base.rss_b);
	node_close(&n);
}

/* The example of the documentation, which meson has built. It opens no GPU, and so cannot write to a
 * bounce pool on one. */
static void example__runs(void **state)
{
	char *argv[] = {getenv("GX_EXAMPLE"), (char[32]){0}, "kv", NULL};
	struct child c = {.fd = -1};
	struct node n;

	if (!argv[0] || !is_shm() || is_bounce(port))
		return;
	own_open(&n, true, 0);
	snprintf(argv[1], 32, "127.0.0.1:%u", node_listen(&n));
	CHECK(!posix_spawn(&c.pid, argv[0], NULL, NULL, argv, environ));
	child_end(&n, &c, WAIT_MS);
	CHECK(!strcmp(n.base, "hello through a polling core"));
	node_close(&n);
}

static int test_run(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(transfer__sizes),
		cmocka_unit_test(transfer__64_connections),
		cmocka_unit_test(transfer__two_cores),
		cmocka_unit_test(client_killed__in_a_put),
		cmocka_unit_test(client_killed__on_two_lanes),
		cmocka_unit_test(server_killed__in_put_get_recv),
		cmocka_unit_test(server_killed__under_a_queue),
		cmocka_unit_test(client_stopped__and_continued),
		cmocka_unit_test(client_stopped__and_killed),
		cmocka_unit_test(server_stopped__and_continued),
		cmocka_unit_test(server_stopped__in_a_receive),
		cmocka_unit_test(hostile__scribbles_over_segments),
		cmocka_unit_test(hostile__server_scribbles),
		cmocka_unit_test(noise__at_every_socket),
		cmocka_unit_test(close__with_active_clients),
		cmocka_unit_test(close__with_a_stopped_client),
		cmocka_unit_test(churn__connections),
		cmocka_unit_test(churn__without_a_turn),
		cmocka_unit_test(example__runs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Is there what @o asks for? If not, why. */
static bool is_there(struct gx_opts o)
{
	const struct gx_port_name shm = {.name = "shm"};
	struct gx *gx;

	o.ports = &shm;
	o.nr_ports = 1;
	if (gx_open(&o, &gx)) {
		printf("SKIP: %s\n", gx_error());
		return false;
	}
	gx_close(gx);
	return true;
}

int main(int argc, char *argv[])
{
	static const struct {
		const char *name;
		int (*run)(const struct role *r);
	} roles[] = {{"@server", role_server}, {"@verify", role_verify},
		     {"@lanes", role_lanes},   {"@victim", role_victim},
		     {"@churn", role_churn},   {"@hostile", role_hostile}};
	struct gx_opts gpu = GX_INIT(gpu);
	struct role r;

	gpu.gpu = GX_WITH(gx_gpu_opts, .bounce = GX_BOUNCE_CUDA);
	port = argc > 1 ? argv[1] : "shm";
	if (is_gpu(port) && !getenv("GX_FAKE_CUDA")) {
		printf("SKIP: %s reads memory of the GPU by the CPU: for the fake driver\n", port);
		return 77;
	}
	if ((is_bounce(port) || is_gpu(port)) && !is_there(gpu))
		return 77;
	for (unsigned i = 0; i < GX_ARRAY_SIZE(roles); i++) {
		if (strcmp(roles[i].name, port))
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		child_self = true;
		role_parse(argc, argv, &r);
		return roles[i].run(&r);
	}
	if (argc > 2)
		cmocka_set_test_filter(argv[2]);
	is_full = getenv("GX_TEST_FULL") != NULL;
	if (getenv("GX_TEST_SEED"))
		seed = strtoull(getenv("GX_TEST_SEED"), NULL, 10);
	return test_run();
}
