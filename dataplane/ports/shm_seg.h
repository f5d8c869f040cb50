/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layout of the shared-memory port's segment, for the files of port shm and a test. The RECEIVER
 * owns one segment for each peer, a sealed memfd that it maps in its arena. The sender maps it too.
 * A page with the header comes first, then in this order:
 *
 * - ctl: 256 entries to the receiver; a packet's bytes lie directly after its sequence word
 * - used: a line for each data packet to the receiver: its slot, its length, its header
 * - posted: slot numbers to the sender
 * - slots: bounce buffers; stride = payload size, so that consecutive ones are contiguous. The
 * slots may lie in the memory of a GPU instead: a second descriptor names it, and the address blob
 * has the offset
 *
 * The doorbell of ctl and used is the entry's own sequence word, written last: an entry is new when
 * its word is the number expected next. posted has an index, which each rx_release writes once.
 */
#ifndef GX_SHM_SEG_H
#define GX_SHM_SEG_H

#include "gx_internal/port.h"

#include <stdatomic.h>

#define SHM_MAGIC   0x6d687867u /* "gxhm" */
#define SHM_VERSION 1

#define SHM_HDR_B  48	/* longest packet header */
#define SHM_CTL_NR 256	/* entries; power of two */
#define SHM_CTL_B  1600 /* an odd number of lines: entries spread over all sets of a cache */

/* First page of a segment. Only the atomic fields change after the receiver has handed out the
 * descriptor. The sender checks the others. The receiver writes both indices. */
struct shm_hdr {
	uint32_t magic, version;
	uint32_t nr_slots, slot_b;
	uint64_t len;					     /* bytes of the segment */
	alignas(GX_CACHE_LINE) _Atomic uint32_t posted_head; /* slots posted since the start */
	alignas(GX_CACHE_LINE) _Atomic uint32_t ctl_done;    /* entries consumed since the start */
	/* Changes when the receiver is about to sleep: who then writes an entry wakes it, once. */
	alignas(GX_CACHE_LINE) _Atomic uint32_t asleep;
};
#define SHM_HDR_PAGE 4096

struct shm_used {
	alignas(GX_CACHE_LINE) _Atomic uint32_t seq; /* number of this entry + 1, written last */
	uint32_t slot;
	uint32_t len;
	uint32_t hlen;
	uint8_t hdr[SHM_HDR_B];
};
_Static_assert(sizeof(struct shm_used) == GX_CACHE_LINE, "one line for each data packet");

struct shm_ctl {
	alignas(GX_CACHE_LINE) _Atomic uint32_t seq;
	uint16_t len, hlen;
	uint8_t b[SHM_CTL_B - 8]; /* header; payload follows at a multiple of 8 */
};
_Static_assert(sizeof(struct shm_ctl) == SHM_CTL_B, "stride of the control ring");
_Static_assert(8 + SHM_HDR_B + GX_CTL_PAYLOAD_MAX <= SHM_CTL_B, "a packet fits an entry");

/* A port's address blob: enough to refuse a wrong descriptor before mapping it. */
struct shm_addr {
	uint32_t magic, version;
	uint64_t len;
	uint64_t wake; /* the socket that wakes the receiver's core, see shm_sleep.c; 0: it polls */
};

/* The blob if the slots lie in the memory of a GPU: the rest describes the second descriptor. */
struct shm_addr_pool {
	struct shm_addr addr;
	uint64_t id, off, len; /* as in struct gx_gpu_handle */
	uint32_t device;       /* number that the owner gives it; for people to read */
	uint32_t zero;
};

/* The layout of a segment. Frozen; never read from the segment itself. */
struct shm_seg {
	char *base;
	size_t len;
	uint32_t nr_slots, slot_b;
	uint32_t used_mask; /* of used and posted */
	struct shm_hdr *hdr;
	struct shm_ctl *ctl;
	struct shm_used *used;
	_Atomic uint32_t *posted;
	char *slots;
};

/* Fill in @s for @nr_slots of @slot_b bytes. With a NULL @base only @s->len is of use. @apart: the
 * slots lie elsewhere; the caller sets @s->slots. */
static inline void shm_seg_layout(struct shm_seg *s, void *base, uint32_t nr_slots, uint32_t slot_b,
				  bool apart)
{
	uintptr_t at = (uintptr_t)base + SHM_HDR_PAGE;
	uint32_t nr_used = 1;

	while (nr_used < nr_slots)
		nr_used *= 2;
	s->base = base;
	s->nr_slots = nr_slots;
	s->slot_b = slot_b;
	s->used_mask = nr_used - 1;
	s->hdr = base;
	s->ctl = (struct shm_ctl *)at;
	at += (size_t)SHM_CTL_NR * SHM_CTL_B;
	s->used = (struct shm_used *)at;
	at += nr_used * sizeof(struct shm_used);
	s->posted = (_Atomic uint32_t *)at;
	at = GX_ALIGN_UP(at + nr_used * sizeof(uint32_t), SHM_HDR_PAGE);
	s->slots = apart ? NULL : (char *)at;
	at += apart ? 0 : (size_t)nr_slots * slot_b;
	s->len = GX_ALIGN_UP(at - (uintptr_t)base, GX_HUGE_PAGE);
}

#endif
