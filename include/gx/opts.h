/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options of a context by subject, for gx_opts (gx.h, which includes this). Most programs need none:
 * NULL in gx_opts is a group of defaults, and zero in a group is the default of that field. gx_open()
 * copies what it needs; all may be freed after it.
 *
 * struct gx_opts o = GX_INIT(o);
 *
 * o.packet = GX_WITH(gx_packet_opts, .window = 32, .chunk_b = 1 << 20);
 */
#ifndef GX_OPTS_H
#define GX_OPTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef __cplusplus
/** GX_WITH() - A pointer to a struct that begins with its size, for as long as the block lasts. C
 * alone: in C++ make a variable with GX_INIT(). */
#define GX_WITH(type, ...) (&(struct type){.size = sizeof(struct type), __VA_ARGS__})
#endif

/** enum gx_switch - Zero is the default, as everywhere. */
enum gx_switch { GX_AUTO, GX_ON, GX_OFF };

/* ---- Ports and cores ---- */

/** enum gx_cc - The congestion control of what this end sends by a port. */
enum gx_cc {
	GX_CC_AUTO, /* RATE where packets cross a network, NONE over loopback and shared memory */
	GX_CC_NONE,
	GX_CC_RATE,
	GX_CC_SWIFT,
};

/** struct gx_port_name - A port, in the lists of gx_opts and gx_connect_opts. */
struct gx_port_name {
	const char *name;   /* "shm", "udp", "dpdk" */
	const char *device; /* dpdk: "net_memif", or a PCI address; else NULL */
	const char
		*args; /* dpdk: of its driver, "id=0,socket=/tmp/a"; udp: "port=7601"; NULL: none */
	/* In gx_connect_opts these two tell ports apart that differ by nothing else; 0: any. */
	enum gx_cc cc;
	unsigned
		paths; /* spread data over so many source ports, where routers share load by them: 1
			   to 8; default 1: one, and another when that one is dead */
};

/** struct gx_core_opts - How cores that gx_core_start() runs rest. */
struct gx_core_opts {
	size_t size;
	bool busy; /* never sleep. Default: a core without work spins for 50 us, pauses for 1 ms, then
		      sleeps up to 50 us at a time; after 0.1 s of idling each sleep lasts idle time
		      / 2048, at most 400 us */
	bool wait; /* the program's own pollers (gx_core_poller()) have nothing to do while their core
		      has no connection; see gx_core_start() */
	uint8_t reserved[6];   /* 0 */
	uint64_t sleep_max_ns; /* no sleep is longer; default: as .busy says. Ignored with .busy */
	/* gx_opts.cpus are what gx or a tool chose, not CPUs that somebody gave this program: a core
	 * whose CPU other work has for more than a twentieth of the time leaves it, once, for all
	 * CPUs that this process may use. Containers of a host choose the same ones. Where the
	 * program turns a core, its thread does so. */
	bool may_move;
	uint8_t reserved2[7]; /* 0 */
};

/* ---- Within a host ---- */

/**
 * enum gx_pull - May the receiver of a long message on this host read it out of the sender's
 * process (process_vm_readv), in one copy? Both ends must take the local link, run as one user, and
 * use no CRC32C. A connection tries it once, both ways, when it is made. Where the kernel does not
 * let a process read another one of its user, messages go as packets; gx_conn_info.why
 * says so.
 */
enum gx_pull {
	/* This end reads where the kernel lets it, and does it fast: the call takes less than two
	 * plain copies do. gx times both, once a context, for some milliseconds. The peer decides
	 * for the other way. */
	GX_PULL_AUTO,
	GX_PULL_ON, /* the same, however long it takes */
	/* Not in this context, neither way. For servers that do not trust clients of their own
	 * user: a client's page that does not come (a file of FUSE, NFS) holds the core up. */
	GX_PULL_OFF,
	/* As ON. And where Yama forbids processes of a user to read one another (ptrace_scope 1),
	 * this process allows it to all processes of its user, for good (PR_SET_PTRACER). They may
	 * then trace it as well, as on hosts without Yama. Yama grants that to one process or to
	 * all. */
	GX_PULL_ALLOW,
};

/** struct gx_host_opts - Memory, and messages that stay on this host. */
struct gx_host_opts {
	size_t size;
	enum gx_switch huge; /* huge pages. OFF: gx does not try; else it takes them where there are
				 some */
	enum gx_switch
		local; /* the local link, see gx_connect_opts.link. OFF: gx does not offer it,
				 and host memory is private, on transparent huge pages where there
				 are no others */
	enum gx_pull pull;
	/* The receiver reads messages longer than this directly (default 64 KiB; of both ends' values
	 * the larger holds). They are sends, and puts and gets of memory that the peer has not
	 * mapped. Shorter ones are faster as packets, and their bytes land in whole words of 8. */
	uint32_t pull_over_b;
};

/* ---- Packets ---- */

/** enum gx_integrity_mode - How a connection guards packets. */
enum gx_integrity_mode {
	/* A connection with a key over a port that leaves the host: GCM. Else none over ports that lose
	 * and damage nothing, and CRC-32C over others. */
	GX_INTEGRITY_MODE_AUTO,
	GX_INTEGRITY_MODE_NONE,
	GX_INTEGRITY_MODE_CRC32C, /* over headers, control and payload */
	/* These two need a key. MAC: headers are authentic, and each has the CRC-32C of its payload:
	 * stops who is not on the path. GCM: all is encrypted and authentic (AES-128-GCM). */
	GX_INTEGRITY_MODE_MAC,
	GX_INTEGRITY_MODE_GCM,
};

/**
 * enum gx_crc_by - Who checks the CRC of payload that comes in, with integrity CRC32C. The CPU
 * always checks headers, control, and data inside of control packets, when a packet comes in.
 */
enum gx_crc_by {
	GX_CRC_BY_AUTO, /* kernels that copy into a GPU (unpack mode kernel, auto); else the CPU */
	GX_CRC_BY_CPU,	/* the CPU, when a packet comes in. A wrong packet counts as lost */
	GX_CRC_BY_COPY, /* the copying kernel or CPU. The receiver asks for a wrong packet again */
};

/** struct gx_packet_opts - Messages as packets. The sizes trade memory for speed; the defaults are
 * measured. */
struct gx_packet_opts {
	size_t size;
	enum gx_integrity_mode integrity;
	enum gx_crc_by crc_by; /* COPY is refused with an unpack mode that cannot check */
	uint32_t chunk_b;   /* the part of a message that the window counts as one: 4 KiB to 64 MiB,
				  default 512 KiB */
	uint32_t window;    /* chunks of a message under way: 1 to 1,024, default 16 */
	uint32_t slots;	    /* bounce buffers, for each peer or queue; default: the port's */
	uint32_t quantum_b; /* payload of a packet: 1,280 to 65,520, a multiple of 16; default: the
				  port's best. A peer with a bounce pool on a GPU is sent packets that
				  fit its slots, unless one end sets this */
};

/* ---- GPUs ---- */

/** enum gx_unpack_mode - How the payload of packets gets from the bounce buffers to its place. */
enum gx_unpack_mode {
	GX_UNPACK_MODE_AUTO, /* GPU: kernel, and resident while blocks follow closely. CPU: host */
	GX_UNPACK_MODE_KERNEL,	 /* one batched kernel launch for a burst */
	GX_UNPACK_MODE_RESIDENT, /* a kernel takes blocks from a ring, and stays while some come */
	GX_UNPACK_MODE_D2D,	 /* one copy of the driver for each fragment */
	GX_UNPACK_MODE_HOST,	 /* the CPU gathers; one copy for each run of bytes */
};

/** enum gx_copy_by - Who copies over the local link where memory of a GPU is at either end. */
enum gx_copy_by {
	/* Copy engines, with two exceptions. Segments up to 128 KiB of a list of four or more: a launch
	 * copies many at once, on .sms SMs. Else up to 64 KiB with at most two under way: the
	 * resident kernel, if it measured faster. */
	GX_COPY_AUTO,
	GX_COPY_CE,	  /* copy engines alone: no SM is used */
	GX_COPY_RESIDENT, /* the resident kernel for up to 64 KiB, else copy engines */
};

/** enum gx_bounce - Where ports put the payload of packets. Headers and control records are always
 * in host memory. */
enum gx_bounce {
	GX_BOUNCE_HOST, /* pinned host memory */
	/* Memory of a GPU. gx_open() fails, with the reason, for ports that cannot write there. A
	 * peer on port shm writes by a GPU of its own, which it must have opened. Host memory that
	 * receives must then come from gx_mem_alloc() or be registered: the GPU copies there.
	 * gx_open() refuses unpack mode host and GX_CRC_BY_CPU. CRC32C needs unpack mode kernel;
	 * auto is kernel then. */
	GX_BOUNCE_CUDA,
};

/** struct gx_gpu_opts - The GPUs of a context. */
struct gx_gpu_opts {
	size_t size;
	enum gx_unpack_mode unpack; /* how this end unpacks; the peer has an option of its own */
	unsigned sms;		    /* SMs that an unpack may use; default: the backend's */
	enum gx_copy_by copy;	    /* for GPUs that are opened */
	enum gx_bounce bounce;	    /* where the payload of packets lands before it is unpacked */
	int bounce_device;	    /* CUDA ordinal, for GX_BOUNCE_CUDA: that GPU is opened */
	uint32_t reserved;	    /* 0 */
	uint64_t timeout_ns;	    /* after which a copy of a GPU has failed; default 5 s */
};

/* ---- Link tcp: a NIC that moves payload ---- */

/** enum gx_nic_rx - How link tcp receives. */
enum gx_nic_rx {
	GX_NIC_RX_COPY, /* the kernel copies, for memory of a GPU to host memory; the GPU from there */
	/* The NIC puts payload for memory of a GPU there: devmem TCP, Linux 6.12 and newer, and a NIC that
	 * has it. gx_open() fails, with the reason, where something is missing. No card has run
	 * it. */
	GX_NIC_RX_DEVMEM,
};

/** enum gx_nic_tx - How link tcp sends. */
enum gx_nic_tx {
	/* The kernel copies, payload of a GPU from pinned buffers. An operation that ends early
	 * completes at once. */
	GX_NIC_TX_COPY,
	/* Payload of 32 KiB and more in memory of a GPU: the NIC (gx_nic_opts.tx_if) reads it there
	 * (devmem TCP: Linux 6.16 and a NIC with it). An operation completes when nobody reads its
	 * memory any more. So one that ends early (gx_cancel(), its deadline, gx_mem_free()) waits
	 * until the peer has taken the bytes that the kernel has; at the latest the end of the
	 * connection frees them. gx_open() fails, with the reason, where something is missing, and so
	 * do gx_connect() and gx_mem_alloc() of GPU memory that the NIC does not take. No card has run
	 * it. */
	GX_NIC_TX_DEVMEM,
	GX_NIC_TX_AUTO, /* as DEVMEM, where nothing is missing; else as COPY */
};

/**
 * struct gx_nic_opts - A NIC that reads and writes payload of link tcp itself. gx_open() refuses all
 * but the defaults where gx was built with -Dnic_memory=false.
 *
 * Receiving (.rx DEVMEM): .rx_if is the interface, with .rx_queues queues from .rx_first on,
 * prepared as gx_nic_step() says. gx binds .rx_b bytes of GPU .rx_device to them, and opens that
 * GPU. It serves connections with at least two data sockets whose peer can send so; gx warns of
 * others, and copies.
 */
struct gx_nic_opts {
	size_t size;
	enum gx_nic_rx rx;
	enum gx_nic_tx tx;
	const char *rx_if; /* "eth0"; NULL: none */
	unsigned rx_first, rx_queues;
	uint64_t rx_b;	    /* a multiple of 2 MiB, up to 4 GiB; default 256 MiB */
	unsigned rx_device; /* CUDA ordinal */
	unsigned reserved;  /* 0 */
	const char *tx_if;  /* the interface ("eth0") of connections that send from GPU memory, for
			       .tx DEVMEM and AUTO; NULL: none */
};

/* ---- Link verbs ---- */

/** struct gx_rail - An RDMA device, a port of it, and how its packets are marked. */
struct gx_rail {
	const char *device;  /* "mlx5_0"; NULL: the first with an active port */
	unsigned port;	     /* 1 to 255; 0: its first active one */
	unsigned gid;	     /* index of the GID, 0 to 255; with .has_gid */
	bool has_gid;	     /* else gx chooses the GID */
	uint8_t sl;	     /* service level, 0 to 15; over Ethernet to 7 */
	uint8_t tc;	     /* traffic class */
	uint8_t reserved[5]; /* 0 */
};

/** struct gx_verbs_opts - Link verbs. All memory of the context is registered with its devices. */
struct gx_verbs_opts {
	size_t size;
	/* Up to 8. A connection spreads its bytes over those that reach a device of the peer, by their
	 * speed, and goes on while one works. */
	const struct gx_rail *rails;
	unsigned nr_rails;
	bool all; /* every device with an active port, up to 8; .rails[0], if given, says how they are
		     marked (.sl, .tc) */
	uint8_t reserved[3]; /* 0 */
};

#endif
