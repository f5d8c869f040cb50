// SPDX-License-Identifier: Apache-2.0
/*
 * Common parts of gxd's requests: their regions, offsets and slots, and reasons to refuse them.
 * Worker thread.
 */
#include "gxd/serve/request.h"

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

bool request_is_limited(const struct request *req)
{
	return gx_conn_may(req->client->conn, NULL, GX_ACCESS_PUT | GX_ACCESS_GET, 0, 0) != 0;
}

/* Who may not reach a region hears what it hears of one that is not there. */
const struct service_region *request_region(struct request *req, const char *name, uint64_t off,
					    uint64_t len)
{
	for (unsigned i = 0; i < req->svc->nr_regions; i++) {
		const struct service_region *r = &req->svc->regions[i];
		int ret = strcmp(r->opt.name, name)
				  ? -EACCES
				  : gx_conn_may(req->client->conn, r->mem, req->access, off, len);

		if (!ret)
			return r;
		if (ret != -EACCES) {
			request_fail(req, "%s", gx_error());
			return NULL;
		}
	}
	request_fail(req, "no region '%.63s' here that this client may %s", name,
		     req->access & GX_ACCESS_PUT ? "write" : "read");
	return NULL;
}

const struct service_region *request_range(struct request *req)
{
	const char *name;
	long long off, len;

	if (js_unpack(req->in, req->why, sizeof(req->why), "{s:s, s:I, s:I}", "region", &name,
		      "off", &off, "len", &len))
		return NULL;
	/* A negative number is too large. */
	req->work.slots = (struct service_slots){
		.off = (uint64_t)off, .size = (uint64_t)len, .stride = (uint64_t)len, .nr = 1};
	req->work.region = request_region(req, name, (uint64_t)off, (uint64_t)len);
	return req->work.region;
}

/* Bytes of @nr slots of @size, @stride apart. UINT64_MAX: they make no sense. */
static uint64_t slots_span(uint64_t size, uint64_t stride, uint64_t nr)
{
	uint64_t span;

	if (!nr)
		return 0;
	if (nr > SERVICE_NR_MAX || stride < size || __builtin_mul_overflow(nr - 1, stride, &span) ||
	    __builtin_add_overflow(span, size, &span))
		return UINT64_MAX;
	return span;
}

const struct service_region *request_slots(struct request *req)
{
	struct service_slots *s = &req->work.slots;
	long long off, size, stride, nr, seed, iter;
	const char *name;

	if (js_unpack(req->in, req->why, sizeof(req->why), "{s:s, s:I, s:I, s:I, s:I, s:I, s:I}",
		      "region", &name, "off", &off, "size", &size, "stride", &stride, "n", &nr,
		      "seed", &seed, "iter", &iter))
		return NULL;
	*s = (struct service_slots){.off = (uint64_t)off,
				    .size = (uint64_t)size,
				    .stride = (uint64_t)stride,
				    .nr = (uint64_t)nr,
				    .seed = (uint64_t)seed,
				    .iter = (uint64_t)iter};
	req->work.region = request_region(req, name, s->off, slots_span(s->size, s->stride, s->nr));
	return req->work.region;
}

struct service_core *request_core_of(struct service *svc, struct gx_ep *ep)
{
	for (unsigned i = 0; i < svc->nr_cores; i++)
		if (svc->cores[i].core == gx_ep_core(ep))
			return &svc->cores[i];
	return NULL;
}
