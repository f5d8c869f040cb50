/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placement of packets in messages; see msg.h. Runs on the polling core.
 */
#include "flow/msg.h"

#include <errno.h>
#include <string.h>

#define INV_SHIFT 40

int msg_shape_init(struct msg_shape *s, uint32_t quantum, uint32_t chunk_b, uint32_t window)
{
	uint64_t bits = 64;
	uint64_t want;

	if (!quantum || quantum % 16 || chunk_b < quantum || !window)
		return -EINVAL;
	s->quantum = quantum;
	s->quantum_inv = ((1ull << INV_SHIFT) + quantum / 16 - 1) / (quantum / 16);
	s->chunk_pkts = chunk_b / quantum;
	want = (uint64_t)s->chunk_pkts * window;
	if (want > 1u << 24)
		return -EINVAL;
	s->window_pkts = want;
	while (bits < want)
		bits *= 2;
	s->bits = bits;
	return 0;
}

uint64_t msg_nr_pkts(const struct msg_shape *s, uint64_t len)
{
	/* Once for each message, so a division is fine here. */
	return len ? (len + s->quantum - 1) / s->quantum : 1;
}

void msg_win_init(struct msg_win *w, const struct msg_shape *s, uint64_t len, uint64_t *words)
{
	w->nr_pkts = msg_nr_pkts(s, len);
	w->base = 0;
	w->chunk = 0;
	w->words = words;
	w->mask = w->nr_pkts <= 64 ? 63 : s->bits - 1;
}

int msg_win_test(const struct msg_win *w, uint64_t pkt)
{
	if (pkt < w->base)
		return 1;
	if (pkt - w->base > w->mask || pkt >= w->nr_pkts)
		return -1;
	if (!w->words)
		return 0;
	return w->words[(pkt & w->mask) / 64] >> (pkt & 63) & 1;
}

void msg_win_set(struct msg_win *w, uint64_t pkt)
{
	if (pkt == w->base && (!w->words || !(w->words[(pkt & w->mask) / 64] >> (pkt & 63)))) {
		/* The packet is in order, and its word has no bit above it: write no bit. */
		w->base++;
		if (!w->words || (w->base & 63))
			return;
	} else {
		w->words[(pkt & w->mask) / 64] |= 1ull << (pkt & 63);
	}
	/* Move base over the bits that are set, and clear them after it. */
	while (w->base < w->nr_pkts) {
		uint64_t *word = &w->words[(w->base & w->mask) / 64];
		uint64_t rest = ~(*word >> (w->base & 63));
		unsigned run = rest ? (unsigned)__builtin_ctzll(rest) : 64;
		unsigned in_word = 64 - (w->base & 63);

		if (run > in_word)
			run = in_word;
		if (!run)
			return;
		*word &= run == 64 ? 0 : ~(((1ull << run) - 1) << (w->base & 63));
		w->base += run;
		if (run < in_word)
			return;
	}
}

void msg_win_clear_rest(struct msg_win *w)
{
	if (w->words)
		memset(w->words, 0, (w->mask + 1) / 8);
}

uint64_t msg_limit(struct msg_win *w, const struct msg_shape *s)
{
	while (w->base - w->chunk >= s->chunk_pkts)
		w->chunk += s->chunk_pkts;
	return GX_MIN(w->chunk + s->window_pkts, w->nr_pkts);
}

/* @off / quantum, where @off / 16 fits 32 bits. */
static uint64_t msg_quanta(const struct msg_shape *s, uint64_t off)
{
	return (uint64_t)(((unsigned __int128)(off / 16) * s->quantum_inv) >> INV_SHIFT);
}

int msg_range(const struct msg_shape *s, uint64_t len, uint64_t off, uint64_t n_b, uint64_t *first,
	      uint64_t *end)
{
	if (!n_b || off >= len || n_b > len - off || off >> 36)
		return -EPROTO;
	*first = msg_quanta(s, off);
	*end = msg_quanta(s, off + n_b);
	if (off + n_b == len)
		*end = msg_nr_pkts(s, len);
	else if (*end * s->quantum != off + n_b)
		return -EPROTO;
	return *first * s->quantum == off ? 0 : -EPROTO;
}

int msg_pkt(const struct msg_shape *s, uint64_t len, uint64_t moff, uint32_t plen, bool eom,
	    uint64_t *pkt)
{
	uint64_t n = msg_quanta(s, moff);

	if (n * s->quantum != moff)
		return -EPROTO;
	if (moff > len || plen > len - moff)
		return -EPROTO;
	if (eom != (moff + plen == len))
		return -EPROTO;
	if (!eom && plen != s->quantum)
		return -EPROTO;
	if (plen > s->quantum || (plen == 0 && len != 0))
		return -EPROTO;
	*pkt = n;
	return 0;
}
