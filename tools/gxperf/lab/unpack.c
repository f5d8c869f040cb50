// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf unpack: fragments scattered in a pool, copied to their places in every mode, side by side.
 * The limit (one contiguous copy by the driver) is measured in the same run. The destination is
 * poisoned before each result, and all of it compared after it.
 */
#include "gxperf/lab/bench.h"
#include "gxperf/lab/lab.h"

#include <gxlab/modes.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define UNPACK_CHUNK_B	  (512u << 10)
#define UNPACK_SLOW_FRAGS 16384 /* in a mode with a driver call for each fragment */
#define UNPACK_BLOCKS_MAX 2048
#define UNPACK_LATENCY_NR 1000
#define UNPACK_LINE	  128u
#define UNPACK_AMONG	  64 /* fragments are shuffled among so many */

/* In the order of their rows. */
static const enum gx_unpack_mode unpack_modes[] = {
	GX_UNPACK_MODE_KERNEL,
	GX_UNPACK_MODE_RESIDENT,
	GX_UNPACK_MODE_D2D,
	GX_UNPACK_MODE_NONE,
};
#define UNPACK_MODES (sizeof(unpack_modes) / sizeof(unpack_modes[0]))

static struct {
	int device;
	struct opt_list sizes, sms;
	uint32_t align, block, launch, n;
	uint64_t total;
	enum gx_unpack_mode mode[UNPACK_MODES];
	unsigned nr_modes; /* of mode; 0: all */
	bool crc;
} opts = {.sizes = {{1392, 4096, 8192, 8944, 1391}, 5},
	  .sms = {{0}, 1},
	  .block = GX_ENGINE_FRAGS_MAX,
	  .launch = GX_ENGINE_BLOCKS_MAX,
	  .n = 16,
	  .total = 1ull << 30};

enum {
	KEY_DEVICE = 650,
	KEY_SIZES,
	KEY_SMS,
	KEY_ALIGN,
	KEY_BLOCK,
	KEY_LAUNCH,
	KEY_TOTAL,
	KEY_MODE,
	KEY_CRC,
};

static const struct argp_option unpack_options[] = {
	{"device", KEY_DEVICE, "N", 0, "CUDA device, -1: the CPU; default 0", 1},
	{"sizes", KEY_SIZES, "LIST", 0, "Bytes of a fragment; default 1392,4096,8192,8944,1391", 1},
	{"sms", KEY_SMS, "LIST", 0, "Bounds on SMs; 0: the default", 1},
	{"align", KEY_ALIGN, "N", 0, "Bytes past a 128-byte line where fragments begin; default 0",
	 1},
	{"block", KEY_BLOCK, "N", 0, "Fragments of a block; default 2048", 1},
	{"launch", KEY_LAUNCH, "N", 0, "Blocks of a launch; default 16", 1},
	{"total", KEY_TOTAL, "SIZE", 0, "Bytes of one pass; default 1G", 1},
	{"unpack", KEY_MODE, "MODE", 0, "kernel, resident, d2d, none; may be repeated; default all",
	 1},
	{"crc", KEY_CRC, NULL, 0, "Check the CRC-32C of each fragment while copying: kernel", 1},
	{NULL, 'n', "N", 0, "Passes; default 16", 1},
	{0},
};

static bool mode_is_asked(enum gx_unpack_mode mode)
{
	for (unsigned i = 0; i < opts.nr_modes; i++)
		if (opts.mode[i] == mode)
			return true;
	return !opts.nr_modes;
}

static int mode_parse(const char *arg)
{
	enum gx_unpack_mode mode;

	if (opt_unpack(arg, &mode) || mode == GX_UNPACK_MODE_AUTO || mode == GX_UNPACK_MODE_HOST)
		return -EINVAL;
	if (!opts.nr_modes || !mode_is_asked(mode))
		opts.mode[opts.nr_modes++] = mode;
	return 0;
}

static const struct opt_value unpack_values[] = {
	{KEY_DEVICE, OPT_DEVICE, &opts.device},
	{KEY_SIZES, OPT_LIST, &opts.sizes},
	{KEY_SMS, OPT_LIST, &opts.sms},
	{KEY_ALIGN, OPT_U32, &opts.align, 0, UNPACK_LINE - 1},
	{KEY_BLOCK, OPT_U32, &opts.block, 1, GX_ENGINE_FRAGS_MAX},
	{KEY_LAUNCH, OPT_U32, &opts.launch, 1, GX_ENGINE_BLOCKS_MAX},
	{KEY_TOTAL, OPT_SIZE, &opts.total, 0, 2u << 30},
	{KEY_MODE, OPT_CALL, .parse = mode_parse},
	{KEY_CRC, OPT_FLAG, &opts.crc},
	{'n', OPT_U32, &opts.n, 1, 10000},
	{0},
};

static error_t unpack_parse(int key, char *arg, struct argp_state *state)
{
	return opt_parse(unpack_options, unpack_values, key, arg, state);
}

const struct argp perf_unpack_argp = {.options = unpack_options, .parser = unpack_parse};

/* One size in one mode with one bound on SMs. */
struct unpack {
	struct bench b;
	enum gx_unpack_mode mode;
	uint32_t len, stride, nr, nr_blocks;
	uint32_t *slot; /* [nr]: place of fragment i */
	struct gx_engine_block *block[UNPACK_BLOCKS_MAX];
	uint32_t *crc; /* [nr]: CRC of each fragment, or NULL */
	double limit;  /* GB/s of one contiguous copy of the same bytes */
};

static size_t unpack_bytes(const struct unpack *u)
{
	return (size_t)u->nr * u->len;
}

static uint32_t unpack_src(const struct unpack *u, uint32_t i)
{
	return u->slot[i] * u->stride + opts.align;
}

/* Put fragments [@first, @first + @n) into @b. */
static int unpack_block_fill(const struct unpack *u, struct gx_engine_block *b, uint32_t first,
			     uint32_t n)
{
	struct gx_frag *frag = gx_engine_block_frags(b);

	for (uint32_t i = 0; i < n; i++)
		frag[i] = (struct gx_frag){unpack_src(u, first + i), u->len,
					   (uint64_t)(first + i) * u->len};
	gx_engine_block_set(b, u->b.dev[0], u->b.dev[1], unpack_bytes(u), n);
	return u->crc ? gx_engine_block_check(b, u->crc + first) : 0;
}

/* CRC-32C of each fragment, in the order of the destination. */
static int unpack_crc(struct unpack *u)
{
	uint32_t table[256];

	u->crc = malloc(u->nr * sizeof(*u->crc));
	if (!u->crc)
		return PERF_FAILED;
	for (uint32_t i = 0; i < 256; i++) {
		table[i] = i;
		for (unsigned bit = 0; bit < 8; bit++)
			table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0x82f63b78u : 0);
	}
	for (uint32_t i = 0; i < u->nr; i++) {
		const uint8_t *p = u->b.host + unpack_src(u, i);
		uint32_t c = ~0u;

		for (uint32_t k = 0; k < u->len; k++)
			c = c >> 8 ^ table[(c ^ p[k]) & 255];
		u->crc[i] = ~c;
	}
	return PERF_OK;
}

static int unpack_blocks(struct unpack *u, uint32_t per)
{
	int ret = 0;

	u->nr_blocks = (u->nr + per - 1) / per;
	for (uint32_t i = 0; i < u->nr_blocks && !ret; i++) {
		uint32_t left = u->nr - i * per;

		ret = gx_engine_block_open(u->b.engine, &u->block[i]);
		if (!ret)
			ret = unpack_block_fill(u, u->block[i], i * per, left < per ? left : per);
	}
	return ret ? bench_failed(&u->b, "blocks", ret) : PERF_OK;
}

static void unpack_close(struct unpack *u)
{
	for (uint32_t i = 0; i < u->nr_blocks; i++)
		gx_engine_block_close(u->block[i]);
	free(u->slot);
	free(u->crc);
	bench_close(&u->b);
}

static int unpack_open(struct unpack *u, enum gx_unpack_mode mode, uint32_t len, unsigned sms,
		       struct report *report)
{
	uint64_t room, frags = opts.total / len;
	struct bench_want want = {.device = opts.device, .unpack = mode, .sms = sms};
	int ret;

	*u = (struct unpack){.len = len, .mode = mode};
	u->stride = (len + opts.align + UNPACK_LINE - 1) / UNPACK_LINE * UNPACK_LINE;
	if (frags > (uint64_t)UNPACK_BLOCKS_MAX * opts.block)
		frags = (uint64_t)UNPACK_BLOCKS_MAX * opts.block;
	if (frags * u->stride > UINT32_MAX)
		frags = UINT32_MAX / u->stride;
	if (mode == GX_UNPACK_MODE_D2D && frags > UNPACK_SLOW_FRAGS)
		frags = UNPACK_SLOW_FRAGS;
	u->nr = (uint32_t)frags;
	room = (uint64_t)u->nr * u->stride + UNPACK_LINE;
	want.host_b = want.back_b = room;
	want.dev_b[0] = want.dev_b[1] = room;
	u->slot = malloc(u->nr * sizeof(*u->slot));
	ret = u->slot ? bench_open(&want, report, &u->b) : PERF_FAILED;
	if (ret)
		return ret;
	bench_fill(u->b.host, room, len);
	bench_shuffle(u->slot, u->nr, UNPACK_AMONG, 7);
	if (opts.crc && unpack_crc(u))
		return PERF_FAILED;
	return bench_copy(&u->b, u->b.dev[0], u->b.host, room);
}

static int unpack_poison(struct unpack *u)
{
	memset(u->b.back, 0xa5, unpack_bytes(u));
	return bench_copy(&u->b, u->b.dev[1], u->b.back, unpack_bytes(u));
}

static uint64_t unpack_check(struct unpack *u, struct report_row *row)
{
	if (bench_copy(&u->b, u->b.back, u->b.dev[1], unpack_bytes(u)))
		return u->nr;
	row->checked = true;
	row->checked_b = unpack_bytes(u);
	for (uint32_t i = 0; i < u->nr; i++)
		row->wrong += memcmp(u->b.back + (size_t)i * u->len, u->b.host + unpack_src(u, i),
				     u->len) != 0;
	return row->wrong;
}

static int block_wait(struct unpack *u, const struct gx_engine_block *b)
{
	int ret;

	while ((ret = gx_engine_block_status(b)) == -EINPROGRESS) {
		int fault = gx_engine_poll(u->b.q);

		if (fault)
			return fault;
	}
	return ret;
}

/* Queue all blocks @n times, @at_once in a launch. A block is queued again when it has ended. */
static int unpack_run(struct unpack *u, uint32_t n, uint32_t at_once, uint64_t *ns,
		      uint64_t *cpu_ns)
{
	uint64_t start = gx_now(), before;
	int ret = 0;

	*cpu_ns = 0;
	for (uint64_t at = 0, end = (uint64_t)n * u->nr_blocks; at < end && !ret;) {
		uint32_t first = at % u->nr_blocks, k = u->nr_blocks - first;
		unsigned took;

		k = k < at_once ? k : at_once;
		for (uint32_t i = 0; i < k && !ret && at >= u->nr_blocks; i++)
			ret = block_wait(u, u->block[first + i]);
		before = gx_now();
		took = gx_engine_unpack(u->b.q, u->block + first, k);
		if (took) /* else the call waits for the GPU */
			*cpu_ns += gx_now() - before;
		at += took;
		if (!took && !ret)
			ret = gx_engine_poll(u->b.q);
	}
	for (uint32_t i = 0; i < u->nr_blocks && !ret; i++)
		ret = block_wait(u, u->block[i]);
	*ns = gx_now() - start;
	return ret;
}

/* One chunk at a time, with a wait for each. */
static int unpack_latency(struct unpack *u, struct hist *hist)
{
	uint32_t per = UNPACK_CHUNK_B / u->len + 1,
		 n = u->mode == GX_UNPACK_MODE_D2D ? 50 : UNPACK_LATENCY_NR;
	struct gx_engine_block *b;
	int ret;

	per = per < u->nr ? per : u->nr;
	per = per < GX_ENGINE_FRAGS_MAX ? per : GX_ENGINE_FRAGS_MAX;
	ret = gx_engine_block_open(u->b.engine, &b);
	if (ret)
		return ret;
	ret = unpack_block_fill(u, b, 0, per);
	for (uint32_t i = 0; i < n && !ret; i++) {
		uint64_t start = gx_now();

		if (gx_engine_unpack(u->b.q, &b, 1) != 1)
			ret = -EAGAIN;
		else
			ret = block_wait(u, b);
		hist_record(hist, gx_now() - start);
	}
	gx_engine_block_close(b);
	return ret;
}

static int unpack_measure(struct unpack *u)
{
	struct report_row row = bench_row(opt_unpack_text(u->mode), u->len, u->nr);
	static struct hist hist;
	uint64_t ns = 1, cpu_ns = 0;
	int ret = unpack_poison(u);

	hist_reset(&hist);
	if (!ret)
		ret = unpack_run(u, 1, opts.launch, &ns, &cpu_ns);
	if (!ret)
		ret = unpack_run(u, opts.n, opts.launch, &ns, &cpu_ns);
	if (!ret)
		ret = unpack_latency(u, &hist);
	if (ret)
		return bench_failed(&u->b, row.op, ret);
	perf_row_hist(&row, &hist);
	row.gb_s = (double)unpack_bytes(u) * opts.n / (double)ns;
	row.sms = (int)u->b.info.sms;
	if (u->limit > 0 && u->mode != GX_UNPACK_MODE_NONE)
		row.share = row.gb_s / u->limit;
	row.cpu_us = (double)cpu_ns / 1e3 / ((double)unpack_bytes(u) * opts.n / UNPACK_CHUNK_B);
	if (u->mode != GX_UNPACK_MODE_NONE)
		unpack_check(u, &row);
	report_row(u->b.report, &row);
	return row.wrong ? PERF_WRONG : PERF_OK;
}

static double unpack_limit(struct unpack *u)
{
	double gb_s = bench_copy_rate(&u->b, u->b.dev[1], u->b.dev[0], unpack_bytes(u), opts.n);
	struct report_row row = bench_row("d2d-contiguous", unpack_bytes(u), opts.n);

	row.gb_s = gb_s;
	report_row(u->b.report, &row);
	return gb_s;
}

static int unpack_size(uint32_t len, unsigned sms, struct report *report)
{
	double limit = 0;
	int ret = PERF_OK;

	report_section(
		report,
		"fragments of %u bytes in a pool in %s memory, %u bytes past a line, shuffled "
		"among %u; mode none copies nothing: what descriptors cost by themselves",
		len, opts.device < 0 ? "host" : "GPU", opts.align, UNPACK_AMONG);
	for (unsigned i = 0; i < UNPACK_MODES && !ret; i++) {
		enum gx_unpack_mode mode = unpack_modes[i];
		struct unpack u;

		if (!mode_is_asked(mode))
			continue;
		ret = unpack_open(&u, mode, len, sms, report);
		if (!ret && !limit)
			limit = unpack_limit(&u);
		u.limit = limit;
		if (!ret)
			ret = unpack_blocks(&u, opts.block);
		if (!ret)
			ret = unpack_measure(&u);
		unpack_close(&u);
	}
	return ret;
}

int perf_unpack(const struct perf_opts *unused, struct report *report)
{
	int ret = PERF_OK;

	for (unsigned k = 0; k < opts.sms.n && !ret; k++)
		for (unsigned i = 0; i < opts.sizes.n && !ret; i++) {
			if (!opts.sizes.v[i] || opts.sizes.v[i] > opts.total) {
				report_error(report, "--sizes: %u is not from 1 to --total",
					     opts.sizes.v[i]);
				return PERF_USAGE;
			}
			ret = unpack_size(opts.sizes.v[i], opts.sms.v[k], report);
		}
	return ret;
}
