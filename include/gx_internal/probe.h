/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places where a tracer may look (USDT; tools/trace/ has scripts): a nop each, and a note in the program's
 * ELF file that says where it is and where its arguments lie. Built where sys/sdt.h is; else nothing.
 * Arguments are what the code has at hand, so that nothing is computed for a tracer.
 */
#ifndef GX_PROBE_H
#define GX_PROBE_H

#if defined(GX_HAVE_SDT)
#define SDT_USE_VARIADIC
#include <sys/sdt.h>
#define GX_PROBE(name, ...) STAP_PROBEV(gx, name, ##__VA_ARGS__)
#else
#define GX_PROBE(name, ...)                                                                        \
	do {                                                                                       \
	} while (0)
#endif

#endif
