/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The RDMA devices of a context, its rails, in the order of the user: opened, described, and memory
 * registered with one or all. Who may call is said in verbs.h.
 */
#include "verbs/verbs_lane.h"

#include "gx_internal/gpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define REG_SLOW_NS 100000000ull /* of a registration; from here on the log says how long it took */

/* ---- Opened ---- */

static int rails_add(struct verbs_rails *r, const struct gx_rail *rail)
{
	struct verbs_dev *dev;
	int ret;

	if (r->nr == VERBS_RAILS_MAX)
		return gx_fail(-EINVAL, "gx_verbs_opts.rails: a context has at most %d",
			       VERBS_RAILS_MAX);
	ret = verbs_dev_open(rail, &dev);
	if (ret)
		return ret;
	for (unsigned i = 0; i < r->nr; i++) {
		if (strcmp(r->dev[i]->name, dev->name) || r->dev[i]->port != dev->port)
			continue;
		verbs_dev_close(dev);
		return gx_fail(-EINVAL, "gx_verbs_opts.rails: %s port %u is named twice",
			       r->dev[i]->name, r->dev[i]->port);
	}
	dev->rail = (uint8_t)r->nr;
	r->dev[r->nr++] = dev;
	return 0;
}

/* Every device that can be used. @how: its marks. */
static int rails_all(struct verbs_rails *r, const struct gx_rail *how)
{
	char name[2 * VERBS_RAILS_MAX][GX_NAME_MAX];
	int n = verbs_dev_names(name, GX_ARRAY_SIZE(name)), ret = n < 0 ? n : -ENODEV;

	for (int i = 0; i < n && r->nr < VERBS_RAILS_MAX; i++) {
		const struct gx_rail rail = {
			.device = name[i], .sl = how ? how->sl : 0, .tc = how ? how->tc : 0};

		if (!rails_add(r, &rail))
			ret = 0;
		else
			gx_info("link verbs goes without %s: %s", name[i], gx_error());
	}
	return ret; /* with the reason of the last one */
}

int verbs_rails_open(const struct gx_verbs_opts *o, struct verbs_rails **out)
{
	struct verbs_rails *r;
	int ret = 0;

	if (o->nr_rails > VERBS_RAILS_MAX || (o->all && o->nr_rails > 1) ||
	    (o->nr_rails && !o->rails))
		return gx_fail(
			-EINVAL,
			"gx_verbs_opts.rails: name 1 to %d devices, or .all and one entry for "
			"its marks",
			VERBS_RAILS_MAX);
	r = calloc(1, sizeof(*r));
	if (!r)
		return gx_fail(-ENOMEM, "no memory for verbs devices");
	if (o->all)
		ret = rails_all(r, o->rails);
	for (unsigned i = 0; !ret && !o->all && i < o->nr_rails; i++)
		ret = rails_add(r, &o->rails[i]);
	if (ret) {
		verbs_rails_close(r);
		return ret;
	}
	for (unsigned i = 0; i < r->nr; i++)
		r->dev[i]->has_others = r->nr > 1;
	verbs_rails_unfork(r);
	*out = r;
	return 0;
}

void verbs_rails_close(struct verbs_rails *r)
{
	for (unsigned i = 0; r && i < r->nr; i++)
		verbs_dev_close(r->dev[i]);
	free(r);
}

/* ---- Said ---- */

int verbs_rails_text(const struct verbs_rails *r, char *buf, size_t room)
{
	int at = 0;

	for (unsigned i = 0; i < r->nr; i++) {
		size_t used = GX_MIN((size_t)at, room);

		at += verbs_dev_text(r->dev[i], buf + used, room - used);
		used = GX_MIN((size_t)at, room);
		if (i + 1 < r->nr)
			at += snprintf(buf + used, room - used, "\n");
	}
	return at;
}

uint32_t verbs_rails_near(const struct verbs_rails *r, const struct gx_gpu *gpu, uint32_t of)
{
	unsigned best = VERBS_NEAR_UNKNOWN;
	struct gx_device place;
	uint32_t near = 0;

	verbs_place_gpu(&place, gpu);
	for (unsigned i = 0; i < r->nr; i++) {
		unsigned now = verbs_place_near(&r->dev[i]->place, &place);

		if (!(of >> i & 1) || now < best)
			continue;
		near = now > best ? 0 : near;
		best = now;
		near |= 1u << i;
	}
	return near;
}

int verbs_rails_list(const struct verbs_rails *r, const struct gx_gpu *gpu, uint32_t of, char *buf,
		     size_t room)
{
	struct gx_device place;
	int at = 0;

	verbs_place_gpu(&place, gpu);
	for (unsigned i = 0; i < r->nr; i++) {
		size_t used = GX_MIN((size_t)at, room);

		if (of >> i & 1)
			at += snprintf(
				buf + used, room - used, "%s%s (%s)", at ? ", " : "",
				r->dev[i]->name,
				verbs_near_text(verbs_place_near(&r->dev[i]->place, &place)));
	}
	return at;
}

int verbs_rails_near_text(const struct verbs_rails *r, const struct gx_gpu *gpu, char *buf,
			  size_t room)
{
	uint32_t all = (1u << r->nr) - 1, near = verbs_rails_near(r, gpu, all);
	char first[1024], rest[1024] = "";

	verbs_rails_list(r, gpu, near, first, sizeof(first));
	verbs_rails_list(r, gpu, all & ~near, rest, sizeof(rest));
	return snprintf(buf, room, "verbs    memory of cuda:%d%s%s: by %s%s%s", gpu->device,
			gpu->pci[0] ? " at " : "", gpu->pci, first,
			rest[0] ? "; where none of these works: " : "", rest);
}

uint32_t verbs_rails_say(const struct verbs_rails *r, uint8_t *b)
{
	struct verbs_port port[VERBS_RAILS_MAX];

	for (unsigned i = 0; i < r->nr; i++)
		verbs_port_fill(r->dev[i], &port[i]);
	return verbs_ports_put(b, port, r->nr);
}

void verbs_rails_events(struct verbs_rails *r)
{
	for (unsigned i = 0; i < r->nr; i++)
		verbs_dev_events(r->dev[i]);
}

/* ---- Memory of a device ---- */

/*
 * By the id of its allocation: memory at the same address that was freed and made again has another id,
 * so a registration is never taken for other memory. A region has two registrations: one for our own
 * requests, one for peers. The second one ends when the user frees the region, and from then on the
 * device refuses peers. The first one ends when the cores have let go. The device pins all pages of a
 * registration, which takes seconds for large memory: the caller's thread makes registrations, and the
 * control thread keeps and ends them.
 */

static struct verbs_reg *reg_find(const struct verbs_dev *dev, uint64_t id)
{
	for (struct verbs_reg *r = dev->regs; r; r = r->next)
		if (r->id == id)
			return r;
	return NULL;
}

static int reg_access(unsigned access)
{
	int flags = access & GX_ACCESS_PUT ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE : 0;

	return flags | (access & GX_ACCESS_GET ? IBV_ACCESS_REMOTE_READ : 0);
}

static void reg_say_slow(const struct verbs_dev *dev, const char *what, uint64_t len,
			 uint64_t start_ns)
{
	uint64_t took_ns = gx_now_ns() - start_ns;

	if (took_ns >= REG_SLOW_NS)
		gx_info("%s took %llu ms to %s %llu MiB", dev->name,
			(unsigned long long)took_ns / 1000000, what, (unsigned long long)len >> 20);
}

/* Memory of a GPU, by a descriptor of whole pages. @why: @room bytes; of those who cannot do it. */
static struct ibv_mr *reg_dmabuf(const struct verbs_dev *dev, const struct gx_mem *mem, int access,
				 char *why, size_t room)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uintptr_t at = (uintptr_t)mem->addr, first = at - at % page;
	struct ibv_mr *mr = NULL;
	int fd = -1;

	if (!dev->api->reg_dmabuf_mr)
		snprintf(why, room, "this libibverbs registers no dma-buf: take rdma-core 34");
	else if (mem->gpu->dma == GX_GPU_DMA_NONE)
		snprintf(why, room, "its kernels see a device's writes only after a flush");
	else if (mem->gpu->share->dmabuf(mem->gpu, (void *)first,
					 GX_ALIGN_UP(at + mem->len, page) - first, &fd))
		snprintf(why, room, "%s", gx_gpu_why());
	if (fd < 0)
		return NULL;
	mr = dev->api->reg_dmabuf_mr(dev->pd, at - first, mem->len, at, fd, access);
	if (!mr)
		snprintf(why, room, "%s refuses its dma-buf: %s", dev->name, strerror(errno));
	close(fd); /* the registration holds the memory */
	return mr;
}

static struct ibv_mr *reg_gpu(const struct verbs_dev *dev, const struct gx_mem *mem, int access)
{
	char why[200] = "";
	struct ibv_mr *mr = reg_dmabuf(dev, mem, access, why, sizeof(why));

	if (mr)
		gx_debug("%s reaches %llu bytes of cuda:%d by dma-buf", dev->name,
			 (unsigned long long)mem->len, mem->device);
	else
		gx_fail(-EOPNOTSUPP, "memory of cuda:%d has no dma-buf: packets carry it: %s",
			mem->device, why);
	return mr;
}

static struct ibv_mr *reg_make(const struct verbs_dev *dev, const struct gx_mem *mem, int access)
{
	uint64_t start_ns = gx_now_ns();
	struct ibv_mr *mr;

	if (mem->kind != GX_MEM_HOST)
		return reg_gpu(dev, mem, access);
	mr = dev->api->reg_mr(dev->pd, mem->addr, mem->len, access);
	if (!mr)
		gx_fail(errno ? -errno : -ENOMEM,
			"%s does not register %llu bytes: %s%s: %s carry them", dev->name,
			(unsigned long long)mem->len, strerror(errno),
			errno == ENOMEM ? " (raise ulimit -l)" : "",
			dev->has_others ? "other devices, or packets," : "packets");
	reg_say_slow(dev, "register", mem->len, start_ns);
	return mr;
}

/* Return: 0, -errno: the device has it still. */
static int reg_end(const struct verbs_dev *dev, struct ibv_mr *mr)
{
	uint64_t start_ns = gx_now_ns(), len = mr->length;
	int ret = verbs_end_err(dev, dev->api->dereg_mr(mr));

	if (ret)
		gx_err("%s does not give the registration of %llu bytes back: %s: they stay pinned "
		       "until the context is closed",
		       dev->name, (unsigned long long)len, strerror(ret));
	reg_say_slow(dev, "let go of", len, start_ns);
	return -ret;
}

struct verbs_reg *verbs_reg_new(struct verbs_dev *dev, const struct gx_mem *mem)
{
	struct verbs_reg *r = calloc(1, sizeof(*r));
	struct ibv_mr *mr = NULL;

	if (r)
		mr = reg_make(dev, mem, mem->read_only ? 0 : IBV_ACCESS_LOCAL_WRITE);
	else
		gx_fail(-ENOMEM, "no memory for a registration");
	if (!mr) {
		/* Once for all memory of GPUs: it says nothing of this allocation. */
		if (mem->kind == GX_MEM_HOST || !atomic_exchange(&dev->said_gpu, true))
			gx_warn("link verbs: %s", gx_error());
		free(r);
		return NULL;
	}
	*r = (struct verbs_reg){.id = mem->id,
				.own = mr,
				.rail = dev->rail,
				.addr = (uintptr_t)mem->addr,
				.rails = 1u << dev->rail,
				.near = 1u << dev->rail};
	r->lkey[dev->rail] = mr->lkey;
	return r;
}

void verbs_reg_keep(struct verbs_dev *dev, struct verbs_reg *r)
{
	r->next = dev->regs;
	dev->regs = r;
}

void *verbs_share_new(struct verbs_dev *dev, const struct gx_mem *mem, unsigned access)
{
	return reg_make(dev, mem, reg_access(access));
}

void verbs_share_keep(struct verbs_reg *r, void *shared)
{
	struct ibv_mr *mr = shared;

	r->shared = mr;
	r->rkey = mr->rkey;
}

void verbs_share_put(struct verbs_dev *dev, void *shared)
{
	if (shared)
		reg_end(dev, shared);
}

int verbs_reg_revoke(struct verbs_dev *dev, const struct gx_mem *mem)
{
	struct verbs_reg *r = reg_find(dev, mem->id);
	int ret = r && r->shared ? reg_end(dev, r->shared) : 0;

	if (ret) /* nothing that it promises can be relied upon */
		atomic_store_explicit(&dev->failed, true, memory_order_release);
	else if (r)
		r->shared = NULL;
	return ret;
}

void verbs_reg_put(struct verbs_dev *dev, const struct gx_mem *mem)
{
	struct verbs_reg **at = &dev->regs, *r = reg_find(dev, mem->id);

	if (!r)
		return;
	verbs_reg_revoke(dev, mem);
	while (*at != r)
		at = &(*at)->next;
	*at = r->next;
	reg_end(dev, r->own); /* if it stays: only our own requests name it */
	free(r);
}

/* ---- Memory ---- */

static const struct verbs_reg *reg_of(const struct verbs_reg *first, unsigned rail)
{
	for (; first && first->rail != rail; first = first->more)
		;
	return first;
}

struct verbs_reg *verbs_mem_new(struct verbs_rails *rails, const struct gx_mem *mem)
{
	struct verbs_reg *first = NULL, **end = &first;

	for (unsigned i = 0; i < rails->nr; i++) {
		struct verbs_reg *r = verbs_reg_new(rails->dev[i], mem);

		if (!r) /* the log says it */
			continue;
		*end = r;
		end = &r->more;
		first->rails |= r->rails;
		first->near = first->rails;
		first->lkey[i] = r->lkey[i];
	}
	if (first && mem->kind != GX_MEM_HOST)
		first->near = verbs_rails_near(rails, mem->gpu, first->rails);
	return first;
}

void verbs_mem_keep(struct verbs_rails *rails, struct verbs_reg *first)
{
	for (struct verbs_reg *r = first; r; r = r->more)
		verbs_reg_keep(rails->dev[r->rail], r);
}

/* By rail. */
struct shares {
	void *mr[VERBS_RAILS_MAX];
};

void *verbs_mem_share(struct verbs_rails *rails, const struct gx_mem *mem, unsigned access)
{
	const struct verbs_reg *first =
		atomic_load_explicit(&mem->link[GX_LINK_VERBS], memory_order_relaxed);
	struct shares *s = calloc(1, sizeof(*s));
	unsigned n = 0;

	if (!s) {
		gx_fail(-ENOMEM, "no memory for a registration");
		return NULL;
	}
	for (unsigned i = 0; i < rails->nr; i++) {
		if (!reg_of(first, i))
			continue;
		s->mr[i] = verbs_share_new(rails->dev[i], mem, access);
		n += s->mr[i] != NULL;
		if (!s->mr[i] && rails->nr > 1)
			gx_warn("link verbs: peers reach memory less: %s", gx_error());
	}
	if (n)
		return s;
	free(s);
	return NULL;
}

void verbs_mem_share_keep(struct verbs_reg *first, void *shared)
{
	struct shares *s = shared;

	for (struct verbs_reg *r = first; r; r = r->more)
		if (s->mr[r->rail])
			verbs_share_keep(r, s->mr[r->rail]);
	free(s);
}

void verbs_mem_share_put(struct verbs_rails *rails, void *shared)
{
	struct shares *s = shared;

	for (unsigned i = 0; s && i < rails->nr; i++)
		verbs_share_put(rails->dev[i], s->mr[i]);
	free(s);
}

int verbs_mem_revoke(struct verbs_rails *rails, const struct gx_mem *mem)
{
	int ret = 0;

	for (unsigned i = 0; i < rails->nr; i++) {
		int err = verbs_reg_revoke(rails->dev[i], mem);

		ret = ret ? ret : err;
	}
	return ret;
}

void verbs_mem_put(struct verbs_rails *rails, const struct gx_mem *mem)
{
	for (unsigned i = 0; i < rails->nr; i++)
		verbs_reg_put(rails->dev[i], mem);
}

static bool is_of_a_rail(const struct verbs_rails *rails, dev_t dev, unsigned long inode)
{
	struct stat st;

	for (unsigned i = 0; i < rails->nr; i++)
		if (!fstat(rails->dev[i]->ctx->cmd_fd, &st) && st.st_dev == dev &&
		    st.st_ino == inode)
			return true;
	return false;
}

void verbs_rails_unfork(const struct verbs_rails *rails)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	unsigned long from, to, inode;
	unsigned major, minor;
	char line[512];

	/* A path that is longer than the line leaves a rest, which is no mapping. */
	while (maps && fgets(line, sizeof(line), maps))
		if (sscanf(line, "%lx-%lx %*s %*x %x:%x %lu", &from, &to, &major, &minor, &inode) ==
			    5 &&
		    inode && is_of_a_rail(rails, makedev(major, minor), inode))
			madvise((void *)from, to - from, MADV_DONTFORK);
	if (maps)
		fclose(maps);
}
