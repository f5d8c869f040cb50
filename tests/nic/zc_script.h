/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A kernel and a NIC that reads memory of a device to send it, for link tcp over socket pairs. It keeps a queue for each
 * sending socket, and reads a source when zc_pump() moves its bytes to the socket pair: as late as a
 * NIC would. So a source that changes, or is not there any more, shows. It tells of the end of a send
 * when the test lets it.
 */
#ifndef ZC_SCRIPT_H
#define ZC_SCRIPT_H

#include "nic/nic_pair.h"
#include "nic/tcp_zc.h"

extern const struct tcp_sys zc_script_tcp;
extern const struct zc_sys zc_script_zc;

/* What it does from now on; zc_script_reset() sets all to 0. */
extern struct zc_script {
	bool is_quiet;	       /* it tells of no end */
	unsigned nr_no_room;   /* so many sends without a copy get no number */
	int allow_err;	       /* the answer to "may it?" */
	int lie_first, lie_nr; /* lie_nr > 0: it tells of numbers that were not sent */
	size_t room_b;	       /* of a socket's queue; 0: 256 KiB */
	unsigned stalled;      /* bit i: the queue of the i-th socket that sent does not move */
	uint32_t first_id;     /* number of the first send of each socket */
	const char *dev_base;  /* memory of a device, bound as dev_id; NULL: none */
	uint64_t dev_len;
	uint32_t dev_id;
	int dev_err;  /* the answer to sends from there; 0: it takes them */
	uint64_t rnd; /* != 0: ends are told in any order and any ranges */
	/* what it did */
	unsigned nr_drops, nr_leads;
	uint64_t dev_b;	     /* bytes that left from the device */
	uint64_t zc_b, ends; /* bytes that left without a copy; reads of error queues */
} zc_script;

void zc_script_reset(void);
void zc_script_close(void); /* forget all queues; no source is read any more */
/** zc_pump() - Move what may move. */
void zc_pump(void);
/** zc_reads() - Does it still read memory of [@at, @at + @len)? */
bool zc_reads(const char *at, uint64_t len);
/** zc_is_empty() - Has all left? */
bool zc_is_empty(void);
uint32_t zc_rnd(uint32_t n);

#endif
