/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two endpoints of the tcp link in one thread; see tcp_pair.h.
 */
#include "tcp/tcp_conn.h"
#include "tcp/tcp_gpu.h"
#include "tcp/tcp_pair.h"
#include "tcp/tcp_turn.h"
#include "submit/submit.h"
#include "auth/auth_data.h"
#include "gpu/late_gpu.h"
#include "kit/common_tcp.h"

#include <sys/socket.h>
#include <unistd.h>

/* ---- Sockets that give and take few bytes ---- */

size_t dribble_b;

static unsigned iov_cut(struct iovec *out, const struct iovec *iov, unsigned n)
{
	size_t left = dribble_b;
	unsigned k = 0;

	for (; k < n && left; k++) {
		out[k] = iov[k];
		out[k].iov_len = GX_MIN(out[k].iov_len, left);
		left -= out[k].iov_len;
	}
	return k;
}

static ssize_t dribble_send(int fd, const struct iovec *iov, unsigned n)
{
	struct iovec cut[TCP_OUT_IOVS * TCP_OUTS];

	return tcp_sys_kernel.send(fd, cut, iov_cut(cut, iov, n));
}

static ssize_t dribble_recv(int fd, const struct iovec *iov, unsigned n)
{
	struct iovec cut[2];

	return tcp_sys_kernel.recv(fd, cut, iov_cut(cut, iov, n));
}

void push_none(int fd)
{
}

const struct tcp_sys dribble = {
	.send = dribble_send, .recv = dribble_recv, .lead = dribble_send, .push = push_none};

/* ---- Ends ---- */

static void plain_poll(struct link_tcp *l, uint64_t now_ns)
{
	link_tcp_poll(l, now_ns);
}

const struct gx_link *pair_link = &gx_link_tcp;
void (*pair_poll)(struct link_tcp *l, uint64_t now_ns) = plain_poll;
unsigned pair_tx;
bool pair_is_tcp;
bool pair_sealed;

/* Both ends have the same, and those of two ways differ. */
static int pair_secret(const struct gx_conn *c, const struct auth_dir *dir, struct auth_secret *out)
{
	memset(out->b, 7, sizeof(out->b));
	out->b[0] = dir->kind;
	out->b[1] = dir->dir;
	out->b[2] = (uint8_t)dir->lane;
	return 0;
}

static void side_open(struct side *s, unsigned nr_socks, const int fds[])
{
	struct gx_hello_lane lane = {0};
	struct gx_ep *ep;

	s->gx = aligned_alloc(GX_CACHE_LINE, GX_ALIGN_UP(sizeof(*s->gx), GX_CACHE_LINE));
	s->core = aligned_alloc(GX_CACHE_LINE, GX_ALIGN_UP(sizeof(*s->core), GX_CACHE_LINE));
	assert_true(s->gx && s->core);
	memset(s->gx, 0, sizeof(*s->gx));
	memset(s->core, 0, sizeof(*s->core));
	core_groups_point(&s->gx->opts, &s->gx->groups);
	s->gx->groups.packet.chunk_b = CHUNK_B;
	s->gx->groups.gpu.timeout_ns = GPU_TIMEOUT_NS;
	s->core->gx = s->gx;
	s->core->comps = calloc(GX_COMPS_MAX, sizeof(*s->core->comps));
	assert_int_equal(submit_core_open(s->core), 0);
	s->gx->groups.nic.tx = pair_tx;
	assert_int_equal(pair_link->core->open(s->core), 0);
	s->mem = (struct gx_mem){.gx = s->gx,
				 .addr = malloc(MEM_B),
				 .len = MEM_B,
				 .access = GX_ACCESS_PUT | GX_ACCESS_GET,
				 .token = TOKEN};
	assert_non_null(s->mem.addr);
	memset(s->mem.addr, POISON, MEM_B);
	s->gx->region = calloc(GX_KEYS_MAX, sizeof(s->gx->region[0]));
	assert_non_null(s->gx->region);
	atomic_store(&s->gx->region[0], &s->mem);
	s->conn.gx = s->gx;
	s->conn.secret = pair_sealed ? pair_secret : NULL;
	s->conn.agreed = (struct gx_hello_lanes){
		.chunk_b = CHUNK_B, .window = WINDOW, .peer_timeout_ns = 5000 * MS};
	assert_int_equal(tcp_conn_open(&s->conn, 1, nr_socks), 0);
	for (unsigned i = 0; i < nr_socks; i++)
		assert_int_equal(gx_socks_add(&s->conn, 0, i, fds[i]), 0);
	assert_true(gx_socks_are_whole(&s->conn));
	ep = gx_link_tcp_ops.ep_new();
	assert_non_null(ep);
	ep->conn = &s->conn;
	ep->core = s->core;
	ep->ops = &gx_link_tcp_ops;
	s->e = tcp_of(ep);
	assert_int_equal(ep->ops->ep_open(ep, &lane), 0);
	assert_int_equal(ep->ops->ep_connect(ep, &lane), 0);
	ep->ops->ep_attach(ep);
}

struct pair *pair_new(unsigned nr_socks)
{
	struct pair *p = calloc(1, sizeof(*p));
	int fds[2][TCP_SOCKS_MAX];

	assert_non_null(p);
	p->now_ns = MS;
	p->nr_socks = nr_socks;
	p->buf = calloc(1, MEM_B);
	assert_non_null(p->buf);
	for (unsigned i = 0; i < nr_socks; i++) {
		int sv[2];

		if (pair_is_tcp)
			common_tcp_pair(sv);
		else
			assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
		fds[0][i] = sv[0];
		fds[1][i] = sv[1];
	}
	p->side[1].conn.server = true;
	side_open(&p->side[0], nr_socks, fds[0]);
	side_open(&p->side[1], nr_socks, fds[1]);
	return p;
}

void pair_gpu(struct pair *p, unsigned side, uint64_t delay_ns)
{
	struct side *s = &p->side[side];

	assert_int_equal(late_gpu_open(delay_ns, &s->gpu), 0);
	s->gpu->device = 0;
	assert_int_equal(gx_arena_open(64 << 20, &s->gx->arena), 0);
	assert_int_equal(gx_arena_attach(s->gx->arena, s->gpu), 0);
	assert_int_equal(link_tcp_gpu(tcp_core(s->core), s->gpu), 0);
	tcp_core_gpu(s->core, 0);
	s->mem.kind = GX_MEM_CUDA;
	s->mem.gpu = s->gpu;
}

void more_open(struct pair *p, unsigned side, struct more *m)
{
	struct side *s = &p->side[side];
	struct gx_hello_lane lane = {0};
	struct gx_ep *ep;
	int sv[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
	m->fd = sv[0];
	m->conn.gx = s->gx;
	m->conn.agreed = s->conn.agreed;
	assert_int_equal(tcp_conn_open(&m->conn, 1, 1), 0);
	assert_int_equal(gx_socks_add(&m->conn, 0, 0, sv[1]), 0);
	ep = gx_link_tcp_ops.ep_new();
	assert_non_null(ep);
	ep->conn = &m->conn;
	ep->core = s->core;
	ep->ops = &gx_link_tcp_ops;
	m->e = tcp_of(ep);
	assert_int_equal(ep->ops->ep_open(ep, &lane), 0);
	assert_int_equal(ep->ops->ep_connect(ep, &lane), 0);
	ep->ops->ep_attach(ep);
}

void more_close(struct more *m)
{
	struct gx_ep *ep = &m->e->ep;

	ep->ops->ep_fail(ep, -ECONNRESET);
	assert_true(atomic_load(&ep->detached));
	ep->ops->ep_free(ep);
	tcp_conn_close(&m->conn);
	close(m->fd);
}

void side_take(struct side *s)
{
	struct gx_comp comp;

	while (common_poll(s->core, &comp, 1)) {
		s->nr_local += comp.kind == GX_COMP_LOCAL;
		if (comp.kind == GX_COMP_NOTIFY) {
			s->nr_notify++;
			s->note = comp;
		} else if (comp.kind == GX_COMP_DONE) {
			s->nr_done++;
			s->last = comp;
		}
	}
}

void side_turn(struct pair *p, unsigned side)
{
	pair_poll(tcp_core(p->side[side].core), p->now_ns);
	side_take(&p->side[side]);
}

void side_rest(const struct side *s)
{
	assert_int_equal(s->e->nr_ops, 0);
	assert_int_equal(s->e->rx.nr_in, 0);
	assert_int_equal(s->e->tx.nr_act, 0);
	assert_int_equal(s->e->match.gets_out, 0);
	assert_int_equal(s->e->rx.nr_held + s->e->tx.nr_fetch + s->e->tx.nr_staged, 0);
	assert_int_equal(s->e->nic.nr_out, 0);
	assert_int_equal(s->e->tx.mid_head - s->e->tx.mid_tail, TCP_MIDS);
	assert_int_equal(s->core->comps_due, 0);
	for (unsigned i = 0; i < TCP_SLOTS; i++)
		assert_false(s->e->match.slots[i].used);
	for (unsigned i = 0; i < s->e->nr_socks; i++)
		assert_true(!s->e->sock[i].out_b && !s->e->sock[i].sink.open &&
			    s->e->sock[i].pend_head == s->e->sock[i].pend_tail);
	assert_int_equal(atomic_load(&s->e->ep.fault), 0);
}

bool pair_is_at_rest(const struct pair *p)
{
	for (unsigned i = 0; i < 2; i++) {
		const struct tcp_ep *e = p->side[i].e;

		if (e->nr_ops || e->rx.nr_in || e->ctls.head != e->ctls.tail)
			return false;
		for (unsigned k = 0; k < e->nr_socks; k++)
			if (e->sock[k].out_b)
				return false;
	}
	return true;
}

static void side_close(struct pair *p, struct side *s)
{
	struct gx_ep *ep = &s->e->ep;

	ep->ops->ep_fail(ep, -ECONNRESET);
	for (unsigned i = 0; i < 20; i++) /* blocks come back, and sends end */
		pair_poll(tcp_core(s->core), p->now_ns += GPU_TIMEOUT_NS / 8);
	assert_true(atomic_load(&ep->detached));
	assert_int_equal(s->core->comps_due, 0);
	ep->ops->ep_free(ep);
	tcp_conn_close(&s->conn);
	assert_int_equal(tcp_core(s->core)->nr_live + tcp_core(s->core)->nr_eps, 0);
	pair_link->core->close(s->core);
	gx_arena_close(s->gx->arena);
	submit_core_close(s->core);
	gx_gpu_host_ops.close(s->gpu);
	free(s->core->comps);
	free(s->mem.addr);
	free(s->core);
	free(s->gx->region);
	free(s->gx);
}

void pair_free(struct pair *p)
{
	side_close(p, &p->side[0]);
	side_close(p, &p->side[1]);
	free(p->buf);
	free(p);
}

void pair_settle(struct pair *p)
{
	UNTIL(p, pair_is_at_rest(p));
	for (unsigned i = 0; i < 4; i++) /* what came by the last turn may want an answer */
		side_turn(p, i & 1);
	UNTIL(p, pair_is_at_rest(p));
}

void pair_done(struct pair *p)
{
	pair_settle(p);
	side_rest(&p->side[0]);
	side_rest(&p->side[1]);
	pair_free(p);
}

int side_post(struct pair *p, unsigned side, const struct gx_op *op)
{
	struct gx_ep *ep = &p->side[side].e->ep;
	int ret = ep->ops->post(ep, op, NULL);

	ep->ops->kick(ep);
	return ret;
}

void bytes_fill(char *at, uint64_t len, unsigned seed)
{
	for (uint64_t i = 0; i < len; i++)
		at[i] = (char)(i * 7 + i / 251 + seed);
}

struct gx_op op_of(enum gx_op_kind kind, void *addr, uint64_t len)
{
	return (struct gx_op){.kind = kind, .addr = addr, .len = len, .token = TOKEN, .user = 7};
}

int side_fault(const struct pair *p, unsigned side)
{
	return atomic_load(&p->side[side].e->ep.fault);
}
