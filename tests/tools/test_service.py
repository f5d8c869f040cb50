#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What systemd says of gxd@.service: that it reads all of it, and how much the service is exposed.

usage: test_service.py BUILD_DIR     Exit status 77 where systemd-analyze is missing.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

EXPOSURE_MAX = 30  # in tenths, as --threshold takes it


def analyze(*args):
    ran = subprocess.run(["systemd-analyze", *map(str, args)], capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def main(build):
    if not shutil.which("systemd-analyze"):
        print("systemd-analyze is not installed")
        return 77
    build = pathlib.Path(build).resolve()
    with tempfile.TemporaryDirectory() as where:
        unit = pathlib.Path(where) / "gxd@.service"
        # The program that is installed later is the one that is built.
        text = re.sub(r"^ExecStart=\S+", f"ExecStart={build}/tools/gxd", (build / "tools/gxd@.service").read_text(), flags=re.M)
        unit.write_text(text)
        rc, said = analyze("verify", unit)
        # Other units of the host are read, too, and are not ours.
        said = [line for line in said.splitlines() if "gxd@" in line]
        if rc or said:
            print("verify:", rc, *said, sep="\n")
            return 1
        rc, said = analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", unit)
        print(said.strip().splitlines()[-1])
        return 1 if rc else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
