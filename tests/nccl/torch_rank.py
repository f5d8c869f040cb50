#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A rank of torch_nccl.py: takes a command a line on stdin, answers with a line of JSON on stdout.

    torch_rank.py RANK GPU FOLDER"""
import ctypes
import hashlib
import json
import os
import re
import resource
import signal
import sys
import time
from datetime import timedelta

HALVES = ("all_gather", "reduce_scatter", "all_to_all")  # a rank's part is half of the message


class Worker:
    """Its public methods are the commands."""

    def __init__(self, rank, gpu, folder):
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        self.rank, self.folder, self.generation, self.out = rank, folder, 0, None
        self.dev = torch.device("cuda", gpu)
        torch.cuda.set_device(self.dev)
        torch.use_deterministic_algorithms(True, warn_only=True)

    def init(self):
        self.generation += 1
        self.dist.init_process_group("nccl", init_method=f"file://{self.folder}/meet.{self.generation}", rank=self.rank,
                                     world_size=2, timeout=timedelta(seconds=300), device_id=self.dev)
        one = self.torch.full((1,), self.rank + 1, device=self.dev)
        self.dist.all_reduce(one)
        torch = self.torch
        return {"sum": one.item(), "torch": torch.__version__, "nccl": ".".join(map(str, torch.cuda.nccl.version())),
                "gpu": torch.cuda.get_device_name(self.dev), "cpus": len(os.sched_getaffinity(0))}

    def destroy(self):
        self.dist.destroy_process_group()
        return {}

    def memory(self):
        with open("/proc/self/status", encoding="ascii") as f:
            kib = int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1))
        return {"rss_MB": kib // 1024, "fds": len(os.listdir("/proc/self/fd"))}

    def meet(self):
        self.dist.all_reduce(self.torch.zeros(1, device=self.dev))
        self.torch.cuda.synchronize()

    # --- operations ---

    def pattern(self, rank, at, count, dtype, seed):
        """Elements at.. of a rank's input. A sum of two is exact in each type."""
        i = self.torch.arange(at, at + count, device=self.dev, dtype=self.torch.int64)
        if dtype == self.torch.int64:
            return i * 6364136223846793005 + (rank * 1442695040888963407 + seed)
        return ((i * 7919 + (i >> 8) * 31 + rank * 13 + seed) % 61).to(dtype)

    def pieces(self, count):
        return [(at, min(1 << 24, count - at)) for at in range(0, count, 1 << 24)]

    def buffers(self, op, dtype, size):
        """(input, output, elements of a message). Memory begins behind 8 bytes, as a user's slice may."""
        torch = self.torch
        n = max(1, size // dtype.itemsize)
        half = op in HALVES
        n += n % 2 if half else 0
        skip = 8 // dtype.itemsize
        shape = {"all_gather": (n // 2, n), "reduce_scatter": (n, n // 2), "all_to_all": (n, n)}.get(op, (n, 0))
        made = [torch.empty(count + skip, dtype=dtype, device=self.dev)[skip:] for count in shape]
        return made[0], made[1] if half else made[0], n

    def go(self, op, x, y):
        """One operation, queued."""
        dist = self.dist
        if op == "all_reduce":
            dist.all_reduce(x)
        elif op == "all_gather":
            dist.all_gather_into_tensor(y, x)
        elif op == "reduce_scatter":
            dist.reduce_scatter_tensor(y, x)
        elif op == "all_to_all":
            dist.all_to_all_single(y, x)
        elif op == "broadcast":
            dist.broadcast(x, 0)
        elif self.rank == 0:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)

    def right(self, op, n):
        """What the output must be: [(at, elements, [(rank, at in its input)], which are summed)]."""
        h, me = n // 2, self.rank
        return {"all_reduce": [(0, n, [(0, 0), (1, 0)])],
                "all_gather": [(0, h, [(0, 0)]), (h, h, [(1, 0)])],
                "reduce_scatter": [(0, h, [(0, me * h), (1, me * h)])],
                "all_to_all": [(0, h, [(0, me * h)]), (h, h, [(1, me * h)])]}.get(op, [(0, n, [(0, 0)])])

    def fill(self, op, x, y, seed):
        y.fill_(-1)
        if op in ("broadcast", "send_recv") and self.rank == 1:
            return
        for at, count in self.pieces(x.numel()):
            x[at:at + count] = self.pattern(self.rank, at, count, x.dtype, seed)

    def wrong(self, op, y, n, seed):
        bad = 0
        for begin, count, sources in self.right(op, n):
            for at, some in self.pieces(count):
                want = sum(self.pattern(rank, of + at, some, y.dtype, seed) for rank, of in sources)
                bad += (y[begin + at:begin + at + some] != want).sum().item()
        return bad

    def check(self, op, dtype, sizes, seed):
        """Each size once, compared."""
        dtype = getattr(self.torch, dtype)
        bad, checked = {}, 0
        for size in sizes:
            x, y, n = self.buffers(op, dtype, size)
            self.fill(op, x, y, seed)
            self.go(op, x, y)
            bad[size] = self.wrong(op, y, n, seed)
            checked += y.numel() * y.element_size()
        return {"wrong": sum(bad.values()), "checked_b": checked, "wrong_sizes": [s for s, w in bad.items() if w]}

    def time(self, op, size, count):
        """Time of an operation among count that are queued at once; then one whose payload is compared."""
        torch = self.torch
        x, y, n = self.buffers(op, torch.float32, size)
        x.zero_()
        for _ in range(max(2, count // 4)):
            self.go(op, x, y)
        self.meet()
        cpu, begin = time.process_time(), time.perf_counter()
        for _ in range(count):
            self.go(op, x, y)
        torch.cuda.synchronize()
        wall = time.perf_counter() - begin
        cpu = time.process_time() - cpu
        self.fill(op, x, y, count)
        self.go(op, x, y)
        return {"us": wall / count * 1e6, "cores": cpu / wall, "wrong": self.wrong(op, y, n, count)}

    def calls(self, times):
        """all_reduce while this thread allocates and frees: calls that may wait for the GPU, or hold a lock of the driver."""
        torch = self.torch
        x = torch.full((4 << 20,), self.rank + 1, device=self.dev)
        begin = time.perf_counter()
        for i in range(times):
            for _ in range(20):
                self.dist.all_reduce(x, op=self.dist.ReduceOp.MAX)
            some = torch.empty(32 << 20 << i % 4, dtype=torch.uint8, device=self.dev)
            pinned = torch.empty((1 << 20) + i, dtype=torch.uint8, pin_memory=True)
            del some, pinned
            torch.cuda.empty_cache()
        torch.cuda.synchronize()
        return {"seconds": time.perf_counter() - begin, "wrong": (x != 2).sum().item()}

    # --- DDP ---

    def ddp(self, steps):
        torch, nn = self.torch, self.torch.nn
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 10))
        model = nn.parallel.DistributedDataParallel(model.to(self.dev), device_ids=[self.dev.index])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        data = torch.Generator().manual_seed(100 + self.rank)
        losses = []
        for _ in range(steps):
            x = torch.randn(64, 256, generator=data).to(self.dev)
            want = torch.randint(0, 10, (64,), generator=data).to(self.dev)
            loss = nn.functional.cross_entropy(model(x), want)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
        bits = [p.detach().reshape(-1).view(torch.int32).to(torch.int64) for p in model.parameters()]
        sums = [(b * torch.arange(1, b.numel() + 1, device=self.dev)).sum().item() for b in bits]
        return {"losses": losses, "weights": hashlib.sha256(repr(sums).encode()).hexdigest()}

    # --- FSDP ---

    def fsdp(self, steps, layers):
        """Layers of 33.6 million parameters in bfloat16, sharded: a step gathers each twice, and scatters its gradients once."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        torch, nn = self.torch, self.torch.nn
        torch.manual_seed(1)
        block = lambda: nn.Sequential(nn.Linear(2048, 8192), nn.GELU(), nn.Linear(8192, 2048), nn.LayerNorm(2048))
        model = nn.Sequential(*[block() for _ in range(layers)], nn.Linear(2048, 1000)).to(self.dev, torch.bfloat16)
        mesh = init_device_mesh("cuda", (2,))
        for part in model:
            fully_shard(part, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        data = torch.Generator().manual_seed(100 + self.rank)
        losses, took = [], []
        for _ in range(steps):
            x = torch.randn(256, 2048, generator=data).to(self.dev, torch.bfloat16)
            want = torch.randint(0, 1000, (256,), generator=data).to(self.dev)
            self.meet()
            begin = time.perf_counter()
            loss = nn.functional.cross_entropy(model(x).float(), want)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            torch.cuda.synchronize()
            took.append(time.perf_counter() - begin)
            losses.append(loss.item().hex())
        took.sort()
        return {"losses": losses, "parameters": sum(p.numel() for p in model.parameters()), "step_ms": took[len(took) // 2] * 1e3}

    # --- overlap ---

    def load(self, load):
        """A computation as a function. Its result is the same each time."""
        torch = self.torch
        torch.manual_seed(2)
        if load["kind"] == "attention":
            q, k, v = (torch.randn(load["shape"], dtype=torch.bfloat16, device=self.dev) for _ in range(3))
            return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        rows, columns = load["tiles"]
        a = torch.randn(128 * rows, 8192, dtype=torch.bfloat16, device=self.dev)
        b = torch.randn(8192, 128 * columns, dtype=torch.bfloat16, device=self.dev)
        out = torch.empty(128 * rows, 128 * columns, dtype=torch.bfloat16, device=self.dev)
        return lambda: torch.mm(a, b, out=out)

    def span(self, job, times):
        """Seconds for each of some jobs, which both ranks begin together."""
        job()
        self.meet()
        begin = time.perf_counter()
        for _ in range(times):
            job()
        self.torch.cuda.synchronize()
        return (time.perf_counter() - begin) / times

    def overlap(self, load, op, size, runs, times):
        """Without runs: the load's time alone, and the operation's. With: those of that many runs, of the operation, and of
        both at once."""
        compute = self.load(load)
        want = compute().clone()
        x, y, n = self.buffers(op, self.torch.bfloat16, size)
        self.fill(op, x, y, 3)

        def computes():
            for _ in range(max(1, runs)):
                out = compute()
            return out

        def moves():
            self.go(op, x, y)

        def both():
            if op == "all_gather":
                work = self.dist.all_gather_into_tensor(y, x, async_op=True)
            else:
                work = self.dist.all_to_all_single(y, x, async_op=True)
            computes()
            work.wait()

        reply = {"comp": self.span(computes, times), "comm": self.span(moves, times)}
        if runs:
            y.fill_(-1)
            reply["both"] = self.span(both, times)
            reply["wrong"] = self.wrong(op, y, n, 3) + int((computes() != want).sum().item())
        return reply

    # --- ends ---

    def forever(self):
        """All-reduce until the process ends. Answers after the first ones."""
        x = self.torch.ones(1 << 20, device=self.dev)
        for i in range(1 << 30):
            self.dist.all_reduce(x)
            self.torch.cuda.synchronize()
            x.fill_(1)
            if i == 3:
                self.answer({})
        return {}

    def answer(self, reply):
        self.out.write(json.dumps(reply) + "\n")
        self.out.flush()

    def serve(self, out):
        self.out = out
        self.answer({})
        for line in sys.stdin:
            command = json.loads(line)
            do = command.pop("do")
            if do == "quit":
                break
            try:
                self.answer(getattr(self, do)(**command))
            except Exception as err:  # pylint: disable=broad-except
                self.answer({"error": f"{type(err).__name__}: {err}"[:600]})
                raise


def main():
    """Commands come and go by the first stdin and stdout; what libraries print goes to the log."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.CDLL(None).prctl(1, signal.SIGKILL) # PR_SET_PDEATHSIG: no rank outlives this program
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    Worker(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]).serve(out)
    os._exit(0)  # PyTorch's and CUDA's ends are not what is tested


if __name__ == "__main__":
    main()
