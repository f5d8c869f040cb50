/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a key file. What is read is well formed, and written it reads the same; no error shows
 * a secret. Run by libFuzzer, or by fuzz_main.c as an ordinary test.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "auth/auth.h"

#define CHECK(cond)                                                                                \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			fprintf(stderr, "fuzz_auth:%d: %s does not hold\n", __LINE__, #cond);      \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static char text[AUTH_FILE_MAX_B];
	struct gx_auth_key key, again;
	size_t len;

	if (auth_key_parse((const char *)data, size, "x", &key)) {
		CHECK(!strncmp(gx_error(), "key file x, line ", 17));
		CHECK(!strstr(gx_error(), "00112233")); /* of the corpus */
		return 0;
	}
	if (auth_key_check(&key)) {
		CHECK(!strstr(gx_error(), "00112233"));
		return 0;
	}
	CHECK(key.name[0] && memchr(key.name, 0, sizeof(key.name)));
	CHECK(memchr(key.regions, 0, sizeof(key.regions)));
	CHECK(key.access && !(key.access & ~3u));
	len = auth_key_text(&key, text);
	CHECK(len && len < sizeof(text) &&
	      len <= size + 16); /* an access may be left out, a 1G spelled out */
	CHECK(auth_key_parse(text, len, "x", &again) == 0 && auth_key_check(&again) == 0);
	CHECK(!memcmp(&key, &again, sizeof(key)));
	return 0;
}
