/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gxd's services for gxperf, other than moving bytes: it poisons, fills, checks and digests regions,
 * posts receives, echoes puts, and describes itself. gx's control thread takes requests
 * (queue.c), one worker thread answers them (service.c, request.h), the clients in turn,
 * and the cores post for it (core.c).
 */
#ifndef GXD_SERVICE_H
#define GXD_SERVICE_H

#include "common/check.h"
#include "common/opt.h"
#include "common/rpc.h"

#include <gx/gx.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define SERVICE_REGIONS_MAX  64
#define SERVICE_SESSIONS_MAX 1024    /* most receive sessions of a core */
#define SERVICE_SLOTS_MAX    65536   /* most slots of a receive session */
#define SERVICE_PIECE_B	     1048576 /* bytes at a time; a multiple of CHECK_PAGE_B */
#define SERVICE_ECHOES_MAX   256     /* most echoes that wait for room, on a core */
#define SERVICE_CONTENT_MAX  96	     /* of a lease, with the final 0 */

struct job;
struct json_t;
struct request;
struct service;

/** struct service_region - Memory that peers may name. Frozen before the first connection. */
struct service_region {
	struct opt_mem opt;
	struct gx_mem *mem;
};

/**
 * struct service_lease - Bytes that a client has reserved for its work: no other gxperf then takes
 * them. It ends with the connection. Owner: worker.
 */
struct service_lease {
	const struct service_region *region; /* NULL: none */
	uint64_t off, len;
	bool write;
	char content[SERVICE_CONTENT_MAX]; /* name of the content, for clients that only read */
};

/** struct service_client - A connection. Owner: worker; cores read the atomic fields, and the
 * others that those publish. */
struct service_client {
	struct service_client *next; /* in the service's list; under its lock, as the next five */
	struct service_client *next_ready;
	bool ready; /* the client waits for its turn */
	struct job *head, **tail;
	uint32_t jobs_b;	 /* in memory */
	struct request *at_work; /* NULL: none */
	bool ending;		 /* this turn ends it */
	struct service *svc;
	struct gx_conn *conn;
	_Atomic bool down;   /* set by the control thread: stop work for it */
	_Atomic bool answer; /* cores send notes back */
	_Atomic bool echo;   /* the fields below are set; cores may echo */
	struct gx_mem *echo_mem;
	uint64_t echo_token; /* the client's region */
	uint64_t echo_base;  /* our offset of the region's offset 0 */
	struct service_session *sessions;
	struct service_lease lease;
	_Atomic bool leases; /* the client has a lease, so it is in a run */
};

/** struct service_session - Receives posted for one lane of a client. Owner: core, unless a comment
 * says otherwise. */
struct service_session {
	struct service_session *next; /* owner: worker; in the client's list */
	uint32_t id; /* index in the core's table; frozen, as all fields up to depth */
	struct service_core *core;
	struct gx_ep *ep;
	struct gx_mem *mem;
	uint64_t off, size, stride;
	struct check_ring ring;
	uint32_t depth;
	uint64_t *slot_iter; /* number of the slot's last message */
	uint8_t *slot_busy;  /* a receive is posted there */
	uint64_t post;	     /* number of the next receive to post */
	uint32_t posted;
	bool stopping;	  /* post nothing more */
	bool cancelled;	  /* its posted receives were cancelled */
	uint64_t stop_ns; /* owner: worker; it must be gone by then; 0: it is not asked to */
	/* Written by the worker: sampled messages below this number have been checked. */
	_Atomic uint64_t checked_upto;
	_Atomic uint64_t received, bytes, bad;
	_Atomic int err; /* first bad status while not stopping */
};

/**
 * struct service_poller - A core looks at the last byte of these slots. When it is the byte of the
 * next message (see rpc_flag()), the core sends the same bytes back. Owner: the worker, until the
 * core has it; then the core writes @op, @next, @seen_ns alone.
 */
struct service_poller {
	struct service_client *client;
	struct gx_ep *ep;
	const volatile unsigned char *last; /* last byte of slot 0 */
	uint64_t stride;		    /* of RPC_POLL_SLOTS slots */
	struct gx_op op;  /* the put of the next message; at first that of slot 0 */
	uint64_t next;	  /* its number */
	uint64_t seen_ns; /* time of the turn that saw the last message */
};

/** struct service_call - A job for a core; the worker waits for it. */
struct service_call {
	void (*fn)(struct service_core *core, struct service_call *call);
	struct service_session *session;
	_Atomic bool done;
};

/** struct service_core - gxd's half of a polling core. Owner: the core, unless a comment says
 * otherwise. */
struct service_core {
	struct service *svc;
	struct gx_core *core;
	struct gx_queue *queue;		     /* its */
	_Atomic(struct service_call *) call; /* worker puts, core takes */
	_Atomic bool clock_set;
	clockid_t clock; /* of the core's thread; frozen once clock_set */
	struct service_session *session[SERVICE_SESSIONS_MAX];
	uint32_t session_top; /* 1 + the highest in use */
	struct gx_op echo[SERVICE_ECHOES_MAX];
	struct gx_ep *echo_ep[SERVICE_ECHOES_MAX];
	uint32_t nr_echoes;
	_Atomic uint64_t echoes_failed;
	_Atomic(struct service_poller *) poller; /* the worker sets and clears it; NULL: none */
};

struct service_opts {
	struct gx *gx;
	const struct service_region *regions; /* the caller's; must outlive the service */
	unsigned nr_regions;
	enum gx_unpack_mode unpack;
	unsigned sms;
};

/** service_open() - Also adds its pollers to the cores, which must not run yet. Return: 0, -ENOMEM,
 * -errno. */
int service_open(const struct service_opts *opts, struct service **out);
/** service_stop() - End the worker; drop later requests. Call it while the cores still run. */
void service_stop(struct service *svc);
/** service_close() - Call it after the cores have stopped and callbacks have ended. NULL is
 * fine. */
void service_close(struct service *svc);
/** queue_busy() - Does the worker work, do requests wait, or is a client in a run? Any thread. */
bool queue_busy(struct service *svc);
/** queue_clients() - Number of connections. Any thread. */
unsigned queue_clients(struct service *svc);

/** Callbacks for struct gx_opts, on the control thread. @svc: from service_open(). */
void queue_on_conn(struct service *svc, struct gx_conn *conn, enum gx_conn_event event);
void queue_on_msg(struct service *svc, struct gx_conn *conn, const void *data, uint32_t len);

/* ---- core.c: for the worker ---- */

bool core_poll(void *core, uint64_t now_ns); /* the poller, on the core */
/** core_call() - Make @core run @fn between two polls. Return: 0; -ETIMEDOUT: the core does
 * not turn. */
int core_call(struct service_core *core,
	      void (*fn)(struct service_core *core, struct service_call *call),
	      struct service_session *session);
/** core_barrier() - For core_call(): does nothing. All earlier work of the core is
 * done. */
void core_barrier(struct service_core *core, struct service_call *call);
/** core_session_start() - Give @s to its core; sets s->id. Return: 0, -ENOSPC, -ETIMEDOUT. */
int core_session_start(struct service_session *s);
/** core_session_stop() - Cancel the posted receives of @s and take it back; the caller may then
 * free it. Return: 0; -EAGAIN: call again, they have yet to end; -ETIMEDOUT. */
int core_session_stop(struct service_session *s);

#endif
