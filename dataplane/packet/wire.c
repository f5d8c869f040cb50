/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stands on the wire, encoded and decoded; little endian. Pure: no state, no clock, no
 * allocation. The packet half (header, acknowledgement, records) is called on the
 * poll core, the hello half by ctl.c on the uring thread. A decoder reads only the bytes it was
 * given, and takes only what its encoder could have written.
 */
#include "gx_internal/wire.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <string.h>

/* Header: version and type, flags, plen, cid | psn, mid | moff / 16, doff, zero, integrity (16). */
#define HDR_CRC_AT	   22
#define HDR_CRC_PAYLOAD_AT 26
#define HDR_ZERO_AT	   30
#define HDR_FLAGS	   (GX_PKT_EOM | GX_PKT_ACK_NOW | GX_PKT_KEY_PHASE)

#define ACK_FIXED_B    32
#define REC_OPEN_B     48
#define REC_AGAIN_B    16 /* of an OPEN that takes another message's place */
#define REC_SIZE_MAX   (REC_OPEN_B + REC_AGAIN_B)
#define FRAME_HDR_B    8
#define FRAME_LEN_B    4		      /* the length field, which does not count itself */
#define ERR_MAX	       4095		      /* largest errno of Linux, include/linux/err.h */
#define HELLO_PORT_B   (2 * GX_NAME_MAX + 12) /* at most, as encoded */
#define HELLO_REGION_B (GX_NAME_MAX + 20 + 25 + GX_EXPORT_HANDLE_B)
#define HELLO_LANE_B   (2 + GX_PORT_ADDR_MAX + 1 + 20)

_Static_assert(HDR_ZERO_AT + 8 == GX_WIRE_HDR_B, "the payload starts at byte 80 of an IPv4 frame");
_Static_assert(GX_WIRE_ACK_MAX <= GX_CTL_PAYLOAD_MAX, "an ACK is one packet");
_Static_assert(GX_WIRE_DONE_WORDS == 16, "a bit each in a u16");
_Static_assert(REC_SIZE_MAX + GX_WIRE_INLINE_MAX <= GX_CTL_PAYLOAD_MAX, "so is a full OPEN");
_Static_assert(512 + GX_HELLO_PORTS * HELLO_PORT_B + GX_HELLO_REGIONS * HELLO_REGION_B <
		       GX_HELLO_FRAME_MAX,
	       "a hello is one frame");
_Static_assert(512 + GX_HELLO_LANES * HELLO_LANE_B < GX_HELLO_FRAME_MAX, "so are all lanes");

static inline uint16_t le16_get(const uint8_t *b)
{
	uint16_t v;

	memcpy(&v, b, sizeof(v));
	return le16toh(v);
}

static inline uint32_t le32_get(const uint8_t *b)
{
	uint32_t v;

	memcpy(&v, b, sizeof(v));
	return le32toh(v);
}

static inline uint64_t le64_get(const uint8_t *b)
{
	uint64_t v;

	memcpy(&v, b, sizeof(v));
	return le64toh(v);
}

static inline void le16_put(uint8_t *b, uint16_t v)
{
	v = htole16(v);
	memcpy(b, &v, sizeof(v));
}

static inline void le32_put(uint8_t *b, uint32_t v)
{
	v = htole32(v);
	memcpy(b, &v, sizeof(v));
}

static inline void le64_put(uint8_t *b, uint64_t v)
{
	v = htole64(v);
	memcpy(b, &v, sizeof(v));
}

/* ---- Packet header ---- */

void gx_wire_hdr_put(uint8_t *b, const struct gx_wire_hdr *h, enum gx_integrity mode, uint32_t salt)
{
	assert(!(h->moff & 15) && !(h->moff >> 36));
	b[0] = (uint8_t)(GX_WIRE_VERSION << 4 | h->type);
	b[1] = h->flags;
	le16_put(b + 2, h->plen);
	le32_put(b + 4, h->cid);
	le32_put(b + 8, h->psn);
	le32_put(b + 12, h->mid);
	le32_put(b + 16, (uint32_t)(h->moff >> 4));
	b[20] = GX_WIRE_HDR_B;
	b[21] = 0;
	le32_put(b + HDR_CRC_AT, 0);
	le32_put(b + HDR_CRC_PAYLOAD_AT, mode == GX_INTEGRITY_CRC ? h->crc_payload : 0);
	le64_put(b + HDR_ZERO_AT, 0);
	if (mode == GX_INTEGRITY_CRC)
		le32_put(b + HDR_CRC_AT, gx_crc32c(salt, b, GX_WIRE_HDR_B));
}

int gx_wire_hdr_get(const uint8_t *b, uint32_t len, uint32_t plen_seen, struct gx_wire_hdr *h)
{
	unsigned type;

	if (len < GX_WIRE_HDR_B)
		return -EPROTO;
	type = b[0] & 15u;
	if (b[0] >> 4 != GX_WIRE_VERSION || type < GX_PKT_DATA || type > GX_PKT_PROBE_ACK)
		return -EPROTO;
	if ((b[1] & ~HDR_FLAGS) || b[20] != GX_WIRE_HDR_B || b[21] || le64_get(b + HDR_ZERO_AT))
		return -EPROTO;
	if (le16_get(b + 2) != plen_seen)
		return -EPROTO;
	h->type = (uint8_t)type;
	h->flags = b[1];
	h->plen = (uint16_t)plen_seen;
	h->cid = le32_get(b + 4);
	h->psn = le32_get(b + 8);
	h->mid = le32_get(b + 12);
	h->moff = (uint64_t)le32_get(b + 16) << 4;
	h->crc_hdr = le32_get(b + HDR_CRC_AT);
	h->crc_payload = le32_get(b + HDR_CRC_PAYLOAD_AT);
	return 0;
}

int gx_wire_hdr_check(const uint8_t *b, const struct gx_wire_hdr *h, uint32_t salt)
{
	uint8_t copy[GX_WIRE_HDR_B];

	memcpy(copy, b, sizeof(copy));
	le32_put(copy + HDR_CRC_AT, 0);
	return gx_crc32c(salt, copy, sizeof(copy)) == h->crc_hdr ? 0 : -EBADMSG;
}

/* ---- Acknowledgement: largest, delay, credit, ce, pool, number, nr_words, done_words, done[],
 * words[] ---- */

uint32_t gx_wire_ack_put(uint8_t *b, const struct gx_wire_ack *a)
{
	uint32_t at = ACK_FIXED_B;

	assert(a->nr_words >= 1 && a->nr_words <= GX_WIRE_ACK_WORDS && (a->words[0] & 1));
	le64_put(b, a->largest);
	le32_put(b + 8, a->delay_ns);
	le32_put(b + 12, a->credit);
	le32_put(b + 16, a->ce);
	le32_put(b + 20, a->pool);
	le32_put(b + 24, a->number);
	le16_put(b + 28, a->nr_words);
	le16_put(b + 30, a->done_words);
	for (uint32_t rest = a->done_words; rest; rest &= rest - 1, at += 8)
		le64_put(b + at, a->done[__builtin_ctz(rest)]);
	for (uint32_t i = 0; i < a->nr_words; i++, at += 8)
		le64_put(b + at, a->words[i]);
	return at;
}

int gx_wire_ack_get(const uint8_t *b, uint32_t len, struct gx_wire_ack *a)
{
	uint32_t nr_words, nr_done, at = ACK_FIXED_B;

	if (len < ACK_FIXED_B + 8)
		return -EPROTO;
	nr_words = le16_get(b + 28);
	a->done_words = le16_get(b + 30);
	nr_done = (uint32_t)__builtin_popcount(a->done_words);
	if (nr_words < 1 || nr_words > GX_WIRE_ACK_WORDS ||
	    len != ACK_FIXED_B + 8 * (nr_done + nr_words))
		return -EPROTO;
	if (!(b[ACK_FIXED_B + 8 * nr_done] & 1))
		return -EPROTO;
	a->largest = le64_get(b);
	a->delay_ns = le32_get(b + 8);
	a->credit = le32_get(b + 12);
	a->ce = le32_get(b + 16);
	a->pool = le32_get(b + 20);
	a->number = le32_get(b + 24);
	a->nr_words = (uint16_t)nr_words;
	for (uint32_t rest = a->done_words; rest; rest &= rest - 1, at += 8)
		a->done[__builtin_ctz(rest)] = le64_get(b + at);
	for (uint32_t i = 0; i < nr_words; i++, at += 8)
		a->words[i] = le64_get(b + at);
	return 0;
}

/* ---- Control records: type, flags, u16 zero, rsn, then the type's own fields ---- */

static const struct {
	uint8_t size_b; /* without inline data; 0: no such type */
	uint8_t flags;	/* that may be set */
} rec_info[] = {
	[GX_REC_OPEN] = {REC_OPEN_B, GX_REC_IMM | GX_REC_INLINE | GX_REC_SLOT | GX_REC_AGAIN},
	[GX_REC_GRANT] = {40, GX_REC_GPU},
	[GX_REC_GET] = {40, GX_REC_GPU},
	[GX_REC_RESEND] = {32, 0},
	[GX_REC_FAIL] = {24, GX_REC_SLOT},
	[GX_REC_CANCEL] = {24, 0},
	[GX_REC_CLOSE] = {16, 0},
	[GX_REC_DIGEST] = {24, 0},
	[GX_REC_REVOKE] = {16, 0},
	[GX_REC_REFUND] = {16, 0},
};

/* Is it a record at all, and are its flags ones of its type? */
static bool rec_known(uint8_t type, uint8_t flags)
{
	return type < GX_ARRAY_SIZE(rec_info) && rec_info[type].size_b &&
	       !(flags & ~rec_info[type].flags) && !(flags & GX_REC_AGAIN && flags & GX_REC_INLINE);
}

uint32_t gx_wire_rec_size(const struct gx_wire_rec *r)
{
	uint32_t size;

	assert(rec_known(r->type, r->flags));
	size = rec_info[r->type].size_b;
	if (r->flags & GX_REC_INLINE) {
		assert(r->len <= GX_WIRE_INLINE_MAX);
		size += (uint32_t)GX_ALIGN_UP(r->len, 8);
	}
	return r->flags & GX_REC_AGAIN ? size + REC_AGAIN_B : size;
}

static void rec_open_put(uint8_t *b, const struct gx_wire_rec *r)
{
	le32_put(b + 8, r->mid);
	le32_put(b + 12, r->quantum);
	le64_put(b + 16, r->token);
	le64_put(b + 24, r->off);
	le64_put(b + 32, r->len);
	le64_put(b + 40, r->imm);
	if (r->flags & GX_REC_AGAIN) {
		le64_put(b + 48, r->old_mid);
		le64_put(b + 56, r->slot);
	}
	if ((r->flags & GX_REC_INLINE) && r->len) {
		if (r->len & 7)
			le64_put(b + 48 + (r->len & ~7ull), 0);
		memcpy(b + 48, r->data, r->len);
	}
}

uint32_t gx_wire_rec_put(uint8_t *b, uint32_t room, const struct gx_wire_rec *r)
{
	uint32_t size = gx_wire_rec_size(r);

	if (size > room)
		return 0;
	b[0] = r->type;
	b[1] = r->flags;
	le16_put(b + 2, 0);
	le32_put(b + 4, r->rsn);
	switch (r->type) {
	case GX_REC_OPEN:
		rec_open_put(b, r);
		break;
	case GX_REC_GRANT:
		le64_put(b + 8, r->token);
		le64_put(b + 16, r->len);
		le64_put(b + 24, r->imm);
		le64_put(b + 32, r->slot);
		break;
	case GX_REC_GET:
		le64_put(b + 8, r->token);
		le64_put(b + 16, r->off);
		le64_put(b + 24, r->len);
		le64_put(b + 32, r->slot);
		break;
	case GX_REC_RESEND:
		le64_put(b + 8, r->mid);
		le64_put(b + 16, r->off);
		le64_put(b + 24, r->len);
		break;
	case GX_REC_FAIL:
		le64_put(b + 8, r->token);
		le64_put(b + 16, (uint32_t)r->err);
		break;
	case GX_REC_CANCEL:
		le64_put(b + 8, r->mid);
		le64_put(b + 16, r->slot);
		break;
	case GX_REC_CLOSE:
		le64_put(b + 8, (uint32_t)r->err);
		break;
	case GX_REC_DIGEST:
		le64_put(b + 8, r->mid);
		le64_put(b + 16, r->imm);
		break;
	case GX_REC_REVOKE:
		le64_put(b + 8, r->token);
		break;
	case GX_REC_REFUND:
		le64_put(b + 8, r->slot);
		break;
	}
	return size;
}

/* A u32 that takes 8 bytes, the upper four 0. */
static bool rec_u32_get(const uint8_t *b, uint32_t *v)
{
	*v = le32_get(b);
	return le32_get(b + 4) == 0;
}

/* 0 or an -errno, as a u32 that takes 8 bytes. */
static bool rec_err_get(const uint8_t *b, int32_t *err)
{
	uint32_t v;

	if (!rec_u32_get(b, &v))
		return false;
	*err = (int32_t)v;
	return *err <= 0 && *err >= -ERR_MAX;
}

/* Return: bytes of the record, inline data included; -EPROTO. */
static int rec_open_get(const uint8_t *b, uint32_t len, struct gx_wire_rec *r)
{
	uint32_t data_b;

	r->mid = le32_get(b + 8);
	r->quantum = le32_get(b + 12);
	r->token = le64_get(b + 16);
	r->off = le64_get(b + 24);
	r->len = le64_get(b + 32);
	r->imm = le64_get(b + 40);
	if (r->flags & GX_REC_AGAIN) {
		if (len < REC_OPEN_B + REC_AGAIN_B || !rec_u32_get(b + 48, &r->old_mid))
			return -EPROTO;
		r->slot = le64_get(b + 56);
		return REC_OPEN_B + REC_AGAIN_B;
	}
	if (!(r->flags & GX_REC_INLINE))
		return REC_OPEN_B;
	if (r->len > GX_WIRE_INLINE_MAX)
		return -EPROTO;
	data_b = (uint32_t)GX_ALIGN_UP(r->len, 8);
	if (data_b > len - 48)
		return -EPROTO;
	if ((r->len & 7) && le64_get(b + 48 + data_b - 8) >> 8 * (r->len & 7))
		return -EPROTO;
	r->data = b + 48;
	return (int)(48 + data_b);
}

int gx_wire_rec_get(const uint8_t *b, uint32_t len, struct gx_wire_rec *r)
{
	bool good = true;

	if (len < 8 || !rec_known(b[0], b[1]) || le16_get(b + 2) || len < rec_info[b[0]].size_b)
		return -EPROTO;
	*r = (struct gx_wire_rec){.type = b[0], .flags = b[1], .rsn = le32_get(b + 4)};
	switch (r->type) {
	case GX_REC_OPEN:
		return rec_open_get(b, len, r);
	case GX_REC_GRANT:
		r->token = le64_get(b + 8);
		r->len = le64_get(b + 16);
		r->imm = le64_get(b + 24);
		r->slot = le64_get(b + 32);
		break;
	case GX_REC_GET:
		r->token = le64_get(b + 8);
		r->off = le64_get(b + 16);
		r->len = le64_get(b + 24);
		r->slot = le64_get(b + 32);
		break;
	case GX_REC_RESEND:
		good = rec_u32_get(b + 8, &r->mid);
		r->off = le64_get(b + 16);
		r->len = le64_get(b + 24);
		good = good && r->off % 16 == 0 && r->len && r->len <= UINT64_MAX - r->off;
		break;
	case GX_REC_FAIL:
		r->token = le64_get(b + 8);
		good = rec_err_get(b + 16, &r->err) && r->err;
		break;
	case GX_REC_CANCEL:
		good = rec_u32_get(b + 8, &r->mid);
		r->slot = le64_get(b + 16);
		break;
	case GX_REC_CLOSE:
		good = rec_err_get(b + 8, &r->err);
		break;
	case GX_REC_DIGEST:
		good = rec_u32_get(b + 8, &r->mid);
		r->imm = le64_get(b + 16);
		break;
	case GX_REC_REVOKE:
		r->token = le64_get(b + 8);
		break;
	case GX_REC_REFUND:
		r->slot = le64_get(b + 8);
		break;
	}
	return good ? rec_info[r->type].size_b : -EPROTO;
}

/* ---- Hello: a cursor to write with, one to read with. Strings are a length byte and the
 * characters. ---- */

struct wire_out {
	uint8_t *b;
	uint32_t pos;
};

struct wire_in {
	const uint8_t *b;
	uint32_t len, pos;
	bool bad; /* sticky: too short, or something that cannot be; reads give 0 from then on */
};

static void out_u8(struct wire_out *o, uint8_t v)
{
	o->b[o->pos++] = v;
}

static void out_u16(struct wire_out *o, uint16_t v)
{
	le16_put(o->b + o->pos, v);
	o->pos += 2;
}

static void out_u32(struct wire_out *o, uint32_t v)
{
	le32_put(o->b + o->pos, v);
	o->pos += 4;
}

static void out_u64(struct wire_out *o, uint64_t v)
{
	le64_put(o->b + o->pos, v);
	o->pos += 8;
}

static void out_bytes(struct wire_out *o, const void *data, uint32_t len)
{
	if (len)
		memcpy(o->b + o->pos, data, len);
	o->pos += len;
}

static bool char_ok(char c)
{
	return c >= 0x20 && c <= 0x7e;
}

/* At most @room - 1 characters, so that the reader has place for the final 0. */
static void out_str(struct wire_out *o, const char *s, uint32_t room)
{
	uint32_t n = (uint32_t)strnlen(s, room - 1);

	out_u8(o, (uint8_t)n);
	for (uint32_t i = 0; i < n; i++)
		out_u8(o, char_ok(s[i]) ? (uint8_t)s[i] : '?');
}

static struct wire_out frame_start(uint8_t *b, enum gx_hello_type type)
{
	le16_put(b + 4, (uint16_t)type);
	le16_put(b + 6, 0);
	return (struct wire_out){.b = b, .pos = FRAME_HDR_B};
}

static uint32_t frame_end(struct wire_out *o)
{
	le32_put(o->b, o->pos - FRAME_LEN_B);
	return o->pos;
}

/* Return: the next @n bytes, NULL (and bad from now on) when there are fewer. */
static const uint8_t *in_take(struct wire_in *in, uint32_t n)
{
	const uint8_t *p = in->b + in->pos;

	if (in->bad || n > in->len - in->pos) {
		in->bad = true;
		return NULL;
	}
	in->pos += n;
	return p;
}

static uint8_t in_u8(struct wire_in *in)
{
	const uint8_t *p = in_take(in, 1);

	return p ? *p : 0;
}

static uint16_t in_u16(struct wire_in *in)
{
	const uint8_t *p = in_take(in, 2);

	return p ? le16_get(p) : 0;
}

static uint32_t in_u32(struct wire_in *in)
{
	const uint8_t *p = in_take(in, 4);

	return p ? le32_get(p) : 0;
}

static uint64_t in_u64(struct wire_in *in)
{
	const uint8_t *p = in_take(in, 8);

	return p ? le64_get(p) : 0;
}

static void in_bytes(struct wire_in *in, void *data, uint32_t len)
{
	const uint8_t *p = in_take(in, len);

	if (p && len)
		memcpy(data, p, len);
}

static uint32_t in_count(struct wire_in *in, uint32_t max)
{
	uint32_t n = in_u32(in);

	if (n <= max)
		return n;
	in->bad = true;
	return 0;
}

/* Into @s, which is zeroed beforehand: it stays "" when the string cannot be. */
static void in_str(struct wire_in *in, char *s, uint32_t room)
{
	uint32_t n = in_u8(in);
	const uint8_t *p = n < room ? in_take(in, n) : NULL;

	in->bad |= !p;
	for (uint32_t i = 0; !in->bad && i < n; i++)
		in->bad = !char_ok((char)p[i]);
	if (!in->bad)
		memcpy(s, p, n);
}

/* All read, nothing left over? */
static int in_end(const struct wire_in *in)
{
	return !in->bad && in->pos == in->len ? 0 : -EPROTO;
}

static void export_put(struct wire_out *o, const struct gx_hello_export *e)
{
	out_u8(o, e->kind);
	if (e->kind == GX_EXPORT_NONE)
		return;
	out_u64(o, e->map_len);
	out_u64(o, e->map_off);
	out_u64(o, e->map_id);
	if (e->kind == GX_EXPORT_CUDA_IPC)
		out_bytes(o, e->handle, sizeof(e->handle));
}

static void hello_region_put(struct wire_out *o, const struct gx_hello_region *r)
{
	out_str(o, r->name, sizeof(r->name));
	out_u64(o, r->token);
	out_u64(o, r->len);
	out_u8(o, r->kind);
	out_u8(o, r->access);
	out_u16(o, r->device);
	export_put(o, &r->export);
}

uint32_t gx_hello_put(uint8_t *b, const struct gx_hello *h)
{
	struct wire_out o = frame_start(b, GX_HELLO_HELLO);
	uint32_t nr_ports = GX_MIN(h->nr_ports, GX_HELLO_PORTS);
	uint32_t nr_regions = GX_MIN(h->nr_regions, GX_HELLO_REGIONS);

	assert(nr_ports == h->nr_ports && nr_regions == h->nr_regions);
	out_u32(&o, h->magic);
	out_u32(&o, h->version);
	out_u32(&o, h->pid);
	out_u32(&o, h->uid);
	out_bytes(&o, h->host_id, sizeof(h->host_id));
	out_str(&o, h->unix_name, sizeof(h->unix_name));
	out_bytes(&o, h->nonce, sizeof(h->nonce));
	out_u32(&o, h->nr_lanes);
	out_u32(&o, h->chunk_b);
	out_u32(&o, h->window);
	out_u32(&o, h->integrity);
	out_u32(&o, h->links);
	out_u32(&o, nr_ports);
	for (uint32_t i = 0; i < nr_ports; i++) {
		out_str(&o, h->ports[i].name, sizeof(h->ports[i].name));
		out_u32(&o, h->ports[i].flags);
		out_u32(&o, h->ports[i].payload_max);
		out_u32(&o, h->ports[i].payload_best);
		out_str(&o, h->ports[i].host, sizeof(h->ports[i].host));
	}
	out_u32(&o, nr_regions);
	for (uint32_t i = 0; i < nr_regions; i++)
		hello_region_put(&o, &h->regions[i]);
	return frame_end(&o);
}

/* What lies in the mapping must; numbers that cannot be are a malformed hello. */
static void export_get(struct wire_in *in, struct gx_hello_export *e, uint64_t region_len)
{
	e->kind = in_u8(in);
	if (e->kind > GX_EXPORT_CUDA_IPC)
		in->bad = true;
	if (in->bad || e->kind == GX_EXPORT_NONE)
		return;
	e->map_len = in_u64(in);
	e->map_off = in_u64(in);
	e->map_id = in_u64(in);
	if (e->kind == GX_EXPORT_CUDA_IPC)
		in_bytes(in, e->handle, sizeof(e->handle));
	if (e->map_off > e->map_len || region_len > e->map_len - e->map_off)
		in->bad = true;
}

static void hello_region_get(struct wire_in *in, struct gx_hello_region *r)
{
	in_str(in, r->name, sizeof(r->name));
	r->token = in_u64(in);
	r->len = in_u64(in);
	r->kind = in_u8(in);
	r->access = in_u8(in);
	r->device = in_u16(in);
	export_get(in, &r->export, r->len);
}

int gx_hello_get(const uint8_t *b, uint32_t len, struct gx_hello *h)
{
	struct wire_in in = {.b = b, .len = len};

	memset(h, 0, sizeof(*h));
	h->magic = in_u32(&in);
	h->version = in_u32(&in);
	if (in.bad || h->magic != GX_HELLO_MAGIC)
		return -EPROTO;
	if (h->version != GX_HELLO_VERSION)
		return -EPROTONOSUPPORT;
	h->pid = in_u32(&in);
	h->uid = in_u32(&in);
	in_bytes(&in, h->host_id, sizeof(h->host_id));
	in_str(&in, h->unix_name, sizeof(h->unix_name));
	in_bytes(&in, h->nonce, sizeof(h->nonce));
	h->nr_lanes = in_count(&in, GX_HELLO_LANES);
	h->chunk_b = in_u32(&in);
	h->window = in_u32(&in);
	h->integrity = in_u32(&in);
	h->links = in_u32(&in);
	h->nr_ports = in_count(&in, GX_HELLO_PORTS);
	for (uint32_t i = 0; i < h->nr_ports; i++) {
		in_str(&in, h->ports[i].name, sizeof(h->ports[i].name));
		h->ports[i].flags = in_u32(&in);
		h->ports[i].payload_max = in_u32(&in);
		h->ports[i].payload_best = in_u32(&in);
		in_str(&in, h->ports[i].host, sizeof(h->ports[i].host));
	}
	h->nr_regions = in_count(&in, GX_HELLO_REGIONS);
	for (uint32_t i = 0; i < h->nr_regions; i++)
		hello_region_get(&in, &h->regions[i]);
	return in_end(&in);
}

static void lane_put(struct wire_out *o, const struct gx_hello_lane *l)
{
	uint16_t len = GX_MIN(l->port.len, GX_PORT_ADDR_MAX);

	assert(len == l->port.len);
	out_u16(o, len);
	out_bytes(o, l->port.b, len);
	out_u8(o, l->port.fd < 0 ? 0 : 1 + l->port.has_pool);
	out_u32(o, l->cid);
	out_u32(o, l->credit);
	out_u64(o, l->psn);
	out_u32(o, l->salt);
}

static void lane_get(struct wire_in *in, struct gx_hello_lane *l)
{
	uint16_t len = in_u16(in);
	uint8_t nr_fds;

	if (len > GX_PORT_ADDR_MAX)
		in->bad = true;
	if (in->bad)
		return;
	l->port.len = len;
	in_bytes(in, l->port.b, len);
	nr_fds = in_u8(in);
	if (nr_fds > 2)
		in->bad = true;
	l->port.fd = nr_fds ? 0 : -1;
	l->port.has_pool = nr_fds > 1;
	l->cid = in_u32(in);
	l->credit = in_u32(in);
	l->psn = in_u64(in);
	l->salt = in_u32(in);
}

uint32_t gx_hello_lanes_put(uint8_t *b, enum gx_hello_type type, const struct gx_hello_lanes *l)
{
	struct wire_out o = frame_start(b, type);
	uint32_t nr_lanes = GX_MIN(l->nr_lanes, GX_HELLO_LANES);

	assert(nr_lanes == l->nr_lanes);
	out_str(&o, l->port, sizeof(l->port));
	out_u8(&o, l->link);
	out_u8(&o, l->unpack);
	out_u16(&o, l->sms);
	out_u8(&o, l->late);
	out_u32(&o, l->quantum);
	out_u32(&o, l->chunk_b);
	out_u32(&o, l->window);
	out_u32(&o, l->integrity);
	out_u64(&o, l->peer_timeout_ns);
	out_u32(&o, nr_lanes);
	for (uint32_t i = 0; i < nr_lanes; i++)
		lane_put(&o, &l->lanes[i]);
	return frame_end(&o);
}

int gx_hello_lanes_get(const uint8_t *b, uint32_t len, struct gx_hello_lanes *l)
{
	struct wire_in in = {.b = b, .len = len};

	memset(l, 0, sizeof(*l));
	in_str(&in, l->port, sizeof(l->port));
	l->link = in_u8(&in);
	if (l->link > GX_LINK_LOCAL)
		in.bad = true;
	l->unpack = in_u8(&in);
	l->sms = in_u16(&in);
	l->late = in_u8(&in);
	l->quantum = in_u32(&in);
	l->chunk_b = in_u32(&in);
	l->window = in_u32(&in);
	l->integrity = in_u32(&in);
	if (l->late >> 2 || (l->late && l->integrity != GX_INTEGRITY_CRC))
		in.bad = true;
	l->peer_timeout_ns = in_u64(&in);
	l->nr_lanes = in_count(&in, GX_HELLO_LANES);
	for (uint32_t i = 0; i < l->nr_lanes; i++)
		lane_get(&in, &l->lanes[i]);
	return in_end(&in);
}

uint32_t gx_hello_error_put(uint8_t *b, const struct gx_hello_error *e)
{
	struct wire_out o = frame_start(b, GX_HELLO_ERROR);

	out_u32(&o, (uint32_t)e->err);
	out_str(&o, e->text, sizeof(e->text));
	return frame_end(&o);
}

int gx_hello_error_get(const uint8_t *b, uint32_t len, struct gx_hello_error *e)
{
	struct wire_in in = {.b = b, .len = len};

	memset(e, 0, sizeof(*e));
	e->err = (int32_t)in_u32(&in);
	in_str(&in, e->text, sizeof(e->text));
	if (e->err >= 0 || e->err < -ERR_MAX)
		return -EPROTO;
	return in_end(&in);
}

uint32_t gx_hello_plain_put(uint8_t *b, enum gx_hello_type type, const void *data, uint32_t len)
{
	struct wire_out o = frame_start(b, type);

	if (len > GX_HELLO_FRAME_MAX - FRAME_HDR_B)
		return 0;
	out_bytes(&o, data, len);
	return frame_end(&o);
}

int gx_hello_frame(const uint8_t *b, uint16_t *type, uint32_t *body_len)
{
	uint32_t len = le32_get(b);
	uint16_t t = le16_get(b + 4);

	if (len < FRAME_HDR_B - FRAME_LEN_B || len > GX_HELLO_FRAME_MAX - FRAME_LEN_B)
		return -EPROTO;
	if (t < GX_HELLO_HELLO || t > GX_HELLO_BYE || le16_get(b + 6))
		return -EPROTO;
	*type = t;
	*body_len = len - (FRAME_HDR_B - FRAME_LEN_B);
	return 0;
}
