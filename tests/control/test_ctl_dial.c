/* SPDX-License-Identifier: Apache-2.0 */
/* A client's way to its first socket: several addresses, one after another, and names. */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "control/ctl_hand.h"

/* ---- Name servers, in the place of the C library's ---- */

static sem_t slow_go, slow_gone; /* for "slow.test" */
static _Atomic unsigned nr_lookups;

static int real_lookup(const char *host, const char *port, const struct addrinfo *hints,
		       struct addrinfo **list)
{
	int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);

	*(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
	return real(host, port, hints, list);
}

/* "both.test" has three addresses, of which two are one. "slow.test" says nothing until slow_go. */
int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
		struct addrinfo **list)
{
	int ret;

	if (!host || (hints && hints->ai_flags & AI_NUMERICHOST) || !strstr(host, ".test"))
		return real_lookup(host, port, hints, list);
	atomic_fetch_add(&nr_lookups, 1);
	if (!strcmp(host, "slow.test")) {
		while (sem_wait(&slow_go))
			;
		sem_post(&slow_gone);
		return EAI_AGAIN;
	}
	ret = real_lookup("127.0.0.2", port, hints, list);
	if (!ret)
		ret = real_lookup("127.0.0.2", port, hints, &(*list)->ai_next);
	if (!ret)
		ret = real_lookup("127.0.0.1", port, hints, &(*list)->ai_next->ai_next);
	return ret;
}

/* ---- A hole: an address that says nothing ---- */

/* Its queue is full, so the kernel drops what comes. */
struct hole {
	int fd, in[64];
	unsigned nr;
	char addr[32];
};

static void hole_open(struct hole *h, const char *host)
{
	struct sockaddr_in sa = {.sin_family = AF_INET};
	socklen_t len = sizeof(sa);
	char name[48];

	h->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	inet_pton(AF_INET, host, &sa.sin_addr);
	assert_int_equal(bind(h->fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	assert_int_equal(listen(h->fd, 0), 0);
	assert_int_equal(getsockname(h->fd, (struct sockaddr *)&sa, &len), 0);
	ctl_addr_name((struct sockaddr_storage *)&sa, name, sizeof(name));
	snprintf(h->addr, sizeof(h->addr), "%.31s", name);
	for (h->nr = 0; h->nr < GX_ARRAY_SIZE(h->in); h->nr++) {
		h->in[h->nr] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		(void)connect(h->in[h->nr], (struct sockaddr *)&sa, sizeof(sa));
	}
}

static void hole_close(struct hole *h)
{
	while (h->nr)
		close(h->in[--h->nr]);
	close(h->fd);
}

/* ---- Tests ---- */

static void dial__next_when_refused(void **state)
{
	char addr[32], list[80];
	int port = server_listen(addr);

	snprintf(list, sizeof(list), "127.0.0.3:%d,%s", port, addr);
	both_up_check(list);
}

static int held_run(void *arg)
{
	const struct ctl_conn *cc = ((struct gx_conn *)arg)->ctl;

	return cc->dial.held(cc);
}

/* A silent address holds nobody up, and what is under way there is closed. */
static void dial__silence_is_overtaken(void **state)
{
	struct hole hole;
	char addr[32], list[80];
	struct gx_conn *c;

	server_listen(addr);
	hole_open(&hole, "127.0.0.3");
	snprintf(list, sizeof(list), "%s,%s", hole.addr, addr);
	c = both_up(list, NULL);
	for (unsigned i = 0; i < 2000 && gx_uring_run_wait(client->gx.uring, held_run, c); i++)
		sleep_ms(10);
	assert_false(gx_uring_run_wait(client->gx.uring, held_run, c));
	hole_close(&hole);
}

/* The first one that answers is taken, the others are not begun. */
static void dial__first_wins(void **state)
{
	char addr[32], other[32], list[80];
	int fd = raw_listen_at(other);

	server_listen(addr);
	snprintf(list, sizeof(list), "%s,%s", addr, other);
	both_up_check(list);
	assert_int_equal(poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 0), 0);
	close(fd);
}

static void dial__names_each(void **state)
{
	struct hole hole;
	char list[80], says[64];

	hole_open(&hole, "127.0.0.3");
	snprintf(list, sizeof(list), "127.0.0.4:9,%s", hole.addr);
	client_connect(list, &(struct gx_connect_opts){.timeout_ns = 600000000});
	wait_down(client, 1, -ETIMEDOUT, GX_REASON_SETUP_TIMEOUT);
	assert_says(client->text, "within 0.6 s: 127.0.0.4:9: nothing listens there; ");
	snprintf(says, sizeof(says), "%s: no answer", hole.addr);
	assert_says(client->text, says);
	hole_close(&hole);
	client_connect("127.0.0.4:9,127.0.0.5:9", NULL);
	wait_down(client, 2, -ECONNREFUSED, GX_REASON_NO_SERVER);
	assert_says(client->text, "127.0.0.4:9: nothing listens there; 127.0.0.5:9: nothing");
}

/* ---- What answers is of no use ---- */

/* At 127.0.0.@last. */
static int listen_at(unsigned last, char addr[32])
{
	struct sockaddr_in sa = {.sin_family = AF_INET};
	socklen_t len = sizeof(sa);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	sa.sin_addr.s_addr = htonl(0x7f000000 | last);
	assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
	assert_int_equal(listen(fd, 8), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&sa, &len), 0);
	snprintf(addr, 32, "127.0.0.%u:%u", last, ntohs(sa.sin_port));
	return fd;
}

/* Another program, that says @words, or nothing; then it closes. */
static void answer_once(int fd, const char *words)
{
	int peer = raw_accept(fd);

	if (words)
		assert_true(raw_send(peer, words, strlen(words)));
	close(peer);
}

/* It is left for the next address, which serves. The connection is called by that one. */
static void dial__useless_is_left(void **state)
{
	static const char *const words[] = {NULL, "HTTP/1.1 400 Bad Request\r\n\r\n"};
	char addr[32], other[32], list[80];
	int fd = listen_at(3, other);
	struct gx_conn *c;

	server_listen(addr);
	snprintf(list, sizeof(list), "%s,%s", other, addr);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(words); i++) {
		c = client_connect(list, NULL);
		answer_once(fd, words[i]);
		wait_up(client, i + 1);
		assert_string_equal(c->ctl->name, addr);
		assert_non_null(strstr(c->peer_name, addr));
	}
	close(fd);
}

/* What it says of itself is no reason to ask it again. */
static void dial__useless_says_canceled(void **state)
{
	const struct gx_hello_error e = {.err = -ECANCELED, .text = "not now"};
	uint8_t b[GX_HELLO_FRAME_MAX];
	char addr[32], other[32], list[80];
	int fd = listen_at(3, other), peer;

	server_listen(addr);
	snprintf(list, sizeof(list), "%s,%s", other, addr);
	client_connect(list, NULL);
	peer = raw_accept(fd);
	assert_true(raw_send(peer, b, gx_hello_error_put(b, &e)));
	wait_up(client, 1);
	assert_int_equal(poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 0), 0);
	close(peer);
	close(fd);
}

/* Its time is over now. */
static int expire_run(void *arg)
{
	struct ctl_conn *cc = ((struct gx_conn *)arg)->ctl;

	if (cc->state != CTL_HELLO)
		return 1;
	if (cc->due_ns >= cc->dial.end_ns) /* it has all of the time */
		return -1;
	cc->due_ns = 1;
	return 0;
}

/* One that says nothing has a share of the time, the next one the rest. */
static void dial__silent_answer_is_left(void **state)
{
	char addr[32], other[32], list[80];
	int fd = listen_at(3, other);
	struct gx_conn *c;
	int ret = 1;

	server_listen(addr);
	snprintf(list, sizeof(list), "%s,%s", other, addr);
	c = client_connect(list, &(struct gx_connect_opts){.timeout_ns = WAIT_S * 2000000000ull});
	for (unsigned i = 0; i < WAIT_S * 100 && ret == 1; i++) {
		ret = gx_uring_run_wait(client->gx.uring, expire_run, c);
		sleep_ms(10);
	}
	assert_int_equal(ret, 0);
	wait_up(client, 1);
	close(fd);
}

/* One whose server has another key. */
static void dial__other_key_is_left(void **state)
{
	static const uint8_t secret[AUTH_SECRET_B] = {7};
	struct fake *third = fake_open("third");
	char addr[32], other[32], list[80];
	int port = ctl_listen(&third->gx, "127.0.0.3:0");

	hand_keys();
	hand_key(&third->served, "kv", secret);
	snprintf(other, sizeof(other), "127.0.0.3:%d", port);
	server_listen(addr);
	snprintf(list, sizeof(list), "%s,%s", other, addr);
	both_up_check(list);
	snprintf(list, sizeof(list), "127.0.0.4:9,%s", other);
	client_connect(list, NULL);
	wait_down(client, 1, -EACCES, GX_REASON_AUTH);
	assert_says(client->text, "127.0.0.4:9: nothing listens there");
	assert_says(client->text, ": it takes another key");
	fake_close(third);
}

/* An address that this host has, too, is its own: the next one is the peer's. A list of its own alone is this process. */
static void dial__itself_is_left(void **state)
{
	int port;
	char addr[32], list[80];
	struct gx_conn *c;

	client->gx.id = 1;
	client->gx.opts.insecure = true;
	port = ctl_listen(&client->gx, "127.0.0.3:0");
	server_listen(addr);
	snprintf(list, sizeof(list), "127.0.0.3:%d,192.0.2.1:9,%s", port, addr);
	c = client_connect(list, NULL);
	wait_up(client, 1);
	assert_string_equal(c->ctl->name, addr);
	assert_int_not_equal(c->peer.id, client->gx.id);
}

/* All are of no use: each has its reason. */
static void dial__useless_all(void **state)
{
	char addr[2][32], other[32], list[160], says[192];
	int fd[2] = {listen_at(3, addr[0]), listen_at(4, addr[1])}, full = listen_at(6, other),
	    peer;
	const struct gx_hello_error e = {.err = -ENOSPC, .reason = GX_REASON_FULL};
	uint8_t b[GX_HELLO_FRAME_MAX];

	snprintf(list, sizeof(list), "127.0.0.5:9,%s,%s,%s", other, addr[0], addr[1]);
	client_connect(list, NULL);
	peer = raw_accept(full);
	assert_true(raw_send(peer, b, gx_hello_error_put(b, &e)));
	close(peer);
	answer_once(fd[0], NULL);
	answer_once(fd[1], "SSH-2.0-OpenSSH_9.2\r\n");
	wait_down(client, 1, -EPROTO, GX_REASON_PROTOCOL);
	assert_says(client->text, "cannot connect to any of its addresses: ");
	assert_says(client->text, "127.0.0.5:9: nothing listens there");
	snprintf(says, sizeof(says), "%s: full; %s: it closed the connection; %s: no gx answers",
		 other, addr[0], addr[1]);
	assert_says(client->text, says);
	close(full);
	close(fd[0]);
	close(fd[1]);
}

static int bye_run(void *arg);

/* The program closes while the next address is waited for. */
static void dial__useless_close(void **state)
{
	struct hole hole;
	char addr[32], list[80];
	int fd = listen_at(4, addr);
	struct gx_conn *c;

	hole_open(&hole, "127.0.0.3");
	snprintf(list, sizeof(list), "%s,%s", addr, hole.addr);
	for (unsigned i = 0; i < 3; i++) {
		c = client_connect(list, NULL);
		answer_once(fd, NULL);
		sleep_ms(i * 20);
		gx_uring_run_wait(client->gx.uring, bye_run, c);
	}
	wait_conns(client, 0);
	hole_close(&hole);
	close(fd);
}

/* One that another has overtaken has not failed: it is tried again when the other is of no use. */
static void dial__overtaken_is_tried_again(void **state)
{
	struct hole hole;
	char addr[32], list[80];
	int fd = listen_at(4, addr), peer;
	struct gx_conn *c;

	hole_open(&hole, "127.0.0.3");
	snprintf(list, sizeof(list), "%s,%s", hole.addr, addr);
	c = client_connect(list, &(struct gx_connect_opts){.timeout_ns = 2000000000ull});
	peer = raw_accept(fd);
	for (unsigned i = 0; i < 2000 && gx_uring_run_wait(client->gx.uring, held_run, c); i++)
		sleep_ms(10);
	close(peer);
	wait_down(client, 1, -ETIMEDOUT, GX_REASON_SETUP_TIMEOUT);
	hole_close(&hole);
	close(fd);
}

/* A time-out of UINT64_MAX is never, and no time that was long ago. */
static void dial__never_is_late(void **state)
{
	char addr[32];

	server_listen(addr);
	both_up(addr, &(struct gx_connect_opts){.timeout_ns = UINT64_MAX});
	assert_int_equal(gx_later_ns(5, UINT64_MAX), UINT64_MAX);
	assert_int_equal(gx_later_ns(5, UINT64_MAX - 5), UINT64_MAX);
	assert_int_equal(gx_later_ns(5, 7), 12);
}

static int bye_run(void *arg)
{
	struct gx_conn *c = arg;

	ctl_bye(c);
	c->user_closed = true;
	conn_down(c, GX_REASON_CLOSED, 0, "closed");
	return 0;
}

/* Closed while two tries are under way. */
static void dial__close(void **state)
{
	struct hole holes[2];
	char list[80];

	hole_open(&holes[0], "127.0.0.3");
	hole_open(&holes[1], "127.0.0.4");
	snprintf(list, sizeof(list), "%s,%s", holes[0].addr, holes[1].addr);
	for (unsigned i = 0; i < 3; i++) {
		struct gx_conn *c = client_connect(list, NULL);

		sleep_ms(i * 150);
		gx_uring_run_wait(client->gx.uring, bye_run, c);
	}
	wait_conns(client, 0);
	hole_close(&holes[0]);
	hole_close(&holes[1]);
}

/* A name is looked up once for all of its addresses. */
static void name__one_look_up(void **state)
{
	struct ctl_addr out[CTL_ADDRS_MAX];
	char addr[32], name[32];
	int port = server_listen(addr);

	nr_lookups = 0;
	assert_int_equal(ctl_addr_resolve("both.test:1", false, 1000000000ull * WAIT_S, out), 2);
	assert_int_equal(nr_lookups, 1);
	snprintf(name, sizeof(name), "both.test:%d", port); /* 127.0.0.2 refuses */
	both_up_check(name);
	assert_int_equal(nr_lookups, 2);
}

/* A name server that says nothing does not hold the caller. */
static void name__silence(void **state)
{
	struct gx_conn *c = client_conn();

	sem_init(&slow_go, 0, 0);
	sem_init(&slow_gone, 0, 0);
	assert_int_equal(
		ctl_connect(c, "slow.test:1", &(struct gx_connect_opts){.timeout_ns = 50000000}),
		-ETIMEDOUT);
	assert_says(gx_error(), "slow.test was not resolved in time");
	gx_uring_run_wait(client->gx.uring, bye_run, c);
	sem_post(&slow_go);
	while (sem_wait(&slow_gone))
		;
	sem_post(&slow_go); /* an answer in time is an error in words */
	c = client_conn();
	assert_int_equal(ctl_connect(c, "slow.test:1", NULL), -EINVAL);
	assert_says(gx_error(), "slow.test cannot be resolved: ");
	gx_uring_run_wait(client->gx.uring, bye_run, c);
}

/* Families in turn; what the peer lists by nearness, and this host's own last. */
static void order__table(void **state)
{
	static const struct {
		const char *list, *want;
		bool listed;
	} table[] = {
		{"10.9.9.1:1,10.9.9.2:1,[2001:db8::1]:1,[2001:db8::2]:1",
		 "10.9.9.1:1,[2001:db8::1]:1,10.9.9.2:1,[2001:db8::2]:1", false},
		{"[2001:db8::1]:1,[2001:db8::2]:1,10.9.9.1:1",
		 "[2001:db8::1]:1,10.9.9.1:1,[2001:db8::2]:1", false},
		{"127.0.0.1:1,203.0.113.1:1,127.0.0.9:1,203.0.113.2:1",
		 "127.0.0.9:1,203.0.113.1:1,203.0.113.2:1,127.0.0.1:1", true},
		{"127.0.0.1:1,203.0.113.1:1", "127.0.0.1:1,203.0.113.1:1", false},
		{"203.0.113.1:1,203.0.113.2:1,[::1]:1", "203.0.113.1:1,203.0.113.2:1,[::1]:1",
		 true},
	};
	struct ctl_addr out[CTL_ADDRS_MAX];
	char text[256], name[96];

	for (unsigned i = 0; i < GX_ARRAY_SIZE(table); i++) {
		int n = ctl_addr_resolve(table[i].list, true, 0, out);

		ctl_addr_order(out, (unsigned)n, table[i].listed);
		text[0] = 0;
		for (int k = 0; k < n; k++) {
			ctl_addr_name(&out[k].sa, name, sizeof(name));
			snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s",
				 k ? "," : "", name);
		}
		assert_string_equal(text, table[i].want);
	}
}

static const char *const two_nets[][2] = {{"10.1.0.5", "255.255.0.0"}, {"10.2.0.5", "255.255.0.0"}};
static bool has_two_nets;
static bool has_two_links;

/* fe80::@host of interface @scope. */
static struct ctl_addr link_local(unsigned host, unsigned scope)
{
	struct ctl_addr a = {.len = sizeof(struct sockaddr_in6)};
	struct sockaddr_in6 *sa = (struct sockaddr_in6 *)&a.sa;

	sa->sin6_family = AF_INET6;
	sa->sin6_scope_id = scope;
	sa->sin6_addr.s6_addr[0] = 0xfe;
	sa->sin6_addr.s6_addr[1] = 0x80;
	sa->sin6_addr.s6_addr[15] = (uint8_t)host;
	return a;
}

/* 5 on interface 1, and 6 on interface 2. */
static int links_fill(struct ifaddrs list[2])
{
	static struct sockaddr_in6 mask = {.sin6_family = AF_INET6};
	static struct ctl_addr own[2];

	memset(&mask.sin6_addr, 0xff, 8);
	for (unsigned i = 0; i < 2; i++) {
		own[i] = link_local(5 + i, 1 + i);
		list[i] = (struct ifaddrs){.ifa_next = i ? NULL : &list[1],
					   .ifa_flags = IFF_UP,
					   .ifa_addr = (struct sockaddr *)&own[i].sa,
					   .ifa_netmask = (struct sockaddr *)&mask};
	}
	return 0;
}

int getifaddrs(struct ifaddrs **out)
{
	static struct sockaddr_in sa[2][2];
	static struct ifaddrs list[2];
	int (*real)(struct ifaddrs **);

	*(void **)&real = dlsym(RTLD_NEXT, "getifaddrs");
	if (!has_two_nets)
		return real(out);
	*out = list;
	if (has_two_links)
		return links_fill(list);
	for (unsigned i = 0; i < 2; i++) {
		for (unsigned k = 0; k < 2; k++) {
			sa[i][k].sin_family = AF_INET;
			inet_pton(AF_INET, two_nets[i][k], &sa[i][k].sin_addr);
		}
		list[i] = (struct ifaddrs){.ifa_next = i ? NULL : &list[1],
					   .ifa_flags = IFF_UP,
					   .ifa_addr = (struct sockaddr *)&sa[i][0],
					   .ifa_netmask = (struct sockaddr *)&sa[i][1]};
	}
	return 0;
}

void freeifaddrs(struct ifaddrs *list)
{
	void (*real)(struct ifaddrs *);

	*(void **)&real = dlsym(RTLD_NEXT, "freeifaddrs");
	if (!has_two_nets)
		real(list);
}

/* A connection leaves from the context's address, but not into a network where that one is not. */
static void leaves__table(void **state)
{
	static const struct {
		const char *to;
		bool leaves;
	} table[] = {{"10.1.7.7:1", true},
		     {"10.2.7.7:1", false},
		     {"192.0.2.1:1", true},
		     {"127.0.0.1:1", false},
		     {"[2001:db8::1]:1", false}};
	struct ctl_addr own[CTL_ADDRS_MAX], to[CTL_ADDRS_MAX];

	assert_int_equal(ctl_addr_resolve("10.1.0.5:0", true, 0, own), 1);
	has_two_nets = true;
	for (unsigned i = 0; i < GX_ARRAY_SIZE(table); i++) {
		assert_int_equal(ctl_addr_resolve(table[i].to, true, 0, to), 1);
		if (ctl_addr_leaves(own, to) != table[i].leaves)
			fail_msg("%s", table[i].to);
	}
	assert_int_equal(ctl_addr_resolve("192.0.2.1:1,10.2.0.5:1,10.2.7.7:1", true, 0, to), 3);
	ctl_addr_order(to, 3, true);
	has_two_nets = false;
	assert_int_equal(((struct sockaddr_in *)&to[0].sa)->sin_addr.s_addr, inet_addr("10.2.7.7"));
	assert_int_equal(((struct sockaddr_in *)&to[2].sa)->sin_addr.s_addr, inet_addr("10.2.0.5"));
}

/* Each interface has the network fe80::/64, and it is not the same one. */
static void leaves__link_local(void **state)
{
	struct ctl_addr own = link_local(5, 1), same = link_local(9, 1), other = link_local(9, 2);
	struct ctl_addr list[] = {link_local(9, 3), link_local(5, 2), link_local(9, 2)};

	has_two_nets = has_two_links = true;
	assert_true(ctl_addr_leaves(&own, &same));
	assert_false(ctl_addr_leaves(&own, &other));
	ctl_addr_order(list, GX_ARRAY_SIZE(list), true);
	has_two_nets = has_two_links = false;
	/* In a network of ours; in none: 5 is ours on interface 1 alone. */
	assert_int_equal(((struct sockaddr_in6 *)&list[2].sa)->sin6_scope_id, 3);
}

/* ---- Listening ---- */

static void listen__all_addresses(void **state)
{
	struct gx_listener *l;
	char addr[64];
	int port = ctl_listen_with(&server->gx, "127.0.0.1:0,127.0.0.2:0",
				   &(struct gx_listen_opts){.size = sizeof(struct gx_listen_opts)},
				   &l);

	assert_true(port > 0);
	for (unsigned i = 1; i <= 2; i++) {
		snprintf(addr, sizeof(addr), "127.0.0.%u:%d", i, port);
		both_up(addr, NULL);
		wait_up(server, i);
		assert_ptr_equal(atomic_load(&server->up->listener), l);
	}
	ctl_listener_close(l);
	client_connect(addr, NULL);
	wait_down(client, 1, -ECONNREFUSED, GX_REASON_NO_SERVER);
}

static void listen__says_which(void **state)
{
	char taken[32], list[80], log[256] = "";
	int fd = raw_listen_at(taken); /* at 127.0.0.1 */
	const char *port = strchr(taken, ':');

	snprintf(list, sizeof(list), "127.0.0.2%s,127.0.0.1%s", port, port);
	assert_int_equal(ctl_listen(&server->gx, list), -EADDRINUSE);
	assert_says(gx_error(), taken);
	close(fd);
	gx_log_sink(log_keep, log);
	gx_log_level_set(GX_LOG_WARN);
	assert_true(ctl_listen(&server->gx, "192.0.2.1:0,127.0.0.1:0") > 0);
	gx_log_sink(NULL, NULL);
	assert_says(log, "192.0.2.1:0");
}

/* IPv4 and IPv6 of one port: [::] has no part of the other's. */
static void listen__both_families(void **state)
{
	static const char *const lists[] = {"0.0.0.0:%d,[::]:%d", "[::]:%d,0.0.0.0:%d"};
	char list[64], addr[32];

	for (unsigned i = 0; i < GX_ARRAY_SIZE(lists); i++) {
		int port;

		snprintf(list, sizeof(list), lists[i], 0, 0);
		port = ctl_listen(&server->gx, list);
		if (port < 0)
			fail_msg("%s: %s", list, gx_error());
		snprintf(addr, sizeof(addr), "127.0.0.1:%d", port);
		both_up(addr, NULL);
		snprintf(addr, sizeof(addr), "[::1]:%d", port);
		both_up(addr, NULL);
	}
}

static _Atomic bool no_ipv6;

int socket(int family, int type, int protocol)
{
	int (*real)(int, int, int);

	if (no_ipv6 && family == AF_INET6) {
		errno = EAFNOSUPPORT;
		return -1;
	}
	*(void **)&real = dlsym(RTLD_NEXT, "socket");
	return real(family, type, protocol);
}

/* A kernel without IPv6: [::] is left out in silence, as every address is what it asks for; any other one with a
 * warning. */
static void listen__without_ipv6(void **state)
{
	char log[256] = "", addr[32];
	int port, more, none;

	server->gx.opts.insecure = true; /* whose lack is another warning */
	no_ipv6 = true;
	gx_log_sink(log_keep, log);
	gx_log_level_set(GX_LOG_WARN);
	port = ctl_listen(&server->gx, "0.0.0.0:0,[::]:0");
	no_ipv6 = false;
	assert_true(port > 0);
	assert_string_equal(log, "");
	no_ipv6 = true;
	more = ctl_listen(&server->gx, "127.0.0.1:0,[::1]:0");
	none = ctl_listen(&server->gx, "[::]:0");
	no_ipv6 = false;
	gx_log_sink(NULL, NULL);
	assert_true(more > 0);
	assert_says(log, "[::1]:");
	assert_int_equal(none, -EAFNOSUPPORT);
	snprintf(addr, sizeof(addr), "127.0.0.1:%d", port);
	both_up(addr, NULL);
}

void *__interceptor_calloc(size_t n, size_t b) __attribute__((weak)); /* a sanitizer's */
void *__libc_calloc(size_t n, size_t b) __attribute__((weak));
static _Atomic int listeners_left = INT_MAX; /* that there is memory for */

void *fail_calloc(size_t n, size_t b) __asm__("calloc");
void *fail_calloc(size_t n, size_t b)
{
	if (b == sizeof(struct gx_listener) && listeners_left-- <= 0)
		return NULL;
	return (__interceptor_calloc ? __interceptor_calloc : __libc_calloc)(n, b);
}

/* It fails at its second address: the first one listens no more. */
static void listen__fails_at_the_second(void **state)
{
	const struct gx_listen_opts opts = {.size = sizeof(opts)};
	struct gx_listener *l = (void *)server;
	char taken[32], list[80];
	int fd = raw_listen_at(taken);

	close(fd); /* so the port is one that is free */
	snprintf(list, sizeof(list), "%s,127.0.0.2%s", taken, strchr(taken, ':'));
	for (unsigned with = 0; with < 2; with++) {
		listeners_left = 1;
		assert_int_equal(with ? ctl_listen_with(&server->gx, list, &opts, &l)
				      : ctl_listen(&server->gx, list),
				 -ENOMEM);
		listeners_left = INT_MAX;
		client_connect(taken, NULL);
		wait_down(client, with + 1, -ECONNREFUSED, GX_REASON_NO_SERVER);
	}
	assert_null(l);
}

static void listen__one_port(void **state)
{
	assert_int_equal(ctl_listen(&server->gx, "127.0.0.1:7501,127.0.0.2:7502"), -EINVAL);
	assert_says(gx_error(), "names several ports");
	assert_int_equal(ctl_listen(&server->gx, "127.0.0.1:0,127.0.0.2:7502"), -EINVAL);
}

/* The list that peers are told has what listens, and no more. */
static void listen__tells_what_listens(void **state)
{
	char list[128], want[64], small[24];
	int port = ctl_listen_list(&server->gx, "192.0.2.1:0,127.0.0.1:0,127.0.0.2:0", list,
				   sizeof(list));

	assert_true(port > 0);
	snprintf(want, sizeof(want), "127.0.0.1:%d,127.0.0.2:%d", port, port);
	assert_string_equal(list, want);
	port = ctl_listen_list(&server->gx, "127.0.0.1:0,127.0.0.2:0", small, sizeof(small));
	snprintf(want, sizeof(want), "127.0.0.1:%d", port);
	assert_string_equal(small, want);
}

/* A list has eight. A name may have more: the first ones are taken. */
static void list__nine(void **state)
{
	struct ctl_addr out[CTL_ADDRS_MAX];
	char list[256] = "", log[256] = "";

	for (unsigned i = 1; i <= 9; i++)
		snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s127.0.1.%u:1",
			 i > 1 ? "," : "", i);
	assert_int_equal(ctl_addr_resolve(list, false, 0, out), -E2BIG);
	assert_says(gx_error(), "127.0.1.9:1: a list has 8 addresses at most");
	*strrchr(list, ',') = 0;
	assert_int_equal(ctl_addr_resolve(list, false, 0, out), 8);
	*strrchr(list, ',') = 0;
	strcat(list, ",both.test:1");
	gx_log_sink(log_keep, log);
	gx_log_level_set(GX_LOG_WARN);
	assert_int_equal(ctl_addr_resolve(list, false, 1000000000ull * WAIT_S, out), 8);
	gx_log_sink(NULL, NULL);
	assert_says(log, "both.test:1 has more than 8 addresses");
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		TEST(dial__next_when_refused),
		TEST(dial__silence_is_overtaken),
		TEST(dial__first_wins),
		TEST(dial__names_each),
		TEST(dial__close),
		TEST(dial__useless_is_left),
		TEST(dial__useless_says_canceled),
		TEST(dial__silent_answer_is_left),
		TEST(dial__other_key_is_left),
		TEST(dial__itself_is_left),
		TEST(dial__useless_all),
		TEST(dial__useless_close),
		TEST(dial__overtaken_is_tried_again),
		TEST(dial__never_is_late),
		TEST(listen__both_families),
		TEST(listen__without_ipv6),
		TEST(listen__fails_at_the_second),
		TEST(listen__one_port),
		TEST(listen__tells_what_listens),
		TEST(list__nine),
		TEST(name__one_look_up),
		TEST(name__silence),
		TEST(order__table),
		TEST(listen__all_addresses),
		TEST(listen__says_which),
		TEST(leaves__table),
		TEST(leaves__link_local),
	};

	return rig_run("ctl_dial", tests, GX_ARRAY_SIZE(tests));
}
