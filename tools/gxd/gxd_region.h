/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work of gxd's worker on the bytes of a region: poison, fill, check, digest.
 */
#ifndef GXD_REGION_H
#define GXD_REGION_H

#include "gxd/gxd_service.h"

/** struct service_work - The request at work: to notice that its client is gone, and to send
 * progress. */
struct service_work {
	struct service_client *client;
	long long id;
	uint64_t news_ns;    /* time of the last progress message */
	unsigned char *room; /* SERVICE_PIECE_B bytes of the worker */
};

/* Slots of a region: @nr of @size bytes, @stride apart, from @off on. Slot j holds message @iter +
 * j. */
struct service_slots {
	uint64_t off, size, stride, nr, seed, iter;
};

/* Return: 0, -ECANCELED, or the error of gx_mem_copy_out() or gx_mem_copy_in(). The caller has
 * checked the bounds. */
int service_poison(struct service_work *work, const struct service_region *r, uint64_t off,
		   uint64_t len);
int service_fill(struct service_work *work, const struct service_region *r,
		 const struct service_slots *s);
int service_verify(struct service_work *work, const struct service_region *r,
		   const struct service_slots *s, struct check_result *res);
int service_sha256(struct service_work *work, const struct service_region *r, uint64_t off,
		   uint64_t len, char *hex);

#endif
