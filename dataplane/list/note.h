/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notes of an endpoint: the bytes of GX_OP_NOTE. They go to the peer by puts with a hidden
 * immediate, so no link knows of them. A put of the bytes lands in memory of the peer that
 * CORE_TOKEN_NOTES names; the data are another put; both have the note's number in their
 * immediate, and the receiver pairs them. list/list_run.c sends; note.c receives, and gives
 * credit. Private to dataplane/. owner: core, unless a field says otherwise.
 */
#ifndef GX_LIST_NOTE_H
#define GX_LIST_NOTE_H

#include "core/core.h"
#include "gx_internal/ring.h"
#include "gx_internal/sleep.h"

#include <string.h>

#define NOTES	    64	 /* of an endpoint that the peer's program has not given back, at most */
#define NOTE_WORD_B 4	 /* so many bytes need no put of their own */
#define NOTES_OUT   1024 /* of a core that a queue has not given back, at most */

/* The hidden immediate: u16 number, 3 bits of these, 13 bits length, the bytes of a short note. No
 * bit: credit; the number is that of notes that the sender's program has given back, in all. */
enum note_bit {
	NOTE_DATA = 1,	/* the data are visible, or there are none */
	NOTE_BYTES = 2, /* so are the bytes of the note */
	NOTE_WHOLE = NOTE_DATA | NOTE_BYTES,
	NOTE_VOID = 4, /* the operation failed: the number counts, and the note is dropped */
};
static inline uint64_t note_word(uint32_t number, unsigned bits, uint32_t len, uint32_t word)
{
	return (number & 0xffff) | (uint64_t)bits << 16 | (uint64_t)len << 19 |
	       (uint64_t)word << 32;
}

/* A note that comes in. While the program may read it the queue's thread owns .next. */
struct note_in {
	struct note_in *next; /* in gx_core.notes, or note_sink.taken */
	struct notes *of;
	uint32_t word; /* a short note */
	uint16_t len;
	uint8_t got; /* enum note_bit */
	bool free;   /* given back, or void */
	bool away;   /* it counts in notes.away */
};

struct notes {
	struct gx_ep *ep;      /* not to be used once .over */
	_Atomic unsigned refs; /* the endpoint, and notes that the program may read */
	_Atomic unsigned away; /* notes of a queue that the program may read: they hold .ep */
	bool over;	       /* the endpoint has failed */
	char *map;	       /* mmap(): the bytes that go out, then those that come in */
	/* out */
	uint32_t number; /* of the next one */
	uint32_t credit; /* numbers that the peer has given back */
	uint64_t busy;	 /* bit: a link may still read the bytes at this place */
	/* in */
	struct gx_mem mem; /* CORE_TOKEN_NOTES */
	struct note_in in[NOTES];
	uint32_t next, freed,
		credited;	 /* number to deliver; given back in all; of these the peer knows */
	struct gx_route route;	 /* of the credit */
	bool telling;		 /* it is under way */
	struct notes *turn_next; /* in gx_core.notes.turn */
	bool turns;
};

/* From a core to the queue that takes its notes, and back. Both rings have room for NOTES_OUT. */
struct note_sink {
	struct gx_ring *to_queue, *to_core; /* struct note_in */
	struct gx_sleep *sleep;		    /* of the queue; frozen */
	uint32_t out;			    /* core: given to the queue, and not given back */
	struct note_in *taken;		    /* queue's thread: the program may read these */
};

static inline char *note_out_at(const struct notes *n, uint32_t number)
{
	return n->map + number % NOTES * GX_NOTE_MAX;
}

/* May one more note go out? */
static inline bool notes_room(const struct notes *n)
{
	return n->number - n->credit < NOTES && !(n->busy >> n->number % NOTES & 1);
}

/* The bytes of a note that came in. */
static inline const void *note_in_at(const struct note_in *in)
{
	return in->len > NOTE_WORD_B ? in->of->mem.addr + (in - in->of->in) * GX_NOTE_MAX
				     : (const char *)&in->word;
}

/* -- control path -- */

/** note_sink_open() - 0, -ENOMEM. note_sink_close(): accepts one of zeros. */
int note_sink_open(struct note_sink *s, struct gx_sleep *sleep);
void note_sink_close(struct note_sink *s);
/** notes_away() - Has a queue a note of @ep that its program may read? */
bool notes_away(const struct gx_ep *ep);

int notes_open(struct gx_ep *ep);   /* 0, -ENOMEM */
void notes_close(struct gx_ep *ep); /* accepts none */
void core_notes_close(struct gx_core *core);

/* -- poll core -- */

void notes_fail(struct gx_ep *ep); /* notes that the program has not been given are dropped */
/** core_sink_begin() - A queue takes the notes, also those that lie in the core's own.
 * core_sink_turn(): take what it gives back. Return: there was some. core_sink_end(): it is no more;
 * what it has not taken goes to the core's own. */
void core_sink_begin(struct gx_core *core, struct note_sink *s);
bool core_sink_turn(struct gx_core *core);
void core_sink_end(struct gx_core *core);
/** core_notes_poll() - gx_poll() of the core's queue while the program may read notes. */
unsigned core_notes_poll(struct gx_core *core, struct gx_comp comps[], unsigned n);

#endif
