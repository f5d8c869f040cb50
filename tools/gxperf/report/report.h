/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The output of gxperf: results as a table, CSV or JSON on stdout, a JSON document in a file,
 * errors and notes on stderr. Main thread, except report_stop() and report_close(): a thread that
 * ends the program in the main thread's place may call them. They wait for a print under way.
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
	const char *lines_path; /* file that gets each result as well; NULL: none. NAME.csv: as CSV,
				   else a line of JSON */
	bool force;		/* json_path may exist: replace it */
	int argc;
	char **argv; /* for the environment part */
};

/** struct report_path - The path of the bytes; NULL and -1 become null. Copied. @engine: copier of
 * the local link; NULL for other links. */
struct report_path {
	const char *link, *port, *gpu, *bounce, *engine, *unpack, *integrity, *cores, *why, *reason;
	const char *control; /* method of the control thread: "io_uring", "epoll" */
	const char *auth;    /* by what the peer may connect */
	const char *crc_by;  /* checks the CRCs of payload: "none", "cpu", "copy" */
	int64_t quantum_b;
};

/* What limits a sender with congestion control. gx_core_stat() knows the time under NAME as
 * "cc_NAME_ns". */
#define REPORT_LIMITS 5
extern const char *const report_limits[REPORT_LIMITS];

#define REPORT_PATHS 64

/** struct report_source - What left by one source port while a row was measured, and how it is now. */
struct report_source {
	unsigned lane, source_port;
	bool data, dead;       /* data packets, or control packets */
	uint64_t sent, resent; /* packets */
	double rtt_us;
};

/** struct report_row - One result. NAN and a negative sms become null. */
struct report_row {
	const char *op;
	uint64_t size_b, count;
	double p50_us, avg_us, p99_us, p999_us, gb_s, cpu_pct;
	int sms;
	bool checked; /* false: nobody looked at the payload, wrong is null */
	uint64_t checked_b, wrong;
	const char *sha256; /* NULL: null */
	double share;	    /* of the limit measured in the same run; 0: no column */
	bool bus;	    /* a collective: bus_gb_s is a column */
	double bus_gb_s;    /* bytes that each rank receives from others */
	double cpu_us;	    /* CPU time of a chunk or operation; 0: no column */
	/* With congestion control: parts of the time in which each was the limit; what the paths
	 * carry, as far as known; the last round trip. All 0: there is none, and no column. */
	double limit[REPORT_LIMITS], rate_gb_s, rtt_us;
	struct report_source paths[REPORT_PATHS];
	unsigned nr_paths; /* 0: there was one */
	bool pkts;	   /* packets were counted (lost, resent, dup); else null */
	uint64_t lost, resent, dup;
	bool interrupted; /* shorter than the user asked for */
	uint32_t depth;	  /* messages under way at once on a connection and core; 0: not printed */
	bool bidirectional; /* one direction of two at once; CPU and packets are of both */
};

int report_format_parse(const char *text, enum report_format *out); /* 0, -EINVAL */

/** report_open() - Return: 0, or -errno after a message (the file exists, or cannot be made). */
int report_open(const struct report_opts *opts, struct report **out);
/** report_close() - Print the rest, write the file. Return: @exit_code, or 1 if that failed. */
int report_close(struct report *report, int exit_code);

/** report_stop() - Note in the document that signal @signo ended the program. */
void report_stop(struct report *report, int signo);
/** report_wrong() - Has any row wrong bytes? */
bool report_wrong(const struct report *report);

void report_path(struct report *report, const struct report_path *path);
void report_row(struct report *report, const struct report_row *row);
/** struct report_cell - One value of a result with columns of its own: @text, or the number @v if
 * @text is NULL. */
struct report_cell {
	const char *key;  /* name in JSON and CSV */
	const char *head; /* column of the table; NULL: not in the table */
	double v;	  /* NAN becomes null */
	const char *text;
};

/** report_cells() - A result with columns of its own. All results of one document should have the
 * same columns. It also has op, size_b, checked_b and wrong; @row's checked is as in struct
 * report_row. */
void report_cells(struct report *report, const struct report_row *row,
		  const struct report_cell *cells, unsigned n);

/** struct report_interval - What was done in a part of the time of a row that is under way. */
struct report_interval {
	const char *op;
	uint64_t size_b, count;
	double from_s, to_s;
};

/** report_interval() - Print it among the comments of a table, and add it to the document. */
void report_interval(struct report *report, const struct report_interval *v);

/** report_part() - Put @part into the document as @key; NULL: do nothing. */
void report_part(struct report *report, const char *key, struct json_t *part);
/** report_commit() - The commit for the environment part. The string must stay. */
void report_commit(struct report *report, const char *commit);

/** report_flush() - A reader of stdout sees what was printed. report_close() reports what it has no room for. */
void report_flush(struct report *report);

/** report_is_table() - Is stdout for people? */
bool report_is_table(const struct report *report);

/**
 * report_watch() - Call @on_row for each row from now on. @mute: a table does not have the rows then, nor
 * sections and paths: the caller shows them in its own way.
 */
void report_watch(struct report *report, bool mute,
		  void (*on_row)(void *arg, const struct report_row *row), void *arg);
/** report_section() - A line of text among the rows of a table; nothing in other formats. */
void report_section(struct report *report, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/** report_error() - Print "gxperf: ..." on stderr, and add it to the errors of the document. */
void report_error(struct report *report, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/** report_reason() - What gx_reason_name() says of the end of a connection; static. */
void report_reason(struct report *report, const char *reason);
/** report_note() - Print on stderr only. */
void report_note(struct report *report, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/** report_progress() - A line on stderr that replaces the one before. Without a terminal: a new
 * line, at most one in five seconds. */
void report_progress(struct report *report, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

#endif
