#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command lines of gxd and gxperf: options, messages, formats of results, pictures.

usage: test_cli_options.py BUILD_DIR [CASE...]     cli.py says the rest
"""
import contextlib
import csv
import io
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

from cli import (CLIENT_CPU, CPUS, FAILED, HELLO_MAGIC, LOST, OK, USAGE, WRONG, Server, Tools, case, ended, expect, main,
                 measuring)

RESULT_KEYS = {"op", "size_b", "count", "p50_us", "avg_us", "p99_us", "p999_us", "GB_s", "cpu_pct", "sms", "checked_b",
               "wrong", "sha256", "depth", "lost", "resent", "duplicate"}
LINE_KEYS = {"env", "path", "command", "time", "host", "link", "port"} # before those, where a result stands alone
PATH_KEYS = {"link", "port", "gpu", "bounce", "engine", "control", "unpack", "integrity", "auth", "crc_by", "quantum", "cores", "why", "reason"}
TOP_KEYS = {"schema_version", "command", "env", "path", "results", "errors", "reason", "interrupted", "exit_code"}


def has_nic_memory(tools):
    """False: gx was built with -Dnic_memory=false."""
    lo, = [d for d in tools.perf("info").must(OK).doc["info"]["devices"] if d["name"] == "lo"]
    return lo["receive"] is not None


# --- usage ------------------------------------------------------------------------------------------------

@case
def usage_gxd(tools):
    for args, words in (
            (["--frobnicate"], ["frobnicate"]),
            (["--mem", "kv"], ["kv", "NAME=PLACE:SIZE"]),
            (["--mem", "k\nv\x1b[31m=host:1M"], ["'k?v?[31m=host:1M'", "printable"]),
            (["--mem", "k\u00e4v=host:1M"], ["k??v", "printable"]),
            (["--mem", "kv=host:1.5G"], ["1.5G", "whole"]),
            (["--mem", "k" * 64 + "=host:1M"], ["63"]),
            (["--mem", "kv=host:1M", "--mem", "kv=host:1M"], ["kv"]),
            (["--mem", "kv=host:1M", "--cores", "4095x"], ["4095x"]),
            (["--mem", "kv=host:1M", "--cores", "1000"], ["1000"]),
            (["--mem", "kv=host:1M", "--window", "0"], ["--window"]),
            (["--mem", "kv=host:1M", "--chunk", "many"], ["--chunk", "many"]),
            (["--mem", "kv=host:1M", "--chunk", "0"], ["--chunk"]),
            (["--mem", "kv=host:1M", "--quantum=0"], ["--quantum"]),
            (["--mem", "kv=host:1M", "--listen", "127.0.0.1:0", "--port", "shm:"], ["shm:", "colon"]),
            (["--mem", "kv=host:1M", "--unpack", "magic"], ["magic"]),
            (["--mem", "kv=host:1M", "--integrity", "md5"], ["md5"]),
            (["--mem", "kv=host:1M", "--crc-by", "gpu"], ["gpu", "cpu"]),
            (["--mem", "kv=host:1M", "--pull", "push"], ["push", "allow"]),
            (["--mem", "kv=host:1M", "--tcp-rx", "rdma"], ["rdma", "devmem"]),
            (["--mem", "kv=host:1M", "--tcp-rx-pool", "0"], ["--tcp-rx-pool"]),
            (["--mem", "kv=host:1M", "--tcp-rx-gpu", "x"], ["--tcp-rx-gpu"]),
            (["--mem", "kv=host:1M", "--tcp-tx", "move"], ["move", "devmem"]),
            (["--mem", "kv=host:1M", "--bounce", "gpu", "--crc-by", "cpu"], ["CPU cannot check", "--bounce host"]),
            (["--mem", "kv=host:1M", "--listen", "127.0.0.1:0", "--chunk", "5"], ["chunk"]),
            (["--mem", "kv=host:1M", "--listen", "127.0.0.1:0", "--quantum", "64K"], ["65536", "65520"]),
            (["--mem", "kv=host:1M", "--listen", "here:x"], ["65535"]),
            (["--mem", "kv=host:1M", "--log-level", "loud"], ["loud", "debug"]),
            (["serve"], ["serve"]),
            (["keygen"], ["NAME"]),
            (["keygen", "a", "b"], ["NAME"]),
            (["keygen", "a/b"], ["name of a key"]),
            (["keygen", "a" * 32], ["31 bytes"]),
            (["keygen", "a", "--access", "all"], ["--access", "all", "put,get"]),
            (["keygen", "a", "--regions", "a b"], ["regions of a key"]),
            (["keygen", "a", "--connections", "0"], ["--connections", "from 1 on"]),
            (["keygen", "a", "--under-way", "much"], ["--under-way", "64M"]),
            (["nic"], ["nic plan"]),
            (["nic", "set"], ["'set'", "plan"])):
        tools.gxd(*args).must(USAGE, *words)
    expect("--queues" in tools.gxd("nic", "--help").must(OK).out)
    expect("gxd " in tools.gxd("--version").must(OK).out)
    expect("--mem" in tools.gxd("--help").must(OK).out)


@case
def key_files(tools):
    """gxd keygen makes files that gxd takes; others it refuses with the cure, and shows no byte of them."""
    with tempfile.TemporaryDirectory() as tmp:
        key, more = pathlib.Path(tmp, "kv.key"), pathlib.Path(tmp, "more.key")
        ran = tools.gxd("keygen", "kv", cwd=tmp).must(OK)
        text = key.read_text()
        expect(ran.out == "kv.key\n" and key.stat().st_mode & 0o7777 == 0o600, ran)
        expect(re.fullmatch(r"gx-key 1\nname kv\nsecret [0-9a-f]{64}\n", text), text)
        secret = text.split()[-1]
        tools.gxd("keygen", "kv", cwd=tmp).must(FAILED, "kv.key", "never overwritten")
        expect(key.read_text() == text)
        tools.gxd("keygen", "b.2", "--access", "get", "--regions", "kv,log*", "--connections", "3", "--under-way", "64M", "-o", more).must(OK)
        expect(more.read_text().splitlines()[2:6] == ["access get", "regions kv,log*", "connections 3", "under-way 67108864"], more.read_text())
        serve = ("--listen", "127.0.0.1:0", "--mem", "kv=host:1M", "--cores", CLIENT_CPU)
        tools.gxd(*serve, "--key", key, "--insecure").must(USAGE, "--insecure", "key")
        tools.gxd(*serve, "--key", tmp + "/none.key").must(FAILED, "none.key", "gxd keygen")
        tools.gxd(*serve, "--key", "fd:77").must(FAILED, "fd:77")
        for text_bad, word in ((text.replace("gx-key 1", "gx-key 2"), "line 1"), (text.replace("secret ", ""), "line 3"), (text + "x\n", "line 4")):
            key.write_text(text_bad)
            ran = tools.gxd(*serve, "--key", tmp).must(USAGE, "kv.key", word, "gxd keygen")
            expect(secret not in ran.err and secret not in ran.out, ran)
        key.write_text(text)
        key.chmod(0o640 if os.geteuid() else 0o604)
        tools.gxd(*serve, "--key", tmp).must(FAILED, "kv.key", "chmod 600")
        key.chmod(0o600)
        with Server(tools, "--key", tmp) as s:
            expect("--key FILE" in s.line, s.line)
            s.proc.send_signal(signal.SIGHUP)
            s.wait_log("read again")
            more.write_text("gx-key 1\n")
            key.unlink()
            s.proc.send_signal(signal.SIGHUP)
            s.wait_log("more.key, line 1")
            s.wait_log("key kv is revoked")
            expect("key b.2 is revoked" not in s.log() and secret not in s.log(), s.log())
            tools.perf("put", s.addr, "-s", "64K", "-n", "4").clean()  # of this host, by its user
            text = tools.gxd("stats", f"@gxd-{s.port}").must(OK).out
            expect("peers_now" in text and "peer 127" not in text, text)


@case
def usage_nic_memory(tools):
    if not has_nic_memory(tools):
        return
    for args, words in (
            (["--mem", "kv=host:1M", "--listen", "127.0.0.1:0", "--tcp-rx", "devmem"], ["--tcp-rx devmem", "--tcp-rx-nic", "eth0:8-15"]),
            (["--mem", "kv=host:1M", "--listen", "127.0.0.1:0", "--tcp-rx", "devmem", "--tcp-rx-nic", "lo"], ["--tcp-rx-nic", "'lo'", "eth0:8-15"]),
            (["--mem", "kv=host:1M", "--listen", "127.0.0.1:0", "--tcp-rx-nic", "eth0:8-15"], ["--tcp-rx devmem"]),
            (["--mem", "kv=host:1M", "--listen", "127.0.0.1:0", "--tcp-rx", "copy", "--tcp-rx-nic", "eth0:8-15"], ["--tcp-rx devmem"]),
            (["--mem", "kv=host:1M", "--listen", "127.0.0.1:0", "--tcp-tx", "devmem"], ["--tcp-tx devmem", "--tcp-tx-nic", "eth0"]),
            (["--mem", "kv=host:1M", "--listen", "127.0.0.1:0", "--tcp-tx-nic", "eth0"], ["--tcp-tx devmem or auto"]),
            (["nic", "plan"], ["--dev"]),
            (["nic", "plan", "--dev", "lo"], ["--queues", "8-15"]),
            (["nic", "plan", "--dev", "lo", "--queues", "8-"], ["'8-'", "FIRST-LAST"]),
            (["nic", "plan", "--dev", "lo", "--queues", "8-15-16"], ["8-15-16", "FIRST-LAST"]),
            (["nic", "plan", "--dev", "lo", "--queues", "8-70000"], ["8-70000", "65535"]),
            (["nic", "plan", "--dev", "lo", "--queues", "\x1b8"], ["'?8'", "FIRST-LAST"]),
            (["nic", "plan", "--dev", "lo", "--queues", "15-8"], ["15-8", "write 8-15"]),
            (["nic", "plan", "--dev", "lo", "--queues", "0-7"], ["queue 0", "begin with 1"]),
            (["nic", "plan", "--dev", "lo", "--queues", "0"], ["queue 0", "begin with 1"]),
            (["nic", "plan", "--dev", "lo", "--queues", "8-2000"], ["8-2000", "1023"]),
            (["nic", "plan", "--dev", "lo", "--queues", "8-15", "--port", "0"], ["--port", "'0'", "65535"]),
            (["nic", "plan", "--dev", "lo", "--queues", "8-15", "--format", "xml"], ["xml", "json"]),
            (["nic", "plan", "--dev", "", "--queues", "8-15"], ["name"]),
            (["nic", "plan", "--dev", "no\nsuch", "--queues", "8-15"], ["no?such", "interfaces here: ", "lo"]),
            (["nic", "plan", "--dev", "nosuch0", "--queues", "8-15"], ["nosuch0", "interfaces here: ", "lo"])):
        tools.gxd(*args).must(USAGE, *words)


@case
def usage_options_are_one(tools):
    """No option has the name or the letter of another."""
    subs = ("info put get send lat blocks allgather alltoall unpack p2p compare overlap demo").split()
    for program, args in [(tools.gxd, [])] + [(tools.perf, [sub]) for sub in subs]:
        text = program(*args, "--help-all").must(OK).out
        names = [n for line in text.splitlines() for n in re.findall(r"(?<!\S)--?[\w-]+", line[:24])
                 if re.match(r" {2}(-\w, | {4}--)", line)]
        expect(len(names) > 2 and len(names) == len(set(names)), sorted(names))


@case
def help_is_a_screen(tools):
    """Two examples, then the main options, in 50 lines; the rest by --help-all. -h and `help COMMAND` are the same."""
    commands = [line.split("\t")[1] for line in tools.run(tools.gxperf_path, "--complete").must(OK).out.splitlines() if line.startswith("command\t")]
    for command in commands:
        if command == "plot":  # another program
            continue
        words = [command] if command else []
        text = tools.run(tools.gxperf_path, *words, "--help").must(OK).out
        lines = text.splitlines()
        expect(len(lines) <= 50 and max(map(len, lines)) <= 80, command, len(lines), text)
        at = [i for i, line in enumerate(lines) if line.startswith("  gxperf ")]
        options = [i for i, line in enumerate(lines) if re.match(r" +-", line)]
        expect(len(at) == 2 and at[1] < options[0], command, text)
        expect(tools.run(tools.gxperf_path, "help", *words).must(OK).out == text == tools.run(tools.gxperf_path, *words, "-h").must(OK).out, text)
    for words in ([], ["check"], ["keygen"], ["metrics"], ["nic"], ["dump"], ["stats"], ["top"]):
        text = tools.gxd(*words, "-h").must(OK).out
        expect(len(text.splitlines()) <= 50 and text.count("\n  gxd") >= 1 and text == tools.gxd("help", *words).must(OK).out, text)
    all_of = tools.run(tools.gxperf_path, "put", "--help-all").must(OK).out
    expect("--window" in all_of and "--window" not in tools.run(tools.gxperf_path, "put", "-h").out, all_of)
    for program in (tools.gxperf, tools.gxd):
        expect(program("version", "--cores", "any").out == program("--version").must(OK).out)
    ran = subprocess.run([pathlib.Path(__file__).resolve().parents[2] / "run", "demo", "--help"], capture_output=True, text=True, timeout=60, check=False)
    expect(ran.returncode == 0 and "usage: ./run demo" in ran.stdout and not ran.stderr, ran)


@case
def shortest_pair(tools):
    """gxd, and gxperf HOST: a put with what is sane. No port is that of gxd."""
    expect("kv" in tools.gxd("check").out)
    with Server(tools) as s:
        ran = tools.run(tools.gxperf_path, s.addr, "--format", "json", "--timeout", "60")
        ran.clean()
        took = ran.doc["results"][0]["count"] * ran.doc["results"][0]["size_b"]
        expect(ran.doc["command"] == "put" and took > 0 and ran.doc["path"]["link"] == "local", ran)
    tools.gxperf("put", "192.0.2.1").must(FAILED, "192.0.2.1:7501", "--key")
    tools.run(tools.gxperf_path, "no-such-host.invalid").must(FAILED, "no-such-host.invalid")


@case
def conf_names_the_line(tools):
    with tempfile.TemporaryDirectory() as tmp:
        conf = pathlib.Path(tmp, "kv.conf")
        for line, words in (("--mem kv", ["NAME=PLACE:SIZE"]), ("--frobnicate x", ["frobnicate"]), ("--cores", ["--cores"]),
                            ("--window x", ["--window"]), ("--integrity rot13", ["--integrity"])):
            conf.write_text(f"# ours\n--name here\n\n{line}\n--listen 127.0.0.1:0\n")
            for sub in ([], ["check"]):
                tools.gxd(*sub, "--config", conf).must(USAGE, *words, f"{conf}:4: {line.split()[0]}")
        conf.write_text("--listen 127.0.0.1:9417\n--dri x\n")
        tools.gxd("metrics", "--config", conf).must(USAGE, f"{conf}:2: --dri")
        conf.write_text("--name here\n")  # what is wrong stands on the command line
        expect(str(conf) not in tools.gxd("--config", conf, "--mem", "kv").must(USAGE).err)


@case
def words_of_addresses(tools):
    for words in (("fe80::1%",), ("lo", "is an interface")):
        addr = "[fe80::1]:7501" if words[0] != "lo" else "lo:7501"
        tools.gxperf("put", addr, "--insecure", "-n", "1").must(FAILED, words[-1].rstrip("%"), "ip ")
    tools.gxd("--listen", "lo:0", "--insecure").must(USAGE, "lo is an interface", "ip addr show lo")
    tools.gxd("--bind", "lo").must(USAGE, "is an interface")
    with Server(tools, "--port", "udp:port=17501"):
        tools.gxd("--listen", "127.0.0.1:0", "--port", "udp:port=17501").must(FAILED, "another process has them")


@case
def words_of_a_secret_volume(tools):
    """As Kubernetes mounts it: links into a folder that it swaps."""
    with tempfile.TemporaryDirectory() as tmp:
        folder = pathlib.Path(tmp)
        tools.gxd("keygen", "job", "-o", folder / "job").must(OK)
        (folder / "..2026").mkdir()
        (folder / "job").rename(folder / "..2026/job.key")
        (folder / "..data").symlink_to("..2026")
        (folder / "job.key").symlink_to("..data/job.key")
        (folder / "..2026/job.key").chmod(0o644)
        for key in (folder / "job.key", folder):
            ran = tools.gxd("check", "--mem", "kv=host:1M", "--key", key).must(FAILED)
            expect("defaultMode: 0440" in ran.out + ran.err and "chmod 600" not in ran.out + ran.err, ran)
        (folder / "..2026/job.key").chmod(0o400)
        for key in (folder / "job.key", folder):
            tools.gxd("check", "--mem", "kv=host:1M", "--key", key).must(OK)


@case
def signal_while_it_connects(tools):
    """Nothing is measured yet, so nothing has to end in order."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        proc = subprocess.Popen([tools.gxperf_path, "put", "127.0.0.1:%d" % sock.getsockname()[1], "--timeout", "3600", "--cores", CLIENT_CPU],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=tools.env,
                                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        conn, _ = sock.accept()
        with conn:
            conn.recv(1)
            proc.send_signal(signal.SIGINT)
            ran = ended(proc, timeout=60)
    ran.must(128 + signal.SIGINT)


@case
def file_through_pipes(tools):
    data = random.Random(7).randbytes(5000003)
    with Server(tools) as s:
        args = [s.addr, "--file", "-", "--cores", CLIENT_CPU, "--timeout", "60"]
        ran = subprocess.run([tools.gxperf_path, "put", *args], input=data, capture_output=True, timeout=120, env=tools.env, check=False)
        expect(ran.returncode == OK and b"wrong 0" in ran.stdout, ran)
        ran = subprocess.run([tools.gxperf_path, "get", *args, "-s", str(len(data))], stdin=subprocess.DEVNULL, capture_output=True, timeout=120,
                             env=tools.env, check=False)
        expect(ran.returncode == OK and ran.stdout == data and b"wrong 0" in ran.stderr, ran.returncode, ran.stderr, len(ran.stdout))
        with open("/dev/zero", "rb") as zero:  # it has no end
            ran = subprocess.run([tools.gxperf_path, "put", *args], stdin=zero, capture_output=True, timeout=120, env=tools.env, check=False)
        expect(ran.returncode == FAILED and b"too small" in ran.stderr, ran)


@case
def run_folder_of_ones_own(tools):
    if pathlib.Path("/run/gx").exists():
        print("note: /run/gx exists: not tested")
        return
    with tempfile.TemporaryDirectory() as tmp:
        own = Tools(pathlib.Path(tools.gxd_path).parents[1])
        own.env = {**tools.env, "XDG_RUNTIME_DIR": tmp}
        del own.env["GX_RUN_DIR"]
        own.gxd("dump").must(FAILED, f"{tmp}/gx")
        with Server(own) as s:
            s.wait_log(f"{tmp}/gx was missing, and is made for this user alone")
            dump = json.loads(own.gxd("dump").must(OK).out)
            expect(str(s.proc.pid) in json.dumps(dump), dump)
            expect(os.stat(f"{tmp}/gx").st_mode & 0o777 == 0o700)


# $1: gxd; $2: a folder. In a mount namespace, with a /run and a group of its own.
RUN_OF_ROOT = """
mount -t tmpfs none /run && (grep -v ^gx: /etc/group; echo gx:x:4711:) >/run/group && mount --bind /run/group /etc/group || exit 77
env -u XDG_RUNTIME_DIR "$1" --listen 127.0.0.1:0 --mem kv=host:1M & root=$!
for i in {1..400}; do [ -S /run/gx/$root-0.sock ] && break; sleep 0.05; done
stat -c "mode %a group %g" /run/gx
chown 65534 "$2"
setpriv --reuid 65534 --clear-groups env XDG_RUNTIME_DIR="$2" "$1" --listen 127.0.0.1:0 --mem kv=host:1M & other=$!
for i in {1..400}; do [ -S "$2"/gx/$other-0.sock ] && break; sleep 0.05; done
setpriv --reuid 65534 --clear-groups env XDG_RUNTIME_DIR="$2" "$1" dump | grep "pid.*$other" || echo "nothing of $other"
kill $root $other
wait $root; echo "root's ended with $?"
wait $other; echo "the other one ended with $?"
"""


@case
def run_folder_of_root(tools):
    """Root makes it for the group, and a user who may not write there has one of its own."""
    if os.geteuid() or subprocess.run(["unshare", "-m", "setpriv", "true"], capture_output=True, check=False).returncode:
        print("note: no root with mount namespaces: not tested")
        return
    with tempfile.TemporaryDirectory() as tmp:
        env = {k: v for k, v in tools.env.items() if k != "GX_RUN_DIR"}
        os.chmod(tmp, 0o755)
        ran = subprocess.run(["unshare", "-m", "bash", "-c", RUN_OF_ROOT, "bash", tools.gxd_path, tmp], env=env, capture_output=True, text=True,
                             timeout=120, check=False)
        if ran.returncode == 77:
            print("note: /run cannot be mounted: not tested")
            return
        expect(ran.returncode == OK and "mode 2770 group 4711" in ran.stdout and '"pid"' in ran.stdout, ran)


@case
def usage_gxperf(tools):
    for args, words in (
            (["frobnicate"], ["frobnicate", "put"]),
            (["put"], ["server"]),
            (["put", "127.0.0.1:1", "x"], ["x"]),
            (["put", "127.0.0.1:1", "--frobnicate"], ["frobnicate"]),
            (["put", "127.0.0.1:1", "-s", "1Q"], ["1Q"]),
            (["put", "127.0.0.1:1", "-s", "-1"], ["-1"]),
            (["put", "127.0.0.1:1", "-b", "4K", "-e", "1K"], ["-e"]),
            (["put", "127.0.0.1:1", "-b", "4K", "-s", "1K"], ["-s"]),
            (["put", "127.0.0.1:1", "-n", "5", "-D", "5"], ["-D"]),
            (["put", "127.0.0.1:1", "-n", "0"], ["-n"]),
            (["put", "127.0.0.1:1", "-D", "nan"], ["nan"]),
            (["put", "127.0.0.1:1", "-f", "1"], ["-f"]),
            (["put", "127.0.0.1:1", "-q", "0"], ["-q"]),
            (["put", "127.0.0.1:1", "--format", "xml"], ["xml"]),
            (["put", "127.0.0.1:1", "--file", "/etc/passwd", "-s", "5"], ["-s"]),
            (["put", "127.0.0.1:1", "--file", "/etc/passwd", "-q", "2"], ["-q"]),
            (["put", "127.0.0.1:1", "--file", "/etc/passwd", "--stripe"], ["--stripe"]),
            (["put", "127.0.0.1:1", "--force"], ["-J"]),
            (["send", "127.0.0.1:1", "--file", "/etc/passwd"], ["file"]),
            (["send", "127.0.0.1:1", "--stripe"], ["stripe"]),
            (["lat", "127.0.0.1:1", "-q", "2"], ["-q"]),
            (["blocks"], ["server"]),
            (["blocks", "127.0.0.1:1", "-q", "2"], ["-q"]),
            (["blocks", "127.0.0.1:1", "--blocks", "0"], ["--blocks", "0"]),
            (["blocks", "127.0.0.1:1", "--blocks", "65537"], ["65537"]),
            (["blocks", "127.0.0.1:1", "-s", "0"], ["1 byte"]),
            (["blocks", "127.0.0.1:1", "-s", "1G", "--blocks", "65"], ["64 GiB"]),
            (["blocks", "127.0.0.1:1", "--depth", "65"], ["--depth", "64"]),
            (["blocks", "127.0.0.1:1", "--same-place"], ["--same-place"]),
            (["blocks", "127.0.0.1:1", "--view", "hnd"], ["--view hnd", "nhd-hnd"]),
            (["blocks", "127.0.0.1:1", "--view", "nhd-hnd", "--blocks", "6"], ["--blocks", "multiple of 4"]),
            (["blocks", "127.0.0.1:1", "--view", "rows576", "--blocks", "1048577"], ["1048577"]),
            (["blocks", "127.0.0.1:1", "--view", "rows576", "-s", "1K"], ["-s"]),
            (["blocks", "127.0.0.1:1", "--view", "rows576", "--depth", "2"], ["--depth"]),
            (["put", "127.0.0.1:1", "--blocks", "2"], ["--blocks"]),
            (["allgather"], ["-g", "--rank"]),
            (["allgather", "-g", "0"], ["0"]),
            (["allgather", "-g", "2", "--rank", "0", "--ranks", "2"], ["-g", "--rank"]),
            (["alltoall", "--rank", "2", "--ranks", "2", "--master", "127.0.0.1:1"], ["--ranks"]),
            (["alltoall", "--rank", "0", "--master", "127.0.0.1:1"], ["--ranks"]),
            (["alltoall", "--rank", "0", "--ranks", "2"], ["--master", "MASTER_ADDR"]),
            (["allgather", "-g", "2", "--mem", "kv"], ["kv"]),
            (["allgather", "-g", "2", "--local-mem", "host"], ["--local-mem"]),
            (["allgather", "-g", "2", "--poll", "memory"], ["--poll"]),
            (["allgather", "-g", "2", "--piece", "5000"], ["5000"]),
            (["allgather", "-g", "2", "--engine", "ce"], ["--engine"]),
            (["allgather", "-g", "2", "--depth", "17"], ["--depth"])):
        tools.gxperf(*args).must(USAGE, *words)
    tools.run(tools.gxperf_path).must(USAGE, "command")
    for program, name in ((tools.gxperf, "gxperf"), (tools.gxd, "gxd")):
        text = program("--version").must(OK).out
        expect(re.match(rf"{name} \d+\.\d+\.\d+\ncommit (unknown|[0-9a-f]{{12}}(-dirty)?), (gcc|clang) \d.*\nparts: .*\n$", text), text)


@case
def usage_line_to_paste(tools):
    """What gxd prints is what a shell takes, whatever the region is called."""
    with Server(tools, mem="it's $HOME=host:1M") as s:
        line = s.line.replace("gxperf", tools.gxperf_path, 1).strip() + f" --cores {CLIENT_CPU} -s 4K -n 5 --format json"
        tools.run("/bin/sh", "-c", line).clean()


@case
def usage_headings(tools):
    """No heading of a help without options, and none of what means nothing there."""
    for command in ("put", "lat", "blocks", "allgather", "alltoall"):
        lines = tools.run(tools.gxperf_path, command, "--help-all").must(OK).out.splitlines()
        heads = [i for i, line in enumerate(lines) if re.match(r" \S.*:$", line)]
        expect(len(heads) == (5 if "all" in command else 4) and all(re.match(r" {2}", lines[i + 1]) for i in heads), lines)
        for option in ("--offset", "--poll", "--same-place", "--local-mem", "--gpu="):
            expect(any(option in line for line in lines) == ("all" not in command), command, option)


@case
def usage_exit_of_help(tools):
    for command in ("info", "put", "get", "send", "lat", "blocks", "allgather", "alltoall", "demo"):
        expect("Usage: gxperf " + command in tools.run(tools.gxperf_path, command, "--help").must(OK).out)

# --- what can go wrong ------------------------------------------------------------------------------------

@case
def wrong_nobody_listens(tools):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0)) # taken, not listened at
        addr = "127.0.0.1:%d" % s.getsockname()[1]
        tools.gxperf("put", addr, "--mem", "kv").must(FAILED, addr, "gxd")


@case
def wrong_address(tools):
    for addr in ("nowhere", "127.0.0.1:99999", "127.0.0.1:", ":::"):
        tools.gxperf("put", addr, "--timeout", "3").must(FAILED)
    tools.gxd("--listen", "127.0.0.1:99999", "--mem", "kv=host:1M").must(USAGE, "99999")
    tools.gxd("--listen", "203.0.113.7:0", "--insecure", "--mem", "kv=host:1M").must(FAILED, "203.0.113.7")


@case
def wrong_not_loopback(tools):
    ran = tools.gxperf("put", "203.0.113.7:7501", "--timeout", "3").must(FAILED, "203.0.113.7", "insecure")
    expect("insecure" in ran.err)


@case
def wrong_server_options(tools):
    with Server(tools, "--port", "shm") as s:
        # In use: says where and what to do.
        tools.gxd("--listen", s.addr, "--mem", "kv=host:1M").must(FAILED, s.addr)
        tools.gxperf("put", s.addr, "--mem", "kx").must(FAILED, "kx", "kv")
        tools.gxperf("put", s.addr, "--mem", "kv", "-s", "17M").must(FAILED, "too small", "kv")
        tools.gxperf("get", s.addr, "-s", "1M", "--offset", "16M").must(FAILED, "too small")
        tools.gxperf("put", s.addr, "--port", "udp").must(FAILED, "udp", "shm")
        tools.gxperf("put", s.addr, "--port", "avian").must(FAILED, "avian")
        tools.gxperf("put", s.addr, "--link", "pigeon").must(USAGE, "pigeon", "verbs")
        tools.gxperf("put", s.addr, "--link", "verbs", "-q", "65").must(USAGE, "64 queue pairs")
        tools.gxperf("put", s.addr, "--link", "verbs", "--rdma", "nosuch0").must(FAILED)
        tools.gxperf("get", s.addr, "--link", "packet", "--unpack", "d2d").must(FAILED, "d2d", "host memory")
        tools.gxperf("get", s.addr, "--unpack", "host").must(FAILED, "--link packet")
        tools.gxperf("put", s.addr, "--unpack", "auto").must(FAILED, "--link packet")
        tools.gxperf("put", s.addr, "--file", "/nonexistent").must(FAILED, "/nonexistent")
        tools.gxperf("put", s.addr, "--file", "/").must(FAILED, "regular")
        tools.gxperf("get", s.addr, "--file", "/nonexistent/g", "-s", "1").must(FAILED, "/nonexistent/g")
        # And it still serves.
        tools.perf("put", s.addr, "-s", "1K", "-n", "10").clean()
    tools.gxd("--listen", "127.0.0.1:0", "--port", "avian", "--mem", "kv=host:1M").must(FAILED, "avian")
    tools.gxd("stats", "@gxd-nobody").must(FAILED, "@gxd-nobody")
    tools.gxd("stats", "/nonexistent/socket").must(FAILED, "/nonexistent/socket")


@case
def wrong_two_regions(tools):
    with Server(tools, "--mem", "w=host:1M") as s:
        tools.gxperf("put", s.addr, "-s", "1K").must(USAGE, "kv", "w", "--mem")
        tools.perf("put", s.addr, "--mem", "w", "-s", "1K", "-n", "10").clean()


@case
def wrong_no_gpu(tools):
    if pathlib.Path("/dev/nvidiactl").exists():
        return
    tools.gxd("--listen", "127.0.0.1:0", "--mem", "g=cuda:0:1M").must(FAILED, "g", "cuda")


@case
def wrong_data_is_seen(tools):
    """Unpacking that copies nothing is how wrong data is made to order."""
    with Server(tools, "--unpack", "none") as s:
        ran = tools.perf("put", s.addr, "--link", "packet", "-s", "1M", "-n", "5").must(WRONG, "wrong")
        expect(ran.doc["exit_code"] == WRONG and ran.doc["results"][0]["wrong"] > 1000000, ran)
        expect(ran.doc["path"]["unpack"] == "none", ran)
        ran = tools.perf("put", s.addr, "--link", "packet", "--unpack", "none", "-s", "1M", "-n", "5",
                         "--no-check").must(OK)
        expect(ran.doc["results"][0]["wrong"] is None and ran.doc["results"][0]["checked_b"] == 0, ran)


@case
def unpack_is_the_receivers(tools):
    """The server decides on puts, sends and pings; --unpack and --sms say how gxperf unpacks what it gets."""
    moves = [(command, "--link", link) for command in ("put", "send", "lat") for link in ("packet", "local")]
    with Server(tools, "--unpack", "none", "--sms", "8") as s:
        for command, *link in moves:
            ran = tools.gxperf(command, s.addr, *link, "--unpack", "kernel")
            ran.must(USAGE, "the receiving end decides", f"gxd at {s.addr} has --unpack none", "gxd --unpack kernel")
        for command in ("put", "send", "lat"):
            ran = tools.gxperf(command, s.addr, "--link", "packet", "--sms", "4")
            ran.must(USAGE, "the receiving end decides", "has --sms 8", "gxd --sms 4")
        ran = tools.perf("put", s.addr, "--link", "packet", "-n", "5", "--sms", "8", "--no-check").must(OK)
        expect(ran.doc["path"]["unpack"] == "none", ran)
        ran = tools.perf("get", s.addr, "--link", "packet", "-s", "1M", "-n", "5", "--unpack", "host", "--sms", "4")
        ran.clean()
        expect(ran.doc["path"]["unpack"] == "host", ran)
    with Server(tools, "--unpack", "d2d") as s:
        tools.gxperf("put", s.addr, "--link", "packet", "--sms", "4").must(USAGE, "has no --sms", "gxd --sms 4")
        for how in ((), ("--unpack", "d2d")):  # a GPU's mode, and the CPU fills host memory
            ran = tools.perf("put", s.addr, "--link", "packet", "-s", "1M", "-n", "5", *how)
            ran.clean()
            expect(ran.doc["path"]["unpack"] == "host", ran)
        ran = tools.perf("get", s.addr, "--link", "packet", "-s", "1M", "-n", "5", "--unpack", "none").must(WRONG, "wrong")
        expect(ran.doc["path"]["unpack"] == "none", ran)


def hello_of_another_version(sock):
    """Answers a client's hello with the same, of version 9999."""
    conn, _ = sock.accept()
    with conn:
        conn.settimeout(20)
        data = conn.recv(65536)
        at = data.find(struct.pack("<I", HELLO_MAGIC))
        if at >= 0:
            conn.sendall(data[:at + 4] + struct.pack("<I", 9999) + data[at + 8:])
            try:
                while conn.recv(65536):
                    pass
            except OSError:
                pass


@case
def wrong_version(tools):
    with socket.create_server(("127.0.0.1", 0)) as sock:
        thread = threading.Thread(target=hello_of_another_version, args=(sock,))
        thread.start()
        ran = tools.gxperf("put", "127.0.0.1:%d" % sock.getsockname()[1], "--timeout", "5")
        thread.join()
        ran.must(FAILED, "version", "9999")


@case
def wrong_server_that_says_nothing(tools):
    with socket.create_server(("127.0.0.1", 0)) as sock:
        tools.gxperf("put", "127.0.0.1:%d" % sock.getsockname()[1], "--timeout", "1").must(LOST)


@case
def wrong_server_that_babbles(tools):
    def babble(sock):
        conn, _ = sock.accept()
        with conn:
            conn.sendall(random.Random(5).randbytes(4096))
            time.sleep(0.2)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        thread = threading.Thread(target=babble, args=(sock,))
        thread.start()
        ran = tools.gxperf("put", "127.0.0.1:%d" % sock.getsockname()[1], "--timeout", "2")
        thread.join()
        expect(ran.rc in (FAILED, LOST), ran)

# --- results ----------------------------------------------------------------------------------------------

@case
def out_json_file(tools):
    with Server(tools) as s, tempfile.TemporaryDirectory() as tmp:
        path = pathlib.Path(tmp, "out.json")
        ran = tools.gxperf("put", s.addr, "-b", "0", "-e", "64K", "-f", "256", "-n", "200", "-J", path).must(OK)
        doc = json.loads(path.read_text())
        expect(set(doc) == TOP_KEYS | {"offset"} and doc["offset"] == 0, "keys", set(doc) ^ TOP_KEYS)
        expect(set(doc["path"]) == PATH_KEYS, "keys", set(doc["path"]) ^ PATH_KEYS)
        expect([r["size_b"] for r in doc["results"]] == [0, 1, 256, 65536], doc["results"])
        for row in doc["results"]:
            expect(set(row) == RESULT_KEYS, "keys", set(row) ^ RESULT_KEYS)
            expect(row["count"] == 200 and row["p99_us"] is not None and row["p999_us"] is None, row)
            expect(row["depth"] == 64 and row["p50_us"] <= row["p99_us"] and row["wrong"] == 0 and row["sha256"] is None, row)
        expect(doc["path"]["port"] == "shm" and doc["path"]["why"] and doc["path"]["reason"] == "same-host", doc["path"])
        expect(doc["errors"] == [] and doc["exit_code"] == 0 and doc["interrupted"] is False and doc["command"] == "put" and doc["env"], doc)
        expect(ran.out.startswith("#"), ran)
        # It is there now.
        tools.gxperf("put", s.addr, "-s", "1K", "-n", "5", "-J", path).must(FAILED, str(path), "--force")
        expect(json.loads(path.read_text()) == doc, "a file that was refused has changed")
        tools.gxperf("put", s.addr, "-s", "1K", "-n", "5", "-J", path, "--force").must(OK)
        expect(json.loads(path.read_text())["results"][0]["count"] == 5)
        expect(json.loads(path.read_text())["results"][0]["p99_us"] is None)
        path.unlink()
        tools.gxperf("put", s.addr, "--mem", "kx", "-J", "/nonexistent/j").must(FAILED, "/nonexistent/j")
        tools.gxperf("put", s.addr, "-s", "1K", "-n", "5", "-J", "/dev/full").must(FAILED, "-J /dev/full", "No space left")
        proc = subprocess.Popen([tools.gxperf_path, "put", s.addr, "--cores", CLIENT_CPU, "-D", "30", "-J", path],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=tools.env)
        proc.stdout.readline()
        proc.kill()
        proc.communicate()
        expect(os.listdir(tmp) == [], "a run that was killed left", os.listdir(tmp))
        tools.gxperf("put", s.addr, "--mem", "kx", "-J", path).must(FAILED)
        doc = json.loads(path.read_text())
        expect(doc["exit_code"] == FAILED and "kx" in doc["errors"][0] and doc["results"] == [] and doc["reason"] is None, doc)
        tools.gxperf("put", "127.0.0.1:1", "-J", path, "--force").must(FAILED, "nothing listens")
        expect(json.loads(path.read_text())["reason"] == "no-server", path.read_text())


@case
def out_formats(tools):
    with Server(tools) as s:
        args = [s.addr, "-b", "64", "-e", "4K", "-f", "64", "-n", "1000"]
        rows = list(csv.DictReader(io.StringIO(tools.gxperf("get", *args, "--format", "csv").must(OK).out)))
        expect([r["size_b"] for r in rows] == ["64", "4096"] and rows[0]["p999_us"] and rows[0]["wrong"] == "0", rows)
        for row in rows:
            expect((row["link"], row["port"], row["host"], row["lost"]) == ("local", "shm", os.uname().nodename, "0"), row)
            expect(re.fullmatch(r"20..-..-..T..:..:..Z", row["time"]) and row["depth"] == "64", row)
        lines = [json.loads(x) for x in tools.gxperf("get", *args, "--format", "jsonl").must(OK).out.splitlines()]
        expect(len(lines) == 2 and all(set(x) == RESULT_KEYS | LINE_KEYS and next(iter(x)) == "env" for x in lines), lines)
        expect((lines[0]["link"], lines[0]["command"], lines[0]["env"]["args"][0]) == ("local", "get", "get"), lines)
        table = tools.gxperf("get", *args).must(OK).out.splitlines()
        expect(len([x for x in table if not x.startswith("#")]) == 2, table)
        expect(any("checked_b" in x for x in table), table)
        expect("nan" not in "".join(table).lower())


@case
def out_append(tools):
    """Results of several runs in one file, each a line that says all; a run without results leaves none."""
    with Server(tools) as s, tempfile.TemporaryDirectory() as tmp:
        path = pathlib.Path(tmp, "lines")
        args = (s.addr, "-s", "4K", "-n", "5", "--append", path)
        tools.gxperf("put", s.addr, "--mem", "kx", "--append", path).must(FAILED, "kx")
        expect(os.listdir(tmp) == [], os.listdir(tmp))
        tools.gxperf("put", *args, "--link", "packet").must(OK)
        expect(len(tools.perf("get", *args, "-q", "2").clean()) == 1)
        tools.gxperf("put", s.addr, "--mem", "kx", "--append", path).must(FAILED, "kx")
        tools.gxperf("allgather", "-g", "2", "-s", "4K", "-n", "5", "--cores", "any", "--append", path).must(OK)
        lines = [json.loads(x) for x in path.read_text().splitlines()]
        expect([(x["command"], x["link"], x["op"]) for x in lines] == [
            ("put", "packet", "put"), ("get", "local", "get"), ("allgather", "local", "allgather")], lines)
        expect(all(set(x) == RESULT_KEYS | LINE_KEYS for x in lines[:2]), lines)
        tools.gxperf("put", *args[:-1], "/nonexistent/x").must(FAILED, "--append /nonexistent/x")
        tools.gxperf("put", *args[:-1], "/dev/full").must(FAILED, "--append /dev/full", "No space")

        def short(): # of a line only a part has room
            resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, 2 << 20))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

        path.write_bytes(b" " * ((2 << 20) - 100))
        proc = subprocess.Popen([tools.gxperf_path, "put", *map(str, args), "--port", "udp", "--cores", CLIENT_CPU], text=True, env=tools.env,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=short)
        ended(proc).must(FAILED, "--append", "No space")


@case
def names(tools):
    """A name is looked up once, in the time that --timeout gives; each of its addresses is named."""
    with Server(tools) as s:
        tools.gxperf("put", f"localhost:{s.port}", "--cores", CLIENT_CPU, "-s", "4K", "-n", "4").must(OK)
    ran = tools.gxperf("put", "127.0.0.2:9,127.0.0.3:9", "--cores", CLIENT_CPU).must(FAILED)
    expect("any of its addresses: 127.0.0.2:9: nothing listens there; 127.0.0.3:9: nothing" in ran.err, ran)


@case
def out_packets_lost(tools):
    """What was sent again, and came twice, is told: here because the server stood still for a moment."""
    with Server(tools, "--port", "udp", "--timeout", "20") as s:
        with measuring(tools, "put", s.addr, "--cores", CLIENT_CPU, "-s", "64K", "-D", "6", "--timeout", "20") as proc:
            s.proc.send_signal(signal.SIGSTOP)
            time.sleep(0.7)
            s.proc.send_signal(signal.SIGCONT)
            ran = ended(proc).must(OK)
            row, = json.loads(proc.folder.joinpath("j").read_text())["results"]
        expect(row["resent"] > 0 and row["lost"] <= row["resent"] and row["wrong"] == 0, row)
        expect(f"# packets: {row['lost']} lost, {row['resent']} sent again, {row['duplicate']} came twice" in ran.out, ran)


@case
def out_info_and_stats(tools):
    with Server(tools) as s:
        ran = tools.gxperf("info", s.addr).must(OK)
        for word in ("shm", "udp", "huge pages", "region kv", "copies"):
            expect(word in ran.out, f"no '{word}' in:", ran)
        expect(re.search(r"io_uring|epoll", ran.out), ran)
        expect("GPU" in ran.out, ran)
        expect(re.search(r"^link verbs: (yes, where it is asked for: \S|no: \S)", ran.out, re.M), ran)
        info = tools.perf("info", s.addr).must(OK).doc["info"]
        rdma = info["rdma"]
        expect(rdma["opens"] == (rdma["why"] is None) == (rdma["takes"] is not None), rdma)
        region, = info["server"]["regions"]
        expect((region["name"], region["place"], region["size_b"], region["put"]) == ("kv", "host", 16 << 20, True), info)
        shm, = [d for d in info["devices"] if d["kind"] == "port" and d["name"] == "shm"]
        expect((shm["number"], shm["numa"], shm["speed_mbps"], shm["up"], shm["pci"]) == (0, -1, 0, True, None), shm)
        expect("\nport shm: up, loses nothing\n" in ran.out and "\ninterface lo: up\n" in ran.out, ran)
        expect(info["ports"]["shm"] == {"opens": True, "why": None} and info["cores"] == CLIENT_CPU, info)
        expect(info["server"]["link"] == "local" and any("links" in line for line in info["describe"]), info)
        tools.perf("put", s.addr, "-s", "4K", "-n", "100", "--link", "packet").clean()
        expect(s.stat(tools, "msgs_rx") >= 100)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(f"\0gxd-{s.port}")
            sock.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            text = b"".join(iter(lambda: sock.recv(65536), b"")).decode()
        expect("200" in text.splitlines()[0] and "# TYPE" in text and "msgs_rx" in text, text[:500])


@case
def nic_memory_absent(tools):
    if has_nic_memory(tools):
        return
    text = tools.gxperf("info").must(OK).out
    expect(re.search(r"^interfaces: .*-Dnic_memory=true$", text, re.M), text)
    tools.gxd("nic", "plan", "--dev", "lo", "--queues", "8-15").must(FAILED, "-Dnic_memory=true")
    for more in (("--tcp-rx", "devmem"), ("--tcp-rx-nic", "lo:1-2"), ("--tcp-tx", "devmem"), ("--tcp-tx-nic", "lo")):
        tools.gxd("--mem", "kv=host:1M", "--listen", "127.0.0.1:0", *more).must(USAGE, more[0][:8], "-Dnic_memory=true")


@case
def nic_plan(tools):
    """Each step on an interface that refuses nearly all; nothing is changed."""
    if not has_nic_memory(tools):
        return
    args = ("nic", "plan", "--dev", "lo", "--queues", "8-15", "--port", "7501")
    ran = tools.gxd(*args).must(FAILED, "lo: step 'bind' is refused", "Cure: ")
    for word in ("ethtool -G lo tcp-data-split on", "ethtool -G lo hds-thresh 0", "ethtool -X lo equal 8",
                 "ethtool -N lo flow-type tcp4 dst-port 7501 action 8", "netdev bind-rx ifindex 1 queues rx 8-15",
                 "Nothing is changed", "UNTRIED"):
        expect(word in ran.out, f"no '{word}' in:", ran)
    doc = tools.gxd(*args, "--format", "json").must(FAILED).doc
    names = [s["step"] for s in doc["steps"]]
    expect(names == ["queues", "header split", "split threshold", "RSS away", "flow rules on", "flow rule", "bind"], doc)
    expect(doc["interface"] == "lo" and doc["queues"] == [8, 15] and doc["goes"] is False, doc)
    expect(all((s["state"] == "refused") == (s["cure"] is not None) for s in doc["steps"]), doc)
    expect(all(s["netlink"] and s["answer"] for s in doc["steps"]), doc)
    doc = tools.gxd(*args[:-2], "--format", "json").must(FAILED).doc  # without a port
    rule, = [s for s in doc["steps"] if s["step"] == "flow rule"]
    expect(rule["command"] is None and not any("..." in (s["command"] or "") for s in doc["steps"]), doc)


@case
def devmem_send_refused(tools):
    if not has_nic_memory(tools):
        return
    args = ("--mem", "kv=host:1M", "--listen", "127.0.0.1:0", "--tcp-tx", "devmem", "--tcp-tx-nic")
    tools.gxd(*args, "nosuch0").must(FAILED, "--tcp-tx-nic", "no interface 'nosuch0'")


@case
def info_receive_modes(tools):
    if not has_nic_memory(tools):
        return
    info = tools.perf("info").must(OK).doc["info"]
    lo, = [d for d in info["devices"] if d["kind"] == "interface" and d["name"] == "lo"]
    modes = {m["mode"]: m for m in lo["receive"]}
    expect(list(modes) == ["copy", "devmem"], lo)
    expect(modes["copy"] == {"mode": "copy", "state": "available", "why": None, "cure": None}, lo)
    expect(all(modes[m]["state"] == "missing" and modes[m]["why"] and modes[m]["cure"] for m in list(modes)[1:]), lo)
    expect(lo["facts"]["driver"] == "none" and lo["facts"]["kernel"] == os.uname().release, lo)
    text = tools.gxperf("info").must(OK).out
    expect("\ninterface lo: up\n  driver none\n" in text, text)
    expect(re.search(r"^  receive devmem: missing: \S", text, re.M) and "receive copy: available" in text, text)


def without_nccl(tools, **env):
    """The same tools without variables of NCCL and its plugin, but for these."""
    other = Tools(tools.fakes.parent)
    other.env = {k: v for k, v in tools.env.items() if not k.startswith(("NCCL_", "GX_NCCL_")) and k != "GX_LOG"} | env
    return other


@case
def info_nccl(tools):
    plugin = tools.fakes.parent / "bindings" / "nccl" / "libnccl-net-gx.so"
    if not plugin.exists():
        print("note: built without the NCCL plugin: not tested")
        return
    args = ("info", "--nccl", "--format", "json")

    def info(rc=OK, words=(), **env):
        return without_nccl(tools, **env).run(tools.gxperf_path, *args).must(rc, *words).doc["info"]["nccl"]

    got = info(FAILED, ["would not load", "NCCL_NET_PLUGIN=/"])
    expect(got["file"].endswith(plugin.name) and got["name"] == "gx" and got["tables"] == [10, 11, 12], got)
    for word in ("NCCL_NET=gx", "NCCL_NET_PLUGIN_REF_COUNT=1", "127.0.0.1", "NCCL_HOSTID"):
        expect(any(word in text for text in got["warnings"]), word, got)
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "pytorch.md").read_text()
    told = {name: one["value"] for name, one in got["variables"].items() if name.startswith("GX_")}
    expect(told == {name: unset.strip("`") for name, unset in re.findall(r"^\| `(GX_\w+)` \| ([^|]*) \|", page, re.M)}, told)
    right = {"NCCL_NET_PLUGIN": str(plugin), "NCCL_NET": "GX", "NCCL_NET_PLUGIN_REF_COUNT": "1"}
    info(FAILED, ["GX_ADDR: no interface that is up has", "192.0.2.3; there are: lo 127.0.0.1"], **right, GX_ADDR="192.0.2.3", GX_KEY_FILE="/a.key")
    info(FAILED, ["NCCL_SOCKET_IFNAME: no interface", "=gx9;"], **right, NCCL_SOCKET_IFNAME="=gx9", GX_KEY_FILE="/a.key")
    info(FAILED, ["set one of them"], **right, GX_KEY_FILE="/a.key", GX_NCCL_INSECURE="1")
    got = info(**right, GX_NCCL_CPUS="0-1,5", GX_NCCL_INSECURE="1")
    own = got["address"]  # as gx chooses it; 127.0.0.1 where there is loopback alone
    expect(got["cores"] == [0, 1, 5], got)
    if own != "127.0.0.1":
        expect(len(got["warnings"]) == 1 and "in clear" in got["warnings"][0], got)
        expect(not any("GX_ADDR" in w or "clear" in w for w in info(**right, GX_ADDR=own, GX_KEY_FILE="/a.key")["warnings"]))
        info(FAILED, ["GX_ADDR=" + own, "gxd keygen", "GX_NCCL_INSECURE=1"], **right, GX_ADDR=own)
    expect(got["variables"]["GX_NCCL_CPUS"] == {"set": True, "value": "0-1,5"}, got)
    expect(got["copies"].startswith("one"), got)
    for off in ({"GX_NCCL_PULL": "off"}, {"GX_NCCL_LINK": "packet"}):
        expect(info(**right, **off)["copies"].startswith("two"), off)
    for wrong in ("ll128", "Simple;broadcast:^LL"):
        info(FAILED, ["NCCL_PROTO=" + wrong, "NCCL_PROTO=^LL128"], **right, NCCL_PROTO=wrong)
    for on in ("LL,Simple", "^LL128"):
        expect(info(**right, NCCL_PROTO=on)["copies"].startswith("one"), on)
    expect(got["mode"].startswith("host: "), got)
    for mode in ("gpu", "cuda"):
        info(FAILED, ["GX_NCCL_MODE=" + mode, "say host or unpack"], **right, GX_NCCL_MODE=mode)
    info(**right, GX_NCCL_LINK="tcp", NCCL_PROTO="^LL128")
    text = without_nccl(tools, **right).run(tools.gxperf_path, "info", "--nccl").must(OK).out
    expect(str(plugin) in text and "polling cores on CPU" in text and "GX_NCCL_TIMEOUT_S=5 (default)" in text, text)
    info(FAILED, ["GX_NCCL_CORES=0"], **right, GX_NCCL_CORES="0")
    info(FAILED, ["set NCCL_PAT_ENABLE=0 NCCL_LOCAL_REGISTER=0"], **right, GX_NCCL_MODE="unpack", NCCL_PROTO="simple")
    info(FAILED, ["/nonexistent.so"], NCCL_NET_PLUGIN="/nonexistent.so")
    info(FAILED, ["not gx's plugin"], NCCL_NET_PLUGIN="libc.so.6")
    info(FAILED, ["NCCL_NET=Socket"], NCCL_NET_PLUGIN=str(plugin), NCCL_NET="Socket")
    tools.run(tools.gxperf_path, "info", "--nccl", "127.0.0.1:1").must(USAGE, "--nccl")


@case
def info_nccl_claims(tools):
    """Claimed CPUs are told, and not chosen; info claims none."""
    plugin = tools.fakes.parent / "bindings" / "nccl" / "libnccl-net-gx.so"
    if not plugin.exists():
        print("note: built without the NCCL plugin: not tested")
        return
    tools = without_nccl(tools, GX_NCCL_CORES="1", NCCL_NET_PLUGIN=str(plugin))
    with contextlib.ExitStack() as held:
        def claim(cpu):
            held.enter_context(socket.socket(socket.AF_UNIX)).bind(f"\0gx-cpu-{cpu}")

        def info():
            return tools.run(tools.gxperf_path, "info", "--nccl", "--format", "json").must(OK).doc["info"]["nccl"]

        claim(1000)
        first = info()
        expect(1000 in first["claimed"], first)
        if len(CPUS) < 4: # then it pins nothing
            expect(first["cores"] == [None] and any("not pinned" in text for text in first["warnings"]), first)
            return
        while first["cores"] != [None]: # tests of the plugin run beside this one, and may be quicker
            try:
                claim(first["cores"][0])
                break
            except OSError:
                first = info()
        else: # they have all
            return
        second = info()
        expect(first["cores"][0] in second["claimed"] and first["cores"] != second["cores"], first, second)

# --- pictures ---------------------------------------------------------------------------------------------

PLOT_DOC = {"command": "unpack", "results": [{"op": op, "size_b": size, "GB_s": size / 1024 * f}
                                           for op, f in (("a", 1), ("b", 2)) for size in (4096, 65536, 1 << 20)]}


def plot(tools, *args, path=None, **kw):
    """gxperf plot, with another PATH."""
    return tools.run("/usr/bin/env", f"PATH={path or os.environ['PATH']}", tools.gxperf_path, "plot", *args, **kw)


@case
def plot_refuses(tools):
    with tempfile.TemporaryDirectory() as tmp:
        doc, other, none = (pathlib.Path(tmp, n) for n in ("d.json", "other.json", "none"))
        doc.write_text(json.dumps(PLOT_DOC))
        other.write_text('{"lines": []}')
        none.mkdir()
        for name in ("env", "python3"):
            none.joinpath(name).symlink_to(shutil.which(name))
        plot(tools).must(USAGE, "which file")
        plot(tools, "/nonexistent.json").must(FAILED, "/nonexistent.json", "No such file")
        plot(tools, tmp).must(FAILED, tmp)
        plot(tools, other).must(FAILED, str(other), "results", "gxperf -J", "tests/bench/bench.py")
        plot(tools, doc, "--y", "shoe").must(FAILED, "shoe")
        plot(tools, doc, "--rival", "c").must(FAILED, "nothing to draw", "c")
        plot(tools, doc, path=none).must(FAILED, "gnuplot", "install")
        pathlib.Path(tmp, "d.png").write_text("mine")
        plot(tools, doc).must(FAILED, "d.png", "--force")
        expect(sorted(os.listdir(tmp)) == ["d.json", "d.png", "none", "other.json"], os.listdir(tmp))


@case
def plot_gnuplot_that_fails(tools):
    """A gnuplot of ours: what it is told, and what is left when it fails or writes nothing."""
    with tempfile.TemporaryDirectory() as tmp:
        doc, exe, heard = (pathlib.Path(tmp, n) for n in ("d.json", "gnuplot", "heard"))
        doc.write_text(json.dumps(PLOT_DOC))
        for script, word in (("exit 3", "status 3"), ("cat >%s" % heard, "did not write")):
            exe.write_text(f"#!/bin/sh\n{script}\n")
            exe.chmod(0o755)
            plot(tools, doc, path=f"{tmp}:{os.environ['PATH']}").must(FAILED, word)
            expect(not [n for n in os.listdir(tmp) if "svg" in n or "png" in n], os.listdir(tmp))
        expect("4096 4\n65536 64\n" in heard.read_text(), heard.read_text())


def bench_doc(unit, rows, rival=None):
    """As tests/bench/bench.py writes it: rows by name, and the ratios of the others to rival's."""
    docs = [{"name": n, "unit": unit, "median": v, "values": [v, v], "error": None} for n, v in rows]
    ratios = [{"gx": n, "rival": rival, "median": v, "values": [v, v + 1]} for n, v in rows if n.startswith("gx ")]
    return {"schema_version": 1, "command": ["tests/bench/bench.py"], "cpu": "x", "rounds": 2, "rows": docs, "ratios": ratios if rival else []}


@case
def plot_any_results(tools):
    """Documents of the benchmarks, of others, and lines of --format jsonl: what gnuplot is told."""
    gx, rival = "gx put {}, local, one place, verified", "UCX ucp_put_bw {}, shared memory"
    docs = {
        "put": bench_doc("GB/s", [(n.format(size), i + 1) for n in (gx, rival) for i, size in enumerate(("4K", "64K"))], rival.format("4K")),
        "lat": bench_doc("us", [("gx lat 64, shm, one way, p50", 0.6), ("UCX tag_lat 64, shared memory, p50", 0.5)]),
        "gpu": {"rows": [{"name": f"put to GPU, unpack kernel, {n} cores a side", "GB_s": 6 * n, "values": [6 * n]} for n in (1, 2)]},
        "modes": {"results": [{"op": "put, unpack none", "size_b": 4096, "cores_a_side": n, "median_GB_s": 10.5 * n} for n in (1, 6)]},
    }
    with tempfile.TemporaryDirectory() as tmp:
        exe, heard = (pathlib.Path(tmp, n) for n in ("gnuplot", "heard"))
        exe.write_text(f"#!/bin/sh\ncat >{heard}\n")
        exe.chmod(0o755)
        put, lat, gpu, modes = (pathlib.Path(tmp, f"{n}.json") for n in docs)
        lines = pathlib.Path(tmp, "lines")
        for name, doc in docs.items():
            pathlib.Path(tmp, f"{name}.json").write_text(json.dumps(doc))
        lines.write_text("".join(json.dumps({"command": "unpack", **r}) + "\n" for r in PLOT_DOC["results"]))
        for args, words in (((put,), ("'gx put, local, one place, verified'", "\n4096 1\n65536 2\n")),
                            ((put, "--rival", "UCX ucp_put_bw, shared memory"), ("ratio to UCX ucp_put_bw", "\n4096 1\n")),
                            ((lat,), ("microseconds, median",)),
                            ((put, "--y", "ratio"), ("verified / ", "4096 1\n", "4096 2\n")),
                            ((gpu, "--x", "cores"), ("cores a side", "\n2 12\n")),
                            ((modes, "--x", "cores_a_side", "--y", "median_GB_s"), ("put, unpack none", "\n6 63\n")),
                            ((lines,), ("4096 4\n65536 64\n",))):
            plot(tools, *args, "--out", f"{tmp}/p", path=f"{tmp}:{os.environ['PATH']}").must(FAILED, "did not write")
            text = heard.read_text()
            expect(all(w in text for w in words), args, text)
        lines.write_text(lines.read_text() + "[]\n")
        plot(tools, lines).must(FAILED, str(lines))


@case
def plot_pictures(tools):
    if not shutil.which("gnuplot"):
        print("note: gnuplot is not installed: no picture was drawn")
        return
    with tempfile.TemporaryDirectory() as tmp:
        files = [pathlib.Path(tmp, n) for n in ("one.json", "two.json")]
        for f in files:
            f.write_text(json.dumps(PLOT_DOC))
        ran = plot(tools, *files, "--title", "it's $x").must(OK)
        expect(ran.out.split() == [f"{tmp}/one.svg", f"{tmp}/one.png"], ran)
        svg, png = (pathlib.Path(tmp, f"one.{n}").read_bytes() for n in ("svg", "png"))
        expect(b"<svg" in svg and b"two: b" in svg and b"it's $x" in svg.replace(b"&#39;", b"'"), svg[:2000])
        expect(png.startswith(b"\x89PNG"), png[:20])
        plot(tools, *files, "--title", "it's $x", "--out", f"{tmp}/again").must(OK)
        expect(pathlib.Path(tmp, "again.svg").read_bytes() == svg, "the same documents give another svg")
        expect(pathlib.Path(tmp, "again.png").read_bytes() == png, "the same documents give another png")
        plot(tools, *files, "--out", f"{tmp}/again", "--rival", "a", "--force").must(OK)
        expect(pathlib.Path(tmp, "again.svg").read_bytes() != svg)
        expect(len(os.listdir(tmp)) == 6, os.listdir(tmp))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
