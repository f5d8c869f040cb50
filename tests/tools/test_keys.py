#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Keys between two hosts, as far as one kernel can be two: the commands of the README, the rights of a key, and a key that is taken
away. What strangers and wrong keys hear is in test_strangers.py.

usage: test_keys.py BUILD_DIR
Exit status 77 where namespaces are refused.
"""
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import cli
from cli import CLIENT_CPU, FAILED, LOST, OK, START_S, expect
from test_veth import Other, enter, links_make

HERE = "10.90.0.1"
README = pathlib.Path(__file__).resolve().parents[2] / "README.md"


def readme(tools, other, folder):
    """The block of the README as it stands, in two folders that are empty, with programs, addresses and CPUs of this test."""
    block = README.read_text().split("## Between two hosts")[1].split("```")[1]
    keygen, copy, serve, put = [shlex.split(line, comments=True) for line in block.strip().splitlines()]
    server, client = folder / "server", folder / "client"
    server.mkdir()
    client.mkdir()
    expect(keygen[0] == "gxd" and copy == ["scp", "-p", "kv.key", "client:"] and serve[0] == "gxd" and put[0] == "gxperf", block)
    tools.gxd(*keygen[1:], cwd=server).must(OK)
    shutil.copy(server / "kv.key", client) # with its mode, as scp -p does
    (client / "FILE").write_bytes(os.urandom(1000003))
    serve[serve.index("10.0.0.1:7501")] = HERE + ":0"
    serve[serve.index("kv=host:1G")] = "kv=host:16M"
    with subprocess.Popen([tools.gxd_path, *serve[1:], "--cores", cli.SERVER_CPU], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          cwd=server, env=tools.env) as proc:
        try:
            addr = re.match(r"gxperf put (\S+) --mem kv --key \S+$", proc.stdout.readline()).group(1)
            put[put.index("10.0.0.1:7501")] = addr
            words = other.words(tools.gxperf_path, *put[1:], "--cores", CLIENT_CPU, "--format", "json")
            ran = tools.run(words[0], *words[1:], cwd=client).must(OK)
            expect(ran.doc["path"]["auth"] == "key kv" and ran.doc["path"]["integrity"] == "gcm", ran)
        finally:
            proc.terminate()
            _, err = proc.communicate(timeout=30)
        expect("connected: tcp" in err and "key kv" in err, err)


def client(tools, other, addr, command, key, *args):
    words = other.words(tools.gxperf_path, command, addr, "--cores", CLIENT_CPU, "--mem", "kv", "--key", key, "-s", "64K", "-n", "20", *args)
    return tools.run(words[0], *words[1:])


def rights(tools, other, keys):
    """Words at both ends."""
    for name, *more in (("all",), ("get", "--access", "get"), ("put", "--access", "put"), ("kv", "--regions", "kv"), ("log", "--regions", "log*,k"), ("two", "--connections", "2"),
                        ("slow", "--under-way", "64K")):
        tools.gxd("keygen", name, *more, "-o", keys / f"{name}.key").must(OK)
    with cli.Server(tools, "--key", keys, "--mem", "log.1=host:1M", "--port", "udp", listen=HERE + ":0") as s:
        for command in ("put", "get"):
            client(tools, other, s.addr, command, keys / "all.key").must(OK)
            client(tools, other, s.addr, command, keys / "slow.key").must(OK)
        client(tools, other, s.addr, "get", keys / "get.key", "--no-check").must(OK)
        client(tools, other, s.addr, "get", keys / "get.key").must(FAILED, "'fill' is for clients whose key has no limits", "--no-check")
        client(tools, other, s.addr, "put", keys / "put.key", "--no-check").must(OK)
        client(tools, other, s.addr, "put", keys / "put.key").must(FAILED, "'poison' is for clients whose key has no limits", "--no-check")
        client(tools, other, s.addr, "send", keys / "put.key", "--no-check").must(FAILED, "'recv' is for clients whose key has no limits")
        for name, refused in (("kv", None), ("put", "region 'kv' may not be read"), ("get", "region 'kv' may not be written")):
            words = other.words(tools.gxperf_path, "put", s.addr, "--cores", CLIENT_CPU, "--mem", "kv", "--key", keys / f"{name}.key", "--file",
                                README)
            tools.run(words[0], *words[1:]).must(FAILED if refused else OK, *[refused] if refused else ())
        client(tools, other, s.addr, "put", keys / "get.key").must(FAILED, "region 'kv' may not be written")
        s.wait_log("key get lets it get alone")
        client(tools, other, s.addr, "put", keys / "log.key").must(FAILED, "no region 'kv'", "log.1")
        s.wait_log("in regions log*,k")
        client(tools, other, s.addr, "put", keys / "two.key", "-q", "2").must(OK)
        client(tools, other, s.addr, "put", keys / "two.key", "-q", "3").must(FAILED, "key two has 2 connections")
        s.wait_log("key two has 2 connections")
        stats = tools.gxd("stats", f"@gxd-{s.port}").must(OK).out
        expect("peer " not in stats, stats)


def revoked(tools, other, keys):
    """A client that is measuring ends within a second, with the word; one beside goes on."""
    for name in ("stays", "goes"):
        tools.gxd("keygen", name, "-o", keys / f"{name}.key").must(OK)
    with cli.Server(tools, "--key", keys, "--port", "udp", listen=HERE + ":0") as s:
        procs = {}
        for name in ("stays", "goes"):
            words = other.words(tools.gxperf_path, "put", s.addr, "--cores", CLIENT_CPU, "--mem", "kv", "--key", str(keys / f"{name}.key"),
                                "-s", "4K", "-D", "4" if name == "stays" else "60", "--format", "json")
            procs[name] = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                           env=tools.env)
        end = time.monotonic() + START_S
        while s.stat(tools, "peers_now") < 2 and time.monotonic() < end:
            time.sleep(0.02)
        stats = tools.gxd("stats", f"@gxd-{s.port}").must(OK).out
        expect(re.search(r"peer 10\.90\.0\.2:.*: link tcp, integrity gcm, key goes", stats), stats)
        (keys / "goes.key").unlink()
        start = time.monotonic()
        s.proc.send_signal(signal.SIGHUP)
        s.wait_log("is lost: key goes was revoked")
        took = time.monotonic() - start
        _, err = procs["goes"].communicate(timeout=30)
        expect(took < 1 and procs["goes"].returncode == LOST and "key goes was revoked" in err, took, procs["goes"].returncode, err)
        out, err = procs["stays"].communicate(timeout=60)
        expect(procs["stays"].returncode == OK and json.loads(out)["results"][0]["wrong"] == 0, err)
        client(tools, other, s.addr, "put", keys / "stays.key").must(OK)


def never_up(tools, other, keys):
    """A set-up that ends between the lanes and their keys: both ends say so, and live on."""
    tools.gxd("keygen", "kv", "-o", keys / "kv.key").must(OK)
    with cli.Server(tools, "--key", keys, "--port", "udp", "--bind", "127.0.0.1", listen="[::1]:0") as s:
        for _ in range(2):
            ran = tools.gxperf("put", f"[::1]:{s.port}", "--key", keys / "kv.key", "--port", "udp", "--integrity", "gcm", "-n", "4")
            ran.must(FAILED, "cannot connect lane 0", "the other family")
        time.sleep(0.5) # ticks of the control thread
        expect(s.proc.poll() is None, s.log())


def addresses(other, *words):
    """`ip addr WORDS dev ...` at both ends of the first pair; @words has {} for the number of the end."""
    for end, dev in (("1", "gxa"), ("2", "gxap")):
        call = ["ip", "addr", *(word.format(end) for word in words), "dev", dev]
        subprocess.run(call if end == "1" else other.words(*call), check=True)


def every_address(tools, other, keys):
    """With a key and no --listen gxd serves at each address. Where IPv6 is all that there is, its data ports are of it."""
    tools.gxd("keygen", "kv", "-o", keys / "kv.key").must(OK)
    expect("listen   127.0.0.1:7501\n" in tools.gxd("check", "--insecure").must(OK).out)
    addresses(other, "add", "fd90::{}/64", "nodad")
    for ports in ("10.90.0.1", "fd90::1"):
        with cli.Server(tools, "--key", keys / "kv.key", listen=None) as s:
            expect(f"take the address {ports}," in s.log(), s.log())
            client(tools, other, "[fd90::1]", "put", keys / "kv.key").must(OK)
            client(tools, other, f"[{ports}]" if ":" in ports else ports, "put", keys / "kv.key", "--port", "udp").must(OK)
        if ports == HERE:
            addresses(other, "del", "10.90.0.{}/24")
            subprocess.run(["ip", "addr", "del", "10.91.0.1/24", "dev", "gxc"], check=True)


def main():
    enter()
    tools, other = cli.Tools(pathlib.Path(sys.argv[1]).resolve()), Other()
    try:
        links_make(other)
        for case in (readme, rights, revoked, never_up, every_address): # the last one takes addresses away
            with tempfile.TemporaryDirectory() as tmp:
                case(tools, other, pathlib.Path(tmp))
            print(f"ok     {case.__name__}", flush=True)
    finally:
        other.end()


if __name__ == "__main__":
    main()
