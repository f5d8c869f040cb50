#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's nccl-tests over gx, beside NCCL's own Socket transport: one process with a GPU for each of its ranks.

    python3 tests/nccl/nccl_tests.py --dir nccl-tests/build --plugin build/bindings/nccl/libnccl-net-gx.so

Each program runs over the transports in turns, --rounds times. NCCL may use neither NVLink nor shared memory, so all goes by the
network, and each payload is checked (-c 1). The table has the median of the bus bandwidth in GB/s, out of place.

Exit status: 0 when no value was wrong and NCCL's log named the transport of each connection, else 1; 2 when a program is missing; 77
without two GPUs."""
import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile

PROGRAMS = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "sendrecv")
ENV = {
    "all": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MNNVL_ENABLE": "0",
            "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_SOCKET_IFNAME": "lo"},
    "gx": {"NCCL_NET": "gx"},
    "socket": {"NCCL_NET": "Socket", "NCCL_NET_PLUGIN": "none", "NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"},
}
VIA = {"gx": "via NET/gx/", "socket": "via NET/Socket/"}
NO_GPUS = re.compile(r"no CUDA-capable device|driver version is insufficient|Invalid number of GPUs|invalid device ordinal|libcuda\.so")


def rows_of(text):
    """What a program printed, by size: (bus bandwidth out of place, wrong values of both ways). The line with the columns' names
    says where these are. Some operations are not checked in place: N/A. A row that is not checked out of place either is none. Several
    small sizes may be rounded to one, 0: the last one's speed counts, and the wrong values of all."""
    names, rows = [], {}
    for line in text.splitlines():
        words = line.split()
        if words[:2] == ["#", "size"]:
            names = words[1:] if "#wrong" in words and "busbw" in words else []
        elif names and words and words[0].isdigit() and len(words) >= len(names):
            at = dict(zip(reversed(names), range(len(names) - 1, -1, -1)))  # of two columns of a name the first one
            wrong = [words[i] for i, name in enumerate(names) if name == "#wrong"]
            # float(): 1e+06 where there are many
            size = int(words[0])
            if words[at["#wrong"]] == "N/A":
                continue
            before = rows[size][1] if size in rows else 0
            rows[size] = float(words[at["busbw"]]), before + sum(int(float(w)) for w in wrong if w != "N/A")
    return rows


def run_once(args, program, way, folder):
    """Return: rows_of(), and why the run is wrong; "": it is right."""
    log = os.path.join(folder, f"{program}.{way}.log")
    env = {**os.environ, **ENV["all"], **ENV[way], **dict(pair.split("=", 1) for pair in args.env), "NCCL_DEBUG_FILE": log}
    if way == "gx":
        env["NCCL_NET_PLUGIN"] = os.path.abspath(args.plugin)
    argv = [os.path.join(args.dir, program + "_perf"), "-g", str(args.g), "-c", "1", "-b", args.b, "-e", args.e, "-f", "8", "-n", str(args.n)]
    try:
        ran = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                             timeout=args.limit_s, check=False)
    except subprocess.TimeoutExpired:
        if os.path.exists(log): # it is none of the next run's
            os.remove(log)
        return {}, f"not over within {args.limit_s} s"
    said = ""
    if os.path.exists(log):
        with open(log, errors="replace", encoding="utf-8") as f:
            said = f.read()
        os.remove(log)
    rows = rows_of(ran.stdout)
    if ran.returncode and not rows and NO_GPUS.search(ran.stdout):
        print(f"SKIP: {args.g} GPUs are not to be had: {NO_GPUS.search(ran.stdout).group()}")
        sys.exit(77)
    links = [line for line in said.splitlines() if "Channel " in line and " via " in line]
    wrong = sum(w for _, w in rows.values())
    if ran.returncode and not wrong:
        last = [line for line in said.splitlines() if " WARN " in line][-1:] + ran.stdout.strip().splitlines()[-1:]
        return rows, f"exit status {ran.returncode}: {' | '.join(last)}"
    if not rows:
        return rows, "no row of results that were checked; does this nccl-tests print another table?"
    if wrong:
        return rows, f"{wrong} values are wrong"
    if not links or any(VIA[way] not in line for line in links):
        return rows, f"NCCL's log names {VIA[way]}N for {sum(VIA[way] in line for line in links)} of {len(links)} connections"
    return rows, ""


def table(found, ways):
    """found[program][way]: a list of rows_of()."""
    print(f"\n{'operation':16}{'bytes':>12}" + "".join(f"{way + ' GB/s':>14}" for way in ways)
          + (f"{'gx/socket':>12}" if set(ways) >= {"gx", "socket"} else "") + f"{'#wrong':>10}")
    for program, by_way in found.items():
        for size in sorted({size for rounds in by_way.values() for rows in rounds for size in rows}):
            speed = {way: statistics.median(rows[size][0] for rows in rounds if size in rows)
                     for way, rounds in by_way.items() if any(size in rows for rows in rounds)}
            wrong = sum(rows[size][1] for rounds in by_way.values() for rows in rounds if size in rows)
            line = f"{program:16}{size:12}" + "".join(f"{speed[way]:14.2f}" if way in speed else f"{'-':>14}" for way in ways)
            if set(ways) >= {"gx", "socket"}:
                line += f"{speed['gx'] / speed['socket']:12.2f}" if speed.get("socket") and "gx" in speed else f"{'-':>12}"
            print(line + f"{wrong:10}")


def plugin_default():
    """In a build folder, or in a bundle."""
    top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    paths = [os.path.join(top, folder, "libnccl-net-gx.so") for folder in ("build/bindings/nccl", "lib")]
    return next((path for path in paths if os.path.exists(path)), paths[0])


def main():
    parser = argparse.ArgumentParser(description="nccl-tests over Socket and gx", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--dir", required=True, help="folder of all_reduce_perf and the others")
    parser.add_argument("--plugin", default=plugin_default(), help="libnccl-net-gx.so")
    parser.add_argument("--transports", default="socket,gx", help="of: socket, gx")
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="without _perf")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit-s", type=int, default=300, help="of a run")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for the programs")
    parser.add_argument("-g", type=int, default=2, help="GPUs")
    parser.add_argument("-b", default="8", help="least bytes; each further size is eight times as large")
    parser.add_argument("-e", default="256M", help="most bytes")
    parser.add_argument("-n", type=int, default=20, help="times that each size is run")
    args = parser.parse_args()
    ways, programs = args.transports.split(","), args.programs.split(",")
    if any(way not in VIA for way in ways):
        parser.error(f"--transports {args.transports}: there are {', '.join(VIA)}")
    missing = [p for p in programs if not os.access(os.path.join(args.dir, p + "_perf"), os.X_OK)]
    if missing or not os.path.exists(args.plugin):
        parser.error(f"there is no {os.path.join(args.dir, missing[0] + '_perf') if missing else args.plugin}")
    found, bad = {}, 0
    with tempfile.TemporaryDirectory(prefix="gxn.") as folder:
        for program in programs:
            found[program] = {way: [] for way in ways}
            for _ in range(args.rounds):
                for way in ways:
                    rows, why = run_once(args, program, way, folder)
                    found[program][way].append(rows)
                    bad += bool(why)
                    print(f"{'FAILED' if why else 'ok'} {program} over {way}{': ' + why if why else ''}", flush=True)
    table(found, ways)
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
