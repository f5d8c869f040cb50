# SPDX-License-Identifier: Apache-2.0
"""A narrow path between two network namespaces: the program bottleneck (bottleneck.c) between two TUN devices, for as long as a block.

With spin=1 and APART_CPUS or more in the host, a packet that was written goes up through the kernel in a thread of the kernel's for each
device (threaded NAPI), not in the program's call. Those threads run where there is room, not only on the test's CPUs. As behind a real
interface, packets of one stream that wait for them go up joined (GRO): then a receiver of TCP acknowledges more at once.
"""
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "tools"))
from cli import expect  # noqa: E402
from test_veth import Other, sh, skip  # noqa: E402

HERE, THERE = "10.92.0.1", "10.92.0.2"
NAMES = ("gxnear", "gxfar")
TXQUEUELEN = 10000  # packets of a device that the program has not read yet
APART_CPUS = 6  # two ends, two threads of the program, two of the kernel


class Path:
    """Between this namespace, with the address HERE, and the other, with THERE."""

    def __init__(self, box, other):
        self.box, self.other = box, other

    def counts(self):
        """Figures since the last call; there: from here to there, back."""
        self.box.send_signal(signal.SIGUSR1)
        return self._said()

    def die(self):
        """The path of the largest flow of UDP, in each direction, is dead, or is no longer."""
        self.box.send_signal(signal.SIGUSR2)

    def end(self):
        self.box.terminate()
        return self._said()

    def unread(self):
        """Packets that the kernel dropped because the program was too slow: with any, figures mean nothing."""
        ran = [sh("ip", "-j", "-s", "link", "show", NAMES[0]), sh(*self.other.words("ip", "-j", "-s", "link", "show", NAMES[1]))]
        return sum(json.loads(r.stdout)[0]["stats64"]["tx"]["dropped"] for r in ran)

    def _said(self):
        line = self.box.stdout.readline()
        expect(line.startswith("{"), "the bottleneck says:", line)
        return json.loads(line)


def device_up(words, name, addr, peer, mtu):
    # No link-local address of IPv6: the kernel's own packets would take the place of others in the order of mishaps.
    for command in (("link", "set", name, "addrgenmode", "none"), ("addr", "add", addr, "peer", peer, "dev", name),
                    ("link", "set", name, "up", "mtu", str(mtu), "txqueuelen", str(TXQUEUELEN)), ("link", "set", "lo", "up")):
        ran = sh(*words("ip", *command))
        expect(ran.returncode == 0, *command, ran.stdout)


def receive_apart():
    """The devices are both here still. A CPU of their own they do not have, so they come before those that poll, where that is allowed."""
    lines = ["mount -t sysfs sysfs /sys", *(f"echo 1 > /sys/class/net/{name}/threaded" for name in NAMES),
             f"renice -n -19 -p $(pgrep '^napi/({'|'.join(NAMES)})') || true"]
    ran = sh("unshare", "-m", "sh", "-ec", "\n".join(lines))
    if ran.returncode:
        print("note: no threads of the kernel for what is written, which costs the program more:", ran.stdout.strip(), flush=True)


@contextlib.contextmanager
def joined(program, other, *values, mtu=1500, prefix=()):
    """@program: the bottleneck; @values: its NAME=VALUE; @prefix: words before it, such as nice."""
    apart = "spin=1" in values and os.cpu_count() >= APART_CPUS
    box = subprocess.Popen([*prefix, program, *NAMES, f"napi={int(apart)}", *map(str, values)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True)
    try:
        if box.stdout.readline() != "ready\n":
            why = box.communicate()[1].strip()
            if box.returncode == 77:
                skip(why)
            raise AssertionError(why)
        if apart:
            receive_apart()
        ran = sh("ip", "link", "set", NAMES[1], "netns", str(other.proc.pid))
        expect(ran.returncode == 0, ran.stdout)
        device_up(lambda *w: w, NAMES[0], HERE, THERE, mtu)
        device_up(other.words, NAMES[1], THERE, HERE, mtu)
        yield Path(box, other)
    finally:
        box.kill()
        box.communicate()


__all__ = ["HERE", "NAMES", "Other", "Path", "THERE", "expect", "joined", "sh", "skip"]
