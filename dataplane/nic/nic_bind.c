// SPDX-License-Identifier: Apache-2.0
/*
 * Bind a dma-buf to receive queues of a NIC, or for sending. The kernel ties a binding to the
 * netlink socket that asked for it. UNTRIED on hardware: no NIC here takes one. Control path, one
 * thread at a time for a binding.
 */
#include "nic/nic.h"

#include "core/core.h"
#include "nic/nic_abi.h"
#include "nic/nic_nl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct nic_bind {
	struct nic_nl *nl; /* closing it ends the binding */
	uint32_t id;
};

/* Return: @err, with gx_error(). */
static int bind_fail(const struct nic_sys *sys, const char *name, int err, const char *text)
{
	struct nic_facts f = {0};
	char why[320], cure[160];

	strncpy(f.name, name, sizeof(f.name) - 1);
	nic_driver(sys, name, f.driver, f.bus);
	nic_refusal(&f, err, text, why, sizeof(why), cure, sizeof(cure));
	return gx_fail(err, "%s. Cure: %s", why, cure);
}

/* Ask with @queues, or for sending without. */
static int bind_ask(struct nic_bind *b, const char *name, int ifindex, const uint32_t *queues,
		    unsigned nr, int fd, struct nic_got *got)
{
	unsigned op = queues ? NIC_NETDEV_BIND_RX : NIC_NETDEV_BIND_TX;
	int ret = nic_nl_family(b->nl, "netdev", got);

	if (ret || !(got->ops >> op & 1))
		return gx_fail(ret && ret != -ENOENT ? ret : -EOPNOTSUPP,
			       "%s: this kernel does not know %s of family netdev. Use Linux %s or "
			       "newer",
			       name, queues ? "bind-rx" : "bind-tx", queues ? "6.12" : "6.16");
	ret = queues ? nic_nl_bind_rx(b->nl, got->family, ifindex, queues, nr, fd, got)
		     : nic_nl_bind_tx(b->nl, got->family, ifindex, fd, got);
	return ret ? bind_fail(b->nl->sys, name, ret, got->text) : 0;
}

static int bind_open(const struct nic_sys *sys, const char *name, const uint32_t *queues,
		     unsigned nr, int fd, struct nic_bind **out)
{
	int ifindex = sys->ifindex(name), ret;
	struct nic_bind *b = calloc(1, sizeof(*b));
	struct nic_got *got = malloc(sizeof(*got));

	if (!b || !got)
		ret = gx_fail(-ENOMEM, "no memory to bind queues of %s", name);
	else if (ifindex < 0)
		ret = gx_fail(ifindex, "this host has no interface '%s'", name);
	else if ((ret = nic_nl_open(sys, &b->nl)))
		gx_fail(ret, "%s: no netlink: %s", name,
			ret == -ENOSYS
				? "gx was built without libmnl; install libmnl-dev and build "
				  "it again"
				: strerror(-ret));
	else
		ret = bind_ask(b, name, ifindex, queues, nr, fd, got);
	if (!ret) {
		b->id = got->id;
		*out = b;
	} else {
		nic_unbind(b);
	}
	free(got);
	return ret;
}

int nic_bind_rx(const struct nic_sys *sys, const char *name, const uint32_t *queues, unsigned nr,
		int fd, struct nic_bind **out)
{
	if (!queues || !nr || nr > NIC_QUEUES_MAX)
		return gx_fail(-EINVAL, "%s: 1 to %d queues can be bound", name, NIC_QUEUES_MAX);
	return bind_open(sys, name, queues, nr, fd, out);
}

int nic_bind_tx(const struct nic_sys *sys, const char *name, int fd, struct nic_bind **out)
{
	return bind_open(sys, name, NULL, 0, fd, out);
}

uint32_t nic_bind_id(const struct nic_bind *b)
{
	return b->id;
}

void nic_unbind(struct nic_bind *b)
{
	if (!b)
		return;
	nic_nl_close(b->nl);
	free(b);
}
