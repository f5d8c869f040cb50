# SPDX-License-Identifier: Apache-2.0
"""await of an operation: the loop asks again, soon at first, later each millisecond."""
import asyncio


async def _wait(op):
    turn = 0
    while not op.done:
        await asyncio.sleep(0 if turn < 200 else 0.001)
        turn += 1
    return op.wait()


def wait(op):
    return _wait(op).__await__()
