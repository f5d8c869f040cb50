// SPDX-License-Identifier: Apache-2.0
/*
 * The steps that give receive queues of a NIC to memory of a device, in the words of ethtool and of
 * netlink, each with the state of the interface and the driver's answer. Nothing is changed. Pure:
 * from struct nic_facts alone.
 */
#include "nic/nic.h"

#include "core/core.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define PLAN_NIC_CURE "use a NIC whose driver can, such as bnxt_en, gve, mlx5_core"

/* A driver has queues of both kinds side by side, or of one alone. */
uint32_t nic_queues_max(const struct nic_facts *f)
{
	const struct nic_channels *c = &f->channels;
	uint32_t rx = c->rx_max ? c->combined + c->rx_max : 0;
	uint32_t combined = c->combined_max ? c->rx + c->combined_max : 0;

	return rx > combined ? rx : combined;
}

int nic_range_check(const struct nic_facts *f, const struct nic_range *r)
{
	char who[64];

	nic_who(f, who, sizeof(who));
	if (r->first > r->last)
		return gx_fail(-EINVAL, "queues %u-%u: the first comes after the last; write %u-%u",
			       r->first, r->last, r->last, r->first);
	if (!r->first)
		return gx_fail(-EINVAL,
			       "queues 0-%u: ordinary traffic keeps queue 0; begin with 1 or later",
			       r->last);
	if (r->last >= NIC_QUEUES_MAX)
		return gx_fail(-ERANGE, "queues %u-%u: gx looks at queues up to %d", r->first,
			       r->last, NIC_QUEUES_MAX - 1);
	if (f->nr_rx > 1 && r->last >= f->nr_rx && r->last >= nic_queues_max(f))
		return gx_fail(-ERANGE,
			       "queues %u-%u: %s has receive queues 0 to %u, and reports no more "
			       "that it could have; take some of these",
			       r->first, r->last, who, f->nr_rx - 1);
	if (r->tcp_port > UINT16_MAX)
		return gx_fail(-EINVAL, "%u is no TCP port; it is 1 to 65535", r->tcp_port);
	return 0;
}

__attribute__((format(printf, 3, 4))) static void step_say(struct gx_nic_step *s,
							   enum gx_nic_can can, const char *fmt,
							   ...)
{
	va_list ap;

	s->can = can;
	va_start(ap, fmt);
	vsnprintf(s->answer, sizeof(s->answer), fmt, ap);
	va_end(ap);
}

static void step_cure(struct gx_nic_step *s, const char *cure)
{
	snprintf(s->cure, sizeof(s->cure), "%s", cure);
}

static void step_queues(const struct nic_facts *f, const struct nic_range *r, struct gx_nic_step *s)
{
	const struct nic_channels *c = &f->channels;
	const char *few = f->nr_rx == 1 ? "" : "s";
	uint32_t max = nic_queues_max(f), others;
	bool rx = c->rx_max && c->combined + c->rx_max == max;

	others = rx ? c->combined : c->rx;
	others = others <= r->last ? others : 0; /* enough of the other kind: the step is done */
	snprintf(s->name, sizeof(s->name), "queues");
	snprintf(s->command, sizeof(s->command), "ethtool -L %s %s %u", f->name,
		 rx ? "rx" : "combined", r->last + 1 - others);
	snprintf(s->netlink, sizeof(s->netlink), "ethtool channels-set dev-index %d %s-count %u",
		 f->ifindex, rx ? "rx" : "combined", r->last + 1 - others);
	if (f->nr_rx > r->last) {
		step_say(s, GX_NIC_YES, "it has %u receive queues", f->nr_rx);
	} else if (max > r->last) {
		step_say(s, GX_NIC_LATER, "it has %u receive queue%s, and can have %u", f->nr_rx,
			 few, max);
	} else {
		step_say(s, GX_NIC_NO,
			 "it reports %u receive queue%s, and no more that it "
			 "could have",
			 f->nr_rx, few);
		step_cure(s, "use a NIC with more receive queues");
	}
}

/* The cure of a netlink that does not answer, -@err. */
static const char *netlink_cure(int err)
{
	if (err == -ENOSYS)
		return "install libmnl-dev, and build gx again";
	return "allow this process generic netlink";
}

/* Nothing is known of rings: say why, and the cure. Return: so it is. */
static bool step_not_asked(const struct nic_facts *f, struct gx_nic_step *s)
{
	int err = f->nl_err ? f->nl_err : f->rings_err;

	if (!err)
		return false;
	if (f->nl_err == -ENOSYS)
		step_say(s, GX_NIC_NO, "not asked: gx was built without libmnl");
	else if (!f->nl_err && err == -ENOENT)
		step_say(s, GX_NIC_NO, "not asked: the kernel has no netlink family ethtool");
	else
		step_say(s, GX_NIC_NO, "not asked: %s", strerror(-err));
	if (f->nl_err)
		step_cure(s, netlink_cure(err));
	else if (err == -ENOENT)
		step_cure(s, "use a kernel with CONFIG_ETHTOOL_NETLINK");
	else if (err == -EOPNOTSUPP)
		step_cure(s, PLAN_NIC_CURE);
	else
		step_cure(s, "see the kernel's log, and look again");
	return true;
}

/* mlx5_core refuses header split without it. Other drivers do not mind it. */
static void step_gro_hw(const struct nic_facts *f, const struct nic_range *r, struct gx_nic_step *s)
{
	snprintf(s->name, sizeof(s->name), "hardware GRO");
	snprintf(s->command, sizeof(s->command), "ethtool -K %s rx-gro-hw on", f->name);
	snprintf(s->netlink, sizeof(s->netlink), "ethtool features-set dev-index %d rx-gro-hw on",
		 f->ifindex);
	step_say(s, GX_NIC_LATER, "it is off; mlx5_core refuses header split without it");
}

static void step_split(const struct nic_facts *f, const struct nic_range *r, struct gx_nic_step *s)
{
	snprintf(s->name, sizeof(s->name), "header split");
	snprintf(s->command, sizeof(s->command), "ethtool -G %s tcp-data-split on", f->name);
	snprintf(s->netlink, sizeof(s->netlink),
		 "ethtool rings-set dev-index %d tcp-data-split enabled", f->ifindex);
	if (f->split == NIC_SPLIT_REFUSED) {
		step_say(s, GX_NIC_NO, "the driver has none: %s", strerror(-f->rings_err));
		step_cure(s, PLAN_NIC_CURE);
	} else if (step_not_asked(f, s)) {
		return;
	} else if (f->split == NIC_SPLIT_ON) {
		step_say(s, GX_NIC_YES, "it is on");
	} else if (f->split == NIC_SPLIT_OFF) {
		step_say(s, GX_NIC_LATER, "it is off");
	} else {
		step_say(s, GX_NIC_LATER, "it is not configured; the driver may refuse it");
	}
}

/* A driver without a threshold splits each packet. */
static void step_thresh(const struct nic_facts *f, const struct nic_range *r, struct gx_nic_step *s)
{
	snprintf(s->name, sizeof(s->name), "split threshold");
	snprintf(s->command, sizeof(s->command), "ethtool -G %s hds-thresh 0", f->name);
	snprintf(s->netlink, sizeof(s->netlink), "ethtool rings-set dev-index %d hds-thresh 0",
		 f->ifindex);
	if (step_not_asked(f, s))
		return;
	if (!f->has_thresh)
		step_say(s, GX_NIC_YES, "the driver has none");
	else if (!f->thresh_b)
		step_say(s, GX_NIC_YES, "it is 0");
	else
		step_say(s, GX_NIC_LATER, "it is %u", f->thresh_b);
}

static bool range_in_rss(const struct nic_facts *f, const struct nic_range *r)
{
	for (uint32_t q = r->first; q <= r->last; q++)
		if (f->rss_queues[q / 64] >> q % 64 & 1)
			return true;
	return false;
}

static void step_rss(const struct nic_facts *f, const struct nic_range *r, struct gx_nic_step *s)
{
	snprintf(s->name, sizeof(s->name), "RSS away");
	snprintf(s->command, sizeof(s->command), "ethtool -X %s equal %u", f->name, r->first);
	snprintf(s->netlink, sizeof(s->netlink), "ethtool rss-set dev-index %d indir 0-%u",
		 f->ifindex, r->first - 1);
	if (f->rss <= 0) {
		step_say(s, GX_NIC_NO, "the driver has no RSS table: %s", strerror(-f->rss));
		step_cure(s, PLAN_NIC_CURE);
	} else if (f->nr_rx <= r->last) { /* the driver may spread anew */
		step_say(s, GX_NIC_LATER,
			 "queues are missing yet, and RSS may spread over new ones");
	} else if (range_in_rss(f, r)) {
		step_say(s, GX_NIC_LATER, "RSS spreads over queues %u-%u too", r->first, r->last);
	} else {
		step_say(s, GX_NIC_YES, "RSS leaves queues %u-%u alone", r->first, r->last);
	}
}

static void step_ntuple(const struct nic_facts *f, const struct nic_range *r, struct gx_nic_step *s)
{
	snprintf(s->name, sizeof(s->name), "flow rules on");
	snprintf(s->command, sizeof(s->command), "ethtool -K %s ntuple on", f->name);
	snprintf(s->netlink, sizeof(s->netlink),
		 "ethtool features-set dev-index %d rx-ntuple-filter on", f->ifindex);
	if (f->ntuple == NIC_HAS_ON) {
		step_say(s, GX_NIC_YES, "they are on");
	} else if (f->ntuple == NIC_HAS_OFF) {
		step_say(s, GX_NIC_LATER, "they are off");
	} else {
		step_say(s, GX_NIC_NO, "the driver has none");
		step_cure(s, PLAN_NIC_CURE);
	}
}

/* One rule leads to one queue, so a server with several queues adds a rule for each connection. */
static void step_rule(const struct nic_facts *f, const struct nic_range *r, struct gx_nic_step *s)
{
	snprintf(s->name, sizeof(s->name), "flow rule");
	if (r->tcp_port)
		snprintf(s->command, sizeof(s->command),
			 "ethtool -N %s flow-type tcp4 dst-port %u action %u", f->name, r->tcp_port,
			 r->first);
	snprintf(
		s->netlink, sizeof(s->netlink),
		"ioctl ETHTOOL_SRXCLSRLINS, location RX_CLS_LOC_ANY; one for each connection, over "
		"queues %u-%u in turn",
		r->first, r->last);
	if (f->rules.err) {
		step_say(s, GX_NIC_NO, "the driver does not count its rules: %s",
			 strerror(-f->rules.err));
		step_cure(s, PLAN_NIC_CURE);
	} else {
		step_say(s, GX_NIC_LATER, "%u rules are set; %s%s", f->rules.nr,
			 f->rules.placed ? "the driver places new ones"
					 : "the driver places none, so a free place (loc) is named",
			 r->tcp_port ? "" : "; give the TCP port for a command");
	}
}

static uint32_t range_held(const struct nic_facts *f, const struct nic_range *r)
{
	for (uint32_t q = r->first; q <= r->last; q++)
		if (f->held[q])
			return q;
	return UINT32_MAX;
}

static const char *held_by(uint8_t held)
{
	if (held & NIC_HELD_DMABUF)
		return "a dma-buf (devmem)";
	return held & NIC_HELD_URING ? "io_uring" : "AF_XDP";
}

static void step_bind(const struct nic_facts *f, const struct nic_range *r, struct gx_nic_step *s)
{
	uint32_t held = range_held(f, r);

	snprintf(s->name, sizeof(s->name), "bind");
	snprintf(s->netlink, sizeof(s->netlink),
		 "netdev bind-rx ifindex %d queues rx %u-%u dmabuf-fd FD", f->ifindex, r->first,
		 r->last);
	if (f->nl_err) {
		step_say(s, GX_NIC_NO, "no netlink: %s",
			 f->nl_err == -ENOSYS ? "gx was built without libmnl"
					      : strerror(-f->nl_err));
		step_cure(s, netlink_cure(f->nl_err));
	} else if (!f->bind_rx) {
		step_say(s, GX_NIC_NO, "Linux %s does not know it", f->kernel);
		step_cure(s, "use Linux 6.12 or newer");
	} else if (held != UINT32_MAX) {
		step_say(s, GX_NIC_NO, "queue %u is bound to %s already", held,
			 held_by(f->held[held]));
		step_cure(s, "take other queues, or end the process that holds it");
	} else if (nic_is_refused(f) || f->bind_err == -EPERM) {
		s->can = GX_NIC_NO;
		nic_refusal(f, f->bind_err, f->bind_text, s->answer, sizeof(s->answer), s->cure,
			    sizeof(s->cure));
	} else {
		s->can = GX_NIC_LATER;
		nic_unbound(f, s->answer, sizeof(s->answer));
	}
}

/* Hardware GRO is a step only where it is off and header split may need it. */
int nic_step(const struct nic_facts *f, const struct nic_range *r, unsigned index,
	     struct gx_nic_step *out)
{
	static void (*const all[])(const struct nic_facts *f, const struct nic_range *r,
				   struct gx_nic_step *s) = {step_queues, step_gro_hw, step_split,
							     step_thresh, step_rss,    step_ntuple,
							     step_rule,	  step_bind};

	const unsigned nr = sizeof(all) / sizeof(all[0]);
	bool gro_hw = f->gro_hw == NIC_HAS_OFF && f->split != NIC_SPLIT_ON;
	unsigned at = index && index < nr && !gro_hw ? index + 1 : index;

	if (at >= nr)
		return -ENOENT;
	out->command[0] = out->cure[0] = '\0';
	all[at](f, r, out);
	if (out->can == GX_NIC_YES) /* nothing is left to type */
		out->command[0] = '\0';
	return 0;
}
