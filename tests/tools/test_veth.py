#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gxd and gxperf on two hosts, as far as one kernel can be two: network namespaces joined by veth pairs.

usage: test_veth.py BUILD_DIR udp|net_af_packet|net_af_xdp
The namespaces are made for the test and go with it. Exit status 77 where that is refused. Two pairs: bootstrap runs over the
first, and so does udp; a driver of DPDK has the second one to itself, because AF_XDP takes everything that arrives at its
interface. Over udp the MTU becomes smaller while messages are under way.
"""
import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

import cli
from cli import CLIENT_CPU, OK, SERVER_CPU, expect

INSIDE = "GX_TEST_VETH_INSIDE"
CALL_S = 100


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def sh(*words):
    return subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=20)


def enter(more=""):
    """Go on in a network namespace of our own, as root there. @more: letters of unshare, of further namespaces."""
    if os.environ.get(INSIDE):
        return
    for flags in ("-n" + more, "-Urn" + more):
        if sh("unshare", flags, "true").returncode == 0:
            os.environ[INSIDE] = flags
            os.execvp("unshare", ["unshare", flags, sys.executable, *sys.argv])
    skip("no network namespace for this user: " + sh("unshare", "-Urn", "true").stdout.strip())


class Other:
    """The other host: a namespace that lives as long as a process in it."""

    def __init__(self, lasts="600"):
        self.proc = subprocess.Popen(["unshare", "-n", "sleep", lasts], stdin=subprocess.DEVNULL)
        mine = os.readlink("/proc/self/ns/net")
        for _ in range(100):
            if os.readlink(f"/proc/{self.proc.pid}/ns/net") != mine:
                return
            time.sleep(0.05)
        raise AssertionError("the other namespace does not come up")

    def words(self, *words):
        return ["nsenter", "-t", str(self.proc.pid), "-n", *words]

    def end(self):
        self.proc.kill()
        self.proc.wait()


def links_make(other):
    for i, name in enumerate(("gxa", "gxc")):
        peer = name + "p"
        made = sh("ip", "link", "add", name, "type", "veth", "peer", "name", peer)
        if made.returncode:
            skip(f"no veth pair can be made here: {made.stdout.strip()}")
        here = (("ip", "addr", "add", f"10.9{i}.0.1/24", "dev", name), ("ip", "link", "set", name, "up"))
        there = (("ip", "addr", "add", f"10.9{i}.0.2/24", "dev", peer), ("ip", "link", "set", peer, "up"))
        for words in (("ip", "link", "set", peer, "netns", str(other.proc.pid)), *here, *(other.words(*w) for w in there)):
            ran = sh(*words)
            expect(ran.returncode == 0, *words, ran.stdout)
    for words in (("ip", "link", "set", "lo", "up"), other.words("ip", "link", "set", "lo", "up")):
        sh(*words)


def mtu_set(other, mtu):
    """Of the first pair, both ends."""
    for words in (("ip", "link", "set", "gxa", "mtu", str(mtu)), other.words("ip", "link", "set", "gxap", "mtu", str(mtu))):
        ran = sh(*words)
        expect(ran.returncode == 0, *words, ran.stdout)


class There:
    """gxperf on the other host."""

    def __init__(self, tools, other, server, port, cores=CLIENT_CPU, more=()):
        self.tools, self.other, self.server, self.port, self.cores, self.more = tools, other, server, port, cores, more
        self.insecure = () if "--key" in more else ("--insecure",)

    def words(self, command, *args):
        port = ("--port", self.port) if self.port else ()
        return [*self.other.words(self.tools.gxperf_path), command, self.server.addr, *self.insecure, "--cores", self.cores, "--mem",
                "kv", *port, *map(str, self.more), *map(str, args)]

    def run(self, command, *args, **kw):
        words = self.words(command, *args)
        return self.tools.run(words[0], *words[1:], timeout=CALL_S, **kw)

    def perf(self, command, *args):
        return self.run(command, *args, "--format", "json")


def sizes(there):
    """Every byte of each message is compared."""
    for command in ("put", "get"):
        rows = there.perf(command, "-b", "1", "-e", "16M", "-f", "16", "-n", "3").clean()
        expect([r["size_b"] for r in rows] == [16 ** i for i in range(7)], rows)
        expect(all(r["checked_b"] >= r["size_b"] for r in rows), rows)


def file(there, folder):
    """A file there and back; SHA-256 is computed on both sides."""
    source, back = folder / "F", folder / "G"
    source.write_bytes(os.urandom(1000003))
    there.run("put", "--file", source).must(OK)
    there.run("get", "--file", back, "--force", "-s", source.stat().st_size).must(OK)
    expect(source.read_bytes() == back.read_bytes(), "the file came back changed")


def narrows(there, other):
    """The path carries 9,000 bytes, and then no more than 1,500: what is under way goes on with smaller packets."""
    before = there.server.stat(there.tools, "msgs_rx")
    proc = subprocess.Popen(there.words("put", "-s", "4M", "-D", "4", "--format", "json"), stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=there.tools.env)
    while there.server.stat(there.tools, "msgs_rx") < before + 5 and proc.poll() is None:
        time.sleep(0.02)
    mtu_set(other, 1500)
    out, err = proc.communicate(timeout=CALL_S)
    ran = cli.Ran(proc, out, err)
    ran.clean()
    expect("packets of 8192 bytes do not get through" in err, "the fallback is not said:", ran)
    there.perf("get", "-s", "1M", "-n", "20").clean()


def over_tcp(tools, other, folder):
    """The kernel's TCP: where it is asked for, and where the ends have no port in common, which is said."""
    # Beside other tests, two polling cores may keep the kernel's own threads, which carry packets over the veth, off a CPU for seconds.
    patient = ("--timeout", "30")
    with cli.Server(tools, "--insecure", "--port", "shm", *patient, listen="10.90.0.1:0") as server:
        there = There(tools, other, server, None, more=(*patient, "--link", "tcp", "--sockets", "4"))
        sizes(there)
        file(there, folder)
        there.more = patient
        ran = there.perf("put", "-s", "1M", "-n", "20").must(OK)
        expect(ran.doc["path"]["link"] == "tcp" and "the fastest to a server in another network namespace" in ran.doc["path"]["why"], ran)
        expect("last resort" not in ran.err, ran)
        there.more = (*patient, "--integrity", "none")
        ran = there.perf("put", "-s", "1M", "-n", "20").must(OK)
        expect(ran.doc["path"]["link"] == "tcp" and "the last resort" in ran.doc["path"]["why"], ran)
        expect("no port that both ends can use" in ran.err and "the last resort" in ran.err, ran)
        there.run("put", "--link", "packet").must(cli.FAILED, "no port that both ends can use")
        there.run("put", "--link", "local").must(cli.FAILED)


def two_cores(tools, other, ports):
    """The kernel spreads packets over two queues as it likes: each is handed to the core that it is for."""
    cores = f"{SERVER_CPU},{CLIENT_CPU}"
    # Four polling cores on two CPUs: one may stand for seconds.
    patient = ("--timeout", "30")
    with cli.Server(tools, "--insecure", "--port", ports[0], "--cores", cores, *patient, listen="10.90.0.1:0") as server:
        there = There(tools, other, server, ports[1], cores, patient)
        sizes(there)
        there.perf("put", "-s", "1M", "-n", "20", "--stripe").clean()


def sealed(tools, other, driver, ports, folder):
    """With a key: gcm unless mac is asked for. What is put cannot be read on the way with gcm, and can with mac. Where frames do not
    pass the kernel's taps (AF_XDP) nobody looks."""
    key, source = folder / "kv.key", folder / "secret"
    tools.gxd("keygen", "kv", "-o", key).must(cli.OK)
    secret = b"a word that is for nobody on the way"
    source.write_bytes(secret * 500)
    with cli.Server(tools, "--key", key, "--port", ports[0], listen="10.90.0.1:0") as server:
        for mode in ("gcm", "mac"):
            there = There(tools, other, server, ports[1], more=("--key", key, *(("--integrity", "mac") if mode == "mac" else ())))
            for command in ("put", "get"):
                ran = there.perf(command, "-b", "1", "-e", "1M", "-f", "32", "-n", "5")
                ran.clean()
                expect(ran.doc["path"]["integrity"] == mode and ran.doc["path"]["auth"] == "key kv", ran)
            with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as tap:
                tap.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
                tap.bind(("gxc", 0))
                tap.setblocking(False)
                there.run("put", "--file", source).must(cli.OK)
                frames = bytearray()
                with contextlib.suppress(BlockingIOError):
                    while True:
                        frames += tap.recv(65536)
            if driver == "net_af_packet":
                expect(len(frames) > source.stat().st_size, f"{len(frames)} bytes were seen")
                expect((secret in frames) == (mode == "mac"), f"{mode}: what is put can{'' if secret in frames else ' not'} be read")
        for mode in ("none", "crc32c"):
            there.more = ("--key", key, "--integrity", mode)
            there.run("put", "-s", "4K", "-n", "5").must(cli.FAILED, "a key forbids")
        expect(server.stat(tools, "rx_forged") == 0)


def libxdp_leaks(tools, folder):
    """80 bytes of its own at close, which are not ours to free."""
    path = pathlib.Path(folder) / "lsan"
    path.write_text("leak:xsk_umem__create\n")
    tools.env["LSAN_OPTIONS"] = f"suppressions={path}:print_suppressions=0"


def main(build, driver):
    enter()
    if driver == "net_af_xdp" and os.environ[INSIDE] != "-n":
        skip("AF_XDP needs root")
    tools, other = cli.Tools(pathlib.Path(build).resolve()), Other()
    with tempfile.TemporaryDirectory() as folder:
        try:
            links_make(other)
            mtu_set(other, 9000 if driver == "udp" else 1500)
            libxdp_leaks(tools, folder)
            run(tools, other, driver, pathlib.Path(folder))
        finally:
            other.end()
    return 0


def run(tools, other, driver, folder):
    ports = ["udp", "udp"] if driver == "udp" else [f"dpdk:{driver},iface={i}" for i in ("gxc", "gxcp")]
    try:
        server = cli.Server(tools, "--insecure", "--port", ports[0], listen="10.90.0.1:0")
    except AssertionError as why:
        if driver != "net_af_xdp":
            raise
        skip(f"AF_XDP does not start on a veth here: {why}")
    with server:
        there = There(tools, other, server, ports[1])
        sizes(there)
        file(there, folder)
        if driver == "udp":
            narrows(there, other)
    if driver != "udp":
        sealed(tools, other, driver, ports, folder)
    if driver == "udp":
        over_tcp(tools, other, folder)
    if driver == "net_af_packet" and SERVER_CPU != CLIENT_CPU:
        two_cores(tools, other, ports)
    print(f"{driver} over veth: ok")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
