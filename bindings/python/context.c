/* SPDX-License-Identifier: Apache-2.0 */
/* gx.Context: gx with cores that run on threads of their own, one queue, and the words of the control
 * thread. */
#include "gxpy.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define CORES_MAX   64
#define NOTES_MAX   65536 /* notifications that wait to be taken; then the context is flooded */
#define CONNS_MAX   2048  /* beyond them those that are gone are forgotten */
#define LOST_END    (1ull << 32)
#define STEP_NS_MAX 1000000000000000000ull /* of the set-up, without an end: 31 years */

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
	eventfd_write(down ? c->lost_fd : c->came_fd, 1); /* not before the word */
	pthread_mutex_unlock(&c->lock);
}

struct conn *conn_find(struct context *c, uintptr_t number)
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
	c->nr_events++;
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
		c->nr_events++;
		Py_XDECREF(t);
	}
	Py_DecRef((PyObject *)k);
	Py_XDECREF(text);
	return ret;
}

/* ---- Open and close ---- */

/* Return: how many @cores has; -1: raised. */
static int cpus_of(PyObject *cores, int *cpus)
{
	Py_ssize_t n = PyList_Size(cores);

	cpus[0] = -1;
	if (n > CORES_MAX)
		PyErr_SetString(PyExc_ValueError, "cores are at most 64 CPUs");
	for (Py_ssize_t i = 0; i < n && !PyErr_Occurred(); i++)
		if (PyArg_Parse(PyList_GetItem(cores, i), "i", &cpus[i]) && cpus[i] < -1)
			PyErr_Format(PyExc_ValueError, "there is no CPU %d", cpus[i]);
	return PyErr_Occurred() ? -1 : (int)n;
}

/* Return: 0, -errno. Where a queue has no descriptor, neither has the context. */
static int fds_open(struct context *c)
{
	struct epoll_event event = {.events = EPOLLIN};
	int fd = gx_queue_fd(c->queue);

	c->lost_fd = eventfd(0, EFD_CLOEXEC);
	if (c->lost_fd < 0)
		return -errno;
	c->fd = fd < 0 ? -1 : epoll_create1(EPOLL_CLOEXEC);
	if (fd >= 0 && (c->fd < 0 || epoll_ctl(c->fd, EPOLL_CTL_ADD, fd, &event) ||
			epoll_ctl(c->fd, EPOLL_CTL_ADD, c->came_fd, &event)))
		return -errno;
	return 0;
}

static void fds_close(struct context *c)
{
	close(c->fd);
	close(c->came_fd);
	c->fd = c->came_fd = -1;
}

/* @own: the core has no thread of gx. */
static int gx_begin(struct context *c, const struct gx_opts *o, bool own)
{
	int ret;

	c->came_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	ret = c->came_fd < 0 ? -errno : gx_open(o, &c->gx);
	if (!ret)
		ret = gx_queue_open(c->gx, GX_WITH(gx_queue_opts, .depth = 8192, .notify = true),
				    &c->queue);
	for (unsigned i = 0; !ret && !own && i < gx_nr_cores(c->gx); i++)
		ret = gx_core_start(gx_core(c->gx, i));
	if (!ret)
		ret = fds_open(c);
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

	if (!PyArg_ParseTuple(args, "OzppzdzO&O&z", &cores, &port.name, &server, &insecure,
			      &o.bind_host, &timeout, &key_file, u32_of, &copy, u32_of, &gpu.sms,
			      &auth.name))
		return NULL;
	n = cpus_of(cores, cpus);
	if (n < 0)
		return NULL;
	if (!(timeout >= 0 && timeout < 1e9))
		return PyErr_Format(PyExc_ValueError, "peer_timeout is in seconds, 0: the default");
	c = (struct context *)PyType_GenericAlloc(type, 0);
	if (!c)
		return NULL;
	c->fork = fork_count;
	c->lost_fd = c->came_fd = c->fd = -1;
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
	if (!viewed)
		fds_close(c);
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
	views_drop(c);
	while (c->nr_mems) { /* an owner's end may run code of Python, and with it memory goes */
		struct memory *m = c->mems[c->nr_mems - 1];

		Py_IncRef((PyObject *)m);
		memory_unlink(m);
		if (m->views)
			m->mem = NULL;
		else
			memory_drop(m);
		Py_DecRef((PyObject *)m);
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
	if (context_is_viewed(c))
		return PyErr_Format(PyExc_BufferError,
				    "a memoryview or an array still uses memory of this context");
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
	for (size_t i = 0; i < c->nr_mems; i++)
		if (c->mems[i]->pinned)
			Py_VISIT(c->mems[i]);
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
	fds_close(c);
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
	if (device < -1)
		return PyErr_Format(PyExc_ValueError, "device is -1 (host) or a CUDA ordinal");
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
	uint64_t for_ns = 5000 * MS_NS;
	struct gx_conn *conn;
	const char *addr;
	uintptr_t number;
	struct conn *k;
	int ret;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "s|O&$zO&z", names, &addr, ns_of, &for_ns,
					 &o.link, u32_of, &o.lanes, &o.peer) ||
	    context_check(c))
		return NULL;
	if (!for_ns)
		return PyErr_Format(PyExc_ValueError, "timeout is more than 0 seconds, or None");
	o.timeout_ns = for_ns < STEP_NS_MAX ? for_ns : STEP_NS_MAX;
	number = ++c->numbers;
	o.user = (void *)number; /* it was asked for: accepted ones have none at first */
	WITHOUT_GIL(c, ret = gx_connect(c->gx, addr, &o, &conn)); /* may ask for a name */
	if (ret)
		return fail_call(ret);
	k = conn_make(c, conn, number);
	if (!k)
		return NULL;
	k->connecting = true;
	ret = conn_wait(k, for_ns);
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

static PyObject *accept_look(void *arg)
{
	struct context *c = arg;

	if (context_check(c) || op_poll(c) || context_words(c, true))
		return NULL;
	return PyList_Size(c->came) ? list_first(c->came) : NULL;
}

static PyObject *context_accept(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"timeout", NULL};
	struct context *c = (struct context *)self;
	uint64_t for_ns = 60000 * MS_NS;
	PyObject *k;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "|O&", names, ns_of, &for_ns))
		return NULL;
	k = turn_until(c, accept_look, c, for_ns);
	return k || PyErr_Occurred() ? k
				     : fail(-ETIMEDOUT, "no peer has connected", GX_REASON_NONE);
}

static PyObject *notes_look(void *arg)
{
	struct context *c = arg;
	PyObject *list;

	if (context_check(c) || op_poll(c) || context_words(c, true) || !PyList_Size(c->notes))
		return NULL;
	list = c->notes;
	c->notes = PyList_New(0);
	if (c->notes)
		return list;
	c->notes = list;
	return NULL;
}

static PyObject *context_notifications(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"timeout", NULL};
	struct context *c = (struct context *)self;
	uint64_t for_ns = 0;
	PyObject *list;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "|O&", names, ns_of, &for_ns))
		return NULL;
	list = turn_until(c, notes_look, c, for_ns);
	return list || PyErr_Occurred() ? list : PyList_New(0);
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

/* ---- To sleep on a descriptor ---- */

static PyObject *context_poll_all(PyObject *self, PyObject *unused)
{
	struct context *c = (struct context *)self;

	if (is_open(c) && (op_poll(c) || (is_open(c) && context_words(c, false))))
		return NULL;
	return PyLong_FromUnsignedLongLong(c->nr_events);
}

/* (seen, whole): as turn_arm(); 1, too, where something has come since _poll() returned seen. @whole: it holds
 * until this thread's next call. */
static PyObject *context_arm(PyObject *self, PyObject *args)
{
	struct context *c = (struct context *)self;
	unsigned long long seen;
	int whole, ret = -1;

	if (!PyArg_ParseTuple(args, "Kp", &seen, &whole))
		return NULL;
	if (is_open(c))
		ret = seen != c->nr_events ? 1 : turn_arm(c);
	if (!ret && whole)
		c->armer = gettid();
	return PyLong_FromLong(ret);
}

static PyObject *context_withdraw(PyObject *self, PyObject *args)
{
	struct context *c = (struct context *)self;
	struct gx_key key;
	int ret;

	if (!PyArg_ParseTuple(args, "O&", key_of, &key) || context_check(c))
		return NULL;
	WITHOUT_GIL(c, ret = gx_key_withdraw(c->gx, &key));
	if (ret)
		return fail_call(ret);
	Py_RETURN_NONE;
}

/* What was opened and why; @stats: counters. */
static PyObject *context_text(PyObject *self, PyObject *stats)
{
	struct context *c = (struct context *)self;
	size_t room = 1 << 20;
	PyObject *o;
	char *buf;
	int ret;

	if (context_check(c))
		return NULL;
	buf = malloc(room);
	if (!buf)
		return PyErr_NoMemory();
	ret = stats == Py_True ? gx_stats(c->gx, false, buf, room) : gx_describe(c->gx, buf, room);
	o = ret < 0 ? fail_call(ret) : PyUnicode_FromStringAndSize(buf, ret);
	free(buf);
	return o;
}

static PyMethodDef context_methods[] = {
	{"close", context_close, METH_NOARGS, "close($self, /)\n--\n\n"},
	{"__enter__", context_enter, METH_NOARGS, NULL},
	{"register", context_register, METH_O,
	 "register($self, obj, /)\n--\n\n"
	 "Make memory of an object known to gx: for keys, and for faster puts and gets of it.\n\n"
	 "obj: see docs/python.md, Memory. gx keeps it until Memory.free() or close(). What this\n"
	 "program may not write gives keys for gx.GET alone."},
	{"alloc", KW(context_alloc),
	 "alloc($self, /, nbytes, device=-1)\n--\n\n"
	 "Memory of gx, zeroed: of the host, or of a GPU by its ordinal.\n\n"
	 "Peers on this host map it, which is the fastest way. Once it has a key or a name, it lives\n"
	 "until Memory.free() or close()."},
	{"listen", context_listen, METH_VARARGS,
	 "listen($self, addr, /)\n--\n\n"
	 "Let peers connect to HOST:PORT, or several with commas between; return the port.\n\n"
	 "Port 0: a free one. Other hosts than this one need key_file or insecure, and bind_host."},
	{"connect", KW(context_connect),
	 "connect($self, /, addr, timeout=5, *, link=None, lanes=0, peer=None)\n--\n\n"
	 "Connect to a context or a gxd that listens, and wait until the Connection is up.\n\n"
	 "addr: HOST:PORT, or several with commas between. timeout: of each step, in seconds, or None.\n"
	 "link: local, packet or tcp; None: the best. lanes: cores to use; 0: all. peer: the name that\n"
	 "the server must show. gx.Refused, gx.Timeout and gx.Denied say what stands in the way."},
	{"accept", KW(context_accept),
	 "accept($self, /, timeout=60)\n--\n\n"
	 "The next peer that has connected, within seconds; None: without an end. gx.Timeout: none."},
	{"notifications", KW(context_notifications),
	 "notifications($self, /, timeout=0)\n--\n\n"
	 "Those that came: a list of (Connection, bytes), in the order of each peer.\n\n"
	 "Waits for the first, for seconds or, with None, without an end; an empty list: none came.\n"
	 "The data of a put lie here before its notification comes."},
	{"withdraw", context_withdraw, METH_VARARGS,
	 "withdraw($self, key, /)\n--\n\n"
	 "Take a key back. When this returns, no peer reads or writes by it, and none will: gx.Stale.\n\n"
	 "Waits for copies under way: microseconds, or the peer time-out for a peer that is stopped."},
	{"_poll", context_poll_all, METH_NOARGS, NULL},
	{"_arm", context_arm, METH_VARARGS, NULL},
	{"_lost", context_lost, METH_NOARGS, NULL},
	{"_text", context_text, METH_O, NULL},
	{NULL},
};
static PyMemberDef context_members[] = {
	{"_lost_fd", T_INT, offsetof(struct context, lost_fd), READONLY, NULL},
	{"_fd", T_INT, offsetof(struct context, fd), READONLY, NULL},
	{"_sleeper", T_BOOL, offsetof(struct context, sleeper), 0, NULL},
	{"_closed", T_BOOL, offsetof(struct context, closing), READONLY, NULL},
	{"_came", T_OBJECT, offsetof(struct context, came), READONLY, NULL},
	{"_notes", T_OBJECT, offsetof(struct context, notes), READONLY, NULL},
	{NULL}};
static PyGetSetDef context_getset[] = {
	{"connections", context_connections, NULL, "The connections that are up: a list.", NULL},
	{NULL}};
static PyType_Slot context_slots[] = {
	{Py_tp_new, context_new},	  {Py_tp_methods, context_methods},
	{Py_tp_getset, context_getset},	  {Py_tp_traverse, context_traverse},
	{Py_tp_clear, context_clear},	  {Py_tp_dealloc, context_dealloc},
	{Py_tp_members, context_members}, {0, NULL},
};
PyType_Spec context_spec = {"gx._gx.Context", sizeof(struct context), 0,
			    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
			    context_slots};
