/* SPDX-License-Identifier: Apache-2.0 */
/*
 * freed.c: memory that the program frees. On the core, unless a line says otherwise. Private to dataplane/.
 */
#ifndef GX_PACKET_FREED_H
#define GX_PACKET_FREED_H

#include "packet/pkt.h"

void link_pkt_drop(void *link, struct drop *d); /* ends everything in dead memory */

#endif
