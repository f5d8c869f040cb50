#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Blocks at random places with one notification, between two processes on two CPUs, in turns: gx itself (gxperf blocks), gx by its
Python package, gx as NIXL's backend, UCX as NIXL's backend. Bytes are compared.

usage: nixl_speed.py BUILD [ROUNDS [FILE]]

For a Python that has NIXL's wheel with the backend GX linked into it (docs/nixl.md), and a release BUILD, on a
machine that does nothing else: each way polls on both CPUs. Prints the medians; FILE gets
them as JSON, for gxperf plot. A transfer lasts from its post until this end knows that it is done; gxperf's also until the program
there has answered. Of the transfers of a round the faster half counts; of gxperf its median.
"""
import json
import multiprocessing
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from nixl_cases import blocks_at, moved, same
from nixl_node import Node, WAIT_S

POINTS = [(1, 4)] + [(count, kib) for count in (256, 4096) for kib in (1, 4, 16, 64)]
POSTS = {1: 2000, 256: 40, 4096: 10}
FAR, NEAR = (sorted(os.sched_getaffinity(0))[i] for i in (0, -1))
SOURCE = pathlib.Path(__file__).resolve().parents[2]


def pin(pid, cpu):
    for task in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(task), {cpu})


def halves(pairs):
    """The mean of the faster half, of each."""
    half = (len(pairs) + 1) // 2
    return tuple(sum(sorted(values)[:half]) / half for values in zip(*pairs))


# Each way measures (kind, blocks, bytes of one). Return: ns of a transfer, of its post alone.

def nixl(backend):
    def measure(kind, count, block_b):
        left, right = Node("left", {}, backend), Node("right", {}, backend)
        there, _ = right.array("there", block_b * count, 2), left.array("here", block_b * count, 1)
        left.add(right.meta())
        pin(left.process.pid, NEAR)
        pin(right.process.pid, FAR)
        blocks = blocks_at(count, block_b)
        wanted = moved(kind, left.data("here"), right.data("there"), blocks)
        left.prepare("x", kind, "here", "right", there, blocks, b"note")
        same(left.run("x"), "DONE")
        right.begin("notes", POSTS[count] + 1)
        times = left.timed("x", POSTS[count])
        same(len(right.end()), POSTS[count] + 1, "notifications")
        same((left.data("here"), right.data("there")) == wanted, True, "bytes")
        right.stop()
        left.stop()
        return times
    return measure


def python_far(pipe, cpu, data, notes):
    """The other end: it takes @notes notifications."""
    import gx
    os.sched_setaffinity(0, {cpu})
    with gx.Context([]) as g:
        memory = g.alloc(len(data))
        memoryview(memory)[:] = data
        pipe.send((g.listen("127.0.0.1:0"), memory.key(gx.PUT | gx.GET)))
        g.accept(WAIT_S)
        until = time.monotonic() + WAIT_S
        while notes > 0 and time.monotonic() < until:
            notes -= len(g.notifications())
        pipe.send((notes, bytes(memory)))
        pipe.recv()


def python(kind, count, block_b):
    import gx
    ctx, pairs, total = multiprocessing.get_context("spawn"), [], count * block_b
    pipe, theirs = ctx.Pipe()
    mine, data = os.urandom(total), os.urandom(total)
    blocks = blocks_at(count, block_b)
    wanted = moved(kind, mine, data, blocks)
    far = ctx.Process(target=python_far, args=(theirs, FAR, data, POSTS[count] + 1), daemon=True)
    far.start()
    port, key = pipe.recv()
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {NEAR})
    with gx.Context([]) as g, g.connect(f"127.0.0.1:{port}") as peer:
        memory, region = g.alloc(total), peer.region(key)
        here = memoryview(memory)
        here[:] = mine
        views, offsets = [here[a:a + n] for a, _, n in blocks], [b for _, b, _ in blocks]
        call = peer.put_many if kind == "WRITE" else peer.get_many
        call(views, region, offsets, notify=b"first").wait(WAIT_S)
        time.sleep(0.1)  # the key's memory is mapped soon after it is taken
        for _ in range(POSTS[count]):
            begin = time.perf_counter_ns()
            op = call(views, region, offsets, notify=b"note")
            posted = time.perf_counter_ns() - begin
            op.wait(WAIT_S)
            pairs.append((time.perf_counter_ns() - begin, posted))
        left, theirs_now = pipe.recv()
        same(left, 0, "notifications that did not come")
        same((bytes(memory), theirs_now) == wanted, True, "bytes")
        pipe.send(None)
        del here, views
    os.sched_setaffinity(0, cpus)
    far.join(WAIT_S)
    return halves(pairs)


class Gxperf:
    """A gxd of its own, for all measurements."""

    def __init__(self, build):
        self.tools = build / "tools"
        self.gxd = subprocess.Popen([self.tools / "gxd", "--listen", "127.0.0.1:0", "--cores", str(FAR), "--mem", "kv=host:300M"],
                                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addr = self.gxd.stdout.readline().split()[2]

    def close(self):
        self.gxd.terminate()
        self.gxd.wait()

    def rows(self, kind, count, block_b):
        get = ["--get"] if kind == "READ" else []
        ran = subprocess.run([self.tools / "gxperf", "blocks", self.addr, "--cores", str(NEAR), "--blocks", str(count), "-s", str(block_b),
                              "-n", str(POSTS[count]), "--format", "json", *get], capture_output=True, text=True, check=True)
        return [(row["p50_us"] * 1000, row["post_ns"] * count) for row in json.loads(ran.stdout)["results"]]


def main(args):
    if not args:
        print(__doc__.split("\n\n")[1])
        return 2
    build, rounds = pathlib.Path(args[0]).resolve(), int(args[1]) if args[1:] else 3
    got, results = {}, []
    with tempfile.TemporaryDirectory() as room:
        shutil.copytree(SOURCE / "bindings/python/gx", f"{room}/gx")
        shutil.copy(build / "bindings/python/_gx.abi3.so", f"{room}/gx")
        sys.path.insert(0, room)
        gxperf = Gxperf(build)
        ways = {"gx": lambda *a: gxperf.rows(*a)[0], "gx unprepared": lambda *a: gxperf.rows(*a)[1], "Python": python,
                "NIXL gx": nixl("GX"), "NIXL UCX": nixl("UCX")}
        for turn in range(rounds):
            for kind in ("WRITE", "READ"):
                for count, kib in POINTS:
                    for way in list(ways) if turn % 2 else reversed(ways):
                        got.setdefault((kind, count, kib, way), []).append(ways[way](kind, count, kib << 10))
                    print(f"round {turn + 1}: {kind} {count} x {kib} KiB", file=sys.stderr)
        gxperf.close()
    for kind in ("WRITE", "READ"):
        for count, kib in POINTS:
            rows = {w: [statistics.median(t[i] for t in got[kind, count, kib, w]) for i in (0, 1)] for w in ways}
            print(f"{kind} {count} x {kib} KiB")
            for way, (whole, post) in rows.items():
                print(f"  {way:14}{whole / 1000:10.2f} us {kib * 1024 * count / whole:7.2f} GB/s {whole / count:8.0f} ns/block"
                      f"  post {post / count:8.1f} ns/block  over gx {(whole - rows['gx'][0]) / count:8.1f} ns/block"
                      f"  blocks/s {rows['NIXL UCX'][0] / whole:6.2f} x UCX")
                results.append({"op": f"{kind.lower()} {way}", "size_b": kib << 10, "blocks": count, "p50_us": whole / 1000,
                                "GB_s": kib * 1024 * count / whole, "blocks_s": count * 1e9 / whole, "post_ns": post / count})
    if args[2:]:
        pathlib.Path(args[2]).write_text(json.dumps({"command": "blocks", "results": results}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
