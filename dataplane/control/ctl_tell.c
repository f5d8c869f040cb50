/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an end says of itself: its HELLO, and to whom its regions. ctl_hello.c and ctl.c call it, on the
 * control thread.
 */
#include "control/ctl.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Keep the regions of the HELLO in c->named: their descriptors follow in the same order. */
static void hello_regions_fill(struct gx_conn *c, struct gx_hello *h)
{
	struct gx *gx = c->gx;

	for (unsigned i = 0; i < GX_REGIONS_MAX; i++) {
		struct gx_mem *m = atomic_load_explicit(&gx->region[i], memory_order_acquire);
		struct gx_hello_region *r = &h->regions[h->nr_regions];
		unsigned rights = m ? core_rights(c, m) : 0;

		if (!m || (c->rights.limited && !(m->access & rights)))
			continue;
		*r = (struct gx_hello_region){
			.token = m->token,
			.len = m->len,
			.kind = (uint8_t)m->kind,
			.access = (uint8_t)(m->access & (rights | ~CORE_ACCESS)),
			.device = (uint16_t)m->device};
		snprintf(r->name, sizeof(r->name), "%s", m->name);
		/* Who maps memory may do with it what it likes. */
		for (unsigned l = 0; r->access == m->access && l < GX_LINKS; l++)
			gx_links[l]->mem->export(m, &r->export);
		if (export_is_fd(r->export.kind))
			c->named_fds |= 1ull << h->nr_regions;
		c->named[h->nr_regions++] = m;
	}
	c->nr_named = h->nr_regions;
}

/* What each link of ours says of itself. */
static void hello_links_fill(const struct ctl_conn *cc, struct gx_hello *h)
{
	const struct gx *gx = cc->ctl->gx;

	for (unsigned l = 0; l < GX_LINKS; l++) {
		if (gx_links[l]->conn->may(gx))
			continue;
		h->links |= 1u << l;
		h->offer[l].len = (uint16_t)gx_links[l]->conn->offer(gx, cc->server, h->offer[l].b);
	}
}

/* Within the host and in clear anybody may be at the other end, until the client has shown its user:
 * HELLO says nothing of this process, and once more, with its regions, when that is done. */
static bool hello_is_twice(const struct ctl_conn *cc)
{
	return cc->loopback && !cc->tls && !cc->ctl->gx->opts.insecure;
}

static void hello_fill(const struct ctl_conn *cc, struct gx_hello *h)
{
	bool bare = hello_is_twice(cc) && !cc->proven;
	struct gx *gx = cc->ctl->gx;

	*h = (struct gx_hello){.magic = GX_HELLO_MAGIC,
			       .version = GX_HELLO_VERSION,
			       .pid = bare ? 0 : (uint32_t)getpid(),
			       .uid = geteuid(),
			       .id = gx->id,
			       .nr_lanes = gx->nr_cores,
			       .chunk_b = gx->opts.packet->chunk_b,
			       .window = gx->opts.packet->window,
			       .integrity = 1u << GX_INTEGRITY_NONE | 1u << GX_INTEGRITY_CRC};
	if (cc->conn->secret)
		h->integrity |= 1u << GX_INTEGRITY_MAC | 1u << GX_INTEGRITY_GCM;
	memcpy(h->host_id, cc->ctl->host_id, sizeof(h->host_id));
	memcpy(h->nonce, cc->nonce, sizeof(h->nonce));
	h->data_len = cc->data_len;
	memcpy(h->data, cc->data_out, sizeof(h->data));
	if (cc->server)
		snprintf(h->unix_name, sizeof(h->unix_name), "%s", cc->ctl->unix_name);
	hello_links_fill(cc, h);
	ctl_path_ports(cc->ctl, h);
	if (!bare)
		hello_regions_fill(cc->conn, h);
}

int ctl_tell(struct ctl_conn *cc)
{
	struct gx_hello h;

	hello_fill(cc, &h);
	return ctl_conn_frame_send(cc, gx_hello_put(cc->ctl->frame, &h));
}

int ctl_tell_again(struct ctl_conn *cc)
{
	return hello_is_twice(cc) && cc->proven ? ctl_tell(cc) : 0;
}

void ctl_tell_name(struct ctl_conn *cc)
{
	struct gx_conn *c = cc->conn;
	char pid[16] = "";

	if (c->peer.pid)
		snprintf(pid, sizeof(pid), " pid %u", c->peer.pid);
	pthread_mutex_lock(&c->gx->wait_lock); /* gx_conn_wait() may be about to name it */
	snprintf(c->peer_name, sizeof(c->peer_name), "%s%s conn %" PRIu64, cc->name, pid, c->id);
	pthread_mutex_unlock(&c->gx->wait_lock);
}

int ctl_tell_take(struct ctl_conn *cc, const struct gx_hello *h)
{
	struct gx_hello *p = &cc->conn->peer;

	if (!h->pid)
		return gx_refuse(GX_REASON_PROTOCOL, -EPROTO, OUT_OF_TURN);
	p->pid = h->pid;
	p->nr_regions = h->nr_regions;
	memcpy(p->regions, h->regions, sizeof(p->regions));
	ctl_tell_name(cc);
	return 0;
}
