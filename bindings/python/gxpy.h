/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Python package's inside: four types over gx.h. Every call of gx that does not block is made with
 * the GIL held, which is the lock of the queue and of all fields here; only .words has a lock of its
 * own, for the control thread's callbacks.
 */
#ifndef GXPY_H
#define GXPY_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <structmember.h>

#include <gx/auth.h>
#include <gx/env.h>
#include <gx/gx.h>

#define MS_NS 1000000ull

/* A word of the control thread for Python: a connection came up, or is gone. */
struct word {
	struct word *next;
	struct gx_conn *conn;
	uintptr_t number;
	bool down;
};

/* DLPack, as far as it is used here. place.c also reads that of 1.0. */
struct dl_tensor {
	void *data;
	int32_t device_type, device_id;
	int32_t ndim;
	uint8_t code, bits;
	uint16_t lanes;
	int64_t *shape, *strides;
	uint64_t byte_offset;
};

struct dl_managed {
	struct dl_tensor t;
	void *ctx;
	void (*deleter)(struct dl_managed *);
};

enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3 };

/* Where bytes lie, and what keeps them there. Closed by place_close(). */
struct place {
	uint64_t addr, len;
	int device; /* CUDA ordinal; -1: host */
	bool readonly;
	bool viewed;	 /* .view is held */
	bool raw;	 /* a pointer of the caller's, which nothing vouches for */
	Py_buffer view;	 /* of the buffer protocol */
	PyObject *owner; /* of the other ways: the object, or its DLPack capsule */
};

/* How an array lies there: as its shape, and strides in bytes. */
#define LAYOUT_DIMS 64 /* as numpy and torch have */
struct layout {
	int ndim;
	uint64_t item_b;
	char kind; /* 'i', 'u': integers of this machine, up to 8 bytes; else 0 */
	int64_t shape[LAYOUT_DIMS], strides[LAYOUT_DIMS];
};

/* A layout as gx has it. .w.rows is its own. */
struct strided {
	struct gx_view w;
	uint64_t len, span; /* bytes of it; and from its least byte to its last one */
	int64_t lo;	    /* its least byte, from the first element on */
	int axis[GX_VIEW_DIMS];
};

#define VIEWS_KEPT 16 /* prepared ones of a context: as many as a peer keeps of an endpoint */
struct prepared;

struct context {
	PyObject_HEAD struct gx *gx; /* NULL: closed */
	struct gx_queue *queue;
	unsigned fork;	      /* forks of this process before it was opened */
	unsigned busy;	      /* threads in a call of gx without the GIL */
	bool closing;	      /* no new calls */
	PyObject *conns;      /* list of Connection: those that came up or were asked for, and
				 the last ones that are gone */
	PyObject *came;	      /* list of Connection: accepted, and not taken yet */
	PyObject *notes;      /* list of (Connection, bytes) not taken yet */
	struct memory **mems; /* by address */
	size_t nr_mems, room_mems;
	struct prepared *views[VIEWS_KEPT];
	struct op *ops;	     /* under way */
	unsigned nr_sending; /* notes of conn_notify() under way */
	unsigned nr_due;     /* of these, those whose .note_due */
	uint64_t
		nr_events; /* operations that ended, notifications and connections that came, ever */
	struct context *next;
	pthread_mutex_t lock; /* of the words */
	struct word *words, **words_end;
	_Atomic uintptr_t numbers; /* of connections, ever; gx_conn_user() has that of each */
	int lost_fd;  /* eventfd of the thread that takes the gone ones; LOST_END: end */
	int came_fd;  /* eventfd: there are words */
	int fd;	      /* epoll of that and of the queue's; -1: there is none */
	bool flooded; /* a word or a notification was dropped */
	bool sleeper; /* a thread sleeps on .fd */
	pid_t armer; /* the sleeper, if it went by Context.arm(): until its next call, or its end */
	/* of turn.c */
	bool turns;		   /* the core has no thread of gx */
	pthread_mutex_t turn_lock; /* held by who turns it */
	struct gx_core *turned;	   /* by it, and by callers; until turn_end() */
	pthread_t helper;
	int wake_fd;
	_Atomic bool stops, rests;  /* the helper shall end; sleeps */
	_Atomic uint64_t called_ns; /* when a caller turned last */
};

struct memory {
	PyObject_HEAD struct context *ctx;
	struct gx_mem *mem; /* NULL: freed */
	struct place place; /* of the caller's memory */
	uint64_t addr, len;
	int device;
	bool ours;	/* of gx_mem_alloc() */
	bool pinned;	/* .mems holds it: until free(), or the context's end */
	unsigned views; /* buffers and DLPack tensors of it that Python holds */
	uint64_t top;	/* where the furthest of those up to this one in .mems ends */
};

struct conn {
	PyObject_HEAD struct context *ctx;
	struct gx_conn *conn; /* NULL: closed */
	uintptr_t number;
	bool connecting, down;	 /* connect() waits for it; it is gone, and is to be closed */
	unsigned nr_notes;	 /* of conn_notify() under way */
	uint64_t note_ns;	 /* when the last of them began or ended */
	struct gx_conn_info end; /* once it was closed since it is gone; else .size is 0 */
};

struct region {
	PyObject_HEAD struct gx_region r;
};

/* One operation of Python: a list of gx. */
struct op {
	PyObject_HEAD struct context *ctx;
	struct conn *conn;
	PyObject *note; /* bytes for the peer, or NULL */
	bool get;
	bool note_due, noting; /* a get's note shall be posted; is under way */
	struct place *places;
	Py_ssize_t nr_places;
	struct prepared *views; /* while it is posted; NULL: it moves lists */
	uint64_t skip;		/* from the least byte of these to their first element */
	Py_ssize_t bad;		/* index of the block that failed first, -1 */
	int status;
	bool done;
	uint64_t bytes;
	struct op *next, **prev; /* of the context's, while under way */
};

extern PyTypeObject *context_type, *memory_type, *conn_type, *region_type, *op_type, *view_type;
extern PyType_Spec context_spec, memory_spec, conn_spec, region_spec, op_spec, view_spec;

/* A call of gx without the GIL, behind which no other thread has closed the context @c. */
#define WITHOUT_GIL(c, call)                                                                       \
	do {                                                                                       \
		(c)->busy++;                                                                       \
		Py_BEGIN_ALLOW_THREADS                                                             \
		call;                                                                              \
		Py_END_ALLOW_THREADS(c)                                                            \
		->busy--;                                                                          \
	} while (0)

/* Of a method that takes keywords: the function and its flags. */
#define KW(fn) ((PyCFunction)(void (*)(void))(fn)), METH_VARARGS | METH_KEYWORDS

/* module.c: raise the class of gx/_errors.py for -errno @ret, and return NULL. */
PyObject *fail(int ret, const char *text, enum gx_reason reason);
PyObject *fail_call(int ret);			      /* with gx_error() */
PyObject *aio_call(const char *name, PyObject *self); /* a function of gx/_aio.py */
void object_dealloc(PyObject *self);		      /* by its tp_clear */

/* context.c */
int context_check(struct context *c); /* 0; -1: closed, or of a parent process, and raised */
void context_close_all(void);
int context_note(struct context *c, const struct gx_comp *comp); /* one came. -1: raised */
struct conn *conn_find(struct context *c, uintptr_t number);	 /* NULL: long gone */
PyObject *context_forked(void);
extern unsigned fork_count;

/* turn.c */
int turn_begin(struct context *c); /* 0, -errno of gx */
void turn_end(struct context *c);
bool turn_core(struct context *c); /* a turn, if the core is the callers'. Return: it did work */
/** turn_arm() - As gx_queue_arm(); when it returns 0 the caller sleeps, and sets .sleeper to false
 * afterwards. -1: another thread does, or there is no descriptor. */
int turn_arm(struct context *c);
/** turn_rest() - Between two looks for a completion, in a wait that began at @from_ns: poll on,
 * or, after a while, sleep until one may be there. -1: a signal handler raised. */
int turn_rest(struct context *c, uint64_t from_ns);
/** turn_until() - Have @look look until it finds an object, or raises, for @for_ns at most.
 * Return: the object; NULL: raised, or, where nothing is raised, too late. */
PyObject *turn_until(struct context *c, PyObject *(*look)(void *arg), void *arg, uint64_t for_ns);

/* place.c */
int refuse(PyObject *type, const char *why); /* raises, and returns -1 */
/** u64_of(), u32_of() - For "O&": @o, an int or what has __index__(), goes to the uint64_t or uint32_t
 * at @out. Return: 1; 0: out of its range, or no number, and raised. */
int u64_of(PyObject *o, void *out);
int u32_of(PyObject *o, void *out);
/** ns_of() - As these: seconds go to the uint64_t at @out. None: without an end. */
int ns_of(PyObject *o, void *out);
/** place_open() - Where @obj lies. @l: and how; NULL: it must have no gaps. -1: raised. */
int place_open(PyObject *obj, struct place *p, struct layout *l);
/** place_check() - A .raw one that is not this process's to read, or with @write to write, is refused here: a
 * core that met it would end the process. -1: raised. */
int place_check(const struct place *p, bool write);
void place_close(struct place *p);
/** layout_of() - That of numbers of Python; @strides None: without gaps. -1: raised. */
int layout_of(struct layout *l, uint64_t item_b, PyObject *shape, PyObject *strides);
bool layout_is_plain(const struct layout *l);

/* view.c */
/** views_open() - @how: rows of the block, and the view of the peer. Where it is no plain range, prepare the
 * views of both ends, or find those of an earlier post, and have @g move its only block @seg, whose layout
 * is @l, by them. -1: raised. views_put() takes what o->views has, NULL too. */
int views_open(struct op *o, const struct layout *l, PyObject *const how[2], struct gx_op *g,
	       struct gx_seg *seg);
/** views_refused() - Raise gx_error() of @p, -errno @ret. */
void views_refused(const struct prepared *p, int ret);
void views_put(struct prepared *p);
void views_drop(struct context *c); /* all that are kept */

/* op.c */
PyObject *list_of_numbers(PyObject *o); /* of an index array, or any sequence */
void op_end(struct op *o, int status);
int op_poll(struct context *c);	   /* take completions. -1: raised */
void op_linger(struct context *c); /* before a close: notes of conn_notify() go out */
/* Post, and wait while the queue is full. -1: raised. */
int op_post_plain(struct conn *k, const struct gx_op *g);
PyObject *op_put(PyObject *self, PyObject *args, PyObject *kw);
PyObject *op_get(PyObject *self, PyObject *args, PyObject *kw);
PyObject *op_put_many(PyObject *self, PyObject *args, PyObject *kw);
PyObject *op_get_many(PyObject *self, PyObject *args, PyObject *kw);

/* memory.c */
PyObject *memory_make(struct context *c, PyObject *obj, uint64_t len, int device);
void memory_drop(struct memory *m); /* gx has let go of it */
struct memory *memory_find(struct context *c, uint64_t addr, uint64_t len);
void memory_unlink(struct memory *m);

/* conn.c */
struct conn *conn_make(struct context *c, struct gx_conn *conn, uintptr_t number);
int conn_check(struct conn *k); /* -1: closed, or gone, and raised */
int conn_look(const struct conn *k, struct gx_conn_info *info); /* -1: closed; nothing raised */
int conn_wait(struct conn *k, uint64_t for_ns); /* until it is up; -1: it is not, and raised */
void conn_end(struct conn *k);			/* closes it here */
int key_of(PyObject *o, void *out);		/* for "O&"; 0: raised */

#endif
