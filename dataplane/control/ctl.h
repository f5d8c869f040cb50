/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations for the files of the control half, the lowest first: ctl_addr.c (addresses),
 * ctl_listen.c (listening sockets), ctl_look.c (connections in numbers), ctl_stats.c (the stats socket), ctl_run.c (where it is found),
 * ctl_tls.c (TLS), ctl_conn.c (a bootstrap connection: frames out, and its end), ctl_dial.c (the client's
 * way to a first socket), ctl_fd.c (descriptors over a Unix socket), ctl_data.c (data sockets), ctl_path.c (choice of link and port), ctl_hello.c
 * (set-up), ctl_again.c (a client's second set-up), ctl_first.c (a client's first bytes), ctl_frame.c (frames in) and ctl.c (open, close,
 * listen, connect, tick). The control thread owns everything here, unless a comment says otherwise.
 */
#ifndef GX_CTL_H
#define GX_CTL_H

#include "auth/auth.h"
#include "auth/auth_tls.h"
#include "control/control.h"
#include "core/socks.h"

#include "gx_internal/fork.h"
#include "gx_internal/link.h"

#include <assert.h>
#include <stdatomic.h>
#include <sys/socket.h>

#define CTL_FRAME_HDR_B	  8
#define CTL_CONNS_MAX	  1024
#define CTL_HALF_OPEN_MAX 256 /* accepted and not yet up: beyond it a new one replaces one */
#define CTL_SOURCE_MAX	  64  /* of these of one other address, that have not shown a key yet */
#define CTL_FDS_FREE	  12  /* descriptors for a server and its first client */
#define CTL_FDS_MAX	  (2 * GX_HELLO_LANES + GX_LINK_FDS_MAX) /* of an exchange, one way */
#define CTL_ADDRS_MAX	  8					 /* addresses to try for one name */
#define CTL_USER_MAX	  32768					 /* bytes of a user's message */
#define CTL_LINK_MAX	  256					 /* bytes from link to link */
#define CTL_TEXT_MAX	  256					 /* bytes of a reason */
#define CTL_OUT_MAX_B	  (4u << 20)	 /* users' messages that wait for one peer to read */
#define CTL_TICK_NS	  20000000ull	 /* between two looks at the deadlines */
#define CTL_SOON_NS	  250000ull	 /* between two looks at lanes that are tried, ... */
#define CTL_SOON_END_NS	  50000000ull	 /* ... for so long; then at each tick */
#define CTL_STEP_NS	  5000000000ull	 /* for each step of the set-up */
#define CTL_LINK_WORDS	  8		 /* LINK frames of a set-up that gain time */
#define CTL_NAME_NS	  60000000000ull /* for a name to listen at */
#define CTL_DATA_NS	  60000000000ull /* most for all data sockets of a client */
#define CTL_CREDIT_MAX	  (1u << 20)	 /* most credit of a lane at the start */
#define CTL_GRACE_NS	  250000000ull	 /* a stranger has that long, even if many others come */
#define CTL_LINGER_NS	  1000000000ull	 /* for a peer to read our last frames */

/*
 * A bootstrap connection: set-up, then up, then the way down.
 *
 *          (1)
 *   CONNECT -> TLS -> HELLO -> PROVE -> LANES -> FDS -> LINKED -> UP
 *      |                ^|                ^ |             ^
 *      +----------------++----------------+ +-------------+
 *             (2)               (3)               (4)
 *
 *   (1) a server; a client that has a key
 *   (2) a client that has none
 *   (3) a server; a client that finds no Unix socket of a server on its host
 *   (4) a client, when no descriptors pass
 *
 *   TLS           -> LINGER -> CLOSING -> CLOSED   a client hears that its key is not taken
 *   HELLO to UP   -> LINGER -> CLOSING -> CLOSED   the peer gets the reason
 *   CONNECT to UP           -> CLOSING -> CLOSED   at once
 *
 * ctl_conn_goto() makes every change, and asserts that ctl_may_go() has it. frames[] in ctl_frame.c
 * says which frame may come in which state.
 */
enum ctl_state {
	CTL_CONNECT, /* client: the TCP connect is out; server: not accepted yet */
	/* Server: waits for the client's first bytes; nothing is sent to who is not let in. Client: the
	 * handshake is under way. The server's is over for it when the client has shown a key */
	CTL_TLS,
	CTL_HELLO,  /* waits for the peer's HELLO */
	CTL_PROVE,  /* client: shows its user on the Unix socket */
	CTL_LANES,  /* client: waits for ACCEPT; server: for CONNECT */
	CTL_FDS,    /* waits for the peer's descriptors on the Unix socket, or for data sockets */
	CTL_LINKED, /* our lanes are connected: sends UP, waits for the peer's UP. A link with a way
			to prove sends UP later: ctl_hello_linked() */
	CTL_UP,
	CTL_LINGER,  /* sends its last frames, drops input until the peer closes */
	CTL_CLOSING, /* cancelled; waits for gx_uring to let go */
	CTL_CLOSED,
};

static inline bool ctl_may_go(enum ctl_state from, enum ctl_state to)
{
	static const uint16_t next[] = {
		[CTL_CONNECT] = 1 << CTL_TLS | 1 << CTL_HELLO | 1 << CTL_CLOSING,
		[CTL_TLS] = 1 << CTL_HELLO | 1 << CTL_LINGER | 1 << CTL_CLOSING,
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

/* A frame to send. owner: its maker, then ctl */
struct ctl_buf {
	struct ctl_buf *next;
	struct ctl_conn *cc;
	bool user; /* counted in cc->out_b */
	uint32_t len, pos;
	uint8_t b[];
};

/* State of the set-up. */
struct ctl_setup {
	struct gx_hello_lanes local;  /* CONNECT or ACCEPT as we sent it */
	struct gx_hello_lanes remote; /* the peer's */
	int fds[CTL_FDS_MAX];	      /* received; ours until taken; -1: taken */
	unsigned nr_fds;
	struct gx_hello_error late; /* client: fail with it at due_ns; .err 0: do not */
};

/* A client's part of a connection: what it asks for, and how far it is. */
struct ctl_dial {
	struct ctl_addr addrs[CTL_ADDRS_MAX];
	struct ctl_try *tries;	     /* [nr_addrs], of ctl_dial.c; NULL: never begun */
	unsigned nr_addrs, nr_begun; /* addresses to try; those that were begun */
	unsigned addr;		     /* the one that answered */
	uint64_t next_ns;	     /* when to begin with the next one */
	uint64_t end_ns;	     /* of all of them, until one says HELLO */
	/* These are set when the first one begins: an address answers; cancel tries; are there any? */
	void (*answers)(struct ctl_conn *cc);
	void (*forget)(struct ctl_conn *cc);
	bool (*held)(const struct ctl_conn *cc);
	/* The address that answers is of no use, for @reason: the others are tried. */
	void (*useless)(struct ctl_conn *cc, enum gx_reason reason, int err);
	uint64_t timeout_ns;		 /* for each step of the set-up */
	char forced[GX_NAME_MAX];	 /* match of the wanted port; "": the best */
	unsigned forced_port;		 /* its index in gx->port[] */
	unsigned nr_wanted;		 /* wanted ports, all of one match; 0: the best one */
	uint8_t wanted[GX_HELLO_PORTS];	 /* [nr_wanted]: their indices in gx->port[] */
	const struct gx_link *link;	 /* the wanted link; NULL: the best */
	struct core_connect asked;	 /* what links are asked for */
	char peer[GX_PEER_NAME_MAX + 1]; /* name of the server that it wants; "": any */
	char no_share[192];		 /* why it shares no memory with this server; "": it may */
	unsigned lanes_max;		 /* 0: no limit */
	uint32_t dead;			 /* bits of links that let nothing through */
	char dead_why[CTL_TEXT_MAX];	 /* of the last one */
	bool again; /* second set-up: waits for the cores to let go of the first one's lanes */
	bool prove_again;      /* try again at the next tick */
	struct ctl_data *data; /* connects data sockets; NULL: no more, or not yet */
	void (*data_forget)(struct ctl_conn *cc); /* ends data */
};

/* A server's: the client that came. */
struct ctl_came {
	struct gx_listener *listener; /* that accepted it; NULL: it was closed */
	uint64_t born_ns;	      /* accepted */
	uint8_t from_len;	      /* length of the client's IP address, 4 or 16 */
	uint8_t from[16];
};

/* A bootstrap connection: ctl's half of struct gx_conn. */
struct ctl_conn {
	struct ctl *ctl;
	struct ctl_conn *next; /* in ctl->conns */
	struct gx_conn *conn;  /* NULL: server before HELLO, or already freed */
	enum ctl_state state;  /* ctl_conn_goto() alone writes it */
	bool server;
	bool was_up;
	uint32_t link_words; /* LINK frames before that */
	bool own_up;	     /* this end has sent UP */
	bool peer_up;	     /* the peer has */
	bool parsing;	     /* conn_parse() reads from in */
	bool loopback;	     /* the peer's address is */
	/* Server: the client has shown its user on the Unix socket, and we serve that user. Client:
	 * the server knows our user. */
	bool proven;
	int fd;
	struct gx_io rx; /* CONNECT, then RECV */
	struct gx_io tx;
	struct ctl_tls *tls; /* NULL: in clear, or not known yet */
	/* By which the ends know one another; held. Client: it connects by TLS. Server: the one that
	 * the client named; NULL: none, or none of that name */
	struct auth_key *key;
	uint8_t *in; /* received bytes, no whole frame yet */
	uint32_t in_len, in_room;
	struct ctl_buf *out, **out_end;
	_Atomic uint32_t out_b;	  /* any thread: bytes of users' messages not yet sent */
	_Atomic uint32_t nr_jobs; /* any thread: users' messages not yet in out */
	uint64_t due_ns;	  /* deadline of the state; 0: none */
	uint64_t linked_ns;	  /* LINKED: since when */
	uint8_t nonce[16];	  /* of our HELLO */
	char name[96];		  /* client: the user's text; server: the socket's address */
	uint8_t data_len;	  /* of data for the peer, in our HELLO */
	uint8_t data_out[GX_HELLO_CONN_DATA_MAX];
	struct ctl_dial dial;	 /* client */
	struct ctl_came came;	 /* server */
	struct ctl_setup *setup; /* from CONNECT to UP */
	struct ctl_pass *pass;	 /* exchange on the Unix socket under way; NULL: none */
	void (*pass_forget)(struct ctl_conn *cc); /* ends pass */
};

static inline void ctl_conn_goto(struct ctl_conn *cc, enum ctl_state to)
{
	assert(ctl_may_go(cc->state, to));
	cc->state = to;
}

/* A limit for log lines about peers. */
struct ctl_rate {
	uint64_t start_ns; /* start of the second that nr counts */
	unsigned nr;
};

/* A listening socket. */
struct gx_listener {
	struct ctl *ctl;
	struct gx_listener *next;
	struct gx_io io;
	int fd;
	bool closing;
	bool (*room)(struct ctl *ctl);
	void (*accepted)(struct gx_listener *l, int fd); /* takes @fd over */
	/* Tells the peer that no descriptor is left. Takes @fd over. NULL: this listener tells
	 * nobody. */
	void (*turn_away)(struct ctl *ctl, int fd);
	char path[108]; /* to unlink; "": none */
	int spare;	/* descriptor to give up when none is left, to tell a peer; -1: none */
	/* gx_listen_with(); the rest is frozen */
	struct gx_listener
		*head; /* the one that the program has, of several addresses; or itself */
	bool held;     /* the program has it */
	bool ask;
	uint8_t data_len; /* for clients */
	uint8_t data[GX_HELLO_CONN_DATA_MAX];
	void *user;
};

struct ctl {
	struct gx *gx;
	struct gx_io tick;
	struct gx_io soon; /* before it: lanes are being tried */
	struct gx_listener *listeners;
	struct ctl_conn *conns;
	struct ctl_pass *passes;
	struct ctl_data *datas;	     /* ends of clients that connect data sockets */
	struct ctl_client *clients;  /* of the stats socket */
	char unix_name[GX_NAME_MAX]; /* written before the first listener starts; "": none */
	uint8_t host_id[16];	     /* frozen */
	/* Frozen. Connections to other hosts leave from here; len 0: the kernel chooses. */
	struct ctl_addr bind;
	struct auth_tls_ctx *tls; /* NULL: nobody needed it yet */
	unsigned next_core;	  /* first core of the next client */
	unsigned inside;	  /* callbacks on the stack; they keep the tick from freeing */
	uint64_t tick_ns;	  /* time of the last tick; 0: none yet */
	uint64_t starved_ns;	  /* when no descriptor was left for who came; 0: never */
	bool closing;
	/* ctl_fd.c calls these when it is done; frozen. */
	void (*shown)(struct ctl_conn *cc); /* client: cc->proven: the server knows our user */
	/* Takes the received descriptors over. */
	void (*passed)(struct ctl_conn *cc, int fds[], unsigned n);
	void (*joined)(struct ctl_conn *cc); /* ctl_data.c: all data sockets are there; frozen */
	struct ctl_rate bad_rate, refused_rate, full_rate, closers_rate, fds_rate;
	uint8_t frame[GX_HELLO_FRAME_MAX]; /* gx encodes frames here */
	char run_lock[100]; /* ctl_run.c: path of the lock; the socket's is as long */
	size_t text_room;   /* ctl_stats.c: of the last answer; 0: none yet */
	int run_fd;	    /* of it; -1: this context is not published */
};

/* -- ctl_addr.c; any thread -- */

/* "HOST:PORT", or several with commas between, to different addresses. Return: their number; -errno with
 * gx_error(): -ETIMEDOUT: the name servers said nothing for @timeout_ns. */
int ctl_addr_resolve(const char *addr, bool passive, uint64_t timeout_ns,
		     struct ctl_addr out[CTL_ADDRS_MAX]);
/* In which order to try them, by RFC 8305. @listed: the peer named them, not a name: first what is in a
 * network of ours, last what is ours. */
void ctl_addr_order(struct ctl_addr a[], unsigned n, bool listed);
/* "10.0.0.1:7501,[fd00::1]:7501", as much as there is room for. */
void ctl_addr_list(const struct ctl_addr a[], int n, char *list, size_t room);
void ctl_addr_name(const struct sockaddr_storage *sa, char *buf, size_t room);
bool ctl_addr_is_loopback(const struct sockaddr_storage *sa); /* 127.0.0.0/8, ::1 */
/* Does a connection to @to leave from @own? Not to a network of ours in which @own is not. */
bool ctl_addr_leaves(const struct ctl_addr *own, const struct ctl_addr *to);
bool ctl_addr_is_own(const struct ctl_addr *a); /* may a socket of ours have it? */
/* The bytes of the IP address; of IPv4 within IPv6 the IPv4 address. Return: their number; 0: no
 * IP. */
unsigned ctl_addr_bytes(const struct sockaddr *sa, uint8_t b[16]);

/* -- ctl_listen.c -- */

/* Count a bad hello or message. Log it at debug level, not too often. */
void ctl_bad(struct ctl *ctl, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* May another line about peers be logged? Each @rate is for lines of one kind. */
bool ctl_may_log(struct ctl_rate *rate);
/* Start to accept on @l, which is malloc()ed. Takes it over; any thread. Return: 0, -ECANCELED
 * while closing. */
int ctl_listener_start(struct ctl *ctl, struct gx_listener *l);
void listener_arm(struct gx_listener *l); /* accept the next */
/* Clients in set-up of whom the program has not heard hear that nobody listens. */
void listener_close(struct gx_listener *l);
void listener_spare(struct gx_listener *l);
bool listener_is_tcp(const struct gx_listener *l);

/* -- ctl_tls.c -- */

/* Bytes between TLS and the socket. */
struct ctl_tls {
	struct auth_tls *t;
	/* From CONNECT to UP, of auth_mem_get(): the private half; then what both ends have. */
	struct auth_secret *mix;
	bool met;
	uint32_t len, pos; /* of out: all; those that are sent */
	bool ended;	   /* this end says no more */
	uint8_t in[4096], out[4096];
};

/** ctl_tls_open() - From now on @cc is TLS, by cc->key. @name: of the key. Return: a verdict. */
int ctl_tls_open(struct ctl_conn *cc, const char *name);
void ctl_tls_free(struct ctl_conn *cc);
/** ctl_tls_out() - The next bytes to send. Return: how many. They stay until .pos is past
 * all. */
uint32_t ctl_tls_out(struct ctl_conn *cc, uint8_t **b);
void ctl_tls_end(struct ctl_conn *cc); /* this end says no more. Once or more */
/** ctl_tls_half() - A half for CONNECT or ACCEPT; without TLS zero. ctl_tls_meet(): the peer's has come.
 * Return: a verdict. ctl_tls_forget(): all secrets of data are made. */
int ctl_tls_half(struct ctl_conn *cc, uint8_t half[32]);
int ctl_tls_meet(struct ctl_conn *cc, const uint8_t half[32]);
void ctl_tls_forget(struct ctl_conn *cc);
/* struct gx_conn.secret */
int ctl_tls_secret(const struct gx_conn *c, const struct auth_dir *dir, struct auth_secret *out);

/* Of a frame that may not come now. */
#define OUT_OF_TURN "message out of turn"

/* -- ctl_conn.c -- */

struct ctl_conn *ctl_conn_new(struct ctl *ctl, bool server); /* any thread; not yet in ctl->conns */
void ctl_conn_tune(const struct ctl_conn *cc); /* its socket is connected, and will be used */
/* Act on a verdict. 0: the connection goes on. The result of gx_refuse(): it ends, and both ends get
 * the words, which have cause and cure. For GX_REASON_PROTOCOL they say how the peer broke it. */
void ctl_conn_judge(struct ctl_conn *cc, int verdict);
/* Client: the same, but later. This end knows only the effect; the peer's ERROR with the cause may
 * be under way. */
void ctl_conn_judge_late(struct ctl_conn *cc, int verdict);
/* Send BYE, or ERROR if the connection failed; then close. */
void ctl_conn_end(struct ctl_conn *cc, uint64_t linger_ns);
/* Send what is due, then close. */
void ctl_conn_linger(struct ctl_conn *cc, uint64_t linger_ns);
void ctl_conn_close(struct ctl_conn *cc); /* now, without a frame */
/* Before that: a client that has several addresses and has not heard HELLO goes on with the others, without @cc,
 * or is down for the reasons of all. */
void ctl_conn_useless(struct ctl_conn *cc, enum gx_reason reason, int err);
void ctl_conn_send(struct ctl_conn *cc);    /* what is due: TLS may have something to say */
void ctl_conn_drop(struct ctl_conn *cc);    /* any thread: frees one that never started */
void ctl_conn_destroy(struct ctl_conn *cc); /* frees it: CLOSED, or never started */
/* Free sockets and buffers of @c. Return: false while they are in use; try again at the next
 * tick. */
bool ctl_conn_free(struct gx_conn *c);
/* Send the frame in ctl->frame, or one without a body. Return: a verdict: there may be no memory. */
int ctl_conn_frame_send(struct ctl_conn *cc, uint32_t len);
int ctl_conn_plain_send(struct ctl_conn *cc, enum gx_hello_type type);
const char *ctl_conn_peer(const struct ctl_conn *cc); /* its name, for people */
void ctl_conn_setup_free(struct ctl_conn *cc);
/* End CLOSING when gx_uring has let go of both directions and nobody parses input. */
void ctl_conn_closed_check(struct ctl_conn *cc);
/* Server: may the client come in clear? Peers of other hosts have to show a key. */
static inline bool ctl_conn_may_clear(const struct ctl_conn *cc)
{
	return cc->loopback || cc->ctl->gx->opts.insecure;
}
/* In set-up, or up. */
static inline bool ctl_conn_is_live(const struct ctl_conn *cc)
{
	return cc->state < CTL_LINGER;
}

/* -- ctl_dial.c -- */

/* Client: connect to the addresses of cc->dial as RFC 8305 has it, in CONNECT. Calls @answers once, with the
 * socket of the first that answers, or ends @cc, and says what each address had to say. */
struct ctl_try *ctl_dial_tries(unsigned n); /* any thread; room for @n addresses; to free() */
void ctl_dial_start(struct ctl_conn *cc, void (*answers)(struct ctl_conn *cc));
void ctl_dial_tick(struct ctl_conn *cc, uint64_t now_ns);
void ctl_dial_late(struct ctl_conn *cc); /* none has answered in time: ends @cc */
/* What answers at cc->dial.addr is no gx, or none for us. Return: another address is left. ctl_dial_move(): @next
 * goes on with those. ctl_dial_none(): cc->conn is down, and says why each was of no use. */
bool ctl_dial_bad(struct ctl_conn *cc, enum gx_reason reason, int err);
void ctl_dial_move(struct ctl_conn *next, const struct ctl_conn *cc);
void ctl_dial_none(struct ctl_conn *cc);

/* -- ctl_fd.c -- */

bool ctl_fd_needed(const struct ctl_conn *cc); /* do the ends pass descriptors? */
int ctl_fd_listen(struct ctl *ctl);	       /* any thread; once */
/* Client: show our user; send our descriptors, and fetch the server's. Server: wait for the client's.
 * Return: a verdict. */
int ctl_fd_prove(struct ctl_conn *cc);
int ctl_fd_start(struct ctl_conn *cc);
int ctl_fd_wait(struct ctl_conn *cc);
void ctl_fd_forget(struct ctl_conn *cc); /* ends the exchange of @cc */
void ctl_fd_tick(struct ctl *ctl, uint64_t now_ns);
void ctl_fd_close(struct ctl *ctl);

/* -- ctl_data.c -- */

/** ctl_data_start() - Client: connect the data sockets of cc->conn->socks to the server, one after
 * another; ctl->joined() tells the end. Return: a verdict. */
int ctl_data_start(struct ctl_conn *cc);
/** ctl_data_waits() - Does @cc wait for its data sockets, or for the server to take them? */
bool ctl_data_waits(const struct ctl_conn *cc);
int ctl_data_timed_out(const struct ctl_conn *cc); /* it waited too long. Return: a verdict */
/** ctl_data_take() - Server: @cc is no bootstrap connection, but a data socket of another one.
 * Return: a verdict. */
int ctl_data_take(struct ctl_conn *cc, const uint8_t *body, uint32_t len);

/* -- ctl_path.c -- */

void ctl_path_ports(const struct ctl *ctl, struct gx_hello *h);	    /* the ports of our HELLO */
int ctl_path_port_find(const struct gx_hello *h, const char *name); /* index; -1: none */

/* Which link a connection takes, over which ports, and why. */
struct ctl_path {
	const struct gx_link *link;
	unsigned port; /* in gx->port[]; 0 for a link without one */
	unsigned nr_lanes;
	unsigned nr_ports; /* ports that the lanes take in turn; 0: .port alone */
	struct gx_hello_pair ports[GX_HELLO_PORTS];
	enum gx_reason reason;
	char why[CORE_WHY_MAX];
};

/** ctl_path_is_bare() - Under a key nothing leaves the host in clear: would it, over @link in this mode
 * (enum gx_integrity)? */
bool ctl_path_is_bare(const struct ctl_conn *cc, const struct gx_link *link, uint32_t integrity);
/* Client: choose. Server: can it be what the client chose? @p is zeroed. Return: a verdict. */
int ctl_path_choose(const struct ctl_conn *cc, struct ctl_path *p);
int ctl_path_check(const struct ctl_conn *cc, const struct gx_hello_lanes *want,
		   struct ctl_path *p);

/* -- ctl_hello.c -- */

/* Take a frame. Return: a verdict. */
int ctl_hello_take(struct ctl_conn *cc, const uint8_t *body, uint32_t len);
int ctl_hello_connect_take(struct ctl_conn *cc, const uint8_t *body, uint32_t len);
int ctl_hello_accept_take(struct ctl_conn *cc, const uint8_t *body, uint32_t len);
void ctl_hello_up(struct ctl_conn *cc); /* both ends have sent UP */
/* In LINKED: say UP when the link is ready, and go on to UP if the peer has said it. A link with a
 * way to prove waits for that; call again at each tick. Return: a verdict. */
int ctl_hello_linked(struct ctl_conn *cc);
/* In LINKED: the path lets nothing through, as gx_error() says, or @why. Go on by another link, or fail. Return:
 * a verdict. */
int ctl_hello_dead(struct ctl_conn *cc, const char *why);
/* Client: the server knows our user (@cc->proven), or does not. */
void ctl_hello_shown(struct ctl_conn *cc);
/* Takes the received descriptors over. */
void ctl_hello_passed(struct ctl_conn *cc, int fds[], unsigned n);
void ctl_hello_joined(struct ctl_conn *cc); /* the data sockets are there */

/* -- ctl_again.c -- */

/** ctl_again() - Client: link cc->conn->link lets nothing through, by @why: set the connection up once more
 * by another one. Return: false: there is none, or the user wants this one. */
bool ctl_again(struct ctl_conn *cc, const char *why);
/** ctl_again_next() - struct ctl_dial.useless. */
void ctl_again_next(struct ctl_conn *cc, enum gx_reason reason, int err);
/** ctl_again_may() - @cc->dial.again: have the cores let go of the lanes before, so that @cc may connect? */
bool ctl_again_may(struct ctl_conn *cc);

/* -- ctl_tell.c -- */

/* Send our HELLO. ctl_tell_again(): the client has shown its user: what HELLO has left out, if it has, before
 * the lanes, as links report the same regions. ctl_tell_take(): take that. Return: a verdict. */
int ctl_tell(struct ctl_conn *cc);
int ctl_tell_again(struct ctl_conn *cc);
int ctl_tell_take(struct ctl_conn *cc, const struct gx_hello *h);
void ctl_tell_name(struct ctl_conn *cc); /* name the peer by what it has said */

/* -- ctl_first.c -- */

/** ctl_first_take() - Server, in TLS: cc->in has the first bytes. It goes on to HELLO, in clear or by
 * TLS, or waits for more, or ends without a word. */
void ctl_first_take(struct ctl_conn *cc);
/** ctl_first_limit() - Server: @cc is new. Who else came from its address and has said nothing yet goes,
 * if that are too many. */
void ctl_first_limit(struct ctl_conn *cc);
/** ctl_first_answer() - Client, in TLS: bytes came in. It goes on to HELLO, which is to be sent, or waits
 * for more. Return: a verdict. */
int ctl_first_answer(struct ctl_conn *cc);

/* -- ctl_frame.c -- */

/* struct gx_conn.link_say: to the link's take() of the peer, while both are up. */
void ctl_link_say(struct gx_conn *c, const uint8_t *b, uint32_t len);
void ctl_frame_start(struct ctl_conn *cc); /* client: connect */
bool ctl_frame_room(struct ctl *ctl);
void ctl_frame_accepted(struct gx_listener *l, int fd);
void ctl_frame_turn_away(struct ctl *ctl, int fd); /* no descriptors are left; closes @fd */
void ctl_frame_tick(struct ctl_conn *cc, uint64_t now_ns);
/* This thread stood for @stood_ns before @now_ns: give the peer more time. */
void ctl_frame_stood(struct ctl_conn *cc, uint64_t stood_ns, uint64_t now_ns);

/* -- ctl_stats.c -- */

/* As ctl_stats_listen(), for a path. @mode: of the socket; 0: as the umask has it. */
int ctl_stats_publish(struct gx *gx, const char *path, mode_t mode);
void ctl_stats_tick(struct ctl *ctl, uint64_t now_ns);
void ctl_stats_close(struct ctl *ctl);

/* -- ctl_look.c -- */

/** ctl_look_print() - Add connections that are up and operations of queues, for Prometheus. */
void ctl_look_print(struct gx *gx, struct gx_text *text);
const char *ctl_integrity_text(unsigned mode); /* enum gx_integrity */

/* -- ctl_run.c; the thread of gx_open() and gx_close() -- */

/** ctl_run_open() - Publish the counters of the context, if there is a folder for that. */
void ctl_run_open(struct ctl *ctl);
void ctl_run_close(struct ctl *ctl);

#endif
