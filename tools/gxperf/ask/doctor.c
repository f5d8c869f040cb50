// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf doctor: what makes gx slow on this host or on the way to a server, or refuses it, each with
 * the cure. Scripts read the exit status.
 */
#include "gxperf/ask/doctor.h"
#include "gxperf/ask/ask.h"

#include "common/json.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* What a packet of gx has besides its payload, with the headers around it, at most. */
#define DOCTOR_HEAD_B	  200
#define DOCTOR_GET_B	  65536
#define DOCTOR_TRAFFIC_NS 10000000000ull

/* ---- The way to a server ---- */

/* The interface that has our address on the way to the server. */
static void way_nic(struct doctor *d)
{
	struct ifaddrs *all, *a;
	char host[OPT_HOST_MAX], name[OPT_HOST_MAX];

	if (opt_bind(d->opts->addr, false, host) || getifaddrs(&all))
		return;
	for (a = all; a; a = a->ifa_next) {
		int family = a->ifa_addr ? a->ifa_addr->sa_family : AF_UNSPEC;
		socklen_t len = family == AF_INET ? sizeof(struct sockaddr_in)
						  : sizeof(struct sockaddr_in6);

		if ((family == AF_INET || family == AF_INET6) &&
		    !getnameinfo(a->ifa_addr, len, name, sizeof(name), NULL, 0, NI_NUMERICHOST) &&
		    !strcmp(name, host)) {
			snprintf(d->nic, sizeof(d->nic), "%s", a->ifa_name);
			break;
		}
	}
	freeifaddrs(all);
}

/* Payload of a packet over port udp, as the ends choose it by what gets through: that of our own interface
 * would be at least this. */
static unsigned way_payload_b(unsigned mtu)
{
	static const unsigned sizes[] = {8192, 4096, 3328, 1280};

	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		if (sizes[i] + DOCTOR_HEAD_B <= mtu)
			return sizes[i];
	return 0;
}

/* The ends find out what gets through when large packets go: a note there, which gxd drops, and bytes of a
 * region from there. Return: 1: all of it arrived; 0; -errno: there is no queue to post to. */
static int way_traffic(struct perf *perf)
{
	static unsigned char note[GX_NOTE_MAX], room[DOCTOR_GET_B];
	struct gx_conn *conn = perf->conns[0].conn;
	struct gx_op op[2] = {
		{.kind = GX_OP_PUT, .flags = GX_OP_NOTE, .note = note, .note_len = sizeof(note)},
		{.kind = GX_OP_GET, .addr = room}};
	struct gx_region r = GX_INIT(r);
	uint64_t end = gx_now() + DOCTOR_TRAFFIC_NS;
	struct gx_comp comp;
	struct gx_queue *q;
	int under_way, n = 1, ret;
	bool good = true;

	for (unsigned k = 0; n == 1 && !gx_conn_region(conn, NULL, k, &r); k++)
		n += !!(r.access & GX_ACCESS_GET);
	op[1].token = r.token;
	op[1].len = r.len < sizeof(room) ? r.len : sizeof(room);
	ret = gx_queue_open(perf->gx, NULL, &q);
	if (ret)
		return ret;
	under_way = gx_post(q, gx_conn_ep(conn, 0), op, (unsigned)n);
	while (under_way > 0 && gx_now() < end) {
		if (gx_poll(q, &comp, 1)) {
			under_way--;
			good &= !comp.status;
		} else {
			perf_nap(1000000);
		}
	}
	good &= !under_way;
	while (gx_queue_close(q) == -EAGAIN && gx_now() < end + DOCTOR_TRAFFIC_NS)
		perf_nap(1000000);
	gx_conn_info(conn, &perf->info);
	return good;
}

static void way_mtu(struct doctor *d, struct perf *perf)
{
	const struct gx_conn_info *c = &perf->info;
	unsigned own = way_payload_b(doctor_nic_mtu(d));
	int all;

	if (strcmp(c->link, "packet") != 0 || strcmp(c->port, "udp") != 0 || !own)
		return;
	all = way_traffic(perf);
	if (all < 0)
		doctor_say(d, DOCTOR_REFUSED, "way-mtu", "", "this process gets no queue: %s",
			   gx_error());
	else if (!all)
		doctor_say(d, DOCTOR_REFUSED, "way-mtu",
			   "open the UDP ports both ways, or add --link tcp",
			   "no bytes got to the server and back: %s",
			   c->text[0] ? c->text : "nothing came");
	else if (c->quantum_b < own || c->quantum_in_b < own)
		doctor_say(
			d, DOCTOR_SLOW, "way-mtu",
			"a hop on the way, or the server's interface, has a smaller MTU: raise it there "
			"(tracepath shows where)",
			"packets to the server carry %u bytes, and %s would take %u", c->quantum_b,
			d->nic, own);
	else
		doctor_say(d, DOCTOR_OK, "way-mtu", "", "packets to the server carry %u bytes",
			   c->quantum_b);
}

static void way_link(struct doctor *d, const struct gx_conn_info *c)
{
	char cure[128] = "";
	bool slow = c->path_reason == GX_REASON_LAST_RESORT;

	if (slow)
		snprintf(
			cure, sizeof(cure),
			"have both ends open a port that they share, as udp, and firewalls between pass it");
	doctor_say(d, slow ? DOCTOR_SLOW : DOCTOR_OK, "link", cure, "%s over %s is taken: %s",
		   c->link, c->port[0] ? c->port : "sockets", c->why);
	if (!strcmp(c->control, "epoll"))
		doctor_say(d, DOCTOR_HINT, "control", "allow io_uring to the process",
			   "the control thread has no io_uring: connections come up more slowly");
}

static void way_version(struct doctor *d, const struct perf *perf)
{
	bool same = !strcmp(perf->server_version, gx_version());

	doctor_say(d, same ? DOCTOR_OK : DOCTOR_HINT, "version",
		   same ? "" : "install the same version at both ends",
		   "this end %s, the server %s%s", gx_version(), perf->server_version,
		   same ? "" : ": they work together, by what both know");
}

/* Return: an enum perf_status. */
static int way_to(struct doctor *d)
{
	struct perf_opts one = *d->opts;
	struct perf perf;
	int ret;

	one.server.nr_conns = 1;
	ret = perf_open(&one, d->report, 1, &perf);
	if (!ret)
		ret = perf_connect_any(&perf);
	if (!ret) {
		d->far = !perf.info.same_host;
		way_version(d, &perf);
		way_link(d, &perf.info);
		way_mtu(d, &perf);
	} else {
		doctor_say(d, DOCTOR_REFUSED, "connect", "as the message on stderr says",
			   "no connection to %s", d->opts->addr);
	}
	perf_close(&perf);
	return ret;
}

int perf_doctor(const struct perf_opts *opts, struct report *report)
{
	struct doctor d = {.opts = opts,
			   .report = report,
			   .findings = js_array(),
			   .quiet = !report_is_table(report)};
	int ret = PERF_OK;

	doctor_host(&d);
	if (opts->addr) {
		way_nic(&d);
		if (d.nic[0])
			doctor_nic(&d);
		ret = way_to(&d);
		if (!ret && d.far)
			doctor_ways(&d);
	}
	report_flush(report);
	report_part(report, "doctor", d.findings);
	if (ret == PERF_USAGE || ret >= PERF_STOPPED)
		return ret;
	return d.worst == DOCTOR_REFUSED ? PERF_LOST
	       : d.worst == DOCTOR_SLOW	 ? PERF_FAILED
					 : PERF_OK;
}
