# SPDX-License-Identifier: Apache-2.0
"""await of an operation: the loop sleeps on the descriptor of the context's queue until something has come."""
import asyncio
import os

TRIES = 10  # looks before the loop goes on to other things
PAUSE_S = 0.001  # between two looks where the loop cannot sleep on the descriptor


class Waker:
    """Of a loop and a context, while tasks wait there."""

    def __init__(self, loop, context):
        self.loop, self.context = loop, context
        self.waits = {}  # operation: futures
        self.fd = context._fd()
        self.fd = os.dup(self.fd) if self.fd >= 0 else -1  # the context may close its own at any time
        self.armed, self.later, self.seen = False, None, -1
        if self.fd >= 0:
            loop.add_reader(self.fd, self.run)

    def ended(self):
        """Tasks whose operations have ended go on."""
        count = self.context._poll()
        if count == self.seen:
            return
        self.seen = count
        for op in [op for op in self.waits if op.done]:
            for future in self.waits.pop(op):
                if not future.done():
                    future.set_result(None)

    def run(self):
        """Arm only when nothing is left to take, here or by a poll of other code since: so no wake is lost."""
        if self.later:
            self.later.cancel()
        self.later, arm = None, 1
        self.disarm()
        while arm == 1:
            self.ended()
            if not self.waits:
                self.end()
                return
            arm = self.context._arm(self.seen) if self.fd >= 0 else -1
        self.armed = arm == 0
        if not self.armed:
            self.later = self.loop.call_later(PAUSE_S, self.run)

    def disarm(self):
        if self.armed:
            self.context._disarm()
        self.armed = False

    def end(self):
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


def _waker(context):
    loop = asyncio.get_running_loop()
    waker = context._wakers.get(loop)
    if not waker:
        waker = context._wakers[loop] = Waker(loop, context)
    return waker


async def _wait(op):
    if not any(op.done for _ in range(TRIES)):
        waker = _waker(op._context)
        future = waker.loop.create_future()
        futures = waker.waits.setdefault(op, [])
        futures.append(future)
        waker.seen = -1
        waker.run()
        try:
            await future
        finally:
            futures.remove(future)
            if not futures:
                waker.waits.pop(op, None)
            if not waker.waits:
                waker.end()
    return op.wait()


def wait(op):
    return _wait(op).__await__()
