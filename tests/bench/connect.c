// SPDX-License-Identifier: Apache-2.0
/*
 * What a connection over link local costs: the first, which maps the server's region, the second,
 * which finds it mapped, and a put over each. Between two processes, with memory of GPU 0; without a
 * GPU, of the host. The server compares the bytes. A second connection that maps is an error.
 */
#include <gx/gx.h>

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS	9
#define WAIT_NS 20000000000ull
#define STATS_B (256u << 10)
#define USE_B	((uint64_t)64 << 10) /* of a put */

static const uint64_t sizes[] = {4096, 64 << 20, 1 << 30};
#define SIZES	   (sizeof(sizes) / sizeof(sizes[0]))
#define SIZES_HOST 2

static void must(int ret, const char *what)
{
	if (ret >= 0)
		return;
	fprintf(stderr, "connect: %s: %s (%s)\n", what, gx_error(), strerror(-ret));
	exit(1);
}

/* Return: the GPU, -1: there is none. */
static int gx_make(bool server, struct gx **out)
{
	static const struct gx_port_name port = {.name = "shm"};
	struct gx_opts o = GX_INIT(o);

	o.ports = &port;
	o.nr_ports = 1;
	o.server = server;
	must(gx_open(&o, out), "open");
	return gx_gpu_open(*out, 0) ? -1 : 0;
}

static struct gx_mem *memory(struct gx *gx, int device, uint64_t size)
{
	struct gx_mem *mem = NULL;

	must(gx_mem_alloc(gx, device < 0 ? GX_MEM_HOST : GX_MEM_CUDA, device, size, &mem),
	     "memory");
	return mem;
}

static void fill(uint8_t *b, uint64_t len, unsigned seed)
{
	for (uint64_t i = 0; i < len; i++)
		b[i] = (uint8_t)(i * 7 + (i >> 8) + seed * 31);
}

/* ---- The server, a child ---- */

/* A region of each size in turn; the client says when to compare, and with what. */
static void serve(int sock)
{
	static uint8_t want[USE_B], got[USE_B];
	int32_t say, seed;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (unsigned i = 0; i < SIZES; i++) {
		struct gx_mem *mem;
		struct gx *gx;
		int device = gx_make(true, &gx);

		if (device < 0 && i >= SIZES_HOST)
			exit(0);
		mem = memory(gx, device, sizes[i]);
		must(gx_mem_share(mem, "kv", GX_ACCESS_PUT | GX_ACCESS_GET), "share");
		must(gx_core_start(gx_core(gx, 0)), "core");
		say = gx_listen(gx, "127.0.0.1:0");
		must(say, "listen");
		do {
			if (write(sock, &say, sizeof(say)) != sizeof(say) ||
			    read(sock, &seed, sizeof(seed)) != sizeof(seed))
				exit(1);
			if (seed < 0)
				continue;
			fill(want, USE_B, (unsigned)seed);
			must(gx_mem_copy_out(mem, 0, got, sizes[i] < USE_B ? sizes[i] : USE_B),
			     "copy");
			say = memcmp(want, got, sizes[i] < USE_B ? sizes[i] : USE_B) != 0;
		} while (seed >= 0);
		gx_close(gx);
	}
}

/* ---- The client ---- */

struct client {
	struct gx *gx;
	struct gx_core *core;
	struct gx_mem *mem;
};

static int64_t counter(struct gx *gx, const char *name)
{
	static char text[STATS_B];
	char found[64];
	int64_t sum = 0;
	uint64_t v;

	must(gx_stats(gx, false, text, STATS_B), "stats");
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
		if (sscanf(line, "%63s %*s %" SCNu64, found, &v) == 2 && !strcmp(found, name))
			sum += (int64_t)v;
	return sum;
}

static double since_us(uint64_t start)
{
	return (double)(gx_now() - start) / 1e3;
}

static struct gx_conn *connect_to(struct client *c, int port, double *us)
{
	struct gx_connect_opts o = GX_INIT(o);
	uint64_t start = gx_now();
	struct gx_conn *conn;
	char addr[32];

	o.link = "local";
	snprintf(addr, sizeof(addr), "127.0.0.1:%d", port);
	must(gx_connect(c->gx, addr, &o, &conn), "connect");
	must(gx_conn_wait(conn, WAIT_NS), "connect");
	*us = since_us(start);
	return conn;
}

static void put(struct client *c, struct gx_conn *conn, uint64_t len, double *us)
{
	struct gx_region kv = GX_INIT(kv);
	struct gx_comp comp = {.status = -ETIMEDOUT};
	struct gx_op op = {0};
	uint64_t start = gx_now();
	int ret;

	must(gx_conn_region(conn, "kv", 0, &kv), "region");
	op.kind = GX_OP_PUT;
	op.mem = c->mem;
	op.len = len;
	op.token = kv.token;
	while (!(ret = gx_post(gx_core_queue(c->core), gx_conn_ep(conn, 0), &op, 1)))
		gx_core_turn(c->core, gx_now());
	must(ret, "put");
	while (!gx_poll(gx_core_queue(c->core), &comp, 1) && gx_now() - start < WAIT_NS)
		gx_core_turn(c->core, gx_now());
	must(comp.status, "put");
	*us = since_us(start);
}

static int32_t heard(int sock)
{
	int32_t said;

	if (read(sock, &said, sizeof(said)) == sizeof(said))
		return said;
	fprintf(stderr, "connect: the server has ended\n");
	exit(1);
}

enum { FIRST, SECOND, PUT_FIRST, PUT_SECOND, TIMES };

/* Return: wrong puts, and second connections that mapped. */
static int measure(struct client *c, int sock, int port, uint64_t len, double t[TIMES])
{
	static uint8_t bytes[USE_B];
	static int32_t seed;
	struct gx_conn *conn[2];
	int64_t made, found;
	int wrong = 0;

	conn[0] = connect_to(c, port, &t[FIRST]);
	made = counter(c->gx, "maps_made");
	found = counter(c->gx, "maps_found");
	conn[1] = connect_to(c, port, &t[SECOND]);
	wrong += counter(c->gx, "maps_made") != made || counter(c->gx, "maps_found") != found + 1;
	for (unsigned i = 0; i < 2; i++) {
		fill(bytes, USE_B, (unsigned)++seed);
		must(gx_mem_copy_in(c->mem, 0, bytes, len), "copy");
		put(c, conn[i], len, &t[PUT_FIRST + i]);
		if (write(sock, &seed, sizeof(seed)) != sizeof(seed))
			exit(1);
		wrong += heard(sock);
	}
	for (unsigned i = 0; i < 2; i++)
		gx_conn_close(conn[i]);
	while (counter(c->gx, "maps_now") > 0)
		gx_core_turn(c->core, gx_now());
	return wrong;
}

static int double_compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double t[ROUNDS][TIMES], unsigned k)
{
	double v[ROUNDS];

	for (unsigned r = 0; r < ROUNDS; r++)
		v[r] = t[r][k];
	qsort(v, ROUNDS, sizeof(*v), double_compare);
	return v[ROUNDS / 2];
}

int main(void)
{
	struct client c;
	int ends[2], device, wrong = 0;
	int32_t end = -1;

	/* The driver does not survive a fork. */
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
		return 1;
	if (!fork()) {
		close(ends[0]);
		serve(ends[1]);
		_exit(0);
	}
	close(ends[1]);
	device = gx_make(false, &c.gx);
	c.mem = memory(c.gx, device, USE_B);
	c.core = gx_core(c.gx, 0);
	printf("memory of %s, us, medians of %d: connection, second, put over each, wrong\n",
	       device < 0 ? "the host" : "GPU 0", ROUNDS);
	for (unsigned i = 0; i < (device < 0 ? SIZES_HOST : SIZES); i++) {
		int port = heard(ends[0]);
		double t[ROUNDS][TIMES];

		for (unsigned r = 0; r < ROUNDS; r++)
			wrong += measure(&c, ends[0], port, sizes[i] < USE_B ? sizes[i] : USE_B,
					 t[r]);
		printf("%10" PRIu64 " %8.1f %8.1f %8.1f %8.1f %d\n", sizes[i], median(t, FIRST),
		       median(t, SECOND), median(t, PUT_FIRST), median(t, PUT_SECOND), wrong);
		if (write(ends[0], &end, sizeof(end)) != sizeof(end))
			return 1;
	}
	gx_close(c.gx);
	wait(NULL);
	return wrong ? 3 : 0;
}
