#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nccl_tests.py over programs that print what those of nccl-tests do; there is neither NCCL nor a GPU."""
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
GOOD = """# nThread 1 nGpus 2 minBytes 8 maxBytes 64 step: 8(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    28.14    0.01    1.25      0    27.90    0.02    9.50    N/A
          64            16     float     sum      -1    29.01    0.02    2.50      0    28.33    0.03    9.75      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 5.75
"""
# As alltoall with -b 8 prints: the first sizes are rounded to 0 bytes, and nothing is checked in place.
ROUNDED = """#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
           0             0     float    none      -1     5.10    0.00    0.00       0     5.01    0.00    0.00     N/A
           0             0     float    none      -1     5.11    0.00    0.00       0     5.02    0.00    0.00     N/A
   268435456      33554432     float    none      -1    28381.1    9.46    4.73       0  29117.3    9.22    4.61     N/A
"""
# argv[1:] of a program; %s: what its table is. The log names the transport that the environment asked for.
PROGRAM = """#!/bin/sh
echo "host:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/%s/0" > $NCCL_DEBUG_FILE
cat <<'END'
%s
END
exit %d
"""


def tests_run(text, via="$NCCL_NET", status=0, programs="all_reduce", more=()):
    """Return: (exit status, what it said)."""
    with tempfile.TemporaryDirectory() as folder:
        for name in programs.split(","):
            path = os.path.join(folder, name + "_perf")
            with open(path, "w", encoding="utf-8") as f:
                f.write(PROGRAM % (via, text, status))
            os.chmod(path, 0o755)
        ran = subprocess.run([sys.executable, os.path.join(HERE, "nccl_tests.py"), "--dir", folder, "--plugin", __file__,
                              "--programs", programs, "--rounds", "2", *more], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
        return ran.returncode, ran.stdout


def want(what, got, status, *texts):
    bad = [text for text in texts if text not in got[1]]
    if got[0] != status or bad:
        print(f"{what}: exit status {got[0]}, not {status}; without {bad}:\n{got[1]}")
        sys.exit(1)


def main():
    row = f"{'sendrecv':16}{64:12}{2.5:14.2f}{2.5:14.2f}{1.0:12.2f}{0:10}"
    want("all is right", tests_run(GOOD, programs="all_reduce,sendrecv"), 0, row, "ok all_reduce over gx")
    wrong = GOOD.replace("2.50      0", "2.50      3")
    want("wrong values", tests_run(wrong), 1, "3 values are wrong", f"{12:10}")
    zero = f"{'alltoall':16}{0:12}{0:14.2f}{0:14.2f}{'-':>12}{0:10}\n"
    large = f"{'alltoall':16}{268435456:12}{4.73:14.2f}{4.73:14.2f}{1:12.2f}{0:10}\n"
    want("sizes that are rounded to 0", tests_run(ROUNDED, programs="alltoall"), 0, zero + large)
    first = ROUNDED.replace("0.00       0     5.01", "0.00       2     5.01")
    want("wrong values in the first of two rows", tests_run(first, programs="alltoall"), 1, "2 values are wrong")
    want("text of a run that was right", tests_run(GOOD + "# libcuda.so", programs="all_reduce"), 0, "ok all_reduce over gx")
    want("wrong values and an exit status", tests_run(wrong, status=1), 1, "3 values are wrong")
    want("wrong values in place", tests_run(GOOD.replace("9.75      0", "9.75 1e+06")), 1, "1000000 values are wrong")
    want("another transport", tests_run(GOOD, via="Socket"), 1, "ok all_reduce over socket", "NET/gx/N for 0 of 1")
    want("no row", tests_run("# nothing"), 1, "no row")
    want("a table of an older nccl-tests", tests_run(GOOD.replace("#wrong", "error")), 1, "no row")
    unchecked = GOOD.replace("1.25      0", "1.25    N/A").replace("2.50      0", "2.50    N/A")
    want("nothing was checked", tests_run(unchecked), 1, "no row")
    want("a program fails", tests_run(GOOD, status=3), 1, "exit status 3")
    want("no GPU", tests_run("Test CUDA failure common.cu:1 'no CUDA-capable device is detected'", status=2), 77, "SKIP")
    want("no program", tests_run(GOOD, more=("--programs", "alltoall")), 2, "alltoall_perf")
    print("all cases pass")
    return 0


if __name__ == "__main__":
    sys.exit(main())
