# SPDX-License-Identifier: Apache-2.0
"""The threads of this process, for tests that fork beside those of gx."""
import os
import pathlib
import threading
import time


def all_asleep():
    """Wait until no other thread runs: one that the sanitizer's allocator serves would leave a lock taken in the child."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        others = [t for t in os.listdir("/proc/self/task") if int(t) != threading.get_native_id()]
        stats = [pathlib.Path(f"/proc/self/task/{t}/stat").read_text(encoding="ascii") for t in others]
        if all(stat.rpartition(")")[2].split()[0] == "S" for stat in stats):
            return
        time.sleep(0.001)
    raise AssertionError("a thread that has nothing to do does not sleep")
