// SPDX-License-Identifier: Apache-2.0
/*
 * Exchanges of keys of data: known answers (Python's package cryptography, and its hmac), what stays in
 * memory, and two ends that go from phase to phase; one that is slow, silent, or lies.
 */
#include "auth/auth_mix.h"
#include "kit/common_fork.h"

#include <errno.h>
#include <setjmp.h>
#include <string.h>

#include <cmocka.h>

#define SECOND 1000000000ull

/* ---- an exchange ---- */

static const uint8_t public_b[AUTH_HALF_B] = {0x35, 0x80, 0x72, 0xd6, 0x36, 0x58, 0x80, 0xd1,
					      0xae, 0xea, 0x32, 0x9a, 0xdf, 0x91, 0x21, 0x38,
					      0x38, 0x51, 0xed, 0x21, 0xa2, 0x8e, 0x3b, 0x75,
					      0xe9, 0x65, 0xd0, 0xd2, 0xcd, 0x16, 0x62, 0x54};
static const uint8_t shared[AUTH_SECRET_B] = {0x96, 0x63, 0xaa, 0x1d, 0xa9, 0x7e, 0x84, 0x8a,
					      0x91, 0x4a, 0x43, 0x6d, 0x04, 0x16, 0x3d, 0xfb,
					      0xb8, 0x91, 0x78, 0xf1, 0x07, 0xf1, 0xb5, 0xb7,
					      0x7e, 0xd3, 0x85, 0x42, 0x03, 0x38, 0x28, 0x54};
static const uint8_t mixed[AUTH_SECRET_B] = {0xde, 0x50, 0xb7, 0x41, 0xfd, 0x23, 0xe9, 0x26,
					     0x22, 0xff, 0x29, 0x64, 0x81, 0x15, 0xce, 0xb2,
					     0xa3, 0xd9, 0x1e, 0x57, 0x33, 0x67, 0x5d, 0xba,
					     0x90, 0x1d, 0x72, 0xdc, 0xab, 0x15, 0xb9, 0x62};

static void count_up(uint8_t *b, uint8_t from)
{
	for (unsigned i = 0; i < AUTH_SECRET_B; i++)
		b[i] = (uint8_t)(from + i);
}

static void meet__known_answer(void **state)
{
	struct auth_secret own, s, zero = {0};

	count_up(own.b, 0);
	count_up(s.b, 64);
	assert_int_equal(auth_half_meet(own.b, public_b), 0);
	assert_memory_equal(own.b, shared, sizeof(shared));
	assert_int_equal(auth_secret_mix(&s, &own), 0);
	assert_memory_equal(s.b, mixed, sizeof(mixed));
	assert_memory_equal(&own, &zero, sizeof(own));
}

static void meet__both_have_the_same(void **state)
{
	struct auth_secret a, b;
	uint8_t half_a[AUTH_HALF_B], half_b[AUTH_HALF_B];

	assert_int_equal(auth_half_new(a.b, half_a), 0);
	assert_int_equal(auth_half_new(b.b, half_b), 0);
	assert_memory_not_equal(half_a, half_b, AUTH_HALF_B);
	assert_int_equal(auth_half_meet(a.b, half_b), 0);
	assert_int_equal(auth_half_meet(b.b, half_a), 0);
	assert_memory_equal(&a, &b, sizeof(a));
}

/* Points of small order: everybody would know what comes. */
static void meet__nothing_secret(void **state)
{
	uint8_t half[AUTH_HALF_B] = {0};
	struct auth_secret own, zero = {0};

	for (uint8_t first = 0; first < 2; first++) {
		half[0] = first;
		count_up(own.b, 1);
		assert_int_equal(auth_half_meet(own.b, half), -EPROTO);
		assert_memory_equal(&own, &zero, sizeof(own));
	}
}

/* OpenSSL has had private halves and what came of them: it has kept none. */
static void meet__leaves_nothing(void **state)
{
	struct auth_secret own, other;
	uint8_t half[AUTH_HALF_B], none[AUTH_HALF_B];
	struct fork_needle needles[3];

	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(auth_half_new(other.b, half), 0);
		assert_int_equal(auth_half_new(own.b, none), 0);
		needles[0] = fork_needle(own.b);
		assert_int_equal(auth_half_meet(own.b, half), 0);
		needles[1] = fork_needle(own.b);
		assert_int_equal(fork_look(needles, 2) & 2, 2);
		count_up(other.b, (uint8_t)i);
		assert_int_equal(auth_secret_mix(&other, &own), 0);
		needles[2] = fork_needle(other.b);
		explicit_bzero(&other, sizeof(other));
		assert_int_equal(fork_look(needles, 3), 0);
	}
}

/* ---- two ends of a way ---- */

static struct end {
	struct gx_conn c;
	struct auth_ring tx, rx;
	struct auth_phase tx_slot[2], rx_slot[4];
	unsigned said, took;
	bool deaf;
	uint8_t word[AUTH_WORD_B]; /* the last one that it said */
} ends[2];
static uint64_t now_ns;

static void end_say(struct gx_conn *c, const uint8_t *b, uint32_t len)
{
	struct end *from = GX_CONTAINER_OF(c, struct end, c), *to = &ends[from == ends];
	struct auth_word w;

	from->said++;
	assert_int_equal(len, AUTH_WORD_B);
	memcpy(from->word, b, len);
	assert_int_equal(auth_word_get(b, len, &w), 0);
	assert_int_equal(w.lane, 7);
	/* Where there is room for the key, it is there before the answer is. */
	if (w.what == AUTH_ANSWER && from->rx.over + from->rx.nr > w.nr * AUTH_MIX_PHASES)
		assert_true(auth_ring_has(&from->rx, w.nr * AUTH_MIX_PHASES));
	if (to->deaf)
		return;
	to->took++;
	assert_int_equal(auth_rings_take(&to->tx, &to->rx, &w), 0);
}

static int end_tick(struct end *e)
{
	struct auth_tick t = {.c = &e->c, .say = end_say, .now_ns = now_ns, .lane = 7};

	return auth_rings_tick(&e->tx, &e->rx, &t);
}

static void ends_tick(void)
{
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(end_tick(&ends[i & 1]), 0);
}

static int ends_open(void **state)
{
	now_ns = SECOND;
	auth_mix_gap_ns = 0;
	for (unsigned i = 0; i < 2; i++) {
		struct end *e = &ends[i];

		memset(e, 0, sizeof(*e));
		e->c.agreed.peer_timeout_ns = 90 * SECOND;
		e->tx.nr = 2;
		e->tx.phase = e->tx_slot;
		e->rx.nr = 4;
		e->rx.phase = e->rx_slot;
		count_up(e->tx.secret.b, i ? 100 : 0);
		count_up(e->rx.secret.b, i ? 0 : 100);
	}
	return 0;
}

static int ends_close(void **state)
{
	auth_mix_gap_ns = SECOND;
	for (unsigned i = 0; i < 2; i++) {
		auth_ring_wipe(&ends[i].tx);
		auth_ring_wipe(&ends[i].rx);
	}
	return 0;
}

/* Has @to the key of @phase that @from has? */
static bool same_key(struct end *from, struct end *to, uint32_t phase)
{
	const struct auth_phase *a = &from->tx_slot[phase % 2], *b = &to->rx_slot[phase % 4];
	uint8_t tag[GX_GCM_TAG_B];

	assert_true(auth_ring_has(&from->tx, phase) && auth_ring_has(&to->rx, phase));
	gx_gcm_seal(&a->key, a->salt, (struct gx_gcm_aad){0}, NULL, NULL, 0, tag);
	return gx_gcm_open(&b->key, b->salt, (struct gx_gcm_aad){0}, NULL, NULL, 0, tag);
}

/* In each phase both have its key, the receiver before the sender; and after a phase of the exchange it
 * is not what the secrets before would give. */
static void ring__both_go_on(void **state)
{
	struct auth_secret alone = ends[0].tx.secret;
	struct auth_phase p = {0};

	for (uint32_t phase = 0; phase < 10 * AUTH_MIX_PHASES; phase++) {
		uint8_t salt[GX_GCM_NONCE_B];

		ends_tick();
		assert_true(same_key(&ends[0], &ends[1], phase));
		assert_true(same_key(&ends[1], &ends[0], phase));
		memcpy(salt, ends[0].tx_slot[phase % 2].salt, sizeof(salt));
		assert_int_equal(auth_phase_next(&alone, &p), 0);
		assert_int_equal(!memcmp(salt, p.salt, sizeof(salt)), phase < AUTH_MIX_PHASES);
		auth_phase_wipe(&p);
		for (unsigned i = 0; i < 2; i++) {
			auth_ring_leave(&ends[i].tx, phase + 1);
			auth_ring_leave(&ends[i].rx, phase);
		}
	}
	assert_true(ends[0].said >= 18 && ends[0].said <= 20); /* asks and answers */
}

/* The sender goes no further than it has keys of exchanges, and says so when it has waited for long. */
static void ring__no_answer(void **state)
{
	struct end *e = &ends[0];

	ends[1].deaf = true;
	for (uint32_t phase = 0; phase < 3; phase++) {
		assert_int_equal(end_tick(e), 0);
		auth_ring_leave(&e->tx, phase + 1);
	}
	assert_int_equal(end_tick(e), 0);
	assert_true(auth_ring_has(&e->tx, 3) && !auth_ring_has(&e->tx, 4));
	assert_int_equal(e->said, 1);
	now_ns += 90 * SECOND - 1;
	assert_int_equal(end_tick(e), 0);
	assert_int_equal(e->said, 1);
	now_ns++;
	assert_int_equal(end_tick(e), -EKEYEXPIRED);
}

/* The core of @e sends in @phase. */
static void tx_go(struct end *e, uint32_t phase)
{
	for (uint32_t i = 0; i < phase; i++) {
		assert_int_equal(auth_ring_make(&e->tx), 0);
		auth_ring_leave(&e->tx, i + 1);
	}
}

/* A receiver whose own phases are behind keeps what came of the exchange until it gets there. */
static void ring__receiver_is_behind(void **state)
{
	tx_go(&ends[0], 2);
	assert_int_equal(end_tick(&ends[0]), 0); /* makes 2 and 3, and asks */
	ends[1].rx.nr = 3;
	assert_int_equal(end_tick(&ends[1]), 0);
	assert_false(auth_ring_has(&ends[1].rx, 3));
	assert_true(auth_ring_has(&ends[0].tx, 3));
	auth_ring_leave(&ends[0].tx, 3);
	auth_ring_leave(&ends[1].rx, 3);
	ends[1].rx.nr = 4;
	ends_tick();
	assert_true(same_key(&ends[0], &ends[1], 4));
}

static int say_to(struct end *to, uint8_t what, uint32_t nr, const uint8_t *half)
{
	struct auth_word w = {.what = what, .lane = 7, .nr = nr};

	memcpy(w.half, half, sizeof(w.half));
	return auth_rings_take(&to->tx, &to->rx, &w);
}

static void word__out_of_turn(void **state)
{
	struct end *e = &ends[0];
	struct auth_word w;

	assert_int_equal(say_to(e, AUTH_ANSWER, 1, public_b), -EPROTO); /* nobody asked */
	assert_int_equal(say_to(e, AUTH_ASK, 0, public_b), -EPROTO);
	assert_int_equal(say_to(e, AUTH_ASK, 2, public_b), -EPROTO);
	assert_int_equal(say_to(e, AUTH_ASK, 1, public_b), 0);
	assert_int_equal(say_to(e, AUTH_ASK, 1, public_b), -EPROTO); /* twice */
	ends[1].deaf = true;
	assert_int_equal(end_tick(e), 0);
	assert_int_equal(e->said, 1);
	assert_int_equal(say_to(e, AUTH_ASK, 1, public_b), -EPROTO); /* it has been answered */
	for (unsigned at = 0; at < 4; at++) {
		e->word[at] ^= 4;
		assert_int_equal(auth_word_get(e->word, AUTH_WORD_B, &w), -EPROTO);
		e->word[at] ^= 4;
	}
	assert_int_equal(auth_word_get(e->word, AUTH_WORD_B - 1, &w), -EPROTO);
	assert_int_equal(auth_word_get(e->word, AUTH_WORD_B, &w), 0);
}

static void word__nothing_secret(void **state)
{
	static const uint8_t zero[AUTH_HALF_B];

	assert_int_equal(say_to(&ends[0], AUTH_ASK, 1, zero), 0);
	assert_int_equal(end_tick(&ends[0]), -EPROTO);
	assert_int_equal(ends[0].said, 0);
	ends[0].deaf = ends[1].deaf = true;
	tx_go(&ends[1], 2);
	assert_int_equal(end_tick(&ends[1]), 0); /* makes 2 and 3 */
	assert_int_equal(ends[1].said, 1);
	assert_int_equal(say_to(&ends[1], AUTH_ANSWER, 1, zero), -EPROTO);
}

/* A peer that asks and begins phases without end costs one exchange in a while. */
static void word__asked_without_end(void **state)
{
	struct end *e = &ends[0];
	unsigned asked = 0;

	auth_mix_gap_ns = SECOND;
	ends[1].deaf = true;
	for (uint32_t ms = 0; ms < 10000; ms += 20) {
		if (!e->rx.mix.asked && !e->rx.mix.met)
			asked += !say_to(e, AUTH_ASK, e->rx.mix.nr + 1, public_b);
		assert_int_equal(end_tick(e), 0);
		auth_ring_leave(&e->rx, atomic_load(&e->rx.made) - 1);
		now_ns += 20 * SECOND / 1000;
	}
	assert_true(asked >= 10 && asked <= 11);
	assert_true(e->said >= 10 && e->said <= 11);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, ends_open, ends_close)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(meet__known_answer),
		cmocka_unit_test(meet__both_have_the_same),
		cmocka_unit_test(meet__nothing_secret),
		cmocka_unit_test(meet__leaves_nothing),
		TEST(ring__both_go_on),
		TEST(ring__no_answer),
		TEST(ring__receiver_is_behind),
		TEST(word__out_of_turn),
		TEST(word__nothing_secret),
		TEST(word__asked_without_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
