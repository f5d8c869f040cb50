// SPDX-License-Identifier: Apache-2.0
/*
 * NCCL as a mover of data between GPUs of one process (see mover.h). Its kernels send and receive,
 * all-gather, and do all-to-all. In its zero-CTA mode with symmetric windows copy engines
 * all-gather and do all-to-all. Main thread only.
 */
#include "gxperf/lab/mover.h"
#include "gxperf/lab/nccl_lib.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Communicators by mode, kept from size to size: making one takes a second. */
static struct nccl_comms {
	struct ncclComm *comm[GPUS_MAX];
	unsigned n;
} nccl_comms[2];

struct nccl_mover {
	struct nccl_comms *set;
	struct ncclWindow_vidmem *win[GPUS_MAX][2]; /* for the send and the receive memory */
	bool zero;
};

/* ---- communicators ---- */

struct nccl_init {
	struct nccl_comms *set;
	struct nccl_id id;
	struct nccl_config config;
	int rank;
};

static int nccl_init_rank(void *arg, void *stream)
{
	struct nccl_init *init = arg;

	return NCCL_TRY(ncclCommInitRankConfig, &init->set->comm[init->rank], (int)init->set->n,
			init->id, init->rank, &init->config);
}

static int nccl_init_all(struct gpus *gpus, struct nccl_comms *set, bool zero)
{
	struct nccl_init init = {.set = set, .config = NCCL_CONFIG};
	int ret = NCCL_TRY(ncclGetUniqueId, &init.id);

	if (ret)
		return ret;
	if (zero)
		init.config.cta_policy = NCCL_CTA_ZERO;
	set->n = gpus->n;
	ret = NCCL_TRY(ncclGroupStart);
	for (init.rank = 0; init.rank < (int)gpus->n && !ret; init.rank++)
		ret = gx_engine_call(gpus->gpu[init.rank].q[0], nccl_init_rank, &init, NULL);
	if (NCCL_TRY(ncclGroupEnd))
		ret = -EIO;
	return ret;
}

static void nccl_drop(struct nccl_comms *set)
{
	for (unsigned i = 0; i < set->n; i++)
		if (set->comm[i])
			nccl.ncclCommDestroy(set->comm[i]);
	memset(set, 0, sizeof(*set));
}

void mover_nccl_end(void)
{
	nccl_drop(&nccl_comms[0]);
	nccl_drop(&nccl_comms[1]);
}

/* ---- windows ---- */

struct nccl_reg {
	struct ncclComm *comm;
	struct ncclWindow_vidmem **win;
	void *mem;
	size_t len;
};

static int nccl_register(void *arg, void *stream)
{
	struct nccl_reg *r = arg;

	return NCCL_TRY(ncclCommWindowRegister, r->comm, r->mem, r->len, r->win,
			NCCL_WIN_SYMMETRIC);
}

/* A group, because registering is a collective call of all ranks. */
static int nccl_windows(struct mover *m)
{
	struct nccl_mover *p = m->priv;
	int ret = 0;

	for (unsigned k = 0; k < 2 && !ret; k++) {
		size_t len = k ? m->gpus->recv_b : m->gpus->send_b;

		if (!len)
			continue;
		ret = NCCL_TRY(ncclGroupStart);
		for (unsigned i = 0; i < m->gpus->n && !ret; i++) {
			struct gpus_one *g = &m->gpus->gpu[i];
			struct nccl_reg r = {p->set->comm[i], &p->win[i][k], k ? g->recv : g->send,
					     len};

			ret = gx_engine_call(g->q[0], nccl_register, &r, NULL);
		}
		if (NCCL_TRY(ncclGroupEnd))
			ret = -EIO;
	}
	for (unsigned i = 0; i < m->gpus->n && !ret; i++)
		if (!p->win[i][1]) {
			mover_why_set("NCCL gave no symmetric window");
			ret = -EIO;
		}
	return ret;
}

/* ---- The mover ---- */

static void nccl_lanes(struct mover *m)
{
	m->nr_lanes = m->pattern <= GPUS_BOTH ? 2 : m->gpus->n;
	for (unsigned i = 0; i < m->nr_lanes; i++)
		m->lane[i] = (struct mover_lane){.q = m->gpus->gpu[i].q[0]};
}

static int nccl_open_mode(struct mover *m, bool zero)
{
	struct nccl_mover *p = calloc(1, sizeof(*p));
	int ret = p ? nccl_load(m->lib_path) : -ENOMEM;

	m->priv = p;
	if (ret)
		return mover_failed(m, "open", ret);
	p->zero = zero;
	p->set = &nccl_comms[zero];
	if (p->set->n && p->set->n != m->gpus->n)
		nccl_drop(p->set);
	if (!p->set->n)
		ret = nccl_init_all(m->gpus, p->set, zero);
	if (!ret && zero)
		ret = nccl_windows(m);
	nccl_lanes(m);
	return ret ? mover_failed(m, "open", ret) : PERF_OK;
}

static int nccl_open(struct mover *m)
{
	return nccl_open_mode(m, false);
}

static int nccl_zero_open(struct mover *m)
{
	return nccl_open_mode(m, true);
}

static void nccl_close(struct mover *m)
{
	struct nccl_mover *p = m->priv;

	for (unsigned i = 0; p && p->set && i < m->gpus->n; i++)
		for (unsigned k = 0; k < 2; k++)
			if (p->win[i][k])
				nccl.ncclCommWindowDeregister(p->set->comm[i], p->win[i][k]);
	free(p);
	m->priv = NULL;
}

struct nccl_call {
	struct mover *m;
	unsigned rank;
};

/* The calls of one rank within a group. */
static int nccl_rank(void *arg, void *stream)
{
	struct nccl_call *call = arg;
	struct mover *m = call->m;
	struct ncclComm *comm = ((struct nccl_mover *)m->priv)->set->comm[call->rank];
	struct gpus_one *g = &m->gpus->gpu[call->rank];
	int ret = 0;

	if (m->pattern == GPUS_ALLGATHER)
		return NCCL_TRY(ncclAllGather, g->recv + call->rank * m->size, g->recv, m->size,
				NCCL_UINT8, comm, stream);
	if (m->pattern == GPUS_ALLTOALL)
		return NCCL_TRY(ncclAlltoAll, g->send, g->recv, m->size / m->gpus->n, NCCL_UINT8,
				comm, stream);
	for (unsigned i = 0; i < m->nr_copies && !ret; i++) {
		const struct gpus_copy *c = &m->copy[i];

		if (c->from == call->rank)
			ret = NCCL_TRY(ncclSend, g->send, c->len, NCCL_UINT8, (int)c->to, comm,
				       stream);
		else if (c->to == call->rank)
			ret = NCCL_TRY(ncclRecv, g->recv, c->len, NCCL_UINT8, (int)c->from, comm,
				       stream);
	}
	return ret;
}

/* A group for each message, as in a program that sends one message after another. */
static int nccl_post(struct mover *m)
{
	int ret = 0;

	for (unsigned b = 0; b < m->batch && !ret; b++) {
		ret = NCCL_TRY(ncclGroupStart);
		for (unsigned i = 0; i < m->nr_lanes && !ret; i++) {
			struct nccl_call call = {m, i};

			ret = gx_engine_call(m->lane[i].q, nccl_rank, &call, NULL);
		}
		if (NCCL_TRY(ncclGroupEnd))
			ret = -EIO;
	}
	return ret ? ret : mover_mark(m);
}

const struct mover_ops mover_nccl = {
	.name = "nccl",
	.doc = "NCCL's kernels: send and receive, all-gather, all-to-all",
	.patterns = 1u << GPUS_WRITE | 1u << GPUS_BOTH | 1u << GPUS_ALLGATHER | 1u << GPUS_ALLTOALL,
	.sms = -1,
	.in_step = true,
	.open = nccl_open,
	.close = nccl_close,
	.post = nccl_post,
	MOVER_GPUS,
};

const struct mover_ops mover_nccl_zero = {
	.name = "nccl-zero",
	.doc = "NCCL's zero-CTA mode with symmetric windows: copy engines",
	.patterns = 1u << GPUS_ALLGATHER | 1u << GPUS_ALLTOALL,
	.sms = 0,
	.in_step = true,
	.open = nccl_zero_open,
	.close = nccl_close,
	.post = nccl_post,
	MOVER_GPUS,
};
