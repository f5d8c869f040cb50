// SPDX-License-Identifier: Apache-2.0
/*
 * Registrations that come and go, for soak.py: a server makes and frees memory for its clients for as
 * long as it lives. A round: the client asks, the server registers memory and answers with a key for
 * it; the client puts there and gets it back, and both ends compare; the server withdraws the key; the
 * client tries once more, in vain; the server looks that nothing came, and frees the memory.
 *
 * usage: soak_peer serve HOST:PORT KEYS [SIZE]         KEYS: folder of key files. SIZE: lost in each round
 *        soak_peer call HOST:PORT KEY SECONDS LINK BIND       BIND: this end's address
 * Exit status, as gxperf's: 0 good, 1 failed, 2 usage, 3 wrong data, 4 peer lost.
 */
#include <gx/auth.h>
#include <gx/gx.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SOAK_LEN_MAX	(4u << 20)
#define SOAK_TIMEOUT_NS 10000000000ull
#define SOAK_AGAIN	100 /* gx_key_withdraw() and gx_mem_free() are called so often at most */

enum { SOAK_OK, SOAK_FAILED, SOAK_USAGE, SOAK_WRONG, SOAK_LOST };
/* In the order of a round. CLIENT_GONE is the server's own. */
enum soak_what { SOAK_ASK = 1, SOAK_KEY, SOAK_WRITTEN, SOAK_WITHDRAWN, SOAK_TRIED, CLIENT_GONE };

struct soak_msg {
	uint32_t what, reserved;
	uint64_t len, seed;
	struct gx_key key;
};

static void fill(uint64_t *words, uint64_t n, uint64_t seed)
{
	for (uint64_t i = 0; i < n; i++)
		words[i] = (seed + i) * 0x9e3779b97f4a7c15ull;
}

/* Ends the program with the place that differs. */
static void compare(const uint64_t *words, uint64_t n, uint64_t seed, const char *where)
{
	for (uint64_t i = 0; i < n; i++) {
		if (words[i] == (seed + i) * 0x9e3779b97f4a7c15ull)
			continue;
		fprintf(stderr, "wrong data %s: word %llu of %llu\n", where, (unsigned long long)i,
			(unsigned long long)n);
		_exit(SOAK_WRONG);
	}
}

static void must(int ret, const char *what)
{
	if (ret >= 0)
		return;
	fprintf(stderr, "%s: %s (%s)\n", what, gx_error(), strerror(-ret));
	_exit(SOAK_FAILED);
}

/* ---- Server. The main thread works; the control thread only gives it jobs ---- */

struct job {
	struct job *next;
	struct gx_conn *conn;
	struct soak_msg msg;
};

/* Memory of one client. */
struct hold {
	struct hold *next;
	struct gx_conn *conn;
	struct gx_mem *mem;
	void *own; /* NULL: gx_mem_alloc() made it */
	uint64_t len, seed;
	struct gx_key key;
	bool withdrawn;
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t came;
	struct job *first, **last; /* under lock */
	struct hold *holds;
	uint64_t rounds;
} soak = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, &soak.first, NULL, 0};

static void job_put(struct gx_conn *conn, const struct soak_msg *msg)
{
	struct job *job = calloc(1, sizeof(*job));

	if (!job)
		_exit(SOAK_FAILED);
	job->conn = conn;
	job->msg = *msg;
	pthread_mutex_lock(&soak.lock);
	*soak.last = job;
	soak.last = &job->next;
	pthread_cond_signal(&soak.came);
	pthread_mutex_unlock(&soak.lock);
}

static struct job *job_get(void)
{
	struct job *job;

	pthread_mutex_lock(&soak.lock);
	while (!soak.first)
		pthread_cond_wait(&soak.came, &soak.lock);
	job = soak.first;
	soak.first = job->next;
	if (!soak.first)
		soak.last = &soak.first;
	pthread_mutex_unlock(&soak.lock);
	return job;
}

static void serve_on_msg(void *arg, struct gx_conn *conn, const void *data, uint32_t len)
{
	if (len == sizeof(struct soak_msg))
		job_put(conn, data);
}

static void serve_on_conn(void *arg, struct gx_conn *conn, enum gx_conn_event event, int err,
			  const char *why)
{
	static const struct soak_msg gone = {.what = CLIENT_GONE};

	if (event == GX_CONN_EVENT_DOWN)
		job_put(conn, &gone);
}

/* Every second memory is ours, of which nothing may be touched once gx has given it back. */
static void hold_new(struct gx *gx, const struct job *job)
{
	const struct gx_key_opts opts = {.size = sizeof(opts),
					 .access = GX_ACCESS_PUT | GX_ACCESS_GET};
	struct soak_msg msg = {.what = SOAK_KEY, .seed = job->msg.seed};
	struct hold *h = calloc(1, sizeof(*h));

	if (!h || !job->msg.len || job->msg.len > SOAK_LEN_MAX)
		_exit(SOAK_FAILED);
	h->conn = job->conn;
	h->len = job->msg.len;
	h->seed = job->msg.seed;
	if (h->seed % 2) {
		h->own = mmap(NULL, h->len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			      0);
		must(h->own == MAP_FAILED ? -errno : 0, "mmap");
		must(gx_mem_reg(gx, GX_MEM_HOST, 0, h->own, h->len, &h->mem), "register");
	} else {
		must(gx_mem_alloc(gx, GX_MEM_HOST, 0, h->len, &h->mem), "allocate");
	}
	must(gx_mem_key(h->mem, &opts, &h->key), "key");
	h->next = soak.holds;
	soak.holds = h;
	msg.key = h->key;
	gx_conn_msg(h->conn, &msg, sizeof(msg)); /* a client that has gone is seen by CLIENT_GONE */
}

static void hold_withdraw(struct gx *gx, struct hold *h)
{
	int ret = -EAGAIN;

	for (int i = 0; i < SOAK_AGAIN && ret == -EAGAIN; i++)
		ret = gx_key_withdraw(gx, &h->key);
	must(ret, "withdraw");
	h->withdrawn = true;
}

static void hold_free(struct gx *gx, struct hold **at)
{
	struct hold *h = *at;
	int ret = -EAGAIN;

	if (!h->withdrawn)
		hold_withdraw(gx, h);
	for (int i = 0; i < SOAK_AGAIN && ret == -EAGAIN; i++)
		ret = gx_mem_free(h->mem);
	must(ret, "free");
	if (h->own)
		munmap(h->own, h->len);
	*at = h->next;
	free(h);
}

static void serve_job(struct gx *gx, const struct job *job, size_t lose)
{
	const struct soak_msg msg = {.what = SOAK_WITHDRAWN};
	struct hold **at = &soak.holds;

	while (*at && ((*at)->conn != job->conn))
		at = &(*at)->next;
	if (job->msg.what == SOAK_ASK) {
		hold_new(gx, job);
	} else if (job->msg.what == SOAK_WRITTEN && *at) {
		hold_withdraw(gx, *at);
		compare(gx_mem_addr((*at)->mem), (*at)->len / 8, (*at)->seed, "at the server");
		gx_conn_msg(job->conn, &msg, sizeof(msg));
	} else if (job->msg.what == SOAK_TRIED && *at) {
		compare(gx_mem_addr((*at)->mem), (*at)->len / 8, (*at)->seed,
			"behind the withdrawal");
		hold_free(gx, at);
		soak.rounds++;
		if (lose)
			memset(malloc(lose), 1, lose);
	} else if (job->msg.what == CLIENT_GONE) {
		if (*at)
			hold_free(gx, at);
		gx_conn_close(job->conn);
		printf("%llu rounds\n", (unsigned long long)soak.rounds);
		fflush(stdout);
	}
}

/* Control thread. */
static void serve_on_hangup(void *arg, int signo)
{
	must(gx_auth_reload(*(struct gx **)arg), "reload");
}

static void __attribute__((noreturn)) serve(const char *addr, const char *keys, size_t lose)
{
	static struct gx *gx;
	const int hangup = SIGHUP;
	const struct gx_auth_opts auth = {
		.size = sizeof(auth), .key_files = &keys, .nr_key_files = 1};
	const struct gx_port_name ports[] = {{.name = "shm"}, {.name = "udp"}};
	struct gx_opts o = GX_INIT(o);
	char host[64], stats[32];
	sigset_t set;
	int port;

	sigemptyset(&set);
	sigaddset(&set, SIGHUP);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	snprintf(host, sizeof(host), "%.*s", (int)strcspn(addr, ":"), addr);
	o.server = true;
	o.ports = ports;
	o.nr_ports = 2;
	o.bind_host = host;
	o.auth = &auth;
	o.peer_timeout_ns = SOAK_TIMEOUT_NS;
	o.on_conn = serve_on_conn;
	o.on_msg = serve_on_msg;
	must(gx_open(&o, &gx), "open");
	must(gx_signals(gx, &hangup, 1, serve_on_hangup, &gx), "signals");
	must(gx_core_start(gx_core(gx, 0)), "start");
	port = gx_listen(gx, addr);
	must(port, "listen");
	snprintf(stats, sizeof(stats), "@soak-%d", port);
	must(gx_stats_listen(gx, stats), "counters");
	printf("port %d\n", port);
	fflush(stdout);
	for (;;) {
		struct job *job = job_get();

		serve_job(gx, job, lose);
		free(job);
	}
}

/* ---- Client. Its one thread turns the core ---- */

static struct {
	pthread_mutex_t lock;
	struct soak_msg msg; /* under lock, until .has is taken back */
	_Atomic bool has, down;
} caller = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void call_on_msg(void *arg, struct gx_conn *conn, const void *data, uint32_t len)
{
	if (len != sizeof(caller.msg))
		return;
	pthread_mutex_lock(&caller.lock);
	memcpy(&caller.msg, data, len);
	pthread_mutex_unlock(&caller.lock);
	atomic_store(&caller.has, true);
}

static void call_on_conn(void *arg, struct gx_conn *conn, enum gx_conn_event event, int err,
			 const char *why)
{
	if (event != GX_CONN_EVENT_DOWN)
		return;
	fprintf(stderr, "the connection has ended: %s\n", why);
	atomic_store(&caller.down, true);
}

/* Turns, and leaves the CPU to others in between. */
static void turn(struct gx_core *core)
{
	const struct timespec ts = {.tv_nsec = 50000};

	for (int i = 0; i < 200; i++)
		if (gx_core_turn(core, gx_now()))
			return;
	nanosleep(&ts, NULL);
}

static struct soak_msg wait_msg(struct gx_core *core, enum soak_what what)
{
	struct soak_msg msg;

	while (!atomic_exchange(&caller.has, false)) {
		if (atomic_load(&caller.down))
			_exit(SOAK_LOST);
		turn(core);
	}
	pthread_mutex_lock(&caller.lock);
	msg = caller.msg;
	pthread_mutex_unlock(&caller.lock);
	if (msg.what != what)
		_exit(SOAK_FAILED);
	return msg;
}

static int run(struct gx_core *core, struct gx_ep *ep, const struct gx_op *op)
{
	struct gx_queue *queue = gx_core_queue(core);
	struct gx_comp comp;
	int ret;

	while (!(ret = gx_post(queue, ep, op, 1)))
		turn(core);
	if (ret < 0)
		return ret;
	while (!gx_poll(queue, &comp, 1))
		turn(core);
	return comp.status;
}

static void run_must(struct gx_core *core, struct gx_ep *ep, const struct gx_op *op)
{
	int ret = run(core, ep, op);

	if (!ret)
		return;
	fprintf(stderr, "operation %d: %s\n", (int)op->kind, gx_strerror(ret));
	_exit(ret == -ECONNRESET || ret == -ENOTCONN || ret == -ECANCELED || ret == -ETIMEDOUT
		      ? SOAK_LOST
		      : SOAK_FAILED);
}

static void tell(struct gx_conn *conn, const struct soak_msg *msg)
{
	if (gx_conn_msg(conn, msg, sizeof(*msg)))
		_exit(SOAK_LOST);
}

static void call_round(struct gx_core *core, struct gx_conn *conn, uint64_t *words, uint64_t seed)
{
	struct soak_msg msg = {.what = SOAK_ASK, .seed = seed};
	struct gx_region region = GX_INIT(region);
	struct gx_ep *ep = gx_conn_ep(conn, 0);
	struct gx_op op = {.kind = GX_OP_PUT, .addr = words};
	int ret;

	msg.len = op.len = 8 * (1 + seed * 0x9e3779b97f4a7c15ull % (SOAK_LEN_MAX / 8));
	tell(conn, &msg);
	msg = wait_msg(core, SOAK_KEY);
	must(gx_conn_key(conn, &msg.key, &region), "key of memory");
	op.token = region.token;
	fill(words, op.len / 8, seed);
	run_must(core, ep, &op);
	memset(words, 0, op.len);
	op.kind = GX_OP_GET;
	run_must(core, ep, &op);
	compare(words, op.len / 8, seed, "got back");
	msg.what = SOAK_WRITTEN;
	tell(conn, &msg);
	wait_msg(core, SOAK_WITHDRAWN);
	fill(words, op.len / 8, ~seed);
	op.kind = GX_OP_PUT;
	ret = run(core, ep, &op);
	if (!ret) {
		fprintf(stderr, "a put behind the withdrawal was taken\n");
		_exit(SOAK_WRONG);
	}
	if (ret != -ESTALE)
		run_must(core, ep, &op);
	msg.what = SOAK_TRIED;
	tell(conn, &msg);
}

static int call(const char *addr, const char *key, double seconds, const char *link,
		const char *bind)
{
	const struct gx_auth_opts auth = {.size = sizeof(auth), .key_file = key};
	struct gx_connect_opts co = GX_INIT(co);
	struct gx_opts o = GX_INIT(o);
	uint64_t *words = malloc(SOAK_LEN_MAX), rounds = 0, end;
	struct gx_conn *conn;
	struct gx *gx;

	o.auth = &auth;
	o.peer_timeout_ns = SOAK_TIMEOUT_NS;
	o.bind_host = bind;
	o.on_msg = call_on_msg;
	o.on_conn = call_on_conn;
	co.link = link;
	co.timeout_ns = SOAK_TIMEOUT_NS;
	if (!words)
		return SOAK_FAILED;
	must(gx_open(&o, &gx), "open");
	must(gx_connect(gx, addr, &co, &conn), "connect");
	if (gx_conn_wait(conn, SOAK_TIMEOUT_NS)) {
		fprintf(stderr, "connect: %s\n", gx_error());
		return SOAK_LOST;
	}
	for (end = gx_now() + (uint64_t)(seconds * 1e9); gx_now() < end; rounds++)
		call_round(gx_core(gx, 0), conn, words, gx_now());
	printf("%llu rounds\n", (unsigned long long)rounds);
	gx_conn_close(conn);
	gx_close(gx);
	free(words);
	return SOAK_OK;
}

int main(int argc, char **argv)
{
	signal(SIGPIPE, SIG_IGN);
	if (argc >= 4 && argc <= 5 && !strcmp(argv[1], "serve"))
		serve(argv[2], argv[3], argc == 5 ? strtoul(argv[4], NULL, 10) : 0);
	if (argc == 7 && !strcmp(argv[1], "call"))
		return call(argv[2], argv[3], atof(argv[4]), argv[5], argv[6]);
	fprintf(stderr, "usage: soak_peer serve HOST:PORT KEYS [SIZE] | call HOST:PORT KEY SECONDS "
			"LINK BIND\n");
	return SOAK_USAGE;
}
