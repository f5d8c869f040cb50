#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A libFuzzer target for 10 s, with GX_TEST_FULL for an hour: on a copy of its corpus, so that the tree
stays as it is. An input that it fails on is kept in FOUND, and its path is printed.

usage: libfuzzer.py TARGET CORPUS FOUND [SECONDS]
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

# Ten seconds begin with the same inputs each time, so that a change is judged by itself; an hour goes elsewhere (seed 0: any).
INPUT_S = 20  # an input may take; several times what a busy machine needs
RSS_MB = 2048
# The better schedule takes longer than most inputs, and 10 s are over before it pays.
HOW = ["-entropic=0", "-print_final_stats=1", "-verbosity=0", f"-timeout={INPUT_S}", f"-rss_limit_mb={RSS_MB}"]


def main(target, corpus, found, seconds=None):
    full = bool(os.environ.get("GX_TEST_FULL"))
    seconds = int(seconds or (3600 if full else 10))
    os.makedirs(found, exist_ok=True)
    # Memory that only pages of mmap() point to is no leak; the other build of the targets looks for leaks.
    env = dict(os.environ, GX_LOG="err", ASAN_OPTIONS=os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0")
    with tempfile.TemporaryDirectory(prefix="gx-fuzz-") as tmp:
        copy = shutil.copytree(corpus, os.path.join(tmp, "corpus"))
        prefix = os.path.join(found, os.path.basename(target) + "-")
        r = subprocess.run([target, *HOW, f"-seed={0 if full else 1}", f"-max_total_time={seconds}", f"-artifact_prefix={prefix}", copy], env=env,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds + 120)
    out = r.stdout.decode(errors="replace")
    if r.returncode:
        print(out[-20000:])
        kept = re.findall(r"Test unit written to (\S+)", out)
        print(f"failed. Once more: {target} {' '.join(kept) or '(it kept no input)'}")
        return 1
    stats = dict(re.findall(r"stat::(\w+):\s+(\d+)", out))
    print(f"{seconds} s: {stats['number_of_executed_units']} inputs, {stats['new_units_added']} new ones, {stats['peak_rss_mb']} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
