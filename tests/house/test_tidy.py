#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What clang-tidy finds in the product's sources, with the checks of .clang-tidy.

usage: test_tidy.py BUILD [FILE...]     BUILD: a build folder of meson's; FILE: a source; default: all of the product

Version 14 of clang-tidy, as versions find different things. The flags are those of the build. First some checks are shown a
line that they must find. Exit status: 0; 1 when something was found; 77 when there is no clang-tidy 14.
"""
import json
import os
import pathlib
import queue
import re
import subprocess
import sys
import tempfile
import threading

from house_clang import clang_tool

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
FOLDERS = ("bindings", "dataplane", "gpu", "poll", "tools")
# It compares a toolkit's header with ours by expressions that gcc alone takes for constant.
LEFT_OUT = {"gpu/cuda_check.c"}
JOBS = os.cpu_count() or 1
FILES_AT_ONCE = 8 # in one process: starting it takes some 50 ms

BAD = """
#include <stdlib.h>
int first(int a)
{
	return a ? first(a - 1) : 0;
}
int second(void)
{
	if (first(1) == 1)
		return 2;
	else
		return 2;
	return system("true");
}
"""
BAD_CHECKS = {"misc-no-recursion", "bugprone-branch-clone", "cert-env33-c"}


def commands(build):
    """{source: command} of the product's C files, each once: tests compile some of them again."""
    out = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["directory"], entry["file"]).resolve()
        if path.is_relative_to(TOP) and path.suffix == ".c":
            name = path.relative_to(TOP).as_posix()
            if name.split("/")[0] in FOLDERS and name not in LEFT_OUT and not entry["output"].startswith("tests/"):
                out.setdefault(name, {**entry, "file": str(path), "command": re.sub(r"^\S*ccache\s+", "", entry["command"])})
    return out


def linter_run(tool, database, files):
    """All that it says, without its counts. gcc's warnings count, not clang's."""
    todo, said = queue.Queue(), []
    for i in range(0, len(files), FILES_AT_ONCE):
        todo.put(files[i:i + FILES_AT_ONCE])

    def work():
        while True:
            try:
                part = todo.get_nowait()
            except queue.Empty:
                return
            ran = subprocess.run([tool, "-p", database, "--quiet", f"--config-file={TOP / '.clang-tidy'}",
                                  "--extra-arg=-Wno-everything", *part], cwd=TOP, capture_output=True, text=True)
            if ran.returncode and not ran.stdout.strip():
                said.append(f"{tool} ended with {ran.returncode}: error: {ran.stderr[-2000:]}")
            said.append(ran.stdout)

    workers = [threading.Thread(target=work) for _ in range(JOBS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    # The paths of the build are relative to its folder.
    return re.sub(r"^(\S*/)?\.\./", "", "".join(said).replace(f"{TOP}/", ""), flags=re.M)


def bites(tool, tmp):
    """Checks that do not find what they should."""
    bad = pathlib.Path(tmp, "bad.c")
    bad.write_text(BAD)
    pathlib.Path(tmp, "compile_commands.json").write_text(json.dumps(
        [{"directory": tmp, "file": str(bad), "command": f"cc -std=gnu11 -Wall -Werror -c {bad}"}]))
    found = set(re.findall(r"\[([\w-]+),-warnings-as-errors\]", linter_run(tool, tmp, [str(bad)])))
    return sorted(BAD_CHECKS - found)


def main(args):
    if not args:
        print(__doc__.split("\n\n")[1])
        return 2
    tool = clang_tool("clang-tidy")
    if not tool:
        return 77
    known = commands(pathlib.Path(args[0]))
    files = args[1:] or sorted(known)
    with tempfile.TemporaryDirectory() as tmp:
        blunt = bites(tool, tmp)
        pathlib.Path(tmp, "compile_commands.json").write_text(json.dumps(list(known.values())))
        said = linter_run(tool, tmp, [str(TOP / f) for f in files])
    for name in blunt:
        print(f"check that does not bite: {name}")
    print(said, end="")
    found = len(set(re.findall(r"^.*\berror: .*$", said, re.M)))
    print(f"{len(files)} files, {found + len(blunt)} failures")
    return 1 if found or blunt or not files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
