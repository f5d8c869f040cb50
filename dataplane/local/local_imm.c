// SPDX-License-Identifier: Apache-2.0
/*
 * Notifications of the local link: entries in a ring that the receiver owns. The sender writes them
 * after the data (local.h). Runs on the polling core.
 */
#include "local/link_local.h"

#include <errno.h>

#define LOCAL_IMMS_TAKE 64		 /* entries that a turn takes of one ep */
#define LOCAL_LOOKS	64		 /* looks at the rings of few eps */
#define LOCAL_IMMS_TELL (LOCAL_IMMS / 4) /* entries consumed before the sender learns of it */
#define LOCAL_BAD_MAX	1024 /* bad ones; after these the core reads no more of the peer */

bool local_imm_room(struct local_ep *e)
{
	if (e->tx_head - e->tx_done < LOCAL_IMMS)
		return true;
	/* Pairs with the release in imms_tell(): the receiver has copied the entries out. */
	e->tx_done = atomic_load_explicit(&e->tx->done, memory_order_acquire);
	if (e->tx_head - e->tx_done <= LOCAL_IMMS)
		return e->tx_head - e->tx_done < LOCAL_IMMS;
	e->tx_done = e->tx_head - LOCAL_IMMS; /* nonsense: call the ring full */
	atomic_store_explicit(&e->pkt.ep.fault, -EPROTO, memory_order_release);
	return false;
}

void local_imm_put(struct local_ep *e, uint64_t token, uint64_t off, uint64_t len, uint64_t imm)
{
	struct local_imm *n = &e->tx->imm[e->tx_head++ % LOCAL_IMMS];

	n->token = token;
	n->off = off;
	n->len = len;
	n->imm = imm;
	/* Pairs with the acquire in imm_is(): the entry is complete, and the data in place. */
	atomic_store_explicit(&n->seq, e->tx_head, memory_order_release);
	if (gx_port_is_asleep(e->pkt.port_path.asleep, *e->pkt.port_path.woken))
		e->pkt.link->q->ops->wake(e->pkt.link->q, e->pkt.port_peer);
}

static void imms_tell(struct local_ep *e)
{
	e->rx_credited = e->rx_next;
	/* Pairs with the acquire in local_imm_room(). */
	atomic_store_explicit(&e->rx->done, e->rx_credited, memory_order_release);
}

/* Copy the entry out, then check it: does it name a region of ours that peers may write, and lie
 * inside? Return: 0, -ESTALE: it did; else nonsense. */
static int imm_get(struct local_ep *e, const struct local_imm *n, struct gx_comp *comp)
{
	struct gx_mem *mem;
	int ret;

	comp->kind = GX_COMP_NOTIFY;
	comp->op = GX_OP_PUT;
	comp->status = 0;
	comp->ep = &e->pkt.ep;
	comp->user = comp->tag = 0;
	comp->token = *(const volatile uint64_t *)&n->token;
	comp->off = *(const volatile uint64_t *)&n->off;
	comp->len = *(const volatile uint64_t *)&n->len;
	comp->imm = *(const volatile uint64_t *)&n->imm;
	ret = core_region(&e->pkt.ep, comp->token, GX_ACCESS_PUT, comp->off, comp->len, &mem);
	if (ret)
		return ret;
	/* The user reads the bytes next, and their line is still in the other core's cache. */
	if (mem->kind == GX_MEM_HOST) {
		uintptr_t at = (uintptr_t)mem->addr + comp->off;

		__builtin_prefetch((const void *)at);
		e->rx_guess = 2 * at - e->rx_at;
		e->rx_at = at;
	}
	return 0;
}

static void imm_bad(struct local_ep *e)
{
	gx_stat_add(local_stats(e), GX_STAT_RX_BAD, 1);
	e->nr_bad++;
}

static const struct local_imm *imm_next(const struct local_ep *e)
{
	return &e->rx->imm[e->rx_next % LOCAL_IMMS];
}

/* Is @n the entry of this number? Pairs with the release in local_imm_put(). */
static inline bool imm_is(const struct local_imm *n, uint32_t number)
{
	return atomic_load_explicit(&n->seq, memory_order_acquire) == number + 1;
}

bool local_imm_there(const struct local_ep *e)
{
	return e->rx && imm_is(imm_next(e), e->rx_next);
}

bool local_imms_take(struct local_ep *e)
{
	struct gx_core *core = e->pkt.ep.core;
	uint32_t first = e->rx_next, end = first + LOCAL_IMMS_TAKE;
	const struct local_imm *n;
	int ret;

	for (; e->rx_next != end && core_comp_room(core); e->rx_next++) {
		n = imm_next(e);
		if (!imm_is(n, e->rx_next))
			break;
		if (gx_unlikely(*(const volatile uint64_t *)&n->token & CORE_TOKEN_HIDDEN)) {
			core_note(&e->pkt.ep, *(const volatile uint64_t *)&n->imm);
			continue;
		}
		ret = imm_get(e, n, core_comp_next(core));
		if (!ret)
			core->comp_head++;
		else if (ret != -ESTALE) /* nobody hears of what was withdrawn since */
			imm_bad(e);
	}
	if (e->rx_next == first)
		return false;
	e->pkt.timer.heard_ns = e->busy_ns = e->link->imm_ns = core->now_ns;
	gx_stat_add(local_stats(e), GX_STAT_MSGS_RX, e->rx_next - first);
	if (e->rx_next - e->rx_credited >= LOCAL_IMMS_TELL)
		imms_tell(e);
	if (e->nr_bad >= LOCAL_BAD_MAX)
		e->rx = NULL;
	return true;
}

/* The rest of a turn takes longer than a notification. So soon after notifications the core looks a
 * little longer at its few rings; each look costs a load from the cache. It also fetches the line
 * of the next bytes, if they will be as far on as the last ones were. So two transfers from the
 * other core run at once. The core does not read that line. */
bool local_imms_wait(struct link_local *l)
{
	const struct local_imm *next[LOCAL_FEW];
	uint32_t number[LOCAL_FEW];
	struct local_ep *at[LOCAL_FEW];
	unsigned n = 0;

	for (unsigned i = 0; i < l->nr_live; i++)
		if (l->live[i]->rx) {
			at[n] = l->live[i];
			next[n] = imm_next(at[n]);
			number[n] = at[n]->rx_next;
			n++;
		}
	for (unsigned k = 0; k < LOCAL_LOOKS; k++)
		for (unsigned i = 0; i < n; i++) {
			__builtin_prefetch((const void *)at[i]->rx_guess);
			if (imm_is(next[i], number[i]))
				return local_imms_take(at[i]);
		}
	return false;
}
