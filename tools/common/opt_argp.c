// SPDX-License-Identifier: Apache-2.0
/*
 * Parsing that gxd and gxperf share (see opt_argp.h). Main thread, before the program opens
 * anything.
 */
#include "common/opt_argp.h"

#include "common/help.h"

#include <errno.h>
#include <string.h>

/* ---- By table ---- */

static int device_parse(const char *text, int *out)
{
	uint32_t v;

	if (!strcmp(text, "-1"))
		return *out = -1, 0;
	if (opt_u32(text, 0, 63, &v))
		return -EINVAL;
	*out = (int)v;
	return 0;
}

static int size_parse(const char *text, uint32_t max, uint64_t *out)
{
	uint64_t v;

	if (opt_size(text, &v) || v > max)
		return -EINVAL;
	*out = v;
	return 0;
}

static int value_take(const struct opt_value *v, const char *arg)
{
	switch (v->kind) {
	case OPT_U32:
		return opt_u32(arg, v->min, v->max, v->to);
	case OPT_DEVICE:
		return device_parse(arg, v->to);
	case OPT_SIZE:
		return size_parse(arg, v->max, v->to);
	case OPT_LIST:
		return opt_list(arg, v->to);
	case OPT_SIZES:
		return opt_sizes(arg, v->to);
	case OPT_SECONDS:
		return opt_seconds(arg, v->to);
	case OPT_TEXT:
		*(const char **)v->to = arg;
		return 0;
	case OPT_FLAG:
		*(bool *)v->to = true;
		return 0;
	default:
		return v->parse(arg);
	}
}

error_t opt_parse(const struct argp_option *options, const struct opt_value *values, int key,
		  const char *arg, struct argp_state *state)
{
	const struct opt_value *v = values;
	const struct argp_option *o = options;

	while (v->key && v->key != key)
		v++;
	if (!v->key)
		return ARGP_ERR_UNKNOWN;
	if (!value_take(v, arg))
		return 0;
	while (o->key != key)
		o++;
	if (v->kind == OPT_U32)
		argp_error(state, "--%s: '%s' is not a number from %u to %u", o->name, arg, v->min,
			   v->max);
	else
		argp_error(state, "--%s: '%s' is not a value of it: %s", o->name, arg, o->doc);
	return 0;
}

/* ---- Options that gxd and gxperf share ---- */

error_t opt_gx_take(int key, const char *arg, struct opt_ctx *ctx, struct argp_state *state)
{
	char why[OPT_WHY_MAX];
	int ret = opt_gx(key, arg, ctx, why);

	if (ret == -EINVAL)
		argp_error(state, "%s", why);
	return ret == -ENOENT ? ARGP_ERR_UNKNOWN : 0;
}

static const struct argp_option gx_options[] = {
	{"window", OPT_GX_WINDOW, "N", OPT_MORE, "Most chunks of a message under way",
	 OPT_GX_GROUP},
	{"chunk", OPT_GX_CHUNK, "SIZE", OPT_MORE, "Largest chunk, the unit of the window",
	 OPT_GX_GROUP},
	{"slots", OPT_GX_SLOTS, "N", OPT_MORE, "Bounce buffers a peer or queue", OPT_GX_GROUP},
	{"quantum", OPT_GX_QUANTUM, "SIZE", OPT_MORE,
	 "Payload of a packet, a multiple of 16, 1280 to 65520", OPT_GX_GROUP},
	{"unpack", OPT_GX_UNPACK, "MODE", OPT_MORE,
	 "How this end unpacks the payload that comes to it: kernel, resident, d2d, host, none "
	 "(copies nothing: wrong by design), auto",
	 OPT_GX_GROUP},
	{"bounce", OPT_GX_BOUNCE, "POOL", OPT_MORE,
	 "Where packets to this end land before they are unpacked: host (default), or gpu[:N], its "
	 "memory, which the GPU of a peer on this host writes (port shm)",
	 OPT_GX_GROUP},
	{"rdma", OPT_GX_RDMA, "DEVICE", OPT_MORE,
	 "This end's RDMA device, for link verbs: NAME, NAME:PORT, NAME:PORT:GID, or auto; behind it "
	 "service level and traffic class, ,sl=N,tc=N. Several times: connections use up to 8 "
	 "devices at once; all: every one with an active port",
	 OPT_GX_GROUP},
	{"sms", OPT_GX_SMS, "N", OPT_MORE, "SMs of this end's GPU that unpacking may use",
	 OPT_GX_GROUP},
	{"integrity", OPT_GX_INTEGRITY, "MODE", OPT_MORE,
	 "none, crc32c, or with a key mac or gcm; default: by port. A server with a key takes no "
	 "less from other hosts",
	 OPT_GX_GROUP},
	{"crc-by", OPT_GX_CRC_BY, "WHO", OPT_MORE,
	 "Who checks the CRC of payload that comes in: cpu (on arrival), copy (the kernel or CPU "
	 "that copies it), "
	 "auto (kernels that copy into a GPU, else cpu)",
	 OPT_GX_GROUP},
	{"pull", OPT_GX_PULL, "HOW", OPT_MORE,
	 "Long messages within this host, link local: on (the receiver reads them out of the "
	 "sender's process where the kernel lets it: one copy), auto (the same, if this end can do "
	 "it fast), off (packets), allow (as on, and this process lets all of its user read and "
	 "trace it, where Yama forbids that)",
	 OPT_GX_GROUP},
	{"tcp-rx", OPT_GX_TCP_RX, "HOW", OPT_MORE,
	 "How link tcp receives: copy (default), devmem (a NIC of Linux 6.12 puts payload into "
	 "memory of a GPU; no card has run it)",
	 OPT_GX_GROUP},
	{"tcp-rx-nic", OPT_GX_TCP_RX_NIC, "IF:A-B", OPT_MORE,
	 "With devmem: interface and queues, prepared as gxd nic plan says", OPT_GX_GROUP},
	{"tcp-rx-gpu", OPT_GX_TCP_RX_GPU, "N", OPT_MORE, "With devmem: the GPU; default 0",
	 OPT_GX_GROUP},
	{"tcp-rx-pool", OPT_GX_TCP_RX_POOL, "SIZE", OPT_MORE,
	 "Bytes of that GPU for the NIC, for all cores together; default 256M", OPT_GX_GROUP},
	{"tcp-tx", OPT_GX_TCP_TX, "HOW", OPT_MORE,
	 "How link tcp sends payload of 32K and more in memory of a GPU: copy (default), devmem (a "
	 "NIC of Linux 6.16 reads it there; no card has run it), auto (as devmem, where nothing is "
	 "missing)",
	 OPT_GX_GROUP},
	{"tcp-tx-nic", OPT_GX_TCP_TX_NIC, "IF", OPT_MORE,
	 "With devmem and auto: the interface that connections leave by", OPT_GX_GROUP},
	{0},
};

static error_t gx_parse(int key, char *arg, struct argp_state *state)
{
	struct opt_gx *gx = state->input;

	if (key == OPT_GX_UNPACK && gx->unpack_given)
		*gx->unpack_given = true;
	return opt_gx_take(key, arg, gx->ctx, state);
}

const struct argp opt_gx_argp = {.options = gx_options, .parser = gx_parse};

void opt_cores_take(const char *arg, const struct opt_cpus *allowed, struct opt_cpus *cpus,
		    struct argp_state *state)
{
	int cpu;

	if (opt_cpus(arg, cpus))
		argp_error(state, "--cores: '%s' is not a list of CPUs such as 0 or 0,2-3, or any",
			   arg);
	cpu = opt_cpus_stranger(cpus, allowed);
	if (cpu >= 0)
		argp_error(state, "--cores: this process may not use CPU %d (see taskset -p)", cpu);
}

void opt_link_take(const char *arg, const char **link, struct argp_state *state)
{
	if (strcmp(arg, "local") && strcmp(arg, "packet") && strcmp(arg, "tcp") &&
	    strcmp(arg, "verbs"))
		argp_error(state, "--link: '%s' is not local, packet, tcp or verbs", arg);
	*link = arg;
}
