/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of the NCCL harness in which something ends early: comms, ranks, registrations, contexts. */
#include "nccl_rank.h"

#include <dirent.h>
#include <dlfcn.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB	   (1024u * 1024)
#define PAGE_B	   4096u
#define FLAG_GONE  0	 /* rank 1 is about to die */
#define ERROR_MS   30000 /* an end that the plugin is told of */
#define TIMEOUT_MS 2000	 /* GX_NCCL_TIMEOUT_S of the cases with a silent peer */
#define SLOW_MS	   30000 /* what a busy machine may add to it */

static const size_t sizes_some[] = {1, 100000, 8, 4096};

static unsigned other(const struct rank *r)
{
	return 1 - r->me;
}

static void exchange(struct rank *r, unsigned slot)
{
	struct link l;
	struct stream s = {.link = &l,
			   .count = 20,
			   .depth = 4,
			   .sizes = sizes_some,
			   .nr_sizes = 4,
			   .seed = slot};

	rank_link(r, &l, other(r), slot);
	rank_stream(r, &s);
	rank_unlink(r, &l);
}

static void *send_one(struct rank *r, struct link *l, struct buf *b)
{
	void *req;

	CHECK(!net_isend(&r->net, l->send, b->base, b->len, b->mh, &req) && req);
	return req;
}

static void *recv_one(struct rank *r, struct link *l, struct buf *b)
{
	void *req;

	CHECK(!net_irecv(&r->net, l->recv, b->base, b->len, b->mh, &req) && req);
	return req;
}

/* ---- Comms ---- */

/* The end that closes says nothing to the other but through the plugin. */
static void close_one(struct rank *r, bool closer_sends)
{
	bool closer = r->me == 0;
	struct link l;
	struct buf b;
	void *req;

	rank_link(r, &l, other(r), 0);
	buf_open(r, l.send, &b, 1000);
	if (closer) {
		req = closer_sends ? send_one(r, &l, &b) : recv_one(r, &l, &b);
		CHECK(req);
		barrier(r);
		rank_unlink(r, &l); /* with a request under way */
		buf_close(r, NULL, &b);
	} else {
		req = closer_sends ? send_one(r, &l, &b) : recv_one(r, &l, &b);
		barrier(r);
		CHECK(req_error(r, req, ERROR_MS) == NCCL_REMOTE_ERROR);
		/* And so do later ones. */
		req = closer_sends ? send_one(r, &l, &b) : recv_one(r, &l, &b);
		CHECK(req_error(r, req, ERROR_MS) == NCCL_REMOTE_ERROR);
		buf_close(r, l.send, &b);
		rank_unlink(r, &l);
	}
	barrier(r);
	exchange(r, 1); /* the connection lives */
}

static void case_close(struct rank *r)
{
	close_one(r, true);
	close_one(r, false);
}

/* Both ends abort with requests under way, in both orders of deregistering and closing. */
static void case_abort(struct rank *r)
{
	for (unsigned round = 0; round < 4; round++) {
		struct link l;
		struct buf b;

		rank_link(r, &l, other(r), 0);
		buf_open(r, l.send, &b, 4 * MIB);
		for (unsigned i = 0; i < 8; i++) {
			send_one(r, &l, &b);
			if (i % 2 && round % 2 == r->me)
				recv_one(r, &l, &b);
		}
		if (round / 2 == r->me) {
			buf_close(r, l.send, &b);
			rank_unlink(r, &l);
		} else {
			rank_unlink(r, &l);
			buf_close(r, NULL, &b);
		}
	}
	barrier(r);
	exchange(r, 1);
}

/* ---- Registrations ---- */

/* A receive is under way, or has begun to arrive. After deregMr nobody may write there. */
static void dereg_one(struct rank *r, size_t len, bool begun)
{
	struct link l;
	struct buf b = {.len = len};
	void *req = NULL;

	rank_link(r, &l, other(r), 0);
	b.base = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(b.base != MAP_FAILED);
	CHECK(!r->net.v12->reg_mr(l.send, b.base, len, NCCL_PTR_HOST, &b.mh));
	if (r->me == 0) {
		CHECK(recv_one(r, &l, &b));
		barrier(r);
		if (begun) /* some bytes are there */
			UNTIL(__atomic_load_n(b.base, __ATOMIC_RELAXED) ||
			      __atomic_load_n(b.base + len - 1, __ATOMIC_RELAXED));
		CHECK(!r->net.v12->dereg_mr(l.recv, b.mh));
		CHECK(!mprotect(b.base, len, PROT_NONE));
		barrier(r);
		usleep(100000); /* for a late write */
	} else {
		memset(b.base, 1, len);
		if (begun)
			req = send_one(r, &l, &b);
		barrier(r);
		if (!begun) {
			barrier(r);
			req = send_one(r, &l, &b);
		} else {
			barrier(r);
		}
		usleep(100000);
		CHECK(req && !r->net.v12->dereg_mr(l.send, b.mh));
	}
	rank_unlink(r, &l);
	munmap(b.base, len);
	barrier(r);
}

static void case_dereg(struct rank *r)
{
	dereg_one(r, PAGE_B, false);
#ifndef __SANITIZE_THREAD__ /* it looks at bytes while they arrive */
	for (unsigned i = 0; i < 5; i++)
		dereg_one(r, 64 * MIB, true);
#endif
	exchange(r, 1);
}

/* A receive goes with its memory. The send that was for it may not take the next receive. */
static void case_skip(struct rank *r)
{
	struct buf first, second;
	void *req[2];
	struct link l;
	int size = -1;

	rank_link(r, &l, other(r), 0);
	buf_open(r, l.send, &first, 100);
	buf_open(r, l.send, &second, 100);
	if (r->me == 0) {
		recv_one(r, &l, &first);
		req[1] = recv_one(r, &l, &second);
		buf_close(r, l.recv, &first);
		barrier(r);
		req_wait(r, req[1], &size);
		CHECK(size == 100 && pattern_is(second.base, 100, 2), "another message came");
	} else {
		pattern_fill(first.base, 100, 1);
		pattern_fill(second.base, 100, 2);
		barrier(r);
		send_one(r, &l, &first);
		req[1] = send_one(r, &l, &second);
		req_wait(r, req[1], &size);
		buf_close(r, l.send, &first);
	}
	buf_close(r, l.send, &second);
	barrier(r);
	rank_unlink(r, &l);
	exchange(r, 1);
}

#define REGS 4

/* Several registrations of one allocation, which overlap. One goes while requests with the others are
 * under way. */
static void case_overlap(struct rank *r)
{
	size_t len = MIB, part = MIB / REGS;
	void *mh[REGS], *req[REGS];
	struct link l;
	struct buf b;
	int size;

	rank_link(r, &l, other(r), 0);
	for (unsigned round = 0; round < 8; round++) {
		buf_open(r, l.send, &b, len);
		for (unsigned i = 0; i < REGS; i++)
			CHECK(!r->net.v12->reg_mr(l.send, b.base + i * 7, len - i * 7,
						  NCCL_PTR_HOST, &mh[i]));
		for (unsigned i = 0; i < REGS; i++) {
			char *at = b.base + i * part + 21; /* in each registration */
			size_t n = part - 64;

			if (r->me == round % 2) {
				pattern_fill(at, n, round * REGS + i);
				CHECK(!net_isend(&r->net, l.send, at, n, mh[i], &req[i]) && req[i]);
			} else {
				CHECK(!net_irecv(&r->net, l.recv, at, n, mh[i], &req[i]) && req[i]);
			}
		}
		CHECK(!r->net.v12->dereg_mr(l.send, b.mh)); /* nothing is under way with it */
		for (unsigned i = 0; i < REGS; i++) {
			req_wait(r, req[i], &size);
			CHECK(size == (int)(part - 64));
			CHECK(pattern_is(b.base + i * part + 21, part - 64, round * REGS + i));
			CHECK(!r->net.v12->dereg_mr(l.send, mh[i]));
		}
		buf_free(&b);
	}
	barrier(r);
	rank_unlink(r, &l);
}

/* ---- Ranks ---- */

/* Rank 1 ends by @signo with requests under way both ways. Rank 0 learns it, and can clean up. */
static void peer_ends(struct rank *r, int signo)
{
	unsigned limit_ms = TIMEOUT_MS + 1000 + SLOW_MS;
	struct buf in, out;
	void *send, *recv;
	struct link l;
	uint64_t at;

	rank_link(r, &l, other(r), 0);
	buf_open(r, l.recv, &in, MIB);
	buf_open(r, l.send, &out, MIB);
	memset(out.base, 3, out.len);
	send = send_one(r, &l, &out);
	recv = recv_one(r, &l, &in);
	req_wait(r, send, NULL);
	req_wait(r, recv, NULL);
	barrier(r);
	if (r->me == 1) {
		atomic_store(&r->w->flag[FLAG_GONE], 1);
		raise(signo);
		for (;;)
			pause();
	}
	send = send_one(r, &l, &out);
	recv = recv_one(r, &l, &in);
	CHECK(req_error(r, recv, limit_ms) == NCCL_REMOTE_ERROR);
	CHECK(req_error(r, send, limit_ms) == NCCL_REMOTE_ERROR);
	at = now_ns();
	buf_close(r, l.recv, &in);
	buf_close(r, l.send, &out);
	rank_unlink(r, &l);
	CHECK(now_ns() - at < SLOW_MS * 1000000ull, "cleaning up waits for the peer");
}

static void case_kill(struct rank *r)
{
	peer_ends(r, SIGKILL);
}

static void case_stop(struct rank *r)
{
	peer_ends(r, SIGSTOP);
}

/* The rank dies while a connect to it is under way. */
static void case_kill_dial(struct rank *r)
{
	char handle[NCCL_HANDLE_B];
	void *comm = NULL, *listen;
	int ret = 0;

	if (r->me == 1) {
		CHECK(!net_listen(&r->net, r->ctx, handle, &listen));
		mail_put(r, 0, 0, handle);
		atomic_store(&r->w->flag[FLAG_GONE], 1);
		raise(SIGKILL);
	}
	mail_get(r, 1, 0, handle);
	UNTIL(({
		ret = net_connect(&r->net, r->ctx, handle, &comm);
		ret || comm;
	}));
	UNTIL(atomic_load(&r->w->flag[FLAG_GONE]));
	if (comm) /* it was quick */
		CHECK(!r->net.v12->close_send(comm));
}

/* ---- Contexts ---- */

/* NCCL never closes what is half made. */
static void case_half(struct rank *r)
{
	char handle[NCCL_HANDLE_B];
	void *listen, *comm;

	for (unsigned round = 0; round < 5; round++) {
		CHECK(!net_listen(&r->net, r->ctx, handle, &listen));
		mail_put(r, other(r), 0, handle);
		mail_get(r, other(r), 0, handle);
		comm = NULL;
		if (round % 2)
			CHECK(connect_wait(r, handle)); /* never accepted, never closed */
		else
			CHECK(!net_connect(&r->net, r->ctx, handle, &comm));
		barrier(r);
		CHECK(!net_finalize(&r->net, r->ctx));
		CHECK(!net_init(&r->net, &r->ctx));
		barrier(r);
	}
	exchange(r, 1);
}

/* The same while another communicator lives: what is left ends with its own communicator. */
static void case_context(struct rank *r)
{
	void *ctx, *listen[2], *comm = NULL, *req;
	char handle[2][NCCL_HANDLE_B];
	struct buf b;

	CHECK(!net_init(&r->net, &ctx) && ctx != r->ctx);
	for (unsigned i = 0; i < 2; i++)
		if (r->me == 1) {
			CHECK(!net_listen(&r->net, ctx, handle[i], &listen[i]));
			mail_put(r, 0, i, handle[i]);
		} else {
			mail_get(r, 1, i, handle[i]);
		}
	if (r->me == 1) {
		comm = accept_wait(r, listen[0]);
		buf_open(r, comm, &b, 1000);
		CHECK(!net_irecv(&r->net, comm, b.base, 1000, b.mh, &req) && req);
		barrier(r);
		CHECK(req_error(r, req, ERROR_MS) == NCCL_REMOTE_ERROR);
		buf_close(r, comm, &b);
		CHECK(!r->net.v12->close_recv(comm));
	} else {
		CHECK(!net_connect(&r->net, ctx, handle[0], &comm));
		barrier(r);
		CHECK(!comm || !r->net.v12->close_send(comm)); /* else it is half made */
	}
	CHECK(!net_finalize(&r->net, ctx)); /* rank 1: with two listeners */
	barrier(r);
	comm = NULL;
	if (r->me == 0)
		UNTIL(net_connect(&r->net, r->ctx, handle[1], &comm) || comm);
	CHECK(!comm, "a listener is there after its communicator");
	barrier(r);
	exchange(r, 2);
}

/* Connections over IPv4 that are established to the listener of @handle, of any process. Its address
 * is "127.0.0.1:41234". */
static unsigned connected(const char handle[NCCL_HANDLE_B])
{
	const char *port = strrchr(handle + HANDLE_ADDR, ':');
	FILE *f = fopen("/proc/net/tcp", "re");
	unsigned to, state, n = 0;
	char line[256];

	CHECK(port && f, "%s", handle + HANDLE_ADDR);
	while (fgets(line, sizeof(line), f))
		n += sscanf(line, " %*d: %*8x:%*x %*8x:%x %x", &to, &state) == 2 && state == 1 &&
		     to == strtoul(port + 1, NULL, 10);
	fclose(f);
	return n;
}

/* A connect that was given up before the peer took a token: the connection goes. The first call may
 * have the refusal, too. Some descriptors stay after the first connection, so the rounds are more. */
static void case_unproven(struct rank *r)
{
	void *ctx, *listen = NULL, *comm = NULL;
	unsigned fds = entries("/proc/self/fd");
	char handle[NCCL_HANDLE_B];
	bool refused;

	if (r->me == 1) {
		CHECK(!net_listen(&r->net, r->ctx, handle, &listen));
		handle[HANDLE_TOKEN] ^= 1;
		mail_put(r, 0, 0, handle);
	} else {
		mail_get(r, 1, 0, handle);
	}
	for (unsigned round = 0; r->me == 0 && round < 12; round++) {
		char copy[NCCL_HANDLE_B];

		memcpy(copy, handle, sizeof(copy));
		CHECK(!net_init(&r->net, &ctx));
		refused = net_connect(&r->net, ctx, copy, &comm) != 0;
		CHECK(!comm);
		UNTIL(refused || connected(handle));
		CHECK(!net_finalize(&r->net, ctx));
		UNTIL(!connected(handle));
	}
	UNTIL(r->me == 1 || entries("/proc/self/fd") < fds + 12);
	barrier(r);
	CHECK(!listen || !r->net.v12->close_listen(listen));
	exchange(r, 1);
}

/* As NCCL with its last communicator: finalize, dlclose; then the first one again. */
static void case_reload(struct rank *r)
{
	unsigned rounds = r->is_full ? 100 : 12, fds = 0, threads = 0;

	for (unsigned i = 0; i < rounds; i++) {
		exchange(r, i % 8);
		if (i % 2) /* else this rank may be gone while the other waits for its last word */
			barrier(r);
		CHECK(!net_finalize(&r->net, r->ctx));
		dlclose(r->net.dl);
		if (i == 1) {
			fds = entries("/proc/self/fd");
			threads = entries("/proc/self/task");
		}
		CHECK(i < 2 || entries("/proc/self/fd") == fds, "descriptors leak");
		/* The kernel lists a joined thread for a moment more. */
		UNTIL(i < 2 || entries("/proc/self/task") <= threads);
		for (unsigned k = 0; k < 8; k++) {
			net_load(&r->net, 12);
			dlclose(r->net.dl);
		}
		net_load(&r->net, 12);
		CHECK(!net_init(&r->net, &r->ctx));
		barrier(r);
	}
}

/* Each variable that is wrong fails init, with nothing left. NCCL calls finalize all the same. */
static void case_init(struct rank *r)
{
	static const char *const wrong[][2] = {
		{"GX_NCCL_CORES", "many"},   {"GX_NCCL_CORES", "0"},
		{"GX_NCCL_CPUS", "3-"},	     {"GX_NCCL_CPUS", "99999"},
		{"GX_NCCL_PORTS", "nosuch"}, {"GX_ADDR", "0.0.0.0"},
		{"GX_ADDR", "localhost"},    {"GX_ADDR", "192.0.2.1"},
		{"GX_NCCL_LINK", "rope"},    {"GX_NCCL_TIMEOUT_S", "-1"},
		{"GX_NCCL_PULL", "push"},    {"GX_NCCL_MODE", "gpu"},
		{"GX_NCCL_HELP", "2"},	     {"GX_ADDR", "127.1.2.3.4"},
		{"GX_NCCL_INSECURE", "2"},   {"GX_KEY_FILE", "/nonexistent/a.key"},
	};
	unsigned fds = 0;

	CHECK(!net_finalize(&r->net, r->ctx));
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		const char *old = getenv(wrong[i][0]);
		char *kept = old ? strdup(old) : NULL;

		setenv(wrong[i][0], wrong[i][1], 1);
		CHECK(net_init(&r->net, &r->ctx) && !r->ctx, "%s=%s is taken", wrong[i][0],
		      wrong[i][1]);
		CHECK(!net_finalize(&r->net, r->ctx));
		if (kept)
			setenv(wrong[i][0], kept, 1);
		else
			unsetenv(wrong[i][0]);
		free(kept);
		if (i == 0)
			fds = entries("/proc/self/fd");
	}
	CHECK(entries("/proc/self/fd") == fds, "a failed init leaves descriptors");
	CHECK(!net_init(&r->net, &r->ctx) && r->ctx);
}

/* Threads of this process that are pinned to CPU @cpu alone; -1: to any. */
static unsigned pinned(int cpu)
{
	DIR *d = opendir("/proc/self/task");
	struct dirent *e;
	unsigned n = 0;

	CHECK(d);
	while ((e = readdir(d))) {
		cpu_set_t may;

		CPU_ZERO(&may);
		if (e->d_name[0] == '.' || sched_getaffinity(atoi(e->d_name), sizeof(may), &may))
			continue;
		n += CPU_COUNT(&may) == 1 && (cpu < 0 || CPU_ISSET((unsigned)cpu, &may));
	}
	closedir(d);
	return n;
}

/* CPUs by name, one and all that this process may use of the first 16; then the plugin's choice. */
static void case_cpus(struct rank *r)
{
	char list[128] = "";
	unsigned first = 0, nr = 0;
	cpu_set_t may;

	CHECK(!sched_getaffinity(0, sizeof(may), &may));
	CHECK(!net_finalize(&r->net, r->ctx));
	unsetenv("GX_NCCL_CORES");
	for (unsigned cpu = CPU_SETSIZE; cpu-- > 0;)
		first = CPU_ISSET(cpu, &may) ? cpu : first;
	for (unsigned cpu = 0; cpu < CPU_SETSIZE && nr < 4; cpu++)
		if (CPU_ISSET(cpu, &may))
			snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s%u",
				 nr++ ? "," : "", cpu);
	setenv("GX_NCCL_CPUS", list, 1);
	CHECK(!net_init(&r->net, &r->ctx));
	UNTIL(pinned(-1) >= nr && pinned((int)first));
	CHECK(!net_finalize(&r->net, r->ctx));
	snprintf(list, sizeof(list), "%u-%u", first, first);
	setenv("GX_NCCL_CPUS", list, 1);
	CHECK(!net_init(&r->net, &r->ctx));
	UNTIL(pinned((int)first));
	CHECK(!net_finalize(&r->net, r->ctx));
	unsetenv("GX_NCCL_CPUS");
	CHECK(!net_init(&r->net, &r->ctx));
	CHECK(CPU_COUNT(&may) == 1 || pinned(-1) <= (unsigned)CPU_COUNT(&may) / 2,
	      "nothing is left for the computation");
}

/* DataLoader's workers are such children: they never call the plugin but to tear down. */
static void case_fork(struct rank *r)
{
	struct link l;
	struct stream s = {.link = &l, .count = 20, .depth = 4, .sizes = sizes_some, .nr_sizes = 4};
	int status;
	pid_t pid;

	rank_link(r, &l, other(r), 0);
	stream_open(&s);
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		void *ctx;

		CHECK(net_init(&r->net, &ctx) && !ctx, "a child may not use the context");
		CHECK(!r->net.v12->dereg_mr(l.send, s.out.mh));
		CHECK(!r->net.v12->close_send(l.send) && !r->net.v12->close_recv(l.recv));
		CHECK(!net_finalize(&r->net, r->ctx));
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && !status, "status 0x%x", status);
	worker_do(&r->progress, stream_run, &s);
	stream_close(&s);
	rank_unlink(r, &l);
}

const struct nccl_case cases_ends[] = {
	{"close", 2, case_close, false, NULL},	     {"abort", 2, case_abort, false, NULL},
	{"dereg", 2, case_dereg, false, NULL},	     {"overlap", 2, case_overlap, false, NULL},
	{"skip", 2, case_skip, false, NULL},	     {"kill", 2, case_kill, true, "2"},
	{"stop", 2, case_stop, true, "2"},	     {"kill_dial", 2, case_kill_dial, true, "2"},
	{"half", 2, case_half, false, NULL},	     {"context", 2, case_context, false, NULL},
	{"unproven", 2, case_unproven, false, NULL}, {"reload", 2, case_reload, false, NULL},
	{"init", 1, case_init, false, NULL},	     {"cpus", 1, case_cpus, false, NULL},
	{"fork", 2, case_fork, false, NULL},
};
const unsigned nr_cases_ends = sizeof(cases_ends) / sizeof(cases_ends[0]);
