/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gx: move memory between machines straight into (GPU) memory, past the kernel.
 *
 * Model. A context (struct gx) has polling cores. A connection to a peer has one endpoint (struct
 * gx_ep) for each core. A program posts operations on an endpoint to a queue (struct gx_queue), and
 * takes their completions from that queue. Every operation is built on a put: "these bytes go there
 * in your memory; tell both sides when all of them have landed".
 *
 * Threads. One thread turns a core: gx's own (gx_core_start()) or a thread of the caller
 * (gx_core_turn()).
 * - [core]: only the thread that turns this core may call.
 * - [control]: any other thread may call, and the core's thread outside of a turn. Such a call may
 *   take milliseconds.
 * - [queue]: only the thread that owns this queue at the time may call. A core's queue is of the
 *   thread that turns the core.
 * - No mark: any thread may call.
 * The control thread is gx's own and calls the callbacks of struct gx_opts. A callback must not
 * wait for long, and must not call gx_close().
 * Only gx_open(), gx_close(), gx_core_stop(), gx_conn_wait(), gx_mem_free() and the calls that say
 * so block.
 *
 * Order. The operations of one endpoint have no order among themselves. Two puts may land, and
 * complete, in either order; bytes of one put land in any order. A program that needs an order
 * waits for the completion of the first operation before it posts the second, or takes GX_OP_FENCE.
 * - A GX_COMP_DONE of a put says that all its bytes are visible in the peer's memory. Its
 *   GX_COMP_NOTIFY at the peer says the same there, and nothing of other puts. Over link "verbs"
 *   GX_COMP_DONE says less: the peer's device has acknowledged all bytes, and they may be a moment
 *   late in memory. A reader at the peer waits for a GX_COMP_NOTIFY of that put, or of one that was
 *   posted after that GX_COMP_DONE.
 * - Sends of an endpoint match the receives of the peer's endpoint in the order of posting, by tag:
 *   a send takes the oldest receive that fits. Their completions have no order.
 * - Every queue keeps this order of sends and receives, for each endpoint.
 * - gx_conn_msg() keeps the order of messages, and has none with operations.
 *
 * Limits. A call beyond one of them returns the error in brackets.
 * - an operation: 64 GiB (-EINVAL)
 * - a context: 64 named regions (gx_mem_share(): -ENOSPC), 65,472 keys (gx_mem_key(): -ENOSPC),
 *   1,024 connections (gx_connect(): -ENOSPC), 8 ports (gx_open(): -EINVAL)
 * - an endpoint: 224 operations under way, of which 64 gets, over every link; gx_conn_info.ops_max
 *   says more. Beyond its room gx_post() takes fewer than it was given.
 *
 * Pointers. gx copies all that a caller passes in structs and strings, unless the field or the call
 * says otherwise; the caller may free it after the call. The memory of an operation (.addr or .mem)
 * is gx's from the post until the last completion of the operation. What gx returns lives:
 * - struct gx: until gx_close(). That frees its cores, queues, connections and memory, too.
 * - struct gx_conn and its endpoints: until gx_conn_close(), also after GX_CONN_EVENT_DOWN
 * - struct gx_mem: until gx_mem_free() has returned 0, or gx_close()
 * - texts: as the call says
 *
 * Errors. A call returns 0 or -errno. gx_error() has the reason in words, and the cure. Results are
 * written on success only.
 * Units. Bytes (names that end in _b; off, len), nanoseconds (names that end in _ns).
 *
 * Versions. A struct that begins with its size may grow at its end in a later version. The caller
 * sets the size with GX_INIT(); a size of 0 is -EINVAL. A program and a library of different
 * versions work together. Fields that the program does not have are zero, which means the default.
 * Fields that the library does not have must be zero, or the call returns -E2BIG and gx_error()
 * names the struct. In a struct that the library fills, the library writes no byte beyond the
 * caller's size, and sets fields that it does not have to zero. Structs without a size, which
 * programs keep in arrays, never change; their reserved fields must be 0.
 */
#ifndef GX_H
#define GX_H

#include "gx/opts.h"

/** GX_INIT() - Initialiser of a struct that begins with its size: struct gx_opts o = GX_INIT(o); */
#ifdef __cplusplus
struct gx_init {
	size_t size;
	template <class T> operator T() const
	{
		T t = T();

		t.size = size;
		return t;
	}
};
#define GX_INIT(var) (gx_init{sizeof(var)})
#else
#define GX_INIT(var)                                                                               \
	{                                                                                          \
		.size = sizeof(var)                                                                \
	}
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define GX_API_VERSION 3

struct gx;	 /* a context: cores, ports, memory, connections */
struct gx_core;	 /* one polling loop */
struct gx_conn;	 /* a connection to a peer process */
struct gx_ep;	 /* a connection's end on one core (a lane) */
struct gx_mem;	 /* registered memory */
struct gx_queue; /* takes operations, returns completions */
struct gx_list;	 /* segments, prepared for posts */
struct gx_auth_opts;

/** gx_version() - "0.2.0". gx_api_version() - GX_API_VERSION of the library, to compare with the
 * header's. The text is static. */
const char *gx_version(void);
int gx_api_version(void);

/** gx_error() - Why the calling thread's last failing call of gx failed, in words, with the cure.
 * Never NULL. Valid until this thread's next failing call. */
const char *gx_error(void);
/** gx_strerror() - What a completion's status (0, -errno) means, in words. Never NULL; not to be
 * freed. Any thread. */
const char *gx_strerror(int status);

/* ---- Context ---- */

enum gx_conn_event { GX_CONN_EVENT_UP, GX_CONN_EVENT_DOWN, GX_CONN_EVENT_ASKED /* gx/listen.h */ };

/**
 * struct gx_opts - What a context is made of. Zero means the default everywhere. The pointers at the
 * end are groups of options for parts of gx (gx/opts.h); NULL: the defaults. gx_open() copies all of
 * it.
 */
struct gx_opts {
	size_t size;
	unsigned nr_cores; /* default: one */
	unsigned nr_ports; /* of .ports */
	const int *cpus;   /* CPU of each core, -1: not pinned; NULL: none is */
	const struct gx_port_name
		*ports;		/* in the order of preference. NULL: shm, udp (with a bounce
					     pool on a GPU: shm) */
	bool server;		/* this process will listen: port dpdk takes more memory then */
	bool insecure;		/* allow peers that are not on loopback or a Unix socket, in clear.
				     Link tcp serves them whatever .ports has */
	unsigned nr_allow_uids; /* of .allow_uids */
	const unsigned
		*allow_uids;   /* users of this host, besides our own. gx serves their processes
				       over every port and shares memory with them; others need
				       a key, or .insecure at both ends, and share none. The
				       kernel's overflow uid, 65534, is refused in a user
				       namespace that does not map all users: there it is
				       everybody */
	const char *bind_host; /* address that network ports bind to. NULL: 127.0.0.1, which other
				  hosts do not reach */
	uint64_t peer_timeout_ns; /* silence after which a peer is lost; default 5 s; 1 ms to 1 h */
	/* Control thread. A connection came up, or is gone. @err: 0 (orderly), -errno; @why: in
	 * words, valid during the call. gx_conn_info.reason says it to a program. */
	void (*on_conn)(void *arg, struct gx_conn *conn, enum gx_conn_event event, int err,
			const char *why);
	/* Control thread. The peer has sent a message by gx_conn_msg(). @data: valid during the
	 * call. */
	void (*on_msg)(void *arg, struct gx_conn *conn, const void *data, uint32_t len);
	void *arg;			     /* of both */
	const struct gx_core_opts *cores;    /* how cores rest */
	const struct gx_host_opts *host;     /* memory and messages within this host */
	const struct gx_packet_opts *packet; /* packets: integrity, sizes */
	const struct gx_gpu_opts *gpu;	     /* GPUs: who copies, how */
	const struct gx_nic_opts *nic;	     /* link tcp: a NIC that moves payload */
	const struct gx_verbs_opts *verbs;   /* NULL: no RDMA device is opened */
	const struct gx_auth_opts *auth;     /* keys, for peers of other hosts (gx/auth.h) */
};

/**
 * gx_open() - Make a context: memory, ports, GPUs, the control thread. Cores do not run yet.
 * Return: 0; -EINVAL (an option is out of range), -ENODEV (a port or GPU cannot be opened),
 * -ENOMEM, -EPERM.
 */
int gx_open(const struct gx_opts *opts, struct gx **out);
/** gx_close() - End everything, in order, and free memory that is left. Operations that have not
 * completed never will. NULL is fine. [control], but not from a callback. */
void gx_close(struct gx *gx);

/** gx_describe() - What was really opened and why, a line each ("control  io_uring", "links
 * packet, local"). Return: length, -ENOSPC (@room is too small). [control] */
int gx_describe(struct gx *gx, char *buf, size_t room);

/* ---- Devices ---- */

enum gx_device_kind {
	GX_DEVICE_PORT, /* a packet port of a context */
	GX_DEVICE_RDMA, /* a port of an RDMA device, for gx_rail */
	GX_DEVICE_NIC,	/* an interface of the kernel, for gx_opts.bind_host and gx_nic_opts */
	GX_DEVICE_GPU,
};

enum gx_device_can {
	GX_DEVICE_UP = 1,	/* RDMA, NIC: its link is up. The others always */
	GX_DEVICE_OPEN = 2,	/* PORT, GPU: the context has opened it */
	GX_DEVICE_ETHERNET = 4, /* RDMA: over Ethernet (RoCE), so its interface needs an address */
	GX_DEVICE_LOSSLESS = 8, /* PORT: loses no packet */
	GX_DEVICE_TO_GPU = 16,	/* PORT: packets land in memory of a GPU */
};

/** struct gx_device - What the kernel, or NVIDIA's driver, reports of a device. */
struct gx_device {
	size_t size;
	enum gx_device_kind kind;
	unsigned number;     /* RDMA: port, from 1 on; GPU: CUDA ordinal; PORT: index; NIC: 0 */
	char name[96];	     /* as options name it ("shm", "mlx5_0", "eth0"); GPU: of its model */
	char pci[256];	     /* its path through the bridges of PCIe; the last part is its address:
				"/pci0000:3a/0000:3a:00.0/0000:3b:00.0". Empty: none, or not known */
	int numa;	     /* node; -1: not known, or the host has one */
	unsigned can;	     /* GX_DEVICE_ bits */
	uint64_t speed_mbps; /* of its link; 0: it has none, or does not report it */
};

/**
 * gx_devices() - Device @index, from 0 on: the ports of @gx, then RDMA devices and interfaces in the
 * order of their names, then GPUs. Nothing is opened, but that NVIDIA's driver is loaded where there
 * is one. [control]
 * @gx: NULL: without ports
 * Return: 0, -ENOENT (there are no more).
 */
int gx_devices(struct gx *gx, unsigned index, struct gx_device *out);

/* ---- Memory ---- */

enum gx_mem_kind { GX_MEM_HOST, GX_MEM_CUDA };
enum gx_access {
	GX_ACCESS_PUT = 1,
	GX_ACCESS_GET = 2,
	/* Never slower in silence: a peer on this host that takes link "local" maps the memory, or
	 * gets an error. gx_mem_share() fails where the memory can't be mapped, and a connection of a
	 * peer that can't map it does, with GX_REASON_LINK. Without this bit packets then carry
	 * it; the log of the owner and gx_conn_info.why at the peer say so */
	GX_ACCESS_MAPPED = 4,
};

/**
 * gx_gpu_open() - Open a GPU before anything is allocated on it. gx_mem_alloc() and gx_mem_reg() do
 * it too, at any time; the first time takes up to seconds, and cores that run go on meanwhile.
 * Connections made later over the local link can map the memory of peers' GPUs, and copy engines
 * serve this context's registered host memory. The next connection times both ways of short copies to
 * this GPU; until then gx uses the copy engines. A gx_queue made earlier knows no streams of this GPU
 * (gx_op.stream). [control]
 * Return: 0, -EINVAL, -ENODEV (no such GPU), -EAGAIN (a core that another thread turns had no turn
 * within a second: have it turned, and call again).
 */
int gx_gpu_open(struct gx *gx, int device);

/**
 * gx_mem_alloc() - Memory of the host (zeroed; huge pages where there are some) or of a GPU.
 * [control]
 * @device: CUDA ordinal, ignored for the host
 * Return: 0, -ENOMEM, -ENODEV (no such GPU).
 */
int gx_mem_alloc(struct gx *gx, enum gx_mem_kind kind, int device, uint64_t len,
		 struct gx_mem **out);
/**
 * gx_mem_reg() - Register memory of the caller. The caller keeps it, and keeps it mapped, until
 * gx_mem_free() has returned 0. [control] gx does not see memory that goes before: at the next access,
 * perhaps a peer's, a core ends the process by SIGSEGV, or a GPU its context by an illegal address.
 * That is so for cudaFreeAsync(), too, while a list or a key still names the memory.
 * GPU memory may be of any allocator: cudaMalloc, cuMemCreate, a stream-ordered pool, one allocation
 * or many behind one another (PyTorch's expandable segments). Peers on this host map it, all of it in
 * one range, if gx_mem_share() allows puts, but for memory that no process can name to another:
 * of cuMemCreate without CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR (PyTorch makes it so with
 * TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC=0 alone), imported itself, or of a pool (cudaMallocAsync). See
 * GX_ACCESS_MAPPED.
 * Host memory that this process cannot write can be sent from. It can neither receive nor be shared
 * for puts.
 * @device: CUDA ordinal, ignored for the host. The driver is asked once whether all of the memory is
 * there. Managed memory (cudaMallocManaged) may be registered with any GPU.
 * Return: 0; -EFAULT: this process cannot read host memory at @addr, @len; -EINVAL: GPU memory that
 * is none, is longer than its allocation, was freed, or lies on another GPU, and other misuse;
 * -ENOMEM, -ENODEV.
 */
int gx_mem_reg(struct gx *gx, enum gx_mem_kind kind, int device, void *addr, uint64_t len,
	       struct gx_mem **out);
/**
 * gx_mem_free() - Deregister, and free what gx_mem_alloc() made. [control]
 * The program posts nothing new with it. Operations under way with it end: those of this process
 * with -ECANCELED, puts of peers with -ESTALE, gets of peers with -ESTALE or -ECANCELED. Peers no
 * longer find the region, and its keys are withdrawn.
 *
 * Memory of gx_mem_reg() belongs to the caller again when this returns 0, and nothing of gx touches
 * it any more. So the call waits until each core has let go of it: for the next turn of a core that
 * another thread turns, for GPU copies that have begun, and with gx_nic_opts.tx for bytes that the
 * kernel still sends. The calling thread's own cores need no turn. The call does not wait for a peer
 * on this host that has mapped a GPU's memory itself over the local link; such a peer ends what it has
 * begun.
 * Memory of gx_mem_alloc() is freed when nothing uses it any more, perhaps after the call. If peers
 * may still be writing, that is later: when the last connection that knew of it has closed, or, for
 * GPU memory shared by cudaIpc, when every process that might still write has exited.
 * Return: 0; -EAGAIN: a core was not turned within gx_gpu_opts.timeout_ns and a second, or a peer did
 * not take what the kernel sends, or a thread was in gx_help() all the time, and memory of
 * gx_mem_reg() is still in use: have the core turned and call again; -EINVAL: it was freed before.
 */
int gx_mem_free(struct gx_mem *mem);
void *gx_mem_addr(const struct gx_mem *mem); /* address in the host, or in the GPU */
uint64_t gx_mem_len(const struct gx_mem *mem);
enum gx_mem_kind gx_mem_kind_of(const struct gx_mem *mem);
bool gx_mem_huge(const struct gx_mem *mem); /* did it get huge pages? */
/** gx_mem_copy_out(), gx_mem_copy_in() - Copy a part of @mem to or from ordinary memory and wait
 * for it, for checks. Return: 0, -ERANGE (outside of @mem), -EIO. [control] */
int gx_mem_copy_out(const struct gx_mem *mem, uint64_t off, void *to, uint64_t len);
int gx_mem_copy_in(struct gx_mem *mem, uint64_t off, const void *from, uint64_t len);

/**
 * gx_mem_share() - Make @mem a region, which peers find by its name with gx_conn_region().
 * [control] Connections that are made later know of it. Connections that are up do not.
 *
 * While a peer's put is under way, do not read or write its range: bytes arrive in any order. Wait
 * for the completion (at the peer) or the notification (here). Where the copy checks the payload
 * (gx_packet_opts.crc_by), wrong bytes may lie there until the peer has sent them again. They stay there
 * when the put ends with an error.
 * @access: GX_ACCESS_ bits
 * Return: 0, -EEXIST (the name is taken), -EINVAL (the name is empty or over 63 bytes, or @mem was
 * freed), -EACCES (puts into memory that cannot be written), -ENOSPC (64 regions), -EOPNOTSUPP
 * (GX_ACCESS_MAPPED, and no peer could map it; the GPU of the bounce pool cannot write there).
 */
int gx_mem_share(struct gx_mem *mem, const char *name, unsigned access);

/** struct gx_key - A right to a part of memory, for a peer: bytes that travel by any channel. They
 * name the context, the part and its generation, and are good until the key is withdrawn. Who has
 * them, and a connection to that context, has the right. */
struct gx_key {
	uint8_t bytes[64];
};

/** struct gx_key_opts - What a key is good for. Zero means: all of the memory, no lease, any peer. */
struct gx_key_opts {
	size_t size;
	unsigned access;   /* GX_ACCESS_ bits, at least one */
	uint32_t reserved; /* 0 */
	uint64_t off, len; /* the part of the memory; len 0: from .off to its end */
	/* A lease: time of gx_now() from which on the key is refused as a withdrawn one is. A get
	 * that is under way by then ends with -ESTALE, too, so no get hands out what the next owner
	 * of the memory writes there. That costs a get one more way there and back. Puts that have
	 * begun go on: where the key allows puts, have gx_key_withdraw() return before the memory is
	 * used for something else. 0: none */
	uint64_t until_ns;
	struct gx_conn *conn; /* who alone may use it; others get -EACCES. NULL: all */
};

/**
 * gx_mem_key() - Make a key for a part of @mem, connected or not, any number of times; keys of one
 * memory may overlap. [control] It costs some microseconds, and no word to any peer. The key ends
 * with gx_key_withdraw() or gx_mem_free(). Peers on this host map its memory over link local, if it
 * has no lease, is for all peers, and, on a GPU, allows puts; else packets carry it, many times
 * slower, and gx_conn_info.why at the peer says why. As with gx_mem_share(), do not read or write a range while
 * a peer's put is under way there.
 * Return: 0, -EINVAL (@mem was freed, no or unknown .access, .conn is of another context), -ERANGE
 * (the part is outside of @mem), -EACCES (puts into memory that cannot be written), -ENOSPC (65,472
 * keys), -ENOMEM.
 */
int gx_mem_key(struct gx_mem *mem, const struct gx_key_opts *opts, struct gx_key *out);

/**
 * gx_key_withdraw() - Take a key back. When this returns 0, no peer reads or writes its part by that
 * key any more, and none ever will: operations under way have ended there with -ESTALE or -ECANCELED,
 * and later ones do with -ESTALE, before a byte moves. Other keys of the same memory go on. [control]
 * The call waits as gx_mem_free() does for memory of the caller: for the next turn of each core. Over
 * link local it also waits for peers that have mapped the memory, until each has left the copy that it
 * is in: microseconds, or the peer time-out if a process is stopped there. That one may finish a put,
 * at most 256 KiB, when it goes on; gx warns of it by name, and counts the memory as quarantined. Such a
 * peer keeps its mapping of the whole memory as long as it lives: that it reads and writes there no more is
 * its own gx's word. Where it is not to be relied on, have no peer map the memory: a key with .until_ns or
 * .conn, or gx_host_opts.local GX_OFF.
 * Return: 0, -ESTALE (it was withdrawn before, or its memory freed), -EXDEV (it is of another
 * context), -EINVAL (these bytes are no key), -EAGAIN (a core was not turned, or a peer on this host is
 * stopped; the key is refused from now on, but what had begun may go on: have the core turned, and call again).
 */
int gx_key_withdraw(struct gx *gx, const struct gx_key *key);

/* ---- Cores ---- */

unsigned gx_nr_cores(const struct gx *gx);
struct gx_core *gx_core(struct gx *gx, unsigned index); /* NULL when out of range */

/**
 * gx_core_turn() - One turn of the loop: take packets in, launch and reap copies, send, look at
 * timers. [core]
 * @now_ns: gx_now(), or the caller's own virtual time (not with ports udp and dpdk). An earlier one counts as the last
 * Return: true when it did work.
 */
bool gx_core_turn(struct gx_core *core, uint64_t now_ns);
uint64_t gx_now(void); /* CLOCK_MONOTONIC, ns */

/** gx_core_start() - Have gx run the core on a pinned thread of its own. A core that has no
 * connection, no queue and no poller of the program (or has gx_core_opts.wait) sleeps until a
 * connection comes, and turns ten times a second meanwhile; with gx_core_opts.busy no core sleeps.
 * Return: 0, -errno. [control] */
int gx_core_start(struct gx_core *core);
/** gx_core_stop() - Stop the core's thread and wait for its end. Another thread may turn the core
 * afterwards. Idempotent. [control] */
void gx_core_stop(struct gx_core *core);
/**
 * gx_core_poller() - Add a function that every turn calls after gx's own pollers. There a program
 * posts and takes completions on gx's thread. Before gx_core_start().
 * @fn: returns whether it did work. @arg must live as long as the core
 * Return: 0, -ENOSPC.
 */
int gx_core_poller(struct gx_core *core, bool (*fn)(void *arg, uint64_t now_ns), void *arg);

/**
 * gx_core_fd() - A descriptor for a program that turns @core itself and wants to sleep in a poll(),
 * epoll or select() of its own meanwhile. [core] It is the same at each call, gx's until gx_close(),
 * and only to wait for. Readable: turn the core. It also becomes so when a timer of gx is due. Make
 * the first call before connections: peers of this host learn by it that they may have to wake. Who
 * polls has no cost from any of this.
 * Return: the descriptor; -EBUSY (gx_core_start() turns it), -EOPNOTSUPP (the kernel, or a filter,
 * has no membarrier(2)), -EMFILE.
 *
 * gx_core_arm() - May the program sleep now? [core] It turns the core once, has all that bring work
 * make the descriptor readable from here on, and looks once more. So no wake is lost:
 *
 *	while (gx_core_arm(core) == 1)
 *		;                       // and take completions: gx_poll()
 *	epoll_wait(...);                // gx_core_fd(core) among others
 *	gx_core_turn(core, gx_now());
 *
 * A wake lasts until the next call; it may come without work. A program that wants low latency turns
 * for some microseconds after the last work before it arms. A core with connections wakes every
 * 0.1 s at least, and each millisecond while operations are under way that need it.
 * What connections do is told to gx_opts.on_conn, on the control thread: a program that waits for
 * that in the same loop has the callback write to an eventfd of its own.
 * Return: 0: sleep; 1: there is work: turn (gx_poll() of the core's queue has completions, or the
 * GPU, a stream or another thread is at work, which wake nobody); -EINVAL (no gx_core_fd() before),
 * -EOPNOTSUPP (something of the core cannot wake it, and gx_error() names it: a DPDK port; link
 * verbs; io_uring or a NIC that receives for link tcp; a peer of before gx_core_fd()): turn.
 */
int gx_core_fd(struct gx_core *core);
int gx_core_arm(struct gx_core *core);

/**
 * gx_help() - Copy a slice of a long message that @core reads out of a peer's process
 * (gx_host_opts.pull). For a thread that waits for such a message and has nothing else to do: its CPU
 * copies beside that of the core. Any thread may call, several at a time, and the core's thread, too.
 *
 * The call waits for nobody and takes no lock. It copies 128 KiB at most, which takes some 20 us, by
 * one system call; or there is nothing to do, and it returns at once. A core lends slices from the
 * first call on. It takes back those that no thread has taken.
 * The kernel must let the thread read the peer as it lets the core's: where a filter of system calls
 * holds for this thread alone, the message fails with -EPERM.
 *
 * An operation ends when no thread copies for it any more, also where it is cancelled, late, or its
 * connection is lost. So a thread that is stopped in the midst of a call (it has no CPU, a debugger
 * holds it, a page of the peer does not come) holds up the end of that operation, gx_mem_free() of
 * its memory and the release of its connection, without a limit. It holds up nothing else.
 *
 * All calls must have returned before gx_close() begins. Not in a child of fork().
 * Return: true when it copied, or tried to.
 */
bool gx_help(struct gx_core *core);

/** gx_stats() - All counters as text; @prometheus: in Prometheus' exposition format.
 * Return: length, -ENOSPC (@room is too small). [control] */
int gx_stats(struct gx *gx, bool prometheus, char *buf, size_t room);
/** gx_core_stat() - One counter by name (see gx_stats()). Return: 0, -ENOENT. */
int gx_core_stat(const struct gx_core *core, const char *name, uint64_t *value);

/**
 * gx_stats_listen() - Serve gx_stats() on a Unix socket: plain text, or HTTP with Prometheus text
 * when the request begins with "GET". They name all peers. @path: whom the mode of the file lets in;
 * "@name" is abstract, for this user, root, and the process's group. Return: 0, -errno. [control]
 * gx_open() makes such a socket for `gxd metrics` to find, in /run/gx, where that exists and may be
 * written. GX_RUN_DIR in the environment names another folder; "": none.
 */
int gx_stats_listen(struct gx *gx, const char *path);
/**
 * gx_signals() - Call @fn on the control thread for these signals, which the program has blocked in
 * all threads. @arg must live as long as the context. Return: 0, -errno. [control]
 */
int gx_signals(struct gx *gx, const int signos[], unsigned n, void (*fn)(void *arg, int signo),
	       void *arg);

/* ---- Connections ---- */

/** gx_listen() - Accept peers at "HOST:PORT" ("[::1]:7501"; port 0: any), or up to 8 with commas between, of
 * one port, and at all addresses of a name. An address that this host has not is left out, with a warning,
 * where it has another. Return: port number, -EINVAL, -E2BIG, -EADDRINUSE (gx_error() names the address), or
 * -EMFILE. More: gx_listen_with() (gx/listen.h). [control] */
int gx_listen(struct gx *gx, const char *addr);
/** gx_listen_stop() - Accept no more peers by gx_listen(). Connections stay. [control] */
void gx_listen_stop(struct gx *gx);

/** struct gx_connect_tcp_opts - Link "tcp", for a connection. */
struct gx_connect_tcp_opts {
	size_t size;
	unsigned sockets;  /* of a lane, 1 to 16; default 1 */
	unsigned reserved; /* 0 */
};

/** struct gx_connect_verbs_opts - Link "verbs", for a connection. */
struct gx_connect_verbs_opts {
	size_t size;
	unsigned queue_pairs; /* all lanes together: 1 to 64, and one a lane at least; default 4 */
	unsigned reserved;    /* 0 */
};

/** struct gx_connect_opts - Zero means: as the peer and this context agree. */
struct gx_connect_opts {
	size_t size;
	/* Force these ports of the context (found by name and device). NULL: the best port that both
	 * ends have. Several are of one kind: lanes take them in turn, so name them in the order of
	 * the cores that are near them. The server's first port of that kind goes with this end's
	 * first one, and so on. One that is silent ends the connection, as a silent peer does. With
	 * fewer lanes than ports, the last ones are left out. Link "verbs" takes one port. */
	const struct gx_port_name *ports;
	unsigned nr_ports;
	unsigned lanes;	     /* endpoints wanted; 0: as many as both ends have cores for */
	unsigned first_core; /* lane i runs on core (first_core + i) % nr_cores at this end */
	unsigned data_len;   /* of .data; at most 64 */
	uint64_t timeout_ns; /* for each step of the set-up; default 5 s */
	/* "local": puts and gets go straight into and out of the peer's mapped memory, copied by
	 * this end's CPU. Both ends must be on one host, with port shm open. "packet": by packets
	 * over a port. NULL: packet when .ports are named, else local where both ends can. The copy
	 * engines of a GPU copy where memory of a GPU is at either end, if this context has opened
	 * a GPU (see gx_gpu_open()); else packets reach that memory. "tcp": by TCP sockets of the
	 * kernel, to the server's address; not with .ports. NULL takes it to other hosts, unless ports
	 * or gx_packet_opts.integrity are named, and as the last resort, with a warning, where the
	 * ends have no port in common. "verbs": by RDMA devices, which both ends
	 * have named in gx_opts.verbs; packets over a port carry sends, and memory that a
	 * device does not register. NULL never takes it. */
	const char *link;
	/* For these links alone. NULL: all default */
	const struct gx_connect_tcp_opts *tcp;
	const struct gx_connect_verbs_opts *verbs;
	void *user;	  /* gx_conn_user() from the start, so that the first on_conn finds it */
	const void *data; /* gx_conn_data() (gx/listen.h) at the server; in clear */
	const char
		*peer; /* with a key: only the server of this gx_auth_opts.name will do. NULL: any
			      that has the key, also where somebody on the path has brought us */
};

/**
 * gx_connect() - Begin to connect; on_conn or gx_conn_wait() tell when the connection is up.
 * [control]
 * @addr: "HOST:PORT", or several with commas between. The addresses of a name, or of a list (first what is in a
 *	network of this host's, last its own), are tried by RFC 8305: the next one after 250 ms, or when the
 *	last one has failed, or turns out to be no gx that serves this end. The first that does is taken
 * @opts: NULL: all default
 * Return: 0, -EINVAL (address, .peer), -ETIMEDOUT (the name was not resolved within .timeout_ns), -EPERM (not loopback, and neither gx_auth_opts.key_file nor
 * gx_opts.insecure), -ENODEV (the port is not open here), -ENOSPC (1,024 connections).
 */
int gx_connect(struct gx *gx, const char *addr, const struct gx_connect_opts *opts,
	       struct gx_conn **out);
/** gx_conn_wait() - Block until the connection is up (0) or has failed (-ECONNREFUSED, -ETIMEDOUT,
 * -EPROTO, -EPROTONOSUPPORT...), at most for @timeout_ns: -EINPROGRESS then, and the set-up goes
 * on. [control], but not from a callback. */
int gx_conn_wait(struct gx_conn *conn, uint64_t timeout_ns);
/**
 * gx_conn_close() - End the connection: tell the peer, and fail posted operations (-ECANCELED). gx
 * frees @conn and its endpoints when all buffers are back. [control] A connection of gx_connect(),
 * and an accepted one that on_conn reported as UP, stays valid with its endpoints until this call,
 * also after GX_CONN_EVENT_DOWN. So threads that use it can let go in their own time. on_conn may
 * call this.
 */
void gx_conn_close(struct gx_conn *conn);

/** enum gx_reason - The reason behind a text of gx_conn_info, for a program. A peer of a later version may
 * send others than these. */
enum gx_reason {
	GX_REASON_NONE, /* none yet */
	/* Why a connection takes its path */
	GX_REASON_ASKED,       /* gx_connect_opts names the link, or the port */
	GX_REASON_PEER_ASKED,  /* the client chose it */
	GX_REASON_SAME_HOST,   /* both ends are on one host: by its memory */
	GX_REASON_BOTH_HAVE,   /* the first port of this end that the peer has, too */
	GX_REASON_LAST_RESORT, /* the ends have no port in common */
	/* Why it ended, or did not come up */
	GX_REASON_CLOSED,	 /* this end closed it */
	GX_REASON_PEER_CLOSED,	 /* the peer closed it */
	GX_REASON_PEER_LOST,	 /* the peer's process or socket is gone without a word */
	GX_REASON_PEER_SILENT,	 /* nothing was heard for gx_opts.peer_timeout_ns */
	GX_REASON_UNREACHABLE,	 /* no connection, or no data, gets there */
	GX_REASON_NO_SERVER,	 /* nothing listens at that address */
	GX_REASON_SETUP_TIMEOUT, /* a step of the set-up was not done in time */
	GX_REASON_VERSION,	 /* the ends speak different versions */
	GX_REASON_PROTOCOL,	 /* the peer broke the protocol, or is no gx */
	GX_REASON_INSECURE,	 /* the server of another host serves nobody in clear, it seems */
	GX_REASON_USER,		 /* an end does not serve the other's user, or does not see it */
	GX_REASON_OTHER_HOST,	 /* the port or link that was asked for reaches one host only */
	GX_REASON_NO_PORT,	 /* an end has no such port, or the ends have none in common */
	GX_REASON_NO_LINK,	 /* an end does not have the link that was asked for */
	GX_REASON_OPTIONS,	 /* what the ends want does not go together */
	GX_REASON_MTU,		 /* the port's packets are too small */
	GX_REASON_FULL,		 /* the server has no room: connections, descriptors */
	GX_REASON_NO_MEMORY,
	GX_REASON_LINK,	   /* the link or its device failed, at one of the ends */
	GX_REASON_SOCKET,  /* so did a socket beside the connection: Unix, or of link tcp */
	GX_REASON_GPU,	   /* a GPU failed, or did not end a copy in time */
	GX_REASON_MEMORY,  /* memory of an operation was unmapped */
	GX_REASON_REFUSED, /* the server's program refused it (gx_conn_refuse()) */
	GX_REASON_AUTH, /* no key (gx/auth.h), not the same one at both ends, or it was revoked */
};

/** gx_reason_name() - "peer-silent" for GX_REASON_PEER_SILENT; "unknown". Static. */
const char *gx_reason_name(enum gx_reason reason);

enum gx_conn_state { GX_CONN_STATE_CONNECTING, GX_CONN_STATE_UP, GX_CONN_STATE_DOWN };

/** struct gx_conn_info - What was agreed, and why. */
struct gx_conn_info {
	size_t size;
	enum gx_conn_state state;
	int err;		    /* DOWN: -errno */
	enum gx_reason reason;	    /* DOWN: of .text */
	enum gx_reason path_reason; /* of .why */
	char text[256];		    /* DOWN: in words */
	char link[16];		    /* the path taken: "packet", "local", "tcp", "verbs" */
	char port[64];
	char why[256];			  /* why this path */
	uint32_t lanes;			  /* endpoints of the connection */
	uint32_t quantum_b;		  /* largest payload of a packet to the peer */
	uint32_t quantum_in_b;		  /* largest payload of a packet to this end */
	uint32_t chunk_b;		  /* as in gx_opts */
	uint32_t window;		  /* as in gx_opts */
	uint32_t payload_max_b;		  /* room in a packet; 0: no port */
	enum gx_integrity_mode integrity; /* never AUTO */
	/* "127.0.0.1:7501 pid 4711 conn 7": its process there, and the number of the connection here,
	 * as in the metrics and in the log. */
	char peer[128];
	uint32_t peer_pid;
	bool same_host;
	const char *control; /* of the control thread: "io_uring" or "epoll"; static */
	/* With integrity CRC32C. Bit 1 << kind (enum gx_mem_kind): payload for such memory is
	 * checked where it is copied, at this end and at the peer. Else the CPU checks it when a
	 * packet comes in. */
	unsigned crc_by_copy, peer_crc_by_copy;
	char bounce[16];      /* where packets to this end land: "host", "cuda:0" */
	char peer_bounce[16]; /* where packets to the peer land; the peer counts its own GPUs */
	uint64_t pull_over_b; /* what packets would carry to the peer goes in one copy if it is
				 longer (gx_host_opts.pull); 0: it does not */
	/* What gx_post() takes on an endpoint, at least, while none of it ends: .ops_max operations,
	 * of which .recvs_max receives and gets, of which .gets_max gets. All endpoints of a core
	 * together: 4,096 completions that are due or not taken yet. 0: not known before it is up */
	uint32_t ops_max, recvs_max, gets_max, reserved;
	char auth[32]; /* name of the key by which the ends know one another; "": none */
};
int gx_conn_info(struct gx_conn *conn, struct gx_conn_info *info); /* [control] */

/** struct gx_path - A path across the network: packets of a lane, data or control, that leave by one
 * source port. Routers that share load choose a way by it. */
struct gx_path {
	size_t size;
	uint64_t sent;	 /* packets, first and again, probes included */
	uint64_t lost;	 /* of them, as far as known */
	uint64_t rtt_ns; /* smoothed; 0: not known */
	uint32_t lane;
	uint32_t source_port; /* UDP */
	uint32_t data;	      /* 1: of data packets; 0: of control packets */
	uint32_t dead;	      /* 1: left, and asked again now and then */
};
/**
 * gx_conn_path() - Path @index, from 0 on, of a connection that is up. Only where packets of a lane,
 * data or control, have left by more than one: else there is nothing to compare, and the figures are
 * the connection's. [control]
 * Return: 0, -ENOENT (there are no more), -ENOTCONN (it is not up).
 */
int gx_conn_path(struct gx_conn *conn, unsigned index, struct gx_path *out);

/** gx_conn_ep() - The endpoint of lane @lane, on core (first_core + lane) % nr_cores. NULL: out of
 * range, or the connection is not up. The first operations of a peer that has connected may come
 * before this end is up: gx_comp.ep names their endpoint. */
struct gx_ep *gx_conn_ep(struct gx_conn *conn, unsigned lane);
struct gx_core *gx_ep_core(struct gx_ep *ep);
struct gx_conn *gx_ep_conn(struct gx_ep *ep);
/** gx_conn_user_set(), gx_conn_user() - A pointer of the program on a connection. It is NULL at
 * first, or gx_connect_opts.user, or gx_listen_opts.user. */
void gx_conn_user_set(struct gx_conn *conn, void *user);
void *gx_conn_user(const struct gx_conn *conn);

/** struct gx_region - A region of the peer. */
struct gx_region {
	size_t size;
	uint64_t token; /* for gx_op.token */
	uint64_t len;
	enum gx_mem_kind kind;
	int device;
	unsigned access;
	char name[64];	   /* empty: of a key */
	uint32_t reserved; /* 0 */
	uint64_t addr;	   /* of its first byte in the owner's process, for programs that name
			      memory by address: .remote_off = address - .addr */
};
/** gx_conn_region() - Find a region of the peer by name, or, with @name NULL, by index from 0.
 * Return: 0, -ENOENT, -ENOTCONN (the connection has not been up yet). */
int gx_conn_region(struct gx_conn *conn, const char *name, unsigned index, struct gx_region *out);

/**
 * gx_conn_key() - The region that a key of this peer names. No round trip, and nothing to give back:
 * whether the key still holds, each operation learns there. Any thread.
 * Over link local gx then asks the peer to have the memory mapped, where that can be done: memory of
 * gx_mem_alloc() or of a GPU, no lease, and no .conn. Until the answer, some 100 us, and else for good,
 * operations by this key take packets; then gx_conn_info.why says so. A peer on this host that may use a
 * key maps all of the memory that the key is a part of.
 * Return: 0, -ENOTCONN (the connection has not been up yet), -EINVAL (these bytes are no key, or were
 * changed), -EXDEV (a key of another context than this peer's: of another process, or of one that the
 * peer had before it came back).
 */
int gx_conn_key(struct gx_conn *conn, const struct gx_key *key, struct gx_region *out);

/**
 * gx_conn_may() - May the peer do this to memory of ours? It is the question that gx asks of each put
 * and get of the peer: what its key allows (gx/auth.h), and @access of gx_mem_share(). A program asks
 * it before it reads or writes memory at a peer's wish, as by a message of gx_conn_msg(): gx does not
 * know what such messages are for. Any thread, while the caller holds @conn and @mem.
 * @mem: NULL: all memory, of whatever name, now and later: has the peer's key no such limit?
 * @access: GX_ACCESS_PUT, GX_ACCESS_GET, or both
 * Return: 0; -EACCES: no, or not by name: who holds keys of memory (gx_mem_key()) is not known here;
 * -ERANGE: it may, but these bytes are outside of @mem; -ENOTCONN: it is not up, so nothing is known
 * of its rights; -EINVAL: no @access, or @mem was freed.
 */
int gx_conn_may(struct gx_conn *conn, const struct gx_mem *mem, unsigned access, uint64_t off,
		uint64_t len);

/** gx_conn_msg() - Send a small message (at most 32 KiB) beside the data path, over the bootstrap
 * connection, to the peer's on_msg. Messages keep their order, and none is lost while the
 * connection lives. Return: 0, -ENOTCONN, -EMSGSIZE, -ENOMEM. */
int gx_conn_msg(struct gx_conn *conn, const void *data, uint32_t len);

#ifdef __cplusplus
}
#endif

#include "gx/op.h" /* operations and queues */

#endif
