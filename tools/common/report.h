/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What gxperf says: results as a table, CSV or JSON on stdout, a JSON document in a file, errors
 * and notes on stderr. The main thread, but for what ends the program in its place: report_stop() and
 * report_close() may be called by another one, and what is being printed then is printed first.
 */
#ifndef REPORT_H
#define REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define REPORT_SCHEMA_VERSION 1

struct json_t;
struct report;

/* REPORT_NONE: nothing on stdout, for a process that has no results of its own. */
enum report_format { REPORT_TABLE, REPORT_CSV, REPORT_JSON, REPORT_JSONL, REPORT_NONE };

struct report_opts {
	enum report_format format;
	const char *command;	/* "put" */
	const char *json_path;	/* NULL: no file */
	const char *lines_path; /* of JSON lines that each result is added to; NULL: none */
	bool force;		/* json_path may exist */
	int argc;
	char **argv; /* goes into the environment part */
};

/** struct report_path - The way the bytes went; NULL and -1 become null. Copied. @engine: who copied
 * over the local link; nobody does over others. */
struct report_path {
	const char *link, *port, *gpu, *bounce, *engine, *unpack, *integrity, *cores, *why;
	const char *control; /* who does what is slow: "io_uring", "epoll" */
	const char *check;   /* who compares the CRCs of payload */
	int64_t quantum_b;
};

/** struct report_row - One result. NAN and a negative sms become null. */
struct report_row {
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

int report_format_parse(const char *text, enum report_format *out); /* 0, -EINVAL */

/** report_open() - Return: 0, or -errno after a message (the file is there, or cannot be made). */
int report_open(const struct report_opts *opts, struct report **out);
/** report_close() - Print what is due, write the file. Return: @exit_code, or 1 when that failed. */
int report_close(struct report *report, int exit_code);

/** report_stop() - The document says that signal @signo ended the program. */
void report_stop(struct report *report, int signo);
/** report_wrong() - Has any row wrong bytes? */
bool report_wrong(const struct report *report);

void report_path(struct report *report, const struct report_path *path);
void report_row(struct report *report, const struct report_row *row);
/** struct report_cell - One value of a result whose columns are its own. A number, or a text when that
 * is not NULL. */
struct report_cell {
	const char *key;  /* in JSON and CSV */
	const char *head; /* of the table's column; NULL: not in the table */
	double v;	  /* NAN becomes null */
	const char *text;
};

/** report_cells() - A result with columns of its own; all of one document should have the same. Beside
 * them it has op, size_b, checked_b and wrong. @checked: as in struct report_row. */
void report_cells(struct report *report, const struct report_row *row,
		  const struct report_cell *cells, unsigned n);

/** report_part() - Put @part (NULL is fine) into the document as @key. */
void report_part(struct report *report, const char *key, struct json_t *part);
/** report_commit() - The commit that the environment part names; a string that stays. */
void report_commit(struct report *report, const char *commit);

/** report_is_table() - Is stdout for words? */
bool report_is_table(const struct report *report);

/** report_last() - The last row, its strings gone; NULL: there was none. */
const struct report_row *report_last(const struct report *report);
/** report_section() - A line of words among the rows of a table; nothing in other formats. */
void report_section(struct report *report, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/** report_error() - On stderr as "gxperf: ..." and into the errors of the document. */
void report_error(struct report *report, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/** report_note() - On stderr only. */
void report_note(struct report *report, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/** report_progress() - One line on stderr that replaces itself; where stderr is no terminal, a line of
 * its own at most each five seconds. */
void report_progress(struct report *report, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

#endif
