// SPDX-License-Identifier: Apache-2.0
/*
 * Options of gxd and gxperf, for the fields and calls that the library's texts name (see flag.h).
 * tests/house/test_house.py compares this table with gx.h and with those texts.
 */
#include "common/flag.h"

#include <gx/log.h>

#include <stddef.h>

static const struct gx_name flags[] = {
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
	{"gx_opts.peer_timeout_ns", "--timeout"},
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
	{NULL, NULL},
};

char *flag_say(char *text)
{
	return gx_names_say(flags, text);
}

void flag_log(void)
{
	gx_names_log(flags);
}
