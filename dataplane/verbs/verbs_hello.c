/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs link's part of HELLO, CONNECT and ACCEPT, and its message for a queue pair that was reset;
 * little endian. Pure. A decoder refuses what its encoder could not write. Control thread.
 */
#include "core/le.h"
#include "verbs/verbs.h"

#include <errno.h>
#include <string.h>

#define HELLO_HEAD_B 8 /* u8 ports, zero, u16 queue pairs, u16 keys, zero 2 */
#define HELLO_QP_B   12
#define HELLO_KEY_B  20 /* and a number a rail of its sender */
#define RAILS_HEAD_B 4	/* u8 ports, zero 3 */

/* ---- Ports ---- */

/* gid 16, lid 2, mtu 1, is_ethernet 1, reads 1, gid_type << 1 | wants_grh 1, msg_log2 1, zero 1,
 * speed 4 */
static void port_put(uint8_t b[VERBS_PORT_B], const struct verbs_port *p)
{
	memcpy(b, p->gid, 16);
	le16_put(b + 16, p->lid);
	b[18] = p->mtu;
	b[19] = p->is_ethernet;
	b[20] = p->reads;
	b[21] = (uint8_t)(p->gid_type << 1 | p->wants_grh);
	b[22] = p->msg_log2;
	b[23] = 0;
	le32_put(b + 24, p->speed_mbps);
}

static bool port_get(const uint8_t b[VERBS_PORT_B], struct verbs_port *p)
{
	memcpy(p->gid, b, 16);
	p->lid = le16_get(b + 16);
	p->mtu = b[18];
	p->is_ethernet = b[19];
	p->reads = b[20];
	p->wants_grh = b[21] & 1;
	p->gid_type = b[21] >> 1;
	p->msg_log2 = b[22];
	p->speed_mbps = le32_get(b + 24);
	return !b[23] && p->mtu && p->mtu <= 5 && p->is_ethernet <= 1 && p->reads &&
	       p->gid_type <= VERBS_GID_V2 && p->msg_log2 >= 12 && p->msg_log2 <= 31;
}

static uint8_t *ports_put(uint8_t *at, const struct verbs_port port[], uint32_t n)
{
	for (uint32_t i = 0; i < n; i++, at += VERBS_PORT_B)
		port_put(at, &port[i]);
	return at;
}

static bool ports_get(const uint8_t *at, struct verbs_port port[], uint32_t n)
{
	for (uint32_t i = 0; i < n; i++, at += VERBS_PORT_B)
		if (!port_get(at, &port[i]))
			return false;
	return true;
}

uint32_t verbs_ports_put(uint8_t *b, const struct verbs_port port[], uint32_t n)
{
	memset(b, 0, RAILS_HEAD_B);
	b[0] = (uint8_t)n;
	return (uint32_t)(ports_put(b + RAILS_HEAD_B, port, n) - b);
}

int verbs_ports_get(const uint8_t *b, uint32_t len, struct verbs_port port[])
{
	if (len < RAILS_HEAD_B || b[1] || b[2] || b[3] || !b[0] || b[0] > VERBS_RAILS_MAX ||
	    len != RAILS_HEAD_B + (uint32_t)b[0] * VERBS_PORT_B)
		return -EPROTO;
	return ports_get(b + RAILS_HEAD_B, port, b[0]) ? b[0] : -EPROTO;
}

/* ---- CONNECT and ACCEPT ---- */

static uint32_t hello_b(const struct verbs_hello *h)
{
	return HELLO_HEAD_B + h->nr_ports * (VERBS_PORT_B + 4) + 8 + h->nr_qps * HELLO_QP_B +
	       h->nr_keys * (HELLO_KEY_B + 4 * h->nr_ports);
}

static uint8_t *keys_put(uint8_t *at, const uint32_t rkey[], uint32_t n)
{
	for (uint32_t r = 0; r < n; r++, at += 4)
		le32_put(at, rkey[r]);
	return at;
}

static const uint8_t *keys_get(const uint8_t *at, uint32_t rkey[], uint32_t n)
{
	for (uint32_t r = 0; r < n; r++, at += 4)
		rkey[r] = le32_get(at);
	return at;
}

uint32_t verbs_hello_put(uint8_t *b, const struct verbs_hello *h)
{
	uint8_t *at = ports_put(b + HELLO_HEAD_B, h->port, h->nr_ports);

	memset(b, 0, HELLO_HEAD_B);
	b[0] = (uint8_t)h->nr_ports;
	le16_put(b + 2, (uint16_t)h->nr_qps);
	le16_put(b + 4, (uint16_t)h->nr_keys);
	le64_put(at, h->probe_addr);
	at = keys_put(at + 8, h->probe_key, h->nr_ports);
	for (uint32_t i = 0; i < h->nr_qps; i++, at += HELLO_QP_B) {
		le32_put(at, h->qp[i].qpn);
		le32_put(at + 4, h->qp[i].psn);
		at[8] = h->own[i];
		at[9] = h->peer[i];
		at[10] = at[11] = 0;
	}
	for (uint32_t i = 0; i < h->nr_keys; i++) {
		le64_put(at, h->key[i].token);
		le64_put(at + 8, h->key[i].addr);
		le32_put(at + 16, h->key[i].rails);
		at = keys_put(at + HELLO_KEY_B, h->key[i].rkey, h->nr_ports);
	}
	return (uint32_t)(at - b);
}

/* 0 and 1 belong to the device, the last one to groups. */
static bool qp_is_valid(const struct verbs_qp_say *say)
{
	return say->qpn > 1 && say->qpn < 0xffffff && !(say->psn >> 24);
}

static bool hello_is_valid(const struct verbs_hello *h)
{
	/* Devices number their queue pairs by themselves: two may have the same. */
	for (uint32_t i = 0; i < h->nr_qps; i++) {
		if (!qp_is_valid(&h->qp[i]) || h->own[i] >= h->nr_ports ||
		    h->peer[i] >= VERBS_RAILS_MAX)
			return false;
		for (uint32_t k = 0; k < i; k++)
			if (h->qp[k].qpn == h->qp[i].qpn && h->own[k] == h->own[i])
				return false;
	}
	for (uint32_t i = 0; i < h->nr_keys; i++) {
		const struct verbs_key *key = &h->key[i];

		if (!key->rails || key->rails >> h->nr_ports)
			return false;
		for (uint32_t r = 0; r < h->nr_ports; r++)
			if (key->rkey[r] && !(key->rails >> r & 1))
				return false;
	}
	return true;
}

static bool head_get(const uint8_t *b, uint32_t len, struct verbs_hello *h)
{
	if (len < HELLO_HEAD_B || b[1] || b[6] || b[7])
		return false;
	h->nr_ports = b[0];
	h->nr_qps = le16_get(b + 2);
	h->nr_keys = le16_get(b + 4);
	return h->nr_ports && h->nr_ports <= VERBS_RAILS_MAX && h->nr_qps &&
	       h->nr_qps <= VERBS_QPS_MAX && h->nr_keys <= GX_REGIONS_MAX && len == hello_b(h) &&
	       ports_get(b + HELLO_HEAD_B, h->port, h->nr_ports);
}

int verbs_hello_get(const uint8_t *b, uint32_t len, struct verbs_hello *h)
{
	const uint8_t *at;

	memset(h, 0, sizeof(*h));
	if (!head_get(b, len, h))
		return -EPROTO;
	at = b + HELLO_HEAD_B + h->nr_ports * VERBS_PORT_B;
	h->probe_addr = le64_get(at);
	at = keys_get(at + 8, h->probe_key, h->nr_ports);
	for (uint32_t i = 0; i < h->nr_qps; i++, at += HELLO_QP_B) {
		h->qp[i] = (struct verbs_qp_say){le32_get(at), le32_get(at + 4)};
		h->own[i] = at[8];
		h->peer[i] = at[9];
		if (at[10] || at[11])
			return -EPROTO;
	}
	for (uint32_t i = 0; i < h->nr_keys; i++) {
		struct verbs_key *key = &h->key[i];

		*key = (struct verbs_key){.token = le64_get(at),
					  .addr = le64_get(at + 8),
					  .rails = le32_get(at + 16)};
		at = keys_get(at + HELLO_KEY_B, key->rkey, h->nr_ports);
	}
	return hello_is_valid(h) ? 0 : -EPROTO;
}

/* ---- MEND ---- */

void verbs_hello_mend_put(uint8_t b[VERBS_MEND_B], const struct verbs_mend *m)
{
	le32_put(b, m->qp);
	le32_put(b + 4, m->gen);
	le32_put(b + 8, m->say.qpn);
	le32_put(b + 12, m->say.psn);
	le32_put(b + 16, m->taken);
}

int verbs_hello_mend_get(const uint8_t *b, uint32_t len, struct verbs_mend *m)
{
	if (len != VERBS_MEND_B)
		return -EPROTO;
	*m = (struct verbs_mend){.qp = le32_get(b),
				 .gen = le32_get(b + 4),
				 .say = {le32_get(b + 8), le32_get(b + 12)},
				 .taken = le32_get(b + 16)};
	if (m->qp >= VERBS_QPS_MAX)
		return -EPROTO;
	if (!m->say.qpn) /* gone */
		return m->say.psn ? -EPROTO : 0;
	return qp_is_valid(&m->say) ? 0 : -EPROTO;
}

int verbs_offer_ports(const struct gx_conn *c, struct verbs_port port[])
{
	const struct gx_hello_offer *o = &c->peer.offer[GX_LINK_VERBS];

	return o->len ? verbs_ports_get(o->b + 1, o->len - 1u, port) : -EPROTO;
}
