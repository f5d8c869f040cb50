#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gx between two hosts whose routers share load over two equal ways (ways.py), and one of the ways begins to drop everything.

usage: test_ecmp.py BUILD_DIR [CASE...]     CASE: udp4, udp4-data, udp6, dpdk4
udp6: routers hash the flow label and no ports; udp4-data: only data dies, no acknowledgements. Asserts that a transfer goes on by the other way, that all its payload is right, that
people are told which source port is the bad one, and that data comes home. Exit status 77 where a kernel cannot do this.
"""
import os
import pathlib
import sys
import tempfile
import threading
import time

import ways
from ways import HERE, HOSTS, THERE, expect
import cli
import test_veth

ALONE = len(os.sched_getaffinity(0)) >= 4  # else both ends, the kernel and the ways share CPUs, and time says little
RUN_S, START_S, SETTLE_S, DEAD_S, PHASE_S = 11 if ALONE else 30, 60, 2, 3, 20
ENOUGH_B = 300_000  # of data, that somebody is at work: a probe a second is some bytes
CASES = {"udp4": (4, "udp"), "udp4-data": (4, "udp"), "udp6": (6, "udp"), "dpdk4": (4, "dpdk:net_af_packet,iface={}")}


class Phase:
    """What each way carries to here."""

    def __init__(self, net):
        self.net, self.at, self.had = net, time.monotonic(), net.sent_b()[1]

    def grown(self):
        return [now - had for now, had in zip(self.net.sent_b()[1], self.had)]

    def rates(self):
        """Mb/s"""
        seconds = time.monotonic() - self.at
        return [round(b * 8 / 1e6 / seconds, 1) for b in self.grown()]

    def until(self, done, what, limit_s=PHASE_S):
        while not done(self.grown()):
            expect(time.monotonic() < self.at + limit_s, f"{what}: Mb/s by the two ways", self.rates())
            time.sleep(0.1)


class Put(threading.Thread):
    """A transfer to here, of so many seconds, measured from its first byte: gxperf tells the paths of that time."""

    def __init__(self, client, seconds):
        super().__init__()
        self.client, self.seconds, self.row, self.failed = client, seconds, None, None
        self.start()

    def run(self):
        try:
            self.row = self.client.perf("put", "-s", "256K", "-w", "0", "-D", str(self.seconds)).clean()[0]
        except BaseException as e:  # pylint: disable=broad-except; told by end()
            self.failed = e

    def end(self):
        self.join()
        if self.failed:
            raise self.failed
        return self.row


def told(tools, folder):
    """As the sender publishes it: source ports of data that it calls dead; what each has sent. It may be too busy to answer."""
    metrics, end = {}, time.monotonic() + PHASE_S
    while not metrics and time.monotonic() < end:
        doc = tools.gxd("dump", "--dir", folder).must(cli.OK).doc
        metrics = next((p["metrics"] for p in doc["processes"] if p["name"] == "gxperf"), {})

    def data(name):
        return {int(s["labels"]["source_port"]): s["value"] for s in metrics.get(name, []) if s["labels"]["packets"] == "data"}

    sent, lost, rtt = (data(f"gx_connection_source_port_{name}") for name in ("sent_packets_total", "lost_packets_total", "round_trip_seconds"))
    expect(sent and sent.keys() == lost.keys() == rtt.keys(), "paths of the sender:", metrics)
    expect(all(lost[port] <= sent[port] for port in sent), sent, lost)
    return [port for port, dead in data("gx_connection_source_port_dead").items() if dead], sent


def case(tools, name, folder):
    family, port = CASES[name]
    here, there = (f"[{a[family]}]" if family == 6 else a[family] for a in (HERE, THERE))
    with ways.joined(family, tools.fakes / "bottleneck") as net:
        binds = [("--bind", a[family]) for a in (HERE, THERE)] if port == "udp" else [(), ()]
        with cli.Server(tools, "--insecure", "--port", port.format(HOSTS[0]), *binds[0], "--timeout", "30", listen=f"{here}:0") as server:
            client = test_veth.There(tools, net.there, server, port.format(HOSTS[1]),
                                     more=(*binds[1], "--link", "packet", "--depth", "32", "--timeout", "30"))
            put = Put(client, RUN_S)
            Phase(net).until(lambda b: max(b) > 3 * ENOUGH_B, "no data comes", START_S)
            phase = Phase(net)
            time.sleep(SETTLE_S)
            before = phase.rates()
            way = before.index(max(before))
            ends = [net.near] if name.endswith("data") else [net.near, net.far]
            net.die(way, ends)
            phase = Phase(net)
            _, had = told(tools, folder)
            time.sleep(DEAD_S)
            phase.until(lambda b: b[1 - way] > ENOUGH_B, "no data beside the dead way")
            dead, (bad, sent) = phase.rates(), told(tools, folder)
            busy = {port for port in sent if sent[port] > had.get(port, 0)}  # gxperf tells those that sent while it measured
            net.die(way, ends, False)
            phase = Phase(net)
            phase.until(lambda b: b[way] > ENOUGH_B, "data does not come home")
            time.sleep(1)
            after = phase.rates()
            row = put.end()
    data = [p for p in row["paths"] if p["packets"] == "data"]
    print(f"{name}: Mb/s by the two ways {before}; way {way} dead: {dead}; then {after}; {row['GB_s'] * 8e3:.1f} Mb/s of payload, "
          f"lost {row['lost']}, sent again {row['resent']}; ports of data {[(p['source_port'], p['sent'], p['resent']) for p in data]}, "
          f"dead was {bad}", flush=True)
    expect(not ALONE or dead[1 - way] > before[way] / 1.5, "slow beside the dead way:", before, dead)
    home = max(data, key=lambda p: p["sent"])
    expect(home["source_port"] in bad, "the dead path is not told:", bad, row)
    expect({p["source_port"] for p in data} >= busy and len(busy) > 1 and home["resent"] > 0, "gxperf does not tell the paths:", busy, row)
    expect(not home["dead"], "it lives again, and is said to be dead:", row)


def main(build, *cases):
    test_veth.enter()
    tools = cli.Tools(pathlib.Path(build).resolve())
    for name in cases or CASES:
        with tempfile.TemporaryDirectory() as folder:
            tools.env["GX_RUN_DIR"] = folder
            case(tools, name, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
