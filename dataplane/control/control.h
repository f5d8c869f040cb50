/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the control room does for the rooms above it, and its files for one another: connections
 * (conn.c), memory (region.c), GPUs (gpus.c), and the bootstrap (ctl*.c).
 */
#ifndef GX_CONTROL_H
#define GX_CONTROL_H

#include "core/core.h"

/* -- connections, conn.c: called by ctl.c on the control thread -- */

/** conn_new() - A connection in state CONNECTING, in gx->conns. NULL: out of memory. */
struct gx_conn *conn_new(struct gx *gx, bool server);
/** conn_lane_open() - Open lane @lane over conn->port on core (first_core + lane) % nr_cores and
 * say in @local what the peer must know. local->port.fd stays the port's (dup it to send it).
 * Return: 0, -errno with gx_error(). */
int conn_lane_open(struct gx_conn *c, unsigned lane, struct gx_hello_lane *local);
/** conn_lane_connect() - What the peer said of its end; conn->agreed holds. Takes remote->port.fd
 * over. Return: 0, -errno. */
int conn_lane_connect(struct gx_conn *c, unsigned lane, const struct gx_hello_lane *remote);
/** conn_up() - All lanes are connected at both ends: attach them to their cores, state UP, on_conn.
 */
void conn_up(struct gx_conn *c);
/** conn_down() - Lost, failed or closed: state DOWN, operations fail on their cores with @err,
 * on_conn, the waiters wake.
 * @err 0: orderly. Idempotent; the first reason stays. Memory goes by conn_reap(). */
void conn_down(struct gx_conn *c, int err, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/** conn_tick() - Every 20 ms for each connection: sees faults of its lanes (conn_down()). */
void conn_tick(struct gx_conn *c);
/** conn_is_over() - Is @c DOWN, and have all cores let go of it? Its local mappings go here. */
bool conn_is_over(struct gx_conn *c);
/** conn_reap() - Free a connection that is over, unless its user still holds it. Its control half
 * is gone already. Return: true when @c is gone. */
bool conn_reap(struct gx_conn *c);
const char *conn_link_name(const struct gx_conn *c);
void conn_state_set(struct gx_conn *c, enum gx_conn_state state); /* and wake who waits */

/* -- memory, region.c; control thread -- */

/** mem_reap() - Free memory whose owner has let go of it and that nothing of gx touches any more, or
 * (@all) what is left when the context closes. */
void mem_reap(struct gx *gx, bool all);

/* -- GPUs, gpus.c; control thread -- */

int gpu_get(struct gx *gx, int device, struct gx_gpu **out);	/* opened, if it was not yet */
void gpu_host_register(struct gx_mem *mem, struct gx_gpu *gpu); /* host memory, for copy engines */

/* -- the control half, ctl.c. ctl_open, ctl_close, ctl_listen, ctl_listen_stop, ctl_connect and
 * ctl_stats_listen are called on the caller's thread (names are resolved there), the others on the
 * control thread -- */

int ctl_open(struct gx *gx); /* sets gx->ctl */
void ctl_close(struct gx *gx);
int ctl_listen(struct gx *gx, const char *addr); /* port number, -errno with gx_error() */
void ctl_listen_stop(struct gx *gx);
/* Begin the bootstrap of @c, to @addr. opts is copied. The rest comes through conn_up() /
 * conn_down(). */
int ctl_connect(struct gx_conn *c, const char *addr, const struct gx_connect_opts *opts);
/* Send a user's message; any thread. */
int ctl_msg(struct gx_conn *c, const void *data, uint32_t len);
/* Orderly end of the bootstrap connection: BYE, then close. The rest by conn_down(c, 0, ...). */
void ctl_bye(struct gx_conn *c);
/* Free @c once nobody uses it any more: its control half, then the rest. Again at the next tick. */
void ctl_reap(struct gx_conn *c);
int ctl_stats_listen(struct gx *gx, const char *path);

#endif
