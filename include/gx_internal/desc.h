/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors and blocks: the contract between the data plane and the GPU. nvcc sees this header of
 * gx alone: plain C and C++, no other include than stdint.
 */
#ifndef GX_INTERNAL_DESC_H
#define GX_INTERNAL_DESC_H

#include <stdint.h>

#define GX_BLOCK_DESCS_MAX 2048 /* as NCCL's device unpack slot (net_device unpack 0x7) */
#define GX_BLOCK_SEGS_MAX  256

/* One fragment: copy len bytes from src_base + src_off to seg.dst_base + dst_off. NCCL's device
 * unpack and TCPX have the same layout: u32, u32, u64. */
struct gx_desc {
	uint32_t src_off;
	uint32_t len;
	uint64_t dst_off;
};

/* Beside each descriptor: the destination that it may write to. */
struct gx_desc_aux {
	uint16_t seg;	/* index in seg[] */
	uint16_t flags; /* GX_AUX_* */
	uint32_t crc;	/* CRC-32C of the payload, from the packet */
};
#define GX_AUX_CRC 1u /* crc is valid */
/* The GPU or CPU that executed the block sets it, when status is CRC: this fragment is wrong */
#define GX_AUX_BAD 2u

/* A destination range. The copy refuses a descriptor with dst_off + len > dst_len, and writes
 * nothing. */
struct gx_dest {
	uint64_t dst_base; /* address in the space of the block's GPU */
	uint64_t dst_len;
};

/* One row of a gather: row @src of the source goes to row @dst of the destination. */
struct gx_pair {
	uint32_t src;
	uint32_t dst;
};

/* One end of a move: runs of bytes of one memory, in the order of their indices. */
#define GX_MOVE_DIMS 4
struct gx_move_end {
	uint64_t base; /* address in the GPU's space, which need not be of a byte that is moved */
	uint64_t run_b;
	struct {
		uint64_t count;
		int64_t stride_b;
	} dim[GX_MOVE_DIMS];  /* the last is the innermost; count 1: not used */
	const uint32_t *rows; /* outside of these, in memory that the GPU reads; NULL: none */
	uint64_t row_b, row0; /* rows[0] is that of row number row0 */
};

/* From view to view, or some pieces of that: less than 2^31 of both ends in all, and 2^31 bytes here. */
#define GX_MOVE_MAX 0x7fffffffu
struct gx_move {
	struct gx_move_end src, dst;
	uint64_t piece_b; /* contiguous at both ends: each run is a whole number of pieces */
	uint32_t first, nr;
};

/* Status word of a block: the largest that its descriptors give. The GPU or CPU that executed the
 * block writes it. CRC: some descriptors have GX_AUX_BAD, the bytes of all others are in place. */
enum { GX_BLOCK_PENDING = 0, GX_BLOCK_OK = 1, GX_BLOCK_CRC = 2, GX_BLOCK_BOUNDS = 3 };

/*
 * One block. The arrays lie in memory that the executing GPU reads in place (pinned, mapped) and
 * that the CPU writes. Frozen from launch until status is not GX_BLOCK_PENDING.
 */
struct gx_block {
	uint64_t src_base; /* src_off counts from this address, in the GPU's space */
	uint32_t nr;	   /* descriptors */
	uint32_t nr_seg;
	struct gx_desc *desc;	 /* [GX_BLOCK_DESCS_MAX] */
	uint64_t *cnt;		 /* [1]: = nr, apart, as in NCCL's metadata */
	struct gx_desc_aux *aux; /* [GX_BLOCK_DESCS_MAX] */
	struct gx_dest *seg;	 /* [GX_BLOCK_SEGS_MAX] */
	uint32_t *status;	 /* [1]: GX_BLOCK_*, polled by the CPU */
	uint64_t bytes;		 /* sum of len, for the launch heuristics */
	uint32_t hints;		 /* GX_HINT_*: spare the launch from reading the descriptors */
	uint32_t hint_len; /* GX_HINT_LEN: length of all descriptors; the last may be shorter */
};
/* Hints are for speed: without them a launch reads all descriptors. */
#define GX_HINT_WEIGHT 1u /* bytes is exact, and the other hints are complete */
#define GX_HINT_LEN    2u
#define GX_HINT_SEG0   4u /* every aux.seg is 0 */
#define GX_HINT_CRC    8u /* some aux has GX_AUX_CRC */

#ifndef __cplusplus
_Static_assert(sizeof(struct gx_desc) == 16, "one 16-byte load each");
_Static_assert(sizeof(struct gx_desc_aux) == 8, "half a descriptor");
#else
static_assert(sizeof(struct gx_desc) == 16, "one 16-byte load each");
#endif

#endif
