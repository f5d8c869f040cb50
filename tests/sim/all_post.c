/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Posting and cancelling in the random load. An operation names fresh cells, and its number is its
 * .user, its pattern, its immediate and the first bytes of its note.
 */
#include "sim/all.h"

#include <errno.h>
#include <string.h>

#define LEN_MAX	   16000
#define SEG_MAX	   1500
#define TAG_CLASS  8 /* bits */
#define TAG_ANY	   (1ull << 63)
#define CLASSES	   3
#define BESIDE_NS  (20 * ALL_MS)
#define DRIBBLE_NS (2 * ALL_S)	 /* sockets of a script take few bytes at a time */
#define STAGED_NS  (20 * ALL_MS) /* so long a peer that says nothing keeps pinned buffers of a GPU */

static int only_link = -1; /* where posts go; -1: anywhere */
static bool only_lists;	   /* all posts are puts of lists */
static bool only_views;	   /* all are puts with views, by one lane of one side */

struct post {
	struct aop *op;
	struct alink *l;
	struct gx_op gx;
	struct gx_seg seg[ALL_SEGS];
	uint8_t note[GX_NOTE_MAX];
};

struct gx_queue *aop_queue(const struct aop *op)
{
	const struct node *n = &world->node[op->node];
	const struct alink *l = &world->link[op->link];
	struct gx_ep *ep;

	if (op->queue < ALL_QUEUES)
		return n->queue[op->queue].life == op->queue_life && !n->queue[op->queue].closing
			       ? n->queue[op->queue].q
			       : NULL;
	ep = l->life == op->life ? link_ep(l, op->side, op->lane) : NULL;
	return ep ? gx_core_queue(gx_ep_core(ep)) : NULL;
}

/* ---- what it names ---- */

static void seg_own(struct gx_seg *s, const struct cell *c)
{
	const struct area *a = &world->node[c->node].area[c->area];

	s->mem = c->area == AREA_RAW ? NULL : a->mem;
	s->off = c->area == AREA_RAW ? (uintptr_t)cell_at(c) : c->off;
}

/* Behind @before by a few bytes, or anywhere. */
static struct cell *place(unsigned node, enum area_id area, uint32_t lo, uint32_t hi, uint32_t len,
			  const struct cell *before, uint32_t op, uint32_t pos,
			  enum cell_state state)
{
	uint32_t off;

	if (before && before->area == area && chance(85)) {
		off = before->off + before->len + (chance(50) ? 0 : (uint32_t)rnd_len(64));
		if (off + len <= hi)
			return cell_new_at(node, area, off, len, op, pos, state);
	}
	return cell_new(node, area, lo, hi, len, op, pos, state);
}

static enum area_id own_area(unsigned node)
{
	enum area_id area = (enum area_id)rnd(AREAS);

	return world->node[node].area[area].mem || area == AREA_RAW ? area : AREA_RAW;
}

static bool far_key(struct post *p, struct far *f)
{
	unsigned need = p->op->kind == GX_OP_PUT ? GX_ACCESS_PUT : GX_ACCESS_GET;
	int index = (int)rnd(ALL_KEYS);
	struct key *k = &world->key[index];
	struct gx_region r = GX_INIT(r);
	int ret;

	if (!k->len || k->node != p->op->peer)
		return false;
	ret = gx_conn_key(p->l->conn[p->op->side], &k->key, &r);
	if (ret == -EXDEV) /* of the context that was there before */
		return false;
	if (ret || r.len != k->len)
		wrong("gx_conn_key: %d, %s", ret, gx_error());
	*f = (struct far){.area = AREA_REG, .lo = k->off, .hi = k->off + k->len, .token = r.token};
	if (!k->used || (k->until_ns && world->now_ns >= k->until_ns))
		f->must = -ESTALE;
	else if (!(k->access & need) || (k->life && k->life != p->l->life))
		f->must = -EACCES;
	p->op->key = index;
	return true;
}

static void far_draw(struct post *p, struct far *f)
{
	p->op->key = -1;
	*f = (struct far){.area = AREA_MEM, .hi = ALL_AREA_B};
	f->token = p->l->mem[p->op->side].token;
	if (chance(40) && far_key(p, f))
		return;
	if (chance(2)) {
		f->token ^= 1ull << 40;
		f->must = -ESTALE;
	} else if (chance(1)) {
		f->must = -ERANGE;
	}
}

/* Over all lanes it goes in parts, of which the last one alone is out of range: so many bytes are in
 * the others, and may land before it fails. */
static uint32_t first_parts(const struct post *p, uint32_t len)
{
	uint32_t chunk_b = p->l->conn[p->op->side]->agreed.chunk_b;
	uint32_t chunks = (len + chunk_b - 1) / chunk_b, parts = GX_MIN(chunks, p->l->nr_lanes);

	return p->op->striped ? chunks * (parts - 1) / parts * chunk_b : 0;
}

/* Segment @i of a put or get: its cells at both ends. */
static bool seg_place(struct post *p, const struct far *f, unsigned i, uint32_t len, uint32_t pos,
		      enum area_id own)
{
	struct aop *op = p->op;
	uint32_t id = (uint32_t)(op - world->op);
	bool put = op->kind == GX_OP_PUT;
	struct cell **near = put ? op->from : op->to, **away = put ? op->to : op->from;
	uint32_t in_range;

	p->seg[i] = (struct gx_seg){.token = f->token, .len = len};
	if (!len) {
		p->seg[i].off = (uintptr_t)world->node[op->node].area[AREA_RAW].b;
		return true;
	}
	near[i] = place(op->node, own, 0, ALL_AREA_B, len, i ? near[i - 1] : NULL, id, pos,
			put ? CELL_SRC : CELL_DST);
	if (!near[i])
		return false;
	seg_own(&p->seg[i], near[i]);
	if (f->must) {
		p->seg[i].remote_off = f->must == -ERANGE ? ALL_AREA_B - len + 1 : 0;
		in_range = f->must == -ERANGE ? first_parts(p, len) : 0;
		if (!in_range)
			return true;
		away[i] = cell_new_at(op->peer, f->area, ALL_AREA_B - len + 1, in_range, id, pos,
				      put ? CELL_DST : CELL_SRC);
		return away[i];
	}
	away[i] = place(op->peer, f->area, f->lo, f->hi, len, i ? away[i - 1] : NULL, id, pos,
			put ? CELL_DST : CELL_SRC);
	if (!away[i])
		return false;
	p->seg[i].remote_off = away[i]->off - f->lo;
	return true;
}

static bool post_move(struct post *p)
{
	struct aop *op = p->op;
	enum area_id own = own_area(op->node);
	struct far f;

	far_draw(p, &f);
	op->must = f.must;
	if (only_views ||
	    (world->wide && (op->kind == GX_OP_PUT || world->cfg.seed >= ALL_SOCKS) && chance(30)))
		return view_place(op, &f, own, &p->gx);
	op->is_list = !f.must && (only_lists || chance(40));
	op->nr_segs = op->is_list ? 1 + (unsigned)rnd_len(ALL_SEGS - 1) : 1;
	if (op->is_list && only_lists)
		op->nr_segs = ALL_SEGS;
	for (unsigned i = 0; i < op->nr_segs; i++) {
		uint32_t len = (uint32_t)(op->is_list ? rnd_len(SEG_MAX) : rnd_len(LEN_MAX));

		if (!op->is_list && !f.must && chance(4))
			len = 0;
		if (!seg_place(p, &f, i, len, (uint32_t)op->len, own))
			return false;
		op->len += len;
	}
	if (op->is_list) {
		p->gx.segs = p->seg;
		p->gx.nr_segs = op->nr_segs;
		return true;
	}
	p->gx.mem = p->seg[0].mem;
	if (p->gx.mem)
		p->gx.off = p->seg[0].off;
	else
		p->gx.addr = (void *)(uintptr_t)p->seg[0].off;
	p->gx.token = p->seg[0].token;
	p->gx.remote_off = p->seg[0].remote_off;
	p->gx.len = op->len;
	return true;
}

static bool post_message(struct post *p)
{
	struct aop *op = p->op;
	uint32_t id = (uint32_t)(op - world->op);
	bool send = op->kind == GX_OP_SEND;
	struct cell **c = send ? op->from : op->to;
	struct gx_seg s;

	op->key = -1;
	op->nr_segs = 1;
	op->len = rnd_len(send ? LEN_MAX / 2 : LEN_MAX);
	*c = cell_new(op->node, own_area(op->node), 0, ALL_AREA_B, (uint32_t)op->len, id, 0,
		      send ? CELL_SRC : CELL_RECV);
	if (!*c)
		return false;
	seg_own(&s, *c);
	p->gx.mem = s.mem;
	if (s.mem)
		p->gx.off = s.off;
	else
		p->gx.addr = (void *)(uintptr_t)s.off;
	p->gx.len = op->len;
	op->tag = rnd(CLASSES) | (send ? (uint64_t)id << TAG_CLASS : 0);
	if (!send)
		op->mask = chance(20) ? TAG_ANY : (1u << TAG_CLASS) - 1;
	if (!send && op->mask == TAG_ANY)
		op->tag = 0;
	p->gx.tag = op->tag;
	p->gx.tag_mask = op->mask;
	return true;
}

static void post_note(struct post *p)
{
	uint32_t id = (uint32_t)(p->op - world->op);
	uint32_t len = chance(40) ? 4 : 4 + (uint32_t)rnd_len(GX_NOTE_MAX - 4);

	memcpy(p->note, &id, sizeof(id));
	pattern_fill(p->note + 4, id, 4, len - 4);
	p->gx.note = p->note;
	p->gx.note_len = p->op->note_len = len;
}

static void post_flags(struct post *p)
{
	struct aop *op = p->op;
	bool reads = op->kind == GX_OP_PUT || op->kind == GX_OP_SEND;

	if (op->kind == GX_OP_FLUSH)
		return;
	if (reads && chance(20))
		op->flags |= GX_OP_LOCAL;
	if (op->kind != GX_OP_RECV && chance(4))
		op->flags |= GX_OP_SILENT;
	if (op->kind == GX_OP_PUT && chance(25))
		op->flags |= GX_OP_IMM;
	else if (op->kind == GX_OP_PUT && chance(30))
		op->flags |= GX_OP_NOTE;
	if (op->kind != GX_OP_RECV && op->queue < ALL_QUEUES && !op->striped && chance(12))
		op->flags |= GX_OP_FENCE;
	if (chance(8))
		op->deadline_ns = world->now_ns + rnd_len(4 * ALL_MS);
	if (op->deadline_ns && is_message(op))
		*messages_fail(op) = true;
	p->gx.flags = op->flags;
	p->gx.deadline_ns = op->deadline_ns;
	p->gx.imm = (uint64_t)(op - world->op);
	if (op->flags & GX_OP_NOTE)
		post_note(p);
	gpu_stream(op, &p->gx);
}

/* ---- who posts ---- */

static bool post_where(struct post *p)
{
	struct aop *op = p->op;
	const struct all_queue *q;

	op->link = (uint8_t)(only_link < 0 ? (int)rnd(ALL_LINKS) : only_link);
	p->l = &world->link[op->link];
	op->side = (uint8_t)(only_views ? 0 : rnd(2));
	if (p->l->state != LINK_UP || !p->l->conn[op->side])
		return false;
	op->node = (uint8_t)p->l->node[op->side];
	op->peer = (uint8_t)p->l->node[!op->side];
	op->life = p->l->life;
	op->lane = (uint8_t)(only_views ? 0 : rnd(p->l->nr_lanes));
	op->queue = (uint8_t)(chance(50) || only_link >= 0 ? ALL_QUEUES : rnd(ALL_QUEUES));
	if (op->queue < ALL_QUEUES && !world->node[op->node].queue[op->queue].q)
		op->queue = ALL_QUEUES;
	if (op->queue == ALL_QUEUES)
		return true;
	q = &world->node[op->node].queue[op->queue];
	op->queue_life = q->life;
	op->striped = op->kind <= GX_OP_GET && chance(20);
	return !q->closing;
}

static enum gx_op_kind post_kind(void)
{
	unsigned n = (unsigned)rnd(100);

	if (only_views && world->cfg.seed >= ALL_SOCKS && n >= 60)
		return GX_OP_GET;
	if (n < 40 || only_lists || only_views)
		return GX_OP_PUT;
	if (n < 58)
		return GX_OP_GET;
	if (n < 77)
		return GX_OP_SEND;
	return n < 97 ? GX_OP_RECV : GX_OP_FLUSH;
}

static const char *kind_name(enum gx_op_kind kind)
{
	static const char *const names[] = {"", "put", "get", "send", "recv", "flush"};

	return names[kind];
}

static void post_told(const struct post *p)
{
	const struct aop *op = p->op;

	trace("%s %u: connection %u node %u lane %u queue %u%s, %llu bytes in %u, flags %x, key %d, tag "
	      "%llx, must %d, deadline %llu",
	      kind_name(op->kind), (unsigned)(op - world->op), op->life, op->node, op->lane,
	      op->queue, op->striped ? " striped" : "", (unsigned long long)op->len, op->nr_segs,
	      op->flags, op->key, (unsigned long long)op->tag, op->must,
	      (unsigned long long)op->deadline_ns);
}

static void op_drop_cells(struct aop *op)
{
	for (unsigned i = 0; i < op->nr_segs; i++) {
		cell_free(op->from[i]);
		cell_free(op->to[i]);
		op->from[i] = op->to[i] = NULL;
	}
}

static void post_one(void)
{
	static struct post p;
	struct aop *op = &world->op[world->nr_ops + 1];
	struct gx_ep *ep;
	int ret;

	if (world->nr_ops + 2 >= ALL_OPS)
		return;
	memset(op, 0, sizeof(*op));
	memset(&p, 0, offsetof(struct post, note));
	p.op = op;
	op->kind = post_kind();
	if (!post_where(&p))
		return;
	if (op->kind == GX_OP_FLUSH && op->queue == ALL_QUEUES)
		return;
	p.gx.kind = op->kind;
	p.gx.user = (uint64_t)(op - world->op);
	if (op->kind != GX_OP_FLUSH &&
	    !(op->kind <= GX_OP_GET ? post_move(&p) : post_message(&p))) {
		op_drop_cells(op);
		return;
	}
	post_flags(&p);
	post_told(&p);
	ep = link_ep(p.l, op->side, op->lane);
	ret = op->striped ? gx_post_striped(aop_queue(op), p.l->conn[op->side], &p.gx, 1)
			  : gx_post(aop_queue(op), ep, &p.gx, 1);
	if (ret != 1) {
		trace("not taken: %d", ret);
		if (ret && !(ret == -ENOTCONN && atomic_load(&ep->fault)))
			wrong("post of %s: %d, %s", kind_name(op->kind), ret, gx_error());
		op_drop_cells(op);
		return;
	}
	op->state = OPS_OPEN;
	op->posted_ns = world->now_ns;
	world->nr_ops++;
	world->nr_open++;
	world->counts.ops++;
	world->counts.bytes += op->len;
	hash_add(op->kind + op->len * 8);
}

/* @index is a new connection: a put, a list, a note. */
void post_beside(unsigned index)
{
	uint64_t end = world->now_ns + BESIDE_NS + (world->gpu ? STAGED_NS : 0) +
		       (world->cfg.seed >= ALL_SOCKS && world->other == KIND_TCP ? DRIBBLE_NS : 0);
	uint32_t first = world->nr_ops + 1;

	only_link = (int)index;
	for (unsigned i = 0; i < 8; i++)
		post_one();
	only_link = -1;
	for (uint32_t i = first; i <= world->nr_ops; i++)
		while (world->op[i].state == OPS_OPEN && world->op[i].kind <= GX_OP_GET &&
		       !(world->op[i].flags & (GX_OP_FENCE | GX_OP_SILENT))) {
			if (world->now_ns > end)
				wrong("operation %u to a healthy peer is held up by one that stands "
				      "still",
				      i);
			world_pass(20 * ALL_US);
		}
}

void post_some(void)
{
	unsigned n = chance(15) ? 1 + (unsigned)rnd(12) : 1;

	while (n--)
		post_one();
}

/* ---- cancelling ---- */

static void cancel_one(struct aop *op)
{
	struct alink *l = &world->link[op->link];
	struct gx_queue *q = aop_queue(op);
	struct gx_ep *ep;
	int n;

	if (!q || l->life != op->life || !l->conn[op->side])
		return;
	ep = link_ep(l, op->side, op->lane);
	n = gx_cancel(q, ep, (uint64_t)(op - world->op));
	if (n < 0)
		wrong("gx_cancel: %d, %s", n, gx_error());
	trace("cancel %u: found %d", (unsigned)(op - world->op), n);
	if (n > 1)
		wrong("gx_cancel found %d operations of one name", n);
	op->cancelled |= n > 0;
	if (n && is_message(op))
		*messages_fail(op) = true;
	hash_add((uint64_t)n);
}

void post_cancel(void)
{
	for (unsigned i = 0; i < 20; i++) {
		struct aop *op = &world->op[1 + rnd(world->nr_ops)];

		if (op->state != OPS_OPEN)
			continue;
		cancel_one(op);
		return;
	}
}

void post_storm(void)
{
	uint32_t first = world->nr_ops + 1;

	/* The peer keeps 16 views of an endpoint. */
	only_views = world->cfg.seed >= ALL_GPUS && chance(50);
	only_lists = !only_views;
	only_link = (int)rnd(only_views ? 2 : ALL_LINKS);
	for (unsigned i = 0; i < (only_views ? 40 : 6); i++)
		post_one();
	only_lists = only_views = false;
	only_link = -1;
	world_pass(rnd_len(100 * ALL_US));
	for (uint32_t i = first; i <= world->nr_ops; i++)
		if (world->op[i].state == OPS_OPEN)
			cancel_one(&world->op[i]);
}

void cancel_waiting(void)
{
	for (uint32_t i = 1; i <= world->nr_ops; i++) {
		struct aop *op = &world->op[i];

		if (op->state == OPS_OPEN && (op->kind == GX_OP_SEND || op->kind == GX_OP_RECV))
			cancel_one(op);
	}
}
