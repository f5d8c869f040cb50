/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.c, function by function: what is encoded decodes equal, the layout is the documented one,
 * and a decoder refuses everything else. Decoders get a heap copy of the exact length, so that a
 * sanitizer sees a read past the end.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "gx/gx.h"
#include "gx_internal/link.h"
#include "gx_internal/wire.h"

#include <cmocka.h>

static const struct gx_wire_hdr hdr_full = {
	.type = GX_PKT_DATA,
	.flags = GX_PKT_EOM | GX_PKT_ACK_NOW,
	.plen = 0x1234,
	.cid = 0xa1b2c3d4,
	.psn = 0x01020304,
	.mid = 0x80000005,
	.moff = 0xffffffffull << 4,
	.crc_payload = 0xcafef00d,
};

static uint8_t *heap_copy(const void *b, size_t len)
{
	uint8_t *p = malloc(len ? len : 1);

	assert_non_null(p);
	if (len)
		memcpy(p, b, len);
	return p;
}

static int hdr_get(const uint8_t *b, uint32_t len, uint32_t plen, struct gx_wire_hdr *h)
{
	uint8_t *copy = heap_copy(b, len);
	int ret = gx_wire_hdr_get(copy, len, plen, h);

	free(copy);
	return ret;
}

static int ack_get(const uint8_t *b, uint32_t len, struct gx_wire_ack *a)
{
	uint8_t *copy = heap_copy(b, len);
	int ret = gx_wire_ack_get(copy, len, a);

	free(copy);
	return ret;
}

/* By field: there is padding between them. */
static void rec_equal(const struct gx_wire_rec *a, const struct gx_wire_rec *b)
{
	assert_int_equal(a->type, b->type);
	assert_int_equal(a->flags, b->flags);
	assert_int_equal(a->rsn, b->rsn);
	switch (a->type) {
	case GX_REC_OPEN:
		assert_int_equal(a->open.mid, b->open.mid);
		assert_int_equal(a->open.quantum, b->open.quantum);
		assert_int_equal(a->open.token, b->open.token);
		assert_int_equal(a->open.off, b->open.off);
		assert_int_equal(a->open.len, b->open.len);
		assert_int_equal(a->open.imm, b->open.imm);
		assert_int_equal(a->open.old_mid, b->open.old_mid);
		assert_int_equal(a->open.old_sent, b->open.old_sent);
		assert_int_equal(a->open.from, b->open.from);
		assert_int_equal(a->open.from, b->open.from);
		assert_ptr_equal(a->open.data, b->open.data);
		break;
	case GX_REC_OFFER:
		assert_memory_equal(&a->offer, &b->offer, sizeof(a->offer));
		break;
	case GX_REC_GET:
		assert_memory_equal(&a->get, &b->get, sizeof(a->get));
		break;
	case GX_REC_RESEND:
		assert_int_equal(a->resend.mid, b->resend.mid);
		assert_int_equal(a->resend.off, b->resend.off);
		assert_int_equal(a->resend.len, b->resend.len);
		break;
	case GX_REC_FAIL:
		assert_int_equal(a->fail.id, b->fail.id);
		assert_int_equal(a->fail.err, b->fail.err);
		assert_int_equal(a->fail.seg, b->fail.seg);
		break;
	case GX_REC_CANCEL:
		assert_int_equal(a->cancel.mid, b->cancel.mid);
		assert_int_equal(a->cancel.sent, b->cancel.sent);
		break;
	case GX_REC_REVOKE:
		assert_int_equal(a->revoke.slot, b->revoke.slot);
		break;
	case GX_REC_REFUND:
		assert_int_equal(a->refund.pkts, b->refund.pkts);
		break;
	default:
		fail_msg("type %u", a->type);
	}
}

static int rec_get(const uint8_t *b, uint32_t len, struct gx_wire_rec *r)
{
	uint8_t *copy = heap_copy(b, len);
	int ret = gx_wire_rec_get(copy, len, r);

	free(copy);
	return ret;
}

/* ---- gx_wire_hdr_* ---- */

static void hdr_put__layout(void **state)
{
	static const uint8_t want[GX_WIRE_HDR_B] = {0x41, 0x03, 0x34, 0x12, 0xd4, 0xc3, 0xb2,
						    0xa1, 0x04, 0x03, 0x02, 0x01, 0x05, 0,
						    0,	  0x80, 0xff, 0xff, 0xff, 0xff, 38};
	uint8_t b[GX_WIRE_HDR_B];

	memset(b, 0xee, sizeof(b));
	gx_wire_hdr_put(b, &hdr_full, GX_INTEGRITY_NONE, 77);
	assert_memory_equal(b, want, sizeof(b));
}

static void hdr_put__crc_field(void **state)
{
	uint8_t b[GX_WIRE_HDR_B], zeroed[GX_WIRE_HDR_B];
	uint32_t crc;

	gx_wire_hdr_put(b, &hdr_full, GX_INTEGRITY_CRC, 77);
	memcpy(zeroed, b, sizeof(b));
	memset(zeroed + 22, 0, 4);
	crc = gx_crc32c(77, zeroed, sizeof(zeroed));
	assert_int_equal(b[22] | b[23] << 8 | b[24] << 16 | (uint32_t)b[25] << 24, crc);
	assert_int_equal(b[26], 0x0d);
	assert_int_equal(b[29], 0xca);
}

static void hdr_get__round_trip(void **state)
{
	for (unsigned type = GX_PKT_DATA; type <= GX_PKT_PROBE; type++) {
		struct gx_wire_hdr in = hdr_full, out;
		uint8_t b[GX_WIRE_HDR_B];

		in.type = (uint8_t)type;
		in.flags = (uint8_t)(type & 3);
		in.plen = (uint16_t)(type == GX_PKT_PROBE ? 65535 : 0);
		gx_wire_hdr_put(b, &in, GX_INTEGRITY_CRC, 0);
		assert_int_equal(hdr_get(b, sizeof(b), in.plen, &out), 0);
		in.crc_hdr = out.crc_hdr;
		assert_memory_equal(&in, &out, sizeof(in));
	}
}

static void hdr_get__short(void **state)
{
	struct gx_wire_hdr h;
	uint8_t b[GX_WIRE_HDR_B];

	gx_wire_hdr_put(b, &hdr_full, GX_INTEGRITY_NONE, 0);
	for (uint32_t len = 0; len < GX_WIRE_HDR_B; len++)
		assert_int_equal(hdr_get(b, len, hdr_full.plen, &h), -EPROTO);
}

static void hdr_get__refuses(void **state)
{
	static const struct {
		unsigned at;
		uint8_t value;
	} bad[] = {
		{0, 0x31}, {0, 0x51}, {0, 0x40}, {0, 0x45}, {0, 0x4f}, {1, 0x0c},
		{1, 0x08}, {1, 0x80}, {2, 0x35}, {3, 0x13}, {20, 37},  {20, 50},
	};
	struct gx_wire_hdr h;
	uint8_t b[GX_WIRE_HDR_B];

	for (unsigned i = 0; i < GX_ARRAY_SIZE(bad); i++) {
		gx_wire_hdr_put(b, &hdr_full, GX_INTEGRITY_NONE, 0);
		b[bad[i].at] = bad[i].value;
		assert_int_equal(hdr_get(b, sizeof(b), hdr_full.plen, &h), -EPROTO);
	}
}

/* In modes 0 and 1 nobody has a use for these bytes. */
static void hdr_plain__refuses(void **state)
{
	uint8_t b[GX_WIRE_HDR_B];

	gx_wire_hdr_put(b, &hdr_full, GX_INTEGRITY_CRC, 77);
	assert_true(gx_wire_hdr_plain(b));
	for (unsigned at = 0; at < GX_WIRE_HDR_B; at++) {
		b[at] ^= 0x10;
		assert_int_equal(gx_wire_hdr_plain(b), at != 21 && at < 30);
		b[at] ^= 0x10;
	}
}

static void hdr_get__plen_differs(void **state)
{
	struct gx_wire_hdr h;
	uint8_t b[GX_WIRE_HDR_B];

	gx_wire_hdr_put(b, &hdr_full, GX_INTEGRITY_NONE, 0);
	assert_int_equal(hdr_get(b, sizeof(b), hdr_full.plen - 1u, &h), -EPROTO);
	assert_int_equal(hdr_get(b, sizeof(b), hdr_full.plen + 1u, &h), -EPROTO);
	assert_int_equal(hdr_get(b, sizeof(b), hdr_full.plen + 65536u, &h), -EPROTO);
}

static void hdr_check__every_bit(void **state)
{
	struct gx_wire_hdr h;
	uint8_t b[GX_WIRE_HDR_B];

	gx_wire_hdr_put(b, &hdr_full, GX_INTEGRITY_CRC, 0xabcd);
	assert_int_equal(gx_wire_hdr_get(b, sizeof(b), hdr_full.plen, &h), 0);
	assert_int_equal(gx_wire_hdr_check(b, &h, 0xabcd), 0);
	assert_int_equal(gx_wire_hdr_check(b, &h, 0xabce), -EBADMSG);
	for (unsigned bit = 0; bit < 8 * GX_WIRE_HDR_B; bit++) {
		b[bit / 8] ^= (uint8_t)(1u << bit % 8);
		if (!gx_wire_hdr_get(b, sizeof(b), b[2] | (uint32_t)b[3] << 8, &h))
			assert_int_equal(gx_wire_hdr_check(b, &h, 0xabcd), -EBADMSG);
		b[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
}

/* ---- gx_wire_ack_* ---- */

static struct gx_wire_ack ack_make(uint32_t nr_words, uint32_t done_words)
{
	struct gx_wire_ack a = {
		.largest = 0xfedcba9876543210ull,
		.delay_ns = 8000,
		.credit = 0xfffffff0,
		.number = 0x80000001,
		.marks = 0xfffffffe,
		.nr_words = (uint16_t)nr_words,
		.done_words = (uint16_t)done_words,
	};

	for (uint32_t i = 0; i < nr_words; i++)
		a.words[i] = 0x8000000000000001ull + ((uint64_t)i << 8);
	for (uint32_t i = 0; i < GX_WIRE_DONE_WORDS; i++)
		a.done[i] = 0xd04e000000000000ull + i;
	return a;
}

static void ack_get__round_trip(void **state)
{
	static const uint32_t done[] = {0, 1, 0x8000, 0x8002, 0xffff};

	for (uint32_t n = 1; n <= GX_WIRE_ACK_WORDS * GX_ARRAY_SIZE(done); n++) {
		uint32_t nr_words = (n - 1) % GX_WIRE_ACK_WORDS + 1;
		struct gx_wire_ack in = ack_make(nr_words, done[n % GX_ARRAY_SIZE(done)]), out;
		uint8_t b[GX_CTL_PAYLOAD_MAX];
		uint32_t len = gx_wire_ack_put(b, &in);

		assert_true(len <= GX_WIRE_ACK_MAX);
		memset(&out, 0, sizeof(out));
		assert_int_equal(ack_get(b, len, &out), 0);
		assert_int_equal(out.largest, in.largest);
		assert_int_equal(out.delay_ns, in.delay_ns);
		assert_int_equal(out.credit, in.credit);
		assert_int_equal(out.number, in.number);
		assert_int_equal(out.marks, in.marks);
		assert_int_equal(out.done_words, in.done_words);
		for (uint32_t w = 0; w < GX_WIRE_DONE_WORDS; w++)
			assert_true(out.done[w] == (in.done_words >> w & 1 ? in.done[w] : 0));
		assert_int_equal(out.nr_words, nr_words);
		assert_memory_equal(out.words, in.words, 8 * nr_words);
	}
}

static void ack_get__length(void **state)
{
	struct gx_wire_ack in = ack_make(8, 5), out;
	uint8_t b[GX_CTL_PAYLOAD_MAX] = {0};
	uint32_t len = gx_wire_ack_put(b, &in);

	for (uint32_t n = 0; n < 2 * len; n++)
		assert_int_equal(ack_get(b, n, &out), n == len ? 0 : -EPROTO);
}

static void ack_get__refuses(void **state)
{
	struct gx_wire_ack in = ack_make(1, 0x8002), out;
	uint8_t b[GX_CTL_PAYLOAD_MAX] = {0};
	uint32_t len = gx_wire_ack_put(b, &in);

	b[48] &= 0xfe; /* largest itself not received */
	assert_int_equal(ack_get(b, len, &out), -EPROTO);
	b[48] |= 1;
	b[20] = 0;
	assert_int_equal(ack_get(b, len - 8, &out), -EPROTO);
	b[20] = GX_WIRE_ACK_WORDS + 1;
	assert_int_equal(ack_get(b, 48 + 8 * (GX_WIRE_ACK_WORDS + 1), &out), -EPROTO);
	b[20] = 1;
	b[21] = 0x20; /* 8 * nr_words wraps to 8, in 16 bits */
	assert_int_equal(ack_get(b, len, &out), -EPROTO);
	b[21] = 0;
	b[31] = 1;
	assert_int_equal(ack_get(b, len, &out), -EPROTO);
	b[31] = 0;
	assert_int_equal(ack_get(b, len, &out), 0);
	b[22] |= 1; /* one word more is named than there is */
	assert_int_equal(ack_get(b, len, &out), -EPROTO);
}

/* ---- gx_wire_rec_* ---- */

#define REC_B 96 /* of the longest below */

/* One of each type, all its fields set. */
static const struct gx_wire_rec rec_all[] = {
	{.type = GX_REC_OPEN,
	 .flags = GX_REC_IMM | GX_REC_SLOT,
	 .rsn = 0xffffffff,
	 .open = {.mid = 7,
		  .quantum = 4096,
		  .token = ~0ull,
		  .off = 1ull << 40,
		  .len = 1ull << 39,
		  .imm = 42}},
	{.type = GX_REC_OFFER,
	 .flags = GX_REC_GPU,
	 .rsn = 2,
	 .offer = {.slot = 9, .len = 10, .tag = 11, .tag_mask = ~0ull}},
	{.type = GX_REC_GET,
	 .flags = GX_REC_GPU,
	 .rsn = 3,
	 .get = {.token = 1, .off = 2, .len = 3, .slot = 4}},
	{.type = GX_REC_RESEND, .rsn = 4, .resend = {.mid = 0x80000000, .off = 16, .len = 4096}},
	{.type = GX_REC_FAIL,
	 .flags = GX_REC_SLOT,
	 .rsn = 5,
	 .fail = {.id = 99, .err = -ECANCELED, .seg = 63}},
	{.type = GX_REC_CANCEL, .rsn = 6, .cancel = {.mid = 12, .sent = 1ull << 33}},
	{.type = GX_REC_REVOKE, .rsn = 10, .revoke = {.slot = 1ull << 63 | 5ull << 32 | 255}},
	{.type = GX_REC_REFUND, .rsn = 11, .refund = {.pkts = 1ull << 33}},
	{.type = GX_REC_OPEN,
	 .flags = GX_REC_IMM | GX_REC_SLOT | GX_REC_AGAIN,
	 .rsn = 12,
	 .open = {.mid = 8,
		  .quantum = 1392,
		  .token = 1,
		  .off = 2,
		  .len = 3,
		  .imm = 4,
		  .old_mid = 0xfffffffe,
		  .old_sent = 1ull << 33}},
	{.type = GX_REC_OPEN,
	 .flags = GX_REC_IMM | GX_REC_SLOT | GX_REC_PULL,
	 .rsn = 13,
	 .open = {.mid = 9,
		  .quantum = 8192,
		  .token = 1,
		  .off = 2,
		  .len = 3,
		  .imm = 4,
		  .from = 0x7f0123456789abcd}},
	{.type = GX_REC_OFFER,
	 .flags = GX_REC_GPU,
	 .rsn = 15,
	 .offer = {.slot = 9, .len = 10, .tag = 11, .tag_mask = ~0ull}},
};

static void rec_get__round_trip(void **state)
{
	for (unsigned i = 0; i < GX_ARRAY_SIZE(rec_all); i++) {
		uint32_t size = gx_wire_rec_size(&rec_all[i]);
		struct gx_wire_rec out;
		uint8_t b[REC_B];

		assert_int_equal(size % 8, 0);
		assert_int_equal(gx_wire_rec_put(b, size, &rec_all[i]), size);
		assert_int_equal(rec_get(b, size, &out), (int)size);
		rec_equal(&rec_all[i], &out);
	}
}

static void rec_get__inline(void **state)
{
	static uint8_t data[GX_WIRE_INLINE_MAX], b[GX_CTL_PAYLOAD_MAX];

	for (unsigned i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(i * 7 + 1);
	for (uint32_t len = 0; len <= GX_WIRE_INLINE_MAX; len++) {
		struct gx_wire_rec in = {.type = GX_REC_OPEN,
					 .flags = GX_REC_INLINE,
					 .open = {.mid = 1, .len = len, .data = data}};
		struct gx_wire_rec out;
		uint32_t size = gx_wire_rec_size(&in);

		memset(b, 0xff, sizeof(b));
		assert_int_equal(size, 48 + (len + 7) / 8 * 8);
		assert_int_equal(gx_wire_rec_put(b, sizeof(b), &in), size);
		assert_int_equal(gx_wire_rec_get(b, size, &out), (int)size);
		assert_ptr_equal(out.open.data, b + 48);
		assert_memory_equal(out.open.data, data, len);
		assert_int_equal(b[size], 0xff);
		assert_int_equal(rec_get(b, size - 1, &out), -EPROTO);
		if (len % 8) {
			b[size - 1] = 1; /* padding is zero */
			assert_int_equal(rec_get(b, size, &out), -EPROTO);
		}
	}
}

#define SEGS_AT 48 /* of a LIST */

/* A LIST, or GETS, of @n segments; each one byte longer than the one before. */
static struct gx_wire_rec list_of(uint8_t type, uint8_t flags, unsigned n,
				  struct gx_link_seg segs[GX_WIRE_SEGS + 1])
{
	struct gx_wire_rec rec = {.type = type, .flags = flags, .rsn = 3};
	uint64_t len = 0;

	for (unsigned i = 0; i < n; i++) {
		segs[i] = (struct gx_link_seg){.remote_off = ~0ull - i, .len = i ? i : 1025};
		len += segs[i].len;
	}
	if (type == GX_REC_GETS) {
		rec.get.token = 5;
		rec.get.len = len;
		rec.get.slot = 1ull << 63;
		rec.get.nr = n;
		rec.get.segs = segs;
		return rec;
	}
	rec.open.mid = 7;
	rec.open.quantum = 1280;
	rec.open.token = 5;
	rec.open.len = len;
	rec.open.nr = n;
	rec.open.segs = segs;
	rec.open.old_mid = flags & GX_REC_AGAIN ? 6 : 0;
	rec.open.old_sent = flags & GX_REC_AGAIN ? 1ull << 33 : 0;
	return rec;
}

static void rec_get__list(void **state)
{
	static const uint8_t types[][2] = {{GX_REC_LIST, 0},
					   {GX_REC_LIST, GX_REC_AGAIN},
					   {GX_REC_GETS, 0},
					   {GX_REC_GETS, GX_REC_GPU}};
	struct gx_link_seg segs[GX_WIRE_SEGS + 1];
	uint8_t b[GX_CTL_PAYLOAD_MAX];

	for (unsigned k = 0; k < GX_ARRAY_SIZE(types); k++)
		for (unsigned n = 1; n <= GX_WIRE_SEGS; n++) {
			struct gx_wire_rec in = list_of(types[k][0], types[k][1], n, segs), out;
			uint32_t size = gx_wire_rec_size(&in);
			const uint8_t *data;

			assert_true(size <= GX_WIRE_QUANTUM_MIN);
			memset(b, 0xff, sizeof(b));
			assert_int_equal(gx_wire_rec_put(b, size - 1, &in), 0);
			assert_int_equal(gx_wire_rec_put(b, size, &in), size);
			assert_int_equal(b[size], 0xff);
			assert_int_equal(gx_wire_rec_get(b, sizeof(b), &out), (int)size);
			assert_int_equal(rec_get(b, size - 1, &out), -EPROTO);
			assert_int_equal(gx_wire_rec_get(b, size, &out), (int)size);
			data = in.type == GX_REC_LIST ? out.open.data : out.get.data;
			assert_int_equal(in.type == GX_REC_LIST ? out.open.nr : out.get.nr, n);
			assert_int_equal(in.type == GX_REC_LIST ? out.open.off : out.get.off, 0);
			for (unsigned i = 0; i < n; i++) {
				struct gx_wire_seg s = gx_wire_seg_get(data, i);

				assert_true(s.off == segs[i].remote_off && s.len == segs[i].len);
			}
			if (in.type == GX_REC_LIST) {
				assert_int_equal(out.open.mid, 7);
				assert_int_equal(out.open.len, in.open.len);
				assert_int_equal(out.open.old_mid, in.open.old_mid);
				assert_int_equal(out.open.old_sent, in.open.old_sent);
			} else {
				assert_int_equal(out.get.len, in.get.len);
				assert_int_equal(out.get.slot, in.get.slot);
			}
		}
}

/* Of a list that has ended: the same length and flags, in no region, and no segment is read. */
static void rec_void__lies_in_no_region(void **state)
{
	static const uint8_t types[][2] = {
		{GX_REC_LIST, 0}, {GX_REC_LIST, GX_REC_AGAIN}, {GX_REC_GETS, 0}};
	struct gx_link_seg segs[GX_WIRE_SEGS + 1];
	uint8_t b[GX_CTL_PAYLOAD_MAX];

	for (unsigned k = 0; k < GX_ARRAY_SIZE(types); k++) {
		struct gx_wire_rec in = list_of(types[k][0], types[k][1], 50, segs), out;
		bool list = in.type == GX_REC_LIST;
		struct gx_wire_seg s;
		uint32_t size;

		gx_wire_rec_void(&in);
		size = gx_wire_rec_put(b, sizeof(b), &in);
		assert_int_equal(gx_wire_rec_get(b, size, &out), (int)size);
		assert_int_equal(out.type, in.type);
		assert_int_equal(out.flags, in.flags);
		assert_int_equal(list ? out.open.nr : out.get.nr, 1);
		s = gx_wire_seg_get(list ? out.open.data : out.get.data, 0);
		assert_true(s.off == UINT64_MAX);
		assert_int_equal(s.len, list ? in.open.len : in.get.len);
		if (list)
			assert_int_equal(out.open.old_mid, in.open.old_mid);
	}
}

static void list_bad(const struct gx_wire_rec *rec, unsigned at, uint64_t value)
{
	uint8_t b[GX_CTL_PAYLOAD_MAX] = {0};
	uint32_t size = gx_wire_rec_put(b, sizeof(b), rec);
	struct gx_wire_rec out;

	assert_int_equal(rec_get(b, size, &out), (int)size);
	for (unsigned i = 0; i < 8; i++)
		b[at + i] = (uint8_t)(value >> 8 * i);
	assert_int_equal(rec_get(b, size, &out), -EPROTO);
	assert_int_equal(rec_get(b, sizeof(b), &out), -EPROTO); /* with more bytes behind it */
}

/* No segment, too many, more than there are; lengths of nothing, too long, that wrap, and that are not
 * the message's. */
static void rec_get__list_refuses(void **state)
{
	static const uint64_t nr[] = {0, 3, 5, 65, 1ull << 32, (1ull << 60) + 4, ~0ull};
	static const uint64_t len[] = {0,    2, GX_WIRE_LIST_B + 1, 1ull << 32, (1ull << 32) + 1025,
				       ~0ull};
	struct gx_link_seg segs[GX_WIRE_SEGS + 1];
	struct gx_wire_rec list = list_of(GX_REC_LIST, 0, 4, segs);
	struct gx_wire_rec gets = list_of(GX_REC_GETS, 0, 4, segs), out;
	uint8_t b[GX_CTL_PAYLOAD_MAX];
	uint32_t size;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(nr); i++) {
		list_bad(&list, 24, nr[i]);
		list_bad(&gets, 16, nr[i]);
	}
	for (unsigned i = 0; i < GX_ARRAY_SIZE(len); i++) {
		list_bad(&list, SEGS_AT + 8, len[i]);
		list_bad(&gets, 48, len[i]);
	}
	list_bad(&list, 32, 1030);
	list_bad(&list, 32, ~0ull);
	list_bad(&list, 40, 1); /* no room for an immediate */
	segs[1].len = GX_WIRE_LIST_B - 1030;
	list.open.len = GX_WIRE_LIST_B;
	list_bad(&list, SEGS_AT + 24, GX_WIRE_LIST_B);
	segs[1].len++; /* as long as it says, and too long */
	list.open.len++;
	size = gx_wire_rec_put(b, sizeof(b), &list);
	assert_int_equal(rec_get(b, size, &out), -EPROTO);
	list = list_of(GX_REC_LIST, 0, 4, segs);
	segs[0].len = 1018; /* so few go in an OPEN */
	list.open.len = GX_WIRE_INLINE_MAX;
	size = gx_wire_rec_put(b, sizeof(b), &list);
	assert_int_equal(rec_get(b, size, &out), -EPROTO);
}

static void rec_get__inline_too_long(void **state)
{
	struct gx_wire_rec in = {.type = GX_REC_OPEN, .flags = GX_REC_INLINE}, out;
	uint8_t b[GX_CTL_PAYLOAD_MAX] = {0};

	gx_wire_rec_put(b, sizeof(b), &in);
	b[32] = 1;
	b[33] = 4; /* len = 1,025 */
	assert_int_equal(rec_get(b, sizeof(b), &out), -EPROTO);
	memset(b + 32, 0xff, 8); /* aligning this up wraps */
	assert_int_equal(rec_get(b, sizeof(b), &out), -EPROTO);
}

static void rec_put__room(void **state)
{
	for (unsigned i = 0; i < GX_ARRAY_SIZE(rec_all); i++) {
		uint32_t size = gx_wire_rec_size(&rec_all[i]);
		uint8_t b[REC_B] = {0};

		for (uint32_t room = 0; room < size; room++)
			assert_int_equal(gx_wire_rec_put(b, room, &rec_all[i]), 0);
		assert_int_equal(b[0], 0);
	}
}

static void rec_get__short(void **state)
{
	for (unsigned i = 0; i < GX_ARRAY_SIZE(rec_all); i++) {
		uint8_t b[REC_B];
		uint32_t size = gx_wire_rec_put(b, sizeof(b), &rec_all[i]);
		struct gx_wire_rec out;

		for (uint32_t len = 0; len < size; len++)
			assert_int_equal(rec_get(b, len, &out), -EPROTO);
	}
}

static void rec_get__sequence(void **state)
{
	uint8_t b[GX_CTL_PAYLOAD_MAX];
	uint32_t at = 0, end = 0;
	struct gx_wire_rec out;
	unsigned n = 0;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(rec_all); i++)
		end += gx_wire_rec_put(b + end, sizeof(b) - end, &rec_all[i]);
	while (at < end) {
		int ret = gx_wire_rec_get(b + at, end - at, &out);

		assert_true(ret > 0);
		rec_equal(&out, &rec_all[n]);
		at += (uint32_t)ret;
		n++;
	}
	assert_int_equal(n, GX_ARRAY_SIZE(rec_all));
}

static void rec_get__refuses(void **state)
{
	static const struct {
		uint8_t rec, at, value;
	} bad[] = {
		{0, 0, 0},   {0, 0, 12}, {0, 0, 255}, {0, 1, 4},   {0, 1, 16},	  {0, 2, 1},
		{0, 3, 1},   {1, 1, 1},	 {1, 1, 8},   {2, 1, 2},   {3, 1, 1},	  {3, 12, 1},
		{3, 16, 17}, {3, 25, 0}, {4, 1, 4},   {4, 20, 64}, {4, 19, 0x7f}, {4, 17, 0},
		{5, 15, 1},  {5, 1, 8},	 {0, 0, 7},   {0, 0, 8},   {0, 0, 11},	  {6, 1, 1},
		{7, 1, 1},   {8, 52, 1}, {8, 1, 18},  {8, 1, 48},  {0, 1, 32},	  {9, 1, 34},
		{9, 1, 48},  {0, 1, 64}, {9, 1, 72},  {1, 1, 64},  {2, 1, 32},
	};
	struct gx_wire_rec out;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(bad); i++) {
		uint8_t b[REC_B];
		uint32_t size = gx_wire_rec_put(b, sizeof(b), &rec_all[bad[i].rec]);

		b[bad[i].at] = bad[i].value;
		assert_int_equal(rec_get(b, size, &out), -EPROTO);
	}
}

static void rec_get__resend_wraps(void **state)
{
	struct gx_wire_rec rec = {.type = GX_REC_RESEND,
				  .resend = {.off = 1ull << 63, .len = (1ull << 63) - 1}};
	struct gx_wire_rec out;
	uint8_t b[32];

	assert_int_equal(gx_wire_rec_put(b, sizeof(b), &rec), 32);
	assert_int_equal(rec_get(b, 32, &out), 32);
	rec.resend.len++;
	gx_wire_rec_put(b, sizeof(b), &rec);
	assert_int_equal(rec_get(b, 32, &out), -EPROTO);
}

/* ---- gx_hello_* ---- */

static uint8_t frame[GX_HELLO_FRAME_MAX];

/* Check the frame's header. Return: length of its body. */
static uint32_t frame_body(uint32_t len, uint16_t want)
{
	uint32_t body;
	uint16_t type;

	assert_int_equal(gx_hello_frame(frame, &type, &body), 0);
	assert_int_equal(type, want);
	assert_int_equal(body + 8, len);
	return body;
}

static void name_fill(char *s, size_t room, unsigned i)
{
	memset(s, 'a' + (int)(i % 26), room - 1);
	s[room - 1] = 0;
}

static void export_fill(struct gx_hello_region *r, unsigned kind)
{
	r->export.kind = (uint8_t)kind;
	if (!kind)
		return;
	r->export.map_len = r->len + 4096;
	r->export.map_off = 4096;
	r->export.map_id = 7;
	if (kind == GX_EXPORT_CUDA_IPC)
		memset(r->export.handle, 0x5a, sizeof(r->export.handle));
}

/* Every count and every string at its maximum. */
static struct gx_hello *hello_full(void)
{
	struct gx_hello *h = calloc(1, sizeof(*h));

	assert_non_null(h);
	h->magic = GX_HELLO_MAGIC;
	h->version = GX_HELLO_VERSION;
	h->pid = 1234;
	h->uid = 1000;
	memset(h->host_id, 0x11, sizeof(h->host_id));
	memset(h->nonce, 0xfe, sizeof(h->nonce));
	h->id = 0x0123456789abcdefull;
	name_fill(h->unix_name, sizeof(h->unix_name), 0);
	h->nr_lanes = GX_HELLO_LANES;
	h->chunk_b = 512 << 10;
	h->window = 16;
	h->integrity = 3;
	h->links = GX_LINKS_ALL;
	for (unsigned i = 0; i < GX_LINKS; i++) {
		h->offer[i].len = i == 1 ? 0 : GX_HELLO_OFFER_MAX;
		memset(h->offer[i].b, 0xe0 + (int)i, h->offer[i].len);
	}
	h->data_len = GX_HELLO_CONN_DATA_MAX;
	memset(h->data, 0xda, sizeof(h->data));
	h->nr_ports = GX_HELLO_PORTS;
	for (unsigned i = 0; i < GX_HELLO_PORTS; i++) {
		name_fill(h->ports[i].name, GX_NAME_MAX, i);
		name_fill(h->ports[i].host, GX_NAME_MAX, i + 1);
		h->ports[i].flags = i;
		h->ports[i].payload_max = 8192;
		h->ports[i].payload_best = 4096;
	}
	h->nr_regions = GX_HELLO_REGIONS;
	for (unsigned i = 0; i < GX_HELLO_REGIONS; i++) {
		name_fill(h->regions[i].name, GX_NAME_MAX, i);
		h->regions[i].token = ~(uint64_t)i;
		h->regions[i].len = 1ull << 40;
		h->regions[i].kind = 1;
		h->regions[i].access = 3;
		h->regions[i].device = (uint16_t)i;
		export_fill(&h->regions[i], i % (GX_EXPORT_CHUNKS + 1));
	}
	return h;
}

static int hello_get(const uint8_t *b, uint32_t len, struct gx_hello *h)
{
	uint8_t *copy = heap_copy(b, len);
	int ret = gx_hello_get(copy, len, h);

	free(copy);
	return ret;
}

static void hello_get__round_trip(void **state)
{
	struct gx_hello *in = hello_full(), *out = malloc(sizeof(*out));
	uint32_t body = frame_body(gx_hello_put(frame, in), GX_HELLO_HELLO);

	assert_int_equal(hello_get(frame + 8, body, out), 0);
	assert_memory_equal(in, out, sizeof(*in));
	in->nr_ports = in->nr_regions = in->nr_lanes = 0;
	in->unix_name[0] = 0;
	memset(in->ports, 0, sizeof(in->ports));
	memset(in->regions, 0, sizeof(in->regions));
	memset(in->unix_name, 0, sizeof(in->unix_name));
	body = frame_body(gx_hello_put(frame, in), GX_HELLO_HELLO);
	assert_int_equal(hello_get(frame + 8, body, out), 0);
	assert_memory_equal(in, out, sizeof(*in));
	free(in);
	free(out);
}

/* A peer that says more than there is room for, and has sent it. */
static void hello_get__data_too_long(void **state)
{
	struct gx_hello *in = hello_full(), *out = malloc(sizeof(*out));
	uint32_t body, links = 0;

	for (unsigned i = 0; i < GX_LINKS; i++)
		links += 2 + in->offer[i].len;
	body = frame_body(gx_hello_put(frame, in), GX_HELLO_HELLO);
	assert_int_equal(frame[8 + body - links - GX_HELLO_CONN_DATA_MAX - 1],
			 GX_HELLO_CONN_DATA_MAX);
	memmove(frame + 8 + body - links + 1, frame + 8 + body - links, links);
	frame[8 + body - links - GX_HELLO_CONN_DATA_MAX - 1]++;
	assert_int_equal(hello_get(frame + 8, body + 1, out), -EPROTO);
	free(in);
	free(out);
}

/* A link of a newer gx is passed over, whatever it says. */
static void hello_get__unknown_link(void **state)
{
	struct gx_hello *in = hello_full(), *out = malloc(sizeof(*out));
	uint32_t body = frame_body(gx_hello_put(frame, in), GX_HELLO_HELLO);
	uint8_t *links = frame + 8 + 4 * 4 + 16 + 1 + strlen(in->unix_name) + 16 + 8 + 4 * 4;

	assert_int_equal(*links, GX_LINKS_ALL);
	links[1] = 1; /* link 8 */
	assert_int_equal(hello_get(frame + 8, body, out), -EPROTO);
	frame[8 + body] = 3; /* its length, and as many bytes */
	frame[8 + body + 1] = 0;
	memset(frame + 8 + body + 2, 0x55, 3);
	assert_int_equal(hello_get(frame + 8, body + 5, out), 0);
	assert_int_equal(out->links, GX_LINKS_ALL);
	assert_memory_equal(out->offer, in->offer, sizeof(in->offer));
	assert_int_equal(hello_get(frame + 8, body + 4, out), -EPROTO);
	free(in);
	free(out);
}

static void hello_get__length(void **state)
{
	struct gx_hello *in = hello_full(), *out = malloc(sizeof(*out));
	uint32_t body = frame_body(gx_hello_put(frame, in), GX_HELLO_HELLO);

	for (uint32_t n = 0; n < body; n++)
		assert_int_equal(hello_get(frame + 8, n, out), -EPROTO);
	frame[8 + body] = 0;
	assert_int_equal(hello_get(frame + 8, body + 1, out), -EPROTO);
	free(in);
	free(out);
}

static void hello_get__version(void **state)
{
	struct gx_hello *out = malloc(sizeof(*out));
	uint8_t b[9] = {'g', 'x', '0', '1', GX_HELLO_VERSION + 1, 0, 0, 0, 0xff};

	assert_int_equal(hello_get(b, 8, out), -EPROTONOSUPPORT);
	assert_int_equal(hello_get(b, 9, out), -EPROTONOSUPPORT);
	b[4] = GX_HELLO_VERSION - 1;
	assert_int_equal(hello_get(b, 9, out), -EPROTONOSUPPORT);
	assert_int_equal(hello_get(b, 7, out), -EPROTO);
	b[0] = 'G';
	assert_int_equal(hello_get(b, 9, out), -EPROTO);
	free(out);
}

static void hello_get__counts(void **state)
{
	struct gx_hello *in = hello_full(), *out = malloc(sizeof(*out));
	uint32_t body = frame_body(gx_hello_put(frame, in), GX_HELLO_HELLO);
	/* unix_name is 1 + 63 bytes: lanes stand at 16 + 16 + 64 + 16 + 8, ports 20 further on */
	static const uint32_t at[] = {120, 140};

	for (unsigned i = 0; i < GX_ARRAY_SIZE(at); i++) {
		uint8_t was = frame[8 + at[i]];

		assert_int_equal(was, i ? GX_HELLO_PORTS : GX_HELLO_LANES);
		frame[8 + at[i]]++;
		assert_int_equal(hello_get(frame + 8, body, out), -EPROTO);
		frame[8 + at[i]] = was;
		frame[8 + at[i] + 3] = 0x80;
		assert_int_equal(hello_get(frame + 8, body, out), -EPROTO);
		frame[8 + at[i] + 3] = 0;
	}
	assert_int_equal(hello_get(frame + 8, body, out), 0);
	free(in);
	free(out);
}

static void hello_get__names(void **state)
{
	static const uint8_t bad[] = {0, '\n', 0x1b, 0x7f, 0x80, 0xff};
	struct gx_hello *in = hello_full(), *out = malloc(sizeof(*out));
	uint32_t body = frame_body(gx_hello_put(frame, in), GX_HELLO_HELLO);

	for (unsigned i = 0; i < GX_ARRAY_SIZE(bad); i++) {
		frame[8 + 33 + i] = bad[i];
		assert_int_equal(hello_get(frame + 8, body, out), -EPROTO);
		frame[8 + 33 + i] = 'a';
	}
	frame[8 + 32] = GX_NAME_MAX; /* one character too many */
	assert_int_equal(hello_get(frame + 8, body, out), -EPROTO);
	free(in);
	free(out);
}

/* An export that is not known, or that the region does not lie in. */
static void hello_get__exports(void **state)
{
	struct gx_hello *in = hello_full(), *out = malloc(sizeof(*out));
	volatile uint8_t *kind; /* so that -O3 does not reason about where it lies */
	uint32_t body;

	in->nr_regions = 1;
	in->links = 0;
	in->data_len = 0; /* the export is the last but its length */
	export_fill(&in->regions[0], GX_EXPORT_MEMFD);
	body = frame_body(gx_hello_put(frame, in), GX_HELLO_HELLO);
	assert_int_equal(hello_get(frame + 8, body, out), 0);
	kind = &frame[8] + body - 26;
	assert_int_equal(*kind, GX_EXPORT_MEMFD);
	*kind = GX_EXPORT_CHUNKS + 1;
	assert_int_equal(hello_get(frame + 8, body, out), -EPROTO);
	in->regions[0].export.map_off++;
	body = frame_body(gx_hello_put(frame, in), GX_HELLO_HELLO);
	assert_int_equal(hello_get(frame + 8, body, out), -EPROTO);
	in->regions[0].export.map_off = UINT64_MAX;
	body = frame_body(gx_hello_put(frame, in), GX_HELLO_HELLO);
	assert_int_equal(hello_get(frame + 8, body, out), -EPROTO);
	free(in);
	free(out);
}

static void hello_put__unprintable(void **state)
{
	struct gx_hello *in = hello_full(), *out = malloc(sizeof(*out));
	uint32_t body;

	in->regions[0].name[1] = '\n';
	body = frame_body(gx_hello_put(frame, in), GX_HELLO_HELLO);
	assert_int_equal(hello_get(frame + 8, body, out), 0);
	assert_int_equal(out->regions[0].name[1], '?');
	free(in);
	free(out);
}

static struct gx_hello_lanes *lanes_full(void)
{
	struct gx_hello_lanes *l = calloc(1, sizeof(*l));

	assert_non_null(l);
	strcpy(l->port, "dpdk:net_memif");
	l->crc_by_copy = 2;
	memset(l->half, 9, sizeof(l->half));
	l->quantum = 4096;
	l->chunk_b = 512 << 10;
	l->window = 8;
	l->integrity = 1;
	l->peer_timeout_ns = 5000000000ull;
	l->nr_lanes = GX_HELLO_LANES;
	for (unsigned i = 0; i < GX_HELLO_LANES; i++) {
		l->lanes[i].port.len = (uint16_t)(GX_PORT_ADDR_MAX - i);
		memset(l->lanes[i].port.b, (int)i, l->lanes[i].port.len);
		l->lanes[i].port.fd = i & 1 ? 0 : -1;
		l->lanes[i].cid = i << 20;
		l->lanes[i].credit = 8;
		l->lanes[i].psn = ~0ull - i;
		l->lanes[i].salt = i * 77;
	}
	return l;
}

static int lanes_get(const uint8_t *b, uint32_t len, struct gx_hello_lanes *l)
{
	uint8_t *copy = heap_copy(b, len);
	int ret = gx_hello_lanes_get(copy, len, l);

	free(copy);
	return ret;
}

static void lanes_get__round_trip(void **state)
{
	struct gx_hello_lanes *in = lanes_full(), *out = malloc(sizeof(*out));
	uint32_t body = frame_body(gx_hello_lanes_put(frame, GX_HELLO_ACCEPT, in), GX_HELLO_ACCEPT);

	assert_int_equal(lanes_get(frame + 8, body, out), 0);
	assert_memory_equal(in, out, sizeof(*in));
	in->lanes[0].port.fd = 17; /* a number that means nothing to the peer */
	body = frame_body(gx_hello_lanes_put(frame, GX_HELLO_CONNECT, in), GX_HELLO_CONNECT);
	assert_int_equal(lanes_get(frame + 8, body, out), 0);
	assert_int_equal(out->lanes[0].port.fd, 0);
	assert_false(out->lanes[0].port.has_pool);
	in->lanes[0].port.has_pool = true;
	body = frame_body(gx_hello_lanes_put(frame, GX_HELLO_CONNECT, in), GX_HELLO_CONNECT);
	assert_int_equal(lanes_get(frame + 8, body, out), 0);
	assert_int_equal(out->lanes[0].port.fd, 0);
	assert_true(out->lanes[0].port.has_pool);
	free(in);
	free(out);
}

static void lanes_get__length(void **state)
{
	struct gx_hello_lanes *in = lanes_full(), *out = malloc(sizeof(*out));
	uint32_t body = frame_body(gx_hello_lanes_put(frame, GX_HELLO_ACCEPT, in), GX_HELLO_ACCEPT);

	for (uint32_t n = 0; n < body; n++)
		assert_int_equal(lanes_get(frame + 8, n, out), -EPROTO);
	assert_int_equal(lanes_get(frame + 8, body + 1, out), -EPROTO);
	free(in);
	free(out);
}

/* The words of a link, whichever it is. */
static void lanes_get__blob(void **state)
{
	struct gx_hello_lanes *in = lanes_full(), *out = malloc(sizeof(*out));
	uint32_t body;

	in->link = GX_LINK_VERBS;
	in->blob_b = GX_HELLO_BLOB_MAX;
	memset(in->blob, 0x5a, sizeof(in->blob));
	body = frame_body(gx_hello_lanes_put(frame, GX_HELLO_ACCEPT, in), GX_HELLO_ACCEPT);
	assert_int_equal(lanes_get(frame + 8, body, out), 0);
	assert_int_equal(out->blob_b, GX_HELLO_BLOB_MAX);
	assert_memory_equal(out->blob, in->blob, sizeof(in->blob));
	for (uint32_t n = 0; n < body; n++)
		assert_int_equal(lanes_get(frame + 8, n, out), -EPROTO);
	in->blob_b = 0;
	body = frame_body(gx_hello_lanes_put(frame, GX_HELLO_ACCEPT, in), GX_HELLO_ACCEPT);
	assert_int_equal(lanes_get(frame + 8, body, out), 0);
	assert_int_equal(out->blob_b, 0);
	free(in);
	free(out);
}

/* One port is no list, and no more than there are lanes. */
static void lanes_get__ways(void **state)
{
	struct gx_hello_lanes *in = lanes_full(), *out = malloc(sizeof(*out));
	volatile uint8_t *count; /* so that -O3 does not reason about where it lies */
	uint32_t body;

	in->blob_b = 0;
	memset(in->blob, 0, sizeof(in->blob));
	body = frame_body(gx_hello_lanes_put(frame, GX_HELLO_ACCEPT, in), GX_HELLO_ACCEPT);
	count = &frame[8] + body - 3; /* behind it: the length of a blob */
	in->nr_ports = GX_HELLO_PORTS;
	for (unsigned i = 0; i < GX_HELLO_PORTS; i++)
		in->ports[i] = (struct gx_hello_pair){(uint8_t)i, (uint8_t)(7 - i)};
	assert_int_equal(
		frame_body(gx_hello_lanes_put(frame, GX_HELLO_CONNECT, in), GX_HELLO_CONNECT),
		body + 2 * GX_HELLO_PORTS);
	body += 2 * GX_HELLO_PORTS;
	assert_int_equal(lanes_get(frame + 8, body, out), 0);
	assert_memory_equal(in, out, sizeof(*in));
	for (unsigned n = 0; n < 256; n++) {
		*count = (uint8_t)n;
		assert_int_equal(lanes_get(frame + 8, body, out),
				 n == GX_HELLO_PORTS ? 0 : -EPROTO);
	}
	in->nr_lanes = 1; /* fewer lanes than ports */
	body = frame_body(gx_hello_lanes_put(frame, GX_HELLO_CONNECT, in), GX_HELLO_CONNECT);
	assert_int_equal(lanes_get(frame + 8, body, out), -EPROTO);
	free(in);
	free(out);
}

static void lanes_get__refuses(void **state)
{
	struct gx_hello_lanes *in = lanes_full(), *out = malloc(sizeof(*out));
	uint32_t body = frame_body(gx_hello_lanes_put(frame, GX_HELLO_ACCEPT, in), GX_HELLO_ACCEPT);
	uint8_t *link = frame + 8 + 1 + strlen(in->port), *count = link + 58, *lane = count + 4;

	assert_int_equal(*count, GX_HELLO_LANES);
	*count = GX_HELLO_LANES + 1;
	assert_int_equal(lanes_get(frame + 8, body, out), -EPROTO);
	*count = GX_HELLO_LANES;
	*link = GX_LINKS;
	assert_int_equal(lanes_get(frame + 8, body, out), -EPROTO);
	*link = GX_LINK_LOCAL;
	link[1] = 1 << 2; /* crc_by_copy: no such kind of memory */
	assert_int_equal(lanes_get(frame + 8, body, out), -EPROTO);
	link[1] = 1;
	link[46] = GX_INTEGRITY_NONE; /* nothing is checked, so not by a copy */
	assert_int_equal(lanes_get(frame + 8, body, out), -EPROTO);
	link[46] = GX_INTEGRITY_CRC;
	assert_int_equal(lanes_get(frame + 8, body, out), 0);
	lane[1] = 1; /* an address of 256 + 160 bytes */
	assert_int_equal(lanes_get(frame + 8, body, out), -EPROTO);
	lane[1] = 0;
	lane[2 + GX_PORT_ADDR_MAX] = 3; /* a lane has two descriptors at most */
	assert_int_equal(lanes_get(frame + 8, body, out), -EPROTO);
	free(in);
	free(out);
}

static void error_get__round_trip(void **state)
{
	struct gx_hello_error in = {.err = -EACCES, .reason = 60000}, out; /* of a later version */
	uint32_t body;

	name_fill(in.text, sizeof(in.text), 3);
	body = frame_body(gx_hello_error_put(frame, &in), GX_HELLO_ERROR);
	assert_int_equal(gx_hello_error_get(frame + 8, body, &out), 0);
	assert_memory_equal(&in, &out, sizeof(in));
	for (uint32_t n = 0; n < body; n++)
		assert_int_equal(gx_hello_error_get(frame + 8, n, &out), -EPROTO);
	assert_int_equal(gx_hello_error_get(frame + 8, body + 1, &out), -EPROTO);
}

/* Ends of any version read why they cannot talk: error and text alone. */
static void error_get__version(void **state)
{
	static const uint8_t body[] = {(uint8_t)-EPROTONOSUPPORT, 0xff, 0xff, 0xff, 2, 'n', 'o'};
	struct gx_hello_error in = {.err = -EPROTONOSUPPORT, .reason = 7, .text = "no"}, out;

	assert_int_equal(frame_body(gx_hello_error_put(frame, &in), GX_HELLO_ERROR), sizeof(body));
	assert_memory_equal(frame + 8, body, sizeof(body));
	assert_int_equal(gx_hello_error_get(body, sizeof(body), &out), 0);
	assert_int_equal(out.reason, GX_REASON_VERSION);
}

static void error_get__refuses(void **state)
{
	static const int32_t bad[] = {0, 1, -4096, INT32_MIN};
	struct gx_hello_error in = {.text = "no"}, out;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(bad); i++) {
		in.err = bad[i];
		assert_int_equal(
			gx_hello_error_get(frame + 8, gx_hello_error_put(frame, &in) - 8, &out),
			-EPROTO);
	}
}

static void plain_put__lengths(void **state)
{
	static uint8_t data[GX_HELLO_FRAME_MAX];

	assert_int_equal(frame_body(gx_hello_plain_put(frame, GX_HELLO_UP, NULL, 0), GX_HELLO_UP),
			 0);
	memset(data, 5, sizeof(data));
	frame_body(gx_hello_plain_put(frame, GX_HELLO_USER, data, sizeof(data) - 8), GX_HELLO_USER);
	assert_memory_equal(frame + 8, data, sizeof(data) - 8);
	assert_int_equal(gx_hello_plain_put(frame, GX_HELLO_USER, data, sizeof(data) - 7), 0);
}

static void hello_data__comes_back(void **state)
{
	struct gx_hello_data in = {.token = {1, 2, 0xff}, .lane = 63, .index = 15}, out;
	uint8_t b[REC_B];
	uint32_t len = gx_hello_data_put(b, &in), body;
	uint16_t type;

	assert_int_equal(gx_hello_frame(b, &type, &body), 0);
	assert_int_equal(type, GX_HELLO_DATA);
	assert_int_equal(body, len - 8);
	assert_int_equal(gx_hello_data_get(b + 8, body, &out), 0);
	assert_memory_equal(&in, &out, sizeof(in));
	assert_int_equal(gx_hello_data_get(b + 8, body - 1, &out), -EPROTO);
	assert_int_equal(gx_hello_data_get(b + 8, body + 1, &out), -EPROTO);
}

static void frame__refuses(void **state)
{
	static const uint8_t bad[][8] = {
		{3, 0, 0, 0, 1, 0, 0, 0},    {0xfd, 0xff, 0, 0, 1, 0, 0, 0},
		{0, 0, 0, 0x80, 1, 0, 0, 0}, {4, 0, 0, 0, 0, 0, 0, 0},
		{4, 0, 0, 0, 10, 0, 0, 0},   {4, 0, 0, 0, 1, 1, 0, 0},
		{4, 0, 0, 0, 1, 0, 1, 0},    {4, 0, 0, 0, 1, 0, 0, 1},
	};
	uint32_t body = 99;
	uint16_t type = 99;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(bad); i++)
		assert_int_equal(gx_hello_frame(bad[i], &type, &body), -EPROTO);
	assert_int_equal(body, 99);
	assert_int_equal(type, 99);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(hdr_put__layout),
		cmocka_unit_test(hdr_put__crc_field),
		cmocka_unit_test(hdr_get__round_trip),
		cmocka_unit_test(hdr_get__short),
		cmocka_unit_test(hdr_get__refuses),
		cmocka_unit_test(hdr_plain__refuses),
		cmocka_unit_test(hdr_get__plen_differs),
		cmocka_unit_test(hdr_check__every_bit),
		cmocka_unit_test(ack_get__round_trip),
		cmocka_unit_test(ack_get__length),
		cmocka_unit_test(ack_get__refuses),
		cmocka_unit_test(rec_get__round_trip),
		cmocka_unit_test(rec_get__inline),
		cmocka_unit_test(rec_get__inline_too_long),
		cmocka_unit_test(rec_put__room),
		cmocka_unit_test(rec_get__short),
		cmocka_unit_test(rec_get__sequence),
		cmocka_unit_test(rec_get__list),
		cmocka_unit_test(rec_get__list_refuses),
		cmocka_unit_test(rec_void__lies_in_no_region),
		cmocka_unit_test(rec_get__refuses),
		cmocka_unit_test(rec_get__resend_wraps),
		cmocka_unit_test(hello_get__round_trip),
		cmocka_unit_test(hello_get__data_too_long),
		cmocka_unit_test(hello_get__unknown_link),
		cmocka_unit_test(hello_get__length),
		cmocka_unit_test(hello_get__version),
		cmocka_unit_test(hello_get__counts),
		cmocka_unit_test(hello_get__names),
		cmocka_unit_test(hello_get__exports),
		cmocka_unit_test(hello_put__unprintable),
		cmocka_unit_test(lanes_get__round_trip),
		cmocka_unit_test(lanes_get__length),
		cmocka_unit_test(lanes_get__blob),
		cmocka_unit_test(lanes_get__ways),
		cmocka_unit_test(lanes_get__refuses),
		cmocka_unit_test(error_get__round_trip),
		cmocka_unit_test(error_get__version),
		cmocka_unit_test(error_get__refuses),
		cmocka_unit_test(plain_put__lengths),
		cmocka_unit_test(frame__refuses),
		cmocka_unit_test(hello_data__comes_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
