// SPDX-License-Identifier: Apache-2.0
/*
 * Records of data sockets; tcp_seal.h has the contract. A payload is encrypted straight from its
 * place, and decrypted straight to it; headers and trailers are gathered to share a record. Runs on
 * the polling core, but for what makes and frees keys.
 */
#include "tcp/tcp_seal.h"
#include "auth/auth.h"
#include "core/le.h"

#include <errno.h>
#include <string.h>

#define DIRECT_B 2048 /* so many bytes in one piece go into records of their own */
#define REC_TYPE 1    /* in the nonce */

uint64_t tcp_seal_phase_recs = AUTH_PHASE_NRS;

/* ---- keys, on the control thread ---- */

static void way_open(struct tcp_seal_way *w, const struct auth_secret *s)
{
	w->keys.secret = *s;
	w->keys.phase = w->slot;
	w->keys.nr = GX_ARRAY_SIZE(w->slot);
}

struct tcp_seal *tcp_seal_new(const struct auth_secret *tx, const struct auth_secret *rx)
{
	struct tcp_seal *t = gx_pages_get(sizeof(*t));

	if (!t)
		return NULL;
	auth_mem_lock(t, sizeof(*t), offsetof(struct tcp_seal, out));
	way_open(&t->tx, tx);
	way_open(&t->rx, rx);
	if (auth_ring_make(&t->tx.keys) || auth_ring_make(&t->rx.keys)) {
		tcp_seal_free(t);
		return NULL;
	}
	return t;
}

void tcp_seal_free(struct tcp_seal *t)
{
	if (!t)
		return;
	auth_ring_wipe(&t->tx.keys);
	auth_ring_wipe(&t->rx.keys);
	gx_pages_put(t, sizeof(*t));
}

/* ---- records ---- */

static const struct auth_phase *way_key(const struct tcp_seal_way *w, uint32_t phase)
{
	return &w->slot[phase % GX_ARRAY_SIZE(w->slot)];
}

static void way_go_on(struct tcp_seal_way *w)
{
	auth_ring_leave(&w->keys, ++w->phase);
	w->phase_nr = w->nr;
}

/* Seal @n bytes as the next record of out[]; they may stand at their place there. */
static void rec_put(struct tcp_seal *t, const void *src, uint32_t n)
{
	const struct auth_phase *p = way_key(&t->tx, t->tx.phase);
	uint8_t *rec = t->out + t->out_b, *body = rec + TCP_REC_HDR_B;
	uint8_t nonce[GX_GCM_NONCE_B];

	le16_put(rec, (uint16_t)n);
	rec[2] = (uint8_t)t->tx.phase;
	rec[3] = 0;
	auth_nonce(p, REC_TYPE, t->tx.nr++, nonce);
	gx_gcm_seal(&p->key, nonce, (struct gx_gcm_aad){rec, TCP_REC_HDR_B}, body, src, n,
		    body + n);
	t->out_b += TCP_REC_HDR_B + n + GX_GCM_TAG_B;
}

/* Bytes of the record under way, which small pieces share. */
static uint8_t *rec_body(struct tcp_seal *t)
{
	return t->out + t->out_b + TCP_REC_HDR_B;
}

static void rec_end(struct tcp_seal *t, uint32_t *open)
{
	if (*open)
		rec_put(t, rec_body(t), *open);
	*open = 0;
}

static bool out_room(const struct tcp_seal *t)
{
	return t->out_b + TCP_REC_MAX_B <= sizeof(t->out);
}

/* As many bytes as out[] has room for. */
static void out_fill(struct tcp_seal *t, const struct iovec *iov, unsigned n)
{
	uint32_t open = 0;

	for (unsigned i = 0; i < n; i++) {
		const uint8_t *at = iov[i].iov_base;
		size_t left = iov[i].iov_len;

		while (left) {
			uint32_t part = (uint32_t)GX_MIN(left, (size_t)TCP_REC_B - open);

			if (open && (left >= DIRECT_B || open == TCP_REC_B)) {
				rec_end(t, &open);
				continue;
			}
			if (!out_room(t))
				return;
			if (left >= DIRECT_B) {
				rec_put(t, at, part);
			} else {
				gx_copy(rec_body(t) + open, at, part);
				open += part;
			}
			at += part;
			left -= part;
		}
	}
	rec_end(t, &open);
}

/* Another phase begins after so many records, or so much time, once its key is there. */
static void tx_phase(struct tcp_seal_way *w, uint64_t now_ns)
{
	if (!w->since_ns)
		w->since_ns = now_ns;
	if ((w->nr - w->phase_nr < tcp_seal_phase_recs && now_ns - w->since_ns < AUTH_PHASE_NS) ||
	    !auth_ring_has(&w->keys, w->phase + 1))
		return;
	way_go_on(w);
	w->since_ns = now_ns;
}

/* The link hears of the bytes of records that the kernel has as a whole: the peer may have opened them,
 * and may answer what is in them. */
static ssize_t out_report(struct tcp_seal *t)
{
	ssize_t plain = 0;
	uint32_t len;

	while (t->out_reported < t->out_sent) {
		len = le16_get(t->out + t->out_reported);
		if (t->out_sent - t->out_reported < TCP_REC_HDR_B + len + GX_GCM_TAG_B)
			break;
		t->out_reported += TCP_REC_HDR_B + len + GX_GCM_TAG_B;
		plain += len;
	}
	return plain;
}

ssize_t tcp_seal_send(struct tcp_seal *t, int fd, tcp_seal_call *send, const struct iovec *iov,
		      unsigned n, uint64_t now_ns)
{
	ssize_t ret;

	if (!t->out_b) {
		tx_phase(&t->tx, now_ns);
		if (t->tx.nr - t->tx.phase_nr > AUTH_END_NRS - TCP_RECS)
			return -EKEYEXPIRED;
		out_fill(t, iov, n);
	}
	ret = send(fd, &(struct iovec){t->out + t->out_sent, t->out_b - t->out_sent}, 1);
	if (ret < 0)
		return ret;
	t->out_sent += (uint32_t)ret;
	ret = out_report(t);
	if (t->out_sent == t->out_b)
		t->out_b = t->out_sent = t->out_reported = 0;
	return ret ? ret : -EAGAIN;
}

/* ---- in ---- */

/* Where the link's next bytes go. */
struct rx_to {
	const struct iovec *iov;
	unsigned n;
	size_t off; /* in iov[0] */
	ssize_t got;
};

static void to_took(struct rx_to *to, size_t n)
{
	to->got += (ssize_t)n;
	to->off += n;
	if (to->off == to->iov->iov_len) {
		to->iov++;
		to->n--;
		to->off = 0;
	}
}

/* The rest of a record that is open. */
static void plain_take(struct tcp_seal *t, struct rx_to *to)
{
	while (t->plain_b && to->n) {
		size_t n = GX_MIN(to->iov->iov_len - to->off, (size_t)t->plain_b);

		gx_copy((char *)to->iov->iov_base + to->off, t->in + t->plain_at, n);
		t->plain_at += (uint32_t)n;
		t->plain_b -= (uint32_t)n;
		to_took(to, n);
	}
}

/* Is the next record here? 1: all of it, *@len bytes of the link; 0: a part; -EAGAIN: its key is not
 * made yet; -EPROTO. */
static int rec_look(const struct tcp_seal *t, uint32_t *len)
{
	const uint8_t *rec = t->in + t->in_at;
	uint8_t ahead;

	if (t->in_b < TCP_REC_HDR_B)
		return 0;
	*len = le16_get(rec);
	ahead = (uint8_t)(rec[2] - (uint8_t)t->rx.phase);
	if (!*len || *len > TCP_REC_B || ahead > 1 || rec[3])
		return -EPROTO;
	if (ahead && !auth_ring_has(&t->rx.keys, t->rx.phase + 1))
		return -EAGAIN;
	return t->in_b >= TCP_REC_HDR_B + *len + GX_GCM_TAG_B;
}

/* Open it: straight to its place if there is room for all of it. */
static int rec_open(struct tcp_seal *t, uint32_t len, struct rx_to *to)
{
	uint8_t *rec = t->in + t->in_at, *body = rec + TCP_REC_HDR_B;
	bool direct = to->iov->iov_len - to->off >= len;
	uint32_t phase = t->rx.phase + (rec[2] != (uint8_t)t->rx.phase);
	const struct auth_phase *p = way_key(&t->rx, phase);
	uint8_t nonce[GX_GCM_NONCE_B];

	auth_nonce(p, REC_TYPE, t->rx.nr, nonce);
	if (!gx_gcm_open(&p->key, nonce, (struct gx_gcm_aad){rec, TCP_REC_HDR_B},
			 direct ? (uint8_t *)to->iov->iov_base + to->off : body, body, len,
			 body + len))
		return -EBADMSG;
	t->rx.nr++;
	if (phase != t->rx.phase)
		way_go_on(&t->rx);
	t->in_at += TCP_REC_HDR_B + len + GX_GCM_TAG_B;
	t->in_b -= TCP_REC_HDR_B + len + GX_GCM_TAG_B;
	if (direct) {
		to_took(to, len);
	} else {
		t->plain_at = (uint32_t)(body - t->in);
		t->plain_b = len;
	}
	return 0;
}

/* More of the stream, after what is there. Return: as recv. */
static ssize_t in_fill(struct tcp_seal *t, int fd, tcp_seal_call *recv)
{
	ssize_t ret;

	memmove(t->in, t->in + t->in_at, t->in_b);
	t->in_at = 0;
	ret = recv(fd, &(struct iovec){t->in + t->in_b, sizeof(t->in) - t->in_b}, 1);
	if (ret > 0)
		t->in_b += (uint32_t)ret;
	return ret;
}

ssize_t tcp_seal_recv(struct tcp_seal *t, int fd, tcp_seal_call *recv, const struct iovec *iov,
		      unsigned n)
{
	struct rx_to to = {.iov = iov, .n = n};
	ssize_t ret = 1;

	while (ret > 0) {
		uint32_t len = 0;

		plain_take(t, &to);
		if (!to.n)
			return to.got;
		ret = rec_look(t, &len);
		if (ret > 0)
			ret = rec_open(t, len, &to) ? -EBADMSG : 1;
		else if (!ret)
			ret = in_fill(t, fd, recv);
	}
	return to.got ? to.got : ret;
}
