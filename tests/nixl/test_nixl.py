#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The backend GX in NIXL's wheel from PyPI, with processes that NIXL's own Python API drives.

usage: test_nixl.py BUILD [CASE...]

The wheel goes into BUILD/nixl-wheel, once. GX_TEST_NIXL_PYTHON names a Python that has it already. The cases are in nixl_cases.py;
GX_TEST_FULL=1 has them run longer.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

PACKAGES = ["nixl==1.5.1", "nixl-cu13==1.5.1", "numpy"]
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python"))

import wheels  # noqa: E402


def refuses_old(build):
    """A wheel of before NIXL 1.0, as far as the installer looks at it."""
    with tempfile.TemporaryDirectory() as room:
        for file, text in (("nixl_cu13/__init__.py", ""), (".nixl_cu13.mesonpy.libs/plugins/x", ""),
                           ("nixl_cu13-0.10.1.dist-info/METADATA", "Name: nixl-cu13\nVersion: 0.10.1\n")):
            path = pathlib.Path(room) / file
            path.parent.mkdir(parents=True)
            path.write_text(text)
        call = [sys.executable, build / "bindings/nixl/gx-nixl-install", build / "bindings/nixl/libplugin_GX.so"]
        done = subprocess.run(call, env={**os.environ, "PYTHONPATH": room}, capture_output=True, text=True)
        links = list(pathlib.Path(room).glob("*/plugins/*.so"))
    if done.returncode and "0.10.1" in done.stderr and not links:
        return True
    print(f"gx-nixl-install takes NIXL 0.10.1: {done.returncode} {done.stdout} {done.stderr} {links}")
    return False


def main(args):
    if not args:
        print(__doc__.split("\n\n")[1])
        return 2
    build = pathlib.Path(args[0]).resolve()
    python = os.environ.get("GX_TEST_NIXL_PYTHON") or wheels.python_with(build / "nixl-wheel", PACKAGES, "--no-deps")
    plugin = build / "bindings" / "nixl" / "libplugin_GX.so"
    done = subprocess.run([python, build / "bindings" / "nixl" / "gx-nixl-install", plugin], capture_output=True, text=True)
    if done.returncode:
        print(done.stdout + done.stderr)
        return 1
    if not refuses_old(build):
        return 1
    env = {**os.environ, "NIXL_LOG_LEVEL": "FATAL"}
    if (build / "tests/libcuda.so.1").exists():
        env["GX_TEST_NIXL_FAKE"] = str(build / "tests")
    if env.get("GX_TEST_NIXL_PRELOAD"):  # the address sanitizer; what Python itself leaves is not ours
        env |= {"LD_PRELOAD": env["GX_TEST_NIXL_PRELOAD"], "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0"}
    return subprocess.run([python, HERE / "nixl_cases.py", *args[1:]], env=env).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
