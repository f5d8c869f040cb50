// SPDX-License-Identifier: Apache-2.0
/*
 * SHA-256 by OpenSSL's EVP (see digest.h).
 */
#include "common/digest.h"

#include <errno.h>
#include <stdio.h>

#include <openssl/evp.h>

/* struct digest is OpenSSL's context under our name: no allocation of its own. */
static EVP_MD_CTX *digest_ctx(struct digest *d)
{
	return (EVP_MD_CTX *)d;
}

struct digest *digest_open(void)
{
	EVP_MD_CTX *ctx = EVP_MD_CTX_new();

	if (ctx && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) != 1) {
		EVP_MD_CTX_free(ctx);
		ctx = NULL;
	}
	return (struct digest *)ctx;
}

int digest_add(struct digest *d, const void *buf, size_t len)
{
	return EVP_DigestUpdate(digest_ctx(d), buf, len) == 1 ? 0 : -EIO;
}

int digest_close(struct digest *d, char hex[DIGEST_HEX_MAX])
{
	unsigned char md[EVP_MAX_MD_SIZE];
	unsigned int len = 0;
	int ret = 0;

	if (hex) {
		if (EVP_DigestFinal_ex(digest_ctx(d), md, &len) != 1 || len != 32)
			ret = -EIO;
		for (unsigned i = 0; !ret && i < len; i++)
			snprintf(hex + 2 * i, 3, "%02x", md[i]);
	}
	EVP_MD_CTX_free(digest_ctx(d));
	return ret;
}
