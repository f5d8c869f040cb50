// SPDX-License-Identifier: Apache-2.0
/*
 * The queue of requests from gx's control thread, which calls service_on_*(), to gxd's worker
 * thread.
 */
#include "gxd/gxd_request.h"

#include <stdlib.h>
#include <string.h>

#define SERVICE_JOBS_MAX 1024 /* most waiting requests, of all clients */

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

void service_job_free(struct job *job)
{
	free(job->text);
	free(job);
}

/* The queue always takes the end of a client. It refuses requests if too many wait. */
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

/* NULL: the worker must end. */
struct job *service_job_get(struct service *svc)
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

	if (event == GX_CONN_EVENT_UP) {
		client = calloc(1, sizeof(*client));
		if (!client)
			return; /* it can move bytes, but gets no services */
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
		free(job); /* no memory, or ending: gx_close() and service_close() free the rest */
}

void service_on_msg(struct service *svc, struct gx_conn *conn, const void *data, uint32_t len)
{
	struct service_client *client = gx_conn_user(conn);
	struct job *job = client && len <= RPC_MSG_MAX ? job_new(client, data, len) : NULL;

	if (job && !job_put(svc, job))
		service_job_free(job);
}
