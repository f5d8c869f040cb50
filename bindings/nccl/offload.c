/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mode unpack: NCCL's device code takes what gx received out of a bounce memory, and copies it into
 * NCCL's own buffers. The bounce memory is pinned host memory, one for the process, because NCCL
 * wants one address for all receive comms of a GPU. Each such comm has a part of it for itself, so
 * none waits for another one: a ring for its messages, and after it what the device code reads.
 *
 * A receive takes the next of 16 slots, whatever its size, for the device code counts receives
 * alone. When the message is there, test() writes its descriptors into the slot, and their number
 * last. Slot and ring go on when irecvConsumed says that the device has copied, in the order of the
 * receives. Pieces are of a page, since the device code gives each to a warp.
 *
 * offload_open() and offload_close(): as proc.c. offload_give(), offload_drop(), offload_may_reg(),
 * offload_reg_ends(): service threads. The others: the thread that posts on the comm; they neither call the system,
 * allocate nor lock.
 */
#include "plug.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE_B	 4096u
#define REGS_MAX 3 /* NCCL's buffers of a comm: one for each of its protocols */

/* While accept is called again for parts of closed comms. The keeper frees them when it is woken. */
#define GIVE_WAKE_NS 1000000

#define PAGES(len) (((len) + PAGE_B - 1) / PAGE_B * PAGE_B)

/* What GPUs read and write. */
struct offload_dev {
	struct nccl_unpack_meta meta;
	struct nccl_unpack_handle handle;
};

static struct {
	/* They stay until the process ends: pinning and unpinning may wait for the GPU. */
	char *mem;
	uint64_t len;
	/* As long as the context is open. */
	struct offload *all;
	unsigned nr;
	struct offload *unused; /* under plug.lock, as the next */
	uint64_t woken_ns;	/* the keeper last learned that a part is wanted */
} bounce;

/* ---- The memory ---- */

static bool bounce_map(char why[WHY_B])
{
	if (!bounce.mem) {
		void *mem = mmap(NULL, plug.conf.bounce_b, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (mem == MAP_FAILED) {
			strcpy(why, "there is not so much memory");
			return false;
		}
		bounce.mem = mem;
		bounce.len = plug.conf.bounce_b;
		madvise(mem, bounce.len, MADV_HUGEPAGE);
		madvise(mem, bounce.len, MADV_DONTFORK); /* the GPU writes there */
	}
	if (gpus_map(bounce.mem, bounce.len, why))
		return true;
	munmap(bounce.mem, bounce.len);
	bounce.mem = NULL;
	return false;
}

/* The parts of the comms. */
static bool bounce_cut(struct gx_mem *mem)
{
	uint64_t part_b = plug.conf.ring_b + PAGES(sizeof(struct offload_dev));
	unsigned nr = (unsigned)(bounce.len / part_b);

	bounce.all = nr ? aligned_alloc(alignof(struct offload), nr * sizeof(*bounce.all)) : NULL;
	if (!bounce.all)
		return false;
	memset(bounce.all, 0, nr * sizeof(*bounce.all));
	bounce.nr = nr;
	bounce.unused = NULL;
	while (nr--) {
		struct offload *o = &bounce.all[nr];

		o->base = (uint32_t)(nr * part_b);
		o->ring_b = plug.conf.ring_b;
		o->dev = (struct offload_dev *)(void *)(bounce.mem + o->base + o->ring_b);
		o->reg.mem = mem;
		o->next = bounce.unused;
		bounce.unused = o;
	}
	return true;
}

int offload_open(struct gx *gx)
{
	struct gx_mem *mem = NULL;
	char why[WHY_B];

	if (!bounce_map(why)) {
		say_warn("GX_NCCL_MODE=unpack: no %llu MiB of memory that GPUs reach: %s (see "
			 "GX_NCCL_BOUNCE_MB)",
			 (unsigned long long)plug.conf.bounce_b >> 20, why);
		return NCCL_SYSTEM_ERROR;
	}
	if (gx_mem_reg(gx, GX_MEM_HOST, 0, bounce.mem, bounce.len, &mem)) {
		say_warn("GX_NCCL_MODE=unpack: %s", gx_error());
		return NCCL_SYSTEM_ERROR;
	}
	if (!bounce_cut(mem)) {
		say_warn(
			"GX_NCCL_MODE=unpack: the bounce memory of this process has %llu MiB since "
			"its first communicator: too few for this NCCL_BUFFSIZE",
			(unsigned long long)bounce.len >> 20);
		return NCCL_SYSTEM_ERROR;
	}
	say_info("mode unpack: %llu MiB of bounce memory, for %u receiving comms",
		 (unsigned long long)bounce.len >> 20, bounce.nr);
	return NCCL_OK;
}

void offload_close(void)
{
	free(bounce.all);
	bounce.all = bounce.unused = NULL;
	bounce.nr = 0;
}

/* ---- Comms ---- */

static void offload_reset(struct offload *o)
{
	o->at = o->taken = o->consumed = 0;
	o->nr_regs = 0;
	atomic_store_explicit(&o->reg.nr_begun, 0, memory_order_relaxed);
	atomic_store_explicit(&o->reg.nr_ended, 0, memory_order_relaxed);
	for (unsigned i = 0; i < NCCL_UNPACK_SLOTS; i++)
		atomic_store_explicit(&o->dev->meta.cnt[i], 0, memory_order_relaxed);
	o->dev->handle = (struct nccl_unpack_handle){&o->dev->meta, bounce.mem, UINT64_MAX};
}

/* Under plug.lock. Does a comm that NCCL has closed still have a part? */
static bool part_comes(void)
{
	for (const struct comm *c = plug.comms; c; c = c->all_next)
		if (c->state == COMM_CLOSED && c->offload)
			return true;
	return false;
}

/* NULL: there is none, and *comes: soon there is. */
static struct offload *part_take(bool *comes)
{
	struct offload *o;

	pthread_mutex_lock(&plug.lock);
	o = bounce.unused;
	*comes = !o && part_comes();
	if (o)
		bounce.unused = o->next;
	if (*comes && gx_now() - bounce.woken_ns >= GIVE_WAKE_NS) {
		bounce.woken_ns = gx_now();
		keep_wake();
	}
	pthread_mutex_unlock(&plug.lock);
	return o;
}

int offload_give(struct comm *c, struct nccl_dev_handle *dev)
{
	struct offload *o;
	bool comes;

	o = part_take(&comes);
	if (comes)
		return -EAGAIN;
	if (!o) {
		say_warn("accept: the bounce memory has room for %u receiving comms: set "
			 "GX_NCCL_BOUNCE_MB to more than %llu, or GX_NCCL_DEVICES to less",
			 bounce.nr, (unsigned long long)bounce.len >> 20);
		return NCCL_SYSTEM_ERROR;
	}
	offload_reset(o);
	c->offload = o;
	dev->handle = &o->dev->handle;
	dev->handle_b = sizeof(o->dev->handle);
	dev->needs_progress = 1;
	return NCCL_OK;
}

void offload_drop(struct comm *c)
{
	struct offload *o = c->offload;

	if (!o)
		return;
	c->offload = NULL;
	o->next = bounce.unused;
	bounce.unused = o;
}

bool offload_may_reg(struct comm *c)
{
	if (c->offload->nr_regs >= REGS_MAX)
		return false;
	c->offload->nr_regs++;
	return true;
}

void offload_reg_ends(struct comm *c)
{
	assert(c->offload->nr_regs);
	c->offload->nr_regs--;
}

/* ---- Receives ---- */

/* Where do @room_b bytes that nothing uses begin? The ring is not empty: when its end lies on its
 * begin, it is full. */
static bool ring_find(const struct offload *o, uint32_t room_b, uint32_t *at)
{
	uint32_t oldest = o->slot[o->consumed % NCCL_UNPACK_SLOTS].off;

	*at = o->at;
	if (o->at <= oldest)
		return room_b <= oldest - o->at;
	if (room_b <= o->ring_b - o->at)
		return true;
	*at = 0;
	return room_b <= oldest;
}

int offload_take(struct offload *o, uint64_t len, uint64_t *off)
{
	struct offload_slot *s = &o->slot[o->taken % NCCL_UNPACK_SLOTS];
	uint32_t room_b, at = 0;

	if (len > o->ring_b)
		return -1;
	room_b = len ? (uint32_t)PAGES(len) : PAGE_B;
	if (o->taken - o->consumed == NCCL_UNPACK_SLOTS)
		return 0;
	if (o->taken != o->consumed && !ring_find(o, room_b, &at))
		return 0;
	s->off = at;
	s->is_out = false;
	o->at = at + room_b;
	o->taken++;
	*off = o->base + at;
	return 1;
}

void offload_publish(struct offload *o, uint32_t nr, uint64_t len)
{
	struct offload_slot *s = &o->slot[nr % NCCL_UNPACK_SLOTS];
	struct nccl_unpack_desc *desc = o->dev->meta.desc[nr % NCCL_UNPACK_SLOTS];
	uint64_t piece_b = PAGE_B;
	uint32_t n = 0;

	while (len > piece_b * NCCL_UNPACK_DESCS)
		piece_b *= 2;
	for (uint64_t at = 0; at < len; at += piece_b) {
		desc[n].src_off = o->base + s->off + (uint32_t)at;
		desc[n].len = (uint32_t)(len - at < piece_b ? len - at : piece_b);
		desc[n++].dst_off = at;
	}
	s->is_out = true;
	/* NCCL's progress thread informs the device of the receive after a full fence. */
	atomic_store_explicit(&o->dev->meta.cnt[nr % NCCL_UNPACK_SLOTS], n, memory_order_release);
}

/* A slot without descriptors is safe for a kernel that is aborted while it waits for the slot:
 * NCCL's device code does not end with descriptors for a slice of no bytes, which an abort makes. */
bool offload_consumed(struct offload *o, uint32_t nr)
{
	struct offload_slot *s = &o->slot[nr % NCCL_UNPACK_SLOTS];

	if (o->taken == o->consumed || nr != o->consumed || !s->is_out)
		return false;
	s->is_out = false;
	atomic_store_explicit(&o->dev->meta.cnt[nr % NCCL_UNPACK_SLOTS], 0, memory_order_relaxed);
	o->consumed++;
	return true;
}
