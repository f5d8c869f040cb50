#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What clang-tidy finds in the product's sources, with the checks of .clang-tidy.

usage: test_tidy.py BUILD [FILE...]     BUILD: a build folder of meson's; FILE: a source; default: all of the product

Version 14 of clang-tidy, as versions find different things. The flags are those of the build. First some checks are shown a
line that they must find. A file that passed is not read again until it, a header of it, its command, the checks or the tool
change: BUILD/tidy-passed.json has the digests. Without FILE, that is. Exit status: 0; 1 when something was found; 77 when there is no clang-tidy 14.
"""
import functools
import hashlib
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


@functools.lru_cache(maxsize=None)
def content(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).digest()


def headers(build):
    """{object: files that its compiler read}, of those that ninja has built."""
    out, of_it = {}, None
    for line in subprocess.run(["ninja", "-t", "deps"], cwd=build, capture_output=True, text=True).stdout.splitlines():
        if line.startswith("    "):
            of_it.append(line.strip())
        elif line.endswith("(VALID)"):
            of_it = out.setdefault(line.split(":")[0], [])
        else:
            of_it = []
    return out


def digests(tool, build, known):
    """{source: what all that the linter reads of it comes to}; a source that is not built has none."""
    version = subprocess.run([tool, "--version"], capture_output=True, text=True).stdout
    common = [version.encode(), content(TOP / ".clang-tidy"), content(__file__)]
    reads, out = headers(build), {}
    for name, entry in known.items():
        if entry["output"] in reads:
            key = hashlib.sha256(b"".join([*common, entry["command"].encode()]))
            for path in sorted({entry["file"], *reads[entry["output"]]}):
                key.update(path.encode() + content(build / path))
            out[name] = key.hexdigest()
    return out


def passed_read(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


def passed_write(path, passed):
    """Whole or not at all: two runs may end at a time."""
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(passed, indent=0, sort_keys=True))
    part.replace(path)


def linter_run(tool, database, files, clean=None):
    """All that it says, without its counts; @clean takes the files about which it said nothing. gcc's warnings count, not clang's."""
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
            if clean is not None and not ran.returncode and not ran.stdout.strip():
                clean.extend(part)

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
    build, files = pathlib.Path(args[0]), args[1:]
    known, notes = commands(build), build / "tidy-passed.json"
    digest, passed, clean = ({} if files else digests(tool, build, known)), passed_read(notes), []
    todo = files or [name for name in sorted(known) if name not in digest or passed.get(name) != digest[name]]
    with tempfile.TemporaryDirectory() as tmp:
        blunt = bites(tool, tmp)
        pathlib.Path(tmp, "compile_commands.json").write_text(json.dumps(list(known.values())))
        said = linter_run(tool, tmp, [str(TOP / f) for f in todo], clean)
    if not files and not blunt:
        clean = {pathlib.Path(f).relative_to(TOP).as_posix() for f in clean} | (set(known) - set(todo))
        passed_write(notes, {name: digest[name] for name in clean if name in digest})
    for name in blunt:
        print(f"check that does not bite: {name}")
    print(said, end="")
    found = len(set(re.findall(r"^.*\berror: .*$", said, re.M)))
    print(f"{len(files or known)} files, {len(todo)} of them read now, {found + len(blunt)} failures")
    return 1 if found or blunt or not (files or known) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
