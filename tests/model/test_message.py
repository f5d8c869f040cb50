#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The model of a message's life (message.pml): spin finds nothing in it, and finds each of its mutants.

Usage: test_message.py [--deep]
--deep: more faults, and two places: some 3 minutes of CPU and 3 GB. Exit status 77: spin or gcc is missing.
"""
import argparse
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile

MODEL = pathlib.Path(__file__).resolve().parent / "message.pml"
# What is searched as a whole. Each combination of so many faults, in any order.
CLEAN = (["FAULTS=3"], ["FAULTS=2", "PLACES=2"], ["FAULTS=3", "KIND1=INLINE"], ["FAULTS=3", "KIND0=INLINE"],
         ["FAULTS=2", "KIND1=LIST", "PLACES=2"])
DEEP = (["FAULTS=3", "PLACES=2"], ["FAULTS=4", "KIND0=INLINE"], ["FAULTS=4", "KIND1=INLINE"],
        ["FAULTS=3", "KIND1=LIST", "PLACES=2"])
# Steps are finite, so that a wait without end is a state without a next step.
NO_CIRCLE = (["FAULTS=2"], ["FAULTS=2", "KIND1=INLINE"])
# mutant, of which messages, what spin must say. CONTRIBUTING.md: a fault is planted, and something must see it.
MUTANTS = (
    ("LIST_BECOMES_OPEN", [], r"assertion violated .*in_pieces\["),  # a byte outside of a segment
    ("INLINE_STAYS", ["KIND0=INLINE"], r"assertion violated .*op\[0\]"),  # bytes of memory that the user has back
    ("ACK_LATE", [], r"assertion violated .*delivered\["),  # it ends well, and is not there
    ("OPEN_TWICE", ["KIND0=INLINE", "FAULTS=1"], r"assertion violated .*delivered\["),  # it is delivered twice
    ("CREDIT_LOST", [], r"invalid end state"),  # the next message waits for ever
    ("CREDIT_LOST", ["KIND0=INLINE"], r"assertion violated .*credit==counted"),
    ("LIFE_IGNORED", [], r"assertion violated \(last\[place"),  # a late packet lands in the next message
)
WITNESSES = range(1, 9)  # IS_REACHED() of the model


class Failed(Exception):
    pass


def run(what, cwd):
    p = subprocess.run(what, cwd=cwd, text=True, capture_output=True, check=False)
    if p.returncode:
        raise Failed(f"{' '.join(map(str, what))}: {p.returncode}\n{p.stdout}{p.stderr}")
    return p.stdout


def check(defines, gcc, flags=()):
    """What pan says: its output, and the steps to the error that it found, if any."""
    d = [f"-D{x}" for x in defines]
    with tempfile.TemporaryDirectory(prefix="gx-model-") as cwd:
        run(["spin", *d, "-a", MODEL], cwd)
        run(["gcc", "-w", *gcc, "-o", "pan", "pan.c"], cwd)
        said = run(["./pan", "-m10000", "-w20", *flags], cwd)
        if "max search depth too small" in said or "errors:" not in said:
            raise Failed(f"{defines}: the search is not whole\n{said}")
        trail = list(pathlib.Path(cwd).glob("*.trail"))
        steps = run(["spin", *d, "-p", "-g", "-k", trail[0], MODEL], cwd) if trail else ""
    return said, steps


def clean(defines, gcc=("-O2", "-DSAFETY", "-DNOREDUCE"), flags=(), what="no error"):
    said, steps = check(defines, gcc, flags)
    if "errors: 0" not in said:
        raise Failed(f"{' '.join(defines)}: spin found an error\n{steps}\n{said}")
    states = int(float(re.search(r"(\S+) states, stored", said).group(1)))
    print(f"model: {' '.join(defines)}: {what} in {states:,} states", flush=True)
    return states


def found(name, defines, want):
    said, steps = check([name, *defines], ("-O0", "-DSAFETY", "-DNOREDUCE"))
    what = re.search(r"pan:1: (.*)", said)
    if "errors: 1" not in said or not what or not re.search(want, what.group(1)):
        raise Failed(f"{name} {' '.join(defines)}: not found as {want!r}\n{steps[-4000:]}\n{said}")
    return what.group(1)


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--deep", action="store_true", help="more faults: minutes, and gigabytes")
    deep = args.parse_args().deep
    for tool in ("spin", "gcc"):
        if not shutil.which(tool):
            print(f"model: skipped: no {tool} here; on Debian: apt install {tool}")
            return 77
    planted = set(re.findall(r"\bMUTANT_(\w+)", MODEL.read_text())) - {"NEXT"}
    planted -= {m[0] for m in MUTANTS}
    if planted:
        raise Failed(f"mutants of the model that this test does not run: {planted}")
    code = "".join(f.read_text() for f in (MODEL.parents[2] / "dataplane/packet").glob("*.c"))
    rows = re.findall(r"^ \*   \w.*?  (\w.*\(\).*?)  ", MODEL.read_text(), re.M)
    gone = [f for row in rows for f in re.findall(r"(\w+)\(\)", row) if f"{f}(" not in code]
    if gone:
        raise Failed(f"the model names functions that packet/ does not have: {gone}")
    states = sum(clean(c) for c in (CLEAN + DEEP if deep else CLEAN))
    for c in NO_CIRCLE:
        states += clean(c, ("-O2", "-DNP", "-DNOREDUCE"), ("-l",), "no circle")
    for name, defines, want in MUTANTS:
        print(f"model: mutant {' '.join([name, *defines])}: {found('MUTANT_' + name, defines, want)[:90]}", flush=True)
    for w in WITNESSES:
        found(f"WITNESS={w}", ["FAULTS=2"], r"assertion violated")
    cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"model: {states:,} states, {len(MUTANTS)} mutants found, {len(WITNESSES)} witnesses, {cpu.ru_utime + cpu.ru_stime:.0f} s of CPU, "
          f"{cpu.ru_maxrss >> 10} MiB")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as e:
        print(e)
        sys.exit(1)
