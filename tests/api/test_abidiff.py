#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The library beside that of the frozen headers (tests/api/abi), as abidiff of libabigail sees both: what programs of before call
is there, and takes what it took, unless the SONAME has moved.

usage: test_abidiff.py BUILD SOURCE     Exit status 77 where abidiff is missing.

The library of before is made here: from the frozen headers, each call with an empty body, so that it has their types. What
is inside of structs that no header shows is nobody's matter.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

INCOMPATIBLE, FAILED = 8, 3  # bits of abidiff's exit status
ARGUMENTS = re.compile(r"parameter \d+ .*was (added|removed)|return type changed")
CALL = re.compile(r"^((?:const |struct |unsigned |enum )*\w+ \**gx_\w+\([^;{]*\));", re.M)


def out(*args):
    p = subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=300, check=False)
    if p.returncode:
        sys.exit(f"{' '.join(str(a) for a in args)}\n{p.stdout}{p.stderr}exit status {p.returncode}")
    return p.stdout


def stub(where, headers, soname, change=lambda text: text):
    """A library that has all calls of the headers, and does nothing."""
    folder = where / "gx"
    folder.mkdir(parents=True)
    calls = ""
    for header in sorted(headers.glob("*.h")):
        text = change(header.read_text())
        (folder / header.name).write_text(text)
        bare = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
        calls += f'#include "gx/{header.name}"\n' + "".join(f"{call}\n{{\n\t__builtin_trap();\n}}\n" for call in CALL.findall(bare))
    (where / "stub.c").write_text(calls)
    out("cc", "-std=gnu11", "-g", "-w", "-shared", "-fPIC", f"-I{where}", f"-Wl,-soname,{soname}", where / "stub.c", "-o", where / "libgx.so")
    return where / "libgx.so", folder


def abidiff(old, new):
    """(may programs of @old run with @new?, what has changed) of two (library, headers)."""
    p = subprocess.run(["abidiff", "--drop-private-types", "--no-added-syms", "--hd1", str(old[1]), "--hd2", str(new[1]), str(old[0]), str(new[0])],
                       capture_output=True, text=True, timeout=300, check=False)
    if p.returncode & FAILED:
        sys.exit(f"abidiff: {p.stdout}{p.stderr}exit status {p.returncode}")
    return not p.returncode & INCOMPATIBLE and not ARGUMENTS.search(p.stdout), p.stdout


def soname(library):
    return re.search(r"SONAME.*\[(.*)\]", out("readelf", "-d", library))[1]


def bites(where, frozen, old):
    """A call that is gone or takes another argument is seen; one that is new is nothing."""
    for name, change, good in (
            ("same", lambda t: t, True),
            ("gone", lambda t: t.replace("int gx_key_withdraw(struct gx *gx, const struct gx_key *key);", ""), False),
            ("new", lambda t: t.replace("int gx_key_withdraw(", "int gx_later(int a);\nint gx_key_withdraw("), True),
            ("longer", lambda t: t.replace("int gx_listen(struct gx *gx, const char *addr);", "int gx_listen(struct gx *gx, const char *addr, int n);"), False),
            ("other", lambda t: t.replace("int gx_listen(struct gx *gx,", "struct gx *gx_listen(struct gx *gx,"), False)):
        if abidiff(old, stub(where / name, frozen, "libgx.so.1", change))[0] != good:
            sys.exit(f"abidiff says of a library in which a call is {name}: {not good}")


def main(build, source):
    build, source = pathlib.Path(build).resolve(), pathlib.Path(source).resolve()
    if not shutil.which("abidiff"):
        print("abidiff is not installed")
        return 77
    version, frozen = max(([int(n) for n in f.name.split(".")], f / "gx") for f in (source / "tests/api/abi").iterdir() if f.is_dir())
    version = ".".join(map(str, version))
    with tempfile.TemporaryDirectory() as tmp:
        where = pathlib.Path(tmp)
        old = stub(where / "old", frozen, "libgx.so.1")
        bites(where, frozen, old)
        new = build / "libgx.so", source / "include/gx"
        good, said = abidiff(old, new)
        print(f"{said}libgx of {version}: {soname(old[0])}; this one: {soname(new[0])}: {'compatible' if good else 'not compatible'}")
        return 0 if good or soname(old[0]) != soname(new[0]) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
