/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One random load over the public API, over the simulated network, in virtual time; see
 * test_sim_all.c. A world is made of nodes (contexts) with memory, links (connections) between
 * them, queues and keys. A model knows of each byte which operation may have written it, and of each
 * operation how it may end. One thread, and no CMocka: the program travels. A run is a function of its
 * seed.
 *
 * all_world.c turns and ends, all_link.c connects, all_mem.c is the model of memory, all_post.c
 * posts, all_view.c draws views, all_gpu.c has GPUs, all_sock.c scripts sockets, all_comp.c judges completions,
 * all_step.c has the steps of the load, all_rest.c looks for what is left, all_run.c runs a seed, all_many.c many.
 */
#ifndef SIM_ALL_H
#define SIM_ALL_H

#include "packet/pkt.h"
#include "sim/port_sim.h"

#include <pthread.h>
#include <stdio.h>

#define ALL_NODES  4
#define ALL_LINKS  6
#define ALL_LIVES  64 /* links of a run, in all */
#define ALL_QUEUES 3  /* of a node, beside those of its cores */
#define ALL_CORES  3
#define ALL_PORTS  2 /* of the simulated network, of a node */
#define ALL_LANES  4
#define ALL_KEYS   24
#define ALL_OPS	   4096
#define ALL_SEGS   24
#define ALL_RUNS   40 /* of a view */
#define ALL_PARTS  80 /* cells of an operation at an end */
#define ALL_VIEWS  24
#define ALL_GPUS   2000000 /* seeds from here on: GPUs, too */
#define ALL_WIDE   1000000 /* seeds from here on: views, keys and ports, too */
#define ALL_SOCKS  3000000 /* seeds from here on: gets by views, scripted sockets, pulls */
#define ALL_STEPS  1200
#define ALL_AREA_B 98304u
#define ALL_POISON 0xa5
#define ALL_CELLS  8192

#define ALL_US 1000ull
#define ALL_MS 1000000ull
#define ALL_S  1000000000ull

/* ---- memory ---- */

enum area_id {
	AREA_MEM, /* of gx_mem_alloc(), region "mem" of all peers */
	AREA_REG, /* the program's; registered, freed, registered again; keys are of it */
	AREA_RAW, /* the program's, and not registered */
	AREAS
};

enum cell_state {
	CELL_SRC,  /* it is read: its bytes are the pattern */
	CELL_DST,  /* it is written: each byte is poison or the pattern's */
	CELL_RECV, /* any bytes may be landing: of a receive, or of a get whose lease is over */
	CELL_STAIN /* its operation has failed; bytes may still land there */
};

/* A piece of an area that an operation names. */
struct cell {
	uint32_t op, pos; /* its first byte is byte pos of the operation's pattern */
	uint32_t off, len;
	uint8_t node, area;
	enum cell_state state;
	bool used;
};

struct area {
	uint8_t *b;
	struct gx_mem *mem;		/* NULL: not registered now */
	struct cell *at[ALL_CELLS / 8]; /* by offset */
	unsigned nr;
};

/* ---- what a world is made of ---- */

struct all_queue {
	struct gx_queue *q; /* NULL: none */
	bool notify, closing;
	uint32_t life;
};

struct node {
	struct gx *gx;
	unsigned nr_cores;
	char addr[32];
	struct area area[AREAS];
	struct all_queue queue[ALL_QUEUES];
	uint64_t still_ns;     /* it does not turn until then */
	uint64_t lazy_ns;      /* it takes no completions until then */
	uint64_t was_still_ns; /* when it went on last */
};

/* How a connection moves bytes. Sockets and maps are the kernel's: what lies in a socket has come when the
 * core looks, unless a script says otherwise, and virtual time is the cores' alone. */
enum link_kind { KIND_PACKET, KIND_TCP, KIND_LOCAL };

enum link_state { LINK_NONE, LINK_UP, LINK_ENDED };

struct alink {
	enum link_state state;
	enum link_kind kind;
	uint32_t life; /* from 1 on; of the run */
	unsigned node[2];
	struct gx_conn *conn[2]; /* NULL: closed */
	struct gx_ep *ep[2][ALL_LANES];
	unsigned nr_lanes;
	struct gx_region mem[2]; /* region "mem" of the other side */
};

/* What is known of a link of the run, also when it is over. */
struct life {
	enum link_kind kind;
	struct gx_conn *conn[2]; /* as on_conn tells them; under the lock */
	bool up[2], down[2];
	int err[2];
	bool over; /* the model has seen its end */
	bool cut;  /* the load has ended one of its sockets */
};

struct key {
	bool used;
	unsigned node;
	uint32_t off, len;
	unsigned access;
	uint32_t life; /* of the link that alone may use it; 0: all */
	uint64_t until_ns;
	bool lapsed;
	struct gx_key key;
};

/* Runs of a view, from its base. */
struct shape {
	unsigned nr;
	uint32_t run_b;
	int32_t at[ALL_RUNS], lo, hi;
};

/* Prepared views of a node. */
struct aview {
	struct gx_list *list; /* NULL: none */
	unsigned node;
	uint32_t len;
	bool puts, gets; /* what it is for */
	struct shape near, far;
};

/* The peer's memory for a put or get: token, bounds. */
struct far {
	enum area_id area;
	uint32_t lo, hi;
	uint64_t token;
	int must;
};

enum op_state { OPS_NEW, OPS_OPEN, OPS_ENDED };

struct aop {
	enum op_state state;
	enum gx_op_kind kind;
	unsigned flags;
	uint8_t node, peer, side;
	uint8_t link; /* index */
	uint8_t lane;
	uint8_t queue; /* index; ALL_QUEUES: the core's */
	bool striped, is_list, is_view;
	uint32_t life, queue_life; /* of its link, of its queue */
	uint64_t len;
	unsigned nr_segs;
	struct cell *from[ALL_PARTS], *to[ALL_PARTS]; /* NULL: let go */
	uint64_t remote_off;			      /* of views */
	uint64_t tag, mask;
	int key; /* -1: region "mem" */
	uint64_t deadline_ns, posted_ns, ended_ns;
	int status;
	unsigned nr_local, nr_notify;
	uint32_t note_len;
	uint32_t got;	 /* RECV: the send that came */
	bool cancelled;	 /* gx_cancel() has found it */
	bool freed;	 /* its own memory was freed */
	bool stale;	 /* the peer has taken its memory back ... */
	bool stale_full; /* ... when all bytes were there */
	bool read_over;	 /* ... and has written it anew */
	int must;	 /* it must fail with this; 0: not */
	bool may_refuse; /* ... or may with -EOPNOTSUPP */
	bool dropped;	 /* its queue or context was closed: no completion comes */
};

struct all_cfg {
	uint64_t seed;
	unsigned nr_steps;
	bool trace;
	const uint8_t *skip; /* [ALL_STEPS]: steps that are left out; NULL: none */
	uint64_t without;    /* bits of enum step_kind that do nothing */
};

struct all_counts {
	uint64_t ops, ended_well, ended_ill, notes, bytes, steps, links, turns, virtual_ns, checks;
};

struct world {
	struct all_cfg cfg;
	struct sim_cfg net_cfg;
	struct sim_net *net;
	unsigned nr_nodes, nr_cores, nr_ports;
	bool wide;	 /* by its seed */
	bool gpu;	 /* AREA_MEM is memory of a GPU ... */
	uint64_t gpu_ns; /* ... whose work is done so much later */
	bool pulls;	 /* link local reads the peer's process */
	uint32_t pull_over_b;
	int integrity;
	enum link_kind other; /* that some connections take */
	uint32_t chunk_b, window, quantum_b, slots;
	uint64_t peer_timeout_ns;
	struct node node[ALL_NODES];
	struct alink link[ALL_LINKS];
	pthread_mutex_t lock; /* guards life and nr_lives */
	pthread_cond_t cond;
	struct life life[ALL_LIVES];
	uint32_t nr_lives, nr_queue_lives;
	struct key key[ALL_KEYS];
	struct aview view[ALL_VIEWS];
	struct aop op[ALL_OPS];
	uint32_t nr_ops, nr_open;
	struct cell cell[ALL_CELLS];
	uint32_t cell_next;
	uint64_t now_ns;
	uint64_t random;
	unsigned step;
	bool calm; /* the load is over: all nodes turn, nothing is lost */
	bool send_failed[ALL_LIVES][2][ALL_LANES]; /* no order of receives is known from then on */
	uint64_t hash;				   /* of all that happened */
	struct all_counts counts;
};

extern struct world *world; /* the one that runs */

/* The ports of a node or connection: the simulated ones, whose arguments are written to @net. */
struct gx_port_name;
unsigned world_ports(struct gx_port_name ports[ALL_PORTS + 1], char net[32]);

/* ---- small things: all_world.c ---- */

/* Ends the process with what is wrong, seed, step and time; the parent has the seed. */
void wrong(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
void trace(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void hash_add(uint64_t v);
uint64_t mix(uint64_t x);
uint64_t rnd(uint64_t n); /* 0 to n - 1, of this step */
bool chance(unsigned percent);
/* 1 to @max, small ones as likely as large ones */
uint64_t rnd_len(uint64_t max);

void world_open(const struct all_cfg *cfg);
void world_close(void);
/* Let @ns pass, or until @done. True: done. */
bool world_until(bool (*done)(void), uint64_t ns);
void world_pass(uint64_t ns);
void world_net(bool calm);
void world_poll(unsigned node);
void node_open(unsigned node);
void node_close(unsigned node);

/* ---- all_link.c ---- */

void link_on_conn(void *arg, struct gx_conn *conn, enum gx_conn_event event, int err,
		  const char *why);
void link_open(unsigned index, unsigned a, unsigned b);
void link_close(unsigned index, int side); /* this side closes, then the other */
void links_look(void);			   /* whether some have failed */
void links_lose(unsigned node);
void links_lost(unsigned node);
bool link_is_over(uint32_t life);
struct gx_ep *link_ep(const struct alink *l, int side, unsigned lane);

/* ---- all_mem.c ---- */

void pattern_fill(uint8_t *b, uint32_t op, uint32_t pos, uint32_t len);
/* A free place of @len bytes in [lo, hi) of the area, NULL: there is none. */
struct cell *cell_new(unsigned node, enum area_id area, uint32_t lo, uint32_t hi, uint32_t len,
		      uint32_t op, uint32_t pos, enum cell_state state);
/* The same at @off exactly. */
struct cell *cell_new_at(unsigned node, enum area_id area, uint32_t off, uint32_t len, uint32_t op,
			 uint32_t pos, enum cell_state state);
void cell_free(struct cell *c); /* poison again; NULL: nothing */
uint8_t *cell_at(const struct cell *c);
bool cell_is_full(const struct cell *c); /* all bytes are the pattern's */
void area_forget(unsigned node);	 /* its process ends, and all of its cells */
void cell_check(const struct cell *c);
void mem_check(void); /* each byte of each area */

/* ---- all_post.c ---- */

void post_some(void);
void post_cancel(void);
void post_storm(void);		  /* long lists, which are cancelled while they are under way */
void post_beside(unsigned index); /* a connection that is new: what is posted there ends soon */
void cancel_waiting(void);	  /* sends and receives, at the end */
struct gx_queue *aop_queue(const struct aop *op);

/* ---- all_view.c ---- */

/* A put or get with views: cells at both ends, and what the post says. False: no place. */
bool view_place(struct aop *op, struct far *f, enum area_id own, struct gx_op *gx);
void views_close(unsigned node);

/* ---- all_gpu.c ---- */

void gpu_open(unsigned node);
void gpu_close(unsigned node);
uint64_t gpu_marks(uint64_t next); /* streams go on. Return: when one does next, or @next */
void gpu_stream(struct aop *op, struct gx_op *gx);

/* ---- all_sock.c ---- */

void sock_begin(void);
void sock_take(const struct alink *l, unsigned lane); /* a new lane, at both ends */
void sock_turn(void);				      /* cores look at what has come */
uint64_t sock_next(uint64_t next);		      /* when one takes bytes again, or @next */
void sock_end_some(void);

/* ---- all_comp.c ---- */

void comp_take(unsigned node, unsigned queue, const struct gx_comp *comp);
/* Has a send or receive of the lane of @op ended ill, or may it? Then its peer may, too. */
bool *messages_fail(const struct aop *op);
static inline bool is_message(const struct aop *op)
{
	return op->kind == GX_OP_SEND || op->kind == GX_OP_RECV;
}
void aop_let_go(struct aop *op); /* its cells, when it has ended */
void order_forget(void);
void comps_end(void); /* what must have come by the end */

/* ---- all_step.c ---- */

void step_run(unsigned step);
void keys_lapse(void);
uint64_t steps_named(const char *name); /* bit of a kind of steps; 0: there is none */
unsigned steps_nr(void);
const char *steps_name(unsigned kind);

/* ---- all_rest.c ---- */

void rest_check(void);
bool rest_is(void);
void rest_ask(void); /* for credit that the end of the load has not brought */
/* Do packets that have not left, or copies of a GPU, refer to memory of the node? */
bool ports_hold(unsigned node);

/* ---- all_run.c ---- */

/* One seed, here. @out: what was done. */
void all_one(const struct all_cfg *cfg, struct all_counts *out, uint64_t *hash);

#endif
