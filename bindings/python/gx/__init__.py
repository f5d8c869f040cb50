# SPDX-License-Identifier: Apache-2.0
"""gx: memory that moves between processes and machines. See docs/python.md."""
from __future__ import annotations

import atexit
import errno
import os
import pathlib
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING

from . import _gx
from ._errors import (Canceled, Closed, Denied, Error, Forked, NotFound, OutOfRange, PeerLost, Refused, Stale,
                      Timeout)
from ._gx import Connection, Memory, Op, Region, __version__, host_address, host_addresses, view

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable
    from typing import Literal, Self, SupportsIndex

    from ._aio import Waker

PUT, GET = 1, 2
COPIES = {None: 0, "auto": 0, "ce": 1, "resident": 2}


def _tell(context: Context | None) -> None:
    for conn in context._lost() if context else ():
        try:
            if context and context.on_lost:
                context.on_lost(conn)
        except Exception as e:  # the program's, and the thread goes on
            sys.excepthook(type(e), e, e.__traceback__)


def _keep(ref: weakref.ref[Context], fd: int) -> None:
    """The thread of a context that lets go of peers that are gone. It sleeps until there is one."""
    while os.eventfd_read(fd) < 1 << 32:
        _tell(ref())
    os.close(fd)


class Context(_gx.Context):
    """gx in this process: cores, one queue, memory and connections. It ends by close(), or behind a `with`.

    cores: CPUs, one polling thread of gx for each; None: one thread, which no CPU is tied to; []: none, and threads that
    call turn the core. port: a network port (udp, dpdk:...). server=False: no peer may connect. insecure: peers without a
    key, in clear. bind_host: the address for other hosts. peer_timeout: seconds of silence after which a peer is lost, 0:
    gx's default. key_file: of `gxd keygen`, and both ends have it. copy: "ce" leaves copies of GPUs to copy engines,
    "resident" is for short ones. sms: SMs that kernels of gx may use, 0: gx's default. name: peers ask for it by
    connect(peer=). on_lost: called with each Connection whose peer is gone, on a thread of its own."""

    on_lost: Callable[[Connection], object] | None
    _wakers: dict[asyncio.AbstractEventLoop, Waker]  # see _aio.py
    _seen: dict[int, int]  # of threads that arm: what _poll() has counted

    def __new__(cls, cores: Iterable[SupportsIndex] | None = None, *, port: str | None = None, server: bool = True,
                insecure: bool = False, bind_host: str | None = None, peer_timeout: float = 0,
                key_file: str | os.PathLike[str] | None = None, copy: Literal["auto", "ce", "resident"] | None = None,
                sms: int = 0, name: str | None = None, on_lost: Callable[[Connection], object] | None = None) -> Self:
        if copy not in COPIES:
            raise ValueError("copy is auto, ce or resident")
        self = super().__new__(cls, [-1] if cores is None else list(cores), port, server, insecure, bind_host, peer_timeout,
                               None if key_file is None else os.fspath(key_file), COPIES[copy], sms, name)
        self.on_lost = on_lost
        self._wakers, self._seen = {}, {}
        threading.Thread(target=_keep, args=(weakref.ref(self), self._lost_fd), name="gx-lost", daemon=True).start()
        return self

    def close(self) -> None:
        """End everything. Operations under way fail with gx.Canceled, and peers hear that this end has closed.

        Notifications of Connection.notify() go out before, for 1 s at most. BufferError: an array or a memoryview still uses
        memory of this context."""
        super().close()
        for loop, waker in list(self._wakers.items()):  # their operations are over
            loop.call_soon_threadsafe(waker.run)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except Exception as e:
            if not error:
                raise
            error.add_note(f"gx: the context is not closed: {e}")  # the body's error is what is told

    def fileno(self) -> int:
        """A descriptor for select, poll and epoll: readable once something has come since arm()."""
        if self._closed or self._fd < 0:
            self.connections  # says that it is closed
            raise Error(errno.EOPNOTSUPP, "this kernel has no membarrier(), so nothing to sleep on: call notifications(timeout)")
        return self._fd

    def arm(self) -> bool:
        """May this thread sleep on fileno()? It holds until the thread's next call of gx.

        False: look at accept(0), notifications() and Op.done first, as something may have come since the last arm()."""
        self.fileno()
        count, thread = self._poll(), threading.get_ident()
        arm = self._arm(count, True) if self._seen.get(thread) == count else 1
        self._seen[thread] = count
        if arm < 0:  # another thread sleeps there
            time.sleep(0.0005)
        return not arm

    async def aclose(self) -> None:
        """As close(), on another thread."""
        from ._aio import in_thread
        await in_thread(self.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        from ._aio import in_thread
        await in_thread(lambda: self.__exit__(kind, error, trace))

    async def aconnect(self, addr: str, timeout: float | None = 5, *, link: str | None = None, lanes: int = 0,
                       peer: str | None = None) -> Connection:
        """As connect(), on another thread. Where the task is cancelled, the connection ends."""
        from ._aio import in_thread
        return await in_thread(lambda: self.connect(addr, timeout, link=link, lanes=lanes, peer=peer), Connection.close)

    async def aaccept(self) -> Connection:
        """The next peer that has connected. The loop sleeps until there is one."""
        from ._aio import first

        def take() -> Connection | None:
            try:
                return self.accept(0) if self._came or self._closed else None
            except Timeout:  # another thread has taken it
                return None

        return await first(self, take, lambda: self._came)

    async def anotifications(self) -> list[tuple[Connection, bytes]]:
        """Those that came, as notifications(). The loop sleeps until there is one."""
        from ._aio import first
        return await first(self, self.notifications, lambda: self._notes)

    async def awithdraw(self, key: bytes) -> None:
        """As withdraw(), on another thread. Where the task is cancelled, the key is withdrawn all the same."""
        from ._aio import in_thread
        await in_thread(lambda: self.withdraw(key))

    def describe(self) -> str:
        """What was opened and why: links, ports, GPUs, a line for each."""
        return self._text(False)

    def stats(self) -> dict[str, int]:
        """Counters by name."""
        rows = (line.rpartition(" ") for line in self._text(True).splitlines())
        return {name.strip(): int(value) for name, _, value in rows if value.isdigit()}


def nccl_plugin() -> str | None:
    """The path of NCCL's plugin in this package, for NCCL_NET_PLUGIN; None: it is not there."""
    libs = pathlib.Path(__file__).parent.parent / ".gx_dataplane.mesonpy.libs"
    path = libs / "libnccl-net-gx.so"
    return str(path) if path.exists() else None


atexit.register(_gx.close_all)

__all__ = ["Canceled", "Closed", "Connection", "Context", "Denied", "Error", "Forked", "GET", "Memory", "NotFound",
           "Op", "OutOfRange", "PUT", "PeerLost", "Refused", "Region", "Stale", "Timeout", "__version__",
           "host_address", "host_addresses", "nccl_plugin", "view"]
