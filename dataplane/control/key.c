/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys: parts of registered memory that peers reach by bytes which travel by any channel. A part is
 * a struct gx_mem of its own, without devices: so links and cores end what a withdrawn key began as
 * they do for freed memory (core/drop.c). On the caller's thread, but what ends in _run.
 */
#include "control/control.h"
#include "core/le.h"

#include "gx_internal/link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The bytes of a key, little endian. */
enum {
	KEY_MAGIC = 0,	/* "gxk1" */
	KEY_KIND = 4,	/* u8 enum gx_mem_kind */
	KEY_ACCESS = 5, /* u8 GX_ACCESS_ bits */
	KEY_DEVICE = 6, /* i16 CUDA ordinal at the owner; host memory: -1 */
	KEY_OWNER = 8,	/* u64 of its HELLO */
	KEY_TOKEN = 16, /* u64; its random bits are the generation */
	KEY_ADDR = 24,	/* u64 */
	KEY_LEN = 32,	/* u64 */
	KEY_MAPS = 40,	/* u8 1: peers on the owner's host may map it */
	KEY_ZERO = 41,	/* 19 bytes */
	KEY_CRC = 60,	/* u32 CRC-32C of the bytes before */
};
_Static_assert(sizeof(struct gx_key) == KEY_CRC + 4, "it ends with its CRC");

static const uint8_t key_magic[4] = {'g', 'x', 'k', '1'};

static void key_fill(const struct gx_mem *part, struct gx_key *key)
{
	uint8_t *b = key->bytes;

	memset(b, 0, sizeof(key->bytes));
	memcpy(b + KEY_MAGIC, key_magic, sizeof(key_magic));
	b[KEY_KIND] = (uint8_t)part->kind;
	b[KEY_ACCESS] = (uint8_t)part->access;
	le16_put(b + KEY_DEVICE, (uint16_t)part->device);
	le64_put(b + KEY_OWNER, part->gx->id);
	le64_put(b + KEY_TOKEN, part->token);
	le64_put(b + KEY_ADDR, (uintptr_t)part->addr);
	le64_put(b + KEY_LEN, part->len);
	b[KEY_MAPS] = part->gx->maps && part->len && !part->until_ns && !part->only &&
		      (part->kind != GX_MEM_HOST || part->whole->fd >= 0);
	le32_put(b + KEY_CRC, gx_crc32c(0, b, KEY_CRC));
}

/* Is it a key, of context @owner? @whose: for people. Return: 0, -EINVAL, -EXDEV with gx_error(). */
static int key_check(const struct gx_key *key, uint64_t owner, const char *whose)
{
	const uint8_t *b = key->bytes;

	if (memcmp(b + KEY_MAGIC, key_magic, sizeof(key_magic)) ||
	    le32_get(b + KEY_CRC) != gx_crc32c(0, b, KEY_CRC))
		return gx_fail(-EINVAL,
			       "these %zu bytes are no key of gx_mem_key(): were all of them sent, "
			       "and are both ends of one version?",
			       sizeof(*key));
	if (le64_get(b + KEY_OWNER) != owner)
		return gx_fail(-EXDEV,
			       "this key is of another context than %s: of another process, or of "
			       "an earlier life of this one; ask for a new key",
			       whose);
	return 0;
}

/* ---- At the owner ---- */

/* A free place after the named ones. The next one after the last, so that a place rests for as long
 * as can be. */
static int key_place(struct gx *gx)
{
	unsigned span = GX_KEYS_MAX - GX_REGIONS_MAX;

	if (gx->nr_keys == span)
		return -ENOSPC;
	do
		gx->key_last = (gx->key_last + 1) % span;
	while (atomic_load_explicit(&gx->region[GX_REGIONS_MAX + gx->key_last],
				    memory_order_relaxed));
	return (int)(GX_REGIONS_MAX + gx->key_last);
}

struct key_call {
	struct gx *gx;
	struct gx_mem *part; /* to make */
	const struct gx_conn *conn;
	uint64_t random;
	uint64_t token; /* to withdraw */
	uint64_t id;	/* of that part */
	uint32_t drop_seq;
};

static int key_run(void *arg)
{
	struct key_call *call = arg;
	struct gx_mem *part = call->part, *whole = part->whole;
	int at = whole->dead ? -EINVAL : key_place(call->gx);

	if (at < 0)
		return at;
	part->id = ++call->gx->mem_ids;
	part->place = core_place(part->id);
	part->only = call->conn ? call->conn->id : 0;
	part->dma = whole->dma;
	part->named = whole->named;
	whole->nr_parts++;
	mem_list(part, &whole->parts);
	call->gx->nr_keys++;
	region_publish(part, (unsigned)at, call->random);
	return 0;
}

static int key_opts_check(const struct gx_mem *mem, const struct gx_key_opts *o)
{
	if (!o->access || o->access & ~(unsigned)(GX_ACCESS_PUT | GX_ACCESS_GET) || o->reserved)
		return gx_fail(-EINVAL,
			       "a key with .access %#x: take GX_ACCESS_PUT, GX_ACCESS_GET, "
			       "or both",
			       o->access);
	if (o->off > mem->len || o->len > mem->len - o->off)
		return gx_fail(-ERANGE, "a key for bytes %llu to %llu of memory of %llu",
			       (unsigned long long)o->off, (unsigned long long)(o->off + o->len),
			       (unsigned long long)mem->len);
	if (o->conn && o->conn->gx != mem->gx)
		return gx_fail(-EINVAL, "a key for a connection of another context");
	return 0;
}

static struct gx_mem *part_new(struct gx_mem *mem, const struct gx_key_opts *o)
{
	struct gx_mem *part = calloc(1, sizeof(*part));

	if (!part)
		return NULL;
	part->gx = mem->gx;
	part->whole = mem;
	part->kind = mem->kind;
	part->device = mem->device;
	part->gpu = mem->gpu;
	part->huge = mem->huge;
	part->normal_why = mem->normal_why;
	part->fd = -1;
	part->addr = mem->addr + o->off;
	part->len = o->len ? o->len : mem->len - o->off;
	part->access = o->access;
	part->until_ns = o->until_ns;
	return part;
}

GX_EXPORT int gx_mem_key(struct gx_mem *mem, const struct gx_key_opts *user, struct gx_key *out)
{
	struct key_call call = {.gx = mem->gx};
	struct gx_key_opts o;
	int ret = core_struct_take("gx_key_opts", &o, sizeof(o), user);

	if (!ret)
		ret = key_opts_check(mem, &o);
	if (!ret)
		ret = region_check(mem, "of a key", o.access);
	if (ret)
		return ret;
	if (gx_random(&call.random, sizeof(call.random)))
		return gx_fail(-EIO, "no random numbers");
	call.conn = o.conn;
	call.part = part_new(mem, &o);
	if (!call.part)
		return gx_fail(-ENOMEM, "no memory for a key");
	ret = gx_uring_run_wait(mem->gx->uring, key_run, &call);
	if (!ret) {
		key_fill(call.part, out);
		return 0;
	}
	free(call.part);
	return ret == -ENOSPC ? gx_fail(ret, "at most %d keys a context: withdraw some",
					GX_KEYS_MAX - GX_REGIONS_MAX)
			      : gx_fail(ret, "this memory was freed");
}

/* A part that has the token now, or is dying with it. */
static int withdraw_run(void *arg)
{
	struct key_call *call = arg;
	struct gx_mem *part = core_region_at(call->gx, call->token);

	if (part && part->whole) {
		mem_end(part);
	} else {
		part = call->gx->dying;
		while (part && (!part->whole || part->token != call->token))
			part = part->next;
	}
	if (!part)
		return -ESTALE;
	call->id = part->id;
	call->drop_seq = part->drop_seq;
	return 0;
}

GX_EXPORT int gx_key_withdraw(struct gx *gx, const struct gx_key *key)
{
	struct key_call call = {.gx = gx, .token = le64_get(key->bytes + KEY_TOKEN)};
	int ret = key_check(key, gx->id, "this one");

	if (ret)
		return ret;
	ret = gx_uring_run_wait(gx->uring, withdraw_run, &call);
	if (ret)
		return gx_fail(ret, "this key was withdrawn before, or its memory was freed");
	if (!mem_left(gx, call.id, call.drop_seq, gx->opts.gpu->timeout_ns + MEM_FREE_NS))
		return 0;
	return mem_still_used(gx, "the memory of this key", "withdraw the key again");
}

/* ---- At the peer ---- */

/* The key may be reached as a region is: the link asks. */
struct key_taken {
	struct gx *gx;
	uint64_t conn, token;
	bool maps;
};

static void taken_run(void *arg)
{
	struct key_taken *t = arg;
	struct gx_conn *c = t->gx->conns;

	while (c && c->id != t->conn) /* it may have ended since */
		c = c->next;
	if (c && conn_state(c) == GX_CONN_STATE_UP)
		c->link->conn->key(c, t->token, t->maps);
	free(t);
}

/* Without memory packets serve it. */
static void key_taken(const struct gx_conn *c, uint64_t token, bool maps)
{
	struct key_taken *t;

	if (!c->link->keys || (!maps && atomic_load_explicit(&c->key_missed, memory_order_relaxed)))
		return;
	t = malloc(sizeof(*t));
	if (!t)
		return;
	*t = (struct key_taken){c->gx, c->id, token, maps};
	if (gx_uring_is_me(c->gx->uring))
		taken_run(t);
	else if (gx_uring_run(c->gx->uring, taken_run, t))
		free(t);
}

GX_EXPORT int gx_conn_key(struct gx_conn *c, const struct gx_key *key, struct gx_region *out)
{
	const uint8_t *b = key->bytes;
	struct gx_region full = {0};
	int ret;

	if (conn_state(c) == GX_CONN_STATE_CONNECTING)
		return gx_fail(-ENOTCONN, "the connection is not up yet");
	ret = key_check(key, c->peer.id, "this peer's");
	if (ret)
		return ret;
	full.token = le64_get(b + KEY_TOKEN);
	full.len = le64_get(b + KEY_LEN);
	full.addr = le64_get(b + KEY_ADDR);
	full.kind = b[KEY_KIND];
	full.device = (int16_t)le16_get(b + KEY_DEVICE);
	full.access = b[KEY_ACCESS];
	key_taken(c, full.token, b[KEY_MAPS]);
	return core_struct_give("gx_region", &full, sizeof(full), out);
}
