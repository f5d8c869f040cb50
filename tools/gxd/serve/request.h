/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request on gxd's worker thread, for queue.c (brings it there), service.c (answers),
 * request.c (common parts), lease.c, echo.c and recv.c. Private to those.
 */
#ifndef GXD_REQUEST_H
#define GXD_REQUEST_H

#include "gxd/serve/region.h"

#include <pthread.h>

#define SERVICE_WHY_MAX 256
#define SERVICE_NR_MAX	(2 * SERVICE_SLOTS_MAX) /* slots of one request */

/* A request that waits. */
struct job {
	struct job *next;
	uint32_t len;
	char text[]; /* and a final 0 */
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
	pthread_mutex_t lock; /* guards all below */
	pthread_cond_t work;
	/* Those with requests, or at their end: the first has the next turn. */
	struct service_client *ready, **ready_tail;
	struct service_client *clients; /* all clients */
	bool working, quit;
};

/* One request, for its function of service_ops. */
struct request {
	struct service *svc;
	struct service_client *client;
	struct service_work work;
	/* A function that cannot answer at once sets it, and returns NULL. Each turn of the client calls it:
	 * 1: not yet; 0: .out is the answer, NULL a failure */
	int (*turn)(struct request *req);
	struct json_t *in, *out;
	long long lane;		   /* of recv_stop, and of verify; -1: none */
	long long upto;		   /* of verify */
	unsigned access;	   /* of the client to the region that the request names */
	char why[SERVICE_WHY_MAX]; /* reason of a failure */
};

/* ---- queue.c ---- */

/** queue_turn_get() - Wait for a client that has something to be done. NULL: the worker must end.
 * queue_turn_put(): @client waits for its next turn, if it has more to do. */
struct service_client *queue_turn_get(struct service *svc);
void queue_turn_put(struct service_client *client);
struct job *queue_job_get(struct service_client *client); /* NULL: none waits */

/* ---- request.c ---- */

/** request_fail() - Keep the reason. Return: NULL, the result of a request that fails. */
struct json_t *request_fail(struct request *req, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/** request_is_limited() - Has the key of the client limits in access or regions? It then hears nothing
 * of others. */
bool request_is_limited(const struct request *req);
/* Take these fields of the request. Each asks whether the client has req->access to these bytes. NULL:
 * req->why has the reason. */
const struct service_region *request_region(struct request *req, const char *name, uint64_t off,
					    uint64_t len);
/* Into req->work. */
const struct service_region *request_range(struct request *req);
const struct service_region *request_slots(struct request *req);
/** request_core_of() - The core of @ep. NULL: not one of ours. */
struct service_core *request_core_of(struct service *svc, struct gx_ep *ep);

/* ---- Requests; see each function. NULL: req->why has the reason ---- */

struct json_t *lease_take(struct request *req);	 /* lease.c */
struct json_t *echo_begin(struct request *req);	 /* echo.c */
struct json_t *echo_answer(struct request *req); /* echo.c */
struct json_t *echo_poll(struct request *req);	 /* echo.c */
struct json_t *recv_begin(struct request *req);	 /* recv.c */
struct json_t *recv_stop(struct request *req);	 /* recv.c */

/** echo_poll_end() - The core stops polling for @client, if it does so. */
void echo_poll_end(struct service_core *core, const struct service_client *client);
/** recv_session_find() - The session of @lane. NULL: none. */
struct service_session *recv_session_find(struct service_client *client, long long lane);
/** recv_session_end() - Take @s from the client. Return: 0: the caller may free it; -EAGAIN: call
 * again; -ETIMEDOUT: its core does not let go: leak it, as its memory may still be written. */
int recv_session_end(struct service_client *client, struct service_session *s);
void recv_session_free(struct service_session *s);

#endif
