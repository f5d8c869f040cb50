/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of gxperf doctor: doctor.c has the report and the connection to a server, doctor_way.c measures
 * each way there, doctor_say.c prints, doctor_host.c has what /proc and /sys of this host say. Main thread only.
 */
#ifndef GXPERF_DOCTOR_H
#define GXPERF_DOCTOR_H

#include "gxperf/base/perf.h"

/* How bad a finding is. A hint may cost a little, and does not count. */
enum doctor_level { DOCTOR_OK, DOCTOR_HINT, DOCTOR_SLOW, DOCTOR_REFUSED };

struct doctor {
	const struct perf_opts *opts;
	struct report *report;
	struct json_t *findings;
	bool quiet; /* no text: stdout is for the document */
	enum doctor_level worst;
	bool far;     /* the server is on another host, or in another network namespace */
	char nic[32]; /* the interface of the way; "": none is known */
};

/** doctor_say() - A finding. @cure: "": there is nothing to do. */
void doctor_say(struct doctor *d, enum doctor_level level, const char *check, const char *cure,
		const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/** doctor_ways() - Measure each way to the server that the options allow. */
void doctor_ways(struct doctor *d);
/** doctor_host() - Everything of this host. */
void doctor_host(struct doctor *d);
/** doctor_nic() - The interface d->nic: its driver, MTU, node and interrupts. */
void doctor_nic(struct doctor *d);
/** doctor_nic_mtu() - MTU of interface d->nic; 0: not known. */
unsigned doctor_nic_mtu(const struct doctor *d);

#endif
