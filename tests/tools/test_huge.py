#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Huge pages that are free in the host and denied to a container: the hugetlb limit of its cgroup. gx goes on with normal pages, and
says why. Where pages may be had but not all of them, too.

usage: test_huge.py BUILD_DIR
For its time the test gives the host PAGES huge pages. Exit status 77 where it may not, or may not limit a cgroup.
"""
import contextlib
import os
import pathlib
import sys

import cli
from cli import FAILED, OK, expect
from test_veth import skip

PAGES, MEM = 160, "kv=host:32M" # DPDK wants 256 MiB and takes less
NR = pathlib.Path("/proc/sys/vm/nr_hugepages")
FREE = pathlib.Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
DENIED = "denied to this process: by the hugetlb limit of its cgroup"
# One way for each place that takes huge pages: a region of its own process, one that is shared, a segment of shm, a pool of udp.
WAYS = {"udp": ["--link", "packet", "--port", "udp"], "shm": ["--link", "packet", "--port", "shm"], "tcp": ["--link", "tcp"],
        "local": ["--link", "local"], "dpdk": ["--link", "packet", "--port", "dpdk:net_memif"]}


def write(path, text):
    try:
        path.write_text(text)
    except OSError as e:
        skip(f"{path}: {e.strerror}")


@contextlib.contextmanager
def pages():
    before = NR.read_text()
    write(NR, str(int(before) + PAGES))
    try:
        if int(FREE.read_text()) < PAGES:
            skip(f"of {PAGES} huge pages {FREE.read_text().strip()} are to be had: memory is in pieces")
        yield
    finally:
        NR.write_text(before)


@contextlib.contextmanager
def group():
    """A cgroup of version 2 whose huge pages have a limit; who goes in leaves it again."""
    mounts = [line.split() for line in pathlib.Path("/proc/self/mounts").read_text().splitlines()]
    tops = [pathlib.Path(at) for _, at, kind, *_ in mounts if kind == "cgroup2"]
    if not tops or "hugetlb" not in (tops[0] / "cgroup.controllers").read_text().split():
        skip("no cgroup of version 2 that limits huge pages")
    top, control = tops[0], tops[0] / "cgroup.subtree_control"
    had = "hugetlb" in control.read_text().split()
    write(control, "+hugetlb")
    home = top / next(line[4:] for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::/"))
    inside = top / f"gx-test-{os.getpid()}"
    try:
        inside.mkdir()
    except OSError as e:
        skip(f"{inside}: {e.strerror}")
    try:
        write(inside / "cgroup.procs", str(os.getpid()))
        yield inside
    finally:
        (home / "cgroup.procs").write_text(str(os.getpid()))
        inside.rmdir()
        if not had:
            control.write_text("-hugetlb")


def puts(tools, way, limit, group_dir):
    """Returns what gxd said of its region."""
    with cli.Server(tools, *WAYS[way], mem=MEM) as s:
        tools.perf("put", s.addr, "-s", "64K", "-n", "200", *WAYS[way], *(["--depth", "4"] if way == "dpdk" else [])).clean()
        log = s.log()
    used = (group_dir / "hugetlb.2MB.current").read_text().strip()
    print(f"ok     {way}, limit {limit}: {used} bytes are left in the group", flush=True)
    return log


def main():
    tools = cli.Tools(pathlib.Path(sys.argv[1]).resolve())
    with group() as at, pages():
        for limit in ("0", str(8 << 20)): # what DPDK asks for at the least is more than that
            write(at / "hugetlb.2MB.max", limit)
            for way in WAYS:
                try:
                    log = puts(tools, way, limit, at)
                except AssertionError as e:
                    if "dpdk" not in way or "without DPDK" not in str(e):
                        raise
                    print("note: built without DPDK")
                    continue
                expect("normal pages" in log and DENIED in log, way, limit, log)
                expect("dpdk" not in way or "port dpdk" in log, log)
        write(at / "hugetlb.2MB.max", "0")
        ran = tools.gxperf("doctor").must(FAILED)
        expect("denied to this process" in ran.out and "hugetlb.2MB.max" in ran.out, ran)
        write(at / "hugetlb.2MB.max", "max")
        expect("ok       hugepages" in tools.gxperf("doctor").out)
        log = puts(tools, "udp", "max", at)
        expect("host, huge pages" in log and "normal" not in log, log)
        expect((at / "hugetlb.2MB.current").read_text().strip() == "0", "huge pages are left")


if __name__ == "__main__":
    main()
