/* SPDX-License-Identifier: Apache-2.0 */
/* gx.Memory: memory that gx knows, the caller's or gx's own, and keys for parts of it. */
#include "gxpy.h"

#include <stdlib.h>
#include <string.h>

/* The first of .mems that begins after @addr. */
static size_t mems_behind(const struct context *c, uint64_t addr)
{
	size_t lo = 0, hi = c->nr_mems;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (c->mems[mid]->addr <= addr)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static void mems_top(struct context *c, size_t from)
{
	uint64_t top = from ? c->mems[from - 1]->top : 0;

	for (size_t i = from; i < c->nr_mems; i++) {
		struct memory *m = c->mems[i];

		top = m->addr + m->len > top ? m->addr + m->len : top;
		m->top = top;
	}
}

static int memory_link(struct memory *m)
{
	struct context *c = m->ctx;
	size_t at = mems_behind(c, m->addr);

	if (c->nr_mems == c->room_mems) {
		size_t room = c->room_mems ? 2 * c->room_mems : 64;
		struct memory **mems = realloc(c->mems, room * sizeof(*mems));

		if (!mems) {
			PyErr_NoMemory();
			return -1;
		}
		c->mems = mems;
		c->room_mems = room;
	}
	memmove(&c->mems[at + 1], &c->mems[at], (c->nr_mems++ - at) * sizeof(*c->mems));
	c->mems[at] = m;
	mems_top(c, at);
	return 0;
}

static void memory_pin(struct memory *m)
{
	if (!m->pinned)
		Py_IncRef((PyObject *)m);
	m->pinned = true;
}

void memory_unlink(struct memory *m)
{
	struct context *c = m->ctx;

	for (size_t i = mems_behind(c, m->addr); i-- > 0;)
		if (c->mems[i] == m) {
			c->nr_mems--;
			memmove(&c->mems[i], &c->mems[i + 1], (c->nr_mems - i) * sizeof(*c->mems));
			mems_top(c, i);
			break;
		}
	if (m->pinned) {
		m->pinned = false;
		Py_DecRef((PyObject *)m);
	}
}

void memory_drop(struct memory *m)
{
	m->mem = NULL;
	place_close(&m->place);
}

struct memory *memory_find(struct context *c, uint64_t addr, uint64_t len)
{
	for (size_t i = mems_behind(c, addr); i-- > 0;) {
		struct memory *m = c->mems[i];

		if (m->top < addr + len)
			break;
		if (m->mem && addr - m->addr <= m->len && len <= m->len - (addr - m->addr))
			return m;
	}
	return NULL;
}

/* Blocks until no core uses it. Return: 0, -errno of gx. */
static int memory_end(struct memory *m)
{
	struct context *c = m->ctx;
	struct gx_mem *mem = m->mem;
	int ret = 0;

	if (!mem)
		return 0;
	m->mem = NULL; /* no other thread begins with it */
	WITHOUT_GIL(c, ret = gx_mem_free(mem));
	if (ret)
		m->mem = mem;
	else
		memory_drop(m);
	return ret;
}

static int mem_new(struct context *c, struct memory *m, struct place *p, uint64_t len)
{
	enum gx_mem_kind kind = m->device < 0 ? GX_MEM_HOST : GX_MEM_CUDA;
	int device = m->device < 0 ? 0 : m->device, ret;

	if (m->ours)
		WITHOUT_GIL(c, ret = gx_mem_alloc(c->gx, kind, device, len, &m->mem));
	else
		WITHOUT_GIL(c, ret = gx_mem_reg(c->gx, kind, device, (void *)(uintptr_t)p->addr,
						p->len, &m->mem));
	return ret;
}

/* @obj NULL: gx allocates @len bytes. */
PyObject *memory_make(struct context *c, PyObject *obj, uint64_t len, int device)
{
	struct memory *m = (struct memory *)PyType_GenericAlloc(memory_type, 0);
	int ret;

	if (!m)
		return NULL;
	m->device = device;
	m->ours = !obj;
	if (obj) {
		if (place_open(obj, &m->place, NULL)) {
			Py_DECREF(m);
			return NULL;
		}
		m->device = m->place.device;
	}
	ret = mem_new(c, m, &m->place, len);
	if (ret) {
		fail_call(ret);
		Py_DECREF(m);
		return NULL;
	}
	Py_IncRef((PyObject *)c);
	m->ctx = c;
	m->addr = (uint64_t)(uintptr_t)gx_mem_addr(m->mem);
	m->len = gx_mem_len(m->mem);
	if (memory_link(m))
		Py_CLEAR(m);
	else if (obj)
		memory_pin(m);
	return (PyObject *)m;
}

static int memory_check(struct memory *m)
{
	if (context_check(m->ctx))
		return -1;
	if (m->mem)
		return 0;
	return refuse(PyExc_ValueError, "this memory was freed");
}

static PyObject *memory_free(PyObject *self, PyObject *unused)
{
	struct memory *m = (struct memory *)self;
	int ret;

	if (!m->mem)
		Py_RETURN_NONE;
	if (context_check(m->ctx))
		return NULL;
	if (m->views)
		return PyErr_Format(PyExc_BufferError,
				    "a memoryview or an array still uses this memory");
	ret = memory_end(m);
	if (ret)
		return fail_call(ret);
	memory_unlink(m);
	Py_RETURN_NONE;
}

static int access_check(const struct memory *m, unsigned access)
{
	if (!m->place.readonly || !(access & GX_ACCESS_PUT))
		return 0;
	fail(-EACCES, "this memory is read only, so peers may get it alone: access is gx.GET",
	     GX_REASON_NONE);
	return -1;
}

static unsigned access_of(const struct memory *m)
{
	return m->place.readonly ? GX_ACCESS_GET : GX_ACCESS_PUT | GX_ACCESS_GET;
}

static PyObject *memory_share(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"name", "access", NULL};
	struct memory *m = (struct memory *)self;
	uint32_t access = access_of(m);
	const char *name;
	int ret;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "s|O&", names, &name, u32_of, &access) ||
	    memory_check(m) || access_check(m, access))
		return NULL;
	ret = gx_mem_share(m->mem, name, access);
	if (ret)
		return fail_call(ret);
	memory_pin(m);
	Py_RETURN_NONE;
}

static PyObject *memory_key(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"access", "off", "len", "lease", "conn", NULL};
	struct memory *m = (struct memory *)self;
	struct gx_key_opts o = GX_INIT(o);
	PyObject *conn = NULL;
	double lease = 0;
	struct gx_key key;
	int ret;

	o.access = access_of(m);
	if (!PyArg_ParseTupleAndKeywords(args, kw, "|O&O&O&dO", names, u32_of, &o.access, u64_of,
					 &o.off, u64_of, &o.len, &lease, &conn) ||
	    memory_check(m) || access_check(m, o.access))
		return NULL;
	if (conn && conn != Py_None) {
		if (!PyObject_TypeCheck(conn, conn_type) || !((struct conn *)conn)->conn)
			return PyErr_Format(PyExc_TypeError, "conn is an open gx.Connection");
		o.conn = ((struct conn *)conn)->conn;
	}
	if (!(lease >= 0 && lease < 1e9))
		return PyErr_Format(PyExc_ValueError, "lease is in seconds from now, 0: none");
	o.until_ns = lease > 0 ? gx_now() + (uint64_t)(lease * 1e9) : 0;
	ret = gx_mem_key(m->mem, &o, &key);
	if (ret)
		return fail_call(ret);
	memory_pin(m);
	return PyBytes_FromStringAndSize((const char *)key.bytes, sizeof(key.bytes));
}

static int memory_getbuffer(PyObject *self, Py_buffer *view, int flags)
{
	struct memory *m = (struct memory *)self;

	view->obj = NULL;
	if (memory_check(m))
		return -1;
	if (m->device >= 0)
		return refuse(PyExc_BufferError, "this memory is a GPU's");
	if (PyBuffer_FillInfo(view, self, (void *)(uintptr_t)m->addr, (Py_ssize_t)m->len,
			      m->place.readonly, flags))
		return -1;
	m->views++;
	return 0;
}

static void memory_releasebuffer(PyObject *self, Py_buffer *view)
{
	((struct memory *)self)->views--;
}

/* ---- For torch, cupy and numpy, which see it in place ---- */

/* By any thread, also one that outlives Python. */
static void dlpack_end(struct dl_managed *dl)
{
	PyGILState_STATE gil;

	if (!Py_IsInitialized())
		return;
	gil = PyGILState_Ensure();
	((struct memory *)dl->ctx)->views--;
	Py_DecRef(dl->ctx);
	PyGILState_Release(gil);
	free(dl);
}

/* Who takes the tensor out of the capsule renames that. */
static void capsule_end(PyObject *cap)
{
	if (PyCapsule_IsValid(cap, "dltensor"))
		dlpack_end(PyCapsule_GetPointer(cap, "dltensor"));
}

static PyObject *memory_dlpack_device(PyObject *self, PyObject *unused)
{
	int device = ((struct memory *)self)->device;

	return Py_BuildValue("(ii)", device < 0 ? DL_CPU : DL_CUDA, device < 0 ? 0 : device);
}

/* As before DLPack 1.0, which all read. No stream waits: an operation is done when its bytes are
 * there. */
static PyObject *memory_dlpack(PyObject *self, PyObject *args, PyObject *kw)
{
	static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
	PyObject *where = Py_None, *copy = NULL, *any, *cap;
	struct memory *m = (struct memory *)self;
	int type = m->device < 0 ? DL_CPU : DL_CUDA, id = m->device < 0 ? 0 : m->device;
	int want_type = type, want_id = id;
	struct dl_managed *dl;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "|$OOOO", names, &any, &any, &where, &copy) ||
	    (where != Py_None && !PyArg_Parse(where, "(ii)", &want_type, &want_id)) ||
	    memory_check(m))
		return NULL;
	if (want_type != type || want_id != id || copy == Py_True || m->place.readonly)
		return PyErr_Format(PyExc_BufferError,
				    "gx lends this memory where it is, to be written too");
	dl = calloc(1, sizeof(*dl));
	cap = dl ? PyCapsule_New(dl, "dltensor", capsule_end) : PyErr_NoMemory();
	if (!cap) {
		free(dl);
		return NULL;
	}
	*dl = (struct dl_managed){{(void *)(uintptr_t)m->addr, type, id, 1, .code = 1, .bits = 8,
				   .lanes = 1, .shape = (int64_t *)&m->len},
				  m,
				  dlpack_end};
	m->views++;
	Py_IncRef(self);
	return cap;
}

/* @cuda NULL: that of the host */
static PyObject *memory_interface(PyObject *self, void *cuda)
{
	struct memory *m = (struct memory *)self;

	if ((m->device < 0) == !!cuda)
		return PyErr_Format(PyExc_AttributeError,
				    cuda ? "this memory is the host's" : "this memory is a GPU's");
	if (memory_check(m))
		return NULL;
	return Py_BuildValue("{s:(K),s:s,s:(KO),s:i}", "shape", m->len, "typestr", "|u1", "data",
			     m->addr, m->place.readonly ? Py_True : Py_False, "version", 3);
}

static int memory_traverse(PyObject *self, visitproc visit, void *arg)
{
	struct memory *m = (struct memory *)self;

	Py_VISIT(Py_TYPE(self));
	Py_VISIT(m->ctx);
	Py_VISIT(m->place.owner);
	if (m->place.viewed)
		Py_VISIT(m->place.view.obj);
	return 0;
}

static int memory_clear(PyObject *self)
{
	struct memory *m = (struct memory *)self;

	if (m->ctx && m->ctx->fork == fork_count && m->mem && !m->ctx->closing) {
		/* A core that stands may still use it: then its owner stays for good. */
		if (memory_end(m)) {
			Py_IncRef((PyObject *)m->ctx);
			m->place.viewed = false;
			m->place.owner = NULL;
		}
	}
	if (m->ctx)
		memory_unlink(m);
	place_close(&m->place);
	Py_CLEAR(m->ctx);
	return 0;
}

static PyObject *memory_repr(PyObject *self)
{
	struct memory *m = (struct memory *)self;

	return PyUnicode_FromFormat("<gx.Memory %llu bytes, device %d%s>",
				    (unsigned long long)m->len, m->device, m->mem ? "" : ", freed");
}

static PyMethodDef memory_methods[] = {
	{"free", memory_free, METH_NOARGS,
	 "free($self, /)\n--\n\n"
	 "Withdraw all keys, and let the owner go. Blocks until no peer reaches it.\n\n"
	 "BufferError: an array or a memoryview over this memory is still there."},
	{"share", KW(memory_share),
	 "share($self, /, name, access=...)\n--\n\n"
	 "Give it a name, for all peers that connect from here on: Connection.region(name)."},
	{"key", KW(memory_key),
	 "key($self, /, access=..., off=0, len=0, lease=0, conn=None)\n--\n\n"
	 "A key for a part of it: 64 bytes, for any channel; peers use it by Connection.region().\n\n"
	 "access: gx.PUT, gx.GET or both. len 0: all from off on. lease: seconds until it ends; 0: until\n"
	 "Context.withdraw() or free(). conn: this peer alone may use it."},
	{"__dlpack__", KW(memory_dlpack), NULL},
	{"__dlpack_device__", memory_dlpack_device, METH_NOARGS, NULL},
	{NULL},
};
static PyGetSetDef memory_getset[] = {
	{"__array_interface__", memory_interface, NULL, NULL, NULL},
	{"__cuda_array_interface__", memory_interface, NULL, NULL, "cuda"},
	{NULL}};
static PyMemberDef memory_members[] = {
	{"addr", T_ULONGLONG, offsetof(struct memory, addr), READONLY, NULL},
	{"nbytes", T_ULONGLONG, offsetof(struct memory, len), READONLY, NULL},
	{"device", T_INT, offsetof(struct memory, device), READONLY, NULL},
	{NULL},
};
static PyType_Slot memory_slots[] = {
	{Py_tp_methods, memory_methods},
	{Py_tp_members, memory_members},
	{Py_tp_getset, memory_getset},
	{Py_tp_traverse, memory_traverse},
	{Py_tp_clear, memory_clear},
	{Py_tp_dealloc, object_dealloc},
	{Py_tp_repr, memory_repr},
	{Py_bf_getbuffer, memory_getbuffer},
	{Py_bf_releasebuffer, memory_releasebuffer},
	{0, NULL},
};
PyType_Spec memory_spec = {
	"gx.Memory", sizeof(struct memory), 0,
	Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, memory_slots};
