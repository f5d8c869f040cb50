#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cases of test_nixl.py, for a Python that has NIXL's wheel with the backend GX linked into it.

usage: nixl_cases.py [CASE...]
"""
import ctypes
import gc
import json
import multiprocessing
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest.mock

import nixl_hosts
import numpy as np
from nixl_node import Agent, Node

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "python"))

import tasks  # noqa: E402

FULL = bool(os.environ.get("GX_TEST_FULL"))
RNG = np.random.default_rng(int(os.environ.get("GX_TEST_SEED", "26")))


def same(got, wanted, what=""):
    if got != wanted:
        raise AssertionError(f"{what}: {got!r}, not {wanted!r}"[:500])


def pair(options=None, make=Node):
    """Two agents that know one another's names, not yet any memory."""
    return make("left", options), make("right", options)


def meet(left, right):
    left.add(right.meta())
    right.add(left.meta())


def stop(*nodes):
    for node in nodes:
        same(node.stop(), 0, "exit status of an agent")


def blocks_random(nr, room, longest):
    """[(here, there, length)]: places in random order that do not overlap, odd lengths, no alignment."""
    step = room // nr
    here, there = RNG.permutation(nr), RNG.permutation(nr)
    return [(int(a) * step + int(RNG.integers(0, step - n + 1)), int(b) * step + int(RNG.integers(0, step - n + 1)), n)
            for a, b, n in zip(here, there, (int(x) for x in RNG.integers(1, min(step, longest) + 1, nr)))]


def blocks_at(nr, block_b):
    """Equal blocks, each place once, in random order."""
    return [(int(a) * block_b, int(b) * block_b, block_b) for a, b in zip(RNG.permutation(nr), RNG.permutation(nr))]


def moved(kind, mine, theirs, blocks):
    """What the arrays hold after the transfer."""
    mine, theirs = bytearray(mine), bytearray(theirs)
    for a, b, n in blocks:
        if kind == "READ":
            mine[a:a + n] = theirs[b:b + n]
        else:
            theirs[b:b + n] = mine[a:a + n]
    return bytes(mine), bytes(theirs)


def check_move(left, right, kind, blocks, room):
    there = right.array("there", room, 2)
    left.array("here", room, 1)
    left.add(right.meta())
    wanted = moved(kind, left.data("here"), right.data("there"), blocks)
    left.prepare("x", kind, "here", "right", there, blocks, b"moved")
    same(left.run("x"), "DONE", f"{kind} of {len(blocks)} blocks")
    same(right.notes(1), [("left", b"moved")])
    same(left.data("here") == wanted[0] and right.data("there") == wanted[1], True, f"bytes of {kind}, {len(blocks)} blocks")
    left.release("x")
    left.deregister("here")
    right.deregister("there")
    left.remove("right")


def case_sizes():
    left, right = pair()
    for len_b in [1, 7, 64, 4096, 65537, (1 << 20) + 3, 1 << 24] + ([1 << 28] if FULL else []):
        for kind in ("WRITE", "READ"):
            check_move(left, right, kind, [(3, 1, len_b)], len_b + 16)
    stop(left, right)


def case_lists(options=None):
    left, right = pair(options)
    for nr in [2, 17, 256, 4096] + ([16384] if FULL else []):
        for kind in ("WRITE", "READ"):
            room = max(1 << 16, nr * 1024)
            check_move(left, right, kind, blocks_random(nr, room, 1024), room)
    stop(left, right)


def case_rows():
    """Equal blocks, which go as rows of views where the way takes these, posted again with notifications."""
    for options in ({}, {"port": "shm"}, {"port": "tcp", "cores": "2"}):
        left, right = pair(options)
        for kind in ("WRITE", "READ"):
            for nr, block_b in ((2, 576), (5000, 576), (300, 4095)):
                check_move(left, right, kind, blocks_at(nr, block_b), nr * block_b)
        there, _ = right.array("rows", 656000, 4), left.array("rows", 656000, 3)
        left.add(right.meta())
        blocks = blocks_at(1000, 656)
        wanted = moved("WRITE", left.data("rows"), right.data("rows"), blocks)
        left.prepare("rows", "WRITE", "rows", "right", there, blocks)
        for i in range(3):
            right.begin("notes", 1)
            same(left.run("rows", text_of((1, 100, 5000)[i])), "DONE")
            same(right.end(), [("left", text_of((1, 100, 5000)[i]))], "notification")
            same((left.data("rows"), right.data("rows")) == wanted, True, "bytes")
            right.fill("rows", 9)
            wanted = moved("WRITE", left.data("rows"), right.data("rows"), blocks)
        stop(left, right)


def case_ways():
    """Other links and ports; those that are not to be had, and options that there are not."""
    with tempfile.TemporaryDirectory() as folder:
        key = os.path.join(folder, "nixl.key")
        with open(key, "w", opener=lambda path, flags: os.open(path, flags, 0o600), encoding="ascii") as f:
            f.write(f"gx-key 1\nname nixl\nsecret {os.urandom(32).hex()}\n")
        for port in ("udp", "tcp"):
            case_lists_short({"port": port, "require": port, "cores": "2", "key": key if port == "tcp" else ""})
        with unittest.mock.patch.dict(os.environ, GX_KEY_FILE=key, GX_ADDR="127.0.0.2"):  # as of programs that pass no options
            case_lists_short({})
            left, right = pair({})
            same([b"127.0.0.2:" in node.meta() for node in (left, right)], [True, True], "the address that others are told")
            stop(left, right)
    for options in ({"require": "verbs"}, {"requires": "local"}, {"cores": "0"}, {"port": "nosuch"}, {"key": "/no/such.key"},
                    {"insecure": "maybe"}, {"port": "tcp@0.0.0.0"}, {"copy": "cpu"}, {"sms": "all"},
                    {"port": "tcp@no.such.host.invalid"}):
        try:
            Agent("alone", options)
        except Exception:  # pylint: disable=broad-except
            continue
        raise AssertionError(f"{options}: an agent was made")


def case_lists_short(options):
    left, right = pair(options)
    check_move(left, right, "WRITE", blocks_random(300, 1 << 18, 512), 1 << 18)
    check_move(left, right, "READ", blocks_random(300, 1 << 18, 512), 1 << 18)
    stop(left, right)


def look(options):
    """An agent that registers memory of the fake GPU. Prints the widest launch, and how many streams were made."""
    agent, cuda = Agent("alone", options), ctypes.CDLL("libcuda.so.1")
    context, at, len_b = ctypes.c_void_p(), ctypes.c_uint64(), 1 << 20
    for ret in (cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context),
                cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(len_b))):
        same(ret, 0, "the fake driver")
    agent.agent.register_memory(agent.agent.get_reg_descs([(at.value, len_b, 0, "")], "VRAM"))
    print(cuda.fake_cuda_seen(0), cuda.fake_cuda_seen(1))


def case_gpu_options():
    """Who copies, and on how many SMs, comes to the driver."""
    fake = os.environ.get("GX_TEST_NIXL_FAKE")
    if not fake:
        return

    def seen(**options):
        done = subprocess.run([sys.executable, __file__, "look", json.dumps(options)], env={**os.environ, "LD_LIBRARY_PATH": fake, "GX_FAKE_CUDA": "1"},
                              capture_output=True, text=True, timeout=120)
        same(done.returncode, 0, done.stderr)
        return [int(word) for word in done.stdout.split()]

    auto, resident, engines = seen(copy="auto"), seen(copy="resident"), seen(copy="ce")
    same(auto, seen(), "the default")
    same(auto[1] > resident[1] > engines[1], True, f"streams for auto, resident, ce: {auto[1]}, {resident[1]}, {engines[1]}")
    same((seen(sms="3")[0], seen(sms="21", copy="ce")[0]), (3, 21), "SMs")


def text_of(len_b, seed=1):
    return np.random.default_rng(seed).integers(0, 256, len_b, np.uint8).tobytes()


LONG = [4095, 4096, 4097, 8143, 8144, 8145, 100_000, 1 << 19]  # one piece carries 4,072


def case_notes():
    """Each finds the data of its transfer; in the order of the transfers; those without data, too."""
    left, right = pair()
    left.array("here", 4096)
    there = right.array("there", 4096, None, 0xee)
    meet(left, right)
    for kind in ("WRITE", "READ"):
        left.prepare(kind, kind, "here", "right", there, [(0, 0, 4096)])
    for i, len_b in enumerate([0, 1, 100] + LONG):
        text = text_of(len_b, i)
        left.fill("here", i)
        right.begin("notes", 1, "there")
        same(left.run("WRITE", text) if len_b else left.run("WRITE"), "DONE")
        if len_b:
            same(right.end() == [("left", text, bytes([i]) * 4096)], True, f"note of {len_b} bytes")
            same((left.run("READ", text), right.notes(1) == [("left", text)]), ("DONE", True), f"note of a read, {len_b} bytes")
        else:
            left.send("right", b"")
            same([n[:2] for n in right.end()], [("left", b"")])
    same(left.run("WRITE", b"n" * ((64 << 20) + 1)), "nixlInvalidParamError", "a note that is too long")
    same(left.send("right", b"n" * ((64 << 20) + 1)), "nixlInvalidParamError", "a note that is too long, without data")
    texts = [b"%d" % i if i % 5 else text_of(LONG[i // 5 % len(LONG)], i) for i in range(100)]
    right.begin("notes", len(texts))
    for text in texts:
        same(left.send("right", text), "DONE")
    same(right.end() == [("left", t) for t in texts], True, "order")
    same(right.send("left", b"back"), "DONE")
    same(left.notes(1), [("right", b"back")])
    stop(left, right)


def case_notes_threads():
    """Long ones of several threads and transfers of one agent, with short ones between: each comes whole, those of a thread in order."""
    left, right = pair(make=Agent)
    left.array("here", 4096)
    there = right.array("there", 4096)
    left.add(right.meta())
    texts = {t: [b"%d %d " % (t, i) + text_of((i * 2999 + t * 501) % 60_000, i) for i in range(40)] for t in range(6)}

    def send(t):
        if t % 2:
            left.prepare(t, "READ", "here", "right", there, [(0, 0, 64)])
        for text in texts[t]:
            same(left.run(t, text) if t % 2 else left.send("right", text), "DONE")

    threads = [threading.Thread(target=send, args=(t,)) for t in texts]
    for thread in threads:
        thread.start()
    got = [text for _, text in right.notes(240)]
    for thread in threads:
        thread.join()
    for t, wanted in texts.items():
        same([g for g in got if g.startswith(b"%d " % t)] == wanted, True, f"notes of thread {t}")


def case_notes_half():
    """An agent is killed in the midst of a long one: what came of it is never joined with one of the agent that comes back."""
    right = Node("right")
    for turn in range(20 if FULL else 1):
        left = Node("left")
        left.add(right.meta())
        same(left.send("right", b"first"), "DONE")
        same(right.notes(1), [("left", b"first")])
        left.begin("send", "right", text_of(16 << 20, turn))
        time.sleep(float(RNG.uniform(0.05, 0.2)))
        left.kill()
        left, text = Node("left"), text_of(100_000, 100 + turn)
        left.add(right.meta())
        same(left.send("right", text), "DONE")
        same(right.notes(1)[-1:] == [("left", text)], True, f"turn {turn}")
        stop(left)
    stop(right)


def case_params():
    """NIXL tells the parameters with their defaults, and takes them back as they are."""
    left = Agent("left")
    params = left.agent.get_plugin_params("GX")
    same(params, {"copy": "auto", "cores": "1", "deadline_ms": "0", "insecure": "no", "key": "", "port": "", "require": "", "sms": "0"})
    right = Agent("right", params)
    left.add(right.meta())
    right.add(left.meta())
    same((left.send("right", b"a"), right.notes(1)), ("DONE", [("left", b"a")]))
    for host, told in (("localhost", rb"gx2 (127\.0\.0\.1|\[::1\]):\d+"), ("127.0.0.3", rb"gx2 127\.0\.0\.3:\d+"), ("::1", rb"gx2 \[::1\]:\d+")):
        meta = Agent("named", {"port": f"tcp@{host}", "insecure": "yes"}).meta()
        same(bool(re.search(told, meta)), True, f"the address that others are told for {host}: {meta[-200:]}")


def case_repost():
    left, right = pair()
    left.array("here", 1 << 16)
    there = right.array("there", 1 << 16)
    left.add(right.meta())
    left.prepare("x", "WRITE", "here", "right", there, blocks_random(64, 1 << 16, 1024))
    count = 1000 if FULL else 100
    right.begin("notes", count)
    for i in range(count):
        same(left.run("x", b"again %d" % i), "DONE", f"repost {i}")
    same(right.end(), [("left", b"again %d" % i) for i in range(count)])
    stop(left, right)


def case_prepped():
    left, right = pair()
    nr, block_b = 256, 512
    left.array("here", nr * block_b, 1)
    there = right.array("there", nr * block_b, 2)
    left.add(right.meta())
    for turn, kind in enumerate(("WRITE", "READ", "WRITE")):
        here_at, there_at = RNG.permutation(nr)[:100].tolist(), RNG.permutation(nr)[:100].tolist()
        blocks = [(a * block_b, b * block_b, block_b) for a, b in zip(here_at, there_at)]
        wanted = moved(kind, left.data("here"), right.data("there"), blocks)
        left.prepare_lists(turn, kind, "here", "right", there, block_b, here_at, there_at, b"p")
        same(left.run(turn), "DONE")
        same(right.notes(1), [("left", b"p")])
        same((left.data("here"), right.data("there")) == wanted, True, "bytes")
    stop(left, right)


def case_local():
    """An agent with itself, and two in one process, overlapping registrations."""
    a, b = pair(make=Agent)
    there = a.array("there", 1 << 20, 5)
    a.array("here", 1 << 20, 6)
    blocks = blocks_random(100, 1 << 20, 8192)
    for kind in ("WRITE", "READ"):
        wanted = moved(kind, a.data("here"), a.data("there"), blocks)
        a.prepare("x", kind, "here", "left", there, blocks, b"self")
        same(a.run("x"), "DONE")
        same(a.notes(1), [("left", b"self")])
        same((a.data("here"), a.data("there")) == wanted, True, "bytes")
        a.release("x")
    check_move(a, b, "WRITE", blocks, 1 << 20)


def case_mesh():
    nodes = [Node(f"agent{i}") for i in range(4)]
    addrs = [n.array("mine", 1 << 16, None, 0) for n in nodes]
    for i, node in enumerate(nodes):
        node.array("from", 4096, i)
    metas = [n.meta() for n in nodes]
    for i, node in enumerate(nodes):
        for j, meta in enumerate(metas):
            if i != j:
                node.add(meta)
    for turn in range(20 if FULL else 3):
        for i, node in enumerate(nodes):
            for j in range(4):
                if i != j and not turn:
                    node.prepare(j, "WRITE", "from", f"agent{j}", addrs[j] + i * 4096, [(0, 0, 4096)])
                if i != j:
                    node.begin("run", j, b"turn %d" % turn)
                    same(node.end(), "DONE")
        for i, node in enumerate(nodes):
            wanted = sorted((f"agent{j}", b"turn %d" % turn) for j in range(4) if j != i)
            same(sorted(node.notes(3)), wanted)
    for i, node in enumerate(nodes):
        for j in range(4):
            if i != j:
                same(node.data("mine", j * 4096, 4096) == nodes[j].data("from"), True, f"bytes of {j} at {i}")
    stop(*nodes)


def case_deregister():
    """In the midst of transfers. From then on what the owner writes there is never seen, and nothing is written there."""
    for turn in range(40 if FULL else 4):
        left, right = pair({"port": ["", "udp", "tcp", ""][turn % 4]})
        there = right.array("there", 1 << 20, None, 1)
        left.array("here", 1 << 20, None, 1)
        left.add(right.meta())
        for kind in ("READ", "WRITE"):
            left.prepare(kind, kind, "here", "right", there, blocks_random(1000, 1 << 20, 1024))
        left.begin("storm", "READ" if turn % 2 else "WRITE")
        time.sleep(float(RNG.uniform(0, 0.05)))
        right.deregister("there", 0xbd)
        ended = left.end()[0]  # gx.h: gets whose bytes are on their way end with -ECANCELED
        same(ended == "nixlNotFoundError" or (turn % 2 == 1 and ended == "nixlCancelledError"), True, f"the transfer under way: {ended}")
        same(left.run("READ"), "nixlNotFoundError", "a later one")
        same(0xbd in left.data("here"), False, "a byte of the next owner was seen")
        same(right.data("there") == b"\xbd" * (1 << 20), True, "nothing was written any more")
        same(right.send("left", b"") != "DONE", True)
        stop(left, right)


def case_deregister_here():
    """Memory of this side: what was prepared with it is refused, and other transfers go on."""
    left, right = pair()
    there = right.array("there", 8192)
    left.add(right.meta())
    for name in ("first", "second"):
        left.array(name, 4096, None, 7)
        left.prepare(name, "WRITE", name, "right", there, [(0, 0, 1024), (2048, 4096, 2048)])
        same(left.run(name), "DONE")
    left.deregister("first")
    same(left.run("first"), "nixlCancelledError", "of memory that is gone")
    same(left.run("second"), "DONE", "of the other")
    stop(left, right)


def case_deadline():
    """A peer that stands still, over packets: the transfer ends in time, and the peer goes on later."""
    left, right = pair({"port": "udp", "deadline_ms": "300"})
    there = right.array("there", 1 << 20)
    left.array("here", 1 << 20, 8)
    left.add(right.meta())
    left.prepare("x", "WRITE", "here", "right", there, blocks_at(16, 1 << 16))
    same(left.run("x"), "DONE")
    right.stand()
    begin = time.monotonic()
    same(left.run("x"), "nixlCancelledError", "of a peer that stands")
    took = time.monotonic() - begin
    same(took > 0.25, True, f"{took:.3f} s")
    right.go_on()
    same(left.run("x"), "DONE", "of the peer that goes on")
    stop(left, right)


def case_kill():
    """kill -9 of a peer under load; one of its name comes, again and again."""
    left = Node("left")
    left.array("here", 1 << 20, 3)
    slowest, held = 0, None
    for turn in range(100 if FULL else 3):
        right = Node("right")
        there = right.array("there", 1 << 20)
        left.add(right.meta())
        left.prepare("x", "WRITE", "here", "right", there, blocks_random(500, 1 << 20, 2048))
        same(left.run("x", b"first"), "DONE", f"turn {turn}")
        same(right.notes(1), [("left", b"first")])
        right.add(left.meta())
        same(right.send("left", b"here"), "DONE")
        same(left.notes(1), [("right", b"here")])
        left.begin("storm", "x")
        time.sleep(float(RNG.uniform(0.01, 0.1)))
        right.kill()
        error, seconds = left.end()
        same(error, "nixlRemoteDisconnectError", f"turn {turn}")
        slowest = max(slowest, seconds)
        left.release("x")
        left.remove("right")
        time.sleep(0.1)
        held = held or left.holds()
        same(left.holds(), held, f"descriptors and threads, turn {turn}")
    print(f"  a killed peer was noticed within {slowest:.3f} s")
    stop(left)


def case_release():
    """Under way: it does not wait, and the next transfer is whole."""
    left, right = pair()
    there = right.array("there", 1 << 24)
    left.array("here", 1 << 24, 4)
    left.add(right.meta())
    for i in range(20):
        left.prepare(i, "WRITE", "here", "right", there, blocks_random(2000, 1 << 24, 8192))
        left.post(i)
        left.release(i)
    left.prepare("x", "WRITE", "here", "right", there, [(0, 0, 1 << 24)])
    same(left.run("x"), "DONE")
    same(left.data("here") == right.data("there"), True, "bytes")
    stop(left, right)


def case_fork():
    """A child of fork() that ends as a program does, with all of the parent's objects; the parent goes on."""
    left, right = Agent("left"), Agent("right")
    there = right.array("there", 1 << 16)
    left.array("here", 1 << 16, 1)
    left.add(right.meta())
    left.prepare("x", "WRITE", "here", "right", there, [(0, 0, 1 << 16)])
    same(left.run("x"), "DONE")
    tasks.all_asleep()
    child = os.fork()
    if not child:
        status = 1
        try:
            left = right = None
            gc.collect()
            status = 0
        finally:
            os._exit(status)
    killer = threading.Timer(60, os.kill, (child, signal.SIGKILL))
    killer.start()
    same(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0, "the child")
    killer.cancel()
    same(left.run("x"), "DONE")


def case_hosts():
    """Two hosts, and no parameter: the calls of vLLM (the reader pulls blocks, notifies, and beats its heart) and of LMCache (the
    writer pushes). GX_KEY_FILE alone makes it so."""
    why = nixl_hosts.why_not()
    if why:
        print(f"  {why}")
        return
    nr, block_b = 256, 16384
    with nixl_hosts.Hosts() as hosts:
        prefill, decode = hosts.node(0, "prefill"), hosts.node(1, "decode")
        at = [node.array("cache", nr * block_b, i) for i, node in enumerate((prefill, decode))]
        same([addr.encode() in node.meta() for addr, node in zip(nixl_hosts.ADDRS, (prefill, decode))], [True, True], "the addresses that are told")
        meet(prefill, decode)
        for turn, (kind, mine, theirs, there) in enumerate((("READ", decode, prefill, at[0]), ("WRITE", prefill, decode, at[1]))):
            here_at, there_at = (RNG.permutation(nr)[:100].tolist() for _ in range(2))
            blocks = [(a * block_b, b * block_b, block_b) for a, b in zip(here_at, there_at)]
            wanted = moved(kind, mine.data("cache"), theirs.data("cache"), blocks)
            names = ("decode", "prefill") if mine is decode else ("prefill", "decode")
            mine.prepare_lists(turn, kind, "cache", names[1], there, block_b, here_at, there_at, b"request 7")
            same(mine.run(turn), "DONE", kind)
            same(theirs.notes(1), [(names[0], b"request 7")])
            same((mine.data("cache"), theirs.data("cache")) == wanted, True, f"bytes of {kind}")
            mine.release(turn)
        beat = b"HB:" + b",".join(b"chatcmpl-%032x" % i for i in range(256))
        same((decode.send("prefill", beat), prefill.notes(1) == [("decode", beat)]), ("DONE", True), "a heartbeat of 256 requests")
        stranger = hosts.node(1, "stranger", None, "GX", GX_KEY_FILE="")
        stranger.add(prefill.meta())
        same(stranger.send("prefill", b"let me in"), "nixlInvalidParamError", "an agent of another host without the key")
        stop(prefill, decode, stranger)


def case_ucx():
    """UCX beside it in one process. (UCX's library ends with a signal at exit on some hosts, so this ends without.)"""
    if not os.fork():
        status = 1
        try:
            for backend in ("UCX", "GX"):
                a, b = Agent("left", {}, backend), Agent("right", {}, backend)
                check_move(a, b, "WRITE", blocks_random(50, 1 << 16, 1024), 1 << 16)
                keep = (a, b)  # until the other one has run
            status = 0 if keep else 1
        finally:
            sys.stdout.flush()
            os._exit(status)
    same(os.waitstatus_to_exitcode(os.wait()[1]), 0, "the process with both")


CASES = {name[5:]: case for name, case in sorted(globals().items()) if name.startswith("case_") and name != "case_lists_short"}


def main(args):
    if args[:1] == ["look"]:
        look(json.loads(args[1]))
        return 0
    failed = 0
    for name in args or CASES:
        begin = time.monotonic()
        try:
            CASES[name]()
            said = "ok"
        except Exception as e:  # pylint: disable=broad-except
            said, failed = f"FAILED: {type(e).__name__}: {e}", failed + 1
            for child in multiprocessing.active_children():  # one that stands would hold up our end
                child.kill()
        print(f"{name}: {said} ({time.monotonic() - begin:.1f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
