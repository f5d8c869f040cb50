/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Modes that measure and serve no program. The library takes these values, which lie far above those
 * of gx.h. They are libgxlab's, which the tools and tests link; it is not installed.
 */
#ifndef GXLAB_MODES_H
#define GXLAB_MODES_H

#include <gx/gx.h>

/** GX_UNPACK_MODE_NONE - Nothing is copied: results are wrong by design. What the rest costs. */
#define GX_UNPACK_MODE_NONE ((enum gx_unpack_mode)1000)

/** GX_COPY_KERNEL - Copies over the local link by a launched kernel, on the SMs of gx_gpu_opts.sms. */
#define GX_COPY_KERNEL ((enum gx_copy_by)1000)

#endif
