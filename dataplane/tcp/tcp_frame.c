/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The codec of the tcp link's frames; see tcp_frame.h. Pure: no state, no clock, no allocation.
 */
#include "tcp/tcp_frame.h"
#include "core/le.h"
#include "gx_internal/wire.h"

#include <errno.h>
#include <string.h>

/* Fields beside type and flags. */
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

static const struct {
	uint16_t flags, fields;
} kinds[] = {
	[TCP_DATA] = {TCP_F_IMM | TCP_F_SLOT | TCP_F_BARE, HAS_MID | HAS_TOKEN | HAS_OFF | HAS_LEN |
								   HAS_IMM | HAS_MOFF | HAS_PLEN |
								   HAS_SOCK},
	[TCP_ACK] = {0, HAS_MID | HAS_MOFF},
	[TCP_DONE] = {0, HAS_MID | HAS_ERR},
	[TCP_FAIL] = {TCP_F_SLOT, HAS_MID | HAS_TOKEN | HAS_ERR},
	[TCP_CANCEL] = {0, HAS_MID | HAS_MOFF},
	[TCP_OFFER] = {TCP_F_BARE, HAS_TOKEN | HAS_OFF | HAS_LEN | HAS_IMM},
	[TCP_REVOKE] = {0, HAS_TOKEN},
	[TCP_GET] = {TCP_F_BARE, HAS_TOKEN | HAS_OFF | HAS_LEN | HAS_IMM},
	[TCP_PING] = {0, 0},
	[TCP_PONG] = {0, 0},
	[TCP_END] = {TCP_F_VOID, HAS_SOCK},
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

static unsigned fields_of(const struct tcp_frame *f)
{
	unsigned has = 0;

	has |= f->mid ? HAS_MID : 0;
	has |= f->token ? HAS_TOKEN : 0;
	has |= f->off ? HAS_OFF : 0;
	has |= f->len ? HAS_LEN : 0;
	has |= f->imm ? HAS_IMM : 0;
	has |= f->moff ? HAS_MOFF : 0;
	has |= f->plen ? HAS_PLEN : 0;
	has |= f->err ? HAS_ERR : 0;
	has |= f->sock ? HAS_SOCK : 0;
	return has;
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
	return f->plen || !f->len;
}

static bool err_is_valid(const struct tcp_frame *f)
{
	if (f->err > 0 || f->err < -GX_WIRE_ERR_MAX)
		return false;
	return f->type != TCP_FAIL || f->err;
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
	if (f->type < TCP_DATA || f->type > TCP_END || le64_get(b + 56))
		return -EPROTO;
	if (f->flags & ~kinds[f->type].flags || fields_of(f) & ~kinds[f->type].fields)
		return -EPROTO;
	if (!sock_is_valid(f) || (f->type == TCP_DATA && !data_is_valid(f)))
		return -EPROTO;
	if (f->type == TCP_FAIL && (f->flags & TCP_F_SLOT ? f->mid : f->token))
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
