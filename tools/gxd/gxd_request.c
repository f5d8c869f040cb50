// SPDX-License-Identifier: Apache-2.0
/*
 * Common parts of gxd's requests: their regions, offsets and slots, and reasons to refuse them.
 * Worker thread.
 */
#include "gxd/gxd_request.h"

#include "common/json.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct json_t *request_fail(struct request *req, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(req->why, sizeof(req->why), fmt, ap);
	va_end(ap);
	return NULL;
}

const struct service_region *request_region(struct request *req, const char *name)
{
	for (unsigned i = 0; i < req->svc->nr_regions; i++)
		if (!strcmp(req->svc->regions[i].opt.name, name))
			return &req->svc->regions[i];
	request_fail(req, "no region '%.63s' here", name);
	return NULL;
}

/* Take region, offset and length of a request, and check them against each other. */
const struct service_region *request_range(struct request *req, uint64_t *off, uint64_t *len)
{
	const struct service_region *r;
	long long o = -1, l = -1;
	const char *name;

	if (js_unpack(req->in, req->why, sizeof(req->why), "{s:s, s:I, s:I}", "region", &name,
		      "off", &o, "len", &l))
		return NULL;
	r = request_region(req, name);
	if (!r)
		return NULL;
	if (o < 0 || l < 0 || (uint64_t)o > r->opt.len || (uint64_t)l > r->opt.len - (uint64_t)o) {
		request_fail(req, "%lld bytes at %lld are outside region '%s' of %llu", l, o,
			     r->opt.name, (unsigned long long)r->opt.len);
		return NULL;
	}
	*off = (uint64_t)o;
	*len = (uint64_t)l;
	return r;
}

/* Do @nr slots of @size, @stride apart, fit behind @off in @room bytes? (No slots always fit.) */
static bool slots_fit(uint64_t room, uint64_t off, uint64_t size, uint64_t stride, uint64_t nr)
{
	uint64_t span;

	if (!nr || nr > SERVICE_NR_MAX || stride < size || off > room)
		return !nr;
	return !__builtin_mul_overflow(nr - 1, stride, &span) && span <= room - off &&
	       size <= room - off - span;
}

const struct service_region *request_slots(struct request *req, struct service_slots *s)
{
	const struct service_region *r;
	long long off, size, stride, nr, seed, iter;
	const char *name;

	if (js_unpack(req->in, req->why, sizeof(req->why), "{s:s, s:I, s:I, s:I, s:I, s:I, s:I}",
		      "region", &name, "off", &off, "size", &size, "stride", &stride, "n", &nr,
		      "seed", &seed, "iter", &iter))
		return NULL;
	r = request_region(req, name);
	if (!r)
		return NULL;
	*s = (struct service_slots){.off = (uint64_t)off,
				    .size = (uint64_t)size,
				    .stride = (uint64_t)stride,
				    .nr = (uint64_t)nr,
				    .seed = (uint64_t)seed,
				    .iter = (uint64_t)iter};
	if (off >= 0 && size >= 0 && stride >= 0 && nr >= 0 &&
	    slots_fit(r->opt.len, s->off, s->size, s->stride, s->nr))
		return r;
	request_fail(req, "%lld slots of %lld bytes at %lld are outside region '%s' of %llu", nr,
		     size, off, r->opt.name, (unsigned long long)r->opt.len);
	return NULL;
}

struct json_t *request_done(struct request *req, int ret)
{
	return ret ? request_fail(req, "%s", ret == -ECANCELED ? "client gone" : gx_error())
		   : js_pack("{}");
}

struct service_core *service_core_of(struct service *svc, struct gx_ep *ep)
{
	for (unsigned i = 0; i < svc->nr_cores; i++)
		if (svc->cores[i].core == gx_ep_core(ep))
			return &svc->cores[i];
	return NULL;
}
