/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Texts of ports: the controller of congestion is taken out of them, wherever it stands.
 */
#include "core/core.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

static void port_cc__is_taken_out(void **state)
{
	static const struct {
		const char *text, *rest;
		int cc;
	} row[] = {
		{"shm", "shm", GX_PORT_CC_AUTO},
		{"udp:port=7601", "udp:port=7601", GX_PORT_CC_AUTO},
		{"udp:cc=rate", "udp", GX_PORT_CC_RATE},
		{"udp:cc=swift", "udp", GX_PORT_CC_SWIFT},
		{"udp:cc=none,port=7601", "udp:port=7601", GX_PORT_CC_NONE},
		{"udp:port=7601,cc=rate", "udp:port=7601", GX_PORT_CC_RATE},
		{"dpdk:0000:01:00.0,a=1,cc=none,b=2", "dpdk:0000:01:00.0,a=1,b=2", GX_PORT_CC_NONE},
		{"dpdk:0000:01:00.0,acc=rate", "dpdk:0000:01:00.0,acc=rate", GX_PORT_CC_AUTO},
		{"udp:cc=", "udp:cc=", -EINVAL},
		{"udp:cc=rates", "udp:cc=rates", -EINVAL},
		{"udp:cc=rat", "udp:cc=rat", -EINVAL},
	};
	char text[64];

	for (unsigned i = 0; i < sizeof(row) / sizeof(*row); i++) {
		snprintf(text, sizeof(text), "%s", row[i].text);
		assert_int_equal(core_port_cc(text), row[i].cc);
		assert_string_equal(text, row[i].rest);
	}
}

static void port_paths__is_taken_out(void **state)
{
	static const struct {
		const char *text, *rest;
		int paths;
	} row[] = {
		{"udp", "udp", 0},
		{"udp:port=7601", "udp:port=7601", 0},
		{"udp:paths=1", "udp", 1},
		{"udp:paths=8,port=7601", "udp:port=7601", 8},
		{"udp:port=7601,paths=4", "udp:port=7601", 4},
		{"udp:paths=", "udp:paths=", -EINVAL},
		{"udp:paths=0", "udp:paths=0", -EINVAL},
		{"udp:paths=9", "udp:paths=9", -EINVAL},
		{"udp:paths=44444444444", "udp:paths=44444444444", -EINVAL},
		{"udp:paths=4x", "udp:paths=4x", -EINVAL},
	};
	char text[64];

	for (unsigned i = 0; i < sizeof(row) / sizeof(*row); i++) {
		snprintf(text, sizeof(text), "%s", row[i].text);
		assert_int_equal(core_port_paths(text), row[i].paths);
		assert_string_equal(text, row[i].rest);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(port_cc__is_taken_out),
		cmocka_unit_test(port_paths__is_taken_out),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
