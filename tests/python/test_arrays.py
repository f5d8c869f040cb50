#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The package gx beside numpy, ml_dtypes and mypy from PyPI: arrays of all types (arrays_cases.py), and what mypy --strict says of the
package, its examples and a misspelt argument; and the example of a transformer. usage: test_arrays.py BUILD SOURCE

The wheels go into BUILD/arrays-wheel, once. GX_TEST_ARRAYS_PYTHON names a Python that has them already, and may have torch.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import wheels

PACKAGES = ["numpy", "ml_dtypes", "mypy"]
EXAMPLES = ["blocks.py", "kv_cache.py", "transformer.py", "weights.py"]  # that of Ray uses arguments that Ray's own types have not
WRONG = {"gx.Context(corse=[])": 'did you mean "cores"?', "gx.Context(copy='cpu')": "has incompatible type", "gx.Context([]).accept('1')": "has incompatible type",
         "gx.Context([]).connect('a:1').put(b'', b'')": 'expected "Region"', "gx.view(4)": 'expected "Iterable', "async def f(g: gx.Context) -> int: return await g.aaccept()": "Incompatible return"}
HERE = pathlib.Path(__file__).resolve().parent


def mypy(python, room, *files):
    done = subprocess.run([python, "-m", "mypy", "--strict", "--python-version", "3.11", "--cache-dir", f"{room}/mypy", *files], capture_output=True, text=True,
                          timeout=240, env={**{k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}, "MYPYPATH": room})
    return done.returncode, done.stdout + done.stderr


def main(args):
    build, source = (pathlib.Path(a).resolve() for a in args)
    python = os.environ.get("GX_TEST_ARRAYS_PYTHON") or wheels.python_with(build / "arrays-wheel", PACKAGES)
    with tempfile.TemporaryDirectory() as room:
        shutil.copytree(source / "bindings/python/gx", f"{room}/gx")
        shutil.copy(build / "bindings/python/_gx.abi3.so", f"{room}/gx")
        status, said = mypy(python, room, f"{room}/gx/__main__.py", *(source / "docs/examples" / name for name in EXAMPLES))
        print(said, end="")
        if status:
            return 1
        for line, words in WRONG.items():
            (wrong := pathlib.Path(room) / "wrong.py").write_text(f"import gx\n{line}\n")
            status, said = mypy(python, room, wrong)
            if status != 1 or words not in said:
                print(f"mypy of {line}: no '{words}' in: {said}")
                return 1
        env = {**os.environ, "PYTHONPATH": room, "OPENBLAS_NUM_THREADS": "1"}
        if subprocess.run([python, HERE / "arrays_cases.py"], env=env, timeout=240).returncode:
            return 1
        for link in ("local", "packet", "tcp"):
            ran = subprocess.run([python, source / "docs/examples/transformer.py", link], env=env, capture_output=True, text=True, timeout=120)
            print(ran.stdout, ran.stderr)
            if ran.returncode or f"by link {link}, " not in ran.stdout or "of them different: as one process writes them" not in ran.stdout:
                return 1
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
