// SPDX-License-Identifier: Apache-2.0
/*
 * gxd's half of a polling core: takes completions, sends echoes, keeps receives posted.
 * core_poll() runs in every turn, on the core's thread. The service_*() calls below it are
 * for the worker.
 */
#include "gxd/serve/service.h"

#include <errno.h>
#include <string.h>

#define CORE_COMPS	 64	       /* completions taken at once */
#define CORE_POSTS	 16	       /* receives posted at once */
#define CORE_CALL_MAX_NS 5000000000ull /* a core that has not answered by then is stuck */
/* cancelled operations have ended by then, peer time-out included */
#define CORE_STOP_MAX_NS 20000000000ull
#define CORE_ECHOES	 64	 /* echoes of a poller, in one turn */
#define CORE_LOOKS	 1024	 /* looks at a byte that a client writes, in one turn */
#define CORE_POLL_NS	 1000000 /* a client that polls counts as busy for so long */
#define CORE_LOOK_NS	 50000	 /* between two looks of the worker */

/* ---- Echo ---- */

static void core_echo_post(struct service_core *core)
{
	uint32_t n = 0;
	int ret;

	for (; n < core->nr_echoes; n++) {
		if (core->echo[n].flags & GX_OP_NOTE)
			core->echo[n].note = &core->echo[n].imm;
		ret = gx_post(core->queue, core->echo_ep[n], &core->echo[n], 1);
		if (ret == 0)
			break;
		if (ret < 0)
			atomic_fetch_add_explicit(&core->echoes_failed, 1, memory_order_relaxed);
	}
	core->nr_echoes -= n;
	memmove(core->echo, core->echo + n, core->nr_echoes * sizeof(core->echo[0]));
	memmove(core->echo_ep, core->echo_ep + n, core->nr_echoes * sizeof(core->echo_ep[0]));
}

/* Send a note back. .imm keeps its bytes until it is posted. */
static void core_echo_answer(struct service_core *core, const struct gx_comp *comp,
			     struct service_client *client)
{
	struct gx_op *op = &core->echo[core->nr_echoes];

	if (!atomic_load_explicit(&client->answer, memory_order_relaxed) ||
	    comp->note_len > sizeof(op->imm))
		return;
	*op = (struct gx_op){
		.kind = GX_OP_PUT, .flags = GX_OP_NOTE | GX_OP_SILENT, .note_len = comp->note_len};
	memcpy(&op->imm, comp->note, comp->note_len);
	core->echo_ep[core->nr_echoes++] = comp->ep;
}

/* A put with RPC_IMM_ECHO has landed: send the same bytes back. Notes come here, too. */
static void core_echo_take(struct service_core *core, const struct gx_comp *comp)
{
	struct service_client *client = gx_conn_user(gx_ep_conn(comp->ep));
	struct gx_op *op;

	if (!client)
		return;
	/* Pairs with the release in the worker's echo request. */
	if (!comp->note && (!(comp->imm & RPC_IMM_ECHO) ||
			    !atomic_load_explicit(&client->echo, memory_order_acquire)))
		return;
	if (core->nr_echoes == SERVICE_ECHOES_MAX) {
		atomic_fetch_add_explicit(&core->echoes_failed, 1, memory_order_relaxed);
		return;
	}
	if (comp->note) {
		core_echo_answer(core, comp, client);
		return;
	}
	op = &core->echo[core->nr_echoes];
	*op = (struct gx_op){
		.kind = GX_OP_PUT,
		.flags = GX_OP_IMM | GX_OP_SILENT,
		.mem = client->echo_mem,
		.off = comp->off,
		.len = comp->len,
		.token = client->echo_token,
		.remote_off = comp->off - client->echo_base,
		.imm = comp->imm & ~RPC_IMM_ECHO,
	};
	core->echo_ep[core->nr_echoes++] = comp->ep;
}

/* After a message, while nobody waits: the put of the next one. */
static void poller_advance(struct service_poller *p)
{
	uint64_t back_b = ++p->next % RPC_POLL_SLOTS ? 0 : RPC_POLL_SLOTS * p->stride;

	p->op.off += p->stride - back_b;
	p->op.remote_off += p->stride - back_b;
}

/* Look several times: a turn takes longer than a small message. Return: a message came. */
static bool poller_turn(struct service_core *core, struct service_poller *p)
{
	uint64_t slot = p->next % RPC_POLL_SLOTS;
	const volatile unsigned char *last = p->last + slot * p->stride;
	unsigned char want = rpc_flag(p->next);
	int ret;

	for (unsigned i = 0; *last != want; i++)
		if (i == CORE_LOOKS)
			return false;
	/* The client wrote the last byte last; loads from here on see the others. */
	atomic_thread_fence(memory_order_acquire);
	ret = gx_post(core->queue, p->ep, &p->op, 1);
	if (ret < 0)
		atomic_fetch_add_explicit(&core->echoes_failed, 1, memory_order_relaxed);
	if (ret)
		poller_advance(p);
	return true;
}

/* ---- Receives ---- */

static uint64_t session_user(const struct service_session *s, uint64_t slot)
{
	return (uint64_t)s->id << 32 | slot;
}

/* A slot is taken while its last message is under way, or waits for its check. */
static bool session_slot_free(const struct service_session *s, uint64_t slot)
{
	uint64_t last = s->slot_iter[slot];

	if (s->slot_busy[slot])
		return false;
	if (last == UINT64_MAX || !check_ring_sampled(&s->ring, last))
		return true;
	/* Pairs with the release in the worker's verify request. */
	return last < atomic_load_explicit(&s->checked_upto, memory_order_acquire);
}

/* depth is at most nr_slots, so each slot comes once at most. */
static unsigned session_ops(const struct service_session *s, struct gx_op ops[], unsigned max)
{
	unsigned n = 0;

	for (; n < max && s->posted + n < s->depth; n++) {
		uint64_t i = s->post + n, slot = check_ring_slot(&s->ring, i);

		if (!session_slot_free(s, slot))
			break;
		ops[n] = (struct gx_op){
			.kind = GX_OP_RECV,
			.user = session_user(s, slot),
			.mem = s->mem,
			.off = s->off + slot * s->stride,
			.len = s->size,
			.tag = i,
		};
	}
	return n;
}

static void session_fail(struct service_session *s, int err)
{
	int none = 0;

	atomic_compare_exchange_strong(&s->err, &none, err);
	s->stopping = true;
}

static bool session_post(struct service_session *s)
{
	struct gx_op ops[CORE_POSTS];
	unsigned n = session_ops(s, ops, CORE_POSTS);
	int ret = n ? gx_post(s->core->queue, s->ep, ops, n) : 0;

	if (ret < 0) {
		session_fail(s, ret);
		return false;
	}
	for (int k = 0; k < ret; k++) {
		uint64_t slot = (uint32_t)ops[k].user;

		s->slot_busy[slot] = 1;
		s->slot_iter[slot] = ops[k].tag;
	}
	s->post += (unsigned)ret;
	s->posted += (unsigned)ret;
	return ret > 0;
}

static void session_take(struct service_core *core, const struct gx_comp *comp)
{
	uint64_t id = comp->user >> 32, slot = (uint32_t)comp->user;
	struct service_session *s = id < SERVICE_SESSIONS_MAX ? core->session[id] : NULL;

	if (!s)
		return;
	s->slot_busy[slot] = 0;
	s->posted--;
	if (comp->status) {
		if (!s->stopping)
			session_fail(s, comp->status);
		return;
	}
	atomic_fetch_add_explicit(&s->received, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&s->bytes, comp->len, memory_order_relaxed);
	if (comp->len != s->size || comp->tag != s->slot_iter[slot])
		atomic_fetch_add_explicit(&s->bad, 1, memory_order_relaxed);
}

static void session_cancel(struct service_session *s)
{
	for (uint64_t slot = 0; slot < check_ring_total(&s->ring); slot++)
		if (s->slot_busy[slot])
			gx_cancel(s->core->queue, s->ep, session_user(s, slot));
}

/* ---- The poller ---- */

static void core_comp(struct service_core *core, const struct gx_comp *comp)
{
	if (comp->kind == GX_COMP_NOTIFY)
		core_echo_take(core, comp);
	else if (comp->kind == GX_COMP_DONE && comp->op == GX_OP_RECV)
		session_take(core, comp);
	else if (comp->status)
		atomic_fetch_add_explicit(&core->echoes_failed, 1, memory_order_relaxed);
}

static void core_call_run(struct service_core *core)
{
	struct service_call *call;

	if (!atomic_load_explicit(&core->call, memory_order_relaxed))
		return;
	/* Take it before running it: then the worker cannot take it back. */
	call = atomic_exchange_explicit(&core->call, NULL, memory_order_acq_rel);
	if (!call)
		return;
	call->fn(core, call);
	/* Pairs with the acquire in core_call(). @call belongs to the worker again. */
	atomic_store_explicit(&call->done, true, memory_order_release);
}

bool core_poll(void *arg, uint64_t now_ns)
{
	struct service_core *core = arg;
	/* Pairs with the release in the worker's poll request. */
	struct service_poller *p = atomic_load_explicit(&core->poller, memory_order_acquire);
	struct gx_comp comps[CORE_COMPS];
	unsigned n = gx_poll(core->queue, comps, CORE_COMPS);
	bool busy = n > 0;

	if (!atomic_load_explicit(&core->clock_set, memory_order_relaxed)) {
		pthread_getcpuclockid(pthread_self(), &core->clock);
		atomic_store_explicit(&core->clock_set, true, memory_order_release);
	}
	for (unsigned i = 0; i < n; i++)
		core_comp(core, &comps[i]);
	if (core->nr_echoes)
		core_echo_post(core);
	for (uint32_t i = 0; i < core->session_top; i++)
		if (core->session[i] && !core->session[i]->stopping)
			busy |= session_post(core->session[i]);
	for (unsigned i = 0; p && i < CORE_ECHOES && poller_turn(core, p); i++)
		p->seen_ns = now_ns;
	busy |= p && now_ns - p->seen_ns < CORE_POLL_NS;
	core_call_run(core);
	return busy;
}

/* ---- The worker's side ---- */

static void core_nap(void)
{
	struct timespec ts = {.tv_nsec = CORE_LOOK_NS};

	nanosleep(&ts, NULL);
}

int core_call(struct service_core *core,
	      void (*fn)(struct service_core *core, struct service_call *call),
	      struct service_session *session)
{
	struct service_call call = {.fn = fn, .session = session}, *mine;
	uint64_t end = gx_now() + CORE_CALL_MAX_NS;

	atomic_store_explicit(&core->call, &call, memory_order_release);
	while (!atomic_load_explicit(&call.done, memory_order_acquire)) {
		mine = &call;
		/* A call that the core has begun cannot be taken back. */
		if (gx_now() > end && atomic_compare_exchange_strong(&core->call, &mine, NULL))
			return -ETIMEDOUT;
		core_nap();
	}
	return 0;
}

void core_barrier(struct service_core *core, struct service_call *call)
{
}

static void core_session_add(struct service_core *core, struct service_call *call)
{
	struct service_session *s = call->session;

	core->session[s->id] = s;
	if (s->id >= core->session_top)
		core->session_top = s->id + 1;
}

/* The first call cancels, later calls only look. The session leaves when nothing of it is
 * posted. */
static void core_session_del(struct service_core *core, struct service_call *call)
{
	struct service_session *s = call->session;

	s->stopping = true;
	if (!s->cancelled)
		session_cancel(s);
	s->cancelled = true;
	if (s->posted)
		return;
	core->session[s->id] = NULL;
	while (core->session_top && !core->session[core->session_top - 1])
		core->session_top--;
}

int core_session_start(struct service_session *s)
{
	/* Only the worker adds and removes sessions, so this read needs no lock. */
	for (s->id = 0; s->id < SERVICE_SESSIONS_MAX; s->id++)
		if (!s->core->session[s->id])
			return core_call(s->core, core_session_add, s);
	return -ENOSPC;
}

int core_session_stop(struct service_session *s)
{
	int ret = core_call(s->core, core_session_del, s);

	if (ret || !s->core->session[s->id])
		return ret;
	if (!s->stop_ns)
		s->stop_ns = gx_now() + CORE_STOP_MAX_NS;
	return gx_now() < s->stop_ns ? -EAGAIN : -ETIMEDOUT;
}
