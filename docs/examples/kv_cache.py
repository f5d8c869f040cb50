# SPDX-License-Identifier: Apache-2.0
"""A KV cache goes from a prefill process to a decode process."""
import multiprocessing
import gx

PAGE, PAGES = 16384, 64

def decode(pipe):
    with gx.Context() as g:
        cache = g.alloc(PAGE * PAGES)
        pipe.send((g.listen("127.0.0.1:0"), cache.key(gx.PUT)))  # the key travels by any channel
        peer = g.accept(30)
        while not (notes := g.notifications()):
            pass
        print("decode:", notes[0][1], bytes(cache)[:4], peer.info()["link"])
        pipe.send("done")

def prefill(pipe):
    port, key = pipe.recv()
    with gx.Context() as g, g.connect(f"127.0.0.1:{port}") as peer:
        pages = [bytes([n]) * PAGE for n in range(PAGES)]
        peer.put_many(pages, peer.region(key), range(0, PAGE * PAGES, PAGE), notify=b"request 17").wait(30)
        pipe.recv()

if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    here, there = multiprocessing.Pipe()
    child = multiprocessing.Process(target=decode, args=(there,))
    child.start()
    prefill(here)
    child.join()
