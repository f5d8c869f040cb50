# SPDX-License-Identifier: Apache-2.0
"""python -m gx info | demo | nccl"""
import sys
import time

import gx


def info() -> int:
    print(f"gx {gx.__version__}")
    with gx.Context() as g:
        print(g.describe(), end="")
    print(f"NCCL plugin: {gx.nccl_plugin()}")
    return 0


def demo() -> int:
    blocks, size = 256, 4096
    with gx.Context() as one, gx.Context() as two:
        pages = one.alloc(blocks * size)
        port = one.listen("127.0.0.1:0")
        conn = two.connect(f"127.0.0.1:{port}")
        region = conn.region(pages.key())
        data = bytearray(range(256)) * (blocks * size // 256)
        views = [memoryview(data)[i * size:(i + 1) * size] for i in range(blocks)]
        begin = time.perf_counter()
        conn.put_many(views, region, range(0, blocks * size, size), notify=b"all there").wait(10)
        took = time.perf_counter() - begin
        print(f"{conn!r}\n{blocks} blocks of {size} in {took * 1e6:.0f} us, "
              f"{'the same' if bytes(pages) == data else 'WRONG'}")
        return 0 if bytes(pages) == data else 3


def main() -> int:
    what = sys.argv[1:] or ["info"]
    if what == ["nccl"]:
        print(gx.nccl_plugin() or "libnccl-net-gx.so is not in this package")
        return 0 if gx.nccl_plugin() else 1
    if what not in (["info"], ["demo"]):
        print(__doc__, file=sys.stderr)
        return 2
    return {"info": info, "demo": demo}[what[0]]()


sys.exit(main())
