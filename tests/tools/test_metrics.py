#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gxd metrics: processes that live, are stopped, are killed and lie; scrapers that are slow, silent and many.

usage: test_metrics.py BUILD_DIR [CASE...]     cli.py says the rest
       test_metrics.py BUILD_DIR --promtool    only: what Prometheus' own checker says. 77 where it is not installed
"""
import contextlib
import fcntl
import os
import pathlib
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from cli import FAILED, OK, START_S, USAGE, Server, Tools, case, expect, main, stand

OPEN = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
HEAD = "# HELP gx_a_total things\n# TYPE gx_a_total counter\n"


class Exporter:
    def __init__(self, tools, folder):
        self.proc = subprocess.Popen([tools.gxd_path, "metrics", "--listen", "127.0.0.1:0", "--dir", str(folder)], stdout=subprocess.PIPE,
                                     stderr=subprocess.DEVNULL, text=True, env=tools.env)
        ready, _, _ = select.select([self.proc.stdout], [], [], START_S)
        self.line = self.proc.stdout.readline() if ready else ""
        self.port = int(re.fullmatch(r"metrics at port (\d+), /metrics\n", self.line).group(1))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.proc.send_signal(signal.SIGTERM)
        status = self.proc.wait(START_S)
        self.proc.stdout.close()
        expect(status == OK, "gxd metrics ended with", status)

    def say(self, request):
        with socket.create_connection(("127.0.0.1", self.port), START_S) as s:
            s.sendall(request)
            got = b""
            while part := s.recv(1 << 20):
                got += part
        return got

    def scrape(self, accept=None):
        """(head, body, seconds)"""
        start = time.monotonic()
        got = self.say(b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + (f"Accept: {accept}\r\n".encode() if accept else b"") + b"\r\n")
        head, _, body = got.partition(b"\r\n\r\n")
        expect(head.startswith(b"HTTP/1.1 200 OK\r\n"), head)
        expect(int(re.search(rb"Content-Length: (\d+)", head).group(1)) == len(body), head, len(body))
        return head.decode(), body.decode(), time.monotonic() - start

    def fresh(self, accept=None):
        time.sleep(0.3) # a page is new for 0.25 s
        return self.scrape(accept)

    def fds(self):
        return len(os.listdir(f"/proc/{self.proc.pid}/fd"))

    def fds_least(self, fds):
        """Descriptors, as soon as they are no more than @fds: the last scrape's is closed a moment after its end."""
        end = time.monotonic() + START_S
        while self.fds() > fds and time.monotonic() < end:
            time.sleep(0.01)
        return self.fds()

    def rss_kb(self):
        return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{self.proc.pid}/status").read_text()).group(1))


class Liar:
    """A publisher of our own: number @n of this process, which answers with @answer. None: never."""

    def __init__(self, folder, n, answer, pid=None):
        stem = folder / f"{pid or os.getpid()}-{n}"
        self.lock = open(f"{stem}.lock", "w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.lock.write(f"liar{n}")
        self.lock.flush()
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.bind(f"{stem}.sock")
        self.sock.listen(64)
        self.answer = answer
        self.files = [pathlib.Path(f"{stem}.lock"), pathlib.Path(f"{stem}.sock")]
        if answer is not None:
            threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                s, _ = self.sock.accept()
                with s, contextlib.suppress(OSError):
                    s.recv(1024)
                    for part in self.answer if isinstance(self.answer, list) else [self.answer]:
                        s.sendall(part)

    def close(self):
        self.sock.close()
        self.lock.close()
        for file in self.files:
            file.unlink(missing_ok=True)


def http(body):
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def up(body):
    return {m.group(1): int(m.group(2)) for m in re.finditer(r'^gx_up\{[^}]*name="([^"]*)"\} (\d)$', body, re.M)}


def at_folder(tools, folder):
    at = Tools(tools.fakes.parent)
    at.env = {**tools.env, "GX_RUN_DIR": str(folder)}
    return at


@case
def options_and_signals(tools):
    """SIGHUP ends nothing, however often; a port that is none is refused, not cut to 16 bits."""
    with tempfile.TemporaryDirectory() as tmp:
        for port in ("65537", "65536", "-1", "0x1", "1.", "http", "4294967297", ""):
            tools.gxd("metrics", "--listen", f"127.0.0.1:{port}", "--dir", tmp).must(USAGE, "0 to 65535")
        with Exporter(tools, tmp) as exporter:
            for _ in range(3):
                exporter.proc.send_signal(signal.SIGHUP)
                exporter.scrape()
            expect(exporter.proc.poll() is None, "SIGHUP has ended it")


@case
def metrics_of_processes(tools):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        at = at_folder(tools, folder)
        with Exporter(at, folder) as exporter, Server(at) as one, Server(at) as two:
            head, body, _ = exporter.fresh()
            expect("text/plain; version=0.0.4" in head, head)
            pids = re.findall(r'^gx_up\{pid="(\d+)",context="0",name="gxd"\} 1$', body, re.M)
            expect(sorted(pids) == sorted(str(s.proc.pid) for s in (one, two)), body[-500:])
            for pid in pids:
                expect(f'gx_turns_total{{pid="{pid}",context="0",name="gxd",core="0"}} ' in body, pid)
            expect(body.count("# TYPE gx_turns_total counter\n") == 1, "families are not merged")
            head, body, _ = exporter.fresh(OPEN)
            expect("application/openmetrics-text; version=1.0.0" in head, head)
            expect(body.endswith("\n# EOF\n") and "# TYPE gx_turns counter\n" in body and "\ngx_turns_total{" in body, body[-500:])
            # Stopped: it is said, in less than a second. Killed: its files go.
            stand(one.proc)
            _, body, took = exporter.fresh()
            one.proc.send_signal(signal.SIGCONT)
            expect(f'gx_up{{pid="{one.proc.pid}",context="0",name="gxd"}} 0' in body, body[-500:])
            expect(f'gx_turns_total{{pid="{two.proc.pid}"' in body and f'gx_turns_total{{pid="{one.proc.pid}"' not in body, "who answers?")
            expect(0.4 < took < 2, "a scrape beside a stopped process takes", took)
            expect(len(list(folder.iterdir())) == 4, list(folder.iterdir()))
            one.proc.kill()
            one.proc.wait()
            _, body, took = exporter.fresh()
            expect(up(body) == {"gxd": 1} and len(list(folder.iterdir())) == 2, body[-500:], list(folder.iterdir()))
        expect(not list(folder.iterdir()), "left:", list(folder.iterdir()))


@case
def metrics_without_folder(tools):
    with Exporter(tools, "/nonexistent") as exporter:
        _, body, _ = exporter.scrape()
        expect(body == "", body)
        _, body, _ = exporter.scrape(OPEN)
        expect(body == "# EOF\n", body)
    tools.gxd("metrics").must(USAGE, "--listen")
    tools.gxd("metrics", "--listen", "nonsense").must(USAGE, "HOST:PORT")
    tools.gxd("metrics", "--listen", "127.0.0.1:0", "more").must(USAGE, "'more'")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        tools.gxd("metrics", "--listen", f"127.0.0.1:{taken.getsockname()[1]}").must(FAILED, "in use")


@case
def metrics_of_liars(tools):
    """What is no text of gx's is left out, the rest stays; no liar costs more than half a second, and all together no more."""
    good = HEAD.encode() + b"gx_a_total 1\n"
    endless = [b"HTTP/1.1 200 OK\r\n\r\n"] + [b"x" * 65536] * 1000
    answers = [http(good), None, b"", b"nonsense", http(b""), http(good[:-1]), http(b"\xff" * 100), http(good) + b"more", http(good * 2),
               b"HTTP/1.1 500 No\r\n\r\n" + good, endless, http(HEAD.encode() + b'gx_a_total{pid="1"} 1\n'), http(b"gx_a_total 1\n"),
               http(good + b"\0"), b"HTTP/1.1 200 OK\r\n\r\n" + good, http(b"# HELP gx_up x\n# TYPE gx_up counter\n"),
               http(HEAD.encode() + b"gx_a_total{" + b'a="1",' * 500 + b'b="2"} 1\n')]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        liars = [Liar(folder, n, answer) for n, answer in enumerate(answers)]
        liars.append(Liar(folder, 3, b"nonsense", pid=1)) # the kernel knows better whose it is: that is twice number 3
        with Exporter(tools, folder) as exporter:
            want = {f"liar{n}": int(n in (0, 4)) for n in range(len(answers))}
            for _ in range(10): # on a busy machine this process may answer late
                _, body, took = exporter.fresh()
                if up(body) == want:
                    break
            expect(up(body) == want, up(body), body)
            expect(f'\ngx_a_total{{pid="{os.getpid()}",context="0",name="liar0"}} 1\n' in body, body)
            expect(body.count("gx_a_total{") == 1 and 'pid="1"' not in body, body)
            expect(took < 2, "a scrape of liars takes", took)
            fds = exporter.fds()
            for _ in range(5):
                exporter.fresh()
            expect(exporter.fds_least(fds) <= fds, "descriptors:", fds, exporter.fds())
        for liar in liars:
            liar.close()


@case
def metrics_of_junk(tools):
    """A folder full of what is none: nothing is followed, removed or waited for, but locks that nobody holds."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        secret = folder / "secret"
        secret.write_text("s3cret")
        target = Liar(folder, 90, http(HEAD.encode() + b"gx_a_total 1\n"))
        target.files[0].rename(folder / "hidden") # its socket is reached by a link alone
        held = Liar(folder, 91, None)
        held.files[1].unlink()
        (folder / f"{os.getpid()}-91.sock").symlink_to(target.files[1])
        os.mkfifo(folder / "5-0.lock")
        (folder / "6-0.lock").symlink_to(secret)
        (folder / "7-0.lock").mkdir()
        (folder / "8-0.lock").write_text("dead")
        (folder / "8-0.sock").write_text("")
        for junk in ("a-0.lock", "-1-0.lock", "1-0.lock.lock", "01-0.lock", "99999999999-0.lock", "1-1.lockx", "1-99999.lock", "x" * 200):
            (folder / junk).write_text("")
        for i in range(3000):
            (folder / f"junk{i}").write_text("")
        before = {p.name for p in folder.iterdir()}
        with Exporter(tools, folder) as exporter:
            _, body, took = exporter.fresh()
            expect(up(body) == {"liar91": 0} and "gx_a_total" not in body and "s3cret" not in body, body)
            expect(took < 2, took)
        expect(before - {p.name for p in folder.iterdir()} == {"8-0.lock", "8-0.sock"}, before - {p.name for p in folder.iterdir()})
        expect(secret.read_text() == "s3cret", "a link was followed")


@case
def metrics_scrapers(tools):
    """Strangers that say nothing, say too much, or read slowly keep nobody out; many scrapes leave nothing behind."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        liar = Liar(folder, 0, http(HEAD.encode() + b"".join(b'gx_a_total{i="%d"} 1\n' % i for i in range(100000))))
        with Exporter(tools, folder) as exporter:
            exporter.scrape()
            expect(exporter.say(b"PUT /metrics HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 405 "), "PUT")
            expect(exporter.say(b"GET /other HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 404 "), "another page")
            expect(exporter.say(b"GET /metrics?x=1 HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 "), "a query")
            expect(exporter.say(b"GET /" + b"x" * 4091).startswith(b"HTTP/1.1 431 "), "a long request")
            expect(exporter.say(b"GET /\0metrics HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 400 "), "no text")
            with contextlib.ExitStack() as crowd:
                silent = [crowd.enter_context(socket.create_connection(("127.0.0.1", exporter.port))) for _ in range(100)]
                slow = [crowd.enter_context(socket.create_connection(("127.0.0.1", exporter.port))) for _ in range(20)]
                for s in slow:
                    s.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
                whole = 0  # without the pages for which the process, which is Python here, had no CPU
                for _ in range(40):
                    _, body, took = exporter.fresh()
                    expect(took < 2, "beside strangers:", len(body), took)
                    whole += len(body) > 4000000
                    if whole == 10:
                        break
                expect(whole == 10, "beside strangers: pages of the process:", whole)
                start = time.monotonic()
                for s in silent:
                    s.settimeout(10)
                    expect(s.recv(1) == b"", "a stranger is answered")
                expect(time.monotonic() - start < 8, "strangers stay for", time.monotonic() - start)
            liar.close()
            exporter.fresh()
            fds, rss = exporter.fds(), exporter.rss_kb()
            for _ in range(10000 if os.environ.get("GX_TEST_FULL") else 1000):
                exporter.scrape()
            expect(exporter.fds_least(fds) <= fds and exporter.rss_kb() < rss + 1024, "descriptors:", fds, exporter.fds(), "KiB:", rss, exporter.rss_kb())


@case
def metrics_of_another_user(tools):
    """Who may not connect is said; a process of another user is read like all."""
    if os.getuid():
        print("note: not root: not tested")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        shut, open_ = Liar(folder, 0, http(b"")), Liar(folder, 1, http(HEAD.encode() + b"gx_a_total 1\n"))
        for file in (*shut.files, *open_.files):
            file.chmod(0o666)
        shut.files[1].chmod(0o600)
        build = pathlib.Path(tools.gxd_path)
        if not all(os.stat(p).st_mode & 0o001 for p in (build, *build.parents)):
            print("note: another user does not reach the build folder: not tested")
        else:
            proc = subprocess.Popen([tools.gxd_path, "metrics", "--listen", "127.0.0.1:0", "--dir", name], stdout=subprocess.PIPE,
                                    stderr=subprocess.PIPE, text=True, user=65534, group=65534, extra_groups=[], env=tools.env)
            exporter = Exporter.__new__(Exporter)
            exporter.proc, exporter.port = proc, int(re.search(r"port (\d+)", proc.stdout.readline()).group(1))
            _, body, _ = exporter.scrape()
            proc.terminate()
            said = proc.communicate()[1]
            expect(up(body) == {"liar0": 0, "liar1": 1}, body, said)
            expect("of another user" in said, said)
        shut.close()
        open_.close()


def promtool(build):
    if not shutil.which("promtool"):
        print("promtool is not installed (package prometheus)")
        return 77
    tools = Tools(build)
    with tempfile.TemporaryDirectory() as name:
        at = at_folder(tools, name)
        with Exporter(at, name) as exporter, Server(at, "--port", "udp", "--port", "shm") as server:
            client = subprocess.Popen([at.gxperf_path, "put", server.addr, "-s", "64K", "-D", "20", "--port", "udp"],
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=at.env)
            end = time.monotonic() + START_S
            body = ""
            while not ('name="gxperf"' in body and 'name="gxd"' in body) and time.monotonic() < end:
                body = exporter.fresh()[1]
            client.kill()
            client.wait()
    expect('name="gxperf"' in body, body[:2000])
    ran = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, text=True, check=False)
    print(ran.stdout, ran.stderr, len(body), "bytes")
    return ran.returncode


if __name__ == "__main__":
    if sys.argv[2:] == ["--promtool"]:
        sys.exit(promtool(pathlib.Path(sys.argv[1]).resolve()))
    sys.exit(main(sys.argv[1:]))
