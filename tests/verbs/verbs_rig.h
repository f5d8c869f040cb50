/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two contexts of one process with the verbs link between them, whose devices are scripted
 * (verbs_script.h). The test's thread turns both.
 */
#ifndef VERBS_RIG_H
#define VERBS_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "gx/gx.h"
#include "gx_internal/base.h"

#include <cmocka.h>

#include "verbs/verbs_script.h"
#include "kit/common_post.h"

#define KV_B	(4u << 20)
#define WAIT_NS 30000000000ull

/* owner: the test's thread, but for on_conn()'s. */
struct end {
	struct gx *gx;
	struct gx_core *core;
	struct gx_mem *kv;
	char *base;
	_Atomic(struct gx_conn *) up;
	_Atomic unsigned nr_down;
	struct gx_conn *conn;
	struct gx_ep *ep;
	unsigned nr_done, nr_local, nr_notify, nr_failed;
	int status;
	struct gx_comp last, notify;
};

struct rig {
	struct end server, client;
	char addr[32];
	bool forget; /* the devices keep something for good */
	bool hold;   /* the devices move nothing */
};

/** rig_new() - Contexts that are not connected, by their devices: "script0", "script0+script1", NULL. */
struct rig *rig_new(const char *client, const char *server);
struct rig *rig_new_within(const char *client, const char *server, uint64_t timeout_ns);
/** rig_new_of() - The same by their options, .verbs among them. */
struct rig *rig_new_of(struct gx_opts client, struct gx_opts server);
/** rig_connect() - Return: 0, -errno of the client. */
int rig_connect(struct rig *r, unsigned queue_pairs);
/** rig_up() - Two that are connected. */
struct rig *rig_up(unsigned queue_pairs);
struct rig *rig_up_within(unsigned queue_pairs, uint64_t timeout_ns);
/** rig_free() - Nothing is left behind, or the test fails. */
void rig_free(struct rig *r);

/** rig_turn() - Both cores and the devices once; completions are taken. */
void rig_turn(struct rig *r);
#define UNTIL(r, cond)                                                                             \
	do {                                                                                       \
		uint64_t until_ = gx_now() + WAIT_NS;                                              \
		while (!(cond) && gx_now() < until_)                                               \
			rig_turn(r);                                                               \
		assert_true(cond);                                                                 \
	} while (0)

struct gx_op op_to(struct end *e, enum gx_op_kind kind, uint64_t len); /* region kv of the peer */
void post(struct end *e, const struct gx_op *op);
void fill(char *p, uint64_t len, unsigned seed);
uint64_t stat_of(const struct end *e, const char *name);

#endif
