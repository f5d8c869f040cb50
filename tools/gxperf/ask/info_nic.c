// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf info: an interface's ways of receiving TCP payload: which are there, what is missing, and the
 * cure. Main thread only.
 */
#include "gxperf/ask/info.h"

#include "common/flag.h"
#include "common/json.h"

#include <gx/nic.h>

static struct json_t *nic_facts(struct info *i, const struct gx_nic *nic)
{
	struct gx_nic_fact f = GX_INIT(f);
	struct json_t *doc = js_pack("{}");

	for (unsigned k = 0; !gx_nic_fact(nic, k, &f); k++) {
		js_set(doc, f.name, js_string(f.text));
		if (!k)
			info_say(i, "  %s %s\n", f.name, f.text); /* the driver */
	}
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

void info_nic(struct info *i, const struct gx_device *d, struct json_t *doc)
{
	struct gx_nic *nic;

	if (gx_nic_open(d->name, &nic)) { /* or it went away */
		info_say(i, "  receive: %s\n", gx_error());
		js_set(doc, "receive", js_string(NULL));
		return;
	}
	js_set(doc, "facts", nic_facts(i, nic));
	js_set(doc, "receive", nic_modes(i, nic));
	gx_nic_close(nic);
}
