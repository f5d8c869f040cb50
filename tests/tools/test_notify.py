#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gxd as a service: this test plays systemd. It hears what gxd says at NOTIFY_SOCKET, and has one core's thread stand still.

usage: test_notify.py BUILD_DIR
"""
import ctypes
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "python"))

import cli
import tasks
from cli import FAILED, OK, SERVER_CPU, START_S, USAGE, expect

PERIOD_S = 1.0 # WatchdogSec=
PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000


class Systemd:
    """Starts gxd by a file of options, and hears it."""

    def __init__(self, tools, folder, *lines, abstract=False):
        self.path = f"@gx-test-{os.getpid()}" if abstract else str(folder / "notify")
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind("\0" + self.path[1:] if abstract else self.path)
        conf = folder / "kv.conf"
        conf.write_text("# of a test\n\n--listen 127.0.0.1:0\n  --mem  kv=host:16M \n--cores=" + SERVER_CPU + "\n" + "\n".join(lines) + "\n")
        self.err = open(folder / "err", "w+")
        env = {**tools.env, "NOTIFY_SOCKET": self.path, "WATCHDOG_USEC": str(int(PERIOD_S * 1e6)), "CREDENTIALS_DIRECTORY": str(folder)}
        env.pop("WATCHDOG_PID", None)
        self.proc = subprocess.Popen([tools.gxd_path, "--config", conf], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.err,
                                     text=True, env=env)

    def log(self):
        return pathlib.Path(self.err.name).read_text()

    def hear(self, want, within=START_S):
        """Return: the first datagram that has @want, or None; all others are dropped."""
        end = time.monotonic() + within
        while (left := end - time.monotonic()) > 0:
            self.sock.settimeout(left)
            try:
                said = self.sock.recv(4096).decode()
            except TimeoutError:
                return None
            if want in said.split("\n"):
                return said
        return None

    def must_hear(self, want):
        said = self.hear(want)
        expect(said, f"gxd does not say {want}:", self.log())
        return said

    def end(self):
        if self.proc.poll() is None:
            self.proc.kill()
        self.proc.wait()
        self.proc.stdout.close()
        self.err.close()
        self.sock.close()


def reloads_without_keys(tools, folder):
    """systemctl reload, where nothing is to be read again: said, and it serves on."""
    s = Systemd(tools, folder, "")
    try:
        s.must_hear("READY=1")
        s.proc.send_signal(signal.SIGHUP)
        s.must_hear("RELOADING=1")
        expect("STATUS=no keys to read again" in s.must_hear("READY=1"), s.log())
        s.proc.send_signal(signal.SIGTERM)
        s.must_hear("STOPPING=1")
        expect(s.proc.wait(timeout=20) == 0, s.log())
        expect("reload: no keys to read again" in s.log(), s.log())
    finally:
        s.end()


def serves(tools, folder):
    """READY when it listens, reload with a key that comes, STOPPING, and an end in order."""
    tools.gxd("keygen", "kv", "-o", folder / "kv.key").must(OK)
    s = Systemd(tools, folder, "--key %d/kv.key")
    try:
        s.must_hear("READY=1")
        addr = re.match(r"gxperf put (\S+) ", s.proc.stdout.readline()).group(1)
        tools.gxperf("put", addr, "--key", folder / "kv.key", "-n", "4", "-s", "4K").must(OK)
        expect("WATCHDOG=1\n" in s.must_hear("STATUS=0 connections, 0 messages under way"), s.log())
        s.proc.send_signal(signal.SIGHUP)
        said = s.must_hear("RELOADING=1")
        expect(re.search(r"^MONOTONIC_USEC=\d+$", said, re.M), said)
        expect("STATUS=the keys were read again" in s.must_hear("READY=1"), s.log())
        (folder / "kv.key").write_text("gx-key 1\nnonsense\n")
        s.proc.send_signal(signal.SIGHUP)
        s.must_hear("RELOADING=1")
        expect("STATUS=not all keys could be read again: see the log" in s.must_hear("READY=1"), s.log())
        s.proc.send_signal(signal.SIGTERM)
        s.must_hear("STOPPING=1")
        expect(s.proc.wait(timeout=20) == 0, s.log())
    finally:
        s.end()


def ptrace(request, tid):
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.ptrace(request, ctypes.c_int(tid), None, None)


def watchdog(tools, folder):
    """A core's thread stands: the dog is not fed, and the log says which. It goes on: the dog is fed again."""
    s = Systemd(tools, folder, abstract=True)
    try:
        s.must_hear("READY=1")
        s.must_hear("WATCHDOG=1")
        tid = tasks.core(s.proc.pid)
        if ptrace(PTRACE_SEIZE, tid):
            print("note: this user may not stop a thread (ptrace): not tested")
            return
        ptrace(PTRACE_INTERRUPT, tid)
        os.waitpid(tid, WALL)
        try:
            s.hear("nothing", 0.7 * PERIOD_S) # what was said before, and a look that saw turns before it stood
            fed = s.hear("WATCHDOG=1", 2.5 * PERIOD_S)
        finally:
            ptrace(PTRACE_DETACH, tid) # else the process could not be ended
        expect(not fed, "fed while a core stands:", s.log())
        expect("core 0 has not turned for" in s.log(), s.log())
        s.must_hear("WATCHDOG=1")
    finally:
        s.end()


def exporter(tools, folder):
    """gxd metrics says when it listens, and takes its options from a file."""
    conf, path = folder / "metrics.conf", str(folder / "notify")
    conf.write_text(f"# of a test\n--listen 127.0.0.1:0\n--dir {folder}\n")
    tools.gxd("metrics", "--config", folder / "none").must(FAILED, "No such file")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.bind(path)
        s.settimeout(START_S)
        with subprocess.Popen([tools.gxd_path, "metrics", f"--config={conf}"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                              env={**tools.env, "NOTIFY_SOCKET": path}) as proc:
            try:
                port = re.match(r"metrics at port (\d+),", proc.stdout.readline()).group(1)
                expect(s.recv(4096).decode() == f"READY=1\nSTATUS=port {port}")
            finally:
                proc.terminate()
        expect(proc.returncode == OK, proc.returncode)


def check(tools, folder):
    conf, key = folder / "a.conf", folder / "a.key"
    tools.gxd("keygen", "a", "--access", "get", "--regions", "kv", "-o", key).must(OK)
    conf.write_text(f"--listen 127.0.0.1:7501\n--mem kv=host:1M\n--cores {SERVER_CPU}\n--key {folder}\n")
    ran = tools.gxd("check", "--config", conf).must(OK)
    for word in ("listen   127.0.0.1:7501", f"cores    on CPUs {SERVER_CPU}", "memory   kv: 1 MiB", "key      a: get; regions kv"):
        expect(word in ran.out, word, ran)
    key.chmod(0o644)
    tools.gxd("check", "--config", conf).must(FAILED, "a.key", "0644")
    for lines, rc, word in (("mem kv=host:1M", USAGE, "a.conf:1: no option"), ("--mem kv=host:1M\n--nonsense 5", USAGE, "--nonsense"),
                            ("--mem kv=host:1M\n--config x", USAGE, "a.conf:2: a file names no other"),
                            ("--mem kv=host:1M\n--key %d/a.key", USAGE, "a.conf:2: %d: there is no CREDENTIALS_DIRECTORY"),
                            ("--mem kv=host:1M\n--listen 203.0.113.77:1", FAILED, "no interface of this host has that address"),
                            ("--mem kv=host:1M\n--user nobody-here", FAILED, "no such user"), ("--mem kv=host:900T", FAILED, "are free"),
                            ("--mem kv=cuda:60:1M", FAILED, "no GPU 60"), ("--mem kv=host:1M\n--key " + "k" * 5000, USAGE, "too long")):
        conf.write_text(lines + "\n")
        tools.gxd("check", "--config", conf).must(rc, word)
    tools.gxd("check", f"--config={folder}/none").must(FAILED, "No such file")
    for port in ("65537", "-1", "http"):
        tools.gxd("check", "--mem", "kv=host:1M", "--listen", f"127.0.0.1:{port}").must(FAILED, "a port number is 0 to 65535")
    tools.gxd("--config", conf).must(USAGE, "too long")


def main():
    tools = cli.Tools(pathlib.Path(sys.argv[1]).resolve())
    tools.env.pop("CREDENTIALS_DIRECTORY", None)
    for case in (check, reloads_without_keys, serves, watchdog, exporter):
        with tempfile.TemporaryDirectory() as tmp:
            case(tools, pathlib.Path(tmp))
        print(f"ok     {case.__name__}", flush=True)


if __name__ == "__main__":
    main()
