#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Keys and strangers: gxd in one network namespace, and in another clients with keys, with wrong ones and without, and programs that
are no gx at all.

usage: test_strangers.py BUILD_DIR              suite: words and silence
       test_strangers.py BUILD_DIR flood        10^5 stray handshakes and 5,000 half-open connections, beside a client that is measuring
       test_strangers.py stray KIND ADDR N      what this test runs in the other namespace
Exit status 77 where namespaces are refused.
"""
import contextlib
import itertools
import json
import os
import pathlib
import resource
import select
import signal
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

import cli
from cli import CLIENT_CPU, FAILED, OK, expect
from test_veth import Other, enter, links_make

HERE = "10.90.0.1"
HALF_OPEN = 5000
STRAYS = 100000
AT_ONCE = 32


# --- in the other namespace -------------------------------------------------------------------------------

def client_hello(name=b"nobody"):
    """As gx writes one, for a key that the server has not. The binder is noise."""
    def vec(n, b):
        return len(b).to_bytes(n, "big") + b

    def ext(kind, b):
        return struct.pack(">H", kind) + vec(2, b)

    psk = vec(2, vec(2, name) + bytes(4)) + vec(2, vec(1, os.urandom(32)))
    exts = ext(43, vec(1, b"\x03\x04")) + ext(10, vec(2, b"\x00\x1d")) + ext(13, vec(2, b"\x08\x07"))
    exts += ext(51, vec(2, b"\x00\x1d" + vec(2, os.urandom(32)))) + ext(45, vec(1, b"\x01")) + ext(41, psk)
    body = b"\x03\x03" + os.urandom(32) + vec(1, b"") + vec(2, b"\x13\x01") + vec(1, b"\x00") + vec(2, exts)
    return b"\x16\x03\x01" + vec(2, b"\x01" + vec(3, body))


def certificate_hello():
    out = ssl.MemoryBIO()
    context = ssl.create_default_context()
    tls = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="gx.example")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return out.read()


def words(kind):
    hello = client_hello()
    return {"get": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "noise": os.urandom(300), "half": hello[:len(hello) // 2],
            "certificate": certificate_hello(), "more": hello + b"\0", "key": hello}[kind]


def stray_one(addr, kind):
    """Prints what was heard."""
    with socket.create_connection(addr, timeout=20) as s:
        s.sendall(words(kind))
        s.shutdown(socket.SHUT_WR)
        heard = b""
        with contextlib.suppress(ConnectionError):
            while more := s.recv(4096):
                heard += more
    print(heard.hex())


def stray_slow(addr):
    """A byte a tenth of a second of a good ClientHello: how long is it let?"""
    start = time.monotonic()
    with socket.create_connection(addr, timeout=20) as s:
        for c in client_hello():
            ready, _, _ = select.select([s], [], [], 0.1)
            if ready:
                break
            with contextlib.suppress(ConnectionError):
                s.send(bytes([c]))
    print(json.dumps(time.monotonic() - start))


def stray_many(addr, n):
    """Each kind in turn, AT_ONCE at a time."""
    kinds = [words(k) for k in ("get", "noise", "half", "certificate", "key", "key")]
    linger = struct.pack("ii", 1, 0) # else the ports of this namespace are all in TIME_WAIT
    failed = 0
    for i in range(0, n, AT_ONCE):
        socks = []
        for k in range(AT_ONCE):
            s = socket.socket()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            s.settimeout(20)
            try:
                s.connect(addr)
                s.send(kinds[(i + k) % len(kinds)])
                socks.append(s)
            except OSError:
                failed += 1
                s.close()
        for s in socks:
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_WR)
                s.recv(64)
            s.close()
    print(json.dumps(failed))


def stray_half_open(addr, n):
    """So many that say nothing; they stay until the test says so."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (n + 100, max(n + 100, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
    socks = []
    for _ in range(n):
        s = socket.socket()
        s.settimeout(20)
        with contextlib.suppress(OSError):
            s.connect(addr)
        socks.append(s)
    print(json.dumps(len(socks)), flush=True)
    sys.stdin.read()


def stray(kind, addr, n):
    host, port = addr.rsplit(":", 1)
    addr = (host, int(port))
    os.nice(19)
    if kind in ("many", "half_open"):
        {"many": stray_many, "half_open": stray_half_open}[kind](addr, int(n))
    elif kind == "slow":
        stray_slow(addr)
    else:
        stray_one(addr, kind)


def there(other, kind, addr, n=1, **kw):
    return subprocess.Popen(other.words(sys.executable, __file__, "stray", kind, addr, str(n)), stdout=subprocess.PIPE, text=True, **kw)


def heard(other, kind, addr, n=1):
    proc = there(other, kind, addr, n, stdin=subprocess.DEVNULL)
    out, _ = proc.communicate(timeout=300)
    expect(proc.returncode == 0, kind, out)
    return out.strip()


# --- words ------------------------------------------------------------------------------------------------

class Keys:
    """kv: of the server. other/kv: of the same name. old: no longer at the server."""

    def __init__(self, tools, folder):
        self.good, self.other, self.old = folder / "kv.key", folder / "other.key", folder / "old.key"
        for path, name in ((self.good, "kv"), (self.other, "kv"), (self.old, "old")):
            tools.gxd("keygen", name, "-o", path).must(OK)


def call(tools, other, addr, *args):
    path, *rest = other.words(tools.gxperf_path, "put", addr, "--cores", CLIENT_CPU, "--mem", "kv", "-s", "4K", "-n", "10", *args)
    return tools.run(path, *rest, timeout=100)


def clients(tools, other, keys):
    with cli.Server(tools, "--port", "udp", "--bind", HERE, "--key", keys.good, listen=f"{HERE}:0") as server:
        for mode in ((), ("--integrity", "mac"), ("--integrity", "gcm")):
            call(tools, other, server.addr, "--port", "udp", "--key", keys.good, *mode).must(OK)
        for mode in ("none", "crc32c"):
            call(tools, other, server.addr, "--port", "udp", "--key", keys.good, "--integrity", mode).must(FAILED, "a key forbids")
        call(tools, other, server.addr, "--link", "tcp", "--sockets", "4", "--key", keys.good).must(OK)
        wrong = call(tools, other, server.addr, "--port", "udp", "--key", keys.other).must(FAILED, "does not take key kv")
        server.wait_log("shows key kv, with another secret")
        old = call(tools, other, server.addr, "--port", "udp", "--key", keys.old).must(FAILED, "does not take key old")
        server.wait_log("shows key old, which is not known here")
        end = "it has another secret of that name, or none"
        expect(end in wrong.err and end in old.err, wrong, old)
        call(tools, other, server.addr, "--port", "udp").must(FAILED, "has no key", "--key")
        call(tools, other, server.addr, "--port", "udp", "--insecure").must(FAILED, "without a word", "--key")
        server.wait_log("it is of another host and shows no key")
    with cli.Server(tools, "--port", "udp", "--bind", HERE, "--insecure", listen=f"{HERE}:0") as server:
        call(tools, other, server.addr, "--port", "udp", "--key", keys.good).must(FAILED, "the server has no keys", "--key")


class Tap(threading.Thread):
    """All frames of the first veth pair, until the block ends."""

    def __enter__(self):
        self.sock, self.frames, self.ended = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)), [], False
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        self.sock.bind(("gxa", 0))
        self.sock.settimeout(0.1)
        self.start()
        return self

    def run(self):
        while not self.ended:
            with contextlib.suppress(TimeoutError):
                self.frames.append(self.sock.recv(65536))

    def __exit__(self, *_):
        self.ended = True
        self.join()
        self.sock.close()


def wire(tools, other, keys, folder):
    """Neither what is put nor what the ends say of themselves can be read on the way."""
    secret, source = b"a word that is for nobody on the way", folder / "source"
    source.write_bytes(secret * 500)
    both = (("--key", keys.good), False), (("--insecure",), True)
    for way, (key, told) in itertools.product((("--port", "udp"), ("--link", "tcp")), both):
        with cli.Server(tools, "--port", "udp", "--bind", HERE, *key, listen=f"{HERE}:0") as server, Tap() as tap:
            path, *rest = other.words(tools.gxperf_path, "put", server.addr, "--cores", CLIENT_CPU, "--mem", "kv", *way, *key, "--file", source)
            tools.run(path, *rest, timeout=100).must(OK)
        seen = b"".join(tap.frames)
        expect((secret in seen) == told, f"by {way} with {key} the payload was {'not ' if told else ''}seen among {len(seen)} bytes")
        expect((struct.pack("<I", cli.HELLO_MAGIC) in seen) == told, f"by {way} with {key} HELLO was {'not ' if told else ''}seen")


def silence(tools, other, keys):
    """Who has not shown a ClientHello of gx gets no byte; who has hears that its key is not taken."""
    with cli.Server(tools, "--port", "shm", "--key", keys.good, listen="0.0.0.0:0") as server:
        addr = f"{HERE}:{server.port}"
        for kind in ("get", "noise", "half", "certificate", "more"):
            expect(heard(other, kind, addr) == "", f"{kind} was answered")
        expect(heard(other, "key", addr) == "1503030002022f", "a good ClientHello was not refused")
        slow_s = json.loads(heard(other, "slow", addr))
        expect(4 < slow_s < 9, f"a slow client was let go on for {slow_s:.1f} s")
        tools.gxperf("put", server.addr, "--mem", "kv", "-s", "4K", "-n", "10").must(OK)


# --- floods -----------------------------------------------------------------------------------------------

def held(server):
    """Resident memory in MiB, descriptors."""
    status = pathlib.Path(f"/proc/{server.proc.pid}/status").read_text()
    rss = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    return rss / 1024, len(os.listdir(f"/proc/{server.proc.pid}/fd"))


def rate(tools, server):
    return tools.perf("put", server.addr, "--mem", "kv", "-s", "1M", "-D", 2).clean()[0]["GB_s"]


def beside(tools, server, proc, pairs):
    """What a client keeps of its rate while @proc goes on: medians, in turn with times when it stands."""
    ratios = []
    while len(ratios) < pairs and (proc.poll() is None or not ratios):
        busy = rate(tools, server)
        proc.send_signal(signal.SIGSTOP)
        ratios.append(busy / rate(tools, server))
        proc.send_signal(signal.SIGCONT)
    return f"a client beside {statistics.median(ratios):.2f} ({len(ratios)} pairs, {min(ratios):.2f} to {max(ratios):.2f})"


def flood(tools, other, keys, half_open, strays, pairs):
    tools.env["ASAN_OPTIONS"] = "quarantine_size_mb=8" # what was freed is no longer held
    with cli.Server(tools, "--port", "shm", "--key", keys.good, listen="0.0.0.0:0") as server:
        addr = f"{HERE}:{server.port}"
        heard(other, "many", addr, 2000) # what is made once
        rate(tools, server)
        before = held(server)
        proc = there(other, "half_open", addr, half_open, stdin=subprocess.PIPE)
        expect(json.loads(proc.stdout.readline()) == half_open)
        loaded = held(server)
        rate(tools, server)
        proc.stdin.close()
        proc.wait()
        print(f"{half_open} half-open: {loaded[0] - before[0]:+.1f} MiB, {loaded[1] - before[1]:+d} descriptors")
        expect(loaded[0] - before[0] < 16 and loaded[1] - before[1] <= 64 + 8, before, loaded)
        start = time.monotonic()
        proc = there(other, "many", addr, strays, stdin=subprocess.DEVNULL)
        kept = beside(tools, server, proc, pairs)
        failed = json.loads(proc.communicate(timeout=500)[0])
        took_s = time.monotonic() - start
        time.sleep(2)
        after = held(server)
        print(f"{strays} strays in {took_s:.1f} s, {failed} did not connect: {after[0] - before[0]:+.1f} MiB, "
              f"{after[1] - before[1]:+d} descriptors, {kept}")
        expect(after[0] - before[0] < 8 and after[1] - before[1] <= 4, before, after)
        tools.gxperf("put", server.addr, "--mem", "kv", "-s", "4K", "-n", "10").must(OK)


def main(build, part=""):
    enter()
    tools, other = cli.Tools(pathlib.Path(build).resolve()), Other()
    with tempfile.TemporaryDirectory() as folder:
        try:
            links_make(other)
            keys = Keys(tools, pathlib.Path(folder))
            if part == "flood":
                flood(tools, other, keys, HALF_OPEN, STRAYS, 7)
            else:
                clients(tools, other, keys)
                wire(tools, other, keys, pathlib.Path(folder))
                silence(tools, other, keys)
                flood(tools, other, keys, 600, 3000, 1)
        finally:
            other.end()
    print("strangers: ok")
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "stray":
        sys.exit(stray(*sys.argv[2:5]))
    sys.exit(main(*sys.argv[1:3]))
