/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client's way to a connected socket: a server's name may have several addresses, and not all of
 * them lead to it. They are tried as RFC 8305 has it: the next one begins when the last one has failed,
 * or has said nothing for 250 ms; the first one that answers is taken, and the others are closed. Runs on
 * the control thread.
 */
#include "control/ctl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIAL_NEXT_NS 250000000ull /* RFC 8305, 5: Connection Attempt Delay */

/* A try of an address. owner: the control thread; gx_uring has .io while it is held */
struct ctl_try {
	struct gx_io io;
	struct ctl_conn *cc;
	int fd;
	int err;	       /* why it failed; 0: it did not yet */
	enum gx_reason reason; /* somebody answers there, and is of no use; 0: nobody */
};

struct ctl_try *ctl_dial_tries(unsigned n)
{
	return calloc(n, sizeof(struct ctl_try));
}

static bool dial_waits(const struct ctl_conn *cc)
{
	return !cc->server && cc->state == CTL_CONNECT;
}

static bool dial_held(const struct ctl_conn *cc)
{
	for (unsigned i = 0; i < cc->dial.nr_begun; i++)
		if (cc->dial.tries[i].io.held)
			return true;
	return false;
}

static void dial_forget(struct ctl_conn *cc)
{
	for (unsigned i = 0; i < cc->dial.nr_begun; i++)
		gx_uring_cancel(cc->ctl->gx->uring, &cc->dial.tries[i].io);
}

/* ---- None answers ---- */

static const char *try_text(const struct ctl_conn *cc, unsigned i)
{
	int err = i < cc->dial.nr_begun ? cc->dial.tries[i].err : -EINPROGRESS;

	if (i >= cc->dial.nr_begun)
		return "not tried";
	switch (cc->dial.tries[i].reason) {
	case GX_REASON_NONE:
		break;
	case GX_REASON_PROTOCOL:
		return "no gx answers";
	case GX_REASON_AUTH:
		return "it takes another key";
	case GX_REASON_INSECURE:
		return "it closed the connection, as gx does where no key is shown";
	case GX_REASON_VERSION:
		return "a gx of another version";
	case GX_REASON_SETUP_TIMEOUT:
		return "it takes connections, and says nothing";
	case GX_REASON_PEER_LOST:
	case GX_REASON_PEER_CLOSED:
		return "it closed the connection";
	default: /* its own word, or this end's: "full", "no-memory" */
		return gx_reason_name(cc->dial.tries[i].reason);
	}
	if (!err || err == -ETIMEDOUT)
		return "no answer";
	return err == -ECONNREFUSED ? "nothing listens there" : strerror(-err);
}

/* "[fd00::1]:7501: no answer; 10.0.0.1:7501: nothing listens there" */
static void dial_text(const struct ctl_conn *cc, char *buf, size_t room)
{
	struct gx_text text = {.buf = buf, .room = room};
	char name[96];

	buf[0] = 0;
	for (unsigned i = 0; i < cc->dial.nr_addrs; i++) {
		ctl_addr_name(&cc->dial.addrs[i].sa, name, sizeof(name));
		core_say(&text, "%s%s: %s", i ? "; " : "", name, try_text(cc, i));
	}
}

/* The error that says most: somebody is there; somebody may be. Return: -errno. */
static int dial_err(const struct ctl_conn *cc)
{
	int err = cc->dial.tries[0].err;

	for (unsigned i = 0; i < cc->dial.nr_begun; i++) {
		int is = cc->dial.tries[i].err;

		if (is == -ECONNREFUSED)
			return is;
		if (is == -ETIMEDOUT || !is)
			err = -ETIMEDOUT;
	}
	return err;
}

/* The list of addresses follows. */
static const char *dial_name(const struct ctl_conn *cc)
{
	return strchr(cc->conn->peer_name, ',') ? "any of its addresses" : cc->name;
}

static enum gx_reason dial_reason(int err)
{
	return err == -ECONNREFUSED ? GX_REASON_NO_SERVER
	       : err == -ETIMEDOUT  ? GX_REASON_SETUP_TIMEOUT
				    : GX_REASON_UNREACHABLE;
}

void ctl_dial_none(struct ctl_conn *cc)
{
	int err = dial_err(cc);
	enum gx_reason reason = dial_reason(err);
	char all[CTL_TEXT_MAX];

	for (unsigned i = 0; i < cc->dial.nr_begun; i++)
		if (cc->dial.tries[i].reason) {
			reason = cc->dial.tries[i].reason;
			err = cc->dial.tries[i].err;
		}
	dial_text(cc, all, sizeof(all));
	conn_down(cc->conn, reason, err, "cannot connect to %s: %s", dial_name(cc), all);
}

static void dial_failed(struct ctl_conn *cc, int err)
{
	enum gx_reason reason = dial_reason(err);

	if (cc->dial.nr_addrs > 1)
		ctl_dial_none(cc);
	ctl_conn_close(cc);
	if (err == -ECONNREFUSED)
		conn_down(cc->conn, reason, err,
			  "nothing listens at %s: run gx_listen() on %s there", cc->name, cc->name);
	else if (err == -ETIMEDOUT)
		conn_down(cc->conn, reason, err, "no answer from %s: does a server run there?",
			  cc->name);
	else
		conn_down(cc->conn, reason, err, "cannot connect to %s: %s", cc->name,
			  strerror(-err));
}

void ctl_dial_late(struct ctl_conn *cc)
{
	double s = (double)cc->dial.timeout_ns / 1e9;
	char all[CTL_TEXT_MAX];

	dial_text(cc, all, sizeof(all));
	ctl_conn_close(cc);
	conn_down(cc->conn, GX_REASON_SETUP_TIMEOUT, -ETIMEDOUT,
		  "no answer from %s within %g s: %s", dial_name(cc), s,
		  cc->dial.nr_addrs > 1 ? all : "does a server run there?");
}

/* ---- Somebody answers who is of no use ---- */

static bool try_is_bad(const struct ctl_conn *cc, unsigned i)
{
	const struct ctl_try *t = &cc->dial.tries[i];

	return i < cc->dial.nr_begun && (t->reason || (t->err && t->err != -ECANCELED));
}

static unsigned dial_left(const struct ctl_conn *cc)
{
	unsigned n = 0;

	for (unsigned i = 0; i < cc->dial.nr_addrs; i++)
		n += !try_is_bad(cc, i);
	return n;
}

bool ctl_dial_bad(struct ctl_conn *cc, enum gx_reason reason, int err)
{
	struct ctl_try *t = &cc->dial.tries[cc->dial.addr];

	t->reason = reason ?: GX_REASON_PROTOCOL; /* both are the peer's, and so may be anything */
	t->err = err;
	return dial_left(cc);
}

/* Those that are bad come first, as begun. */
void ctl_dial_move(struct ctl_conn *next, const struct ctl_conn *cc)
{
	struct ctl_dial *d = &next->dial;
	unsigned good = cc->dial.nr_addrs - dial_left(cc);

	d->nr_begun = 0;
	for (unsigned i = 0; i < cc->dial.nr_addrs; i++) {
		const struct ctl_try *t = &cc->dial.tries[i];

		if (try_is_bad(cc, i))
			d->tries[d->nr_begun] = (struct ctl_try){
				.cc = next, .fd = -1, .err = t->err, .reason = t->reason};
		d->addrs[try_is_bad(cc, i) ? d->nr_begun++ : good++] = cc->dial.addrs[i];
	}
}

/* ---- Tries ---- */

static void dial_next(struct ctl_conn *cc);

/* The answer may be nobody's: there is time for the other addresses. */
static void dial_share(struct ctl_conn *cc)
{
	uint64_t now_ns = gx_now_ns();

	cc->dial.end_ns = cc->due_ns;
	if (cc->due_ns > now_ns)
		cc->due_ns = now_ns + (cc->due_ns - now_ns) / (dial_left(cc) > 1 ? 2 : 1);
}

/* The first that answers. */
static void try_won(struct ctl_try *t)
{
	struct ctl_conn *cc = t->cc;

	cc->dial.addr = (unsigned)(t - cc->dial.tries);
	cc->loopback = ctl_addr_is_loopback(&cc->dial.addrs[cc->dial.addr].sa);
	if (strchr(cc->name, ',')) /* what it was out of is of no use to anybody any more */
		ctl_addr_name(&cc->dial.addrs[cc->dial.addr].sa, cc->name, sizeof(cc->name));
	cc->fd = t->fd;
	t->fd = -1;
	dial_share(cc);
	dial_forget(cc);
	cc->dial.answers(cc);
}

static void try_done(struct gx_io *io, int res)
{
	struct ctl_try *t = io->arg;
	struct ctl_conn *cc = t->cc;

	if (!res && dial_waits(cc)) {
		try_won(t);
		return;
	}
	t->err = res;
	gx_fd_close(t->fd);
	t->fd = -1;
	if (dial_waits(cc))
		dial_next(cc);
	else
		ctl_conn_closed_check(cc);
}

/* Return: 0: it is under way, -errno. */
static int try_begin(struct ctl_conn *cc, struct ctl_try *t, struct ctl_addr *a)
{
	const struct ctl_addr *own = &cc->ctl->bind;

	t->cc = cc;
	t->fd = gx_fd_own(socket(a->sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
	if (t->fd < 0)
		return -errno;
	/* May fail. The server sends data only to the address that it sees. */
	if (ctl_addr_leaves(own, a))
		(void)bind(t->fd, (const struct sockaddr *)&own->sa, own->len);
	t->io = (struct gx_io){.op = GX_IO_CONNECT,
			       .fd = t->fd,
			       .addr = (struct sockaddr *)&a->sa,
			       .addr_len = a->len,
			       .done = try_done,
			       .arg = t};
	gx_uring_submit(cc->ctl->gx->uring, &t->io);
	return 0;
}

/* Begin with the next one. If none is left, and none under way, that is the end. */
static void dial_next(struct ctl_conn *cc)
{
	while (cc->dial.nr_begun < cc->dial.nr_addrs) {
		unsigned i = cc->dial.nr_begun++;
		struct ctl_try *t = &cc->dial.tries[i];

		cc->dial.next_ns = gx_now_ns() + DIAL_NEXT_NS;
		t->err = try_begin(cc, t, &cc->dial.addrs[i]);
		if (!t->err)
			return;
	}
	if (!dial_held(cc))
		dial_failed(cc, dial_err(cc));
}

void ctl_dial_start(struct ctl_conn *cc, void (*answers)(struct ctl_conn *cc))
{
	cc->dial.answers = answers;
	cc->dial.forget = dial_forget;
	cc->dial.held = dial_held;
	dial_next(cc);
}

void ctl_dial_tick(struct ctl_conn *cc, uint64_t now_ns)
{
	if (dial_waits(cc) && cc->dial.nr_begun < cc->dial.nr_addrs && now_ns >= cc->dial.next_ns)
		dial_next(cc);
}
