#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lives and deaths of NCCL communicators over gx: two ranks on one GPU, without PyTorch.

    python3 tests/nccl/nccl_life.py --plugin build/bindings/nccl/libnccl-net-gx.so

Calls libnccl and libcuda by ctypes. Each rank is a process with an NCCL_HOSTID of its own, so NCCL
takes the network between them. Ends with 77 without a GPU or NCCL.

  comms   --comms communicators, one after another in the same two processes. Each sums an array,
          and each element is compared. Threads and descriptors must be as many at the end as after
          a tenth of them, and memory may grow by --grow-kib a communicator
  kill    --kills pairs: SIGKILL of rank 1 in the middle of all_reduce. ncclCommGetAsyncError() of
          rank 0 must tell an error within --limit-s, and ncclCommAbort() must return
  stop    the same with SIGSTOP, within the plugin's time-out and --limit-s

One JSON line a result. Exit status: 0 when all that was asserted was right."""
import argparse
import collections
import contextlib
import ctypes
import glob
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time

PEER_S = 5  # GX_NCCL_TIMEOUT_S
ELEMS = 1 << 18
WARN_LINES = 8  # of a rank's log, when its check fails
INT32, SUM = 2, 0  # ncclInt32, ncclSum


def find(names, env):
    """Path of a library: @env, or one of NVIDIA's Python packages, or the loader's."""
    if os.environ.get(env):
        return os.environ[env]
    for folder in sys.path:
        for name in names:
            hits = sorted(glob.glob(os.path.join(folder, "nvidia", "*", "lib", name)))
            if hits:
                return hits[0]
    return names[0]


class Fail(Exception):
    pass


class Id(ctypes.Structure):
    _fields_ = [("b", ctypes.c_char * 128)]


class Cuda:
    """The driver calls that this program needs."""

    def __init__(self, dev):
        self.lib = ctypes.CDLL("libcuda.so.1")
        d, ctx = ctypes.c_int(), ctypes.c_void_p()
        self("cuInit", 0)
        self("cuDeviceGet", ctypes.byref(d), dev)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(ctx), d)
        self("cuCtxSetCurrent", ctx)
        self.stream = ctypes.c_void_p()
        self("cuStreamCreate", ctypes.byref(self.stream), 1)

    def __call__(self, name, *args):
        ret = getattr(self.lib, name)(*args)
        if ret:
            raise Fail(f"{name}: error {ret}")

    def alloc(self, size):
        at = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
        return at

    def put(self, at, data):
        self("cuMemcpyHtoD_v2", at, data, ctypes.c_size_t(ctypes.sizeof(data)))

    def get(self, at):
        data = (ctypes.c_int32 * ELEMS)()
        self("cuMemcpyDtoH_v2", data, at, ctypes.c_size_t(ctypes.sizeof(data)))
        return data

    def is_done(self):
        ret = self.lib.cuStreamQuery(self.stream)
        if ret not in (0, 600):  # CUDA_ERROR_NOT_READY
            raise Fail(f"cuStreamQuery: error {ret}")
        return ret == 0


class Rank:
    def __init__(self, rank, dev, peer):
        self.rank, self.peer, self.cuda = rank, peer, Cuda(dev)
        self.nccl = ctypes.CDLL(find(["libnccl.so.2"], "NCCL_LIB"))
        self.nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, Id, ctypes.c_int]
        self.src, self.dst = self.cuda.alloc(4 * ELEMS), self.cuda.alloc(4 * ELEMS)
        self.comm = ctypes.c_void_p()

    def do(self, name, *args):
        ret = getattr(self.nccl, name)(*args)
        if ret:
            raise Fail(f"{name}: error {ret}")

    def open(self):
        uid = Id()
        if self.rank == 0:
            self.do("ncclGetUniqueId", ctypes.byref(uid))
            self.peer.sendall(bytes(uid))
        else:
            got = b""
            while len(got) < 128:
                part = self.peer.recv(128 - len(got))
                if not part:
                    raise Fail("rank 0 has gone")
                got += part
            uid = Id.from_buffer_copy(got)
        self.do("ncclCommInitRank", ctypes.byref(self.comm), 2, uid, self.rank)

    def reduce(self):
        self.do("ncclAllReduce", self.src, self.dst, ctypes.c_size_t(ELEMS), INT32, SUM, self.comm, self.cuda.stream)

    def error(self):
        err = ctypes.c_int()
        self.do("ncclCommGetAsyncError", self.comm, ctypes.byref(err))
        return 0 if err.value == 7 else err.value  # 7: in progress

    def wait(self):
        while not self.cuda.is_done():
            err = self.error()
            if err:
                return err
        return self.error()


def state():
    kib = 0
    for line in open("/proc/self/status"):
        if line.startswith("VmRSS"):
            kib = int(line.split()[1])
    return {"rss_kib": kib, "fds": len(os.listdir("/proc/self/fd")), "threads": len(os.listdir("/proc/self/task"))}


def rank_comms(r, count):
    wrong, first = 0, None
    for i in range(count):
        r.open()
        mine = (ctypes.c_int32 * ELEMS)(*range(i, i + ELEMS)) if i == 0 else None
        if mine:
            r.cuda.put(r.src, mine)
            want = bytes((ctypes.c_int32 * ELEMS)(*range(0, 2 * ELEMS, 2)))
        r.cuda.put(r.dst, (ctypes.c_int32 * ELEMS)())
        r.reduce()
        err = r.wait()
        if err:
            raise Fail(f"communicator {i}: error {err}")
        wrong += bytes(r.cuda.get(r.dst)) != want
        r.do("ncclCommDestroy", r.comm)
        if i == count // 10:
            first = state()
    print(json.dumps({"rank": r.rank, "comms": count, "wrong": wrong, "first": first, "last": state()}), flush=True)


def rank_victim(r):
    r.open()
    r.cuda.put(r.src, (ctypes.c_int32 * ELEMS)())
    r.reduce()
    err = r.wait()
    print(json.dumps({"up": r.rank, "err": err}), flush=True)
    while not err:
        r.reduce()
        err = r.wait()
    told = time.time()
    r.nccl.ncclCommAbort(r.comm)
    print(json.dumps({"rank": r.rank, "err": err, "told": told, "aborted": time.time()}), flush=True)


def rank_main(args):
    libc = ctypes.CDLL(None)
    libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no rank outlives this program
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, 1, ctypes.c_size_t(0))  # _IOLBF: NCCL's lines are whole among ours
    if os.getppid() != args.parent:
        os._exit(1)
    try:
        r = Rank(args.as_rank, args.device, socket.socket(fileno=args.fd))
        if args.tests == "comms":
            rank_comms(r, args.comms)
        else:
            rank_victim(r)
    except Fail as e:
        print(json.dumps({"rank": args.as_rank, "fail": str(e)}), flush=True)
        os._exit(1)
    os._exit(0)


class Pair:
    """Two rank processes."""

    def __init__(self, args, test, nr):
        ends = socket.socketpair()
        self.proc, self.buf, self.open, self.log = [], ["", ""], [True, True], args.log
        self.warned = [collections.deque(maxlen=WARN_LINES) for _ in ends]
        for rank in (0, 1):
            env = dict(os.environ, NCCL_HOSTID=f"life{os.getpid()}.{nr}.{rank}", NCCL_NET_PLUGIN=os.path.abspath(args.plugin), NCCL_NET=args.net,
                       NCCL_NET_PLUGIN_REF_COUNT="1", GX_NCCL_TIMEOUT_S=str(PEER_S), NCCL_SOCKET_IFNAME="lo", NCCL_NVLS_ENABLE="0", NCCL_MNNVL_ENABLE="0",
                       NCCL_DEBUG=os.environ.get("NCCL_DEBUG", "WARN"))
            env.pop("NCCL_DEBUG_FILE", None)  # NCCL's log is on stdout
            cmd = [sys.executable, os.path.abspath(__file__), "--tests", test, "--as-rank", str(rank), "--fd", str(ends[rank].fileno()), "--comms", str(args.comms),
                   "--device", str(args.device), "--parent", str(os.getpid())]
            self.proc.append(subprocess.Popen(cmd, env=env, stdout=subprocess.PIPE, stderr=args.log, pass_fds=[ends[rank].fileno()]))
        for end in ends:
            end.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def take_log(self, rank, line):
        self.log.write(f"rank {rank}: {line}\n".encode())
        if "WARN" in line:
            self.warned[rank].append(line)

    def pump(self, wait_s):
        """Read what the ranks have written. A rank whose pipe is full would wait. False: nothing came in time."""
        fds = {p.stdout.fileno(): rank for rank, p in enumerate(self.proc) if self.open[rank]}
        ready = select.select(list(fds), [], [], wait_s)[0]
        for fd in ready:
            data = os.read(fd, 65536)
            self.open[fds[fd]] = bool(data)
            self.buf[fds[fd]] += data.decode(errors="replace")
        return bool(ready)

    def told(self, rank):
        """The last warnings of a rank whose check has failed, and which has answered or never will."""
        while self.open[rank] and self.pump(0):
            pass
        for line in self.buf[rank].splitlines():
            self.take_log(rank, line)
        self.buf[rank] = ""
        for line in self.warned[rank]:
            print(f"rank {rank}: {line}", flush=True)

    def answer(self, rank, until):
        """The next JSON line of @rank. None: none came in time, or it ended."""
        while True:
            line, nl, rest = self.buf[rank].partition("\n")
            if nl:
                self.buf[rank] = rest
                if line.startswith("{"):
                    return json.loads(line)
                self.take_log(rank, line)
                continue
            left = until - time.time()
            if not self.open[rank] or left <= 0 or not self.pump(left):
                return None

    def end(self):
        for p in self.proc:
            if p.poll() is None:
                p.kill()
            p.wait()
            p.stdout.close()
        self.log.flush()


def test_comms(args):
    with Pair(args, "comms", 0) as pair:
        return check_comms(args, pair)


def check_comms(args, pair):
    good, start = True, time.time()
    for rank in (0, 1):
        a = pair.answer(rank, start + args.wait_s) or {"rank": rank, "fail": "no answer"}
        ok = "fail" not in a and a["wrong"] == 0
        if ok:
            grown = (a["last"]["rss_kib"] - a["first"]["rss_kib"]) / max(1, args.comms - args.comms // 10)
            ok = grown <= args.grow_kib and all(a["last"][k] <= a["first"][k] for k in ("fds", "threads"))
            a["grown_kib_each"] = round(grown, 2)
        good &= ok
        print(json.dumps({"test": "comms", **a, "seconds": round(time.time() - start, 1), "ok": ok}), flush=True)
        if not ok:
            pair.told(rank)
    return good


def check_ends(test, pairs, sig, limit_s):
    """For each pair: was rank 0 told in time, and after how many seconds?"""
    up = [all([p.answer(r, time.time() + 60) for r in (0, 1)]) for p in pairs]
    time.sleep(random.uniform(0.05, 0.3))
    at = time.time()
    for p in pairs:
        p.proc[1].send_signal(sig)
    for p, is_up in zip(pairs, up):
        a = p.answer(0, at + limit_s + 20) if is_up else {"fail": "not up"}
        a = a or {"fail": "rank 0 has not answered"}
        told = round(a["told"] - at, 3) if "told" in a else None
        ok = told is not None and 0 <= told <= limit_s and a["aborted"] - a["told"] < 10
        if not ok:
            print(json.dumps({"test": test, "told_s": told, "answer": a, "ok": False}), flush=True)
            for rank in (0, 1):
                p.told(rank)
        p.end()
        yield ok, told


def test_end(args, test, sig, limit_s):
    """--kills ends, --at-once pairs at a time."""
    good, slowest, nr = 0, 0.0, 0
    while nr < args.kills:
        with contextlib.ExitStack() as held:
            pairs = [held.enter_context(Pair(args, test, nr + i)) for i in range(min(args.at_once, args.kills - nr))]
            nr += len(pairs)
            for ok, told in check_ends(test, pairs, sig, limit_s):
                good += ok
                slowest = max(slowest, told or 0)
    print(json.dumps({"test": test, "right": good, "of": args.kills, "slowest_s": slowest, "limit_s": limit_s, "ok": good == args.kills}), flush=True)
    return good == args.kills


def mps_is_on():
    return os.path.exists(os.path.join(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), "control"))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--plugin", help="libnccl-net-gx.so")
    p.add_argument("--net", default="gx", help="Socket: NCCL's own transport, to compare")
    p.add_argument("--tests", default="comms,kill,stop")
    p.add_argument("--comms", type=int, default=1000)
    p.add_argument("--kills", type=int, default=50)
    p.add_argument("--at-once", type=int, default=4, help="pairs")
    p.add_argument("--limit-s", type=float, default=1)
    p.add_argument("--grow-kib", type=float, default=8)
    p.add_argument("--wait-s", type=float, default=900, help="longest time of comms")
    p.add_argument("--device", type=int, default=0)
    p.add_argument("--log", default="nccl_life.log", help="NCCL's log, and the ranks' stderr")
    p.add_argument("--as-rank", type=int, help=argparse.SUPPRESS)
    p.add_argument("--fd", type=int, help=argparse.SUPPRESS)
    p.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.as_rank is not None:
        rank_main(args)
    if not args.plugin or not os.path.exists(args.plugin):
        p.error("--plugin names no file: build/bindings/nccl/libnccl-net-gx.so after ./run build")
    try:
        Cuda(args.device)
        ctypes.CDLL(find(["libnccl.so.2"], "NCCL_LIB"))
    except (OSError, Fail) as e:
        print(f"skipped: {e}")
        sys.exit(77)
    if "kill" in args.tests.split(",") and mps_is_on():
        p.error("MPS is on, and it ends all processes of a GPU when one is killed in a kernel: end it for the test kill")
    args.log = open(args.log, "ab")
    good = True
    for test in args.tests.split(","):
        if test == "comms":
            good &= test_comms(args)
        elif test == "kill":
            good &= test_end(args, "kill", signal.SIGKILL, args.limit_s)
        elif test == "stop":
            good &= test_end(args, "stop", signal.SIGSTOP, PEER_S + args.limit_s)
        else:
            p.error(f"no test {test}")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
