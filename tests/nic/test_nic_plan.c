// SPDX-License-Identifier: Apache-2.0
/*
 * The steps of a set-up from the facts of a scripted NIC, and the queues that a program may ask
 * for.
 */
#include "nic/nic_script.h"

#include "core/core.h"
#include "gx_internal/base.h"
#include "nic/nic_abi.h"

#include <errno.h>
#include <linux/ethtool_netlink.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { QUEUES, SPLIT, THRESH, RSS, NTUPLE, RULE, BIND, STEPS };

static const struct nic_range range = {.first = 8, .last = 15, .tcp_port = 7501};
static struct nic_facts facts;

static int reset(void **state)
{
	script_reset();
	return 0;
}

static void step_is(unsigned index, enum gx_nic_can can, const char *answer, const char *cure)
{
	struct gx_nic_step s = {0};

	assert_int_equal(nic_look(&script_sys, SCRIPT_IF, &facts), 0);
	assert_int_equal(nic_step(&facts, &range, index, &s), 0);
	if (s.can != can || !strstr(s.answer, answer) || !strstr(s.cure, cure))
		fail_msg("%s: %d: '%s', '%s'; expected %d: '%s', '%s'", s.name, s.can, s.answer,
			 s.cure, can, answer, cure);
	assert_true(can == GX_NIC_NO || !s.cure[0]);
	assert_true(can != GX_NIC_NO || s.cure[0]);
}

static void step__words(void **state)
{
	static const char *const command[STEPS] = {
		[QUEUES] = "ethtool -L nic0 combined 16",
		[SPLIT] = "ethtool -G nic0 tcp-data-split on",
		[THRESH] = "ethtool -G nic0 hds-thresh 0",
		[RSS] = "ethtool -X nic0 equal 8",
		[NTUPLE] = "ethtool -K nic0 ntuple on",
		[RULE] = "ethtool -N nic0 flow-type tcp4 dst-port 7501 action 8",
		[BIND] = "",
	};
	struct gx_nic_step s = {0};

	for (unsigned done = 0; done < 2; done++) {
		script_reset();
		if (!done) {
			script.nr_rx = script.nr_channels = 1;
			script.split = ETHTOOL_TCP_DATA_SPLIT_DISABLED;
			script.thresh_b = 256;
			script.rss_queues = 16;
			script.ntuple = NIC_HAS_OFF;
		}
		assert_int_equal(nic_look(&script_sys, SCRIPT_IF, &facts), 0);
		for (unsigned i = 0; i < STEPS; i++) {
			bool is_done = done && i < RULE; /* and has no command */

			assert_int_equal(nic_step(&facts, &range, i, &s), 0);
			assert_string_equal(s.command, is_done ? "" : command[i]);
			assert_true(s.name[0] && s.netlink[0] && s.answer[0]);
			assert_int_equal(s.can, is_done ? GX_NIC_YES : GX_NIC_LATER);
		}
	}
	assert_string_equal(s.netlink, "netdev bind-rx ifindex 7 queues rx 8-15 dmabuf-fd FD");
	assert_int_equal(nic_step(&facts, &range, STEPS, &s), -ENOENT);
}

static void step__to_do(void **state)
{
	script.split = ETHTOOL_TCP_DATA_SPLIT_DISABLED;
	script.thresh_b = 256;
	script.rss_queues = 9; /* the first of ours too */
	script.ntuple = NIC_HAS_OFF;
	script.rules_placed = false;
	step_is(SPLIT, GX_NIC_LATER, "off", "");
	step_is(THRESH, GX_NIC_LATER, "256", "");
	step_is(RSS, GX_NIC_LATER, "8-15", "");
	step_is(NTUPLE, GX_NIC_LATER, "off", "");
	step_is(RULE, GX_NIC_LATER, "loc", "");
	step_is(BIND, GX_NIC_LATER, "not known before a bind", "");
	script.bind_err = -EINVAL;
	script.bind_text = "tcp-data-split is disabled";
	step_is(BIND, GX_NIC_LATER, "Invalid argument: tcp-data-split is disabled", "");
	script.thresh_b = -1;
	step_is(THRESH, GX_NIC_YES, "none", "");
	script.split = -1;
	step_is(SPLIT, GX_NIC_LATER, "not configured; the driver may refuse it", "");
	script.split = ETHTOOL_TCP_DATA_SPLIT_UNKNOWN;
	step_is(SPLIT, GX_NIC_LATER, "not configured; the driver may refuse it", "");
}

/* mlx5_core wants it before header split; where it is on, not there or not needed, it is no step. */
static void step__gro_hw(void **state)
{
	static const enum nic_has has[] = {NIC_HAS_NOT, NIC_HAS_OFF, NIC_HAS_ON};
	struct gx_nic_step s = {0};

	for (unsigned i = 0; i < 2 * GX_ARRAY_SIZE(has); i++) {
		bool there = i < GX_ARRAY_SIZE(has) && has[i] == NIC_HAS_OFF;
		unsigned nr = 0;

		script.gro_hw = has[i % GX_ARRAY_SIZE(has)];
		script.split = i < GX_ARRAY_SIZE(has) ? -1 : ETHTOOL_TCP_DATA_SPLIT_ENABLED;
		assert_int_equal(nic_look(&script_sys, SCRIPT_IF, &facts), 0);
		assert_int_equal(nic_step(&facts, &range, 1, &s), 0);
		assert_string_equal(s.name, there ? "hardware GRO" : "header split");
		if (there) {
			assert_int_equal(s.can, GX_NIC_LATER);
			assert_string_equal(s.command, "ethtool -K nic0 rx-gro-hw on");
			assert_non_null(strstr(s.answer, "mlx5_core"));
		}
		while (!nic_step(&facts, &range, nr, &s))
			nr++;
		assert_int_equal(nr, STEPS + there);
		assert_string_equal(s.name, "bind");
		assert_int_equal(nic_step(&facts, &range, UINT32_MAX, &s), -ENOENT);
	}
}

/* A command that nobody could type is none. */
static void step__no_port(void **state)
{
	static const struct nic_range no_port = {.first = 8, .last = 15};
	struct gx_nic_step s = {0};

	assert_int_equal(nic_look(&script_sys, SCRIPT_IF, &facts), 0);
	assert_int_equal(nic_step(&facts, &no_port, RULE, &s), 0);
	assert_string_equal(s.command, "");
	assert_non_null(strstr(s.answer, "give the TCP port"));
	assert_int_equal(nic_step(&facts, &range, RULE, &s), 0);
	assert_null(strstr(s.answer, "give the TCP port"));
}

static void queues_are(unsigned nr, struct nic_channels channels, enum gx_nic_can can,
		       const char *command, const char *netlink)
{
	struct gx_nic_step s = {0};

	script.nr_rx = script.nr_channels = nr;
	script.channels = channels;
	step_is(QUEUES, can, "", "");
	assert_int_equal(nic_range_check(&facts, &range), can == GX_NIC_NO && nr > 1 ? -ERANGE : 0);
	assert_int_equal(nic_step(&facts, &range, QUEUES, &s), 0);
	if (can != GX_NIC_LATER)
		return;
	assert_string_equal(s.command, command);
	assert_non_null(strstr(s.netlink, netlink));
	step_is(RSS, GX_NIC_LATER, "new ones", "");
}

/* Queues that the driver could have are a step to do, in its own kind of queues. */
static void step__queues(void **state)
{
	queues_are(1, (struct nic_channels){.combined_max = 63}, GX_NIC_LATER,
		   "ethtool -L nic0 combined 16", "combined-count 16");
	queues_are(4, (struct nic_channels){.combined_max = 16}, GX_NIC_LATER,
		   "ethtool -L nic0 combined 16", "combined-count 16");
	queues_are(4, (struct nic_channels){.combined_max = 15}, GX_NIC_NO, "", "");
	queues_are(4, (struct nic_channels){.rx = 4, .rx_max = 16}, GX_NIC_LATER,
		   "ethtool -L nic0 rx 16", "rx-count 16");
	queues_are(6, (struct nic_channels){.rx = 2, .rx_max = 2, .combined_max = 14}, GX_NIC_LATER,
		   "ethtool -L nic0 combined 14", "combined-count 14");
	queues_are(6, (struct nic_channels){.rx = 2, .rx_max = 12, .combined_max = 4}, GX_NIC_LATER,
		   "ethtool -L nic0 rx 12", "rx-count 12");
	queues_are(4, (struct nic_channels){.combined_max = UINT32_MAX}, GX_NIC_NO, "", "");
	queues_are(4, (struct nic_channels){0}, GX_NIC_NO, "", "");
	queues_are(16, (struct nic_channels){0}, GX_NIC_YES, "", "");
}

static void step__refused(void **state)
{
	script.rings_err = script.rss_err = script.rules_err = script.features_err = -EOPNOTSUPP;
	script.nr_rx = script.nr_channels = script.channels.combined_max = 1;
	step_is(QUEUES, GX_NIC_NO, "1 receive queue", "NIC");
	step_is(SPLIT, GX_NIC_NO, "Operation not supported", "NIC");
	step_is(RSS, GX_NIC_NO, "no RSS table", "NIC");
	step_is(NTUPLE, GX_NIC_NO, "none", "NIC");
	step_is(RULE, GX_NIC_NO, "count", "NIC");
}

/* A question that nobody answered is no step that is done. */
static void step__not_asked(void **state)
{
	static const struct {
		int nl_err, rings_err;
		bool no_ethtool;
		const char *answer, *cure;
	} all[] = {{-ENOSYS, 0, false, "not asked: gx was built without libmnl", "libmnl-dev"},
		   {-EACCES, 0, false, "not asked: Permission denied", "generic netlink"},
		   {0, 0, true, "not asked: the kernel has no netlink family ethtool",
		    "CONFIG_ETHTOOL_NETLINK"},
		   {0, -EIO, false, "not asked: Input/output error", "log"}};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(all); i++) {
		script.nl_open_err = all[i].nl_err;
		script.rings_err = all[i].rings_err;
		script.no_ethtool = all[i].no_ethtool;
		step_is(SPLIT, GX_NIC_NO, all[i].answer, all[i].cure);
		step_is(THRESH, GX_NIC_NO, all[i].answer, all[i].cure);
	}
	script.no_ethtool = false;
	script.rings_err = -EOPNOTSUPP;
	step_is(SPLIT, GX_NIC_NO, "the driver has none: Operation not supported", "NIC");
	step_is(THRESH, GX_NIC_NO, "not asked: Operation not supported", "NIC");
	script.rings_err = 0;
	script.nl_open_err = -EACCES;
	step_is(BIND, GX_NIC_NO, "no netlink: Permission denied", "generic netlink");
}

static void step__bind_refused(void **state)
{
	script.bind_err = -EOPNOTSUPP;
	script.bind_text = "no queue management";
	step_is(BIND, GX_NIC_NO, "nic0 (driver script)", "mlx5_core");
	step_is(BIND, GX_NIC_NO, "no queue management", "mlx5_core");
	script.bind_err = -EPERM;
	step_is(BIND, GX_NIC_NO, "not permitted", "CAP_NET_ADMIN");
	script.bind_err = -EBADF;
	script.held[11] = NIC_HELD_DMABUF;
	step_is(BIND, GX_NIC_NO, "queue 11 is bound to a dma-buf", "other queues");
	script.held[10] = NIC_HELD_XSK;
	step_is(BIND, GX_NIC_NO, "queue 10 is bound to AF_XDP", "other queues");
	script.held[7] = NIC_HELD_URING; /* not ours */
	step_is(BIND, GX_NIC_NO, "queue 10", "");
	script.ops = 1u << NIC_NETDEV_DEV_GET;
	step_is(BIND, GX_NIC_NO, "Linux 6.18.1", "6.12");
	script.nl_open_err = -ENOSYS;
	step_is(BIND, GX_NIC_NO, "libmnl", "libmnl-dev");
}

static void range__bad(void **state)
{
	static const struct {
		struct nic_range r;
		int ret;
		const char *why, *cure;
	} all[] = {
		{{15, 8, 0}, -EINVAL, "15-8", "8-15"},
		{{0, 7, 0}, -EINVAL, "queue 0", "begin with 1"},
		{{0, 0, 0}, -EINVAL, "queue 0", "begin with 1"},
		{{8, 16, 0},
		 -ERANGE,
		 "nic0 (driver script) has receive queues 0 to 15",
		 "take some of these"},
		{{16, 16, 0}, -ERANGE, "0 to 15", "take some of these"},
		{{8, NIC_QUEUES_MAX, 0}, -ERANGE, "1023", ""},
		{{8, UINT32_MAX, 0}, -ERANGE, "1023", ""},
		{{8, 15, 65536}, -EINVAL, "65536", "1 to 65535"},
	};

	assert_int_equal(nic_look(&script_sys, SCRIPT_IF, &facts), 0);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(all); i++) {
		assert_int_equal(nic_range_check(&facts, &all[i].r), all[i].ret);
		assert_non_null(strstr(gx_error(), all[i].why));
		assert_non_null(strstr(gx_error(), all[i].cure));
	}
	assert_int_equal(nic_range_check(&facts, &range), 0);
}

/* An interface with one queue is no bad range: the plan says what is missing. */
static void range__one_queue(void **state)
{
	script.nr_rx = script.nr_channels = 1;
	assert_int_equal(nic_look(&script_sys, SCRIPT_IF, &facts), 0);
	assert_int_equal(nic_range_check(&facts, &range), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(step__words, reset),
		cmocka_unit_test_setup(step__to_do, reset),
		cmocka_unit_test_setup(step__gro_hw, reset),
		cmocka_unit_test_setup(step__no_port, reset),
		cmocka_unit_test_setup(step__queues, reset),
		cmocka_unit_test_setup(step__refused, reset),
		cmocka_unit_test_setup(step__not_asked, reset),
		cmocka_unit_test_setup(step__bind_refused, reset),
		cmocka_unit_test_setup(range__bad, reset),
		cmocka_unit_test_setup(range__one_queue, reset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
