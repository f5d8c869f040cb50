// SPDX-License-Identifier: Apache-2.0
/*
 * What gxd gives up, tried in processes of their own: by root, who becomes nobody, and by a user
 * who has nothing to give up.
 */
#include "gxd/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define NOBODY 65534

struct probe {
	sem_t start;
	char status[4096]; /* /proc/self/task/TID/status of the thread */
	int execve_err, unshare_err, mount_err, getpid_err;
};

/* The process's own exit status tells where it failed. */
#define MUST(cond)                                                                                 \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond);                 \
			_exit(1);                                                                  \
		}                                                                                  \
	} while (0)

static int err_of(long ret)
{
	return ret < 0 ? errno : 0;
}

/* A thread that was there before the rights were given up. */
static void *probe_run(void *arg)
{
	struct probe *p = arg;
	char path[64];
	FILE *f;
	size_t n;

	while (sem_wait(&p->start))
		;
	snprintf(path, sizeof(path), "/proc/self/task/%d/status", (int)gettid());
	f = fopen(path, "r");
	MUST(f);
	n = fread(p->status, 1, sizeof(p->status) - 1, f);
	p->status[n] = '\0';
	fclose(f);
	p->execve_err = err_of(execve("/no/such/file", (char *[]){"no", NULL}, NULL));
	p->unshare_err = err_of(unshare(CLONE_NEWUSER));
	p->mount_err = err_of(mount(NULL, NULL, NULL, 0, NULL));
	p->getpid_err = err_of(syscall(SYS_getpid));
	return NULL;
}

static void child_denied(const struct probe *p)
{
	MUST(p->execve_err == EPERM);
	MUST(p->unshare_err == EPERM);
	MUST(p->mount_err == EPERM);
	MUST(!p->getpid_err);
	MUST(strstr(p->status, "NoNewPrivs:\t1"));
	MUST(strstr(p->status, "Seccomp:\t2"));
}

/* @user: NULL: no guard_user(). */
static void child(const char *user, bool net_admin)
{
	char seen[8] = "", *mine = "peer's";
	struct iovec to = {seen, 6}, from = {mine, 6};
	struct probe p = {0};
	pthread_t t;

	sem_init(&p.start, 0, 0);
	if (user)
		MUST(!guard_user(user, net_admin));
	if (user && !net_admin) /* what is opened now may need root's rights */
		MUST(!close(open("/etc/shadow", O_RDONLY)));
	MUST(!pthread_create(&t, NULL, probe_run, &p));
	MUST(!guard_seal());
	sem_post(&p.start);
	MUST(!pthread_join(t, NULL));
	child_denied(&p);
	MUST(err_of(syscall(SYS_process_vm_writev, getpid(), &from, 1, &to, 1, 0)) == EPERM);
	/* Peers of this user still read it. */
	MUST(process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 6 && !strcmp(seen, mine));
	MUST(prctl(PR_GET_DUMPABLE) == 1);
	if (!user)
		_exit(0);
	MUST(strstr(p.status, "Uid:\t65534\t65534\t65534\t65534"));
	MUST(strstr(p.status,
		    net_admin ? "CapEff:\t0000000000001000" : "CapEff:\t0000000000000000"));
	MUST(strstr(p.status,
		    net_admin ? "CapPrm:\t0000000000001000" : "CapPrm:\t0000000000000000"));
	MUST(setuid(0) && errno == EPERM);
	_exit(0);
}

static void in_child(const char *user, bool net_admin)
{
	pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (!pid)
		child(user, net_admin);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void seal__denies_calls_in_all_threads(void **state)
{
	in_child(NULL, false);
}

static void user__loses_rights_after_set_up(void **state)
{
	if (geteuid())
		skip();
	in_child("nobody", false);
	in_child("65534", false);
}

static void user__keeps_what_a_nic_needs(void **state)
{
	if (geteuid())
		skip();
	in_child("nobody", true);
}

static void user__unknown_and_not_ours(void **state)
{
	assert_int_equal(guard_user("no-such-user", false), -ENOENT);
	assert_int_equal(guard_user("", false), -ENOENT);
	assert_int_equal(guard_user("4294967295", false), -ENOENT);
	if (!geteuid()) {
		pid_t pid = fork();
		int status;

		if (!pid) /* who is no root becomes nobody else */
			_exit(setuid(NOBODY) || guard_user("root", false) != -EPERM);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(seal__denies_calls_in_all_threads),
		cmocka_unit_test(user__loses_rights_after_set_up),
		cmocka_unit_test(user__keeps_what_a_nic_needs),
		cmocka_unit_test(user__unknown_and_not_ours),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
