/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bootstrap connection: its memory, the frames that it sends, and its end. ctl_frame.c takes
 * incoming frames. Runs on the control thread, except ctl_msg() and ctl_bye(), which any thread may
 * call.
 */
#include "control/ctl.h"
#include "gx_internal/link.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define IN_ROOM_FIRST 4096

#define KEEPALIVE_IDLE_S  10
#define KEEPALIVE_EVERY_S 5
#define KEEPALIVE_TRIES	  3

static void conn_tx_kick(struct ctl_conn *cc);

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

void ctl_conn_tune(const struct ctl_conn *cc)
{
	const int on = 1, idle = KEEPALIVE_IDLE_S, every = KEEPALIVE_EVERY_S,
		  tries = KEEPALIVE_TRIES;

	setsockopt(cc->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	setsockopt(cc->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	setsockopt(cc->fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	setsockopt(cc->fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof(every));
	setsockopt(cc->fd, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof(tries));
}

static void conn_buf_free(struct ctl_buf *buf)
{
	if (buf->user)
		atomic_fetch_sub_explicit(&buf->cc->out_b, buf->len, memory_order_relaxed);
	free(buf);
}

static void conn_out_drop(struct ctl_conn *cc)
{
	while (cc->out) {
		struct ctl_buf *buf = cc->out;

		cc->out = buf->next;
		conn_buf_free(buf);
	}
	cc->out_end = &cc->out;
}

void ctl_conn_setup_free(struct ctl_conn *cc)
{
	struct ctl_setup *s = cc->setup;

	ctl_tls_forget(cc);
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
	conn_out_drop(cc);
	ctl_conn_setup_free(cc);
	ctl_tls_free(cc);
	auth_key_put(cc->key);
	cc->key = NULL;
	free(cc->dial.tries);
	cc->dial.tries = NULL;
	free(cc->in);
	cc->in = NULL;
	cc->in_len = cc->in_room = 0;
}

void ctl_conn_closed_check(struct ctl_conn *cc)
{
	if (cc->state != CTL_CLOSING || cc->rx.held || cc->tx.held || cc->parsing ||
	    (cc->dial.nr_begun && cc->dial.held(cc)))
		return;
	if (cc->fd >= 0)
		gx_fd_close(cc->fd);
	cc->fd = -1;
	ctl_conn_goto(cc, CTL_CLOSED);
	conn_buffers_free(cc);
}

/* What the set-up has under way, other than this socket, ends. */
static void conn_forget(struct ctl_conn *cc)
{
	if (cc->pass)
		cc->pass_forget(cc);
	if (cc->dial.data)
		cc->dial.data_forget(cc);
}

void ctl_conn_useless(struct ctl_conn *cc, enum gx_reason reason, int err)
{
	if (cc->dial.useless)
		cc->dial.useless(cc, reason, err);
}

void ctl_conn_close(struct ctl_conn *cc)
{
	if (cc->state >= CTL_CLOSING)
		return;
	ctl_conn_goto(cc, CTL_CLOSING);
	cc->due_ns = 0;
	conn_forget(cc);
	if (cc->dial.nr_begun)
		cc->dial.forget(cc);
	if (cc->fd >= 0)
		shutdown(cc->fd, SHUT_RDWR);
	gx_uring_cancel(cc->ctl->gx->uring, &cc->rx);
	gx_uring_cancel(cc->ctl->gx->uring, &cc->tx);
	ctl_conn_closed_check(cc);
}

void ctl_conn_drop(struct ctl_conn *cc)
{
	conn_buffers_free(cc);
	free(cc);
}

void ctl_conn_destroy(struct ctl_conn *cc)
{
	for (struct ctl_conn **p = &cc->ctl->conns; *p; p = &(*p)->next) {
		if (*p == cc) {
			*p = cc->next;
			break;
		}
	}
	ctl_conn_drop(cc);
}

bool ctl_conn_free(struct gx_conn *c)
{
	struct ctl_conn *cc = c->ctl;

	if (!cc)
		return true;
	if (ctl_conn_is_live(cc))
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

/* The first frame has gone. */
static void conn_out_next(struct ctl_conn *cc)
{
	struct ctl_buf *buf = cc->out;

	cc->out = buf->next;
	if (!cc->out)
		cc->out_end = &cc->out;
	conn_buf_free(buf);
}

/* The next bytes to send, as TLS has made them. Frames leave the queue when they are in TLS. */
static uint32_t conn_tx_tls(struct ctl_conn *cc, uint8_t **b)
{
	uint32_t n = ctl_tls_out(cc, b);

	while (!n && cc->out) {
		if (auth_tls_write(cc->tls->t, cc->out->b, cc->out->len)) {
			/* No frame may be missing. The receiving half sees the end. */
			conn_out_drop(cc);
			shutdown(cc->fd, SHUT_RDWR);
			return 0;
		}
		conn_out_next(cc);
		n = ctl_tls_out(cc, b);
	}
	if (!n && cc->state == CTL_LINGER) {
		ctl_tls_end(cc);
		n = ctl_tls_out(cc, b);
	}
	return n;
}

/* The next bytes to send. Return: how many. */
static uint32_t conn_tx_next(struct ctl_conn *cc, uint8_t **b)
{
	if (cc->tls)
		return conn_tx_tls(cc, b);
	if (!cc->out)
		return 0;
	*b = cc->out->b + cc->out->pos;
	return cc->out->len - cc->out->pos;
}

static void conn_tx_sent(struct ctl_conn *cc, uint32_t len)
{
	if (cc->tls) {
		cc->tls->pos += len;
		return;
	}
	cc->out->pos += len;
	if (cc->out->pos == cc->out->len)
		conn_out_next(cc);
}

static void conn_tx_done(struct gx_io *io, int res)
{
	struct ctl_conn *cc = io->arg;

	if (cc->state >= CTL_CLOSING) {
		ctl_conn_closed_check(cc);
		return;
	}
	if (res < 0) { /* the receiving half fails too, and gives the reason */
		conn_out_drop(cc);
		if (cc->state == CTL_LINGER)
			ctl_conn_close(cc);
		return;
	}
	conn_tx_sent(cc, (uint32_t)res);
	conn_tx_kick(cc);
}

/* Send the queue. When it is empty and we are leaving, close our direction. */
static void conn_tx_kick(struct ctl_conn *cc)
{
	uint8_t *b;
	uint32_t len;

	if (cc->state >= CTL_CLOSING || cc->state == CTL_CONNECT || cc->tx.held)
		return;
	len = conn_tx_next(cc, &b);
	if (!len) {
		if (cc->state == CTL_LINGER)
			shutdown(cc->fd, SHUT_WR);
		return;
	}
	cc->tx = (struct gx_io){.op = GX_IO_SEND,
				.fd = cc->fd,
				.buf = b,
				.len = len,
				.done = conn_tx_done,
				.arg = cc};
	gx_uring_submit(cc->ctl->gx->uring, &cc->tx);
}

void ctl_conn_send(struct ctl_conn *cc)
{
	conn_tx_kick(cc);
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

int ctl_conn_frame_send(struct ctl_conn *cc, uint32_t len)
{
	struct ctl_buf *buf = conn_buf_new(cc, len, false);

	if (!buf)
		return gx_refuse(GX_REASON_NO_MEMORY, -ENOMEM, "out of memory");
	memcpy(buf->b, cc->ctl->frame, len);
	conn_buf_queue(cc, buf);
	return 0;
}

int ctl_conn_plain_send(struct ctl_conn *cc, enum gx_hello_type type)
{
	return ctl_conn_frame_send(cc, gx_hello_plain_put(cc->ctl->frame, type, NULL, 0));
}

static struct gx_hello_error conn_error(int err, enum gx_reason reason, const char *text)
{
	struct gx_hello_error e = {.err = err, .reason = (uint16_t)reason};

	snprintf(e.text, sizeof(e.text), "%s", text);
	return e;
}

/* ---- The way down ---- */

void ctl_conn_linger(struct ctl_conn *cc, uint64_t linger_ns)
{
	if (cc->state >= CTL_LINGER)
		return;
	ctl_conn_goto(cc, CTL_LINGER);
	cc->due_ns = gx_now_ns() + linger_ns;
	cc->in_len = 0;
	conn_forget(cc);
	conn_tx_kick(cc);
}

void ctl_conn_end(struct ctl_conn *cc, uint64_t linger_ns)
{
	struct gx_conn *c = cc->conn;

	if (cc->state == CTL_LINGER)
		cc->due_ns = GX_MIN(cc->due_ns, gx_now_ns() + linger_ns);
	if (!ctl_conn_is_live(cc))
		return;
	if (cc->state <= CTL_TLS) {
		ctl_conn_close(cc);
		return;
	}
	if (c && c->state == GX_CONN_STATE_DOWN && c->err) {
		struct gx_hello_error e = conn_error(c->err, c->reason, c->text);

		(void)ctl_conn_frame_send(cc, gx_hello_error_put(cc->ctl->frame, &e));
	} else {
		(void)ctl_conn_plain_send(cc, GX_HELLO_BYE);
	}
	ctl_conn_linger(cc, linger_ns);
}

/* Not before TLS is ready, but for a client that may come in clear. */
static bool conn_may_tell(const struct ctl_conn *cc)
{
	if (cc->state != CTL_TLS)
		return cc->state != CTL_CONNECT;
	return cc->server && ctl_conn_may_clear(cc);
}

/* Tell the peer, and conn_down(). */
static void conn_fail(struct ctl_conn *cc, const struct gx_hello_error *e)
{
	ctl_conn_useless(cc, e->reason, e->err);
	if (!conn_may_tell(cc))
		ctl_conn_close(cc);
	if (ctl_conn_is_live(cc)) {
		/* on_conn tells the server's user of connections that were up, of no others. */
		if (cc->server && !cc->was_up && e->reason != GX_REASON_REFUSED &&
		    ctl_may_log(&cc->ctl->refused_rate))
			gx_warn("peer %s did not come up: %s", ctl_conn_peer(cc), e->text);
		/* Without memory the peer sees the connection end. */
		(void)ctl_conn_frame_send(cc, gx_hello_error_put(cc->ctl->frame, e));
		ctl_conn_linger(cc, CTL_LINGER_NS);
	}
	if (cc->conn)
		conn_down(cc->conn, e->reason, e->err, "peer %s: %s", ctl_conn_peer(cc), e->text);
}

/* The peer broke the protocol. Before its HELLO it may be no gx, and then hears nothing. */
static void conn_bad(struct ctl_conn *cc, struct gx_hello_error *e)
{
	size_t len = strlen(e->text);

	if (cc->state > CTL_HELLO) {
		snprintf(e->text + len, sizeof(e->text) - len,
			 ": protocol error; is it the same gx at both ends?");
		conn_fail(cc, e);
		return;
	}
	ctl_conn_useless(cc, e->reason, e->err);
	ctl_conn_close(cc);
	if (cc->conn)
		conn_down(cc->conn, e->reason, e->err,
			  "%s does not speak gx's protocol (%s): does a gx server listen there?",
			  ctl_conn_peer(cc), e->text);
}

/* Is it the peer's own doing, for GX_STAT_CTL_BAD? */
static bool error_is_bad(const struct ctl_conn *cc, enum gx_reason reason)
{
	switch (reason) {
	case GX_REASON_PROTOCOL:
	case GX_REASON_VERSION:
		return true;
	case GX_REASON_INSECURE:
	case GX_REASON_AUTH:
	case GX_REASON_USER:
	case GX_REASON_OTHER_HOST:
	case GX_REASON_NO_PORT:
	case GX_REASON_NO_LINK:
		return cc->server;
	default:
		return false;
	}
}

void ctl_conn_judge(struct ctl_conn *cc, int verdict)
{
	/* A copy: the user's callbacks may make other errors. */
	struct gx_hello_error e = conn_error(verdict, core_reason(), gx_error());

	if (!verdict)
		return;
	if (error_is_bad(cc, e.reason))
		ctl_bad(cc->ctl, "peer %s: %s", ctl_conn_peer(cc), e.text);
	if (e.reason == GX_REASON_PROTOCOL)
		conn_bad(cc, &e);
	else
		conn_fail(cc, &e);
}

void ctl_conn_judge_late(struct ctl_conn *cc, int verdict)
{
	cc->setup->late = conn_error(verdict, core_reason(), gx_error());
	cc->due_ns = GX_MIN(cc->due_ns, gx_now_ns() + CTL_LINGER_NS);
}

/* ---- Calls of the data plane ---- */

static int bye_run(void *arg)
{
	struct gx_conn *c = arg;

	if (!c->ctl)
		return 0;
	if (c->link_open)
		c->link->conn->push(c);
	ctl_conn_end(c->ctl, CTL_LINGER_NS);
	return 0;
}

void ctl_bye(struct gx_conn *c)
{
	gx_uring_run_wait(c->gx->uring, bye_run, c);
}

/* It touches nr_jobs last: from then on @cc may be freed. */
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

/* The lock keeps the connection up until nr_jobs counts the message, so @cc is not freed before.
 * Return: NULL, with the reason in gx_error() and @ret. */
static struct ctl_buf *msg_new(struct gx_conn *c, uint32_t len, int *ret)
{
	struct ctl_conn *cc = NULL;
	struct ctl_buf *buf = NULL;

	pthread_mutex_lock(&c->gx->wait_lock);
	if (c->state == GX_CONN_STATE_UP) /* so ctl_conn_free() does not write ->ctl now */
		cc = c->ctl;
	if (!cc)
		*ret = gx_fail(-ENOTCONN, "the connection is not up");
	else if (atomic_load_explicit(&cc->out_b, memory_order_relaxed) > CTL_OUT_MAX_B)
		*ret = gx_fail(-ENOMEM,
			       "%u MiB of messages wait: peer %s does not read them; send fewer",
			       CTL_OUT_MAX_B >> 20, c->peer_name);
	else
		buf = conn_buf_new(cc, CTL_FRAME_HDR_B + len, true);
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
