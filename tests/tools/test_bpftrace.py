#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The scripts of tools/trace, run by bpftrace on a gxd that serves.

usage: test_bpftrace.py BUILD_DIR SOURCE_DIR
Exit status 77 where bpftrace is missing, this is not root, gx was built without probes, or the kernel has no uprobes: then it says what
bpftrace said.
"""
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
import time

import cli
from cli import START_S, expect
from test_veth import enter, sh, skip

TRACING = "/sys/kernel/tracing"
PUTS = 40
# script: what it must have seen of so many puts and gets
SEEN = {
    "conns.bt": (r"^\d\d:\d\d:\d\d up +(\d+) 127\.0\.0\.1:\d+ pid \d+ conn \1$", r"^\d\d:\d\d:\d\d down (\d+) 0 ", r"^@begun: [1-9]\d*$",
                 r"^@landed: [1-9]\d*$", r"^@bytes: [1-9]\d*$"),
    "ops.bt": (r"^@us: *\n(\[.*\n)+", rf"^@bytes: *\n\[64K, 128K\) +({PUTS}|[4-9]\d|\d\d\d) "),
    "turns.bt": (r"^@busy_ns\[\d+\]: *\n\[", r"^@idle_ns\[\d+\]: *\n\[", r"^@rx_ns: *\n\[", r"^@tx_ns: *\n\["),
}


class Traced:
    """bpftrace with @script on a process, attached."""

    def __init__(self, script, pid):
        self.proc = subprocess.Popen(["bpftrace", "-p", str(pid), str(script)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT, env={**os.environ, "BPFTRACE_STRLEN": "128"})
        self.out = b""

    def read(self, until, seconds):
        end = time.monotonic() + seconds
        while until not in self.out and time.monotonic() < end:
            if select.select([self.proc.stdout], [], [], 0.2)[0]:
                part = os.read(self.proc.stdout.fileno(), 65536)
                if not part:
                    return False
                self.out += part
        return until in self.out

    def end(self):
        self.proc.send_signal(signal.SIGINT)
        more, _ = self.proc.communicate(timeout=START_S)
        return (self.out + more).decode(errors="replace")


def traced(tools, server, script, patterns, wait_s):
    """Return: all was seen. Nobody tells when it is attached: on a busy machine after @wait_s."""
    traced_by = Traced(script, server.proc.pid)
    if not traced_by.read(b"Attaching", START_S):
        skip(f"{script.name}: bpftrace cannot run here: {traced_by.end().strip()}")
    time.sleep(wait_s)
    if traced_by.proc.poll() is not None:
        skip(f"{script.name}: bpftrace cannot attach here: {traced_by.end().strip()}")
    for command in ("put", "get"):
        tools.perf(command, server.addr, "--link", "packet", "-s", "64K", "-n", str(PUTS), "-w", "0").clean()
    time.sleep(0.5)
    out = traced_by.end()
    missing = [pattern for pattern in patterns if not re.search(pattern, out, re.M)]
    print(f"{script.name}: {len(out)} bytes" + (f", not seen: {missing} in: {out}" if missing else ""), flush=True)
    return not missing


def main(build, top):
    if not shutil.which("bpftrace"):
        skip("bpftrace is not installed")
    if os.geteuid():
        skip("bpftrace needs root")
    enter("m")
    sh("mount", "--make-rprivate", "/")
    sh("ip", "link", "set", "lo", "up")
    if not os.path.exists(TRACING + "/uprobe_events") and sh("mount", "-t", "tracefs", "tracefs", TRACING).returncode:
        skip("no tracefs can be mounted here")
    if not os.path.exists(TRACING + "/uprobe_events"):
        skip("this kernel has no uprobes")
    tools = cli.Tools(pathlib.Path(build).resolve())
    if "Provider: gx" not in subprocess.run(["readelf", "-n", tools.gxd_path], capture_output=True, text=True, check=False).stdout:
        skip("gx was built without sys/sdt.h")
    scripts = sorted((pathlib.Path(top) / "tools/trace").glob("*.bt"))
    expect({s.name for s in scripts} == set(SEEN), scripts)
    with cli.Server(tools, "--port", "shm") as server:
        for script in scripts:
            expect(any(traced(tools, server, script, SEEN[script.name], wait_s) for wait_s in (2, 15)), script.name)


if __name__ == "__main__":
    main(*sys.argv[1:])
