/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection's half of the local link: its rings, the descriptors for the peer, what it maps of the
 * peer, and its end. Runs on the control thread.
 */
#include "local/local.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

/* ---- Set-up ---- */

static size_t rings_len(unsigned nr_lanes)
{
	return GX_ALIGN_UP(sizeof(struct local_rings) + nr_lanes * sizeof(struct local_ring),
			   GX_HUGE_PAGE);
}

static int rings_make(struct gx_conn *c)
{
	struct local_conn *l = local_conn_of(c);
	bool huge = false;

	l->rings_fd = gx_memfd("gx-rings", l->rings_b, &huge);
	if (l->rings_fd < 0)
		return gx_fail(l->rings_fd, "no memfd for notifications: %s",
			       strerror(-l->rings_fd));
	l->fds[l->nr_fds++] = l->rings_fd; /* closed with them */
	l->rx = mmap(NULL, l->rings_b, PROT_READ | PROT_WRITE, MAP_SHARED, l->rings_fd, 0);
	if (l->rx == MAP_FAILED) {
		l->rx = NULL;
		return gx_fail(-ENOMEM, "cannot map %zu bytes for notifications", l->rings_b);
	}
	/* Avoids page faults later; may fail. */
	madvise(l->rx, sizeof(*l->rx) + l->nr_lanes * sizeof(l->rx->ring[0]), MADV_POPULATE_WRITE);
	l->rx->hdr.magic = LOCAL_MAGIC;
	l->rx->hdr.version = LOCAL_VERSION;
	l->rx->hdr.nr_lanes = l->nr_lanes;
	return 0;
}

int local_open(struct gx_conn *c, unsigned nr_lanes)
{
	struct local_conn *l = calloc(1, sizeof(*l));
	int ret;

	if (!l)
		return gx_fail(-ENOMEM, "no memory for a connection");
	c->link_state = l;
	c->maps = true;
	l->nr_lanes = nr_lanes;
	l->uid = (uid_t)-1;
	l->sock = -1;
	l->rings_b = rings_len(nr_lanes);
	ret = rings_make(c);
	if (!ret) {
		l->fds[l->nr_fds] = fcntl(local_ctx(c->gx)->live_fd, F_DUPFD_CLOEXEC, 0);
		if (l->fds[l->nr_fds++] < 0)
			ret = gx_fail(-errno, "no descriptor for keys: %s (ulimit -n?)",
				      strerror(errno));
	}
	for (unsigned i = 0; i < c->nr_named && !ret; i++) {
		int fd;

		/* Freed since the HELLO: local_revoke() found no rings then. */
		if (!c->named[i] || mem_is_dead(c->named[i]))
			l->rx->hdr.revoked |= 1ull << i;
		if (!(c->named_fds >> i & 1))
			continue;
		if (!c->named[i]) { /* the peer counts on its descriptor */
			ret = gx_fail(-EAGAIN,
				      "a region was freed while the connection was set up: "
				      "connect again");
			break;
		}
		fd = local_export_fd(c->named[i], c->named[i]->access);
		if (fd < 0)
			ret = fd;
		else
			l->fds[l->nr_fds++] = fd;
	}
	return ret;
}

unsigned local_fds(struct gx_conn *c, int fds[LOCAL_FDS_MAX])
{
	if (!local_conn_of(c))
		return 0;
	local_conn_of(c)->shown = true;
	memcpy(fds, local_conn_of(c)->fds, local_conn_of(c)->nr_fds * sizeof(fds[0]));
	return local_conn_of(c)->nr_fds;
}

/* ---- The peer's memory for us ---- */

unsigned local_fds_due(const struct gx_hello *peer)
{
	unsigned n = 2; /* of the rings, and of the keys */

	for (unsigned i = 0; i < peer->nr_regions; i++)
		n += export_is_fd(peer->regions[i].export.kind);
	return n;
}

static int rings_map(struct local_conn *l, int fd)
{
	struct local_rings *r;
	struct local_hdr hdr;

	if (gx_memfd_check(fd, l->rings_b))
		return gx_fail(-EPROTO,
			       "the peer's notification rings are not a sealed memfd of %zu bytes",
			       l->rings_b);
	r = mmap(NULL, l->rings_b, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (r == MAP_FAILED)
		return gx_fail(errno == ENOMEM ? -ENOMEM : -EPROTO,
			       "cannot map the peer's notification rings: %s", strerror(errno));
	l->tx = r;
	memcpy(&hdr, &r->hdr, sizeof(hdr));
	__asm__ volatile("" : "+m"(hdr)); /* check the copy, not the shared memory */
	if (hdr.magic != LOCAL_MAGIC || hdr.version != LOCAL_VERSION || hdr.nr_lanes != l->nr_lanes)
		return gx_fail(-EPROTO, "the peer's notification rings begin with another header");
	madvise(r, sizeof(*r) + l->nr_lanes * sizeof(r->ring[0]), MADV_POPULATE_WRITE);
	return 0;
}

/* Keep why region @r is not mapped, if it is the first. */
static void region_missed(struct gx_conn *c, const struct gx_hello_region *r, const char *why)
{
	struct local_conn *l = local_conn_of(c);

	if (!l->miss[0])
		snprintf(l->miss, sizeof(l->miss), "'%s': %s", r->name, why);
}

/* Map region @r, number @i of the peer's HELLO. gx never gives two tokens with one place in map[];
 * if a peer does, packets serve the second. They serve memory of a GPU, too, that is out of reach. */
static int region_take(struct gx_conn *c, const struct gx_hello_region *r, unsigned i, int fd)
{
	struct local_conn *l = local_conn_of(c);
	struct local_map *map = &l->map[r->token % GX_REGIONS_MAX];
	struct local_mem *mem;
	int ret;

	if (r->export.kind == GX_EXPORT_NONE || map->len || !r->len ||
	    (r->token & CORE_TOKEN_INDEX) >= GX_REGIONS_MAX)
		return 0;
	ret = local_mem_map(c, r, fd, &mem);
	if (ret == -EOPNOTSUPP) {
		region_missed(c, r, gx_error());
		return 0;
	}
	if (ret)
		return ret;
	local_map_fill(map, r, mem, 0, r->len);
	map->bit = 1ull << i;
	l->nr_maps++;
	return 0;
}

/* The regions that are not mapped: do they have to be? */
static int regions_missed(struct gx_conn *c)
{
	const struct local_conn *l = local_conn_of(c);

	for (unsigned i = 0; i < c->peer.nr_regions; i++) {
		const struct gx_hello_region *r = &c->peer.regions[i];

		if (!r->len || l->map[r->token % GX_REGIONS_MAX].token == r->token)
			continue;
		region_missed(c, r,
			      r->kind == GX_MEM_CUDA && !local_gpu_any(c->gx)
				      ? "this end has opened no GPU (gx_gpu_open())"
				      : "its owner cannot or does not let peers map it");
		if (r->access & GX_ACCESS_MAPPED)
			return gx_fail(-EOPNOTSUPP,
				       "region '%s' is not mapped, and its owner demands that "
				       "(GX_ACCESS_MAPPED); the first that is not is %s",
				       r->name, l->miss);
	}
	return 0;
}

static void fds_close(struct local_conn *l)
{
	for (unsigned i = 0; i < l->nr_fds; i++)
		close(l->fds[i]);
	l->nr_fds = 0;
}

int local_connect(struct gx_conn *c, const int fds[], unsigned n)
{
	struct local_conn *l = local_conn_of(c);
	int ret = n == local_fds_due(&c->peer) ? 0 : gx_fail(-EPROTO, "%u descriptors came", n);
	unsigned k = 2;

	if (!ret)
		ret = rings_map(l, fds[0]);
	if (!ret)
		ret = local_key_map(l, fds[1]);
	if (!ret)
		local_pull_probe(c);
	for (unsigned i = 0; i < c->peer.nr_regions && !ret; i++) {
		const struct gx_hello_region *r = &c->peer.regions[i];

		int fd = export_is_fd(r->export.kind) ? fds[k++] : -1;

		ret = region_take(c, r, i, fd);
	}
	if (!ret)
		ret = regions_missed(c);
	if (!ret)
		local_pairs_time(c);
	for (unsigned i = 0; i < n; i++)
		close(fds[i]);
	fds_close(l); /* the peer has received them */
	return ret;
}

/* ---- The end ---- */

/* ---- The end ---- */

void local_revoke(struct gx_conn *c, const struct gx_mem *mem)
{
	uint64_t bits = mem ? 0 : LOCAL_REVOKED;

	if (!local_conn_of(c) || !local_conn_of(c)->rx)
		return;
	for (unsigned i = 0; i < c->nr_named; i++)
		if (mem && c->named[i] == mem)
			bits |= 1ull << i;
	/* The peer may see it late, or ignore it; no safety of ours depends on it. */
	atomic_fetch_or_explicit(&local_conn_of(c)->rx->hdr.revoked, bits, memory_order_release);
}

/* Add the growth since the last look. The counters of a peer that lies may fall. */
static void made_add(struct gx *gx, enum gx_stat_id id, uint64_t now, uint64_t *was)
{
	if (now > *was)
		gx_stat_add(&gx->ctl_stats, id, now - *was);
	*was = now;
}

void local_count(struct gx_conn *c)
{
	struct local_conn *l = local_conn_of(c);
	uint64_t puts = 0, gets = 0, bytes = 0;

	if (!l || !l->rx)
		return;
	for (unsigned i = 0; i < l->nr_lanes; i++) {
		struct local_made *made = &l->rx->ring[i].made;

		puts += atomic_load_explicit(&made->puts, memory_order_relaxed);
		gets += atomic_load_explicit(&made->gets, memory_order_relaxed);
		bytes += atomic_load_explicit(&made->bytes, memory_order_relaxed);
	}
	made_add(c->gx, GX_STAT_PEER_PUTS, puts, &l->counted.puts);
	made_add(c->gx, GX_STAT_PEER_GETS, gets, &l->counted.gets);
	made_add(c->gx, GX_STAT_PEER_BYTES, bytes, &l->counted.bytes);
}

void local_release(struct gx_conn *c)
{
	struct local_conn *l = local_conn_of(c);

	if (!l || l->released)
		return;
	l->released = true;
	for (unsigned i = 0; i < GX_REGIONS_MAX; i++) {
		struct local_mem *m = l->map[i].mem;

		if (!m)
			continue;
		/* A copy may still be under way: the mapping stays until our process ends. */
		m->stuck |= m->gpu && atomic_load_explicit(&l->stuck, memory_order_acquire);
		local_mem_put(c->gx, l->peer, m);
	}
	local_keys_release(c);
}

void local_part(struct gx_conn *c)
{
	local_release(c);
	if (local_conn_of(c)->peer)
		local_peer_put(c->gx, local_conn_of(c)->peer);
	local_conn_of(c)->peer = NULL;
}

void local_lost(struct gx_conn *c)
{
	struct local_conn *l = local_conn_of(c);
	struct local_peer *p = l ? l->peer : NULL;
	unsigned before = p ? p->nr_held : 0;

	if (!p || !l->shown || local_peer_has_ended(p))
		return;
	for (unsigned i = 0; i < c->nr_named; i++)
		if (c->named[i] && c->named[i]->access & GX_ACCESS_PUT)
			local_hold(c->gx, p, c->named[i]);
	local_keys_hold(c);
	local_held_say(c, before);
}

void local_mem_gone(struct gx_mem *mem)
{
	local_keys_forget(mem->gx, mem);
	for (struct gx_conn *c = mem->gx->conns; c; c = c->next)
		for (unsigned i = 0; i < c->nr_named; i++)
			if (c->named[i] == mem)
				c->named[i] = NULL;
	local_unheld(mem);
}

void local_close(struct gx_conn *c)
{
	struct local_conn *l = local_conn_of(c);

	if (!l)
		return;
	local_count(c);
	local_part(c);
	local_keys_free(l);
	if (l->tx)
		munmap(l->tx, l->rings_b);
	if (l->rx)
		munmap(l->rx, l->rings_b);
	fds_close(l);
	free(l);
	c->link_state = NULL;
}
