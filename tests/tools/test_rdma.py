#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Link verbs over soft RoCE (rdma_rxe), in a virtual machine (vm/machine.py), and beside perftest.

usage: test_rdma.py BUILD_DIR PART...
PART suite: puts and gets of all sizes over 1 to 64 queue pairs, notifications, files, lists of blocks with notes, keys that are
withdrawn while peers read, threads with fences, two devices with a wire between them, queue
pairs that are forced into error, two devices of which one goes down, ends that leave no object behind, a device that is removed.
short: some of each that takes less than a minute in all, for every CI.
compare: gxperf and perftest in turns, PAIRS times each; a line `ratio put 1M q4 0.98` for each comparison, gx over perftest: the
median of the pairs, then least and largest. gx checks its payload, perftest does not.
tables: bandwidth by queue pairs and by size, as lines `table put 64M q4 44.1 MB/s`.
count: instructions of the posting and polling thread for each put of gxperf and of perftest, as lines `instructions put 64K q1: ...`
(rdma_count.py). Times of one another alone mean something here: all is emulated.
GX_TEST_RDMA_PAIRS, GX_TEST_RDMA_ONLY (a part of the name of a comparison, as "put 1M", or of a step of the suite) and others that
begin so go into the machine.
Exit status 77 where there is no QEMU, no kernel package or no perftest. Within the machine this program runs once more, with inside.
"""
import contextlib
import copy
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
import rdma_count
import cli
from cli import CLIENT_CPU, FAILED, LOST, OK, SERVER_CPU, expect

LIMIT_S = int(os.environ.get("GX_TEST_RDMA_LIMIT_S", "1800"))
PAIRS = int(os.environ.get("GX_TEST_RDMA_PAIRS", "7"))
ONLY = os.environ.get("GX_TEST_RDMA_ONLY", "")
CALL_S = 120
CONNECTS = 100
DEVICE, NETDEV, ADDRESS = "rxe0", "gxv0", "10.9.0.1"
FAR_DEVICE, FAR_NETDEV, FAR_ADDRESS = "rxe1", "gxv1", "10.9.1.1" # at the other end of the wire
SHIM = "libverbs_shim.so" # tests/verbs/verbs_shim.c
BREAK_MS, QUIET_MS, BROKEN_S, BACK_MS = 1000, 6000, 20, 1000
RAIL, RAIL_NETDEV, RAIL_ADDRESS = "rxe2", "gxw0", "10.9.2.1" # the second one, for a while
MODULES = ["veth", "ib_uverbs", "rdma_ucm", "rdma_rxe"]
PERFTEST = {"put": "ib_write_bw", "get": "ib_read_bw", "lat": "ib_write_lat"}
SIZES = {"64": 64, "4K": 4 << 10, "64K": 64 << 10, "1M": 1 << 20}
COMPARED = [(command, size, qps) for command in ("put", "get") for size in ("64K", "1M") for qps in (1, 2, 3, 4)]
COMPARED += [("lat", size, 1) for size in ("64", "4K")]
BYTES = 64 << 20 # of a measurement; a second or two there
TABLE_QPS, TABLE_SIZES = (1, 2, 4, 8, 16, 32, 64), ("4K", "16K", "64K", "256K", "1M", "4M", "16M")
COUNTED, COUNTED_QPS = 600, (1, 4)
DEPTH = 128 # puts under way: perftest's default, for each of its queue pairs


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
    """One device, which both ends use but in far()."""
    peer = netdev[:-1] + "1"
    sh("ip", "link", "add", netdev, "type", "veth", "peer", "name", peer)
    sh("ip", "addr", "add", f"{address}/24", "dev", netdev)
    for name in ("lo", netdev, peer):
        sh("ip", "link", "set", name, "up")
    sh("rdma", "link", "add", device, "type", "rxe", "netdev", netdev)
    wait_for("an active port", lambda: "ACTIVE" in sh("rdma", "link", "show", f"{device}/1"))


def far_make():
    """A device at the other end of the wire, too. Soft RoCE of Linux 6.1 sends and receives in the first namespace alone, so that
    one has both ends, and rules take packets between them off the short way within a host."""
    sh("ip", "addr", "add", f"{FAR_ADDRESS}/24", "dev", FAR_NETDEV)
    sh("ip", "rule", "add", "pref", "100", "lookup", "local")
    sh("ip", "rule", "del", "pref", "0")
    for table, netdev, other, address in ((101, NETDEV, FAR_NETDEV, FAR_ADDRESS), (102, FAR_NETDEV, NETDEV, ADDRESS)):
        mac = pathlib.Path(f"/sys/class/net/{other}/address").read_text().strip()
        sh("ip", "rule", "add", "pref", "10", "oif", netdev, "lookup", table)
        sh("ip", "route", "add", address, "dev", netdev, "table", table)
        sh("ip", "neigh", "replace", address, "lladdr", mac, "dev", netdev, "nud", "permanent")
        pathlib.Path(f"/proc/sys/net/ipv4/conf/{netdev}/accept_local").write_text("1") # packets from an address of this host
    sh("rdma", "link", "add", FAR_DEVICE, "type", "rxe", "netdev", FAR_NETDEV)
    wait_for("two active ports", lambda: sh("rdma", "link", "show").count("ACTIVE") == 2)


def gid_index():
    """Of the IPv4 address, for perftest. gx finds it by itself."""
    last = "0a09:0001"
    for path in sorted(pathlib.Path(f"/sys/class/infiniband/{DEVICE}/ports/1/gids").iterdir(), key=lambda p: int(p.name)):
        if path.read_text().strip().endswith("ffff:" + last):
            return path.name
    raise AssertionError(f"{DEVICE} has no GID of {ADDRESS}")


@contextlib.contextmanager
def served(tools, *rdma, mem="kv=host:8M", busy=True):
    rdma = (*(rdma or ("--rdma", DEVICE)), *(["--busy"] if busy else []))
    with cli.Server(tools, "--port", "udp", "--link", "verbs", *rdma, mem=mem) as server:
        yield server


def call(tools, server, command, *args, link="verbs"):
    rdma = ["--rdma", DEVICE] if link == "verbs" else ["--port", "udp"]
    return tools.run(tools.gxperf_path, command, server.addr, "--cores", CLIENT_CPU, "--mem", "kv", "--link", link, *rdma, *args,
                     timeout=CALL_S)


def rows(tools, server, command, *args):
    """Results over link verbs, whose packets carry sends. Payload was checked and right."""
    ran = call(tools, server, command, "--format", "json", *args)
    found = ran.clean()
    expect(ran.doc["path"]["link"] == ("packet" if command == "send" else "verbs"), ran)
    expect(found and all(r["checked_b"] >= r["size_b"] for r in found if command != "lat"), ran)
    return found


def info(tools):
    """The device, its GIDs, and that gx takes it unnamed."""
    ran = tools.gxperf("info").must(OK)
    for word in (f"RDMA {DEVICE} port 1: up, over Ethernet", f"GID {gid_index()}: ::ffff:{ADDRESS}", f"asked for: {DEVICE} port 1"):
        expect(word in ran.out, f"no '{word}':", ran)
    done("info")


def sizes(tools, numbers=(1, 3, 64)):
    with served(tools) as server:
        for command in ("put", "get"):
            for qps in numbers:
                found = rows(tools, server, command, "-q", qps, "-b", "1", "-e", "4M", "-f", "8", "-n", "3")
                expect(len(found) > 5, found)
                done(f"{command} -q {qps}: " + ", ".join(f"{r['size_b']} B {r['p50_us']:.0f} us" for r in found))
        rows(tools, server, "lat", "-s", "64", "-n", "200")
        lost = server.stat(tools, "verbs_qps_lost")
        expect(lost == 0, f"{lost} queue pairs were lost:", server.log())
    done("sizes")


def sends(tools):
    """Packets carry them."""
    with served(tools) as server:
        found = rows(tools, server, "send", "-b", "128K", "-e", "512K", "-f", "4", "-n", "5")
        done("sends: " + ", ".join(f"{r['size_b']} B {r['p50_us']:.0f} us" for r in found))


def file(tools):
    with served(tools) as server, tempfile.TemporaryDirectory() as folder:
        source, back = pathlib.Path(folder, "F"), pathlib.Path(folder, "G")
        source.write_bytes(os.urandom(1000003))
        call(tools, server, "put", "--file", source).must(OK)
        call(tools, server, "get", "--file", back, "-s", source.stat().st_size).must(OK)
        expect(source.read_bytes() == back.read_bytes(), "the file came back changed")
    done("a file there and back")


def blocks(tools):
    """Lists of blocks, each with a note behind it, which the server answers."""
    with served(tools) as server:
        for get in ((), ("--get",)):
            found = rows(tools, server, "blocks", *get, "-b", "1K", "-e", "64K", "-f", "8", "--blocks", "64", "-n", "3", "--depth", "2")
            done(f"blocks {' '.join(get)}: " + ", ".join(f"{r['blocks']} of {r['size_b']} B {r['p50_us']:.0f} us" for r in found))


def keys(tools):
    """Keys that are withdrawn while peers read: no byte of the next owner is ever seen."""
    done("\n".join(line for line in sh(tools.fakes / "test_withdraw", "verbs", DEVICE).splitlines() if ": " in line))


def threads(tools):
    """Fences, flushes, lists and notes of threads that share a connection."""
    sh(tools.fakes / "test_submit_threads", "verbs", DEVICE)
    done("threads")


def sent_b(netdev):
    return int(pathlib.Path(f"/sys/class/net/{netdev}/statistics/tx_bytes").read_text())


def far(tools):
    """Two devices, as two hosts have them: each packet goes over the wire."""
    far_make()
    with served(tools, "--rdma", FAR_DEVICE) as server:
        for command, netdev in (("put", NETDEV), ("get", FAR_NETDEV)):
            before = sent_b(netdev)
            row = rows(tools, server, command, "-q", "1", "-s", "64K", "-n", "50")[0]
            moved = sent_b(netdev) - before
            expect(moved >= 50 * row["size_b"], f"{moved} bytes went over the wire")
            done(f"two devices: {command}: {row['GB_s'] * 1e3:.1f} MB/s, {moved} bytes over the wire")
        done(f"two devices: {server.stat(tools, 'verbs_qps_lost')} queue pairs were lost")
    sh("rdma", "link", "delete", FAR_DEVICE)
    done("two devices")


def shimmed(tools, log, **env):
    """The same tools, with tests/verbs/verbs_shim.c between them and libibverbs. @log: of that, or None."""
    other = copy.copy(tools)
    other.env = {**tools.env, "LD_PRELOAD": str(tools.fakes / SHIM), **({"GX_SHIM_LOG": str(log)} if log else {}), **env}
    return other


def breaks_of(log):
    """When the shim broke a queue pair, in ms."""
    return [int(line.split()[0]) for line in log.read_text().splitlines() if line.endswith(" break")]


def rates_of(log):
    """(begin, end, MB/s) of each interval while the program posted."""
    at = [tuple(map(int, line.split())) for line in log.read_text().splitlines() if line.split()[1].isdigit()]
    found = [(a[0], b[0], (b[1] - a[1]) / (b[0] - a[0]) / 1e3) for a, b in zip(at, at[1:]) if b[0] > a[0]]
    last = max((i for i, r in enumerate(found) if r[2]), default=0)
    return found[:last + 1]


def back_ms(rates, at, usual, share=0.5):
    """How long after @at an interval was about as fast as most, which the checks of the payload slow down, too."""
    return next((end - at for begin, end, rate in rates if begin >= at and rate >= share * usual), 10 * BACK_MS)


def broken(tools, end):
    """A queue pair of four is forced into error each second, at one end. No byte is lost, and the rate is soon back."""
    env = {"GX_SHIM_BREAK_MS": str(BREAK_MS), "GX_SHIM_QUIET_MS": str(QUIET_MS)}
    with tempfile.TemporaryDirectory() as folder:
        logs = {e: pathlib.Path(folder, e) for e in ("client", "server")}
        both = {e: shimmed(tools, logs[e], **(env if e == end else {})) for e in logs}
        with served(both["server"]) as server:
            row = rows(both["client"], server, "put", "-q", 4, "-s", "64K", "-D", BROKEN_S)[0]
            lost = server.stat(tools, "verbs_qps_lost")
            rates = rates_of(logs["client"])
            breaks = [t for t in breaks_of(logs[end]) if t <= rates[-1][1] - 2 * BACK_MS]
    quiet = [r for r in rates if r[0] >= breaks[0] - QUIET_MS / 2 and r[1] <= breaks[0]]
    usual = statistics.median(r[2] for r in quiet)
    pause = max(back_ms(rates, r[0], usual) for r in quiet) # without any break: this host is shared
    late = [back_ms(rates, t, usual) for t in breaks]
    done(f"broken at the {end}: {len(breaks)} times, {lost} queue pairs lost at the server, {row['resent']} chunks sent again, "
         f"{usual:.1f} MB/s before, {row['GB_s'] * 1e3:.1f} in all, back after {late} ms, without breaks within {pause} ms; "
         f"at 0.8 of it after {[back_ms(rates, t, usual, 0.8) for t in breaks]} ms")
    expect(len(breaks) >= 5 and lost >= len(breaks), f"{lost} queue pairs were lost:", row)
    expect(row["resent"] > 0, "nothing was sent again:", row)
    expect(max(late) <= max(BACK_MS, 2 * pause), f"the rate was back after {late} ms")


def leaves_nothing(tools, connects=CONNECTS):
    with served(tools) as server:
        before = sh("rdma", "resource", "show")
        for i in range(connects):
            call(tools, server, "put", "-s", "64K", "-n", "1", "-q", 1 + i % 8).must(OK)
        wait_for("the objects of before:\n" + before, lambda: sh("rdma", "resource", "show") == before)
    done(f"{connects} connections left nothing: {before.strip()}")


def refused(tools):
    """A server without a device, a device that is not there."""
    with cli.Server(tools, "--port", "udp", mem="kv=host:1M") as server:
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
                if client.poll() is not None:
                    raise AssertionError(f"the client ended with status {client.returncode}: {client.communicate()[0]}")
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


def breaks(tools):
    """As broken(), without a look at the rate: queue pairs are lost while a client puts, and no byte is."""
    with tempfile.TemporaryDirectory() as folder:
        other = shimmed(tools, pathlib.Path(folder, "log"), GX_SHIM_BREAK_MS=str(BREAK_MS), GX_SHIM_QUIET_MS=str(BREAK_MS))
        with served(other) as server:
            row = rows(tools, server, "put", "-q", 4, "-s", "64K", "-D", 4)[0]
            lost = server.stat(tools, "verbs_qps_lost")
    expect(lost > 0 and row["resent"] > 0, f"{lost} queue pairs were lost:", row)
    done(f"{lost} queue pairs were lost, {row['resent']} chunks sent again")


def short(tools):
    steps = (info, lambda t: sizes(t, (1, 4)), sends, file, blocks, keys, lambda t: leaves_nothing(t, 8), refused, breaks)
    return [lambda step=step: step(tools) for step in steps]


def demo(tools):
    ran = tools.gxperf("demo", timeout=CALL_S).must(OK)
    expect("put over link verbs" in ran.out + ran.err, ran)
    done("the demo has a put over link verbs")


def suite(tools):
    steps = [(step.__name__, lambda step=step: step(tools)) for step in (info, sizes, sends, file, blocks, keys, threads, leaves_nothing, refused)]
    steps += [(f"broken {end}", lambda end=end: broken(tools, end)) for end in ("client", "server")]
    steps += [(step.__name__, lambda step=step: step(tools)) for step in (demo, cut, rails, far, removed)]
    return [step for name, step in steps if ONLY in name]


# --- beside perftest --------------------------------------------------------------------------------------

def count_of(command, size):
    return 500 if command == "lat" else max(BYTES // SIZES[size], 64)


def gx_one(tools, command, size, qps):
    """GB/s, or us of one way."""
    # The server of ib_write_bw and ib_read_bw sleeps while the devices work, that of ib_write_lat does not.
    with served(tools, busy=command == "lat") as server:
        args = ["-s", size, "-n", count_of(command, size)]
        if command != "lat":
            args += ["-q", qps, "--same-place", "--depth", DEPTH] # as perftest does; else gxperf has one of 1 MiB under way
        else:
            args += ["--poll", "memory"] # as ib_write_lat does: the last byte tells
        row = rows(tools, server, command, *args)[0]
        return row["p50_us" if command == "lat" else "GB_s"]


def perftest_run(command, size, qps, count, port, before=(), more=()):
    """The output of the client. @before: words in front of it, as of valgrind. @more: options of both ends."""
    words = [PERFTEST[command], "-d", DEVICE, "-x", gid_index(), "-s", SIZES[size], "-n", count, "-p", port, "-F"]
    if command != "lat":
        words += ["-q", qps, "--report_gbits"]
    words += more
    words = [str(w) for w in words]
    with subprocess.Popen(["taskset", "-c", SERVER_CPU, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True) as server:
        try:
            wait_for("perftest's server", lambda: f":{port:04X} " in pathlib.Path("/proc/net/tcp").read_text() +
                     pathlib.Path("/proc/net/tcp6").read_text())
            out = sh("taskset", "-c", CLIENT_CPU, *before, *words, "127.0.0.1")
            server.wait(timeout=CALL_S)
        finally:
            server.kill()
    return out


def perftest_one(command, size, qps, port):
    # It counts for each queue pair, gxperf for all.
    out = perftest_run(command, size, qps, count_of(command, size) // (qps if command != "lat" else 1), port)
    lines = [line.split() for line in out.splitlines() if re.match(rf"\s*{SIZES[size]}\s+\d+\s", line)]
    expect(lines, "no result:", out)
    # Columns: bytes, iterations, then best and average rate, or least, largest and typical time.
    return float(lines[-1][4]) if command == "lat" else float(lines[-1][3]) / 8


def compared(tools, command, size, qps, port):
    each = []
    name = f"{command} {size}" + (f" q{qps}" if command != "lat" else "")
    if ONLY not in name:
        return
    for i in range(PAIRS):
        runs = [lambda: gx_one(tools, command, size, qps), lambda: perftest_one(command, size, qps, port + i)]
        got = {k: runs[k]() for k in ((0, 1) if i % 2 else (1, 0))}
        expect(got[1] > 0, f"{name}: perftest stood still: its rate was 0.00")
        each.append(got[0] / got[1])
    done(f"ratio {name} {statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})")


def compare(tools):
    return [lambda i=i, what=what: compared(tools, *what, 18600 + 20 * i) for i, what in enumerate(COMPARED)]


def table(tools, command, size, qps):
    name = f"{command} {size} q{qps}"
    if ONLY not in name:
        return
    with served(tools, mem="kv=host:160M") as server:
        large = size.endswith("M") and int(size[:-1]) > 1
        how = ["-n", max(2, 64 // int(size[:-1])), "-w", "1"] if large else ["-D", "1"]
        row = rows(tools, server, command, "-s", size, "-q", qps, *how)[0]
        done(f"table {name} {row['GB_s'] * 1e3:.1f} MB/s")


def tables(tools):
    asked = [(command, "64M", qps) for command in ("put", "get") for qps in TABLE_QPS]
    asked += [(command, size, 4) for command in ("put", "get") for size in TABLE_SIZES]
    return [lambda what=what: table(tools, *what) for what in asked]


# --- instructions -----------------------------------------------------------------------------------------

def counted_gx(tools, qps, count, out):
    under = rdma_count.words(out)
    other = shimmed(tools, None, GX_SHIM_PATIENT_US="1000", GX_URING="epoll")
    with served(tools) as server:
        ran = other.run(under[0], *under[1:], tools.gxperf_path, "put", server.addr, "--cores", CLIENT_CPU, "--mem", "kv", "--link", "verbs",
                        "--rdma", DEVICE, "-s", "64K", "-q", qps, "-n", count, "-w", "0", "--same-place", "--depth", DEPTH,
                        "--no-check", "--timeout", "60", timeout=CALL_S)
        ran.must(OK)


def counted_perftest(tools, qps, count, out, port):
    env = ["env", f"LD_PRELOAD={tools.fakes / SHIM}", "GX_SHIM_PATIENT_US=1000"]
    # --noPeak: the search for the best rate takes time by the square of the puts, after the last of them.
    perftest_run("put", "64K", qps, count // qps, port, [*env, *rdma_count.words(out)], ["--noPeak"])


def counted(tools, qps, port):
    """N puts and 2N puts: the difference is N puts, without what begins and ends a run."""
    with tempfile.TemporaryDirectory() as folder:
        outs = [[pathlib.Path(folder, f"{who}{times}") for times in (1, 2)] for who in ("gx", "perftest")]
        for times in (1, 2):
            counted_gx(tools, qps, times * COUNTED, outs[0][times - 1])
            counted_perftest(tools, qps, times * COUNTED, outs[1][times - 1], port + times)
        text = ", ".join(f"{who} {rdma_count.each(*out, COUNTED)}" for who, out in zip(("gx", "perftest"), outs))
    done(f"instructions put 64K q{qps}: {text}")


def count(tools):
    return [lambda qps=qps: counted(tools, qps, 19600 + 20 * qps) for qps in COUNTED_QPS]


PARTS = {"suite": suite, "short": short, "compare": compare, "tables": tables, "count": count}


def inside(build, parts):
    device_make()
    done("the machine is up: " + sh("rdma", "link", "show").strip())
    failed = 0
    tools = cli.Tools(build)
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
        needed = {"rdma"} | (set(PERFTEST.values()) if {"compare", "count"} & set(parts) else set())
        missing = sorted(p for p in needed | ({"valgrind"} if "count" in parts else set()) if not shutil.which(p))
        if missing:
            raise machine.Absent(f"no {', '.join(missing)} here (packages iproute2, perftest, valgrind)")
        if not pathlib.Path("/etc/libibverbs.d/rxe.driver").exists():
            raise machine.Absent("libibverbs knows no soft RoCE here (package ibverbs-providers)")
        env = [f"{k}={v}" for k, v in os.environ.items() if k.startswith("GX_TEST_RDMA_")]
        status, console = machine.run(
            build / "tests/vm_init", ["/usr/bin/env", *env, sys.executable, pathlib.Path(__file__).resolve(), build, *parts, "inside"],
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
