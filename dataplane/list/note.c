/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notes that come in: pairs them with their data, gives them to the program in the order of their numbers, by
 * the core's queue or by one that takes the notes of all cores (struct note_sink),
 * and gives credit to the peer for those that the program has given back. So a program that does not
 * poll holds up its peer, and NOTES places are enough.
 */
#include "list/note.h"
#include "gx_internal/link.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#define NOTES_MAP_B (2ul * NOTES * GX_NOTE_MAX)

#define NOTES_TICK_NS 1000000 /* between two turns of a core that sleeps, while a note waits */

/* ---- Control path ---- */

static void notes_put(struct notes *n)
{
	if (atomic_fetch_sub_explicit(&n->refs, 1, memory_order_acq_rel) != 1)
		return;
	if (n->mem.dma)
		n->mem.dma->ops->host_unmap(n->mem.dma, n->mem.addr, n->mem.len);
	munmap(n->map, NOTES_MAP_B);
	free(n);
}

static void credit_comp(struct gx_route *route, const struct gx_comp *comp)
{
	GX_CONTAINER_OF(route, struct notes, route)->telling = false;
}

int notes_open(struct gx_ep *ep)
{
	struct notes *n = calloc(1, sizeof(*n));

	if (!n)
		return -ENOMEM;
	/* Pages that are never used cost nothing. */
	n->map = mmap(NULL, NOTES_MAP_B, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (n->map == MAP_FAILED) {
		free(n);
		return -ENOMEM;
	}
	n->ep = ep;
	n->refs = 1;
	n->route.comp = credit_comp;
	n->mem.gx = ep->core->gx;
	n->mem.addr = n->map + NOTES_MAP_B / 2;
	n->mem.len = NOTES_MAP_B / 2;
	n->mem.kind = GX_MEM_HOST;
	n->mem.device = -1;
	n->mem.gpu = ep->core->gx->host;
	n->mem.fd = -1;
	n->mem.access = GX_ACCESS_PUT;
	n->mem.token = CORE_TOKEN_NOTES;
	for (unsigned i = 0; i < NOTES; i++)
		n->in[i].of = n;
	ep->notes = n;
	ep->notes_mem = &n->mem;
	return 0;
}

void notes_close(struct gx_ep *ep)
{
	if (ep->notes)
		notes_put(ep->notes);
	ep->notes = NULL;
	ep->notes_mem = NULL;
}

static void ins_put(struct note_in *in)
{
	for (struct note_in *next; in; in = next) {
		next = in->next;
		notes_put(in->of);
	}
}

void core_notes_close(struct gx_core *core)
{
	ins_put(core->notes.head);
	ins_put(core->notes.back);
	core->notes.head = core->notes.back = NULL;
}

int note_sink_open(struct note_sink *s, struct gx_sleep *sleep)
{
	s->sleep = sleep;
	return gx_ring_open(NOTES_OUT, &s->to_queue) ?: gx_ring_open(NOTES_OUT, &s->to_core);
}

void note_sink_close(struct note_sink *s)
{
	gx_ring_close(s->to_queue);
	gx_ring_close(s->to_core);
}

bool notes_away(const struct gx_ep *ep)
{
	/* Pairs with the release in note_given(). */
	return ep->notes && atomic_load_explicit(&ep->notes->away, memory_order_acquire);
}

/* ---- Turns ---- */

static bool notes_deliver(struct notes *n);
static void note_give(struct gx_core *core, struct note_in *in);

/* Return: the peer has all credit. */
static bool notes_credit(struct notes *n)
{
	struct gx_op op = {.kind = GX_OP_PUT,
			   .flags = GX_OP_IMM | OP_HIDDEN,
			   .token = CORE_TOKEN_NOTES,
			   .imm = note_word(n->freed, 0, 0, 0)};

	if (n->over || n->freed - n->credited < NOTES / 4)
		return true;
	if (n->telling)
		return false;
	n->telling = true;
	if (n->ep->ops->post(n->ep, &op, &n->route)) {
		n->telling = false;
		return false;
	}
	n->credited = n->freed;
	n->ep->ops->kick(n->ep);
	return true;
}

static bool place_for_note(const struct gx_core *core)
{
	return core->notes.sink ? core->notes.sink->out < NOTES_OUT : core_comp_room(core);
}

static bool notes_turn(void *arg, uint64_t now_ns)
{
	struct gx_core *core = arg;
	struct notes **at = &core->notes.turn, *n;
	struct note_in *in;
	bool worked = false;

	while ((in = core->notes.back) && place_for_note(core)) {
		core->notes.back = in->next;
		note_give(core, in);
		worked = true;
	}
	while ((n = *at)) {
		bool done = notes_deliver(n);

		if (!notes_credit(n) || !done) {
			at = &n->turn_next;
			continue;
		}
		*at = n->turn_next;
		n->turns = false;
		worked = true;
	}
	return worked;
}

static bool notes_asleep(const void *arg)
{
	const struct gx_core *core = arg;

	return !core->notes.turn && !core->notes.back;
}

/* They wait for room, or for the end of a put: others see these. */
static int notes_look(void *arg, struct gx_look *look)
{
	look->until_ns = GX_MIN(look->until_ns, look->now_ns + NOTES_TICK_NS);
	return 0;
}

/* gx_core_poller() leaves a place for the poller. */
static void turn_on(struct gx_core *core)
{
	if (!core->notes.polled)
		core->notes.polled =
			!gx_loop_add(&core->loop, &(struct gx_poller){"notes", notes_turn, core,
								      notes_asleep, notes_look});
}

/* Have the core look after @n in its turns. */
static void turn_add(struct gx_core *core, struct notes *n)
{
	turn_on(core);
	if (n->turns)
		return;
	n->turns = true;
	n->turn_next = core->notes.turn;
	core->notes.turn = n;
}

/* ---- Giving notes back ---- */

/* Places are free in the order of their numbers. */
static void notes_free(struct gx_core *core, struct notes *n)
{
	struct note_in *in;

	while (n->freed != n->next && (in = &n->in[n->freed % NOTES])->free) {
		in->free = false;
		n->freed++;
	}
	if (!n->over && n->freed - n->credited >= NOTES / 4)
		turn_add(core, n);
}

/* The program reads @in no more. */
static void note_given(struct gx_core *core, struct note_in *in)
{
	struct notes *n = in->of;

	in->free = true;
	notes_free(core, n);
	if (in->away) /* pairs with the acquire in notes_away() */
		atomic_fetch_sub_explicit(&n->away, 1, memory_order_release);
	in->away = false;
	notes_put(n);
}

/* No completion of the core's queue names its endpoint, which stays until the program gives it back. */
static void note_hold(struct note_in *in)
{
	if (!in->away)
		atomic_fetch_add_explicit(&in->of->away, 1, memory_order_relaxed);
	in->away = true;
}

/* Take back what lies in the core's queue, which perhaps nobody polls: it is given again, first. */
static void notes_withdraw(struct gx_core *core)
{
	uint32_t tail = atomic_load_explicit(&core->comp_tail, memory_order_relaxed);
	struct note_in **at = &core->notes.head;

	for (uint32_t k = core->notes.taken; k; k--)
		at = &(*at)->next;
	if (!*at)
		return;
	for (struct note_in *in = *at; in; in = in->next)
		note_hold(in);
	*core->notes.end = core->notes.back;
	core->notes.back = *at;
	*at = NULL;
	core->notes.end = at;
	for (uint32_t i = tail; i != core->comp_head; i++)
		if (core->comps[i % GX_COMPS_MAX].note)
			core->comps[i % GX_COMPS_MAX] = (struct gx_comp){0};
	for (; tail != core->comp_head && !core->comps[tail % GX_COMPS_MAX].ep; tail++)
		core->notes.odd--;
	/* Pairs with the acquire in conn_quiet(). */
	atomic_store_explicit(&core->comp_tail, tail, memory_order_release);
}

void core_sink_begin(struct gx_core *core, struct note_sink *s)
{
	notes_withdraw(core);
	core->notes.sink = s;
	if (core->notes.back)
		turn_on(core);
}

bool core_sink_turn(struct gx_core *core)
{
	struct note_sink *s = core->notes.sink;
	bool worked = false;
	void *item;

	while (gx_ring_get(s->to_core, &item, 1)) {
		s->out--;
		note_given(core, item);
		worked = true;
	}
	return worked;
}

void core_sink_end(struct gx_core *core)
{
	struct note_sink *s = core->notes.sink;
	struct note_in *back, **end = &core->notes.back;
	void *item;

	core_sink_turn(core);
	back = core->notes.back;
	for (struct note_in *in = s->taken, *next; in; in = next) {
		next = in->next;
		note_given(core, in);
	}
	while (gx_ring_get(s->to_queue, &item, 1)) {
		*end = item;
		end = &(*end)->next;
	}
	*end = back; /* what the queue had is older */
	core->notes.sink = NULL;
	if (core->notes.back)
		turn_on(core);
}

unsigned core_notes_poll(struct gx_core *core, struct gx_comp comps[], unsigned n)
{
	uint32_t tail = atomic_load_explicit(&core->comp_tail, memory_order_relaxed);
	unsigned got = 0;

	for (; core->notes.taken; core->notes.taken--) {
		struct note_in *in = core->notes.head;

		core->notes.head = in->next;
		core->notes.odd--;
		note_given(core, in);
	}
	for (; got < n && tail != core->comp_head; tail++) {
		struct gx_comp *comp = &core->comps[tail % GX_COMPS_MAX];

		if (!comp->ep) { /* a place that notes_withdraw() left */
			core->notes.odd--;
			continue;
		}
		comps[got++] = *comp;
		core->notes.taken += comp->note != NULL;
		comp->note = NULL;
		comp->note_len = 0;
	}
	/* Pairs with the acquire in conn_quiet(). */
	atomic_store_explicit(&core->comp_tail, tail, memory_order_release);
	return got;
}

/* ---- Taking notes ---- */

/* The queue has room, see place_for_note(). */
static void sink_put(struct note_sink *s, struct note_in *in)
{
	void *item = in;

	note_hold(in);
	s->out++;
	gx_ring_put(s->to_queue, &item, 1);
	gx_sleep_wake(s->sleep);
}

/* To the core's queue. */
static void note_tell(struct gx_core *core, struct note_in *in)
{
	core_comp(core, &(struct gx_comp){.kind = GX_COMP_NOTIFY,
					  .op = GX_OP_PUT,
					  .ep = in->of->ep,
					  .note = note_in_at(in),
					  .note_len = in->len});
	in->next = NULL;
	if (!core->notes.head)
		core->notes.end = &core->notes.head;
	*core->notes.end = in;
	core->notes.end = &in->next;
	core->notes.odd++;
}

static void note_give(struct gx_core *core, struct note_in *in)
{
	if (core->notes.sink)
		sink_put(core->notes.sink, in);
	else
		note_tell(core, in);
}

/* Tell of all that is whole and in turn. Return: false: the program has to take completions first. */
static bool notes_deliver(struct notes *n)
{
	struct gx_core *core = n->ep->core;
	bool room = true;

	for (;;) {
		struct note_in *in = &n->in[n->next % NOTES];

		if ((in->got & NOTE_WHOLE) != NOTE_WHOLE)
			break;
		in->free = in->got & NOTE_VOID;
		/* Those that are given again come before all others. */
		room = in->free || (!core->notes.back && place_for_note(core));
		if (!room)
			break;
		in->got = 0;
		n->next++;
		if (in->free)
			continue;
		atomic_fetch_add_explicit(&n->refs, 1, memory_order_relaxed);
		note_give(core, in);
	}
	notes_free(core, n);
	return room;
}

static void note_bad(struct gx_core *core)
{
	gx_stat_add(&core->loop.stats, GX_STAT_RX_BAD, 1);
}

static void note_take(struct gx_core *core, struct notes *n, uint64_t word)
{
	unsigned bits = word >> 16 & 7, len = word >> 19 & 0x1fff;
	uint16_t ahead = (uint16_t)(word - (bits ? n->next : n->credit));
	struct note_in *in = &n->in[(n->next + ahead) % NOTES];

	if (!bits && ahead <= n->number - n->credit) {
		n->credit += ahead;
		return;
	}
	/* A place that is not free, a half that came before, a length that no note has: the peer
	 * lies, or the data were there before it gave them up. */
	if (!(bits & NOTE_WHOLE) || ahead >= NOTES - (n->next - n->freed) || in->got & bits ||
	    len > GX_NOTE_MAX) {
		note_bad(core);
		return;
	}
	in->got |= bits;
	if (bits & NOTE_BYTES) {
		in->len = (uint16_t)len;
		in->word = (uint32_t)(word >> 32);
	}
	if (!ahead && !notes_deliver(n))
		turn_add(core, n);
}

/* An endpoint that no connection has opened, as a test's, has no notes. */
void core_note(struct gx_ep *ep, uint64_t word)
{
	if (ep->notes && !ep->notes->over)
		note_take(ep->core, ep->notes, word);
}

bool core_imm(struct gx_ep *ep, const struct core_imm *in)
{
	if (gx_unlikely(in->hidden)) {
		core_note(ep, in->imm);
		return true;
	}
	if (!core_comp_room(ep->core))
		return false;
	core_comp(ep->core, &(struct gx_comp){.kind = GX_COMP_NOTIFY,
					      .op = GX_OP_PUT,
					      .ep = ep,
					      .len = in->len,
					      .imm = in->imm,
					      .token = in->token,
					      .off = in->off});
	return true;
}

void notes_fail(struct gx_ep *ep)
{
	struct notes **at = &ep->core->notes.turn, *n = ep->notes;

	if (!n)
		return;
	n->over = true;
	while (*at && *at != n)
		at = &(*at)->turn_next;
	if (*at)
		*at = n->turn_next;
}
