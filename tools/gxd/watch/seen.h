/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connections of all gx processes of this host, out of what they publish, for people who look. One
 * thread.
 */
#ifndef GXD_SEEN_H
#define GXD_SEEN_H

#include <stdint.h>

struct peers;

#define SEEN_BY 5 /* application, link, window, credit, core */

enum seen_has { SEEN_TX = 1, SEEN_RX = 2, SEEN_LOST = 4, SEEN_BY_ANY = 8, SEEN_WINDOW = 16 };

struct seen_conn {
	unsigned pid, context;
	char name[32];
	uint64_t id;
	char peer[64], link[16];
	unsigned has;
	double tx_b, rx_b, lost_b, window_b, msgs, rtt_s;
	double by_s[SEEN_BY];
};

struct seen {
	struct seen_conn *v;	       /* of one process together, in no other order */
	unsigned nr, nr_up, nr_silent; /* connections; processes that answered, and that did not */
	char silent[192];	       /* "4711 gxd: no answer; 4712 gxperf: no answer", cut */
};

/** seen_take() - From answers of /metrics. What is not understood is left out. Return: 0, -ENOMEM. */
int seen_take(const struct peers *all, struct seen *out);
void seen_free(struct seen *s);
const char *seen_by_name(unsigned by);

#endif
