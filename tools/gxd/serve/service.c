// SPDX-License-Identifier: Apache-2.0
/*
 * gxd's services: the worker thread that answers requests, and their life. The functions of service_ops
 * describe requests and replies, rpc.h the envelope.
 */
#include "gxd/serve/request.h"

#include "common/digest.h"
#include "common/json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SERVICE_DESCRIBE_MAX 16384

/* ---- Requests ---- */

/* hello {} -> {version, rpc, pid, unpack, sms, describe} */
static struct json_t *op_hello(struct request *req)
{
	struct service *svc = req->svc;
	char *text = calloc(1, SERVICE_DESCRIBE_MAX);
	struct json_t *out;

	/* The description names all regions. */
	if (text && !request_is_limited(req))
		gx_describe(svc->gx, text, SERVICE_DESCRIBE_MAX);
	out = js_pack("{s:s, s:i, s:i, s:s, s:i}", "version", gx_version(), "rpc", RPC_VERSION,
		      "pid", (int)getpid(), "unpack", opt_unpack_text(svc->unpack), "sms",
		      (int)svc->sms);
	if (out)
		js_set(out, "describe", js_string(text ? text : ""));
	free(text);
	return out;
}

/* The bytes are gone over: sha256 and verify have a result. */
static struct json_t *work_done(struct request *req)
{
	const struct check_result *res = &req->work.res;
	struct service_session *session;
	char hex[DIGEST_HEX_MAX];

	if (req->work.digest) {
		int ret = digest_close(req->work.digest, hex);

		req->work.digest = NULL;
		return ret ? request_fail(req, "OpenSSL failed") : js_pack("{s:s}", "sha256", hex);
	}
	if (req->work.piece != region_verify)
		return js_pack("{}");
	session = recv_session_find(req->client, req->lane);
	/* Pairs with the acquire in session_slot_free(). */
	if (session)
		atomic_store_explicit(&session->checked_upto, (uint64_t)req->upto,
				      memory_order_release);
	return js_pack("{s:I, s:I, s:I}", "checked_b", (long long)res->checked_b, "wrong",
		       (long long)res->wrong, "first_wrong_off",
		       res->wrong ? (long long)res->first_wrong_off : -1);
}

static int work_turn(struct request *req)
{
	int ret = region_work_turn(&req->work);

	if (ret != 1)
		req->out = ret ? request_fail(req, "%s", gx_error()) : work_done(req);
	return ret == 1;
}

static struct json_t *work_begin(struct request *req,
				 int (*piece)(struct service_work *work, uint64_t off, uint64_t n))
{
	req->work.res = (struct check_result)CHECK_RESULT_NONE;
	req->work.piece = piece;
	req->turn = work_turn;
	return NULL;
}

/* poison {region, off, len} -> {} */
static struct json_t *op_poison(struct request *req)
{
	return request_range(req) ? work_begin(req, region_poison) : NULL;
}

/* fill {region, off, size, stride, n, seed, iter} -> {}: slot j becomes message iter + j */
static struct json_t *op_fill(struct request *req)
{
	return request_slots(req) ? work_begin(req, region_fill) : NULL;
}

/* sha256 {region, off, len} -> {sha256} */
static struct json_t *op_sha256(struct request *req)
{
	if (!request_range(req))
		return NULL;
	req->work.digest = digest_open();
	return req->work.digest ? work_begin(req, region_sha256) : request_fail(req, "no memory");
}

/*
 * verify {region, off, size, stride, n, seed, iter[, lane, upto]} -> {checked_b, wrong,
 * first_wrong_off}
 *
 * With lane: the receives of that lane may reuse the slots of messages below upto.
 */
static struct json_t *op_verify(struct request *req)
{
	req->lane = -1;
	if (!request_slots(req) || js_unpack(req->in, req->why, sizeof(req->why), "{s?:I, s?:I}",
					     "lane", &req->lane, "upto", &req->upto))
		return NULL;
	return work_begin(req, region_verify);
}

/* ---- Counters ---- */

static long long cores_stat(struct service *svc, const char *name)
{
	uint64_t sum = 0, one;

	for (unsigned i = 0; i < svc->nr_cores; i++)
		if (!gx_core_stat(svc->cores[i].core, name, &one))
			sum += one;
	return (long long)sum;
}

/* cpu {} -> {cores_ns, process_ns, resent, spurious, dup}: CPU time so far, and packets of all
 * clients so far: sent again, sent again in vain, received twice */
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

/* ---- Worker ---- */

/* docs/security.md has this table; tests/auth/test_served.py holds both, and the answers, to it. */
static const struct service_op {
	const char *name;
	enum { SERVES_FULL, SERVES_ANY } who; /* FULL: clients whose key has no limits */
	unsigned access;		      /* that it asks for, to the region that it names */
	struct json_t *(*fn)(struct request *req); /* NULL: req->why has the reason */
} service_ops[] = {
	{"hello", SERVES_ANY, 0, op_hello},
	{"cpu", SERVES_ANY, 0, op_cpu},
	{"sha256", SERVES_ANY, GX_ACCESS_GET, op_sha256},
	{"lease", SERVES_ANY, GX_ACCESS_PUT | GX_ACCESS_GET, lease_take}, /* one of them */
	{"poison", SERVES_FULL, GX_ACCESS_PUT, op_poison},
	{"fill", SERVES_FULL, GX_ACCESS_PUT, op_fill},
	{"verify", SERVES_FULL, GX_ACCESS_GET, op_verify},
	{"recv", SERVES_FULL, GX_ACCESS_PUT, recv_begin},
	{"recv_stop", SERVES_FULL, 0, recv_stop},
	{"echo", SERVES_FULL, GX_ACCESS_GET, echo_begin},
	{"poll", SERVES_FULL, GX_ACCESS_GET, echo_poll},
	{"answer", SERVES_FULL, 0, echo_answer},
};

static struct json_t *request_run(struct request *req, const char *name)
{
	const struct service_op *op = service_ops, *end = op + sizeof(service_ops) / sizeof(*op);

	while (op < end && strcmp(name, op->name) != 0)
		op++;
	if (op == end)
		return request_fail(req, "gxd %s knows no '%.32s'", gx_version(), name);
	if (op->who == SERVES_FULL && request_is_limited(req))
		return request_fail(req,
				    "'%s' is for clients whose key has no limits: gxperf put and "
				    "get do without it by --no-check, or take a key without "
				    "--access and --regions",
				    op->name);
	req->access = op->access;
	return op->fn(req);
}

static void request_reply(struct request *req)
{
	struct json_t *out = req->out;

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

static void request_free(struct request *req)
{
	if (req && req->work.digest)
		digest_close(req->work.digest, NULL);
	if (req)
		js_free(req->in);
	free(req);
}

/* The oldest request of the client begins. NULL: there is none. */
static struct request *request_new(struct service_client *client)
{
	struct job *job = queue_job_get(client);
	struct request *req = job ? calloc(1, sizeof(*req)) : NULL;
	const char *op = "";

	if (!req) {
		free(job);
		return NULL;
	}
	req->svc = client->svc;
	req->client = req->work.client = client;
	req->work.news_ns = gx_now();
	req->in = js_parse(job->text, job->len, req->why, sizeof(req->why));
	if (req->in && !js_unpack(req->in, req->why, sizeof(req->why), "{s:I, s:s}", "id",
				  &req->work.id, "op", &op))
		req->out = request_run(req, op);
	free(job);
	return req;
}

/* What waits is dropped, and what is at work. */
static void client_forget(struct service_client *client)
{
	struct job *job;

	while ((job = queue_job_get(client)))
		free(job);
	request_free(client->at_work);
	client->at_work = NULL;
}

/* Free a client: first end all users of it, the cores last. Then gx may free the connection. Return:
 * false: it takes another turn. */
static bool client_end(struct service *svc, struct service_client *client)
{
	struct service_session *s;

	client_forget(client);
	while ((s = client->sessions)) {
		int ret = recv_session_end(client, s);

		if (ret == -EAGAIN)
			return false;
		if (!ret)
			recv_session_free(s);
	}
	gx_conn_user_set(client->conn, NULL);
	for (unsigned i = 0; i < svc->nr_cores; i++)
		echo_poll_end(&svc->cores[i], client);
	for (unsigned i = 0; i < svc->nr_cores; i++)
		core_call(&svc->cores[i], core_barrier, NULL);
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
	return true;
}

/* A request, or some of a long one. Return: false: the client is no more. */
static bool client_turn(struct service *svc, struct service_client *client, unsigned char *room)
{
	struct request *req;

	if (client->ending)
		return !client_end(svc, client);
	if (!client->at_work)
		client->at_work = request_new(client);
	req = client->at_work;
	if (!req)
		return true;
	req->work.room = room;
	if (req->turn && req->turn(req))
		return true;
	request_reply(req);
	request_free(req);
	client->at_work = NULL;
	return true;
}

static void *service_worker(void *arg)
{
	struct service *svc = arg;
	unsigned char *room = malloc(SERVICE_PIECE_B);
	struct service_client *client;

	while (room && (client = queue_turn_get(svc)))
		if (client_turn(svc, client, room))
			queue_turn_put(client);
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
		svc->cores[i].queue = gx_core_queue(svc->cores[i].core);
		ret = gx_core_poller(svc->cores[i].core, core_poll, &svc->cores[i]);
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
	svc->ready_tail = &svc->ready;
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

	if (!svc)
		return;
	service_stop(svc);
	while ((client = svc->clients)) {
		svc->clients = client->next;
		client_forget(client);
		while ((s = client->sessions)) {
			client->sessions = s->next;
			recv_session_free(s);
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
