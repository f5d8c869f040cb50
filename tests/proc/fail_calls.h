/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of gx to the system that fail once. A program that is linked with fail_calls.c has its own
 * malloc(), socket(), mmap() and so on before those of the C library: they count the calls that come
 * out of gx, and one of them fails. Calls of the program and of other libraries are not touched.
 */
#ifndef FAIL_CALLS_H
#define FAIL_CALLS_H

#include <stdbool.h>
#include <stddef.h>

/** fail_arm() - Count from here on, and let call @nth fail, from 1; 0: none. Cores poll, so a place in the
 * code counts a few times only. @what: then has the call and its error, "socket: Too many open files". @trace:
 * print where it is called */
void fail_arm(unsigned nth, bool trace, char *what, size_t room);
/** fail_disarm() - Return: how many there were. */
unsigned fail_disarm(void);

#endif
