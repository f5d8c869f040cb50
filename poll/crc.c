// SPDX-License-Identifier: Apache-2.0
/*
 * CRC-32C by ISA-L, which picks the variant for this CPU, and a copy into a slot that sums its bytes
 * on the way. A constructor chooses the variant of that. Polling cores call them for headers and
 * payloads of packets. Any thread may.
 */
#include "gx_internal/base.h"

#include <isa-l.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define CRC_STEP_MAX (1u << 30) /* ISA-L takes the length as an int */
#define CRC_COPY_B   4096	/* copied, then summed out of the first-level cache */

/* ISA-L's variant for AVX-512 leaves the upper halves of the vector registers in use. The next
 * instruction of SSE then waits, for 126 ns on a Xeon of 2024, and a packet has two CRCs. */
static inline void crc_registers_clean(void)
{
#ifdef __x86_64__
	if (__builtin_cpu_supports("avx"))
		__asm__ volatile("vzeroupper");
#endif
}

uint32_t gx_crc32c(uint32_t crc, const void *buf, size_t len)
{
	const uint8_t *p = buf;

	/* ISA-L inverts the CRC neither at its start nor at its end; RFC 3720 does both. */
	crc = ~crc;
	while (len > 0) {
		size_t n = GX_MIN(len, (size_t)CRC_STEP_MAX);

		/* ISA-L's prototype lacks const; it only reads. */
		crc = crc32_iscsi((unsigned char *)(uintptr_t)p, (int)n, crc);
		p += n;
		len -= n;
	}
	crc_registers_clean();
	return ~crc;
}

static uint32_t copy_crc_steps(void *dst, const void *src, size_t len)
{
	const uint8_t *s = src;
	uint8_t *d = dst;
	uint32_t crc = 0;

	for (size_t n; len > 0; len -= n, d += n, s += n) {
		n = GX_MIN(len, (size_t)CRC_COPY_B);
		gx_copy_slot(d, s, n);
		crc = gx_crc32c(crc, s, n);
	}
	return crc;
}

uint32_t (*gx_copy_slot_crc)(void *dst, const void *src, size_t len) = copy_crc_steps;

#if defined(__x86_64__)

/*
 * The bytes are a polynomial over GF(2), bits reversed. Four accumulators of 512 bits take 256 bytes a
 * turn: what they hold is worth the same, modulo the CRC's polynomial, if each half of a lane of 128
 * bits is multiplied by a power of x and added to the lane @bits further on. The constants are x^(bits
 * + 32) and x^(bits - 32) modulo the polynomial, bits reversed, one bit up. (Gopal et al., "Fast CRC
 * Computation for Generic Polynomials Using PCLMULQDQ", Intel 2009; with four lanes in a register.)
 */
#define CRC_VECTOR    __attribute__((target("avx512f,vpclmulqdq,sse4.2")))
#define CRC_VECTOR_IN static inline __attribute__((always_inline)) CRC_VECTOR
#define CRC_VECTOR_B  256
#define CRC_AHEAD_B   8192 /* how far ahead the core fetches the source, as gx_copy_slot() does */

CRC_VECTOR_IN __m512i crc_by(uint64_t low, uint64_t high)
{
	return _mm512_broadcast_i32x4(_mm_set_epi64x((long long)high, (long long)low));
}

/* @a, @bits further on, and @b. */
CRC_VECTOR_IN __m512i crc_fold(__m512i a, __m512i by, __m512i b)
{
	return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(a, by, 0x00),
					 _mm512_clmulepi64_epi128(a, by, 0x11), b, 0x96);
}

/* Four lanes become one, and that the CRC. */
CRC_VECTOR_IN uint32_t crc_lanes(__m512i a)
{
	__m512i by = _mm512_set_epi64(0, 0, 0x14cd00bd6, 0x0f20c0dfe, /* 128 bits */
				      0x0ba4fc28e, 0x1384aa63a,	      /* 256 */
				      0x1d82c63da, 0x01c291d04);      /* 384 */
	__m512i b = _mm512_xor_si512(_mm512_clmulepi64_epi128(a, by, 0x00),
				     _mm512_clmulepi64_epi128(a, by, 0x11));
	__m128i r = _mm_xor_si128(_mm512_castsi512_si128(b), _mm512_extracti32x4_epi32(b, 1));
	uint64_t half[2];

	r = _mm_xor_si128(r, _mm512_extracti32x4_epi32(b, 2));
	r = _mm_xor_si128(r, _mm512_extracti32x4_epi32(a, 3));
	_mm_storeu_si128((__m128i *)half, r);
	return (uint32_t)_mm_crc32_u64(_mm_crc32_u64(0, half[0]), half[1]);
}

CRC_VECTOR_IN void crc_turn(uint8_t *d, const uint8_t *s, __m512i v[4])
{
	for (unsigned i = 0; i < CRC_VECTOR_B; i += 64)
		_mm_prefetch((const char *)s + CRC_AHEAD_B + i, _MM_HINT_T1);
	for (unsigned i = 0; i < 4; i++)
		v[i] = _mm512_loadu_si512(s + 64 * (size_t)i);
	for (unsigned i = 0; i < 4; i++)
		_mm512_storeu_si512(d + 64 * (size_t)i, v[i]);
}

static CRC_VECTOR uint32_t copy_crc_vector(void *dst, const void *src, size_t len)
{
	__m512i a[4], v[4], by = crc_by(0x0dcb17aa4, 0x0b9e02b86); /* 2,048 bits */
	const uint8_t *s = src;
	uint8_t *d = dst;
	uint32_t crc;

	if (len < CRC_VECTOR_B)
		return copy_crc_steps(dst, src, len);
	crc_turn(d, s, a);
	a[0] = _mm512_xor_si512(a[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(-1)));
	for (len -= CRC_VECTOR_B; len >= CRC_VECTOR_B; len -= CRC_VECTOR_B) {
		d += CRC_VECTOR_B;
		s += CRC_VECTOR_B;
		crc_turn(d, s, v);
		for (unsigned i = 0; i < 4; i++)
			a[i] = crc_fold(a[i], by, v[i]);
	}
	a[3] = crc_fold(a[0], crc_by(0x0a87ab8a8, 0x0ab7aff2a), a[3]);		 /* 1,536 bits */
	a[2] = crc_fold(a[1], crc_by(0x06992cea2, 0x00d3b6092),			 /* 1,024 bits */
			crc_fold(a[2], crc_by(0x0740eef02, 0x09e4addf8), a[3])); /* 512 bits */
	crc = ~crc_lanes(a[2]);
	if (!len)
		return crc;
	gx_copy(d + CRC_VECTOR_B, s + CRC_VECTOR_B, len);
	return gx_crc32c(crc, s + CRC_VECTOR_B, len);
}

static bool crc_has_vector(void)
{
	return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
}

/* AMD fills slots better than by a loop of stores: gx_copy_slot(). */
bool gx_copy_crc_use(const char *name)
{
	bool vector;

	__builtin_cpu_init();
	vector = crc_has_vector() && (name ? !strcmp(name, "vector") : __builtin_cpu_is("intel"));
	if (name && !vector && strcmp(name, "steps") != 0)
		return false;
	gx_copy_slot_crc = vector ? copy_crc_vector : copy_crc_steps;
	return true;
}

static void __attribute__((constructor)) copy_crc_choose(void)
{
	gx_copy_crc_use(NULL);
}

#else

bool gx_copy_crc_use(const char *name)
{
	return !name || !strcmp(name, "steps");
}

#endif
