// SPDX-License-Identifier: Apache-2.0
/*
 * Counters and how they are printed.
 */
#include "gx_internal/stat.h"

#include <errno.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define PRINT_MAX 65536

static char buf[PRINT_MAX];

static unsigned lines(const char *s)
{
	unsigned n = 0;

	for (; *s; s++)
		n += *s == '\n';
	return n;
}

static int print_two(enum gx_stat_format format, char *to, size_t room)
{
	static struct gx_stats a, b;
	const struct gx_stats *cores[] = {&a, &b};

	gx_stat_set(&a, GX_STAT_RX_PKTS, 7);
	gx_stat_set(&b, GX_STAT_RX_PKTS, UINT64_MAX);
	gx_stat_set(&b, GX_STAT_MSGS_ACTIVE, 3);
	gx_stat_set(&a, GX_STAT_CC_APP_NS, 3000000007);
	gx_stat_set(&a, GX_STAT_CC_RTT, 20000);
	return gx_stat_print(cores, 2, format, to, room);
}

static void gx_stat_add__adds(void **state)
{
	struct gx_stats s = {0};

	gx_stat_add(&s, GX_STAT_TURNS, 2);
	gx_stat_add(&s, GX_STAT_TURNS, 3);
	assert_int_equal(gx_stat_get(&s, GX_STAT_TURNS), 5);
	assert_int_equal(gx_stat_get(&s, GX_STAT_CYCLES_BUSY), 0);
}

static void gx_stat_name__all_set_and_distinct(void **state)
{
	for (unsigned i = 0; i < GX_STAT_NR; i++) {
		assert_non_null(gx_stat_name[i]);
		assert_non_null(gx_stat_help[i]);
		for (unsigned j = 0; j < i; j++)
			assert_string_not_equal(gx_stat_name[i], gx_stat_name[j]);
	}
}

static void gx_stat_help__fits_one_prometheus_line(void **state)
{
	for (unsigned i = 0; i < GX_STAT_NR; i++)
		assert_null(strpbrk(gx_stat_help[i], "\n\\"));
}

static void gx_stat_print__text(void **state)
{
	int n = print_two(GX_STAT_TEXT, buf, sizeof(buf));

	assert_int_equal(n, strlen(buf));
	assert_int_equal(lines(buf), 1 + 2 * GX_STAT_NR);
	assert_non_null(strstr(buf, "\nrx_pkts 0 7\nrx_pkts control 18446744073709551615\n"));
}

static void gx_stat_print__prometheus_counter(void **state)
{
	print_two(GX_STAT_PROMETHEUS, buf, sizeof(buf));
	assert_non_null(strstr(buf, "# HELP gx_rx_pkts_total packets received\n"
				    "# TYPE gx_rx_pkts_total counter\n"
				    "gx_rx_pkts_total{core=\"0\"} 7\n"
				    "gx_rx_pkts_total{core=\"control\"} 18446744073709551615\n"));
}

static void gx_stat_print__prometheus_gauge(void **state)
{
	print_two(GX_STAT_PROMETHEUS, buf, sizeof(buf));
	assert_non_null(strstr(buf, "# TYPE gx_msgs_active gauge\n"
				    "gx_msgs_active{core=\"0\"} 0\n"
				    "gx_msgs_active{core=\"control\"} 3\n"));
}

static void gx_stat_print__prometheus_units(void **state)
{
	print_two(GX_STAT_PROMETHEUS, buf, sizeof(buf));
	assert_non_null(strstr(buf, "# TYPE gx_quarantined_bytes gauge\n"));
	assert_null(strstr(buf, "_b{"));
	assert_null(strstr(buf, "_ns"));
	assert_non_null(strstr(buf, "# TYPE gx_cc_app_seconds_total counter\n"
				    "gx_cc_app_seconds_total{core=\"0\"} 3.000000007\n"));
	assert_non_null(strstr(buf, "\ngx_cc_rtt_seconds{core=\"0\"} 0.000020000\n"));
}

static void gx_stat_print__build_and_start(void **state)
{
	char *at;

	print_two(GX_STAT_PROMETHEUS, buf, sizeof(buf));
	assert_non_null(strstr(buf, "gx_build_info{version=\"" GX_VERSION "\"} 1\n"));
	at = strstr(buf, "\ngx_start_time_seconds ");
	assert_non_null(at);
	assert_in_range(strtoull(at + strlen("\ngx_start_time_seconds "), NULL, 10),
			time(NULL) - 600, time(NULL));
	print_two(GX_STAT_TEXT, buf, sizeof(buf));
	assert_memory_equal(buf, "uptime_s control ", strlen("uptime_s control "));
}

static void gx_stat_print__exact_room(void **state)
{
	int n = print_two(GX_STAT_TEXT, buf, sizeof(buf));

	assert_true(n > 0);
	assert_int_equal(print_two(GX_STAT_TEXT, buf, (size_t)n + 1), n);
	assert_int_equal(print_two(GX_STAT_TEXT, buf, (size_t)n), -ENOSPC);
}

static void gx_stat_print__stays_in_room(void **state)
{
	for (size_t room = 0; room < 64; room++) {
		memset(buf, 0x5a, sizeof(buf));
		assert_int_equal(print_two(GX_STAT_PROMETHEUS, buf, room), -ENOSPC);
		assert_int_equal(buf[room], 0x5a);
	}
}

static void gx_stat_print__no_cores(void **state)
{
	assert_int_equal(gx_stat_print(NULL, 0, GX_STAT_TEXT, buf, sizeof(buf)), 0);
	assert_string_equal(buf, "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gx_stat_add__adds),
		cmocka_unit_test(gx_stat_name__all_set_and_distinct),
		cmocka_unit_test(gx_stat_help__fits_one_prometheus_line),
		cmocka_unit_test(gx_stat_print__text),
		cmocka_unit_test(gx_stat_print__prometheus_counter),
		cmocka_unit_test(gx_stat_print__prometheus_gauge),
		cmocka_unit_test(gx_stat_print__prometheus_units),
		cmocka_unit_test(gx_stat_print__build_and_start),
		cmocka_unit_test(gx_stat_print__exact_room),
		cmocka_unit_test(gx_stat_print__stays_in_room),
		cmocka_unit_test(gx_stat_print__no_cores),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
