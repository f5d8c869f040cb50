# SPDX-License-Identifier: Apache-2.0
"""Blocks go from one context to another, and come back: one operation each way."""
import gx

BLOCK, COUNT = 4096, 256

with gx.Context() as keeper, gx.Context() as user:
    pages = keeper.alloc(BLOCK * COUNT)
    key = pages.key()  # 64 bytes, for any channel
    peer = user.connect(f"127.0.0.1:{keeper.listen('127.0.0.1:0')}")
    region, places = peer.region(key), range(0, BLOCK * COUNT, BLOCK)
    peer.put_many([bytes([i]) * BLOCK for i in range(COUNT)], region, places, notify=b"all there").wait(10)
    back = [bytearray(BLOCK) for _ in places]
    peer.get_many(back, region, places).wait(10)
    print(peer.info()["link"], all(b == bytes([i]) * BLOCK for i, b in enumerate(back)))
    keeper.withdraw(key)  # from here on nobody reads there by that key
    try:
        peer.get(back[0], region).wait(10)
    except gx.Stale as error:
        print(error)
