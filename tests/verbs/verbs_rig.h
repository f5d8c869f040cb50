/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two contexts of one process, whose RDMA devices are scripted (verbs_script.h), for tests of the
 * verbs link. A fixture ends with nothing left behind. The functions assert; one thread turns both
 * ends.
 */
#ifndef VERBS_RIG_H
#define VERBS_RIG_H

#include "gx/gx.h"

#include "core/core.h"
#include "verbs/verbs_script.h"

#include <stdatomic.h>

#define KV_B	(4u << 20)
#define WAIT_NS 30000000000ull

struct end {
	struct gx *gx;
	struct gx_core *core;
	struct gx_mem *kv;
	char *base;
	_Atomic(struct gx_conn *) up;
	_Atomic unsigned nr_down;
	struct gx_conn *conn;
	struct gx_ep *ep;
	unsigned nr_done, nr_notify, nr_failed;
	int status;
	struct gx_comp note;
};

struct rig {
	struct end server, client;
	char addr[32];
	bool forget; /* the devices keep something for good */
};

#define UNTIL(r, cond)                                                                             \
	do {                                                                                       \
		uint64_t until_ = gx_now() + WAIT_NS;                                              \
		while (!(cond) && gx_now() < until_)                                               \
			turn(r);                                                                   \
		assert_true(cond);                                                                 \
	} while (0)

/* The devices of an end: "script0", "script0+script1", NULL. */
void turn(struct rig *r);
struct rig *rig_new_within(const char *client, const char *server, uint64_t timeout_ns);
struct rig *rig_new(const char *client, const char *server);
int rig_connect(struct rig *r, unsigned queue_pairs);
struct rig *rig_up_within(unsigned queue_pairs, uint64_t timeout_ns);
struct rig *rig_up(unsigned queue_pairs);
void rig_free(struct rig *r);
struct gx_op op_to(struct end *e, enum gx_op_kind kind, uint64_t len);
void post(struct end *e, const struct gx_op *op);
void fill(char *p, uint64_t len, unsigned seed);
uint64_t stat_of(const struct end *e, const char *name);

#endif
