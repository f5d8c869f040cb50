#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs of other versions on this library: tests/api/abi/program.c, built with other headers, runs on libgx.so.

usage: test_abi.py BUILD SOURCE [FLAGS of the build: sanitizers]

- 0.2: the headers of version 0.2 (tests/api/abi/0.2). Their structs and enumerators must also be the beginning of today's;
  those of structs without a size all of today's. The promise to keep them begins at 1.0: see docs/architecture/api.md.
- older: today's headers, each struct that has a size without its last field.
- newer: today's headers, each struct that has a size with one more field. Zero there is fine, and else the call says so.
Also: the name of the library that programs ask for (SONAME).
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

BUILD, SOURCE, FLAGS = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve(), sys.argv[3:]
ABI = SOURCE / "tests" / "api" / "abi"
FROZEN = ABI / "0.2"
HEADERS = ("gx.h", "auth.h", "op.h", "opts.h", "coll.h", "engine.h", "listen.h", "nic.h")
STRUCT = re.compile(r"^struct (gx_\w+) \{\n(.*?)^\};", re.S | re.M)
ENUM = re.compile(r"^enum (gx_\w+) \{(.*?)\};", re.S | re.M)


def out(*args, **more):
    p = subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=300, **more)
    if p.returncode:
        sys.exit(f"{' '.join(str(a) for a in args)}\n{p.stdout}{p.stderr}exit status {p.returncode}")
    return p.stdout


def bare(text):
    """Without comments, and each run of blanks as one."""
    return re.sub(r"\s+", " ", re.sub(r"/\*.*?\*/", "", text, flags=re.S)).strip()


def parts(text, mark):
    return [p.strip() for p in bare(text).split(mark) if p.strip()]


def header(folder, name):
    return (folder / "gx" / name).read_text()


def fields(text):
    """{struct: [declaration]}; not those of C++."""
    return {m[1]: parts(m[2], ";") for m in STRUCT.finditer(text) if m[1] != "gx_init"}


def enumerators(text):
    return {m[1]: parts(m[2], ",") for m in ENUM.finditer(text)}


def is_sized(declarations):
    return declarations[0] == "size_t size"


def compare(frozen, today):
    """[what has changed that programs of the frozen version cannot bear]"""
    bad = []
    for name, old in fields(frozen).items():
        new = fields(today).get(name, [])
        if new[:len(old)] != old:
            bad.append(f"struct {name} no longer begins with the fields that it had")
        elif not is_sized(old) and new != old:
            bad.append(f"struct {name} has no size, and has changed")
    for name, old in enumerators(frozen).items():
        if enumerators(today).get(name, [])[:len(old)] != old:
            bad.append(f"enum {name} no longer begins with the enumerators that it had")
    return bad


def compare_bites():
    old = "struct gx_a {\n\tsize_t size;\n\tint x; /* y */\n};\nstruct gx_b {\n\tint x;\n};\nenum gx_e { GX_1, GX_2 };\n"
    cases = ((old, 0), (old.replace("\tint x; /* y */", "\tint x;\n\tint z;"), 0), (old.replace("GX_2", "GX_2, GX_3"), 0),
             (old.replace("\tint x; /* y */", "\tint z;\n\tint x;"), 1), (old.replace("{\n\tint x;", "{\n\tint x;\n\tint z;"), 1),
             (old.replace("GX_1, ", ""), 1), (old.replace("gx_a", "gx_c"), 1))
    for today, expected in cases:
        if len(compare(old, today)) != expected:
            sys.exit(f"the comparison finds {compare(old, today)} in {today}")


def changed(text, newer):
    """The header with one field more, or less, in each struct that has a size."""
    def one(match):
        declarations = parts(match[2], ";")
        if match[1] == "gx_init" or not is_sized(declarations):
            return match[0]
        declarations = declarations + ["uint64_t later"] if newer else declarations[:-1]
        return f"struct {match[1]} {{\n" + "".join(f"\t{d};\n" for d in declarations) + "};"
    return STRUCT.sub(one, text)


def run(where, name, include, *flags):
    exe = where / name
    # The library's build has its own flags; a program of another version is plain C.
    out("cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", *FLAGS, *flags, f"-I{include}", ABI / "program.c",
        "-o", exe, f"-L{BUILD}", "-l:libgx.so", f"-Wl,-rpath,{BUILD}")
    print(f"{name}: {out(exe).strip()}", flush=True)


def main():
    compare_bites()
    bad = [b for h in HEADERS for b in compare(header(FROZEN, h), header(SOURCE / "include", h))]
    if bad:
        sys.exit("\n".join(bad) + "\nNo program of version 0.2 bears that. Until 1.0 it may be so: make the same change in "
                 "tests/api/abi/0.2, and raise the version with the next release")
    soname = re.search(r"SONAME.*\[(.*)\]", out("readelf", "-d", BUILD / "libgx.so"))
    if not soname or soname[1] != "libgx.so.1":
        sys.exit(f"programs of version 0 ask for libgx.so.1; this library is {soname and soname[1]}")
    with tempfile.TemporaryDirectory() as tmp:
        where = pathlib.Path(tmp)
        run(where, "0.2", FROZEN)
        for name in ("older", "newer"):
            folder = where / f"{name}-include" / "gx"
            folder.mkdir(parents=True)
            for h in HEADERS:
                (folder / h).write_text(changed(header(SOURCE / "include", h), name == "newer"))
            run(where, name, folder.parent, "-DLATER" if name == "newer" else "-DOLDER")


main()
