/* SPDX-License-Identifier: Apache-2.0 */
/*
 * No NIC does anything for the link; see tcp_offload.h. An operation is never held.
 */
#include "tcp/tcp_offload.h"

#include <errno.h>

static void none_ep(struct tcp_ep *e)
{
}

static int none_connect(struct tcp_ep *e)
{
	return 0;
}

static void none_tick(struct gx_ep *ep)
{
}

static bool none_takes(struct tcp_ep *e, struct tcp_op *op)
{
	return false;
}

static ssize_t none_send(struct tcp_ep *e, struct tcp_sock *s, uint64_t *want)
{
	return -EOPNOTSUPP;
}

static void none_early(struct tcp_ep *e, uint32_t i)
{
}

static void none_done(struct tcp_ep *e, uint32_t i, int err)
{
}

const struct tcp_offload tcp_offload_none = {
	.open = none_ep,
	.connect = none_connect,
	.close = none_ep,
	.tick = none_tick,
	.takes = none_takes,
	.send = none_send,
	.early = none_early,
	.done = none_done,
	.fail = none_ep,
	.leave = none_ep,
};
