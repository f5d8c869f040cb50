#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What gxperf writes for programs: documents and lines as docs/gxperf-schema.json says, intervals, and CSV that is appended.

usage: test_schema.py BUILD_DIR     Exit status 77 where python3-jsonschema is missing.
"""
import csv
import json
import pathlib
import re
import sys
import tempfile

import cli
from cli import FAILED, OK, USAGE, expect

try:
    import jsonschema
except ImportError:
    jsonschema = None

SCHEMA = pathlib.Path(__file__).resolve().parents[2] / "docs/gxperf-schema.json"
RUNS = (("put", "-b", "1", "-e", "4K", "-f", "64", "-n", "4"), ("get", "-s", "64K", "-n", "4"), ("send", "-s", "4K", "-n", "4"),
        ("put", "--bidirectional", "-D", "0.2", "-i", "0.1"),
        ("lat", "-n", "16"), ("blocks", "--blocks", "16", "-n", "2"), ("info",), ("doctor",))


def bad_documents(validator, doc):
    """The schema bites."""
    expect(doc["results"], doc)
    for change in ({"results": [{**doc["results"][0], "wrong": "no"}]}, {"exit_code": None}, {"schema_version": 2},
                   {"path": {**doc["path"], "link": "pigeon"}}, {"results": [{"op": "put"}]}):
        expect(not validator.is_valid({**doc, **change}), "taken:", change)


def documents(tools, addr, folder):
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    lines = jsonschema.Draft202012Validator({"$ref": "#/$defs/line", "$defs": schema["$defs"]})
    for n, (command, *args) in enumerate(RUNS):
        ran = tools.gxperf(command, addr, *args, "--append", folder / "lines", "-J", folder / f"{n}.json", "--format", "jsonl")
        expect(ran.rc in (OK, FAILED), ran)
        doc = json.loads((folder / f"{n}.json").read_text())
        validator.validate(doc)
        for line in ran.out.splitlines():
            lines.validate(json.loads(line))
        if command == "put":
            bad_documents(validator, doc)
    appended = [json.loads(line) for line in (folder / "lines").read_text().splitlines()]
    expect(len(appended) >= 6 + 2, appended)
    for line in appended:
        lines.validate(line)
    ran = tools.perf("put", "127.0.0.1:1")
    validator.validate(ran.doc) # a failure is a document, too


def intervals(tools, addr):
    ran = tools.perf("put", addr, "-s", "64K", "-D", "2", "-i", "0.5")
    ran.clean()
    rows = ran.doc["intervals"]
    expect(len(rows) in (4, 5), rows)
    expect(sum(r["count"] for r in rows) == ran.doc["results"][0]["count"], ran)
    expect(all(a["to_s"] == b["from_s"] for a, b in zip(rows, rows[1:])) and rows[0]["from_s"] == 0, rows)
    expect(all(0.3 < r["to_s"] - r["from_s"] < 1 for r in rows[:4]), rows)
    text = tools.gxperf("get", addr, "-s", "64K", "-D", "1", "-i", "0.4").must(OK).out
    expect(len(re.findall(r"^# +[0-9.]+-[0-9.]+ +s +get +\d+ messages .* GB/s ", text, re.M)) in (2, 3), text)
    expect("intervals" not in tools.perf("put", addr, "-n", "4").doc)
    tools.gxperf("lat", addr, "-i", "1").must(USAGE, "-i is for put, get and send")
    tools.gxperf("put", addr, "-i", "x").must(USAGE, "-i")


def csv_appended(tools, addr, folder):
    path = folder / "all.csv"
    for size in ("1", "4K", "64K"):
        tools.gxperf("put", addr, "-s", size, "-n", "4", "--append", path).must(OK)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    expect([r["size_b"] for r in rows] == ["1", "4096", "65536"] and all(r["wrong"] == "0" and r["host"] for r in rows), rows)
    for size in ("1K", "4K"):
        tools.gxperf("blocks", addr, "--blocks", "8", "-s", size, "-n", "2", "--append", folder / "b.csv").must(OK)
    rows = list(csv.DictReader((folder / "b.csv").read_text().splitlines()))
    expect([r["size_b"] for r in rows] == ["1024", "1024", "4096", "4096"] and all(r["path_link"] for r in rows), rows)
    ran = tools.gxperf("put", addr, "-n", "4", "--append", folder / "no" / "such.csv")
    expect(ran.rc == FAILED, ran)


def main():
    if not jsonschema:
        print("python3-jsonschema is not installed")
        return 77
    tools = cli.Tools(pathlib.Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as tmp, cli.Server(tools) as server:
        documents(tools, server.addr, pathlib.Path(tmp))
        intervals(tools, server.addr)
        csv_appended(tools, server.addr, pathlib.Path(tmp))
    return 0


if __name__ == "__main__":
    sys.exit(main())
