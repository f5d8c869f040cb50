/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A kernel with io_uring, scripted: the rings are ordinary memory here, and ring_script.c reads and
 * writes them as the kernel does. A test says what happens within the next system call (work). Bytes
 * of a stream depend on socket and position.
 */
#ifndef RING_SCRIPT_H
#define RING_SCRIPT_H

#include "nic/io_ring.h"

#define RS_FD	 77 /* of the ring */
#define RS_SOCKS 64 /* descriptors 0 to 63 */
#define RS_LATE	 64

struct rs_sock {
	bool is_armed;
	uint64_t data; /* of the receive */
	uint8_t opcode;
	uint64_t pos; /* bytes of the stream that were delivered */
	unsigned armed;
};

struct rs_late { /* a completion that found no place */
	uint64_t data;
	int res;
	uint32_t flags;
};

struct ring_script {
	uint64_t rnd;
	/* orders */
	int setup_err, enable_err, reg_err, enter_err;
	bool is_slow; /* a cancel finds the receive at work, and does not end it */
	void (*work)(struct ring_script *s);
	/* the ring */
	unsigned flags, cqe_b, nr_sq, nr_cq;
	char *rings;
	struct io_uring_sqe *sqe;
	bool is_on;
	struct rs_sock sock[RS_SOCKS];
	struct rs_late late[RS_LATE];
	unsigned nr_late;
	/* for tests that register other things */
	int (*more)(struct ring_script *s, unsigned op, void *arg, unsigned nr);
	/* books */
	unsigned enters, cancels, nr_open;
	uint64_t nr_bad; /* breaches */
};

extern const struct io_ring_sys ring_script_sys; /* of the last rs_open() */

void rs_open(struct ring_script *s, uint64_t seed);
void rs_close(struct ring_script *s);
uint64_t rs_rnd(struct ring_script *s);
char rs_byte(unsigned sock, uint64_t pos);
/* A completion of anything. */
struct io_uring_cqe *rs_post(struct ring_script *s, uint64_t data, int res, uint32_t flags);
void rs_end(struct ring_script *s, unsigned sock, int res, uint32_t flags); /* the last one */
void rs_flag(struct ring_script *s, uint32_t flag);			    /* of the queue */
bool rs_full(const struct ring_script *s);

#endif
