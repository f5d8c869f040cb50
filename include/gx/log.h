/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log: lines of the library beside the return values of its calls. Any thread may make these
 * calls, but not inside of a polling core's turn.
 */
#ifndef GX_LOG_H
#define GX_LOG_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum gx_log_level { GX_LOG_ERR, GX_LOG_WARN, GX_LOG_INFO, GX_LOG_DEBUG };

/**
 * gx_log() - One line, without a newline at the end of @fmt. Lines below the level are dropped.
 *
 * A line goes to the sink of gx_log_sink(), or to stderr as
 * "2026-11-22T06:20:11.123Z gx: warn: text". Writing to stderr never waits for its reader: a line
 * for which a pipe, a socket or a terminal has no room, or no reader any more, is dropped and
 * counted, and the next line that finds room says how many were. errno stays as it is.
 */
void gx_log(enum gx_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/** gx_log_level_set() - Default GX_LOG_WARN, or the environment's GX_LOG=err|warn|info|debug. */
void gx_log_level_set(enum gx_log_level level);

/** gx_log_level_parse() - "err", "warn", "info", "debug". Return: the level, -EINVAL. */
int gx_log_level_parse(const char *name);

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

/** gx_log_dropped() - Lines that found no room so far. */
uint64_t gx_log_dropped(void);

#ifdef __cplusplus
}
#endif

#endif
