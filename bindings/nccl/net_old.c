/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables of versions 10, 9 and 8, for NCCL 2.20 to 2.27. These have no finalize, so the context
 * stays until the process ends. They differ from version 11 in some arguments alone.
 */
#include "net.h"
#include "plug.h"

#include <string.h>

static int old_init(nccl_log_fn log)
{
	return proc_open(NULL, log, false);
}

static int old_init_v10(nccl_log_fn log, nccl_prof_fn prof)
{
	(void)prof;
	return old_init(log);
}

static int old_props_v9(int dev, struct nccl_props_v9 *out)
{
	struct nccl_props_v12 p;
	int ret = out ? net_props_v12(dev, &p) : NCCL_INVALID_ARGUMENT;

	if (ret)
		return ret;
	*out = (struct nccl_props_v9){.name = p.name,
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

static int old_props_v8(int dev, struct nccl_props_v8 *out)
{
	struct nccl_props_v12 p;
	int ret = out ? net_props_v12(dev, &p) : NCCL_INVALID_ARGUMENT;

	if (ret)
		return ret;
	*out = (struct nccl_props_v8){.name = p.name,
				      .guid = p.guid,
				      .ptr_support = p.ptr_support,
				      .speed_mbps = p.speed_mbps,
				      .port = p.port,
				      .latency_us = p.latency_us,
				      .comms_max = p.comms_max,
				      .recvs_max = p.recvs_max,
				      .device_type = p.device_type,
				      .device_version = p.device_version};
	return NCCL_OK;
}

static int old_listen(int dev, void *handle, void **listen_comm)
{
	return net_listen(NULL, dev, handle, listen_comm);
}

static int old_connect(int dev, void *handle, void **send_comm, struct nccl_dev_handle **send_dev)
{
	return net_connect(NULL, dev, handle, send_comm, send_dev);
}

static int old_connect_v10(int dev, struct nccl_config *config, void *handle, void **send_comm,
			   struct nccl_dev_handle **send_dev)
{
	(void)config;
	return old_connect(dev, handle, send_comm, send_dev);
}

static int old_isend_v9(void *send_comm, void *data, size_t size, int tag, void *mh, void **req)
{
	return net_isend(send_comm, data, size, tag, mh, NULL, req);
}

static int old_irecv_v9(void *recv_comm, int n, void **data, size_t *sizes, int *tags, void **mhs,
			void **req)
{
	return net_irecv(recv_comm, n, data, sizes, tags, mhs, NULL, req);
}

static int old_isend_v8(void *send_comm, void *data, int size, int tag, void *mh, void **req)
{
	if (req)
		*req = NULL;
	if (size < 0)
		return NCCL_INVALID_ARGUMENT;
	return net_isend(send_comm, data, (size_t)size, tag, mh, NULL, req);
}

static int old_irecv_v8(void *recv_comm, int n, void **data, int *sizes, int *tags, void **mhs,
			void **req)
{
	size_t size = sizes && sizes[0] > 0 ? (size_t)sizes[0] : 0;

	return net_irecv(recv_comm, n, data, sizes ? &size : NULL, tags, mhs, NULL, req);
}

extern const struct nccl_net_v10 ncclNetPlugin_v10;
extern const struct nccl_net_v9 ncclNetPlugin_v9;
extern const struct nccl_net_v8 ncclNetPlugin_v8;

NCCL_EXPORT const struct nccl_net_v10 ncclNetPlugin_v10 = {
	.name = NET_NAME,
	.init = old_init_v10,
	.devices = net_devices,
	.get_properties = old_props_v9,
	.listen = old_listen,
	.connect = old_connect_v10,
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

NCCL_EXPORT const struct nccl_net_v9 ncclNetPlugin_v9 = {
	.name = NET_NAME,
	.init = old_init,
	.devices = net_devices,
	.get_properties = old_props_v9,
	.listen = old_listen,
	.connect = old_connect,
	.accept = net_accept,
	.reg_mr = net_reg_mr,
	.reg_mr_dma_buf = net_reg_mr_dma_buf,
	.dereg_mr = net_dereg_mr,
	.isend = old_isend_v9,
	.irecv = old_irecv_v9,
	.iflush = net_iflush,
	.test = net_test,
	.close_send = net_close_send,
	.close_recv = net_close_recv,
	.close_listen = net_close_listen,
	.irecv_consumed = net_irecv_consumed,
};

NCCL_EXPORT const struct nccl_net_v8 ncclNetPlugin_v8 = {
	.name = NET_NAME,
	.init = old_init,
	.devices = net_devices,
	.get_properties = old_props_v8,
	.listen = old_listen,
	.connect = old_connect,
	.accept = net_accept,
	.reg_mr = net_reg_mr,
	.reg_mr_dma_buf = net_reg_mr_dma_buf,
	.dereg_mr = net_dereg_mr,
	.isend = old_isend_v8,
	.irecv = old_irecv_v8,
	.iflush = net_iflush,
	.test = net_test,
	.close_send = net_close_send,
	.close_recv = net_close_recv,
	.close_listen = net_close_listen,
	.irecv_consumed = net_irecv_consumed,
};
