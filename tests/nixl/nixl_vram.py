#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Blocks of 4 to 64 KiB at random places with one notification, between two processes on one GPU or two, GX beside UCX as NIXL's
backend, memory of GPUs at one end or both. Bytes are compared.

usage: nixl_vram.py [ROUNDS [GPUS [BACKENDS]]]

For a Python that has numpy and NIXL's wheel with the backend GX linked into it (docs/nixl.md; no torch), on a host with 8 CPUs or
more and CUDA's MPS running. GPUS: 1 (default), or 2: the other end's memory is on the second GPU. Host memory is pinned by the driver.
BACKENDS: GX,UCX (default), or GX alone. Prints medians of ROUNDS (default 3), each the median of 20 transfers, post to done.
"""
import ctypes
import multiprocessing
import os
import statistics
import sys
import time

import numpy as np
from nixl._api import nixl_agent, nixl_agent_config

WAYS = [("cuda", "cuda", "WRITE"), ("cuda", "cuda", "READ"), ("host", "cuda", "WRITE"), ("cuda", "host", "READ")]
POINTS = [(256, 4), (256, 16), (256, 64), (4096, 16), (4096, 64)]
MEM_B = 4096 * 64 << 10
POSTS, WAIT_S = 20, 60
CPUS = sorted(os.sched_getaffinity(0))[:8]  # the near end has the first half
SEG = {"cuda": "VRAM", "host": "DRAM"}


class Gpu:
    """The driver, its primary context on @device, and a stream."""

    def __init__(self, device):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        context, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.call("cuStreamCreateWithPriority", ctypes.byref(self.stream), 1, 0)

    def call(self, name, *args):
        ret = getattr(self.cuda, name)(*args)
        if ret:
            raise SystemExit(f"{name}(): CUDA error {ret}")

    def alloc(self, kind, len_b):
        at = ctypes.c_uint64()
        if kind == "cuda":
            self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(len_b))
        else:
            self.call("cuMemHostAlloc", ctypes.byref(at), ctypes.c_size_t(len_b), 0)
        return at.value

    def copy(self, to, source, len_b):
        self.call("cuMemcpyAsync", ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(len_b), self.stream)
        self.call("cuStreamSynchronize", self.stream)


class End:
    """An agent with one memory of @kind, and a little of the GPU, which opens it."""

    def __init__(self, name, backend, kind, device):
        self.gpu, self.agent, self.kind = Gpu(device), nixl_agent(name, nixl_agent_config(backends=[])), kind
        self.agent.create_backend(backend, {})
        self.at, small, self.device = self.gpu.alloc(kind, MEM_B), self.gpu.alloc("cuda", 1 << 20), device if kind == "cuda" else 0
        data = np.random.default_rng(len(name)).integers(0, 256, MEM_B, np.uint8)
        self.gpu.copy(self.at, data.ctypes.data, MEM_B)
        for at, len_b, seg, dev in ((small, 1 << 20, "VRAM", device), (self.at, MEM_B, SEG[kind], self.device)):
            self.agent.register_memory(self.agent.get_reg_descs([(at, len_b, dev, "")], seg))

    def data(self):
        out = np.empty(MEM_B, np.uint8)
        self.gpu.copy(out.ctypes.data, self.at, MEM_B)
        return out


def serve(pipe, cpus, *args):
    os.sched_setaffinity(0, cpus)
    end = End("far", *args)
    pipe.send((end.agent.get_agent_metadata(), end.at, end.device))
    while True:
        end.agent.get_new_notifs()
        if pipe.poll(0):
            if not pipe.recv():
                return
            pipe.send(end.data())


def blocks_at(count, block_b):
    slots = MEM_B // block_b
    return tuple((np.random.permutation(slots)[:count] * block_b).tolist() for _ in range(2))


def measure(backend, mine, theirs, call, gpus):
    """Return: seconds of a transfer at each point."""
    ctx = multiprocessing.get_context("spawn")
    pipe, other = ctx.Pipe()
    far = ctx.Process(target=serve, args=(other, CPUS[len(CPUS) // 2:], backend, theirs, gpus - 1), daemon=True)
    far.start()
    meta, there, device = pipe.recv()
    near, took = End("near", backend, mine, 0), []
    near.agent.add_remote_agent(meta)
    for count, kib in POINTS:
        block_b, times = kib << 10, []
        here_at, there_at = blocks_at(count, block_b)
        pipe.send(True)
        before = pipe.recv()
        handle = near.agent.initialize_xfer(
            call, near.agent.get_xfer_descs([(near.at + a, block_b, near.device) for a in here_at], SEG[mine]),
            near.agent.get_xfer_descs([(there + b, block_b, device) for b in there_at], SEG[theirs]), "far", b"note")
        for _ in range(POSTS):
            begin = time.perf_counter()
            state = near.agent.transfer(handle)
            while state == "PROC" and time.perf_counter() - begin < WAIT_S:
                state = near.agent.check_xfer_state(handle)
            times.append(time.perf_counter() - begin)
            if state != "DONE":
                raise SystemExit(f"{backend} {mine} {theirs} {call}: {state}")
        took.append(statistics.median(times))
        pipe.send(True)
        after, ours = pipe.recv(), near.data()
        for a, b in zip(here_at, there_at) if call == "WRITE" else ():
            before[b:b + block_b] = ours[a:a + block_b]
        if (before != after).any() or any((ours[a:a + block_b] != after[b:b + block_b]).any() for a, b in zip(here_at, there_at)):
            raise SystemExit(f"{backend} {mine} {theirs} {call}: wrong bytes")
    pipe.send(False)
    far.join(WAIT_S)
    return took


def main(args):
    rounds, gpus = int(args[0]) if args else 3, int(args[1]) if args[1:] else 1
    backends = args[2].split(",") if args[2:] else ["GX", "UCX"]
    os.sched_setaffinity(0, CPUS[:len(CPUS) // 2])
    for mine, theirs, call in WAYS:
        took = {backend: [] for backend in backends}
        for turn in range(rounds):
            for backend in backends if turn % 2 else reversed(backends):
                took[backend].append(measure(backend, mine, theirs, call, gpus))
        for i, (count, kib) in enumerate(POINTS):
            median = {b: statistics.median(times[i] for times in took[b]) for b in backends}
            said = ", ".join(f"{b} {t * 1e6:.0f} us {count * (kib << 10) / t / 1e9:.2f} GB/s" for b, t in median.items())
            ratio = f", UCX's time over gx's {median['UCX'] / median['GX']:.1f}" if len(median) == 2 else ""
            print(f"{call} {mine} to {theirs} {count} x {kib} KiB: {said}{ratio}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
