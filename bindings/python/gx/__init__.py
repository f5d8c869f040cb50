# SPDX-License-Identifier: Apache-2.0
"""gx: memory that moves between processes and machines. See docs/python.md."""
import atexit
import pathlib

from . import _gx
from ._errors import (Canceled, Closed, Denied, Error, Forked, NotFound, OutOfRange, PeerLost, Refused, Stale,
                      Timeout)
from ._gx import Connection, Memory, Op, Region, __version__

PUT, GET = 1, 2


class Context(_gx.Context):
    """gx in this process: cores, one queue, memory and connections."""

    def __init__(self, *args, **kw):
        self._wakers = {}  # by loop, see _aio.py

    def close(self):
        """End everything. Operations under way fail with Canceled."""
        super().close()
        for loop, waker in list(self._wakers.items()):  # their operations are over
            loop.call_soon_threadsafe(waker.run)

    def __exit__(self, *args):
        self.close()

    def stats(self):
        """Counters by name."""
        out = {}
        for line in self._stats().splitlines():
            name, _, value = line.rpartition(" ")
            try:
                out[name.strip()] = int(value)
            except ValueError:
                continue
        return out


def nccl_plugin():
    """The path of NCCL's plugin in this package, for NCCL_NET_PLUGIN; None: it is not there."""
    libs = pathlib.Path(__file__).parent.parent / ".gx.mesonpy.libs"
    path = libs / "libnccl-net-gx.so"
    return str(path) if path.exists() else None


atexit.register(_gx.close_all)

__all__ = ["Canceled", "Closed", "Connection", "Context", "Denied", "Error", "Forked", "GET", "Memory", "NotFound",
           "Op", "OutOfRange", "PUT", "PeerLost", "Refused", "Region", "Stale", "Timeout", "__version__",
           "nccl_plugin"]
