/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log: lines of the library besides the return values of its calls. Any thread may make these
 * calls, but not inside of a polling core's turn.
 */
#ifndef GX_LOG_H
#define GX_LOG_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum gx_log_level { GX_LOG_ERR, GX_LOG_WARN, GX_LOG_INFO, GX_LOG_DEBUG };

/** enum gx_log_format - How a line looks on stderr. KEYS: time=2026-11-22T06:20:11.123Z level=warn
 * name="gx" msg="text", and before msg what a line is about: peer="10.0.0.1:7501" pid=4711 conn=7 (the
 * peer's address and process, and the connection's number here, as in the metrics), more=3. JSON: an
 * object with the same keys. */
enum gx_log_format { GX_LOG_TEXT, GX_LOG_KEYS, GX_LOG_JSON };

/**
 * gx_log() - One line, without a newline at the end of @fmt. Lines below the level are dropped.
 *
 * A line goes to the sink of gx_log_sink(), or to stderr as
 * "2026-11-22T06:20:11.123Z gx: warn: text". Writing to stderr never waits for its reader: a line
 * for which a pipe, a socket, a terminal or a disk has no room, or no reader any more, is dropped and
 * counted, and the next line that finds room says how many were. A line that comes again within 10 s is
 * counted: the next line after that time, or the end of the program, says how many times more it was
 * said; so are, after the 16th, lines about peers ("peer ...") that differ in numbers alone. Where stderr
 * is journald's (JOURNAL_STREAM), its level stands in front, as "<4>". errno stays as it is.
 */
void gx_log(enum gx_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/** gx_log_level_set() - Default GX_LOG_WARN, or the environment's GX_LOG=err|warn|info|debug. */
void gx_log_level_set(enum gx_log_level level);

/** gx_log_level_parse() - "err", "warn", "info", "debug". Return: the level, -EINVAL. */
int gx_log_level_parse(const char *name);

/** gx_log_format_set() - Default GX_LOG_TEXT, or the environment's GX_LOG_FORMAT=text|keys|json. */
void gx_log_format_set(enum gx_log_format format);

/** gx_log_format_parse() - "text", "keys", "json". Return: the format, -EINVAL. */
int gx_log_format_parse(const char *name);

/** gx_log_name_set() - The program's name in lines to stderr, default "gx". The caller keeps the
 * text for as long as the process lives. */
void gx_log_name_set(const char *name);

/**
 * gx_log_sink() - Have @fn called with each line instead, one call at a time, on the thread that
 * logs. @fn NULL: stderr again. @fn must not wait for long: the control thread logs, too. @line is
 * valid during the call. When this returns, gx no longer uses the former sink.
 */
void gx_log_sink(void (*fn)(void *arg, int level, const char *line), void *arg);

/** gx_log_stderr() - For a sink that changes lines: write one to stderr as gx does without a sink.
 * From within the sink alone. @level: as the sink got it */
void gx_log_stderr(int level, const char *line);

/** struct gx_name - A field or a call of the API as the library's texts have it ("gx_opts.insecure"), and what
 * a program's users know it by ("--insecure"), which is never longer. A table ends with .api NULL. */
struct gx_name {
	const char *api, *own;
};

/** gx_names_say() - Replace each .api of @names in @text, as of gx_error(), by its .own. The text does not
 * become longer. Return: @text. */
char *gx_names_say(const struct gx_name names[], char *text);

/** gx_names_log() - Do so in each line to stderr, by a sink. @names stays for as long as the process lives. */
void gx_names_log(const struct gx_name names[]);

/** gx_log_dropped() - Lines that found no room so far. */
uint64_t gx_log_dropped(void);

#ifdef __cplusplus
}
#endif

#endif
