/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs link's part of CONNECT and ACCEPT, and its message for a queue pair that was reset;
 * little endian. Pure. A decoder refuses what its encoder could not write. Control thread.
 */
#include "core/le.h"
#include "verbs/verbs.h"

#include <errno.h>
#include <string.h>

#define HELLO_HEAD_B 28
#define HELLO_QP_B   8
#define HELLO_KEY_B  20

/* gid 16, lid 2, mtu 1, is_ethernet 1, reads 1, gid_type << 1 | wants_grh 1, msg_log2 1, zero 1,
 * nr_qps 2, nr_keys 2 */
uint32_t verbs_hello_put(uint8_t *b, const struct verbs_hello *h)
{
	uint8_t *at = b + HELLO_HEAD_B;

	memset(b, 0, HELLO_HEAD_B);
	memcpy(b, h->gid, 16);
	le16_put(b + 16, h->lid);
	b[18] = h->mtu;
	b[19] = h->is_ethernet;
	b[20] = h->reads;
	b[21] = (uint8_t)(h->gid_type << 1 | h->wants_grh);
	b[22] = h->msg_log2;
	le16_put(b + 24, (uint16_t)h->nr_qps);
	le16_put(b + 26, (uint16_t)h->nr_keys);
	for (uint32_t i = 0; i < h->nr_qps; i++, at += HELLO_QP_B) {
		le32_put(at, h->qp[i].qpn);
		le32_put(at + 4, h->qp[i].psn);
	}
	for (uint32_t i = 0; i < h->nr_keys; i++, at += HELLO_KEY_B) {
		le64_put(at, h->key[i].token);
		le64_put(at + 8, h->key[i].addr);
		le32_put(at + 16, h->key[i].rkey);
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
	if (!h->mtu || h->mtu > 5 || h->is_ethernet > 1 || !h->reads ||
	    h->gid_type > VERBS_GID_V2 || h->msg_log2 < 12 || h->msg_log2 > 31)
		return false;
	for (uint32_t i = 0; i < h->nr_qps; i++) {
		if (!qp_is_valid(&h->qp[i]))
			return false;
		for (uint32_t k = 0; k < i; k++)
			if (h->qp[k].qpn == h->qp[i].qpn)
				return false;
	}
	return true;
}

int verbs_hello_get(const uint8_t *b, uint32_t len, struct verbs_hello *h)
{
	const uint8_t *at = b + HELLO_HEAD_B;

	memset(h, 0, sizeof(*h));
	if (len < HELLO_HEAD_B || b[23])
		return -EPROTO;
	memcpy(h->gid, b, 16);
	h->lid = le16_get(b + 16);
	h->mtu = b[18];
	h->is_ethernet = b[19];
	h->reads = b[20];
	h->wants_grh = b[21] & 1;
	h->gid_type = b[21] >> 1;
	h->msg_log2 = b[22];
	h->nr_qps = le16_get(b + 24);
	h->nr_keys = le16_get(b + 26);
	if (!h->nr_qps || h->nr_qps > VERBS_QPS_MAX || h->nr_keys > GX_REGIONS_MAX ||
	    len != HELLO_HEAD_B + h->nr_qps * HELLO_QP_B + h->nr_keys * HELLO_KEY_B)
		return -EPROTO;
	for (uint32_t i = 0; i < h->nr_qps; i++, at += HELLO_QP_B)
		h->qp[i] = (struct verbs_qp_say){le32_get(at), le32_get(at + 4)};
	for (uint32_t i = 0; i < h->nr_keys; i++, at += HELLO_KEY_B)
		h->key[i] = (struct verbs_key){
			.token = le64_get(at), .addr = le64_get(at + 8), .rkey = le32_get(at + 16)};
	return hello_is_valid(h) ? 0 : -EPROTO;
}

void verbs_mend_put(uint8_t b[VERBS_MEND_B], const struct verbs_mend *m)
{
	le32_put(b, m->qp);
	le32_put(b + 4, m->gen);
	le32_put(b + 8, m->say.qpn);
	le32_put(b + 12, m->say.psn);
	le32_put(b + 16, m->taken);
}

int verbs_mend_get(const uint8_t *b, uint32_t len, struct verbs_mend *m)
{
	if (len != VERBS_MEND_B)
		return -EPROTO;
	*m = (struct verbs_mend){.qp = le32_get(b),
				 .gen = le32_get(b + 4),
				 .say = {le32_get(b + 8), le32_get(b + 12)},
				 .taken = le32_get(b + 16)};
	return m->qp >= VERBS_QPS_MAX || !qp_is_valid(&m->say) ? -EPROTO : 0;
}
