#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gxperf plot: pictures, SVG and PNG, of what -J, --format json or jsonl, or tests/bench/bench.py has
written; several files in one. gnuplot draws them. The same documents give the same bytes."""
import argparse
import collections
import json
import math
import os
import re
import statistics
import subprocess
import sys

LINES_MAX, TICS_MAX, MARGIN = 64, 12, 1.05
LABELS = {
    "size_b": "bytes", "blocks": "thread blocks of the computation", "GB_s": "GB/s", "p50_us": "microseconds, median",
    "avg_us": "microseconds, mean", "p99_us": "microseconds, 99 %", "share": "share of the limit",
    "slowdown": "slowdown: time of both / time of the longer alone",
    "keep_comp": "share of its speed alone that the computation keeps",
    "keep_comm": "share of its speed alone that the communication keeps", "ratio": "ratio to the rival",
    "cores": "cores a side", "sms": "SMs", "blocks_s": "blocks a second", "post_ns": "nanoseconds a block, post alone",
}


class Bad(Exception):
    """Why no picture is drawn."""


def parse(text):
    """A document, or lines of --format jsonl and --append."""
    try:
        doc = json.loads(text)
    except ValueError as e:
        try:
            rows = [json.loads(line) for line in text.splitlines() if line]
        except ValueError:
            raise Bad(str(e)) from None
        if not rows or not all(isinstance(r, dict) and ("op" in r or "command" in r) for r in rows):
            raise Bad("a line is no result")
        # In older files the last line is the document without its results.
        return {"command": rows[0].get("command"), "results": [r for r in rows if "op" in r]}
    return doc if isinstance(doc, dict) else {}


def items(doc, key):
    """The objects of a list."""
    rows = doc.get(key)
    return [r for r in rows if isinstance(r, dict)] if isinstance(rows, list) else []


def number(row, key):
    v = row.get(key)
    return v if isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v) else None


# --- documents of tests/bench/bench.py: a row's name has its size, or its number of cores ----------------------------

def split(name):
    """"gx put 64M, shm" is op "gx put, shm", size_b 64 Mi; "put, 4 cores a side" has cores. None: no such word."""
    m = re.search(r" (\d+)([KMGT]?)(?=[, ]|$)", name)
    if not m:
        return None
    value = int(m[1]) << 10 * " KMGT".index(m[2] or " ")
    return name[:m.start()] + name[m.end():], "cores" if name.startswith(" cores", m.end()) else "size_b", value


def bench_results(doc, rival):
    """Each figure of a round as a result; with @rival the ratios to it, under the op that is compared."""
    made = []

    def add(name, y, row, op=None):
        at = split(name)
        made.extend({"op": op or at[0], at[1]: at[2], y: v} for v in row.get("values") or [] if at)

    for row in () if rival else items(doc, "rows"):
        add(str(row.get("name")), "p50_us" if row.get("unit") == "us" else "GB_s", row)
    for row in items(doc, "ratios"):
        gx, other = (split(str(row.get(k))) or (str(row.get(k)),) for k in ("gx", "rival"))
        if rival in (None, other[0]):
            add(str(row.get("gx")), "ratio", row, gx[0] if rival else f"{gx[0]} / {other[0]}")
    return made


# --- lines: results of one op, one file and one bound on SMs ---------------------------------------------------------

class Plot:
    def __init__(self, how):
        self.how, self.x, self.y = how, how.x or "size_b", how.y
        self.lines, self.files = collections.OrderedDict(), [] # (number of the file, op, SMs): [(x, y)]

    def add(self, doc, name):
        how, results = self.how, items(doc, "results")
        made = not results and items(doc, "rows")
        if made:
            results = bench_results(doc, how.rival)
        elif not results:
            raise Bad('neither "results", as gxperf -J writes them, nor "rows" of tests/bench/bench.py')
        if not self.y:
            has = [y for y in ("GB_s", "p50_us") if any(number(r, y) is not None for r in results)]
            self.y = "slowdown" if doc.get("command") == "overlap" else (has or ["GB_s"])[0]
        y, before = "ratio" if made and how.rival else self.y, len(self.points())
        for r in results:
            op, at = r.get("op"), (number(r, self.x), number(r, y))
            if isinstance(op, str) and None not in at and (not how.only or op in how.only.split(",") or op == how.rival):
                self.lines.setdefault((len(self.files), op, number(r, "sms"), y == "ratio"), []).append(at)
        self.files.append(name)
        if len(self.lines) > LINES_MAX:
            raise Bad(f"more than {LINES_MAX} lines: choose with --only")
        if len(self.points()) == before:
            raise Bad(f'no result with "{self.x}" and "{y}"' + (f" to {how.rival}" if y == "ratio" and how.rival else "")
                      + (f" among {how.only}" if how.only else ""))

    def points(self):
        return [p for line in self.lines.values() for p in line]

    def drawn(self):
        """[(title, [(x, y)])], without what the axes cannot show."""
        rivals, out = collections.defaultdict(list), []
        for (file, op, _, _), line in self.lines.items():
            for x, y in line if op == self.how.rival else ():
                rivals[file, x].append(y)
        for (file, op, sms, ratio), line in self.lines.items():
            if self.how.rival and not ratio:
                line = [(x, y / statistics.median(rivals[file, x])) for x, y in line if any(rivals[file, x])]
            line = sorted((x, y) for x, y in line if x > 0 and (y > 0 or not self.how.log_y))
            alike = sum(k[:2] == (file, op) for k in self.lines) > 1 and sms is not None
            title = (f"{self.files[file]}: " if len(self.files) > 1 else "") + op + (f", {sms:.0f} SMs" if alike else "")
            if line and op != self.how.rival:
                out.append((title, line))
        if not out:
            raise Bad("nothing to draw" + (f": no result beside {self.how.rival}" if self.how.rival else ""))
        return out

    def script(self, svg, png):
        """The input of gnuplot. The line goes through the medians; where some x has several results, all are points."""
        drawn, head, data, plots = self.drawn(), [], [], []
        for i, (title, line) in enumerate(drawn):
            xs = sorted({x for x, _ in line})
            data += [f"$line{i} << EOD", *(f"{x} {statistics.median(b for a, b in line if a == x):.9g}" for x in xs), "EOD"]
            plots.append(f"$line{i} using 1:2 with linespoints linetype {i + 1} linewidth 2 pointtype 7 pointsize 0.6 "
                         f"title {quoted(title)}")
            if len(xs) < len(line):
                data += [f"$all{i} << EOD", *(f"{x} {y:.9g}" for x, y in line), "EOD"]
                plots.append(f"$all{i} using 1:2 with points linetype {i + 1} pointtype 6 notitle")
        y = LABELS.get(self.y, self.y) + (f", ratio to {self.how.rival}" if self.how.rival else "")
        head += [f"set title {quoted(self.how.title)} noenhanced"] if self.how.title else []
        head += [f"set xlabel {quoted(LABELS.get(self.x, self.x))}", f"set ylabel {quoted(y)}", "set logscale x 2",
                 "set offsets 0, 0, graph 0.05, 0", "set logscale y 10" if self.how.log_y else "set yrange [0:*]"]
        head += sizes(sorted({x for _, line in drawn for x, _ in line})) if self.x == "size_b" else ["set format x '%.0f'"]
        return "\n".join([
            f"set terminal svg size 900,540 noenhanced font 'sans-serif,13' background rgb 'white'\nset output {quoted(svg)}",
            "set encoding utf8\nset key outside center bottom horizontal maxcols 3 noenhanced\nset border 3\nset tics nomirror",
            "set grid linetype 1 linewidth 0.5 linecolor rgb '#d8d8d8'", *head, *data, "plot " + ", \\\n     ".join(plots),
            f"set terminal pngcairo size 1350,810 noenhanced font 'sans-serif,16' background rgb 'white'\n"
            f"set output {quoted(png)}\nreplot\nset output\n"])


def quoted(text):
    """gnuplot replaces nothing within single quotes; a quote is doubled."""
    return "'" + re.sub(r"[\x00-\x1f]", "?", text).replace("'", "''") + "'"


def sizes(xs):
    """Tics at the points, without those that would touch the one before. A little wider, for the last of them."""
    tics, before = [], 0
    for x in xs:
        if before and math.log(x / before) < math.log(xs[-1] / xs[0]) / TICS_MAX:
            continue
        unit, before, v = 0, x, x
        while unit < 4 and v >= 1024 and v % 1024 == 0:
            unit, v = unit + 1, v / 1024
        tics.append(f"'{v:.0f}{' KMGT'[unit].strip()}' {x}")
    return [f"set xtics ({', '.join(tics)}) nomirror", f"set xrange [{xs[0] / MARGIN:.9g}:{xs[-1] * MARGIN:.9g}]"]


# --- files -----------------------------------------------------------------------------------------------------------

def draw(plot, base, force):
    """gnuplot writes beside the pictures; they appear when both are good."""
    paths = [f"{base}.{suffix}" for suffix in ("svg", "png")]
    parts = [f"{path}.{os.getpid()}.part" for path in paths]
    for path in paths:
        if os.path.exists(path) and not force:
            raise Bad(f"{path} is there; give another name with --out, or --force to replace it")
    try:
        status = subprocess.run(["gnuplot"], input=plot.script(*parts).encode(), check=False).returncode
        if status:
            raise Bad(f"gnuplot failed with status {status}; its message is above")
        for part in parts:
            if not os.path.exists(part) or not os.path.getsize(part):
                raise Bad(f"{part}: gnuplot did not write it")
        for part, path in zip(parts, paths):
            os.replace(part, path)
    except FileNotFoundError as e:
        raise Bad("gnuplot does not run; install it: apt-get install gnuplot-nox") from e
    finally:
        for part in parts:
            if os.path.exists(part):
                os.unlink(part)
    print(*paths, sep="\n")


def options(argv):
    p = argparse.ArgumentParser(prog="gxperf plot", description=__doc__, allow_abbrev=False)
    p.add_argument("--help-all", action="help", help=argparse.SUPPRESS)  # as the other commands
    p.add_argument("files", metavar="FILE", nargs="*")
    p.add_argument("--out", metavar="PATH", help="Write PATH.svg and PATH.png; default: the first FILE without .json")
    p.add_argument("--force", action="store_true", help="They may exist")
    p.add_argument("--x", metavar="MEMBER", help="Horizontal axis: size_b (default), blocks, cores, ...")
    p.add_argument("--y", metavar="MEMBER", help="Vertical axis: GB_s, p50_us (default: what there is), slowdown (default "
                   "for overlap), share, ratio, ...")
    p.add_argument("--rival", metavar="OP", help="Ratios to the results of this op in the same file; of "
                   "tests/bench/bench.py: its ratios, round by round")
    p.add_argument("--only", metavar="OP,...", help="Only these ops")
    p.add_argument("--title", metavar="TEXT", help="Above the picture")
    p.add_argument("--log-y", action="store_true", help="Logarithmic vertical axis")
    o = p.parse_args(argv)
    if not o.files:
        p.error("which file? One that gxperf -J or tests/bench/bench.py -J has written")
    return o


def main(argv):
    how = options(argv)
    plot = Plot(how)
    for path in how.files:
        try:
            with open(path, encoding="utf8") as f:
                plot.add(parse(f.read()), re.sub(r"\.json$", "", os.path.basename(path)))
        except (Bad, UnicodeDecodeError) as e:
            raise Bad(f"{path}: {e}") from e
    draw(plot, how.out or re.sub(r"\.json$", "", how.files[0]), how.force)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (Bad, OSError) as error:
        sys.exit(f"gxperf: {error}")
