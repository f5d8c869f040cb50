#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gxperf and gxd with GPUs, over a driver whose GPUs are threads (tests/fake/fake_cuda.c).

usage: test_cli_gpu.py BUILD_DIR [CASE...]     cli.py says the rest
"""
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

from cli import CALL_S, FAILED, LOST, OK, START_S, USAGE, WRONG, Ran, Server, case, clean_path, ended, expect, main, under_load

# --- GPUs of one process ----------------------------------------------------------------------------------

def on_gpus(tools, command, *args, gpus=4, libs=True, **env):
    """gxperf with that many fake GPUs, and with the fake NCCL and cuBLAS where @libs says so. None: they are not built."""
    tools = tools.with_gpus(gpus, **env)
    if not tools:
        return None
    lib = ["--lib-path", tools.fakes / "fake" if libs else "/nonexistent"] if command in ("compare", "overlap") else []
    return tools.run(tools.gxperf_path, command, *args, *lib, "--seconds", "0.005", "--format", "json")


@case
def gpus_missing(tools):
    if pathlib.Path("/dev/nvidiactl").exists():
        return
    for command in ("p2p", "compare", "overlap"):
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

# --- pictures ---------------------------------------------------------------------------------------------

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

# --- memory of GPUs, with a driver that is none -----------------------------------------------------------

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
        for mine in (("--local-mem", "cuda:0"), ("--gpu", "0")):
            for get in ((), ("--get",)):
                for link in ("local", "packet", "tcp"):
                    tools.perf("blocks", s.addr, *mine, *get, "--link", link, "-s", "16K", "--blocks", "64", "-n", "5").clean()
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
        path = clean_path(tools.perf("put", s.addr, "-s", "1M", "-n", "10", "--gpu", "1", "--link", "local"))
        expect((path["link"], path["unpack"], path["engine"]) == ("local", "direct", "auto"), path)
        expect("--gpu" not in path["why"] and "by packets" not in path["why"], path)
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
