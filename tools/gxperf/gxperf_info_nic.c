// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf info: the network interfaces of this host, and for each the ways of receiving TCP payload:
 * which are there, what is missing, and the cure. Main thread only.
 */
#include "gxperf/gxperf_info.h"

#include "common/flag.h"
#include "common/json.h"

#include <gx/nic.h>

#include <errno.h>
#include <net/if.h>
#include <string.h>

#define NIC_LINE_FACTS 3 /* the first facts stand in the heading: driver, bus, NUMA node */

static struct json_t *nic_facts(struct info *i, const char *name, const struct gx_nic *nic)
{
	struct gx_nic_fact f = GX_INIT(f);
	struct json_t *doc = js_pack("{}");

	info_say(i, "interface %s:", name);
	for (unsigned k = 0; !gx_nic_fact(nic, k, &f); k++) {
		js_set(doc, f.name, js_string(f.text));
		if (k < NIC_LINE_FACTS)
			info_say(i, "%s %s %s", k ? "," : "", f.name, f.text);
	}
	info_say(i, "\n");
	return doc;
}

static struct json_t *nic_modes(struct info *i, const struct gx_nic *nic)
{
	static const char *const can[] = {[GX_NIC_NO] = "missing",
					  [GX_NIC_LATER] = "after set-up",
					  [GX_NIC_YES] = "available"};
	struct gx_nic_mode m = GX_INIT(m);
	struct json_t *doc = js_array();

	for (unsigned k = 0; !gx_nic_mode(nic, k, &m); k++) {
		bool there = m.can == GX_NIC_YES;
		struct json_t *one = js_pack("{s:s, s:s}", "mode", m.name, "state", can[m.can]);

		flag_say(m.why);
		flag_say(m.cure);
		info_say(i, "  receive %s: %s", m.name, can[m.can]);
		if (!there)
			info_say(i, ": %s; %s", m.why, m.cure);
		info_say(i, "\n");
		js_set(one, "why", js_string(there ? NULL : m.why));
		js_set(one, "cure", js_string(there ? NULL : m.cure));
		js_append(doc, one);
	}
	return doc;
}

void info_nics(struct info *i)
{
	struct if_nameindex *all = if_nameindex();
	struct json_t *doc = js_array();

	for (unsigned k = 0; all && all[k].if_index; k++) {
		struct json_t *one;
		struct gx_nic *nic;
		int ret = gx_nic_open(all[k].if_name, &nic);

		if (ret == -EOPNOTSUPP) {
			info_say(i, "interfaces: %s\n", gx_error());
			js_free(doc);
			doc = js_string(NULL);
			break;
		}
		if (ret)
			continue; /* it went away */
		one = js_pack("{}");
		js_set(one, "interface", js_string(all[k].if_name));
		js_set(one, "facts", nic_facts(i, all[k].if_name, nic));
		js_set(one, "receive", nic_modes(i, nic));
		js_append(doc, one);
		gx_nic_close(nic);
	}
	if (all)
		if_freenameindex(all);
	js_set(i->doc, "nics", doc);
}
