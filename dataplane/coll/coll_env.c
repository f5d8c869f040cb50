/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the rank of a process from its launcher's environment (gx_group_env()). Control path.
 */
#include "core/core.h"
#include "gx/coll.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENV_PORT 29500 /* torchrun's default */

/* Names of a launcher's variables. local, local_nr: rank and ranks on this host; NULL: no such
 * variable. */
struct env_launcher {
	const char *name, *rank, *nr, *local, *local_nr, *job;
};

static const struct env_launcher launchers[] = {
	{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"},
	{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
	 "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"},
	{"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_JOBID"},
	{"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", NULL, NULL},
};

static int env_number(const char *name, unsigned long max, unsigned *out)
{
	const char *text = getenv(name);
	unsigned long v;

	if (!text || !text[0] || text[strspn(text, "0123456789")] || strlen(text) > 9)
		return gx_fail(-EINVAL, "%s=%s in the environment is not a number", name,
			       text ? text : "");
	v = strtoul(text, NULL, 10);
	if (v > max)
		return gx_fail(-EINVAL, "%s=%s in the environment: at most %lu", name, text, max);
	*out = (unsigned)v;
	return 0;
}

/* The first host of "gpu[03-07,9],x1": "gpu03". False: there is none. */
static bool hosts_first(const char *list, char *host, size_t room)
{
	size_t prefix = strcspn(list, "[,"), number = 0;

	if (list[prefix] == '[')
		number = strcspn(list + prefix + 1, "-,]");
	if (prefix + number == 0 || prefix + number >= room)
		return false;
	snprintf(host, room, "%.*s%.*s", (int)prefix, list, (int)number, list + prefix + 1);
	return true;
}

/* Are all ranks on this host? */
static bool env_is_one_host(const struct env_launcher *l, unsigned nr_ranks)
{
	const char *nodes = getenv("SLURM_NNODES");
	unsigned n;

	if (l->local_nr)
		return getenv(l->local_nr) && !env_number(l->local_nr, UINT32_MAX, &n) &&
		       n == nr_ranks;
	return nodes && !strcmp(nodes, "1");
}

/*
 * Rank 0 listens at this port. torchrun itself usually serves a store for its ranks at MASTER_PORT;
 * then it sets TORCHELASTIC_USE_AGENT_STORE, and gx takes the next port.
 */
static int env_port(unsigned *port)
{
	const char *taken = getenv("TORCHELASTIC_USE_AGENT_STORE");

	*port = ENV_PORT;
	if (getenv("MASTER_PORT") && env_number("MASTER_PORT", 65535, port))
		return -EINVAL;
	if (!taken || strcmp(taken, "True"))
		return 0;
	if (*port == 65535)
		return gx_fail(-EINVAL, "MASTER_PORT=65535 is torchrun's, and there is none behind "
					"it: take a lower one");
	++*port;
	return 0;
}

static int env_master(const struct env_launcher *l, struct gx_group_env *env)
{
	const char *addr = getenv("MASTER_ADDR");
	const char *nodes = getenv("SLURM_STEP_NODELIST");
	char host[100] = "";
	unsigned port;

	if (env_port(&port))
		return -EINVAL;
	if (addr && strlen(addr) >= sizeof(host))
		return gx_fail(-EINVAL, "MASTER_ADDR=%.40s... in the environment is too long",
			       addr);
	if (addr)
		snprintf(host, sizeof(host), "%s", addr);
	else if (env_is_one_host(l, env->nr_ranks))
		snprintf(host, sizeof(host), "127.0.0.1");
	else if (l->local_nr || !nodes || !hosts_first(nodes, host, sizeof(host)))
		return 0; /* unknown: env->master stays "" */
	snprintf(env->master, sizeof(env->master),
		 strchr(host, ':') && host[0] != '[' ? "[%s]:%u" : "%s:%u", host, port);
	return 0;
}

/* A name that tells this job from others. Of a long name keep the end: there names differ, if
 * anywhere. */
static void env_job(const struct env_launcher *l, struct gx_group_env *env)
{
	const char *own = getenv("GX_JOB"), *job = own ? own : l->job ? getenv(l->job) : NULL;
	const char *slurm = getenv("SLURM_JOB_ID"), *step = getenv("SLURM_STEP_ID");
	const size_t max = sizeof(env->job) - 1;

	if (!own && job && !strcmp(job, "none")) /* torchrun's for each job without a name */
		job = NULL;
	if (job)
		snprintf(env->job, sizeof(env->job), "%s",
			 strlen(job) > max ? job + strlen(job) - max : job);
	else if (slurm && step)
		snprintf(env->job, sizeof(env->job), "%.40s.%.20s", slurm, step);
}

static int env_take(const struct env_launcher *l, struct gx_group_env *env)
{
	int ret = env_number(l->nr, GX_GROUP_RANKS_MAX, &env->nr_ranks);

	if (!ret && !env->nr_ranks)
		ret = gx_fail(-EINVAL, "%s=0 in the environment: no ranks", l->nr);
	if (!ret)
		ret = env_number(l->rank, env->nr_ranks - 1, &env->rank);
	if (ret)
		return ret;
	env->launcher = l->name;
	env->local_rank = env->rank;
	env_job(l, env);
	if (getenv(l->local))
		ret = env_number(l->local, UINT32_MAX, &env->local_rank);
	return ret ? ret : env_master(l, env);
}

GX_EXPORT int gx_group_env(struct gx_group_env *user)
{
	struct gx_group_env env = GX_INIT(env);
	int ret;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(launchers); i++) {
		if (!getenv(launchers[i].rank) || !getenv(launchers[i].nr))
			continue;
		ret = env_take(&launchers[i], &env);
		if (ret)
			return ret;
		return core_struct_give("gx_group_env", &env, sizeof(env), user);
	}
	return gx_fail(-ENOENT,
		       "no launcher's variables (RANK and WORLD_SIZE, OMPI_COMM_WORLD_RANK, "
		       "PMI_RANK, SLURM_PROCID) are in the environment");
}
