#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times gx beside its rivals on this machine: interleaved rounds, medians, ratios. Two CPUs, one a side.

Every row is a command that prints or stores a rate; each round runs every row once, in a rotated order, so that a noisy
neighbour hits all alike. gx verifies its payload, rivals run unchecked. Rivals that are not installed are left out and
said. The result is a table on stdout and, with -J, a JSON file with every single figure.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
GB = 1e9
# What a row of gx is compared with: medians of the ratios of each round, since the machine may change between rounds.
LOCAL_SIZES = {"64": 64, "1K": 1 << 10, "4K": 4 << 10, "64K": 64 << 10, "1M": 1 << 20, "64M": 64 << 20}
RIVALS = {
    **{f"gx put {s}, local, one place, verified": [f"UCX ucp_put_bw {s}, shared memory"] for s in LOCAL_SIZES},
    "gx lat 64, local, last byte polled, p50": ["UCX ucp_put_lat 64, shared memory, p50"],
    "gx lat 64, local, completion, p50": ["UCX ucp_put_lat 64, shared memory, p50"],
    "gx put 64M, shm, verified": ["two bare copies, 8192-byte slots, memcpy", "two bare copies, 8192-byte slots, streaming out",
                                  "testpmd memif, 1500-byte frames, raw", "UCX tag_bw 1M, shared memory",
                                  "UCX ucp_put_bw 64M, shared memory", "iperf3 -l 1M, loopback"],
    "gx put 1M, shm, verified": ["UCX tag_bw 1M, shared memory", "iperf3 -l 1M, loopback"],
    "gx put 1M, shm, one place, verified": ["UCX tag_bw 1M, shared memory"],
    "gx put 64M, memif, 1500-byte frames, verified": ["testpmd memif, 1500-byte frames, raw"],
    "gx lat 64, shm, one way, p50": ["UCX tag_lat 64, shared memory, p50", "UCX ucp_put_lat 64, shared memory, p50"],
    "gx put 1M, udp, verified": ["UCX tag_bw 1M, tcp"],
    "gx lat 64, udp, one way, p50": ["UCX tag_lat 64, tcp, p50"],
    **{f"gx {what} 1M, tcp, {n} socket(s), verified": [f"iperf3 -l 1M, loopback, {n} stream(s)", "UCX tag_bw 1M, tcp"]
       for what in ("put", "send") for n in (1, 4)},
    **{f"gx put 1M, tcp, {n} socket(s), one place, verified": [f"iperf3 -l 1M, loopback, {n} stream(s)", "UCX tag_bw 1M, tcp"]
       for n in (1, 4)},
    "gx lat 64, tcp, one way, p50": ["UCX tag_lat 64, tcp, p50"],
}


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Background:
    """A server that is ended, by its process group, when the row is done."""

    def __init__(self, cmd, env=None, wait_for=None, delay=0.0):
        self.out = tempfile.TemporaryFile("w+")
        self.p = subprocess.Popen(cmd, stdout=self.out, stderr=subprocess.STDOUT, stdin=subprocess.PIPE,
                                  env={**os.environ, **(env or {})}, start_new_session=True, text=True)
        end = time.time() + 15
        while wait_for and time.time() < end and wait_for not in self.text() and self.p.poll() is None:
            time.sleep(0.02)
        time.sleep(delay)

    def text(self):
        self.out.seek(0)
        return self.out.read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for sig in (signal.SIGTERM, signal.SIGKILL):
            if self.p.poll() is None:
                os.killpg(self.p.pid, sig)
                try:
                    self.p.wait(5)
                except subprocess.TimeoutExpired:
                    continue
        self.out.close()


def run(cmd, env=None, timeout=60):
    r = subprocess.run(cmd, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=timeout,
                       stdin=subprocess.DEVNULL)
    if r.returncode:
        raise RuntimeError(f"{' '.join(map(str, cmd))}: exit status {r.returncode}: {(r.stderr or r.stdout)[-400:]}")
    return r.stdout


class Bench:
    def __init__(self, args):
        self.a = args
        self.build = TOP / args.build
        self.cpu_s, self.cpu_c = (str(c) for c in args.cpus)
        self.tmp = tempfile.mkdtemp(prefix="gx-bench-")

    # -- gx --
    def gx(self, port, what, size, extra=(), server_extra=(), field="GB_s", mem="1G", link="packet"):
        addr = f"127.0.0.1:{free_port()}"
        js = os.path.join(self.tmp, f"{time.time_ns()}.json")
        server = [self.build / "tools/gxd", "--listen", addr, "--cores", self.cpu_s, "--port", port, "--busy",
                  "--mem", f"kv=host:{mem}", *server_extra]
        path = ["--port", port] if link == "packet" else ["--link", link]
        client = [self.build / "tools/gxperf", what, addr, "--mem", "kv", *path, "-s", size,
                  "--cores", self.cpu_c, "-J", js, *extra]
        if what == "lat":
            client += ["-n", str(self.a.lat_iterations)]
        else:
            client += ["-D", str(self.a.seconds)]
        with Background([str(c) for c in server], wait_for="gxperf"):
            run([str(c) for c in client], timeout=120)
        doc = json.loads(pathlib.Path(js).read_text())
        row = doc["results"][0]
        if row.get("wrong") or (what in ("put", "get") and not row.get("checked_b")):
            raise RuntimeError(f"gx {what}: payload wrong or not checked: {row}")
        return row[field]

    def tcp(self, what, size, *extra, field="GB_s"):
        return self.gx("shm", what, size, extra, field=field, link="tcp")

    def local(self, what, size, *extra, field="GB_s"):
        return self.gx("shm", what, size, extra, field=field, mem="256M", link="local")

    def ucx_put(self, size):
        """About as long as gx runs, at 20 GB/s and 40 million a second."""
        n = int(self.a.seconds * min(20e9 / size, 40e6))
        return self.ucx_bw("ucp_put_bw", size, n=max(n, 50))

    # -- the limit --
    def two_copies(self, how, slot):
        return float(run([str(self.build / "tests/two_copies"), self.cpu_s, self.cpu_c, str(slot), "1024",
                          str(self.a.seconds), how]))

    # -- rivals --
    def ucx(self, test, size, tls, n, warm=0):
        port = str(free_port())
        env = {"UCX_TLS": tls, "UCX_WARN_UNUSED_ENV_VARS": "n"}
        base = ["ucx_perftest", "-p", port, "-t", test, "-s", str(size), "-n", str(n), "-w", str(warm or n // 10)]
        with Background(["taskset", "-c", self.cpu_s, "ucx_perftest", "-p", port], env=env, delay=0.7):
            out = run(["taskset", "-c", self.cpu_c, *base, "127.0.0.1"], env=env, timeout=90)
        last = [line for line in out.splitlines() if line.startswith("Final:")][-1].split()
        return [float(x) for x in last[1:]]

    def ucx_bw(self, test, size, tls="posix,self", n=20000):
        f = self.ucx(test, size, tls, n)
        return f[-3] * (1 << 20) / GB  # overall MB/s, its MB are 2^20

    def ucx_lat(self, test, size, tls="posix,self", n=1000000):
        f = self.ucx(test, size, tls, n)
        return f[1] if len(f) >= 7 else f[0]  # percentile 50 (us)

    def iperf3(self, length, streams=1):
        port = str(free_port())
        with Background(["iperf3", "-s", "-p", port, "-A", self.cpu_s], wait_for="listening"):
            out = run(["iperf3", "-c", "127.0.0.1", "-p", port, "-A", f"{self.cpu_c},{self.cpu_s}", "-l", length,
                       "-P", str(streams), "-t", str(max(2, int(self.a.seconds))), "-J"])
        return json.loads(out)["end"]["sum_received"]["bits_per_second"] / 8 / GB

    def testpmd_memif(self, frame):
        """Raw rate of memif: txonly on one core, rxonly on the other; main threads sleep."""
        sock = os.path.join(self.tmp, "memif.sock")
        if os.path.exists(sock):
            os.unlink(sock)
        huge = ["--single-file-segments"] if self.a.huge else ["--no-huge"]

        def cmd(cpu, role, mode, *more):
            return ["dpdk-testpmd", "-l", "0,1", "--lcores", f"0@({self.cpu_s},{self.cpu_c}),1@{cpu}", "--no-pci", *huge,
                    "-m", "512", f"--file-prefix=gxb{role}", "--log-level=1",
                    f"--vdev=net_memif0,role={role},bsize=2048,rsize=10,socket={sock},socket-abstract=no", "--",
                    f"--forward-mode={mode}", "--nb-cores=1", "--total-num-mbufs=16384", "--stats-period=1", *more]

        # -l and --lcores exclude each other; --lcores alone is meant.
        def clean(c):
            i = c.index("-l")
            return c[:i] + c[i + 2:]

        with Background(clean(cmd(self.cpu_s, "server", "rxonly")), delay=1.5) as rx:
            with Background(clean(cmd(self.cpu_c, "client", "txonly", f"--txpkts={frame}")), delay=0):
                time.sleep(3 + self.a.seconds)
            text = rx.text()
        rates = [int(x) for x in re.findall(r"Rx-pps:\s+(\d+)", text)]
        rates = sorted(r for r in rates if r)
        if not rates:
            raise RuntimeError(f"testpmd said no rate: {text[-300:]}")
        return rates[len(rates) // 2] * frame / GB

    # -- the table --
    def rows(self):
        have = shutil.which
        s = []
        add = lambda name, unit, fn, need=None: s.append((name, unit, fn, need))
        if "put" in self.a.what:
            add("two bare copies, 8192-byte slots, memcpy", "GB/s", lambda: self.two_copies("copy", 8192))
            add("two bare copies, 8192-byte slots, streaming out", "GB/s", lambda: self.two_copies("stream", 8192))
            add("gx put 64M, shm, verified", "GB/s", lambda: self.gx("shm", "put", "64M"))
            add("gx get 64M, shm, verified", "GB/s", lambda: self.gx("shm", "get", "64M"))
            add("gx put 1M, shm, verified", "GB/s", lambda: self.gx("shm", "put", "1M"))
            add("gx put 1M, shm, one place, verified", "GB/s", lambda: self.gx("shm", "put", "1M", ["--same-place"]))
            add("UCX tag_bw 1M, shared memory", "GB/s", lambda: self.ucx_bw("tag_bw", 1 << 20), "ucx_perftest")
            add("UCX ucp_put_bw 64M, shared memory", "GB/s",
                lambda: self.ucx_bw("ucp_put_bw", 64 << 20, n=300), "ucx_perftest")
            add("iperf3 -l 1M, loopback", "GB/s", lambda: self.iperf3("1M"), "iperf3")
        if "local" in self.a.what:
            for name, size in LOCAL_SIZES.items():
                add(f"gx put {name}, local, one place, verified", "GB/s",
                    lambda name=name: self.local("put", name, "--same-place"))
                if not (name == "64M" and "put" in self.a.what):
                    add(f"UCX ucp_put_bw {name}, shared memory", "GB/s", lambda size=size: self.ucx_put(size), "ucx_perftest")
        if "memif" in self.a.what:
            add("testpmd memif, 1500-byte frames, raw", "GB/s", lambda: self.testpmd_memif(1500), "dpdk-testpmd")
            add("gx put 64M, memif, 1500-byte frames, verified", "GB/s",
                lambda: self.gx("dpdk:net_memif", "put", "64M"))
        if "lat" in self.a.what:
            add("gx lat 64, shm, one way, p50", "us", lambda: self.gx("shm", "lat", "64", field="p50_us"))
            add("gx lat 64, local, last byte polled, p50", "us",
                lambda: self.local("lat", "64", "--poll", "memory", field="p50_us"))
            add("gx lat 64, local, completion, p50", "us", lambda: self.local("lat", "64", field="p50_us"))
            add("UCX tag_lat 64, shared memory, p50", "us", lambda: self.ucx_lat("tag_lat", 64), "ucx_perftest")
            add("UCX ucp_put_lat 64, shared memory, p50", "us", lambda: self.ucx_lat("ucp_put_lat", 64), "ucx_perftest")
        if "udp" in self.a.what:
            add("gx put 1M, udp, verified", "GB/s", lambda: self.gx("udp", "put", "1M"))
            add("UCX tag_bw 1M, tcp", "GB/s", lambda: self.ucx_bw("tag_bw", 1 << 20, "tcp,self", 5000), "ucx_perftest")
            add("gx lat 64, udp, one way, p50", "us", lambda: self.gx("udp", "lat", "64", field="p50_us"))
            add("UCX tag_lat 64, tcp, p50", "us",
                lambda: self.ucx_lat("tag_lat", 64, "tcp,self", 50000), "ucx_perftest")
        if "tcp" in self.a.what:
            for n in (1, 4):
                for what in ("put", "send"):
                    add(f"gx {what} 1M, tcp, {n} socket(s), verified", "GB/s",
                        lambda what=what, n=n: self.tcp(what, "1M", "--sockets", str(n)))
                # As the rivals: one buffer at each end, which stays in the cache.
                add(f"gx put 1M, tcp, {n} socket(s), one place, verified", "GB/s",
                    lambda n=n: self.tcp("put", "1M", "--sockets", str(n), "--same-place", "--depth", "8"))
                add(f"iperf3 -l 1M, loopback, {n} stream(s)", "GB/s", lambda n=n: self.iperf3("1M", n), "iperf3")
            add("gx lat 64, tcp, one way, p50", "us", lambda: self.tcp("lat", "64", field="p50_us"))
            if "udp" not in self.a.what:
                add("UCX tag_bw 1M, tcp", "GB/s", lambda: self.ucx_bw("tag_bw", 1 << 20, "tcp,self", 5000), "ucx_perftest")
                add("UCX tag_lat 64, tcp, p50", "us",
                    lambda: self.ucx_lat("tag_lat", 64, "tcp,self", 50000), "ucx_perftest")
        for name, _, _, need in s:
            if need and not have(need):
                say(f"{name}: left out, {need} is not installed")
        return [r for r in s if not r[3] or have(r[3])]

    def measure(self):
        rows = self.rows()
        values = {name: [] for name, *_ in rows}
        errors = {}
        for k in range(self.a.rounds):
            order = rows[k % len(rows):] + rows[:k % len(rows)]
            for name, unit, fn, _ in order:
                if name in errors:
                    continue
                try:
                    v = fn()
                    values[name].append(v)
                    say(f"round {k + 1}/{self.a.rounds}  {name}: {v:.3f} {unit}")
                except (RuntimeError, OSError, ValueError, KeyError, IndexError, subprocess.TimeoutExpired) as e:
                    errors[name] = str(e)
                    say(f"{name}: {e}")
        return rows, values, errors


def cpu_model():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return "unknown"


def congestion_control():
    """bbr sends at a pace, also over loopback; reno and cubic do not."""
    return pathlib.Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", nargs="*", default=["put", "local", "memif", "lat", "udp", "tcp"],
                   help="groups: put local memif lat udp tcp")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=2.0, help="of each bandwidth measurement")
    p.add_argument("--lat-iterations", type=int, default=200000)
    p.add_argument("--cpus", type=lambda t: [int(x) for x in t.split(",")], default=[0, 1], help="server,client")
    p.add_argument("--build", default="build", help="build folder")
    p.add_argument("--huge", action="store_true", help="give testpmd huge pages")
    p.add_argument("-J", "--json", help="write every figure here")
    a = p.parse_args()
    b = Bench(a)
    try:
        rows, values, errors = b.measure()
    finally:
        shutil.rmtree(b.tmp, ignore_errors=True)
    print(f"# medians of {a.rounds} interleaved rounds, CPUs {a.cpus}, {cpu_model()}, TCP {congestion_control()}")
    table = []
    for name, unit, *_ in rows:
        v = values[name]
        med = statistics.median(v) if v else None
        table.append({"name": name, "unit": unit, "median": med, "values": v, "error": errors.get(name)})
        spread = f"{min(v):.2f} .. {max(v):.2f}" if v else errors.get(name, "")[:80]
        print(f"{name:52} {'-' if med is None else f'{med:.3f}':>9} {unit:5} {spread}")
    ratios = []
    for name, rivals in RIVALS.items():
        for rival in rivals:
            each = [x / y for x, y in zip(values.get(name, []), values.get(rival, []))]
            if each:
                ratios.append({"gx": name, "rival": rival, "median": statistics.median(each), "values": each})
                print(f"{statistics.median(each):6.2f} x  {name} / {rival}   ({min(each):.2f} .. {max(each):.2f})")
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps({"schema_version": 1, "command": sys.argv, "cpu": cpu_model(),
                                                    "rounds": a.rounds, "rows": table, "ratios": ratios}, indent=1) + "\n")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
