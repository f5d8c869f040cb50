/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gxperf compare --comm: NCCL between two processes, over transports of the network in turn. A
 * process loads one configuration of NCCL, so each transport has two ranks of its own: gxperf
 * again, started with --as-rank. They stay, and gxperf says to them what to run. Main thread only.
 *
 * Each rank's standard input is a socket with a line of text a packet. gxperf asks, both ranks
 * answer:
 *   id                      rank 0 alone: "ok ID", NCCL's unique id in hexadecimal
 *   open GPU BYTES ID       "ok VERSION VIA NOTE...": NCCL's version, what its log says of the
 *                           connections ("NET/gx"), and of the plugin's polling cores
 *   run OP WORDS COUNT ROUND  "ok NS CPU_NS CHECKED WRONG": time of @COUNT operations, CPU time of
 *                           all threads but the main one, compared and wrong bytes; with @ROUND,
 *                           which no run has had, sources get words that none has had
 *   quit                    "ok", and the rank ends
 * A rank that fails prints the reason on stderr and ends.
 */
#ifndef PAIR_H
#define PAIR_H

#include "common/opt.h"
#include "gxperf/report/report.h"

#include <stdint.h>

#define PAIR_TEXT_B  2048 /* a packet */
#define PAIR_RANKS   2
#define PAIR_NETS    2
#define PAIR_WORD    8 /* bytes of an element: sums of 64-bit numbers are exact */
#define PAIR_LIMIT_S 120

enum pair_op {
	PAIR_ALL_REDUCE,
	PAIR_ALL_GATHER,
	PAIR_REDUCE_SCATTER,
	PAIR_ALL_TO_ALL, /* by grouped sends and receives */
	PAIR_BROADCAST,
	PAIR_SEND_RECV, /* rank 0 sends */
	PAIR_OPS,
};

/** struct pair_net - A transport and the environment that makes NCCL take it. */
struct pair_net {
	const char *name, *via; /* "nccl-gx", "NET/gx" */
	const char *const (*env)[2];
	bool plugin; /* NCCL_NET_PLUGIN: gx's file */
};

extern const struct pair_net pair_nets[PAIR_NETS];
extern const char *const pair_op_names[PAIR_OPS];

/** struct pair_opts - What the command line says. NULL and 0: defaults. */
struct pair_opts {
	const char *comm, *ops, *lib_path, *plugin;
	const struct opt_sizes *sizes;
	uint32_t gpus, rounds;
	uint64_t ns;	   /* of one transport in one round */
	uint64_t limit_ns; /* for an answer of a rank, which gives up after half of it */
};

/** pair_compare() - Return: an enum perf_status; it has reported the reason. */
int pair_compare(const struct pair_opts *opts, struct report *report);
/** pair_rank() - The process of a rank; @name: "nccl-gx:0". Return: as above. */
int pair_rank(const char *name, const struct pair_opts *opts, struct report *report);

/** pair_words() - Elements of the message; with @op's halves, which the GPUs send or get. */
uint64_t pair_words(enum pair_op op, uint64_t size_b);
/** pair_halves() - Is a rank's part half of the message? */
bool pair_halves(enum pair_op op);

#endif
