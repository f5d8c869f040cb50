#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What users have today for rows by an index list into GPU memory: beside `gxperf h2d`, on the same machine.

usage: h2d_rivals.py [ROW_BYTES [NR [SLOTS]]]      default 656 262144 300000; needs PyTorch and a GPU

Rows are drawn with repeats. Each way is checked against the source; GB/s count payload. One JSON line each.
"""
import ctypes
import json
import sys
import time

import torch


def timed(name, fn, check, nbytes, rounds=5):
    fn()
    torch.cuda.synchronize()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        fn()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    median = sorted(times)[len(times) // 2]
    print(json.dumps({"op": name, "GB_s": round(nbytes / median / 1e9, 3), "ms": round(median * 1e3, 3),
                      "ok": bool(check())}), flush=True)


class Attributes(ctypes.Structure):
    """CUmemcpyAttributes: source access order, two location hints, flags."""
    _fields_ = [("order", ctypes.c_int), ("src", ctypes.c_int * 2), ("dst", ctypes.c_int * 2), ("flags", ctypes.c_uint)]


def batch_copy(src, dst, index, row):
    """One cuMemcpyBatchAsync of a copy for each row."""
    n = len(index)
    srcs = (ctypes.c_void_p * n)(*[src.data_ptr() + i * row for i in index.tolist()])
    dsts = (ctypes.c_void_p * n)(*[dst.data_ptr() + i * row for i in range(n)])
    sizes = (ctypes.c_size_t * n)(*[row] * n)
    attr, first = Attributes(order=1), ctypes.c_size_t(0)
    cuda = ctypes.CDLL("libcuda.so.1")
    stream = torch.cuda.Stream()

    def run():
        ret = cuda.cuMemcpyBatchAsync_v2(dsts, srcs, sizes, ctypes.c_size_t(n), ctypes.byref(attr),
                                         ctypes.byref(first), ctypes.c_size_t(1), ctypes.c_void_p(stream.cuda_stream))
        if ret:
            raise RuntimeError(f"cuMemcpyBatchAsync: {ret}")
    return run


def main(row=656, nr=262144, slots=300000):
    torch.manual_seed(1)
    src = torch.randint(0, 256, (slots, row), dtype=torch.uint8).pin_memory()
    index = torch.randint(0, slots, (nr,))
    dst = torch.zeros((nr, row), dtype=torch.uint8, device="cuda")
    want = src[index].cuda()
    stage = torch.empty((nr, row), dtype=torch.uint8).pin_memory()

    def same():
        equal = torch.equal(dst, want)
        dst.zero_()
        return equal

    def pageable():
        dst.copy_(torch.index_select(src, 0, index))

    def pinned():
        torch.index_select(src, 0, index, out=stage)
        dst.copy_(stage, non_blocking=True)

    print(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}, {torch.get_num_threads()} threads, "
          f"{nr} of {slots} rows of {row} bytes", flush=True)
    timed("index_select + copy", pageable, same, nr * row)
    timed("index_select into pinned + copy", pinned, same, nr * row)
    few = min(nr, 16384)
    run = batch_copy(src, dst, index[:few], row)

    def same_few():
        return torch.equal(dst[:few], want[:few])
    timed(f"cuMemcpyBatchAsync of {few}", run, same_few, few * row, 2)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
