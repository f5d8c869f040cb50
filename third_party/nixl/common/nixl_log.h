/* SPDX-License-Identifier: Apache-2.0 */
/* The macros of NIXL's header of this name that its backend headers use, over gx's log. */
#ifndef NIXL_LOG_H
#define NIXL_LOG_H

#include <cassert>
#include <sstream>

#include <gx/log.h>

/* A line: streamed into, and written when the statement ends. */
class nixlGxLine : public std::ostringstream {
public:
	explicit nixlGxLine(enum gx_log_level level) : level(level)
	{
	}
	~nixlGxLine() override
	{
		gx_log(level, "nixl: %s", str().c_str());
	}

private:
	enum gx_log_level level;
};

#define NIXL_ERROR  nixlGxLine(GX_LOG_ERR)
#define NIXL_WARN   nixlGxLine(GX_LOG_WARN)
#define NIXL_INFO   nixlGxLine(GX_LOG_INFO)
#define NIXL_DEBUG  nixlGxLine(GX_LOG_DEBUG)
#define NIXL_ASSERT assert

#endif
