// SPDX-License-Identifier: Apache-2.0
/*
 * Generic netlink by libmnl: requests to the families netdev and ethtool, and the kernel's answers.
 * An answer is bytes that are checked before they are used, as those of a peer are: kernels differ.
 * Control path.
 */
#include "nic/nic_nl.h"

#include "nic/nic_abi.h"

#include <errno.h>
#include <libmnl/libmnl.h>
#include <linux/ethtool_netlink.h>
#include <linux/genetlink.h>
#include <stdlib.h>
#include <string.h>

/* ---- Reading ---- */

/* The value of @attr; 0: it is shorter. */
static uint32_t attr_u32(const struct nlattr *attr)
{
	return mnl_attr_get_payload_len(attr) >= sizeof(uint32_t) ? mnl_attr_get_u32(attr) : 0;
}

static uint64_t attr_u64(const struct nlattr *attr)
{
	return mnl_attr_get_payload_len(attr) >= sizeof(uint64_t) ? mnl_attr_get_u64(attr) : 0;
}

static uint8_t attr_u8(const struct nlattr *attr)
{
	return mnl_attr_get_payload_len(attr) ? mnl_attr_get_u8(attr) : 0;
}

static void attr_text(const struct nlattr *attr, char text[NIC_TEXT_MAX])
{
	size_t len = strnlen(mnl_attr_get_payload(attr), mnl_attr_get_payload_len(attr));

	len = len < NIC_TEXT_MAX ? len : NIC_TEXT_MAX - 1;
	memcpy(text, mnl_attr_get_payload(attr), len);
	text[len] = '\0';
}

static void got_ops(const struct nlattr *list, struct nic_got *got)
{
	const struct nlattr *op, *attr;

	mnl_attr_for_each_nested(op, list) mnl_attr_for_each_nested(
		attr, op) if (mnl_attr_get_type(attr) == CTRL_ATTR_OP_ID && attr_u32(attr) < 64)
		got->ops |= 1ull << attr_u32(attr);
}

static void got_family(const struct nlattr *attr, struct nic_got *got)
{
	if (mnl_attr_get_type(attr) == CTRL_ATTR_FAMILY_ID &&
	    mnl_attr_get_payload_len(attr) >= sizeof(uint16_t))
		got->family = mnl_attr_get_u16(attr);
	else if (mnl_attr_get_type(attr) == CTRL_ATTR_OPS)
		got_ops(attr, got);
}

static void got_rings(const struct nlattr *attr, struct nic_got *got)
{
	switch (mnl_attr_get_type(attr)) {
	case ETHTOOL_A_RINGS_TCP_DATA_SPLIT:
		got->split = attr_u8(attr);
		got->has_split = got->split == ETHTOOL_TCP_DATA_SPLIT_DISABLED ||
				 got->split == ETHTOOL_TCP_DATA_SPLIT_ENABLED;
		break;
	case NIC_RINGS_HDS_THRESH:
		got->has_thresh = true;
		got->thresh_b = attr_u32(attr);
		break;
	case NIC_RINGS_HDS_THRESH_MAX:
		got->thresh_max_b = attr_u32(attr);
		break;
	}
}

static void got_dev(const struct nlattr *attr, struct nic_got *got)
{
	if (mnl_attr_get_type(attr) == NIC_DEV_XDP_FEATURES)
		got->xdp = attr_u64(attr);
	else if (mnl_attr_get_type(attr) == NIC_DEV_XDP_ZC_SEGS)
		got->zc_segs = attr_u32(attr);
}

static void got_bind(const struct nlattr *attr, struct nic_got *got)
{
	if (mnl_attr_get_type(attr) == NIC_DMABUF_ID)
		got->id = attr_u32(attr);
}

/* A message is one queue: all of it has to be read before it says which. */
static void got_queue(const struct nlmsghdr *msg, struct nic_got *got)
{
	uint32_t id = UINT32_MAX, type = UINT32_MAX;
	const struct nlattr *attr;
	uint8_t held = 0;

	mnl_attr_for_each(attr, msg, GENL_HDRLEN)
	{
		switch (mnl_attr_get_type(attr)) {
		case NIC_QUEUE_ID:
			id = attr_u32(attr);
			break;
		case NIC_QUEUE_TYPE:
			type = attr_u32(attr);
			break;
		case NIC_QUEUE_DMABUF:
			held |= NIC_HELD_DMABUF;
			break;
		case NIC_QUEUE_IO_URING:
			held |= NIC_HELD_URING;
			break;
		case NIC_QUEUE_XSK:
			held |= NIC_HELD_XSK;
			break;
		}
	}
	if (type != 0 || id >= NIC_QUEUES_MAX)
		return;
	got->held[id] = held;
	if (id >= got->nr_rx)
		got->nr_rx = id + 1;
}

/* Return: 0, -EBADMSG. */
static int got_message(enum nic_ask ask, const struct nlmsghdr *msg, struct nic_got *got)
{
	static void (*const take[NIC_ASKS])(const struct nlattr *attr, struct nic_got *got) = {
		[NIC_ASK_FAMILY] = got_family,
		[NIC_ASK_RINGS] = got_rings,
		[NIC_ASK_DEV] = got_dev,
		[NIC_ASK_BIND] = got_bind,
	};
	const struct nlattr *attr;

	if (mnl_nlmsg_get_payload_len(msg) < GENL_HDRLEN)
		return -EBADMSG;
	if (ask == NIC_ASK_QUEUES)
		got_queue(msg, got);
	else if (take[ask])
		mnl_attr_for_each(attr, msg, GENL_HDRLEN) take[ask](attr, got);
	return 0;
}

/* The kernel's words for a refusal stand after the request, which it may leave out. */
static void got_refusal(const struct nlmsghdr *msg, struct nic_got *got)
{
	const struct nlmsgerr *err = mnl_nlmsg_get_payload(msg);
	size_t skip = sizeof(*err);
	const struct nlattr *attr;

	if (!(msg->nlmsg_flags & NLM_F_ACK_TLVS))
		return;
	if (!(msg->nlmsg_flags & NLM_F_CAPPED)) {
		if (err->msg.nlmsg_len < sizeof(err->msg))
			return;
		skip += NLMSG_ALIGN((size_t)err->msg.nlmsg_len - sizeof(err->msg));
	}
	if (skip >= mnl_nlmsg_get_payload_len(msg))
		return;
	mnl_attr_for_each(attr, msg, skip) if (mnl_attr_get_type(attr) == NLMSGERR_ATTR_MSG)
		attr_text(attr, got->text);
}

/* The end of an answer begins with a number that is 0 or -errno. Return: 1, -EBADMSG. */
static int got_end(const struct nlmsghdr *msg, struct nic_got *got)
{
	bool refusal = msg->nlmsg_type == NLMSG_ERROR;
	int err;

	if (mnl_nlmsg_get_payload_len(msg) < (refusal ? sizeof(struct nlmsgerr) : sizeof(err)))
		return -EBADMSG;
	memcpy(&err, mnl_nlmsg_get_payload(msg), sizeof(err));
	if (err > 0 || err < -4095) /* as the kernel's own limit is */
		return -EBADMSG;
	got->err = err;
	if (refusal)
		got_refusal(msg, got);
	return 1;
}

/* mnl_nlmsg_ok() takes a length beyond 2^31 for a negative one, which fits anywhere. */
static bool message_fits(const struct nlmsghdr *msg, int left)
{
	return left >= (int)sizeof(*msg) && msg->nlmsg_len <= (uint32_t)left &&
	       mnl_nlmsg_ok(msg, left);
}

int nic_nl_parse(enum nic_ask ask, uint32_t seq, uint16_t family, const void *buf, size_t len,
		 struct nic_got *got)
{
	const struct nlmsghdr *msg = buf;
	int left = len <= NIC_NL_BUF_B ? (int)len : 0, ret = 0;

	if (!message_fits(msg, left))
		return -EBADMSG;
	for (; !ret && message_fits(msg, left); msg = mnl_nlmsg_next(msg, &left)) {
		if (msg->nlmsg_seq != seq)
			continue;
		if (msg->nlmsg_type == NLMSG_ERROR || msg->nlmsg_type == NLMSG_DONE)
			ret = got_end(msg, got);
		else if (msg->nlmsg_type == family)
			ret = got_message(ask, msg, got);
	}
	return ret;
}

/* ---- Asking ---- */

int nic_nl_open(const struct nic_sys *sys, struct nic_nl **out)
{
	struct nic_nl *nl = calloc(1, sizeof(*nl));

	if (!nl)
		return -ENOMEM;
	nl->sys = sys;
	nl->fd = sys->nl_open();
	if (nl->fd < 0) {
		int ret = nl->fd;

		free(nl);
		return ret;
	}
	*out = nl;
	return 0;
}

void nic_nl_close(struct nic_nl *nl)
{
	if (!nl)
		return;
	nl->sys->nl_close(nl->fd);
	free(nl);
}

/* Begin a request in nl->buf. */
static struct nlmsghdr *nl_begin(struct nic_nl *nl, uint16_t family, uint8_t op, uint16_t flags)
{
	struct nlmsghdr *msg = mnl_nlmsg_put_header(nl->buf);
	struct genlmsghdr *head;

	msg->nlmsg_type = family;
	msg->nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | flags;
	msg->nlmsg_seq = ++nl->seq;
	head = mnl_nlmsg_put_extra_header(msg, sizeof(*head));
	head->cmd = op;
	head->version = 1;
	return msg;
}

/* Send @msg, which lies in nl->buf, and read until the end of the answer. */
static int nl_call(struct nic_nl *nl, struct nlmsghdr *msg, enum nic_ask ask, struct nic_got *got)
{
	uint16_t family = msg->nlmsg_type;
	int ret = nl->sys->nl_send(nl->fd, msg, msg->nlmsg_len);

	memset(got, 0, sizeof(*got));
	for (unsigned i = 0; !ret && i < NIC_NL_ANSWERS_MAX; i++) {
		ssize_t n = nl->sys->nl_recv(nl->fd, nl->buf, sizeof(nl->buf));

		if (n < 0)
			return (int)n;
		if ((size_t)n > sizeof(nl->buf))
			return -EMSGSIZE;
		ret = nic_nl_parse(ask, nl->seq, family, nl->buf, (size_t)n, got);
		if (ret > 0)
			return got->err;
	}
	return ret ? ret : -EBADMSG;
}

int nic_nl_family(struct nic_nl *nl, const char *name, struct nic_got *got)
{
	struct nlmsghdr *msg = nl_begin(nl, GENL_ID_CTRL, CTRL_CMD_GETFAMILY, 0);
	int ret;

	mnl_attr_put_strz(msg, CTRL_ATTR_FAMILY_NAME, name);
	ret = nl_call(nl, msg, NIC_ASK_FAMILY, got);
	return !ret && !got->family ? -EBADMSG : ret;
}

static void nl_ethtool_header(struct nlmsghdr *msg, int ifindex)
{
	struct nlattr *head = mnl_attr_nest_start(msg, ETHTOOL_A_RINGS_HEADER);

	mnl_attr_put_u32(msg, ETHTOOL_A_HEADER_DEV_INDEX, (uint32_t)ifindex);
	mnl_attr_nest_end(msg, head);
}

int nic_nl_rings(struct nic_nl *nl, uint16_t ethtool, int ifindex, struct nic_got *got)
{
	struct nlmsghdr *msg = nl_begin(nl, ethtool, ETHTOOL_MSG_RINGS_GET, 0);

	nl_ethtool_header(msg, ifindex);
	return nl_call(nl, msg, NIC_ASK_RINGS, got);
}

int nic_nl_dev(struct nic_nl *nl, uint16_t netdev, int ifindex, struct nic_got *got)
{
	struct nlmsghdr *msg = nl_begin(nl, netdev, NIC_NETDEV_DEV_GET, 0);

	mnl_attr_put_u32(msg, NIC_DEV_IFINDEX, (uint32_t)ifindex);
	return nl_call(nl, msg, NIC_ASK_DEV, got);
}

int nic_nl_queues(struct nic_nl *nl, uint16_t netdev, int ifindex, struct nic_got *got)
{
	struct nlmsghdr *msg = nl_begin(nl, netdev, NIC_NETDEV_QUEUE_GET, NLM_F_DUMP);

	mnl_attr_put_u32(msg, NIC_QUEUE_IFINDEX, (uint32_t)ifindex);
	return nl_call(nl, msg, NIC_ASK_QUEUES, got);
}

int nic_nl_bind_rx(struct nic_nl *nl, uint16_t netdev, int ifindex, const uint32_t *queues,
		   unsigned nr, int fd, struct nic_got *got)
{
	struct nlmsghdr *msg = nl_begin(nl, netdev, NIC_NETDEV_BIND_RX, 0);
	int ret;

	if (!nr || nr > NIC_QUEUES_MAX)
		return -EINVAL;
	mnl_attr_put_u32(msg, NIC_DMABUF_IFINDEX, (uint32_t)ifindex);
	for (unsigned i = 0; i < nr; i++) {
		struct nlattr *queue = mnl_attr_nest_start(msg, NIC_DMABUF_QUEUES);

		mnl_attr_put_u32(msg, NIC_QUEUE_ID, queues[i]);
		mnl_attr_put_u32(msg, NIC_QUEUE_TYPE, 0);
		mnl_attr_nest_end(msg, queue);
	}
	mnl_attr_put_u32(msg, NIC_DMABUF_FD, (uint32_t)fd);
	ret = nl_call(nl, msg, NIC_ASK_BIND, got);
	return !ret && !got->id ? -EBADMSG : ret;
}

int nic_nl_bind_tx(struct nic_nl *nl, uint16_t netdev, int ifindex, int fd, struct nic_got *got)
{
	struct nlmsghdr *msg = nl_begin(nl, netdev, NIC_NETDEV_BIND_TX, 0);
	int ret;

	mnl_attr_put_u32(msg, NIC_DMABUF_IFINDEX, (uint32_t)ifindex);
	mnl_attr_put_u32(msg, NIC_DMABUF_FD, (uint32_t)fd);
	ret = nl_call(nl, msg, NIC_ASK_BIND, got);
	return !ret && !got->id ? -EBADMSG : ret;
}
