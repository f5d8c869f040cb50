#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Give the installed libgx.a the visible names of libgx.so: the functions of the public headers, and no others.

usage: archive.py LIBDIR CC...        an install script of meson: LIBDIR is relative to the prefix

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


def has_code(obj):
    """Has it machine code, not only input of link-time optimisation? (nm would ask the compiler's plugin.)"""
    words = [line.split() for line in out("readelf", "--syms", "--wide", obj).splitlines()]
    return any(len(w) == 8 and w[3] == "FUNC" and w[6] != "UND" and w[7] == "gx_open" for w in words)


def one_object(cc, archive, obj):
    all_of_it = ["-Wl,--whole-archive", archive, "-Wl,--no-whole-archive"]
    out("ld", "-r", "--whole-archive", archive, "-o", obj)
    if not has_code(obj):
        out(*cc, "-r", "-nostdlib", "-O2", "-flinker-output=nolto-rel", *all_of_it, "-o", obj)
    if not has_code(obj):
        sys.exit(f"{archive}: cannot make one object of it")


def main(libdir, cc):
    archive = pathlib.Path(os.environ["MESON_INSTALL_DESTDIR_PREFIX"], libdir, "libgx.a")
    if os.environ.get("MESON_INSTALL_DRY_RUN") or not archive.is_file():
        return
    with tempfile.TemporaryDirectory() as tmp:
        obj = pathlib.Path(tmp, "gx.o")
        one_object(cc, archive, obj)
        out("objcopy", "--localize-hidden", "--wildcard", "--remove-section=.gnu.lto_*", "--remove-section=.gnu.debuglto_*", obj)
        archive.unlink()
        out("ar", "rcsD", archive, obj)


main(sys.argv[1], sys.argv[2:])
