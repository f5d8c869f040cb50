#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The dashboard for Grafana: it has Grafana's shape, each metric that it asks for exists, and its queries are PromQL.

usage: test_grafana.py BUILD_DIR SOURCE_DIR     The queries are checked where promtool is installed.
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from cli import CLIENT_CPU, START_S, Server, Tools, expect
from test_metrics import Exporter, at_folder

KINDS = {"row", "stat", "timeseries"}
UNITS = {"none", "s", "bytes", "Bps", "pps", "ops", "percentunit"}


def metrics_there(build, source):
    """Names of samples: of a gxd with a client, and those of queues, which no tool has."""
    with tempfile.TemporaryDirectory() as name:
        at = at_folder(Tools(build), name)
        with Exporter(at, name) as exporter, Server(at, "--port", "shm", "--port", "udp") as server:
            client = subprocess.Popen([at.gxperf_path, "put", server.addr, "-s", "64K", "-D", "60", "--link", "tcp", "--cores", CLIENT_CPU],
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=at.env)
            end = time.monotonic() + START_S
            body = ""
            while "gx_connection_limited_seconds_total{" not in body and time.monotonic() < end:
                body = exporter.fresh()[1]
            client.kill()
            client.wait()
    there = set(re.findall(r"^(gx_\w+)\{", body, re.M))
    for name in re.findall(r'hist_print\(t, "(gx_\w+)"', (source / "dataplane/control/ctl_look.c").read_text()):
        there |= {name + end for end in ("_bucket", "_sum", "_count")}
    return there


def panel_check(p):
    expect(p["type"] in KINDS and p["title"], p)
    at = p["gridPos"]
    expect(at["x"] >= 0 and at["w"] > 0 and at["x"] + at["w"] <= 24 and at["h"] > 0 and at["y"] >= 0, p["title"], at)
    if p["type"] == "row":
        return
    expect(p["description"] and p["fieldConfig"]["defaults"]["unit"] in UNITS and p["fieldConfig"]["overrides"] == [], p["title"])
    expect(p["datasource"] == {"type": "prometheus", "uid": "${datasource}"} and isinstance(p["options"], dict), p["title"])
    refs = [t["refId"] for t in p["targets"]]
    expect(refs and len(set(refs)) == len(refs), p["title"], refs)
    for t in p["targets"]:
        expect(t["datasource"] == p["datasource"] and t["expr"] and t["legendFormat"], p["title"], t)


def shape_check(doc):
    expect(doc["title"] and re.fullmatch(r"[\w-]{1,40}", doc["uid"]) and doc["schemaVersion"] >= 36 and "id" not in doc, "head")
    expect({v["name"] for v in doc["templating"]["list"]} == {"datasource", "name"}, doc["templating"])
    panels = doc["panels"]
    expect(len({p["id"] for p in panels}) == len(panels), "two panels have one id")
    taken = set()
    for p in panels:
        panel_check(p)
        at = p["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        expect(not cells & taken, "lies on another panel:", p["title"])
        taken |= cells
    return [t["expr"] for p in panels for t in p.get("targets", [])]


def promql_check(queries):
    if not shutil.which("promtool"):
        print("note: promtool is not installed (package prometheus): the queries were not parsed")
        return
    rules = {"groups": [{"name": "gx", "rules": [{"record": f"gx:q{i}", "expr": re.sub(r"\$__(rate_interval|range)", "5m", q)}
                                                 for i, q in enumerate(queries)]}]}
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as f:
        json.dump(rules, f) # JSON is YAML
        f.flush()
        ran = subprocess.run(["promtool", "check", "rules", f.name], capture_output=True, text=True, check=False)
    expect(ran.returncode == 0, ran.stdout, ran.stderr)


def main(build, source):
    build, source = pathlib.Path(build).resolve(), pathlib.Path(source).resolve()
    queries = shape_check(json.loads((source / "tools/ops/grafana.json").read_text()))
    names = {n for q in queries for n in re.findall(r"\bgx_\w+", q)}
    there = metrics_there(build, source)
    expect(names <= there, "asked for, and not there:", sorted(names - there))
    promql_check(queries)
    print(f"{len(queries)} queries, {len(names)} metrics of {len(there)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
