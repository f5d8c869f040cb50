/* SPDX-License-Identifier: Apache-2.0 */
/* gx.view, and arrays with strides: a shape becomes a struct gx_view, and two of these what gx_views_open()
 * prepares, once for all puts and gets with the same ones. */
#include "gxpy.h"

#include <stdlib.h>
#include <string.h>

struct view {
	PyObject_HEAD struct strided s;
	uint64_t off;
};

/* Owner: the context, and operations that are being posted. */
struct prepared {
	struct strided local;
	struct view *into; /* NULL: a plain range */
	struct gx_list *list;
	unsigned refs;
};

#define TOO_FAR "this view spans more than 2**63 bytes"
#define LEN_MAX (1ull << 36) /* of gx_views_open() */

/* ---- Rows ---- */

static int64_t number_at(const char *p, const struct layout *l)
{
	int64_t v = 0;

	memcpy(&v, p, l->item_b); /* little-endian, as all of gx */
	if (l->kind == 'i' && l->item_b < 8 && v >> (8 * l->item_b - 1))
		v -= 1ll << 8 * l->item_b;
	return v;
}

static int row_add(struct strided *s, uint32_t *rows, int64_t row, int64_t of)
{
	if (row >= 0 && row < of && row <= UINT32_MAX) {
		rows[s->w.nr_rows++] = (uint32_t)row;
		return 0;
	}
	PyErr_Format(PyExc_IndexError, "row %lld: the first axis has %lld", (long long)row,
		     (long long)of);
	return -1;
}

static uint32_t *rows_room(struct strided *s, int64_t n)
{
	uint32_t *rows = n <= GX_VIEW_ROWS_MAX ? malloc((size_t)(n + !n) * sizeof(*rows)) : NULL;

	if (n > GX_VIEW_ROWS_MAX)
		refuse(PyExc_ValueError, "at most 1,048,576 rows at a time");
	else if (!rows)
		PyErr_NoMemory();
	s->w.rows = rows;
	return rows;
}

/* Numbers of Python, one by one. */
static int rows_list(struct strided *s, PyObject *obj, int64_t of)
{
	PyObject *list = list_of_numbers(obj);
	uint32_t *rows = list ? rows_room(s, PyList_Size(list)) : NULL;
	int ret = rows ? 0 : -1;

	for (Py_ssize_t i = 0; !ret && i < PyList_Size(list); i++) {
		PyObject *o = PyList_GetItem(list, i), *n;
		int64_t row;

		if (PyBool_Check(o)) {
			PyErr_SetString(PyExc_TypeError,
					"rows are indices: of a mask its nonzero()");
			ret = -1;
			continue;
		}
		n = PyNumber_Index(o);
		row = n ? PyLong_AsLongLong(n) : 0;
		Py_XDECREF(n);
		ret = PyErr_Occurred() ? -1 : row_add(s, rows, row, of);
	}
	Py_XDECREF(list);
	return ret;
}

/* Index arrays of the host are read where they are. */
static int rows_take(struct strided *s, PyObject *obj, int64_t of)
{
	struct layout l;
	struct place p;
	uint32_t *rows;
	int ret = 0;

	if (PyTuple_Check(obj) || PyList_Check(obj))
		return rows_list(s, obj, of);
	if (place_open(obj, &p, &l)) {
		if (!PyErr_ExceptionMatches(PyExc_Exception))
			return -1;
		PyErr_Clear();
		return rows_list(s, obj, of);
	}
	if (!l.kind || l.ndim != 1 || p.device >= 0) {
		place_close(&p);
		return rows_list(s, obj, of);
	}
	rows = rows_room(s, l.shape[0]);
	ret = rows ? 0 : -1;
	for (int64_t i = 0; !ret && i < l.shape[0]; i++)
		ret = row_add(s, rows, number_at((char *)(uintptr_t)p.addr + i * l.strides[0], &l),
			      of);
	place_close(&p);
	return ret;
}

/* ---- Shapes ---- */

static bool extent_add(struct strided *s, uint64_t steps, int64_t stride)
{
	int64_t way;

	if (__builtin_mul_overflow(steps, stride, &way) ||
	    __builtin_add_overflow(s->span, (uint64_t)(way < 0 ? -way : way), &s->span) ||
	    s->span > INT64_MAX)
		return false;
	s->lo += way < 0 ? way : 0;
	return true;
}

/* Neighbouring axes without a gap are one, and the innermost of all without one is the run. */
static int axes_add(struct strided *s, const struct layout *l, int first)
{
	struct gx_view_dim dim[LAYOUT_DIMS];
	int axis[LAYOUT_DIMS];
	uint32_t n = 0;

	for (int i = first; i < l->ndim; i++) {
		uint64_t count = (uint64_t)l->shape[i];
		int64_t stride = l->strides[i];

		if (__builtin_mul_overflow(s->len, count, &s->len) ||
		    (count && !extent_add(s, count - 1, stride)))
			return refuse(PyExc_ValueError, TOO_FAR);
		if (count < 2)
			continue;
		if (n && dim[n - 1].stride_b == (int64_t)(count * (uint64_t)stride))
			count *= dim[--n].count;
		axis[n] = i;
		dim[n++] = (struct gx_view_dim){count, stride};
	}
	if (n && dim[n - 1].stride_b == (int64_t)s->w.run_b)
		s->w.run_b *= dim[--n].count;
	if (n > GX_VIEW_DIMS)
		return refuse(
			PyExc_ValueError,
			"more than 4 axes, where neighbours without a gap are one: move it in parts");
	memcpy(s->w.dim, dim, n * sizeof(*dim));
	memcpy(s->axis, axis, n * sizeof(*axis));
	s->w.nr_dims = n;
	return 0;
}

static int rows_add(struct strided *s, const struct layout *l, PyObject *rows)
{
	int64_t min = INT64_MAX, max = 0, first;

	if (!l->ndim || l->strides[0] < 0)
		return refuse(PyExc_ValueError,
			      "rows are of a first axis with a stride of 0 or more");
	if (rows_take(s, rows, l->shape[0]))
		return -1;
	for (uint32_t i = 0; i < s->w.nr_rows; i++) {
		min = s->w.rows[i] < min ? s->w.rows[i] : min;
		max = s->w.rows[i] > max ? s->w.rows[i] : max;
	}
	s->w.row_b = (uint64_t)l->strides[0];
	if (__builtin_mul_overflow(s->len, (uint64_t)s->w.nr_rows, &s->len))
		return refuse(PyExc_ValueError, TOO_FAR);
	if (!s->w.nr_rows)
		return 0;
	if (!extent_add(s, (uint64_t)(max - min), l->strides[0]) ||
	    __builtin_mul_overflow(min, l->strides[0], &first) ||
	    __builtin_add_overflow(s->lo, first, &s->lo))
		return refuse(PyExc_ValueError, TOO_FAR);
	return 0;
}

static void strided_end(struct strided *s)
{
	free((void *)(uintptr_t)s->w.rows);
	s->w.rows = NULL;
}

static int strided_take(struct strided *s, const struct layout *l, PyObject *rows)
{
	int ret;

	*s = (struct strided){.w.run_b = l->item_b, .len = l->item_b, .span = l->item_b};
	ret = axes_add(s, l, rows != Py_None);
	if (!ret && rows != Py_None)
		ret = rows_add(s, l, rows);
	if (!ret && s->len > LEN_MAX)
		ret = refuse(PyExc_ValueError, "a view has at most 64 GiB");
	if (ret)
		strided_end(s);
	return ret;
}

/* ---- Prepared, and kept ---- */

static bool strided_same(const struct strided *a, const struct strided *b)
{
	struct gx_view v = a->w, w = b->w;

	v.rows = w.rows = NULL;
	return !memcmp(&v, &w, sizeof(v)) && !memcmp(a->axis, b->axis, sizeof(a->axis)) &&
	       (!v.nr_rows || !memcmp(a->w.rows, b->w.rows, v.nr_rows * sizeof(*a->w.rows)));
}

static bool prepared_is(const struct prepared *p, const struct strided *local,
			const struct view *into)
{
	return strided_same(&p->local, local) &&
	       (p->into == into || (p->into && into && strided_same(&p->into->s, &into->s)));
}

/* gx names a dimension of ours: say which axis of the caller's that is. */
void views_refused(const struct prepared *p, int ret)
{
	const char *text = gx_error(), *dim = strstr(text, "gx_view.dim[");
	bool remote = !strncmp(text, "remote", 6);

	if (ret == -ENOMEM)
		PyErr_NoMemory();
	else if (dim)
		PyErr_Format(PyExc_ValueError, "%s: axis %d%s", remote ? "the view" : "the block",
			     (remote ? &p->into->s : &p->local)->axis[dim[12] - '0'], dim + 14);
	else
		PyErr_SetString(PyExc_ValueError, text);
}

static struct prepared *views_make(struct context *c, struct strided *local, struct view *into)
{
	struct gx_views views = {&local->w, into ? &into->s.w : NULL};
	struct prepared *p = malloc(sizeof(*p));
	int ret;

	if (!p)
		return (struct prepared *)PyErr_NoMemory();
	*p = (struct prepared){.local = *local, .into = into, .refs = 1};
	ret = gx_views_open(c->gx, &views, &p->list);
	if (ret) {
		views_refused(p, ret);
		free(p);
		return NULL;
	}
	local->w.rows = NULL;
	Py_XINCREF((PyObject *)into);
	return p;
}

void views_put(struct prepared *p)
{
	if (!p || --p->refs)
		return;
	gx_list_close(p->list);
	strided_end(&p->local);
	Py_XDECREF((PyObject *)p->into);
	free(p);
}

void views_drop(struct context *c)
{
	for (unsigned i = 0; i < VIEWS_KEPT; i++) {
		views_put(c->views[i]);
		c->views[i] = NULL;
	}
}

/* Those that are kept lie in the order of their last use. */
static struct prepared *views_get(struct context *c, struct strided *local, struct view *into)
{
	struct prepared *p = c->views[0];
	unsigned i = 0;

	while (i < VIEWS_KEPT - 1 && p && !prepared_is(p, local, into))
		p = c->views[++i];
	if (!p || !prepared_is(p, local, into)) {
		p = views_make(c, local, into);
		if (!p)
			return NULL;
		views_put(c->views[i]);
	}
	memmove(&c->views[1], &c->views[0], i * sizeof(*c->views));
	c->views[0] = p;
	p->refs++;
	return p;
}

int views_open(struct op *o, const struct layout *l, PyObject *const how[2], struct gx_op *g,
	       struct gx_seg *seg)
{
	struct view *into = how[1] == Py_None ? NULL : (struct view *)how[1];
	struct strided s;

	if (into && !PyObject_TypeCheck(how[1], view_type))
		return refuse(PyExc_TypeError, "the peer's layout is a gx.view");
	if (!into && how[0] == Py_None && layout_is_plain(l))
		return 0;
	if (strided_take(&s, l, how[0]))
		return -1;
	seg->len = o->places->len = s.len;
	if (into && into->s.len != s.len) {
		PyErr_Format(PyExc_ValueError, "the block has %llu bytes, and the view %llu",
			     (unsigned long long)s.len, (unsigned long long)into->s.len);
	} else if (into && __builtin_add_overflow(seg->remote_off, into->off, &seg->remote_off)) {
		PyErr_SetString(PyExc_OverflowError, "the view begins behind 2**64");
	} else if (s.len && !context_check(o->ctx) && /* code of Python has run since */
		   (o->views = views_get(o->ctx, &s, into))) {
		o->places->addr += (uint64_t)s.lo;
		o->places->len = s.span;
		o->skip = (uint64_t)-s.lo;
		g->list = o->views->list;
		g->nr_segs = 0;
		g->token = seg->token;
		g->remote_off = seg->remote_off;
	}
	strided_end(&s);
	return PyErr_Occurred() ? -1 : 0;
}

/* ---- gx.view ---- */

static PyObject *view_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
	static char *names[] = {"shape", "strides", "offset", "itemsize", "rows", NULL};
	PyObject *shape, *strides = Py_None, *rows = Py_None;
	uint64_t off = 0, item_b = 1;
	struct layout l;
	struct view *v;

	if (!PyArg_ParseTupleAndKeywords(args, kw, "O|OO&O&O", names, &shape, &strides, u64_of,
					 &off, u64_of, &item_b, &rows) ||
	    layout_of(&l, item_b, shape, strides))
		return NULL;
	v = (struct view *)PyType_GenericAlloc(type, 0);
	if (v && strided_take(&v->s, &l, rows))
		Py_CLEAR(v);
	else if (v)
		v->off = off;
	return (PyObject *)v;
}

static void view_dealloc(PyObject *self)
{
	PyTypeObject *t = Py_TYPE(self);

	strided_end(&((struct view *)self)->s);
	((freefunc)PyType_GetSlot(t, Py_tp_free))(self);
	Py_DECREF(t);
}

static PyMemberDef view_members[] = {
	{"nbytes", T_ULONGLONG, offsetof(struct view, s.len), READONLY, NULL}, {NULL}};
static PyType_Slot view_slots[] = {
	{Py_tp_doc,
	 "view(shape, strides=None, offset=0, itemsize=1, rows=None)\n--\n\n"
	 "How the bytes of a put or get lie in the peer's region: as an array of numpy with these.\n\n"
	 "strides: in bytes, None: without gaps. offset: of the first element, in the region. rows: an\n"
	 "index array; then the view is that of array[rows]. Keep it: puts with it are prepared once."},
	{Py_tp_new, view_new},
	{Py_tp_members, view_members},
	{Py_tp_dealloc, view_dealloc},
	{0, NULL},
};
PyType_Spec view_spec = {"gx.view", sizeof(struct view), 0, Py_TPFLAGS_DEFAULT, view_slots};
