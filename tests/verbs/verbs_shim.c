/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded by tests/tools/test_rdma.py between libibverbs and a program that uses it: gxd and
 * gxperf, which load the library by name, or a program of perftest, which is linked with it. What
 * it does is in the environment:
 *
 *   GX_SHIM_LOG=FILE         each 100 ms a line "MS BYTES": the time of CLOCK_MONOTONIC, and the
 *                            bytes of all requests that the program has posted until then
 *   GX_SHIM_BREAK_MS=N       force a queue pair into error each N ms, one after the other, with a
 *                            line "MS break" in the log; the first after GX_SHIM_QUIET_MS
 *   GX_SHIM_PATIENT_US=N     a poll that finds nothing looks again each N us for a while, so the
 *                            caller's own instructions are those of polls that find something
 *
 * Its thread is its own; everything else runs on threads of the program.
 */
#include <infiniband/verbs.h>

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SHIM_API __attribute__((visibility("default")))

#define SHIM_LIB       "libibverbs.so.1"
#define SHIM_QPS_MAX   256
#define SHIM_TICK_MS   100
#define SHIM_LOOKS_MAX 20 /* of a patient poll */
#define SHIM_NS_OF_MS  1000000ull

typedef int (*post_send_fn)(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
typedef int (*poll_cq_fn)(struct ibv_cq *cq, int n, struct ibv_wc *wc);

static struct {
	pthread_mutex_t lock; /* of all but bytes and what is frozen */
	struct ibv_qp *qp[SHIM_QPS_MAX];
	unsigned nr_qps, next;
	bool runs;
	uint64_t break_ms, quiet_ms, patient_us; /* frozen with the first object */
	FILE *log;
	post_send_fn post_send; /* of the provider; one device at a time */
	poll_cq_fn poll_cq;
	_Atomic uint64_t bytes;
} shim = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- The library behind ---- */

static void *real_dlopen(const char *name, int flags)
{
	void *(*fn)(const char *, int);
	void *sym = dlsym(RTLD_NEXT, "dlopen");

	memcpy(&fn, &sym, sizeof(fn));
	return fn(name, flags);
}

/* The caller looks for symbols in the handle: that of the program finds those of this file first. */
SHIM_API void *dlopen(const char *name, int flags)
{
	if (!name || strcmp(name, SHIM_LIB))
		return real_dlopen(name, flags);
	return real_dlopen(name, flags | RTLD_GLOBAL) ? real_dlopen(NULL, RTLD_NOW) : NULL;
}

static void *lib_sym(const char *name)
{
	void *lib = real_dlopen(SHIM_LIB, RTLD_NOW), *sym = lib ? dlsym(lib, name) : NULL;

	if (!sym) {
		fprintf(stderr, "shim: %s has no %s\n", SHIM_LIB, name);
		abort();
	}
	return sym;
}

/* ---- Breaks ---- */

typedef int (*modify_qp_fn)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
typedef int (*query_qp_fn)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
			   struct ibv_qp_init_attr *init);

static uint64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / SHIM_NS_OF_MS;
}

static void nap(uint64_t ns)
{
	struct timespec ts = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};

	nanosleep(&ts, NULL);
}

/* The next one that can send. One that is being made anew is left alone. */
static void break_one(void)
{
	void *modify_sym = lib_sym("ibv_modify_qp"), *query_sym = lib_sym("ibv_query_qp");
	modify_qp_fn modify;
	query_qp_fn query;
	bool broken = false;

	memcpy(&modify, &modify_sym, sizeof(modify));
	memcpy(&query, &query_sym, sizeof(query));
	pthread_mutex_lock(&shim.lock);
	for (unsigned i = 0; i < shim.nr_qps && !broken; i++) {
		struct ibv_qp *qp = shim.qp[shim.next++ % shim.nr_qps];
		struct ibv_qp_init_attr init;
		struct ibv_qp_attr attr;

		if (query(qp, &attr, IBV_QP_STATE, &init) || attr.qp_state != IBV_QPS_RTS)
			continue;
		attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_ERR};
		broken = !modify(qp, &attr, IBV_QP_STATE);
	}
	pthread_mutex_unlock(&shim.lock);
	if (broken)
		fprintf(shim.log, "%llu break\n", (unsigned long long)now_ms());
}

static void *shim_run(void *arg)
{
	uint64_t due = now_ms() + shim.quiet_ms;

	(void)arg;
	for (;;) {
		nap(SHIM_TICK_MS * SHIM_NS_OF_MS);
		fprintf(shim.log, "%llu %llu\n", (unsigned long long)now_ms(),
			(unsigned long long)atomic_load_explicit(&shim.bytes,
								 memory_order_relaxed));
		if (!shim.break_ms || now_ms() < due)
			continue;
		due += shim.break_ms;
		break_one();
	}
	return NULL;
}

static uint64_t env_number(const char *name)
{
	const char *text = getenv(name);

	return text ? strtoull(text, NULL, 10) : 0;
}

/* With the lock. */
static void shim_start(void)
{
	const char *path = getenv("GX_SHIM_LOG");
	sigset_t all, before;
	pthread_t thread;

	if (shim.runs)
		return;
	shim.runs = true;
	shim.break_ms = env_number("GX_SHIM_BREAK_MS");
	shim.quiet_ms = env_number("GX_SHIM_QUIET_MS");
	shim.patient_us = env_number("GX_SHIM_PATIENT_US");
	if (!path)
		return;
	shim.log = fopen(path, "w");
	if (!shim.log) {
		perror(path);
		abort();
	}
	setvbuf(shim.log, NULL, _IOLBF, 0);
	sigfillset(&all); /* the program's signals are for its own threads */
	pthread_sigmask(SIG_BLOCK, &all, &before);
	if (pthread_create(&thread, NULL, shim_run, NULL))
		abort();
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_detach(thread);
}

/* ---- The data path ---- */

static int shim_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	uint64_t bytes = 0;

	for (const struct ibv_send_wr *w = wr; w; w = w->next)
		for (int i = 0; i < w->num_sge; i++)
			bytes += w->sg_list[i].length;
	atomic_fetch_add_explicit(&shim.bytes, bytes, memory_order_relaxed);
	return shim.post_send(qp, wr, bad);
}

static int shim_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	int got = shim.poll_cq(cq, n, wc);

	for (unsigned i = 0; !got && i < SHIM_LOOKS_MAX; i++) {
		nap(shim.patient_us * 1000);
		got = shim.poll_cq(cq, n, wc);
	}
	return got;
}

/* ---- What the program calls ---- */

SHIM_API struct ibv_cq *ibv_create_cq(struct ibv_context *ctx, int cqe, void *arg,
				      struct ibv_comp_channel *channel, int vector)
{
	struct ibv_cq *(*real)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int);
	void *sym = lib_sym("ibv_create_cq");

	memcpy(&real, &sym, sizeof(real));
	pthread_mutex_lock(&shim.lock);
	shim_start();
	if (shim.patient_us && ctx->ops.poll_cq != shim_poll_cq) {
		shim.poll_cq = ctx->ops.poll_cq;
		ctx->ops.poll_cq = shim_poll_cq;
	}
	pthread_mutex_unlock(&shim.lock);
	return real(ctx, cqe, arg, channel, vector);
}

SHIM_API struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp *(*real)(struct ibv_pd *, struct ibv_qp_init_attr *);
	void *sym = lib_sym("ibv_create_qp");
	struct ibv_qp *qp;

	memcpy(&real, &sym, sizeof(real));
	qp = real(pd, attr);
	if (!qp)
		return NULL;
	pthread_mutex_lock(&shim.lock);
	shim_start();
	if (shim.log && qp->context->ops.post_send != shim_post_send) {
		shim.post_send = qp->context->ops.post_send;
		qp->context->ops.post_send = shim_post_send;
	}
	if (shim.nr_qps < SHIM_QPS_MAX)
		shim.qp[shim.nr_qps++] = qp;
	pthread_mutex_unlock(&shim.lock);
	return qp;
}

SHIM_API int ibv_destroy_qp(struct ibv_qp *qp)
{
	int (*real)(struct ibv_qp *);
	void *sym = lib_sym("ibv_destroy_qp");

	memcpy(&real, &sym, sizeof(real));
	pthread_mutex_lock(&shim.lock);
	for (unsigned i = 0; i < shim.nr_qps; i++)
		if (shim.qp[i] == qp)
			shim.qp[i--] = shim.qp[--shim.nr_qps];
	pthread_mutex_unlock(&shim.lock);
	return real(qp);
}
