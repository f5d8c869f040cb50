/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first process of a test's virtual machine (machine.py), linked statically. It loads the
 * modules listed in /modules, makes the host's root (9p, read-only) its own with what has to be
 * writable laid over it, runs the command in /command there, and gives its exit status to QEMU
 * through the port of isa-debug-exit. Without a command it becomes the init of the first disk. What it prints goes to the serial console. A failure ends the
 * machine with status 125.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXIT_PORT   0xf4
#define EXIT_FAILED 125
#define ROOT	    "/root"
#define LINE_MAX_B  512
#define WORDS_MAX   64

static _Noreturn void machine_end(int status)
{
	fflush(stdout);
	sync();
	if (!ioperm(EXIT_PORT, 4, 1))
		outl((unsigned)status, EXIT_PORT);
	reboot(RB_POWER_OFF); /* no such device: machine.py sees that no status came */
	for (;;)
		pause();
}

__attribute__((format(printf, 1, 2))) static _Noreturn void fail(const char *format, ...)
{
	int err = errno;
	va_list args;

	va_start(args, format);
	printf("init: ");
	vprintf(format, args);
	printf(": %s\n", strerror(err));
	va_end(args);
	machine_end(EXIT_FAILED);
}

/* "NAME.ko PARAMETER=VALUE .." a line, in the order of their dependencies. */
static void modules_load(void)
{
	FILE *list = fopen("/modules", "r");
	char line[LINE_MAX_B];

	if (!list)
		fail("/modules");
	while (fgets(line, sizeof(line), list)) {
		char *args = line + strcspn(line, " \n");
		int fd;

		args[strcspn(args, "\n")] = 0;
		if (*args)
			*args++ = 0;
		fd = open(line, O_RDONLY | O_CLOEXEC);
		if (fd < 0 || (syscall(SYS_finit_module, fd, args, 0) && errno != EEXIST))
			fail("module %s %s", line, args);
		close(fd);
	}
	fclose(list);
}

static void mount_one(const char *from, const char *at, const char *type, unsigned long flags,
		      const char *options)
{
	mkdir(at, 0755);
	if (mount(from, at, type, flags, options))
		fail("mount of %s at %s", type, at);
}

static void root_enter(void)
{
	mount_one("root", ROOT, "9p", MS_RDONLY,
		  "trans=virtio,version=9p2000.L,msize=262144,cache=loose");
	mount_one("dev", ROOT "/dev", "devtmpfs", 0, NULL);
	mount_one("proc", ROOT "/proc", "proc", 0, NULL);
	mount_one("sys", ROOT "/sys", "sysfs", 0, NULL);
	mount_one("run", ROOT "/run", "tmpfs", 0, NULL);
	mount_one("shm", ROOT "/dev/shm", "tmpfs", 0, NULL);
	mount_one("huge", ROOT "/dev/hugepages", "hugetlbfs", 0, NULL);
	if (chroot(ROOT) || chdir("/"))
		fail("chroot");
}

/* The lines of @path, each a word; it stays for good. */
static char **words_read(const char *path)
{
	static char text[16384];
	static char *words[WORDS_MAX];
	int fd = open(path, O_RDONLY | O_CLOEXEC), n = 0;
	ssize_t len = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

	if (len < 0)
		fail("%s", path);
	text[len] = 0;
	for (char *w = strtok(text, "\n"); w && n < WORDS_MAX - 1; w = strtok(NULL, "\n"))
		words[n++] = w;
	return words;
}

/* The machine is a host of its own, as it lies on the disk. */
static _Noreturn void disk_boot(void)
{
	mount_one("dev", "/dev", "devtmpfs", 0, NULL);
	mount_one("/dev/vda", ROOT, "ext4", 0, NULL);
	if (chdir(ROOT) || mount(".", "/", NULL, MS_MOVE, NULL) || chroot(".") || chdir("/"))
		fail("the disk's root");
	execl("/sbin/init", "/sbin/init", NULL);
	fail("/sbin/init");
}

static int command_run(char **words)
{
	static char *env[] = {"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
			      "HOME=/run",
			      "TMPDIR=/run",
			      "XDG_RUNTIME_DIR=/run",
			      "PYTHONDONTWRITEBYTECODE=1",
			      NULL};
	int status = 0;
	pid_t pid = fork(), ended;

	if (!pid) {
		setsid();
		execve(words[0], words, env);
		fail("%s", words[0]);
	}
	if (pid < 0)
		fail("fork");
	do
		ended = wait(&status); /* orphans, too */
	while (ended != pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(void)
{
	char **words;

	setvbuf(stdout, NULL, _IOLBF, 0);
	words = words_read("/command");
	modules_load();
	if (!words[0])
		disk_boot();
	root_enter();
	machine_end(command_run(words));
}
