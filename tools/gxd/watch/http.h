/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small HTTP server for scrapers: GET of a few pages, one request a connection. Whoever says nothing,
 * or reads slowly, costs a place for some seconds, and loses it earlier if others come. One thread.
 */
#ifndef GXD_HTTP_H
#define GXD_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTTP_CLIENTS_MAX 32
#define HTTP_HEAD_ROOM	 256		/* bytes in front of a page, for the head of the answer */
#define HTTP_ASK_MAX	 4096		/* bytes of a request */
#define HTTP_ASK_NS	 5000000000ull	/* for a request */
#define HTTP_SEND_NS	 10000000000ull /* for its answer */

/* What all who ask for it at about the same time get. */
struct http_page {
	unsigned refs;
	char *text;	  /* malloc()ed: HTTP_HEAD_ROOM free bytes, then the page */
	size_t len;	  /* of the page */
	const char *type; /* Content-Type; static */
};

/** http_accepts() - Does a scraper that says Accept: @accept (NULL: nothing) take OpenMetrics 1.0 rather
 * than text 0.0.4? */
bool http_accepts_open(const char *accept);

struct http_ops {
	/* The page at @path, with a reference for the caller; NULL: there is none. */
	struct http_page *(*get)(void *arg, const char *path, bool open);
	void *arg;
};

/** http_listen() - At "HOST:PORT"; port 0: any. Return: a socket, -errno; *@port: which. */
int http_listen(const char *addr, int *port);
/** http_serve() - Until *@quit. @mask: signals that may come meanwhile (ppoll). Return: 0, -errno. */
int http_serve(int fd, const struct http_ops *ops, const volatile int *quit, const void *mask);
void http_page_put(struct http_page *p);

#endif
