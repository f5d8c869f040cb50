/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gx's GPU engine on its own, without ports, links or peers: unpack fragments that lie scattered in
 * a pool, gather and scatter rows by index lists, copy. The data plane of gx.h uses the same
 * engine.
 *
 * An engine is one GPU, or, for device -1, the CPU with the same calls. A program queues work on
 * a queue. Later work of a queue sees the bytes that earlier work wrote. Exception: the fragments
 * of unpacks have no order among themselves. Nothing here waits but open, close, alloc and
 * gx_engine_wait(). The program polls a flag in pinned memory for completion.
 *
 * Threads: a queue belongs to one thread at a time; any thread may make the other calls. Errors are
 * 0 or -errno; gx_engine_why() has the reason in words. Versions of structs: as in gx.h.
 */
#ifndef GX_ENGINE_H
#define GX_ENGINE_H

#include <gx/gx.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gx_engine;
struct gx_engine_queue;
struct gx_engine_block; /* one list of fragments, in memory that the GPU reads in place */

/** gx_engine_why() - Why the calling thread's last failing call of this header failed. Never NULL.
 * Valid until this thread's next failing call. */
const char *gx_engine_why(void);

/* ---- Engines ---- */

struct gx_engine_opts {
	size_t size;
	int device;		    /* CUDA ordinal; -1: the CPU */
	enum gx_unpack_mode unpack; /* how fragments are moved; AUTO: kernel, on the CPU host */
	unsigned sms; /* most SMs that one unpack or gather uses; 0: defaults, see gx_engine_info */
	enum gx_switch ipc; /* memory of gx_engine_alloc() is named by cudaIpc: ON; by a descriptor:
			       OFF, AUTO */
};

struct gx_engine_info {
	size_t size;
	char name[96];		    /* "NVIDIA H200" */
	enum gx_unpack_mode unpack; /* the one in use */
	unsigned sms;		    /* of an unpack; 0: no kernel */
};

/** gx_engine_open() - Return: 0, -EINVAL, -ENODEV (no such GPU, no driver, built without nvcc),
 * -ENOMEM. */
int gx_engine_open(const struct gx_engine_opts *opts, struct gx_engine **out);
/** gx_engine_close() - Close its queues and blocks, and free its memory, before. NULL is fine. */
void gx_engine_close(struct gx_engine *e);
/** gx_engine_info() - Return: 0, -EINVAL (the size is not set). */
int gx_engine_info(struct gx_engine *e, struct gx_engine_info *info);

/* ---- Memory ---- */

/*
 * Memory of the GPU comes from gx_engine_alloc() or from the device's primary context, as cudart
 * and PyTorch allocate it. Memory of a context that cuCtxCreate made is not mapped for gx: the
 * driver refuses to copy it, and a kernel that reads it ends all CUDA work of the process.
 */

/** gx_engine_alloc() - Memory of the GPU, zeroed. Return: 0, -ENOMEM. */
int gx_engine_alloc(struct gx_engine *e, size_t len, void **out);
void gx_engine_free(struct gx_engine *e, void *ptr, size_t len);
/** gx_engine_map() - Let the GPU use host memory in place, at its address. Return: 0, -EOPNOTSUPP,
 * -ENOMEM. */
int gx_engine_map(struct gx_engine *e, void *ptr, size_t len);
/** gx_engine_unmap() - Return: 0; -EBUSY: the GPU may still use the memory, which must stay where
 * it is (see gx_engine_queue_close()). */
int gx_engine_unmap(struct gx_engine *e, void *ptr, size_t len);

/**
 * struct gx_engine_handle - Names memory of a GPU to another process of the same host, or to
 * another engine of this one. @data goes there as it is; @fd, when it is not -1, over a Unix socket
 * (SCM_RIGHTS).
 */
struct gx_engine_handle {
	int fd;
	uint8_t data[120];
};

/**
 * gx_engine_export() - Name memory of gx_engine_alloc() (by a descriptor, or by cudaIpc with
 * .ipc), of cuMemCreate (by a descriptor), or of cuMemAlloc (by cudaIpc). Takes milliseconds; once
 * for each allocation is enough, but a range of several allocations of cuMemCreate is exported for
 * each import. Memory named by cudaIpc must outlive its imports.
 * Return: 0, and h->fd is the caller's to close; -EOPNOTSUPP (the CPU, or memory that has no name).
 */
int gx_engine_export(struct gx_engine *e, const void *ptr, size_t len, struct gx_engine_handle *h);
/**
 * gx_engine_import() - Map the memory that @h names for this engine's GPU, for copies, gathers and
 * unpacks. It costs from 0.2 to some milliseconds, so keep it for as long as the peer lives. The
 * caller keeps h->fd.
 * Return: 0, -EPROTO (no such memory, less than @len, or a GPU that this one does not reach).
 */
int gx_engine_import(struct gx_engine *e, const struct gx_engine_handle *h, size_t len, void **out);
void gx_engine_unimport(struct gx_engine *e, void *ptr);

/* ---- Queues ---- */

/** struct gx_engine_queue_opts - Memory for the gathers of a queue, taken when the queue is opened.
 */
struct gx_engine_queue_opts {
	size_t size;
	uint32_t order_rows;  /* ordered gathers: most source rows */
	uint32_t order_pairs; /* ordered gathers: most pairs */
	size_t stage_b;	      /* gathers by the CPU: most bytes */
};

/** gx_engine_queue_open() - @opts: NULL for none of that. Return: 0, -ENOMEM, -ENODEV. */
int gx_engine_queue_open(struct gx_engine *e, const struct gx_engine_queue_opts *opts,
			 struct gx_engine_queue **out);
/** gx_engine_queue_close() - Waits for queued work, at most 5 s. NULL is fine.
 * Return: 0; -ETIMEDOUT: the GPU has not finished, and may still read and write all memory of its
 * work. Until it has finished, gx frees none of the GPU's memory, and the caller must not free host
 * memory that the GPU may use. */
int gx_engine_queue_close(struct gx_engine_queue *q);

/**
 * gx_engine_poll() - Push on work that completes late, and look for faults. To be called while work
 * is under way.
 * Return: 0, -EIO (the GPU failed; gx_engine_why() has the vendor's code).
 */
int gx_engine_poll(struct gx_engine_queue *q);

/**
 * gx_engine_result() - The result of the copy or gather with this ticket. Reads one cache line. The
 * queue keeps results of the last 64 tickets; older ones are done.
 * Return: 0 (its bytes are visible), -EINPROGRESS, -ERANGE (a gather refused pairs that are out of
 * range; all others are moved).
 */
int gx_engine_result(struct gx_engine_queue *q, uint32_t ticket);
/** gx_engine_wait() - Poll until there is a result. Return: that, -EIO, -ETIMEDOUT. */
int gx_engine_wait(struct gx_engine_queue *q, uint32_t ticket, uint64_t timeout_ns);

/* ---- Unpack ---- */

#define GX_ENGINE_FRAGS_MAX  2048 /* of a block */
#define GX_ENGINE_BLOCKS_MAX 16	  /* of a launch */

/** struct gx_frag - @len bytes at @src_off of the pool go to @dst_off of the destination. */
struct gx_frag {
	uint32_t src_off;
	uint32_t len;
	uint64_t dst_off;
};

/** gx_engine_block_open() - Return: 0, -ENOMEM. */
int gx_engine_block_open(struct gx_engine *e, struct gx_engine_block **out);
void gx_engine_block_close(struct gx_engine_block *b);
/** gx_engine_block_frags() - [GX_ENGINE_FRAGS_MAX], for the caller to fill while the block is not
 * under way. */
struct gx_frag *gx_engine_block_frags(struct gx_engine_block *b);
/**
 * gx_engine_block_set() - The first @n fragments go from @pool, mapped host memory or memory of the
 * GPU, to @dst. The kernel or CPU that moves a fragment refuses one that would leave @dst_len. It
 * does not know where @pool ends: the caller keeps src_off + len of each fragment inside. A read
 * beyond is an illegal address, which ends all CUDA work of the process.
 * Return: 0; -EINVAL (@n is more than GX_ENGINE_FRAGS_MAX): the block holds nothing, and an unpack
 * of it has status -ERANGE.
 */
int gx_engine_block_set(struct gx_engine_block *b, const void *pool, void *dst, uint64_t dst_len,
			uint32_t n);
/**
 * gx_engine_unpack() - Queue blocks, as one launch where the mode has one. The engine owns a block,
 * and its bytes in the pool, until the status of the block is there.
 * @n: at most GX_ENGINE_BLOCKS_MAX are taken
 * Return: how many were taken; 0: none now, poll.
 */
unsigned gx_engine_unpack(struct gx_engine_queue *q, struct gx_engine_block *const blocks[],
			  unsigned n);
/**
 * gx_engine_block_check() - Have fragments checked while they are moved. @crc[i] is the CRC-32C of
 * fragment i, for all fragments of the last gx_engine_block_set(), and until the next one.
 * Return: 0, -EOPNOTSUPP (modes kernel, auto and host check, the others do not).
 */
int gx_engine_block_check(struct gx_engine_block *b, const uint32_t crc[]);
/** gx_engine_block_status() - Return: 0 (all bytes are visible), -EINPROGRESS, -ERANGE (refused
 * fragments), -EBADMSG (a fragment with another CRC; it may have been written). */
int gx_engine_block_status(const struct gx_engine_block *b);

/* ---- Gather, scatter, copy ---- */

/** struct gx_row_pair - Row @src of the source goes to row @dst of the destination. */
struct gx_row_pair {
	uint32_t src;
	uint32_t dst;
};

/** enum gx_gather_by - Who moves the rows. */
enum gx_gather_by {
	GX_GATHER_BY_AUTO,   /* kernel; on the CPU cpu */
	GX_GATHER_BY_KERNEL, /* SMs read and write in place */
	GX_GATHER_BY_CE,     /* one copy a row, by the driver's copy engines */
	GX_GATHER_BY_CPU,    /* the CPU, into pinned memory; then one copy for each run of rows */
};

enum gx_gather_order {
	GX_GATHER_ORDER_AUTO, /* by source when the queue has room and at least 1 row in 8 is named
			       */
	GX_GATHER_ORDER_LISTED, /* as the pairs are listed */
	GX_GATHER_ORDER_SOURCE, /* source rows in ascending order, rows named often are read once */
};

struct gx_gather {
	size_t size;
	const void *src; /* mapped host memory or memory of the GPU; a multiple of 4; dst alike */
	void *dst;
	const struct gx_row_pair
		*pairs; /* [nr], memory that the GPU reads; CE and CPU: that the CPU reads */
	uint32_t nr;
	uint32_t src_rows, dst_rows; /* pairs from there on are out of range */
	uint32_t row_b;		     /* a multiple of 4, 4 to 64 KiB */
	enum gx_gather_by by;
	enum gx_gather_order order;
	unsigned sms;	     /* bound; 0: the engine's, else 4 */
	bool check;	     /* read the pairs first and refuse all when one is out of range */
	uint8_t reserved[3]; /* 0 */
};

/**
 * gx_engine_gather() - Queue a gather (host to GPU) or scatter (GPU to host). The engine owns pairs
 * and rows until the result is there. Of two pairs with one destination either may win. Return: 0
 * with the @ticket; -EAGAIN (64 tickets are out, or the queue has failed: poll), -EINVAL, -ERANGE
 * (with .check), -ENOSPC (order or stage: the queue was opened for less).
 */
int gx_engine_gather(struct gx_engine_queue *q, const struct gx_gather *g, uint32_t *ticket);

/**
 * gx_engine_copy() - Queue one contiguous copy, by the driver. In mode resident the resident kernel
 * makes copies of up to 64 KiB; both ends must then be memory of a GPU, or mapped. Return: 0,
 * -EAGAIN (64 tickets are out, the ring is full, or the queue has failed: poll), -EINVAL (the
 * driver refuses an address; the queue goes on, and gives no ticket).
 */
int gx_engine_copy(struct gx_engine_queue *q, void *dst, const void *src, size_t len,
		   uint32_t *ticket);

/** struct gx_engine_piece - One copy of several. */
struct gx_engine_piece {
	void *dst;
	const void *src;
	size_t len;
};

#define GX_ENGINE_PIECES_MAX 256

/** gx_engine_copies() - As gx_engine_copy() for up to GX_ENGINE_PIECES_MAX copies, in that order,
 * with one ticket for all. @ticket NULL: none; a later ticket covers them. The copies may name
 * memory of the process's other GPUs. Return: 0, -EAGAIN, -EINVAL (an address, and then copies
 * before it may be made; or @n). */
int gx_engine_copies(struct gx_engine_queue *q, const struct gx_engine_piece list[], unsigned n,
		     uint32_t *ticket);

/**
 * gx_engine_call() - Run @fn now, on this thread, with the GPU's context current. Work that @fn
 * queues on @stream (the vendor's: CUstream; CPU: NULL) runs after all earlier work of this queue,
 * and the ticket is done after it. For other libraries that work on streams.
 * @fn: returns 0 or -errno, which is returned and gives no ticket; NULL: only the ticket
 * @ticket: may be NULL
 * Return: 0, -EAGAIN (64 tickets are out, or the queue has failed: poll), what @fn returned.
 */
int gx_engine_call(struct gx_engine_queue *q, int (*fn)(void *arg, void *stream), void *arg,
		   uint32_t *ticket);

#ifdef __cplusplus
}
#endif

#endif
