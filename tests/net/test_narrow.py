#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packets over port udp through a narrow path (bottleneck.c) between two network namespaces, beside one cubic stream of iperf3.

usage: test_narrow.py BUILD_DIR [NAME=VALUE... of the way, and rtt_ms=, queue_bdp=, cc=, seconds=, pairs=, floor=, beside=, slots=]
gx and iperf3 take turns, `pairs` times; each line says gx over iperf3, the median of the pairs, least and largest, and for gx packets
sent again, those of them needlessly, and the queue that it kept. Both leave their first START_S out of the rate (gx sends again, and
compares, then as well). gx compares all that comes. Without values: 100 Mb/s, 10 ms, a queue
of 1 BDP. Fails where gx takes less than `floor` (0.8) of the payload that the link carries. Exit status 77 where there is no TUN
device or no namespace.

With beside=N gx and N cubic streams of iperf3 run at one time, and the bottleneck counts what it carried of each: the streams begin,
gx 3 s later, and `seconds` are counted from SETTLE_S after that. Prints the share of gx, that over its fair share (1 of N + 1), Jain's
index of all N + 1, and the part of the link that all took; medians of `pairs` rounds, and each. Fails where all took less than `floor`.
"""
import json
import os
import pathlib
import shutil
import statistics
import sys
import threading
import time

import path
from path import HERE, THERE, expect
import cli
import test_far
import test_veth

MTU = 1500
OWN = {"rtt_ms": 10, "queue_bdp": 1, "cc": "rate", "seconds": 5, "pairs": 3, "floor": 0.8, "beside": 0, "slots": 4096}
START_S = 1  # as iperf3 -O has it
SETTLE_S = 5
DEPTH = 64
PREFIX = ("nice", "-n", "-19") if os.geteuid() == 0 else ()  # both ends poll: the bottleneck must have a CPU when a packet is due


def gx_one(tools, other, own, seconds):
    port = f"udp:cc={own['cc']}"
    more = ("--slots", str(own["slots"]))
    with cli.Server(tools, "--insecure", "--port", port, "--bind", HERE, *more, listen=f"{HERE}:0") as server:
        there = test_veth.There(tools, other, server, port, more=("--bind", THERE, "--link", "packet", "--depth", str(DEPTH), *more))
        ran = there.perf("put", "-s", "256K", "-D", START_S + int(seconds), "-i", START_S)
        row, behind = ran.clean()[0], ran.doc["intervals"][1:]
        expect(row["checked_b"] >= row["size_b"] and behind, ran)
        row["GB_s"] = row["size_b"] * sum(i["count"] for i in behind) / (behind[-1]["to_s"] - behind[0]["from_s"]) / 1e9
        return row


def carried(flows, proto):
    """Bytes of each flow of a protocol that passed the bottleneck; without those of a connection that only says what to do."""
    return sorted((flow["passed_b"] for flow in flows if flow["proto"] == proto), reverse=True)


def beside_one(tools, other, own, narrow, port):
    """One round beside cubic: Mb/s of gx, and of each stream; the figures of the bottleneck."""
    streams, seconds, failed = int(own["beside"]), int(own["seconds"]), []

    def run(what, *args):
        try:
            what(*args)
        except BaseException as e:  # pylint: disable=broad-except; told below, by the thread that waits
            failed.append(e)
    test_far.RUN_S = seconds + SETTLE_S + 12
    threads = [threading.Thread(target=run, args=(test_far.iperf3_one, other, streams, port, "-C", "cubic")),
               threading.Thread(target=run, args=(gx_one, tools, other, own, seconds + SETTLE_S + 4))]
    for thread in threads:
        thread.start()
        time.sleep(3)
    time.sleep(SETTLE_S - 3)
    narrow.counts()
    time.sleep(seconds)
    said = narrow.counts()["back"]
    for thread in threads:
        thread.join()
    expect(not failed, *failed)
    mb_s = [[b * 8 / 1e6 / said["seconds"] for b in carried(said["flows"], proto)] for proto in (17, 6)]
    return sum(mb_s[0]), mb_s[1][:streams], said


def beside(tools, other, way, own, port, narrow):
    rate, streams = int(way["rate"]) / 1e6, int(own["beside"])
    shares, alls = [], []
    for i in range(int(own["pairs"])):
        gx, rivals, said = beside_one(tools, other, own, narrow, port + i)
        each = [gx, *rivals]
        shares.append(gx / sum(each))
        alls.append(said["passed_b"] / said["link_b"])
        print(f"   gx {gx:.1f} Mb/s, cubic {' '.join(f'{b:.1f}' for b in rivals)}; share {shares[-1]:.3f}, "
              f"Jain {sum(each) ** 2 / len(each) / sum(b * b for b in each):.3f}, all {alls[-1]:.3f} of the link; queue mean "
              f"{said['queue_mean_b']} p99 {said['queue_p99_b']} of {way['queue_b']}, dropped {said['queue_full']}, late_us p99 "
              f"{said['late_us']['p99']}", flush=True)
    share = statistics.median(shares)
    print(f"{' '.join(f'{k}={v}' for k, v in way.items())} cc={own['cc']} beside {streams} cubic: share of gx {share:.3f} "
          f"({min(shares):.3f} to {max(shares):.3f}), {share * (streams + 1):.2f} of its fair share; all {statistics.median(alls):.3f} of "
          f"{rate:.0f} Mb/s", flush=True)
    return statistics.median(alls) >= float(own["floor"])


def compared(tools, other, way, own, port):
    rate, rtt_s = int(way["rate"]), float(own["rtt_ms"]) / 1e3
    bdp = rate / 8 * rtt_s
    way = {"queue_b": max(int(bdp * float(own["queue_bdp"])), 15000), "delay_ns": int(rtt_s * 5e8), **way}
    gx, rival, queue, test_far.RUN_S = [], [], [], int(own["seconds"])
    with path.joined(tools.fakes / "bottleneck", other, *(f"{k}={v}" for k, v in way.items()), mtu=MTU, prefix=PREFIX) as narrow:
        if int(own["beside"]):
            passed = beside(tools, other, way, own, port, narrow)
            expect(narrow.unread() == 0, "the bottleneck was too slow")
            return passed
        def run_gx():
            narrow.counts()
            gx.append(gx_one(tools, other, own, own["seconds"]))
            queue.append(narrow.counts())
        for i in range(int(own["pairs"])):
            runs = [run_gx]
            if shutil.which("iperf3"):
                runs.insert(i % 2, lambda i=i: rival.append(test_far.iperf3_one(other, 1, port + i, "-C", "cubic")))
            for run in runs:
                run()
        expect(narrow.unread() == 0, "the bottleneck was too slow")
    mb_s = statistics.median(row["GB_s"] for row in gx) * 8e3
    best = rate / 1e6 * (MTU - 28 - 32) / MTU
    line = f"{' '.join(f'{k}={v}' for k, v in way.items())} cc={own['cc']}: gx {mb_s:.1f} Mb/s, {mb_s / best:.3f} of the link"
    if rival:
        each = [a["GB_s"] / b for a, b in zip(gx, rival)]
        line += (f"; ratio {statistics.median(each):.3f} ({min(each):.3f} to {max(each):.3f}), iperf3 "
                 f"{statistics.median(rival) * 8e3:.1f} Mb/s")
    print(line, "resent", [row["resent"] for row in gx], "needless", [row["duplicate"] for row in gx],
          {k: round(v, 4) for k, v in gx[-1].get("congestion", {}).items()}, flush=True)
    print("  ", json.dumps(queue[-1]), flush=True)
    return mb_s >= float(own["floor"]) * best


def main(build, *values):
    test_veth.enter()
    tools = cli.Tools(pathlib.Path(build).resolve())
    given = dict(value.split("=", 1) for value in values)
    own = {k: given.pop(k, v) for k, v in OWN.items()}
    other = test_veth.Other()
    try:
        return 0 if compared(tools, other, {"rate": "100000000", **given}, own, 18900) else 1
    finally:
        other.end()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
