# SPDX-License-Identifier: Apache-2.0
"""The weights of a trainer go into the tensors of an inference process: one list and one notification for a version.

    weights.py                            both processes here, on the CPU
    weights.py --device cuda              torch tensors, of the first GPU and of the last
    weights.py read; weights.py train ADDRESS        on two hosts, with GX_KEY_FILE=job.key

The reader has two sets of tensors, and reads one. The trainer writes the other. Its notification comes after all
bytes, and the reader goes over to that set, and says so. So it sees version v or v + 1, never a mix of both."""
import argparse
import multiprocessing
import os
import statistics
import time
from typing import Any

import gx

HIDDEN, INNER, KV, LAYERS, WORDS = 1536, 8960, 256, 28, 151936  # of a model of 1.5 billion parameters, in 338 tensors


def sizes(scale: int) -> list[int]:
    """Bytes of the tensors, in bfloat16."""
    h, inner, kv, words = (n // scale for n in (HIDDEN, INNER, KV, WORDS))
    layer = [h * h, h, kv * h, kv, kv * h, kv, h * h, inner * h, inner * h, inner * h, h, h]
    return [2 * n for n in [words * h, *layer * LAYERS, h]]


class Tensors:
    """A state dict: of torch on a GPU, or of plain memory."""

    def __init__(self, args: argparse.Namespace, last: bool) -> None:
        self.torch = __import__("torch") if args.device == "cuda" else None
        if self.torch:
            self.gpu = self.torch.device("cuda", self.torch.cuda.device_count() - 1 if last else 0)
            self.torch.cuda.set_device(self.gpu)  # torch exports tensors of this one alone
            self.all = [self.torch.zeros(b, dtype=self.torch.uint8, device=self.gpu) for b in sizes(args.scale)]
        else:
            self.all = [bytearray(b) for b in sizes(args.scale)]
        self.bytes = sum(sizes(args.scale))

    def train(self, version: int) -> None:
        """A step of the optimizer, as it were: each byte is the version."""
        for tensor in self.all:
            if self.torch:
                tensor.fill_(version)
            else:
                tensor[:] = bytes([version]) * len(tensor)
        if self.torch:
            self.torch.cuda.synchronize(self.gpu)  # gx reads what the streams have written

    def are(self, version: int) -> bool:
        """The work of the inference process: it reads all of them."""
        return all(bool((t == version).all()) if self.torch else t.count(version) == len(t) for t in self.all)


def read(args: argparse.Namespace, pipe: Any = None) -> None:
    with gx.Context(args.cores) as g:
        sets = [Tensors(args, last=True), Tensors(args, last=True)]
        memories = [g.register(tensor) for one in sets for tensor in one.all]
        keys = g.alloc(64 * len(memories))  # the trainer gets it by its name
        memoryview(keys)[:] = b"".join(memory.key(gx.PUT) for memory in memories)
        keys.share("keys", gx.GET)
        host = gx.host_address() if "GX_KEY_FILE" in os.environ else "127.0.0.1"
        address = f"{host}:{g.listen(f'{host}:0')}"
        pipe.send(address) if pipe else print(f"weights.py train {address}", flush=True)
        peer, version, reads = g.accept(120), 0, 0
        while version < args.versions:
            if notes := g.notifications(0 if version else 120):
                version = notes[-1][1][0]
                peer.notify(bytes([version]))  # from here on nobody reads the other set
            if version:
                assert sets[version % 2].are(version), f"version {version} has bytes of another one"
                reads += 1
        print(f"read: {reads} times all of {len(sets[0].all)} tensors, none was a mix; link {peer.info()['link']}", flush=True)


def train(args: argparse.Namespace, address: str) -> None:
    with gx.Context(args.cores) as g, g.connect(address) as peer:
        mine, took = Tensors(args, last=False), []
        memories = [g.register(tensor) for tensor in mine.all]
        keys = bytearray(64 * 2 * len(memories))
        peer.get(keys, peer.region("keys")).wait(30)
        regions = [peer.region(bytes(keys[i:i + 64])) for i in range(0, len(keys), 64)]
        sets = [regions[:len(memories)], regions[len(memories):]]
        for version in range(1, args.versions + 1):
            mine.train(version)
            if version > 1 and not g.notifications(120):  # that the reader has gone over to the last one
                raise SystemExit("the reader says nothing")
            begin = time.perf_counter()
            peer.put_many(mine.all, sets[version % 2], [0] * len(memories), notify=bytes([version])).wait(120)
            took.append(time.perf_counter() - begin)
        g.notifications(120)
        middle = statistics.median(took)
        print(f"train: {mine.bytes / 1e9:.2f} GB in {len(memories)} tensors, median of {len(took)}: {middle * 1e3:.1f} ms, "
              f"{mine.bytes / middle / 1e9:.1f} GB/s", flush=True)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("role", nargs="?", choices=("both", "read", "train"), default="both")
    p.add_argument("address", nargs="?", help="of the reader, as it prints it")
    p.add_argument("--device", choices=("host", "cuda"), default="host")
    p.add_argument("--cores", type=lambda text: [int(cpu) for cpu in text.split(",")], help="CPUs of gx's cores, as 4,5; default: one, anywhere")
    p.add_argument("--scale", type=int, default=8, help="1: 3.1 GB, as the model has them; default 8: 50 MB")
    p.add_argument("--versions", type=int, default=5, help="at most 255")
    args = p.parse_args()
    if args.role == "read":
        read(args)
    elif args.role == "train":
        train(args, args.address)
    else:
        spawn = multiprocessing.get_context("spawn")
        here, there = spawn.Pipe()
        reader = spawn.Process(target=read, args=(args, there))
        reader.start()
        train(args, here.recv())
        reader.join()
        raise SystemExit(reader.exitcode)


if __name__ == "__main__":
    main()
