/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parsing that gxd and gxperf share: options by a table, which has the place of each value, and the
 * options that both programs have. A bad value is an argp error that names the option and ends the
 * program.
 */
#ifndef OPT_ARGP_H
#define OPT_ARGP_H

#include "common/opt_ctx.h"

#include <argp.h>

/* ---- By table ---- */

/** enum opt_kind - Kind of an option's value, and the type that ->to points to. */
enum opt_kind {
	OPT_U32,     /* uint32_t; from ->min to ->max */
	OPT_DEVICE,  /* int; -1 is the CPU */
	OPT_SIZE,    /* uint64_t; at most ->max */
	OPT_LIST,    /* struct opt_list: "656,1024"; sizes may end in K */
	OPT_SIZES,   /* struct opt_sizes */
	OPT_SECONDS, /* uint64_t, nanoseconds */
	OPT_TEXT,    /* const char *, kept */
	OPT_FLAG,    /* bool; takes no value */
	OPT_CALL,    /* ->parse takes it */
};

/** struct opt_value - The place for an option's value. The last entry of a table has key 0. */
struct opt_value {
	int key;
	enum opt_kind kind;
	void *to;
	uint32_t min, max;
	int (*parse)(const char *arg); /* 0, -EINVAL */
};

/** opt_parse() - For an argp parser: take an option of the table @values. A bad value is an error
 * that names the option. Return: 0, ARGP_ERR_UNKNOWN. */
error_t opt_parse(const struct argp_option *options, const struct opt_value *values, int key,
		  const char *arg, struct argp_state *state);

/* ---- Options that gxd and gxperf share ---- */

/** struct opt_gx - Input of opt_gx_argp: places for the values. */
struct opt_gx {
	struct opt_ctx *ctx;
	bool *unpack_given; /* becomes true with --unpack; may be NULL */
};

#define OPT_GX_GROUP 4 /* their group in a help text; the program writes the heading */

/** opt_gx_argp - Options for moving data, as a child of a program's own argp. */
extern const struct argp opt_gx_argp;
/** opt_gx_take() - Take an option of enum opt_gx_key. opt_gx_argp lacks some of them, because they
 * mean something else in each program. Return: 0; ARGP_ERR_UNKNOWN: @key is none of them. */
error_t opt_gx_take(int key, const char *arg, struct opt_ctx *ctx, struct argp_state *state);
/** opt_cores_take() - --cores: CPUs, all in @allowed. */
void opt_cores_take(const char *arg, const struct opt_cpus *allowed, struct opt_cpus *cpus,
		    struct argp_state *state);
/** opt_link_take() - --link: local, packet, tcp or verbs; keeps @arg in *@link. */
void opt_link_take(const char *arg, const char **link, struct argp_state *state);

#endif
