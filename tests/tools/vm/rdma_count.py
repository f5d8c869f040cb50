# SPDX-License-Identifier: Apache-2.0
"""Instructions that callgrind counted: what a thread ran in each object, without the objects that it called. test_rdma.py takes
the difference of two runs, so what begins and ends a run is left out.

Of a program with several threads the one counts that ran most in the device's driver: it posts and polls. The shim
(tests/verbs/verbs_shim.c) makes polls wait, so hardly one finds nothing, and its own instructions are left out.
"""
import collections
import pathlib
import re

DRIVER = "librxe"
PROVIDER = (DRIVER, "libibverbs")
SHIM = "libverbs_shim"


def words(out):
    """In front of the command."""
    return ["valgrind", "--tool=callgrind", "--vgdb=no", "--fair-sched=yes", "--separate-threads=yes", f"--callgrind-out-file={out}"]


def costs(path):
    """Instructions by object and function."""
    found, names, at, skip = collections.Counter(), {}, {"ob": "?", "fn": "?"}, False
    for line in path.read_text().splitlines():
        match = re.match(r"(c?)(ob|fn)=\((\d+)\)(?: (.*))?$", line)
        if match:
            called, kind, number, name = match.groups()
            name = names.setdefault((kind, number), name)
            if not called:
                at[kind] = name
        elif line.startswith("calls="):
            skip = True # the next line is the cost of what is called
        elif re.match(r"[\d+*-]", line):
            cost = line.split()[1:]
            if cost and not skip:
                found[at["ob"], at["fn"]] += int(cost[0])
            skip = False
    return found


def is_of(key, names):
    return pathlib.Path(key[0]).name.startswith(names)


def thread_costs(out):
    """Of the thread that posts and polls: libibverbs by itself runs more where a device is opened."""
    threads = [costs(p) for p in sorted(out.parent.glob(out.name + "*")) if re.fullmatch(re.escape(out.name) + r"(-\d+)?", p.name)]
    return max(threads, key=lambda found: sum(n for key, n in found.items() if is_of(key, DRIVER)))


def each(once, twice, nr):
    """Text: instructions for each of @nr puts, in the program, in the provider, elsewhere (libc)."""
    diff = collections.Counter(thread_costs(twice))
    diff.subtract(thread_costs(once))
    parts = {"own": 0, "provider": 0, "elsewhere": 0}
    for key, n in diff.items():
        if is_of(key, SHIM):
            continue
        where = "provider" if is_of(key, PROVIDER) else "elsewhere" if re.match(r"(lib|ld-|\?|vgpreload)", pathlib.Path(key[0]).name) else "own"
        parts[where] += n
    most = "; ".join(f"{key[1]} {n / nr:.0f}" for key, n in diff.most_common(8))
    return f"{parts['own'] / nr:.0f} (provider {parts['provider'] / nr:.0f}, elsewhere {parts['elsewhere'] / nr:.0f}; most in {most})"
