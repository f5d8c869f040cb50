#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Judges the bottleneck: one cubic stream of the kernel through it, beside ns-3's cubic over the same link. By hand.

usage: judge.py BOTTLENECK [RATE_MB_S:RTT_MS:QUEUE_BDP:LOSS_PPM...]
Needs iperf3, a kernel with cubic, g++ and libns3-dev. For each point RUNS streams of the kernel and RUNS seeds of ns-3: the
medians of payload that arrived in the seconds FROM_S to TO_S, and with them the rates' ranges. Status 1 where the medians differ
by more than 5 %. With losses both are reno: see ns3_cubic.cc.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import path
from path import THERE, Other, expect
from test_veth import enter

RUNS = int(os.environ.get("GX_TEST_JUDGE_RUNS", "3"))
FROM_S, TO_S = 3, 11
WITHIN = 0.05
POINTS = ("10:20:1:0", "100:10:1:0", "100:10:0.25:0", "100:50:1:0", "100:10:1:1000", "300:10:1:0")
# Other programs of this host shall not hold up the path, nor the stream.
SOON = ("chrt", "-f", "20")
LIBS = ("core", "network", "internet", "point-to-point", "applications", "traffic-control")


def ns3_built(folder):
    out = f"{folder}/ns3_cubic"
    source = pathlib.Path(__file__).resolve().parent / "ns3_cubic.cc"
    subprocess.run(["g++", "-std=c++17", "-O2", source, "-o", out, *(f"-lns3-{m}" for m in LIBS)], check=True)
    return out


def ns3_one(program, rate_bps, rtt_us, queue_b, loss_ppm, seed):
    words = (program, rate_bps, rtt_us // 2, queue_b, loss_ppm, FROM_S, TO_S, seed)
    return float(subprocess.run([str(w) for w in words], check=True, stdout=subprocess.PIPE, text=True).stdout) / 1e6


def kernel_one(program, rate_bps, rtt_us, queue_b, loss_ppm, seed):
    """Mb/s of payload, and the figures of the path."""
    other = Other()
    values = (f"rate={rate_bps}", f"delay_ns={rtt_us * 500}", f"queue_b={queue_b}", f"loss_ppm={loss_ppm}", f"seed={seed}", "back",
              f"rate={10 * rate_bps}", "queue_b=10000000", "loss_ppm=0")
    server = None
    try:
        with path.joined(program, other, *values, prefix=SOON) as way:
            # ns-3 sends segment by segment; the kernel would send up to 64 KiB at once, twice the smallest queue here.
            for words in (lambda *w: w, other.words):
                name = path.NAMES[words == other.words]
                expect(path.sh(*words("ip", "link", "set", name, "gso_max_segs", "1")).returncode == 0, "gso_max_segs of", name)
            server = subprocess.Popen(other.words(*SOON, "iperf3", "-s", "-1"), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            time.sleep(0.3)
            ran = subprocess.run([*SOON, "iperf3", "-c", THERE, "-C", "reno" if loss_ppm else "cubic", "-O", str(FROM_S), "-t", str(TO_S - FROM_S), "--json"],
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=60)
            expect(not way.unread(), "the kernel dropped packets that the path had not read")
            counts = way.end()
            return json.loads(ran.stdout)["end"]["sum_received"]["bits_per_second"] / 1e6, counts
    finally:
        if server:
            server.kill()
            server.wait()
        other.end()


def judged(program, ns3, point):
    rate_mb_s, rtt_ms, bdps, loss_ppm = (float(part) for part in point.split(":"))
    rate_bps, rtt_us = int(rate_mb_s * 1e6), int(rtt_ms * 1e3)
    link = (rate_bps, rtt_us, max(int(bdps * rate_bps * rtt_us / 8e6), 2 * 1502), int(loss_ppm))
    model = [ns3_one(ns3, *link, seed) for seed in range(1, RUNS + 1)]
    real, late = [], []
    for seed in range(1, RUNS + 1):
        mb_s, counts = kernel_one(program, *link, seed)
        real.append(mb_s)
        late.append(counts["there"]["late_us"]["p99"])
    ratio = statistics.median(real) / statistics.median(model)
    print(f"{point}: kernel {statistics.median(real):.1f} ({min(real):.1f} to {max(real):.1f}) Mb/s, ns-3 {statistics.median(model):.1f} "
          f"({min(model):.1f} to {max(model):.1f}), ratio {ratio:.3f}; late p99 {statistics.median(late):.0f} us", flush=True)
    return abs(ratio - 1) <= WITHIN


def main(program, *points):
    enter()
    with tempfile.TemporaryDirectory() as folder:
        ns3 = ns3_built(folder)
        return 0 if all([judged(program, ns3, point) for point in points or POINTS]) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
