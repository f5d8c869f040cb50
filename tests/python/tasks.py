# SPDX-License-Identifier: Apache-2.0
"""The threads of a process, as the kernel lists them, and of this one, for tests that fork beside those of gx."""
import contextlib
import os
import pathlib
import threading
import time


def read(pid, name):
    """File @name of each thread of process @pid. A thread that has ended may be listed, and gone when it is looked at."""
    said = {}
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            said[int(task)] = pathlib.Path(f"/proc/{pid}/task/{task}/{name}").read_text(encoding="ascii")
    return said


def core(pid):
    """The thread that turns a core: it alone has one CPU of its own, and the name says so."""
    names = read(pid, "comm")
    for task, name in names.items():
        if name.startswith("gx-core"):
            return task
    raise AssertionError(f"no thread of a core: {names}")


def all_asleep():
    """Wait until no other thread runs: one that the sanitizer's allocator serves would leave a lock taken in the child."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        stats = read("self", "stat")
        stats.pop(threading.get_native_id(), None)
        if all(stat.rpartition(")")[2].split()[0] in "SZX" for stat in stats.values()):
            return
        time.sleep(0.001)
    raise AssertionError("a thread that has nothing to do does not sleep")
