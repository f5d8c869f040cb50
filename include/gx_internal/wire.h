/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Formats on the wire: the packet header, acknowledgements and control records of a packet link,
 * and the hello of the bootstrap connection. Pure encode and decode (packets:
 * dataplane/flow/wire.c, hello: dataplane/control/hello.c); little endian. A decoder never reads
 * past the length that it gets, and accepts nothing that it does not know.
 */
#ifndef GX_INTERNAL_WIRE_H
#define GX_INTERNAL_WIRE_H

#include "gx_internal/base.h"
#include "gx_internal/port.h"

#include <string.h>

#define GX_WIRE_ERR_MAX	    4095 /* largest errno of Linux, include/linux/err.h */
#define GX_WIRE_VERSION	    4
#define GX_WIRE_HDR_B	    38 /* IPv4: payload starts at byte 80 of the frame */
#define GX_WIRE_PHASE_AT    21 /* integrity modes 2, 3: u8, low bits of the key phase's number */
#define GX_WIRE_TAG_AT	    22 /* likewise: the tag; what is before it, it covers */
#define GX_WIRE_QUANTUM_MIN 1280
#define GX_WIRE_QUANTUM_MAX 65520 /* plen has 16 bits */
#define GX_WIRE_ACK_WORDS   16	  /* at most; 8 by default */
#define GX_WIRE_INLINE_MAX  1024  /* bytes of data that an OPEN may carry */
#define GX_WIRE_SEGS	    64	  /* of a LIST or GETS */
#define GX_WIRE_LIST_B	    (GX_WIRE_SEGS * GX_WIRE_QUANTUM_MIN) /* bytes of one, at most */
#define GX_WIRE_MIDS	    1024 /* messages open in a direction; place of a mid: mid % GX_WIRE_MIDS */
#define GX_WIRE_DONE_WORDS  (GX_WIRE_MIDS / 64)
#define GX_WIRE_ACK_MAX	    (32 + 8 * (GX_WIRE_DONE_WORDS + GX_WIRE_ACK_WORDS)) /* bytes */
#define GX_WIRE_ACTIVE	    64 /* messages of more than 80 KiB under way, in a direction */

enum gx_pkt_type { GX_PKT_DATA = 1, GX_PKT_CTL, GX_PKT_ACK, GX_PKT_PROBE };

/* SEEK: of a PROBE: its sender hears nothing, so the receiver is to try all its paths. */
enum gx_pkt_flag { GX_PKT_EOM = 1, GX_PKT_ACK_NOW = 2, GX_PKT_SEEK = 4 };

enum gx_integrity { GX_INTEGRITY_NONE, GX_INTEGRITY_CRC, GX_INTEGRITY_MAC, GX_INTEGRITY_GCM };

/* The header, decoded. docs/wire.md has the layout. */
struct gx_wire_hdr {
	uint8_t type, flags;
	uint16_t plen; /* payload bytes */
	uint32_t cid;  /* receiver's connection: index 20 bits, generation 12 bits above */
	uint32_t psn;  /* low half of a 64-bit number */
	uint32_t mid;  /* DATA: message; CTL: bytes of an acknowledgement after the records */
	uint64_t moff; /* bytes; a multiple of 16 below 2^36 */
	uint32_t crc_hdr, crc_payload; /* integrity mode 1; 0 in mode 0; in 2 and 3, of the tag */
};

/** gx_wire_hdr_put() - Encode into @b (GX_WIRE_HDR_B bytes). With @mode CRC it computes crc_hdr
 * over the header with that field 0, continuing from @salt. The caller computes crc_payload. In modes
 * MAC and GCM the caller writes phase and tag afterwards. */
void gx_wire_hdr_put(uint8_t *b, const struct gx_wire_hdr *h, enum gx_integrity mode,
		     uint32_t salt);
/** gx_wire_hdr_crc() - Mode CRC: the header in @b was put in mode NONE, and now gets @crc, of the
 * payload, and the CRC of itself. */
void gx_wire_hdr_crc(uint8_t *b, uint32_t crc, uint32_t salt);
/** gx_wire_hdr_get() - Decode, and check version, type, flags, doff, lengths (@plen_seen: bytes that
 * arrived). Return: 0, -EPROTO. Once the connection is known: gx_wire_hdr_plain() says for modes 0 and
 * 1 whether all is zero that a header then has no use for, gx_wire_hdr_check() checks the CRC. */
int gx_wire_hdr_get(const uint8_t *b, uint32_t len, uint32_t plen_seen, struct gx_wire_hdr *h);
int gx_wire_hdr_check(const uint8_t *b, const struct gx_wire_hdr *h,
		      uint32_t salt); /* 0, -EBADMSG */
static inline bool gx_wire_hdr_plain(const uint8_t *b)
{
	uint64_t rest;

	memcpy(&rest, b + GX_WIRE_HDR_B - sizeof(rest), sizeof(rest));
	return !(b[GX_WIRE_PHASE_AT] | rest);
}

/* Acknowledgement: payload of ACK. */
struct gx_wire_ack {
	uint64_t largest;    /* largest psn received (64-bit) */
	uint32_t delay_ns;   /* time that the receiver held it */
	uint32_t credit;     /* first transmissions of DATA allowed since the start, low 32 bits */
	uint32_t number;     /* number of this ACK, one more than the last */
	uint32_t marks;	     /* packets that came with a mark of congestion, low 32 bits */
	uint16_t done_words; /* bit w: the ACK has done[w] */
	uint16_t nr_words;   /* 1..GX_WIRE_ACK_WORDS */
	uint64_t done[GX_WIRE_DONE_WORDS]; /* place 64 w + i is bit i of done[w]: flips with each
					    * message done there (its bytes visible, or given up) */
	uint64_t words[GX_WIRE_ACK_WORDS]; /* bit i of words[w]: psn largest - 64 w - i was received
					    * (bit 0 of words[0], largest itself, is always set) */
};
/* Return: bytes written (at most GX_WIRE_ACK_MAX, @b has GX_CTL_PAYLOAD_MAX). */
uint32_t gx_wire_ack_put(uint8_t *b, const struct gx_wire_ack *a);
int gx_wire_ack_get(const uint8_t *b, uint32_t len, struct gx_wire_ack *a); /* 0, -EPROTO */

/* Control records: the payload of a CTL packet is a sequence of them. Each is delivered exactly
 * once: rsn is its number in the connection, and the receiver remembers the numbers that it has
 * seen. */
enum gx_rec_type {
	GX_REC_OPEN = 1,
	GX_REC_OFFER,
	GX_REC_GET,
	GX_REC_RESEND,
	GX_REC_FAIL,
	GX_REC_CANCEL,
	GX_REC_LIST,
	GX_REC_GETS,
	GX_REC_REVOKE,
	GX_REC_REFUND
};

enum gx_rec_flag {
	GX_REC_IMM = 1,	    /* OPEN: imm is for the user */
	GX_REC_INLINE = 2,  /* OPEN: len bytes of data follow the record */
	GX_REC_GPU = 4,	    /* OFFER, GET: the slot is GPU memory (no inline data) */
	GX_REC_HIDDEN = 4,  /* OPEN with IMM: imm is not for the user, but for his notes */
	GX_REC_SLOT = 8,    /* OPEN: token is a posted slot, which this message uses up; FAIL: id is
			      a slot token */
	GX_REC_AGAIN = 16,  /* OPEN: replaces message old_mid, whose packets are too large for the
			      path; never with INLINE */
	GX_REC_PULL = 32,   /* OPEN: no packets follow; the receiver reads the bytes out of the
			      sender's process; never with INLINE or AGAIN. 64 is free */
	GX_REC_LEASE = 128, /* OPEN with SLOT, of a get: the bytes count when FAIL with error 0 has
			       said that the lease held to the end. GET in a queue of the owner: that
			       word is due */
};

/* Of a LIST or GETS: bytes of the region, which are the message's next ones. */
struct gx_wire_seg {
	uint64_t off;
	uint32_t len;
};

struct gx_link_seg;

/* A record, decoded. A slot's token names it; the end that owns the slot made the token. */
struct gx_wire_rec {
	uint8_t type, flags; /* enum gx_rec_type, enum gx_rec_flag */
	uint32_t rsn;
	union {
		/* A message begins. The record has all that the receiver must know of it. LIST: it is a
		 * put of .nr segments, whose bytes follow each other in the message. */
		struct {
			uint32_t mid, quantum;
			uint64_t token;		/* of the region; with SLOT: of the slot */
			uint64_t off, len, imm; /* imm: also the tag of a send */
			uint32_t old_mid;	/* AGAIN: the message that it replaces */
			uint64_t old_sent;	/* AGAIN: first transmissions of DATA of old_mid */
			union {
				uint64_t from; /* PULL: address in the sender's process */
				uint64_t nr;   /* LIST */
			};
			union {
				const uint8_t *data; /* INLINE: decoded: points into the packet; to
							encode: the bytes to carry. LIST: decoded: for
							gx_wire_seg_get() */
				const struct gx_link_seg *segs; /* LIST: to encode */
			};
		} open;
		/* The receiver posted a receive: the sender may put a send that fits there. */
		struct {
			uint64_t slot, len, tag, tag_mask;
		} offer;
		/* The peer asks for a put of this part of a region into the slot. */
		struct {
			uint64_t token, off, len, slot;
			uint64_t nr; /* GETS: segments that follow each other in the slot */
			union {	     /* GETS, as in a LIST */
				const uint8_t *data;
				const struct gx_link_seg *segs;
			};
		} get;
		/* The receiver asks for whole packets of a message again. */
		struct {
			uint32_t mid;
			uint64_t off, len;
		} resend;
		/* The receiver gives up a message, or (SLOT) a get into a slot. */
		struct {
			uint64_t id;  /* mid; SLOT: token of the slot */
			int32_t err;  /* -errno */
			uint32_t seg; /* of a LIST or GETS: which segment */
		} fail;
		/* The sender gives up a message. */
		struct {
			uint32_t mid;
			uint64_t sent; /* DATA packets sent for the first time */
		} cancel;
		/* The receiver takes an OFFER back. */
		struct {
			uint64_t slot;
		} revoke;
		/* The sender gives unused credit back. */
		struct {
			uint64_t pkts;
		} refund;
	};
};
/** gx_wire_rec_size() - Bytes of @r in a CTL packet, inline data included; a multiple of 8. */
uint32_t gx_wire_rec_size(const struct gx_wire_rec *r);
/** gx_wire_rec_void() - Of a LIST or GETS to encode: it no longer reads its segments, and says one of
 * the same length that lies in no region. So the receiver places none of its bytes. */
void gx_wire_rec_void(struct gx_wire_rec *r);
/** gx_wire_rec_put() - Return: bytes written, 0 when @room is too small. */
uint32_t gx_wire_rec_put(uint8_t *b, uint32_t room, const struct gx_wire_rec *r);
/** gx_wire_rec_get() - Decode the record at @b. Return: bytes consumed, -EPROTO. */
int gx_wire_rec_get(const uint8_t *b, uint32_t len, struct gx_wire_rec *r);
/** gx_wire_seg_get() - Segment @i of the .data of a LIST or GETS. */
struct gx_wire_seg gx_wire_seg_get(const uint8_t *data, unsigned i);

/* ---- Hello: messages of the bootstrap connection ---- */

/* Frame: u32 length of what follows, u16 type, u16 zero. */

#define GX_HELLO_MAGIC	       0x31307867u /* "gx01" */
#define GX_HELLO_CONN_DATA_MAX 64
#define GX_HELLO_VERSION       10 /* of the bootstrap; packets have GX_WIRE_VERSION */
#define GX_HELLO_FRAME_MAX     65536
#define GX_HELLO_LANES	       64
#define GX_HELLO_REGIONS       64
#define GX_HELLO_PORTS	       8
#define GX_HELLO_BLOB_MAX      4608
#define GX_HELLO_OFFER_MAX     320
#define GX_NAME_MAX	       64 /* with the final 0 */

enum gx_hello_type {
	GX_HELLO_HELLO = 1, /* both ways, first */
	GX_HELLO_CONNECT,   /* client: port chosen, lanes */
	GX_HELLO_ACCEPT,    /* server: lanes */
	GX_HELLO_UP,	    /* both ways: lanes connected, traffic may flow */
	GX_HELLO_ERROR,	    /* either: err and text, then the connection closes */
	GX_HELLO_USER,	    /* a user's small message, gx_conn_msg() */
	GX_HELLO_BYE,	    /* orderly end */
	GX_HELLO_DATA,	    /* client: first frame of a data socket; then the link's own frames */
	GX_HELLO_LINK,	    /* both ways: from link to link */
};

/* Links. gx_hello.links has a bit for each that an end offers; a connection takes one. */
enum gx_link_id {
	GX_LINK_PACKET,
	GX_LINK_LOCAL,
	GX_LINK_TCP,
	GX_LINK_VERBS,
	GX_LINKS, /* the last */
};
#define GX_LINKS_ALL ((1u << GX_LINKS) - 1)

/* How does a peer on the same host reach a region's memory? */
enum gx_export_kind {
	GX_EXPORT_NONE,	    /* not at all: the packet link carries the bytes */
	GX_EXPORT_MEMFD,    /* descriptor on the Unix socket: host memory */
	GX_EXPORT_VMM,	    /* descriptor on the Unix socket: memory of a GPU */
	GX_EXPORT_CUDA_IPC, /* handle: memory of a GPU */
	GX_EXPORT_CHUNKS,   /* descriptor on the Unix socket: of a socket that is full of those of
			       the allocations, memory of a GPU; see gpu/chunks.h */
};
#define GX_EXPORT_HANDLE_B 64

struct gx_hello_export {
	uint8_t kind;	  /* enum gx_export_kind; NONE: the rest is zero */
	uint64_t map_len; /* bytes that can be mapped */
	uint64_t map_off; /* offset of the region in these bytes */
	uint64_t map_id;  /* id of the allocation; the process uses it only once */
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
	uint64_t id;		     /* of the context: the owner in its keys */
	uint32_t nr_lanes;	     /* cores offered */
	uint32_t chunk_b, window;    /* maxima */
	uint32_t integrity;	     /* modes offered, bit i: mode i */
	uint32_t links;		     /* links offered, bit i: enum gx_link_id i */
	uint32_t nr_ports;
	struct {
		char name[GX_NAME_MAX]; /* "shm", "udp", "dpdk:net_memif" */
		uint32_t flags, payload_max, payload_best;
		char host[GX_NAME_MAX]; /* must be equal for two ends to reach each other, "" for no
					   condition */
	} ports[GX_HELLO_PORTS];
	uint32_t nr_regions;
	struct gx_hello_region regions[GX_HELLO_REGIONS];
	uint8_t data_len; /* of the program's connect data */
	uint8_t data[GX_HELLO_CONN_DATA_MAX];
	/* Of each link that is offered: what it says of itself, in its own words. */
	struct gx_hello_offer {
		uint16_t len;
		uint8_t b[GX_HELLO_OFFER_MAX];
	} offer[GX_LINKS];
};

struct gx_hello_lane {
	struct gx_port_addr
		port;	 /* fd, and after it pool_fd, travel on the Unix socket, in the order of
			    lanes. In the frame fd 0 or -1, and has_pool, say which there are */
	uint32_t cid;	 /* of the receiver: packets to this end carry it */
	uint32_t credit; /* at the start */
	uint64_t psn;	 /* first psn this end will send */
	uint32_t salt;	 /* salt of the CRCs that this end expects */
};

struct gx_hello_lanes {		/* CONNECT and ACCEPT */
	char port[GX_NAME_MAX]; /* a link without a port: its own name */
	uint8_t link;		/* enum gx_link_id */
	/* bit kind (enum gx_mem_kind): this end checks payload for its memory of that kind while it
	 * copies it, so it may ask for acknowledged packets again; with integrity mode 1 only */
	uint8_t crc_by_copy;
	uint8_t half[32]; /* public, of X25519: what comes of both goes into the secrets of data.
			   * Without TLS zero */
	uint32_t quantum, chunk_b, window, integrity; /* CONNECT: wanted; ACCEPT: agreed */
	uint64_t peer_timeout_ns;
	uint32_t nr_lanes;
	struct gx_hello_lane lanes[GX_HELLO_LANES];
	/* Ports named .port that lanes take in turn, by their numbers in the two HELLOs. 0: the first
	 * one of that name, at both ends */
	uint32_t nr_ports;
	struct gx_hello_pair {
		uint8_t client, server;
	} ports[GX_HELLO_PORTS];
	/* What the link says, in its own words. */
	uint16_t blob_b;
	uint8_t blob[GX_HELLO_BLOB_MAX];
};

/* A socket for data joins its connection. */
struct gx_hello_data {
	uint8_t token[16]; /* of the server's ACCEPT */
	uint32_t lane, index;
};

struct gx_hello_error {
	int32_t err;
	uint16_t reason; /* enum gx_reason, perhaps of a later version */
	char text[256];
};

/* Encoders write a whole frame into @b (GX_HELLO_FRAME_MAX) and return its length. */
uint32_t gx_hello_put(uint8_t *b, const struct gx_hello *h);
uint32_t gx_hello_lanes_put(uint8_t *b, enum gx_hello_type type, const struct gx_hello_lanes *l);
uint32_t gx_hello_error_put(uint8_t *b, const struct gx_hello_error *e);
uint32_t gx_hello_data_put(uint8_t *b, const struct gx_hello_data *d);
uint32_t gx_hello_plain_put(uint8_t *b, enum gx_hello_type type, const void *data,
			    uint32_t len); /* UP, BYE, USER */
/* Frame header: 8 bytes. Return: 0 with type and body length (without the 8 bytes), or -EPROTO. */
int gx_hello_frame(const uint8_t *b, uint16_t *type, uint32_t *body_len);
/* Decoders take the body. Return: 0, -EPROTO; -EPROTONOSUPPORT: magic is right, but version is
 * another. They terminate all strings. */
int gx_hello_get(const uint8_t *b, uint32_t len, struct gx_hello *h);
int gx_hello_lanes_get(const uint8_t *b, uint32_t len, struct gx_hello_lanes *l);
int gx_hello_error_get(const uint8_t *b, uint32_t len, struct gx_hello_error *e);
int gx_hello_data_get(const uint8_t *b, uint32_t len, struct gx_hello_data *d);

#endif
