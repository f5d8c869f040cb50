/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Link tcp sends payload of memory of a GPU from there, where gx_nic_opts.tx asks for that and a NIC
 * has bound the memory (tcp_tx_dev.h): the NIC reads it, later. Headers, trailers, short payload and
 * host memory are copied.
 *
 *   tcp_fetch.c  asks whether an operation may:                 tcp_zc_device()
 *   tcp_tx.c     offers the payload of a frame at a time:       tcp_zc_post()
 *   tcp_zc_end.c reads the error queues while there are some:   link_tcp_zc_poll()
 *   tcp_abort.c   an operation that ends early:                  tcp_zc_keep()
 *   tcp_take.c   the peer is done with one:                     tcp_zc_done()
 *   tcp_life.c   its endpoint ends:                             tcp_zc_end()
 *
 * The rule: an operation completes when nobody reads its memory any more. An early end costs no
 * connection, so it waits for the peer to take the bytes that the kernel has. Where none of such
 * memory has come back for three peer time-outs, the connection ends. So it does where the peer said
 * that it has all, and the kernel keeps the memory as long. An endpoint that ends waits for
 * 200 ms, so that a close is an orderly one. Then it resets its sockets, and the kernel lets go.
 *
 * open and close are control path; all else runs on the polling core.
 */
#ifndef GX_TCP_ZC_H
#define GX_TCP_ZC_H

#include "nic/nic_link.h"
#include "nic/zc_tx.h"

/* Each send costs a read of the error queue, and a second send, because headers are copied. */
#define TCP_ZC_MIN_B 32768
#define TCP_ZC_DEPTH 256 /* sends of a socket; net.core.optmem_max allows some 160 by default */

struct tcp_zc_sock {
	struct zc_tx *tx;    /* frozen; NULL: it copies */
	uint64_t look_ns;    /* the last read of its error queue */
	uint64_t starved_ns; /* since then the kernel takes no send; 0: it does */
	struct zc_stat seen; /* the part of the counters that the core's have */
};

/* Of an endpoint. */
struct tcp_zc {
	struct tcp_ep *next; /* in .zc_eps of the core */
	bool listed;
	uint32_t nr_late;	/* operations with .late */
	uint64_t late_ns;	/* when the first of them began to wait, or the last one ended */
	uint32_t nr_done;	/* operations in TCP_OP_HELD that are not late */
	uint64_t done_ns;	/* as late_ns */
	uint64_t end_ns;	/* the endpoint has failed then */
	uint64_t drop_ns;	/* and its sockets were reset; 0: not yet */
	bool dev_asked, dev_ok; /* does a NIC send memory of GPUs by these sockets? */
	_Atomic int dev_err;	/* why not: -errno; 0: it does, or nobody asked. ctl reads it */
	bool dev_said;		/* ctl: it has warned of that */
	struct tcp_zc_sock sock[TCP_SOCKS_MAX];
};

static inline struct tcp_zc_sock *tcp_zc_of(const struct tcp_ep *e, const struct tcp_sock *s)
{
	return &e->nic.zc->sock[s - e->sock];
}

/** tcp_zc_open() - Control path: the sockets of @e are there. Return: 0; -ENOMEM; -errno with
 * gx_error(): the kernel refuses, and gx_nic_opts.tx names it. */
int tcp_zc_open(struct tcp_ep *e);
void tcp_zc_close(struct tcp_ep *e); /* control path; nothing is out any more */

/** tcp_zc_post() - Send the rest of the payload of @s's first frame; *want: how much that is. Return:
 * bytes; -EAGAIN: none now; -errno: the socket is lost. */
ssize_t tcp_zc_post(struct tcp_ep *e, struct tcp_sock *s, uint64_t *want);
/** tcp_zc_device() - Has a NIC bound the memory of @op, which is of a GPU, and is it to send from
 * there? Then the operation needs no buffers any more. */
bool tcp_zc_device(struct tcp_ep *e, struct tcp_op *op);
/** tcp_zc_say() - Control path: warn once if memory of GPUs goes by host memory. */
void tcp_zc_say(struct gx_ep *ep);

void tcp_zc_stats(struct tcp_ep *e, struct tcp_zc_sock *z);

/** tcp_zc_keep() - @i, which is held, ends early: its completion waits. */
void tcp_zc_keep(struct tcp_ep *e, uint32_t i);
/** tcp_zc_done() - The peer is done with @i, which is held; its mid is free. */
void tcp_zc_done(struct tcp_ep *e, uint32_t i, int err);
/** tcp_zc_end() - The endpoint has failed. */
void tcp_zc_end(struct tcp_ep *e);
void tcp_zc_unlist(struct tcp_ep *e); /* it leaves its core */
/** tcp_zc_drop() - As link_tcp_drop(); and hold freed memory that the kernel reads. */
void tcp_zc_drop(void *link, struct drop *d);
/** link_tcp_zc_poll() - Each turn, in contexts that send so: hand on what the kernel has ended. */
bool link_tcp_zc_poll(void *link, uint64_t now_ns);
bool link_tcp_zc_asleep(const void *link);

#endif
