/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for secrets. Any thread.
 */
#include "auth/auth.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

_Static_assert(AUTH_MEM_B >= AUTH_FILE_MAX_B + 1, "a file that is too long is found");
_Static_assert(AUTH_MEM_B >= sizeof(struct auth_key), "a key has one piece of memory");

void auth_mem_lock(void *p, size_t len, size_t secret_b)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;

	madvise(p, len, MADV_DONTDUMP);
	if (mlock(p, secret_b) && !atomic_flag_test_and_set(&said))
		gx_warn("keys cannot be locked in memory (%s), so they may be swapped out: raise "
			"ulimit -l, or have no swap",
			strerror(errno));
}

void *auth_mem_get(void)
{
	void *p = gx_pages_get(AUTH_MEM_B);

	if (p)
		auth_mem_lock(p, AUTH_MEM_B, AUTH_MEM_B);
	return p;
}

void auth_mem_put(void *p)
{
	if (p)
		explicit_bzero(p, AUTH_MEM_B);
	gx_pages_put(p, AUTH_MEM_B);
}
