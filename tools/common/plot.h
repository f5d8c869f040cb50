/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns result documents into a gnuplot script: sorts rows into lines of the picture, and writes
 * the text. No I/O; main thread only. The same documents give the same bytes.
 */
#ifndef PLOT_H
#define PLOT_H

#include <stdbool.h>
#include <stddef.h>

struct json_t;
struct plot;

/** struct plot_how - The picture to draw. NULL: the default. */
struct plot_how {
	const char *x; /* member of a result for the horizontal axis; "size_b" */
	/* For the vertical axis. Default: "slowdown" for an overlap document; else "GB_s" or
	 * "p50_us", the first that the first document has. */
	const char *y;
	/* Draw ratios to the results of this op, of the same file at the same x. For a document of
	 * tools/bench/bench.py: its own ratios, which are round by round. */
	const char *rival;
	const char *only; /* ops to draw, separated by commas */
	const char *title;
	bool log_y;
};

struct plot *plot_open(const struct plot_how *how); /* NULL: no memory. @how's strings must stay */
void plot_close(struct plot *p);		    /* NULL is fine */

/** plot_add() - Add the results of @doc, a document of gxperf, tools/bench/bench.py or
 * bench_gpu.py. @name (copied) tells them from those of other documents.
 *
 * A row of the bench scripts has a name with a size: "gx put 64M, shm" is op "gx put, shm" with
 * "size_b"; "put, 4 cores a side" is op "put, cores a side" with "cores". Its figure of each round
 * is a result with "GB_s", or "p50_us" if its unit is us. Its ratios are results with "ratio".
 * Return: 0, -EINVAL with @why (no results, no such member, too many lines). */
int plot_add(struct plot *p, struct json_t *doc, const char *name, char *why, size_t room);

/** plot_script() - The input for gnuplot; @svg and @png: the pictures that it writes. The caller
 * frees it.
 * Return: NULL with @why (nothing to draw). */
char *plot_script(struct plot *p, const char *svg, const char *png, char *why, size_t room);

#endif
