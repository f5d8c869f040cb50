/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPU seam: copies, and the memory that they need. A backend is four tables: one for the GPU
 * itself, one for its memory, one for memory that others name, and one for streams. ->open of
 * gx_gpu_host_ops or gx_gpu_cuda_ops gives a struct gx_gpu, which points to the tables; a stream
 * points to the table of streams, so a core reaches a slot by one load (s->ops->unpack). The host
 * backend does the work on the calling core and is complete; the CUDA backend finds the driver by
 * dlopen.
 *
 * Threads: a slot marked [core] is for the core that owns the stream; it never blocks and never
 * allocates. A slot marked [any] is for any thread and never blocks. All other slots, and the plain
 * functions below, are control path: any thread may call them, and they may block.
 */
#ifndef GX_INTERNAL_GPU_H
#define GX_INTERNAL_GPU_H

#include "gx_internal/base.h"
#include "gx_internal/desc.h"

struct gx_gpu;
struct gx_gpu_stream;

enum gx_unpack {
	GX_UNPACK_AUTO,
	GX_UNPACK_KERNEL,
	GX_UNPACK_RESIDENT,
	GX_UNPACK_D2D,
	GX_UNPACK_HOST,
	GX_UNPACK_NONE = 1000, /* libgxlab's; those before are enum gx_unpack_mode */
};

/* Is @mode, which a caller chose, one of them? */
static inline bool gx_unpack_is_known(unsigned mode)
{
	return mode <= GX_UNPACK_HOST || mode == GX_UNPACK_NONE;
}

/* How the work of a stream reaches the GPU. The host backend has one kind. */
enum gx_stream_kind {
	GX_STREAM_UNPACK, /* as the unpack mode says: in mode resident as RESIDENT, but copies in
			     order; in mode auto blocks alone as RESIDENT, while they come near to
			     one another; else as LAUNCH */
	GX_STREAM_LAUNCH, /* launches and copies of the driver */
	/* Jobs for a kernel that runs already: blocks, and lists of up to GX_RESIDENT_COPIES copies
	 * of together at most GX_RESIDENT_COPY_B. Other work waits for that kernel to end, in
	 * bounded time. Copies too are unordered among themselves and to blocks: each list reports
	 * its own end. */
	GX_STREAM_RESIDENT,
	GX_STREAM_COPY, /* as LAUNCH, but no blocks: without the pinned memory that unpack mode host
			   gathers them in */
};
#define GX_RESIDENT_COPIES 8
#define GX_RESIDENT_COPY_B ((size_t)64 << 10)

struct gx_gpu_cfg {
	int device;	       /* CUDA ordinal; ignored by host */
	enum gx_unpack unpack; /* AUTO: kernel or resident, by load, for cuda; host for host */
	unsigned sms;	       /* bound on SMs of an unpack; 0: the backend's defaults */
	bool ipc_memory;       /* cuda only: memory comes from where cudaIpc can name it */
	uint64_t drain_ns;     /* cuda only: a close waits so long for the GPU; 0: 5 s */
};

/* One contiguous copy for ->copy. Addresses in the unified space. */
struct gx_gpu_copy {
	void *dst;
	const void *src;
	size_t len;
};

/*
 * Rows of @row_b bytes, a multiple of 4 up to 64 KiB, from @src to @dst. One or both are memory of
 * the GPU and the other is mapped; both are multiples of 4. A pair outside of @nr_src or @nr_dst is
 * not moved and counted. Frozen until the flag has been written. With @move: bytes from view to view;
 * of the rest, @sms alone counts.
 */
struct gx_gpu_gather {
	const struct gx_move *move; /* NULL: rows */
	const void *src;
	void *dst;
	const struct gx_pair *pairs; /* [nr], memory that the GPU reads */
	uint32_t nr, nr_src, nr_dst;
	uint32_t row_b;
	bool ordered; /* sources in ascending order, a row that is named often is read once; else in
			 the order of the pairs */
	unsigned sms; /* 0: the backend's default */
	/* ordered: memory of the GPU, [nr_src + nr], zero at first and between gathers */
	uint32_t *link;
	uint32_t *bad; /* a flag word: pairs that were refused, written before the flag */
};

enum gx_gpu_share {
	GX_GPU_SHARE_NONE,
	GX_GPU_SHARE_FD,     /* a descriptor */
	GX_GPU_SHARE_IPC,    /* 64 opaque bytes: cudaIpcMemHandle_t */
	GX_GPU_SHARE_CHUNKS, /* several allocations: a descriptor of ->chunks for each import */
};

/* A name of memory for another process of the same host. Only the backend that imports it knows its
 * meaning. */
struct gx_gpu_handle {
	uint8_t kind; /* enum gx_gpu_share */
	uint8_t ipc[64];
	int fd;	      /* FD: the exporter's, which closes it; else -1. An import takes it, and for
			 CHUNKS the one of ->chunks */
	uint64_t id;  /* of the allocation: a later one at the same address has another id */
	uint64_t off; /* offset of the memory in the range that the handle opens */
	uint64_t len; /* length of that range */
};

/* The GPU itself, host memory that it uses, and streams that are not ours: by gpu->ops. */
struct gx_gpu_ops {
	const char *name; /* "host", "cuda" */

	/* Return 0 and a GPU, -ENODEV with a reason from gx_gpu_why(), -ENOMEM. */
	int (*open)(const struct gx_gpu_cfg *cfg, struct gx_gpu **out);
	/* The caller has closed all streams and freed all memory before. NULL is fine. */
	void (*close)(struct gx_gpu *gpu);

	/* Let the GPU read and write the caller's host memory in place (cuMemHostRegister; host:
	 * nothing). Its address on the GPU is the same. Return 0, -EOPNOTSUPP with the reason,
	 * -ENOMEM. */
	int (*host_map)(struct gx_gpu *gpu, void *ptr, size_t len);
	/* False: a GPU may still use the memory (see ->close of a stream). It stays registered, and
	 * must stay mapped. */
	bool (*host_unmap)(struct gx_gpu *gpu, void *ptr, size_t len);

	/* Host memory that the CPU and all GPUs read and write at one address, for blocks and
	 * flags: it begins on a cache line and is zeroed. NULL: there is none, with the reason. */
	void *(*pinned_alloc)(struct gx_gpu *gpu, size_t len);
	void (*pinned_free)(struct gx_gpu *gpu, void *ptr); /* NULL is fine */

	/* [any] Queue on @stream, a stream of the user's (a CUstream; host: whatever), that *flag
	 * (of gx_gpu_flag_alloc(), of any GPU) becomes @value when the stream has done all work
	 * that it holds now. Return 0, -EINVAL with a reason: no stream that can be waited for;
	 * then nothing writes the flag. */
	int (*stream_mark)(struct gx_gpu *gpu, void *stream, uint32_t *flag, uint32_t value);
};

/* Memory of GPUs: by gpu->mem. Control path. */
struct gx_gpu_mem_ops {
	/* Memory of this GPU, zeroed; host: huge pages where there are some. Return 0, -ENOMEM. */
	int (*alloc)(struct gx_gpu *gpu, size_t len, void **out);
	/* @ptr: of ->alloc, ->alloc_on or ->alloc_at; nothing uses it any more. NULL is fine. */
	void (*free)(struct gx_gpu *gpu, void *ptr, size_t len);
	/* Memory of device @device, which this GPU reaches and nobody need have opened; not zeroed.
	 * Return 0, -EOPNOTSUPP with the reason, -ENOMEM. */
	int (*alloc_on)(struct gx_gpu *gpu, int device, size_t len, void **out);

	/* The ordinal of the device that all @len bytes lie on, imported memory too; of memory that
	 * every GPU uses in place (managed), this one's. -EOPNOTSUPP with the reason: they are not
	 * of one allocation, or allocations of cuMemCreate one after another, on one GPU. */
	int (*device)(struct gx_gpu *gpu, const void *ptr, size_t len);
	/* Do this GPU's kernels reach memory at @ptr, of another GPU or imported? Return 0, -EXDEV
	 * with the reason. */
	int (*reach)(struct gx_gpu *gpu, const void *ptr);

	/* Addresses for memory of this GPU, with nothing there. cuda only. Return 0, -ENOMEM,
	 * -EOPNOTSUPP with the reason. */
	int (*addr_reserve)(struct gx_gpu *gpu, size_t len, void **out);
	/* The caller has freed all memory at these addresses before. */
	void (*addr_free)(struct gx_gpu *gpu, void *base, size_t len);
	/* Memory at addresses that were reserved, zeroed; both are multiples of 2 MiB. Return as
	 * ->addr_reserve. */
	int (*alloc_at)(struct gx_gpu *gpu, void *at, size_t len);
};

/* Memory of a GPU that another process or a NIC's driver uses: by gpu->share. Control path; an
 * export or import takes milliseconds. */
struct gx_gpu_share_ops {
	/* Name memory of a GPU, whoever allocated it, to another process. Memory of cudaIpc must
	 * outlive all uses that the others make of it. Return 0 and a handle whose descriptor is
	 * the caller's to close, -EOPNOTSUPP with the reason and the cure. */
	int (*export)(struct gx_gpu *gpu, const void *ptr, size_t len, struct gx_gpu_handle *out);
	/* Of memory whose export is CHUNKS: a descriptor for one ->import, by one process; the
	 * caller's to close. Some 0.1 ms an allocation. Return 0, -EOPNOTSUPP with the reason. */
	int (*chunks)(struct gx_gpu *gpu, const void *ptr, size_t len, int *fd);
	/* Name whole pages to a NIC's driver, as a dma-buf; the descriptor is the caller's to close.
	 * Return 0, -EOPNOTSUPP with the reason. */
	int (*dmabuf)(struct gx_gpu *gpu, const void *ptr, size_t len, int *fd);
	/* Map the @len bytes that @h names, for this GPU; h->fd stays the caller's. Every field may
	 * be a lie. Return 0, -EPROTO (not such memory, or less of it), -ENOMEM, both with the
	 * reason. */
	int (*import)(struct gx_gpu *gpu, const struct gx_gpu_handle *h, size_t len, void **out);
	/* @ptr: of ->import; nothing uses the memory any more. NULL is fine. */
	void (*unimport)(struct gx_gpu *gpu, void *ptr);
};

/* Queues of work: gpu->stream opens one, s->ops (the same table) does the rest. */
struct gx_gpu_stream_ops {
	/* Control path; the core that uses the stream need not have opened it. Return 0, -ENOMEM,
	 * -ENODEV with the reason. */
	int (*open)(struct gx_gpu *gpu, enum gx_stream_kind kind, struct gx_gpu_stream **out);
	/* Control path; callers use gx_gpu_stream_close(). Waits for the work of the stream, in
	 * bounded time. False: the work has not finished, and the stream is given up. Until it has
	 * finished the backend gives back no memory of that GPU, whoever asks: the slots that free
	 * do nothing, ->host_unmap says so, and ->close of the GPU leaves its context. */
	bool (*close)(struct gx_gpu_stream *s);

	/* [core] Execute @n blocks (at most 16) with one launch. Their status words turn from
	 * PENDING to a result when the GPU and the CPU see the bytes. Fragments are unordered among
	 * themselves, those of successive launches too; copies and gathers queued later see all of
	 * them. Return how many were taken, 0 when no launch can be made now. */
	unsigned (*unpack)(struct gx_gpu_stream *s, struct gx_block *const blocks[], unsigned n,
			   uint64_t now_ns);
	/* [core] Queue copies, then a flag: *done (of gx_gpu_flag_alloc()) becomes @value after all
	 * of them and all earlier work (of a RESIDENT stream: after all of them). @done NULL: no
	 * flag, a later one covers them. On a resident stream all of @list is memory of a GPU, or
	 * mapped. Return 0, -EAGAIN with nothing queued, or -EINVAL with the reason: the driver
	 * refuses an address. Then copies before that one may have been queued, the flag has not;
	 * the stream goes on. */
	int (*copy)(struct gx_gpu_stream *s, const struct gx_gpu_copy list[], unsigned n,
		    uint32_t *done, uint32_t value, uint64_t now_ns);
	/* [core] Queue a gather, then the flag, as ->copy. Return 0, -EAGAIN: nothing queued. */
	int (*gather)(struct gx_gpu_stream *s, const struct gx_gpu_gather *g, uint32_t *done,
		      uint32_t value, uint64_t now_ns);
	/* [core] Run @fn on this thread with the GPU's context current and the vendor's stream
	 * (host: NULL); @fn NULL: nothing. Then queue the flag, as ->copy; NULL: none. Return 0,
	 * -EAGAIN, or the result of @fn, with no flag queued. */
	int (*call)(struct gx_gpu_stream *s, int (*fn)(void *arg, void *stream), void *arg,
		    uint32_t *done, uint32_t value, uint64_t now_ns);

	/* [core] Push on work that completes late (cuda: launch errors into status). True: it worked. */
	bool (*reap)(struct gx_gpu_stream *s, uint64_t now_ns);
	/* [core] Sticky fault of the stream: 0 or -EIO; gx_gpu_why() has the vendor's code. */
	int (*fault)(struct gx_gpu_stream *s);
};

/* The GPUs whose kernels see the writes of a network card to the memory of a GPU as soon as the CPU
 * knows of them: without a flush, which gx does not have. */
enum gx_gpu_dma { GX_GPU_DMA_NONE, GX_GPU_DMA_OWN, GX_GPU_DMA_ALL };

/* Frozen after open. */
struct gx_gpu {
	const struct gx_gpu_ops *ops;
	const struct gx_gpu_mem_ops *mem;
	const struct gx_gpu_share_ops *share;
	const struct gx_gpu_stream_ops *stream;
	int device; /* ordinal; -1: host */
	/* ->unpack, of a stream that is not RESIDENT, checks fragments that have GX_AUX_CRC. One
	 * with another CRC gets GX_AUX_BAD and makes the block's status GX_BLOCK_CRC; its bytes may
	 * have been written (mode host: have not). false: the flag is ignored. */
	bool checks_crc;
	bool reads_host; /* ->unpack reads fragments by the CPU: in GPU memory they are a fault */
	bool turns; /* kernels of other processes do not run at the same time as ours, but in turn: no MPS */
	enum gx_gpu_dma dma;
	unsigned resident_sms; /* bound on SMs of a kernel that stays; 0: there is none */
	enum gx_unpack unpack; /* the mode really used */
	unsigned unpack_sms;   /* bound on SMs of an unpack in this mode; 0: it takes none */
	char name[96];	       /* of the device */
	char pci[16];	       /* its address, "0000:3b:00.0"; "": not known */
};

struct gx_gpu_stream {
	const struct gx_gpu_stream_ops *ops; /* gpu->stream when it was opened */
	struct gx_gpu *gpu;
};

/* Is work of a GPU overdue that began with *@since_ns as GX_GPU_UNSEEN? The clock of a poster may be old, so
 * time runs from the first turn that looks. So may that of a later turn, if a program reads the clock in two
 * places. */
#define GX_GPU_UNSEEN UINT64_MAX
static inline bool gx_gpu_is_late(uint64_t *since_ns, uint64_t now_ns, uint64_t timeout_ns)
{
	if (*since_ns == GX_GPU_UNSEEN)
		*since_ns = now_ns;
	return (int64_t)(now_ns - *since_ns) > (int64_t)timeout_ns;
}

extern const struct gx_gpu_ops gx_gpu_host_ops;
extern const struct gx_gpu_ops gx_gpu_cuda_ops; /* always linked; open says why when it cannot */

/** gx_gpu_cuda_look() - Set .name and .pci of CUDA device @ordinal, and open nothing. Any thread.
 * Return: 0, -ENODEV. */
int gx_gpu_cuda_look(int ordinal, struct gx_gpu *gpu);

/** gx_gpu_stream_close() - ->close of a stream; NULL is fine. Control path. Return: has all its
 * work finished? */
static inline bool gx_gpu_stream_close(struct gx_gpu_stream *s)
{
	return !s || s->ops->close(s);
}

/** gx_gpu_block_alloc() - Make the arrays of one block, in memory that the GPU reads in place, and
 * set the pointers of @b. Return: 0, -ENOMEM. */
int gx_gpu_block_alloc(struct gx_gpu *gpu, struct gx_block *b);
void gx_gpu_block_free(struct gx_gpu *gpu, struct gx_block *b); /* a block of zeros is fine */
/** gx_gpu_flag_alloc() - @n words, zeroed, that a GPU writes and the CPU polls: the flags of
 * copies. NULL: no memory. */
uint32_t *gx_gpu_flag_alloc(struct gx_gpu *gpu, unsigned n);
void gx_gpu_flag_free(struct gx_gpu *gpu, uint32_t *flags); /* NULL is fine */

/** gx_gpu_why() - The reason of this thread's last -ENODEV, -EOPNOTSUPP or fault, with the vendor's
 * code. */
const char *gx_gpu_why(void);
/* "auto", "kernel", "resident", "d2d", "host", "none" */
const char *gx_unpack_name(enum gx_unpack mode);

#endif
