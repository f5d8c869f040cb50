/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device of a context, for the files of this room. owner: ctl; frozen after verbs_dev_open(), but
 * for regs, removed, failed, port_down, said_gpu, kept, and its addresses: gid_index, gid, gid_type,
 * port_attr.lid, gids and why. The control thread changes these, under the lock of verbs_dev_text(),
 * which any thread calls. dials has threads of its own.
 */
#ifndef GX_VERBS_DEV_H
#define GX_VERBS_DEV_H

#include "verbs/verbs.h"
#include "verbs/verbs_api.h"
#include "verbs/verbs_dial.h"
#include "verbs/verbs_near.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

/* Memory that a device may still write to: freed when the device is closed. */
struct verbs_kept {
	struct verbs_kept *next;
	void *mem;
};

/* The GIDs of a port. */
#define VERBS_GIDS_MAX 256
struct verbs_gids {
	unsigned n;
	struct {
		union ibv_gid gid; /* zero: none */
		enum verbs_gid type;
	} at[VERBS_GIDS_MAX];
};

struct verbs_dev {
	const struct verbs_api *api;
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	char name[GX_NAME_MAX];
	uint8_t port;
	int gid_asked; /* the index; -1: none */
	int gid_index; /* for connections that are made */
	union ibv_gid gid;
	enum verbs_gid gid_type;
	bool wants_grh; /* InfiniBand: packets carry GIDs: the user names one, or the port asks */
	struct ibv_device_attr attr;
	struct ibv_port_attr port_attr;
	uint8_t sl, traffic_class;
	uint8_t rail;		/* its number in the context */
	bool has_others;	/* so has the context */
	uint32_t speed_mbps;	/* of the port; 1: it does not report it */
	struct gx_device place; /* .pci, .numa */
	char why[160];		/* why this GID */
	pthread_mutex_t lock;
	struct verbs_gids gids;
	uint32_t address_gen; /* counts changes of these and of the LID */
	bool address_changed; /* an event has said so */
	_Atomic bool no_gid;  /* none that can be used: no connection more. ctl */
	struct verbs_reg *regs;
	_Atomic bool removed; /* a fatal event: nothing works any more. ctl */
	_Atomic bool
		failed; /* removed, or it has kept what peers can reach: no connection more. ctl */
	_Atomic bool port_down;	  /* an event has said so, and none that it is up again */
	_Atomic bool said_gpu;	  /* any thread: the log says that memory of GPUs goes by packets */
	struct verbs_kept *kept;  /* slots of queue pairs that the device did not end */
	struct verbs_dials dials; /* connect its queue pairs */
};

/* The devices of a context. Frozen after verbs_rails_open(). */
struct verbs_rails {
	unsigned nr;
	struct verbs_dev *dev[VERBS_RAILS_MAX];
};

/** verbs_dev_has() - Does its port still have the addresses of @said, which a peer was told? @index: of
 * the GID. @by_gid: packets carry it. Control thread. */
bool verbs_dev_has(const struct verbs_dev *dev, const struct verbs_port *said, bool by_gid,
		   int *index);

/** verbs_dev_keep() - The device may still write to @mem, of malloc(): free it with the device. */
static inline void verbs_dev_keep(struct verbs_dev *dev, void *mem)
{
	struct verbs_kept *k = malloc(sizeof(*k));

	if (!k) /* better lost than written to */
		return;
	*k = (struct verbs_kept){dev->kept, mem};
	dev->kept = k;
}

/** verbs_path_mtu() - Of the packets between two ports: enum ibv_mtu. */
int verbs_path_mtu(const struct verbs_dev *dev, const struct verbs_port *peer);
/** verbs_chunk_b() - The largest request that both devices take, at most @asked_b. */
uint32_t verbs_chunk_b(const struct verbs_dev *dev, const struct verbs_port *peer,
		       uint32_t asked_b);
/** verbs_port_fill() - What our end of a connection says of a device. */
void verbs_port_fill(const struct verbs_dev *dev, struct verbs_port *p);

/* -- A port of the peer; control thread -- */

#define VERBS_GID_TEXT_MAX 46
const char *verbs_gid_text(const uint8_t gid[16], char text[VERBS_GID_TEXT_MAX]);
/** verbs_path_check() - Can packets go between @dev and the device of @peer? Return: 0, -EINVAL,
 * -EOPNOTSUPP with gx_error(). */
int verbs_path_check(const struct verbs_dev *dev, const struct verbs_port *peer);
/** verbs_path_near() - Of two paths that pass verbs_path_check(), which one stays in its own
 * network, as far as GIDs show? Higher is better. */
unsigned verbs_path_near(const struct verbs_dev *dev, const struct verbs_port *peer);

/* -- verbs_rails.c; any thread -- */

/** verbs_rails_unfork() - Drivers map pages of the devices, which hold them as descriptors do: a child of
 * fork() does not get those that there are. Control path. */
void verbs_rails_unfork(const struct verbs_rails *rails);

/** verbs_rails_near() - Of rails @of, as bits, those that are nearest to @gpu; all, if nothing is known. */
uint32_t verbs_rails_near(const struct verbs_rails *r, const struct gx_gpu *gpu, uint32_t of);
/** verbs_rails_list() - Rails @of with their distance to @gpu. Return: bytes, as snprintf(). */
int verbs_rails_list(const struct verbs_rails *r, const struct gx_gpu *gpu, uint32_t of, char *buf,
		     size_t room);

/* What a call that ends something has returned. Of a device that was removed, libibverbs says EIO: the
 * kernel has ended everything of it before. EIO of any other device is a refusal. */
static inline int verbs_end_err(const struct verbs_dev *dev, int ret)
{
	return ret == EIO && dev->removed ? 0 : ret;
}

#endif
