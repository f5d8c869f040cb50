// SPDX-License-Identifier: Apache-2.0
/*
 * Cuts messages over the lanes of a connection, and puts them together again. Runs on the queue's
 * thread: no core waits for another.
 */
#include "submit/queue.h"

#include <errno.h>

/* Part @i of @parts of @op: @list, or whole chunks; the last part has the rest. */
static struct gx_op part_op(const struct gx_op *op, struct gx_list *list, uint32_t chunk_b,
			    unsigned i, unsigned parts)
{
	uint64_t chunks = (op->len + chunk_b - 1) / chunk_b;
	uint64_t from = chunks * i / parts * chunk_b;
	uint64_t to = GX_MIN(chunks * (i + 1) / parts * chunk_b, op->len);
	struct gx_op part = *op;

	part.flags &= GX_OP_LOCAL;
	part.note_len = 0;
	part.list = list;
	if (list)
		return part;
	if (part.mem)
		part.off += from;
	else
		part.addr = (char *)part.addr + from;
	part.remote_off += from;
	part.len = to - from;
	return part;
}

static unsigned parts_of(const struct gx_conn *c, const struct gx_op *op)
{
	uint64_t len = op->list ? list_len(op) : op->len;
	uint64_t chunks = (len + c->agreed.chunk_b - 1) / c->agreed.chunk_b;

	return GX_MIN(GX_MAX(chunks, 1), c->nr_lanes);
}

/* Does each lane that the message needs have a free request? Two lanes may share a core. */
static bool parts_room(const struct gx_queue *q, const struct gx_conn *c, unsigned parts)
{
	for (unsigned i = 0; i < parts; i++) {
		const struct gx_core *core = c->ep[(q->spread + i) % c->nr_lanes]->core;
		unsigned need = 0;

		for (unsigned k = 0; k < parts; k++)
			need += c->ep[(q->spread + k) % c->nr_lanes]->core == core;
		if (q->lane[core->index]->nr_free < need)
			return false;
	}
	return true;
}

/* @lists: of the parts, if it is a list. */
static void msg_send(struct gx_queue *q, struct gx_conn *c, const struct gx_op *op,
		     struct gx_list *const lists[], unsigned parts, uint32_t mark)
{
	struct sub_msg *m = q->msg_free;

	q->msg_free = m->next;
	*m = (struct sub_msg){.op = *op,
			      .ep = c->ep[q->spread % c->nr_lanes],
			      .mark = mark,
			      .posted_ns = sub_stamp(q),
			      .left = parts,
			      .locals = core_op_comps(op) > 1 ? parts : 0,
			      .imm = op->kind == GX_OP_PUT && op->flags & (GX_OP_IMM | GX_OP_NOTE)};
	if (op->flags & GX_OP_NOTE) {
		struct sub_msg **at = &q->notes;

		while (*at)
			at = &(*at)->note_next;
		*at = m;
	}
	for (unsigned i = 0; i < parts; i++) {
		struct gx_ep *ep = c->ep[(q->spread + i) % c->nr_lanes];
		struct gx_op part = part_op(op, lists[i], c->agreed.chunk_b, i, parts);
		struct sub_lane *l = q->lane[ep->core->index];
		struct sub_req *r = sub_req_get(l);
		void *item = r;

		sub_req_fill(r, ep, &part, mark, m);
		sub_lane_send(l, &item, 1);
	}
}

/* Lane 0 carries all notes of a connection, in the order of posting. Return: the message whose note is
 * the next; NULL: none has to wait. */
static const struct sub_msg *note_first(const struct gx_queue *q, const struct gx_conn *c)
{
	const struct sub_msg *m = q->notes;

	while (m && m->ep->conn != c)
		m = m->note_next;
	return m;
}

/* Is an operation of the queue under way on the connection, receives aside? */
static bool conn_is_busy(const struct gx_queue *q, const struct gx_conn *c)
{
	for (unsigned i = 0; i < q->nr_lanes; i++)
		for (uint32_t k = 0; k < q->depth; k++) {
			const struct sub_req *r = &q->lane[i]->reqs[k];

			if (r->busy && r->ep->conn == c && r->op.kind != GX_OP_RECV)
				return true;
		}
	return false;
}

/* Over several lanes, of which each has a free request. */
static int msg_begin(struct gx_queue *q, struct gx_conn *c, const struct gx_op *op, unsigned *parts)
{
	struct gx_list *lists[GX_HELLO_LANES] = {0};
	struct gx_op own = *op;
	uint32_t mark;
	int ret = sub_stream_get(q, op, &mark);

	if (!ret)
		ret = sub_note_take(&own);
	if (!ret && op->list) {
		ret = list_split(q->gx, &q->lists, &own, *parts, lists);
		if (ret < 0)
			sub_note_put(&own);
		else
			*parts = (unsigned)ret;
	}
	if (ret < 0)
		return ret;
	msg_send(q, c, &own, lists, *parts, mark);
	return 0;
}

static int msg_make(struct gx_queue *q, struct gx_conn *c, const struct gx_op *op)
{
	bool note = op->flags & GX_OP_NOTE;
	struct gx_ep *ep = c->ep[note ? 0 : q->spread % c->nr_lanes];
	int ret = op_check(op);
	unsigned parts;
	void *item;

	if (ret == OP_IS_RUN)
		ret = 0;
	if (!ret && op->kind != GX_OP_PUT && op->kind != GX_OP_GET && op->kind != GX_OP_FLUSH)
		ret = gx_fail(-EINVAL,
			      "only PUT and GET go over all lanes: a SEND and its RECV meet "
			      "on one endpoint (gx_post())");
	if (!ret && gx_unlikely(sub_is_gate(op)) && conn_is_busy(q, c))
		ret = -EAGAIN;
	if (ret)
		return ret;
	parts = parts_of(c, op);
	if (parts == 1 && note && note_first(q, c)) {
		ret = -EAGAIN;
	} else if (parts == 1) {
		ret = sub_req_make(q, ep, op, &item);
		if (!ret) {
			((struct sub_req *)item)->striped = true;
			sub_lane_send(q->lane[ep->core->index], &item, 1);
		}
	} else {
		ret = q->msg_free && parts_room(q, c, parts) ? msg_begin(q, c, op, &parts)
							     : -EAGAIN;
	}
	if (!ret)
		q->spread = (q->spread + parts) % c->nr_lanes;
	return ret;
}

GX_EXPORT int gx_post_striped(struct gx_queue *q, struct gx_conn *c, const struct gx_op ops[],
			      unsigned n)
{
	unsigned taken = 0;
	int ret = q->core ? gx_fail(-EINVAL, "a core's queue does not reach the lanes of other "
					     "cores: stripe over one of gx_queue_open()")
			  : sub_conn_check(q, c);

	while (!ret && taken < n) {
		ret = msg_make(q, c, &ops[taken]);
		taken += !ret;
	}
	return taken || ret == -EAGAIN ? (int)taken : ret;
}

/* All bytes of @m are visible: send the immediate, with the request that came back last. */
static void msg_notify(struct sub_msg *m, struct sub_req *r)
{
	struct gx_op op = m->op;
	void *item = r;

	op.flags = GX_OP_IMM;
	op.len = 0;
	op.stream = NULL;
	m->imm = false;
	m->left = 1;
	sub_req_fill(r, r->ep, &op, SUB_NO_MARK, m);
	sub_lane_send(r->lane, &item, 1);
}

/* Send the note of *@at, which is ready, as a put without data on lane 0. One that was cancelled while
 * it waited for its turn ends there, too late. */
static bool msg_note(struct gx_queue *q, struct sub_msg **at)
{
	struct sub_msg *m = *at;
	struct gx_ep *ep = m->ep->conn->ep[0];
	struct gx_op op = {.kind = GX_OP_PUT,
			   .flags = GX_OP_NOTE,
			   .user = m->op.user,
			   .deadline_ns = m->op.deadline_ns,
			   .note = m->op.note,
			   .note_len = m->op.note_len};
	struct sub_lane *l = q->lane[ep->core->index];
	struct sub_req *r = m->last->lane == l ? m->last : sub_req_get(l);
	void *item = r;

	if (!r)
		return false;
	if (m->cancelled) {
		m->err = -ECANCELED;
		op.deadline_ns = 1;
	}
	*at = m->note_next;
	m->imm = false;
	m->left = 1;
	sub_req_fill(r, ep, &op, SUB_NO_MARK, m);
	if (r != m->last)
		sub_req_put(m->last);
	sub_lane_send(l, &item, 1);
	return true;
}

void sub_notes_send(struct gx_queue *q)
{
	struct sub_msg **at = &q->notes;

	while (*at) {
		const struct sub_msg *m = *at;

		if (note_first(q, m->ep->conn) != m || !m->last || !msg_note(q, at))
			at = &(*at)->note_next;
	}
}

/* It failed, so there is no note of it. */
static void msg_unlist(struct gx_queue *q, const struct sub_msg *m)
{
	struct sub_msg **at = &q->notes;

	while (*at && *at != m)
		at = &(*at)->note_next;
	if (*at)
		*at = m->note_next;
}

bool sub_msg_back(struct gx_queue *q, struct sub_req *r, struct gx_comp *comp)
{
	struct sub_msg *m = r->msg;
	bool silent = m->op.flags & GX_OP_SILENT;

	r->busy = false;
	if (r->status && !m->err) {
		m->err = r->status;
		m->op.tag = r->op.list ? r->tag : m->op.tag;
		sub_reqs_cancel(q, m, NULL, 0);
	}
	list_put(r->op.list);
	r->op.list = NULL;
	if (--m->left) {
		sub_req_put(r);
		return false;
	}
	if (m->imm && m->cancelled && !m->err)
		m->err = -ECANCELED;
	if (m->imm && !m->err && m->op.flags & GX_OP_NOTE) {
		r->busy = true;
		m->last = r;
		sub_notes_send(q);
		return false;
	}
	if (m->imm && !m->err) {
		msg_notify(m, r);
		return false;
	}
	if (gx_unlikely(m->op.flags & GX_OP_NOTE)) {
		msg_unlist(q, m);
		sub_note_put(&m->op);
	}
	sub_comp_set(comp, GX_COMP_DONE, &m->op, m->ep, m->err);
	comp->len = m->err ? 0 : m->op.len;
	sub_hist_take(q, comp, m->posted_ns);
	silent = silent && !m->err;
	if (m->mark != SUB_NO_MARK)
		mark_put(q->marks, m->mark);
	m->next = q->msg_free;
	q->msg_free = m;
	sub_req_put(r);
	return !silent;
}
