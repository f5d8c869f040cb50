/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work of gxd's worker on the bytes of a region: poison, fill, check, digest.
 */
#ifndef GXD_REGION_H
#define GXD_REGION_H

#include "gxd/serve/service.h"

/* Slots of a region: @nr of @size bytes, @stride apart, from @off on. Slot j holds message @iter +
 * j. A range is one slot. */
struct service_slots {
	uint64_t off, size, stride, nr, seed, iter;
};

/**
 * struct service_work - A request that goes over bytes of a region: a piece at a time, as others
 * want to be served meanwhile. Owner: worker.
 */
struct service_work {
	struct service_client *client;
	long long id;
	uint64_t news_ns;    /* time of the last progress message */
	unsigned char *room; /* SERVICE_PIECE_B bytes of the worker, the same for all */
	const struct service_region *region;
	struct service_slots slots;
	/* Work on @n bytes at offset @off of the region, SERVICE_PIECE_B at most: of slot .slot, from
	 * its byte .at on. Return: 0, -errno with gx_error(). NULL: no such request */
	int (*piece)(struct service_work *work, uint64_t off, uint64_t n);
	uint64_t slot, at;	   /* the next piece */
	uint64_t view_off, view_b; /* of these bytes of a GPU .room has a copy */
	struct check_result res;   /* of region_verify() */
	struct digest *digest;	   /* of region_sha256() */
};

/** region_work_turn() - Do some pieces. Return: 1: there are more; 0: it is done; -errno of .piece.
 * The caller has checked the bounds. */
int region_work_turn(struct service_work *work);

/* Each is a struct service_work.piece. */
int region_poison(struct service_work *work, uint64_t off, uint64_t n);
int region_fill(struct service_work *work, uint64_t off, uint64_t n);
int region_verify(struct service_work *work, uint64_t off, uint64_t n);
int region_sha256(struct service_work *work, uint64_t off, uint64_t n);

#endif
