/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs link for the rooms above it: the devices of a context (its rails), registered memory, and
 * the half of a connection that the control thread owns. A path is a pair of rails, ours and the
 * peer's, that reach each other. No header of libibverbs is needed to read this one.
 * docs: verbs_lane.h has the lanes on their cores.
 */
#ifndef GX_VERBS_H
#define GX_VERBS_H

#include "core/core.h"

#include "gx_internal/link.h"

#define VERBS_QPS_MAX 64 /* queue pairs of a connection, all lanes together */
#define VERBS_QPS     4	 /* when the client names no number, and a path less than these */

#define VERBS_RAILS_MAX 8 /* devices of a context */
#define VERBS_PATHS_MAX (2 * VERBS_RAILS_MAX)

struct link_verbs;
struct verbs_conn;
struct verbs_dev;
struct verbs_rails;
struct verbs_reg;

extern const struct gx_link gx_link_verbs;

/* The link's part of a context: its devices. NULL: none is open. */
static inline struct verbs_rails *verbs_rails_of(const struct gx *gx)
{
	return gx->link[GX_LINK_VERBS];
}
static inline struct link_verbs *verbs_core(const struct gx_core *core)
{
	return core->link[GX_LINK_VERBS];
}
/* @c takes this link. NULL: verbs_conn_open() has not made it yet, or it is closed. */
static inline struct verbs_conn *verbs_conn_of(const struct gx_conn *c)
{
	return c->link_state;
}
/* NULL: no device knows the memory. Pairs with the release in verbs_add(). */
static inline struct verbs_reg *verbs_reg_of(const struct gx_mem *mem)
{
	return mem ? atomic_load_explicit(&mem->link[GX_LINK_VERBS], memory_order_acquire) : NULL;
}

/* What the control thread has registered of one struct gx_mem with one device. gx_mem.link[] names
 * the first; that one has the keys of all. owner: ctl; cores read rails and lkey, which are frozen
 * while the memory is not dead. */
struct verbs_reg {
	struct verbs_reg *next; /* in the device's list */
	struct verbs_reg *more; /* the same memory with a later rail */
	uint64_t id;		/* of the allocation (gx_mem.id): an address may come again */
	void *own, *shared;	/* struct ibv_mr: for our own requests; for peers', or NULL */
	uint8_t rail;		/* of the device */
	uint32_t rkey;
	uint64_t addr;	/* by which peers name the first byte */
	uint32_t rails; /* bit i: rail i has it */
	uint32_t near;	/* of these, those to take first: memory of a GPU has the nearest */
	uint32_t lkey[VERBS_RAILS_MAX]; /* of these */
};

enum verbs_gid { VERBS_GID_UNKNOWN, VERBS_GID_V1, VERBS_GID_V2 }; /* RoCE v1, v2 */

/* What an end says of itself in CONNECT and ACCEPT: see verbs_hello.c for the bytes. */
struct verbs_qp_say {
	uint32_t qpn, psn;
};
struct verbs_key {
	uint64_t token, addr;
	uint32_t rails; /* bit i: rail i of the sender has rkey[i] */
	uint32_t rkey[VERBS_RAILS_MAX];
};
struct verbs_port { /* of one rail */
	uint8_t gid[16];
	uint16_t lid;
	uint8_t mtu;	     /* enum ibv_mtu */
	uint8_t is_ethernet; /* link layer: GID needed */
	uint8_t wants_grh;   /* InfiniBand: packets of both ends carry GIDs */
	uint8_t gid_type;    /* enum verbs_gid */
	uint8_t msg_log2;    /* the device takes requests of 2^this bytes */
	uint8_t reads;	     /* RDMA reads of the peer that it serves at a time, on a queue pair */
	uint32_t speed_mbps; /* 0: not to be used */
};
struct verbs_hello {
	uint32_t nr_ports, nr_qps, nr_keys;
	struct verbs_port port[VERBS_RAILS_MAX];
	struct verbs_qp_say qp[VERBS_QPS_MAX];
	uint8_t own[VERBS_QPS_MAX],
		peer[VERBS_QPS_MAX]; /* of each: the sender's rail, the other's */
	struct verbs_key key[GX_REGIONS_MAX];
	uint64_t probe_addr; /* memory of the sender, by which the other may prove a path */
	uint32_t probe_key[VERBS_RAILS_MAX]; /* by rail; 0: it has none there */
};
#define VERBS_PROBE_B 4096u /* of that memory: the largest MTU */
#define VERBS_PORT_B  28
#define VERBS_RAILS_B (4 + VERBS_RAILS_MAX * VERBS_PORT_B) /* of HELLO, at most */
#define VERBS_HELLO_MAX                                                                            \
	(8 + VERBS_RAILS_MAX * (VERBS_PORT_B + 4) + 8 + VERBS_QPS_MAX * 12 +                       \
	 GX_REGIONS_MAX * (20 + 4 * VERBS_RAILS_MAX))

uint32_t verbs_hello_put(uint8_t *b, const struct verbs_hello *h);	    /* bytes written */
int verbs_hello_get(const uint8_t *b, uint32_t len, struct verbs_hello *h); /* 0, -EPROTO */
/* The rails of a server, in its HELLO. @port: VERBS_RAILS_MAX */
uint32_t verbs_ports_put(uint8_t *b, const struct verbs_port port[], uint32_t n);
int verbs_ports_get(const uint8_t *b, uint32_t len, struct verbs_port port[]); /* n, -EPROTO */

/* What one end says of a queue pair that it has reset, so nothing that was sent to its old life
 * can land any more (verbs_mend.c). */
struct verbs_mend {
	uint32_t qp;		 /* index in the connection */
	uint32_t gen;		 /* the life that begins */
	struct verbs_qp_say say; /* qpn 0: it is no more, and nothing can land there again */
	uint32_t taken;		 /* immediates that it had taken in the life that ended */
};
#define VERBS_MEND_B 20
void verbs_hello_mend_put(uint8_t b[VERBS_MEND_B], const struct verbs_mend *m);
int verbs_hello_mend_get(const uint8_t *b, uint32_t len, struct verbs_mend *m); /* 0, -EPROTO */

/* -- verbs_rails.c -- */

/** verbs_rails_open() - Open the devices that @o names, at least one. Return: 0, -errno with
 * gx_error(). */
int verbs_rails_open(const struct gx_verbs_opts *o, struct verbs_rails **out);
void verbs_rails_close(struct verbs_rails *rails); /* accepts NULL */
/** verbs_rails_text() - What was chosen and why, a line for each. Return: bytes, as snprintf(). */
int verbs_rails_text(const struct verbs_rails *rails, char *buf, size_t room);
/** verbs_rails_near_text() - How far @gpu is from each, and which of them carry its memory, a line.
 * Return: bytes, as snprintf(). */
int verbs_rails_near_text(const struct verbs_rails *rails, const struct gx_gpu *gpu, char *buf,
			  size_t room);
void verbs_rails_events(struct verbs_rails *rails); /* control thread */
/** verbs_rails_say() - Our rails, for HELLO. Return: bytes, at most VERBS_RAILS_B. Control thread. */
uint32_t verbs_rails_say(const struct verbs_rails *rails, uint8_t *b);
/* Any thread: a device may take seconds. */
/** verbs_mem_new() - Register @mem with each rail, for our own requests. NULL: all have refused it. A
 * refusal is said in the log. */
struct verbs_reg *verbs_mem_new(struct verbs_rails *rails, const struct gx_mem *mem);
/** verbs_mem_share() - Once more, for @access by peers, with those rails that have it. NULL: all have
 * refused, with gx_error(). */
void *verbs_mem_share(struct verbs_rails *rails, const struct gx_mem *mem, unsigned access);
void verbs_mem_share_put(struct verbs_rails *rails, void *shared); /* not kept */
/* Control thread. */
void verbs_mem_keep(struct verbs_rails *rails, struct verbs_reg *first); /* of verbs_mem_new() */
void verbs_mem_share_keep(struct verbs_reg *first, void *shared);	 /* it has none yet */
/** verbs_mem_revoke() - As verbs_reg_revoke(), with all rails. */
int verbs_mem_revoke(struct verbs_rails *rails, const struct gx_mem *mem);
/** verbs_mem_put() - As verbs_reg_put(), with all rails. */
void verbs_mem_put(struct verbs_rails *rails, const struct gx_mem *mem);

/* -- verbs_dev.c; control path -- */

/** verbs_dev_open() - Open a device: without .device the first with an active port. Return: 0,
 * -errno with gx_error(). */
int verbs_dev_open(const struct gx_rail *rail, struct verbs_dev **out);
void verbs_dev_close(struct verbs_dev *dev); /* no connection and no registration is left */
/** verbs_dev_text() - What was chosen and why, for people. Return: as snprintf(). */
int verbs_dev_text(struct verbs_dev *dev, char *buf, size_t room);
/** verbs_dev_events() - Take asynchronous events. Return: false: the device was removed, or is broken for
 * good. */
bool verbs_dev_events(struct verbs_dev *dev);
/** verbs_dev_names() - Of the devices that there are, @max at most. Return: how many, -ENODEV with
 * gx_error(). */
int verbs_dev_names(char name[][GX_NAME_MAX], unsigned max);

/* -- verbs_rails.c: of one device; any thread: the device may take seconds -- */

/** verbs_reg_new() - Register @mem for our own requests. NULL: refused, said in the log. */
struct verbs_reg *verbs_reg_new(struct verbs_dev *dev, const struct gx_mem *mem);
/** verbs_share_new() - Register @mem once more, for @access by peers. NULL: refused, with
 * gx_error(). */
void *verbs_share_new(struct verbs_dev *dev, const struct gx_mem *mem, unsigned access);
void verbs_share_put(struct verbs_dev *dev, void *shared); /* of verbs_share_new(), and not kept */

/* -- verbs_rails.c: of one device; control thread -- */

void verbs_reg_keep(struct verbs_dev *dev, struct verbs_reg *r); /* of verbs_reg_new() */
void verbs_share_keep(struct verbs_reg *r, void *shared);	 /* it has none yet */
/** verbs_reg_revoke() - Peers can reach it no more when this returns: the device refuses them.
 * Return: 0; -errno: the device did not give it back, and counts as failed: have all connections
 * stopped by verbs_conn_stop(). */
int verbs_reg_revoke(struct verbs_dev *dev, const struct gx_mem *mem);
/** verbs_reg_put() - No request of ours names it any more: forget it. */
void verbs_reg_put(struct verbs_dev *dev, const struct gx_mem *mem);

/* -- a connection's half, verbs_conn.c; control thread -- */

/* What a HELLO says: a byte of flags, 0; of a server also its devices (verbs_ports_put()). */
/** verbs_offer_ports() - The server's devices, by its HELLO. Return: how many; -EPROTO: malformed, or
 * it says none. verbs_hello.c. */
int verbs_offer_ports(const struct gx_conn *c, struct verbs_port port[]);
/** verbs_offered() - NULL, or the reason why this context does not offer the verbs link. */
const char *verbs_offered(const struct gx *gx);
/** verbs_conn_open() - Before the lanes are opened: which paths, and which queue pairs on each? The
 * client decides that. @nr_qps: 0: the default. @b: at the server, what the client says (then
 * @nr_qps counts for nothing); else NULL. Return: 0, -errno with gx_error(). */
int verbs_conn_open(struct gx_conn *c, unsigned nr_lanes, unsigned nr_qps, const uint8_t *b,
		    uint32_t len);
/** verbs_conn_say() - The lanes are open: describe them and our regions for the peer. Return: bytes
 * written, at most VERBS_HELLO_MAX. */
uint32_t verbs_conn_say(const struct gx_conn *c, uint8_t *b);
/** verbs_conn_hear() - The peer's description; before the lanes are connected. Return: 0, -errno
 * with gx_error(). */
int verbs_conn_hear(struct gx_conn *c, const uint8_t *b, uint32_t len);
/** verbs_conn_prove() - When the lanes are connected and before they are attached: may this end say UP?
 * The server's may when its queue pairs can receive. The client's, which is asked when the server has
 * said it, when the server's device has answered on each. Again at each tick until it returns
 * something else than 0. The first call waits a part of a millisecond. Return: 1: yes; 0: not
 * yet; -ENETUNREACH, -EIO, -ENODEV, -EPROTO, -ETIMEDOUT with gx_error(). */
int verbs_conn_prove(struct gx_conn *c);
/** verbs_conn_path() - That no packet gets through between the devices, with their names and what
 * to do, for people. */
void verbs_conn_path(const struct gx_conn *c, char *buf, size_t room);
/** verbs_conn_text() - Its paths and their queue pairs, for people. */
void verbs_conn_text(const struct gx_conn *c, char *buf, size_t room);
/** verbs_conn_lost() - Has it lost all its devices, or been stopped because of one? */
bool verbs_conn_lost(const struct gx_conn *c);
/** verbs_conn_devices() - That they failed, with the name and state of each, for people. */
void verbs_conn_devices(const struct gx_conn *c, char *buf, size_t room);
unsigned verbs_nr_regions(const struct gx_conn *c); /* that a rail reaches */
/** verbs_conn_tick() - Have queue pairs that failed made anew. @say sends to verbs_conn_mend() of
 * the peer. */
void verbs_conn_tick(struct gx_conn *c, uint64_t now_ns,
		     void (*say)(struct gx_conn *c, const uint8_t *b, uint32_t len));
int verbs_conn_mend(struct gx_conn *c, const uint8_t *b, uint32_t len); /* 0, -EPROTO */
/** verbs_conn_stop() - The connection ends: the device lets go of everything. Before its cores are
 * told. Idempotent. */
void verbs_conn_stop(struct gx_conn *c);
/** verbs_conn_is_over() - After that: no thread of a device has a queue pair of it any more, so it may
 * be closed. */
bool verbs_conn_is_over(const struct gx_conn *c);
void verbs_conn_close(struct gx_conn *c); /* accepts none */

#endif
