/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two endpoints of the tcp link over socket pairs, in one thread and in virtual time, without a
 * control thread. The memory of a side may be that of a GPU: the CPU backend, which copies late.
 */
#ifndef TCP_PAIR_H
#define TCP_PAIR_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tcp/tcp.h"
#include "kit/common_post.h"

#include <cmocka.h>

#define MEM_B	       (4u << 20)
#define CHUNK_B	       65536
#define WINDOW	       4
#define POISON	       0x5b
#define TOKEN	       0x770000
#define MS	       1000000ull
#define GPU_TIMEOUT_NS (1000 * MS)

struct side {
	struct gx *gx;
	struct gx_core *core;
	struct gx_conn conn;
	struct gx_mem mem;  /* MEM_B bytes of POISON, with TOKEN */
	struct gx_gpu *gpu; /* of mem; NULL: host memory */
	struct tcp_ep *e;
	unsigned nr_done, nr_local, nr_notify;
	struct gx_comp last, note;
};

struct pair {
	struct side side[2];
	unsigned nr_socks;
	uint64_t now_ns;
	char *buf; /* MEM_B bytes */
};

struct pair *pair_new(unsigned nr_socks);
/* Make @side's memory that of a GPU, whose copies end @delay_ns later. */
void pair_gpu(struct pair *p, unsigned side, uint64_t delay_ns);
void pair_free(struct pair *p);
void pair_done(struct pair *p); /* waits for rest, and frees it */
bool pair_is_at_rest(const struct pair *p);
/* Until nothing is under way, in no socket either. */
void pair_settle(struct pair *p);

/* One more endpoint on the core of a side, and the socket of its peer. */
struct more {
	struct gx_conn conn;
	struct tcp_ep *e;
	int fd;
};
void more_open(struct pair *p, unsigned side, struct more *m); /* of zeros */
void more_close(struct more *m);			       /* no copy of it is under way */

void side_take(struct side *s); /* its completions */
void side_turn(struct pair *p, unsigned side);
void side_rest(const struct side *s); /* nothing is out */
/* And send what may leave at once. */
int side_post(struct pair *p, unsigned side, const struct gx_op *op);
int side_fault(const struct pair *p, unsigned side);

/* The link of pairs that are made from now on, a turn of it, and gx_nic_opts.tx. Default: the kernel
 * copies. */
extern const struct gx_link *pair_link;
extern void (*pair_poll)(struct link_tcp *l, uint64_t now_ns);
extern unsigned pair_tx;
extern bool pair_is_tcp; /* over TCP of loopback in place of socket pairs */
extern bool pair_sealed; /* with keys */

void push_none(int fd); /* for tables whose sends keep nothing */
/* Sockets that give and take at most dribble_b bytes a call. */
extern const struct tcp_sys dribble;
extern size_t dribble_b;

void bytes_fill(char *at, uint64_t len, unsigned seed);
struct gx_op op_of(enum gx_op_kind kind, void *addr, uint64_t len);

#define UNTIL(p, cond)                                                                             \
	do {                                                                                       \
		for (unsigned n_ = 0; !(cond) && n_ < 2000000; n_++) {                             \
			(p)->now_ns += 1000;                                                       \
			side_turn(p, 0);                                                           \
			side_turn(p, 1);                                                           \
		}                                                                                  \
		assert_true(cond);                                                                 \
	} while (0)

#endif
