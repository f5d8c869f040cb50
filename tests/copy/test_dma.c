/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dma.c over the CPU backend, whose copies finish late: what is told ended has ended, ends are told
 * in groups, and a backend that does not finish is an error, not a wait.
 */
#include "copy/dma_rig.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define LEN ((size_t)9 << 20) /* one bulk copy */

static int setup(void **state)
{
	*state = rig_open(LEN, DMA_CE);
	return 0;
}

static struct dma_ticket begin(struct rig *r, size_t off, size_t len, uint64_t now_ns)
{
	struct dma_ticket t;

	assert_true(dma_copy(r->d, r->dst + off, r->src + off, len, DMA_LONE, now_ns, &t));
	return t;
}

static void dma_done__when_the_bytes_are_there(void **state)
{
	struct rig *r = *state;
	struct dma_ticket t = begin(r, 100, 1000, 0);

	assert_false(dma_done(r->d, t));
	dma_kick(r->d, 0);
	assert_false(dma_reap(r->d, DELAY - 1));
	assert_false(dma_done(r->d, t));
	assert_true(dma_reap(r->d, DELAY));
	assert_true(dma_done(r->d, t));
	assert_memory_equal(r->dst + 100, r->src + 100, 1000);
	assert_int_equal(r->dst[99], 0);
	assert_int_equal(r->dst[1100], 0);
}

static void dma_done__without_a_kick(void **state)
{
	struct rig *r = *state;
	struct dma_ticket t = begin(r, 0, 10, 0);

	dma_reap(r->d, 1); /* tells of it */
	assert_true(dma_reap(r->d, 1 + DELAY));
	assert_true(dma_done(r->d, t));
}

/* Those that are begun while an end is awaited are told of together, by the one flag after it. */
static void dma_kick__tells_in_groups(void **state)
{
	struct dma_ticket t[3 * (DMA_STREAMS - 1)];
	struct rig *r = *state;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(t); i++) {
		t[i] = begin(r, i * 64, 64, 0);
		dma_kick(r->d, 0);
	}
	dma_reap(r->d, DELAY);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(t); i++)
		assert_int_equal(dma_done(r->d, t[i]), i < DMA_STREAMS - 1);
	dma_reap(r->d, 2 * DELAY);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(t); i++)
		assert_true(dma_done(r->d, t[i]));
	assert_memory_equal(r->dst, r->src, GX_ARRAY_SIZE(t) * 64);
}

static void dma_copy__full(void **state)
{
	struct rig *r = *state;
	struct dma_ticket t;
	unsigned n = 0;

	while (n < 1000 && dma_copy(r->d, r->dst + n, r->src + n, 1, DMA_LONE, 0, &t))
		n++;
	assert_int_equal(n, (DMA_STREAMS - 1) * DMA_OUT_MAX);
	for (uint64_t now_ns = 0; now_ns <= 4 * DELAY; now_ns += DELAY)
		dma_reap(r->d, now_ns);
	assert_true(dma_done(r->d, t));
	assert_memory_equal(r->dst, r->src, n);
	begin(r, 0, 1, 5 * DELAY);
}

static void dma_copy__long_ones_keep_apart(void **state)
{
	struct rig *r = *state;
	struct dma_ticket t = begin(r, 0, LEN, 0);

	assert_int_equal(t.stream, 0);
	assert_int_not_equal(begin(r, 0, 10, 0).stream, 0);
	dma_kick(r->d, 0);
	dma_reap(r->d, DELAY);
	assert_true(dma_done(r->d, t));
	assert_memory_equal(r->dst, r->src, LEN);
}

/* A GPU that takes longer than it may. */
static void too_slow(struct rig *r, enum dma_by how)
{
	struct dma_ticket t;
	struct gx_gpu *slow;
	struct dma *d;

	assert_int_equal(late_gpu_open(10 * TIMEOUT, &slow), 0);
	assert_int_equal(dma_open(slow, how, TIMEOUT, &d), 0);
	assert_true(
		dma_copy(d, r->dst, r->src, 10, DMA_LONE, 0, &t)); /* by a clock that has stood */
	dma_reap(d, 5 + TIMEOUT);
	dma_reap(d, 4 + TIMEOUT); /* by an older clock */
	dma_reap(d, 5 + 2 * TIMEOUT);
	assert_int_equal(dma_err(d), 0);
	dma_reap(d, 6 + 2 * TIMEOUT);
	assert_int_equal(dma_err(d), -ETIMEDOUT);
	assert_false(dma_done(d, t));
	assert_false(dma_copy(d, r->dst, r->src, 10, DMA_LONE, 6 + 2 * TIMEOUT, &t));
	dma_close(d);
	gx_gpu_host_ops.close(slow);
}

static void dma_err__does_not_finish(void **state)
{
	too_slow(*state, DMA_CE);
}

static void dma_err__of_the_resident_kernel(void **state)
{
	too_slow(*state, DMA_RESIDENT);
}

static void dma_copy__by_the_resident_kernel(void **state)
{
	struct rig *r = *state;
	struct dma_ticket t[40], big;
	unsigned n = 0;
	struct dma *d;

	assert_int_equal(dma_open(r->gpu, DMA_RESIDENT, TIMEOUT, &d), 0);
	while (n < GX_ARRAY_SIZE(t)) {
		assert_true(dma_copy(d, r->dst + n * 64, r->src + n * 64, 64, DMA_LONE, 0, &t[n]));
		if (t[n].stream != DMA_STREAMS)
			break; /* so many are enough: a copy engine takes this one */
		n++;
	}
	assert_int_equal(n, 32);
	assert_true(dma_copy(d, r->dst + 4096, r->src + 4096, 65537, DMA_LONE, 0, &big));
	assert_true(big.stream < DMA_STREAMS);
	for (unsigned i = 0; i <= n; i++)
		assert_false(dma_done(d, t[i]));
	dma_kick(d, 0);
	dma_reap(d, DELAY);
	dma_reap(d, 2 * DELAY);
	for (unsigned i = 0; i <= n; i++)
		assert_true(dma_done(d, t[i]));
	assert_true(dma_done(d, big));
	assert_memory_equal(r->dst, r->src, (n + 1) * 64);
	for (unsigned i = 0; i < 100; i++) { /* round the ring of flags */
		assert_true(dma_copy(d, r->dst, r->src + i, 64, DMA_LONE, 9 * DELAY, &t[0]));
		assert_int_equal(t[0].stream, DMA_STREAMS);
		assert_false(dma_done(d, t[0]));
		dma_reap(d, 10 * DELAY);
		assert_true(dma_done(d, t[0]));
	}
	dma_close(d);
}

/* Begun copies go in one launch; launches end in order. */
static void dma_copy__by_launched_kernels(void **state)
{
	struct rig *r = *state;
	struct dma_ticket t[64], one;
	struct dma *d;

	assert_int_equal(dma_open(r->gpu, DMA_KERNEL, TIMEOUT, &d), 0);
	for (unsigned i = 0; i < 64; i++)
		assert_true(dma_copy(d, r->dst + i * 64, r->src + i * 64, 64, 0, 0, &t[i]));
	dma_kick(d, 0);
	assert_false(dma_reap(d, DELAY - 1));
	assert_false(dma_done(d, t[0]));
	assert_true(dma_reap(d, DELAY));
	for (unsigned i = 0; i < 64; i++)
		assert_true(dma_done(d, t[i]));
	assert_memory_equal(r->dst, r->src, 64 * 64);
	for (unsigned i = 0; i < 200; i++) { /* round the ring; a kick is not needed */
		uint64_t now_ns = (2 + 2ull * i) * DELAY;

		assert_true(dma_copy(d, r->dst + i, r->src + 2 * i, LEN / 4, 0, now_ns, &one));
		assert_false(dma_reap(d, now_ns));
		assert_true(dma_done(d, t[63]));
		assert_false(dma_done(d, one));
		assert_true(dma_reap(d, now_ns + DELAY));
		assert_true(dma_done(d, one));
	}
	assert_memory_equal(r->dst + 199, r->src + 398, LEN / 4);
	dma_close(d);
}

/* Short copies of many go in one launch, in mode auto alone; a copy engine has the others. */
static void dma_copy__many_share_a_launch(void **state)
{
	static const enum dma_by by[] = {DMA_AUTO, DMA_CE, DMA_RESIDENT};
	struct rig *r = *state;

	for (unsigned k = 0; k < GX_ARRAY_SIZE(by); k++) {
		struct dma_ticket t[100], other, long_one;
		struct dma *d;

		memset(r->dst, 0, LEN);
		assert_int_equal(dma_open(r->gpu, by[k], TIMEOUT, &d), 0);
		for (unsigned i = 0; i < 100; i++) { /* of 1 to 100 bytes */
			if (!dma_copy(d, r->dst + 128 * i, r->src + 64 * i, i + 1, DMA_MANY, 0,
				      &t[i]))
				break;
			assert_int_equal(t[i].stream == DMA_STREAMS + 1, by[k] == DMA_AUTO);
			if (by[k] != DMA_AUTO)
				break;
			assert_int_equal(t[i].seq, t[0].seq);
			assert_int_equal(r->dst[128 * i], 0);
		}
		assert_true(dma_copy(d, r->dst + LEN / 2, r->src, 9, 0, 0, &other));
		assert_true(dma_copy(d, r->dst + LEN / 2, r->src, DMA_MANY_B + 1, DMA_MANY, 0,
				     &long_one));
		assert_true(long_one.stream < DMA_STREAMS);
		assert_true(other.stream < DMA_STREAMS || by[k] == DMA_RESIDENT);
		dma_kick(d, 0);
		dma_reap(d, DELAY);
		dma_reap(d, 2 * DELAY);
		assert_true(dma_done(d, t[0]) && dma_done(d, other) && dma_done(d, long_one));
		for (unsigned i = 0; by[k] == DMA_AUTO && i < 100; i++) {
			assert_memory_equal(r->dst + 128 * i, r->src + 64 * i, i + 1);
			assert_int_equal(r->dst[128 * i + i + 1], 0);
		}
		dma_close(d);
	}
}

/* A block spans sources of 4 GiB: others take another one, and a copy over the border is divided. */
static void dma_copy__sources_far_apart(void **state)
{
	const uint64_t span = 1ull << 32;
	struct rig *r = *state;
	struct dma_ticket t[4];
	struct dma *d;
	char *far = mmap(NULL, 3 * span, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char *border = (char *)(((uintptr_t)far / span + 1) * span);

	assert_ptr_not_equal(far, MAP_FAILED);
	memcpy(border - 40, r->src, 100);
	memcpy(border + span, r->src + 100, 100);
	assert_int_equal(dma_open(r->gpu, DMA_AUTO, TIMEOUT, &d), 0);
	assert_true(dma_copy(d, r->dst, border - 40, 30, DMA_MANY, 0, &t[0]));
	assert_true(dma_copy(d, r->dst + 100, border + span, 100, DMA_MANY, 0, &t[1]));
	assert_true(dma_copy(d, r->dst + 30, border - 10, 70, DMA_MANY, 0, &t[2]));
	assert_true(dma_copy(d, r->dst + 200, border - 20, 20, DMA_MANY, 0, &t[3]));
	assert_int_equal(t[1].seq, t[0].seq + 1);
	assert_int_equal(t[2].seq, t[0].seq + 2);
	assert_int_equal(t[3].seq, t[0].seq);
	dma_kick(d, 0);
	dma_reap(d, DELAY);
	for (unsigned i = 0; i < 4; i++)
		assert_true(dma_done(d, t[i]));
	assert_memory_equal(r->dst, r->src, 200);
	assert_memory_equal(r->dst + 200, r->src + 20, 20);
	dma_close(d);
	munmap(far, 3 * span);
}

/* Blocks that wait for a launch or its end are bounded; a copy that finds none does nothing. */
static void dma_copy__many_until_full(void **state)
{
	struct rig *r = *state;
	struct dma_ticket t, last = {0};
	unsigned n = 0;
	struct dma *d;

	assert_int_equal(dma_open(r->gpu, DMA_AUTO, TIMEOUT, &d), 0);
	while (n < 1u << 17 &&
	       dma_copy(d, r->dst + n % 100, r->src + n % 100, 1, DMA_MANY, 0, &t)) {
		last = t;
		n++;
	}
	assert_in_range(n, 15 * GX_BLOCK_DESCS_MAX, 16 * GX_BLOCK_DESCS_MAX);
	assert_int_equal(last.seq, 16);
	assert_int_equal(r->dst[0], 0);
	dma_kick(d, 0);
	assert_false(dma_copy(d, r->dst, r->src, 1, DMA_MANY, 0, &t));
	assert_true(dma_reap(d, DELAY));
	assert_true(dma_done(d, last));
	assert_memory_equal(r->dst, r->src, 100);
	assert_true(dma_copy(d, r->dst, r->src, 1, DMA_MANY, 0, &t));
	assert_int_equal(t.seq, 17);
	assert_false(dma_done(d, t));
	dma_close(d);
}

static void dma_err__of_a_launched_kernel(void **state)
{
	struct rig *r = *state;
	struct dma_ticket t;
	struct gx_gpu *slow;
	struct dma *d;

	assert_int_equal(late_gpu_open(10 * TIMEOUT, &slow), 0);
	assert_int_equal(dma_open(slow, DMA_KERNEL, TIMEOUT, &d), 0);
	assert_true(dma_copy(d, r->dst, r->src, 10, DMA_LONE, 0, &t));
	dma_reap(d, 5);
	dma_reap(d, 5 + TIMEOUT);
	assert_int_equal(dma_err(d), 0);
	dma_reap(d, 6 + TIMEOUT);
	assert_int_equal(dma_err(d), -ETIMEDOUT);
	assert_false(dma_done(d, t));
	assert_false(dma_copy(d, r->dst, r->src, 10, DMA_LONE, 6 + TIMEOUT, &t));
	dma_close(d);
	gx_gpu_host_ops.close(slow);
}

static void dma_time__both_ways(void **state)
{
	uint32_t ce = 0, resident = 0;
	struct rig *r = *state;

	assert_int_equal(dma_time(r->gpu, r->dst, r->src, 1000000000, &ce, &resident), 0);
	assert_true(ce >= DELAY && resident >= DELAY);
	assert_memory_equal(r->dst, r->src, DMA_TRY_B);
	assert_int_equal(r->dst[DMA_TRY_B], 0);
}

static void dma_time__does_not_end(void **state)
{
	uint32_t ce = 0, resident = 0;
	struct rig *r = *state;
	struct gx_gpu *slow;

	assert_int_equal(late_gpu_open(100 * TIMEOUT, &slow), 0);
	assert_int_equal(dma_time(slow, r->dst, r->src, TIMEOUT, &ce, &resident), -ETIMEDOUT);
	gx_gpu_host_ops.close(slow);
}

/* Where the kernel was found to be faster, and only there: two are alone, more are not, and for a
 * while those that are do not count as alone. */
static void dma_copy__alone(void **state)
{
	struct rig *r = *state;

	for (unsigned lone = 0; lone < 2; lone++) {
		struct dma_ticket t[8];
		struct dma *d;

		assert_int_equal(dma_open(r->gpu, DMA_AUTO, 1000000000, &d), 0);
		for (unsigned i = 0; i < 8; i++)
			assert_true(dma_copy(d, r->dst + i, r->src + i, 1, lone ? DMA_LONE : 0,
					     1ull << 62, &t[i]));
		for (unsigned i = 0; i < 8; i++)
			assert_int_equal(t[i].stream == DMA_STREAMS, lone && i < 2);
		for (unsigned i = 0; i < 200; i++) {
			uint64_t now_ns = (1ull << 62) + (i + 1) * 10 * DELAY;

			for (unsigned k = 0; k < 4; k++)
				dma_reap(d, now_ns + k * DELAY);
			assert_true(dma_copy(d, r->dst, r->src, 1, lone ? DMA_LONE : 0,
					     now_ns + 4 * DELAY, &t[0]));
			assert_int_equal(t[0].stream == DMA_STREAMS, lone && i >= 63);
		}
		dma_close(d);
	}
}

static int copy_refused(struct gx_gpu_stream *s, const struct gx_gpu_copy list[], unsigned n,
			uint32_t *done, uint32_t value, uint64_t now_ns)
{
	return -EINVAL;
}

/* What the driver refuses once it will refuse for ever: nobody tries it again. */
static void dma_err__of_a_refused_address(void **state)
{
	static struct gx_gpu_stream_ops refusing;
	struct rig *r = *state;
	struct dma_ticket t;
	struct dma *d;

	refusing = *r->gpu->stream;
	refusing.copy = copy_refused;
	r->gpu->stream = &refusing;
	assert_int_equal(dma_open(r->gpu, DMA_CE, TIMEOUT, &d), 0);
	assert_false(dma_copy(d, r->dst, r->src, 10, DMA_LONE, 0, &t));
	assert_int_equal(dma_err(d), -EIO);
	dma_close(d);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(dma_done__when_the_bytes_are_there),
		TEST(dma_done__without_a_kick),
		TEST(dma_kick__tells_in_groups),
		TEST(dma_copy__full),
		TEST(dma_copy__long_ones_keep_apart),
		TEST(dma_err__does_not_finish),
		TEST(dma_copy__by_the_resident_kernel),
		TEST(dma_time__both_ways),
		TEST(dma_time__does_not_end),
		TEST(dma_copy__alone),
		TEST(dma_copy__by_launched_kernels),
		TEST(dma_copy__many_share_a_launch),
		TEST(dma_copy__sources_far_apart),
		TEST(dma_copy__many_until_full),
		TEST(dma_err__of_a_launched_kernel),
		TEST(dma_err__of_the_resident_kernel),
		TEST(dma_err__of_a_refused_address),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
