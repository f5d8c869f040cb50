#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Port udp where the path of its data dies, and that of the acknowledgements with it, and comes back (bottleneck.c).

usage: test_paths.py BUILD_DIR [seconds=N]
The kernel here may have no routes that hash ports, so the bottleneck plays the dead path: it loses what comes from the source ports of
the largest flows. Asserts that the transfer goes on, and that what was sent that way is what leaves in a few round trips,
and a probe a second. Exit status 77 where there is no TUN device or no namespace.
"""
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
    seconds = int(own.get("seconds", "8"))
    test_veth.enter()
    tools, other, rows = cli.Tools(pathlib.Path(build).resolve()), test_veth.Other(), []
    try:
        with path.joined(tools.fakes / "bottleneck", other, f"rate={RATE}", f"delay_ns={RTT_MS * 500000}", f"queue_b={RATE // 8 * RTT_MS // 1000}",
                         mtu=PACKET_B, prefix=test_narrow.PREFIX) as narrow:
            thread = threading.Thread(target=perf, args=(tools, other, seconds, rows))
            thread.start()
            time.sleep(3)
            narrow.die()
            narrow.counts()
            time.sleep(DEAD_S)
            dead = narrow.counts()
            home = max(dead["back"]["flows"] + dead["there"]["flows"], key=lambda f: f["packets"])
            narrow.die()
            thread.join()
            after = narrow.counts()
    finally:
        other.end()
    expect(rows, "no transfer")
    died, passed = max(dead[way]["died"] for way in ("there", "back")), max(dead[way]["passed_b"] for way in ("there", "back"))
    a_trip = RATE / 8 * RTT_MS / 1000 / PACKET_B
    print(f"{rows[0]['GB_s'] * 8e3:.1f} Mb/s in all; dead for {DEAD_S} s: {passed * 8 / 1e6 / DEAD_S:.1f} Mb/s, lost {died} packets of "
          f"{a_trip:.0f} a round trip; {rows[0]}")
    expect(died > 10, "the path did not die:", dead)
    # Two round trips with the queue, and what was under way then; probes of other paths are no part of it.
    expect(died < 6 * a_trip, "left late:", died, a_trip)
    expect(passed * 8 / DEAD_S > 0.8 * RATE, "slow beside the dead path:", passed)
    expect(home, after)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
