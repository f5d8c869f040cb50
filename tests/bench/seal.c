// SPDX-License-Identifier: Apache-2.0
/*
 * What the integrity modes cost: puts of 1 MiB from one context of this process to another, with one
 * core and thread a side, in modes 0 to 3, interleaved; then a lone put of 64 bytes. First this CPU's own limits, for payloads that
 * are read from 64 MiB and written to 64 hot slots: a copy, CRC-32C, and AES-GCM both ways.
 * Keys are known to both ends; no bootstrap makes them. With "tcp" as the port: link tcp, in clear and
 * with keys.
 *
 * usage: seal PORT QUANTUM CPU-OF-THE-SENDER CPU-OF-THE-RECEIVER [ROUNDS]
 */
#include "core/core.h"

#include "gx_internal/gcm.h"
#include "kit/common_key.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PUT_B	   (1u << 20)
#define DEPTH	   8
#define ROUND_NS   300000000ull
#define ROUNDS_MAX 101
#define LIMIT_B	   (64u << 20)
#define MODES	   4

static const char *const names[MODES] = {"none", "crc32c", "mac", "gcm"};
static unsigned quantum;
static const char *port;
static bool tcp;

static struct side {
	struct gx *gx[MODES];
	struct gx_core *core[MODES];
	struct gx_mem *mem[MODES];
} to, from;
static struct gx_conn *conn[MODES];
static struct gx_region region[MODES];
static _Atomic int turning = -1; /* the mode whose server core the other thread turns; -2: end */
static _Atomic int turned = -1;	 /* what it turns in fact */

static void check(int ret, const char *what)
{
	if (ret >= 0)
		return;
	fprintf(stderr, "seal: %s: %s\n", what, gx_error());
	exit(1);
}

static void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	check(sched_setaffinity(0, sizeof(set), &set), "CPU");
}

/* ---- this CPU ---- */

static uint8_t *limit_src, *limit_slots;
static struct gx_gcm_key limit_key;
static volatile uint32_t limit_sink;

static void limit_one(int what, size_t at, unsigned slot)
{
	uint8_t nonce[GX_GCM_NONCE_B] = {1}, tag[GX_GCM_TAG_B];
	uint8_t *dst = limit_slots + (size_t)slot * quantum, *src = limit_src + at;
	struct gx_gcm_aad aad = {src, 22};

	memcpy(nonce, &at, sizeof(at));
	if (what == 0)
		gx_copy_slot(dst, src, quantum);
	else if (what == 1)
		limit_sink += gx_crc32c(0, src, quantum);
	else if (what == 2)
		gx_gcm_seal(&limit_key, nonce, aad, dst, src, quantum, tag);
	else if (what == 3)
		limit_sink += gx_gcm_open(&limit_key, nonce, aad, src, dst, quantum, tag);
	else
		gx_gcm_seal(&limit_key, nonce, aad, NULL, NULL, 0, tag);
}

static void limits(void)
{
	static const char *const what[] = {"copy to a slot", "CRC-32C", "GCM to a slot",
					   "GCM from a slot", "GMAC of a header"};
	uint8_t secret[16] = {3};

	limit_src = malloc(LIMIT_B);
	limit_slots = malloc((size_t)64 * quantum);
	memset(limit_src, 1, LIMIT_B);
	memset(limit_slots, 2, (size_t)64 * quantum);
	check(gx_gcm_key_set(&limit_key, secret), "key");
	for (int w = 0; w < 5; w++) {
		uint64_t n = 0, since = gx_now_ns(), ns;
		size_t at = 0;

		do {
			for (unsigned i = 0; i < 64; i++, n++) {
				limit_one(w, at, i);
				at = at + 2ull * quantum <= LIMIT_B ? at + quantum : 0;
			}
			ns = gx_now_ns() - since;
		} while (ns < ROUND_NS);
		printf("%-18s %6.1f ns a packet of %u bytes, %6.1f Gb/s (%s)\n", what[w],
		       (double)ns / n, quantum, w == 4 ? 0 : 8.0 * n * quantum / ns,
		       w > 1 ? gx_gcm_name() : gx_copy_name());
	}
	free(limit_src);
	free(limit_slots);
}

/* ---- contexts ---- */

static void side_open(struct side *s, int mode, bool server)
{
	const struct gx_port_name ports[] = {{.name = port}};
	struct gx_packet_opts packet = GX_INIT(packet);
	struct gx_opts opts = GX_INIT(opts);
	struct common_key key;

	packet.integrity = GX_INTEGRITY_MODE_NONE + mode;
	packet.crc_by = GX_CRC_BY_CPU;
	packet.quantum_b = quantum;
	if (!tcp) {
		opts.ports = ports;
		opts.nr_ports = 1;
		opts.packet = &packet;
	}
	opts.server = server;
	if (mode >= GX_INTEGRITY_MAC)
		opts.auth = common_key_open(&key, server);
	check(gx_open(&opts, &s->gx[mode]), "open");
	if (opts.auth)
		common_key_close(&key);
	s->core[mode] = gx_core(s->gx[mode], 0);
	check(gx_mem_alloc(s->gx[mode], GX_MEM_HOST, 0, DEPTH * PUT_B, &s->mem[mode]), "memory");
	memset(gx_mem_addr(s->mem[mode]), 1, DEPTH * PUT_B);
}

static void pair_open(int mode)
{
	struct gx_connect_opts how = GX_INIT(how);
	char addr[32];

	side_open(&to, mode, true);
	side_open(&from, mode, false);
	check(gx_mem_share(to.mem[mode], "m", GX_ACCESS_PUT), "region");
	snprintf(addr, sizeof(addr), "127.0.0.1:%d", gx_listen(to.gx[mode], "127.0.0.1:0"));
	how.link = tcp ? "tcp" : "packet";
	check(gx_connect(from.gx[mode], addr, &how, &conn[mode]), "connect");
	check(gx_conn_wait(conn[mode], 5000000000ull), "connect");
	region[mode] = (struct gx_region)GX_INIT(region[mode]);
	check(gx_conn_region(conn[mode], "m", 0, &region[mode]), "region");
}

static void *receiver(void *arg)
{
	int at;

	pin(*(int *)arg);
	while ((at = atomic_load(&turning)) != -2) {
		atomic_store(&turned, at);
		for (unsigned i = 0; at >= 0 && i < 64; i++)
			gx_core_turn(to.core[at], gx_now_ns());
	}
	return NULL;
}

static void turn_other(int mode)
{
	atomic_store(&turning, mode);
	while (atomic_load(&turned) != mode)
		gx_cpu_relax();
}

static void put(int mode, uint64_t len, uint64_t at)
{
	struct gx_op op = {.kind = GX_OP_PUT,
			   .mem = from.mem[mode],
			   .off = at * PUT_B,
			   .len = len,
			   .token = region[mode].token,
			   .remote_off = at * PUT_B};

	check(gx_post(gx_core_queue(from.core[mode]), gx_conn_ep(conn[mode], 0), &op, 1), "post");
}

static unsigned ended(int mode)
{
	struct gx_comp comp[DEPTH];
	unsigned n;

	gx_core_turn(from.core[mode], gx_now_ns());
	n = gx_poll(gx_core_queue(from.core[mode]), comp, DEPTH);
	for (unsigned i = 0; i < n; i++)
		check(comp[i].status, "put");
	return n;
}

static double stream_gb_s(int mode)
{
	uint64_t posted = 0, done = 0, begun, ns;

	turn_other(mode);
	begun = gx_now_ns();
	do {
		for (; posted - done < DEPTH; posted++)
			put(mode, PUT_B, posted % DEPTH);
		done += ended(mode);
		ns = gx_now_ns() - begun;
	} while (ns < ROUND_NS);
	while (done < posted)
		done += ended(mode);
	ns = gx_now_ns() - begun;
	turn_other(-1);
	return 8.0 * PUT_B * done / ns;
}

static double lone_us(int mode)
{
	uint64_t begun, n = 20000;

	turn_other(mode);
	for (unsigned i = 0; i < n / 10; i++)
		for (put(mode, 64, 0); !ended(mode);)
			;
	begun = gx_now_ns();
	for (unsigned i = 0; i < n; i++)
		for (put(mode, 64, 0); !ended(mode);)
			;
	begun = gx_now_ns() - begun;
	turn_other(-1);
	return begun / 1e3 / n;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *v, unsigned n)
{
	qsort(v, n, sizeof(*v), by_size);
	return v[n / 2];
}

int main(int argc, char *argv[])
{
	unsigned rounds = argc > 5 ? atoi(argv[5]) : 9;
	static double gb_s[MODES][ROUNDS_MAX], us[MODES][ROUNDS_MAX];
	double none_gb_s, none_us;
	pthread_t thread;
	int cpu;

	if (argc < 5 || rounds > ROUNDS_MAX)
		return 2;
	port = argv[1];
	quantum = atoi(argv[2]);
	cpu = atoi(argv[4]);
	tcp = !strcmp(port, "tcp");
	for (int mode = 0; mode < MODES; mode += tcp ? 3 : 1)
		pair_open(mode);
	pin(atoi(argv[3]));
	limits();
	check(-pthread_create(&thread, NULL, receiver, &cpu), "thread");
	for (unsigned i = 0; i < rounds; i++)
		for (int mode = 0; mode < MODES; mode += tcp ? 3 : 1) {
			gb_s[mode][i] = stream_gb_s(mode);
			us[mode][i] = lone_us(mode);
		}
	none_gb_s = median(gb_s[0], rounds);
	none_us = median(us[0], rounds);
	for (int mode = 0; mode < MODES; mode += tcp ? 3 : 1)
		printf("%s %u %-6s %6.2f Gb/s (%.2f of none), a put of 64 bytes %6.2f us (%+.2f us)\n",
		       port, quantum, names[mode], median(gb_s[mode], rounds),
		       median(gb_s[mode], rounds) / none_gb_s, median(us[mode], rounds),
		       median(us[mode], rounds) - none_us);
	atomic_store(&turning, -2);
	pthread_join(thread, NULL);
	for (int mode = 0; mode < MODES; mode += tcp ? 3 : 1) {
		gx_conn_close(conn[mode]);
		gx_close(from.gx[mode]);
		gx_close(to.gx[mode]);
	}
	return 0;
}
