/* SPDX-License-Identifier: Apache-2.0 */
/* Where the bytes of a Python object lie: by the buffer protocol, DLPack, what gx/_place.py reads, or a
 * tuple (pointer, bytes, device). Neither numpy nor torch is imported. */
#include "gxpy.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct dl_versioned {
	uint32_t major, minor;
	void *ctx;
	void (*deleter)(struct dl_versioned *);
	uint64_t flags; /* 1: read only */
	struct dl_tensor t;
};

enum { DL_HANDLE = 3 }; /* a type of elements: pointers of the program */

int u64_of(PyObject *o, void *out)
{
	PyObject *n = PyNumber_Index(o);
	uint64_t v = n ? PyLong_AsUnsignedLongLong(n) : 0;

	Py_XDECREF(n);
	if (PyErr_Occurred())
		return 0;
	*(uint64_t *)out = v;
	return 1;
}

int u32_of(PyObject *o, void *out)
{
	uint64_t v;

	if (!u64_of(o, &v))
		return 0;
	if (v > UINT32_MAX) {
		PyErr_SetString(PyExc_OverflowError, "a number here is at most 4,294,967,295");
		return 0;
	}
	*(uint32_t *)out = (uint32_t)v;
	return 1;
}

int ns_of(PyObject *o, void *out)
{
	double s = o == Py_None ? 0 : PyFloat_AsDouble(o);

	if (!PyErr_Occurred() && s != s)
		PyErr_SetString(PyExc_ValueError, "a time is in seconds, or None: without an end");
	if (PyErr_Occurred())
		return 0;
	s = s < 0 ? 0 : s;
	*(uint64_t *)out = o == Py_None || s > 1e9 ? UINT64_MAX : (uint64_t)(s * 1e9);
	return 1;
}

int refuse(PyObject *type, const char *why)
{
	PyErr_SetString(type, why);
	return -1;
}

static int refuse_objects(void)
{
	return refuse(PyExc_BufferError,
		      "gx moves bytes, and these are references to objects of this process: "
		      "pickle them");
}

static int refuse_strides(void)
{
	return refuse(
		PyExc_BufferError,
		"this call takes contiguous memory, and this has gaps or another order: make a "
		"contiguous copy; put() and get() take it as it lies");
}

bool layout_is_plain(const struct layout *l)
{
	int64_t n = (int64_t)l->item_b;
	bool gaps = false;

	for (int i = l->ndim; i-- > 0; n *= l->shape[i]) {
		if (!l->shape[i])
			return true;
		gaps |= l->shape[i] > 1 && l->strides[i] != n;
	}
	return !gaps;
}

/* @strides NULL: without gaps; in bytes, if @unit_b is 1. */
static int layout_set(struct layout *l, uint64_t item_b, int ndim, const int64_t *shape,
		      const int64_t *strides, int64_t unit_b)
{
	int64_t n = (int64_t)item_b;
	bool bad = ndim < 0 || ndim > LAYOUT_DIMS || n < 0;

	*l = (struct layout){.ndim = ndim, .item_b = item_b};
	for (int i = ndim; !bad && i-- > 0;) {
		l->shape[i] = shape[i];
		l->strides[i] = n;
		bad = shape[i] < 0 || __builtin_mul_overflow(n, shape[i], &n) ||
		      (strides && __builtin_mul_overflow(strides[i], unit_b, &l->strides[i]));
	}
	return bad ? refuse(PyExc_BufferError, "this shape has no size, or more than 64 axes") : 0;
}

/* At most LAYOUT_DIMS numbers of Python. -1: raised */
static int numbers_take(PyObject *o, int64_t *out)
{
	PyObject *list = PySequence_List(o);
	Py_ssize_t n = list ? PyList_Size(list) : -1;

	if (n > LAYOUT_DIMS)
		n = refuse(PyExc_BufferError, "more than 64 axes");
	for (Py_ssize_t i = 0; i < n; i++) {
		PyObject *v = PyNumber_Index(PyList_GetItem(list, i));

		out[i] = v ? PyLong_AsLongLong(v) : -1;
		Py_XDECREF(v);
		if (PyErr_Occurred())
			n = -1;
	}
	Py_XDECREF(list);
	return (int)n;
}

int layout_of(struct layout *l, uint64_t item_b, PyObject *shape, PyObject *strides)
{
	int64_t n[LAYOUT_DIMS], s[LAYOUT_DIMS];
	int ndim = numbers_take(shape, n),
	    nr = strides == Py_None ? ndim : numbers_take(strides, s);

	if (ndim < 0 || nr < 0)
		return -1;
	if (nr == ndim && item_b &&
	    !layout_set(l, item_b, ndim, n, strides == Py_None ? NULL : s, 1))
		return 0;
	PyErr_Format(PyExc_ValueError,
		     "a shape of %d axes with %d strides, itemsize %llu, or of too many bytes",
		     ndim, nr, (unsigned long long)item_b);
	return -1;
}

static int place_tensor(const struct dl_tensor *t, struct place *p, struct layout *l)
{
	uint64_t bits = (uint64_t)t->lanes * t->bits, unit = bits % 8 ? bits : bits / 8, n = unit;

	if (t->device_type != DL_CPU && t->device_type != DL_CUDA &&
	    t->device_type != DL_CUDA_HOST) {
		PyErr_Format(PyExc_BufferError, "gx knows no DLPack device of type %d",
			     t->device_type);
		return -1;
	}
	if (t->code == DL_HANDLE)
		return refuse_objects();
	if (layout_set(l, unit, t->ndim, t->shape, t->strides, (int64_t)unit))
		return -1;
	for (int i = 0; i < t->ndim; i++)
		n *= (uint64_t)t->shape[i];
	if (t->device_type == DL_CUDA && t->device_id < 0)
		return refuse(PyExc_BufferError, "this DLPack tensor has no device");
	p->addr = (uint64_t)(uintptr_t)t->data + t->byte_offset;
	p->len = bits % 8 ? n / 8 : n;
	p->device = t->device_type == DL_CUDA ? t->device_id : -1;
	if (bits % 8 && !layout_is_plain(l)) /* elements of less than a byte */
		return refuse_strides();
	if (bits % 8)
		return layout_set(l, 1, 1, &(int64_t){(int64_t)p->len}, NULL, 1);
	l->kind = t->lanes > 1 || bits > 64 ? 0 : t->code == 0 ? 'i' : t->code == 1 ? 'u' : 0;
	return 0;
}

/* By keyword, as the array API standard has them, and no copy: gx wants the memory itself. Objects of
 * before DLPack 1.0 know a stream alone. Stream -1: no synchronization. The caller has seen to it. */
static PyObject *dlpack_ask(PyObject *obj, int type)
{
	PyObject *call = PyObject_GetAttrString(obj, "__dlpack__"), *args = PyTuple_New(0);
	PyObject *old = type == DL_CUDA ? Py_BuildValue("{s:i}", "stream", -1) : PyDict_New();
	PyObject *new = Py_BuildValue("{s:(ii),s:O}", "max_version", 1, 0, "copy", Py_False);
	PyObject *cap = NULL;

	if (call && args && old && new && !PyDict_Update(new, old)) {
		cap = PyObject_Call(call, args, new);
		if (!cap && PyErr_ExceptionMatches(PyExc_TypeError)) {
			PyErr_Clear();
			cap = PyObject_Call(call, args, old);
		}
	}
	Py_XDECREF(new);
	Py_XDECREF(old);
	Py_XDECREF(args);
	Py_XDECREF(call);
	return cap;
}

/* The capsule stays with the place; its destructor gives the tensor back. 1: there is none, and raised. */
static int place_dlpack(PyObject *obj, struct place *p, struct layout *l)
{
	PyObject *where = PyObject_CallMethod(obj, "__dlpack_device__", NULL), *cap;
	int type, id, ret;

	if (!where)
		return 1;
	ret = PyArg_ParseTuple(where, "ii", &type, &id);
	Py_DECREF(where);
	if (!ret)
		return -1;
	cap = dlpack_ask(obj, type);
	if (!cap)
		return 1;
	p->owner = cap;
	if (PyCapsule_IsValid(cap, "dltensor_versioned")) {
		struct dl_versioned *v = PyCapsule_GetPointer(cap, "dltensor_versioned");

		if (v->major != 1) {
			PyErr_Format(PyExc_BufferError, "gx reads DLPack 1, and this is DLPack %u",
				     v->major);
			return -1;
		}
		p->readonly = v->flags & 1;
		return place_tensor(&v->t, p, l);
	}
	if (PyCapsule_IsValid(cap, "dltensor"))
		return place_tensor(PyCapsule_GetPointer(cap, "dltensor"), p, l);
	return refuse(PyExc_BufferError, "__dlpack__ gave no capsule of a tensor");
}

/* In the notation of struct and PEP 3118, where names of fields stand between colons. */
static bool has_objects(const char *format)
{
	bool name = false;

	for (; format && *format; format++) {
		name ^= *format == ':';
		if (*format == 'O' && !name)
			return true;
	}
	return false;
}

/* Of integers as this machine has them; else 0. */
static char int_kind(const char *format, uint64_t item_b)
{
	format += format && strchr("@=<", *format) && *format;
	if (!format || !*format || format[1] || item_b > 8)
		return 0;
	return strchr("bhilqn", *format) ? 'i' : strchr("BHILQN", *format) ? 'u' : 0;
}

static int place_view(PyObject *obj, struct place *p, struct layout *l)
{
	const Py_buffer *v = &p->view;

	if (PyObject_GetBuffer(obj, &p->view, PyBUF_FULL_RO))
		return 1;
	p->viewed = true;
	if (has_objects(v->format))
		return refuse_objects();
	for (int i = 0; v->suboffsets && i < v->ndim; i++)
		if (v->suboffsets[i] >= 0)
			return refuse_strides();
	p->addr = (uint64_t)(uintptr_t)v->buf;
	p->len = (uint64_t)v->len;
	p->readonly = v->readonly;
	if (layout_set(l, (uint64_t)v->itemsize, v->ndim, (const int64_t *)v->shape,
		       (const int64_t *)v->strides, 1))
		return -1;
	l->kind = int_kind(v->format, l->item_b);
	return 0;
}

/* (pointer, bytes[, device]): nothing is kept alive by it. */
static int place_tuple(PyObject *obj, struct place *p, struct layout *l)
{
	if (!PyArg_ParseTuple(obj, "O&O&|i;memory as a tuple is (pointer, bytes, device)", u64_of,
			      &p->addr, u64_of, &p->len, &p->device))
		return -1;
	p->raw = p->device == -1;
	if (p->device >= -1)
		return layout_set(l, 1, 1, (const int64_t *)&p->len, NULL, 1);
	return refuse(PyExc_ValueError, "the device of a tuple is -1 (host) or a CUDA ordinal");
}

/* By gx/_place.py. The error that is raised, if any, holds where it has nothing. */
static int place_other(PyObject *obj, struct place *p, struct layout *l)
{
	PyObject *type, *error, *trace, *m, *t, *owner, *shape, *strides;
	int readonly = 0, ret = -1;
	uint64_t item_b;

	PyErr_Fetch(&type, &error, &trace);
	m = PyImport_ImportModule("gx._place");
	t = m ? PyObject_CallMethod(m, "place", "O", obj) : NULL;
	Py_XDECREF(m);
	if (t == Py_None && type) {
		PyErr_Restore(type, error, trace);
		type = error = trace = NULL;
	} else if (t == Py_None) {
		PyErr_Format(PyExc_TypeError,
			     "memory is an object with the buffer protocol, DLPack or an array "
			     "interface, or a tuple (pointer, bytes, device), not %R",
			     Py_TYPE(obj));
	} else if (t &&
		   PyArg_ParseTuple(t, "O&O&ipOO&OO", u64_of, &p->addr, u64_of, &p->len, &p->device,
				    &readonly, &owner, u64_of, &item_b, &shape, &strides)) {
		p->readonly = readonly;
		p->owner = Py_NewRef(owner);
		ret = layout_of(l, item_b, shape, strides);
	}
	Py_XDECREF(t);
	Py_XDECREF(type);
	Py_XDECREF(error);
	Py_XDECREF(trace);
	return ret;
}

static int place_any(PyObject *obj, struct place *p, struct layout *l)
{
	int ret = 1;

	if (PyTuple_Check(obj))
		return place_tuple(obj, p, l);
	if (PyObject_CheckBuffer(obj))
		ret = place_view(obj, p, l);
	else if (PyObject_HasAttrString(obj, "__dlpack_device__"))
		ret = place_dlpack(obj, p, l);
	if (ret > 0 && (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_Exception)))
		ret = place_other(obj, p, l);
	return ret ? -1 : 0;
}

int place_open(PyObject *obj, struct place *p, struct layout *l)
{
	struct layout own;
	int ret;

	memset(p, 0, sizeof(*p));
	p->device = -1;
	ret = place_any(obj, p, l ? l : &own);
	if (!ret && !l && !layout_is_plain(&own))
		ret = refuse_strides();
	if (!ret && p->addr + p->len < p->addr) {
		PyErr_SetString(PyExc_ValueError, "memory ends at 2**64");
		ret = -1;
	}
	if (ret)
		place_close(p);
	return ret;
}

/* Is it all mapped so? For special mappings, and kernels before 5.14, which madvise() cannot tell apart. */
static bool is_mapped(uint64_t at, uint64_t end, bool write)
{
	unsigned long long from, to;
	char r, w;
	FILE *f = fopen("/proc/self/maps", "re");

	while (f && at < end && fscanf(f, "%llx-%llx %c%c%*[^\n]", &from, &to, &r, &w) == 4)
		if (at >= from && at < to && (write ? w == 'w' : r == 'r'))
			at = to;
	if (f)
		fclose(f);
	return at >= end;
}

int place_check(const struct place *p, bool write)
{
	uint64_t from = p->addr & -(uint64_t)sysconf(_SC_PAGESIZE), end = p->addr + p->len;

	if (!p->raw || !p->len)
		return 0;
	if (!madvise((void *)(uintptr_t)from, end - from,
		     write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) ||
	    (errno == EINVAL && is_mapped(from, end, write)))
		return 0;
	PyErr_Format(
		PyExc_ValueError,
		"this process may not %s %llu bytes at %p: the tuple's memory is not there, or no more",
		write ? "write" : "read", (unsigned long long)p->len, (void *)(uintptr_t)p->addr);
	return -1;
}

void place_close(struct place *p)
{
	if (p->viewed)
		PyBuffer_Release(&p->view);
	p->viewed = false;
	Py_CLEAR(p->owner);
}
