/* SPDX-License-Identifier: Apache-2.0 */
/* Which link and ports a connection takes. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <fcntl.h>

#include "control/ctl_rig.h"

static void up__other_host(void **state)
{
	struct gx_conn *c;
	char addr[32];

	CTL_SET(client, gx.ctl->host_id[5], client->gx.ctl->host_id[5] ^ 1);
	server_listen(addr);
	c = both_up(addr, &(struct gx_connect_opts){.link = "packet"});
	assert_string_equal(c->why, "shm not usable: the server is in another network namespace of "
				    "this host; udp");
	CTL_SET(client, gx.ctl->host_id[15], client->gx.ctl->host_id[15] ^ 1);
	c = both_up(addr, &(struct gx_connect_opts){.link = "packet"});
	assert_string_equal(c->why, "shm not usable: the server is on another host; udp");
	CTL_SET(client, gx.groups.packet.integrity, GX_INTEGRITY_MODE_NONE);
	c = both_up(addr, NULL);
	assert_string_equal(c->link->name, "packet");
	assert_int_equal(c->path_reason, GX_REASON_BOTH_HAVE);
	client_connect(addr, &(struct gx_connect_opts){.ports = &shm, .nr_ports = 1});
	wait_down(client, 1, -ENODEV, GX_REASON_OTHER_HOST);
	assert_says(client->text, "one host only, and the server is on another host");
}

/* Between hosts another link may be the fastest: it is taken unless a port or an integrity is named, by
 * the connection or by the context. */
static void link__the_best_between_hosts(void **state)
{
	struct gx_conn *c;
	char addr[32];

	server_listen(addr);
	c = both_up(addr, NULL);
	assert_string_equal(c->link->name, "packet");
	CTL_SET(client, gx.ctl->host_id[5], client->gx.ctl->host_id[5] ^ 1);
	c = both_up(addr, NULL);
	assert_string_equal(c->link->name, "tcp");
	assert_string_equal(c->why,
			    "link tcp: the fastest to a server in another network namespace "
			    "of this host; slow");
	assert_int_equal(c->path_reason, GX_REASON_BOTH_HAVE);
	c = both_up(addr, &(struct gx_connect_opts){.ports = udp, .nr_ports = 1});
	assert_string_equal(c->link->name, "packet");
	CTL_SET(client, gx.groups.packet.integrity, GX_INTEGRITY_MODE_CRC32C);
	c = both_up(addr, NULL);
	assert_string_equal(c->link->name, "packet");
	CTL_SET(client, gx.groups.packet.integrity, GX_INTEGRITY_MODE_AUTO);
	CTL_SET(client, gx.opts.nr_ports, 1);
	c = both_up(addr, NULL);
	assert_string_equal(c->link->name, "packet");
}

static void fail__port_missing(void **state)
{
	char addr[32];

	CTL_SET(server, gx.nr_ports, 1);
	server_listen(addr);
	client_connect(addr, &(struct gx_connect_opts){.ports = udp, .nr_ports = 1});
	wait_down(client, 1, -ENODEV, GX_REASON_NO_PORT);
	assert_says(client->text, addr);
	assert_says(client->text, "offers shm");
	assert_says(client->text, "gx_opts.ports udp");
	wait_down(server, 1, -ENODEV, GX_REASON_NO_PORT);
	assert_says(server->text, "offers shm");
	assert_int_equal(ctl_connect(client_conn(), addr,
				     &(struct gx_connect_opts){.ports = &dpdk_x, .nr_ports = 1}),
			 -ENODEV);
	assert_says(gx_error(), "not opened here");
	CTL_SET(client, gx.ctl->host_id[0], client->gx.ctl->host_id[0] ^ 1);
	client_connect(addr, &(struct gx_connect_opts){.link = "packet"});
	wait_down(client, 2, -ENODEV, GX_REASON_NO_PORT);
	assert_says(client->text, "in another network namespace of this host");
	CTL_SET(client, gx.groups.packet.integrity, GX_INTEGRITY_MODE_CRC32C);
	client_connect(addr, NULL);
	wait_down(client, 3, -ENODEV, GX_REASON_NO_PORT);
}

/* A device has another name at each end; the frames that it carries are alike. */
static void connect__port_by_what_it_speaks(void **state)
{
	struct fake *const ends[] = {server, client};
	char addr[32];

	for (unsigned i = 0; i < 2; i++) {
		struct gx_port_slot *slot = &ends[i]->gx.port[1];

		ends[i]->ports[1].speaks = "dpdk:ethernet";
		snprintf(slot->device, sizeof(slot->device), "dpdk:0000:0%u:00.0", i);
		strcpy(slot->match, "dpdk:ethernet");
	}
	server_listen(addr);
	both_up(addr, &(struct gx_connect_opts){.ports = &card, .nr_ports = 1});
	CTL_SET(server, gx.nr_ports, 1);
	client_connect(addr, &(struct gx_connect_opts){.ports = &card, .nr_ports = 1});
	wait_down(client, 1, -ENODEV, GX_REASON_NO_PORT);
	assert_says(client->text, "gx_opts.ports dpdk:DEVICE");
}

/* Each end has two ports udp, and more behind them. */
static void two_udps(void)
{
	fake_port_add(client, "udp", 0, 1392, 8928);
	fake_port_add(client, "other", 0, 1392, 8928);
	fake_port_add(server, "other", 0, 1392, 8928);
	fake_port_add(server, "udp", 0, 1392, 8928);
}

static void connect__several_ports(void **state)
{
	static const uint8_t ports[2][2] = {{1, 2}, {1, 3}};
	struct fake *const ends[] = {client, server};
	char addr[32];

	two_udps();
	server_listen(addr);
	both_up(addr, &(struct gx_connect_opts){.ports = udp, .nr_ports = 2});
	wait_up(server, 1);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(ends[i]->up->nr_ports, 2);
		assert_memory_equal(ends[i]->up->ports, ports[i], 2);
		assert_int_equal(ends[i]->up->port, 1);
		assert_says(ends[i]->up->why, "2 ports in turn");
	}
}

static void connect__several_ports_one_lane(void **state)
{
	char addr[32];

	two_udps();
	server_listen(addr);
	both_up(addr, &(struct gx_connect_opts){.ports = udp, .nr_ports = 2, .lanes = 1});
	wait_up(server, 1);
	assert_int_equal(client->up->nr_ports, 0);
	assert_int_equal(server->up->nr_ports, 0);
	assert_says(client->up->why, "1 of 2 ports");
}

/* The ports that are taken have their pools in a GPU, and so large packets. The first one of that name
 * has not. */
static void connect__several_ports_with_pools(void **state)
{
	char addr[32];

	for (unsigned i = 2; i < 4; i++) {
		fake_port_add(client, "shm", GX_PORT_LOCAL | GX_PORT_LOSSLESS | GX_PORT_RX_GPU,
			      1 << 20, 1 << 20);
		snprintf(client->gx.port[i].device, sizeof(client->gx.port[i].device), "shm%u", i);
		snprintf(client->gx.port[i].name, sizeof(client->gx.port[i].name), "shm%u", i);
		fake_port_add(server, "shm", GX_PORT_LOCAL | GX_PORT_LOSSLESS, 4096, 8192);
	}
	server_listen(addr);
	both_up(addr, &(struct gx_connect_opts){.ports = shms, .nr_ports = 2});
	wait_up(server, 1);
	assert_int_equal(client->up->nr_ports, 2);
	assert_int_equal(client->up->agreed.quantum, GX_WIRE_QUANTUM_MAX);
	assert_int_equal(server->up->agreed.quantum, GX_WIRE_QUANTUM_MAX);
}

static void fail__several_ports(void **state)
{
	static const struct {
		struct gx_port_name port[3];
		unsigned nr;
		int err;
		const char *what;
	} here[] = {{{{"udp"}, {"shm"}}, 2, -EINVAL, "two kinds"},
		    {{{"udp"}, {"udp"}, {"udp"}}, 3, -ENODEV, "not so often"},
		    {{{"udp"}, {""}}, 2, -ENODEV, "not opened here"},
		    {{{NULL}, {"udp"}}, 2, -ENODEV, "not opened here"}};
	const struct gx_connect_opts opts = {.ports = udp, .nr_ports = 2};
	char addr[32];

	two_udps();
	server_listen(addr);
	for (unsigned i = 0; i < GX_ARRAY_SIZE(here); i++) {
		const struct gx_connect_opts o = {.ports = here[i].port, .nr_ports = here[i].nr};

		assert_int_equal(ctl_connect(client_conn(), addr, &o), here[i].err);
		assert_says(gx_error(), here[i].what);
	}
	assert_int_equal(ctl_connect(client_conn(), addr,
				     &(struct gx_connect_opts){
					     .ports = udp, .nr_ports = 2, .link = "verbs"}),
			 -EINVAL);
	assert_says(gx_error(), "link verbs takes one port");
	CTL_SET(server, ports[3].caps.payload_max, 1408);
	client_connect(addr, &opts);
	wait_down(client, 1, -EINVAL, GX_REASON_OPTIONS);
	assert_says(client->text, "MTU");
	CTL_SET(server, gx.nr_ports, 3);
	client_connect(addr, &opts);
	wait_down(client, 2, -ENODEV, GX_REASON_NO_PORT);
	assert_says(client->text, "number 2");
}

/* The one with the highest score that fits; the reason why a better one does not. */
static void link__the_best_that_fits(void **state)
{
	struct gx_conn *c;
	char addr[32];

	server_listen(addr);
	c = both_up(addr, NULL);
	assert_string_equal(c->link->name, "packet");
	fake_fit = NULL;
	c = both_up(addr, NULL);
	assert_string_equal(c->link->name, "local");
	assert_string_equal(c->why, "memory mapped");
	assert_int_equal(c->path_reason, GX_REASON_SAME_HOST);
	assert_string_equal(c->gx->port[c->port].match, "shm");
	c = both_up(addr, &(struct gx_connect_opts){.ports = udp, .nr_ports = 1});
	assert_string_equal(c->link->name, "packet");
	fake_quiet = false;
	fake_fit = "there is no map";
	c = both_up(addr, NULL);
	assert_string_equal(c->link->name, "packet");
	assert_says(c->why, "no link local: there is no map");
	client_connect(addr, &(struct gx_connect_opts){.link = "local"});
	wait_down(client, 1, -ENODEV, GX_REASON_NO_LINK);
	assert_says(client->text, "link local cannot be had: there is no map");
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		TEST(up__other_host),
		TEST(connect__port_by_what_it_speaks),
		TEST(connect__several_ports),
		TEST(connect__several_ports_one_lane),
		TEST(connect__several_ports_with_pools),
		TEST(fail__several_ports),
		TEST(fail__port_missing),
		TEST(link__the_best_that_fits),
		TEST(link__the_best_between_hosts),
	};

	return rig_run("ctl_path", tests, GX_ARRAY_SIZE(tests));
}
