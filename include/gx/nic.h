/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a network interface of this host offers for receiving TCP payload, what it lacks, and the
 * steps of its set-up. These calls look, and change nothing. They need no context. Versions of
 * structs and errors: as in gx.h. Any thread; a struct gx_nic does not change.
 *
 * No mode but copy has run on hardware.
 */
#ifndef GX_NIC_H
#define GX_NIC_H

#include <gx/gx.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gx_nic; /* an interface as it was when gx_nic_open() looked */

/**
 * gx_nic_open() - Look at interface @name ("eth0"). A process without CAP_NET_ADMIN sees all but
 * the driver's answer to a binding.
 * Return: 0, -EINVAL, -ENODEV (no such interface), -ENOMEM, -EOPNOTSUPP (gx was built with
 * -Dnic_memory=false).
 */
int gx_nic_open(const char *name, struct gx_nic **out);
void gx_nic_close(struct gx_nic *nic); /* NULL is fine */

/** struct gx_nic_fact - One thing that the kernel reported: "driver", "mlx5_core". */
struct gx_nic_fact {
	size_t size;
	char name[32];
	char text[224];
};

/** gx_nic_fact() - Fact @index, from 0 on. Return: 0, -EINVAL, -ENOENT (there are no more). */
int gx_nic_fact(const struct gx_nic *nic, unsigned index, struct gx_nic_fact *out);

/** enum gx_nic_can - Is a mode there, or a step done? */
enum gx_nic_can {
	GX_NIC_NO,    /* something is missing that no set-up mends; a step is refused */
	GX_NIC_LATER, /* a set-up step is left; a step can be done */
	GX_NIC_YES,   /* now; a step is done already */
};

/** struct gx_nic_mode - A way of receiving: "copy", "devmem". */
struct gx_nic_mode {
	size_t size;
	enum gx_nic_can can;
	unsigned reserved;
	char name[32];
	char why[256];	/* unless YES: what is missing, or left to do */
	char cure[256]; /* unless YES */
};

/** gx_nic_mode() - Mode @index, from 0 on. Return: 0, -EINVAL, -ENOENT (there are no more). */
int gx_nic_mode(const struct gx_nic *nic, unsigned index, struct gx_nic_mode *out);

/** struct gx_nic_step - One step of the set-up for devmem, and the driver's answer. */
struct gx_nic_step {
	size_t size;
	enum gx_nic_can can;
	unsigned reserved;
	char name[32];	   /* "header split" */
	char command[256]; /* in the words of ethtool; empty: it has none, or none is left */
	char netlink[256]; /* what gx would ask of the kernel */
	char answer[256];  /* how it is now, and what the driver says */
	char cure[256];	   /* if NO */
};

/**
 * gx_nic_step() - Step @index, from 0 on, in order, to give receive queues @first to @last to
 * memory of a device.
 * @tcp_port: where connections arrive; 0: not known
 * Return: 0; -EINVAL, -ERANGE (not such queues; gx_error() says why); -ENOENT (there are no more).
 */
int gx_nic_step(const struct gx_nic *nic, unsigned first, unsigned last, unsigned tcp_port,
		unsigned index, struct gx_nic_step *out);

#ifdef __cplusplus
}
#endif

#endif
