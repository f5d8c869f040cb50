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
 * off_ns, seed.
 *
 * spin=1: never sleep. Where it may run on THREADS_CPUS or more, one thread then reads and decides,
 * and another writes, so that a packet never waits unread for the writing of others: on the second
 * and the third of those CPUs, as the ends of tests poll on the first and the last. Behind a turn
 * that wrote it waits COALESCE_NS, as a network interface does, for more: each is to wake others.
 *
 * napi=1: to write is to queue; the kernel takes up what was written by NAPI. That is faster where
 * a thread of the kernel does it (path.py), which takes up many at once, and joins those of one
 * stream, as behind a real interface (GRO). The path's packets and times know nothing of it.
 *
 * At SIGUSR2 a path of several dies: until the next one, what comes from the source port of the largest
 * flow of UDP is lost, in each direction for itself.
 *
 * Prints "ready", and figures as one line of JSON at each SIGUSR1, which counts anew after it, and
 * at SIGTERM or SIGINT. Ends with the thread that started it.
 *
 * Accuracy: times of packets are computed, so rate and loss do not depend on the CPU as long as
 * this program keeps up. A packet comes out late by what the CPU needs: "late_us" tells the mean,
 * the 99th part of a hundred, and the most. A packet comes when it is read: no more than
 * "unread_max" of them waited for that at once. What a device of the kernel drops because nobody
 * read it is in its own statistics (tx_dropped); give it a txqueuelen of some thousands, and look.
 * CPU time of a packet of 1,500 bytes on two CPUs that others used: 1.3 to 1.8 us to read it, also
 * if it is dropped then; to write it 1.2 to 1.7 us with napi=1 (and 0.6 to 1.0 us of the kernel's
 * thread), else 2.5 to 4 us.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "net/net_way.h"

#define PACKET_MAX_B 65536
#define TURN	     32	  /* packets of one way before the other has its turn */
#define FLOWS	     64	  /* counted by themselves; further ones together */
#define LATE_BINS    2000 /* of 10 us */
#define WAIT_MAX_NS  10000000
#define SLACK_B	     (1 << 20) /* of the ring */
#define THREADS_CPUS 4
#define COALESCE_NS  30000

struct packet {
	uint64_t due_ns, number; /* number: packets of one time keep their order */
	uint32_t len;
	bool held; /* others overtake it */
	alignas(8) uint8_t b[];
};

#define PACKET_ROOM_B (sizeof(struct packet) + PACKET_MAX_B)

/* By addresses, ports and protocol. */
struct net_flow {
	uint8_t key[38];
	uint64_t packets, bytes, dropped, marks, passed_b;
};

/* Values of the program, not of a way. */
struct own {
	bool spin, napi;
};

/* What was written. */
struct given {
	uint64_t unwritten; /* the device did not take them */
	uint64_t late_n, late_sum_ns, late_max_ns, late[LATE_BINS];
};

/*
 * Packets lie in a ring of bytes, in the order in which they came, where they are read to and
 * written from. Those that are not held back are due in this order. A packet begins below ring_b
 * and may end behind it; the next one then begins at 0. Where put is get, there is none.
 */
struct side {
	/* frozen after start */
	int fd;	 /* in: packets of this way come from here */
	int out; /* and go there */
	uint8_t *ring;
	uint64_t ring_b;

	/* owner: who reads */
	alignas(64) _Atomic uint64_t put;
	uint64_t get_seen;
	struct way way;
	uint64_t numbers;
	uint64_t row, row_max; /* packets since the device was seen empty: more were not waiting */
	bool dead;
	uint8_t dead_port[2];
	uint64_t died; /* packets from there */
	struct net_flow flow[FLOWS];
	unsigned nr_flows;

	/* owner: who writes */
	alignas(64) _Atomic uint64_t get;
	uint64_t put_seen;
	struct packet **heap; /* that are held back: by due_ns, number; the first is due first */
	uint32_t nr, room;
	struct given given;
};

/* Who reads asks for what was written since it last asked; who writes answers. */
enum asked { ASKED_NOT, ASKED, ANSWERED };

static volatile sig_atomic_t told, stopped, dies;
static struct side sides[2];
static _Atomic enum asked asked;
static struct given answer[2]; /* owner: who reads, while ANSWERED */
static uint64_t from_ns;       /* time counts from here */

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
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec - from_ns;
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

/* Room for a packet and its twin, each up to the largest, and for the step to 0. */
static bool ring_has_room(const struct side *s, uint64_t put, uint64_t get)
{
	return (get + s->ring_b - put - 1) % s->ring_b > 3 * PACKET_ROOM_B;
}

/* Where the next packet may be read to; NULL: the ring is full. Pairs with the release in
 * ring_drop(): what was there has been written. */
static struct packet *ring_room(struct side *s)
{
	uint64_t put = atomic_load_explicit(&s->put, memory_order_relaxed);

	if (!ring_has_room(s, put, s->get_seen))
		s->get_seen = atomic_load_explicit(&s->get, memory_order_acquire);
	return ring_has_room(s, put, s->get_seen) ? (struct packet *)(s->ring + put) : NULL;
}

static uint64_t ring_behind(const struct side *s, uint64_t at)
{
	const struct packet *p = (const struct packet *)(s->ring + at);
	uint64_t next = at + (offsetof(struct packet, b) + p->len + 7) / 8 * 8;

	return next < s->ring_b ? next : 0;
}

/* NULL: none is there. Pairs with the release in packet_came(): it is whole. */
static struct packet *ring_first(struct side *s)
{
	uint64_t get = atomic_load_explicit(&s->get, memory_order_relaxed);

	if (get == s->put_seen)
		s->put_seen = atomic_load_explicit(&s->put, memory_order_acquire);
	return get == s->put_seen ? NULL : (struct packet *)(s->ring + get);
}

static void ring_drop(struct side *s)
{
	uint64_t get = atomic_load_explicit(&s->get, memory_order_relaxed);

	atomic_store_explicit(&s->get, ring_behind(s, get), memory_order_release);
}

/* Twice all that can be under way: a small packet takes more here than its bytes. All pages are
 * there from the start: to get one costs as much as to read a packet. */
static void ring_open(struct side *s)
{
	const struct way_cfg *c = &s->way.cfg;
	uint64_t most_bps = 0, under_way_b;

	for (unsigned i = 0; i < c->nr_rates; i++)
		if (c->rate_bps[i] > most_bps)
			most_bps = c->rate_bps[i];
	under_way_b = c->queue_b + c->bucket_b +
		      (uint64_t)((double)most_bps / 8e9 * (double)(c->delay_ns + WAIT_MAX_NS));
	s->ring_b = (2 * under_way_b + SLACK_B) / 8 * 8;
	s->ring = mmap(NULL, s->ring_b + PACKET_ROOM_B, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (s->ring == MAP_FAILED)
		die("memory for packets");
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

/* ---- In ---- */

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

/* @in: in the ring, at put. */
static void packet_came(struct side *s, struct packet *in)
{
	struct net_flow *flow = flow_find(s, in->b, in->len);
	uint64_t put = (uint64_t)((uint8_t *)in - s->ring);
	struct way_fate f;

	if (s->dead && flow->key[1] == 17 && !memcmp(flow->key + 34, s->dead_port, 2)) {
		s->died++;
		return;
	}
	f = way_take(&s->way, now_ns(), in->len, ip_ecn(in->b, in->len));
	flow->packets++;
	flow->bytes += in->len;
	if (f.drop) {
		flow->dropped++;
		return;
	}
	flow->passed_b += in->len;
	flow->marks += f.mark;
	in->due_ns = f.due_ns;
	in->held = f.late;
	in->number = s->numbers++;
	if (f.mark)
		ip_mark(in->b, in->len);
	put = ring_behind(s, put);
	if (f.dup) {
		struct packet *twin = (struct packet *)(s->ring + put);

		memcpy(twin, in, offsetof(struct packet, b) + in->len);
		twin->number = s->numbers++;
		put = ring_behind(s, put);
	}
	if (f.corrupt)
		packet_damage(in, f.bit);
	atomic_store_explicit(&s->put, put, memory_order_release);
}

static bool side_take(struct side *s)
{
	for (unsigned i = 0; i < TURN; i++) {
		struct packet *in = ring_room(s);
		ssize_t len;

		if (!in)
			return i;
		len = read(s->fd, in->b, PACKET_MAX_B);
		if (len <= 0) {
			s->row = 0;
			return i;
		}
		s->row++;
		if (s->row > s->row_max)
			s->row_max = s->row;
		in->len = (uint32_t)len;
		packet_came(s, in);
	}
	return true;
}

static bool read_turn(void)
{
	bool there = side_take(&sides[0]), back = side_take(&sides[1]);

	return there || back;
}

/* ---- Out ---- */

static struct packet *packet_copy(const struct packet *p)
{
	struct packet *q = malloc(sizeof(*q) + p->len);

	if (!q)
		die("memory for packets");
	memcpy(q, p, offsetof(struct packet, b) + p->len);
	return q;
}

/* The packet that is due first: of the ring, or of the heap. NULL: none is on its way. What is held
 * back behind the ring's first one is not due before it. */
static struct packet *side_next(struct side *s)
{
	struct packet *p = ring_first(s);

	for (; p && p->held; p = ring_first(s)) {
		heap_put(s, packet_copy(p));
		ring_drop(s);
	}
	return s->nr && (!p || is_before(s->heap[0], p)) ? s->heap[0] : p;
}

static void packet_write(struct side *s, struct packet *p, uint64_t late_ns)
{
	struct given *g = &s->given;
	uint64_t bin = late_ns / 10000;

	g->late_n++;
	g->late_sum_ns += late_ns;
	g->late[bin < LATE_BINS ? bin : LATE_BINS - 1]++;
	if (late_ns > g->late_max_ns)
		g->late_max_ns = late_ns;
	if (write(s->out, p->b, p->len) != (ssize_t)p->len)
		g->unwritten++;
	if (p->held)
		free(heap_get(s));
	else
		ring_drop(s);
}

static bool side_give(struct side *s)
{
	for (unsigned i = 0; i < TURN; i++) {
		struct packet *p = side_next(s);
		uint64_t now = p ? now_ns() : 0;

		if (!p || p->due_ns > now)
			return i;
		packet_write(s, p, now - p->due_ns);
	}
	return true;
}

/* Return: was there anything to do? */
static bool write_turn(void)
{
	bool there = side_give(&sides[0]), back = side_give(&sides[1]);

	if (asked == ASKED) {
		for (unsigned i = 0; i < 2; i++) {
			answer[i] = sides[i].given;
			sides[i].given = (struct given){0};
		}
		asked = ANSWERED;
	}
	return there || back;
}

/* ---- Figures ---- */

static uint64_t late_p99_us(const struct given *g)
{
	uint64_t left = g->late_n - g->late_n / 100;

	for (unsigned i = 0; i < LATE_BINS; i++) {
		if (g->late[i] >= left)
			return g->late_n ? 10 * (i + 1ull) : 0;
		left -= g->late[i];
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

static void side_tell(struct side *s, const struct given *g, const char *name, uint64_t at_ns)
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
	       w->n.drop[WAY_DARK], w->n.marks, w->n.dups, w->n.lates, w->n.corrupts, g->unwritten);
	printf(", \"died\": %" PRIu64 ", \"unread_max\": %" PRIu64, s->died, s->row_max);
	printf(", \"seconds\": %.6f, \"link_b\": %.0f, \"queue_mean_b\": %.0f, \"queue_p99_b\": %" PRIu64
	       ", \"queue_max_b\": %" PRIu64,
	       (double)(at_ns - w->since_ns) / 1e9,
	       (way_bits(w, at_ns) - way_bits(w, w->since_ns)) / 8, way_queue_mean_b(w),
	       way_queue_p_b(w, 0.99), w->queue_max_b);
	printf(", \"late_us\": {\"mean\": %.1f, \"p99\": %" PRIu64 ", \"max\": %.1f}, \"flows\": [",
	       g->late_n ? (double)g->late_sum_ns / 1e3 / (double)g->late_n : 0, late_p99_us(g),
	       (double)g->late_max_ns / 1e3);
	for (unsigned i = 0; i < s->nr_flows; i++)
		flow_tell(&s->flow[i], !i);
	printf("]}");

	way_count_anew(w, at_ns);
	s->nr_flows = 0;
	memset(s->flow, 0, sizeof(s->flow));
	s->died = s->row_max = 0;
}

static void tell(void)
{
	uint64_t at_ns = now_ns();

	printf("{");
	side_tell(&sides[0], &answer[0], "there", at_ns);
	printf(", ");
	side_tell(&sides[1], &answer[1], "back", at_ns);
	printf("}\n");
	fflush(stdout);
}

/* ---- Start ---- */

static int tun_open(const char *name, bool napi)
{
	struct ifreq req = {.ifr_flags = IFF_TUN | IFF_NO_PI | (napi ? IFF_NAPI : 0)};
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

static bool cfg_set(struct way_cfg *c, struct own *own, const char *arg)
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
		own->spin = value;
		return true;
	}
	if (!strncmp(arg, "napi=", 5)) {
		own->napi = value;
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

static bool cfg_read(struct way_cfg cfg[2], struct own *own, char **args)
{
	bool back = false;

	for (; *args; args++) {
		if (!strcmp(*args, "back"))
			back = true;
		else if (!cfg_set(&cfg[1], own, *args) || (!back && !cfg_set(&cfg[0], own, *args)))
			return false;
	}
	return true;
}

/* Sleep until a packet comes or is due; not for long, as a signal may have come just before. */
static void wait_for(void)
{
	struct pollfd fd[2] = {{sides[0].fd, POLLIN, 0}, {sides[1].fd, POLLIN, 0}};
	uint64_t now = now_ns(), due_ns = now + WAIT_MAX_NS;

	for (unsigned i = 0; i < 2; i++) {
		const struct packet *p = side_next(&sides[i]);

		if (p && p->due_ns < due_ns)
			due_ns = p->due_ns;
	}
	if (due_ns > now)
		ppoll(fd, 2, &(struct timespec){0, (long)(due_ns - now)}, NULL);
}

static void *write_always(void *unused)
{
	(void)unused;
	for (;;) {
		uint64_t again_ns = now_ns() + COALESCE_NS;

		if (write_turn())
			while (now_ns() < again_ns)
				;
	}
	return NULL;
}

/* Until a signal ends it and all is told. @alone: another thread writes. */
static void carry(bool alone, bool spin)
{
	bool ends = false;

	while (!ends || asked) {
		bool worked = read_turn();

		worked |= !alone && write_turn();
		if (!worked && !spin)
			wait_for();
		if (dies) {
			dies = 0;
			side_dies(&sides[0]);
			side_dies(&sides[1]);
		}
		if (asked == ANSWERED) {
			tell();
			asked = ASKED_NOT;
		}
		if (!asked && !ends && (told || stopped)) {
			ends = stopped;
			told = 0;
			asked = ASKED;
		}
	}
}

/* The n-th of the CPUs that this program may use is for this thread alone. */
static void cpu_take(const cpu_set_t *all, unsigned n)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	for (size_t i = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, all) && !n--)
			CPU_SET(i, &one);
	sched_setaffinity(0, sizeof(one), &one);
}

/* Return: another thread writes, on a CPU of its own. */
static bool writer_start(void)
{
	pthread_t thread;
	cpu_set_t all;

	if (sched_getaffinity(0, sizeof(all), &all) || CPU_COUNT(&all) < THREADS_CPUS)
		return false;
	cpu_take(&all, 2);
	errno = pthread_create(&thread, NULL, write_always, NULL);
	if (errno)
		die("a thread");
	cpu_take(&all, 1);
	return true;
}

int main(int argc, char **argv)
{
	struct way_cfg cfg[2] = {{.seed = 1}, {.seed = 1}};
	struct sigaction on = {.sa_handler = on_signal};
	struct own own = {false, false};

	if (argc < 4 || !cfg_read(cfg, &own, argv + 3)) {
		fprintf(stderr, "usage: bottleneck TUN_A TUN_B rate=BIT_S [NAME=VALUE...] "
				"[back NAME=VALUE...]\n");
		return 1;
	}
	cfg[1].seed += cfg[1].seed == cfg[0].seed;
	for (unsigned i = 0; i < 2; i++) {
		errno = -way_open(&sides[i].way, &cfg[i]);
		if (errno)
			die("the path's values");
		ring_open(&sides[i]);
		sides[i].fd = tun_open(argv[1 + i], own.napi);
	}
	sides[0].out = sides[1].fd;
	sides[1].out = sides[0].fd;
	prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	sigaction(SIGUSR1, &on, NULL);
	sigaction(SIGUSR2, &on, NULL);
	sigaction(SIGTERM, &on, NULL);
	sigaction(SIGINT, &on, NULL);
	from_ns = now_ns();
	puts("ready");
	fflush(stdout);
	carry(own.spin && writer_start(), own.spin);
	return 0;
}
