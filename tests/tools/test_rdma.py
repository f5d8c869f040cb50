#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Link verbs over soft RoCE (rdma_rxe), in a virtual machine (vm/machine.py), and beside perftest.

usage: test_rdma.py BUILD_DIR PART...
PART suite: puts and gets of all sizes over 1 to 64 queue pairs, notifications, files, ends that leave no object behind, a device
that is removed, two devices of which one goes down. compare: gxperf and perftest in turns, PAIRS times each; a line `ratio put 1M q4 0.98` for each comparison, gx over
perftest: the median of the pairs, then least and largest. gx checks its payload, perftest does not. Times of one another alone mean
something here: all is emulated.
GX_TEST_RDMA_PAIRS, GX_TEST_RDMA_ONLY (a part of the name of a comparison, as "put 1M") and GX_TEST_RDMA_BUSY (a server that never
sleeps) go into the machine.
Exit status 77 where there is no QEMU, no kernel package or no perftest. Within the machine this program runs once more, with inside.
"""
import contextlib
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "vm"))

import machine
import test_cli
from test_cli import CLIENT_CPU, FAILED, LOST, OK, SERVER_CPU, expect

LIMIT_S = int(os.environ.get("GX_TEST_RDMA_LIMIT_S", "1800"))
PAIRS = int(os.environ.get("GX_TEST_RDMA_PAIRS", "7"))
CALL_S = 120
CONNECTS = 100
DEVICE, NETDEV, ADDRESS = "rxe0", "gxv0", "10.9.0.1"
RAIL, RAIL_NETDEV, RAIL_ADDRESS = "rxe1", "gxw0", "10.9.1.1" # the second one, for a while
MODULES = ["veth", "ib_uverbs", "rdma_ucm", "rdma_rxe"]
PERFTEST = {"put": "ib_write_bw", "get": "ib_read_bw", "lat": "ib_write_lat"}
SIZES = {"64": 64, "4K": 4 << 10, "64K": 64 << 10, "1M": 1 << 20}
COMPARED = [(command, size, qps) for command in ("put", "get") for size in ("64K", "1M") for qps in (1, 2, 3, 4)]
COMPARED += [("lat", size, 1) for size in ("64", "4K")]
BYTES = 64 << 20 # of a measurement; a second or two there


# --- in the machine ---------------------------------------------------------------------------------------

def sh(*words):
    ran = subprocess.run([str(w) for w in words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         text=True, timeout=CALL_S)
    expect(ran.returncode == 0, *words, ran.stdout)
    return ran.stdout


def done(what):
    print(f"{pathlib.Path('/proc/uptime').read_text().split()[0]} s: {what}", flush=True)


def wait_for(what, seen, seconds=10):
    """The last value of seen(), which is to be true."""
    end = time.monotonic() + seconds
    while not seen():
        expect(time.monotonic() < end, f"not within {seconds} s: {what}")
        time.sleep(0.1)


def device_make(device=DEVICE, netdev=NETDEV, address=ADDRESS):
    """One device, which both ends use: packets of two devices in one kernel do not reach each other."""
    peer = netdev[:-1] + "1"
    sh("ip", "link", "add", netdev, "type", "veth", "peer", "name", peer)
    sh("ip", "addr", "add", f"{address}/24", "dev", netdev)
    for name in ("lo", netdev, peer):
        sh("ip", "link", "set", name, "up")
    sh("rdma", "link", "add", device, "type", "rxe", "netdev", netdev)
    wait_for("an active port", lambda: "ACTIVE" in sh("rdma", "link", "show", f"{device}/1"))


def gid_index():
    """Of the IPv4 address, for perftest. gx finds it by itself."""
    last = "0a09:0001"
    for path in sorted(pathlib.Path(f"/sys/class/infiniband/{DEVICE}/ports/1/gids").iterdir(), key=lambda p: int(p.name)):
        if path.read_text().strip().endswith("ffff:" + last):
            return path.name
    raise AssertionError(f"{DEVICE} has no GID of {ADDRESS}")


@contextlib.contextmanager
def served(tools, *rdma):
    rdma = rdma or ("--rdma", DEVICE)
    with test_cli.Server(tools, "--port", "udp", "--link", "verbs", *rdma, "--busy", mem="kv=host:8M") as server:
        yield server


def call(tools, server, command, *args, link="verbs"):
    rdma = ["--rdma", DEVICE] if link == "verbs" else ["--port", "udp"]
    return tools.run(tools.gxperf_path, command, server.addr, "--cores", CLIENT_CPU, "--mem", "kv", "--link", link, *rdma, *args,
                     timeout=CALL_S)


def rows(tools, server, command, *args):
    """Results over link verbs, whose payload was checked and right."""
    ran = call(tools, server, command, "--format", "json", *args)
    found = ran.clean()
    expect(ran.doc["path"]["link"] == "verbs", ran)
    expect(found and all(r["checked_b"] >= r["size_b"] for r in found if command != "lat"), ran)
    return found


def info(tools):
    """The device, its GIDs, and that gx takes it unnamed."""
    ran = tools.gxperf("info").must(OK)
    for word in (f"RDMA {DEVICE} port 1: state 4: ACTIVE", f"GID {gid_index()}: ::ffff:{ADDRESS}", f"asked for: {DEVICE} port 1"):
        expect(word in ran.out, f"no '{word}':", ran)
    done("info")


def sizes(tools):
    with served(tools) as server:
        for command in ("put", "get"):
            for qps in (1, 3, 64):
                found = rows(tools, server, command, "-q", qps, "-b", "1", "-e", "4M", "-f", "8", "-n", "3")
                expect(len(found) > 5, found)
                done(f"{command} -q {qps}: " + ", ".join(f"{r['size_b']} B {r['p50_us']:.0f} us" for r in found))
        rows(tools, server, "lat", "-s", "64", "-n", "200")
        lost = server.stat(tools, "verbs_qps_lost")
        expect(lost == 0, f"{lost} queue pairs were lost:", server.log())
    done("sizes")


def sends(tools):
    """Long ones, which the server's device reads."""
    with served(tools) as server:
        for qps in (1, 4):
            found = rows(tools, server, "send", "-q", qps, "-b", "128K", "-e", "4M", "-f", "4", "-n", "5")
            done(f"send -q {qps}: " + ", ".join(f"{r['size_b']} B {r['p50_us']:.0f} us" for r in found))
        expect(server.stat(tools, "pulls") > 20, "pulls:", server.stat(tools, "pulls"), server.log())
        missed = server.stat(tools, "verbs_misses") + server.stat(tools, "pulls_failed")
        expect(missed == 0, f"{missed} sends were not read by the device:", server.log())
    done("sends")


def file(tools):
    with served(tools) as server, tempfile.TemporaryDirectory() as folder:
        source, back = pathlib.Path(folder, "F"), pathlib.Path(folder, "G")
        source.write_bytes(os.urandom(1000003))
        call(tools, server, "put", "--file", source).must(OK)
        call(tools, server, "get", "--file", back, "-s", source.stat().st_size).must(OK)
        expect(source.read_bytes() == back.read_bytes(), "the file came back changed")
    done("a file there and back")


def leaves_nothing(tools):
    with served(tools) as server:
        before = sh("rdma", "resource", "show")
        for i in range(CONNECTS):
            call(tools, server, "put", "-s", "64K", "-n", "1", "-q", 1 + i % 8).must(OK)
        wait_for("the objects of before:\n" + before, lambda: sh("rdma", "resource", "show") == before)
    done(f"{CONNECTS} connections left nothing: {before.strip()}")


def refused(tools):
    """A server without a device, a device that is not there."""
    with test_cli.Server(tools, "--port", "udp", mem="kv=host:1M") as server:
        call(tools, server, "put", "-s", "4K", "-n", "1").must(FAILED, "the server does not offer it", "--rdma")
    tools.gxd("--listen", "127.0.0.1:0", "--mem", "kv=host:1M", "--rdma", "nosuch0").must(FAILED, "nosuch0")
    tools.gxd("--listen", "127.0.0.1:0", "--mem", "kv=host:1M", "--rdma", f"{DEVICE}:1:99").must(FAILED, "no usable GID")
    done("refused as it should be")


@contextlib.contextmanager
def putting(tools, server, *rdma, seconds=CALL_S):
    """A client that puts, and has done so for a while."""
    words = [tools.gxperf_path, "put", server.addr, "--cores", CLIENT_CPU, "--mem", "kv", "--link", "verbs",
             *(rdma or ("--rdma", DEVICE)), "-s", "64K", "-D", str(seconds)]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=tools.env) as client:
        time.sleep(3)
        yield client


def cut(tools):
    """The interface goes down while a client puts, and comes back. The client ends with its name, and the next one works."""
    with served(tools) as server:
        with putting(tools, server) as client:
            sh("ip", "link", "set", NETDEV, "down")
            begin = time.monotonic()
            try:
                out, _ = client.communicate(timeout=CALL_S)
            finally:
                client.kill()
                sh("ip", "link", "set", NETDEV, "up")
            expect(client.returncode == LOST and "no packet gets from" in out, client.returncode, out)
            done(f"the path was cut, and {time.monotonic() - begin:.1f} s later the client said: {out.strip().splitlines()[-1]}")
        wait_for("an active port", lambda: "ACTIVE" in sh("rdma", "link", "show"))
        rows(tools, server, "put", "-s", "64K", "-n", "20")
    done("the path is back")


def sent_by(device):
    return int(pathlib.Path(f"/sys/class/infiniband/{device}/ports/1/hw_counters/sent_pkts").read_text())


def moves(device):
    before = sent_by(device)
    time.sleep(1)
    return sent_by(device) > before + 10 # more than a queue pair that is tried again


def rails(tools):
    """Two devices, one of which goes down while a client puts, and comes back: the client sees nothing of it."""
    device_make(RAIL, RAIL_NETDEV, RAIL_ADDRESS)
    both = ("--rdma", DEVICE, "--rdma", RAIL)
    try:
        with served(tools, *both) as server, putting(tools, server, *both, seconds=CALL_S / 2) as client:
            try:
                wait_for("bytes by both devices", lambda: moves(DEVICE) and moves(RAIL))
                sh("ip", "link", "set", RAIL_NETDEV, "down")
                time.sleep(5) # its queue pairs have failed by now
                expect(moves(DEVICE) and not moves(RAIL), "the other device does not carry it alone")
                sh("ip", "link", "set", RAIL_NETDEV, "up")
                wait_for("bytes by the device that is back", lambda: moves(RAIL), seconds=30)
                out, _ = client.communicate(timeout=CALL_S)
            finally:
                client.kill()
            expect(client.returncode == OK, client.returncode, out)
            expect(server.stat(tools, "peers_lost") == 0, server.log())
    finally:
        sh("rdma", "link", "delete", RAIL)
        sh("ip", "link", "delete", RAIL_NETDEV)
    done("one of two devices went down and came back")


def removed(tools):
    """The device goes while a client puts: the client ends with an error, and the server serves others by packets."""
    with served(tools) as server:
        with putting(tools, server) as client:
            with subprocess.Popen(["rdma", "link", "delete", DEVICE]) as gone:
                try:
                    out, _ = client.communicate(timeout=CALL_S / 2)
                    expect(client.returncode in (FAILED, LOST) and "RDMA" in out, out)
                    call(tools, server, "put", "-s", "4K", "-n", "3", link="packet").must(OK)
                    done("the device was removed: " + out.strip().splitlines()[-1])
                except subprocess.TimeoutExpired: # some drivers wait for the last user, and tell none of them
                    client.kill()
                    done("NOT TESTED: this kernel removes a device only when nobody has it open")
                server.end() # for the same reason
                gone.wait(timeout=CALL_S)
    device_again()


def device_again():
    if DEVICE not in sh("rdma", "link", "show"):
        sh("rdma", "link", "add", DEVICE, "type", "rxe", "netdev", NETDEV)
    wait_for("an active port", lambda: "ACTIVE" in sh("rdma", "link", "show"))


def suite(tools):
    return [lambda step=step: step(tools) for step in (info, sizes, sends, file, leaves_nothing, refused, cut, rails, removed)]


# --- beside perftest --------------------------------------------------------------------------------------

def count_of(command, size):
    return 500 if command == "lat" else max(BYTES // SIZES[size], 64)


def gx_one(tools, command, size, qps):
    """GB/s, or us of one way."""
    with served(tools) as server:
        args = ["-s", size, "-n", count_of(command, size)]
        if command != "lat":
            args += ["-q", qps, "--same-place"] # as perftest does
        row = rows(tools, server, command, *args)[0]
        return row["p50_us" if command == "lat" else "GB_s"]


def perftest_one(command, size, qps, port):
    words = [PERFTEST[command], "-d", DEVICE, "-x", gid_index(), "-s", SIZES[size], "-n", count_of(command, size), "-p", port, "-F"]
    if command != "lat":
        words += ["-q", qps, "--report_gbits"]
    words = [str(w) for w in words]
    with subprocess.Popen(["taskset", "-c", SERVER_CPU, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True) as server:
        try:
            wait_for("perftest's server", lambda: f":{port:04X} " in pathlib.Path("/proc/net/tcp").read_text() +
                     pathlib.Path("/proc/net/tcp6").read_text())
            out = sh("taskset", "-c", CLIENT_CPU, *words, "127.0.0.1")
            server.wait(timeout=CALL_S)
        finally:
            server.kill()
    lines = [line.split() for line in out.splitlines() if re.match(rf"\s*{SIZES[size]}\s+\d+\s", line)]
    expect(lines, "no result:", out)
    # Columns: bytes, iterations, then best and average rate, or least, largest and typical time.
    return float(lines[-1][4]) if command == "lat" else float(lines[-1][3]) / 8


def compared(tools, command, size, qps, port):
    each = []
    for i in range(PAIRS):
        runs = [lambda: gx_one(tools, command, size, qps), lambda: perftest_one(command, size, qps, port + i)]
        got = {k: runs[k]() for k in ((0, 1) if i % 2 else (1, 0))}
        each.append(got[0] / got[1])
    name = f"{command} {size}" + (f" q{qps}" if command != "lat" else "")
    done(f"ratio {name} {statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})")


def compare(tools):
    return [lambda i=i, what=what: compared(tools, *what, 18600 + 20 * i) for i, what in enumerate(COMPARED)]


PARTS = {"suite": suite, "compare": compare}


def inside(build, parts):
    device_make()
    done("the machine is up: " + sh("rdma", "link", "show").strip())
    failed = 0
    tools = test_cli.Tools(build)
    for part in parts:
        for step in PARTS[part](tools):
            try:
                step()
            except (AssertionError, subprocess.TimeoutExpired) as why:
                failed += 1
                done(f"FAILED: {why}")
    return 1 if failed else 0


# --- outside ----------------------------------------------------------------------------------------------

def main(args):
    build, parts = pathlib.Path(args[0]).resolve(), [p for p in args[1:] if p != "inside"]
    if "inside" in args:
        return inside(build, parts)
    try:
        missing = [p for p in ("rdma", *PERFTEST.values()) if not shutil.which(p) and (p == "rdma" or "compare" in parts)]
        if missing:
            raise machine.Absent(f"no {', '.join(missing)} here (packages iproute2, perftest)")
        if not pathlib.Path("/etc/libibverbs.d/rxe.driver").exists():
            raise machine.Absent("libibverbs knows no soft RoCE here (package ibverbs-providers)")
        status, console = machine.run(
            build / "tests/vm_init", [sys.executable, pathlib.Path(__file__).resolve(), build, *parts, "inside"],
            modules=MODULES, timeout_s=LIMIT_S)
    except machine.Absent as why:
        print(f"skipped: {why}")
        return 77
    print(console)
    if status is None:
        print(f"the machine did not come to an end within {LIMIT_S} s")
    return 1 if status is None else status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
