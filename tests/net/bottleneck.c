/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A narrow path between two TUN devices (net_way.h): what leaves one is read, waits, and is written
 * to the other. For tests between two network namespaces, in kernels that have no netem, and where
 * every drop shall be a function of a seed. Offloads are off: a packet is one of the wire.
 *
 * usage: bottleneck TUN_A TUN_B rate=BIT_S [NAME=VALUE...] [back NAME=VALUE...]
 *
 * Values before the word back hold for both directions, those behind it for B to A alone. They are
 * the fields of struct way_cfg: rate (several with commas, in turn), step_ns, delay_ns, queue_b,
 * bucket_b, mark_b, loss_ppm, burst_ppm, burst_len, late_ppm, late_ns, dup_ppm, corrupt_ppm, on_ns,
 * off_ns, seed. spin=1: never sleep.
 *
 * At SIGUSR2 a path of several dies: until the next one, what comes from the source port of the largest
 * flow of UDP is lost, in each direction for itself.
 *
 * Prints "ready", and figures as one line of JSON at each SIGUSR1, which counts anew after it, and
 * at SIGTERM or SIGINT. Ends with the thread that started it.
 *
 * Accuracy: times of packets are computed, so rate and loss do not depend on the CPU as long as
 * this program keeps up. A packet comes out late by what the CPU needs: "late_us" tells the mean,
 * the 99th part of a hundred, and the most. With spin=1 it needs a CPU of its own. 95,000 packets a
 * second, both directions together, were seen to pass (a stream of 0.9 Gb/s, MTU 1500). What a
 * device of the kernel drops because nobody read it is in its own statistics (tx_dropped); give it
 * a txqueuelen of some thousands, and look.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "net/net_way.h"

#define PACKET_MAX_B 65536
#define READS	     32	  /* of one device before the other has its turn */
#define FLOWS	     64	  /* counted by themselves; further ones together */
#define LATE_BINS    2000 /* of 10 us */
#define WAIT_MAX_NS  10000000

struct packet {
	uint64_t due_ns, number; /* number: packets of one time keep their order */
	uint32_t len;
	uint8_t b[];
};

/* By addresses, ports and protocol. */
struct net_flow {
	uint8_t key[38];
	uint64_t packets, bytes, dropped, marks, passed_b;
};

struct side {
	int fd;	 /* in: packets of this way come from here */
	int out; /* and go there */
	struct way way;
	struct packet **heap; /* by due_ns, number; the first is due first */
	uint32_t nr, room;
	uint64_t numbers;
	bool dead;
	uint8_t dead_port[2];
	uint64_t died;	    /* packets from there */
	uint64_t unwritten; /* the device did not take them */
	struct net_flow flow[FLOWS];
	unsigned nr_flows;
	uint64_t late_n, late_sum_ns, late_max_ns, late[LATE_BINS];
};

static volatile sig_atomic_t told, stopped, dies;

static void on_signal(int sig)
{
	if (sig == SIGUSR1)
		told = 1;
	else if (sig == SIGUSR2)
		dies = 1;
	else
		stopped = 1;
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void die(const char *what)
{
	fprintf(stderr, "bottleneck: %s: %s\n", what, strerror(errno));
	exit(errno == EPERM || errno == EACCES || errno == ENOENT || errno == ENODEV ? 77 : 1);
}

/* ---- Packets on their way ---- */

static bool is_before(const struct packet *a, const struct packet *b)
{
	return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->number < b->number;
}

static void heap_put(struct side *s, struct packet *p)
{
	uint32_t i = s->nr++;

	if (s->nr > s->room) {
		s->room = 2 * s->nr + 1024;
		s->heap = realloc(s->heap, s->room * sizeof(*s->heap));
		if (!s->heap)
			die("memory for packets");
	}
	for (; i && is_before(p, s->heap[(i - 1) / 2]); i = (i - 1) / 2)
		s->heap[i] = s->heap[(i - 1) / 2];
	s->heap[i] = p;
}

static struct packet *heap_get(struct side *s)
{
	struct packet *first = s->heap[0], *last = s->heap[--s->nr];
	uint32_t i = 0, child;

	for (; (child = 2 * i + 1) < s->nr; i = child) {
		if (child + 1 < s->nr && is_before(s->heap[child + 1], s->heap[child]))
			child++;
		if (!is_before(s->heap[child], last))
			break;
		s->heap[i] = s->heap[child];
	}
	if (s->nr)
		s->heap[i] = last;
	return first;
}

/* ---- Headers ---- */

static unsigned ip_version(const uint8_t *b, uint32_t len)
{
	unsigned v = len ? b[0] >> 4 : 0;

	return (v == 4 && len >= 20) || (v == 6 && len >= 40) ? v : 0;
}

static uint32_t ip_header_b(const uint8_t *b, uint32_t len)
{
	unsigned v = ip_version(b, len);

	return v == 4 ? 4u * (b[0] & 15) : v == 6 ? 40 : 0;
}

/* The two bits of ECN, RFC 3168 5; 0: not capable. */
static unsigned ip_ecn(const uint8_t *b, uint32_t len)
{
	unsigned v = ip_version(b, len);

	return v == 4 ? b[1] & 3 : v == 6 ? b[1] >> 4 & 3 : 0;
}

/* Congestion experienced. IPv4's checksum changes by what changed, RFC 1624. */
static void ip_mark(uint8_t *b, uint32_t len)
{
	uint32_t before, sum;

	if (ip_version(b, len) == 6) {
		b[1] |= 3 << 4;
		return;
	}
	before = (uint32_t)b[0] << 8 | b[1];
	b[1] |= 3;
	sum = (~((uint32_t)b[10] << 8 | b[11]) & 0xffff) + (~before & 0xffff) +
	      ((uint32_t)b[0] << 8 | b[1]);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = ~(sum + (sum >> 16)) & 0xffff;
	b[10] = (uint8_t)(sum >> 8);
	b[11] = (uint8_t)sum;
}

/* One bit behind the header of IP: a router would not pass on a packet whose header is wrong. */
static void packet_damage(struct packet *p, uint32_t bit)
{
	uint32_t from = ip_header_b(p->b, p->len);

	if (p->len <= from)
		return;
	bit %= 8 * (p->len - from);
	p->b[from + bit / 8] ^= (uint8_t)(1u << bit % 8);
}

static struct net_flow *flow_find(struct side *s, const uint8_t *b, uint32_t len)
{
	uint8_t key[38] = {(uint8_t)ip_version(b, len)};
	uint32_t head = ip_header_b(b, len);

	if (key[0]) {
		key[1] = key[0] == 4 ? b[9] : b[6];
		memcpy(key + 2, b + (key[0] == 4 ? 12 : 8), key[0] == 4 ? 8 : 32);
		if ((key[1] == 6 || key[1] == 17) && len >= head + 4)
			memcpy(key + 34, b + head, 4);
	}
	for (unsigned i = 0; i < s->nr_flows; i++)
		if (!memcmp(s->flow[i].key, key, sizeof(key)))
			return &s->flow[i];
	if (s->nr_flows == FLOWS)
		return &s->flow[FLOWS - 1];
	memcpy(s->flow[s->nr_flows].key, key, sizeof(key));
	return &s->flow[s->nr_flows++];
}

/* ---- In and out ---- */

static struct packet *packet_copy(const struct packet *p)
{
	struct packet *q = malloc(sizeof(*q) + p->len);

	if (!q)
		die("memory for packets");
	memcpy(q, p, offsetof(struct packet, b) + p->len);
	return q;
}

/* Bytes 34 and 35 of a flow's key are its source port. */
static void side_dies(struct side *s)
{
	const struct net_flow *most = NULL;

	for (unsigned i = 0; i < s->nr_flows; i++)
		if (s->flow[i].key[1] == 17 && (!most || s->flow[i].bytes > most->bytes))
			most = &s->flow[i];
	s->dead = most && !s->dead;
	if (s->dead)
		memcpy(s->dead_port, most->key + 34, 2);
}

static void packet_came(struct side *s, uint64_t at_ns, struct packet *in)
{
	struct net_flow *flow = flow_find(s, in->b, in->len);
	struct way_fate f;
	struct packet *p;

	if (s->dead && flow->key[1] == 17 && !memcmp(flow->key + 34, s->dead_port, 2)) {
		s->died++;
		return;
	}
	f = way_take(&s->way, at_ns, in->len, ip_ecn(in->b, in->len));
	flow->packets++;
	flow->bytes += in->len;
	if (f.drop) {
		flow->dropped++;
		return;
	}
	flow->passed_b += in->len;
	flow->marks += f.mark;
	in->due_ns = f.due_ns;
	in->number = s->numbers++;
	p = packet_copy(in);
	if (f.mark)
		ip_mark(p->b, p->len);
	if (f.dup) {
		struct packet *twin = packet_copy(p);

		twin->number = s->numbers++;
		heap_put(s, twin);
	}
	if (f.corrupt)
		packet_damage(p, f.bit);
	heap_put(s, p);
}

/* Time counts from @from_ns. */
static bool side_take(struct side *s, uint64_t from_ns)
{
	static union {
		struct packet p;
		uint8_t b[sizeof(struct packet) + PACKET_MAX_B];
	} in;

	for (unsigned i = 0; i < READS; i++) {
		ssize_t len = read(s->fd, in.p.b, PACKET_MAX_B);

		if (len <= 0)
			return i;
		in.p.len = (uint32_t)len;
		packet_came(s, now_ns() - from_ns, &in.p);
	}
	return true;
}

static bool side_give(struct side *s, uint64_t from_ns)
{
	bool any = false;

	while (s->nr && s->heap[0]->due_ns <= now_ns() - from_ns) {
		struct packet *p = heap_get(s);
		uint64_t late_ns = now_ns() - from_ns - p->due_ns, bin = late_ns / 10000;

		any = true;
		s->late_n++;
		s->late_sum_ns += late_ns;
		s->late[bin < LATE_BINS ? bin : LATE_BINS - 1]++;
		if (late_ns > s->late_max_ns)
			s->late_max_ns = late_ns;
		if (write(s->out, p->b, p->len) != (ssize_t)p->len)
			s->unwritten++;
		free(p);
	}
	return any;
}

/* ---- Figures ---- */

static uint64_t late_p99_us(const struct side *s)
{
	uint64_t left = s->late_n - s->late_n / 100;

	for (unsigned i = 0; i < LATE_BINS; i++) {
		if (s->late[i] >= left)
			return s->late_n ? 10 * (i + 1ull) : 0;
		left -= s->late[i];
	}
	return 10 * LATE_BINS;
}

static void flow_tell(const struct net_flow *f, bool first)
{
	unsigned from = (unsigned)f->key[34] << 8 | f->key[35],
		 to = (unsigned)f->key[36] << 8 | f->key[37];

	printf("%s{\"proto\": %u, \"from\": %u, \"to\": %u, \"packets\": %" PRIu64
	       ", \"bytes\": %" PRIu64 ", \"passed_b\": %" PRIu64 ", \"dropped\": %" PRIu64
	       ", \"marks\": %" PRIu64 "}",
	       first ? "" : ", ", f->key[1], from, to, f->packets, f->bytes, f->passed_b,
	       f->dropped, f->marks);
}

static void side_tell(struct side *s, const char *name, uint64_t at_ns)
{
	struct way *w = &s->way;

	way_pass(w, at_ns);
	printf("\"%s\": {\"packets\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"passed\": %" PRIu64
	       ", \"passed_b\": %" PRIu64 ", \"queue_full\": %" PRIu64 ", \"lost\": %" PRIu64
	       ", \"burst_lost\": %" PRIu64 ", \"dark\": %" PRIu64 ", \"marks\": %" PRIu64
	       ", \"doubled\": %" PRIu64 ", \"held\": %" PRIu64 ", \"damaged\": %" PRIu64
	       ", \"unwritten\": %" PRIu64,
	       name, w->n.packets, w->n.bytes, w->n.passed, w->n.passed_b,
	       w->n.drop[WAY_QUEUE_FULL], w->n.drop[WAY_LOST], w->n.drop[WAY_BURST],
	       w->n.drop[WAY_DARK], w->n.marks, w->n.dups, w->n.lates, w->n.corrupts, s->unwritten);
	printf(", \"died\": %" PRIu64, s->died);
	printf(", \"seconds\": %.6f, \"link_b\": %.0f, \"queue_mean_b\": %.0f, \"queue_p99_b\": %" PRIu64
	       ", \"queue_max_b\": %" PRIu64,
	       (double)(at_ns - w->since_ns) / 1e9,
	       (way_bits(w, at_ns) - way_bits(w, w->since_ns)) / 8, way_queue_mean_b(w),
	       way_queue_p_b(w, 0.99), w->queue_max_b);
	printf(", \"late_us\": {\"mean\": %.1f, \"p99\": %" PRIu64 ", \"max\": %.1f}, \"flows\": [",
	       s->late_n ? (double)s->late_sum_ns / 1e3 / (double)s->late_n : 0, late_p99_us(s),
	       (double)s->late_max_ns / 1e3);
	for (unsigned i = 0; i < s->nr_flows; i++)
		flow_tell(&s->flow[i], !i);
	printf("]}");

	way_count_anew(w, at_ns);
	s->nr_flows = 0;
	memset(s->flow, 0, sizeof(s->flow));
	memset(s->late, 0, sizeof(s->late));
	s->late_n = s->late_sum_ns = s->late_max_ns = s->unwritten = s->died = 0;
}

static void tell(struct side *side, uint64_t at_ns)
{
	printf("{");
	side_tell(&side[0], "there", at_ns);
	printf(", ");
	side_tell(&side[1], "back", at_ns);
	printf("}\n");
	fflush(stdout);
}

/* ---- Start ---- */

static int tun_open(const char *name)
{
	struct ifreq req = {.ifr_flags = IFF_TUN | IFF_NO_PI};
	int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);

	snprintf(req.ifr_name, sizeof(req.ifr_name), "%s", name);
	if (fd < 0 || ioctl(fd, TUNSETIFF, &req))
		die("no TUN device");
	return fd;
}

static bool cfg_rates(struct way_cfg *c, const char *value)
{
	char *end;

	for (c->nr_rates = 0; c->nr_rates < WAY_RATES; value = end + 1) {
		c->rate_bps[c->nr_rates++] = strtoull(value, &end, 10);
		if (*end != ',')
			return end != value && !*end;
	}
	return false;
}

static bool cfg_set(struct way_cfg *c, bool *spin, const char *arg)
{
	const struct {
		const char *name;
		uint64_t *wide;
		uint32_t *narrow;
	} fields[] = {{"step_ns", &c->step_ns, NULL},
		      {"delay_ns", &c->delay_ns, NULL},
		      {"queue_b", &c->queue_b, NULL},
		      {"bucket_b", &c->bucket_b, NULL},
		      {"mark_b", &c->mark_b, NULL},
		      {"late_ns", &c->late_ns, NULL},
		      {"on_ns", &c->on_ns, NULL},
		      {"off_ns", &c->off_ns, NULL},
		      {"seed", &c->seed, NULL},
		      {"loss_ppm", NULL, &c->loss_ppm},
		      {"burst_ppm", NULL, &c->burst_ppm},
		      {"burst_len", NULL, &c->burst_len},
		      {"late_ppm", NULL, &c->late_ppm},
		      {"dup_ppm", NULL, &c->dup_ppm},
		      {"corrupt_ppm", NULL, &c->corrupt_ppm}};
	const char *eq = strchr(arg, '=');
	uint64_t value;
	char *end;

	if (!eq)
		return false;
	if (!strncmp(arg, "rate=", 5))
		return cfg_rates(c, eq + 1);
	value = strtoull(eq + 1, &end, 10);
	if (end == eq + 1 || *end)
		return false;
	if (!strncmp(arg, "spin=", 5)) {
		*spin = value;
		return true;
	}
	for (unsigned i = 0; i < sizeof(fields) / sizeof(*fields); i++) {
		if (strlen(fields[i].name) != (size_t)(eq - arg) ||
		    strncmp(fields[i].name, arg, (size_t)(eq - arg)))
			continue;
		if (fields[i].wide)
			*fields[i].wide = value;
		else
			*fields[i].narrow = (uint32_t)value;
		return true;
	}
	return false;
}

static bool cfg_read(struct way_cfg cfg[2], bool *spin, char **args)
{
	bool back = false;

	for (; *args; args++) {
		if (!strcmp(*args, "back"))
			back = true;
		else if (!cfg_set(&cfg[1], spin, *args) ||
			 (!back && !cfg_set(&cfg[0], spin, *args)))
			return false;
	}
	return true;
}

/* Sleep until a packet comes or is due; not for long, as a signal may have come just before. */
static void wait_for(const struct side *side, uint64_t from_ns)
{
	struct pollfd fd[2] = {{side[0].fd, POLLIN, 0}, {side[1].fd, POLLIN, 0}};
	uint64_t due_ns = now_ns() - from_ns + WAIT_MAX_NS, now;

	for (unsigned i = 0; i < 2; i++)
		if (side[i].nr && side[i].heap[0]->due_ns < due_ns)
			due_ns = side[i].heap[0]->due_ns;
	now = now_ns() - from_ns;
	if (due_ns > now)
		ppoll(fd, 2, &(struct timespec){0, (long)(due_ns - now)}, NULL);
}

static void carry(struct side *side, bool spin)
{
	uint64_t from_ns = now_ns();

	while (!stopped) {
		bool worked = false;

		for (unsigned i = 0; i < 2; i++) {
			worked |= side_take(&side[i], from_ns);
			worked |= side_give(&side[i], from_ns);
		}
		if (!worked && !spin)
			wait_for(side, from_ns);
		if (dies) {
			dies = 0;
			side_dies(&side[0]);
			side_dies(&side[1]);
		}
		if (told) {
			told = 0;
			tell(side, now_ns() - from_ns);
		}
	}
	tell(side, now_ns() - from_ns);
}

int main(int argc, char **argv)
{
	struct way_cfg cfg[2] = {{.seed = 1}, {.seed = 1}};
	static struct side side[2];
	struct sigaction on = {.sa_handler = on_signal};
	bool spin = false;

	if (argc < 4 || !cfg_read(cfg, &spin, argv + 3)) {
		fprintf(stderr, "usage: bottleneck TUN_A TUN_B rate=BIT_S [NAME=VALUE...] "
				"[back NAME=VALUE...]\n");
		return 1;
	}
	cfg[1].seed += cfg[1].seed == cfg[0].seed;
	for (unsigned i = 0; i < 2; i++) {
		errno = -way_open(&side[i].way, &cfg[i]);
		if (errno)
			die("the path's values");
		side[i].fd = tun_open(argv[1 + i]);
	}
	side[0].out = side[1].fd;
	side[1].out = side[0].fd;
	prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	sigaction(SIGUSR1, &on, NULL);
	sigaction(SIGUSR2, &on, NULL);
	sigaction(SIGTERM, &on, NULL);
	sigaction(SIGINT, &on, NULL);
	puts("ready");
	fflush(stdout);
	carry(side, spin);
	return 0;
}
