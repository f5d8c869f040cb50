/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The floor of the data plane: errors in words, the check of an operation, the completions of a
 * core, and the public calls on cores. Every other room may call this one.
 */
#include "core/core.h"
#include "gx_internal/link.h"
#include "gx_internal/struct.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#define CORE_SAY_NS  10000000000ull /* between two warnings about a core */
#define CORE_LOOK_NS 250000000ull   /* between two looks at how long its thread has waited */
#define CORE_CROWD   20		  /* other work has its CPU: it waited for this part of that time */
#define CORE_NAMED   4		  /* the same, where somebody gave it that CPU */
#define OP_LEN_MAX   (1ull << 36) /* offsets on the wire are 32 bits, in units of 16 bytes */

#define OP_FLAGS     (GX_OP_IMM | GX_OP_LOCAL | GX_OP_SILENT | GX_OP_WORDS)
#define OP_ALL_FLAGS (OP_FLAGS | GX_OP_NOTE | GX_OP_FENCE)

/* Programs have arrays of these, so no version of the library may change their size. */
_Static_assert(sizeof(struct gx_op) == 128 && offsetof(struct gx_op, flags) == 4 &&
		       offsetof(struct gx_op, user) == 8 && offsetof(struct gx_op, stream) == 96 &&
		       offsetof(struct gx_op, segs) == 104,
	       "gx_op is frozen");
_Static_assert(sizeof(struct gx_comp) == 88 && offsetof(struct gx_comp, status) == 8 &&
		       offsetof(struct gx_comp, ep) == 16 && offsetof(struct gx_comp, off) == 64 &&
		       offsetof(struct gx_comp, note) == 72,
	       "gx_comp is frozen");

static _Thread_local char error_text[CORE_TEXT_MAX];
static _Thread_local enum gx_reason error_reason;

/* ---- errors, versions ---- */

static int error_set(enum gx_reason reason, int err, const char *fmt, va_list ap)
{
	char text[sizeof(error_text)]; /* an argument may point to the old text */

	vsnprintf(text, sizeof(text), fmt, ap);
	memcpy(error_text, text, sizeof(text));
	error_reason = reason;
	return err;
}

int gx_fail(int err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	err = error_set(GX_REASON_NONE, err, fmt, ap);
	va_end(ap);
	return err;
}

int gx_refuse(enum gx_reason reason, int err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	err = error_set(reason, err, fmt, ap);
	va_end(ap);
	return err;
}

enum gx_reason core_reason(void)
{
	return error_reason;
}

void core_say(struct gx_text *text, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	if (text->at < text->room)
		n = vsnprintf(text->buf + text->at, text->room - text->at, fmt, ap);
	else
		n = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	text->at += n > 0 ? (size_t)n : 0;
}

void core_why(char why[CORE_WHY_MAX], const char *fmt, ...)
{
	size_t len = strlen(why);
	va_list ap;

	va_start(ap, fmt);
	if (len)
		len += (size_t)snprintf(why + len, CORE_WHY_MAX - len, "; ");
	if (len < CORE_WHY_MAX)
		vsnprintf(why + len, CORE_WHY_MAX - len, fmt, ap);
	va_end(ap);
}

GX_EXPORT const char *gx_error(void)
{
	return error_text;
}

GX_EXPORT const char *gx_strerror(int status)
{
	static const struct {
		int err;
		const char *text;
	} known[] = {
		{0, "done"},
		{-ETIMEDOUT, "its deadline, or a time-out, has passed"},
		{-ENOTCONN, "the endpoint is down"},
		{-ECONNRESET, "the peer is lost"},
		{-ECANCELED, "cancelled, by a side that wanted it no more or freed its memory"},
		{-EACCES, "the peer's region does not allow this access"},
		{-ENOENT, "the peer has no such region: a wrong token"},
		{-ESTALE,
		 "the peer has withdrawn that region: its memory was freed, its key withdrawn, or its lease is over"},
		{-ERANGE, "outside of the peer's region"},
		{-EMSGSIZE, "longer than the receive has room for"},
		{-EIO, "a GPU or an RDMA device failed, or did not finish in time"},
		{-EBADMSG, "bytes came wrong again and again: a memory or a link corrupts them"},
		{-EPROTO, "the peer broke the protocol"},
		{-EHOSTUNREACH, "no data packet reaches the peer"},
		{-ENETUNREACH, "no RDMA device of this end reaches the peer's any more: is the "
			       "network interface up?"},
		{-EINVAL, "an argument makes no sense"},
		{-EFAULT, "not memory of this process, or not writable"},
		{-EAGAIN, "not now: turn, poll and try again"},
	};
	const char *text;

	for (unsigned i = 0; i < GX_ARRAY_SIZE(known); i++)
		if (known[i].err == status)
			return known[i].text;
	text = strerrordesc_np(-status);
	return text ? text : "an error that gx does not know";
}

GX_EXPORT const char *gx_reason_name(enum gx_reason reason)
{
	static const char *const names[] = {
		[GX_REASON_NONE] = "none",
		[GX_REASON_ASKED] = "asked",
		[GX_REASON_PEER_ASKED] = "peer-asked",
		[GX_REASON_SAME_HOST] = "same-host",
		[GX_REASON_BOTH_HAVE] = "both-have",
		[GX_REASON_LAST_RESORT] = "last-resort",
		[GX_REASON_CLOSED] = "closed",
		[GX_REASON_PEER_CLOSED] = "peer-closed",
		[GX_REASON_PEER_LOST] = "peer-lost",
		[GX_REASON_PEER_SILENT] = "peer-silent",
		[GX_REASON_UNREACHABLE] = "unreachable",
		[GX_REASON_NO_SERVER] = "no-server",
		[GX_REASON_SETUP_TIMEOUT] = "setup-timeout",
		[GX_REASON_VERSION] = "version",
		[GX_REASON_PROTOCOL] = "protocol",
		[GX_REASON_INSECURE] = "insecure",
		[GX_REASON_USER] = "user",
		[GX_REASON_OTHER_HOST] = "other-host",
		[GX_REASON_NO_PORT] = "no-port",
		[GX_REASON_NO_LINK] = "no-link",
		[GX_REASON_OPTIONS] = "options",
		[GX_REASON_MTU] = "mtu",
		[GX_REASON_FULL] = "full",
		[GX_REASON_NO_MEMORY] = "no-memory",
		[GX_REASON_LINK] = "link",
		[GX_REASON_SOCKET] = "socket",
		[GX_REASON_GPU] = "gpu",
		[GX_REASON_MEMORY] = "memory",
		[GX_REASON_REFUSED] = "refused",
		[GX_REASON_AUTH] = "auth",
	};

	return reason < GX_ARRAY_SIZE(names) ? names[reason] : "unknown";
}

unsigned core_rights(const struct gx_conn *c, const struct gx_mem *mem)
{
	const struct core_rights *r = &c->rights;
	uint8_t named;

	if (!r->limited || mem->token == CORE_TOKEN_NOTES || mem->token == CORE_TOKEN_MAPS)
		return CORE_ACCESS;
	/* Pairs with the release in region_name(): the bits are as old as the name, or newer. */
	named = r->some ? atomic_load_explicit(&mem->named, memory_order_acquire) : 0;
	if (r->some &&
	    (!named ||
	     !(atomic_load_explicit(&r->regions, memory_order_relaxed) >> (named - 1) & 1)))
		return 0;
	return r->access;
}

bool core_may(const struct gx_conn *c, const struct gx_mem *mem, unsigned access)
{
	return !(access & ~(mem->access & core_rights(c, mem))) &&
	       (!mem->only || mem->only == c->id);
}

void core_denied(struct gx_ep *ep)
{
	atomic_fetch_add_explicit(&ep->denied, 1, memory_order_relaxed);
}

/* Does a message read a place of which the peer writes bytes? */
static bool map_is_busy(const struct gx_ep *ep, uint64_t off, uint64_t len)
{
	uint64_t first = off / CORE_MAP_B, last = (off + len - !!len) / CORE_MAP_B;

	return first != last || ep->maps_busy >> first & 1;
}

int core_region_ask(struct gx_ep *ep, uint64_t token, unsigned access, uint64_t off, uint64_t len,
		    struct gx_mem **out)
{
	struct gx_core *core = ep->core;
	struct gx_mem *mem = core_region_at(core->gx, token);
	uint32_t at = token & CORE_TOKEN_INDEX;

	if (!mem && token == CORE_TOKEN_NOTES)
		mem = ep->notes_mem;
	if (!mem && token == CORE_TOKEN_MAPS)
		mem = ep->maps_mem;
	if (!mem && core_token_is_map(token))
		return -EXDEV;
	if (!mem && at >= atomic_load_explicit(&core->gx->region_top, memory_order_relaxed))
		return -ENOENT;
	if (!mem || (mem->until_ns && core->now_ns >= mem->until_ns)) {
		gx_stat_add(&core->loop.stats, GX_STAT_STALE, 1);
		return -ESTALE;
	}
	if (!core_may(ep->conn, mem, access)) {
		core_denied(ep);
		return -EACCES;
	}
	if (off > mem->len || len > mem->len - off)
		return -ERANGE;
	if (mem == ep->maps_mem && map_is_busy(ep, off, len))
		return -EBUSY;
	*out = mem;
	return 0;
}

int core_struct_take(const char *name, void *own, size_t own_b, const void *user)
{
	char why[GX_STRUCT_TEXT_MAX];
	int ret = gx_struct_take(name, own, own_b, user, why);

	return ret ? gx_fail(ret, "%s", why) : 0;
}

int core_struct_give(const char *name, const void *own, size_t own_b, void *user)
{
	char why[GX_STRUCT_TEXT_MAX];
	int ret = gx_struct_give(name, own, own_b, user, why);

	return ret ? gx_fail(ret, "%s", why) : 0;
}

GX_EXPORT const char *gx_version(void)
{
	return GX_VERSION;
}

GX_EXPORT int gx_api_version(void)
{
	return GX_API_VERSION;
}

GX_EXPORT uint64_t gx_now(void)
{
	return gx_now_ns();
}

/* ---- operations ---- */

static int op_check_note(const struct gx_op *op)
{
	if (!(op->flags & GX_OP_NOTE))
		return op->note_len ? gx_fail(-EINVAL, "gx_op.note_len without GX_OP_NOTE") : 0;
	if (op->kind != GX_OP_PUT || op->flags & GX_OP_IMM || op->stream)
		return gx_fail(-EINVAL,
			       "only a PUT without an immediate, and without a stream, can "
			       "bring a note");
	if (op->note_len > GX_NOTE_MAX || (op->note_len && !op->note))
		return gx_fail(-EINVAL, "a note of %u bytes%s: at most %u", op->note_len,
			       op->note ? "" : " at NULL", GX_NOTE_MAX);
	return 0;
}

static int op_check_list(const struct gx_op *op)
{
	if (op->kind != GX_OP_PUT && op->kind != GX_OP_GET)
		return gx_fail(-EINVAL, "only a PUT or a GET can be a list");
	if (op->stream)
		return gx_fail(-EINVAL, "gx_op.stream: a list cannot wait for a stream");
	if (!op->list)
		return gx_fail(-EINVAL, "gx_op.nr_segs is %u, and .segs is NULL", op->nr_segs);
	return 0;
}

/* A FLUSH, or nothing that gx knows. */
static __attribute__((noinline)) int op_check_flush(const struct gx_op *op)
{
	if (op->kind != GX_OP_FLUSH)
		return gx_fail(-EINVAL, "gx_op.kind %d is not known", op->kind);
	if (op->len || op->mem || op->list || op->stream || op->flags)
		return gx_fail(-EINVAL, "a FLUSH has no memory, no flags and no stream");
	return OP_IS_RUN;
}

static inline int op_check_one(const struct gx_op *op)
{
	if (op->kind < GX_OP_PUT || op->kind > GX_OP_RECV)
		return op_check_flush(op);
	if (gx_unlikely(mem_is_dead(op->mem)))
		return gx_fail(-EINVAL, "gx_op.mem was freed");
	if (op->mem && (op->off > op->mem->len || op->len > op->mem->len - op->off))
		return gx_fail(-EINVAL, "bytes %llu to %llu are outside of the registered memory",
			       (unsigned long long)op->off,
			       (unsigned long long)(op->off + op->len));
	if (op->mem && op->mem->read_only && op->kind != GX_OP_PUT && op->kind != GX_OP_SEND)
		return gx_fail(-EFAULT, "gx_op.mem cannot be written");
	if (op->len > OP_LEN_MAX)
		return gx_fail(-EINVAL, "an operation of %llu bytes: at most 64 GiB",
			       (unsigned long long)op->len);
	if (!op->mem && !op->addr && op->len)
		return gx_fail(-EINVAL, "an operation of %llu bytes without memory",
			       (unsigned long long)op->len);
	return 0;
}

/* An operation that submit/ takes, or nothing that gx knows. */
static __attribute__((noinline)) int op_check_run(const struct gx_op *op)
{
	int ret;

	if (op->flags & ~OP_ALL_FLAGS)
		return gx_fail(-EINVAL, "gx_op.flags 0x%x are not known", op->flags);
	ret = op_check_note(op);
	if (!ret)
		ret = op->nr_segs || op->list ? op_check_list(op) : op_check_one(op);
	return ret ? ret : OP_IS_RUN;
}

int op_check(const struct gx_op *op)
{
	if (gx_unlikely((op->flags & ~OP_FLAGS) | op->nr_segs | op->note_len | (uintptr_t)op->list))
		return op_check_run(op);
	return op_check_one(op);
}

/* ---- completions ---- */

bool core_comp_room(const struct gx_core *core)
{
	uint32_t tail = atomic_load_explicit(&core->comp_tail, memory_order_relaxed);

	return core->comp_head - tail + core->comps_due + 2 < GX_COMPS_MAX;
}

void core_comp(struct gx_core *core, const struct gx_comp *comp)
{
	core->comps[core->comp_head++ % GX_COMPS_MAX] = *comp;
}

/* ---- cores ---- */

GX_EXPORT unsigned gx_nr_cores(const struct gx *gx)
{
	return gx->nr_cores;
}

GX_EXPORT struct gx_core *gx_core(struct gx *gx, unsigned index)
{
	return index < gx->nr_cores ? gx->core[index] : NULL;
}

GX_EXPORT bool gx_core_turn(struct gx_core *core, uint64_t now_ns)
{
	if (gx_unlikely(atomic_load_explicit(&core->turner, memory_order_relaxed) != core_self()))
		core_take(core, false);
	return gx_loop_turn(&core->loop, now_ns);
}

GX_EXPORT int gx_core_start(struct gx_core *core)
{
	char name[16];
	int ret;

	snprintf(name, sizeof(name), "gx-core-%u", core->index);
	if (!core->loop.running)
		core_take(core, true);
	ret = gx_loop_start(&core->loop, name);
	if (ret && !core->loop.running)
		core_free(core);
	if (ret)
		return gx_fail(ret, "cannot run core %u on CPU %d: %s", core->index, core->loop.cpu,
			       strerror(-ret));
	return 0;
}

GX_EXPORT void gx_core_stop(struct gx_core *core)
{
	if (!core->loop.running)
		return;
	gx_loop_stop(&core->loop);
	core_free(core);
}

/* gx_core_poller(): what a program looks at there is no affair of a core that sleeps on its fd. */
static int user_look(void *arg, struct gx_look *look)
{
	return 0;
}

/* gx_core_opts.wait: the program's poller has nothing to do without a connection. */
static bool user_asleep(const void *arg)
{
	return true;
}

GX_EXPORT int gx_core_poller(struct gx_core *core, bool (*fn)(void *arg, uint64_t now_ns),
			     void *arg)
{
	/* Leave places for submit.c and note.c, which add their pollers at first use. */
	if (core->loop.nr_pollers + 2 >= GX_LOOP_POLLERS_MAX)
		return gx_fail(-ENOSPC, "core %u has %u pollers already", core->index,
			       core->loop.nr_pollers);
	return gx_loop_add(&core->loop,
			   &(struct gx_poller){"user", fn, arg,
					       core->gx->opts.cores->wait ? user_asleep : NULL,
					       user_look});
}

/* Return: 0: the kernel does not say. */
static uint64_t thread_waited_ns(int tid)
{
	unsigned long long waited_ns = 0;
	char path[48];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%d/schedstat", tid);
	f = fopen(path, "re");
	if (!f)
		return 0;
	if (fscanf(f, "%*u %llu", &waited_ns) != 1)
		waited_ns = 0;
	fclose(f);
	return waited_ns;
}

bool core_is_runnable(const struct gx_core *core)
{
	int tid = atomic_load_explicit(&core->turner_tid, memory_order_relaxed);
	char path[48], text[256] = "", *at;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
	f = tid ? fopen(path, "re") : NULL;
	if (!f)
		return false;
	if (!fgets(text, sizeof(text), f))
		text[0] = 0;
	fclose(f);
	at = strrchr(text, ')'); /* behind the thread's name */
	return at && at[1] && at[2] == 'R';
}

/* Look now and then, and when the core has stalled. */
static void core_look(struct gx_core *core, uint64_t stalls, uint64_t now_ns)
{
	int tid = atomic_load_explicit(&core->turner_tid, memory_order_relaxed);
	struct core_wait *w = &core->wait;
	struct core_wait is = {.tid = tid, .look_ns = now_ns, .stalls = stalls};

	if (stalls == w->stalls && now_ns - w->look_ns < CORE_LOOK_NS)
		return;
	is.total_ns = tid ? thread_waited_ns(tid) : 0;
	is.turns = gx_stat_get(&core->loop.stats, GX_STAT_TURNS);
	/* Where the core did not turn, its thread may be gone, and another one have its number. */
	if (tid == w->tid && w->total_ns && is.turns != w->turns &&
	    is.total_ns - w->total_ns >
		    (now_ns - w->look_ns) /
			    (core->gx->opts.cores->may_move ? CORE_CROWD : CORE_NAMED))
		is.crowded = w->crowded + 1;
	if (stalls == w->stalls)
		is.stall_ns = w->stall_ns;
	else if (tid == w->tid && w->total_ns && is.total_ns > w->total_ns)
		is.stall_ns = is.total_ns - w->total_ns;
	*w = is;
}

static void core_say_stall(const struct gx_core *core)
{
	uint64_t stall_ns = atomic_load_explicit(&core->loop.stall_ns, memory_order_relaxed);
	uint64_t waited_ns = GX_MIN(core->wait.stall_ns, stall_ns);
	bool ours = atomic_load_explicit(&core->loop.started, memory_order_relaxed);
	const char *what = ours ? "run" : "turned";
	char cpu[24] = "a CPU";

	if (ours && core->loop.cpu >= 0)
		snprintf(cpu, sizeof(cpu), "CPU %d", core->loop.cpu);
	if (waited_ns >= stall_ns / 2)
		gx_warn("core %u was not %s for %.1f s: its thread waited %.1f s of that for %s, "
			"which other work had; peers may have given it up",
			core->index, what, (double)stall_ns / 1e9, (double)waited_ns / 1e9, cpu);
	else
		gx_warn("core %u was not %s for %.1f s: the %s; peers may have given it up",
			core->index, what, (double)stall_ns / 1e9,
			ours ? "process was stopped, its CPU is shared with other work, or a "
			       "poller of the program did not return"
			     : "program was busy elsewhere, was stopped, or had no CPU for it");
}

/* Before Linux 6.2 a change of its cpuset gives a thread all CPUs of that, for good. Of gx's own alone:
 * .turner_tid may still be a thread of the program. */
static void core_pin(struct gx_core *core, uint64_t now_ns)
{
	int tid = atomic_load_explicit(&core->loop.started, memory_order_relaxed);
	int cpu = core->loop.cpu;
	cpu_set_t is, own;

	if (now_ns - core->pin_ns < CORE_LOOK_NS || cpu < 0 || !tid)
		return;
	core->pin_ns = now_ns;
	CPU_ZERO(&own);
	CPU_SET((unsigned)cpu, &own);
	if (sched_getaffinity(tid, sizeof(is), &is) || CPU_EQUAL(&is, &own)) {
		core->unpinned = false;
	} else if (!sched_setaffinity(tid, sizeof(own), &own)) {
		gx_warn("core %u had lost CPU %d, and is pinned to it again", core->index, cpu);
	} else if (!core->unpinned) {
		core->unpinned = true;
		gx_warn("core %u has lost CPU %d (%s): give its cpuset that CPU", core->index, cpu,
			strerror(errno));
	}
}

/* Two that poll on one CPU turn only when the other one's share of time is over: some milliseconds, for
 * each turn. Claims do not help: a network namespace hides sockets, a container files. So the kernel's
 * scheduler finds a place, as for any thread. */
static void core_crowd(struct gx_core *core)
{
	const struct gx *gx = core->gx;
	/* Acquire: the thread has read loop.cpu, which changes here. */
	int tid = atomic_load_explicit(&core->loop.started, memory_order_acquire);
	bool may = gx->opts.cores->may_move && CPU_COUNT(&gx->may) > 1;

	if (!tid && may) /* a thread of the program, which has said that it may */
		tid = atomic_load_explicit(&core->turner_tid, memory_order_relaxed);
	if (core->wait.crowded < 2 || core->crowd_said || core->loop.cpu < 0 || !tid)
		return;
	if (may && !sched_setaffinity(tid, sizeof(gx->may), &gx->may)) {
		gx_info("core %u leaves CPU %d, which other work has, too, for all %d CPUs of this "
			"process: name CPUs of its own, if there are any (gx_opts.cpus)",
			core->index, core->loop.cpu, CPU_COUNT(&gx->may));
		core->loop.cpu = -1;
		return;
	}
	core->crowd_said = true;
	gx_warn("core %u waits for CPU %d, which other work has, too: give it one of its own "
		"(gx_opts.cpus)",
		core->index, core->loop.cpu);
}

void core_watch(struct gx *gx, uint64_t now_ns)
{
	for (unsigned i = 0; i < gx->nr_cores; i++) {
		struct gx_core *core = gx->core[i];
		uint64_t n = gx_stat_get(&core->loop.stats, GX_STAT_STALLS);

		core_pin(core, now_ns);
		if (gx->conns)
			core_look(core, n, now_ns);
		core_crowd(core);
		if (n == core->stalls_seen ||
		    (core->stall_said_ns && now_ns - core->stall_said_ns < CORE_SAY_NS))
			continue;
		core->stalls_seen = n;
		if (!gx->conns) /* nobody waits for it */
			continue;
		core->stall_said_ns = now_ns;
		core_say_stall(core);
	}
}

/* ---- statistics ---- */

GX_EXPORT int gx_stats(struct gx *gx, bool prometheus, char *buf, size_t room)
{
	const struct gx_stats *list[GX_CORES_MAX + 1];
	unsigned n = 0;

	for (; n < gx->nr_cores; n++)
		list[n] = &gx->core[n]->loop.stats;
	list[n++] = &gx->ctl_stats;
	return gx_stat_print(list, n, prometheus ? GX_STAT_PROMETHEUS : GX_STAT_TEXT, buf, room);
}

GX_EXPORT int gx_core_stat(const struct gx_core *core, const char *name, uint64_t *value)
{
	for (unsigned i = 0; i < GX_STAT_NR; i++)
		if (!strcmp(gx_stat_name[i], name)) {
			*value = gx_stat_get(&core->loop.stats, i);
			return 0;
		}
	return gx_fail(-ENOENT, "no counter '%s'", name);
}
