# SPDX-License-Identifier: Apache-2.0
"""Run an example of NIXL over the backend GX: usage: nixl_example.py FILE [ARGUMENT...]

The example is taken as it is, but for the name of the backend, also where none is given. Where torch is not installed, the few calls of
it that the examples make are numpy's.
"""
import functools
import importlib.util
import pathlib
import sys
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


def main(args):
    if not importlib.util.find_spec("torch"):
        sys.modules["torch"] = torch_stand_in()
    nixl.nixl_agent_config = api.nixl_agent_config = functools.partial(
        lambda *a, make, **k: make(*a, **{"backends": ["GX"], **k}), make=api.nixl_agent_config)
    source = pathlib.Path(args[0]).read_text()
    sys.argv = args
    exec(compile(source.replace('"UCX"', '"GX"'), args[0], "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    main(sys.argv[1:])
