#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packets over port udp through a veth pair, beside iperf3: only the CPUs limit them. By hand.

usage: wide.py BUILD_DIR...
In turns, ROUNDS times: gx of each build, and one stream of iperf3, by TCP (cubic) in calls of 128 KiB (its default) and of 1 MiB, and
by UDP. A core a side, MTU 1500, CRC on. gx compares all that comes, iperf3 nothing. Prints the medians, and gx over each of iperf3's:
the median of the rounds' own ratios, least and largest. On CPUs that others use say `chrt -f 10 wide.py ...`, for the rivals' sake as
for gx's.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import path  # noqa: F401: where the next ones are
import cli
import test_veth
from cli import CLIENT_CPU, SERVER_CPU, expect

ROUNDS = int(os.environ.get("GX_WIDE_ROUNDS", "7"))
RUN_S, MTU, DEPTH = 1, 1500, 64
HERE, THERE = "10.90.0.1", "10.90.0.2"
RIVALS = {"TCP 128K": ("-C", "cubic", "-l", "128K"), "TCP 1M": ("-C", "cubic", "-l", "1M"), "UDP": ("-u", "-b", "0", "-l", "1448")}


def gx_one(tools, other):
    with cli.Server(tools, "--insecure", "--port", "udp", "--bind", HERE, listen=f"{HERE}:0") as server:
        there = test_veth.There(tools, other, server, "udp", more=("--bind", THERE, "--link", "packet", "--depth", str(DEPTH)))
        row = there.perf("put", "-s", "1M", "-D", RUN_S).clean()[0]
        expect(row["checked_b"] >= row["size_b"], row)
        return row["GB_s"]


def iperf3_one(other, port, how):
    server = subprocess.Popen(["iperf3", "-s", "-1", "-B", HERE, "-p", str(port), "-A", SERVER_CPU], stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(0.3)
        words = ["iperf3", "-c", HERE, "-p", port, "-A", CLIENT_CPU, "-t", RUN_S, *how, "--json"]
        ran = subprocess.run(other.words(*map(str, words)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, text=True, timeout=60)
        return json.loads(ran.stdout)["end"]["sum_received"]["bits_per_second"] / 8e9
    finally:
        server.kill()
        server.wait()


def said(name, all_of):
    return f"{name} {statistics.median(all_of):.2f} GB/s ({min(all_of):.2f} to {max(all_of):.2f})"


def main(*builds):
    test_veth.enter()
    other = test_veth.Other()
    gx, rival = {build: [] for build in builds}, {name: [] for name in RIVALS}
    try:
        test_veth.links_make(other)
        test_veth.mtu_set(other, MTU)
        for i in range(ROUNDS):
            for build, row in gx.items():
                row.append(gx_one(cli.Tools(pathlib.Path(build).resolve()), other))
            for k, (name, row) in enumerate(rival.items()):
                row.append(iperf3_one(other, 18700 + len(RIVALS) * i + k, RIVALS[name]))
    finally:
        other.end()
    for name, row in rival.items():
        print(said(f"iperf3 {name}", row))
    for build, row in gx.items():
        print(said(f"gx {build}", row))
        for name, theirs in rival.items():
            print(said(f"  of iperf3 {name}", [a / b for a, b in zip(row, theirs)]).replace(" GB/s", ""))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
