/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A scripted kernel: what nic/ asks by netlink and SIOCETHTOOL is answered from the plans of a
 * test. The requests are read as a kernel reads them, and a wrong one fails the test. One thread.
 */
#ifndef NIC_SCRIPT_H
#define NIC_SCRIPT_H

#include "nic/nic.h"

#include <linux/ethtool.h>
#include <stdbool.h>

#define SCRIPT_IF      "nic0"
#define SCRIPT_INDEX   7
#define SCRIPT_QUEUES  64
#define SCRIPT_TABLE   128 /* entries of the RSS table */
#define SCRIPT_LEFTS   8
#define SCRIPT_LEFT_AT 100 /* place of the first rule of script.left */

/** struct script_left - A flow rule that somebody has left behind. */
struct script_left {
	struct ethtool_rx_flow_spec fs;
	int get_err, del_err;
	unsigned nr_dels;
};

/** enum script_spoil - What is wrong with the datagrams of the answer to a request. */
enum script_spoil {
	SPOIL_NOTHING,
	SPOIL_CUT,	/* the last 5 bytes are missing, and the lengths say otherwise */
	SPOIL_GARBAGE,	/* 64 bytes of 0xee */
	SPOIL_EMPTY,	/* no byte */
	SPOIL_LONG,	/* longer than any room */
	SPOIL_SILENT,	/* none comes */
	SPOIL_STRANGER, /* another request's number */
	SPOIL_ENDLESS,	/* it goes on for ever */
};

struct nic_script {
	/* Plans; a test sets them. script_reset() makes a NIC that has everything. */
	int nl_open_err, send_err;
	const char *kernel, *driver, *bus; /* NULL: not told */
	bool no_netdev, no_ethtool;	   /* families that are missing */
	uint64_t ops;			   /* of netdev */
	int rings_err, dev_err, queues_err, bind_err;
	bool bind_takes; /* bind_err is for requests without a dma-buf alone */
	const char *rings_text, *bind_text;
	int split;    /* -1: not told; else as the kernel says it */
	int thresh_b; /* -1: not told */
	unsigned nr_rx, nr_channels;
	struct nic_channels channels; /* .rx: of nr_channels; the others are combined */
	uint8_t held[SCRIPT_QUEUES];  /* flags NIC_HELD_... */
	uint32_t bind_id;
	int rss_err, rules_err, features_err;
	unsigned rss_queues; /* the table names queues 0 to this - 1 */
	bool rules_placed;
	uint32_t rules_room, rules_all_room, rules_at[2]; /* two rules are set */
	int rules_all_err;
	struct script_left left[SCRIPT_LEFTS]; /* more rules: .nr_left */
	unsigned nr_left;
	enum nic_has ntuple, gro_hw;
	bool old_acks;	     /* refusals carry the request: no CAP_ACK */
	unsigned spoil_call; /* the request whose answer is spoilt, from 1 on */
	enum script_spoil spoil;
	/* What happened. */
	unsigned calls, nr_open; /* requests; sockets that are open */
	uint32_t bound[SCRIPT_QUEUES];
	unsigned nr_bound;
	int bound_fd;
	uint32_t rule_queue, rule_place;
	struct ethtool_rx_flow_spec rule; /* the last one added */
	int nr_rules;			  /* added, and not taken away */
	uint16_t rule_port;
};

extern struct nic_script script;
extern const struct nic_sys script_sys;

void script_reset(void);
/** script_leave() - A flow rule to queue @to, as nic_rule_add() sets it, of a connection that nobody has
 * any more. It is in the next place of script.left. */
struct script_left *script_leave(uint32_t to);

#endif
