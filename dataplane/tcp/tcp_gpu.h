/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payload into memory of GPUs, and what the tcp link has for a GPU.
 */
#ifndef GX_TCP_GPU_H
#define GX_TCP_GPU_H

#include "tcp/tcp.h"

/** tcp_ring_room() - Where the next bytes for @k's place come in. Return: how many may; 0: none, until a
 * block comes back. */
uint32_t tcp_ring_room(struct tcp_ep *e, const struct tcp_sink *k, char **at);
/** tcp_ring_add() - @n bytes for @k's place are there. */
void tcp_ring_add(struct tcp_ep *e, const struct tcp_sink *k, const char *at, uint32_t n);
/** tcp_far_room() - Does tcp_far_add() take a fragment? */
bool tcp_far_room(const struct tcp_gpu *t);
/** tcp_far_add() - @n bytes at @src, of @s's fragment @ref, are for @k's place. The fragment is
 * held until the GPU has copied them. */
void tcp_far_add(struct tcp_ep *e, const struct tcp_sock *s, const struct tcp_sink *k,
		 const char *src, uint32_t n, uint32_t ref);
/** tcp_gpus_reap() - Once a turn: hand on the copies that have ended, and launch the fragments that
 * wait. True: it worked. */
bool tcp_gpus_reap(struct link_tcp *l, uint64_t now_ns);
/** tcp_gpus_settle() - No more bytes come in now: launch, and hand on copies that a CPU has made. */
void tcp_gpus_settle(struct link_tcp *l, uint64_t now_ns);
/** tcp_gpus_drop() - Hold freed memory that is still being staged. */
void tcp_gpus_drop(struct link_tcp *l, struct drop *d);

/** link_tcp_gpu() - The link's part of @gpu, which is open. Control path. Return: 0, -errno. */
int link_tcp_gpu(struct link_tcp *l, struct gx_gpu *gpu);
void tcp_core_gpu(struct gx_core *core, unsigned device); /* core: use it from now on */
void tcp_gpus_close(struct link_tcp *l);

#endif
