#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Completion, by the shells themselves in a terminal: bash, and zsh where it is installed.

usage: test_completion.py BUILD_DIR SOURCE_DIR     Exit status 77 where bash is missing.
"""
import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time

WAIT_S = 20
PROMPT = "go> "
# What is typed before a tab, and what the line is then.
TYPED = (
    ("gxd keyg", "gxd keygen "),
    ("gxperf allg", "gxperf allgather "),
    ("gxperf put --local-m", "gxperf put --local-mem"),
    ("gxd keygen --under", "gxd keygen --under-way"),
    ("gxperf put --link ver", "gxperf put --link verbs"),
    ("gxperf put --link=loc", "gxperf put --link=local"),
    ("gxperf put 127.0.0.1:1 --json only_th", "gxperf put 127.0.0.1:1 --json only_this.json"),
    ("gxperf plot only_th", "gxperf plot only_this.json"),
    ("gxd --log-level war", "gxd --log-level warn"),
)


class Shell:
    """A shell in a terminal of its own. Ends with the object's close()."""

    def __init__(self, args, env, cwd):
        self.pid, self.fd = pty.fork()
        if not self.pid:
            os.chdir(cwd)
            os.execvpe(args[0], args, env)
        self.text = ""

    def until(self, what):
        end = time.monotonic() + WAIT_S
        while not re.search(what, self.text):
            ready = select.select([self.fd], [], [], max(0, end - time.monotonic()))[0]
            if not ready:
                return False
            try:
                self.text += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|\x07|\r", "", os.read(self.fd, 4096).decode(errors="replace"))
            except OSError:
                return False
        return True

    def type(self, text):
        self.text = ""
        os.write(self.fd, text.encode())

    def close(self):
        os.write(self.fd, b"\x03\nexit\n")
        os.close(self.fd)
        os.waitpid(self.pid, 0)


def lines_completed(name, args, env, cwd, setup):
    """How many of TYPED go wrong in this shell."""
    shell, failed = Shell(args, env, cwd), 0
    shell.type(setup + "; echo is-$((6*7))-ready\n")
    if not shell.until("is-42-ready"):
        print(f"{name} does not start: {shell.text!r}")
        return 1
    for typed, line in TYPED:
        shell.type(f"\x15: {typed[0]} ; echo end-$((6*7)) \n")  # the line is empty, and the prompt is there
        good = shell.until(r"end-42[\s\S]*" + PROMPT)
        shell.type(typed)
        good = good and shell.until(re.escape(typed))
        os.write(shell.fd, b"\t")
        if not good or not shell.until(re.escape(line)):
            print(f"{name}: {typed!r} and a tab: {shell.text!r}, not the end of {line!r}")
            failed += 1
    shell.close()
    return failed


def all_offered(program, script):
    """bash offers all that the program has: by the function that it calls."""
    failed = 0
    table = [line.split("\t") for line in subprocess.run([program, "--complete"], capture_output=True, text=True, check=True).stdout.splitlines()]
    for command in [fields[1] for fields in table if fields[0] == "command"]:
        words = [program] + ([command] if command else []) + ["-"]
        asked = f'. {script}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _gx "$1" "${{@: -1}}"; printf "%s\\n" "${{COMPREPLY[@]}}"'
        said = subprocess.run(["bash", "-c", asked, "bash", *words], capture_output=True, text=True, check=True).stdout.split()
        there = [f"--{f[3]}" if f[3] else f"-{f[4]}" for f in table if f[0] == "option" and f[1] == command]
        if sorted(said) != sorted(there):
            print(f"{words}: {sorted(set(said) ^ set(there))} are offered and not there, or the reverse")
            failed += 1
    return failed


def main(build, source):
    build, folder = pathlib.Path(build).resolve(), pathlib.Path(source).resolve() / "tools/completion"
    if not shutil.which("bash"):
        print("bash is not installed")
        return 77
    failed = sum(all_offered(str(build / "tools" / program), folder / "gx.bash") for program in ("gxd", "gxperf"))
    with tempfile.TemporaryDirectory() as where:
        (pathlib.Path(where) / "only_this.json").touch()
        env = dict(os.environ, PATH=f"{build}/tools:{os.environ['PATH']}", TERM="dumb", HOME=where, PS1=PROMPT, INPUTRC="/dev/null", COLUMNS="200")
        failed += lines_completed("bash", ["bash", "--norc", "--noprofile", "-i"], env, where,
                                  f"bind 'set enable-bracketed-paste off'; stty cols 200; . {folder}/gx.bash")
        shells = ["bash"]
        if shutil.which("zsh"):
            shells.append("zsh")
            failed += lines_completed("zsh", ["zsh", "-f", "-i"], env, where,
                                      f"stty cols 200; unsetopt zle_bracketed_paste; fpath=({folder} $fpath); autoload -U compinit; compinit -u -D")
    print(f"{len(TYPED)} lines in {' and '.join(shells)}: {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
