/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the NCCL plugin share. Prototypes stand by file, the lowest first: say.c (lines
 * to NCCL's log), conf.c (the environment), cpus.c (which CPUs), gpus.c (the GPU), offload.c
 * (receives for NCCL's device code), lane.c (requests on a core), comm.c (comms and their lists),
 * peer.c (connections), keep.c (the keeper), meet.c (connect and accept), req.c (requests), reg.c
 * (registrations), proc.c (the context of the process), tell.c (what it would choose, for gxperf
 * info), net.c and net_old.c (the tables).
 *
 * Threads. NCCL's threads call the tables: a service thread for each communicator (listen,
 * connect, accept, registrations, close), and a progress thread (isend, irecv, test). gx's control
 * thread calls peer_on_conn() and meet_on_msg(). gx's cores call lane_poll(). The keeper, a thread
 * of the plugin, makes the calls on connections that wait for gx's control thread; so connect and
 * accept wait for nobody. A request passes from the progress thread to the comm's core through the
 * core's inbox, and back by a flag. Everything else that threads share is under plug.lock, which
 * nobody holds over a call of gx that waits.
 *
 * Lines of the cache. What a core writes in its turns, what posts write, and what changes under the
 * lock lie apart (alignas); each part says who writes it.
 */
#ifndef NCCL_PLUG_H
#define NCCL_PLUG_H

#include "net_abi.h"

#include <gx/gx.h>

#include <pthread.h>
#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LANES_MAX   16		   /* cores of a process */
#define PORTS_MAX   8		   /* of gx_opts.ports */
#define DEVICES_MAX 16		   /* that NCCL sees */
#define PCI_B	    16		   /* "0000:1b:00.0" with the final 0 */
#define TOKEN_B	    16		   /* bytes of a random token */
#define ADDRS_MAX   3		   /* addresses of a rank that are in a handle, if there is room */
#define ADDR_B	    64		   /* "[fe80::1]:65535" with the final 0 */
#define WHY_B	    256		   /* bytes of a reason */
#define CORE_MBPS   32000	   /* what a core moves each way at a time, over shm, measured */
#define HELP_CORES  4		   /* with so many cores help brings nothing, measured */
#define HELP_AUTO   2		   /* of .help: only where there are fewer cores */
#define STRAYS_MAX  512		   /* accepted connections that have not shown a token */
#define SEQ_FIRST   ((uint32_t)-4) /* of a comm's requests: near the wrap, which all pass then */
#define PATH_COMMS  128 /* comms of one direction on an endpoint; then another connection is made */
#define MEET_MAX    1024 /* connects that wait for accept() at a listener */
#define STRAY_NS    10000000000ull
#define SETUP_NS    10000000000ull

/* ---- Orders to a core ---- */

struct lane;

/* Something that a core does once. In one inbox at a time. owner: its maker, then the core */
struct order {
	struct order *next;
	void (*run)(struct lane *l, struct order *o);
};

/* A core of gx. */
struct lane {
	/* Any thread puts, the core takes all. */
	alignas(64) struct order *_Atomic inbox;
	/* Written under plug.lock when a comm opens or is freed. The core reads it. */
	alignas(64) _Atomic unsigned nr_comms;
	struct gx_core *helped; /* the core, if test() helps it; NULL: it does not. Frozen */
	/* The core's alone. */
	alignas(64) struct gx_core *core; /* frozen; others read it when a connection comes up */
	struct gx_queue *queue;		  /* its; frozen */
	struct order *todo;		  /* taken out of the inbox, oldest first */
	struct comm *waiting, **wait_end; /* comms with requests that gx has no room for */
	unsigned nr_waiting;
	unsigned extra[2]; /* operations under way beyond the first of each comm: receives, sends */
};

/* ---- Connections ---- */

/* An endpoint. */
struct path {
	/* Posts read .lane, the core reads .ep. Both are frozen. */
	alignas(64) struct gx_ep *ep;
	struct lane *lane;
	unsigned nr_comms; /* under plug.lock; changes when a comm opens or is freed */
	/* The core's alone: as lane.extra, of this endpoint. */
	alignas(64) unsigned extra[2];
};

/* A gx connection. All comms that lead from the connecting process to the accepting process go
 * over it. Under plug.lock, but for what says otherwise. */
struct peer {
	struct peer *next;    /* in plug.peers */
	struct gx_conn *conn; /* NULL: not known yet */
	bool to_dial;	      /* the keeper is to connect, ... */
	bool to_show;	      /* ... or to log the path */
	char addr[ADDR_B];    /* connecting end: of the process. Frozen */
	unsigned first_core;  /* connecting end. Frozen */
	bool far;	      /* connecting end: of another host or network namespace. Frozen */
	bool accepted;	      /* the peer connected to us. Frozen */
	bool down;	      /* it has ended, or never came up */
	bool proven;	      /* connecting end: the peer has taken a token of ours */
	bool retired;	      /* connecting end: no new comm takes it; see meet.c */
	uint8_t process[16];  /* connecting end: the accepting process. Frozen */
	unsigned nr_users;    /* comms, also those that a core has yet to let go */
	uint32_t numbers;     /* connecting end: comms so far */
	struct comm *comms;   /* that have a number, and are not closed here */
	char why[WHY_B];      /* down: the reason */
	bool is_logged;	      /* the reason was logged */
	bool shown;	      /* the path was logged */
	unsigned nr_paths;    /* 0: not up yet */
	struct path path[LANES_MAX];
};

/* ---- Comms ---- */

/* Memory that NCCL registered. */
struct reg {
	/* Frozen, or written when it is made and dropped. Posts and cores read. */
	alignas(64) struct gx_mem *mem;
	char *addr;
	uint64_t len;
	_Atomic bool going;	/* it is about to be deregistered */
	struct reg *next, **at; /* in plug.regs; under plug.lock */
	/* Threads that post count requests with it, ... */
	alignas(64) _Atomic uint32_t nr_begun;
	/* ... and cores count those that have ended. */
	alignas(64) _Atomic uint32_t nr_ended;
};

/* A receive from irecv to irecvConsumed. */
struct offload_slot {
	uint32_t off; /* of its bytes, in the ring */
	bool is_out;  /* test() has said that it is done */
};

/* Of a receive comm in mode unpack: messages land in the ring, a piece of the bounce memory, and
 * NCCL's device code copies from there by the descriptors in .dev. The thread that posts alone, but
 * for what says otherwise. */
struct offload {
	struct reg reg;		 /* what its requests name: the bounce memory. Frozen: .mem */
	struct offload_dev *dev; /* in the bounce memory, after the ring. Frozen, as the next two */
	uint32_t base;		 /* of the ring, in the bounce memory */
	uint32_t ring_b;
	uint32_t at;		  /* in the ring: after the newest receive */
	uint32_t taken, consumed; /* receives so far */
	struct offload_slot slot[NCCL_UNPACK_SLOTS];
	alignas(64) unsigned nr_regs; /* the service thread's */
	struct offload *next;	      /* unused ones; under plug.lock */
};

enum req_place { REQ_IDLE, REQ_WAITING, REQ_POSTED };

/* A request. */
struct req {
	/* The thread that posts writes it while it is free. Then it is the core's, until .done is
	 * set. The thread that tests reads .comm and .len alone meanwhile. */
	alignas(64) struct order order;
	struct comm *comm; /* frozen */
	struct reg *reg;   /* NULL: no bytes */
	uint64_t off, len;
	struct req *next; /* in comm.wait */
	uint32_t seq;
	enum req_place place;
	/* The thread that posts clears .done; the core writes all once, at the end. */
	alignas(64) _Atomic uint32_t
		done;	 /* its last store; pairs with the acquire in req_test() */
	int status;	 /* valid when done, as the next */
	uint64_t landed; /* bytes */
};
_Static_assert(sizeof(struct req) == 128 && offsetof(struct req, done) == 64, "a line each");

enum comm_state {
	COMM_DIAL,   /* connecting end: waits for the connection */
	COMM_ASKED,  /* connecting end: waits for the answer, or has it */
	COMM_OPEN,   /* requests may come */
	COMM_CLOSED, /* its user has closed it; the core may still hold requests */
};

/* A sendComm or recvComm. */
struct comm {
	/* Frozen when it opens. Posts and the core read. */
	alignas(64) bool is_send;
	uint32_t number; /* of its connection */
	struct peer *peer;
	struct path *path;	 /* NULL: no core has heard of it */
	struct offload *offload; /* NULL: receives land where NCCL says, or it is a send comm */

	/* The thread that posts alone. */
	alignas(64) uint32_t free; /* bit i: req[i] is free */
	uint32_t seq;		   /* of the next request */
	bool is_logged;		   /* its first error was logged */

	/* The core's alone, but for what says otherwise. */
	alignas(64) struct comm *wait_next, **wait_at; /* in lane.waiting */
	struct req *wait_head, **wait_end;	       /* requests that gx has not taken */
	unsigned nr_posted;
	bool is_waiting; /* it is in lane.waiting */
	bool is_closing; /* the user has closed it */
	bool peer_gone;	 /* the peer has closed its end ... */
	uint32_t count;	 /* ... and requests before this one have reached it; written before the
			    order is put */
	struct comm *grave_next;
	struct order closing, ending; /* the user's close, the peer's close */

	/* Under plug.lock. */
	alignas(64) enum comm_state state;
	struct comm *all_next, **all_at;   /* in plug.comms */
	struct comm *peer_next, **peer_at; /* in peer.comms; peer_at NULL: not there */
	struct comm *meet_next;		   /* in listen.first, or in plug.dials */
	uint64_t dial;			   /* COMM_DIAL, COMM_ASKED: its name in NCCL's handle */
	uint64_t due_ns;		   /* the same: when to give up */
	bool in_call;			   /* the same: a thread is in connect() with it */
	const struct life *life;	   /* the same: of its communicator */
	uint8_t token[TOKEN_B];		   /* the same: the listener's */
	uint32_t listen;		   /* the same: the listener's number */
	bool answered;
	int answer; /* of the peer: 0, -errno */
	bool peer_closed;

	struct req req[NCCL_REQS_MAX];
};
_Static_assert(offsetof(struct comm, free) == 64 && offsetof(struct comm, wait_next) == 128,
	       "the two threads of a request share no line that either writes");

/* A listenComm. Under plug.lock. */
struct listen {
	struct listen *next;
	const struct life *life;
	uint32_t number;
	uint8_t token[TOKEN_B];
	struct comm *first, **end; /* opened by a peer, not taken by accept() */
	unsigned nr_comms;	   /* of these */
};

/* The environment. Frozen while the context is open. */
struct conf {
	unsigned nr_cores;   /* 0: the plugin chooses */
	int cpus[LANES_MAX]; /* nr_cpus of them */
	unsigned nr_cpus;    /* 0: the plugin chooses */
	struct gx_port_name ports[PORTS_MAX];
	char ports_text[256];  /* where these lie */
	unsigned nr_ports;     /* 0: gx's default */
	char host[ADDR_B - 8]; /* address to listen at and to bind to */
	bool every;	       /* of this host's, peers may take another: nobody has named one */
	bool near;	       /* it is loopback: other hosts do not reach it */
	bool insecure;	       /* others may, without a key, in clear */
	char key_file[1024];   /* that all ranks have; "": none */
	const char *link;      /* "packet", "local", "tcp", NULL: gx chooses */
	enum gx_pull pull;
	unsigned pull_over_b; /* gx_host_opts.pull_over_b */
	unsigned help;	      /* test() helps cores to read: 0, 1, HELP_AUTO; .pull OFF: 0 */
	bool offload;	      /* mode unpack: NCCL's kernels copy what was received */
	uint64_t bounce_b;    /* the same: of the bounce memory */
	uint32_t ring_b;      /* the same: of a comm's part of it */
	bool busy;	      /* cores never sleep */
	uint64_t timeout_ns;  /* of a silent peer */
	uint64_t step_ns;     /* of a step of the set-up; not below SETUP_NS */
	unsigned nr_devices;  /* that NCCL sees */
	int speed_mbps;	      /* of a device. 0: its part of CORE_MBPS for each core */
	unsigned latency_us;
};

/* ---- The process ---- */

/* What init gives to NCCL: its communicator, up to finalize. owner: proc.c's own lock */
struct life {
	struct life *next;
};

/* What a listener gives to NCCL, which carries it to the connecting process. */
struct handle {
	uint32_t magic;
	uint32_t version;
	uint64_t host; /* plug.host of the listener */
	uint8_t process[16];
	uint8_t token[TOKEN_B];
	uint32_t listen;   /* number of the listener */
	uint32_t netns;	   /* plug.netns of the listener */
	char addr[ADDR_B]; /* "127.0.0.1:41234", or up to ADDRS_MAX with commas between; numeric */
	uint64_t dial;	   /* the connecting end keeps the number of its connect here; 0: none */
};
_Static_assert(sizeof(struct handle) == NCCL_HANDLE_B, "NCCL carries so many bytes");

#define HANDLE_MAGIC   0x316e7867u /* "gxn1" */
#define HANDLE_VERSION 2

struct stray {
	struct gx_conn *conn;
	uint64_t since_ns; /* 0: close it now */
};

/* The process. Under .lock, but for what says otherwise. */
struct plug {
	pthread_mutex_t lock;
	struct gx *gx;	     /* NULL: closed. Written under proc.c's own lock, while no comm is */
	struct conf conf;    /* frozen, as long as .gx lives */
	bool closing;	     /* gx_close() runs: callbacks do nothing */
	uint64_t host;	     /* a number of this host, never 0. Frozen */
	uint32_t netns;	     /* and of this network namespace; 0: the kernel does not say. Frozen */
	uint8_t process[16]; /* this context's name, random. Frozen */
	char addr[ADDR_B];   /* where it listens. Frozen */
	unsigned nr_lanes;   /* frozen */
	struct lane lane[LANES_MAX];
	struct listen *listens;
	uint32_t listen_numbers;
	struct comm *comms; /* all */
	struct comm *dials; /* COMM_DIAL and COMM_ASKED */
	struct reg *regs;
	struct peer *peers;
	unsigned first_core; /* that the next connection begins with: peers may have fewer cores */
	struct stray stray[STRAYS_MAX];
	unsigned nr_strays;
	bool wrong_token_said;
	bool keeps;	/* the keeper runs, ... */
	bool keep_due;	/* ... has something to do at once, ... */
	bool keep_ends; /* ... or is to end */
	pthread_t keeper;
	/* Cores put closed comms, peer_sweep() takes all. */
	alignas(64) struct comm *_Atomic graves;
	/* What cores read in each turn, and calls of the tables. */
	alignas(64) bool stopped; /* no core runs any more. Written while none does */
	_Atomic bool forked;	  /* this is a child of fork(): the context is the parent's */
};
extern struct plug plug;

/* ---- say.c ---- */

void say_to(nccl_log_fn log); /* NULL: gx's log. From now on */
void say_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void say_info(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* As gx_log_sink() wants it. */
void say_gx(void *arg, int level, const char *line);

/* ---- conf.c ---- */

/* All variables, up to one without a name, and their defaults in words. */
struct conf_var {
	const char *name, *unset;
};
extern const struct conf_var conf_vars[];

/* Read GX_NCCL_*. Return: false: a variable is wrong, and the log says which. */
bool conf_read(struct conf *c);
const char *conf_text(const char *name); /* NULL: it is not set, or empty */
/* Does NCCL take its protocol LL128 over gx where no variable says else? Of the machine; tests set
 * it. */
extern bool conf_ll128_by_default;

/* ---- cpus.c ---- */

/* Choose a CPU for each core, and claim it: cpus[], -1: not pinned. @pci: the GPU whose CPUs come
 * first, as gpus_pci() names it; empty: not known. @claimed: claim none; these are other
 * processes'. */
unsigned cpus_choose(const struct conf *c, const char *pci, const cpu_set_t *claimed,
		     int cpus[LANES_MAX]);
/* How many cores where nobody says. @nr_may: half of the physical cores that this process may use. */
unsigned cpus_default(const struct conf *c, unsigned nr_may);
/* A list of the kernel's, as "0-15,32-47". false: there is none. */
bool cpus_read(const char *path, cpu_set_t *out);
/* As cpus_spread(), of the CPUs in @near first, then of the others in @may: so all ranks together
 * still take half of each part. With too few near, near does not count. */
unsigned cpus_order(const cpu_set_t *may, const cpu_set_t *near, unsigned (*first)(unsigned cpu),
		    int out[CPU_SETSIZE]);
unsigned cpus_far(const int cpus[], unsigned nr, const cpu_set_t *near); /* how many are not near */
/* The CPUs that cores may have: one of each physical core in @may, of the upper half of these, from
 * the highest down, because programs begin at the lowest. @first: the name of a CPU's physical core,
 * that is its lowest CPU. @out: with room for all in @may. Return: how many; 0: there are too few to
 * pin anything. */
unsigned cpus_spread(const cpu_set_t *may, unsigned (*first)(unsigned cpu), int out[]);
void cpus_release(void);
void cpus_claimed(cpu_set_t *out); /* the CPUs that processes have claimed */

/* ---- gpus.c ---- */

/* Is the driver there? false: @why. */
bool gpus_can(char why[WHY_B]);
/* The PCI device of the GPU that the calling thread uses, as sysfs names it. false: not known. */
bool gpus_pci(char id[PCI_B]);
/* Pin host memory, and have all GPUs reach it at the same address. Memory that they reach already is
 * left alone. A context of CUDA must be current. false: @why. */
bool gpus_map(void *addr, size_t len, char why[WHY_B]);

/* ---- offload.c ---- */

int offload_open(struct gx *gx); /* a value of enum nccl_result; the log says why */
void offload_close(void);	 /* gx is closed, and no comm is left */
/* accept: @c's messages go by NCCL's device code from now on. Return: a value of enum nccl_result;
 * -EAGAIN: comms that are closed are about to give room back. */
int offload_give(struct comm *c, struct nccl_dev_handle *dev);
void offload_drop(struct comm *c); /* under plug.lock: no core writes there any more */
/* A registration of NCCL's buffer. false: it is one too many, so it is not NCCL's own. */
bool offload_may_reg(struct comm *c);
void offload_reg_ends(struct comm *c);
/* The next receive gets a slot, and *off, where it lands in the bounce memory. Return: 1; 0: there
 * is no room now; -1: there is never so much. */
int offload_take(struct offload *o, uint64_t len, uint64_t *off);
void offload_publish(struct offload *o, uint32_t nr, uint64_t len); /* receive @nr is done */
/* Receive @nr was consumed. false: it is not the oldest that is out. */
bool offload_consumed(struct offload *o, uint32_t nr);

/* ---- lane.c ---- */

void lane_put(struct lane *l, struct order *o);	  /* any thread */
bool lane_poll(void *lane, uint64_t now_ns);	  /* the core */
void lane_req(struct lane *l, struct order *o);	  /* orders: a request, ... */
void lane_close(struct lane *l, struct order *o); /* ... the user closes a comm, ... */
void lane_end(struct lane *l, struct order *o);	  /* ... the peer has closed it */
/* Any thread: each core has taken all orders that were put before, and sees all that was written
 * before. Waits for the cores' next turns. */
void lane_flush(void);

/* ---- comm.c ---- */

/* The following are under plug.lock. */
struct comm *comm_new(bool is_send);				    /* NULL: no memory */
void comm_bind(struct comm *c, struct path *path, uint32_t number); /* it is on c->peer now */
struct comm *comm_find(const struct peer *p, uint32_t number);
void comm_free(struct comm *c); /* no core holds it */
/* Without the lock: inform the peer, and have the core let go. @c is gone for the caller. */
void comm_close(struct comm *c);

/* ---- peer.c ---- */

void peer_on_conn(void *arg, struct gx_conn *conn, enum gx_conn_event event, int err,
		  const char *why);
/* Under plug.lock. One more comm uses the peer, which may have yet to connect. NULL: no memory. */
struct peer *peer_get(const struct handle *h);
bool peer_up(struct peer *p); /* under plug.lock: has it endpoints? Fills in p->path */
struct peer *peer_accept(struct gx_conn *conn); /* under plug.lock, control thread */
void peer_dial(void);				/* the keeper: connect, ... */
void peer_show(void);				/* ... log paths, ... */
void peer_sweep(void);				/* ... and free what nobody uses any more */
void peer_say(struct peer *p, const char *what, int err); /* log why it is down, once */

/* ---- keep.c ---- */

bool keep_start(void);
void keep_stop(void);
void keep_wake(void); /* under plug.lock */

/* ---- meet.c ---- */

void meet_on_msg(void *arg, struct gx_conn *conn, const void *data, uint32_t len);
void meet_up(struct peer *p);			     /* under plug.lock: the connection is up */
void meet_close_say(struct comm *c, uint32_t count); /* inform the peer that @c is closed */
int meet_listen(const struct life *life, void *handle, void **listen_comm);
int meet_connect(const struct life *life, void *handle, void **send_comm);
int meet_accept(void *listen_comm, void **recv_comm);
void meet_put_back(void *listen_comm, struct comm *c); /* what accept gave: it gives it again */
int meet_close_listen(void *listen_comm);
void meet_drop(const struct life *life); /* what is half made; its communicator has ended */
void meet_sweep(void);			 /* the keeper: connects that nobody calls any more */

/* ---- req.c ---- */

int req_isend(void *comm, void *data, uint64_t size, void *mh, void **req);
int req_irecv(void *comm, void *data, uint64_t size, void *mh, void **req);
/* The next receive is of protocol LL or LL128, says NCCL: does gx serve it? */
int req_is_ll(void *comm, uint64_t size);
int req_test(void *req, int *done, int *sizes);
int req_consumed(void *comm, int n, void *req);
int req_close(void *comm, bool is_send);

/* ---- reg.c ---- */

int reg_make(struct comm *c, void *data, uint64_t size, int type, void **mh);
int reg_drop(struct comm *c, void *mh); /* @c: that it was made for; NULL: closed by now */

/* ---- proc.c ---- */

int proc_open(void **ctx, nccl_log_fn log, bool has_finalize);
int proc_close(void *ctx);
bool proc_is_here(void); /* false: in a child of fork(), which owns nothing */

#endif
