/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets, encoded and decoded; little endian (docs/wire.md). Pure: no state, no clock, no
 * allocation. A decoder reads only the bytes that it got, and takes only bytes that its encoder can
 * write. Runs on the polling core.
 */
#include "core/le.h"

#include "gx_internal/link.h"
#include "gx_internal/wire.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <string.h>

/* Header: version and type, flags, plen, cid | psn, mid | moff / 16, doff, phase, integrity (16). */
#define HDR_CRC_AT	   22
#define HDR_CRC_PAYLOAD_AT 26
#define HDR_ZERO_AT	   30
#define HDR_FLAGS	   (GX_PKT_EOM | GX_PKT_ACK_NOW | GX_PKT_SEEK)

#define ACK_FIXED_B  32
#define REC_OPEN_B   48
#define REC_AGAIN_B  16 /* of an OPEN that replaces another message */
#define REC_PULL_B   8	/* of an OPEN whose bytes the receiver reads out of the sender's process */
#define REC_SIZE_MAX (REC_OPEN_B + REC_AGAIN_B)
#define REC_GETS_B   40
#define REC_SEG_B    16 /* of a segment of a LIST or GETS: off, u32 len, u32 zero */

_Static_assert(HDR_ZERO_AT + 8 == GX_WIRE_HDR_B, "the payload starts at byte 80 of an IPv4 frame");
_Static_assert(GX_WIRE_ACK_MAX <= GX_CTL_PAYLOAD_MAX, "an ACK is one packet");
_Static_assert(GX_WIRE_DONE_WORDS == 16, "a bit each in a u16");
_Static_assert(REC_SIZE_MAX + GX_WIRE_INLINE_MAX <= GX_CTL_PAYLOAD_MAX, "so is a full OPEN");
_Static_assert(REC_SIZE_MAX + GX_WIRE_SEGS * REC_SEG_B <= GX_WIRE_QUANTUM_MIN, "and a full LIST");

/* ---- Packet header ---- */

void gx_wire_hdr_crc(uint8_t *b, uint32_t crc, uint32_t salt)
{
	le32_put(b + HDR_CRC_PAYLOAD_AT, crc);
	le32_put(b + HDR_CRC_AT, gx_crc32c(salt, b, GX_WIRE_HDR_B));
}

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
	b[GX_WIRE_PHASE_AT] = 0;
	le32_put(b + HDR_CRC_AT, 0);
	le32_put(b + HDR_CRC_PAYLOAD_AT, 0);
	le64_put(b + HDR_ZERO_AT, 0);
	if (mode == GX_INTEGRITY_CRC)
		gx_wire_hdr_crc(b, h->crc_payload, salt);
}

int gx_wire_hdr_get(const uint8_t *b, uint32_t len, uint32_t plen_seen, struct gx_wire_hdr *h)
{
	unsigned type;

	if (len < GX_WIRE_HDR_B)
		return -EPROTO;
	type = b[0] & 15u;
	if (b[0] >> 4 != GX_WIRE_VERSION || type < GX_PKT_DATA || type > GX_PKT_PROBE)
		return -EPROTO;
	if ((b[1] & ~HDR_FLAGS) || b[20] != GX_WIRE_HDR_B)
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

/* ---- Acknowledgements ---- */

/* largest, delay, credit, number, nr_words, done_words, done[], words[] */

uint32_t gx_wire_ack_put(uint8_t *b, const struct gx_wire_ack *a)
{
	uint32_t at = ACK_FIXED_B;

	assert(a->nr_words >= 1 && a->nr_words <= GX_WIRE_ACK_WORDS && (a->words[0] & 1));
	le64_put(b, a->largest);
	le32_put(b + 8, a->delay_ns);
	le32_put(b + 12, a->credit);
	le32_put(b + 16, a->number);
	le16_put(b + 20, a->nr_words);
	le16_put(b + 22, a->done_words);
	le32_put(b + 24, a->marks);
	le32_put(b + 28, 0);
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
	nr_words = le16_get(b + 20);
	a->done_words = le16_get(b + 22);
	nr_done = (uint32_t)__builtin_popcount(a->done_words);
	if (nr_words < 1 || nr_words > GX_WIRE_ACK_WORDS ||
	    len != ACK_FIXED_B + 8 * (nr_done + nr_words))
		return -EPROTO;
	if (le32_get(b + 28) || !(b[ACK_FIXED_B + 8 * nr_done] & 1))
		return -EPROTO;
	a->largest = le64_get(b);
	a->delay_ns = le32_get(b + 8);
	a->credit = le32_get(b + 12);
	a->number = le32_get(b + 16);
	a->marks = le32_get(b + 24);
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
	uint8_t flags;	/* flags that it may have */
} rec_info[] = {
	[GX_REC_OPEN] = {REC_OPEN_B, GX_REC_IMM | GX_REC_HIDDEN | GX_REC_INLINE | GX_REC_SLOT |
					     GX_REC_AGAIN | GX_REC_PULL | GX_REC_LEASE},
	[GX_REC_OFFER] = {40, GX_REC_GPU},
	[GX_REC_GET] = {40, GX_REC_GPU},
	[GX_REC_LIST] = {REC_OPEN_B, GX_REC_AGAIN},
	[GX_REC_GETS] = {REC_GETS_B, GX_REC_GPU},
	[GX_REC_RESEND] = {32, 0},
	[GX_REC_FAIL] = {24, GX_REC_SLOT},
	[GX_REC_CANCEL] = {24, 0},
	[GX_REC_REVOKE] = {16, 0},
	[GX_REC_REFUND] = {16, 0},
};

/* Is there a record of this type, and may it have these flags? An OPEN has at most one tail. */
static bool rec_known(uint8_t type, uint8_t flags)
{
	uint8_t tails = flags & (GX_REC_INLINE | GX_REC_AGAIN | GX_REC_PULL);

	if (type == GX_REC_OPEN && (flags & GX_REC_HIDDEN) && !(flags & GX_REC_IMM))
		return false;
	if ((flags & GX_REC_LEASE) && !(flags & GX_REC_SLOT))
		return false;
	return type < GX_ARRAY_SIZE(rec_info) && rec_info[type].size_b &&
	       !(flags & ~rec_info[type].flags) && !(tails & (tails - 1));
}

void gx_wire_rec_void(struct gx_wire_rec *r)
{
	if (r->type == GX_REC_LIST) {
		r->open.nr = 1;
		r->open.segs = NULL;
	} else {
		r->get.nr = 1;
		r->get.segs = NULL;
	}
}

/* @len: of all. */
static void segs_put(uint8_t *b, const struct gx_link_seg *segs, uint64_t n, uint64_t len)
{
	if (gx_unlikely(!segs)) {
		le64_put(b, UINT64_MAX);
		le64_put(b + 8, len);
		return;
	}
	for (uint64_t i = 0; i < n; i++) {
		le64_put(b + i * REC_SEG_B, segs[i].remote_off);
		le64_put(b + i * REC_SEG_B + 8, segs[i].len);
	}
}

struct gx_wire_seg gx_wire_seg_get(const uint8_t *data, unsigned i)
{
	return (struct gx_wire_seg){le64_get(data + i * REC_SEG_B),
				    le32_get(data + i * REC_SEG_B + 8)};
}

/* Are there @n segments in @room bytes, of @len bytes together? Fewer go in an OPEN. */
static bool segs_fit(const uint8_t *b, uint32_t room, uint64_t n, uint64_t len)
{
	uint64_t sum = 0;

	if (!n || n > GX_WIRE_SEGS || n * REC_SEG_B > room || len <= GX_WIRE_INLINE_MAX ||
	    len > GX_WIRE_LIST_B)
		return false;
	for (uint32_t i = 0; i < n; i++) {
		uint64_t one = le64_get(b + i * REC_SEG_B + 8);

		if (!one || one > GX_WIRE_LIST_B)
			return false;
		sum += one;
	}
	return sum == len;
}

uint32_t gx_wire_rec_size(const struct gx_wire_rec *r)
{
	uint32_t size;

	assert(rec_known(r->type, r->flags));
	size = rec_info[r->type].size_b;
	if (r->flags & GX_REC_INLINE) {
		assert(r->open.len <= GX_WIRE_INLINE_MAX);
		size += (uint32_t)GX_ALIGN_UP(r->open.len, 8);
	}
	if (r->type == GX_REC_OPEN && r->flags & GX_REC_PULL)
		size += REC_PULL_B;
	if (gx_unlikely(r->type == GX_REC_LIST || r->type == GX_REC_GETS))
		size += REC_SEG_B * (uint32_t)(r->type == GX_REC_LIST ? r->open.nr : r->get.nr);
	return r->flags & GX_REC_AGAIN ? size + REC_AGAIN_B : size;
}

static void rec_list_put(uint8_t *b, const struct gx_wire_rec *r)
{
	uint32_t at = REC_OPEN_B;

	le32_put(b + 8, r->open.mid);
	le32_put(b + 12, r->open.quantum);
	le64_put(b + 16, r->open.token);
	le64_put(b + 24, r->open.nr);
	le64_put(b + 32, r->open.len);
	le64_put(b + 40, 0);
	if (r->flags & GX_REC_AGAIN) {
		le64_put(b + 48, r->open.old_mid);
		le64_put(b + 56, r->open.old_sent);
		at += REC_AGAIN_B;
	}
	segs_put(b + at, r->open.segs, r->open.nr, r->open.len);
}

static void rec_gets_put(uint8_t *b, const struct gx_wire_rec *r)
{
	le64_put(b + 8, r->get.token);
	le64_put(b + 16, r->get.nr);
	le64_put(b + 24, r->get.len);
	le64_put(b + 32, r->get.slot);
	segs_put(b + REC_GETS_B, r->get.segs, r->get.nr, r->get.len);
}

static void rec_open_put(uint8_t *b, const struct gx_wire_rec *r)
{
	le32_put(b + 8, r->open.mid);
	le32_put(b + 12, r->open.quantum);
	le64_put(b + 16, r->open.token);
	le64_put(b + 24, r->open.off);
	le64_put(b + 32, r->open.len);
	le64_put(b + 40, r->open.imm);
	if (r->flags & GX_REC_AGAIN) {
		le64_put(b + 48, r->open.old_mid);
		le64_put(b + 56, r->open.old_sent);
	}
	if (r->flags & GX_REC_PULL)
		le64_put(b + 48, r->open.from);
	if ((r->flags & GX_REC_INLINE) && r->open.len) {
		if (r->open.len & 7)
			le64_put(b + 48 + (r->open.len & ~7ull), 0);
		memcpy(b + 48, r->open.data, r->open.len);
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
	case GX_REC_LIST:
		rec_list_put(b, r);
		break;
	case GX_REC_GETS:
		rec_gets_put(b, r);
		break;
	case GX_REC_OFFER:
		le64_put(b + 8, r->offer.slot);
		le64_put(b + 16, r->offer.len);
		le64_put(b + 24, r->offer.tag);
		le64_put(b + 32, r->offer.tag_mask);
		break;
	case GX_REC_GET:
		le64_put(b + 8, r->get.token);
		le64_put(b + 16, r->get.off);
		le64_put(b + 24, r->get.len);
		le64_put(b + 32, r->get.slot);
		break;
	case GX_REC_RESEND:
		le64_put(b + 8, r->resend.mid);
		le64_put(b + 16, r->resend.off);
		le64_put(b + 24, r->resend.len);
		break;
	case GX_REC_FAIL:
		le64_put(b + 8, r->fail.id);
		le32_put(b + 16, (uint32_t)r->fail.err);
		le32_put(b + 20, r->fail.seg);
		break;
	case GX_REC_CANCEL:
		le64_put(b + 8, r->cancel.mid);
		le64_put(b + 16, r->cancel.sent);
		break;
	case GX_REC_REVOKE:
		le64_put(b + 8, r->revoke.slot);
		break;
	case GX_REC_REFUND:
		le64_put(b + 8, r->refund.pkts);
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

/* 0 or an -errno, and the segment that it is of. */
static bool rec_err_get(const uint8_t *b, int32_t *err, uint32_t *seg)
{
	*err = (int32_t)le32_get(b);
	*seg = le32_get(b + 4);
	return *err <= 0 && *err >= -GX_WIRE_ERR_MAX && *seg < GX_WIRE_SEGS;
}

/* Return: bytes of the record, segments included; -EPROTO. */
static int rec_list_get(const uint8_t *b, uint32_t len, struct gx_wire_rec *r)
{
	uint32_t at = REC_OPEN_B;

	r->open.mid = le32_get(b + 8);
	r->open.quantum = le32_get(b + 12);
	r->open.token = le64_get(b + 16);
	r->open.nr = le64_get(b + 24);
	r->open.len = le64_get(b + 32);
	if (r->flags & GX_REC_AGAIN) {
		at += REC_AGAIN_B;
		if (len < at || !rec_u32_get(b + 48, &r->open.old_mid))
			return -EPROTO;
		r->open.old_sent = le64_get(b + 56);
	}
	if (le64_get(b + 40) || !segs_fit(b + at, len - at, r->open.nr, r->open.len))
		return -EPROTO;
	r->open.data = b + at;
	return (int)(at + (uint32_t)r->open.nr * REC_SEG_B);
}

static int rec_gets_get(const uint8_t *b, uint32_t len, struct gx_wire_rec *r)
{
	r->get.token = le64_get(b + 8);
	r->get.nr = le64_get(b + 16);
	r->get.len = le64_get(b + 24);
	r->get.slot = le64_get(b + 32);
	if (!segs_fit(b + REC_GETS_B, len - REC_GETS_B, r->get.nr, r->get.len))
		return -EPROTO;
	r->get.data = b + REC_GETS_B;
	return (int)(REC_GETS_B + (uint32_t)r->get.nr * REC_SEG_B);
}

/* Return: bytes of the record, inline data included; -EPROTO. */
static int rec_open_get(const uint8_t *b, uint32_t len, struct gx_wire_rec *r)
{
	uint32_t data_b;

	r->open.mid = le32_get(b + 8);
	r->open.quantum = le32_get(b + 12);
	r->open.token = le64_get(b + 16);
	r->open.off = le64_get(b + 24);
	r->open.len = le64_get(b + 32);
	r->open.imm = le64_get(b + 40);
	if (r->flags & GX_REC_AGAIN) {
		if (len < REC_OPEN_B + REC_AGAIN_B || !rec_u32_get(b + 48, &r->open.old_mid))
			return -EPROTO;
		r->open.old_sent = le64_get(b + 56);
		return REC_OPEN_B + REC_AGAIN_B;
	}
	if (r->flags & GX_REC_PULL) {
		if (len < REC_OPEN_B + REC_PULL_B)
			return -EPROTO;
		r->open.from = le64_get(b + 48);
		return REC_OPEN_B + REC_PULL_B;
	}
	if (!(r->flags & GX_REC_INLINE))
		return REC_OPEN_B;
	if (r->open.len > GX_WIRE_INLINE_MAX)
		return -EPROTO;
	data_b = (uint32_t)GX_ALIGN_UP(r->open.len, 8);
	if (data_b > len - 48)
		return -EPROTO;
	if ((r->open.len & 7) && le64_get(b + 48 + data_b - 8) >> 8 * (r->open.len & 7))
		return -EPROTO;
	r->open.data = b + 48;
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
	case GX_REC_LIST:
		return rec_list_get(b, len, r);
	case GX_REC_GETS:
		return rec_gets_get(b, len, r);
	case GX_REC_OFFER:
		r->offer.slot = le64_get(b + 8);
		r->offer.len = le64_get(b + 16);
		r->offer.tag = le64_get(b + 24);
		r->offer.tag_mask = le64_get(b + 32);
		break;
	case GX_REC_GET:
		r->get.token = le64_get(b + 8);
		r->get.off = le64_get(b + 16);
		r->get.len = le64_get(b + 24);
		r->get.slot = le64_get(b + 32);
		break;
	case GX_REC_RESEND:
		good = rec_u32_get(b + 8, &r->resend.mid);
		r->resend.off = le64_get(b + 16);
		r->resend.len = le64_get(b + 24);
		good = good && r->resend.off % 16 == 0 && r->resend.len &&
		       r->resend.len <= UINT64_MAX - r->resend.off;
		break;
	case GX_REC_FAIL:
		r->fail.id = le64_get(b + 8);
		good = rec_err_get(b + 16, &r->fail.err, &r->fail.seg) &&
		       (r->fail.err || r->flags & GX_REC_SLOT);
		break;
	case GX_REC_CANCEL:
		good = rec_u32_get(b + 8, &r->cancel.mid);
		r->cancel.sent = le64_get(b + 16);
		break;
	case GX_REC_REVOKE:
		r->revoke.slot = le64_get(b + 8);
		break;
	case GX_REC_REFUND:
		r->refund.pkts = le64_get(b + 8);
		break;
	}
	return good ? rec_info[r->type].size_b : -EPROTO;
}
