/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of the tables of versions 11 and 12, as far as older tables have the same. NCCL's
 * threads call them; net_abi.h has the tables.
 */
#ifndef NCCL_NET_H
#define NCCL_NET_H

#include "net_abi.h"

#define NCCL_EXPORT __attribute__((visibility("default")))
#define NET_NAME    "gx" /* what NCCL_NET names */

int net_devices(int *nr);
int net_props_v12(int dev, struct nccl_props_v12 *out);
int net_listen(void *ctx, int dev, void *handle, void **listen_comm);
int net_connect(void *ctx, int dev, void *handle, void **send_comm,
		struct nccl_dev_handle **send_dev);
int net_accept(void *listen_comm, void **recv_comm, struct nccl_dev_handle **recv_dev);
int net_reg_mr(void *comm, void *data, size_t size, int type, void **mh);
int net_reg_mr_dma_buf(void *comm, void *data, size_t size, int type, uint64_t off, int fd,
		       void **mh);
int net_dereg_mr(void *comm, void *mh);
int net_isend(void *send_comm, void *data, size_t size, int tag, void *mh, void *phandle,
	      void **req);
int net_irecv(void *recv_comm, int n, void **data, size_t *sizes, int *tags, void **mhs,
	      void **phandles, void **req);
int net_iflush(void *recv_comm, int n, void **data, int *sizes, void **mhs, void **req);
int net_test(void *req, int *done, int *sizes);
int net_irecv_consumed(void *recv_comm, int n, void *req);
int net_close_send(void *send_comm);
int net_close_recv(void *recv_comm);
int net_close_listen(void *listen_comm);

#endif
