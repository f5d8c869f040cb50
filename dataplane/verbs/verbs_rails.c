/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The RDMA devices of a context, its rails, in the order of the user: opened, described, and memory
 * registered with each. Who may call is said in verbs.h.
 */
#include "verbs/verbs_lane.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

/* ---- Opened ---- */

static int rails_add(struct verbs_rails *r, const char *option)
{
	struct verbs_dev *dev;
	int ret;

	if (r->nr == VERBS_RAILS_MAX)
		return gx_fail(-EINVAL, "verbs device '%.80s': a context has at most %d", option,
			       VERBS_RAILS_MAX);
	ret = verbs_dev_open(option, &dev);
	if (ret)
		return ret;
	for (unsigned i = 0; i < r->nr; i++) {
		if (strcmp(r->dev[i]->name, dev->name) || r->dev[i]->port != dev->port)
			continue;
		verbs_dev_close(dev);
		return gx_fail(-EINVAL, "verbs device '%.80s': %s port %u is named twice", option,
			       r->dev[i]->name, r->dev[i]->port);
	}
	dev->rail = (uint8_t)r->nr;
	r->dev[r->nr++] = dev;
	return 0;
}

static bool is_all(const char *option)
{
	return !strncmp(option, "all", 3) && (!option[3] || option[3] == ',');
}

/* Every device that can be used. @more: what stands behind "all". */
static int rails_all(struct verbs_rails *r, const char *more)
{
	char name[2 * VERBS_RAILS_MAX][GX_NAME_MAX], option[GX_NAME_MAX + 64];
	int n = verbs_dev_names(name, GX_ARRAY_SIZE(name)), ret = n < 0 ? n : -ENODEV;

	for (int i = 0; i < n && r->nr < VERBS_RAILS_MAX; i++) {
		if ((size_t)snprintf(option, sizeof(option), "%s%s", name[i], more) >=
		    sizeof(option))
			return gx_fail(-EINVAL, "gx_opts.verbs: 'all%.60s...' is too long", more);
		if (!rails_add(r, option))
			ret = 0;
		else
			gx_info("link verbs goes without %s: %s", name[i], gx_error());
	}
	return ret; /* with the reason of the last one */
}

int verbs_rails_open(const char *first, const char *const more[], uint64_t nr_more,
		     struct verbs_rails **out)
{
	struct verbs_rails *r;
	int ret;

	if (nr_more >= VERBS_RAILS_MAX || (nr_more && is_all(first)))
		return gx_fail(-EINVAL, "RDMA devices: name 1 to %d, or 'all' alone",
			       VERBS_RAILS_MAX);
	r = calloc(1, sizeof(*r));
	if (!r)
		return gx_fail(-ENOMEM, "no memory for verbs devices");
	ret = is_all(first) ? rails_all(r, first + 3) : rails_add(r, first);
	for (uint64_t i = 0; !ret && i < nr_more; i++)
		ret = more[i] ? rails_add(r, more[i])
			      : gx_fail(-EINVAL, "gx_opts.rails: entry %llu is NULL",
					(unsigned long long)i);
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

void verbs_rails_lend(struct verbs_rails *r)
{
	for (unsigned i = 0; i < r->nr; i++)
		verbs_dev_lend(r->dev[i]);
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
	struct verbs_place place;
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
	struct verbs_place place;
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
		first->lent.rails |= r->lent.rails;
		first->lent.key[i] = r->lent.key[i];
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

int verbs_mem_put(struct verbs_rails *rails, const struct gx_mem *mem)
{
	int ret = 0;

	for (unsigned i = 0; i < rails->nr; i++) {
		int err = verbs_reg_put(rails->dev[i], mem);

		ret = ret ? ret : err;
	}
	return ret;
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
