# SPDX-License-Identifier: Apache-2.0
"""Cases of test_ray.py, for a Python that has Ray and the package gx; numpy is the type of the tensors, and torch where it is there."""
import os
import signal
import sys
import time

import numpy as np
import ray
from ray.experimental.rdt.util import get_tensor_transport_manager

import gx.ray

try:
    import torch
except ImportError:
    torch = None

gx.ray.register(torch.Tensor if torch else np.ndarray)  # before the classes that name it


def tensors_of(seed):
    """Of several types and shapes; one is empty, one has no dimension."""
    rng = np.random.default_rng(seed)
    arrays = [rng.random((100, 300)), rng.integers(0, 99, 7, np.int8), np.empty((0, 3), np.float32), np.array(seed + 0.5)]
    return arrays if not torch else [torch.from_numpy(a) for a in arrays]


def same(got, seed):
    return all(type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and (a == b).all()
               for a, b in zip(got, tensors_of(seed), strict=True))


@ray.remote
class Holder:
    @ray.method(tensor_transport="gx")
    def give(self, seed):
        return {"seed": seed, "tensors": tensors_of(seed)}

    @ray.method(tensor_transport="gx")
    def give_rows(self, count):
        return list(tensors_of(1)[0].repeat(count // 100, 0) if not torch else tensors_of(1)[0].repeat(count // 100, 1))

    @ray.method(tensor_transport="gx")
    def give_strides(self):
        return tensors_of(0)[0].T

    def held(self):
        return os.getpid(), len(get_tensor_transport_manager("GX")._memory)

    def kept(self, what):
        return same(what["tensors"], what["seed"])


@ray.remote(enable_tensor_transport=True)
class Reader:
    def check(self, what, watch=0.0):
        time.sleep(watch)
        return same(what["tensors"], what["seed"])

    def rows(self, rows):
        return len(rows), float(sum(r.sum() for r in rows))


def fails(call, *words):
    begin = time.monotonic()
    try:
        call()
    except Exception as e:  # pylint: disable=broad-except
        assert any(w in str(e) for w in words), f"{words}: {e}"
        assert time.monotonic() - begin < 20
        return
    raise AssertionError(f"no error, of {words}")


def main():
    ray.init(num_cpus=3, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False, configure_logging=False)
    holder, reader = Holder.remote(), Reader.remote()
    for seed in range(5):
        ref = holder.give.remote(seed)
        assert ray.get(reader.check.remote(ref)), f"tensors of {seed}"
        assert ray.get(holder.kept.remote(ref)), "in the actor itself"
        assert same(ray.get(ref)["tensors"], seed), "at the driver"
    print("two actors and the driver: ok")
    rows = holder.give_rows.remote(5000)
    count, total = ray.get(reader.rows.remote(rows))
    assert count == 5000 and abs(total - 50 * float(tensors_of(1)[0].sum())) < 1e-3 * total
    print("5,000 rows: ok")
    ref = rows = None
    until = time.monotonic() + 20
    while ray.get(holder.held.remote())[1] and time.monotonic() < until:
        time.sleep(0.05)
    pid, held = ray.get(holder.held.remote())
    assert held == 0, f"{held} objects are still held"
    print("what nobody refers to is let go: ok")
    fails(lambda: ray.get(reader.check.remote(holder.give_strides.remote())), "contiguous", "strides")
    ref = holder.give.remote(9)
    assert ray.get(reader.check.remote(ref))
    os.kill(pid, signal.SIGKILL)
    fails(lambda: ray.get(reader.check.remote(ref)), "PeerLost", "Refused")
    print("an actor that is killed: ok")
    again = Holder.remote()
    assert ray.get(reader.check.remote(again.give.remote(3))), "the reader goes on"
    print("another in its place: ok")
    ray.shutdown()


if __name__ == "__main__":
    print(f"ray {ray.__version__}, {'torch ' + torch.__version__ if torch else 'numpy ' + np.__version__}, gx {gx.__version__}")
    main()
    sys.exit(0)
