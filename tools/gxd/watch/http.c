// SPDX-License-Identifier: Apache-2.0
/*
 * The server of http.h: poll(), and a state of a few words for each client.
 */
#include "gxd/watch/http.h"

#include "common/opt.h"

#include <gx/gx.h>

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define HTTP_BACKLOG 128
#define HTTP_DRAIN_B                                                                               \
	65536 /* most of a request's rest that is read, so that no reset cuts the answer */
#define HTTP_ACCEPT_MAX 512 /* bytes of an Accept that are looked at */

struct client {
	int fd; /* -1: free */
	uint64_t due_ns;
	char ask[HTTP_ASK_MAX + 1];
	size_t ask_len;
	char head[HTTP_HEAD_ROOM]; /* an answer without a page */
	struct http_page *page;	   /* under way; NULL: none */
	const char *out;	   /* NULL: it has yet to ask */
	size_t out_len;
	bool sent; /* all: it may close */
};

struct http {
	int fd;
	const struct http_ops *ops;
	struct client clients[HTTP_CLIENTS_MAX];
};

void http_page_put(struct http_page *p)
{
	if (!p || --p->refs)
		return;
	free(p->text);
	free(p);
}

static void client_close(struct client *c)
{
	close(c->fd);
	c->fd = -1;
	http_page_put(c->page);
	c->page = NULL;
	c->out = NULL;
}

/* ---- What is asked for ---- */

/* q of a media range: the text after its ';'. 1000: 1, or none is said. */
static unsigned range_q(const char *p, const char *end)
{
	while (p < end) {
		const char *next = memchr(p, ';', (size_t)(end - p));

		next = next ? next : end;
		while (p < next && (*p == ' ' || *p == '\t'))
			p++;
		if (next - p > 2 && (*p == 'q' || *p == 'Q') && p[1] == '=') {
			char text[8] = "";
			double q;

			memcpy(text, p + 2,
			       (size_t)(next - p - 2) < 7 ? (size_t)(next - p - 2) : 7);
			q = strtod(text, NULL);
			return q >= 1 ? 1000 : q > 0 ? (unsigned)(q * 1000) : 0;
		}
		p = next + 1;
	}
	return 1000;
}

static bool range_is(const char *p, const char *end, const char *type)
{
	size_t len = strlen(type);

	return (size_t)(end - p) >= len && !strncasecmp(p, type, len) &&
	       (p + len == end || strchr("; \t", p[len]));
}

bool http_accepts_open(const char *accept)
{
	unsigned open = 0, text = 0;

	if (!accept)
		return false;
	for (const char *p = accept; *p;) {
		const char *end = p + strcspn(p, ","), *par;
		unsigned q;

		p += strspn(p, " \t");
		p = p > end ? end : p;
		par = memchr(p, ';', (size_t)(end - p));
		q = range_q(par ? par + 1 : end, end);
		if (range_is(p, end, "application/openmetrics-text"))
			open = q > open ? q : open;
		else if (range_is(p, end, "text/plain"))
			text = q > text ? q : text;
		p = *end ? end + 1 : end;
	}
	return open && open >= text;
}

/* The value of a header line; "" where there is none. The request ends with an empty line. */
static void header_get(const char *ask, const char *name, char *buf, size_t room)
{
	size_t len = strlen(name);

	*buf = 0;
	for (const char *p = strstr(ask, "\r\n"); p && p[2] != '\r'; p = strstr(p + 2, "\r\n")) {
		if (strncasecmp(p + 2, name, len) || p[2 + len] != ':')
			continue;
		p += 3 + len;
		p += strspn(p, " \t");
		snprintf(buf, room, "%.*s", (int)strcspn(p, "\r\n"), p);
		return;
	}
}

static void answer_say(struct client *c, const char *status, const char *text)
{
	int n = snprintf(c->head, sizeof(c->head),
			 "HTTP/1.1 %s\r\nContent-Type: text/plain\r\nContent-Length: %zu\r\n"
			 "Connection: close\r\n\r\n%s",
			 status, strlen(text), text);

	c->out = c->head;
	c->out_len = (size_t)n;
	c->due_ns = gx_now() + HTTP_SEND_NS;
}

static void answer_page(struct client *c, struct http_page *page)
{
	char head[HTTP_HEAD_ROOM];
	int n = snprintf(head, sizeof(head),
			 "HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
			 "Connection: close\r\n\r\n",
			 page->type, page->len);
	char *at = page->text + HTTP_HEAD_ROOM - n;

	memcpy(at, head, (size_t)n); /* the same for all who get it */
	c->page = page;
	c->out = at;
	c->out_len = (size_t)n + page->len;
	c->due_ns = gx_now() + HTTP_SEND_NS;
}

static void client_answer(struct http *h, struct client *c)
{
	char accept[HTTP_ACCEPT_MAX], path[128];
	struct http_page *page;
	size_t len;

	if (strncmp(c->ask, "GET ", 4)) {
		answer_say(c, "405 Method Not Allowed", "only GET\n");
		return;
	}
	len = strcspn(c->ask + 4, " ?\r\n");
	snprintf(path, sizeof(path), "%.*s", (int)(len < sizeof(path) ? len : 0), c->ask + 4);
	header_get(c->ask, "Accept", accept, sizeof(accept));
	page = h->ops->get(h->ops->arg, path, http_accepts_open(accept));
	if (page)
		answer_page(c, page);
	else
		answer_say(c, "404 Not Found", "there is /metrics\n");
}

/* ---- Clients ---- */

static void client_read(struct http *h, struct client *c)
{
	ssize_t n = recv(c->fd, c->ask + c->ask_len, HTTP_ASK_MAX - c->ask_len, 0);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		client_close(c);
		return;
	}
	c->ask_len += (size_t)n;
	c->ask[c->ask_len] = 0;
	if (strlen(c->ask) != c->ask_len)
		answer_say(c, "400 Bad Request", "no text\n");
	else if (strstr(c->ask, "\r\n\r\n"))
		client_answer(h, c);
	else if (c->ask_len == HTTP_ASK_MAX)
		answer_say(c, "431 Request Header Fields Too Large", "too long\n");
}

/* All is sent. The client closes when it has read all; further bytes of it are dropped. */
static void client_drain(struct client *c)
{
	char drop[4096];
	ssize_t n = 0;

	for (size_t b = 0; b < HTTP_DRAIN_B && (n = recv(c->fd, drop, sizeof(drop), 0)) > 0;)
		b += (size_t)n;
	if (n >= 0 || (errno != EAGAIN && errno != EINTR))
		client_close(c);
}

static void client_write(struct client *c)
{
	ssize_t n = send(c->fd, c->out, c->out_len, MSG_NOSIGNAL);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n < 0) {
		client_close(c);
		return;
	}
	c->out += n;
	c->out_len -= (size_t)n;
	if (c->out_len)
		return;
	c->sent = true;
	shutdown(c->fd, SHUT_WR);
	client_drain(c);
}

/* A place for one more: free, else of the one that has said nothing for longest, else of the one whose
 * time is over first. */
static struct client *client_place(struct http *h)
{
	struct client *best = NULL;

	for (unsigned i = 0; i < HTTP_CLIENTS_MAX; i++) {
		struct client *c = &h->clients[i];

		if (c->fd < 0)
			return c;
		if (!best || (!c->out && best->out) ||
		    (!c->out == !best->out && c->due_ns < best->due_ns))
			best = c;
	}
	client_close(best);
	return best;
}

static void client_accept(struct http *h)
{
	int fd = accept4(h->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	struct client *c;

	if (fd < 0 && (errno == EMFILE || errno == ENFILE))
		usleep(10000); /* the socket stays readable */
	if (fd < 0)
		return;
	c = client_place(h);
	c->fd = fd;
	c->ask_len = 0;
	c->sent = false;
	c->due_ns = gx_now() + HTTP_ASK_NS;
}

static void client_turn(struct http *h, struct client *c)
{
	if (!c->out)
		client_read(h, c);
	else if (c->sent)
		client_drain(c);
	if (c->fd >= 0 && c->out && !c->sent)
		client_write(c);
}

/* ---- The server ---- */

int http_listen(const char *addr, int *port)
{
	struct addrinfo hint = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list;
	const char *colon = strrchr(addr, ':');
	struct sockaddr_storage sa;
	socklen_t len = sizeof(sa);
	char host[128];
	int fd, on = 1, ret = 0;

	if (!opt_port_ok(addr) || (size_t)(colon - addr) >= sizeof(host) || colon == addr)
		return -EINVAL;
	snprintf(host, sizeof(host), "%.*s", (int)(colon - addr), addr);
	if (host[0] == '[' && host[strlen(host) - 1] == ']') {
		memmove(host, host + 1, strlen(host));
		host[strlen(host) - 1] = 0;
	}
	if (getaddrinfo(host, colon + 1, &hint, &list))
		return -EINVAL;
	fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) ||
	    bind(fd, list->ai_addr, list->ai_addrlen) || listen(fd, HTTP_BACKLOG) ||
	    getsockname(fd, (struct sockaddr *)&sa, &len))
		ret = -errno;
	freeaddrinfo(list);
	if (ret) {
		if (fd >= 0)
			close(fd);
		return ret;
	}
	*port = ntohs(sa.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&sa)->sin6_port
					       : ((struct sockaddr_in *)&sa)->sin_port);
	return fd;
}

/* Close whose time is over. Return: until the next one's is; NULL: nobody is there. */
static struct timespec *clients_due(struct http *h, struct timespec *ts)
{
	uint64_t now = gx_now(), next = UINT64_MAX;

	for (unsigned i = 0; i < HTTP_CLIENTS_MAX; i++) {
		struct client *c = &h->clients[i];

		if (c->fd >= 0 && now >= c->due_ns)
			client_close(c);
		if (c->fd >= 0 && c->due_ns < next)
			next = c->due_ns;
	}
	if (next == UINT64_MAX)
		return NULL;
	*ts = (struct timespec){.tv_sec = (time_t)((next - now) / 1000000000),
				.tv_nsec = (long)((next - now) % 1000000000)};
	return ts;
}

static void http_turn(struct http *h, const sigset_t *mask)
{
	struct pollfd fds[1 + HTTP_CLIENTS_MAX];
	struct client *of[1 + HTTP_CLIENTS_MAX];
	struct timespec ts, *wait = clients_due(h, &ts);
	nfds_t n = 0;

	fds[n++] = (struct pollfd){.fd = h->fd, .events = POLLIN};
	for (unsigned i = 0; i < HTTP_CLIENTS_MAX; i++) {
		struct client *c = &h->clients[i];

		if (c->fd < 0)
			continue;
		of[n] = c;
		fds[n++] = (struct pollfd){.fd = c->fd,
					   .events = c->out && !c->sent ? POLLOUT : POLLIN};
	}
	if (ppoll(fds, n, wait, mask) <= 0)
		return;
	for (nfds_t i = 1; i < n; i++)
		if (fds[i].revents)
			client_turn(h, of[i]);
	if (fds[0].revents)
		client_accept(h);
}

int http_serve(int fd, const struct http_ops *ops, const volatile int *quit, const void *mask)
{
	struct http *h = calloc(1, sizeof(*h));

	if (!h)
		return -ENOMEM;
	h->fd = fd;
	h->ops = ops;
	for (unsigned i = 0; i < HTTP_CLIENTS_MAX; i++)
		h->clients[i].fd = -1;
	while (!*quit)
		http_turn(h, mask);
	for (unsigned i = 0; i < HTTP_CLIENTS_MAX; i++)
		if (h->clients[i].fd >= 0)
			client_close(&h->clients[i]);
	free(h);
	return 0;
}
