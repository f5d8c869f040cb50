/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options of gxd and gxperf that are parsed alike: by a table that says where each value goes, and
 * those that both programs have. A bad value is an error of argp's that names the option, and ends
 * the program.
 */
#ifndef OPT_ARGP_H
#define OPT_ARGP_H

#include "common/opt.h"

#include <argp.h>

/* ---- By table ---- */

/** enum opt_kind - What an option's value is, and what ->to points to. */
enum opt_kind {
	OPT_U32,     /* uint32_t; from ->min to ->max */
	OPT_DEVICE,  /* int; -1 is the CPU */
	OPT_SIZE,    /* uint64_t; at most ->max */
	OPT_LIST,    /* struct opt_list: "656,1024"; sizes may end in K */
	OPT_SIZES,   /* struct opt_sizes */
	OPT_SECONDS, /* uint64_t, nanoseconds */
	OPT_TEXT,    /* const char *, kept */
	OPT_FLAG,    /* bool; takes no value */
	OPT_CALL,    /* ->parse looks at it */
};

/** struct opt_value - Where an option's value goes; the last one of a table has key 0. */
struct opt_value {
	int key;
	enum opt_kind kind;
	void *to;
	uint32_t min, max;
	int (*parse)(const char *arg); /* 0, -EINVAL */
};

/** opt_parse() - For an argp parser: @values of @options. A bad value is an error that names the
 * option. Return: 0, ARGP_ERR_UNKNOWN. */
error_t opt_parse(const struct argp_option *options, const struct opt_value *values, int key,
		  const char *arg, struct argp_state *state);

/* ---- What gxd and gxperf both have ---- */

/** struct opt_gx - Input of opt_gx_argp: where the values go. */
struct opt_gx {
	struct gx_opts *opts;
	bool *unpack_given; /* becomes true with --unpack; may be NULL */
};

#define OPT_GX_GROUP 4 /* of the options in a help text; the program writes the heading */

/** opt_gx_argp - How a context moves data, as a child of a program's own argp. */
extern const struct argp opt_gx_argp;
/** opt_gx_take() - One of enum opt_gx_key that is not opt_gx_argp's, as it means something else at
 * either program. Return: 0; ARGP_ERR_UNKNOWN: @key is none of them. */
error_t opt_gx_take(int key, const char *arg, struct gx_opts *opts, struct argp_state *state);
/** opt_cores_take() - --cores: CPUs of @allowed. */
void opt_cores_take(const char *arg, const struct opt_cpus *allowed, struct opt_cpus *cpus,
		    struct argp_state *state);
/** opt_link_take() - --link: local or packet; *@link is @arg, kept. */
void opt_link_take(const char *arg, const char **link, struct argp_state *state);

#endif
