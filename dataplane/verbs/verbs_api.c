/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads libibverbs when a context first wants a device, and never unloads it: providers start
 * threads and keep handlers. Control path, any thread.
 */
#include "verbs/verbs_api.h"

#include "gx_internal/base.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static const struct {
	const char *name;
	size_t at; /* in struct verbs_api */
	bool optional;
} symbols[] = {
#define API(fn) "ibv_" #fn, offsetof(struct verbs_api, fn)
	{API(get_device_list), false},
	{API(free_device_list), false},
	{API(get_device_name), false},
	{API(open_device), false},
	{API(close_device), false},
	{API(query_device), false},
	{API(query_port), false},
	{API(query_gid), false},
	{"_ibv_query_gid_ex", offsetof(struct verbs_api, query_gid_ex), true},
	{API(alloc_pd), false},
	{API(dealloc_pd), false},
	{API(reg_mr), false},
	{API(reg_dmabuf_mr), true},
	{API(dereg_mr), false},
	{API(create_cq), false},
	{API(destroy_cq), false},
	{API(create_qp), false},
	{API(modify_qp), false},
	{API(query_qp), false},
	{API(destroy_qp), false},
	{API(get_async_event), false},
	{API(ack_async_event), false},
	{API(wc_status_str), false},
#undef API
};
/* Each slot of the table has a symbol, and a slot is a pointer. */
_Static_assert(GX_ARRAY_SIZE(symbols) == sizeof(struct verbs_api) / sizeof(void *),
	       "one symbol a slot");

static struct verbs_api loaded;
static const struct verbs_api *chosen; /* verbs_api_set() */
static bool is_loaded;
static char load_why[192]; /* "": loaded */

static void api_load(void)
{
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!lib) {
		snprintf(load_why, sizeof(load_why),
			 "libibverbs.so.1 cannot be loaded (%.100s): install rdma-core", dlerror());
		return;
	}
	for (unsigned i = 0; i < GX_ARRAY_SIZE(symbols); i++) {
		void *fn = dlsym(lib, symbols[i].name);

		if (!fn && !symbols[i].optional) {
			snprintf(load_why, sizeof(load_why),
				 "libibverbs.so.1 has no %s: install a newer rdma-core",
				 symbols[i].name);
			return;
		}
		memcpy((char *)&loaded + symbols[i].at, &fn, sizeof(fn));
	}
	is_loaded = true;
}

const struct verbs_api *verbs_api(const char **why)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	*why = "";
	if (chosen)
		return chosen;
	pthread_once(&once, api_load);
	*why = load_why;
	return is_loaded ? &loaded : NULL;
}

void verbs_api_set(const struct verbs_api *api)
{
	chosen = api;
}
