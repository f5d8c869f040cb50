/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each call of gx to the system fails once. A server and a client in a process of their own: set-up, a
 * connection, puts, a get, a list, a note, the end. One run counts the calls that come out of gx
 * (fail_calls.h). Then a process for each of them, in which that call fails: it may not crash, wait
 * without end, write a wrong byte, or leave memory, a descriptor or a thread behind, and each call of
 * gx.h that fails has to say why.
 *
 * usage: test_fail local|shm|udp|tcp|local-key|udp-key|tcp-key [all|N]
 * all: each call, and what came of it; N: that call alone. A plain run takes one of SOME, beginning
 * anywhere, and a full one (GX_TEST_FULL=1) each.
 */
#include <dirent.h>
#include <errno.h>
#include <malloc.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <gx/auth.h>
#include <gx/gx.h>

#include "kit/common_key.h"
#include "proc/fail_calls.h"

#define KV_B	(256u << 10)
#define POISON	0xa5
#define HANG_S	60
#define WAIT_NS 20000000000ull
#define SOME	12 /* of so many calls one in a plain run */

/* How a run went. From FAULT on: it must not be. */
enum outcome { RIGHT, REFUSED, ENDED, SILENT, WRONG, LEFT, HUNG, DIED, OUTCOMES, FAULT = SILENT };

static const char *const outcome_name[] = {[RIGHT] = "went on, and was right",
					   [REFUSED] = "a call was refused, with the reason",
					   [ENDED] = "an operation ended with an error",
					   [SILENT] = "an error without a reason",
					   [WRONG] = "a wrong byte",
					   [LEFT] = "descriptors or threads were left",
					   [HUNG] = "it hung",
					   [DIED] = "it died"};

/* What the process of a run tells. Shared with it. */
static struct shared {
	bool trace;
	unsigned calls;
	enum outcome how;
	char what[96], why[400];
} * shared;

struct link_kind {
	const char *name, *link, *port;
	bool key;
};

static const struct link_kind kinds[] = {
	{"local", "local", "shm", false},    {"shm", "packet", "shm", false},
	{"udp", "packet", "udp", false},     {"tcp", "tcp", "shm", false},
	{"local-key", "local", "shm", true}, {"udp-key", "packet", "udp", true},
	{"tcp-key", "tcp", "shm", true},
};

struct end {
	struct gx *gx;
	struct gx_mem *mem;
	char *base;
	struct common_key key;
	_Atomic(struct gx_conn *) down;
};

struct run {
	const struct link_kind *kind;
	struct end server, client;
	char addr[32];
	struct gx_conn *conn;
	struct gx_region region;
	struct gx_list *list;
	struct gx_queue *queue; /* of the server: notes */
};

/* Of two outcomes the worse one, with what was said first. */
static void outcome(enum outcome how, const char *call, const char *why)
{
	if (how <= shared->how)
		return;
	shared->how = how;
	snprintf(shared->why, sizeof(shared->why), "%s: %s", call, why);
}

/* A failure of before, whose words may not be those of the next one. */
static void mark(void)
{
	gx_open(&(struct gx_opts){.size = 1}, &(struct gx *){NULL});
}

static bool failed(const char *call, int ret, const char *before)
{
	if (ret >= 0)
		return false;
	if (!gx_error()[0] || !strcmp(gx_error(), before))
		outcome(SILENT, call, gx_strerror(ret));
	else
		outcome(REFUSED, call, gx_error());
	return true;
}

/* Call gx. True: it has failed, and why is noted. */
#define FAILS(...)                                                                                 \
	({                                                                                         \
		char before_[512];                                                                 \
                                                                                                   \
		mark();                                                                            \
		snprintf(before_, sizeof(before_), "%s", gx_error());                              \
		failed(#__VA_ARGS__, __VA_ARGS__, before_);                                        \
	})

static void on_conn(void *arg, struct gx_conn *conn, enum gx_conn_event event, int err,
		    const char *why)
{
	struct end *e = arg;

	if (event == GX_CONN_EVENT_UP)
		return;
	if (err && (!why || !why[0]))
		outcome(SILENT, "on_conn", gx_strerror(err));
	atomic_store(&e->down, conn);
}

static bool end_open(struct run *r, struct end *e, bool server)
{
	const struct gx_port_name port = {.name = r->kind->port};
	struct gx_packet_opts packet = GX_INIT(packet);
	struct gx_opts o = GX_INIT(o);

	packet.slots = 128;
	o.ports = &port;
	o.nr_ports = 1;
	o.packet = &packet;
	o.server = server;
	o.on_conn = on_conn;
	o.arg = e;
	o.peer_timeout_ns = 2000000000;
	if (r->kind->key)
		o.auth = common_key_open(&e->key, server);
	if (FAILS(gx_open(&o, &e->gx)) || FAILS(gx_mem_alloc(e->gx, GX_MEM_HOST, 0, KV_B, &e->mem)))
		return false;
	e->base = gx_mem_addr(e->mem);
	memset(e->base, POISON, KV_B);
	return true;
}

static bool set_up(struct run *r)
{
	struct gx_connect_opts o = GX_INIT(o);
	int port = 0;

	if (!end_open(r, &r->server, true) || !end_open(r, &r->client, false) ||
	    FAILS(gx_mem_share(r->server.mem, "kv", GX_ACCESS_PUT | GX_ACCESS_GET)) ||
	    FAILS(gx_queue_open(r->server.gx, GX_WITH(gx_queue_opts, .notify = true), &r->queue)) ||
	    FAILS(port = gx_listen(r->server.gx, "127.0.0.1:0")) ||
	    FAILS(gx_core_start(gx_core(r->server.gx, 0))))
		return false;
	snprintf(r->addr, sizeof(r->addr), "127.0.0.1:%d", port);
	o.link = r->kind->link;
	o.timeout_ns = WAIT_NS;
	r->region = (struct gx_region)GX_INIT(r->region);
	return !FAILS(gx_connect(r->client.gx, r->addr, &o, &r->conn)) &&
	       !FAILS(gx_conn_wait(r->conn, WAIT_NS)) &&
	       !FAILS(gx_conn_region(r->conn, "kv", 0, &r->region));
}

/* Post @op, and wait until it is done. False: it has failed. */
static bool done(struct run *r, const char *name, struct gx_op op)
{
	struct gx_core *core = gx_core(r->client.gx, 0);
	struct gx_queue *q = gx_core_queue(core);
	uint64_t until = gx_now() + WAIT_NS;
	struct gx_comp comp;
	int posted = 0;

	while (gx_now() < until) {
		if (!posted && FAILS(posted = gx_post(q, gx_conn_ep(r->conn, 0), &op, 1)))
			return false;
		gx_core_turn(core, gx_now());
		if (!gx_poll(q, &comp, 1))
			continue;
		if (!comp.status)
			return true;
		outcome(ENDED, name, gx_strerror(comp.status));
		return false;
	}
	outcome(HUNG, name, "no completion");
	return false;
}

static bool same(const char *name, const char *at, int c, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		if (at[i] == (char)c)
			continue;
		outcome(WRONG, name, "bytes differ");
		return false;
	}
	return true;
}

static struct gx_op op_of(struct run *r, enum gx_op_kind kind, uint64_t off, uint64_t len)
{
	return (struct gx_op){.kind = kind,
			      .mem = r->client.mem,
			      .off = off,
			      .len = len,
			      .token = r->region.token,
			      .remote_off = off};
}

static void note_take(struct run *r)
{
	uint64_t until = gx_now() + WAIT_NS;
	struct gx_comp comp;

	while (!gx_poll(r->queue, &comp, 1)) {
		gx_core_turn(gx_core(r->client.gx, 0), gx_now());
		if (gx_now() > until || atomic_load(&r->client.down)) {
			outcome(atomic_load(&r->client.down) ? ENDED : HUNG, "note",
				"it did not come");
			return;
		}
	}
	if (comp.note_len != 12 || memcmp(comp.note, "here it is!", 12))
		outcome(WRONG, "note", "its bytes");
}

/* A put of many packets, one of a few bytes, a get, a list with gaps, a note. */
static void move(struct run *r)
{
	struct gx_seg segs[3];
	struct gx_op op;
	char *mine = r->client.base, *theirs = r->server.base;

	memset(mine, 1, 65536);
	if (!done(r, "put", op_of(r, GX_OP_PUT, 0, 65536)) || !same("put", theirs, 1, 65536))
		return;
	memset(mine + 70000, 2, 300);
	if (!done(r, "put small", op_of(r, GX_OP_PUT, 70000, 300)) ||
	    !same("put small", theirs + 70000, 2, 300))
		return;
	memset(theirs + 100000, 3, 5000);
	if (!done(r, "get", op_of(r, GX_OP_GET, 100000, 5000)) ||
	    !same("get", mine + 100000, 3, 5000))
		return;
	memset(mine + 120000, 4, 9000);
	for (unsigned i = 0; i < 3; i++)
		segs[i] = (struct gx_seg){.mem = r->client.mem,
					  .off = 120000 + 3000 * i,
					  .token = r->region.token,
					  .remote_off = 120000 + 4000 * i,
					  .len = 3000};
	if (FAILS(gx_list_open(r->client.gx, segs, 3, &r->list)))
		return;
	op = (struct gx_op){.kind = GX_OP_PUT, .list = r->list};
	if (!done(r, "list", op))
		return;
	for (unsigned i = 0; i < 3; i++)
		if (!same("list", theirs + 120000 + 4000 * i, 4, 3000))
			return;
	op = (struct gx_op){
		.kind = GX_OP_PUT, .flags = GX_OP_NOTE, .note = "here it is!", .note_len = 12};
	if (done(r, "note", op))
		note_take(r);
}

/* However far it came. */
static void tear_down(struct run *r)
{
	if (r->server.base)
		for (unsigned i = 0; i < 3; i++)
			same("gap", r->server.base + 123000 + 4000 * i, POISON, 1000);
	if (r->list)
		gx_list_close(r->list);
	if (r->conn)
		gx_conn_close(r->conn);
	gx_close(r->client.gx);
	if (r->queue)
		gx_queue_close(r->queue);
	gx_close(r->server.gx);
	if (r->kind->key) {
		common_key_close(&r->client.key);
		common_key_close(&r->server.key);
	}
}

static unsigned entries(const char *folder)
{
	DIR *d = opendir(folder);
	unsigned n = 0;

	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

/* The kernel lists a thread for a moment after it was joined. Return: are at most @max there in the end? */
static bool threads_end(unsigned max)
{
	uint64_t until = gx_now() + WAIT_NS;

	while (entries("/proc/self/task") > max)
		if (gx_now() > until)
			return false;
	return true;
}

/* The process of a run. */
static int child(const struct link_kind *kind, unsigned nth)
{
	static struct run r;
	unsigned fds, threads;

	r.kind = kind;
	mark(); /* what is made once stays */
	fds = entries("/proc/self/fd");
	threads = entries("/proc/self/task");
	alarm(HANG_S);
	fail_arm(nth, shared->trace, shared->what, sizeof(shared->what));
	if (set_up(&r))
		move(&r);
	tear_down(&r);
	shared->calls = fail_disarm();
	if (entries("/proc/self/fd") > fds)
		outcome(LEFT, "descriptors", "more than before");
	if (!threads_end(threads))
		outcome(LEFT, "threads", "more than before");
	return 0;
}

static enum outcome run(const struct link_kind *kind, unsigned nth)
{
	int status = 0;
	pid_t pid;

	*shared = (struct shared){.trace = shared->trace};
	fflush(stdout);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid)
		exit(child(kind, nth)); /* with a search for leaks */
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
		outcome(HUNG, "process", "no end");
	else if (status)
		outcome(DIED, "process",
			WIFSIGNALED(status) ? "a signal" : "a leak, or a sanitizer");
	return shared->how;
}

static unsigned report(const struct link_kind *kind, unsigned runs, const unsigned nr[OUTCOMES])
{
	unsigned bad = 0;

	printf("%s: %u of %u calls failed, one at a time", kind->name, runs, nr[OUTCOMES]);
	for (unsigned i = 0; i < OUTCOMES; i++) {
		if (nr[i])
			printf("; %u: %s", nr[i], outcome_name[i]);
		bad += i >= FAULT ? nr[i] : 0;
	}
	printf("\n");
	return bad;
}

/* Calls @first, @first + @step and so on; @step 0: that one alone. Return: how many are faults. */
static unsigned sweep(const struct link_kind *kind, unsigned first, unsigned step, bool chatty)
{
	unsigned nr[OUTCOMES + 1] = {0}, runs = 0;
	enum outcome how = run(kind, 0);

	nr[OUTCOMES] = shared->calls;
	if (how != RIGHT) {
		printf("%s, no call fails: %s: %s\n", kind->name, outcome_name[how], shared->why);
		return 1;
	}
	shared->trace = !step;
	for (unsigned n = first; n <= nr[OUTCOMES]; n += step) {
		how = run(kind, n);
		runs++;
		nr[how]++;
		if (chatty || how >= FAULT)
			printf("%s call %u: %s: %s (%s)\n", kind->name, n, shared->what,
			       outcome_name[how], shared->why);
		if (!step)
			break;
	}
	return report(kind, runs, nr);
}

int main(int argc, char **argv)
{
	const struct link_kind *kind = NULL;
	bool all = getenv("GX_TEST_FULL") || (argc > 2 && !strcmp(argv[2], "all"));
	unsigned only = argc > 2 && !all ? (unsigned)atoi(argv[2]) : 0;

	for (unsigned i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		if (argc > 1 && !strcmp(argv[1], kinds[i].name))
			kind = &kinds[i];
	if (!kind) {
		printf("usage: %s LINK [all|N]\n", argv[0]);
		return 2;
	}
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	if (shared == MAP_FAILED)
		return 1;
	mallopt(M_PERTURB, 0x5a); /* memory that nobody has zeroed is not zero */
	if (only)
		return sweep(kind, only, 0, true) > 0;
	return sweep(kind, all ? 1 : 1 + (unsigned)getpid() % SOME, all ? 1 : SOME, argc > 2) > 0;
}
