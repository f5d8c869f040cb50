/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters of a core: an enum and its names and help, from one list. Only the core's thread writes
 * a counter (relaxed); any thread reads it. poll/stat.c prints them as plain text and for
 * Prometheus.
 */
#ifndef GX_INTERNAL_STAT_H
#define GX_INTERNAL_STAT_H

#include "gx_internal/base.h"

#include <stdatomic.h>

/* name, help. The name of a gauge ends in _now; before that a unit: _b bytes, _ns. */
#define GX_STAT_LIST(X)                                                                            \
	X(TURNS, turns, "turns of the loop")                                                       \
	X(CYCLES_BUSY, cycles_busy, "TSC cycles of turns that did work")                           \
	X(CYCLES_IDLE, cycles_idle, "TSC cycles of turns that did none, sleeps included")          \
	X(SLEEPS, sleeps, "bounded sleeps of the idle policy")                                     \
	X(STALLS, stalls, "times that nobody ran the core for a second or longer")                 \
	X(RX_PKTS, rx_pkts, "packets received")                                                    \
	X(RX_BYTES, rx_bytes, "payload bytes received")                                            \
	X(RX_DUP, rx_dup, "duplicate packets, their buffers given back at once")                   \
	X(RX_BAD, rx_bad, "packets dropped: malformed, or against the protocol")                   \
	X(RX_MARKED, rx_marked, "data packets that a network marked: a queue was long (ECN)")      \
	X(RX_STRAY, rx_stray, "packets dropped: unknown connection or message")                    \
	X(RX_CRC, rx_crc, "packets dropped: CRC mismatch")                                         \
	X(RX_FORGED, rx_forged, "packets dropped: not sealed with a key of their connection")      \
	X(RX_CRC_UNPACK, rx_crc_unpack, "fragments found wrong by whoever unpacked them")          \
	X(RX_NOBUF, rx_nobuf, "packets without a buffer; udp: or from no peer's port")             \
	X(TX_PKTS, tx_pkts, "packets sent, first transmissions and resends")                       \
	X(TX_BYTES, tx_bytes, "payload bytes sent")                                                \
	X(TX_PUSHED, tx_pushed, "payload bytes given to a GPU to write into a peer's bounce pool") \
	X(TX_RESENT, tx_resent, "packets sent again")                                              \
	X(RESEND_ASKED, resend_asked, "packets asked for again: found wrong while unpacked")       \
	X(RESEND_SERVED, resend_served, "packets sent again because the peer asked for them")      \
	X(RESEND_STRAY, resend_stray,                                                              \
	  "requests to send again that were ignored: no such message or range")                    \
	X(TX_SPURIOUS, tx_spurious, "packets sent again although the first one had arrived")       \
	X(TX_FULL, tx_full, "times a port took fewer packets than offered")                        \
	X(ACK_TX, ack_tx, "acknowledgements sent")                                                 \
	X(ACK_RX, ack_rx, "acknowledgements received")                                             \
	X(PROBE_TX, probe_tx, "probes sent")                                                       \
	X(RTO, rto, "retransmission time-outs")                                                    \
	X(PATH_MOVES, path_moves, "times that a connection left a path that was dead")             \
	X(PATH_DEAD, path_dead_now, "paths of connections that are dead")                          \
	X(CC_APP_NS, cc_app_ns,                                                                    \
	  "time in which nothing waited to be sent, of connections with congestion control")       \
	X(CC_LINK_NS, cc_link_ns, "the same: the rate of the path was the limit")                  \
	X(CC_WINDOW_NS, cc_window_ns, "the same: the window of bytes under way was")               \
	X(CC_CREDIT_NS, cc_credit_ns, "the same: the receiver's credit was")                       \
	X(CC_CORE_NS, cc_core_ns, "the same: this core had no CPU when a packet was due")          \
	X(CC_RATE, cc_rate_now, "bytes a second that their paths carry, as far as known")          \
	X(CC_RTT, cc_rtt_ns_now, "round trip of one of them, the last that was measured")          \
	X(CREDIT_STALL, credit_stall, "turns in which a message waited for credit")                \
	X(CREDIT_LAPSED, credit_lapsed,                                                            \
	  "buffers that a peer was granted and let lie: others have them")                         \
	X(STAGE_TAKEN, stage_taken,                                                                \
	  "pinned chunks taken back from peers that acknowledge nothing")                          \
	X(BLOCKS, blocks, "descriptor blocks launched")                                            \
	X(LAUNCHES, launches, "launches (a launch takes several blocks)")                          \
	X(DESCS, descs, "descriptors written")                                                     \
	X(MERGES, merges, "fragments merged into the descriptor before")                           \
	X(MSGS_TX, msgs_tx, "messages sent")                                                       \
	X(MSGS_RX, msgs_rx, "messages received")                                                   \
	X(MSGS_AGAIN, msgs_again, "messages begun again with smaller packets")                     \
	X(MSGS_FAILED, msgs_failed, "operations that ended with an error")                         \
	X(STALE, stale, "operations of peers refused: their region or key was withdrawn")          \
	X(LOCAL_PUTS, local_puts, "puts copied straight into a peer's memory")                     \
	X(LOCAL_GETS, local_gets, "gets copied straight out of a peer's memory")                   \
	X(LOCAL_BYTES, local_bytes, "payload bytes of both")                                       \
	X(LOCAL_MISSES, local_misses, "puts and gets of the local link that went by packets")      \
	X(PULLS, pulls, "messages read out of a peer's process in one copy")                       \
	X(PULL_BYTES, pull_bytes, "payload bytes of them")                                         \
	X(PULL_HELPED_BYTES, pull_helped_bytes, "the part of them that helpers read (gx_help())")  \
	X(PULLS_FAILED, pulls_failed, "messages that the kernel did not let this end read")        \
	X(VERBS_PUTS, verbs_puts, "puts written into a peer's memory by an RDMA device")           \
	X(VERBS_GETS, verbs_gets, "gets read out of a peer's memory by an RDMA device")            \
	X(VERBS_BYTES, verbs_bytes, "payload bytes of both")                                       \
	X(VERBS_MISSES, verbs_misses, "puts and gets of the verbs link that went by packets")      \
	X(VERBS_REDONE, verbs_redone, "chunks sent again because a queue pair had failed")         \
	X(VERBS_QPS_LOST, verbs_qps_lost, "queue pairs that failed")                               \
	X(TCP_ZC_SENDS, tcp_zc_sends, "sends of link tcp by a NIC that reads memory of a GPU")     \
	X(TCP_ZC_BYTES, tcp_zc_bytes, "payload bytes of them")                                     \
	X(TCP_ZC_LOST, tcp_zc_lost,                                                                \
	  "of these sends: the kernel never reported their end; their connection was reset")       \
	X(MAPS_MADE, maps_made, "memory of peers on this host that was mapped")                    \
	X(MAPS_FOUND, maps_found, "the same, found mapped for an earlier connection")              \
	X(MAPS, maps_now, "memory of peers on this host that is mapped")                           \
	X(PEER_PUTS, peer_local_puts, "puts that peers say they copied straight into our memory")  \
	X(PEER_GETS, peer_local_gets, "gets that peers say they copied straight out of it")        \
	X(PEER_BYTES, peer_local_bytes, "payload bytes of both")                                   \
	X(PEERS_UP, peers_up, "connections that came up")                                          \
	X(PEERS_LOST, peers_lost,                                                                  \
	  "connections that ended otherwise than by an orderly end of either side")                \
	X(PEERS, peers_now, "connections that are up")                                             \
	X(LOG_DROPPED, log_dropped, "lines of the log for which its reader had no room")           \
	X(CTL_BAD, ctl_bad, "bad hellos and control messages refused")                             \
	X(QUARANTINED_B, quarantined_b_now, "bytes held back until a peer or a GPU lets go")       \
	X(BUFS_HELD, bufs_held_now, "bounce buffers held by blocks")                               \
	X(MSGS_ACTIVE, msgs_active_now, "messages under way, both directions")

enum gx_stat_id {
#define GX_STAT_ENUM(id, name, help) GX_STAT_##id,
	GX_STAT_LIST(GX_STAT_ENUM)
#undef GX_STAT_ENUM
		GX_STAT_NR
};

struct gx_stats {
	alignas(GX_CACHE_LINE) _Atomic uint64_t v[GX_STAT_NR];
};

extern const char *const gx_stat_name[GX_STAT_NR];
extern const char *const gx_stat_help[GX_STAT_NR];

/* A plain add: with one writer it needs no locked instruction. */
static inline void gx_stat_add(struct gx_stats *s, enum gx_stat_id id, uint64_t n)
{
	atomic_store_explicit(&s->v[id], atomic_load_explicit(&s->v[id], memory_order_relaxed) + n,
			      memory_order_relaxed);
}

static inline void gx_stat_set(struct gx_stats *s, enum gx_stat_id id, uint64_t n)
{
	atomic_store_explicit(&s->v[id], n, memory_order_relaxed);
}

static inline uint64_t gx_stat_get(const struct gx_stats *s, enum gx_stat_id id)
{
	return atomic_load_explicit(&s->v[id], memory_order_relaxed);
}

enum gx_stat_format { GX_STAT_TEXT, GX_STAT_PROMETHEUS };

/**
 * gx_stat_print() - Print all counters into @buf, a line a counter and core. The last of the @n is
 * the control thread's, and is named so. The output begins with the time since the library was
 * loaded (text), or with version and start (Prometheus).
 * Return: bytes written without the final 0, or -ENOSPC.
 */
int gx_stat_print(const struct gx_stats *const cores[], unsigned n, enum gx_stat_format format,
		  char *buf, size_t room);

#endif
