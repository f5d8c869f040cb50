/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From result documents to a gnuplot script: which rows are one line of the picture, their points,
 * and the text. No I/O; main thread only. The same documents give the same bytes.
 */
#ifndef PLOT_H
#define PLOT_H

#include <stdbool.h>
#include <stddef.h>

struct json_t;
struct plot;

/** struct plot_how - What is drawn. NULL: the default. */
struct plot_how {
	const char *x; /* member of a result for the horizontal axis; "size_b" */
	const char *y; /* for the vertical one; of an overlap document "slowdown", else the first of
			  "GB_s" and "p50_us" that the first document has */
	const char *rival; /* draw ratios to the results with this op, of the same file at the same
			      x; of tools/bench/bench.py: its ratios, which are round by round */
	const char *only;  /* ops to draw, with commas between them */
	const char *title;
	bool log_y;
};

struct plot *plot_open(const struct plot_how *how); /* NULL: no memory. @how: until plot_close() */
void plot_close(struct plot *p);		    /* NULL is fine */

/** plot_add() - The results of @doc, which is gxperf's or one of tools/bench/bench.py and bench_gpu.py;
 * @name tells them from those of other documents, copied.
 *
 * A row of the latter has a name with a size in it: "gx put 64M, shm" is op "gx put, shm" with
 * "size_b"; "put, 4 cores a side" is op "put, cores a side" with "cores". Its figure of each round
 * is a result with "GB_s", or "p50_us" where its unit is us; its ratios are results with "ratio".
 * Return: 0, -EINVAL with @why (no results, no such member, too many lines), -ENOMEM. */
int plot_add(struct plot *p, struct json_t *doc, const char *name, char *why, size_t room);

/** plot_script() - For gnuplot's input: @svg and @png are the pictures it writes. To be freed.
 * Return: NULL with @why (nothing to draw). */
char *plot_script(struct plot *p, const char *svg, const char *png, char *why, size_t room);

#endif
