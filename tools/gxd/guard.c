// SPDX-License-Identifier: Apache-2.0
/*
 * Rights that gxd gives up. capabilities(7) and credentials(7) have the rules: a process whose user
 * ids all leave 0 loses its capabilities, and glibc's setresuid() does that in all threads. So the
 * saved user id stays 0 during set-up, and guard_seal() changes it.
 */
#include "gxd/guard.h"

#include <gx/log.h>

#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <pwd.h>
#include <seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* What gxd never calls once it serves, and who takes a process over would: run a program, read and
 * change other processes, load code into the kernel, and change the machine. docs/security.md. */
static const char *const guard_denied[] = {
	"execve",
	"execveat",
	"ptrace",
	"process_vm_writev",
	"pidfd_getfd",
	"kcmp",
	"init_module",
	"finit_module",
	"delete_module",
	"kexec_load",
	"kexec_file_load",
	"bpf",
	"perf_event_open",
	"userfaultfd",
	"mount",
	"umount2",
	"move_mount",
	"open_tree",
	"fsopen",
	"fsmount",
	"pivot_root",
	"chroot",
	"setns",
	"unshare",
	"mknod",
	"mknodat",
	"open_by_handle_at",
	"swapon",
	"swapoff",
	"reboot",
	"acct",
	"quotactl",
	"settimeofday",
	"clock_settime",
	"adjtimex",
	"clock_adjtime",
	"sethostname",
	"setdomainname",
	"iopl",
	"ioperm",
	"keyctl",
	"add_key",
	"request_key",
	"syslog",
	"vhangup",
	"personality",
};

static int caps_set(uint64_t effective, uint64_t permitted)
{
	struct __user_cap_header_struct h = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct d[2] = {
		{.effective = (uint32_t)effective, .permitted = (uint32_t)permitted},
		{.effective = (uint32_t)(effective >> 32),
		 .permitted = (uint32_t)(permitted >> 32)}};

	return syscall(SYS_capset, &h, d) ? -errno : 0;
}

static int caps_get(uint64_t *permitted)
{
	struct __user_cap_header_struct h = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct d[2];

	if (syscall(SYS_capget, &h, d))
		return -errno;
	*permitted = d[0].permitted | (uint64_t)d[1].permitted << 32;
	return 0;
}

/* "gx" or "1001". NULL with a log line: there is none. */
static const struct passwd *user_find(const char *name)
{
	const struct passwd *pw;
	char *end;
	unsigned long uid;

	errno = 0;
	pw = getpwnam(name);
	uid = strtoul(name, &end, 10);
	if (!pw && *name && !*end && uid < UINT32_MAX)
		pw = getpwuid((uid_t)uid);
	if (!pw)
		gx_log(GX_LOG_ERR, "--user %s: this host has no such user%s%s", name,
		       errno ? ": " : "; adduser --system makes one", errno ? strerror(errno) : "");
	return pw;
}

int guard_user(const char *name, bool net_admin)
{
	const struct passwd *pw = user_find(name);
	uint64_t caps = 0;
	int ret;

	if (!pw)
		return -ENOENT;
	if (geteuid() == pw->pw_uid)
		return 0;
	ret = caps_get(&caps);
	if (!ret &&
	    (initgroups(pw->pw_name, pw->pw_gid) || setresgid(pw->pw_gid, pw->pw_gid, pw->pw_gid) ||
	     (net_admin && prctl(PR_SET_KEEPCAPS, 1)) ||
	     setresuid(pw->pw_uid, pw->pw_uid, (uid_t)-1)))
		ret = -errno;
	if (!ret) {
		caps &= net_admin ? 1ull << CAP_NET_ADMIN : UINT64_MAX;
		ret = caps_set(caps, caps);
	}
	if (ret)
		gx_log(GX_LOG_ERR, "--user %s: %s%s", name, strerror(-ret),
		       ret == -EPERM ? "; start gxd as root, or as that user" : "");
	return ret;
}

static int user_seal(void)
{
	uid_t real, now, saved;

	if (getresuid(&real, &now, &saved))
		return -errno;
	if (now == saved)
		return 0;
	if (setresuid((uid_t)-1, (uid_t)-1, now))
		return -errno;
	/* The kernel has cleared it with the change of user. Peers of this user read messages out of
	 * this process (process_vm_readv), which needs it. */
	return prctl(PR_SET_DUMPABLE, 1) ? -errno : 0;
}

static int calls_deny(void)
{
	scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ALLOW);
	int ret = ctx ? seccomp_attr_set(ctx, SCMP_FLTATR_CTL_TSYNC, 1) : -ENOMEM;

	for (unsigned i = 0; i < sizeof(guard_denied) / sizeof(guard_denied[0]) && !ret; i++) {
		int nr = seccomp_syscall_resolve_name(guard_denied[i]);

#if defined(__SANITIZE_ADDRESS__)
		if (!strcmp(guard_denied[i],
			    "ptrace")) /* the leak sanitizer looks by it at the end */
			continue;
#endif
		/* A call that this libseccomp or architecture has not: there is nothing to deny. */
		if (nr >= 0)
			ret = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), nr, 0);
	}
	if (!ret)
		ret = seccomp_load(ctx);
	seccomp_release(ctx);
	return ret;
}

int guard_seal(void)
{
	int ret = user_seal();

	if (ret)
		gx_log(GX_LOG_ERR, "cannot give up the rights of root: %s", strerror(-ret));
	if (ret)
		return ret;
	ret = calls_deny();
	if (ret)
		gx_log(GX_LOG_ERR, "cannot deny system calls (seccomp): %s", strerror(-ret));
	return ret;
}
