/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection's half of the local link, with the peer's half played by hand: what is offered,
 * which descriptors go out, which of a hostile peer's are refused, what connections share, and
 * what is kept from a peer that may still write.
 * Every test ends by counting open descriptors.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gx/gx.h"
#include "gx_internal/link.h"
#include "control/control.h"
#include "local/local.h"

#include <cmocka.h>

#include "kit/common_fds.h"

#define LANES 2
#define LEN   (2u << 20)
#define OFF   4096

/* Ours, with a region that may be written, one that may be read, and one that is not exported. */
struct rig {
	struct gx *gx;
	struct local_ctx local; /* of ours */
	struct gx *ours; /* of the connections: no control thread looks at it, this one does */
	struct gx_mem *put, *get, *mine;
	struct gx_conn conn, second; /* second: has nothing told */
	unsigned nr_fds;	     /* before the connection */
	char bytes[4096];
};

static uint64_t stat_of(const struct rig *r, enum gx_stat_id id)
{
	return gx_stat_get(&r->ours->ctl_stats, id);
}

static int setup(void **state)
{
	static const struct gx_port_name ports[] = {{.name = "shm"}};
	struct rig *r = calloc(1, sizeof(*r));
	struct gx_opts o = GX_INIT(o);

	assert_non_null(r);
	o.ports = ports;
	o.nr_ports = 1;
	o.host = GX_WITH(gx_host_opts, .huge = GX_OFF);
	assert_int_equal(gx_open(&o, &r->gx), 0);
	assert_int_equal(gx_mem_alloc(r->gx, GX_MEM_HOST, 0, 100, &r->put), 0);
	assert_int_equal(gx_mem_alloc(r->gx, GX_MEM_HOST, 0, LEN, &r->get), 0);
	assert_int_equal(gx_mem_reg(r->gx, GX_MEM_HOST, 0, r->bytes, sizeof(r->bytes), &r->mine),
			 0);
	assert_int_equal(gx_mem_share(r->put, "put", GX_ACCESS_PUT), 0);
	assert_int_equal(gx_mem_share(r->get, "get", GX_ACCESS_GET), 0);
	assert_int_equal(gx_mem_share(r->mine, "mine", GX_ACCESS_PUT), 0);
	r->ours = aligned_alloc(GX_CACHE_LINE, GX_ALIGN_UP(sizeof(*r->ours), GX_CACHE_LINE));
	assert_non_null(r->ours);
	memset(r->ours, 0, sizeof(*r->ours));
	r->ours->mems = r->gx->mems;
	r->ours->link[GX_LINK_LOCAL] = &r->local;
	r->local.pairs = calloc(1, sizeof(*r->local.pairs));
	assert_non_null(r->local.pairs);
	core_groups_point(&r->ours->opts, &r->ours->groups);
	r->conn.gx = r->ours;
	r->conn.named[0] = r->mine;
	r->conn.named[1] = r->put;
	r->conn.named[2] = r->get;
	r->conn.nr_named = 3;
	r->conn.named_fds = 6;
	r->second.gx = r->ours;
	r->nr_fds = common_fds_count();
	*state = r;
	return 0;
}

static int teardown(void **state)
{
	struct rig *r = *state;

	local_close(&r->conn);
	local_close(&r->second);
	assert_int_equal(common_fds_count(), r->nr_fds);
	assert_null(local_ctx(r->ours)->peers);
	assert_int_equal(stat_of(r, GX_STAT_MAPS), 0);
	assert_int_equal(stat_of(r, GX_STAT_QUARANTINED_B), 0);
	gx_close(r->gx);
	free(r->local.pairs);
	free(r->ours);
	free(r);
	return 0;
}

/* The peer says that it has one region, of @len bytes OFF behind the start of @map_len. */
static void peer_says(struct rig *r, unsigned access, uint64_t len, uint64_t map_len)
{
	struct gx_hello_region *h = &r->conn.peer.regions[0];

	r->conn.peer.nr_regions = 1;
	*h = (struct gx_hello_region){.name = "kv",
				      .token = 0x770005,
				      .len = len,
				      .access = (uint8_t)access,
				      .export = {GX_EXPORT_MEMFD, map_len, OFF, 1}};
}

static int memfd(size_t len, int seals)
{
	int fd = memfd_create("peer", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0 && !ftruncate(fd, (off_t)len));
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

/* Rings as a peer would send them. */
static int rings(uint32_t magic, uint32_t nr_lanes)
{
	struct local_hdr hdr = {.magic = magic, .version = LOCAL_VERSION, .nr_lanes = nr_lanes};
	int fd = memfd(2 << 20, F_SEAL_SHRINK);

	assert_int_equal(pwrite(fd, &hdr, sizeof(hdr), 0), sizeof(hdr));
	return fd;
}

/* A table of good keys as a peer would send it. */
static int live(void)
{
	return memfd(2 << 20, F_SEAL_SHRINK);
}

static void open_half(struct rig *r)
{
	assert_int_equal(local_open(&r->conn, LANES), 0);
}

/* Refused, with words that say @what; nothing stays open. */
static void refused(struct rig *r, int rings_fd, int fd, const char *what)
{
	const int fds[] = {rings_fd, live(), fd};

	if (!local_conn_of(&r->conn))
		open_half(r);

	assert_int_equal(local_connect(&r->conn, fds, 3), -EPROTO);
	assert_non_null(strstr(gx_error(), what));
	local_close(&r->conn);
	assert_int_equal(common_fds_count(), r->nr_fds);
}

/* ---- What we offer ---- */

static void offered__by_options_and_ports(void **state)
{
	struct rig *r = *state;

	assert_null(local_offered(r->gx));
	r->gx->groups.host.local = GX_OFF;
	assert_string_equal(local_offered(r->gx), "switched off");
	r->gx->groups.host.local = GX_AUTO;
	strcpy(r->gx->port[0].match, "udp");
	assert_non_null(strstr(local_offered(r->gx), "shm"));
}

static void export_fill__kinds(void **state)
{
	struct gx_hello_export put = {0}, get = {0}, mine = {0};
	struct rig *r = *state;

	local_export_fill(r->put, &put);
	local_export_fill(r->get, &get);
	local_export_fill(r->mine, &mine);
	assert_int_equal(put.kind, GX_EXPORT_MEMFD);
	assert_int_equal(put.map_len, 2 << 20);
	assert_int_equal(get.kind, GX_EXPORT_MEMFD);
	assert_true(get.map_id != put.map_id);
	assert_int_equal(mine.kind, GX_EXPORT_NONE);
}

/* Rings, the keys that are good, which peers read only, then what is exported, in the order that was told; who may only read cannot map to write,
 * not even through a descriptor opened anew. */
static void fds__rights(void **state)
{
	struct rig *r = *state;
	int fds[LOCAL_FDS_MAX], again;
	char path[64];
	void *p;

	open_half(r);
	assert_int_equal(local_fds(&r->conn, fds), 4);
	assert_true(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fds[1], 0) == MAP_FAILED);
	p = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fds[2], 0);
	assert_true(p != MAP_FAILED);
	strcpy(p, "through the descriptor");
	assert_string_equal(gx_mem_addr(r->put), "through the descriptor");
	munmap(p, LEN);
	assert_true(mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fds[3], 0) == MAP_FAILED);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fds[3]);
	again = open(path, O_RDWR | O_CLOEXEC);
	if (again >= 0) {
		assert_true(mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0) ==
			    MAP_FAILED);
		assert_true(write(again, "x", 1) < 0);
		close(again);
	}
	strcpy(gx_mem_addr(r->get), "ours to write");
	p = mmap(NULL, LEN, PROT_READ, MAP_SHARED, fds[3], 0);
	assert_true(p != MAP_FAILED);
	assert_string_equal(p, "ours to write");
	munmap(p, LEN);
	assert_true(ftruncate(fds[2], 4096) < 0); /* sealed */
}

/* Freed between the HELLO and the descriptors: the peer must not touch it, and if it counts on a
 * descriptor, the set-up ends with the reason. */
static void open__freed_since_the_hello(void **state)
{
	struct rig *r = *state;
	int fds[LOCAL_FDS_MAX];

	r->conn.named[0] = NULL;
	atomic_store(&r->get->dead, true);
	open_half(r);
	assert_int_equal(local_fds(&r->conn, fds), 4);
	assert_int_equal(local_conn_of(&r->conn)->rx->hdr.revoked, 5);
	atomic_store(&r->get->dead, false);
	local_close(&r->conn);
	r->conn.named[1] = NULL;
	assert_int_equal(local_open(&r->conn, LANES), -EAGAIN);
	assert_non_null(strstr(gx_error(), "connect again"));
	local_close(&r->conn);
	assert_int_equal(common_fds_count(), r->nr_fds);
	r->conn.named[1] = r->put;
	open_half(r);
}

static void revoke__bits(void **state)
{
	struct rig *r = *state;

	local_revoke(&r->conn, r->put); /* there is nothing yet */
	open_half(r);
	local_revoke(&r->conn, r->put);
	assert_int_equal(local_conn_of(&r->conn)->rx->hdr.revoked, 2);
	local_revoke(&r->conn, r->get);
	assert_int_equal(local_conn_of(&r->conn)->rx->hdr.revoked, 6);
	local_revoke(&r->conn, NULL);
	assert_true(local_conn_of(&r->conn)->rx->hdr.revoked == LOCAL_REVOKED);
}

static void made_are(const struct rig *r, uint64_t puts, uint64_t gets, uint64_t bytes)
{
	assert_int_equal(stat_of(r, GX_STAT_PEER_PUTS), puts);
	assert_int_equal(stat_of(r, GX_STAT_PEER_GETS), gets);
	assert_int_equal(stat_of(r, GX_STAT_PEER_BYTES), bytes);
}

/* All lanes, once; what came since the last look counts at the close, and what falls does not. */
static void count__what_the_peer_says(void **state)
{
	struct rig *r = *state;
	struct local_ring *ring;

	local_count(&r->conn); /* there is nothing yet */
	open_half(r);
	ring = local_conn_of(&r->conn)->rx->ring;
	ring[0].made.puts = 3;
	ring[LANES - 1].made.puts = 4;
	ring[0].made.gets = 1;
	ring[LANES - 1].made.bytes = 1000;
	local_count(&r->conn);
	made_are(r, 7, 1, 1000);
	local_count(&r->conn);
	made_are(r, 7, 1, 1000);
	ring[0].made.puts = 0;
	local_count(&r->conn);
	made_are(r, 7, 1, 1000);
	ring[0].made.puts = 1;
	ring[0].made.bytes = 24;
	local_close(&r->conn);
	made_are(r, 8, 1, 1024);
}

/* ---- What a peer offers ---- */

static void connect__maps(void **state)
{
	struct rig *r = *state;
	int fds[] = {rings(LOCAL_MAGIC, LANES), live(), memfd(LEN, F_SEAL_SHRINK)};
	int peer = fcntl(fds[2], F_DUPFD_CLOEXEC, 0);
	const struct local_map *m;
	char seen[8];

	peer_says(r, GX_ACCESS_PUT | GX_ACCESS_GET, LEN - OFF, LEN);
	assert_int_equal(local_fds_due(&r->conn.peer), 3);
	open_half(r);
	assert_int_equal(local_connect(&r->conn, fds, 3), 0);
	m = &local_conn_of(&r->conn)->map[0x770005 % GX_REGIONS_MAX];
	assert_int_equal(m->len, LEN - OFF);
	assert_int_equal(m->bit, 1);
	memcpy(m->addr, "first", 6);
	m->addr[LEN - OFF - 1] = 'z';
	assert_int_equal(pread(peer, seen, 6, OFF), 6);
	assert_string_equal(seen, "first");
	assert_int_equal(pread(peer, seen, 1, LEN - 1), 1);
	assert_int_equal(seen[0], 'z');
	close(peer);
}

static void connect__descriptor_kinds(void **state)
{
	struct rig *r = *state;
	int p[2];

	peer_says(r, GX_ACCESS_PUT, LEN - OFF, LEN);
	assert_int_equal(pipe2(p, O_CLOEXEC), 0);
	close(p[1]);
	refused(r, rings(LOCAL_MAGIC, LANES), p[0], "not a sealed memfd");
	refused(r, open("/dev/zero", O_RDWR | O_CLOEXEC), memfd(LEN, F_SEAL_SHRINK),
		"not a sealed memfd");
	refused(r, rings(LOCAL_MAGIC, LANES), open("/proc/self/exe", O_RDONLY | O_CLOEXEC),
		"not a sealed memfd");
	refused(r, rings(LOCAL_MAGIC, LANES), memfd(LEN, 0), "not a sealed memfd");
	refused(r, rings(LOCAL_MAGIC, LANES), memfd(LEN, F_SEAL_GROW), "not a sealed memfd");
	refused(r, rings(LOCAL_MAGIC, LANES), memfd(LEN - 4096, F_SEAL_SHRINK), "region 'kv'");
	refused(r, memfd(4096, F_SEAL_SHRINK), memfd(LEN, F_SEAL_SHRINK), "rings");
	refused(r, rings(LOCAL_MAGIC + 1, LANES), memfd(LEN, F_SEAL_SHRINK), "another header");
	refused(r, rings(LOCAL_MAGIC, LANES + 1), memfd(LEN, F_SEAL_SHRINK), "another header");
	/* May be written, it says; the descriptor says that it may not. */
	refused(r, rings(LOCAL_MAGIC, LANES), memfd(LEN, F_SEAL_SHRINK | F_SEAL_WRITE),
		"cannot map");
}

static void connect__numbers_of_descriptors(void **state)
{
	struct rig *r = *state;
	int fds[LOCAL_FDS_MAX];

	peer_says(r, GX_ACCESS_PUT, LEN - OFF, LEN);
	for (unsigned n = 0; n < 5; n++) {
		if (n == 3)
			continue;
		open_half(r);
		for (unsigned i = 0; i < n; i++)
			fds[i] = memfd(LEN, F_SEAL_SHRINK);
		assert_int_equal(local_connect(&r->conn, fds, n), -EPROTO);
		local_close(&r->conn);
		assert_int_equal(common_fds_count(), r->nr_fds);
	}
}

/* More than there can be is refused before anything is mapped; what is not there is not touched. */
static void connect__a_region_of_terabytes(void **state)
{
	struct rig *r = *state;
	int fds[] = {rings(LOCAL_MAGIC, LANES), live(), memfd(1ull << 46, F_SEAL_SHRINK)};

	peer_says(r, GX_ACCESS_PUT, (1ull << 46) - OFF, 1ull << 46);
	open_half(r);
	/* Mapped or not is the system's business; no page of it is. */
	local_connect(&r->conn, fds, 3);
}

/* Two tokens in one place of the table: the second is left to packets. */
static void connect__tokens_that_collide(void **state)
{
	struct rig *r = *state;
	int fds[] = {rings(LOCAL_MAGIC, LANES), live(), memfd(LEN, F_SEAL_SHRINK),
		     memfd(LEN, F_SEAL_SHRINK)};

	peer_says(r, GX_ACCESS_PUT, LEN - OFF, LEN);
	r->conn.peer.regions[1] = r->conn.peer.regions[0];
	r->conn.peer.regions[1].token += 3 * (CORE_TOKEN_INDEX + 1);
	r->conn.peer.nr_regions = 2;
	open_half(r);
	assert_int_equal(local_connect(&r->conn, fds, 4), 0);
	assert_int_equal(local_conn_of(&r->conn)->nr_maps, 1);
	assert_int_equal(local_conn_of(&r->conn)->map[0x770005 % GX_REGIONS_MAX].token, 0x770005);
}

/* ---- What several connections with one process share ---- */

/* A connection of which the kernel says that this process is at the other end. */
static void meet_self(struct gx_conn *c)
{
	int sv[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv), 0);
	local_meet(c, sv[0]);
	close(sv[0]);
	close(sv[1]);
}

/* The same of a child, which lives until somebody reads from the descriptor that is returned. */
static int meet_child(struct gx_conn *c)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), peer;
	socklen_t len = sizeof(sa);
	pid_t pid;

	assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof(sa.sun_family)), 0); /* any name */
	assert_int_equal(listen(fd, 1), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&sa, &len), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		char b;

		close_range(3, ~0u, 0); /* the ends of other children among them */
		fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
		_exit(connect(fd, (struct sockaddr *)&sa, len) || read(fd, &b, 1) < 0);
	}
	peer = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
	assert_true(peer >= 0);
	close(fd);
	local_meet(c, peer);
	return peer;
}

static void child_end(int peer)
{
	shutdown(peer, SHUT_RDWR); /* the connection has it, too */
	close(peer);
	assert_true(wait(NULL) > 0);
}

/* @c's peer tells one region, of @id, that lies in @fd. */
static const struct local_map *map_one(struct gx_conn *c, const struct rig *r, uint64_t id, int fd)
{
	int fds[] = {rings(LOCAL_MAGIC, LANES), live(), fcntl(fd, F_DUPFD_CLOEXEC, 0)};

	c->peer.nr_regions = 1;
	c->peer.regions[0] = r->conn.peer.regions[0];
	c->peer.regions[0].export.map_id = id;
	assert_int_equal(local_connect(c, fds, 3), 0);
	return &local_conn_of(c)->map[0x770005 % GX_REGIONS_MAX];
}

static void opened(struct rig *r, struct gx_conn *c)
{
	peer_says(r, GX_ACCESS_PUT, LEN - OFF, LEN);
	assert_int_equal(local_open(c, LANES), 0);
}

static void share__second_connection_maps_nothing(void **state)
{
	struct rig *r = *state;
	int fd = memfd(LEN, F_SEAL_SHRINK);
	const struct local_map *a, *b;

	opened(r, &r->conn);
	meet_self(&r->conn);
	a = map_one(&r->conn, r, 1, fd);
	opened(r, &r->second);
	meet_self(&r->second);
	b = map_one(&r->second, r, 1, fd);
	assert_ptr_equal(a->addr, b->addr);
	assert_int_equal(stat_of(r, GX_STAT_MAPS_MADE), 1);
	assert_int_equal(stat_of(r, GX_STAT_MAPS_FOUND), 1);
	local_close(&r->conn);
	assert_int_equal(stat_of(r, GX_STAT_MAPS), 1);
	strcpy(b->addr, "still there");
	local_release(&r->second);
	local_release(&r->second); /* once is enough */
	assert_int_equal(stat_of(r, GX_STAT_MAPS), 0);
	assert_true(msync((void *)((uintptr_t)b->addr & ~4095ul), 4096, MS_ASYNC) < 0);
	assert_non_null(local_ctx(r->ours)->peers); /* for its quarantine, should there be one */
	local_close(&r->second);
	assert_null(local_ctx(r->ours)->peers);
	close(fd);
}

/* The same name, token and length; another allocation, and, if the id is a lie, another file. */
static void share__freed_and_made_again(void **state)
{
	struct rig *r = *state;
	int old = memfd(LEN, F_SEAL_SHRINK), new = memfd(LEN, F_SEAL_SHRINK);
	const struct local_map *a, *b;
	char seen[8] = "";

	for (uint64_t id = 1; id <= 2; id++) {
		opened(r, &r->conn);
		meet_self(&r->conn);
		a = map_one(&r->conn, r, 1, old);
		opened(r, &r->second);
		meet_self(&r->second);
		b = map_one(&r->second, r, id, new);
		strcpy(a->addr, "old");
		strcpy(b->addr, "new");
		assert_int_equal(pread(old, seen, 4, OFF), 4);
		assert_string_equal(seen, "old");
		assert_int_equal(pread(new, seen, 4, OFF), 4);
		assert_string_equal(seen, "new");
		assert_int_equal(stat_of(r, GX_STAT_MAPS), 2);
		local_close(&r->conn);
		local_close(&r->second);
	}
	assert_int_equal(stat_of(r, GX_STAT_MAPS_FOUND), 0);
	close(old);
	close(new);
}

/* A process that names another's allocation, even with its very descriptor, gets a mapping of its
 * own: nothing of it depends on what the other does. */
static void share__not_with_another_process(void **state)
{
	struct rig *r = *state;
	int fd = memfd(LEN, F_SEAL_SHRINK), child;
	const struct local_map *a, *b;

	opened(r, &r->conn);
	meet_self(&r->conn);
	a = map_one(&r->conn, r, 1, fd);
	opened(r, &r->second);
	child = meet_child(&r->second);
	b = map_one(&r->second, r, 1, fd);
	assert_ptr_not_equal(a->addr, b->addr);
	assert_int_equal(stat_of(r, GX_STAT_MAPS_FOUND), 0);
	assert_ptr_not_equal(local_conn_of(&r->conn)->peer, local_conn_of(&r->second)->peer);
	child_end(child);
	close(fd);
}

/* Rights are part of what is mapped: who may only read does not find what may be written. */
static void share__not_with_other_rights(void **state)
{
	struct rig *r = *state;
	int fd = memfd(LEN, F_SEAL_SHRINK);

	opened(r, &r->conn);
	meet_self(&r->conn);
	map_one(&r->conn, r, 1, fd);
	opened(r, &r->second);
	meet_self(&r->second);
	peer_says(r, GX_ACCESS_GET, LEN - OFF, LEN);
	map_one(&r->second, r, 1, fd);
	assert_int_equal(stat_of(r, GX_STAT_MAPS), 2);
	close(fd);
}

static void share__nothing_of_who_is_not_known(void **state)
{
	struct rig *r = *state;
	int fd = memfd(LEN, F_SEAL_SHRINK);

	opened(r, &r->conn);
	local_meet(&r->conn, fd); /* no socket */
	assert_null(local_conn_of(&r->conn)->peer);
	map_one(&r->conn, r, 1, fd);
	opened(r, &r->second);
	map_one(&r->second, r, 1, fd);
	assert_int_equal(stat_of(r, GX_STAT_MAPS), 2);
	assert_int_equal(local_conn_of(&r->conn)->peer->start, 0);
	close(fd);
}

/* ---- Who left without a word ---- */

/* A peer that has everything of ours that is told. */
static int lost_peer(struct rig *r, struct gx_conn *c)
{
	int fds[LOCAL_FDS_MAX], child;

	if (c != &r->conn) {
		memcpy(c->named, r->conn.named, sizeof(c->named));
		c->nr_named = r->conn.nr_named;
		c->named_fds = r->conn.named_fds;
	}
	assert_int_equal(local_open(c, LANES), 0);
	child = meet_child(c);
	local_fds(c, fds);
	return child;
}

/* Until the child has ended, and longer than the connection lasts. What may only be read, and what
 * is not exported, is nothing it could write to. */
static void lost__until_the_process_ends(void **state)
{
	struct rig *r = *state;
	int child = lost_peer(r, &r->conn);

	local_lost(&r->conn);
	local_lost(&r->conn);
	assert_int_equal(stat_of(r, GX_STAT_QUARANTINED_B), 100); /* put */
	assert_int_equal(r->put->nr_held, 1);
	assert_int_equal(r->get->nr_held + r->mine->nr_held, 0);
	assert_false(local_tick(r->ours));
	local_close(&r->conn);
	assert_false(local_tick(r->ours));
	assert_int_equal(stat_of(r, GX_STAT_QUARANTINED_B), 100);
	child_end(child);
	assert_true(local_tick(r->ours));
	assert_false(local_tick(r->ours));
	assert_int_equal(r->put->nr_held, 0);
}

static void lost__who_has_ended_or_got_nothing(void **state)
{
	struct rig *r = *state;
	int child = lost_peer(r, &r->conn);

	child_end(child);
	local_lost(&r->conn);
	assert_int_equal(r->put->nr_held, 0);
	assert_int_equal(local_open(&r->second, LANES), 0);
	child = meet_child(&r->second);
	local_lost(&r->second); /* no descriptor went out */
	child_end(child);
	memset(&r->second.named, 0, sizeof(r->second.named));
	local_close(&r->second);
	local_lost(&r->second); /* has no local half */
}

static void lost__two_processes(void **state)
{
	struct rig *r = *state;
	int a = lost_peer(r, &r->conn), b = lost_peer(r, &r->second);

	local_lost(&r->conn);
	local_lost(&r->second);
	assert_int_equal(r->put->nr_held, 2);
	assert_int_equal(stat_of(r, GX_STAT_QUARANTINED_B), 100);
	child_end(a);
	while (!local_tick(r->ours)) /* wait() took either */
		;
	assert_int_equal(r->put->nr_held, 1);
	assert_int_equal(stat_of(r, GX_STAT_QUARANTINED_B), 100);
	child_end(b);
	assert_true(local_tick(r->ours));
	assert_int_equal(r->put->nr_held, 0);
}

static int reap_run(void *gx)
{
	unsigned n = 0;

	mem_reap(gx, false);
	for (const struct gx_mem *m = ((struct gx *)gx)->mems; m; m = m->next)
		n++;
	for (const struct gx_mem *m = ((struct gx *)gx)->dying; m; m = m->next)
		n++;
	return (int)n;
}

/* Memory that cudaIpc names would be somebody else's: it is freed when the process has ended. Host
 * memory, whose pages are the mappings', goes at once. */
static void lost__memory_that_is_freed(void **state)
{
	struct rig *r = *state;
	int child = lost_peer(r, &r->conn);

	local_lost(&r->conn);
	r->put->share.kind = GX_GPU_SHARE_IPC;
	gx_mem_free(r->put);
	assert_true(r->put->dead && !r->put->gone);
	assert_int_equal(gx_uring_run_wait(r->gx->uring, reap_run, r->gx), 3);
	local_close(&r->conn);
	child_end(child);
	assert_true(local_tick(r->ours));
	assert_int_equal(gx_uring_run_wait(r->gx->uring, reap_run, r->gx), 2);
	r->nr_fds--;
}

static void lost__host_memory_that_is_freed(void **state)
{
	struct rig *r = *state;
	int child = lost_peer(r, &r->conn);

	local_lost(&r->conn);
	local_ctx(r->put->gx)->peers = local_ctx(r->ours)->peers; /* where gx_mem_free() looks */
	gx_mem_free(r->put);
	local_ctx(r->gx)->peers = NULL;
	assert_int_equal(local_ctx(r->ours)->peers->nr_held, 0);
	local_close(&r->conn);
	child_end(child);
	gx_stat_set(&r->ours->ctl_stats, GX_STAT_QUARANTINED_B, 0);
	r->nr_fds--;
}

/* What a GPU of ours has not finished with stays mapped, and counts. */
static void stuck__stays_and_counts(void **state)
{
	struct rig *r = *state;
	int fd = memfd(LEN, F_SEAL_SHRINK);
	struct gx_gpu none = {0};
	struct local_mem *mem;
	char *addr;

	opened(r, &r->conn);
	mem = map_one(&r->conn, r, 1, fd)->mem;
	addr = mem->addr;
	mem->gpu = &none;
	local_conn_of(&r->conn)->stuck = true;
	local_close(&r->conn);
	assert_int_equal(stat_of(r, GX_STAT_QUARANTINED_B), LEN);
	assert_int_equal(stat_of(r, GX_STAT_MAPS), 0);
	strcpy(addr, "there");
	munmap(addr, LEN);
	gx_stat_set(&r->ours->ctl_stats, GX_STAT_QUARANTINED_B, 0);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
		T(offered__by_options_and_ports),
		T(export_fill__kinds),
		T(fds__rights),
		T(open__freed_since_the_hello),
		T(revoke__bits),
		T(count__what_the_peer_says),
		T(connect__maps),
		T(connect__descriptor_kinds),
		T(connect__numbers_of_descriptors),
		T(connect__a_region_of_terabytes),
		T(connect__tokens_that_collide),
		T(share__second_connection_maps_nothing),
		T(share__freed_and_made_again),
		T(share__not_with_another_process),
		T(share__not_with_other_rights),
		T(share__nothing_of_who_is_not_known),
		T(stuck__stays_and_counts),
		T(lost__until_the_process_ends),
		T(lost__who_has_ended_or_got_nothing),
		T(lost__two_processes),
		T(lost__memory_that_is_freed),
		T(lost__host_memory_that_is_freed),
#undef T
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
