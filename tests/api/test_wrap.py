#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A project of meson that has gx as a subproject, by a wrap file, builds the program of the documentation.

usage: test_wrap.py SOURCE
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile

PROJECT = """
project('outside', 'c')
executable('outside', 'example.c', dependencies: dependency('gx', fallback: ['gx', 'gx_dep']))
"""
# As docs/install.md has it, but that the folder is there.
WRAP = "[wrap-git]\nurl = https://invalid/gx.git\nrevision = v0.2.0\ndepth = 1\n\n[provide]\ngx = gx_dep\n"
LESS = ("dpdk", "verbs", "cuda", "mnl", "ipsec_mb")  # what takes time, or packages


def out(*args):
    p = subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=900, check=False)
    if p.returncode:
        sys.exit(f"{' '.join(map(str, args))}\n{p.stdout[-4000:]}{p.stderr}exit status {p.returncode}")
    return p.stdout


def main(source):
    source = pathlib.Path(source).resolve()
    with tempfile.TemporaryDirectory() as tmp:
        where = pathlib.Path(tmp)
        (where / "subprojects").mkdir()
        (where / "subprojects/gx").symlink_to(source)
        (where / "subprojects/gx.wrap").write_text(WRAP)
        (where / "meson.build").write_text(PROJECT)
        shutil.copy(source / "docs/example.c", where)
        out("meson", "setup", where / "build", where, "-Dbuildtype=plain", *(f"-Dgx:{part}=disabled" for part in LESS))
        out("meson", "compile", "-C", where / "build", "outside")
        ran = subprocess.run([where / "build/outside"], capture_output=True, text=True, timeout=60, check=False)
        if ran.returncode != 2 or "usage" not in ran.stderr:
            sys.exit(f"it does not run: {ran}")
    print("as a subproject: docs/example.c links and starts")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
