#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Blocks of 4 to 64 KiB at random places with one notification, between two processes on one GPU or two, GX beside UCX as NIXL's
backend, memory of GPUs at one end or both. Bytes are compared.

usage: nixl_vram.py [ROUNDS [GPUS]]

For a Python that has torch and NIXL's wheel with the backend GX linked into it (docs/nixl.md), on a host with 8 CPUs or more and
CUDA's MPS running. GPUS: 1 (default), or 2: the other end's memory is on the second GPU. Host memory is pinned by torch. Prints
medians of ROUNDS (default 3), each the median of 20 transfers, post to done.
"""
import multiprocessing
import os
import statistics
import sys
import time

import torch
from nixl._api import nixl_agent, nixl_agent_config

WAYS = [("cuda", "cuda", "WRITE"), ("cuda", "cuda", "READ"), ("host", "cuda", "WRITE"), ("cuda", "host", "READ")]
POINTS = [(256, 4), (256, 16), (256, 64), (4096, 16), (4096, 64)]
MEM_B = 4096 * 64 << 10
POSTS, WAIT_S = 20, 60
SEG = {"cuda": "VRAM", "host": "DRAM"}


class End:
    """An agent with one memory of @kind, and a little of the GPU, which opens it."""

    def __init__(self, name, backend, kind, device):
        torch.cuda.set_device(device)
        self.agent, self.kind = nixl_agent(name, nixl_agent_config(backends=[])), kind
        self.agent.create_backend(backend, {})
        self.data = torch.randint(0, 256, (MEM_B,), dtype=torch.uint8)
        self.data = self.data.cuda() if kind == "cuda" else self.data.pin_memory()
        self.small = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
        self.device = device if kind == "cuda" else 0
        for tensor, seg, dev in ((self.small, "VRAM", device), (self.data, SEG[kind], self.device)):
            self.agent.register_memory(self.agent.get_reg_descs([(tensor.data_ptr(), tensor.numel(), dev, "")], seg))
        torch.cuda.synchronize()


def serve(pipe, *args):
    os.sched_setaffinity(0, range(4, 8))
    end = End("far", *args)
    pipe.send((end.agent.get_agent_metadata(), end.data.data_ptr(), end.device))
    while True:
        end.agent.get_new_notifs()
        if pipe.poll(0):
            if not pipe.recv():
                return
            torch.cuda.synchronize()
            pipe.send(end.data.cpu().numpy().copy())


def blocks_at(count, block_b):
    slots = MEM_B // block_b
    return zip(*((int(a) * block_b, int(b) * block_b) for a, b in zip(torch.randperm(slots)[:count], torch.randperm(slots)[:count])))


def measure(backend, mine, theirs, call, gpus):
    """Return: seconds of a transfer at each point."""
    ctx = multiprocessing.get_context("spawn")
    pipe, other = ctx.Pipe()
    far = ctx.Process(target=serve, args=(other, backend, theirs, gpus - 1), daemon=True)
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
            call, near.agent.get_xfer_descs([(near.data.data_ptr() + a, block_b, near.device) for a in here_at], SEG[mine]),
            near.agent.get_xfer_descs([(there + b, block_b, device) for b in there_at], SEG[theirs]), "far", b"note")
        for _ in range(POSTS):
            begin = time.perf_counter()
            state = near.agent.transfer(handle)
            while state == "PROC" and time.perf_counter() - begin < WAIT_S:
                state = near.agent.check_xfer_state(handle)
            times.append(time.perf_counter() - begin)
            if state != "DONE":
                raise SystemExit(f"{backend} {mine} {theirs} {call}: {state}")
        torch.cuda.synchronize()
        took.append(statistics.median(times))
        pipe.send(True)
        after, ours = pipe.recv(), near.data.cpu().numpy()
        for a, b in zip(here_at, there_at):
            before[b:b + block_b] = ours[a:a + block_b]
        if (before != after).any():
            raise SystemExit(f"{backend} {mine} {theirs} {call}: wrong bytes")
    pipe.send(False)
    far.join(WAIT_S)
    return took


def main(args):
    rounds, gpus = int(args[0]) if args else 3, int(args[1]) if args[1:] else 1
    os.sched_setaffinity(0, range(4))
    torch.set_num_threads(1)
    for mine, theirs, call in WAYS:
        took = {"GX": [], "UCX": []}
        for turn in range(rounds):
            for backend in list(took) if turn % 2 else reversed(took):
                took[backend].append(measure(backend, mine, theirs, call, gpus))
        for i, (count, kib) in enumerate(POINTS):
            gx, ucx = (statistics.median(times[i] for times in took[b]) for b in ("GX", "UCX"))
            rate = count * (kib << 10) / 1e9
            print(f"{call} {mine} to {theirs} {count} x {kib} KiB: gx {gx * 1e6:.0f} us {rate / gx:.1f} GB/s, "
                  f"UCX {ucx * 1e6:.0f} us {rate / ucx:.2f} GB/s, {ucx / gx:.1f} x", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
