// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf's requests to the server, other than moving bytes: leases, patterns, poison, checks, digests
 * and counters (gxd/serve/service.h); and reports of failures. Main thread, except perf_verify_request()
 * and perf_verify_reply().
 */
#include "gxperf/base/perf.h"

#include "common/digest.h"
#include "common/json.h"
#include "gxperf/base/stop.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CALL_LEASE_NS	   2000000000ull /* the server may learn late that a client has ended */
#define CALL_LEASE_MOVE_NS 300000000	 /* so long a client that moves waits for it */
#define CALL_LEASE_NAP_NS  20000000

/* ---- Failures ---- */

int perf_room(struct perf *perf, uint64_t len)
{
	const struct gx_region *r = &perf->conns[0].region;
	uint64_t offset = perf->offset;

	if (offset <= r->len && len <= r->len - offset)
		return PERF_OK;
	report_error(
		perf->report,
		"region '%s' is too small: %llu bytes at offset %llu, and it has %llu; give gxd "
		"a larger --mem %s",
		r->name, (unsigned long long)len, (unsigned long long)offset,
		(unsigned long long)r->len, r->name);
	return PERF_FAILED;
}

/* The server's answer to a lease. @why is empty: the lease is ours. */
struct lease_held {
	char why[PERF_WHY_MAX]; /* who has which bytes, and the cure */
	char by[PERF_WHY_MAX];	/* who has which bytes */
	long long place;	/* where there is room; -1: nowhere */
};

static int lease_ask(struct perf_conn *c, const struct perf_lease *want, struct lease_held *held)
{
	const char *text = "", *by = "";
	char why[PERF_WHY_MAX], content[128];
	struct json_t *reply;
	int ret;

	snprintf(content, sizeof(content), "%s", want->content ? want->content : "");
	if (want->content && want->moves)
		snprintf(content, sizeof(content), "%s at %llu", want->content,
			 (unsigned long long)c->perf->offset);
	ret = perf_call(c,
			js_pack("{s:s, s:s, s:I, s:I, s:b, s:s}", "op", "lease", "region",
				c->region.name, "off", (long long)c->perf->offset, "len",
				(long long)want->len, "write", !want->content, "content", content),
			&reply);
	if (ret)
		return ret;
	held->place = -1;
	if (js_unpack(reply, why, sizeof(why), "{s?:s, s?:s, s?:I}", "held", &text, "by", &by,
		      "place", &held->place)) {
		report_error(c->perf->report, "gxd's answer to lease: %s", why);
		ret = PERF_FAILED;
	}
	if (held->place < 0 || want->len > c->region.len ||
	    (uint64_t)held->place > c->region.len - want->len)
		held->place = -1;
	snprintf(held->why, sizeof(held->why), "%s", text);
	snprintf(held->by, sizeof(held->by), "%s", by);
	js_free(reply);
	return ret;
}

/* Among the comments of a table; else on stderr. */
static void lease_tell(struct perf *perf, const struct lease_held *held)
{
	char place[32];

	opt_size_text(perf->offset, place, sizeof(place));
	if (report_is_table(perf->report))
		report_section(perf->report, "%s: this client takes those from %s on (--offset %s)",
			       held->by, place, place);
	else
		report_note(perf->report, "%s: this client takes those from %s on (--offset %s)",
			    held->by, place, place);
}

int perf_lease(struct perf *perf, const struct perf_lease *want)
{
	bool moves = want->moves && !perf->opts->place.offset_given, moved = false;
	struct lease_held held, first;
	uint64_t waited = 0; /* without the time of an answer: the server may have been stopped */
	int ret;

	for (; !(ret = lease_ask(&perf->conns[0], want, &held)) && held.why[0];
	     waited += CALL_LEASE_NAP_NS) {
		if (waited > CALL_LEASE_NS) {
			report_error(perf->report, "%s", held.why);
			return PERF_FAILED;
		}
		if (stop_asked())
			return PERF_STOPPED;
		if (!moves || held.place < 0 || waited < CALL_LEASE_MOVE_NS) {
			perf_nap(CALL_LEASE_NAP_NS);
			continue;
		}
		if (!moved)
			first = held;
		moved = true;
		perf->offset = (uint64_t)held.place;
	}
	if (!ret && moved)
		lease_tell(perf, &first);
	if (!ret)
		report_part(perf->report, "offset", js_pack("I", (long long)perf->offset));
	return ret;
}

int perf_lost(struct perf *perf)
{
	for (unsigned i = 0; i < perf->nr_conns; i++) {
		if (!atomic_load_explicit(&perf->conns[i].down, memory_order_acquire))
			continue;
		report_error(perf->report,
			     perf->conns[i].silent ? "no more data comes from the server at %s: %s"
						   : "the server at %s is lost: %s",
			     perf->opts->addr, perf->conns[i].why);
		return PERF_LOST;
	}
	return PERF_OK;
}

/* Over link verbs the device says it of nearly all operations, and only of packets a GPU. */
static const char *op_why(const struct perf *perf, int status)
{
	if (status != -EIO || strcmp(perf->info.link, "verbs"))
		return gx_strerror(status);
	return "the RDMA device of one end failed, or no packet got through between them (is the "
	       "network interface up?), or a GPU failed";
}

int perf_op_failed(struct perf *perf, const char *op, int status)
{
	int ret = perf_lost(perf);

	report_error(perf->report, "%s to %s failed: %s", op, perf->opts->addr,
		     op_why(perf, status));
	if (ret || status == -ETIMEDOUT || status == -ECONNRESET || status == -ENOTCONN ||
	    status == -ECANCELED)
		return PERF_LOST;
	return PERF_FAILED;
}

/* ---- Services ---- */

static void perf_call_progress(void *arg, uint64_t done_b)
{
	struct perf_conn *c = arg;

	/* Runs on the control thread while the main thread waits, so nobody else prints. */
	report_progress(c->perf->report, "the server works: %.1f GB", (double)done_b / 1e9);
}

int perf_call(struct perf_conn *c, struct json_t *req, struct json_t **reply)
{
	char why[PERF_WHY_MAX] = "";
	int ret = rpc_call(c->rpc, req, perf_call_progress, c, reply, why, sizeof(why));

	if (!ret)
		return PERF_OK;
	if (ret == -ENOTCONN && perf_lost(c->perf))
		return PERF_LOST;
	report_error(c->perf->report, "gxd at %s: %s", c->perf->opts->addr, why);
	return ret == -EREMOTEIO || ret == -ENOMEM ? PERF_FAILED : PERF_LOST;
}

/* Send a request whose reply is empty. */
static int perf_call_plain(struct perf_conn *c, struct json_t *req)
{
	struct json_t *reply = NULL;
	int ret = perf_call(c, req, &reply);

	js_free(reply);
	return ret;
}

int perf_poison(struct perf *perf, uint64_t off, uint64_t len)
{
	struct perf_conn *c = &perf->conns[0];

	return perf_call_plain(c, js_pack("{s:s, s:s, s:I, s:I}", "op", "poison", "region",
					  c->region.name, "off", (long long)off, "len",
					  (long long)len));
}

static struct json_t *slots_request(const char *op, const struct perf_conn *c,
				    const struct perf_slots *s)
{
	return js_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "op", op, "region",
		       c->region.name, "off", (long long)s->off, "size", (long long)s->size,
		       "stride", (long long)s->stride, "n", (long long)s->nr, "seed",
		       (long long)PERF_SEED, "iter", (long long)s->iter);
}

int perf_fill(struct perf *perf, const struct perf_slots *s)
{
	return perf_call_plain(&perf->conns[0], slots_request("fill", &perf->conns[0], s));
}

struct json_t *perf_verify_request(const struct perf_conn *c, const struct perf_slots *s, int lane,
				   uint64_t upto)
{
	struct json_t *req = slots_request("verify", c, s);

	if (req && lane >= 0) {
		js_set(req, "lane", js_pack("i", lane));
		js_set(req, "upto", js_pack("I", (long long)upto));
	}
	return req;
}

int perf_verify_reply(struct json_t *reply, struct check_result *res)
{
	struct check_result one = CHECK_RESULT_NONE;
	long long checked_b, wrong, first;
	char why[PERF_WHY_MAX];

	if (js_unpack(reply, why, sizeof(why), "{s:I, s:I, s:I}", "checked_b", &checked_b, "wrong",
		      &wrong, "first_wrong_off", &first))
		return -EINVAL;
	one.checked_b = (uint64_t)checked_b;
	one.wrong = (uint64_t)wrong;
	if (wrong)
		one.first_wrong_off = (uint64_t)first;
	check_result_add(res, &one);
	return 0;
}

int perf_verify(struct perf *perf, const struct perf_slots *s, struct check_result *res)
{
	struct json_t *reply;
	int ret =
		perf_call(&perf->conns[0], perf_verify_request(&perf->conns[0], s, -1, 0), &reply);

	if (ret)
		return ret;
	if (perf_verify_reply(reply, res)) {
		report_error(perf->report, "gxd's answer to verify makes no sense");
		ret = PERF_FAILED;
	}
	js_free(reply);
	return ret;
}

int perf_sha256(struct perf *perf, uint64_t off, uint64_t len, char *hex)
{
	struct perf_conn *c = &perf->conns[0];
	char why[PERF_WHY_MAX];
	struct json_t *reply;
	const char *text;
	int ret = perf_call(c,
			    js_pack("{s:s, s:s, s:I, s:I}", "op", "sha256", "region",
				    c->region.name, "off", (long long)off, "len", (long long)len),
			    &reply);

	if (ret)
		return ret;
	if (js_unpack(reply, why, sizeof(why), "{s:s}", "sha256", &text)) {
		report_error(perf->report, "gxd's answer to sha256: %s", why);
		ret = PERF_FAILED;
	} else {
		snprintf(hex, DIGEST_HEX_MAX, "%s", text);
	}
	js_free(reply);
	return ret;
}

static uint64_t own_stat(const struct perf *perf, const char *name)
{
	uint64_t sum = 0, one;

	for (unsigned i = 0; i < perf->nr_cores; i++)
		if (!gx_core_stat(gx_core(perf->gx, i), name, &one))
			sum += one;
	return sum;
}

/* Connections of a core share its source ports. */
static void mark_path(struct perf_mark *m, const struct gx_path *p)
{
	struct gx_path *at = m->paths, *end = at + m->nr_paths;

	for (; at < end; at++)
		if (at->source_port == p->source_port && at->lane == p->lane && at->data == p->data)
			break;
	if (at == m->paths + REPORT_PATHS)
		return;
	if (at == end) {
		m->nr_paths++;
		*at = *p;
		return;
	}
	at->sent += p->sent;
	at->lost += p->lost;
	at->dead |= p->dead;
	at->rtt_ns = p->rtt_ns > at->rtt_ns ? p->rtt_ns : at->rtt_ns;
}

static void mark_paths(const struct perf *perf, struct perf_mark *m)
{
	for (unsigned i = 0; i < perf->nr_conns; i++) {
		struct gx_path p = GX_INIT(p);

		for (unsigned k = 0; !gx_conn_path(perf->conns[i].conn, k, &p); k++)
			mark_path(m, &p);
	}
}

int perf_mark(struct perf *perf, struct perf_mark *m)
{
	long long cores_ns = 0, resent = 0, spurious = 0, dup = 0;
	char why[PERF_WHY_MAX];
	struct json_t *reply;
	struct timespec ts;
	int ret = perf_call(&perf->conns[0], js_pack("{s:s}", "op", "cpu"), &reply);

	if (ret)
		return ret;
	js_unpack(reply, why, sizeof(why), "{s:I, s:I, s:I, s:I}", "cores_ns", &cores_ns, "resent",
		  &resent, "spurious", &spurious, "dup", &dup);
	js_free(reply);
	*m = (struct perf_mark){.at_ns = gx_now(),
				.cpu_ns = (uint64_t)cores_ns,
				.resent = (uint64_t)resent + own_stat(perf, "tx_resent") +
					  own_stat(perf, "verbs_redone"),
				.spurious = (uint64_t)spurious + own_stat(perf, "tx_spurious"),
				.dup = (uint64_t)dup + own_stat(perf, "rx_dup")};
	for (unsigned i = 0; i < REPORT_LIMITS; i++) {
		char name[32];

		snprintf(name, sizeof(name), "cc_%s_ns", report_limits[i]);
		m->limit_ns[i] = own_stat(perf, name);
	}
	mark_paths(perf, m);
	m->rate_b_s = own_stat(perf, "cc_rate_now");
	m->rtt_ns = own_stat(perf, "cc_rtt_ns_now");
	if (perf->opts->file.stripe && !clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts))
		m->cpu_ns += (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
	for (unsigned i = 0; i < perf->nr_threads && !perf->opts->file.stripe; i++)
		m->cpu_ns += perf_core_cpu_ns(&perf->cores[i]);
	return PERF_OK;
}
