/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request on gxd's worker thread, as gxd_queue.c (how it gets there), gxd_service.c (who answers),
 * gxd_request.c (what requests have in common), gxd_lease.c, gxd_echo.c and gxd_recv.c share it.
 * Private to those.
 */
#ifndef GXD_REQUEST_H
#define GXD_REQUEST_H

#include "gxd/gxd_region.h"

#include <pthread.h>

#define SERVICE_WHY_MAX 256
#define SERVICE_NR_MAX	(2 * SERVICE_SLOTS_MAX) /* slots of one request */

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

/* One request as its op_*() sees it. */
struct request {
	struct service *svc;
	struct service_client *client;
	struct service_work work;
	struct json_t *in;
	char why[SERVICE_WHY_MAX]; /* of a failure */
};

/* ---- gxd_queue.c ---- */

/** service_job_get() - Wait for the next. NULL: the worker is to end. */
struct job *service_job_get(struct service *svc);
void service_job_free(struct job *job);

/* ---- gxd_request.c ---- */

/** request_fail() - Say why. Return: NULL, as an op_*() that has failed returns it. */
struct json_t *request_fail(struct request *req, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
struct json_t *request_done(struct request *req, int ret); /* {}, or failed */
/* Of the request's fields, checked against each other. NULL: req->why says what is wrong. */
const struct service_region *request_region(struct request *req, const char *name);
const struct service_region *request_range(struct request *req, uint64_t *off, uint64_t *len);
const struct service_region *request_slots(struct request *req, struct service_slots *s);
/** service_core_of() - The core of @ep. NULL: it is none of ours. */
struct service_core *service_core_of(struct service *svc, struct gx_ep *ep);

/* ---- Requests, described at their functions. NULL: req->why says why ---- */

struct json_t *op_lease(struct request *req);	  /* gxd_lease.c */
struct json_t *op_echo(struct request *req);	  /* gxd_echo.c */
struct json_t *op_poll(struct request *req);	  /* gxd_echo.c */
struct json_t *op_recv(struct request *req);	  /* gxd_recv.c */
struct json_t *op_recv_stop(struct request *req); /* gxd_recv.c */

/** service_poller_end() - The core lets go of what it polls for @client, if it does. */
void service_poller_end(struct service_core *core, const struct service_client *client);
/** service_session_find() - The receives of @lane. NULL: there are none. */
struct service_session *service_session_find(struct service_client *client, long long lane);
/** service_session_end() - Take it from the client. Return: it may be freed; false: its core does not
 * let go, and it is leaked: its memory may still be written. */
bool service_session_end(struct service_client *client, struct service_session *s);
void service_session_free(struct service_session *s);

#endif
