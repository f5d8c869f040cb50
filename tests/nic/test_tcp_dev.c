/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory of a context over a scripted NIC: what is checked before the binding, the flow rules
 * of sockets, and which connections ask for bare payload. The GPU is the CPU backend, with a dma-buf
 * that is an ordinary file.
 */
#include "nic/nic_script.h"
#include "tcp/tcp_conn.h"
#include "tcp/tcp_feed.h"

#include "gx_internal/fork.h"
#include "nic/nic_link.h"
#include "nic/tcp_dev.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define POOL_B (4u << 20)

static struct rig {
	struct gx gx;
	struct gx_core core;
	struct gx_gpu *gpu;
	struct gx_gpu_share_ops share;
	struct tcp_dev_cfg cfg;
	struct nic_ctx tcp;
} rig;

static int dmabuf(struct gx_gpu *gpu, const void *ptr, size_t len, int *fd)
{
	assert_true(ptr && len == POOL_B);
	*fd = gx_fd_own(open("/dev/null", O_RDONLY | O_CLOEXEC));
	return 0;
}

static const struct gx_nic_opts queues = {.rx_if = SCRIPT_IF, .rx_first = 8, .rx_queues = 2};

static int rig_open(void **state)
{
	struct gx_gpu_cfg cfg = {0};

	script_reset();
	script.bind_takes = true;
	memset(&rig, 0, sizeof(rig));
	core_groups_point(&rig.gx.opts, &rig.gx.groups);
	rig.gx.groups.nic.rx = GX_NIC_RX_DEVMEM;
	rig.gx.groups.packet.chunk_b = 65536;
	rig.gx.groups.gpu.timeout_ns = 1000000000;
	rig.core.gx = &rig.gx;
	rig.gx.link[GX_LINK_TCP] = &rig.tcp;
	assert_int_equal(gx_gpu_host_ops.open(&cfg, &rig.gpu), 0);
	rig.gpu->device = 3;
	rig.gpu->dma = GX_GPU_DMA_OWN;
	rig.share = *rig.gpu->share;
	rig.share.dmabuf = dmabuf;
	rig.gpu->share = &rig.share;
	assert_int_equal(gx_arena_open(64 << 20, &rig.gx.arena), 0);
	rig.cfg = (struct tcp_dev_cfg){.nic = &script_sys,
				       .sys = &devmem_sys_kernel,
				       .arena = rig.gx.arena,
				       .gpu = rig.gpu,
				       .where = &queues,
				       .pool_b = POOL_B,
				       .nr_cores = 2};
	return 0;
}

static int rig_close(void **state)
{
	assert_int_equal(script.nr_open | script.nr_rules, 0);
	tcp_dev_close(NULL);
	gx_arena_close(rig.gx.arena);
	gx_gpu_host_ops.close(rig.gpu);
	return 0;
}

static void error_has(const char *word)
{
	if (!strstr(gx_error(), word))
		fail_msg("no '%s' in: %s", word, gx_error());
}

/* ---- opening ---- */

static void open__binds(void **state)
{
	struct tcp_dev *d;
	char text[192];

	assert_int_equal(tcp_dev_open(&rig.cfg, &d), 0);
	assert_true(script.bound_fd > 0 && script.nr_bound >= 2);
	assert_int_equal(script.bound[script.nr_bound - 2], 8);
	assert_int_equal(script.bound[script.nr_bound - 1], 9);
	assert_int_equal(script.nr_open, 1);
	assert_int_equal(tcp_dev_device(d), 3);
	tcp_dev_text(d, text, sizeof(text));
	assert_non_null(strstr(text, SCRIPT_IF " queues 8-9"));
	tcp_dev_report(d);
	tcp_dev_close(d);
}

/* Rules to its queues that a killed process left go. Nothing else is touched. */
static void open__sweeps_rules(void **state)
{
	struct tcp_dev *d;

	script_leave(8);
	script_leave(9);
	script_leave(10);
	assert_int_equal(tcp_dev_open(&rig.cfg, &d), 0);
	assert_int_equal(script.left[0].nr_dels, 1);
	assert_int_equal(script.left[1].nr_dels, 1);
	assert_int_equal(script.left[2].nr_dels, 0);
	tcp_dev_close(d);
	script.bind_takes = false;
	assert_true(tcp_dev_open(&rig.cfg, &d) < 0); /* the queues are not ours */
	assert_int_equal(script.left[0].nr_dels, 1);
}

static void refused(int err, const char *word, const char *cure)
{
	struct tcp_dev *d = NULL;

	assert_int_equal(tcp_dev_open(&rig.cfg, &d), err);
	assert_null(d);
	error_has(word);
	error_has(cure);
	assert_true(!script.nr_open && script.bound_fd <= 0);
}

static void open__bad_words(void **state)
{
	static const struct gx_nic_opts bad[] = {
		{.rx_if = ""},
		{.rx_if = NULL, .rx_first = 8, .rx_queues = 2},
		{.rx_if = "", .rx_first = 8, .rx_queues = 2},
		{.rx_if = "nic0", .rx_first = 8},
		{.rx_if = "nic0", .rx_first = 8, .rx_queues = UINT32_MAX},
		{.rx_if = "interface-too-long", .rx_first = 8, .rx_queues = 2}};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(bad); i++) {
		rig.cfg.where = &bad[i];
		refused(-EINVAL, "gx_nic_opts.rx_if", ".rx_queues");
	}
	rig.cfg.where = GX_WITH(gx_nic_opts, .rx_if = "nic1", .rx_first = 8, .rx_queues = 2);
	refused(-ENODEV, "nic1", "no interface");
	rig.cfg.where = &queues;
	rig.cfg.pool_b = POOL_B + 4096;
	refused(-EINVAL, "gx_nic_opts.rx_b", "2M");
}

/* Each step that the operator has left out is named, with its command. */
static void open__nic_is_not_ready(void **state)
{
	script.split = 1;
	refused(-EOPNOTSUPP, "header split", "tcp-data-split on");
	script_reset();
	script.rss_queues = 16;
	refused(-EOPNOTSUPP, "RSS", "equal 8");
	script_reset();
	script.ntuple = NIC_HAS_NOT;
	refused(-EOPNOTSUPP, "flow rules", "Cure");
	script_reset();
	script.held[9] = NIC_HELD_XSK;
	refused(-EOPNOTSUPP, "AF_XDP", "other queues");
}

static void open__gpu_cannot(void **state)
{
	rig.gpu->dma = GX_GPU_DMA_NONE;
	refused(-EOPNOTSUPP, "flush", "gx_nic_opts.rx copy");
	rig.gpu->dma = GX_GPU_DMA_OWN;
	rig.gpu->reads_host = true;
	refused(-EOPNOTSUPP, "by the CPU", "gx_gpu_opts.unpack");
	rig.gpu->reads_host = false;
}

/* ---- connections ---- */

struct line {
	struct gx_conn conn;
	struct gx_hello_lane local, remote;
	struct tcp_ep *e;
	int far[TCP_SOCKS_MAX];
	unsigned nr_socks;
};

/* Both ends of a connection over loopback. */
static int loop_tcp(int *far)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(a);
	int lfd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fd;

	assert_int_equal(bind(lfd, (struct sockaddr *)&a, len), 0);
	assert_int_equal(listen(lfd, 1), 0);
	assert_int_equal(getsockname(lfd, (struct sockaddr *)&a, &len), 0);
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&a, len), 0);
	*far = accept(lfd, NULL, NULL);
	assert_true(*far >= 0);
	close(lfd);
	return gx_fd_own(fd);
}

static struct line *line_from(struct tcp_dev *d, const char *peer, unsigned nr_socks)
{
	struct line *l = calloc(1, sizeof(*l));
	struct gx_ep *ep = gx_link_tcp_ops.ep_new();

	assert_true(l && ep);
	rig.tcp.dev = d;
	if (!tcp_core(&rig.core))
		assert_int_equal(nic_core_open(&rig.core), 0);
	l->nr_socks = nr_socks;
	l->conn.gx = &rig.gx;
	snprintf(l->conn.peer_name, sizeof(l->conn.peer_name), "%s", peer);
	l->conn.agreed = (struct gx_hello_lanes){
		.chunk_b = 65536, .window = 4, .peer_timeout_ns = 5000000000};
	assert_int_equal(tcp_conn_open(&l->conn, 1, nr_socks), 0);
	ep->conn = &l->conn;
	ep->core = &rig.core;
	ep->ops = &gx_link_tcp_ops;
	l->e = tcp_of(ep);
	assert_int_equal(ep->ops->ep_open(ep, &l->local), 0);
	return l;
}

static struct line *line_new(struct tcp_dev *d, unsigned nr_socks)
{
	return line_from(d, "10.0.0.1:4711 pid 3", nr_socks);
}

static int line_try(struct line *l)
{
	for (unsigned i = 0; i < l->nr_socks; i++)
		assert_int_equal(gx_socks_add(&l->conn, 0, i, loop_tcp(&l->far[i])), 0);
	l->remote = l->local;
	return l->e->ep.ops->ep_connect(&l->e->ep, &l->remote);
}

static void line_connect(struct line *l)
{
	assert_int_equal(line_try(l), 0);
}

static void line_free(struct line *l)
{
	l->e->ep.ops->ep_free(&l->e->ep);
	tcp_conn_close(&l->conn);
	for (unsigned i = 0; i < l->nr_socks; i++)
		if (l->far[i])
			close(l->far[i]);
	free(l);
}

static void link_end(struct tcp_dev *d)
{
	tcp_core_close(&rig.core);
	tcp_dev_close(d);
}

static struct tcp_addr addr_of(const struct line *l)
{
	struct tcp_addr a;

	uint8_t b[64];

	assert_int_equal(tcp_addr_get(b, tcp_addr_put(b, &l->conn), &a), 0);
	return a;
}

/* All sockets but the first have feeds, and rules that lead to the queues in turn. */
static void conn__asks_for_bare(void **state)
{
	struct tcp_dev *d;
	struct line *l;

	assert_int_equal(tcp_dev_open(&rig.cfg, &d), 0);
	l = line_new(d, 3);
	assert_true(addr_of(l).bare && addr_of(l).device == 3 && l->e->bare.rx);
	assert_int_equal(l->e->bare.rx_device, 3);
	line_connect(l);
	assert_false(l->e->bare.tx || l->e->sock[0].feed || l->e->sock[0].bare);
	assert_true(l->e->sock[1].feed && l->e->sock[1].bare && l->e->sock[2].bare);
	assert_int_equal(script.rule_queue, 9); /* 8 was the first one's */
	assert_int_equal(script.nr_rules, 2);
	line_free(l);
	link_end(d);
}

static void conn__cannot(void **state)
{
	struct tcp_dev *d;
	struct line *l;

	assert_int_equal(tcp_dev_open(&rig.cfg, &d), 0);
	l = line_new(d, 1); /* one socket */
	assert_false(addr_of(l).bare || addr_of(l).device || l->e->bare.rx);
	line_connect(l);
	assert_null(l->e->sock[0].feed);
	line_free(l);
	link_end(d);
}

/* The peer asks, and this end has no device memory. */
static void conn__peer_asks(void **state)
{
	struct line *l = line_new(NULL, 2);

	for (unsigned i = 0; i < l->nr_socks; i++)
		assert_int_equal(gx_socks_add(&l->conn, 0, i, loop_tcp(&l->far[i])), 0);
	l->remote = l->local;
	tcp_conn_of(&l->conn)->tx_bare = true;
	tcp_conn_of(&l->conn)->tx_device = 5;
	assert_int_equal(l->e->ep.ops->ep_connect(&l->e->ep, &l->remote), 0);
	assert_true(l->e->bare.tx && !l->e->bare.rx);
	assert_int_equal(l->e->bare.tx_device, 5);
	line_free(l);
	link_end(NULL);
}

/* Feeds are set aside when a connection asks, and come back however it ends. A host has as many as
 * are free, of all its connections: the first one half, the next one half of the rest. */
static void conn__feeds_run_out(void **state)
{
	static const char *const peer[] = {
		"10.0.0.1:1 pid 3", "10.0.0.1:2 pid 3", "10.0.0.1:3 pid 4",
		"10.0.0.1:4 pid 5", "10.0.0.1:5 pid 5", "10.0.0.2:1 pid 3",
		"10.0.0.2:2 pid 3", "10.0.0.2:3 pid 3", "[fe80::1]:1 pid 3"};
	static const bool gets[] = {true, true, true, true, false, true, true, false, true};
	struct line *l[GX_ARRAY_SIZE(peer)];
	struct tcp_dev *d;

	assert_int_equal(tcp_dev_open(&rig.cfg, &d), 0);
	for (unsigned round = 0; round < 3; round++) {
		for (unsigned i = 0; i < GX_ARRAY_SIZE(l); i++) {
			l[i] = line_from(d, peer[i], 16);
			assert_int_equal(l[i]->e->bare.rx, gets[i]);
			if (round)
				line_connect(l[i]);
		}
		for (unsigned i = 0; i < GX_ARRAY_SIZE(l); i++)
			line_free(l[i]);
	}
	link_end(d);
}

/* However many hosts ask, one more still gets some. */
static void conn__feeds_for_all(void **state)
{
	struct line *l[6 * 64];
	unsigned nr = 0;
	struct tcp_dev *d;
	char peer[32];

	assert_int_equal(tcp_dev_open(&rig.cfg, &d), 0);
	for (unsigned host = 0; host < 6; host++) {
		unsigned got = 0;

		snprintf(peer, sizeof(peer), "10.0.0.%u:1 pid 3", host);
		do
			l[nr] = line_from(d, peer, 2);
		while (l[nr++]->e->bare.rx && ++got < 64);
		assert_int_equal(got, 64 >> host);
	}
	while (nr--)
		line_free(l[nr]);
	link_end(d);
}

/* No rule: the payload comes linear. */
static void conn__no_rule(void **state)
{
	struct tcp_dev *d;
	struct line *l;

	assert_int_equal(tcp_dev_open(&rig.cfg, &d), 0);
	script.rules_err = -ENOSPC;
	l = line_new(d, 3);
	line_connect(l);
	assert_true(l->e->sock[1].feed && l->e->sock[2].feed);
	line_free(l);
	link_end(d);
}

static void check__unknown_way_to_receive(void **state)
{
	const struct gx_nic_opts o = {.rx = (enum gx_nic_rx)(GX_NIC_RX_DEVMEM + 1),
				      .rx_if = SCRIPT_IF};

	assert_int_equal(gx_link_tcp_nic.ctx->check(&(struct gx_opts){.nic = &o}), -EINVAL);
	error_has("not known");
}

static void addr__refuses(void **state)
{
	static const uint8_t bad[][4] = {{2, 2, 0, 0}, {1, 2, 2, 0}, {1, 1, 1, 0}, {1, 2, 0, 1}};
	uint8_t b[sizeof(struct tcp_addr)] = {0};
	struct tcp_addr out;

	memcpy(b, (const uint8_t[]){1, 2, 1, 7}, 4);
	assert_int_equal(tcp_addr_get(b, sizeof(b), &out), 0);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(bad); i++) {
		memcpy(b, bad[i], 4);
		assert_int_equal(tcp_addr_get(b, sizeof(b), &out), -EPROTO);
	}
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_open, rig_close)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(open__binds),
		TEST(open__sweeps_rules),
		TEST(open__bad_words),
		TEST(open__nic_is_not_ready),
		TEST(open__gpu_cannot),
		TEST(conn__asks_for_bare),
		TEST(conn__cannot),
		TEST(conn__peer_asks),
		TEST(conn__feeds_run_out),
		TEST(conn__feeds_for_all),
		TEST(check__unknown_way_to_receive),
		TEST(conn__no_rule),
		TEST(addr__refuses),
	};

	return cmocka_run_group_tests_name("tcp_dev", tests, NULL, NULL);
}
