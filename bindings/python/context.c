/* SPDX-License-Identifier: Apache-2.0 */
/* gx.Context: gx with cores that run on threads of their own, one queue, and the words of the control
 * thread. */
#include "gxpy.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>

#define CORES_MAX 64
#define NOTES_MAX 65536 /* notifications that wait to be taken; then the context is flooded */
#define CONNS_MAX 2048	/* beyond them those that are gone are forgotten */
#define LOST_END  (1ull << 32)

unsigned fork_count;
static struct context *contexts;

/* The child has none of them, and may free what there is in its memory. */
static void after_fork(void)
{
	fork_count++;
	contexts = NULL;
}

static void __attribute__((constructor)) watch_forks(void)
{
	pthread_atfork(NULL, NULL, after_fork);
}

int give_way(unsigned turn)
{
	struct timespec t = {.tv_nsec = turn < 2000 ? 20000 : 500000};

	Py_BEGIN_ALLOW_THREADS
	if (turn < 100)
		sched_yield();
	else
		nanosleep(&t, NULL);
	Py_END_ALLOW_THREADS
	return PyErr_CheckSignals();
}

PyObject *context_forked(void)
{
	return fail(-ECHILD,
		    "this context is of the parent process: a child of fork() makes its own",
		    GX_REASON_NONE);
}

int context_check(struct context *c)
{
	if (c->fork != fork_count)
		context_forked();
	else if (!c->gx || c->closing)
		fail(-EBADF, "the context is closed", GX_REASON_NONE);
	else
		return 0;
	return -1;
}

/* ---- Words of the control thread, which does not hold the GIL ---- */

static void on_conn(void *arg, struct gx_conn *conn, enum gx_conn_event event, int err,
		    const char *why)
{
	struct context *c = arg;
	bool down = event == GX_CONN_EVENT_DOWN;
	struct word *w;

	if (!down && (event != GX_CONN_EVENT_UP || gx_conn_user(conn)))
		return;
	w = malloc(sizeof(*w));
	pthread_mutex_lock(&c->lock);
	if (!down) /* Python is informed, see conn_of() */
		gx_conn_user_set(conn, (void *)++c->numbers);
	if (w) {
		*w = (struct word){
			.conn = conn, .number = (uintptr_t)gx_conn_user(conn), .down = down};
		*c->words_end = w;
		c->words_end = &w->next;
	} else {
		c->flooded = true;
	}
	pthread_mutex_unlock(&c->lock);
	if (down)
		eventfd_write(c->lost_fd, 1);
}

static struct conn *conn_find(struct context *c, uintptr_t number)
{
	for (Py_ssize_t i = PyList_Size(c->conns); i-- > 0;) {
		struct conn *k = (struct conn *)PyList_GetItem(c->conns, i);

		if (k->number == number)
			return k;
	}
	return NULL;
}

static int word_take(struct context *c, struct word *w)
{
	struct conn *k = w->down ? conn_find(c, w->number) : conn_make(c, w->conn, w->number);
	int ret = k || w->down ? 0 : -1;

	if (w->down && k)
		k->down = true;
	if (w->down || !k)
		return ret;
	ret = PyList_Append(c->came, (PyObject *)k);
	if (PyList_Size(c->came) > CONNS_MAX)
		ret |= PyList_SetSlice(c->came, 0, 1, NULL);
	Py_DECREF(k);
	return ret;
}

/* Make lists of the words. @tell: raise where there was a flood. -1: raised. */
static int context_words(struct context *c, bool tell)
{
	struct word *w, *next;
	int ret = 0;

	pthread_mutex_lock(&c->lock);
	w = c->words;
	c->words = NULL;
	c->words_end = &c->words;
	pthread_mutex_unlock(&c->lock);
	for (; w; w = next) {
		next = w->next;
		ret |= word_take(c, w);
		free(w);
	}
	if (!ret && tell && c->flooded) {
		c->flooded = false;
		fail(-ENOBUFS, "notifications were lost: more than 65,536 waited to be taken",
		     GX_REASON_NONE);
		ret = -1;
	}
	return ret;
}

/* The connection of a note, which keeps it there. A peer may be faster than the control thread, which
 * has yet to report that its connection is up. *@out NULL: it was closed here. */
static int conn_of(struct context *c, struct gx_conn *conn, struct conn **out)
{
	struct gx_conn_info info = GX_INIT(info);
	uintptr_t number;

	*out = NULL;
	while (!(number = (uintptr_t)gx_conn_user(conn))) {
		if (gx_conn_info(conn, &info) || info.state == GX_CONN_STATE_DOWN)
			return 0;
		nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
	}
	if (context_words(c, false))
		return -1;
	*out = conn_find(c, number);
	return 0;
}

/* First of all the copy: whatever else makes an object may run code of Python, which may poll. */
int context_note(struct context *c, const struct gx_comp *comp)
{
	PyObject *text = PyBytes_FromStringAndSize(comp->note, (Py_ssize_t)comp->note_len), *t;
	struct conn *k = NULL;
	int ret = text ? conn_of(c, gx_ep_conn(comp->ep), &k) : -1;

	Py_IncRef((PyObject *)k);
	if (k && PyList_Size(c->notes) >= NOTES_MAX) {
		c->flooded = true;
	} else if (k) {
		t = Py_BuildValue("(OO)", k, text);
		ret = t ? PyList_Append(c->notes, t) : -1;
		Py_XDECREF(t);
	}
	Py_DecRef((PyObject *)k);
	Py_XDECREF(text);
	return ret;
}

/* ---- Open and close ---- */

static int cpus_of(PyObject *cores, int *cpus)
{
	Py_ssize_t n;

	cpus[0] = -1;
	if (!cores || cores == Py_None)
		return 1;
	n = PySequence_Size(cores);
	if (n < 0 || n > CORES_MAX) {
		if (!PyErr_Occurred())
			PyErr_SetString(PyExc_ValueError,
					"cores is a sequence of at most 64 CPUs; -1: not pinned");
		return -1;
	}
	for (Py_ssize_t i = 0; i < n; i++) {
		PyObject *o = PySequence_GetItem(cores, i);
		long cpu = o ? PyLong_AsLong(o) : -1;

		Py_XDECREF(o);
		if (!PyErr_Occurred() && (cpu < -1 || cpu > INT_MAX))
			PyErr_Format(PyExc_ValueError, "there is no CPU %ld", cpu);
		if (PyErr_Occurred())
			return -1;
		cpus[i] = (int)cpu;
	}
	return (int)n;
}

/* @own: the core has no thread of gx. */
static int gx_begin(struct context *c, const struct gx_opts *o, bool own)
{
	int ret = gx_open(o, &c->gx);

	if (!ret)
		ret = gx_queue_open(c->gx, GX_WITH(gx_queue_opts, .depth = 8192, .notify = true),
				    &c->queue);
	for (unsigned i = 0; !ret && !own && i < gx_nr_cores(c->gx); i++)
		ret = gx_core_start(gx_core(c->gx, i));
	c->lost_fd = ret ? -1 : eventfd(0, EFD_CLOEXEC);
	if (!ret && c->lost_fd < 0)
		ret = -errno;
	return ret || !own ? ret : turn_begin(c);
}

/* The environment's key where the caller names none. A context listens and connects. */
static int auth_take(struct gx_opts *o, struct gx_auth_opts *auth, const char **key_file,
		     char own[GX_ADDR_MAX])
{
	bool asked = *key_file || o->insecure;

	if (!asked)
		*key_file = gx_env_key_file();
	auth->key_file = *key_file;
	auth->key_files = key_file;
	auth->nr_key_files = *key_file ? 1 : 0;
	o->auth = *key_file || auth->name ? auth : NULL;
	if (asked || !*key_file || o->bind_host)
		return 0;
	o->bind_host = own;
	return gx_env_addr(NULL, own);
}

static PyObject *context_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
	static char *names[] = {"cores",     "port",	     "server",	 "insecure",
				"bind_host", "peer_timeout", "key_file", "copy",
				"sms",	     "name",	     NULL};
	const char *key_file = NULL;
	struct gx_gpu_opts gpu = GX_INIT(gpu);
	struct gx_auth_opts auth = GX_INIT(auth);
	struct gx_port_name port = {0};
	struct gx_opts o = GX_INIT(o);
	int cpus[CORES_MAX], n, server = 1, insecure = 0, ret;
	PyObject *cores = NULL;
	struct context *c;
	uint32_t copy = GX_COPY_AUTO;
	char own[GX_ADDR_MAX];
	double timeout = 0;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "|O$zppzdzO&O&z", names, &cores, &port.name,
					 &server, &insecure, &o.bind_host, &timeout, &key_file,
					 u32_of, &copy, u32_of, &gpu.sms, &auth.name))
		return NULL;
	n = cpus_of(cores, cpus);
	if (n < 0)
		return NULL;
	if (!(timeout >= 0 && timeout < 1e9)) {
		PyErr_SetString(PyExc_ValueError, "peer_timeout is in seconds, 0: the default");
		return NULL;
	}
	c = (struct context *)PyType_GenericAlloc(type, 0);
	if (!c)
		return NULL;
	c->fork = fork_count;
	c->words_end = &c->words;
	pthread_mutex_init(&c->lock, NULL);
	pthread_mutex_init(&c->turn_lock, NULL);
	c->conns = PyList_New(0);
	c->came = PyList_New(0);
	c->notes = PyList_New(0);
	if (!c->conns || !c->came || !c->notes) {
		Py_DECREF(c);
		return NULL;
	}
	o.nr_cores = n ? (unsigned)n : 1;
	o.cpus = cpus;
	o.server = server;
	o.insecure = insecure;
	o.peer_timeout_ns = (uint64_t)(timeout * 1e9);
	o.ports = port.name ? &port : NULL;
	o.nr_ports = port.name ? 1 : 0;
	ret = auth_take(&o, &auth, &key_file, own);
	if (ret) {
		Py_DECREF(c);
		return fail_call(ret);
	}
	gpu.copy = (enum gx_copy_by)copy;
	o.gpu = &gpu;
	o.on_conn = on_conn;
	o.arg = c;
	Py_BEGIN_ALLOW_THREADS
	ret = gx_begin(c, &o, !n);
	Py_END_ALLOW_THREADS
	if (ret) {
		fail_call(ret);
		Py_DECREF(c);
		return NULL;
	}
	c->next = contexts;
	contexts = c;
	return (PyObject *)c;
}

static void context_unlink(struct context *c)
{
	struct context **p = &contexts;

	while (*p && *p != c)
		p = &(*p)->next;
	if (*p)
		*p = c->next;
}

static bool context_is_viewed(const struct context *c)
{
	for (size_t i = 0; i < c->nr_mems; i++)
		if (c->mems[i]->views)
			return true;
	return false;
}

/* Nothing of gx is under way when this returns. */
static void context_end(struct context *c)
{
	struct gx *gx = c->gx;
	bool viewed;

	context_unlink(c);
	c->closing = true;
	while (c->busy) {
		Py_BEGIN_ALLOW_THREADS
		nanosleep(&(struct timespec){.tv_nsec = (long)MS_NS}, NULL);
		Py_END_ALLOW_THREADS
	}
	c->gx = NULL;
	c->queue = NULL;
	viewed = context_is_viewed(c);
	Py_BEGIN_ALLOW_THREADS
	turn_end(c);
	if (!viewed)
		gx_close(gx);
	Py_END_ALLOW_THREADS
	/* Arrays over its memory may be read until the process ends: the mapping stays, and gx with it. */
	if (viewed && context_words(c, false))
		PyErr_Clear();
	for (Py_ssize_t i = 0; viewed && i < PyList_Size(c->conns); i++)
		gx_conn_close(((struct conn *)PyList_GetItem(c->conns, i))->conn);
	for (unsigned i = 0; viewed && i < gx_nr_cores(gx); i++)
		gx_core_stop(gx_core(gx, i));
	if (viewed)
		Py_IncRef((PyObject *)c); /* of on_conn() */
	else
		eventfd_write(c->lost_fd, LOST_END);
	while (c->ops)
		op_end(c->ops, -ECANCELED);
	/* An owner's end may run code of Python, and with it memory goes. */
	for (size_t i = 0, n; i < c->nr_mems; i = n == c->nr_mems ? i + 1 : 0) {
		struct memory *m = c->mems[i];

		n = c->nr_mems;
		if (m->views) {
			m->mem = NULL;
		} else if (m->mem) {
			Py_IncRef((PyObject *)m);
			memory_drop(m);
			Py_DecRef((PyObject *)m);
		}
	}
	for (Py_ssize_t i = 0; c->conns && i < PyList_Size(c->conns); i++)
		((struct conn *)PyList_GetItem(c->conns, i))->conn = NULL;
}

void context_close_all(void)
{
	while (contexts) {
		struct context *c = contexts;

		if (c->closing) {
			contexts = c->next;
			continue;
		}
		Py_IncRef((PyObject *)c);
		op_linger(c);
		context_end(c);
		Py_DECREF(c);
	}
}

static PyObject *context_close(PyObject *self, PyObject *unused)
{
	struct context *c = (struct context *)self;

	if (c->fork != fork_count)
		return context_forked();
	if (c->gx && !c->closing)
		op_linger(c);
	if (!c->gx || c->closing)
		Py_RETURN_NONE;
	if (context_is_viewed(c)) {
		PyErr_SetString(PyExc_BufferError,
				"a memoryview or an array still uses memory of this context");
		return NULL;
	}
	context_end(c);
	Py_RETURN_NONE;
}

static int context_traverse(PyObject *self, visitproc visit, void *arg)
{
	struct context *c = (struct context *)self;

	Py_VISIT(Py_TYPE(self));
	Py_VISIT(c->conns);
	Py_VISIT(c->came);
	Py_VISIT(c->notes);
	return 0;
}

static int context_clear(PyObject *self)
{
	struct context *c = (struct context *)self;

	if (c->gx && !c->closing && c->fork == fork_count)
		context_end(c);
	Py_CLEAR(c->came);
	Py_CLEAR(c->notes);
	Py_CLEAR(c->conns);
	return 0;
}

static void context_dealloc(PyObject *self)
{
	struct context *c = (struct context *)self;
	PyTypeObject *t = Py_TYPE(self);

	PyObject_GC_UnTrack(self);
	context_clear(self);
	context_unlink(c);
	for (struct word *w = c->words, *next; w; w = next) {
		next = w->next;
		free(w);
	}
	free(c->mems);
	((freefunc)PyType_GetSlot(t, Py_tp_free))(self);
	Py_DECREF(t);
}

/* ---- Calls ---- */

static PyObject *context_enter(PyObject *self, PyObject *unused)
{
	if (context_check((struct context *)self))
		return NULL;
	Py_IncRef((PyObject *)self);
	return self;
}

static PyObject *context_register(PyObject *self, PyObject *obj)
{
	if (context_check((struct context *)self))
		return NULL;
	return memory_make((struct context *)self, obj, 0, -1);
}

static PyObject *context_alloc(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"nbytes", "device", NULL};
	int device = -1;
	uint64_t len;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "O&|i", names, u64_of, &len, &device) ||
	    context_check((struct context *)self))
		return NULL;
	if (device < -1) {
		PyErr_SetString(PyExc_ValueError, "device is -1 (host) or a CUDA ordinal");
		return NULL;
	}
	return memory_make((struct context *)self, NULL, len, device);
}

static PyObject *context_listen(PyObject *self, PyObject *args)
{
	struct context *c = (struct context *)self;
	const char *addr;
	int ret;

	if (!PyArg_ParseTuple(args, "s", &addr) || context_check(c))
		return NULL;
	ret = gx_listen(c->gx, addr);
	return ret < 0 ? fail_call(ret) : PyLong_FromLong(ret);
}

static PyObject *context_connect(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"addr", "timeout", "link", "lanes", "peer", NULL};
	struct context *c = (struct context *)self;
	struct gx_connect_opts o = GX_INIT(o);
	struct gx_conn *conn;
	double timeout = 5;
	const char *addr;
	uintptr_t number;
	struct conn *k;
	int ret;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "s|d$zO&z", names, &addr, &timeout, &o.link,
					 u32_of, &o.lanes, &o.peer) ||
	    context_check(c))
		return NULL;
	if (!(timeout > 0 && timeout < 1e9)) {
		PyErr_SetString(PyExc_ValueError, "timeout is in seconds");
		return NULL;
	}
	o.timeout_ns = (uint64_t)(timeout * 1e9);
	number = ++c->numbers;
	o.user = (void *)number; /* it was asked for: accepted ones have none at first */
	ret = gx_connect(c->gx, addr, &o, &conn);
	if (ret)
		return fail_call(ret);
	k = conn_make(c, conn, number);
	if (!k)
		return NULL;
	k->connecting = true;
	ret = conn_wait(k, timeout);
	k->connecting = false;
	if (k->down) /* it was passed over */
		eventfd_write(c->lost_fd, 1);
	if (ret) {
		conn_end(k);
		Py_CLEAR(k);
	}
	return (PyObject *)k;
}

static PyObject *list_first(PyObject *list)
{
	PyObject *o = PyList_GetItem(list, 0);

	Py_IncRef((PyObject *)o);
	if (PyList_SetSlice(list, 0, 1, NULL))
		Py_CLEAR(o);
	return o;
}

static PyObject *context_accept(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"timeout", NULL};
	struct context *c = (struct context *)self;
	double timeout = 60;
	uint64_t from = gx_now();

	if (!PyArg_ParseTupleAndKeywords(args, kw, "|d", names, &timeout))
		return NULL;
	for (unsigned turn = 0;; turn++) {
		if (context_check(c) || context_words(c, true))
			return NULL;
		if (PyList_Size(c->came))
			return list_first(c->came);
		if (!((double)(gx_now() - from) < timeout * 1e9)) /* not a number: at once */
			return fail(-ETIMEDOUT, "no peer has connected", GX_REASON_NONE);
		if (give_way(turn))
			return NULL;
	}
}

static PyObject *context_notifications(PyObject *self, PyObject *unused)
{
	struct context *c = (struct context *)self;
	PyObject *list;

	if (context_check(c))
		return NULL;
	if (op_poll(c) || context_words(c, true))
		return NULL;
	list = c->notes;
	c->notes = PyList_New(0);
	if (c->notes)
		return list;
	c->notes = list;
	return NULL;
}

/* Nothing of it fails on a closed context, whose operations have ended. */
static bool is_open(const struct context *c)
{
	return c->gx && !c->closing && c->fork == fork_count;
}

/* ---- Those that are gone ---- */

static PyObject *context_connections(PyObject *self, void *unused)
{
	struct context *c = (struct context *)self;
	PyObject *list = context_check(c) || context_words(c, true) ? NULL : PyList_New(0);

	for (Py_ssize_t i = 0; list && i < PyList_Size(c->conns); i++) {
		struct conn *k = (struct conn *)PyList_GetItem(c->conns, i);

		if (k->conn && !k->down && !k->connecting && PyList_Append(list, (PyObject *)k))
			Py_CLEAR(list);
	}
	return list;
}

/* Let go of what peers that are gone have here, and take their notifications, which would keep it.
 * Return: a list of these connections. */
static PyObject *context_lost(PyObject *self, PyObject *unused)
{
	struct context *c = (struct context *)self;
	PyObject *list = PyList_New(0);

	if (!list || !is_open(c) || PyList_Size(c->notes) > NOTES_MAX / 2)
		return list;
	if (context_words(c, false) || op_poll(c))
		Py_CLEAR(list);
	for (Py_ssize_t i = 0; list && is_open(c) && i < PyList_Size(c->conns); i++) {
		struct conn *k = (struct conn *)PyList_GetItem(c->conns, i);
		struct gx_conn *conn = k->conn;

		if (k->end.size && PyList_Size(c->conns) > CONNS_MAX)
			PyList_SetSlice(c->conns, i, i + 1, NULL), i--;
		if (!conn || !k->down || k->connecting)
			continue;
		conn_look(k, &k->end);
		k->conn = NULL;
		gx_conn_close(conn);
		if (PyList_Append(list, (PyObject *)k))
			Py_CLEAR(list);
	}
	return list;
}

/* ---- For _aio.py ---- */

static PyObject *context_fd(PyObject *self, PyObject *unused)
{
	struct context *c = (struct context *)self;

	return PyLong_FromLong(is_open(c) ? gx_queue_fd(c->queue) : -1);
}

static PyObject *context_poll_all(PyObject *self, PyObject *unused)
{
	struct context *c = (struct context *)self;

	if (is_open(c) && op_poll(c))
		return NULL;
	return PyLong_FromUnsignedLongLong(c->nr_ended);
}

/* @seen: what _poll() returned last. As turn_arm(); 1, too, where an operation has ended since. */
static PyObject *context_arm(PyObject *self, PyObject *seen)
{
	struct context *c = (struct context *)self;
	uint64_t nr = PyLong_AsUnsignedLongLong(seen);

	if (PyErr_Occurred())
		return NULL;
	if (!is_open(c))
		return PyLong_FromLong(-1);
	return PyLong_FromLong(nr != c->nr_ended ? 1 : turn_arm(c));
}

static PyObject *context_disarm(PyObject *self, PyObject *unused)
{
	((struct context *)self)->sleeper = false;
	Py_RETURN_NONE;
}

static PyObject *context_withdraw(PyObject *self, PyObject *args)
{
	struct context *c = (struct context *)self;
	struct gx_key key;
	int ret;

	if (!PyArg_ParseTuple(args, "O&", key_of, &key) || context_check(c))
		return NULL;
	c->busy++;
	Py_BEGIN_ALLOW_THREADS
	ret = gx_key_withdraw(c->gx, &key);
	Py_END_ALLOW_THREADS
	c->busy--;
	if (ret)
		return fail_call(ret);
	Py_RETURN_NONE;
}

static PyObject *context_text(struct context *c, bool stats)
{
	size_t room = 1 << 20;
	char *buf = malloc(room);
	PyObject *o;
	int ret;

	if (!buf)
		return PyErr_NoMemory();
	ret = stats ? gx_stats(c->gx, false, buf, room) : gx_describe(c->gx, buf, room);
	o = ret < 0 ? fail_call(ret) : PyUnicode_FromStringAndSize(buf, ret);
	free(buf);
	return o;
}

static PyObject *context_stats_text(PyObject *self, PyObject *unused)
{
	return context_check((struct context *)self) ? NULL
						     : context_text((struct context *)self, true);
}

static PyObject *context_describe(PyObject *self, PyObject *unused)
{
	return context_check((struct context *)self) ? NULL
						     : context_text((struct context *)self, false);
}

static PyMethodDef context_methods[] = {
	{"close", context_close, METH_NOARGS,
	 "End everything. Operations under way fail with Canceled."},
	{"__enter__", context_enter, METH_NOARGS, NULL},
	{"register", context_register, METH_O,
	 "Register memory of an object, which lives until free()."},
	{"alloc", KW(context_alloc), "Memory of gx: host, or of a GPU."},
	{"listen", context_listen, METH_VARARGS, "Accept peers at HOST:PORT; returns the port."},
	{"connect", KW(context_connect), "Connect, and wait until it is up."},
	{"accept", KW(context_accept), "The next peer that has connected."},
	{"notifications", context_notifications, METH_NOARGS,
	 "Those that came: a list of (Connection, bytes)."},
	{"withdraw", context_withdraw, METH_VARARGS,
	 "Take a key back. Blocks until no peer uses it."},
	{"_fd", context_fd, METH_NOARGS, NULL},
	{"_poll", context_poll_all, METH_NOARGS, NULL},
	{"_arm", context_arm, METH_O, NULL},
	{"_disarm", context_disarm, METH_NOARGS, NULL},
	{"_lost", context_lost, METH_NOARGS, NULL},
	{"_stats", context_stats_text, METH_NOARGS, NULL},
	{"describe", context_describe, METH_NOARGS, "What was opened and why, in lines."},
	{NULL},
};
static PyMemberDef context_members[] = {
	{"_lost_fd", T_INT, offsetof(struct context, lost_fd), READONLY, NULL}, {NULL}};
static PyGetSetDef context_getset[] = {
	{"connections", context_connections, NULL, "Those that are up: a list.", NULL}, {NULL}};
static PyType_Slot context_slots[] = {
	{Py_tp_new, context_new},	  {Py_tp_methods, context_methods},
	{Py_tp_getset, context_getset},	  {Py_tp_traverse, context_traverse},
	{Py_tp_clear, context_clear},	  {Py_tp_dealloc, context_dealloc},
	{Py_tp_members, context_members}, {0, NULL},
};
PyType_Spec context_spec = {"gx._gx.Context", sizeof(struct context), 0,
			    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
			    context_slots};
