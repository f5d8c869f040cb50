#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The programs of the documentation, as a reader would run them: usage: test_examples.py BUILD/tests"""
import pathlib
import socket
import subprocess
import sys
import time

WHERE = pathlib.Path(sys.argv[1])
LIMIT_S = 60


def address():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{s.getsockname()[1]}"


def start(name, *args):
    return subprocess.Popen([WHERE / name, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def client(server, name, *args):
    """Run until the server listens."""
    until = time.monotonic() + LIMIT_S
    while True:
        p = subprocess.run([WHERE / name, *args], capture_output=True, text=True, timeout=LIMIT_S)
        if not p.returncode:
            return p.stdout
        if "nothing listens" not in p.stderr or server.poll() is not None or time.monotonic() > until:
            sys.exit(f"{name}: status {p.returncode}: {p.stdout}{p.stderr}")
        time.sleep(0.1)


def expect(what, words):
    if words not in what:
        sys.exit(f"no '{words}' in: {what}")


def main():
    addr = address()
    keeper = start("example_kv", "keep", addr)
    expect(client(keeper, "example_kv", "use", addr), "page 7 is the same")
    expect(keeper.communicate(timeout=LIMIT_S)[0], "page 7 has come: 5a")
    if keeper.returncode:
        sys.exit(f"the keeper ended with {keeper.returncode}")

    said = subprocess.run(f"{WHERE}/example_blocks decode | {WHERE}/example_blocks prefill", shell=True, capture_output=True, text=True,
                          timeout=LIMIT_S).stderr
    expect(said, "decode: done, block 0 begins with 255")
    expect(said, "prefill: done")

    addr = address()
    server = start("example_epoll", addr)
    expect(client(server, "example", addr, "mem"), "hello through a polling core")
    out, _ = server.communicate("end\n", timeout=LIMIT_S)
    expect(out, "a client")
    if server.returncode:
        sys.exit(f"the epoll server ended with {server.returncode}: {out}")


main()
