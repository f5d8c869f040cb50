/* SPDX-License-Identifier: Apache-2.0 */
/* gx.Op: operations of Python. Many of gx's make one, with one completion; their .user is the Op's address
 * in 48 bits, and the index above them. */
#include "gxpy.h"

#include <stdlib.h>
#include <string.h>

#define MANY_MAX 65536
#define BATCH	 64
#define POLL	 64

/* ---- Ends ---- */

void op_end(struct op *o, int status)
{
	if (status && !o->status)
		o->status = status;
	if (!o->status && o->note && o->conn->conn)
		o->status = gx_conn_msg(o->conn->conn, PyBytes_AsString(o->note),
					(uint32_t)PyBytes_Size(o->note));
	for (Py_ssize_t i = 0; i < o->nr_places; i++)
		place_close(&o->places[i]);
	free(o->places);
	o->places = NULL;
	o->nr_places = 0;
	o->left = 0;
	o->done = true;
	*o->prev = o->next;
	if (o->next)
		o->next->prev = o->prev;
	Py_DECREF(o); /* of the context */
}

void context_poll(struct context *c)
{
	struct gx_comp comps[POLL];
	unsigned n;

	while (c->queue && (n = gx_poll(c->queue, comps, POLL)))
		for (unsigned i = 0; i < n; i++) {
			struct op *o = (struct op *)(uintptr_t)(comps[i].user & 0xffffffffffffull);

			if (comps[i].kind != GX_COMP_DONE)
				continue;
			if (comps[i].status && !o->status) {
				o->status = comps[i].status;
				o->bad = (Py_ssize_t)(comps[i].user >> 48);
			}
			o->bytes += comps[i].status ? 0 : comps[i].len;
			if (!--o->left)
				op_end(o, 0);
		}
}

/* ---- Posts ---- */

static struct op *op_make(struct conn *k, Py_ssize_t n, PyObject *note)
{
	struct op *o;

	if (note == Py_None)
		note = NULL;
	if (note && (!PyBytes_Check(note) || PyBytes_Size(note) > 4096)) {
		PyErr_SetString(PyExc_ValueError, "notify is bytes, at most 4,096");
		return NULL;
	}
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

/* The .mem of memory that is registered, else its address. */
static int op_source(struct op *o, struct gx_op *g, const struct place *p, bool get)
{
	struct memory *m = memory_find(o->ctx, p->addr, p->len);

	g->len = p->len;
	if (get && p->readonly) {
		PyErr_SetString(PyExc_BufferError, "get writes, and this memory is read only");
		return -1;
	}
	if (m && (m->device < 0) == (p->device < 0)) {
		g->mem = m->mem;
		g->off = p->addr - m->addr;
		return 0;
	}
	if (p->device < 0) {
		g->addr = (void *)(uintptr_t)p->addr;
		return 0;
	}
	PyErr_SetString(PyExc_ValueError,
			"memory of a GPU is registered first: Context.register()");
	return -1;
}

static int post_some(struct op *o, const struct gx_op *ops, unsigned n)
{
	struct gx_ep *ep = gx_conn_ep(o->conn->conn, 0);

	if (!ep)
		return -ENOTCONN;
	return gx_conn_ep(o->conn->conn, 1) ? gx_post_striped(o->ctx->queue, o->conn->conn, ops, n)
					    : gx_post(o->ctx->queue, ep, ops, n);
}

/* Gives way while the queue is full. -1: raised, or an error of gx that the op keeps. */
static int post_all(struct op *o, const struct gx_op *ops, unsigned n)
{
	unsigned turn = 0;

	for (unsigned done = 0; done < n;) {
		int ret;

		if (context_check(o->ctx))
			return -1;
		ret = o->conn->conn ? post_some(o, ops + done, n - done) : -ENOTCONN;
		if (ret < 0) {
			fail_call(ret);
			return -1;
		}
		done += (unsigned)ret;
		o->left += ret;
		if (done == n)
			break;
		context_poll(o->ctx);
		if (give_way(turn++))
			return -1;
	}
	return 0;
}

static void op_begin(struct op *o)
{
	Py_IncRef((PyObject *)o);
	o->left = 1; /* until all are posted */
	o->next = o->ctx->ops;
	o->prev = &o->ctx->ops;
	if (o->next)
		o->next->prev = &o->next;
	o->ctx->ops = o;
}

/* What was posted goes on to its end when a later part raises; places are gx's until then. */
static PyObject *op_posted(struct op *o, int ret)
{
	if (ret && !o->status)
		o->status = -ECANCELED;
	if (!o->done && !--o->left)
		op_end(o, 0);
	if (!ret)
		return (PyObject *)o;
	Py_DECREF(o);
	return NULL;
}

static int many_post(struct op *o, PyObject *bufs, struct region *r, PyObject *offs,
		     enum gx_op_kind kind)
{
	Py_ssize_t n = PyList_Size(bufs);
	struct gx_op ops[BATCH];
	unsigned k = 0;

	for (Py_ssize_t i = 0; i < n; i++) {
		struct place *p = &o->places[i];
		struct gx_op *g = &ops[k++];

		*g = (struct gx_op){.kind = kind, .token = r->r.token};
		g->user = (uint64_t)i << 48 | (uint64_t)(uintptr_t)o;
		g->remote_off = PyLong_AsUnsignedLongLong(PyList_GetItem(offs, i));
		if (PyErr_Occurred() || place_open(PyList_GetItem(bufs, i), p))
			return -1;
		o->nr_places = i + 1;
		if (op_source(o, g, p, kind == GX_OP_GET))
			return -1;
		if (k < BATCH && i + 1 < n)
			continue;
		if (post_all(o, ops, k) || o->status)
			return PyErr_Occurred() ? -1 : 0;
		k = 0;
	}
	return 0;
}

static PyObject *conn_many(struct conn *k, PyObject *bufs, PyObject *region, PyObject *offs,
			   PyObject *note, enum gx_op_kind kind)
{
	struct gx_conn_info info = GX_INIT(info);
	struct op *o;
	int ret;

	if (context_check(k->ctx))
		return NULL;
	if (!k->conn)
		return fail(-ENOTCONN, "the connection was closed", GX_REASON_CLOSED);
	if (!PyObject_TypeCheck(region, region_type)) {
		PyErr_SetString(PyExc_TypeError, "region is a gx.Region: Connection.region()");
		return NULL;
	}
	if (PyList_Size(bufs) != PyList_Size(offs) || PyList_Size(bufs) < 1 ||
	    PyList_Size(bufs) > MANY_MAX) {
		PyErr_SetString(PyExc_ValueError, "as many offsets as blocks, 1 to 65,536");
		return NULL;
	}
	/* GX_COMP_DONE says less there: a message could overtake the bytes. */
	if (note && note != Py_None && !gx_conn_info(k->conn, &info) && !strcmp(info.link, "verbs"))
		return fail(-EOPNOTSUPP, "no notify over link verbs yet", GX_REASON_NONE);
	o = op_make(k, PyList_Size(bufs), note);
	if (!o)
		return NULL;
	op_begin(o);
	ret = many_post(o, bufs, (struct region *)region, offs, kind);
	return op_posted(o, ret);
}

static PyObject *many_args(PyObject *self, PyObject *args, PyObject *kw, enum gx_op_kind kind)
{
	static char *names[] = {"blocks", "region", "offsets", "notify", NULL};
	PyObject *bufs, *region, *offs, *note = NULL, *ret = NULL;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "OOO|O", names, &bufs, &region, &offs, &note))
		return NULL;
	bufs = PySequence_List(bufs);
	offs = bufs ? PySequence_List(offs) : NULL;
	if (bufs && offs)
		ret = conn_many((struct conn *)self, bufs, region, offs, note, kind);
	Py_XDECREF(bufs);
	Py_XDECREF(offs);
	return ret;
}

static PyObject *one_args(PyObject *self, PyObject *args, PyObject *kw, enum gx_op_kind kind)
{
	static char *names[] = {"block", "region", "offset", "notify", NULL};
	PyObject *buf, *region, *note = NULL, *bufs, *offs, *ret = NULL;
	unsigned long long off = 0;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "OO|KO", names, &buf, &region, &off, &note))
		return NULL;
	bufs = Py_BuildValue("[O]", buf);
	offs = Py_BuildValue("[K]", off);
	if (bufs && offs)
		ret = conn_many((struct conn *)self, bufs, region, offs, note, kind);
	Py_XDECREF(bufs);
	Py_XDECREF(offs);
	return ret;
}

PyObject *conn_put(PyObject *self, PyObject *args, PyObject *kw)
{
	return one_args(self, args, kw, GX_OP_PUT);
}

PyObject *conn_get(PyObject *self, PyObject *args, PyObject *kw)
{
	return one_args(self, args, kw, GX_OP_GET);
}

PyObject *conn_put_many(PyObject *self, PyObject *args, PyObject *kw)
{
	return many_args(self, args, kw, GX_OP_PUT);
}

PyObject *conn_get_many(PyObject *self, PyObject *args, PyObject *kw)
{
	return many_args(self, args, kw, GX_OP_GET);
}

/* ---- gx.Op ---- */

static PyObject *op_result(struct op *o)
{
	char text[256];

	if (!o->status)
		return PyLong_FromUnsignedLongLong(o->bytes);
	if (o->bad < 0)
		return fail(o->status, gx_strerror(o->status), GX_REASON_NONE);
	PyOS_snprintf(text, sizeof(text), "block %zd: %s", o->bad, gx_strerror(o->status));
	return fail(o->status, text, GX_REASON_NONE);
}

static PyObject *op_wait(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"timeout", NULL};
	struct op *o = (struct op *)self;
	uint64_t from = gx_now();
	double timeout = -1;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "|d", names, &timeout))
		return NULL;
	for (unsigned turn = 0;; turn++) {
		if (!o->done && context_check(o->ctx))
			return NULL;
		if (!o->done)
			context_poll(o->ctx);
		if (o->done)
			return op_result(o);
		if (timeout >= 0 && (double)(gx_now() - from) >= timeout * 1e9)
			return fail(-ETIMEDOUT, "the operation goes on: wait() again",
				    GX_REASON_NONE);
		if (give_way(turn))
			return NULL;
	}
}

static PyObject *op_done(PyObject *self, void *unused)
{
	struct op *o = (struct op *)self;

	if (!o->done && context_check(o->ctx))
		return NULL;
	if (!o->done)
		context_poll(o->ctx);
	return PyBool_FromLong(o->done);
}

static PyObject *op_await(PyObject *self)
{
	PyObject *m = PyImport_ImportModule("gx._aio"), *it;

	it = m ? PyObject_CallMethod(m, "wait", "O", self) : NULL;
	Py_XDECREF(m);
	return it;
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

	Py_CLEAR(o->conn);
	Py_CLEAR(o->ctx);
	Py_CLEAR(o->note);
	return 0;
}

static void op_dealloc(PyObject *self)
{
	PyTypeObject *t = Py_TYPE(self);

	PyObject_GC_UnTrack(self);
	op_clear(self);
	free(((struct op *)self)->places);
	((freefunc)PyType_GetSlot(t, Py_tp_free))(self);
	Py_DECREF(t);
}

static PyMethodDef op_methods[] = {
	{"wait", (PyCFunction)(void (*)(void))op_wait, METH_VARARGS | METH_KEYWORDS,
	 "Block until it is done; the bytes moved."},
	{NULL},
};
static PyGetSetDef op_getset[] = {{"done", op_done, NULL, "Has it ended, well or not?", NULL},
				  {NULL}};
static PyType_Slot op_slots[] = {
	{Py_tp_methods, op_methods},
	{Py_tp_getset, op_getset},
	{Py_tp_traverse, op_traverse},
	{Py_tp_clear, op_clear},
	{Py_tp_dealloc, op_dealloc},
	{Py_am_await, op_await},
	{0, NULL},
};
PyType_Spec op_spec = {"gx.Op", sizeof(struct op), 0,
		       Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
		       op_slots};
