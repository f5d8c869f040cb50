#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gxd and gxperf from the command line: real processes on loopback ports chosen free.

usage: test_cli.py BUILD_DIR [PART...]     PART: only cases whose name holds one of these
BUILD_DIR holds tools/gxd and tools/gxperf. Each case starts what it needs and ends only that. Exit status 1 when
any case fails. Two cases run at a time. With two CPUs or more the server is pinned to the first and the client to the last.
"""
import concurrent.futures
import contextlib
import csv
import hashlib
import io
import itertools
import json
import os
import pathlib
import random
import re
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback

CPUS = sorted(os.sched_getaffinity(0))
SERVER_CPU, CLIENT_CPU = str(CPUS[0]), str(CPUS[-1])
AT_ONCE = 2        # cases
# These run before, one by one: so many set-ups need a CPU that not all cases poll on, or a step takes longer than its 5 s.
ALONE = ("move_64_connections",)
CALL_S = 120       # no single command takes longer, on one busy CPU for both ends
START_S = 60
HELLO_MAGIC = 0x31307867
OK, FAILED, USAGE, WRONG, LOST = 0, 1, 2, 3, 4
LINKS = ("packet", "local", "tcp")

RESULT_KEYS = {"op", "size_b", "count", "p50_us", "avg_us", "p99_us", "p999_us", "GB_s", "cpu_pct", "sms", "checked_b",
               "wrong", "sha256", "depth", "lost", "resent", "duplicate"}
LINE_KEYS = {"env", "path", "command", "time", "host", "link", "port"} # before those, where a result stands alone
PATH_KEYS = {"link", "port", "gpu", "bounce", "engine", "control", "unpack", "integrity", "crc_by", "quantum", "cores", "why"}
TOP_KEYS = {"schema_version", "command", "env", "path", "results", "errors", "interrupted", "exit_code"}

CASES = []


def case(fn):
    CASES.append(fn)
    return fn


def expect(condition, *what):
    if not condition:
        raise AssertionError(" ".join(str(w) for w in what))


class Ran:
    """A command that has ended."""

    def __init__(self, proc, out, err):
        self.rc, self.out, self.err, self.args = proc.returncode, out, err, proc.args

    def __str__(self):
        return f"{' '.join(map(str, self.args))}\n  status {self.rc}\n  stdout: {self.out[-1500:]}\n  stderr: {self.err[-1500:]}"

    def must(self, rc, *words):
        """The exit status, and words that the messages must hold."""
        expect(self.rc == rc, f"exit status {self.rc}, expected {rc}:", self)
        for word in words:
            expect(word in self.err, f"no '{word}' in the messages of:", self)
        expect("\r" not in self.err, "progress without a terminal:", self)
        return self

    @property
    def doc(self):
        return json.loads(self.out)

    def clean(self):
        """All results of a --format json run: payload was checked and right."""
        self.must(OK)
        for row in self.doc["results"]:
            expect(row["wrong"] == 0, "wrong data:", self)
            expect(row["checked_b"] > 0 or row["size_b"] == 0, "nothing checked:", self)
        return self.doc["results"]


class Tools:
    def __init__(self, build):
        self.gxd_path = str(build / "tools" / "gxd")
        self.gxperf_path = str(build / "tools" / "gxperf")
        self.fakes = build / "tests"
        # meson shows a test the folders of the libraries that it depends on: the fake driver is for those who ask.
        paths = [p for p in os.environ.get("LD_LIBRARY_PATH", "").split(":") if p and pathlib.Path(p) != self.fakes]
        self.env = {**os.environ, "LD_LIBRARY_PATH": ":".join(paths)}

    def has_kernels(self):
        """Built where nvcc was? Asked for a device that never is."""
        without = "built without nvcc" in self.run(self.gxperf_path, "h2d", "--device", "63").err
        if without:
            print("note: built without nvcc: not tested")
        return not without

    def with_gpus(self, nr=2, **env):
        """The same tools, and a CUDA driver whose GPUs are threads (tests/fake/fake_cuda.c); None where that is not."""
        if not (self.fakes / "libcuda.so.1").exists():
            print("note: the fake GPU libraries are not built: not tested")
            return None
        tools = Tools(self.fakes.parent)
        tools.env = {**os.environ, "LD_LIBRARY_PATH": str(self.fakes), "GX_FAKE_CUDA_DEVICES": str(nr), **env}
        if not self.has_kernels():
            return None
        return tools

    def run(self, path, *args, timeout=CALL_S, cwd=None):
        proc = subprocess.Popen([path, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, cwd=cwd, env=self.env)
        try:
            out, err = proc.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            proc.kill()
            out, err = proc.communicate()
            raise AssertionError(f"did not end within {timeout} s: {' '.join(map(str, proc.args))}\n{out}\n{err}") from None
        return Ran(proc, out, err)

    def gxd(self, *args, **kw):
        return self.run(self.gxd_path, *args, **kw)

    def gxperf(self, command, *args, **kw):
        """Pinned, unless the arguments say something of cores."""
        cores = [] if command in ("demo", "--version") or "--cores" in args else ["--cores", CLIENT_CPU]
        return self.run(self.gxperf_path, command, *args, *cores, **kw)

    def perf(self, command, *args, **kw):
        return self.gxperf(command, *args, "--format", "json", **kw)


class Server:
    """A gxd of its own, ended with the block."""

    def __init__(self, tools, *args, mem="kv=host:64M", listen="127.0.0.1:0"):
        mems = [] if mem is None else ["--mem", mem]
        cores = [] if "--cores" in args else ["--cores", SERVER_CPU]
        self.err = tempfile.TemporaryFile("w+")
        self.proc = subprocess.Popen([tools.gxd_path, "--listen", listen, *mems, *cores, *map(str, args)],
                                     stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.err, text=True,
                                     env=tools.env)
        ready, _, _ = select.select([self.proc.stdout], [], [], START_S)
        self.line = self.proc.stdout.readline() if ready else ""
        match = re.match(r"gxperf put (\S+):(\d+) --mem (\S+|'.*')( --insecure)?$", self.line)
        if not match:
            self.end()
            raise AssertionError(f"gxd said '{self.line}':\n{self.log()}")
        self.port = int(match.group(2))
        self.addr = f"{match.group(1)}:{self.port}"

    def log(self):
        """Not through our descriptor: gxd writes where that one stands."""
        return pathlib.Path(f"/proc/self/fd/{self.err.fileno()}").read_text()

    def wait_log(self, word):
        end = time.monotonic() + START_S
        while word not in self.log():
            expect(time.monotonic() < end and self.proc.poll() is None, f"gxd does not say '{word}':", self.log())
            time.sleep(0.02)

    def end(self):
        if self.proc.poll() is None:
            self.proc.send_signal(signal.SIGCONT)
            self.proc.terminate()
            try:
                self.proc.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.proc.kill()
                self.proc.wait()
        self.proc.stdout.close()
        return self.proc.returncode

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        rc = self.end()
        log = self.log()
        self.err.close()
        if kind is None and rc not in (0, -signal.SIGKILL):
            raise AssertionError(f"gxd ended with {rc}:\n{log[-3000:]}")
        if kind and issubclass(kind, Exception) and log:
            print(f"gxd said:\n{log[-3000:]}")
        return False

    def stat(self, tools, name):
        """Sum of one counter over the cores."""
        text = tools.gxd("stats", f"@gxd-{self.port}").must(OK).out
        rows = [line.split() for line in text.splitlines()]
        found = [int(r[-1]) for r in rows if r and r[0] == name]
        expect(found, f"no counter {name} in:", text)
        return sum(found)


# --- usage ------------------------------------------------------------------------------------------------

@case
def usage_gxd(tools):
    for args, words in (
            (["--frobnicate"], ["frobnicate"]),
            ([], ["--mem"]),
            (["--mem", "kv"], ["kv", "NAME=PLACE:SIZE"]),
            (["--mem", "k\nv\x1b[31m=host:1M"], ["'k?v?[31m=host:1M'", "printable"]),
            (["--mem", "k\u00e4v=host:1M"], ["k??v", "printable"]),
            (["--mem", "kv=host:1.5G"], ["1.5G", "whole"]),
            (["--mem", "k" * 64 + "=host:1M"], ["63"]),
            (["--mem", "kv=host:1M", "--mem", "kv=host:1M"], ["kv"]),
            (["--mem", "kv=host:1M", "--cores", "4095x"], ["4095x"]),
            (["--mem", "kv=host:1M", "--cores", "1000"], ["1000"]),
            (["--mem", "kv=host:1M", "--window", "0"], ["--window"]),
            (["--mem", "kv=host:1M", "--chunk", "many"], ["--chunk", "many"]),
            (["--mem", "kv=host:1M", "--chunk", "0"], ["--chunk"]),
            (["--mem", "kv=host:1M", "--quantum=0"], ["--quantum"]),
            (["--mem", "kv=host:1M", "--listen", "127.0.0.1:0", "--port", "shm:"], ["shm:", "colon"]),
            (["--mem", "kv=host:1M", "--unpack", "magic"], ["magic"]),
            (["--mem", "kv=host:1M", "--integrity", "md5"], ["md5"]),
            (["--mem", "kv=host:1M", "--crc-by", "gpu"], ["gpu", "cpu"]),
            (["--mem", "kv=host:1M", "--pull", "push"], ["push", "allow"]),
            (["--mem", "kv=host:1M", "--pull-over", "0"], ["--pull-over"]),
            (["--mem", "kv=host:1M", "--tcp-rx", "rdma"], ["rdma", "devmem", "zcrx"]),
            (["--mem", "kv=host:1M", "--tcp-rx-pool", "0"], ["--tcp-rx-pool"]),
            (["--mem", "kv=host:1M", "--tcp-rx-gpu", "x"], ["--tcp-rx-gpu"]),
            (["--mem", "kv=host:1M", "--listen", "127.0.0.1:0", "--tcp-rx", "devmem"], ["--tcp-rx devmem", "--tcp-rx-nic", "eth0:8-15"]),
            (["--mem", "kv=host:1M", "--listen", "127.0.0.1:0", "--tcp-rx", "zcrx"], ["--tcp-rx zcrx", "--tcp-rx-nic", "eth0:8-15"]),
            (["--mem", "kv=host:1M", "--listen", "127.0.0.1:0", "--tcp-rx", "zcrx", "--tcp-rx-nic", "lo"], ["--tcp-rx-nic", "'lo'", "eth0:8-15"]),
            (["--mem", "kv=host:1M", "--listen", "127.0.0.1:0", "--tcp-rx-nic", "eth0:8-15"], ["--tcp-rx devmem"]),
            (["--mem", "kv=host:1M", "--listen", "127.0.0.1:0", "--tcp-rx", "copy", "--tcp-rx-nic", "eth0:8-15"], ["devmem, zcrx and zcrx-gpu"]),
            (["--mem", "kv=host:1M", "--tcp-tx", "move"], ["move", "zerocopy"]),
            (["--mem", "kv=host:1M", "--listen", "127.0.0.1:0", "--tcp-tx", "devmem"], ["--tcp-tx devmem", "--tcp-tx-nic", "eth0"]),
            (["--mem", "kv=host:1M", "--listen", "127.0.0.1:0", "--tcp-tx-nic", "eth0"], ["--tcp-tx devmem or auto"]),
            (["--mem", "kv=host:1M", "--bounce", "gpu", "--crc-by", "cpu"], ["CPU cannot check", "--bounce host"]),
            (["--mem", "kv=host:1M", "--listen", "127.0.0.1:0", "--chunk", "5"], ["chunk"]),
            (["--mem", "kv=host:1M", "--listen", "127.0.0.1:0", "--quantum", "64K"], ["65536", "65520"]),
            (["--mem", "kv=host:1M", "--listen", "here"], ["here", "HOST:PORT"]),
            (["--mem", "kv=host:1M", "--log-level", "loud"], ["loud", "debug"]),
            (["serve"], ["serve"]),
            (["nic"], ["nic plan"]),
            (["nic", "set"], ["'set'", "plan"]),
            (["nic", "plan"], ["--dev"]),
            (["nic", "plan", "--dev", "lo"], ["--queues", "8-15"]),
            (["nic", "plan", "--dev", "lo", "--queues", "8-"], ["'8-'", "FIRST-LAST"]),
            (["nic", "plan", "--dev", "lo", "--queues", "8-15-16"], ["8-15-16", "FIRST-LAST"]),
            (["nic", "plan", "--dev", "lo", "--queues", "8-70000"], ["8-70000", "65535"]),
            (["nic", "plan", "--dev", "lo", "--queues", "\x1b8"], ["'?8'", "FIRST-LAST"]),
            (["nic", "plan", "--dev", "lo", "--queues", "15-8"], ["15-8", "write 8-15"]),
            (["nic", "plan", "--dev", "lo", "--queues", "0-7"], ["queue 0", "begin with 1"]),
            (["nic", "plan", "--dev", "lo", "--queues", "0"], ["queue 0", "begin with 1"]),
            (["nic", "plan", "--dev", "lo", "--queues", "8-2000"], ["8-2000", "1023"]),
            (["nic", "plan", "--dev", "lo", "--queues", "8-15", "--port", "0"], ["--port", "'0'", "65535"]),
            (["nic", "plan", "--dev", "lo", "--queues", "8-15", "--format", "xml"], ["xml", "json"]),
            (["nic", "plan", "--dev", "", "--queues", "8-15"], ["name"]),
            (["nic", "plan", "--dev", "no\nsuch", "--queues", "8-15"], ["no?such", "interfaces here: ", "lo"]),
            (["nic", "plan", "--dev", "nosuch0", "--queues", "8-15"], ["nosuch0", "interfaces here: ", "lo"])):
        tools.gxd(*args).must(USAGE, *words)
    expect("--queues" in tools.gxd("nic", "--help").must(OK).out)
    expect("gxd " in tools.gxd("--version").must(OK).out)
    expect("--mem" in tools.gxd("--help").must(OK).out)


@case
def usage_options_are_one(tools):
    """No option has the name or the letter of another."""
    subs = ("info put get send lat allgather alltoall unpack h2d p2p compare overlap ipc plot demo").split()
    for program, args in [(tools.gxd, [])] + [(tools.perf, [sub]) for sub in subs]:
        text = program(*args, "--help").must(OK).out
        names = [n for line in text.splitlines() for n in re.findall(r"(?<!\S)--?[\w-]+", line[:28])
                 if re.match(r" {2}(-\w, | {4}--)", line)]
        expect(len(names) > 2 and len(names) == len(set(names)), sorted(names))


@case
def usage_gxperf(tools):
    for args, words in (
            (["frobnicate"], ["frobnicate", "put"]),
            (["put"], ["server"]),
            (["put", "127.0.0.1:1", "x"], ["x"]),
            (["put", "127.0.0.1:1", "--frobnicate"], ["frobnicate"]),
            (["put", "127.0.0.1:1", "-s", "1Q"], ["1Q"]),
            (["put", "127.0.0.1:1", "-s", "-1"], ["-1"]),
            (["put", "127.0.0.1:1", "-b", "4K", "-e", "1K"], ["-e"]),
            (["put", "127.0.0.1:1", "-b", "4K", "-s", "1K"], ["-s"]),
            (["put", "127.0.0.1:1", "-n", "5", "-D", "5"], ["-D"]),
            (["put", "127.0.0.1:1", "-n", "0"], ["-n"]),
            (["put", "127.0.0.1:1", "-D", "nan"], ["nan"]),
            (["put", "127.0.0.1:1", "-f", "1"], ["-f"]),
            (["put", "127.0.0.1:1", "-q", "0"], ["-q"]),
            (["put", "127.0.0.1:1", "--format", "xml"], ["xml"]),
            (["put", "127.0.0.1:1", "--file", "/etc/passwd", "-s", "5"], ["-s"]),
            (["put", "127.0.0.1:1", "--file", "/etc/passwd", "-q", "2"], ["-q"]),
            (["put", "127.0.0.1:1", "--file", "/etc/passwd", "--stripe"], ["--stripe"]),
            (["put", "127.0.0.1:1", "--force"], ["-J"]),
            (["send", "127.0.0.1:1", "--file", "/etc/passwd"], ["file"]),
            (["send", "127.0.0.1:1", "--stripe"], ["stripe"]),
            (["lat", "127.0.0.1:1", "-q", "2"], ["-q"]),
            (["allgather"], ["-g", "--rank"]),
            (["allgather", "-g", "0"], ["0"]),
            (["allgather", "-g", "2", "--rank", "0", "--ranks", "2"], ["-g", "--rank"]),
            (["alltoall", "--rank", "2", "--ranks", "2", "--master", "127.0.0.1:1"], ["--ranks"]),
            (["alltoall", "--rank", "0", "--master", "127.0.0.1:1"], ["--ranks"]),
            (["alltoall", "--rank", "0", "--ranks", "2"], ["--master", "MASTER_ADDR"]),
            (["allgather", "-g", "2", "--mem", "kv"], ["kv"]),
            (["allgather", "-g", "2", "--local-mem", "host"], ["--local-mem"]),
            (["allgather", "-g", "2", "--poll", "memory"], ["--poll"]),
            (["allgather", "-g", "2", "--piece", "5000"], ["5000"]),
            (["allgather", "-g", "2", "--engine", "ce"], ["--engine"]),
            (["allgather", "-g", "2", "--depth", "17"], ["--depth"])):
        tools.gxperf(*args).must(USAGE, *words)
    tools.run(tools.gxperf_path).must(USAGE, "command")
    for program, name in ((tools.gxperf, "gxperf"), (tools.gxd, "gxd")):
        text = program("--version").must(OK).out
        expect(re.match(rf"{name} \d+\.\d+\.\d+\ncommit (unknown|[0-9a-f]{{12}}(-dirty)?), (gcc|clang) \d.*\nparts: .*\n$", text), text)


@case
def usage_line_to_paste(tools):
    """What gxd prints is what a shell takes, whatever the region is called."""
    with Server(tools, mem="it's $HOME=host:1M") as s:
        line = s.line.replace("gxperf", tools.gxperf_path, 1).strip() + f" --cores {CLIENT_CPU} -s 4K -n 5 --format json"
        tools.run("/bin/sh", "-c", line).clean()


@case
def usage_headings(tools):
    """No heading of a help without options, and none of what means nothing there."""
    for command in ("put", "lat", "allgather", "alltoall"):
        lines = tools.run(tools.gxperf_path, command, "--help").must(OK).out.splitlines()
        heads = [i for i, line in enumerate(lines) if re.match(r" \S.*:$", line)]
        expect(len(heads) == (5 if "all" in command else 4) and all(re.match(r" {2}", lines[i + 1]) for i in heads), lines)
        for option in ("--offset", "--poll", "--same-place", "--local-mem", "--gpu="):
            expect(any(option in line for line in lines) == ("all" not in command), command, option)


@case
def usage_exit_of_help(tools):
    for command in ("info", "put", "get", "send", "lat", "allgather", "alltoall", "demo"):
        expect("Usage: gxperf " + command in tools.run(tools.gxperf_path, command, "--help").must(OK).out)


# --- what can go wrong ------------------------------------------------------------------------------------

@case
def wrong_nobody_listens(tools):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0)) # taken, not listened at
        addr = "127.0.0.1:%d" % s.getsockname()[1]
        tools.gxperf("put", addr, "--mem", "kv").must(FAILED, addr, "gxd")


@case
def wrong_address(tools):
    for addr in ("nowhere", "127.0.0.1:99999", "127.0.0.1:", ":::"):
        tools.gxperf("put", addr, "--timeout", "3").must(FAILED)
    tools.gxd("--listen", "127.0.0.1:99999", "--mem", "kv=host:1M").must(USAGE, "99999")
    tools.gxd("--listen", "203.0.113.7:0", "--insecure", "--mem", "kv=host:1M").must(FAILED, "203.0.113.7")


@case
def wrong_not_loopback(tools):
    ran = tools.gxperf("put", "203.0.113.7:7501", "--timeout", "3").must(FAILED, "203.0.113.7", "insecure")
    expect("insecure" in ran.err)


@case
def wrong_server_options(tools):
    with Server(tools, "--port", "shm") as s:
        # In use: says where and what to do.
        tools.gxd("--listen", s.addr, "--mem", "kv=host:1M").must(FAILED, s.addr)
        tools.gxperf("put", s.addr, "--mem", "kx").must(FAILED, "kx", "kv")
        tools.gxperf("put", s.addr, "--mem", "kv", "-s", "65M").must(FAILED, "too small", "kv")
        tools.gxperf("get", s.addr, "-s", "1M", "--offset", "64M").must(FAILED, "too small")
        tools.gxperf("put", s.addr, "--port", "udp").must(FAILED, "udp", "shm")
        tools.gxperf("put", s.addr, "--port", "avian").must(FAILED, "avian")
        tools.gxperf("put", s.addr, "--require", "verbs").must(FAILED, "verbs", "shm")
        tools.gxperf("put", s.addr, "--link", "pigeon").must(USAGE, "pigeon", "verbs")
        tools.gxperf("put", s.addr, "--link", "verbs", "-q", "65").must(USAGE, "64 queue pairs")
        tools.gxperf("put", s.addr, "--link", "verbs", "--rdma", "nosuch0").must(FAILED)
        tools.gxperf("get", s.addr, "--link", "packet", "--unpack", "d2d").must(FAILED, "d2d", "host memory")
        tools.gxperf("get", s.addr, "--unpack", "host").must(FAILED, "--link packet")
        tools.gxperf("put", s.addr, "--unpack", "auto").must(FAILED, "--link packet")
        tools.gxperf("put", s.addr, "--file", "/nonexistent").must(FAILED, "/nonexistent")
        tools.gxperf("put", s.addr, "--file", "/").must(FAILED, "regular")
        tools.gxperf("get", s.addr, "--file", "/nonexistent/g", "-s", "1").must(FAILED, "/nonexistent/g")
        # And it still serves.
        tools.perf("put", s.addr, "-s", "1K", "-n", "10").clean()
    tools.gxd("--listen", "127.0.0.1:0", "--port", "avian", "--mem", "kv=host:1M").must(FAILED, "avian")
    tools.gxd("stats", "@gxd-nobody").must(FAILED, "@gxd-nobody")
    tools.gxd("stats", "/nonexistent/socket").must(FAILED, "/nonexistent/socket")


@case
def wrong_two_regions(tools):
    with Server(tools, "--mem", "w=host:1M") as s:
        tools.gxperf("put", s.addr, "-s", "1K").must(USAGE, "kv", "w", "--mem")
        tools.perf("put", s.addr, "--mem", "w", "-s", "1K", "-n", "10").clean()


@case
def wrong_no_gpu(tools):
    if pathlib.Path("/dev/nvidiactl").exists():
        return
    tools.gxd("--listen", "127.0.0.1:0", "--mem", "g=cuda:0:1M").must(FAILED, "g", "cuda")


@case
def wrong_data_is_seen(tools):
    """Unpacking that copies nothing is how wrong data is made to order."""
    with Server(tools, "--unpack", "none") as s:
        ran = tools.perf("put", s.addr, "--link", "packet", "-s", "1M", "-n", "5").must(WRONG, "wrong")
        expect(ran.doc["exit_code"] == WRONG and ran.doc["results"][0]["wrong"] > 1000000, ran)
        expect(ran.doc["path"]["unpack"] == "none", ran)
        ran = tools.perf("put", s.addr, "--link", "packet", "--unpack", "none", "-s", "1M", "-n", "5",
                         "--no-check").must(OK)
        expect(ran.doc["results"][0]["wrong"] is None and ran.doc["results"][0]["checked_b"] == 0, ran)


@case
def unpack_is_the_receivers(tools):
    """The server decides on puts, sends and pings; --unpack and --sms say how gxperf unpacks what it gets."""
    moves = [(command, "--link", link) for command in ("put", "send", "lat") for link in ("packet", "local")]
    with Server(tools, "--unpack", "none", "--sms", "8") as s:
        for command, *link in moves:
            ran = tools.gxperf(command, s.addr, *link, "--unpack", "kernel")
            ran.must(USAGE, "the receiving end decides", f"gxd at {s.addr} has --unpack none", "gxd --unpack kernel")
        for command in ("put", "send", "lat"):
            ran = tools.gxperf(command, s.addr, "--link", "packet", "--sms", "4")
            ran.must(USAGE, "the receiving end decides", "has --sms 8", "gxd --sms 4")
        ran = tools.perf("put", s.addr, "--link", "packet", "-n", "5", "--sms", "8", "--no-check").must(OK)
        expect(ran.doc["path"]["unpack"] == "none", ran)
        ran = tools.perf("get", s.addr, "--link", "packet", "-s", "1M", "-n", "5", "--unpack", "host", "--sms", "4")
        ran.clean()
        expect(ran.doc["path"]["unpack"] == "host", ran)
    with Server(tools, "--unpack", "d2d") as s:
        tools.gxperf("put", s.addr, "--link", "packet", "--sms", "4").must(USAGE, "has no --sms", "gxd --sms 4")
        for how in ((), ("--unpack", "d2d")):  # a GPU's mode, and the CPU fills host memory
            ran = tools.perf("put", s.addr, "--link", "packet", "-s", "1M", "-n", "5", *how)
            ran.clean()
            expect(ran.doc["path"]["unpack"] == "host", ran)
        ran = tools.perf("get", s.addr, "--link", "packet", "-s", "1M", "-n", "5", "--unpack", "none").must(WRONG, "wrong")
        expect(ran.doc["path"]["unpack"] == "none", ran)


def hello_of_another_version(sock):
    """Answers a client's hello with the same, of version 9999."""
    conn, _ = sock.accept()
    with conn:
        conn.settimeout(10)
        data = conn.recv(65536)
        at = data.find(struct.pack("<I", HELLO_MAGIC))
        if at >= 0:
            conn.sendall(data[:at + 4] + struct.pack("<I", 9999) + data[at + 8:])
            try:
                while conn.recv(65536):
                    pass
            except OSError:
                pass


@case
def wrong_version(tools):
    with socket.create_server(("127.0.0.1", 0)) as sock:
        thread = threading.Thread(target=hello_of_another_version, args=(sock,))
        thread.start()
        ran = tools.gxperf("put", "127.0.0.1:%d" % sock.getsockname()[1], "--timeout", "5")
        thread.join()
        ran.must(FAILED, "version", "9999")


@case
def wrong_server_that_says_nothing(tools):
    with socket.create_server(("127.0.0.1", 0)) as sock:
        tools.gxperf("put", "127.0.0.1:%d" % sock.getsockname()[1], "--timeout", "1").must(LOST)


@case
def wrong_server_that_babbles(tools):
    def babble(sock):
        conn, _ = sock.accept()
        with conn:
            conn.sendall(random.Random(5).randbytes(4096))
            time.sleep(0.2)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        thread = threading.Thread(target=babble, args=(sock,))
        thread.start()
        ran = tools.gxperf("put", "127.0.0.1:%d" % sock.getsockname()[1], "--timeout", "2")
        thread.join()
        expect(ran.rc in (FAILED, LOST), ran)


# --- files ------------------------------------------------------------------------------------------------

def file_there_and_back(tools, addr, folder, size, offset, *args):
    data = random.Random(size).randbytes(size)
    sha = hashlib.sha256(data).hexdigest()
    source, target = folder / f"f{size}", folder / f"g{size}"
    source.write_bytes(data)
    for ran in (tools.perf("put", addr, "--file", source, "--offset", offset, *args),
                tools.perf("get", addr, "--file", target, "-s", size, "--offset", offset, "--force", *args)):
        row, = ran.must(OK).doc["results"]
        expect(row["sha256"] == sha, "digest of other bytes:", ran)
        expect(row["wrong"] == 0 and row["checked_b"] == size and row["size_b"] == size, ran)
        expect(row["p99_us"] is None and row["p999_us"] is None, ran)
    expect(target.read_bytes() == data, f"content of {size} bytes differs")


@case
def file_sizes(tools):
    with Server(tools, "--port", "shm", "--port", "udp") as s, tempfile.TemporaryDirectory() as tmp:
        for size in (0, 1, 15, 4095, 4097, 1000003):
            file_there_and_back(tools, s.addr, pathlib.Path(tmp), size, 0)
        file_there_and_back(tools, s.addr, pathlib.Path(tmp), 1000003, 4099)
        file_there_and_back(tools, s.addr, pathlib.Path(tmp), 1000003, 0, "--port", "udp")


@case
def file_of_the_whole_region(tools):
    """Several pieces, and the last byte of the region; get without -s takes what there is."""
    size = 33554432 + 1
    with Server(tools, mem=f"kv=host:{size}") as s, tempfile.TemporaryDirectory() as tmp:
        source, target = pathlib.Path(tmp, "f"), pathlib.Path(tmp, "g")
        source.write_bytes(random.Random(1).randbytes(size))
        tools.perf("put", s.addr, "--file", source).clean()
        tools.perf("get", s.addr, "--file", target).clean()
        expect(source.read_bytes() == target.read_bytes())
        with open(source, "ab") as f:
            f.write(b"x")
        tools.gxperf("put", s.addr, "--file", source).must(FAILED, "too small")


@case
def file_strange_sources(tools):
    """No regular file is refused at once, one of /proc with words, and one that changes is named as what differs."""
    with Server(tools) as s, tempfile.TemporaryDirectory() as tmp:
        fifo, empty, changing = (pathlib.Path(tmp, n) for n in ("fifo", "empty", "changing"))
        os.mkfifo(fifo)
        begin = time.monotonic()
        tools.gxperf("put", s.addr, "--file", fifo, timeout=20).must(FAILED, "not a regular file")
        tools.gxperf("put", s.addr, "--file", "/proc/cpuinfo").must(FAILED, "0 bytes", "copy it")
        expect(time.monotonic() - begin < 15, "it took long to refuse")
        empty.touch()
        tools.perf("put", s.addr, "--file", empty).must(OK)
        changing.write_bytes(bytes(32 << 20))
        stop = threading.Event()

        def change():
            with open(changing, "r+b") as f:
                for i in itertools.count():
                    f.seek(i * 4099 % (31 << 20))
                    f.write(struct.pack("<Q", i))
                    f.flush()
                    if stop.is_set():
                        return

        thread = threading.Thread(target=change)
        thread.start()
        ran = tools.gxperf("put", s.addr, "--file", changing)
        stop.set()
        thread.join()
        ran.must(WRONG, "digests differ", "the file has been changed meanwhile")


@case
def file_target_is_whole_or_not_there(tools):
    """get --file replaces nothing unasked, and leaves what was there, and no part of its own, when it fails."""
    with Server(tools, mem="kv=host:8M") as s, tempfile.TemporaryDirectory() as tmp:
        target = pathlib.Path(tmp, "g")
        target.write_text("mine")
        tools.gxperf("get", s.addr, "--file", target, "-s", "4M").must(FAILED, str(target), "--force")

        def short():
            resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, 2 << 20))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

        for old in (True, False):
            proc = subprocess.Popen([tools.gxperf_path, "get", s.addr, "--cores", CLIENT_CPU, "--file", target, "-s", "4M", "--force"],
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=tools.env, preexec_fn=short)
            ended(proc).must(FAILED, "File too large")
            expect(os.listdir(tmp) == ["g"] * old and (not old or target.read_text() == "mine"), os.listdir(tmp))
            target.unlink(missing_ok=True)
        tools.gxperf("get", s.addr, "--file", "/dev/full", "-s", "4M").must(FAILED, "No space left")
        row, = tools.perf("get", s.addr, "--file", "/dev/null", "-s", "5000003").clean()
        expect(row["sha256"] and row["checked_b"] == 5000003, row)
        proc = subprocess.Popen([tools.gxperf_path, "get", s.addr, "--cores", CLIENT_CPU, "--file", target, "-D", "1"],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=tools.env)
        ended(proc).must(USAGE)
        expect(os.listdir(tmp) == [], os.listdir(tmp))


# --- results ----------------------------------------------------------------------------------------------

@case
def out_json_file(tools):
    with Server(tools) as s, tempfile.TemporaryDirectory() as tmp:
        path = pathlib.Path(tmp, "out.json")
        ran = tools.gxperf("put", s.addr, "-b", "0", "-e", "64K", "-f", "256", "-n", "200", "-J", path).must(OK)
        doc = json.loads(path.read_text())
        expect(set(doc) == TOP_KEYS | {"offset"} and doc["offset"] == 0, "keys", set(doc) ^ TOP_KEYS)
        expect(set(doc["path"]) == PATH_KEYS, "keys", set(doc["path"]) ^ PATH_KEYS)
        expect([r["size_b"] for r in doc["results"]] == [0, 1, 256, 65536], doc["results"])
        for row in doc["results"]:
            expect(set(row) == RESULT_KEYS, "keys", set(row) ^ RESULT_KEYS)
            expect(row["count"] == 200 and row["p99_us"] is not None and row["p999_us"] is None, row)
            expect(row["depth"] == 64 and row["p50_us"] <= row["p99_us"] and row["wrong"] == 0 and row["sha256"] is None, row)
        expect(doc["path"]["port"] == "shm" and doc["path"]["why"], doc["path"])
        expect(doc["errors"] == [] and doc["exit_code"] == 0 and doc["interrupted"] is False and doc["command"] == "put" and doc["env"], doc)
        expect(ran.out.startswith("#"), ran)
        # It is there now.
        tools.gxperf("put", s.addr, "-s", "1K", "-n", "5", "-J", path).must(FAILED, str(path), "--force")
        expect(json.loads(path.read_text()) == doc, "a file that was refused has changed")
        tools.gxperf("put", s.addr, "-s", "1K", "-n", "5", "-J", path, "--force").must(OK)
        expect(json.loads(path.read_text())["results"][0]["count"] == 5)
        expect(json.loads(path.read_text())["results"][0]["p99_us"] is None)
        path.unlink()
        tools.gxperf("put", s.addr, "--mem", "kx", "-J", "/nonexistent/j").must(FAILED, "/nonexistent/j")
        tools.gxperf("put", s.addr, "-s", "1K", "-n", "5", "-J", "/dev/full").must(FAILED, "-J /dev/full", "No space left")
        proc = subprocess.Popen([tools.gxperf_path, "put", s.addr, "--cores", CLIENT_CPU, "-D", "30", "-J", path],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=tools.env)
        proc.stdout.readline()
        proc.kill()
        proc.communicate()
        expect(os.listdir(tmp) == [], "a run that was killed left", os.listdir(tmp))
        tools.gxperf("put", s.addr, "--mem", "kx", "-J", path).must(FAILED)
        doc = json.loads(path.read_text())
        expect(doc["exit_code"] == FAILED and "kx" in doc["errors"][0] and doc["results"] == [], doc)


@case
def out_formats(tools):
    with Server(tools) as s:
        args = [s.addr, "-b", "64", "-e", "4K", "-f", "64", "-n", "1000"]
        rows = list(csv.DictReader(io.StringIO(tools.gxperf("get", *args, "--format", "csv").must(OK).out)))
        expect([r["size_b"] for r in rows] == ["64", "4096"] and rows[0]["p999_us"] and rows[0]["wrong"] == "0", rows)
        for row in rows:
            expect((row["link"], row["port"], row["host"], row["lost"]) == ("local", "shm", os.uname().nodename, "0"), row)
            expect(re.fullmatch(r"20..-..-..T..:..:..Z", row["time"]) and row["depth"] == "64", row)
        lines = [json.loads(x) for x in tools.gxperf("get", *args, "--format", "jsonl").must(OK).out.splitlines()]
        expect(len(lines) == 2 and all(set(x) == RESULT_KEYS | LINE_KEYS and next(iter(x)) == "env" for x in lines), lines)
        expect((lines[0]["link"], lines[0]["command"], lines[0]["env"]["args"][0]) == ("local", "get", "get"), lines)
        table = tools.gxperf("get", *args).must(OK).out.splitlines()
        expect(len([x for x in table if not x.startswith("#")]) == 2, table)
        expect(any("checked_b" in x for x in table), table)
        expect("nan" not in "".join(table).lower())


@case
def out_append(tools):
    """Results of several runs in one file, each a line that says all; a run without results leaves none."""
    with Server(tools) as s, tempfile.TemporaryDirectory() as tmp:
        path = pathlib.Path(tmp, "lines")
        args = (s.addr, "-s", "4K", "-n", "5", "--append", path)
        tools.gxperf("put", s.addr, "--mem", "kx", "--append", path).must(FAILED, "kx")
        expect(os.listdir(tmp) == [], os.listdir(tmp))
        tools.gxperf("put", *args, "--link", "packet").must(OK)
        expect(len(tools.perf("get", *args, "-q", "2").clean()) == 1)
        tools.gxperf("put", s.addr, "--mem", "kx", "--append", path).must(FAILED, "kx")
        tools.gxperf("allgather", "-g", "2", "-s", "4K", "-n", "5", "--cores", "any", "--append", path).must(OK)
        lines = [json.loads(x) for x in path.read_text().splitlines()]
        expect([(x["command"], x["link"], x["op"]) for x in lines] == [
            ("put", "packet", "put"), ("get", "local", "get"), ("allgather", "local", "allgather")], lines)
        expect(all(set(x) == RESULT_KEYS | LINE_KEYS for x in lines[:2]), lines)
        tools.gxperf("put", *args[:-1], "/nonexistent/x").must(FAILED, "--append /nonexistent/x")
        tools.gxperf("put", *args[:-1], "/dev/full").must(FAILED, "--append /dev/full", "No space")

        def short(): # of a line only a part has room
            resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, 2 << 20))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

        path.write_bytes(b" " * ((2 << 20) - 100))
        proc = subprocess.Popen([tools.gxperf_path, "put", *map(str, args), "--port", "udp", "--cores", CLIENT_CPU], text=True, env=tools.env,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=short)
        ended(proc).must(FAILED, "--append", "No space")


@case
def out_packets_lost(tools):
    """What was sent again, and came twice, is told: here because the server stood still for a moment."""
    with Server(tools, "--port", "udp", "--timeout", "20") as s:
        with measuring(tools, "put", s.addr, "--cores", CLIENT_CPU, "-s", "64K", "-D", "6", "--timeout", "20") as proc:
            s.proc.send_signal(signal.SIGSTOP)
            time.sleep(0.7)
            s.proc.send_signal(signal.SIGCONT)
            ran = ended(proc).must(OK)
            row, = json.loads(proc.folder.joinpath("j").read_text())["results"]
        expect(row["resent"] > 0 and row["lost"] <= row["resent"] and row["wrong"] == 0, row)
        expect(f"# packets: {row['lost']} lost, {row['resent']} sent again, {row['duplicate']} came twice" in ran.out, ran)


@case
def out_info_and_stats(tools):
    with Server(tools) as s:
        ran = tools.gxperf("info", s.addr).must(OK)
        for word in ("shm", "udp", "huge pages", "region kv", "copies"):
            expect(word in ran.out, f"no '{word}' in:", ran)
        expect(re.search(r"io_uring|epoll", ran.out), ran)
        expect("GPU" in ran.out, ran)
        expect(re.search(r"^link verbs: (yes, where it is asked for: \S|no: \S)", ran.out, re.M), ran)
        info = tools.perf("info", s.addr).must(OK).doc["info"]
        rdma = info["rdma"]
        expect(rdma["opens"] == (rdma["why"] is None) == (rdma["takes"] is not None) and isinstance(rdma["ports"], list), rdma)
        region, = info["server"]["regions"]
        expect((region["name"], region["place"], region["size_b"], region["put"]) == ("kv", "host", 64 << 20, True), info)
        expect(info["ports"]["shm"] == {"opens": True, "why": None} and info["cores"] == CLIENT_CPU, info)
        expect(info["server"]["link"] == "local" and any("links" in line for line in info["describe"]), info)
        tools.perf("put", s.addr, "-s", "4K", "-n", "100", "--link", "packet").clean()
        expect(s.stat(tools, "msgs_rx") >= 100)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(f"\0gxd-{s.port}")
            sock.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            text = b"".join(iter(lambda: sock.recv(65536), b"")).decode()
        expect("200" in text.splitlines()[0] and "# TYPE" in text and "msgs_rx" in text, text[:500])


@case
def nic_plan(tools):
    """Each step on an interface that refuses nearly all; nothing is changed."""
    args = ("nic", "plan", "--dev", "lo", "--queues", "8-15", "--port", "7501")
    ran = tools.gxd(*args).must(FAILED, "lo: step 'bind' is refused", "Cure: ")
    for word in ("ethtool -G lo tcp-data-split on", "ethtool -G lo hds-thresh 0", "ethtool -X lo equal 8",
                 "ethtool -N lo flow-type tcp4 dst-port 7501 action 8", "netdev bind-rx ifindex 1 queues rx 8-15",
                 "Nothing is changed", "UNTRIED"):
        expect(word in ran.out, f"no '{word}' in:", ran)
    doc = tools.gxd(*args, "--format", "json").must(FAILED).doc
    names = [s["step"] for s in doc["steps"]]
    expect(names == ["queues", "header split", "split threshold", "RSS away", "flow rules on", "flow rule", "bind"], doc)
    expect(doc["interface"] == "lo" and doc["queues"] == [8, 15] and doc["goes"] is False, doc)
    expect(all((s["state"] == "refused") == (s["cure"] is not None) for s in doc["steps"]), doc)
    expect(all(s["netlink"] and s["answer"] for s in doc["steps"]), doc)
    doc = tools.gxd(*args[:-2], "--format", "json").must(FAILED).doc  # without a port
    rule, = [s for s in doc["steps"] if s["step"] == "flow rule"]
    expect(rule["command"] is None and not any("..." in (s["command"] or "") for s in doc["steps"]), doc)


@case
def zcrx_refused(tools):
    """An interface that never fills memory of a program: nothing starts, and nothing is used in its place."""
    args = ("--mem", "kv=host:1M", "--listen", "127.0.0.1:0", "--tcp-rx", "zcrx", "--tcp-rx-nic")
    tools.gxd(*args, "lo:1-2").must(FAILED, "--tcp-rx-nic", "lo (no driver)", "Cure: ")
    tools.gxd(*args, "nosuch0:1-2").must(FAILED, "no interface 'nosuch0'")


@case
def devmem_send_refused(tools):
    args = ("--mem", "kv=host:1M", "--listen", "127.0.0.1:0", "--tcp-tx", "devmem", "--tcp-tx-nic")
    tools.gxd(*args, "nosuch0").must(FAILED, "--tcp-tx-nic", "no interface 'nosuch0'")


@case
def info_receive_modes(tools):
    info = tools.perf("info").must(OK).doc["info"]
    lo, = [n for n in info["nics"] if n["interface"] == "lo"]
    modes = {m["mode"]: m for m in lo["receive"]}
    expect(list(modes) == ["copy", "devmem", "io_uring-zcrx"], lo)
    expect(modes["copy"] == {"mode": "copy", "state": "available", "why": None, "cure": None}, lo)
    expect(all(modes[m]["state"] == "missing" and modes[m]["why"] and modes[m]["cure"] for m in list(modes)[1:]), lo)
    expect(lo["facts"]["driver"] == "none" and lo["facts"]["kernel"] == os.uname().release, lo)
    text = tools.gxperf("info").must(OK).out
    expect(re.search(r"^interface lo: driver none, bus none, numa_node unknown$", text, re.M), text)
    expect(re.search(r"^  receive devmem: missing: \S", text, re.M) and "receive copy: available" in text, text)


def without_nccl(tools, **env):
    """The same tools without variables of NCCL and its plugin, but for these."""
    other = Tools(tools.fakes.parent)
    other.env = {k: v for k, v in tools.env.items() if not k.startswith(("NCCL_", "GX_NCCL_")) and k != "GX_LOG"} | env
    return other


@case
def info_nccl(tools):
    plugin = tools.fakes.parent / "bindings" / "nccl" / "libnccl-net-gx.so"
    if not plugin.exists():
        print("note: built without the NCCL plugin: not tested")
        return
    args = ("info", "--nccl", "--format", "json")

    def info(rc=OK, words=(), **env):
        return without_nccl(tools, **env).run(tools.gxperf_path, *args).must(rc, *words).doc["info"]["nccl"]

    got = info(FAILED, ["would not load", "NCCL_NET_PLUGIN=/"])
    expect(got["file"].endswith(plugin.name) and got["name"] == "gx" and got["tables"] == [8, 9, 10, 11, 12], got)
    for word in ("NCCL_NET=gx", "NCCL_NET_PLUGIN_REF_COUNT=1", "127.0.0.1", "NCCL_HOSTID"):
        expect(any(word in text for text in got["warnings"]), word, got)
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "pytorch.md").read_text()
    told = {name: one["value"] for name, one in got["variables"].items() if name.startswith("GX_")}
    expect(told == {name: unset.strip("`") for name, unset in re.findall(r"^\| `(GX_\w+)` \| ([^|]*) \|", page, re.M)}, told)
    right = {"NCCL_NET_PLUGIN": str(plugin), "NCCL_NET": "GX", "NCCL_NET_PLUGIN_REF_COUNT": "1"}
    got = info(**right, GX_NCCL_CPUS="0-1,5", GX_NCCL_ADDR="10.1.2.3")
    expect(got["cores"] == [0, 1, 5] and got["address"] == "10.1.2.3" and len(got["warnings"]) == 1, got)
    expect(got["variables"]["GX_NCCL_CPUS"] == {"set": True, "value": "0-1,5"}, got)
    expect(got["copies"].startswith("one"), got)
    for off in ({"GX_NCCL_PULL": "off"}, {"GX_NCCL_LINK": "packet"}):
        expect(info(**right, **off)["copies"].startswith("two"), off)
    for wrong in ("ll128", "Simple;broadcast:^LL"):
        info(FAILED, ["NCCL_PROTO=" + wrong, "NCCL_PROTO=^LL128"], **right, NCCL_PROTO=wrong)
    for on in ("LL,Simple", "^LL128"):
        expect(info(**right, NCCL_PROTO=on)["copies"].startswith("one"), on)
    expect(got["mode"].startswith("host: "), got)
    info(FAILED, ["GX_NCCL_MODE=gpu", "cuda or unpack"], **right, GX_NCCL_MODE="gpu")
    for unsafe in ({"GX_NCCL_MODE": "cuda"}, {"GX_NCCL_LINK": "tcp", "NCCL_PROTO": "^LL128"}):
        info(FAILED, ["set NCCL_PROTO=Simple on all ranks"], **{**right, **unsafe})
    for unpack, told in (("host", 0), ("auto", 1)):
        cuda = {"GX_NCCL_MODE": "cuda", "NCCL_PROTO": "Simple", "GX_NCCL_UNPACK": unpack}
        got = without_nccl(tools, **right, **cuda).run(tools.gxperf_path, *args).doc["info"]["nccl"]
        expect(sum("GX_NCCL_UNPACK=host does not have that" in text for text in got["warnings"]) == told, got)
    info(FAILED, ["GX_NCCL_UNPACK=auto", "CUDA_DEVICE_MAX_CONNECTIONS=1"], **right, GX_NCCL_MODE="cuda", GX_NCCL_UNPACK="auto",
         CUDA_DEVICE_MAX_CONNECTIONS="1")
    text = without_nccl(tools, **right).run(tools.gxperf_path, "info", "--nccl").must(OK).out
    expect(str(plugin) in text and "polling cores on CPU" in text and "GX_NCCL_TIMEOUT_S=5 (default)" in text, text)
    info(FAILED, ["GX_NCCL_CORES=0"], **right, GX_NCCL_CORES="0")
    info(FAILED, ["set NCCL_PAT_ENABLE=0 NCCL_LOCAL_REGISTER=0"], **right, GX_NCCL_MODE="unpack", NCCL_PROTO="simple")
    info(FAILED, ["/nonexistent.so"], NCCL_NET_PLUGIN="/nonexistent.so")
    info(FAILED, ["not gx's plugin"], NCCL_NET_PLUGIN="libc.so.6")
    info(FAILED, ["NCCL_NET=Socket"], NCCL_NET_PLUGIN=str(plugin), NCCL_NET="Socket")
    tools.run(tools.gxperf_path, "info", "--nccl", "127.0.0.1:1").must(USAGE, "--nccl")


@case
def info_nccl_claims(tools):
    """Claimed CPUs are told, and not chosen; info claims none."""
    plugin = tools.fakes.parent / "bindings" / "nccl" / "libnccl-net-gx.so"
    if not plugin.exists():
        print("note: built without the NCCL plugin: not tested")
        return
    tools = without_nccl(tools, GX_NCCL_CORES="1", NCCL_NET_PLUGIN=str(plugin))
    with contextlib.ExitStack() as held:
        def claim(cpu):
            held.enter_context(socket.socket(socket.AF_UNIX)).bind(f"\0gx-cpu-{cpu}")

        def info():
            return tools.run(tools.gxperf_path, "info", "--nccl", "--format", "json").must(OK).doc["info"]["nccl"]

        claim(1000)
        first = info()
        expect(1000 in first["claimed"], first)
        if len(CPUS) < 4: # then it pins nothing
            expect(first["cores"] == [None] and any("not pinned" in text for text in first["warnings"]), first)
            return
        while first["cores"] != [None]: # tests of the plugin run beside this one, and may be quicker
            try:
                claim(first["cores"][0])
                break
            except OSError:
                first = info()
        else: # they have all
            return
        second = info()
        expect(first["cores"][0] in second["claimed"] and first["cores"] != second["cores"], first, second)


# --- moving data ------------------------------------------------------------------------------------------

@case
def move_sizes_windows_chunks(tools):
    with Server(tools, "--window", "64", "--chunk", "4M") as s:
        for window in (1, 4, 64):
            for chunk in ("16K", "512K", "4M"):
                for command in ("put", "get"):
                    rows = tools.perf(command, s.addr, "-b", "1", "-e", "4M", "-f", "4", "-n", "5", "-w", "1", "--window",
                                      window, "--chunk", chunk).clean()
                    expect(len(rows) == 12 and rows[-1]["size_b"] == 4 << 20, rows)


@case
def move_send(tools):
    with Server(tools) as s:
        for window, chunk in ((1, "16K"), (16, "512K")):
            rows = tools.perf("send", s.addr, "-b", "1", "-e", "4M", "-f", "4", "-n", "20", "--window", window, "--chunk",
                              chunk).clean()
            expect(len(rows) == 12, rows)
        tools.perf("send", s.addr, "-s", "0", "-n", "50").clean()
        rows = tools.perf("send", s.addr, "-s", "4K", "-D", "0.5").clean()
        expect(rows[0]["checked_b"] * 70 >= rows[0]["count"] * 4096, rows)


@case
def move_udp(tools):
    with Server(tools, "--port", "udp") as s:
        for command in ("put", "get", "send"):
            rows = tools.perf(command, s.addr, "-b", "1", "-e", "1M", "-f", "32", "-n", "10").clean()
            expect(len(rows) == 5, rows)
        doc = tools.perf("put", s.addr, "-s", "64K", "-n", "10").must(OK).doc
        expect(doc["path"]["port"] == "udp" and doc["path"]["integrity"] == "crc32c", doc["path"])
        expect(doc["path"]["crc_by"] == "cpu", doc["path"])
    with Server(tools, "--port", "udp", "--crc-by", "copy") as s:
        doc = tools.perf("put", s.addr, "-s", "64K", "-n", "10").must(OK).doc
        expect(doc["path"]["crc_by"] == "copy", doc["path"])
        doc = tools.perf("get", s.addr, "-s", "64K", "-n", "10").must(OK).doc
        expect(doc["path"]["crc_by"] == "cpu", doc["path"])
    tools.gxd("--mem", "kv=host:1M", "--crc-by", "copy", "--unpack", "d2d").must(USAGE, "checks no payload")


@case
def move_timed_is_checked(tools):
    """One message in 64 is checked under way."""
    with Server(tools) as s:
        for command in ("put", "get"):
            for size in (64, 65536, 2 << 20):
                row, = tools.perf(command, s.addr, "-s", size, "-D", "0.5").clean()
                expect(row["checked_b"] * 70 >= row["count"] * size, row)
                expect(row["GB_s"] > 0 and row["cpu_pct"] > 0, row)


@case
def move_for_a_moment(tools):
    """However short -D is, something is timed: no row says 0 GB/s. And nearly all of the time is that of the run."""
    with Server(tools, "--no-huge", mem="kv=host:256M") as s:
        for size in (64, 192 << 20):
            for command in ("put", "get"):
                for left in range(4, -1, -1): # a busy machine makes more of a millisecond
                    row, = tools.perf(command, s.addr, "-s", size, "-D", "0.001", "-q", "1" if size > 64 else "3").clean()
                    expect(row["count"] > 0 and row["GB_s"] > 0, row)
                    if size > 64 or row["cpu_pct"] is None:
                        break
                    expect(left, "CPU time of a millisecond:", row)
        row, = tools.perf("lat", s.addr, "-D", "0.001").clean()
        expect(row["count"] > 0 and row["p50_us"] > 0, row)
        before = s.stat(tools, "msgs_rx")
        row, = tools.perf("put", s.addr, "-s", "4K", "-D", "0.01", "--link", "packet").clean()
        expect(s.stat(tools, "msgs_rx") - before == row["count"] + 1, "more than a tenth of the time was warm-up:", row)


@case
def out_small_figures(tools):
    """A slow link has digits too; progress has lines of its own where there is no terminal, seconds apart."""
    with Server(tools, "--port", "udp") as s:
        ran = tools.gxperf("put", s.addr, "-s", "1", "-n", "30", "--depth", "1").must(OK)
        row = [line for line in ran.out.splitlines() if not line.startswith("#")][0].split()
        expect(re.fullmatch(r"[1-9]\.\d\de-0\d", row[6]), "GB/s of", row)
        with beside(tools, s, "put", "-s", "64K") as proc:
            lines = (line for line in iter(proc.stderr.readline, "") if " gx: " not in line) # what a busy machine has it warn of
            told = list(itertools.islice(lines, 2))
        expect(all(re.match(r"gxperf: put of 65536 bytes: \d+ s, \d+ messages, [0-9.e-]+ GB/s\n", t) for t in told), told)
        first, second = (int(t.split(": ")[2].split()[0]) for t in told)
        expect(4 <= second - first <= 30, told)


@case
def move_odd_places(tools):
    with Server(tools, mem="kv=host:1000003") as s:
        for command in ("put", "get", "send"):
            tools.perf(command, s.addr, "-s", "1000003", "-n", "3").clean()
            tools.perf(command, s.addr, "-s", "1000003", "-D", "0.2").clean()
            tools.perf(command, s.addr, "-s", "999", "-n", "100", "--offset", "13").clean()
            tools.perf(command, s.addr, "-s", "0", "-n", "10", "--offset", "1000003").clean()


@case
def move_64_connections(tools):
    with Server(tools) as s:
        for command in ("put", "get", "send"):
            # Its cores share their CPUs with those of other tests: a step of the set-up may take its time.
            row, = tools.perf(command, s.addr, "-q", "64", "-s", "16K", "-n", "20", "--timeout", "30").clean()
            expect(row["count"] == 64 * 20, row)
        expect(s.stat(tools, "peers_up") == 192)


@case
def move_two_cores(tools):
    if len(CPUS) < 2:
        return
    cores = f"{CPUS[0]},{CPUS[-1]}"
    with Server(tools, "--cores", cores) as s, tempfile.TemporaryDirectory() as tmp:
        for command in ("put", "get", "send"):
            row, = tools.perf(command, s.addr, "--cores", cores, "-s", "64K", "-n", "50").clean()
            expect(row["count"] == 100, row)
        file_there_and_back(tools, s.addr, pathlib.Path(tmp), 9000001, 0, "--cores", cores)


@case
def move_several_ports(tools):
    """Two lanes over two ports of one kind."""
    if len(CPUS) < 2:
        return
    cores = f"{CPUS[0]},{CPUS[-1]}"
    for port in ("shm", "udp"):
        with Server(tools, "--cores", cores, "--port", port, "--port", port) as s:
            ran = tools.perf("put", s.addr, "--cores", cores, "--port", f"{port};{port}", "-s", "64K", "-n", "50")
            row, = ran.clean()
            expect(row["count"] == 100, row)
            expect("2 ports in turn" in clean_path(ran)["why"], ran)
            tools.gxperf("put", s.addr, "--cores", cores, "--port", "udp;shm").must(FAILED, "two kinds")


@case
def move_striped(tools):
    """One thread posts, gx runs the cores, messages go over all of them."""
    cores = ",".join(str(c) for c in sorted({CPUS[0], CPUS[-1]}))
    with Server(tools, "--cores", cores) as s:
        for command, link in itertools.product(("put", "get"), LINKS):
            args = (command, s.addr, "--cores", cores, "--stripe", "--link", link)
            rows = tools.perf(*args, "-b", "1", "-e", "4M", "-f", "16", "-n", "20", "--chunk", "16K").clean()
            expect([row["count"] for row in rows] == [20] * 6, rows)
            row, = tools.perf(*args, "-s", "1000003", "-D", "0.5", "-q", "3").clean()
            expect(row["checked_b"] * 70 >= row["count"] * 1000003 and row["cpu_pct"] > 0, row)
            row, = tools.perf(*args, "-s", "64K", "-n", "500", "--chunk", "16K", "--same-place").clean()
            expect(row["count"] == 500, row)
        got = tools.perf("put", s.addr, "--cores", cores, "--stripe", "-s", "0", "-n", "10").must(OK)
        expect("thread of its own" in got.out + got.err, got)


@case
def move_latency(tools):
    with Server(tools, "--port", "shm", "--port", "udp") as s:
        row, = tools.perf("lat", s.addr, "-n", "1000").clean()
        expect(row["size_b"] == 64 and row["count"] == 1000 and row["p999_us"] >= row["p50_us"] > 0, row)
        tools.perf("lat", s.addr, "-b", "0", "-e", "64K", "-f", "64", "-n", "200").clean()
        tools.perf("lat", s.addr, "-n", "200", "--offset", "4099").clean()
        tools.perf("lat", s.addr, "-n", "200", "--port", "udp").clean()


@case
def move_servers_defaults(tools):
    """As little as one can say."""
    with Server(tools, "--cores", "any", mem="kv=host:16M") as s: # room for four cores of each end
        tools.run(tools.gxperf_path, "put", s.addr).must(OK)


# --- several clients of one region -------------------------------------------------------------------------

@contextlib.contextmanager
def beside(tools, server, command, *args):
    """A client that is measuring, until the block ends."""
    enough = server.stat(tools, "peers_up") + 1
    proc = subprocess.Popen([tools.gxperf_path, command, server.addr, "--cores", CLIENT_CPU, "-D", "60", *map(str, args)],
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=tools.env)
    end = time.monotonic() + START_S
    try:
        # The path is told before the bytes are asked for: then a moment, and whoever comes now comes second.
        expect("link" in proc.stdout.readline(), "no path from the client beside")
        while server.stat(tools, "peers_up") < enough and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(0.5)
        expect(proc.poll() is None, "the client beside ended")
        yield proc
    finally:
        proc.kill()
        proc.communicate()


@case
def lease_keeps_writers_apart(tools):
    """Who would write where another measures is refused, told who that is and where there is room; beside it, both are right."""
    with Server(tools) as s, tempfile.TemporaryDirectory() as tmp:
        source = pathlib.Path(tmp, "f")
        source.write_bytes(b"x" * 4097)
        with beside(tools, s, "put", "-s", "64K") as first:
            at = (s.addr, "--offset", "0")
            ran = tools.gxperf("put", *at, "-s", "4K", "-n", "5").must(FAILED, "in use", f"pid {first.pid}", "'kv'", "bytes 0 to")
            place = re.search(r"give --offset (\w+),", ran.err).group(1)
            tools.gxperf("lat", *at, "-n", "5").must(FAILED, f"pid {first.pid}")
            tools.gxperf("put", s.addr, "--file", source).must(FAILED, f"pid {first.pid}")
            for more in (("-s", "1K"), ("--file", f"{tmp}/g", "-s", "1")):
                tools.gxperf("get", *at, *more).must(FAILED, f"pid {first.pid}")
            tools.gxperf("get", s.addr, "--file", f"{tmp}/g", "-s", "1").must(FAILED, f"pid {first.pid}")
            tools.gxperf("put", s.addr, "-s", "64M", "-n", "1").must(FAILED, "no room")
            for command in ("put", "send", "get", "lat"):
                tools.perf(command, s.addr, "-s", "4K", "-n", "5", "--offset", place).clean()
            tools.perf("put", s.addr, "-s", "0", "-n", "5", "--offset", "64M").clean()
            tools.perf("get", s.addr, "-s", "4K", "-n", "5", "--no-check").must(OK)
            first.kill()
            first.wait()
            # Its bytes are free as soon as the server knows.
            tools.perf("put", s.addr, "-s", "4K", "-n", "5").clean()


@case
def lease_moves_who_names_no_place(tools):
    """Who names no --offset takes bytes that are free, says so, and is right there; a third one comes behind the second."""
    patient = ("--timeout", "30") # three clients poll on one CPU
    with Server(tools) as s:
        with beside(tools, s, "put", "-s", "64K", *patient) as first:
            for command in ("put", "send", "get", "lat"):
                ran = tools.perf(command, s.addr, "-s", "4K", "-n", "5", *patient)
                ran.clean()
                expect(ran.doc["offset"] > 0 and f"pid {first.pid}" in ran.err and "--offset" in ran.err, ran)
                tools.perf(command, s.addr, "-s", "4K", "-n", "5", "--offset", ran.doc["offset"], *patient).clean()
            ran = tools.run(tools.gxperf_path, "put", s.addr, "-s", "1K", "-n", "5", *patient).must(OK)
            expect(re.search(rf"^# bytes 0 to \d+ of region 'kv' are in use by .*pid {first.pid}: .*\(--offset \w+\)$", ran.out, re.M), ran)
            beside_first = tools.perf("put", s.addr, "-s", "64K", "-n", "5", *patient).doc["offset"]
            with beside(tools, s, "get", "-s", "64K", *patient):
                # Sweeps plan each size anew: all of them within what is leased.
                ran = tools.perf("put", s.addr, "-b", "1", "-e", "1M", "-f", "16", "-n", "20", *patient)
                ran.clean()
                expect(ran.doc["offset"] > beside_first, ran.doc["offset"], beside_first)
            expect(first.poll() is None, "the first one ended")
        expect(tools.perf("put", s.addr, "-s", "64K", "-n", "5").doc["offset"] == 0)


@case
def lease_lets_readers_share(tools):
    """What lies before it, up to its first byte, is others'."""
    with Server(tools) as s, tempfile.TemporaryDirectory() as tmp:
        source = pathlib.Path(tmp, "f")
        with beside(tools, s, "get", "-s", "64K", "--offset", "1M") as first:
            at = (s.addr, "--offset", "1M")
            tools.perf("get", *at, "-s", "64K", "-D", "0.3").clean()
            tools.gxperf("get", *at, "-s", "4K", "-n", "5").must(FAILED, f"pid {first.pid}")
            tools.gxperf("put", *at, "-s", "4K", "-n", "5").must(FAILED, f"pid {first.pid}")
            for size, status in ((1 << 20, OK), ((1 << 20) + 1, FAILED)):
                source.write_bytes(bytes(size))
                tools.gxperf("put", s.addr, "--file", source).must(status)
        tools.perf("get", s.addr, "--file", f"{tmp}/g", "-s", "5000").clean()


@case
def lease_one_polls_memory(tools):
    """A core of the server polls for one client: a second does not take it from the first."""
    with Server(tools) as s:
        with beside(tools, s, "lat", "--poll", "memory") as first:
            tools.gxperf("lat", s.addr, "--poll", "memory", "--offset", "1M", "-n", "5").must(FAILED, "another client", "--poll")
            tools.perf("lat", s.addr, "--offset", "1M", "-n", "5").clean()
            expect(first.poll() is None, "the first one ended")
        tools.perf("lat", s.addr, "--poll", "memory", "-n", "50").clean()


# --- links ------------------------------------------------------------------------------------------------

def clean_path(ran):
    ran.clean()
    return ran.doc["path"]


@case
def link_is_chosen(tools):
    """Which link is taken is said, with the reason; what was asked for is taken, or nothing is."""
    small = ("-s", "64K", "-n", "50")
    with Server(tools) as s:
        for args, link, why in (((), "local", "memory mapped"),
                                (("--port", "shm"), "packet", "asked for"),
                                (("--port", "shm", "--link", "local"), "local", "asked for"),
                                (("--link", "packet"), "packet", "shared memory"),
                                (("--require", "local"), "local", "memory mapped"),
                                (("--engine", "cpu"), "local", "memory mapped")):
            path = clean_path(tools.perf("put", s.addr, *small, *args))
            expect(path["link"] == link and path["port"] == "shm" and why in path["why"], args, path)
        for command in ("put", "get", "lat"):
            path = clean_path(tools.perf(command, s.addr, "-s", "4K", "-n", "50", "--link", "local"))
            expect(path["link"] == "local" and path["engine"] == "cpu" and path["unpack"] == "direct", path)
            expect(path["control"] in ("io_uring", "epoll"), path)
        for command, more in (("put", ("--sockets", "3", "-q", "2")), ("get", ("--sockets", "16")), ("send", ()), ("lat", ())):
            path = clean_path(tools.perf(command, s.addr, "-s", "4K", "-n", "50", "--link", "tcp", *more))
            expect(path["link"] == "tcp" and path["port"] == "tcp" and "asked for" in path["why"], path)
            expect((path["unpack"], path["bounce"], path["engine"], path["integrity"]) == ("direct", None, None, "none"), path)
        # The client's sends, then those of the server, which answers gets.
        for how, command in (("zerocopy", "put"), ("auto", "put"), ("zerocopy", "send"), ("zerocopy", "get")):
            path = clean_path(tools.perf(command, s.addr, "-s", "256K", "-n", "50", "--link", "tcp", "--tcp-tx", how))
            expect(path["link"] == "tcp", path)
        tools.gxperf("put", s.addr, "--link", "tcp", "--port", "udp").must(FAILED, "uses no port")
        tools.gxperf("get", s.addr, "--link", "tcp", "--unpack", "host").must(FAILED, "nothing is unpacked")
        tools.gxperf("put", s.addr, "--link", "tcp", "--sockets", "17").must(USAGE, "--sockets")
        tools.gxperf("put", s.addr, "--require", "tcp").must(FAILED, "takes link local")
        # What is said is what was done: sends are packets.
        before = s.stat(tools, "rx_pkts")
        path = clean_path(tools.perf("send", s.addr, "-s", "64K", "-n", "50", "--link", "local"))
        expect(s.stat(tools, "rx_pkts") - before >= 50 * 8, "the sends left no packets")
        expect(path["link"] == "packet" and path["port"] == "shm" and path["engine"] is None, path)
        expect(path["unpack"] == "host" and path["bounce"] == "host" and "sends go by packets" in path["why"], path)
        tools.gxperf("send", s.addr, "--require", "local").must(FAILED, "sends go by packets")
        path = clean_path(tools.perf("send", s.addr, "-s", "1M", "-n", "50", "--pull", "off"))
        expect(path["link"] == "packet" and "long messages as packets" in path["why"], path)
    with Server(tools, "--pull", "on") as s:
        before = s.stat(tools, "pulls")
        path = clean_path(tools.perf("send", s.addr, "-s", "1M", "-n", "50", "--pull", "on"))
        if "as packets" in path["why"]:
            print("note: the kernel does not let a process read another one: one copy not tested")
        else:
            expect(path["link"] == "local" and path["unpack"] == "direct" and path["engine"] == "cpu", path)
            expect(s.stat(tools, "pulls") - before >= 50, "the server read none of the sends")
            path = clean_path(tools.perf("send", s.addr, "-s", "64K", "-n", "50", "--pull", "on"))
            expect(path["link"] == "packet" and "in one copy" in path["why"], path)
        for size in ("1", "9", "64", "8K"):
            rows = tools.perf("lat", s.addr, "-s", size, "-n", "500", "--poll", "memory").clean()
            expect(rows[0]["count"] == 500, rows)
        tools.perf("lat", s.addr, "-n", "300", "--poll", "completion").clean()
        tools.gxperf("lat", s.addr, "--poll", "memory", "--link", "packet").must(FAILED, "packet", "local")
        tools.gxperf("lat", s.addr, "--poll", "memory", "-s", "16K").must(USAGE, "8192")
        tools.gxperf("lat", s.addr, "--poll", "tea").must(USAGE, "tea")
        for command in ("put", "get"):
            for size in ("64", "100000", "3M"):
                rows = tools.perf(command, s.addr, "-s", size, "-n", "300", "--same-place").clean()
                expect(rows[0]["count"] == 300 and rows[0]["checked_b"] >= int(rows[0]["size_b"]), rows)
        tools.perf("put", s.addr, "-s", "4K", "-D", "0.2", "--same-place", "--link", "packet").clean()
        tools.gxperf("send", s.addr, "--same-place").must(USAGE, "same-place")
        tools.gxperf("put", s.addr, "--port", "udp", "--link", "local").must(FAILED, "shm")
        tools.gxperf("put", s.addr, "--port", "udp", "--require", "local").must(FAILED, "local", "packet")
        tools.gxperf("put", s.addr, "--engine", "ce").must(USAGE, "--engine ce", "--gpu")
        tools.gxperf("put", s.addr, "--engine", "warp").must(USAGE, "warp")
        expect("links    packet, local, tcp" in tools.gxperf("info", s.addr).must(OK).out)
    with Server(tools, "--link", "packet") as s:
        path = clean_path(tools.perf("put", s.addr, *small))
        expect(path["link"] == "packet" and "no link local" in path["why"], path)
        tools.gxperf("put", s.addr, "--link", "local").must(FAILED, "the server does not offer it")
        tools.gxperf("put", s.addr, "--require", "local").must(FAILED, "packet")
    with Server(tools, "--tcp-tx", "zerocopy") as s:
        expect("tcp tx   without a copy" in s.log(), s.log())
        clean_path(tools.perf("get", s.addr, "-s", "256K", "-n", "50", "--link", "tcp"))
        expect(s.stat(tools, "tcp_zc_sends") >= 50, "the server has copied what it sent")
        expect(s.stat(tools, "tcp_zc_lost") == 0, "sends that never ended")
    with Server(tools, "--link", "tcp") as s:
        expect(clean_path(tools.perf("put", s.addr, *small, "--link", "tcp"))["link"] == "tcp", s.log())
        expect(clean_path(tools.perf("put", s.addr, *small))["link"] == "packet", s.log())
    tools.gxd("--mem", "kv=host:1M", "--port", "udp", "--link", "local").must(USAGE, "shm")
    tools.gxd("--mem", "kv=host:1M", "--link", "wire").must(USAGE, "wire")


@case
def move_local_files(tools):
    with Server(tools) as s, tempfile.TemporaryDirectory() as tmp:
        for size in (0, 1, 65537, 10000019):
            file_there_and_back(tools, s.addr, pathlib.Path(tmp), size, 3, "--link", "local")


# --- collectives ------------------------------------------------------------------------------------------

def free_port():
    """To be listened at in a while: below those that the kernel gives to whoever names none, so that nobody gets it."""
    low = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = range(max(1024, low - 16000), max(1024, low))
    for port in [*random.sample(ports, min(len(ports), 50)), 0]:
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            return s.getsockname()[1]
    raise AssertionError("no port is free")


def coll_rank(tools, command, *args, env=None):
    """One rank that is a process; it takes the CPU that its rank gives it."""
    return subprocess.Popen([tools.gxperf_path, command, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, env={**tools.env, **(env or {})})


@case
def coll_threads(tools):
    for command, ranks in (("allgather", 2), ("alltoall", 2), ("allgather", 3), ("alltoall", 4)):
        rows = tools.perf(command, "-g", ranks, "-b", "0", "-e", "70000", "-f", "260", "-n", "10", "-w", "2", "--cores",
                          "any").clean()
        expect([r["size_b"] for r in rows] == [0, 1, 260, 67600], rows)
        for row in rows:
            expect(row["op"] == command and row["count"] == 10, row)
            expect(abs(row["bus_GB_s"] - row["GB_s"] * (ranks - 1) / ranks) <= 1e-4 * row["GB_s"], row)
            # Every rank looked at every byte of up to four destinations.
            expect(row["checked_b"] == 4 * ranks * ranks * row["size_b"], row)
    for args in (("--port", "udp"), ("--link", "packet"), ("--lanes", "2"), ("--link", "packet", "--lanes", "2"), ("--piece", "4K", "--fan", "1", "--puts", "1"), ("--depth", "16")):
        tools.perf("allgather", "-g", "2", "-s", "100003", "-n", "20", "--cores", "any", *args).clean()
    row, = tools.perf("alltoall", "-g", "2", "-s", "4K", "-D", "0.3", "--cores", "any").clean()
    # However long the warm-up was kept from its CPU.
    expect(row["count"] * 2 * 4096 / (row["GB_s"] * 1e9) > 0.25, row)
    tools.perf("allgather", "-g", "1", "-s", "4K", "-n", "5", "--cores", "any").clean()
    for args, link, why in (((), "local", "the best of what both ranks have"), (("--link", "packet"), "packet", "--link packet")):
        path = clean_path(tools.perf("allgather", "-g", "2", "-s", "4K", "-n", "5", "--cores", "any", *args))
        expect(path["link"] == link and why in path["why"] and "client" not in path["why"], path)


@case
def coll_table(tools):
    ran = tools.gxperf("allgather", "-g", "2", "-s", "1K", "-n", "5", "--cores", "any").must(OK)
    expect("bus GB/s" in ran.out and "# checked_b 16384, wrong 0" in ran.out, ran)
    ran = tools.gxperf("allgather", "-g", "2", "-s", "1K", "-n", "5", "--cores", "any", "--format", "csv").must(OK)
    row, = csv.DictReader(io.StringIO(ran.out))
    expect(float(row["bus_GB_s"]) > 0 and row["wrong"] == "0", ran)


@case
def coll_wrong_data_is_seen(tools):
    ran = tools.perf("allgather", "-g", "2", "-s", "100000", "-n", "5", "--unpack", "none", "--cores", "any", "--link", "packet")
    ran.must(WRONG, "rank 0", "rank 1", "wrong")
    expect(ran.doc["results"][0]["wrong"] > 400000, ran)


@case
def coll_bad_place(tools):
    tools.gxperf("allgather", "-g", "2", "--port", "avian", "--cores", "any").must(FAILED, "avian")
    tools.gxperf("allgather", "-g", "2", "--require", "avian", "-n", "1", "--cores", "any").must(FAILED, "avian")
    for link in ("local", "tcp"):
        tools.gxperf("allgather", "-g", "2", "--unpack", "none", "-n", "1", "--cores", "any", "--link", link).must(FAILED, "--link packet")
    if not pathlib.Path("/dev/nvidiactl").exists():
        tools.gxperf("allgather", "-g", "2", "--mem", "cuda", "--cores", "any").must(FAILED, "cuda")


@case
def coll_processes(tools):
    """Ranks told by options, and by each launcher's variables; rank 0 alone prints."""
    for style in ("options", "torchrun", "mpirun", "slurm"):
        port = free_port()
        procs = []
        for rank in (2, 1, 0):
            args, env = [], {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            if style == "options":
                args, env = ["--rank", rank, "--ranks", 3, "--master", f"127.0.0.1:{port}"], {}
            elif style == "torchrun":
                # As if torchrun's own process listened at the port before.
                env |= {"RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_RANK": str(rank), "MASTER_PORT": str(port - 1),
                        "TORCHELASTIC_USE_AGENT_STORE": "True"}
            elif style == "mpirun":
                env |= {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}
                env.pop("MASTER_ADDR")
            else:
                env |= {"SLURM_PROCID": str(rank), "SLURM_NTASKS": "3"}
            procs.append(coll_rank(tools, "allgather", *args, "-s", "30011", "-n", "20", "--format", "json", env=env))
        for rank, proc in zip((2, 1, 0), procs):
            ran = ended(proc).must(OK)
            if rank == 0:
                row, = ran.clean()
                expect(row["checked_b"] == 4 * 9 * 30011, row)
            else:
                expect(ran.out == "", ran)


@case
def coll_missing_rank(tools):
    with socket.create_server(("127.0.0.1", free_port())) as sock:
        sock.settimeout(START_S)
        port = sock.getsockname()[1]
        args = ["--ranks", 3, "--master", f"127.0.0.1:{port}"]
        second = coll_rank(tools, "allgather", "--rank", 1, *args, "--meet", "50")
        sock.accept()[0].close() # it runs, and goes on trying: the time of rank 0 is not for its start
    first = coll_rank(tools, "allgather", "--rank", 0, *args, "--meet", "3")
    ended(first).must(LOST, "rank 2 of 3 did not come")
    ended(second).must(LOST, "rank")


@case
def coll_rank_killed(tools):
    """kill -9 of one rank in the middle: the others end with an error that names it."""
    args = ["--ranks", 3, "--master", f"127.0.0.1:{free_port()}", "-s", "64K", "-n", "10000000", "--timeout", "2"]
    procs = [coll_rank(tools, "allgather", "--rank", rank, *args) for rank in range(3)]
    out = procs[0].stdout.readline() # the path is told when all are connected
    expect("link" in out, out)
    time.sleep(0.5)
    procs[2].kill()
    begin = time.monotonic()
    for proc in procs[:2]:
        ended(proc).must(LOST, "rank 2 is lost")
    expect(time.monotonic() - begin < 20, "it took them long")
    procs[2].communicate()


# --- ends -------------------------------------------------------------------------------------------------

def under_load(tools, server, *args, link="packet"):
    """A client in the middle of a put."""
    # What is copied straight into the server's memory the client tells it.
    seen = "peer_local_puts" if link == "local" else "msgs_rx"
    enough = 20 + server.stat(tools, seen)
    proc = subprocess.Popen([tools.gxperf_path, "put", server.addr, "-s", "1M", "--cores", CLIENT_CPU, "--link", link, *args],
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=tools.env)
    end = time.monotonic() + START_S
    while server.stat(tools, seen) < enough:
        if time.monotonic() > end or proc.poll() is not None:
            proc.kill()
            raise AssertionError(f"the client does not put: {Ran(proc, *proc.communicate())}")
        time.sleep(0.02)
    return proc


def ended(proc, timeout=CALL_S):
    try:
        out, err = proc.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        proc.kill()
        out, err = proc.communicate()
        raise AssertionError(f"the client did not end within {timeout} s:\n{out}\n{err}") from None
    return Ran(proc, out, err)


@case
def end_idle(tools):
    for signo in (signal.SIGTERM, signal.SIGINT):
        with Server(tools) as s:
            s.proc.send_signal(signo)
            expect(s.proc.wait(timeout=20) == 0, s.log())
            expect("drained" in s.log(), "an idle server took its time to end:", s.log())


@case
def stats_of_connections(tools):
    """What clients put over the local link shows at the server, and an orderly end is no loss."""
    with Server(tools) as s:
        tools.perf("put", s.addr, "-s", "64K", "-n", "50", "-w", "0", "--link", "local").clean()
        tools.perf("get", s.addr, "-s", "64K", "-n", "20", "-w", "0", "--link", "local").clean()
        s.wait_log("has left")
        expect(s.stat(tools, "peers_up") == 2 and s.stat(tools, "peers_lost") == 0)
        # What comes and says nothing of gx is no connection.
        with socket.create_connection((s.addr.split(":")[0], int(s.addr.split(":")[1])), START_S) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            while stranger.recv(4096):
                pass
        puts, gets, moved = (s.stat(tools, f"peer_local_{what}") for what in ("puts", "gets", "bytes"))
        expect((puts, gets, moved) == (50, 20, 70 << 16), puts, gets, moved)
        expect(s.stat(tools, "peers_now") == 0 and s.stat(tools, "peers_lost") == 0)
        proc = under_load(tools, s, "-D", "30", link="local")
        expect(s.stat(tools, "peers_now") == 1)
        proc.kill()
        ended(proc)
        s.wait_log("is lost")
        expect(s.stat(tools, "peers_now") == 0 and s.stat(tools, "peers_lost") == 1)


@case
def end_memif_client_killed(tools):
    """In the middle of bursts: the rings that both ends map stay until nobody is in a burst."""
    port = ("--port", "dpdk:net_memif")
    ran = tools.gxd("--listen", "127.0.0.1:0", "--mem", "kv=host:1M", "--port", "dpdk:nix")
    if "not built in" in ran.err:
        print("note: built without DPDK: not tested")
        return
    rnd = random.Random(5)
    with Server(tools, *port) as s:
        for _ in range(300 if os.environ.get("GX_TEST_FULL") else 6):
            enough = s.stat(tools, "msgs_tx") + 2
            proc = subprocess.Popen([tools.gxperf_path, "get", s.addr, *port, "-s", "1M", "-D", "30", "--cores", CLIENT_CPU],
                                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=tools.env)
            end = time.monotonic() + START_S
            while s.stat(tools, "msgs_tx") < enough and proc.poll() is None and time.monotonic() < end:
                time.sleep(0.01)
            time.sleep(rnd.random() / 20)
            proc.kill()
            proc.wait()
            expect(s.proc.poll() is None, "gxd ended with its client:", s.log())
        tools.perf("get", s.addr, *port, "-s", "64K", "-n", "20").clean()


@case
def end_hangup(tools):
    """SIGHUP drains; what daemons are sent for other purposes is not heard."""
    with Server(tools) as s:
        for signo in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM):
            s.proc.send_signal(signo)
        tools.perf("put", s.addr, "-s", "64K", "-n", "4").clean()
        s.proc.send_signal(signal.SIGHUP)
        expect(s.proc.wait(timeout=20) == 0, s.log())
        expect("drained" in s.log(), s.log())


@case
def end_during_set_up(tools):
    """Whatever it is doing: here it touches memory, where the machine has enough to take a while."""
    free = int(re.search(r"MemAvailable:\s*(\d+)", pathlib.Path("/proc/meminfo").read_text()).group(1)) >> 10
    size = min(6144, free // 3)
    proc = subprocess.Popen([tools.gxd_path, "--listen", "127.0.0.1:0", "--cores", SERVER_CPU, "--mem", f"kv=host:{size}M"],
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=tools.env)
    time.sleep(0.5)
    proc.terminate()
    out, err = proc.communicate(timeout=CALL_S)
    expect(proc.returncode == (0 if out else -signal.SIGTERM), proc.returncode, err)
    expect(("drained" if out else "during set-up") in err, err)


@case
def log_nobody_reads(tools):
    """A pipe for messages that is full from the start, and stays so: service goes on, and so does the end."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write, b"x" * 4096)
    os.set_blocking(write, True)
    proc = subprocess.Popen([tools.gxd_path, "--listen", "127.0.0.1:0", "--cores", SERVER_CPU, "--mem", "kv=host:1M"],
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=write, text=True, env=tools.env)
    os.close(write)
    try:
        ready, _, _ = select.select([proc.stdout], [], [], START_S)
        expect(ready, "gxd waits for whoever reads its log")
        addr = re.match(r"gxperf put (\S+)", proc.stdout.readline()).group(1)
        for _ in range(2):
            tools.perf("put", addr, "-s", "64K", "-n", "4").clean()
        proc.terminate()
        expect(proc.wait(timeout=20) == 0, proc.returncode)
    finally:
        proc.kill()
        proc.wait()
        os.close(read)


@case
def log_lines(tools):
    """Each has a time, a level, and says who came and who left."""
    with Server(tools) as s:
        tools.perf("put", s.addr, "-s", "64K", "-n", "4").clean()
        s.wait_log("has left")
        log = s.log()
        for line in log.splitlines():
            expect(re.match(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z gxd: (err|warn|info|debug): ", line), line)
        expect(re.search(r"info: 127\.0\.0\.1:\d+ pid \d+ connected: ", log), log)
        expect(re.search(r"info: 127\.0\.0\.1:\d+ pid \d+ has left", log), log)


@case
def mem_more_than_there_is(tools):
    tools.gxd("--listen", "127.0.0.1:0", "--mem", "kv=host:1T").must(FAILED, "kv", "1048576 MiB", "can be had")


@case
def end_drains(tools):
    """The put that is under way ends well, then the server does."""
    for link in LINKS:
        with Server(tools) as s:
            # Less than the server waits, however slow the machine is.
            proc = under_load(tools, s, "-w", "1", "-D", "4", link=link)
            s.proc.terminate()
            ended(proc).must(OK)
            expect(s.proc.wait(timeout=20) == 0, s.log())


@case
def end_drains_for_who_pauses(tools):
    """A client that is not run for longer than the server looks for quiet has not ended."""
    for link in LINKS:
        with Server(tools) as s:
            proc = under_load(tools, s, "-w", "1", "-D", "3", link=link)
            proc.send_signal(signal.SIGSTOP)
            s.proc.terminate()
            s.wait_log("draining")
            time.sleep(1.6)
            expect(s.proc.poll() is None, "the server did not wait:", s.log())
            proc.send_signal(signal.SIGCONT)
            ended(proc).must(OK)
            expect(s.proc.wait(timeout=20) == 0, s.log())


@case
def end_second_signal(tools):
    with Server(tools) as s:
        proc = under_load(tools, s, "-D", "30")
        s.proc.terminate()
        s.wait_log("draining") # or the two signals might be one
        s.proc.terminate()
        s.proc.wait(timeout=20)
        expect("still busy" not in s.log(), "the second signal did not end it at once:", s.log())
        ended(proc).must(LOST, s.addr)


@case
def end_server_killed(tools):
    for link in LINKS:
        with Server(tools) as s:
            proc = under_load(tools, s, "-D", "30", link=link)
            s.proc.kill()
            s.proc.wait()
            ended(proc, 20).must(LOST, s.addr)


@case
def end_server_stopped(tools):
    for link in LINKS:
        with Server(tools, "--timeout", "1") as s:
            proc = under_load(tools, s, "-D", "30", "--timeout", "1", link=link)
            s.proc.send_signal(signal.SIGSTOP)
            ran = ended(proc, 30)
            s.proc.send_signal(signal.SIGCONT)
            ran.must(LOST, s.addr)
            # Its memory was held back while it was stopped; now it serves again.
            tools.perf("put", s.addr, "-s", "64K", "-n", "20", "--link", link).clean()


@case
def end_client_killed(tools):
    for link in LINKS:
        with Server(tools) as s:
            for _ in range(3):
                proc = under_load(tools, s, "-D", "30", link=link)
                proc.kill()
                proc.communicate()
                tools.perf("put", s.addr, "-s", "64K", "-n", "20", "--link", link).clean()


# --- told to end -------------------------------------------------------------------------------------------

@contextlib.contextmanager
def measuring(tools, *args, rows=0, seconds=1, ignore=()):
    """A gxperf that has printed its path and @rows results, and some time went by; @folder is where -J FILE is."""
    def signals(): # whoever runs the tests may ignore them
        for signo in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signo, signal.SIG_IGN if signo in ignore else signal.SIG_DFL)

    with tempfile.TemporaryDirectory() as tmp:
        proc = subprocess.Popen([tools.gxperf_path, *map(str, args), "-J", f"{tmp}/j"], stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=tools.env, preexec_fn=signals)
        proc.folder = pathlib.Path(tmp)
        try:
            head = []
            while len([line for line in head if not line.startswith("#")]) < rows or not head:
                head.append(proc.stdout.readline())
                expect(head[-1], "it ended after", head, None if head[-1] else proc.communicate(timeout=10)[1], proc.returncode)
            time.sleep(seconds)
            yield proc
        finally:
            proc.kill()
            proc.communicate()


def stopped(proc, signo, nr_rows, cut, timeout=30):
    """It ended by that signal, and has told of so many results, the last one cut short or not. Return: the last."""
    ran = ended(proc, timeout).must(128 + signo)
    doc = json.loads(proc.folder.joinpath("j").read_text())
    rows = doc["results"]
    expect(doc["interrupted"] and doc["exit_code"] == 128 + signo and f"# ended by {signal.Signals(signo).name}" in ran.out, doc, ran)
    expect(len(rows) == nr_rows and [r.get("interrupted", False) for r in rows] == [False] * (nr_rows - cut) + [True] * cut, rows)
    expect(os.listdir(proc.folder) == ["j"], os.listdir(proc.folder))
    for row in rows:
        expect(row["count"] > 0 and row["wrong"] == 0 and row["checked_b"] > 0, row)
    return rows[-1] if rows else None


@case
def stop_keeps_what_was_measured(tools):
    """The row under way becomes one of less time; those before it are there."""
    with Server(tools) as s:
        args = (s.addr, "--cores", CLIENT_CPU)
        for command, signo in (("put", signal.SIGINT), ("get", signal.SIGTERM), ("send", signal.SIGINT), ("lat", signal.SIGTERM)):
            with measuring(tools, command, *args, "-s", "4K", "-D", "60") as proc:
                proc.send_signal(signo)
                stopped(proc, signo, 1, True)
        with measuring(tools, "put", *args, "-b", "4K", "-e", "64K", "-f", "16", "-n", "100000000", "-w", "1") as proc:
            proc.send_signal(signal.SIGINT)
            stopped(proc, signal.SIGINT, 1, True)
        with measuring(tools, "put", *args, "-b", "4K", "-e", "1M", "-f", "16", "-D", "5", rows=1) as proc:
            proc.send_signal(signal.SIGINT)
            expect(stopped(proc, signal.SIGINT, 2, True)["size_b"] == 65536)
        # They were the server's only trouble.
        tools.perf("put", s.addr, "-s", "4K", "-n", "10").clean()


@case
def stop_does_not_wait_for_ever(tools):
    """A server that stands still: after five seconds, or at once by a second signal, the results are written as they are."""
    with Server(tools, "--timeout", "60") as s:
        args = ("put", s.addr, "--cores", CLIENT_CPU, "-b", "4K", "-e", "64K", "-f", "16", "-D", "4", "--timeout", "60")
        for again in (False, True):
            with measuring(tools, *args, rows=1) as proc:
                s.proc.send_signal(signal.SIGSTOP)
                time.sleep(0.3)
                begin = time.monotonic()
                proc.send_signal(signal.SIGINT)
                if again:
                    time.sleep(0.5)
                    proc.send_signal(signal.SIGINT)
                try:
                    # Over the local link messages come without the server; checking them does not.
                    stopped(proc, signal.SIGINT, 1, False)
                finally:
                    s.proc.send_signal(signal.SIGCONT)
                expect((time.monotonic() - begin < 4) == again, time.monotonic() - begin)
            s.wait_log("is lost") # what the client has reserved is free for the next one


@case
def stop_of_others(tools):
    """What is not asked ends at once, and keeps its rows; a signal that was ignored stays so; a file that did not come is not there."""
    with measuring(tools, "allgather", "-g", "2", "--cores", "any", "-b", "4K", "-e", "1M", "-f", "256", "-D", "4", rows=1) as proc:
        proc.send_signal(signal.SIGINT)
        stopped(proc, signal.SIGINT, 1, False)
    with Server(tools, "--timeout", "60") as s:
        with measuring(tools, "put", s.addr, "--cores", CLIENT_CPU, "-s", "4K", "-D", "2", ignore=(signal.SIGINT,)) as proc:
            proc.send_signal(signal.SIGINT)
            ended(proc).must(OK)
        with measuring(tools, "get", s.addr, "--cores", CLIENT_CPU, "--link", "packet", "-D", "60", "--timeout", "60") as proc:
            # Beside it, one that never gets its turn.
            s.proc.send_signal(signal.SIGSTOP)
            proc.send_signal(signal.SIGTERM)
            proc.send_signal(signal.SIGTERM)
            ended(proc, 30)
            s.proc.send_signal(signal.SIGCONT)
        with tempfile.TemporaryDirectory() as tmp:
            fifo = pathlib.Path(tmp, "fifo")
            os.mkfifo(fifo)
            reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
            with measuring(tools, "get", s.addr, "--cores", CLIENT_CPU, "--file", fifo, "-s", "32M") as proc:
                proc.send_signal(signal.SIGINT)
                ran = ended(proc, 30).must(128 + signal.SIGINT)
                expect(json.loads(proc.folder.joinpath("j").read_text())["results"] == [], ran)
            os.close(reader)


# --- strangers --------------------------------------------------------------------------------------------

def unix_names(pid):
    """Abstract Unix sockets that process @pid listens at."""
    inodes = set()
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            match = re.match(r"socket:\[(\d+)\]", os.readlink(fd))
        except OSError:
            continue
        if match:
            inodes.add(match.group(1))
    names = []
    for line in pathlib.Path("/proc/net/unix").read_text().splitlines()[1:]:
        parts = line.split()
        if len(parts) == 8 and parts[6] in inodes and parts[7].startswith("@"):
            names.append(parts[7][1:])
    return names


def babble_at(family, address, data, linger=0.05):
    with socket.socket(family) as sock:
        sock.settimeout(2)
        try:
            sock.connect(address)
            sock.sendall(data)
            time.sleep(linger)
        except OSError:
            pass


@case
def stranger_control_socket(tools):
    rng = random.Random(7)
    with Server(tools) as s:
        for size in (0, 1, 3, 4, 8, 100, 4096, 100000):
            babble_at(socket.AF_INET, ("127.0.0.1", s.port), rng.randbytes(size))
        for first in (0, 1, 0xffffffff, 64):
            babble_at(socket.AF_INET, ("127.0.0.1", s.port), struct.pack("<I", first) + rng.randbytes(60))
            babble_at(socket.AF_INET, ("127.0.0.1", s.port), struct.pack("<II", first, HELLO_MAGIC) + rng.randbytes(60))
        expect(s.stat(tools, "ctl_bad") > 0, "nothing was counted")
        tools.perf("put", s.addr, "-s", "64K", "-n", "20").clean()


@case
def stranger_unix_sockets(tools):
    rng = random.Random(8)
    with Server(tools) as s:
        names = unix_names(s.proc.pid)
        expect(len(names) >= 2, f"no Unix sockets of gxd found: {names}")
        for name in names:
            for size in (0, 1, 16, 17, 300, 70000):
                babble_at(socket.AF_UNIX, "\0" + name, rng.randbytes(size), 0.02)
        tools.perf("put", s.addr, "-s", "64K", "-n", "20").clean()


@case
def stranger_data_port(tools):
    """Datagrams of anybody at the ports of a connection under way."""
    rng = random.Random(9)
    with Server(tools, "--port", "udp") as s:
        proc = under_load(tools, s, "-D", "3", "-c")
        inodes = {m.group(1) for fd in pathlib.Path(f"/proc/{s.proc.pid}/fd").iterdir()
                  if (m := re.match(r"socket:\[(\d+)\]", os.readlink(fd)))}
        ports = [int(p[1].split(":")[1], 16) for p in
                 (line.split() for line in pathlib.Path("/proc/net/udp").read_text().splitlines()[1:]) if p[9] in inodes]
        expect(ports, "gxd has no UDP port")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for i in range(2000):
                sock.sendto(rng.randbytes(i % 1400), ("127.0.0.1", ports[i % len(ports)]))
        ended(proc).must(OK)
        # Most are dropped by the kernel, which tells with the next packet that is not.
        expect(sum(s.stat(tools, name) for name in ("rx_bad", "rx_stray", "rx_crc", "rx_nobuf")) > 0, "nothing was counted")


@case
def stranger_services(tools):
    """A server that gets requests which make no sense answers or drops them: see gxd_request.c. Through the client's own
    options only what the client lets through can be tried; this is what it does let through."""
    with Server(tools, mem="kv=host:4K") as s:
        tools.gxperf("put", s.addr, "-s", "4097").must(FAILED, "too small")
        tools.gxperf("put", s.addr, "-s", "1", "--offset", "4096").must(FAILED, "too small")
        tools.perf("put", s.addr, "-s", "1", "--offset", "4095", "-n", "10").clean()


# --- GPUs of one process ------------------------------------------------------------------------------------

def on_gpus(tools, command, *args, gpus=4, libs=True, **env):
    """gxperf with that many fake GPUs, and with the fake NCCL and cuBLAS where @libs says so. None: they are not built."""
    tools = tools.with_gpus(gpus, **env)
    if not tools:
        return None
    lib = ["--lib-path", tools.fakes / "fake" if libs else "/nonexistent"] if command in ("compare", "overlap") else []
    short = ["--seconds", "0.005"] if command != "ipc" else []
    return tools.run(tools.gxperf_path, command, *args, *lib, *short, "--format", "json")


@case
def gpus_missing(tools):
    if pathlib.Path("/dev/nvidiactl").exists():
        return
    for command in ("p2p", "compare", "overlap", "ipc"):
        ran = tools.run(tools.gxperf_path, command).must(FAILED)
        expect("driver" in ran.err or "built without nvcc" in ran.err, "no reason in:", ran)


@case
def gpus_usage(tools):
    for command, args, words in (
            ("p2p", ["--pattern", "ring"], ["ring"]),
            ("p2p", ["--pattern", "alltoall"], ["--pattern", "pingpong"]),
            ("p2p", ["--sizes", "4K:1K"], ["4K:1K"]),
            ("p2p", ["--sizes", "100"], ["100", "multiple of 16"]),
            ("compare", ["--gpus", "1"], ["1"]),
            ("compare", ["--rounds", "0"], ["0"]),
            ("compare", ["--comm", "nccl,ucx"], ["'ucx'", "nccl-gx"]),
            ("compare", ["--comm", "nccl", "--ops", "all_reduce,gather"], ["'gather'", "send_recv"]),
            ("compare", ["--comm", "nccl", "--gpus", "4"], ["--gpus 1 or 2", "4"]),
            ("compare", ["--comm", ""], ["--comm: ''", "nccl-gx"]),
            ("compare", ["--comm", ","], ["--comm: ''", "nccl-gx"]),
            ("compare", ["--comm", "nccl,"], ["--comm: ''", "nccl-gx"]),
            ("compare", ["--comm", "nccl,,ucx"], ["--comm: ''", "nccl-gx"]),
            ("compare", ["--comm", "nccl", "--ops", ""], ["--ops: ''", "send_recv"]),
            ("compare", ["--comm", "nccl", "--ops", ",broadcast"], ["--ops: ''", "send_recv"]),
            ("compare", ["--comm", "nccl", "--sizes", "12"], ["12", "multiple of 8"]),
            ("compare", ["--comm", "nccl", "--ways", "gx"], ["--comm", "--ways"]),
            ("compare", ["--ops", "broadcast"], ["--ops", "--comm"]),
            ("compare", ["--as-rank", "nccl:2"], ["--as-rank"]),
            ("overlap", ["--grid", "4x"], ["4x"]),
            ("overlap", ["--load", "sort"], ["sort"]),
            ("overlap", ["--rate", "fast"], ["fast"]),
            ("overlap", ["--launch", "3M"], ["3M"]),
            ("ipc", ["--kind", "dmabuf"], ["dmabuf"]),
            ("ipc", ["--sizes", "12"], ["12", "multiple of 8"]),
            ("overlap", ["--gpus", "1", "--pattern", "both"], ["both", "two"]),
    ):
        tools.run(tools.gxperf_path, command, *args).must(USAGE, *words)


@case
def gpus_p2p(tools):
    ran = on_gpus(tools, "p2p", "--sizes", "4K,64K", gpus=2)
    if not ran:
        return
    rows = ran.must(OK).doc["results"]
    expect([(r["op"], r["mode"]) for r in rows[:7]] == [
        ("write", "queued"), ("write", "lone"), ("read", "queued"), ("read", "lone"), ("both", "queued"), ("both", "lone"),
        ("pingpong", "pingpong")] and len(rows) == 14, ran)
    for r in rows:
        expect(r["wrong"] == 0 and r["checked_b"] >= r["size_b"] and r["GB_s"] > 0 and r["us"] > 0, r)
    on_gpus(tools, "p2p", "--sizes", "4K", gpus=1).must(FAILED, "GPU 1 of 2")


@case
def gpus_compare(tools):
    ran = on_gpus(tools, "compare", "--sizes", "64K", "--rounds", "2",
                    *sum((["--pattern", p] for p in ("write", "read", "both", "allgather", "alltoall")), []))
    if not ran:
        return
    rows = ran.must(OK).doc["results"]
    expect([(r["pattern"], r["op"]) for r in rows] == [
        (p, w) for p in ("write", "read", "both", "allgather", "alltoall") for w in ("gx", "peer", "nccl", "nccl-zero")
        if not (w == "nccl" and p == "read") and not (w == "nccl-zero" and not p.startswith("all"))], ran)
    for r in rows:
        expect(r["wrong"] == 0 and r["checked_b"] > 0 and r["ratio"] > 0 and r["lone_ratio"] > 0, r)
        expect(r["op"] != "gx" or r["ratio"] == r["lone_ratio"] == 1, r)
    args = ["--sizes", "64K", "--rounds", "1"]
    ran = on_gpus(tools, "compare", *args, GX_FAKE_NCCL_LAZY="1").must(WRONG)
    expect({r["op"]: r["wrong"] > 0 for r in ran.doc["results"]} == {"gx": False, "peer": False, "nccl": True}, ran)
    on_gpus(tools, "compare", *args, GX_FAKE_NCCL_OLD="1").must(FAILED, "too old", "2.28")
    on_gpus(tools, "compare", *args, "--ways", "gx,nccl", libs=False).must(FAILED, "nccl, open")
    on_gpus(tools, "compare", *args, "--ways", "gx,peer", libs=False).must(OK)
    on_gpus(tools, "compare", *args, "--ways", "ucx").must(USAGE, "ucx", "nccl-zero")
    on_gpus(tools, "compare", *args, "--ways", "nccl-zero").must(USAGE, "write")
    on_gpus(tools, "compare", *args, gpus=1).must(FAILED, "two GPUs")


@case
def gpus_compare_processes(tools):
    """NCCL between processes: the fake one moves bytes through memory that they share."""
    args = ["--comm", "nccl,nccl-gx", "--sizes", "8,64K", "--rounds", "2"]
    ran = on_gpus(tools, "compare", *args, gpus=2)
    if not ran:
        return
    ops = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
    rows = ran.must(OK).doc["results"]
    expect([(r["operation"], r["size_b"], r["op"]) for r in rows] == [
        (op, max(size, 16) if op in ops[1:4] else size, way) for op in ops for size in (8, 65536) for way in ("nccl", "nccl-gx")], ran)
    for r in rows:
        expect(r["wrong"] == 0 and r["checked_b"] > 0 and r["us"] > 0 and r["ratio"] > 0 and r["cores_0"] >= 0, r)
        expect(r["op"] != "nccl" or r["ratio"] == 1, r)
    expect("NET/Socket" in ran.doc["ranks"]["nccl:0"] and "NET/gx" in ran.doc["ranks"]["nccl-gx:1"], ran.doc["ranks"])
    args = ["--comm", "nccl", "--sizes", "64K", "--rounds", "1", "--ops", "send_recv,all_reduce"]
    ran = on_gpus(tools, "compare", *args, gpus=2, GX_FAKE_NCCL_LAZY="1").must(WRONG)
    expect(len(ran.doc["results"]) == 2 and all(r["wrong"] > 0 for r in ran.doc["results"]), ran)
    # Of 32 MiB 4 operations fit in no round, so 4 are timed. Before them: 2 at the opening, 7 of the probe, 2 of the warm-up.
    for stale in (11, 15):
        ran = on_gpus(tools, "compare", "--comm", "nccl", "--sizes", "32M", "--rounds", "1", "--ops", "all_reduce", gpus=2,
                      GX_FAKE_NCCL_STALE=str(stale)).must(WRONG)
        row = ran.doc["results"][0]
        expect(row["count"] == 4 and row["wrong"] == (4 if stale == 11 else 2) * 2**25, ran)
    on_gpus(tools, "compare", *args, gpus=2, GX_FAKE_NCCL_OLD="1").must(FAILED, "nccl, rank 0: ", "too old", "2.28", "status 1")
    with tempfile.TemporaryDirectory() as folder: # the host may have an NCCL, which must not meet the fake driver
        (pathlib.Path(folder) / "libnccl.so.2").touch()
        on_gpus(tools, "compare", *args, gpus=2, libs=False, LD_LIBRARY_PATH=f"{folder}:{tools.fakes}").must(
            FAILED, "nccl, rank 0: ", "no NCCL")
    hang = {"gpus": 2, "GX_FAKE_NCCL_HANG": "1"}
    on_gpus(tools, "compare", *args, "--limit", "6", **hang).must(
        LOST, "operations have not ended in 3.0 s", "NCCL WARN this operation never ends", "ended with status 4")
    start = time.monotonic()
    on_gpus(tools, "compare", *args, **hang, GX_FAKE_NCCL_ASYNC="6").must(FAILED, "error 6", "ended with status 1")
    expect(time.monotonic() - start < 30, "NCCL's error comes late")
    ran = on_gpus(tools, "compare", *args, gpus=2, GX_FAKE_NCCL_ABORT="1").must(LOST, "was ended by signal 6")
    expect(len(ran.doc["results"]) == 2, ran)
    on_gpus(tools, "compare", *args, gpus=2, GX_FAKE_NCCL_VIA="P2P/IPC").must(FAILED, "P2P/IPC, not NET/Socket")
    on_gpus(tools, "compare", *args, gpus=1, CUDA_MPS_PIPE_DIRECTORY="/nonexistent").must(FAILED, "nvidia-cuda-mps-control -d")
    with tempfile.TemporaryDirectory() as pipes:
        control, mps = pathlib.Path(pipes, "control"), {"gpus": 1, "CUDA_MPS_PIPE_DIRECTORY": pipes}
        control.touch()
        on_gpus(tools, "compare", *args, **mps).must(FAILED, "nvidia-cuda-mps-control -d")
        control.unlink()
        os.mkfifo(control)
        on_gpus(tools, "compare", *args, **mps).must(FAILED, "nvidia-cuda-mps-control -d")
        reader = os.open(control, os.O_RDONLY | os.O_NONBLOCK)
        try:
            on_gpus(tools, "compare", *args, **mps).must(OK)
        finally:
            os.close(reader)
        control.unlink()
        for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
            with socket.socket(socket.AF_UNIX, kind) as heard:
                heard.bind(str(control))
                heard.listen(1)
                on_gpus(tools, "compare", *args, **mps).must(OK)
            on_gpus(tools, "compare", *args, **mps).must(FAILED, "nvidia-cuda-mps-control -d")
            control.unlink()
    on_gpus(tools, "compare", *args, "--gpus", "2", gpus=1).must(FAILED, "there is 1")


@case
def gpus_compare_rank_killed(tools):
    tools = tools.with_gpus(2)
    if not tools:
        return
    args = ["--comm", "nccl", "--sizes", "64K", "--rounds", "99", "--seconds", "1", "--lib-path", str(tools.fakes / "fake")]
    proc = subprocess.Popen([tools.gxperf_path, "compare", *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, env=tools.env)
    end, ranks = time.monotonic() + START_S, {}
    while len(ranks) < 2 and time.monotonic() < end and proc.poll() is None:
        for pid in pathlib.Path(f"/proc/{proc.pid}/task/{proc.pid}/children").read_text().split():
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if "--as-rank" in words:
                ranks[words[words.index("--as-rank") + 1]] = int(pid)
        time.sleep(0.05)
    time.sleep(1)
    if "nccl:1" in ranks and proc.poll() is None:
        os.kill(ranks["nccl:1"], signal.SIGKILL)
    out, err = proc.communicate(timeout=CALL_S)
    Ran(proc, out, err).must(LOST, "nccl, rank 1 was ended by signal 9")
    expect(not pathlib.Path(f"/proc/{ranks['nccl:0']}").exists(), "rank 0 still runs")


@case
def gpus_ipc(tools):
    """Two processes; the fake driver does not do cudaIpc between them."""
    ran = on_gpus(tools, "ipc", "--kind", "fd", "--sizes", "8,4M", "--rounds", "3")
    if not ran:
        return
    rows = ran.must(OK).doc["results"]
    expect([(r["op"], r["size_b"], r["checked_b"], r["wrong"]) for r in rows] ==
           [("fd", 8, 24, 0), ("fd", 4 << 20, 3 * 65536, 0)], ran)
    for r in rows:
        expect(all(r[k] > 0 for k in ("export_us", "open_us", "use_us", "use_again_us", "close_us", "reopen_us")), r)
    on_gpus(tools, "ipc", "--kind", "cudaipc", "--sizes", "8").must(FAILED, "cudaipc", "cuIpcOpenMemHandle")
    on_gpus(tools, "ipc", "--owner", "9").must(FAILED, "owner of the memory")


def ipc_connections(ran, kind, sizes):
    """The second connection to a process maps nothing."""
    rows = ran.must(OK).doc["results"]
    expect([(r["op"], r["size_b"]) for r in rows] == [(kind, n) for n in sizes], ran)
    for r in rows:
        expect(r["wrong"] == 0 and r["checked_b"] == 2 * min(r["size_b"], 65536), r)
        expect(r["again_made"] == 0 and r["again_found"] == 1, r)
        expect(all(r[k] > 0 for k in ("connect_us", "connect_again_us", "put_us", "put_again_us")), r)


@case
def ipc_of_host_memory(tools):
    ran = tools.run(tools.gxperf_path, "ipc", "--kind", "host", "--sizes", "8,4M", "--rounds", "2", "--format", "json")
    ipc_connections(ran, "host", [8, 4 << 20])


@case
def ipc_of_gpu_memory(tools):
    ran = on_gpus(tools, "ipc", "--kind", "link", "--sizes", "8,4M", "--rounds", "2")
    if ran:
        ipc_connections(ran, "link", [8, 4 << 20])
    ran = on_gpus(tools, "ipc", "--kind", "link", "--owner", "9")
    if ran:
        ran.must(FAILED, "owner of the memory", "cuda:9")


@case
def gpus_overlap(tools):
    small = ["--n", "64", "--grid", "1x1", "--sizes", "64K", "--rounds", "1"]
    ran = on_gpus(tools, "overlap", *small, "--comm", "gx,nccl", "--pattern", "both")
    if not ran:
        return
    rows = ran.must(OK).doc["results"]
    expect([(r["op"], r["load"]) for r in rows] == [("gx", "1x1"), ("nccl", "1x1")], ran)
    for r in rows:
        expect(r["wrong"] == 0 and r["checked_b"] > 0, r)
        expect(abs(r["slowdown"] * max(r["comp_us"], r["comm_us"]) - r["both_us"]) < r["both_us"] * 0.01, r)
        expect(all(r[k] > 0 for k in ("comp_us", "comm_us", "keep_comp", "keep_comm", "GB_s", "TFLOP_s")), r)
        expect(r["sms"] == (0 if r["op"] == "gx" else None) and r["blocks"] == 1, r)
    ran = on_gpus(tools, "overlap", *small[:4], "--comm", "unpack,unpack-resident", "--sms", "4", "--rate", "1", "--rounds", "1")
    expect([(r["op"], r["sms"], r["wrong"]) for r in ran.must(OK).doc["results"]] ==
           [("unpack", 4, 0), ("unpack-resident", 4, 0)], ran)
    expect(all(r["checked_b"] >= r["size_b"] and r["GB_s"] > 0 for r in ran.doc["results"]), ran)
    attention = ["--load", "attention", "--batch", "1", "--heads", "1", "--tokens", "512", "--head-dim", "8", *small[4:]]
    on_gpus(tools, "overlap", *small, "--pattern", "allgather", "--comm", "nccl-zero", gpus=2).must(OK)
    on_gpus(tools, "overlap", *attention, GX_FAKE_CUBLAS_LAZY="1").must(WRONG, "the load is wrong")
    on_gpus(tools, "overlap", "--n", "128", "--grid", "3x3").must(USAGE, "2 x 2 tiles")
    on_gpus(tools, "overlap", *small, "--comm", "rdma").must(USAGE, "rdma", "nccl-zero")


# --- a load, and another gxperf beside it --------------------------------------------------------------------

def overlap(tools, *args, beside=(), **kw):
    """gxperf overlap of a small load on the client's CPU; @beside: the command."""
    return tools.run(tools.gxperf_path, "overlap", "--load", "cpu-gemm", "--n", "64", "--cores", CLIENT_CPU, "--rounds", "1",
                     "--seconds", "0.02", "--format", "json", *args, *(("--", *beside) if beside else ()), **kw)


def overlap_row(ran, op):
    row, = ran.clean()
    expect(row["op"] == op and row["pattern"] == "process", ran)
    expect(all(row[k] > 0 for k in ("comp_us", "comm_us", "both_us", "keep_comp", "keep_comm", "GB_s", "GB_s_beside", "TFLOP_s")), ran)
    if row["rounds"] == 1: # of several, each figure is a median of its own
        expect(abs(row["slowdown"] * max(row["comp_us"], row["comm_us"]) - row["both_us"]) < row["both_us"] * 0.01, ran)
    return row


@case
def overlap_commands(tools):
    with Server(tools) as s:
        for link in LINKS:
            for command in ("put", "get", "send", "lat"):
                size = 4096 if command == "lat" else 64 << 10
                ran = overlap(tools, beside=(command, s.addr, "--mem", "kv", "-s", size, "--link", link, "--cores", CLIENT_CPU))
                row = overlap_row(ran, command)
                expect(row["size_b"] == size and row["link"] == ("packet" if (command, link) == ("send", "local") else link) and row["sms"] == 0, ran)
        for more in (("-s", "64", "--same-place"), ("-s", "1M", "--stripe"), ("-s", "2M", "-q", "2")):
            overlap_row(overlap(tools, beside=("put", s.addr, "--cores", CLIENT_CPU, *more)), "put")
        ran = overlap(tools, beside=("lat", s.addr, "--poll", "memory", "--cores", CLIENT_CPU))
        overlap_row(ran, "lat")
        ran = overlap(tools, "--load", "cpu-triad", "--n", "4096", beside=("put", s.addr, "-s", "4K"))
        expect(overlap_row(ran, "put")["load"] == "cpu-triad", ran)
        ran = overlap(tools, beside=("put", s.addr, "-s", "4K", "--no-check", "--cores", CLIENT_CPU)).must(OK)
        expect(ran.doc["results"][0]["wrong"] is None, ran)
    for command in ("allgather", "alltoall"):
        row = overlap_row(overlap(tools, beside=(command, "-g", "2", "-s", "64K", "--cores", SERVER_CPU)), command)
        expect(row["size_b"] == 64 << 10, row)


@case
def overlap_refuses(tools):
    for args, beside, words in (((), ("p2p",), ["'p2p'", "allgather"]),
                                (("--load", "cpu-sort"), (), ["--load", "cpu-sort"]),
                                (("--cores", "4000"), ("put", "127.0.0.1:1"), ["--cores", "4000"]),
                                (("--n", "100"), ("put", "127.0.0.1:1"), ["--n", "64", "100"]),
                                ((), ("put", "127.0.0.1:1", "-n", "5"), ["put: ", "-n"]),
                                ((), ("put", "127.0.0.1:1", "-D", "5"), ["put: ", "-D"]),
                                ((), ("put", "127.0.0.1:1", "-b", "1"), ["put: ", "-b"]),
                                ((), ("put",), ["put: ", "which server", "status 2"]),
                                ((), ("allgather", "--rank", "0", "--ranks", "1"), ["allgather: ", "-g"])):
        overlap(tools, *args, beside=beside).must(USAGE, *words)
    overlap(tools, beside=("put", "127.0.0.1:1")).must(FAILED, "put: nothing listens", "status 1")
    tools.run(tools.gxperf_path, "put", "127.0.0.1:1", "--throttle", "0").must(USAGE, "--throttle", "overlap")


@case
def overlap_wrong_data(tools):
    """What the command finds wrong is wrong, and the row still there."""
    tools = tools.with_gpus(1)
    if not tools:
        return
    with Server(tools, "--unpack", "none", mem="g=cuda:0:16M") as s:
        ran = overlap(tools, beside=("put", s.addr, "--link", "packet", "-s", "64K"))
        ran.must(WRONG, "put: ", "wrong bytes")
        expect(ran.doc["results"][0]["wrong"] > 0, ran)


def overlap_begun(tools, s):
    """gxperf overlap and its put, connected to @s."""
    proc = subprocess.Popen([tools.gxperf_path, "overlap", "--load", "cpu-gemm", "--n", "64", "--cores", CLIENT_CPU, "--rounds", "99",
                             "--seconds", "0.2", "--", "put", s.addr, "-s", "64K", "--cores", CLIENT_CPU], stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=tools.env)
    end = time.monotonic() + CALL_S
    while not s.stat(tools, "peers_up") and proc.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.5)
    return proc


@case
def overlap_server_killed(tools):
    with Server(tools) as s:
        proc = overlap_begun(tools, s)
        s.proc.kill()
        out, err = proc.communicate(timeout=CALL_S)
        Ran(proc, out, err).must(LOST, "put: ", "status 4")


@case
def overlap_killed(tools):
    """The command does not stay behind."""
    with Server(tools) as s:
        proc = overlap_begun(tools, s)
        children = pathlib.Path(f"/proc/{proc.pid}/task/{proc.pid}/children").read_text().split()
        expect(len(children) == 1, children)
        proc.kill()
        proc.communicate(timeout=CALL_S)
        end = time.monotonic() + 10
        try:
            while ") Z" not in pathlib.Path(f"/proc/{children[0]}/stat").read_text() and time.monotonic() < end:
                time.sleep(0.05)
        except (FileNotFoundError, ProcessLookupError):
            pass
        expect(time.monotonic() < end, "the command still runs")


# --- pictures -----------------------------------------------------------------------------------------------

PLOT_DOC = {"command": "h2d", "results": [{"op": op, "size_b": size, "GB_s": size / 1024 * f}
                                           for op, f in (("a", 1), ("b", 2)) for size in (4096, 65536, 1 << 20)]}


def plot(tools, *args, path=None, **kw):
    """gxperf plot, with another PATH."""
    return tools.run("/usr/bin/env", f"PATH={path or os.environ['PATH']}", tools.gxperf_path, "plot", *args, **kw)


@case
def plot_refuses(tools):
    with tempfile.TemporaryDirectory() as tmp:
        doc, other, none = (pathlib.Path(tmp, n) for n in ("d.json", "other.json", "none"))
        doc.write_text(json.dumps(PLOT_DOC))
        other.write_text('{"lines": []}')
        none.mkdir()
        plot(tools).must(USAGE, "which file")
        plot(tools, "/nonexistent.json").must(FAILED, "/nonexistent.json", "No such file")
        plot(tools, tmp).must(FAILED, tmp)
        plot(tools, other).must(FAILED, str(other), "results", "gxperf -J", "tools/bench/bench.py")
        plot(tools, doc, "--y", "shoe").must(FAILED, "shoe")
        plot(tools, doc, "--rival", "c").must(FAILED, "nothing to draw", "c")
        plot(tools, doc, path=none).must(FAILED, "gnuplot", "install")
        pathlib.Path(tmp, "d.png").write_text("mine")
        plot(tools, doc).must(FAILED, "d.png", "--force")
        expect(sorted(os.listdir(tmp)) == ["d.json", "d.png", "none", "other.json"], os.listdir(tmp))


@case
def plot_gnuplot_that_fails(tools):
    """A gnuplot of ours: what it is told, and what is left when it fails or writes nothing."""
    with tempfile.TemporaryDirectory() as tmp:
        doc, exe, heard = (pathlib.Path(tmp, n) for n in ("d.json", "gnuplot", "heard"))
        doc.write_text(json.dumps(PLOT_DOC))
        for script, word in (("exit 3", "status 3"), ("cat >%s" % heard, "did not write")):
            exe.write_text(f"#!/bin/sh\n{script}\n")
            exe.chmod(0o755)
            plot(tools, doc, path=f"{tmp}:{os.environ['PATH']}").must(FAILED, word)
            expect(not [n for n in os.listdir(tmp) if "svg" in n or "png" in n], os.listdir(tmp))
        expect("4096 4\n65536 64\n" in heard.read_text(), heard.read_text())


def bench_doc(unit, rows, rival=None):
    """As tools/bench/bench.py writes it: rows by name, and the ratios of the others to rival's."""
    docs = [{"name": n, "unit": unit, "median": v, "values": [v, v], "error": None} for n, v in rows]
    ratios = [{"gx": n, "rival": rival, "median": v, "values": [v, v + 1]} for n, v in rows if n.startswith("gx ")]
    return {"schema_version": 1, "command": ["tools/bench/bench.py"], "cpu": "x", "rounds": 2, "rows": docs, "ratios": ratios if rival else []}


@case
def plot_any_results(tools):
    """Documents of the benchmarks, of others, and lines of --format jsonl: what gnuplot is told."""
    gx, rival = "gx put {}, local, one place, verified", "UCX ucp_put_bw {}, shared memory"
    docs = {
        "put": bench_doc("GB/s", [(n.format(size), i + 1) for n in (gx, rival) for i, size in enumerate(("4K", "64K"))], rival.format("4K")),
        "lat": bench_doc("us", [("gx lat 64, shm, one way, p50", 0.6), ("UCX tag_lat 64, shared memory, p50", 0.5)]),
        "gpu": {"rows": [{"name": f"put to GPU, unpack kernel, {n} cores a side", "GB_s": 6 * n, "values": [6 * n]} for n in (1, 2)]},
        "modes": {"results": [{"op": "put, unpack none", "size_b": 4096, "cores_a_side": n, "median_GB_s": 10.5 * n} for n in (1, 6)]},
    }
    with tempfile.TemporaryDirectory() as tmp:
        exe, heard = (pathlib.Path(tmp, n) for n in ("gnuplot", "heard"))
        exe.write_text(f"#!/bin/sh\ncat >{heard}\n")
        exe.chmod(0o755)
        put, lat, gpu, modes = (pathlib.Path(tmp, f"{n}.json") for n in docs)
        lines = pathlib.Path(tmp, "lines")
        for name, doc in docs.items():
            pathlib.Path(tmp, f"{name}.json").write_text(json.dumps(doc))
        lines.write_text("".join(json.dumps({"command": "h2d", **r}) + "\n" for r in PLOT_DOC["results"]))
        for args, words in (((put,), ("'gx put, local, one place, verified'", "\n4096 1\n65536 2\n")),
                            ((put, "--rival", "UCX ucp_put_bw, shared memory"), ("ratio to UCX ucp_put_bw", "\n4096 1\n")),
                            ((lat,), ("microseconds, median",)),
                            ((put, "--y", "ratio"), ("verified / ", "4096 1\n", "4096 2\n")),
                            ((gpu, "--x", "cores"), ("cores a side", "\n2 12\n")),
                            ((modes, "--x", "cores_a_side", "--y", "median_GB_s"), ("put, unpack none", "\n6 63\n")),
                            ((lines,), ("4096 4\n65536 64\n",))):
            plot(tools, *args, "--out", f"{tmp}/p", path=f"{tmp}:{os.environ['PATH']}").must(FAILED, "did not write")
            text = heard.read_text()
            expect(all(w in text for w in words), args, text)
        lines.write_text(lines.read_text() + "[]\n")
        plot(tools, lines).must(FAILED, str(lines))


@case
def plot_pictures(tools):
    if not shutil.which("gnuplot"):
        print("note: gnuplot is not installed: no picture was drawn")
        return
    with tempfile.TemporaryDirectory() as tmp:
        files = [pathlib.Path(tmp, n) for n in ("one.json", "two.json")]
        for f in files:
            f.write_text(json.dumps(PLOT_DOC))
        ran = plot(tools, *files, "--title", "it's $x").must(OK)
        expect(ran.out.split() == [f"{tmp}/one.svg", f"{tmp}/one.png"], ran)
        svg, png = (pathlib.Path(tmp, f"one.{n}").read_bytes() for n in ("svg", "png"))
        expect(b"<svg" in svg and b"two: b" in svg and b"it's $x" in svg.replace(b"&#39;", b"'"), svg[:2000])
        expect(png.startswith(b"\x89PNG"), png[:20])
        plot(tools, *files, "--title", "it's $x", "--out", f"{tmp}/again").must(OK)
        expect(pathlib.Path(tmp, "again.svg").read_bytes() == svg, "the same documents give another svg")
        expect(pathlib.Path(tmp, "again.png").read_bytes() == png, "the same documents give another png")
        plot(tools, *files, "--out", f"{tmp}/again", "--rival", "a", "--force").must(OK)
        expect(pathlib.Path(tmp, "again.svg").read_bytes() != svg)
        expect(len(os.listdir(tmp)) == 6, os.listdir(tmp))


@case
def unpack_by_the_cpu(tools):
    """Says where its pool is, and compares nothing that was not copied."""
    ran = tools.run(tools.gxperf_path, "unpack", "--device", "-1", "--sizes", "4096", "--total", "4M", "-n", "1")
    if ran.rc and "built without nvcc" in ran.err:
        return
    ran.must(OK)
    expect("in a pool in host memory" in ran.out and "none copies nothing" in ran.out, ran)
    none, = [line for line in ran.out.splitlines() if re.match(r" +4096 ", line)][-1:]
    expect("of the limit" not in none and "of the limit" in ran.out, ran)


# --- memory of GPUs, with a driver that is none ------------------------------------------------------------

def gpu_moves(tools, link, *args):
    """Every way between memory of GPUs and of hosts, at both ends."""
    with Server(tools, "--mem", "h=host:64M", mem="g=cuda:1:64M") as s:
        for mem, local in (("g", "cuda:0"), ("h", "cuda:0"), ("g", "host")):
            for command in ("put", "get"):
                how = (command, s.addr, "--mem", mem, "--local-mem", local, "--link", link, *args)
                ran = tools.perf(*how, "-b", "1", "-e", "4M", "-f", "64", "-n", "10")
                ran.clean()
                expect(ran.doc["path"]["link"] == link, ran.doc["path"])
                tools.perf(*how, "-s", "4K", "-w", "100", "-D", "0.3", "--depth", "16").clean()


@case
def gpu_packets(tools):
    tools = tools.with_gpus()
    if tools:
        gpu_moves(tools, "packet", "--port", "shm")


@case
def gpu_tcp(tools):
    """By pinned memory at both ends, over sockets; sends and echoes, too."""
    tools = tools.with_gpus()
    if not tools:
        return
    gpu_moves(tools, "tcp", "--sockets", "3")
    with Server(tools, "--mem", "h=host:16M", "--unpack", "kernel", "--sms", "4", mem="g=cuda:1:16M") as s:
        how = ("--mem", "g", "--link", "tcp", "-s", "1000003", "-n", "20")
        for command, more in (("put", ()), ("send", ()), ("send", ("--local-mem", "cuda:0"))):
            ran = tools.perf(command, s.addr, *how, *more)
            row, = ran.clean()
            path = ran.doc["path"]
            expect((path["link"], path["unpack"], path["bounce"], row["sms"]) == ("tcp", "kernel", "host", 4), path, row)
        expect(s.stat(tools, "descs") > 0, "nothing was unpacked")
        tools.perf("lat", s.addr, "--mem", "g", "--link", "tcp", "-s", "4K", "-n", "300").clean()
        path = clean_path(tools.perf("get", s.addr, *how))
        expect((path["unpack"], path["bounce"]) == ("direct", None), path)
        path = clean_path(tools.perf("get", s.addr, *how, "--local-mem", "cuda:0", "--unpack", "resident"))
        expect((path["unpack"], path["bounce"]) == ("resident", "host"), path)
        tools.gxperf("put", s.addr, *how, "--unpack", "resident").must(USAGE, "the receiving end decides")
        tools.gxperf("put", s.addr, "--mem", "h", "--link", "tcp", "--unpack", "kernel").must(FAILED, "nothing is unpacked")
    for command in ("allgather", "alltoall"):
        path = clean_path(tools.perf(command, "-g", "2", "-s", "100003", "-n", "20", "--cores", "any", "--mem", "cuda",
                                     "--link", "tcp", "--unpack", "kernel"))
        expect((path["link"], path["unpack"]) == ("tcp", "kernel"), path)
    with Server(tools, "--unpack", "none", mem="g=cuda:0:16M") as s:
        tools.perf("put", s.addr, "--link", "tcp", "-s", "64K", "-n", "5").must(WRONG)
    # A pool in GPU memory is for packets: a socket is read into host memory all the same.
    with Server(tools, "--bounce", "gpu:1", mem="g=cuda:0:16M") as s:
        path = clean_path(tools.perf("put", s.addr, "--link", "tcp", "-s", "1M", "-n", "10"))
        expect(path["bounce"] == "host", path)


@case
def gpu_tcp_server_killed(tools):
    """In mid-transfer, at either end: an error in bounded time, and others go on."""
    tools = tools.with_gpus()
    if not tools:
        return
    with Server(tools, mem="g=cuda:1:64M") as s:
        proc = under_load(tools, s, "--local-mem", "cuda:0", "-D", "30", link="tcp")
        s.proc.kill()
        ended(proc).must(LOST)
    with Server(tools, mem="g=cuda:1:64M") as s:
        proc = under_load(tools, s, "--local-mem", "cuda:0", "-D", "30", link="tcp")
        proc.kill()
        proc.communicate()
        tools.perf("put", s.addr, "--link", "tcp", "-s", "1M", "-n", "20").clean()


@case
def gpu_local(tools):
    """Straight into the peer's memory, by copy engines: nothing goes by packets."""
    tools = tools.with_gpus()
    if not tools:
        return
    gpu_moves(tools, "local", "--gpu", "0")
    with Server(tools, mem="g=cuda:1:16M") as s:
        for engine in ("ce", "resident"):
            for size, depth in (("4K", 1), ("64K", 64), ("1M", 4)):
                tools.perf("put", s.addr, "--local-mem", "cuda:0", "--link", "local", "-s", size, "-n", "50",
                           "--depth", depth, "--engine", engine).clean()
        tools.gxperf("put", s.addr, "--local-mem", "cuda:0", "--engine", "cpu").must(USAGE, "--engine cpu", "ce")
        row, = tools.perf("put", s.addr, "--local-mem", "cuda:0", "-s", "3M", "-n", "20", "--engine", "kernel", "--sms", "4").clean()
        expect(row["sms"] == 4, row)
        tools.gxperf("put", s.addr, "--local-mem", "cuda:0", "--engine", "kernel", "--unpack", "d2d").must(
            USAGE, "kernel", "unpack mode d2d")
    ran = tools.gxperf("info").must(OK)
    for pair in ("host to cuda:1", "cuda:0 to cuda:0", "cuda:0 to cuda:1", "cuda:1 to cuda:0", "cuda:1 to host"):
        expect(f"{pair}: 4 KiB alone: copy engine" in ran.out, pair, ran)
    expect("share    no MPS: " in ran.out, ran)
    tools.env["GX_FAKE_CUDA_MPS"] = "1"
    expect("share    MPS: " in tools.gxperf("info").must(OK).out)


@case
def gpu_local_without_a_gpu(tools):
    """Who has opened none reaches the peer's by packets, and says so."""
    tools = tools.with_gpus()
    if not tools:
        return
    with Server(tools, mem="g=cuda:1:16M") as s:
        for link in ((), ("--link", "local")):
            for command in ("put", "get", "lat"):
                path = clean_path(tools.perf(command, s.addr, *link, "-s", "256K", "-n", "10"))
                expect((path["link"], path["bounce"], path["engine"]) == ("packet", "host", None), path)
                expect("by packets, beside link local" in path["why"] and "--gpu 1 " in path["why"], path)
        # It is told: so one may do it.
        path = clean_path(tools.perf("put", s.addr, "-s", "1M", "-n", "10", "--gpu", "1", "--require", "local"))
        expect((path["link"], path["unpack"], path["engine"]) == ("local", "direct", "auto"), path)
        expect("--gpu" not in path["why"] and "packets" not in path["why"], path)
        tools.gxperf("put", s.addr, "--require", "local").must(FAILED, "cuda:1", "--gpu 1")
        # The server's mode is what unpacks; sends take packets over any link, and are told nothing of GPUs.
        tools.gxperf("put", s.addr, "--unpack", "d2d").must(USAGE, "the receiving end decides")
        expect("--gpu" not in clean_path(tools.perf("send", s.addr, "-s", "1M", "-n", "10"))["why"])


@case
def bounce_without_gpus(tools):
    args = ("--listen", "127.0.0.1:0", "--mem", "kv=host:1M", "--bounce")
    tools.gxd(*args, "cuda:0").must(USAGE, "--bounce", "gpu:N")
    tools.gxd(*args, "gpu:x").must(USAGE, "--bounce", "gpu:N")
    if pathlib.Path("/dev/nvidiactl").exists():
        return
    tools.gxd(*args, "gpu").must(FAILED, "no bounce pool in GPU memory", "--bounce host")
    tools.gxperf("put", "127.0.0.1:1", "--bounce", "gpu").must(FAILED, "no bounce pool", "--bounce host")


@case
def bounce_ports_that_cannot(tools):
    tools = tools.with_gpus()
    if not tools:
        return
    args = ("--listen", "127.0.0.1:0", "--mem", "kv=host:1M", "--bounce", "gpu")
    tools.gxd(*args, "--port", "udp").must(FAILED, "port udp", "sockets cannot write to GPU memory", "--bounce host")
    tools.gxd(*args, "--unpack", "host").must(USAGE, "unpack host", "--bounce host")
    tools.gxd(*args[:-1], "gpu:7").must(FAILED, "cuda:7", "--bounce host")
    for driver in ("net_memif", "net_null"):
        ran = tools.gxd(*args, "--port", f"dpdk:{driver}").must(FAILED)
        expect("not built in" in ran.err or (driver in ran.err and "--bounce host" in ran.err), ran)
    tools.env["GX_FAKE_CUDA_NO_PEER"] = "1"
    tools.gxd(*args, "--mem", "g=cuda:1:1M").must(FAILED, "cuda:1", "no peer access")


@case
def bounce_gpu(tools):
    """Payload lands in the memory of the server's GPU, and the client's writes it there."""
    tools = tools.with_gpus()
    if not tools:
        return
    with Server(tools, "--bounce", "gpu:1", "--mem", "h=host:64M", mem="g=cuda:0:64M") as s:
        for mem, local in (("g", "cuda:0"), ("g", "cuda:1"), ("h", "cuda:0"), ("g", "host"), ("h", "host")):
            how = (s.addr, "--mem", mem, "--local-mem", local, "--port", "shm", "--gpu", "0")
            sweep = ("-b", "1", "-e", "4M", "-f", "64", "-n", "10")
            ran = tools.perf("put", *how, *sweep)
            ran.clean()
            expect(ran.doc["path"]["bounce"] == "cuda:1" and ran.doc["path"]["unpack"] == "auto", ran.doc["path"])
            expect(ran.doc["path"]["quantum"] == 32768, ran.doc["path"])
            expect(("MPS" in ran.err) == (local == "cuda:1"), ran.err)  # that GPU is open at both ends
            ran = tools.perf("get", *how, *sweep, "--bounce", "gpu:0")
            ran.clean()
            expect(ran.doc["path"]["bounce"] == "cuda:0" and ran.doc["path"]["quantum"] == 32768, ran.doc["path"])
        ran = tools.perf("get", s.addr, "--mem", "g", "--port", "shm", "--gpu", "0", "-s", "1M", "-n", "10")
        expect(ran.doc["path"]["bounce"] == "host" and ran.doc["path"]["quantum"] == 8192, ran.doc["path"])
        ran = tools.perf("put", s.addr, "--mem", "g", "--port", "shm", "--gpu", "0", "-s", "1M", "-n", "10",
                         "--quantum", "4K")
        expect(ran.doc["path"]["quantum"] == 4096, ran.doc["path"])
        expect(s.stat(tools, "tx_pushed") > 0, "no get was written by a GPU")
        how = ("put", s.addr, "--mem", "g", "--port", "shm", "--gpu", "0", "-s", "1000003", "-n", "10")
        tools.perf(*how, "--integrity", "crc32c").clean()
        tools.perf(*how, "--integrity", "crc32c", "--local-mem", "cuda:0").clean()
        tools.gxperf("put", s.addr, "--mem", "g", "--port", "shm", "-s", "1M").must(FAILED, "cuda:1", "--gpu N")
    for mode in ("kernel", "resident", "d2d"):
        with Server(tools, "--bounce", "gpu:1", "--unpack", mode, mem="g=cuda:0:64M") as s:
            how = ("put", s.addr, "--mem", "g", "--port", "shm", "--gpu", "0", "-s", "1000003", "-n", "10", "--unpack", mode)
            ran = tools.perf(*how)
            ran.clean()
            expect(ran.doc["path"]["unpack"] == mode, ran.doc["path"])
            if mode == "d2d":
                tools.gxperf(*how, "--integrity", "crc32c").must(FAILED, "does not check", "--unpack kernel")
    with Server(tools, mem="g=cuda:0:64M") as s:
        ran = tools.perf("put", s.addr, "--mem", "g", "--port", "shm", "-s", "1M", "-n", "10")
        ran.clean()
        expect(ran.doc["path"]["bounce"] == "host", ran.doc["path"])
        # A chunk is a quantum at least, also where it is staged.
        tools.perf("put", s.addr, "--mem", "g", "--port", "shm", "-s", "1M", "-n", "10", "--local-mem", "cuda:0", "--chunk",
                   "4K").clean()


@case
def gpu_unpack_modes(tools):
    """A server in each mode, which puts report, and gets in each mode of the client."""
    tools = tools.with_gpus()
    if not tools:
        return
    sweep = ("--link", "packet", "-b", "1", "-e", "1M", "-f", "32", "-n", "20")
    for mode in ("kernel", "resident", "d2d", "host"):
        with Server(tools, "--unpack", mode, "--sms", "4", mem="g=cuda:0:64M") as s:
            for how in (("put", s.addr), ("put", s.addr, "-q", "4", "--unpack", mode, "--sms", "4"),
                        ("get", s.addr, "--local-mem", "cuda:0", "--unpack", mode, "--sms", "4")):
                ran = tools.perf(*how, *sweep)
                expect([row["sms"] for row in ran.clean()] == [4] * 5, ran)
                expect(ran.doc["path"]["unpack"] == mode, ran.doc["path"])
            expect(f"unpack {mode} on " in tools.gxperf("info", s.addr).must(OK).out, "not told by info")
            tools.gxperf("put", s.addr, "--link", "packet", "--unpack", "auto").must(USAGE, "the receiving end decides", mode)
    with Server(tools, "--unpack", "none", mem="g=cuda:0:64M") as s:
        ran = tools.perf("put", s.addr, "--link", "packet", "-s", "1M", "-n", "5").must(WRONG)
        expect(ran.doc["results"][0]["wrong"] > 0 and ran.doc["path"]["unpack"] == "none", ran.doc)


@case
def gpu_server_killed(tools):
    """In mid-transfer: an error in bounded time, and the client ends in order."""
    tools = tools.with_gpus()
    if not tools:
        return
    with Server(tools, mem="g=cuda:1:64M") as s:
        proc = under_load(tools, s, "--local-mem", "cuda:0", "-D", "30", link="local")
        s.proc.kill()
        ended(proc).must(LOST)


# --- main -------------------------------------------------------------------------------------------------

def run_case(name, build):
    """Return: whether it was good, and what is to be printed."""
    fn = next(fn for fn in CASES if fn.__name__ == name)
    start, said = time.monotonic(), io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            fn(Tools(build))
            why = ""
        except Exception:
            why = "\n" + traceback.format_exc(limit=4)
    return not why, f"{said.getvalue()}{'FAILED' if why else 'ok    '} {name} ({time.monotonic() - start:.1f} s){why}"


def main(args):
    if not args:
        print(__doc__)
        return 2
    signal.signal(signal.SIGHUP, signal.SIG_DFL) # whoever starts this with nohup: gxd would not hear it either
    begin, failures, nr_alone = time.monotonic(), 0, 0
    names = [fn.__name__ for fn in CASES if not args[1:] or any(part in fn.__name__ for part in args[1:])]
    for name in [n for n in names if n in ALONE]:
        names.remove(name)
        good, text = run_case(name, pathlib.Path(args[0]).resolve())
        failures += not good
        nr_alone += 1
        print(text, flush=True)
    # Most cases wait for something most of the time. Processes, as some start theirs with a function of Python's.
    with concurrent.futures.ProcessPoolExecutor(AT_ONCE) as pool:
        for ran in concurrent.futures.as_completed([pool.submit(run_case, name, pathlib.Path(args[0]).resolve()) for name in names]):
            good, text = ran.result()
            failures += not good
            print(text, flush=True)
    print(f"{nr_alone + len(names)} cases, {failures} failed, {time.monotonic() - begin:.0f} s")
    return 1 if failures or not nr_alone + len(names) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
