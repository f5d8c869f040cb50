#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two builds of the same sources, in two folders, with another umask, time zone, language and user's name, install equal bytes.

usage: test_reproducible.py SOURCE [OPTION of meson...]
GPU kernels are not built unless an option says so (-Dcuda=enabled -Dnvcc=PATH): the files that then differ are named, and are no
failure, because nvcc is NVIDIA's.
"""
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

# What ships (./run build), by name.
OPTIONS = ["-Dbuildtype=release", "-Db_ndebug=true", "-Db_lto=true", "-Dc_args=-g", "-Dtests=disabled"]
MADE = ("build", ".git", ".ccache")
PLACES = (("a", "UTC", "C", "022", "one"), ("a folder/of-a-longer-name", "Asia/Tokyo", "C.UTF-8", "077", "two"))


def out(*args, **more):
    p = subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=1800, check=False, **more)
    if p.returncode:
        sys.exit(f"{' '.join(map(str, args))}\n{p.stdout[-4000:]}{p.stderr[-4000:]}exit status {p.returncode}")


def built(where, options, zone, language, mask, user):
    """{file: SHA-256} of what one build installs."""
    env = dict(os.environ, SOURCE_DATE_EPOCH="1700000000", TZ=zone, LC_ALL=language, USER=user, LOGNAME=user, CCACHE_DISABLE="1", DESTDIR=str(where / "to"),
               GIT_CEILING_DIRECTORIES=str(where.parent.parent))
    shell = ["sh", "-c", f'umask {mask} && exec "$@"', "sh"]
    out(*shell, "meson", "setup", "build", "--prefix=/usr", *OPTIONS, *options, cwd=where / "src", env=env)
    out(*shell, "ninja", "-C", "build", cwd=where / "src", env=env)
    out(*shell, "meson", "install", "-C", "build", "--no-rebuild", "--quiet", cwd=where / "src", env=env)
    return {str(f.relative_to(where / "to")): hashlib.sha256(f.read_bytes()).hexdigest() for f in (where / "to").rglob("*")
            if f.is_file() and not f.is_symlink()}


def main(source, *options):
    source = pathlib.Path(source).resolve()
    cuda = any(o.startswith("-Dcuda=") for o in options)
    options = list(options) + ([] if cuda else ["-Dcuda=disabled"])
    with tempfile.TemporaryDirectory() as tmp:
        for name, *_ in PLACES:  # both at once: the sources may change meanwhile
            shutil.copytree(source, pathlib.Path(tmp) / name / "src",
                            ignore=lambda folder, names: [n for n in names if n.startswith(MADE)] if folder == str(source) else [])
        made = [built(pathlib.Path(tmp) / name, options, *more) for name, *more in PLACES]
        differ = sorted(f for f in set(made[0]) | set(made[1]) if made[0].get(f) != made[1].get(f))
        keep = os.environ.get("GX_TEST_KEEP")
        if keep:
            shutil.copytree(tmp, keep, dirs_exist_ok=True)
    print(*(f"differs: {f}" for f in differ), f"{len(made[0])} files, {len(differ)} differ", sep="\n")
    return 1 if not made[0] or (differ and not cuda) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
