#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Forged packets and replays on real sockets: gxd with a key in one network namespace, in another a client, and on the way between
them somebody who sees each packet, and sends what he likes with the client's addresses.

usage: test_forged.py BUILD_DIR              suite
       test_forged.py BUILD_DIR measure      10^6 forged packets at each of several rates, beside a client that is measuring: of who sees
                                             the way, and of a stranger, who does not know the client's port
       test_forged.py send KIND FILE PORT RATE N      what this test runs in the other namespace
Exit status 77 where namespaces are refused.
"""
import itertools
import json
import os
import pathlib
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import cli
from cli import CLIENT_CPU, OK, expect
from test_strangers import HERE, Keys, Tap
from test_veth import Other, enter, links_make

HDR_B = 38
ETH_B, IP_B, UDP_B = 14, 20, 8
BURST = 32
LOOK_S = 2 # of a client that measures
REPLAY_PPS = 3000
AHEAD = 1 << 29 # packets that the client does not send meanwhile


# --- packets ----------------------------------------------------------------------------------------------

def datagrams(frames):
    """Of IPv4 and UDP, to this end, as (addresses, what the port sent); several that the kernel was given at once are taken apart."""
    for frame in frames:
        if len(frame) < ETH_B + IP_B + UDP_B + HDR_B or frame[12:14] != b"\x08\x00" or frame[23] != 17:
            continue
        if frame[30:34] != socket.inet_aton(HERE):
            continue
        at = ETH_B + IP_B + UDP_B
        while at + HDR_B <= len(frame):
            plen, = struct.unpack_from("<H", frame, at + 2)
            if frame[at + 20] != HDR_B or at + HDR_B + plen > len(frame):
                break
            yield frame[:ETH_B + IP_B + UDP_B], frame[at:at + HDR_B + plen]
            at += HDR_B + plen


def frame_of(head, data, port=None):
    """A frame of its own; UDP without a checksum, which IPv4 allows."""
    ip = bytearray(head[ETH_B:ETH_B + IP_B])
    struct.pack_into(">H", ip, 2, IP_B + UDP_B + len(data))
    struct.pack_into(">H", ip, 6, 0)
    ip[8] = 64
    struct.pack_into(">H", ip, 10, 0)
    total = sum(struct.unpack(">10H", ip))
    struct.pack_into(">H", ip, 10, ~(total % 0xffff) & 0xffff)
    source, dest = struct.unpack_from(">HH", head, ETH_B + IP_B)
    return bytes(head[:ETH_B] + ip + struct.pack(">HHHH", source, port or dest, UDP_B + len(data), 0) + data)


# --- in the other namespace -------------------------------------------------------------------------------

def send(kind, path, rate, n):
    """@n frames of the file, one behind the other, at @rate a second: as they are; or each with a number of later and a tag of noise;
    or also from another port."""
    raw = pathlib.Path(path).read_bytes()
    frames, at = [], 0
    while at < len(raw):
        size, = struct.unpack_from("<I", raw, at)
        frames.append(bytearray(raw[at + 4:at + 4 + size]))
        at += 4 + size
    out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    out.bind(("gxap", 0))
    psn, tag = ETH_B + IP_B + UDP_B + 8, ETH_B + IP_B + UDP_B + 22
    first, = struct.unpack_from("<I", frames[0], psn)
    start, sent, noise = time.monotonic(), 0, os.urandom(1 << 16)
    due = start
    while sent < n:
        for _ in range(min(BURST, n - sent)):
            frame = frames[sent % len(frames)]
            if kind != "same":
                struct.pack_into("<I", frame, psn, first + AHEAD + sent & 0xffffffff)
                frame[tag:tag + 16] = noise[sent * 16 % 65520:][:16]
            if kind == "stranger": # who does not see the way knows no port of the client
                frame[ETH_B + IP_B:ETH_B + IP_B + 2] = noise[sent * 2 % 65534:][:2]
            try:
                out.send(frame)
                sent += 1
            except OSError: # the queue is full
                time.sleep(0.0001)
        due = max(due + BURST / rate, time.monotonic() - 0.01) # who was stopped does not make up for it
        time.sleep(max(0, due - time.monotonic()))
    print(json.dumps([sent, time.monotonic() - start]))


def sender(other, folder, kind, frames, rate, n):
    path = folder / "frames"
    path.write_bytes(b"".join(struct.pack("<I", len(f)) + f for f in frames))
    return subprocess.Popen(other.words(sys.executable, __file__, "send", kind, str(path), str(rate), str(n)), stdout=subprocess.PIPE,
                            stdin=subprocess.DEVNULL, text=True)


# --- here -------------------------------------------------------------------------------------------------

def client(tools, other, server, key, *args):
    """Words of a client in the other namespace, over port udp."""
    cores = [] if "--cores" in args else ["--cores", CLIENT_CPU]
    return other.words(tools.gxperf_path, "put", server.addr, *cores, "--mem", "kv", "--port", "udp", "--key", key, *map(str, args))


def refused(tools, server):
    return {name: server.stat(tools, name) for name in ("rx_forged", "rx_dup", "rx_bad", "rx_stray", "rx_crc")}


def more(before, after):
    return {name: after[name] - before[name] for name in before}


def seen(tools, other, server, key, mode, *args):
    """A client's packets, of a transfer that goes on for a while. Return: the running client, its datagrams."""
    with Tap() as tap:
        proc = subprocess.Popen(client(tools, other, server, key, "--integrity", mode, "-s", "64K", "-D", "600", *args), stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=tools.env)
        end = time.monotonic() + cli.START_S
        while len(tap.frames) < 200 and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(0.5)
    found = list(datagrams(tap.frames))
    expect(len(found) > 100, f"{len(found)} packets in {len(tap.frames)} frames")
    return proc, found


def stop(proc):
    proc.send_signal(signal.SIGINT)
    proc.wait(20)


def replays(tools, other, key, folder, mode):
    """All that a client has sent, again: while it goes on; to the next client; in the name of that; and to the next server."""
    with cli.Server(tools, "--port", "udp", "--bind", HERE, "--key", key, listen=f"{HERE}:0") as server:
        proc, old = seen(tools, other, server, key, mode)
        old = old[:1500]
        before = refused(tools, server)
        same = sender(other, folder, "same", [frame_of(*p) for p in old], REPLAY_PPS, 2 * len(old))
        sent = json.loads(same.communicate(timeout=100)[0])[0]
        got = more(before, refused(tools, server))
        # A busy kernel drops most of what comes at once.
        expect(proc.poll() is None and got["rx_dup"] > sent // 50 and not got["rx_forged"] and not got["rx_bad"], sent, got)
        print(f"{mode}: {sent} packets of the same client: {got}")
        stop(proc)
    with cli.Server(tools, "--port", "udp", "--bind", HERE, "--key", key, listen=f"{HERE}:0") as server:
        proc, new = seen(tools, other, server, key, mode)
        before = refused(tools, server)
        head, last = new[-1]
        frames = []
        for _, d in old: # also with the number of the new connection
            frames += frame_of(head, d), frame_of(head, d[:4] + last[4:8] + d[8:])
        sent = json.loads(sender(other, folder, "same", frames, REPLAY_PPS, len(frames)).communicate(timeout=100)[0])[0]
        got = more(before, refused(tools, server))
        expect(proc.poll() is None, "the client beside was lost")
        expect(got["rx_forged"] + got["rx_dup"] > sent // 50 and got["rx_stray"] > sent // 50, sent, got)
        print(f"{mode}: {sent} packets of an earlier server's client: {got}")
        stop(proc)
        path, *rest = client(tools, other, server, key, "--integrity", mode, "-s", "64K", "-n", "50")
        tools.run(path, *rest, timeout=100).must(OK)


def rate(tools, words):
    path, *rest = words
    return tools.run(path, *rest, "--format", "json", timeout=100).clean()[0]["GB_s"]


def flood(tools, other, key, folder, mode, kinds, rates, n, pairs):
    """A client measures, beside @n forged packets, in turn with times when the forger stands."""
    with cli.Server(tools, "--port", "udp", "--bind", HERE, "--key", key, listen=f"{HERE}:0") as server:
        proc, found = seen(tools, other, server, key, mode, "--cores", cli.CPUS[-min(2, len(cli.CPUS) - 1)], "--depth", 1)
        words = client(tools, other, server, key, "--integrity", mode, "-s", "256K", "-D", LOOK_S)
        for kind, pps in itertools.product(kinds, rates):
            before, both = refused(tools, server), []
            forger = sender(other, folder, kind, [frame_of(*p) for p in found[-64:]], pps, n)
            time.sleep(0.3)
            while len(both) < pairs and forger.poll() is None:
                busy = rate(tools, words)
                forger.send_signal(signal.SIGSTOP)
                both.append((busy, rate(tools, words)))
                forger.send_signal(signal.SIGCONT)
            sent, took_s = json.loads(forger.communicate(timeout=400)[0])
            got = more(before, refused(tools, server))
            expect(proc.poll() is None, "the client whose packets they were is lost")
            expect(got["rx_forged"] > sent // 10 if kind == "forged" else got["rx_forged"] < sent // 100, kind, sent, got)
            ratios = [busy / alone for busy, alone in both]
            kept = (f"{statistics.median(ratios):.2f} ({len(ratios)} pairs, {min(ratios):.2f} to {max(ratios):.2f}) of "
                    f"{statistics.median(alone for _, alone in both):.2f} GB/s" if ratios else "an unmeasured part of its rate")
            print(f"{mode}, {kind}: {sent} packets, {pps} a second were asked for: {got}; a client beside kept {kept}", flush=True)
        stop(proc)


def main(build, part=""):
    enter()
    tools, other = cli.Tools(pathlib.Path(build).resolve()), Other()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        try:
            links_make(other)
            key = Keys(tools, folder).good
            if part == "measure":
                flood(tools, other, key, folder, "gcm", ("stranger", "forged"), (20000, 50000, 100000, 200000), 1000000, 5)
            else:
                for mode in ("gcm", "mac"):
                    replays(tools, other, key, folder, mode)
                flood(tools, other, key, folder, "gcm", ("stranger", "forged"), (20000,), 40000, 0)
        finally:
            other.end()
    print("forged: ok")
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "send":
        sys.exit(send(sys.argv[2], sys.argv[3], float(sys.argv[4]), int(sys.argv[5])))
    sys.exit(main(*sys.argv[1:3]))
