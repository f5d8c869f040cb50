/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A network card with the abilities that a bounce pool in GPU memory needs, for tests: DPDK's null
 * device underneath, and the calls with which the port sets a card up (dataplane/ports/dpdk/), taken at
 * link time (-Wl,--wrap). Two of them are on one wire. It steers by the rules that it was given, cuts
 * where it was told to, and writes payload to memory that was mapped for it and to no other. One
 * thread.
 */
#ifndef DPDK_CARD_H
#define DPDK_CARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What cards do from now on. */
struct card_script {
	/* Abilities that are not there, or fail. */
	bool no_split, by_header, of_all, no_isolation, no_map, no_register, no_split_setup;
	unsigned queues; /* how many receive queues there are; 0: plenty */
	unsigned rules;	 /* how many flow rules it takes; 0: plenty */
	/* What it does with frames. */
	bool loses_end; /* of payload, and says so */
	bool in_three;	/* cuts once more */
	int stray;	/* added to the queue that a rule names */
	unsigned lose;	/* every so many-th payload finds no slot; 0: none does */
	bool guard;	/* memory that is mapped for DMA can be touched by cards alone */
};

/* What they were asked for, and did. */
struct card_seen {
	unsigned maps, unmaps, known, unknown; /* calls that were good */
	unsigned rules;
	unsigned cut, plain;  /* frames that came in at queues of that kind */
	unsigned no_slot;     /* frames lost for want of a buffer of any kind */
	unsigned leaked;      /* pools that were freed before all was back in them */
	unsigned arp;	      /* answers to card_ask() */
	unsigned wrong_order; /* memory unmapped while a card or a pool still had it */
};

extern struct card_script card_script;
extern struct card_seen card_seen;

/** card_reset() - As new: nothing scripted, nothing seen. */
void card_reset(void);
/** card_ask() - An ARP request for @ip, from elsewhere, on the wire. */
void card_ask(uint32_t ip);
/** card_guard() - Close (or open) memory that is mapped for DMA to all but cards. */
void card_guard(bool on);

#endif
