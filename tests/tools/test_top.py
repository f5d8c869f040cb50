#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gxd top in a terminal, gxd dump, and SIGUSR1.

usage: test_top.py BUILD_DIR [CASE...]     cli.py says the rest. With the package pyte it has a terminal's screen; else the last
                                           frame that was drawn, without its sequences.
"""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

from cli import CLIENT_CPU, FAILED, OK, START_S, USAGE, Server, Tools, case, expect, main, stand

try:
    import pyte
except ImportError:
    pyte = None

ROWS, COLS = 30, 120


class Terminal:
    """A program in a pseudo-terminal."""

    def __init__(self, args, env):
        self.master, slave = pty.openpty()
        self.size(ROWS, COLS)
        self.was = termios.tcgetattr(slave)
        self.slave = slave
        self.proc = subprocess.Popen(args, stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True)
        self.raw = b""
        self.screen = pyte.Screen(COLS, ROWS) if pyte else None
        self.stream = pyte.ByteStream(self.screen) if pyte else None

    def size(self, rows, cols):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def read(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end and select.select([self.master], [], [], max(0, end - time.monotonic()))[0]:
            try:
                part = os.read(self.master, 65536)
            except OSError:
                break
            if not part:
                break
            self.raw += part
            if self.stream:
                self.stream.feed(part)

    def lines(self):
        if self.screen:
            return list(self.screen.display)
        frames = [f for f in self.raw.split(b"\x1b[H") if b"gxd top - " in f]
        return re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", frames[-1].decode()).split("\r\n") if frames else [""]

    def wait(self, pattern, seconds=START_S):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.read(0.2)
            for line in self.lines():
                if re.search(pattern, line):
                    return line
        raise AssertionError(f"no '{pattern}' on the screen:\n" + "\n".join(self.lines()))

    def keys(self, text):
        os.write(self.master, text.encode())

    def end(self):
        status = self.proc.wait(START_S)
        self.read(0.2)
        restored = termios.tcgetattr(self.slave) == self.was
        os.close(self.slave)
        os.close(self.master)
        return status, restored


def at_folder(tools, folder):
    at = Tools(tools.fakes.parent)
    at.env = {**tools.env, "GX_RUN_DIR": str(folder)}
    return at


def load(at, server, *args):
    return subprocess.Popen([at.gxperf_path, "put", server.addr, "-s", "64K", "-D", "60", "--cores", CLIENT_CPU, *args],
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=at.env)


@case
def top_in_a_terminal(tools):
    """The busy connection is first, the keys do what top's do, and the terminal is left as it was."""
    with tempfile.TemporaryDirectory() as name:
        at = at_folder(tools, name)
        with Server(at, "--port", "shm", "--port", "udp") as server:
            busy = load(at, server, "--link", "tcp")
            t = Terminal([at.gxd_path, "top", "--interval", "0.5"], at.env)
            try:
                t.wait(r"gxd top - \d\d:\d\d:\d\d, 2 processes \(0 silent\), 2 connections, every 0.5 s, by RX/s")
                line = t.wait(rf"^ *{server.proc.pid} gxd +1 tcp +\S+ +\d\S*[KMG] .* pid {busy.pid}")
                expect(float(re.findall(r"(\d[\d.]*)[KMG]", line)[0]) > 0, line)
                rows = [row for row in t.lines() if re.search(r" tcp ", row)]
                expect(len(rows) == 2 and str(server.proc.pid) in rows[0].split()[0], rows)
                expect(re.search(r"(window|credit|core|idle|application|link) ", rows[1]), rows)
                t.keys("R")
                t.wait("by RX/s, reversed")
                rows = [row for row in t.lines() if re.search(r" tcp ", row)]
                expect(str(busy.pid) in rows[0].split()[0], rows)
                t.keys("R>")
                t.wait(r"by LOST/s\s*$")
                t.keys("<<")
                t.wait(r"by TX/s\s*$")
                t.keys("d")
                t.wait("seconds between looks: *$")
                t.keys("0.25x\n")
                t.wait("every 0.2 s|every 0.3 s")
                t.keys("dnonsense\n")
                t.wait("every 0.2 s|every 0.3 s")
                t.size(6, 60) # room for two connections at most, and lines are cut
                t.proc.send_signal(signal.SIGWINCH)
                t.read(1)
                frame = t.raw.split(b"\x1b[H")[-1]
                lines = re.sub(rb"\x1b\[[?0-9;]*[a-zA-Z]", b"", frame).split(b"\r\n")
                expect(len(lines) <= 6 and max(map(len, lines)) <= 60, lines)
                t.size(ROWS, COLS)
                t.proc.send_signal(signal.SIGWINCH)
                busy.send_signal(signal.SIGSTOP)
                t.wait(r"\(1 silent\)")
                busy.send_signal(signal.SIGCONT)
                t.wait(r"\(0 silent\)")
                t.keys("q")
                status, restored = t.end()
                expect(status == OK and restored, "q:", status, restored)
                expect(t.raw.rstrip().endswith(b"\x1b[?25h\x1b[?1049l"), t.raw[-100:])
            finally:
                t.proc.kill()
                busy.kill()
                busy.wait()
            t = Terminal([at.gxd_path, "top"], at.env)
            t.wait("gxd top - ")
            t.proc.send_signal(signal.SIGTERM)
            status, restored = t.end()
            expect(status == OK and restored, "SIGTERM:", status, restored)


@case
def top_without_terminal(tools):
    with tempfile.TemporaryDirectory() as name:
        at = at_folder(tools, name)
        with Server(at) as server:
            ran = at.gxd("top", "--interval", "0.2").must(OK)
            expect("\033" not in ran.out and "1 processes (0 silent), 0 connections" in ran.out, ran)
            expect(server.proc.poll() is None, server.log())
    tools.gxd("top", "--dir", "/nonexistent").must(FAILED, "/nonexistent", "GX_RUN_DIR")
    tools.gxd("top", "--interval", "0").must(USAGE, "--interval")
    tools.gxd("top", "more").must(USAGE, "'more'")


@case
def dump_is_json(tools):
    with tempfile.TemporaryDirectory() as name:
        at = at_folder(tools, name)
        with Server(at) as one, Server(at, "--port", "shm", "--port", "udp") as two:
            busy = load(at, two, "--link", "tcp")
            try:
                end = time.monotonic() + START_S
                found, by_pid = [], {}
                while not (found and len(by_pid) == 3) and time.monotonic() < end: # an end may tell of itself before the other
                    doc = at.gxd("dump").must(OK).doc
                    by_pid = {p["pid"]: p for p in doc["processes"] if p["why_silent"] is None}
                    found = by_pid.get(two.proc.pid, {"metrics": {}})["metrics"].get("gx_connection_info", [])
                expect(sorted(p["name"] for p in doc["processes"]) == ["gxd", "gxd", "gxperf"] and len(by_pid) == 3, doc)
                expect(found[0]["labels"]["link"] == "tcp" and found[0]["value"] == 1, found)
                expect(all(p["metrics"]["gx_turns_total"][0]["value"] > 0 for p in by_pid.values()), doc)
                stand(one.proc)
                doc = at.gxd("dump").must(OK).doc
                one.proc.send_signal(signal.SIGCONT)
                silent = [p for p in doc["processes"] if p["pid"] == one.proc.pid][0]
                expect("does not answer" in silent["why_silent"] and silent["metrics"] == {}, silent)
            finally:
                busy.kill()
                busy.wait()
            two.proc.send_signal(signal.SIGUSR1)
            two.wait_log("peers_up control 1")
            log = two.log()
            expect("region   kv" in log and "turns 0 " in log and "rx_dup 0 0" not in log, log)
            expect(two.proc.poll() is None, log)
    tools.gxd("dump", "--dir", "/nonexistent").must(FAILED, "/nonexistent")
    tools.gxd("dump", "more").must(USAGE, "'more'")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
