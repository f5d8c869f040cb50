/* SPDX-License-Identifier: Apache-2.0 */
/* Little-endian integers in bytes, at any address. */
#ifndef GX_LE_H
#define GX_LE_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t le16_get(const uint8_t *b)
{
	uint16_t v;

	memcpy(&v, b, sizeof(v));
	return le16toh(v);
}

static inline uint32_t le32_get(const uint8_t *b)
{
	uint32_t v;

	memcpy(&v, b, sizeof(v));
	return le32toh(v);
}

static inline uint64_t le64_get(const uint8_t *b)
{
	uint64_t v;

	memcpy(&v, b, sizeof(v));
	return le64toh(v);
}

static inline void le16_put(uint8_t *b, uint16_t v)
{
	v = htole16(v);
	memcpy(b, &v, sizeof(v));
}

static inline void le32_put(uint8_t *b, uint32_t v)
{
	v = htole32(v);
	memcpy(b, &v, sizeof(v));
}

static inline void le64_put(uint8_t *b, uint64_t v)
{
	v = htole64(v);
	memcpy(b, &v, sizeof(v));
}

#endif
