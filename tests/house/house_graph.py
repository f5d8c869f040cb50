#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who uses whom in the sources: files and rooms, by includes and by the functions they name.

usage: house_graph.py [--rooms | --drawing | --files | --dot | --circles] [TOP]
  --rooms   (default) each room with the rooms it uses and by how many functions, from the lowest floor up
  --drawing rooms without the numbers, as docs/architecture.md has them
  --files   the same for files
  --dot     rooms as a graph for Graphviz
  --circles the circles of files, the largest first
TOP: root of the sources; default: the tree that this file is in.

A name counts where it is called or handed on as a value, outside of comments and quotes, when one file of the product
defines a function so called that is not static: so the functions of a table count as well.
tests/house/test_house.py holds the tree to rules over this graph.
"""
import collections
import pathlib
import re
import sys

from house_source import FOLDERS, code_only, functions, read_tree

PRODUCT = FOLDERS + ("tools",)
NAME = re.compile(r"(?<![\w.>])([a-z_]\w*)\b")


def room_of(path):
    """dataplane/packet/rx.c: dataplane/packet; poll/loop.c: poll."""
    return path.rpartition("/")[0]


def named(code):
    """Names that are called, or handed on as values: not those of structs, fields and variables that are declared."""
    out = set()
    for match in NAME.finditer(code):
        before, after = code[:match.start()].rstrip()[-1:], code[match.end():match.end() + 80].lstrip()[:1]
        if after == "(" or (before in "=,(&?:{" and after in ",;)}:?"):
            out.add(match.group(1))
    return out


def is_static(code, line):
    """Is the function whose body begins in this line (from 1) static? Its head is above it."""
    lines = code.split("\n")
    j = line - 2
    while j > 0 and (not lines[j].strip() or lines[j][0].isspace()):
        j -= 1
    return bool(re.match(r"static\b", lines[j])) or (j > 0 and lines[j - 1].strip() == "static")


class Graph:
    """uses[a][b]: what file a names of file b: functions, or headers in <>."""

    def __init__(self, files):
        self.uses = collections.defaultdict(lambda: collections.defaultdict(set))
        code = {p: code_only(t) for p, t in files.items() if p.endswith(".c") and p.split("/")[0] in PRODUCT}
        defined, own = collections.defaultdict(set), collections.defaultdict(set)
        for path, text in code.items():
            for name, line, _, _ in functions(text):
                own[path].add(name)
                if not is_static(text, line) and name != "main":
                    defined[name].add(path)
        self.files = sorted(code)
        for path, text in code.items():
            for name in named(text) - own[path]:
                for other in self.near(path, defined.get(name, ())):
                    self.uses[path][other].add(name)

    @staticmethod
    def near(path, others):
        """Programs may each have a function of one name: the nearest is meant."""
        if len(others) < 2:
            return others
        same = [o for o in others if room_of(o) == room_of(path)]
        return same or [o for o in others if o.split("/")[0] == path.split("/")[0]] or others

    def by_room(self):
        """{room: {room: functions}}"""
        out = collections.defaultdict(lambda: collections.defaultdict(set))
        for a in self.uses:
            for b, names in self.uses[a].items():
                if room_of(a) != room_of(b):
                    out[room_of(a)][room_of(b)] |= names
        return out

    def circles(self):
        """Lists of files each of which reaches all others of its list; the largest first. Tarjan, SIAM J. Comput. 1 (1972)."""
        index, low, stack, out = {}, {}, [], []

        def visit(v):
            index[v] = low[v] = len(index)
            stack.append(v)
            for w in self.uses.get(v, ()):
                if w not in index:
                    visit(w)
                    low[v] = min(low[v], low[w])
                elif w in stack:
                    low[v] = min(low[v], index[w])
            if low[v] == index[v]:
                at = stack.index(v)
                out.append(sorted(stack[at:]))
                del stack[at:]

        for v in self.files:
            if v not in index:
                visit(v)
        return sorted((c for c in out if len(c) > 1), key=lambda c: (-len(c), c))


def floors(uses, names):
    """{name: floor}: 0 uses none; where there is a circle, its members share one as far as that goes."""
    floor = {n: 0 for n in names}
    for _ in names:
        for n in names:
            floor[n] = max([floor[n]] + [min(floor[m] + 1, len(names)) for m in uses.get(n, ()) if m != n])
    return floor


def table(uses, names):
    """Lines "room: room (functions) ...", the lowest floor first."""
    floor = floors(uses, names)
    out = []
    for n in sorted(names, key=lambda n: (floor[n], n)):
        used = sorted(uses.get(n, {}).items(), key=lambda kv: (floor[kv[0]], kv[0]))
        out.append(f"{n}: " + (", ".join(f"{m} ({len(f)})" for m, f in used) or "nobody"))
    return out


def drawing(graph):
    """The rooms as docs/architecture.md shows them, the highest floor first."""
    rooms, names = graph.by_room(), sorted({room_of(f) for f in graph.files})
    floor, width = floors(rooms, names), max(map(len, names))
    short = {n: n.removeprefix("dataplane/").removeprefix("tools/") for n in names}
    return [f"{n:{width}}  {' '.join(short[m] for m in sorted(rooms.get(n, {}), key=lambda m: (-floor[m], m)))}".rstrip()
            for n in sorted(names, key=lambda n: (-floor[n], n))]


def dot(uses, names):
    lines = ["digraph house {", "  rankdir=BT; node [shape=box];"]
    lines += [f'  "{a}" -> "{b}" [label="{len(f)}"];' for a in sorted(names) for b, f in sorted(uses.get(a, {}).items())]
    return lines + ["}"]


def main(args):
    top = pathlib.Path(next((a for a in args if not a.startswith("-")), pathlib.Path(__file__).parent.parent.parent)).resolve()
    graph = Graph(read_tree(top))
    rooms = graph.by_room()
    names = sorted({room_of(f) for f in graph.files})
    if "--files" in args:
        lines = table(graph.uses, graph.files)
    elif "--drawing" in args:
        lines = drawing(graph)
    elif "--circles" in args:
        lines = [f"{len(c)}: {' '.join(c)}" for c in graph.circles()] or ["none"]
    elif "--dot" in args:
        lines = dot(rooms, names)
    else:
        lines = table(rooms, names)
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
