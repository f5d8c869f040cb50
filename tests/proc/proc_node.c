/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes, exercises and children of the tests with several processes; see proc_node.h. Runs on the
 * thread that turns the node, but for node_on_conn(), which gx's control thread calls.
 */
#include "proc/proc_node.h"
#include "common/opt_ctx.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/core.h"

#include <cmocka.h>

#include "kit/common_fds.h"

extern char **environ;

bool child_self;

void check_fail(const char *file, int line, const char *cond, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	fprintf(stderr, "%s:%d: pid %d: %s is false: %s\n", file, line, getpid(), cond, text);
	if (child_self)
		_exit(1);
	_fail(file, line);
	abort();
}

/* ---- Bytes ---- */

uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

uint64_t rnd(uint64_t *state)
{
	return mix((*state)++);
}

void pattern_fill(void *buf, uint64_t len, uint64_t seed)
{
	char *p = buf;

	for (uint64_t i = 0; i < len; i += 8) {
		uint64_t w = mix(seed * 0x10001 + i);

		memcpy(p + i, &w, len - i < 8 ? len - i : 8);
	}
}

bool pattern_is(const void *buf, uint64_t len, uint64_t seed)
{
	const char *p = buf;

	for (uint64_t i = 0; i < len; i += 8) {
		uint64_t w = mix(seed * 0x10001 + i);

		if (memcmp(p + i, &w, len - i < 8 ? len - i : 8))
			return false;
	}
	return true;
}

bool bytes_are(const void *buf, uint64_t len, uint8_t value)
{
	const uint8_t *p = buf;

	return !len || (p[0] == value && !memcmp(p, p + 1, len - 1));
}

/* ---- Echo: a receive that answers ---- */

/* ---- Registered memory of the tests ---- */

#define BLOCKS_MAX 256

static struct {
	struct gx *gx;
	void *block;
	struct gx_mem *mem;
} blocks[BLOCKS_MAX];

void op_into(struct node *n, struct gx_op *op, void *block, uint64_t len, void *addr)
{
	unsigned at = BLOCKS_MAX;

	op->addr = addr;
	op->mem = NULL;
	if (!is_bounce(n->cfg.port))
		return;
	for (unsigned i = 0; i < BLOCKS_MAX && (at == BLOCKS_MAX || blocks[at].block != block); i++)
		if (blocks[i].block == block || !blocks[i].block)
			at = i;
	CHECK(at < BLOCKS_MAX);
	if (!blocks[at].block) {
		CHECK(!gx_mem_reg(n->gx, GX_MEM_HOST, 0, block, len, &blocks[at].mem), "%s",
		      gx_error());
		blocks[at].block = block;
		blocks[at].gx = n->gx;
	}
	op->mem = blocks[at].mem;
	op->off = (uint64_t)((char *)addr - (char *)block);
}

void block_free(void *block)
{
	for (unsigned i = 0; i < BLOCKS_MAX && block; i++)
		if (blocks[i].block == block) {
			gx_mem_free(blocks[i].mem);
			blocks[i].block = NULL;
		}
	free(block);
}

/* The context is about to go. */
static void blocks_forget(const struct gx *gx)
{
	for (unsigned i = 0; i < BLOCKS_MAX; i++)
		if (blocks[i].gx == gx)
			blocks[i].block = NULL;
}

#define ECHO_TAG (1ull << 40)

struct echo {
	struct act act;
	struct gx_ep *ep;
	uint64_t room;
	char buf[];
};

static void echo_end(struct node *n, struct echo *e)
{
	block_free(e);
	n->nr_echoes--;
}

static void echo_post(struct node *n, struct echo *e, const struct gx_comp *got)
{
	struct gx_op op = {0};
	int ret;

	op.user = (uintptr_t)e;
	op_into(n, &op, e, sizeof(*e) + n->cfg.echo_b, e->buf);
	op.kind = got ? GX_OP_SEND : GX_OP_RECV;
	op.len = got ? got->len : e->room;
	op.tag = got ? got->tag | ECHO_TAG : 0;
	op.tag_mask = ECHO_TAG;
	ret = common_post(e->ep, &op, 1);
	CHECK(ret == 1 || ret == -ENOTCONN, "echo: gx_post %d: %s", ret, gx_error());
	if (ret != 1)
		echo_end(n, e);
}

static void echo_done(struct act *act, struct node *n, const struct gx_comp *comp)
{
	struct echo *e = (struct echo *)act;

	if (comp->status) {
		echo_end(n, e);
		return;
	}
	echo_post(n, e, comp->op == GX_OP_RECV ? comp : NULL);
}

static void echo_start(struct node *n, struct gx_conn *c)
{
	struct gx_ep *ep = gx_conn_ep(c, 0);
	struct echo *e;

	if (!ep) /* down already */
		return;
	e = malloc(sizeof(*e) + n->cfg.echo_b);
	CHECK(e);
	e->act.done = echo_done;
	e->ep = ep;
	e->room = n->cfg.echo_b;
	n->nr_echoes++;
	echo_post(n, e, NULL);
}

/* ---- Nodes ---- */

static void node_on_conn(void *arg, struct gx_conn *conn, enum gx_conn_event event, int err,
			 const char *why)
{
	struct node *n = arg;

	pthread_mutex_lock(&n->lock);
	CHECK(n->nr_events < NODE_EVENTS_MAX);
	n->events[n->nr_events++] = (struct node_event){conn, event == GX_CONN_EVENT_UP};
	pthread_mutex_unlock(&n->lock);
}

static struct gx_mem *node_region(struct node *n, const char *name, uint64_t len)
{
	enum gx_mem_kind kind = is_gpu(n->cfg.port) ? GX_MEM_CUDA : GX_MEM_HOST;
	struct gx_mem *mem;
	int ret = gx_mem_alloc(n->gx, kind, 0, len, &mem);

	CHECK(!ret, "%s", gx_error());
	ret = gx_mem_share(mem, name, GX_ACCESS_PUT | GX_ACCESS_GET);
	CHECK(!ret, "%s", gx_error());
	return mem;
}

static void comp_take(struct node *n, const struct gx_comp *comp)
{
	struct act *act = (struct act *)(uintptr_t)comp->user;

	if (comp->kind == GX_COMP_NOTIFY)
		n->nr_notify++;
	else
		act->done(act, n, comp);
}

static bool node_comps(struct node *n, unsigned core)
{
	struct gx_comp comps[32];
	unsigned k = common_poll(n->core[core], comps, 32);

	for (unsigned i = 0; i < k; i++)
		comp_take(n, &comps[i]);
	return k > 0;
}

/* On the core's own thread. */
static bool node_core_comps(void *arg, uint64_t now_ns)
{
	struct node_core *c = arg;

	return node_comps(c->n, c->index);
}

static void node_core_start(struct node *n, unsigned i)
{
	int ret;

	n->poller[i] = (struct node_core){n, i};
	ret = gx_core_poller(n->core[i], node_core_comps, &n->poller[i]);
	CHECK(!ret, "%s", gx_error());
	ret = gx_core_start(n->core[i]);
	CHECK(!ret, "%s", gx_error());
}

bool is_local(const char *port)
{
	return !strcmp(port, "local");
}

bool is_tcp(const char *port)
{
	return !strcmp(port, "tcp") || is_gpu(port);
}

bool is_gpu(const char *port)
{
	return !strcmp(port, "tcp-gpu");
}

bool is_bounce(const char *port)
{
	return !strcmp(port, "bounce");
}

void node_open(struct node *n, const struct node_cfg *cfg)
{
	bool over_shm = is_local(cfg->port) || is_bounce(cfg->port) || is_tcp(cfg->port);
	struct opt_ports ports = {0};
	struct gx_opts o = GX_INIT(o);
	int ret;

	memset(n, 0, sizeof(*n));
	n->cfg = *cfg;
	pthread_mutex_init(&n->lock, NULL);
	o.nr_cores = n->cfg.nr_cores = cfg->nr_cores ? cfg->nr_cores : 1;
	ret = opt_ports(over_shm ? "shm" : cfg->port, &ports);
	CHECK(!ret, "port %s", cfg->port);
	o.ports = ports.v;
	o.nr_ports = 1;
	o.packet = GX_WITH(gx_packet_opts, .slots = cfg->slots);
	o.peer_timeout_ns = cfg->timeout_ns ? cfg->timeout_ns : 60000000000ull;
	o.server = cfg->server;
	o.host = GX_WITH(gx_host_opts, .pull = GX_PULL_ON, /* auto depends on the machine */
			 .local = is_local(cfg->port) ? GX_AUTO : GX_OFF);
	o.gpu = GX_WITH(gx_gpu_opts,
			.bounce = is_bounce(cfg->port) ? GX_BOUNCE_CUDA : GX_BOUNCE_HOST);
	o.on_conn = node_on_conn;
	o.arg = n;
	ret = gx_open(&o, &n->gx);
	CHECK(!ret, "%s", gx_error());
	n->kv = node_region(n, "kv", NODE_KV_B);
	n->bad = node_region(n, "bad", NODE_BAD_B);
	n->base = gx_mem_addr(n->kv);
	for (unsigned i = 0; i < n->cfg.nr_cores; i++) {
		n->core[i] = gx_core(n->gx, i);
		if (cfg->threads)
			node_core_start(n, i);
	}
}

bool node_pump(struct node *n, unsigned core)
{
	bool busy = gx_core_turn(n->core[core], gx_now());

	while (node_comps(n, core))
		busy = true;
	return busy;
}

/* An accepted connection that has ended is let go at once. */
static void node_event_take(struct node *n, const struct node_event *ev)
{
	struct gx_conn_info info = GX_INIT(info);

	if (ev->up) {
		n->nr_ups++;
		n->nr_live++;
		n->last = ev->conn;
		if (n->cfg.echo_b)
			echo_start(n, ev->conn);
		return;
	}
	n->nr_live--;
	if (!n->cfg.server)
		return;
	CHECK(!gx_conn_info(ev->conn, &info), "%s", gx_error());
	if (info.peer_pid == n->awaited)
		n->awaited = 0;
	gx_conn_close(ev->conn);
}

static bool node_events(struct node *n)
{
	struct node_event events[NODE_EVENTS_MAX];
	unsigned nr;

	pthread_mutex_lock(&n->lock);
	nr = n->nr_events;
	memcpy(events, n->events, nr * sizeof(events[0]));
	n->nr_events = 0;
	pthread_mutex_unlock(&n->lock);
	for (unsigned i = 0; i < nr; i++)
		node_event_take(n, &events[i]);
	return nr > 0;
}

static void nap(struct node *n, bool busy)
{
	const struct timespec ts = {.tv_nsec = 20000};

	n->idle = busy ? 0 : n->idle + 1;
	if (n->idle > 50)
		nanosleep(&ts, NULL);
}

void node_turn(struct node *n)
{
	bool busy = node_events(n);

	if (n->cfg.threads) {
		nap(n, false);
		return;
	}
	for (unsigned i = 0; i < n->cfg.nr_cores; i++)
		busy |= node_pump(n, i);
	nap(n, busy);
}

void node_run(struct node *n, uint64_t ms)
{
	NODE_UNTIL(n, false, ms);
}

/* What fails because the node closes is not waited for: an echo may be freed only here. */
void node_close(struct node *n)
{
	for (unsigned i = 0; i < n->cfg.nr_cores; i++)
		gx_core_stop(n->core[i]);
	blocks_forget(n->gx);
	gx_close(n->gx);
	pthread_mutex_destroy(&n->lock);
}

unsigned node_listen(struct node *n)
{
	int port = gx_listen(n->gx, "127.0.0.1:0");

	CHECK(port > 0, "%s", gx_error());
	return (unsigned)port;
}

struct gx_conn *node_connect(struct node *n, unsigned port, unsigned lanes, int *err)
{
	struct gx_connect_opts o = GX_INIT(o);
	struct gx_conn_info info = GX_INIT(info);
	struct gx_conn *c;
	char addr[32];
	int ret;

	o.lanes = lanes;
	if (is_local(n->cfg.port) || is_tcp(n->cfg.port))
		o.link = is_tcp(n->cfg.port) ? "tcp" : "local";
	o.tcp = is_tcp(n->cfg.port) ? GX_WITH(gx_connect_tcp_opts, .sockets = 3) : NULL;
	o.timeout_ns = 20000000000ull;
	snprintf(addr, sizeof(addr), "127.0.0.1:%u", port);
	ret = gx_connect(n->gx, addr, &o, &c);
	CHECK(!ret, "%s", gx_error());
	do {
		node_turn(n);
		gx_conn_info(c, &info);
	} while (info.state == GX_CONN_STATE_CONNECTING);
	ret = gx_conn_wait(c, 0);
	CHECK(err || !ret, "%s", gx_error());
	if (err)
		*err = ret;
	if (!ret)
		return c;
	gx_conn_close(c);
	return NULL;
}

uint64_t node_stat(const struct node *n, const char *name)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < n->cfg.nr_cores; i++) {
		uint64_t v;

		CHECK(!gx_core_stat(n->core[i], name, &v), "%s", name);
		sum += v;
	}
	return sum;
}

uint64_t node_ctl_stat(const struct node *n, unsigned id)
{
	return gx_stat_get(&n->gx->ctl_stats, id);
}

static int conns_run(void *arg)
{
	const struct gx *gx = arg;
	int nr = 0;

	for (const struct gx_conn *c = gx->conns; c; c = c->next)
		nr++;
	return nr;
}

unsigned node_conns(struct node *n)
{
	return (unsigned)gx_uring_run_wait(n->gx->uring, conns_run, n->gx);
}

/* ---- Operations ---- */

static void batch_done(struct act *act, struct node *n, const struct gx_comp *comp)
{
	struct batch *b = (struct batch *)act;

	CHECK(comp->kind == GX_COMP_DONE);
	CHECK(b->nr_out, "an operation completed twice");
	b->nr_out--;
	if (!comp->status) {
		b->nr_done++;
		return;
	}
	if (!b->nr_failed++)
		b->err = comp->status;
}

void batch_init(struct batch *b)
{
	*b = (struct batch){.act.done = batch_done};
}

int node_post(struct node *n, struct gx_ep *ep, struct gx_op *op, struct batch *b)
{
	uint64_t until = gx_now() + 20000000000ull;
	int ret;

	op->user = (uintptr_t)b;
	b->nr_out++;
	while (!(ret = common_post(ep, op, 1)) && gx_now() < until)
		node_turn(n);
	if (ret == 1)
		return 0;
	CHECK(ret == -ENOTCONN, "gx_post: %d: %s", ret, gx_error());
	b->nr_out--;
	return ret;
}

void node_wait(struct node *n, struct batch *b)
{
	CHECK(NODE_UNTIL(n, !b->nr_out, 30000), "%u of the operations do not end", b->nr_out);
	CHECK(!b->nr_failed, "%u operations failed, the first with %s", b->nr_failed,
	      strerror(-b->err));
}

/* ---- What is held ---- */

static uint64_t rss_b(void)
{
	FILE *f = fopen("/proc/self/statm", "re");
	unsigned long pages = 0;

	CHECK(f && fscanf(f, "%*s %lu", &pages) == 1);
	fclose(f);
	return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

struct snap snap_take(void)
{
	struct snap s = {.fds = common_fds_count(), .rss_b = rss_b()};
	FILE *f = fopen("/proc/self/maps", "re");
	char line[512];

	CHECK(f);
	while (fgets(line, sizeof(line), f)) {
		s.maps++;
		s.segs += strstr(line, "memfd:gx-shm") || strstr(line, "memfd:gx-rings");
	}
	fclose(f);
	return s;
}

bool node_at_rest(struct node *n, const struct snap *base)
{
	struct snap s;

	if (node_stat(n, "bufs_held_now") || node_stat(n, "msgs_active_now") ||
	    node_conns(n) != n->nr_live)
		return false;
	s = snap_take();
	return s.fds == base->fds && s.segs == base->segs;
}

/* ---- Exercises ---- */

void exercise_init(struct exercise *x, struct gx_conn *c, unsigned lane, uint64_t off, uint64_t len,
		   uint64_t seed)
{
	*x = (struct exercise){.ep = gx_conn_ep(c, lane),
			       .kv = GX_INIT(x->kv),
			       .off = off,
			       .len = len,
			       .seed = seed};
	CHECK(x->ep, "the connection is not up");
	CHECK(!gx_conn_region(c, "kv", 0, &x->kv), "%s", gx_error());
	CHECK(x->kv.len >= off + len);
	x->out = malloc(len);
	x->in = malloc(len);
	CHECK(x->out && x->in);
	batch_init(&x->batch);
}

void exercise_fini(struct exercise *x)
{
	free(x->out);
	block_free(x->in);
}

static void post_put(struct node *n, struct exercise *x, uint64_t off, uint64_t len)
{
	struct gx_op op = {0};

	pattern_fill(x->out, len, ++x->seed);
	op.kind = GX_OP_PUT;
	op.flags = GX_OP_IMM;
	op.imm = len;
	op.addr = x->out;
	op.len = len;
	op.token = x->kv.token;
	op.remote_off = x->off + off;
	CHECK(!node_post(n, x->ep, &op, &x->batch));
	x->nr_puts++;
}

static void post_get(struct node *n, struct exercise *x, uint64_t off, uint64_t len)
{
	struct gx_op op = {0};

	memset(x->in, 0xa5, len);
	op.kind = GX_OP_GET;
	op_into(n, &op, x->in, x->len, x->in);
	op.len = len;
	op.token = x->kv.token;
	op.remote_off = x->off + off;
	CHECK(!node_post(n, x->ep, &op, &x->batch));
}

static void post_echo(struct node *n, struct exercise *x, uint64_t len)
{
	struct gx_op op = {0};

	pattern_fill(x->out, len, ++x->seed);
	memset(x->in, 0xa5, len);
	op.kind = GX_OP_RECV;
	op_into(n, &op, x->in, x->len, x->in);
	op.len = len;
	op.tag = len | ECHO_TAG;
	CHECK(!node_post(n, x->ep, &op, &x->batch));
	op.kind = GX_OP_SEND;
	op.mem = NULL;
	op.off = 0;
	op.addr = x->out;
	op.tag = len;
	CHECK(!node_post(n, x->ep, &op, &x->batch));
}

static void exercise_check(const struct exercise *x, uint64_t len, const char *what)
{
	CHECK(pattern_is(x->in, len, x->seed), "%s of %llu bytes: wrong bytes", what,
	      (unsigned long long)len);
}

void exercise_sizes(struct node *n, struct exercise xs[], unsigned nr, const uint64_t sizes[],
		    unsigned nr_sizes)
{
	for (unsigned s = 0; s < nr_sizes; s++) {
		for (unsigned i = 0; i < nr; i++)
			post_put(n, &xs[i], 0, sizes[s]);
		for (unsigned i = 0; i < nr; i++)
			node_wait(n, &xs[i].batch);
		for (unsigned i = 0; i < nr; i++)
			post_get(n, &xs[i], 0, sizes[s]);
		for (unsigned i = 0; i < nr; i++) {
			node_wait(n, &xs[i].batch);
			exercise_check(&xs[i], sizes[s], "get");
		}
		for (unsigned i = 0; i < nr; i++)
			if (xs[i].echo)
				post_echo(n, &xs[i], sizes[s]);
		for (unsigned i = 0; i < nr; i++) {
			node_wait(n, &xs[i].batch);
			if (xs[i].echo)
				exercise_check(&xs[i], sizes[s], "echo");
		}
	}
}

static void pump_until_done(struct node *n, struct exercise *x, unsigned core)
{
	uint64_t until = gx_now() + 30000000000ull;
	const struct timespec ts = {.tv_nsec = 20000};
	unsigned idle = 0;

	while (x->batch.nr_out && gx_now() < until) {
		idle = node_pump(n, core) ? 0 : idle + 1;
		if (idle > 50)
			nanosleep(&ts, NULL);
	}
	CHECK(!x->batch.nr_out && !x->batch.nr_failed, "%u out, %u failed: %s", x->batch.nr_out,
	      x->batch.nr_failed, strerror(-x->batch.err));
}

void exercise_random(struct node *n, struct exercise *x, unsigned core, unsigned rounds)
{
	for (unsigned i = 0; i < rounds; i++) {
		uint64_t r = mix(x->seed ^ 0x5eed);
		uint64_t len = r % (x->len >> (r >> 60)), off = mix(r) % (x->len - len);

		post_put(n, x, off, len);
		pump_until_done(n, x, core);
		post_get(n, x, off, len);
		pump_until_done(n, x, core);
		exercise_check(x, len, "get");
	}
}

/* ---- Children ---- */

void child_start(struct child *c, const char *role, const char *fmt, ...)
{
	char text[512], *argv[34] = {"test_proc", (char *)role};
	posix_spawn_file_actions_t fa;
	unsigned argc = 2;
	va_list ap;
	int sv[2], ret;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	for (char *p = strtok(text, " "); p && argc < 33; p = strtok(NULL, " "))
		argv[argc++] = p;
	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv));
	CHECK(!posix_spawn_file_actions_init(&fa));
	CHECK(!posix_spawn_file_actions_adddup2(&fa, sv[1], CHILD_FD));
	ret = posix_spawn(&c->pid, "/proc/self/exe", &fa, NULL, argv, environ);
	CHECK(!ret, "posix_spawn: %s", strerror(ret));
	posix_spawn_file_actions_destroy(&fa);
	close(sv[1]);
	c->fd = sv[0];
}

void child_say(int fd, const char *fmt, ...)
{
	char text[CHILD_TEXT_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	CHECK(send(fd, text, strlen(text), MSG_NOSIGNAL) > 0, "%s: %s", text, strerror(errno));
}

bool child_heard(int fd, char text[CHILD_TEXT_MAX])
{
	ssize_t len = recv(fd, text, CHILD_TEXT_MAX - 1, MSG_DONTWAIT);

	if (!len) /* what was said last may be behind it: see client_recv_done() */
		len = recv(fd, text, CHILD_TEXT_MAX - 1, MSG_DONTWAIT);
	if (len < 0 && errno == EAGAIN)
		return false;
	CHECK(len > 0, "the other process has ended");
	text[len] = 0;
	return true;
}

static void turn(struct node *n)
{
	const struct timespec ts = {.tv_nsec = 1000000};

	if (n)
		node_turn(n);
	else
		nanosleep(&ts, NULL);
}

const char *child_hear(struct node *n, struct child *c, const char *what, unsigned ms)
{
	static char text[CHILD_TEXT_MAX];
	uint64_t until = gx_now() + (uint64_t)ms * 1000000;
	bool heard;

	while (!(heard = child_heard(c->fd, text)) && gx_now() < until)
		turn(n);
	CHECK(heard, "the child does not say '%s'", what);
	CHECK(!strncmp(text, what, strlen(what)), "the child says '%s' instead of '%s'", text,
	      what);
	return text + strlen(what);
}

void child_end(struct node *n, struct child *c, unsigned ms)
{
	uint64_t until = gx_now() + (uint64_t)ms * 1000000;
	int status;
	pid_t pid;

	while (!(pid = waitpid(c->pid, &status, WNOHANG)) && gx_now() < until)
		turn(n);
	CHECK(pid == c->pid, "the child does not end");
	close(c->fd);
	CHECK(WIFEXITED(status) && !WEXITSTATUS(status), "the child ended with status 0x%x",
	      status);
}

void child_kill(struct child *c)
{
	kill(c->pid, SIGKILL);
	waitpid(c->pid, NULL, 0);
	close(c->fd);
}
