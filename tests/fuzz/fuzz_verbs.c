/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes into the decoders of link verbs: a device's description, MEND, an immediate. The first byte
 * chooses the decoder, the rest is its input. What decodes must be exactly what the encoder writes
 * for the result. Run by libFuzzer, or by fuzz_main.c as an ordinary test.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gx_internal/wire.h"
#include "verbs/verbs_lane.h"

#define CHECK(cond)                                                                                \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			fprintf(stderr, "fuzz_verbs:%d: %s does not hold\n", __LINE__, #cond);     \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_hello(const uint8_t *b, uint32_t len)
{
	static uint8_t out[VERBS_HELLO_MAX];
	static struct verbs_hello h;

	if (verbs_hello_get(b, len, &h))
		return;
	CHECK(len <= GX_HELLO_BLOB_MAX);
	CHECK(h.nr_qps && h.nr_qps <= VERBS_QPS_MAX && h.nr_keys <= GX_REGIONS_MAX);
	CHECK(verbs_hello_put(out, &h) == len);
	CHECK(!memcmp(out, b, len));
}

static void fuzz_mend(const uint8_t *b, uint32_t len)
{
	uint8_t out[VERBS_MEND_B];
	struct verbs_mend m;

	if (verbs_hello_mend_get(b, len, &m))
		return;
	CHECK(len == VERBS_MEND_B && m.qp < VERBS_QPS_MAX);
	verbs_hello_mend_put(out, &m);
	CHECK(!memcmp(out, b, len));
}

static void fuzz_imm(const uint8_t *b, uint32_t len)
{
	uint8_t out[VERBS_IMM_B];
	struct verbs_imm n;

	if (verbs_imm_get(b, len, &n))
		return;
	CHECK(len == VERBS_IMM_B && n.part < VERBS_QPS_MAX && n.nr_parts <= VERBS_QPS_MAX);
	verbs_imm_put(out, &n);
	CHECK(!memcmp(out, b, len));
}

static void fuzz_ports(const uint8_t *b, uint32_t len)
{
	struct verbs_port port[VERBS_RAILS_MAX];
	uint8_t out[VERBS_RAILS_B];
	int n = verbs_ports_get(b, len, port);

	if (n < 0)
		return;
	CHECK(n >= 1 && n <= VERBS_RAILS_MAX && len <= GX_HELLO_OFFER_MAX);
	CHECK(verbs_ports_put(out, port, (uint32_t)n) == len);
	CHECK(!memcmp(out, b, len));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const decoder[])(const uint8_t *b, uint32_t len) = {fuzz_hello, fuzz_mend,
									  fuzz_imm, fuzz_ports};

	if (!size || size > GX_HELLO_FRAME_MAX || data[0] >= GX_ARRAY_SIZE(decoder))
		return 0;
	decoder[data[0]](data + 1, (uint32_t)size - 1);
	return 0;
}
