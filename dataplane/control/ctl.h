/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the control half share, the lowest first: ctl_addr.c (addresses), ctl_listen.c
 * (listening sockets), ctl_stats.c (the stats socket), ctl_conn.c (a bootstrap connection: frames
 * out, and its end), ctl_fd.c (descriptors over a Unix socket), ctl_path.c (which port), ctl_hello.c
 * (the way up), ctl_frame.c (frames in) and ctl.c (open, close, listen, connect, tick). The control
 * thread owns everything here unless it says otherwise.
 */
#ifndef GX_CTL_H
#define GX_CTL_H

#include "control/control.h"
#include "local/local.h"

#include "gx_internal/fork.h"

#include <assert.h>
#include <stdatomic.h>
#include <sys/socket.h>

#define CTL_FRAME_HDR_B	  8
#define CTL_CONNS_MAX	  1024
#define CTL_HALF_OPEN_MAX 256 /* accepted and not yet up: then strangers go for new ones */
#define CTL_LISTENERS_MAX 8
#define CTL_FDS_FREE	  12 /* descriptors that who listens and its first client need */
#define CTL_FDS_MAX	  (2 * GX_HELLO_LANES + LOCAL_FDS_MAX) /* of an exchange, one way */
#define CTL_ADDRS_MAX	  8		/* addresses of one name that are tried */
#define CTL_USER_MAX	  32768		/* bytes of a user's message */
#define CTL_TEXT_MAX	  256		/* bytes of a reason */
#define CTL_OUT_MAX_B	  (4u << 20)	/* of users' messages that wait for one peer to read */
#define CTL_TICK_NS	  20000000ull	/* between two looks at the deadlines */
#define CTL_STEP_NS	  5000000000ull /* that a peer may take for each step of the set-up */
#define CTL_CREDIT_MAX	  (1u << 20)	/* that a lane may begin with */
#define CTL_GRACE_NS	  250000000ull	/* that a stranger has, however many others come */
#define CTL_LINGER_NS	  1000000000ull /* that a peer may take to read our last words */

/*
 * A bootstrap connection: set-up, then up, then the way down.
 *
 *   CONNECT -> HELLO -> PROVE -> LANES -> FDS -> LINKED -> UP
 *                |                ^ |             ^
 *                +----------------+ +-------------+
 *                      (1)                (2)
 *
 *   (1) a server; a client that finds no Unix socket of a server on its host
 *   (2) a client, when no descriptors pass
 *
 *   HELLO to UP   -> LINGER -> CLOSING -> CLOSED   the peer hears why
 *   CONNECT to UP           -> CLOSING -> CLOSED   at once
 *
 * ctl_conn_goto() makes every change, and asserts that ctl_may_go() has it. frames[] in ctl_frame.c
 * says which frame may come in which state.
 */
enum ctl_state {
	CTL_CONNECT, /* client: the TCP connect is out; server: not accepted yet */
	CTL_HELLO,   /* waits for the peer's HELLO */
	CTL_PROVE,   /* client: shows on the Unix socket whose process it is */
	CTL_LANES,   /* client: for ACCEPT; server: for CONNECT */
	CTL_FDS,     /* for the peer's descriptors on the Unix socket */
	CTL_LINKED,  /* our lanes are connected and UP is sent: for the peer's UP */
	CTL_UP,
	CTL_LINGER,  /* last words are on their way; what comes in is dropped until the peer closes
		      */
	CTL_CLOSING, /* cancelled, waits for the engine to let go */
	CTL_CLOSED,
};

static inline bool ctl_may_go(enum ctl_state from, enum ctl_state to)
{
	static const uint16_t next[] = {
		[CTL_CONNECT] = 1 << CTL_HELLO | 1 << CTL_CLOSING,
		[CTL_HELLO] = 1 << CTL_PROVE | 1 << CTL_LANES | 1 << CTL_LINGER | 1 << CTL_CLOSING,
		[CTL_PROVE] = 1 << CTL_LANES | 1 << CTL_LINGER | 1 << CTL_CLOSING,
		[CTL_LANES] = 1 << CTL_FDS | 1 << CTL_LINKED | 1 << CTL_LINGER | 1 << CTL_CLOSING,
		[CTL_FDS] = 1 << CTL_LINKED | 1 << CTL_LINGER | 1 << CTL_CLOSING,
		[CTL_LINKED] = 1 << CTL_UP | 1 << CTL_LINGER | 1 << CTL_CLOSING,
		[CTL_UP] = 1 << CTL_LINGER | 1 << CTL_CLOSING,
		[CTL_LINGER] = 1 << CTL_CLOSING,
		[CTL_CLOSING] = 1 << CTL_CLOSED,
		[CTL_CLOSED] = 0,
	};

	return next[from] >> to & 1;
}

struct ctl_addr {
	struct sockaddr_storage sa;
	socklen_t len;
};

/* A frame to send. owner: who makes it, then ctl */
struct ctl_buf {
	struct ctl_buf *next;
	struct ctl_conn *cc;
	bool user; /* counted in cc->out_b */
	uint32_t len, pos;
	uint8_t b[];
};

/* What is needed during set-up only. */
struct ctl_setup {
	struct gx_hello_lanes local;  /* CONNECT or ACCEPT as we sent it */
	struct gx_hello_lanes remote; /* as the peer did */
	int fds[CTL_FDS_MAX];	      /* received and ours until somebody takes them; -1: taken */
	unsigned nr_fds;
	int err; /* the client fails at due_ns, and with text; 0: it does not */
	char text[CTL_TEXT_MAX];
};

/* A bootstrap connection: the half of struct gx_conn that is ctl's. */
struct ctl_conn {
	struct ctl *ctl;
	struct ctl_conn *next; /* in ctl->conns */
	struct gx_conn *conn;  /* NULL: server before HELLO, or already freed */
	enum ctl_state state;  /* ctl_conn_goto() alone writes it */
	bool server;
	bool was_up;
	bool peer_up; /* the peer's UP has come */
	bool parsing; /* a callback reads from in */
	bool near;    /* the peer's address is this host's */
	bool proven;  /* server: whose the client is, it has shown on the Unix socket, and that is a
		       * user we serve; client: we have */
	bool prove_again; /* client: at the next tick */
	int fd;
	struct gx_io rx; /* CONNECT, then RECV */
	struct gx_io tx;
	uint8_t *in; /* what came and is not a whole frame yet */
	uint32_t in_len, in_room;
	struct ctl_buf *out, **out_end;
	_Atomic uint32_t out_b;	  /* any thread: bytes of users' messages not yet sent */
	_Atomic uint32_t nr_jobs; /* any thread: users' messages not yet in out */
	uint64_t due_ns;	  /* of the state; 0: none */
	uint64_t born_ns;	  /* server: accepted */
	uint64_t timeout_ns;	  /* client: of each step of the set-up */
	uint8_t nonce[16];	  /* of our HELLO */
	char name[96];		  /* client: as the user wrote it; server: as the socket says */
	uint8_t from_len;	  /* server: of the client's IP address, 4 or 16 */
	uint8_t from[16];
	char forced[GX_NAME_MAX]; /* client: what the port wanted speaks, "" for the best */
	unsigned forced_port;	  /* and its index in gx->port[] */
	char link[16];		  /* client: the link wanted, "" for the best */
	char no_share[192];	  /* client: why no memory is shared with this server; "": it may */
	unsigned lanes_max;	  /* client: 0: no limit */
	struct ctl_addr addrs[CTL_ADDRS_MAX];
	unsigned nr_addrs, addr; /* client: to try; the one under way */
	int addr_err;		 /* client: why the one before failed */
	struct ctl_setup *setup; /* from CONNECT to UP */
	struct ctl_pass *pass;	 /* exchange of descriptors under way; while there is one, */
	void (*pass_forget)(struct ctl_conn *cc); /* ends it */
};

static inline void ctl_conn_goto(struct ctl_conn *cc, enum ctl_state to)
{
	assert(ctl_may_go(cc->state, to));
	cc->state = to;
}

/* So that peers cannot fill the log. */
struct ctl_rate {
	uint64_t start_ns; /* of the second in which nr counts */
	unsigned nr;
};

/* A listening socket. */
struct ctl_listener {
	struct ctl *ctl;
	struct ctl_listener *next;
	struct gx_io io;
	int fd;
	bool closing;
	bool (*room)(struct ctl *ctl);
	void (*accepted)(struct ctl *ctl, int fd); /* takes @fd over */
	void (*turn_away)(struct ctl *ctl,
			  int fd); /* the same, with the last descriptor; NULL: nobody is told */
	char path[108];		   /* to unlink; "" for none */
	int spare; /* -1, or a descriptor that is given up to tell a peer that there is none */
};

struct ctl {
	struct gx *gx;
	struct gx_io tick;
	struct ctl_listener *listeners;
	struct ctl_conn *conns;
	struct ctl_pass *passes;
	struct ctl_client *clients;  /* of the stats socket */
	char unix_name[GX_NAME_MAX]; /* written before the first listener starts; "" for none */
	uint8_t host_id[16];	     /* frozen */
	struct ctl_addr bind;	     /* frozen; where connections to other hosts come from; len 0:
				      * where the kernel likes */
	unsigned next_core;	     /* where the next client with few lanes goes */
	unsigned inside;	     /* callbacks on the stack: nothing is freed meanwhile */
	bool closing;
	/* What ctl_fd.c calls when it is through; frozen. */
	void (*shown)(struct ctl_conn *cc); /* client: the server knows whose we are, or does not */
	void (*passed)(struct ctl_conn *cc, int fds[],
		       unsigned n); /* descriptors; takes them over */
	struct ctl_rate bad_rate, refused_rate, full_rate, closers_rate, fds_rate;
	char refused[CTL_TEXT_MAX]; /* the reason of a verdict on its way to ctl_conn_judge() */
	uint8_t frame[GX_HELLO_FRAME_MAX]; /* to encode into */
};

/* -- ctl_addr.c; any thread -- */

/* "HOST:PORT" to addresses. Return: how many, -EINVAL with gx_error(). */
int ctl_addr_resolve(const char *addr, bool passive, struct ctl_addr out[CTL_ADDRS_MAX]);
void ctl_addr_name(const struct sockaddr_storage *sa, char *buf, size_t room);
bool ctl_addr_is_loopback(const struct sockaddr_storage *sa); /* 127.0.0.0/8, ::1 */
/* Loopback, or an address of one of this network namespace's interfaces. */
bool ctl_addr_is_own(const struct sockaddr_storage *sa);
/* The IP address in its bytes; IPv4 within IPv6 as IPv4. Return: how many, 0: neither. */
unsigned ctl_addr_bytes(const struct sockaddr *sa, uint8_t b[16]);

/* -- ctl_listen.c -- */

/* Count a bad hello or message, and say so at debug level, not too often. */
void ctl_bad(struct ctl *ctl, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* May another line about peers be logged? Each @rate is for lines of one kind. */
bool ctl_may_log(struct ctl_rate *rate);
/* Start to accept on @l, which is malloc()ed. Takes it over; any thread. Return: 0, -ECANCELED when
 * closing, -ENOSPC. */
int ctl_listener_start(struct ctl *ctl, struct ctl_listener *l);
void listener_arm(struct ctl_listener *l); /* accept the next */
void listener_close(struct ctl_listener *l);
void listener_spare(struct ctl_listener *l);
bool listener_is_tcp(const struct ctl_listener *l);

/* -- ctl_conn.c -- */

struct ctl_conn *ctl_conn_new(struct ctl *ctl, bool server); /* any thread; not yet in ctl->conns */
/* Say why to the peer, and conn_down(). The text is the cause and the cure, the same for both ends.
 */
void ctl_conn_fail(struct ctl_conn *cc, int err, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Client: the same, but what is known here is only the effect; the peer's ERROR, with the cause,
 * may be under way and is waited for. */
void ctl_conn_fail_soon(struct ctl_conn *cc, int err, const char *fmt, va_list ap);
void ctl_conn_end(struct ctl_conn *cc,
		  uint64_t linger_ns);	    /* BYE, or ERROR when the connection failed; close */
void ctl_conn_close(struct ctl_conn *cc);   /* now, without a word */
void ctl_conn_destroy(struct ctl_conn *cc); /* CLOSED, or never started */
/* Sockets and buffers of @c. Return: false while an operation of the engine is still held (asked to
 * cancel; try again at the next tick). */
bool ctl_conn_free(struct gx_conn *c);
/* Send a frame that was encoded into ctl->frame; or one without a body. Without memory the
 * connection ends. */
void ctl_conn_frame_send(struct ctl_conn *cc, uint32_t len);
void ctl_conn_plain_send(struct ctl_conn *cc, enum gx_hello_type type);
/* The peer does not keep to the protocol: count it, and end the connection. */
void ctl_conn_bad(struct ctl_conn *cc, const char *what);
/* A verdict: the connection cannot go on, for this reason. Nothing has happened to it yet; return it
 * to the caller. Return: @err. ctl_conn_refuse_bad(): the peer does not keep to the protocol. */
int ctl_conn_refuse(struct ctl_conn *cc, int err, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
int ctl_conn_refuse_bad(struct ctl_conn *cc, const char *what);
/* End the connection by ctl_conn_fail() or ctl_conn_bad() if the verdict says so; 0: it goes on. */
void ctl_conn_judge(struct ctl_conn *cc, int verdict);
const char *ctl_conn_peer(const struct ctl_conn *cc); /* its name, for people */
void ctl_conn_setup_free(struct ctl_conn *cc);
/* CLOSING ends when the engine has let go of both directions, and nobody looks at what came in. */
void ctl_conn_closed_check(struct ctl_conn *cc);
/* On the way up, or up. */
static inline bool ctl_conn_is_live(const struct ctl_conn *cc)
{
	return cc->state < CTL_LINGER;
}

/* -- ctl_fd.c -- */

bool ctl_fd_needed(const struct ctl_setup *s);
int ctl_fd_listen(struct ctl *ctl);	 /* any thread; once */
void ctl_fd_prove(struct ctl_conn *cc);	 /* client: go and show whose we are */
void ctl_fd_start(struct ctl_conn *cc);	 /* client: bring our descriptors, fetch the server's */
void ctl_fd_wait(struct ctl_conn *cc);	 /* server: the client will bring its own */
void ctl_fd_forget(struct ctl_conn *cc); /* @cc gave up */
void ctl_fd_tick(struct ctl *ctl, uint64_t now_ns);
void ctl_fd_close(struct ctl *ctl);

/* -- ctl_path.c -- */

void ctl_path_ports(const struct ctl *ctl, struct gx_hello *h); /* what our HELLO says of ports */
bool ctl_path_same_host(const struct ctl_conn *cc);
int ctl_path_port_find(const struct gx_hello *h, const char *name); /* its index; -1 */
/* One more reason to cc->conn->why. */
void ctl_path_why(struct gx_conn *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Client: choose. Return: its verdict. */
int ctl_path_choose(struct ctl_conn *cc);

/* -- ctl_hello.c -- */

void ctl_hello_send(struct ctl_conn *cc);
/* What a frame says. Return: its verdict, see ctl_conn_judge(). */
int ctl_hello_take(struct ctl_conn *cc, const uint8_t *body, uint32_t len);
int ctl_hello_connect_take(struct ctl_conn *cc, const uint8_t *body, uint32_t len);
int ctl_hello_accept_take(struct ctl_conn *cc, const uint8_t *body, uint32_t len);
void ctl_hello_up(struct ctl_conn *cc); /* UP was sent, and has come */
/* Client: the server knows whose we are (@cc->proven), or does not. */
void ctl_hello_shown(struct ctl_conn *cc);
void ctl_hello_passed(struct ctl_conn *cc, int fds[],
		      unsigned n); /* descriptors are here; takes them over */

/* -- ctl_frame.c -- */

void ctl_conn_start(struct ctl_conn *cc); /* client: connect to the first address */
bool ctl_conn_room(struct ctl *ctl);
void ctl_conn_accepted(struct ctl *ctl, int fd);
void ctl_conn_turn_away(struct ctl *ctl, int fd); /* no descriptors are left; closes @fd */
void ctl_conn_tick(struct ctl_conn *cc, uint64_t now_ns);

/* -- ctl_stats.c -- */

void ctl_stats_tick(struct ctl *ctl, uint64_t now_ns);
void ctl_stats_close(struct ctl *ctl);

#endif
