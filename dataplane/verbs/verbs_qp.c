/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queue pairs: made, connected, reset, ended. Every call here may enter the kernel. Control thread;
 * connecting goes on on threads of the device (verbs_dial.c).
 */
#include "verbs/verbs_lane.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define QP_READS_MAX 16 /* RDMA reads under way */
#define QP_TIMEOUT   14 /* 4.096 us * 2^14 = 67 ms until a packet is sent again */
#define QP_RETRIES   7
#define QP_RNR_RETRIES                                                                             \
	6 /* an immediate finds a receive, unless the peer lies; 7 would be for ever */
#define QP_RNR_TIMER 12 /* 0.64 ms */
#define QP_HOPS	     64

static inline bool qp_may_go(int from, int to)
{
	/* From each state: the states that may follow, as bits. */
	static const uint8_t next[] = {
		[VERBS_QP_DOWN] = 1 << VERBS_QP_READY,
		[VERBS_QP_READY] = 1 << VERBS_QP_UP | 1 << VERBS_QP_FAILED | 1 << VERBS_QP_DEAD,
		[VERBS_QP_UP] = 1 << VERBS_QP_FAILED | 1 << VERBS_QP_DEAD,
		[VERBS_QP_FAILED] = 1 << VERBS_QP_DRAINED | 1 << VERBS_QP_DEAD,
		[VERBS_QP_DRAINED] = 1 << VERBS_QP_READY | 1 << VERBS_QP_DEAD,
		[VERBS_QP_DEAD] = 0,
	};

	return next[from] >> to & 1;
}

bool qp_goto(struct verbs_qp *q, int from, int to)
{
	assert(qp_may_go(from, to));
	/* Pairs with the acquire in qp_state(): the old owner has finished with it. */
	return atomic_compare_exchange_strong_explicit(&q->state, &from, to, memory_order_release,
						       memory_order_relaxed);
}

/* ---- Made ---- */

static int qp_make(struct verbs_lane *l, struct verbs_qp *q)
{
	static const uint32_t inlines[] = {256, 64, 0};
	const struct verbs_path *w = &l->path[q->path];
	struct ibv_qp_init_attr attr;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(inlines) && !q->qp; i++) {
		attr = (struct ibv_qp_init_attr){.qp_context = l,
						 .send_cq = w->cq,
						 .recv_cq = w->cq,
						 .cap = {.max_send_wr = VERBS_SQ,
							 .max_recv_wr = VERBS_RQ,
							 .max_send_sge = 1,
							 .max_recv_sge = 1,
							 .max_inline_data = inlines[i]},
						 .qp_type = IBV_QPT_RC};
		q->qp = w->dev->api->create_qp(w->dev->pd, &attr);
		l->inline_b = GX_MIN(l->inline_b, inlines[i]);
	}
	return q->qp ? 0
		     : gx_fail(-ENOMEM,
			       "%s makes no queue pair of %d requests: %s: take fewer queue pairs",
			       w->dev->name, VERBS_SQ, strerror(errno));
}

static int slots_make(struct verbs_lane *l, unsigned nr_qps)
{
	size_t each = (size_t)(VERBS_SQ + VERBS_RQ) * VERBS_SLOT_B;

	l->slots_b = GX_ALIGN_UP(each * nr_qps, 4096);
	l->slots = aligned_alloc(4096, l->slots_b);
	if (!l->slots)
		return gx_fail(-ENOMEM, "no memory for notes");
	memset(l->slots, 0, l->slots_b);
	for (unsigned i = 0; i < nr_qps; i++) {
		l->qp[i].index = (uint8_t)i;
		l->qp[i].path = l->qp_path[i];
		l->qp[i].send_slots = l->slots + i * each;
		l->qp[i].recv_slots = l->qp[i].send_slots + (size_t)VERBS_SQ * VERBS_SLOT_B;
	}
	return 0;
}

/* The completion queue of the @nr_qps queue pairs of a path, and their immediates. */
static int path_open(struct verbs_lane *l, struct verbs_path *w, unsigned nr_qps)
{
	int cqes = (int)nr_qps * (VERBS_SQ + VERBS_RQ);
	struct verbs_dev *dev = w->dev;

	w->gid_index = dev->gid_index;
	if (!nr_qps)
		return 0;
	if (cqes > dev->attr.max_cqe)
		return gx_fail(-ENOSPC,
			       "%s has completion queues of %d entries, and %u queue "
			       "pairs need %d: take fewer",
			       dev->name, dev->attr.max_cqe, nr_qps, cqes);
	w->slots_mr = dev->api->reg_mr(dev->pd, l->slots, l->slots_b, IBV_ACCESS_LOCAL_WRITE);
	if (!w->slots_mr)
		return gx_fail(-ENOMEM, "%s does not register %zu bytes: %s (raise ulimit -l)",
			       dev->name, l->slots_b, strerror(errno));
	w->cq = dev->api->create_cq(dev->ctx, cqes, l, NULL, 0);
	return w->cq ? 0
		     : gx_fail(-ENOMEM, "%s makes no completion queue of %d entries: %s", dev->name,
			       cqes, strerror(errno));
}

static void lane_init(struct verbs_lane *l)
{
	l->deadline_ns = UINT64_MAX;
	l->inline_b = UINT32_MAX;
	for (unsigned i = 0; i < VERBS_OPS; i++)
		l->free[l->nr_free++] = (uint16_t)(VERBS_OPS - 1 - i);
	for (uint32_t i = 0; i < VERBS_SEQS; i++)
		l->in[i] = (struct verbs_in){.seq = i - VERBS_SEQS, .done = true};
}

int verbs_qps_open(struct verbs_lane *l, unsigned nr_qps)
{
	unsigned of_path[VERBS_PATHS_MAX] = {0};
	int ret;

	lane_init(l);
	if (!nr_qps || nr_qps > VERBS_QPS_MAX)
		return gx_fail(-EINVAL, "%u queue pairs: 1 to %d", nr_qps, VERBS_QPS_MAX);
	l->qp = calloc(nr_qps, sizeof(*l->qp));
	if (!l->qp)
		return gx_fail(-ENOMEM, "no memory for queue pairs");
	ret = slots_make(l, nr_qps);
	for (unsigned i = 0; i < nr_qps; i++)
		of_path[l->qp_path[i]]++;
	for (unsigned i = 0; !ret && i < l->nr_paths; i++) {
		ret = path_open(l, &l->path[i], of_path[i]);
		l->lost_seen |= (uint32_t)!of_path[i] << i; /* nothing waits for it */
	}
	l->away = l->lost_seen;
	atomic_store_explicit(&l->lost, l->lost_seen, memory_order_relaxed);
	for (; !ret && l->nr_qps < nr_qps; l->nr_qps++)
		ret = qp_make(l, &l->qp[l->nr_qps]);
	return ret;
}

/* The device of the path that kept them frees them; any, if several did. */
static void slots_free(struct verbs_lane *l)
{
	if (l->slots_by)
		verbs_dev_keep(l->slots_by, l->slots);
	else
		free(l->slots);
}

/* What the device did not end may still write to the slots. */
static void end_say(struct verbs_lane *l, struct verbs_dev *dev, const char *what, int err)
{
	if (!verbs_end_err(dev, err))
		return;
	l->slots_by = dev;
	gx_err("%s does not end a %s of a connection: %s: it stays until the context is closed",
	       dev->name, what, strerror(err));
}

int verbs_qp_end(struct verbs_lane *l, struct verbs_qp *q)
{
	q->qp->qp_context = NULL; /* no event finds the lane by it if it stays */
	return verbs_end_err(qp_dev(l, q), qp_dev(l, q)->api->destroy_qp(q->qp));
}

static void path_close(struct verbs_lane *l, struct verbs_path *w)
{
	if (w->cq)
		w->cq->cq_context = NULL;
	if (w->cq)
		end_say(l, w->dev, "completion queue", w->dev->api->destroy_cq(w->cq));
	if (w->slots_mr)
		end_say(l, w->dev, "registration", w->dev->api->dereg_mr(w->slots_mr));
	w->cq = NULL;
	w->slots_mr = NULL;
}

void verbs_qps_close(struct verbs_lane *l)
{
	assert(!verbs_qps_connect_due(l));
	for (unsigned i = 0; i < l->nr_qps; i++)
		if (l->qp[i].qp)
			end_say(l, qp_dev(l, &l->qp[i]), "queue pair", verbs_qp_end(l, &l->qp[i]));
	for (unsigned i = 0; i < l->nr_paths; i++)
		path_close(l, &l->path[i]);
	slots_free(l);
	free(l->qp);
	l->nr_qps = 0;
	l->slots = NULL;
	l->qp = NULL;
}

/* ---- Reset ---- */

static int qp_init(struct verbs_lane *l, struct verbs_qp *q)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
	const struct verbs_dev *dev = qp_dev(l, q);
	int ret = dev->api->modify_qp(q->qp, &attr, IBV_QP_STATE);

	if (ret)
		return -ret;
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT,
				    .port_num = dev->port,
				    .qp_access_flags = IBV_ACCESS_LOCAL_WRITE |
						       IBV_ACCESS_REMOTE_WRITE |
						       IBV_ACCESS_REMOTE_READ};
	return -dev->api->modify_qp(
		q->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static int qp_recv_all(struct verbs_lane *l, struct verbs_qp *q)
{
	uint32_t slots[VERBS_BATCH];

	for (uint32_t first = 0; first < VERBS_RQ; first += VERBS_BATCH) {
		for (uint32_t i = 0; i < VERBS_BATCH; i++)
			slots[i] = first + i;
		if (verbs_recv(q, slots, VERBS_BATCH, l->path[q->path].slots_mr->lkey))
			return -EIO;
	}
	return 0;
}

int verbs_qp_reset(struct verbs_lane *l, struct verbs_qp *q, struct verbs_qp_say *say)
{
	int ret = qp_init(l, q);
	uint32_t psn;

	if (!ret)
		ret = gx_random(&psn, sizeof(psn));
	if (ret)
		return ret;
	q->gen++;
	q->sick = q->reached = false;
	q->proving = 0;
	atomic_store_explicit(&q->proven, false, memory_order_relaxed);
	q->nr_recvs = q->nr_again = 0;
	q->imms_sent = q->imms_known = q->imms_taken = q->imms_credited = 0;
	atomic_store_explicit(&q->want_err, false, memory_order_relaxed);
	*say = (struct verbs_qp_say){q->qp->qp_num, psn & 0xffffff};
	return qp_recv_all(l, q);
}

int verbs_qp_error(struct verbs_lane *l, struct verbs_qp *q)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	if (!q->qp) /* verbs_mend_give_up() has destroyed it */
		return 0;
	return -verbs_end_err(qp_dev(l, q),
			      qp_dev(l, q)->api->modify_qp(q->qp, &attr, IBV_QP_STATE));
}

bool verbs_qp_is_in_error(const struct verbs_lane *l, struct verbs_qp *q)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr = {0};

	return !qp_dev(l, q)->api->query_qp(q->qp, &attr, IBV_QP_STATE, &init) &&
	       (attr.qp_state == IBV_QPS_ERR || attr.qp_state == IBV_QPS_SQE);
}

void verbs_path_broken(struct verbs_lane *l, struct verbs_path *w)
{
	atomic_store_explicit(&w->broken, true, memory_order_relaxed);
	for (unsigned i = 0; i < l->nr_paths; i++)
		if (l->path[i].cq &&
		    !atomic_load_explicit(&l->path[i].broken, memory_order_relaxed))
			return;
	atomic_store_explicit(&l->ep->fault, -ENODEV, memory_order_release);
}

void verbs_qps_event(struct verbs_lane *l, const struct ibv_cq *cq, const struct ibv_qp *qp,
		     bool fatal)
{
	for (unsigned i = 0; !qp && i < l->nr_paths; i++)
		if (l->path[i].cq == cq)
			verbs_path_broken(l, &l->path[i]);
	for (unsigned i = 0; i < l->nr_qps; i++) {
		struct verbs_qp *q = &l->qp[i];

		/* Connecting it, the device says so itself. */
		if (q->qp != qp || !qp_lives(qp_state(q)) || verbs_qp_connects(q))
			continue;
		if (fatal && verbs_qp_error(l, q))
			q->sick =
				true; /* it neither works nor ends: verbs_conn.c gives it a time */
		/* The event may be of an earlier life. */
		q->sick |= verbs_qp_is_in_error(l, q);
	}
}

/* If the device took a part of a list alone, the last of that part asks for no completion, and may
 * have ended without one. */
int verbs_qp_mark(struct verbs_qp *q)
{
	struct ibv_send_wr wr = {.wr_id = wr_id(q, false, 0) | VERBS_ID_MARK,
				 .opcode = IBV_WR_RDMA_WRITE,
				 .send_flags = IBV_SEND_SIGNALED},
			   *bad;

	return ibv_post_send(q->qp, &wr, &bad) ? -EIO : 0;
}

int verbs_qp_probe(struct verbs_lane *l, struct verbs_qp *q)
{
	const struct verbs_probe *p = &l->path[q->path].probe;
	struct ibv_sge sge = {p->mine, p->len, p->lkey};
	struct ibv_send_wr wr[3] = {0}, *bad;
	unsigned n = verbs_probes(l, q);

	for (unsigned i = 0; i < n; i++) {
		wr[i].wr_id = wr_id(q, false, i) | VERBS_ID_MARK;
		wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
		wr[i].opcode = i < 2 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
		wr[i].send_flags = IBV_SEND_SIGNALED;
		wr[i].sg_list = i ? &sge : NULL;
		wr[i].num_sge = i != 0;
		wr[i].wr.rdma.remote_addr = i ? p->theirs : 0;
		wr[i].wr.rdma.rkey = i ? p->rkey : 0;
	}
	return ibv_post_send(q->qp, wr, &bad) ? -EIO : 0;
}

void verbs_probe_failed(struct verbs_qp *q, int status)
{
	if (status != IBV_WC_WR_FLUSH_ERR)
		atomic_store_explicit(&q->holed, q->reached && status == IBV_WC_RETRY_EXC_ERR,
				      memory_order_relaxed);
}

/* ---- Connected ---- */

static uint8_t reads_max(int device)
{
	return (uint8_t)GX_MAX(1, GX_MIN(device, QP_READS_MAX));
}

/* Soft RoCE takes 8 MiB, cards 1 or 2 GiB; a driver that says less than a page says nothing. */
static uint8_t msg_log2(const struct verbs_dev *dev)
{
	return (uint8_t)(31 - __builtin_clz(GX_MAX(dev->port_attr.max_msg_sz, 4096u)));
}

int verbs_path_mtu(const struct verbs_dev *dev, const struct verbs_port *peer)
{
	return GX_MIN((int)peer->mtu, (int)dev->port_attr.active_mtu);
}

uint32_t verbs_chunk_b(const struct verbs_dev *dev, const struct verbs_port *peer, uint32_t asked_b)
{
	return GX_MIN(asked_b, 1u << GX_MIN(msg_log2(dev), peer->msg_log2));
}

void verbs_port_fill(const struct verbs_dev *dev, struct verbs_port *p)
{
	memcpy(p->gid, dev->gid.raw, sizeof(p->gid));
	p->lid = dev->port_attr.lid;
	p->mtu = (uint8_t)dev->port_attr.active_mtu;
	p->is_ethernet = dev->port_attr.link_layer == IBV_LINK_LAYER_ETHERNET;
	p->reads = reads_max(dev->attr.max_qp_rd_atom);
	p->wants_grh = dev->wants_grh;
	p->gid_type = (uint8_t)dev->gid_type;
	p->msg_log2 = msg_log2(dev);
	p->speed_mbps = dev->failed || dev->no_gid || (dev->has_others && dev->port_down)
				? 0
				: dev->speed_mbps;
}

static struct ibv_ah_attr qp_path(const struct verbs_path *w, const struct verbs_port *h)
{
	const struct verbs_dev *dev = w->dev;
	struct ibv_ah_attr ah = {.dlid = h->lid, .sl = dev->sl, .port_num = dev->port};

	if (!h->is_ethernet && !dev->wants_grh && !h->wants_grh)
		return ah;
	ah.is_global = 1;
	memcpy(ah.grh.dgid.raw, h->gid, sizeof(h->gid));
	ah.grh.sgid_index = (uint8_t)w->gid_index;
	ah.grh.hop_limit = QP_HOPS;
	ah.grh.traffic_class = dev->traffic_class;
	return ah;
}

/* On a thread of the device: the first call may look for the peer's address. */
static int qp_connect_run(struct verbs_dial *d)
{
	struct verbs_qp *q = GX_CONTAINER_OF(d, struct verbs_qp, dial);
	const struct verbs_api *api = qp_dev(q->lane, q)->api;
	int ret = api->modify_qp(q->qp, &q->rtr,
				 IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
					 IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
					 IBV_QP_MIN_RNR_TIMER);

	if (!ret)
		ret = api->modify_qp(q->qp, &q->rts,
				     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					     IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					     IBV_QP_MAX_QP_RD_ATOMIC);
	if (ret)
		return -ret;
	if (q->dial_proves)
		return verbs_qp_probe(q->lane, q);
	atomic_store_explicit(&q->proven, true, memory_order_relaxed);
	qp_goto(q, VERBS_QP_READY, VERBS_QP_UP); /* unless it has failed already */
	return 0;
}

static void qp_attrs(struct verbs_lane *l, struct verbs_qp *q, const struct verbs_port *h,
		     const struct verbs_qp_say *own, const struct verbs_qp_say *say)
{
	const struct verbs_dev *dev = qp_dev(l, q);

	q->rtr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
				      .path_mtu = (enum ibv_mtu)verbs_path_mtu(dev, h),
				      .dest_qp_num = say->qpn,
				      .rq_psn = say->psn,
				      .max_dest_rd_atomic = reads_max(dev->attr.max_qp_rd_atom),
				      .min_rnr_timer = QP_RNR_TIMER,
				      .ah_attr = qp_path(&l->path[q->path], h)};
	q->rts = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS,
		.timeout = QP_TIMEOUT,
		.retry_cnt = QP_RETRIES,
		.rnr_retry = QP_RNR_RETRIES,
		.sq_psn = own->psn,
		.max_rd_atomic =
			GX_MIN(reads_max(dev->attr.max_qp_init_rd_atom), GX_MAX(h->reads, 1))};
}

void verbs_qp_connect(struct verbs_lane *l, struct verbs_qp *q, const struct verbs_port *h,
		      const struct verbs_qp_say *own, const struct verbs_qp_say *say, bool prove)
{
	_Static_assert(sizeof(h->gid) + sizeof(h->lid) <= VERBS_DIAL_B, "an address");

	qp_attrs(l, q, h, own, say);
	memcpy(q->dial.to, h->gid, sizeof(h->gid));
	memcpy(q->dial.to + sizeof(h->gid), &h->lid, sizeof(h->lid));
	q->dial.run = qp_connect_run;
	q->dial_proves = prove;
	q->lane = l;
	/* Soon an immediate may come. */
	q->proving = prove ? verbs_probes(l, q) : 0;
	if (qp_state(q) != VERBS_QP_READY) /* else it was held (verbs_mend.c) */
		qp_goto(q, qp_state(q), VERBS_QP_READY);
	verbs_dial(&qp_dev(l, q)->dials, &q->dial);
}

bool verbs_qps_connect_due(const struct verbs_lane *l)
{
	for (unsigned i = 0; i < l->nr_qps; i++)
		if (verbs_qp_connects(&l->qp[i]))
			return true;
	return false;
}
