// SPDX-License-Identifier: Apache-2.0
/*
 * The scripted kernel of nic_script.h.
 */
#include "nic/nic_script.h"

#include "gx_internal/base.h"
#include "nic/nic_abi.h"

#include <arpa/inet.h>
#include <errno.h>
#include <libmnl/libmnl.h>
#include <linux/ethtool.h>
#include <linux/ethtool_netlink.h>
#include <linux/genetlink.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define SCRIPT_FD     42
#define SCRIPT_NETDEV 20
#define SCRIPT_ETHTL  21
#define SCRIPT_MSGS   4
#define SCRIPT_MSG_B  8192

struct nic_script script;

/* Datagrams that wait to be received. */
static struct {
	_Alignas(8) char b[SCRIPT_MSG_B];
	size_t len;
} queue[SCRIPT_MSGS];
static unsigned nr_queue;

void script_reset(void)
{
	assert_int_equal(script.nr_open, 0);
	script = (struct nic_script){.kernel = "6.18.1",
				     .driver = "script",
				     .bus = "0000:3b:00.0",
				     .ops = 1u << NIC_NETDEV_DEV_GET | 1u << NIC_NETDEV_QUEUE_GET |
					    1u << NIC_NETDEV_BIND_RX | 1u << NIC_NETDEV_BIND_TX,
				     .split = ETHTOOL_TCP_DATA_SPLIT_ENABLED,
				     .nr_rx = 16,
				     .nr_channels = 16,
				     .channels = {.combined_max = 16},
				     .bind_err = -EBADF,
				     .bind_id = 5,
				     .rss_queues = 8,
				     .rules_placed = true,
				     .rules_room = 64,
				     .rules_all_room = 64,
				     .ntuple = NIC_HAS_ON,
				     .gro_hw = NIC_HAS_ON};
	nr_queue = 0;
}

/* ---- Answers ---- */

static struct nlmsghdr *answer_begin(const struct nlmsghdr *req, uint16_t type, uint16_t flags)
{
	struct nlmsghdr *msg;

	assert_true(nr_queue < SCRIPT_MSGS);
	memset(queue[nr_queue].b, 0, SCRIPT_MSG_B);
	msg = mnl_nlmsg_put_header(queue[nr_queue].b);
	msg->nlmsg_type = type;
	msg->nlmsg_flags = flags;
	msg->nlmsg_seq = req->nlmsg_seq;
	return msg;
}

static struct nlmsghdr *answer_data(const struct nlmsghdr *req, uint16_t flags)
{
	struct nlmsghdr *msg = answer_begin(req, req->nlmsg_type, flags);

	mnl_nlmsg_put_extra_header(msg, sizeof(struct genlmsghdr));
	return msg;
}

static void answer_send(const struct nlmsghdr *msg)
{
	queue[nr_queue++].len = msg->nlmsg_len;
}

/* NLMSG_ERROR: the end of a request that is no dump. */
static void answer_end(const struct nlmsghdr *req, int err, const char *text)
{
	uint16_t flags = (script.old_acks ? 0 : NLM_F_CAPPED) | (text ? NLM_F_ACK_TLVS : 0);
	struct nlmsghdr *msg = answer_begin(req, NLMSG_ERROR, flags);
	struct nlmsgerr *head = mnl_nlmsg_put_extra_header(msg, sizeof(*head));

	head->error = err;
	head->msg = *req;
	if (script.old_acks)
		memcpy(mnl_nlmsg_put_extra_header(msg, req->nlmsg_len - sizeof(*req)), req + 1,
		       req->nlmsg_len - sizeof(*req));
	if (text)
		mnl_attr_put_strz(msg, NLMSGERR_ATTR_MSG, text);
	answer_send(msg);
}

static void answer_family(const struct nlmsghdr *req, uint16_t id, uint64_t ops)
{
	struct nlmsghdr *msg = answer_data(req, 0);
	struct nlattr *list, *op;

	mnl_attr_put_strz(msg, CTRL_ATTR_FAMILY_NAME, id == SCRIPT_NETDEV ? "netdev" : "ethtool");
	mnl_attr_put_u16(msg, CTRL_ATTR_FAMILY_ID, id);
	list = mnl_attr_nest_start(msg, CTRL_ATTR_OPS);
	for (unsigned i = 0, nr = 0; i < 64; i++) {
		if (!(ops >> i & 1))
			continue;
		op = mnl_attr_nest_start(msg, (uint16_t)++nr);
		mnl_attr_put_u32(msg, CTRL_ATTR_OP_ID, i);
		mnl_attr_put_u32(msg, CTRL_ATTR_OP_FLAGS, 0x1a);
		mnl_attr_nest_end(msg, op);
	}
	mnl_attr_nest_end(msg, list);
	answer_send(msg);
	answer_end(req, 0, NULL);
}

static void kernel_ctrl(const struct nlmsghdr *req)
{
	const struct nlattr *attr;
	const char *name = NULL;

	mnl_attr_for_each(attr, req,
			  GENL_HDRLEN) if (mnl_attr_get_type(attr) == CTRL_ATTR_FAMILY_NAME) name =
		mnl_attr_get_str(attr);
	assert_non_null(name);
	if (!strcmp(name, "netdev") && !script.no_netdev)
		answer_family(req, SCRIPT_NETDEV, script.ops);
	else if (!strcmp(name, "ethtool") && !script.no_ethtool)
		answer_family(req, SCRIPT_ETHTL, ~0ull >> 13);
	else
		answer_end(req, -ENOENT, NULL);
}

static void kernel_rings(const struct nlmsghdr *req)
{
	struct nlmsghdr *msg;

	if (script.rings_err) {
		answer_end(req, script.rings_err, script.rings_text);
		return;
	}
	msg = answer_data(req, 0);
	mnl_attr_put_u32(msg, ETHTOOL_A_RINGS_RX_MAX, 4096);
	if (script.split >= 0)
		mnl_attr_put_u8(msg, ETHTOOL_A_RINGS_TCP_DATA_SPLIT, (uint8_t)script.split);
	if (script.thresh_b >= 0) {
		mnl_attr_put_u32(msg, NIC_RINGS_HDS_THRESH, (uint32_t)script.thresh_b);
		mnl_attr_put_u32(msg, NIC_RINGS_HDS_THRESH_MAX, 1023);
	}
	answer_send(msg);
	answer_end(req, 0, NULL);
}

static void kernel_ethtool(const struct nlmsghdr *req, uint8_t op)
{
	const struct nlattr *head = mnl_nlmsg_get_payload_offset(req, GENL_HDRLEN), *index;

	assert_int_equal(mnl_attr_get_type(head), ETHTOOL_A_RINGS_HEADER);
	assert_true(head->nla_type & NLA_F_NESTED);
	index = mnl_attr_get_payload(head);
	assert_int_equal(mnl_attr_get_type(index), ETHTOOL_A_HEADER_DEV_INDEX);
	assert_int_equal(mnl_attr_get_u32(index), SCRIPT_INDEX);
	if (op == ETHTOOL_MSG_RINGS_GET)
		kernel_rings(req);
	else
		fail_msg("ethtool: operation %u", op);
}

static void kernel_dev(const struct nlmsghdr *req)
{
	struct nlmsghdr *msg = answer_data(req, 0);

	if (script.dev_err) {
		answer_end(req, script.dev_err, NULL);
		return;
	}
	mnl_attr_put_u32(msg, NIC_DEV_IFINDEX, SCRIPT_INDEX);
	mnl_attr_put_u64(msg, NIC_DEV_XDP_FEATURES, 0x2b);
	mnl_attr_put_u32(msg, NIC_DEV_XDP_ZC_SEGS, 4);
	answer_send(msg);
	answer_end(req, 0, NULL);
}

/* All queues in one datagram, and senders' among them. */
static void kernel_queues(const struct nlmsghdr *req)
{
	size_t len = 0;
	int end;

	assert_int_equal(req->nlmsg_flags & NLM_F_DUMP, NLM_F_DUMP);
	if (script.queues_err) {
		answer_end(req, script.queues_err, NULL);
		return;
	}
	assert_true(nr_queue < SCRIPT_MSGS);
	memset(queue[nr_queue].b, 0, SCRIPT_MSG_B);
	for (uint32_t q = 0; q < 2 * script.nr_rx; q++) {
		struct nlmsghdr *msg = mnl_nlmsg_put_header(queue[nr_queue].b + len);

		msg->nlmsg_type = req->nlmsg_type;
		msg->nlmsg_flags = NLM_F_MULTI;
		msg->nlmsg_seq = req->nlmsg_seq;
		mnl_nlmsg_put_extra_header(msg, sizeof(struct genlmsghdr));
		mnl_attr_put_u32(msg, NIC_QUEUE_ID, q / 2);
		mnl_attr_put_u32(msg, NIC_QUEUE_TYPE, q % 2);
		mnl_attr_put_u32(msg, NIC_QUEUE_IFINDEX, SCRIPT_INDEX);
		if (script.held[q / 2] & NIC_HELD_DMABUF)
			mnl_attr_put_u32(msg, NIC_QUEUE_DMABUF, 3);
		if (script.held[q / 2] & NIC_HELD_URING)
			mnl_attr_put(msg, NIC_QUEUE_IO_URING, 0, NULL);
		if (script.held[q / 2] & NIC_HELD_XSK)
			mnl_attr_put(msg, NIC_QUEUE_XSK, 0, NULL);
		len += msg->nlmsg_len;
	}
	queue[nr_queue++].len = len;
	{
		struct nlmsghdr *msg = answer_begin(req, NLMSG_DONE, NLM_F_MULTI);

		end = 0;
		memcpy(mnl_nlmsg_put_extra_header(msg, sizeof(end)), &end, sizeof(end));
		answer_send(msg);
	}
}

static void kernel_bind_read(const struct nlmsghdr *req)
{
	const struct nlattr *attr, *in;

	script.nr_bound = 0;
	mnl_attr_for_each(attr, req, GENL_HDRLEN)
	{
		if (mnl_attr_get_type(attr) == NIC_DMABUF_FD)
			script.bound_fd = (int)mnl_attr_get_u32(attr);
		if (mnl_attr_get_type(attr) == NIC_DMABUF_IFINDEX)
			assert_int_equal(mnl_attr_get_u32(attr), SCRIPT_INDEX);
		if (mnl_attr_get_type(attr) != NIC_DMABUF_QUEUES)
			continue;
		assert_true(attr->nla_type & NLA_F_NESTED);
		mnl_attr_for_each_nested(in, attr)
		{
			if (mnl_attr_get_type(in) == NIC_QUEUE_ID)
				script.bound[script.nr_bound++] = mnl_attr_get_u32(in);
			else
				assert_int_equal(mnl_attr_get_u32(in), 0);
		}
	}
}

static void kernel_bind(const struct nlmsghdr *req)
{
	struct nlmsghdr *msg;

	kernel_bind_read(req);
	if (script.bind_err && !(script.bind_takes && script.bound_fd >= 0)) {
		answer_end(req, script.bind_err, script.bind_text);
		return;
	}
	assert_true(script.bound_fd >= 0); /* a look would have bound something */
	msg = answer_data(req, 0);
	mnl_attr_put_u32(msg, NIC_DMABUF_ID, script.bind_id);
	answer_send(msg);
	answer_end(req, 0, NULL);
}

static void kernel_netdev(const struct nlmsghdr *req, uint8_t op)
{
	assert_true(script.ops >> op & 1);
	switch (op) {
	case NIC_NETDEV_DEV_GET:
		kernel_dev(req);
		break;
	case NIC_NETDEV_QUEUE_GET:
		kernel_queues(req);
		break;
	case NIC_NETDEV_BIND_RX:
	case NIC_NETDEV_BIND_TX:
		kernel_bind(req);
		break;
	default:
		fail_msg("netdev: operation %u", op);
	}
}

static void answers_spoil(void)
{
	for (unsigned i = 0; i < nr_queue; i++) {
		struct nlmsghdr *msg = (struct nlmsghdr *)queue[i].b;

		switch (script.spoil) {
		case SPOIL_CUT:
			queue[i].len -= 5;
			break;
		case SPOIL_GARBAGE:
			memset(queue[i].b, 0xee, 64);
			queue[i].len = 64;
			break;
		case SPOIL_EMPTY:
			queue[i].len = 0;
			break;
		case SPOIL_LONG:
			queue[i].len = 1 << 20;
			break;
		case SPOIL_STRANGER:
			msg->nlmsg_seq += 100;
			break;
		default:
			break;
		}
	}
	if (script.spoil == SPOIL_SILENT)
		nr_queue = 0;
}

/* ---- The table of calls ---- */

static int script_nl_open(void)
{
	if (script.nl_open_err)
		return script.nl_open_err;
	script.nr_open++;
	return SCRIPT_FD;
}

static int script_nl_send(int fd, const void *msg, size_t len)
{
	const struct nlmsghdr *req = msg;
	const struct genlmsghdr *head = mnl_nlmsg_get_payload(req);

	assert_int_equal(fd, SCRIPT_FD);
	assert_true(mnl_nlmsg_ok(req, (int)len) && req->nlmsg_len == len);
	assert_int_equal(req->nlmsg_flags & (NLM_F_REQUEST | NLM_F_ACK), NLM_F_REQUEST | NLM_F_ACK);
	if (script.send_err)
		return script.send_err;
	nr_queue = 0;
	if (req->nlmsg_type == GENL_ID_CTRL)
		kernel_ctrl(req);
	else if (req->nlmsg_type == SCRIPT_ETHTL)
		kernel_ethtool(req, head->cmd);
	else if (req->nlmsg_type == SCRIPT_NETDEV)
		kernel_netdev(req, head->cmd);
	else
		fail_msg("family %u", req->nlmsg_type);
	if (++script.calls == script.spoil_call)
		answers_spoil();
	return 0;
}

static ssize_t script_nl_recv(int fd, void *buf, size_t room)
{
	size_t len = queue[0].len;

	assert_int_equal(fd, SCRIPT_FD);
	if (!nr_queue)
		return -EAGAIN; /* as after the socket's time-out */
	memcpy(buf, queue[0].b, len < SCRIPT_MSG_B ? len : SCRIPT_MSG_B);
	if (script.spoil != SPOIL_ENDLESS || script.calls != script.spoil_call)
		memmove(queue, queue + 1, --nr_queue * sizeof(queue[0]));
	return (ssize_t)len;
}

static void script_nl_close(int fd)
{
	assert_int_equal(fd, SCRIPT_FD);
	script.nr_open--;
}

static int script_ifindex(const char *name)
{
	return strcmp(name, SCRIPT_IF) ? -ENODEV : SCRIPT_INDEX;
}

static int ethtool_table(struct ethtool_rxfh_indir *t)
{
	if (script.rss_err)
		return script.rss_err;
	for (uint32_t i = 0; i < t->size && i < SCRIPT_TABLE; i++)
		t->ring_index[i] = i % script.rss_queues;
	t->size = SCRIPT_TABLE;
	return 0;
}

static int ethtool_features(void *cmd)
{
	static const char *const names[] = {"tx-scatter-gather", "rx-ntuple-filter", "rx-hashing",
					    "rx-gro-hw"};
	struct ethtool_sset_info *info = cmd;
	struct ethtool_gstrings *strings = cmd;
	struct ethtool_gfeatures *f = cmd;

	if (script.features_err)
		return script.features_err;
	switch (info->cmd) {
	case ETHTOOL_GSSET_INFO:
		info->data[0] = GX_ARRAY_SIZE(names);
		break;
	case ETHTOOL_GSTRINGS:
		for (unsigned i = 0; i < GX_ARRAY_SIZE(names); i++)
			strncpy((char *)strings->data + i * ETH_GSTRING_LEN, names[i],
				ETH_GSTRING_LEN);
		break;
	default:
		f->features[0].available = (script.ntuple != NIC_HAS_NOT ? 2 : 0) |
					   (script.gro_hw != NIC_HAS_NOT ? 8 : 0);
		f->features[0].active = 5 | (script.ntuple == NIC_HAS_ON ? 2 : 0) |
					(script.gro_hw == NIC_HAS_ON ? 8 : 0);
	}
	return 0;
}

static int ethtool_rule_del(uint32_t place)
{
	if (place >= SCRIPT_LEFT_AT && place < SCRIPT_LEFT_AT + script.nr_left) {
		struct script_left *l = &script.left[place - SCRIPT_LEFT_AT];

		l->nr_dels++;
		return l->del_err;
	}
	script.rule_place = place;
	script.nr_rules--;
	return 0;
}

/* The first two are an operator's, for a port alone. */
static int ethtool_rule_get(struct ethtool_rx_flow_spec *fs)
{
	uint32_t place = fs->location;

	if (place >= SCRIPT_LEFT_AT && place < SCRIPT_LEFT_AT + script.nr_left) {
		*fs = script.left[place - SCRIPT_LEFT_AT].fs;
		fs->location = place;
		return script.left[place - SCRIPT_LEFT_AT].get_err;
	}
	*fs = (struct ethtool_rx_flow_spec){.flow_type = TCP_V4_FLOW,
					    .m_u.tcp_ip4_spec.pdst = UINT16_MAX,
					    .ring_cookie = 8,
					    .location = place};
	return 0;
}

static int ethtool_rules(struct ethtool_rxnfc *c)
{
	if (c->cmd == ETHTOOL_GRXRINGS) {
		c->data = script.nr_channels;
		return script.nr_channels ? 0 : -EOPNOTSUPP;
	}
	if (script.rules_err)
		return script.rules_err;
	if (c->cmd == ETHTOOL_SRXCLSRLINS) {
		assert_int_equal(c->fs.flow_type, TCP_V4_FLOW);
		assert_int_equal(c->fs.m_u.tcp_ip4_spec.pdst, UINT16_MAX);
		assert_int_equal(c->fs.m_u.tcp_ip4_spec.ip4src,
				 c->fs.h_u.tcp_ip4_spec.ip4src ? UINT32_MAX : 0);
		script.nr_rules++;
		script.rule = c->fs;
		script.rule_port = ntohs(c->fs.h_u.tcp_ip4_spec.pdst);
		script.rule_queue = (uint32_t)c->fs.ring_cookie;
		if (script.rules_placed) {
			assert_int_equal(c->fs.location, RX_CLS_LOC_ANY);
			c->fs.location = 9;
		}
	} else if (c->cmd == ETHTOOL_SRXCLSRLDEL) {
		return ethtool_rule_del(c->fs.location);
	} else if (c->cmd == ETHTOOL_GRXCLSRULE) {
		return ethtool_rule_get(&c->fs);
	} else if (c->cmd == ETHTOOL_GRXCLSRLALL) {
		assert_int_equal(c->rule_cnt, 2 + script.nr_left);
		memcpy(c->rule_locs, script.rules_at, sizeof(script.rules_at));
		for (unsigned i = 0; i < script.nr_left; i++)
			c->rule_locs[2 + i] = SCRIPT_LEFT_AT + i;
		c->data = script.rules_all_room;
		return script.rules_all_err;
	} else {
		c->rule_cnt = 2 + script.nr_left;
		c->data = (script.rules_placed ? RX_CLS_LOC_SPECIAL : 0) | script.rules_room;
	}
	return 0;
}

struct script_left *script_leave(uint32_t to)
{
	const struct nic_flow flow = {.src_ip = 1, .dst_ip = 2, .src_port = 3, .dst_port = 4};
	struct script_left *l = &script.left[script.nr_left];

	assert_true(nic_rule_add(&script_sys, SCRIPT_IF, &flow, to) >= 0);
	script.nr_rules--;
	script.nr_left++;
	l->fs = script.rule;
	return l;
}

static int script_ethtool(const char *name, void *cmd)
{
	struct ethtool_drvinfo *info = cmd;
	struct ethtool_channels *channels = cmd;

	assert_string_equal(name, SCRIPT_IF);
	switch (info->cmd) {
	case ETHTOOL_GDRVINFO:
		if (!script.driver)
			return -EOPNOTSUPP;
		strncpy(info->driver, script.driver, sizeof(info->driver) - 1);
		strncpy(info->bus_info, script.bus, sizeof(info->bus_info) - 1);
		return 0;
	case ETHTOOL_GCHANNELS:
		channels->rx_count = script.channels.rx;
		channels->max_rx = script.channels.rx_max;
		channels->combined_count = script.nr_channels - script.channels.rx;
		channels->max_combined = script.channels.combined_max;
		return script.nr_channels ? 0 : -EOPNOTSUPP;
	case ETHTOOL_GRXFHINDIR:
		return ethtool_table(cmd);
	case ETHTOOL_GSSET_INFO:
	case ETHTOOL_GSTRINGS:
	case ETHTOOL_GFEATURES:
		return ethtool_features(cmd);
	default:
		return ethtool_rules(cmd);
	}
}

static int script_text(const char *path, char *buf, size_t room)
{
	if (!strcmp(path, "/proc/sys/kernel/osrelease") && script.kernel)
		snprintf(buf, room, "%s", script.kernel);
	else
		return -ENOENT;
	return 0;
}

const struct nic_sys script_sys = {
	.nl_open = script_nl_open,
	.nl_send = script_nl_send,
	.nl_recv = script_nl_recv,
	.nl_close = script_nl_close,
	.ifindex = script_ifindex,
	.ethtool = script_ethtool,
	.text = script_text,
};
