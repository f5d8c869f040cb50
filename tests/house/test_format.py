#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Are the C and CUDA sources laid out as .clang-format says?

usage: test_format.py [--fix]

Version 14 of clang-format decides. --fix lays out what is not. Exit status: 0; 1 when a file
was found otherwise (without --fix); 77 when there is no clang-format 14.
"""
import os
import pathlib
import re
import subprocess
import sys

from house_clang import clang_tool

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
FOLDERS = ("bindings", "dataplane", "docs", "gpu", "include", "poll", "tests", "tools")
SUFFIXES = (".c", ".h", ".cc", ".hpp", ".cu", ".cuh")
JOBS = os.cpu_count() or 1


def sources():
    return [str(path.relative_to(TOP)) for folder in FOLDERS for path in sorted((TOP / folder).rglob("*"))
            if path.suffix in SUFFIXES and path.is_file()]


def formatter_run(tool, args, files):
    """As many processes as CPUs, each with a part of the files. Return: all that they said."""
    parts = [part for part in (files[i::JOBS] for i in range(JOBS)) if part]
    runs = [subprocess.Popen([tool, "--style=file", *args, *part], cwd=TOP, stderr=subprocess.PIPE, text=True) for part in parts]
    said = [run.communicate()[1] for run in runs]
    for run, text in zip(runs, said):
        if run.returncode not in (0, 1) or (run.returncode and "-Wclang-format-violations" not in text):
            sys.exit(f"{tool} failed with {run.returncode}: {text}")
    return "".join(said)


def bites(tool):
    """A line that is laid out otherwise must be found, and one that is right must not."""
    for text, wanted in (("int f(int *a)\n{\n\treturn *a;\n}\n", 0), ("int f(int* a) { return *a; }\n", 1)):
        got = subprocess.run([tool, "--style=file", "--dry-run", "-Werror", "--assume-filename=tests/x.c"], cwd=TOP, input=text,
                             stderr=subprocess.DEVNULL, text=True).returncode
        if got != wanted:
            return f"{tool} --dry-run ends with {got}, not {wanted}, for: {text!r}"
    return None


def main(args):
    if args not in ([], ["--fix"]):
        print(__doc__.split("\n\n")[1])
        return 2
    tool = clang_tool("clang-format")
    if not tool:
        return 77
    files = sources()
    if args:
        formatter_run(tool, ["-i"], files)
        return 0
    blunt = bites(tool)
    if blunt:
        print(blunt)
        return 1
    found = re.findall(r"^(\S+?):(\d+):\d+: error: code should be clang-formatted", formatter_run(tool, ["--dry-run", "-Werror"], files),
                       re.M)
    lines = {}
    for path, line in found:
        lines.setdefault(path, line)
    for path, line in sorted(lines.items()):
        print(f"FAILED: {path}:{line}: not laid out as .clang-format says")
    if lines:
        print("tests/house/test_format.py --fix mends them")
    print(f"{len(files)} files, {len(lines)} failures")
    return 1 if lines or not files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
