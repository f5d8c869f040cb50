/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The environment's variables, which docs/pytorch.md explains. Read when the first communicator is
 * made.
 */
#include "plug.h"

#include <gx/env.h>

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONF_ADDR	"127.0.0.1"
#define CONF_TIMEOUT_S	5
#define CONF_LATENCY_US 1
#define CONF_BOUNCE_MB	512
#define CONF_DEVICES	4

#define CONF_QUOTE(number) #number
#define CONF_NUMBER(macro) CONF_QUOTE(macro)

const struct conf_var conf_vars[] = {
	{"GX_KEY_FILE", "none"},
	{"GX_ADDR", "gx chooses; without a key " CONF_ADDR},
	{"GX_NCCL_INSECURE", "0"},
	{"GX_NCCL_PORTS", "shm;udp"},
	{"GX_NCCL_MODE", "host"},
	{"GX_NCCL_LINK", "gx chooses; between hosts tcp, unless GX_NCCL_PORTS names a port"},
	{"GX_NCCL_PULL", "auto"},
	{"GX_NCCL_HELP", "1, with 4 cores or more 0"},
	{"GX_NCCL_CORES", "2, on less than 8 physical cores 1; with other hosts up to 8"},
	{"GX_NCCL_CPUS", "gx chooses"},
	{"GX_NCCL_BUSY", "0"},
	{"GX_NCCL_BOUNCE_MB", CONF_NUMBER(CONF_BOUNCE_MB)},
	{"GX_NCCL_TIMEOUT_S", CONF_NUMBER(CONF_TIMEOUT_S)},
	{"GX_NCCL_DEVICES", CONF_NUMBER(CONF_DEVICES)},
	{"GX_NCCL_SPEED_MBPS", CONF_NUMBER(CORE_MBPS) " for each core, in equal parts"},
	{"GX_NCCL_LATENCY_US", CONF_NUMBER(CONF_LATENCY_US)},
	{"GX_LOG", "warn"},
	{NULL, NULL},
};

const char *conf_text(const char *name)
{
	const char *text = secure_getenv(name);
	const struct conf_var *v = conf_vars;

	while (v->name && strcmp(v->name, name))
		v++;
	assert(v->name); /* gxperf info --nccl shows all that are read */
	return text && text[0] ? text : NULL;
}

/* A whole number of @min to @max; unset: *out stays. */
static bool conf_number(const char *name, unsigned long min, unsigned long max, unsigned long *out)
{
	const char *text = conf_text(name);
	unsigned long v;

	if (!text)
		return true;
	v = text[strspn(text, "0123456789")] || strlen(text) > 9 ? max + 1
								 : strtoul(text, NULL, 10);
	if (v < min || v > max) {
		say_warn("%s=%.40s: say a whole number from %lu to %lu", name, text, min, max);
		return false;
	}
	*out = v;
	return true;
}

/* CPUs as "4,5,8-10", at most @max; unset: *nr stays. */
static bool conf_list(const char *name, int out[], unsigned max, unsigned *nr)
{
	const char *text = conf_text(name), *at = text;
	unsigned first, last;
	bool good = true;
	int n;

	while (good && at && *at) {
		n = 0;
		good = sscanf(at, "%5u%n", &first, &n) == 1;
		at += n;
		last = first;
		if (good && *at == '-') {
			n = 0;
			good = sscanf(at + 1, "%5u%n", &last, &n) == 1;
			at += n + 1;
		}
		good = good && last >= first && last - first < max - *nr && (!*at || *at == ',');
		while (good && first <= last)
			out[(*nr)++] = (int)first++;
		at += good && *at == ',';
	}
	if (!good)
		say_warn("%s=%.80s: say CPUs as 4,5 or 4-7, at most %u", name, text, max);
	return good;
}

static bool conf_cpus(struct conf *c)
{
	if (!conf_list("GX_NCCL_CPUS", c->cpus, LANES_MAX, &c->nr_cpus))
		return false;
	if (c->nr_cpus && c->nr_cores && c->nr_cpus != c->nr_cores) {
		say_warn("GX_NCCL_CPUS names %u CPUs and GX_NCCL_CORES asks for %u cores: set one "
			 "of them",
			 c->nr_cpus, c->nr_cores);
		return false;
	}
	return true;
}

/* "udp", "udp:port=7601", "dpdk:net_memif,id=0": cuts @text. */
static bool conf_port(char *text, struct gx_port_name *p)
{
	char *more = strchr(text, ':');

	*p = (struct gx_port_name){.name = text};
	if (!more)
		return true;
	*more++ = 0;
	if (strcmp(text, "dpdk") != 0) {
		p->args = more;
		return *text && *more;
	}
	p->device = more;
	more += strcspn(more, ",");
	if (*more) {
		*more = 0;
		p->args = more + 1;
	}
	return *p->device;
}

/* "shm;udp": a port of DPDK has commas in its name. */
static bool conf_ports(struct conf *c)
{
	const char *text = conf_text("GX_NCCL_PORTS");
	char *save = NULL;
	bool good = true;

	if (!text)
		return true;
	snprintf(c->ports_text, sizeof(c->ports_text), "%s", text);
	for (char *p = strtok_r(c->ports_text, ";", &save); p && c->nr_ports < PORTS_MAX && good;
	     p = strtok_r(NULL, ";", &save))
		good = conf_port(p, &c->ports[c->nr_ports++]);
	if (good && c->nr_ports && strlen(text) < sizeof(c->ports_text))
		return true;
	say_warn("GX_NCCL_PORTS=%.80s: say ports of gx, as shm;udp", text);
	return false;
}

/* Peers get an address in handles, and ask nobody what a name means. Without a key, ranks of this host
 * alone reach us, unless somebody names another address. */
static bool conf_host(struct conf *c)
{
	const char *name = "GX_ADDR", *text = conf_text(name);
	char addr[GX_ADDR_MAX] = CONF_ADDR;

	if (!text && (c->key_file[0] || c->insecure)) {
		name = "NCCL_SOCKET_IFNAME";
		text = getenv(name);
	}
	if ((text || c->key_file[0] || c->insecure) && gx_env_addr(text, addr)) {
		say_warn("%s: %s", name, gx_error());
		return false;
	}
	snprintf(c->host, sizeof(c->host), "%.55s", addr);
	c->every = !text && (c->key_file[0] || c->insecure);
	c->near = !strncmp(c->host, "127.", 4) || !strcmp(c->host, "::1");
	if (c->near || c->key_file[0] || c->insecure)
		return true;
	say_warn(
		"GX_ADDR=%.80s is reached by other hosts, and there is no key: make one (gxd keygen "
		"NAME), copy its file to each host, and set GX_KEY_FILE; or GX_NCCL_INSECURE=1, "
		"to let everybody in, in clear",
		text);
	return false;
}

static bool conf_key(struct conf *c)
{
	const char *text = conf_text("GX_KEY_FILE");
	unsigned long insecure = 0;

	if (!conf_number("GX_NCCL_INSECURE", 0, 1, &insecure))
		return false;
	c->insecure = insecure;
	if (text && (strlen(text) >= sizeof(c->key_file) || insecure)) {
		say_warn("GX_KEY_FILE=%.80s: %s", text,
			 insecure ? "and GX_NCCL_INSECURE=1, which needs no key: set one of them"
				  : "its path is too long");
		return false;
	}
	snprintf(c->key_file, sizeof(c->key_file), "%s", text ? text : "");
	return true;
}

/* One of @words, @n of them, which @say lists; unset: *out stays. */
static bool conf_word(const char *name, const char *const words[], unsigned n, const char *say,
		      unsigned *out)
{
	const char *text = conf_text(name);
	unsigned i = 0;

	if (!text)
		return true;
	while (i < n && strcmp(text, words[i]))
		i++;
	if (i < n)
		*out = i;
	else
		say_warn("%s=%.40s: say %s", name, text, say);
	return i < n;
}

static bool conf_link(struct conf *c)
{
	static const char *const links[] = {"packet", "local", "tcp", NULL};
	unsigned link = 3;
	bool good = conf_word("GX_NCCL_LINK", links, link, "packet, local or tcp", &link);

	/* Not the environment's text, which the program may write over later. */
	c->link = links[link];
	return good;
}

/* ---- Pulls ---- */

/*
 * NCCL reads messages of its protocol LL while they arrive, by words of eight bytes, and the kernel
 * promises nothing about the size of its stores. So these go as packets, or over link tcp by
 * GX_OP_WORDS. A message of LL is a step of its buffer at most.
 */
#define LL_STEPS     8
#define LL_STEP_B    (64u << 10)   /* by default */
#define LL128_BUFF_B (4800u << 10) /* the same, of all steps */

static unsigned ll_step(void)
{
	const char *text = getenv("NCCL_LL_BUFFSIZE");
	long long b = text ? strtoll(text, NULL, 0) / LL_STEPS : 0; /* as NCCL reads it */

	if (b <= LL_STEP_B)
		return LL_STEP_B;
	return b < UINT_MAX ? (unsigned)b : UINT_MAX;
}

static bool conf_pull(struct conf *c)
{
	static const char *const hows[] = {[GX_PULL_AUTO] = "auto",
					   [GX_PULL_ON] = "on",
					   [GX_PULL_OFF] = "off",
					   [GX_PULL_ALLOW] = "allow"};

	unsigned how = GX_PULL_AUTO;

	if (!conf_word("GX_NCCL_PULL", hows, sizeof(hows) / sizeof(hows[0]),
		       "auto, on, off or allow", &how))
		return false;
	c->pull = (enum gx_pull)how;
	c->pull_over_b = ll_step();
	return true;
}

/* ---- Protocols ---- */

#if defined(__aarch64__)
bool conf_ll128_by_default = true;
#else
bool conf_ll128_by_default = false;
#endif

/* Does the list name the protocol? @list: up to @end, as "LL,LL128" or "^LL". */
static bool proto_is_in(const char *list, const char *end, const char *name)
{
	size_t len = strlen(name);

	list += *list == '^';
	while (list < end) {
		size_t word = strcspn(list, ",;");

		if (word == len && !strncasecmp(list, name, len))
			return true;
		list += word + 1;
	}
	return false;
}

/* May NCCL take protocol @name? @text: NCCL_PROTO: the protocols that NCCL takes, as "LL,LL128", or
 * those that it does not, as "^LL"; or lists for single collectives, as
 * "allreduce:LL128;broadcast:^LL". @other: what holds for collectives that no list is for. */
static bool proto_may_be(const char *text, const char *name, bool other)
{
	bool for_all = false;

	while (text && *text) {
		const char *end = text + strcspn(text, ";");
		const char *colon = memchr(text, ':', (size_t)(end - text));
		const char *list = colon ? colon + 1 : text;

		if (list < end && proto_is_in(list, end, name) != (*list == '^'))
			return true;
		for_all |= !colon && list < end;
		text = end + (*end == ';');
	}
	return !for_all && other;
}

/* NCCL gives a receive of LL128 more room than one of LL, and says that it is one of the two: irecv
 * refuses it by that (req_is_ll). Variables of NCCL turn either off. */
static bool ll128_is_seen(void)
{
	const char *hint = getenv("NCCL_NET_OPTIONAL_RECV_COMPLETION");
	const char *room = getenv("NCCL_LL128_BUFFSIZE");
	long long b = room ? strtoll(room, NULL, 0) : 0; /* as NCCL reads it */

	if (hint && !strtoll(hint, NULL, 0))
		return false;
	if (!room || b < 0)
		b = LL128_BUFF_B;
	return b / LL_STEPS > ll_step();
}

/*
 * NCCL reads messages of LL128 while they arrive, and takes 128 bytes when it sees the last eight of
 * them. gx stores words of eight bytes whole, but promises no order: a quantum is a multiple of 16
 * bytes, packets may overtake one another, and long copies store in any order. By default NCCL takes
 * LL128 where the path from the GPU to the device is short. gx's devices have no place, and NCCL
 * puts them at the CPU: far on x86, near on Grace, whose CPU and GPU are one.
 */
static bool conf_proto(void)
{
	const char *text = getenv("NCCL_PROTO");

	if (proto_may_be(text, "LL128", false)) {
		say_warn("NCCL_PROTO=%.64s takes LL128, which needs each 128 bytes to arrive in "
			 "order, as gx does not promise: set NCCL_PROTO=^LL128 or Simple, or unset "
			 "it",
			 text);
		return false;
	}
	if (!proto_may_be(text, "LL128", true))
		return true;
	if (conf_ll128_by_default)
		say_warn("NCCL takes LL128 over gx by default where CPU and GPU are one, as on "
			 "Grace, and gx does not promise the order that LL128 needs: set "
			 "NCCL_PROTO=^LL128 on all ranks");
	else if (!ll128_is_seen())
		say_warn("NCCL_NET_OPTIONAL_RECV_COMPLETION, NCCL_LL_BUFFSIZE or "
			 "NCCL_LL128_BUFFSIZE hides from gx which messages are of LL128, which it "
			 "does not serve: set NCCL_PROTO=^LL128 on all ranks, or unset them");
	else
		return true;
	return false;
}

/* ---- NCCL's device code unpacks ---- */

/* NCCL's slices are a quarter of the buffer at most, and their places in the ring begin with a page:
 * a quarter more than the buffer holds all that NCCL has under way, wherever the ring ends. */
#define BUFF_B	   (4u << 20) /* NCCL's default */
#define BUFF_B_MIN (64u << 10)
#define BUFF_B_MAX (256u << 20)
#define PAGE_B	   4096u

static bool conf_ring(struct conf *c)
{
	const char *text = getenv("NCCL_BUFFSIZE");
	long long b = text ? strtoll(text, NULL, 0) : 0; /* as NCCL reads it */
	unsigned least_mb;

	if (!text || b < 0)
		b = BUFF_B;
	if (b < BUFF_B_MIN || b > BUFF_B_MAX) {
		say_warn("NCCL_BUFFSIZE=%.40s: GX_NCCL_MODE=unpack takes %u to %u", text,
			 BUFF_B_MIN, BUFF_B_MAX);
		return false;
	}
	c->ring_b = (uint32_t)((b + b / 4 + PAGE_B - 1) / PAGE_B * PAGE_B);
	least_mb = (c->ring_b >> 20) + 2; /* with NCCL's blocks, which have half a MiB */
	if (c->bounce_b >> 20 >= least_mb)
		return true;
	say_warn("GX_NCCL_BOUNCE_MB=%llu: say %u for each receiving comm",
		 (unsigned long long)c->bounce_b >> 20, least_mb);
	return false;
}

/* NCCL's device code unpacks in protocol Simple alone, and not in its algorithm PAT. NCCL does
 * not turn off by itself what does not go with it. */
static bool conf_offload(struct conf *c)
{
	static const struct {
		const char *name, *value;
		bool by_default; /* of NCCL */
	} needs[] = {
		{"NCCL_PROTO", "Simple", false},
		{"NCCL_PAT_ENABLE", "0", false},
		{"NCCL_LOCAL_REGISTER", "0", false},
		{"NCCL_GRAPH_REGISTER", "0", false},
		{"NCCL_NET_GDR_LEVEL", "SYS", false}, /* receive buffers in the GPU */
		{"NCCL_NET_GDR_READ", "0", false},    /* send buffers in the host */
		/* Buffers for LL, which NCCL then takes for short sends whatever NCCL_PROTO says. */
		{"NCCL_NET_SHARED_BUFFERS", "1", true},
		{"NCCL_ALLOC_P2P_NET_LL_BUFFERS", "0", true},
	};
	char missing[256] = "";
	size_t at = 0;

	for (unsigned i = 0; i < sizeof(needs) / sizeof(needs[0]); i++) {
		const char *text = getenv(needs[i].name);

		if (text ? strcasecmp(text, needs[i].value) != 0 : !needs[i].by_default)
			at += (size_t)snprintf(missing + at, sizeof(missing) - at, " %s=%s",
					       needs[i].name, needs[i].value);
	}
	if (!missing[0])
		return conf_ring(c);
	say_warn("GX_NCCL_MODE=unpack: set%s, on all ranks", missing);
	return false;
}

static bool conf_mode(struct conf *c)
{
	static const char *const modes[] = {"host", "unpack"};
	const char *text = conf_text("GX_NCCL_MODE");
	unsigned mode = 0;

	if (text && !strcmp(text, "cuda")) {
		say_warn("GX_NCCL_MODE=cuda was removed, because mode host is faster: say host or "
			 "unpack");
		return false;
	}
	if (!conf_word("GX_NCCL_MODE", modes, 2, "host or unpack", &mode))
		return false;
	c->offload = mode == 1;
	return !c->offload || conf_offload(c);
}

bool conf_read(struct conf *c)
{
	unsigned long bounce_mb = CONF_BOUNCE_MB;
	unsigned long cores = 0, timeout_s = CONF_TIMEOUT_S, busy = 0, help = HELP_AUTO;
	unsigned long devices = CONF_DEVICES, speed_mbps = 0, latency_us = CONF_LATENCY_US;

	memset(c, 0, sizeof(*c));
	if (!conf_number("GX_NCCL_CORES", 1, LANES_MAX, &cores) ||
	    !conf_number("GX_NCCL_TIMEOUT_S", 1, 3600, &timeout_s) ||
	    !conf_number("GX_NCCL_BUSY", 0, 1, &busy) ||
	    !conf_number("GX_NCCL_HELP", 0, 1, &help) ||
	    !conf_number("GX_NCCL_BOUNCE_MB", 1, 4095, &bounce_mb) ||
	    !conf_number("GX_NCCL_DEVICES", 1, DEVICES_MAX, &devices) ||
	    !conf_number("GX_NCCL_SPEED_MBPS", 1, 100000000, &speed_mbps) ||
	    !conf_number("GX_NCCL_LATENCY_US", 0, 1000000, &latency_us))
		return false;
	c->nr_cores = (unsigned)cores;
	c->timeout_ns = timeout_s * 1000000000ull;
	c->step_ns = c->timeout_ns > SETUP_NS ? c->timeout_ns : SETUP_NS;
	c->busy = busy;
	c->bounce_b = (uint64_t)bounce_mb << 20;
	c->nr_devices = (unsigned)devices;
	c->speed_mbps = (int)speed_mbps;
	c->latency_us = (unsigned)latency_us;
	if (!conf_cpus(c) || !conf_ports(c) || !conf_key(c) || !conf_host(c) || !conf_link(c) ||
	    !conf_mode(c) || !conf_proto() || !conf_pull(c))
		return false;
	c->help = c->pull == GX_PULL_OFF ? 0 : (unsigned)help;
	return true;
}
