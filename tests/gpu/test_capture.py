#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs that PyTorch captures in mode global, in a process that is a gx server as well.

    python3 tests/gpu/test_capture.py PATH-OF-libgx.so PATH-OF-gxperf [CAPTURES]

Clients (gxperf) come and go, put into memory of the GPU and of the host by the local link and by
packets, and a thread of this process allocates and frees memory through gx, while the main thread
captures a graph a hundred times, a third of them beside a server in each unpack mode of MODES. Each
capture must succeed, each graph must replay with the right results, each client must succeed, and
the thread's current device must be its own. Needs a GPU and PyTorch: ends with 77 without, and says
what is missing. With GX_FAKE_CUDA set (tests/fake/fake_cuda.c in the library path) captures are made
by the driver's calls, without PyTorch."""
import ctypes as c
import json
import os
import subprocess
import sys
import threading
import time

MEM_HOST, MEM_CUDA, PUT, GET = 0, 1, 1, 2
REGION_B = 64 << 20
HOLD_S = 0.02  # a capture is held open so long, for others to meet it
CLIENTS = (  # arguments of gxperf put, in turn
    ("--mem", "gpu", "--link", "local", "--gpu", "0", "-s", "4K", "--depth", "1"),
    ("--mem", "gpu", "--link", "packet", "--port", "shm", "-s", "256K"),
    ("--mem", "gpu", "--link", "local", "--local-mem", "cuda:0", "-s", "1M"),
    ("--mem", "host", "--link", "local", "--gpu", "0", "--local-mem", "cuda:0", "-s", "64K"),
    ("--mem", "gpu", "--link", "packet", "--port", "udp", "-s", "64K"),
    ("--mem", "gpu", "--link", "packet", "--port", "shm", "-s", "64K"),
)
MODES = {"auto": (0, 16), "resident": (2, 0), "kernel": (1, 2)}  # gx_gpu_opts.unpack and .sms of the server


def skip(why):
    print(f"SKIP: {why}")
    sys.exit(77)


class Opts(c.Structure):  # the begin of struct gx_opts in include/gx/gx.h: the rest is zeros, as for an older program
    _fields_ = [
        ("size", c.c_size_t), ("nr_cores", c.c_uint), ("nr_ports", c.c_uint), ("cpus", c.POINTER(c.c_int)),
        ("ports", c.POINTER(c.c_char_p)), ("server", c.c_bool), ("insecure", c.c_bool), ("busy_idle", c.c_bool),
        ("idle_wait", c.c_bool), ("nr_allow_uids", c.c_uint), ("allow_uids", c.POINTER(c.c_uint)),
        ("bind_host", c.c_char_p), ("peer_timeout_ns", c.c_uint64), ("gpu_timeout_ns", c.c_uint64),
        ("on_conn", c.c_void_p), ("on_msg", c.c_void_p), ("arg", c.c_void_p), ("huge", c.c_int), ("local", c.c_int),
        ("integrity", c.c_int), ("crc_by", c.c_int), ("unpack", c.c_int), ("sms", c.c_uint)]


ON_MSG = c.CFUNCTYPE(None, c.c_void_p, c.c_void_p, c.POINTER(c.c_char), c.c_uint32)
ON_CONN = c.CFUNCTYPE(None, c.c_void_p, c.c_void_p, c.c_int, c.c_int, c.c_char_p)


class Server:
    """A gx context with a region on the GPU and one on the host, and gxd's answers to gxperf."""

    def __init__(self, path, mode):
        self.mode, (unpack, self.sms) = mode, MODES[mode]
        self.gx = c.CDLL(path)
        self.gx.gx_error.restype = c.c_char_p
        self.gx.gx_version.restype = c.c_char_p
        self.gx.gx_core.restype = c.c_void_p
        for name in ("gx_core", "gx_core_start", "gx_core_stop", "gx_close", "gx_mem_free", "gx_conn_close"):
            getattr(self.gx, name).argtypes = [c.c_void_p] + ([c.c_uint] if name == "gx_core" else [])
        self.gx.gx_mem_alloc.argtypes = [c.c_void_p, c.c_int, c.c_int, c.c_uint64, c.POINTER(c.c_void_p)]
        self.gx.gx_mem_share.argtypes = [c.c_void_p, c.c_char_p, c.c_uint]
        self.gx.gx_listen.argtypes = [c.c_void_p, c.c_char_p]
        self.gx.gx_conn_msg.argtypes = [c.c_void_p, c.c_char_p, c.c_uint32]
        self.gx.gx_gpu_open.argtypes = [c.c_void_p, c.c_int]
        self.gx.gx_stats.argtypes = [c.c_void_p, c.c_bool, c.c_char_p, c.c_size_t]
        self.callbacks = ON_MSG(self.answer), ON_CONN(self.conn)
        self.downs = []
        ports = (c.c_char_p * 2)(b"shm", b"udp")
        opts = Opts(size=c.sizeof(Opts), ports=ports, nr_ports=2, server=True, unpack=unpack, sms=self.sms)
        opts.on_msg = c.cast(self.callbacks[0], c.c_void_p)
        opts.on_conn = c.cast(self.callbacks[1], c.c_void_p)
        self.ctx = c.c_void_p()
        self.need(self.gx.gx_open(c.byref(opts), c.byref(self.ctx)), "gx_open")
        if self.gx.gx_gpu_open(self.ctx, 0):
            skip(f"no GPU for gx: {self.gx.gx_error().decode()}")
        for kind, name in ((MEM_CUDA, b"gpu"), (MEM_HOST, b"host")):
            self.need(self.gx.gx_mem_share(self.alloc(kind, REGION_B), name, PUT | GET), "gx_mem_share")
        self.port = self.gx.gx_listen(self.ctx, b"127.0.0.1:0")
        self.need(self.port, "gx_listen")
        self.core = self.gx.gx_core(self.ctx, 0)
        self.need(self.gx.gx_core_start(self.core), "gx_core_start")

    def need(self, ret, what):
        if ret < 0:
            raise SystemExit(f"{what}: {self.gx.gx_error().decode()} ({ret})")

    def alloc(self, kind, size):
        mem = c.c_void_p()
        self.need(self.gx.gx_mem_alloc(self.ctx, kind, 0, size, c.byref(mem)), "gx_mem_alloc")
        return mem

    def answer(self, _arg, conn, data, size):
        ask = json.loads(c.string_at(data, size))
        reply = {"id": ask["id"], "ok": True}
        if ask["op"] == "hello":
            reply.update(version=self.gx.gx_version().decode(), rpc=2, unpack=self.mode, sms=self.sms, describe="")
        elif ask["op"] == "cpu":
            reply["cores_ns"] = 0
        text = json.dumps(reply).encode()
        self.gx.gx_conn_msg(conn, text, len(text))

    def conn(self, _arg, conn, event, err, why):
        if event == 1:
            if err:
                self.downs.append(f"{err}: {why.decode() if why else ''}")
            self.gx.gx_conn_close(conn)

    def close(self):
        self.gx.gx_core_stop(self.core)
        text = c.create_string_buffer(1 << 16)
        self.gx.gx_stats(self.ctx, False, text, len(text))
        self.gx.gx_close(self.ctx)
        return text.value.decode()


class TorchGraphs:
    """PyTorch's own way, in its default mode."""

    def __init__(self):
        try:
            import torch
        except ImportError as err:
            skip(f"no PyTorch: {err}")
        if not torch.cuda.is_available():
            skip("PyTorch sees no GPU")
        self.torch = torch
        self.x = torch.zeros(512, 512, device="cuda:0")
        self.w = torch.randn(512, 512, device="cuda:0")
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):  # libraries' first uses are not captured
            self.work(1)
        torch.cuda.synchronize()

    def work(self, i):
        y = (self.x + i) @ self.w
        return self.torch.relu(y) + i

    def once(self, i):
        torch = self.torch
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="global"):
            out = self.work(i)
            time.sleep(HOLD_S)
        for k in range(3):
            self.x.fill_(i * 0.01 + k)
            graph.replay()
            want = self.work(i)
            torch.cuda.synchronize()
            if not torch.allclose(out, want, rtol=1e-4, atol=1e-3):
                raise SystemExit(f"capture {i}: replay {k} differs by {(out - want).abs().max().item()}")
        if torch.cuda.current_device() != 0:
            raise SystemExit(f"capture {i}: another device is current")


class DriverGraphs:
    """The driver's calls on the fake driver, whose captures are not replayed."""

    def __init__(self):
        cu = self.cu = c.CDLL("libcuda.so.1")
        ctx, self.stream, self.mem = c.c_void_p(), c.c_void_p(), c.c_uint64()
        self.ok(cu.cuInit(0), "cuInit")
        self.ok(cu.cuDevicePrimaryCtxRetain(c.byref(ctx), 0), "retain")
        self.ok(cu.cuCtxSetCurrent(ctx), "current")
        self.ok(cu.cuStreamCreateWithPriority(c.byref(self.stream), 1, 0), "stream")
        self.ok(cu.cuMemAlloc_v2(c.byref(self.mem), c.c_size_t(4096)), "memory")
        self.ctx = ctx

    def ok(self, err, what):
        if err:
            raise SystemExit(f"{what}: CUDA error {err}")

    def once(self, i):
        graph, ctx = c.c_void_p(), c.c_void_p()
        self.ok(self.cu.cuStreamBeginCapture_v2(self.stream, 0), f"capture {i}: begin")
        self.ok(self.cu.cuMemsetD8Async(self.mem, c.c_ubyte(i % 256), c.c_size_t(4096), self.stream), "fill")
        time.sleep(HOLD_S)
        self.ok(self.cu.cuStreamEndCapture(self.stream, c.byref(graph)), f"capture {i}: end")
        self.cu.cuCtxGetCurrent(c.byref(ctx))
        if ctx.value != self.ctx.value:
            raise SystemExit(f"capture {i}: another context is current")


def clients_run(gxperf, port, done, failed, nr):
    while not done.is_set():
        args = CLIENTS[nr[0] % len(CLIENTS)]
        run = subprocess.run([gxperf, "put", f"127.0.0.1:{port}", *args, "--no-check", "--cores", "any", "-D", "0.2",
                              "--format", "csv"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
        nr[0] += 1
        if run.returncode:
            failed.append(f"gxperf put {' '.join(args)}: exit {run.returncode}: {run.stderr[-600:]}")
            return


def allocs_run(server, done, nr):
    while not done.is_set():
        for kind in (MEM_CUDA, MEM_HOST):
            mem = server.alloc(kind, 4 << 20)
            server.need(server.gx.gx_mem_free(mem), "gx_mem_free")
        nr[0] += 1
        time.sleep(0.001)


def beside(server, gxperf, graphs, captures):
    done, failed, nr_clients, nr_allocs = threading.Event(), [], [0], [0]
    threads = [threading.Thread(target=clients_run, args=(gxperf, server.port, done, failed, nr_clients)),
               threading.Thread(target=allocs_run, args=(server, done, nr_allocs))]
    for thread in threads:
        thread.start()
    made = 0
    try:
        # As many more as it takes for each kind of client to have been there.
        while (made < captures or nr_clients[0] < len(CLIENTS)) and not failed and made < 100 * captures:
            graphs.once(made)
            made += 1
    finally:
        done.set()
        for thread in threads:
            thread.join()
        stats = server.close()
    if failed or server.downs:
        print("\n".join(failed + server.downs + [stats]))
        return 1
    print(f"unpack {server.mode}: {made} captures beside {nr_clients[0]} clients and {nr_allocs[0]} rounds of allocations: all "
          "good", flush=True)
    return 0


def main():
    if len(sys.argv) not in (3, 4):
        print(__doc__, file=sys.stderr)
        return 2
    captures = int(sys.argv[3]) if len(sys.argv) > 3 else 100
    graphs = DriverGraphs() if os.environ.get("GX_FAKE_CUDA") else TorchGraphs()
    for mode in MODES:
        if beside(Server(os.path.abspath(sys.argv[1]), mode), sys.argv[2], graphs, -(-captures // len(MODES))):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
