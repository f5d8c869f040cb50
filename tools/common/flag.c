// SPDX-License-Identifier: Apache-2.0
/*
 * Options of gxd and gxperf, for the fields and calls that the library's texts name (see flag.h).
 * tests/house/test_house.py compares this table with gx.h and with those texts.
 */
#include "common/flag.h"

#include <gx/gx.h>
#include <gx/log.h>

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define FLAG_LINE_MAX 1024 /* of a log line, with the final 0 */

/* A name in the library's texts, and the tools' option for it. The option is never longer. */
static const struct flag {
	const char *name, *flag;
} flags[] = {
	{"gx_auth_make()", "gxd keygen"},
	{"gx_auth_opts.key_file", "--key"},
	{"gx_auth_opts.key_files", "--key"},
	{"gx_auth_opts.name", "--name"},
	{"gx_connect_opts.peer", "--peer"},
	{"gx_connect_opts.link", "--link"},
	{"gx_connect_opts.ports", "--port"},
	{"gx_connect_tcp_opts.sockets", "--sockets"},
	{"gx_gpu_open()", "--gpu N"},
	{"gx_listen() on", "gxd --listen"},
	{"gx_listen() returned", "gxd printed"},
	{"gx_load_opts.lib_path", "--lib-path"},
	{"gx_nic_step()", "gxd nic plan"},
	{"gx_opts.allow_uids", "--allow-uid"},
	{"gx_opts.auth", "--key"},
	{"gx_opts.bind_host", "--bind"},
	{"gx_opts.cpus", "--cores"},
	{"gx_gpu_opts.bounce", "--bounce"},
	{"gx_packet_opts.crc_by", "--crc-by"},
	{"gx_opts.insecure", "--insecure"},
	{"gx_packet_opts.integrity", "--integrity"},
	{"gx_opts.nr_cores", "--cores"},
	{"gx_opts.ports", "--port"},
	{"gx_host_opts.pull", "--pull"},
	{"gx_packet_opts.slots", "--slots"},
	{"gx_nic_opts.rx", "--tcp-rx"},
	{"gx_nic_opts.rx_b", "--tcp-rx-pool"},
	{"gx_nic_opts.rx_device", "--tcp-rx-gpu"},
	{"gx_nic_opts.rx_if", "--tcp-rx-nic"},
	{"gx_nic_opts.tx", "--tcp-tx"},
	{"gx_nic_opts.tx_if", "--tcp-tx-nic"},
	{"gx_gpu_opts.unpack", "--unpack"},
	{"gx_opts.verbs", "--rdma"},
	{"gx_verbs_opts.rails", "--rdma"},
};

/* The entry of the name that begins at @at. It must match as a whole: gx_gpu_opts.bounce_device is
 * not gx_gpu_opts.bounce. */
static const struct flag *flag_at(const char *at)
{
	for (unsigned i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
		size_t len = strlen(flags[i].name);
		unsigned char next;

		if (strncmp(at, flags[i].name, len))
			continue;
		next = (unsigned char)at[len];
		if (!isalnum(next) && next != '_')
			return &flags[i];
	}
	return NULL;
}

char *flag_say(char *text)
{
	const char *from = text;
	char *to = text;

	while (*from) {
		const struct flag *f = flag_at(from);
		size_t len = f ? strlen(f->flag) : 1;

		memmove(to, f ? f->flag : from, len);
		to += len;
		from += f ? strlen(f->name) : 1;
	}
	*to = '\0';
	return text;
}

static void flag_log_line(void *arg, int level, const char *line)
{
	char text[FLAG_LINE_MAX];

	(void)arg;
	snprintf(text, sizeof(text), "%s", line);
	gx_log_stderr(level, flag_say(text));
}

void flag_log(void)
{
	gx_log_sink(flag_log_line, NULL);
}
