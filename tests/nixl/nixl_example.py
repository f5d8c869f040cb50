# SPDX-License-Identifier: Apache-2.0
"""Run NIXL's own examples over the backend GX: two agents of a process, two processes, and four at the same time.

usage: nixl_example.py [FILE ARGUMENT...]        FILE: this one alone, in this process

GX_NIXL_EXAMPLES names their folder, examples/python of a checkout of NIXL; without it the status is 77. They are taken as they are, but
for the name of the backend, also where none is given. Where torch is not installed, the few calls of it that they make are numpy's.
"""
import functools
import importlib.util
import os
import pathlib
import socket
import subprocess
import sys
import time
import types

import nixl
import nixl._api as api
import numpy as np


class Tensor:
    """Not an array itself: NIXL asks for those first."""
    device = "cpu"

    def __init__(self, array):
        self.array, self.shape = array, array.shape

    def __getitem__(self, key):
        return Tensor(self.array[key])

    def __setitem__(self, key, value):
        self.array[key] = value

    def __eq__(self, other):
        return self.array == other

    def data_ptr(self):
        return self.array.ctypes.data

    def element_size(self):
        return self.array.itemsize

    def numel(self):
        return self.array.size

    def get_device(self):
        return -1

    def is_contiguous(self):
        return self.array.flags.c_contiguous


def torch_stand_in():
    torch = types.ModuleType("torch")
    torch.Tensor, torch.float32, torch.any = Tensor, np.float32, np.any
    torch.ones = lambda shape, dtype=np.float32: Tensor(np.ones(shape, dtype))
    torch.zeros = lambda shape, dtype=np.float32: Tensor(np.zeros(shape, dtype))
    torch.zeros_like = lambda t: Tensor(np.zeros_like(t.array))
    torch.allclose = lambda a, b: np.allclose(a.array, b.array)
    torch.set_default_device = lambda name: None
    return torch


def run(args):
    if not importlib.util.find_spec("torch"):
        sys.modules["torch"] = torch_stand_in()
    nixl.nixl_agent_config = api.nixl_agent_config = functools.partial(
        lambda *a, make, **k: make(*a, **{"backends": ["GX"], **k}), make=api.nixl_agent_config)
    source = pathlib.Path(args[0]).read_text()
    sys.argv = args
    exec(compile(source.replace('"UCX"', '"GX"'), args[0], "exec"), {"__name__": "__main__"})


def ports_free(count):
    with_them = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in with_them]
    for s in with_them:
        s.close()
    return ports


def start(path, *args):
    env = {**os.environ, "NIXL_LOG_LEVEL": "INFO"}
    if "partial" in path.name:
        env["NIXL_ETCD_ENDPOINTS"] = "deleted by it"
    return subprocess.Popen([sys.executable, __file__, path, *args], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def listens(port):
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)


def main(args):
    if args:
        return run(args)
    if "GX_NIXL_EXAMPLES" not in os.environ:
        print("GX_NIXL_EXAMPLES does not name the folder of NIXL's examples")
        return 77
    folder, failed = pathlib.Path(os.environ["GX_NIXL_EXAMPLES"]), 0
    one, other = ports_free(2)
    running = [start(folder / "partial_md_example.py", "--init-port", str(one), "--target-port", str(other))]
    for names in (["basic_two_peers.py"], ["basic_two_peers.py", "expanded_two_peers.py"]):
        for name, port in zip(names, ports_free(len(names))):
            for mode in ("target", "initiator"):
                running.append(start(folder / name, "--ip", "127.0.0.1", "--port", str(port), "--mode", mode))
                if mode == "target":
                    listens(port)
        for p in running:
            said = p.communicate(timeout=60)[0]
            ok = p.returncode == 0 and "Test Complete" in said
            failed += not ok
            print(f"{' '.join(map(str, [p.args[2].name, *p.args[3:]]))}: {'ok' if ok else said}")
        running = []
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
