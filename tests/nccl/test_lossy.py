#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The ranks of test_nccl over udp, on a loopback that loses, doubles and reorders packets.

usage: GX_TEST_NCCL_NET=libnccl-net-gx.so test_lossy.py TEST_NCCL [CASE...]
The loopback is that of a network namespace that is made for the test. Exit status 77 where that, or the kernel's netem, is refused.
"""
import os
import subprocess
import sys

INSIDE = "GX_TEST_LOSSY_INSIDE"
FAULTS = "limit 100000 delay 100us loss 1% duplicate 0.5% reorder 5%".split()
CASES = ("sizes", "early", "crowd", "full", "misuse", "regs", "ll", "two", "mesh", "many", "close", "abort", "dereg", "skip", "kill")


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def sh(*words):
    """Return: (exit status, what it said)."""
    try:
        ran = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=20)
    except FileNotFoundError:
        return 127, f"there is no program {words[0]}"
    return ran.returncode, ran.stdout.strip()


def enter():
    """Go on in a network namespace of our own, as root there."""
    if os.environ.get(INSIDE):
        return
    for flags in ("-n", "-Urn"):
        status, said = sh("unshare", flags, "true")
        if not status:
            os.environ[INSIDE] = "1"
            os.execvp("unshare", ["unshare", flags, sys.executable, *sys.argv])
    skip(f"no network namespace for this user: {said}")


def main():
    enter()
    for words in (("ip", "link", "set", "lo", "up"), ("tc", "qdisc", "add", "dev", "lo", "root", "netem", *FAULTS)):
        status, said = sh(*words)
        if status:
            skip(f"{' '.join(words)}: {said}")
    ran = subprocess.run([sys.argv[1], "udp", *(sys.argv[2:] or CASES)], stdin=subprocess.DEVNULL)
    print(sh("tc", "-s", "qdisc", "show", "dev", "lo")[1])  # how many were lost
    return ran.returncode


if __name__ == "__main__":
    sys.exit(main())
