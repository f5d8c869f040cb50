/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A NIC's queue for zero-copy receive and the kernel's books of it, scripted, below a scripted
 * kernel of io_uring (ring_script.h). The pages are ordinary memory, those of the area that the
 * program registers. A page that comes back more often than it was handed out is a breach, and a
 * free page is overwritten at once, so that a late reader moves rubbish.
 */
#ifndef ZCRX_SCRIPT_H
#define ZCRX_SCRIPT_H

#include "nic/ring_script.h"
#include "nic/zcrx_abi.h"

#define ZS_PAGE_B   4096u
#define ZS_PAGES    512u /* at most; more of an area stay unused */
#define ZS_QUEUE_ID 9
#define ZS_TOKEN    (3ull << ZCRX_AREA_SHIFT)
#define ZS_FIRST    (UINT32_MAX - 1000) /* of the refill ring's words: they wrap soon */

struct zcrx_script {
	struct ring_script *k;
	/* orders */
	int err; /* of the registration */
	struct zcrx_offsets offsets;
	/* of the program */
	struct zcrx_reg reg;
	struct zcrx_area area;
	struct zcrx_region region;
	char *ring;	   /* of refills */
	char *mem;	   /* the area; of a dma-buf: where the test has it */
	unsigned nr_pages; /* of the area */
	/* books */
	uint32_t refs[ZS_PAGES]; /* that the program has */
	uint32_t fill;		 /* of the page under way */
	unsigned page, nr_free;
	bool is_open; /* that page is */
	uint64_t nr_cqes, nr_refills, nr_wrong, most;
};

/* The next registration is @z's. @mem: of a dma-buf. */
void zs_open(struct zcrx_script *z, struct ring_script *k, char *mem);
_Atomic uint32_t *zs_word(const struct zcrx_script *z, uint32_t at); /* of the refill ring */
/* The kernel takes back what the program gave, up to @max. */
void zs_refill(struct zcrx_script *z, uint32_t max);
/* Where the next bytes go, of the page under way or of a free one; NULL: there is none. */
char *zs_room(struct zcrx_script *z, uint32_t *room);
/* @n bytes of socket @sock are there. There is room for a completion. */
void zs_post(struct zcrx_script *z, unsigned sock, uint32_t n);
/* The same, and the receive ends with them. */
void zs_post_last(struct zcrx_script *z, unsigned sock, uint32_t n);
/* Nothing more comes to the page under way. */
void zs_leave_page(struct zcrx_script *z);

#endif
