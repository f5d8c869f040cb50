/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rails work together, and with how many queue pairs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "verbs/verbs_plan.h"

#include <cmocka.h>

static const uint32_t none_far[GX_HELLO_LANES];

/* All of 100 Gb/s, and equally near. */
static struct verbs_plan_in in_of(unsigned nr_own, unsigned nr_peer)
{
	struct verbs_plan_in in = {.nr_own = nr_own, .nr_peer = nr_peer};

	for (unsigned i = 0; i < VERBS_RAILS_MAX; i++) {
		in.own_mbps[i] = in.peer_mbps[i] = 100000;
		for (unsigned k = 0; k < VERBS_RAILS_MAX; k++)
			in.near[i][k] = 1;
	}
	return in;
}

static void expect_path(const struct verbs_plan *p, unsigned w, unsigned own, unsigned peer,
			uint32_t mbps)
{
	assert_int_equal(p->path[w].own, own);
	assert_int_equal(p->path[w].peer, peer);
	assert_int_equal(p->path[w].mbps, mbps);
}

static unsigned qps_of(const struct verbs_plan *p, unsigned nr_lanes, unsigned lane, unsigned path)
{
	unsigned n = 0;

	for (unsigned k = lane; k < p->nr_qps; k += nr_lanes)
		n += p->qp_path[k] == path;
	return n;
}

static void paths__one_to_one(void **state)
{
	struct verbs_plan_in in = in_of(2, 2);
	struct verbs_plan p;

	verbs_plan_paths(&in, &p);
	assert_int_equal(p.nr_paths, 2);
	expect_path(&p, 0, 0, 0, 100000);
	expect_path(&p, 1, 1, 1, 100000);
}

static void paths__nearest(void **state)
{
	struct verbs_plan_in in = in_of(2, 2);
	struct verbs_plan p;

	in.near[0][1] = in.near[1][0] = 2;
	verbs_plan_paths(&in, &p);
	assert_int_equal(p.nr_paths, 2);
	expect_path(&p, 0, 0, 1, 100000);
	expect_path(&p, 1, 1, 0, 100000);
}

/* Rails that find no free one share one; a port that two use gives each a half. */
static void paths__shared(void **state)
{
	struct verbs_plan_in in = in_of(2, 1);
	struct verbs_plan p;

	verbs_plan_paths(&in, &p);
	assert_int_equal(p.nr_paths, 2);
	expect_path(&p, 0, 0, 0, 50000);
	expect_path(&p, 1, 1, 0, 50000);
	in = in_of(1, 3);
	verbs_plan_paths(&in, &p);
	assert_int_equal(p.nr_paths, 3);
	expect_path(&p, 2, 0, 2, 33333);
	in = in_of(VERBS_RAILS_MAX, VERBS_RAILS_MAX);
	verbs_plan_paths(&in, &p);
	assert_int_equal(p.nr_paths, VERBS_RAILS_MAX);
}

static void paths__unreachable(void **state)
{
	struct verbs_plan_in in = in_of(2, 2);
	struct verbs_plan p;

	in.near[0][0] = in.near[0][1] = 0;
	in.peer_mbps[0] = 0; /* its port is down */
	verbs_plan_paths(&in, &p);
	assert_int_equal(p.nr_paths, 1);
	expect_path(&p, 0, 1, 1, 100000);
	in.near[1][1] = 0;
	verbs_plan_paths(&in, &p);
	assert_int_equal(p.nr_paths, 0);
}

static void qps__by_speed(void **state)
{
	struct verbs_plan_in in = in_of(2, 2);
	struct verbs_plan p;

	in.own_mbps[0] = 25000; /* so the second rail has the first path */
	verbs_plan_paths(&in, &p);
	expect_path(&p, 0, 1, 0, 100000);
	expect_path(&p, 1, 0, 1, 25000);
	verbs_plan_qps(&p, 1, 10, none_far);
	assert_int_equal(qps_of(&p, 1, 0, 0), 8);
	assert_int_equal(qps_of(&p, 1, 0, 1), 2);
}

/* Each lane has each path, if the number allows that. */
static void qps__of_lanes(void **state)
{
	struct verbs_plan_in in = in_of(2, 2);
	struct verbs_plan p;

	in.own_mbps[1] = 1000;
	verbs_plan_paths(&in, &p);
	verbs_plan_qps(&p, 4, 0, none_far);
	assert_int_equal(p.nr_qps, 8);
	for (unsigned lane = 0; lane < 4; lane++) {
		assert_int_equal(qps_of(&p, 4, lane, 0), 1);
		assert_int_equal(qps_of(&p, 4, lane, 1), 1);
	}
	in = in_of(2, 2);
	verbs_plan_paths(&in, &p);
	verbs_plan_qps(&p, 4, 4, none_far); /* one a lane: the lanes take turns */
	assert_int_equal(qps_of(&p, 1, 0, 0), 2);
	assert_int_equal(qps_of(&p, 1, 0, 1), 2);
	verbs_plan_qps(&p, 1, 1, none_far);
	assert_int_equal(p.nr_qps, 1);
	assert_int_equal(p.nr_paths, 1); /* the other one has nothing */
}

/* The device near a core has more of its queue pairs. */
static void qps__near(void **state)
{
	const uint32_t far[GX_HELLO_LANES] = {1 << 1, 1 << 0};
	struct verbs_plan_in in = in_of(2, 2);
	struct verbs_plan p;

	verbs_plan_paths(&in, &p);
	verbs_plan_qps(&p, 2, 12, far);
	assert_int_equal(qps_of(&p, 2, 0, 0), 4);
	assert_int_equal(qps_of(&p, 2, 0, 1), 2);
	assert_int_equal(qps_of(&p, 2, 1, 0), 2);
	assert_int_equal(qps_of(&p, 2, 1, 1), 4);
}

/* The fastest paths are far from the only core, and there is one queue pair. */
static void qps__of_none_of_the_first(void **state)
{
	struct verbs_plan_in in = in_of(3, 3);
	struct verbs_plan p;

	in.own_mbps[2] = 80000;
	verbs_plan_paths(&in, &p);
	assert_int_equal(p.nr_paths, 3);
	verbs_plan_qps(&p, 1, 1, (const uint32_t[]){3});
	assert_int_equal(p.nr_qps, 1);
	assert_int_equal(p.nr_paths, 1);
	assert_int_equal(p.qp_path[0], 0);
	expect_path(&p, 0, 2, 2, 80000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(paths__one_to_one), cmocka_unit_test(paths__nearest),
		cmocka_unit_test(paths__shared),     cmocka_unit_test(paths__unreachable),
		cmocka_unit_test(qps__by_speed),     cmocka_unit_test(qps__of_lanes),
		cmocka_unit_test(qps__near),	     cmocka_unit_test(qps__of_none_of_the_first),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
