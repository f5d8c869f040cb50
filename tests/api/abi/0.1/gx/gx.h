/* SPDX-License-Identifier: Apache-2.0 */
/* include/gx/gx.h of version 0.1, without its comments: frozen. tests/api/test_abi.py holds later versions to it. */
#ifndef GX_H
#define GX_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
struct gx_init {
	size_t size;
	template <class T> operator T() const
	{
		T t = T();
		t.size = size;
		return t;
	}
};
#define GX_INIT(var) (gx_init{sizeof(var)})
#else
#define GX_INIT(var)                                                                               \
	{                                                                                          \
		.size = sizeof(var)                                                                \
	}
#endif
#ifdef __cplusplus
extern "C" {
#endif
#define GX_API_VERSION 1
struct gx;
struct gx_core;
struct gx_conn;
struct gx_ep;
struct gx_mem;
const char *gx_version(void);
int gx_api_version(void);
const char *gx_error(void);
const char *gx_strerror(int status);
enum gx_unpack_mode {
	GX_UNPACK_MODE_AUTO,
	GX_UNPACK_MODE_KERNEL,
	GX_UNPACK_MODE_RESIDENT,
	GX_UNPACK_MODE_D2D,
	GX_UNPACK_MODE_HOST,
};
enum gx_switch { GX_AUTO, GX_ON, GX_OFF };
enum gx_integrity_mode {
	GX_INTEGRITY_MODE_AUTO,
	GX_INTEGRITY_MODE_NONE,
	GX_INTEGRITY_MODE_CRC32C,
};
enum gx_crc_by {
	GX_CRC_BY_AUTO,
	GX_CRC_BY_CPU,
	GX_CRC_BY_COPY,
};
enum gx_copy_by {
	GX_COPY_AUTO,
	GX_COPY_CE,
	GX_COPY_RESIDENT,
};
enum gx_bounce {
	GX_BOUNCE_HOST,
	GX_BOUNCE_CUDA,
};
enum gx_conn_event { GX_CONN_EVENT_UP, GX_CONN_EVENT_DOWN };
struct gx_opts {
	size_t size;
	unsigned nr_cores;
	unsigned nr_ports;
	const int *cpus;
	const char *const *ports;
	bool server;
	bool insecure;
	bool busy_idle;
	bool idle_wait;
	unsigned nr_allow_uids;
	const unsigned *allow_uids;
	const char *bind_host;
	uint64_t peer_timeout_ns;
	uint64_t gpu_timeout_ns;
	void (*on_conn)(void *arg, struct gx_conn *conn, enum gx_conn_event event, int err,
			const char *why);
	void (*on_msg)(void *arg, struct gx_conn *conn, const void *data, uint32_t len);
	void *arg;
	enum gx_switch huge;
	enum gx_switch local;
	enum gx_integrity_mode integrity;
	enum gx_crc_by crc_by;
	enum gx_unpack_mode unpack;
	unsigned sms;
	enum gx_copy_by copy;
	enum gx_bounce bounce;
	int bounce_device;
	uint32_t chunk_b;
	uint32_t window;
	uint32_t slots;
	uint32_t quantum_b;
	uint64_t idle_sleep_max_ns;
};
int gx_open(const struct gx_opts *opts, struct gx **out);
void gx_close(struct gx *gx);
int gx_describe(struct gx *gx, char *buf, size_t room);
enum gx_mem_kind { GX_MEM_HOST, GX_MEM_CUDA };
enum gx_access { GX_ACCESS_PUT = 1, GX_ACCESS_GET = 2 };
int gx_gpu_open(struct gx *gx, int device);
int gx_mem_alloc(struct gx *gx, enum gx_mem_kind kind, int device, uint64_t len,
		 struct gx_mem **out);
int gx_mem_reg(struct gx *gx, enum gx_mem_kind kind, int device, void *addr, uint64_t len,
	       struct gx_mem **out);
int gx_mem_free(struct gx_mem *mem);
void *gx_mem_addr(const struct gx_mem *mem);
uint64_t gx_mem_len(const struct gx_mem *mem);
enum gx_mem_kind gx_mem_kind_of(const struct gx_mem *mem);
bool gx_mem_huge(const struct gx_mem *mem);
int gx_mem_copy_out(const struct gx_mem *mem, uint64_t off, void *to, uint64_t len);
int gx_mem_copy_in(struct gx_mem *mem, uint64_t off, const void *from, uint64_t len);
int gx_mem_share(struct gx_mem *mem, const char *name, unsigned access);
unsigned gx_nr_cores(const struct gx *gx);
struct gx_core *gx_core(struct gx *gx, unsigned index);
bool gx_core_turn(struct gx_core *core, uint64_t now_ns);
uint64_t gx_now(void);
int gx_core_start(struct gx_core *core);
void gx_core_stop(struct gx_core *core);
int gx_core_poller(struct gx_core *core, bool (*fn)(void *arg, uint64_t now_ns), void *arg);
int gx_stats(struct gx *gx, bool prometheus, char *buf, size_t room);
int gx_core_stat(const struct gx_core *core, const char *name, uint64_t *value);
int gx_stats_listen(struct gx *gx, const char *path);
int gx_signals(struct gx *gx, const int signos[], unsigned n, void (*fn)(void *arg, int signo),
	       void *arg);
int gx_listen(struct gx *gx, const char *addr);
void gx_listen_stop(struct gx *gx);
struct gx_connect_opts {
	size_t size;
	const char *port;
	unsigned lanes;
	unsigned first_core;
	uint64_t timeout_ns;
	const char *link;
};
int gx_connect(struct gx *gx, const char *addr, const struct gx_connect_opts *opts,
	       struct gx_conn **out);
int gx_conn_wait(struct gx_conn *conn, uint64_t timeout_ns);
void gx_conn_close(struct gx_conn *conn);
enum gx_conn_state { GX_CONN_STATE_CONNECTING, GX_CONN_STATE_UP, GX_CONN_STATE_DOWN };
struct gx_conn_info {
	size_t size;
	enum gx_conn_state state;
	int err;
	char text[256];
	char link[16];
	char port[64];
	char why[256];
	uint32_t lanes;
	uint32_t quantum_b;
	uint32_t quantum_in_b;
	uint32_t chunk_b;
	uint32_t window;
	uint32_t payload_max_b;
	enum gx_integrity_mode integrity;
	char peer[128];
	uint32_t peer_pid;
	bool same_host;
	const char *control;
	unsigned crc_by_copy, peer_crc_by_copy;
	char bounce[16];
	char peer_bounce[16];
};
int gx_conn_info(struct gx_conn *conn, struct gx_conn_info *info);
struct gx_ep *gx_conn_ep(struct gx_conn *conn, unsigned lane);
struct gx_core *gx_ep_core(struct gx_ep *ep);
struct gx_conn *gx_ep_conn(struct gx_ep *ep);
void gx_conn_user_set(struct gx_conn *conn, void *user);
void *gx_conn_user(const struct gx_conn *conn);
struct gx_region {
	size_t size;
	uint64_t token;
	uint64_t len;
	enum gx_mem_kind kind;
	int device;
	unsigned access;
	char name[64];
	uint32_t reserved;
};
int gx_conn_region(struct gx_conn *conn, const char *name, unsigned index, struct gx_region *out);
int gx_conn_msg(struct gx_conn *conn, const void *data, uint32_t len);
enum gx_op_kind { GX_OP_PUT = 1, GX_OP_GET, GX_OP_SEND, GX_OP_RECV };
enum gx_op_flag {
	GX_OP_IMM = 1,
	GX_OP_LOCAL = 2,
	GX_OP_SILENT = 4,
};
struct gx_op {
	enum gx_op_kind kind;
	unsigned flags;
	uint64_t user;
	void *addr;
	struct gx_mem *mem;
	uint64_t off;
	uint64_t len;
	uint64_t token;
	uint64_t remote_off;
	uint64_t imm;
	uint64_t tag;
	uint64_t tag_mask;
	uint64_t deadline_ns;
	void *stream;
	uint64_t reserved[2];
};
int gx_post(struct gx_ep *ep, const struct gx_op ops[], unsigned n);
int gx_cancel(struct gx_ep *ep, uint64_t user);
enum gx_comp_kind {
	GX_COMP_DONE = 1,
	GX_COMP_LOCAL,
	GX_COMP_NOTIFY,
};
struct gx_comp {
	enum gx_comp_kind kind;
	enum gx_op_kind op;
	int status;
	struct gx_ep *ep;
	uint64_t user;
	uint64_t len;
	uint64_t tag;
	uint64_t imm;
	uint64_t token, off;
	uint64_t reserved[2];
};
unsigned gx_poll(struct gx_core *core, struct gx_comp comps[], unsigned n);
struct gx_queue;
struct gx_queue_opts {
	size_t size;
	uint64_t depth;
};
int gx_queue_open(struct gx *gx, const struct gx_queue_opts *opts, struct gx_queue **out);
int gx_queue_close(struct gx_queue *q);
int gx_queue_post(struct gx_queue *q, struct gx_ep *ep, const struct gx_op ops[], unsigned n);
int gx_queue_post_striped(struct gx_queue *q, struct gx_conn *conn, const struct gx_op ops[],
			  unsigned n);
int gx_queue_cancel(struct gx_queue *q, uint64_t user);
unsigned gx_queue_poll(struct gx_queue *q, struct gx_comp comps[], unsigned n);
#ifdef __cplusplus
}
#endif
#endif
