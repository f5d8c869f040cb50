#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NCCL send/recv between two GPUs of one host over TCP sockets only (P2P and shared memory off): the rival of a put over
a port. Needs PyTorch and two GPUs. Prints "SIZE_B GB/s" lines."""
import os
import sys
import time

os.environ.update({"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket",
                   "NCCL_SOCKET_IFNAME": "lo", "NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4",
                   "NCCL_NVLS_ENABLE": "0", "MASTER_ADDR": "127.0.0.1"})


def worker(rank, port):
    import torch
    import torch.distributed as dist

    os.environ["MASTER_PORT"] = str(port)
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2)
    for size in (1 << 20, 64 << 20):
        n = max(8, (1 << 30) // size // 2)
        t = torch.ones(size, dtype=torch.uint8, device="cuda")

        def go(k):
            for _ in range(k):
                if rank == 0:
                    dist.send(t, 1)
                else:
                    dist.recv(t, 0)
            torch.cuda.synchronize()

        go(4)
        dist.barrier()
        torch.cuda.synchronize()
        t0 = time.time()
        go(n)
        if rank == 1:
            print(size, f"{size * n / (time.time() - t0) / 1e9:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    import torch

    if torch.cuda.device_count() < 2:
        print("two GPUs are needed", file=sys.stderr)
        sys.exit(77)
    import torch.multiprocessing as mp

    mp.spawn(worker, args=(29500 + os.getpid() % 1000,), nprocs=2)
