/* SPDX-License-Identifier: Apache-2.0 */
/* The module gx._gx, and its errors, whose classes are in gx/_errors.py. */
#include "gxpy.h"

#include <gx/log.h>

#define FAIL_TEXT_B 1024

/* What the fields of the API are in Python. */
static const struct gx_name names[] = {
	{"with .access", "with access"},
	{"GX_ACCESS_GET", "gx.GET"},
	{"GX_ACCESS_PUT", "gx.PUT"},
	{"gx_auth_opts.key_file", "key_file"},
	{"gx_auth_opts.key_files", "key_file"},
	{"gx_auth_opts.name", "Context(name)"},
	{"gx_connect_opts.link", "connect(link)"},
	{"gx_connect_opts.peer", "connect(peer)"},
	{"gx_connect_opts.ports", "Context(port)"},
	{"gx_auth_make()", "gxd keygen"},
	{"gx_gpu_open()", "register()"},
	{"gx_listen() on", "listen() on"},
	{"gx_listen() returned", "listen() returned"},
	{"gx_mem_alloc()", "alloc()"},
	{"gx_mem_key()", "Memory.key()"},
	{"gx_mem_reg()", "register()"},
	{"gx_mem_share()", "Memory.share()"},
	{"gx_opts.auth", "key_file"},
	{"gx_opts.bind_host", "bind_host"},
	{"gx_opts.cpus", "cores"},
	{"gx_opts.insecure", "insecure=True"},
	{"gx_opts.nr_cores", "cores"},
	{"gx_opts.peer_timeout_ns", "peer_timeout"},
	{"gx_opts.ports", "port"},
	{"gx_opts.verbs names no device", "Context() takes no device"},
	{NULL, NULL},
};

PyTypeObject *context_type, *memory_type, *conn_type, *region_type, *op_type, *view_type;

PyObject *fail(int ret, const char *text, enum gx_reason reason)
{
	PyObject *m = PyImport_ImportModule("gx._errors"), *e;
	char own[FAIL_TEXT_B];

	PyOS_snprintf(own, sizeof(own), "%s", text);
	text = gx_names_say(names, own);
	e = m ? PyObject_CallMethod(m, "make", "iss", -ret, text, gx_reason_name(reason)) : NULL;
	Py_XDECREF(m);
	if (e)
		PyErr_SetObject((PyObject *)Py_TYPE(e), e);
	Py_XDECREF(e);
	return NULL;
}

PyObject *fail_call(int ret)
{
	return fail(ret, gx_error(), GX_REASON_NONE);
}

void object_dealloc(PyObject *self)
{
	PyTypeObject *t = Py_TYPE(self);

	PyObject_GC_UnTrack(self);
	((inquiry)PyType_GetSlot(t, Py_tp_clear))(self);
	((freefunc)PyType_GetSlot(t, Py_tp_free))(self);
	Py_DECREF(t);
}

PyObject *aio_call(const char *name, PyObject *self)
{
	PyObject *m = PyImport_ImportModule("gx._aio"), *o;

	o = m ? PyObject_CallMethod(m, name, "O", self) : NULL;
	Py_XDECREF(m);
	return o;
}

static PyObject *close_all(PyObject *self, PyObject *unused)
{
	context_close_all();
	Py_RETURN_NONE;
}

static PyObject *host_address(PyObject *self, PyObject *args)
{
	const char *want = NULL;
	char addr[GX_ADDR_MAX];
	int ret;

	if (!PyArg_ParseTuple(args, "|z", &want))
		return NULL;
	ret = gx_env_addr(want, addr);
	return ret ? fail_call(ret) : PyUnicode_FromString(addr);
}

static PyObject *host_addresses(PyObject *self, PyObject *args)
{
	char addr[GX_ADDRS_MAX][GX_ADDR_MAX];
	const char *want = NULL;
	PyObject *list;
	int n;

	if (!PyArg_ParseTuple(args, "|z", &want))
		return NULL;
	n = gx_env_addrs(want, addr, GX_ADDRS_MAX);
	list = n < 0 ? fail_call(n) : PyList_New(n);
	for (int i = 0; list && i < n; i++) {
		PyObject *text = PyUnicode_FromString(addr[i]);

		if (!text || PyList_SetItem(list, i, text)) {
			Py_DECREF(list);
			return NULL;
		}
	}
	return list;
}

static PyMethodDef methods[] = {
	{"close_all", close_all, METH_NOARGS, NULL},
	{"host_address", host_address, METH_VARARGS,
	 "host_address($module, want=None, /)\n--\n\n"
	 "The address of this host that other hosts are told.\n\n"
	 "want: an address, a network (10.0.0.0/8) or an interface; None: GX_ADDR, else gx chooses."},
	{"host_addresses", host_addresses, METH_VARARGS,
	 "host_addresses($module, want=None, /)\n--\n\n"
	 "As host_address(); without a wish all that there are, at most 8, the best first."},
	{NULL}};
static struct PyModuleDef module = {
	PyModuleDef_HEAD_INIT, "gx._gx", NULL, -1, methods, NULL, NULL, NULL, NULL};

static PyTypeObject *type_add(PyObject *m, const char *name, PyType_Spec *spec)
{
	PyObject *t = PyType_FromSpec(spec);

	if (!t || PyModule_AddObjectRef(m, name, t))
		return NULL;
	return (PyTypeObject *)t;
}

PyMODINIT_FUNC PyInit__gx(void);

__attribute__((visibility("default"))) PyMODINIT_FUNC PyInit__gx(void)
{
	PyObject *m = PyModule_Create(&module);

	gx_names_log(names);
	if (m && (context_type = type_add(m, "Context", &context_spec)) &&
	    (memory_type = type_add(m, "Memory", &memory_spec)) &&
	    (conn_type = type_add(m, "Connection", &conn_spec)) &&
	    (region_type = type_add(m, "Region", &region_spec)) &&
	    (op_type = type_add(m, "Op", &op_spec)) &&
	    (view_type = type_add(m, "view", &view_spec)) &&
	    !PyModule_AddStringConstant(m, "__version__", gx_version()))
		return m;
	Py_XDECREF(m);
	return NULL;
}
