# SPDX-License-Identifier: Apache-2.0
"""Arrays and tensors as numpy, ml_dtypes and, where it is there, torch make them. Run by test_arrays.py."""
import gc
import os
import unittest

import gx
import ml_dtypes
import numpy

try:
    import torch
except ImportError:
    torch = None

AT = 64


class Arrays(unittest.TestCase):
    def setUp(self):
        self.far, self.near = gx.Context([]), gx.Context([])
        self.pages = self.far.alloc(1 << 22)
        self.address = f"127.0.0.1:{self.far.listen('127.0.0.1:0')}"
        self.conn = self.near.connect(self.address)
        self.region = self.conn.region(self.pages.key())
        self.seen = numpy.asarray(self.pages)

    def tearDown(self):
        self.seen = None
        gc.collect()
        self.near.close()
        self.far.close()

    def both_ways(self, array, data):
        """@data: a function that has the bytes of @array."""
        raw = data()
        self.assertEqual(self.conn.put(array, self.region, numpy.int64(AT)).wait(30), len(raw))
        self.assertEqual(self.seen[AT:AT + len(raw)].tobytes(), raw)
        self.seen[AT:AT + len(raw)] ^= 1
        self.conn.get(array, self.region, numpy.uint8(AT)).wait(numpy.float32(30))
        self.assertEqual(data(), self.seen[AT:AT + len(raw)].tobytes())
        self.assertNotEqual(data(), raw)

    def test_types_of_numpy(self):
        for name in ("f2", "f4", "i8", "u1", "c8", "bool", "M8[ns]", "m8[s]", "U3", "S5", "V7", [("a", "i4"), ("O", "f8")], ml_dtypes.bfloat16,
                     ml_dtypes.float8_e4m3fn, ml_dtypes.int4, [("a", ml_dtypes.bfloat16), ("b", "i4")]):
            kind = numpy.dtype(name)
            array = numpy.arange(2 * 4 * kind.itemsize, dtype="u1").view(kind).reshape(2, 4)
            with self.subTest(kind):
                self.both_ways(array, array.tobytes)
                mem = self.near.register(array)
                self.assertEqual((mem.addr, mem.nbytes), (array.ctypes.data, array.nbytes))
                mem.free()
                array.flags.writeable = False
                with self.assertRaises(BufferError):
                    self.conn.get(array, self.region)

    def test_refused(self):
        square = numpy.zeros((4, 4))
        for bad, words in ((square.T, "gaps or another order"), (square[:, ::2], "gaps"), (square.astype(ml_dtypes.bfloat16).T, "gaps"),
                           (numpy.array([None]), "references"), (numpy.array([(1, None)], [("a", ml_dtypes.bfloat16), ("b", object)]), "references")):
            for call in (lambda o: self.conn.put_many([o], self.region, [0]), self.near.register):
                with self.assertRaisesRegex(BufferError, words):
                    call(bad)

    def strided(self, random, array):
        """@array with its axes in another order, parts of them, some backwards."""
        array = array.transpose(random.permutation(array.ndim))
        return array[tuple(slice(None, None, int(random.choice([1, 1, 2, -1, -2]))) for _ in array.shape)]

    def test_views(self):
        """Arrays with strides into arrays with strides, at random, beside numpy, and back: every byte of the memory where they land is compared."""
        random, seen = numpy.random.default_rng(int(os.environ.get("GX_TEST_SEED", 1))), self.seen[:1 << 18]
        for link in ("local", "packet", "tcp"):
            conn = self.near.connect(self.address, link=link)
            region, moved = conn.region(self.pages.key()), 0
            for kind in ["u1", "f4", "c16", ml_dtypes.bfloat16, "V24"] * 12:
                item, shape = numpy.dtype(kind).itemsize, random.integers(2, 6, 4)
                mine = numpy.frombuffer(bytearray(random.bytes(int(shape.prod()) * item)), "u1")
                block = self.strided(random, mine.view(kind).reshape(shape))
                whole = [int(n) * int(random.integers(1, 3)) for n in block.shape]
                seen[:] = random.integers(256)
                wanted = seen.copy()
                order = random.permutation(4)  # of the axes in memory
                there = wanted[AT:AT + numpy.prod(whole) * item].view(kind).reshape([whole[i] for i in order]).transpose(numpy.argsort(order))
                there = there[tuple(slice(0, n) for n in block.shape)]
                rows, at = None, there.ctypes.data - wanted.ctypes.data
                if block.strides[0] > 0 and random.integers(2):
                    rows, here = random.permutation(there.shape[0]), random.integers(0, block.shape[0], there.shape[0]).astype(random.choice(["i8", "u4", "i2"]))
                    there[rows] = block[here]
                    here = dict(rows=here)
                else:
                    there[...] = block
                    here = {}
                view = gx.view(there.shape, there.strides, at, item, rows)
                moved += conn.put(block, region, **here, into=view).wait(30)
                self.assertTrue(numpy.array_equal(seen, wanted), f"{link} {kind} {block.shape} {block.strides} {there.shape} {there.strides} {rows}")
                seen[:] = wanted[:] = numpy.frombuffer(random.bytes(seen.size), "u1")
                got = mine.copy()
                back = numpy.ndarray(block.shape, kind, got, block.ctypes.data - mine.ctypes.data, block.strides)
                if here:
                    here = dict(rows=random.permutation(len(block)))
                    back[here["rows"]] = there[rows]
                else:
                    back[...] = there
                moved += conn.get(block, region, **here, out_of=view).wait(30)
                self.assertTrue(numpy.array_equal(mine, got), f"get {link} {kind} {block.shape} {block.strides} {there.shape} {there.strides} {rows}")
                self.assertTrue(numpy.array_equal(seen, wanted))
            self.assertGreater(moved, 20000)

    def test_index_arrays(self):
        places = numpy.arange(0, 1 << 20, 64)[::-1]
        blocks = numpy.arange(places.size * 8).reshape(-1, 8)
        for offsets in (places, places.astype("u4"), list(places), tuple(places.tolist()), iter(places)):
            self.seen[:] = 0
            self.conn.put_many(blocks, self.region, offsets).wait(30)
            numpy.testing.assert_array_equal(self.seen[:1 << 20].view("i8").reshape(-1, 8), blocks[::-1])
        for bad in (places.astype("f8"), places.reshape(2, -1), places - 1):
            with self.assertRaises((TypeError, OverflowError, ValueError)):
                self.conn.put_many(blocks, self.region, bad)

    def test_memory_of_gx(self):
        """numpy and torch see it in place, and keep it."""
        views = [self.seen, numpy.frombuffer(self.pages, "f4"), numpy.from_dlpack(self.pages)]
        where = [view.ctypes.data for view in views]
        if torch:
            views += [torch.from_dlpack(self.pages), torch.frombuffer(self.pages, dtype=torch.float32), torch.asarray(self.pages)]
            where += [view.data_ptr() for view in views[3:]]
        self.assertEqual(where, [self.pages.addr] * len(views))
        self.seen = None
        while views:
            gc.collect()
            with self.assertRaises(BufferError):
                self.pages.free()
            views.pop()
        gc.collect()
        self.pages.free()

    @unittest.skipUnless(torch, "torch is not there")
    def test_torch(self):
        first = torch.arange(64, dtype=torch.float32)
        for t in (first, first.half().view(8, 8)[2:4], first.bfloat16(), first.to(torch.float8_e4m3fn), first.to(torch.uint16), first.to(torch.complex64),
                  torch.nn.Parameter(first.clone()), torch.nn.Parameter(first.bfloat16()), torch.nn.Linear(8, 8).weight):
            with self.subTest(f"{t.dtype} {t.requires_grad}"):
                self.both_ways(t, lambda t=t: t.detach().contiguous().view(torch.uint8).numpy().tobytes())
                mem = self.near.register(t)
                self.assertEqual((mem.addr, mem.nbytes, mem.device), (t.data_ptr(), t.nbytes, -1))
                mem.free()
        for bad in (first.view(8, 8).t(), torch.nn.Parameter(first.view(8, 8).t()), first.to(torch.complex64).conj(), first.to("meta"), first.to_sparse()):
            with self.assertRaises(BufferError, msg=f"{bad}"):
                self.near.register(bad)
        kv = torch.arange(4 * 8 * 6 * 2).view(4, 8, 6, 2).bfloat16()
        for block in (kv[:, :, 3:5], kv.transpose(1, 2), torch.nn.Parameter(kv).permute(3, 2, 1, 0)):
            self.conn.put(block, self.region).wait(30)
            self.assertEqual(self.seen[:block.nbytes].tobytes(), block.detach().contiguous().view(torch.uint8).numpy().tobytes())
        rows = torch.tensor([3, 0, 3])
        self.conn.put(kv, self.region, rows=rows, into=gx.view((9, 96), (200, 2), 0, 2, rows=rows + 2)).wait(30)
        self.assertEqual(self.seen[1000:1192].tobytes(), kv[3].view(torch.uint8).numpy().tobytes())
        places = torch.arange(0, 1 << 16, 64)
        rows = torch.arange(places.numel() * 8).view(-1, 8)
        self.conn.put_many(rows, self.region, places.flip(0)).wait(torch.tensor(30.0))
        self.assertEqual(self.seen[:1 << 16].tobytes(), rows.flip(0).contiguous().numpy().tobytes())
        self.conn.put(rows[1], self.region, torch.tensor(8)).wait(30)
        self.assertEqual(self.seen[8:72].tobytes(), rows[1].numpy().tobytes())


if __name__ == "__main__":
    unittest.main(verbosity=2)
