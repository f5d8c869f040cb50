#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python package: usage: test_python.py BUILD SOURCE"""
import array
import asyncio
import ctypes
import dataclasses
import faulthandler
import gc
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest
import unittest.mock
import weakref

import tasks

BUILD, SOURCE = (pathlib.Path(a) for a in sys.argv[1:3])
ROOM = tempfile.TemporaryDirectory()
PACKAGE = pathlib.Path(ROOM.name) / "gx"
shutil.copytree(SOURCE / "bindings/python/gx", PACKAGE)
shutil.copy(BUILD / "bindings/python/_gx.abi3.so", PACKAGE)
sys.path.insert(0, ROOM.name)

import gx  # noqa: E402

SIZE = 1 << 16

# A server with few descriptors: mode, link. A line to its standard input: it tells of itself.
SERVER = """
import array, os, resource, sys, threading, time, gx
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
mode, lost, kept = sys.argv[1], [], []
def gone(conn):
    assert conn.info()["state"] == "down" and conn.info()["text"] and conn not in g.connections, conn
    lost.append(conn if mode == "keeps" else None)
def accepts():
    while True:
        try:
            kept.append(g.accept(1000))
        except gx.Error:
            return
if mode == "ray":  # GxTransport serves, and makes no call of gx meanwhile
    from test_python import ray_stub
    ray_stub()
    import gx.ray
    transport = gx.ray.GxTransport()
    class Tensor(bytearray):
        shape, dtype, device, nbytes = (64,), "B", "cpu", 64
    meta = transport.extract_tensor_transport_metadata("object", [Tensor(b"x" * 64)])
    g, address, key = transport._context, meta.address, meta.keys[0]
else:
    g = gx.Context([], on_lost=gone)
    pages = g.alloc(4096)
    address, key = f"127.0.0.1:{g.listen('127.0.0.1:0')}", pages.key()
if mode == "keeps":
    threading.Thread(target=accepts, daemon=True).start()
print(address, key.hex(), flush=True)
for line in sys.stdin:
    with open("/proc/self/maps") as maps:
        print(len(os.listdir("/proc/self/fd")), len(maps.readlines()), len(g.connections), len(lost), len(kept), flush=True)
if mode == "keeps":
    names = {c.info()["peer"] for c in lost}
    print(len(names), sum(text == b"last" for _, text in g.notifications()))
"""


def ray_stub():
    """As much of Ray as gx/ray.py names."""
    @dataclasses.dataclass
    class Meta:
        tensor_meta: list
        tensor_device: str

    @dataclasses.dataclass
    class Fetch:
        obj_id: str
        tensors: list

    for name, parts in (("ray", {}), ("ray.experimental.rdt.tensor_transport_manager", {"FetchRequest": Fetch}),
                        ("ray.experimental", {"TensorTransportManager": object, "TensorTransportMetadata": Meta, "CommunicatorMetadata": object,
                                              "register_tensor_transport": None})):
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(parts)


class Owner(bytearray):
    pass


class Ending(bytearray):
    """Runs a call when it goes."""
    def __init__(self, size, call):
        super().__init__(size)
        self.call = call

    def __del__(self):
        self.call()


class Tensor:
    """Bytes by DLPack, as strict as the array API standard: keywords alone, a stream for a GPU alone, and a capsule of the version asked for."""
    CAPSULE = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_New", ctypes.pythonapi))
    NAMES = ctypes.c_char_p(b"dltensor"), ctypes.c_char_p(b"dltensor_versioned")

    class DL(ctypes.Structure):
        _fields_ = [("version", ctypes.c_uint32 * 2), ("ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64),
                    ("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                    ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                    ("offset", ctypes.c_uint64)]

    def __init__(self, addr, *shape, device=(1, 0), readonly=False, major=1, code=1, bits=8, strides=None):
        self.device, self.shape = device, (ctypes.c_int64 * len(shape))(*shape)
        self.strides = strides and (ctypes.c_int64 * len(shape))(*strides)
        self.dl = self.DL((major, 0), None, None, int(readonly), addr, device, len(shape), code, bits, 1, ctypes.addressof(self.shape),
                          self.strides and ctypes.addressof(self.strides), 0)

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if stream is not None and self.device[0] == 1 or copy or dl_device not in (None, self.device):
            raise BufferError("no stream, copy or other device")
        self.asked = {"stream": stream, "max_version": max_version, "copy": copy}
        new = bool(max_version and max_version[0] >= 1)
        return self.CAPSULE(ctypes.addressof(self.dl) + (0 if new else self.DL.data.offset), self.NAMES[new], None)


class OldTensor(Tensor):
    """Of before DLPack 1.0."""
    def __dlpack__(self, *, stream=None):
        return super().__dlpack__(stream=stream)


class Bounded(unittest.TestCase):
    """A test that hangs says where each thread stands, and ends this program."""
    def setUp(self):
        faulthandler.dump_traceback_later(120, exit=True)
        self.addCleanup(faulthandler.cancel_dump_traceback_later)


class Pair(Bounded):
    cores = None

    def setUp(self):
        super().setUp()
        self.far, self.near = gx.Context(self.cores), gx.Context(self.cores)
        self.pages = self.far.alloc(SIZE)
        self.conn = self.near.connect(f"127.0.0.1:{self.far.listen('127.0.0.1:0')}")
        self.region = self.conn.region(self.pages.key())

    def tearDown(self):
        self.near.close()
        self.far.close()

    def notes(self):
        until = time.monotonic() + 20
        while time.monotonic() < until:
            notes = self.far.notifications()
            if notes:
                return notes
            time.sleep(0.001)
        self.fail("no notification")

    def test_put_get_notify(self):
        data = os.urandom(4096)
        self.assertEqual(self.conn.put(data, self.region, 100, notify=b"req-1").wait(20), 4096)
        (who, note), = self.notes()
        self.assertEqual(note, b"req-1")
        self.assertEqual(who.info()["pid"], os.getpid())
        self.assertEqual(bytes(self.pages)[100:4196], data)
        back = bytearray(4096)
        self.conn.get(back, self.region, 100).wait(20)
        self.assertEqual(back, data)
        self.conn.notify(b"")
        self.assertEqual(self.notes()[0][1], b"")
        self.assertIs(self.far.accept(20), who)

    def test_key_file(self):
        """Both ends by one key; an end without it, and one with another secret."""
        with tempfile.TemporaryDirectory() as tmp:
            files = [os.path.join(tmp, f"{i}.key") for i in range(2)]
            for file in files:
                subprocess.run([BUILD / "tools/gxd", "keygen", "job", "-o", file], check=True, stdout=subprocess.DEVNULL,
                               env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"})
            with gx.Context(self.cores, key_file=files[0]) as far, gx.Context(self.cores, key_file=files[0]) as near, \
                    gx.Context(self.cores, key_file=files[1]) as other:
                pages, addr = far.alloc(SIZE), f"127.0.0.1:{far.listen('127.0.0.1:0')}"
                conn = near.connect(addr)
                self.assertEqual(conn.info()["auth"], "job")
                self.assertEqual(conn.put(b"x" * 64, conn.region(pages.key()), 0).wait(20), 64)
                self.assertEqual(bytes(pages)[:64], b"x" * 64)
                self.assertEqual(far.accept(20).info()["auth"], "job")
                self.assertEqual(self.near.connect(addr).info()["auth"], "")  # of this host, by its user
                with self.assertRaisesRegex(gx.Error, "key job") as e:
                    other.connect(addr)
                self.assertEqual(e.exception.reason, "auth")
                with unittest.mock.patch.dict(os.environ, GX_KEY_FILE=files[0], GX_ADDR="127.0.0.0/8"):
                    self.assertEqual(gx.host_address(), "127.0.0.1")
                    self.assertEqual(gx.host_addresses(), ["127.0.0.1"])
                    with gx.Context(self.cores) as third, gx.Context(self.cores, key_file=files[1]) as fourth:
                        self.assertEqual(third.connect(addr).info()["auth"], "job")
                        with self.assertRaisesRegex(gx.Error, "key job"):  # its own is what it shows
                            fourth.connect(addr)
                with unittest.mock.patch.dict(os.environ, GX_KEY_FILE=files[0], GX_ADDR="gx9"), \
                        self.assertRaisesRegex(gx.Error, "name gx9; there are: lo 127.0.0.1"):
                    gx.Context(self.cores)
            os.chmod(files[0], 0o644)
            with self.assertRaisesRegex(gx.Denied, "chmod 600"):
                gx.Context(self.cores, key_file=files[0])

    def test_many(self):
        data = os.urandom(SIZE)
        views = [memoryview(data)[i:i + 16] for i in range(0, SIZE, 16)]
        offs = [SIZE - 16 - i for i in range(0, SIZE, 16)]
        self.assertEqual(self.conn.put_many(views, self.region, offs, notify=b"all").wait(20), SIZE)
        self.assertEqual(self.notes()[0][1], b"all")
        for i in range(0, SIZE, 16):
            self.assertEqual(bytes(self.pages)[SIZE - 16 - i:SIZE - i], data[i:i + 16])
        back = bytearray(SIZE)
        blocks = [memoryview(back)[i:i + 16] for i in range(0, SIZE, 16)]
        self.conn.get_many(blocks, self.region, offs).wait(20)
        self.assertEqual(back, data)

    def test_many_regions(self):
        more = self.far.alloc(4096)
        regions = [self.region, self.conn.region(more.key(off=1024)), self.region]
        self.assertEqual(self.conn.put_many([b"one", b"two", b"six"], regions, [0, 8, 16]).wait(20), 9)
        self.assertEqual(bytes(self.pages)[:19], b"one" + bytes(13) + b"six")
        self.assertEqual(bytes(more)[1032:1035], b"two")
        for bad in (regions[:2], [self.region, None, self.region], []):
            with self.assertRaises((TypeError, ValueError)):
                self.conn.put_many([b"one", b"two", b"six"], bad, [0, 8, 16])

    def test_many_names_the_block(self):
        with self.assertRaises(gx.OutOfRange) as e:
            self.conn.put_many([b"a" * 8] * 3, self.region, [0, SIZE, 8], notify=b"no").wait(20)
        self.assertIn("block 1", str(e.exception))
        time.sleep(0.05)
        self.assertEqual(self.far.notifications(), [])

    def test_await(self):
        async def run():
            ops = [self.conn.put(b"x" * 64, self.region, i * 64) for i in range(16)]
            return await asyncio.gather(*(asyncio.ensure_future(wait(op)) for op in ops))

        async def wait(op):
            return await op

        self.assertEqual(asyncio.run(run()), [64] * 16)

    def stopped(self):
        """A process that owns a region and stands still: its pid, its connection, the region. All of them end with the test."""
        owner = subprocess.Popen([sys.executable, "-c", "import gx, sys\n"
                                  "g = gx.Context([])\nm = g.alloc(1 << 20)\nprint(g.listen('127.0.0.1:0'), m.key().hex(), flush=True)\n"
                                  "sys.stdin.read()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ, PYTHONPATH=ROOM.name))
        for end in (owner.stdin.close, owner.stdout.close, owner.wait, owner.kill):  # the last one first
            self.addCleanup(end)
        port, key = owner.stdout.readline().split()
        peer = self.near.connect(f"127.0.0.1:{port}", link="packet")
        region = peer.region(bytes.fromhex(key))
        os.kill(owner.pid, signal.SIGSTOP)
        self.assertTrue(os.WIFSTOPPED(os.waitpid(owner.pid, os.WUNTRACED)[1]))  # then each of its threads stands still
        return owner.pid, peer, region

    def test_await_sleeps(self):
        """Nothing is polled while a loop waits: the get stands still, as its owner is a process that does."""
        pid, peer, region = self.stopped()
        ticks = []

        async def tick():
            while True:
                await asyncio.sleep(0.02)
                ticks.append(time.thread_time())

        async def run():
            other = asyncio.ensure_future(tick())
            ops = [peer.get(bytearray(1 << 20), region) for _ in range(4)]
            asyncio.get_running_loop().call_later(0.5, os.kill, pid, signal.SIGCONT)
            got = await asyncio.gather(*(await_it(op) for op in ops))
            other.cancel()
            return got

        async def await_it(op):
            return await op

        self.assertEqual(asyncio.run(run()), [1 << 20] * 4)
        self.assertGreater(len(ticks), 5)
        self.assertLess(ticks[-1] - ticks[0], 0.1)
        self.assertEqual(self.near._wakers, {})

    def test_await_while_others_poll(self):
        """Other code takes the ends of operations just before the loop sleeps."""
        pid, peer, region = self.stopped()
        arm, arms = self.near._arm, []

        def late(seen, whole):
            os.kill(pid, signal.SIGCONT)
            while not all(op.done for op in ops):
                pass
            arms.append(arm(seen, whole))
            self.assertEqual(arms, [1])
            return arms[-1]

        async def run():
            return [await op for op in ops]

        self.near._arm = late
        ops = [peer.get(bytearray(1 << 20), region) for _ in range(4)]
        self.assertEqual(asyncio.run(run()), [1 << 20] * 4)
        self.assertEqual((arms, self.near._wakers), ([1], {}))

    def test_cancel(self):
        """Of operations that stand still, as their peer does; of those that have ended; while another thread waits."""
        pid, peer, region = self.stopped()
        source = Owner(64)
        ops = [peer.put(source, region, notify=b"no"), peer.get(bytearray(1 << 20), region, notify=b"no"), peer.get(bytearray(64), region)]
        ref = weakref.ref(source)
        del source
        with self.assertRaisesRegex(gx.Timeout, "cancel"):
            ops[0].wait(0.01)
        self.assertEqual([op.cancel() for op in ops[:2]], [True, True])
        t = threading.Timer(0.05, ops[2].cancel)
        t.start()
        for op in reversed(ops):
            if op is ops[0]:
                os.kill(pid, signal.SIGCONT)  # who may have begun to read its source
            with self.assertRaises(gx.Canceled):
                op.wait(30)
            self.assertFalse(op.cancel())
        t.join()
        gc.collect()
        self.assertIsNone(ref())
        op = self.conn.put(b"x", self.region)
        self.assertEqual((op.wait(), op.cancel(), op.wait(None)), (1, False, 1))
        self.near.close()
        self.assertFalse(op.cancel())

    def test_waits_without_end(self):
        """None: until it comes, from a thread that needs the GIL. The thread that waits sleeps."""
        port, got = self.far.listen("127.0.0.1:0"), []
        self.far.accept(30)
        for call, event in ((self.far.accept, lambda: got.append(self.near.connect(f"127.0.0.1:{port}"))),
                            (self.far.notifications, lambda: self.conn.notify(b"word")), (self.far.accept, self.far.close)):
            timer, begin = threading.Timer(0.5, event), time.thread_time()
            timer.start()
            try:
                found = call(None)
                self.assertIn(found if call == self.far.accept else found[0][1], [b"word", *self.far.connections])
            except gx.Closed:
                self.assertTrue(self.far._closed)
            self.assertLess(time.thread_time() - begin, 0.2)
            timer.join()
        with self.assertRaises(gx.Closed):
            self.far.notifications(None)

    def test_connect_lets_go(self):
        """A server that takes the socket and says nothing; another thread closes the context."""
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            threading.Timer(0.2, self.near.close).start()
            with self.assertRaises(gx.Closed):
                self.near.connect("127.0.0.1:%d" % silent.getsockname()[1], None)

    def test_fileno(self):
        """A loop of select(): each wait ends by an event, and none is missed."""
        port, seen, quiet = self.far.listen("127.0.0.1:0"), [], 0
        texts = [b"%d" % i for i in range(300)]

        def sends():
            with gx.Context(self.cores) as third:
                conn = third.connect(f"127.0.0.1:{port}")
                for i, text in enumerate(texts):
                    conn.notify(text)
                    time.sleep(0.002 if i % 7 == 0 else 0)

        sender = threading.Thread(target=sends)
        sender.start()
        peers = set()
        while len(seen) < len(texts) or len(peers) < 2:
            try:
                peers.add(self.far.accept(0))
            except gx.Timeout:
                pass
            seen += [text for _, text in self.far.notifications()]
            if self.far.arm():
                quiet += 1
                self.assertTrue(select.select([self.far], [], [], 60)[0], f"{len(seen)} notifications, {len(peers)} peers")
        sender.join()
        self.assertEqual(seen, texts)
        self.assertGreater(quiet, 1)
        pid, peer, region = self.stopped()
        op = peer.get(bytearray(64), region)
        while not self.near.arm():
            self.assertFalse(op.done)
        os.kill(pid, signal.SIGCONT)
        while not op.done:
            if self.near.arm():
                self.assertTrue(select.select([self.near], [], [], 60)[0])
        self.near.close()
        for call in (self.near.fileno, self.near.arm):
            with self.assertRaises(gx.Closed):
                call()

    def test_arm_and_threads(self):
        """A thread that has armed and gone away does not stop others from waiting."""
        while not self.far.arm():
            pass
        done = []
        t = threading.Thread(target=lambda: done.append(self.far.notifications(60)))
        t.start()
        self.conn.notify(b"word")
        t.join()
        self.assertEqual([text for _, text in done[0]], [b"word"])

    def test_arm_and_a_thread_that_ends(self):
        """The sleep of a thread that armed and ended is another's to take."""
        def arms():
            while not self.far.arm():
                pass

        t = threading.Thread(target=arms)
        t.start()
        t.join()
        self.assertTrue(self.far._sleeper)
        self.assertTrue(any(self.far.arm() for _ in range(2000)))
        self.conn.notify(b"word")
        self.assertTrue(select.select([self.far], [], [], 60)[0])

    def test_notifications_never_taken(self):
        """They do not hold up those to others, and the sender does not stand."""
        lazy = gx.Context(self.cores)
        self.addCleanup(lazy.close)
        peer = self.near.connect(f"127.0.0.1:{lazy.listen('127.0.0.1:0')}")
        with self.assertRaisesRegex(gx.Timeout, "takes no notifications"):
            for n in range(1025 + 64 + 1):
                peer.notify(b"x")
        self.assertGreaterEqual(n, 1024)
        began = time.monotonic()
        with self.assertRaises(gx.Timeout):
            peer.notify(b"x")
        self.assertLess(time.monotonic() - began, 1)  # the second was waited for once: a promise
        self.conn.notify(b"word")
        self.assertEqual([text for _, text in self.far.notifications(60)], [b"word"])
        self.assertTrue(lazy.notifications(60))
        for last in range(500):
            try:
                peer.notify(b"x")
                break
            except gx.Timeout:  # the word of those that were taken is on its way
                self.assertLess(last, 499)

    def test_taken_by_others(self):
        """A connection that comes while a loop sleeps, and that another thread takes note of first, wakes it."""
        def comes():
            conns.append(self.near.connect(f"127.0.0.1:{port}"))
            while not self.far._came:
                self.far.notifications()

        async def run():
            task = asyncio.ensure_future(self.far.aaccept())
            await asyncio.sleep(0.05)
            comes()
            return await asyncio.wait_for(task, 60)

        port, conns = self.far.listen("127.0.0.1:0"), []
        self.far.accept(30)
        self.assertIn(asyncio.run(run()), self.far.connections)
        while not self.far.arm():
            pass
        t = threading.Thread(target=comes)
        t.start()
        t.join()
        self.assertTrue(select.select([self.far], [], [], 60)[0])
        self.assertIn(self.far.accept(0), self.far.connections)

    def test_await_without_descriptor(self):
        """As on a kernel without membarrier()."""
        class Without(gx.Context):
            _fd = -1

        async def run():
            async with Without(self.cores) as far, Without(self.cores) as near:
                accept = asyncio.ensure_future(far.aaccept())
                conn = await near.aconnect(f"127.0.0.1:{far.listen('127.0.0.1:0')}")
                peer, pages = await accept, far.alloc(64)
                await conn.put(b"x" * 64, conn.region(pages.key()), notify=b"note")
                self.assertEqual(await far.anotifications(), [(peer, b"note")])
                with self.assertRaisesRegex(gx.Error, "membarrier"):
                    far.fileno()

        asyncio.run(asyncio.wait_for(run(), 60))

    def test_await_all(self):
        """connect, accept, notifications, withdraw and close, each awaited, beside a clock that ticks."""
        async def clock():
            while True:
                await asyncio.sleep(0.001)
                ticks.append(1)

        async def run():
            clocks = asyncio.ensure_future(clock())
            async with gx.Context(self.cores) as far, gx.Context(self.cores) as near:
                pages, port = far.alloc(SIZE), far.listen("127.0.0.1:0")
                accepts = [asyncio.ensure_future(far.aaccept()) for _ in range(8)]
                accepts.pop(0).cancel()  # it takes no connection with it
                await asyncio.sleep(0)
                notes = asyncio.ensure_future(far.anotifications())
                conns = await asyncio.gather(*(near.aconnect(f"127.0.0.1:{port}", None, link="packet") for _ in range(7)))
                peers = await asyncio.gather(*accepts)
                self.assertEqual((len(set(peers)), set(peers)), (7, set(far.connections)))
                key = pages.key()
                await conns[0].put(b"x" * 64, conns[0].region(key), notify=b"note")
                (who, text), = await notes
                self.assertEqual((text, who in peers), (b"note", True))
                with self.assertRaises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await far.anotifications()
                await far.awithdraw(key)
                with self.assertRaises(gx.Stale):
                    await conns[0].get(bytearray(64), conns[0].region(key))
                await asyncio.gather(*(conn.aclose() for conn in conns[1:]))
                self.assertEqual(near.connections, conns[:1])
                late = [asyncio.ensure_future(call()) for call in (near.aaccept, near.anotifications)]
                await asyncio.sleep(0.01)
                await near.aclose()
                for task in late:
                    with self.assertRaises(gx.Closed):
                        await task
                with self.assertRaises(gx.Closed):
                    await near.aconnect(f"127.0.0.1:{port}")
            clocks.cancel()
            self.assertEqual((far._wakers, near._wakers), ({}, {}))

        ticks = []
        asyncio.run(asyncio.wait_for(run(), 60))
        self.assertGreater(len(ticks), 10)

    def test_aconnect_cancelled(self):
        """The connection of a task that was given up ends."""
        async def run():
            task = asyncio.ensure_future(self.near.aconnect(f"127.0.0.1:{self.far.listen('127.0.0.1:0')}"))
            await asyncio.sleep(0)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            peer = await self.far.aaccept()
            while peer is (await asyncio.sleep(0.001)) or self.near.connections != [self.conn]:
                pass

        self.far.accept(30)
        asyncio.run(asyncio.wait_for(run(), 60))

    def test_body_is_told(self):
        """An error in a `with`, where close() has one, too."""
        with self.assertRaises(ZeroDivisionError) as e:
            with gx.Context(self.cores) as g:
                view = memoryview(g.alloc(64))
                raise ZeroDivisionError
        self.assertIn("still uses memory", e.exception.__notes__[0])
        with self.assertRaises(gx.Error) if g._closed else self.assertRaises(BufferError):
            g.close()
        view.release()
        g.close()
        with self.assertRaisesRegex(BufferError, "still uses"):
            with gx.Context(self.cores) as g:
                view = memoryview(g.alloc(64))
        view.release()
        g.close()

        async def run():
            async with gx.Context(self.cores) as g:
                self.view = memoryview(g.alloc(64))
                raise ZeroDivisionError

        with self.assertRaises(ZeroDivisionError) as e:
            asyncio.run(run())
        self.assertIn("still uses memory", e.exception.__notes__[0])
        self.view.release()

    def test_await_one_by_one(self):
        """A task that goes on leaves the descriptor to the task that waits next."""
        pid, peer, region = self.stopped()

        async def run():
            first, second = (asyncio.ensure_future(await_it(peer.get(bytearray(64), region))) for _ in range(2))
            await asyncio.sleep(0)
            waker, = self.near._wakers.values()
            first.cancel()
            second.cancel()
            third = asyncio.ensure_future(await_it(peer.get(bytearray(64), region)))
            waker.end()  # as where its last operation has ended; its tasks have not gone on yet
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            other, = self.near._wakers.values()
            third.cancel()
            await asyncio.sleep(0)
            self.assertEqual((self.near._wakers, waker.fd, other.fd), ({}, -1, -1))

        async def await_it(op):
            return await op

        asyncio.run(run())
        os.kill(pid, signal.SIGCONT)

    def test_await_cancelled(self):
        """Tasks that are given up, and a context that another thread closes."""
        async def run():
            for i in range(50):
                op = self.conn.put(bytes(SIZE), self.region)
                task = asyncio.ensure_future(await_it(op))
                await asyncio.sleep(0)
                task.cancel()
                with self.assertRaises((asyncio.CancelledError, ZeroDivisionError)):
                    await task
                    raise ZeroDivisionError
                self.assertEqual(self.near._wakers, {})
            self.far.close()  # a get that does not end by itself, or fails at once
            ops = []
            threading.Timer(0.1, self.near.close).start()
            while True:
                try:
                    ops.append(self.conn.get(bytearray(64), self.region))
                    await asyncio.wait_for(await_it(ops[-1]), 20)
                except gx.Error:
                    break

        async def await_it(op):
            return await op

        asyncio.run(run())
        self.assertEqual(self.near._wakers, {})

    def test_await_beside_threads(self):
        """A loop sleeps, and threads wait, on one queue: nobody loses a wake."""
        def work(k):
            for _ in range(100):
                self.conn.put(bytes([k]) * 64, self.region, k * 64).wait(20)

        async def awaits(k):
            for _ in range(100):
                await self.conn.put(bytes([k]) * 64, self.region, k * 64)

        async def run():
            await asyncio.gather(*(awaits(k) for k in range(4, 12)))

        threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
        threads.append(threading.Thread(target=lambda: asyncio.run(awaits(3))))
        for t in threads:
            t.start()
        asyncio.run(run())
        for t in threads:
            t.join()
        for k in range(12):
            self.assertEqual(bytes(self.pages)[k * 64:k * 64 + 64], bytes([k]) * 64)

    def test_note_behind_data(self):
        """Puts with notes, in order, each behind its data; a get's, too; more than a peer may hold."""
        def take():
            for i in range(300):
                while not notes:
                    notes.extend(self.far.notifications())
                    time.sleep(0)
                who, text = notes.pop(0)
                at = int(text)
                seen.append((at, bytes(self.pages)[at % 64 * 64:at % 64 * 64 + 8]))

        notes, seen = [], []
        t = threading.Thread(target=take)
        t.start()
        for i in range(300):
            text = str(i).encode()
            if i % 3:
                self.conn.put(text.ljust(8), self.region, i % 64 * 64, notify=text).wait(20)
            else:
                self.conn.put(text.ljust(8), self.region, i % 64 * 64).wait(20)
                if i % 2:
                    self.conn.get(bytearray(8), self.region, notify=text).wait(20)
                else:
                    self.conn.notify(text)
        t.join()
        self.assertEqual([a for a, _ in seen], list(range(300)))
        for at, data in seen:
            self.assertGreaterEqual(int(data), at)
            self.assertEqual((int(data) - at) % 64, 0)

    def test_last_words(self):
        """A notification that was sent just before the end arrives."""
        for i in range(20):
            with gx.Context(self.cores) as other:
                conn = other.connect(f"127.0.0.1:{self.far.listen('127.0.0.1:0')}")
                for k in range(5):
                    conn.notify(b"%d" % k)
                if i % 2:
                    conn.close()
            got = []
            while len(got) < 5:
                got += [text for _, text in self.notes()]
            self.assertEqual(got, [b"0", b"1", b"2", b"3", b"4"])

    def test_stale(self):
        key = self.pages.key(gx.GET)
        region = self.conn.region(key)
        with self.assertRaises(gx.Denied):
            self.conn.put(b"12345678", region).wait(20)
        self.conn.get(bytearray(8), region).wait(20)
        self.far.withdraw(key)
        with self.assertRaises(gx.Stale):
            self.conn.get(bytearray(8), region).wait(20)
        with self.assertRaises(gx.Stale):
            self.far.withdraw(key)
        self.pages.free()
        with self.assertRaises(gx.Stale):
            self.conn.get(bytearray(8), self.region).wait(20)

    def test_lease(self):
        region = self.conn.region(self.pages.key(lease=0.05))
        time.sleep(0.1)
        with self.assertRaises(gx.Stale):
            self.conn.get(bytearray(8), region).wait(20)

    def test_keys_of_others(self):
        with self.assertRaises(gx.Error):
            self.conn.region(b"\0" * 64)
        with self.assertRaises(gx.Error):
            self.conn.region(b"short")
        with self.assertRaises(gx.Denied):
            self.conn.region(self.near.alloc(4096).key())
        with self.assertRaises(gx.NotFound):
            self.conn.region("nobody")

    def test_owner_lives(self):
        owner = Owner(SIZE)
        ref = weakref.ref(owner)
        mem = self.far.register(owner)
        with self.assertRaises(BufferError):
            owner.append(1)
        del owner
        gc.collect()
        self.assertIsNotNone(ref())
        self.conn.put(b"12345678", self.conn.region(mem.key())).wait(20)
        self.assertEqual(bytes(ref()[:8]), b"12345678")
        mem.free()
        mem.free()
        gc.collect()
        self.assertIsNone(ref())

    def test_source_lives(self):
        source = Owner(b"y" * SIZE)
        ref = weakref.ref(source)
        op = self.conn.put(source, self.region)
        del source
        op.wait(20)
        self.assertEqual(bytes(self.pages), b"y" * SIZE)
        gc.collect()
        self.assertIsNone(ref())

    def test_cycle(self):
        """An owner that has its memory ends with that, or with the context."""
        for end in (lambda mem: mem.free(), lambda mem: self.far.close(), lambda mem: setattr(self, "far", gx.Context([]))):
            owner = Owner(4096)
            owner.mem = self.far.register(owner)
            ref = weakref.ref(owner)
            del owner
            gc.collect()
            self.assertIsNotNone(ref())
            end(ref().mem)
            self.conn = self.region = self.pages = None
            gc.collect()
            self.assertIsNone(ref())
            if self.far._closed:
                self.far = gx.Context(self.cores)

    def test_key_lives(self):
        """A key is good while nobody here has the Memory, until withdraw() or the end of the context."""
        owner = Owner(b"r" * 64)
        ref, shared = weakref.ref(owner), self.far.alloc(64)
        memoryview(shared)[:] = b"s" * 64
        shared.share("shared")
        keys = [self.far.register(owner).key(), self.far.alloc(64).key(gx.PUT | gx.GET)]
        key = shared.key(gx.GET)
        del owner, shared
        gc.collect()
        with self.near.connect(f"127.0.0.1:{self.far.listen('127.0.0.1:0')}") as conn:
            for region, text in ((conn.region(keys[0]), b"r"), (conn.region(keys[1]), b"\0"), (conn.region("shared"), b"s"), (conn.region(key), b"s")):
                back = bytearray(64)
                conn.get(back, region).wait(20)
                self.assertEqual(back, text * 64)
            self.far.withdraw(keys[0])
            with self.assertRaises(gx.Stale):
                conn.get(back, conn.region(keys[0])).wait(20)
        self.assertIsNotNone(ref())
        self.far.close()
        gc.collect()
        self.assertIsNone(ref())

    def test_alloc_ends(self):
        """Memory of gx that nobody has, and of which no peer was told, is freed."""
        def room():
            return int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")

        kept, before = [self.far.alloc(16 << 20) for _ in range(4)], room()
        for _ in range(100):
            self.far.alloc(16 << 20)
        self.assertLess(room() - before, 800 << 20)
        self.assertEqual(len({mem.addr for mem in kept}), 4)

    def test_views(self):
        view = memoryview(self.pages)
        with self.assertRaises(BufferError):
            self.pages.free()
        with self.assertRaises(BufferError):
            self.far.close()
        view.release()

    def test_read_only(self):
        """What this program may not write, peers may not: bytes, views that are read only, DLPack with the flag, memory of these."""
        data = bytes(bytearray(b"a" * 4096))  # not shared
        kept = bytearray(b"b" * 64)
        tensor = Tensor(ctypes.addressof(ctypes.c_char.from_buffer(kept)), 64, readonly=True)
        view = memoryview(bytearray(b"c" * 64)).toreadonly()
        first, mems = self.far.register(data), []
        for i, obj in enumerate((data, tensor, view, memoryview(first))):
            mem = self.far.register(obj)
            mems.append(mem)
            for access in (gx.PUT, gx.PUT | gx.GET):
                with self.assertRaisesRegex(gx.Denied, "read only"):
                    mem.key(access)
                with self.assertRaisesRegex(gx.Denied, "read only"):
                    mem.share(f"name{i}", access)
            for key in (mem.key(), mem.key(gx.GET)):
                region = self.conn.region(key)
                self.assertEqual(region.access, gx.GET)
                back = bytearray(64)
                self.conn.get(back, region).wait(20)
                self.assertEqual(back, [b"a", b"b", b"c", b"a"][i] * 64)
                with self.assertRaises(gx.Denied):
                    self.conn.put(b"EVIL", region).wait(20)
            mem.share(f"name{i}")
            with self.assertRaises(BufferError):
                self.conn.get(mem, region)
            with self.assertRaises(BufferError):
                self.conn.get(obj, self.region)
        with self.near.connect(f"127.0.0.1:{self.far.listen('127.0.0.1:0')}") as conn:
            self.assertEqual([conn.region(f"name{i}").access for i in range(4)], [gx.GET] * 4)
        self.assertEqual((data[:4], kept[:4]), (b"aaaa", b"bbbb"))
        obj = None
        for mem in reversed(mems):
            mem.free()
        self.assertEqual(self.region.access, gx.PUT | gx.GET)

    def test_numbers(self):
        """Each that goes to gx is in the range of its type, or an error; what has __index__ is a number."""
        class Index:
            def __init__(self, n):
                self.n = n

            def __index__(self):
                return self.n

        conn, pages, put = self.conn, self.pages, lambda off: self.conn.put(b"WRAP", self.region, off).wait(20)
        for calls, tops in (((put, lambda n: conn.put_many([b"WRAP"], self.region, [n]), lambda n: conn.get(bytearray(4), self.region, n),
                              lambda n: pages.key(off=n), lambda n: pages.key(len=n), self.far.alloc,
                              lambda n: conn.put((n, 4), self.region), lambda n: conn.put((4096, n), self.region)), (2**64, 2**64 + 8)),
                            ((pages.key, lambda n: pages.share("number", n), lambda n: self.near.connect("127.0.0.1:1", lanes=n)),
                             (2**32, 2**32 + 1, 2**64 + 1))):
            for call in calls:
                for bad in (*tops, *map(Index, tops), -1, Index(-1), -2**63, -2**64):
                    with self.assertRaises(OverflowError, msg=f"{call} {bad}"):
                        call(bad)
                for bad in (1.0, "1", None, Index("x")):
                    with self.assertRaises(TypeError, msg=f"{call} {bad}"):
                        call(bad)
        for call in (lambda n: self.near.alloc(4096, n), lambda n: self.near.register((4096, 64, n)), lambda n: gx.Context([n])):
            for bad in (-2, -2**31, 2**31, 2**32 - 1, 2**32, 2**64 - 1):
                with self.assertRaises((OverflowError, ValueError), msg=f"{call} {bad}"):
                    call(bad)
        for off in (2**64 - 4, 2**64 - 1, SIZE - 3, SIZE):
            with self.assertRaises(gx.OutOfRange):
                put(off)
        with self.assertRaises(ValueError):
            conn.put((2**64 - 8, 64), self.region)
        op = conn.put(b"", self.region)
        for call in (op.wait, self.near.accept, self.near.notifications, lambda s: self.near.connect("127.0.0.1:1", s)):
            for bad in (float("nan"), "1", b"1"):
                with self.assertRaises((ValueError, TypeError), msg=f"{call} {bad}"):
                    call(bad)
        late = threading.Timer(30, self.near.close)
        late.start()
        self.addCleanup(late.cancel)
        for past in (0, -1, -0.5, -float("inf")):  # what is left of a time that has passed
            with self.assertRaises(gx.Timeout):
                self.near.accept(past)
            self.assertEqual(self.near.notifications(past), [])
            with self.assertRaises((ValueError, OverflowError)):
                self.near.connect("127.0.0.1:1", past)
        self.assertEqual(bytes(pages), bytes(SIZE))
        put(Index(8))
        conn.put_many([b"WRAP"], self.region, [Index(16)]).wait(20)
        self.assertEqual(bytes(pages)[:20], bytes(8) + b"WRAP" + bytes(4) + b"WRAP")
        self.assertEqual(self.conn.region(pages.key(Index(gx.GET), Index(8), Index(4))).nbytes, 4)

    def test_references(self):
        """Addresses of objects are no data; a field may be called O."""
        class Named(ctypes.Structure):
            _fields_ = [("O", ctypes.c_uint32), ("o", ctypes.c_uint32)]

        class Holds(ctypes.Structure):
            _fields_ = [("a", ctypes.c_uint32), ("b", ctypes.py_object)]

        for objects in ((ctypes.py_object * 4)(), Holds(), Tensor(4096, 8, code=3, bits=64)):
            for call in (lambda o: self.conn.put(o, self.region), lambda o: self.conn.get(o, self.region), self.far.register):
                with self.assertRaisesRegex(BufferError, "references to objects", msg=f"{objects}"):
                    call(objects)
        self.assertEqual(self.conn.put(Named(1, 2), self.region).wait(20), 8)
        for shape in ((-1,), (2**62, 8), (2**63 - 1, 2**63 - 1)):
            with self.assertRaises(BufferError, msg=f"{shape}"):
                self.conn.put(Tensor(4096, *shape), self.region)
        with self.assertRaises(BufferError):
            self.conn.put(Tensor(4096, 8, device=(2, -1)), self.region)

    def test_strides(self):
        """put() and get() take memory as it lies: by each way that an object says so. Other calls do not."""
        data = bytearray(os.urandom(512))
        addr = ctypes.addressof(ctypes.c_char.from_buffer(data))
        whole, other = self.near.register(data), bytearray(data)
        for block, bytes_ in ((memoryview(data)[::2], data[::2]), (Tensor(addr + 510, 16, bits=16, strides=(-8,)), b"".join(data[510 - x * 16:][:2] for x in range(16))),
                              (memoryview(other)[::-3], data[::-3]), (memoryview(data).cast("Q")[::4], b"".join(data[i:i + 8] for i in range(0, 512, 32))),
                              (Tensor(addr, 2, 16, bits=16, strides=(128, 4)), b"".join(data[y * 256 + x * 8:][:2] for y in range(2) for x in range(16))),
                              (types.SimpleNamespace(__array_interface__={"typestr": "<V2", "shape": (3, 5), "strides": (64, 4), "data": (addr, False)}),
                               b"".join(data[y * 64 + x * 4:][:2] for y in range(3) for x in range(5)))):
            memoryview(self.pages)[:512] = bytes(512)
            self.assertEqual(self.conn.put(block, self.region, 3).wait(20), len(bytes_))
            self.assertEqual(bytes(self.pages)[3:512], bytes_ + bytes(509 - len(bytes_)))
        for call in (self.near.register, lambda o: self.conn.put_many([o], self.region, [0])):
            with self.assertRaisesRegex(BufferError, "gaps or another order"):
                call(memoryview(data)[::2])
        with self.assertRaisesRegex(BufferError, "gaps or another order"):  # elements of less than a byte
            self.conn.put(Tensor(addr, 8, 8, bits=4, strides=(16, 1)), self.region)
        with self.assertRaises(BufferError):
            self.conn.get(b"readonly", self.region)
        whole.free()

    def test_view(self):
        """The peer's layout, and rows at both ends, by lists and by index arrays of every kind; no bytes at all."""
        data = os.urandom(64 * 16)
        here, there = (3, 0, 63, 7, 7), array.array("H", (9, 1, 20, 0, 2))
        for rows in (here, list(here), iter(here), array.array("b", here), array.array("Q", here), memoryview(array.array("i", (*here, 1)))[:5]):
            memoryview(self.pages)[:] = bytes(SIZE)
            block = memoryview(data).cast("B", (64, 16))
            self.assertEqual(self.conn.put(block, self.region, 100, rows=rows, into=gx.view((64, 4, 4), (48, 11, 2), 7, rows=there)).wait(20), 80)
            wanted = bytearray(SIZE)
            for a, b in zip(here, there):
                for i in range(4):
                    for k in range(4):
                        wanted[107 + b * 48 + i * 11 + k * 2] = data[a * 16 + i * 4 + k]
            self.assertEqual(bytes(self.pages), wanted)
        self.assertEqual(gx.view((3, 4), itemsize=2).nbytes, 24)
        for into in (None, gx.view((0, 9)), gx.view((9,), rows=[])):
            self.assertEqual(self.conn.put(memoryview(data).cast("B", (64, 16)), self.region, rows=[], into=into).wait(20), 0)

    def test_view_refused(self):
        def interrupt(*args):
            raise KeyboardInterrupt("now")

        data = bytearray(64)
        block, addr = memoryview(data).cast("B", (4, 16)), ctypes.addressof(ctypes.c_char.from_buffer(data))
        interrupted = types.SimpleNamespace(__dlpack_device__=interrupt, tolist=lambda: [0])
        for call, error, words in (
                (lambda: self.conn.put(block, self.region, rows=[4]), IndexError, "row 4: the first axis has 4"),
                (lambda: self.conn.put(block, self.region, rows=array.array("q", (0, -1))), IndexError, "row -1: the first axis has 4"),
                (lambda: self.conn.put(block, self.region, rows=array.array("h", (0, -1))), IndexError, "row -1: the first axis has 4"),
                (lambda: self.conn.put(block, self.region, rows=array.array("Q", (2**63,))), IndexError, "row"),
                (lambda: self.conn.put(block, self.region, rows=array.array("d", (1,))), TypeError, "integer"),
                (lambda: self.conn.put(block, self.region, rows=[True, False, True, True]), TypeError, "nonzero"),
                (lambda: self.conn.put(block, self.region, rows=3), TypeError, "iterable"),
                (lambda: self.conn.put(block, self.region, rows=bytes(2**20 + 1)), ValueError, "1,048,576 rows"),
                (lambda: self.conn.put(memoryview(bytearray(8))[::-1], self.region, rows=[0]), ValueError, "first axis"),
                (lambda: self.conn.put(block, self.region, into=(4, 16)), TypeError, "gx.view"),
                (lambda: self.conn.get(block, self.region, out_of=(4, 16)), TypeError, "gx.view"),
                (lambda: self.conn.get(block, self.region, into=gx.view((64,))), TypeError, "into"),
                (lambda: self.conn.get(block, self.region, rows=[4]), IndexError, "row 4: the first axis has 4"),
                (lambda: self.conn.get(block, self.region, out_of=gx.view((65,))), ValueError, "block has 64 bytes, and the view 65"),
                (lambda: self.conn.get(Tensor(addr, 1, 4, 8, strides=(7, 0, 1)), self.region), ValueError, "^the block: axis 1: its runs overlap, and a GET"),
                (lambda: self.conn.get(Tensor(addr, 4, 8, strides=(0, 1)), self.region), ValueError, "^the block: axis 0: its runs overlap, and a GET"),
                (lambda: self.conn.put(block, self.region, rows=interrupted), KeyboardInterrupt, "now"),
                (lambda: self.conn.put(block, self.region, into=gx.view((65,))), ValueError, "block has 64 bytes, and the view 65"),
                (lambda: self.conn.put(block, self.region, into=gx.view((64,), (0,))), ValueError, "the view: axis 0: steps of 0 bytes"),
                (lambda: self.conn.put(block, self.region, into=gx.view((1, 4, 1, 16), (9, 15, 9, 1))), ValueError, "the view: axis 1: steps of 15"),
                (lambda: self.conn.put(block, self.region, 2**63, into=gx.view((64,), offset=2**63)), OverflowError, "behind"),
                (lambda: gx.view((2,) * 5, (2, 8, 32, 128, 512)), ValueError, "4 axes"),
                (lambda: gx.view((2, 3), (1,)), ValueError, "2 axes with 1 strides"),
                (lambda: gx.view((-1,)), ValueError, "shape"),
                (lambda: gx.view((2**40, 2**40)), ValueError, "bytes"),
                (lambda: gx.view((2**40, 1), (2**40, 1)), ValueError, "2..63"),
                (lambda: gx.view((2**36, 2), (0, 1)), ValueError, "64 GiB"),
                (lambda: gx.view((1,) * 65), BufferError, "64 axes"),
                (lambda: gx.view((4,), itemsize=0), ValueError, "itemsize 0"),
                (lambda: gx.view(4), TypeError, "iterable")):
            with self.assertRaisesRegex((error, gx.Error), words) as seen:
                call()
            self.assertIsInstance(seen.exception, error)
        for offset, into in ((SIZE - 63, gx.view((4, 16))), (0, gx.view((4, 16), (-16, 1), 47)), (0, gx.view((4096, 16), rows=[0, 1, 4095, 5], offset=1))):
            for op in (self.conn.put(block, self.region, offset, into=into), self.conn.get(block, self.region, offset, out_of=into)):
                with self.assertRaises(gx.OutOfRange):
                    op.wait(20)
        self.assertEqual((bytes(self.pages), bytes(data)), (bytes(SIZE), bytes(64)))

    def test_views_are_kept(self):
        """A second put by the same views is one message, whoever made them; the oldest of 16 goes."""
        conn = self.near.connect(f"127.0.0.1:{self.far.listen('127.0.0.1:0')}", link="packet")
        region, block = conn.region(self.pages.key()), memoryview(bytearray(os.urandom(256)))

        def put(n):
            sent = self.near.stats()["msgs_tx 0"]
            self.assertEqual(conn.put(block[::n + 2], region, rows=range(3), into=gx.view((99,), rows=[n, 45, 60])).wait(20), 3)
            return self.near.stats()["msgs_tx 0"] - sent

        self.assertEqual([put(0), put(0), put(1), put(1), put(0)], [2, 1, 2, 1, 1])  # a view with its rows, the bytes
        self.assertEqual([put(n) for n in range(2, 16)], [2] * 14)
        for step in (2, 3, 2):  # another view of the peer alone
            memoryview(self.pages)[:] = bytes(SIZE)
            conn.put(block[:9], region, into=gx.view((9,), (step,))).wait(20)
            self.assertEqual(bytes(self.pages)[:9 * step:step], bytes(block[:9]))
        put(0)
        self.assertEqual([put(0), put(16), put(1), put(0)], [1, 2, 2, 1])

    def test_view_lives(self):
        """Operations under way have their views where these are gone at once, others come, and the context closes."""
        block, ops = memoryview(bytearray(os.urandom(SIZE)))[::2], []
        for n in range(60):
            ops.append(self.conn.put(block, self.region, rows=range(n, n + 64), into=gx.view((SIZE,), rows=range(n, n + 64))))
            gc.collect()
        self.assertEqual([op.wait(20) for op in ops], [64] * 60)
        self.assertEqual(bytes(self.pages)[59:123], bytes(block)[59:123])
        memoryview(self.pages)[:] = os.urandom(SIZE)
        into = bytearray(60 * 256)
        for n in range(60):
            ops[n] = self.conn.get(memoryview(into)[n * 256:][:256:2], self.region, rows=range(n, n + 64), out_of=gx.view((SIZE,), rows=range(n, n + 64)))
            gc.collect()
        self.assertEqual([op.wait(20) for op in ops], [64] * 60)
        for n in range(60):
            wanted = bytearray(256)
            wanted[2 * n:2 * n + 128:2] = bytes(self.pages)[n:n + 64]
            self.assertEqual(into[n * 256:][:256], wanted)
        self.conn.put(block, self.region, into=gx.view((SIZE // 2,), (2,)))
        self.conn.get(memoryview(bytearray(SIZE))[::2], self.region, out_of=gx.view((SIZE // 2,), (2,)))
        self.near.close()

    def test_many_memories(self):
        """Blocks of registered memory are found among many, also where registrations overlap."""
        data = bytearray(os.urandom(SIZE))
        whole = self.near.register(data)
        parts = [self.near.register(memoryview(data)[i:i + 64]) for i in range(0, SIZE, 128)]
        for round_ in range(2):
            views = [memoryview(data)[i:i + 96] for i in range(0, SIZE, 128)]
            self.conn.put_many(views, self.region, range(0, SIZE, 128)).wait(20)
            for i in range(0, SIZE, 128):
                self.assertEqual(bytes(self.pages)[i:i + 96], data[i:i + 96])
            for part in parts[::2] if not round_ else [whole]:
                part.free()
            data[:] = os.urandom(SIZE)
        del views

    def test_owner_ends_with_context(self):
        """The only reference to memory is its owner, which ends as the context closes."""
        for _ in range(10):
            owner = Owner(4096)
            owner.mem = self.near.register(owner)
            ref = weakref.ref(owner)
            del owner
            self.assertIsNotNone(ref())
        self.near.close()
        gc.collect()
        self.assertIsNone(ref())

    def test_block_that_closes(self):
        """A block whose memory is asked for closes the context, or frees memory that an earlier block named."""
        class Closer:
            def __init__(self, what):
                self.what = what

            def __dlpack_device__(self):
                self.what()
                raise BufferError("no")

        part = self.near.register(bytearray(4096))
        with self.assertRaises(BufferError):
            self.conn.put_many([(part.addr, 8), Closer(part.free)], self.region, [0, 0])
        with self.assertRaises(gx.Closed):
            self.conn.put(memoryview(bytes(64))[::2], self.region, rows=types.SimpleNamespace(tolist=lambda: [self.near.close() or 3]))
        self.near = gx.Context(self.cores)
        self.conn = self.near.connect(f"127.0.0.1:{self.far.listen('127.0.0.1:0')}")
        with self.assertRaises(BufferError):
            self.conn.put_many([b"12345678", Closer(self.near.close)], self.region, [0, 0])

    def test_end_that_closes(self):
        """An operation that ends lets go of memory whose own end closes the context, while others are under way."""
        port = self.far.listen("127.0.0.1:0")
        for kind in ("put", "get"):
            near = gx.Context(self.cores)
            conn = near.connect(f"127.0.0.1:{port}")
            region, call = conn.region(self.pages.key()), getattr(conn, kind)
            ops = [call(Ending(64, near.close), region, notify=b"note" if kind == "get" else None)]
            ops += [call(bytearray(64), region) for _ in range(20)]
            ends = []
            for op in ops:
                try:
                    ends.append(op.wait(20))
                except gx.Canceled:
                    ends.append("canceled")
            self.assertEqual(ends[0], 64 if kind == "put" else "canceled")
            self.assertLessEqual(set(ends), {64, "canceled"})
            with self.assertRaises(gx.Closed):
                near.notifications()

    def test_end_that_polls(self):
        """Notifications stay whole and in order where the end of an operation takes some."""
        until = time.monotonic() + 60

        def take(n):
            while len(got) < n and time.monotonic() < until:
                got.extend(text for _, text in self.near.notifications())

        mark = self.near.alloc(8)
        back = self.far.accept(20)
        where, texts = back.region(mark.key()), [b"%d" % i * 100 for i in range(300)]
        for turn in range(4):  # gx_poll() gives ends or notes first, in turns
            got, word = [], b"round %d." % turn
            op = self.conn.put(Ending(64, lambda: take(200)), self.region)
            for text in texts[:40]:  # of 64 places; 16 may be free without the sender's knowledge
                back.notify(text)
            back.put(word, where)
            for text in texts[40:]:
                back.notify(text)
            while bytes(mark) != word and time.monotonic() < until:
                self.far.notifications()
            op.wait(20)
            take(300)
            self.assertEqual(got, texts)
            for _ in range(turn):
                self.near.notifications()

    def test_dlpack(self):
        """By the keywords of the standard, of both ages."""
        data = bytearray(os.urandom(4096))
        addr = ctypes.addressof(ctypes.c_char.from_buffer(data))
        for kind in (Tensor, OldTensor):
            tensor = kind(addr, 64, 64)
            self.conn.put(tensor, self.region).wait(20)
            self.assertEqual(bytes(self.pages)[:4096], data)
            self.assertEqual(tensor.asked, {"stream": None, "max_version": (1, 0) if kind is Tensor else None,
                                            "copy": False if kind is Tensor else None})
            self.conn.get(tensor, self.region, 4096).wait(20)
            self.assertEqual(data, bytes(self.pages)[4096:8192])
            self.near.register(tensor).free()
            data[:] = os.urandom(4096)
        with self.assertRaisesRegex(BufferError, "DLPack 2"):
            self.conn.put(Tensor(addr, 8, major=2), self.region)

    def test_array_interface(self):
        """Of the host: types that have no buffer, as bfloat16; what it refuses."""
        class Array:
            def __init__(self, typestr="<V2", shape=(16, 16), strides=None, readonly=False, **more):
                self.__array_interface__ = {"typestr": typestr, "shape": shape, "strides": strides, "data": (addr, readonly), "version": 3, **more}

        data = bytearray(os.urandom(4096))
        addr = ctypes.addressof(ctypes.c_char.from_buffer(data))
        for array_, size in ((Array(), 512), (Array("<U3", (2,)), 24), (Array("<M8[ns]", (3,)), 24), (Array("|u1", (4, 1, 2), (2, 99, 1)), 8),
                             (Array("|V8", (), (), descr=[("a", "<V2"), ("O", "<f4")]), 8)):
            self.assertEqual(self.conn.put(array_, self.region).wait(20), size)
            self.assertEqual(bytes(self.pages)[:size], data[:size])
        mem = self.near.register(Array(shape=(2048,)))
        self.assertEqual((mem.addr, mem.nbytes, mem.device), (addr, 4096, -1))
        with self.assertRaisesRegex(BufferError, "gaps or another order: make a contiguous copy"):
            self.near.register(Array(strides=(64, 2)))
        for objects in (Array("|O"), Array("|V16", descr=[("a", "<V2"), ("b", "|O")])):
            with self.assertRaisesRegex(BufferError, "references to objects"):
                self.conn.put(objects, self.region)
        with self.assertRaisesRegex(gx.Denied, "read only"):
            self.near.register(Array(readonly=True)).key(gx.PUT)
        with self.assertRaises(BufferError):
            self.conn.get(Array(readonly=True), self.region)
        self.assertEqual(self.pages.__array_interface__, {"typestr": "|u1", "shape": (SIZE,), "data": (self.pages.addr, False), "version": 3})
        self.assertEqual(self.conn.put(types.SimpleNamespace(__array_interface__=self.pages.__array_interface__), self.region).wait(20), SIZE)

    def test_tensor_of_torch(self):
        """One that DLPack does not give: it needs a gradient, or is of a type that DLPack has not."""
        class Torch(Tensor):
            nbytes, layout, shape, steps, neg, device = 64, "torch.strided", (32,), (1,), False, types.SimpleNamespace(type="cpu", index=None)
            is_neg, is_conj, element_size = (lambda self: self.neg), (lambda self: False), (lambda self: 2)
            data_ptr, stride = (lambda self: self.dl.data), (lambda self: self.steps)

            def __init__(self, **more):
                super().__init__(addr, 64)
                vars(self).update(more)

            def __dlpack_device__(self):
                return 1, 0

            def __dlpack__(self, **_):
                raise BufferError("Can't export tensors that require gradient, use tensor.detach()")

        data = bytearray(os.urandom(64))
        addr = ctypes.addressof(ctypes.c_char.from_buffer(data))
        self.assertEqual(self.conn.put(Torch(device=Torch.device), self.region).wait(20), 64)
        self.assertEqual(bytes(self.pages)[:64], data)
        with self.assertRaisesRegex(ValueError, "registered"):
            self.conn.put(Torch(device=types.SimpleNamespace(type="cuda", index=1)), self.region)
        for bad, words in (({"device": types.SimpleNamespace(type="meta", index=None)}, "CUDA"), ({"device": Torch.device, "neg": True}, "negated"), ({"device": Torch.device, "layout": "torch.sparse_coo"}, "sparse"),
                           ({"device": Torch.device, "shape": (16,), "steps": (2,)}, "gaps")):
            with self.assertRaisesRegex(BufferError, words):
                self.near.register(Torch(**bad))
        self.conn.put(Torch(device=Torch.device, shape=(16,), steps=(2,)), self.region).wait(20)
        self.assertEqual(bytes(self.pages)[:32], b"".join(data[i:i + 2] for i in range(0, 64, 4)))

    def test_tensor_gets_other_memory(self):
        """What is kept is the memory that a tensor has now: x.data = y, and half() of its module, give it another one."""
        kept = []

        class Own:
            nbytes, layout, device = 64, "torch.strided", types.SimpleNamespace(type="cpu", index=None)
            is_neg = is_conj = lambda self: False
            shape, stride, element_size = (64,), (lambda self: (1,)), (lambda self: 1)

            def __init__(self, data):
                self.data = data

            def data_ptr(self):
                return ctypes.addressof(ctypes.c_char.from_buffer(self.data))

            def detach(self):
                own = Own(self.data)
                kept.append(weakref.ref(own))
                return own

        tensor = Own(bytearray(64))
        memory = self.near.register(tensor)
        tensor.data = bytearray(64)
        gc.collect()
        self.assertIsNotNone(kept[0]())
        memory.free()
        del memory
        gc.collect()
        self.assertIsNone(kept[0]())

    def test_index_arrays(self):
        """As numpy's and torch's: all numbers at once; what they may not be."""
        class Indices:
            def __init__(self, *all_):
                self.all = all_

            def tolist(self):
                return list(self.all) if self.all[1:] else self.all[0]

            def __iter__(self):
                raise AssertionError("one by one")

        self.conn.put_many([b"one", b"two"], self.region, Indices(64, 0)).wait(20)
        self.conn.put_many([b"six", b"ten"], self.region, array.array("q", (128, 192))).wait(20)
        self.assertEqual([bytes(self.pages)[at:at + 3] for at in (0, 64, 128, 192)], [b"two", b"one", b"six", b"ten"])
        for bad in (Indices(0.0, 1.0), Indices([0], [1]), Indices(0, -1), Indices(0, 2**64), Indices(3), array.array("d", (0, 1))):
            with self.assertRaises((TypeError, OverflowError, ValueError), msg=f"{bad}"):
                self.conn.put_many([b"one", b"two"], self.region, bad)

    def test_memory_by_dlpack(self):
        """Memory of gx as others see it: a capsule, or the tensor taken out of it, keeps it."""
        get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
        rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))
        mem, taken = self.near.alloc(100), ctypes.create_string_buffer(b"used_dltensor")
        self.assertEqual(mem.__dlpack_device__(), (1, 0))
        self.assertFalse(hasattr(mem, "__cuda_array_interface__"))
        cap = mem.__dlpack__(stream=None, max_version=(1, 0), dl_device=(1, 0), copy=False)
        at = get(cap, b"dltensor")
        whole = (ctypes.c_uint64 * 8).from_address(at)  # struct DLManagedTensor
        t = Tensor.DL.from_address(at - Tensor.DL.data.offset)
        self.assertEqual((t.data, list(t.device), t.ndim, t.code, t.bits, t.lanes, t.strides, t.offset),
                         (mem.addr, [1, 0], 1, 1, 8, 1, None, 0))
        self.assertEqual(ctypes.c_int64.from_address(t.shape).value, 100)
        with self.assertRaises(BufferError):
            mem.free()
        with self.assertRaises(BufferError):
            self.near.close()
        rename(cap, taken)
        del cap
        with self.assertRaises(BufferError):
            mem.free()
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(whole[7])(at)  # without the GIL
        cap = mem.__dlpack__()
        del cap
        mem.free()
        for call in (lambda: mem.__dlpack__(), lambda: self.pages.__dlpack__(copy=True),
                     lambda: self.pages.__dlpack__(dl_device=(2, 0)), lambda: self.near.register(b"readonly").__dlpack__(),
                     lambda: self.pages.__dlpack__(1)):
            with self.assertRaises((BufferError, ValueError, TypeError)):
                call()

    def test_dlpack_of_a_gpu(self):
        """Its stream goes by keyword: nothing of the GPU is used before."""
        for kind in (Tensor, OldTensor):
            tensor = kind(4096, 8, device=(2, 0))
            with self.assertRaisesRegex(ValueError, "registered"):
                self.conn.put(tensor, self.region)
            self.assertEqual(tensor.asked["stream"], -1)

    def test_tensor_of_another_gpu(self):
        """As torch's, of a GPU that is not its current one: no capsule, and the other interface."""
        class Other(Tensor):
            __cuda_array_interface__ = {"shape": (8,), "typestr": "|u1", "data": (4096, False), "version": 3}

            def __dlpack__(self, **_):
                raise BufferError("Can't export tensors on a different CUDA device index")

        with self.assertRaisesRegex(ValueError, "registered"):
            self.conn.put(Other(4096, 8, device=(2, 1)), self.region)

    def test_tuples(self):
        a = array.array("Q", range(8))
        where = a.buffer_info()[0]
        self.conn.put((where, 64, -1), self.region).wait(20)
        self.assertEqual(bytes(self.pages)[:64], a.tobytes())
        for bad in (1, "text", (where,), (where, 64, -2), (-1, 64), None):
            with self.assertRaises((TypeError, ValueError, OverflowError, BufferError), msg=repr(bad)):
                self.conn.put(bad, self.region)
        with self.assertRaisesRegex(ValueError, "registered"):
            self.conn.put((where, 64, 0), self.region)

    def test_tuples_of_no_memory(self):
        """Or of memory that may only be read: no core meets them."""
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        pages = libc.mmap(None, 3 * 4096, 3, 0x22, -1, 0)
        libc.mprotect(pages, 4096, 1)  # read only, as it was, forbidden
        libc.mprotect(pages + 8192, 4096, 0)
        self.conn.put((pages, 8192), self.region).wait(20)
        self.conn.get((pages + 4096, 4096), self.region).wait(20)
        for call, addr, nbytes in ((self.conn.put, 16, 64), (self.conn.get, pages, 64), (self.conn.put, pages + 8191, 2),
                                   (self.conn.put, pages + 8192, 1), (self.conn.get, pages + 4000, 100)):
            with self.assertRaisesRegex(ValueError, "may not (read|write) .* not there", msg=(call, addr - pages)):
                call((addr, nbytes), self.region)
        with self.assertRaisesRegex(ValueError, "not there"):
            self.conn.put_many([b"a", (16, 64)], self.region, [0, 64])
        self.conn.put((16, 0), self.region).wait(20)

    def test_wrong_arguments(self):
        for args in (([], self.region, []), ([b"a"], self.region, []), ([b"a"], self.region, [-1]),
                     ([b"a"], None, [0]), ([b"a"], self.region, [0], "text"), ([b"a"], self.region, [0], b"n" * 4097)):
            with self.assertRaises((TypeError, ValueError, OverflowError), msg=repr(args)):
                self.conn.put_many(*args)
        with self.assertRaises(gx.Timeout):
            self.near.accept(0.01)
        with self.assertRaises(gx.Refused):
            self.near.connect("127.0.0.1:1", timeout=20)
        with self.assertRaises(TypeError):
            gx.Memory()

    def test_closed(self):
        op = self.conn.put(b"x" * 64, self.region)
        self.far.close()
        self.near.close()
        self.assertTrue(op.done)
        for call in (self.near.notifications, self.conn.info, self.pages.key, self.near.stats,
                     lambda: self.conn.put(b"", self.region)):
            with self.assertRaises((gx.Closed, gx.PeerLost)):
                call()
        self.near.close()
        self.pages.free()

    def test_closed_by_another_thread(self):
        t = threading.Timer(0.1, self.near.close)
        t.start()
        with self.assertRaises(gx.Closed):
            self.near.accept(20)
        t.join()

    def test_peer_closes(self):
        self.far.close()
        until = time.monotonic() + 20
        while self.conn.info()["state"] != "down" and time.monotonic() < until:
            time.sleep(0.01)
        with self.assertRaises(gx.PeerLost) as lost:
            self.conn.put(b"x" * 64, self.region).wait(20)
        info = self.conn.info()
        self.assertEqual((lost.exception.strerror, lost.exception.reason), (info["text"], info["reason"]))
        self.assertNotEqual(info["text"], "")

    def test_signal(self):
        def stop(signo, frame):
            raise InterruptedError

        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, stop))
        with self.assertRaises(InterruptedError):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            self.near.accept(20)

    def test_threads(self):
        def work(k):
            for i in range(200):
                self.conn.put(bytes([k]) * 64, self.region, k * 64).wait(20)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for k in range(4):
            self.assertEqual(bytes(self.pages)[k * 64:k * 64 + 64], bytes([k]) * 64)

    def test_fork(self):
        tasks.all_asleep()
        pid = os.fork()
        if not pid:
            try:
                self.conn.put(b"x", self.region)
            except gx.Forked as e:
                if "child of fork" not in str(e):
                    os._exit(1)
            try:
                with self.conn:
                    raise ZeroDivisionError
            except ZeroDivisionError:
                os._exit(0)
            os._exit(2)
        killer = threading.Timer(60, os.kill, (pid, signal.SIGKILL))
        killer.start()
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        killer.cancel()
        self.conn.put(b"x", self.region).wait(20)

    def test_stats(self):
        self.conn.put(b"x", self.region).wait(20)
        self.assertTrue(self.near.stats())


class Turned(Pair):
    """The same where the threads that call turn the core."""
    cores = []

    def test_nobody_calls(self):
        """The peer reads and writes here, and stays connected, while no thread of Python calls."""
        with gx.Context() as other, other.connect(f"127.0.0.1:{self.far.listen('127.0.0.1:0')}", link="packet") as conn:
            region = conn.region(self.pages.key())
            for pause in (0, 0.3):
                time.sleep(pause)
                conn.put(b"x" * SIZE, region).wait(20)
                self.assertEqual(bytes(self.pages), b"x" * SIZE)

    def test_post_and_leave(self):
        """An operation goes on while no thread of Python waits for it."""
        op = self.conn.put(b"y" * SIZE, self.region)
        until = time.monotonic() + 20
        while bytes(self.pages) != b"y" * SIZE and time.monotonic() < until:
            time.sleep(0.01)
        self.assertEqual(bytes(self.pages), b"y" * SIZE)
        self.assertEqual(op.wait(20), SIZE)

    def test_idle(self):
        """A context that has nothing to do takes no CPU."""
        time.sleep(0.1)
        begin = time.process_time()
        time.sleep(1)
        self.assertLess(time.process_time() - begin, 0.1)


class Gone(Bounded):
    """More peers come and go than a server that may have 256 descriptors has room for."""
    PEERS = 2000 if os.environ.get("GX_TEST_FULL") else 500

    def server(self, mode):
        env = dict(os.environ, PYTHONPATH=f"{ROOM.name}:{os.path.dirname(os.path.abspath(__file__))}")
        p = subprocess.Popen([sys.executable, "-c", SERVER.replace("from test_python", f"sys.argv[1:] = {[str(BUILD), str(SOURCE)]}\n    from test_python"),
                              mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        for end in (p.stdin.close, p.stdout.close, p.wait, p.kill):
            self.addCleanup(end)
        address, key = p.stdout.readline().split()
        return p, address, bytes.fromhex(key)

    def ask(self, p):
        p.stdin.write("\n")
        p.stdin.flush()
        return [int(word) for word in p.stdout.readline().split()]

    def settled(self, p, first):
        """No connection is left, and no more descriptors and mappings than before the first; the sanitizer's mappings vary."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            now = self.ask(p)
            if now[0] <= first[0] + 2 and now[1] <= first[1] + 100 and not now[2]:
                return now
            time.sleep(0.02)
        self.fail(f"descriptors, mappings, connections, lost, accepted: {first}, and now {now}")

    def come_and_go(self, mode, link=None, peers=PEERS):
        p, address, key = self.server(mode)
        first = self.ask(p)
        for _ in range(peers // 50):
            with gx.Context([]) as near:
                for i in range(50):
                    conn = near.connect(address, 30, link=link)
                    block = bytearray(64)
                    conn.get(block, conn.region(key), notify=b"last" if i == 49 and mode != "ray" else None).wait(30)
                    if i % 2:
                        conn.close()
        last = self.settled(p, first)
        return p, last

    def test_server_that_never_calls(self):
        _, last = self.come_and_go("idle")
        self.assertEqual(last[3], self.PEERS)

    def test_server_that_keeps_all(self):
        """It holds each Connection, which says why it ended; no notification is lost."""
        p, last = self.come_and_go("keeps", peers=500)
        self.assertEqual(last[3:], [500, 500])
        p.stdin.close()
        self.assertEqual(p.stdout.readline(), "500 10\n")

    def test_server_by_tcp(self):
        self.come_and_go("idle", "tcp", 500)

    def test_ray_transport(self):
        self.come_and_go("ray")

    def test_client_whose_servers_go(self):
        """Connections of connect() are let go of, too; not those that are up."""
        lost = []
        with gx.Context([], on_lost=lost.append) as near, gx.Context([]) as stays:
            kept = near.connect(f"127.0.0.1:{stays.listen('127.0.0.1:0')}")
            for _ in range(5):
                with gx.Context([]) as far:
                    gone = near.connect(f"127.0.0.1:{far.listen('127.0.0.1:0')}")
                until = time.monotonic() + 30
                while gone not in lost and time.monotonic() < until:
                    time.sleep(0.001)
                self.assertIs(lost[-1], gone)
                with self.assertRaises(gx.PeerLost) as e:
                    gone.put(b"x", None)
                self.assertEqual((e.exception.strerror, e.exception.reason), (gone.info()["text"], "peer-closed"))
                self.assertIn("down", repr(gone))
                gone.close()
                self.assertEqual(near.connections, [kept])
            kept.close()
            self.assertEqual((near.connections, len(lost)), ([], 5))

    def test_lost_raises_and_closes(self):
        """What on_lost raises goes to sys.excepthook; it may close the context."""
        said, closed = [], threading.Event()

        def lost(conn):
            if len(said) < 2:
                raise ZeroDivisionError
            far.close()
            closed.set()

        hook, sys.excepthook = sys.excepthook, lambda *args: said.append(args[0])
        self.addCleanup(setattr, sys, "excepthook", hook)
        far = gx.Context([], on_lost=lost)
        port = far.listen("127.0.0.1:0")
        for _ in range(3):
            with gx.Context([]) as near:
                near.connect(f"127.0.0.1:{port}")
        self.assertTrue(closed.wait(30))
        self.assertEqual(said, [ZeroDivisionError] * 2)

    def test_contexts_leave_nothing(self):
        """Their threads end, and their descriptors close, closed or let go."""
        for _ in range(2):
            for i in range(20):
                g = gx.Context([])
                if i % 2:
                    g.close()
                g = None
            until = time.monotonic() + 30
            while any(t.name == "gx-lost" for t in threading.enumerate()) and time.monotonic() < until:
                time.sleep(0.01)
            now, before = len(os.listdir("/proc/self/fd")), now if _ else None
        self.assertEqual(now, before)
        self.assertEqual([t.name for t in threading.enumerate() if t.name == "gx-lost"], [])


class Program(Bounded):
    def run_python(self, *args, **more):
        env = dict(os.environ, PYTHONPATH=f"{ROOM.name}:{os.path.dirname(os.path.abspath(__file__))}", **more)
        with subprocess.Popen([sys.executable, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
                              start_new_session=True) as p:
            killer = threading.Timer(60, os.killpg, (p.pid, signal.SIGKILL))  # its children, too
            killer.start()
            out, err = p.communicate()
            killer.cancel()
        return subprocess.CompletedProcess(args, p.returncode, out, err)

    def test_import(self):
        p = self.run_python("-c", "import gx, sys, threading; print({'numpy', 'torch', 'asyncio'} & set(sys.modules), "
                            "threading.active_count())")
        self.assertEqual(p.stdout, "set() 1\n", p.stderr)

    def test_demo(self):
        p = self.run_python("-m", "gx", "demo")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertIn("the same", p.stdout)
        self.assertIn("gx ", self.run_python("-m", "gx", "info").stdout)
        self.assertEqual(self.run_python("-m", "gx", "what").returncode, 2)

    def test_errors_name_arguments(self):
        """Of Python, not fields of the C API; the log, too."""
        p = self.run_python("-c", "import gx\nwith gx.Context([]) as g:\n    g.listen('0.0.0.0:0')\n    g.connect('192.0.2.77:9')")
        self.assertIn("gx._errors.Denied", p.stderr)
        self.assertIn("name one of the server's in key_file, or set insecure=True at both ends", p.stderr)
        self.assertIn("this end has no keys (key_file); set insecure=True to serve others", p.stderr)
        self.assertNotIn("gx_", p.stderr.replace("_gx.", ""))
        p = self.run_python("-c", "import gx\n"
                            "g = gx.Context([])\n"
                            "h, m, at = gx.Context([]), g.alloc(64), f'127.0.0.1:{g.listen(\"127.0.0.1:0\")}'\n"
                            "for call in (lambda: m.key(0), lambda: m.key(8), lambda: h.connect('127.0.0.1:0'), lambda: h.connect(at, link='verbs'),\n"
                            "             lambda: gx.Context(name='x'), lambda: gx.Context(insecure=True, key_file='/dev/null'), lambda: h.withdraw(bytes(64)),\n"
                            "             lambda: h.connect(at, peer='x'), lambda: gx.Context(key_file='/nowhere'), lambda: gx.Context(peer_timeout=1e6),\n"
                            "             lambda: h.listen('127.0.0.1:1025,127.0.0.2:1026')):\n"
                            "    try:\n"
                            "        call()\n"
                            "    except gx.Error as e:\n"
                            "        print(e)\n")
        self.assertEqual((len(p.stdout.splitlines()), p.stderr), (11, ""))
        self.assertIn("a key with access 0: take gx.PUT, gx.GET, or both", p.stdout)
        self.assertNotRegex(p.stdout, "gx_|GX_| \\.[a-z]")

    def test_calls_are_told(self):
        """help() of each call has its arguments, which are those of the stubs, and says what it is for."""
        p = self.run_python("-c", "import ast, inspect, pathlib, gx\n"
                            "tree, n = ast.parse(pathlib.Path(gx.__file__).with_name('_gx.pyi').read_text()), 0\n"
                            "for kind in [c for c in tree.body if isinstance(c, ast.ClassDef) and hasattr(gx, c.name)]:\n"
                            "    public = {f.name: f.args for f in kind.body if isinstance(f, ast.FunctionDef) and f.name[0] != '_'}\n"
                            "    here = getattr(gx, kind.name)\n"
                            "    for name in {*public, *(m for m in dir(here) if m[0] != '_')} - {a.target.id for a in kind.body if isinstance(a, ast.AnnAssign)}:\n"
                            "        call = getattr(here, name)\n"
                            "        assert call.__doc__ and len(call.__doc__) > 10, name\n"
                            "        if callable(call) and name in vars(getattr(gx._gx, kind.name)):\n"
                            "            a = public[name]\n"
                            "            names = [x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs)]\n"
                            "            assert names == list(inspect.signature(call).parameters), (name, names, inspect.signature(call))\n"
                            "            n += 1\n"
                            "print(n, inspect.signature(gx.Context).parameters['sms'], gx.Connection.put.__text_signature__)\n")
        self.assertEqual((p.stdout, p.stderr), ("22 sms: 'int' = 0 ($self, /, block, region, offset=0, notify=None, *, rows=None, into=None)\n", ""))

    def test_kv_cache(self):
        """The example: its client; one that is killed in the middle; more blocks than there are; a late reader; what nobody has asked for."""
        env = dict(os.environ, PYTHONPATH=ROOM.name)
        command = [sys.executable, str(SOURCE / "docs/examples/kv_cache.py")]
        server = subprocess.Popen([*command, "serve", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True, env=env)
        for end in (server.stdout.close, server.wait, server.kill):
            self.addCleanup(end)
        address = "127.0.0.1:" + server.stdout.readline().split()[-1]
        for _ in range(2):
            p = self.run_python(*command[1:], "use", address)
            self.assertEqual((p.returncode, p.stdout, p.stderr), (0, "all pages are the same: True\n", ""))
        p = self.run_python("-c", "import gx, os, signal\n"
                            f"g = gx.Context([])\nc = g.connect('{address}')\nc.notify(b'new half')\n"
                            "(_, key), = g.notifications(None)\nc.put(b'half', c.region(key)).wait()\nos.kill(os.getpid(), signal.SIGKILL)")
        self.assertEqual(p.returncode, -signal.SIGKILL)
        with gx.Context([]) as g, g.connect(address) as peer:
            def ask(text):
                peer.notify(text)
                return g.notifications(60)[0][1]

            self.assertEqual([ask(b"find half"), ask(b"find nothing"), len(ask(b"find prompt 17"))], [b"", b"", 64])
            old, back = peer.region(ask(b"find prompt 17")), bytearray(3)
            for text in (b"whole nothing", b"", b"\xff" * 99, b"find"):
                peer.notify(text)
            self.assertEqual(g.notifications(60)[0][1], b"")  # of the last one
            for i in range(65):
                put = peer.region(ask(b"new %d" % i))
                peer.put(b"%3d" % i, put, notify=b"whole %d" % i).wait(60)
                key = ask(b"find %d" % i)
                with self.assertRaises(gx.Stale):
                    peer.put(b"bad", put).wait(60)
                peer.get(back, peer.region(key)).wait(60)
                self.assertEqual(back, b"%3d" % i)
            with self.assertRaises(gx.Stale):
                peer.get(back, old).wait(60)
        self.assertIsNone(server.poll())

    def test_examples(self):
        for name, words in (("weights", "none was a mix"), ("blocks", "local True\n")):
            p = self.run_python(str(SOURCE / f"docs/examples/{name}.py"))
            self.assertEqual(p.returncode, 0, p.stderr)
            self.assertIn(words, p.stdout)
        self.assertIn("withdrawn", p.stdout)

    def test_wheel_has(self):
        """What meson-python takes into the wheel."""
        with tempfile.TemporaryDirectory() as room:
            subprocess.run(["meson", "install", "-C", BUILD, "--no-rebuild", "--quiet", "--destdir", room, "--tags", "runtime,python-runtime"],
                           check=True, timeout=60, capture_output=True)
            names = {p.name for p in pathlib.Path(room).rglob("*")}
        self.assertLessEqual({"_gx.abi3.so", "__init__.py", "ray.py", "py.typed", "gxd", "gxperf"}, names)
        if (BUILD / "bindings/nixl/libplugin_GX.so").exists():
            self.assertLessEqual({"libplugin_GX.so", "gx-nixl-install"}, names)
        if (BUILD / "bindings/nccl/libnccl-net-gx.so").exists():
            self.assertIn("libnccl-net-gx.so", names)

    @unittest.skipUnless((BUILD / "tests/libcuda.so.1").exists(), "this build has no fake GPU")
    def test_tensor_of_a_gpu(self):
        """Registered, put and got, on the fake GPU."""
        p = self.run_python("-c", "import sys; sys.argv[1:] = %r\n"
                            "from test_python import *\n"
                            "with gx.Context([]) as far, gx.Context([]) as near:\n"
                            "    pages, gpu = far.alloc(4096), near.alloc(4096, device=0)\n"
                            "    conn = near.connect(f'127.0.0.1:{far.listen(\"127.0.0.1:0\")}')\n"
                            "    region, data = conn.region(pages.key()), os.urandom(4096)\n"
                            "    tensor = Tensor(gpu.addr, 4096, device=(2, 0))\n"
                            "    memoryview(pages)[:] = data\n"
                            "    assert gpu.__dlpack_device__() == (2, 0) and gpu.__dlpack__(stream=1)\n"
                            "    assert gpu.__cuda_array_interface__ == {'shape': (4096,), 'typestr': '|u1', 'data': (gpu.addr, False), 'version': 3}\n"
                            "    mem = near.register(tensor)\n"
                            "    conn.get(tensor, region).wait(20)\n"
                            "    memoryview(pages)[:] = bytes(4096)\n"
                            "    conn.put(tensor, region).wait(20)\n"
                            "    assert bytes(pages) == data and mem.device == 0 and tensor.asked['stream'] == -1\n" % [str(BUILD), str(SOURCE)],
                            LD_LIBRARY_PATH=str(BUILD / "tests"), GX_FAKE_CUDA="1")
        self.assertEqual((p.returncode, p.stderr), (0, ""))

    @unittest.skipUnless((BUILD / "tests/libcuda.so.1").exists(), "this build has no fake GPU")
    def test_tensors_without_dlpack(self):
        """Of a GPU: as cupy's, numba's and gx's own; as torch's that need a gradient. On the fake GPU."""
        p = self.run_python("-c", "import sys; sys.argv[1:] = %r\n"
                            "from test_python import *\n"
                            "with gx.Context([]) as far, gx.Context([]) as near:\n"
                            "    pages, gpus = far.alloc(4096), [near.alloc(4096, device=d) for d in range(2)]\n"
                            "    conn = near.connect(f'127.0.0.1:{far.listen(\"127.0.0.1:0\")}')\n"
                            "    region, named = conn.region(pages.key()), types.SimpleNamespace\n"
                            "    def no(**_):\n"
                            "        raise BufferError\n"
                            "    torch = named(data_ptr=lambda: gpus[1].addr, nbytes=4096, device=named(type='cuda', index=1), shape=(1024,), layout='torch.strided',\n"
                            "                  is_neg=lambda: False, is_conj=lambda: False, stride=lambda: (1,), element_size=lambda: 4,\n"
                            "                  __dlpack_device__=lambda: (2, 1), __dlpack__=no)\n"
                            "    faces = [{'shape': (16, 64), 'typestr': '<f4', 'data': (g.addr, False), 'version': 3, 'strides': None} for g in gpus]\n"
                            "    cupy = named(__cuda_array_interface__=faces[1], device=named(id=1), __dlpack_device__=lambda: (2, 1), __dlpack__=no)\n"
                            "    for obj, device in ((torch, 1), (cupy, 1), (named(__cuda_array_interface__=faces[0]), 0), (gpus[1], 1)):\n"
                            "        data = os.urandom(4096)\n"
                            "        memoryview(pages)[:] = data\n"
                            "        conn.get(obj, region).wait(20)\n"
                            "        memoryview(pages)[:] = bytes(4096)\n"
                            "        conn.put(obj, region).wait(20)\n"
                            "        mem = near.register(obj)\n"
                            "        assert bytes(pages) == data and (mem.device, mem.addr) == (device, gpus[device].addr), obj\n"
                            "    assert not hasattr(gpus[0], '__array_interface__')\n" % [str(BUILD), str(SOURCE)],
                            LD_LIBRARY_PATH=str(BUILD / "tests"), GX_FAKE_CUDA="1", GX_FAKE_CUDA_DEVICES="2")
        self.assertEqual((p.returncode, p.stderr), (0, ""))

    def test_fork_makes_its_own(self):
        """A child that lets the parent's objects go, makes its own, and ends as a program does."""
        for cores in (None, []):
            p = self.run_python("-c", "import gc, gx, os, tasks\n"
                                f"g = [gx.Context({cores}) for _ in range(3)]\n"
                                "m = g[0].alloc(4096)\n"
                                "tasks.all_asleep()\n"
                                "pid = os.fork()\n"
                                "if not pid:\n"
                                "    g[1] = g[2] = m = None\n"
                                "    gc.collect()\n"
                                f"    own = [gx.Context({cores}) for _ in range(2)]\n"
                                "    conn = own[0].connect(f'127.0.0.1:{own[1].listen(\"127.0.0.1:0\")}')\n"
                                "    pages = own[1].alloc(4096)\n"
                                "    conn.put(b'x', conn.region(pages.key())).wait(30)\n"
                                "    g = None\n"
                                "else:\n"
                                "    assert os.waitpid(pid, 0)[1] == 0\n"
                                "    g[1].close()\n"
                                "print('ends')\n")
            self.assertEqual((p.returncode, p.stdout, p.stderr), (0, "ends\n" * 2, ""))

    def test_views_at_exit(self):
        """Functions of atexit and daemon threads read arrays over memory of gx; peers hear that this end closed."""
        for cores in (None, []):
            with gx.Context([]) as near:
                port = near.listen("127.0.0.1:0")
                p = self.run_python("-c", "import atexit, sys, threading, time\n"
                                    "def last():\n"
                                    "    import gx\n"
                                    "    assert bytes(view[:4]) == b'abcd' and bytes(owned[:4]) == b'efgh'\n"
                                    "    gone = [threading.Event().wait(0.05), sum(view)]\n"
                                    "    try:\n"
                                    "        memoryview(m)\n"
                                    "    except gx.Closed:\n"
                                    "        print('ends')\n"
                                    "atexit.register(last)\n"
                                    "import gx\n"
                                    "def reads():\n"
                                    "    while True:\n"
                                    "        sum(view)\n"
                                    f"g = gx.Context({cores})\n"
                                    "g.listen('127.0.0.1:0')\n"
                                    f"conn = g.connect('127.0.0.1:{port}')\n"
                                    "m = g.alloc(1 << 16)\n"
                                    "view, owned = memoryview(m), memoryview(g.register(bytearray(b'efgh' * 4096)))\n"
                                    "view[:4] = b'abcd'\n"
                                    "threading.Thread(target=reads, daemon=True).start()\n")
                self.assertEqual((p.returncode, p.stdout, p.stderr), (0, "ends\n", ""))
                peer = near.accept(30)
                until = time.monotonic() + 30
                while peer.info()["state"] == "up" and time.monotonic() < until:
                    time.sleep(0.001)
                self.assertEqual(peer.info()["reason"], "peer-closed")

    def test_view_in_garbage(self):
        """A cycle of a context and a view of its memory, which is read last."""
        class Last:
            def __del__(self):
                seen.append(bytes(self.view[:4]))

        seen = []
        for _ in range(5):
            g, last = gx.Context([]), Last()
            g.view = last.view = memoryview(g.alloc(4096))
            g.last, g.me = last, g
            g = last = None
            gc.collect()
        self.assertEqual(seen, [bytes(4)] * 5)

    @unittest.skipUnless((BUILD / "tests/libcuda.so.1").exists(), "this build has no fake GPU")
    def test_copies(self):
        """Who copies, on how many SMs, as describe() has it."""
        p = self.run_python("-c", "import gx\n"
                            "with gx.Context([], copy='ce', sms=3) as g:\n"
                            "    g.alloc(4096, device=0)\n"
                            "    print('copy engines, as asked for' in g.describe(), 'on 3 SMs' in g.describe())\n"
                            "with gx.Context([], copy='auto') as g:\n"
                            "    print('as asked for' in g.describe())\n"
                            "for bad in ({'copy': 'cpu'}, {'sms': -1}, {'sms': 2**32}):\n"
                            "    try:\n"
                            "        gx.Context([], **bad)\n"
                            "    except (ValueError, OverflowError):\n"
                            "        print('refused')\n", LD_LIBRARY_PATH=str(BUILD / "tests"), GX_FAKE_CUDA="1")
        self.assertEqual((p.returncode, p.stdout, p.stderr), (0, "True True\nFalse\n" + "refused\n" * 3, ""))

    def test_exit_without_close(self):
        p = self.run_python("-c", "import gx; g = gx.Context(); m = g.register(bytearray(4096)); g.listen('127.0.0.1:0')")
        self.assertEqual((p.returncode, p.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
