/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structs of the public headers that begin with their size, as gx.h promises: programs and the
 * library may be of different versions. Implemented in poll/struct.c. Any thread.
 *
 * Such a struct grows at its end alone, by fields for which zero means what the library did before
 * it knew them, and it ends with its last field: padding behind that would be taken for a field
 * by a later version (tests/test_struct.c looks).
 */
#ifndef GX_INTERNAL_STRUCT_H
#define GX_INTERNAL_STRUCT_H

#include <stddef.h>

#define GX_STRUCT_TEXT_MAX 128
#define GX_STRUCT_MAX	   4096 /* bytes: a size beyond was never set, and nothing there is read */

/**
 * gx_struct_take() - Read a struct that the caller has filled in.
 * @name: for @why: "gx_opts"
 * @own: the library's copy, @own_b bytes; its size becomes @own_b. What @user has not got is zero
 * @user: the caller's, with its size; NULL: all default
 * @why: what is wrong, with the cure; written on failure alone
 * Return: 0; -EINVAL: the size is not set; -E2BIG: bytes that this library does not know are not
 * zero.
 */
int gx_struct_take(const char *name, void *own, size_t own_b, const void *user,
		   char why[GX_STRUCT_TEXT_MAX]);

/**
 * gx_struct_give() - Write a struct that the caller has room for: as much of @own as fits in
 * @user, and zeros in what the library does not know. The size in @user stays.
 * Return: 0; -EINVAL: the size is not set, or no struct was ever so long.
 */
int gx_struct_give(const char *name, const void *own, size_t own_b, void *user,
		   char why[GX_STRUCT_TEXT_MAX]);

#endif
