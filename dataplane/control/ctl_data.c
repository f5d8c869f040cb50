/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data sockets of a link that wants some (core/socks.h). The client connects them to the address of its bootstrap connection,
 * one after another, and names the connection by the token of the server's ACCEPT in the first
 * frame. So the server needs no further listening socket, and its rules for bootstrap connections
 * hold for data too. On the control thread.
 */
#include "control/ctl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DATA_FRAME_B 64

/* A client's sockets on their way up. */
struct ctl_data {
	struct ctl *ctl;
	struct ctl_data *next; /* in ctl->datas */
	struct ctl_conn *cc;   /* NULL: the connection has ended */
	struct gx_io io;
	struct ctl_addr to; /* the kernel may read it while io is held, so also without @cc */
	int fd;		    /* the one under way; -1: none */
	unsigned at;	    /* its number: lane, then index */
	uint32_t pos, len;
	uint8_t frame[DATA_FRAME_B];
};

static void data_next(struct ctl_data *d);

static void data_free(struct ctl_data *d)
{
	struct ctl_data **p = &d->ctl->datas;

	while (*p != d)
		p = &(*p)->next;
	*p = d->next;
	if (d->fd >= 0)
		gx_fd_close(d->fd);
	free(d);
}

static void data_forget(struct ctl_conn *cc)
{
	struct ctl_data *d = cc->dial.data;

	cc->dial.data = NULL;
	d->cc = NULL;
	if (d->io.held)
		gx_uring_cancel(d->ctl->gx->uring, &d->io); /* its callback frees @d */
	else
		data_free(d);
}

/* The verdict forgets and frees @d. */
static void data_fail(struct ctl_data *d, int err)
{
	struct ctl *ctl = d->ctl;

	ctl->inside++;
	ctl_conn_judge(d->cc, gx_refuse(GX_REASON_SOCKET, err,
					"data socket %u of link %s cannot be connected: %s", d->at,
					d->cc->conn->link->name, strerror(-err)));
	ctl->inside--;
}

static void data_send(struct ctl_data *d, void (*done)(struct gx_io *io, int res))
{
	d->io = (struct gx_io){.op = GX_IO_SEND,
			       .fd = d->fd,
			       .buf = d->frame + d->pos,
			       .len = d->len - d->pos,
			       .done = done,
			       .arg = d};
	gx_uring_submit(d->ctl->gx->uring, &d->io);
}

static void data_sent(struct gx_io *io, int res)
{
	struct ctl_data *d = io->arg;
	struct gx_socks *t;

	if (!d->cc) {
		data_free(d);
		return;
	}
	if (res <= 0) {
		data_fail(d, res ? res : -ECONNRESET);
		return;
	}
	d->pos += (uint32_t)res;
	if (d->pos < d->len) {
		data_send(d, data_sent);
		return;
	}
	t = d->cc->conn->socks;
	gx_socks_add(d->cc->conn, d->at / t->nr_socks, d->at % t->nr_socks, d->fd);
	d->fd = -1;
	d->at++;
	d->cc->due_ns = gx_later_ns(gx_now_ns(), d->cc->dial.timeout_ns);
	data_next(d);
}

static void data_connected(struct gx_io *io, int res)
{
	struct ctl_data *d = io->arg;
	struct gx_hello_data hello = {0};
	const struct gx_socks *t;

	if (!d->cc) {
		data_free(d);
		return;
	}
	if (res < 0) {
		data_fail(d, res);
		return;
	}
	t = d->cc->conn->socks;
	memcpy(hello.token, t->token, sizeof(hello.token));
	hello.lane = d->at / t->nr_socks;
	hello.index = d->at % t->nr_socks;
	d->len = gx_hello_data_put(d->frame, &hello);
	d->pos = 0;
	data_send(d, data_sent);
}

static void data_next(struct ctl_data *d)
{
	struct ctl_conn *cc = d->cc;
	struct ctl *ctl = d->ctl;

	if (gx_socks_are_whole(cc->conn)) {
		cc->dial.data = NULL;
		data_free(d);
		ctl->inside++;
		ctl->joined(cc);
		ctl->inside--;
		return;
	}
	d->to = cc->dial.addrs[cc->dial.addr];
	d->fd = gx_fd_own(
		socket(d->to.sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
	if (d->fd < 0) {
		data_fail(d, -errno);
		return;
	}
	/* As the bootstrap connection: the server wants both from one address. */
	if (ctl_addr_leaves(&ctl->bind, &d->to))
		(void)bind(d->fd, (struct sockaddr *)&ctl->bind.sa, ctl->bind.len);
	d->io = (struct gx_io){.op = GX_IO_CONNECT,
			       .fd = d->fd,
			       .addr = (struct sockaddr *)&d->to.sa,
			       .addr_len = d->to.len,
			       .done = data_connected,
			       .arg = d};
	gx_uring_submit(ctl->gx->uring, &d->io);
}

int ctl_data_start(struct ctl_conn *cc)
{
	struct ctl_data *d = calloc(1, sizeof(*d));

	if (!d)
		return gx_refuse(GX_REASON_NO_MEMORY, -ENOMEM, "out of memory");
	d->ctl = cc->ctl;
	d->cc = cc;
	d->fd = -1;
	d->next = cc->ctl->datas;
	cc->ctl->datas = d;
	cc->dial.data = d;
	cc->dial.data_forget = data_forget;
	data_next(d);
	return 0;
}

bool ctl_data_waits(const struct ctl_conn *cc)
{
	return cc->conn && cc->conn->socks &&
	       (cc->state == CTL_FDS || (!cc->server && cc->state == CTL_LINKED));
}

int ctl_data_timed_out(const struct ctl_conn *cc)
{
	const struct gx_socks *t = cc->conn->socks;
	unsigned all = t->nr_lanes * t->nr_socks;

	return gx_refuse(
		GX_REASON_SETUP_TIMEOUT, -ETIMEDOUT,
		"%u of %u data sockets of link %s %s in time%s: is a NAT or a proxy between the "
		"ends, or is the server's ulimit -n too low?",
		t->nr_fds, all, cc->conn->link->name, cc->server ? "came" : "were connected",
		t->nr_fds < all ? "" : ", and the server has not taken all of them");
}

/* ---- server ---- */

/* The connection that waits for data sockets with this token. */
static struct ctl_conn *data_owner(const struct ctl *ctl, const struct gx_hello_data *hello)
{
	for (struct ctl_conn *o = ctl->conns; o; o = o->next)
		if (o->server && o->state == CTL_FDS && o->conn && o->conn->socks &&
		    gx_socks_are(o->conn, hello->token))
			return o;
	return NULL;
}

/* The client cannot notice by itself: it has sent all that it sends there, and waits for UP. */
static void data_refuse_address(struct ctl_conn *owner, const struct ctl_conn *cc)
{
	ctl_bad(cc->ctl, "peer %s: DATA for %s from another address", cc->name,
		ctl_conn_peer(owner));
	ctl_conn_judge(
		owner,
		gx_refuse(GX_REASON_SOCKET, -EPERM,
			  "a data socket of link %s came from %s, and the client's connection from "
			  "%s: does a NAT or a proxy between the ends use several addresses?",
			  owner->conn->link->name, cc->name, owner->name));
}

int ctl_data_take(struct ctl_conn *cc, const uint8_t *body, uint32_t len)
{
	struct gx_hello_data hello;
	struct ctl_conn *owner;

	/* The client sends nothing more there before it knows that the connection is up. */
	if (cc->tls || gx_hello_data_get(body, len, &hello) || cc->in_len != CTL_FRAME_HDR_B + len)
		return gx_refuse(GX_REASON_PROTOCOL, -EPROTO, "malformed DATA");
	owner = data_owner(cc->ctl, &hello);
	if (owner && (owner->came.from_len != cc->came.from_len ||
		      memcmp(owner->came.from, cc->came.from, cc->came.from_len))) {
		data_refuse_address(owner, cc);
		owner = NULL;
	}
	if (!owner || gx_socks_add(owner->conn, hello.lane, hello.index, cc->fd))
		return gx_refuse(GX_REASON_PROTOCOL, -EPROTO, "DATA that no connection waits for");
	cc->fd = -1; /* the connection has it */
	ctl_conn_close(cc);
	owner->due_ns =
		GX_MIN(gx_now_ns() + CTL_STEP_NS, owner->came.born_ns + CTL_STEP_NS + CTL_DATA_NS);
	if (gx_socks_are_whole(owner->conn))
		cc->ctl->joined(owner);
	return 0;
}
