#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gxd and gxperf end: killed, stopped, told to; strangers at their sockets; a load with another gxperf beside it.

usage: test_cli_serve.py BUILD_DIR [CASE...]     cli.py says the rest
"""
import contextlib
import json
import os
import pathlib
import random
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "python"))

import tasks
from cli import (CALL_S, CLIENT_CPU, FAILED, HELLO_MAGIC, LINKS, LOST, OK, SERVER_CPU, START_S, USAGE, WRONG, Ran, Server,
                 beside, case, ended, expect, main, measuring, under_load)

# --- ends -------------------------------------------------------------------------------------------------

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
    """SIGHUP ends nothing: no key is there to be read again. What daemons are sent for other purposes is not heard."""
    with Server(tools) as s:
        for signo in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM):
            s.proc.send_signal(signo)
        tools.perf("put", s.addr, "-s", "64K", "-n", "4").clean()
        s.proc.send_signal(signal.SIGHUP)
        s.wait_log("reload: no keys to read again")
        tools.perf("put", s.addr, "-s", "64K", "-n", "4").clean()
        s.proc.send_signal(signal.SIGTERM)
        s.proc.send_signal(signal.SIGHUP) # a second signal to end would end it at once
        expect(s.proc.wait(timeout=20) == 0, s.log())
        expect("drained" in s.log(), s.log())


@case
def user_gives_up_rights(tools):
    """gxd denies itself system calls; with --user it is no longer root, in any thread, and serves all the same."""
    tools.gxd("--user", "no-such-user", "--mem", "kv=host:1M").must(FAILED, "no-such-user", "no such user")
    given = () if os.geteuid() else ("--user", "nobody", "--allow-uid", "0")
    with Server(tools, *given) as s:
        tools.perf("put", s.addr, "-s", "64K", "-n", "50").clean()
        tools.perf("get", s.addr, "-s", "64K", "-n", "50").clean()
        said = tasks.read(s.proc.pid, "status")
        expect(len(said) > 1, said)
        for status in said.values():
            expect("\nSeccomp:\t2\n" in status and "\nNoNewPrivs:\t1\n" in status, status)
            if given:
                expect(re.search(r"\nUid:(\t65534){4}\n", status) and "\nCapPrm:\t" + 16 * "0" in status, status)
        s.proc.send_signal(signal.SIGTERM)
        expect(s.proc.wait(timeout=20) == 0, s.log())


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
    """Each has a time, a level, and says who came and who left: as keys, or as it is asked for."""
    time_re = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    for args, line_re, came in (((), rf'time={time_re} level=(err|warn|info|debug) name="gxd" ', r' peer="127\.0\.0\.1:\d+" pid=\d+ conn=\d+ msg="peer .* connected: '),
                                (("--log-format", "text"), rf"{time_re} gxd: (err|warn|info|debug): ", r"info: peer 127\.0\.0\.1:\d+ pid \d+ conn \d+ connected: "),
                                (("--log-format", "json"), r"\{", r'"peer": "127\.0\.0\.1:\d+", "pid": \d+, "conn": \d+, ')):
        with Server(tools, *args) as s:
            tools.perf("put", s.addr, "-s", "64K", "-n", "4").clean()
            s.wait_log("has left")
            log = s.log()
            for line in log.splitlines():
                expect(re.match(line_re, line), line)
                if "json" in args:
                    doc = json.loads(line)
                    expect(re.fullmatch(time_re, doc["time"]) and doc["level"] == "info" and doc["name"] == "gxd" and doc["msg"], line)
            expect(re.search(came, log), log)


@case
def log_on_a_full_disk(tools):
    """gxd serves on, and counts the lines."""
    with open("/dev/full", "w") as full, subprocess.Popen([tools.gxd_path, "--listen", "127.0.0.1:0", "--mem", "kv=host:1M", "--cores", SERVER_CPU],
                                                          stdout=subprocess.PIPE, stderr=full, text=True, env=tools.env) as proc:
        addr = re.match(r"gxperf put (\S+)", proc.stdout.readline()).group(1)
        tools.perf("put", addr, "-s", "64K", "-n", "4").clean()
        stats = tools.gxd("stats", "@gxd-" + addr.split(":")[1]).must(OK).out
        expect(int(re.search(r"log_dropped control (\d+)", stats).group(1)) > 5, stats)
        proc.terminate()
        expect(proc.wait(timeout=20) == 0)


@case
def mem_more_than_there_is(tools):
    tools.gxd("--listen", "127.0.0.1:0", "--mem", "kv=host:1T").must(FAILED, "kv", "1048576 MiB", "can be had")


@case
def end_drains(tools):
    """The put that is under way ends well, then the server does."""
    for link in LINKS:
        with Server(tools) as s:
            # Less than the server waits, however slow the machine is.
            proc = under_load(tools, s, "-w", "1", "-D", "2", link=link)
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

# --- told to end ------------------------------------------------------------------------------------------

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
        for command, signo in (("put", signal.SIGINT), ("get", signal.SIGTERM), ("send", signal.SIGINT), ("lat", signal.SIGTERM),
                               ("blocks", signal.SIGINT)):
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
    with Server(tools, "--timeout", "60", mem="kv=host:32M") as s:
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
        sock.settimeout(20)
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
        proc = under_load(tools, s, "-w", "1", "-D", "300")
        try:
            inodes = {m.group(1) for fd in pathlib.Path(f"/proc/{s.proc.pid}/fd").iterdir()
                      if (m := re.match(r"socket:\[(\d+)\]", os.readlink(fd)))}
            ports = [int(p[1].split(":")[1], 16) for p in
                     (line.split() for line in pathlib.Path("/proc/net/udp").read_text().splitlines()[1:]) if p[9] in inodes]
            expect(ports, "gxd has no UDP port")
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                for i in range(2000):
                    sock.sendto(rng.randbytes(i % 1400), ("127.0.0.1", ports[i % len(ports)]))
            # Most are dropped by the kernel, which tells with the next packet that is not.
            end = time.monotonic() + START_S
            while not (seen := sum(s.stat(tools, name) for name in ("rx_bad", "rx_stray", "rx_crc", "rx_nobuf"))) and time.monotonic() < end:
                time.sleep(0.02)
            expect(seen, "nothing was counted")
            proc.send_signal(signal.SIGINT)
            expect(", wrong 0\n" in (ran := ended(proc).must(128 + signal.SIGINT)).out, ran)
        finally:
            proc.kill()
            proc.communicate()


@case
def stranger_services(tools):
    """A server that gets requests which make no sense answers or drops them: see tools/gxd/serve/request.c. Through the client's own
    options only what the client lets through can be tried; this is what it does let through."""
    with Server(tools, mem="kv=host:4K") as s:
        tools.gxperf("put", s.addr, "-s", "4097").must(FAILED, "too small")
        tools.gxperf("put", s.addr, "-s", "1", "--offset", "4096").must(FAILED, "too small")
        tools.perf("put", s.addr, "-s", "1", "--offset", "4095", "-n", "10").clean()

# --- a load, and another gxperf beside it -----------------------------------------------------------------

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
        end = time.monotonic() + 20
        try:
            while ") Z" not in pathlib.Path(f"/proc/{children[0]}/stat").read_text() and time.monotonic() < end:
                time.sleep(0.05)
        except (FileNotFoundError, ProcessLookupError):
            pass
        expect(time.monotonic() < end, "the command still runs")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
