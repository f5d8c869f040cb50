/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a segment of a list costs: lists of segments at random places, put and get, posted at once
 * and prepared, on the queue of a core. Two contexts of this process; one thread turns a core of
 * each. Beside it memcpy of the same segments by the same thread. Rounds are interleaved; printed
 * are the medians: ns a segment of the post, and of the whole. With callgrind: --toggle-collect=
 * list_post counts posts, list_whole both.
 *
 * usage: list CPU ROUNDS local|packet|tcp SEGMENTS BYTES [PORT]
 */
#include <gx/gx.h>

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS_MAX 1001

static struct gx *server, *client;
static struct gx_core *at, *from;
static struct gx_conn *conn;
static struct gx_ep *ep;
static struct gx_mem *mem;
static char *mine, *theirs;
static struct gx_seg segs[GX_SEGS_MAX];
static unsigned nr;
static size_t len_b;
static const char *port = "shm";

int list_post(const struct gx_op *op);
void list_whole(const struct gx_op *op, double *post_ns, double *all_ns);

static void check(int ret, const char *what)
{
	if (ret >= 0)
		return;
	fprintf(stderr, "list: %s: %s\n", what, gx_error());
	exit(1);
}

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		fprintf(stderr, "list: cannot pin to CPU %d\n", cpu);
}

static void open_one(struct gx **out)
{
	const struct gx_port_name ports[] = {{.name = port}};
	struct gx_opts opts = GX_INIT(opts);

	opts.ports = ports;
	opts.nr_ports = 1;
	check(gx_open(&opts, out), "open");
}

static void connect_both(const char *link)
{
	struct gx_connect_opts opts = GX_INIT(opts);
	struct gx_region region = GX_INIT(region);
	struct gx_mem *far;
	char addr[32];

	open_one(&server);
	open_one(&client);
	check(gx_mem_alloc(server, GX_MEM_HOST, 0, nr * len_b, &far), "memory");
	check(gx_mem_share(far, "kv", GX_ACCESS_PUT | GX_ACCESS_GET), "region");
	check(gx_mem_alloc(client, GX_MEM_HOST, 0, nr * len_b, &mem), "memory");
	snprintf(addr, sizeof(addr), "127.0.0.1:%d", gx_listen(server, "127.0.0.1:0"));
	opts.link = link;
	check(gx_connect(client, addr, &opts, &conn), "connect");
	check(gx_conn_wait(conn, 5000000000ull), "connect");
	check(gx_conn_region(conn, "kv", 0, &region), "region");
	at = gx_core(server, 0);
	from = gx_core(client, 0);
	ep = gx_conn_ep(conn, 0);
	theirs = gx_mem_addr(far);
	mine = gx_mem_addr(mem);
	for (unsigned i = 0; i < nr; i++)
		segs[i] = (struct gx_seg){
			.mem = mem, .token = region.token, .len = len_b, .remote_off = i * len_b};
}

/* Blocks of ours, in random order, to blocks of theirs, in another one. */
static void segs_mix(void)
{
	for (unsigned i = 0; i < nr; i++)
		segs[i].off = i * len_b;
	for (unsigned i = nr - 1; i > 0; i--) {
		unsigned k = (unsigned)rand() % (i + 1), j = (unsigned)rand() % (i + 1);
		uint64_t a = segs[i].off, b = segs[i].remote_off;

		segs[i].off = segs[k].off;
		segs[k].off = a;
		segs[i].remote_off = segs[j].remote_off;
		segs[j].remote_off = b;
	}
}

__attribute__((noinline)) int list_post(const struct gx_op *op)
{
	return gx_post(gx_core_queue(from), ep, op, 1);
}

/* ns a segment. */
__attribute__((noinline)) void list_whole(const struct gx_op *op, double *post_ns, double *all_ns)
{
	uint64_t begin = gx_now();
	struct gx_comp comp;

	check(list_post(op) == 1 ? 0 : -1, "post");
	*post_ns = (double)(gx_now() - begin) / nr;
	while (!gx_poll(gx_core_queue(from), &comp, 1)) {
		gx_core_turn(from, gx_now());
		gx_core_turn(at, gx_now());
	}
	check(comp.status, "a list");
	*all_ns = (double)(gx_now() - begin) / nr;
}

static double copy_alone(void)
{
	uint64_t begin = gx_now();

	for (unsigned i = 0; i < nr; i++)
		memcpy(theirs + segs[i].remote_off, mine + segs[i].off, len_b);
	return (double)(gx_now() - begin) / nr;
}

static void bytes_check(void)
{
	for (unsigned i = 0; i < nr; i++)
		check(memcmp(mine + segs[i].off, theirs + segs[i].remote_off, len_b) ? -1 : 0,
		      "bytes");
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

static void round_run(double v[9][ROUNDS_MAX], unsigned i)
{
	for (unsigned k = 0; k < 4; k++) {
		struct gx_op op = {.kind = k < 2 ? GX_OP_PUT : GX_OP_GET};

		memset(k < 2 ? mine : theirs, (int)(16 * i + k + 1), nr * len_b);
		if (k % 2)
			check(gx_list_open(client, segs, nr, &op.list), "list");
		else
			op.segs = segs, op.nr_segs = nr;
		list_whole(&op, &v[2 * k][i], &v[2 * k + 1][i]);
		if (k % 2)
			gx_list_close(op.list);
		bytes_check();
	}
	v[8][i] = copy_alone();
}

int main(int argc, char *argv[])
{
	static double v[9][ROUNDS_MAX];
	unsigned rounds = argc >= 6 ? (unsigned)atoi(argv[2]) : 0;

	if (rounds < 1 || rounds > ROUNDS_MAX)
		return 2;
	nr = (unsigned)atoi(argv[4]);
	len_b = strtoull(argv[5], NULL, 0);
	if (!nr || nr > GX_SEGS_MAX || !len_b)
		return 2;
	port = argc > 6 ? argv[6] : port;
	pin(atoi(argv[1]));
	connect_both(argv[3]);
	for (unsigned i = 0; i < rounds; i++) {
		segs_mix();
		round_run(v, i);
	}
	printf("link %s, %u segments of %zu bytes, ns a segment, medians of %u: put: post %.0f, "
	       "prepared %.0f; all %.0f, prepared %.0f; get: post %.0f, prepared %.0f; all %.0f, "
	       "prepared %.0f; memcpy %.0f\n",
	       argv[3], nr, len_b, rounds, median(v[0], rounds), median(v[2], rounds),
	       median(v[1], rounds), median(v[3], rounds), median(v[4], rounds),
	       median(v[6], rounds), median(v[5], rounds), median(v[7], rounds),
	       median(v[8], rounds));
	gx_conn_close(conn);
	gx_close(client);
	gx_close(server);
	return 0;
}
