#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The man pages as a reader has them: each is well-formed, and has all options that the program's help has, and no other.

usage: test_man.py BUILD_DIR     Exit status 77 where mandoc or the pages are missing.
"""
import pathlib
import re
import shutil
import subprocess
import sys

SECTION = {"gxd": 8, "gxperf": 1}


def out(*args, ok=(0,)):
    ran = subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=60, check=False)
    if ran.returncode not in ok:
        sys.exit(f"{args}: exit status {ran.returncode}\n{ran.stdout}{ran.stderr}")
    return ran.stdout


def in_help(text):
    """{name: value} of the options of a help text, of argp or of argparse: "  -s, --size=SIZE   ..."."""
    found = {}
    for line in re.findall(r"^ {2,6}(-[^ ].*)$", text, re.M):
        names = re.split(r" {2,}", line)[0]
        for name, value in re.findall(r"(?:^|, )(--?[\w?-]+)(?:\[?[= ]([^ \],]*[^ ]*))?", names):
            found[name] = value.rstrip(",")
    return found


def in_page(text):
    """The same of a page that is printed for a terminal."""
    found = {}
    for line in re.findall(r"^ {5,8}(-[^ ].*)$", text, re.M):
        for name, value in re.findall(r"(?:^|, )(--?[\w?-]+)(?: ([^ ]+))?", line):
            found[name] = value.rstrip(",")
    return found


def differences(helped, paged):
    """What one has and the other has not. A short name's value may stand at the long one alone."""
    said = [f"{n} is missing" for n in sorted(set(helped) - set(paged))] + [f"{n} is none" for n in sorted(set(paged) - set(helped))]
    values = {v for v in helped.values() if v}
    return said + [f"{n} has the value {v}" for n, v in paged.items() if v and v not in values]


def bites():
    """Each kind of mistake is seen."""
    helped = in_help("  -s, --size=SIZE            Bytes\n      --no-huge              Not\n")
    assert helped == {"-s": "", "--size": "SIZE", "--no-huge": ""}, helped
    right = "       -s, --size SIZE\n           Bytes\n\n       --no-huge\n           Not\n"
    assert not differences(helped, in_page(right))
    for wrong in (right.replace("--no-huge", "--no-hue"), right.replace("-s, ", ""), right.replace("SIZE", "N"), right + "       --more\n"):
        assert differences(helped, in_page(wrong)), wrong


def main(build):
    build = pathlib.Path(build).resolve()
    pages = build / "tools/man"
    bites()
    if not shutil.which("mandoc") or not pages.is_dir():
        print("mandoc is not installed" if pages.is_dir() else "no man pages: scdoc is missing, or sanitizers are there")
        return 77
    found = sorted(pages.glob("man*/*"))
    said = "".join(out("mandoc", "-T", "lint", page, ok=(0, 1, 2, 3, 4, 5)) for page in found)
    wrong = said.splitlines()
    seen = {pages / "man3/gx.3", pages / "man7/gx-wire.7"}
    options = 0
    for program, section in SECTION.items():
        exe = build / "tools" / program
        commands = [line.split("\t")[1] for line in out(exe, "--complete").splitlines() if line.startswith("command\t")]
        for command in commands:
            name = f"{program}-{command}" if command else program
            page = pages / f"man{section}/{name}.{section}"
            seen.add(page)
            helped = in_help(out(exe, *([command] if command else []), "--help-all"))
            options += len(helped)
            text = re.sub(r".\x08", "", out("mandoc", "-T", "ascii", "-O", "width=200", page))
            part = re.split(r"^OPTIONS$", text, flags=re.M)[-1].split("\nEXIT STATUS")[0]
            wrong += [f"{page.name}: {d}" for d in differences(helped, in_page(part))]
    wrong += [f"{page.name}: nobody's" for page in set(found) - seen] + [f"{page.name}: not there" for page in seen - set(found)]
    calls = [w[2] for w in (line.split() for line in out("nm", "-D", "--defined-only", build / "libgx.so").splitlines()) if w[1] == "T"]
    text = re.sub(r".\x08", "", out("mandoc", "-T", "ascii", "-O", "width=200", pages / "man3/gx.3"))
    wrong += [f"gx.3: no {call}()" for call in calls if not re.search(rf"\b{call.split('@')[0]}\(", text)]
    print(*wrong[:40], f"{len(found)} pages, {options} options, {len(calls)} calls: {len(wrong)} failures", sep="\n")
    return 1 if wrong or options < 200 or len(calls) < 80 else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
