# SPDX-License-Identifier: Apache-2.0
"""A transformer of random weights: one process reads the prompt, another one writes on, by the cache that gx has moved.

    transformer.py [local, packet or tcp]         both processes here, by this link

The first keeps its cache in pages of 16 tokens, tokens before heads (NHD). The other has two halves, each with half of the
heads, in pages of 64, heads before tokens (HND). The words must be those that one process alone writes."""
import multiprocessing
import statistics
import sys
import time
from typing import Any

import gx
import numpy as np

LAYERS, HEADS, WIDTH, WORDS, TOKENS, ROOM, STEPS, TIMES = 4, 8, 64, 5000, 1000, 1088, 64, 9
DIM, NEAR_PAGE, FAR_PAGE, HALVES, ITEM = HEADS * WIDTH, 16, 64, 2, 4


class Cache:
    """Keys and values of some heads, in pages at random places: [layer, 2, page, token, head, width], or head before token."""

    def __init__(self, alloc: Any, heads: int, page: int, hnd: bool, seed: int) -> None:
        self.memory = alloc(LAYERS * 2 * ROOM * heads * WIDTH * ITEM)
        self.all = np.frombuffer(self.memory, "f4").reshape(LAYERS, 2, ROOM // page, *((heads, page) if hnd else (page, heads)), WIDTH)
        self.page, self.table = page, np.random.default_rng(seed).permutation(ROOM // page)
        self.pages = self.all.swapaxes(3, 4) if hnd else self.all  # [layer, 2, page, token, head, width]

    def add(self, layer: int, at: int, kv: Any) -> None:  # [2, token, head, width] of the tokens from @at on
        tokens = np.arange(at, at + kv.shape[1])
        self.pages[layer][:, self.table[tokens // self.page], tokens % self.page] = kv

    def first(self, layer: int, n: int) -> Any:  # the same of the first @n tokens
        pages = self.pages[layer][:, self.table[:-(-n // self.page)]]
        return pages.reshape(2, -1, *pages.shape[3:])[:, :n]


class Model:
    """As GPT-2: attention, and two layers behind it."""

    def __init__(self) -> None:
        r = np.random.default_rng(7)
        def weights(*shape: int) -> Any:
            return r.standard_normal(shape, "f4") / np.float32(DIM ** .5)
        self.layers = [(weights(3, HEADS, DIM, WIDTH) * 2, weights(HEADS, WIDTH, DIM), weights(DIM, 4 * DIM), weights(4 * DIM, DIM))
                       for _ in range(LAYERS)]
        self.words, self.places, self.out = weights(WORDS, DIM) * 30, weights(ROOM, DIM) * 30, weights(WORDS, DIM)

    @staticmethod
    def norm(x: Any) -> Any:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)

    def step(self, words: Any, at: int, caches: list[Cache]) -> int:
        """@words are tokens @at and on; each of @caches has its part of the heads. Return: the word behind them."""
        x, n, per = self.words[words] + self.places[at:at + len(words)], at + len(words), HEADS // len(caches)
        late = np.arange(n) > np.arange(at, n)[:, None]
        for i, (qkv, o, up, down) in enumerate(self.layers):
            y, whole = self.norm(x), np.zeros_like(x)
            for heads, cache in ((slice(c * per, c * per + per), cache) for c, cache in enumerate(caches)):
                q, k, v = np.matmul(y, qkv[:, heads])  # [head, token, width]
                cache.add(i, at, np.stack([k, v]).swapaxes(1, 2))
                k, v = cache.first(i, n).swapaxes(1, 2)
                seen = np.where(late, np.float32(-np.inf), q @ k.swapaxes(1, 2) / np.float32(WIDTH ** .5))
                seen = np.exp(seen - seen.max(-1, keepdims=True))
                whole += (seen / seen.sum(-1, keepdims=True) @ v @ o[heads]).sum(0)
            x += whole
            x += np.maximum(self.norm(x) @ up, 0) @ down
        return int(np.argmax(self.out @ self.norm(x[-1])))

    def write(self, word: int, caches: list[Cache]) -> list[int]:
        words = [word]
        while len(words) < STEPS:
            words.append(self.step(np.array(words[-1:]), TOKENS + len(words) - 1, caches))
        return words


def decode(pipe: Any) -> None:
    g = gx.Context()  # to the process's end, as arrays lie in its memory, which a peer on this host maps
    halves = [Cache(g.alloc, HEADS // HALVES, FAR_PAGE, True, 2 + i) for i in range(HALVES)]
    memory = *(half.memory for half in halves), g.alloc(sum(half.all.nbytes for half in halves))
    pipe.send((g.listen("127.0.0.1:0"), [m.key(gx.PUT) for m in memory], [half.table for half in halves]))
    (_, word), = g.notifications(600)
    pipe.send(Model().write(int(word), halves))


def prefill(pipe: Any, link: str | None) -> bool:
    with gx.Context() as g:
        model, cache = Model(), Cache(bytearray, HEADS, NEAR_PAGE, False, 1)
        g.register(cache.memory)
        word = model.step(np.random.default_rng(3).integers(0, WORDS, TOKENS), 0, [cache])
        port, keys, tables = pipe.recv()
        with g.connect(f"127.0.0.1:{port}", link=link) as peer:
            *regions, other = (peer.region(key) for key in keys)
            nr, per, parts, token_b = -(-TOKENS // NEAR_PAGE), HEADS // HALVES, FAR_PAGE // NEAR_PAGE, WIDTH * ITEM
            half_b = ROOM * per * token_b  # keys of a layer, or values
            # Rows are pages here, quarters of a page there. Both ends: [row, keys or values, token, head, width].
            shape, strides = (ROOM // NEAR_PAGE * per, 2, NEAR_PAGE, per, WIDTH), (NEAR_PAGE * token_b, half_b, token_b, FAR_PAGE * token_b, ITEM)
            views = [gx.view(shape, strides, 0, ITEM, [int(table[i // parts]) * parts * per + i % parts for i in range(nr)]) for table in tables]
            took, plain = ([], []), cache.all.reshape(-1).view("u1")  # type: tuple[list[float], list[float]], Any
            for begin in (time.perf_counter() for _ in range(TIMES)):
                ops = [peer.put(cache.pages[i].swapaxes(0, 1)[:, :, :, h * per:h * per + per], regions[h], i * 2 * half_b, rows=cache.table[:nr], into=views[h])
                       for i in range(LAYERS) for h in range(HALVES)]
                moved = sum(op.wait(60) for op in ops)
                took[0].append(time.perf_counter() - begin)
                begin, part = time.perf_counter(), moved // len(ops)  # and as many bytes, as they lie
                sum(op.wait(60) for op in [peer.put(plain[i * part:i * part + part], other, i * part) for i in range(len(ops))])
                took[1].append(time.perf_counter() - begin)
            peer.notify(b"%d" % word)
            alone, took_ms = model.write(word, [cache]), [statistics.median(t) * 1e3 for t in took]
            print(f"{moved / 1e6:.1f} MB by link {peer.info()['link']}, medians of {TIMES}: {took_ms[0]:.2f} ms, into the same layout {took_ms[1]:.2f} ms")
            same: bool = alone == pipe.recv()
            print(f"{STEPS} words, {len(set(alone))} of them different:", "as one process writes them" if same else "OTHERS than one process writes")
        return same


if __name__ == "__main__":
    here, there = multiprocessing.get_context("spawn").Pipe()
    far = multiprocessing.get_context("spawn").Process(target=decode, args=(there,), daemon=True)
    far.start()
    raise SystemExit(not prefill(here, sys.argv[1] if sys.argv[1:] else None))
