/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The codec of the tcp link's frames; see tcp_frame.h. Pure: no state, no clock, no allocation.
 */
#include "tcp/tcp_frame.h"
#include "core/le.h"
#include "gx_internal/wire.h"

#include <errno.h>
#include <string.h>

/* Fields besides type and flags. */
enum {
	HAS_MID = 1,
	HAS_TOKEN = 2,
	HAS_OFF = 4,
	HAS_LEN = 8,
	HAS_IMM = 16,
	HAS_MOFF = 32,
	HAS_PLEN = 64,
	HAS_ERR = 128,
	HAS_SOCK = 256,
};

/* The bits of a header, in its words, that a frame with these fields may have. */
#define ONES(on) ((on) ? UINT64_MAX : 0)
#define BITS(has)                                                                                  \
	{                                                                                          \
		0xffff | (ONES((has)&HAS_SOCK) & 0xffff0000) | ONES((has)&HAS_MID) << 32,          \
			ONES((has)&HAS_TOKEN), ONES((has)&HAS_OFF), ONES((has)&HAS_LEN),           \
			ONES((has)&HAS_IMM), ONES((has)&HAS_MOFF),                                 \
			(ONES((has)&HAS_PLEN) & UINT32_MAX) | ONES((has)&HAS_ERR) << 32, 0         \
	}

static const struct {
	uint64_t bits[TCP_HDR_B / 8];
	uint16_t flags;
} kinds[] = {
	[TCP_DATA] = {BITS(HAS_MID | HAS_TOKEN | HAS_OFF | HAS_LEN | HAS_IMM | HAS_MOFF | HAS_PLEN |
			   HAS_SOCK),
		      TCP_F_IMM | TCP_F_HIDDEN | TCP_F_SLOT | TCP_F_BARE | TCP_F_LEASE},
	[TCP_ACK] = {BITS(HAS_MID | HAS_MOFF), 0},
	[TCP_DONE] = {BITS(HAS_MID | HAS_ERR), 0},
	[TCP_FAIL] = {BITS(HAS_MID | HAS_TOKEN | HAS_ERR), TCP_F_SLOT},
	[TCP_CANCEL] = {BITS(HAS_MID | HAS_MOFF | HAS_ERR), 0},
	[TCP_OFFER] = {BITS(HAS_TOKEN | HAS_OFF | HAS_LEN | HAS_IMM), TCP_F_BARE},
	[TCP_REVOKE] = {BITS(HAS_TOKEN), 0},
	[TCP_GET] = {BITS(HAS_TOKEN | HAS_OFF | HAS_LEN | HAS_IMM), TCP_F_BARE},
	[TCP_PING] = {BITS(0), 0},
	[TCP_PONG] = {BITS(0), 0},
	[TCP_END] = {BITS(HAS_SOCK), TCP_F_VOID},
};

void tcp_frame_put(uint8_t b[TCP_HDR_B], const struct tcp_frame *f)
{
	memset(b, 0, TCP_HDR_B);
	b[0] = f->type;
	b[1] = f->flags;
	le16_put(b + 2, f->sock);
	le32_put(b + 4, f->mid);
	le64_put(b + 8, f->token);
	le64_put(b + 16, f->off);
	le64_put(b + 24, f->len);
	le64_put(b + 32, f->imm);
	le64_put(b + 40, f->moff);
	le32_put(b + 48, f->plen);
	le32_put(b + 52, (uint32_t)f->err);
}

/* Are all bits 0 that a frame of this type does not use? */
static bool bits_are_valid(const uint8_t b[TCP_HDR_B])
{
	uint64_t bad = 0;

	for (unsigned i = 0; i < TCP_HDR_B / 8; i++)
		bad |= le64_get(b + 8 * i) & ~kinds[b[0]].bits[i];
	return !bad;
}

/* Bare payload comes by a socket other than socket 0, and there is some. */
static bool sock_is_valid(const struct tcp_frame *f)
{
	bool bare = f->type == TCP_DATA && f->flags & TCP_F_BARE;

	if (!bare && f->type != TCP_END)
		return !f->sock;
	return f->sock && f->sock <= TCP_SOCK_TOP && (f->plen || !bare);
}

/* The payload lies in its message. A message of 0 bytes is one frame without payload; any other
 * frame has some. */
static bool data_is_valid(const struct tcp_frame *f)
{
	if (f->moff > f->len || f->plen > f->len - f->moff)
		return false;
	if (f->flags & TCP_F_HIDDEN && !(f->flags & TCP_F_IMM))
		return false;
	return f->plen || !f->len;
}

static bool err_is_valid(const struct tcp_frame *f)
{
	if (f->err > 0 || f->err < -GX_WIRE_ERR_MAX)
		return false;
	return f->type != TCP_FAIL || f->err || f->flags & TCP_F_SLOT;
}

int tcp_frame_get(const uint8_t b[TCP_HDR_B], struct tcp_frame *f)
{
	*f = (struct tcp_frame){.type = b[0],
				.flags = b[1],
				.sock = le16_get(b + 2),
				.mid = le32_get(b + 4),
				.token = le64_get(b + 8),
				.off = le64_get(b + 16),
				.len = le64_get(b + 24),
				.imm = le64_get(b + 32),
				.moff = le64_get(b + 40),
				.plen = le32_get(b + 48),
				.err = (int32_t)le32_get(b + 52)};
	if (f->type < TCP_DATA || f->type > TCP_END)
		return -EPROTO;
	if (f->flags & ~kinds[f->type].flags || !bits_are_valid(b))
		return -EPROTO;
	if (!sock_is_valid(f) || (f->type == TCP_DATA && !data_is_valid(f)))
		return -EPROTO;
	if (f->type == TCP_FAIL && (f->flags & TCP_F_SLOT ? f->mid : f->token))
		return -EPROTO;
	if (f->flags & TCP_F_LEASE && !(f->flags & TCP_F_SLOT))
		return -EPROTO;
	return err_is_valid(f) ? 0 : -EPROTO;
}

void tcp_tail_put(uint8_t b[TCP_TAIL_B], enum tcp_tail tail)
{
	le64_put(b, tail);
}

int tcp_tail_get(const uint8_t b[TCP_TAIL_B], enum tcp_tail *tail)
{
	uint64_t v = le64_get(b);

	if (v > TCP_TAIL_VOID)
		return -EPROTO;
	*tail = (enum tcp_tail)v;
	return 0;
}
