/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Modes of the plugin (conf.c, proc.c, reg.c, net.c), over a gx and a driver that are faked: with
 * which options gx is opened, and which memory is registered.
 */
#include "nccl/net.h"
#include "nccl/plug.h"

#include <gx/env.h>
#include <gx/log.h>

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct gx *const some_gx = (struct gx *)(uintptr_t)64;
static struct gx_mem *const some_mem = (struct gx_mem *)(uintptr_t)128;
static struct gx_core *const some_core = (struct gx_core *)(uintptr_t)192;
static struct comm some_comm;
static struct offload some_offload; /* of a receive comm of mode unpack */
static struct {
	struct gx_opts opts; /* of the last gx_open(), and its groups */
	struct gx_host_opts host;
	unsigned nr_open, nr_closed, nr_running, nr_regs, nr_pci;
	bool near_gpu; /* cpus_choose() was told of the GPU */
	enum gx_mem_kind kind;
	int offload_ret; /* of offload_open() */
	unsigned nr_offload;
	int give_ret;	 /* of offload_give() */
	bool asked;	 /* a peer has opened a comm */
	bool was_closed; /* of req_close() */
	unsigned nr_reg_ends;
	bool no_reg; /* NCCL has registered its own buffers */
	char warned[1024];
} fake;

/* ---- gx ---- */

int gx_open(const struct gx_opts *opts, struct gx **out)
{
	fake.opts = *opts;
	fake.host = *opts->host;
	fake.nr_open++;
	*out = some_gx;
	return 0;
}

void gx_close(struct gx *gx)
{
	fake.nr_closed += gx != NULL;
}

int gx_mem_reg(struct gx *gx, enum gx_mem_kind kind, int device, void *addr, uint64_t len,
	       struct gx_mem **out)
{
	fake.kind = kind;
	fake.nr_regs++;
	*out = some_mem;
	return 0;
}

int gx_mem_free(struct gx_mem *mem)
{
	return 0;
}

struct gx_core *gx_core(struct gx *gx, unsigned index)
{
	return some_core;
}

struct gx_queue *gx_core_queue(struct gx_core *core)
{
	return NULL;
}

int gx_core_poller(struct gx_core *core, bool (*fn)(void *arg, uint64_t now_ns), void *arg)
{
	return 0;
}

int gx_core_start(struct gx_core *core)
{
	fake.nr_running++;
	return 0;
}

void gx_core_stop(struct gx_core *core)
{
	fake.nr_running--;
}

int gx_core_stat(const struct gx_core *core, const char *name, uint64_t *value)
{
	return -ENOENT;
}

int gx_listen(struct gx *gx, const char *addr)
{
	return 4711;
}

int gx_env_listen(struct gx *gx, unsigned max, char *list, size_t room)
{
	snprintf(list, room, "10.0.0.1:4711");
	return 4711;
}

int gx_env_addr(const char *want, char addr[GX_ADDR_MAX])
{
	snprintf(addr, GX_ADDR_MAX, "%s", want ? want : "10.0.0.1");
	return 0;
}

const char *gx_error(void)
{
	return "gx says why";
}

const char *gx_version(void)
{
	return "0";
}

uint64_t gx_now(void)
{
	return 0;
}

void gx_log_sink(void (*fn)(void *arg, int level, const char *line), void *arg)
{
}

/* ---- The plugin's other files ---- */

void say_warn(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(fake.warned, sizeof(fake.warned), fmt, ap);
	va_end(ap);
}

void say_info(const char *fmt, ...)
{
}

void say_to(nccl_log_fn log)
{
}

void say_gx(void *arg, int level, const char *line)
{
}

bool gpus_pci(char id[PCI_B])
{
	fake.nr_pci++;
	snprintf(id, PCI_B, "0000:1b:00.0");
	return true;
}

unsigned cpus_choose(const struct conf *c, const char *pci, const cpu_set_t *claimed,
		     int cpus[LANES_MAX])
{
	unsigned nr = c->nr_cores ? c->nr_cores : 2;

	for (unsigned i = 0; i < nr; i++)
		cpus[i] = -1;
	fake.near_gpu = !strcmp(pci, "0000:1b:00.0");
	return nr;
}

void cpus_release(void)
{
}

bool keep_start(void)
{
	return true;
}

void keep_stop(void)
{
}

bool lane_poll(void *lane, uint64_t now_ns)
{
	return false;
}

void lane_flush(void)
{
}

void comm_free(struct comm *c)
{
}

void peer_on_conn(void *arg, struct gx_conn *conn, enum gx_conn_event event, int err,
		  const char *why)
{
}

void meet_on_msg(void *arg, struct gx_conn *conn, const void *data, uint32_t len)
{
}

void meet_drop(const struct life *life)
{
}

int meet_listen(const struct life *life, void *handle, void **listen_comm)
{
	return 0;
}

int meet_connect(const struct life *life, void *handle, void **send_comm)
{
	return 0;
}

int meet_accept(void *listen_comm, void **recv_comm)
{
	*recv_comm = fake.asked ? &some_comm : NULL;
	fake.asked = false;
	return 0;
}

void meet_put_back(void *listen_comm, struct comm *c)
{
	assert_ptr_equal(c, &some_comm);
	fake.asked = true;
}

int meet_close_listen(void *listen_comm)
{
	return 0;
}

int offload_open(struct gx *gx)
{
	fake.nr_offload++;
	return fake.offload_ret;
}

void offload_close(void)
{
}

int offload_give(struct comm *c, struct nccl_dev_handle *dev)
{
	return fake.give_ret;
}

void offload_reg_ends(struct comm *c)
{
	fake.nr_reg_ends++;
}

bool offload_may_reg(struct comm *c)
{
	return !fake.no_reg;
}

int req_isend(void *comm, void *data, uint64_t size, void *mh, void **req)
{
	return 0;
}

int req_irecv(void *comm, void *data, uint64_t size, void *mh, void **req)
{
	return 0;
}

int req_test(void *req, int *done, int *sizes)
{
	return 0;
}

int req_close(void *comm, bool is_send)
{
	fake.was_closed = true;
	return 0;
}

int req_is_ll(void *comm, uint64_t size)
{
	return 0;
}

int req_consumed(void *comm, int n, void *req)
{
	return 0;
}

/* ---- The rig ---- */

static const char *const unpack_vars[][2] = {
	{"NCCL_PAT_ENABLE", "0"},      {"NCCL_LOCAL_REGISTER", "0"}, {"NCCL_GRAPH_REGISTER", "0"},
	{"NCCL_NET_GDR_LEVEL", "SYS"}, {"NCCL_NET_GDR_READ", "0"},
};

static int setup(void **state)
{
	memset(&fake, 0, sizeof(fake));
	memset(&some_comm, 0, sizeof(some_comm));
	unsetenv("GX_NCCL_MODE");
	unsetenv("GX_NCCL_LINK");
	unsetenv("GX_NCCL_PULL");
	unsetenv("GX_NCCL_HELP");
	unsetenv("GX_NCCL_CORES");
	unsetenv("GX_NCCL_CPUS");
	unsetenv("GX_NCCL_DEVICES");
	unsetenv("GX_NCCL_SPEED_MBPS");
	setenv("NCCL_PROTO", "Simple", 1);
	unsetenv("NCCL_NET_OPTIONAL_RECV_COMPLETION");
	unsetenv("NCCL_LL_BUFFSIZE");
	unsetenv("NCCL_LL128_BUFFSIZE");
	conf_ll128_by_default = false;
	return 0;
}

static void fails(const char *word)
{
	void *ctx;

	assert_int_not_equal(proc_open(&ctx, NULL, true), NCCL_OK);
	assert_non_null(strstr(fake.warned, word));
	assert_int_equal(fake.nr_open, fake.nr_closed);
	assert_int_equal(fake.nr_running, 0);
}

static void open_and_reg(int type, int want)
{
	struct nccl_props_v12 p;
	void *ctx, *mh;
	char bytes[8];

	assert_int_equal(proc_open(&ctx, NULL, true), NCCL_OK);
	assert_int_equal(net_props_v12(0, &p), NCCL_OK);
	assert_int_equal(p.ptr_support, NCCL_PTR_HOST);
	assert_int_equal(net_reg_mr(&some_comm, bytes, sizeof(bytes), type, &mh), want);
	assert_int_equal(fake.nr_regs, !want);
	if (!want)
		assert_int_equal(net_dereg_mr(&some_comm, mh), NCCL_OK);
	assert_int_equal(proc_close(ctx), NCCL_OK);
	assert_int_equal(fake.nr_closed, 1);
}

/* As open_and_reg(), of memory that is taken. */
static void open_and_reg_again(int type)
{
	fake.nr_regs = fake.nr_closed = 0;
	open_and_reg(type, NCCL_OK);
	assert_int_equal(fake.kind, GX_MEM_HOST);
}

/* ---- Tests ---- */

static void host__takes_no_gpu(void **state)
{
	setenv("GX_NCCL_MODE", "host", 1);
	open_and_reg(NCCL_PTR_CUDA, NCCL_INVALID_ARGUMENT);
	assert_non_null(strstr(fake.warned, "GX_NCCL_MODE=unpack"));
	assert_null(fake.opts.gpu);
	assert_int_equal(fake.host.local, GX_AUTO);
	open_and_reg_again(NCCL_PTR_HOST);
	setenv("GX_NCCL_LINK", "packet", 1);
	open_and_reg_again(NCCL_PTR_HOST);
	assert_int_equal(fake.host.local, GX_OFF);
}

/* The line names the modes that there are, and says of one that it was removed. */
static void all__refuse_other_modes(void **state)
{
	static const char *const wrong[] = {"cuda", "gpu"};

	for (unsigned i = 0; i < 2; i++) {
		setenv("GX_NCCL_MODE", wrong[i], 1);
		fails("say host or unpack");
		assert_non_null(strstr(fake.warned, wrong[i]));
		assert_true(!strstr(fake.warned, "was removed") == (i == 1));
	}
}

/* Cores go near the GPU of the thread that makes the communicator, unless CPUs are named. */
static void host__cpus(void **state)
{
	void *ctx;

	setenv("GX_NCCL_MODE", "host", 1);
	assert_int_equal(proc_open(&ctx, NULL, true), NCCL_OK);
	assert_int_equal(proc_close(ctx), NCCL_OK);
	assert_true(fake.near_gpu && fake.nr_pci == 1);
	setenv("GX_NCCL_CPUS", "0", 1);
	assert_int_equal(proc_open(&ctx, NULL, true), NCCL_OK);
	assert_int_equal(proc_close(ctx), NCCL_OK);
	assert_true(!fake.near_gpu && fake.nr_pci == 1);
}

/* Does test() help the cores? */
static bool helps(void)
{
	bool does;
	void *ctx;

	assert_int_equal(proc_open(&ctx, NULL, true), NCCL_OK);
	does = plug.lane[0].helped;
	assert_true(!does || plug.lane[0].helped == some_core);
	assert_int_equal(proc_close(ctx), NCCL_OK);
	return does;
}

/* Unless it is told not to, or there is nothing to help with. */
static void host__helps(void **state)
{
	setenv("GX_NCCL_MODE", "host", 1);
	assert_true(helps());
	setenv("GX_NCCL_HELP", "2", 1);
	fails("GX_NCCL_HELP=2");
	setenv("GX_NCCL_HELP", "0", 1);
	assert_false(helps());
	setenv("GX_NCCL_HELP", "1", 1);
	assert_true(helps());
	setenv("GX_NCCL_CORES", "4", 1);
	assert_true(helps());
	unsetenv("GX_NCCL_HELP");
	assert_false(helps());
	setenv("GX_NCCL_CORES", "3", 1);
	assert_true(helps());
	setenv("GX_NCCL_PULL", "off", 1);
	assert_false(helps());
	unsetenv("GX_NCCL_PULL");
	assert_true(helps());
}

/* Whatever the mode. */
static void all__refuse_ll128(void **state)
{
	static const char *const wrong[] = {
		"LL128",   "Simple,ll128",	   "^LL",
		"^Simple", "Simple;broadcast:^LL", "allreduce:LL128;broadcast:LL"};
	static const char *const right[] = {"LL",	 "Simple",
					    "^LL128",	 "ll,simple",
					    "^LL,LL128", "allreduce:LL;broadcast:^LL128"};

	setenv("GX_NCCL_MODE", "host", 1);
	for (unsigned i = 0; i < 6; i++) {
		setenv("NCCL_PROTO", wrong[i], 1);
		fails("NCCL_PROTO=^LL128");
		assert_non_null(strstr(fake.warned, wrong[i]));
		setenv("NCCL_PROTO", right[i], 1);
		assert_true(helps());
	}
	setenv("GX_NCCL_LINK", "tcp", 1);
	setenv("NCCL_PROTO", "LL128", 1);
	fails("NCCL_PROTO=^LL128");
	setenv("GX_NCCL_LINK", "packet", 1);
	setenv("GX_NCCL_PULL", "off", 1);
	fails("NCCL_PROTO=^LL128");
}

/* On Grace NCCL takes LL128 unless it is told not to, for all collectives. */
static void all__ll128_by_default(void **state)
{
	static const char *const wrong[] = {"", "allreduce:Simple",
					    "allreduce:^LL128;broadcast:LL"};
	static const char *const right[] = {"LL", "Simple", "^LL128", "^LL128;allreduce:LL"};

	setenv("GX_NCCL_MODE", "host", 1);
	unsetenv("NCCL_PROTO");
	assert_true(helps());
	conf_ll128_by_default = true;
	fails("set NCCL_PROTO=^LL128 on all ranks");
	for (unsigned i = 0; i < 3; i++) {
		setenv("NCCL_PROTO", wrong[i], 1);
		fails("set NCCL_PROTO=^LL128 on all ranks");
	}
	for (unsigned i = 0; i < 4; i++) {
		setenv("NCCL_PROTO", right[i], 1);
		assert_true(helps());
	}
}

/* Variables of NCCL by which receives of LL128 look like others. */
static void all__ll128_unseen(void **state)
{
	static const char *const hide[][2] = {{"NCCL_NET_OPTIONAL_RECV_COMPLETION", "0"},
					      {"NCCL_LL128_BUFFSIZE", "524288"},
					      {"NCCL_LL_BUFFSIZE", "4915200"}};

	setenv("GX_NCCL_MODE", "host", 1);
	for (unsigned i = 0; i < 3; i++) {
		unsetenv("NCCL_PROTO");
		setenv(hide[i][0], hide[i][1], 1);
		fails(hide[i][0]);
		setenv("NCCL_PROTO", "^LL128", 1);
		assert_true(helps());
		unsetenv(hide[i][0]);
	}
	unsetenv("NCCL_PROTO");
	setenv("NCCL_NET_OPTIONAL_RECV_COMPLETION", "1", 1);
	setenv("NCCL_LL128_BUFFSIZE", "524296", 1);
	assert_true(helps());
}

/* Whatever NCCL's protocols, but LL128: a link that is named, and one that gx chooses. */
static void all__serve_ll(void **state)
{
	static const char *const right[] = {
		"", "LL", "^LL128", "Simple,ll", "allreduce:Simple", "Simple;broadcast:LL"};

	for (unsigned i = 0; i < 6; i++) {
		setenv("NCCL_PROTO", right[i], 1);
		unsetenv("GX_NCCL_LINK");
		assert_true(helps());
		setenv("GX_NCCL_LINK", "tcp", 1);
		assert_true(helps());
	}
}

/* What NCCL is told of the devices: together they are as fast as the cores. */
static void devices(unsigned nr, int mbps)
{
	struct nccl_props_v12 p[DEVICES_MAX], none;
	void *ctx, *mh;
	int n = 0;

	assert_int_equal(proc_open(&ctx, NULL, true), NCCL_OK);
	assert_int_equal(net_devices(&n), NCCL_OK);
	assert_int_equal(n, nr);
	for (unsigned i = 0; i < nr; i++) {
		char name[8];

		snprintf(name, sizeof(name), "gx%u", i);
		assert_int_equal(net_props_v12((int)i, &p[i]), NCCL_OK);
		assert_string_equal(p[i].name, name);
		assert_int_equal(p[i].speed_mbps, mbps);
		for (unsigned k = 0; k < i; k++)
			assert_true(p[i].guid != p[k].guid && p[i].name != p[k].name);
	}
	assert_int_equal(net_props_v12((int)nr, &none), NCCL_INVALID_ARGUMENT);
	assert_non_null(strstr(fake.warned, "the same GX_NCCL_DEVICES on all ranks of a host"));
	fake.warned[0] = 0;
	assert_int_equal(net_connect(ctx, (int)nr, &none, &mh, NULL), NCCL_INVALID_ARGUMENT);
	assert_non_null(strstr(fake.warned, "GX_NCCL_DEVICES"));
	fake.warned[0] = 0;
	assert_int_equal(net_listen(ctx, (int)nr, &none, &mh), NCCL_INVALID_ARGUMENT);
	assert_non_null(strstr(fake.warned, "GX_NCCL_DEVICES"));
	assert_int_equal(net_props_v12(-1, &none), NCCL_INVALID_ARGUMENT);
	assert_int_equal(proc_close(ctx), NCCL_OK);
}

static void host__devices(void **state)
{
	setenv("GX_NCCL_MODE", "host", 1);
	setenv("GX_NCCL_CORES", "2", 1);
	devices(4, 2 * CORE_MBPS / 4);
	setenv("GX_NCCL_CORES", "3", 1);
	devices(4, 3 * CORE_MBPS / 4);
	setenv("GX_NCCL_DEVICES", "1", 1);
	devices(1, 3 * CORE_MBPS);
	setenv("GX_NCCL_DEVICES", "16", 1);
	devices(16, 3 * CORE_MBPS / 16);
	setenv("GX_NCCL_SPEED_MBPS", "1000", 1);
	devices(16, 1000);
	setenv("GX_NCCL_DEVICES", "17", 1);
	fails("GX_NCCL_DEVICES=17");
	setenv("GX_NCCL_DEVICES", "0", 1);
	fails("GX_NCCL_DEVICES=0");
}

/* Closed comms have the room that this one needs: it stays with its listener until they are gone. */
static void accept_later(void)
{
	struct nccl_dev_handle handle, *dev = &handle;
	void *comm;

	fake.asked = true;
	fake.give_ret = -EAGAIN;
	for (unsigned i = 0; i < 3; i++) {
		comm = &fake;
		assert_int_equal(net_accept(&fake, &comm, &dev), NCCL_OK);
		assert_null(comm);
		assert_true(fake.asked && !fake.was_closed);
	}
	fake.give_ret = NCCL_OK;
	assert_int_equal(net_accept(&fake, &comm, &dev), NCCL_OK);
	assert_ptr_equal(comm, &some_comm);
	fake.asked = true;
	fake.give_ret = NCCL_SYSTEM_ERROR;
	assert_int_equal(net_accept(&fake, &comm, &dev), NCCL_SYSTEM_ERROR);
	assert_null(comm);
	assert_true(!fake.asked && fake.was_closed);
}

/* gx opens no GPU. Receive buffers of NCCL are none of gx's. */
static void unpack__options(void **state)
{
	struct nccl_props_v12 p;
	void *ctx, *mh;
	char bytes[8];

	setenv("GX_NCCL_MODE", "unpack", 1);
	setenv("NCCL_PROTO", "Simple", 1);
	for (unsigned i = 0; i < sizeof(unpack_vars) / sizeof(unpack_vars[0]); i++) {
		fails(unpack_vars[i][0]);
		setenv(unpack_vars[i][0], unpack_vars[i][1], 1);
	}
	assert_int_equal(proc_open(&ctx, NULL, true), NCCL_OK);
	assert_int_equal(fake.nr_offload, 1);
	assert_null(fake.opts.gpu);
	assert_int_equal(fake.host.local, GX_AUTO);
	assert_int_equal(fake.host.pull, GX_PULL_AUTO);
	assert_int_equal(net_props_v12(0, &p), NCCL_OK);
	assert_int_equal(p.device_type, NCCL_DEVICE_UNPACK);
	assert_int_equal(p.device_version, NCCL_UNPACK_VERSION);
	assert_int_equal(p.ptr_support, NCCL_PTR_HOST | NCCL_PTR_CUDA);
	assert_int_equal(net_reg_mr(&some_comm, bytes, 8, NCCL_PTR_CUDA, &mh),
			 NCCL_INVALID_ARGUMENT);
	some_comm.offload = &some_offload;
	assert_int_equal(net_reg_mr(&some_comm, bytes, 8, NCCL_PTR_CUDA, &mh), NCCL_OK);
	assert_int_equal(fake.nr_regs, 0);
	assert_int_equal(net_dereg_mr(&some_comm, mh), NCCL_OK);
	assert_int_equal(fake.nr_reg_ends, 1);
	accept_later();
	fake.no_reg = true;
	assert_int_equal(net_reg_mr(&some_comm, bytes, 8, NCCL_PTR_CUDA, &mh), NCCL_INVALID_USAGE);
	assert_int_equal(proc_close(ctx), NCCL_OK);
	fake.offload_ret = NCCL_SYSTEM_ERROR;
	assert_int_equal(proc_open(&ctx, NULL, true), NCCL_SYSTEM_ERROR);
	assert_int_equal(fake.nr_open, fake.nr_closed);
	assert_int_equal(fake.nr_running, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(host__takes_no_gpu, setup),
		cmocka_unit_test_setup(host__helps, setup),
		cmocka_unit_test_setup(all__refuse_other_modes, setup),
		cmocka_unit_test_setup(all__refuse_ll128, setup),
		cmocka_unit_test_setup(all__ll128_by_default, setup),
		cmocka_unit_test_setup(all__ll128_unseen, setup),
		cmocka_unit_test_setup(all__serve_ll, setup),
		cmocka_unit_test_setup(host__devices, setup),
		cmocka_unit_test_setup(host__cpus, setup),
		cmocka_unit_test_setup(unpack__options, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
