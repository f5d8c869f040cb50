/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two contexts of one process with the local link between them, both turned by the test's thread.
 */
#ifndef LOCAL_RIG_H
#define LOCAL_RIG_H

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "gx/gx.h"
#include "gx_internal/stat.h"
#include "kit/common_post.h"

#include <cmocka.h>

#define KV_B	((uint64_t)8 << 20)
#define WAIT_NS 60000000000ull

/* owner: the test's thread, but for what gx's control thread tells. */
struct end {
	struct gx *gx;
	struct gx_core *core;
	struct gx_mem *kv; /* KV_B bytes of the host, which the peer may put to and get from */
	char *base;	   /* of kv */
	/* The control thread's: the last connection that came up, and how many went down. */
	_Atomic(struct gx_conn *) up;
	_Atomic unsigned nr_down;
	_Atomic int down_err; /* of the last */
	struct gx_conn *conn; /* the first */
	struct gx_ep *ep;
	/* Completions taken so far. */
	unsigned nr_done, nr_local, nr_notify, nr_failed;
	int status; /* of the last that failed */
	struct gx_comp last, notify;
	/* Of the test that has some. */
	struct gx_mem *reg, *gpu;
	char *plain; /* the bytes of reg */
};

struct rig {
	struct end server, client;
	char addr[32];
	char *buf;	     /* KV_B and a page more */
	uint8_t *want, *got; /* KV_B each */
	int seed;
};

/** rig_new() - Ends that are not open, and the test's buffers. */
struct rig *rig_new(void);

/** rig_free() - Ends may be open. */
void rig_free(struct rig *r);

/** end_open() - @o: without .ports, .on_conn and .arg. */
void end_open(struct end *e, struct gx_opts o, const char *port);

/** rig_connect() - The first connection; the server listens from here on.
 * @link, @port: NULL leaves the choice to gx
 * Return: what gx_connect() or gx_conn_wait() said.
 */
int rig_connect(struct rig *r, const char *link, const char *port);

/** rig_connect_more() - Over the local link. Return: the client's end; server.up is the other. */
struct gx_conn *rig_connect_more(struct rig *r);

/** end_take() - Count the completions that are there. */
void end_take(struct end *e);

/** end_turn() - One turn of the core, and end_take(). */
void end_turn(struct end *e);

/** end_stat() - A counter of the core, by its name. */
uint64_t end_stat(const struct end *e, const char *name);

/** end_ctl_stat() - A counter of the control thread. */
uint64_t end_ctl_stat(const struct end *e, enum gx_stat_id id);

#define UNTIL(r, cond)                                                                             \
	do {                                                                                       \
		uint64_t until_ = gx_now() + WAIT_NS;                                              \
		while (!(cond) && gx_now() < until_) {                                             \
			end_turn(&(r)->server);                                                    \
			end_turn(&(r)->client);                                                    \
			sched_yield(); /* a fake GPU is a thread */                                \
		}                                                                                  \
		assert_true(cond);                                                                 \
	} while (0)

#endif
