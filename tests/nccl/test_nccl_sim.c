/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NCCL plugin over the simulated network, with its faults and in virtual time. The plugin's
 * sources are linked in. One context of it has both ends of each comm, as between two GPUs of a
 * process. The thread of main() plays the progress threads of both ends, turns the plugin's cores
 * and moves the clock; a service thread connects, registers and closes, as NCCL's does. gx's control
 * thread and the plugin's keeper run as ever, in real time. Arguments name cases; default: all.
 * GX_TEST_FULL=1 does more rounds, GX_TEST_LOG=1 shows the plugin's lines.
 */
#include "gx/gx.h"
#include "gx/log.h"
#include "kit/common_seeds.h"
#include "nccl_rank.h"
#include "sim/port_sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define KIB	 1024u
#define MIB	 (1024u * KIB)
#define MS	 1000000ull
#define SECOND	 1000000000ull
#define CORES	 2
#define TURN_NS	 300	/* what a turn takes */
#define STEP_NS	 1000	/* a turn that finds nothing, unless something happens before */
#define PASS_NS	 10000	/* the same while no thread is waited for */
#define LEAP_NS	 100000 /* the same while a time-out is waited for */
#define ERROR_MS 30000	/* in real time */
#define STREAMS	 3
#define FULL_B	 100

/* The plugin's calls of gx_core_start() and gx_core_stop(): meson.build renames them. */
int sim_core_start(struct gx_core *core);
void sim_core_stop(struct gx_core *core);

extern const struct nccl_net_v12 ncclNetPlugin_v12;

static struct {
	pthread_mutex_t lock; /* guards core[]: a core that was stopped does not turn */
	struct gx_core *core[CORES];
	/* Of the thread of main(). */
	struct sim_net *net;
	uint64_t now_ns, step_ns, random;
} sim = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- Time ---- */

int sim_core_start(struct gx_core *core)
{
	unsigned i = 0;

	pthread_mutex_lock(&sim.lock);
	while (i < CORES && sim.core[i])
		i++;
	CHECK(i < CORES);
	sim.core[i] = core;
	pthread_mutex_unlock(&sim.lock);
	return 0;
}

void sim_core_stop(struct gx_core *core)
{
	pthread_mutex_lock(&sim.lock);
	for (unsigned i = 0; i < CORES; i++)
		if (sim.core[i] == core)
			sim.core[i] = NULL;
	pthread_mutex_unlock(&sim.lock);
}

/* Each core turns once, and time goes on: as little as the cores need while they are busy, else to
 * the next event. */
static void sim_turn(void)
{
	uint64_t then_ns;
	bool busy = false;

	pthread_mutex_lock(&sim.lock);
	for (unsigned i = 0; i < CORES; i++)
		if (sim.core[i])
			busy |= gx_core_turn(sim.core[i], sim.now_ns);
	pthread_mutex_unlock(&sim.lock);
	then_ns = GX_MIN(sim_net_next(sim.net), sim.now_ns + sim.step_ns);
	sim.now_ns += TURN_NS;
	if (!busy)
		sim.now_ns = GX_MAX(sim.now_ns, then_ns);
	sim_net_advance(sim.net, sim.now_ns);
}

static void sim_pass(uint64_t ns)
{
	uint64_t until_ns = sim.now_ns + ns;

	sim.step_ns = PASS_NS;
	while (sim.now_ns < until_ns)
		sim_turn();
	sim.step_ns = STEP_NS;
}

static unsigned sim_dice(unsigned n)
{
	return (unsigned)(mix(sim.random++) % n);
}

static struct sim_counts sim_counted(void)
{
	struct sim_counts counts;

	sim_net_counts(sim.net, &counts);
	return counts;
}

/* ---- The rank ---- */

static void sim_open(struct rank *r, const struct sim_cfg *cfg, const char *timeout_s)
{
	static struct world world;
	char port[32];

	memset(&world, 0, sizeof(world));
	world.nr_ranks = 1;
	CHECK(!sim_net_open(cfg, &sim.net));
	sim.now_ns = sim_net_now(sim.net);
	sim.step_ns = STEP_NS;
	sim.random = cfg->seed;
	snprintf(port, sizeof(port), "sim:net=%u", sim_net_id(sim.net));
	setenv("GX_NCCL_PORTS", port, 1);
	setenv("GX_NCCL_TIMEOUT_S", timeout_s ? timeout_s : "30", 1);
	*r = (struct rank){
		.w = &world,
		.port = "sim",
		.is_full = getenv("GX_TEST_FULL"),
		.net = {.version = 12, .table = &ncclNetPlugin_v12, .v12 = &ncclNetPlugin_v12}};
	CHECK(!net_init(&r->net, &r->ctx) && r->ctx);
	worker_start(&r->service);
}

static void job_finalize(void *arg)
{
	struct rank *r = arg;

	CHECK(!net_finalize(&r->net, r->ctx));
}

static void sim_close(struct rank *r)
{
	worker_do(&r->service, job_finalize, r);
	worker_end(&r->service);
	sim_net_close(sim.net);
}

/* What waits for a core's turn is the service thread's. */
struct buf_job {
	struct rank *r;
	struct buf *b;
};

static void job_dereg(void *arg)
{
	struct buf_job *j = arg;

	CHECK(!j->r->net.v12->dereg_mr(NULL, j->b->mh));
}

static void buf_end(struct rank *r, struct buf *b)
{
	worker_do(&r->service, job_dereg, &(struct buf_job){r, b});
	buf_free(b);
}

static void job_stream_end(void *arg)
{
	stream_close(arg);
}

/* All streams until they are over, in an order by chance. */
static void streams_play(struct stream s[], unsigned nr)
{
	for (unsigned i = 0; i < nr; i++)
		stream_begin(&s[i]);
	UNTIL(({
		unsigned left = 0;

		for (unsigned i = 0; i < nr; i++) {
			if (!sim_dice(3))
				stream_turn(&s[i], sim_dice(2));
			left += !stream_is_over(&s[i]);
		}
		!left;
	}));
}

/* Nothing of what was before is left over. */
static void exchange(struct rank *r, unsigned slot)
{
	static const size_t sizes[] = {1, 100000, 8, 4096};
	struct link l;
	struct stream s = {
		.link = &l, .count = 20, .depth = 4, .sizes = sizes, .nr_sizes = 4, .seed = slot};

	rank_link(r, &l, 0, slot);
	stream_open(&s);
	streams_play(&s, 1);
	worker_do(&r->service, job_stream_end, &s);
	rank_unlink(r, &l);
}

static void *send_one(struct rank *r, struct link *l, struct buf *b)
{
	void *req;

	CHECK(!net_isend(&r->net, l->send, b->base, b->len, b->mh, &req) && req);
	return req;
}

static void *recv_one(struct rank *r, struct link *l, struct buf *b)
{
	void *req;

	CHECK(!net_irecv(&r->net, l->recv, b->base, b->len, b->mh, &req) && req);
	return req;
}

/* ---- Data ---- */

/* Several comms at once; each byte is checked. */
static void case_streams(struct rank *r)
{
	static const size_t sizes[] = {0, 1, 7, 8, 4 * KIB, 64 * KIB, 64 * KIB + 1, 300000};
	struct stream s[STREAMS];
	struct link l[STREAMS];

	for (unsigned i = 0; i < STREAMS; i++) {
		rank_link(r, &l[i], 0, i);
		s[i] = (struct stream){.link = &l[i],
				       .count = 40,
				       .depth = 4 + 6 * i,
				       .sizes = sizes,
				       .nr_sizes = 8,
				       .seed = 1000 * i + sim.random};
		stream_open(&s[i]);
	}
	streams_play(s, STREAMS);
	for (unsigned i = 0; i < STREAMS; i++) {
		worker_do(&r->service, job_stream_end, &s[i]);
		rank_unlink(r, &l[i]);
	}
}

static void case_faults(struct rank *r)
{
	struct sim_counts n;

	case_streams(r);
	n = sim_counted();
	CHECK(n.lost && n.dup && n.reordered && n.corrupted && n.rotten,
	      "%u packets: %u lost, %u twice, %u late, %u and %u damaged", (unsigned)n.sent,
	      (unsigned)n.lost, (unsigned)n.dup, (unsigned)n.reordered, (unsigned)n.corrupted,
	      (unsigned)n.rotten);
}

static void case_narrow(struct rank *r)
{
	case_streams(r);
	CHECK(sim_counted().blackhole, "the path was wide");
}

/* Each packet of an exchange is lost, one at a time. */
static void case_each(struct rank *r)
{
	static const size_t sizes[] = {20000, 8};
	static uint64_t drop[2]; /* another address at each time: the net then begins anew */
	struct sim_cfg cfg = {.rate_bps = 25000000000, .delay_ns = 10000, .nr_drop = 1};
	uint64_t nr = 0, from_ns, lost;
	struct link l;
	struct stream s = {.link = &l, .count = 2, .depth = 2, .sizes = sizes, .nr_sizes = 2};

	rank_link(r, &l, 0, 0);
	stream_open(&s);
	do {
		sim_pass(2 * MS);
		drop[nr % 2] = sim_counted().sent + nr;
		cfg.drop = &drop[nr % 2];
		lost = sim_counted().lost;
		sim_net_set(sim.net, &cfg);
		from_ns = sim.now_ns;
		s.seed = nr;
		streams_play(&s, 1);
		CHECK(sim.now_ns - from_ns < SECOND, "packet %u: %u ms", (unsigned)nr,
		      (unsigned)((sim.now_ns - from_ns) / MS));
		sim_pass(2 * MS);
	} while (sim_counted().lost > lost && ++nr < 1000);
	CHECK(nr > 10 && nr < 1000, "an exchange has %u packets", (unsigned)nr);
	worker_do(&r->service, job_stream_end, &s);
	rank_unlink(r, &l);
}

/* Back-pressure: sends without receives, then the receives. */
static void case_full(struct rank *r)
{
	void *send[NCCL_REQS_MAX], *recv[NCCL_REQS_MAX], *none;
	struct buf out, in;
	struct link l;
	int size;

	rank_link(r, &l, 0, 0);
	buf_open(r, l.send, &out, NCCL_REQS_MAX * FULL_B);
	buf_open(r, l.recv, &in, NCCL_REQS_MAX * FULL_B);
	for (unsigned i = 0; i < NCCL_REQS_MAX; i++) {
		char *at = out.base + i * FULL_B;

		pattern_fill(at, FULL_B, i);
		CHECK(!net_isend(&r->net, l.send, at, FULL_B, out.mh, &send[i]) && send[i]);
	}
	sim_pass(5 * MS);
	CHECK(!net_isend(&r->net, l.send, out.base, FULL_B, out.mh, &none) && !none);
	for (unsigned i = 0; i < NCCL_REQS_MAX; i++)
		CHECK(!net_irecv(&r->net, l.recv, in.base + i * FULL_B, FULL_B, in.mh, &recv[i]) &&
		      recv[i]);
	for (unsigned i = 0; i < NCCL_REQS_MAX; i++) {
		req_wait(r, recv[i], &size);
		CHECK(size == FULL_B && pattern_is(in.base + i * FULL_B, FULL_B, i), "message %u",
		      i);
	}
	for (unsigned i = NCCL_REQS_MAX; i-- > 0;)
		req_wait(r, send[i], &size);
	buf_end(r, &out);
	buf_end(r, &in);
	rank_unlink(r, &l);
	exchange(r, 1);
}

/* ---- Ends ---- */

static void job_close_send(void *arg)
{
	struct link *l = arg;

	CHECK(!l->r->net.v12->close_send(l->send));
	l->send = NULL;
}

static void job_close_recv(void *arg)
{
	struct link *l = arg;

	CHECK(!l->r->net.v12->close_recv(l->recv));
	l->recv = NULL;
}

/* One end closes. The requests of the other end fail, and those of other comms go on. */
static void case_close(struct rank *r)
{
	struct buf b, c;
	struct link l;

	for (unsigned round = 0; round < 4; round++) {
		bool sender = round % 2;
		void *req;

		rank_link(r, &l, 0, 0);
		buf_open(r, l.send, &b, MIB);
		buf_open(r, l.send, &c, MIB);
		if (round / 2) { /* something is under way */
			send_one(r, &l, &b);
			recv_one(r, &l, &c);
			sim_pass(sim_dice(300) * 1000);
		}
		req = sender ? recv_one(r, &l, &c) : send_one(r, &l, &b);
		worker_do(&r->service, sender ? job_close_send : job_close_recv, &l);
		CHECK(req_error(r, req, ERROR_MS) == NCCL_REMOTE_ERROR);
		buf_end(r, &b);
		buf_end(r, &c);
		rank_unlink(r, &l);
		exchange(r, 1);
	}
}

/* Both ends close with requests under way, and registrations go before or after. */
static void case_abort(struct rank *r)
{
	for (unsigned round = 0; round < 8; round++) {
		struct buf out, in;
		struct link l;

		rank_link(r, &l, 0, 0);
		buf_open(r, l.send, &out, MIB);
		buf_open(r, l.recv, &in, MIB);
		for (unsigned i = 0; i < 8; i++) {
			send_one(r, &l, &out);
			if (i % 2 || round % 2)
				recv_one(r, &l, &in);
		}
		sim_pass(sim_dice(500) * 1000);
		if (round / 2 % 2)
			rank_unlink(r, &l);
		buf_end(r, &out);
		buf_end(r, &in);
		rank_unlink(r, &l);
	}
	exchange(r, 1);
}

/* A receive has begun to arrive. After deregMr nobody writes there. */
static void case_dereg(struct rank *r)
{
	for (unsigned round = 0; round < 8; round++) {
		struct buf out, in = {.len = 4 * MIB};
		struct link l;

		rank_link(r, &l, 0, 0);
		buf_open(r, l.send, &out, in.len);
		memset(out.base, 1, out.len);
		in.base = mmap(NULL, in.len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			       -1, 0);
		CHECK(in.base != MAP_FAILED);
		CHECK(!r->net.v12->reg_mr(l.recv, in.base, in.len, NCCL_PTR_HOST, &in.mh));
		recv_one(r, &l, &in);
		send_one(r, &l, &out);
		UNTIL(in.base[0] || in.base[in.len - 1]);
		sim_pass(sim_dice(200) * 1000);
		worker_do(&r->service, job_dereg, &(struct buf_job){r, &in});
		CHECK(!mprotect(in.base, in.len, PROT_NONE));
		sim_pass(20 * MS);
		buf_end(r, &out);
		rank_unlink(r, &l);
		munmap(in.base, in.len);
	}
	exchange(r, 1);
}

/* From one moment on no packet arrives. Both ends learn it by the time-out; then a new connection
 * carries what comes. */
static void case_silent(struct rank *r)
{
	struct sim_cfg dead = {.loss_ppm = 1000000}, good = {.delay_ns = 10000};
	struct buf out, in;
	void *send, *recv;
	uint64_t from_ns;
	struct link l;

	rank_link(r, &l, 0, 0);
	buf_open(r, l.send, &out, MIB);
	buf_open(r, l.recv, &in, MIB);
	send = send_one(r, &l, &out);
	recv = recv_one(r, &l, &in);
	sim_pass(20000);
	sim_net_set(sim.net, &dead);
	from_ns = sim.now_ns;
	sim.step_ns = LEAP_NS;
	CHECK(req_error(r, recv, ERROR_MS) == NCCL_REMOTE_ERROR);
	CHECK(req_error(r, send, ERROR_MS) == NCCL_REMOTE_ERROR);
	CHECK(sim.now_ns - from_ns >= SECOND, "too early");
	sim.step_ns = STEP_NS;
	buf_end(r, &out);
	buf_end(r, &in);
	rank_unlink(r, &l);
	sim_net_set(sim.net, &good);
	exchange(r, 1);
}

/* ---- Cases ---- */

#define GOOD .rate_bps = 25000000000, .delay_ns = 10000
#define FAULTS                                                                                     \
	GOOD, .loss_ppm = 10000, .dup_ppm = 10000, .corrupt_ppm = 10000, .rot_ppm = 10000,         \
	      .reorder_ppm = 50000, .reorder_slots = 30

static const struct sim_case {
	const char *name;
	void (*run)(struct rank *r);
	struct sim_cfg cfg;
	bool has_seeds; /* a round for each of some */
	const char *timeout_s;
} cases[] = {
	{"faults", case_faults, {FAULTS}, true, NULL},
	{"attach", case_faults, {FAULTS, .attach = true}, true, NULL},
	{"narrow", case_narrow, {GOOD, .loss_ppm = 10000, .path_payload_b = 1408}, true, NULL},
	{"each", case_each, {GOOD}, false, NULL},
	{"full", case_full, {FAULTS}, true, NULL},
	{"close", case_close, {FAULTS}, true, NULL},
	{"abort", case_abort, {FAULTS}, true, NULL},
	{"abort_attach", case_abort, {FAULTS, .attach = true}, true, NULL},
	{"dereg", case_dereg, {FAULTS}, true, NULL},
	{"dereg_attach", case_dereg, {FAULTS, .attach = true}, true, NULL},
	{"silent", case_silent, {GOOD}, false, "2"},
};

static void case_run(const struct sim_case *c)
{
	unsigned seeds = c->has_seeds ? common_seeds(8, 50) : 1;
	printf("[ RUN      ] %s\n", c->name);
	fflush(stdout);
	for (unsigned seed = 0; seed < seeds; seed++) {
		struct sim_cfg cfg = c->cfg;
		struct rank r;

		cfg.seed = seed;
		sim_open(&r, &cfg, c->timeout_s);
		c->run(&r);
		sim_close(&r);
	}
	printf("[       OK ] %s\n", c->name);
}

static bool is_named(const char *name, int argc, char *argv[])
{
	for (int i = 1; i < argc; i++)
		if (!strcmp(argv[i], name))
			return true;
	return argc == 1;
}

int main(int argc, char *argv[])
{
	int nr = 0;

	/* gx_close() turns the cores in real time, and they would warn of the time between. */
	if (!getenv("GX_LOG"))
		gx_log_level_set(GX_LOG_ERR);
	setenv("GX_NCCL_MODE", "host", 1);
	setenv("GX_NCCL_LINK", "packet", 1);
	setenv("GX_NCCL_PULL", "off", 1);
	setenv("GX_NCCL_CORES", "2", 1);
	unsetenv("GX_NCCL_CPUS");
	unsetenv("GX_ADDR");
	unsetenv("GX_KEY_FILE");
	gx_port_add(&port_sim_ops);
	nap_instead = sim_turn;
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		if (is_named(cases[i].name, argc, argv)) {
			case_run(&cases[i]);
			nr++;
		}
	if (!nr || (argc > 1 && nr != argc - 1)) {
		fprintf(stderr, "usage: test_nccl_sim [CASE...]\n");
		return 2;
	}
	printf("[  PASSED  ] %d test(s).\n", nr);
	return 0;
}
