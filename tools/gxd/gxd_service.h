/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What gxd does for gxperf beside moving bytes: it poisons, fills, checks and digests regions,
 * posts receives, echoes puts, and tells of itself. Requests come in on gx's control thread
 * (gxd_queue.c) and are worked on by one worker thread (gxd_service.c, gxd_request.h); what must be
 * posted is posted by the cores (gxd_core.c).
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
#define SERVICE_SESSIONS_MAX 1024    /* receive sessions a core */
#define SERVICE_SLOTS_MAX    65536   /* slots a receive session */
#define SERVICE_PIECE_B	     1048576 /* at a time; a multiple of CHECK_PAGE_B */
#define SERVICE_ECHOES_MAX   256     /* echoes that wait for room, a core */
#define SERVICE_CONTENT_MAX  96	     /* of a lease, with the final 0 */

struct json_t;
struct service;

/** struct service_region - Memory that peers may name. Frozen before the first connection. */
struct service_region {
	struct opt_mem opt;
	struct gx_mem *mem;
};

/**
 * struct service_lease - Bytes that a client has said it works on, so that no other gxperf takes
 * them for its own. It ends with the connection. Owner: worker.
 */
struct service_lease {
	const struct service_region *region; /* NULL: none */
	uint64_t off, len;
	bool write;
	char content[SERVICE_CONTENT_MAX]; /* what lies there, for those who only read */
};

/** struct service_client - A connection. Owner: worker; what cores read is atomic. */
struct service_client {
	struct service_client *next; /* of the service; under its lock */
	struct service *svc;
	struct gx_conn *conn;
	_Atomic bool down; /* set by the control thread: work for it may stop */
	_Atomic bool echo; /* the fields below are set; cores may echo */
	struct gx_mem *echo_mem;
	uint64_t echo_token; /* the client's region */
	uint64_t echo_base;  /* offset in ours that is offset 0 there */
	struct service_session *sessions;
	struct service_lease lease;
	_Atomic bool leases; /* it has a lease: it is in the middle of a run */
};

/** struct service_session - Receives posted for one lane of a client. Owner: core, but for what
 * says otherwise. */
struct service_session {
	struct service_session *next; /* owner: worker; of the client */
	uint32_t id; /* index in the core's table; frozen, as is what follows up to depth */
	struct service_core *core;
	struct gx_ep *ep;
	struct gx_mem *mem;
	uint64_t off, size, stride;
	struct check_ring ring;
	uint32_t depth;
	uint64_t *slot_iter; /* number of the message that a slot was last given to */
	uint8_t *slot_busy;  /* posted now */
	uint64_t post;	     /* number of the next receive to post */
	uint32_t posted;
	bool stopping;		       /* no more is posted */
	bool cancelled;		       /* what was posted then has been told to end */
	_Atomic uint64_t checked_upto; /* written by the worker: sampled messages below it have been
					  checked */
	_Atomic uint64_t received, bytes, bad;
	_Atomic int err; /* first status that was not 0, while not stopping */
};

/**
 * struct service_poller - Slots whose last byte a core looks at: when it is that of the next
 * message (see rpc_flag()), the same bytes go back. Owner: the worker until it is given to the
 * core, which then writes @next alone.
 */
struct service_poller {
	struct service_client *client;
	struct gx_ep *ep;
	const volatile unsigned char *last; /* last byte of slot 0 */
	uint64_t stride;		    /* of RPC_POLL_SLOTS slots */
	struct gx_op op;		    /* the put of slot 0 */
	uint64_t next;			    /* number of the message that is awaited */
};

/** struct service_call - What the worker asks a core to do, and waits for. */
struct service_call {
	void (*fn)(struct service_core *core, struct service_call *call);
	struct service_session *session;
	_Atomic bool done;
};

/** struct service_core - gxd's half of a polling core. Owner: the core, but for what says
 * otherwise. */
struct service_core {
	struct service *svc;
	struct gx_core *core;
	_Atomic(struct service_call *) call; /* worker puts, core takes */
	_Atomic bool clock_set;
	clockid_t clock; /* of the core's thread; frozen once clock_set */
	struct service_session *session[SERVICE_SESSIONS_MAX];
	uint32_t session_top; /* one past the highest in use */
	struct gx_op echo[SERVICE_ECHOES_MAX];
	struct gx_ep *echo_ep[SERVICE_ECHOES_MAX];
	uint32_t nr_echoes;
	_Atomic uint64_t echoes_failed;
	_Atomic(struct service_poller *) poller; /* worker puts and takes out; NULL: none */
};

struct service_opts {
	struct gx *gx;
	const struct service_region *regions; /* the caller's, as long as the service */
	unsigned nr_regions;
	enum gx_unpack_mode unpack;
	unsigned sms;
};

/** service_open() - Also adds its pollers to the cores, which must not run yet. Return: 0, -ENOMEM,
 * -errno. */
int service_open(const struct service_opts *opts, struct service **out);
/** service_stop() - Ends the worker; later requests are dropped. While the cores still run. */
void service_stop(struct service *svc);
/** service_close() - After the cores have stopped and no callback can come. NULL is fine. */
void service_close(struct service *svc);
/** service_busy() - Is the worker at work, are requests waiting, or is a client in the middle of a
 * run? Any thread. */
bool service_busy(struct service *svc);
/** service_clients() - Connections that there are. Any thread. */
unsigned service_clients(struct service *svc);

/** For struct gx_opts: the control thread. @svc is what service_open() gave. */
void service_on_conn(struct service *svc, struct gx_conn *conn, enum gx_conn_event event);
void service_on_msg(struct service *svc, struct gx_conn *conn, const void *data, uint32_t len);

/* ---- gxd_core.c: called by the worker ---- */

bool service_core_poll(void *core, uint64_t now_ns); /* the poller: on the core */
/** service_core_call() - Have @core run @fn between two polls. Return: 0, -ETIMEDOUT when it does
 * not turn. */
int service_core_call(struct service_core *core,
		      void (*fn)(struct service_core *core, struct service_call *call),
		      struct service_session *session);
/** service_core_barrier() - For service_core_call(): nothing; what the core did before is done. */
void service_core_barrier(struct service_core *core, struct service_call *call);
/** service_session_start() - Give @s to its core (s->id is set). Return: 0, -ENOSPC, -ETIMEDOUT. */
int service_session_start(struct service_session *s);
/** service_session_stop() - Cancel what is posted and take it back; it may then be freed. Return:
 * 0, -ETIMEDOUT. */
int service_session_stop(struct service_session *s);

#endif
