/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes into the decoders of wire.c. The first byte chooses the decoder, the rest is its input.
 * What decodes must be exactly what the encoder writes for the result: a decoder takes nothing
 * else. Run by libFuzzer, or by fuzz_main.c as an ordinary test.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gx_internal/link.h"
#include "gx_internal/wire.h"

#define SALT 0x5a17u

#define CHECK(cond)                                                                                \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			fprintf(stderr, "fuzz_wire:%d: %s does not hold\n", __LINE__, #cond);      \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint8_t out[GX_HELLO_FRAME_MAX];

static void fuzz_hdr(const uint8_t *b, uint32_t len)
{
	uint32_t plen = len >= 4 ? b[2] | (uint32_t)b[3] << 8 : 0;
	struct gx_wire_hdr h;

	if (gx_wire_hdr_get(b, len, plen, &h))
		return;
	CHECK(gx_wire_hdr_get(b, len, plen + 1, &h) < 0);
	CHECK(gx_wire_hdr_get(b, len, plen, &h) == 0);
	gx_wire_hdr_put(out, &h, GX_INTEGRITY_NONE, 0);
	CHECK(!memcmp(out, b, GX_WIRE_PHASE_AT));
	CHECK(gx_wire_hdr_plain(b) ==
	      (!memcmp(out + 21, b + 21, 1) && !memcmp(out + 30, b + 30, 8)));
	gx_wire_hdr_put(out, &h, GX_INTEGRITY_CRC, SALT);
	CHECK((gx_wire_hdr_plain(b) && gx_wire_hdr_check(b, &h, SALT) == 0) ==
	      !memcmp(out, b, GX_WIRE_HDR_B));
}

static void fuzz_ack(const uint8_t *b, uint32_t len)
{
	struct gx_wire_ack a;

	if (gx_wire_ack_get(b, len, &a))
		return;
	CHECK(gx_wire_ack_put(out, &a) == len);
	CHECK(!memcmp(out, b, len));
}

static void segs_back(struct gx_link_seg segs[GX_WIRE_SEGS], const uint8_t *data, uint64_t nr)
{
	CHECK(nr && nr <= GX_WIRE_SEGS);
	for (unsigned i = 0; i < nr; i++) {
		struct gx_wire_seg s = gx_wire_seg_get(data, i);

		segs[i] = (struct gx_link_seg){.remote_off = s.off, .len = s.len};
	}
}

/* A CTL packet: record after record. */
static void fuzz_rec(const uint8_t *b, uint32_t len)
{
	struct gx_link_seg segs[GX_WIRE_SEGS];
	struct gx_wire_rec r;
	uint32_t at = 0;

	while (at < len) {
		int n = gx_wire_rec_get(b + at, len - at, &r);

		if (n < 0)
			return;
		CHECK(n >= 8 && n % 8 == 0 && (uint32_t)n <= len - at);
		CHECK(gx_wire_rec_size(&r) == (uint32_t)n);
		if (r.type == GX_REC_LIST) {
			segs_back(segs, r.open.data, r.open.nr);
			r.open.segs = segs;
		} else if (r.type == GX_REC_GETS) {
			segs_back(segs, r.get.data, r.get.nr);
			r.get.segs = segs;
		}
		CHECK(gx_wire_rec_put(out, (uint32_t)n - 1, &r) == 0);
		CHECK(gx_wire_rec_put(out, (uint32_t)n, &r) == (uint32_t)n);
		CHECK(!memcmp(out, b + at, (uint32_t)n));
		at += (uint32_t)n;
	}
}

/* @n bytes stand in out: a frame of @type whose body is the input? */
static void fuzz_same(uint32_t n, uint16_t type, const uint8_t *b, uint32_t len)
{
	uint32_t body;
	uint16_t t;

	CHECK(gx_hello_frame(out, &t, &body) == 0);
	CHECK(t == type && body == len && n == len + 8);
	CHECK(!memcmp(out + 8, b, len));
}

/* Does this HELLO have links that we do not know? What is said of them is skipped, and not put. */
static bool hello_is_later(const uint8_t *b)
{
	uint32_t links;

	memcpy(&links, b + 73 + b[32], sizeof(links)); /* behind the name and numbers of 40 bytes */
	return links & ~GX_LINKS_ALL;
}

static void fuzz_hello(const uint8_t *b, uint32_t len)
{
	static struct gx_hello h;

	if (!gx_hello_get(b, len, &h) && !hello_is_later(b))
		fuzz_same(gx_hello_put(out, &h), GX_HELLO_HELLO, b, len);
	CHECK(memchr(h.unix_name, 0, sizeof(h.unix_name)));
	for (uint32_t i = 0; i < GX_HELLO_PORTS; i++)
		CHECK(memchr(h.ports[i].name, 0, GX_NAME_MAX) &&
		      memchr(h.ports[i].host, 0, GX_NAME_MAX));
	for (uint32_t i = 0; i < GX_HELLO_REGIONS; i++)
		CHECK(memchr(h.regions[i].name, 0, GX_NAME_MAX));
}

static void fuzz_lanes(const uint8_t *b, uint32_t len)
{
	static struct gx_hello_lanes l;

	if (!gx_hello_lanes_get(b, len, &l))
		fuzz_same(gx_hello_lanes_put(out, GX_HELLO_ACCEPT, &l), GX_HELLO_ACCEPT, b, len);
	CHECK(memchr(l.port, 0, sizeof(l.port)));
	for (uint32_t i = 0; i < GX_HELLO_LANES; i++)
		CHECK(l.lanes[i].port.len <= GX_PORT_ADDR_MAX);
}

static void fuzz_error(const uint8_t *b, uint32_t len)
{
	struct gx_hello_error e;

	if (!gx_hello_error_get(b, len, &e))
		fuzz_same(gx_hello_error_put(out, &e), GX_HELLO_ERROR, b, len);
	CHECK(memchr(e.text, 0, sizeof(e.text)));
}

static void fuzz_data(const uint8_t *b, uint32_t len)
{
	struct gx_hello_data d;

	if (!gx_hello_data_get(b, len, &d))
		fuzz_same(gx_hello_data_put(out, &d), GX_HELLO_DATA, b, len);
}

static void fuzz_frame(const uint8_t *b, uint32_t len)
{
	uint32_t body;
	uint16_t type;

	if (len < 8 || gx_hello_frame(b, &type, &body))
		return;
	CHECK(body <= GX_HELLO_FRAME_MAX - 8);
	if (body > len - 8)
		return;
	CHECK(gx_hello_plain_put(out, type, b + 8, body) == body + 8);
	CHECK(!memcmp(out, b, body + 8));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const decoder[])(const uint8_t *b, uint32_t len) = {
		fuzz_hdr,   fuzz_ack,	fuzz_rec,   fuzz_hello,
		fuzz_lanes, fuzz_error, fuzz_frame, fuzz_data,
	};

	if (!size || size > GX_HELLO_FRAME_MAX || data[0] >= GX_ARRAY_SIZE(decoder))
		return 0;
	decoder[data[0]](data + 1, (uint32_t)size - 1);
	return 0;
}
