// SPDX-License-Identifier: Apache-2.0
/* Options of a context; see opt_ctx.h. */
#include "common/opt_ctx.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* ---- Ports ---- */

/* Cut @at, which ends with 0, at the first of @marks. Return: what stands after it; NULL: nothing. */
static char *cut(char *at, const char *marks)
{
	at += strcspn(at, marks);
	if (!*at)
		return NULL;
	*at = 0;
	return at + 1;
}

/* A word that all ports have. Return: 1: it is one; 0: a port's own; -EINVAL. */
static int port_word(const char *word, struct gx_port_name *p)
{
	static const char *const cc[] = {"auto", "none", "rate", "swift"}; /* enum gx_cc */

	if (!strncmp(word, "paths=", 6)) {
		p->paths = (unsigned)(word[6] - '0');
		return p->paths < 1 || p->paths > 8 || word[7] ? -EINVAL : 1;
	}
	if (strncmp(word, "cc=", 3) != 0)
		return 0;
	p->cc = GX_CC_NONE;
	while (p->cc <= GX_CC_SWIFT && strcmp(word + 3, cc[p->cc]) != 0)
		p->cc++;
	return p->cc <= GX_CC_SWIFT ? 1 : -EINVAL;
}

/* The port's own words stay in @args. Return: 0, -EINVAL. */
static int port_words(char *args, struct gx_port_name *p)
{
	char *end = args, *next;

	for (char *word = args; word; word = next) {
		size_t len = strcspn(word, ",");
		int ret;

		next = cut(word, ",");
		ret = port_word(word, p);
		if (ret < 0)
			return ret;
		if (ret)
			continue;
		if (end > args)
			*end++ = ',';
		memmove(end, word, len + 1);
		end += len;
	}
	p->args = end > args ? args : NULL;
	return 0;
}

static int port_take(char *text, struct gx_port_name *p)
{
	char *more = cut(text, ":");

	if (!*text || (more && !*more))
		return -EINVAL;
	*p = (struct gx_port_name){.name = text};
	if (more && !strcmp(text, "dpdk")) {
		p->device = more;
		more = cut(more, ",");
	}
	return more ? port_words(more, p) : 0;
}

int opt_ports(const char *text, struct opt_ports *out)
{
	size_t len = strlen(text) + 1;
	char *at = out->text + out->used;

	if (len > sizeof(out->text) - out->used)
		return -EINVAL;
	memcpy(at, text, len);
	out->used += len;
	while (at && out->nr < OPT_PORTS_MAX) {
		char *next = cut(at, ";");

		if (port_take(at, &out->v[out->nr++]))
			return -EINVAL;
		at = next;
	}
	return 0;
}

void opt_ports_bare(struct opt_ports *ports)
{
	for (unsigned i = 0; i < ports->nr; i++)
		ports->v[i].args = NULL;
}

/* ---- RDMA devices ---- */

/* ":N" at *@at, from @min to 255. Return: 1, and *@at is past it; 0: there is none; -EINVAL. */
static int rail_number(const char **at, unsigned min, unsigned *out)
{
	char digits[4] = "";
	size_t len;
	uint32_t v;

	if (**at != ':')
		return 0;
	len = strspn(*at + 1, "0123456789");
	if (!len || len >= sizeof(digits))
		return -EINVAL;
	memcpy(digits, *at + 1, len);
	if (opt_u32(digits, min, 255, &v))
		return -EINVAL;
	*at += 1 + len;
	*out = v;
	return 1;
}

/* ",sl=3,tc=106": each once at most, in any order. */
static int rail_marks(const char *at, struct gx_rail *r)
{
	bool has_sl = false, has_tc = false;
	unsigned v;
	int used;

	for (; *at; at += used) {
		used = 0;
		if (!has_sl && sscanf(at, ",sl=%3u%n", &v, &used) == 1 && v <= 15) {
			has_sl = true;
			r->sl = (uint8_t)v;
		} else if (!has_tc && sscanf(at, ",tc=%3u%n", &v, &used) == 1 && v <= 255) {
			has_tc = true;
			r->tc = (uint8_t)v;
		} else {
			return -EINVAL;
		}
		if (at[used] && at[used] != ',')
			return -EINVAL;
	}
	return 0;
}

int opt_rail(const char *text, char name[64], struct gx_rail *out, bool *all)
{
	size_t len = strcspn(text, ":,");
	const char *at = text + len;
	struct gx_rail r = {0};
	int has_gid;

	if (!len || len >= 64)
		return -EINVAL;
	memcpy(name, text, len);
	name[len] = 0;
	*all = !strcmp(name, "all");
	if (*all ? *at == ':' : rail_number(&at, 1, &r.port) < 0)
		return -EINVAL;
	has_gid = rail_number(&at, 0, &r.gid);
	if (has_gid < 0 || (*at && *at != ',') || rail_marks(at, &r))
		return -EINVAL;
	r.has_gid = has_gid;
	r.device = *all || !strcmp(name, "auto") ? NULL : name;
	*out = r;
	return 0;
}

/* The first one, and then others besides it. */
static int rails_add(const char *arg, struct opt_ctx *c)
{
	unsigned i = c->verbs.nr_rails;
	bool all;

	if (i == OPT_RAILS_MAX || opt_rail(arg, c->rail_name[i], &c->rail[i], &all) ||
	    ((all || c->verbs.all) && i))
		return -EINVAL;
	c->verbs.all = all;
	c->verbs.nr_rails++;
	return 0;
}

/* ---- Queues of a NIC ---- */

int opt_nic_queues(const char *text, char name[64], struct gx_nic_opts *out)
{
	const char *colon = strrchr(text, ':');
	unsigned first, last;
	char rest;

	if (!colon || colon == text || colon - text >= 64 || strpbrk(colon, " +") ||
	    colon[1] == '-' || strstr(colon, "--") ||
	    sscanf(colon, ":%9u-%9u%c", &first, &last, &rest) != 2 || last < first)
		return -EINVAL;
	memcpy(name, text, (size_t)(colon - text));
	name[colon - text] = 0;
	out->rx_if = name;
	out->rx_first = first;
	out->rx_queues = last - first + 1;
	return 0;
}

/* ---- All ---- */

#define GROUP(of, group) ((of)->group.size = sizeof((of)->group), &(of)->group)

struct gx_opts opt_ctx_opts(struct opt_ctx *c)
{
	struct gx_opts o = c->top;

	for (unsigned i = 0; i < c->verbs.nr_rails; i++)
		if (c->rail[i].device) /* @c may be a copy */
			c->rail[i].device = c->rail_name[i];
	if (c->nic.rx_if)
		c->nic.rx_if = c->rx_nic;
	c->verbs.rails = c->verbs.nr_rails ? c->rail : NULL;
	o.size = sizeof(o);
	o.cores = GROUP(c, cores);
	o.host = GROUP(c, host);
	o.packet = GROUP(c, packet);
	o.gpu = GROUP(c, gpu);
	o.nic = GROUP(c, nic);
	o.verbs = GROUP(c, verbs);
	/* Ranks of a collective do both. */
	c->auth.key_files = c->keys;
	c->auth.nr_key_files = c->nr_keys;
	c->auth.key_file = c->top.server ? NULL : c->keys[0];
	o.auth = c->nr_keys || c->auth.name ? GROUP(c, auth) : NULL;
	return o;
}

void opt_ctx_verbs(struct opt_ctx *c)
{
	if (!c->verbs.nr_rails)
		rails_add("auto", c);
}

static int opt_size32(const char *text, uint32_t *out)
{
	uint64_t v;
	int ret = opt_size(text, &v);

	if (ret || v > UINT32_MAX)
		return ret ? ret : -ERANGE;
	*out = (uint32_t)v;
	return 0;
}

static int gx_value(int key, const char *arg, struct opt_ctx *c)
{
	switch (key) {
	case OPT_GX_WINDOW:
		return opt_u32(arg, 1, 1024, &c->packet.window);
	case OPT_GX_CHUNK: /* 0 would mean the default */
		return opt_size32(arg, &c->packet.chunk_b) || !c->packet.chunk_b ? -EINVAL : 0;
	case OPT_GX_SLOTS:
		return opt_u32(arg, 1, 1u << 24, &c->packet.slots);
	case OPT_GX_QUANTUM:
		return opt_size32(arg, &c->packet.quantum_b) || !c->packet.quantum_b ? -EINVAL : 0;
	case OPT_GX_UNPACK:
		return opt_unpack(arg, &c->gpu.unpack);
	case OPT_GX_BOUNCE:
		return opt_bounce(arg, &c->gpu.bounce, &c->gpu.bounce_device);
	case OPT_GX_SMS:
		return opt_u32(arg, 1, 4096, &c->gpu.sms);
	case OPT_GX_INTEGRITY:
		return opt_integrity(arg, &c->packet.integrity);
	case OPT_GX_CRC_BY:
		return opt_crc_by(arg, &c->packet.crc_by);
	case OPT_GX_TIMEOUT:
		return opt_seconds(arg, &c->top.peer_timeout_ns);
	case OPT_GX_INSECURE:
		c->top.insecure = true;
		return 0;
	case OPT_GX_KEY:
		if (c->nr_keys == OPT_KEYS_MAX)
			return -EINVAL;
		c->keys[c->nr_keys++] = arg;
		return 0;
	case OPT_GX_RDMA:
		return rails_add(arg, c);
	case OPT_GX_PULL:
		return opt_pull(arg, &c->host.pull);
	case OPT_GX_TCP_RX:
		return opt_tcp_rx(arg, &c->nic.rx);
	case OPT_GX_TCP_RX_GPU:
		return opt_u32(arg, 0, 1023, &c->nic.rx_device);
	case OPT_GX_TCP_RX_POOL: /* 0 would mean the default */
		return opt_size(arg, &c->nic.rx_b) || !c->nic.rx_b ? -EINVAL : 0;
	case OPT_GX_TCP_RX_NIC:
		return opt_nic_queues(arg, c->rx_nic, &c->nic);
	case OPT_GX_TCP_TX:
		return opt_tcp_tx(arg, &c->nic.tx);
	case OPT_GX_TCP_TX_NIC: /* gx_open() reads it */
		c->nic.tx_if = arg;
		return 0;
	default:
		c->host.huge = GX_OFF;
		return 0;
	}
}

int opt_gx(int key, const char *arg, struct opt_ctx *c, char why[OPT_WHY_MAX])
{
	static const char *const is[][2] = {
		{"window", "a number from 1 to 1024"},
		{"chunk", "a size such as 4096, 512K or 4M, below 4G"},
		{"slots", "a number from 1 to 16777216"},
		{"quantum", "a size such as 1280, 4096 or 8K, at most 65520"},
		{"unpack", "kernel, resident, d2d, host, none or auto"},
		{"bounce", "host, gpu or gpu:N"},
		{"sms", "a number from 1 to 4096"},
		{"integrity", "none, crc32c, mac or gcm"},
		{"crc-by", "auto, cpu or copy"},
		{"timeout", "a number of seconds from 0.001 to 86400"},
		{"pull", "auto, on, off or allow"},
		{"tcp-rx", "copy or devmem"},
		{"tcp-rx-gpu", "a number from 0 to 1023"},
		{"tcp-rx-pool", "a size such as 64M or 1G"},
		{"tcp-rx-nic", "an interface and its queues, as eth0:8-15"},
		[OPT_GX_RDMA - OPT_GX_WINDOW] =
			{"rdma",
			 "one of at most 8 devices: auto, NAME, NAME:PORT or NAME:PORT:GID, such as "
			 "mlx5_0:1:3, or all; behind it ,sl=0 to 15 or ,tc=0 to 255"},
		[OPT_GX_TCP_TX - OPT_GX_WINDOW] = {"tcp-tx", "copy, devmem or auto"},
		[OPT_GX_KEY - OPT_GX_WINDOW] = {"key", "one of at most 16 files"},
	};

	if (key < OPT_GX_WINDOW || key > OPT_GX_KEY)
		return -ENOENT;
	if (!gx_value(key, arg, c))
		return 0;
	snprintf(why, OPT_WHY_MAX, "--%s: '%.100s' is not %s", is[key - OPT_GX_WINDOW][0], arg,
		 is[key - OPT_GX_WINDOW][1]);
	return -EINVAL;
}
