#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A day of an operator, as docs/operations.md tells it: what goes wrong is found by what gx comes with, and service goes on.

usage: test_day.py BUILD_DIR [CASE...]     CASE: only cases whose name holds one of these. Prints what the operator sees.
Exit status 77 where namespaces are refused.
"""
import collections
import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "net"))

import cli
import path
import test_doctor
from cli import CLIENT_CPU, FAILED, LOST, OK, START_S, expect
from test_veth import Other, enter, sh, skip

NARROW = ("rate=10000000", "delay_ns=5000000", "queue_b=30000")
TRIES = 8          # looks at top until a busy machine has let everybody run
CHURN_S = 6        # connections come and go for so long
AT_ONCE = 16       # in one process
LINES_10S = 16     # of one kind about peers: LOG_ALIKE_MAX in poll/log.c
ROW = re.compile(r"^ *(?P<pid>\d+) (?P<name>\S+) +(?P<conn>\d+) (?P<link>\S+) +(?P<tx>\S+) +(?P<rx>\S+) +(?P<lost>\S+) +(?P<rtt>\S+) +(?P<window>\S+) +"
                 r"(?P<msgs>\S+) +(?P<why>\S+) +(?P<peer>\S+ pid (?P<peer_pid>\d+))$", re.M)


def show(title, text, lines=None):
    print(f"--- {title}", *text.strip().splitlines()[slice(lines) if lines else slice(None)], sep="\n", flush=True)


def at_folder(tools, folder):
    at = cli.Tools(tools.fakes.parent)
    at.env = {**tools.env, "GX_RUN_DIR": str(folder)}
    return at


# --- a slow client --------------------------------------------------------------------------------------------

def bytes_of(text):
    return float(text.rstrip("KMGT-") or 0) * 1000 ** (" KMGT".index(text[-1]) if text[-1] in "KMGT" else 0)


def top(at, server):
    """What it prints, and the server's rows by the clients' pids."""
    out = at.gxd("top", "--interval", "1").must(OK).out
    return out, {int(row["peer_pid"]): row for row in ROW.finditer(out) if int(row["pid"]) == server.proc.pid}


def client(at, words, *more):
    # A signal is taken between two messages: short ones, so that each ends in time.
    return subprocess.Popen([*words, *more, "--cores", CLIENT_CPU, "--insecure", "--mem", "kv", "--port", "udp", "-s", "64K", "-D", "120"],
                            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=at.env)


def slow_client(tools, folder):
    """One of four has a narrow path, one little room for what comes, one is stopped."""
    at = at_folder(tools, folder)
    other = Other()
    procs = []
    try:
        with path.joined(tools.fakes / "bottleneck", other, *NARROW), \
                cli.Server(at, "--insecure", "--port", "udp", listen=f"{path.HERE}:0", mem="kv=host:64M") as server:
            get = (at.gxperf_path, "get", server.addr)
            fast, credit, stopped = client(at, get), client(at, get, "--slots", "64"), client(at, get)
            narrow = client(at, other.words(*get))
            procs += [fast, credit, stopped, narrow]
            seen = {}
            for _ in range(TRIES):
                out, rows = top(at, server)
                if len(rows) < 4:
                    continue
                rate = {pid: bytes_of(row["tx"]) for pid, row in rows.items()}
                if min(rate, key=rate.get) == narrow.pid and rows[narrow.pid]["why"] in ("link", "window"):
                    seen.setdefault("narrow", out)
                if rows[credit.pid]["why"] == "credit":
                    seen.setdefault("credit", out)
                # Where others have the CPUs, who is slow is still seen, and why not.
                if min(rate, key=rate.get) == narrow.pid and rows[narrow.pid]["why"] != "credit":
                    seen.setdefault("slowest", out)
                if {"narrow", "credit"} <= set(seen):
                    break
            expect({"slowest", "credit"} <= set(seen), f"narrow {narrow.pid}, credit {credit.pid}, server {server.proc.pid}:", *seen, out)
            show(f"gxd top: narrow path {narrow.pid}, little room {credit.pid}", seen.get("narrow", seen["slowest"]))
            conn = rows[stopped.pid]["conn"]
            stopped.send_signal(signal.SIGSTOP)
            for _ in range(TRIES):
                out, rows = top(at, server)
                if f"silent: {stopped.pid} gxperf: " in out:
                    break
            expect(f"silent: {stopped.pid} gxperf: it does not answer: is it stopped?" in out and "(1 silent)" in out, out)
            show(f"gxd top: {stopped.pid} is stopped", out)
            lost = f'pid={stopped.pid} conn={conn} msg="peer ' # others may be lost, too, where these have no CPU
            end, line = time.monotonic() + START_S, []
            while not line and time.monotonic() < end:
                time.sleep(0.1)
                line = [line for line in server.log().splitlines() if lost in line and "is lost: was not heard for " in line]
            expect(line, lost, server.log())
            show("the log", line[0])
            for proc in procs:
                proc.send_signal(signal.SIGCONT)
                proc.kill()
                proc.wait()
    finally:
        for proc in procs:
            proc.kill()
            proc.wait()
        other.end()


# --- a host that lost its huge pages --------------------------------------------------------------------------

def huge_pages_lost(tools, folder):
    """What was right yesterday has exit status 1 today, with the cure."""
    at = cli.Tools(tools.fakes.parent)
    at.env = {**tools.env, "GX_DOCTOR_ROOT": str(folder)}
    test_doctor.plant(folder, test_doctor.HOST)
    at.gxperf("doctor").must(OK)
    test_doctor.plant(folder, {"sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "0",
                               "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "0"})
    ran = at.gxperf("doctor").must(FAILED)
    expect(re.search(r"^slow +hugepages +none.*\n +cure: as root: sysctl -w vm\.nr_hugepages=", ran.out, re.M), ran)
    expect(ran.out.count("cure:") == 1, ran)
    show("gxperf doctor", ran.out)


# --- a version mixed with the one before ----------------------------------------------------------------------

def carry(source, to, older):
    """Until the end; with @older the first hello is of the version before."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            at = data.find(cli.HELLO_MAGIC.to_bytes(4, "little")) if older else -1
            if at >= 0:
                number = int.from_bytes(data[at + 4:at + 8], "little") - 1
                data, older = data[:at + 4] + number.to_bytes(4, "little") + data[at + 8:], False
            to.sendall(data)
    with contextlib.suppress(OSError):
        to.shutdown(socket.SHUT_WR)


def between(sock, port, older):
    """One connection to @port; @older: "client" or "server", whose hello is changed on the way."""
    near, _ = sock.accept()
    with near, socket.create_connection(("127.0.0.1", port)) as far:
        ways = [threading.Thread(target=carry, args=args) for args in ((near, far, older == "client"), (far, near, older == "server"))]
        for way in ways:
            way.start()
        for way in ways:
            way.join()


def versions_mixed(tools, folder):
    """Both ends say which version each is, and what to do; the server serves others."""
    del folder
    with cli.Server(tools) as server:
        for older in ("client", "server"):
            with socket.create_server(("127.0.0.1", 0)) as sock:
                thread = threading.Thread(target=between, args=(sock, server.port, older))
                thread.start()
                ran = tools.gxperf("put", f"127.0.0.1:{sock.getsockname()[1]}", "-n", "4").must(FAILED)
                thread.join()
            found = re.search(r"the client speaks version (\d+) of gx's protocol, the server version (\d+); the (\w+) is gx \S+: "
                              r"install the same gx at both ends", ran.err)
            expect(found and int(found.group(1)) - int(found.group(2)) == (-1 if older == "client" else 1) and found.group(3) != older, older, ran)
            show(f"an older {older}: gxperf", ran.err)
            if older == "client": # a server sees the client's hello first, so it is the one that refuses; here it has seen a good one
                server.wait_log(found.group(0))
                show("gxd", server.log().splitlines()[-1])
        tools.perf("put", server.addr, "-s", "64K", "-n", "4").clean()


# --- a full disk ----------------------------------------------------------------------------------------------

def full_disk(tools, folder):
    """The log, the folder of counters, and results: each says so, nothing half-written stays, and gxd serves on."""
    if sh("mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)).returncode:
        print("note: no tmpfs can be mounted here: not tested")
        return
    try:
        on_full_disk(tools, folder)
    finally:
        sh("umount", "-l", str(folder))


def on_full_disk(tools, folder):
    run, fill, log = folder / "run", folder / "fill", folder / "log"
    run.mkdir()
    at = at_folder(tools, run)
    with contextlib.suppress(OSError), open(fill, "wb", buffering=0) as f:
        while True:
            f.write(b"x" * 4096)
    with open(log, "wb") as err, subprocess.Popen([at.gxd_path, "--listen", "127.0.0.1:0", "--mem", "kv=host:1M", "--cores", cli.SERVER_CPU],
                                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err, text=True, env=at.env) as proc:
        try:
            full_and_served(at, folder, proc.stdout.readline())
            expect(log.stat().st_size == 0, log.read_bytes())
            fill.unlink()
            proc.terminate()
            expect(proc.wait(timeout=START_S) == 0)
            text = log.read_text()
            expect(re.search(r"msg=\"\d+ lines of this log were dropped\"", text), text)
            show("the log, when there is room again", text, 1)
        finally:
            proc.kill()


def full_and_served(at, folder, line):
    addr = re.match(r"gxperf put (\S+)", line).group(1)
    put = ("put", addr, "-s", "4K", "-n", "4")
    said = [at.gxperf(*put, "--append", folder / "a.jsonl").must(FAILED, "--append", "No space left", "counters are not published").err,
            at.gxperf(*put, "-J", folder / "a.json").must(FAILED, "-J", "No space left").err,
            at.gxperf("get", addr, "--file", folder / "got", "-s", "1M").must(FAILED, "got: No space left").err]
    cores = ("--cores", CLIENT_CPU)
    for command in (("gxd", "dump"), ("gxd", "top", "--interval", "0.1"), ("gxd", "stats", "@gxd-" + addr.split(":")[1]),
                    *(("gxperf", *put, *cores, "--format", kind) for kind in ("table", "csv", "jsonl", "json")),
                    ("gxperf", "doctor", *cores), ("gxperf", "info")):
        with open(folder / "out", "wb") as out:
            ran = subprocess.run([at.gxd_path if command[0] == "gxd" else at.gxperf_path, *command[1:]], stdin=subprocess.DEVNULL, stdout=out,
                                 stderr=subprocess.PIPE, text=True, env=at.env, timeout=cli.CALL_S, check=False)
        text = "\n".join(line for line in ran.stderr.splitlines() if "not published" not in line)
        expect(ran.returncode == FAILED and "No space left on device" in text, *command, ran.returncode, ran.stderr)
        said.append(text)
    show("a full disk", "\n".join(text.strip().splitlines()[-1] for text in said))
    expect({p.name for p in folder.iterdir()} == {"run", "fill", "log", "out"} and not list((folder / "run").iterdir()), list(folder.rglob("*")))
    at.perf(*put).clean()


# --- a log of a day under load --------------------------------------------------------------------------------

def counted(lines, word):
    """Lines that say @word, of the kind that has most; how many events all of them stand for. A peer's copies are timed when it connects,
    and the line says what came of that: each way, so there may be four kinds."""
    found = [line for line in lines if re.search(word, line)]
    kinds = collections.Counter(re.sub(r"\d+", "N", line.partition(" msg=")[2]) for line in found)
    expect(len(kinds) <= 4, *kinds)
    return max(kinds.values()), sum(int(m.group(1)) if (m := re.search(r" more=(\d+) ", line)) else 1 for line in found)


def day_of_log(tools, folder):
    """Connections that come and go are told, each, up to so many, and then counted; what stands still says nothing."""
    del folder
    with cli.Server(tools) as server:
        with cli.beside(tools, server, "put", "-q", AT_ONCE):
            before = len(server.log())
            time.sleep(3)
            quiet = server.log()[before:]
        expect(not quiet, "under load, without an event:", quiet)
        server.wait_log("is lost") # it was killed
        time.sleep(0.5)
        first, begin = len(server.log().splitlines()), time.monotonic()
        came = server.stat(tools, "peers_up")
        while time.monotonic() < begin + CHURN_S:
            tools.gxperf("put", server.addr, "-q", AT_ONCE, "-s", "64", "-n", "1", "-w", "0", "--no-check").must(OK)
        seconds = time.monotonic() - begin
        came = server.stat(tools, "peers_up") - came
        rc, log = server.end(), server.log()
        lines = log.splitlines()[first:]
        expect(rc == 0, rc)
    said = {}
    for word in (" connected: ", "has left"):
        nr, events = counted(lines, word)
        expect(nr <= (2 + seconds // 10) * (LINES_10S + 1), word, nr, *lines[-5:])
        expect(came - AT_ONCE <= events <= came and came >= 10 * AT_ONCE, word, nr, events, came)
        said[word] = (nr, events)
    size = sum(len(line) + 1 for line in lines)
    show(f"{came} connections came and went in {seconds:.0f} s: {len(lines)} lines, {size} bytes, so {size * 3.6 / seconds:.0f} kB an hour", lines[-3])
    print(said)


CASES = (slow_client, huge_pages_lost, versions_mixed, full_disk, day_of_log)


def main(build, *names):
    enter("m")
    if sh("mount", "--make-rprivate", "/").returncode:
        skip("no mount namespace")
    sh("ip", "link", "set", "lo", "up")
    for case in CASES:
        if names and not any(name in case.__name__ for name in names):
            continue
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as tmp:
            case(cli.Tools(pathlib.Path(build).resolve()), pathlib.Path(tmp))
        print(f"ok     {case.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
