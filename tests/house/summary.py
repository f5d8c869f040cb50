#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up meson's test logs; called by ./run tests.

usage: summary.py LOG.json|skip:WHAT...
A log that does not exist or is empty counts as one failure: a pass that did not run must not look like success.
Failures and skips are listed on stderr: a skip with the last line it printed, a failure with how it ended, where its log is
and the last lines of it. The last line on stdout is "N passed, N failed, N skipped"; the exit status is 1 when anything failed
or nothing passed.
"""
import json
import pathlib
import signal
import sys

PASSED = ("OK", "EXPECTEDFAIL")
LINES = 40 # that are shown of each stream of a test that failed
WHY = 16   # and behind each line that begins with FAILED and stands before those


def last_line(test):
    """What a skipped test printed last: by custom the reason."""
    text = (test.get("stdout") or "") + (test.get("stderr") or "")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


def how_ended(test):
    """meson notes a death by signal as a negative number, or as a shell does."""
    code = test.get("returncode") or 0
    number = -code if code < 0 else code - 128
    if number in {s.value for s in signal.Signals}:
        return f"{test['result']}, killed by {signal.Signals(number).name}"
    return f"{test['result']}, exit status {code}"


def failure(test, path):
    """What one sees at the end of a long run, where the output itself is far above."""
    lines = [f"{how_ended(test)}, {test.get('duration', 0):.0f} s; all of it is in {path.with_suffix('.txt')}"]
    for stream in ("stdout", "stderr"):
        said = (test.get(stream) or "").splitlines()
        lines += [f"    {stream}, {len(said)} lines:"] if said else []
        for i, line in enumerate(said[:-LINES]):
            if line.startswith("FAILED"):
                lines += ["    " + why for why in said[i:i + WHY]] + ["    ..."]
        lines += ["    " + line for line in said[-LINES:]]
    return "\n".join(lines)


def read_log(path):
    """[(kind, description)] of one pass; kind is passed, failed or skipped."""
    where = path.parent.parent.name
    if not path.exists():
        return [("failed", f"{where}: {path.stem}: the pass did not run")]
    out = []
    for line in path.read_text().splitlines():
        test = json.loads(line)
        name = f"{where}: {test['name']}"
        if test["result"] in PASSED:
            out.append(("passed", name))
        elif test["result"] == "SKIP":
            out.append(("skipped", f"{name}: {last_line(test)}"))
        else:
            out.append(("failed", f"{name}: {failure(test, path)}"))
    return out or [("failed", f"{where}: {path.stem}: no test ran")]


def main(args):
    results = []
    for arg in args:
        if arg.startswith("skip:"):
            results.append(("skipped", arg[len("skip:"):]))
        else:
            results += read_log(pathlib.Path(arg))
    count = {kind: sum(k == kind for k, _ in results) for kind in ("passed", "failed", "skipped")}
    for kind, what in results:
        if kind != "passed":
            print(f"{kind}: {what}", file=sys.stderr)
    sys.stderr.flush()
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    return 1 if count["failed"] or not count["passed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
