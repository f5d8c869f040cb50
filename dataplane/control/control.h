/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of the control room, for the rooms above it and for its own files: connections
 * (conn.c), memory (region.c), GPUs (gpus.c), and the bootstrap (ctl*.c).
 */
#ifndef GX_CONTROL_H
#define GX_CONTROL_H

#include "core/core.h"
#include "gx/listen.h"
#include "gx_internal/link.h"

/* -- connections, conn.c: called by ctl.c on the control thread -- */

/** conn_new() - A connection in state CONNECTING, in gx->conns. NULL: out of memory. */
struct gx_conn *conn_new(struct gx *gx, bool server);
/** conn_lane_open() - Open lane @lane over its port on core (first_core + lane) % nr_cores. Fill
 * in @local for the peer. local->port.fd stays the port's (dup it to send it). Return: 0, -errno
 * with gx_error(). */
int conn_lane_open(struct gx_conn *c, unsigned lane, struct gx_hello_lane *local);
/** conn_lane_connect() - Connect the lane to the peer's end @remote, by conn->agreed. Takes
 * remote->port.fd over. Return: 0, -errno. */
int conn_lane_connect(struct gx_conn *c, unsigned lane, const struct gx_hello_lane *remote);
/** conn_attach() - Give the connected lanes to their cores, if that was not done. */
void conn_attach(struct gx_conn *c);
/** conn_again() - A client's connection that was not up yet, whose lanes were failed by conn_retry(): may
 * it be set up once more? Then it is as conn_new() makes it. Return: false: its cores have yet to let go. */
bool conn_again(struct gx_conn *c);
void conn_retry(struct gx_conn *c, int err);
/** conn_up() - Both ends have connected all lanes: attach them to their cores, set state UP,
 * on_conn. */
void conn_up(struct gx_conn *c);
/** conn_down() - The connection is lost, has failed, or was closed: set state DOWN, wake waiters,
 * call on_conn. Its cores fail its operations with @err. An @err of 0 means orderly. Idempotent:
 * the first reason stays. conn_reap() frees the memory. */
void conn_down(struct gx_conn *c, enum gx_reason reason, int err, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
/** conn_tick() - Every 20 ms for each connection: calls conn_down() for a fault of a lane. */
void conn_tick(struct gx_conn *c);
/** conn_is_over() - Is @c DOWN, have all cores let go of it, and did the user take its completions?
 * Unmaps its local memory when the cores have let go. */
bool conn_is_over(struct gx_conn *c);
/** conn_reap() - Free a connection that is over, unless its user still holds it. The caller has
 * freed its control half. Return: @c is gone. */
bool conn_reap(struct gx_conn *c);
void conn_state_set(struct gx_conn *c, enum gx_conn_state state); /* wakes waiters */
/** conn_integrity() - What guards its payload: of packets as agreed, or the records of a link that seals. */
static inline enum gx_integrity conn_integrity(const struct gx_conn *c)
{
	return c->secret && c->link->port == GX_LINK_PORT_NONE && c->link->seals
		       ? GX_INTEGRITY_GCM
		       : (enum gx_integrity)c->agreed.integrity;
}

/* -- memory, region.c; control thread -- */

/** mem_reap() - Free memory that its owner gave back and gx does not touch any more; @all: all
 * memory, when the context closes. */
void mem_reap(struct gx *gx, bool all);
/** mem_list() - Put it into a list of memory. */
void mem_list(struct gx_mem *mem, struct gx_mem **head);
/** mem_end() - Take it, and its parts, from peers and cores: it is dying. */
void mem_end(struct gx_mem *mem);
/** mem_left() - Wait until memory @id, which died by drop @seq, is gone, for @wait_ns at most. Return:
 * is something of it left? Any thread. */
bool mem_left(struct gx *gx, uint64_t id, uint32_t seq, uint64_t wait_ns);
#define MEM_FREE_NS 1000000000u /* to wait for cores; GPUs: gx_gpu_opts.timeout_ns more */
/** mem_still_used() - gx_error() for -EAGAIN, which it returns. Any thread. */
int mem_still_used(const struct gx *gx, const char *what, const char *cure);
/** region_check() - May peers get this access to @mem? Return: 0, -errno with gx_error(). Any thread. */
int region_check(const struct gx_mem *mem, const char *name, unsigned access);
/** region_publish() - From now on peers reach @mem by its token, of place @at in gx->region[]. */
void region_publish(struct gx_mem *mem, unsigned at, uint64_t random);

/* -- GPUs, gpus.c; control thread -- */

int gpu_get(struct gx *gx, int device, struct gx_gpu **out);	/* opens it on first use */
void gpu_host_register(struct gx_mem *mem, struct gx_gpu *gpu); /* for copy engines */
void copier_close(struct core_copier *k, struct gx_gpu *gpu);

/* -- the control half, ctl.c. ctl_open, ctl_close, ctl_listen, ctl_listen_stop, ctl_connect and
 * ctl_stats_listen run on the caller's thread (they resolve names), the others on the control
 * thread -- */

int ctl_open(struct gx *gx); /* sets gx->ctl */
void ctl_close(struct gx *gx);
int ctl_listen(struct gx *gx, const char *addr); /* port number, -errno with gx_error() */
/* @opts were checked. NULL: as ctl_listen(). */
int ctl_listen_with(struct gx *gx, const char *addr, const struct gx_listen_opts *opts,
		    struct gx_listener **out);
/* ctl_listen(); @list: "10.0.0.1:7501,[fd00::1]:7501", where it listens, as much as there is room for. */
int ctl_listen_list(struct gx *gx, const char *addr, char *list, size_t room);
void ctl_listener_close(struct gx_listener *l);
void ctl_listen_stop(struct gx *gx);
/* gx_env_resolve() */
int ctl_resolve(const char *addr, uint64_t timeout_ns, char *list, size_t room);
/* Begin the bootstrap of @c, to @addr. Copies @opts. conn_up() or conn_down() tell the result. */
int ctl_connect(struct gx_conn *c, const char *addr, const struct gx_connect_opts *opts);
/* Send a user's message; any thread. */
int ctl_msg(struct gx_conn *c, const void *data, uint32_t len);
/* Orderly end of the bootstrap connection: BYE, then close. The caller also calls conn_down(c, 0,
 * ..). */
void ctl_bye(struct gx_conn *c);
/* Free @c if nobody uses it any more: its control half, then the rest. Else the next tick tries
 * again. */
void ctl_reap(struct gx_conn *c);
int ctl_stats_listen(struct gx *gx, const char *path);

#endif
