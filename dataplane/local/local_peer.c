/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes at the other ends of the local link, and the mappings of their memory. Mapping
 * takes up to milliseconds, so all connections of this context with one process share its mappings.
 * gx finds a mapping by the allocation's id, counts its users, and unmaps it after the last. The
 * kernel, not the peer, says which process it is: another process that claims its ids shares
 * nothing with it. A process that left its socket open may only be stopped, and may go on. Memory
 * that it can still write to is marked until it has ended. Runs on the control thread.
 */
#include "local/local.h"

#include "gx_internal/fork.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

/* ---- Identity of a peer's process ---- */

/* Start of process @pid in ticks since boot, as another process may get its number later. 0: not
 * known. */
static uint64_t proc_start(pid_t pid)
{
	unsigned long long start = 0;
	char path[32], text[1024];
	const char *at = NULL;
	size_t n = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	f = fopen(path, "re");
	if (f) {
		n = fread(text, 1, sizeof(text) - 1, f);
		fclose(f);
	}
	text[n] = 0;
	at = strrchr(text, ')'); /* the process's name may hold any character */
	if (!at || sscanf(at + 1,
			  " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d "
			  "%*d %*d %llu",
			  &start) != 1)
		return 0;
	return start;
}

static bool proc_has_ended(int pidfd)
{
	struct pollfd p = {.fd = pidfd, .events = POLLIN};

	return poll(&p, 1, 0) > 0;
}

static int proc_open(int sock, pid_t pid)
{
	socklen_t len = sizeof(int);
	int fd;

	if (!getsockopt(sock, SOL_SOCKET, SO_PEERPIDFD, &fd, &len))
		return fd;
	/* Older kernels: open it by its number, which another process may have by now. */
	return errno == ENOPROTOOPT && pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

static struct local_peer *peer_new(struct gx *gx)
{
	struct local_peer *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->pidfd = -1;
	p->next = local_ctx(gx)->peers;
	local_ctx(gx)->peers = p;
	return p;
}

static void peer_free(struct gx *gx, struct local_peer *p)
{
	struct local_peer **at = &local_ctx(gx)->peers;

	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	if (p->pidfd >= 0)
		close(p->pidfd);
	free(p);
}

void local_peer_put(struct gx *gx, struct local_peer *p)
{
	if (!--p->nr_conns && !p->nr_held)
		peer_free(gx, p);
}

/* NULL if @start is 0: such a process gets a local_peer for each connection. */
static struct local_peer *peer_find(struct gx *gx, pid_t pid, uint64_t start)
{
	for (struct local_peer *p = local_ctx(gx)->peers; p; p = p->next)
		if (start && p->pid == pid && p->start == start)
			return p;
	return NULL;
}

void local_meet(struct gx_conn *c, int sock)
{
	struct ucred cred = {0};
	socklen_t len = sizeof(cred);
	struct local_peer *p;
	uint64_t start;
	int pidfd;

	if (!local_conn_of(c) || local_conn_of(c)->peer || local_conn_of(c)->released ||
	    getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &len))
		return;
	pidfd = proc_open(sock, cred.pid);
	start = cred.pid > 0 ? proc_start(cred.pid) : 0;
	/* If the process still lives, the start time from /proc is its own. */
	if (pidfd < 0 || proc_has_ended(pidfd))
		start = 0;
	p = peer_find(c->gx, cred.pid, start);
	if (p && pidfd >= 0)
		close(pidfd);
	if (!p) {
		p = peer_new(c->gx);
		if (p)
			*p = (struct local_peer){
				.next = p->next, .pid = cred.pid, .start = start, .pidfd = pidfd};
		else if (pidfd >= 0)
			close(pidfd);
	}
	if (p)
		p->nr_conns++;
	local_conn_of(c)->peer = p;
	local_conn_of(c)->sock = gx_fd_own(fcntl(sock, F_DUPFD_CLOEXEC, 0));
	local_conn_of(c)->uid =
		cred.uid; /* a process may have another one at its next connection */
	local_pull_offer(c);
}

/* ---- Our memory for peers ---- */

const char *local_offered(const struct gx *gx)
{
	if (gx->opts.host->local == GX_OFF)
		return "switched off";
	for (unsigned i = 0; i < gx->nr_ports; i++)
		if (!strcmp(gx->port[i].match, "shm"))
			return NULL;
	return "port shm is not opened";
}

void local_export_fill(const struct gx_mem *mem, struct gx_hello_export *e)
{
	static const uint8_t kind[] = {[GX_GPU_SHARE_FD] = GX_EXPORT_VMM,
				       [GX_GPU_SHARE_IPC] = GX_EXPORT_CUDA_IPC,
				       [GX_GPU_SHARE_CHUNKS] = GX_EXPORT_CHUNKS};
	const struct gx_gpu_handle *h = &mem->share;

	if (mem->kind == GX_MEM_CUDA && h->kind != GX_GPU_SHARE_NONE) {
		*e = (struct gx_hello_export){.kind = kind[h->kind],
					      .map_len = h->len,
					      .map_off = h->off,
					      .map_id = mem->id};
		memcpy(e->handle, h->ipc, sizeof(e->handle));
	}
	if (mem->kind != GX_MEM_HOST || mem->fd < 0 || !mem->len)
		return;
	*e = (struct gx_hello_export){.kind = GX_EXPORT_MEMFD,
				      .map_len = GX_ALIGN_UP(mem->len, GX_HUGE_PAGE),
				      .map_id = mem->id};
}

/* ---- Mappings of its memory ---- */

static bool mem_is(const struct local_mem *a, const struct local_mem *b)
{
	return a->as.kind == b->as.kind && a->as.map_id == b->as.map_id &&
	       a->as.map_len == b->as.map_len && a->as.map_off == b->as.map_off &&
	       !memcmp(a->as.handle, b->as.handle, sizeof(a->as.handle)) &&
	       a->writable == b->writable && a->dev == b->dev && a->ino == b->ino;
}

static void maps_count(struct gx *gx, int more)
{
	local_ctx(gx)->nr_peer_maps += (unsigned)more;
	gx_stat_set(&gx->ctl_stats, GX_STAT_MAPS, local_ctx(gx)->nr_peer_maps);
}

struct local_mem *local_mem_find(struct gx_conn *c, const struct local_mem *like)
{
	struct local_peer *p = local_conn_of(c)->peer;

	for (struct local_mem *m = p ? p->mems : NULL; m; m = m->next)
		if (mem_is(m, like)) {
			m->refs++;
			gx_stat_add(&c->gx->ctl_stats, GX_STAT_MAPS_FOUND, 1);
			return m;
		}
	return NULL;
}

struct local_mem *local_mem_add(struct gx_conn *c, const struct local_mem *mapped)
{
	struct local_conn *l = local_conn_of(c);
	struct local_mem *m = malloc(sizeof(*m));

	if (m && !l->peer) {
		l->peer = peer_new(c->gx);
		if (l->peer)
			l->peer->nr_conns = 1;
	}
	if (!m || !l->peer) {
		free(m);
		return NULL;
	}
	*m = *mapped;
	m->refs = 1;
	m->next = l->peer->mems;
	l->peer->mems = m;
	gx_stat_add(&c->gx->ctl_stats, GX_STAT_MAPS_MADE, 1);
	maps_count(c->gx, 1);
	return m;
}

void local_mem_unmap(const struct local_mem *m)
{
	if (m->is_gpu) {
		for (unsigned d = 0; d < GX_GPUS_MAX; d++)
			if (m->view[d].by)
				m->view[d].by->share->unimport(m->view[d].by, m->view[d].addr);
		return;
	}
	if (!m->gpu || m->gpu->ops->host_unmap(m->gpu, m->addr, m->as.map_len))
		munmap(m->addr, m->as.map_len);
}

static void held_count(struct gx *gx)
{
	const struct local_ctx *l = local_ctx(gx);

	gx_stat_set(&gx->ctl_stats, GX_STAT_QUARANTINED_B, l->stuck_b + l->held_b);
}

void local_mem_put(struct gx *gx, struct local_peer *p, struct local_mem *m)
{
	struct local_mem **at = &p->mems;

	if (--m->refs)
		return;
	while (*at != m)
		at = &(*at)->next;
	*at = m->next;
	maps_count(gx, -1);
	if (m->stuck) {
		local_ctx(gx)->stuck_b += m->as.map_len;
		held_count(gx);
	} else {
		local_mem_unmap(m);
	}
	free(m);
}

/* ---- Quarantine: the process may be stopped ---- */

static bool held_by(const struct local_peer *p, const struct gx_mem *mem)
{
	for (unsigned i = 0; i < p->nr_held; i++)
		if (p->held[i] == mem)
			return true;
	return false;
}

/* The peer may write to @mem. */
void local_hold(struct gx *gx, struct local_peer *p, struct gx_mem *mem)
{
	struct gx_hello_export e = {0};

	local_export_fill(mem, &e);
	if (e.kind == GX_EXPORT_NONE || held_by(p, mem) || p->nr_held == LOCAL_HELD_MAX)
		return;
	p->held[p->nr_held++] = mem;
	if (!mem->nr_held++)
		local_ctx(gx)->held_b += mem->len;
}

static void unhold(struct gx *gx, struct gx_mem *mem)
{
	if (!--mem->nr_held)
		local_ctx(gx)->held_b -= mem->len;
}

static void held_say(const struct gx_conn *c, const struct local_peer *p)
{
	char more[32] = "";

	if (p->nr_held > 1)
		snprintf(more, sizeof(more), " and %u more", p->nr_held - 1);
	gx_warn("peer %s left without a word, and process %d lives: is it stopped? When it goes on "
		"it may write what is left of a put, at most 256 KiB, into region '%s'%s. Until it "
		"has ended they count as quarantined: kill -9 %d, or share other memory instead",
		c->peer_name, (int)p->pid, p->held[0]->name, more, (int)p->pid);
}

void local_held_say(const struct gx_conn *c, unsigned before)
{
	const struct local_peer *p = local_conn_of(c)->peer;

	if (p->nr_held == before)
		return;
	held_count(c->gx);
	if (!c->gx->closing) /* else nobody reads there any more */
		held_say(c, p);
}

bool local_peer_has_ended(const struct local_peer *p)
{
	return p->pidfd >= 0 && proc_has_ended(p->pidfd);
}

void local_unheld(struct gx_mem *mem)
{
	struct local_peer *p, *next;
	bool held = mem->nr_held;

	for (p = held ? local_ctx(mem->gx)->peers : NULL; p; p = next) {
		next = p->next;
		for (unsigned i = p->nr_held; i-- > 0;)
			if (p->held[i] == mem) {
				p->held[i] = p->held[--p->nr_held];
				unhold(mem->gx, mem);
			}
		if (!p->nr_held && !p->nr_conns)
			peer_free(mem->gx, p);
	}
	if (held)
		held_count(mem->gx);
}

static void held_end(struct gx *gx, struct local_peer *p)
{
	while (p->nr_held)
		unhold(gx, p->held[--p->nr_held]);
	held_count(gx);
	if (!p->nr_conns)
		peer_free(gx, p);
}

bool local_tick(struct gx *gx)
{
	struct local_peer *p, *next;
	bool ended = false;

	for (p = local_ctx(gx)->peers; p; p = next) {
		next = p->next;
		if (!p->nr_held || p->pidfd < 0 || !proc_has_ended(p->pidfd))
			continue;
		gx_info("process %d has ended: its quarantine has, too", (int)p->pid);
		held_end(gx, p);
		ended = true;
	}
	return ended;
}

void local_peers_close(struct gx *gx)
{
	struct local_peer *p, *next;

	for (p = local_ctx(gx)->peers; p; p = next) {
		next = p->next;
		if (p->nr_held)
			held_end(gx, p);
	}
}
