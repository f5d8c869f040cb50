#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Print which part of each file's lines ran, from gcovr's JSON.

usage: coverage.py JSON FOLDER...     FOLDER: with a row for each file; all others have one for the folder
"""
import json
import pathlib
import sys


def counts(path):
    """{file: [lines that ran, lines]}"""
    out = {}
    for file in json.loads(pathlib.Path(path).read_text())["files"]:
        lines = [line for line in file["lines"] if not line.get("gcovr/noncode")]
        out[file["file"]] = [sum(line["count"] > 0 for line in lines), len(lines)]
    return out


def row(name, ran, lines):
    print(f"{name:40} {ran:6} {lines:6} {100 * ran / lines if lines else 100:6.1f} %")


def total(some):
    return [sum(numbers) for numbers in zip(*some)]


def main(path, *folders):
    files = {name: n for name, n in counts(path).items() if n[1]}
    if not files:
        sys.exit(f"{path}: no line was counted")
    by_folder = {}
    for name, n in sorted(files.items()):
        by_folder.setdefault(str(pathlib.Path(name).parent), []).append((name, n))
    print(f"{'':40} {'ran':>6} {'lines':>6}")
    for folder in folders:
        for name, n in by_folder.get(folder, []):
            row(name, *n)
    for folder, some in by_folder.items():
        row(f"{folder}/", *total(n for _, n in some))
    row("these folders" if len(folders) > 1 else folders[0], *total(n for f in folders for _, n in by_folder.get(f, [("", [0, 0])])))
    row("all", *total(files.values()))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__.split("\n\n")[1])
    main(*sys.argv[1:])
