// SPDX-License-Identifier: Apache-2.0
/*
 * gxd's work on the bytes of a region: poison, fill, verify, digest, piece by piece. The worker
 * thread calls it. It reads and writes a GPU's region through a piece of host memory, a host region
 * in place.
 */
#include "gxd/serve/region.h"

#include "common/digest.h"
#include "common/json.h"

#define SERVICE_NEWS_NS	    200000000ull /* time between two progress messages of a long request */
#define SERVICE_TURN_PIECES 1024	 /* most of a turn, however small they are */

static void work_tell(struct service_work *work)
{
	uint64_t now = gx_now();

	if (now - work->news_ns < SERVICE_NEWS_NS)
		return;
	work->news_ns = now;
	rpc_send(work->client->conn,
		 js_pack("{s:I, s:I}", "id", work->id, "progress",
			 (long long)(work->slot * work->slots.size + work->at)));
}

static bool region_on_host(const struct service_region *r)
{
	return gx_mem_kind_of(r->mem) == GX_MEM_HOST;
}

static unsigned char *region_addr(const struct service_region *r, uint64_t off)
{
	return (unsigned char *)gx_mem_addr(r->mem) + off;
}

static uint64_t piece_min(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

int region_work_turn(struct service_work *work)
{
	const struct service_slots *s = &work->slots;
	uint64_t done_b = 0;
	int ret = 0;

	work->view_b = 0; /* others had the room */
	for (unsigned i = 0; i < SERVICE_TURN_PIECES && done_b < SERVICE_PIECE_B; i++) {
		uint64_t n = piece_min(SERVICE_PIECE_B, s->size - work->at);

		if (work->slot == s->nr)
			return 0;
		ret = work->piece(work, s->off + work->slot * s->stride + work->at, n);
		if (ret)
			return ret;
		done_b += n;
		work->at += n;
		if (work->at == s->size) {
			done_b += piece_min(s->stride - s->size, SERVICE_PIECE_B); /* its guard */
			work->at = 0;
			work->slot++;
		}
	}
	work_tell(work);
	return 1;
}

/* @len bytes at @off, SERVICE_PIECE_B at most. Small slots of a GPU cost one copy for each piece, not
 * one for each slot. */
static int work_view(struct service_work *work, uint64_t off, uint64_t len,
		     const unsigned char **out)
{
	const struct service_slots *s = &work->slots;
	uint64_t end = s->off + (s->nr - 1) * s->stride + s->size;
	int ret;

	if (region_on_host(work->region)) {
		*out = region_addr(work->region, off);
		return 0;
	}
	if (off < work->view_off || off + len > work->view_off + work->view_b) {
		work->view_off = off;
		work->view_b = piece_min(SERVICE_PIECE_B, end - off);
		ret = gx_mem_copy_out(work->region->mem, off, work->room, work->view_b);
		if (ret) {
			work->view_b = 0;
			return ret;
		}
	}
	*out = work->room + (off - work->view_off);
	return 0;
}

int region_poison(struct service_work *work, uint64_t off, uint64_t n)
{
	if (region_on_host(work->region)) {
		check_poison(region_addr(work->region, off), n);
		return 0;
	}
	check_poison(work->room, n);
	return gx_mem_copy_in(work->region->mem, off, work->room, n);
}

/* The pattern is made elsewhere and copied, so a client that reads the same content meanwhile sees nothing
 * else. A piece begins at a multiple of CHECK_PAGE_B of its slot. */
int region_fill(struct service_work *work, uint64_t off, uint64_t n)
{
	if (!n)
		return 0;
	check_pattern(work->room, n, off, work->slots.seed);
	check_stamp(work->room, n, 0, check_stamps(n), work->slots.iter + work->slot);
	return gx_mem_copy_in(work->region->mem, off, work->room, n);
}

/* The bytes between a slot and the next must still be poison. */
static int verify_guard(struct service_work *work)
{
	const struct service_slots *s = &work->slots;
	uint64_t off = s->off + work->slot * s->stride + s->size;
	uint64_t len = piece_min(s->stride - s->size, SERVICE_PIECE_B);
	const unsigned char *got;
	int ret;

	if (work->slot + 1 == s->nr || !len)
		return 0;
	ret = work_view(work, off, len, &got);
	if (!ret)
		check_guard(got, len, off, &work->res);
	return ret;
}

int region_verify(struct service_work *work, uint64_t off, uint64_t n)
{
	const struct service_slots *s = &work->slots;
	const unsigned char *got;
	int ret = work_view(work, off, n, &got);

	if (!ret && n)
		check_piece(got, n, work->at, off - work->at, s->seed, s->iter + work->slot,
			    &work->res);
	return !ret && work->at + n == s->size ? verify_guard(work) : ret;
}

int region_sha256(struct service_work *work, uint64_t off, uint64_t n)
{
	const unsigned char *got;
	int ret = work_view(work, off, n, &got);

	return ret ? ret : digest_add(work->digest, got, n);
}
