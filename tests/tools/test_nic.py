#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gxd and gxperf over network cards that DPDK drives by PCI address: in a virtual machine, which has some (vm/machine.py).

usage: test_nic.py BUILD_DIR PART
PART e1000e: two Intel cards on one wire; routed: a router, the machine's kernel, between them; virtio: two of QEMU's own;
queues: the same with two queues each, which fill as they like, behind taps on a bridge in a network namespace of the test's.
Exit status 77 where there is no QEMU or no kernel package. All is emulated, so times say nothing; the machine is given up
after LIMIT_S. Within the machine this program runs once more, with BUILD_DIR PART inside.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "vm"))

import machine
import cli
from cli import CLIENT_CPU, FAILED, OK, USAGE, expect

LIMIT_S = int(os.environ.get("GX_TEST_NIC_LIMIT_S", "600"))
CALL_S = 60
HERE, THERE = "0000:00:10.0", "0000:00:11.0"  # gxd's card and gxperf's
# Addresses of 48 bits, as servers have: with the address sanitizer DPDK's memory lies high.
IOMMU = ["-device", "intel-iommu,intremap=off,caching-mode=on,device-iotlb=on,aw-bits=48"]


VIRTIO = ",disable-legacy=on,iommu_platform=on,ats=on"
INSIDE = "GX_TEST_NIC_INSIDE"


def card(model, slot, hub, more=""):
    """A card in PCI slot @slot on the wire @hub."""
    return ["-netdev", f"hubport,id=net{slot},hubid={hub}",
            "-device", f"{model},netdev=net{slot},addr={slot},mac=52:54:00:00:00:{slot},romfile={more}"]


def tap_card(name, slot):
    return ["-netdev", f"tap,id=net{slot},ifname={name},queues=2,script=no,downscript=no,vhost=off",
            "-device", f"virtio-net-pci,netdev=net{slot},addr={slot},mac=52:54:00:00:00:{slot},romfile={VIRTIO},mq=on,vectors=6"]


PARTS = {
    "e1000e": (card("e1000e", 10, 0) + card("e1000e", 11, 0), []),
    "routed": (card("e1000e", 10, 0) + card("e1000e", 11, 1) + card("virtio-net-pci", 12, 0) + card("virtio-net-pci", 13, 1),
               ["virtio_net"]),
    "virtio": (card("virtio-net-pci", 10, 0, VIRTIO) + card("virtio-net-pci", 11, 0, VIRTIO), []),
    "queues": (tap_card("gxt0", 10) + tap_card("gxt1", 11), []),
}


# --- in the machine ---------------------------------------------------------------------------------------

def sh(*words):
    ran = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=CALL_S)
    expect(ran.returncode == 0, *words, ran.stdout)
    return ran.stdout


def done(what):
    print(f"{pathlib.Path('/proc/uptime').read_text().split()[0]} s: {what}", flush=True)


def bind(address):
    folder = pathlib.Path("/sys/bus/pci/devices", address)
    (folder / "driver_override").write_text("vfio-pci")
    if (folder / "driver").exists():
        (folder / "driver/unbind").write_text(address)
    pathlib.Path("/sys/bus/pci/drivers_probe").write_text(address)


class Ends:
    """A gxd over one card and gxperf over the other."""

    def __init__(self, tools, here, there, *server_args):
        self.tools, self.there, self.cores = tools, f"dpdk:{there}", CLIENT_CPU
        self.server = cli.Server(tools, "--port", f"dpdk:{here}", *server_args, mem="kv=host:8M")

    def __enter__(self):
        self.server.__enter__()
        return self

    def __exit__(self, *what):
        return self.server.__exit__(*what)

    def run(self, command, *args):
        return self.tools.run(self.tools.gxperf_path, command, self.server.addr, "--cores", self.cores, "--mem", "kv", "--port",
                              self.there, *args, timeout=CALL_S)

    def sizes(self, largest, *args):
        """Puts and gets; every byte of each message is compared."""
        for command in ("put", "get"):
            ran = self.run(command, "-b", "1", "-e", largest, "-f", "16", "-n", "3", "--format", "json", *args)
            rows = ran.clean()
            expect(len(rows) > 1 and all(r["checked_b"] >= r["size_b"] for r in rows), ran)
            done(f"{command}: quantum {ran.doc['path']['quantum']}, " +
                 ", ".join(f"{r['size_b']} B {r['p50_us']:.0f} us" for r in rows))


def refused(tools, port, *words, rc=FAILED):
    """gxd does not start over it, and says why."""
    tools.gxd("--listen", "127.0.0.1:0", "--mem", "kv=host:1M", "--port", f"dpdk:{port}", "--cores", "0,1").must(rc, *words)
    done("refused as it should be: " + ", ".join(words))


def file(ends):
    """A file there and back; SHA-256 is computed on both sides."""
    with tempfile.TemporaryDirectory() as folder:
        source, back = pathlib.Path(folder, "F"), pathlib.Path(folder, "G")
        source.write_bytes(os.urandom(100003))
        ends.run("put", "--file", source).must(OK)
        ends.run("get", "--file", back, "-s", source.stat().st_size).must(OK)
        expect(source.read_bytes() == back.read_bytes(), "the file came back changed")
    done("a file there and back")


def seam(build):
    """The port itself, both directions at once, opened twice."""
    done(sh(build / "tests/test_port_dpdk", "nic", f"{HERE},mem=64,ip=10.9.0.1", f"{THERE},mem=64,ip=10.9.0.2").strip())


def usual(tools):
    with Ends(tools, f"{HERE},ip=10.9.0.1", f"{THERE},ip=10.9.0.2") as ends:
        refused(tools, f"{HERE},ip=10.9.0.3", "another process has it")
        ends.sizes("64K")
        file(ends)


def large_frames(tools):
    with Ends(tools, f"{HERE},ip=10.9.0.1,mtu=9000", f"{THERE},ip=10.9.0.2,mtu=9000", "--no-huge") as ends:
        ends.sizes("256K", "--no-huge")


def two_cores(tools):
    """Two queues and no flow rules: each packet is handed to the core that it is for."""
    with Ends(tools, f"{HERE},ip=10.9.0.1", f"{THERE},ip=10.9.0.2", "--cores", "0,1") as ends:
        ends.cores = "0,1"
        ends.sizes("64K")
        expect("refuses a flow rule" in ends.server.log(), ends.server.log())


def inside_e1000e(tools, build):
    yield lambda: refused(tools, f"{HERE},ip=10.9.0.1", "no driver has it", "vfio-pci")
    bind(HERE)
    bind(THERE)
    yield lambda: refused(tools, f"{HERE},ip=10.9.0.1,mtu=9500", "mtu=9500", "at most", rc=USAGE)
    yield lambda: seam(build)
    yield lambda: usual(tools)
    yield lambda: large_frames(tools)
    yield lambda: two_cores(tools)


def inside_virtio(tools, build):
    yield lambda: refused(tools, f"{HERE},ip=10.9.0.1", "virtio-pci has it", "vfio-pci")
    bind(HERE)
    bind(THERE)
    yield lambda: refused(tools, f"{HERE},ip=10.9.0.1", "1 queues", "--cores", rc=USAGE)
    yield lambda: seam(build)
    yield lambda: usual(tools)


def inside_queues(tools, build):
    bind(HERE)
    bind(THERE)
    yield lambda: usual(tools)
    yield lambda: two_cores(tools)


def routed(tools):
    with Ends(tools, f"{HERE},ip=10.9.0.1,gateway-mac=52:54:00:00:00:12",
              f"{THERE},ip=10.9.1.1/24,gateway-mac=52:54:00:00:00:13") as ends:
        ends.sizes("64K")
        neighbours = pathlib.Path("/proc/net/arp").read_text()
        for ip, slot in (("10.9.0.1", 10), ("10.9.1.1", 11)):
            line = next((text for text in neighbours.splitlines() if text.split()[0] == ip), "")
            expect(f"52:54:00:00:00:{slot}" in line, "the router knows", neighbours)
    done("both ends answered the router's ARP")


def inside_routed(tools, build):
    """Two networks. The kernel routes between them, with cards that it has: it asks both ends for their MAC addresses."""
    names = {(path / "address").read_text().strip(): path.name for path in pathlib.Path("/sys/class/net").iterdir()}
    for slot, net in ((12, 0), (13, 1)):
        name = names[f"52:54:00:00:00:{slot}"]
        sh("ip", "addr", "add", f"10.9.{net}.254/24", "dev", name)
        sh("ip", "link", "set", name, "up")
    pathlib.Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    bind(HERE)
    bind(THERE)
    yield lambda: routed(tools)


def inside(build, part):
    sh("ip", "link", "set", "lo", "up")
    done("the machine is up")
    failed = 0
    parts = {"e1000e": inside_e1000e, "routed": inside_routed, "virtio": inside_virtio, "queues": inside_queues}
    for step in parts[part](cli.Tools(build), build):
        try:
            step()
        except AssertionError as why:
            failed += 1
            done(f"FAILED: {why}")
    return 1 if failed else 0


# --- outside ----------------------------------------------------------------------------------------------

def taps():
    """Go on in a network namespace of our own, with two taps on a bridge."""
    if not os.environ.get(INSIDE):
        if subprocess.run(["unshare", "-n", "true"], stderr=subprocess.DEVNULL, check=False).returncode:
            raise machine.Absent("no network namespace for this user: taps need root")
        os.environ[INSIDE] = "yes"
        os.execvp("unshare", ["unshare", "-n", sys.executable, *sys.argv])
    lines = ["link add gxbr type bridge", "link set gxbr up"]
    for name in ("gxt0", "gxt1"):
        lines += [f"tuntap add dev {name} mode tap multi_queue", f"link set {name} master gxbr", f"link set {name} up"]
    for line in lines:
        made = subprocess.run(["ip", *line.split()], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if made.returncode:
            raise machine.Absent(f"no taps and bridge here: ip {line}: {made.stdout.strip()}")


def main(args):
    build, part = pathlib.Path(args[0]).resolve(), args[1]
    if args[2:] == ["inside"]:
        return inside(build, part)
    devices, modules = PARTS[part]
    try:
        if part == "queues":
            taps()
        status, console = machine.run(
            build / "tests/vm_init", [sys.executable, pathlib.Path(__file__).resolve(), build, part, "inside"],
            devices=IOMMU + devices, modules=["vfio_iommu_type1", "vfio-pci", *modules],
            module_args={"vfio_iommu_type1": "allow_unsafe_interrupts=1"}, cmdline="intel_iommu=on hugepages=320", timeout_s=LIMIT_S)
    except machine.Absent as why:
        print(f"skipped: {why}")
        return 77
    print(console)
    if status is None:
        print(f"the machine did not come to an end within {LIMIT_S} s")
    return 1 if status is None else status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
