/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listeners: several a context, each with a pointer of the program; who may come; and up to 64 bytes
 * that each end gives the other before the connection is up. gx_listen() (gx.h) is the short way.
 */
#ifndef GX_LISTEN_H
#define GX_LISTEN_H

#include "gx/gx.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GX_CONN_DATA_MAX 64 /* bytes that an end gives the other */

struct gx_listener;

/** struct gx_listen_opts - Zero means the default everywhere. gx copies all of it. */
struct gx_listen_opts {
	size_t size;
	void *user;	   /* gx_conn_user() of each connection that it accepts, at first */
	const void *data;  /* for each client that speaks to it: gx_conn_data() there. In clear, and
			      before the client has shown its user */
	uint32_t data_len; /* at most GX_CONN_DATA_MAX */
	/* Ask gx_opts.on_conn of each client (GX_CONN_EVENT_ASKED) before the connection comes up.
	 * gx has checked the client by then, and gx_conn_data() and gx_conn_info() describe it. The
	 * callback calls gx_conn_refuse(), or it lets the client in. From ASKED on the connection is
	 * the program's, unless it was refused: UP or DOWN follows, and gx_conn_close() frees it. */
	bool ask;
	uint8_t reserved[3]; /* 0 */
};

/**
 * gx_listen_with() - As gx_listen(), by a listener that the program closes. As many as the process
 * has descriptors for: two each. [control]
 * @opts: NULL: all default
 * Return: port number, -EINVAL (.data_len; .ask without gx_opts.on_conn), else as gx_listen().
 */
int gx_listen_with(struct gx *gx, const char *addr, const struct gx_listen_opts *opts,
		   struct gx_listener **out);
/** gx_listener_close() - Accept no more peers here. When it returns, the port is free. Other
 * listeners stay, and so do connections that on_conn has reported; clients in set-up, of which it has
 * not, are refused. No callback sees .user anew afterwards. gx_close() closes those that are left. From a
 * callback, the port is free a moment later. NULL is fine. [control] */
void gx_listener_close(struct gx_listener *l);

/** gx_conn_listener() - Who accepted @conn. NULL: nobody (gx_connect()), gx_listen(), or the listener
 * was closed. */
struct gx_listener *gx_conn_listener(const struct gx_conn *conn);

/** gx_conn_refuse() - In the callback of GX_CONN_EVENT_ASKED: end @conn. gx_conn_wait() of the client
 * fails with -ECONNREFUSED and @why, which its gx_conn_info.text has, too; .reason is
 * GX_REASON_REFUSED. @conn is gone when the callback returns: no other event follows.
 * @why: at most 160 bytes of printable ASCII; others become '?'
 * Return: 0, -EINVAL (not in that callback). */
int gx_conn_refuse(struct gx_conn *conn, const char *why);

/** gx_conn_data() - What the peer gave when the connection was made: gx_connect_opts.data,
 * gx_listen_opts.data. Valid until gx_conn_close(). NULL, and @len 0: nothing, or the connection is not
 * up yet (in a callback of its own events there is no need to wait). */
const void *gx_conn_data(const struct gx_conn *conn, uint32_t *len);

#ifdef __cplusplus
}
#endif

#endif
