#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Do the tests see the mistakes that one makes in a protocol, and around it? Each mutant is one: a line changed in a copy of the
tree, which is built, and a few tests that ought to fail. Prints who caught it, by an assertion or by a time-out. Not a test of ./run:
it builds some forty times.

usage: tests/house/mutants.py [-j JOBS] [-k] [NAME...]      -k: keep the copy. Without names: all, after a run without a mutant.

Exit status: 0 when each mutant was caught by an assertion, 1 when one was not, 2 when one does not apply any more (the line that it
changes has changed: then change it here) or does not build.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
LIMIT_S = 120  # of one test's run: several times what it needs

# name: (what, [(file, line as it is, line as it shall be)], [tests: program, with its folder in BUILD/tests, and arguments])
MUTANTS = {
    "M1": ("a sender uses one credit more than it was granted",
           [("dataplane/packet/flow.c", "\treturn f->tx_limit - f->tx_used;", "\treturn f->tx_limit - f->tx_used + 1;")],
           ["flow", "sim_ops put__local"]),
    "M1b": ("one credit is lost at each CANCEL of a message under way",
            [("dataplane/packet/in.c", "(e, rec->cancel.sent - seen);", "(e, rec->cancel.sent - seen - 1);")],
            ["sim_ops cancel__put"]),
    "M2": ("a packet that comes twice is placed twice, and its buffer goes back at once",
           [("dataplane/packet/rx.c", "\t\tflow_rx_take(e->flow, e->now_ns, h.psn, false, true);\n\t\treturn false;\n\t}\n\treturn rx_place",
             "\t\trx_place(e, rx, &h, m);\n\t\treturn false;\n\t}\n\treturn rx_place")],
           ["sim_lives twice__data"]),
    "M3": ("the generation of a cid is ignored",
           [("dataplane/packet/rx.c", "!e || e->gen != h->cid >> 20 || e->err", "!e || e->err")],
           ["sim_lives restart__cid"]),
    "M4": ("a buffer goes back to the port when its descriptor is written",
           [("dataplane/packet/rx.c", "\t\tif (!rx_data_one(l, &l->rx_data[i]))\n", "\t\trx_data_one(l, &l->rx_data[i]);\n")],
           ["sim late_copies"]),
    "M5": ("a put without notification is done when all its packets are held",
           [("dataplane/packet/rx.c", "\tm->pending++;\n\te->rx.held_bufs++;",
             "\tm->pending++;\n\tif (msg_win_full(&m->win) && !m->imm_set && m->op == PKT_NONE && !m->imm) {\n"
             "\t\tm->imm = 1;\n\t\te->rx.done[m->mid % GX_WIRE_MIDS / 64] ^= 1ull << (m->mid & 63);\n"
             "\t\te->rx.done_used |= 1u << m->mid % GX_WIRE_MIDS / 64;\n\t\te->rx.done_due |= 1u << m->mid % GX_WIRE_MIDS / 64;\n\t}\n\te->rx.held_bufs++;"),
            ("dataplane/packet/in.c", "\te->rx.done[i / 64] ^= 1ull << (i & 63);\n",
             "\tif (!(m->imm == 1 && !m->imm_set))\n\t\te->rx.done[i / 64] ^= 1ull << (i & 63);\n")],
           ["sim_ops done__beside", "resend"]),
    "M5b": ("a message has landed while its last fragment is still being copied",
            [("dataplane/packet/in.c", "m->visible_b == m->len && !m->pending && msg_win_full", "m->pending <= 1 && msg_win_full"),
             ("dataplane/packet/rx.c", "\tm->pending++;\n\te->rx.held_bufs++;", "\tm->pending++;\n\tin_check_landed(e, m);\n\te->rx.held_bufs++;")],
            ["sim late_copies", "resend"]),
    "P1": ("bytes count that were read after the sender took its memory back",
           [("dataplane/packet/pull.c", "\treturn atomic_fetch_or_explicit(&e->pull.taken_rx[taken_word(mid)], 0,", "\treturn 0 & atomic_fetch_or_explicit(&e->pull.taken_rx[taken_word(mid)], 0,")],
           ["local_pull cancel__while_the_peer_reads", "local_pull freed__*"]),
    "P2": ("a sender does not say that it takes its memory back",
           [("dataplane/packet/op.c", "\tif (status && op->pulled)\n\t\tpull_take_back(e, op);", "\tif (0)\n\t\tpull_take_back(e, op);")],
           ["local_pull cancel__while_the_peer_reads"]),
    "P3": ("the bit of the message before stays",
           [("dataplane/packet/tx.c", "\t\tpull_give(e, op);\n", "\t\t(void)pull_give;\n")],
           ["local_pull cancel__while_the_peer_reads"]),
    "P4": ("any process is the peer's",
           [("dataplane/packet/pull.c", " || memcmp(word, who->word, sizeof(word)))", ")")],
           ["local_pull read__of_a_process_that_is_gone"]),
    "P5": ("a read that moves nothing is tried for ever",
           [("dataplane/packet/pull_in.c", "} else if (n != -EINTR && n", "} else if (n && n != -EINTR && n")],
           ["local_pull unmapped__*", "local_pull read__short_counts"]),
    "P6": ("an OPEN to pull is taken by an end that does not read",
           [("dataplane/packet/in.c", "return e->pull.who.pid && gpu", "return gpu")],
           ["local_pull hostile__*"]),
    "P7": ("a right that was taken away is tried again for each message",
           [("dataplane/packet/pull_in.c", "if (err != -EFAULT && err != -ECONNRESET)", "if (0)")],
           ["local_pull read__is_forbidden_later"]),
    "P8": ("a refused message stays among those that are read",
           [("dataplane/packet/in.c", "\tpull_forget(e, m);\n\tin_goto(m, IN_REFUSED);", "\tin_goto(m, IN_REFUSED);")],
           ["local_pull receiver__cancels"]),
    "P9": ("pulls are taken for fast without a look",
           [("dataplane/local/local_pull.c", "\treturn gx->pull_ns / 2 < gx->copy_ns;", "\treturn true;")],
           ["local_pull auto__*"]),
    "P10": ("a probe that was refused counts as a good one",
            [("dataplane/local/local_pull.c", "why_not = n ? probe_err(n) : NULL;", "why_not = n && n != -EPERM ? probe_err(n) : NULL;")],
            ["local_pull probe__*"]),
    "P15": ("the endpoints of a core read without a common limit",
            [("dataplane/packet/pull_in.c", "if (!e->link->pull_left_b)", "if (0)")],
            ["local_pull turn__*"]),
    "P14": ("a peer that was told of no word is believed that it reads",
            [("dataplane/local/local_pull.c", "p->peer_reads = pull_not(c) ? NULL :", "p->peer_reads = 0 ? NULL :")],
            ["local_pull hostile__it_says*"]),
    "P13": ("the receiver's limit of pulls does not count",
            [("dataplane/packet/pull.c", "over_b && op->len > over_b && memory", "over_b && memory")],
            ["local_pull send__the_larger*"]),
    "P12": ("the connection to a process that is gone goes on",
            [("dataplane/packet/pull_in.c", "if (err == -ECONNRESET) /*", "if (0 && err == -ECONNRESET) /*")],
            ["local_pull read__of_a_process_that_is_gone"]),
    "P11": ("an OPEN that has the bytes tells of an address, too",
            [("dataplane/packet/tx.c", "op->pulled = !again && !op->inlined && op_pulls", "op->pulled = !again && op_pulls")],
            ["local_pull send__a_limit*"]),
    "M6a": ("the words of an ACK overlap by a bit",
            [("dataplane/packet/flow.c", "bits_get(f->rx, f->rx_mask, top - 64ull * w);", "bits_get(f->rx, f->rx_mask, top - 63ull * w);")],
            ["flow"]),
    "M6b": ("each word of done but the first is that of the next places",
            [("dataplane/packet/make.c", "= e->rx.done[__builtin_ctz(rest)];", "= e->rx.done[(__builtin_ctz(rest) + (__builtin_ctz(rest) > 0)) & 15];")],
            ["sim_ops refuse__many", "sim_ops done__words"]),
    "M6c": ("a packet out of order is marked in the next word",
            [("dataplane/packet/msg.c", "\t\tw->words[(pkt & w->mask) / 64] |= 1ull << (pkt & 63);",
              "\t\tw->words[((pkt + 64) & w->mask) / 64] |= 1ull << (pkt & 63);")],
            ["msg"]),
    "M7a": ("resends use credit",
            [("dataplane/packet/tx.c", "\t\t\tn++;\n\t\t\tgx_stat_add(pkt_stats(e->link), GX_STAT_TX_RESENT, 1);",
              "\t\t\tn++;\n\t\t\tif (flow_credit(e->flow))\n\t\t\t\tflow_credit_use(e->flow, 1);\n"
              "\t\t\tgx_stat_add(pkt_stats(e->link), GX_STAT_TX_RESENT, 1);")],
            ["sim loss"]),
    "M7b": ("first transmissions go out without credit",
            [("dataplane/packet/tx.c", "\tcredit = flow_credit(e->flow);", "\tcredit = GX_BURST_MAX;"),
             ("dataplane/packet/tx.c", "\tflow_credit_use(e->flow, n - from);", "\tflow_credit_use(e->flow, GX_MIN(n - from, flow_credit(e->flow)));")],
            ["sim_ops put__local", "sim loss"]),
    "M8": ("no timer of the flow ever fires",
           [("dataplane/packet/flow.c", "\tif (f->lossless || !f->nr_out)\n\t\treturn 0;\n", "\tif (f)\n\t\treturn 0;\n")],
           ["flow tick"]),
    "M9": ("DATA of a message that is not open yet is acknowledged",
           [("dataplane/packet/rx.c", "\t\t\trx_fault(e, -EPROTO); /* its OPEN cannot be behind it */\n\t\treturn false;",
             "\t\t\trx_fault(e, -EPROTO); /* its OPEN cannot be behind it */\n\t\treturn true;")],
           ["sim loss"]),
    "M10": ("the generation of a slot's token is ignored",
            [("dataplane/packet/op.c", "!e->slots[i].used ||\n\t    slot_token(e, i) != token)", "!e->slots[i].used)")],
            ["sim_lives slot__token"]),
    "M11": ("shm: a slot that the caller has may be named again",
            [("dataplane/ports/shm_rxtx.c", " ||\n\t    peer->state[slot] != SHM_SLOT_POSTED) {", ") {")],
            ["port shm"]),
    "M12": ("shm: an entry of data is rung before it is written",
            [("dataplane/ports/shm.h", "\te->slot = slot;\n",
              "\tatomic_store_explicit(&e->seq, peer->tx_used_head + 1, memory_order_release);\n\te->slot = slot;\n")],
            ["port shm"]),
    "M12b": ("shm: a control entry is rung before it is written",
             [("dataplane/ports/shm_rxtx.c", "\tmemcpy(e->b + GX_ALIGN_UP(pkt->hlen, 8)",
               "\tatomic_store_explicit(&e->seq, peer->tx_ctl_head + 1, memory_order_release);\n\tmemcpy(e->b + GX_ALIGN_UP(pkt->hlen, 8)")],
             ["port shm"]),
    "M13": ("a REFUND that comes twice counts twice",
            [("dataplane/packet/rx.c", "if (rec_is_new(e, rec.rsn))", "if (rec_is_new(e, rec.rsn) || rec.type == GX_REC_REFUND)")],
            ["sim_lives twice__refund"]),
    "M14": ("a peer may speak for another one's cid",
            [("dataplane/packet/rx.c", "e->err ||\n\t\t\t(rx->peer != GX_PEER_ANY && rx->peer != e->port_peer)))", "e->err))")],
            ["sim_lives cid__of_another"]),
    "M15": ("the random part of a region's token is ignored",
            [("dataplane/core/core.h", "if (!mem || mem->token != token)", "if (!mem)")],
            ["sim_ops refuse__no_such"]),
    "M17": ("a peer is granted all that is left of the pool",
            [("dataplane/packet/share.c", "\treturn l->nr_live > 1 ? l->share.of[l->share.nr_want] : l->port->caps.rx_slots;",
              "\treturn l->port->caps.rx_slots;")],
            ["sim_peers pool__"]),
    "M18": ("the salt of CRCs is always 0",
            [("dataplane/packet/link_pkt.c", "\te->salt = r.salt;", "\te->salt = 0;")],
            ["sim_lives restart__"]),
    "M18b": ("a receiver takes CRCs of any salt",
             [("dataplane/packet/rx.c", "gx_wire_hdr_check(rx->hdr, h, e->salt))", "0)")],
             ["sim_lives restart__salt"]),
    "M19": ("nobody asks for a done that was lost",
            [("dataplane/packet/timer.c", "\ttick_ask(e);\n", "\t(void)tick_ask;\n")],
            ["sim_ops done__lost"]),
    "D1": ("an ACK that was overtaken counts",
           [("dataplane/packet/ack.c", "\t\tif ((int32_t)(ack->number - e->tx.told_by[w]) <= 0)\n\t\t\tcontinue;\n", "")],
           ["sim_ops done__"]),
    "D2": ("DATA of the message before is placed in the one that has its place",
           [("dataplane/packet/rx.c", "active = h.type == GX_PKT_DATA && m->mid == h.mid && m->state", "active = h.type == GX_PKT_DATA && m->state")],
           ["sim_lives twice__of_the_message_before", "sim_ops done__doubles"]),
    "D3": ("CANCEL of the message before ends the one that has its place",
           [("dataplane/packet/in.c", "\tif (m->mid != rec->cancel.mid || (m->state != IN_ACTIVE && m->state != IN_REFUSED))", "\tif (m->state != IN_ACTIVE && m->state != IN_REFUSED)")],
           ["sim_ops done__records"]),
    "D4": ("a message may begin where another one is not done",
           [("dataplane/packet/in.c", "\treturn m->state == IN_FREE && mid - m->mid == GX_WIRE_MIDS;", "\treturn mid - m->mid == GX_WIRE_MIDS;")],
           ["sim_ops done__place"]),
    "D5": ("an OPEN may leave out a message of its place",
           [("dataplane/packet/in.c", "\treturn m->state == IN_FREE && mid - m->mid == GX_WIRE_MIDS;", "\treturn m->state == IN_FREE && mid != m->mid;")],
           ["sim_ops done__place"]),
    "D6": ("where nothing is lost, an ACK does not tell what is new",
           [("dataplane/packet/make.c", "which = e->lossless ? e->rx.done_due : e->rx.done_used;", "which = e->lossless ? 0 : e->rx.done_used;")],
           ["sim_peers order__data"]),
    "D7": ("anything from the peer shows that it lives, also when it acknowledges nothing",
           [("dataplane/packet/timer.c", "return unacked && !e->lossless ? e->timer.acked_ns", "return unacked && 0 ? e->timer.acked_ns")],
           ["sim_peers away__nothing"]),
    "D8": ("the first probe has the psn that the peer was told",
           [("dataplane/packet/link_pkt.c", "\t\tcfg.tx_psn += e->psn_skip;", "\t\tcfg.tx_psn += 0;")],
           ["sim_peers away__little"]),
    "T1": ("an operation that ends early counts as sent",
           [("dataplane/packet/doom.c", "\top_goto(op, OP_DOOMED);", "\top_goto(op, OP_SENT);")],
           ["sim_lives slot__token"]),
    "S1": ("a pinned buffer goes back while packets from it are about to be sent",
           [("dataplane/packet/fetch.c", "\t\tif (g->in_tx)\n\t\t\treturn NULL;\n", "")],
           ["sim_peers stage__many"]),
    "S2": ("a pinned buffer is taken back while the port reads it",
           [("dataplane/packet/fetch.c", "\tif (!op->refs)\n\t\tstage_drop(st", "\tstage_drop(st")],
           ["sim_peers stage__what"]),
    "L1": ("the log tells of lines that were dropped before",
           [("poll/base.c", "\t\tlog_told = drops;\n\telse\n", "\t\t;\n\telse\n")],
           ["base"]),
    "L2": ("the log writes to a pipe whose reader has gone",
           [("poll/base.c", "p.revents != POLLOUT", "!(p.revents & POLLOUT)")],
           ["base"]),
    "R1": ("the limits of the groups above are not looked at",
           [("dataplane/core/mem.c", "\tfor (unsigned i = 0; i < ROOM_GROUPS_MAX; i++) {", "\tfor (unsigned i = 0; i < 1; i++) {")],
           ["mem"]),
    "R2": ("of several groups the last one counts, not the tightest",
           [("dataplane/core/mem.c", "\tif (left >= r->len)\n\t\treturn;\n", "")],
           ["mem"]),
    "UD1": ("udp: of the peers in a bucket only the first is found",
           [("dataplane/ports/udp_rxtx.c", "\twhile (at && !udp_same_name(&q->peer[at - 1].to[half], from))\n\t\tat = q->peer[at - 1].next;\n",
             "\tif (at && !udp_same_name(&q->peer[at - 1].to[half], from))\n\t\tat = 0;\n")],
           ["port udp"]),
    "UD2": ("udp: the kernel drops what comes from the port in the middle",
           [("dataplane/ports/udp_filter.c", "BPF_JMP | BPF_JGE | BPF_K", "BPF_JMP | BPF_JGT | BPF_K")],
           ["port udp"]),
    "UD3": ("udp: the kernel lets all ports through",
           [("dataplane/ports/udp_filter.c", "BPF_STMT(BPF_RET | BPF_K, 0)", "BPF_STMT(BPF_RET | BPF_K, UINT32_MAX)")],
           ["port udp"]),
    "C1": ("what a peer says it copied counts again at each look",
           [("dataplane/local/local_map.c", "\t*told = now;\n", "")],
           ["local_map"]),
    "C2": ("CONNECT is not held back until the Unix socket's answer has gone out",
           [("dataplane/control/ctl_fd.c", "\telse if (cc->pass->io.held)\n\t\tcc->pass->wait = true;\n", "")],
           ["ctl"]),
    "C3": ("link tcp: a data socket joins whatever its token is",
           [("dataplane/control/ctl_data.c", " &&\n\t\t    tcp_conn_is(o->conn, hello->token))", ")")],
           ["ctl"]),
    "K1": ("link tcp: a chunk may come twice",
           [("dataplane/tcp/tcp_in.c", "return !bit_test(m->came, chunk) && ", "return ")],
           ["tcp_in"]),
    "K2": ("link tcp: a send that ends before it leaves takes its offer with it",
           [("dataplane/tcp/tcp_doom.c", "\t\ttcp_match_unbind(e, i);\n", "")],
           ["tcp"]),
    "K3": ("link tcp: after a lie on one socket the others are still read",
           [("dataplane/tcp/tcp_op.c", "\tfor (unsigned k = 0; k < e->nr_socks; k++)\n\t\te->sock[k].rx_ended = e->sock[k].tx_ended = true;\n", "")],
           ["tcp_in"]),
    "K4": ("link tcp: a CANCEL that later messages overtook breaks the protocol",
           [("dataplane/tcp/tcp_in.c", "(int32_t)(f->mid - mid) < 0", "mid - f->mid == TCP_MIDS")],
           ["tcp_in"]),
    "K5": ("link tcp: a frame whose bytes are gone says that they are good",
           [("dataplane/tcp/tcp_op.c", "\ttcp_tail_put(o->tail, TCP_TAIL_VOID);\n", "")],
           ["tcp"]),
    "TL1": ("link tcp: what waits in the kernel for an answer is never pushed",
            [("dataplane/tcp/tcp_turn.c", "\te->sys->push(s->fd);\n", "")],
            ["tcp_in"]),
    "TL2": ("link tcp: a second message waits in the kernel behind the first",
            [("dataplane/tcp/tcp_turn.c", " || e->nr_fetch || e->sock[0].leads)", " || e->nr_fetch)")],
            ["tcp_in"]),
    "TL3": ("link tcp: nobody learns that a program answers short messages",
            [("dataplane/tcp/link_tcp.c", "\te->answered |= e->asked;\n", "")],
            ["tcp_in"]),
    "TL21": ("link tcp: a close leaves a DONE that waits for an answer in the kernel",
            [("dataplane/tcp/link_tcp.c", "\t\t\te->sys->push(e->sock[0].fd);", "\t\t\t(void)e;")],
            ["tcp_in"]),
    "K12": ("link tcp: what waits for the program's answer is lost when the program closes",
            [("dataplane/tcp/tcp_life.c", "\tif (e->holds && e->live_at != TCP_NONE)", "\tif (0)")],
            ["tcp_in"]),
    "N1": ("a look at a NIC asks for a binding that could succeed",
           [("dataplane/nic/nic_look.c", "&queue, 1, NIC_NO_FD, got)", "&queue, 1, 0, got)")],
           ["nic_look"]),
    "N2": ("an answer to another request of netlink is taken",
           [("dataplane/nic/nic_nl.c", "\t\tif (msg->nlmsg_seq != seq)\n\t\t\tcontinue;\n", "")],
           ["nic_look"]),
    "N3": ("a driver's refusal of bind-rx is passed over",
           [("dataplane/nic/nic_mode.c", "return f->bind_err == -EOPNOTSUPP || ", "return ")],
           ["nic_mode"]),
    "N4": ("nccl: mode cuda leaves it to gx to launch kernels",
           [("bindings/nccl/proc.c", "\t\to.unpack = c->unpack;\n", "")],
           ["nccl/nccl_mode"]),
    "N5": ("nccl: kernels of gx are taken where they wait behind NCCL's",
           [("bindings/nccl/conf.c", "strcmp(connections, \"1\") != 0)", "1)")],
           ["nccl/nccl_mode"]),
    "N6": ("nccl: memory of any GPU is the first one's",
           [("bindings/nccl/reg.c", "gx_mem_reg(plug.gx, kind, device,", "gx_mem_reg(plug.gx, kind, 0,")],
           ["nccl/nccl_mode"]),
    "N7": ("nccl: mode cuda offers the local link, and the driver registers host memory",
           [("bindings/nccl/proc.c", "o.local = c->cuda || ", "o.local = ")],
           ["nccl/nccl_mode"]),
    "N8": ("nccl: the cores run when the GPUs are opened",
           [("bindings/nccl/proc.c", "\tif (!ret && !proc_gpus_open(gx)) {\n\t\tproc_stop(gx);\n\t\treturn NCCL_SYSTEM_ERROR;\n\t}\n"
             "\tif (!ret)\n\t\tret = proc_lanes_start(gx, nr_cores);\n",
             "\tif (!ret)\n\t\tret = proc_lanes_start(gx, nr_cores);\n\tif (!ret && !proc_gpus_open(gx)) {\n\t\tproc_stop(gx);\n"
             "\t\treturn NCCL_SYSTEM_ERROR;\n\t}\n")],
           ["nccl/nccl_mode"]),
    "N9": ("nccl: a core that waits in the driver fails no request",
           [("bindings/nccl/lane.c", "\t\tatomic_store_explicit(&l->stuck, true, memory_order_relaxed);\n", "")],
           ["nccl/nccl_lane"]),
    "N20": ("nccl, mode unpack: a slot that was consumed keeps its descriptors",
            [("bindings/nccl/offload.c", "\ts->is_out = false;\n\tatomic_store_explicit(&o->dev->meta.cnt[nr % NCCL_UNPACK_SLOTS], 0, memory_order_relaxed);\n",
              "\ts->is_out = false;\n")],
            ["nccl/nccl_offload"]),
    "N21": ("nccl, mode unpack: any receive that is done can be consumed",
            [("bindings/nccl/offload.c", "nr != o->consumed || !s->is_out", "!s->is_out")],
            ["nccl/nccl_offload"]),
    "N22": ("nccl, mode unpack: a receive can be consumed before test() said that it is done",
            [("bindings/nccl/offload.c", "nr != o->consumed || !s->is_out", "nr != o->consumed")],
            ["nccl/nccl_offload"]),
    "N23": ("nccl, mode unpack: a 17th receive is taken",
            [("bindings/nccl/offload.c", "o->taken - o->consumed == NCCL_UNPACK_SLOTS", "o->taken - o->consumed == 2 * NCCL_UNPACK_SLOTS")],
            ["nccl/nccl_offload"]),
    "N24": ("nccl, mode unpack: a ring whose end lies on its begin has room",
            [("bindings/nccl/offload.c", "\tif (o->at <= oldest)\n", "\tif (o->at < oldest)\n")],
            ["nccl/nccl_offload"]),
    "N25": ("nccl, mode unpack: descriptors count from the comm's ring",
            [("bindings/nccl/offload.c", "o->base + s->off + (uint32_t)at", "s->off + (uint32_t)at")],
            ["nccl/nccl_offload"]),
    "N26": ("nccl, mode unpack: the device's head begins with 0",
            [("bindings/nccl/offload.c", "bounce.mem, UINT64_MAX}", "bounce.mem, 0}")],
            ["nccl/nccl_offload"]),
    "N27": ("nccl, mode unpack: a comm that ends keeps its part of the bounce memory",
            [("bindings/nccl/offload.c", "\to->next = bounce.unused;\n\tbounce.unused = o;\n}", "}")],
            ["nccl/nccl_offload"]),
    "N28": ("nccl, mode unpack: a long message has more descriptors than there is room for",
            [("bindings/nccl/offload.c", "\t\tpiece_b *= 2;", "\t\tbreak;")],
            ["nccl/nccl_offload"]),
    "N29": ("nccl, mode unpack: a request is used anew before its receive is consumed",
            [("bindings/nccl/req.c", "\t\toffload_publish(r->comm->offload, r->seq - SEQ_FIRST, r->landed);\n\telse\n",
              "\t\toffload_publish(r->comm->offload, r->seq - SEQ_FIRST, r->landed);\n")],
            ["nccl/nccl_offload"]),
    "N30": ("nccl, mode unpack: NCCL may register more than its own buffers",
            [("bindings/nccl/offload.c", "return c->offload->nr_regs++ < REGS_MAX;", "return c->offload->nr_regs++ < 99;")],
            ["nccl/nccl_offload"]),
    "N31": ("nccl, mode unpack: a new comm goes on with the slots of the one before",
            [("bindings/nccl/offload.c", "\to->at = o->taken = o->consumed = 0;\n", "")],
            ["nccl/nccl_offload"]),
    "N32": ("nccl, mode unpack: accept does not wait for parts of closed comms",
            [("bindings/nccl/offload.c", "*comes = !o && part_comes();", "*comes = false;")],
            ["nccl/nccl_offload"]),
    "KD1": ("devmem: tokens go back while a copy reads their fragments",
            [("dataplane/tcp/devmem_rx.c", "i != rx->ready && *sum", "i != rx->head && *sum")],
            ["devmem_storm", "devmem_rx"]),
    "KD2": ("devmem: a token goes back when the first of two copies has ended",
            [("dataplane/tcp/devmem_rx.c", "\tif (!--r->refs && ref == rx->ready)\n\t\trx_advance(rx);",
              "\tr->refs--;\n\tif (ref == rx->ready) {\n\t\tr->refs = 0;\n\t\trx_advance(rx);\n\t}")],
            ["devmem_rx"]),
    "KD3": ("devmem: a release of which the kernel took a part counts as whole",
            [("dataplane/tcp/devmem_rx.c", "\trx_gone(rx, (uint32_t)ret);", "\trx_gone(rx, sum);")],
            ["devmem_storm", "devmem_rx"]),
    "KD4": ("devmem: a release has one range too many",
            [("dataplane/tcp/devmem_abi.h", "#define DEVMEM_RANGES_MAX 128", "#define DEVMEM_RANGES_MAX 129")],
            ["devmem_storm", "devmem_rx"]),
    "KD5": ("devmem: a release has one token too many",
            [("dataplane/tcp/devmem_abi.h", "#define DEVMEM_TOKENS_MAX 1024", "#define DEVMEM_TOKENS_MAX 1025")],
            ["devmem_storm", "devmem_rx"]),
    "KD6": ("devmem: a read comes before the rest of a release",
            [("dataplane/tcp/devmem_rx.c", "\tif (gx_unlikely(rx->is_unsettled))\n\t\tdevmem_release(rx, true);\n"
              "\tif (rx->err || rx->is_unsettled || !want_b)", "\tif (rx->err || !want_b)")],
            ["devmem_rx"]),
    "KD7": ("devmem: a fragment may end a byte beyond its pool",
            [("dataplane/tcp/devmem_rx.c", "c->len <= p->len - c->off", "c->len <= p->len - c->off + 1")],
            ["devmem_rx"]),
    "KD8": ("devmem: neighbours become one whatever their tokens are",
            [("dataplane/tcp/devmem_rx.c", "|| r->token + r->nr != rec->token ||", "||")],
            ["devmem_storm", "devmem_rx"]),
    "KD9": ("feed: a fragment is not held while a GPU copies it",
            [("dataplane/tcp/tcp_gpu.c", "\ts->feed->ops->hold(s->feed, ref);\n", "")],
            ["tcp_feed"]),
    "KD10": ("feed: a socket is closed while a lost GPU may read its fragments",
             [("dataplane/tcp/tcp_feed.c", "\tif (!f->ops->held(f)) {", "\tif (f) {")],
             ["tcp_feed"]),
    "KD11": ("feed: bytes that came are forgotten when their block has no room",
             [("dataplane/tcp/tcp_frag.c", "\t\tif (!tcp_far_room(k->gpu))\n\t\t\treturn 0;\n",
               "\t\tif (!tcp_far_room(k->gpu))\n\t\t\treturn n;\n")],
             ["tcp_feed"]),
    "KD12": ("bare: a chunk lands before its END",
             [("dataplane/tcp/tcp_bare.c", "s->pend_tail != s->pend_paid && s->pend_tail != s->pend_ended",
               "s->pend_tail != s->pend_paid")],
             ["tcp_feed"]),
    "KD13": ("bare: headers are read on though there is no room for them",
             [("dataplane/tcp/tcp_take.c", "return to->pend_head - to->pend_tail == TCP_PENDS;", "return !to;")],
             ["tcp_feed"]),
    "KD14": ("bare: payload may wait for its header for ever",
             [("dataplane/tcp/tcp_turn.c", "\tif (e->rx_bare)\n\t\ttcp_bare_tick(e, tcp_rx_waits(e));\n", "")],
             ["tcp_feed"]),
    "KD15": ("bare: a peer may send any number of headers without END",
             [("dataplane/tcp/tcp_bare.c", " || s->pend_head - s->pend_ended >= TCP_OUTS)", ")")],
             ["tcp_feed"]),
    "KD16": ("bare: payload for memory that the receiver did not name goes bare",
             [("dataplane/tcp/tcp_bare.c", "return h->regions[i].kind != GX_MEM_HOST &&", "return h->regions[i].token &&")],
             ["tcp_feed"]),
    "KD20": ("devmem: the thread that closes a socket counts in its core's pool",
             [("dataplane/tcp/tcp_life.c", "\t\t\te->sock[i].feed->ops->leave(e->sock[i].feed);\n",
               "\t\t\te->sock[i].tx_ended = true;\n")],
             ["tcp_feed"]),
    "KD17": ("devmem: the flow rule of a socket stays when the socket is closed",
             [("dataplane/tcp/tcp_dev.c", "\tif (s->place >= 0)\n", "\tif (s->place > 1 << 20)\n")],
             ["tcp_dev"]),
    "KD18": ("devmem: queues are bound that RSS spreads over",
             [("dataplane/tcp/tcp_dev.c", "s.can == GX_NIC_LATER && s.command[0]", "s.can == GX_NIC_LATER && !s.name[0]")],
             ["tcp_dev"]),
    "KD19": ("devmem: feeds that were set aside for a connection do not come back",
             [("dataplane/tcp/link_tcp.c", "\tif (e->nr_promised)\n\t\ttcp_dev_unpromise(ep->conn->gx->tcp_dev, e->nr_promised);\n", "")],
             ["tcp_dev"]),
    "U1": ("io_uring: a buffer goes back while the kernel still fills it",
           [("dataplane/tcp/uring_buf.c", "\tif (!--p->buf[bid].recs && !p->buf[bid].is_open)", "\tif (!--p->buf[bid].recs)")],
           ["uring_rx"]),
    "U2": ("io_uring: a buffer goes back when the first of its records is done",
           [("dataplane/tcp/uring_buf.c", "\tif (!--p->buf[bid].recs && ", "\tif (--p->buf[bid].recs + 1 && ")],
           ["uring_rx"]),
    "U3": ("io_uring: a record goes back with bytes that nobody has pulled",
           [("dataplane/tcp/uring_rx.c", "\tif (!--rec->refs && !rec->left)", "\tif (!--rec->refs)")],
           ["uring_rx"]),
    "U4": ("io_uring: a completion may end a byte beyond its buffer",
           [("dataplane/tcp/uring_buf.c", "len > p->buf_b - b->fill)", "len > p->buf_b - b->fill + 1)")],
           ["uring_rx"]),
    "U5": ("io_uring: the end of a stream comes before its last bytes",
           [("dataplane/tcp/uring_rx.c", "\tif (nr || s->head != URING_NONE)", "\tif (!s->err && (nr || s->head != URING_NONE))")],
           ["uring_rx", "uring_kernel"]),
    "U6": ("io_uring: completions that found no place stay in the kernel",
           [("dataplane/tcp/io_ring.c", "(IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)", "IORING_SQ_TASKRUN")],
           ["uring_rx"]),
    "U7": ("io_uring: a socket has left while the kernel has its receive",
           [("dataplane/tcp/uring_rx.c", "(s->state != URING_ENDED || s->cancel_out)", "s->cancel_out")],
           ["uring_rx"]),
    "U8": ("io_uring: a receive is handed over again while the pool is empty",
           [("dataplane/tcp/uring_rx.c", "(s->state == URING_DRY && room)", "s->state == URING_DRY")],
           ["uring_rx"]),
    "U9": ("zero-copy send: an end may name sends that were never made",
           [("dataplane/tcp/zc_tx.c", "\tif (first >= out || last >= out || first > last)", "\tif (first > last && out)")],
           ["zc_tx"]),
    "U10": ("zero-copy send: a source goes back while the kernel may read it",
            [("dataplane/tcp/zc_tx.c", "tx->tail != tx->head && tx->post[tx->tail & tx->mask].is_done)", "tx->tail != tx->head)")],
            ["zc_tx"]),
    "U11": ("zero-copy send: a send that was copied at once takes a number",
            [("dataplane/tcp/zc_tx.c", "\t\ttx->id_tail += !p->is_plain;", "\t\ttx->id_tail++;")],
            ["zc_tx"]),
    "U12": ("zero-copy send: a range that wraps has no sends",
            [("dataplane/tcp/zc_tx.c", "id != n->last + 1; id++", "id <= n->last; id++")],
            ["zc_tx"]),
    "U13": ("devmem send: a piece may end a byte beyond its dma-buf",
            [("dataplane/tcp/devmem_tx.c", "p->len <= tx->len - p->off;", "p->len <= tx->len - p->off + 1;")],
            ["zc_tx"]),
    "U14": ("zero-copy receive: a refill is written over one that the kernel has not read",
            [("dataplane/tcp/zcrx.c", "memory_order_acquire) > z->mask)", "memory_order_acquire) > z->mask + 1)")],
            ["zcrx"]),
    "U15": ("zero-copy receive: a completion may end a byte beyond the area",
            [("dataplane/tcp/zcrx.c", "(uint64_t)cqe->res > rx->pool_b - off)", "(uint64_t)cqe->res > rx->pool_b - off + 1)")],
            ["zcrx"]),
    "U16": ("zero-copy receive: the page behind a fragment goes back",
            [("dataplane/tcp/zcrx.c", ".off = rec->buf + z->token,", ".off = rec->off + z->token,")],
            ["zcrx"]),
    "U17": ("zero-copy receive: what found the refill ring full is forgotten",
            [("dataplane/tcp/zcrx.c", "\twhile (z->late_head != URING_NONE && refill_put(", "\twhile (0 && refill_put(")],
            ["zcrx"]),
    "U18": ("io_uring: the kernel goes on to receive for an endpoint that has ended",
            [("dataplane/tcp/tcp_life.c", "tcp_feed_end(e->sock[i].feed)", "tcp_feed_drop(e->sock[i].feed)")],
            ["tcp_uring"]),
    "U19": ("io_uring: the kernel goes on to receive from a peer that lied",
            [("dataplane/tcp/tcp_frag.c", "\t\ttcp_feed_end(s->feed);", "\t\ttcp_feed_drop(s->feed);")],
            ["tcp_uring"]),
    "U20": ("io_uring: a core sleeps while a socket leaves its ring",
            [("dataplane/tcp/tcp_turn.c", " && !tcp_uring_is_busy(l);", ";")],
            ["tcp_uring"]),
    "U21": ("io_uring: a receive that was not taken reads a descriptor that was closed",
            [("dataplane/tcp/uring_rx.c", "\t\tio_ring_void(&rx->ring, sock);\n", "")],
            ["uring_rx"]),
    "U22": ("feed: a peer is silent while a GPU has all memory of its sockets",
            [("dataplane/tcp/tcp_frag.c", "!n && f->is_short && e->link->nr_held", "0")],
            ["tcp_feed"]),
    "U24": ("feed: a sender gives up while a GPU has all memory of its sockets",
            [("dataplane/tcp/tcp_turn.c", "(e->nr_in || e->short_ns == e->now_ns)", "e->nr_in")],
            ["tcp_feed"]),
    "U23": ("bare: a peer lies whose header has no room in the GPU's ring",
            [("dataplane/tcp/tcp_bare.c", "s->nr_lost_ticks += !waits;", "s->nr_lost_ticks++;")],
            ["tcp_feed"]),
    "NP1": ("memif: the role of a device is that of the port",
            [("dataplane/ports/dpdk/memif.c", "\td->owns = owns;\n", "\td->owns = !p->server;\n")],
            ["port_dpdk"]),
    "NP2": ("memif: each port makes a listening socket, which the driver never closes",
            [("dataplane/ports/dpdk/memif.c", "\tif (!ret && !ours.holder.made) {\n", "\tif (!ret && (!ours.holder.made || !sock)) {\n"),
             ("dataplane/ports/dpdk/memif.c", "\tif (!ours.sock.path[0])\n", "\tif (!ours.sock.path[0] || !sock)\n"),
             ("dataplane/ports/dpdk/memif.c", "return p->server ? 0 : ", "return ")],
            ["port_dpdk"]),
    "NP5": ("a client may name a port of another kind as one that lanes take in turn",
            [("dataplane/control/ctl_path.c", " ||\n\t\t    strcmp(peer->ports[w->client].name, l->port))", ")")],
            ["ctl"]),
    "NP6": ("all lanes take the first of several ports",
            [("dataplane/control/conn.c", "c->way[lane % c->nr_ways]", "c->way[0]")],
            ["sim_ports"]),
    "NP7": ("lanes take ports of several MTUs in turn",
            [("dataplane/control/ctl_path.c", "\t\tif (!way_is_alike(cc, &l->ways[0], &l->ways[k]))\n", "\t\tif (l->link && !way_is_alike(cc, &l->ways[0], &l->ways[k]))\n")],
            ["ctl"]),
    "V1": ("link verbs: the peer's GID may be anything",
           [("dataplane/verbs/verbs_way.c", "\t\treturn gid[12] && gid[12] < 224;\n", "\t\treturn true;\n")],
           ["verbs_lane"]),
    "V2": ("link verbs: the window is one byte smaller",
           [("dataplane/verbs/verbs_tx.c", "w->under_b + len <= w->window_b", "w->under_b + len < w->window_b")],
           ["verbs_lane"]),
    "V3": ("link verbs: what a failed queue pair had of a put is not sent again",
           [("dataplane/verbs/verbs_tx.c", "wr->fate == VERBS_WR_LANDED && op->kind == GX_OP_PUT", "op->kind == GX_OP_PUT")],
           ["verbs_lane"]),
    "V4": ("link verbs: a note that comes twice counts twice",
           [("dataplane/verbs/verbs_note.c", "in->done || in->parts >> n->part & 1", "in->done")],
           ["verbs_lane"]),
    "V5": ("link verbs: what had landed before a queue pair failed is sent again",
           [("dataplane/verbs/verbs_mend.c", "bool landed = any && ", "bool landed = false && any && ")],
           ["verbs_lane"]),
    "V6": ("link verbs: a read in front of a note that was taken is not sent again",
           [("dataplane/verbs/verbs_tx.c", "VERBS_WR_LANDED && op->kind == GX_OP_PUT", "VERBS_WR_LANDED")],
           ["verbs_lane"]),
    "V7": ("link verbs: a note takes another queue pair than its bytes",
           [("dataplane/verbs/verbs_tx.c", "\tstruct verbs_qp *q = &l->qp[part];\n", "\tstruct verbs_qp *q = &l->qp[(part + 1) % l->nr_qps];\n")],
           ["verbs_lane"]),
    "V8": ("link verbs: a queue pair that was made anew is up before the peer's device answers",
           [("dataplane/verbs/verbs_mend.c", "&s->peer, true);", "&s->peer, false);")],
           ["verbs_lane", "link_verbs"]),
    "V9": ("link verbs: a client says UP before the server's device answers",
           [("dataplane/control/ctl_hello.c", "return !cc->server && cc->conn->link == GX_LINK_VERBS;", "return false;")],
           ["link_verbs"]),
    "V10": ("link verbs: a connection may spend all of the control thread's time",
            [("dataplane/verbs/verbs_mend.c", "\tif (!verbs_budget_has(b, now_ns))\n\t\treturn false;\n", "")],
            ["verbs_lane", "link_verbs"]),
    "V11": ("link verbs: a modify leaves an attribute out",
            [("dataplane/verbs/verbs_qp.c", "IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |", "IBV_QP_RQ_PSN |")],
            ["verbs_lane"]),
    "V12": ("link verbs: peers may go on where the device keeps their registration of freed memory",
            [("dataplane/control/region.c", "mem->shared && verbs_mem_revoke(gx->verbs, mem))", "mem->shared && verbs_mem_revoke(gx->verbs, mem) > 0)")],
            ["link_verbs"]),
    "V13": ("link verbs: EIO of a device that kept a registration counts as an end",
            [("dataplane/verbs/verbs_dev.h", "ret == EIO && dev->removed", "ret == EIO && dev->failed")],
            ["verbs_lane"]),
    "V14": ("link verbs: an address that is not found at once ends the connection",
            [("dataplane/verbs/verbs_mend.c", "if (!is_of_the_way(err))", "if (true)")],
            ["verbs_lane", "link_verbs"]),
    "V15": ("link verbs: a queue pair that the device did not flush is not flushed again",
            [("dataplane/verbs/verbs_mend.c", "if (s->peer_reset && qp_lives(qp_state(q)))", "if (false)")],
            ["verbs_lane"]),
    "V30": ("link verbs: a slow device fills the window of all",
            [("dataplane/verbs/verbs_tx.c", "return !w->under_b || w->under_b + len <= w->window_b;", "return true;")],
            ["verbs_lane", "verbs_ways"]),
    "V31": ("link verbs: bytes go by a device that has no key for them",
            [("dataplane/verbs/verbs_op.c", "(own >> l->way[i].dev->rail & theirs >> l->way[i].peer & 1) << i", "1u << i")],
            ["verbs_ways"]),
    "V32": ("link verbs: the work of a queue pair whose way is down waits for it",
            [("dataplane/verbs/verbs_tx.c", "if (l->fail_err || qp_lives(state))", "if (l->fail_err || state == VERBS_QP_UP)")],
            ["verbs_ways"]),
    "V33": ("link verbs: the work of a destroyed queue pair moves before the peer has ended its own",
            [("dataplane/verbs/verbs_gone.c", "if (!s->own_gone || !s->peer_gone)", "if (!s->own_gone)")],
            ["verbs_ways"]),
    "V35": ("link verbs: a way that is down for long ends the connection",
            [("dataplane/verbs/verbs_ways.c", "late && (!has_other || state == VERBS_QP_DEAD)", "late")],
            ["verbs_ways"]),
    "V36": ("link verbs: a queue pair that is tried again and again counts as one that is not flushed",
            [("dataplane/verbs/verbs_ways.c", "return now_ns - s->stuck_ns > patience_ns(c);", "return now_ns - s->down_ns > patience_ns(c);")],
            ["verbs_ways"]),
    "V37": ("link verbs: a client may name a device that the server has not",
            [("dataplane/verbs/verbs_ways.c", "int way = own < rails->nr ?", "int way = true ?")],
            ["verbs_ways"]),
    "V38": ("link verbs: a server may put queue pairs on other devices than agreed",
            [("dataplane/verbs/verbs_ways.c", "if (h->own[k] != w->peer || h->peer[k] != w->own)", "if (false)")],
            ["verbs_ways"]),
    "V39": ("link verbs: operations with the keys of a lost way alone wait for ever",
            [("dataplane/verbs/verbs_lane.c", "!= l->lost_seen)", "== ~0u)")],
            ["verbs_ways"]),
    "V40": ("link verbs: rails are paired by their numbers",
            [("dataplane/verbs/verbs_plan.c", "return near > best_near;", "return false;")],
            ["verbs_plan", "verbs_ways"]),
    "V41": ("link verbs: a lane may have no queue pair on a way",
            [("dataplane/verbs/verbs_plan.c", "bool is_new = !mine[w], best_is_new = !mine[best];", "bool is_new = false, best_is_new = false;")],
            ["verbs_plan"]),
    "V42": ("link verbs: what soft RoCE says of an interface that is down ends operations",
            [("dataplane/verbs/verbs_cq.c", "case IBV_WC_LOC_LEN_ERR:\n", "case IBV_WC_LOC_LEN_ERR:\n\tcase IBV_WC_LOC_QP_OP_ERR:\n")],
            ["verbs_lane qp__fails"]),
    "V43": ("link verbs: a queue pair that is given up late ends the connection",
            [("dataplane/verbs/verbs_gone.c", "s->down_ns = 0;", "")],
            ["verbs_ways device__removed_long_after_a_cut"]),
    "V44": ("link verbs: failures of all notes of a put count together",
            [("dataplane/verbs/verbs_cq.c", "if (op->parts_failed & part) {", "if (op->parts_failed) {")],
            ["verbs_lane qp__all_lose_their_note"]),
    "V45": ("link verbs: a put waits for a way where its lane has no queue pair",
            [("dataplane/verbs/verbs_qp.c", "l->lost_seen |= (uint32_t)!of_way[i] << i;", "")],
            ["verbs_ways lane__without_a_way"]),
    "V46": ("link verbs: ways without a queue pair stay in the plan",
            [("dataplane/verbs/verbs_plan.c", "n += all[w] != 0;", "n++;")],
            ["verbs_plan qps__of_none_of_the_first"]),
    "V47": ("link verbs: the port is not looked at while the program's time has gone back",
            [("dataplane/packet/pkt.h", "return left_ns && left_ns <= PKT_RARE_NS;", "return (int64_t)left_ns > 0;")],
            ["wake port__when_time_goes_back"]),
    "V48": ("link verbs: the answer to what was posted waits for the next look at the port",
            [("dataplane/packet/link_pkt.c", "e->link->look_ns = 0;", "")],
            ["wake port__is_looked_at_now_and_then"]),
    "VL1": ("link verbs: the first packet waits for an eighth of the quiet time, not a 64th",
            [("dataplane/packet/wake.c", "quiet_ns >> WAKE_QUIET_SHIFT", "quiet_ns >> 3")],
            ["wake port__is_looked_at_now_and_then"]),
    "VL2": ("link verbs: a port that is quiet for long is looked at as often as ever",
            [("dataplane/packet/wake.c", "quiet_ns >> WAKE_QUIET_SHIFT", "quiet_ns >> 63")],
            ["wake port__is_left_alone"]),
    "VL3": ("link verbs: a queue pair that could not tell of the notes that it took never tells",
            [("dataplane/verbs/verbs_tx.c", "if (!qp_room(q))\n\t\t\tcontinue;\n\t\tif (note_is_owed(q))", "if (qp_room(q) && note_is_owed(q))")],
            ["verbs_lane note__credit_waits_for_room"]),
    "VL4": ("link verbs: requests that wait until their queue pair is up again are forgotten",
            [("dataplane/verbs/verbs_tx.c", "if (q->redo_head == q->redo_tail)\n\t\t\tl->redo &=", "l->redo &=")],
            ["verbs_lane qp__fails"]),
    "VL5": ("link verbs: receives of a short burst are not posted again",
            [("dataplane/verbs/verbs_cq.c", "\tl->again |= qp_bit(q);\n", "")],
            ["verbs_lane note__receives_are_posted_again"]),
    "VL6": ("link verbs: nobody asks whether the core of a peer lives whose device answers",
            [("dataplane/verbs/link_verbs.c", "e->pkt.want_peer = e->used || e->lane.nr_ops ||", "e->pkt.want_peer = false &&")],
            ["link_verbs peer__core_is_asked"]),
    "V16": ("link verbs: a sender hears of its end while the peer's device may still read",
            [("dataplane/packet/doom.c", "if (!op->refs && !op->lent)", "if (!op->refs)")],
            ["verbs_pull cancel__at_the_sender"]),
    "V17": ("link verbs: a receive ends while the device still writes to its memory",
            [("dataplane/packet/pull_in.c", "m->fetched = true;\n\t\tm->pending++;", "m->fetched = true;"),
             ("dataplane/packet/pull_in.c", "m->fetched = false;\n\tm->pending--;", "m->fetched = false;")],
            ["verbs_pull cancel__at_the_receiver"]),
    "V18": ("link verbs: peers may read all memory of a context that takes no part",
            [("dataplane/verbs/verbs_reg.c", "dev->lends ? IBV_ACCESS_REMOTE_READ : 0", "IBV_ACCESS_REMOTE_READ")],
            ["verbs_lane pull__of_lent_memory"]),
    "V19": ("link verbs: a peer that knows nothing of it is offered reads",
            [("dataplane/verbs/verbs_pull.c", " ||\n\t    !(c->peer.links & GX_HELLO_VERBS_PULLS))", ")")],
            ["verbs_pull send__where_an_end_takes_no_part"]),
    "V20": ("link verbs: peers may go on where the device keeps the registration that they read by",
            [("dataplane/control/region.c", "verbs_mem_put(mem->gx->verbs, mem))", "verbs_mem_put(mem->gx->verbs, mem) > 0)")],
            ["verbs_pull freed__and_not_given_back"]),
    "V21": ("link verbs: a key is taken for a receive that was not offered so",
            [("dataplane/packet/in.c", "m->op != PKT_NONE && e->pull.qps->keys(e, m->mem);", "m->op != PKT_NONE;")],
            ["verbs_pull hostile__not_offered"]),
    "V22": ("link verbs: a send is announced whatever the receive's memory is",
            [("dataplane/packet/tx.c", "op->flags & PKT_F_SLOT_QPS && ", "")],
            ["verbs_pull send__memory_without_a_registration"]),
    "V23": ("link verbs: memory goes back to the user while the device has requests with it",
            [("dataplane/verbs/verbs_op.c", "if (op->data_out > op->data_redo)", "if (0)")],
            ["verbs_lane drop__waits", "verbs_pull freed__at_the_receiver"]),
    "V24": ("link verbs: a user's cancel ends what the peer has sent",
            [("dataplane/verbs/verbs_op.c", "op->pull || op->user != user", "op->user != user")],
            ["verbs_lane pull__stop"]),
    "V25": ("link verbs: sends of the peer leave the user no operations",
            [("dataplane/verbs/verbs_op.c", "!ways || l->nr_pulls == VERBS_PULLS", "!ways || !l->nr_free")],
            ["verbs_lane pull__has_room", "verbs_pull send__many"]),
    "V26": ("link verbs: a message that was given up is read to its end",
            [("dataplane/packet/pull.c", "\tif (m->fetched)\n\t\te->pull.qps->stop(e, m);\n", "")],
            ["verbs_pull cancel__at_the_receiver"]),
    "VW1": ("link verbs: an operation takes no way that has come back since it began",
            [("dataplane/verbs/verbs_op.c", "op->ways = under_way_ways(l, op);", "op->ways &= under_way_ways(l, op) & ~l->lost_seen;")],
            ["verbs_ways way__comes_back_to_operations"]),
    "VW2": ("link verbs: a way is proven by a write of no bytes alone",
            [("dataplane/verbs/verbs_lane.h", "probe.len ? 3 : 1;", "probe.len ? 1 : 1;")],
            ["verbs_ways way__loses_large_packets_from_the_start"]),
    "VW3": ("link verbs: large packets of a way back are not proven",
            [("dataplane/verbs/verbs_lane.h", "probe.len ? 3 : 1;", "probe.len ? 2 : 1;")],
            ["verbs_ways way__loses_large_packets_from_the_start"]),
    "VW4": ("link verbs: a queue pair made anew is up when small packets pass",
            [("dataplane/verbs/verbs_cq.c", "status == IBV_WC_SUCCESS && q->proving", "false")],
            ["verbs_ways way__loses_large_packets_and_is_the_only_one"]),
    "VW5": ("link verbs: events of GIDs and LIDs are ignored",
            [("dataplane/verbs/verbs_dev.c", "dev->address_changed |= e->element.port_num == dev->port;", "")],
            ["verbs_ways gid__changes", "link_verbs device__gets_another_gid"]),
    "VW6": ("link verbs: any change of GIDs ends the ways of a device",
            [("dataplane/verbs/verbs_away.c", "astray = !verbs_dev_has(dev, said, by_gid, &index);", "astray = true;")],
            ["verbs_ways gid__of_others"]),
    "VW7": ("link verbs: a queue pair is connected by an address that its port has lost",
            [("dataplane/verbs/verbs_mend.c", "\tif (l->way[q->way].astray)\n\t\treturn true;\n", "")],
            ["verbs_ways gid__comes_back"]),
    "VW8": ("link verbs: a queue pair made anew takes the old index of its GID",
            [("dataplane/verbs/verbs_away.c", "lanes_set(v, w, astray, index);", "lanes_set(v, w, astray, dev->gid_index - 1);")],
            ["verbs_ways gid__moves"]),
    "VW9": ("link verbs: memory of a GPU goes by far devices, too",
            [("dataplane/verbs/verbs_op.c", "near ? reg->near : reg->rails;", "reg->rails;")],
            ["verbs_ways gpu__near"]),
    "VW10": ("link verbs: memory of a GPU waits for the near device until that is lost",
             [("dataplane/verbs/verbs_op.c", "l->away = l->lost_seen | ~up;", "l->away = l->lost_seen;")],
             ["verbs_ways gpu__near"]),
    "VW14": ("link verbs: two queue pairs that work wait for each other's way",
             [("dataplane/verbs/verbs_tx.c", "return !q && qp_room(of) &&", "return false &&")],
             ["verbs_ways gpu__near_crosswise"]),
    "VW15": ("link verbs: a queue pair is connected that its core has to leave",
             [("dataplane/verbs/verbs_mend.c", "!s->held || atomic_load_explicit(&q->quit, memory_order_relaxed)", "!s->held")],
             ["verbs_ways device__removed_while_its_port_was_down"]),
    "VW16": ("link verbs: a change of addresses is forgotten when the device does not tell",
             [("dataplane/verbs/verbs_dev.c", "\t\treturn; /* the next tick asks again */\n\tdev->address_changed = false;\n", "\t{\n\t\tdev->address_changed = false;\n\t\treturn;\n\t}\n\tdev->address_changed = false;\n")],
             ["verbs_ways gid__is_asked_for_again"]),
    "VW17": ("link verbs: a way is proven by memory that the peer does not have there",
             [("dataplane/verbs/verbs_probe.c", ".len = h->probe_key[w->peer]\n", ".len = h->nr_ports\n")],
             ["verbs_ways hello__lies"]),
    "VW11": ("link verbs: a device behind the switch of a GPU is as far as any of its host bridge",
             [("dataplane/verbs/verbs_near.c", "return VERBS_NEAR_HOST + shared - 1;", "return VERBS_NEAR_HOST;")],
             ["verbs_near"]),
    "VW12": ("link verbs: memory is taken from a peer's device that reads it before the peer was told",
             [("dataplane/packet/freed.c", "(op->lent && lent_waits(e, op->mem, d))", "false")],
             ["verbs_pull freed__while_the_core_turns"]),
    "VW13": ("link verbs: freed memory waits for a stopped receiver",
             [("dataplane/packet/freed.c", "return now_ns - e->pull.freed_ns < FREED_LENT_NS;", "return true;")],
             ["verbs_pull freed__while_the_core_turns"]),
    "K6": ("link tcp: a message has landed while the GPU still copies its last bytes",
           [("dataplane/tcp/tcp_in.c", "m->base == m->nr_chunks && !m->pending)", "m->base == m->nr_chunks)")],
           ["tcp_gpu"]),
    "K7": ("link tcp: the ring of a GPU is filled again before its block came back",
           [("dataplane/tcp/tcp_gpu.c", "\tm->pending++;\n\te->nr_held++;", "\tt->tail = t->head;\n\tm->pending++;\n\te->nr_held++;")],
           ["tcp_gpu"]),
    "K8": ("link tcp: a receive ends early while a GPU still copies into its memory",
           [("dataplane/tcp/tcp_in.c", "\tif (!m->pending)\n\t\tin_op_end(e, m, m->err);", "\tin_op_end(e, m, m->err);")],
           ["tcp_gpu"]),
    "K9": ("link tcp: an endpoint leaves its core while a GPU still copies for it",
           [("dataplane/tcp/tcp_life.c", "\tif (!e->nr_held)\n\t\ttcp_ep_leave(e);", "\ttcp_ep_leave(e);")],
           ["tcp_gpu"]),
    "K10": ("link tcp: freed memory is given up while a GPU still copies into it",
            [("dataplane/tcp/tcp_turn.c", "\t\t\tdrop_hold(d, e->in[i].mem);", "\t\t\t(void)d;")],
            ["tcp_gpu"]),
    "K11": ("link tcp: a pinned buffer is used again while a slow socket has its chunk",
            [("dataplane/tcp/tcp_fetch.c", "\tn = (unsigned)__builtin_ctzll(~op->sent);", "\top->sent = 1;\n\tn = (unsigned)__builtin_ctzll(~op->sent);")],
            ["tcp_gpu"]),
}


ASSERTED = "error: Failure!" # CMocka's word, also where cleaning up crashes afterwards


def failed_in(text):
    """The first test that failed, else the last that began."""
    failed = re.findall(r"(?:FAILED|ERROR) +\] (\w+)$", text, re.M)
    begun = re.findall(r"RUN +\] (\w+)", text)
    return failed[0] if failed else begun[-1] if begun else ""


class Tree:
    """A copy of the tree, and its build."""

    def __init__(self, jobs):
        self.jobs = jobs
        self.top = tempfile.mkdtemp(prefix="gx-mutants-")
        names = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], check=True, capture_output=True).stdout
        for name in filter(None, names.decode().split("\0")):
            if os.path.exists(os.path.join(ROOT, name)):
                os.makedirs(os.path.dirname(os.path.join(self.top, name)), exist_ok=True)
                shutil.copy2(os.path.join(ROOT, name), os.path.join(self.top, name))
        self.build = os.path.join(self.top, "build")
        subprocess.run(["meson", "setup", self.build, "-Dbuildtype=debugoptimized", "-Dtests=enabled", "-Dcuda=disabled", "-Ddpdk=disabled"],
                       cwd=self.top, check=True, stdout=subprocess.DEVNULL)

    def change(self, changes):
        """Return: the files as they were; None when a line is not there once."""
        before = {}
        for name, old, new in changes:
            path = os.path.join(self.top, name)
            if not os.path.exists(path):
                return self.restore(before)
            with open(path, encoding="utf-8") as f:
                text = f.read()
            before.setdefault(path, text)
            if text.count(old) != 1:
                return self.restore(before)
            with open(path, "w", encoding="utf-8") as f:
                f.write(text.replace(old, new))
        return before

    @staticmethod
    def restore(before):
        for path, text in before.items():
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)

    def compile(self, programs):
        ran = subprocess.run(["ninja", "-C", self.build, "-j", str(self.jobs), *(path_of(p) for p in programs)],
                             capture_output=True, text=True)
        return "" if ran.returncode == 0 else ran.stdout[-2000:]

    def test(self, test):
        """Return: what was seen, and how: assertion, time-out, nothing."""
        program, *args = test.split()
        command = [os.path.join(self.build, path_of(program)), *args]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=LIMIT_S, cwd=self.build)
        except subprocess.TimeoutExpired as e:
            text = b"".join(filter(None, (e.stdout, e.stderr))).decode(errors="replace")
            return (failed_in(text) or test, "assertion") if ASSERTED in text else (test, "time-out")
        text = ran.stdout + ran.stderr
        if ran.returncode == 0:
            if not re.search(r"PASSED  \] [1-9]", text):
                return test, "no such test"
            return "", "nothing"
        if ASSERTED in text:
            return failed_in(text) or test, "assertion"
        how = "assertion (of the code)" if "Assertion" in text else f"crash ({ran.returncode})"
        return failed_in(text) or test, how


def path_of(program):
    """"flow", or "nccl/nccl_mode" where the program is built in a folder."""
    folder, name = os.path.split(program)
    return os.path.join("tests", folder, "test_" + name)


def programs_of(tests):
    return sorted({t.split()[0] for t in tests})


def main():
    parser = argparse.ArgumentParser(description="Which planted mistakes do the tests see?")
    parser.add_argument("-j", type=int, default=os.cpu_count(), metavar="JOBS")
    parser.add_argument("-k", action="store_true", help="keep the copy")
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    unknown = [n for n in args.names if n not in MUTANTS]
    if unknown:
        parser.error(f"no mutant {unknown[0]}; there are {' '.join(MUTANTS)}")
    chosen = {n: m for n, m in MUTANTS.items() if not args.names or n in args.names}
    tree = Tree(args.j)
    bad = 0
    try:
        all_tests = sorted({t for _, _, tests in chosen.values() for t in tests})
        why = tree.compile(programs_of(all_tests))
        if why:
            print(why)
            return 2
        for test in all_tests:
            seen, how = tree.test(test)
            if how != "nothing":
                print(f"without a mutant: {test}: {seen}: {how}")
                return 2
        print(f"{'mutant':7}{'caught by':24}{'test':52}what", flush=True)
        for name, (what, changes, tests) in chosen.items():
            before = tree.change(changes)
            if before is None:
                print(f"{name:7}{'DOES NOT APPLY':24}{'':52}{what}", flush=True)
                bad = 2
                continue
            why = tree.compile(programs_of(tests))
            if why:
                print(f"{name:7}{'DOES NOT BUILD':24}{'':52}{what}\n{why}", flush=True)
                bad = 2
            else:
                seen, how = "", "nothing"
                for test in tests:
                    seen, how = tree.test(test)
                    seen = f"{test.split()[0]}: {seen}" if seen else ""
                    if how.startswith("assertion"):
                        break
                if not how.startswith("assertion"):
                    bad = max(bad, 1)
                print(f"{name:7}{how if how != 'nothing' else 'SURVIVES':24}{seen:52}{what}", flush=True)
            tree.restore(before)
    finally:
        if args.k:
            print(tree.top)
        else:
            shutil.rmtree(tree.top)
    return bad


if __name__ == "__main__":
    sys.exit(main())
