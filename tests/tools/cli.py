# SPDX-License-Identifier: Apache-2.0
"""What the tests of gxd and gxperf as programs share: real processes on loopback ports chosen free.

A test of it is test_cli_PART.py BUILD_DIR [CASE...]     CASE: only cases whose name holds one of these
BUILD_DIR holds tools/gxd and tools/gxperf. Each case starts what it needs and ends only that. Exit status 1 when
any case fails. Two cases run at a time. With two CPUs or more the server is pinned to the first and the client to the last.
"""
import concurrent.futures
import contextlib
import io
import json
import os
import pathlib
import re
import select
import signal
import subprocess
import tempfile
import time
import traceback

CPUS = sorted(os.sched_getaffinity(0))
SERVER_CPU, CLIENT_CPU = str(CPUS[0]), str(CPUS[-1])
AT_ONCE = 2        # cases
# These run before, one by one: so many set-ups need a CPU that not all cases poll on, or a step takes longer than its 5 s.
ALONE = ("move_64_connections",)
CALL_S = 120       # no single command takes longer, on one busy CPU for both ends
START_S = 60
PATIENT = ("put", "get", "send", "lat", "blocks")
HELLO_MAGIC = 0x31307867
OK, FAILED, USAGE, WRONG, LOST = 0, 1, 2, 3, 4
LINKS = ("packet", "local", "tcp")
CASES = []


def case(fn):
    CASES.append(fn)
    return fn


def expect(condition, *what):
    if not condition:
        raise AssertionError(" ".join(str(w) for w in what))


class Ran:
    """A command that has ended."""

    def __init__(self, proc, out, err):
        self.rc, self.out, self.err, self.args = proc.returncode, out, err, proc.args

    def __str__(self):
        return f"{' '.join(map(str, self.args))}\n  status {self.rc}\n  stdout: {self.out[-1500:]}\n  stderr: {self.err[-1500:]}"

    def must(self, rc, *words):
        """The exit status, and words that the messages must hold."""
        expect(self.rc == rc, f"exit status {self.rc}, expected {rc}:", self)
        for word in words:
            expect(word in self.err, f"no '{word}' in the messages of:", self)
        expect("\r" not in self.err, "progress without a terminal:", self)
        return self

    @property
    def doc(self):
        return json.loads(self.out)

    def clean(self):
        """All results of a --format json run: payload was checked and right."""
        self.must(OK)
        for row in self.doc["results"]:
            expect(row["wrong"] == 0, "wrong data:", self)
            expect(row["checked_b"] > 0 or row["size_b"] == 0, "nothing checked:", self)
        return self.doc["results"]


def patience(command, args):
    """A peer whose core a busy machine lets wait is not lost, unless the arguments say after what time."""
    return ["--timeout", "60"] if command in PATIENT and "--timeout" not in args else []


def brevity(command, args):
    """The default of 2 s says more of speed than a test asks for."""
    said = {"-n", "-D", "-b", "-e", "--file", "--bidirectional", "--throttle"} & set(args)
    return ["-D", "0.05"] if command in PATIENT and not said else []


class Tools:
    def __init__(self, build):
        self.gxd_path = str(build / "tools" / "gxd")
        self.gxperf_path = str(build / "tools" / "gxperf")
        self.fakes = build / "tests"
        # meson shows a test the folders of the libraries that it depends on: the fake driver is for those who ask.
        paths = [p for p in os.environ.get("LD_LIBRARY_PATH", "").split(":") if p and pathlib.Path(p) != self.fakes]
        # Who looks names a folder; else no gxd makes /run/gx.
        self.env = {"GX_RUN_DIR": "", **os.environ, "LD_LIBRARY_PATH": ":".join(paths)}

    def has_kernels(self):
        """Built where nvcc was? Asked for a device that never is."""
        without = "built without nvcc" in self.run(self.gxperf_path, "unpack", "--device", "63").err
        if without:
            print("note: built without nvcc: not tested")
        return not without

    def with_gpus(self, nr=2, **env):
        """The same tools, and a CUDA driver whose GPUs are threads (tests/fake/fake_cuda.c); None where that is not."""
        if not (self.fakes / "libcuda.so.1").exists():
            print("note: the fake GPU libraries are not built: not tested")
            return None
        tools = Tools(self.fakes.parent)
        tools.env = {**os.environ, "LD_LIBRARY_PATH": str(self.fakes), "GX_FAKE_CUDA_DEVICES": str(nr), **env}
        if not self.has_kernels():
            return None
        return tools

    def run(self, path, *args, timeout=CALL_S, cwd=None):
        proc = subprocess.Popen([path, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, cwd=cwd, env=self.env)
        try:
            out, err = proc.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            proc.kill()
            out, err = proc.communicate()
            raise AssertionError(f"did not end within {timeout} s: {' '.join(map(str, proc.args))}\n{out}\n{err}") from None
        return Ran(proc, out, err)

    def gxd(self, *args, **kw):
        return self.run(self.gxd_path, *args, **kw)

    def gxperf(self, command, *args, **kw):
        """Pinned, unless the arguments say something of cores."""
        cores = [] if command in ("demo", "--version") or "--cores" in args else ["--cores", CLIENT_CPU]
        return self.run(self.gxperf_path, command, *args, *cores, *patience(command, args), *brevity(command, args), **kw)

    def perf(self, command, *args, **kw):
        return self.gxperf(command, *args, "--format", "json", **kw)


class Server:
    """A gxd of its own, ended with the block."""
    mem = "kv=host:64M"

    def __init__(self, tools, *args, mem="", listen="127.0.0.1:0"):
        mems = [] if mem is None else ["--mem", mem or self.mem]
        cores = [] if "--cores" in args else ["--cores", SERVER_CPU]
        self.err = tempfile.TemporaryFile("w+")
        self.proc = subprocess.Popen([tools.gxd_path, *(("--listen", listen) if listen else ()), *mems, *cores, *map(str, args)],
                                     stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.err, text=True,
                                     env=tools.env)
        ready, _, _ = select.select([self.proc.stdout], [], [], START_S)
        self.line = self.proc.stdout.readline() if ready else ""
        match = re.match(r"gxperf put (\S+):(\d+) --mem (\S+|'.*')( --insecure| --key \S+)?$", self.line)
        if not match:
            self.end()
            raise AssertionError(f"gxd said '{self.line}':\n{self.log()}")
        self.port = int(match.group(2))
        self.addr = f"{match.group(1)}:{self.port}"

    def log(self):
        """Not through our descriptor: gxd writes where that one stands."""
        return pathlib.Path(f"/proc/self/fd/{self.err.fileno()}").read_text()

    def wait_log(self, word):
        end = time.monotonic() + START_S
        while word not in self.log():
            expect(time.monotonic() < end and self.proc.poll() is None, f"gxd does not say '{word}':", self.log())
            time.sleep(0.02)

    def end(self):
        if self.proc.poll() is None:
            self.proc.send_signal(signal.SIGCONT)
            self.proc.terminate()
            try:
                self.proc.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.proc.kill()
                self.proc.wait()
        self.proc.stdout.close()
        return self.proc.returncode

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        rc = self.end()
        log = self.log()
        self.err.close()
        if kind is None and rc not in (0, -signal.SIGKILL):
            raise AssertionError(f"gxd ended with {rc}:\n{log[-3000:]}")
        if kind and issubclass(kind, Exception) and log:
            print(f"gxd said:\n{log[-3000:]}")
        return False

    def stat(self, tools, name):
        """Sum of one counter over the cores."""
        text = tools.gxd("stats", f"@gxd-{self.port}").must(OK).out
        rows = [line.split() for line in text.splitlines()]
        found = [int(r[-1]) for r in rows if r and r[0] == name]
        expect(found, f"no counter {name} in:", text)
        return sum(found)


@contextlib.contextmanager
def beside(tools, server, command, *args):
    """A client that is measuring, until the block ends."""
    def moved():
        return sum(server.stat(tools, name) for name in ("peer_local_puts", "peer_local_gets", "msgs_rx", "msgs_tx"))
    before = moved()
    proc = subprocess.Popen([tools.gxperf_path, command, server.addr, "--cores", CLIENT_CPU, "-D", "60", *map(str, args)],
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=tools.env)
    end = time.monotonic() + START_S
    try:
        # It moves what it was given: whoever comes now comes second.
        expect("link" in proc.stdout.readline(), "no path from the client beside")
        while moved() == before and time.monotonic() < end:
            time.sleep(0.02)
        expect(proc.poll() is None and moved() > before, "the client beside moves nothing")
        yield proc
    finally:
        proc.kill()
        proc.communicate()


def clean_path(ran):
    ran.clean()
    return ran.doc["path"]


def under_load(tools, server, *args, link="packet"):
    """A client in the middle of a put."""
    # What is copied straight into the server's memory the client tells it.
    seen = "peer_local_puts" if link == "local" else "msgs_rx"
    enough = 20 + server.stat(tools, seen)
    proc = subprocess.Popen([tools.gxperf_path, "put", server.addr, "-s", "1M", "--cores", CLIENT_CPU, "--link", link, *args],
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=tools.env)
    end = time.monotonic() + START_S
    while server.stat(tools, seen) < enough:
        if time.monotonic() > end or proc.poll() is not None:
            proc.kill()
            raise AssertionError(f"the client does not put: {Ran(proc, *proc.communicate())}")
        time.sleep(0.02)
    return proc


def stand(proc):
    """SIGSTOP. A thread that runs on may still answer for a while: wait until all stand."""
    proc.send_signal(signal.SIGSTOP)
    expect(os.WIFSTOPPED(os.waitpid(proc.pid, os.WUNTRACED)[1]), "it does not stand, it has ended:", proc.args)


def ended(proc, timeout=CALL_S):
    try:
        out, err = proc.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        proc.kill()
        out, err = proc.communicate()
        raise AssertionError(f"the client did not end within {timeout} s:\n{out}\n{err}") from None
    return Ran(proc, out, err)


@contextlib.contextmanager
def measuring(tools, *args, rows=0, seconds=1, ignore=()):
    """A gxperf that has printed its path and @rows results, and some time went by; @folder is where -J FILE is."""
    def signals(): # whoever runs the tests may ignore them
        for signo in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signo, signal.SIG_IGN if signo in ignore else signal.SIG_DFL)

    with tempfile.TemporaryDirectory() as tmp:
        proc = subprocess.Popen([tools.gxperf_path, *map(str, args), *patience(args[0], args), "-J", f"{tmp}/j"], stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=tools.env, preexec_fn=signals)
        proc.folder = pathlib.Path(tmp)
        try:
            head = []
            while len([line for line in head if not line.startswith("#")]) < rows or not head:
                head.append(proc.stdout.readline())
                expect(head[-1], "it ended after", head, None if head[-1] else proc.communicate(timeout=10)[1], proc.returncode)
            time.sleep(seconds)
            yield proc
        finally:
            proc.kill()
            proc.communicate()


def run_case(name, build):
    """Return: whether it was good, and what is to be printed."""
    fn = next(fn for fn in CASES if fn.__name__ == name)
    start, said = time.monotonic(), io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            fn(Tools(build))
            why = ""
        except Exception:
            why = "\n" + traceback.format_exc(limit=4)
    return not why, f"{said.getvalue()}{'FAILED' if why else 'ok    '} {name} ({time.monotonic() - start:.1f} s){why}"


def main(args):
    if not args:
        print(__doc__)
        return 2
    signal.signal(signal.SIGHUP, signal.SIG_DFL) # whoever starts this with nohup: gxd would not hear it either
    Server.mem = "kv=host:16M" # each client maps all of it
    begin, failures, nr_alone = time.monotonic(), 0, 0
    names = [fn.__name__ for fn in CASES if not args[1:] or any(part in fn.__name__ for part in args[1:])]
    for name in [n for n in names if n in ALONE]:
        names.remove(name)
        good, text = run_case(name, pathlib.Path(args[0]).resolve())
        failures += not good
        nr_alone += 1
        print(text, flush=True)
    # Most cases wait for something most of the time. Processes, as some start theirs with a function of Python's.
    with concurrent.futures.ProcessPoolExecutor(AT_ONCE) as pool:
        for ran in concurrent.futures.as_completed([pool.submit(run_case, name, pathlib.Path(args[0]).resolve()) for name in names]):
            good, text = ran.result()
            failures += not good
            print(text, flush=True)
    print(f"{nr_alone + len(names)} cases, {failures} failed, {time.monotonic() - begin:.0f} s")
    return 1 if failures or not nr_alone + len(names) else 0
