/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control half of a context: open and close, listening, connecting, and the tick that looks at
 * deadlines. gx_open() and gx_close() call ctl_open() and ctl_close() on their thread. Any thread
 * may call the other entries; they go to the control thread, where the rest of this file runs. The
 * caller's thread resolves names and binds sockets.
 */
#include "control/ctl.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CTL_BACKLOG	   1024		/* the kernel cuts it to somaxconn */
#define CTL_CLOSE_NS	   200000000ull /* for last frames when the context closes */
#define CTL_SETTLE_TRIES   3000		/* each takes 1 ms */
#define CTL_SETTLE_WAIT_NS 1000000
#define LISTEN_TRIES	   16 /* free ports, that one of several addresses may not have */

/* ---- The tick ---- */

static void tick_listeners(struct ctl *ctl)
{
	for (struct gx_listener *l = ctl->listeners; l; l = l->next) {
		listener_spare(l);
		listener_arm(l);
	}
}

/* Did this thread stand since the last tick (SIGSTOP, no CPU, a slow callback of the user)? */
static void tick_stood(struct ctl *ctl, uint64_t now_ns)
{
	uint64_t since_ns = ctl->tick_ns ? now_ns - ctl->tick_ns : 0;

	ctl->tick_ns = now_ns;
	if (since_ns < 2 * CTL_TICK_NS)
		return;
	for (struct ctl_conn *cc = ctl->conns; cc; cc = cc->next)
		ctl_frame_stood(cc, since_ns - CTL_TICK_NS, now_ns);
}

/* Look at the deadlines of all bootstrap connections; free closed ones that have no struct gx_conn.
 * Callbacks free none meanwhile. */
static void tick_own(struct ctl *ctl, uint64_t now_ns)
{
	struct ctl_conn *cc, *next;

	ctl->inside++;
	for (cc = ctl->conns; cc; cc = cc->next)
		ctl_frame_tick(cc, now_ns);
	ctl->inside--;
	for (cc = ctl->conns; cc; cc = next) {
		next = cc->next;
		if (!cc->conn && cc->state == CTL_CLOSED)
			ctl_conn_destroy(cc);
	}
}

void ctl_reap(struct gx_conn *c)
{
	if (conn_is_over(c) && ctl_conn_free(c))
		conn_reap(c);
}

static void tick_conns(struct ctl *ctl)
{
	struct gx_conn *c, *next;

	for (c = ctl->gx->conns; c; c = next) {
		next = c->next;
		conn_tick(c); /* even when DOWN: its cores may not know yet */
		if (c->state != GX_CONN_STATE_DOWN)
			continue;
		if (c->ctl)
			ctl_conn_end(c->ctl, CTL_LINGER_NS);
		ctl_reap(c);
	}
}

static void tick_done(struct gx_io *io, int res)
{
	struct ctl *ctl = io->arg;
	uint64_t now_ns = gx_now_ns();

	if (res == -ECANCELED)
		return;
	core_watch(ctl->gx, now_ns);
	tick_stood(ctl, now_ns);
	tick_own(ctl, now_ns);
	ctl_fd_tick(ctl, now_ns);
	ctl_stats_tick(ctl, now_ns);
	for (unsigned l = 0; l < GX_LINKS; l++)
		gx_links[l]->ctx->tick(ctl->gx);
	mem_reap(ctl->gx, false);
	if (!ctl->closing) {
		tick_conns(ctl);
		tick_listeners(ctl);
	}
	gx_uring_submit(ctl->gx->uring, io);
}

static void soon_done(struct gx_io *io, int res)
{
	struct ctl *ctl = io->arg;

	if (res == -ECANCELED || ctl->closing)
		return;
	ctl->inside++;
	for (struct ctl_conn *cc = ctl->conns; cc; cc = cc->next)
		if (cc->linked_ns)
			ctl_conn_judge(cc, ctl_hello_linked(cc));
	ctl->inside--;
}

/* ---- Open and close ---- */

/* 16 bytes, equal in all processes of this boot and network namespace: these can meet on abstract
 * Unix sockets. Without /proc the bytes are random, so no peer seems to be on this host. */
static int host_id_get(uint8_t id[16])
{
	char text[40] = "";
	struct stat st;
	unsigned n = 0;
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");

	if (f && !fgets(text, sizeof(text), f))
		text[0] = 0;
	if (f)
		fclose(f);
	memset(id, 0, 16);
	for (const char *p = text; *p && n < 32; p++) {
		const char *hex = "0123456789abcdef", *digit = strchr(hex, *p);

		if (!digit)
			continue;
		id[n / 2] |= (uint8_t)((digit - hex) << (n & 1 ? 0 : 4));
		n++;
	}
	if (n < 32 || stat("/proc/self/ns/net", &st)) {
		gx_warn("this host has no id, so peers on it are taken for those of other hosts, "
			"without shared memory: /proc/sys/kernel/random/boot_id, "
			"/proc/self/ns/net: %s",
			strerror(errno));
		return gx_random(id, 16);
	}
	for (unsigned i = 0; i < 8; i++)
		id[i] ^= (uint8_t)((uint64_t)st.st_ino >> 8 * i);
	return 0;
}

static int open_run(void *arg)
{
	struct ctl *ctl = arg;

	gx_uring_submit(ctl->gx->uring, &ctl->tick);
	return 0;
}

/* Connections leave from the address that the user binds ports to. */
static void bind_get(struct ctl *ctl, const char *host)
{
	struct addrinfo hint = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST}, *list;

	if (!host || getaddrinfo(host, NULL, &hint, &list))
		return;
	memcpy(&ctl->bind.sa, list->ai_addr, GX_MIN(list->ai_addrlen, sizeof(ctl->bind.sa)));
	ctl->bind.len = list->ai_addrlen;
	freeaddrinfo(list);
	if (ctl_addr_is_loopback(&ctl->bind.sa)) /* reaches no other host */
		ctl->bind = (struct ctl_addr){0};
}

int ctl_open(struct gx *gx)
{
	struct ctl *ctl = calloc(1, sizeof(*ctl));
	int ret;

	if (!ctl)
		return gx_fail(-ENOMEM, "no memory for the control thread");
	ctl->gx = gx;
	ctl->shown = ctl_hello_shown;
	ctl->passed = ctl_hello_passed;
	ctl->joined = ctl_hello_joined;
	ret = host_id_get(ctl->host_id);
	if (ret) {
		free(ctl);
		return gx_fail(ret, "no random bytes: %s", strerror(-ret));
	}
	bind_get(ctl, gx->opts.bind_host);
	ctl->tick = (struct gx_io){
		.op = GX_IO_TIMEOUT, .timeout_ns = CTL_TICK_NS, .done = tick_done, .arg = ctl};
	ctl->soon = (struct gx_io){
		.op = GX_IO_TIMEOUT, .timeout_ns = CTL_SOON_NS, .done = soon_done, .arg = ctl};
	gx->ctl = ctl;
	gx_uring_run_wait(gx->uring, open_run, ctl);
	ctl_run_open(ctl);
	return 0;
}

/* Return: listeners of gx_listen() that are not closed yet. */
static int stop_run(void *arg)
{
	struct ctl *ctl = arg;
	struct gx_listener *l, *next;
	int n = 0;

	for (l = ctl->listeners; l; l = next) {
		next = l->next;
		if (listener_is_tcp(l) && !l->held)
			listener_close(l);
	}
	for (l = ctl->listeners; l; l = l->next)
		n += listener_is_tcp(l) && !l->held;
	return n;
}

static int close_begin(void *arg)
{
	struct ctl *ctl = arg;
	struct gx_listener *l, *next;

	ctl->closing = true;
	for (l = ctl->listeners; l; l = next) {
		next = l->next;
		listener_close(l);
	}
	ctl_fd_close(ctl);
	ctl_stats_close(ctl);
	ctl->inside++;
	for (struct ctl_conn *cc = ctl->conns; cc; cc = cc->next) {
		ctl_conn_end(cc, CTL_CLOSE_NS);
		if (cc->conn)
			conn_down(cc->conn, GX_REASON_CLOSED, 0,
				  "the context was closed at this end");
	}
	ctl->inside--;
	return 0;
}

/* Return: 0 when all sockets are closed and gx_uring holds nothing. */
static int close_step(void *arg)
{
	struct ctl *ctl = arg;
	struct ctl_conn *cc, *next;

	for (cc = ctl->conns; cc; cc = next) {
		next = cc->next;
		if (cc->conn)
			ctl_conn_free(cc->conn);
		else if (cc->state == CTL_CLOSED)
			ctl_conn_destroy(cc);
	}
	if (ctl->conns || ctl->listeners || ctl->passes || ctl->datas || ctl->clients)
		return 1;
	auth_tls_ctx_close(ctl->tls); /* this thread has used it */
	ctl->tls = NULL;
	gx_uring_cancel(ctl->gx->uring, &ctl->tick);
	gx_uring_cancel(ctl->gx->uring, &ctl->soon);
	return ctl->tick.held || ctl->soon.held;
}

/* Call @fn on the control thread until it returns 0. Return: it did. */
static bool ctl_settle(struct ctl *ctl, int (*fn)(void *arg), void *arg)
{
	const struct timespec ts = {.tv_nsec = CTL_SETTLE_WAIT_NS};

	for (unsigned i = 0; i < CTL_SETTLE_TRIES; i++) {
		if (!gx_uring_run_wait(ctl->gx->uring, fn, arg))
			return true;
		if (gx_uring_is_me(ctl->gx->uring))
			return false;
		nanosleep(&ts, NULL);
	}
	return false;
}

/* Call it before gx_uring_close(). Afterwards no struct gx_conn has a ctl half. */
void ctl_close(struct gx *gx)
{
	struct ctl *ctl = gx->ctl;
	bool settled;

	if (!ctl)
		return;
	gx_uring_run_wait(gx->uring, close_begin, ctl);
	gx->ctl = NULL;
	settled = ctl_settle(ctl, close_step, ctl);
	ctl_run_close(ctl); /* its socket is gone by now */
	if (settled)
		free(ctl);
	else /* better leak it than use it after free */
		gx_err("control: sockets did not close in %u ms", CTL_SETTLE_TRIES);
}

/* ---- Listen ---- */

static in_port_t addr_port(const struct ctl_addr *a)
{
	return ((const struct sockaddr_in *)&a->sa)->sin_port; /* IPv6: the same place */
}

static void addr_port_set(struct ctl_addr *a, int port)
{
	((struct sockaddr_in *)&a->sa)->sin_port = htons((uint16_t)port);
}

static bool listen_has_ipv4(const struct ctl_addr a[], int n)
{
	while (n--)
		if (a[n].sa.ss_family == AF_INET)
			return true;
	return false;
}

static int listen_fail(int err, const struct ctl_addr *a, const char *addr)
{
	const char *why = strerror(-err);

	if (err == -EADDRINUSE && !addr_port(a))
		why = "all ports of net.ipv4.ip_local_port_range are in use there, or were within the "
		      "last minute (see ss -tan): name one outside of it, or make it wider";
	else if (err == -EADDRINUSE)
		why = "another program does (see ss -ltnp): stop it, or choose another port";
	else if (err == -EACCES)
		why = "ports below 1024 need CAP_NET_BIND_SERVICE: choose a higher one";
	else if (err == -EADDRNOTAVAIL)
		why = "no interface here has that address (see ip addr): take 127.0.0.1, or one "
		      "that is there";
	return gx_fail(err, "cannot listen at %s: %s", addr, why);
}

/* @only6: the list has IPv4 addresses itself, and [::] would take theirs. Return: a listening socket, -errno. */
static int listen_socket(const struct ctl_addr *a, int only6)
{
	int fd = socket(a->sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1,
	    ret;

	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (only6 && a->sa.ss_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only6, sizeof(only6));
	if (bind(fd, (const struct sockaddr *)&a->sa, a->len) || listen(fd, CTL_BACKLOG)) {
		ret = -errno;
		close(fd);
		return ret;
	}
	return gx_fd_own(fd);
}

/* The socket's port number; -errno. */
static int listen_port(int fd)
{
	struct sockaddr_storage sa;
	socklen_t len = sizeof(sa);

	if (getsockname(fd, (struct sockaddr *)&sa, &len))
		return -errno;
	return ntohs(sa.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&sa)->sin6_port
					      : ((struct sockaddr_in *)&sa)->sin_port);
}

/* @opts: NULL: for gx_listen(). *head: of the first address; NULL: this is it. */
static int listen_start(struct ctl *ctl, int fd, const struct gx_listen_opts *opts,
			struct gx_listener **head)
{
	struct gx_listener *l = calloc(1, sizeof(*l));
	int ret;

	if (!l) {
		gx_fd_close(fd);
		return gx_fail(-ENOMEM, "no memory for a listener");
	}
	l->fd = fd;
	l->room = ctl_frame_room;
	l->accepted = ctl_frame_accepted;
	l->turn_away = ctl_frame_turn_away;
	if (opts) {
		l->held = true;
		l->ask = opts->ask;
		l->user = opts->user;
		l->data_len = (uint8_t)opts->data_len;
		if (l->data_len)
			memcpy(l->data, opts->data, l->data_len);
	}
	if (!*head)
		*head = l; /* before a callback can ask whose it is */
	l->head = *head;
	ret = ctl_listener_start(ctl, l);
	if (ret && *head == l)
		*head = NULL;
	return ret ? gx_fail(ret, "cannot listen: %s", strerror(-ret)) : 0;
}

/* A server needs some descriptors for its clients. Better fail now than at each client. */
static int listen_fds_check(void)
{
	int fds[CTL_FDS_FREE], err = 0;
	struct rlimit lim = {0};
	unsigned n = 0;

	while (n < CTL_FDS_FREE && !err) {
		fds[n] = eventfd(0, EFD_CLOEXEC);
		err = fds[n] < 0 ? -errno : 0;
		n += !err;
	}
	for (unsigned i = 0; i < n; i++)
		close(fds[i]);
	getrlimit(RLIMIT_NOFILE, &lim);
	if (err)
		gx_fail(err,
			"%u descriptors are left of %llu, and a server needs %u for itself and "
			"its clients: raise ulimit -n",
			n, (unsigned long long)lim.rlim_cur, CTL_FDS_FREE);
	return err;
}

/* The Unix socket shows the user of a client of this host. Without it the server would refuse them
 * all. */
static int listen_unix(struct gx *gx)
{
	int ret = ctl_fd_listen(gx->ctl);

	if (!ret || gx->opts.insecure)
		return 0;
	return gx_fail(ret, "no Unix socket, by which clients of this host show whose they are: %s",
		       strerror(-ret));
}

/* The sockets of one gx_listen(). */
struct listen_socks {
	int fd[CTL_ADDRS_MAX];
	struct ctl_addr addr[CTL_ADDRS_MAX];
	int nr, port;
	bool far; /* one is not on loopback */
};

static void listen_socks_close(struct listen_socks *s)
{
	while (s->nr)
		gx_fd_close(s->fd[--s->nr]);
}

/* All addresses listen at one port, the first one's. One that is not of this host is left out, if another one
 * is, with a warning, but for [::] without IPv6. Return: 0, -errno with gx_error(), which names the address. */
static int listen_all(struct ctl_addr a[], int n, struct listen_socks *s)
{
	char name[96], left_out[96] = "";
	int fd = -EINVAL, only6 = listen_has_ipv4(a, n);

	for (int i = 0; i < n; i++) {
		if (s->nr)
			addr_port_set(&a[i], s->port);
		ctl_addr_name(&a[i].sa, name, sizeof(name));
		fd = listen_socket(&a[i], only6);
		if ((fd == -EADDRNOTAVAIL || fd == -EAFNOSUPPORT) && (s->nr || i + 1 < n)) {
			if (strncmp(name, "[::]:", 5)) /* every address, of which IPv6 has none */
				strcpy(left_out, name);
			continue;
		}
		if (fd < 0)
			return listen_fail(fd, &a[i], name);
		s->addr[s->nr] = a[i];
		s->fd[s->nr++] = fd;
		if (s->nr == 1)
			s->port = listen_port(fd);
		if (s->port < 0)
			return listen_fail(s->port, &a[i], name);
		addr_port_set(&s->addr[s->nr - 1], s->port);
		s->far |= !ctl_addr_is_loopback(&a[i].sa);
	}
	if (left_out[0])
		gx_warn("no interface of this host has %s: it listens at its other address%s",
			left_out, s->nr > 1 ? "es" : "");
	return s->nr ? 0 : listen_fail(fd, &a[n - 1], name);
}

/* Without a number the port is one that is free at the first address, and perhaps not at the others. */
static int listen_open(const char *addr, struct listen_socks *s)
{
	struct ctl_addr a[CTL_ADDRS_MAX];
	int n = ctl_addr_resolve(addr, true, CTL_NAME_NS, a), ret = n < 0 ? n : -EADDRINUSE;
	bool any = n > 0 && !addr_port(&a[0]);

	for (int i = 1; i < n; i++)
		if (addr_port(&a[i]) != addr_port(&a[0]))
			return gx_fail(
				-EINVAL,
				"%.160s names several ports, and its addresses listen at one: give "
				"all the same number",
				addr);
	for (unsigned i = 0; i < LISTEN_TRIES && ret == -EADDRINUSE && (any || !i); i++) {
		listen_socks_close(s);
		for (int k = 0; k < n && any; k++)
			addr_port_set(&a[k], 0);
		ret = listen_all(a, n, s);
	}
	return ret;
}

/* Return: 0, -errno with gx_error(); then nothing listens. */
static int listen_begin(struct gx *gx, const char *addr, const struct gx_listen_opts *opts,
			struct gx_listener **head, struct listen_socks *s)
{
	int ret = listen_fds_check(), i = 0;

	*head = NULL;
	if (!ret)
		ret = listen_open(addr, s);
	if (!ret && s->far && !gx->opts.insecure && !auth_serves(gx))
		gx_warn("listening at %s, but only peers on this host's loopback are served: this end "
			"has no keys (gx_auth_opts.key_files); set gx_opts.insecure to serve others in "
			"clear",
			addr);
	if (!ret)
		ret = listen_unix(gx);
	if (ret) {
		listen_socks_close(s);
		return ret;
	}
	for (; i < s->nr && !ret; i++)
		ret = listen_start(gx->ctl, s->fd[i], opts, head);
	while (i < s->nr)
		gx_fd_close(s->fd[i++]);
	if (ret && *head) {
		ctl_listener_close(*head);
		*head = NULL;
	}
	return ret;
}

int ctl_listen_with(struct gx *gx, const char *addr, const struct gx_listen_opts *opts,
		    struct gx_listener **out)
{
	struct gx_listener *head;
	struct listen_socks s = {.nr = 0};
	int ret = listen_begin(gx, addr, opts, opts ? out : &head, &s);

	return ret ? ret : s.port;
}

int ctl_listen_list(struct gx *gx, const char *addr, char *list, size_t room)
{
	struct gx_listener *head;
	struct listen_socks s = {.nr = 0};
	int ret = listen_begin(gx, addr, NULL, &head, &s);

	if (ret)
		return ret;
	ctl_addr_list(s.addr, s.nr, list, room);
	return s.port;
}

void ctl_listen_stop(struct gx *gx)
{
	ctl_settle(gx->ctl, stop_run, gx->ctl);
}

int ctl_listen(struct gx *gx, const char *addr)
{
	return ctl_listen_with(gx, addr, NULL, NULL);
}

struct listener_end {
	struct ctl *ctl;
	struct gx_listener *l;
	bool begun;
};

/* Return: 0: it is gone. */
static int listener_end_run(void *arg)
{
	struct listener_end *end = arg;

	for (struct gx_listener *l = end->ctl->listeners, *next; l && !end->begun; l = next) {
		next = l->next;
		if (l->head == end->l)
			listener_close(l);
	}
	end->begun = true;
	for (const struct gx_listener *l = end->ctl->listeners; l; l = l->next)
		if (l->head == end->l && l->closing)
			return 1;
	return 0;
}

void ctl_listener_close(struct gx_listener *l)
{
	struct listener_end end = {.ctl = l->ctl, .l = l};

	ctl_settle(end.ctl, listener_end_run, &end);
}

/* ---- Connect ---- */

/* Keep the addresses that gx may talk to: without a key loopback alone. Return: 0, -errno with
 * gx_error(). */
static int connect_addrs(struct ctl_conn *cc, const char *addr)
{
	struct ctl_addr all[CTL_ADDRS_MAX];
	int n = ctl_addr_resolve(addr, false, cc->dial.timeout_ns, all);

	if (n < 0)
		return n;
	for (int i = 0; i < n; i++)
		if (cc->ctl->gx->opts.insecure || auth_shows(cc->ctl->gx) ||
		    ctl_addr_is_loopback(&all[i].sa))
			cc->dial.addrs[cc->dial.nr_addrs++] = all[i];
	if (!cc->dial.nr_addrs)
		return gx_fail(-EPERM,
			       "%.90s is not on loopback, and this end has no key: name one of the "
			       "server's in gx_auth_opts.key_file, or set gx_opts.insecure at both "
			       "ends to send in clear",
			       addr);
	ctl_addr_order(cc->dial.addrs, cc->dial.nr_addrs, strchr(addr, ','));
	cc->dial.tries = ctl_dial_tries(cc->dial.nr_addrs);
	return cc->dial.tries ? 0 : gx_fail(-ENOMEM, "out of memory");
}

/* The user may only want a server of this name by a key. */
static int connect_peer(struct ctl_conn *cc, const char *name)
{
	int n = name ? snprintf(cc->dial.peer, sizeof(cc->dial.peer), "%s", name) : 1;

	if (!name || (n > 0 && n < (int)sizeof(cc->dial.peer) && auth_shows(cc->ctl->gx)))
		return 0;
	return gx_fail(-EINVAL, "gx_connect_opts.peer has 1 to %d bytes, and goes with a key",
		       GX_PEER_NAME_MAX);
}

static bool port_is(const struct gx_port_slot *s, const char *name, size_t len)
{
	return (!strncmp(name, s->device, len) && !s->device[len]) ||
	       (!strncmp(name, s->name, len) && !s->name[len]);
}

/* The first of our ports with that name that is not wanted yet. Return: its index; -1. */
static int connect_port_find(const struct ctl_conn *cc, const char *name, size_t len)
{
	const struct gx *gx = cc->ctl->gx;

	for (unsigned i = 0; i < gx->nr_ports; i++)
		if (port_is(&gx->port[i], name, len) &&
		    !memchr(cc->dial.wanted, (int)i, cc->dial.nr_wanted))
			return (int)i;
	return -1;
}

/* The user may only force ports of this context. */
static int connect_port(struct ctl_conn *cc, const struct gx_connect_opts *o)
{
	const struct gx *gx = cc->ctl->gx;
	char text[GX_OPTION_MAX];

	for (unsigned n = 0; n < o->nr_ports; n++) {
		const struct gx_port_name *p = &o->ports[n];
		size_t len = p->name ? core_port_text(p, text, sizeof(text)) : sizeof(text);
		int i = len < sizeof(text) ? connect_port_find(cc, text, len) : -1;

		if (i < 0 || (p->cc && (int)p->cc != (int)gx->port[i].port->cc) ||
		    (p->paths && p->paths != gx->port[i].port->spread))
			return gx_fail(-ENODEV,
				       "port %.64s is not opened here%s: name it in gx_opts.ports",
				       p->name ? text : "without a name",
				       cc->dial.nr_wanted ? ", or not so often" : "");
		if (cc->dial.nr_wanted && strcmp(gx->port[i].match, cc->dial.forced))
			return gx_fail(-EINVAL,
				       "ports %.64s and %.64s are of two kinds, and the lanes of a "
				       "connection take ports of one kind: name one of them",
				       cc->dial.forced, gx->port[i].match);
		if (!cc->dial.nr_wanted) {
			snprintf(cc->dial.forced, sizeof(cc->dial.forced), "%s", gx->port[i].match);
			cc->dial.forced_port = (unsigned)i;
		}
		cc->dial.wanted[cc->dial.nr_wanted++] = (uint8_t)i;
	}
	return 0;
}

static const struct gx_link *link_find(const char *name)
{
	for (unsigned l = 0; l < GX_LINKS; l++)
		if (!strcmp(gx_links[l]->name, name))
			return gx_links[l];
	return NULL;
}

/* "packet, local and tcp". */
static void link_names(char *buf, size_t room)
{
	struct gx_text text = {.buf = buf, .room = room};

	for (unsigned l = 0; l < GX_LINKS; l++)
		core_say(&text, "%s%s",
			 !l		    ? ""
			 : l + 1 < GX_LINKS ? ", "
					    : " and ",
			 gx_links[l]->name);
}

/* The user may only force a link that this end can take. */
static int connect_link(struct ctl_conn *cc, const char *name)
{
	const struct gx_link *link;
	char names[128];

	if (!name)
		return 0;
	link = link_find(name);
	link_names(names, sizeof(names));
	if (!link)
		return gx_fail(-EINVAL, "link '%.32s' is not known: there are %s", name, names);
	if (link->port == GX_LINK_PORT_NONE && cc->dial.forced[0])
		return gx_fail(-EINVAL, "link %s uses no port, and port %.64s is asked for", name,
			       cc->dial.forced);
	if (link->port != GX_LINK_PORT_NONE && !link->many_ports && cc->dial.nr_wanted > 1)
		return gx_fail(-EINVAL,
			       "link %s takes one port, and %u are asked for: name one of them",
			       name, cc->dial.nr_wanted);
	if (link->conn->may(cc->ctl->gx))
		return gx_fail(-ENODEV, "link %s cannot be had at this end: %s", name,
			       link->conn->may(cc->ctl->gx));
	if (link->port == GX_LINK_PORT_SHM && cc->dial.forced[0] && strcmp(cc->dial.forced, "shm"))
		return gx_fail(-EINVAL, "link %s goes with port shm, not with port %.64s", name,
			       cc->dial.forced);
	cc->dial.link = link;
	return 0;
}

static int connect_run(void *arg)
{
	struct ctl_conn *cc = arg, *other;
	struct ctl *ctl = cc->ctl;
	unsigned n = 0;

	for (other = ctl->conns; other; other = other->next)
		n++;
	if (ctl->closing || n >= CTL_CONNS_MAX)
		return ctl->closing ? -ECANCELED : -ENOSPC;
	cc->next = ctl->conns;
	ctl->conns = cc;
	cc->conn->ctl = cc;
	cc->key = auth_own(ctl->gx);
	ctl_frame_start(cc);
	return 0;
}

int ctl_connect(struct gx_conn *c, const char *addr, const struct gx_connect_opts *opts)
{
	struct gx *gx = c->gx;
	struct ctl_conn *cc = ctl_conn_new(gx->ctl, false);
	int ret;

	if (!cc)
		return gx_fail(-ENOMEM, "no memory for a connection");
	cc->conn = c;
	cc->dial.lanes_max = opts ? opts->lanes : 0;
	cc->data_len = opts ? (uint8_t)opts->data_len : 0;
	if (cc->data_len)
		memcpy(cc->data_out, opts->data, cc->data_len);
	cc->dial.timeout_ns = opts && opts->timeout_ns ? opts->timeout_ns : CTL_STEP_NS;
	/* With the look-up of its name. */
	cc->due_ns = gx_later_ns(gx_now_ns(), cc->dial.timeout_ns);
	snprintf(cc->name, sizeof(cc->name), "%s", addr);
	ret = core_connect_take(opts, &cc->dial.asked);
	if (opts && !ret)
		ret = connect_peer(cc, opts->peer);
	if (opts && !ret)
		ret = connect_port(cc, opts);
	if (!ret)
		ret = connect_link(cc, opts ? opts->link : NULL);
	if (!ret)
		ret = connect_addrs(cc, addr);
	if (ret)
		goto err_free;
	c->first_core = opts ? opts->first_core % gx->nr_cores : 0;
	snprintf(c->peer_name, sizeof(c->peer_name), "%s", cc->name);
	ret = gx_uring_run_wait(gx->uring, connect_run, cc);
	if (!ret)
		return 0;
	if (ret == -ENOSPC)
		gx_fail(ret,
			"there are %u connections, the most that a context has: close some, or open "
			"another context",
			CTL_CONNS_MAX);
	else
		gx_fail(ret, "the context is being closed");
err_free:
	ctl_conn_drop(cc);
	return ret;
}
