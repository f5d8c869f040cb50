/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The local link's own state, shared by local_map.c (descriptors and mappings of a connection, on
 * the control thread) and link_local.c (endpoints, on the polling cores).
 *
 * Notifications of a connection lie in one memfd that the RECEIVER owns. Behind a page with the
 * header there is a part for each lane: a line that the receiver writes, then a ring of entries
 * that the sender writes. An entry is new when its sequence word is the number expected next.
 */
#ifndef GX_LOCAL_H
#define GX_LOCAL_H

#include "ctx.h"

#include <stdatomic.h>

#define LOCAL_MAGIC   0x636c7867u /* "gxlc" */
#define LOCAL_VERSION 1

#define LOCAL_NOTES    256 /* entries of a ring; power of two */
#define LOCAL_REVOKED  UINT64_MAX
#define LOCAL_HDR_PAGE 4096

/* First page. The receiver writes it, the sender looks at revoked before each copy. */
struct local_hdr {
	uint32_t magic, version, nr_lanes;
	/* Bit i: region i of the receiver's HELLO is gone. All bits: the connection is. */
	alignas(GX_CACHE_LINE) _Atomic uint64_t revoked;
};

struct local_note {
	alignas(GX_CACHE_LINE) _Atomic uint32_t seq; /* number of this entry + 1, written last */
	uint64_t token, off, len, imm;
};
_Static_assert(sizeof(struct local_note) == GX_CACHE_LINE, "one line for each notification");

struct local_ring {
	alignas(LOCAL_HDR_PAGE) _Atomic uint32_t
		done; /* entries consumed in all; by the receiver */
	alignas(GX_CACHE_LINE) struct local_note note[LOCAL_NOTES];
};

struct local_rings {
	alignas(LOCAL_HDR_PAGE) struct local_hdr hdr;
	struct local_ring ring[];
};

/* A region of the peer's that is mapped here. */
struct local_map {
	uint64_t token;
	uint64_t len;	 /* of the region; 0: this entry is free */
	unsigned access; /* GX_ACCESS_*: what is mapped so */
	uint64_t bit;	 /* of it in the peer's word revoked */
	char *addr;	 /* of the region's first byte */
	void *base;	 /* of the mapping; memory of a GPU: NULL */
	size_t map_len;
	struct gx_gpu *gpu; /* memory of a GPU: ours that it was imported for; host memory: ours
			       that it is registered with, so that copy engines reach it; or NULL */
	bool is_gpu;
};

/* One connection's. owner: ctl until the lanes are attached, then frozen; rings are the cores'. */
struct local_conn {
	unsigned nr_lanes;
	struct local_rings *rx; /* ours, the peer writes */
	struct local_rings *tx; /* the peer's, we write */
	size_t rings_b;
	int rings_fd;
	int fds[LOCAL_FDS_MAX]; /* to send; [0] is rings_fd */
	unsigned nr_fds;
	unsigned nr_maps;
	_Atomic bool stuck; /* core: a GPU has not finished with a mapping: it stays */
	struct local_map map[GX_REGIONS_MAX]; /* at index token % GX_REGIONS_MAX */
};

/* link_local.c; ctl */
int link_local_open(struct gx_core *core, struct link_local **out);
void link_local_close(struct link_local *l);
/* Before the cores run: from now on @gpu's copy engines serve puts and gets. */
int link_local_gpu(struct link_local *l, struct gx_gpu *gpu);
/* What dma_lone_ns() says of GPU @device. False: there is none. */
bool link_local_lone(const struct link_local *l, unsigned device, uint32_t *ce_ns,
		     uint32_t *resident_ns, bool *kernel);
bool link_local_poll(void *link, uint64_t now_ns); /* the poller */

#endif
