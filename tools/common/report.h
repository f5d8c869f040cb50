/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What gxperf says: results as a table, CSV or JSON on stdout, a JSON document in a file, errors
 * and notes on stderr. The main thread, but for what ends the program in its place: out_stop() and
 * out_close() may be called by another one, and what is being printed then is printed first.
 */
#ifndef OUT_H
#define OUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OUT_SCHEMA_VERSION 1

struct json_t;
struct out;

/* OUT_NONE: nothing on stdout, for a process that has no results of its own. */
enum out_format { OUT_TABLE, OUT_CSV, OUT_JSON, OUT_JSONL, OUT_NONE };

struct out_opts {
	enum out_format format;
	const char *command;	/* "put" */
	const char *json_path;	/* NULL: no file */
	const char *lines_path; /* of JSON lines that each result is added to; NULL: none */
	bool force;		/* json_path may exist */
	int argc;
	char **argv; /* goes into the environment part */
};

/** struct out_path - The way the bytes went; NULL and -1 become null. Copied. @engine: who copied
 * over the local link; nobody does over others. */
struct out_path {
	const char *link, *port, *gpu, *bounce, *engine, *unpack, *integrity, *cores, *why;
	const char *control; /* who does what is slow: "io_uring", "epoll" */
	const char *check;   /* who compares the CRCs of payload */
	int64_t quantum_b;
};

/** struct out_row - One result. NAN and a negative sms become null. */
struct out_row {
	const char *op;
	uint64_t size_b, count;
	double p50_us, avg_us, p99_us, p999_us, gb_s, cpu_pct;
	int sms;
	bool checked; /* false: payload was not looked at, wrong is null */
	uint64_t checked_b, wrong;
	const char *sha256; /* NULL: null */
	double share;	    /* of the limit measured in the same run; 0: no column */
	bool bus;	    /* a collective: bus_gb_s is a column */
	double bus_gb_s;    /* what each rank receives from others */
	double cpu_us;	    /* CPU time a chunk or operation; 0: no column */
	bool pkts;	    /* packets were counted: lost, sent again, come twice; else null */
	uint64_t lost, resent, dup;
	bool interrupted; /* shorter than was asked for */
	uint32_t depth;	  /* messages of a connection and core under way at once; 0: no word */
};

int out_format_parse(const char *text, enum out_format *out); /* 0, -EINVAL */

/** out_open() - Return: 0, or -errno after a message (the file is there, or cannot be made). */
int out_open(const struct out_opts *opts, struct out **out);
/** out_close() - Print what is due, write the file. Return: @exit_code, or 1 when that failed. */
int out_close(struct out *out, int exit_code);

/** out_stop() - The document says that signal @signo ended the program. */
void out_stop(struct out *out, int signo);
/** out_wrong() - Has any row wrong bytes? */
bool out_wrong(const struct out *out);

void out_path(struct out *out, const struct out_path *path);
void out_row(struct out *out, const struct out_row *row);
/** struct out_cell - One value of a result whose columns are its own. A number, or a text when that
 * is not NULL. */
struct out_cell {
	const char *key;  /* in JSON and CSV */
	const char *head; /* of the table's column; NULL: not in the table */
	double v;	  /* NAN becomes null */
	const char *text;
};

/** out_cells() - A result with columns of its own; all of one document should have the same. Beside
 * them it has op, size_b, checked_b and wrong. @checked: as in struct out_row. */
void out_cells(struct out *out, const struct out_row *row, const struct out_cell *cells,
	       unsigned n);

/** out_part() - Put @part (NULL is fine) into the document as @key. */
void out_part(struct out *out, const char *key, struct json_t *part);
/** out_commit() - The commit that the environment part names; a string that stays. */
void out_commit(struct out *out, const char *commit);

/** out_is_table() - Is stdout for words? */
bool out_is_table(const struct out *out);

/** out_last() - The last row, its strings gone; NULL: there was none. */
const struct out_row *out_last(const struct out *out);
/** out_section() - A line of words among the rows of a table; nothing in other formats. */
void out_section(struct out *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/** out_error() - On stderr as "gxperf: ..." and into the errors of the document. */
void out_error(struct out *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/** out_note() - On stderr only. */
void out_note(struct out *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/** out_progress() - One line on stderr that replaces itself; where stderr is no terminal, a line of
 * its own at most each five seconds. */
void out_progress(struct out *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
