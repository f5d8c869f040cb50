/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a GPU that is bound for sending, over a scripted NIC: what is checked when a context is
 * opened, and which memory is bound. The GPU is the CPU backend, with a dma-buf that is an ordinary
 * file.
 */
#include "nic/nic_script.h"

#include "gx_internal/fork.h"
#include "nic/nic_abi.h"
#include "nic/tcp_tx_dev.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static struct rig {
	struct gx gx;
	struct gx_gpu *gpu;
	struct gx_gpu_share_ops share;
	struct gx_mem mem;
	struct tcp_tx_dev_cfg cfg;
	const void *at; /* of the last dma-buf */
	size_t len;
	int err;
} rig;

static int dmabuf(struct gx_gpu *gpu, const void *ptr, size_t len, int *fd)
{
	rig.at = ptr;
	rig.len = len;
	if (rig.err)
		return rig.err;
	*fd = gx_fd_own(open("/dev/null", O_RDONLY | O_CLOEXEC));
	return 0;
}

static int rig_open(void **state)
{
	struct gx_gpu_cfg cfg = {0};

	script_reset();
	script.bind_takes = true;
	memset(&rig, 0, sizeof(rig));
	assert_int_equal(gx_gpu_host_ops.open(&cfg, &rig.gpu), 0);
	rig.share = *rig.gpu->share;
	rig.share.dmabuf = dmabuf;
	rig.gpu->share = &rig.share;
	rig.mem = (struct gx_mem){.gx = &rig.gx,
				  .kind = GX_MEM_CUDA,
				  .gpu = rig.gpu,
				  .device = 2,
				  .addr = (char *)0x7f0000001200,
				  .len = 8192};
	rig.cfg = (struct tcp_tx_dev_cfg){.nic = &script_sys, .name = SCRIPT_IF};
	return 0;
}

static int rig_close(void **state)
{
	assert_int_equal(script.nr_open, 0);
	gx_gpu_host_ops.close(rig.gpu);
	return 0;
}

static void error_has(const char *word)
{
	if (!strstr(gx_error(), word))
		fail_msg("no '%s' in: %s", word, gx_error());
}

static void refused(int err, const char *word, const char *cure)
{
	struct tcp_tx_dev *d = NULL;

	assert_int_equal(tcp_tx_dev_open(&rig.cfg, &d), err);
	assert_null(d);
	error_has(word);
	error_has(cure);
}

static void open__refused(void **state)
{
	rig.cfg.name = "";
	refused(-EINVAL, "gx_nic_opts.tx_if", "eth0");
	rig.cfg.name = "interface-too-long";
	refused(-EINVAL, "gx_nic_opts.tx_if", "eth0");
	rig.cfg.name = "nic1";
	refused(-ENODEV, "nic1", "no interface");
	rig.cfg.name = SCRIPT_IF;
	script.ops &= ~(1ull << NIC_NETDEV_BIND_TX);
	refused(-EOPNOTSUPP, SCRIPT_IF, "6.16");
	script_reset();
	script.no_netdev = true;
	refused(-EOPNOTSUPP, SCRIPT_IF, "gx_nic_opts.tx copy");
	tcp_tx_dev_close(NULL);
}

/* Whole pages, and an offset in them. */
static void mem__is_bound(void **state)
{
	const struct tcp_tx_bind *b;
	struct tcp_tx_dev *d;
	char text[192];

	assert_int_equal(tcp_tx_dev_open(&rig.cfg, &d), 0);
	assert_int_equal(script.nr_open, 0);
	assert_int_equal(tcp_tx_dev_mem(d, &rig.mem), 0);
	b = atomic_load(&rig.mem.link[GX_LINK_TCP]);
	assert_non_null(b);
	assert_ptr_equal(b->base, (char *)0x7f0000001000);
	assert_ptr_equal(rig.at, b->base);
	assert_int_equal(b->len, 3 * 4096);
	assert_int_equal(rig.len, b->len);
	assert_int_equal(b->id, script.bind_id);
	assert_int_equal(script.nr_open, 1); /* the binding lasts as long as its socket */
	tcp_tx_dev_text(d, text, sizeof(text));
	assert_non_null(strstr(text, SCRIPT_IF));
	tcp_tx_dev_put(&rig.mem);
	assert_null(atomic_load(&rig.mem.link[GX_LINK_TCP]));
	tcp_tx_dev_put(&rig.mem);
	tcp_tx_dev_close(d);
}

static void mem__of_no_gpu(void **state)
{
	struct tcp_tx_dev *d;

	assert_int_equal(tcp_tx_dev_open(&rig.cfg, &d), 0);
	rig.mem.kind = GX_MEM_HOST;
	assert_int_equal(tcp_tx_dev_mem(d, &rig.mem), 0);
	rig.mem.kind = GX_MEM_CUDA;
	rig.mem.len = 0;
	assert_int_equal(tcp_tx_dev_mem(d, &rig.mem), 0);
	assert_null(rig.at);
	tcp_tx_dev_close(d);
}

/* The GPU gives no dma-buf, then the driver takes none: an error where it is asked for by name. */
static void mem__cannot(void **state)
{
	struct tcp_tx_dev *d;

	for (unsigned i = 0; i < 4; i++) {
		rig.cfg.must = i & 1;
		rig.err = i < 2 ? -EOPNOTSUPP : 0;
		script.bind_takes = false;
		script.bind_err = -EOPNOTSUPP;
		assert_int_equal(tcp_tx_dev_open(&rig.cfg, &d), 0);
		assert_int_equal(tcp_tx_dev_mem(d, &rig.mem), i & 1 ? -EOPNOTSUPP : 0);
		assert_null(atomic_load(&rig.mem.link[GX_LINK_TCP]));
		if (i & 1) {
			error_has("gx_nic_opts.tx devmem");
			error_has("gx_nic_opts.tx auto");
			error_has(i < 2 ? "dma-buf" : SCRIPT_IF);
		}
		assert_int_equal(script.nr_open, 0);
		tcp_tx_dev_close(d);
	}
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_open, rig_close)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(open__refused),
		TEST(mem__is_bound),
		TEST(mem__of_no_gpu),
		TEST(mem__cannot),
	};

	return cmocka_run_group_tests_name("tcp_tx_dev", tests, NULL, NULL);
}
