/* SPDX-License-Identifier: Apache-2.0 */
/* The calls on connections, in two contexts of one process over shm: the program's own pointer. */
#include "kit/common_gx.h"
#include "kit/common_post.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define KV_B 65536u

/* What on_conn of the connecting end saw. */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	unsigned nr; /* events */
	enum gx_conn_event event;
	void *user;
} seen = {.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};

static int mine; /* something to point at */

static void on_conn(void *arg, struct gx_conn *conn, enum gx_conn_event event, int err,
		    const char *why)
{
	pthread_mutex_lock(&seen.lock);
	seen.nr++;
	seen.event = event;
	seen.user = gx_conn_user(conn);
	pthread_cond_broadcast(&seen.cond);
	pthread_mutex_unlock(&seen.lock);
}

static void seen_wait(unsigned nr, enum gx_conn_event event, const void *user)
{
	pthread_mutex_lock(&seen.lock);
	while (seen.nr < nr)
		pthread_cond_wait(&seen.cond, &seen.lock);
	assert_int_equal(seen.nr, nr);
	assert_int_equal(seen.event, event);
	assert_ptr_equal(seen.user, user);
	pthread_mutex_unlock(&seen.lock);
}

static int setup(void **state)
{
	static struct common_rig rig;
	struct gx_opts o = {.on_conn = on_conn};

	seen.nr = 0;
	common_rig_open(&rig, o, KV_B);
	*state = &rig;
	return 0;
}

static int teardown(void **state)
{
	common_rig_close(*state);
	return 0;
}

static struct gx_conn *dial(struct common_rig *r, const char *addr, void *user)
{
	struct gx_connect_opts o = GX_INIT(o);
	struct gx_conn *conn;

	o.user = user;
	assert_int_equal(gx_connect(r->client, addr, &o, &conn), 0);
	return conn;
}

/* gx_connect() returns before or after on_conn: the pointer is there in both cases. */
static void gx_connect__user_is_there_at_once(void **state)
{
	struct common_rig *r = *state;
	struct gx_conn *conn = dial(r, r->addr, &mine);

	seen_wait(1, GX_CONN_EVENT_UP, &mine);
	assert_ptr_equal(gx_conn_user(conn), &mine);
	gx_conn_user_set(conn, NULL);
	gx_conn_close(conn);
	seen_wait(2, GX_CONN_EVENT_DOWN, NULL);
}

static void gx_connect__user_of_one_that_fails(void **state)
{
	struct common_rig *r = *state;
	struct gx_conn *conn;

	gx_listen_stop(r->server);
	conn = dial(r, r->addr, &mine);
	seen_wait(1, GX_CONN_EVENT_DOWN, &mine);
	gx_conn_close(conn);
}

static void gx_connect__without_user(void **state)
{
	struct common_rig *r = *state;
	struct gx_conn *conn = dial(r, r->addr, NULL);

	seen_wait(1, GX_CONN_EVENT_UP, NULL);
	assert_null(gx_conn_user(conn));
}

/* ---- limits ---- */

static struct gx_op limit_op(struct gx_mem *mem, const struct gx_region *kv, uint32_t i,
			     const struct gx_conn_info *info, uint64_t len)
{
	struct gx_op op = {.kind = GX_OP_PUT, .flags = GX_OP_IMM, .user = 1};

	if (i < info->gets_max)
		op.kind = GX_OP_GET;
	else if (i < info->recvs_max)
		op.kind = GX_OP_RECV;
	if (op.kind != GX_OP_PUT)
		op.flags = 0;
	op.token = op.kind == GX_OP_RECV ? 0 : kv->token;
	op.mem = mem;
	op.len = len;
	return op;
}

/* As many as gx_conn_info says are taken, one call each, before the core turns; all end. */
static void limit_post(struct common_rig *r, const char *link, uint64_t len)
{
	struct gx_conn *conn = common_gx_connect(r->client, r->addr, link);
	struct gx_core *core = gx_core(r->client, 0);
	struct gx_conn_info info = GX_INIT(info);
	struct gx_region kv = GX_INIT(kv);
	struct gx_ep *ep = gx_conn_ep(conn, 0);
	struct gx_mem *mem;
	struct gx_comp c;
	uint32_t done = 0;

	assert_int_equal(gx_conn_info(conn, &info), 0);
	assert_string_equal(info.link, link);
	assert_int_equal(info.path_reason, GX_REASON_ASKED);
	assert_int_equal(info.reason, GX_REASON_NONE);
	assert_int_equal(gx_conn_region(conn, "kv", 0, &kv), 0);
	assert_int_equal(gx_mem_alloc(r->client, GX_MEM_HOST, 0, KV_B, &mem), 0);
	assert_true(info.ops_max >= 224 && info.recvs_max >= 64 && info.gets_max >= 64);
	assert_true(info.recvs_max <= info.ops_max && info.gets_max <= info.recvs_max);
	for (unsigned i = 0; i < 1000; i++) /* the endpoint is attached, its path proven */
		gx_core_turn(core, gx_now());
	for (uint32_t i = 0; i < info.ops_max; i++) {
		struct gx_op op = limit_op(mem, &kv, i, &info, len);

		if (common_post(ep, &op, 1) != 1)
			fail_msg("%s: %u of %u taken", link, i, info.ops_max);
	}
	for (uint64_t until = gx_now() + COMMON_WAIT_NS; done < info.ops_max && gx_now() < until;) {
		gx_core_turn(core, gx_now());
		while (common_poll(core, &c, 1))
			done++;
		if (done == info.ops_max - (info.recvs_max - info.gets_max)) /* nobody sends */
			common_cancel(ep, 1);
	}
	assert_int_equal(done, info.ops_max);
	gx_conn_close(conn);
	assert_int_equal(gx_mem_free(mem), 0);
}

static void gx_conn_info__ops_max_is_taken(void **state)
{
	static const char *const links[] = {"packet", "local", "tcp"};

	for (unsigned i = 0; i < sizeof(links) / sizeof(links[0]); i++) {
		limit_post(*state, links[i], 8);    /* leaves in common_post() */
		limit_post(*state, links[i], KV_B); /* waits for the core */
	}
}

/* A server that takes the connection and never says a word. */
static int mute_listen(char addr[32])
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(at);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(listen(fd, 8), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
	snprintf(addr, 32, "127.0.0.1:%u", ntohs(at.sin_port));
	return fd;
}

/* The natural loop waits while the set-up goes on, and ends when it has failed with -ETIMEDOUT. */
static void gx_conn_wait__tells_going_on_from_timed_out(void **state)
{
	struct common_rig *r = *state;
	struct gx_connect_opts o = GX_INIT(o);
	struct gx_conn_info info = GX_INIT(info);
	struct gx_conn *conn;
	char addr[32];
	int fd = mute_listen(addr), ret;

	o.timeout_ns = 300000000;
	assert_int_equal(gx_connect(r->client, addr, &o, &conn), 0);
	assert_int_equal(gx_conn_wait(conn, 1000000), -EINPROGRESS);
	assert_non_null(strstr(gx_error(), "still being set up"));
	assert_int_equal(gx_conn_info(conn, &info), 0);
	assert_int_equal(info.state, GX_CONN_STATE_CONNECTING);
	for (uint64_t until = gx_now() + COMMON_WAIT_NS;;) {
		ret = gx_conn_wait(conn, 1000000);
		if (ret != -EINPROGRESS || gx_now() > until)
			break;
	}
	assert_int_equal(ret, -ETIMEDOUT);
	assert_int_equal(gx_conn_wait(conn, 1000000), -ETIMEDOUT); /* it stays so */
	assert_int_equal(gx_conn_info(conn, &info), 0);
	assert_int_equal(info.state, GX_CONN_STATE_DOWN);
	assert_int_equal(info.err, -ETIMEDOUT);
	assert_int_equal(info.reason, GX_REASON_SETUP_TIMEOUT);
	gx_conn_close(conn);
	close(fd);
}

/* Over shm there is nothing to choose from. */
static void gx_conn_path__of_a_port_with_one(void **state)
{
	struct common_rig *r = *state;
	struct gx_conn *conn = dial(r, r->addr, NULL);
	struct gx_path p = GX_INIT(p);

	seen_wait(1, GX_CONN_EVENT_UP, NULL);
	assert_int_equal(gx_conn_path(conn, 0, &p), -ENOENT);
	assert_int_equal(gx_conn_path(conn, UINT32_MAX, &p), -ENOENT);
	gx_conn_close(conn);
	seen_wait(2, GX_CONN_EVENT_DOWN, NULL);
	gx_listen_stop(r->server);
	conn = dial(r, r->addr, NULL);
	seen_wait(3, GX_CONN_EVENT_DOWN, NULL);
	assert_int_equal(gx_conn_path(conn, 0, &p), -ENOTCONN);
	gx_conn_close(conn);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(gx_connect__user_is_there_at_once, setup, teardown),
		cmocka_unit_test_setup_teardown(gx_connect__user_of_one_that_fails, setup,
						teardown),
		cmocka_unit_test_setup_teardown(gx_connect__without_user, setup, teardown),
		cmocka_unit_test_setup_teardown(gx_conn_info__ops_max_is_taken, setup, teardown),
		cmocka_unit_test_setup_teardown(gx_conn_wait__tells_going_on_from_timed_out, setup,
						teardown),
		cmocka_unit_test_setup_teardown(gx_conn_path__of_a_port_with_one, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
