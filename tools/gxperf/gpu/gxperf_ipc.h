/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What connections over the local link cost gxperf ipc: the first maps the owner's memory, the
 * second finds it mapped. Host memory or a GPU's; the owner is another process. Main thread only.
 */
#ifndef GXPERF_IPC_H
#define GXPERF_IPC_H

#include <gx/gx.h>

#define IPC_USE_B ((uint64_t)64 << 10) /* of a use, at most */

/** struct link_owner - A server whose one region is measured. */
struct link_owner {
	struct gx *gx;
	struct gx_mem *mem;
};

/** link_owner_open() - @device: -1: host memory. Return: the port that it listens at, -errno with
 * gx_error(). */
int link_owner_open(struct link_owner *o, int device, uint64_t size);
/** link_owner_diff() - How many of the first @len bytes are not those of @seed? Return: 0, -errno.
 */
int link_owner_diff(const struct link_owner *o, uint64_t len, uint64_t seed, uint64_t *wrong);
void link_owner_close(struct link_owner *o); /* of a half-open one too */

/** struct link_user - A client, kept over rounds. */
struct link_user {
	struct gx *gx;
	struct gx_core *core;
	struct gx_mem *mem; /* what is put, IPC_USE_B */
	uint8_t *bytes;
};

/** struct link_times - Of one round, microseconds. */
struct link_times {
	double connect, connect_again; /* until it is up */
	double put, put_again;	       /* the first over each connection, to its completion */
	uint64_t made, found;	       /* mappings, of the second connection */
};

int link_user_open(struct link_user *u, int device); /* Return: 0, -errno with gx_error() */
/** link_user_round() - Two connections; the second's put has the bytes of @seed. When they have
 * gone, so have the mappings. Return: 0, -errno with gx_error(). */
int link_user_round(struct link_user *u, unsigned port, uint64_t use_b, uint64_t seed,
		    struct link_times *t);
void link_user_close(struct link_user *u); /* of a half-open one too */

#endif
