/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See fail_calls.h. A call counts if it returns into the library or program that has gx_open().
 */
#include "proc/fail_calls.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>

#include "gx/gx.h"

#pragma GCC visibility push(default) /* before the libraries' */

#define FAIL_SITES 4096 /* a power of two */
#define FAIL_OFTEN 64	/* calls of a place in the code that count */
#define FAIL_IO	   4	/* the same, of reads and writes: cores poll */

static struct {
	uintptr_t from, to; /* code of gx */
	_Atomic bool armed;
	_Atomic unsigned seen;
	unsigned nth;
	bool trace;
	char *what;
	size_t room;
	struct fail_site {
		_Atomic uintptr_t at;
		_Atomic unsigned calls;
	} site[FAIL_SITES];
} fail;

static int fail_range(struct dl_phdr_info *info, size_t size, void *arg)
{
	for (unsigned i = 0; i < info->dlpi_phnum; i++) {
		uintptr_t from = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;

		if (info->dlpi_phdr[i].p_type != PT_LOAD || !(info->dlpi_phdr[i].p_flags & PF_X) ||
		    (uintptr_t)arg - from >= info->dlpi_phdr[i].p_memsz)
			continue;
		fail.from = from;
		fail.to = from + info->dlpi_phdr[i].p_memsz;
		return 1;
	}
	return 0;
}

void fail_arm(unsigned nth, bool trace, char *what, size_t room)
{
	fail.trace = trace;
	fail.what = what;
	fail.room = room;
	dl_iterate_phdr(fail_range, dlsym(RTLD_DEFAULT, "gx_open"));
	fail.nth = nth;
	atomic_store(&fail.seen, 0);
	atomic_store(&fail.armed, true);
}

unsigned fail_disarm(void)
{
	atomic_store(&fail.armed, false);
	return atomic_load(&fail.seen);
}

/* Has this place in the code called less than @most times? */
static bool fail_counts(uintptr_t at, unsigned most)
{
	for (unsigned i = 0; i < FAIL_SITES; i++) {
		struct fail_site *s = &fail.site[(at + i) % FAIL_SITES];
		uintptr_t none = 0;

		if (atomic_compare_exchange_strong(&s->at, &none, at) || none == at)
			return atomic_fetch_add(&s->calls, 1) < most;
	}
	return false;
}

/* The errors that a call may end with, in turn. */
static int fail_err(const int *errs, unsigned n)
{
	return errs[n % (errs[1] ? errs[2] ? 3u : 2u : 1u)];
}

/* Where it is called: builds with a sanitizer know. */
void __sanitizer_print_stack_trace(void) __attribute__((weak));

static bool fail_now(const char *name, const void *caller, unsigned most, const int errs[3],
		     int *err)
{
	unsigned n;

	if (!atomic_load_explicit(&fail.armed, memory_order_acquire) ||
	    (uintptr_t)caller - fail.from >= fail.to - fail.from ||
	    !fail_counts((uintptr_t)caller, most))
		return false;
	n = atomic_fetch_add(&fail.seen, 1) + 1;
	if (n != fail.nth)
		return false;
	*err = fail_err(errs, n);
	snprintf(fail.what, fail.room, "%s: %s", name, strerrordesc_np(*err));
	if (fail.trace && __sanitizer_print_stack_trace)
		__sanitizer_print_stack_trace();
	return true;
}

/* Memory comes from where it comes without this file: a sanitizer's, else the C library's. */
#define MEMORY(name, args, pass)                                                                   \
	void *__interceptor_##name args __attribute__((weak));                                     \
	void *__libc_##name args __attribute__((weak));                                            \
	void *fail_##name args __asm__(#name);                                                     \
	void *fail_##name args                                                                     \
	{                                                                                          \
		int err;                                                                           \
                                                                                                   \
		if (fail_now(#name, __builtin_return_address(0), FAIL_OFTEN, (int[3]){ENOMEM},     \
			     &err)) {                                                              \
			errno = err;                                                               \
			return NULL;                                                               \
		}                                                                                  \
		return (__interceptor_##name ? __interceptor_##name : __libc_##name)pass;          \
	}

MEMORY(malloc, (size_t b), (b))
MEMORY(calloc, (size_t n, size_t b), (n, b))
MEMORY(realloc, (void *p, size_t b), (p, b))

/* Any other call: what it returns when it fails, in @set also errno; the errors. */
#define CALL_OF(most, type, name, args, pass, bad, set, ...)                                       \
	type fail_##name args __asm__(#name);                                                      \
	type fail_##name args                                                                      \
	{                                                                                          \
		static type(*real) args;                                                           \
		int err;                                                                           \
                                                                                                   \
		if (fail_now(#name, __builtin_return_address(0), most, (int[3]){__VA_ARGS__},      \
			     &err)) {                                                              \
			errno = set ? err : errno;                                                 \
			return bad;                                                                \
		}                                                                                  \
		if (!real)                                                                         \
			*(void **)&real = dlsym(RTLD_NEXT, #name);                                 \
		return real pass;                                                                  \
	}
#define CALL_AS(...)		    CALL_OF(FAIL_OFTEN, __VA_ARGS__)
#define CALL(name, args, pass, ...) CALL_AS(int, name, args, pass, -1, true, __VA_ARGS__)
#define CALL_B(name, args, pass, ...)                                                              \
	CALL_OF(FAIL_IO, ssize_t, name, args, pass, -1, true, __VA_ARGS__)
#define CALL_P(name, args, pass, ...) CALL_AS(void *, name, args, pass, NULL, true, __VA_ARGS__)

CALL_AS(void *, mmap64, (void *p, size_t b, int prot, int flags, int fd, off_t off),
	(p, b, prot, flags, fd, off), (void *)-1, true, ENOMEM, EPERM)
CALL_AS(void *, mremap, (void *p, size_t b, size_t n, int flags, void *to), (p, b, n, flags, to),
	(void *)-1, true, ENOMEM)
CALL_P(aligned_alloc, (size_t align, size_t b), (align, b), ENOMEM)
CALL_P(strdup, (const char *s), (s), ENOMEM)
CALL_P(strndup, (const char *s, size_t n), (s, n), ENOMEM)
CALL_P(fopen64, (const char *path, const char *mode), (path, mode), EMFILE, EACCES)
CALL_P(opendir, (const char *path), (path), EMFILE)
CALL(madvise, (void *p, size_t b, int how), (p, b, how), ENOMEM, EINVAL)
CALL(mlock, (const void *p, size_t b), (p, b), ENOMEM, EPERM)
CALL(socket, (int family, int type, int proto), (family, type, proto), EMFILE, EPERM, EAFNOSUPPORT)
CALL(bind, (int fd, const void *a, unsigned len), (fd, a, len), EADDRINUSE, EACCES)
CALL(listen, (int fd, int n), (fd, n), EADDRINUSE)
CALL(connect, (int fd, const void *a, unsigned len), (fd, a, len), ECONNREFUSED, EAGAIN, EPERM)
CALL(accept, (int fd, void *a, unsigned *len), (fd, a, len), EMFILE, ECONNABORTED)
CALL(accept4, (int fd, void *a, unsigned *len, int flags), (fd, a, len, flags), EMFILE,
     ECONNABORTED, ENOBUFS)
CALL(socketpair, (int f, int type, int proto, int *fd), (f, type, proto, fd), EMFILE)
CALL(setsockopt, (int fd, int level, int name, const void *v, unsigned len),
     (fd, level, name, v, len), ENOPROTOOPT, EPERM, ENOMEM)
CALL(getsockopt, (int fd, int level, int name, void *v, unsigned *len), (fd, level, name, v, len),
     ENOPROTOOPT)
CALL(getsockname, (int fd, void *a, unsigned *len), (fd, a, len), ENOBUFS)
CALL(getpeername, (int fd, void *a, unsigned *len), (fd, a, len), ENOTCONN)
CALL(memfd_create, (const char *name, unsigned flags), (name, flags), EMFILE, ENOMEM)
CALL(ftruncate64, (int fd, off_t b), (fd, b), ENOSPC, EPERM)
CALL(fallocate64, (int fd, int mode, off_t off, off_t b), (fd, mode, off, b), ENOSPC)
CALL(fstat64, (int fd, void *st), (fd, st), ENOMEM)
CALL(eventfd, (unsigned n, int flags), (n, flags), EMFILE)
CALL(epoll_create1, (int flags), (flags), EMFILE)
CALL(epoll_ctl, (int fd, int op, int of, void *e), (fd, op, of, e), ENOSPC, ENOMEM)
CALL(timerfd_create, (int clock, int flags), (clock, flags), EMFILE)
CALL(timerfd_settime, (int fd, int flags, const void *n, void *old), (fd, flags, n, old), EINVAL)
CALL(signalfd, (int fd, const void *set, int flags), (fd, set, flags), EMFILE)
CALL(open64, (const char *path, int flags, unsigned mode), (path, flags, mode), EMFILE, EACCES)
CALL(openat64, (int at, const char *path, int flags, unsigned mode), (at, path, flags, mode),
     EMFILE)
CALL(dup, (int fd), (fd), EMFILE)
CALL(dup3, (int fd, int to, int flags), (fd, to, flags), EMFILE)
CALL(pipe, (int *fd), (fd), EMFILE)
CALL(fcntl64, (int fd, int what, void *arg), (fd, what, arg), EMFILE, EPERM)
CALL(ioctl, (int fd, unsigned long what, void *arg), (fd, what, arg), EPERM)
CALL(chmod, (const char *path, unsigned mode), (path, mode), EPERM)
CALL(mkdir, (const char *path, unsigned mode), (path, mode), EACCES)
CALL(getifaddrs, (void *out), (out), ENOMEM)
CALL(sched_setaffinity, (pid_t pid, size_t b, const void *set), (pid, b, set), EINVAL)
CALL(sched_getaffinity, (pid_t pid, size_t b, void *set), (pid, b, set), EINVAL)
CALL_AS(int, pthread_create, (void *out, const void *attr, void *(*fn)(void *), void *arg),
	(out, attr, fn, arg), err, false, EAGAIN, EPERM)
CALL_AS(int, io_uring_queue_init_params, (unsigned n, void *ring, void *params), (n, ring, params),
	-err, false, ENOMEM, EPERM, ENOSYS)
CALL_B(getrandom, (void *p, size_t b, unsigned flags), (p, b, flags), ENOSYS)

/* Eight bytes are those of an eventfd, which neither fails nor loses a wake. */
#define CALL_FD(name, args, pass, bytes, ...)                                                      \
	ssize_t fail_##name args __asm__(#name);                                                   \
	ssize_t fail_##name args                                                                   \
	{                                                                                          \
		static ssize_t(*real) args;                                                        \
		int err;                                                                           \
                                                                                                   \
		if (bytes != sizeof(uint64_t) && fail_now(#name, __builtin_return_address(0),      \
							  FAIL_IO, (int[3]){__VA_ARGS__}, &err)) { \
			errno = err;                                                               \
			return -1;                                                                 \
		}                                                                                  \
		if (!real)                                                                         \
			*(void **)&real = dlsym(RTLD_NEXT, #name);                                 \
		return real pass;                                                                  \
	}

CALL_FD(read, (int fd, void *p, size_t b), (fd, p, b), b, EIO)
CALL_FD(write, (int fd, const void *p, size_t b), (fd, p, b), b, EIO, ENOSPC)
CALL_B(pread64, (int fd, void *p, size_t b, off_t at), (fd, p, b, at), EIO)
CALL_B(readv, (int fd, const void *v, int n), (fd, v, n), EAGAIN, ECONNRESET)
CALL_B(writev, (int fd, const void *v, int n), (fd, v, n), EAGAIN, ECONNRESET)
CALL_B(recv, (int fd, void *p, size_t b, int flags), (fd, p, b, flags), EAGAIN, ECONNRESET)
CALL_B(send, (int fd, const void *p, size_t b, int flags), (fd, p, b, flags), EAGAIN, ENOBUFS,
       EPIPE)
CALL_B(recvmsg, (int fd, void *m, int flags), (fd, m, flags), EAGAIN, ECONNRESET, ENOMEM)
CALL_B(sendmsg, (int fd, const void *m, int flags), (fd, m, flags), EAGAIN, ENOBUFS, EPIPE)
CALL_B(sendto, (int fd, const void *p, size_t b, int flags, const void *a, unsigned len),
       (fd, p, b, flags, a, len), EAGAIN, ENOBUFS, EPERM)
CALL_B(recvfrom, (int fd, void *p, size_t b, int flags, void *a, unsigned *len),
       (fd, p, b, flags, a, len), EAGAIN, ENOMEM)
CALL_OF(FAIL_IO, int, sendmmsg, (int fd, void *v, unsigned n, int flags), (fd, v, n, flags), -1,
	true, EAGAIN, ENOBUFS, EPERM)
CALL_OF(FAIL_IO, int, recvmmsg, (int fd, void *v, unsigned n, int flags, void *t),
	(fd, v, n, flags, t), -1, true, EAGAIN, ENOMEM)
CALL_B(process_vm_readv,
       (pid_t pid, const void *to, unsigned long n, const void *from, unsigned long m,
	unsigned long flags),
       (pid, to, n, from, m, flags), EPERM, EFAULT)
CALL_OF(FAIL_IO, long, syscall, (long nr, long a, long b, long c, long d, long e, long f),
	(nr, a, b, c, d, e, f), -1, true, ENOSYS, EPERM, ENOMEM)
/* OpenSSL, when it has no memory. */
CALL_P(OSSL_LIB_CTX_new, (void), (), ENOMEM)
CALL_P(SSL_CTX_new_ex, (void *lib, const char *q, const void *how), (lib, q, how), ENOMEM)
CALL_P(SSL_new, (void *ctx), (ctx), ENOMEM)
CALL_P(SSL_SESSION_new, (void), (), ENOMEM)
CALL_P(BIO_new, (const void *how), (how), ENOMEM)
CALL_P(EVP_CIPHER_CTX_new, (void), (), ENOMEM)
CALL_P(EVP_PKEY_CTX_new, (void *key, void *e), (key, e), ENOMEM)
CALL_P(EVP_PKEY_new_raw_private_key, (int type, void *e, const void *p, size_t b), (type, e, p, b),
       ENOMEM)
CALL_P(EVP_PKEY_new_raw_public_key, (int type, void *e, const void *p, size_t b), (type, e, p, b),
       ENOMEM)
