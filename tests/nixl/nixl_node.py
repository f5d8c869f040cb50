# SPDX-License-Identifier: Apache-2.0
"""An agent of NIXL with memory, in this process or in one of its own that takes calls over a pipe."""
import ctypes
import multiprocessing
import os
import signal
import time

import numpy as np
from nixl._api import nixl_agent, nixl_agent_config

WAIT_S = 20


class Agent:
    """Arrays by name, registered; transfers by lists of (here, there, length) in bytes."""

    def __init__(self, name, options=None, backend="GX"):
        """Without options: as programs do that can pass none."""
        self.agent = nixl_agent(name, nixl_agent_config(backends=[backend] if options is None else []))
        if options is not None:
            self.agent.create_backend(backend, options)
        self.arrays, self.regs, self.handles = {}, {}, {}

    def array(self, name, len_b, seed=None, fill=0):
        """Make and register an array. Return: its address."""
        rng = np.random.default_rng(seed)
        self.arrays[name] = np.full(len_b, fill, np.uint8) if seed is None else rng.integers(0, 256, len_b, np.uint8)
        descs = self.agent.get_reg_descs([(self.arrays[name].ctypes.data, len_b, 0, "")], "DRAM")
        self.regs[name] = self.agent.register_memory(descs)
        return self.arrays[name].ctypes.data

    def deregister(self, name, fill=None):
        self.agent.deregister_memory(self.regs.pop(name))
        if fill is not None:
            self.arrays[name][:] = fill

    def fill(self, name, value):
        self.arrays[name][:] = value

    def data(self, name, off=0, len_b=None):
        return self.arrays[name][off:None if len_b is None else off + len_b].tobytes()

    def meta(self):
        return self.agent.get_agent_metadata()

    def add(self, meta):
        return self.agent.add_remote_agent(meta)

    def remove(self, name):
        return self.agent.remove_remote_agent(name)

    def prepare(self, handle, kind, name, peer, there_addr, blocks, note=b""):
        base = self.arrays[name].ctypes.data
        here = np.array([(base + a, n, 0) for a, _, n in blocks], np.uint64)
        there = np.array([(there_addr + b, n, 0) for _, b, n in blocks], np.uint64)
        self.handles[handle] = self.agent.initialize_xfer(kind, self.agent.get_xfer_descs(here, "DRAM"),
                                                          self.agent.get_xfer_descs(there, "DRAM"), peer, note)

    def prepare_lists(self, handle, kind, name, peer, there_addr, block_b, here_at, there_at, note=b""):
        """From lists of all blocks, prepared once, by their numbers."""
        base, blocks = self.arrays[name].ctypes.data, len(self.arrays[name]) // block_b
        here = self.agent.prep_xfer_dlist("NIXL_INIT_AGENT", [(base + i * block_b, block_b, 0) for i in range(blocks)], "DRAM")
        there = self.agent.prep_xfer_dlist(peer, [(there_addr + i * block_b, block_b, 0) for i in range(blocks)], "DRAM")
        self.handles[handle] = self.agent.make_prepped_xfer(kind, here, here_at, there, there_at, note)

    def post(self, handle, note=b""):
        """Return: "PROC", "DONE", or the name of the error."""
        try:
            return self.agent.transfer(self.handles[handle], note)
        except Exception as e:  # pylint: disable=broad-except
            return type(e).__name__

    def check(self, handle):
        try:
            return self.agent.check_xfer_state(self.handles[handle])
        except Exception as e:  # pylint: disable=broad-except
            return type(e).__name__

    def wait(self, handle, state="PROC"):
        until = time.monotonic() + WAIT_S
        while state == "PROC" and time.monotonic() < until:
            state = self.check(handle)
        return state

    def run(self, handle, note=b""):
        return self.wait(handle, self.post(handle, note))

    def release(self, handle):
        self.agent.release_xfer_handle(self.handles.pop(handle))

    def send(self, peer, note):
        try:
            self.agent.send_notif(peer, note)
        except Exception as e:  # pylint: disable=broad-except
            return type(e).__name__
        return "DONE"

    def notes(self, count, watch=None):
        """Wait for so many notifications. Return: [(agent, text)], and with @watch the array's first byte with each."""
        got, until = [], time.monotonic() + WAIT_S
        while len(got) < count and time.monotonic() < until:
            for peer, texts in self.agent.get_new_notifs().items():
                got += [(peer, t) if watch is None else (peer, t, self.arrays[watch].tobytes()) for t in texts]
        return got

    def timed(self, handle, count):
        """Return: nanoseconds of a transfer, post to done, and of the post alone, the best half of @count each."""
        posts, wholes = [], []
        for _ in range(count):
            begin = time.perf_counter_ns()
            state = self.agent.transfer(self.handles[handle])
            posts.append(time.perf_counter_ns() - begin)
            while state == "PROC":
                state = self.agent.check_xfer_state(self.handles[handle])
            wholes.append(time.perf_counter_ns() - begin)
        half = (count + 1) // 2
        return sum(sorted(wholes)[:half]) / half, sum(sorted(posts)[:half]) / half

    def holds(self):
        """Descriptors and threads of this process."""
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    def storm(self, handle):
        """Post again and again, until it fails. Return: the error, and the seconds since the last transfer that was done."""
        last = time.monotonic()
        while True:
            state = self.run(handle)
            if state != "DONE":
                return state, time.monotonic() - last
            last = time.monotonic()


def enter():
    """Into the network of the process that GX_TEST_NETNS names, with its /sys."""
    pid, libc = os.environ.get("GX_TEST_NETNS"), ctypes.CDLL(None, use_errno=True)
    if not pid:
        return
    with open(f"/proc/{pid}/ns/net", "rb") as f:
        if libc.setns(f.fileno(), 0x40000000) or libc.unshare(0x00020000) or libc.mount(b"none", b"/", None, 0x44000, None) or \
                libc.mount(b"sysfs", b"/sys", b"sysfs", 0, None):  # CLONE_NEWNET, CLONE_NEWNS, MS_REC | MS_PRIVATE
            raise OSError(ctypes.get_errno(), "namespaces")


def serve(pipe, args):
    enter()
    agent = Agent(*args)
    pipe.send((True, None))
    while True:
        try:
            name, rest = pipe.recv()
        except EOFError:
            break
        try:
            pipe.send((True, getattr(agent, name)(*rest)))
        except Exception as e:  # pylint: disable=broad-except
            pipe.send((False, f"{name}: {type(e).__name__}: {e}"))
        if name == "close":
            break
    del agent


class Node:
    """An Agent in a process of its own: the same calls. begin() does not wait for the answer, which end() takes."""

    def __init__(self, *args):
        ctx = multiprocessing.get_context("spawn")
        self.pipe, theirs = ctx.Pipe()
        self.process = ctx.Process(target=serve, args=(theirs, args), daemon=True)
        self.process.start()
        theirs.close()
        self.end()

    def begin(self, name, *args):
        self.pipe.send((name, args))

    def end(self):
        ok, value = self.pipe.recv()
        if not ok:
            raise RuntimeError(value)
        return value

    def __getattr__(self, name):
        def call(*args):
            self.begin(name, *args)
            return self.end()
        return call

    def stand(self):
        """SIGSTOP. A thread that runs on may still answer for a while: wait until all stand."""
        os.kill(self.process.pid, signal.SIGSTOP)
        assert os.WIFSTOPPED(os.waitpid(self.process.pid, os.WUNTRACED)[1]), "the agent has ended"

    def go_on(self):
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()
        self.pipe.close()

    def stop(self):
        """Return: its exit status."""
        self.pipe.close()
        self.process.join(WAIT_S)
        return self.process.exitcode
