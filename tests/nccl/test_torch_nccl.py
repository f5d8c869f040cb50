#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How torch_nccl.py judges a rank whose peer is killed or stopped, with processes that play the ranks; neither PyTorch nor a GPU is
needed."""
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from types import SimpleNamespace

import torch_nccl

VIA = "NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/gx/0\n"
WARN = "NCCL WARN NET/gx : receive 7 failed\n"
# Rank 0: argv[1] is its log, argv[2] its peer, a child of the same process. argv[3] s after the signal it says a warning (-1: none),
# argv[4] s later it ends with argv[5].
RANK = f"""
import sys, time
log = open(sys.argv[1], "a")
tells, ends, status = float(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])
while open("/proc/" + sys.argv[2] + "/stat").read().rsplit(")")[-1].split()[0] not in "ZT":
    time.sleep(0.01)
time.sleep(max(tells, 0))
if tells >= 0:
    log.write({WARN!r})
    log.flush()
time.sleep(ends)
sys.exit(status)
"""


class FakeRank(torch_nccl.Rank):
    def __init__(self, folder, argv):
        self.nccl_log, self.log = folder + "/nccl", folder + "/rank"
        for name, text in ((self.nccl_log, VIA + WARN), (self.log, "")): # a warning from before, too
            with open(name, "w", encoding="ascii") as f:
                f.write(text)
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE)


def judged(test, number, tells, ends, status, limit_s=60, **limits):
    """The result of one run of a test, and how long that took."""
    with tempfile.TemporaryDirectory() as folder:
        def pair(*_):
            for name in ("0", "1"):
                os.mkdir(f"{folder}/{name}")
            peer = FakeRank(f"{folder}/1", ["sleep", "60"])
            argv = [f"{folder}/0/nccl", peer.process.pid, tells, ends, status]
            rank = FakeRank(f"{folder}/0", [sys.executable, "-c", RANK, *map(str, argv)])
            return SimpleNamespace(ranks=[rank, peer], call=lambda do: None)

        run = object.__new__(torch_nccl.Run)
        run.args = SimpleNamespace(**{"tell_limit_s": 1, "end_limit_s": 90, "kill_mps": False, **limits})
        run.env, run.no_mps, run.failed, run.results = {}, {}, [], []
        run.end_at = time.monotonic() + limit_s
        real, torch_nccl.Pair = torch_nccl.Pair, pair
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                run.ends(test, "gx", number, "1")
        finally:
            torch_nccl.Pair = real
        return run.results[0]


def want(what, got, *bad, ended=True):
    if got["ok"] is not (not bad) or len(got.get("bad", [])) != len(bad) or any(b not in g for b, g in zip(bad, got.get("bad", []))) \
            or (got["ended_s"] is not None) is not ended:
        print(f"{what}: not {bad}:\n{json.dumps(got)}")
        sys.exit(1)


def main():
    got = judged("kill", signal.SIGKILL, 0, 1.5, 1)
    want("told at once, ends later", got)
    assert got["told_s"] < 1 < got["ended_s"] and got["told_limit_s"] == 1 and got["ended_limit_s"] == 90, got
    want("told as the last thing before the end", judged("kill", signal.SIGKILL, 0.2, 0, 1))
    want("told late", judged("kill", signal.SIGKILL, 0.7, 0, 1, tell_limit_s=0.3), "after")
    want("never told", judged("kill", signal.SIGKILL, -1, 0.2, 1), "never")
    want("no error", judged("kill", signal.SIGKILL, 0, 0.2, 0), "without an error")
    want("ends late", judged("kill", signal.SIGKILL, 0, 0.7, 1, end_limit_s=0.3), "the rank ended after")
    want("does not end", judged("kill", signal.SIGKILL, 0, 60, 1, limit_s=2), "--limit-s", ended=False)
    got = judged("stop", signal.SIGSTOP, 0.7, 0.1, 1, tell_limit_s=0.3)
    want("a stopped one is told of later", got)
    assert got["told_limit_s"] == 0.3 + torch_nccl.PEER_S, got
    print("all cases pass")
    return 0


if __name__ == "__main__":
    sys.exit(main())
