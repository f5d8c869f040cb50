/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NIC of a receive mode; see tcp_nic.h. Control path.
 */
#include "nic/tcp_nic.h"
#include "core/core.h"

#include "gx/log.h"

#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* ---- opening ---- */

int tcp_nic_where(struct tcp_nic *n, const struct nic_sys *sys, const struct gx_nic_opts *where)
{
	*n = (struct tcp_nic){.sys = sys};
	if (!where->rx_if || !where->rx_if[0] || strlen(where->rx_if) >= NIC_NAME_MAX ||
	    !where->rx_queues || where->rx_queues > UINT32_MAX - where->rx_first)
		return gx_fail(
			-EINVAL,
			"gx_nic_opts.rx_if '%.64s', %u queues from %u: name an interface, and its "
			"queues in .rx_first and .rx_queues",
			where->rx_if ? where->rx_if : "", where->rx_queues, where->rx_first);
	strcpy(n->name, where->rx_if);
	n->range.first = where->rx_first;
	n->range.last = where->rx_first + where->rx_queues - 1;
	return 0;
}

/* What no set-up mends. */
static int mode_check(const struct nic_facts *f, const char *mode, const char *who)
{
	struct gx_nic_mode m = {0};

	for (unsigned i = 0; !nic_mode(f, i, &m); i++)
		if (!strcmp(m.name, mode) && m.can == GX_NIC_NO)
			return gx_fail(-EOPNOTSUPP, "gx_nic_opts.rx_if: %s%s%s. Cure: %s",
				       strstr(m.why, who) ? "" : who,
				       strstr(m.why, who) ? "" : ": ", m.why, m.cure);
	return 0;
}

/* Are all steps done that the operator takes? gx itself sets the rules and binds. */
static int plan_check(const struct nic_facts *f, const struct nic_range *r, const char *who)
{
	struct gx_nic_step s = {0};
	int ret = nic_range_check(f, r);

	if (ret)
		return ret;
	for (unsigned i = 0; !nic_step(f, r, i, &s); i++) {
		if (s.can == GX_NIC_NO)
			return gx_fail(-EOPNOTSUPP, "%s: %s: %s. Cure: %s", who, s.name, s.answer,
				       s.cure);
		if (s.can == GX_NIC_LATER && s.command[0])
			return gx_fail(-EOPNOTSUPP,
				       "%s: %s: %s. Cure: %s; gx_nic_step() tells all steps", who,
				       s.name, s.answer, s.command);
	}
	return 0;
}

int tcp_nic_look(struct tcp_nic *n, const char *mode)
{
	struct nic_facts *f = calloc(1, sizeof(*f));
	int ret;

	if (!f)
		return gx_fail(-ENOMEM, "no memory to look at %s", n->name);
	ret = nic_look(n->sys, n->name, f);
	if (ret) {
		gx_fail(ret, "this host has no interface '%s'", n->name);
	} else {
		nic_who(f, n->who, sizeof(n->who));
		n->ifindex = f->ifindex;
		ret = mode_check(f, mode, n->who);
		if (!ret)
			ret = plan_check(f, &n->range, n->who);
	}
	free(f);
	return ret;
}

/* ---- flow rules ---- */

void tcp_nic_sweep(const struct tcp_nic *n)
{
	unsigned nr;
	int ret = nic_rules_sweep(n->sys, n->name, &n->range, &nr);

	if (nr)
		gx_warn("%s: %u flow rules to queues %u-%u were left behind, as by a process that "
			"was killed: they are deleted",
			n->name, nr, n->range.first, n->range.last);
	if (ret)
		gx_warn("%s: flow rules to queues %u-%u that a killed process may have left cannot "
			"all be looked for: %s. See ethtool -n %s",
			n->name, n->range.first, n->range.last, strerror(-ret), n->name);
}

/* The IPv4 address and port of @a, which may be mapped into IPv6. */
static bool addr_v4(const struct sockaddr_storage *a, uint32_t *ip, uint16_t *port)
{
	const struct sockaddr_in6 *a6 = (const struct sockaddr_in6 *)a;
	const struct sockaddr_in *a4 = (const struct sockaddr_in *)a;

	if (a->ss_family == AF_INET) {
		*ip = a4->sin_addr.s_addr;
		*port = a4->sin_port;
		return true;
	}
	if (a->ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&a6->sin6_addr))
		return false;
	memcpy(ip, &a6->sin6_addr.s6_addr[12], sizeof(*ip));
	*port = a6->sin6_port;
	return true;
}

static int flow_of(int fd, struct nic_flow *flow)
{
	struct sockaddr_storage from, to;
	socklen_t from_len = sizeof(from), to_len = sizeof(to);

	if (getpeername(fd, (struct sockaddr *)&from, &from_len) ||
	    getsockname(fd, (struct sockaddr *)&to, &to_len))
		return -errno;
	if (!addr_v4(&from, &flow->src_ip, &flow->src_port) ||
	    !addr_v4(&to, &flow->dst_ip, &flow->dst_port))
		return -EAFNOSUPPORT;
	return 0;
}

int tcp_nic_rule(const struct tcp_nic *n, int fd, uint32_t queue)
{
	struct nic_flow flow;
	int ret = flow_of(fd, &flow);

	return ret ? ret : nic_rule_add(n->sys, n->name, &flow, queue);
}

void tcp_nic_unrule(const struct tcp_nic *n, int place)
{
	if (place >= 0)
		nic_rule_del(n->sys, n->name, (uint32_t)place);
}

void tcp_nic_warn(struct tcp_nic *n, int err, const char *then)
{
	if (err == n->rule_err)
		return;
	n->rule_err = err;
	gx_warn("%s: no flow rule for a data socket of link tcp: %s%s. %s", n->name, strerror(-err),
		err == -EAFNOSUPPORT ? " (gx sets rules for IPv4 alone)"
		: err == -ENOSPC     ? ": remove rules of others (ethtool -n), or use fewer sockets"
				     : ": see gx_nic_step()",
		then);
}
