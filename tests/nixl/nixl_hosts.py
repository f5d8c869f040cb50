#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two agents in network namespaces of their own, joined by a pair of devices: GX with nothing but GX_KEY_FILE, encrypted, beside UCX
over TCP, in clear, as NIXL's backend. Bytes are compared.

usage: nixl_hosts.py [ROUNDS]

For a Python that has NIXL's wheel with the backend GX linked into it (docs/nixl.md), as root, on a machine that does nothing else.
Prints the medians of ROUNDS (3) of a transfer, post to done, and UCX's time over gx's.
"""
import os
import statistics
import subprocess
import sys
import tempfile
import time
import unittest.mock

from nixl_node import Node

ADDRS = ("10.98.0.1", "10.98.0.2")
POINTS = [(1, 4), (256, 4), (256, 64), (4096, 16), (1, 65536)]  # blocks, KiB of one
TURNS = 9


def why_not():
    """Why there can be no namespaces here; "": there can."""
    if os.geteuid():
        return "namespaces want root"
    try:
        return "" if subprocess.run(["unshare", "-n", "ip", "link"], capture_output=True).returncode == 0 else "no network namespaces here"
    except OSError as e:
        return str(e)


class Hosts:
    """Two namespaces, which end with the block, and a key file that both hosts have."""

    def __enter__(self):
        self.room = tempfile.TemporaryDirectory()
        self.key = os.path.join(self.room.name, "nixl.key")
        with open(self.key, "w", opener=lambda path, flags: os.open(path, flags, 0o600), encoding="ascii") as f:
            f.write(f"gx-key 1\nname nixl\nsecret {os.urandom(32).hex()}\n")
        own = os.readlink("/proc/self/ns/net")
        self.pids = []
        for _ in ADDRS:
            self.pids.append(subprocess.Popen(["unshare", "-n", "sleep", "3600"]))
        until = time.monotonic() + 20
        while any(os.readlink(f"/proc/{p.pid}/ns/net") == own for p in self.pids) and time.monotonic() < until:
            time.sleep(0.02)
        one, other = (str(p.pid) for p in self.pids)
        self.ip("link", "add", "h0", "netns", one, "type", "veth", "peer", "name", "h1", "netns", other)
        for i, addr in enumerate(ADDRS):
            for words in (("addr", "add", f"{addr}/24", "dev", f"h{i}"), ("link", "set", f"h{i}", "up"), ("link", "set", "lo", "up")):
                self.ip(*words, host=i)
        return self

    def ip(self, *words, host=None):
        inside = [] if host is None else ["nsenter", "-t", str(self.pids[host].pid), "-n"]
        subprocess.run([*inside, "ip", *words], check=True)

    def __exit__(self, *_):
        for p in self.pids:
            p.kill()
            p.wait()
        self.room.cleanup()

    def node(self, host, *args, **env):
        """An agent there; GX_KEY_FILE is in its environment unless @env says otherwise."""
        more = {"GX_KEY_FILE": self.key, "GX_TEST_NETNS": str(self.pids[host].pid), **env}
        with unittest.mock.patch.dict(os.environ, more):
            return Node(*args)


def measure(hosts, backend, kind, count, block_b):
    """Return: seconds of a transfer."""
    tls = {"UCX_TLS": "tcp,cuda_copy" if os.path.exists("/dev/nvidiactl") else "tcp"} if backend == "UCX" else {} # it refuses to leave a GPU out
    far, near = hosts.node(0, "far", None, backend, **tls), hosts.node(1, "near", None, backend, **tls)
    there, _ = far.array("there", count * block_b, 1), near.array("here", count * block_b, 2)
    near.add(far.meta())
    order = list(range(count))
    near.prepare("x", kind, "here", "far", there, [(i * block_b, (count - 1 - i) * block_b, block_b) for i in order])
    if near.run("x") != "DONE":
        sys.exit(f"{backend}: {kind} failed")
    ours, theirs = near.data("here"), far.data("there")
    if any(ours[i * block_b:(i + 1) * block_b] != theirs[(count - 1 - i) * block_b:(count - i) * block_b] for i in order):
        sys.exit(f"{backend}: wrong bytes of {kind}")
    took = near.timed("x", TURNS)[0]
    near.stop()
    far.stop()
    return took / 1e9


def main(args):
    if why := why_not():
        print(why)
        return 77
    rounds = int(args[0]) if args else 3
    with Hosts() as hosts:
        for kind in ("WRITE", "READ"):
            for count, kib in POINTS:
                took = {"GX": [], "UCX": []}
                for turn in range(rounds):
                    for backend in list(took) if turn % 2 else reversed(took):
                        took[backend].append(measure(hosts, backend, kind, count, kib << 10))
                gx, ucx = (statistics.median(took[b]) for b in ("GX", "UCX"))
                print(f"{kind} {count} x {kib} KiB: gx {gx * 1e6:.0f} us {count * kib * 1024 / gx / 1e9:.2f} GB/s, "
                      f"UCX {ucx * 1e6:.0f} us, UCX's time over gx's {ucx / gx:.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
