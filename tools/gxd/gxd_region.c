// SPDX-License-Identifier: Apache-2.0
/*
 * gxd's work on the bytes of a region: poison, fill, verify, digest. The worker thread calls it. It
 * works in pieces, and looks between them whether the client is gone. It reads and writes a GPU's
 * region through a piece of host memory, a host region in place.
 */
#include "gxd/gxd_region.h"

#include "common/digest.h"
#include "common/json.h"

#include <errno.h>

#define SERVICE_NEWS_NS 200000000ull /* time between two progress messages of a long request */

/* Call it between two pieces. Return: 0; -ECANCELED: the client is gone. */
static int work_on(struct service_work *work, uint64_t done_b)
{
	uint64_t now;

	if (atomic_load_explicit(&work->client->down, memory_order_acquire))
		return -ECANCELED;
	now = gx_now();
	if (now - work->news_ns < SERVICE_NEWS_NS)
		return 0;
	work->news_ns = now;
	rpc_send(work->client->conn,
		 js_pack("{s:I, s:I}", "id", work->id, "progress", (long long)done_b));
	return 0;
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

/* Window into a region: @len bytes at @off. With it small slots of a GPU cost one copy for each
 * piece, not one for each slot. */
struct view {
	struct service_work *work;
	const struct service_region *region;
	uint64_t off, len;
	uint64_t end; /* end of the range to read */
};

/* @len is at most SERVICE_PIECE_B. */
static int view_get(struct view *v, uint64_t off, uint64_t len, const unsigned char **out)
{
	int ret;

	if (region_on_host(v->region)) {
		*out = region_addr(v->region, off);
		return 0;
	}
	if (off < v->off || off + len > v->off + v->len) {
		v->off = off;
		v->len = piece_min(SERVICE_PIECE_B, v->end - off);
		ret = gx_mem_copy_out(v->region->mem, v->off, v->work->room, v->len);
		if (ret) {
			v->len = 0;
			return ret;
		}
	}
	*out = v->work->room + (off - v->off);
	return 0;
}

int service_poison(struct service_work *work, const struct service_region *r, uint64_t off,
		   uint64_t len)
{
	int ret = 0;

	if (!region_on_host(r))
		check_poison(work->room, SERVICE_PIECE_B);
	for (uint64_t at = 0, n; at < len && !ret; at += n) {
		n = piece_min(SERVICE_PIECE_B, len - at);
		if (region_on_host(r))
			check_poison(region_addr(r, off + at), n);
		else
			ret = gx_mem_copy_in(r->mem, off + at, work->room, n);
		if (!ret)
			ret = work_on(work, at + n);
	}
	return ret;
}

/* Fill one piece of one slot; @at is a multiple of CHECK_PAGE_B. It is made elsewhere and copied,
 * so a client that reads the same content meanwhile sees nothing else. */
static int fill_piece(struct service_work *work, const struct service_region *r,
		      const struct service_slots *s, uint64_t slot, uint64_t at, uint64_t n)
{
	uint64_t off = s->off + slot * s->stride + at;

	check_pattern(work->room, n, off, s->seed);
	check_stamp(work->room, n, 0, check_stamps(n), s->iter + slot);
	return gx_mem_copy_in(r->mem, off, work->room, n);
}

int service_fill(struct service_work *work, const struct service_region *r,
		 const struct service_slots *s)
{
	int ret = 0;

	for (uint64_t slot = 0; slot < s->nr && !ret; slot++) {
		for (uint64_t at = 0, n; at < s->size && !ret; at += n) {
			n = piece_min(SERVICE_PIECE_B, s->size - at);
			ret = fill_piece(work, r, s, slot, at, n);
			if (!ret)
				ret = work_on(work, slot * s->size + at + n);
		}
	}
	return ret;
}

/* The bytes between a slot and the next must still be poison. */
static int verify_guard(struct view *v, const struct service_slots *s, uint64_t slot,
			struct check_result *res)
{
	uint64_t off = s->off + slot * s->stride + s->size;
	uint64_t len = piece_min(s->stride - s->size, SERVICE_PIECE_B);
	const unsigned char *got;
	int ret;

	if (slot + 1 == s->nr || !len)
		return 0;
	ret = view_get(v, off, len, &got);
	if (!ret)
		check_guard(got, len, off, res);
	return ret;
}

static int verify_slot(struct view *v, const struct service_slots *s, uint64_t slot,
		       struct check_result *res)
{
	uint64_t off = s->off + slot * s->stride;
	const unsigned char *got;
	int ret = 0;

	for (uint64_t at = 0, n; at < s->size && !ret; at += n) {
		n = piece_min(SERVICE_PIECE_B, s->size - at);
		ret = view_get(v, off + at, n, &got);
		if (ret)
			return ret;
		check_piece(got, n, at, off, s->seed, s->iter + slot, res);
		ret = work_on(v->work, slot * s->size + at + n);
	}
	return ret ? ret : verify_guard(v, s, slot, res);
}

int service_verify(struct service_work *work, const struct service_region *r,
		   const struct service_slots *s, struct check_result *res)
{
	struct view v = {.work = work, .region = r};
	int ret = 0;

	if (s->nr)
		v.end = s->off + (s->nr - 1) * s->stride + s->size;
	for (uint64_t slot = 0; slot < s->nr && !ret; slot++)
		ret = verify_slot(&v, s, slot, res);
	return ret;
}

int service_sha256(struct service_work *work, const struct service_region *r, uint64_t off,
		   uint64_t len, char *hex)
{
	struct view v = {.work = work, .region = r, .end = off + len};
	struct digest *d = digest_open();
	const unsigned char *got;
	int ret = d ? 0 : -ENOMEM;

	for (uint64_t at = 0, n; at < len && !ret; at += n) {
		n = piece_min(SERVICE_PIECE_B, len - at);
		ret = view_get(&v, off + at, n, &got);
		if (!ret)
			ret = digest_add(d, got, n);
		if (!ret)
			ret = work_on(work, at + n);
	}
	if (d && ret)
		digest_close(d, NULL);
	else if (d)
		ret = digest_close(d, hex);
	return ret;
}
