/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps of the random load, but for posts.
 */
#include "sim/all.h"

#include <errno.h>
#include <string.h>

#define QUEUE_END_NS (2000 * ALL_MS)

/* ---- keys ---- */

/* The owner of memory takes back what @op has there. */
static void op_stale(struct aop *op)
{
	struct cell **there = op->kind == GX_OP_PUT ? op->to : op->from;

	if (!op->stale) {
		op->stale_full = true;
		for (unsigned i = 0; i < op->nr_segs && op->kind == GX_OP_PUT; i++)
			op->stale_full &= !there[i] || cell_is_full(there[i]);
	}
	op->stale = true;
	for (unsigned i = 0; i < op->nr_segs; i++) {
		cell_free(there[i]);
		there[i] = NULL;
	}
}

static void key_end(int index)
{
	struct key *k = &world->key[index];

	k->used = false;
	for (uint32_t i = 1; i <= world->nr_ops; i++) {
		struct aop *op = &world->op[i];

		if (op->kind <= GX_OP_GET && op->key == index &&
		    (op->state == OPS_OPEN || op->status))
			op_stale(op);
	}
}

static void key_make(void)
{
	unsigned index = 0, node = (unsigned)rnd(world->nr_nodes);
	struct gx_key_opts opts = GX_INIT(opts);
	struct node *n = &world->node[node];
	struct alink *l = &world->link[rnd(ALL_LINKS)];
	struct key *k;

	while (index < ALL_KEYS && world->key[index].len)
		index++;
	if (index == ALL_KEYS || !n->area[AREA_REG].mem)
		return;
	k = &world->key[index];
	*k = (struct key){.used = true, .node = node, .access = 1 + (unsigned)rnd(3)};
	k->off = (uint32_t)rnd(ALL_AREA_B / 2);
	k->len = 1 + (uint32_t)rnd(ALL_AREA_B - k->off);
	if (chance(20))
		k->until_ns = world->now_ns + 100 * ALL_US + rnd_len(8 * ALL_MS);
	opts.access = k->access;
	opts.off = k->off;
	opts.len = k->len;
	opts.until_ns = k->until_ns;
	for (int s = 0; s < 2 && chance(50); s++)
		if (l->state == LINK_UP && l->node[s] == node && l->conn[s]) {
			opts.conn = l->conn[s];
			k->life = l->life;
		}
	if (gx_mem_key(n->area[AREA_REG].mem, &opts, &k->key))
		wrong("gx_mem_key: %s", gx_error());
	trace("key %u of node %u: %u bytes at %u, access %u, connection %u, until %llu", index,
	      node, k->len, k->off, k->access, k->life, (unsigned long long)k->until_ns);
}

/* Memory is not let go of while packets in the port refer to it, which leave in virtual time. The call
 * would wait for that in real time. Return: none does. */
static bool port_lets_go(unsigned node)
{
	uint64_t end = world->now_ns + ALL_MS;

	while (ports_hold(node) && world->now_ns < end)
		world_pass(ALL_US);
	return !ports_hold(node);
}

/* Copies of a GPU may still be at @what. */
static void let_go_wait(uint64_t *end, const char *what)
{
	if (!*end)
		*end = world->now_ns + QUEUE_END_NS;
	if (world->now_ns > *end)
		wrong("%s is not let go of", what);
	world_pass(10 * ALL_US);
}

static void key_withdraw(void)
{
	int index = (int)rnd(ALL_KEYS), ret;
	struct key *k = &world->key[index];
	uint64_t end = 0;

	if (!k->used || !port_lets_go(k->node))
		return;
	while ((ret = gx_key_withdraw(world->node[k->node].gx, &k->key)) == -EAGAIN && world->gpu) {
		k->until_ns = world->now_ns; /* from now on it may be of no use */
		let_go_wait(&end, "a key");
	}
	trace("key %d is withdrawn: %d", index, ret);
	if (ret)
		wrong("gx_key_withdraw: %d, %s", ret, gx_error());
	hash_add((uint64_t)index);
	key_end(index);
}

/* The owner may write what it likes there now, and packets that go again bring that. So what such a get
 * has written counts only if it ends well. */
static void get_lapses(struct aop *op)
{
	op_stale(op);
	for (unsigned i = 0; i < op->nr_segs; i++)
		if (op->to[i])
			op->to[i]->state = CELL_RECV;
}

/* Leases that are over. */
void keys_lapse(void)
{
	for (int i = 0; i < ALL_KEYS; i++) {
		struct key *k = &world->key[i];

		if (!k->used || !k->until_ns || k->lapsed || world->now_ns < k->until_ns)
			continue;
		k->lapsed = true;
		for (uint32_t j = 1; j <= world->nr_ops; j++) {
			struct aop *op = &world->op[j];

			if (op->kind == GX_OP_GET && op->key == i && op->state == OPS_OPEN &&
			    !op->must)
				get_lapses(op);
		}
	}
}

/* ---- memory that is freed and registered again ---- */

static bool op_is_in(const struct aop *op, unsigned area)
{
	bool reads = op->kind == GX_OP_PUT || op->kind == GX_OP_SEND;
	struct cell *const *own = reads ? op->from : op->to;

	for (unsigned i = 0; i < op->nr_segs; i++)
		if (own[i] && own[i]->area == area)
			return true;
	return op->len == 0 || op->nr_local;
}

static void own_freed(struct aop *op, unsigned area)
{
	op->freed = true;
	if (is_message(op))
		*messages_fail(op) = true;
	for (unsigned i = 0; i < op->nr_segs; i++) {
		struct cell **own =
			op->kind == GX_OP_PUT || op->kind == GX_OP_SEND ? op->from : op->to;

		if (!own[i] || own[i]->area != area)
			continue;
		cell_free(own[i]);
		own[i] = NULL;
	}
}

/* Before all is let go of, some may have ended. */
static void mem_goes(unsigned node)
{
	for (int i = 0; i < ALL_KEYS; i++)
		if (world->key[i].used && world->key[i].node == node)
			world->key[i].until_ns = world->now_ns;
	for (uint32_t i = 1; i <= world->nr_ops; i++) {
		struct aop *op = &world->op[i];

		if (op->state != OPS_OPEN || op->node != node || !op_is_in(op, AREA_REG))
			continue;
		op->freed = true;
		if (is_message(op))
			*messages_fail(op) = true;
	}
}

static void mem_again(void)
{
	unsigned index = (unsigned)rnd(world->nr_nodes);
	struct area *a = &world->node[index].area[AREA_REG];
	uint64_t end = 0;
	int ret = 0;

	if (a->mem) {
		if (!port_lets_go(index))
			return;
		while ((ret = gx_mem_free(a->mem)) == -EAGAIN && world->gpu) {
			mem_goes(index);
			let_go_wait(&end, "memory");
		}
		trace("node %u frees its memory: %d", index, ret);
		if (ret)
			wrong("gx_mem_free: %d, %s", ret, gx_error());
		a->mem = NULL;
		for (int i = 0; i < ALL_KEYS; i++)
			if (world->key[i].used && world->key[i].node == index)
				key_end(i);
		for (uint32_t i = 1; i <= world->nr_ops; i++) {
			struct aop *op = &world->op[i];

			if (op->state == OPS_OPEN && op->node == index && op_is_in(op, AREA_REG))
				own_freed(op, AREA_REG);
		}
		hash_add(index);
		if (chance(40))
			return;
	}
	if (gx_mem_reg(world->node[index].gx, GX_MEM_HOST, 0, a->b, ALL_AREA_B, &a->mem))
		wrong("gx_mem_reg: %s", gx_error());
	trace("node %u registers its memory again", index);
}

/* ---- queues ---- */

static bool node_has_notify(const struct node *n)
{
	for (unsigned i = 0; i < ALL_QUEUES; i++)
		if (n->queue[i].q && n->queue[i].notify)
			return true;
	return false;
}

static void queue_open(void)
{
	struct node *n = &world->node[rnd(world->nr_nodes)];
	struct all_queue *q = &n->queue[rnd(ALL_QUEUES)];
	struct gx_queue_opts opts = GX_INIT(opts);
	int ret;

	if (q->q)
		return;
	opts.depth = 8u << rnd(5);
	opts.notify = !node_has_notify(n) && chance(40);
	ret = gx_queue_open(n->gx, &opts, &q->q);
	if (ret == -EAGAIN) {
		q->q = NULL;
		return;
	}
	if (ret)
		wrong("gx_queue_open: %d, %s", ret, gx_error());
	q->notify = opts.notify;
	q->closing = false;
	q->life = ++world->nr_queue_lives;
	trace("node %u opens queue %u, depth %u%s", (unsigned)(n - world->node),
	      (unsigned)(q - n->queue), (unsigned)opts.depth, q->notify ? ", notes" : "");
}

/* No completion comes any more, and every buffer is the program's. */
static void op_dropped(struct aop *op)
{
	op->dropped = true;
	op->state = OPS_ENDED;
	op->status = -ECANCELED;
	op->ended_ns = world->now_ns;
	if (is_message(op))
		*messages_fail(op) = true;
	aop_let_go(op);
	world->nr_open--;
}

static void queue_close(unsigned node, unsigned index)
{
	struct all_queue *q = &world->node[node].queue[index];
	uint64_t end = world->now_ns + QUEUE_END_NS;
	int ret;

	if (!q->q || world->node[node].still_ns > world->now_ns)
		return;
	trace("node %u closes queue %u", node, index);
	q->closing = true;
	for (uint32_t i = 1; i <= world->nr_ops; i++) {
		struct aop *op = &world->op[i];

		if (op->state == OPS_OPEN && op->queue == index && op->queue_life == q->life &&
		    is_message(op))
			*messages_fail(op) = true; /* its peer may hear first */
	}
	while ((ret = gx_queue_close(q->q)) == -EAGAIN) {
		if (world->now_ns > end)
			wrong("node %u: queue %u does not close", node, index);
		world_pass(10 * ALL_US);
	}
	if (ret)
		wrong("gx_queue_close: %d, %s", ret, gx_error());
	for (uint32_t i = 1; i <= world->nr_ops; i++) {
		struct aop *op = &world->op[i];

		if (op->state == OPS_OPEN && op->queue == index && op->queue_life == q->life)
			op_dropped(op);
	}
	hash_add(index);
	*q = (struct all_queue){0};
}

static void queue_close_some(void)
{
	queue_close((unsigned)rnd(world->nr_nodes), (unsigned)rnd(ALL_QUEUES));
}

/* ---- connections, nodes, the network ---- */

static void link_open_some(void)
{
	unsigned a = (unsigned)rnd(world->nr_nodes);
	unsigned b = (a + 1 + (unsigned)rnd(world->nr_nodes - 1)) % world->nr_nodes;

	for (unsigned i = 0; i < ALL_LINKS; i++)
		if (world->link[i].state == LINK_NONE) {
			link_open(i, a, b);
			return;
		}
}

static void link_close_some(void)
{
	link_close((unsigned)rnd(ALL_LINKS), (int)rnd(2));
}

static void node_stops(void)
{
	struct node *n = &world->node[rnd(world->nr_nodes)];
	uint64_t ns = chance(10) ? rnd_len(600 * ALL_MS) : rnd_len(4 * ALL_MS);

	n->still_ns = n->was_still_ns = world->now_ns + ns;
	trace("node %u stands still for %.3f ms", (unsigned)(n - world->node), ns / 1e6);
}

static void node_rests(void)
{
	struct node *n = &world->node[rnd(world->nr_nodes)];

	n->lazy_ns = world->now_ns + rnd_len(4 * ALL_MS);
	trace("node %u takes no completions for a while", (unsigned)(n - world->node));
}

/* Its process ends without a word, and another one comes in its place. */
static void node_restarts(void)
{
	unsigned index = (unsigned)rnd(world->nr_nodes);

	/* gx_close() turns in real time, in which no packet that refers to memory leaves. */
	if (world->net_cfg.attach)
		return;
	trace("node %u ends, and begins anew", index);
	hash_add(index);
	for (int i = 0; i < ALL_KEYS; i++)
		if (world->key[i].node == index)
			world->key[i].used = false;
	links_lose(index);
	area_forget(index); /* its bytes stay as they are: it may send as long as it lives */
	node_close(index);
	for (uint32_t i = 1; i <= world->nr_ops; i++)
		if (world->op[i].state == OPS_OPEN && world->op[i].node == index)
			op_dropped(&world->op[i]);
	links_lost(index);
	node_open(index);
}

/* A peer that stands still with much for it holds up nobody else. */
static void node_is_beside(void)
{
	unsigned still = (unsigned)rnd(world->nr_nodes), a = (still + 1) % world->nr_nodes;
	unsigned b = (still + 2) % world->nr_nodes, i;

	for (i = 0; i < ALL_LINKS && world->link[i].state != LINK_NONE; i++)
		;
	if (world->nr_nodes < 3 || i == ALL_LINKS || world->nr_lives + 2 >= ALL_LIVES)
		return;
	world->node[still].still_ns = world->node[still].was_still_ns =
		world->now_ns + 100 * ALL_MS;
	world->node[a].still_ns = world->node[b].still_ns = 0;
	world->node[a].lazy_ns = world->node[b].lazy_ns = 0;
	world_net(true);
	for (unsigned k = 0; k < 60; k++)
		post_some();
	world_pass(ALL_MS);
	link_open(i, a, b);
	if (world->link[i].state == LINK_UP)
		post_beside(i);
	world_net(false);
	world->node[still].still_ns = world->now_ns;
}

static void net_breaks(void)
{
	struct sim_cfg cfg = world->net_cfg;

	cfg.loss_ppm = 1000000;
	sim_net_set(world->net, &cfg);
	trace("nothing passes");
	world_pass(rnd_len(2 * ALL_MS));
	world_net(false);
}

static void time_passes(void)
{
	world_pass(rnd_len(5 * ALL_MS));
}

static const struct step_kind {
	const char *name;
	unsigned weight;
	void (*run)(void);
} steps[] = {
	{"post", 620, post_some},	 {"cancel", 90, post_cancel},
	{"storm", 20, post_storm},	 {"key", 40, key_make},
	{"withdraw", 30, key_withdraw},	 {"mem", 16, mem_again},
	{"queue", 30, queue_open},	 {"unqueue", 14, queue_close_some},
	{"connect", 14, link_open_some}, {"close", 8, link_close_some},
	{"restart", 3, node_restarts},	 {"beside", 4, node_is_beside},
	{"still", 16, node_stops},	 {"lazy", 16, node_rests},
	{"break", 10, net_breaks},	 {"pass", 40, time_passes},
	{"check", 40, mem_check},	 {"cut", 6, sock_end_some}, /* newer seeds alone */
};

unsigned steps_nr(void)
{
	return GX_ARRAY_SIZE(steps);
}

const char *steps_name(unsigned kind)
{
	return steps[kind].name;
}

uint64_t steps_named(const char *name)
{
	for (unsigned i = 0; i < GX_ARRAY_SIZE(steps); i++)
		if (!strcmp(steps[i].name, name))
			return 1ull << i;
	return 0;
}

static unsigned step_draw(void)
{
	unsigned sum = 0, at, i, n = steps_nr() - (world->cfg.seed < ALL_SOCKS);

	for (i = 0; i < n; i++)
		sum += steps[i].weight;
	at = (unsigned)rnd(sum);
	for (i = 0; at >= steps[i].weight; i++)
		at -= steps[i].weight;
	return i;
}

void step_run(unsigned step)
{
	unsigned kind;

	world->step = step;
	world->random = mix(world->cfg.seed * 0x10001 + step + 1);
	kind = step_draw();
	if ((world->cfg.skip && world->cfg.skip[step]) || world->cfg.without >> kind & 1)
		return;
	world->counts.steps++;
	steps[kind].run();
	world_pass(rnd_len(chance(20) ? 200 * ALL_US : 20 * ALL_US));
}
