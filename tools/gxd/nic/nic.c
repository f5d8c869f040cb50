// SPDX-License-Identifier: Apache-2.0
/*
 * gxd nic plan: each step that would give receive queues of an interface to memory of a device,
 * with the driver's answer. It changes nothing. Main thread only.
 */
#include "gxd/nic/nic.h"

#include "common/help.h"
#include "common/flag.h"
#include "common/json.h"
#include "common/opt.h"

#include <gx/nic.h>

#include <errno.h>
#include <net/if.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NIC_QUEUE_MAX 65535
#define NIC_TEXT_B    256

enum { NIC_OK = 0, NIC_FAILED = 1, NIC_USAGE = 2 };

enum { KEY_DEV = 256, KEY_QUEUES, KEY_PORT, KEY_FORMAT };

struct nic_opts {
	bool plan, json, queues;
	const char *dev;
	uint32_t first, last, port;
};

static const struct argp_option nic_options[] = {
	{"dev", KEY_DEV, "IF", 0, "The interface, e.g. eth0", 0},
	{"queues", KEY_QUEUES, "FIRST-LAST", 0,
	 "Receive queues for memory of a device, e.g. 8-15; queue 0 stays with ordinary traffic",
	 0},
	{"port", KEY_PORT, "N", 0, "TCP port where connections arrive, for the flow rule", 0},
	{"format", KEY_FORMAT, "FORMAT", 0, "text (default) or json on stdout", 0},
	{0},
};

/* "8-15", or "8". */
static void opts_queues(struct nic_opts *o, const char *arg, struct argp_state *state)
{
	const char *dash = strchr(arg, '-');
	char first[16];

	snprintf(first, sizeof(first), "%.*s", dash ? (int)(dash - arg) : (int)strlen(arg), arg);
	if (strlen(arg) >= sizeof(first) || opt_u32(first, 0, NIC_QUEUE_MAX, &o->first) ||
	    opt_u32(dash ? dash + 1 : first, 0, NIC_QUEUE_MAX, &o->last)) {
		char plain[NIC_TEXT_B];

		opt_plain(arg, plain, sizeof(plain));
		argp_error(state, "--queues: '%s' is not FIRST-LAST, e.g. 8-15; a queue is 0 to %d",
			   plain, NIC_QUEUE_MAX);
	}
	o->queues = true;
}

static error_t opts_parse(int key, char *arg, struct argp_state *state)
{
	struct nic_opts *o = state->input;

	switch (key) {
	case KEY_DEV:
		o->dev = arg;
		return 0;
	case KEY_QUEUES:
		opts_queues(o, arg, state);
		return 0;
	case KEY_PORT:
		if (opt_u32(arg, 1, UINT16_MAX, &o->port))
			argp_error(state, "--port: '%s' is not a TCP port, 1 to 65535", arg);
		return 0;
	case KEY_FORMAT:
		if (strcmp(arg, "text") && strcmp(arg, "json"))
			argp_error(state, "--format: '%s' is not text or json", arg);
		o->json = !strcmp(arg, "json");
		return 0;
	case ARGP_KEY_ARG:
		if (o->plan || strcmp(arg, "plan"))
			argp_error(state, "what is '%s'? Only 'plan' is known", arg);
		o->plan = true;
		return 0;
	case ARGP_KEY_END:
		if (!o->plan)
			argp_error(state, "say what: gxd nic plan");
		if (!o->dev)
			argp_error(state, "give the interface: --dev eth0");
		if (!o->queues)
			argp_error(state, "give the queues: --queues 8-15");
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

/* ---- Messages ---- */

static int nic_error(int status)
{
	char text[1024];

	opt_plain(gx_error(), text, sizeof(text));
	fprintf(stderr, "gxd: %s\n", flag_say(text));
	return status;
}

/* The names that there are, as the cure of one that is not. */
static int nic_unknown(void)
{
	struct if_nameindex *all = if_nameindex();

	nic_error(NIC_USAGE);
	fprintf(stderr, "gxd: interfaces here:");
	for (unsigned i = 0; all && all[i].if_index; i++)
		fprintf(stderr, " %s", all[i].if_name);
	fprintf(stderr, "; give one by --dev\n");
	if (all)
		if_freenameindex(all);
	return NIC_USAGE;
}

static const char *can_text(enum gx_nic_can can)
{
	static const char *const text[] = {
		[GX_NIC_NO] = "refused", [GX_NIC_LATER] = "to do", [GX_NIC_YES] = "done"};

	return text[can];
}

static void step_print(const struct gx_nic_step *s, unsigned number)
{
	printf("%u. %s: %s: %s\n", number, s->name, can_text(s->can), s->answer);
	if (s->command[0])
		printf("   %s\n", s->command);
	printf("   %s\n", s->netlink);
	if (s->cure[0])
		printf("   cure: %s\n", s->cure);
}

static void step_document(const struct gx_nic_step *s, struct json_t *steps)
{
	struct json_t *one = js_pack("{s:s, s:s}", "step", s->name, "state", can_text(s->can));

	js_set(one, "command", js_string(s->command[0] ? s->command : NULL));
	js_set(one, "netlink", js_string(s->netlink));
	js_set(one, "answer", js_string(s->answer));
	js_set(one, "cure", js_string(s->cure[0] ? s->cure : NULL));
	js_append(steps, one);
}

/* ---- The plan ---- */

/* Return: 0; -ENOMEM; -EIO: stdout takes no more. */
static int plan_document(const struct nic_opts *o, struct json_t *steps, bool goes)
{
	struct json_t *doc = js_pack("{s:i, s:b}", "schema_version", 1, "goes", goes);
	char *text;

	js_set(doc, "interface", js_string(o->dev));
	js_set(doc, "queues", js_pack("[i, i]", (int)o->first, (int)o->last));
	js_set(doc, "steps", steps);
	text = js_print(doc, true);
	js_free(doc);
	if (!text)
		return -ENOMEM;
	puts(text);
	free(text);
	return fflush(stdout) ? -EIO : 0;
}

static void plan_heading(const struct nic_opts *o)
{
	if (!o->json)
		printf("%s, receive queues %u-%u. Nothing is changed. UNTRIED on hardware.\n",
		       o->dev, o->first, o->last);
}

static void plan_step(const struct nic_opts *o, struct gx_nic_step *s, unsigned i,
		      struct json_t *steps)
{
	flag_say(s->answer);
	flag_say(s->cure);
	if (o->json)
		step_document(s, steps);
	else
		step_print(s, i + 1);
}

/* stdout has the plan, stderr the cure of the last step that is refused: the binding comes last, and
 * is what most drivers refuse. */
static int plan_print(const struct nic_opts *o, const struct gx_nic *nic)
{
	struct json_t *steps = js_array();
	struct gx_nic_step s = GX_INIT(s), worst = {0};
	unsigned i = 0;
	int ret;

	while (!(ret = gx_nic_step(nic, o->first, o->last, o->port, i, &s))) {
		if (!i)
			plan_heading(o);
		plan_step(o, &s, i++, steps);
		if (s.can == GX_NIC_NO)
			worst = s;
	}
	if (ret != -ENOENT) {
		js_free(steps);
		return nic_error(ret == -EINVAL || ret == -ERANGE ? NIC_USAGE : NIC_FAILED);
	}
	if (!o->json)
		js_free(steps);
	ret = o->json ? plan_document(o, steps, !worst.name[0]) : fflush(stdout) ? -EIO : 0;
	if (ret)
		fprintf(stderr, "gxd: the plan cannot be printed: %s\n", strerror(-ret));
	else if (worst.name[0])
		fprintf(stderr, "gxd: %s: step '%s' is refused: %s. Cure: %s\n", o->dev, worst.name,
			worst.answer, worst.cure);
	return ret || worst.name[0] ? NIC_FAILED : NIC_OK;
}

const struct argp gxd_nic_argp = {
	.options = nic_options,
	.parser = opts_parse,
	.children = help_children,
	.args_doc = "plan",
	.doc = "gxd nic plan prints each step that gives receive queues of a network card "
	       "to memory of a device (devmem TCP), in the words of ethtool and netlink, "
	       "with the driver's answer. It changes nothing."
	       "\v  gxd nic plan --dev eth0 --queues 8-15\n"
	       "  gxd nic plan --dev eth0 --queues 8-15 --format json\n"
	       "Root sees the driver's answer to a binding. UNTRIED on hardware.\n"
	       "Exit status: 0 each step is done or could be, 1 one is refused (stderr has "
	       "the cure), 2 usage.",
};

int gxd_nic(int argc, char **argv)
{
	struct nic_opts o = {0};
	struct gx_nic *nic;
	int ret;

	argp_err_exit_status = NIC_USAGE;
	argp_parse(&gxd_nic_argp, argc, argv, ARGP_NO_HELP, NULL, &o);
	ret = gx_nic_open(o.dev, &nic);
	if (ret == -ENODEV)
		return nic_unknown();
	if (ret)
		return nic_error(ret == -EINVAL ? NIC_USAGE : NIC_FAILED);
	ret = plan_print(&o, nic);
	gx_nic_close(nic);
	return ret;
}
