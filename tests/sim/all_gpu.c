/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPUs of the random load: the CPU backend is one, late by some virtual time, and AREA_MEM of each node
 * is its memory. Streams are the load's own: what the work of one makes is there when it gets there. So
 * an operation that does not wait for its stream moves poison.
 */
#include "sim/all.h"
#include "gpu/late_gpu.h"

#include "packet/link_pkt.h"
#include "submit/submit.h"

#include <string.h>

#define STREAMS 3

/* A flag behind the work of a stream. */
struct mark {
	uint32_t *flag; /* NULL: none */
	uint32_t value, op;
	unsigned node;
	uint64_t at_ns;
};

static struct gx_gpu_ops ops;
static struct mark marks[512];
static unsigned marking; /* the node that posts */
static uint64_t stream_ns[ALL_NODES][STREAMS];

static int mark_add(struct gx_gpu *gpu, void *stream, uint32_t *flag, uint32_t value)
{
	uint64_t *last_ns = &stream_ns[marking][(uintptr_t)stream - 1];

	for (unsigned i = 0; i < GX_ARRAY_SIZE(marks); i++) {
		struct mark *m = &marks[i];

		if (m->flag)
			continue;
		*last_ns = GX_MAX(*last_ns, world->now_ns + rnd_len(200 * ALL_US));
		*m = (struct mark){flag, value, world->nr_ops + 1, marking, *last_ns};
		return 0;
	}
	wrong("too many operations wait for streams");
}

static void mark_reached(struct mark *m)
{
	struct aop *op = &world->op[m->op];
	struct cell *c = op->state == OPS_OPEN ? op->from[0] : NULL;

	trace("the stream of operation %u gets there", m->op);
	if (c && op->kind == GX_OP_PUT) {
		c->state = CELL_SRC;
		pattern_fill(cell_at(c), c->op, c->pos, c->len);
	}
	for (uint32_t i = 0;
	     op->state == OPS_OPEN && op->kind == GX_OP_GET && op->to[0] && i < op->len; i++)
		if (cell_at(op->to[0])[i] != ALL_POISON)
			wrong("get %u has written before its stream got there", m->op);
	__atomic_store_n(m->flag, m->value, __ATOMIC_RELEASE);
	m->flag = NULL;
}

uint64_t gpu_marks(uint64_t next)
{
	for (unsigned i = 0; i < GX_ARRAY_SIZE(marks) && world->gpu; i++) {
		if (marks[i].flag && marks[i].at_ns <= world->now_ns)
			mark_reached(&marks[i]);
		if (marks[i].flag)
			next = GX_MIN(next, marks[i].at_ns);
	}
	return next;
}

void gpu_stream(struct aop *op, struct gx_op *gx)
{
	if (!world->gpu || op->kind > GX_OP_GET || op->is_list || op->is_view || op->note_len ||
	    op->flags & GX_OP_NOTE || op->striped || op->must || !chance(25))
		return;
	marking = op->node;
	gx->stream = (void *)(uintptr_t)(1 + rnd(STREAMS));
	if (op->kind != GX_OP_PUT || !op->from[0])
		return;
	memset(cell_at(op->from[0]), ALL_POISON, op->from[0]->len);
	op->from[0]->state = CELL_DST;
}

void gpu_open(unsigned index)
{
	struct node *n = &world->node[index];
	struct gx_gpu *gpu;

	if (late_gpu_open(world->gpu_ns, &gpu))
		wrong("no GPU");
	ops = gx_gpu_host_ops;
	ops.stream_mark = mark_add;
	gpu->ops = &ops;
	gpu->device = 0;
	n->gx->gpu[0] = gpu;
	for (unsigned k = 0; k < n->nr_cores; k++) {
		struct gx_core *core = gx_core(n->gx, k);

		for (unsigned p = 0; p < world->nr_ports; p++) {
			if (link_pkt_gpu(pkt_link(core, p), gpu))
				wrong("no GPU for a core");
			link_pkt_take(pkt_link(core, p), 0);
		}
		if (submit_gpu(core, gpu))
			wrong("no streams for a core");
		submit_take(core, gpu);
		atomic_store(&core->gpus, 1); /* it has taken it */
	}
}

/* All streams of the node go their way at once, before its context closes: that leaves the flags which one may
 * still write. */
void gpu_close(unsigned node)
{
	for (unsigned i = 0; i < GX_ARRAY_SIZE(marks); i++) {
		if (!marks[i].flag || marks[i].node != node)
			continue;
		__atomic_store_n(marks[i].flag, marks[i].value, __ATOMIC_RELEASE);
		marks[i].flag = NULL;
	}
	memset(stream_ns[node], 0, sizeof(stream_ns[node]));
}
