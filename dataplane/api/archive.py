#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Give the installed libgx.a the visible names of libgx.so: the functions of the public headers, and no others.

usage: archive.py LIBDIR        an install script of meson: LIBDIR is relative to the prefix

Hidden visibility has no effect in an archive: a program with its own function list_push would not link. So the script links
all objects into one, which resolves their references to one another, and makes the hidden names local.
"""
import os
import pathlib
import subprocess
import sys
import tempfile


def out(*args):
    return subprocess.run([str(a) for a in args], check=True, capture_output=True, text=True).stdout


def main(libdir):
    archive = pathlib.Path(os.environ["MESON_INSTALL_DESTDIR_PREFIX"], libdir, "libgx.a")
    if os.environ.get("MESON_INSTALL_DRY_RUN") or not archive.is_file():
        return
    with tempfile.TemporaryDirectory() as tmp:
        obj = pathlib.Path(tmp, "gx.o")
        out("ld", "-r", "--whole-archive", archive, "-o", obj)
        if " gx_open\n" not in out("readelf", "--syms", "--wide", obj):
            sys.exit(f"{archive} has no machine code")
        out("objcopy", "--localize-hidden", obj)
        archive.unlink()
        out("ar", "rcsD", archive, obj)


main(sys.argv[1])
