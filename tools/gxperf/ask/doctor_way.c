// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf doctor: what each way to a server does (udp, tcp, RDMA where this host has a device): round trip,
 * loss, rate and size of packets each way. A way of which nothing was seen is refused, with the reason. Each has a context
 * of its own. Main thread.
 */
#include "gxperf/ask/doctor.h"

#include "gxperf/base/stop.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WAY_TRIPS    21		    /* notes, one after another */
#define WAY_NS	     200000000ull   /* to measure a rate */
#define WAY_END_NS   30000000000ull /* for what is under way to end */
#define WAY_DEPTH    16
#define WAY_GET_B    262144
#define WAY_LOSS_MAX 0.001

struct way {
	const char *check, *link, *port;
};

/* What was seen. */
struct way_seen {
	uint64_t trip_ns, least_ns; /* the middle one, and the shortest */
	double out_gb_s, in_gb_s;   /* 0: no region may be read */
	uint64_t sent, lost;	    /* packets of ours */
	struct gx_conn_info info;
};

/* Operations under way on a queue. */
struct way_run {
	struct gx_queue *q;
	struct gx_ep *ep;
	unsigned under_way;
	int err; /* the first that failed */
};

/* Take completions until @most are under way. Return: 0, -errno. */
static int run_wait(struct way_run *r, unsigned most)
{
	uint64_t end = gx_now() + WAY_END_NS;
	struct gx_comp comp;

	while (r->under_way > most && !r->err) {
		if (!gx_poll(r->q, &comp, 1)) {
			if (gx_now() > end || stop_asked())
				return -ETIMEDOUT;
			sched_yield();
			continue;
		}
		r->under_way--;
		r->err = comp.status;
	}
	return r->err;
}

static int run_post(struct way_run *r, const struct gx_op *op)
{
	uint64_t end = gx_now() + WAY_END_NS;
	int n;

	while ((n = gx_post(r->q, r->ep, op, 1)) == 0 || n == -EAGAIN) {
		if (r->under_way ? run_wait(r, r->under_way - 1) : gx_now() > end)
			return -ETIMEDOUT;
	}
	if (n < 0)
		return n;
	r->under_way++;
	return 0;
}

/* Bytes a nanosecond, which are GB/s. 0: *@err says why. */
static double run_rate(struct way_run *r, const struct gx_op *op, uint64_t bytes, int *err)
{
	uint64_t start = gx_now(), n = 0;

	for (*err = 0; !*err && gx_now() - start < WAY_NS; n++) {
		*err = run_post(r, op);
		if (!*err)
			*err = run_wait(r, WAY_DEPTH - 1);
	}
	if (!*err)
		*err = run_wait(r, 0);
	return *err ? 0 : (double)(n * bytes) / (double)(gx_now() - start);
}

static int trip_cmp(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* gxd drops notes; what it holds it sends, and nothing is written there. */
static int way_measure(struct perf *perf, struct way_run *r, struct gx_conn *conn,
		       struct way_seen *seen)
{
	static unsigned char note[GX_NOTE_MAX], room[WAY_GET_B];
	struct gx_op op = {.kind = GX_OP_PUT, .flags = GX_OP_NOTE, .note = note, .note_len = 64};
	uint64_t trips[WAY_TRIPS], resent = 0, again = 0;
	struct gx_region region = GX_INIT(region);
	int ret = 0;

	for (unsigned i = 0; i < WAY_TRIPS && !ret; i++) {
		trips[i] = gx_now();
		ret = run_post(r, &op);
		if (!ret)
			ret = run_wait(r, 0);
		trips[i] = gx_now() - trips[i];
	}
	if (ret)
		return ret;
	qsort(trips, WAY_TRIPS, sizeof(trips[0]), trip_cmp);
	seen->least_ns = trips[0];
	seen->trip_ns = trips[WAY_TRIPS / 2];
	op.note_len = sizeof(note);
	seen->out_gb_s = run_rate(r, &op, sizeof(note), &ret);
	for (unsigned k = 0; !ret && !gx_conn_region(conn, NULL, k, &region); k++) {
		if (!(region.access & GX_ACCESS_GET))
			continue;
		op = (struct gx_op){.kind = GX_OP_GET, .addr = room, .token = region.token};
		op.len = region.len < sizeof(room) ? region.len : sizeof(room);
		seen->in_gb_s = run_rate(r, &op, op.len, &ret);
		break;
	}
	gx_core_stat(gx_core(perf->gx, 0), "tx_pkts", &seen->sent);
	gx_core_stat(gx_core(perf->gx, 0), "tx_resent", &resent);
	gx_core_stat(gx_core(perf->gx, 0), "tx_spurious", &again);
	seen->lost = resent > again ? resent - again : 0;
	gx_conn_info(conn, &seen->info);
	return ret;
}

static void way_say(struct doctor *d, const struct way *way, const struct way_seen *s)
{
	bool packets = !strcmp(s->info.link, "packet");
	bool lossy = packets && (double)s->lost > WAY_LOSS_MAX * (double)s->sent;
	char size[160] = "";

	if (packets)
		snprintf(size, sizeof(size),
			 "; packets of %u bytes there and %u back; lost %llu of %llu sent",
			 s->info.quantum_b, s->info.quantum_in_b, (unsigned long long)s->lost,
			 (unsigned long long)s->sent);
	doctor_say(
		d, lossy ? DOCTOR_SLOW : DOCTOR_OK, way->check,
		lossy ? "look for drops: ethtool -S of both interfaces, and of the switches between"
		      : "",
		"round trip %.3f ms, at least %.3f; %.2f GB/s there in notes of 4 KiB%s%.2f GB/s "
		"back%s",
		(double)s->trip_ns / 1e6, (double)s->least_ns / 1e6, s->out_gb_s,
		s->in_gb_s > 0 ? ", " : ", no region to read: ", s->in_gb_s, size);
}

/* A server need not have every way. */
static bool way_is_absent(enum gx_reason reason)
{
	return reason == GX_REASON_NO_LINK || reason == GX_REASON_NO_PORT ||
	       reason == GX_REASON_OTHER_HOST;
}

static void way_say_not(struct doctor *d, const struct way *way, const struct gx_conn_info *info)
{
	bool absent = way_is_absent(info->reason);

	doctor_say(d, absent ? DOCTOR_HINT : DOCTOR_REFUSED, way->check,
		   absent ? "have both ends open it, if it is wanted"
		   : !strcmp(way->link, "packet")
			   ? "open the UDP ports of both ends both ways in each "
			     "firewall and security group between; or --link tcp"
			   : "as the reason says",
		   "%s", info->text[0] ? info->text : "no connection came up");
}

static int way_connect(struct perf *perf, const struct way *way, struct gx_conn **conn,
		       struct gx_conn_info *info)
{
	struct gx_connect_opts co = GX_INIT(co);
	struct gx_port_name port = {.name = way->port};
	int ret;

	co.ports = way->port ? &port : NULL;
	co.nr_ports = !!way->port;
	co.link = way->link;
	co.peer = perf->opts->conn.peer;
	co.lanes = 1;
	co.timeout_ns = perf->opts->gx.top.peer_timeout_ns;
	ret = gx_connect(perf->gx, perf->opts->addr, &co, conn);
	if (ret) {
		*conn = NULL;
		snprintf(info->text, sizeof(info->text), "%s", gx_error());
		info->reason = GX_REASON_NO_LINK;
		return ret;
	}
	ret = gx_conn_wait(*conn, WAY_END_NS);
	gx_conn_info(*conn, info);
	return ret ? ret : info->state == GX_CONN_STATE_UP ? 0 : -ENOTCONN;
}

static void way_try(struct doctor *d, const struct way *way)
{
	struct perf_opts one = *d->opts;
	struct way_seen seen = {.info = GX_INIT(seen.info)};
	struct gx_conn *conn = NULL;
	struct way_run r = {0};
	struct perf perf;
	uint64_t end;
	int ret;

	one.conn.link = way->link;
	one.conn.port = way->port;
	if (!strcmp(way->link, "verbs"))
		opt_ctx_verbs(&one.gx);
	ret = perf_open(&one, d->report, 1, &perf);
	if (!ret)
		ret = way_connect(&perf, way, &conn, &seen.info);
	if (!ret)
		ret = gx_queue_open(perf.gx, NULL, &r.q);
	if (!ret) {
		r.ep = gx_conn_ep(conn, 0);
		ret = r.ep ? way_measure(&perf, &r, conn, &seen) : -ENOTCONN;
	}
	if (ret && conn)
		gx_conn_info(conn, &seen.info);
	if (ret && !seen.info.text[0])
		snprintf(seen.info.text, sizeof(seen.info.text), "connected by link %s, and %s: %s",
			 way->link,
			 r.q ? "its operations do not end" : "this process gets no queue",
			 gx_strerror(ret));
	if (ret)
		way_say_not(d, way, &seen.info);
	else
		way_say(d, way, &seen);
	if (conn)
		gx_conn_close(conn);
	for (end = gx_now() + WAY_END_NS; r.q && gx_queue_close(r.q) == -EAGAIN && gx_now() < end;)
		perf_nap(1000000);
	perf_close(&perf);
}

static bool has_rdma(void)
{
	struct gx_device dev = GX_INIT(dev);

	for (unsigned i = 0; !gx_devices(NULL, i, &dev); i++)
		if (dev.kind == GX_DEVICE_RDMA)
			return true;
	return false;
}

void doctor_ways(struct doctor *d)
{
	static const struct way udp = {"way-udp", "packet", "udp"}, tcp = {"way-tcp", "tcp", NULL},
				verbs = {"way-rdma", "verbs", NULL};
	const char *link = d->opts->conn.link, *port = d->opts->conn.port;

	if ((!link || !strcmp(link, "packet")) && (!port || !strcmp(port, "udp")))
		way_try(d, &udp);
	if ((!link || !strcmp(link, "tcp")) && !port)
		way_try(d, &tcp);
	if ((!link || !strcmp(link, "verbs")) && !port && has_rdma())
		way_try(d, &verbs);
}
