// SPDX-License-Identifier: Apache-2.0
/*
 * gxperf put --file and get --file: a file into or out of a region, proved by SHA-256 at both ends.
 * The file is cut into pieces that go through a ring of slots. The main thread reads or writes the
 * file; the cores put or get. The state of a slot says who owns it.
 */
#include "gxperf/move/move.h"

#include "common/digest.h"
#include "common/json.h"
#include "gxperf/report/newfile.h"
#include "gxperf/base/stop.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_PIECE_B	 (4u << 20)
#define FILE_SLOTS	 8
#define FILE_COMPS	 16
#define FILE_STDIN_B	 262144
#define FILE_LOOK_NS	 20000
#define FILE_PROGRESS_NS 1000000000ull
#define FILE_STUCK_NS	 90000000000ull

/* put: the main thread fills EMPTY slots, a core posts FULL ones. get: the other way round. */
enum slot_state { SLOT_EMPTY, SLOT_FULL };

struct file_job;

/** struct file - One transfer. Owner: main, except for the slots and where a comment says
 * otherwise. */
struct file {
	struct perf perf;
	bool get;
	int fd;		     /* put: the source */
	struct stat st;	     /* its stat() at the open */
	struct newfile into; /* get: the target */
	struct digest *seen; /* get into a stream: digest of written bytes */
	uint64_t len, nr_pieces;
	struct gx_mem *local;
	unsigned char *room;	       /* FILE_PIECE_B, for memory of a GPU */
	_Atomic int state[FILE_SLOTS]; /* enum slot_state; it says who owns the slot */
	struct file_job *jobs;	       /* one for each core */
	unsigned nr_jobs;
	_Atomic bool cancel; /* the main thread failed: post no more */
};

/** struct file_job - A core's share: pieces index, index + nr_jobs... Owner: its thread. */
struct file_job {
	struct perf_job job; /* first */
	struct file *file;
	struct gx_ep *ep;
	uint64_t token;
	uint64_t next; /* piece to post */
	uint32_t in_flight;
	uint64_t begin_ns, end_ns;
	_Atomic int err;
};

static uint64_t piece_len(const struct file *f, uint64_t piece)
{
	uint64_t rest = f->len - piece * FILE_PIECE_B;

	return rest < FILE_PIECE_B ? rest : FILE_PIECE_B;
}

/* ---- On the cores ---- */

static bool job_post(struct file_job *j)
{
	struct file *f = j->file;
	uint64_t slot = j->next % FILE_SLOTS;
	struct gx_op op = {
		.kind = f->get ? GX_OP_GET : GX_OP_PUT,
		.user = slot,
		.mem = f->local,
		.off = slot * FILE_PIECE_B,
		.token = j->token,
		.remote_off = f->perf.offset + j->next * FILE_PIECE_B,
	};
	int ret;

	if (j->next >= f->nr_pieces || atomic_load_explicit(&f->cancel, memory_order_relaxed))
		return false;
	/* Pairs with the release in file_pump(). */
	if (atomic_load_explicit(&f->state[slot], memory_order_acquire) !=
	    (f->get ? SLOT_EMPTY : SLOT_FULL))
		return false;
	op.len = piece_len(f, j->next);
	ret = gx_post(gx_core_queue(gx_ep_core(j->ep)), j->ep, &op, 1);
	if (ret < 0)
		atomic_store_explicit(&j->err, ret, memory_order_relaxed);
	if (ret <= 0)
		return false;
	/* A posted slot has neither state. */
	atomic_store_explicit(&f->state[slot], -1, memory_order_relaxed);
	j->next += f->nr_jobs;
	j->in_flight++;
	return true;
}

static enum perf_step job_step(struct perf_job *job, uint64_t now)
{
	struct file_job *j = (struct file_job *)job;
	struct file *f = j->file;
	struct gx_comp comps[FILE_COMPS];
	unsigned n = gx_poll(gx_core_queue(gx_ep_core(j->ep)), comps, FILE_COMPS);
	bool busy = n > 0, end;

	if (!j->begin_ns)
		j->begin_ns = j->end_ns = now;
	for (unsigned i = 0; i < n; i++) {
		if (comps[i].kind != GX_COMP_DONE)
			continue;
		j->in_flight--;
		j->end_ns = now;
		if (comps[i].status)
			atomic_store_explicit(&j->err, comps[i].status, memory_order_relaxed);
		/* Pairs with the acquire in file_slot_wait(). */
		atomic_store_explicit(&f->state[comps[i].user], f->get ? SLOT_FULL : SLOT_EMPTY,
				      memory_order_release);
	}
	if (!atomic_load_explicit(&j->err, memory_order_relaxed))
		busy |= job_post(j);
	end = j->next >= f->nr_pieces || atomic_load_explicit(&j->err, memory_order_relaxed) ||
	      atomic_load_explicit(&f->cancel, memory_order_relaxed);
	if (end && !j->in_flight)
		return PERF_STEP_DONE;
	return busy ? PERF_STEP_BUSY : PERF_STEP_IDLE;
}

/* ---- Reading and writing the file ---- */

static int file_failed(struct file *f, int ret)
{
	report_error(f->perf.report, "%s: %s", f->perf.opts->file.path, strerror(-ret));
	return PERF_FAILED;
}

static int file_read(struct file *f, void *buf, uint64_t len, uint64_t off)
{
	int fd = f->get ? f->into.fd : f->fd;

	for (uint64_t at = 0; at < len;) {
		ssize_t n = pread(fd, (char *)buf + at, len - at, (off_t)(off + at));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return file_failed(f, -errno);
		if (!n) {
			report_error(f->perf.report, "%s: it has become shorter",
				     f->perf.opts->file.path);
			return PERF_FAILED;
		}
		at += (uint64_t)n;
	}
	return PERF_OK;
}

/* Append the next bytes: pieces come in order. */
static int file_write(struct file *f, const void *buf, uint64_t len)
{
	int ret = newfile_write(&f->into, buf, len);

	if (!ret && f->seen)
		ret = digest_add(f->seen, buf, len);
	return ret ? file_failed(f, ret) : PERF_OK;
}

static int file_gpu_error(struct file *f)
{
	report_error(f->perf.report, "local GPU memory: %s", gx_error());
	return PERF_FAILED;
}

/* Move one piece between the file and its slot. */
static int file_piece(struct file *f, uint64_t piece)
{
	uint64_t slot_off = piece % FILE_SLOTS * FILE_PIECE_B, len = piece_len(f, piece);
	bool host = f->perf.opts->place.kind == GX_MEM_HOST;
	unsigned char *buf = host ? (unsigned char *)gx_mem_addr(f->local) + slot_off : f->room;
	int ret;

	if (f->get) {
		if (!host && gx_mem_copy_out(f->local, slot_off, buf, len))
			return file_gpu_error(f);
		return file_write(f, buf, len);
	}
	ret = file_read(f, buf, len, piece * FILE_PIECE_B);
	if (!ret && !host && gx_mem_copy_in(f->local, slot_off, buf, len))
		return file_gpu_error(f);
	return ret;
}

static bool file_jobs_failed(const struct file *f)
{
	for (unsigned i = 0; i < f->nr_jobs; i++)
		if (atomic_load_explicit(&f->jobs[i].err, memory_order_relaxed))
			return true;
	return false;
}

/* Wait until @slot is the main thread's. */
static int file_slot_wait(struct file *f, uint64_t slot)
{
	uint64_t end = gx_now() + FILE_STUCK_NS;

	/* Pairs with the release in job_step(). */
	while (atomic_load_explicit(&f->state[slot], memory_order_acquire) !=
	       (f->get ? SLOT_FULL : SLOT_EMPTY)) {
		if (file_jobs_failed(f))
			return PERF_FAILED; /* file_join() reports it */
		if (stop_asked())
			return PERF_STOPPED;
		if (gx_now() > end) {
			report_error(f->perf.report, "nothing has moved for %u s",
				     (unsigned)(FILE_STUCK_NS / 1000000000u));
			return PERF_LOST;
		}
		perf_nap(FILE_LOOK_NS);
	}
	return PERF_OK;
}

static int file_pump(struct file *f)
{
	uint64_t printed = gx_now();
	int ret = PERF_OK;

	for (uint64_t piece = 0; piece < f->nr_pieces && !ret; piece++) {
		uint64_t slot = piece % FILE_SLOTS;

		if (stop_asked())
			return PERF_STOPPED;
		if (gx_now() - printed >= FILE_PROGRESS_NS) {
			printed = gx_now();
			report_progress(f->perf.report, "%s of %s: %llu of %llu bytes",
					f->perf.opts->command, f->perf.opts->file.path,
					(unsigned long long)(piece * FILE_PIECE_B),
					(unsigned long long)f->len);
		}
		ret = file_slot_wait(f, slot);
		if (!ret)
			ret = file_piece(f, piece);
		/* Pairs with the acquire in job_post(). */
		if (!ret)
			atomic_store_explicit(&f->state[slot], f->get ? SLOT_EMPTY : SLOT_FULL,
					      memory_order_release);
	}
	return ret;
}

/* The cores end by themselves: done, failed, or cancelled. */
static int file_join(struct file *f, int ret)
{
	uint64_t end = gx_now() + FILE_STUCK_NS;

	atomic_store_explicit(&f->cancel, ret != PERF_OK, memory_order_relaxed);
	for (unsigned i = 0; i < f->nr_jobs; i++) {
		struct file_job *j = &f->jobs[i];

		while (!atomic_load_explicit(&j->job.done, memory_order_acquire)) {
			if (gx_now() > end)
				return PERF_LOST;
			perf_nap(FILE_LOOK_NS);
		}
		if (j->err)
			return perf_op_failed(&f->perf, f->perf.opts->command, j->err);
	}
	return ret;
}

static uint64_t file_transfer_ns(const struct file *f)
{
	uint64_t begin = UINT64_MAX, end = 0;

	for (unsigned i = 0; i < f->nr_jobs; i++) {
		begin = f->jobs[i].begin_ns < begin ? f->jobs[i].begin_ns : begin;
		end = f->jobs[i].end_ns > end ? f->jobs[i].end_ns : end;
	}
	return end > begin ? end - begin : 1;
}

static int file_transfer(struct file *f)
{
	for (unsigned i = 0; i < f->nr_jobs; i++)
		perf_core_job(&f->perf.cores[i], &f->jobs[i].job);
	return file_join(f, file_pump(f));
}

/* ---- Proof ---- */

/* Digest of the file on disk: read written bytes back, if possible. */
struct file_digest {
	struct file *file;
	pthread_t thread;
	int ret;
	char hex[DIGEST_HEX_MAX];
};

static void *file_digest_run(void *arg)
{
	struct file_digest *fd = arg;
	struct file *f = fd->file;
	struct digest *d = f->seen ? f->seen : digest_open();
	int ret = d ? PERF_OK : PERF_FAILED;

	for (uint64_t at = 0, n; at < f->len && !ret && !f->seen; at += n) {
		n = f->len - at < FILE_PIECE_B ? f->len - at : FILE_PIECE_B;
		ret = file_read(f, f->room, n, at);
		if (!ret && digest_add(d, f->room, n))
			ret = PERF_FAILED;
	}
	if (d && digest_close(d, ret ? NULL : fd->hex))
		ret = PERF_FAILED;
	f->seen = NULL;
	fd->ret = ret;
	return NULL;
}

/* Compute the digests of both ends at the same time. */
static int file_digests(struct file *f, char *here, char *there)
{
	struct file_digest fd = {.file = f};
	int ret;

	if (pthread_create(&fd.thread, NULL, file_digest_run, &fd)) {
		report_error(f->perf.report, "no thread for the digest");
		return PERF_FAILED;
	}
	ret = perf_sha256(&f->perf, f->perf.offset, f->len, there);
	pthread_join(fd.thread, NULL);
	memcpy(here, fd.hex, DIGEST_HEX_MAX);
	return ret ? ret : fd.ret;
}

static bool file_has_changed(const struct file *f)
{
	struct stat st;

	return !f->get && !fstat(f->fd, &st) &&
	       (st.st_size != f->st.st_size || st.st_mtim.tv_sec != f->st.st_mtim.tv_sec ||
		st.st_mtim.tv_nsec != f->st.st_mtim.tv_nsec);
}

static int file_row(struct file *f, uint64_t ns, const struct perf_mark m[2])
{
	char here[DIGEST_HEX_MAX] = "", there[DIGEST_HEX_MAX] = "";
	enum gx_mem_kind kind = f->get ? f->perf.opts->place.kind : f->perf.conns[0].region.kind;
	bool check = f->perf.opts->traffic.check, same;
	int ret = check ? file_digests(f, here, there) : PERF_OK;
	struct report_row row = {
		.op = f->perf.opts->command,
		.size_b = f->len,
		.count = 1,
		.p50_us = (double)ns / 1e3,
		.avg_us = (double)ns / 1e3,
		.p99_us = NAN,
		.p999_us = NAN,
		.gb_s = perf_gb_s(1, f->len, ns),
		.sms = perf_sms(&f->perf, kind, f->get),
		.checked = check,
		.checked_b = check ? f->len : 0,
		.sha256 = check ? here : NULL,
	};

	if (ret)
		return ret;
	same = !strcmp(here, there);
	if (!same)
		row.wrong = f->len ? f->len : 1; /* the number of wrong bytes is unknown */
	perf_row_marks(&row, m);
	report_row(f->perf.report, &row);
	if (same)
		return PERF_OK;
	report_error(f->perf.report, "%s: digests differ: here %s, at the server %s%s",
		     f->perf.opts->file.path, here, there,
		     file_has_changed(f) ? "; the file has been changed meanwhile" : "");
	return PERF_WRONG;
}

static int file_measure(struct file *f)
{
	struct perf_mark m[2];
	int ret = perf_mark(&f->perf, &m[0]);

	if (!ret)
		ret = file_transfer(f);
	if (!ret)
		ret = perf_mark(&f->perf, &m[1]);
	return ret ? ret : file_row(f, file_transfer_ns(f), m);
}

/* ---- Life ---- */

/* All that comes by stdin, in memory: the length must be known before the region is asked for room. What is more
 * than the region has would be refused then, and there may be no end of it. */
static int file_take_stdin(struct file *f)
{
	uint64_t max = f->perf.conns[0].region.len, len = 0;
	struct newfile to;
	static char buf[FILE_STDIN_B];
	ssize_t n = 1;
	int ret = 0;

	f->fd = memfd_create("stdin", MFD_CLOEXEC);
	newfile_take(&to, f->fd);
	for (; f->fd >= 0 && n > 0 && !ret && len <= max; len += (uint64_t)n) {
		n = read(STDIN_FILENO, buf, sizeof(buf));
		ret = n < 0 ? -errno : newfile_write(&to, buf, (size_t)n);
		if (n < 0 || stop_asked())
			break;
	}
	if (stop_asked())
		return PERF_STOPPED;
	if (f->fd < 0 || ret || fstat(f->fd, &f->st)) {
		report_error(f->perf.report, "--file -: %s", strerror(ret ? -ret : errno));
		return PERF_FAILED;
	}
	f->len = (uint64_t)f->st.st_size;
	return PERF_OK;
}

/* Open it before connecting: an unreadable file is reported at once. */
static int file_open_source(struct file *f)
{
	const char *path = f->perf.opts->file.path;
	char byte;

	if (!strcmp(path, "-"))
		return PERF_OK;
	/* Without O_NONBLOCK the open would wait for a writer of a FIFO. */
	f->fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (f->fd < 0 || fstat(f->fd, &f->st)) {
		report_error(f->perf.report, "--file %s: %s", path, strerror(errno));
		return PERF_FAILED;
	}
	if (!S_ISREG(f->st.st_mode)) {
		report_error(f->perf.report, "--file %s: not a regular file", path);
		return PERF_FAILED;
	}
	f->len = (uint64_t)f->st.st_size;
	if (f->len || !pread(f->fd, &byte, 1, 0))
		return PERF_OK;
	report_error(
		f->perf.report,
		"--file %s: it says that it has 0 bytes, as files of /proc do, and there is more "
		"in it: copy it first",
		path);
	return PERF_FAILED;
}

/* Open it only when the region is known to hold enough: a mistyped command then destroys no
 * file. */
static int file_open_target(struct file *f)
{
	const struct perf_opts *o = f->perf.opts;
	uint64_t region_len = f->perf.conns[0].region.len;
	int ret;

	f->len = o->traffic.size_given		? o->traffic.size_end
		 : region_len > o->place.offset ? region_len - o->place.offset
						: 0;
	ret = perf_room(&f->perf, f->len);
	if (ret)
		return ret;
	if (!strcmp(o->file.path, "-"))
		newfile_take(&f->into, o->file.stdout_fd);
	else
		ret = newfile_open(&f->into, o->file.path, o->file.force);
	if (!ret && f->into.stream && o->traffic.check) {
		f->seen = digest_open();
		ret = f->seen ? 0 : -ENOMEM;
	}
	if (!ret)
		return PERF_OK;
	report_error(f->perf.report, "--file %s: %s%s", o->file.path, strerror(-ret),
		     ret == -EEXIST ? "; give another name, or --force to replace it" : "");
	return PERF_FAILED;
}

/* Drop a file that is missing bytes or wrong; the file that it should replace stays. */
static int file_target_close(struct file *f, int ret)
{
	int err;

	if (f->into.fd < 0)
		return ret;
	if (f->seen)
		digest_close(f->seen, NULL);
	if (ret) {
		newfile_drop(&f->into);
		return ret;
	}
	err = newfile_keep(&f->into);
	return err ? file_failed(f, err) : PERF_OK;
}

/* Each core takes its lane of the first connection; cores without a lane have no share. */
static int file_jobs_open(struct file *f)
{
	struct perf_conn *c = &f->perf.conns[0];
	unsigned nr = c->lanes < f->perf.nr_cores ? c->lanes : f->perf.nr_cores;

	/* No more than slots: cores that share a slot could wait for ever. */
	nr = nr < FILE_SLOTS ? nr : FILE_SLOTS;
	while (FILE_SLOTS % nr)
		nr--;
	f->jobs = calloc(nr, sizeof(f->jobs[0]));
	f->room = malloc(FILE_PIECE_B);
	if (!f->jobs || !f->room) {
		report_error(f->perf.report, "no memory");
		return PERF_FAILED;
	}
	for (unsigned i = 0; i < nr; i++) {
		struct file_job *j = &f->jobs[i];

		*j = (struct file_job){.job = {.step = job_step},
				       .file = f,
				       .ep = gx_conn_ep(c->conn, i),
				       .token = c->region.token,
				       .next = i};
		if (!j->ep || gx_ep_core(j->ep) != f->perf.cores[i].core) {
			report_error(f->perf.report, "lane %u is not on core %u", i, i);
			return PERF_FAILED;
		}
	}
	f->nr_jobs = nr;
	/* A file of 0 bytes is one message of 0 bytes. */
	f->nr_pieces = f->len ? (f->len + FILE_PIECE_B - 1) / FILE_PIECE_B : 1;
	return PERF_OK;
}

static int file_all(struct file *f, unsigned access)
{
	int ret = perf_connect(&f->perf, access);

	if (!ret && f->perf.opts->traffic.check &&
	    !(f->perf.conns[0].region.access & GX_ACCESS_GET)) {
		report_error(f->perf.report,
			     "region '%s' may not be read, so what it then holds cannot be "
			     "compared: --no-check",
			     f->perf.conns[0].region.name);
		return PERF_FAILED;
	}
	if (!ret && !f->get && f->fd < 0)
		ret = file_take_stdin(f);
	if (!ret)
		ret = f->get ? file_open_target(f) : perf_room(&f->perf, f->len);
	if (!ret)
		ret = perf_lease(
			&f->perf,
			&(struct perf_lease){.len = f->len, .content = f->get ? "a file" : NULL});
	if (!ret)
		ret = file_jobs_open(f);
	if (!ret)
		ret = perf_alloc(&f->perf, FILE_SLOTS * (uint64_t)FILE_PIECE_B, &f->local);
	return ret ? ret : file_measure(f);
}

int perf_file(const struct perf_opts *opts, struct report *report)
{
	struct file f = {.fd = -1, .into = NEWFILE_NONE, .get = opts->op == GX_OP_GET};
	int ret;

	f.perf.opts = opts;
	f.perf.report = report;
	ret = f.get ? PERF_OK : file_open_source(&f);
	if (!ret)
		ret = perf_open(opts, report, FILE_SLOTS, &f.perf);
	if (!ret)
		ret = file_all(&f, f.get ? GX_ACCESS_GET : GX_ACCESS_PUT);
	ret = file_target_close(&f, ret);
	perf_close(&f.perf);
	if (f.fd >= 0)
		close(f.fd);
	free(f.jobs);
	free(f.room);
	return ret;
}
