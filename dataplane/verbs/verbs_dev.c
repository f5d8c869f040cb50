/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libibverbs, which is loaded when a context first wants a device, and never unloaded: providers start
 * threads and keep handlers. And the device of a context: which one, which port, which GID, its
 * events, and which ports of peers it reaches. Control path.
 */
#include "verbs/verbs_lane.h"

#include "gx_internal/fork.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEV_EVENTS_MAX 64     /* taken at a time */
#define LID_MAX	       0xbfff /* of one port; beyond are those of groups */

/* ---- The library's functions ---- */

static const struct {
	const char *name;
	size_t at; /* in struct verbs_api */
	bool optional;
} symbols[] = {
#define API(fn) "ibv_" #fn, offsetof(struct verbs_api, fn)
	{API(get_device_list), false},
	{API(free_device_list), false},
	{API(get_device_name), false},
	{API(open_device), false},
	{API(close_device), false},
	{API(query_device), false},
	{API(query_port), false},
	{API(query_gid), false},
	{"_ibv_query_gid_ex", offsetof(struct verbs_api, query_gid_ex), true},
	{API(alloc_pd), false},
	{API(dealloc_pd), false},
	{API(reg_mr), false},
	{API(reg_dmabuf_mr), true},
	{API(dereg_mr), false},
	{API(create_cq), false},
	{API(destroy_cq), false},
	{API(create_qp), false},
	{API(modify_qp), false},
	{API(query_qp), false},
	{API(destroy_qp), false},
	{API(get_async_event), false},
	{API(ack_async_event), false},
	{API(wc_status_str), false},
#undef API
};
/* Each slot of the table has a symbol, and a slot is a pointer. */
_Static_assert(GX_ARRAY_SIZE(symbols) == sizeof(struct verbs_api) / sizeof(void *),
	       "one symbol a slot");

static struct verbs_api loaded;
static const struct verbs_api *chosen; /* verbs_api_set() */
static bool is_loaded;
static char load_why[192]; /* "": loaded */

static void api_load(void)
{
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!lib) {
		snprintf(load_why, sizeof(load_why),
			 "libibverbs.so.1 cannot be loaded (%.100s): install rdma-core", dlerror());
		return;
	}
	for (unsigned i = 0; i < GX_ARRAY_SIZE(symbols); i++) {
		void *fn = dlsym(lib, symbols[i].name);

		if (!fn && !symbols[i].optional) {
			snprintf(load_why, sizeof(load_why),
				 "libibverbs.so.1 has no %s: install a newer rdma-core",
				 symbols[i].name);
			return;
		}
		memcpy((char *)&loaded + symbols[i].at, &fn, sizeof(fn));
	}
	is_loaded = true;
}

const struct verbs_api *verbs_api(const char **why)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	*why = "";
	if (chosen)
		return chosen;
	pthread_once(&once, api_load);
	*why = load_why;
	return is_loaded ? &loaded : NULL;
}

void verbs_api_set(const struct verbs_api *api)
{
	chosen = api;
}

static int rail_check(const struct gx_rail *r)
{
	if (r->port > 255 || (r->has_gid && r->gid > 255) || r->sl > 15)
		return gx_fail(
			-EINVAL,
			"gx_rail '%.64s': port 1 to 255 or 0, GID 0 to 255, service level 0 to "
			"15",
			r->device ? r->device : "");
	return 0;
}

/* ---- The GID ---- */

static bool gid_is_zero(const union ibv_gid *gid)
{
	static const union ibv_gid zero;

	return !memcmp(gid, &zero, sizeof(zero));
}

/* ::ffff:a.b.c.d */
static bool gid_is_ipv4(const uint8_t gid[16])
{
	return IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)gid);
}

static enum verbs_gid gid_type(const struct verbs_dev *dev, uint32_t index)
{
	struct ibv_gid_entry e = {0};

	if (!dev->api->query_gid_ex ||
	    dev->api->query_gid_ex(dev->ctx, dev->port, index, &e, 0, sizeof(e)))
		return VERBS_GID_UNKNOWN;
	return e.gid_type == IBV_GID_TYPE_ROCE_V2   ? VERBS_GID_V2
	       : e.gid_type == IBV_GID_TYPE_ROCE_V1 ? VERBS_GID_V1
						    : VERBS_GID_UNKNOWN;
}

static void gids_read(struct verbs_dev *dev)
{
	struct verbs_gids *g = &dev->gids;

	memset(g, 0, sizeof(*g));
	g->n = (unsigned)GX_MAX(GX_MIN(dev->port_attr.gid_tbl_len, VERBS_GIDS_MAX), 0);
	for (unsigned i = 0; i < g->n; i++) {
		union ibv_gid gid;

		if (dev->api->query_gid(dev->ctx, dev->port, (int)i, &gid) || gid_is_zero(&gid))
			continue;
		g->at[i].gid = gid;
		g->at[i].type = gid_type(dev, i);
	}
}

/* Better is higher; 0: not usable. Routers pass RoCE v2 alone. An IPv4 address is set by a person,
 * a link-local one by nobody. */
static int gid_rank(const struct verbs_dev *dev, int index, union ibv_gid *gid)
{
	int rank = 1;

	if ((unsigned)index >= dev->gids.n || gid_is_zero(&dev->gids.at[index].gid))
		return 0;
	*gid = dev->gids.at[index].gid;
	rank += dev->gids.at[index].type == VERBS_GID_V2 ? 8 : 0;
	if (gid_is_ipv4(gid->raw))
		return rank + 4;
	return rank + (gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80 ? 0 : 2);
}

/* InfiniBand goes by LID. The port has a GID at index 0 at least, which the peer gets in case that
 * it names one: a queue pair with a GID hears only packets with the peer's. */
static int gid_ib(struct verbs_dev *dev)
{
	int asked = dev->gid_asked;

	dev->gid_index = GX_MAX(asked, 0);
	dev->wants_grh = asked >= 0 || dev->traffic_class ||
			 /* which goes beside GIDs */ dev->port_attr.flags & IBV_QPF_GRH_REQUIRED;
	if (!gid_rank(dev, dev->gid_index, &dev->gid) && dev->wants_grh)
		return gx_fail(-ENODEV, "%s port %u has no GID at index %d: name another one",
			       dev->name, dev->port, dev->gid_index);
	snprintf(dev->why, sizeof(dev->why), "InfiniBand: by LID %u%s", dev->port_attr.lid,
		 asked >= 0	      ? ", and by the GID asked for"
		 : dev->traffic_class ? ", and by GID 0 for the traffic class"
		 : dev->wants_grh     ? ", and by GID 0: the port requires one"
				      : "");
	return 0;
}

/* Among equals it stays the one that it was. */
static int gid_choose(struct verbs_dev *dev)
{
	const union ibv_gid was = dev->gid;
	int best = 0, rank, asked = dev->gid_asked;
	union ibv_gid gid;

	for (int i = 0; i < (int)dev->gids.n; i++) {
		if (asked >= 0 && i != asked)
			continue;
		rank = gid_rank(dev, i, &gid);
		if (rank < best || !rank || (rank == best && memcmp(&gid, &was, sizeof(gid)) != 0))
			continue;
		best = rank;
		dev->gid_index = i;
		dev->gid = gid;
	}
	if (!best)
		return gx_fail(-ENODEV,
			       "%s port %u has no usable GID%s: give its network interface an "
			       "address (ip addr add), or name another GID",
			       dev->name, dev->port, asked >= 0 ? " at this index" : "");
	dev->gid_type = dev->gids.at[dev->gid_index].type;
	snprintf(dev->why, sizeof(dev->why), "GID %d%s%s%s", dev->gid_index,
		 best > 8 ? ", RoCE v2" : "", gid_is_ipv4(dev->gid.raw) ? ", IPv4" : ", IPv6",
		 asked >= 0 ? ": asked for" : ": the best of the port");
	return 0;
}

static int address_choose(struct verbs_dev *dev)
{
	gids_read(dev);
	return dev->port_attr.link_layer == IBV_LINK_LAYER_ETHERNET ? gid_choose(dev) : gid_ib(dev);
}

/* New connections take the address that there is now. Others look for theirs in the table: see
 * verbs_paths.c. */
static void address_again(struct verbs_dev *dev)
{
	char was[VERBS_GID_TEXT_MAX], now[VERBS_GID_TEXT_MAX];
	struct ibv_port_attr attr = {0};
	union ibv_gid gid = dev->gid;
	int ret;

	if (dev->removed || dev->api->query_port(dev->ctx, dev->port, &attr))
		return; /* the next tick asks again */
	dev->address_changed = false;
	if (dev->port_attr.lid != attr.lid)
		gx_warn("%s port %u: its LID is %u, and was %u", dev->name, dev->port, attr.lid,
			dev->port_attr.lid);
	pthread_mutex_lock(&dev->lock); /* no log under it: its sink may describe the context */
	dev->port_attr.lid = attr.lid;
	dev->port_attr.gid_tbl_len = attr.gid_tbl_len;
	ret = address_choose(dev);
	pthread_mutex_unlock(&dev->lock);
	dev->no_gid = ret != 0;
	dev->address_gen++;
	if (ret)
		gx_warn("%s: no new connection by it until then", gx_error());
	else if (memcmp(&gid, &dev->gid, sizeof(gid)) != 0)
		gx_warn("%s port %u: new connections take GID %s, and no longer %s", dev->name,
			dev->port, verbs_gid_text(dev->gid.raw, now), verbs_gid_text(gid.raw, was));
}

bool verbs_dev_has(const struct verbs_dev *dev, const struct verbs_port *said, bool by_gid,
		   int *index)
{
	if (!said->is_ethernet && said->lid != dev->port_attr.lid)
		return false;
	if (!by_gid)
		return true;
	for (unsigned i = 0; i < dev->gids.n; i++) {
		if (memcmp(&dev->gids.at[i].gid, said->gid, sizeof(said->gid)) != 0 ||
		    (said->is_ethernet && dev->gids.at[i].type != said->gid_type))
			continue;
		*index = (int)i;
		return true;
	}
	return false;
}

/* ---- Device and port ---- */

/* Find an active port. Return: 0, -ENODEV. */
static int port_choose(struct verbs_dev *dev, unsigned asked)
{
	for (unsigned p = 1; p <= dev->attr.phys_port_cnt; p++) {
		struct ibv_port_attr *a = &dev->port_attr;

		memset(a, 0, sizeof(*a));
		if ((asked && p != asked) || dev->api->query_port(dev->ctx, (uint8_t)p, a) ||
		    a->state != IBV_PORT_ACTIVE)
			continue;
		dev->port = (uint8_t)p;
		return 0;
	}
	return gx_fail(-ENODEV, "%s: %s: is its network interface up?", dev->name,
		       asked ? "that port is not active" : "no port is active");
}

/* Ethernet carries it as one of the eight priorities of a VLAN. */
static int sl_check(const struct verbs_dev *dev, const struct gx_rail *a)
{
	if (a->sl <= 7 || dev->port_attr.link_layer != IBV_LINK_LAYER_ETHERNET)
		return 0;
	return gx_fail(-EINVAL,
		       "%s port %u is Ethernet, which has the service levels 0 to 7: sl=%u is for "
		       "InfiniBand",
		       dev->name, dev->port, a->sl);
}

/* Lanes times the rate of one, less coding, as the specification numbers both; 1: not known. */
static uint32_t port_mbps(const struct ibv_port_attr *a)
{
	static const uint32_t lane_mbps[] = {2000, 4000, 8000, 10000, 14000, 25000, 50000, 100000};
	unsigned lanes = a->active_width == 2	 ? 4
			 : a->active_width == 4	 ? 8
			 : a->active_width == 8	 ? 12
			 : a->active_width == 16 ? 2
						 : 1;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(lane_mbps); i++)
		if (a->active_speed == 1u << i)
			return lanes * lane_mbps[i];
	return 1;
}

static int dev_try(struct verbs_dev *dev, struct ibv_device *of, const struct gx_rail *a)
{
	int ret;

	snprintf(dev->name, sizeof(dev->name), "%s", dev->api->get_device_name(of));
	if (of->transport_type != IBV_TRANSPORT_IB)
		return gx_fail(-ENODEV,
			       "%s is neither InfiniBand nor RoCE: its queue pairs cannot be "
			       "connected so (iWARP needs rdma_cm)",
			       dev->name);
	dev->ctx = dev->api->open_device(of);
	if (!dev->ctx)
		return gx_fail(-ENODEV, "%s cannot be opened: %s (rights on /dev/infiniband?)",
			       dev->name, strerror(errno));
	gx_fd_own(dev->ctx->cmd_fd);
	gx_fd_own(dev->ctx->async_fd);
	ret = dev->api->query_device(dev->ctx, &dev->attr);
	if (ret)
		return gx_fail(-ENODEV, "%s does not report what it can do: %s", dev->name,
			       strerror(ret));
	dev->sl = a->sl;
	dev->traffic_class = a->tc;
	ret = port_choose(dev, a->port);
	if (!ret)
		ret = sl_check(dev, a);
	dev->gid_asked = a->has_gid ? (int)a->gid : -1;
	if (!ret)
		ret = address_choose(dev);
	if (ret)
		return ret;
	dev->speed_mbps = port_mbps(&dev->port_attr);
	device_place(&dev->place, "class/infiniband/%s/device", dev->name); /* soft RoCE has none */
	dev->pd = dev->api->alloc_pd(dev->ctx);
	if (!dev->pd)
		return gx_fail(-ENOMEM, "%s: no protection domain: %s", dev->name, strerror(errno));
	/* Events are taken by a timer of the control thread, which must not block. */
	if (dev->ctx->async_fd >= 0)
		fcntl(dev->ctx->async_fd, F_SETFL, fcntl(dev->ctx->async_fd, F_GETFL) | O_NONBLOCK);
	return 0;
}

static int ctx_close(struct verbs_dev *dev)
{
	gx_fd_forget(dev->ctx->cmd_fd);
	gx_fd_forget(dev->ctx->async_fd);
	return dev->api->close_device(dev->ctx);
}

static void dev_end(struct verbs_dev *dev)
{
	int ret = dev->pd ? verbs_end_err(dev, dev->api->dealloc_pd(dev->pd)) : 0;

	if (ret)
		gx_err("%s does not end the context's protection domain: %s: something of it is "
		       "still in use",
		       dev->name, strerror(ret));
	if (dev->ctx && ctx_close(dev))
		gx_err("%s does not close: %s", dev->name, strerror(errno));
	while (dev->kept) {
		struct verbs_kept *k = dev->kept;

		dev->kept = k->next;
		free(k->mem);
		free(k);
	}
	dev->pd = NULL;
	dev->ctx = NULL;
}

static int list_try(struct verbs_dev *dev, const struct gx_rail *a)
{
	int n = 0, ret;
	struct ibv_device **list = dev->api->get_device_list(&n);

	ret = gx_fail(-ENODEV, "no RDMA device%s%s: ibv_devices lists those that there are",
		      a->device ? " " : "", a->device ? a->device : "");
	for (int i = 0; list && i < n; i++) {
		if (a->device && strcmp(dev->api->get_device_name(list[i]), a->device))
			continue;
		ret = dev_try(dev, list[i], a);
		if (!ret)
			break;
		dev_end(dev);
	}
	if (list)
		dev->api->free_device_list(list);
	return ret;
}

static void dev_free(struct verbs_dev *dev)
{
	verbs_dials_close(&dev->dials);
	pthread_mutex_destroy(&dev->lock);
	free(dev);
}

int verbs_dev_open(const struct gx_rail *rail, struct verbs_dev **out)
{
	struct verbs_dev *dev;
	const char *why;
	int ret = rail_check(rail);

	if (ret)
		return ret;
	dev = calloc(1, sizeof(*dev));
	if (!dev)
		return gx_fail(-ENOMEM, "no memory for a verbs device");
	pthread_mutex_init(&dev->lock, NULL);
	verbs_dials_init(&dev->dials);
	dev->api = verbs_api(&why);
	ret = dev->api ? list_try(dev, rail) : gx_fail(-ENODEV, "%s", why);
	if (ret) {
		dev_free(dev);
		return ret;
	}
	*out = dev;
	return 0;
}

int verbs_dev_names(char name[][GX_NAME_MAX], unsigned max)
{
	struct ibv_device **list;
	const struct verbs_api *api;
	const char *why;
	int n = 0, got = 0;

	api = verbs_api(&why);
	if (!api)
		return gx_fail(-ENODEV, "%s", why);
	list = api->get_device_list(&n);
	for (; list && got < n && got < (int)max; got++)
		snprintf(name[got], GX_NAME_MAX, "%s", api->get_device_name(list[got]));
	if (list)
		api->free_device_list(list);
	return got ? got
		   : gx_fail(-ENODEV, "no RDMA device: ibv_devices lists those that there are");
}

void verbs_dev_close(struct verbs_dev *dev)
{
	if (!dev)
		return;
	dev_end(dev);
	dev_free(dev);
}

int verbs_dev_text(struct verbs_dev *dev, char *buf, size_t room)
{
	char class[64] = "", speed[32] = "", node[32] = "";
	int n;

	if (dev->speed_mbps > 1)
		snprintf(speed, sizeof(speed), ", %u Gb/s", dev->speed_mbps / 1000);
	if (dev->place.numa >= 0)
		snprintf(node, sizeof(node), ", NUMA node %d", dev->place.numa);
	if (dev->sl || dev->traffic_class)
		snprintf(class, sizeof(class), "; service level %u, traffic class %u", dev->sl,
			 dev->traffic_class);
	pthread_mutex_lock(&dev->lock);
	n = snprintf(buf, room,
		     "verbs    %s port %u, MTU %u%s%s, %s%s%s; memory of GPUs: by %spackets",
		     dev->name, dev->port, 128u << dev->port_attr.active_mtu, speed, node, dev->why,
		     class,
		     dev->removed     ? "; it was removed"
		     : dev->failed    ? "; it has failed"
		     : dev->no_gid    ? "; it has this GID no more, nor another one"
		     : dev->port_down ? "; its port is down"
				      : "",
		     dev->api->reg_dmabuf_mr ? "dma-buf where the GPU gives one, else by " : "");
	pthread_mutex_unlock(&dev->lock);
	return n;
}

/* ---- Events ---- */

/* A core sees the end of a queue pair in its completions, if the device flushes it. */
static void event_lane(const struct verbs_dev *dev, const struct ibv_async_event *e)
{
	struct verbs_lane *l;
	bool of_cq = e->event_type == IBV_EVENT_CQ_ERR;

	l = of_cq ? e->element.cq->cq_context : e->element.qp->qp_context;
	if (!l) /* the device did not end it, and its lane is no more */
		return;
	verbs_qps_event(l, of_cq ? e->element.cq : NULL, of_cq ? NULL : e->element.qp,
			e->event_type == IBV_EVENT_QP_FATAL);
	gx_info("%s reports an error of a %s (event %d)", dev->name,
		of_cq ? "completion queue" : "queue pair", (int)e->event_type);
}

static void event_take(struct verbs_dev *dev, const struct ibv_async_event *e)
{
	switch (e->event_type) {
	case IBV_EVENT_DEVICE_FATAL:
		if (dev->removed)
			break;
		gx_err("%s reports a fatal error, or was removed: %s", dev->name,
		       dev->has_others ? "connections go on by others, where they have any"
				       : "its connections end");
		dev->removed = dev->failed = true;
		break;
	case IBV_EVENT_CQ_ERR:
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
		event_lane(dev, e);
		break;
	case IBV_EVENT_PORT_ERR: /* retries in vain show it to the cores; verbs_conn.c where there
				    are others */
	case IBV_EVENT_PORT_ACTIVE:
		if (e->element.port_num != dev->port)
			break;
		dev->port_down = e->event_type == IBV_EVENT_PORT_ERR;
		gx_warn("%s port %u is %s", dev->name, dev->port,
			e->event_type == IBV_EVENT_PORT_ERR ? "down: is the cable in?"
							    : "up again");
		break;
	case IBV_EVENT_GID_CHANGE:
	case IBV_EVENT_LID_CHANGE:
		dev->address_changed |= e->element.port_num == dev->port;
		break;
	default: /* gx has no second path, no shared receives, and reads no other table */
		break;
	}
}

bool verbs_dev_events(struct verbs_dev *dev)
{
	struct ibv_async_event e;

	for (unsigned i = 0; i < DEV_EVENTS_MAX && !dev->api->get_async_event(dev->ctx, &e); i++) {
		event_take(dev, &e);
		dev->api->ack_async_event(&e);
	}
	if (dev->address_changed)
		address_again(dev);
	return !dev->removed;
}

/* ---- A port of the peer ---- */

const char *verbs_gid_text(const uint8_t gid[16], char text[VERBS_GID_TEXT_MAX])
{
	return inet_ntop(AF_INET6, gid, text, VERBS_GID_TEXT_MAX);
}

static bool gid_is_loopback(const uint8_t gid[16])
{
	return gid_is_ipv4(gid) ? gid[12] == 127
				: IN6_IS_ADDR_LOOPBACK((const struct in6_addr *)gid);
}

/* The address of one port, of whatever network? */
static bool gid_is_unicast(const uint8_t gid[16])
{
	if (gid_is_ipv4(gid))
		return gid[12] && gid[12] < 224;
	return gid[0] != 0xff && !IN6_IS_ADDR_UNSPECIFIED((const struct in6_addr *)gid);
}

static int path_ethernet(const struct verbs_dev *dev, const struct verbs_port *peer)
{
	char own[VERBS_GID_TEXT_MAX], other[VERBS_GID_TEXT_MAX];

	verbs_gid_text(dev->gid.raw, own);
	verbs_gid_text(peer->gid, other);
	if (!gid_is_unicast(peer->gid) ||
	    (gid_is_loopback(peer->gid) && !gid_is_loopback(dev->gid.raw)))
		return gx_fail(-EINVAL, "the GID %s of the peer's device is no address of a port",
			       other);
	if (gid_is_ipv4(peer->gid) != gid_is_ipv4(dev->gid.raw))
		return gx_fail(-EOPNOTSUPP,
			       "%s has GID %s, the peer's device %s: name two of IPv4, or two of "
			       "IPv6",
			       dev->name, own, other);
	if (peer->gid_type && dev->gid_type && peer->gid_type != dev->gid_type)
		return gx_fail(-EOPNOTSUPP,
			       "GID %s of %s is of RoCE v%u, the peer's %s of v%u: name two of v2",
			       own, dev->name, dev->gid_type, other, peer->gid_type);
	return 0;
}

static int path_infiniband(const struct verbs_dev *dev, const struct verbs_port *peer)
{
	if (!peer->lid || peer->lid > LID_MAX)
		return gx_fail(-EINVAL,
			       "the LID %u of the peer's device is no address of a port: does a "
			       "subnet manager run?",
			       peer->lid);
	if (!dev->wants_grh && !peer->wants_grh)
		return 0;
	if (gid_is_unicast(peer->gid) && gid_is_unicast(dev->gid.raw))
		return 0;
	return gx_fail(-EINVAL, "an end wants packets with GIDs, and %s has none: name a GID there",
		       gid_is_unicast(dev->gid.raw) ? "the peer's device" : dev->name);
}

/* The peer's word is all there is: its device need not have the address of its sockets. */
int verbs_path_check(const struct verbs_dev *dev, const struct verbs_port *peer)
{
	bool is_ethernet = dev->port_attr.link_layer == IBV_LINK_LAYER_ETHERNET;

	if (peer->is_ethernet != is_ethernet)
		return gx_fail(-EOPNOTSUPP,
			       "%s and the peer's device are on different networks (InfiniBand, "
			       "Ethernet): name other devices",
			       dev->name);
	return is_ethernet ? path_ethernet(dev, peer) : path_infiniband(dev, peer);
}

/* InfiniBand has no path between subnets without a router. The length of an Ethernet network's
 * prefix is not known: addresses that share more are nearer, up to where hosts begin at the latest. */
unsigned verbs_path_near(const struct verbs_dev *dev, const struct verbs_port *peer)
{
	unsigned max = gid_is_ipv4(peer->gid) ? 120 : 64, n = 0;

	while (n < max && !((dev->gid.raw[n / 8] ^ peer->gid[n / 8]) >> (7 - n % 8) & 1))
		n++;
	return n;
}
