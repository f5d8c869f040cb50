// SPDX-License-Identifier: Apache-2.0
/*
 * gxd's services: the queue from gx's control thread to the worker thread, and what the worker does
 * for each request. Requests and replies are described at their functions (op_*), the envelope in
 * rpc.h.
 */
#include "gxd/gxd_service.h"

#include "common/digest.h"
#include "common/json.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SERVICE_JOBS_MAX       1024	    /* requests waiting, of all clients */
#define SERVICE_NEWS_NS	       200000000ull /* a long request tells of its progress this often */
#define SERVICE_WHY_MAX	       256
#define SERVICE_GROUP_BITS_MAX 16
#define SERVICE_NR_MAX	       (2 * SERVICE_SLOTS_MAX) /* slots of one request */
#define SERVICE_DESCRIBE_MAX   16384
#define SERVICE_PLACE_B	       4096 /* a place that is proposed to a client is a multiple of it */

/* One request, or the end of a client (text NULL). */
struct job {
	struct job *next;
	struct service_client *client;
	char *text;
	uint32_t len;
};

struct service {
	struct gx *gx;
	const struct service_region *regions;
	unsigned nr_regions;
	enum gx_unpack_mode unpack;
	unsigned sms;
	struct service_core *cores; /* frozen after open */
	unsigned nr_cores;

	pthread_t worker;
	pthread_mutex_t lock; /* of all below */
	pthread_cond_t work;
	struct job *head, **tail;
	unsigned nr_jobs;
	struct service_client *clients; /* all there are */
	bool working, quit;
};

/* ---- Queue ---- */

static struct job *job_new(struct service_client *client, const void *data, uint32_t len)
{
	struct job *job = calloc(1, sizeof(*job));

	if (!job)
		return NULL;
	job->client = client;
	job->len = len;
	if (data) {
		job->text = malloc(len + 1);
		if (!job->text) {
			free(job);
			return NULL;
		}
		memcpy(job->text, data, len);
		job->text[len] = '\0';
	}
	return job;
}

static void job_free(struct job *job)
{
	free(job->text);
	free(job);
}

/* The end of a client is never refused; requests are, when too many wait. */
static bool job_put(struct service *svc, struct job *job)
{
	bool taken;

	pthread_mutex_lock(&svc->lock);
	taken = !svc->quit && (!job->text || svc->nr_jobs < SERVICE_JOBS_MAX);
	if (taken) {
		*svc->tail = job;
		svc->tail = &job->next;
		svc->nr_jobs++;
		pthread_cond_signal(&svc->work);
	}
	pthread_mutex_unlock(&svc->lock);
	return taken;
}

/* NULL: the worker is to end. */
static struct job *job_get(struct service *svc)
{
	struct job *job;

	pthread_mutex_lock(&svc->lock);
	svc->working = false;
	while (!svc->head && !svc->quit)
		pthread_cond_wait(&svc->work, &svc->lock);
	job = svc->quit ? NULL : svc->head;
	if (job) {
		svc->head = job->next;
		if (!svc->head)
			svc->tail = &svc->head;
		svc->nr_jobs--;
		svc->working = true;
	}
	pthread_mutex_unlock(&svc->lock);
	return job;
}

bool service_busy(struct service *svc)
{
	bool busy;

	pthread_mutex_lock(&svc->lock);
	busy = svc->working || svc->head;
	for (struct service_client *c = svc->clients; c && !busy; c = c->next)
		busy = atomic_load(&c->leases) && !atomic_load(&c->down);
	pthread_mutex_unlock(&svc->lock);
	return busy;
}

unsigned service_clients(struct service *svc)
{
	unsigned nr = 0;

	pthread_mutex_lock(&svc->lock);
	for (struct service_client *c = svc->clients; c; c = c->next)
		nr++;
	pthread_mutex_unlock(&svc->lock);
	return nr;
}

void service_on_conn(struct service *svc, struct gx_conn *conn, enum gx_conn_event event)
{
	struct service_client *client = gx_conn_user(conn);
	struct job *job;

	if (event == GX_CONN_UP) {
		client = calloc(1, sizeof(*client));
		if (!client)
			return; /* it moves bytes, and gets no services */
		client->svc = svc;
		client->conn = conn;
		pthread_mutex_lock(&svc->lock);
		client->next = svc->clients;
		svc->clients = client;
		pthread_mutex_unlock(&svc->lock);
		gx_conn_user_set(conn, client);
		return;
	}
	if (!client) {
		gx_conn_close(conn);
		return;
	}
	atomic_store_explicit(&client->down, true, memory_order_release);
	job = job_new(client, NULL, 0);
	if (!job || !job_put(svc, job))
		free(job); /* no memory, or ending: gx_close() and service_close() take what is left
			    */
}

void service_on_msg(struct service *svc, struct gx_conn *conn, const void *data, uint32_t len)
{
	struct service_client *client = gx_conn_user(conn);
	struct job *job = client && len <= RPC_MSG_MAX ? job_new(client, data, len) : NULL;

	if (job && !job_put(svc, job))
		job_free(job);
}

/* ---- Requests ---- */

/* One request as its op_*() sees it. */
struct request {
	struct service *svc;
	struct service_client *client;
	struct service_work work;
	struct json_t *in;
	char why[SERVICE_WHY_MAX]; /* of a failure */
};

int service_work_on(struct service_work *work, uint64_t done_b)
{
	uint64_t now;

	if (atomic_load_explicit(&work->client->down, memory_order_acquire))
		return -ECANCELED;
	now = gx_now();
	if (now - work->news_ns < SERVICE_NEWS_NS)
		return 0;
	work->news_ns = now;
	rpc_send(work->client->conn,
		 js_pack("{s:I, s:I}", "id", work->id, "progress", (long long)done_b));
	return 0;
}

static struct json_t *request_fail(struct request *req, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(req->why, sizeof(req->why), fmt, ap);
	va_end(ap);
	return NULL;
}

static const struct service_region *request_region(struct request *req, const char *name)
{
	for (unsigned i = 0; i < req->svc->nr_regions; i++)
		if (!strcmp(req->svc->regions[i].opt.name, name))
			return &req->svc->regions[i];
	request_fail(req, "no region '%.63s' here", name);
	return NULL;
}

/* Region, offset and length of a request, checked against each other. */
static const struct service_region *request_range(struct request *req, uint64_t *off, uint64_t *len)
{
	const struct service_region *r;
	long long o = -1, l = -1;
	const char *name;

	if (js_unpack(req->in, req->why, sizeof(req->why), "{s:s, s:I, s:I}", "region", &name,
		      "off", &o, "len", &l))
		return NULL;
	r = request_region(req, name);
	if (!r)
		return NULL;
	if (o < 0 || l < 0 || (uint64_t)o > r->opt.len || (uint64_t)l > r->opt.len - (uint64_t)o) {
		request_fail(req, "%lld bytes at %lld are outside region '%s' of %llu", l, o,
			     r->opt.name, (unsigned long long)r->opt.len);
		return NULL;
	}
	*off = (uint64_t)o;
	*len = (uint64_t)l;
	return r;
}

/* Do @nr slots of @size, @stride apart, fit behind @off in @room bytes? */
static bool slots_fit(uint64_t room, uint64_t off, uint64_t size, uint64_t stride, uint64_t nr)
{
	uint64_t span;

	if (!nr || nr > SERVICE_NR_MAX || stride < size || off > room)
		return !nr;
	return !__builtin_mul_overflow(nr - 1, stride, &span) && span <= room - off &&
	       size <= room - off - span;
}

static const struct service_region *request_slots(struct request *req, struct service_slots *s)
{
	const struct service_region *r;
	long long off, size, stride, nr, seed, iter;
	const char *name;

	if (js_unpack(req->in, req->why, sizeof(req->why), "{s:s, s:I, s:I, s:I, s:I, s:I, s:I}",
		      "region", &name, "off", &off, "size", &size, "stride", &stride, "n", &nr,
		      "seed", &seed, "iter", &iter))
		return NULL;
	r = request_region(req, name);
	if (!r)
		return NULL;
	*s = (struct service_slots){.off = (uint64_t)off,
				    .size = (uint64_t)size,
				    .stride = (uint64_t)stride,
				    .nr = (uint64_t)nr,
				    .seed = (uint64_t)seed,
				    .iter = (uint64_t)iter};
	if (off >= 0 && size >= 0 && stride >= 0 && nr >= 0 &&
	    slots_fit(r->opt.len, s->off, s->size, s->stride, s->nr))
		return r;
	request_fail(req, "%lld slots of %lld bytes at %lld are outside region '%s' of %llu", nr,
		     size, off, r->opt.name, (unsigned long long)r->opt.len);
	return NULL;
}

static struct json_t *request_done(struct request *req, int ret)
{
	return ret ? request_fail(req, "%s", ret == -ECANCELED ? "client gone" : gx_error())
		   : js_pack("{}");
}

/* hello {} -> {version, rpc, pid, unpack, sms, describe} */
static struct json_t *op_hello(struct request *req)
{
	struct service *svc = req->svc;
	char *text = calloc(1, SERVICE_DESCRIBE_MAX);
	struct json_t *out;

	if (text)
		gx_describe(svc->gx, text, SERVICE_DESCRIBE_MAX);
	out = js_pack("{s:s, s:i, s:i, s:s, s:i}", "version", gx_version(), "rpc", RPC_VERSION,
		      "pid", (int)getpid(), "unpack", opt_unpack_text(svc->unpack), "sms",
		      (int)svc->sms);
	if (out)
		js_set(out, "describe", js_string(text ? text : ""));
	free(text);
	return out;
}

/* poison {region, off, len} -> {} */
static struct json_t *op_poison(struct request *req)
{
	uint64_t off, len;
	const struct service_region *r = request_range(req, &off, &len);

	return r ? request_done(req, service_poison(&req->work, r, off, len)) : NULL;
}

/* fill {region, off, size, stride, n, seed, iter} -> {}: slot j becomes message iter + j */
static struct json_t *op_fill(struct request *req)
{
	struct service_slots s;
	const struct service_region *r = request_slots(req, &s);

	return r ? request_done(req, service_fill(&req->work, r, &s)) : NULL;
}

/* sha256 {region, off, len} -> {sha256} */
static struct json_t *op_sha256(struct request *req)
{
	uint64_t off, len;
	const struct service_region *r = request_range(req, &off, &len);
	char hex[DIGEST_HEX_MAX];
	int ret;

	if (!r)
		return NULL;
	ret = service_sha256(&req->work, r, off, len, hex);
	return ret ? request_done(req, ret) : js_pack("{s:s}", "sha256", hex);
}

static struct service_session *session_find(struct service_client *client, long long lane)
{
	for (struct service_session *s = client->sessions; s; s = s->next)
		if (lane >= 0 && s->ep == gx_conn_ep(client->conn, (unsigned)lane))
			return s;
	return NULL;
}

/*
 * verify {region, off, size, stride, n, seed, iter[, lane, upto]} -> {checked_b, wrong,
 * first_wrong_off} With lane, the receives of that lane may use again what messages below upto have
 * used.
 */
static struct json_t *op_verify(struct request *req)
{
	struct check_result res = CHECK_RESULT_NONE;
	struct service_slots s;
	const struct service_region *r = request_slots(req, &s);
	long long lane = -1, upto = 0;
	struct service_session *session;
	int ret;

	if (!r || js_unpack(req->in, req->why, sizeof(req->why), "{s?:I, s?:I}", "lane", &lane,
			    "upto", &upto))
		return NULL;
	ret = service_verify(&req->work, r, &s, &res);
	if (ret)
		return request_done(req, ret);
	session = session_find(req->client, lane);
	/* Pairs with the acquire in session_slot_free(). */
	if (session)
		atomic_store_explicit(&session->checked_upto, (uint64_t)upto, memory_order_release);
	return js_pack("{s:I, s:I, s:I}", "checked_b", (long long)res.checked_b, "wrong",
		       (long long)res.wrong, "first_wrong_off",
		       res.wrong ? (long long)res.first_wrong_off : -1);
}

/* ---- Leases ---- */

static bool lease_conflicts(const struct service_lease *a, const struct service_lease *b)
{
	if (a->region != b->region || !a->len || !b->len)
		return false;
	if (a->off >= b->off + b->len || b->off >= a->off + a->len)
		return false;
	return a->write || b->write || strcmp(a->content, b->content) != 0;
}

/* Another client whose lease is in the way of @want, or NULL. */
static struct service_client *lease_holder(struct request *req, const struct service_lease *want)
{
	struct service_client *found = NULL;

	pthread_mutex_lock(&req->svc->lock);
	for (struct service_client *c = req->svc->clients; c && !found; c = c->next)
		if (c != req->client && lease_conflicts(want, &c->lease))
			found = c;
	pthread_mutex_unlock(&req->svc->lock);
	return found; /* only this thread frees one */
}

/* The first place behind what others hold where @want fits. Return: there is one. */
static bool lease_place(struct request *req, const struct service_lease *want, uint64_t *off)
{
	struct service_lease at = *want;
	struct service_client *holder;

	at.off = 0;
	while (at.len <= at.region->opt.len && at.off <= at.region->opt.len - at.len) {
		holder = lease_holder(req, &at);
		if (!holder) {
			*off = at.off;
			return true;
		}
		at.off = (holder->lease.off + holder->lease.len + SERVICE_PLACE_B - 1) &
			 ~(uint64_t)(SERVICE_PLACE_B - 1);
	}
	return false;
}

static struct json_t *lease_held(struct request *req, const struct service_lease *want,
				 struct service_client *holder)
{
	const struct service_lease *l = &holder->lease;
	struct gx_conn_info info = GX_INIT(info);
	char place[32] = "", text[2 * SERVICE_WHY_MAX];
	struct json_t *out = js_pack("{}");
	uint64_t off;

	if (gx_conn_info(holder->conn, &info))
		snprintf(info.peer, sizeof(info.peer), "another client");
	if (lease_place(req, want, &off))
		opt_size_text(off, place, sizeof(place));
	snprintf(text, sizeof(text),
		 "bytes %llu to %llu of region '%s' are in use by %s: %s%s%s another --mem, or "
		 "wait until it has ended",
		 (unsigned long long)l->off, (unsigned long long)(l->off + l->len - 1),
		 l->region->opt.name, info.peer,
		 place[0] ? "give --offset " : "beside them it has no room for so much: take",
		 place, place[0] ? "," : "");
	if (out)
		js_set(out, "held", js_string(text));
	return out;
}

/*
 * lease {region, off, len, write, content} -> {} or {held: words}: these bytes are the client's
 * until its connection ends or it takes another lease. Who reads what another reads is let in when
 * both say that the same lies there. It binds those who ask, not who puts without asking.
 */
static struct json_t *op_lease(struct request *req)
{
	struct service_lease want = {.write = false};
	struct service_client *holder;
	const char *content;
	int write;

	want.region = request_range(req, &want.off, &want.len);
	if (!want.region || js_unpack(req->in, req->why, sizeof(req->why), "{s:b, s:s}", "write",
				      &write, "content", &content))
		return NULL;
	want.write = write;
	if (strlen(content) >= sizeof(want.content))
		return request_fail(req, "'%.70s' is longer than %zu", content,
				    sizeof(want.content) - 1);
	snprintf(want.content, sizeof(want.content), "%s", content);
	holder = lease_holder(req, &want);
	if (holder)
		return lease_held(req, &want, holder);
	req->client->lease = want;
	atomic_store(&req->client->leases, true);
	return js_pack("{}");
}

static long long cores_stat(struct service *svc, const char *name)
{
	uint64_t sum = 0, one;

	for (unsigned i = 0; i < svc->nr_cores; i++)
		if (!gx_core_stat(svc->cores[i].core, name, &one))
			sum += one;
	return (long long)sum;
}

/* cpu {} -> {cores_ns, process_ns, resent, spurious, dup}: CPU time used, and packets of all
 * clients that were sent again, for nothing, and that came twice, so far */
static struct json_t *op_cpu(struct request *req)
{
	struct service *svc = req->svc;
	long long cores_ns = 0, process_ns;
	struct timespec ts;

	for (unsigned i = 0; i < svc->nr_cores; i++) {
		struct service_core *core = &svc->cores[i];

		if (atomic_load_explicit(&core->clock_set, memory_order_acquire) &&
		    !clock_gettime(core->clock, &ts))
			cores_ns += ts.tv_sec * 1000000000ll + ts.tv_nsec;
	}
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	process_ns = ts.tv_sec * 1000000000ll + ts.tv_nsec;
	return js_pack("{s:I, s:I, s:I, s:I, s:I}", "cores_ns", cores_ns, "process_ns", process_ns,
		       "resent", cores_stat(svc, "tx_resent"), "spurious",
		       cores_stat(svc, "tx_spurious"), "dup", cores_stat(svc, "rx_dup"));
}

/* echo {region, base} -> {}: puts there with RPC_IMM_ECHO go back to the client's region
 * RPC_ECHO_REGION, base bytes further to the front */
static struct json_t *op_echo(struct request *req)
{
	struct service_client *client = req->client;
	struct gx_region region = GX_INIT(region);
	const struct service_region *r;
	const char *name;
	long long base;

	if (js_unpack(req->in, req->why, sizeof(req->why), "{s:s, s:I}", "region", &name, "base",
		      &base))
		return NULL;
	r = request_region(req, name);
	if (!r)
		return NULL;
	if (atomic_load_explicit(&client->echo, memory_order_relaxed))
		return request_fail(req, "this connection has an echo already");
	if (gx_conn_region(client->conn, RPC_ECHO_REGION, 0, &region))
		return request_fail(req, "the client shares no region '%s'", RPC_ECHO_REGION);
	client->echo_mem = r->mem;
	client->echo_token = region.token;
	client->echo_base = (uint64_t)base;
	/* Pairs with the acquire in echo_take(). */
	atomic_store_explicit(&client->echo, true, memory_order_release);
	return js_pack("{}");
}

static struct service_core *session_core(struct service *svc, struct gx_ep *ep)
{
	for (unsigned i = 0; i < svc->nr_cores; i++)
		if (svc->cores[i].core == gx_ep_core(ep))
			return &svc->cores[i];
	return NULL;
}

/* The core lets go of what it polls for @client, if it does. */
static void poller_end(struct service_core *core, const struct service_client *client)
{
	struct service_poller *p = atomic_load_explicit(&core->poller, memory_order_relaxed);

	if (!p || p->client != client)
		return;
	atomic_store_explicit(&core->poller, NULL, memory_order_relaxed);
	/* One that a core does not let go of is left: it may still look at it. */
	if (!service_core_call(core, service_core_barrier, NULL))
		free(p);
}

static struct service_poller *poller_new(struct request *req, const struct service_region *r,
					 const struct service_slots *s)
{
	struct service_poller *p = calloc(1, sizeof(*p));
	struct gx_region region = GX_INIT(region);

	if (!p || gx_conn_region(req->client->conn, RPC_ECHO_REGION, 0, &region)) {
		request_fail(req, p ? "the client shares no region '%s'" : "no memory for '%s'",
			     RPC_ECHO_REGION);
		free(p);
		return NULL;
	}
	p->client = req->client;
	p->ep = gx_conn_ep(req->client->conn, 0);
	p->stride = s->stride;
	p->last = (unsigned char *)gx_mem_addr(r->mem) + s->off + s->size - 1;
	p->op = (struct gx_op){.size = sizeof(p->op),
			       .kind = GX_OP_PUT,
			       .flags = GX_OP_SILENT,
			       .mem = r->mem,
			       .off = s->off,
			       .len = s->size,
			       .token = region.token};
	return p;
}

/*
 * poll {region, off, size, stride, n, seed, iter} -> {}: as echo, for messages that come without a
 * notification: the core looks at their last byte. n is RPC_POLL_SLOTS; again with other numbers
 * ends what was polled before.
 */
static struct json_t *op_poll(struct request *req)
{
	struct service_slots s;
	const struct service_region *r = request_slots(req, &s);
	struct service_core *core;
	struct service_poller *p;
	struct gx_ep *ep = gx_conn_ep(req->client->conn, 0);

	if (!r)
		return NULL;
	core = ep ? session_core(req->svc, ep) : NULL;
	if (!core || s.nr != RPC_POLL_SLOTS || !s.size || r->opt.kind != GX_MEM_HOST)
		return request_fail(req, "polls %d slots of 1 byte or more in host memory",
				    RPC_POLL_SLOTS);
	p = atomic_load_explicit(&core->poller, memory_order_relaxed);
	if (p && p->client != req->client)
		return request_fail(req, "the core that would poll memory does so for another "
					 "client: wait until that has ended, or leave --poll out");
	p = poller_new(req, r, &s);
	if (!p)
		return NULL;
	poller_end(core, req->client);
	/* Pairs with the acquire in service_core_poll(). */
	atomic_store_explicit(&core->poller, p, memory_order_release);
	return js_pack("{}");
}

/* ---- Receive sessions ---- */

static void session_free(struct service_session *s)
{
	free(s->slot_iter);
	free(s->slot_busy);
	free(s);
}

static bool power_of_two(uint64_t v)
{
	return v && !(v & (v - 1));
}

static struct service_session *session_new(const struct check_ring *ring)
{
	struct service_session *s = calloc(1, sizeof(*s));
	uint64_t total = check_ring_total(ring);

	if (!s)
		return NULL;
	s->ring = *ring;
	s->slot_iter = malloc(total * sizeof(s->slot_iter[0]));
	s->slot_busy = calloc(total, 1);
	if (!s->slot_iter || !s->slot_busy) {
		session_free(s);
		return NULL;
	}
	memset(s->slot_iter, 0xff, total * sizeof(s->slot_iter[0]));
	return s;
}

/* The numbers of a recv request; false with the reason set when they make no sense. */
static bool session_ring(struct request *req, const struct service_slots *slots,
			 struct check_ring *ring, long long *lane, long long *depth)
{
	long long nr_slots, group_bits;
	int sample, apart;

	if (js_unpack(req->in, req->why, sizeof(req->why), "{s:I, s:I, s:I, s:I, s:b, s:b}", "lane",
		      lane, "depth", depth, "slots", &nr_slots, "group_bits", &group_bits, "sample",
		      &sample, "apart", &apart))
		return false;
	*ring = (struct check_ring){.nr_slots = (uint64_t)nr_slots,
				    .group_bits = (uint32_t)group_bits,
				    .sample = sample,
				    .apart = apart};
	if (nr_slots > 0 && nr_slots <= SERVICE_SLOTS_MAX && power_of_two(ring->nr_slots) &&
	    group_bits >= 0 && group_bits <= SERVICE_GROUP_BITS_MAX && (apart || !group_bits) &&
	    *lane >= 0 && *depth > 0 && *depth <= nr_slots && check_ring_total(ring) == slots->nr)
		return true;
	request_fail(req, "%lld receives in %lld slots, checked by 2^%lld, make no sense", *depth,
		     nr_slots, group_bits);
	return false;
}

/*
 * recv {region, off, size, stride, n, seed, iter, lane, depth, slots, group_bits, sample, apart} ->
 * {} Keeps depth receives posted on the lane, tag = number of the message, until recv_stop. See
 * struct check_ring.
 */
static struct json_t *op_recv(struct request *req)
{
	struct service_client *client = req->client;
	struct service_session *s;
	struct service_slots slots;
	struct check_ring ring;
	const struct service_region *r = request_slots(req, &slots);
	long long lane, depth;
	struct gx_ep *ep;

	if (!r || !session_ring(req, &slots, &ring, &lane, &depth))
		return NULL;
	ep = gx_conn_ep(client->conn, (unsigned)lane);
	if (!ep || session_find(client, lane))
		return request_fail(req, "lane %lld %s", lane,
				    ep ? "receives already" : "is not there");
	s = session_new(&ring);
	if (!s)
		return request_fail(req, "no memory");
	s->ep = ep;
	s->core = session_core(req->svc, ep);
	s->mem = r->mem;
	s->off = slots.off;
	s->size = slots.size;
	s->stride = slots.stride;
	s->depth = (uint32_t)depth;
	if (!s->core || service_session_start(s)) {
		session_free(s);
		return request_fail(req, "the core takes no more receives");
	}
	s->next = client->sessions;
	client->sessions = s;
	return js_pack("{}");
}

/* A session whose core does not let go is leaked: its memory may still be written. */
static bool session_end(struct service_client *client, struct service_session *s)
{
	struct service_session **p = &client->sessions;

	while (*p != s)
		p = &(*p)->next;
	*p = s->next;
	if (!service_session_stop(s))
		return true;
	fprintf(stderr, "gxd: receives of a client do not end; their memory is left alone\n");
	return false;
}

/* recv_stop {lane} -> {received, bytes, bad, err}: bad are messages of a wrong length or tag */
static struct json_t *op_recv_stop(struct request *req)
{
	struct service_session *s;
	struct json_t *out;
	long long lane;

	if (js_unpack(req->in, req->why, sizeof(req->why), "{s:I}", "lane", &lane))
		return NULL;
	s = session_find(req->client, lane);
	if (!s)
		return request_fail(req, "lane %lld receives nothing", lane);
	if (!session_end(req->client, s))
		return request_fail(req, "the receives of lane %lld do not end", lane);
	out = js_pack("{s:I, s:I, s:I, s:i}", "received",
		      (long long)atomic_load_explicit(&s->received, memory_order_relaxed), "bytes",
		      (long long)atomic_load_explicit(&s->bytes, memory_order_relaxed), "bad",
		      (long long)atomic_load_explicit(&s->bad, memory_order_relaxed), "err",
		      atomic_load_explicit(&s->err, memory_order_relaxed));
	session_free(s);
	return out;
}

/* ---- Worker ---- */

static const struct {
	const char *name;
	struct json_t *(*fn)(struct request *req); /* NULL: req->why says why */
} service_ops[] = {
	{"hello", op_hello},	     {"poison", op_poison}, {"fill", op_fill},
	{"verify", op_verify},	     {"sha256", op_sha256}, {"cpu", op_cpu},
	{"echo", op_echo},	     {"poll", op_poll},	    {"recv", op_recv},
	{"recv_stop", op_recv_stop}, {"lease", op_lease},
};

static struct json_t *request_run(struct request *req, const char *op)
{
	for (size_t i = 0; i < sizeof(service_ops) / sizeof(service_ops[0]); i++)
		if (!strcmp(op, service_ops[i].name))
			return service_ops[i].fn(req);
	return request_fail(req, "gxd %s knows no '%.32s'", gx_version(), op);
}

static void request_reply(struct request *req, struct json_t *out)
{
	if (out) {
		js_set(out, "id", js_pack("I", req->work.id));
		js_set(out, "ok", js_pack("b", 1));
	} else {
		out = js_pack("{s:I, s:b}", "id", req->work.id, "ok", 0);
		if (out)
			js_set(out, "error", js_string(req->why));
	}
	rpc_send(req->client->conn, out);
}

static void service_request(struct service *svc, const struct job *job, unsigned char *room)
{
	struct request req = {.svc = svc, .client = job->client, .why = ""};
	const char *op = "";

	if (atomic_load_explicit(&job->client->down, memory_order_acquire))
		return;
	req.work = (struct service_work){.client = job->client, .news_ns = gx_now(), .room = room};
	req.in = js_parse(job->text, job->len, req.why, sizeof(req.why));
	if (!req.in || js_unpack(req.in, req.why, sizeof(req.why), "{s:I, s:s}", "id", &req.work.id,
				 "op", &op))
		request_reply(&req, NULL);
	else
		request_reply(&req, request_run(&req, op));
	js_free(req.in);
}

/* Everything that names the client lets go of it, the cores last; then gx may free the connection.
 */
static void client_end(struct service *svc, struct service_client *client)
{
	struct service_session *s;

	while ((s = client->sessions))
		if (session_end(client, s))
			session_free(s);
	gx_conn_user_set(client->conn, NULL);
	for (unsigned i = 0; i < svc->nr_cores; i++)
		poller_end(&svc->cores[i], client);
	for (unsigned i = 0; i < svc->nr_cores; i++)
		service_core_call(&svc->cores[i], service_core_barrier, NULL);
	gx_conn_close(client->conn);
	pthread_mutex_lock(&svc->lock);
	for (struct service_client **p = &svc->clients; *p; p = &(*p)->next) {
		if (*p == client) {
			*p = client->next;
			break;
		}
	}
	pthread_mutex_unlock(&svc->lock);
	free(client);
}

static void *service_worker(void *arg)
{
	struct service *svc = arg;
	unsigned char *room = malloc(SERVICE_PIECE_B);
	struct job *job;

	while (room && (job = job_get(svc))) {
		if (job->text)
			service_request(svc, job, room);
		else
			client_end(svc, job->client);
		job_free(job);
	}
	free(room);
	return NULL;
}

/* ---- Life ---- */

static int service_cores_open(struct service *svc)
{
	int ret = 0;

	svc->nr_cores = gx_nr_cores(svc->gx);
	svc->cores = calloc(svc->nr_cores, sizeof(svc->cores[0]));
	if (!svc->cores)
		return -ENOMEM;
	for (unsigned i = 0; i < svc->nr_cores && !ret; i++) {
		svc->cores[i].svc = svc;
		svc->cores[i].core = gx_core(svc->gx, i);
		ret = gx_core_poller(svc->cores[i].core, service_core_poll, &svc->cores[i]);
	}
	return ret;
}

int service_open(const struct service_opts *opts, struct service **out)
{
	struct service *svc = calloc(1, sizeof(*svc));
	int ret;

	if (!svc)
		return -ENOMEM;
	svc->gx = opts->gx;
	svc->regions = opts->regions;
	svc->nr_regions = opts->nr_regions;
	svc->unpack = opts->unpack;
	svc->sms = opts->sms;
	svc->tail = &svc->head;
	pthread_mutex_init(&svc->lock, NULL);
	pthread_cond_init(&svc->work, NULL);
	ret = service_cores_open(svc);
	if (!ret)
		ret = -pthread_create(&svc->worker, NULL, service_worker, svc);
	if (ret) {
		svc->quit = true;
		service_close(svc);
		return ret;
	}
	*out = svc;
	return 0;
}

void service_stop(struct service *svc)
{
	bool first;

	pthread_mutex_lock(&svc->lock);
	first = !svc->quit;
	svc->quit = true;
	pthread_cond_signal(&svc->work);
	pthread_mutex_unlock(&svc->lock);
	if (first)
		pthread_join(svc->worker, NULL);
}

void service_close(struct service *svc)
{
	struct service_client *client;
	struct service_session *s;
	struct job *job;

	if (!svc)
		return;
	service_stop(svc);
	while ((job = svc->head)) {
		svc->head = job->next;
		job_free(job);
	}
	while ((client = svc->clients)) {
		svc->clients = client->next;
		while ((s = client->sessions)) {
			client->sessions = s->next;
			session_free(s);
		}
		free(client);
	}
	pthread_cond_destroy(&svc->work);
	pthread_mutex_destroy(&svc->lock);
	for (unsigned i = 0; svc->cores && i < svc->nr_cores; i++)
		free(atomic_load_explicit(&svc->cores[i].poller, memory_order_relaxed));
	free(svc->cores);
	free(svc);
}
