/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a sendComm and a recvComm meet. A listener gives NCCL a handle: the address of this process,
 * the listener's number and a random token. NCCL carries the handle to the connecting process. That
 * process asks over its connection for a comm (ASK), the listener's control thread looks at the
 * token and answers (ANSWER), and accept() takes the comm later. CLOSE informs the other end of a
 * comm that this end is closed, and how many requests had reached it.
 *
 * Handles come over NCCL's bootstrap, which anybody may reach, and messages from a peer: both are
 * copied out and checked. The tables call listen, connect, accept and close. None of them waits for
 * a peer, nor for another thread: the keeper connects, and the control thread asks as soon as the
 * connection is up. So the peer sees a token at once, also when NCCL is slow to call connect again.
 */
#include "plug.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define MSG_MAGIC   0x6d6e7867u /* "gxnm" */
#define MSG_VERSION 1
#define DIAL_NS	    30000000000ull /* besides the time of a step: longest time to connect */

enum msg_kind { MSG_ASK = 1, MSG_ANSWER, MSG_CLOSE };

struct msg {
	uint32_t magic;
	uint16_t version;
	uint16_t kind;
	uint32_t number;	/* of the comm on this connection */
	uint32_t lane;		/* ASK */
	uint32_t listen;	/* ASK: the listener's number */
	uint32_t count;		/* CLOSE: requests before this one have reached the sender's end */
	int32_t err;		/* ANSWER: 0, -errno */
	uint32_t reserved;	/* 0 */
	uint8_t token[TOKEN_B]; /* ASK */
};
_Static_assert(sizeof(struct msg) == 48, "without padding");

static int msg_send(struct gx_conn *conn, struct msg m)
{
	m.magic = MSG_MAGIC;
	m.version = MSG_VERSION;
	return gx_conn_msg(conn, &m, sizeof(m));
}

void meet_close_say(struct comm *c, uint32_t count)
{
	msg_send(c->peer->conn,
		 (struct msg){.kind = MSG_CLOSE, .number = c->number, .count = count});
}

/* ---- Messages, on the control thread, under plug.lock ---- */

/* In the same time for any wrong token. */
static bool token_is(const uint8_t a[TOKEN_B], const uint8_t b[TOKEN_B])
{
	unsigned diff = 0;

	for (unsigned i = 0; i < TOKEN_B; i++)
		diff |= a[i] ^ b[i];
	return !diff;
}

static struct listen *listen_find(const struct msg *m)
{
	for (struct listen *l = plug.listens; l; l = l->next)
		if (l->number == m->listen)
			return token_is(l->token, m->token) ? l : NULL;
	return NULL;
}

static int ask_take(struct gx_conn *conn, struct peer *p, const struct msg *m)
{
	struct listen *l = listen_find(m);
	struct comm *c;

	if (!l)
		return -EACCES;
	if (!p)
		p = peer_accept(conn);
	if (!p)
		return -ENOMEM;
	if (!p->accepted || m->lane >= p->nr_paths || comm_find(p, m->number))
		return -EPROTO;
	c = l->nr_comms < MEET_MAX ? comm_new(false) : NULL;
	if (!c)
		return -ENOMEM;
	c->state = COMM_OPEN;
	c->peer = p;
	p->nr_users++;
	comm_bind(c, &p->path[m->lane], m->number);
	*l->end = c;
	l->end = &c->meet_next;
	l->nr_comms++;
	return 0;
}

static void answer_take(struct peer *p, const struct msg *m)
{
	struct comm *c = p && !p->accepted ? comm_find(p, m->number) : NULL;

	if (!c || c->answered)
		return;
	c->answered = true;
	c->answer = m->err;
	p->proven |= !m->err;
}

static void close_take(struct peer *p, const struct msg *m)
{
	struct comm *c = p ? comm_find(p, m->number) : NULL;

	if (!c || c->peer_closed)
		return;
	c->peer_closed = true;
	c->count = m->count;
	lane_put(c->path->lane, &c->ending);
}

static bool ask_first_wrong(void)
{
	bool first = !plug.wrong_token_said;

	plug.wrong_token_said = true;
	return first;
}

void meet_on_msg(void *arg, struct gx_conn *conn, const void *data, uint32_t len)
{
	struct msg m, answer = {.kind = MSG_ANSWER};
	bool is_ask = false, say = false;
	struct peer *p;

	(void)arg;
	if (len != sizeof(m))
		return;
	memcpy(&m, data, sizeof(m));
	if (m.magic != MSG_MAGIC || m.version != MSG_VERSION)
		return;
	answer.number = m.number;
	pthread_mutex_lock(&plug.lock);
	p = gx_conn_user(conn);
	if (plug.closing || (p && p->conn != conn)) {
		/* about to be closed */
	} else if (m.kind == MSG_ASK) {
		is_ask = true;
		answer.err = ask_take(conn, p, &m);
		say = answer.err == -EACCES && ask_first_wrong();
	} else if (m.kind == MSG_ANSWER) {
		answer_take(p, &m);
	} else if (m.kind == MSG_CLOSE) {
		close_take(p, &m);
	}
	pthread_mutex_unlock(&plug.lock);
	if (is_ask)
		msg_send(conn, answer);
	if (say)
		say_info("a connect was refused: its listener is closed, or its token is wrong (as "
			 "after an aborted communicator, or from a foreign program)");
}

/* ---- listen ---- */

static bool random_fill(void *buf, size_t len)
{
	return getrandom(buf, len, 0) == (ssize_t)len;
}

int meet_listen(const struct life *life, void *handle, void **listen_comm)
{
	struct listen *l = calloc(1, sizeof(*l));
	struct handle h = {.magic = HANDLE_MAGIC, .version = HANDLE_VERSION};

	*listen_comm = NULL;
	if (!l || !random_fill(l->token, sizeof(l->token))) {
		free(l);
		say_warn("listen: no memory, or no random numbers");
		return NCCL_SYSTEM_ERROR;
	}
	l->end = &l->first;
	l->life = life;
	pthread_mutex_lock(&plug.lock);
	l->number = ++plug.listen_numbers;
	l->next = plug.listens;
	plug.listens = l;
	pthread_mutex_unlock(&plug.lock);
	h.host = plug.host;
	h.netns = plug.netns;
	h.listen = l->number;
	memcpy(h.process, plug.process, sizeof(h.process));
	memcpy(h.token, l->token, sizeof(h.token));
	memcpy(h.addr, plug.addr, sizeof(h.addr));
	memcpy(handle, &h, sizeof(h));
	*listen_comm = l;
	return NCCL_OK;
}

int meet_accept(void *listen_comm, void **recv_comm)
{
	struct listen *l = listen_comm;
	struct comm *c;

	*recv_comm = NULL;
	pthread_mutex_lock(&plug.lock);
	c = l->first;
	if (c) {
		l->first = c->meet_next;
		if (!l->first)
			l->end = &l->first;
		l->nr_comms--;
	}
	pthread_mutex_unlock(&plug.lock);
	*recv_comm = c;
	return NCCL_OK;
}

void meet_put_back(void *listen_comm, struct comm *c)
{
	struct listen *l = listen_comm;

	pthread_mutex_lock(&plug.lock);
	c->meet_next = l->first;
	if (!l->first)
		l->end = &c->meet_next;
	l->first = c;
	l->nr_comms++;
	pthread_mutex_unlock(&plug.lock);
}

/* Under plug.lock. */
static void listen_unlist(struct listen *l)
{
	struct listen **at = &plug.listens;

	while (*at != l)
		at = &(*at)->next;
	*at = l->next;
}

/* No peer finds it any more. */
static void listen_end(struct listen *l)
{
	void *c;

	while (!meet_accept(l, &c) && c)
		comm_close(c);
	free(l);
}

int meet_close_listen(void *listen_comm)
{
	struct listen *l = listen_comm;

	pthread_mutex_lock(&plug.lock);
	listen_unlist(l);
	pthread_mutex_unlock(&plug.lock);
	listen_end(l);
	return NCCL_OK;
}

/* ---- Asking, under plug.lock ---- */

static struct path *path_choose(struct peer *p)
{
	struct path *best = &p->path[0];

	for (unsigned i = 1; i < p->nr_paths; i++)
		if (p->path[i].nr_comms < best->nr_comms)
			best = &p->path[i];
	return best;
}

/* The connection of @c is up. The CLOSE of a comm that is given up comes after its ASK, because the
 * lock is held here. */
static void dial_ask(struct comm *c)
{
	struct peer *p = c->peer;
	struct msg m = {.kind = MSG_ASK, .listen = c->listen};
	int ret;

	comm_bind(c, path_choose(p), ++p->numbers);
	c->state = COMM_ASKED;
	m.number = c->number;
	m.lane = (uint32_t)(c->path - p->path);
	memcpy(m.token, c->token, sizeof(m.token));
	ret = msg_send(p->conn, m);
	if (!ret)
		return;
	c->answered = true;
	c->answer = ret;
}

void meet_up(struct peer *p)
{
	for (struct comm *c = plug.dials; c; c = c->meet_next)
		if (c->peer == p && c->state == COMM_DIAL)
			dial_ask(c);
}

/* ---- connect ---- */

static struct comm *dial_find(uint64_t dial)
{
	struct comm *c;

	pthread_mutex_lock(&plug.lock);
	for (c = dial ? plug.dials : NULL; c && c->dial != dial; c = c->meet_next)
		;
	if (c)
		c->in_call = true;
	pthread_mutex_unlock(&plug.lock);
	return c;
}

/* "127.0.0.1:41234" or "[::1]:41234", the first @len bytes. A name would have gx_connect() ask the
 * network. */
static bool addr_is_numeric(const char *addr, size_t len)
{
	bool v6 = addr[0] == '[';
	uint8_t bytes[16];
	char host[ADDR_B];
	const char *end;

	if (!len)
		return false;
	memcpy(host, addr + v6, len - v6);
	host[len - v6] = 0;
	end = v6 ? strchr(host, ']') : strrchr(host, ':');
	if (!end || (v6 && end[1] != ':'))
		return false;
	host[end - host] = 0;
	if (v6) /* "fe80::1%eth0" */
		host[strcspn(host, "%")] = 0;
	return inet_pton(v6 ? AF_INET6 : AF_INET, host, bytes) == 1;
}

/* One, or several with commas between. */
static bool addrs_are_numeric(const char addr[ADDR_B])
{
	size_t len = strcspn(addr, ",");

	for (; addr_is_numeric(addr, len); len = strcspn(addr, ",")) {
		addr += len;
		if (!*addr++)
			return true;
	}
	return false;
}

static bool handle_is_good(const struct handle *h)
{
	if (h->magic != HANDLE_MAGIC || h->version != HANDLE_VERSION) {
		say_warn("connect: the handle is not of this version of the plugin: give all ranks "
			 "the same libnccl-net-gx.so, and NCCL_NET=gx");
		return false;
	}
	if (!memchr(h->addr, 0, sizeof(h->addr)) || !addrs_are_numeric(h->addr)) {
		say_warn("connect: the handle has no numeric address: it was damaged on its way");
		return false;
	}
	if ((h->host == plug.host && h->netns == plug.netns) ||
	    (strncmp(h->addr, "127.", 4) && strncmp(h->addr, "[::1]", 5)))
		return true;
	say_warn(
		"connect: the other rank is %s, and listens at %s alone: set GX_KEY_FILE on both "
		"to one key (gxd keygen NAME), or GX_ADDR to an address that the other one reaches",
		h->host == plug.host ? "in another network namespace of this host"
				     : "on another host",
		h->addr);
	return false;
}

/* Under plug.lock. */
static struct comm *dial_new(const struct life *life, const struct handle *h, uint64_t dial)
{
	struct comm *c = comm_new(true);

	if (!c)
		return NULL;
	c->dial = dial | 1;
	c->in_call = true;
	c->life = life;
	c->due_ns = gx_now() + plug.conf.step_ns + DIAL_NS;
	c->listen = h->listen;
	memcpy(c->token, h->token, sizeof(c->token));
	c->peer = peer_get(h);
	if (!c->peer) {
		comm_free(c);
		return NULL;
	}
	c->meet_next = plug.dials;
	plug.dials = c;
	if (peer_up(c->peer))
		dial_ask(c);
	return c;
}

static int dial_begin(const struct life *life, const struct handle *h, struct comm **out)
{
	uint64_t dial = 0;

	if (!handle_is_good(h))
		return NCCL_INVALID_ARGUMENT;
	*out = NULL;
	if (random_fill(&dial, sizeof(dial))) {
		pthread_mutex_lock(&plug.lock);
		*out = dial_new(life, h, dial);
		pthread_mutex_unlock(&plug.lock);
	}
	if (!*out)
		say_warn("connect: no memory, or no random numbers");
	return *out ? NCCL_OK : NCCL_SYSTEM_ERROR;
}

enum dial { DIAL_WAITS, DIAL_OPENS, DIAL_LATE, DIAL_REFUSED, DIAL_DOWN };

/* Under plug.lock. */
static enum dial dial_look(const struct comm *c)
{
	if (c->peer->down)
		return DIAL_DOWN;
	if (c->answered)
		return c->answer ? DIAL_REFUSED : DIAL_OPENS;
	return gx_now() > c->due_ns ? DIAL_LATE : DIAL_WAITS;
}

/* Under plug.lock. */
static void dial_open(struct comm *c)
{
	struct comm **at = &plug.dials;

	while (*at != c)
		at = &(*at)->meet_next;
	*at = c->meet_next;
	c->state = COMM_OPEN;
	c->peer->to_show |= !c->peer->shown;
	c->peer->shown = true;
}

static int dial_step(struct comm *c, const struct handle *h, void **send_comm)
{
	enum dial d;

	pthread_mutex_lock(&plug.lock);
	d = dial_look(c);
	if (d == DIAL_OPENS)
		dial_open(c);
	if (d == DIAL_WAITS)
		c->in_call = false;
	/* The peer closes a connection that has shown no right token, some time. */
	c->peer->retired |= d == DIAL_REFUSED && !c->peer->proven;
	pthread_mutex_unlock(&plug.lock);
	if (d == DIAL_OPENS)
		*send_comm = c;
	if (d == DIAL_OPENS || d == DIAL_WAITS)
		return NCCL_OK;
	if (d == DIAL_LATE)
		say_warn("connect to %s: no answer in %llu s: is the other rank stopped?", h->addr,
			 (unsigned long long)((plug.conf.step_ns + DIAL_NS) / 1000000000));
	else if (d == DIAL_REFUSED)
		say_warn("connect to %s was refused (%s): the listener there is closed or another: "
			 "was its communicator aborted?",
			 h->addr, gx_strerror(c->answer));
	else
		peer_say(c->peer, "connect", 0);
	return NCCL_REMOTE_ERROR;
}

int meet_connect(const struct life *life, void *handle, void **send_comm)
{
	struct handle h;
	struct comm *c;
	int ret;

	*send_comm = NULL;
	memcpy(&h, handle, sizeof(h));
	c = dial_find(h.dial);
	if (!c) {
		ret = dial_begin(life, &h, &c);
		if (ret)
			return ret;
		memcpy((char *)handle + offsetof(struct handle, dial), &c->dial, sizeof(c->dial));
	}
	ret = dial_step(c, &h, send_comm);
	if (ret)
		comm_close(c);
	return ret;
}

/* ---- What NCCL gave up ---- */

/* NCCL never closes what is half made, and calls connect without a pause until then. The handle has
 * the number of a connect, no pointer; so a connect that nobody has called for long may go. Only one
 * without a communicator goes by time: another one may be answered and good, and its communicator's
 * end drops it. A listener may not: NCCL has a pointer to it, and may wait for another rank before it
 * accepts. @life NULL: by time. */
static struct comm *dial_left(const struct life *life, uint64_t now_ns)
{
	struct comm **at, *c;

	pthread_mutex_lock(&plug.lock);
	for (at = &plug.dials; (c = *at); at = &c->meet_next)
		if (!c->in_call && c->life == life && (life || now_ns > c->due_ns + DIAL_NS))
			break;
	if (c) /* from here on nobody else finds it */
		*at = c->meet_next;
	pthread_mutex_unlock(&plug.lock);
	return c;
}

static struct listen *listen_left(const struct life *life)
{
	struct listen *l;

	pthread_mutex_lock(&plug.lock);
	for (l = plug.listens; l && l->life != life; l = l->next)
		;
	if (l)
		listen_unlist(l);
	pthread_mutex_unlock(&plug.lock);
	return l;
}

void meet_drop(const struct life *life)
{
	struct listen *l;
	struct comm *c;

	while ((c = dial_left(life, 0)))
		comm_close(c);
	while ((l = listen_left(life)))
		listen_end(l);
}

void meet_sweep(void)
{
	struct comm *c;

	while ((c = dial_left(NULL, gx_now())))
		comm_close(c);
}
