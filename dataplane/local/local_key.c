/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys over the local link: the memory behind a key is mapped at the peer, as that of named regions is.
 * The end that takes a key asks by a frame of the bootstrap connection (ASK). The owner answers with what
 * a HELLO says of a region (MAP), and passes the descriptor over the Unix socket before. Until then, and
 * where the memory cannot be mapped, packets serve the key.
 *
 * Withdrawing. The owner has a table of the tokens that are good, which peers map for reading. A core of
 * the peer says in the owner's rings that it is in a copy, then looks at the table, then copies (a load
 * after a store in the order of all threads, as with hazard pointers: M. Michael, IEEE TPDS 15(6),
 * 2004). The owner takes the token out of the table, and waits until each core that was in a copy then
 * has left it. A get looks once more after its copy: a peer that was stopped for so long that the owner
 * gave it up hands out no bytes of the next owner.
 *
 * A lease, and a key for one connection, are the owner's to judge: packets serve them. Runs on the
 * control thread.
 */
#include "local/local.h"

#include "core/le.h"
#include "gx_internal/fds.h"
#include "gx_internal/fork.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ASKS_OUT 64 /* asked at a time: so many descriptors fit into the Unix socket */
#define LIVE_B	 (GX_KEYS_MAX * sizeof(uint64_t))

/* What the ends say in frames, little endian. */
enum { SAY_ASK = 1, SAY_MAP, SAY_GONE };
enum {
	KEY_SAY = 0,	/* u8 SAY_ */
	KEY_EXPORT = 1, /* MAP: u8 enum gx_export_kind; NONE: packets serve it */
	KEY_ACCESS = 2, /* MAP: u8 GX_ACCESS_; 0: there is no such key any more */
	KEY_FD =
		3, /* u8. ASK: 1: with the descriptor, as this end has not kept the mapping; MAP: 1:
			     no descriptor comes, as one has come before. It may stand for thousands of
			     them: GX_EXPORT_CHUNKS */
	KEY_TOKEN = 8,	  /* u64 */
	KEY_SHORT_B = 16, /* length of ASK and GONE */
	KEY_WHY = 16,	  /* MAP, NONE: the reason, to the end, then zeros */
	KEY_LEN = 16,	  /* MAP: u64 bytes of the key */
	KEY_OFF = 24,	  /* MAP: u64 where they begin in the allocation */
	KEY_WHOLE = 32,	  /* MAP: u64 bytes of the allocation */
	KEY_MAP_LEN = 40, /* MAP: u64; as in struct gx_hello_export, like the rest */
	KEY_MAP_OFF = 48,
	KEY_MAP_ID = 56,
	KEY_HANDLE = 64,
	KEY_MAP_B = KEY_HANDLE + GX_EXPORT_HANDLE_B,
};

static void short_say(struct gx_conn *c, uint8_t say, bool fd, uint64_t token)
{
	uint8_t b[KEY_SHORT_B] = {say};

	b[KEY_FD] = fd;
	le64_put(b + KEY_TOKEN, token);
	if (c->link_say)
		c->link_say(c, b, sizeof(b));
}

/* ---- The table of good tokens ---- */

int local_keys_open(struct gx *gx)
{
	struct local_ctx *l = local_ctx(gx);
	size_t len = GX_ALIGN_UP(LIVE_B, GX_HUGE_PAGE);
	char path[32];
	bool huge = false;
	void *p;
	int fd = gx_memfd("gx-keys", len, &huge);

	if (fd < 0)
		return gx_fail(fd, "no memfd for keys: %s", strerror(-fd));
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	l->live_fd = gx_fd_own(open(path, O_RDONLY | O_CLOEXEC));
	p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (p == MAP_FAILED || l->live_fd < 0)
		return gx_fail(-ENOMEM, "cannot map %zu bytes for keys", len);
	l->live = p;
	return 0;
}

void local_keys_close(struct gx *gx)
{
	struct local_ctx *l = local_ctx(gx);

	if (l->live)
		munmap((void *)l->live, GX_ALIGN_UP(LIVE_B, GX_HUGE_PAGE));
	if (l->live_fd >= 0)
		gx_fd_close(l->live_fd);
}

int local_key_map(struct local_conn *l, int fd)
{
	void *p;

	if (gx_memfd_check(fd, LIVE_B))
		return gx_fail(-EPROTO,
			       "the peer's table of keys is not a sealed memfd of %zu bytes",
			       LIVE_B);
	p = mmap(NULL, LIVE_B, PROT_READ, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		return gx_fail(-ENOMEM, "cannot map the peer's table of keys: %s", strerror(errno));
	l->live = p;
	return 0;
}

/* ---- Who takes a key: asking ---- */

/* Packets serve this key. Say so once. */
static void key_miss(struct gx_conn *c, const char *why)
{
	if (!atomic_exchange_explicit(&c->key_missed, true, memory_order_relaxed))
		core_why(c->why, "a key by packets: its memory is not mapped: %s", why);
}

static struct local_key_page *key_page(const struct local_conn *l, uint64_t token)
{
	struct local_keys *keys = atomic_load_explicit(&l->keys, memory_order_relaxed);
	unsigned at = (token & CORE_TOKEN_INDEX) / LOCAL_KEY_PAGE;

	return keys ? atomic_load_explicit(&keys->page[at], memory_order_relaxed) : NULL;
}

/* NULL: out of memory. */
static struct local_key_page *key_page_make(struct local_conn *l, uint64_t token)
{
	struct local_keys *keys = atomic_load_explicit(&l->keys, memory_order_relaxed);
	unsigned at = (token & CORE_TOKEN_INDEX) / LOCAL_KEY_PAGE;

	if (!keys) {
		keys = calloc(1, sizeof(*keys));
		if (!keys)
			return NULL;
		/* These pair with the acquires in local_map_of(). */
		atomic_store_explicit(&l->keys, keys, memory_order_release);
	}
	if (!atomic_load_explicit(&keys->page[at], memory_order_relaxed)) {
		struct local_key_page *page = calloc(1, sizeof(*page));

		if (!page)
			return NULL;
		atomic_store_explicit(&keys->page[at], page, memory_order_release);
	}
	return key_page(l, token);
}

static void asks_send(struct gx_conn *c)
{
	struct local_asks *a = &local_conn_of(c)->asks;

	while (a->head != a->tail && a->out < ASKS_OUT) {
		a->out++;
		short_say(c, SAY_ASK, false, a->token[a->head++ & (a->room - 1)]);
	}
}

static bool asks_grow(struct local_asks *a)
{
	uint32_t n = a->tail - a->head, room = a->room ? 2 * a->room : ASKS_OUT;
	uint64_t *token;

	if (n < a->room)
		return true;
	token = malloc(room * sizeof(*token));
	if (!token)
		return false;
	for (uint32_t i = 0; i < n; i++)
		token[i] = a->token[(a->head + i) & (a->room - 1)];
	free(a->token);
	a->token = token;
	a->head = 0;
	a->tail = n;
	a->room = room;
	return true;
}

void local_key_ask(struct gx_conn *c, uint64_t token)
{
	struct local_conn *l = local_conn_of(c);
	unsigned at = token % LOCAL_KEY_PAGE;
	struct local_key_page *page;

	if (!l || l->released)
		return;
	if (!token || l->sock < 0) {
		key_miss(c, "peers map no key that lapses or is for one connection, nor host "
			    "memory that gx_mem_alloc() did not make");
		return;
	}
	page = key_page_make(l, token);
	if (page && page->asked[at] == token) /* a program may take a key for each operation */
		return;
	if (!page || !asks_grow(&l->asks)) {
		key_miss(c, "no memory to ask for it");
		return;
	}
	page->asked[at] = token;
	l->asks.token[l->asks.tail++ & (l->asks.room - 1)] = token;
	l->asks.made++;
	asks_send(c);
}

/* What could not be mapped without this GPU is asked for once more. */
void local_keys_gpu(struct gx_conn *c)
{
	const struct local_keys *keys =
		atomic_load_explicit(&local_conn_of(c)->keys, memory_order_relaxed);

	for (unsigned i = 0; keys && i < GX_KEYS_MAX; i++) {
		struct local_key_page *page =
			atomic_load_explicit(&keys->page[i / LOCAL_KEY_PAGE], memory_order_relaxed);
		unsigned at = i % LOCAL_KEY_PAGE;
		uint64_t token = page ? page->asked[at] : 0;

		if (!token || atomic_load_explicit(&page->map[at], memory_order_relaxed))
			continue;
		page->asked[at] = 0;
		local_key_ask(c, token);
	}
}

/* ---- Who takes a key: mapping ---- */

/* No core finds it any more. Operations that have found it may still use it. */
static void map_retire(struct gx_conn *c, struct local_map *m)
{
	m->drop_seq = drop_pass(c->gx);
	m->next = local_conn_of(c)->old;
	local_conn_of(c)->old = m;
}

static void map_free(struct gx_conn *c, struct local_map *m)
{
	if (m->mem)
		local_mem_put(c->gx, local_conn_of(c)->peer, m->mem);
	free(m);
}

static void key_forget(struct gx_conn *c, uint64_t token)
{
	struct local_key_page *page = key_page(local_conn_of(c), token);
	unsigned at = token % LOCAL_KEY_PAGE;
	struct local_map *m =
		page ? atomic_load_explicit(&page->map[at], memory_order_relaxed) : NULL;

	if (!m || m->token != token)
		return;
	atomic_store_explicit(&page->map[at], NULL, memory_order_release);
	map_retire(c, m);
}

void local_keys_tick(struct gx_conn *c)
{
	struct local_map **at = &local_conn_of(c)->old, *m;

	while ((m = *at) != NULL) {
		/* The first pairs with the release in core_drop(): what the core counted is seen. */
		if (!drop_is_done(c->gx, m->drop_seq) ||
		    atomic_load_explicit(&m->users, memory_order_acquire)) {
			at = &m->next;
			continue;
		}
		*at = m->next;
		map_free(c, m);
	}
}

/* The descriptor that the owner has sent before its answer. Return: it, -1: it is not there. */
static int key_fd(struct local_conn *l, uint64_t token)
{
	uint8_t b[8];
	unsigned n = 1;
	int fd;
	ssize_t got = gx_fds_recv(l->sock, b, sizeof(b), &fd, &n);

	if (!n)
		return -1;
	if (got == sizeof(b) && le64_get(b) == token)
		return fd;
	close(fd);
	return -1;
}

static int map_parse(const uint8_t *b, struct gx_hello_region *r, uint64_t *off, uint64_t *len)
{
	struct gx_hello_export *e = &r->export;

	*r = (struct gx_hello_region){.name = "of a key",
				      .token = le64_get(b + KEY_TOKEN),
				      .len = le64_get(b + KEY_WHOLE),
				      .access = b[KEY_ACCESS],
				      .export = {.kind = b[KEY_EXPORT],
						 .map_len = le64_get(b + KEY_MAP_LEN),
						 .map_off = le64_get(b + KEY_MAP_OFF),
						 .map_id = le64_get(b + KEY_MAP_ID)}};
	memcpy(e->handle, b + KEY_HANDLE, sizeof(e->handle));
	*off = le64_get(b + KEY_OFF);
	*len = le64_get(b + KEY_LEN);
	if (e->kind > GX_EXPORT_CHUNKS || (r->token & CORE_TOKEN_INDEX) < GX_REGIONS_MAX)
		return -EPROTO;
	if (e->kind == GX_EXPORT_NONE)
		return 0;
	if (e->map_off > e->map_len || r->len > e->map_len - e->map_off || *off > r->len || !*len ||
	    *len > r->len - *off)
		return -EPROTO;
	return 0;
}

/* The owner's reason, as gx_error(). */
static void why_take(const uint8_t *b)
{
	char why[KEY_MAP_B - KEY_WHY + 1] = "";

	for (unsigned i = 0; i < sizeof(why) - 1 && b[i]; i++)
		why[i] = b[i] >= ' ' && b[i] <= '~' ? (char)b[i] : '?';
	gx_fail(-EOPNOTSUPP, "its owner says: %s", why);
}

/* NULL: packets serve it, with gx_error(). */
static struct local_mem *key_map(struct gx_conn *c, const struct gx_hello_region *r, bool had_fd)
{
	bool due = export_is_fd(r->export.kind) && !had_fd;
	int fd = due ? key_fd(local_conn_of(c), r->token) : -1;
	struct local_mem *mem = NULL;

	if (due && fd < 0)
		gx_fail(-EBADF, "its descriptor did not come");
	else if ((fd >= 0 || r->export.kind != GX_EXPORT_MEMFD) && local_mem_map(c, r, fd, &mem))
		mem = NULL;
	if (fd >= 0)
		close(fd);
	return mem;
}

static int map_take(struct gx_conn *c, const uint8_t *b)
{
	struct local_conn *l = local_conn_of(c);
	struct local_key_page *page;
	struct gx_hello_region r;
	struct local_map *m;
	struct local_mem *mem = NULL;
	uint64_t off, len;
	int ret = map_parse(b, &r, &off, &len);

	if (ret || !l->asks.out) /* a peer that answers what nobody asked */
		return -EPROTO;
	if (r.export.kind != GX_EXPORT_NONE)
		mem = key_map(c, &r, b[KEY_FD]);
	else
		why_take(b + KEY_WHY);
	if (!mem && export_is_fd(r.export.kind) && b[KEY_FD]) {
		if (l->asks.again++ == l->asks.made) /* once for each */
			return -EPROTO;
		short_say(c, SAY_ASK, true, r.token);
		return 0;
	}
	l->asks.out--;
	if (!mem && r.access)
		key_miss(c, gx_error());
	page = key_page(l, r.token);
	m = mem && page ? calloc(1, sizeof(*m)) : NULL;
	if (m) {
		struct local_map *_Atomic *slot = &page->map[r.token % LOCAL_KEY_PAGE];
		struct local_map *was = atomic_load_explicit(slot, memory_order_relaxed);

		local_map_fill(m, &r, mem, off, len);
		m->live = &l->live[r.token & CORE_TOKEN_INDEX];
		local_pair_time(c->gx, m);
		/* Pairs with the acquire in local_map_of(). */
		atomic_store_explicit(slot, m, memory_order_release);
		if (was)
			map_retire(c, was);
	} else if (mem) {
		key_miss(c, "no memory for its place");
		local_mem_put(c->gx, l->peer, mem);
	}
	asks_send(c);
	return 0;
}

/* ---- The owner: answering ---- */

static bool is_shown(const struct local_conn *l, const struct gx_mem *mem)
{
	for (unsigned i = 0; i < l->nr_shown_mem; i++)
		if (l->shown_mem[i] == mem)
			return true;
	return false;
}

/* Keep the memory behind a key for puts: see local_lost(). False: out of memory. */
static bool shown_add(struct local_conn *l, struct gx_mem *mem)
{
	struct gx_mem **more;

	if (is_shown(l, mem))
		return true;
	more = realloc(l->shown_mem, (l->nr_shown_mem + 1) * sizeof(*more));
	if (!more)
		return false;
	more[l->nr_shown_mem++] = mem;
	l->shown_mem = more;
	return true;
}

/* The name of a GPU's memory; its descriptor is made for each peer that asks. */
static int whole_export(struct gx_mem *whole)
{
	struct gx_gpu_handle *h = &whole->share;

	if (h->kind == GX_GPU_SHARE_NONE &&
	    whole->gpu->share->export(whole->gpu, whole->addr, whole->len, h))
		return gx_fail(-EOPNOTSUPP, "%s", gx_gpu_why());
	if (whole->fd < 0 && h->fd >= 0)
		close(h->fd);
	h->fd = whole->fd;
	return 0;
}

/* Could a peer map the memory of @part? @e says how. Return: 0, -errno with gx_error(). */
static int part_export(struct gx_mem *part, struct gx_hello_export *e)
{
	struct gx_mem *whole = part->whole;
	bool gpu = whole->kind == GX_MEM_CUDA;

	if (gpu && !(part->access & GX_ACCESS_PUT))
		return gx_fail(-EOPNOTSUPP, "who maps a GPU's memory can write, and the key does "
					    "not allow puts");
	if (gpu && whole_export(whole))
		return -EOPNOTSUPP;
	/* Memory that cudaIpc names and gx frees must outlive each mapping, see mem_must_stay(). */
	if (gpu && whole->own && whole->share.kind == GX_GPU_SHARE_IPC)
		return gx_fail(-EOPNOTSUPP, "cudaIpc alone names it: share it by gx_mem_share()");
	if (!gpu && whole->fd >= 0 && !whole->sealed)
		whole->sealed = !gx_memfd_freeze(whole->fd, false);
	if (!gpu && !whole->sealed)
		return gx_fail(-EOPNOTSUPP, "no memfd backs it, or the kernel does not seal that");
	local_export_fill(whole, e);
	return 0;
}

static int part_fd_send(const struct local_conn *l, const struct gx_mem *part)
{
	int fd = local_export_fd(part->whole, part->access), ret;
	uint8_t b[8];

	if (fd < 0)
		return fd;
	le64_put(b, part->token);
	ret = gx_fds_send(l->sock, b, sizeof(b), &fd, 1);
	close(fd);
	return ret ? gx_fail(ret, "its descriptor cannot be sent: %s", strerror(-ret)) : 0;
}

/* The peer is about to hear how it reaches @part. @fd: with the descriptor, if there is one; out: with
 * it. Return: 0, -errno with gx_error(): it must not. */
static int part_answer(struct gx_conn *c, struct gx_mem *part, struct gx_hello_export *e, bool *fd)
{
	struct local_conn *l = local_conn_of(c);
	unsigned at = part->token & CORE_TOKEN_INDEX;
	int ret = part_export(part, e);

	if (ret)
		return ret;
	if (!l->answered)
		l->answered = calloc(GX_KEYS_MAX / 64, sizeof(*l->answered));
	/* The file of a memfd says that it is one mapping: it always goes with it. */
	*fd = export_is_fd(e->kind) &&
	      (*fd || e->kind == GX_EXPORT_MEMFD || !is_shown(l, part->whole));
	if (!l->answered || (part->access & GX_ACCESS_PUT && !shown_add(l, part->whole)))
		return gx_fail(-ENOMEM, "no memory to note it");
	ret = *fd ? part_fd_send(l, part) : 0;
	if (ret)
		return ret;
	l->answered[at / 64] |= 1ull << at % 64;
	/* Pairs with the load in local_key_enter(). */
	atomic_store(&local_ctx(c->gx)->live[at], part->token);
	return 0;
}

/* Who maps memory may do with it what it likes. */
static bool ask_may(const struct gx_conn *c, const struct gx_mem *part)
{
	return part->whole && part->len && !part->until_ns && !part->only &&
	       (part->access & core_rights(c, part)) == part->access && local_conn_of(c)->sock >= 0;
}

static void ask_take(struct gx_conn *c, uint64_t token, bool fd)
{
	struct gx_mem *part = core_region_at(c->gx, token);
	unsigned rights = part ? core_rights(c, part) : 0;
	struct gx_hello_export e = {0};
	uint8_t b[KEY_MAP_B] = {SAY_MAP};
	int ret = 0;

	le64_put(b + KEY_TOKEN, token);
	b[KEY_ACCESS] = part ? (uint8_t)(part->access & rights) : 0;
	if (part)
		ret = ask_may(c, part)
			      ? part_answer(c, part, &e, &fd)
			      : gx_fail(-EACCES,
					"the key lapses or is for one connection, or this one "
					"has fewer rights");
	if (ret) {
		gx_info("a key's %llu bytes go to %s by packets: %s", (unsigned long long)part->len,
			c->peer_name, gx_error());
		snprintf((char *)b + KEY_WHY, sizeof(b) - KEY_WHY, "%s", gx_error());
	} else if (part) {
		b[KEY_FD] = !fd;
		b[KEY_EXPORT] = e.kind;
		le64_put(b + KEY_LEN, part->len);
		le64_put(b + KEY_OFF, (uint64_t)(part->addr - part->whole->addr));
		le64_put(b + KEY_WHOLE, part->whole->len);
		le64_put(b + KEY_MAP_LEN, e.map_len);
		le64_put(b + KEY_MAP_OFF, e.map_off);
		le64_put(b + KEY_MAP_ID, e.map_id);
		memcpy(b + KEY_HANDLE, e.handle, sizeof(e.handle));
	}
	if (c->link_say)
		c->link_say(c, b, sizeof(b));
}

int local_key_take(struct gx_conn *c, const uint8_t *b, uint32_t len)
{
	uint64_t token = len >= KEY_SHORT_B ? le64_get(b + KEY_TOKEN) : 0;

	if (len == KEY_MAP_B && b[KEY_SAY] == SAY_MAP)
		return map_take(c, b);
	if (len != KEY_SHORT_B || (b[KEY_SAY] != SAY_ASK && b[KEY_SAY] != SAY_GONE))
		return -EPROTO;
	if (b[KEY_SAY] == SAY_ASK)
		ask_take(c, token, b[KEY_FD]);
	else
		key_forget(c, token);
	return 0;
}

/* ---- The owner: withdrawing ---- */

void local_key_revoke(struct gx_mem *part)
{
	struct local_ctx *ctx = local_ctx(part->gx);
	unsigned at = part->token & CORE_TOKEN_INDEX;

	if (!ctx->live || atomic_load_explicit(&ctx->live[at], memory_order_relaxed) != part->token)
		return; /* no peer has mapped it */
	/* In the order of all threads before the loads in lane_is_past(). */
	atomic_exchange(&ctx->live[at], 0);
	part->link[GX_LINK_LOCAL] = (void *)(uintptr_t)++ctx->revokes;
	for (struct gx_conn *c = part->gx->conns; c; c = c->next) {
		struct local_conn *l = c->link->id == GX_LINK_LOCAL ? local_conn_of(c) : NULL;

		if (!l || !l->answered || !(l->answered[at / 64] >> at % 64 & 1))
			continue;
		l->answered[at / 64] &= ~(1ull << at % 64);
		l->want = ctx->revokes;
		short_say(c, SAY_GONE, false, part->token);
	}
}

/* Has lane @i of the peer left the copies that it was in at withdrawal @seq? The look that is under way may
 * be for an earlier one. */
static bool lane_is_past(struct local_conn *l, unsigned i, uint64_t seq)
{
	const struct local_inside *in = &l->rx->ring[i].inside;
	struct local_lane *lane = &l->lane[i];

	while (lane->past < seq) {
		if (!lane->look) {
			lane->look = l->want;
			lane->core = atomic_load(&in->core);
			lane->begun = atomic_load(&in->begun);
		}
		if (lane->core & 1 && atomic_load(&in->core) == lane->core)
			return false;
		if ((int32_t)(atomic_load(&in->oldest) - lane->begun) < 0)
			return false;
		lane->past = lane->look;
		lane->look = 0;
	}
	return true;
}

/* A connection that is down waits for nobody: its peer has closed it, or is given up as stopped. */
bool local_key_busy(const struct gx_mem *part)
{
	uint64_t seq = (uintptr_t)part->link[GX_LINK_LOCAL];

	for (struct gx_conn *c = seq ? part->gx->conns : NULL; c; c = c->next) {
		struct local_conn *l = c->link->id == GX_LINK_LOCAL ? local_conn_of(c) : NULL;

		if (!l || l->want < seq || conn_state(c) != GX_CONN_STATE_UP)
			continue;
		for (unsigned i = 0; i < l->nr_lanes; i++)
			if (!lane_is_past(l, i, seq))
				return true;
	}
	return false;
}

void local_keys_hold(struct gx_conn *c)
{
	struct local_conn *l = local_conn_of(c);

	for (unsigned i = 0; i < l->nr_shown_mem; i++)
		local_hold(c->gx, l->peer, l->shown_mem[i]);
}

void local_keys_forget(struct gx *gx, const struct gx_mem *mem)
{
	for (struct gx_conn *c = mem->whole ? NULL : gx->conns; c; c = c->next) {
		struct local_conn *l = c->link->id == GX_LINK_LOCAL ? local_conn_of(c) : NULL;

		for (unsigned i = l ? l->nr_shown_mem : 0; i-- > 0;)
			if (l->shown_mem[i] == mem)
				l->shown_mem[i] = l->shown_mem[--l->nr_shown_mem];
	}
}

/* ---- The end ---- */

void local_keys_release(struct gx_conn *c)
{
	struct local_conn *l = local_conn_of(c);
	struct local_keys *keys = atomic_load_explicit(&l->keys, memory_order_relaxed);
	bool stuck = atomic_load_explicit(&l->stuck, memory_order_acquire);
	struct local_map *m;

	for (unsigned p = 0; keys && p < GX_ARRAY_SIZE(keys->page); p++) {
		struct local_key_page *page =
			atomic_load_explicit(&keys->page[p], memory_order_relaxed);

		for (unsigned i = 0; page && i < LOCAL_KEY_PAGE; i++) {
			m = atomic_load_explicit(&page->map[i], memory_order_relaxed);
			if (!m)
				continue;
			atomic_store_explicit(&page->map[i], NULL, memory_order_relaxed);
			m->next = l->old;
			l->old = m;
		}
	}
	while ((m = l->old) != NULL) {
		l->old = m->next;
		if (m->mem) /* as in local_release() */
			m->mem->stuck |= m->gpu && stuck;
		map_free(c, m);
	}
}

void local_keys_free(struct local_conn *l)
{
	struct local_keys *keys = atomic_load_explicit(&l->keys, memory_order_relaxed);

	for (unsigned p = 0; keys && p < GX_ARRAY_SIZE(keys->page); p++)
		free(atomic_load_explicit(&keys->page[p], memory_order_relaxed));
	free(keys);
	if (l->live)
		munmap((void *)l->live, LIVE_B);
	if (l->sock >= 0)
		gx_fd_close(l->sock);
	free(l->asks.token);
	free(l->answered);
	free(l->shown_mem);
}
