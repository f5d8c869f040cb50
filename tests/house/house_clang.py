# SPDX-License-Identifier: Apache-2.0
"""clang-format and clang-tidy as test_format.py and test_tidy.py use them: of one version, as versions differ in details."""
import re
import shutil
import subprocess

VERSION = "14"


def clang_tool(name):
    """Path of clang-format or clang-tidy, or None after saying what is missing."""
    for called in (f"{name}-{VERSION}", name):
        path = shutil.which(called)
        if path and re.search(rf"version {VERSION}\.", subprocess.run([path, "--version"], capture_output=True, text=True).stdout):
            return path
    print(f"{name} {VERSION} is not installed (Debian's package: {name}-{VERSION})")
    return None
