#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts into GPU memory over shared memory with 1, 2 and 4 cores a side, in every unpack mode, beside NCCL over sockets where
there are two GPUs and PyTorch. Run it on a GPU host, from the build's or the bundle's folder; see
docs/running-on-a-gpu-host.md. Rounds are interleaved, figures are medians; payload is verified except in mode none."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import bench

TOP = pathlib.Path(__file__).resolve().parent.parent.parent


def cpus(n, side):
    """CPUs of one side: the server's from 0 up, the client's behind them."""
    have = sorted(os.sched_getaffinity(0))
    part = have[:n] if side == "server" else have[len(have) // 2:len(have) // 2 + n]
    return ",".join(map(str, part))


def one(a, tools, tmp, cores, mode, where="cuda:0", op="put", local="host", size="64M"):
    addr = f"127.0.0.1:{bench.free_port()}"
    js = os.path.join(tmp, "r.json")
    server = [tools / "gxd", "--listen", addr, "--cores", cpus(cores, "server"), "--port", "shm", "--busy",
              "--mem", f"kv={where}:2G", "--unpack", mode, *(["--sms", str(a.sms)] if a.sms else []),
              *(["--slots", str(a.slots)] if a.slots else []), *(["--quantum", a.quantum] if a.quantum else [])]
    client = [tools / "gxperf", op, addr, "--mem", "kv", "--port", "shm", "-s", size, "-D", str(a.seconds), "--cores",
              cpus(cores, "client"), "-J", js, "--force", "--local-mem", local,
              *(["--slots", str(a.slots)] if a.slots else []), *(["--quantum", a.quantum] if a.quantum else []),
              *(["--no-check"] if mode == "none" else [])]
    with bench.Background([str(c) for c in server], wait_for="gxperf put"):
        bench.run([str(c) for c in client], timeout=120)
    row = json.loads(pathlib.Path(js).read_text())["results"][0]
    if mode != "none" and (row["wrong"] or not row["checked_b"]):
        raise RuntimeError(f"payload wrong or not checked: {row}")
    return row


def nccl():
    r = subprocess.run([sys.executable, str(TOP / "tests/bench/nccl_sockets.py")], capture_output=True, text=True, timeout=180)
    if r.returncode:
        bench.say(f"NCCL over sockets: {(r.stderr or 'failed').strip().splitlines()[-1]}")
        return {}
    return {int(s): float(v) for s, v in (line.split() for line in r.stdout.splitlines() if line[:1].isdigit())}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tools", default=str(TOP / "build/tools"))
    p.add_argument("--seconds", type=float, default=1.5)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--cores", type=lambda t: [int(x) for x in t.split(",")], default=[1, 2, 4])
    p.add_argument("--modes", type=lambda t: t.split(","), default=["kernel", "d2d", "host", "none"])
    p.add_argument("--sms", type=int, default=0)
    p.add_argument("--slots", type=int, default=0)
    p.add_argument("--quantum", default="")
    p.add_argument("--extra", action="store_true", help="gets, and puts from GPU memory, as well")
    p.add_argument("-J", "--json")
    a = p.parse_args()
    tools = pathlib.Path(a.tools)
    jobs = [(f"put to GPU, unpack {m}, {c} cores a side", c, m, {}) for m in a.modes for c in a.cores]
    jobs += [(f"put to host, {c} cores a side", c, "host", {"where": "host"}) for c in a.cores]
    if a.extra:
        jobs += [(f"get from GPU, {c} cores a side", c, "kernel", {"op": "get"}) for c in a.cores]
        jobs += [(f"put GPU to GPU, {c} cores a side", c, "kernel", {"local": "cuda:0"}) for c in a.cores]
    values = {j[0]: [] for j in jobs}
    errors = {}
    with tempfile.TemporaryDirectory() as tmp:
        for k in range(a.rounds):
            for name, c, m, kw in jobs[k % len(jobs):] + jobs[:k % len(jobs)]:
                try:
                    values[name].append(one(a, tools, tmp, c, m, **kw))
                    bench.say(f"round {k + 1}/{a.rounds}  {name}: {values[name][-1]['GB_s']:.2f} GB/s")
                except (RuntimeError, OSError, ValueError, subprocess.TimeoutExpired) as e:
                    errors[name] = str(e)
                    bench.say(f"{name}: {e}")
    rival = nccl()
    table = []
    print(f"# medians of {a.rounds} interleaved rounds of {a.seconds} s, 64 MiB messages, {bench.cpu_model()}")
    for name, *_ in jobs:
        v = [r["GB_s"] for r in values[name]]
        row = {"name": name, "GB_s": statistics.median(v) if v else None, "values": v,
               "cpu_pct": statistics.median(r["cpu_pct"] for r in values[name]) if v else None,
               "checked_b": sum(r["checked_b"] or 0 for r in values[name]),
               "wrong": sum(r["wrong"] or 0 for r in values[name]), "error": errors.get(name)}
        table.append(row)
        print(f"{name:44} {'-' if row['GB_s'] is None else '%.2f' % row['GB_s']:>8} GB/s  wrong {row['wrong']}  "
              f"checked {row['checked_b']}  {errors.get(name, '')[:120]}")
    for size, v in rival.items():
        print(f"NCCL send/recv over sockets, {size >> 20} MiB messages       {v:.2f} GB/s")
    if a.json:
        pathlib.Path(a.json).write_text(json.dumps({"schema_version": 1, "command": sys.argv, "cpu": bench.cpu_model(),
                                                    "rows": table, "nccl_sockets_GB_s": rival}, indent=1) + "\n")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
