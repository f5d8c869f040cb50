/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bootstrap connection's way from connect or accept to its end: which frame may come in which
 * state, which function takes it, and the deadlines. ctl_hello.c has the frames of the set-up. Runs
 * on the control thread.
 */
#include "control/ctl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void conn_rx_arm(struct ctl_conn *cc);

/* ---- the end of the socket ---- */

/* The peer's socket has ended: @res 0 or -errno. */
static void conn_lost(struct ctl_conn *cc, int res)
{
	enum ctl_state state = cc->state;
	bool wordless = !cc->server && state == CTL_HELLO && !res && !cc->loopback && !cc->tls;
	struct gx_conn *c = cc->conn;

	if (!c && state != CTL_LINGER && (cc->in_len || cc->tls))
		ctl_bad(cc->ctl, "peer %s left in the middle of a hello", ctl_conn_peer(cc));
	ctl_conn_useless(cc, wordless ? GX_REASON_INSECURE : GX_REASON_PEER_LOST,
			 wordless ? -EPERM : -ECONNRESET);
	c = cc->conn;
	ctl_conn_close(cc);
	if (!c || state == CTL_LINGER)
		return;
	if (state == CTL_UP)
		conn_down(c, GX_REASON_PEER_LOST, -ECONNRESET, "peer %s is gone",
			  ctl_conn_peer(cc));
	else if (wordless)
		conn_down(
			c, GX_REASON_INSECURE, -EPERM,
			"peer %s closed the connection without a word, as gx does where it serves "
			"nobody in clear: show it a key (gx_auth_opts.key_file)",
			cc->name);
	else
		conn_down(c, GX_REASON_PEER_LOST, -ECONNRESET,
			  "peer %s closed the connection during set-up%s%s", ctl_conn_peer(cc),
			  res ? ": " : "", res ? strerror(-res) : "; its log may say why");
}

/* ---- frames ---- */

static int up_take(struct ctl_conn *cc, const uint8_t *body, uint32_t len)
{
	if (cc->peer_up)
		return gx_refuse(GX_REASON_PROTOCOL, -EPROTO, OUT_OF_TURN);
	cc->peer_up = true; /* may arrive before the answer on the Unix socket */
	return ctl_hello_linked(cc);
}

static int error_take(struct ctl_conn *cc, const uint8_t *body, uint32_t len)
{
	struct gx_hello_error e;

	if (gx_hello_error_get(body, len, &e))
		return gx_refuse(GX_REASON_PROTOCOL, -EPROTO, "malformed ERROR");
	if (cc->state == CTL_LINKED && cc->conn->trying && e.reason == GX_REASON_UNREACHABLE) {
		if (!cc->server)
			return ctl_hello_dead(cc, e.text);
		if (ctl_may_log(&cc->ctl->refused_rate))
			gx_warn("peer %s did not come up so: it says: %s", ctl_conn_peer(cc),
				e.text);
	}
	ctl_conn_useless(cc, e.reason, e.err);
	ctl_conn_close(cc);
	if (cc->conn)
		conn_down(cc->conn, e.reason, e.err, "peer %s says: %s", ctl_conn_peer(cc), e.text);
	return 0;
}

static int bye_take(struct ctl_conn *cc, const uint8_t *body, uint32_t len)
{
	ctl_conn_useless(cc, GX_REASON_PEER_CLOSED, -ECONNRESET);
	ctl_conn_close(cc);
	if (cc->conn)
		conn_down(cc->conn, GX_REASON_PEER_CLOSED, 0, "peer %s closed the connection",
			  ctl_conn_peer(cc));
	return 0;
}

static int user_take(struct ctl_conn *cc, const uint8_t *body, uint32_t len)
{
	const struct gx_opts *opts = &cc->ctl->gx->opts;

	if (opts->on_msg && cc->conn->state == GX_CONN_STATE_UP)
		opts->on_msg(opts->arg, cc->conn, body, len);
	return 0;
}

static int link_take(struct ctl_conn *cc, const uint8_t *body, uint32_t len)
{
	bool tries = cc->state == CTL_LINKED && cc->conn->trying;
	int ret = 0;

	if (cc->state != CTL_UP && !tries)
		return gx_refuse(GX_REASON_PROTOCOL, -EPROTO, OUT_OF_TURN);
	if (cc->conn->state == GX_CONN_STATE_UP || tries)
		ret = cc->conn->link->conn->take(cc->conn, body, len);
	if (ret == -ENOMEM)
		return gx_refuse(GX_REASON_NO_MEMORY, ret, "no memory for new keys of data");
	return ret ? gx_refuse(GX_REASON_PROTOCOL, -EPROTO, "malformed LINK") : 0;
}

void ctl_link_say(struct gx_conn *c, const uint8_t *b, uint32_t len)
{
	struct ctl_conn *cc = c->ctl;

	if (cc && (cc->state == CTL_UP || cc->state == CTL_LINKED))
		ctl_conn_judge(cc,
			       ctl_conn_frame_send(cc, gx_hello_plain_put(cc->ctl->frame,
									  GX_HELLO_LINK, b, len)));
}

#define ON(state) (1u << CTL_##state)
#define ALWAYS	  UINT32_MAX

/* Which frame may come in which state, to which end, and which function takes it. */
static const struct frame {
	uint32_t states; /* bits of enum ctl_state */
	bool client, server;
	uint32_t len_max;
	int (*take)(struct ctl_conn *cc, const uint8_t *body, uint32_t len); /* returns a verdict */
} frames[] = {
	[GX_HELLO_HELLO] = {ON(HELLO) | ON(LANES), true, true, UINT32_MAX, ctl_hello_take},
	[GX_HELLO_CONNECT] = {ON(LANES), false, true, UINT32_MAX, ctl_hello_connect_take},
	[GX_HELLO_ACCEPT] = {ON(LANES), true, false, UINT32_MAX, ctl_hello_accept_take},
	[GX_HELLO_UP] = {ON(FDS) | ON(LINKED), true, true, 0, up_take},
	[GX_HELLO_ERROR] = {ALWAYS, true, true, UINT32_MAX, error_take},
	[GX_HELLO_USER] = {ON(UP), true, true, CTL_USER_MAX, user_take},
	[GX_HELLO_BYE] = {ALWAYS, true, true, 0, bye_take},
	[GX_HELLO_DATA] = {ON(HELLO), false, true, 64, ctl_data_take},
	[GX_HELLO_LINK] = {ON(LINKED) | ON(UP), true, true, CTL_LINK_MAX, link_take},
};

/* NULL: the frame may not come now. */
static const struct frame *frame_of(const struct ctl_conn *cc, uint16_t type, uint32_t len)
{
	const struct frame *f = type < GX_ARRAY_SIZE(frames) ? &frames[type] : NULL;

	if (!f || !f->take || !(f->states >> cc->state & 1) || len > f->len_max)
		return NULL;
	return (cc->server ? f->server : f->client) ? f : NULL;
}

static void frame_take(struct ctl_conn *cc, const struct frame *f, const uint8_t *body,
		       uint32_t len)
{
	/* What links say in a set-up is a few words: who repeats them gains no time. */
	if (!cc->was_up && (f != &frames[GX_HELLO_LINK] || cc->link_words++ < CTL_LINK_WORDS))
		cc->due_ns =
			gx_later_ns(gx_now_ns(), cc->server ? CTL_STEP_NS : cc->dial.timeout_ns);
	ctl_conn_judge(cc, f->take(cc, body, len));
}

/* Take every whole frame. Return: bytes that the next one needs in all; 0: the connection has
 * ended. */
static uint32_t conn_parse(struct ctl_conn *cc)
{
	uint32_t pos = 0, need = CTL_FRAME_HDR_B, body;
	const struct frame *f;
	uint16_t type;

	while (ctl_conn_is_live(cc) && cc->in_len - pos >= CTL_FRAME_HDR_B) {
		bool bad = gx_hello_frame(cc->in + pos, &type, &body);

		f = bad ? NULL : frame_of(cc, type, body);
		if (!f) {
			ctl_conn_judge(cc, gx_refuse(GX_REASON_PROTOCOL, -EPROTO, "%s",
						     bad ? "not a frame of gx, or too large"
							 : OUT_OF_TURN));
			return 0;
		}
		need = CTL_FRAME_HDR_B + body;
		if (cc->in_len - pos < need)
			break;
		frame_take(cc, f, cc->in + pos + CTL_FRAME_HDR_B, body);
		pos += need;
		need = CTL_FRAME_HDR_B;
	}
	if (!ctl_conn_is_live(cc))
		return 0;
	cc->in_len -= pos;
	memmove(cc->in, cc->in + pos, cc->in_len);
	return need;
}

/* ---- in ---- */

static void conn_in_grow(struct ctl_conn *cc, uint32_t need)
{
	uint8_t *in;

	if (need <= cc->in_room)
		return;
	in = realloc(cc->in, need);
	if (!in) {
		ctl_conn_judge(cc, gx_refuse(GX_REASON_NO_MEMORY, -ENOMEM, "out of memory"));
		return;
	}
	cc->in = in;
	cc->in_room = need;
}

/* Bytes came into cc->in. */
static void conn_take(struct ctl_conn *cc, uint32_t len)
{
	uint32_t need;

	cc->in_len += len;
	if (cc->state == CTL_TLS)
		ctl_first_take(cc);
	if (cc->state == CTL_TLS || cc->tls || !ctl_conn_is_live(cc))
		return;
	need = conn_parse(cc);
	if (need)
		conn_in_grow(cc, need);
}

/* Take what TLS has decrypted. Return: the last result of auth_tls_read(). */
static int conn_tls_parse(struct ctl_conn *cc)
{
	int n = 0;

	while (cc->state > CTL_TLS && ctl_conn_is_live(cc)) {
		uint32_t need;

		n = auth_tls_read(cc->tls->t, cc->in + cc->in_len, cc->in_room - cc->in_len);
		if (n <= 0)
			break;
		cc->in_len += (uint32_t)n;
		need = conn_parse(cc);
		if (need)
			conn_in_grow(cc, need);
	}
	return n;
}

/* Client: go on with the handshake. Return: a verdict. */
static int conn_answer(struct ctl_conn *cc)
{
	int ret = ctl_first_answer(cc);

	return !ret && cc->state == CTL_HELLO ? ctl_tell(cc) : ret;
}

/* Bytes came into the room of TLS. */
static void conn_tls_take(struct ctl_conn *cc, uint32_t len)
{
	int ret = auth_tls_put(cc->tls->t, cc->tls->in, len);

	if (ret)
		ret = gx_refuse(GX_REASON_NO_MEMORY, ret, "out of memory");
	else if (cc->state == CTL_TLS)
		ret = conn_answer(cc);
	ctl_conn_judge(cc, ret);
	ret = conn_tls_parse(cc);
	if (ret >= 0 || !ctl_conn_is_live(cc))
		ctl_conn_send(cc); /* TLS answers some records by itself */
	else if (ret == -ESHUTDOWN)
		conn_lost(cc, 0);
	else
		ctl_conn_judge(cc, gx_refuse(GX_REASON_PROTOCOL, -EPROTO,
					     "TLS is broken: bytes were changed on the way"));
}

static void conn_rx_done(struct gx_io *io, int res)
{
	struct ctl_conn *cc = io->arg;

	if (cc->state >= CTL_CLOSING) {
		ctl_conn_closed_check(cc);
		return;
	}
	if (res <= 0) {
		conn_lost(cc, res);
		return;
	}
	if (cc->state != CTL_LINGER) {
		cc->parsing = true;
		cc->ctl->inside++;
		if (cc->tls)
			conn_tls_take(cc, (uint32_t)res);
		else
			conn_take(cc, (uint32_t)res);
		cc->ctl->inside--;
		cc->parsing = false;
	}
	if (cc->state < CTL_CLOSING)
		conn_rx_arm(cc);
	else
		ctl_conn_closed_check(cc);
}

static void conn_rx_arm(struct ctl_conn *cc)
{
	uint8_t *b = cc->in + cc->in_len;
	uint32_t room = cc->in_room - cc->in_len;

	if (cc->tls) {
		b = cc->tls->in;
		room = sizeof(cc->tls->in);
	}
	cc->rx = (struct gx_io){.op = GX_IO_RECV,
				.fd = cc->fd,
				.buf = b,
				.len = room,
				.done = conn_rx_done,
				.arg = cc};
	gx_uring_submit(cc->ctl->gx->uring, &cc->rx);
}

/* ---- client: the socket is connected ---- */

/* Client: the first word. Return: a verdict. */
static int conn_begin(struct ctl_conn *cc)
{
	int ret;

	if (!cc->key) {
		ctl_conn_goto(cc, CTL_HELLO);
		return ctl_tell(cc);
	}
	ctl_conn_goto(cc, CTL_TLS);
	ret = ctl_tls_open(cc, cc->key->k.name);
	if (!ret)
		ret = ctl_first_answer(cc);
	if (!ret)
		ctl_conn_send(cc);
	return ret;
}

static void conn_answers(struct ctl_conn *cc)
{
	ctl_conn_tune(cc);
	cc->ctl->inside++;
	ctl_conn_judge(cc, conn_begin(cc));
	if (ctl_conn_is_live(cc))
		conn_rx_arm(cc);
	cc->ctl->inside--;
}

void ctl_frame_start(struct ctl_conn *cc)
{
	cc->dial.useless = ctl_again_next;
	ctl_dial_start(cc, conn_answers);
}

/* ---- server: accept ---- */

/* A new connection replaces the one with the highest rank. 3: refused, and only hears the reason.
 * 2: no HELLO yet. 1: HELLO, but no proof of its user. 0: stays. A connection younger than
 * CTL_GRACE_NS has no rank 2 or 1 yet. */
static unsigned half_open_rank(const struct ctl_conn *cc, uint64_t now_ns)
{
	if (cc->state == CTL_LINGER)
		return 3;
	if (cc->proven || now_ns - cc->came.born_ns < CTL_GRACE_NS)
		return 0;
	return cc->state <= CTL_HELLO ? 2 : 1;
}

struct half_open {
	unsigned nr, nr_all;	/* in set-up; all */
	struct ctl_conn *first; /* to drop; NULL: none may go yet */
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

/* Closed connections stay until the next tick, so nr_all may be more for that long. */
bool ctl_frame_room(struct ctl *ctl)
{
	struct half_open h = half_open_look(ctl);

	return (h.nr < CTL_HALF_OPEN_MAX || h.first) &&
	       h.nr_all < CTL_CONNS_MAX + 2 * CTL_HALF_OPEN_MAX;
}

/* Make room for one more in set-up. */
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
		conn_down(h.first->conn, GX_REASON_FULL, -ETIMEDOUT, "too many came at once");
	ctl->inside--;
}

void ctl_frame_accepted(struct gx_listener *l, int fd)
{
	struct ctl *ctl = l->ctl;
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
	cc->fd = gx_fd_own(fd);
	cc->came.listener = l->head;
	cc->data_len = l->data_len;
	memcpy(cc->data_out, l->data, sizeof(cc->data_out));
	ctl_conn_goto(cc, CTL_TLS);
	cc->came.born_ns = gx_now_ns();
	cc->due_ns = cc->came.born_ns + CTL_STEP_NS;
	ctl_addr_name(&sa, cc->name, sizeof(cc->name));
	cc->next = ctl->conns;
	ctl->conns = cc;
	cc->loopback = ctl_addr_is_loopback(&sa);
	cc->came.from_len = (uint8_t)ctl_addr_bytes((const struct sockaddr *)&sa, cc->came.from);
	ctl_first_limit(cc);
	conn_rx_arm(cc);
}

void ctl_frame_turn_away(struct ctl *ctl, int fd)
{
	struct sockaddr_storage sa;
	socklen_t len = sizeof(sa);
	struct gx_hello_error e = {
		.err = -EMFILE,
		.reason = GX_REASON_FULL,
		.text = "the server has no descriptor left for a client: raise its ulimit -n"};

	/* A stranger hears nothing. */
	if (ctl->gx->opts.insecure ||
	    (!getpeername(fd, (struct sockaddr *)&sa, &len) && ctl_addr_is_loopback(&sa)))
		send(fd, ctl->frame, gx_hello_error_put(ctl->frame, &e),
		     MSG_DONTWAIT | MSG_NOSIGNAL);
	shutdown(fd, SHUT_WR);
	close(fd);
}

/* ---- deadlines ---- */

/* Return: a verdict. */
static int conn_timed_out(const struct ctl_conn *cc)
{
	bool is_ours = cc->server && cc->state == CTL_LINKED && !cc->own_up;
	bool starved = cc->ctl->starved_ns && cc->ctl->starved_ns + CTL_STEP_NS > cc->due_ns;
	double s = (double)cc->dial.timeout_ns / 1e9;

	if (cc->server && starved)
		return gx_refuse(
			GX_REASON_FULL, -EMFILE,
			"the server had no descriptor left for all sockets of its clients: "
			"raise its ulimit -n");
	if (cc->server && !is_ours)
		ctl_bad(cc->ctl, "peer %s went silent during set-up", ctl_conn_peer(cc));
	if (ctl_data_waits(cc))
		return ctl_data_timed_out(cc);
	if (is_ours)
		return gx_refuse(
			GX_REASON_SETUP_TIMEOUT, -ETIMEDOUT,
			"the server did not connect its lanes in time: its devices wait for "
			"addresses of other peers, too");
	if (cc->server)
		return gx_refuse(GX_REASON_SETUP_TIMEOUT, -ETIMEDOUT,
				 "the client went silent during set-up");
	if (cc->setup && cc->setup->late.err)
		return gx_refuse(cc->setup->late.reason, cc->setup->late.err, "%s",
				 cc->setup->late.text);
	if (cc->state == CTL_PROVE)
		return gx_refuse(GX_REASON_SETUP_TIMEOUT, -ETIMEDOUT,
				 "no answer from the server's Unix socket @%s within %g s: is the "
				 "server stopped, or has it too much to do?",
				 cc->conn->peer.unix_name, s);
	return gx_refuse(GX_REASON_SETUP_TIMEOUT, -ETIMEDOUT,
			 "set-up was not done within the client's %g s", s);
}

/* A pause of our own is not the peer's silence: its answer may lie in the socket, and this thread
 * reads it only after the tick. A pause counts as an eighth of a step, as on a core, so a thread that
 * is seldom run gives up in the end. */
void ctl_frame_stood(struct ctl_conn *cc, uint64_t stood_ns, uint64_t now_ns)
{
	uint64_t step_ns = cc->server ? CTL_STEP_NS : cc->dial.timeout_ns;

	if (!cc->due_ns || !ctl_conn_is_live(cc) || stood_ns <= step_ns / 8)
		return;
	cc->due_ns = GX_MIN(gx_later_ns(cc->due_ns, stood_ns - step_ns / 8),
			    gx_later_ns(now_ns, step_ns));
}

void ctl_frame_tick(struct ctl_conn *cc, uint64_t now_ns)
{
	ctl_dial_tick(cc, now_ns);
	if (cc->dial.again && ctl_again_may(cc))
		ctl_frame_start(cc);
	if (cc->dial.prove_again && cc->state == CTL_PROVE)
		ctl_conn_judge(cc, ctl_fd_prove(cc));
	if (cc->state == CTL_LINKED)
		ctl_conn_judge(cc, ctl_hello_linked(cc));
	if (!cc->due_ns || now_ns < cc->due_ns)
		return;
	if (cc->state == CTL_LINGER) {
		if (cc->conn && cc->conn->link_open) /* a running process would have closed */
			cc->conn->link->conn->lost(cc->conn);
		ctl_conn_close(cc);
	} else if (!cc->server && cc->state == CTL_CONNECT) {
		ctl_dial_late(cc);
	} else if (!cc->server && cc->state <= CTL_HELLO) {
		ctl_conn_useless(cc, GX_REASON_SETUP_TIMEOUT, -ETIMEDOUT);
		ctl_conn_close(cc);
		if (cc->conn)
			conn_down(cc->conn, GX_REASON_SETUP_TIMEOUT, -ETIMEDOUT,
				  "no answer from %s within %g s: does a server run there?",
				  cc->name, (double)cc->dial.timeout_ns / 1e9);
	} else if (ctl_conn_is_live(cc)) {
		ctl_conn_judge(cc, conn_timed_out(cc));
	}
}
