// SPDX-License-Identifier: Apache-2.0
/*
 * The queues of requests, one for each client, from gx's control thread, which calls service_on_*(),
 * to gxd's worker thread, which serves the clients in turn.
 */
#include "gxd/serve/request.h"

#include <stdlib.h>
#include <string.h>

#define SERVICE_JOBS_MAX_B 262144 /* of a client's waiting requests, in memory */

/* With the lock. */
static void turn_put(struct service_client *client)
{
	struct service *svc = client->svc;

	if (client->ready)
		return;
	client->ready = true;
	client->next_ready = NULL;
	*svc->ready_tail = client;
	svc->ready_tail = &client->next_ready;
	pthread_cond_signal(&svc->work);
}

/* A request beyond the limit is dropped. */
static void job_put(struct service_client *client, const void *data, uint32_t len)
{
	size_t size = sizeof(struct job) + len + 1;
	struct job *job = malloc(size);

	if (!job)
		return;
	*job = (struct job){.len = len};
	memcpy(job->text, data, len);
	job->text[len] = '\0';
	pthread_mutex_lock(&client->svc->lock);
	if (!client->svc->quit && client->jobs_b + size <= SERVICE_JOBS_MAX_B) {
		client->jobs_b += (uint32_t)size;
		*client->tail = job;
		client->tail = &job->next;
		turn_put(client);
		job = NULL;
	}
	pthread_mutex_unlock(&client->svc->lock);
	free(job);
}

struct job *queue_job_get(struct service_client *client)
{
	struct job *job;

	pthread_mutex_lock(&client->svc->lock);
	job = client->head;
	if (job) {
		client->head = job->next;
		if (!client->head)
			client->tail = &client->head;
		client->jobs_b -= (uint32_t)(sizeof(*job) + job->len + 1);
	}
	pthread_mutex_unlock(&client->svc->lock);
	return job;
}

void queue_turn_put(struct service_client *client)
{
	pthread_mutex_lock(&client->svc->lock);
	if (client->at_work || client->head || atomic_load(&client->down))
		turn_put(client);
	pthread_mutex_unlock(&client->svc->lock);
}

struct service_client *queue_turn_get(struct service *svc)
{
	struct service_client *client;

	pthread_mutex_lock(&svc->lock);
	svc->working = false;
	while (!svc->ready && !svc->quit)
		pthread_cond_wait(&svc->work, &svc->lock);
	client = svc->quit ? NULL : svc->ready;
	if (client) {
		svc->ready = client->next_ready;
		if (!svc->ready)
			svc->ready_tail = &svc->ready;
		client->ready = false;
		client->ending = atomic_load(&client->down); /* nobody else puts it there again */
		svc->working = true;
	}
	pthread_mutex_unlock(&svc->lock);
	return client;
}

bool queue_busy(struct service *svc)
{
	bool busy;

	pthread_mutex_lock(&svc->lock);
	busy = svc->working || svc->ready;
	for (struct service_client *c = svc->clients; c && !busy; c = c->next)
		busy = atomic_load(&c->leases) && !atomic_load(&c->down);
	pthread_mutex_unlock(&svc->lock);
	return busy;
}

unsigned queue_clients(struct service *svc)
{
	unsigned nr = 0;

	pthread_mutex_lock(&svc->lock);
	for (struct service_client *c = svc->clients; c; c = c->next)
		nr++;
	pthread_mutex_unlock(&svc->lock);
	return nr;
}

void queue_on_conn(struct service *svc, struct gx_conn *conn, enum gx_conn_event event)
{
	struct service_client *client = gx_conn_user(conn);

	if (event == GX_CONN_EVENT_UP) {
		client = calloc(1, sizeof(*client));
		if (!client)
			return; /* the client can move bytes, but gets no services */
		client->svc = svc;
		client->conn = conn;
		client->tail = &client->head;
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
	pthread_mutex_lock(&svc->lock);
	atomic_store_explicit(&client->down, true, memory_order_release);
	turn_put(client);
	pthread_mutex_unlock(&svc->lock);
}

void queue_on_msg(struct service *svc, struct gx_conn *conn, const void *data, uint32_t len)
{
	struct service_client *client = gx_conn_user(conn);

	if (client && len <= RPC_MSG_MAX)
		job_put(client, data, len);
}
