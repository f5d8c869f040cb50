// SPDX-License-Identifier: Apache-2.0
/*
 * The data path's memcpy, and one whose stores bypass the cache. A constructor chooses the variant
 * for this CPU once. Before that, and on other machines, libc's memcpy serves. Any thread.
 *
 * The sizes below were measured with cold source and destination, as a polling core meets them:
 * 32-byte accesses beat 64-byte ones where source and destination differ in alignment, and rep movs
 * wins from 16 KiB. By quadwords, for the words that gx_copy() promises: where the page after the
 * source is not mapped, Emerald Rapids stores the last bytes of a rep movsb one by one,
 * and libc's memcpy is one. Both are as fast there (16 KiB to 1 MiB, cold).
 */
#include "gx_internal/base.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#define COPY_REP_MIN	16384 /* rep movsq from here, if the CPU says that it is fast */
#define COPY_FENCED_MIN 8192  /* below, the fence costs more than bypassing the cache saves */
#define COPY_SLOT_MIN	4096  /* below, both ways to fill a slot cost more than they save */
#define COPY_AHEAD_B	8192  /* how far ahead the core fetches a slot's source */
#define COPY_STREAM_MIN 256   /* below, most of the copy would be head and tail */

static void copy_libc(void *dst, const void *src, size_t len)
{
	memcpy(dst, src, len);
}

static void copy_stream_fenced(void *dst, const void *src, size_t len)
{
	/* Plain stores need no fence on x86. */
	if (len < COPY_FENCED_MIN) {
		gx_copy(dst, src, len);
		return;
	}
	gx_copy_stream_nofence(dst, src, len);
	gx_store_fence();
}

static void copy_slot_plain(void *dst, const void *src, size_t len)
{
	gx_copy(dst, src, len);
}

static const char *copy_name = "generic"; /* frozen, but for gx_copy_use() */

void (*gx_copy)(void *dst, const void *src, size_t len) = copy_libc;
void (*gx_copy_stream)(void *dst, const void *src, size_t len) = copy_stream_fenced;
void (*gx_copy_stream_nofence)(void *dst, const void *src, size_t len) = copy_libc;

void (*gx_copy_slot)(void *dst, const void *src, size_t len) = copy_slot_plain;

const char *gx_copy_name(void)
{
	return copy_name;
}

#if defined(__x86_64__)

#define COPY_INLINE static inline __attribute__((always_inline))
#define COPY_AVX2   __attribute__((target("avx2")))
#define COPY_AVX512 __attribute__((target("avx2,avx512f")))

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COPY_REP false /* they do not check assembly */
#else
#define COPY_REP true
#endif

typedef uint64_t copy_u64 __attribute__((aligned(1), may_alias));
typedef uint32_t copy_u32 __attribute__((aligned(1), may_alias));
typedef uint16_t copy_u16 __attribute__((aligned(1), may_alias));

static size_t copy_rep_min = SIZE_MAX; /* frozen, but for gx_copy_use(); SIZE_MAX: never */

/* 0 to 15 bytes: the first and the last word, which may overlap. Loads come before stores. */
COPY_INLINE void copy_tiny(uint8_t *d, const uint8_t *s, size_t len)
{
	if (len >= 8) {
		uint64_t a = *(const copy_u64 *)s, b = *(const copy_u64 *)(s + len - 8);

		*(copy_u64 *)d = a;
		*(copy_u64 *)(d + len - 8) = b;
	} else if (len >= 4) {
		uint32_t a = *(const copy_u32 *)s, b = *(const copy_u32 *)(s + len - 4);

		*(copy_u32 *)d = a;
		*(copy_u32 *)(d + len - 4) = b;
	} else if (len >= 2) {
		uint16_t a = *(const copy_u16 *)s, b = *(const copy_u16 *)(s + len - 2);

		*(copy_u16 *)d = a;
		*(copy_u16 *)(d + len - 2) = b;
	} else if (len == 1) {
		*d = *s;
	}
}

/* 0 to 64 bytes, in the same way. */
COPY_INLINE void copy_small(uint8_t *d, const uint8_t *s, size_t len)
{
	__m128i a, b, c, e;

	if (len < 16) {
		copy_tiny(d, s, len);
		return;
	}
	a = _mm_loadu_si128((const __m128i *)s);
	b = _mm_loadu_si128((const __m128i *)(s + len - 16));
	if (len > 32) {
		c = _mm_loadu_si128((const __m128i *)(s + 16));
		e = _mm_loadu_si128((const __m128i *)(s + len - 32));
		_mm_storeu_si128((__m128i *)(d + 16), c);
		_mm_storeu_si128((__m128i *)(d + len - 32), e);
	}
	_mm_storeu_si128((__m128i *)d, a);
	_mm_storeu_si128((__m128i *)(d + len - 16), b);
}

static void copy_rep(uint8_t *d, const uint8_t *s, size_t len)
{
	size_t words = len / 8;

	__asm__ volatile("rep movsq" : "+D"(d), "+S"(s), "+c"(words) : : "memory");
	copy_tiny(d, s, len % 8);
}

COPY_INLINE void copy_64_sse2(uint8_t *d, const uint8_t *s)
{
	__m128i a = _mm_loadu_si128((const __m128i *)s);
	__m128i b = _mm_loadu_si128((const __m128i *)(s + 16));
	__m128i c = _mm_loadu_si128((const __m128i *)(s + 32));
	__m128i e = _mm_loadu_si128((const __m128i *)(s + 48));

	_mm_storeu_si128((__m128i *)d, a);
	_mm_storeu_si128((__m128i *)(d + 16), b);
	_mm_storeu_si128((__m128i *)(d + 32), c);
	_mm_storeu_si128((__m128i *)(d + 48), e);
}

static void copy_sse2(void *dst, const void *src, size_t len)
{
	const uint8_t *s = src;
	uint8_t *d = dst;

	if (len <= 64) {
		copy_small(d, s, len);
		return;
	}
	if (len >= copy_rep_min) {
		copy_rep(d, s, len);
		return;
	}
	for (; len > 64; len -= 64, d += 64, s += 64)
		copy_64_sse2(d, s);
	copy_64_sse2(d + len - 64, s + len - 64);
}

/* Copies up to the first whole cache line of the destination. Return: bytes copied. */
COPY_INLINE size_t copy_stream_head(uint8_t *d, const uint8_t *s)
{
	size_t head = -(uintptr_t)d & (GX_CACHE_LINE - 1);

	copy_small(d, s, head);
	return head;
}

static void copy_stream_sse2(void *dst, const void *src, size_t len)
{
	const uint8_t *s = src;
	uint8_t *d = dst;
	size_t head;

	if (len < COPY_STREAM_MIN) {
		copy_sse2(dst, src, len);
		return;
	}
	head = copy_stream_head(d, s);
	for (d += head, s += head, len -= head; len >= 64; len -= 64, d += 64, s += 64) {
		for (unsigned i = 0; i < 64; i += 16)
			_mm_stream_si128((__m128i *)(d + i),
					 _mm_loadu_si128((const __m128i *)(s + i)));
	}
	copy_small(d, s, len);
}

COPY_INLINE COPY_AVX2 void copy_128_avx2(uint8_t *d, const uint8_t *s)
{
	__m256i a = _mm256_loadu_si256((const __m256i *)s);
	__m256i b = _mm256_loadu_si256((const __m256i *)(s + 32));
	__m256i c = _mm256_loadu_si256((const __m256i *)(s + 64));
	__m256i e = _mm256_loadu_si256((const __m256i *)(s + 96));

	_mm256_storeu_si256((__m256i *)d, a);
	_mm256_storeu_si256((__m256i *)(d + 32), b);
	_mm256_storeu_si256((__m256i *)(d + 64), c);
	_mm256_storeu_si256((__m256i *)(d + 96), e);
}

/* 64 to 128 bytes: the first 64 and the last 64. */
COPY_INLINE COPY_AVX2 void copy_128_max_avx2(uint8_t *d, const uint8_t *s, size_t len)
{
	__m256i a = _mm256_loadu_si256((const __m256i *)s);
	__m256i b = _mm256_loadu_si256((const __m256i *)(s + 32));
	__m256i c = _mm256_loadu_si256((const __m256i *)(s + len - 64));
	__m256i e = _mm256_loadu_si256((const __m256i *)(s + len - 32));

	_mm256_storeu_si256((__m256i *)d, a);
	_mm256_storeu_si256((__m256i *)(d + 32), b);
	_mm256_storeu_si256((__m256i *)(d + len - 64), c);
	_mm256_storeu_si256((__m256i *)(d + len - 32), e);
}

/* More than 128 bytes. */
COPY_INLINE COPY_AVX2 void copy_long_avx2(uint8_t *d, const uint8_t *s, size_t len)
{
	if (len >= copy_rep_min) {
		copy_rep(d, s, len);
		return;
	}
	for (; len > 128; len -= 128, d += 128, s += 128)
		copy_128_avx2(d, s);
	copy_128_avx2(d + len - 128, s + len - 128);
}

static COPY_AVX2 void copy_avx2(void *dst, const void *src, size_t len)
{
	if (len <= 64)
		copy_small(dst, src, len);
	else if (len <= 128)
		copy_128_max_avx2(dst, src, len);
	else
		copy_long_avx2(dst, src, len);
}

COPY_INLINE COPY_AVX2 void stream_64_avx2(uint8_t *d, const uint8_t *s)
{
	__m256i a = _mm256_loadu_si256((const __m256i *)s);
	__m256i b = _mm256_loadu_si256((const __m256i *)(s + 32));

	_mm256_stream_si256((__m256i *)d, a);
	_mm256_stream_si256((__m256i *)(d + 32), b);
}

static COPY_AVX2 void copy_stream_avx2(void *dst, const void *src, size_t len)
{
	const uint8_t *s = src;
	uint8_t *d = dst;
	size_t head;

	if (len < COPY_STREAM_MIN) {
		copy_avx2(dst, src, len);
		return;
	}
	head = copy_stream_head(d, s);
	for (d += head, s += head, len -= head; len >= 128; len -= 128, d += 128, s += 128) {
		stream_64_avx2(d, s);
		stream_64_avx2(d + 64, s + 64);
	}
	if (len >= 64) {
		stream_64_avx2(d, s);
		len -= 64, d += 64, s += 64;
	}
	copy_small(d, s, len);
}

static COPY_AVX512 void copy_avx512(void *dst, const void *src, size_t len)
{
	const uint8_t *s = src;
	uint8_t *d = dst;
	__m512i a, b;

	if (len < 64) {
		copy_small(d, s, len);
	} else if (len <= 128) {
		a = _mm512_loadu_si512(s);
		b = _mm512_loadu_si512(s + len - 64);
		_mm512_storeu_si512(d, a);
		_mm512_storeu_si512(d + len - 64, b);
	} else {
		copy_long_avx2(d, s, len);
	}
}

static COPY_AVX512 void copy_stream_avx512(void *dst, const void *src, size_t len)
{
	const uint8_t *s = src;
	uint8_t *d = dst;
	size_t head;

	if (len < COPY_STREAM_MIN) {
		copy_avx512(dst, src, len);
		return;
	}
	head = copy_stream_head(d, s);
	for (d += head, s += head, len -= head; len >= 64; len -= 64, d += 64, s += 64)
		_mm512_stream_si512((void *)d, _mm512_loadu_si512(s));
	copy_small(d, s, len);
}

/*
 * Two ways to fill a slot. AMD: rep movsb takes whole lines that another core has read, without
 * asking for their contents; a loop of stores asks first. It is 2.7 times as fast at 8 KiB between
 * cores that share no cache (a prototype of port_shm; not compared where they share one). Intel:
 * the source comes from memory, and the prefetchers stop at each page. Fetching 8 KiB ahead makes a
 * core 1.2 times as fast as rep movsb or a plain loop (Sapphire Rapids, 64 hot slots, 1 and 4
 * cores: 13.5 against 11.0 GB/s).
 */
static void copy_slot_rep(void *dst, const void *src, size_t len)
{
	if (len >= COPY_SLOT_MIN)
		__asm__ volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(len) : : "memory");
	else
		gx_copy(dst, src, len);
}

static COPY_AVX512 void copy_slot_ahead(void *dst, const void *src, size_t len)
{
	const uint8_t *s = src;
	uint8_t *d = dst;

	if (len < COPY_SLOT_MIN) {
		copy_avx512(dst, src, len);
		return;
	}
	for (; len >= 256; len -= 256, d += 256, s += 256) {
		__m512i a, b, c, e;

		for (unsigned i = 0; i < 256; i += 64)
			_mm_prefetch((const char *)s + COPY_AHEAD_B + i, _MM_HINT_T1);
		a = _mm512_loadu_si512(s);
		b = _mm512_loadu_si512(s + 64);
		c = _mm512_loadu_si512(s + 128);
		e = _mm512_loadu_si512(s + 192);
		_mm512_storeu_si512(d, a);
		_mm512_storeu_si512(d + 64, b);
		_mm512_storeu_si512(d + 128, c);
		_mm512_storeu_si512(d + 192, e);
	}
	copy_avx512(d, s, len);
}

/* Enhanced rep movsb: bit 9 of EBX in leaf 7. */
static bool copy_rep_is_fast(void)
{
	unsigned a, b, c, d;

	return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & (1u << 9));
}

static bool copy_has_avx2(void)
{
	return __builtin_cpu_supports("avx2");
}

static bool copy_has_avx512(void)
{
	return __builtin_cpu_supports("avx512f") && copy_has_avx2();
}

static bool copy_has_sse2(void)
{
	return true;
}

/* The best first. */
static const struct copy_variant {
	const char *name;
	bool (*is_here)(void);
	void (*copy)(void *dst, const void *src, size_t len);
	void (*stream)(void *dst, const void *src, size_t len);
} copy_variants[] = {
	{"avx512", copy_has_avx512, copy_avx512, copy_stream_avx512},
	{"avx2", copy_has_avx2, copy_avx2, copy_stream_avx2},
	{"sse2", copy_has_sse2, copy_sse2, copy_stream_sse2},
};

bool gx_copy_use(const char *name)
{
	const struct copy_variant *v = copy_variants;
	const struct copy_variant *end = v + GX_ARRAY_SIZE(copy_variants);

	__builtin_cpu_init();
	while (v < end && (!v->is_here() || (name && strcmp(name, v->name))))
		v++;
	if (v == end)
		return false;
	copy_name = v->name;
	gx_copy = v->copy;
	gx_copy_stream_nofence = v->stream;
	if (COPY_REP && copy_rep_is_fast()) {
		copy_rep_min = COPY_REP_MIN;
		gx_copy_slot = copy_slot_rep;
	}
	if (__builtin_cpu_is("intel") && v->copy == copy_avx512)
		gx_copy_slot = copy_slot_ahead;
	return true;
}

static void __attribute__((constructor)) copy_choose(void)
{
	gx_copy_use(NULL);
}

#else

bool gx_copy_use(const char *name)
{
	return !name || !strcmp(name, copy_name);
}

#endif
