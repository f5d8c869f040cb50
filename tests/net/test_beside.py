#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packets over port udp beside streams of cubic (iperf3) on one narrow path (bottleneck.c): who has which share?

usage: test_beside.py BUILD_DIR [NAME=VALUE... of the way, and cubic=, rtt_ms=, queue_bdp=, cc=, seconds=, runs=, least=, most=]
The streams run first, gx joins them, and the bottleneck counts what it passes of each in the `seconds` that follow. One line: gx's
share of what passed (median of `runs`, least and largest), and of the link all together. gx compares all that comes. Without values:
one stream, 100 Mb/s, 10 ms, a queue of 1 BDP. Fails where gx's share is not from `least` to `most`. Exit status 77 where there is no
TUN device, no namespace or no iperf3. With fewer than four CPUs the figures say more of the CPUs.
"""
import pathlib
import shutil
import statistics
import subprocess
import sys
import threading
import time

import path
from path import HERE, THERE, expect
import cli
import test_narrow
import test_veth

OWN = {"cubic": 1, "rtt_ms": 10, "queue_bdp": 1, "cc": "rate", "seconds": 10, "runs": 3, "least": 0.2, "most": 0.8}
JOIN_S = 3  # from the start of gx to the first count
UDP, TCP = 17, 6


class Streams:
    """@nr of iperf3, cubic, for so many seconds."""

    def __init__(self, other, nr, port, seconds):
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.server = subprocess.Popen(["iperf3", "-s", "-1", "-B", HERE, "-p", str(port)], **quiet)
        time.sleep(0.3)
        words = ["iperf3", "-c", HERE, "-p", port, "-P", nr, "-t", seconds, "-C", "cubic"]
        self.client = subprocess.Popen(other.words(*map(str, words)), **quiet)

    def end(self):
        for proc in (self.client, self.server):
            proc.kill()
            proc.wait()


def passed(counts, proto):
    return sum(flow["passed_b"] for flow in counts["back"]["flows"] if flow["proto"] == proto)


def one(tools, other, own, narrow, port):
    """What the bottleneck counted of gx and of the streams, while both were there."""
    seconds, rows = int(own["seconds"]), []
    with cli.Server(tools, "--insecure", "--port", f"udp:cc={own['cc']}", "--bind", HERE, listen=f"{HERE}:0") as server:
        there = test_veth.There(tools, other, server, f"udp:cc={own['cc']}",
                                more=("--bind", THERE, "--link", "packet", "--depth", str(test_narrow.DEPTH)))
        streams = Streams(other, own["cubic"], port, seconds + 3 * JOIN_S)
        try:
            time.sleep(JOIN_S)
            gx = threading.Thread(target=lambda: rows.extend(there.perf("put", "-s", "256K", "-D", seconds + JOIN_S + 1).clean()))
            gx.start()
            time.sleep(JOIN_S)
            narrow.counts()
            time.sleep(seconds)
            counts = narrow.counts()
            expect(streams.client.poll() is None, "iperf3 ended early")
            gx.join()
        finally:
            streams.end()
    expect(rows and rows[0]["checked_b"] >= rows[0]["size_b"], rows)
    return counts


def beside(tools, other, way, own):
    rate, rtt_s = int(way["rate"]), float(own["rtt_ms"]) / 1e3
    way = {"queue_b": max(int(rate / 8 * rtt_s * float(own["queue_bdp"])), 15000), "delay_ns": int(rtt_s * 5e8), **way}
    shares, used, queue = [], [], []
    with path.joined(tools.fakes / "bottleneck", other, *(f"{k}={v}" for k, v in way.items()), prefix=test_narrow.PREFIX) as narrow:
        for i in range(int(own["runs"])):
            counts = one(tools, other, own, narrow, 19000 + i)
            gx, cubic = passed(counts, UDP), passed(counts, TCP)
            shares.append(gx / (gx + cubic))
            used.append((gx + cubic) / counts["back"]["link_b"])
            queue.append(counts["back"]["queue_mean_b"] / way["queue_b"])
        expect(narrow.unread() == 0, "the bottleneck was too slow")
    share = statistics.median(shares)
    print(f"{' '.join(f'{k}={v}' for k, v in way.items())} cc={own['cc']} beside {own['cubic']} cubic: gx has {share:.3f} "
          f"({min(shares):.3f} to {max(shares):.3f}); together {statistics.median(used):.3f} of the link, queue "
          f"{statistics.median(queue):.2f} full", flush=True)
    return float(own["least"]) <= share <= float(own["most"])


def main(build, *values):
    if not shutil.which("iperf3"):
        path.skip("no iperf3")
    test_veth.enter()
    tools = cli.Tools(pathlib.Path(build).resolve())
    given = dict(value.split("=", 1) for value in values)
    own = {k: given.pop(k, v) for k, v in OWN.items()}
    other = test_veth.Other()
    try:
        return 0 if beside(tools, other, {"rate": "100000000", **given}, own) else 1
    finally:
        other.end()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
