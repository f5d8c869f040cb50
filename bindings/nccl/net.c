/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables of versions 12 and 11, and what NCCL learns of the device. Thin: each function checks
 * what NCCL may get wrong, and calls the file that does the work.
 */
#include "net.h"
#include "plug.h"

#include <errno.h>
#include <string.h>

static int net_init(void **ctx, uint64_t comm_id, struct nccl_config *config, nccl_log_fn log,
		    nccl_prof_fn prof)
{
	(void)comm_id;
	(void)config;
	(void)prof;
	return ctx ? proc_open(ctx, log, true) : NCCL_INVALID_ARGUMENT;
}

static int net_finalize(void *ctx)
{
	return proc_close(ctx);
}

/* Channels follow from it: NCCL spreads two for each device over the cores. */
int net_devices(int *nr)
{
	*nr = (int)plug.conf.nr_devices;
	return NCCL_OK;
}

/* By device. NCCL keeps the pointer, and takes devices of one name for one. */
static char net_names[DEVICES_MAX][5] = {"gx0",	 "gx1",	 "gx2",	 "gx3", "gx4",	"gx5",
					 "gx6",	 "gx7",	 "gx8",	 "gx9", "gx10", "gx11",
					 "gx12", "gx13", "gx14", "gx15"};

/* NCCL joins what the ranks of a host report, and may give a rank a device of another one. */
static bool net_has(int dev)
{
	if (dev >= 0 && dev < (int)plug.conf.nr_devices)
		return true;
	say_warn("there is no device %d, as this process reports %u: set the same GX_NCCL_DEVICES "
		 "on all ranks of a host",
		 dev, plug.conf.nr_devices);
	return false;
}

/* A device has no PCI path: NCCL would take a GPU's for a card's. One receive at a time, because
 * NCCL else shares comms between the ranks of a host. */
int net_props_v12(int dev, struct nccl_props_v12 *out)
{
	if (!net_has(dev) || !out)
		return NCCL_INVALID_ARGUMENT;
	memset(out, 0, sizeof(*out));
	out->name = net_names[dev];
	out->guid = plug.host + (unsigned)dev;
	out->ptr_support = NCCL_PTR_HOST;
	out->speed_mbps = plug.conf.speed_mbps
				  ? plug.conf.speed_mbps
				  : CORE_MBPS * (int)plug.nr_lanes / (int)plug.conf.nr_devices;
	out->port = 1;
	out->latency_us = (float)plug.conf.latency_us;
	out->comms_max = 65536;
	out->recvs_max = 1;
	out->device_type = NCCL_DEVICE_HOST;
	if (plug.conf.offload) {
		/* Receive buffers may lie in a GPU. NCCL_NET_GDR_READ=0 keeps send buffers here. */
		out->ptr_support |= NCCL_PTR_CUDA;
		out->device_type = NCCL_DEVICE_UNPACK;
		out->device_version = NCCL_UNPACK_VERSION;
	}
	out->vprops.nr_devs = 1;
	out->p2p_b_max = NCCL_SIZE_MAX;
	out->coll_b_max = NCCL_SIZE_MAX;
	out->multi_request_max = 1;
	out->rail = out->plane = -1;
	return NCCL_OK;
}

static int net_props_v11(int dev, struct nccl_props_v11 *out)
{
	struct nccl_props_v12 p;
	int ret = out ? net_props_v12(dev, &p) : NCCL_INVALID_ARGUMENT;

	if (ret)
		return ret;
	*out = (struct nccl_props_v11){.name = p.name,
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
				       .coll_b_max = p.coll_b_max,
				       .multi_request_max = p.multi_request_max};
	return NCCL_OK;
}

/* ---- Comms ---- */

int net_listen(void *ctx, int dev, void *handle, void **listen_comm)
{
	if (!net_has(dev) || !handle || !listen_comm || !plug.gx || !proc_is_here())
		return NCCL_INVALID_ARGUMENT;
	return meet_listen(ctx, handle, listen_comm);
}

int net_connect(void *ctx, int dev, void *handle, void **send_comm,
		struct nccl_dev_handle **send_dev)
{
	(void)send_dev; /* for device offload alone */
	if (!net_has(dev) || !handle || !send_comm || !plug.gx || !proc_is_here())
		return NCCL_INVALID_ARGUMENT;
	return meet_connect(ctx, handle, send_comm);
}

/* NCCL gives a device handle to be filled in if the device's properties say so, and else NULL: for
 * its own bootstrap (NCCL_OOB_NET_ENABLE) it reads what it receives by itself. */
int net_accept(void *listen_comm, void **recv_comm, struct nccl_dev_handle **recv_dev)
{
	int ret;

	if (!listen_comm || !recv_comm || !proc_is_here())
		return NCCL_INVALID_ARGUMENT;
	ret = meet_accept(listen_comm, recv_comm);
	if (ret || !*recv_comm || !plug.conf.offload || !recv_dev || !*recv_dev)
		return ret;
	ret = offload_give(*recv_comm, *recv_dev);
	if (!ret)
		return NCCL_OK;
	if (ret == -EAGAIN) /* NCCL calls again */
		meet_put_back(listen_comm, *recv_comm);
	else
		req_close(*recv_comm, false);
	*recv_comm = NULL;
	return ret == -EAGAIN ? NCCL_OK : ret;
}

int net_close_send(void *send_comm)
{
	return proc_is_here() ? req_close(send_comm, true) : NCCL_OK;
}

int net_close_recv(void *recv_comm)
{
	return proc_is_here() ? req_close(recv_comm, false) : NCCL_OK;
}

int net_close_listen(void *listen_comm)
{
	if (!listen_comm)
		return NCCL_INVALID_ARGUMENT;
	return proc_is_here() ? meet_close_listen(listen_comm) : NCCL_OK;
}

/* ---- Memory ---- */

int net_reg_mr(void *comm, void *data, size_t size, int type, void **mh)
{
	if (!comm || !mh || !proc_is_here())
		return NCCL_INVALID_ARGUMENT;
	return reg_make(comm, data, size, type, mh);
}

/* NCCL asks for it if ptr_support has NCCL_PTR_DMABUF, which it has not. */
int net_reg_mr_dma_buf(void *comm, void *data, size_t size, int type, uint64_t off, int fd,
		       void **mh)
{
	(void)comm;
	(void)data;
	(void)size;
	(void)type;
	(void)off;
	(void)fd;
	if (mh)
		*mh = NULL;
	return NCCL_INVALID_USAGE;
}

int net_dereg_mr(void *comm, void *mh)
{
	return proc_is_here() ? reg_drop(comm, mh) : NCCL_OK;
}

/* ---- Requests ---- */

int net_isend(void *send_comm, void *data, size_t size, int tag, void *mh, void *phandle,
	      void **req)
{
	(void)tag;
	(void)phandle;
	if (!send_comm || !req)
		return NCCL_INVALID_ARGUMENT;
	return req_isend(send_comm, data, size, mh, req);
}

/* *req may hold NCCL_NO_DONE_REQ: a hint, with LL and LL128 alone, which shows gx the protocol. */
int net_irecv(void *recv_comm, int n, void **data, size_t *sizes, int *tags, void **mhs,
	      void **phandles, void **req)
{
	(void)tags;
	(void)phandles;
	bool is_ll;
	int ret;

	if (!req)
		return NCCL_INVALID_ARGUMENT;
	is_ll = (uintptr_t)*req == NCCL_NO_DONE_REQ;
	*req = NULL;
	if (!recv_comm || n != 1 || !data || !sizes || !mhs)
		return NCCL_INVALID_ARGUMENT;
	ret = is_ll ? req_is_ll(recv_comm, sizes[0]) : NCCL_OK;
	return ret ? ret : req_irecv(recv_comm, data[0], sizes[0], mhs[0], req);
}

/*
 * No memory needs a flush. A receive's completion says that CPUs have stored its bytes, in memory of
 * the host. So no write of a device is still on its way over PCIe, which a flush is for.
 */
int net_iflush(void *recv_comm, int n, void **data, int *sizes, void **mhs, void **req)
{
	(void)recv_comm;
	(void)n;
	(void)data;
	(void)sizes;
	(void)mhs;
	if (!req)
		return NCCL_INVALID_ARGUMENT;
	*req = NULL;
	return NCCL_OK;
}

int net_test(void *req, int *done, int *sizes)
{
	return done ? req_test(req, done, sizes) : NCCL_INVALID_ARGUMENT;
}

int net_irecv_consumed(void *recv_comm, int n, void *req)
{
	return recv_comm ? req_consumed(recv_comm, n, req) : NCCL_INVALID_ARGUMENT;
}

/* ---- Tables ---- */

extern const struct nccl_net_v12 ncclNetPlugin_v12;
extern const struct nccl_net_v11 ncclNetPlugin_v11;

NCCL_EXPORT const struct nccl_net_v12 ncclNetPlugin_v12 = {
	.name = NET_NAME,
	.init = net_init,
	.devices = net_devices,
	.get_properties = net_props_v12,
	.listen = net_listen,
	.connect = net_connect,
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
	.finalize = net_finalize,
};

NCCL_EXPORT const struct nccl_net_v11 ncclNetPlugin_v11 = {
	.name = NET_NAME,
	.init = net_init,
	.devices = net_devices,
	.get_properties = net_props_v11,
	.listen = net_listen,
	.connect = net_connect,
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
	.finalize = net_finalize,
};
