/* SPDX-License-Identifier: Apache-2.0 */
/* Users of this host, as the kernel names them. Implemented in poll/base.c; any thread may call it. */
#ifndef GX_INTERNAL_USER_H
#define GX_INTERNAL_USER_H

#include <stdbool.h>

/**
 * gx_uid_is_nobody() - Does @uid, from the kernel, stand for all users that our user namespace does not
 * map? Such a one is never our own user, nor one that may be allowed. It is the kernel's overflow uid,
 * wherever /proc/self/uid_map lacks users or cannot be read. Control path: reads files.
 * gx_uid_is_own() - Is it our own user, surely?
 */
bool gx_uid_is_nobody(unsigned uid);
bool gx_uid_is_own(unsigned uid);

#endif
