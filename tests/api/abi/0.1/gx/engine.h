/* SPDX-License-Identifier: Apache-2.0 */
/* include/gx/engine.h of version 0.1, without its comments: frozen. tests/api/test_abi.py holds later versions to it. */
#ifndef GX_ENGINE_H
#define GX_ENGINE_H
#include <gx/gx.h>
#ifdef __cplusplus
extern "C" {
#endif
struct gx_engine;
struct gx_engine_queue;
struct gx_engine_block;
const char *gx_engine_why(void);
struct gx_engine_opts {
	size_t size;
	int device;
	enum gx_unpack_mode unpack;
	unsigned sms;
	enum gx_switch ipc;
};
struct gx_engine_info {
	size_t size;
	char name[96];
	enum gx_unpack_mode unpack;
	unsigned sms;
};
int gx_engine_open(const struct gx_engine_opts *opts, struct gx_engine **out);
void gx_engine_close(struct gx_engine *e);
int gx_engine_info(struct gx_engine *e, struct gx_engine_info *info);
int gx_engine_alloc(struct gx_engine *e, size_t len, void **out);
void gx_engine_free(struct gx_engine *e, void *ptr, size_t len);
int gx_engine_map(struct gx_engine *e, void *ptr, size_t len);
int gx_engine_unmap(struct gx_engine *e, void *ptr, size_t len);
struct gx_engine_handle {
	int fd;
	uint8_t data[120];
};
int gx_engine_export(struct gx_engine *e, const void *ptr, size_t len, struct gx_engine_handle *h);
int gx_engine_import(struct gx_engine *e, const struct gx_engine_handle *h, size_t len, void **out);
void gx_engine_unimport(struct gx_engine *e, void *ptr);
struct gx_engine_queue_opts {
	size_t size;
	uint32_t order_rows;
	uint32_t order_pairs;
	size_t stage_b;
};
int gx_engine_queue_open(struct gx_engine *e, const struct gx_engine_queue_opts *opts,
			 struct gx_engine_queue **out);
int gx_engine_queue_close(struct gx_engine_queue *q);
int gx_engine_poll(struct gx_engine_queue *q);
int gx_engine_result(struct gx_engine_queue *q, uint32_t ticket);
int gx_engine_wait(struct gx_engine_queue *q, uint32_t ticket, uint64_t timeout_ns);
#define GX_ENGINE_FRAGS_MAX  2048
#define GX_ENGINE_BLOCKS_MAX 16
struct gx_frag {
	uint32_t src_off;
	uint32_t len;
	uint64_t dst_off;
};
int gx_engine_block_open(struct gx_engine *e, struct gx_engine_block **out);
void gx_engine_block_close(struct gx_engine_block *b);
struct gx_frag *gx_engine_block_frags(struct gx_engine_block *b);
int gx_engine_block_set(struct gx_engine_block *b, const void *pool, void *dst, uint64_t dst_len,
			uint32_t n);
unsigned gx_engine_unpack(struct gx_engine_queue *q, struct gx_engine_block *const blocks[],
			  unsigned n);
int gx_engine_block_check(struct gx_engine_block *b, const uint32_t crc[]);
int gx_engine_block_status(const struct gx_engine_block *b);
struct gx_row_pair {
	uint32_t src;
	uint32_t dst;
};
enum gx_gather_by {
	GX_GATHER_BY_AUTO,
	GX_GATHER_BY_KERNEL,
	GX_GATHER_BY_CE,
	GX_GATHER_BY_CPU,
};
enum gx_gather_order {
	GX_GATHER_ORDER_AUTO,
	GX_GATHER_ORDER_LISTED,
	GX_GATHER_ORDER_SOURCE,
};
struct gx_gather {
	size_t size;
	const void *src;
	void *dst;
	const struct gx_row_pair *pairs;
	uint32_t nr;
	uint32_t src_rows, dst_rows;
	uint32_t row_b;
	enum gx_gather_by by;
	enum gx_gather_order order;
	unsigned sms;
	bool check;
	uint8_t reserved[3];
};
int gx_engine_gather(struct gx_engine_queue *q, const struct gx_gather *g, uint32_t *ticket);
int gx_engine_copy(struct gx_engine_queue *q, void *dst, const void *src, size_t len,
		   uint32_t *ticket);
struct gx_engine_piece {
	void *dst;
	const void *src;
	size_t len;
};
#define GX_ENGINE_PIECES_MAX 256
int gx_engine_copies(struct gx_engine_queue *q, const struct gx_engine_piece list[], unsigned n,
		     uint32_t *ticket);
int gx_engine_call(struct gx_engine_queue *q, int (*fn)(void *arg, void *stream), void *arg,
		   uint32_t *ticket);
#ifdef __cplusplus
}
#endif
#endif
