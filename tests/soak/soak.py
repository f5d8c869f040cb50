#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two servers for hours, clients that come and go, and faults: kill, stop, black-out, reload of keys, registrations.

usage: soak.py BUILD_DIR --hours H [--rest SECONDS] [--seed N]     or: soak.py --judge (tests the rule of judge() alone)

One host is two network namespaces joined by a veth pair. gxd serves clients of both by keys, and soak_peer (soak_peer.c) registers
memory for its clients and takes it back, so both servers live all the time. A round: two clients of gxd and one of soak_peer, by
links, sizes and commands that a random number chooses, and one fault among them. Each client must end as the fault allows, in time;
payload is compared by the clients and by soak_peer. Then nobody is connected, and the servers are sampled: resident memory,
descriptors, threads, mappings; judge() has the rule. Each minute a line says how it goes; the end is a table and a sentence.

Exit status: 0 flat and nothing wrong, 1 something was not, 2 usage, 77 network namespaces are refused.
"""
import argparse
import collections
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tools"))
import cli
from cli import CLIENT_CPU, FAILED, LOST, OK, expect
from test_veth import Other, enter, links_make, sh

HERE, THERE = "10.90.0.1", "10.90.0.2"
TIMEOUT_S = 10      # of peers; soak_peer.c has the same
RUN_S = 3           # a client measures for so long
END_S = 90          # a client has ended by then, whatever happened, on a machine that is busy
FIRST_ROUNDS = 8    # not judged: caches fill
SIZES = ("1", "4K", "64K", "1000003", "4M")
# Commands of gxperf, and sizes that all fit into gxd's region at once.
COMMANDS = {"put": SIZES, "get": SIZES, "send": SIZES, "lat": ("1", "64", "4K"), "blocks": ("1K", "4K")}
Sample = collections.namedtuple("Sample", "at_s rss_kib fds threads maps")
GROW_KIB = 1024     # of resident memory, or 2 %


def judge(samples):
    """What is not flat, in words. The rule: behind the first rounds, the least descriptors and threads of the last quarter's samples are
    no more than the least of the first half's (a client that is there takes some for a while); mappings: no more than 8 more; and the
    median of the last quarter's resident memory is at most 1 MiB, or 2 %, above the median of the second quarter's. A context's table
    of keys takes some of that: each registration takes the next of 65,472 places, 22 bytes, until all were used once."""
    s = samples[FIRST_ROUNDS:]
    if len(s) < 8:
        return [f"only {len(s)} rounds to judge, 8 are needed"]
    half, quarter, bad = len(s) // 2, len(s) // 4, []
    for name, more in (("fds", 0), ("threads", 0), ("maps", 8)):
        before, behind = (min(getattr(x, name) for x in part) for part in (s[:half], s[-quarter:]))
        if behind > before + more:
            bad.append(f"{name} grew from {before} to {behind}")
    before, behind = (statistics.median(x.rss_kib for x in part) for part in (s[quarter:half], s[-quarter:]))
    if behind > before + max(GROW_KIB, before * 0.02):
        bad.append(f"resident memory grew from {before:.0f} to {behind:.0f} KiB")
    return bad


def judge_test():
    flat = [Sample(i, 50000 + i % 7 * 30, 20 + i % 3, 4, 200) for i in range(80)]
    expect(not judge(flat), judge(flat))
    expect(judge(flat[:12]) == ["only 4 rounds to judge, 8 are needed"])
    for name, step, word in (("fds", 0.1, "fds"), ("threads", 0.02, "threads"), ("maps", 0.3, "maps"), ("rss_kib", 40, "resident")):
        grown = [x._replace(**{name: getattr(x, name) + int(i * step)}) for i, x in enumerate(flat)]
        said = judge(grown)
        expect(len(said) == 1 and word in said[0], name, said)
    early = [x._replace(rss_kib=x.rss_kib + min(i, 20) * 500) for i, x in enumerate(flat)]
    expect(not judge(early), judge(early))
    seen = [x._replace(fds=x.fds + (i in (40, 70, 71)) * (i // 20)) for i, x in enumerate(flat)] # clients that were there
    expect(not judge(seen), judge(seen))


class Client:
    """A client and its command, in this namespace or the other one. may: exit statuses that are right."""

    def __init__(self, soak, words, there):
        self.words = soak.other.words(*words) if there else list(words)
        self.there, self.may, self.out = there, {OK}, tempfile.TemporaryFile("w+")
        self.proc = subprocess.Popen(self.words, stdin=subprocess.DEVNULL, stdout=self.out, stderr=subprocess.STDOUT, env=soak.tools.env)

    def end(self, deadline):
        """Return: what is wrong with its end, or None."""
        try:
            rc = self.proc.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.proc.kill()
            self.proc.wait()
            rc = None
        self.out.seek(0)
        said = self.out.read()
        self.out.close()
        return None if rc in self.may else f"status {rc}, not one of {sorted(self.may)}: {' '.join(self.words)}\n{said[-2000:]}"


class Peer:
    """soak_peer serve."""

    def __init__(self, program, keys, env):
        self.out = tempfile.TemporaryFile("w+")
        self.proc = subprocess.Popen([program, "serve", HERE + ":0", str(keys)], stdin=subprocess.DEVNULL, stdout=self.out,
                                     stderr=subprocess.STDOUT, env=env)
        end = time.monotonic() + cli.START_S
        while not (found := re.search(r"^port (\d+)$", self.log(), re.M)):
            expect(time.monotonic() < end and self.proc.poll() is None, "soak_peer does not start:", self.log())
            time.sleep(0.05)
        self.port = int(found.group(1))
        self.addr = f"{HERE}:{self.port}"

    def log(self):
        return pathlib.Path(f"/proc/self/fd/{self.out.fileno()}").read_text()

    def rounds(self):
        return int((re.findall(r"^(\d+) rounds$", self.log(), re.M) or ["0"])[-1])

    def end(self):
        self.proc.kill()
        self.proc.wait()
        self.out.close()


def sample(pid, began):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    field = {name: int(re.search(rf"^{name}:\s*(\d+)", status, re.M).group(1)) for name in ("VmRSS", "Threads")}
    maps = pathlib.Path(f"/proc/{pid}/maps").read_text().count("\n")
    return Sample(time.monotonic() - began, field["VmRSS"], len(os.listdir(f"/proc/{pid}/fd")), field["Threads"], maps)


class Soak:
    def __init__(self, build, folder, seed):
        self.tools, self.other, self.rnd, self.folder = cli.Tools(build), Other(lasts="infinity"), random.Random(seed), folder
        self.program = str(build / "tests" / "soak_peer")
        self.keys, self.server, self.peer = folder / "keys", None, None
        self.samples, self.counts, self.bad = {"gxd": [], "soak_peer": []}, collections.Counter(), []
        self.began, self.ended = time.monotonic(), threading.Event()

    def start(self):
        links_make(self.other)
        self.keys.mkdir()
        self.key_make("stays")
        self.server = cli.Server(self.tools, "--key", self.keys, "--timeout", TIMEOUT_S, mem="kv=host:256M", listen=HERE + ":0")
        self.peer = Peer(self.program, self.keys, self.tools.env)

    def end(self):
        if self.server:
            rc = self.server.end()
            if rc:
                self.bad.append(f"gxd ended with {rc}: {self.server.log()[-2000:]}")
        if self.peer:
            self.peer.end()
        self.other.end()

    def key_make(self, name):
        self.tools.gxd("keygen", name, "-o", self.keys / f"{name}.key").must(OK)

    # --- clients ---

    def way(self):
        """Return: whether in the other namespace, and the link."""
        there = self.rnd.random() < 0.6
        return there, self.rnd.choice(("packet", "tcp") if there else ("local", "packet", "tcp"))

    def gxperf(self, key="stays", seconds=RUN_S, way=None):
        there, link = way or self.way()
        command = self.rnd.choice(list(COMMANDS))
        words = [self.tools.gxperf_path, command, self.server.addr, "--mem", "kv", "--key", str(self.keys / f"{key}.key"), "--cores", CLIENT_CPU,
                 "--timeout", str(TIMEOUT_S), "--link", link, "-D", str(seconds), "-s", self.rnd.choice(COMMANDS[command])]
        if command == "blocks":
            words += ["--blocks", "256"]
        self.counts[f"{command} by {link}"] += 1
        return Client(self, words, there)

    def caller(self):
        there, link = self.way()
        self.counts[f"registrations by {link}"] += 1
        return Client(self, [self.program, "call", self.peer.addr, str(self.keys / "stays.key"), str(RUN_S), link, THERE if there else HERE],
                      there)

    # --- faults, each in the middle of three clients; longer ones end connections ---

    def fault_none(self, clients):
        pass

    def fault_kill(self, clients):
        one = self.rnd.choice(clients)
        one.proc.kill()
        one.may = {-signal.SIGKILL, OK}

    def stop(self, clients, procs):
        seconds = self.rnd.choice((1, 3, TIMEOUT_S + 3))
        for proc in procs:
            proc.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        for proc in procs:
            proc.send_signal(signal.SIGCONT)
        # Who has asked the server to check, and hears nothing for long, says that it failed.
        for client in clients if seconds > 5 else ():
            client.may |= {LOST, FAILED}

    def fault_stop_client(self, clients):
        one = self.rnd.choice(clients)
        self.stop([one], [one.proc])

    def fault_stop_server(self, clients):
        self.stop(clients, [self.server.proc, self.peer.proc])

    def fault_blackout(self, clients):
        seconds = self.rnd.choice((1, 3, TIMEOUT_S + 3))
        for state, pause in (("down", seconds), ("up", 0)):
            ran = sh("ip", "link", "set", "gxa", state)
            expect(ran.returncode == 0, ran.stdout)
            time.sleep(pause)
        for client in clients:
            if seconds > 5 and client.there:
                client.may |= {LOST, FAILED}

    def fault_reload(self, clients):
        """A key comes, one client uses it, and it goes: that client's connection ends, the others do not."""
        self.key_make("goes")
        for proc in (self.server.proc, self.peer.proc):
            proc.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        one = self.gxperf(key="goes", seconds=30)
        clients.append(one)
        time.sleep(1.5)
        (self.keys / "goes.key").unlink()
        self.server.proc.send_signal(signal.SIGHUP)
        self.peer.proc.send_signal(signal.SIGHUP)
        one.may = {LOST, FAILED}

    # --- rounds ---

    def alive(self):
        for name, one in (("gxd", self.server), ("soak_peer", self.peer)):
            expect(one.proc.poll() is None, name, "has ended with", one.proc.returncode, one.log()[-3000:])

    def quiet(self):
        """Nobody is connected, and what was freed is."""
        end = time.monotonic() + END_S
        for path in (f"@gxd-{self.server.port}", f"@soak-{self.peer.port}"):
            while True:
                text = self.tools.gxd("stats", path).must(OK).out
                if sum(int(n) for n in re.findall(r"^\s*peers_now\s+(\d+)", text, re.M)) == 0:
                    break
                expect(time.monotonic() < end, "still connected:", text)
                time.sleep(0.2)
        time.sleep(0.5)

    def round(self, fault):
        clients = [self.gxperf(), self.gxperf(), self.caller()]
        time.sleep(0.5 + self.rnd.random() * 2)
        getattr(self, "fault_" + fault)(clients)
        deadline = time.monotonic() + END_S
        for client in clients:
            why = client.end(deadline)
            if why:
                self.bad.append(f"round {self.counts['rounds']}, fault {fault}: {why}")
        self.alive()
        self.quiet()
        self.counts["rounds"] += 1
        self.counts["fault " + fault] += 1
        self.samples["gxd"].append(sample(self.server.proc.pid, self.began))
        self.samples["soak_peer"].append(sample(self.peer.proc.pid, self.began))

    def progress(self):
        states = "; ".join(f"{name} {s[-1].rss_kib} KiB, {s[-1].fds} descriptors, {s[-1].threads} threads, {s[-1].maps} mappings"
                           for name, s in self.samples.items() if s)
        print(f"{(time.monotonic() - self.began) / 60:6.1f} min: {self.counts['rounds']} rounds, {self.peer.rounds()} registrations, "
              f"{len(self.bad)} bad; {states}", flush=True)

    def progress_each_minute(self):
        while not self.ended.wait(60):
            self.progress()

    def run(self, hours, rest):
        faults = [name[6:] for name in dir(self) if name.startswith("fault_")]
        threading.Thread(target=self.progress_each_minute, daemon=True).start()
        while time.monotonic() < self.began + hours * 3600:
            self.rnd.shuffle(faults)
            for fault in faults:
                before = len(self.bad)
                self.round(fault)
                for why in self.bad[before:]:
                    print("BAD", why, flush=True)
                if len(self.bad) > before:
                    print(f"gxd's log ends with:\n{self.server.log()[-3000:]}\nsoak_peer's:\n{self.peer.log()[-3000:]}", flush=True)
                time.sleep(rest)
        self.ended.set()
        self.progress()

    def table(self):
        for name, count in sorted(self.counts.items()):
            print(f"{name:28} {count}")
        for name, s in self.samples.items():
            for field in Sample._fields[1:]:
                values = [getattr(x, field) for x in s[FIRST_ROUNDS:]] or [0]
                print(f"{name + ' ' + field:28} first {values[0]}, least {min(values)}, most {max(values)}, last {values[-1]}")
            self.bad += [f"{name}: {why}" for why in judge(s)]


def main():
    args = argparse.ArgumentParser(usage=__doc__)
    args.add_argument("build", nargs="?")
    args.add_argument("--hours", type=float)
    args.add_argument("--rest", type=float, default=0, help="seconds between two rounds, for machines that have other work")
    args.add_argument("--seed", type=int, default=int(time.time()))
    args.add_argument("--judge", action="store_true")
    a = args.parse_args()
    if a.judge:
        judge_test()
        return 0
    if not a.build or not a.hours or a.hours <= 0:
        args.error("BUILD_DIR and --hours H")
    enter()
    print(f"seed {a.seed}", flush=True)
    with tempfile.TemporaryDirectory() as tmp:
        soak = Soak(pathlib.Path(a.build).resolve(), pathlib.Path(tmp), a.seed)
        try:
            soak.start()
            soak.run(a.hours, a.rest)
            soak.table()
        finally:
            soak.end()
    for why in soak.bad:
        print("BAD", why)
    print("flat, and nothing wrong" if not soak.bad else f"{len(soak.bad)} bad")
    return 1 if soak.bad else 0


if __name__ == "__main__":
    sys.exit(main())
