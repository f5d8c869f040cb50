/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notes, in virtual time, over a network that loses and reorders, on the queue of a core and on
 * others. Each note says which it is, and whose data must be there when it comes.
 */
#include "sim/sim_rig.h"

#include "list/note.h"
#include "submit/queue.h"
#include "submit/submit.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

#define BLOCK 4096u
#define MANY  300
#define IMM   77

static uint8_t src[MANY * BLOCK];
static struct gx_queue *queue; /* NULL: the core's */
static struct gx_queue *sink;  /* of the receiver, with .notify; NULL: its core's queue */
static unsigned nr_core;       /* notes that came by the core's */
static unsigned nr_notes, nr_imm, nr_done, nr_failed;
static unsigned seen[MANY + 1]; /* first word of each note */
static uint8_t bytes[GX_NOTE_MAX];
static uint32_t bytes_len;
static struct rig *rig;

static void on_comp(void *arg, int node, const struct gx_comp *comp)
{
	if (node == 0) {
		assert_null(comp->note);
		nr_done++;
		nr_failed += comp->status != 0;
		return;
	}
	assert_int_equal(comp->kind, GX_COMP_NOTIFY);
	if (comp->imm == IMM) {
		assert_null(comp->note);
		nr_imm++;
		return;
	}
	nr_core++;
	assert_non_null(comp->note);
	assert_ptr_equal(gx_ep_conn(comp->ep), gx_ep_conn(rig->ep[1][0]));
	bytes_len = comp->note_len;
	memcpy(bytes, comp->note, comp->note_len);
	if (comp->note_len >= 2) {
		uint16_t i;

		memcpy(&i, comp->note, 2);
		assert_true(i < MANY);
		assert_memory_equal(rig_mem(rig, 1) + i * BLOCK, src + i * BLOCK, 64);
		assert_memory_equal(rig_mem(rig, 1) + i * BLOCK + BLOCK - 64,
				    src + i * BLOCK + BLOCK - 64, 64);
		seen[nr_notes] = i;
	}
	nr_notes++;
	assert_true(nr_notes <= MANY);
}

static void note_rig(bool other, uint32_t loss_ppm)
{
	struct gx_queue_opts opts = GX_INIT(opts);

	rig = rig_open(&(struct rig_cfg){.sim = {.seed = 3,
						 .loss_ppm = loss_ppm,
						 .reorder_ppm = 10 * loss_ppm,
						 .reorder_slots = 64},
					 .mem_b = 4 << 20});
	rig->on_comp = on_comp;
	queue = NULL;
	if (other)
		assert_int_equal(gx_queue_open(rig->gx[0], &opts, &queue), 0);
	rig_fill(src, sizeof(src), 7);
	nr_notes = nr_imm = nr_done = nr_failed = nr_core = 0;
}

/* As if both ends had had @n notes behind them. */
static void note_from(uint32_t n)
{
	struct notes *out = rig->ep[0][0]->notes, *in = rig->ep[1][0]->notes;

	out->number = out->credit = n;
	in->next = in->freed = in->credited = n;
}

static int sink_open(struct gx_queue **q)
{
	return gx_queue_open(rig->gx[1], GX_WITH(gx_queue_opts, .notify = true), q);
}

/* One at a time: the note before goes back. */
static unsigned sink_poll(void)
{
	struct gx_comp comp;

	if (!gx_poll(sink, &comp, 1))
		return 0;
	on_comp(NULL, 1, &comp);
	nr_core--;
	return 1;
}

static void close_queue(struct gx_queue *q)
{
	for (unsigned i = 0; gx_queue_close(q); i++) {
		assert_true(i < 10000);
		rig_turn(rig);
	}
}

static void turn(void)
{
	struct gx_comp comp;

	rig_turn(rig);
	while (sink && sink_poll())
		;
	while (queue && gx_poll(queue, &comp, 1))
		on_comp(NULL, 0, &comp);
}

static void until(const unsigned *what, unsigned n)
{
	uint64_t end = rig->now_ns + 200 * MS;

	while (*what < n) {
		assert_true(rig->now_ns < end);
		turn();
	}
}

static void note_end(void)
{
	until(&nr_done, 0);
	rig_pass(rig, 5 * MS);
	close_queue(queue);
	close_queue(sink);
	sink = NULL;
	rig_done(rig);
}

static struct gx_op put_of(unsigned i, const void *note, uint32_t len)
{
	return (struct gx_op){.kind = GX_OP_PUT,
			      .flags = GX_OP_NOTE,
			      .user = i,
			      .addr = src + i * BLOCK,
			      .len = BLOCK,
			      .token = rig->peer[0].token,
			      .remote_off = i * BLOCK,
			      .note = note,
			      .note_len = len};
}

static int post(const struct gx_op *op)
{
	return gx_post(queue ? queue : gx_core_queue(rig->core[0]), rig->ep[0][0], op, 1);
}

static void post_wait(const struct gx_op *op)
{
	uint64_t end = rig->now_ns + 200 * MS;
	int ret;

	while (!(ret = post(op))) {
		assert_true(rig->now_ns < end);
		turn();
	}
	assert_int_equal(ret, 1);
}

/* Every length that takes another way; the bytes are the caller's again after the post. */
static void lengths(bool other, bool to_sink)
{
	static const uint32_t len[] = {0, 1, 3, 4, 5, 100, GX_NOTE_MAX};
	uint8_t note[GX_NOTE_MAX], want[GX_NOTE_MAX];
	unsigned n = 0;

	note_rig(other, 0);
	if (to_sink)
		assert_int_equal(sink_open(&sink), 0);
	for (unsigned data = 0; data < 2; data++)
		for (unsigned i = 0; i < GX_ARRAY_SIZE(len); i++) {
			struct gx_op op = put_of(0, note, len[i]);

			rig_fill(want, len[i], 100 + n);
			want[0] = want[1] = 0; /* block 0 */
			memcpy(note, want, sizeof(note));
			op.len = data || !i ? BLOCK : 0;
			post_wait(&op);
			memset(note, 0xee, sizeof(note));
			until(&nr_done, ++n);
			until(&nr_notes, n);
			assert_int_equal(bytes_len, len[i]);
			assert_memory_equal(bytes, want, len[i]);
		}
	assert_int_equal(nr_failed, 0);
	assert_int_equal(nr_core, to_sink ? 0 : nr_notes);
	note_end();
}

static void note__lengths(void **state)
{
	lengths(false, false);
	lengths(true, false);
	lengths(true, true);
}

/* All come, in the order of posting, each behind its data, though the network has no order. */
static void order(bool other, bool to_sink, uint32_t from)
{
	note_rig(other, 5000);
	note_from(from);
	if (to_sink)
		assert_int_equal(sink_open(&sink), 0);
	for (unsigned i = 0; i < MANY; i++) {
		uint16_t note[GX_NOTE_MAX / 2] = {(uint16_t)i};
		struct gx_op op = put_of(i, note, i % 3 == 0 ? 2 : i % 3 == 1 ? 6 : GX_NOTE_MAX);

		post_wait(&op);
	}
	until(&nr_notes, MANY);
	until(&nr_done, MANY);
	for (unsigned i = 0; i < MANY; i++)
		assert_int_equal(seen[i], i);
	assert_int_equal(nr_failed, 0);
	assert_int_equal(nr_core, to_sink ? 0 : MANY);
	note_end();
}

static void note__order(void **state)
{
	order(false, false, 0);
	order(true, false, 0);
	order(true, true, 0);
}

/* The wire has 16 bits of the numbers of notes, and the ends have 32. */
static void note__numbers_wrap(void **state)
{
	order(false, false, UINT16_MAX - 70);
	order(false, false, UINT32_MAX - 70);
	order(true, true, UINT16_MAX - 5);
	order(true, true, UINT32_MAX - 5);
}

/* A list's note comes behind all its segments, and a later one behind that. */
static void note__list(void **state)
{
	static struct gx_seg segs[MANY];
	uint16_t note[3] = {MANY - 1}, short_note = 1;
	struct gx_op op, one;

	note_rig(false, 5000);
	for (unsigned i = 0; i < MANY; i++)
		segs[i] = (struct gx_seg){.off = (uintptr_t)src + i * BLOCK,
					  .token = rig->peer[0].token,
					  .remote_off = i * BLOCK,
					  .len = i % 2 ? BLOCK : BLOCK - 1};
	for (unsigned i = 0; i < MANY; i += 2)
		rig_mem(rig, 1)[(i + 1) * BLOCK - 1] = src[(i + 1) * BLOCK - 1];
	op = put_of(0, note, sizeof(note));
	op.segs = segs;
	op.nr_segs = MANY;
	post_wait(&op);
	one = put_of(1, &short_note, sizeof(short_note));
	post_wait(&one);
	until(&nr_notes, 2);
	assert_int_equal(seen[0], MANY - 1);
	assert_int_equal(seen[1], 1);
	until(&nr_done, 2);
	assert_int_equal(nr_failed, 0);
	note_end();
}

/* The peer's program does not poll: 64 notes are on the way, no more; and none is lost. */
static void not_polled(bool to_sink)
{
	unsigned taken = 0;
	uint16_t note = 0;
	struct gx_op op;

	note_rig(false, 0);
	if (to_sink)
		assert_int_equal(sink_open(&sink), 0);
	op = put_of(0, &note, sizeof(note));
	for (unsigned i = 0; i < 2000; i++) {
		taken += taken < MANY ? (unsigned)post(&op) : 0;
		rig->still[1] = true;
		rig_turn(rig);
		gx_core_turn(rig->core[1], rig->now_ns);
		rig->still[1] = false;
	}
	assert_int_equal(taken, NOTES);
	assert_int_equal(nr_notes, 0);
	for (; taken < MANY; taken++)
		post_wait(&op);
	until(&nr_notes, MANY);
	until(&nr_done, MANY);
	note_end();
}

static void note__not_polled(void **state)
{
	not_polled(false);
	not_polled(true);
}

/* Post up to @i, each its own block. */
static void post_to(unsigned *i, unsigned end)
{
	for (; *i < end; ++*i) {
		uint16_t note[20] = {(uint16_t)*i};
		struct gx_op op = put_of(*i, note, sizeof(note));

		post_wait(&op);
	}
}

/* A queue holds NOTES_OUT of a core: the others wait, and come. */
static void note__sink_is_full(void **state)
{
	struct note_sink *s;
	unsigned i = 0;

	note_rig(false, 0);
	assert_int_equal(sink_open(&sink), 0);
	turn();
	s = rig->core[1]->notes.sink;
	s->out += NOTES_OUT - 3; /* as if other endpoints had so many */
	post_to(&i, 10);
	rig_pass(rig, MS);
	assert_int_equal(s->out, NOTES_OUT);
	for (unsigned k = 0; k < 3; k++)
		assert_int_equal(sink_poll(), 1);
	assert_int_equal(sink_poll(), 0);
	s->out -= NOTES_OUT - 3;
	until(&nr_notes, 10);
	for (unsigned k = 0; k < 10; k++)
		assert_int_equal(seen[k], k);
	until(&nr_done, 10);
	note_end();
}

/* The receiver's core turns, and nobody polls its queue, as where gx's own thread turns it. */
static void pass_unpolled(unsigned turns)
{
	for (unsigned i = 0; i < turns; i++) {
		rig->still[1] = true;
		rig_turn(rig);
		gx_core_turn(rig->core[1], rig->now_ns);
		rig->still[1] = false;
	}
}

static void sink_close_unpolled(void)
{
	for (unsigned i = 0; gx_queue_close(sink); i++) {
		assert_true(i < 10000);
		pass_unpolled(1);
	}
	sink = NULL;
}

/* Notes came before there was a queue for them, or were left by a queue that was closed, and nobody
 * polls the core's. The next queue takes them over, in order, and their places go back. @full: the
 * core's queue had no room for those of the closed one. */
static void takes_over(bool closed, bool full)
{
	struct gx_core *core;
	unsigned i = 0;

	note_rig(false, 0);
	core = rig->core[1];
	if (closed)
		assert_int_equal(sink_open(&sink), 0);
	post_to(&i, 20);
	pass_unpolled(300);
	if (closed) {
		core->comps_due += full ? GX_COMPS_MAX : 0;
		sink_close_unpolled();
		pass_unpolled(50);
		assert_int_equal(core->notes.back != NULL, full);
	}
	assert_int_equal(core->comp_head - atomic_load(&core->comp_tail), full ? 0 : 20);
	assert_int_equal(sink_open(&sink), 0);
	pass_unpolled(50);
	assert_int_equal(core->comp_head, atomic_load(&core->comp_tail));
	assert_null(core->notes.back);
	assert_int_equal(rig->ep[1][0]->notes->away, 20);
	for (unsigned k = 0; k < 20; k++)
		assert_int_equal(sink_poll(), 1);
	core->comps_due -= closed && full ? GX_COMPS_MAX : 0;
	post_to(&i, 150);
	until(&nr_notes, 150);
	until(&nr_done, 150);
	for (unsigned k = 0; k < 150; k++)
		assert_int_equal(seen[k], k);
	assert_int_equal(nr_core, 0);
	assert_int_equal(sink_poll(), 0);
	pass_unpolled(50);
	assert_int_equal(rig->ep[1][0]->notes->away, 0);
	note_end();
}

static void note__sink_takes_over(void **state)
{
	takes_over(false, false);
	takes_over(true, false);
	takes_over(true, true);
}

/* More come in the very turn in which a queue opens: those that lie in the core's queue are older. */
static void note__sink_takes_the_older_first(void **state)
{
	unsigned i = 0;

	note_rig(false, 0);
	post_to(&i, 3);
	pass_unpolled(300);
	post_to(&i, 10);
	rig->still[1] = true;
	for (unsigned k = 0; k < 100; k++)
		rig_turn(rig);
	rig->still[1] = false;
	assert_int_equal(sink_open(&sink), 0);
	pass_unpolled(50);
	until(&nr_notes, 10);
	for (unsigned k = 0; k < 10; k++)
		assert_int_equal(seen[k], k);
	until(&nr_done, 10);
	note_end();
}

static void order_check(unsigned n)
{
	until(&nr_notes, n);
	for (unsigned k = 0; k < n; k++)
		assert_int_equal(seen[k], k);
	until(&nr_done, n + nr_imm);
}

static void imm_post(void)
{
	struct gx_op op = put_of(0, NULL, 0);

	op.flags = GX_OP_IMM;
	op.imm = IMM;
	op.len = 0;
	post_wait(&op);
	pass_unpolled(300);
}

/* An immediate lies between notes when a queue opens, and nobody polls the core's: the notes go to the
 * queue, in order, and back to the core's when it @closes. The immediate stays, and comes once. */
static void beside_an_immediate(bool first, bool closes)
{
	struct gx_core *core;
	unsigned i = 0;

	note_rig(false, 0);
	core = rig->core[1];
	if (!first) {
		post_to(&i, 3);
		pass_unpolled(300);
	}
	imm_post();
	post_to(&i, 6);
	pass_unpolled(300);
	assert_int_equal(core->comp_head - atomic_load(&core->comp_tail), 7);
	assert_int_equal(sink_open(&sink), 0);
	pass_unpolled(50);
	assert_int_equal(rig->ep[1][0]->notes->away, 6);
	post_to(&i, 9);
	pass_unpolled(300);
	assert_int_equal(rig->ep[1][0]->notes->away, 9);
	if (closes) {
		sink_close_unpolled();
		pass_unpolled(50);
		assert_null(core->notes.back);
	}
	order_check(9);
	assert_int_equal(nr_imm, 1);
	assert_int_equal(nr_core, closes ? 9 : 0);
	rig_pass(rig, MS);
	assert_int_equal(core->notes.odd, 0);
	note_end();
}

static void note__sink_beside_an_immediate(void **state)
{
	for (unsigned i = 0; i < 4; i++)
		beside_an_immediate(i & 1, i & 2);
}

/* More lie in the core's queue than a queue may hold: the others stay behind these, also when it
 * closes unpolled. */
static void note__sink_takes_a_part(void **state)
{
	struct note_sink *s;
	unsigned i = 0;

	for (unsigned again = 0; again < 2; again++) {
		note_rig(false, 0);
		i = 0;
		post_to(&i, 20);
		pass_unpolled(300);
		for (unsigned k = 0; k <= again; k++) {
			assert_int_equal(sink_open(&sink), 0);
			s = &sink->lane[0]->sink;
			s->out = NOTES_OUT - 3; /* as if other endpoints had so many */
			pass_unpolled(50);
			assert_int_equal(s->out, NOTES_OUT);
			sink_close_unpolled();
		}
		order_check(20);
		assert_int_equal(nr_core, 20);
		rig_pass(rig, MS);
		assert_int_equal(rig->ep[1][0]->notes->away, 0);
		note_end();
	}
}

/* The program has one of three by the core's queue when it opens another: that stays its own, the
 * others come by the new one, and later ones by the core's again when that is closed. */
static void note__sink_takes_what_was_not_taken(void **state)
{
	struct gx_comp comp;
	unsigned i = 0;

	note_rig(false, 0);
	post_to(&i, 3);
	pass_unpolled(300);
	assert_int_equal(gx_poll(gx_core_queue(rig->core[1]), &comp, 1), 1);
	on_comp(NULL, 1, &comp);
	assert_int_equal(sink_open(&sink), 0);
	pass_unpolled(50);
	assert_int_equal(rig->ep[1][0]->notes->away, 2);
	assert_int_equal(rig->core[1]->notes.taken, 1);
	sink_close_unpolled();
	until(&nr_notes, 3);
	post_to(&i, 10);
	until(&nr_notes, 10);
	for (unsigned k = 0; k < 10; k++)
		assert_int_equal(seen[k], k);
	until(&nr_done, 10);
	note_end();
}

/* The program holds all places: the peer waits for them, so the thread may not sleep. */
static void note__arm_while_held(void **state)
{
	struct gx_comp comps[NOTES];
	unsigned i = 0;

	note_rig(false, 0);
	assert_int_equal(sink_open(&sink), 0);
	assert_true(gx_queue_fd(sink) >= 0);
	post_to(&i, NOTES);
	rig_pass(rig, MS);
	assert_int_equal(gx_queue_arm(sink), 1);
	assert_int_equal(gx_poll(sink, comps, NOTES), NOTES);
	assert_int_equal(gx_queue_arm(sink), 1);
	assert_int_equal(gx_poll(sink, comps, NOTES), 0);
	assert_int_equal(gx_queue_arm(sink), 0);
	for (unsigned k = 0; k < NOTES; k++)
		seen[nr_notes++] = k;
	post_to(&i, 2 * NOTES);
	until(&nr_notes, 2 * NOTES);
	until(&nr_done, 2 * NOTES);
	note_end();
}

/* A core sleeps; the program gives notes back, for which the peer may wait. */
static void note__given_back_wakes(void **state)
{
	struct gx_sleep *sleep;
	unsigned i = 0;

	note_rig(false, 0);
	assert_int_equal(sink_open(&sink), 0);
	post_to(&i, 1);
	rig_pass(rig, MS);
	sleep = &rig->core[1]->loop.sleep;
	assert_int_equal(gx_sleep_open(sleep), 0);
	assert_int_equal(sink_poll(), 1);
	gx_sleep_arm(sleep);
	assert_int_equal(poll(&(struct pollfd){.fd = sleep->fd, .events = POLLIN}, 1, 0), 0);
	assert_int_equal(sink_poll(), 0);
	assert_int_equal(poll(&(struct pollfd){.fd = sleep->fd, .events = POLLIN}, 1, 0), 1);
	gx_sleep_close(sleep);
	until(&nr_done, 1);
	note_end();
}

/* Notes that it has not taken come by the core's queue, in order, before later ones; one that the
 * program reads does not come again. Another queue may then ask. */
static void note__sink_closes(void **state)
{
	struct gx_queue *second;
	unsigned i = 0;

	note_rig(false, 5000);
	assert_int_equal(sink_open(&sink), 0);
	assert_int_equal(sink_open(&second), -EBUSY);
	assert_non_null(strstr(gx_error(), "takes the notes"));
	for (unsigned round = 1; round <= 3; round++) {
		unsigned before = nr_core;

		post_to(&i, 90 * round - 40);
		rig_pass(rig, MS);
		for (unsigned k = 0; k < 5; k++)
			assert_int_equal(sink_poll(), 1);
		assert_int_equal(nr_core, before);
		close_queue(sink);
		sink = NULL;
		until(&nr_notes, 90 * round - 40);
		assert_true(nr_core - before >= 5);
		post_to(&i, 90 * round);
		until(&nr_notes, 90 * round);
		assert_int_equal(sink_open(&sink), 0);
	}
	for (unsigned k = 0; k < i; k++)
		assert_int_equal(seen[k], k);
	until(&nr_done, i);
	note_end();
}

static void call_nothing(struct gx_call *call)
{
}

/* On the control thread. */
static int inbox_fill(void *arg)
{
	static struct gx_call nothing = {.fn = call_nothing};

	while (!gx_loop_call(arg, &nothing))
		;
	return 0;
}

/* A core takes no more calls, so the queue is not to be had; another core knows of it already. When
 * both have turned the next one may take the notes. */
static void note__sink_fails_to_open(void **state)
{
	struct gx *gx;

	rig = rig_open(&(struct rig_cfg){.sim = {.seed = 3}, .nr_cores = 2});
	gx = rig->gx[1];
	gx_uring_run_wait(gx->uring, inbox_fill, &gx->core[1]->loop);
	assert_int_equal(sink_open(&sink), -EAGAIN);
	assert_non_null(strstr(gx_error(), "inbox is full"));
	assert_non_null(gx->submits); /* the first core has yet to let it go */
	for (unsigned i = 0; i < 2; i++) {
		rig_pass(rig, MS);
		assert_int_equal(sink_open(&sink), 0);
		assert_ptr_equal(gx->submits, sink);
		assert_null(sink->next);
		close_queue(sink);
	}
	sink = NULL;
	rig_done(rig);
}

/* The core's queue is full when a queue closes: the notes wait for room there, none is lost, and
 * none overtakes. */
static void note__sink_closes_no_room(void **state)
{
	struct gx_core *core;
	unsigned i = 0;

	note_rig(false, 0);
	assert_int_equal(sink_open(&sink), 0);
	post_to(&i, 20);
	rig_pass(rig, MS);
	core = rig->core[1];
	core->comps_due += GX_COMPS_MAX;
	close_queue(sink);
	sink = NULL;
	rig_pass(rig, MS);
	assert_int_equal(nr_notes, 0);
	assert_non_null(core->notes.back);
	rig->still[1] = true;
	post_to(&i, 30);
	for (unsigned k = 0; k < 200; k++)
		rig_turn(rig);
	rig->still[1] = false; /* the others wait before its port, and there is room */
	core->comps_due -= GX_COMPS_MAX;
	until(&nr_notes, 30);
	for (unsigned k = 0; k < 30; k++)
		assert_int_equal(seen[k], k);
	until(&nr_done, 30);
	note_end();
}

/* Its own operations and notes come side by side, even one at a time. */
static void note__sink_is_fair(void **state)
{
	unsigned i = 0, done = 0, notes = 0;
	struct gx_comp comp;

	note_rig(false, 0);
	assert_int_equal(sink_open(&sink), 0);
	post_to(&i, 60);
	for (unsigned k = 0; k < 60; k++)
		assert_int_equal(gx_post(sink, rig->ep[1][0],
					 &(struct gx_op){.kind = GX_OP_PUT,
							 .addr = src,
							 .len = 8,
							 .token = rig->peer[1].token},
					 1),
				 1);
	rig_pass(rig, 2 * MS);
	for (unsigned k = 0; k < 40; k++) {
		assert_int_equal(gx_poll(sink, &comp, 1), 1);
		done += comp.kind == GX_COMP_DONE;
		notes += comp.kind == GX_COMP_NOTIFY;
	}
	assert_int_equal(done, 20);
	assert_int_equal(notes, 20);
	nr_notes += notes;
	rig->on_comp = NULL;
	while (gx_poll(sink, &comp, 1))
		rig_turn(rig);
	close_queue(sink);
	sink = NULL;
	rig_close(rig);
}

/* The endpoint of a note that the program reads lives until it polls again. */
static void note__sink_holds_ep(void **state)
{
	struct gx_conn *conn;
	struct gx_comp comp;
	unsigned i = 0;

	note_rig(false, 0);
	assert_int_equal(sink_open(&sink), 0);
	post_to(&i, 3);
	rig_pass(rig, MS);
	rig->on_comp = NULL;
	assert_true(gx_queue_fd(sink) >= 0);
	assert_int_equal(gx_queue_arm(sink), 1);
	assert_int_equal(gx_poll(sink, &comp, 1), 1);
	conn = gx_ep_conn(comp.ep);
	assert_true(submit_names(rig->gx[1], conn));
	assert_int_equal(comp.note_len, 40);
	assert_int_equal(gx_poll(sink, &comp, 1), 1);
	assert_int_equal(gx_poll(sink, &comp, 1), 1);
	rig_pass(rig, MS);
	assert_true(submit_names(rig->gx[1], conn));
	assert_int_equal(gx_poll(sink, &comp, 1), 0);
	assert_int_equal(gx_queue_arm(sink), 0);
	rig_pass(rig, MS);
	assert_false(submit_names(rig->gx[1], conn));
	rig_close(rig); /* with the queue open */
	sink = NULL;
}

/* An operation that fails has no note, and those behind it come. */
static void fails(uint32_t len, bool list)
{
	uint16_t note[GX_NOTE_MAX / 2] = {0};
	struct gx_op op;
	struct gx_seg segs[2];

	note_rig(false, 5000);
	for (unsigned i = 0; i < 2 * NOTES; i++) {
		op = put_of(0, note, len);
		segs[0] = segs[1] = (struct gx_seg){.off = (uintptr_t)src,
						    .token = op.token,
						    .remote_off = i % 2 ? 0 : 1ull << 40,
						    .len = 8};
		if (list) {
			op.segs = segs;
			op.nr_segs = 2;
		} else {
			op.remote_off = segs[0].remote_off;
		}
		op.remote_off += i % 2 ? 0 : 1ull << 40;
		memcpy(rig_mem(rig, 1), src, BLOCK);
		post_wait(&op);
	}
	until(&nr_done, 2 * NOTES);
	until(&nr_notes, NOTES);
	assert_int_equal(nr_failed, NOTES);
	assert_int_equal(rig->ep[1][0]->notes->next, 2 * NOTES);
	note_end();
}

static void note__fails(void **state)
{
	fails(2, false);
	fails(GX_NOTE_MAX, false);
	fails(2, true);
	fails(GX_NOTE_MAX, true);
}

/* Cancelled at any moment: each operation ends, and the last note comes. */
static void note__cancel(void **state)
{
	uint16_t note[GX_NOTE_MAX / 2] = {0};

	note_rig(false, 5000);
	memcpy(rig_mem(rig, 1), src, BLOCK);
	for (unsigned i = 0; i < 200; i++) {
		struct gx_op op = put_of(0, note, i % 2 ? 2 : 300);

		op.user = i;
		if (i % 3 == 0)
			op.deadline_ns = rig->now_ns + i * 1000;
		post_wait(&op);
		for (unsigned k = 0; k < i / 4; k++)
			turn();
		if (i % 3 == 1)
			gx_cancel(gx_core_queue(rig->core[0]), rig->ep[0][0], i);
	}
	until(&nr_done, 200);
	assert_true(nr_failed > 0 && nr_failed < 200);
	assert_true(nr_notes >= 200 - nr_failed);
	note_end();
}

/* The peer's endpoint is told nonsense: nothing is delivered, each is counted, and it goes on. */
static void note__lies(void **state)
{
	const uint64_t word[] = {
		note_word(NOTES, NOTE_WHOLE, 0, 0),	      /* no such place */
		note_word(0xffff, NOTE_WHOLE, 0, 0),	      /* long ago */
		note_word(0, NOTE_VOID, 0, 0),		      /* half of nothing */
		note_word(0, NOTE_WHOLE, GX_NOTE_MAX + 1, 0), /* too long */
		note_word(1, 0, 0, 0),			      /* credit for what was never sent */
		note_word(2, NOTE_BYTES, 2, 0),		      /* this one is good, ... */
		note_word(2, NOTE_BYTES, 2, 0),		      /* ... and comes twice */
	};
	uint64_t bad;

	note_rig(false, 0);
	bad = rig_stat(rig, 1, "rx_bad");
	for (unsigned i = 0; i < GX_ARRAY_SIZE(word); i++)
		core_note(rig->ep[1][0], word[i]);
	assert_int_equal(rig_stat(rig, 1, "rx_bad") - bad, GX_ARRAY_SIZE(word) - 1);
	rig_pass(rig, MS);
	assert_int_equal(nr_notes, 0);
	for (unsigned i = 0; i < 2; i++)
		core_note(rig->ep[1][0], note_word(i, NOTE_WHOLE | NOTE_VOID, 0, 0));
	core_note(rig->ep[1][0], note_word(2, NOTE_DATA, 0, 0));
	memcpy(rig_mem(rig, 1), src, BLOCK);
	rig_pass(rig, MS);
	assert_int_equal(nr_notes, 1);
	note_end();
}

/* The connection ends with notes in all states, one of them in the hands of the program. */
static void note__conn_ends(void **state)
{
	uint16_t note[3] = {0};
	struct gx_comp comp = {0};
	struct gx_op op;

	note_rig(false, 0);
	op = put_of(0, note, sizeof(note));
	for (unsigned i = 0; i < 40; i++)
		post_wait(&op);
	while (!comp.note) {
		rig->still[1] = true;
		rig_turn(rig);
		gx_core_turn(rig->core[1], rig->now_ns);
		gx_poll(gx_core_queue(rig->core[1]), &comp, 1);
		rig->still[1] = false;
	}
	rig->on_comp = NULL;
	assert_int_equal(comp.note_len, sizeof(note));
	assert_memory_equal(comp.note, note, sizeof(note));
	rig_close(rig);
}

static void note__bad(void **state)
{
	uint64_t word = 0;
	struct gx_op op;

	note_rig(false, 0);
	op = put_of(0, &word, GX_NOTE_MAX + 1);
	assert_int_equal(post(&op), -EINVAL);
	op = put_of(0, NULL, 1);
	assert_int_equal(post(&op), -EINVAL);
	op = put_of(0, &word, 8);
	op.flags |= GX_OP_IMM;
	assert_int_equal(post(&op), -EINVAL);
	op.flags = 0;
	assert_int_equal(post(&op), -EINVAL);
	assert_non_null(strstr(gx_error(), "note_len"));
	op.flags = GX_OP_NOTE;
	op.stream = &word;
	assert_int_equal(post(&op), -EINVAL);
	op.stream = NULL;
	op.kind = GX_OP_GET;
	assert_int_equal(post(&op), -EINVAL);
	op.kind = GX_OP_SEND;
	assert_int_equal(post(&op), -EINVAL);
	note_end();
}

int main(int argc, char *argv[])
{
	const struct CMUnitTest tests[] = {
		rig_test(note__lengths),
		rig_test(note__order),
		rig_test(note__numbers_wrap),
		rig_test(note__list),
		rig_test(note__not_polled),
		rig_test(note__fails),
		rig_test(note__cancel),
		rig_test(note__lies),
		rig_test(note__conn_ends),
		rig_test(note__bad),
		rig_test(note__sink_is_full),
		rig_test(note__sink_closes),
		rig_test(note__sink_takes_over),
		rig_test(note__sink_takes_the_older_first),
		rig_test(note__sink_takes_what_was_not_taken),
		rig_test(note__sink_beside_an_immediate),
		rig_test(note__sink_takes_a_part),
		rig_test(note__sink_fails_to_open),
		rig_test(note__arm_while_held),
		rig_test(note__given_back_wakes),
		rig_test(note__sink_closes_no_room),
		rig_test(note__sink_is_fair),
		rig_test(note__sink_holds_ep),
	};

	return rig_run("note", tests, GX_ARRAY_SIZE(tests), argc, argv);
}
