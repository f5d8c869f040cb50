/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scripted kernel of devmem TCP; see devmem_script.h.
 */
#include "nic/devmem_script.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#define PATTERN	    65521 /* prime: a byte from elsewhere is another one */
#define RUBBISH	    0xdb
#define PAGE_B	    DEVMEM_PAGE_B
#define POOL_B	    (SCRIPT_PAGES * PAGE_B)
#define OTHERS_ID   99
#define MOST_RANGES 128 /* Linux's own words, not gx's */
#define MOST_TOKENS 1024

static struct script *the;
static char pattern[PATTERN + SCRIPT_FRAG_B];

uint64_t script_rnd(struct script *s)
{
	uint64_t x = s->rnd += 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static bool one_in(struct script *s, unsigned n)
{
	return script_rnd(s) % n == 0;
}

static uint32_t pool_b(const struct script *s)
{
	return s->nr_pages * PAGE_B;
}

uint32_t script_id(unsigned pool)
{
	return 7 + 2 * pool;
}

const char *script_bytes(unsigned sock, uint64_t pos)
{
	return pattern + (pos + sock * 7919) % PATTERN;
}

void script_open(struct script *s, uint64_t seed, char *pools, uint32_t nr_pages)
{
	memset(s, 0, sizeof(*s));
	s->rnd = seed;
	s->nr_pages = nr_pages;
	for (unsigned i = 0; i < PATTERN; i++)
		pattern[i] = (char)(script_rnd(s) >> 8);
	memcpy(pattern + PATTERN, pattern, SCRIPT_FRAG_B);
	for (unsigned i = 0; i < SCRIPT_POOLS; i++) {
		s->pool[i] = pools + (size_t)i * pool_b(s);
		s->nr_free[i] = nr_pages;
		memset(s->pool[i], RUBBISH, pool_b(s));
	}
	for (unsigned i = 0; i < SCRIPT_SOCKS; i++)
		s->sock[i].lowest = 1; /* Linux gives no token 0 */
	script_use(s);
}

void script_use(struct script *s)
{
	the = s;
}

unsigned script_held(const struct script *s)
{
	return SCRIPT_POOLS * s->nr_pages - s->nr_free[0] - s->nr_free[1];
}

/* -- the NIC -- */

static void page_get(struct script *s, unsigned pool, uint32_t page)
{
	s->nr_free[pool] -= !s->refs[pool][page]++;
}

static void page_put(struct script *s, unsigned pool, uint32_t page)
{
	s->nr_free[pool] += !--s->refs[pool][page];
}

/* A place for @len bytes: behind the last fragment, in its page or the next, or anywhere. */
static bool place(struct script *s, unsigned pool, uint32_t len, uint32_t *off)
{
	uint32_t end = s->last[pool], page = end / PAGE_B;

	if (!s->nr_free[pool])
		return false;
	if (end < pool_b(s) && end % PAGE_B && s->refs[pool][page] &&
	    end % PAGE_B + len <= PAGE_B && one_in(s, 3)) {
		*off = end;
		return true;
	}
	if (!(end % PAGE_B) && end < pool_b(s) && !s->refs[pool][page]) {
		*off = end;
		return true;
	}
	page = (uint32_t)(script_rnd(s) % s->nr_pages);
	while (s->refs[pool][page])
		page = page + 1 < s->nr_pages ? page + 1 : 0;
	*off = page * PAGE_B + (one_in(s, 2) ? 0 : (uint32_t)(script_rnd(s) % (PAGE_B + 1 - len)));
	return true;
}

static uint32_t frag_len(struct script *s)
{
	switch (script_rnd(s) % 4) {
	case 0:
		return 1 + (uint32_t)(script_rnd(s) % 64);
	case 1:
		return 1 + (uint32_t)(script_rnd(s) % SCRIPT_FRAG_B);
	case 2:
		return 1448;
	default:
		return SCRIPT_FRAG_B;
	}
}

/* What the stream has at its position. */
static const char *bytes_at(const struct script *s, unsigned sock)
{
	const struct script_sock *k = &s->sock[sock];

	return s->source ? k->bytes + k->at : script_bytes(sock, k->pos);
}

/* Return: bytes that there are of @len; 0: none, or -errno. */
static int bytes_get(struct script *s, unsigned sock, uint32_t len)
{
	s->sock[sock].at = 0;
	return s->source ? s->source(sock, s->sock[sock].bytes, len) : (int)len;
}

/* A fragment that the memory of no pool takes comes later. */
static bool frag_place(struct script *s, unsigned sock, struct script_frag *f, uint32_t len)
{
	f->pool = (uint8_t)(one_in(s, 8) ? 1 - sock % 2 : sock % 2);
	if (place(s, f->pool, len, &f->off))
		return true;
	s->nr_starved++;
	return false;
}

/* The next fragment of the stream. False: none comes, or there is no memory for one. */
static bool frag_next(struct script *s, unsigned sock)
{
	struct script_sock *k = &s->sock[sock];
	struct script_frag *f = &k->frag;
	uint32_t len = frag_len(s);
	int got;

	if (f->left)
		return true;
	if (s->is_dry || one_in(s, 40))
		return false;
	*f = (struct script_frag){.kind = FRAG_DEVICE};
	if (one_in(s, 20))
		f->kind = FRAG_LINEAR;
	else if (one_in(s, 40))
		f->kind = FRAG_PLAIN;
	else if (!frag_place(s, sock, f, len))
		return false;
	got = bytes_get(s, sock, len);
	if (got <= 0) {
		k->is_over = got < 0;
		return false;
	}
	f->left = (uint32_t)got;
	if (f->kind == FRAG_DEVICE) {
		page_get(s, f->pool, f->off / PAGE_B);
		memcpy(s->pool[f->pool] + f->off, bytes_at(s, sock), f->left);
		s->last[f->pool] = f->off + f->left;
	}
	s->nr_frags++;
	return true;
}

static void frag_end(struct script *s, struct script_frag *f)
{
	if (f->kind == FRAG_DEVICE)
		page_put(s, f->pool, f->off / PAGE_B);
	*f = (struct script_frag){0};
}

/* -- tokens -- */

/* The lowest free one, as Linux does. For every other 2,048 tokens now and then another one, because
 * that would be right too. */
static uint32_t token_get(struct script *s, struct script_sock *k)
{
	uint32_t t = k->lowest;

	while (t < SCRIPT_TOKENS && k->token[t].is_out)
		t++;
	k->lowest = t;
	if (k->given >> 11 & 1 && one_in(s, 6)) {
		t = 1 + (uint32_t)(script_rnd(s) % (SCRIPT_TOKENS - 1));
		while (k->token[t].is_out)
			t = t + 1 < SCRIPT_TOKENS ? t + 1 : 1;
	}
	assert(t < SCRIPT_TOKENS);
	return t;
}

static uint32_t token_out(struct script *s, struct script_sock *k, uint8_t pool, uint32_t off,
			  uint32_t len)
{
	uint32_t t = token_get(s, k);

	k->token[t] = (struct script_token){true, pool, off, len, k->given++};
	k->nr_out++;
	page_get(s, pool, off / PAGE_B);
	return t;
}

static bool token_back(struct script *s, struct script_sock *k, uint32_t t, bool in_order)
{
	struct script_token *tok = &k->token[t];

	if (!t || t >= SCRIPT_TOKENS || !tok->is_out) {
		s->nr_unknown++;
		return false;
	}
	s->nr_disorder += in_order && tok->order != k->back++;
	memset(s->pool[tok->pool] + tok->off, RUBBISH, tok->len);
	page_put(s, tok->pool, tok->off / PAGE_B);
	tok->is_out = false;
	k->nr_out--;
	k->lowest = GX_MIN(k->lowest, t);
	return true;
}

void script_close(struct script *s, unsigned sock)
{
	struct script_sock *k = &s->sock[sock];

	for (uint32_t t = 1; t < SCRIPT_TOKENS && k->nr_out; t++)
		if (k->token[t].is_out)
			token_back(s, k, t, false);
	if (k->frag.left)
		frag_end(s, &k->frag);
	k->pos = k->given = k->back = k->nr_lost = 0;
}

/* -- recvmsg() -- */

struct cursor {
	struct msghdr *msg;
	char *ctl;
	unsigned room, n; /* messages */
	size_t cap, got;
	struct iovec *iov;
	size_t at;  /* in *iov */
	char *last; /* message, and whether it has a token */
	bool is_token;
};

static void cur_copy(struct cursor *c, const char *b, uint32_t len)
{
	while (len) {
		size_t n = GX_MIN((size_t)len, c->iov->iov_len - c->at);

		memcpy((char *)c->iov->iov_base + c->at, b, n);
		b += n;
		len -= (uint32_t)n;
		c->at += n;
		if (c->at == c->iov->iov_len) {
			c->iov++;
			c->at = 0;
		}
	}
}

static void cur_tell(struct cursor *c, int type, const struct devmem_cmsg *m)
{
	struct cmsghdr h = {
		.cmsg_len = CMSG_LEN(sizeof(*m)), .cmsg_level = SOL_SOCKET, .cmsg_type = type};

	c->last = c->ctl;
	c->is_token = type == DEVMEM_DMABUF;
	memcpy(c->ctl, &h, sizeof(h));
	memcpy(c->ctl + sizeof(h), m, sizeof(*m));
	c->ctl += DEVMEM_CMSG_B;
	c->n++;
}

/* Some of the fragment, or all. */
static void cur_take(struct script *s, unsigned sock, struct cursor *c)
{
	struct script_sock *k = &s->sock[sock];
	struct script_frag *f = &k->frag;
	uint32_t len = (uint32_t)GX_MIN((size_t)f->left, c->cap - c->got);
	struct devmem_cmsg m = {.len = len};

	if (f->kind == FRAG_DEVICE) {
		m.off = f->off;
		m.id = script_id(f->pool);
		m.token = token_out(s, k, f->pool, f->off, len);
	} else {
		cur_copy(c, bytes_at(s, sock), len);
	}
	if (f->kind != FRAG_PLAIN)
		cur_tell(c, f->kind == FRAG_DEVICE ? DEVMEM_DMABUF : DEVMEM_LINEAR, &m);
	c->got += len;
	k->pos += len;
	k->at += len;
	f->left -= len;
	if (f->left)
		f->off += len;
	else
		frag_end(s, f);
}

static void lie_about(struct script *s, struct cursor *c, enum script_fault how)
{
	struct cmsghdr h;
	struct devmem_cmsg m;

	memcpy(&h, c->last, sizeof(h));
	memcpy(&m, c->last + sizeof(h), sizeof(m));
	switch (how) {
	case SCRIPT_EMPTY:
		m.len = 0;
		break;
	case SCRIPT_BEYOND:
		m.off = pool_b(s) - m.len + 1;
		break;
	case SCRIPT_LONGER:
		m.len++;
		break;
	case SCRIPT_FOREIGN:
		m.id = OTHERS_ID;
		break;
	case SCRIPT_CUT:
		c->msg->msg_flags |= MSG_CTRUNC;
		c->ctl -= 8;
		h.cmsg_len -= 8;
		break;
	default:
		h.cmsg_len = 3;
	}
	memcpy(c->last, &h, sizeof(h));
	memcpy(c->last + sizeof(h), &m, sizeof(m));
}

static int fault_of_read(struct script *s, enum script_fault how)
{
	static const int err[] = {[SCRIPT_ETOOSMALL] = -DEVMEM_ETOOSMALL,
				  [SCRIPT_EFAULT] = -EFAULT,
				  [SCRIPT_ENODEV] = -ENODEV,
				  [SCRIPT_RESET] = -ECONNRESET,
				  [SCRIPT_CLOSED] = 0};

	s->nr_fault[how]++;
	s->next = SCRIPT_NONE;
	return err[how];
}

/* False: this read cannot show it. */
static bool lie(struct script *s, struct script_sock *k, struct cursor *c, enum script_fault how)
{
	if (!c->n)
		return false;
	if (how == SCRIPT_SHORTER) {
		s->nr_fault[how]++;
		c->got++;
		return c->got <= c->cap || (c->got--, s->nr_fault[how]--, false);
	}
	if (!c->is_token)
		return false;
	lie_about(s, c, how);
	k->nr_lost += how == SCRIPT_CUT || how == SCRIPT_NONSENSE;
	s->nr_fault[how]++;
	return true;
}

static int passing(struct script *s)
{
	static const int err[] = {-EAGAIN, -EINTR, -ENOMEM};

	return s->faults && one_in(s, 20) ? err[script_rnd(s) % GX_ARRAY_SIZE(err)] : 0;
}

static ssize_t script_recv(int fd, struct msghdr *msg)
{
	struct script *s = the;
	struct script_sock *k = &s->sock[fd];
	struct cursor c = {.msg = msg,
			   .ctl = msg->msg_control,
			   .room = (unsigned)(msg->msg_controllen / DEVMEM_CMSG_B),
			   .iov = msg->msg_iov};
	enum script_fault how = s->fatal_every && one_in(s, s->fatal_every)
					? 1 + script_rnd(s) % (SCRIPT_FAULTS - 1)
					: s->next;
	unsigned frags = 1 + (unsigned)(script_rnd(s) % 64);
	bool plain = false;
	int err = passing(s);

	if (err)
		return err;
	if (how && how <= SCRIPT_CLOSED)
		return fault_of_read(s, how);
	for (size_t i = 0; i < msg->msg_iovlen; i++)
		c.cap += msg->msg_iov[i].iov_len;
	msg->msg_flags = 0;
	while (c.got < c.cap && frags-- && frag_next(s, (unsigned)fd)) {
		bool is_plain = k->frag.kind == FRAG_PLAIN;

		if ((c.got && is_plain != plain) || (!is_plain && c.n == c.room))
			break;
		plain = is_plain;
		cur_take(s, (unsigned)fd, &c);
	}
	if (!c.got && k->is_over)
		return 0;
	if (!c.got)
		return c.room ? -EAGAIN : -DEVMEM_ETOOSMALL;
	if (how && lie(s, k, &c, how))
		s->next = SCRIPT_NONE;
	msg->msg_controllen = (size_t)(c.ctl - (char *)msg->msg_control);
	return (ssize_t)c.got;
}

/* -- setsockopt() -- */

static int script_release(int fd, const struct devmem_range range[], unsigned n)
{
	struct script *s = the;
	struct script_sock *k = &s->sock[fd];
	uint32_t sum = 0, left;
	int err = passing(s), done = 0;

	if (err)
		return err;
	for (unsigned i = 0; i < n; i++)
		sum += range[i].count;
	s->most_ranges = GX_MAX(s->most_ranges, n);
	s->most_tokens = GX_MAX(s->most_tokens, sum);
	if (!n || n > MOST_RANGES || sum > MOST_TOKENS) {
		s->nr_over++;
		return -EINVAL;
	}
	if (s->faults && n > 64 && one_in(s, 50))
		return -E2BIG;
	left = s->faults && one_in(s, 8) ? 1 + (uint32_t)(script_rnd(s) % sum) : sum;
	s->nr_short += left < sum;
	for (unsigned i = 0; i < n; i++)
		for (uint32_t j = 0; j < range[i].count && left; j++, left--)
			done += token_back(s, k, range[i].start + j, true);
	return done;
}

const struct devmem_sys script_sys = {
	.recv = script_recv, .claims = devmem_claims, .release = script_release};
