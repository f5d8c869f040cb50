/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One random load over all of the public API; see all.h. The program needs no CMocka and nothing of
 * the build but itself.
 *
 *	test_sim_all --seed N [--trace]		one seed; the number replays it
 *	test_sim_all --seeds A-B [--jobs J] [--for SECONDS] [--state FILE]
 *						many; a line of JSON at the end. With a file it goes
 *						on where it was, and adds up over runs; with
 *						--first the first failure ends it
 *	test_sim_all --seed N --shrink		fewer steps that still fail
 *	Seeds from 1000000 on also have views, keys of peers and several ports,
 *	from 2000000 on GPUs and streams, from 3000000 on gets by views, sockets
 *	and reads of link local as a script has them, and their ends
 *	--steps N, --only A,B-C, --without KIND	which steps run: of a number, no others, none of a kind
 *
 * Exit status: 0, or 1 where a seed failed.
 */
#include "sim/all.h"
#include "sim/all_many.h"

#include <gx/log.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static uint8_t skipped[ALL_STEPS];
static struct many many = {.jobs = 1};
static struct all_cfg cfg = {.nr_steps = 160};
static bool shrinks;

/* gx's word for it, too. A world is short, and of each 2 MiB that gx has filled ahead it touches a few pages. */
__attribute__((visibility("default"))) int madvise(void *at, size_t len, int advice)
{
	return advice == MADV_POPULATE_WRITE ? 0 : (int)syscall(SYS_madvise, at, len, advice);
}

static void usage(void)
{
	fprintf(stderr,
		"usage: test_sim_all --seed N [--trace] [--shrink] | --seeds A-B [--jobs J] "
		"[--for SECONDS] [--state FILE] [--first]\n"
		"       [--steps N] [--only A,B-C] [--without KIND]\n");
	exit(2);
}

static void take_only(const char *text)
{
	memset(skipped, 1, sizeof(skipped));
	while (*text) {
		char *end;
		unsigned long a = strtoul(text, &end, 10), b = a;

		if (end == text)
			usage();
		if (*end == '-')
			b = strtoul(end + 1, &end, 10);
		for (unsigned long i = a; i <= b && i < ALL_STEPS; i++)
			skipped[i] = 0;
		text = *end == ',' ? end + 1 : end;
	}
	cfg.skip = skipped;
}

static void take_seeds(const char *text)
{
	char *end;

	many.first = strtoull(text, &end, 0);
	many.last = *end == '-' ? strtoull(end + 1, &end, 0) : many.first;
	if (*end || many.last < many.first)
		usage();
	many.some = true;
}

static void take_without(const char *name)
{
	uint64_t bit = steps_named(name);

	if (!bit) {
		fprintf(stderr, "no kind of steps is called %s; there are", name);
		for (unsigned i = 0; i < steps_nr(); i++)
			fprintf(stderr, " %s", steps_name(i));
		fprintf(stderr, "\n");
		exit(2);
	}
	cfg.without |= bit;
}

static bool take_word(const char *word)
{
	if (!strcmp(word, "--trace"))
		cfg.trace = true;
	else if (!strcmp(word, "--shrink"))
		shrinks = true;
	else if (!strcmp(word, "--first"))
		many.first_alone = true;
	else
		return false;
	return true;
}

static void take_value(const char *word, const char *value)
{
	if (!value)
		usage();
	if (!strcmp(word, "--seed"))
		cfg.seed = strtoull(value, NULL, 0);
	else if (!strcmp(word, "--seeds"))
		take_seeds(value);
	else if (!strcmp(word, "--jobs"))
		many.jobs = (unsigned)strtoul(value, NULL, 0);
	else if (!strcmp(word, "--for"))
		many.seconds = (unsigned)strtoul(value, NULL, 0);
	else if (!strcmp(word, "--state"))
		many.state = value;
	else if (!strcmp(word, "--steps"))
		cfg.nr_steps = GX_MIN((unsigned)strtoul(value, NULL, 0), (unsigned)ALL_STEPS);
	else if (!strcmp(word, "--only"))
		take_only(value);
	else if (!strcmp(word, "--without"))
		take_without(value);
	else
		usage();
}

static int one(void)
{
	struct all_counts c;
	uint64_t hash;

	all_one(&cfg, &c, &hash);
	printf("seed %llu: %llu operations in %llu turns, hash %016llx\n",
	       (unsigned long long)cfg.seed, (unsigned long long)c.ops, (unsigned long long)c.turns,
	       (unsigned long long)hash);
	return 0;
}

int main(int argc, char *argv[])
{
	if (argc < 2)
		usage();
	for (int i = 1; i < argc; i++) {
		if (take_word(argv[i]))
			continue;
		take_value(argv[i], argv[i + 1]);
		i++;
	}
	if (!getenv("GX_LOG"))
		gx_log_level_set(GX_LOG_ERR);
	setenv("GX_RUN_DIR", "", 1);
	prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
	mallopt(M_MMAP_THRESHOLD, 1 << 25); /* pages that were touched serve the next seed, too */
	mallopt(M_TRIM_THRESHOLD, 1 << 30);
	mallopt(M_ARENA_MAX, 1);
	if (many.some)
		return many_run(&many, &cfg);
	return shrinks ? many_shrink(&cfg) : one();
}
