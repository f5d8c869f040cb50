/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of what a controller of congestion says of itself, for tests.
 */
#ifndef CC_NAMES_H
#define CC_NAMES_H

#include "flow/cc.h"

static inline const char *cc_limit_name(enum cc_limit l)
{
	static const char *const name[CC_LIMITS] = {"application", "link", "window", "credit",
						    "core"};

	return name[l];
}

static inline const char *cc_kind_name(enum cc_kind k)
{
	static const char *const name[] = {"none", "rate", "swift"};

	return name[k];
}

#endif
