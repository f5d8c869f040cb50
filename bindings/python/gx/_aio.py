# SPDX-License-Identifier: Apache-2.0
"""await: the loop sleeps on the descriptor of the context until something has come."""
from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from . import Connection, Context, Op

T = TypeVar("T")
TRIES = 10  # looks before the loop goes on to other things
PAUSE_S = 0.001  # between two looks where the loop cannot sleep on the descriptor


class Waker:
    """Of a loop and a context, while tasks wait there."""

    def __init__(self, loop: asyncio.AbstractEventLoop, context: Context) -> None:
        self.loop, self.context = loop, context
        self.waits: dict[asyncio.Future[None], Callable[[], object]] = {}  # and whether one may go on
        self.fd = os.dup(context._fd) if context._fd >= 0 else -1  # the context may close its own at any time
        self.armed, self.seen = False, -1
        self.later: asyncio.TimerHandle | None = None

    def look(self) -> None:
        """Tasks go on for which something has come."""
        count = self.context._poll()
        if count == self.seen and not self.context._closed:
            return
        self.seen = count
        for future in [f for f, ready in self.waits.items() if self.context._closed or ready()]:
            del self.waits[future]
            if not future.done():
                future.set_result(None)

    def run(self) -> None:
        """Arm only when nothing is left to take, here or by a poll of other code since: so no wake is lost."""
        if self.later:
            self.later.cancel()
        self.later, arm = None, 1
        self.disarm()
        while arm == 1:
            self.look()
            if not self.waits:
                self.end()
                return
            arm = self.context._arm(self.seen, False) if self.fd >= 0 else -1
        self.armed = arm == 0
        if self.armed:
            self.loop.add_reader(self.fd, self.run)
            return
        self.later = self.loop.call_later(PAUSE_S, self.run)
        if self.fd >= 0:  # a wake of another sleeper would wake this loop again and again
            self.loop.remove_reader(self.fd)

    def disarm(self) -> None:
        if self.armed:
            self.context._sleeper = False
        self.armed = False

    def end(self) -> None:
        if self.context._wakers.get(self.loop) is self:  # not one that another task has made since
            del self.context._wakers[self.loop]
        self.disarm()
        if self.later:
            self.later.cancel()
            self.later = None
        if self.fd >= 0:
            self.loop.remove_reader(self.fd)
            os.close(self.fd)
            self.fd = -1


async def until(context: Context, ready: Callable[[], object]) -> None:
    """Sleep until @ready says so, or the context is closed."""
    loop = asyncio.get_running_loop()
    waker = context._wakers.get(loop)
    if not waker:
        waker = context._wakers[loop] = Waker(loop, context)
    future: asyncio.Future[None] = loop.create_future()
    waker.waits[future] = ready
    waker.seen = -1
    waker.run()
    try:
        await future
    finally:
        waker.waits.pop(future, None)
        if not waker.waits:
            waker.end()


async def first(context: Context, take: Callable[[], T | None], ready: Callable[[], object]) -> T:
    """What @take finds; other tasks may be faster where @ready has said so."""
    while not (found := take()):
        await until(context, ready)
    return found


async def in_thread(call: Callable[[], T], late: Callable[[T], object] | None = None) -> T:
    """A call that blocks. A task that is cancelled leaves its result to @late."""
    def end(done: asyncio.Future[T]) -> None:
        if not done.cancelled() and not done.exception() and late:
            late(done.result())

    thread = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        thread.add_done_callback(end)
        raise


async def _wait(op: Op) -> int:
    if not any(op.done for _ in range(TRIES)):
        await until(op._context, lambda: op.done)
    return op.wait()


def wait(op: Op) -> Generator[Any, None, int]:
    return _wait(op).__await__()


def aclose(conn: Connection) -> Any:
    return in_thread(conn.close)
