#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What systemd says of the units: that it reads all of them, and how much each service is exposed.

usage: test_service.py BUILD_DIR     Exit status 77 where systemd-analyze is missing.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

EXPOSURE_MAX = 30  # in tenths, as --threshold takes it
UNITS = ("gxd@.service", "gxd-metrics.service")


def analyze(*args):
    ran = subprocess.run(["systemd-analyze", *map(str, args)], capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def loads(name, text):
    """What verify does not see: such a list of calls, systemd or gxd cannot load (test_systemd.py starts them)."""
    filters = re.findall(r"^SystemCallFilter=(.*)$", text, re.M)
    number = re.search(r"^SystemCallErrorNumber=(.*)$", text, re.M)[1]
    wrong = [f"{number} is what all other calls get: no word may name it again: {f}" for f in filters if f":{number}" in f]
    if "seccomp" not in " ".join(filters).split():
        wrong.append("gxd calls seccomp(), which is in no group of systemd 252")
    for w in wrong:
        print(f"{name}: {w}")
    return not wrong


def main(build):
    if not shutil.which("systemd-analyze"):
        print("systemd-analyze is not installed")
        return 77
    build = pathlib.Path(build).resolve()
    failed = 0
    for name in UNITS:
        with tempfile.TemporaryDirectory() as where:
            unit = pathlib.Path(where) / name
            # The program that is installed later is the one that is built.
            text = re.sub(r"^ExecStart=\S+", f"ExecStart={build}/tools/gxd", (build / "tools" / name).read_text(), flags=re.M)
            unit.write_text(text)
            rc, said = analyze("verify", "--man=no", unit)
            # Other units of the host are read, too, and are not ours.
            said = [line for line in said.splitlines() if "gxd" in line]
            if rc or said:
                print(f"{name}, verify: {rc}", *said, sep="\n")
                failed = 1
            rc, said = analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", unit)
            print(f"{name}: {said.strip().splitlines()[-1]}")
            failed |= rc != 0
            failed |= not loads(name, text)
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
