/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A kernel and a NIC with devmem TCP, scripted: sockets whose payload lands in dma-bufs that are
 * ordinary memory here. The seed decides about sizes, places, tokens and faults. The kernel keeps
 * books: a token that comes back twice, out of order, or was never given out is a breach. It writes
 * over a fragment as soon as its token comes back, so that a late reader moves rubbish.
 */
#ifndef DEVMEM_SCRIPT_H
#define DEVMEM_SCRIPT_H

#include "nic/devmem.h"

#define SCRIPT_POOLS  2
#define SCRIPT_SOCKS  4
#define SCRIPT_PAGES  1024 /* of a pool at most */
#define SCRIPT_TOKENS 16384
#define SCRIPT_FRAG_B 4096

enum script_fault { /* of a read; each ends the stream */
		    SCRIPT_NONE,
		    SCRIPT_ETOOSMALL,
		    SCRIPT_EFAULT,
		    SCRIPT_ENODEV,
		    SCRIPT_RESET,
		    SCRIPT_CLOSED,
		    SCRIPT_EMPTY,   /* a fragment without bytes */
		    SCRIPT_BEYOND,  /* one beyond its dma-buf */
		    SCRIPT_LONGER,  /* a fragment has more bytes than were read */
		    SCRIPT_SHORTER, /* fewer bytes are claimed than were read */
		    SCRIPT_FOREIGN, /* a dma-buf of others */
		    SCRIPT_CUT,	    /* the last message is cut short */
		    SCRIPT_NONSENSE,
		    SCRIPT_FAULTS
};

struct script_token {
	bool is_out;
	uint8_t pool;
	uint32_t off, len;
	uint64_t order; /* of handing out */
};

/* A fragment that the NIC has received; the program reads it in one piece or more. */
struct script_frag {
	enum { FRAG_NONE, FRAG_DEVICE, FRAG_LINEAR, FRAG_PLAIN } kind;
	uint8_t pool;
	uint32_t off, left;
};

struct script_sock {
	uint64_t pos;	      /* bytes of the stream that were read */
	uint64_t given, back; /* tokens */
	unsigned nr_out;
	unsigned nr_lost; /* of them: those that a fault kept from the program */
	bool is_over;	  /* its source said so */
	uint32_t lowest;  /* no token below is free */
	struct script_frag frag;
	uint32_t at; /* with a source: bytes of the fragment that were read */
	char bytes[SCRIPT_FRAG_B];
	struct script_token token[SCRIPT_TOKENS];
};

struct script {
	uint64_t rnd;
	bool faults;		/* passing ones */
	unsigned fatal_every;	/* reads, about; 0: none ends a stream */
	bool is_dry;		/* nothing more comes */
	enum script_fault next; /* of the next read that can show it */
	/* Bytes of a socket's stream, @n at most; 0: none now; -ESHUTDOWN: it has ended. NULL:
	 * script_bytes() are its stream. */
	int (*source)(unsigned sock, char *to, uint32_t n);
	uint32_t nr_pages;
	char *pool[SCRIPT_POOLS];
	uint32_t refs[SCRIPT_POOLS][SCRIPT_PAGES]; /* a page: its tokens, and the NIC's one */
	uint32_t nr_free[SCRIPT_POOLS];
	uint32_t last[SCRIPT_POOLS]; /* end of the last fragment */
	struct script_sock sock[SCRIPT_SOCKS];
	/* books */
	uint64_t nr_frags, nr_starved, nr_short, nr_fault[SCRIPT_FAULTS];
	unsigned most_ranges, most_tokens;	   /* of a release */
	uint64_t nr_unknown, nr_disorder, nr_over; /* breaches */
};

extern const struct devmem_sys script_sys; /* of script_use()'s; fd: index of the socket */

uint64_t script_rnd(struct script *s);
/* @pools: SCRIPT_POOLS of @nr_pages, one behind another */
void script_open(struct script *s, uint64_t seed, char *pools, uint32_t nr_pages);
void script_use(struct script *s);
uint32_t script_id(unsigned pool);
/* Byte @pos of the stream of @sock, and those behind it, up to SCRIPT_FRAG_B. */
const char *script_bytes(unsigned sock, uint64_t pos);
void script_close(struct script *s, unsigned sock); /* all its tokens go back; a new stream */
unsigned script_held(const struct script *s);	    /* pages that are not free */

#endif
