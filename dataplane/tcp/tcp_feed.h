/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A source of received bytes for a data socket of the tcp link, in place of recv(): the bytes lie
 * in memory of the source, as fragments. A fragment stays there until all who use it are done with
 * it; then release() may give its memory back to the kernel. So a copy by a GPU can read it.
 *
 *   pull()     the next bytes of the stream, as fragments in their order
 *   hold()     one more copy reads the fragment
 *   done()     one of its users has finished
 *   release()  in each turn: memory of fragments that nobody uses goes back
 *   end()      nothing more is pulled
 *   leave()    at the end of the socket's endpoint
 *
 * The source: devmem_feed.c. To write another one, fill struct tcp_feed_ops. The
 * polling core that turns the socket calls all but close, and no call of it blocks, allocates or
 * logs. tcp_frag.c takes the fragments.
 */
#ifndef GX_TCP_FEED_H
#define GX_TCP_FEED_H

#include "gx_internal/base.h"

#define TCP_FEED_FRAGS 64 /* fragments of one pull at most */

struct tcp_feed;

/* Bytes of the stream, all of them at @src, an address of the GPU as well as of the CPU. */
struct tcp_frag {
	const char *src;
	uint32_t len;  /* > 0 */
	uint32_t ref;  /* for hold() and done() */
	bool readable; /* the CPU may read them. Always where the feed is readable */
};

/* Every slot is set. */
struct tcp_feed_ops {
	const char *name; /* for messages */
	/* Read once, without waiting: at most @want_b bytes, at most @n fragments (@n is at least
	 * 2). Each has one reference, the caller's. Return: fragments; 0: nothing now, or too much
	 * waits for done() and release(); -errno: the stream has ended, and feed->why says how.
	 * -ESHUTDOWN: the peer has closed it. Fragments from before stay good. */
	int (*pull)(struct tcp_feed *f, uint64_t want_b, struct tcp_frag frags[], unsigned n);
	void (*hold)(struct tcp_feed *f, uint32_t ref);
	void (*done)(struct tcp_feed *f, uint32_t ref);
	/* Once a turn, also after the stream has ended. @idle: no byte came in this turn, so
	 * whatever there is should go back. Return: 0, or why nothing goes back any more; then
	 * pull() returns it too. */
	int (*release)(struct tcp_feed *f, bool idle);
	/* Fragments that are not done. While there are any, the socket must stay open: the memory
	 * that a copy reads would get other bytes. */
	uint32_t (*held)(const struct tcp_feed *f);
	/* The core's last call, when nothing is pulled any more: let go of what the feed shares with
	 * others of the core. Fragments that are held stay. */
	void (*leave)(struct tcp_feed *f);
	/* Control path, while the core may turn other sockets: held() is 0 or no GPU reads any more. The caller closes the socket next. */
	void (*close)(struct tcp_feed *f);
};

/* One source embeds it in its own struct, and sets the first group before the socket has it. */
struct tcp_feed {
	const struct tcp_feed_ops *ops;
	bool readable; /* frozen: the CPU may read every fragment, so headers may lie in the stream.
			  False: payload alone comes here */
	const char *why; /* of pull()'s error; static text */
	bool is_short;	 /* pull() gave nothing because too much waits for done() and release() */
	/* Control path, just before close(): for the owner; NULL: nothing. */
	void (*gone)(struct tcp_feed *f);
	void *owner;
	/* owner: tcp_frag.c, unless a field says otherwise */
	struct tcp_feed *next; /* ctl: of those that outlive their endpoint */
	int fd;		       /* likewise: its socket */
	uint32_t at, nr;       /* frag[at] is the next one to take, of nr */
	uint32_t off;	       /* bytes of frag[at] that are taken */
	struct tcp_frag frag[TCP_FEED_FRAGS];
};

/* The next fragment to take; NULL: none is there. */
static inline const struct tcp_frag *tcp_feed_frag(const struct tcp_feed *f)
{
	return f->at < f->nr ? &f->frag[f->at] : NULL;
}

/* That one is taken. */
static inline void tcp_feed_next(struct tcp_feed *f)
{
	f->ops->done(f, f->frag[f->at++].ref);
	f->off = 0;
}

/* -- tcp_feed.c: the life of feeds -- */

struct link_tcp;
struct tcp_ep;
struct tcp_sock;

/** tcp_feed_give() - Control path: socket @i reads from @f from now on, and owns it. */
void tcp_feed_give(struct tcp_ep *e, unsigned i, struct tcp_feed *f);
/** tcp_feed_drop() - Nobody takes the bytes that came and are not taken. */
void tcp_feed_drop(struct tcp_feed *f);
/** tcp_feed_close() - Control path: close @s with its feed. If a GPU may still read fragments, both
 * stay until tcp_feeds_end(). */
void tcp_feed_close(struct link_tcp *l, struct tcp_sock *s);
/** tcp_feeds_end() - Control path: no GPU copies any more. */
void tcp_feeds_end(struct link_tcp *l);

#endif
