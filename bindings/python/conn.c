/* SPDX-License-Identifier: Apache-2.0 */
/* gx.Connection and gx.Region. */
#include "gxpy.h"

#include <string.h>

#define NOTES_MAX     1024	     /* of notify() under way to one peer */
#define NOTES_WAIT_NS (1000 * MS_NS) /* for one to end */
#define NOTES_LOOK_NS (20 * MS_NS)   /* in a call, where that has passed */

/* The context's list holds it until it is closed. On failure the connection is closed. */
struct conn *conn_make(struct context *c, struct gx_conn *conn, uintptr_t number)
{
	struct conn *k = (struct conn *)PyType_GenericAlloc(conn_type, 0);

	if (k) {
		Py_IncRef((PyObject *)c);
		k->ctx = c;
		k->conn = conn;
		k->number = number;
		if (!PyList_Append(c->conns, (PyObject *)k))
			return k;
		Py_DECREF(k);
	}
	gx_conn_close(conn);
	return NULL;
}

int conn_check(struct conn *k)
{
	if (context_check(k->ctx))
		return -1;
	if (k->conn)
		return 0;
	if (k->end.size)
		fail(-ENOTCONN, k->end.text, k->end.reason);
	else
		fail(-ENOTCONN, "the connection was closed", GX_REASON_CLOSED);
	return -1;
}

int conn_look(const struct conn *k, struct gx_conn_info *info)
{
	struct context *c = k->ctx;

	if (k->end.size)
		*info = k->end;
	if (k->end.size || !k->conn || !c->gx || c->closing || c->fork != fork_count)
		return k->end.size ? 0 : -1;
	info->size = sizeof(*info);
	return gx_conn_info(k->conn, info);
}

/* In slices, so that signals come through and close() of another thread is seen. */
int conn_wait(struct conn *k, uint64_t for_ns)
{
	struct context *c = k->ctx;
	uint64_t from = gx_now();
	int ret;

	do {
		struct gx_conn *conn = k->conn;

		if (conn_check(k))
			return -1;
		WITHOUT_GIL(c, ret = gx_conn_wait(conn, 20 * MS_NS));
		if (PyErr_CheckSignals())
			return -1;
	} while (ret == -EINPROGRESS && gx_now() - from < for_ns);
	if (ret) {
		struct gx_conn_info info = GX_INIT(info);

		if (!conn_look(k, &info) && info.state == GX_CONN_STATE_DOWN)
			fail(ret, info.text, info.reason);
		else
			fail(ret == -EINPROGRESS ? -ETIMEDOUT : ret, "the connection is not up yet",
			     GX_REASON_NONE);
	}
	return ret ? -1 : 0;
}

void conn_end(struct conn *k)
{
	struct gx_conn *conn = k->conn;
	PyObject *list = k->ctx->conns;

	if (!conn || !k->ctx->gx || k->ctx->closing)
		return;
	k->conn = NULL;
	gx_conn_close(conn);
	for (Py_ssize_t i = PyList_Size(list); i-- > 0;)
		if (PyList_GetItem(list, i) == (PyObject *)k &&
		    PyList_SetSlice(list, i, i + 1, NULL))
			PyErr_Clear();
}

static PyObject *conn_close(PyObject *self, PyObject *unused)
{
	struct conn *k = (struct conn *)self;

	if (!k->conn)
		Py_RETURN_NONE;
	if (context_check(k->ctx))
		return NULL;
	op_linger(k->ctx);
	conn_end(k); /* if no other thread was faster */
	Py_RETURN_NONE;
}

static PyObject *conn_aclose(PyObject *self, PyObject *unused)
{
	return aio_call("aclose", self);
}

/* An error of the body is what is told. */
static PyObject *conn_exit(PyObject *self, PyObject *args)
{
	PyObject *ret = conn_close(self, NULL);

	if (ret || PyTuple_GetItem(args, 0) == Py_None)
		return ret;
	PyErr_Clear();
	Py_RETURN_NONE;
}

static PyObject *conn_enter(PyObject *self, PyObject *unused)
{
	Py_IncRef((PyObject *)self);
	return self;
}

int key_of(PyObject *o, void *out)
{
	struct gx_key *key = out;
	const char *bytes;
	Py_ssize_t len;

	if (!PyArg_Parse(o, "y#;a key is bytes, and a region's name is a str", &bytes, &len))
		return 0;
	if (len == sizeof(key->bytes))
		memcpy(key->bytes, bytes, sizeof(key->bytes));
	else
		fail(-EINVAL, "a key has 64 bytes", GX_REASON_NONE);
	return len == sizeof(key->bytes);
}

static PyObject *conn_region(PyObject *self, PyObject *what)
{
	struct conn *k = (struct conn *)self;
	struct region *r;
	struct gx_key key;
	int ret;

	if (conn_check(k))
		return NULL;
	r = (struct region *)PyType_GenericAlloc(region_type, 0);
	if (!r)
		return NULL;
	r->r.size = sizeof(r->r);
	if (PyUnicode_Check(what)) {
		const char *name = PyUnicode_AsUTF8AndSize(what, NULL);

		ret = name ? gx_conn_region(k->conn, name, 0, &r->r) : -EINVAL;
	} else {
		ret = key_of(what, &key) ? gx_conn_key(k->conn, &key, &r->r) : -EINVAL;
	}
	if (ret && !PyErr_Occurred())
		fail_call(ret);
	if (ret)
		Py_CLEAR(r);
	return (PyObject *)r;
}

/* Those that a peer never takes fill the queue, which all peers share. Return: there is room; -1: raised. */
static int notes_room(struct conn *k)
{
	uint64_t look_ns = gx_now() + NOTES_LOOK_NS, now;

	while (k->nr_notes >= NOTES_MAX) {
		if (op_poll(k->ctx) || conn_check(k))
			return -1;
		if (k->nr_notes < NOTES_MAX)
			break;
		now = gx_now();
		if (now - k->note_ns >= NOTES_WAIT_NS && now >= look_ns) {
			fail(-ETIMEDOUT,
			     "the peer takes no notifications: 1,024 to it are under way, and none has ended in the last second",
			     GX_REASON_NONE);
			return -1;
		}
		if (turn_rest(k->ctx, k->note_ns))
			return -1;
	}
	return 0;
}

static PyObject *conn_notify(PyObject *self, PyObject *args)
{
	struct conn *k = (struct conn *)self;
	const char *data;
	Py_ssize_t len;

	if (!PyArg_ParseTuple(args, "y#", &data, &len) || conn_check(k))
		return NULL;
	if (len > 4096)
		return fail(-EMSGSIZE, "a notification has at most 4,096 bytes", GX_REASON_NONE);
	if (notes_room(k) || op_post_plain(k, &(struct gx_op){.kind = GX_OP_PUT,
							      .flags = GX_OP_NOTE,
							      .note = data,
							      .note_len = (uint32_t)len,
							      .user = k->number << 1 | 1}))
		return NULL;
	k->ctx->nr_sending++;
	k->nr_notes++;
	k->note_ns = gx_now();
	Py_RETURN_NONE;
}

static PyObject *conn_info(PyObject *self, PyObject *unused)
{
	static const char *const states[] = {"connecting", "up", "down"};
	struct conn *k = (struct conn *)self;
	struct gx_conn_info i = GX_INIT(i);

	if (context_check(k->ctx) || (conn_look(k, &i) && conn_check(k)))
		return NULL;
	return Py_BuildValue("{s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:I,s:I,s:O}", "state",
			     states[i.state], "link", i.link, "port", i.port, "auth", i.auth, "why",
			     i.why, "peer", i.peer, "reason", gx_reason_name(i.reason), "text",
			     i.text, "lanes", i.lanes, "pid", i.peer_pid, "same_host",
			     i.same_host ? Py_True : Py_False);
}

static PyObject *conn_repr(PyObject *self)
{
	struct conn *k = (struct conn *)self;
	struct gx_conn_info i = GX_INIT(i);

	if (conn_look(k, &i))
		return PyUnicode_FromString("<gx.Connection closed>");
	if (i.state == GX_CONN_STATE_DOWN)
		return PyUnicode_FromFormat("<gx.Connection to %s, down: %s>", i.peer, i.text);
	return PyUnicode_FromFormat("<gx.Connection to %s by link %s: %s>", i.peer, i.link, i.why);
}

static int conn_traverse(PyObject *self, visitproc visit, void *arg)
{
	Py_VISIT(Py_TYPE(self));
	Py_VISIT(((struct conn *)self)->ctx);
	return 0;
}

static int conn_clear(PyObject *self)
{
	struct conn *k = (struct conn *)self;

	k->conn = NULL; /* the context's end closes what is left */
	Py_CLEAR(k->ctx);
	return 0;
}

static PyMethodDef conn_methods[] = {
	{"close", conn_close, METH_NOARGS,
	 "close($self, /)\n--\n\n"
	 "End the connection, behind its notifications. Operations under way fail: gx.Canceled."},
	{"aclose", conn_aclose, METH_NOARGS, "aclose($self, /)\n--\n\nAwait close()."},
	{"__enter__", conn_enter, METH_NOARGS, NULL},
	{"__exit__", conn_exit, METH_VARARGS, NULL},
	{"region", conn_region, METH_O,
	 "region($self, what, /)\n--\n\n"
	 "The peer's memory behind a key (64 bytes) that it gave, or behind a name (str) that it shared\n"
	 "before this connection came up."},
	{"notify", conn_notify, METH_VARARGS,
	 "notify($self, data, /)\n--\n\n"
	 "Send a notification of at most 4,096 bytes, behind what was posted before on this connection.\n\n"
	 "A peer that takes none holds up its own after 64, and what is posted behind them. gx.Timeout: 1,024\n"
	 "are under way, and the peer took none for a second."},
	{"info", conn_info, METH_NOARGS,
	 "info($self, /)\n--\n\n"
	 "What was agreed, and why, as a dict: state, link, port, why, peer, auth, lanes, pid, same_host,\n"
	 "and of one that is down reason and text."},
	{"put", KW(op_put),
	 "put($self, /, block, region, offset=0, notify=None, *, rows=None, into=None)\n--\n\n"
	 "Write a block into the peer's region; return the gx.Op at once.\n\n"
	 "block: see docs/python.md, Memory; it is read until the Op is done, as it lies, with gaps too.\n"
	 "offset: in the region, in bytes. notify: bytes that the peer gets behind the data. rows: an index\n"
	 "array; then block[rows] is written. into: a gx.view, how the bytes lie there; None: one after\n"
	 "the other."},
	{"get", KW(op_get),
	 "get($self, /, block, region, offset=0, notify=None, *, rows=None, out_of=None)\n--\n\n"
	 "Read a part of the peer's region, as long as the block is, into it; return the gx.Op at once.\n\n"
	 "block: memory that may be written. notify: bytes that the peer gets when the block has come. rows:\n"
	 "block[rows] is read into. out_of: a gx.view, how the bytes lie there; None: one after the other."},
	{"put_many", KW(op_put_many),
	 "put_many($self, /, blocks, region, offsets, notify=None)\n--\n\n"
	 "Many puts as one operation, with one end and one notification.\n\n"
	 "region: one, or a list with one for each block. offsets: numbers, or an index array of numpy\n"
	 "or torch. An error names the block that failed first."},
	{"get_many", KW(op_get_many),
	 "get_many($self, /, blocks, region, offsets, notify=None)\n--\n\n"
	 "Many gets as one operation; the arguments are as those of put_many()."},
	{NULL},
};
static PyType_Slot conn_slots[] = {
	{Py_tp_methods, conn_methods},	 {Py_tp_traverse, conn_traverse}, {Py_tp_clear, conn_clear},
	{Py_tp_dealloc, object_dealloc}, {Py_tp_repr, conn_repr},	  {0, NULL},
};
PyType_Spec conn_spec = {
	"gx.Connection", sizeof(struct conn), 0,
	Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, conn_slots};

/* ---- Regions ---- */

static PyObject *region_repr(PyObject *self)
{
	struct gx_region *r = &((struct region *)self)->r;

	return PyUnicode_FromFormat("<gx.Region '%s' %llu bytes, device %d>", r->name,
				    (unsigned long long)r->len,
				    r->kind == GX_MEM_HOST ? -1 : r->device);
}

static void region_dealloc(PyObject *self)
{
	PyTypeObject *t = Py_TYPE(self);

	((freefunc)PyType_GetSlot(t, Py_tp_free))(self);
	Py_DECREF(t);
}

static PyMemberDef region_members[] = {
	{"addr", T_ULONGLONG, offsetof(struct region, r.addr), READONLY, NULL},
	{"nbytes", T_ULONGLONG, offsetof(struct region, r.len), READONLY, NULL},
	{"access", T_UINT, offsetof(struct region, r.access), READONLY, NULL},
	{NULL},
};
static PyType_Slot region_slots[] = {
	{Py_tp_members, region_members},
	{Py_tp_repr, region_repr},
	{Py_tp_dealloc, region_dealloc},
	{0, NULL},
};
PyType_Spec region_spec = {"gx.Region", sizeof(struct region), 0,
			   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, region_slots};
