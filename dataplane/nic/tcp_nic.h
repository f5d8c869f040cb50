/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NIC of a receive mode of link tcp (tcp_dev.h): its interface and queues, as the
 * user names them, whether the operator has prepared it, and flow rules that bring the packets of a
 * socket to a queue. Control path. UNTRIED on hardware.
 */
#ifndef GX_TCP_NIC_H
#define GX_TCP_NIC_H

#include "nic/nic.h"

/* owner: ctl */
struct tcp_nic {
	const struct nic_sys *sys;
	char name[NIC_NAME_MAX];
	char who[64]; /* the name and the driver, for texts */
	int ifindex;
	struct nic_range range;
	int rule_err; /* why a rule could not be set, when it was last said */
};

/** tcp_nic_where() - @where: .rx_if, its queues. Return: 0, -EINVAL
 * with gx_error(). */
int tcp_nic_where(struct tcp_nic *n, const struct nic_sys *sys, const struct gx_nic_opts *where);
/** tcp_nic_look() - Is it ready for @mode, a name of gx_nic_mode()? Nothing is changed. Return: 0;
 * -ENODEV, -EINVAL, -ERANGE, -EOPNOTSUPP, -ENOMEM with gx_error(), which names the driver, what is
 * missing or left to do, and the cure. */
int tcp_nic_look(struct tcp_nic *n, const char *mode);
/** tcp_nic_sweep() - The queues are ours: delete flow rules to them that a process left behind which
 * was killed, and say how many. Else a new socket with the addresses of an old one would come to a
 * queue that is not its own, and the table would fill. */
void tcp_nic_sweep(const struct tcp_nic *n);
/** tcp_nic_rule() - Have the packets of the connected socket @fd come to @queue. Return: place of
 * the rule, for tcp_nic_unrule(); -errno. */
int tcp_nic_rule(const struct tcp_nic *n, int fd, uint32_t queue);
void tcp_nic_unrule(const struct tcp_nic *n, int place); /* < 0: there is none */
/** tcp_nic_warn() - No rule could be set, for -@err, and @then happens. Said once while the reason
 * stays the same. */
void tcp_nic_warn(struct tcp_nic *n, int err, const char *then);

#endif
