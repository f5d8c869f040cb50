/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a core reports of an endpoint once a millisecond, for people who watch it.
 */
#ifndef GX_PACKET_GAUGES_H
#define GX_PACKET_GAUGES_H

#include "flow/cc.h"

#include <stdatomic.h>

/* timer.c: what was reported of it at the last slow tick. The core alone writes it; ctl reads it. */
struct pkt_gauges {
	_Atomic uint32_t msgs;
	uint32_t bufs; /* the core's own */
	_Atomic uint64_t tx_pkts, rx_pkts, rx_data, rtt_ns;
	/* with congestion control */
	_Atomic uint64_t limit_ns[CC_LIMITS], rate_b_s, window_b;
	_Atomic uint64_t tx_b, lost_b; /* as on the wire */
};

#endif
