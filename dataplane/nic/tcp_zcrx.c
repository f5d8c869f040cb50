/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues of a NIC for zero-copy receive of io_uring; see tcp_zcrx.h. Control path.
 */
#include "nic/tcp_zcrx.h"
#include "core/core.h"
#include "nic/zcrx.h"
#include "nic/zcrx_abi.h"

#include "gx/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define ZCRX_AREAS_MAX_B (4ull << 30)
#define ZCRX_PAGE_B	 4096u

/* owner: ctl */
struct tcp_zcrx {
	struct tcp_nic nic;
	const struct io_ring_sys *ring;
	uint64_t area_b; /* of a core */
	unsigned nr_cores;
	bool own_said; /* that a peer has this host's address */
};

/* ---- opening ---- */

static int area_check(const struct tcp_zcrx *z, uint64_t area_b)
{
	if (z->area_b && area_b <= ZCRX_AREAS_MAX_B && !(area_b % GX_HUGE_PAGE))
		return 0;
	return gx_fail(-EINVAL,
		       "gx_nic_opts.rx_b of %" PRIu64 " bytes for %u cores: 2M for each at least, "
		       "4G for all at most, in steps of 2M",
		       area_b, z->nr_cores);
}

int tcp_zcrx_open(const struct tcp_zcrx_cfg *cfg, struct tcp_zcrx **out)
{
	struct tcp_zcrx *z = calloc(1, sizeof(*z));
	int ret;

	if (!z)
		return gx_fail(-ENOMEM, "no memory for gx_nic_opts.rx zcrx");
	z->ring = cfg->ring;
	z->nr_cores = cfg->nr_cores;
	z->area_b = cfg->area_b / cfg->nr_cores / GX_HUGE_PAGE * GX_HUGE_PAGE;
	ret = tcp_nic_where(&z->nic, cfg->nic, cfg->where);
	if (!ret)
		ret = area_check(z, cfg->area_b);
	if (!ret)
		ret = tcp_nic_look(&z->nic, "io_uring-zcrx");
	if (!ret)
		ret = tcp_nic_queues(&z->nic, z->nr_cores, "zcrx");
	if (ret) {
		tcp_zcrx_close(z);
		return ret;
	}
	tcp_nic_sweep(&z->nic);
	*out = z;
	return 0;
}

void tcp_zcrx_close(struct tcp_zcrx *z)
{
	free(z);
}

uint64_t tcp_zcrx_area_b(const struct tcp_zcrx *z)
{
	return z->area_b;
}

/* Two fragments a page: most are of an Ethernet frame each. */
static uint32_t area_frags(uint64_t area_b)
{
	uint32_t n = 2 * URING_SQ;

	while (n < URING_DEPTH && n < 2 * area_b / ZCRX_PAGE_B)
		n *= 2;
	return n;
}

int tcp_zcrx_ring(const struct tcp_nic *n, const struct io_ring_sys *sys, uint32_t queue,
		  const struct tcp_zcrx_area *a, struct uring_rx **out)
{
	uint32_t frags = area_frags(a->len);
	struct zcrx_cfg cfg = {.sys = sys,
			       .name = n->who,
			       .ifindex = (uint32_t)n->ifindex,
			       .queue = queue,
			       .area = a->at,
			       .area_b = a->len,
			       .dmabuf_fd = a->dmabuf_fd,
			       .nr_refill = GX_MIN(frags, (uint32_t)ZCRX_REFILLS_MAX),
			       .nr_socks = URING_SOCKS,
			       .depth = frags};
	char why[IO_RING_WHY_B];
	int ret = zcrx_open(&cfg, out, why);

	return ret ? gx_fail(ret, "gx_nic_opts.rx zcrx: %s", why) : 0;
}

int tcp_zcrx_take(struct tcp_zcrx *z, unsigned core, void *area, struct uring_rx **out)
{
	struct tcp_zcrx_area a = {.at = area, .len = z->area_b, .dmabuf_fd = -1};

	return tcp_zcrx_ring(&z->nic, z->ring, z->nic.range.first + core, &a, out);
}

/* ---- sockets ---- */

int tcp_zcrx_rule(struct tcp_zcrx *z, unsigned core, int fd)
{
	int place;

	if (tcp_nic_is_own(fd)) {
		if (!z->own_said)
			gx_warn("%s: a peer over link tcp has this host's address, and its packets "
				"pass no NIC: gx reads its sockets as with gx_nic_opts.rx copy",
				z->nic.name);
		z->own_said = true;
		return -EADDRNOTAVAIL;
	}
	place = tcp_nic_rule(&z->nic, fd, z->nic.range.first + core);
	if (place < 0)
		tcp_nic_warn(&z->nic, place, "gx reads it as with gx_nic_opts.rx copy");
	return place;
}

void tcp_zcrx_unrule(struct tcp_zcrx *z, int place)
{
	if (z)
		tcp_nic_unrule(&z->nic, place);
}

void tcp_zcrx_text(const struct tcp_zcrx *z, char *buf, size_t room)
{
	const struct nic_range *r = &z->nic.range;

	snprintf(buf, room,
		 "io_uring zero-copy: %s from queue %u on, one for each of %u cores, which fills "
		 "%" PRIu64 " MiB of host memory; UNTRIED on hardware",
		 z->nic.who, r->first, z->nr_cores, z->area_b >> 20);
}
