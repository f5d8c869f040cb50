// SPDX-License-Identifier: Apache-2.0
/*
 * A mover that is another gxperf: a sub-command with its own connection, GPUs and cores. It runs as a
 * child process, warms up, and begins messages as a throttle (throttle.h) allows. Its document
 * says whether its payload was right. Main thread only.
 */
#include "gxperf/base/child.h"
#include "common/json.h"
#include "gxperf/base/throttle.h"
#include "gxperf/lab/mover.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COMMAND_ARGS_MAX 128
#define COMMAND_READY_NS 120000000000ull
#define COMMAND_END_NS	 120000000000ull /* for its last messages and its check of the payload */
#define COMMAND_LOOK_NS	 2000000
#define COMMAND_UNIT	 16 /* messages of a unit, up to COMMAND_UNIT_B bytes each */
#define COMMAND_UNIT_B	 ((uint64_t)1 << 20)

struct command {
	struct throttle *throttle;
	int fd;
	struct child child;
};

bool mover_command_known(const char *name)
{
	static const char *const names[] = {"put", "get", "send", "lat", "allgather", "alltoall"};
	unsigned place;

	return !opt_name(name, names, sizeof(names) / sizeof(names[0]), &place);
}

/* Report its output, line by line, under its name. */
static void command_say(struct mover *m, struct command *c, bool failed)
{
	size_t len = 0;
	char *text = child_text(c->child.err, &len), *save = NULL;

	for (char *line = text ? strtok_r(text, "\n", &save) : NULL; line;
	     line = strtok_r(NULL, "\n", &save)) {
		const char *what = strncmp(line, "gxperf: ", 8) ? line : line + 8;

		if (failed)
			report_error(m->gpus->report, "%s: %s", m->command[0], what);
		else
			report_note(m->gpus->report, "%s: %s", m->command[0], what);
	}
	free(text);
}

/* The command has ended: report its output, and take its status as ours. */
static int command_ended(struct mover *m, struct command *c, uint64_t limit_ns)
{
	int status = child_end(&c->child, limit_ns);

	command_say(m, c, status);
	if (!status)
		return PERF_OK;
	if (status > CHILD_SIGNAL)
		report_error(m->gpus->report, "%s was ended by signal %d", m->command[0],
			     status - CHILD_SIGNAL);
	else
		report_error(m->gpus->report, "%s ended with status %d", m->command[0], status);
	return m->status = status <= PERF_LOST ? status : PERF_FAILED;
}

/* "put ARG... --format json --throttle FD" */
static int command_start(struct mover *m, struct command *c)
{
	char path[4096], fd[16], *argv[COMMAND_ARGS_MAX + 8];
	unsigned n = 0;

	if (child_self(NULL, path, sizeof(path)))
		return -errno;
	argv[n++] = path;
	for (; n <= COMMAND_ARGS_MAX && m->command[n - 1]; n++)
		argv[n] = (char *)m->command[n - 1];
	if (n > COMMAND_ARGS_MAX)
		return -E2BIG;
	snprintf(fd, sizeof(fd), "%d", c->fd);
	argv[n++] = (char *)"--format";
	argv[n++] = (char *)"json";
	argv[n++] = (char *)"--throttle";
	argv[n++] = fd;
	argv[n] = NULL;
	return child_start(&c->child, path, argv, -1, true);
}

/* Wait until it is warm. */
static int command_ready(struct mover *m, struct command *c)
{
	const struct timespec nap = {.tv_nsec = COMMAND_LOOK_NS};
	uint64_t end = gx_now() + COMMAND_READY_NS;

	while (!throttle_size(c->throttle, &m->size)) {
		if (child_ended(&c->child)) {
			if (command_ended(m, c, 0))
				return m->status;
			report_error(m->gpus->report, "%s ended before it was measured",
				     m->command[0]);
			return PERF_FAILED;
		}
		if (gx_now() > end) {
			report_error(m->gpus->report, "%s is not ready after %u s", m->command[0],
				     (unsigned)(COMMAND_READY_NS / 1000000000u));
			return PERF_FAILED;
		}
		nanosleep(&nap, NULL);
	}
	m->batch = m->size <= COMMAND_UNIT_B ? COMMAND_UNIT : 1;
	m->unit_b = m->size * m->batch;
	return PERF_OK;
}

static int command_open(struct mover *m)
{
	struct command *c = calloc(1, sizeof(*c));
	int ret;

	if (!c)
		return mover_failed(m, "open", -ENOMEM);
	*c = (struct command){.fd = -1, .child = CHILD_NONE};
	m->priv = c;
	ret = throttle_open(&c->throttle, &c->fd);
	if (!ret)
		ret = command_start(m, c);
	if (ret) {
		mover_why_set("cannot start %s", m->command[0]);
		return mover_failed(m, "open", ret);
	}
	return command_ready(m, c);
}

static void command_close(struct mover *m)
{
	struct command *c = m->priv;

	if (!c)
		return;
	if (c->child.pid) {
		throttle_mode(c->throttle, THROTTLE_END);
		child_stop(&c->child);
		child_end(&c->child, 0);
	}
	child_close(&c->child);
	throttle_close(c->throttle, c->fd);
	free(c);
	m->priv = NULL;
}

static int command_post(struct mover *m)
{
	struct command *c = m->priv;

	throttle_allow(c->throttle, m->batch);
	return 0;
}

static int command_units(struct mover *m, uint64_t *nr)
{
	struct command *c = m->priv;

	*nr = throttle_ended(c->throttle) / m->batch;
	if (!child_ended(&c->child))
		return 0;
	mover_why_set("it ended while it was measured");
	command_ended(m, c, 0);
	return -EPIPE;
}

static void command_run(struct mover *m, enum activity_mode mode)
{
	struct command *c = m->priv;

	if (mode == ACTIVITY_FREE)
		throttle_mode(c->throttle, THROTTLE_RUN);
	else
		m->posted = throttle_settle(c->throttle, m->batch) / m->batch;
	if (mode == ACTIVITY_REST)
		throttle_mode(c->throttle, THROTTLE_REST);
}

static int command_fill(struct mover *m)
{
	return PERF_OK; /* the command has done it */
}

/* Take its only result, and the link of its connection. */
static int command_result(struct mover *m, struct json_t *doc, uint64_t *checked_b, uint64_t *wrong)
{
	struct json_t *row = js_at(js_get(doc, "results"), 0), *bad = js_get(row, "wrong");
	long long b = 0, n = 0;
	char why[128];
	int sms;

	snprintf(m->link, sizeof(m->link), "%s",
		 js_text(js_get(js_get(doc, "path"), "link"), "unknown"));
	if (!js_unpack(row, why, sizeof(why), "{s:i}", "sms", &sms))
		m->sms = sms;
	m->unchecked = !bad || js_unpack(bad, why, sizeof(why), "I", &n);
	if (!row || js_unpack(row, why, sizeof(why), "{s:I}", "checked_b", &b))
		return -EINVAL;
	*checked_b += (uint64_t)b;
	*wrong += (uint64_t)n;
	return 0;
}

static int command_check(struct mover *m, uint64_t *checked_b, uint64_t *wrong)
{
	struct command *c = m->priv;
	struct json_t *doc;
	char why[128] = "";
	size_t len = 0;
	char *text;
	int ret;

	throttle_mode(c->throttle, THROTTLE_END);
	ret = command_ended(m, c, COMMAND_END_NS);
	if (ret && ret != PERF_WRONG)
		return ret;
	text = child_text(c->child.out, &len);
	doc = text ? js_parse(text, len, why, sizeof(why)) : NULL;
	free(text);
	if (!doc || command_result(m, doc, checked_b, wrong)) {
		report_error(m->gpus->report, "%s printed no result: %s", m->command[0], why);
		ret = PERF_FAILED;
	}
	js_free(doc);
	return *wrong ? PERF_OK : ret;
}

const struct mover_ops mover_command = {
	.runs_command = true,
	.name = "command",
	.doc = "a gxperf sub-command in a process of its own",
	.sms = -1,
	.open = command_open,
	.close = command_close,
	.post = command_post,
	.ended = command_units,
	.run = command_run,
	.fill = command_fill,
	.check = command_check,
};
