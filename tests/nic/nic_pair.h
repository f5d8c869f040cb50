/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_pair.h over link tcp with NICs.
 */
#ifndef NIC_PAIR_H
#define NIC_PAIR_H

#include "tcp/tcp_pair.h"
#include "nic/nic_link.h"

/** nic_pair_use() - Pairs are of that link from now on, without any NIC. @zc: its calls to send; NULL: the kernel's. */
void nic_pair_use(const struct zc_sys *zc);
/** nic_poll() - A turn of the link. */
void nic_poll(struct link_tcp *l, uint64_t now_ns);

#endif
