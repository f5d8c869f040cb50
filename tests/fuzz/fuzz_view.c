/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as the map that a peer has written, and as a message that names it: the first byte says put or
 * get, then u32 its offset and u32 its length; the rest is the record, and its rows. What is let through
 * has no byte outside of the region, also when its rows are others later; and where it lands no byte of a
 * view without rows comes twice. Run by libFuzzer, or by fuzz_main.c as an ordinary test.
 */
#include "core/le.h"
#include "list/map.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEAD_B 9
#define MEM_B  65536u
#define TOKEN  1ull /* in the corpus, too */
#define PIECES 4096
#define CHECK(cond)                                                                                \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			fprintf(stderr, "fuzz_view:%d: %s does not hold\n", __LINE__, #cond);      \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct gx_mem *_Atomic region[GX_KEYS_MAX];
static struct gx gx;
static struct gx_core core = {.gx = &gx};
static struct gx_mem mem = {
	.gx = &gx, .len = MEM_B, .access = CORE_ACCESS, .token = TOKEN, .device = -1};
static struct gx_ep ep = {.core = &core, .access = CORE_ACCESS};

static void ends_open(void)
{
	mem.addr = malloc(MEM_B);
	if (!mem.addr || maps_open(&ep))
		abort();
	gx.region = region;
	region[TOKEN & CORE_TOKEN_INDEX] = &mem;
	gx.region_top = (TOKEN & CORE_TOKEN_INDEX) + 1;
}

/* Bytes of the view from @off on. Without rows none is in @seen before. */
static void walk(struct view_at *at, uint64_t off, uint64_t len, uint8_t *seen)
{
	for (unsigned n = 0; off < len && n < PIECES; n++) {
		uint32_t part = (uint32_t)GX_MIN(len - off, (uint64_t)MEM_B);
		const char *p = view_find(at, off, &part);

		CHECK(part && p >= mem.addr && p + part <= mem.addr + MEM_B);
		for (uint32_t i = 0; seen && i < part; i++)
			CHECK(!seen[p - mem.addr + i]++);
		off += part;
	}
}

static void moves(struct view_at *at, uint64_t len, bool put)
{
	static char lin[3000];

	for (uint64_t off = 0; off < len && off < PIECES * 64; off += sizeof(lin)) {
		uint64_t part = GX_MIN(len - off, (uint64_t)sizeof(lin));

		if (put)
			view_scatter(at, off, part, lin);
		else
			view_gather(at, off, part, lin);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t seen[MEM_B] = {0};
	struct view_at at;
	struct gx_mem *of;
	uint64_t len;
	bool put;
	int n;

	if (!mem.addr)
		ends_open();
	if (size < HEAD_B || size - HEAD_B > CORE_MAP_B)
		return 0;
	put = data[0] & 1;
	len = le32_get(data + 5);
	memset(ep.maps->in, 0, CORE_MAP_REC_B);
	memcpy(ep.maps->in, data + HEAD_B, size - HEAD_B);
	n = map_open(&ep, core_token_map(0, le32_get((uint8_t *)ep.maps->in)),
		     put ? GX_ACCESS_PUT : GX_ACCESS_GET, le32_get(data + 1), len, &at, &of);
	if (n < 0) {
		CHECK(!ep.maps_busy);
		return 0;
	}
	CHECK(of == &mem && ep.maps_busy == 1);
	walk(&at, 0, len, put && !at.v.rows ? seen : NULL);
	walk(&at, len - GX_MIN(len, (uint64_t)PIECES), len, NULL);
	for (uint32_t i = 0; at.v.rows && i < GX_MIN(at.v.nr_rows, 64u); i++) /* the peer's again */
		memset(ep.maps->in + CORE_MAP_REC_B + 4ul * i, data[i % size], 4);
	walk(&at, 0, len, NULL);
	moves(&at, len, put);
	map_done(&ep, n);
	CHECK(!ep.maps_busy);
	return 0;
}
