#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch over NCCL over gx, beside NCCL's own Socket transport: two ranks on a GPU each, or both on one.

    python3 tests/nccl/torch_nccl.py --plugin build/bindings/nccl/libnccl-net-gx.so
    python3 tests/nccl/torch_nccl.py --plugin ... --tests check --env NCCL_PROTO=LL
    python3 tests/nccl/torch_nccl.py --plugin ... --transports socket,gx,gx-unpack --tests check,time
    python3 tests/nccl/torch_nccl.py --plugin ... --hosts 9000 --transports socket,gx+GX_KEY_FILE=job.key --tests time

Needs a GPU, PyTorch and its NCCL; ends with 77 without. Each rank is a process of its own with an
NCCL_HOSTID of its own, so NCCL takes the network between them. Each transport has a pair of ranks
that stays; this process tells the pairs in turn what to do, so times are interleaved. With one GPU
the ranks run under MPS, which this program starts and ends. NCCL's log must name the transport.
Transport gx-unpack is the plugin in its mode unpack: buffers of receives are in the GPU, and NCCL
must say that its kernels unpack. --mode unpack takes that transport for gx. A transport may have
variables of its own: with socket,gx+GX_NCCL_HELP=0,gx one run tells what the help of NCCL's threads
brings. With --hosts each rank is in a network namespace of its own, as on a host of its own, and a pair
of veth joins them: no card segments or copies. Each rank has half of the CPUs then, as two hosts share
none; with --shared-cpus all of them, as two containers of a host do. Each transport has two hosts of its own,
so one's claims of CPUs are none of another's. It needs root and iproute2.

Tests (--tests, all by default but soak):
  check    six operations, three types, 8 B to 256 MiB: each element compared with arithmetic
  time     the same operations, timed, a payload compared after each row
  ddp      DDP of a small model: the losses of both transports are equal, bit for bit
  fsdp     FSDP2 (fully_shard) of --layers layers of 33.6 million parameters: the same, and the time of a step
  calls    all_reduce beside calls that may wait for the GPU: cudaMalloc, cudaFree, pinned memory
  reinit   destroy_process_group() and init_process_group() --reinits times
  overlap  all_to_all beside products by grid, all_gather beside attention
  kill     SIGKILL of a rank: NCCL's log of the other one tells so within --tell-limit-s (told_s), and that
           rank ends with an error within --end-limit-s (ended_s). PyTorch takes up to 60 s of the latter for
           itself, over each transport
  stop     SIGSTOP of a rank, not Socket: the same, told by GX_NCCL_TIMEOUT_S later
  soak     --soak-s seconds of mixed operations, compared; memory stays

One JSON line a result, tables at the end. Exit status: 0 when all that was asserted was right."""
import argparse
import errno
import itertools
import json
import os
import queue
import random
import re
import shutil
import signal
import socket
import stat
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from torch_rank import HALVES

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
TYPES = ("bfloat16", "float32", "int64")
CHECK_B = (8, 24, 1000, 4096, 65544, 1 << 20, (1 << 20) + 8, 16 << 20, 256 << 20)
TIME_B = (8, 4096, 65536, 1 << 20, 16 << 20, 256 << 20)
TILES = ((2, 4), (4, 8), (8, 8), (8, 16), (16, 32))  # of 128 x 128 of a product
TESTS = ("check", "time", "ddp", "fsdp", "calls", "reinit", "overlap", "kill", "stop", "soak")
GATHER_B = (16 << 20, 64 << 20)
PEER_S = 5  # GX_NCCL_TIMEOUT_S

ENV = {
    "all": {"NCCL_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_IB_DISABLE": "1",
            "NCCL_NVLS_ENABLE": "0", "NCCL_MNNVL_ENABLE": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "PYTHONUNBUFFERED": "1",
            # as torchrun sets it: OpenMP's threads wait in a loop, and take the CPUs that transports need
            "OMP_NUM_THREADS": "1"},
    "hosts": {"NCCL_SOCKET_IFNAME": "gx0", "LOCAL_WORLD_SIZE": "1"},
    "gx": {"NCCL_NET": "gx", "NCCL_NET_PLUGIN_REF_COUNT": "1", "GX_NCCL_TIMEOUT_S": str(PEER_S)},
    "socket": {"NCCL_NET": "Socket", "NCCL_NET_PLUGIN": "none", "NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"},
}
ENV["gx-unpack"] = {**ENV["gx"], "GX_NCCL_MODE": "unpack", "NCCL_PROTO": "Simple", "NCCL_PAT_ENABLE": "0",
                    "NCCL_LOCAL_REGISTER": "0", "NCCL_GRAPH_REGISTER": "0", "NCCL_NET_GDR_LEVEL": "SYS", "NCCL_NET_GDR_READ": "0"}
HOST_VIA = r"via NET/gx/\d+(?!/GDRDMA|\d)"
VIA = {"gx": HOST_VIA, "gx-unpack": r"\[send\] via NET/gx/\d+(?!/GDRDMA|\d)|\[receive\] via NET/gx/\d+/GDRDMA", "socket": r"via NET/Socket/"}
UNPACKS = "Using NCCL_NET_DEVICE_UNPACK net plugin"
CHANNELS = re.compile(r"(\d+) coll channels, .* (\d+) p2p channels, (\d+) p2p channels per peer")


def base(way):
    """The transport that "gx+NAME=VALUE+..." begins with."""
    return way.split("+")[0]


def extras(way):
    """Its own variables."""
    return dict(pair.split("=", 1) for pair in way.split("+")[1:])


# --- the pairs of ranks -----------------------------------------------------------------------------------

class Lost(Exception):
    """A rank has failed, died, or said nothing in time."""


class Rank:
    def __init__(self, run, way, rank, mps, hosts, folder, answers):
        self.way, self.rank, self.answers = way, rank, answers
        self.nccl_log, self.log = f"{folder}/nccl.{rank}", f"{folder}/rank.{rank}"
        env = {**os.environ, **ENV["all"], **(ENV["hosts"] if hosts else {}), **ENV[base(way)], **mps, **run.env, **extras(way)}
        env.update({"NCCL_HOSTID": f"gx{rank}", "NCCL_DEBUG_FILE": self.nccl_log})
        if base(way) != "socket":
            env["NCCL_NET_PLUGIN"] = run.plugin
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_rank.py")
        argv = [*(hosts.argv(rank) if hosts else ()), sys.executable, program, str(rank), str(run.gpus[rank]), folder]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.answers.put((self, json.loads(line)))
        self.answers.put((self, None))

    def ask(self, command):
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
        except OSError:
            pass # it is dead: read() has seen that

    def tail(self):
        """What the logs say last."""
        warnings = [line for line in self.nccl_lines() if " WARN " in line][-3:]
        with open(self.log, errors="replace", encoding="utf-8") as f:
            return " | ".join([line.strip()[-300:] for line in [*warnings, *f.readlines()[-4:]]])

    def nccl_lines(self):
        try:
            with open(self.nccl_log, errors="replace", encoding="utf-8") as f:
                return f.readlines()
        except OSError:
            return []

    def via(self):
        """Lines of NCCL's log by transport, of connections between the ranks."""
        lines = [line for line in self.nccl_lines() if "Channel " in line and " via " in line]
        return {way: sum(bool(re.search(text, line)) for line in lines) for way, text in VIA.items()}, len(lines)

    def unpacks(self):
        return any(UNPACKS in line for line in self.nccl_lines())

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        try:
            self.process.stdin.close()
        except OSError:
            pass # a command that it has not read


class Pair:
    """Two ranks over one transport."""

    def __init__(self, run, way, mps):
        self.run, self.way = run, way
        self.folder = tempfile.mkdtemp(prefix=f"{base(way)}.", dir=run.folder)
        self.inbox = queue.Queue()
        self.hosts = Hosts(run.args.hosts, run.args.shared_cpus) if run.args.hosts else None
        self.ranks = [Rank(run, way, rank, mps, self.hosts, self.folder, self.inbox) for rank in (0, 1)]
        try:
            self.answers(180)
            self.facts = self.call("init")
        except Lost:
            self.end()
            raise

    def answers(self, limit_s):
        end, got = time.monotonic() + min(limit_s, self.run.left()), {}
        while len(got) < 2:
            try:
                rank, reply = self.inbox.get(timeout=max(0.1, end - time.monotonic()))
            except queue.Empty:
                rank = next(rank for rank in self.ranks if rank.rank not in got)
                raise Lost(f"{self.way}: rank {rank.rank} has not answered in time; {rank.tail()}") from None
            if reply is None:
                raise Lost(f"{self.way}: rank {rank.rank} ended with {rank.process.wait()}; {rank.tail()}")
            if "error" in reply:
                raise Lost(f"{self.way}: rank {rank.rank}: {reply['error']}; {rank.tail()}")
            got[rank.rank] = reply
        return [got[0], got[1]]

    def call(self, do, limit_s=120, **what):
        for rank in self.ranks:
            rank.ask({"do": do, **what})
        return self.answers(limit_s)

    def end(self):
        for rank in self.ranks:
            rank.ask({"do": "quit"})
        deadline = time.monotonic() + 10
        for rank in self.ranks:
            try:
                rank.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
            rank.end()
        if self.hosts:
            self.hosts.end()


def mps_runs():
    """Does somebody listen at the control file of MPS? It outlives a daemon that was killed."""
    path = os.path.join(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps", "control")
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISFIFO(mode):
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            return True
        if not stat.S_ISSOCK(mode):
            return False
        with socket.socket(socket.AF_UNIX) as s:
            s.setblocking(False)
            return s.connect_ex(path) in (0, errno.EPROTOTYPE, errno.EAGAIN)
    except OSError:
        return False


class Hosts:
    """A network namespace for each rank, and an interface gx0 in each."""

    count = itertools.count()

    def __init__(self, mtu, shared_cpus):
        self.cpus = sorted(os.sched_getaffinity(0))
        self.shared_cpus = shared_cpus
        number = next(self.count)
        self.names = [f"gxt{os.getpid()}.{number}.{rank}" for rank in (0, 1)]
        try:
            for name in self.names:
                self.ip("netns", "add", name)
            self.ip("-n", self.names[0], "link", "add", "gx0", "type", "veth", "peer", "name", "gx0", "netns", self.names[1])
            for rank, name in enumerate(self.names):
                self.ip("-n", name, "link", "set", "lo", "up")
                self.ip("-n", name, "addr", "add", f"10.88.7.{rank + 1}/24", "dev", "gx0")
                self.ip("-n", name, "link", "set", "gx0", "mtu", str(mtu), "up")
        except BaseException:
            self.end()
            raise

    @staticmethod
    def ip(*words, check=True):
        subprocess.run(["ip", *words], check=check, timeout=30, stderr=None if check else subprocess.DEVNULL)

    def argv(self, rank):
        half = len(self.cpus) // 2
        cpus = self.cpus if self.shared_cpus else self.cpus[rank * half:(rank + 1) * half]
        return ["ip", "netns", "exec", self.names[rank], "taskset", "-c", ",".join(map(str, cpus))]

    def end(self):
        for name in self.names:
            self.ip("netns", "del", name, check=False)


class Mps:
    """An MPS daemon of our own, in our folder; or the one that is there."""

    def __init__(self, run, wanted):
        self.env, self.started = {}, False
        program = shutil.which("nvidia-cuda-mps-control")
        if wanted == "no":
            self.env = run.no_mps
            run.note("ranks run without MPS" + ("; on one GPU in turns of milliseconds" if run.one_gpu else ""))
        elif mps_runs() or not run.one_gpu:
            run.note("MPS as it is found")
        elif not program:
            run.note("no nvidia-cuda-mps-control: two ranks on one GPU take turns of milliseconds")
        else:
            folder = os.path.join(run.folder, "mps")
            os.mkdir(folder)
            self.env = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
            code = subprocess.run([program, "-d"], env={**os.environ, **self.env}, check=False, timeout=30, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
            self.program, self.started = program, not code
            run.note(f"MPS does not start: exit status {code}" if code else "MPS started")

    def end(self):
        if not self.started:
            return
        try:
            subprocess.run([self.program], input="quit -t 5\n", env={**os.environ, **self.env}, timeout=30, text=True, check=False,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            print("the MPS daemon does not end", file=sys.stderr)


# --- the run ----------------------------------------------------------------------------------------------

def ends_bad(told_s, ended_s, status, told_limit_s, ended_limit_s):
    """What is wrong with the end of a rank whose peer is gone. NCCL's log tells what the transport did, the end what PyTorch did
    then."""
    bad = []
    if told_s is None or told_s > told_limit_s:
        bad.append(f"NCCL's log told of the peer {'never' if told_s is None else f'after {told_s} s'}, and not within {told_limit_s:g} s")
    if ended_s is None:
        bad.append("the rank had not ended when --limit-s was over: raise it")
    elif ended_s > ended_limit_s:
        bad.append(f"the rank ended after {ended_s} s, and not within {ended_limit_s:g} s")
    if status == 0:
        bad.append("the rank ended without an error")
    return bad


class Run:
    def __init__(self, args):
        self.args, self.failed, self.results = args, [], []
        self.end_at = time.monotonic() + args.limit_s
        self.env = dict(pair.split("=", 1) for pair in args.env)
        self.plugin = os.path.abspath(args.plugin)
        self.folder = tempfile.mkdtemp(prefix="gxt.")
        self.no_mps = {"CUDA_MPS_PIPE_DIRECTORY": os.path.join(self.folder, "none")}
        self.gpus = self.choose_gpus(args.gpus)
        self.one_gpu = self.gpus[0] == self.gpus[1]
        self.pairs, self.lost = {}, {}
        self.mps = Mps(self, args.mps)

    def choose_gpus(self, text):
        if text:
            return [int(gpu) for gpu in text.split(",")]
        code = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env={**os.environ, **self.no_mps},
                               check=False)
        if found.returncode or int(found.stdout.split()[-1]) == 0:
            print(f"SKIP: {'PyTorch sees no GPU' if not found.returncode else found.stderr.strip().splitlines()[-1]}")
            sys.exit(77)
        return [0, 1] if int(found.stdout.split()[-1]) > 1 else [0, 0]

    def left(self):
        return max(0.1, self.end_at - time.monotonic())

    def note(self, text):
        print(f"# {text}", flush=True)

    def result(self, test, way, ok, **what):
        """One JSON line; ok None: nothing was asserted."""
        line = {"test": test, "transport": way, **what, **({} if ok is None else {"ok": ok})}
        self.results.append(line)
        if ok is False:
            self.failed.append(line)
        print(json.dumps(line), flush=True)

    def pair(self, way):
        if way not in self.pairs:
            self.pairs[way] = Pair(self, way, self.mps.env)
            facts = self.pairs[way].facts
            log = [line for line in self.pairs[way].ranks[0].nccl_lines() if "NET/gx : gx " in line or "NET/gx : mode " in line]
            said = "; ".join(line.split("NET/gx : ")[1].strip() for line in log)
            self.result("start", way, facts[0]["sum"] == 3, gpus=self.gpus, env={**self.env, **extras(way)}, line=said, channels=self.channels(way),
                        **{k: facts[0][k] for k in ("torch", "nccl", "gpu", "cpus")})
        return self.pairs[way]

    def channels(self, way):
        """Those of collectives, of send and receive, and of these to one peer."""
        found = [CHANNELS.search(line) for line in self.pairs[way].ranks[0].nccl_lines()]
        return next(([int(count) for count in one.groups()] for one in found if one), None)

    def drop(self, way):
        if way in self.pairs:
            self.pairs.pop(way).end()

    def prove(self, way):
        """All connections between ranks so far were of this transport."""
        for rank in self.pairs[way].ranks if way in self.pairs else ():
            by, total = rank.via()
            ok = by[base(way)] == total and total > 0 and rank.unpacks() == (base(way) == "gx-unpack")
            self.result("transport", way, ok, rank=rank.rank, connections=total, unpacks=rank.unpacks(), **by)

    def reads(self, way):
        """Ends the communicator. Then the plugin says what it read in one copy, and how much of that NCCL's threads did."""
        self.pairs[way].call("destroy", limit_s=30)
        said = [line for rank in self.pairs[way].ranks for line in rank.nccl_lines() if "NET/gx : read " in line]
        got = [[float(mb) for mb in re.search(r"read ([\d.]+) MiB .* of these ([\d.]+)", line).groups()] for line in said]
        self.result("reads", way, not any(helped for _, helped in got) if "GX_NCCL_HELP=0" in way else None, read_MiB_helped_MiB=got)

    def each(self, test, todo):
        """todo(way) for each transport. One that fails has its pair made anew, three times."""
        for way in self.args.transports:
            if self.lost.get(way, 0) > 3:
                continue
            try:
                todo(way)
            except Lost as err:
                self.lost[way] = self.lost.get(way, 0) + 1
                self.result(test, way, False, why=str(err), last=self.lost[way] > 3)
                self.drop(way)

    def again(self, do, rounds, **what):
        """One round: rounds[transport] gets what both ranks answer."""
        def one(way):
            got = self.pair(way).call(do, **what)
            rounds.setdefault(way, []).append(got)

        self.each(do, one)

    # --- check, soak ---

    def check(self, way):
        sizes = [size for size in CHECK_B if size <= self.args.max_b]
        for op in OPS:
            for dtype in TYPES:
                got = self.pair(way).call("check", op=op, dtype=dtype, sizes=sizes, seed=len(op))
                wrong = sum(one["wrong"] for one in got)
                self.result("check", way, wrong == 0, op=op, dtype=dtype, sizes=sizes, wrong=wrong,
                            wrong_sizes=sorted({s for one in got for s in one["wrong_sizes"]}),
                            checked_b=sum(one["checked_b"] for one in got))

    def soak(self, way):
        pair = self.pair(way)
        dice, begin, rounds, wrong, first = random.Random(4), time.monotonic(), 0, 0, None
        while time.monotonic() - begin < self.args.soak_s:
            sizes = [int(2 ** dice.uniform(3, 26)) for _ in range(8)]
            got = pair.call("check", op=dice.choice(OPS), dtype=dice.choice(TYPES), sizes=sizes, seed=dice.randrange(1000))
            wrong += sum(one["wrong"] for one in got)
            rounds += len(sizes)
            if rounds == 200:
                first = pair.call("memory")
        last = pair.call("memory")
        grew = max(b["rss_MB"] - a["rss_MB"] for a, b in zip(first or last, last))
        self.result("soak", way, wrong == 0 and grew < 256, rounds=rounds, seconds=round(time.monotonic() - begin), wrong=wrong,
                    grew_MB=grew, memory=last)

    def calls(self, way):
        got = self.pair(way).call("calls", times=20)
        self.result("calls", way, not any(one["wrong"] for one in got), seconds=[round(one["seconds"], 2) for one in got])

    # --- time ---

    def time(self):
        rows = [(op, size) for op in self.args.ops for size in self.args.sizes if size <= self.args.max_b]
        for op, size in rows:
            count = max(4, min(500, (256 << 20) // size))
            took = {}
            for _ in range(self.args.rounds):
                self.again("time", took, op=op, size=size, count=count)
            for way, rounds in took.items():
                us = statistics.median(max(one["us"] for one in both) for both in rounds)
                self.result("time", way, not any(one["wrong"] for both in rounds for one in both), op=op, bytes=size,
                            us=round(us, 2), bus_GB_s=round(size / (2 if op in HALVES else 1) / us / 1e3, 3),
                            cores=[round(statistics.median(both[rank]["cores"] for both in rounds), 2) for rank in (0, 1)])

    # --- ddp, reinit ---

    def ddp(self):
        got = {}

        def one(way):
            both = got[way] = self.pair(way).call("ddp", steps=self.args.steps)
            same = both[0]["weights"] == both[1]["weights"]
            self.result("ddp", way, same, losses=[rank["losses"] for rank in both], weights=both[0]["weights"])

        self.each("ddp", one)
        if len(got) > 1:
            first, *others = got.values()
            self.result("ddp", "+".join(got), all(other == first for other in others), steps=self.args.steps,
                        what="losses and weights are equal, bit for bit")

    def fsdp(self):
        took, losses = {}, {}

        def one(way):
            both = self.pair(way).call("fsdp", steps=self.args.fsdp_steps, layers=self.args.layers)
            took.setdefault(way, []).append(max(rank["step_ms"] for rank in both))
            losses.setdefault(way, []).append([rank["losses"] for rank in both])
            self.result("fsdp", way, True, step_ms=round(took[way][-1], 2), parameters=both[0]["parameters"])

        for _ in range(self.args.rounds):
            self.each("fsdp", one)
        if losses:
            first = next(iter(losses.values()))[0]
            self.result("fsdp", "+".join(losses), all(one == first for way in losses.values() for one in way),
                        steps=self.args.fsdp_steps, what="losses are equal, bit for bit",
                        step_ms={way: round(statistics.median(each), 2) for way, each in took.items()})

    def reinit(self, way):
        pair, took, lines = self.pair(way), [], 0
        for i in range(self.args.reinits):
            begin = time.monotonic()
            pair.call("destroy")
            sums = [one["sum"] for one in pair.call("init")]
            took.append(time.monotonic() - begin)
            by, total = pair.ranks[0].via()
            if sums != [3, 3] or by[base(way)] != total or total <= lines:
                raise Lost(f"{way}: communicator {i + 2}: sums {sums}, {by} of {total} connections, {lines} before")
            lines = total
            if i < 2:
                before = pair.call("memory")
        after = pair.call("memory")
        self.result("reinit", way, True, times=self.args.reinits, seconds=round(statistics.median(took), 3),
                    longest_s=round(max(took), 3), memory_before=before, memory_after=after)

    # --- overlap ---

    def overlap(self):
        loads = [("all_to_all", size, {"kind": "product", "tiles": tiles}) for size in (64 << 20,) for tiles in TILES]
        loads += [("all_gather", size, {"kind": "attention", "shape": [4, 16, 4096, 128]}) for size in GATHER_B]
        for op, size, load in loads:
            what = {"load": load, "op": op, "size": min(size, self.args.max_b)}
            alone, rounds = {}, {}
            self.each("overlap", lambda way: alone.update({way: self.pair(way).call("overlap", runs=0, times=5, **what)}))
            if not alone:
                continue
            last = list(alone.values())[-1] # gx, where it is measured: both transports do the same jobs
            runs = max(1, round(max(one["comm"] for one in last) / max(one["comp"] for one in last)))
            for _ in range(self.args.rounds):
                self.again("overlap", rounds, runs=runs, times=8, **what)
            for way, all_of in rounds.items():
                self.overlap_tell(way, what, runs, all_of)

    def overlap_tell(self, way, what, runs, rounds):
        comp, comm, both = (statistics.median(max(one[k] for one in pair) for pair in rounds) for k in ("comp", "comm", "both"))
        self.result("overlap", way, not any(one["wrong"] for pair in rounds for one in pair), load=what["load"], op=what["op"],
                    bytes=what["size"], runs=runs, comp_ms=round(comp * 1e3, 3), comm_ms=round(comm * 1e3, 3),
                    both_ms=round(both * 1e3, 3), slowdown=round(both / max(comp, comm), 3),
                    of_ideal=round((comp + comm - both) / min(comp, comm), 3))

    # --- kill, stop ---

    def ends(self, test, way, number, handling):
        """Rank 1 gets a signal while both all-reduce: rank 0 ends by itself, with an error."""
        old = self.env
        self.env = {**old, **({"TORCH_NCCL_ASYNC_ERROR_HANDLING": handling} if handling else {})}
        try:
            pair = Pair(self, way, self.mps.env if self.args.kill_mps else self.no_mps)
        finally:
            self.env = old
        try:
            pair.call("forever")
            time.sleep(0.5)
            quiet = sum(" WARN " in line for line in pair.ranks[0].nccl_lines())
            begin = time.monotonic()
            pair.ranks[1].process.send_signal(number)
            told, ended, code = self.ended(pair.ranks[0], begin, quiet)
            late = PEER_S if test == "stop" else 0
            limits = {"told_limit_s": self.args.tell_limit_s + late, "ended_limit_s": self.args.end_limit_s + late}
            bad = ends_bad(told, ended, code, **limits)
            by, total = pair.ranks[0].via()
            if not by[base(way)] == total > 0:
                bad.append(f"{by[base(way)]} of {total} connections are of {way}")
            self.result(test, way, not bad, handling=handling or "PyTorch's default", told_s=told, ended_s=ended, status=code, **limits,
                        log=pair.ranks[0].tail()[:500], **by, **({"bad": bad} if bad else {}))
        finally:
            for rank in pair.ranks:
                rank.end()

    def ended(self, rank, begin, quiet):
        """(seconds until NCCL's log had a further WARN, seconds until the rank had ended, exit status): None for what did not happen
        in the time that --limit-s leaves."""
        told, end_at = None, begin + self.left()
        while True:
            code = rank.process.poll() # before the look at the log: what a rank says last counts
            if told is None and sum(" WARN " in line for line in rank.nccl_lines()) > quiet:
                told = round(time.monotonic() - begin, 2)
            if code is not None:
                return told, round(time.monotonic() - begin, 2), code
            if time.monotonic() > end_at:
                return told, None, None
            time.sleep(0.02)

    def kill(self, way):
        self.prove(way)
        self.drop(way)
        for i in range(self.args.kills):
            self.ends("kill", way, signal.SIGKILL, ("", "1")[i % 2])

    def stop(self, way):
        self.prove(way)
        self.drop(way)
        if base(way) != "socket": # which waits for ever
            self.ends("stop", way, signal.SIGSTOP, "1")

    # --- all ---

    def all(self):
        for test in self.args.tests:
            if self.left() < 10:
                self.result(test, "", False, why=f"not run: --limit-s {self.args.limit_s} is over")
                continue
            self.note(f"{test}, {self.left():.0f} s left")
            if test in ("time", "ddp", "fsdp", "overlap"):
                getattr(self, test)()
            else:
                self.each(test, getattr(self, test))
        for way in list(self.pairs):
            self.prove(way)
            if base(way) != "socket":
                try:
                    self.reads(way)
                except Lost as err:
                    self.result("reads", way, False, why=str(err))

    def close(self):
        for way in list(self.pairs):
            self.drop(way)
        self.mps.end()
        if self.failed or self.args.keep:
            self.note(f"logs are in {self.folder}")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)


# --- tables -----------------------------------------------------------------------------------------------

def size_text(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"


def table(head, rows):
    rows = [head] + [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    for row in rows:
        print("  ".join(cell.ljust(width) if i < 2 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))))
    print()


def beside(results, test, keys):
    """[(key, {transport: result})] of a test, in order."""
    out = {}
    for one in results:
        if one["test"] == test and "why" not in one:
            out.setdefault(tuple(json.dumps(one[k]) for k in keys), {})[one["transport"]] = one
    return list(out.values())


def tables(run):
    ways = run.args.transports
    times = beside(run.results, "time", ("op", "bytes"))
    if times:
        rows = []
        for by in times:
            one = next(iter(by.values()))
            got = [by.get(way) for way in ways]
            ratio = f"{got[0]['us'] / got[-1]['us']:.2f}" if len(ways) > 1 and all(got) else "-"
            rows.append([one["op"], size_text(one["bytes"])] + [g["us"] if g else "-" for g in got] +
                        [g["bus_GB_s"] if g else "-" for g in got] + [ratio] +
                        ["/".join(map(str, g["cores"])) if g else "-" for g in got])
        table(["operation", "bytes"] + [f"{way} us" for way in ways] + [f"{way} GB/s" for way in ways] +
              [f"{ways[-1]} x"] + [f"{way} cores" for way in ways], rows)
    overlaps = beside(run.results, "overlap", ("load", "op", "bytes"))
    if overlaps:
        rows = [[one["transport"], f"{one['op']} {size_text(one['bytes'])}",
                 "x".join(map(str, one["load"].get("tiles") or one["load"]["shape"])), one["runs"], one["comp_ms"], one["comm_ms"],
                 one["both_ms"], one["slowdown"], one["of_ideal"]] for by in overlaps for one in by.values()]
        table(["transport", "operation", "load", "runs", "Tcomp ms", "Tcomm ms", "Tboth ms", "slowdown", "of ideal"], rows)
    others = [one for one in run.results if one["test"] not in ("time", "overlap", "start") and "ok" in one]
    if others:
        counts = {}
        for one in others:
            counts.setdefault((one["test"], one["transport"]), []).append(one["ok"])
        rows = [[test, way, sum(oks), len(oks)] for (test, way), oks in counts.items()]
        table(["test", "transport", "right", "of"], rows)


def plugin_default():
    top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    for folder in ("build/bindings/nccl", "lib", "."):
        path = os.path.join(top, folder, "libnccl-net-gx.so")
        if os.path.exists(path):
            return path
    return ""


def size_arg(text):
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


def list_arg(known):
    def parse(text):
        names = text.split(",")
        if not set(names) <= set(known):
            raise argparse.ArgumentTypeError(f"say some of {','.join(known)}")
        return names
    return parse


def ways_arg(text):
    ways = text.split(",")
    for way in ways:
        if base(way) not in VIA or not all("=" in pair for pair in way.split("+")[1:]):
            raise argparse.ArgumentTypeError(f"{way}: say some of {','.join(VIA)}, each with variables or without, as gx+NAME=VALUE")
    return ways


def args_parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--plugin", default=plugin_default(), help="libnccl-net-gx.so")
    p.add_argument("--tests", type=list_arg(TESTS), default=[test for test in TESTS if test != "soak"])
    p.add_argument("--transports", type=ways_arg, default=["socket", "gx"],
                   help=f"some of {','.join(VIA)}; with variables of their own as gx+NAME=VALUE+NAME=VALUE")
    p.add_argument("--mode", choices=("host", "unpack"), default="host", help="unpack: transport gx-unpack for gx")
    p.add_argument("--ops", type=list_arg(OPS), default=list(OPS), help="of the test time")
    p.add_argument("--sizes", type=lambda text: [size_arg(one) for one in text.split(",")], default=list(TIME_B), help="of the test time, as 4K,256M")
    p.add_argument("--gpus", default="", help="of rank 0 and 1, as 0,0; default: 0,1 where there are two")
    p.add_argument("--mps", choices=("auto", "no"), default="auto")
    p.add_argument("--hosts", type=int, nargs="?", const=1500, metavar="MTU", help="two network namespaces as two hosts; 1500 bytes by default")
    p.add_argument("--shared-cpus", action="store_true", help="--hosts: both ranks have all CPUs")
    p.add_argument("--max-b", type=size_arg, default=256 << 20, help="largest message, as 256M")
    p.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for the ranks; again for more")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, default=50, help="of ddp")
    p.add_argument("--layers", type=int, default=6, help="of fsdp")
    p.add_argument("--fsdp-steps", type=int, default=20)
    p.add_argument("--reinits", type=int, default=10)
    p.add_argument("--kills", type=int, default=2, help="in turn with PyTorch's default handling and with abort")
    p.add_argument("--tell-limit-s", type=float, default=1, help="kill, stop: longest time until NCCL's log tells of it")
    p.add_argument("--end-limit-s", type=float, default=90, help="kill, stop: longest time until the other rank has ended")
    p.add_argument("--kill-mps", action="store_true", help="kill under MPS too, which may leave MPS unusable")
    p.add_argument("--soak-s", type=float, default=60, help="of each transport; --limit-s holds, too")
    p.add_argument("--limit-s", type=float, default=540, help="of the whole run")
    p.add_argument("--keep", action="store_true", help="keep the logs")
    args = p.parse_args()
    if args.mode != "host":
        args.transports = [way.replace("gx", f"gx-{args.mode}", 1) if base(way) == "gx" else way for way in args.transports]
    return args


def main():
    args = args_parse()
    if any(base(way) != "socket" for way in args.transports) and not os.path.exists(args.plugin):
        print(f"no plugin {args.plugin!r}: name it with --plugin", file=sys.stderr)
        return 2
    run = Run(args)
    try:
        run.all()
    finally:
        run.close()
    tables(run)
    for one in run.failed:
        print(f"FAILED {json.dumps(one)}")
    print(f"{len(run.results)} results, {len(run.failed)} failed")
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
