#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gxd@.service and gxd-metrics.service under a real systemd: a small Debian in a virtual machine (vm/machine.py), into which the
package gx-tools is installed, and out of which it is purged. The README's six commands first, as they stand there.

usage: test_systemd.py BUILD_DIR SOURCE
Environment: GX_TEST_PACKAGES=DIR takes packages that are built. Exit status 77 where there is no root, QEMU, kernel package, package or
mirror of Debian. Within the machine this program runs once more, with inside.
"""
import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "vm"), str(HERE.parent / "python")] # in the machine all is in one folder

import machine
import tasks

LIMIT_S = 900
IMAGE_B = 1 << 30
CALL_S = 240
EXPOSURE_MAX = 30  # in tenths
WATCHDOG_S = 30    # as the unit has it
STOP_S = 15        # TimeoutStopSec=
ADDR, METRICS = "127.0.0.1:7501", "http://127.0.0.1:9417/metrics"
ETC = pathlib.Path("/etc/gx")
PTRACE_SEIZE, PTRACE_INTERRUPT, WALL = 0x4206, 0x4207, 0x40000000
UNIT = """[Unit]
Description=the test
[Service]
ExecStart=/usr/bin/python3 /test/test_systemd.py inside
StandardOutput=tty
StandardError=inherit
TTYPath=/dev/ttyS0
Environment=PYTHONDONTWRITEBYTECODE=1
"""


# --- in the machine ---------------------------------------------------------------------------------------

def expect(seen, *why):
    if not seen:
        raise AssertionError(" ".join(map(str, why)))


def sh(*words, rc=0):
    ran = subprocess.run([str(w) for w in words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         timeout=CALL_S, check=False)
    expect(rc is None or ran.returncode == rc, *words, "exit status", ran.returncode, ran.stdout)
    return ran.stdout


def shows(unit, name):
    return sh("systemctl", "show", "--value", "-p", name, unit).strip()


def wait_for(what, seen, seconds):
    end = time.monotonic() + seconds
    while not seen():
        expect(time.monotonic() < end, f"not within {seconds} s: {what}")
        time.sleep(0.2)


def journal(unit):
    """[{PRIORITY, MESSAGE, ...}] of gxd itself, not of systemd about it."""
    sh("journalctl", "--sync")
    lines = [json.loads(line) for line in sh("journalctl", "-u", unit, "-o", "json", "-q").splitlines()]
    return [line for line in lines if line.get("SYSLOG_IDENTIFIER") == "gxd"]


def put(key, *more, rc=0):
    return sh("gxperf", "put", ADDR, "--cores", "1", "--key", key, "--mem", "kv", *more, rc=rc)


def served(name, *lines):
    (ETC / f"{name}.conf").write_text("\n".join([f"--listen {ADDR}", "--cores 0", "--mem kv=host:16M", "--allow-uid 0", *lines]) + "\n")


def readme():
    """A server, a file put from the second host (a namespace of the network), counters, stop, purge: as the README has them."""
    text = pathlib.Path("/test/README.md").read_text().split("\n## Install\n")[1]
    commands = text.split("```\n")[1].splitlines()
    expect(len(commands) == 6, *commands)
    for words in ("netns add far", "link add near type veth peer name far netns far", "addr add 10.0.0.1/24 dev near", "link set near up",
                  "-n far addr add 10.0.0.2/24 dev far", "-n far link set far up", "-n far link set lo up"):
        sh("ip", *words.split())
    far = pathlib.Path("/root/far")
    far.mkdir()
    (far / "FILE").write_bytes(os.urandom(1_000_001))
    before = files()
    for n, command in enumerate(commands):
        there = ("ip", "netns", "exec", "far") if n == 2 else ()
        if there:
            shutil.copy(ETC / "kv.key", far)
        ran = subprocess.run([*there, "sh", "-c", command], cwd=far if there else "/", input="y\n", stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             text=True, timeout=CALL_S, check=False)
        expect(ran.returncode == 0, command, "exit status", ran.returncode, ran.stdout)
        if n == 2:
            expect("sha256" in ran.stdout.lower().replace("-", ""), "the file is not proved", ran.stdout)
        if n == 3:
            metrics(ran.stdout)
        print(f"       $ {command}", flush=True)
    after = files()
    expect(before == after, "left or gone:", *sorted(before ^ after))


def metrics(body):
    expect(re.search(r'^gx_up\{[^}]*name="gxd"[^}]*\} 1$', body, re.M), body[:2000])
    expect(re.search(r'^gx_rx_pkts_total\{[^}]*name="gxd"', body, re.M), body[:2000])


def files():
    """All that a package may leave."""
    tops = ("/etc", "/usr", "/run/gx", "/var/lib/gx", "/var/cache", "/opt")
    found = {os.path.join(folder, name) for top in tops for folder, dirs, names in os.walk(top) for name in dirs + names}
    found |= set(pathlib.Path("/etc/passwd").read_text().splitlines()) | set(pathlib.Path("/etc/group").read_text().splitlines())
    return {f for f in found if not re.match(r"/etc/(passwd|group|g?shadow|subuid|subgid|\.pwd\.lock|ld\.so\.cache)-?$|/var/cache/(ldconfig|apt|debconf)/|.*/__pycache__", f)}


def installed():
    sh("sh", "-c", "dpkg -i /build-packages/gx-tools_*.deb")
    expect(shows("gxd-metrics", "UnitFileState") == "disabled" and shows("gxd-metrics", "ActiveState") == "inactive", "it runs unasked")
    said = [line for line in sh("systemd-analyze", "verify", "--man=no", "gxd@kv.service", "gxd-metrics.service", rc=None).splitlines() if "gxd" in line]
    expect(not said, *said)


def starts():
    """Active is when it serves; the credential is there; who has the key puts a file."""
    sh("gxd", "keygen", "kv", "-o", ETC / "kv.key")
    served("kv", "--key %d/kv.key")
    sh("env", f"CREDENTIALS_DIRECTORY={ETC}", "gxd", "check", "--config", ETC / "kv.conf")
    sh("systemctl", "start", "gxd@kv")
    expect(shows("gxd@kv", "ActiveState") == "active" and shows("gxd@kv", "Type") == "notify", shows("gxd@kv", "ActiveState"))
    expect(shows("gxd@kv", "StatusText"), "systemctl status has no text")
    file = pathlib.Path("/root/file")
    file.write_bytes(os.urandom(1_000_001))
    expect("sha256" in put(ETC / "kv.key", "--file", file).lower().replace("-", ""), "the file is not proved")
    pid = shows("gxd@kv", "MainPID")
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    expect(re.search(r"^CapEff:\s+0+$", status, re.M) and re.search(r"^Seccomp:\s+2$", status, re.M), status)
    expect(os.stat(f"/proc/{pid}").st_uid != 0, "it runs as root")


def exposed():
    for unit in ("gxd@kv.service", "gxd-metrics.service"):
        said = sh("systemd-analyze", "security", f"--threshold={EXPOSURE_MAX}", "--no-pager", unit)
        print(f"       {said.strip().splitlines()[-1][2:]}", flush=True)


def levels():
    """journald has the level of each line, without the prefix that says so."""
    lines = journal("gxd@kv")
    expect(any(line["PRIORITY"] == "6" and line["MESSAGE"].startswith("time=") for line in lines), lines)
    expect(not any(line["MESSAGE"].startswith("<") for line in lines), lines)


def exporter():
    sh("systemctl", "start", "gxd-metrics")
    metrics(urllib.request.urlopen(METRICS, timeout=60).read().decode())


def stands():
    """A core's thread stands: systemd ends gxd and starts it anew."""
    pid = shows("gxd@kv", "MainPID")
    tid = tasks.core(pid)
    libc = ctypes.CDLL(None, use_errno=True)
    expect(not libc.ptrace(PTRACE_SEIZE, ctypes.c_int(tid), None, None), "ptrace", ctypes.get_errno())
    libc.ptrace(PTRACE_INTERRUPT, ctypes.c_int(tid), None, None)
    os.waitpid(tid, WALL)
    wait_for("systemd starts it again", lambda: shows("gxd@kv", "MainPID") not in (pid, "0") and shows("gxd@kv", "ActiveState") == "active",
             3 * WATCHDOG_S + CALL_S)
    expect(shows("gxd@kv", "NRestarts") == "1", shows("gxd@kv", "NRestarts"))
    expect("watchdog" in sh("journalctl", "-u", "gxd@kv", "-q").lower(), "the journal does not say why")
    expect(any("has not turned for" in line["MESSAGE"] and int(line["PRIORITY"]) <= 4 for line in journal("gxd@kv")), journal("gxd@kv"))
    put(ETC / "kv.key", "-n", "4", "-s", "4K")


def drains():
    """Stop: what is under way ends, and so does gxd, in order."""
    client = subprocess.Popen(["gxperf", "put", ADDR, "--cores", "1", "--key", ETC / "kv.key", "--mem", "kv", "-D", "60", "-s", "64K"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for("it puts", lambda: re.match(r"1 connection", shows("gxd@kv", "StatusText")), 60)
        start = time.monotonic()
        sh("systemctl", "stop", "gxd@kv")
        took = time.monotonic() - start
    finally:
        client.kill()
        client.wait()
    expect(shows("gxd@kv", "Result") == "success" and shows("gxd@kv", "ExecMainStatus") == "0", shows("gxd@kv", "Result"))
    said = [line["MESSAGE"] for line in journal("gxd@kv")]
    expect(any("draining" in line for line in said), *said)
    expect(took < STOP_S, f"stop took {took:.1f} s")


def reloads():
    """A key that comes is known after a reload, and one that goes is not."""
    keys, group = ETC / "keys", "root:gx"
    sh("install", "-d", "-o", "root", "-g", "gx", "-m", "0750", keys)
    for name in ("one", "two"):
        sh("gxd", "keygen", name, "-o", f"/root/{name}.key")

    def known(name):
        shutil.copy(f"/root/{name}.key", keys)
        sh("chown", group, keys / f"{name}.key")
        (keys / f"{name}.key").chmod(0o640)

    known("one")
    served("folder", f"--key {keys}")
    sh("systemctl", "start", "gxd@folder")
    put("/root/one.key", "-n", "4", "-s", "4K")
    expect(shows("gxd@folder", "MainPID") != "0", "it does not run")
    known("two")
    (keys / "one.key").unlink()
    sh("systemctl", "reload", "gxd@folder")
    wait_for("the keys are read again", lambda: any("keys were read again" in line["MESSAGE"] for line in journal("gxd@folder")), 60)
    put("/root/two.key", "-n", "4", "-s", "4K")
    expect("B/s" not in put("/root/one.key", "-n", "4", "-s", "4K", "--timeout", "3", rc=None), "a key that went is known")


def purged():
    """While it serves. Nothing is left: no process, file, user."""
    pid = shows("gxd@folder", "MainPID")
    sh("dpkg", "--purge", "gx-tools")
    expect(not pathlib.Path(f"/proc/{pid}").exists(), "gxd survives its package")
    for path in ("/etc/gx", "/run/gx", "/lib/systemd/system/gxd@.service", "/lib/systemd/system/gxd-metrics.service", "/usr/bin/gxd"):
        expect(not os.path.lexists(path), f"{path} is left")
    expect(not re.search(r"^gx:", pathlib.Path("/etc/passwd").read_text(), re.M), "the user is left")
    left = [line for line in sh("systemctl", "list-units", "--plain", "--no-legend", "gxd*").splitlines() if " active " in line]
    expect(not left, *left)


def inside():
    status = 1
    try:
        for case in (readme, installed, starts, exposed, levels, exporter, stands, drains, reloads, purged):
            case()
            print(f"ok     {case.__name__}, {pathlib.Path('/proc/uptime').read_text().split()[0]} s", flush=True)
        status = 0
    except BaseException:
        traceback.print_exc()
        print(sh("journalctl", "-b", "-q", "-n", "80", "--no-pager", rc=None), flush=True)
    machine.end(status)


# --- here -------------------------------------------------------------------------------------------------

def image_make(where, tar, deb):
    """The image of a disk: the root of @tar, the package, and this test as a unit that the boot starts."""
    root, image = where / "root", where / "image"
    root.mkdir()
    sh("tar", "-xf", tar, "-C", root, "--exclude=./dev/*")
    for folder in ("build-packages", "test"):
        (root / folder).mkdir()
    shutil.copy(deb, root / "build-packages")
    for file in (HERE / "test_systemd.py", HERE / "vm/machine.py", HERE.parent / "python/tasks.py", HERE.parent.parent / "README.md"):
        shutil.copy(file, root / "test")
    units = root / "etc/systemd/system"
    (units / "gx-test.service").write_text(UNIT)
    (units / "multi-user.target.wants").mkdir(exist_ok=True)
    (units / "multi-user.target.wants/gx-test.service").symlink_to("../gx-test.service")
    (root / "etc/machine-id").write_text("0123456789abcdef" * 2 + "\n")  # else it is a first boot
    with open(image, "wb") as f:
        f.truncate(IMAGE_B)
    sh("mke2fs", "-q", "-t", "ext4", "-d", root, image)
    shutil.rmtree(root)
    return image


def main(build, source):
    from test_packages import needs, packages_made, root_make, skip  # they are not in the machine
    build, source = pathlib.Path(build).resolve(), pathlib.Path(source).resolve()
    for tool in ("mmdebstrap", "mke2fs", "dpkg-buildpackage", machine.QEMU):
        if not shutil.which(tool):
            skip(f"{tool} is not installed")
    if os.geteuid():
        skip("it wants root, for the owners of files in a root")
    try:
        machine.kernel_find()
    except machine.Absent as why:
        skip(why)
    deb = next(iter(packages_made(source).glob("gx-tools_*.deb")), None)
    if not deb:
        skip("there is no package gx-tools")
    packages = [p for p in needs([deb]) if not p.startswith("systemd-standalone")] + ["curl", "iproute2", "systemd", "systemd-sysv"]
    tar = root_make(source / "build-root-systemd", packages)
    with tempfile.TemporaryDirectory() as where:
        image = image_make(pathlib.Path(where), tar, deb)
        status, console = machine.boot(build / "tests/vm_init", image, modules=("veth",), cmdline="systemd.getty_auto=no", memory_mb=2560, timeout_s=LIMIT_S)
    print(console)
    if status is None:
        print(f"the machine did not end within {LIMIT_S} s")
    return 0 if status == 0 else 1


if __name__ == "__main__":
    sys.exit(inside() if sys.argv[1:] == ["inside"] else main(*sys.argv[1:]))
