// SPDX-License-Identifier: Apache-2.0
/*
 * The calls of gx/nic.h. Any thread; a struct gx_nic is frozen once gx_nic_open() has made it.
 */
#include "core/core.h"
#include "nic/nic.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct gx_nic {
	struct nic_facts facts;
};

#ifdef GX_HAVE_NIC_MEMORY

GX_EXPORT int gx_nic_open(const char *name, struct gx_nic **out)
{
	struct gx_nic *nic;
	int ret;

	if (!name || !name[0])
		return gx_fail(-EINVAL, "an interface needs a name");
	nic = calloc(1, sizeof(*nic));
	if (!nic)
		return gx_fail(-ENOMEM, "no memory to look at %s", name);
	ret = nic_look(&nic_sys_linux, name, &nic->facts);
	if (ret) {
		free(nic);
		return gx_fail(ret, "this host has no interface '%s'", name);
	}
	*out = nic;
	return 0;
}

GX_EXPORT void gx_nic_close(struct gx_nic *nic)
{
	free(nic);
}

GX_EXPORT int gx_nic_fact(const struct gx_nic *nic, unsigned index, struct gx_nic_fact *out)
{
	struct gx_nic_fact own = {0};

	if (nic_fact(&nic->facts, index, &own))
		return gx_fail(-ENOENT, "%s: there are no more facts", nic->facts.name);
	return core_struct_give("gx_nic_fact", &own, sizeof(own), out);
}

GX_EXPORT int gx_nic_mode(const struct gx_nic *nic, unsigned index, struct gx_nic_mode *out)
{
	struct gx_nic_mode own = {0};

	if (nic_mode(&nic->facts, index, &own))
		return gx_fail(-ENOENT, "%s: there are no more modes", nic->facts.name);
	return core_struct_give("gx_nic_mode", &own, sizeof(own), out);
}

GX_EXPORT int gx_nic_step(const struct gx_nic *nic, unsigned first, unsigned last,
			  unsigned tcp_port, unsigned index, struct gx_nic_step *out)
{
	struct nic_range range = {.first = first, .last = last, .tcp_port = tcp_port};
	struct gx_nic_step own = {0};
	int ret = nic_range_check(&nic->facts, &range);

	if (ret)
		return ret;
	if (nic_step(&nic->facts, &range, index, &own))
		return gx_fail(-ENOENT, "%s: there are no more steps", nic->facts.name);
	return core_struct_give("gx_nic_step", &own, sizeof(own), out);
}

#else /* nobody has a struct gx_nic then */

GX_EXPORT int gx_nic_open(const char *name, struct gx_nic **out)
{
	return gx_fail(-EOPNOTSUPP, "gx does not look at interfaces, because it was built with "
				    "-Dnic_memory=false: build it with -Dnic_memory=true");
}

GX_EXPORT void gx_nic_close(struct gx_nic *nic)
{
}

GX_EXPORT int gx_nic_fact(const struct gx_nic *nic, unsigned index, struct gx_nic_fact *out)
{
	return -ENOENT;
}

GX_EXPORT int gx_nic_mode(const struct gx_nic *nic, unsigned index, struct gx_nic_mode *out)
{
	return -ENOENT;
}

GX_EXPORT int gx_nic_step(const struct gx_nic *nic, unsigned first, unsigned last,
			  unsigned tcp_port, unsigned index, struct gx_nic_step *out)
{
	return -ENOENT;
}
#endif
