// SPDX-License-Identifier: Apache-2.0
/*
 * Flags that streams of the user write. The posting thread queues such a write on a stream; a core
 * reads the flags of operations that wait. The control path opens and closes them.
 */
#include "submit/marks.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

void marks_close(struct marks *m)
{
	if (!m)
		return;
	if (m->flags)
		gx_gpu_flag_free(m->gpu[0], m->flags);
	free(m);
}

int marks_open(struct gx_gpu *gpu, struct marks **out)
{
	struct marks *m = calloc(1, sizeof(*m));

	if (!m)
		return -ENOMEM;
	m->gpu[m->nr_gpus++] = gpu;
	m->flags = gx_gpu_flag_alloc(gpu, SUBMIT_WAITS);
	if (!m->flags) {
		free(m);
		return -ENOMEM;
	}
	*out = m;
	return 0;
}

/* Pairs with the backend's write: earlier work of the stream is visible. */
bool mark_there(const struct marks *m, uint32_t i)
{
	return __atomic_load_n(&m->flags[i], __ATOMIC_ACQUIRE) == m->mark[i].value;
}

void mark_put(struct marks *m, uint32_t i)
{
	if (i != SUB_NO_MARK)
		m->mark[i].held = false;
}

/* Have all streams written their flags? */
bool marks_idle(const struct marks *m)
{
	for (uint32_t i = 0; m && i < SUBMIT_WAITS; i++)
		if (!mark_there(m, i))
			return false;
	return true;
}

/* Flags that a stream may still write must not be freed. If a stream does not get there, they
 * stay. */
void marks_end(struct marks *m, uint64_t timeout_ns)
{
	uint64_t until = gx_later_ns(gx_now_ns(), timeout_ns);

	while (!marks_idle(m) && gx_now_ns() < until)
		nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
	if (marks_idle(m))
		marks_close(m);
	else
		gx_warn("a stream of the user's does not get to where an operation waited for it; "
			"its flags are left to the process's end");
}

/* Ask the GPU of the operation's memory first, then the others: one of them knows the stream. Host
 * memory does not tell which. */
static int mark_queue(struct marks *m, const struct gx_op *op, uint32_t i)
{
	struct gx_gpu *first = op->mem && op->mem->gpu->device >= 0 ? op->mem->gpu : m->gpu[0];
	uint32_t value = m->mark[i].value + 1;
	int ret = first->ops->stream_mark(first, op->stream, &m->flags[i], value);

	if (ret)
		gx_fail(ret, "gx_op.stream: %s", gx_gpu_why());
	for (unsigned k = 0; ret && k < m->nr_gpus; k++)
		if (m->gpu[k] != first)
			ret = m->gpu[k]->ops->stream_mark(m->gpu[k], op->stream, &m->flags[i],
							  value);
	if (!ret)
		m->mark[i].value = value;
	return ret;
}

int mark_get(struct marks *m, const struct gx_op *op, uint32_t *out)
{
	for (unsigned k = 0; k < SUBMIT_WAITS; k++) {
		uint32_t i = (m->rover + k) % SUBMIT_WAITS;
		int ret;

		if (m->mark[i].held || !mark_there(m, i))
			continue;
		ret = mark_queue(m, op, i);
		if (ret)
			return ret;
		m->rover = i + 1;
		m->mark[i].held = true;
		*out = i;
		return 0;
	}
	return -EAGAIN;
}
