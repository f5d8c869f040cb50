/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies structs between a program and a library of different versions; see gx_internal/struct.h.
 */
#include "gx_internal/struct.h"
#include "gx_internal/base.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Read the size at the start of @user. The caller may have set it to anything. */
static int size_get(const char *name, const void *user, size_t *size, char *why)
{
	memcpy(size, user, sizeof(*size));
	if (*size >= sizeof(*size) && *size <= GX_STRUCT_MAX)
		return 0;
	snprintf(why, GX_STRUCT_TEXT_MAX, "%s.size is %zu: initialise the struct with GX_INIT()",
		 name, *size);
	return -EINVAL;
}

int gx_struct_take(const char *name, void *own, size_t own_b, const void *user,
		   char why[GX_STRUCT_TEXT_MAX])
{
	const char *bytes = user;
	size_t size = own_b;
	int ret = user ? size_get(name, user, &size, why) : 0;

	if (ret)
		return ret;
	for (size_t i = own_b; i < size; i++)
		if (bytes[i]) {
			snprintf(why, GX_STRUCT_TEXT_MAX,
				 "%s has %zu bytes, and this older library knows %zu: it has not "
				 "got what byte %zu asks for",
				 name, size, own_b, i);
			return -E2BIG;
		}
	memset(own, 0, own_b);
	if (user)
		memcpy(own, user, GX_MIN(size, own_b));
	memcpy(own, &own_b, sizeof(own_b));
	return 0;
}

int gx_struct_give(const char *name, const void *own, size_t own_b, void *user,
		   char why[GX_STRUCT_TEXT_MAX])
{
	size_t size, both;
	int ret = size_get(name, user, &size, why);

	if (ret)
		return ret;
	both = GX_MIN(size, own_b);
	memcpy((char *)user + sizeof(size), (const char *)own + sizeof(size), both - sizeof(size));
	memset((char *)user + both, 0, size - both);
	return 0;
}
