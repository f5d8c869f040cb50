// SPDX-License-Identifier: Apache-2.0
/*
 * What nic_look() finds in a scripted kernel: NICs that have everything, NICs that lack one thing,
 * and kernels whose answers make no sense.
 */
#include "nic/nic_script.h"

#include "gx_internal/base.h"
#include "nic/nic_abi.h"

#include <errno.h>
#include <linux/ethtool_netlink.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static struct nic_facts facts;

static void look(void)
{
	assert_int_equal(nic_look(&script_sys, SCRIPT_IF, &facts), 0);
	assert_int_equal(script.nr_open, 0);
}

static int reset(void **state)
{
	script_reset();
	return 0;
}

static void look__everything(void **state)
{
	script.held[9] = NIC_HELD_DMABUF;
	script.held[10] = NIC_HELD_URING | NIC_HELD_XSK;
	look();
	assert_string_equal(facts.driver, "script");
	assert_string_equal(facts.bus, "0000:3b:00.0");
	assert_string_equal(facts.kernel, "6.18.1");
	assert_int_equal(facts.ifindex, SCRIPT_INDEX);
	assert_int_equal(facts.nr_rx, 16);
	assert_int_equal(facts.channels.combined, 16);
	assert_int_equal(facts.channels.combined_max, 16);
	assert_int_equal(facts.held[9], NIC_HELD_DMABUF);
	assert_int_equal(facts.held[10], NIC_HELD_URING | NIC_HELD_XSK);
	assert_int_equal(facts.held[8], 0);
	assert_int_equal(facts.split, NIC_SPLIT_ON);
	assert_true(facts.has_thresh);
	assert_int_equal(facts.thresh_b, 0);
	assert_int_equal(facts.thresh_max_b, 1023);
	assert_int_equal(facts.rss, SCRIPT_TABLE);
	assert_int_equal(facts.rss_queues[0], 0xff);
	assert_int_equal(facts.ntuple, NIC_HAS_ON);
	assert_int_equal(facts.gro_hw, NIC_HAS_ON);
	assert_int_equal(facts.rules.nr, 2);
	assert_true(facts.rules.placed);
	assert_true(facts.netdev && facts.bind_rx && facts.bind_tx);
	assert_int_equal(facts.bind_err, -EBADF);
	assert_int_equal(facts.xdp, 0x2b);
	assert_int_equal(facts.zc_segs, 4);
}

/* The question names the last queue and no dma-buf, so that no kernel could bind anything. */
static void look__binds_nothing(void **state)
{
	look();
	assert_int_equal(script.bound_fd, NIC_NO_FD);
	assert_int_equal(script.nr_bound, 1);
	assert_int_equal(script.bound[0], 15);
	assert_int_equal(script.rule_queue, 0);
}

static void look__no_interface(void **state)
{
	assert_int_equal(nic_look(&script_sys, "nic1", &facts), -ENODEV);
	assert_int_equal(nic_look(&script_sys, "a-name-of-17-char", &facts), -ENODEV);
	assert_int_equal(script.calls, 0);
}

static void look__no_driver(void **state)
{
	script.driver = NULL;
	look();
	assert_string_equal(facts.driver, "");
}

static void look__no_families(void **state)
{
	script.no_netdev = script.no_ethtool = true;
	look();
	assert_int_equal(facts.nl_err, 0);
	assert_int_equal(facts.rings_err, -ENOENT);
	assert_false(facts.netdev || facts.bind_rx || facts.bind_tx);
	assert_int_equal(facts.nr_rx, 16); /* SIOCETHTOOL tells */
	assert_int_equal(facts.split, NIC_SPLIT_NOT_ASKED);
}

static void look__no_netlink(void **state)
{
	script.nl_open_err = -EACCES;
	look();
	assert_int_equal(facts.nl_err, -EACCES);
}

/* Linux 6.8: queues are known, and not yet bind-rx. */
static void look__older_kernel(void **state)
{
	script.ops = 1u << NIC_NETDEV_DEV_GET | 1u << NIC_NETDEV_QUEUE_GET;
	look();
	assert_true(facts.netdev);
	assert_false(facts.bind_rx || facts.bind_tx);
	assert_int_equal(facts.bind_err, 0);
	assert_int_equal(facts.xdp, 0x2b);
}

/* A driver that tells nothing of header split may be able to: mlx5_core tells of it once it is on.
 */
static void look__split(void **state)
{
	static const struct {
		int said;
		enum nic_split split;
	} all[] = {{-1, NIC_SPLIT_UNTOLD},
		   {ETHTOOL_TCP_DATA_SPLIT_UNKNOWN, NIC_SPLIT_UNTOLD},
		   {ETHTOOL_TCP_DATA_SPLIT_DISABLED, NIC_SPLIT_OFF},
		   {ETHTOOL_TCP_DATA_SPLIT_ENABLED, NIC_SPLIT_ON},
		   {77, NIC_SPLIT_UNTOLD}};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(all); i++) {
		script.split = all[i].said;
		look();
		assert_int_equal(facts.split, all[i].split);
	}
	script.rings_err = -EOPNOTSUPP;
	look();
	assert_int_equal(facts.split, NIC_SPLIT_REFUSED);
	script.rings_err = -EIO;
	look();
	assert_int_equal(facts.split, NIC_SPLIT_NOT_ASKED);
}

static void look__refusals(void **state)
{
	script.rings_err = script.dev_err = script.queues_err = -EOPNOTSUPP;
	script.rss_err = script.rules_err = script.features_err = -EOPNOTSUPP;
	script.bind_err = -EOPNOTSUPP;
	script.nr_channels = 0;
	look();
	assert_int_equal(facts.rings_err, -EOPNOTSUPP);
	assert_int_equal(facts.nr_rx, 0);
	assert_int_equal(facts.rss, -EOPNOTSUPP);
	assert_int_equal(facts.rules.err, -EOPNOTSUPP);
	assert_int_equal(facts.ntuple, NIC_HAS_NOT);
	assert_int_equal(facts.gro_hw, NIC_HAS_NOT);
	assert_int_equal(facts.bind_err, -EOPNOTSUPP);
}

/* The kernel's words, with the request before them or without. */
static void look__text_of_refusal(void **state)
{
	script.bind_err = -EOPNOTSUPP;
	script.bind_text = "the queue is made of brass";
	for (unsigned i = 0; i < 2; i++) {
		script.old_acks = i;
		look();
		assert_string_equal(facts.bind_text, script.bind_text);
	}
}

/* Whatever is wrong with whichever answer: that fact is unknown, and nothing hangs or crashes. */
static void look__spoilt_answers(void **state)
{
	for (int spoil = SPOIL_CUT; spoil <= SPOIL_ENDLESS; spoil++)
		for (unsigned call = 1; call <= 6; call++) {
			script_reset();
			script.spoil = (enum script_spoil)spoil;
			script.spoil_call = call;
			look();
			assert_int_equal(facts.split,
					 call <= 2 ? NIC_SPLIT_NOT_ASKED : NIC_SPLIT_ON);
			assert_int_equal(facts.netdev, call != 3);
			assert_int_equal(facts.xdp, call == 3 || call == 4 ? 0 : 0x2b);
			assert_int_equal(facts.nr_rx, 16);
			if (call == 6 && spoil != SPOIL_ENDLESS) /* it begins with its end */
				assert_int_not_equal(facts.bind_err, -EBADF);
		}
}

/* A table that names queues beyond what gx looks at. */
static void look__wide_rss(void **state)
{
	script.rss_queues = 100000;
	look();
	assert_int_equal(facts.rss, SCRIPT_TABLE);
	assert_int_equal(facts.rss_queues[1], UINT64_MAX);
	assert_int_equal(facts.rss_queues[2], 0);
}

static void rule__there_and_back(void **state)
{
	struct nic_flow flow = {.dst_port = __builtin_bswap16(7501)};
	int place = nic_rule_add(&script_sys, SCRIPT_IF, &flow, 12);

	assert_int_equal(place, 9);
	assert_int_equal(script.rule_port, 7501);
	assert_int_equal(script.rule_queue, 12);
	assert_int_equal(nic_rule_del(&script_sys, SCRIPT_IF, (uint32_t)place), 0);
	assert_int_equal(script.rule_place, 9);
	script.rules_err = -ENOSPC;
	assert_int_equal(nic_rule_add(&script_sys, SCRIPT_IF, &flow, 12), -ENOSPC);
}

/* A driver that places no rule: gx names the last free place, or says that there is none. */
static void rule__named_place(void **state)
{
	static const struct {
		uint32_t room, all_room, at[2];
		int err, ret;
	} all[] = {{64, 64, {3, 5}, 0, 63},
		   {64, 64, {61, 63}, 0, 62},
		   {64, 64, {62, 63}, 0, 61},
		   {64, 64, {63, 62}, 0, 61},
		   {64, 0, {3, 63}, 0, 62}, /* drivers tell in either answer, or in both */
		   {0, 64, {3, 63}, 0, 62},
		   {2, 2, {0, 1}, 0, -ENOSPC},
		   {0, 0, {0, 1}, 0, -ENOSPC},
		   {64, UINT32_MAX, {0, 1}, 0, -EBADMSG},
		   {64, 64, {0, 1}, -EMSGSIZE, -EMSGSIZE}};
	struct nic_flow flow = {.dst_port = __builtin_bswap16(7501)};

	script.rules_placed = false;
	for (unsigned i = 0; i < GX_ARRAY_SIZE(all); i++) {
		script.rules_room = all[i].room;
		script.rules_all_room = all[i].all_room;
		memcpy(script.rules_at, all[i].at, sizeof(all[i].at));
		script.rules_all_err = all[i].err;
		assert_int_equal(nic_rule_add(&script_sys, SCRIPT_IF, &flow, 12), all[i].ret);
	}
}

/* Rules of connections to queues 8 to 15 are gx's own. All others stay. */
static void sweep__takes_its_own(void **state)
{
	const struct nic_range r = {.first = 8, .last = 15};
	static const uint32_t queue[] = {8, 15, 7, 16, 8, 8, 8};
	unsigned nr;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(queue); i++)
		script_leave(queue[i]);
	script.left[4].fs.m_u.tcp_ip4_spec.psrc = 0;	      /* an operator's */
	script.left[5].fs.flow_type = TCP_V4_FLOW | FLOW_RSS; /* the 8th of an RSS context */
	script.left[6].fs.ring_cookie = RX_CLS_FLOW_DISC;     /* packets are dropped */
	assert_int_equal(nic_rules_sweep(&script_sys, SCRIPT_IF, &r, &nr), 0);
	assert_int_equal(nr, 2);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(queue); i++)
		assert_int_equal(script.left[i].nr_dels, i < 2);
}

/* One that cannot be read, or deleted, does not stop the others. */
static void sweep__refusals(void **state)
{
	const struct nic_range r = {.first = 8, .last = 15};
	unsigned nr;

	for (unsigned i = 0; i < 4; i++)
		script_leave(9);
	script.left[0].get_err = -EIO;
	script.left[1].del_err = -EPERM;
	script.left[2].get_err = -ENOENT; /* it is gone meanwhile */
	assert_int_equal(nic_rules_sweep(&script_sys, SCRIPT_IF, &r, &nr), -EPERM);
	assert_int_equal(nr, 1);
	assert_int_equal(script.left[3].nr_dels, 1);
	script.rules_all_err = -EMSGSIZE;
	assert_int_equal(nic_rules_sweep(&script_sys, SCRIPT_IF, &r, &nr), -EMSGSIZE);
	script.rules_err = -EOPNOTSUPP;
	assert_int_equal(nic_rules_sweep(&script_sys, SCRIPT_IF, &r, &nr), -EOPNOTSUPP);
	assert_int_equal(nr, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(look__everything, reset),
		cmocka_unit_test_setup(look__binds_nothing, reset),
		cmocka_unit_test_setup(look__no_interface, reset),
		cmocka_unit_test_setup(look__no_driver, reset),
		cmocka_unit_test_setup(look__no_families, reset),
		cmocka_unit_test_setup(look__no_netlink, reset),
		cmocka_unit_test_setup(look__older_kernel, reset),
		cmocka_unit_test_setup(look__split, reset),
		cmocka_unit_test_setup(look__refusals, reset),
		cmocka_unit_test_setup(look__text_of_refusal, reset),
		cmocka_unit_test_setup(look__spoilt_answers, reset),
		cmocka_unit_test_setup(look__wide_rss, reset),
		cmocka_unit_test_setup(rule__there_and_back, reset),
		cmocka_unit_test_setup(rule__named_place, reset),
		cmocka_unit_test_setup(sweep__takes_its_own, reset),
		cmocka_unit_test_setup(sweep__refusals, reset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
