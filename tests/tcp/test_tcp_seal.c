// SPDX-License-Identifier: Apache-2.0
/*
 * Records of data sockets: bytes in any pieces come out in any others, whatever the kernel takes and
 * gives; a record that is not the peer's next one ends the stream; phases follow each other. The
 * known answer is of tests/auth/second.py.
 */
#include "tcp/tcp_seal.h"
#include "auth/auth_mix.h"

#include <errno.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define WIRE_B	 (8u << 20)
#define STREAM_B (3u << 20)

/* The socket between the two, which takes and gives as much as a plan says. */
static struct {
	uint8_t b[WIRE_B];
	size_t sent, read;
	uint64_t random;
	size_t most; /* bytes of a call; 0: random up to 40,000, and none now and then */
} wire;

static uint8_t src[STREAM_B], dst[STREAM_B];

static uint64_t random_next(void)
{
	uint64_t x = wire.random += 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	return x ^ x >> 31;
}

static size_t call_most(void)
{
	if (wire.most)
		return wire.most;
	return random_next() % 8 ? 1 + random_next() % 40000 : 0;
}

static ssize_t wire_send(int fd, const struct iovec *iov, unsigned n)
{
	size_t most = call_most(), room = WIRE_B - wire.sent, len = GX_MIN(iov->iov_len, most);

	len = GX_MIN(len, room);

	if (!len)
		return -EAGAIN;
	memcpy(wire.b + wire.sent, iov->iov_base, len);
	wire.sent += len;
	return (ssize_t)len;
}

static ssize_t wire_recv(int fd, const struct iovec *iov, unsigned n)
{
	size_t most = call_most(), there = wire.sent - wire.read, len = GX_MIN(iov->iov_len, most);

	len = GX_MIN(len, there);

	if (!len)
		return -EAGAIN;
	memcpy(iov->iov_base, wire.b + wire.read, len);
	wire.read += len;
	return (ssize_t)len;
}

static void wire_reset(uint64_t seed, size_t most)
{
	wire.sent = wire.read = 0;
	wire.random = seed;
	wire.most = most;
	memset(dst, 0, sizeof(dst));
	for (size_t i = 0; i < STREAM_B; i++)
		src[i] = (uint8_t)(i * 7 + (i >> 11) + seed);
}

static void ends_open(struct tcp_seal *end[2])
{
	struct auth_secret a = {{1}}, b = {{2}};

	end[0] = tcp_seal_new(&a, &b);
	end[1] = tcp_seal_new(&b, &a);
	assert_non_null(end[0]);
	assert_non_null(end[1]);
}

static void ends_close(struct tcp_seal *end[2])
{
	tcp_seal_free(end[0]);
	tcp_seal_free(end[1]);
}

static struct tcp_seal **word_ends;

static void word_say(struct gx_conn *c, const uint8_t *b, uint32_t len)
{
	struct tcp_seal *to = word_ends[!c->server];
	struct auth_word w;

	assert_int_equal(auth_word_get(b, len, &w), 0);
	assert_int_equal(auth_rings_take(&to->tx.keys, &to->rx.keys, &w), 0);
}

/* A tick of an end's control thread; @i: which. */
static void keys_make(struct tcp_seal *end[2], unsigned i)
{
	static struct gx_conn c[2] = {[1] = {.server = true}};
	struct auth_tick t = {.c = &c[i], .say = word_say, .now_ns = 1};

	word_ends = end;
	assert_int_equal(auth_rings_tick(&end[i]->tx.keys, &end[i]->rx.keys, &t), 0);
}

/* Pieces from @at on, some small, some large. Return: their number. */
static unsigned pieces(struct iovec *iov, uint8_t *at, size_t left)
{
	static const size_t most[] = {64, 8, 3000, 100000};
	unsigned n = 0;

	for (; n < 6 && left; n++) {
		size_t len = most[random_next() % 4];

		len = 1 + random_next() % GX_MIN(left, len);

		iov[n] = (struct iovec){at, len};
		at += len;
		left -= len;
	}
	return n;
}

static void stream_run(uint64_t seed)
{
	struct tcp_seal *end[2];
	size_t sent = 0, got = 0;
	struct iovec iov[6];

	wire_reset(seed, 0);
	ends_open(end);
	for (unsigned turns = 0; got < STREAM_B; turns++) {
		ssize_t ret;

		assert_true(turns < 100000);
		keys_make(end, 0);
		if (random_next() % 3)
			keys_make(end, 1); /* else its keys are late */
		if (sent < STREAM_B) {
			unsigned n = pieces(iov, src + sent, STREAM_B - sent);

			ret = tcp_seal_send(end[0], -1, wire_send, iov, n, 1);
			assert_true(ret > 0 || ret == -EAGAIN);
			sent += ret > 0 ? (size_t)ret : 0;
		}
		ret = tcp_seal_recv(end[1], -1, wire_recv, iov,
				    pieces(iov, dst + got, STREAM_B - got));
		assert_true(ret > 0 || ret == -EAGAIN);
		got += ret > 0 ? (size_t)ret : 0;
		assert_true(got <= STREAM_B && sent <= STREAM_B);
	}
	assert_int_equal(sent, STREAM_B);
	assert_memory_equal(src, dst, STREAM_B);
	assert_int_equal(end[0]->tx.phase, end[1]->rx.phase);
	if (tcp_seal_phase_recs < 100)
		assert_true(end[0]->tx.phase > AUTH_MIX_PHASES);
	ends_close(end);
}

static void stream__any_pieces(void **state)
{
	for (uint64_t seed = 1; seed < 40; seed++)
		stream_run(seed);
}

static void stream__phases(void **state)
{
	uint64_t was = tcp_seal_phase_recs;

	tcp_seal_phase_recs = 5;
	for (uint64_t seed = 1; seed < 20; seed++)
		stream_run(seed);
	tcp_seal_phase_recs = was;
}

static void send_all(struct tcp_seal *t, size_t n)
{
	struct iovec iov = {src, n};

	wire.most = WIRE_B;
	assert_int_equal(tcp_seal_send(t, -1, wire_send, &iov, 1, 1), n);
}

static ssize_t recv_some(struct tcp_seal *t, size_t n)
{
	struct iovec iov = {dst, n};

	return tcp_seal_recv(t, -1, wire_recv, &iov, 1);
}

/* Each bit of a record's start and of its tag, and of its length. */
static void record__wrong_bits(void **state)
{
	for (unsigned bit = 0; bit < 8 * (TCP_REC_HDR_B + 40 + GX_GCM_TAG_B); bit++) {
		struct tcp_seal *end[2];
		ssize_t ret;

		wire_reset(1, WIRE_B);
		ends_open(end);
		send_all(end[0], 40);
		send_all(end[0], 16000); /* so that a longer record is there */
		send_all(end[0], 16000);
		wire.b[bit / 8] ^= (uint8_t)(1 << bit % 8);
		ret = recv_some(end[1], 40);
		assert_true(ret == -EBADMSG || ret == -EPROTO);
		ends_close(end);
	}
}

/* A record again, left out, or of the other direction. */
static void record__not_the_next_one(void **state)
{
	for (unsigned how = 0; how < 3; how++) {
		const size_t rec_b = TCP_REC_HDR_B + 100 + GX_GCM_TAG_B;
		struct tcp_seal *end[2];

		wire_reset(2, WIRE_B);
		ends_open(end);
		for (unsigned i = 0; i < 3; i++)
			send_all(end[0], 100);
		if (how == 0)
			memcpy(wire.b + rec_b, wire.b, rec_b);
		if (how == 1)
			memmove(wire.b + rec_b, wire.b + 2 * rec_b, rec_b);
		if (how == 2) {
			assert_int_equal(recv_some(end[0], 100), -EBADMSG);
		} else {
			assert_int_equal(recv_some(end[1], 100), 100);
			assert_int_equal(recv_some(end[1], 100), -EBADMSG);
		}
		ends_close(end);
	}
}

static void record__known_answer(void **state)
{
	static const char want[] =
		"14000000632f1cebe929c84c5f4334528be8863a1be46506ab2184bff92dcbd19f07e84f331e4967";
	struct tcp_seal *end[2];
	char is[2 * 64 + 1];

	wire_reset(0, WIRE_B);
	ends_open(end);
	for (unsigned i = 0; i < 20; i++)
		src[i] = (uint8_t)i;
	send_all(end[0], 5);
	wire.sent = 0;
	send_all(end[0], 20);
	assert_int_equal(wire.sent, TCP_REC_HDR_B + 20 + GX_GCM_TAG_B);
	for (size_t i = 0; i < wire.sent; i++)
		snprintf(is + 2 * i, 3, "%02x", wire.b[i]);
	assert_string_equal(is, want);
	ends_close(end);
}

/* The kernel has a part of a record: the link hears of its bytes when all of it has left, and may have
 * others in their place by then. */
static void send__counts_what_has_left(void **state)
{
	struct iovec iov = {src, 1000}, other = {dst, 1000};
	struct tcp_seal *end[2];

	wire_reset(3, 500);
	ends_open(end);
	assert_int_equal(tcp_seal_send(end[0], -1, wire_send, &iov, 1, 1), -EAGAIN);
	assert_int_equal(recv_some(end[1], 1000), -EAGAIN);
	assert_int_equal(tcp_seal_send(end[0], -1, wire_send, &other, 1, 1), -EAGAIN);
	assert_int_equal(tcp_seal_send(end[0], -1, wire_send, &other, 1, 1), 1000);
	wire.most = WIRE_B;
	assert_int_equal(recv_some(end[1], STREAM_B), 1000);
	assert_memory_equal(dst, src, 1000);
	ends_close(end);
}

/* Without the next key a phase goes on to the limit of a key, and no further. */
static void send__ends_at_the_limit(void **state)
{
	struct iovec iov = {src, 100};
	struct tcp_seal *end[2];

	wire_reset(4, WIRE_B);
	ends_open(end);
	end[0]->tx.keys.nr = 1;
	end[0]->tx.phase_nr = end[0]->tx.nr - AUTH_END_NRS + TCP_RECS;
	atomic_store(&end[0]->tx.keys.made, 1);
	assert_int_equal(tcp_seal_send(end[0], -1, wire_send, &iov, 1, 1), 100);
	assert_int_equal(tcp_seal_send(end[0], -1, wire_send, &iov, 1, 1), -EKEYEXPIRED);
	assert_int_equal(recv_some(end[1], 200), 100);
	ends_close(end);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(stream__any_pieces),
		cmocka_unit_test(stream__phases),
		cmocka_unit_test(record__wrong_bits),
		cmocka_unit_test(record__not_the_next_one),
		cmocka_unit_test(record__known_answer),
		cmocka_unit_test(send__counts_what_has_left),
		cmocka_unit_test(send__ends_at_the_limit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
