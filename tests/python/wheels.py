# SPDX-License-Identifier: Apache-2.0
"""A Python with wheels from PyPI, in a build folder, for tests of what others make."""
import subprocess
import sys


def skip(why):
    print(why)
    sys.exit(77)


def python_with(folder, packages, *options):
    """Make it once, and return its path; where the wheels cannot be had, the test ends with 77."""
    python = folder / "bin" / "python3"
    if not (folder / "complete").exists():
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True, timeout=120, capture_output=True)
            subprocess.run([python, "-m", "pip", "install", "-q", *options, "--retries", "0", "--timeout", "20", *packages], check=True,
                           timeout=300, capture_output=True)
        except (subprocess.SubprocessError, OSError) as e:
            said = (getattr(e, "stderr", None) or str(e).encode()).decode(errors="replace").strip().splitlines()
            skip(f"{packages[0]} cannot be had: {said[-1] if said else e}")
        (folder / "complete").touch()
    return python
