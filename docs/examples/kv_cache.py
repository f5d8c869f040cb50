# SPDX-License-Identifier: Apache-2.0
"""A KV cache for many clients. They put and get its blocks themselves; the server gives keys, and copies nothing.

    kv_cache.py serve HOST:PORT      kv_cache.py use HOST:PORT      between hosts with GX_KEY_FILE=job.key"""
import asyncio
import contextlib
import sys

import gx

PAGE, PAGES, BLOCKS = 16384, 64, 64
BLOCK = PAGE * PAGES

async def serve(address: str) -> None:
    async with gx.Context() as g:
        cache, free = g.alloc(BLOCK * BLOCKS), list(range(BLOCKS))
        blocks: dict[bytes, tuple[int, int, bytes]] = {}  # by name, the oldest first: where, access, key

        def give(name: bytes, at: int, access: int) -> None:
            blocks[name] = at, access, cache.key(access, at * BLOCK, BLOCK)

        async def take(name: bytes) -> int:
            at, _, key = blocks.pop(name)
            await g.awithdraw(key)  # from here on nobody reads or writes there: a late one gets gx.Stale
            return at

        print("serves at port", g.listen(address), flush=True)
        while True:
            for peer, text in await g.anotifications():
                word, _, name = text.partition(b" ")
                if word == b"new":
                    old = name if name in blocks else None if free else next(iter(blocks))
                    give(name, free.pop() if old is None else await take(old), gx.PUT)
                elif word == b"whole" and name in blocks:
                    give(name, await take(name), gx.GET)
                access, key = blocks.get(name, (0, 0, b""))[1:]
                if word == b"new" or word == b"find":
                    with contextlib.suppress(gx.PeerLost):
                        peer.notify(key if word == b"new" or access == gx.GET else b"")

async def use(address: str) -> None:
    async with gx.Context() as g:
        with await g.aconnect(address) as peer:
            pages, offsets = [bytes([n]) * PAGE for n in range(PAGES)], range(0, BLOCK, PAGE)
            peer.notify(b"new prompt 17")
            [(_, key)] = await g.anotifications()
            await peer.put_many(pages, peer.region(key), offsets, notify=b"whole prompt 17")
            peer.notify(b"find prompt 17")
            [(_, key)] = await g.anotifications()
            back = [bytearray(PAGE) for _ in pages]
            await peer.get_many(back, peer.region(key), offsets)
            print("all pages are the same:", back == pages, flush=True)

if __name__ == "__main__":
    asyncio.run({"serve": serve, "use": use}[sys.argv[1]](sys.argv[2]))
