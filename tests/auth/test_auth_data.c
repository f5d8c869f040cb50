// SPDX-License-Identifier: Apache-2.0
/*
 * Keys of data: the answers are from Python's hmac and from its package cryptography, in a program
 * that gets client_in's key of RFC 9001 A.1 right with that label.
 */
#include "auth/auth_data.h"

#include <setjmp.h>
#include <string.h>

#include <cmocka.h>

struct answer {
	uint8_t salt[GX_GCM_NONCE_B],
		tag[GX_GCM_TAG_B]; /* of nothing, with the salt as the nonce */
};

static const struct answer answers[] = {
	{{0x79, 0xc8, 0x3f, 0x97, 0x2e, 0x2b, 0x81, 0x2f, 0x36, 0x9d, 0xb7, 0x0b},
	 {0x70, 0x14, 0x27, 0xa0, 0x29, 0x11, 0xc9, 0x36, 0xb5, 0x35, 0x74, 0xa9, 0x01, 0xcc, 0xb4,
	  0xaf}},
	{{0x93, 0x45, 0x25, 0xa1, 0x9b, 0xf1, 0xf4, 0xa2, 0xf9, 0x8b, 0x84, 0x64},
	 {0xd0, 0xc8, 0xef, 0xed, 0x10, 0xbf, 0xe6, 0x16, 0x85, 0xac, 0xb8, 0x71, 0x21, 0xae, 0xa6,
	  0x22}},
	{{0xff, 0x8b, 0x2b, 0x87, 0xbb, 0xef, 0xd3, 0xbc, 0x1b, 0xbb, 0x68, 0x9e},
	 {0xf6, 0xb6, 0xd7, 0xee, 0x68, 0xbf, 0x07, 0xda, 0x0c, 0xe3, 0x4f, 0xcb, 0xb8, 0xad, 0xc2,
	  0x19}},
};
static const uint8_t last[8] = {0xb1, 0x00, 0xa7, 0x4a, 0xb4, 0xce, 0x98, 0x7b};

static void phase_next__known_answers(void **state)
{
	struct auth_phase phase = {0}, zero = {0};
	struct auth_secret s;
	uint8_t tag[GX_GCM_TAG_B];

	for (unsigned i = 0; i < sizeof(s.b); i++)
		s.b[i] = (uint8_t)i;
	for (unsigned i = 0; i < GX_ARRAY_SIZE(answers); i++) {
		assert_int_equal(auth_phase_next(&s, &phase), 0);
		assert_memory_equal(phase.salt, answers[i].salt, sizeof(phase.salt));
		gx_gcm_seal(&phase.key, phase.salt, (struct gx_gcm_aad){0}, NULL, NULL, 0, tag);
		assert_memory_equal(tag, answers[i].tag, sizeof(tag));
		auth_phase_wipe(&phase);
		assert_memory_equal(&phase, &zero, sizeof(phase));
	}
	assert_memory_equal(s.b, last, sizeof(last));
	auth_phase_wipe(&phase);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(phase_next__known_answers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
