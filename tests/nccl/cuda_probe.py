#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What passes a kernel that waits: can copies end while a kernel holds the GPU, as NCCL's do?

    python3 tests/nccl/cuda_probe.py
    CUDA_DEVICE_MAX_CONNECTIONS=1 python3 tests/nccl/cuda_probe.py --only copies

A kernel spins on a word in host memory. Meanwhile a thread does as mode cuda of gx's NCCL plugin
does: it queues copies and a word behind them, on a stream of the highest priority. Each case does
something more, which a program may do beside a collective. One JSON line a case:
  call    ms until the calls that queue had returned; null: they waited in the driver for the kernel
  done    ms until the word was there; null: the copies waited for the kernel
  beside  ms of the other call; null: it waited for the kernel itself
Then a table. Nothing of gx runs here; docs/measured/nccl.md has the figures of one machine.

Needs a GPU and its driver, no toolkit; takes 15 s. Exit status: 77 without a GPU; 1 when copies do
not pass a kernel that has nothing beside it (then no mode of the plugin works that copies); 2 when a
call of the driver fails; else 0, whatever waits."""
import argparse
import ctypes
import json
import os
import sys
import threading
import time

SPIN = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 word){
 .reg .u64 at; .reg .u32 value; .reg .pred again;
 ld.param.u64 at,[word];
L: ld.volatile.global.u32 value,[at];
 setp.eq.u32 again,value,0;
 @again bra L;
 ret;}
.visible .entry nop(.param .u64 word){ ret; }
"""
P, U64, SIZE = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t
SIZES = (4096, 1 << 20)
HOST_B = 8 << 20
STREAMS = 16  # of the program; hardware has fewer queues
WAIT_S = 2.5  # then the kernel is let go
DONE_S = 1.5  # of these, for the copies


class Driver:
    """libcuda, with the primary context of one GPU."""

    def __init__(self, device):
        try:
            self.lib = ctypes.CDLL("libcuda.so.1")
        except OSError as err:
            skip(f"no NVIDIA driver: {err}")
        handle, self.ctx = ctypes.c_int(), P()
        if self.lib.cuInit(0) or self.lib.cuDeviceGet(ctypes.byref(handle), device):
            skip(f"no GPU {device}")
        self.cuDevicePrimaryCtxRetain(ctypes.byref(self.ctx), handle)
        self.here()

    def __getattr__(self, name):
        call = getattr(self.lib, name)

        def checked(*args):
            err = call(*args)
            if err:
                print(f"{name}: error {err}", file=sys.stderr, flush=True)
                os._exit(2)  # another thread may hang in the driver
        return checked

    def here(self):
        """Each thread that calls the driver says so first."""
        self.cuCtxSetCurrent(self.ctx)

    def new(self, name, kind, *args):
        out = kind()
        getattr(self, name)(ctypes.byref(out), *args)
        return out

    def stream(self, priority=0):
        return self.new("cuStreamCreateWithPriority", P, 1, priority)

    def host(self, size):
        return self.new("cuMemHostAlloc", P, SIZE(size), 3)

    def device(self, size):
        return self.new("cuMemAlloc_v2", U64, SIZE(size))

    def kernel(self, module, name):
        return self.new("cuModuleGetFunction", P, module, name)

    def launch(self, kernel, stream, word):
        arg = U64(word.value)
        args = (P * 1)(ctypes.cast(ctypes.byref(arg), P))
        self.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, args, None)


def skip(why):
    print(why, file=sys.stderr)
    sys.exit(77)


class Probe:
    def __init__(self, device, only):
        self.cu, self.only, self.results, self.nr = Driver(device), only, [], 0
        low, high = ctypes.c_int(), ctypes.c_int()
        self.cu.cuCtxGetStreamPriorityRange(ctypes.byref(low), ctypes.byref(high))
        module = self.cu.new("cuModuleLoadData", P, SPIN)
        self.spin, self.nop = self.cu.kernel(module, b"spin"), self.cu.kernel(module, b"nop")
        self.pinned, self.go, self.word = self.cu.host(HOST_B), self.cu.host(4096), self.cu.host(4096)
        self.source, self.sink = self.cu.device(HOST_B), self.cu.device(HOST_B)
        self.pageable = (ctypes.c_char * (1 << 20))()
        self.busy, self.fast = self.cu.stream(), self.cu.stream(high.value)
        self.others = [self.cu.stream() for _ in range(STREAMS)]
        for stream in (self.busy, self.fast, *self.others):  # what is made at first use is made now
            self.copies(stream, {})
            self.cu.launch(self.nop, stream, self.go)
        self.cu.cuCtxSynchronize()

    def let_go(self, value):
        ctypes.c_uint32.from_address(self.go.value).value = value

    def at(self, off):
        return U64(self.pinned.value + off)

    def copies(self, stream, out, ways=("d2h", "h2d")):
        """Queue, and look at the word that the GPU writes behind."""
        self.cu.here()
        begin = time.monotonic()
        self.nr += 1
        mine = self.nr
        for size in SIZES:
            if "d2h" in ways:
                self.cu.cuMemcpyAsync(self.at(0), self.source, SIZE(size), stream)
            if "h2d" in ways:
                self.cu.cuMemcpyAsync(self.sink, self.at(4 << 20), SIZE(size), stream)
        self.cu.cuStreamWriteValue32_v2(stream, U64(self.word.value), ctypes.c_uint32(mine), 0)
        out["call"] = time.monotonic() - begin
        seen = ctypes.c_uint32.from_address(self.word.value)
        while seen.value != mine and time.monotonic() - begin < DONE_S:
            pass
        out["done"] = time.monotonic() - begin if seen.value == mine else None

    def case(self, name, beside=None, before=None, stream=None, **how):
        """@before: done when the kernel spins; @beside: a thread does it."""
        if self.only not in name:
            return
        self.let_go(0)
        self.cu.launch(self.spin, self.busy, self.go)
        time.sleep(0.02)
        if before:
            before()
        other, span = None, []

        def call():
            self.cu.here()
            begin = time.monotonic()
            beside()
            span.append(time.monotonic() - begin)

        if beside:
            other = threading.Thread(target=call, daemon=True)
            other.start()
            time.sleep(0.1)
        out = {}
        copier = threading.Thread(target=self.copies, args=(stream or self.fast, out), kwargs=how, daemon=True)
        copier.start()
        copier.join(WAIT_S)
        result = {"case": name, "call": out.get("call"), "done": out.get("done")}
        if beside:
            result["beside"] = span[0] if span else None
        self.let_go(1)
        copier.join()
        if other:
            other.join()
        self.cu.cuCtxSynchronize()
        result.update({key: round(value * 1e3, 3) for key, value in result.items() if isinstance(value, float)})
        self.results.append(result)
        print(json.dumps(result), flush=True)

    # --- what a program does ---

    def queue_behind(self):
        self.cu.cuMemcpyAsync(self.at(2 << 20), self.source, SIZE(1 << 20), self.busy)
        self.cu.cuMemcpyAsync(self.sink, self.at(5 << 20), SIZE(1 << 20), self.busy)

    def queue_many(self):
        event = self.cu.new("cuEventCreate", P, 2)
        self.cu.cuEventRecord(event, self.busy)
        for stream in self.others:
            self.cu.cuStreamWaitEvent(stream, event, 0)
            self.cu.cuMemcpyAsync(self.at(2 << 20), self.source, SIZE(1 << 20), stream)
            self.cu.cuMemcpyAsync(self.sink, self.at(5 << 20), SIZE(1 << 20), stream)
            self.cu.launch(self.nop, stream, self.go)

    def load(self):
        module = self.cu.new("cuModuleLoadData", P, SPIN)
        self.cu.launch(self.cu.kernel(module, b"nop"), self.others[2], self.go)

    def run(self):
        cu, other = self.cu, self.others[3]
        paged = U64(ctypes.addressof(self.pageable))
        gone, gone_host = cu.device(64 << 20), cu.host(1 << 20)
        self.case("copies: alone")
        for way in ("d2h", "h2d"):
            self.case(f"copies: alone, {way}", ways=(way,))
        self.case("copies: alone, normal stream", stream=other)
        self.case("copies: others behind the kernel, on its stream", before=self.queue_behind)
        self.case(f"copies: {STREAMS} streams wait for the kernel", before=self.queue_many)
        self.case("calls: cuMemAlloc", lambda: cu.device(64 << 20))
        self.case("calls: cuMemFree", lambda: cu.cuMemFree_v2(gone))
        self.case("calls: cuMemHostAlloc", lambda: cu.host(32 << 20))
        self.case("calls: cuMemFreeHost", lambda: cu.cuMemFreeHost(gone_host))
        self.case("calls: first launch of a module", self.load)
        self.case("calls: cuStreamCreate", cu.stream)
        self.case("calls: cuCtxSynchronize", cu.cuCtxSynchronize)
        self.case("calls: cuStreamSynchronize", lambda: cu.cuStreamSynchronize(self.busy))
        self.case("calls: cuMemcpyDtoH, default stream", lambda: cu.cuMemcpyDtoH_v2(P(self.at(6 << 20).value), self.source, SIZE(4096)))
        self.case("calls: pageable copy from the GPU", lambda: cu.cuMemcpyAsync(paged, self.source, SIZE(1 << 20), self.busy))
        self.case("calls: pageable copy to the GPU", lambda: cu.cuMemcpyAsync(self.sink, paged, SIZE(1 << 20), self.busy))

    def table(self):
        text = lambda r, key: "waits" if r[key] is None else f"{r[key]:.2f}"
        print(f"{'case':50} {'call':>8} {'done':>8} {'beside':>8}  ms")
        for r in self.results:
            print(f"{r['case']:50} {text(r, 'call'):>8} {text(r, 'done'):>8} {text(r, 'beside') if 'beside' in r else '':>8}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--device", type=int, default=0, help="CUDA ordinal")
    p.add_argument("--only", default="", help="cases with this text in their name")
    opts = p.parse_args()
    probe = Probe(opts.device, opts.only)
    probe.run()
    probe.table()
    alone = [r for r in probe.results if r["case"] == "copies: alone"]
    sys.exit(1 if alone and alone[0]["done"] is None else 0)


if __name__ == "__main__":
    main()
