/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections over the local link, for gxperf ipc: the first maps the owner's memory, the second
 * finds it mapped. Memory of the host or of a GPU; the owner is another process. Main thread only.
 */
#ifndef GXPERF_IPC_H
#define GXPERF_IPC_H

#include <gx/gx.h>

#define IPC_USE_B ((uint64_t)64 << 10) /* most bytes of a use */

/** struct link_owner - A server with the one region that is measured. */
struct link_owner {
	struct gx *gx;
	struct gx_mem *mem;
};

/** link_owner_open() - @device: -1: host memory. Return: the port of the server, -errno with
 * gx_error(). */
int link_owner_open(struct link_owner *o, int device, uint64_t size);
/** link_owner_diff() - Count the first @len bytes that differ from those of @seed. Return: 0,
 * -errno. */
int link_owner_diff(const struct link_owner *o, uint64_t len, uint64_t seed, uint64_t *wrong);
void link_owner_close(struct link_owner *o); /* also a half-open one */

/** struct link_user - A client, kept over rounds. */
struct link_user {
	struct gx *gx;
	struct gx_core *core;
	struct gx_mem *mem; /* source of puts, IPC_USE_B */
	uint8_t *bytes;
};

/** struct link_times - Times of one round, in microseconds. */
struct link_times {
	double connect, connect_again; /* until the connection is up */
	double put, put_again;	       /* first put over each connection, until its completion */
	uint64_t made, found;	       /* mappings, of the second connection */
};

int link_user_open(struct link_user *u, int device); /* Return: 0, -errno with gx_error() */
/** link_user_round() - Make two connections; the second puts the bytes of @seed. Close both, and
 * wait until their mappings are gone. Return: 0, -errno with gx_error(). */
int link_user_round(struct link_user *u, unsigned port, uint64_t use_b, uint64_t seed,
		    struct link_times *t);
void link_user_close(struct link_user *u); /* also a half-open one */

#endif
