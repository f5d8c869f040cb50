# SPDX-License-Identifier: Apache-2.0
"""Arrays and tensors as numpy, ml_dtypes and, where it is there, torch make them. Run by test_arrays.py."""
import gc
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
        self.conn = self.near.connect(f"127.0.0.1:{self.far.listen('127.0.0.1:0')}")
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
            for call in (lambda o: self.conn.put(o, self.region), self.near.register):
                with self.assertRaisesRegex(BufferError, words):
                    call(bad)

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
                self.conn.put(bad, self.region)
        places = torch.arange(0, 1 << 16, 64)
        rows = torch.arange(places.numel() * 8).view(-1, 8)
        self.conn.put_many(rows, self.region, places.flip(0)).wait(torch.tensor(30.0))
        self.assertEqual(self.seen[:1 << 16].tobytes(), rows.flip(0).contiguous().numpy().tobytes())
        self.conn.put(rows[1], self.region, torch.tensor(8)).wait(30)
        self.assertEqual(self.seen[8:72].tobytes(), rows[1].numpy().tobytes())


if __name__ == "__main__":
    unittest.main(verbosity=2)
