#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Port udp where the path of its data dies, and that of the acknowledgements with it, and comes back (bottleneck.c).

usage: test_paths.py BUILD_DIR [seconds=N]
The kernel here may have no routes that hash ports, so the bottleneck plays the dead path: it loses what comes from the source ports of
the largest flows. Asserts that the transfer goes on, and that what was sent that way is what leaves in a few round trips,
and a probe a second. Exit status 77 where there is no TUN device or no namespace.
"""
import os
import pathlib
import sys
import threading
import time

import path
from path import HERE, THERE, expect
import cli
import test_narrow
import test_veth

RATE, RTT_MS, DEAD_S = 100_000_000, 10, 3
PACKET_B = 1500


def perf(tools, other, seconds, out):
    port = "udp"
    with cli.Server(tools, "--insecure", "--port", port, "--bind", HERE, listen=f"{HERE}:0") as server:
        there = test_veth.There(tools, other, server, port, more=("--bind", THERE, "--link", "packet", "--depth", "32"))
        out.append(there.perf("put", "-s", "256K", "-D", str(seconds)).clean()[0])


def main(build, *args):
    own = dict(arg.split("=", 1) for arg in args)
    seconds = int(own.get("seconds", "10"))
    test_veth.enter()
    tools, other, rows = cli.Tools(pathlib.Path(build).resolve()), test_veth.Other(), []
    try:
        with path.joined(tools.fakes / "bottleneck", other, f"rate={RATE}", f"delay_ns={RTT_MS * 500000}", f"queue_b={RATE // 8 * RTT_MS // 1000}",
                         mtu=PACKET_B, prefix=test_narrow.PREFIX) as narrow:
            thread = threading.Thread(target=perf, args=(tools, other, seconds, rows))
            thread.start()
            time.sleep(3)
            narrow.counts()
            time.sleep(2)
            narrow.die()
            before = narrow.counts()
            time.sleep(DEAD_S)
            dead = narrow.counts()
            narrow.die()
            thread.join()
    finally:
        other.end()
    expect(rows, "no transfer")
    died, passed = max(dead[way]["died"] for way in ("there", "back")), max(dead[way]["passed_b"] for way in ("there", "back"))
    had = max(before[way]["passed_b"] / before[way]["seconds"] for way in ("there", "back"))
    a_trip = RATE / 8 * RTT_MS / 1000 / PACKET_B
    print(f"{had * 8 / 1e6:.1f} Mb/s; dead for {DEAD_S} s: {passed * 8 / 1e6 / DEAD_S:.1f} Mb/s, lost {died} packets of {a_trip:.0f} a round "
          f"trip at most; {rows[0]}")
    expect(died > 10, "the path did not die:", dead)
    # Two round trips with the queue, and what was under way then; probes of other paths are no part of it. Where the ends and the
    # bottleneck share CPUs, an end that does not run for a while is late: there it must have left at all, and gone on.
    alone = len(os.sched_getaffinity(0)) >= 4
    expect(died < (6 * a_trip if alone else DEAD_S * 1000 / RTT_MS * a_trip / 4), "left late:", died, a_trip)
    expect(passed / DEAD_S > had / (1.5 if alone else 10), "slow beside the dead path:", passed, had)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
