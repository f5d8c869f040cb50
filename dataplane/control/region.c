/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered memory and named regions. Control path only; cores read the table of regions while
 * they run.
 */
#include "control/control.h"
#include "control/rights.h"
#include "submit/submit.h"

#include "gx_internal/link.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MEM_GRAVES	 1024	 /* freed handles that are kept, to refuse their use */
#define MEM_GRAVES_LOOK	 8	 /* of these, how many are looked at for one to use again */
#define MEM_FREE_OWN_NS	 2000000 /* the same for memory of gx_mem_alloc(): gx can free it later */
#define MEM_FREE_NAP_NS	 20000
#define MEM_FREE_SPIN_NS 20000

/* Let ports send from it, and let the open GPUs' copy engines use it. */
static int mem_map_ports(struct gx_mem *mem)
{
	int ret = 0;

	for (unsigned i = 0; i < GX_GPUS_MAX; i++)
		if (mem->gx->gpu[i])
			gpu_host_register(mem, mem->gx->gpu[i]);

	for (unsigned p = 0; !ret && mem->kind == GX_MEM_HOST && mem->len && p < mem->gx->nr_ports;
	     p++)
		ret = mem->gx->port[p].port->ops->mem_map(mem->gx->port[p].port, mem->addr,
							  mem->len);
	return ret;
}

/* Return: 0, -errno with gx_error(). */
static int mem_map(struct gx_mem *mem)
{
	int ret = mem_map_ports(mem);

	if (ret)
		return gx_fail(ret, "cannot map memory for sending: %s", gx_port_why_of(ret));
	for (unsigned l = 0; !ret && l < GX_LINKS; l++)
		ret = gx_links[l]->mem->add(mem);
	return ret;
}

void mem_list(struct gx_mem *mem, struct gx_mem **head)
{
	mem->next = *head;
	mem->at = head;
	if (mem->next)
		mem->next->at = &mem->next;
	*head = mem;
}

static void list_del(struct gx_mem *mem)
{
	*mem->at = mem->next;
	if (mem->next)
		mem->next->at = mem->at;
}

static int list_run(void *arg)
{
	struct gx_mem *mem = arg;

	mem_list(mem, &mem->gx->mems);
	mem->id = ++mem->gx->mem_ids;
	mem->place = core_place(mem->id);
	return 0;
}

/* The handle that was freed first becomes the last one. There are MEM_GRAVES. */
static void grave_last(struct gx *gx)
{
	struct gx_mem *mem = gx->graves;

	gx->graves = mem->next;
	mem->next = NULL;
	*gx->graves_tail = mem;
	gx->graves_tail = &mem->next;
}

/* Reuse the handle that was freed first, if MEM_GRAVES are kept. Handles whose owners must ask again
 * are left out. */
static int handle_run(void *arg)
{
	struct {
		struct gx *gx;
		struct gx_mem *mem;
	} *call = arg;
	struct gx *gx = call->gx;
	unsigned looks = 0;

	if (gx->nr_graves < MEM_GRAVES)
		return 0;
	while (atomic_load_explicit(&gx->graves->owed, memory_order_relaxed)) {
		grave_last(gx);
		if (++looks == MEM_GRAVES_LOOK)
			return 0;
	}
	call->mem = gx->graves;
	gx->graves = call->mem->next;
	gx->nr_graves--;
	memset(call->mem, 0, sizeof(*call->mem));
	return 0;
}

static int mem_new(struct gx *gx, enum gx_mem_kind kind, int device, uint64_t len,
		   struct gx_mem **out)
{
	struct {
		struct gx *gx;
		struct gx_mem *mem;
	} call = {gx, NULL};
	struct gx_mem *mem;
	int ret = 0;

	gx_uring_run_wait(gx->uring, handle_run, &call);
	mem = call.mem ? call.mem : calloc(1, sizeof(*mem));
	if (!mem)
		return gx_fail(-ENOMEM, "no memory for the handle of memory");
	mem->gx = gx;
	mem->kind = kind;
	mem->device = kind == GX_MEM_CUDA ? device : -1;
	mem->len = len;
	mem->fd = -1;
	mem->gpu = gx->host;
	if (kind == GX_MEM_CUDA)
		ret = gpu_get(gx, device, &mem->gpu);
	else if (kind != GX_MEM_HOST)
		ret = gx_fail(-EINVAL, "memory kind %d is not known", kind);
	if (ret) {
		free(mem);
		return ret;
	}
	gx_uring_run_wait(gx->uring, list_run, mem);
	*out = mem;
	return 0;
}

/* Memory of a memfd, so that peers on this host can map it; huge pages if there are. False: no
 * memfd. */
static bool host_alloc_memfd(struct gx_mem *mem, size_t len)
{
	bool huge = mem->gx->opts.host->huge != GX_OFF;
	void *p;

	mem->fd = gx_memfd_open("gx-mem", len, &huge);
	if (mem->fd < 0)
		return false;
	p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, mem->fd, 0);
	if (p == MAP_FAILED) {
		close(mem->fd);
		mem->fd = -1;
		return false;
	}
	mem->huge = huge;
	mem->addr = p;
	return true;
}

/* Private memory: huge pages if there are, else normal ones that the kernel may make huge. */
static bool host_alloc_private(struct gx_mem *mem, size_t len)
{
	void *p = mem->gx->opts.host->huge != GX_OFF ? gx_huge_get(len) : NULL;

	mem->huge = p;
	if (!p && gx_mem_fits(len))
		p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (!p || p == MAP_FAILED)
		return false;
	mem->addr = p;
	return true;
}

static int host_alloc(struct gx_mem *mem)
{
	size_t len = GX_ALIGN_UP(GX_MAX(mem->len, 1), GX_HUGE_PAGE);
	bool done = mem->gx->maps && host_alloc_memfd(mem, len);
	struct gx_mem_room room;

	if (!done && !host_alloc_private(mem, len)) {
		gx_mem_room("", &room);
		if (len <= room.len)
			return gx_fail(-ENOMEM,
				       "the kernel gives no %llu MiB of host memory, though there "
				       "are %llu: ulimit -v, -n or vm.max_map_count?",
				       (unsigned long long)len >> 20,
				       (unsigned long long)room.len >> 20);
		return gx_fail(-ENOMEM,
			       "%llu MiB of host memory are asked for, %llu MiB can be had (%s; "
			       "GX_MEM_CHECK=off where memory grows as it is used)",
			       (unsigned long long)len >> 20, (unsigned long long)room.len >> 20,
			       room.what);
	}
	if (mem->huge)
		return 0;
	mem->normal_why =
		mem->gx->opts.host->huge == GX_OFF ? "huge ones are off" : gx_huge_why(len);
	madvise(mem->addr, len, MADV_HUGEPAGE);
	/* Take page faults now, not on a polling core. Kernels before 5.14 take them later. */
	madvise(mem->addr, len, MADV_POPULATE_WRITE);
	return 0;
}

/* Could a peer that left without a word still write to it? Pages of a memfd or of cuMemCreate stay
 * the peer's while it maps them. Memory that cudaIpc names would go to its next owner. */
static bool mem_must_stay(const struct gx_mem *mem)
{
	return mem->nr_held && mem->own && mem->share.kind == GX_GPU_SHARE_IPC;
}

/* Keep the handle for a while: its further use then gets an error. */
static void mem_bury(struct gx_mem *mem)
{
	struct gx *gx = mem->gx;

	atomic_store_explicit(&mem->dead, true, memory_order_relaxed);
	atomic_store_explicit(&mem->gone, true, memory_order_relaxed);
	mem->next = NULL;
	if (gx->nr_graves++)
		*gx->graves_tail = mem;
	else
		gx->graves = mem;
	gx->graves_tail = &mem->next;
}

/* Its whole keeps the address, the devices and the descriptors. */
static void part_destroy(struct gx_mem *part)
{
	for (unsigned l = 0; l < GX_LINKS; l++)
		gx_links[l]->mem->gone(part);
	part->whole->nr_parts--;
	free(part);
}

static void mem_destroy(struct gx_mem *mem)
{
	bool stays = mem_must_stay(mem), ours = true;

	if (stays)
		gx_warn("%llu bytes of cuda:%d stay with the process: a stopped one may write "
			"there",
			(unsigned long long)mem->len, mem->device);
	for (unsigned l = 0; l < GX_LINKS; l++)
		gx_links[l]->mem->gone(mem);
	for (unsigned p = 0; mem->kind == GX_MEM_HOST && mem->addr && p < mem->gx->nr_ports; p++)
		mem->gx->port[p].port->ops->mem_unmap(mem->gx->port[p].port, mem->addr, mem->len);
	if (mem->dma)
		ours = mem->dma->ops->host_unmap(mem->dma, mem->addr, mem->len);
	if (mem->own && mem->addr && mem->kind == GX_MEM_HOST && !ours)
		gx_warn("%llu bytes of host memory stay with the process: a GPU has not finished "
			"with them",
			(unsigned long long)mem->len);
	else if (mem->own && mem->addr && mem->kind == GX_MEM_HOST)
		munmap(mem->addr, GX_ALIGN_UP(GX_MAX(mem->len, 1), GX_HUGE_PAGE));
	else if (mem->own && mem->addr && !stays)
		mem->gpu->mem->free(mem->gpu, mem->addr, GX_MAX(mem->len, 1));
	if (mem->fd >= 0)
		close(mem->fd);
	mem_bury(mem);
}

/* Discard memory that nobody has used. */
static int discard_run(void *arg)
{
	list_del(arg);
	mem_destroy(arg);
	return 0;
}

GX_EXPORT int gx_mem_alloc(struct gx *gx, enum gx_mem_kind kind, int device, uint64_t len,
			   struct gx_mem **out)
{
	struct gx_mem *mem = NULL;
	int ret = mem_new(gx, kind, device, len, &mem);

	if (ret)
		return ret;
	mem->own = true;
	if (kind == GX_MEM_HOST) {
		ret = host_alloc(mem);
	} else {
		ret = mem->gpu->mem->alloc(mem->gpu, GX_MAX(len, 1), (void **)&mem->addr);
		if (ret)
			gx_fail(ret, "no %llu bytes on cuda:%d: %s", (unsigned long long)len,
				device, gx_gpu_why());
	}
	if (!ret)
		ret = mem_map(mem);
	if (ret) {
		gx_uring_run_wait(gx->uring, discard_run, mem);
		return ret;
	}
	*out = mem;
	return 0;
}

/* A copy to memory that is not there would end the program's CUDA context, at a peer's wish. */
static int reg_check(const struct gx_mem *mem, const void *addr)
{
	int device = mem->device;

	if (mem->kind == GX_MEM_CUDA && mem->len)
		device = mem->gpu->mem->device(mem->gpu, addr, mem->len);
	if (device < 0 && mem->kind == GX_MEM_CUDA)
		return gx_fail(-EINVAL, "%p, %llu bytes: not memory of cuda:%d: %s", addr,
			       (unsigned long long)mem->len, mem->device, gx_gpu_why());
	return device == mem->device ? 0
				     : gx_fail(-EINVAL, "%p: memory of cuda:%d, not of cuda:%d",
					       addr, device, mem->device);
}

GX_EXPORT int gx_mem_reg(struct gx *gx, enum gx_mem_kind kind, int device, void *addr, uint64_t len,
			 struct gx_mem **out)
{
	struct gx_mem *mem = NULL;
	bool read_only;
	int ret;

	if (!addr && len)
		return gx_fail(-EINVAL, "no address to register");
	ret = kind == GX_MEM_HOST ? gx_range_access(addr, len) : GX_RANGE_WRITE;
	if (ret < 0)
		return gx_fail(ret, "%p, %llu bytes: not memory that this process can read", addr,
			       (unsigned long long)len);
	read_only = !(ret & GX_RANGE_WRITE);
	ret = mem_new(gx, kind, device, len, &mem);
	if (ret)
		return ret;
	ret = reg_check(mem, addr);
	if (!ret) {
		mem->addr = addr;
		mem->read_only = read_only;
		ret = mem_map(mem);
	}
	if (ret) {
		gx_uring_run_wait(gx->uring, discard_run, mem);
		return ret;
	}
	*out = mem;
	return 0;
}

/* Does a connection still need it? A connection in set-up sends its descriptor. A peer may write to
 * memory that cudaIpc names until the connection ends. Memory of the caller waits for neither. */
static bool mem_is_named(const struct gx_mem *mem)
{
	for (const struct gx_conn *c = mem->own ? mem->gx->conns : NULL; c; c = c->next) {
		if (atomic_load(&c->state) != GX_CONN_STATE_CONNECTING &&
		    (!c->maps || mem->share.kind != GX_GPU_SHARE_IPC))
			continue;
		for (unsigned i = 0; i < c->nr_named; i++)
			if (c->named[i] == mem)
				return true;
	}
	return false;
}

/* Without connections no core has an operation under way. */
static bool mem_may_go(const struct gx_mem *mem)
{
	for (unsigned l = 0; l < GX_LINKS; l++)
		if (gx_links[l]->mem->busy(mem))
			return false;
	return !mem->nr_parts && !mem_must_stay(mem) && !mem_is_named(mem) &&
	       (!mem->gx->conns || drop_is_done(mem->gx, mem->drop_seq));
}

static void parts_reap(struct gx_mem *whole)
{
	while (whole->parts) {
		struct gx_mem *part = whole->parts;

		list_del(part);
		part_destroy(part);
	}
}

/* Parts go before their whole. */
static bool reap_list(struct gx_mem **at, bool all)
{
	bool any = false;

	while (*at) {
		struct gx_mem *mem = *at;

		if (all)
			parts_reap(mem);
		if (all ? mem->nr_parts : !mem_may_go(mem)) {
			at = &mem->next;
			continue;
		}
		list_del(mem);
		any = true;
		if (mem->whole)
			part_destroy(mem);
		else
			mem_destroy(mem);
	}
	return any;
}

void mem_reap(struct gx *gx, bool all)
{
	while (gx->dying && reap_list(&gx->dying, all))
		;
	if (!all)
		return;
	reap_list(&gx->mems, true);
	while (gx->graves) {
		struct gx_mem *mem = gx->graves;

		gx->graves = mem->next;
		free(mem);
	}
}

/* It has no parts. */
static void end_one(struct gx_mem *mem)
{
	struct gx *gx = mem->gx;

	if (mem->shared) {
		atomic_store_explicit(&gx->region[mem->token & CORE_TOKEN_INDEX], NULL,
				      memory_order_release);
		gx->nr_keys -= mem->whole != NULL;
	}
	for (unsigned l = 0; l < GX_LINKS && mem->shared; l++)
		gx_links[l]->mem->revoke(mem);
	list_del(mem);
	mem_list(mem, &gx->dying);
	drop_begin(mem);
}

void mem_end(struct gx_mem *mem)
{
	while (mem->parts)
		end_one(mem->parts);
	end_one(mem);
}

/* Peers can no longer name it, and cores end their operations with it. */
static int free_run(void *arg)
{
	struct gx_mem *mem = arg;

	if (!mem->dead) /* else the caller asks again */
		mem_end(mem);
	return 0;
}

/* Is it still there? Search by its id: the handle may belong to other memory by now. */
static int left_run(void *arg)
{
	struct {
		struct gx *gx;
		uint64_t id;
	} *call = arg;

	mem_reap(call->gx, false);
	for (const struct gx_mem *m = call->gx->dying; m; m = m->next)
		if (m->id == call->id)
			return 1;
	return 0;
}

bool mem_left(struct gx *gx, uint64_t id, uint32_t seq, uint64_t wait_ns)
{
	struct {
		struct gx *gx;
		uint64_t id;
	} call = {gx, id};
	uint64_t start_ns = gx_now_ns();

	for (;;) {
		uint64_t spin_ns = gx_now_ns() + MEM_FREE_SPIN_NS;

		/* A core that spins lets go in its next turn. */
		drop_help(gx, seq);
		while (!drop_is_done(gx, seq) && gx_now_ns() < spin_ns)
			gx_cpu_relax();
		if (!gx_uring_run_wait(gx->uring, left_run, &call))
			return false;
		if (gx_now_ns() - start_ns >= wait_ns)
			return true;
		nanosleep(&(struct timespec){.tv_nsec = MEM_FREE_NAP_NS}, NULL);
	}
}

static bool helpers_come(const struct gx *gx)
{
	for (unsigned i = 0; i < gx->nr_cores; i++)
		if (help_comes(&gx->core[i]->help))
			return true;
	return false;
}

/* Who else may still use it, as the end of a sentence. */
static void holders_text(const struct gx *gx, struct gx_text *text)
{
	for (unsigned l = 0; l < GX_LINKS; l++)
		if (gx_links[l]->mem->holder(gx))
			core_say(text, ", or %s", gx_links[l]->mem->holder(gx));
	if (helpers_come(gx))
		core_say(text, ", or a thread in gx_help()");
}

int mem_still_used(const struct gx *gx, const char *what, const char *cure)
{
	char others[160] = "";
	struct gx_text text = {others, sizeof(others), 0};

	holders_text(gx, &text);
	return gx_fail(-EAGAIN,
		       "a core that another thread turns%s has not let go of %s: have the core "
		       "turned, and %s",
		       others, what, cure);
}

GX_EXPORT int gx_mem_free(struct gx_mem *mem)
{
	struct gx *gx = mem ? mem->gx : NULL;
	uint64_t id = mem ? mem->id : 0;
	bool own = mem && mem->own, owed;

	if (!mem)
		return 0;
	owed = atomic_exchange_explicit(&mem->owed, false, memory_order_relaxed);
	/* The control thread may have freed it since the caller was told to ask again. */
	if (atomic_load_explicit(&mem->gone, memory_order_relaxed))
		return owed ? 0 : gx_fail(-EINVAL, "this memory was freed already");
	gx_uring_run_wait(gx->uring, free_run, mem);
	if (!mem_left(gx, id, mem->drop_seq,
		      own ? MEM_FREE_OWN_NS : gx->opts.gpu->timeout_ns + MEM_FREE_NS))
		return 0;
	if (own) /* mem_reap() frees it when it can */
		return 0;
	atomic_store_explicit(&mem->owed, true, memory_order_relaxed);
	return mem_still_used(gx, "this memory",
			      "free the memory again before it is used for something else");
}

GX_EXPORT void *gx_mem_addr(const struct gx_mem *mem)
{
	return mem->addr;
}

GX_EXPORT uint64_t gx_mem_len(const struct gx_mem *mem)
{
	return mem->len;
}

GX_EXPORT enum gx_mem_kind gx_mem_kind_of(const struct gx_mem *mem)
{
	return mem->kind;
}

GX_EXPORT bool gx_mem_huge(const struct gx_mem *mem)
{
	return mem->huge;
}

/* Export memory of a GPU to peers on this host. They can then write there. So gx exports only
 * regions that they may put into; packets carry the rest, unless the caller refuses that. Return: 0,
 * -EOPNOTSUPP with gx_error(). */
static int share_gpu(struct gx_mem *mem, const char *name, unsigned access)
{
	bool put = access & GX_ACCESS_PUT;

	if (mem->kind != GX_MEM_CUDA || !mem->len || !mem->gx->maps ||
	    !(access & (GX_ACCESS_PUT | GX_ACCESS_MAPPED)))
		return 0;
	if (put && !mem->gpu->share->export(mem->gpu, mem->addr, mem->len, &mem->share)) {
		mem->fd = mem->share.fd;
		return 0;
	}
	if (access & GX_ACCESS_MAPPED)
		return gx_fail(-EOPNOTSUPP, "region '%s' on cuda:%d cannot be mapped by peers: %s",
			       name, mem->device,
			       put ? gx_gpu_why() : "who maps it can write, so allow puts, too");
	gx_warn("region '%s' on cuda:%d cannot be mapped by peers on this host, and goes by packets, "
		"many times slower: %s",
		name, mem->device, gx_gpu_why());
	return 0;
}

/* A free place of the table for @name. Return: its index, -errno with gx_error(). */
static int share_place(const struct gx *gx, const char *name)
{
	int at = -1;

	for (int i = GX_REGIONS_MAX; i-- > 0;) {
		const struct gx_mem *m = atomic_load(&gx->region[i]);

		if (m && !strcmp(m->name, name))
			return gx_fail(-EEXIST, "there is a region '%s' already", name);
		if (!m)
			at = i;
	}
	return at < 0 ? gx_fail(-ENOSPC,
				"at most %d regions have names: share more memory by gx_mem_key()",
				GX_REGIONS_MAX)
		      : at;
}

int region_check(const struct gx_mem *mem, const char *name, unsigned access)
{
	const struct gx *gx = mem->gx;

	if (mem_is_dead(mem))
		return gx_fail(-EINVAL, "region '%s': its memory was freed", name);
	if (access & GX_ACCESS_MAPPED && mem->kind == GX_MEM_HOST && mem->len && mem->fd < 0)
		return gx_fail(-EOPNOTSUPP,
			       "region '%s': peers map host memory of gx_mem_alloc() alone, and "
			       "over link local",
			       name);
	if (mem->read_only && access & GX_ACCESS_PUT)
		return gx_fail(-EACCES, "region '%s': its memory cannot be written", name);
	if (gx->pool && mem->kind == GX_MEM_HOST && mem->len && access & GX_ACCESS_PUT &&
	    !mem_is_mapped(mem))
		return gx_fail(
			-EOPNOTSUPP,
			"region '%s': its host memory cannot be registered with cuda:%d, which has "
			"the bounce pool: take gx_gpu_opts.bounce host",
			name, gx->pool_gpu->device);
	return 0;
}

static int share_check(const struct gx_mem *mem, const char *name, unsigned access)
{
	int ret = region_check(mem, name, access);

	if (!ret && mem->shared)
		return gx_fail(-EEXIST, "this memory is region '%s' already", mem->name);
	return ret;
}

/* @mem is about to have place @at: who may reach it, and its parts? */
static void region_name(struct gx_mem *mem, unsigned at)
{
	uint8_t named = (uint8_t)(at + 1);

	rights_region(mem->gx, at, mem->name);
	/* These pair with the acquire in core_rights(). */
	atomic_store_explicit(&mem->named, named, memory_order_release);
	for (struct gx_mem *part = mem->parts; part; part = part->next)
		atomic_store_explicit(&part->named, named, memory_order_release);
}

void region_publish(struct gx_mem *mem, unsigned at, uint64_t random)
{
	struct gx *gx = mem->gx;

	mem->token = core_token(at, mem->kind, random);
	mem->shared = true;
	if (at >= gx->region_top)
		atomic_store_explicit(&gx->region_top, at + 1, memory_order_relaxed);
	/* Pairs with the acquire in core_region_at(). */
	atomic_store_explicit(&gx->region[at], mem, memory_order_release);
}

struct share_call {
	struct gx_mem *mem;
	const char *name;
	unsigned access;
	void *ticket[GX_LINKS]; /* of gx_link_mem_ops.share(); NULL: none, or it was kept */
	char why[256];
};

/* On the control thread, so two callers never take one place, or one name. */
static int share(struct share_call *call)
{
	struct gx_mem *mem = call->mem;
	const char *name = call->name;
	unsigned access = call->access;
	struct gx *gx = mem->gx;
	int ret = share_check(mem, name, access);
	int at = ret ? ret : share_place(gx, name);
	uint64_t r;

	if (at < 0)
		return at;
	if (gx_random(&r, sizeof(r)))
		return gx_fail(-EIO, "no random numbers");
	ret = share_gpu(mem, name, access);
	if (ret)
		return ret;
	for (unsigned l = 0; l < GX_LINKS; l++) {
		if (call->ticket[l])
			gx_links[l]->mem->share_keep(mem, call->ticket[l]);
		call->ticket[l] = NULL;
	}
	/* If the kernel cannot protect it from writing, do not export it: packets carry it. */
	if (mem->kind == GX_MEM_HOST && mem->fd >= 0 && !mem->sealed &&
	    gx_memfd_freeze(mem->fd, !(access & GX_ACCESS_PUT))) {
		if (access & GX_ACCESS_MAPPED)
			return gx_fail(-EOPNOTSUPP, "region '%s': the kernel seals no memfd", name);
		close(mem->fd);
		mem->fd = -1;
	}
	mem->sealed = true;
	memcpy(mem->name, name, strlen(name) + 1);
	mem->access = access;
	region_name(mem, (unsigned)at);
	region_publish(mem, (unsigned)at, r);
	return 0;
}

static int share_run(void *arg)
{
	struct share_call *call = arg;
	int ret = share(call);

	snprintf(call->why, sizeof(call->why), "%s", gx_error());
	return ret;
}

GX_EXPORT int gx_mem_share(struct gx_mem *mem, const char *name, unsigned access)
{
	struct share_call call = {.mem = mem, .name = name, .access = access};
	int ret;

	if (!name[0] || strlen(name) >= GX_NAME_MAX)
		return gx_fail(-EINVAL, "a region's name has 1 to %d bytes", GX_NAME_MAX - 1);
	if (!share_check(mem, name, access))
		for (unsigned l = 0; l < GX_LINKS; l++)
			call.ticket[l] = gx_links[l]->mem->share(mem, name, access);
	ret = gx_uring_run_wait(mem->gx->uring, share_run, &call);
	for (unsigned l = 0; l < GX_LINKS; l++)
		if (call.ticket[l]) /* no region came of it */
			gx_links[l]->mem->share_put(mem->gx, call.ticket[l]);
	return ret ? gx_fail(ret, "%s", call.why) : 0;
}
