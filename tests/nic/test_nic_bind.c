// SPDX-License-Identifier: Apache-2.0
/*
 * Binding a dma-buf to queues. usage: test_nic_bind [kernel]
 * Without an argument: over a scripted kernel. kernel: this host's, which refuses lo and a veth
 * pair, in a network namespace of our own; 77 where that takes rights that we lack.
 */
#include "nic/nic_script.h"

#include "core/core.h"
#include "gx_internal/base.h"
#include "nic/nic_abi.h"
#include "nic/nic_nl.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/ethtool_netlink.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const uint32_t queues[] = {8, 9, 15};

static int reset(void **state)
{
	script_reset();
	return 0;
}

static void error_has(const char *word)
{
	if (!strstr(gx_error(), word))
		fail_msg("no '%s' in: %s", word, gx_error());
}

/* ---- the scripted kernel ---- */

static void bind_rx__binds(void **state)
{
	struct nic_bind *b;

	script.bind_err = 0;
	assert_int_equal(nic_bind_rx(&script_sys, SCRIPT_IF, queues, 3, 33, &b), 0);
	assert_int_equal(nic_bind_id(b), 5);
	assert_int_equal(script.bound_fd, 33);
	assert_int_equal(script.nr_bound, 3);
	assert_memory_equal(script.bound, queues, sizeof(queues));
	assert_int_equal(script.nr_open, 1); /* the binding lives as long as the socket */
	nic_unbind(b);
	assert_int_equal(script.nr_open, 0);
	nic_unbind(NULL);
}

static void bind_tx__binds(void **state)
{
	struct nic_bind *b;

	script.bind_err = 0;
	assert_int_equal(nic_bind_tx(&script_sys, SCRIPT_IF, 33, &b), 0);
	assert_int_equal(script.bound_fd, 33);
	assert_int_equal(script.nr_bound, 0);
	nic_unbind(b);
}

static void bind__bad_queues(void **state)
{
	struct nic_bind *b;

	assert_int_equal(nic_bind_rx(&script_sys, SCRIPT_IF, queues, 0, 33, &b), -EINVAL);
	assert_int_equal(nic_bind_rx(&script_sys, SCRIPT_IF, NULL, 3, 33, &b), -EINVAL);
	assert_int_equal(nic_bind_rx(&script_sys, SCRIPT_IF, queues, NIC_QUEUES_MAX + 1, 33, &b),
			 -EINVAL);
	assert_int_equal(nic_bind_rx(&script_sys, "nic1", queues, 1, 33, &b), -ENODEV);
	error_has("nic1");
	assert_int_equal(script.calls, 0);
}

/* Each refusal names the driver, the kernel's words, and its own cure; no socket stays open. */
static void bind__refused(void **state)
{
	static const struct {
		int err;
		const char *text, *cure;
	} all[] = {
		{-EOPNOTSUPP, "no queue management", "mlx5_core"},
		{-EPERM, NULL, "CAP_NET_ADMIN"},
		{-EBADF, NULL, "dma-buf"},
		{-EEXIST, "designated queue already bound", "nobody else"},
		{-EBUSY, "AF_XDP", "nobody else"},
		{-ERANGE, "rx queue index out of range", "queues that the interface has"},
		{-EINVAL, "tcp-data-split is disabled", "gx_nic_step()"},
		{-EIO, "odd", "kernel's text"},
	};
	struct nic_bind *b;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(all); i++) {
		script.bind_err = all[i].err;
		script.bind_text = all[i].text;
		assert_int_equal(nic_bind_rx(&script_sys, SCRIPT_IF, queues, 3, 33, &b),
				 all[i].err);
		assert_int_equal(script.nr_open, 0);
		error_has("nic0 (driver script)");
		error_has(strerror(-all[i].err));
		error_has(all[i].text ? all[i].text : "");
		error_has(all[i].cure);
	}
}

static void bind__kernel_without(void **state)
{
	struct nic_bind *b;

	script.ops = 1u << NIC_NETDEV_DEV_GET | 1u << NIC_NETDEV_BIND_RX;
	assert_int_equal(nic_bind_tx(&script_sys, SCRIPT_IF, 33, &b), -EOPNOTSUPP);
	error_has("6.16");
	script.no_netdev = true;
	assert_int_equal(nic_bind_rx(&script_sys, SCRIPT_IF, queues, 3, 33, &b), -EOPNOTSUPP);
	error_has("6.12");
	script.nl_open_err = -ENOSYS;
	assert_int_equal(nic_bind_rx(&script_sys, SCRIPT_IF, queues, 3, 33, &b), -ENOSYS);
	error_has("libmnl");
}

/* Two requests: the family, the binding. An answer that is no answer is no binding. */
static void bind__spoilt_answers(void **state)
{
	struct nic_bind *b;

	for (int spoil = SPOIL_CUT; spoil <= SPOIL_ENDLESS; spoil++)
		for (unsigned call = 1; call <= 2; call++) {
			script_reset();
			script.bind_err = 0;
			script.spoil = (enum script_spoil)spoil;
			script.spoil_call = call;
			assert_true(nic_bind_rx(&script_sys, SCRIPT_IF, queues, 3, 33, &b) < 0);
			assert_int_equal(script.nr_open, 0);
		}
	script_reset();
	script.bind_err = 0;
	script.bind_id = 0; /* not a number of a binding */
	assert_int_equal(nic_bind_rx(&script_sys, SCRIPT_IF, queues, 3, 33, &b), -EBADMSG);
	script.send_err = -ENOBUFS;
	assert_int_equal(nic_bind_rx(&script_sys, SCRIPT_IF, queues, 3, 33, &b), -ENOBUFS);
}

static void bind__most_queues(void **state)
{
	static uint32_t many[SCRIPT_QUEUES];
	struct nic_bind *b;

	for (unsigned i = 0; i < SCRIPT_QUEUES; i++)
		many[i] = i;
	script.bind_err = 0;
	assert_int_equal(nic_bind_rx(&script_sys, SCRIPT_IF, many, SCRIPT_QUEUES, 33, &b), 0);
	assert_memory_equal(script.bound, many, sizeof(many));
	nic_unbind(b);
}

/* ---- this host's kernel ---- */

/* The kernel ends a binding with the last descriptor of its socket, so a child has none. */
static void bind__not_of_a_child(void **state)
{
	int status, fd = nic_sys_linux.nl_open();
	pid_t child;

	assert_true(fd >= 0);
	child = fork();
	if (!child)
		_exit(fcntl(fd, F_GETFD) >= 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status) && !WEXITSTATUS(status));
	assert_true(fcntl(fd, F_GETFD) >= 0);
	nic_sys_linux.nl_close(fd);
	fd = open("/dev/null", O_RDONLY | O_CLOEXEC); /* the number is another's now */
	child = fork();
	if (!child)
		_exit(fcntl(fd, F_GETFD) < 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status) && !WEXITSTATUS(status));
	close(fd);
}

static void kernel_skip(const char *why)
{
	printf("skipped: %s\n", why);
	exit(77);
}

static void kernel_refuses(const char *name, const char *who)
{
	const uint32_t first = 0;
	struct nic_bind *b;

	assert_int_equal(nic_bind_rx(&nic_sys_linux, name, &first, 1, STDIN_FILENO, &b),
			 -EOPNOTSUPP);
	error_has(who);
	error_has("mlx5_core");
}

static void kernel__refuses_lo(void **state)
{
	kernel_refuses("lo", "lo (no driver)");
}

static void kernel__refuses_veth(void **state)
{
	kernel_refuses("gxa", "gxa (driver veth)");
}

static void kernel__knows_veth(void **state)
{
	static struct nic_facts f;
	struct gx_nic_mode m = {0};

	assert_int_equal(nic_look(&nic_sys_linux, "gxa", &f), 0);
	assert_string_equal(f.driver, "veth");
	assert_int_equal(f.bind_err, -EOPNOTSUPP);
	assert_int_equal(nic_mode(&f, 1, &m), 0);
	assert_int_equal(m.can, GX_NIC_NO);
}

/* Queues become free with the namespace, and so does the pair. */
static int kernel_main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(kernel__refuses_lo),
		cmocka_unit_test(kernel__refuses_veth),
		cmocka_unit_test(kernel__knows_veth),
	};
	static struct nic_facts f;

	if (unshare(CLONE_NEWNET))
		kernel_skip("no network namespace for this user (be root)");
	if (system("ip link add gxa type veth peer name gxb"))
		kernel_skip("no veth pair can be made here");
	if (nic_look(&nic_sys_linux, "lo", &f) || !f.bind_rx)
		kernel_skip("this kernel does not know bind-rx (Linux 6.12)");
	if (f.bind_err == -EPERM)
		kernel_skip("bind-rx wants CAP_NET_ADMIN of the host");
	if (f.bind_err == -EBADF)
		kernel_skip("this kernel looks for the dma-buf first (Linux 6.18 looks for the DMA "
			    "device first)");
	return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(bind_rx__binds, reset),
		cmocka_unit_test_setup(bind_tx__binds, reset),
		cmocka_unit_test_setup(bind__bad_queues, reset),
		cmocka_unit_test_setup(bind__refused, reset),
		cmocka_unit_test_setup(bind__kernel_without, reset),
		cmocka_unit_test_setup(bind__spoilt_answers, reset),
		cmocka_unit_test_setup(bind__most_queues, reset),
		cmocka_unit_test(bind__not_of_a_child),
	};

	if (argc > 1 && !strcmp(argv[1], "kernel"))
		return kernel_main();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
