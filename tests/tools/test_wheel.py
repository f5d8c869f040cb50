#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python wheel of `./run wheel`: its tag, what its binaries need, and that it runs in each Python from 3.11 on that is here.
Exit status 77 without PyPI, which has the tools that make it.

usage: test_wheel.py SOURCE
Environment: GX_TEST_WHEEL=FILE takes a wheel that is built; GX_TEST_PYTHONS: interpreters, instead of python3.11 and later in PATH.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

TAG = r"gx_dataplane-\d+\.\d+\.\d+-cp311-abi3-manylinux_2_\d+_(x86_64|aarch64)\.whl"
# What a host with that C library has: all else is inside.
HOST = re.compile(r"(libc|libm|libdl|libpthread|librt|libgcc_s|libstdc\+\+|ld-linux-x86-64|ld-linux-aarch64)\.so\.\d+")
INSIDE = ("libisal", "liburing", "libmnl", "libIPSec_MB", "libcrypto", "libssl")
USE = """
import ctypes, gx
assert gx.nccl_plugin(), "NCCL's plugin is not found"
ctypes.CDLL(gx.nccl_plugin())
with gx.Context() as far, gx.Context() as near:
    pages = far.alloc(1 << 20)
    conn = near.connect(f"127.0.0.1:{far.listen('127.0.0.1:0')}")
    conn.put(b"moved" * 1000, conn.region(pages.key()), 7).wait(20)
    assert bytes(memoryview(pages)[7:5007]) == b"moved" * 1000
"""
PLUGIN = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).nixl_plugin_init"


def sh(*words, **more):
    ran = subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=more.pop("timeout", 300), **more)
    if ran.returncode:
        sys.exit(f"{' '.join(map(str, words))}: exit status {ran.returncode}\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    return ran.stdout


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def wheel_made(source):
    if os.environ.get("GX_TEST_WHEEL"):
        return pathlib.Path(os.environ["GX_TEST_WHEEL"]).resolve()
    with tempfile.TemporaryDirectory() as tmp:
        if subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", tmp, "auditwheel"], capture_output=True).returncode:
            skip("PyPI cannot be reached")
    sh(source / "run", "wheel", timeout=2400, env=dict(os.environ, GX_NO_NVCC="1"))
    return next((source / "build-wheel").glob("*.whl"))


def binaries(room):
    """Each needs what the host has, and what is inside. Return: their number."""
    found = [p for p in room.rglob("*") if p.is_file() and p.read_bytes()[:4] == b"\x7fELF"]
    names = {p.name for p in found}
    for path in found:
        for need in re.findall(r"NEEDED.*\[(.*)\]", sh("readelf", "-d", path)):
            if need not in names and not HOST.fullmatch(need):
                sys.exit(f"{path.name} needs {need}, which is not in the wheel")
    texts = {p.name for p in room.rglob("licenses/*") if p.stat().st_size > 100}
    if not {"LICENSE", "libisal2.txt", "libssl3.txt", "liburing2.txt", "libmnl0.txt", "libipsec-mb1.txt", "libjansson4.txt", "libseccomp2.txt"} <= texts:
        sys.exit(f"of the licences there are {sorted(texts)}")
    missing = [n for n in INSIDE if not any(f.startswith(n) for f in names)]
    if missing:
        sys.exit(f"the wheel lacks {missing}")
    return len(found)


def nixl_installed(python, room):
    """The plugin is linked into a folder of NIXL, and is loaded from there with its libraries; and goes again."""
    folder = room / ".nixl_cu13.mesonpy.libs/plugins"
    for path, text in ((folder / "x", ""), (room / "nixl_cu13/__init__.py", ""),
                       (room / "nixl_cu13-1.5.1.dist-info/METADATA", "Metadata-Version: 2.1\nName: nixl-cu13\nVersion: 1.5.1\n")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    env = {**os.environ, "PYTHONPATH": str(room)}
    sh(python, python.parent / "gx-nixl-install", env=env)
    sh(python, "-c", PLUGIN, folder / "libplugin_GX.so")
    sh(python, python.parent / "gx-nixl-install", "--remove", env=env)
    left = [p for p in room.rglob("*") if p.is_symlink()]
    if left:
        sys.exit(f"gx-nixl-install --remove leaves {left}")


def tried(python, wheel, room):
    version = sh(python, "-c", "import sys; print(sys.version.split()[0])").strip()
    sh(python, "-m", "venv", room / "venv")
    own = room / "venv/bin/python3"
    sh(own, "-m", "pip", "install", "-q", "--no-index", "--disable-pip-version-check", wheel)
    sh(own, "-c", USE)
    sh(own, "-m", "gx", "demo")
    sh(own.parent / "gxperf", "--version")
    sh(own.parent / "gxd", "--version")
    nixl_installed(own, room / "nixl")
    return version


def main(source):
    pythons = os.environ.get("GX_TEST_PYTHONS", "").split() or [p for p in map(shutil.which, (f"python3.{n}" for n in range(11, 20))) if p]
    if not pythons:
        skip("no python3.11 or newer in PATH")
    wheel = wheel_made(pathlib.Path(source).resolve())
    if not re.fullmatch(TAG, wheel.name):
        sys.exit(f"the wheel is called {wheel.name}")
    with tempfile.TemporaryDirectory() as tmp:
        with zipfile.ZipFile(wheel) as z:
            z.extractall(pathlib.Path(tmp) / "wheel")
        print(f"{wheel.name}: {wheel.stat().st_size >> 10} KiB, {binaries(pathlib.Path(tmp) / 'wheel')} binaries", flush=True)
        for i, python in enumerate(pythons):
            room = pathlib.Path(tmp) / str(i)
            room.mkdir()
            print(f"runs in Python {tried(python, wheel, room)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
