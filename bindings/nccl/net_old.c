/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of version 10, for NCCL 2.26 and 2.27. It has no finalize, so the context stays until
 * the process ends. It differs from version 11 in some arguments alone.
 */
#include "net.h"
#include "plug.h"

#include <string.h>

static int old_init(nccl_log_fn log, nccl_prof_fn prof)
{
	(void)prof;
	return proc_open(NULL, log, false);
}

static int old_props(int dev, struct nccl_props_v10 *out)
{
	struct nccl_props_v12 p;
	int ret = out ? net_props_v12(dev, &p) : NCCL_INVALID_ARGUMENT;

	if (ret)
		return ret;
	*out = (struct nccl_props_v10){.name = p.name,
				       .guid = p.guid,
				       .ptr_support = p.ptr_support,
				       .speed_mbps = p.speed_mbps,
				       .port = p.port,
				       .latency_us = p.latency_us,
				       .comms_max = p.comms_max,
				       .recvs_max = p.recvs_max,
				       .device_type = p.device_type,
				       .device_version = p.device_version,
				       .vprops.nr_devs = 1,
				       .p2p_b_max = p.p2p_b_max,
				       .coll_b_max = p.coll_b_max};
	return NCCL_OK;
}

static int old_listen(int dev, void *handle, void **listen_comm)
{
	return net_listen(NULL, dev, handle, listen_comm);
}

static int old_connect(int dev, struct nccl_config *config, void *handle, void **send_comm,
		       struct nccl_dev_handle **send_dev)
{
	(void)config;
	return net_connect(NULL, dev, handle, send_comm, send_dev);
}

extern const struct nccl_net_v10 ncclNetPlugin_v10;

NCCL_EXPORT const struct nccl_net_v10 ncclNetPlugin_v10 = {
	.name = NET_NAME,
	.init = old_init,
	.devices = net_devices,
	.get_properties = old_props,
	.listen = old_listen,
	.connect = old_connect,
	.accept = net_accept,
	.reg_mr = net_reg_mr,
	.reg_mr_dma_buf = net_reg_mr_dma_buf,
	.dereg_mr = net_dereg_mr,
	.isend = net_isend,
	.irecv = net_irecv,
	.iflush = net_iflush,
	.test = net_test,
	.close_send = net_close_send,
	.close_recv = net_close_recv,
	.close_listen = net_close_listen,
	.irecv_consumed = net_irecv_consumed,
};
