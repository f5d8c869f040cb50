# SPDX-License-Identifier: Apache-2.0
"""Two hosts with two equal ways between them, which their routers choose by hash: four network namespaces.

here --- near ===(way 0, way 1)=== far --- there

Each way is a bottleneck (bottleneck.c). It dies in silence: the router at its end drops all that comes from there.
"""
import contextlib
import json
import os
import pathlib
import subprocess
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "tools"))
from cli import expect  # noqa: E402
from test_veth import Other, sh, skip  # noqa: E402

HERE, THERE = {4: "10.95.0.1", 6: "fd95::1"}, {4: "10.97.0.1", 6: "fd97::1"}
RATE, RTT_MS = 100_000_000, 10
ROUTER, WAYS = "gxhost", ("gxway0", "gxway1")  # devices of a router
HOSTS = ("gxhere", "gxthere")


def must(words):
    ran = sh(*words)
    expect(ran.returncode == 0, *words, ran.stdout)
    return ran.stdout


class Ways:
    """@family: 4: routers hash ports; 6: they hash addresses and the flow label, not ports."""

    def __init__(self, family, program):
        self.family, self.program, self.boxes, self.spaces = family, program, [], [Other() for _ in range(3)]  # near, far, there
        self.near, self.far, self.there = self.spaces

    def end(self):
        for box in self.boxes:
            box.kill()
            box.communicate()
        for space in self.spaces:
            space.end()

    def ip(self, space, *words):
        words = ("ip", f"-{self.family}", *words)
        return must(space.words(*words) if space else words)

    def sysctl(self, space, name, value):
        """False: this kernel has none of that name."""
        path = f"/proc/sys/net/ipv{self.family}/{name}"
        return sh(*space.words("sh", "-c", f"echo {value} > {path}")).returncode == 0

    def addr(self, net, host):
        return f"10.9{net}.0.{host}" if self.family == 4 else f"fd9{net}::{host}"

    def link(self, a, name, b, peer):
        """Between two spaces; None: this one."""
        ran = sh("ip", "link", "add", name, "type", "veth", "peer", "name", peer)
        if ran.returncode:
            skip(f"no veth pair can be made here: {ran.stdout.strip()}")
        for space, one in ((b, peer), (a, name)):
            if space:
                must(("ip", "link", "set", one, "netns", str(space.proc.pid)))

    def up(self, space, name, net, host):
        nodad = ("nodad",) if self.family == 6 else ()
        self.ip(space, "addr", "add", f"{self.addr(net, host)}/{24 if self.family == 4 else 64}", "dev", name, *nodad)
        self.ip(space, "link", "set", name, "up")

    def way(self, i, name):
        """Two devices of this name, and what is between them. It must have a CPU when a packet is due: both ends poll."""
        prefix = ("nice", "-n", "-19") if os.geteuid() == 0 else ()
        values = (f"rate={RATE}", f"delay_ns={RTT_MS * 500000}", f"queue_b={RATE // 8 * RTT_MS // 1000}")
        box = subprocess.Popen([*prefix, self.program, "gxnear", "gxfar", *values], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
        self.boxes.append(box)
        if box.stdout.readline() != "ready\n":
            why = box.communicate()[1].strip()
            if box.returncode == 77:
                skip(why)
            raise AssertionError(why)
        for space, end, host in ((self.near, "gxnear", 1), (self.far, "gxfar", 2)):
            must(("ip", "link", "set", end, "netns", str(space.proc.pid)))
            must(space.words("ip", "link", "set", end, "name", name, "addrgenmode", "none"))
            must(space.words("ip", "link", "set", name, "mtu", "1500", "txqueuelen", "10000"))
            self.up(space, name, 1 + i, host)

    def make(self):
        if self.family == 6 and not pathlib.Path("/proc/net/if_inet6").exists():
            skip("no IPv6 here")
        near, far, there = self.spaces
        for space in (near, far):
            forwards = self.sysctl(space, "ip_forward" if self.family == 4 else "conf/all/forwarding", 1)
            if not forwards or not self.sysctl(space, "fib_multipath_hash_policy", 1 if self.family == 4 else 0):
                skip("no routes that share load by hash: net.ipvN.fib_multipath_hash_policy is not there")
        for space in (None, *self.spaces):
            self.ip(space, "link", "set", "lo", "up")
        for host, name, router, net in ((None, HOSTS[0], near, 5), (there, HOSTS[1], far, 7)):
            self.link(host, name, router, ROUTER)
            self.up(host, name, net, 1)
            self.up(router, ROUTER, net, 2)
            self.ip(host, "route", "add", "default", "via", self.addr(net, 2))
            # Port dpdk asks nobody where the router is.
            self.ip(host, "neigh", "replace", self.addr(net, 2), "lladdr", self.mac(router, ROUTER), "nud", "permanent", "dev", name)
        for i, name in enumerate(WAYS):
            self.way(i, name)
        for space, net, host in ((near, 7, 2), (far, 5, 1)):
            hops = [w for i, name in enumerate(WAYS) for w in ("nexthop", "via", self.addr(1 + i, host), "dev", name)]
            ran = sh(*space.words("ip", f"-{self.family}", "route", "add", f"{self.addr(net, 0)}/{24 if self.family == 4 else 64}", *hops))
            if ran.returncode:
                skip(f"no route with two hops here: {ran.stdout.strip()}")

    def mac(self, space, name):
        return json.loads(must(space.words("ip", "-j", "link", "show", name)))[0]["address"]

    def die(self, way, ends, dead=True):
        """@ends: of near and far, those that drop what comes by it."""
        for space in ends:
            ran = sh(*space.words("ip", f"-{self.family}", "rule", "add" if dead else "del", "iif", WAYS[way], "blackhole"))
            if ran.returncode:
                skip(f"no rules of routing here: {ran.stdout.strip()}")

    def sent_b(self):
        """[to there, to here][way]"""
        return [[json.loads(must(space.words("ip", "-j", "-s", "link", "show", name)))[0]["stats64"]["tx"]["bytes"]
                 for name in WAYS] for space in (self.near, self.far)]


@contextlib.contextmanager
def joined(family, program):
    ways = Ways(family, program)
    try:
        ways.make()
        yield ways
    finally:
        ways.end()
        sh("ip", "link", "del", HOSTS[0])


__all__ = ["HERE", "HOSTS", "RATE", "RTT_MS", "THERE", "Ways", "expect", "joined", "sh", "skip"]
