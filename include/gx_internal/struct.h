/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structs of the public headers that begin with their size, as gx.h promises: a program and the
 * library may be of different versions. Implemented in poll/struct.c. Any thread.
 *
 * Such a struct grows at its end alone. Zero in a new field means the library's behaviour before
 * that field. The struct ends with its last field: a later version would take padding after it for
 * a field (tests/poll/test_struct.c checks this).
 */
#ifndef GX_INTERNAL_STRUCT_H
#define GX_INTERNAL_STRUCT_H

#include <stddef.h>

#define GX_STRUCT_TEXT_MAX 160
#define GX_STRUCT_MAX	   4096 /* bytes; gx takes a larger size as not set */

/**
 * gx_struct_take() - Read a struct that the caller has filled in.
 * @name: for @why: "gx_opts"
 * @own: the library's copy, @own_b bytes; its size becomes @own_b. Fields that @user does not have
 * become zero
 * @user: the caller's, with its size; NULL: all default
 * @why: the error and its cure; written on failure alone
 * Return: 0; -EINVAL: the size is not set; -E2BIG: bytes that this library does not know are not
 * zero.
 */
int gx_struct_take(const char *name, void *own, size_t own_b, const void *user,
		   char why[GX_STRUCT_TEXT_MAX]);

/**
 * gx_struct_give() - Write a struct for the caller: as much of @own as fits in @user, and zeros in
 * fields that the library does not know. The size in @user stays.
 * Return: 0; -EINVAL: the size is not set, or is too large for any struct.
 */
int gx_struct_give(const char *name, const void *own, size_t own_b, void *user,
		   char why[GX_STRUCT_TEXT_MAX]);

#endif
