/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stands on the wire: the packet header, acknowledgements and control records of a packet
 * link, and the hello of the bootstrap connection. Pure encode and decode (dataplane/packet/wire.c);
 * little endian. A decoder never reads past the length it is given and accepts nothing it does not
 * know.
 */
#ifndef GX_INTERNAL_WIRE_H
#define GX_INTERNAL_WIRE_H

#include "gx_internal/base.h"
#include "gx_internal/port.h"

#define GX_WIRE_ERR_MAX	    4095 /* largest errno of Linux, include/linux/err.h */
#define GX_WIRE_VERSION	    3
#define GX_WIRE_HDR_B	    38 /* IPv4: payload starts at byte 80 of the frame */
#define GX_WIRE_QUANTUM_MIN 1280
#define GX_WIRE_QUANTUM_MAX 65520 /* plen has 16 bits */
#define GX_WIRE_ACK_WORDS   16	  /* at most; 8 by default */
#define GX_WIRE_INLINE_MAX  1024  /* bytes of data that an OPEN may carry */
#define GX_WIRE_MIDS	    1024 /* messages open in a direction; place of a mid: mid % GX_WIRE_MIDS */
#define GX_WIRE_DONE_WORDS  (GX_WIRE_MIDS / 64)
#define GX_WIRE_ACK_MAX	    (24 + 8 * (GX_WIRE_DONE_WORDS + GX_WIRE_ACK_WORDS)) /* bytes */
#define GX_WIRE_ACTIVE	    64 /* messages of more than 80 KiB under way, a direction */

enum gx_pkt_type { GX_PKT_DATA = 1, GX_PKT_CTL, GX_PKT_ACK, GX_PKT_PROBE };

enum gx_pkt_flag { GX_PKT_EOM = 1, GX_PKT_ACK_NOW = 2 };

enum gx_integrity { GX_INTEGRITY_NONE = 0, GX_INTEGRITY_CRC = 1 };

/* The header, decoded. On the wire: see docs/wire.md. */
struct gx_wire_hdr {
	uint8_t type, flags;
	uint16_t plen; /* payload bytes */
	uint32_t cid;  /* receiver's connection: index 20 bits, generation 12 bits above */
	uint32_t psn;  /* low half of a 64-bit number */
	uint32_t mid;  /* DATA; CTL: bytes of an acknowledgement behind the records */
	uint64_t moff; /* bytes; a multiple of 16 below 2^36 */
	uint32_t crc_hdr, crc_payload; /* integrity mode 1; 0 in mode 0 */
};

/** gx_wire_hdr_put() - Encode into @b (GX_WIRE_HDR_B bytes); crc_hdr is computed when @mode is CRC,
 * over the header with that field 0, continuing from @salt. crc_payload is the caller's. */
void gx_wire_hdr_put(uint8_t *b, const struct gx_wire_hdr *h, enum gx_integrity mode,
		     uint32_t salt);
/** gx_wire_hdr_get() - Decode and check version, type, flags, zero, doff, lengths (@plen_seen:
 * bytes that came). Return: 0, -EPROTO. The CRC is checked by gx_wire_hdr_check, once the
 * connection's salt is known. */
int gx_wire_hdr_get(const uint8_t *b, uint32_t len, uint32_t plen_seen, struct gx_wire_hdr *h);
int gx_wire_hdr_check(const uint8_t *b, const struct gx_wire_hdr *h,
		      uint32_t salt); /* 0, -EBADMSG */

/* Acknowledgement: payload of ACK. */
struct gx_wire_ack {
	uint64_t largest;  /* largest psn received (64-bit) */
	uint32_t delay_ns; /* that it was held */
	uint32_t credit;   /* cumulative, low 32 bits: first transmissions of DATA allowed in all */
	uint32_t number;   /* of this ACK, one more than of the one before */
	uint16_t done_words;		   /* bit w: done[w] is told */
	uint16_t nr_words;		   /* 1..GX_WIRE_ACK_WORDS */
	uint64_t done[GX_WIRE_DONE_WORDS]; /* bit i of done[w]: changes with each message done (its
					    * bytes visible, or given up) at place 64 w + i */
	uint64_t words[GX_WIRE_ACK_WORDS]; /* bit i of words[w]: psn largest - 64 w - i was received
					    * (bit 0 of words[0], largest itself, is always set) */
};
/* Return bytes written (at most GX_WIRE_ACK_MAX, @b has GX_CTL_PAYLOAD_MAX). */
uint32_t gx_wire_ack_put(uint8_t *b, const struct gx_wire_ack *a);
int gx_wire_ack_get(const uint8_t *b, uint32_t len, struct gx_wire_ack *a); /* 0, -EPROTO */

/* Control records: a CTL packet's payload is a sequence of them. Each is delivered exactly once:
 * rsn is a per-connection number, the receiver remembers those it has seen. */
enum gx_rec_type {
	GX_REC_OPEN = 1,
	GX_REC_GRANT,
	GX_REC_GET,
	GX_REC_RESEND,
	GX_REC_FAIL,
	GX_REC_CANCEL,
	GX_REC_REVOKE = 9, /* 7 and 8 were never sent */
	GX_REC_REFUND
};

enum gx_rec_flag {
	GX_REC_IMM = 1,	   /* OPEN: imm is for the user */
	GX_REC_INLINE = 2, /* OPEN: len bytes of data follow the record */
	GX_REC_GPU = 4,	   /* GRANT, GET: the slot is GPU memory (no inline data) */
	GX_REC_SLOT = 8,   /* OPEN: token is a posted slot, consumed by this message; FAIL: id is a
			      slot token */
	GX_REC_AGAIN = 16, /* OPEN: in place of message old_mid, whose packets are too large for the
			      path; never with INLINE */
};

/* A record, decoded. A slot is named by its token, which the end that owns it made. */
struct gx_wire_rec {
	uint8_t type, flags; /* enum gx_rec_type, enum gx_rec_flag */
	uint32_t rsn;
	union {
		/* A message begins, with all that the receiver must know of it. */
		struct {
			uint32_t mid, quantum;
			uint64_t token;		/* of the region; with SLOT: of the slot */
			uint64_t off, len, imm; /* imm: also the tag of a send */
			uint32_t old_mid;	/* AGAIN: the message that it takes the place of */
			uint64_t old_sent;	/* AGAIN: DATA packets of that one, sent first */
			const uint8_t *data;	/* INLINE: points into the packet (get), or at the
						    bytes to carry (put) */
		} open;
		/* A receive was posted: a send that fits may be put there. */
		struct {
			uint64_t slot, len, tag, tag_mask;
		} grant;
		/* A part of a region is to be put into the slot. */
		struct {
			uint64_t token, off, len, slot;
		} get;
		/* Whole packets of a message are to be sent again. */
		struct {
			uint32_t mid;
			uint64_t off, len;
		} resend;
		/* The receiver gives up a message, or (SLOT) a get into a slot. */
		struct {
			uint64_t id; /* mid; SLOT: token of the slot */
			int32_t err; /* -errno */
		} fail;
		/* The sender gives up a message. */
		struct {
			uint32_t mid;
			uint64_t sent; /* DATA packets sent for the first time */
		} cancel;
		/* A GRANT is taken back. */
		struct {
			uint64_t slot;
		} revoke;
		/* Credit is given back unused. */
		struct {
			uint64_t pkts;
		} refund;
	};
};
/** gx_wire_rec_size() - Bytes that @r takes in a CTL packet, inline data included; a multiple of 8.
 */
uint32_t gx_wire_rec_size(const struct gx_wire_rec *r);
/** gx_wire_rec_put() - Return: bytes written, 0 when @room is too small. */
uint32_t gx_wire_rec_put(uint8_t *b, uint32_t room, const struct gx_wire_rec *r);
/** gx_wire_rec_get() - Decode the record at @b. Return: bytes consumed, -EPROTO. */
int gx_wire_rec_get(const uint8_t *b, uint32_t len, struct gx_wire_rec *r);

/* ---- Hello: messages of the bootstrap connection ---- */

/* Frame: u32 length of what follows, u16 type, u16 zero. */

#define GX_HELLO_MAGIC	   0x31307867u /* "gx01" */
#define GX_HELLO_VERSION   6	       /* of the bootstrap; packets have GX_WIRE_VERSION */
#define GX_HELLO_FRAME_MAX 65536
#define GX_HELLO_LANES	   64
#define GX_HELLO_REGIONS   64
#define GX_HELLO_PORTS	   8
#define GX_NAME_MAX	   64 /* with the final 0 */

enum gx_hello_type {
	GX_HELLO_HELLO = 1, /* both ways, first */
	GX_HELLO_CONNECT,   /* client: port chosen, lanes */
	GX_HELLO_ACCEPT,    /* server: lanes */
	GX_HELLO_UP,	    /* both ways: lanes connected, traffic may flow */
	GX_HELLO_ERROR,	    /* either: err and text, then the connection closes */
	GX_HELLO_USER,	    /* a user's small message, gx_conn_msg() */
	GX_HELLO_BYE,	    /* orderly end */
};

/* The links that an end offers (a bit each in gx_hello.links), and the one a connection takes. */
enum gx_link_id { GX_LINK_PACKET, GX_LINK_LOCAL };
#define GX_LINKS_ALL (1u << GX_LINK_PACKET | 1u << GX_LINK_LOCAL)

/* How a peer on the same host gets at a region's memory. */
enum gx_export_kind {
	GX_EXPORT_NONE,	    /* not at all: the packet link carries what goes there */
	GX_EXPORT_MEMFD,    /* descriptor on the Unix socket: host memory */
	GX_EXPORT_VMM,	    /* descriptor on the Unix socket: memory of a GPU */
	GX_EXPORT_CUDA_IPC, /* handle: memory of a GPU */
};
#define GX_EXPORT_HANDLE_B 64

struct gx_hello_export {
	uint8_t kind;	  /* enum gx_export_kind; NONE: the rest is zero */
	uint64_t map_len; /* bytes that can be mapped */
	uint64_t map_off; /* where in them the region begins */
	uint64_t map_id;  /* of the allocation, not used again in the life of the process */
	uint8_t handle[GX_EXPORT_HANDLE_B]; /* CUDA_IPC only */
};

struct gx_hello_region {
	char name[GX_NAME_MAX];
	uint64_t token, len;
	uint8_t kind;	/* enum gx_mem_kind */
	uint8_t access; /* GX_ACCESS_* */
	uint16_t device;
	struct gx_hello_export export;
};

struct gx_hello {
	uint32_t magic, version;
	uint32_t pid, uid;
	uint8_t host_id[16];	     /* boot id and network namespace: equal means same host */
	char unix_name[GX_NAME_MAX]; /* abstract Unix socket for descriptors, "" for none */
	uint8_t nonce[16];	     /* names this connection on the Unix socket */
	uint32_t nr_lanes;	     /* cores offered */
	uint32_t chunk_b, window;    /* maxima */
	uint32_t integrity;	     /* modes offered, bit i: mode i */
	uint32_t links;		     /* links offered, bit i: enum gx_link_id i */
	uint32_t nr_ports;
	struct {
		char name[GX_NAME_MAX]; /* "shm", "udp", "dpdk:net_memif" */
		uint32_t flags, payload_max, payload_best;
		char host[GX_NAME_MAX]; /* what must be equal at both ends to reach each other, ""
					   for nothing */
	} ports[GX_HELLO_PORTS];
	uint32_t nr_regions;
	struct gx_hello_region regions[GX_HELLO_REGIONS];
};

struct gx_hello_lane {
	struct gx_port_addr
		port;	 /* fd, and behind it pool_fd, travel on the Unix socket, in the order
			    of lanes; here: fd 0 or -1, and has_pool, say which there are */
	uint32_t cid;	 /* the receiver's */
	uint32_t credit; /* at the start */
	uint64_t psn;	 /* first psn this end will send */
	uint32_t salt;	 /* of CRCs this end expects */
};

struct gx_hello_lanes { /* CONNECT and ACCEPT */
	char port[GX_NAME_MAX];
	uint8_t link; /* enum gx_link_id */
	/* bit kind: what comes into memory of the sender's of that enum gx_mem_kind is checked while
	 * it is copied, so that acknowledged packets may be asked for again; with integrity mode 1
	 * only */
	uint8_t late;
	uint32_t quantum, chunk_b, window, integrity; /* CONNECT: wanted; ACCEPT: what holds */
	uint64_t peer_timeout_ns;
	uint32_t nr_lanes;
	struct gx_hello_lane lanes[GX_HELLO_LANES];
};

struct gx_hello_error {
	int32_t err;
	char text[256];
};

/* Encoders write a whole frame into @b (GX_HELLO_FRAME_MAX) and return its length. */
uint32_t gx_hello_put(uint8_t *b, const struct gx_hello *h);
uint32_t gx_hello_lanes_put(uint8_t *b, enum gx_hello_type type, const struct gx_hello_lanes *l);
uint32_t gx_hello_error_put(uint8_t *b, const struct gx_hello_error *e);
uint32_t gx_hello_plain_put(uint8_t *b, enum gx_hello_type type, const void *data,
			    uint32_t len); /* UP, BYE, USER */
/* Frame header: 8 bytes. Return 0 and type and body length (without the 8 bytes), or -EPROTO. */
int gx_hello_frame(const uint8_t *b, uint16_t *type, uint32_t *body_len);
/* Decoders take the body. 0, -EPROTO; -EPROTONOSUPPORT when magic is right and version is another.
 * Strings are always terminated afterwards. */
int gx_hello_get(const uint8_t *b, uint32_t len, struct gx_hello *h);
int gx_hello_lanes_get(const uint8_t *b, uint32_t len, struct gx_hello_lanes *l);
int gx_hello_error_get(const uint8_t *b, uint32_t len, struct gx_hello_error *e);

#endif
