/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bootstrap connection: its socket, the frames that go out and come in, and how it ends. What is
 * said on the way up is ctl_hello.c's. Runs on the control thread, but for ctl_msg() and ctl_bye(),
 * which any thread may call.
 */
#include "control/ctl.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FRAME_HDR_B	  8
#define IN_ROOM_FIRST	  4096
#define KEEPALIVE_IDLE_S  10
#define KEEPALIVE_EVERY_S 5
#define KEEPALIVE_TRIES	  3

static void conn_rx_arm(struct ctl_conn *cc);
static void conn_tx_kick(struct ctl_conn *cc);

static struct gx_uring *conn_uring(const struct ctl_conn *cc)
{
	return cc->ctl->gx->uring;
}

/* On the way up, or up. */
static bool conn_is_live(const struct ctl_conn *cc)
{
	return cc->state < CTL_LINGER;
}

const char *ctl_conn_peer(const struct ctl_conn *cc)
{
	return cc->conn && cc->conn->peer_name[0] ? cc->conn->peer_name : cc->name;
}

/* ---- The socket's life ---- */

struct ctl_conn *ctl_conn_new(struct ctl *ctl, bool server)
{
	struct ctl_conn *cc = calloc(1, sizeof(*cc));

	if (!cc)
		return NULL;
	cc->in = malloc(IN_ROOM_FIRST);
	if (!cc->in || gx_random(cc->nonce, sizeof(cc->nonce))) {
		free(cc->in);
		free(cc);
		return NULL;
	}
	cc->in_room = IN_ROOM_FIRST;
	cc->ctl = ctl;
	cc->server = server;
	cc->fd = -1;
	cc->out_end = &cc->out;
	cc->rx.arg = cc->tx.arg = cc;
	return cc;
}

static void conn_buf_free(struct ctl_buf *buf)
{
	if (buf->user)
		atomic_fetch_sub_explicit(&buf->cc->out_b, buf->len, memory_order_relaxed);
	free(buf);
}

void ctl_conn_setup_free(struct ctl_conn *cc)
{
	struct ctl_setup *s = cc->setup;

	if (!s)
		return;
	for (unsigned i = 0; i < s->nr_fds; i++)
		if (s->fds[i] >= 0)
			close(s->fds[i]);
	free(s);
	cc->setup = NULL;
}

static void conn_buffers_free(struct ctl_conn *cc)
{
	while (cc->out) {
		struct ctl_buf *buf = cc->out;

		cc->out = buf->next;
		conn_buf_free(buf);
	}
	cc->out_end = &cc->out;
	ctl_conn_setup_free(cc);
	free(cc->in);
	cc->in = NULL;
	cc->in_len = cc->in_room = 0;
}

/* CLOSING ends when the engine has let go of both directions, and nobody looks at what came in. */
static void conn_closed_check(struct ctl_conn *cc)
{
	if (cc->state != CTL_CLOSING || cc->rx.held || cc->tx.held || cc->parsing)
		return;
	if (cc->fd >= 0)
		gx_fd_close(cc->fd);
	cc->fd = -1;
	cc->state = CTL_CLOSED;
	conn_buffers_free(cc);
}

void ctl_conn_close(struct ctl_conn *cc)
{
	if (cc->state >= CTL_CLOSING)
		return;
	cc->state = CTL_CLOSING;
	cc->due_ns = 0;
	ctl_fd_forget(cc);
	if (cc->fd >= 0)
		shutdown(cc->fd, SHUT_RDWR);
	gx_uring_cancel(conn_uring(cc), &cc->rx);
	gx_uring_cancel(conn_uring(cc), &cc->tx);
	conn_closed_check(cc);
}

void ctl_conn_destroy(struct ctl_conn *cc)
{
	for (struct ctl_conn **p = &cc->ctl->conns; *p; p = &(*p)->next) {
		if (*p == cc) {
			*p = cc->next;
			break;
		}
	}
	conn_buffers_free(cc);
	free(cc);
}

bool ctl_conn_free(struct gx_conn *c)
{
	struct ctl_conn *cc = c->ctl;

	if (!cc)
		return true;
	if (conn_is_live(cc))
		ctl_conn_end(cc, CTL_LINGER_NS);
	if (cc->state != CTL_CLOSED || cc->ctl->inside)
		return false;
	if (atomic_load_explicit(&cc->nr_jobs, memory_order_acquire))
		return false;
	c->ctl = NULL;
	ctl_conn_destroy(cc);
	return true;
}

/* ---- Out ---- */

static void conn_tx_done(struct gx_io *io, int res)
{
	struct ctl_conn *cc = io->arg;
	struct ctl_buf *buf = cc->out;

	if (cc->state >= CTL_CLOSING) {
		conn_closed_check(cc);
		return;
	}
	if (res < 0) { /* the receiving half sees it too, and has the words */
		while (cc->out) {
			buf = cc->out;
			cc->out = buf->next;
			conn_buf_free(buf);
		}
		cc->out_end = &cc->out;
		if (cc->state == CTL_LINGER)
			ctl_conn_close(cc);
		return;
	}
	buf->pos += (uint32_t)res;
	if (buf->pos == buf->len) {
		cc->out = buf->next;
		if (!cc->out)
			cc->out_end = &cc->out;
		conn_buf_free(buf);
	}
	conn_tx_kick(cc);
}

/* Sends what is queued; when that was all and we are leaving, says that nothing more will come. */
static void conn_tx_kick(struct ctl_conn *cc)
{
	struct ctl_buf *buf = cc->out;

	if (cc->state >= CTL_CLOSING || cc->state == CTL_CONNECT || cc->tx.held)
		return;
	if (!buf) {
		if (cc->state == CTL_LINGER)
			shutdown(cc->fd, SHUT_WR);
		return;
	}
	cc->tx = (struct gx_io){.op = GX_IO_SEND,
				.fd = cc->fd,
				.buf = buf->b + buf->pos,
				.len = buf->len - buf->pos,
				.done = conn_tx_done,
				.arg = cc};
	gx_uring_submit(conn_uring(cc), &cc->tx);
}

static void conn_buf_queue(struct ctl_conn *cc, struct ctl_buf *buf)
{
	*cc->out_end = buf;
	cc->out_end = &buf->next;
	conn_tx_kick(cc);
}

static struct ctl_buf *conn_buf_new(struct ctl_conn *cc, uint32_t len, bool user)
{
	struct ctl_buf *buf = malloc(sizeof(*buf) + len);

	if (!buf)
		return NULL;
	*buf = (struct ctl_buf){.cc = cc, .len = len, .user = user};
	return buf;
}

/* The frame that was encoded into ctl->frame. Without memory the peer sees the connection end. */
void ctl_conn_frame_send(struct ctl_conn *cc, uint32_t len)
{
	struct ctl_buf *buf = conn_buf_new(cc, len, false);

	if (!buf) {
		ctl_conn_close(cc);
		if (cc->conn)
			conn_down(cc->conn, -ENOMEM, "out of memory");
		return;
	}
	memcpy(buf->b, cc->ctl->frame, len);
	conn_buf_queue(cc, buf);
}

void ctl_conn_plain_send(struct ctl_conn *cc, enum gx_hello_type type)
{
	ctl_conn_frame_send(cc, gx_hello_plain_put(cc->ctl->frame, type, NULL, 0));
}

static void conn_error_send(struct ctl_conn *cc, int err, const char *text)
{
	struct gx_hello_error e = {.err = err};

	snprintf(e.text, sizeof(e.text), "%s", text);
	ctl_conn_frame_send(cc, gx_hello_error_put(cc->ctl->frame, &e));
}

/* ---- The way down ---- */

static void conn_linger(struct ctl_conn *cc, uint64_t linger_ns)
{
	if (cc->state >= CTL_LINGER)
		return;
	cc->state = CTL_LINGER;
	cc->due_ns = gx_now_ns() + linger_ns;
	cc->in_len = 0;
	ctl_fd_forget(cc);
	conn_tx_kick(cc);
}

void ctl_conn_end(struct ctl_conn *cc, uint64_t linger_ns)
{
	struct gx_conn *c = cc->conn;

	if (cc->state == CTL_LINGER)
		cc->due_ns = GX_MIN(cc->due_ns, gx_now_ns() + linger_ns);
	if (!conn_is_live(cc))
		return;
	if (cc->state == CTL_CONNECT) {
		ctl_conn_close(cc);
		return;
	}
	if (c && c->state == GX_CONN_STATE_DOWN && c->err)
		conn_error_send(cc, c->err, c->text);
	else
		ctl_conn_plain_send(cc, GX_HELLO_BYE);
	conn_linger(cc, linger_ns);
}

void ctl_conn_fail(struct ctl_conn *cc, int err, const char *fmt, ...)
{
	char text[CTL_TEXT_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (cc->state == CTL_CONNECT)
		ctl_conn_close(cc);
	if (conn_is_live(cc)) {
		/* The server's user is told only of connections that were up. */
		if (cc->server && !cc->was_up && ctl_may_log(&cc->ctl->refused_rate))
			gx_warn("peer %s did not come up: %s", ctl_conn_peer(cc), text);
		conn_error_send(cc, err, text);
		conn_linger(cc, CTL_LINGER_NS);
	}
	if (cc->conn)
		conn_down(cc->conn, err, "peer %s: %s", ctl_conn_peer(cc), text);
}

void ctl_conn_fail_soon(struct ctl_conn *cc, int err, const char *fmt, va_list ap)
{
	cc->setup->err = err;
	vsnprintf(cc->setup->text, sizeof(cc->setup->text), fmt, ap);
	cc->due_ns = GX_MIN(cc->due_ns, gx_now_ns() + CTL_LINGER_NS);
}

/* The peer does not keep to the protocol. */
void ctl_conn_bad(struct ctl_conn *cc, const char *what)
{
	ctl_bad(cc->ctl, "peer %s: %s", ctl_conn_peer(cc), what);
	if (cc->state > CTL_HELLO) {
		ctl_conn_fail(cc, -EPROTO, "%s: protocol error; is it the same gx at both ends?",
			      what);
		return;
	}
	ctl_conn_close(cc);
	if (cc->conn)
		conn_down(cc->conn, -EPROTO,
			  "%s does not speak gx's protocol (%s): is it gxd that listens there?",
			  ctl_conn_peer(cc), what);
}

/* The peer's socket has ended: @res 0 or -errno. */
static void conn_lost(struct ctl_conn *cc, int res)
{
	struct gx_conn *c = cc->conn;
	enum ctl_state state = cc->state;

	if (!c && cc->in_len)
		ctl_bad(cc->ctl, "peer %s left in the middle of a hello", ctl_conn_peer(cc));
	ctl_conn_close(cc);
	if (!c || state == CTL_LINGER)
		return;
	if (state == CTL_UP)
		conn_down(c, -ECONNRESET, "peer %s is gone", ctl_conn_peer(cc));
	else
		conn_down(c, -ECONNRESET, "peer %s closed the connection during set-up%s%s",
			  ctl_conn_peer(cc), res ? ": " : "",
			  res ? strerror(-res) : "; its log may say why");
}

/* ---- Frames ---- */

static void up_take(struct ctl_conn *cc)
{
	cc->peer_up = true; /* may come before the answer on the Unix socket */
	if (cc->state == CTL_LINKED)
		ctl_hello_up(cc);
}

static void error_take(struct ctl_conn *cc, const uint8_t *body, uint32_t len)
{
	struct gx_hello_error e;
	bool good = !gx_hello_error_get(body, len, &e);

	if (!good) {
		ctl_conn_bad(cc, "malformed ERROR");
		return;
	}
	ctl_conn_close(cc);
	if (cc->conn)
		conn_down(cc->conn, e.err, "peer %s says: %s", ctl_conn_peer(cc), e.text);
}

static void bye_take(struct ctl_conn *cc)
{
	ctl_conn_close(cc);
	if (cc->conn)
		conn_down(cc->conn, 0, "peer %s closed the connection", ctl_conn_peer(cc));
}

static void user_take(struct ctl_conn *cc, const uint8_t *body, uint32_t len)
{
	const struct gx_opts *opts = &cc->ctl->gx->opts;

	if (opts->on_msg && cc->conn->state == GX_CONN_STATE_UP)
		opts->on_msg(opts->arg, cc->conn, body, len);
}

/* Which frames may come in which state; what may not is a protocol error. */
static bool frame_is_due(const struct ctl_conn *cc, uint16_t type, uint32_t len)
{
	switch (type) {
	case GX_HELLO_HELLO:
		return cc->state == CTL_HELLO;
	case GX_HELLO_CONNECT:
		return cc->server && cc->state == CTL_LANES;
	case GX_HELLO_ACCEPT:
		return !cc->server && cc->state == CTL_LANES;
	case GX_HELLO_UP:
		return (cc->state == CTL_FDS || cc->state == CTL_LINKED) && !cc->peer_up && !len;
	case GX_HELLO_USER:
		return cc->state == CTL_UP && len <= CTL_USER_MAX;
	case GX_HELLO_BYE:
		return !len;
	default:
		return type == GX_HELLO_ERROR;
	}
}

static void frame_take(struct ctl_conn *cc, uint16_t type, const uint8_t *body, uint32_t len)
{
	if (!cc->was_up)
		cc->due_ns = gx_now_ns() + (cc->server ? CTL_STEP_NS : cc->timeout_ns);
	switch (type) {
	case GX_HELLO_HELLO:
		ctl_hello_take(cc, body, len);
		break;
	case GX_HELLO_CONNECT:
		ctl_hello_connect_take(cc, body, len);
		break;
	case GX_HELLO_ACCEPT:
		ctl_hello_accept_take(cc, body, len);
		break;
	case GX_HELLO_UP:
		up_take(cc);
		break;
	case GX_HELLO_USER:
		user_take(cc, body, len);
		break;
	case GX_HELLO_BYE:
		bye_take(cc);
		break;
	default:
		error_take(cc, body, len);
		break;
	}
}

/* Takes every whole frame. Return: bytes that the next one needs in all, 0 when the connection has
 * ended. */
static uint32_t conn_parse(struct ctl_conn *cc)
{
	uint32_t pos = 0, need = FRAME_HDR_B, body;
	uint16_t type;

	while (conn_is_live(cc) && cc->in_len - pos >= FRAME_HDR_B) {
		if (gx_hello_frame(cc->in + pos, &type, &body)) {
			ctl_conn_bad(cc, "not a frame of gx, or too large");
			return 0;
		}
		if (!frame_is_due(cc, type, body)) {
			ctl_conn_bad(cc, "message out of turn");
			return 0;
		}
		need = FRAME_HDR_B + body;
		if (cc->in_len - pos < need)
			break;
		frame_take(cc, type, cc->in + pos + FRAME_HDR_B, body);
		pos += need;
		need = FRAME_HDR_B;
	}
	if (!conn_is_live(cc))
		return 0;
	cc->in_len -= pos;
	memmove(cc->in, cc->in + pos, cc->in_len);
	return need;
}

/* ---- In ---- */

static void conn_in_grow(struct ctl_conn *cc, uint32_t need)
{
	uint8_t *in;

	if (need <= cc->in_room)
		return;
	in = realloc(cc->in, need);
	if (!in) {
		ctl_conn_fail(cc, -ENOMEM, "out of memory");
		return;
	}
	cc->in = in;
	cc->in_room = need;
}

static void conn_rx_done(struct gx_io *io, int res)
{
	struct ctl_conn *cc = io->arg;
	uint32_t need;

	if (cc->state >= CTL_CLOSING) {
		conn_closed_check(cc);
		return;
	}
	if (res <= 0) {
		conn_lost(cc, res);
		return;
	}
	if (cc->state != CTL_LINGER) {
		cc->in_len += (uint32_t)res;
		cc->parsing = true;
		cc->ctl->inside++;
		need = conn_parse(cc);
		if (need)
			conn_in_grow(cc, need);
		cc->ctl->inside--;
		cc->parsing = false;
	}
	if (cc->state < CTL_CLOSING)
		conn_rx_arm(cc);
	else
		conn_closed_check(cc);
}

static void conn_rx_arm(struct ctl_conn *cc)
{
	cc->rx = (struct gx_io){.op = GX_IO_RECV,
				.fd = cc->fd,
				.buf = cc->in + cc->in_len,
				.len = cc->in_room - cc->in_len,
				.done = conn_rx_done,
				.arg = cc};
	gx_uring_submit(conn_uring(cc), &cc->rx);
}

/* ---- Client: the TCP connect ---- */

static void conn_socket_tune(int fd)
{
	const int on = 1, idle = KEEPALIVE_IDLE_S, every = KEEPALIVE_EVERY_S,
		  tries = KEEPALIVE_TRIES;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof(every));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof(tries));
}

static void conn_connect_failed(struct ctl_conn *cc, int err)
{
	ctl_conn_close(cc);
	if (err == -ECONNREFUSED)
		conn_down(cc->conn, err, "nothing listens at %s: start `gxd --listen %s` there",
			  cc->name, cc->name);
	else if (err == -ETIMEDOUT)
		conn_down(cc->conn, err, "no answer from %s: is gxd running there?", cc->name);
	else
		conn_down(cc->conn, err, "cannot connect to %s: %s", cc->name, strerror(-err));
}

static void conn_connect_done(struct gx_io *io, int res)
{
	struct ctl_conn *cc = io->arg;

	if (cc->state >= CTL_CLOSING) {
		conn_closed_check(cc);
		return;
	}
	if (res < 0) {
		cc->addr_err = res;
		cc->addr++;
		gx_fd_close(cc->fd);
		cc->fd = -1;
		ctl_conn_start(cc);
		return;
	}
	conn_socket_tune(cc->fd);
	cc->state = CTL_HELLO;
	conn_rx_arm(cc);
	ctl_hello_send(cc);
}

void ctl_conn_start(struct ctl_conn *cc)
{
	if (!cc->due_ns)
		cc->due_ns = gx_now_ns() + cc->timeout_ns;
	for (; cc->addr < cc->nr_addrs; cc->addr++) {
		struct ctl_addr *a = &cc->addrs[cc->addr];

		cc->fd = gx_fd_own(
			socket(a->sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
		if (cc->fd < 0) {
			cc->addr_err = -errno;
			continue;
		}
		cc->rx = (struct gx_io){.op = GX_IO_CONNECT,
					.fd = cc->fd,
					.addr = (struct sockaddr *)&a->sa,
					.addr_len = a->len,
					.done = conn_connect_done,
					.arg = cc};
		cc->near = ctl_addr_is_loopback(&a->sa);
		/* A wish: the server sends data only where it sees us. */
		if (!cc->near && cc->ctl->bind.sa.ss_family == a->sa.ss_family)
			(void)bind(cc->fd, (struct sockaddr *)&cc->ctl->bind.sa, cc->ctl->bind.len);
		gx_uring_submit(conn_uring(cc), &cc->rx);
		return;
	}
	conn_connect_failed(cc, cc->addr_err);
}

/* ---- Server: accept ---- */

/* Who has shown least goes first for a new one: 3 was refused and is only still told so, 2 has not
 * said HELLO, 1 has, but not shown whose it is; 0 stays. The last two have a moment each. */
static unsigned half_open_rank(const struct ctl_conn *cc, uint64_t now_ns)
{
	if (cc->state == CTL_LINGER)
		return 3;
	if (cc->proven || now_ns - cc->born_ns < CTL_GRACE_NS)
		return 0;
	return cc->state == CTL_HELLO ? 2 : 1;
}

struct half_open {
	unsigned nr, nr_all;	/* on the way up, and all */
	struct ctl_conn *first; /* to go; NULL: nobody may be sent away yet */
	unsigned rank;
};

static struct half_open half_open_look(struct ctl *ctl)
{
	struct half_open h = {0};
	uint64_t now_ns = gx_now_ns();

	for (struct ctl_conn *cc = ctl->conns; cc; cc = cc->next) { /* the newest is first */
		unsigned rank;

		h.nr_all++;
		if (!cc->server || cc->was_up || cc->state >= CTL_CLOSING)
			continue;
		h.nr++;
		rank = half_open_rank(cc, now_ns);
		if (rank && rank >= h.rank) {
			h.first = cc;
			h.rank = rank;
		}
	}
	return h;
}

/* Those that are closed go at the next tick: so there are more, for that long. */
bool ctl_conn_room(struct ctl *ctl)
{
	struct half_open h = half_open_look(ctl);

	return (h.nr < CTL_HALF_OPEN_MAX || h.first) &&
	       h.nr_all < CTL_CONNS_MAX + 2 * CTL_HALF_OPEN_MAX;
}

/* Makes a place for one more on the way up. */
static void half_open_drop(struct ctl *ctl)
{
	struct half_open h = half_open_look(ctl);

	if (h.nr < CTL_HALF_OPEN_MAX || !h.first)
		return;
	ctl_bad(ctl, "peer %s goes for a new one", ctl_conn_peer(h.first));
	if (ctl_may_log(&ctl->full_rate))
		gx_warn("%u connections that say too little are open, the most: the oldest go, as "
			"%s; a port scan, or too many clients at once?",
			h.nr, h.first->name);
	ctl->inside++;
	ctl_conn_close(h.first);
	if (h.first->conn)
		conn_down(h.first->conn, -ETIMEDOUT, "too many came at once");
	ctl->inside--;
}

static unsigned conns_up(const struct ctl *ctl)
{
	unsigned n = 0;

	for (const struct ctl_conn *cc = ctl->conns; cc; cc = cc->next)
		n += cc->was_up && cc->state <= CTL_UP;
	return n;
}

/* Who may not go on is told why not. */
static void accepted_check(struct ctl_conn *cc, const struct sockaddr_storage *sa)
{
	struct ctl *ctl = cc->ctl;

	if (!ctl->gx->opts.insecure && !ctl_addr_is_loopback(sa)) {
		ctl_bad(ctl, "peer %s is not on loopback", cc->name);
		ctl_conn_fail(
			cc, -EPERM,
			"the client is not on the server's loopback, and there is no encryption "
			"yet: say --insecure at both ends to send in clear");
	} else if (conns_up(ctl) >= CTL_CONNS_MAX) {
		ctl_conn_fail(cc, -ENOSPC,
			      "the server has %u connections, the most that a context has",
			      CTL_CONNS_MAX);
	} else {
		cc->near = ctl_addr_is_own(sa);
		cc->from_len = (uint8_t)ctl_addr_bytes((const struct sockaddr *)sa, cc->from);
	}
}

void ctl_conn_accepted(struct ctl *ctl, int fd)
{
	struct ctl_conn *cc = ctl_conn_new(ctl, true);
	struct sockaddr_storage sa;
	socklen_t len = sizeof(sa);

	half_open_drop(ctl);
	if (!cc || getpeername(fd, (struct sockaddr *)&sa, &len)) {
		close(fd);
		if (cc)
			ctl_conn_destroy(cc);
		return;
	}
	conn_socket_tune(fd);
	cc->fd = gx_fd_own(fd);
	cc->state = CTL_HELLO;
	cc->born_ns = gx_now_ns();
	cc->due_ns = cc->born_ns + CTL_STEP_NS;
	ctl_addr_name(&sa, cc->name, sizeof(cc->name));
	cc->next = ctl->conns;
	ctl->conns = cc;
	conn_rx_arm(cc);
	accepted_check(cc, &sa);
}

void ctl_conn_turn_away(struct ctl *ctl, int fd)
{
	struct gx_hello_error e = {
		.err = -EMFILE,
		.text = "the server has no descriptor left for a client: raise its ulimit -n"};

	send(fd, ctl->frame, gx_hello_error_put(ctl->frame, &e), MSG_DONTWAIT | MSG_NOSIGNAL);
	shutdown(fd, SHUT_WR);
	close(fd);
}

/* ---- Deadlines ---- */

static void conn_timed_out(struct ctl_conn *cc)
{
	double s = (double)cc->timeout_ns / 1e9;

	if (cc->server) {
		ctl_bad(cc->ctl, "peer %s went silent during set-up", ctl_conn_peer(cc));
		ctl_conn_fail(cc, -ETIMEDOUT, "the client went silent during set-up");
	} else if (cc->setup && cc->setup->err) {
		ctl_conn_fail(cc, cc->setup->err, "%s", cc->setup->text);
	} else if (cc->state <= CTL_HELLO) {
		ctl_conn_close(cc);
		conn_down(cc->conn, -ETIMEDOUT,
			  "no answer from %s within %g s: is gxd running there?", cc->name, s);
	} else if (cc->state == CTL_PROVE) {
		ctl_conn_fail(cc, -ETIMEDOUT,
			      "no answer from the server's Unix socket @%s within %g s: is the "
			      "server stopped, or has it too much to do?",
			      cc->conn->peer.unix_name, s);
	} else {
		ctl_conn_fail(cc, -ETIMEDOUT, "set-up was not done within the client's %g s", s);
	}
}

void ctl_conn_tick(struct ctl_conn *cc, uint64_t now_ns)
{
	if (cc->prove_again && cc->state == CTL_PROVE)
		ctl_fd_prove(cc);
	if (!cc->due_ns || now_ns < cc->due_ns)
		return;
	if (cc->state == CTL_LINGER) {
		if (cc->conn) /* who runs would have closed by now */
			local_lost(cc->conn);
		ctl_conn_close(cc);
	} else if (conn_is_live(cc)) {
		conn_timed_out(cc);
	}
}

/* ---- What the data plane asks for ---- */

static int bye_run(void *arg)
{
	struct gx_conn *c = arg;

	if (c->ctl)
		ctl_conn_end(c->ctl, CTL_LINGER_NS);
	return 0;
}

void ctl_bye(struct gx_conn *c)
{
	gx_uring_run_wait(c->gx->uring, bye_run, c);
}

/* The last thing that this touches is nr_jobs: from then on @cc may go. */
static void msg_run(void *arg)
{
	struct ctl_buf *buf = arg;
	struct ctl_conn *cc = buf->cc;

	if (cc->state == CTL_UP)
		conn_buf_queue(cc, buf);
	else
		conn_buf_free(buf);
	atomic_fetch_sub_explicit(&cc->nr_jobs, 1, memory_order_release);
}

/* The lock keeps the connection from going down, and so its half here from being freed, until it is
 * counted in nr_jobs. Return: NULL, with the reason in gx_error() and @ret. */
static struct ctl_buf *msg_new(struct gx_conn *c, uint32_t len, int *ret)
{
	struct ctl_conn *cc;
	struct ctl_buf *buf = NULL;

	pthread_mutex_lock(&c->gx->wait_lock);
	cc = c->ctl;
	if (c->state != GX_CONN_STATE_UP || !cc)
		*ret = gx_fail(-ENOTCONN, "the connection is not up");
	else if (atomic_load_explicit(&cc->out_b, memory_order_relaxed) > CTL_OUT_MAX_B)
		*ret = gx_fail(-ENOMEM,
			       "%u MiB of messages wait: peer %s does not read them; send fewer",
			       CTL_OUT_MAX_B >> 20, c->peer_name);
	else
		buf = conn_buf_new(cc, FRAME_HDR_B + len, true);
	if (buf) {
		atomic_fetch_add_explicit(&cc->out_b, buf->len, memory_order_relaxed);
		atomic_fetch_add_explicit(&cc->nr_jobs, 1, memory_order_relaxed);
	}
	pthread_mutex_unlock(&c->gx->wait_lock);
	return buf;
}

int ctl_msg(struct gx_conn *c, const void *data, uint32_t len)
{
	struct ctl_buf *buf;
	struct ctl_conn *cc;
	int ret = -ENOMEM;

	if (len > CTL_USER_MAX)
		return gx_fail(-EMSGSIZE, "a message of %u bytes: at most %u can be sent", len,
			       CTL_USER_MAX);
	gx_fail(-ENOMEM, "out of memory");
	buf = msg_new(c, len, &ret);
	if (!buf)
		return ret;
	cc = buf->cc;
	gx_hello_plain_put(buf->b, GX_HELLO_USER, data, len);
	if (gx_uring_is_me(c->gx->uring)) {
		msg_run(buf);
		return 0;
	}
	if (!gx_uring_run(c->gx->uring, msg_run, buf))
		return 0;
	conn_buf_free(buf);
	atomic_fetch_sub_explicit(&cc->nr_jobs, 1, memory_order_release);
	return gx_fail(-ENOMEM, "out of memory");
}
