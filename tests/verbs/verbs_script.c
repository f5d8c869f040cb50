/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scripted provider (verbs_script.h). Two devices or more, whose ports reach each other. Single thread.
 */
#include "verbs/verbs_script.h"

#include "gx_internal/base.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define QPS_MAX	 512
#define WQ_MAX	 256
#define CQ_MAX	 16384
#define MRS_MAX	 256
#define PAGE_B	 4096
#define KEPT_MAX 8
#define QPN_MIN	 16 /* those before are the device's own */
#define PORT	 2  /* the port that is up */
#define READS	 16
#define MTU	 IBV_MTU_4096
#define MTU_B	 4096

struct script_wr {
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	uint8_t data[256]; /* inline */
};

struct script_recv {
	uint64_t id, addr;
	uint32_t len;
};

/* A write that was acknowledged and is not yet in memory. */
struct script_write {
	struct script_write *next;
	uint64_t addr;
	uint32_t len;
	uint8_t data[];
};

struct script_qp {
	struct ibv_qp qp; /* first */
	enum ibv_qp_state state;
	uint32_t dest, psn, life;
	struct ibv_ah_attr path; /* to dest */
	bool looks;		 /* a thread waits in modify_qp() for its peer's address */
	struct script_write *lazy, **lazy_end;
	struct script_wr sq[WQ_MAX];
	struct script_recv rq[WQ_MAX];
	unsigned sq_head, sq_tail, rq_head, rq_tail, sq_max;
};

struct script_cq {
	struct ibv_cq cq; /* first */
	struct ibv_wc wc[CQ_MAX];
	unsigned head, tail, cqe;
};

struct script_mr {
	struct ibv_mr mr; /* first */
	int access;
	bool used;
};

/* A packet that the network still has. */
static struct {
	uint8_t *data;
	uint64_t addr;
	uint32_t len, qpn, life;
} late;

struct script script;
static struct ibv_device devices[SCRIPT_DEVICES];
static struct ibv_context contexts[SCRIPT_DEVICES];
static unsigned opens[SCRIPT_DEVICES];
static struct script_qp *qps[QPS_MAX]; /* qpn: index + QPN_MIN */
static struct script_mr mrs[MRS_MAX];  /* keys: (index + 1) << 8 */

static void *kept[KEPT_MAX];
static unsigned nr_kept;

/* Control threads and cores call. Held until the caller returns. */
static pthread_mutex_t script_mutex = PTHREAD_MUTEX_INITIALIZER;

static pthread_mutex_t *lock_take(void)
{
	pthread_mutex_lock(&script_mutex);
	return &script_mutex;
}

static void lock_give(pthread_mutex_t **m)
{
	pthread_mutex_unlock(*m);
}

#define LOCKED() pthread_mutex_t *locked_ __attribute__((cleanup(lock_give), unused)) = lock_take()

/* NULL: there is none. */
static struct script_qp *qp_of(uint32_t qpn)
{
	return qpn >= QPN_MIN && qpn < QPN_MIN + QPS_MAX ? qps[qpn - QPN_MIN] : NULL;
}

static unsigned device_of(const struct ibv_context *ctx)
{
	return (unsigned)(ctx - contexts);
}

static bool is_gone(const struct ibv_context *ctx)
{
	return script.gone || script.gone_of >> device_of(ctx) & 1;
}

static bool planned(void)
{
	unsigned i = script.calls++;

	if (i >= 64 || !(script.plan >> i & 1))
		return false;
	errno = ENOMEM;
	return true;
}

/* ---- Devices ---- */

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

static struct ibv_device **get_device_list(int *n)
{
	LOCKED();
	struct ibv_device **list = calloc(SCRIPT_DEVICES + 1, sizeof(struct ibv_device *));

	if (planned()) {
		free(list);
		return NULL;
	}
	assert(list);
	*n = 2 + (int)script.more;
	for (int i = 0; i < *n; i++) {
		snprintf(devices[i].name, sizeof(devices[i].name), "script%d", i);
		devices[i].transport_type =
			script.iwarp >> i & 1 ? IBV_TRANSPORT_IWARP : IBV_TRANSPORT_IB;
		list[i] = &devices[i];
	}
	return list;
}

static void free_device_list(struct ibv_device **list)
{
	free(list);
}

static const char *get_device_name(struct ibv_device *dev)
{
	return dev->name;
}

/* As a kernel's device: what is mapped holds it, too. */
static void fds_open(long i)
{
	if (opens[i]++)
		return;
	script.cmd_fd[i] = memfd_create("script", MFD_CLOEXEC);
	script.async_fd[i] = eventfd(0, EFD_CLOEXEC);
	assert(script.cmd_fd[i] >= 0 && script.async_fd[i] >= 0);
	assert(!ftruncate(script.cmd_fd[i], PAGE_B));
}

/* Of a queue, as drivers have them. */
static void page_map(unsigned i)
{
	if (!script.page[i])
		script.page[i] =
			mmap(NULL, PAGE_B, PROT_READ | PROT_WRITE, MAP_SHARED, script.cmd_fd[i], 0);
	assert(script.page[i] != MAP_FAILED);
}

static void fds_close(unsigned i)
{
	if (--opens[i])
		return;
	close(script.cmd_fd[i]);
	close(script.async_fd[i]);
	if (script.page[i])
		munmap(script.page[i], PAGE_B);
	script.page[i] = NULL;
}

static struct ibv_context *open_device(struct ibv_device *dev)
{
	LOCKED();
	struct ibv_context *ctx = &contexts[dev - devices];

	if (planned())
		return NULL;
	memset(ctx, 0, sizeof(*ctx));
	ctx->device = dev;
	fds_open(dev - devices);
	ctx->cmd_fd = script.cmd_fd[dev - devices];
	ctx->async_fd = script.async_fd[dev - devices];
	ctx->ops.poll_cq = poll_cq;
	ctx->ops.post_send = post_send;
	ctx->ops.post_recv = post_recv;
	script.nr_open++;
	return ctx;
}

static int close_device(struct ibv_context *ctx)
{
	LOCKED();
	script.nr_open--;
	fds_close(device_of(ctx));
	return 0;
}

static int query_device(struct ibv_context *ctx, struct ibv_device_attr *attr)
{
	LOCKED();
	memset(attr, 0, sizeof(*attr));
	attr->max_cqe = CQ_MAX;
	attr->max_qp_rd_atom = attr->max_qp_init_rd_atom = READS;
	attr->phys_port_cnt = 2;
	return planned() ? ENOMEM : 0;
}

static uint16_t lid_of(const struct ibv_context *ctx)
{
	return (uint16_t)(0x11 + device_of(ctx) + script.host[device_of(ctx)]);
}

static int query_port(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr)
{
	if (script.refuse_port) {
		script.refuse_port--;
		return EIO;
	}
	attr->state = port == PORT ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
	attr->active_mtu = MTU;
	attr->active_speed = script.speed[device_of(ctx)];
	attr->active_width = 1;
	attr->gid_tbl_len = 4;
	attr->max_msg_sz = script.max_msg_b ? script.max_msg_b : 1u << 30;
	attr->link_layer = script.infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
	attr->lid = script.infiniband ? lid_of(ctx) : 0;
	attr->flags = script.grh_required >> device_of(ctx) & 1 ? IBV_QPF_GRH_REQUIRED : 0;
	return 0;
}

static unsigned v2_index(const struct ibv_context *ctx)
{
	return script.v2_at_3 >> device_of(ctx) & 1 ? 3 : 2;
}

/* Ethernet: 0: link-local, RoCE v1; 1: IPv4, v1; 2: IPv4, v2; 3: empty. InfiniBand: 0 and 1; the
 * others are empty. */
static int query_gid(struct ibv_context *ctx, uint8_t port, int index, union ibv_gid *gid)
{
	bool is_ipv4 = !script.infiniband && (index == 1 || index == (int)v2_index(ctx));

	memset(gid, 0, sizeof(*gid));
	if (script.no_gid >> device_of(ctx) & 1)
		return 0;
	if (index == 0 || (script.infiniband && index == 1)) {
		gid->raw[0] = 0xfe;
		gid->raw[1] = 0x80;
		gid->raw[14] = (uint8_t)index;
	} else if (is_ipv4) {
		gid->raw[10] = gid->raw[11] = 0xff;
		gid->raw[12] = 10;
		gid->raw[14] = script.net[device_of(ctx)];
	} else {
		return 0;
	}
	gid->raw[15] = (uint8_t)(1 + device_of(ctx) + (is_ipv4 ? script.host[device_of(ctx)] : 0));
	return 0;
}

static int query_gid_ex(struct ibv_context *ctx, uint32_t port, uint32_t index,
			struct ibv_gid_entry *entry, uint32_t flags, size_t entry_b)
{
	if (script.infiniband)
		entry->gid_type = IBV_GID_TYPE_IB;
	else
		entry->gid_type =
			index == v2_index(ctx) ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_ROCE_V1;
	return index < 2 || index == v2_index(ctx) ? 0 : ENODATA;
}

static struct ibv_pd *alloc_pd(struct ibv_context *ctx)
{
	LOCKED();
	struct ibv_pd *pd;

	if (planned())
		return NULL;
	pd = calloc(1, sizeof(*pd));
	assert(pd);
	pd->context = ctx;
	script.nr_pds++;
	return pd;
}

/* Is this end refused? Then @of, if it is malloc()ed, is freed by script_forget(). */
static bool kept_one(unsigned *plan, void *of)
{
	if (!*plan)
		return false;
	--*plan;
	if (of)
		kept[nr_kept++ % KEPT_MAX] = of;
	return true;
}

static int keep_errno(void)
{
	return script.gone ? EIO : script.keep_err ? script.keep_err : EBUSY;
}

static int dealloc_pd(struct ibv_pd *pd)
{
	LOCKED();
	if (kept_one(&script.keep_pd, pd))
		return keep_errno();
	free(pd);
	script.nr_pds--;
	return 0;
}

/* Of the device that it belongs to; an event of a port does not name it. */
static const struct ibv_context *event_ctx(unsigned i)
{
	const struct ibv_async_event *e = &script.event[i];

	if (e->event_type == IBV_EVENT_CQ_ERR)
		return e->element.cq->context;
	return e->event_type < IBV_EVENT_DEVICE_FATAL ? e->element.qp->context
						      : &contexts[script.event_of[i]];
}

static int get_async_event(struct ibv_context *ctx, struct ibv_async_event *event)
{
	LOCKED();
	for (unsigned i = 0; i < script.nr_events; i++) {
		if (event_ctx(i) != ctx)
			continue;
		*event = script.event[i];
		script.event[i] = script.event[--script.nr_events];
		script.event_of[i] = script.event_of[script.nr_events];
		script.event_of[script.nr_events] = 0;
		return 0;
	}
	if (!script.fatal_events)
		return -1;
	script.fatal_events--;
	event->event_type = IBV_EVENT_DEVICE_FATAL;
	return 0;
}

static void ack_async_event(struct ibv_async_event *event)
{
	script.nr_acked++;
}

static const char *wc_status_str(enum ibv_wc_status status)
{
	return status == IBV_WC_SUCCESS ? "success" : "scripted";
}

/* ---- Memory ---- */

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *addr, size_t len, int access)
{
	struct timespec slow = {.tv_nsec = (long)script.slow_reg_ms * 1000000};

	nanosleep(&slow, NULL);
	LOCKED();
	unsigned i = 0;

	if (planned())
		return NULL;
	if (len >= 1u << 20 && script.no_reg >> device_of(pd->context) & 1) {
		errno = EINVAL;
		return NULL;
	}
	while (mrs[i].used)
		i++;
	assert(i < MRS_MAX);
	mrs[i] = (struct script_mr){.mr = {.context = pd->context,
					   .pd = pd,
					   .addr = addr,
					   .length = len,
					   .lkey = (i + 1) << 8,
					   .rkey = (i + 1) << 8},
				    .access = access,
				    .used = true};
	script.nr_mrs++;
	return &mrs[i].mr;
}

/* Here a descriptor names nothing: the bytes lie at @iova. */
static struct ibv_mr *reg_dmabuf_mr(struct ibv_pd *pd, uint64_t off, size_t len, uint64_t iova,
				    int fd, int access)
{
	if (script.no_dmabuf || fd < 0 || off != iova % 4096) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	script.nr_dmabufs++;
	return reg_mr(pd, (void *)(uintptr_t)iova, len, access);
}

static int dereg_mr(struct ibv_mr *mr)
{
	LOCKED();
	if (kept_one(&script.keep_mr, NULL))
		return keep_errno();
	((struct script_mr *)mr)->used = false;
	script.nr_mrs--;
	return 0;
}

static bool key_is_good(uint32_t key, uint64_t addr, uint32_t len, int access)
{
	unsigned i = (key >> 8) - 1;
	const struct script_mr *m = &mrs[i % MRS_MAX];
	uint64_t at = i < MRS_MAX ? (uintptr_t)m->mr.addr : 0;

	return i < MRS_MAX && m->used && (m->access & access) == access && addr >= at &&
	       addr - at <= m->mr.length && len <= m->mr.length - (addr - at);
}

/* ---- Completions ---- */

static struct ibv_cq *create_cq(struct ibv_context *ctx, int cqe, void *arg,
				struct ibv_comp_channel *channel, int vector)
{
	LOCKED();
	struct script_cq *c;

	if (planned())
		return NULL;
	c = calloc(1, sizeof(*c));
	assert(c);
	c->cq.context = ctx;
	c->cq.cq_context = arg;
	c->cqe = (unsigned)cqe;
	page_map(device_of(ctx));
	script.nr_cqs++;
	return &c->cq;
}

static int destroy_cq(struct ibv_cq *cq)
{
	LOCKED();
	if (kept_one(&script.keep_cq, cq))
		return keep_errno();
	free(cq);
	script.nr_cqs--;
	return 0;
}

static void complete(struct ibv_cq *cq, struct ibv_qp *qp, uint64_t id, enum ibv_wc_status status,
		     uint32_t len)
{
	struct script_cq *c = (struct script_cq *)cq;

	assert(c->head - c->tail < c->cqe); /* else a real one would have overrun */
	c->wc[c->head++ % CQ_MAX] = (struct ibv_wc){
		.wr_id = id, .status = status, .byte_len = len, .qp_num = qp->qp_num};
}

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	LOCKED();
	struct script_cq *c = (struct script_cq *)cq;
	int max = script.poll_max && n > (int)script.poll_max ? (int)script.poll_max : n, got = 0;

	if (is_gone(cq->context))
		return -1;
	while (got < max && c->tail != c->head)
		wc[got++] = c->wc[c->tail++ % CQ_MAX];
	return got;
}

/* ---- Queue pairs ---- */

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	LOCKED();
	struct script_qp *q;
	unsigned i = 0;

	if (attr->cap.max_inline_data > 64) { /* as devices that have less */
		errno = EINVAL;
		return NULL;
	}
	if (planned())
		return NULL;
	while (qps[i])
		i++;
	assert(i < QPS_MAX && attr->cap.max_send_wr <= WQ_MAX && attr->cap.max_recv_wr <= WQ_MAX);
	q = calloc(1, sizeof(*q));
	assert(q);
	q->qp.context = pd->context;
	q->qp.qp_context = attr->qp_context;
	q->qp.pd = pd;
	q->qp.send_cq = attr->send_cq;
	q->qp.recv_cq = attr->recv_cq;
	q->qp.qp_num = i + QPN_MIN;
	q->sq_max = attr->cap.max_send_wr;
	qps[i] = q;
	script.nr_qps++;
	return &q->qp;
}

static void flush(struct script_qp *q)
{
	if (is_gone(q->qp.context) || script.no_flush)
		return;
	for (; q->sq_tail != q->sq_head; q->sq_tail++)
		complete(q->qp.send_cq, &q->qp, q->sq[q->sq_tail % WQ_MAX].wr.wr_id,
			 IBV_WC_WR_FLUSH_ERR, 0);
	for (; q->rq_tail != q->rq_head; q->rq_tail++)
		complete(q->qp.recv_cq, &q->qp, q->rq[q->rq_tail % WQ_MAX].id, IBV_WC_WR_FLUSH_ERR,
			 0);
}

static void qp_err(struct script_qp *q)
{
	q->state = IBV_QPS_ERR;
	flush(q);
}

/* What the manual of ibv_modify_qp() demands of a connected queue pair, and what it allows. */
static bool mask_is_good(enum ibv_qp_state to, int mask)
{
	static const struct {
		int must, may;
	} of[] = {
		[IBV_QPS_RESET] = {IBV_QP_STATE, 0},
		[IBV_QPS_INIT] = {IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					  IBV_QP_ACCESS_FLAGS,
				  0},
		[IBV_QPS_RTR] = {IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
					 IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
					 IBV_QP_MIN_RNR_TIMER,
				 IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_ALT_PATH},
		[IBV_QPS_RTS] = {IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC |
					 IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT,
				 IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE |
					 IBV_QP_ALT_PATH | IBV_QP_MIN_RNR_TIMER},
		[IBV_QPS_ERR] = {IBV_QP_STATE, 0},
	};

	if (to >= GX_ARRAY_SIZE(of) || !of[to].must)
		return false;
	return (mask & of[to].must) == of[to].must && !(mask & ~(of[to].must | of[to].may));
}

static bool init_is_good(const struct ibv_qp_attr *a)
{
	return a->port_num == PORT && !a->pkey_index &&
	       a->qp_access_flags ==
		       (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
}

/* Ethernet knows no path without a GID, InfiniBand none without a LID. */
static bool path_is_good(struct ibv_context *ctx, const struct ibv_ah_attr *path)
{
	static const union ibv_gid zero;
	union ibv_gid own;

	if (path->port_num != PORT || path->sl > (script.infiniband ? 15 : 7))
		return false;
	if (script.infiniband && (!path->dlid || path->dlid >= 0xc000))
		return false;
	if (!path->is_global)
		return script.infiniband && !(script.grh_required >> device_of(ctx) & 1);
	query_gid(ctx, PORT, path->grh.sgid_index, &own);
	return memcmp(&own, &zero, sizeof(own)) && memcmp(&path->grh.dgid, &zero, sizeof(zero)) &&
	       path->grh.hop_limit;
}

static bool rtr_is_good(struct ibv_context *ctx, const struct ibv_qp_attr *a)
{
	return a->path_mtu >= IBV_MTU_256 && a->path_mtu <= MTU && a->dest_qp_num >= QPN_MIN &&
	       a->dest_qp_num < 0xffffff && a->rq_psn <= 0xffffff &&
	       a->max_dest_rd_atomic <= READS && a->min_rnr_timer <= 31 &&
	       path_is_good(ctx, &a->ah_attr);
}

static bool rts_is_good(const struct ibv_qp_attr *a)
{
	return a->timeout <= 31 && a->retry_cnt <= 7 && a->rnr_retry <= 7 &&
	       a->sq_psn <= 0xffffff && a->max_rd_atomic <= READS;
}

static bool attr_is_good(struct ibv_context *ctx, enum ibv_qp_state from,
			 const struct ibv_qp_attr *a, int mask)
{
	enum ibv_qp_state to = a->qp_state;

	if (!mask_is_good(to, mask))
		return false;
	if (to == IBV_QPS_RESET || to == IBV_QPS_ERR)
		return true;
	if (from != to - 1)
		return false;
	return to == IBV_QPS_INIT  ? init_is_good(a)
	       : to == IBV_QPS_RTR ? rtr_is_good(ctx, a)
				   : rts_is_good(a);
}

static int qp_to(struct ibv_qp *qp, const struct ibv_qp_attr *attr, int mask)
{
	LOCKED();
	struct script_qp *q = (struct script_qp *)qp;
	enum ibv_qp_state to = attr->qp_state, from = q->state;

	if (!attr_is_good(qp->context, from, attr, mask))
		return EINVAL;
	if (to == IBV_QPS_ERR && script.refuse_err) {
		script.refuse_err--;
		return EINVAL;
	}
	if (to == IBV_QPS_ERR) {
		if (from >= IBV_QPS_INIT)
			qp_err(q);
		return 0;
	}
	if (planned())
		return ENOMEM;
	if (to == IBV_QPS_RTR && script.refuse_rtr) {
		script.refuse_rtr--;
		return script.rtr_err;
	}
	if (to == IBV_QPS_RESET) {
		q->sq_head = q->sq_tail = q->rq_head = q->rq_tail = 0;
		q->life++;
	}
	if (to == IBV_QPS_RTR) {
		q->dest = attr->dest_qp_num;
		q->psn = attr->rq_psn;
		q->path = attr->ah_attr;
		script.nr_rtr++;
		script.path = attr->ah_attr;
	}
	q->state = to;
	return 0;
}

static void sleep_ms(uint32_t ms)
{
	struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};

	nanosleep(&t, NULL);
}

static bool look_begin(struct ibv_qp *qp)
{
	LOCKED();

	if (!(script.unanswered >> device_of(qp->context) & 1))
		return false;
	script.nr_looks++;
	script.looks_now++;
	((struct script_qp *)qp)->looks = true;
	return true;
}

static void look_end(struct ibv_qp *qp)
{
	LOCKED();

	script.looks_now--;
	((struct script_qp *)qp)->looks = false;
}

/* As a kernel that looks for the peer's address. */
static bool look_is_vain(struct ibv_qp *qp)
{
	unsigned ends = script.look_ends;

	if (!look_begin(qp))
		return false;
	for (uint32_t ms = 0; ms < script.look_ms && script.look_ends == ends; ms++)
		sleep_ms(1);
	look_end(qp);
	return true;
}

static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	int ret;

	if (attr->qp_state == IBV_QPS_RTR && look_is_vain(qp))
		return ETIMEDOUT;
	ret = qp_to(qp, attr, mask);
	if (attr->qp_state == IBV_QPS_RTR && !ret)
		sleep_ms(script.slow_rtr_ms);
	if (!ret && attr->qp_state == IBV_QPS_RTR && script.after_rtr)
		script.after_rtr(script.arg);
	return ret;
}

static void lazy_land(struct script_qp *q)
{
	while (q->lazy) {
		struct script_write *w = q->lazy;

		memcpy((void *)(uintptr_t)w->addr, w->data, w->len);
		q->lazy = w->next;
		free(w);
	}
}

static int query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
		    struct ibv_qp_init_attr *init)
{
	LOCKED();
	attr->qp_state = ((struct script_qp *)qp)->state;
	return 0;
}

static int destroy_qp(struct ibv_qp *qp)
{
	LOCKED();
	assert(!((struct script_qp *)qp)->looks);
	if (kept_one(&script.keep_qp, NULL))
		return keep_errno();
	lazy_land((struct script_qp *)qp);
	qps[qp->qp_num - QPN_MIN] = NULL;
	free(qp);
	script.nr_qps--;
	return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	LOCKED();
	struct script_qp *q = (struct script_qp *)qp;

	for (; wr; wr = wr->next) {
		assert(q->state != IBV_QPS_RESET && q->rq_head - q->rq_tail < WQ_MAX);
		assert(key_is_good(wr->sg_list->lkey, wr->sg_list->addr, wr->sg_list->length,
				   IBV_ACCESS_LOCAL_WRITE));
		q->rq[q->rq_head++ % WQ_MAX] =
			(struct script_recv){wr->wr_id, wr->sg_list->addr, wr->sg_list->length};
	}
	if (q->state == IBV_QPS_ERR)
		flush(q);
	return 0;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	LOCKED();
	struct script_qp *q = (struct script_qp *)qp;

	bool is_refused = script.refuse_posts;

	if (is_refused) {
		script.refuse_posts--;
		*bad = wr->next ? wr->next : wr; /* the first of several is taken */
		if (!wr->next)
			return ENOMEM;
	}
	script.nr_lists++;
	for (; wr; wr = wr->next) {
		struct script_wr *s = &q->sq[q->sq_head++ % WQ_MAX];

		/* As many as gx has asked for; the mark alone has no bytes. */
		assert(q->sq_head - q->sq_tail <= q->sq_max);
		assert(wr->num_sge == 1 || wr->opcode == IBV_WR_RDMA_WRITE);
		s->wr = *wr;
		s->sge = wr->num_sge ? *wr->sg_list : (struct ibv_sge){0};
		if (wr->send_flags & IBV_SEND_INLINE) {
			assert(s->sge.length <= 64);
			memcpy(s->data, (void *)(uintptr_t)s->sge.addr, s->sge.length);
		}
		script.nr_signalled += !!(wr->send_flags & IBV_SEND_SIGNALED);
		if (is_refused)
			break;
	}
	if (q->state == IBV_QPS_ERR)
		flush(q);
	return is_refused ? ENOMEM : 0;
}

/* ---- What the devices do ---- */

static void lazy_keep(struct script_qp *to, uint64_t addr, const void *from, uint32_t len)
{
	struct script_write *w = malloc(sizeof(*w) + len);

	assert(w);
	*w = (struct script_write){.addr = addr, .len = len};
	memcpy(w->data, from, len);
	if (!to->lazy)
		to->lazy_end = &to->lazy;
	*to->lazy_end = w;
	to->lazy_end = &w->next;
}

/* It proves a path, as gx names it: plans and counters of requests with bytes are not about it. */
static bool is_probe(const struct script_wr *s)
{
	return s->wr.wr_id >> 54 & 1;
}

static enum ibv_wc_status write_run(struct script_qp *to, const struct script_wr *s, void *from)
{
	if (!key_is_good(s->wr.wr.rdma.rkey, s->wr.wr.rdma.remote_addr, s->sge.length,
			 IBV_ACCESS_REMOTE_WRITE))
		return IBV_WC_REM_ACCESS_ERR;
	if (script.lazy && !is_probe(s))
		lazy_keep(to, s->wr.wr.rdma.remote_addr, from, s->sge.length);
	else
		memcpy((void *)(uintptr_t)s->wr.wr.rdma.remote_addr, from, s->sge.length);
	if (is_probe(s))
		return IBV_WC_SUCCESS;
	script.nr_writes++;
	script.bytes += s->sge.length;
	return IBV_WC_SUCCESS;
}

static enum ibv_wc_status read_run(struct script_qp *to, const struct script_wr *s, void *into)
{
	if (!key_is_good(s->wr.wr.rdma.rkey, s->wr.wr.rdma.remote_addr, s->sge.length,
			 IBV_ACCESS_REMOTE_READ))
		return IBV_WC_REM_ACCESS_ERR;
	if (!key_is_good(s->sge.lkey, s->sge.addr, s->sge.length, IBV_ACCESS_LOCAL_WRITE))
		return IBV_WC_LOC_PROT_ERR;
	memcpy(into, (void *)(uintptr_t)s->wr.wr.rdma.remote_addr, s->sge.length);
	if (is_probe(s))
		return IBV_WC_SUCCESS;
	script.nr_reads++;
	script.bytes += s->sge.length;
	return IBV_WC_SUCCESS;
}

static enum ibv_wc_status send_run(struct script_qp *to, const struct script_wr *s, void *from)
{
	struct script_recv *r = &to->rq[to->rq_tail % WQ_MAX];

	if (to->rq_tail == to->rq_head) {
		script.nr_rnr++;
		return IBV_WC_RNR_RETRY_EXC_ERR;
	}
	assert(s->sge.length <= r->len);
	lazy_land(to);
	to->rq_tail++;
	memcpy((void *)(uintptr_t)r->addr, from, s->sge.length);
	complete(to->qp.recv_cq, &to->qp, r->id, IBV_WC_SUCCESS, s->sge.length);
	script.nr_sends++;
	return IBV_WC_SUCCESS;
}

static bool is_deaf(const struct ibv_context *ctx)
{
	return is_gone(ctx) || script.mute >> device_of(ctx) & 1;
}

/* Do packets of @q come to the device of @to, where somebody waits for such packets? */
static bool path_meets(const struct script_qp *q, const struct script_qp *to)
{
	const struct ibv_ah_attr *path = &q->path, *back = &to->path;
	struct ibv_gid_entry own = {0}, other = {0};
	union ibv_gid gid;

	if (is_deaf(q->qp.context) || is_deaf(to->qp.context))
		return false;
	if (script.apart &&
	    script.net[device_of(q->qp.context)] != script.net[device_of(to->qp.context)])
		return false;
	if (script.infiniband && path->dlid != lid_of(to->qp.context))
		return false;
	if (path->is_global != back->is_global)
		return false;
	if (!path->is_global)
		return true;
	query_gid(to->qp.context, PORT, back->grh.sgid_index, &gid);
	query_gid_ex(q->qp.context, PORT, path->grh.sgid_index, &own, 0, sizeof(own));
	query_gid_ex(to->qp.context, PORT, back->grh.sgid_index, &other, 0, sizeof(other));
	return !memcmp(&gid, &path->grh.dgid, sizeof(gid)) && own.gid_type == other.gid_type;
}

/* Does the path take the packets of the bytes? */
static bool path_has_room(const struct script_qp *q, const struct script_qp *to,
			  const struct script_wr *s)
{
	const struct script_qp *from = s->wr.opcode == IBV_WR_RDMA_READ ? to : q;
	uint32_t hole_b = script.hole_b[device_of(from->qp.context)];

	return !hole_b || GX_MIN(s->sge.length, MTU_B) <= hole_b;
}

static enum ibv_wc_status wr_run(struct script_qp *q, struct script_wr *s)
{
	struct script_qp *to = qp_of(q->dest);
	bool is_inline = s->wr.send_flags & IBV_SEND_INLINE;
	void *mine = is_inline ? (void *)s->data : (void *)(uintptr_t)s->sge.addr;
	enum ibv_wc_status status;

	if (script.lossy || !path_meets(q, to) || !path_has_room(q, to, s))
		return IBV_WC_RETRY_EXC_ERR;
	if (!s->wr.num_sge) /* a write of no bytes needs no key */
		return script.mark_status;
	if (s->sge.length > (script.max_msg_b ? script.max_msg_b : 1u << 30))
		return IBV_WC_LOC_LEN_ERR;
	if (!is_inline && !key_is_good(s->sge.lkey, s->sge.addr, s->sge.length, 0))
		return IBV_WC_LOC_PROT_ERR;
	if (s->wr.opcode == IBV_WR_SEND)
		return send_run(to, s, mine);
	if (!is_probe(s))
		script.bytes_of[device_of(q->qp.context)] += s->sge.length;
	status = s->wr.opcode == IBV_WR_RDMA_WRITE ? write_run(to, s, mine) : read_run(to, s, mine);
	if (status == IBV_WC_REM_ACCESS_ERR) /* the responder's end fails too */
		qp_err(to);
	return status;
}

static void late_keep(const struct script_qp *q, const struct script_wr *s)
{
	const struct script_qp *to = qp_of(q->dest);

	if (s->wr.opcode != IBV_WR_RDMA_WRITE)
		return;
	free(late.data);
	late.data = malloc(s->sge.length);
	assert(late.data);
	memcpy(late.data, (void *)(uintptr_t)s->sge.addr, s->sge.length);
	late.addr = s->wr.wr.rdma.remote_addr;
	late.len = s->sge.length;
	late.qpn = q->dest;
	late.life = to->life;
}

void script_late(void)
{
	LOCKED();
	const struct script_qp *to = late.data ? qp_of(late.qpn) : NULL;

	if (to && to->life == late.life && to->state >= IBV_QPS_RTR && to->state <= IBV_QPS_RTS) {
		memcpy((void *)(uintptr_t)late.addr, late.data, late.len);
		script.late_landed++;
	}
	free(late.data);
	late.data = NULL;
}

static enum ibv_wc_status fault(const struct script_qp *q)
{
	if (!script.fail_qpn || (script.fail_qpn != SCRIPT_ANY && q->qp.qp_num != script.fail_qpn))
		return IBV_WC_SUCCESS;
	if (script.fail_after) {
		script.fail_after--;
		return IBV_WC_SUCCESS;
	}
	script.fail_qpn = 0;
	return script.fail_status;
}

/* Else a device would try again for half a second, which is for ever here. */
static bool peer_answers(const struct script_qp *q)
{
	const struct script_qp *to = qp_of(q->dest);

	return to && to->state >= IBV_QPS_RTR && to->state <= IBV_QPS_RTS;
}

static bool qp_run(struct script_qp *q)
{
	bool moved = false;

	for (unsigned n = 0; q->sq_tail != q->sq_head && q->state == IBV_QPS_RTS; n++) {
		struct script_wr *s = &q->sq[q->sq_tail % WQ_MAX];
		enum ibv_wc_status status;

		if ((script.run_max && n == script.run_max) || !peer_answers(q))
			break;
		status = is_probe(s) ? IBV_WC_SUCCESS : fault(q);
		if (status && script.fail_late)
			late_keep(q, s);
		if (status && script.fail_landed)
			wr_run(q, s);
		if (!status)
			status = wr_run(q, s);
		moved = true;
		q->sq_tail++;
		if (status || s->wr.send_flags & IBV_SEND_SIGNALED)
			complete(q->qp.send_cq, &q->qp, s->wr.wr_id, status, 0);
		if (status)
			qp_err(q);
	}
	return moved;
}

bool script_run(void)
{
	LOCKED();
	bool moved = false;

	for (unsigned i = 0; i < QPS_MAX; i++)
		if (qps[i] && !is_gone(qps[i]->qp.context) &&
		    !(script.paused >> device_of(qps[i]->qp.context) & 1))
			moved |= qp_run(qps[i]);
	return moved;
}

unsigned script_live(unsigned device)
{
	LOCKED();
	unsigned n = 0;

	for (unsigned i = 0; i < QPS_MAX; i++)
		n += qps[i] && device_of(qps[i]->qp.context) == device &&
		     (qps[i]->state == IBV_QPS_RTR || qps[i]->state == IBV_QPS_RTS);
	return n;
}

void script_break(unsigned device)
{
	LOCKED();
	for (unsigned i = 0; i < QPS_MAX; i++) {
		struct ibv_async_event *e = &script.event[script.nr_events];

		if (!qps[i] || device_of(qps[i]->qp.context) != device)
			continue;
		qp_err(qps[i]);
		if (script.nr_events == GX_ARRAY_SIZE(script.event))
			continue;
		e->event_type = IBV_EVENT_QP_ACCESS_ERR;
		e->element.qp = &qps[i]->qp;
		script.nr_events++;
	}
}

static void event_add(unsigned device, enum ibv_event_type type)
{
	assert(script.nr_events < GX_ARRAY_SIZE(script.event));
	script.event[script.nr_events] =
		(struct ibv_async_event){.event_type = type, .element.port_num = PORT};
	script.event_of[script.nr_events++] = device;
}

void script_port(unsigned device, bool up)
{
	LOCKED();
	script.mute = up ? script.mute & ~(1u << device) : script.mute | 1u << device;
	event_add(device, up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
}

void script_address(unsigned device)
{
	LOCKED();
	event_add(device, script.infiniband ? IBV_EVENT_LID_CHANGE : IBV_EVENT_GID_CHANGE);
}

void script_remove(unsigned device)
{
	LOCKED();
	script.gone_of |= 1u << device;
	event_add(device, IBV_EVENT_DEVICE_FATAL);
}

void script_forget(void)
{
	LOCKED();
	for (unsigned i = 0; i < nr_kept && i < KEPT_MAX; i++)
		free(kept[i]);
	nr_kept = 0;
	for (unsigned i = 0; i < QPS_MAX; i++) {
		free(qps[i]);
		qps[i] = NULL;
	}
	memset(mrs, 0, sizeof(mrs));
	script.nr_qps = script.nr_mrs = script.nr_cqs = script.nr_pds = 0;
}

void script_reset(void)
{
	assert(!script.nr_qps && !script.nr_mrs && !script.nr_cqs && !script.nr_pds &&
	       !script.nr_open);
	free(late.data);
	late.data = NULL;
	memset(&script, 0, sizeof(script));
}

const struct verbs_api script_api = {
	.get_device_list = get_device_list,
	.free_device_list = free_device_list,
	.get_device_name = get_device_name,
	.open_device = open_device,
	.close_device = close_device,
	.query_device = query_device,
	.query_port = query_port,
	.query_gid = query_gid,
	.query_gid_ex = query_gid_ex,
	.alloc_pd = alloc_pd,
	.dealloc_pd = dealloc_pd,
	.reg_mr = reg_mr,
	.reg_dmabuf_mr = reg_dmabuf_mr,
	.dereg_mr = dereg_mr,
	.create_cq = create_cq,
	.destroy_cq = destroy_cq,
	.create_qp = create_qp,
	.modify_qp = modify_qp,
	.query_qp = query_qp,
	.destroy_qp = destroy_qp,
	.get_async_event = get_async_event,
	.ack_async_event = ack_async_event,
	.wc_status_str = wc_status_str,
};
