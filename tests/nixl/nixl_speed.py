#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Blocks at random places with one notification, two processes: the backends GX and UCX of one wheel, in turns. Bytes are compared.

usage: nixl_speed.py [ROUNDS]

For a Python that has NIXL's wheel with the backend GX linked into it (docs/nixl.md). A line for each round, and the medians.
"""
import statistics
import sys

from nixl_cases import blocks_at, moved, same
from nixl_node import Node

SIZES = [(kib, count) for count in (1, 256, 4096) for kib in (1, 4, 16, 64)]
POSTS = {1: 400, 256: 40, 4096: 10}


def measure(backend, kib, count):
    """Return: (ns of a transfer, of the post alone)."""
    left, right = Node("left", {}, backend), Node("right", {}, backend)
    block_b = kib << 10
    there, _ = right.array("there", block_b * count, 2), left.array("here", block_b * count, 1)
    left.add(right.meta())
    blocks = blocks_at(count, block_b)
    wanted = moved("WRITE", left.data("here"), right.data("there"), blocks)
    left.prepare("x", "WRITE", "here", "right", there, blocks, b"note")
    same(left.run("x"), "DONE")
    right.begin("notes", POSTS[count] + 1)
    times = left.timed("x", POSTS[count])
    same(len(right.end()), POSTS[count] + 1, "notifications")
    same(right.data("there") == wanted[1], True, "bytes")
    right.stop()
    left.stop()
    return times


def main(args):
    rounds = int(args[0]) if args else 3
    got = {}
    for turn in range(rounds):
        for kib, count in SIZES:
            for backend in ("UCX", "GX") if turn % 2 else ("GX", "UCX"):
                got.setdefault((kib, count, backend), []).append(measure(backend, kib, count))
    print("KiB blocks | GX us  post ns/block  GB/s | UCX us  post ns/block  GB/s | GX/UCX blocks/s")
    for kib, count in SIZES:
        cells, wholes = [], {}
        for backend in ("GX", "UCX"):
            whole, post = (statistics.median(t[i] for t in got[kib, count, backend]) for i in (0, 1))
            wholes[backend] = whole
            cells.append(f"{whole / 1000:9.1f} {post / count:8.0f} {kib * 1024 * count / whole:6.2f}")
        print(f"{kib:3} {count:6} | {cells[0]} | {cells[1]} | {wholes['UCX'] / wholes['GX']:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
