#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gxd and gxperf move data: files, sizes, links, several clients, collectives.

usage: test_cli_move.py BUILD_DIR [CASE...]     cli.py says the rest
"""
import contextlib
import csv
import hashlib
import io
import itertools
import os
import pathlib
import random
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

from cli import (CLIENT_CPU, CPUS, FAILED, LINKS, LOST, OK, START_S, USAGE, WRONG, Server, beside, case, clean_path, ended,
                 expect, main, stand)

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
    with Server(tools, mem="kv=host:32M") as s, tempfile.TemporaryDirectory() as tmp:
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
                row, = tools.perf(command, s.addr, "-s", size, "-D", "0.2").clean()
                expect(row["checked_b"] * 70 >= row["count"] * size, row)
                expect(row["GB_s"] > 0 and row["cpu_pct"] > 0, row)


@case
def move_both_ways(tools):
    """Two rows, each checked; bytes that one direction loses are that row's alone."""
    with Server(tools, "--port", "shm", "--port", "udp") as s:
        for way in (("--link", "packet"), ("--link", "local"), ("--link", "tcp"), ("--port", "udp"), ("--stripe",), ("-q", "3")):
            for command in ("put", "get"):
                ran = tools.perf(command, s.addr, "--bidirectional", "-b", "4K", "-e", "64K", "-f", "16", "-D", "0.2", "-i", "0.1", *way)
                rows = ran.clean()
                expect([(r["op"], r["size_b"]) for r in rows] == [(op, size) for size in (4096, 65536)
                                                                 for op in (command, "get" if command == "put" else "put")], ran)
                expect(all(r["bidirectional"] and r["count"] > 0 for r in rows), ran)
                for r in rows:
                    each = [i["count"] for i in ran.doc["intervals"] if (i["op"], i["size_b"]) == (r["op"], r["size_b"])]
                    expect(sum(each) == r["count"], r, each)
        tools.gxperf("put", s.addr, "--bidirectional", "-n", "4").must(USAGE, "-n")
        tools.gxperf("send", s.addr, "--bidirectional").must(USAGE)
    with Server(tools, "--unpack", "none") as s:
        rows = tools.perf("get", s.addr, "--bidirectional", "-D", "0.3", "--link", "packet").must(WRONG, "put of").doc["results"]
        expect(rows[0]["op"] == "get" and rows[0]["wrong"] == 0 and rows[1]["wrong"] > 0, rows)


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

    def seconds(line):
        return int(line.split(": ")[2].split()[0])

    with Server(tools, "--port", "udp") as s:
        ran = tools.gxperf("put", s.addr, "-s", "1", "-n", "30", "--depth", "1").must(OK)
        row = [line for line in ran.out.splitlines() if not line.startswith("#")][0].split()
        expect(re.fullmatch(r"[1-9]\.\d\de-0\d", row[6]), "GB/s of", row)
        with beside(tools, s, "put", "-s", "64K") as proc:
            lines = (line for line in iter(proc.stderr.readline, "") if " gx: " not in line) # what a busy machine has it warn of
            told = list(itertools.islice(lines, 2))
            if seconds(told[1]) < seconds(told[0]): # the first was of the warm-up, which a busy machine makes long
                told = [told[1], next(lines)]
        expect(all(re.match(r"gxperf: put of 65536 bytes: \d+ s, \d+ messages, [0-9.e-]+ GB/s\n", t) for t in told), told)
        expect(4 <= seconds(told[1]) - seconds(told[0]) <= 30, told)


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
            row, = tools.perf(*args, "-s", "1000003", "-D", "0.2", "-q", "3").clean()
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
def move_blocks(tools):
    """Lists of blocks, prepared and not, over each link; sizes that are no multiple of the places."""
    with Server(tools, "--port", "shm", "--port", "udp") as s:
        for way in (("--link", "local"), ("--link", "packet"), ("--port", "udp"), ("--link", "tcp")):
            for get in ((), ("--get",)):
                rows = tools.perf("blocks", s.addr, *way, *get, "-b", "1", "-e", "5001", "-f", "5000", "-n", "9", "--depth", "3").clean()
                kind = "get" if get else "put"
                expect([(r["op"], r["size_b"]) for r in rows] ==
                       [(f"{kind} {how}", size) for size in (1, 5000) for how in ("prepared", "unprepared")], rows)
                for r in rows:
                    expect(r["blocks"] == 256 and r["count"] == 9 and r["depth"] == 3, r)
                    expect(r["checked_b"] == 3 * 256 * r["size_b"], r)
                    expect(r["p50_us"] > 0 and r["post_ns"] > 0, r)
                    expect(abs(r["GB_s"] * 1e9 - r["blocks_s"] * r["size_b"]) <= 2e-5 * r["GB_s"] * 1e9, r)
        for nr in (1, 4096):
            for row in tools.perf("blocks", s.addr, "--blocks", nr, "-s", "1K", "-n", "100", "--offset", "13").clean():
                expect(row["blocks"] == nr and row["p99_us"] >= row["p50_us"] > 0, row)
        # Each place takes part, so that it can be checked.
        for row in tools.perf("blocks", s.addr, "-s", "4K", "-D", "0.001", "-w", "0", "--depth", "4").clean():
            expect(row["count"] >= 4, row)
        for row in tools.perf("blocks", s.addr, "-n", "3", "--depth", "8").clean():
            expect(row["count"] == 3 and row["checked_b"] == 3 * 256 * 16384, row)
        tools.gxperf("blocks", s.addr, "-s", "64K", "--blocks", "4096").must(FAILED, "16777216")


@case
def move_views(tools):
    """Each case of --view over each link, beside a contiguous put (get) and the list of its runs, all compared where they land."""
    sizes = {"tp-split": (4, 1024, 32 * 16), "nhd-hnd": (8, 256, 32 * 16 * 8), "rows576": (500, 576, 1), "rows656": (500, 656, 1)}
    with Server(tools, "--port", "shm", "--port", "udp", mem="kv=host:64M") as s:
        for way in (("--link", "local"), ("--link", "packet"), ("--port", "udp"), ("--link", "tcp")):
            for view, (nr, run_b, runs) in sizes.items():
                for kind, option in (("put", ()), ("get", ("--get",))):
                    rows = tools.perf("blocks", s.addr, *way, "--view", view, "--blocks", nr, "-n", "2", "--offset", "5", *option).clean()
                    expect([(r["op"], r["view"], r["size_b"], r["blocks"]) for r in rows] ==
                           [(f"{kind} view", view, run_b, nr * runs), (f"{kind} contiguous", view, nr * runs * run_b, 1), (f"{kind} list", view, run_b, nr * runs)], rows)
                    for r in rows:
                        expect(r["count"] == 2 and r["checked_b"] == nr * runs * run_b and r["wrong"] == 0, r)
                        expect(r["p50_us"] > 0 and r["post_us"] > 0 and r["of_contiguous"] > 0, r)
        # More runs than a list takes: the two others are left.
        rows = tools.perf("blocks", s.addr, "--view", "nhd-hnd", "--blocks", "20", "-n", "1").clean()
        expect([r["op"] for r in rows] == ["put view", "put contiguous"] and rows[0]["blocks"] == 20 * 32 * 16 * 8, rows)


@case
def move_servers_defaults(tools):
    """As little as one can say."""
    with Server(tools, "--cores", "any", mem="kv=host:16M") as s: # room for four cores of each end
        tools.run(tools.gxperf_path, "put", s.addr).must(OK)

# --- several clients of one region ------------------------------------------------------------------------

def at_last(run, enough):
    """Run it again until it has @enough: the server learns a moment later that a client has been killed."""
    end = time.monotonic() + START_S
    while not enough(ran := run()):
        expect(time.monotonic() < end, "not even now:", ran)
        time.sleep(0.02)
    ran.clean()


@case
def lease_keeps_writers_apart(tools):
    """Who would write where another measures is refused, told who that is and where there is room; beside it, it is right."""
    with Server(tools, "--timeout", "300") as s, tempfile.TemporaryDirectory() as tmp:
        source = pathlib.Path(tmp, "f")
        source.write_bytes(b"x" * 4097)
        with beside(tools, s, "put", "-s", "64K") as first:
            stand(first) # it has its bytes, and needs no CPU for that
            at = (s.addr, "--offset", "0")
            ran = tools.gxperf("put", *at, "-s", "4K", "-n", "5").must(FAILED, "in use", f"pid {first.pid}", "'kv'", "bytes 0 to")
            place = re.search(r"give --offset (\w+),", ran.err).group(1)
            tools.gxperf("lat", *at, "-n", "5").must(FAILED, f"pid {first.pid}")
            tools.gxperf("put", s.addr, "--file", source).must(FAILED, f"pid {first.pid}")
            for more in (("-s", "1K"), ("--file", f"{tmp}/g", "-s", "1")):
                tools.gxperf("get", *at, *more).must(FAILED, f"pid {first.pid}")
            tools.gxperf("get", s.addr, "--file", f"{tmp}/g", "-s", "1").must(FAILED, f"pid {first.pid}")
            tools.gxperf("put", s.addr, "-s", "16M", "-n", "1").must(FAILED, "no room")
            for command in ("put", "send", "get", "lat"):
                tools.perf(command, s.addr, "-s", "4K", "-n", "5", "--offset", place).clean()
            tools.perf("put", s.addr, "-s", "0", "-n", "5", "--offset", "16M").clean()
            tools.perf("get", s.addr, "-s", "4K", "-n", "5", "--no-check").must(OK)
            first.kill()
            first.wait()
            # Its bytes are free as soon as the server knows.
            tools.perf("put", s.addr, "-s", "4K", "-n", "5").clean()


@case
def lease_moves_who_names_no_place(tools):
    """Who names no --offset takes bytes that are free, says so, and is right there; a third one comes behind the second."""
    patient = ("--timeout", "300")
    with Server(tools, *patient, mem="kv=host:64M") as s: # room for sweeps of three
        with beside(tools, s, "put", "-s", "64K", *patient) as first:
            stand(first)
            for command in ("put", "send", "get", "lat"):
                ran = tools.perf(command, s.addr, "-s", "4K", "-n", "5", *patient)
                ran.clean()
                expect(ran.doc["offset"] > 0 and f"pid {first.pid}" in ran.err and "--offset" in ran.err, ran)
                tools.perf(command, s.addr, "-s", "4K", "-n", "5", "--offset", ran.doc["offset"], *patient).clean()
            ran = tools.run(tools.gxperf_path, "put", s.addr, "-s", "1K", "-n", "5", *patient).must(OK)
            expect(re.search(rf"^# bytes 0 to \d+ of region 'kv' are in use by .*pid {first.pid}[^:]*: .*\(--offset \w+\)$", ran.out, re.M), ran)
            beside_first = tools.perf("put", s.addr, "-s", "64K", "-n", "5", *patient).doc["offset"]
            with beside(tools, s, "get", "-s", "64K", *patient) as second:
                stand(second)
                # Sweeps plan each size anew: all of them within what is leased.
                ran = tools.perf("put", s.addr, "-b", "1", "-e", "1M", "-f", "16", "-n", "20", *patient)
                ran.clean()
                expect(ran.doc["offset"] > beside_first, ran.doc["offset"], beside_first)
            expect(first.poll() is None, "the first one ended")
        at_last(lambda: tools.perf("put", s.addr, "-s", "64K", "-n", "5", *patient), lambda ran: ran.doc["offset"] == 0)


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
        at_last(lambda: tools.perf("lat", s.addr, "--poll", "memory", "-n", "50"), lambda ran: ran.rc == OK)

# --- links ------------------------------------------------------------------------------------------------

@case
def link_is_chosen(tools):
    """Which link is taken is said, with the reason; what was asked for is taken, or nothing is."""
    small = ("-s", "64K", "-n", "50")
    with Server(tools) as s:
        for args, link, why in (((), "local", "memory mapped"),
                                (("--port", "shm"), "packet", "asked for"),
                                (("--port", "shm", "--link", "local"), "local", "asked for"),
                                (("--link", "packet"), "packet", "shared memory"),
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
        tools.gxperf("put", s.addr, "--link", "tcp", "--port", "udp").must(FAILED, "uses no port")
        tools.gxperf("get", s.addr, "--link", "tcp", "--unpack", "host").must(FAILED, "nothing is unpacked")
        tools.gxperf("put", s.addr, "--link", "tcp", "--sockets", "17").must(USAGE, "--sockets")
        # What is said is what was done: sends are packets.
        before = s.stat(tools, "rx_pkts")
        path = clean_path(tools.perf("send", s.addr, "-s", "64K", "-n", "50", "--link", "local"))
        expect(s.stat(tools, "rx_pkts") - before >= 50 * 8, "the sends left no packets")
        expect(path["link"] == "packet" and path["port"] == "shm" and path["engine"] is None, path)
        expect(path["unpack"] == "host" and path["bounce"] == "host" and "sends go by packets" in path["why"], path)
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
        tools.gxperf("put", s.addr, "--engine", "ce").must(USAGE, "--engine ce", "--gpu")
        tools.gxperf("put", s.addr, "--engine", "warp").must(USAGE, "warp")
        expect("links    packet, local, tcp" in tools.gxperf("info", s.addr).must(OK).out)
    with Server(tools, "--link", "packet") as s:
        path = clean_path(tools.perf("put", s.addr, *small))
        expect(path["link"] == "packet" and "no link local" in path["why"], path)
        tools.gxperf("put", s.addr, "--link", "local").must(FAILED, "the server does not offer it")
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
    tools.gxperf("alltoall", "-g", "2", "--port", "udp", "--bind", "192.0.2.1", "-n", "1", "--cores", "any").must(FAILED, "192.0.2.1")
    tools.gxperf("allgather", "-g", "2", "--link", "avian", "-n", "1", "--cores", "any").must(USAGE, "avian")
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
