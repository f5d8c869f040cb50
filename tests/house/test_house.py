#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The rules of the house, checked on the sources: who may include what, and the shape of a file.

usage: test_house.py [TOP]        TOP: root of the sources; default: the tree that this file is in
Environment: CC, CXX (default cc, c++).

First every rule is shown a line that breaks it: a rule that does not bite is a failure too. Then the tree is
checked. Failures are printed as FILE:LINE: what, and make the exit status 1; warnings do not.
"""
import ast
import os
import pathlib
import posixpath
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile

from house_graph import Graph, drawing, room_of
from house_source import FOLDERS, SOURCE_DIRS, code_only, functions, includes, read_tree

# Of dataplane/, the lowest first: none knows one that comes after it.
ROOMS = ("core", "flow", "auth", "copy", "list", "submit", "ports", "packet", "local", "tcp", "nic", "verbs", "control", "api", "coll")
# A part of a room that has a folder of its own, named after the third party that it alone knows.
INNER_ROOMS = ("ports/dpdk",)
# Of tools/, floor by floor, the lowest first: a room knows those below it that are common's or of its own program.
TOOL_ROOMS = (("common",), ("gxperf/report",), ("gxd/serve", "gxd/watch", "gxd/nic", "gxperf/base"), ("gxd", "gxperf/move", "gxperf/ask", "gxperf/coll", "gxperf/lab"), ("gxperf",))
TOOL_FLOOR = {room: i for i, floor in enumerate(TOOL_ROOMS) for room in floor}

# Of tests/: a folder for each room of the sources, and these, which no room has.
TEST_FOLDERS = ("poll", "gpu", *ROOMS, "tools") + ("bench", "fake", "fuzz", "house", "kit", "model", "nccl", "net", "nixl", "proc", "python", "shared", "sim", "soak")

# Contracts of the data plane: below it, nobody needs them.
DATAPLANE_HEADERS = {"block", "core", "ctl", "ctx", "flow", "link", "match", "msg", "port", "rx", "tx", "wire"}

# Leaves: no I/O, no threads, no clock, and none of the others.
LEAVES = {"flow": "dataplane/flow/flow", "msg": "dataplane/flow/msg", "cc": "dataplane/flow/cc", "block": "dataplane/copy/block"}
LEAF_HEADERS_BANNED = re.compile(
    r"^(sys/(socket|mman|epoll|ioctl|uio|time|types|stat|eventfd|timerfd)\.h|netinet/.*|arpa/.*|net/.*|linux/.*|"
    r"unistd\.h|stdio\.h|pthread\.h|threads\.h|time\.h|fcntl\.h|poll\.h|signal\.h|dlfcn\.h|sched\.h)$")
# Pure: time is an argument, I/O goes through the seams. Memory is taken when something is opened, not in a turn.
PURE = (*LEAVES, "ack", "ask", "abort", "bad", "fetch", "freed", "in", "life", "make", "match", "op", "path", "pull_in", "rec", "rx", "share", "timer", "turn", "tx", "wake")
PURE_ROOM = "dataplane/flow/"
PURE_CALLS_BANNED = re.compile(
    r"\b(gx_now_ns|clock_gettime|gettimeofday|time|rand|random|rand_r|getrandom|usleep|nanosleep|"
    r"pthread_\w+|socket|send|sendto|sendmsg|recv|recvfrom|recvmsg|read|write|open|close|ioctl|mmap|munmap|"
    r"printf|fprintf|puts|fopen|getenv)\s*\(")
ALLOC_CALLS = re.compile(r"\b(malloc|calloc|realloc|aligned_alloc|posix_memalign|strdup|free)\s*\(")
ALLOC_ALLOWED_IN = re.compile(r"_(open|init|close|fini|alloc|free|new|del|add|grow)$")

LIBC = {
    "alloca", "argp", "assert", "byteswap", "cpuid", "ctype", "dirent", "dlfcn", "elf", "emmintrin", "endian", "err",
    "errno", "error", "fcntl", "fenv", "float", "fnmatch", "ftw", "getopt", "glob", "grp", "ifaddrs", "immintrin",
    "inttypes", "iso646", "libgen", "limits", "link", "locale", "malloc", "math", "netdb", "nmmintrin", "poll",
    "pthread", "pwd", "regex", "sched", "search", "semaphore", "setjmp", "signal", "smmintrin", "spawn", "stdalign",
    "stdarg", "stdatomic", "stdbool", "stddef", "stdint", "stdio", "stdlib", "stdnoreturn", "string", "strings",
    "syscall", "syslog", "termios", "threads", "time", "tmmintrin", "ucontext", "unistd", "utime", "wchar", "wctype",
    "x86intrin", "xmmintrin", "wmmintrin", "arm_neon", "arm_acle", "execinfo", "mntent",
}
LIBC_DIRS = ("sys/", "linux/", "netinet/", "arpa/", "net/", "netpacket/", "asm/", "asm-generic/", "bits/", "sanitizer/")
ISAL = ("crc.h", "crc64.h", "isa-l.h", "isa-l/", "raid.h", "igzip_lib.h", "mem_routines.h")

FUNCTION_WARN, FUNCTION_FAIL = 70, 100
FILE_FAIL = 800   # lines of a file of the product
CIRCLE_FAIL = 2   # more files than that which all reach one another


class House:
    """One pass over a set of files: {path: text}. owner: main."""

    def __init__(self, files):
        self.files = files
        self.failures = []
        self.warnings = []

    def fail(self, path, line, what):
        self.failures.append(f"{path}:{line}: {what}")

    def warn(self, path, line, what):
        self.warnings.append(f"{path}:{line}: {what}")

    def sources(self, *suffixes):
        return [(p, t) for p, t in sorted(self.files.items()) if p.endswith(suffixes)]


def folder_of(path):
    return path.split("/")[0]


def stem_of(path):
    return path.rsplit("/", 1)[-1].rsplit(".", 1)[0]


def is_libc(name):
    return name.startswith(LIBC_DIRS) or name[:-2] in LIBC


def is_gx(name):
    return name.startswith(("gx/", "gxlab/", "gx_internal/"))


def family(name):
    """Which third party a header is from."""
    if name.startswith(("rte_", "generic/rte_")):
        return "dpdk"
    if name.startswith(ISAL):
        return "isa-l"
    if name.startswith(("cuda", "nvml", "nvtx")):
        return "cuda"
    if name.startswith(("infiniband/", "rdma/")):
        return "verbs"
    if name.startswith("openssl/"):
        return name # ciphers and TLS are two matters
    return name.split("/")[0].removesuffix(".h")


# --- rules ------------------------------------------------------------------------------------------------

def rule_spdx(house):
    """Every source names its licence in its first line (the second after #!)."""
    for path, text in house.sources(".c", ".h", ".cu", ".py", ".sh", "meson.build", "meson_options.txt", ".ci/run", "run"):
        lines = text.split("\n", 2)
        line = lines[1] if lines[0].startswith("#!") and len(lines) > 1 else lines[0]
        if "SPDX-License-Identifier: Apache-2.0" not in line:
            house.fail(path, 1, "no SPDX line at the top")


def rule_no_parent_path(house):
    """No include reaches into another folder by "../"."""
    for path, text in house.sources(".c", ".h", ".cu"):
        for line, _, name in includes(text):
            if ".." in name.split("/"):
                house.fail(path, line, f'include of "{name}": never ../')


def rule_no_typedef_struct(house):
    """A struct is called struct."""
    for path, text in house.sources(".c", ".h", ".cu"):
        for match in re.finditer(r"\btypedef\s+(struct|union)\b", code_only(text)):
            house.fail(path, text.count("\n", 0, match.start()) + 1, f"typedef {match.group(1)}")


def rule_folders(house):
    """poll, gpu and dataplane meet only in include/gx_internal; tools know gx/ and gxlab/ alone, the library not gxlab/."""
    for path, text in house.sources(".c", ".h", ".cu"):
        folder = folder_of(path)
        if folder not in FOLDERS + ("tools",):
            continue
        for line, angle, name in includes(text):
            if name.startswith(("gxlab/", "lab/")) and folder in FOLDERS and not path.startswith("gpu/lab/"):
                house.fail(path, line, f"{name} measures; the library may not know it")
            if name.startswith(("gx/", "gxlab/")) or (angle and is_libc(name)):
                continue
            if name.startswith("gx_internal/"):
                if folder == "tools":
                    house.fail(path, line, f"{name}: tools include gx/ and gxlab/ alone")
                elif folder != "dataplane" and stem_of(name) in DATAPLANE_HEADERS:
                    house.fail(path, line, f"{name} belongs to the data plane; {folder}/ may not know it")
            elif name.split("/")[0] in SOURCE_DIRS and "/" in name:
                house.fail(path, line, f"{name}: folders meet only in gx_internal/")
            elif f"{folder}/{name}" not in house.files:
                others = [d for d in SOURCE_DIRS if f"{d}/{name}" in house.files]
                if others:
                    house.fail(path, line, f"{name} is {others[0]}/'s; folders meet only in gx_internal/")


def rule_rooms(house):
    """A room of dataplane/ knows none that is higher, and an include says whose header it is."""
    for path, text in house.sources(".c", ".h"):
        parts = path.split("/")
        if parts[0] != "dataplane":
            continue
        if "/".join(parts[1:-1]) not in ROOMS + INNER_ROOMS:
            house.fail(path, 1, f"dataplane/ has the rooms {' '.join(ROOMS + INNER_ROOMS)}, and files in them alone")
            continue
        for line, angle, name in includes(text):
            room = name.split("/")[0]
            if angle or is_gx(name):
                continue
            if room not in ROOMS:
                house.fail(path, line, f'"{name}": say the room too: "ROOM/{name}"')
            elif ROOMS.index(room) > ROOMS.index(parts[1]):
                house.fail(path, line, f"{name}: {parts[1]}/ is below {room}/ and may not know it")


LINK_BLIND = ("core", "control", "api")
LINK_TABLE = ("dataplane/api/links.c", "dataplane/core/opts.c", "dataplane/core/opts.h")  # gx.h has options by link
LINK_NAMED = re.compile(r"\bGX_LINK_(?:PACKET|LOCAL|TCP|VERBS)\b|\b(?:gx_)?(?:link_)?(?:local|tcp|verbs)_\w+|(?:->|\.)(?:tcp|verbs)\b")
LINK_HEADER = re.compile(r"\b(?:packet|local|tcp|verbs)/|\bnic/(?:nic_link|tcp_)")
LINK_NOT = ("tcp_port",)  # the port of a flow rule


def rule_links(house):
    """The rooms that serve all links go through struct gx_link: one table names them."""
    for path, text in house.sources(".c", ".h"):
        parts = path.split("/")
        if parts[0] != "dataplane" or len(parts) < 3 or parts[1] not in LINK_BLIND or path in LINK_TABLE:
            continue
        for line, _, name in includes(text):
            if LINK_HEADER.match(name):
                house.fail(path, line, f'"{name}": a header of a link; go through struct gx_link (gx_internal/link.h)')
        for line, code in enumerate(code_only(text).split("\n"), 1):
            for name in LINK_NAMED.findall(code):
                if name not in LINK_NOT:
                    house.fail(path, line, f"{name}: names a link; go through struct gx_link (gx_internal/link.h)")


def tool_room(path):
    """tools/gxd/serve/core.c: gxd/serve; None: not of tools/."""
    return room_of(path).removeprefix("tools").lstrip("/") if folder_of(path) == "tools" else None


def tool_room_knows(room, other):
    """May the room of tools/ know the other one?"""
    below = TOOL_FLOOR.get(other, len(TOOL_ROOMS)) < TOOL_FLOOR[room] and other.split("/")[0] in ("common", room.split("/")[0])
    return other == room or below


def rule_tool_rooms(house):
    """A room of tools/ includes lower ones alone and calls lower ones alone, none of the other program; an include says whose header it is."""
    for path, text in house.sources(".c", ".h"):
        room = tool_room(path)
        if room is None:
            continue
        if room not in TOOL_FLOOR:
            house.fail(path, 1, f"tools/ has the rooms {' '.join(TOOL_FLOOR)}")
            continue
        for line, angle, name in includes(text):
            if angle or is_gx(name) or name == "version.h": # which meson makes
                continue
            if not tool_room_knows(room, room_of(name)):
                house.fail(path, line, f'"{name}": {room}/ may not know it, or it does not say its room')
    for a, used in sorted(Graph(house.files).uses.items()):
        for b, names in sorted(used.items()):
            if tool_room(a) in TOOL_FLOOR and tool_room(b) and not tool_room_knows(tool_room(a), tool_room(b)):
                house.fail(a, 1, f"{' '.join(sorted(names))}: of {b}, which {tool_room(a)}/ may not know")


def test_folder(path):
    """Where the test of a source lies: of dataplane/ports/dpdk/gate.c in ports/, of tools/common/opt.c in tools/."""
    parts = path.split("/")
    return parts[1] if parts[0] == "dataplane" and len(parts) > 2 else parts[0]


def rule_tests(house):
    """A test that bears the name of a source lies in the folder of that source's room; no file lies beside the folders."""
    folders = {}
    for path, _ in house.sources(".c", ".h"):
        if folder_of(path) in FOLDERS + ("tools",):
            folders.setdefault(f"test_{stem_of(path)}.c", set()).add(test_folder(path))
    for path, _ in house.sources(".c", ".h", ".py", ".sh"):
        parts = path.split("/")
        if parts[0] != "tests":
            continue
        right = folders.get(parts[-1])
        if len(parts) < 3 or parts[1] not in TEST_FOLDERS:
            house.fail(path, 1, f"tests/ has the folders {' '.join(TEST_FOLDERS)}, and files in them alone")
        elif right and parts[1] not in right:
            house.fail(path, 1, f"it tests a source of {'/ or '.join(sorted(right))}/: its place is there")


def rule_bindings(house):
    """A binding is a program of others: it knows gx/ and its own folder alone."""
    for path, text in house.sources(".c", ".h"):
        if folder_of(path) != "bindings":
            continue
        for line, angle, name in includes(text):
            own = not angle and f"{path.rpartition('/')[0]}/{name}" in house.files
            own = own or path.startswith("bindings/python/") and name in ("Python.h", "structmember.h")
            if not own and not name.startswith("gx/") and not (angle and is_libc(name)):
                house.fail(path, line, f"{name}: a binding includes gx/ and its own folder alone")


def rule_public_header(house):
    """The public header needs libc alone, and internal headers need no folder's private ones."""
    for path, text in house.sources(".h"):
        if not path.startswith("include/"):
            continue
        public = path.startswith("include/gx/")
        for line, _, name in includes(text):
            if public and not is_libc(name) and not name.startswith("gx/"):
                house.fail(path, line, f"{name}: the public API has libc types only")
            elif not public and not is_libc(name) and not is_gx(name):
                house.fail(path, line, f"{name}: a contract between folders names no third party")


def rule_cuda_sources(house):
    """desc.h is all that nvcc sees of gx, beside headers private to gpu/."""
    for path, text in house.sources(".cu", ".cuh"):
        for line, _, name in includes(text):
            if is_gx(name) and name != "gx_internal/desc.h":
                house.fail(path, line, f"{name}: a .cu file includes gx_internal/desc.h alone")


def reached(house, path):
    """[(line in path, header)] of all that a file includes, through gx's own headers too."""
    out, seen = [], set()
    todo = [(line, name) for line, _, name in includes(house.files[path])]
    while todo:
        line, name = todo.pop()
        if (name in seen) or seen.add(name):
            continue
        out.append((line, name))
        for inner in (f"include/{name}", f"{folder_of(path)}/{name}"):
            todo += [(line, n) for _, _, n in includes(house.files.get(inner, ""))]
    return out


def rule_leaves(house):
    """flow, msg, cc and block do not know one another and reach no header of I/O, threads or time."""
    for leaf in LEAVES:
        for path in (f"{LEAVES[leaf]}.c", f"{LEAVES[leaf]}.h"):
            if path not in house.files:
                continue
            for line, name in reached(house, path):
                if not is_libc(name) and stem_of(name) in LEAVES and stem_of(name) != leaf:
                    house.fail(path, line, f"{name}: flow, msg, cc and block do not include one another")
                elif LEAF_HEADERS_BANNED.match(name):
                    house.fail(path, line, f"<{name}>, reached from this include: a leaf does no I/O")


def rule_pure(house):
    """The files that the simulator runs take time as an argument and neither allocate in a turn nor do I/O."""
    for path, text in house.sources(".c"):
        if folder_of(path) != "dataplane" or (stem_of(path) not in PURE and not path.startswith(PURE_ROOM)):
            continue
        for name, first, _, body in functions(code_only(text)):
            for match in PURE_CALLS_BANNED.finditer(body):
                if body[:match.start()].rstrip().endswith(("->", ".")):
                    continue # an ops table's slot
                house.fail(path, first + body.count("\n", 0, match.start()), f"{match.group(1)}() in {name}()")
            for match in ALLOC_CALLS.finditer(body):
                if not ALLOC_ALLOWED_IN.search(name):
                    house.fail(path, first + body.count("\n", 0, match.start()),
                               f"{match.group(1)}() in {name}(): memory is taken at open, not in a turn")


def rule_third_party(house):
    """A third party's header appears in one file of gx, or in one folder that bears its name; and in one file of the tools."""
    where = {}
    for path, text in house.sources(".c", ".h", ".cu"):
        folder = folder_of(path)
        if folder in ("tests", "docs"):
            continue
        for line, _, name in includes(text):
            if is_libc(name) or is_gx(name) or f"{folder}/{name}" in house.files or f"{path.rpartition('/')[0]}/{name}" in house.files:
                continue
            fam = family(name)
            if fam == "cmocka":
                house.fail(path, line, f"{name}: for tests only")
            if fam == "cuda" and path.endswith(".cu"):
                continue
            where.setdefault((fam, "tools" if folder == "tools" else "gx"), {})[path] = line
    for (fam, side), paths in sorted(where.items()):
        first, *others = sorted(paths, key=lambda p: (p.split("/")[-2] != fam, p)) # what is in its folder first
        for path in others:
            if (folder := path.rpartition("/")[0]) != first.rpartition("/")[0] or not folder.endswith(f"/{fam}"):
                house.fail(path, paths[path], f"{fam}'s headers are included by {first} already: one file of {side}, "
                           f"or one folder called {fam}/")


WHERE = re.compile(r"`(struct )?(\w+)` in ([\w./]+\.[ch])\b")


def rule_where(house):
    """What docs/where.md says is somewhere is there."""
    for line, text in enumerate(house.files.get("docs/where.md", "").splitlines(), 1):
        for struct, name, path in WHERE.findall(text):
            code = code_only(house.files.get(path, ""))
            there = re.search(rf"^struct {name} \{{", code, re.M) if struct else name in [f[0] for f in functions(code)]
            if not there:
                house.fail("docs/where.md", line, f"{struct}{name} is not in {path}")


DOC_COLUMNS = 100
PAGE_FAIL = 300   # lines of a page of docs/, but for figures, and for two that one looks things up in
PAGES_LONG = ("docs/pytorch.md", "docs/wire.md")
LINK = re.compile(r"\]\(([^()\s]+)\)")


def is_page(path):
    return path.endswith(".md") and (path.startswith("docs/") or "/" not in path)


def prose(text):
    """[(line, text)] of a page without what stands between ``` and ```."""
    out, fenced = [], False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced:
            out.append((number, line))
    return out


def anchors(text):
    """What a link may name behind #: the headings of a page, as they are spelt there."""
    heads = (re.sub(r"[`*]|" + LINK.pattern, "", line.lstrip("#").strip()) for _, line in prose(text) if line.startswith("#"))
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def rule_doc_columns(house):
    """A line of a page is short, but for tables, code and the targets of links."""
    for path, text in house.sources(".md"):
        for number, line in prose(text) if is_page(path) else ():
            columns = len(LINK.sub("]", line))
            if columns > DOC_COLUMNS and not line.lstrip().startswith("|"):
                house.fail(path, number, f"{columns} columns; the limit is {DOC_COLUMNS}")


def rule_doc_length(house):
    """A page of docs/ is about one subject."""
    for path, text in house.sources(".md"):
        lines = text.count("\n")
        if path.startswith("docs/") and not path.startswith("docs/measured/") and path not in PAGES_LONG and lines > PAGE_FAIL:
            house.fail(path, lines, f"{lines} lines; the limit is {PAGE_FAIL}: which part of it is a subject of its own?")


def rule_doc_links(house):
    """A link of a page names a file that is there, and a heading that is in it."""
    for path, text in house.sources(".md"):
        for number, line in prose(text) if is_page(path) else ():
            for target in LINK.findall(line):
                if "://" in target:
                    continue
                name, _, anchor = target.partition("#")
                name = posixpath.normpath(posixpath.join(posixpath.dirname(path), name)) if name else path
                if name not in house.files and name != "." and not any(other.startswith(f"{name}/") for other in house.files):
                    house.fail(path, number, f"{target}: there is no {name}")
                elif anchor and name.endswith(".md") and anchor not in anchors(house.files[name]):
                    house.fail(path, number, f"{target}: {name} has no such heading")


OPTION = re.compile(r"(?<![\w-])--([a-z][\w-]*)")
# Options of other programs that pages show: valgrind, compute-sanitizer, torchrun, mpirun, git, docker.
FOREIGN = {"fair-sched", "toggle-collect", "tool", "kernel-name", "kernel-name-exclude", "num-cuda-barriers", "no-python", "nproc-per-node",
           "nnodes", "node-rank", "master-addr", "rm", "network", "ulimit", "security-opt", "cpuset-cpus", "pid", "tmpfs"}


def rule_doc_options(house):
    """An option that a page names is one of gx's tools or scripts."""
    known = set(FOREIGN)
    for path, text in house.files.items():
        if path == "run" or path.startswith("tools/") or (path.startswith(("tests/", "bindings/")) and path.endswith(".py") and not path.endswith("test_house.py")):
            known.update(OPTION.findall(text), re.findall(r'\{"([a-z][\w-]*)",', text))
    for path, text in house.sources(".md"):
        for number, line in enumerate(text.splitlines(), 1):
            for name in sorted(set(OPTION.findall(LINK.sub("]", line))) - known):
                house.fail(path, number, f"--{name}: nothing of gx has this option")


def rule_doc_files(house):
    """docs/ has pages, sources of man pages, programs, and pictures and schemas that a page shows; raw results go elsewhere (docs/measured/README.md)."""
    shown = {posixpath.normpath(posixpath.join(posixpath.dirname(path), target)) for path, text in house.sources(".md")
             for target in LINK.findall(text)}
    for path in house.files:
        if path.startswith("docs/") and not path.endswith((".md", ".scd", ".c", ".py")) and not (path.endswith((".svg", ".json")) and path in shown):
            house.fail(path, 1, "neither a page, nor a program, nor a picture that a page shows")


def rule_calls(house):
    """A room of dataplane/ names no function of a higher one; poll/ and gpu/ none of dataplane/, nobody one of the tools."""
    height = {"poll": -2, "gpu": -1, **{f"dataplane/{room}": i for i, room in enumerate(ROOMS)}}
    height.update({f"dataplane/{inner}": height[f"dataplane/{inner.split('/')[0]}"] for inner in INNER_ROOMS})
    graph = Graph(house.files)
    for a in sorted(graph.uses):
        for b, names in sorted(graph.uses[a].items()):
            if height.get(room_of(a), len(ROOMS)) < height.get(room_of(b), len(ROOMS)):
                house.fail(a, 1, f"{' '.join(sorted(names))}: of {b}, which is higher")


def rule_circles(house):
    """Files that all reach one another are one thing in pieces: two may, and none of the packet link."""
    for circle in Graph(house.files).circles():
        if len(circle) > CIRCLE_FAIL or circle[0].startswith("dataplane/packet/"):
            house.fail(circle[0], 1, f"a circle of calls: {' '.join(circle)}")


def rule_drawing(house):
    """docs/architecture.md shows who uses whom as it is."""
    page = "docs/architecture.md"
    if page not in house.files:
        return
    match = re.search(r"<!-- tests/house/house_graph.py --drawing -->\n```\n(.*?)```\n", house.files[page], re.S)
    if not match:
        house.fail(page, 1, "the drawing of tests/house/house_graph.py --drawing is not there")
        return
    first, now = house.files[page].count("\n", 0, match.start(1)) + 1, drawing(Graph(house.files))
    for i, (old, new) in enumerate(zip(match.group(1).splitlines() + [""] * len(now), now)):
        if old != new:
            house.fail(page, first + i, f"is now: {new} (take the output of tests/house/house_graph.py --drawing)")
            return
    if len(match.group(1).splitlines()) != len(now):
        house.fail(page, first + len(now), "more lines than tests/house/house_graph.py --drawing prints")


def rule_file_length(house):
    """A file of the product is a thing that one can read."""
    for path, text in house.sources(".c", ".h", ".cu", ".cuh"):
        lines = text.count("\n")
        if folder_of(path) in FOLDERS + ("bindings", "tools", "include") and lines > FILE_FAIL:
            house.fail(path, lines, f"{lines} lines; the limit is {FILE_FAIL}: which part of it is a thing of its own?")


LITERAL = re.compile(r'/\*.*?\*/|//[^\n]*|\'(?:\\.|[^\'\\\n])*\'|"(?:\\.|[^"\\\n])*"', re.S)
TOOL_WORD = re.compile(r"(?<![\w-])--[a-z][\w-]*|\bgx(?:d|perf)\b")
API_FIELD = re.compile(r"\b(gx_\w+)\.([a-z]\w*)")
# EAL's own arguments.
TOOL_WORDS_IN = ("dataplane/ports/dpdk/eal.c",)
FLAGS = "tools/common/flag.c"
NAMES = re.compile(r"^static const struct gx_name \w+\[\] = \{\n(.*?)^\};", re.M | re.S)


def literals(text):
    """[(line, what is in quotes)]; those that follow one another are one text."""
    out, end = [], None
    for match in LITERAL.finditer(text):
        if match.group(0)[0] != '"':
            continue
        if out and not text[end:match.start()].strip():
            out[-1] = (out[-1][0], out[-1][1] + match.group(0)[1:-1])
        else:
            out.append((text.count("\n", 0, match.start()) + 1, match.group(0)[1:-1]))
        end = match.end()
    return out


def rule_texts(house):
    """A text of the library names fields of the API that are there, no option of a tool; the tools know an option for each."""
    api = "".join(code_only(text) for path, text in house.sources(".h") if path.startswith(("include/gx/", "include/gxlab/")))
    fields = {name: body for name, body in re.findall(r"^struct (gx_\w+) \{\n(.*?)^\};", api, re.M | re.S)}
    flags = dict(re.findall(r'^\t\{"(gx_[^"]+)", "([^"]+)"\},$', house.files.get(FLAGS, ""), re.M))
    said = set()
    for path, text in house.sources(".c", ".h", ".cu"):
        for line, words in literals(text) if folder_of(path) in FOLDERS + ("include",) else ():
            if path not in TOOL_WORDS_IN and (word := TOOL_WORD.search(words)):
                house.fail(path, line, f"{word.group(0)}: a program that is no tool of gx does not know it; name the field of the API")
            for struct, field in API_FIELD.findall(words):
                if not re.search(rf"\b{field}\b", fields.get(struct, "")):
                    house.fail(path, line, f"struct {struct} has no field {field}")
                elif struct.endswith("_opts") and f"{struct}.{field}" not in flags: # the others are the programmer's
                    house.fail(path, line, f"{struct}.{field}: say in {FLAGS} which option of the tools that is")
            said.add(words)
    for path, text in house.sources(".c", ".cc"):
        for name, own in (pair for table in NAMES.findall(text) for pair in re.findall(r'\{"(gx_[^"]+)", "([^"]+)"\}', table)):
            if not any(name in words for words in said):
                house.fail(path, 1, f"no text of the library says {name}")
            if len(own) > len(name):
                house.fail(path, 1, f"{own} is longer than {name}; gx_names_say() has no room for it")


def rule_mutants(house):
    """Each line that tests/house/mutants.py changes is where it says, once, and each mutant has a name of its own."""
    text = house.files.get("tests/house/mutants.py", "MUTANTS = {\n}\n")
    match = re.search(r"^MUTANTS = (\{\n.*?^\})$", text, re.M | re.S)
    if not match:
        house.fail("tests/house/mutants.py", 1, "there is no table MUTANTS")
        return
    names = [key.value for key in ast.parse(match.group(1), mode="eval").body.keys]
    for name in {n for n in names if names.count(n) > 1}:
        house.fail("tests/house/mutants.py", 1, f"more than one mutant is called {name}")
    for name, (_, changes, _) in ast.literal_eval(match.group(1)).items():
        for path, old, _ in changes:
            found = house.files.get(path, "").count(old)
            if found != 1:
                line = text.count("\n", 0, text.index(f'"{name}"')) + 1
                house.fail("tests/house/mutants.py", line, f"{name}: {path} has {old!r} {found} times, not once")


def rule_packages(house):
    """What debian/control builds with, `./run packages` installs, and build-essential, which no package names."""
    control, run = house.files.get("debian/control", ""), house.files.get("run", "")
    named = re.search(r"^Build-Depends:(.*(?:\n .*)*)", control, re.M)
    lists = dict(re.findall(r"^readonly (PKGS_\w+)=\(([^)]*)\)", run, re.M))
    have = set(" ".join(lists.get(name, "") for name in ("PKGS_BUILD", "PKGS_PACKAGES")).split())
    sequences = {"dh-sequence-python3": "dh-python", "dh-sequence-installsysusers": "debhelper", "debhelper-compat": "debhelper"}
    wanted = [re.sub(r"[ (].*", "", word.strip()) for word in named.group(1).split(",")] + ["build-essential"] if named else []
    for name in wanted:
        if sequences.get(name, name) not in have:
            house.fail("run", 1, f"debian/control wants {name}: neither PKGS_BUILD nor PKGS_PACKAGES has it")


STATE_WRITTEN = re.compile(r"\bstate\s*=(?!=)[^;,]*\b((?:IN|OP|CTL)_[A-Z]+)\b")


def rule_states(house):
    """Of a machine with a table, one function alone writes the state: in_goto(), op_goto(), ctl_conn_goto()."""
    for path, text in house.sources(".c", ".h"):
        code = code_only(text) if path.startswith("dataplane/") else ""
        for match in STATE_WRITTEN.finditer(code):
            name = {"IN": "in_goto", "OP": "op_goto", "CTL": "ctl_conn_goto"}[match.group(1).split("_")[0]]
            house.fail(path, code.count("\n", 0, match.start()) + 1, f"{match.group(1)} is written by hand: {name}() looks into the table")


def part_of(stem, noun):
    """Is file noun_x.c a part of noun.c?"""
    return stem == noun or stem.startswith(noun + "_")


def rule_nouns(house):
    """A name that crosses a file does not begin with the noun of another file of its room. That of a room, of a link and of the API
    are everybody's there."""
    rooms = {}
    for path, text in house.sources(".c"):
        if folder_of(path) in ("dataplane", "tools"):
            rooms.setdefault(os.path.dirname(path), {})[stem_of(path)] = (path, text)
    for room, files in rooms.items():
        for stem, (path, text) in files.items():
            code = code_only(text)
            own = set(re.findall(r"^static\b[^;{}=]*?(\w+)\((?!\()", code, re.M))
            for name, line, _, _ in functions(code):
                nouns = [n for n in files if part_of(name, n) and n != os.path.basename(room) and not n.startswith("link_")]
                if nouns and name not in own and not any(part_of(stem, n) for n in nouns):
                    house.fail(path, line, f"{name}() has the noun of {max(nouns, key=len)}.c")


# What a thing was called once: docs/architecture.md has the word of today.
WORDS_GONE = re.compile(
    r"\b(?:\w*doom\w*|cc_told|pkt_told|nr_told|told_(?:b|ns|by|fds)|cc_beside|sub_comps|rx_give_up|tx_unref"
    r"|pkt_cuts?|cut_(?:get|part|number)|CUT_(?:PUT|GET|SERVE|TAKE)|help_piece|HELP_PIECES|PULL_PIECE_B|heir|shy|wary|\w+_wary|astray|deafen|\w*verbs_note\w*|VERBS_NOTE\w*|local_notes?(?:_\w+)?|LOCAL_NOTES\w*|zc_notes?|auth_way|gx_hello_way|\w*verbs_ways?\w*|nr_ways|VERBS_WAYS\w*)\b")
PRODUCT_WORDS_GONE = re.compile(r"\b(?:told|told_\w+|\w+_told|(?:nr|is)_beside|inlined)\b")


def rule_words(house):
    for path, text in house.sources(".c", ".h"):
        gone = (WORDS_GONE,) if path.startswith(("tests/", "docs/")) else (WORDS_GONE, PRODUCT_WORDS_GONE)
        for number, line in enumerate(code_only(text).splitlines(), 1):
            for match in (m for words in gone for m in words.finditer(line)):
                house.fail(path, number, f"{match[0]}: docs/architecture.md, Words, has the word for it")


def rule_function_length(house):
    """Functions stay short."""
    for path, text in house.sources(".c", ".h", ".cu"):
        for name, first, lines, _ in functions(code_only(text)):
            if lines > FUNCTION_FAIL:
                house.fail(path, first, f"{name}() has {lines} lines; the limit is {FUNCTION_FAIL}")
            elif lines > FUNCTION_WARN:
                house.warn(path, first, f"{name}() has {lines} lines; aim for {FUNCTION_WARN} at most")


RULES = (rule_nouns, rule_words, rule_spdx, rule_no_parent_path, rule_no_typedef_struct, rule_folders, rule_rooms, rule_links, rule_tool_rooms, rule_bindings, rule_tests, rule_public_header,
         rule_cuda_sources, rule_leaves, rule_pure, rule_third_party, rule_where, rule_doc_columns, rule_doc_length, rule_doc_links, rule_doc_options, rule_doc_files,
         rule_calls, rule_circles, rule_drawing, rule_file_length, rule_texts, rule_mutants, rule_packages, rule_states, rule_function_length)


# --- each rule must bite ----------------------------------------------------------------------------------

SPDX = "/* SPDX-License-Identifier: Apache-2.0 */\n"
# (rule, files, failures expected)
SAMPLES = (
    (rule_spdx, {"poll/a.c": "int x;\n"}, 1),
    (rule_spdx, {"run": "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\n"}, 0),
    (rule_no_parent_path, {"poll/a.c": '#include "../gpu/b.h"\n'}, 1),
    (rule_packages, {"debian/control": "Build-Depends: debhelper-compat (= 13),\n a,\n b (>= 2)\nX: y\n", "run": "readonly PKGS_BUILD=(a)\nreadonly PKGS_PACKAGES=(c debhelper)\n"}, 2),
    (rule_packages, {"debian/control": "Build-Depends: a\n", "run": "readonly PKGS_BUILD=(a)\nreadonly PKGS_PACKAGES=(build-essential)\n"}, 0),
    (rule_no_typedef_struct, {"poll/a.h": "typedef struct a {\n\tint x;\n} a;\n"}, 1),
    (rule_no_typedef_struct, {"poll/a.h": "/* typedef struct */\nstruct a;\n"}, 0),
    (rule_folders, {"poll/a.c": '#include "gx_internal/port.h"\n'}, 1),
    (rule_folders, {"gpu/a.c": '#include "dataplane/rx.h"\n'}, 1),
    (rule_folders, {"gpu/a.c": '#include "packet/rx.h"\n', "dataplane/packet/rx.h": ""}, 1),
    (rule_folders, {"tools/a.c": '#include "gx_internal/ring.h"\n'}, 1),
    (rule_folders, {"tools/gxd/a.c": '#include <gx/gx.h>\n#include "common/hist.h"\n', "tools/common/hist.h": ""}, 0),
    (rule_folders, {"dataplane/core/a.c": '#include "gx_internal/port.h"\n#include "core/a.h"\n', "dataplane/core/a.h": ""}, 0),
    (rule_folders, {"poll/a.c": '#include "core/a.h"\n', "dataplane/core/a.h": ""}, 1),
    (rule_folders, {"gpu/a.c": '#include <gxlab/load.h>\n#include "lab/load_core.h"\n', "gpu/lab/load_core.h": ""}, 2),
    (rule_folders, {"gpu/lab/a.c": '#include <gxlab/load.h>\n#include "b.h"\n', "tools/a.c": "#include <gxlab/load.h>\n", "gpu/b.h": ""}, 0),
    (rule_tool_rooms, {"tools/common/a.c": '#include "gxd/gxd.h"\n'}, 1),
    (rule_tool_rooms, {"tools/gxd/a.c": '#include "common/opt.h"\n#include "gxperf/base/perf.h"\n#include "opt.h"\n'}, 2),
    (rule_tool_rooms, {"tools/a.c": ""}, 1),
    (rule_tool_rooms, {"tools/gxperf/move/a.c": '#include "gxperf/lab/b.h"\n#include "gxperf/base/c.h"\n#include "gxperf/move/d.h"\n'}, 1),
    (rule_tool_rooms, {"tools/gxd/serve/a.c": "void f(void)\n{\n\tg();\n}\n", "tools/gxd/b.c": "void g(void)\n{\n}\n"}, 1),
    (rule_tool_rooms, {"tools/gxd/a.c": "void f(void)\n{\n\tg();\n}\n", "tools/gxd/serve/b.c": "void g(void)\n{\n}\n"}, 0),
    (rule_links, {"dataplane/control/a.c": '#include "verbs/verbs.h"\nint a = GX_LINK_TCP;\n'}, 2),
    (rule_links, {"dataplane/core/a.c": "void *a(struct gx_conn *c)\n{\n\treturn c->verbs ? c->verbs : tcp_conn_of(c);\n}\n"}, 3),
    (rule_nouns, {"dataplane/packet/a.c": "void b_x(void)\n{\n}\n", "dataplane/packet/b.c": "void b_y(void)\n{\n}\n"}, 1),
    (rule_nouns, {"dataplane/packet/a.c": "static void b_x(void)\n{\n}\nvoid packet_z(void)\n{\n}\n", "dataplane/packet/b_c.c": "void b_y(void)\n{\n}\n",
                  "dataplane/packet/b.c": ""}, 0),
    (rule_words, {"poll/a.c": "int doomed;\n"}, 1),
    (rule_words, {"poll/a.c": "/* doom */\nint b;\n"}, 0),
    (rule_links, {"dataplane/api/links.c": '#include "tcp/tcp.h"\n', "dataplane/tcp/a.c": "int a = GX_LINK_TCP;\n"}, 0),
    (rule_rooms, {"dataplane/core/a.c": '#include "packet/pkt.h"\n'}, 1),
    (rule_rooms, {"dataplane/packet/a.c": '#include "core/core.h"\n#include "gx_internal/port.h"\n#include <stdio.h>\n'}, 0),
    (rule_rooms, {"dataplane/packet/a.c": '#include "pkt.h"\n'}, 1),
    (rule_rooms, {"dataplane/a.c": "", "dataplane/attic/b.c": "", "dataplane/packet/attic/c.c": ""}, 3),
    (rule_rooms, {"dataplane/ports/dpdk/a.c": '#include "ports/dpdk/net.h"\n#include "core/core.h"\n'}, 0),
    (rule_rooms, {"dataplane/ports/dpdk/a.c": '#include "net.h"\n#include "packet/pkt.h"\n'}, 2),
    (rule_tests, {"dataplane/packet/a.c": "", "tests/core/test_a.c": "", "tests/test_b.c": "", "tests/attic/c.py": ""}, 3),
    (rule_tests, {"dataplane/ports/dpdk/a.c": "", "tools/common/a.c": "", "gpu/lab/b.c": "", "tests/tools/test_a.c": "", "tests/ports/test_a.c": "",
                  "tests/gpu/test_b.c": "", "tests/gpu/a.c": "", "tests/sim/test_c.c": "", "tests/meson.build": ""}, 0),
    (rule_bindings, {"bindings/x/a.c": '#include <gx/gx.h>\n#include "a.h"\n#include <stdio.h>\n', "bindings/x/a.h": ""}, 0),
    (rule_bindings, {"bindings/x/a.c": '#include "gx_internal/ring.h"\n#include "core/core.h"\n#include <nccl.h>\n'}, 3),
    (rule_public_header, {"include/gx/gx.h": "#include <rte_ethdev.h>\n"}, 1),
    (rule_public_header, {"include/gx/gx.h": '#include "gx_internal/base.h"\n#include <stdint.h>\n'}, 1),
    (rule_public_header, {"include/gx_internal/a.h": "#include <cuda.h>\n"}, 1),
    (rule_cuda_sources, {"gpu/a.cu": '#include "gx_internal/gpu.h"\n'}, 1),
    (rule_cuda_sources, {"gpu/a.cu": '#include "gx_internal/desc.h"\n#include "crc.cuh"\n'}, 0),
    (rule_leaves, {"dataplane/flow/flow.c": '#include "msg.h"\n', "dataplane/flow/msg.h": ""}, 1),
    (rule_leaves, {"dataplane/copy/block.c": '#include "gx_internal/x.h"\n', "include/gx_internal/x.h": "#include <stdio.h>\n"}, 1),
    (rule_leaves, {"dataplane/flow/msg.c": '#include "msg.h"\n#include <string.h>\n', "dataplane/flow/msg.h": ""}, 0),
    (rule_pure, {"dataplane/packet/rx.c": "static int rx_one(void)\n{\n\treturn gx_now_ns() > 1;\n}\n"}, 1),
    (rule_pure, {"dataplane/flow/msg.c": "static void msg_place(void)\n{\n\tcalloc(1, 2);\n}\n"}, 1),
    (rule_pure, {"dataplane/flow/msg.c": "int msg_open(void)\n{\n\treturn !calloc(1, 2);\n}\n"}, 0),
    (rule_pure, {"dataplane/packet/tx.c": "static void tx_x(struct q *q)\n{\n\tq->ops->send(q);\n}\n"}, 0),
    (rule_third_party, {"poll/a.c": "#include <liburing.h>\n", "gpu/b.c": "#include <liburing.h>\n"}, 1),
    (rule_third_party, {"tools/a.c": "#include <jansson.h>\n", "tools/b.c": "#include <jansson.h>\n"}, 1),
    (rule_third_party, {"poll/a.c": "#include <cmocka.h>\n"}, 1),
    (rule_third_party, {"poll/a.c": "#include <liburing.h>\n", "poll/b.c": "#include <liburing.h>\n"}, 1),
    (rule_third_party, {"poll/a.c": "#include <openssl/evp.h>\n", "dataplane/b.c": "#include <openssl/ssl.h>\n"}, 0),
    (rule_third_party, {f"dataplane/ports/dpdk/{n}.c": "#include <rte_mbuf.h>\n" for n in "ab"}, 0),
    (rule_third_party, {f"dataplane/ports/{n}.c": "#include <rte_mbuf.h>\n" for n in ("a", "dpdk/b", "dpdk/c")}, 1),
    (rule_third_party, {f"{n}/dpdk/a.c": "#include <rte_mbuf.h>\n" for n in ("dataplane/ports", "gpu")}, 1),
    (rule_third_party, {"dataplane/p.c": "#include <rte_ethdev.h>\n#include <rte_mbuf.h>\n", "tests/t.c": "#include <rte_eal.h>\n"}, 0),
    (rule_where, {"docs/where.md": "`f` in poll/a.c, `struct s` in poll/a.h\n", "poll/a.c": "void f(void)\n{\n}\n", "poll/a.h": "struct s {\n"}, 0),
    (rule_where, {"docs/where.md": "`f` in poll/a.c\n`struct s` in poll/b.h\n", "poll/a.c": "void g(void)\n{\n\tf();\n}\n"}, 2),
    (rule_doc_columns, {"README.md": "x" * 101 + "\n", "docs/a.md": "x" * 101 + "\n", "tests/x/note.md": "x" * 101 + "\n"}, 2),
    (rule_doc_columns, {"README.md": "x" * 100 + "\n", "docs/measured/a.md": "| " + "x " * 60 + "|\n```\n" + "x " * 60 + "\n```\n[a](" + "x" * 99 + ")\n"}, 0),
    (rule_doc_length, {"docs/a.md": "x\n" * 301, "docs/a/b.md": "x\n" * 301, "docs/measured/a.md": "x\n" * 301}, 2),
    (rule_doc_length, {"docs/a.md": "x\n" * 300}, 0),
    (rule_doc_links, {"README.md": "[a](docs/a.md#no-such) [b](docs/b.md)\n[c](docs) `[d](e)`\n", "docs/a.md": "# A\n[a](#b)\n"}, 4),
    (rule_doc_links, {"docs/a.md": "# The `x`: a, b\n[a](#the-x-a-b) [b](../poll/a.c) [c](https://example.org/x) [d](..)\n", "poll/a.c": ""}, 0),
    (rule_doc_options, {"docs/a.md": "`--port` and --gone, --y\n[a](b.md#c--d)\n", "tools/a.c": '{"port", 1},', "run": "--x"}, 2),
    (rule_doc_options, {"docs/a.md": "a--b --x\n| --- |\n", "run": "--x"}, 0),
    (rule_doc_files, {"docs/a/b.md": "![a](x.svg) [b](y.json)\n", "docs/a/x.svg": "", "docs/a/y.json": "", "docs/a/z.svg": "", "docs/a/w.json": ""}, 2),
    (rule_doc_files, {"docs/a.md": "![a](a/x.svg)\n", "docs/a/x.svg": "", "docs/b.c": ""}, 0),
    (rule_calls, {"dataplane/core/a.c": "void f(void)\n{\n\tg();\n}\n", "dataplane/packet/b.c": "void g(void)\n{\n}\n"}, 1),
    (rule_calls, {"dataplane/packet/a.c": "void f(void)\n{\n\tg();\n}\n", "dataplane/core/b.c": "void g(void)\n{\n}\n"}, 0),
    (rule_calls, {"gpu/a.c": "struct t t = {.x = g};\nvoid f(void)\n{\n\tt.fn = g;\n}\n", "dataplane/core/b.c": "void g(void)\n{\n}\n"}, 1),
    (rule_calls, {"gpu/a.c": "void f(struct g *x)\n{\n\tint g = x->g; /* g() */\n}\n", "dataplane/core/b.c": "void g(void)\n{\n}\n"}, 0),
    (rule_calls, {"gpu/a.c": "static void g(void)\n{\n}\nvoid f(void)\n{\n\tg();\n}\n", "dataplane/core/b.c": "void g(void)\n{\n}\n"}, 0),
    (rule_circles, {f"poll/{a}.c": f"void {a}(void)\n{{\n\t{b}();\n}}\n" for a, b in ("fg", "gh", "hf")}, 1),
    (rule_circles, {f"poll/{a}.c": f"void {a}(void)\n{{\n\t{b}();\n}}\n" for a, b in ("fg", "gf", "hf")}, 0),
    (rule_circles, {f"dataplane/packet/{a}.c": f"void {a}(void)\n{{\n\t{b}();\n}}\n" for a, b in ("fg", "gf")}, 1),
    (rule_drawing, {"docs/architecture.md": "x\n", "poll/a.c": ""}, 1),
    (rule_drawing, {"docs/architecture.md": "<!-- tests/house/house_graph.py --drawing -->\n```\npoll\n```\n", "poll/a.c": ""}, 0),
    (rule_drawing, {"docs/architecture.md": "<!-- tests/house/house_graph.py --drawing -->\n```\npoll  gpu\n```\n", "poll/a.c": ""}, 1),
    (rule_drawing, {"docs/architecture.md": "<!-- tests/house/house_graph.py --drawing -->\n```\npoll\ngpu\n```\n", "poll/a.c": ""}, 1),
    (rule_file_length, {"poll/a.c": "x\n" * 801, "tests/a.c": "x\n" * 801}, 1),
    (rule_file_length, {"poll/a.c": "x\n" * 800}, 0),
    (rule_texts, {"poll/a.c": 'x("take "\n  "--bounce host");\ny("start gxd"); /* "--port" */\n', "tools/gxd/a.c": '"--port"\n'}, 2),
    (rule_texts, {"poll/a.c": 'x("a--b, gxd_x");\n', "dataplane/ports/dpdk/eal.c": '"--lcores"\n'}, 0),
    (rule_texts, {"poll/a.c": 'x("set gx_opts.a, gx_op.b");\n', "include/gx/a.h": "struct gx_opts {\n\tint a;\n};\nstruct gx_op {\n\tint b;\n};\n",
                  FLAGS: '\t{"gx_opts.a", "--a"},\n'}, 0),
    (rule_texts, {"poll/a.c": 'x("set gx_opts.a, "\n  "gx_opts.b");\n', "include/gx/a.h": "struct gx_opts {\n\tint a;\n};\n"}, 2),
    (rule_texts, {FLAGS: 'static const struct gx_name flags[] = {\n\t{"gx_o.a", "--long-flag"},\n};\n'}, 2),
    (rule_mutants, {"tests/house/mutants.py": 'MUTANTS = {\n"M": ("", [("poll/a.c", "x" "y", "")], []),\n}\n', "poll/a.c": "xy\n"}, 0),
    (rule_mutants, {"tests/house/mutants.py": 'MUTANTS = {\n"M": ("", [("poll/a.c", "y", ""), ("poll/b.c", "y", "")], []),\n}\n', "poll/a.c": "yy\n"}, 2),
    (rule_mutants, {"tests/house/mutants.py": ""}, 1),
    (rule_mutants, {"tests/house/mutants.py": 'MUTANTS = {\n"M": ("", [], []),\n"M": ("", [], []),\n}\n'}, 1),
    (rule_states, {"dataplane/packet/a.c": "m->state = IN_FREE;\nx = (struct y){.state = OP_SENT};\nc->state = up ? CTL_UP : s;\n"}, 3),
    (rule_states, {"dataplane/packet/a.c": "m->state = to; /* state = IN_FREE */\nif (m->state == IN_FREE)\n\ts->state = SUB_IDLE;\n",
                   "tests/a.c": "m->state = IN_FREE;\n"}, 0),
    (rule_function_length, {"poll/a.c": "static void f(int a,\n\t      int b)\n{\n" + "\tx();\n" * 101 + "}\n"}, 1),
    (rule_function_length, {"poll/a.c": "static void f(void)\n{\n" + "\tx();\n" * 100 + "}\n"}, 0),
)


def rules_bite():
    """[message] for every sample on which a rule finds more or less than it should."""
    out = []
    for rule, files, expected in SAMPLES:
        house = House(files)
        rule(house)
        if len(house.failures) != expected:
            out.append(f"{rule.__name__} found {house.failures} in {files}, expected {expected}")
    missing = {r.__name__ for r in RULES} - {r.__name__ for r, _, n in SAMPLES if n}
    return out + [f"{name} has no sample that breaks it" for name in sorted(missing)]


# --- headers compile alone --------------------------------------------------------------------------------

# A program begins with this; GX_INIT() is another macro in each language.
INIT = """
#include <gx/gx.h>
struct gx_opts init_given(void);
struct gx_opts init_given(void)
{
	struct gx_opts o = GX_INIT(o);
	return o;
}
"""


def compiles(compiler, flags, top, header, language):
    """None, or the first lines of what the compiler said."""
    with tempfile.TemporaryDirectory() as tmp:
        unit = pathlib.Path(tmp, "alone." + ("c" if language == "c" else "cc"))
        # Twice: the guard must work too.
        unit.write_text(f'#include "{header}"\n#include "{header}"\nextern int alone;\nint alone;\n' + (INIT if header.startswith("gx/") else ""))
        cmd = compiler.split() + flags + [
            "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-Wno-unused-function",
            "-Wno-missing-field-initializers", "-I", str(top / "include"), "-I", str(top), str(unit)]
        ran = subprocess.run(cmd, capture_output=True, text=True)
        return None if ran.returncode == 0 else "\n    ".join(ran.stderr.strip().splitlines()[:6])


def check_headers(house, top):
    """Each header compiles alone; the public ones as strict C11 and strict C++11, desc.h as C++ for nvcc."""
    cc, cxx = os.environ.get("CC", "cc"), os.environ.get("CXX", "c++")
    gnu, strict = ["-std=gnu11", "-D_GNU_SOURCE"], ["-std=c11", "-pedantic"]
    plus, nvcc = ["-std=c++11", "-pedantic"], ["-std=c++17"]
    jobs = []
    for path, _ in house.sources(".h"):
        # Tests may know any folder's private headers.
        known = FOLDERS + ("bindings", "tools", "tests") if folder_of(path) == "tests" else [folder_of(path)]
        inside = [f"-I{top / d}" for d in known]
        if path.startswith("bindings/python/"):
            python = sysconfig.get_paths()["include"]
            if not os.path.exists(f"{python}/Python.h"):
                continue
            inside.append(f"-I{python}")
        jobs.append((cc, strict if path.startswith("include/gx/") else gnu + inside, path, "c"))
    if shutil.which(cxx.split()[0]):
        jobs += [(cxx, plus, p, "c++") for p in sorted(house.files) if re.fullmatch(r"include/gx/\w+\.h", p)]
        jobs += [(cxx, nvcc, p, "c++") for p in ("include/gx_internal/desc.h",) if p in house.files]
    else:
        print(f"note: {cxx} is not here: the public headers are not checked as C++")
    for compiler, flags, path, language in jobs:
        said = compiles(compiler, flags, top, path.removeprefix("include/"), language)
        if said:
            house.fail(path, 1, f"does not compile alone as {flags[0][5:]}:\n    {said}")
    return len(jobs)


def main(args):
    top = pathlib.Path(args[0] if args else pathlib.Path(__file__).parent.parent.parent).resolve()
    house = House(read_tree(top))
    blunt = rules_bite()
    for rule in RULES:
        rule(house)
    nr_headers = check_headers(house, top)
    for line in blunt:
        print(f"rule that does not bite: {line}")
    for line in house.warnings:
        print(f"warning: {line}")
    for line in house.failures:
        print(f"FAILED: {line}")
    print(f"{len(house.files)} files, {len(RULES)} rules, {nr_headers} headers compiled alone: "
          f"{len(house.failures) + len(blunt)} failures, {len(house.warnings)} warnings")
    return 1 if house.failures or blunt or not nr_headers else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
