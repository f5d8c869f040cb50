/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SHA-256 of bytes that the caller adds in pieces. digest.c alone uses OpenSSL among the tools.
 */
#ifndef DIGEST_H
#define DIGEST_H

#include <stddef.h>

#define DIGEST_HEX_MAX 65 /* 64 digits and the final 0 */

struct digest;

/** digest_open() - Return: NULL: no memory. */
struct digest *digest_open(void);
/** digest_add() - Return: 0, -EIO. */
int digest_add(struct digest *d, const void *buf, size_t len);
/** digest_close() - Write the digest in hexadecimal; free @d. @hex may be NULL. Return: 0, -EIO. */
int digest_close(struct digest *d, char hex[DIGEST_HEX_MAX]);

#endif
