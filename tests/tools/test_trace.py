#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The probes for tracers: gxd has each that the sources name, with all arguments, and each that the scripts of tools/trace name.

usage: test_trace.py BUILD_DIR SOURCE_DIR     Exit status 77 where readelf is missing, or gx was built without probes.
"""
import pathlib
import re
import shutil
import subprocess
import sys


def in_elf(path):
    """{name: number of arguments} of the notes in section .note.stapsdt, and whether each lies at a nop."""
    said = subprocess.run(["readelf", "-n", path], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"Provider: gx\s+Name: (\w+)\s+Location: (\S+),.*?\n\s+Arguments:([^\n]*)", said)
    return {name: len(args.split()) for name, _, args in found}, {int(at, 16) for _, at, _ in found}


def main(build, top):
    if not shutil.which("readelf"):
        print("readelf is not installed")
        return 77
    top, gxd = pathlib.Path(top), pathlib.Path(build) / "tools/gxd"
    args, places = in_elf(gxd)
    if not args:
        print("gx was built without sys/sdt.h")
        return 77
    named = {}
    for path in [p for folder in ("poll", "dataplane") for p in (top / folder).rglob("*.c")]:
        for name, more in re.findall(r"\bGX_PROBE\((\w+)((?:, [^,;]+)*)\);", path.read_text()):
            named[name] = more.count(", ")
    bad = [f"{name}: the sources give {nr} arguments, the file has {args.get(name)}" for name, nr in named.items() if args.get(name) != nr]
    bad += [f"{name} is in the file alone" for name in args if name not in named]
    for script in sorted((top / "tools/trace").glob("*.bt")):
        text = script.read_text()
        bad += [f"{script.name}: there is no probe {name}" for name in re.findall(r"usdt:\*:gx:(\w+)", text) if name not in args]
        # No argument beyond those that a probe has.
        for name, body in re.findall(r"usdt:\*:gx:(\w+)\n(.*?)\n}", text, re.S):
            most = max((int(n) for n in re.findall(r"\barg(\d)", body)), default=-1)
            if most >= args.get(name, 0):
                bad.append(f"{script.name}: {name} has no arg{most}")
    print(f"{len(args)} probes at {len(places)} places")
    print(*bad, sep="\n")
    return 1 if bad or len(args) < 10 else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
