/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of functions whose slots have defaults: links, ports. */
#ifndef GX_INTERNAL_SLOTS_H
#define GX_INTERNAL_SLOTS_H

#include <stddef.h>
#include <string.h>

/** gx_slots_fill() - Fill @table, of @b bytes of function pointers, from @own and, where that is NULL,
 * from @none. @own may be NULL as a whole, or @table. */
static inline void gx_slots_fill(void *table, const void *own, const void *none, size_t b)
{
	void (*slot)(void);

	for (size_t at = 0; at < b; at += sizeof(slot)) {
		slot = NULL;
		if (own)
			memcpy(&slot, (const char *)own + at, sizeof(slot));
		if (!slot)
			memcpy(&slot, (const char *)none + at, sizeof(slot));
		memcpy((char *)table + at, &slot, sizeof(slot));
	}
}

#endif
