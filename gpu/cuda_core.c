/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Common to all work that a core queues on its stream: the first error, launches, flags for the
 * CPU, and queries of the stream. Runs on the thread that owns the stream.
 */
#include "cuda_stream.h"

#include <errno.h>
#include <stdio.h>

bool cuda_core_try(struct cuda_stream *s, unsigned res, const char *what)
{
	if (!res)
		return true;
	if (!s->faulted)
		snprintf(s->fault_text, sizeof(s->fault_text), "%s: %s (%u)", what,
			 cuda_error_name(res), res);
	s->faulted = true;
	return false;
}

bool cuda_core_launch_shared(struct cuda_stream *s, struct CUfunc_st *fn, unsigned grid,
			     unsigned threads, unsigned shared_b, void **params)
{
	s->chained = false;
	return CUDA_CORE_TRY(s, cuLaunchKernel, fn, grid, 1, 1, threads, 1, 1, shared_b, s->stm,
			     params, NULL);
}

bool cuda_core_launch(struct cuda_stream *s, struct CUfunc_st *fn, unsigned grid, unsigned threads,
		      void **params)
{
	return cuda_core_launch_shared(s, fn, grid, threads, 0, params);
}

bool cuda_core_flag(struct cuda_stream *s, uint32_t *flag, uint32_t value)
{
	struct cuda_gpu *g = cuda_of(s->stream.gpu);
	unsigned long long ptr = cuda_ptr(flag);
	void *params[] = {&ptr, &value};

	if (g->write_value)
		return CUDA_CORE_TRY(s, cuStreamWriteValue32_v2, s->stm, ptr, value,
				     GX_CU_WRITE_VALUE_DEFAULT);
	return cuda_core_launch(s, g->fn_flag, 1, 1, params);
}

/*
 * The kind of memory that the first fragment of @b lies in; src_base itself need not be memory at
 * all. gx asks the driver each time: an address that was freed may be of another kind now.
 */
unsigned cuda_src_type(const struct gx_block *b)
{
	unsigned type = GX_CU_MEMORYTYPE_HOST;

	/* The driver does not know ordinary host memory. */
	if (cu.cuPointerGetAttribute(&type, GX_CU_POINTER_MEMORY_TYPE,
				     cuda_ptr(gx_block_src(b, 0))))
		type = GX_CU_MEMORYTYPE_HOST;
	return type;
}

void cuda_core_queued(struct cuda_stream *s, unsigned n, uint64_t now_ns)
{
	if (!n)
		return;
	s->busy = true;
	s->query_ns = now_ns;
}

void cuda_core_query(struct cuda_stream *s, uint64_t now_ns)
{
	struct cuda_gpu *g = cuda_of(s->stream.gpu);
	struct cuda_prev prev = cuda_enter(g);
	unsigned res = cu.cuStreamQuery(s->stm);

	s->query_ns = now_ns;
	s->busy = cuda_is_busy(res);
	if (!s->busy)
		cuda_core_try(s, res, "the GPU stopped");
	cuda_leave_core(g, prev);
}

int cuda_fault(struct gx_gpu_stream *stream)
{
	struct cuda_stream *s = cuda_stream_of(stream);

	if (!s->faulted)
		return 0;
	gx_gpu_why_set("%s", s->fault_text);
	return -EIO;
}
