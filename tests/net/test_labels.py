#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""IPv6: the kernel puts a flow label of its own on packets of each source port of port udp, so routers that hash labels see paths.

usage: test_labels.py BUILD_DIR
Looks at the frames of a put that leaves by eight source ports. Exit status 77 where there is no IPv6, or no namespace.
"""
import contextlib
import pathlib
import re
import socket
import struct
import sys
import threading

import path  # noqa: F401: where the next ones are
import cli
import test_veth
from cli import expect
from test_veth import Other, sh, skip

HERE, THERE = "fd98::1", "fd98::2"
IP6_B, UDP, PATHS = 40, 17, 8
SO_RCVBUFFORCE = 33  # asm-generic/socket.h; above net.core.rmem_max, which holds no more than the first of the eight paths


def links_make(other):
    if not pathlib.Path("/proc/net/if_inet6").exists():
        skip("no IPv6 here")
    made = sh("ip", "link", "add", "gxe", "type", "veth", "peer", "name", "gxep")
    if made.returncode:
        skip(f"no veth pair can be made here: {made.stdout.strip()}")
    for words in (("ip", "link", "set", "gxep", "netns", str(other.proc.pid)), ("ip", "link", "set", "lo", "up"),
                  other.words("ip", "link", "set", "lo", "up"), ("ip", "link", "set", "gxe", "up"),
                  other.words("ip", "link", "set", "gxep", "up"), ("ip", "addr", "add", f"{HERE}/64", "dev", "gxe", "nodad"),
                  other.words("ip", "addr", "add", f"{THERE}/64", "dev", "gxep", "nodad")):
        ran = sh(*words)
        if ran.returncode:
            skip(f"no IPv6 here: {' '.join(words)}: {ran.stdout.strip()}")


class Tap:
    """Reads the heads of frames of a device from start to end of a with block. A thread reads: a put fills a socket's queue at once."""

    def __init__(self, device):
        self.frames = []
        self.sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        with contextlib.suppress(PermissionError):
            self.sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        self.sock.bind((device, 0))
        self.sock.settimeout(0.2)
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.read)

    def read(self):
        while True:
            try:
                self.frames.append(self.sock.recv(128))
            except TimeoutError:
                if self.ended.is_set():
                    return

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()
        self.sock.close()


def labels_of(frames):
    """{(source port, port it goes to): labels} of datagrams from THERE."""
    found = {}
    for f in frames:
        ip = f[14:14 + IP6_B]
        if len(f) < 14 + IP6_B + 8 or f[12:14] != b"\x86\xdd" or ip[6] != UDP or ip[8:24] != socket.inet_pton(socket.AF_INET6, THERE):
            continue
        found.setdefault(struct.unpack(">HH", f[14 + IP6_B:18 + IP6_B]), set()).add(struct.unpack(">I", ip[:4])[0] & 0xfffff)
    return found


def main(build):
    test_veth.enter()
    tools, other = cli.Tools(pathlib.Path(build).resolve()), Other()
    try:
        links_make(other)
        with cli.Server(tools, "--insecure", "--port", "udp", "--bind", HERE, listen=f"[{HERE}]:0") as server, Tap("gxe") as tap:
            there = test_veth.There(tools, other, server, f"udp:paths={PATHS}", more=("--bind", THERE, "--link", "packet"))
            row = there.perf("put", "-s", "256K", "-n", "400").clean()[0]
            text = there.run("put", "-s", "256K", "-n", "400").must(cli.OK).out
    finally:
        other.end()
    found = labels_of(tap.frames)
    for ports, labels in found.items():
        print(*ports, *(f"{v:05x}" for v in labels))
    data = {p["source_port"] for p in row["paths"] if p["packets"] == "data"}
    # The least busy path takes the next packets: the first ones may do for a receiver that is quick.
    expect(1 < len(data) <= PATHS, "gxperf tells of source ports of data:", row["paths"])
    lines = [line for line in text.splitlines() if "source port" in line]
    expect(len(lines) == 1 and re.fullmatch(r"# source ports: \d+, round trip [0-9.]+ to [0-9.]+ ms", lines[0]) and text.count(" lost") <= 1,
           "source ports are one line:", text)
    to = {dst for src, dst in found if src in data and all((other, dst) in found for other in data)}
    expect(to, "gxperf tells source ports that no packet has:", data, found)
    expect(all(len(labels) == 1 for labels in found.values()), "a path has several labels:", found)
    labels = [min(v) for v in found.values()]
    expect(min(labels) > 0, "no label:", found)
    expect(len(set(labels)) >= len(labels) - 1, "labels are the same:", found)  # two of 2^20 may be
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
