#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rivals of docs/examples/weights.py: the same 338 tensors from one GPU's process to another's, by NCCL or CUDA IPC.

    weights_rivals.py nccl|ipc RANK FOLDER [--versions N] [--scale N]       once for RANK 0, the trainer, once for 1

FOLDER is where both meet. nccl: a broadcast of each tensor, all in one group (one launch); NCCL's environment says
over what. ipc: the reader's memory is mapped by the trainer, which copies each tensor with torch. Both ranks stay in
step, and the trainer's clock ends when the reader has them. The reader compares every byte of the last version."""
import argparse
import os
import pathlib
import pickle
import statistics
import sys
import time

import torch
import torch.distributed as dist

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "docs/examples"))
from weights import sizes  # noqa: E402


def nccl(args, tensors):
    def step():
        with dist._coalescing_manager(device=tensors[0].device):  # pylint: disable=protected-access
            for tensor in tensors:
                dist.broadcast(tensor, 0)
    return step


def ipc(args, tensors):
    """The reader leaves what its tensors are shared by; the trainer opens that."""
    from torch.multiprocessing.reductions import reduce_tensor
    path = pathlib.Path(args.folder) / "tensors"
    if args.rank:
        path.with_suffix(".part").write_bytes(pickle.dumps([reduce_tensor(t) for t in tensors]))
        path.with_suffix(".part").rename(path)
        return lambda: None
    while not path.exists():
        time.sleep(0.01)
    theirs = [make(*what) for make, what in pickle.loads(path.read_bytes())]

    def step():
        for there, here in zip(theirs, tensors):
            there.copy_(here, non_blocking=True)
        torch.cuda.synchronize(tensors[0].device)
    return step


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("nccl", "ipc"))
    p.add_argument("rank", type=int)
    p.add_argument("folder")
    p.add_argument("--versions", type=int, default=10)
    p.add_argument("--scale", type=int, default=1)
    args = p.parse_args()
    gpu = torch.device("cuda", args.rank * (torch.cuda.device_count() - 1))
    torch.cuda.set_device(gpu)
    tensors = [torch.zeros(b, dtype=torch.uint8, device=gpu) for b in sizes(args.scale)]
    dist.init_process_group(args.what if args.what == "nccl" else "gloo", f"file://{os.path.abspath(args.folder)}/store", rank=args.rank, world_size=2,
                            **({"device_id": gpu} if args.what == "nccl" else {}))
    step, took = globals()[args.what](args, tensors), []
    for version in range(1, args.versions + 1):
        if args.rank == 0:
            for tensor in tensors:
                tensor.fill_(version)
        torch.cuda.synchronize(gpu)
        dist.barrier()
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize(gpu)
        took.append(time.perf_counter() - begin)
        dist.barrier()
    right = all(bool((t == args.versions).all()) for t in tensors)
    middle, total = statistics.median(took), sum(sizes(args.scale))
    print(f"{args.what}, rank {args.rank}: {total / 1e9:.2f} GB in {len(tensors)} tensors, median of {len(took)}: {middle * 1e3:.1f} ms, "
          f"{total / middle / 1e9:.1f} GB/s, {'right' if right else 'WRONG'}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(not right)


if __name__ == "__main__":
    main()
