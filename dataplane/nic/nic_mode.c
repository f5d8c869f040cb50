// SPDX-License-Identifier: Apache-2.0
/*
 * The facts of an interface in words, and the receive modes that follow from them: for each, what
 * is missing and the cure. Pure: from struct nic_facts alone.
 */
#include "nic/nic.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MODE_RX_MIN 2 /* queues: one for memory of a device, one for all other traffic */

#define MODE_DRIVERS "such as bnxt_en, gve, mlx5_core"

void nic_who(const struct nic_facts *f, char *buf, size_t room)
{
	snprintf(buf, room, "%s (%s%s)", f->name, f->driver[0] ? "driver " : "no driver",
		 f->driver);
}

/* ---- Facts ---- */

__attribute__((format(printf, 3, 4))) static void fact_set(struct gx_nic_fact *out,
							   const char *name, const char *fmt, ...)
{
	va_list ap;

	snprintf(out->name, sizeof(out->name), "%s", name);
	va_start(ap, fmt);
	vsnprintf(out->text, sizeof(out->text), fmt, ap);
	va_end(ap);
}

static void fact_driver(const struct nic_facts *f, struct gx_nic_fact *out)
{
	fact_set(out, "driver", "%s", f->driver[0] ? f->driver : "none");
}

static void fact_bus(const struct nic_facts *f, struct gx_nic_fact *out)
{
	fact_set(out, "bus", "%s", f->bus[0] ? f->bus : "none");
}

static void fact_kernel(const struct nic_facts *f, struct gx_nic_fact *out)
{
	fact_set(out, "kernel", "%s", f->kernel[0] ? f->kernel : "unknown");
}

static void fact_queues(const struct nic_facts *f, struct gx_nic_fact *out)
{
	unsigned held = 0;

	for (unsigned i = 0; i < NIC_QUEUES_MAX; i++)
		held += f->held[i] != 0;
	if (!f->nr_rx)
		fact_set(out, "rx_queues", "unknown");
	else if (held)
		fact_set(out, "rx_queues", "%u, %u of them bound to memory of others", f->nr_rx,
			 held);
	else
		fact_set(out, "rx_queues", "%u", f->nr_rx);
}

static void fact_split(const struct nic_facts *f, struct gx_nic_fact *out)
{
	static const char *const text[] = {[NIC_SPLIT_NOT_ASKED] = "not asked",
					   [NIC_SPLIT_REFUSED] = "not supported",
					   [NIC_SPLIT_UNTOLD] = "not reported",
					   [NIC_SPLIT_OFF] = "off",
					   [NIC_SPLIT_ON] = "on"};

	fact_set(out, "header_split", "%s", text[f->split]);
}

static void fact_gro_hw(const struct nic_facts *f, struct gx_nic_fact *out)
{
	static const char *const text[] = {
		[NIC_HAS_NOT] = "no", [NIC_HAS_OFF] = "off", [NIC_HAS_ON] = "on"};

	fact_set(out, "gro_hw", "%s", text[f->gro_hw]);
}

static void fact_thresh(const struct nic_facts *f, struct gx_nic_fact *out)
{
	if (f->has_thresh)
		fact_set(out, "hds_thresh", "%u, at most %u", f->thresh_b, f->thresh_max_b);
	else
		fact_set(out, "hds_thresh", "not reported");
}

static void fact_rss(const struct nic_facts *f, struct gx_nic_fact *out)
{
	unsigned nr = 0;

	for (unsigned i = 0; i < NIC_QUEUES_MAX / 64; i++)
		nr += (unsigned)__builtin_popcountll(f->rss_queues[i]);
	if (f->rss > 0)
		fact_set(out, "rss", "%d entries, over %u queues", f->rss, nr);
	else
		fact_set(out, "rss", "no table");
}

static void fact_flows(const struct nic_facts *f, struct gx_nic_fact *out)
{
	static const char *const text[] = {
		[NIC_HAS_NOT] = "no", [NIC_HAS_OFF] = "off", [NIC_HAS_ON] = "on"};

	if (f->rules.err)
		fact_set(out, "flow_rules", "%s", text[f->ntuple]);
	else
		fact_set(out, "flow_rules", "%s, %u set", text[f->ntuple], f->rules.nr);
}

static void fact_netdev(const struct nic_facts *f, struct gx_nic_fact *out)
{
	if (f->nl_err)
		fact_set(out, "netdev", "not asked: %s",
			 f->nl_err == -ENOSYS ? "gx was built without libmnl"
					      : strerror(-f->nl_err));
	else if (!f->netdev)
		fact_set(out, "netdev", "the kernel has no such family");
	else
		fact_set(out, "netdev", "bind-rx %s, bind-tx %s", f->bind_rx ? "known" : "unknown",
			 f->bind_tx ? "known" : "unknown");
}

static void fact_bind(const struct nic_facts *f, struct gx_nic_fact *out)
{
	if (!f->bind_err)
		fact_set(out, "bind_rx", "not asked");
	else if (f->bind_err == NIC_BIND_SILENT)
		fact_set(out, "bind_rx", "not known before a bind");
	else
		fact_set(out, "bind_rx", "%s%s%s", strerror(-f->bind_err),
			 f->bind_text[0] ? ": " : "", f->bind_text);
}

static void fact_xdp(const struct nic_facts *f, struct gx_nic_fact *out)
{
	fact_set(out, "xdp_features", "0x%llx", (unsigned long long)f->xdp);
}

int nic_fact(const struct nic_facts *f, unsigned index, struct gx_nic_fact *out)
{
	static void (*const all[])(const struct nic_facts *f, struct gx_nic_fact *out) = {
		fact_driver, fact_bus,	 fact_kernel, fact_queues, fact_split, fact_thresh,
		fact_rss,    fact_flows, fact_netdev, fact_bind,   fact_xdp,   fact_gro_hw};

	if (index >= sizeof(all) / sizeof(all[0]))
		return -ENOENT;
	all[index](f, out);
	return 0;
}

/* ---- Modes ---- */

__attribute__((format(printf, 4, 5))) static void mode_lack(struct gx_nic_mode *m,
							    enum gx_nic_can can, const char *cure,
							    const char *fmt, ...)
{
	va_list ap;

	m->can = can;
	snprintf(m->cure, sizeof(m->cure), "%s", cure);
	va_start(ap, fmt);
	vsnprintf(m->why, sizeof(m->why), fmt, ap);
	va_end(ap);
}

void nic_refusal(const struct nic_facts *f, int err, const char *text, char *why, size_t why_room,
		 char *cure, size_t cure_room)
{
	char who[64];
	const char *what = "see the kernel's text, and its log";

	nic_who(f, who, sizeof(who));
	snprintf(why, why_room, "%s: the kernel refuses to bind it to memory of a device: %s%s%s",
		 who, strerror(-err), text[0] ? ": " : "", text);
	if (err == -EOPNOTSUPP)
		what = "use a NIC whose driver can, " MODE_DRIVERS
		       ", and a kernel with CONFIG_NET_DEVMEM";
	else if (err == -EPERM)
		what = "be root in the host's own user namespace, or have CAP_NET_ADMIN there";
	else if (err == -EBADF)
		what = "pass the descriptor of a dma-buf";
	else if (err == -EEXIST || err == -EBUSY)
		what = "take queues that nobody else has bound, and end XDP programs";
	else if (err == -ERANGE)
		what = "take queues that the interface has";
	else if (err == -EINVAL)
		what = "switch header split on, and set its threshold to 0; gx_nic_step() says how";
	snprintf(cure, cure_room, "%s", what);
}

/* Kernel and gx: what no NIC mends. Return: something is missing. */
static bool mode_lacks_kernel(const struct nic_facts *f, struct gx_nic_mode *m)
{
	if (f->nl_err == -ENOSYS)
		mode_lack(m, GX_NIC_NO, "install libmnl-dev and build gx again",
			  "gx was built without libmnl");
	else if (f->nl_err)
		mode_lack(m, GX_NIC_NO, "allow this process generic netlink",
			  "no netlink socket: %s", strerror(-f->nl_err));
	else if (!f->bind_rx)
		mode_lack(m, GX_NIC_NO, "use Linux 6.12 or newer",
			  "Linux %s does not know bind-rx of family netdev", f->kernel);
	else
		return false;
	return true;
}

/* Any other answer leaves it open: EBADF comes before the driver is asked, EINVAL may be the
 * set-up's, ENODEV an interface's that is down. */
bool nic_is_refused(const struct nic_facts *f)
{
	return f->bind_err == -EOPNOTSUPP || f->bind_err == -EEXIST || f->bind_err == -EBUSY ||
	       f->bind_err == -ERANGE;
}

void nic_unbound(const struct nic_facts *f, char *buf, size_t room)
{
	if (!f->bind_err || f->bind_err == NIC_BIND_SILENT)
		snprintf(buf, room, "the driver's answer is not known before a bind");
	else if (f->bind_err == -EPERM)
		snprintf(buf, room, "this process may not bind queues");
	else
		snprintf(buf, room, "bind-rx without a dma-buf: %s%s%s", strerror(-f->bind_err),
			 f->bind_text[0] ? ": " : "", f->bind_text);
}

/* Driver and card. Return: something is missing. */
static bool mode_lacks_card(const struct nic_facts *f, struct gx_nic_mode *m)
{
	static const char cure[] = "use a NIC whose driver can, " MODE_DRIVERS;
	char who[64];

	nic_who(f, who, sizeof(who));
	if (nic_is_refused(f)) {
		m->can = GX_NIC_NO;
		nic_refusal(f, f->bind_err, f->bind_text, m->why, sizeof(m->why), m->cure,
			    sizeof(m->cure));
	} else if (f->split == NIC_SPLIT_REFUSED) {
		mode_lack(m, GX_NIC_NO, cure, "%s has no header split: %s", who,
			  strerror(-f->rings_err));
	} else if (f->nr_rx < MODE_RX_MIN && nic_queues_max(f) < MODE_RX_MIN) {
		mode_lack(m, GX_NIC_NO, "use a NIC with more receive queues",
			  "%s reports %u receive queue%s; two are the least", who, f->nr_rx,
			  f->nr_rx == 1 ? "" : "s");
	} else if (f->ntuple == NIC_HAS_NOT || f->rules.err) {
		mode_lack(m, GX_NIC_NO, cure, "%s has no flow rules (ntuple filters)", who);
	} else {
		return false;
	}
	return true;
}

/* What a set-up does. Only a bind shows the driver's answer, so nothing is YES before one. */
static void mode_lacks_set_up(const struct nic_facts *f, struct gx_nic_mode *m, const char *bind_by)
{
	static const char *const split[] = {[NIC_SPLIT_NOT_ASKED] = ", header split was not asked",
					    [NIC_SPLIT_REFUSED] = "",
					    [NIC_SPLIT_UNTOLD] = ", header split is not configured",
					    [NIC_SPLIT_OFF] = ", header split is off",
					    [NIC_SPLIT_ON] = ""};
	char why[sizeof(m->why)], bind[NIC_TEXT_MAX + 64];
	const char *cure = "gx_nic_step() has the steps";

	nic_unbound(f, bind, sizeof(bind));
	snprintf(why, sizeof(why), "%s%s%s%s",
		 f->nr_rx < MODE_RX_MIN ? ", it has fewer than two receive queues" : "",
		 split[f->split], f->has_thresh && f->thresh_b ? ", its threshold is not 0" : "",
		 f->ntuple != NIC_HAS_ON ? ", flow rules are off" : "");
	if (!why[0] && f->bind_err == -EPERM)
		cure = "be root, or have CAP_NET_ADMIN";
	else if (!why[0])
		cure = bind_by;
	mode_lack(m, GX_NIC_LATER, cure, "%s%s%s", why[0] ? why + 2 : "", why[0] ? "; " : "", bind);
}

static void mode_copy(const struct nic_facts *f, struct gx_nic_mode *m)
{
	snprintf(m->name, sizeof(m->name), "copy");
}

static void mode_devmem(const struct nic_facts *f, struct gx_nic_mode *m)
{
	snprintf(m->name, sizeof(m->name), "devmem");
	if (!mode_lacks_kernel(f, m) && !mode_lacks_card(f, m))
		mode_lacks_set_up(f, m, "bind a dma-buf: gx_nic_step() has the steps");
}

int nic_mode(const struct nic_facts *f, unsigned index, struct gx_nic_mode *out)
{
	static void (*const all[])(const struct nic_facts *f,
				   struct gx_nic_mode *m) = {mode_copy, mode_devmem};

	if (index >= sizeof(all) / sizeof(all[0]))
		return -ENOENT;
	out->can = GX_NIC_YES;
	out->why[0] = out->cure[0] = '\0';
	all[index](f, out);
	return 0;
}
