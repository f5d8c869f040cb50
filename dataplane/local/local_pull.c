/* SPDX-License-Identifier: Apache-2.0 */
/*
 * May this end read the peer's process, so that long messages take one copy (packet/pull.c)? The
 * kernel decides: users, namespaces, Yama and other security modules have a say. So each end
 * really reads a random word of the peer, once, when a connection is made, and tells the peer in
 * memory that both map whether that worked. The word lies in the first page of the peer's rings,
 * where this end sees it by its own mapping.
 *
 * Only a process of our own user is read: the memory of another user could keep the core waiting
 * for a page as long as that user likes. A hostile process of our own user can do that as well, and
 * gx_host_opts.pull OFF is for servers that expect one. Runs on the control thread.
 */
#include "local/local.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define TIME_B	    (2u << 20) /* of a read and a copy that are timed */
#define TIME_ROUNDS 4	       /* the fastest counts */

/* Return: NULL, or why neither end of @c reads the other. */
static const char *pull_not(const struct gx_conn *c)
{
	if (c->gx->opts.host->pull == GX_PULL_OFF)
		return "switched off";
	if (c->agreed.integrity != GX_INTEGRITY_NONE)
		return "integrity crc32c checks packets";
	if (local_conn_of(c)->uid == (uid_t)-1)
		return "its process is not known here";
	if (!gx_uid_is_own(local_conn_of(c)->uid))
		return "it runs as another user";
	return NULL;
}

void local_pull_offer(struct gx_conn *c)
{
	struct local_hdr *h = &local_conn_of(c)->rx->hdr;

	if (pull_not(c) || gx_random(h->pull_word, sizeof(h->pull_word)))
		return;
	h->pull_at = (uintptr_t)h->pull_word;
}

/* Return: NULL, or why this end does not even try. */
static const char *probe_not(const struct gx_conn *c, const struct pull_who *who)
{
	const struct local_peer *p = local_conn_of(c)->peer;
	const char *why_not = pull_not(c);

	if (why_not)
		return why_not;
	if (!who->word_at)
		return "the peer has switched it off";
	if (!p || p->pid <= 0)
		return "its process is not known here: is it in another PID namespace?";
	return NULL;
}

/* ---- Is it fast? ---- */

/* Three parts of TIME_B bytes. */
struct time_room {
	char from[TIME_B], to[TIME_B], other[TIME_B];
};

/* Payload seldom lies in this core's caches. Stores that bypass them leave it outside. */
static void time_cool(struct time_room *r)
{
	gx_copy_stream(r->from, r->other, TIME_B);
	gx_copy_stream(r->to, r->other, TIME_B);
}

static uint64_t time_pull(struct time_room *r)
{
	const struct iovec here = {r->to, TIME_B}, there = {r->from, TIME_B};
	uint64_t at;

	time_cool(r);
	at = gx_now_ns();
	return pull_sys->read(getpid(), &here, 1, &there, 1) == TIME_B ? gx_now_ns() - at
								       : UINT64_MAX;
}

static uint64_t time_copy(struct time_room *r)
{
	uint64_t at;

	time_cool(r);
	at = gx_now_ns();
	gx_copy(r->to, r->from, TIME_B);
	return gx_now_ns() - at;
}

/* On this process's own memory: the kernel takes the same way as for another's. */
static void pull_time(struct gx *gx)
{
	struct time_room *r = gx_pages_get(sizeof(*r));

	local_ctx(gx)->pull_ns = UINT64_MAX;
	if (!r)
		return;
	local_ctx(gx)->copy_ns = UINT64_MAX;
	memset(r, 1, sizeof(*r)); /* pages */
	for (unsigned i = 0; i < TIME_ROUNDS; i++) {
		local_ctx(gx)->pull_ns = GX_MIN(local_ctx(gx)->pull_ns, time_pull(r));
		local_ctx(gx)->copy_ns = GX_MIN(local_ctx(gx)->copy_ns, time_copy(r));
	}
	gx_pages_put(r, sizeof(*r));
	gx_info("process_vm_readv takes %llu us for 2 MiB, a copy %llu us",
		(unsigned long long)local_ctx(gx)->pull_ns / 1000,
		(unsigned long long)local_ctx(gx)->copy_ns / 1000);
}

/* A packet's bytes are copied twice, once at each end, and a core that sends and receives does both.
 * So the call pays while it takes less than two copies. */
static bool pull_is_fast(struct gx *gx)
{
	if (!local_ctx(gx)->pull_ns)
		pull_time(gx);
	return local_ctx(gx)->pull_ns / 2 < local_ctx(gx)->copy_ns;
}

/* ---- Is it allowed? ---- */

static const char *probe_err(ssize_t err)
{
	if (err == -EPERM)
		return "process_vm_readv: not permitted: set gx_host_opts.pull allow at the peer, or "
		       "kernel.yama.ptrace_scope=0, or give both the capability SYS_PTRACE";
	if (err == -ENOSYS)
		return "process_vm_readv: the kernel does not have it";
	if (err != -ECONNRESET)
		return "process_vm_readv failed";
	return "process_vm_readv: the peer's word is not there";
}

void local_pull_probe(struct gx_conn *c)
{
	struct local_conn *l = local_conn_of(c);
	struct pull_who who = {.word_at = l->tx->hdr.pull_at};
	const char *why_not;
	ssize_t n;

	memcpy(who.word, l->tx->hdr.pull_word, sizeof(who.word));
	why_not = probe_not(c, &who);
	if (!why_not) {
		who.pid = l->peer->pid;
		n = pull_who_reads(&who, NULL, 0, 0);
		why_not = n ? probe_err(n) : NULL;
	}
	if (!why_not && c->gx->opts.host->pull == GX_PULL_AUTO && !pull_is_fast(c->gx))
		why_not =
			"process_vm_readv is slow here: gx_host_opts.pull on takes it all the same";
	if (why_not) {
		gx_info("peer %s: its long messages come as packets, not in one copy: %s",
			c->peer_name, why_not);
		return;
	}
	l->pulls = who;
	/* Pairs with the acquire in local_pull_over(); cores need no order. */
	atomic_store_explicit(&l->rx->hdr.reads, c->gx->opts.host->pull_over_b,
			      memory_order_release);
}

void local_pull_ep(const struct gx_conn *c, unsigned lane, struct pull *p)
{
	struct local_conn *l = local_conn_of(c);

	p->who = l->pulls;
	p->own = getpid();
	p->over_b = c->gx->opts.host->pull_over_b;
	/* A peer that had no word to try may say what it likes. */
	p->peer_reads = pull_not(c) ? NULL : &l->tx->hdr.reads;
	p->we_read = &l->rx->hdr.reads;
	p->taken_tx = l->tx->ring[lane].taken;
	p->taken_rx = l->rx->ring[lane].taken;
}

uint64_t local_pull_over(const struct gx_conn *c)
{
	const struct local_conn *l = local_conn_of(c);
	uint32_t peer_over_b;

	if (!l || !l->tx || pull_not(c))
		return 0;
	/* Pairs with the release in local_pull_probe() of the peer. */
	peer_over_b = atomic_load_explicit(&l->tx->hdr.reads, memory_order_acquire);
	return peer_over_b ? GX_MAX(peer_over_b, c->gx->opts.host->pull_over_b) : 0;
}

const char *local_pull_text(const struct gx_conn *c)
{
	static const char *const texts[2][2] = {
		{"long messages as packets", "long messages in one copy out, as packets in"},
		{"long messages in one copy in, as packets out", "long messages in one copy"}};
	bool in = local_conn_of(c)->pulls.pid;

	return texts[in][local_pull_over(c) > 0];
}
