/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of gxperf to gxd as small JSON messages over gx_conn_msg(), beside the data path:
 *	{"id": 7, "op": "verify", ...}	 ->  {"id": 7, "ok": true, ...} or {"id": 7, "ok": false,
 *"error": "why"} and, while a long one is worked on, {"id": 7, "progress": bytes}. gxd_service.c
 *lists the operations.
 *
 * A struct rpc is the client's end for one connection: replies come in on gx's control thread,
 *requests may be begun by any thread, and rpc_call() waits.
 */
#ifndef RPC_H
#define RPC_H

#include <gx/gx.h>

#include <stddef.h>
#include <stdint.h>

struct json_t;

#define RPC_VERSION    2
#define RPC_MSG_MAX    (32 * 1024)
#define RPC_SILENCE_NS 10000000000ull /* without a word from a server that is alive: gives up */

/* The client's region that echoes come back to, and the bit of an immediate that asks for one. */
#define RPC_ECHO_REGION "gxperf-echo"
#define RPC_IMM_ECHO	(1ull << 63)

/* Messages whose last byte is polled go round through so many slots. That byte of message @i:
 * another one each time, and for the first one not what poison has left there. */
#define RPC_POLL_SLOTS 64
static inline unsigned char rpc_flag(uint64_t i)
{
	return (unsigned char)(0xdc + i / RPC_POLL_SLOTS);
}

struct rpc;

/** struct rpc_wait - One request under way. The caller's memory, until fn was called. */
struct rpc_wait {
	/* Control thread, or the caller of rpc_begin() when it cannot be sent. @err: 0 with @reply
	 * (the caller of fn frees it), -EREMOTEIO (the server says no, @why), -ENOTCONN. Must not
	 * call rpc functions. */
	void (*fn)(struct rpc_wait *wait, int err, struct json_t *reply, const char *why);
	/* NULL, or called when the server is still at it. */
	void (*progress)(struct rpc_wait *wait, uint64_t done_b);
	int64_t id;
	struct rpc_wait *next;
};

/** rpc_open() - An end of @conn. Return: NULL when there is no memory. */
struct rpc *rpc_open(struct gx_conn *conn);
void rpc_close(struct rpc *rpc); /* nothing may be under way; NULL is fine */

/** rpc_on_msg() / rpc_on_down() - From gx's callbacks, on the control thread. */
void rpc_on_msg(struct rpc *rpc, const void *data, uint32_t len);
void rpc_on_down(struct rpc *rpc);

/** rpc_begin() - Send @req (freed here), have @wait->fn called later. */
void rpc_begin(struct rpc *rpc, struct json_t *req, struct rpc_wait *wait);

/**
 * rpc_call() - Send @req (freed here) and wait for the reply. Not from the control thread or a core
 * in a turn.
 * @progress: NULL, or called on the control thread with @arg and the bytes done
 * @reply: set upon success, to be freed
 * Return: 0, -EREMOTEIO, -ENOTCONN, -ETIMEDOUT (no news for RPC_SILENCE_NS); @why has words.
 */
int rpc_call(struct rpc *rpc, struct json_t *req, void (*progress)(void *arg, uint64_t done_b),
	     void *arg, struct json_t **reply, char *why, size_t room);

/** rpc_send() - Print @doc (freed here; NULL: -ENOMEM) into a message to the peer. Return: as
 * gx_conn_msg(). */
int rpc_send(struct gx_conn *conn, struct json_t *doc);

#endif
