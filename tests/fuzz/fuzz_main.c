/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fuzz target as an ordinary test: every file of the corpus as it is, then seeded random changes
 * of each. usage: fuzz_x CORPUS [CHANGES [SEED]]    CHANGES: in all, default 200,000; SEED: default
 * 1 The same arguments give the same inputs. Exit 77 when the corpus cannot be read.
 */
#include <dirent.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_MAX  65536
#define FILES_MAX 1024

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
	uint8_t *b;
	size_t len;
};

static struct input corpus[FILES_MAX];
static unsigned nr_corpus;
static uint64_t rnd_state;

static uint64_t rnd(void)
{
	rnd_state ^= rnd_state << 13;
	rnd_state ^= rnd_state >> 7;
	rnd_state ^= rnd_state << 17;
	return rnd_state * 0x2545f4914f6cdd1dull >> 16;
}

/* On a heap block of the exact length, so that a sanitizer sees a read past the end. */
static void run_one(const uint8_t *b, size_t len)
{
	uint8_t *copy = malloc(len ? len : 1);

	if (!copy)
		abort();
	memcpy(copy, b, len);
	LLVMFuzzerTestOneInput(copy, len);
	free(copy);
}

static int file_load(const char *dir, const char *name)
{
	static uint8_t buf[FILE_MAX];
	char path[4096];
	size_t len;
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "rb");
	if (!f)
		return -1;
	len = fread(buf, 1, sizeof(buf), f);
	fclose(f);
	corpus[nr_corpus].b = malloc(len ? len : 1);
	if (!corpus[nr_corpus].b)
		return -1;
	memcpy(corpus[nr_corpus].b, buf, len);
	corpus[nr_corpus++].len = len;
	return 0;
}

static int visible(const struct dirent *d)
{
	return d->d_name[0] != '.';
}

static int corpus_load(const char *dir)
{
	struct dirent **names;
	int n = scandir(dir, &names, visible, alphasort);
	int ret = n > 0 ? 0 : -1;

	for (int i = 0; i < n; i++) {
		if (nr_corpus < FILES_MAX && file_load(dir, names[i]->d_name))
			ret = -1;
		free(names[i]);
	}
	if (n >= 0)
		free(names);
	return ret;
}

/* One change of @b. Return: the new length. */
static size_t change(uint8_t *b, size_t len)
{
	static const uint64_t odd[] = {
		0,    1,     7,	    8,		63,	    64,		65,	   1024,
		1025, 65535, 65536, 0x7fffffff, 0x80000000, 0xffffffff, INT64_MAX, UINT64_MAX};
	const struct input *other = &corpus[rnd() % nr_corpus];
	size_t at = len ? rnd() % len : 0, n;

	switch (rnd() % 6) {
	case 0:
		if (len)
			b[at] ^= (uint8_t)(1u << rnd() % 8);
		return len;
	case 1:
		if (len)
			b[at] = (uint8_t)rnd();
		return len;
	case 2: /* shorter */
		return at;
	case 3: /* longer */
		n = rnd() % 32;
		if (n > FILE_MAX - len)
			return len;
		for (size_t i = 0; i < n; i++)
			b[len + i] = (uint8_t)(rnd() % 2 ? rnd() : 0);
		return len + n;
	case 4: /* a number from the edges */
		n = (size_t)1 << rnd() % 4;
		if (at + n <= len)
			memcpy(b + at, &odd[rnd() % (sizeof(odd) / sizeof(odd[0]))], n);
		return len;
	default: /* the rest of another file */
		if (at < other->len) {
			memcpy(b + at, other->b + at, other->len - at);
			return other->len;
		}
		return len;
	}
}

int main(int argc, char **argv)
{
	uint64_t changes = argc > 2 ? strtoull(argv[2], NULL, 0) : 200000;
	static uint8_t b[FILE_MAX];

	if (argc < 2 || corpus_load(argv[1])) {
		fprintf(stderr, "%s: skipped: no corpus at %s\n", argv[0],
			argc < 2 ? "(none named)" : argv[1]);
		return 77;
	}
	rnd_state = (argc > 3 ? strtoull(argv[3], NULL, 0) : 1) * 0x9e3779b97f4a7c15ull | 1;
	for (unsigned i = 0; i < nr_corpus; i++)
		run_one(corpus[i].b, corpus[i].len);
	for (uint64_t i = 0; i < changes; i++) {
		const struct input *in = &corpus[i % nr_corpus];
		size_t len = in->len;

		memcpy(b, in->b, len);
		for (uint64_t n = rnd() % 4 + 1; n; n--)
			len = change(b, len);
		run_one(b, len);
	}
	printf("%u files, %" PRIu64 " changes\n", nr_corpus, changes);
	for (unsigned i = 0; i < nr_corpus; i++)
		free(corpus[i].b);
	return 0;
}
