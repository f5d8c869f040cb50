/* SPDX-License-Identifier: Apache-2.0 */
/* The codec of the tcp link's frames: what is put comes back, and nothing else is taken. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tcp/tcp_frame.h"

#include <cmocka.h>

static const struct tcp_frame good[] = {
	{.type = TCP_DATA, .mid = 7, .token = 0x1234567890, .off = 5, .len = 0},
	{.type = TCP_DATA,
	 .flags = TCP_F_IMM,
	 .mid = UINT32_MAX,
	 .token = 3,
	 .off = 1ull << 40,
	 .len = 1ull << 36,
	 .imm = UINT64_MAX,
	 .moff = (1ull << 36) - 17,
	 .plen = 17},
	{.type = TCP_DATA, .flags = TCP_F_SLOT, .token = 1ull << 63, .len = 9, .plen = 9},
	{.type = TCP_ACK, .mid = 1024, .moff = 3},
	{.type = TCP_DONE, .mid = 1},
	{.type = TCP_DONE, .mid = 1, .err = -ECANCELED},
	{.type = TCP_FAIL, .mid = 1, .err = -ENOENT},
	{.type = TCP_FAIL, .flags = TCP_F_SLOT, .token = 1ull << 63 | 5, .err = -EACCES},
	{.type = TCP_CANCEL, .mid = 2, .moff = 9},
	{.type = TCP_CANCEL, .mid = 2, .moff = 9, .err = -EIO},
	{.type = TCP_OFFER, .token = 1ull << 63, .off = UINT64_MAX, .len = 64, .imm = 5},
	{.type = TCP_REVOKE, .token = 1ull << 63},
	{.type = TCP_GET, .token = 9, .off = 8, .len = 7, .imm = 1ull << 63},
	{.type = TCP_PING},
	{.type = TCP_PONG},
	{.type = TCP_DATA, .flags = TCP_F_BARE, .sock = 15, .token = 3, .len = 9, .plen = 9},
	{.type = TCP_OFFER, .flags = TCP_F_BARE, .token = 1ull << 63, .len = 64},
	{.type = TCP_GET, .flags = TCP_F_BARE, .token = 9, .len = 7, .imm = 1ull << 63},
	{.type = TCP_END, .sock = 1},
	{.type = TCP_END, .flags = TCP_F_VOID, .sock = 7},
};

/* Field by field: the struct has a hole. */
static void frame_same(const struct tcp_frame *a, const struct tcp_frame *b)
{
	assert_int_equal(a->type, b->type);
	assert_int_equal(a->flags, b->flags);
	assert_int_equal(a->sock, b->sock);
	assert_int_equal(a->mid, b->mid);
	assert_int_equal(a->token, b->token);
	assert_int_equal(a->off, b->off);
	assert_int_equal(a->len, b->len);
	assert_int_equal(a->imm, b->imm);
	assert_int_equal(a->moff, b->moff);
	assert_int_equal(a->plen, b->plen);
	assert_int_equal(a->err, b->err);
}

static void frame__comes_back(void **state)
{
	uint8_t b[TCP_HDR_B];

	for (unsigned i = 0; i < GX_ARRAY_SIZE(good); i++) {
		struct tcp_frame f;

		tcp_frame_put(b, &good[i]);
		assert_int_equal(tcp_frame_get(b, &f), 0);
		frame_same(&f, &good[i]);
	}
}

/* Each byte of each frame, with each value: refused, or the bytes of that other frame. */
static void frame__every_byte(void **state)
{
	unsigned refused = 0;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(good); i++)
		for (unsigned k = 0; k < TCP_HDR_B; k++)
			for (unsigned v = 0; v < 256; v++) {
				uint8_t b[TCP_HDR_B], again[TCP_HDR_B];
				struct tcp_frame f;

				tcp_frame_put(b, &good[i]);
				b[k] = (uint8_t)v;
				if (tcp_frame_get(b, &f)) {
					refused++;
					continue;
				}
				tcp_frame_put(again, &f);
				assert_memory_equal(b, again, TCP_HDR_B);
				assert_true(f.moff <= f.len || f.type != TCP_DATA);
				assert_true(f.type != TCP_DATA || f.plen <= f.len - f.moff);
			}
	assert_true(refused > 1000);
}

static void frame__refuses(void **state)
{
	static const struct tcp_frame bad[] = {
		{.type = 0},
		{.type = TCP_END + 1},
		{.type = TCP_END},
		{.type = TCP_END, .sock = 16},
		{.type = TCP_DATA, .flags = 16, .len = 1, .plen = 1},
		{.type = TCP_DATA, .flags = TCP_F_VOID, .len = 1, .plen = 1},
		{.type = TCP_DATA, .flags = TCP_F_BARE, .len = 1, .plen = 1},
		{.type = TCP_DATA, .flags = TCP_F_BARE, .sock = 16, .len = 1, .plen = 1},
		{.type = TCP_DATA, .flags = TCP_F_BARE, .sock = 1},
		{.type = TCP_DATA, .sock = 1, .len = 1, .plen = 1},
		{.type = TCP_PING, .sock = 1},
		{.type = TCP_DATA, .len = 8, .plen = 9},
		{.type = TCP_DATA, .len = 8, .moff = 9},
		{.type = TCP_DATA, .len = 8, .moff = 8},		     /* no payload */
		{.type = TCP_DATA, .len = 8, .moff = UINT64_MAX, .plen = 9}, /* wraps */
		{.type = TCP_DATA, .len = 1, .plen = 1, .err = -1},
		{.type = TCP_FAIL, .mid = 1},
		{.type = TCP_FAIL, .mid = 1, .err = 1},
		{.type = TCP_FAIL, .mid = 1, .err = -4096},
		{.type = TCP_FAIL, .mid = 1, .token = 5, .err = -1},
		{.type = TCP_FAIL, .flags = TCP_F_SLOT, .mid = 1, .err = -1},
		{.type = TCP_PING, .len = 1},
		{.type = TCP_REVOKE, .mid = 1},
	};
	uint8_t b[TCP_HDR_B];

	for (unsigned i = 0; i < GX_ARRAY_SIZE(bad); i++) {
		struct tcp_frame f;

		tcp_frame_put(b, &bad[i]);
		assert_int_equal(tcp_frame_get(b, &f), -EPROTO);
	}
}

static void tail__codec(void **state)
{
	uint8_t b[TCP_TAIL_B];
	enum tcp_tail tail;

	for (unsigned i = TCP_TAIL_GOOD; i <= TCP_TAIL_VOID; i++) {
		tcp_tail_put(b, (enum tcp_tail)i);
		assert_int_equal(b[0], i);
		assert_int_equal(tcp_tail_get(b, &tail), 0);
		assert_int_equal(tail, i);
	}
	b[0] = 2;
	assert_int_equal(tcp_tail_get(b, &tail), -EPROTO);
	b[0] = 1;
	b[7] = 0x80;
	assert_int_equal(tcp_tail_get(b, &tail), -EPROTO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(frame__comes_back),
		cmocka_unit_test(frame__every_byte),
		cmocka_unit_test(frame__refuses),
		cmocka_unit_test(tail__codec),
	};

	return cmocka_run_group_tests_name("tcp_frame", tests, NULL, NULL);
}
