/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes into the reader of the kernel's netlink answers. The first byte says what was asked,
 * the rest is a datagram. What is read lies within its bounds. Run by libFuzzer, or by fuzz_main.c
 * as an ordinary test.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nic/nic_nl.h"

#define CHECK(cond)                                                                                \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			fprintf(stderr, "fuzz_nic:%d: %s does not hold\n", __LINE__, #cond);       \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

#define FUZZ_SEQ    1  /* of the messages of the corpus */
#define FUZZ_FAMILY 20 /* likewise */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void got_check(const struct nic_got *got)
{
	CHECK(got->err <= 0 && got->err >= -4095);
	CHECK(memchr(got->text, '\0', sizeof(got->text)));
	CHECK(got->nr_rx <= NIC_QUEUES_MAX);
	CHECK(!got->has_split || got->split == 1 || got->split == 2);
	for (unsigned i = got->nr_rx; i < NIC_QUEUES_MAX; i++)
		CHECK(!got->held[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct nic_got got;
	uint16_t family;
	uint8_t *b;
	int ret;

	if (!size || data[0] >= NIC_ASKS || size > NIC_NL_BUF_B)
		return 0;
	b = calloc(1, (size + 3) & ~(size_t)3); /* aligned, and whole words, as the socket's */
	CHECK(b);
	memcpy(b, data + 1, size - 1);
	memset(&got, 0, sizeof(got));
	family = data[0] == NIC_ASK_FAMILY ? 16 : FUZZ_FAMILY; /* GENL_ID_CTRL */
	ret = nic_nl_parse((enum nic_ask)data[0], FUZZ_SEQ, family, b, size - 1, &got);
	CHECK(ret == 0 || ret == 1 || ret == -EBADMSG);
	got_check(&got);
	free(b);
	return 0;
}
