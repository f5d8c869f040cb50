#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tensor transport of the package gx in Ray's wheel from PyPI: two actors, and a driver. The cases are in ray_cases.py.

usage: test_ray.py BUILD SOURCE

The wheel goes into BUILD/ray-wheel, once. GX_TEST_RAY_PYTHON names a Python that has Ray and numpy already, and may have torch.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import wheels

PACKAGES = ["ray==2.60.0", "numpy"]
HERE = pathlib.Path(__file__).resolve().parent


def main(args):
    build, source = (pathlib.Path(a).resolve() for a in args)
    python = os.environ.get("GX_TEST_RAY_PYTHON") or wheels.python_with(build / "ray-wheel", PACKAGES)
    with tempfile.TemporaryDirectory() as room:
        shutil.copytree(source / "bindings/python/gx", f"{room}/gx")
        shutil.copy(build / "bindings/python/_gx.abi3.so", f"{room}/gx")
        env = {**os.environ, "PYTHONPATH": room, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "ignore"}
        for program in ([HERE / "ray_cases.py"], [source / "docs/examples/ray_actors.py"]):
            done = subprocess.run([python, *program], env=env, timeout=120, stdin=subprocess.DEVNULL)
            if done.returncode:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
