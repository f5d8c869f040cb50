/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gx processes of this host, as they publish themselves in a folder (dataplane/control/ctl_run.c),
 * and what they answer. Each is asked at once, none is waited for longer than the rest. They are
 * strangers: any process of the folder's group may publish.
 */
#ifndef GXD_PEERS_H
#define GXD_PEERS_H

#include <stddef.h>
#include <stdint.h>

#define PEERS_DIR      "/run/gx"
#define PEERS_MAX      256	    /* more are left out */
#define PEERS_TEXT_MAX (8u << 20)   /* bytes of an answer */
#define PEERS_ALL_MAX  (64u << 20)  /* of all answers */
#define PEERS_WAIT_NS  500000000ull /* for all answers */

/* A context of a process. */
struct peer {
	unsigned pid;	  /* as the kernel has it for who listens; else as the name of its files */
	unsigned context; /* its number in the process */
	unsigned uid;
	char name[32];	     /* of the program: letters, digits, ".", "_", "-" */
	char *answer, *body; /* [len + 1] from body on. NULL: it did not answer */
	size_t len;
	const char *why; /* no answer: why. Static */
};

struct peers {
	struct peer *v;
	unsigned nr;
	unsigned nr_left_out; /* beyond PEERS_MAX */
};

/**
 * peers_dir_make() - Make the folder *@dir, for this user alone, where no package has made it and
 * GX_RUN_DIR names none. Return: 1: made, 0, -errno.
 */
int peers_dir_make(const char **dir);
/** peers_dir() - The folder that GX_RUN_DIR names; else PEERS_DIR; where that is not, gx in
 * XDG_RUNTIME_DIR. */
const char *peers_dir(void);

/**
 * peers_ask() - GET @path of each process in @dir, and remove the files of those that are gone. Takes
 * PEERS_WAIT_NS at most, as long as the slowest answer.
 * Return: 0; -errno: the folder cannot be read. peers_free() in either case.
 */
int peers_ask(const char *dir, const char *path, struct peers *out);
void peers_free(struct peers *p);

#endif
