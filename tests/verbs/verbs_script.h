/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A scripted RDMA provider: the calls of libibverbs that gx makes, over memory of this process.
 * Nothing moves until script_run(); then each request of a connected queue pair moves its bytes by
 * memcpy, checked against keys, rights and bounds as a device would. The attributes of queue pairs
 * are checked as a kernel does. Faults are planned. Any thread may call it.
 */
#ifndef VERBS_SCRIPT_H
#define VERBS_SCRIPT_H

#include "verbs/verbs_api.h"

#include <stdbool.h>

#define SCRIPT_DEVICES 4 /* at most */
#define SCRIPT_ANY     UINT32_MAX

struct script {
	/* Plans; a test sets them. */
	uint64_t plan; /* bit i fails call i of those that make something; counted in calls */
	unsigned calls;
	uint32_t fail_qpn; /* queue pair whose request with bytes fails next; 0: none; SCRIPT_ANY */
	unsigned fail_after; /* so many more of it succeed first */
	enum ibv_wc_status fail_status;
	bool fail_late;	       /* its bytes are kept, and script_late() tries to deliver them */
	bool fail_landed;      /* it fails although it was carried out: the answer was lost */
	unsigned refuse_posts; /* post_send takes none, so many times */
	unsigned poll_max;     /* most completions of a poll; 0: as asked */
	unsigned run_max; /* most requests that script_run() carries out of a queue pair; 0: all */
	unsigned iwarp;	  /* bit i: device i is an iWARP one */
	unsigned more;	  /* devices beside the first two */
	uint8_t speed[SCRIPT_DEVICES]; /* ibv_port_attr.active_speed, of one lane */
	uint8_t net[SCRIPT_DEVICES];   /* IPv4 GIDs are 10.0.net.x */
	uint8_t host[SCRIPT_DEVICES];  /* added to the last byte of IPv4 GIDs, and to LIDs */
	unsigned v2_at_3;      /* bit i: device i has the one of RoCE v2 at index 3, not 2 */
	unsigned no_gid;       /* bit i: device i has none */
	bool apart;	       /* no packet goes from one net to another */
	unsigned mute;	       /* bit i: no packet comes from or to device i */
	unsigned paused;       /* bit i: device i carries nothing out for now */
	unsigned no_reg;       /* bit i: device i registers no 1 MiB and more */
	bool infiniband;       /* link layer: paths go by LID; else Ethernet, by GID */
	unsigned grh_required; /* InfiniBand, bit i: device i sends nothing without a GID */
	/* So many calls that end something are refused, and end nothing. */
	unsigned keep_mr, keep_qp, keep_cq, keep_pd;
	int keep_err;		  /* the errno of these; 0: EBUSY. Of devices that are gone: EIO */
	bool no_dmabuf;		  /* the device takes none */
	uint32_t slow_reg_ms;	  /* a registration takes so long */
	uint32_t slow_rtr_ms;	  /* as does the address of a peer */
	unsigned unanswered;	  /* bit i: device i finds no address, */
	_Atomic uint32_t look_ms; /* after that time, */
	_Atomic unsigned look_ends; /* or when this changes */
	unsigned refuse_rtr;	    /* so many times it is not found */
	int rtr_err;		    /* and the errno is this one */
	unsigned refuse_port;	    /* so many times its port cannot be asked for its address */
	unsigned refuse_err;	    /* queue pairs do not go into error, so many times: EINVAL */
	uint32_t max_msg_b;	    /* most bytes of a request; 0: 1 GiB */
	bool lazy; /* a write lands when a send comes behind it on its queue pair, and no sooner: as a
			device promises, which acknowledges it before */
	bool lossy; /* no packet arrives */
	uint32_t hole_b
		[SCRIPT_DEVICES]; /* of those that the device sends, none of more bytes; 0: all */
	enum ibv_wc_status mark_status; /* a write of no bytes fails so; 0: it does not */
	bool gone;	  /* the devices were removed: polls fail, and nothing is flushed */
	unsigned gone_of; /* bit i: device i was */
	bool no_flush;	  /* a queue pair in error keeps its requests for itself */
	/* Called when a queue pair can receive, before it can send. */
	void (*after_rtr)(void *arg);
	void *arg;
	unsigned fatal_events;		 /* that get_async_event still gives */
	struct ibv_async_event event[4]; /* before these, as many as */
	unsigned event_of[4];		 /* the device, of events that name none */
	unsigned nr_events, nr_acked;
	/* What happened. */
	unsigned nr_qps, nr_mrs, nr_cqs, nr_pds, nr_open; /* made and not yet ended */
	unsigned nr_dmabufs;				  /* registered */
	unsigned nr_rtr;
	struct ibv_ah_attr path; /* of the last of these */

	_Atomic unsigned nr_looks, looks_now; /* in vain, by unanswered; at this time */
	unsigned nr_rnr;		      /* sends that found no receive */
	int cmd_fd[SCRIPT_DEVICES], async_fd[SCRIPT_DEVICES]; /* of those that are open */
	void *page[SCRIPT_DEVICES]; /* that the driver maps of them; NULL: none */
	unsigned nr_writes, nr_reads, nr_sends, nr_lists, nr_signalled;
	unsigned late_landed; /* of script_late() */
	uint64_t bytes;
	uint64_t bytes_of[SCRIPT_DEVICES]; /* of these, sent by each */
};

extern struct script script;
extern const struct verbs_api script_api;

void script_reset(void);		    /* all plans and counters; nothing may be left */
bool script_run(void);			    /* did anything move? */
unsigned script_live(unsigned device);	    /* queue pairs that take packets in */
void script_break(unsigned device);	    /* its queue pairs fail, and an event says so */
void script_port(unsigned device, bool up); /* an event says so; and mute, or not */
void script_address(unsigned device); /* an event says that its GIDs or its LID have changed */
void script_remove(unsigned device);  /* gone, and an event says so */
void script_forget(void); /* end what the plan did not let end, as a kernel does on close */
void script_late(void);	  /* packets of failed requests arrive now */

#endif
