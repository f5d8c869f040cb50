// SPDX-License-Identifier: Apache-2.0
/*
 * The receive modes that follow from the facts of a scripted NIC: for each missing thing the mode
 * says so, and the cure.
 */
#include "nic/nic_script.h"

#include "gx_internal/base.h"
#include "nic/nic_abi.h"

#include <errno.h>
#include <linux/ethtool_netlink.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { COPY, DEVMEM };

static struct nic_facts facts;

static int reset(void **state)
{
	script_reset();
	return 0;
}

static struct gx_nic_mode mode_of(unsigned index)
{
	struct gx_nic_mode m = {0};

	assert_int_equal(nic_look(&script_sys, SCRIPT_IF, &facts), 0);
	assert_int_equal(nic_mode(&facts, index, &m), 0);
	return m;
}

static void mode_is(unsigned index, enum gx_nic_can can, const char *why, const char *cure)
{
	struct gx_nic_mode m = mode_of(index);

	if (m.can != can || !strstr(m.why, why) || !strstr(m.cure, cure))
		fail_msg("%s: %d: '%s', '%s'; expected %d: '%s', '%s'", m.name, m.can, m.why,
			 m.cure, can, why, cure);
}

static void it_is(enum gx_nic_can can, const char *why, const char *cure)
{
	mode_is(DEVMEM, can, why, cure);
	mode_is(COPY, GX_NIC_YES, "", "");
}

/* All is set up, and still no mode but copy is there: EBADF says nothing of the driver. */
static void mode__all_there(void **state)
{
	static const char *const names[] = {"copy", "devmem"};
	struct gx_nic_mode m = {0};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(names); i++) {
		m = mode_of(i);
		assert_string_equal(m.name, names[i]);
	}
	assert_int_equal(nic_mode(&facts, UINT32_MAX, &m), -ENOENT);
	it_is(GX_NIC_LATER, "the driver's answer is not known before a bind", "bind ");
	m = mode_of(DEVMEM);
	assert_non_null(strstr(m.cure, "a dma-buf"));
	m = mode_of(COPY);
	assert_string_equal(m.why, "");
	assert_string_equal(m.cure, "");
}

static void mode__kernel(void **state)
{
	script.nl_open_err = -ENOSYS;
	it_is(GX_NIC_NO, "without libmnl", "libmnl-dev");
	script.nl_open_err = -EACCES;
	it_is(GX_NIC_NO, "Permission denied", "netlink");
	script.nl_open_err = 0;
	script.no_netdev = true;
	it_is(GX_NIC_NO, "Linux 6.18.1 does not know bind-rx", "6.12");
	script.no_netdev = false;
	script.ops = 1u << NIC_NETDEV_DEV_GET;
	it_is(GX_NIC_NO, "bind-rx", "6.12");
}

static void mode__driver(void **state)
{
	script.bind_err = -EOPNOTSUPP;
	it_is(GX_NIC_NO, "nic0 (driver script)", "mlx5_core");
	script.bind_text = "no queue management";
	it_is(GX_NIC_NO, "no queue management", "mlx5_core");
	script.driver = NULL;
	it_is(GX_NIC_NO, "nic0 (no driver)", "mlx5_core");
}

/* Errors that no set-up mends, and others, which leave it open and are told with their text. */
static void mode__bind_answers(void **state)
{
	static const struct {
		int err;
		enum gx_nic_can can;
		const char *why;
	} all[] = {{-EOPNOTSUPP, GX_NIC_NO, "Operation not supported: brass"},
		   {-EEXIST, GX_NIC_NO, "File exists: brass"},
		   {-EBUSY, GX_NIC_NO, "Device or resource busy: brass"},
		   {-ERANGE, GX_NIC_NO, "out of range: brass"},
		   {-EINVAL, GX_NIC_LATER, "Invalid argument: brass"},
		   {-ENODEV, GX_NIC_LATER, "No such device: brass"},
		   {-ENOMEM, GX_NIC_LATER, "Cannot allocate memory: brass"},
		   {-EBADF, GX_NIC_LATER, "not known before a bind"}};

	script.bind_text = "brass";
	for (unsigned i = 0; i < GX_ARRAY_SIZE(all); i++) {
		script.bind_err = all[i].err;
		it_is(all[i].can, all[i].why, "");
	}
}

static void mode__card(void **state)
{
	script.rings_err = -EOPNOTSUPP;
	it_is(GX_NIC_NO, "no header split", "NIC");
	script.rings_err = 0;
	script.nr_rx = script.nr_channels = script.channels.combined_max = 1;
	it_is(GX_NIC_NO, "1 receive queue", "more receive queues");
	script.channels.combined_max = 16;
	it_is(GX_NIC_LATER, "fewer than two receive queues", "gx_nic_step()");
	script.nr_rx = 16;
	script.ntuple = NIC_HAS_NOT;
	it_is(GX_NIC_NO, "flow rules", "NIC");
	script.ntuple = NIC_HAS_ON;
	script.rules_err = -EOPNOTSUPP;
	it_is(GX_NIC_NO, "flow rules", "NIC");
}

static void mode__set_up(void **state)
{
	script.split = -1;
	it_is(GX_NIC_LATER, "header split is not configured", "gx_nic_step()");
	script.split = ETHTOOL_TCP_DATA_SPLIT_UNKNOWN;
	it_is(GX_NIC_LATER, "header split is not configured", "gx_nic_step()");
	script.rings_err = -EIO;
	it_is(GX_NIC_LATER, "header split was not asked", "");
	script.rings_err = 0;
	script.split = ETHTOOL_TCP_DATA_SPLIT_DISABLED;
	it_is(GX_NIC_LATER, "header split is off", "gx_nic_step()");
	script.thresh_b = 256;
	script.ntuple = NIC_HAS_OFF;
	it_is(GX_NIC_LATER, "header split is off, its threshold is not 0, flow rules are off",
	      "gx_nic_step()");
	script.split = ETHTOOL_TCP_DATA_SPLIT_ENABLED;
	it_is(GX_NIC_LATER, "its threshold is not 0, flow rules are off", "");
	script.bind_err = -EINVAL; /* a kernel that looks at the set-up first */
	script.bind_text = "tcp-data-split is disabled";
	it_is(GX_NIC_LATER, "threshold", "gx_nic_step()");
	it_is(GX_NIC_LATER, "Invalid argument: tcp-data-split is disabled", "");
	script.thresh_b = -1;
	script.ntuple = NIC_HAS_ON;
	script.bind_err = -EPERM;
	it_is(GX_NIC_LATER, "may not bind", "CAP_NET_ADMIN");
}

/* All facts have a name and a text, whatever is missing. */
static void fact__each_has_a_text(void **state)
{
	for (unsigned i = 0; i < 2; i++) {
		struct gx_nic_fact f = {0};
		unsigned nr = 0;

		if (i) {
			script.driver = script.kernel = NULL;
			script.nl_open_err = -ENOSYS;
			script.rss_err = script.rules_err = script.features_err = -EOPNOTSUPP;
			script.nr_channels = 0;
		}
		assert_int_equal(nic_look(&script_sys, SCRIPT_IF, &facts), 0);
		for (; !nic_fact(&facts, nr, &f); nr++) {
			assert_true(f.name[0] && f.text[0]);
			f.name[0] = f.text[0] = '\0';
		}
		assert_int_equal(nr, 12);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(mode__all_there, reset),
		cmocka_unit_test_setup(mode__kernel, reset),
		cmocka_unit_test_setup(mode__driver, reset),
		cmocka_unit_test_setup(mode__bind_answers, reset),
		cmocka_unit_test_setup(mode__card, reset),
		cmocka_unit_test_setup(mode__set_up, reset),
		cmocka_unit_test_setup(fact__each_has_a_text, reset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
