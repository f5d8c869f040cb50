/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections of the random load. The control threads need real time, in which virtual time stands and
 * no core turns: what they hand to cores lies there before on_conn is called.
 */
#include "sim/all.h"

#include <errno.h>
#include <gx/listen.h>
#include <string.h>
#include <time.h>

#define WAIT_S 60

static bool life_wait(const bool *what)
{
	struct timespec until;
	int ret = 0;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += WAIT_S;
	pthread_mutex_lock(&world->lock);
	while (!*what && !ret)
		ret = pthread_cond_timedwait(&world->cond, &world->lock, &until);
	pthread_mutex_unlock(&world->lock);
	return !ret;
}

/* Control threads. */
void link_on_conn(void *arg, struct gx_conn *conn, enum gx_conn_event event, int err,
		  const char *why)
{
	const void *data = gx_conn_data(conn, &(uint32_t){0});
	struct life *l = NULL;
	uint32_t life = 0;
	int side = 0;

	if (data)
		memcpy(&life, data, sizeof(life));
	pthread_mutex_lock(&world->lock);
	if (event == GX_CONN_EVENT_UP && data) {
		l = &world->life[life];
		side = 1;
	}
	for (uint32_t i = 1; i <= world->nr_lives && !l; i++)
		for (int s = 0; s < 2; s++)
			if (world->life[i].conn[s] == conn) {
				l = &world->life[i];
				side = s;
			}
	if (l && event == GX_CONN_EVENT_UP) {
		l->conn[side] = conn;
		l->up[side] = true;
	} else if (l && event == GX_CONN_EVENT_DOWN) {
		l->err[side] = err;
		l->down[side] = true;
	}
	pthread_cond_broadcast(&world->cond);
	pthread_mutex_unlock(&world->lock);
}

struct gx_ep *link_ep(const struct alink *l, int side, unsigned lane)
{
	return l->conn[side] ? l->ep[side][lane] : NULL;
}

bool link_is_over(uint32_t life)
{
	return world->life[life].over;
}

static void link_regions(struct alink *l)
{
	for (int s = 0; s < 2; s++) {
		struct gx_conn_info info = GX_INIT(info);

		l->mem[s] = (struct gx_region)GX_INIT(l->mem[s]);
		if (gx_conn_region(l->conn[s], "mem", 0, &l->mem[s]))
			wrong("gx_conn_region: %s", gx_error());
		if (gx_conn_info(l->conn[s], &info))
			wrong("gx_conn_info: %s", gx_error());
		if (l->kind == KIND_PACKET &&
		    info.integrity !=
			    (enum gx_integrity_mode)(GX_INTEGRITY_MODE_NONE + world->integrity))
			wrong("connection %u has integrity %d, not %d", l->life, info.integrity,
			      GX_INTEGRITY_MODE_NONE + world->integrity);
		if (l->kind == KIND_TCP && !l->conn[s]->secret != !world->integrity)
			wrong("connection %u is sealed, or should be", l->life);
		l->nr_lanes = info.lanes;
		for (unsigned k = 0; k < l->nr_lanes; k++) {
			l->ep[s][k] = gx_conn_ep(l->conn[s], k);
			if (!l->ep[s][k])
				wrong("connection %u has no lane %u", l->life, k);
		}
	}
}

static const char *const link_names[] = {"packet", "tcp", "local"};

void link_open(unsigned index, unsigned a, unsigned b)
{
	struct alink *l = &world->link[index];
	struct gx_connect_opts opts = GX_INIT(opts);
	struct gx_port_name ports[ALL_PORTS + 1];
	char net[32];
	enum link_kind kind;
	struct gx_conn *conn;
	uint32_t life;

	if (world->nr_lives + 1 >= ALL_LIVES)
		return;
	pthread_mutex_lock(&world->lock);
	life = ++world->nr_lives;
	pthread_mutex_unlock(&world->lock);
	opts.data = &life;
	opts.data_len = sizeof(life);
	opts.first_core = (unsigned)rnd(world->nr_cores);
	opts.timeout_ns = WAIT_S * ALL_S;
	kind = chance(60) ? world->other : KIND_PACKET;
	world->life[life].kind = kind;
	opts.link = link_names[kind];
	if (world->nr_ports > 1 && kind == KIND_PACKET) {
		opts.ports = ports;
		opts.nr_ports = world_ports(ports, net);
	}
	if (gx_connect(world->node[a].gx, world->node[b].addr, &opts, &conn) ||
	    gx_conn_wait(conn, WAIT_S * ALL_S))
		wrong("gx_connect: %s", gx_error());
	pthread_mutex_lock(&world->lock);
	world->life[life].conn[0] = conn;
	pthread_mutex_unlock(&world->lock);
	if (!life_wait(&world->life[life].up[1]))
		wrong("connection %u did not come up at the server", life);
	*l = (struct alink){.state = LINK_UP, .kind = kind, .life = life, .node = {a, b}};
	l->conn[0] = conn;
	l->conn[1] = world->life[life].conn[1];
	link_regions(l);
	for (unsigned k = 0; k < l->nr_lanes; k++)
		sock_take(l, k);
	world->counts.links++;
	hash_add(life);
	trace("connection %u: node %u to %u by %s, %u lanes", life, a, b, link_names[kind],
	      l->nr_lanes);
}

/* A side closes, and what its program knew of it is gone. */
static void link_close_side(struct alink *l, int side)
{
	struct life *f = &world->life[l->life];

	if (!l->conn[side])
		return;
	pthread_mutex_lock(&world->lock);
	f->conn[side] = NULL;
	pthread_mutex_unlock(&world->lock);
	gx_conn_close(l->conn[side]);
	l->conn[side] = NULL;
}

void link_close(unsigned index, int side)
{
	struct alink *l = &world->link[index];
	struct life *f = &world->life[l->life];

	if (l->state == LINK_NONE)
		return;
	trace("connection %u: node %u closes", l->life, l->node[side]);
	hash_add(l->life);
	f->over = true;
	if (l->state == LINK_UP && l->conn[0] && l->conn[1]) {
		link_close_side(l, side);
		if (!life_wait(&f->down[!side]))
			wrong("connection %u: the other end does not hear of its end", l->life);
	}
	link_close_side(l, side);
	link_close_side(l, !side);
	l->state = LINK_NONE;
}

/* May this connection be lost by silence? */
static bool link_may_fail(const struct alink *l)
{
	if (world->net_cfg.loss_ppm > 100000)
		return true;
	for (int s = 0; s < 2; s++)
		if (world->node[l->node[s]].was_still_ns)
			return true;
	return false;
}

void links_look(void)
{
	for (unsigned i = 0; i < ALL_LINKS; i++) {
		struct alink *l = &world->link[i];

		for (int s = 0; s < 2 && l->state == LINK_UP; s++)
			for (unsigned k = 0; k < l->nr_lanes && l->state == LINK_UP; k++) {
				struct gx_ep *ep = link_ep(l, s, k);
				int fault = ep ? atomic_load(&ep->fault) : 0;

				if (!fault)
					continue;
				trace("connection %u: lane %u of node %u has failed: %s", l->life,
				      k, l->node[s], strerror(-fault));
				if ((fault != -ETIMEDOUT || !link_may_fail(l)) &&
				    !world->life[l->life].cut)
					wrong("connection %u failed: %s%s%s", l->life,
					      strerror(-fault), ep->fault_why ? ": " : "",
					      ep->fault_why ? ep->fault_why : "");
				hash_add(l->life);
				world->life[l->life].over = true;
				l->state = LINK_ENDED;
				if (!life_wait(&world->life[l->life].down[s]) ||
				    !life_wait(&world->life[l->life].down[!s]))
					wrong("connection %u: nobody is told of its end", l->life);
			}
	}
}

/* The process of @node ends: nothing of its ends is to be touched any more. */
void links_lose(unsigned node)
{
	pthread_mutex_lock(&world->lock);
	for (unsigned i = 0; i < ALL_LINKS; i++) {
		struct alink *l = &world->link[i];

		for (int s = 0; s < 2 && l->state != LINK_NONE; s++) {
			if (l->node[s] != node)
				continue;
			world->life[l->life].conn[s] = l->conn[s] = NULL;
			world->life[l->life].over = true;
			l->state = LINK_ENDED;
		}
	}
	pthread_mutex_unlock(&world->lock);
}

/* It has ended: the others hear of it. */
void links_lost(unsigned node)
{
	for (unsigned i = 0; i < ALL_LINKS; i++) {
		struct alink *l = &world->link[i];

		for (int s = 0; s < 2 && l->state == LINK_ENDED; s++)
			if (l->node[s] == node && l->conn[!s] &&
			    !life_wait(&world->life[l->life].down[!s]))
				wrong("connection %u: nobody is told that node %u has ended",
				      l->life, node);
	}
}
