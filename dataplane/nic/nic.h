/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a NIC offers for receiving payload elsewhere than in the kernel's own pages, what it lacks,
 * the steps of its set-up, and the binding of its queues to a dma-buf. All of it talks to the
 * kernel by generic netlink (families netdev and ethtool) and by SIOCETHTOOL, through a table of
 * calls that a test replaces. Control path: any thread, and each call may wait for the kernel.
 *
 * Nobody has run any of this on a NIC that offers such a mode.
 */
#ifndef NIC_H
#define NIC_H

#include <gx/nic.h>

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define NIC_NAME_MAX   16   /* an interface's name, with the final 0 */
#define NIC_TEXT_MAX   192  /* a text of the kernel, with the final 0 */
#define NIC_QUEUES_MAX 1024 /* receive queues that gx looks at */
#define NIC_NO_FD      (-1) /* no dma-buf: bind-rx with it can bind nothing */

/* The kernel's answer to bind-rx with NIC_NO_FD when it has not asked the driver. */
#define NIC_BIND_SILENT (-EBADF)

/** struct nic_sys - The calls into the kernel. Each returns 0 (or as said), or -errno. */
struct nic_sys {
	/* A socket of generic netlink with texts of refusals, which waits 5 s at most. Return: it. */
	int (*nl_open)(void);
	int (*nl_send)(int fd, const void *msg, size_t len);
	/* One datagram. Return: its whole length, which may be more than @room. */
	ssize_t (*nl_recv)(int fd, void *buf, size_t room);
	void (*nl_close)(int fd);
	/* Return: the number of the interface. -ENODEV: there is none. */
	int (*ifindex)(const char *name);
	/* SIOCETHTOOL: @cmd is the struct that its first word asks for. */
	int (*ethtool)(const char *name, void *cmd);
	/* The first line of a file, without its end. */
	int (*text)(const char *path, char *buf, size_t room);
};

extern const struct nic_sys nic_sys_linux;

/* ---- SIOCETHTOOL: nic_ioctl.c ---- */

/** enum nic_has - A feature of the driver. */
enum nic_has { NIC_HAS_NOT, NIC_HAS_OFF, NIC_HAS_ON };

/** struct nic_rules - Flow rules: how many there are, and whether the driver places a new one. */
struct nic_rules {
	int err; /* the driver's refusal to count them; 0: none */
	uint32_t nr;
	bool placed;   /* by the driver: RX_CLS_LOC_ANY may be asked for */
	uint32_t room; /* places; 0: unknown */
};

/** struct nic_flow - One TCP connection over IPv4, as packets of it arrive; big endian. A zero
 * matches everything. */
struct nic_flow {
	uint32_t src_ip, dst_ip;
	uint16_t src_port, dst_port;
};

/** struct nic_range - Queues that a program wants for itself. @tcp_port 0: not known. */
struct nic_range {
	uint32_t first, last, tcp_port;
};

/** nic_driver() - Names of driver and bus; empty: the interface has none. */
void nic_driver(const struct nic_sys *sys, const char *name, char driver[32], char bus[32]);
/** struct nic_channels - Receive queues of the driver's two kinds; all 0: it does not report them. */
struct nic_channels {
	uint32_t rx, combined;	       /* in use; a combined one sends as well */
	uint32_t rx_max, combined_max; /* that the driver can have */
};

/** nic_channels() - Return: receive queues that are in use; 0: the driver does not report it. */
uint32_t nic_channels(const struct nic_sys *sys, const char *name, struct nic_channels *out);
/** nic_ntuple() - May the interface have flow rules? */
enum nic_has nic_ntuple(const struct nic_sys *sys, const char *name);
/** nic_gro_hw() - Does the hardware merge packets? */
enum nic_has nic_gro_hw(const struct nic_sys *sys, const char *name);
void nic_rules(const struct nic_sys *sys, const char *name, struct nic_rules *out);
/**
 * nic_rss() - The queues that the RSS table names: bit q of @queues, @nr_words words.
 * Return: entries of the table; -EOPNOTSUPP: there is none; -errno.
 */
int nic_rss(const struct nic_sys *sys, const char *name, uint64_t *queues, unsigned nr_words);
/** nic_rule_add() - Have packets of @flow arrive at @queue. Where the driver places no rule, it
 * comes to the last free place, after the rules of others; another process must not add rules
 * at the same time. Return: the place of the rule, for nic_rule_del(); -ENOSPC: no place is free;
 * -errno. UNTRIED. */
int nic_rule_add(const struct nic_sys *sys, const char *name, const struct nic_flow *flow,
		 uint32_t queue);
int nic_rule_del(const struct nic_sys *sys, const char *name, uint32_t place);
/** nic_rules_sweep() - Delete what nic_rule_add() has left behind: rules of one connection each that
 * lead to a queue of @r. Rules of another shape, and to other queues, are others'. Nobody else may use
 * these queues. Return: 0; the last -errno, and others are gone; *@nr were deleted. UNTRIED. */
int nic_rules_sweep(const struct nic_sys *sys, const char *name, const struct nic_range *r,
		    unsigned *nr);

/* ---- What there is: nic_look.c ---- */

#define NIC_HELD_DMABUF 1 /* flags of nic_facts.held */
#define NIC_HELD_URING	2
#define NIC_HELD_XSK	4

/** enum nic_split - Header split, as far as the kernel reported it. */
enum nic_split {
	NIC_SPLIT_NOT_ASKED, /* nl_err or rings_err say why */
	NIC_SPLIT_REFUSED,   /* the driver has no settings of rings */
	NIC_SPLIT_UNTOLD,    /* nobody has set it, or the driver cannot: only setting it shows */
	NIC_SPLIT_OFF,
	NIC_SPLIT_ON,
};

/** struct nic_facts - All that the kernel reported of one interface. Frozen after nic_look(). */
struct nic_facts {
	char name[NIC_NAME_MAX];
	int ifindex;
	char kernel[64]; /* release */
	char driver[32], bus[32];
	uint32_t nr_rx; /* receive queues; 0: unknown */
	struct nic_channels channels;
	uint8_t held[NIC_QUEUES_MAX]; /* by a memory provider or AF_XDP: flags NIC_HELD_... */
	int rings_err;		      /* the refusal to report rings; 0: none */
	enum nic_split split;
	bool has_thresh;
	uint32_t thresh_b, thresh_max_b;
	int rss; /* entries of the table, or -errno */
	uint64_t rss_queues[NIC_QUEUES_MAX / 64];
	enum nic_has ntuple, gro_hw;
	struct nic_rules rules;
	int nl_err;		       /* why nothing of the kernel's netlink is known; 0: it is */
	bool netdev, bind_rx, bind_tx; /* does the kernel know the family and the operations? */
	int bind_err; /* the answer to bind-rx without a dma-buf, see NIC_BIND_SILENT; 0: not asked */
	char bind_text[NIC_TEXT_MAX];
	uint64_t xdp;
	uint32_t zc_segs;
};

/** nic_look() - Ask the kernel for all of it; nothing is changed. Return: 0, -ENODEV. */
int nic_look(const struct nic_sys *sys, const char *name, struct nic_facts *out);

/* ---- In words: nic_mode.c, nic_plan.c ---- */

/** nic_fact() - Fact @index for people. Return: 0; -ENOENT: there are no more. */
int nic_fact(const struct nic_facts *f, unsigned index, struct gx_nic_fact *out);
/** nic_mode() - Receive mode @index. Return: 0; -ENOENT: there are no more. */
int nic_mode(const struct nic_facts *f, unsigned index, struct gx_nic_mode *out);
/** nic_who() - The interface and its driver, for messages: "eth0 (driver virtio_net)". */
void nic_who(const struct nic_facts *f, char *buf, size_t room);
/** nic_is_refused() - Did the kernel refuse bind-rx for a reason that no set-up mends? False says
 * nothing of the driver, which the kernel asks only with a dma-buf. */
bool nic_is_refused(const struct nic_facts *f);
/** nic_unbound() - The answer to bind-rx where nic_is_refused() is false, as half a sentence. */
void nic_unbound(const struct nic_facts *f, char *buf, size_t room);
/** nic_refusal() - Why the kernel refused bind-rx or bind-tx with -@err and @text, and the cure. */
void nic_refusal(const struct nic_facts *f, int err, const char *text, char *why, size_t why_room,
		 char *cure, size_t cure_room);

/** nic_queues_max() - Receive queues that the interface can have; 0: unknown. */
uint32_t nic_queues_max(const struct nic_facts *f);
/** nic_range_check() - Can the NIC have these queues, and does it keep some? Return: 0; -EINVAL,
 * -ERANGE with gx_error(). */
int nic_range_check(const struct nic_facts *f, const struct nic_range *r);
/** nic_step() - Step @index of the set-up. Return: 0; -ENOENT: there are no more. */
int nic_step(const struct nic_facts *f, const struct nic_range *r, unsigned index,
	     struct gx_nic_step *out);

/* ---- Binding: nic_bind.c ---- */

struct nic_bind; /* a dma-buf and the queues that it is bound to */

/**
 * nic_bind_rx() - Bind the dma-buf @fd to receive queues. Header split must be on, and its
 * threshold 0. The binding lasts until nic_unbind(), or until the process ends. UNTRIED.
 * Return: 0; -errno with gx_error(), which names the driver, the kernel's text and the cure.
 */
int nic_bind_rx(const struct nic_sys *sys, const char *name, const uint32_t *queues, unsigned nr,
		int fd, struct nic_bind **out);
/** nic_bind_tx() - Bind the dma-buf @fd for sending. UNTRIED. Return: as nic_bind_rx(). */
int nic_bind_tx(const struct nic_sys *sys, const char *name, int fd, struct nic_bind **out);
/** nic_bind_id() - The number of the dma-buf in control messages of sockets. */
uint32_t nic_bind_id(const struct nic_bind *b);
/** nic_unbind() - The kernel ends a binding when its socket is closed. NULL is fine. */
void nic_unbind(struct nic_bind *b);

#endif
