// SPDX-License-Identifier: Apache-2.0
/*
 * What SIOCETHTOOL reports of an interface, and flow rules, which Linux sets by it alone. Sizes that
 * the driver names are checked before they are believed. Control path, any thread.
 */
#include "nic/nic.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/ethtool.h>
#include <stdlib.h>
#include <string.h>

#define IOCTL_TABLE_MAX	   65536 /* entries of an RSS table */
#define IOCTL_FEATURES_MAX 1024
#define IOCTL_RULES_MAX	   8192
#define IOCTL_NTUPLE	   "rx-ntuple-filter"
#define IOCTL_GRO_HW	   "rx-gro-hw"

/* A text of the kernel that may lack its end. */
static void text_take(char *to, size_t room, const char *from)
{
	size_t len = strnlen(from, room - 1);

	memcpy(to, from, len);
	to[len] = '\0';
}

void nic_driver(const struct nic_sys *sys, const char *name, char driver[32], char bus[32])
{
	struct ethtool_drvinfo info = {.cmd = ETHTOOL_GDRVINFO};

	driver[0] = bus[0] = '\0';
	if (sys->ethtool(name, &info))
		return;
	text_take(driver, 32, info.driver);
	text_take(bus, 32, info.bus_info);
}

uint32_t nic_channels(const struct nic_sys *sys, const char *name, struct nic_channels *out)
{
	struct ethtool_channels c = {.cmd = ETHTOOL_GCHANNELS};
	struct ethtool_rxnfc rings = {.cmd = ETHTOOL_GRXRINGS};

	*out = (struct nic_channels){0};
	if (!sys->ethtool(name, &c) && c.rx_count < UINT16_MAX && c.combined_count < UINT16_MAX &&
	    c.rx_count + c.combined_count) {
		*out = (struct nic_channels){
			.rx = c.rx_count,
			.combined = c.combined_count,
			.rx_max = c.max_rx < UINT16_MAX ? c.max_rx : 0,
			.combined_max = c.max_combined < UINT16_MAX ? c.max_combined : 0};
		return c.rx_count + c.combined_count;
	}
	if (!sys->ethtool(name, &rings) && rings.data < UINT16_MAX)
		return (uint32_t)rings.data;
	return 0;
}

/* ---- Features: found by name, because their numbers differ between kernels ---- */

/* Return: how many there are; 0: the kernel does not report it. */
static uint32_t features_count(const struct nic_sys *sys, const char *name)
{
	struct ethtool_sset_info *ask = calloc(1, sizeof(*ask) + sizeof(ask->data[0]));
	uint32_t nr = 0;

	if (!ask)
		return 0;
	ask->cmd = ETHTOOL_GSSET_INFO;
	ask->sset_mask = 1ull << ETH_SS_FEATURES;
	if (!sys->ethtool(name, ask) && ask->sset_mask)
		nr = ask->data[0];
	free(ask);
	return nr <= IOCTL_FEATURES_MAX ? nr : 0;
}

/* Return: the number of feature @what; @nr: there is none. */
static uint32_t features_find(const struct nic_sys *sys, const char *name, uint32_t nr,
			      const char *what)
{
	struct ethtool_gstrings *all = calloc(1, sizeof(*all) + (size_t)nr * ETH_GSTRING_LEN);
	uint32_t at = nr;

	if (!all)
		return nr;
	all->cmd = ETHTOOL_GSTRINGS;
	all->string_set = ETH_SS_FEATURES;
	all->len = nr;
	if (!sys->ethtool(name, all) && all->len <= nr)
		for (at = 0; at < all->len; at++)
			if (!strncmp((char *)all->data + at * ETH_GSTRING_LEN, what,
				     ETH_GSTRING_LEN))
				break;
	if (at >= all->len)
		at = nr;
	free(all);
	return at;
}

static enum nic_has features_has(const struct nic_sys *sys, const char *name, uint32_t nr,
				 uint32_t at)
{
	uint32_t blocks = (nr + 31) / 32, bit = 1u << at % 32;
	struct ethtool_gfeatures *f = calloc(1, sizeof(*f) + blocks * sizeof(f->features[0]));
	enum nic_has has = NIC_HAS_NOT;

	if (!f)
		return has;
	f->cmd = ETHTOOL_GFEATURES;
	f->size = blocks;
	if (!sys->ethtool(name, f) && f->size == blocks) {
		if (f->features[at / 32].active & bit)
			has = NIC_HAS_ON;
		else if (f->features[at / 32].available & ~f->features[at / 32].never_changed & bit)
			has = NIC_HAS_OFF;
	}
	free(f);
	return has;
}

static enum nic_has feature(const struct nic_sys *sys, const char *name, const char *what)
{
	uint32_t nr = features_count(sys, name), at;

	if (!nr)
		return NIC_HAS_NOT;
	at = features_find(sys, name, nr, what);
	return at < nr ? features_has(sys, name, nr, at) : NIC_HAS_NOT;
}

enum nic_has nic_ntuple(const struct nic_sys *sys, const char *name)
{
	return feature(sys, name, IOCTL_NTUPLE);
}

enum nic_has nic_gro_hw(const struct nic_sys *sys, const char *name)
{
	return feature(sys, name, IOCTL_GRO_HW);
}

/* ---- RSS ---- */

int nic_rss(const struct nic_sys *sys, const char *name, uint64_t *queues, unsigned nr_words)
{
	struct ethtool_rxfh_indir none = {.cmd = ETHTOOL_GRXFHINDIR}, *table;
	int ret = sys->ethtool(name, &none);
	uint32_t nr = none.size;

	memset(queues, 0, nr_words * sizeof(*queues));
	if (ret)
		return ret;
	if (!nr || nr > IOCTL_TABLE_MAX)
		return nr ? -EBADMSG : -EOPNOTSUPP;
	table = calloc(1, sizeof(*table) + nr * sizeof(table->ring_index[0]));
	if (!table)
		return -ENOMEM;
	table->cmd = ETHTOOL_GRXFHINDIR;
	table->size = nr;
	ret = sys->ethtool(name, table);
	for (uint32_t i = 0; !ret && i < nr; i++)
		if (table->ring_index[i] / 64 < nr_words)
			queues[table->ring_index[i] / 64] |= 1ull << table->ring_index[i] % 64;
	free(table);
	return ret ? ret : (int)nr;
}

/* ---- Flow rules ---- */

void nic_rules(const struct nic_sys *sys, const char *name, struct nic_rules *out)
{
	struct ethtool_rxnfc c = {.cmd = ETHTOOL_GRXCLSRLCNT};

	*out = (struct nic_rules){.err = sys->ethtool(name, &c)};
	if (out->err)
		return;
	out->nr = c.rule_cnt;
	out->placed = c.data & RX_CLS_LOC_SPECIAL;
	out->room = (uint32_t)c.data & ~RX_CLS_LOC_SPECIAL;
}

static bool place_is_used(const struct ethtool_rxnfc *all, uint32_t place)
{
	for (uint32_t i = 0; i < all->rule_cnt; i++)
		if (all->rule_locs[i] == place)
			return true;
	return false;
}

/* The places of all rules, in *@out, which is the caller's to free, with an error too. */
static int rules_all(const struct nic_sys *sys, const char *name, const struct nic_rules *rules,
		     struct ethtool_rxnfc **out)
{
	struct ethtool_rxnfc *all;
	int ret;

	*out = NULL;
	if (rules->nr > IOCTL_RULES_MAX)
		return -EBADMSG;
	*out = all = calloc(1, sizeof(*all) + rules->nr * sizeof(all->rule_locs[0]));
	if (!all)
		return -ENOMEM;
	all->cmd = ETHTOOL_GRXCLSRLALL;
	all->rule_cnt = rules->nr;
	ret = sys->ethtool(name, all);
	return !ret && all->rule_cnt > rules->nr ? -EBADMSG : ret;
}

/* The last free place: a rule there takes no packet from the rules that others have set. */
static int rules_free(const struct nic_sys *sys, const char *name, const struct nic_rules *rules,
		      uint32_t *place)
{
	struct ethtool_rxnfc *all;
	int ret = rules_all(sys, name, rules, &all);
	uint64_t room;

	if (ret) {
		free(all);
		return ret;
	}
	room = all->data ? all->data : rules->room; /* drivers report it in one answer or both */
	while (room && place_is_used(all, (uint32_t)room - 1))
		room--;
	if (!room || room > INT32_MAX)
		ret = room ? -EBADMSG : -ENOSPC;
	*place = (uint32_t)room - 1;
	free(all);
	return ret;
}

int nic_rule_add(const struct nic_sys *sys, const char *name, const struct nic_flow *flow,
		 uint32_t queue)
{
	struct ethtool_rxnfc c = {
		.cmd = ETHTOOL_SRXCLSRLINS,
		.fs = {.flow_type = TCP_V4_FLOW, .ring_cookie = queue, .location = RX_CLS_LOC_ANY}};
	struct ethtool_tcpip4_spec *is = &c.fs.h_u.tcp_ip4_spec, *mask = &c.fs.m_u.tcp_ip4_spec;
	struct nic_rules rules;
	int ret;

	nic_rules(sys, name, &rules);
	ret = rules.err;
	if (!ret && !rules.placed)
		ret = rules_free(sys, name, &rules, &c.fs.location);
	if (ret)
		return ret;
	is->ip4src = flow->src_ip;
	is->ip4dst = flow->dst_ip;
	is->psrc = flow->src_port;
	is->pdst = flow->dst_port;
	mask->ip4src = flow->src_ip ? UINT32_MAX : 0;
	mask->ip4dst = flow->dst_ip ? UINT32_MAX : 0;
	mask->psrc = flow->src_port ? UINT16_MAX : 0;
	mask->pdst = flow->dst_port ? UINT16_MAX : 0;
	ret = sys->ethtool(name, &c);
	if (ret)
		return ret;
	return c.fs.location <= INT32_MAX ? (int)c.fs.location : -EBADMSG;
}

int nic_rule_del(const struct nic_sys *sys, const char *name, uint32_t place)
{
	struct ethtool_rxnfc c = {.cmd = ETHTOOL_SRXCLSRLDEL, .fs = {.location = place}};

	return sys->ethtool(name, &c);
}

/* Would nic_rule_add() have set it, for a whole connection? An operator's rule names less, as a port
 * alone, and the queue of a rule with an RSS context counts from that. */
static bool rule_is_of_conn(const struct ethtool_rx_flow_spec *fs)
{
	const struct ethtool_tcpip4_spec *mask = &fs->m_u.tcp_ip4_spec;

	return fs->flow_type == TCP_V4_FLOW && mask->ip4src == UINT32_MAX &&
	       mask->ip4dst == UINT32_MAX && mask->psrc == UINT16_MAX && mask->pdst == UINT16_MAX;
}

/* Return: 1: it is gone; 0: it is not such a one; -errno. */
static int rule_sweep(const struct nic_sys *sys, const char *name, uint32_t place,
		      const struct nic_range *r)
{
	struct ethtool_rxnfc c = {.cmd = ETHTOOL_GRXCLSRULE, .fs = {.location = place}};
	int ret = sys->ethtool(name, &c);

	if (ret == -ENOENT) /* somebody was quicker */
		return 0;
	if (ret || !rule_is_of_conn(&c.fs) || c.fs.ring_cookie < r->first ||
	    c.fs.ring_cookie > r->last)
		return ret;
	ret = nic_rule_del(sys, name, place);
	return ret ? ret : 1;
}

int nic_rules_sweep(const struct nic_sys *sys, const char *name, const struct nic_range *r,
		    unsigned *nr)
{
	struct ethtool_rxnfc *all;
	struct nic_rules rules;
	int ret, err = 0;

	*nr = 0;
	nic_rules(sys, name, &rules);
	if (rules.err || !rules.nr)
		return rules.err;
	ret = rules_all(sys, name, &rules, &all);
	for (uint32_t i = 0; !ret && i < all->rule_cnt; i++) {
		int gone = rule_sweep(sys, name, all->rule_locs[i], r);

		*nr += gone > 0;
		err = gone < 0 ? gone : err;
	}
	free(all);
	return ret ? ret : err;
}
