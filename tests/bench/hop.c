/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a hop costs: puts of 64 bytes from the core's own thread against those of another thread,
 * one at a time and 32 at once. Two contexts of this process over shm; one
 * thread turns a core of each, so that all that differs is the way there and back. Rounds are
 * interleaved; the last line has the medians. With one argument more, "direct", only the first kind
 * runs, for callgrind (--toggle-collect=direct_puts).
 *
 * usage: hop CPU-OF-CORES CPU-OF-THE-OTHER-THREAD ROUNDS [packet|local|tcp [direct]]
 */
#include <gx/gx.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PUTS	   20000 /* a round */
#define ROUNDS_MAX 101
#define DEPTH	   32
#define PUT_B	   64

static struct gx *server, *client;
static struct gx_core *at, *from;
static struct gx_queue *own; /* of @from */
static struct gx_conn *conn;
static struct gx_ep *ep;
static struct gx_op op;
static char payload[PUT_B], *landed;
static _Atomic bool quit;

static void check(int ret, const char *what)
{
	if (ret >= 0)
		return;
	fprintf(stderr, "hop: %s: %s\n", what, gx_error());
	exit(1);
}

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (pthread_setaffinity_np(pthread_self(), sizeof(set), &set))
		fprintf(stderr, "hop: cannot pin to CPU %d\n", cpu);
}

static void open_one(struct gx **out)
{
	const struct gx_port_name ports[] = {{.name = "shm"}};
	struct gx_opts opts = GX_INIT(opts);

	opts.ports = ports;
	opts.nr_ports = 1;
	check(gx_open(&opts, out), "open");
}

static void both_turn(void)
{
	gx_core_turn(from, gx_now());
	gx_core_turn(at, gx_now());
}

static void comps_check(const struct gx_comp comps[], unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		check(comps[i].status, "a put");
}

/* ns of one put. */
double direct_puts(unsigned depth);

__attribute__((noinline)) double direct_puts(unsigned depth)
{
	uint64_t begin = gx_now();
	unsigned posted = 0, done = 0;

	while (done < PUTS) {
		struct gx_comp comps[DEPTH];
		unsigned n;

		while (posted < PUTS && posted - done < depth) {
			int ret = gx_post(own, ep, &op, 1);

			check(ret, "post");
			if (!ret)
				break;
			posted++;
		}
		both_turn();
		n = gx_poll(own, comps, DEPTH);
		comps_check(comps, n);
		done += n;
	}
	return (double)(gx_now() - begin) / PUTS;
}

static double submitted_puts(struct gx_queue *q, unsigned depth)
{
	uint64_t begin = gx_now();
	unsigned posted = 0, done = 0;

	while (done < PUTS) {
		struct gx_comp comps[DEPTH];
		unsigned n;

		while (posted < PUTS && posted - done < depth) {
			int ret = gx_post(q, ep, &op, 1);

			check(ret, "submit");
			if (!ret)
				break;
			posted++;
		}
		n = gx_poll(q, comps, DEPTH);
		comps_check(comps, n);
		done += n;
	}
	return (double)(gx_now() - begin) / PUTS;
}

static void *cores_turn(void *arg)
{
	pin(*(int *)arg);
	while (!atomic_load_explicit(&quit, memory_order_relaxed))
		both_turn();
	return NULL;
}

static void submit_round(int cpu, int other_cpu, double ns[2])
{
	struct gx_queue *q;
	pthread_t thread;

	check(gx_queue_open(client, NULL, &q), "queue");
	atomic_store(&quit, false);
	if (pthread_create(&thread, NULL, cores_turn, &cpu))
		exit(1);
	pin(other_cpu);
	ns[0] = submitted_puts(q, 1);
	ns[1] = submitted_puts(q, DEPTH);
	while (gx_queue_close(q))
		;
	atomic_store(&quit, true);
	pthread_join(thread, NULL);
	pin(cpu);
}

static int less(const void *a, const void *b)
{
	return (*(const double *)a > *(const double *)b) -
	       (*(const double *)a < *(const double *)b);
}

static double median(double v[], unsigned n)
{
	qsort(v, n, sizeof(v[0]), less);
	return v[n / 2];
}

static void connect_both(const char *link)
{
	struct gx_connect_opts opts = GX_INIT(opts);
	struct gx_region region = GX_INIT(region);
	struct gx_mem *mem;
	char addr[32];

	open_one(&server);
	open_one(&client);
	check(gx_mem_alloc(server, GX_MEM_HOST, 0, PUT_B, &mem), "memory");
	check(gx_mem_share(mem, "kv", GX_ACCESS_PUT), "region");
	snprintf(addr, sizeof(addr), "127.0.0.1:%d", gx_listen(server, "127.0.0.1:0"));
	opts.link = link;
	check(gx_connect(client, addr, &opts, &conn), "connect");
	check(gx_conn_wait(conn, 5000000000ull), "connect");
	check(gx_conn_region(conn, "kv", 0, &region), "region");
	at = gx_core(server, 0);
	from = gx_core(client, 0);
	own = gx_core_queue(from);
	ep = gx_conn_ep(conn, 0);
	landed = gx_mem_addr(mem);
	op.kind = GX_OP_PUT;
	op.addr = payload;
	op.len = PUT_B;
	op.token = region.token;
}

int main(int argc, char *argv[])
{
	static double v[6][ROUNDS_MAX]; /* direct, submitted, their ratio; at depth 1, then more */
	int cpu = argc > 3 ? atoi(argv[1]) : 0, other = argc > 3 ? atoi(argv[2]) : 1;
	unsigned rounds = argc > 3 ? (unsigned)atoi(argv[3]) : 11;
	const char *link = argc > 4 ? argv[4] : "packet";

	if (rounds < 1 || rounds > ROUNDS_MAX)
		return 2;
	pin(cpu);
	connect_both(link);
	memset(payload, 0x5a, sizeof(payload));
	for (unsigned i = 0; i < rounds; i++) {
		double ns[2] = {0, 0};

		v[0][i] = direct_puts(1);
		v[3][i] = direct_puts(DEPTH);
		if (argc < 6)
			submit_round(cpu, other, ns);
		v[1][i] = ns[0];
		v[4][i] = ns[1];
		v[2][i] = ns[0] / v[0][i];
		v[5][i] = ns[1] / v[3][i];
	}
	printf("64-byte put, link %s, ns, medians of %u rounds of %d: one at a time: direct %.0f, "
	       "submitted "
	       "%.0f, "
	       "ratio %.2f; %d at once: direct %.0f, submitted %.0f, ratio %.2f\n",
	       link, rounds, PUTS, median(v[0], rounds), median(v[1], rounds), median(v[2], rounds),
	       DEPTH, median(v[3], rounds), median(v[4], rounds), median(v[5], rounds));
	check(memcmp(payload, landed, PUT_B) ? -1 : 0, "payload");
	gx_conn_close(conn);
	gx_close(client);
	gx_close(server);
	return 0;
}
