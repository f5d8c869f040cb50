// SPDX-License-Identifier: Apache-2.0
/*
 * Structs that a program fills, or has filled, with a header of another version: the reader and
 * the writer of them, and every public call that takes such a struct.
 */
#include "gx_internal/base.h"
#include "gx_internal/struct.h"

#include <gx/coll.h>
#include <gx/engine.h>
#include <gx/gx.h>
#include <gx/auth.h>
#include <gx/listen.h>
#include <gx/nic.h>
#include <gxlab/load.h>
#include <gxlab/modes.h>

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "kit/common_gx.h"

#define MORE_B	24 /* what a later version has beyond ours */
#define ROOM_B	(GX_STRUCT_MAX + 8)
#define LEN	4096
#define WAIT_NS 60000000000ull

struct sample {
	size_t size;
	uint64_t a, b;
};

/* ---- the reader ---- */

static void struct_take__same(void **state)
{
	struct sample user = {sizeof(user), 1, 2}, own;
	char why[GX_STRUCT_TEXT_MAX];

	assert_int_equal(gx_struct_take("sample", &own, sizeof(own), &user, why), 0);
	assert_memory_equal(&own, &user, sizeof(own));
}

static void struct_take__null_is_default(void **state)
{
	struct sample own = {7, 7, 7};
	char why[GX_STRUCT_TEXT_MAX];

	assert_int_equal(gx_struct_take("sample", &own, sizeof(own), NULL, why), 0);
	assert_int_equal(own.size, sizeof(own));
	assert_int_equal(own.a | own.b, 0);
}

static void struct_take__shorter(void **state)
{
	struct sample user = {offsetof(struct sample, b), 1, 2}, own = {0, 9, 9};
	char why[GX_STRUCT_TEXT_MAX];

	assert_int_equal(gx_struct_take("sample", &own, sizeof(own), &user, why), 0);
	assert_int_equal(own.size, sizeof(own));
	assert_int_equal(own.a, 1);
	assert_int_equal(own.b, 0);
}

/* Each byte of the tail counts, the last one too, and none behind it. */
static void struct_take__longer(void **state)
{
	union {
		struct sample s;
		unsigned char bytes[sizeof(struct sample) + MORE_B + 1];
	} user = {.s = {sizeof(user.s) + MORE_B, 1, 2}};
	struct sample own;
	char why[GX_STRUCT_TEXT_MAX];

	user.bytes[sizeof(user.s) + MORE_B] = 0xff;
	assert_int_equal(gx_struct_take("sample", &own, sizeof(own), &user, why), 0);
	assert_int_equal(own.size, sizeof(own));
	assert_int_equal(own.b, 2);
	for (size_t i = sizeof(user.s); i < sizeof(user.s) + MORE_B; i++) {
		user.bytes[i] = 1;
		assert_int_equal(gx_struct_take("sample", &own, sizeof(own), &user, why), -E2BIG);
		assert_non_null(
			strstr(why, "sample has 48 bytes, and this older library knows 24"));
		user.bytes[i] = 0;
	}
}

/* A size that was never set: nothing that it promises is read. */
static void struct_take__size_not_set(void **state)
{
	const size_t sizes[] = {0, 1, sizeof(size_t) - 1, GX_STRUCT_MAX + 1, SIZE_MAX};
	struct sample user = {0}, own;
	char why[GX_STRUCT_TEXT_MAX];

	for (unsigned i = 0; i < GX_ARRAY_SIZE(sizes); i++) {
		user.size = sizes[i];
		assert_int_equal(gx_struct_take("sample", &own, sizeof(own), &user, why), -EINVAL);
		assert_non_null(strstr(why, "sample.size is "));
		assert_non_null(strstr(why, "GX_INIT()"));
	}
}

/* ---- the writer ---- */

static void struct_give__shorter(void **state)
{
	struct sample user = {offsetof(struct sample, b), 8, 9}, own = {0, 1, 2};
	char why[GX_STRUCT_TEXT_MAX];

	assert_int_equal(gx_struct_give("sample", &own, sizeof(own), &user, why), 0);
	assert_int_equal(user.size, offsetof(struct sample, b));
	assert_int_equal(user.a, 1);
	assert_int_equal(user.b, 9);
}

static void struct_give__longer(void **state)
{
	struct sample own = {0, 1, 2}, user[3];
	char why[GX_STRUCT_TEXT_MAX];

	memset(user, 0xff, sizeof(user));
	user[0].size = sizeof(own) + MORE_B;
	assert_int_equal(gx_struct_give("sample", &own, sizeof(own), user, why), 0);
	assert_int_equal(user[0].size, sizeof(own) + MORE_B);
	assert_int_equal(user[0].b, 2);
	assert_int_equal(user[1].size | user[1].a | user[1].b, 0);
	assert_int_equal(user[2].size, SIZE_MAX);
}

static void struct_give__size_not_set(void **state)
{
	struct sample own = {0, 1, 2}, user = {.a = 7};
	char why[GX_STRUCT_TEXT_MAX];

	assert_int_equal(gx_struct_give("sample", &own, sizeof(own), &user, why), -EINVAL);
	user.size = GX_STRUCT_MAX + 1;
	assert_int_equal(gx_struct_give("sample", &own, sizeof(own), &user, why), -EINVAL);
	assert_int_equal(user.a, 7);
}

/* ---- every call that takes one ---- */

static struct {
	struct gx *gx[2];
	struct gx_mem *kv;
	struct gx_conn *conn;
	struct gx_group *group;
	struct gx_engine *engine;
	struct gx_engine_queue *queue;
	uint32_t pairs[2];
} rig;

static int call_open(void *s)
{
	struct gx *gx;
	int ret = gx_open(s, &gx);

	if (!ret)
		gx_close(gx);
	return ret;
}

static int call_connect(void *s)
{
	struct gx_conn *conn;

	return gx_connect(rig.gx[1], "no port", s, &conn);
}

static int call_listen(void *s)
{
	struct gx_listener *l;
	int ret = gx_listen_with(rig.gx[0], "127.0.0.1:0", s, &l);

	if (ret > 0)
		gx_listener_close(l);
	return ret > 0 ? 0 : ret;
}

#define KEY_FILE "test_struct.key"

static int call_auth_make(void *s)
{
	return gx_auth_make(KEY_FILE, s);
}

static int call_auth_read(void *s)
{
	struct gx_auth_key key = GX_INIT(key);
	int ret;

	key.name[0] = 'a';
	assert_int_equal(gx_auth_make(KEY_FILE, &key), 0);
	ret = gx_auth_read(KEY_FILE, s);
	unlink(KEY_FILE);
	return ret;
}

static int call_info(void *s)
{
	return gx_conn_info(rig.conn, s);
}

static int call_region(void *s)
{
	return gx_conn_region(rig.conn, "kv", 0, s);
}

static int call_key(void *s)
{
	struct gx_key key;

	((struct gx_key_opts *)s)->access = GX_ACCESS_GET;
	return gx_mem_key(rig.kv, s, &key);
}

static int call_queue(void *s)
{
	struct gx_queue *q;
	int ret = gx_queue_open(rig.gx[1], s, &q);

	while (!ret && gx_queue_close(q) == -EAGAIN)
		; /* the core, which runs, has yet to turn */
	return ret;
}

static int call_env(void *s)
{
	return gx_group_env(s);
}

static int call_group(void *s)
{
	struct gx_group *g;

	return gx_group_open(s, &g);
}

static int call_coll(void *s)
{
	uint64_t ticket;

	return gx_allgather(rig.group, s, &ticket);
}

static int call_engine(void *s)
{
	struct gx_engine *e;
	int ret;

	((struct gx_engine_opts *)s)->device = -1;
	ret = gx_engine_open(s, &e);
	if (!ret)
		gx_engine_close(e);
	return ret;
}

static int call_engine_info(void *s)
{
	return gx_engine_info(rig.engine, s);
}

static int call_engine_queue(void *s)
{
	struct gx_engine_queue *q;
	int ret = gx_engine_queue_open(rig.engine, s, &q);

	return ret ? ret : gx_engine_queue_close(q);
}

static int call_gather(void *s)
{
	uint32_t ticket;

	return gx_engine_gather(rig.queue, s, &ticket);
}

static int call_load(void *s)
{
	struct gx_load *l;

	return gx_load_open(rig.engine, s, &l);
}

/* Every host has this interface. */
static struct gx_nic *nic_lo(void)
{
	struct gx_nic *nic;

	assert_int_equal(gx_nic_open("lo", &nic), 0);
	return nic;
}

static int call_nic_fact(void *s)
{
	struct gx_nic *nic = nic_lo();
	int ret = gx_nic_fact(nic, 0, s);

	gx_nic_close(nic);
	return ret;
}

static int call_nic_mode(void *s)
{
	struct gx_nic *nic = nic_lo();
	int ret = gx_nic_mode(nic, 0, s);

	gx_nic_close(nic);
	return ret;
}

static int call_nic_step(void *s)
{
	struct gx_nic *nic = nic_lo();
	int ret = gx_nic_step(nic, 1, 1, 0, 0, s);

	gx_nic_close(nic);
	return ret;
}

/* What a call returns for a struct of zeros says that the struct was read. gx_load_info() and
 * gx_load_check() need a GPU: test_load.c. */
static const struct {
	const char *name;
	size_t size;
	int (*call)(void *s);
	const char *(*why)(void);
	int zeros; /* returned for a struct of zeros but its size */
	bool out;  /* the library fills it */
} calls[] = {
	{"gx_opts", sizeof(struct gx_opts), call_open, gx_error, 0, false},
	{"gx_connect_opts", sizeof(struct gx_connect_opts), call_connect, gx_error, -EINVAL, false},
	{"gx_listen_opts", sizeof(struct gx_listen_opts), call_listen, gx_error, 0, false},
	{"gx_auth_key", sizeof(struct gx_auth_key), call_auth_make, gx_error, -EINVAL, false},
	{"gx_auth_key", sizeof(struct gx_auth_key), call_auth_read, gx_error, 0, true},
	{"gx_conn_info", sizeof(struct gx_conn_info), call_info, gx_error, 0, true},
	{"gx_region", sizeof(struct gx_region), call_region, gx_error, 0, true},
	{"gx_key_opts", sizeof(struct gx_key_opts), call_key, gx_error, 0, false},
	{"gx_queue_opts", sizeof(struct gx_queue_opts), call_queue, gx_error, 0, false},
	{"gx_group_env", sizeof(struct gx_group_env), call_env, gx_error, 0, true},
	{"gx_group_opts", sizeof(struct gx_group_opts), call_group, gx_error, -EINVAL, false},
	{"gx_coll", sizeof(struct gx_coll), call_coll, gx_error, -EINVAL, false},
	{"gx_engine_opts", sizeof(struct gx_engine_opts), call_engine, gx_engine_why, 0, false},
	{"gx_engine_info", sizeof(struct gx_engine_info), call_engine_info, gx_engine_why, 0, true},
	{"gx_engine_queue_opts", sizeof(struct gx_engine_queue_opts), call_engine_queue,
	 gx_engine_why, 0, false},
	{"gx_gather", sizeof(struct gx_gather), call_gather, gx_engine_why, -EINVAL, false},
	{"gx_nic_fact", sizeof(struct gx_nic_fact), call_nic_fact, gx_error, 0, true},
	{"gx_nic_mode", sizeof(struct gx_nic_mode), call_nic_mode, gx_error, 0, true},
	{"gx_nic_step", sizeof(struct gx_nic_step), call_nic_step, gx_error, 0, true},
	{"gx_load_opts", sizeof(struct gx_load_opts), call_load, gx_engine_why, -EINVAL, false},
};

/* A field that a later version adds begins where ours ends: in padding it would find rubbish of
 * older programs. */
#define ENDS_WITH(type, last)                                                                      \
	_Static_assert(offsetof(struct type, last) + sizeof(((struct type *)0)->last) ==           \
			       sizeof(struct type),                                                \
		       "padding at the end of " #type)
ENDS_WITH(gx_opts, auth);
ENDS_WITH(gx_core_opts, reserved2);
ENDS_WITH(gx_host_opts, pull_over_b);
ENDS_WITH(gx_packet_opts, quantum_b);
ENDS_WITH(gx_gpu_opts, timeout_ns);
ENDS_WITH(gx_nic_opts, tx_if);
ENDS_WITH(gx_verbs_opts, reserved);
ENDS_WITH(gx_connect_opts, peer);
ENDS_WITH(gx_listen_opts, reserved);
ENDS_WITH(gx_conn_info, auth);
ENDS_WITH(gx_auth_key, regions);
ENDS_WITH(gx_auth_opts, name);
ENDS_WITH(gx_region, addr);
ENDS_WITH(gx_queue_opts, reserved);
ENDS_WITH(gx_group_env, reserved);
ENDS_WITH(gx_group_opts, job);
ENDS_WITH(gx_coll, len);
ENDS_WITH(gx_engine_opts, ipc);
ENDS_WITH(gx_engine_info, sms);
ENDS_WITH(gx_engine_queue_opts, stage_b);
ENDS_WITH(gx_gather, reserved);
ENDS_WITH(gx_nic_fact, text);
ENDS_WITH(gx_nic_mode, cure);
ENDS_WITH(gx_nic_step, cure);
ENDS_WITH(gx_load_opts, lib_path);
ENDS_WITH(gx_load_info, reserved);
ENDS_WITH(gx_load_check, worst);

static void *struct_of(size_t size)
{
	unsigned char *s = calloc(1, ROOM_B); /* to its end, so that the sanitizer sees more */

	assert_non_null(s);
	memcpy(s, &size, sizeof(size));
	return s;
}

static void size_is(const void *s, size_t size)
{
	size_t got;

	memcpy(&got, s, sizeof(got));
	assert_int_equal(got, size);
}

static void every_call__same(void **state)
{
	for (unsigned i = 0; i < GX_ARRAY_SIZE(calls); i++) {
		void *s = struct_of(calls[i].size);

		assert_int_equal(calls[i].call(s), calls[i].zeros);
		assert_null(strstr(calls[i].why(), ".size"));
		size_is(s, calls[i].size);
		free(s);
	}
}

/* The room ends where the program says: the sanitizer sees who reads or writes beyond. */
static void every_call__shorter(void **state)
{
	for (unsigned i = 0; i < GX_ARRAY_SIZE(calls); i++) {
		size_t size = 16; /* the size, and 8 bytes of the first version */
		unsigned char *s = calloc(1, size);

		assert_non_null(s);
		memcpy(s, &size, sizeof(size));
		assert_int_equal(calls[i].call(s), calls[i].zeros);
		assert_null(strstr(calls[i].why(), ".size"));
		size_is(s, size);
		free(s);
	}
}

static void every_call__longer(void **state)
{
	for (unsigned i = 0; i < GX_ARRAY_SIZE(calls); i++) {
		unsigned char *s = struct_of(calls[i].size + MORE_B);
		size_t last = calls[i].size + MORE_B - 1;

		assert_int_equal(calls[i].call(s), calls[i].zeros);
		s[last] = 1;
		s[last + 1] = 0xee;
		if (calls[i].out) {
			assert_int_equal(calls[i].call(s), calls[i].zeros);
			assert_int_equal(s[last], 0);
		} else {
			assert_int_equal(calls[i].call(s), -E2BIG);
			assert_non_null(strstr(calls[i].why(), calls[i].name));
		}
		assert_int_equal(s[last + 1], 0xee);
		size_is(s, calls[i].size + MORE_B);
		free(s);
	}
}

static void every_call__size_not_set(void **state)
{
	char text[GX_STRUCT_TEXT_MAX];

	for (unsigned i = 0; i < GX_ARRAY_SIZE(calls); i++) {
		void *s = struct_of(0);

		snprintf(text, sizeof(text), "%s.size is 0: initialise the struct with GX_INIT()",
			 calls[i].name);
		assert_int_equal(calls[i].call(s), -EINVAL);
		assert_string_equal(calls[i].why(), text);
		free(s);
	}
}

/* Options inside of options. */
static void group_open__context_options(void **state)
{
	struct gx_group_opts o = GX_INIT(o);
	struct gx_opts inner = {0};
	struct gx_group *g;

	o.nr_ranks = 1;
	o.master = "127.0.0.1:0";
	o.gx = &inner;
	assert_int_equal(gx_group_open(&o, &g), -EINVAL);
	assert_non_null(strstr(gx_error(), "gx_opts.size is 0"));
}

/* Modes of libgxlab lie far above those of gx.h, and nothing in between is one. */
static void open__modes_that_are_none(void **state)
{
	static const unsigned none[] = {GX_UNPACK_MODE_HOST + 1, GX_UNPACK_MODE_NONE - 1,
					GX_UNPACK_MODE_NONE + 1, UINT32_MAX};
	struct gx *gx;

	_Static_assert((int)GX_COPY_KERNEL == (int)GX_UNPACK_MODE_NONE, "so one table does");
	for (unsigned i = 0; i < GX_ARRAY_SIZE(none); i++) {
		struct gx_opts o = GX_INIT(o), p = GX_INIT(p);

		o.gpu = GX_WITH(gx_gpu_opts, .unpack = none[i]);
		assert_int_equal(gx_open(&o, &gx), -EINVAL);
		assert_non_null(strstr(gx_error(), "unpack mode"));
		p.gpu = GX_WITH(gx_gpu_opts, .copy = none[i]);
		assert_int_equal(gx_open(&p, &gx), -EINVAL);
		assert_non_null(strstr(gx_error(), "copy engine"));
	}
}

/* ---- two contexts, connected; a group of one ---- */

static int open_both(void)
{
	struct gx_opts o = GX_INIT(o);
	char addr[32];

	for (unsigned i = 0; i < 2; i++) {
		o.server = !i;
		assert_int_equal(gx_open(&o, &rig.gx[i]), 0);
	}
	assert_int_equal(gx_mem_alloc(rig.gx[0], GX_MEM_HOST, 0, LEN, &rig.kv), 0);
	assert_int_equal(gx_mem_share(rig.kv, "kv", GX_ACCESS_PUT), 0);
	common_gx_listen(rig.gx[0], addr);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(gx_core_start(gx_core(rig.gx[i], 0)), 0);
	assert_int_equal(gx_connect(rig.gx[1], addr, NULL, &rig.conn), 0);
	return gx_conn_wait(rig.conn, WAIT_NS);
}

static int setup(void **state)
{
	struct gx_group_buf buf = {.kind = GX_MEM_HOST, .len = LEN};
	struct gx_engine_opts e = GX_INIT(e);
	struct gx_group_opts g = GX_INIT(g);

	setenv("RANK", "0", 1);
	setenv("WORLD_SIZE", "1", 1);
	assert_int_equal(open_both(), 0);
	g.nr_ranks = 1;
	g.master = "127.0.0.1:0";
	g.bufs = &buf;
	g.nr_bufs = 1;
	assert_int_equal(gx_group_open(&g, &rig.group), 0);
	assert_int_equal(gx_group_connect(rig.group), 0);
	e.device = -1;
	assert_int_equal(gx_engine_open(&e, &rig.engine), 0);
	assert_int_equal(gx_engine_queue_open(rig.engine, NULL, &rig.queue), 0);
	return 0;
}

static int teardown(void **state)
{
	gx_engine_queue_close(rig.queue);
	gx_engine_close(rig.engine);
	gx_group_close(rig.group);
	gx_close(rig.gx[1]);
	gx_close(rig.gx[0]);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(struct_take__same),
		cmocka_unit_test(struct_take__null_is_default),
		cmocka_unit_test(struct_take__shorter),
		cmocka_unit_test(struct_take__longer),
		cmocka_unit_test(struct_take__size_not_set),
		cmocka_unit_test(struct_give__shorter),
		cmocka_unit_test(struct_give__longer),
		cmocka_unit_test(struct_give__size_not_set),
		cmocka_unit_test(every_call__same),
		cmocka_unit_test(every_call__shorter),
		cmocka_unit_test(every_call__longer),
		cmocka_unit_test(every_call__size_not_set),
		cmocka_unit_test(group_open__context_options),
		cmocka_unit_test(open__modes_that_are_none),
	};

	return cmocka_run_group_tests_name("struct", tests, setup, teardown);
}
