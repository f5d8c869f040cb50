/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of gxperf to gxd, as small JSON messages over gx_conn_msg(), not the data path:
 *
 *   {"id": 7, "op": "verify", ...}
 *   -> {"id": 7, "ok": true, ...} or {"id": 7, "ok": false, "error": "why"}
 *   and, while gxd works on a long one, {"id": 7, "progress": bytes}.
 *
 * gxd/serve/service.c lists the operations.
 *
 * A struct rpc is the client's end of one connection. gx's control thread takes replies, any thread
 * may begin a request, and rpc_call() waits.
 */
#ifndef RPC_H
#define RPC_H

#include <gx/gx.h>

#include <stddef.h>
#include <stdint.h>

struct json_t;

#define RPC_VERSION    2
#define RPC_MSG_MAX    (32 * 1024)
#define RPC_SILENCE_NS 10000000000ull /* the client gives up after so long a silence */

/* The client's region for echoes, and the bit of an immediate that asks for one. */
#define RPC_ECHO_REGION "gxperf-echo"
#define RPC_IMM_ECHO	(1ull << 63)

/* Messages with a polled last byte use this many slots in turn. rpc_flag() is that byte of message
 * @i: it changes each round, and in the first round it is not the poison. */
#define RPC_POLL_SLOTS 64
static inline unsigned char rpc_flag(uint64_t i)
{
	return (unsigned char)(0xdc + i / RPC_POLL_SLOTS);
}

struct rpc;

/** struct rpc_wait - One request under way. The caller owns the memory; it must stay until fn is
 * called. */
struct rpc_wait {
	/* Control thread, or the caller of rpc_begin() if the request cannot be sent. @err: 0 with
	 * @reply (fn takes it over), -EREMOTEIO (the server refuses, @why), -ENOTCONN. Must not
	 * call rpc functions. */
	void (*fn)(struct rpc_wait *wait, int err, struct json_t *reply, const char *why);
	/* NULL, or called when the server reports progress. */
	void (*progress)(struct rpc_wait *wait, uint64_t done_b);
	int64_t id;
	struct rpc_wait *next;
};

/** rpc_open() - The client's end of @conn. Return: NULL: no memory. */
struct rpc *rpc_open(struct gx_conn *conn);
void rpc_close(struct rpc *rpc); /* no request may be under way; NULL is fine */

/** rpc_on_msg() / rpc_on_down() - Call them from gx's callbacks, on the control thread. */
void rpc_on_msg(struct rpc *rpc, const void *data, uint32_t len);
void rpc_on_down(struct rpc *rpc);

/** rpc_begin() - Send @req and free it. @wait->fn is called later. */
void rpc_begin(struct rpc *rpc, struct json_t *req, struct rpc_wait *wait);

/**
 * rpc_call() - Send @req, free it, and wait for the reply. Not from the control thread or a core in
 * a turn.
 * @progress: NULL, or called on the control thread with @arg and the bytes done
 * @reply: set upon success; the caller frees it
 * Return: 0, -EREMOTEIO, -ENOTCONN, -ETIMEDOUT (no news for RPC_SILENCE_NS); @why has words.
 */
int rpc_call(struct rpc *rpc, struct json_t *req, void (*progress)(void *arg, uint64_t done_b),
	     void *arg, struct json_t **reply, char *why, size_t room);

/** rpc_send() - Print @doc into a message to the peer, and free it. NULL: -ENOMEM. Return: as
 * gx_conn_msg(). */
int rpc_send(struct gx_conn *conn, struct json_t *doc);

#endif
