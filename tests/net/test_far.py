#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Link tcp over a long path, beside iperf3: a rate, a delay, a queue (bottleneck.c) between two network namespaces.

usage: test_far.py BUILD_DIR [RATE_MB_S:RTT_MS:SOCKETS...]
gx and iperf3 take turns, PAIRS times; a line `ratio tcp 100M 10ms q1 1.00 (0.98 to 1.01)` says gx over iperf3, the median of the
pairs, then least and largest. gx compares all that comes, iperf3 nothing. Fails where gx takes less than FLOOR of the rate; so
without iperf3 as well. With fewer messages under way than the path holds gx waits for answers: hence DEPTH.
Exit status 77 where there is no TUN device or no namespace.
"""
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

import path
from path import HERE, expect
import cli
import test_veth
from cli import CLIENT_CPU, SERVER_CPU

PAIRS = int(os.environ.get("GX_TEST_FAR_PAIRS", "3"))
RUN_S = int(os.environ.get("GX_TEST_FAR_RUN_S", "5"))
FLOOR = float(os.environ.get("GX_TEST_FAR_FLOOR", "0.8"))
DEPTH = 32
CASES = ["100:10:1"]


def joined(program, other, rate_mb_s, rtt_ms):
    """A queue of one round trip, as the rule of thumb for routers has it."""
    queue_s = max(rtt_ms / 1e3, 0.02)
    return path.joined(program, other, f"rate={rate_mb_s}000000", f"delay_ns={int(rtt_ms * 5e5)}",
                       f"queue_b={int(rate_mb_s * 1e6 * queue_s / 8)}")


def gx_one(tools, other, sockets):
    """GB/s of puts; the server is here, the client there."""
    with cli.Server(tools, "--insecure", "--port", "shm", listen=f"{HERE}:0") as server:
        there = test_veth.There(tools, other, server, None, more=("--link", "tcp", "--sockets", str(sockets), "--depth", str(DEPTH)))
        row = there.perf("put", "-s", "1M", "-D", RUN_S).clean()[0]
        expect(row["checked_b"] >= row["size_b"], row)
        return row["GB_s"]


def iperf3_one(other, sockets, port, *more):
    server = subprocess.Popen(["iperf3", "-s", "-1", "-B", HERE, "-p", str(port), "-A", SERVER_CPU], stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(0.3)
        words = ["iperf3", "-c", HERE, "-p", port, "-A", CLIENT_CPU, "-l", "1M", "-P", sockets, "-t", RUN_S, "-O", "1", "--json", *more]
        ran = subprocess.run(other.words(*map(str, words)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                             timeout=RUN_S + 60)
        return json.loads(ran.stdout)["end"]["sum_received"]["bits_per_second"] / 8e9
    finally:
        server.kill()
        server.wait()


def compared(tools, other, case, port):
    rate_mb_s, rtt_ms, sockets = (int(part) for part in case.split(":"))
    gx, rival = [], []
    with joined(tools.fakes / "bottleneck", other, rate_mb_s, rtt_ms):
        for i in range(PAIRS):
            runs = [lambda: gx.append(gx_one(tools, other, sockets))]
            if shutil.which("iperf3"):
                runs.insert(i % 2, lambda: rival.append(iperf3_one(other, sockets, port + i)))
            for run in runs:
                run()
    name, mb_s = f"tcp {rate_mb_s}M {rtt_ms}ms q{sockets}", statistics.median(gx) * 8e3
    if rival:
        each = [a / b for a, b in zip(gx, rival)]
        print(f"ratio {name} {statistics.median(each):.3f} ({min(each):.3f} to {max(each):.3f}); gx {mb_s:.1f} Mb/s, iperf3 "
              f"{statistics.median(rival) * 8e3:.1f} Mb/s", flush=True)
    else:
        print(f"{name}: gx {mb_s:.1f} Mb/s; no iperf3 here", flush=True)
    return mb_s >= FLOOR * rate_mb_s


def main(build, *cases):
    test_veth.enter()
    tools, failed = cli.Tools(pathlib.Path(build).resolve()), 0
    for i, case in enumerate(cases or CASES):
        other = test_veth.Other()
        try:
            failed += not compared(tools, other, case, 18800 + 20 * i)
        finally:
            other.end()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
