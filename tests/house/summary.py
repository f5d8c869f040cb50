#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up meson's test logs; called by ./run tests.

usage: summary.py [--times FILE.csv] LOG.json|skip:WHAT...
The slowest tests of each pass become rows of FILE.csv, beneath those of ./run.
A log that does not exist or is empty counts as one failure: a pass that did not run must not look like success.
Failures and skips are listed on stderr: a skip with the last line it printed, a failure with how it ended, where its log is
and the last lines of it. Behind them stand the slowest tests, and what the tests of each pass took together. The last line on stdout is "N passed, N failed, N skipped"; the exit status is 1 when anything failed
or nothing passed.
"""
import json
import pathlib
import signal
import sys

PASSED = ("OK", "EXPECTEDFAIL")
LINES = 40 # that are shown of each stream of a test that failed
WHY = 16   # and behind each line that begins with FAILED and stands before those
SLOWEST = 10


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


def read_tests(path):
    """What meson noted of each test of one pass."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def took(paths):
    """[(seconds, which test)], the slowest first."""
    return sorted(((test.get("duration", 0), f"{path.parent.parent.name}: {test['name']}") for path in paths for test in read_tests(path)), reverse=True)


def slowest(paths):
    """What to make shorter first: several tests run at a time, so their sum is more than the pass took."""
    lines = [f"slowest: {s:4.0f} s {name}" for s, name in took(paths)[:SLOWEST]]
    for path in paths:
        of_it = took([path])
        lines.append(f"together: {sum(s for s, _ in of_it):.0f} s, the {len(of_it)} tests of {path.parent.parent.name}: {path.stem}")
    return lines


def write_times(file, paths):
    rows = [f"test,{name} ({path.stem}),{s:.0f},,\n" for path in paths for s, name in took([path])[:SLOWEST]]
    with open(file, "a") as f:
        f.writelines(rows)


def read_log(path):
    """[(kind, description)] of one pass; kind is passed, failed or skipped."""
    where = path.parent.parent.name
    if not path.exists():
        return [("failed", f"{where}: {path.stem}: the pass did not run")]
    out = []
    for test in read_tests(path):
        name = f"{where}: {test['name']}"
        if test["result"] in PASSED:
            out.append(("passed", name))
        elif test["result"] == "SKIP":
            out.append(("skipped", f"{name}: {last_line(test)}"))
        else:
            out.append(("failed", f"{name}: {failure(test, path)}"))
    return out or [("failed", f"{where}: {path.stem}: no test ran")]


def main(args):
    results, paths, times = [], [], None
    if args[0] == "--times":
        times, args = args[1], args[2:]
    for arg in args:
        if arg.startswith("skip:"):
            results.append(("skipped", arg[len("skip:"):]))
        else:
            paths.append(pathlib.Path(arg))
            results += read_log(paths[-1])
    count = {kind: sum(k == kind for k, _ in results) for kind in ("passed", "failed", "skipped")}
    for kind, what in results:
        if kind != "passed":
            print(f"{kind}: {what}", file=sys.stderr)
    print("\n".join(slowest(paths)), file=sys.stderr)
    if times:
        write_times(times, paths)
    sys.stderr.flush()
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    return 1 if count["failed"] or not count["passed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
