/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments of port shm: ours, which a peer writes to, and the peer's, whose numbers are checked
 * before use. Control path.
 */
#include "ports/shm.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* since Linux 5.14 */
#endif

bool shm_slots_ok(uint32_t nr_slots, uint32_t slot_b)
{
	return nr_slots && nr_slots <= SHM_SLOTS_MAX && slot_b && slot_b <= SHM_SLOT_B_MAX &&
	       slot_b % 16 == 0 && (uint64_t)nr_slots * slot_b < GX_ARENA_SIZE_MAX;
}

/* Make the slots of one peer in the memory of our GPU, and export them. */
static int shm_pool_make(struct shm_port *p, struct shm_peer *peer)
{
	size_t len = GX_ALIGN_UP((size_t)p->nr_slots * p->slot_b, GX_HUGE_PAGE);
	struct gx_gpu_handle h;
	void *slots;
	int ret = gx_arena_map(p->pool, -1, len, &slots);

	if (ret) {
		gx_port_why_set("port shm: no %zu bytes on cuda:%d for a peer's slots: %s; give "
				"fewer slots",
				len, p->pool_gpu->device, strerror(-ret));
		return ret;
	}
	peer->rx.slots = slots;
	ret = p->pool_gpu->share->export(p->pool_gpu, slots, len, &h);
	if (ret) {
		gx_port_why_set("port shm: cuda:%d gives its memory to no other process: %s",
				p->pool_gpu->device, gx_gpu_why());
		gx_arena_unmap(p->pool, slots, len);
		peer->rx.slots = NULL;
		return ret;
	}
	peer->pool_fd = h.fd;
	peer->addr.id = h.id;
	peer->addr.off = h.off;
	peer->addr.len = h.len;
	peer->addr.device = (uint32_t)p->pool_gpu->device;
	return 0;
}

void shm_slots_free(struct shm_port *p, struct shm_peer *peer)
{
	if (peer->rx.base)
		gx_arena_unmap(p->arena, peer->rx.base, peer->rx.len);
	if (peer->pool_fd < 0)
		return;
	close(peer->pool_fd);
	gx_arena_unmap(p->pool, peer->rx.slots, (size_t)p->nr_slots * p->slot_b);
}

/* Our own segment for one peer, with every slot posted. */
int shm_seg_make(struct shm_port *p, struct shm_peer *peer)
{
	struct shm_seg *s = &peer->rx;
	bool huge = p->huge;
	void *base;
	int ret;

	shm_seg_layout(s, NULL, p->nr_slots, p->slot_b, p->pool);
	peer->fd = gx_memfd("gx-shm", s->len, &huge);
	if (peer->fd < 0) {
		gx_port_why_set("port shm: no memfd of %zu bytes: %s%s", s->len,
				strerror(-peer->fd),
				peer->fd == -EMFILE ? ": raise ulimit -n" : "");
		return peer->fd;
	}
	ret = gx_arena_map(p->arena, peer->fd, s->len, &base);
	if (ret) {
		gx_port_why_set(
			"port shm: %zu bytes for a peer do not fit the arena: %s: take fewer "
			"gx_packet_opts.slots",
			s->len, strerror(-ret));
		close(peer->fd);
		return ret;
	}
	shm_seg_layout(s, base, p->nr_slots, p->slot_b, p->pool);
	*s->hdr = (struct shm_hdr){.magic = SHM_MAGIC,
				   .version = SHM_VERSION,
				   .nr_slots = s->nr_slots,
				   .slot_b = s->slot_b,
				   .len = s->len};
	for (uint32_t i = 0; i < s->nr_slots; i++)
		atomic_init(&s->posted[i], i);
	peer->posted_head = peer->posted_written = s->nr_slots;
	atomic_store_explicit(&s->hdr->posted_head, s->nr_slots, memory_order_release);
	ret = p->pool ? shm_pool_make(p, peer) : 0;
	if (ret) {
		gx_arena_unmap(p->arena, base, s->len);
		close(peer->fd);
	}
	return ret;
}

/* Map the peer's segment @fd. Each number in it is checked before use. */
int shm_seg_open(struct shm_seg *s, int fd, const struct shm_addr *addr, bool apart)
{
	struct shm_seg geo;
	struct shm_hdr hdr;
	void *base;

	if (gx_memfd_check(fd, addr->len))
		return -EPROTO;
	base = mmap(NULL, addr->len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (base == MAP_FAILED)
		return errno == ENOMEM ? -ENOMEM : -EPROTO;
	memcpy(&hdr, base, sizeof(hdr));
	__asm__ volatile("" : "+m"(hdr)); /* check and use the copy alone */
	if (hdr.magic != SHM_MAGIC || hdr.version != SHM_VERSION || hdr.len != addr->len ||
	    !shm_slots_ok(hdr.nr_slots, hdr.slot_b))
		goto err_unmap;
	shm_seg_layout(&geo, base, hdr.nr_slots, hdr.slot_b, apart);
	if (geo.len != addr->len)
		goto err_unmap;
	if (gx_memfd_is_huge(fd))
		madvise(base, geo.len, MADV_POPULATE_WRITE); /* may fail; saves page faults later */
	*s = geo;
	return 0;

err_unmap:
	munmap(base, addr->len);
	return -EPROTO;
}
