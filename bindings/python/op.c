/* SPDX-License-Identifier: Apache-2.0 */
/* gx.Op: an operation of Python, which is a list of gx; its .user is the Op. */
#include "gxpy.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Ends ---- */

/* May run code of Python, which may close the context, and with it ends @o. */
static void op_let_go(struct op *o)
{
	struct place *places = o->places;
	Py_ssize_t n = o->nr_places;

	o->places = NULL;
	o->nr_places = 0;
	for (Py_ssize_t i = 0; i < n; i++)
		place_close(&places[i]);
	free(places);
}

void op_end(struct op *o, int status)
{
	if (status && !o->status)
		o->status = status;
	o->done = true;
	o->ctx->nr_events++;
	*o->prev = o->next;
	if (o->next)
		o->next->prev = o->prev;
	op_let_go(o);
	Py_DECREF(o); /* of the context */
}

static int op_post_once(struct conn *k, const struct gx_op *g)
{
	struct gx_conn *conn = k->conn;
	struct gx_ep *ep = conn ? gx_conn_ep(conn, 0) : NULL;

	if (!ep)
		return -ENOTCONN;
	return gx_conn_ep(conn, 1) ? gx_post_striped(k->ctx->queue, conn, g, 1)
				   : gx_post(k->ctx->queue, ep, g, 1);
}

/* -errno @ret of a post, or of an operation, whose block @bad failed first (-1: none). Where the
 * connection is down, that says why. */
static PyObject *fail_on(const struct conn *k, int ret, const char *text, Py_ssize_t bad)
{
	struct gx_conn_info info = GX_INIT(info);
	char whole[300];

	info.reason = GX_REASON_NONE;
	if ((ret == -ENOTCONN || ret == -ECONNRESET) && !conn_look(k, &info) &&
	    info.state == GX_CONN_STATE_DOWN)
		text = info.text;
	if (bad < 0)
		return fail(ret, text, info.reason);
	PyOS_snprintf(whole, sizeof(whole), "block %zd: %s", bad, text);
	return fail(ret, whole, info.reason);
}

static PyObject *fail_post(const struct conn *k, int ret)
{
	return fail_on(k, ret,
		       ret == -ENOTCONN ? "the connection is closed, or not up" : gx_error(), -1);
}

static void op_note(const struct op *o, struct gx_op *g)
{
	g->flags = GX_OP_NOTE;
	g->note = PyBytes_AsString(o->note);
	g->note_len = (uint32_t)PyBytes_Size(o->note);
}

/* The notes of gets that have ended. Where the queue is full they stay due. */
static void notes_post(struct context *c)
{
	for (struct op *o = c->ops, *next; o && c->nr_due; o = next) {
		struct gx_op g = {.kind = GX_OP_PUT, .user = (uint64_t)(uintptr_t)o};
		int ret;

		next = o->next;
		if (!o->note_due)
			continue;
		op_note(o, &g);
		ret = op_post_once(o->conn, &g);
		if (!ret)
			return;
		o->note_due = false;
		o->noting = true;
		c->nr_due--;
		if (ret < 0) {
			op_end(o, ret);
			next = c->ops;
		}
	}
}

static int comp_take(struct context *c, const struct gx_comp *comp)
{
	struct op *o = (struct op *)(uintptr_t)comp->user;

	if (comp->kind == GX_COMP_NOTIFY)
		return context_note(c, comp);
	if (comp->user & 1) { /* of conn_notify(), and the number of its connection */
		struct conn *k = conn_find(c, comp->user >> 1);

		c->nr_sending--;
		if (k)
			k->nr_notes--, k->note_ns = gx_now();
		return 0;
	}
	if (!o->noting) {
		o->bad = comp->status ? (Py_ssize_t)comp->seg : -1;
		o->bytes = comp->len;
	}
	if (comp->status || !o->note || !o->get || o->noting) {
		op_end(o, comp->status);
	} else {
		o->note_due = true;
		c->nr_due++;
		op_let_go(o);
	}
	return 0;
}

/* One at a time: code of Python that an end runs, or a thread that it lets go on, may poll too, or close
 * the context. */
int op_poll(struct context *c)
{
	struct gx_comp comp;
	int ret = 0;

	if (c->armer && c->armer == gettid())
		c->armer = 0, c->sleeper = false;
	turn_core(c);
	while (c->queue && gx_poll(c->queue, &comp, 1))
		ret |= comp_take(c, &comp);
	if (c->nr_due)
		notes_post(c);
	return ret;
}

void op_linger(struct context *c)
{
	uint64_t until = gx_now() + 1000 * MS_NS;

	while (c->nr_sending && gx_now() < until) {
		if (op_poll(c))
			PyErr_Clear();
		Py_BEGIN_ALLOW_THREADS
		sched_yield();
		Py_END_ALLOW_THREADS
	}
}

/* ---- Posts ---- */

static struct op *op_make(struct conn *k, Py_ssize_t n, PyObject *note)
{
	struct op *o;

	if (note == Py_None)
		note = NULL;
	if (note && (!PyBytes_Check(note) || PyBytes_Size(note) > 4096))
		return (struct op *)PyErr_Format(PyExc_ValueError,
						 "notify is bytes, at most 4,096");
	o = (struct op *)PyType_GenericAlloc(op_type, 0);
	if (!o)
		return NULL;
	Py_IncRef((PyObject *)k);
	o->conn = k;
	Py_IncRef((PyObject *)k->ctx);
	o->ctx = k->ctx;
	o->bad = -1;
	Py_IncRef((PyObject *)note);
	o->note = note;
	o->places = calloc((size_t)(n ? n : 1), sizeof(*o->places));
	if (o->places)
		return o;
	Py_DECREF(o);
	PyErr_NoMemory();
	return NULL;
}

/* May run code of Python, which may close or free anything. */
static int op_open(struct op *o, struct gx_seg *segs, PyObject *bufs, PyObject *regions,
		   PyObject *offs, bool get, struct layout *l)
{
	PyObject *region = regions;

	for (Py_ssize_t i = 0; i < PyList_Size(bufs); i++) {
		struct place *p = &o->places[i];

		if (PyList_Check(regions))
			region = PyList_GetItem(regions, i);
		if (!PyObject_TypeCheck(region, region_type))
			return refuse(PyExc_TypeError,
				      "region is a gx.Region: Connection.region()");
		if (place_open(PyList_GetItem(bufs, i), p, l))
			return -1;
		o->nr_places = i + 1;
		if (!memory_find(o->ctx, p->addr, p->len) && place_check(p, get))
			return -1;
		if (get && p->readonly)
			return refuse(PyExc_BufferError,
				      "get writes, and this memory is read only");
		segs[i] =
			(struct gx_seg){.token = ((struct region *)region)->r.token, .len = p->len};
		if (!u64_of(PyList_GetItem(offs, i), &segs[i].remote_off))
			return -1;
	}
	return 0;
}

/* The .mem of memory that is registered, else its address. */
static int op_fill(struct op *o, struct gx_seg *segs)
{
	for (Py_ssize_t i = 0; i < o->nr_places; i++) {
		const struct place *p = &o->places[i];
		struct memory *m = memory_find(o->ctx, p->addr, p->len);
		bool known = m && (m->device < 0) == (p->device < 0);

		segs[i].mem = known ? m->mem : NULL;
		segs[i].off = known ? p->addr - m->addr : p->addr;
		if (!known && p->device >= 0)
			return refuse(PyExc_ValueError,
				      "memory of a GPU is registered first: Context.register()");
	}
	return 0;
}

/* Gives way while the queue is full, and then memory may come and go. -1: raised. */
static int op_post(struct op *o, struct gx_op *g, struct gx_seg *segs)
{
	uint64_t from = gx_now();

	for (;;) {
		int ret;

		if (context_check(o->ctx) || op_fill(o, segs))
			return -1;
		if (o->views) {
			g->mem = segs->mem;
			g->off = segs->off + o->skip;
			g->addr = (void *)(uintptr_t)g->off;
		}
		ret = op_post_once(o->conn, g);
		if (ret == -EINVAL && o->views)
			views_refused(o->views, ret);
		else if (ret < 0)
			fail_post(o->conn, ret);
		if (ret < 0)
			return -1;
		if (ret)
			break;
		if (op_poll(o->ctx) || turn_rest(o->ctx, from))
			return -1;
	}
	/* The context's list of those that are under way holds it. */
	Py_IncRef((PyObject *)o);
	o->next = o->ctx->ops;
	o->prev = &o->ctx->ops;
	if (o->next)
		o->next->prev = &o->next;
	o->ctx->ops = o;
	return 0;
}

int op_post_plain(struct conn *k, const struct gx_op *g)
{
	uint64_t from = gx_now();

	for (;;) {
		int ret = context_check(k->ctx) ? -EBADF : op_post_once(k, g);

		if (ret > 0)
			return 0;
		if (ret < 0 && !PyErr_Occurred())
			fail_post(k, ret);
		if (ret < 0 || op_poll(k->ctx) || turn_rest(k->ctx, from))
			return -1;
	}
}

static int many_check(PyObject *bufs, PyObject *regions, PyObject *offs)
{
	Py_ssize_t n = PyList_Size(bufs);

	if (n >= 1 && n <= (Py_ssize_t)GX_SEGS_MAX && PyList_Size(offs) == n &&
	    (!PyList_Check(regions) || PyList_Size(regions) == n))
		return 0;
	return refuse(PyExc_ValueError,
		      "1 to 65,536 blocks, as many offsets, and one region or as many");
}

/* @regions: a region, or a list of them. @how: of views_open(), for a block alone; NULL: blocks have no gaps. */
static PyObject *conn_many(struct conn *k, PyObject *bufs, PyObject *regions, PyObject *offs,
			   PyObject *note, enum gx_op_kind kind, PyObject *const how[2])
{
	struct gx_op g = {.kind = kind};
	struct gx_seg *segs;
	struct layout l;
	struct op *o;

	if (conn_check(k) || many_check(bufs, regions, offs))
		return NULL;
	o = op_make(k, PyList_Size(bufs), note);
	if (!o)
		return NULL;
	segs = malloc((size_t)PyList_Size(bufs) * sizeof(*segs));
	o->get = kind == GX_OP_GET;
	if (o->note && !o->get)
		op_note(o, &g);
	g.user = (uint64_t)(uintptr_t)o;
	g.segs = segs;
	g.nr_segs = (uint32_t)PyList_Size(bufs);
	if (!segs)
		PyErr_NoMemory();
	if (!segs || op_open(o, segs, bufs, regions, offs, kind == GX_OP_GET, how ? &l : NULL) ||
	    (how && views_open(o, &l, how, &g, segs)) || op_post(o, &g, segs))
		Py_CLEAR(o);
	if (o) {
		views_put(o->views); /* the post has the list */
		o->views = NULL;
	}
	free(segs);
	return (PyObject *)o;
}

/* Index arrays of numpy and torch make ints of all at once, many times faster than one by one. */
PyObject *list_of_numbers(PyObject *o)
{
	PyObject *all, *list;

	if (!PyObject_HasAttrString(o, "tolist"))
		return PySequence_List(o);
	all = PyObject_CallMethod(o, "tolist", NULL);
	list = all ? PySequence_List(all) : NULL;
	Py_XDECREF(all);
	return list;
}

static PyObject *many_args(PyObject *self, PyObject *args, PyObject *kw, enum gx_op_kind kind)
{
	static char *names[] = {"blocks", "region", "offsets", "notify", NULL};
	PyObject *bufs, *regions, *offs, *note = NULL, *ret = NULL;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "OOO|O", names, &bufs, &regions, &offs, &note))
		return NULL;
	bufs = PySequence_List(bufs);
	offs = bufs ? list_of_numbers(offs) : NULL;
	regions =
		offs && PySequence_Check(regions) ? PySequence_List(regions) : Py_XNewRef(regions);
	if (bufs && offs && regions)
		ret = conn_many((struct conn *)self, bufs, regions, offs, note, kind, NULL);
	Py_XDECREF(regions);
	Py_XDECREF(bufs);
	Py_XDECREF(offs);
	return ret;
}

static PyObject *one_args(PyObject *self, PyObject *args, PyObject *kw, bool get)
{
	char *names[] = {"block", "region", "offset", "notify", "rows", get ? "out_of" : "into",
			 NULL};
	PyObject *buf, *region, *off = Py_False, *note = NULL, *bufs, *offs, *ret = NULL;
	PyObject *how[2] = {Py_None, Py_None};

	if (!PyArg_ParseTupleAndKeywords(args, kw, "OO|OO$OO", names, &buf, &region, &off, &note,
					 &how[0], &how[1]))
		return NULL;
	bufs = Py_BuildValue("[O]", buf);
	offs = Py_BuildValue("[O]", off);
	if (bufs && offs)
		ret = conn_many((struct conn *)self, bufs, region, offs, note,
				get ? GX_OP_GET : GX_OP_PUT, how);
	Py_XDECREF(bufs);
	Py_XDECREF(offs);
	return ret;
}

PyObject *op_put(PyObject *self, PyObject *args, PyObject *kw)
{
	return one_args(self, args, kw, false);
}

PyObject *op_get(PyObject *self, PyObject *args, PyObject *kw)
{
	return one_args(self, args, kw, true);
}

PyObject *op_put_many(PyObject *self, PyObject *args, PyObject *kw)
{
	return many_args(self, args, kw, GX_OP_PUT);
}

PyObject *op_get_many(PyObject *self, PyObject *args, PyObject *kw)
{
	return many_args(self, args, kw, GX_OP_GET);
}

/* ---- gx.Op ---- */

static PyObject *op_result(struct op *o)
{
	if (!o->status)
		return PyLong_FromUnsignedLongLong(o->bytes);
	return fail_on(o->conn, o->status, gx_strerror(o->status), o->bad);
}

/* -1: raised */
static int op_look(struct op *o)
{
	return !o->done && (context_check(o->ctx) || op_poll(o->ctx)) ? -1 : 0;
}

static PyObject *op_ended(void *arg)
{
	struct op *o = arg;

	return op_look(o) || !o->done ? NULL : op_result(o);
}

static PyObject *op_wait(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"timeout", NULL};
	struct op *o = (struct op *)self;
	uint64_t for_ns = UINT64_MAX;
	PyObject *bytes;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "|O&", names, ns_of, &for_ns))
		return NULL;
	bytes = turn_until(o->ctx, op_ended, o, for_ns);
	if (!bytes && !PyErr_Occurred())
		fail(-ETIMEDOUT, "the operation goes on: wait() again, or cancel()",
		     GX_REASON_NONE);
	return bytes;
}

static PyObject *op_cancel(PyObject *self, PyObject *unused)
{
	struct op *o = (struct op *)self;
	struct gx_ep *ep;

	if (op_look(o))
		return NULL;
	if (o->note_due) { /* the data are here: the note alone is left */
		o->note_due = false;
		o->ctx->nr_due--;
		op_end(o, -ECANCELED);
		Py_RETURN_TRUE;
	}
	ep = !o->done && o->conn->conn ? gx_conn_ep(o->conn->conn, 0) : NULL;
	return PyBool_FromLong(ep && gx_cancel(o->ctx->queue, ep, (uint64_t)(uintptr_t)o) > 0);
}

static PyObject *op_done(PyObject *self, void *unused)
{
	struct op *o = (struct op *)self;

	return op_look(o) ? NULL : PyBool_FromLong(o->done);
}

static PyObject *op_await(PyObject *self)
{
	return aio_call("wait", self);
}

static int op_traverse(PyObject *self, visitproc visit, void *arg)
{
	struct op *o = (struct op *)self;

	Py_VISIT(Py_TYPE(self));
	Py_VISIT(o->ctx);
	Py_VISIT(o->conn);
	return 0;
}

static int op_clear(PyObject *self)
{
	struct op *o = (struct op *)self;

	op_let_go(o);
	views_put(o->views);
	o->views = NULL;
	Py_CLEAR(o->conn);
	Py_CLEAR(o->ctx);
	Py_CLEAR(o->note);
	return 0;
}

static PyMethodDef op_methods[] = {
	{"wait", KW(op_wait),
	 "wait($self, /, timeout=None)\n--\n\n"
	 "Block until the operation is done, and return the bytes moved, or raise why it failed.\n\n"
	 "timeout: in seconds; gx.Timeout does not end the operation. None: without an end."},
	{"cancel", op_cancel, METH_NOARGS,
	 "cancel($self, /)\n--\n\n"
	 "Ask gx to end it: wait() raises gx.Canceled, unless it is done first. Return: was it asked?\n\n"
	 "Bytes that have left may land after that. It is done, and its memory free, when no peer reads\n"
	 "that any more."},
	{NULL},
};
static PyMemberDef op_members[] = {
	{"_context", T_OBJECT_EX, offsetof(struct op, ctx), READONLY, NULL}, {NULL}};
static PyGetSetDef op_getset[] = {
	{"done", op_done, NULL, "Has it ended, well or not? Never blocks.", NULL}, {NULL}};
static PyType_Slot op_slots[] = {
	{Py_tp_methods, op_methods}, {Py_tp_getset, op_getset},
	{Py_tp_members, op_members}, {Py_tp_traverse, op_traverse},
	{Py_tp_clear, op_clear},     {Py_tp_dealloc, object_dealloc},
	{Py_am_await, op_await},     {0, NULL},
};
PyType_Spec op_spec = {"gx.Op", sizeof(struct op), 0,
		       Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
		       op_slots};
