/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In the place of this room's other files where gx is built without the headers of libibverbs: no
 * device opens, so nothing else of this is reached.
 */
#include "verbs/verbs.h"

#include "gx_internal/link.h"

#include <errno.h>

static const char none[] = "this gx was built without libibverbs";

int verbs_rails_open(const char *first, const char *const more[], uint64_t nr_more,
		     struct verbs_rails **out)
{
	return gx_fail(-ENODEV, "%s", none);
}

void verbs_rails_close(struct verbs_rails *rails)
{
}

void verbs_rails_lend(struct verbs_rails *rails)
{
}

int verbs_rails_text(const struct verbs_rails *rails, char *buf, size_t room)
{
	return 0;
}

int verbs_rails_near_text(const struct verbs_rails *rails, const struct gx_gpu *gpu, char *buf,
			  size_t room)
{
	return 0;
}

void verbs_rails_events(struct verbs_rails *rails)
{
}

uint32_t verbs_rails_say(const struct verbs_rails *rails, uint8_t *b)
{
	return 0;
}

struct verbs_reg *verbs_mem_new(struct verbs_rails *rails, const struct gx_mem *mem)
{
	return NULL;
}

void *verbs_mem_share(struct verbs_rails *rails, const struct gx_mem *mem, unsigned access)
{
	return NULL;
}

void verbs_mem_share_put(struct verbs_rails *rails, void *shared)
{
}

void verbs_mem_keep(struct verbs_rails *rails, struct verbs_reg *first)
{
}

void verbs_mem_share_keep(struct verbs_reg *first, void *shared)
{
}

int verbs_mem_revoke(struct verbs_rails *rails, const struct gx_mem *mem)
{
	return 0;
}

int verbs_mem_put(struct verbs_rails *rails, const struct gx_mem *mem)
{
	return 0;
}

const char *verbs_offered(const struct gx *gx)
{
	return none;
}

int verbs_conn_open(struct gx_conn *c, unsigned nr_lanes, unsigned nr_qps, const uint8_t *b,
		    uint32_t len)
{
	return gx_fail(-EOPNOTSUPP, "%s", none);
}

uint32_t verbs_conn_say(const struct gx_conn *c, uint8_t *b)
{
	return 0;
}

int verbs_conn_hear(struct gx_conn *c, const uint8_t *b, uint32_t len)
{
	return gx_fail(-EOPNOTSUPP, "%s", none);
}

int verbs_conn_prove(struct gx_conn *c)
{
	return gx_fail(-EOPNOTSUPP, "%s", none);
}

void verbs_conn_way(const struct gx_conn *c, char *buf, size_t room)
{
	buf[0] = 0;
}

void verbs_conn_text(const struct gx_conn *c, char *buf, size_t room)
{
	buf[0] = 0;
}

bool verbs_conn_lost(const struct gx_conn *c)
{
	return false;
}

void verbs_conn_devices(const struct gx_conn *c, char *buf, size_t room)
{
	buf[0] = 0;
}

unsigned verbs_nr_regions(const struct gx_conn *c)
{
	return 0;
}

uint64_t verbs_pull_over(const struct gx_conn *c)
{
	return 0;
}

void verbs_conn_tick(struct gx_conn *c, uint64_t now_ns,
		     void (*say)(struct gx_conn *c, const uint8_t *b, uint32_t len))
{
}

int verbs_conn_mend(struct gx_conn *c, const uint8_t *b, uint32_t len)
{
	return -EPROTO;
}

void verbs_conn_stop(struct gx_conn *c)
{
}

bool verbs_conn_is_over(const struct gx_conn *c)
{
	return true;
}

void verbs_conn_close(struct gx_conn *c)
{
}

int link_verbs_open(struct gx_core *core, struct link_verbs **out)
{
	return -EOPNOTSUPP;
}

void link_verbs_close(struct link_verbs *l)
{
}

bool link_verbs_poll(void *link, uint64_t now_ns)
{
	return false;
}

bool link_verbs_asleep(const void *link)
{
	return true;
}

void link_verbs_drop(void *link, struct drop *d)
{
}

static struct gx_ep *none_ep_new(void)
{
	return NULL;
}

/* No connection takes the link, as verbs_offered() says. Were one to, its first call would fail, so
 * no other slot is reached. */
const struct gx_link_ops gx_link_verbs_ops = {.name = "verbs", .ep_new = none_ep_new};
