#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The bottleneck with real packets: what comes out of it is what it was told to let out, and what it says.

usage: test_bottleneck.py BOTTLENECK
UDP from one namespace to the other. Exit status 77 where there is no TUN device or no namespace.
"""
import contextlib
import os
import socket
import struct
import sys
import time

import path
from path import HERE, THERE, Other, expect
from test_veth import enter

IP_UDP_B = 28
PORT = 7000
QUIET_S = 1
STALL_S = 0.05  # that the program may stand beside other tests
CE = 3


@contextlib.contextmanager
def udp_there(other):
    """A socket of the other namespace: the thread goes there to make it."""
    here = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/proc/{other.proc.pid}/ns/net", os.O_RDONLY)
    try:
        os.setns(there, 0)
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        os.setns(here, 0)
    finally:
        os.close(here)
        os.close(there)
    with sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        sock.bind((THERE, PORT))
        sock.setblocking(False)
        yield sock


def setns_or_skip():
    if hasattr(os, "setns"):
        return
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)

    def setns(fd, kind):
        if libc.setns(fd, kind):
            raise OSError(ctypes.get_errno(), "setns")
    os.setns = setns


def heard(sock):
    """(number in the packet, is it marked), as they come, until none has come for QUIET_S."""
    got, last = [], time.monotonic()
    while time.monotonic() < last + QUIET_S:
        try:
            data, aux, _, _ = sock.recvmsg(2048, 64)
        except BlockingIOError:
            time.sleep(0.002)
            continue
        last = time.monotonic()
        got.append((struct.unpack_from("<I", data)[0], aux[0][2][0] & 3 == CE))
    return got


def sent(nr, size, every_s=0.0, ect=False):
    """@nr packets of @size bytes with their headers, one each @every_s."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((HERE, 0))
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 2 if ect else 0)
        begin = time.monotonic()
        for i in range(nr):
            while time.monotonic() < begin + i * every_s:
                pass
            sock.sendto(struct.pack("<I", i).ljust(size - IP_UDP_B, b"."), (THERE, PORT))


def rate_and_queue(program, other):
    """1,000 packets at once meet 8 Mb/s and a queue of 200: they come out as the link serves them, in order, and no more."""
    with path.joined(program, other, "rate=8000000", "delay_ns=20000000", "queue_b=200000") as way, udp_there(other) as sock:
        begin = time.monotonic()
        sent(1000, 1000)
        took = time.monotonic() - begin
        got = heard(sock)
        counts = way.counts()["there"]
        most = 202 + (took + STALL_S) * 1000
        expect(201 <= counts["passed"] <= most, "passed", counts, took)
        expect(counts["passed"] + counts["queue_full"] == counts["packets"] == 1000, counts)
        expect([n for n, _ in got] == sorted({n for n, _ in got}) and len(got) == counts["passed"], len(got), counts)
        expect(counts["queue_max_b"] == 200000, counts)
        expect(way.unread() == 0 and counts["unwritten"] == 0, counts)


def round_trip(program, other):
    """There, 1 ms for 1,000 bytes and 10 ms of delay; back, 0.5 ms for 50 bytes and 25 ms."""
    values = ("rate=8000000", "delay_ns=10000000", "queue_b=10000", "back", "rate=800000", "delay_ns=25000000")
    with path.joined(program, other, *values), udp_there(other) as sock, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mine:
        mine.bind((HERE, 0))
        mine.settimeout(20)
        sock.setblocking(True)
        took = [1]
        while len(took) < 20 or (min(took) >= 0.0385 and len(took) < 300): # of a busy machine some are late
            begin = time.monotonic()
            mine.sendto(bytes(1000 - IP_UDP_B), (THERE, PORT))
            _, source = sock.recvfrom(2048)
            sock.sendto(bytes(50 - IP_UDP_B), source)
            mine.recv(2048)
            took.append(time.monotonic() - begin)
        expect(0.0365 <= min(took) < 0.0385, "round trips of", took)


def mishaps(program, other):
    """The same packets are lost at each run with a seed; what is doubled comes twice, what is damaged fails UDP's check."""
    runs = []
    for seed in (5, 5, 6):
        values = ("rate=1000000000", "queue_b=10000000", f"seed={seed}", "loss_ppm=50000", "dup_ppm=20000", "corrupt_ppm=30000",
                  "late_ppm=100000", "late_ns=20000000")
        with path.joined(program, other, *values) as way, udp_there(other) as sock:
            sent(1000, 200)
            got = [n for n, _ in heard(sock)]
            counts = way.counts()["there"]
        runs.append(set(got))
        expect(counts["packets"] == 1000 and counts["passed"] + counts["lost"] == 1000, counts)
        expect(20 <= counts["lost"] <= 80 and 5 <= counts["doubled"] <= 40 and 10 <= counts["damaged"] <= 50, counts)
        # A twin of a damaged packet is whole.
        expect(counts["passed"] - counts["damaged"] <= len(set(got)) < counts["passed"], len(set(got)), counts)
        expect(len(got) == counts["passed"] - counts["damaged"] + counts["doubled"], len(got), counts)
        late = sum(b < a for a, b in zip(got, got[1:]))
        expect(late and 50 <= counts["held"] <= 150, late, counts)
    expect(runs[0] == runs[1] and runs[0] != runs[2], "seeds", [len(r) for r in runs])


def marks(program, other):
    """What is marked arrives marked, with a header that the kernel takes; packets that are not capable never are."""
    values = ("rate=8000000", "queue_b=100000", "mark_b=20000")
    with path.joined(program, other, *values) as way, udp_there(other) as sock:
        for ect in (True, False):
            sent(80, 1000, ect=ect)
            got = heard(sock)
            counts = way.counts()["there"]
            expect(len(got) == counts["passed"] == 80, len(got), counts)
            expect(sum(m for _, m in got) == counts["marks"] and (10 < counts["marks"] < 70) == ect, ect, counts)
            expect(counts["flows"] == [dict(counts["flows"][0], proto=17, to=PORT, packets=80, bytes=80000, passed_b=80000, dropped=0,
                                            marks=counts["marks"])], counts)


def dark(program, other):
    """0.2 s of each 0.4 s let nothing through."""
    values = ("rate=100000000", "queue_b=100000", "on_ns=200000000", "off_ns=200000000")
    with path.joined(program, other, *values) as way, udp_there(other) as sock:
        sent(1200, 200, every_s=0.001)
        got = [n for n, _ in heard(sock)]
        counts = way.counts()["there"]
        gaps = [b - a for a, b in zip(got, got[1:]) if b - a > 20]
        expect(550 <= counts["dark"] <= 650 and len(got) == counts["passed"] == 1200 - counts["dark"], counts)
        expect(2 <= len(gaps) <= 3 and all(180 <= g <= 220 for g in gaps), "gaps of", gaps)


def main(program):
    enter()
    setns_or_skip()
    for case in (rate_and_queue, round_trip, mishaps, marks, dark):
        other = Other()
        try:
            case(program, other)
        finally:
            other.end()
        print(f"{case.__name__}: ok", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
