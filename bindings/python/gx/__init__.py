# SPDX-License-Identifier: Apache-2.0
"""gx: memory that moves between processes and machines. See docs/python.md."""
import atexit
import os
import pathlib
import sys
import threading
import weakref

from . import _gx
from ._errors import (Canceled, Closed, Denied, Error, Forked, NotFound, OutOfRange, PeerLost, Refused, Stale,
                      Timeout)
from ._gx import Connection, Memory, Op, Region, __version__, host_address, host_addresses

PUT, GET = 1, 2
COPIES = {None: 0, "auto": 0, "ce": 1, "resident": 2}


def _keep(ref, fd):
    """The thread of a context that lets go of peers that are gone. It sleeps until there is one."""
    while os.eventfd_read(fd) < 1 << 32:
        context = ref()
        for conn in context._lost() if context else ():
            try:
                if context.on_lost:
                    context.on_lost(conn)
            except Exception:  # the program's, and this thread goes on
                sys.excepthook(*sys.exc_info())
        context = conn = None
    os.close(fd)


class Context(_gx.Context):
    """gx in this process: cores, one queue, memory and connections."""

    def __new__(cls, *args, on_lost=None, copy=None, **kw):
        if copy not in COPIES:
            raise ValueError("copy is auto, ce or resident")
        self = super().__new__(cls, *args, copy=COPIES[copy], **kw)
        self.on_lost = on_lost
        threading.Thread(target=_keep, args=(weakref.ref(self), self._lost_fd), name="gx-lost", daemon=True).start()
        return self

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
           "host_address", "host_addresses", "nccl_plugin"]
