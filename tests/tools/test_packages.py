#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Debian packages in two fresh roots, each a host of its own: installed, gxd served as its unit says, a file put from the other
root, counters read, stopped, a program built shared and static by pkg-config, purged; and nothing is left.

usage: test_packages.py SOURCE
Environment: GX_TEST_PACKAGES=DIR takes packages that are built; GX_TEST_DEMO= leaves the demo out.

The roots are made by mmdebstrap, with what the packages depend on, and kept in build-root/ for the next time. Everything that is
installed, mounted or purged is so in namespaces of mounts, processes and networks that end with this test. Exit status 77 where
these, root, apt's mirror or the tools are missing.
"""
import hashlib
import os
import pathlib
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time

INSIDE = "GX_TEST_PACKAGES_INSIDE"
TOOLS = ("mmdebstrap", "dpkg-buildpackage", "lintian", "unshare", "ip", "nsenter")
# What dpkg and the linker keep for themselves.
KEPT = re.compile(r"^(var/lib/dpkg|var/log|var/cache/ldconfig|var/cache/debconf|var/lib/systemd|etc/ld\.so\.cache|etc/\.pwd\.lock|"
                  r"etc/(passwd|group|g?shadow|subuid|subgid)-|tmp|root|proc|sys|dev|debs|run/mount)(/|$)")
TO_BUILD = {"gcc", "libc6-dev", "pkg-config"}
AS_GX = ("setpriv", "--reuid=gx", "--regid=gx", "--init-groups")
METRICS = "10.99.0.1:9417"
SCRAPE = f"""
import time, urllib.request
for i in range(100):
    try:
        print(urllib.request.urlopen("http://{METRICS}/metrics", timeout=5).read().decode())
        break
    except OSError:
        time.sleep(0.1)
"""
ADDR, HERE, THERE = "10.99.0.1:7501", "10.99.0.1/24", "10.99.0.2/24"


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def sh(*words, ok=True, **more):
    ran = subprocess.run([str(w) for w in words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         timeout=more.pop("timeout", 300), check=False, **more)
    if ok and ran.returncode:
        sys.exit(f"{shlex.join(map(str, words))}: exit status {ran.returncode}\n{ran.stdout[-4000:]}")
    return ran


def packages_made(source):
    """The folder of packages: GX_TEST_PACKAGES, or build-packages/, which is built where a source is newer."""
    if os.environ.get("GX_TEST_PACKAGES"):
        return pathlib.Path(os.environ["GX_TEST_PACKAGES"])
    made = source / "build-packages"
    listed = sh("git", "-C", source, "ls-files", "-z", ok=False)
    files = [source / name for name in listed.stdout.split("\0") if name]
    built = max((f.stat().st_mtime for f in made.glob("*.changes")), default=0)
    if listed.returncode or any(f.exists() and f.stat().st_mtime > built for f in files):
        sh(source / "run", "packages", timeout=2400, env=dict(os.environ, GX_NO_NVCC="1"))
    return made


def needs(debs):
    """Packages that ours depend on. systemd itself is not in these roots: programs of its own make users and folders."""
    ours = {sh("dpkg-deb", "-f", d, "Package").stdout.strip() for d in debs}
    found = set()
    for deb in debs:
        for one in sh("dpkg-deb", "-f", deb, "Depends").stdout.split(","):
            names = [re.sub(r"[ (:].*", "", alternative.strip()) for alternative in one.split("|")]
            name = next((n for n in names if n.startswith("systemd-standalone")), names[0])
            if name and name not in ours:
                found.add(name)
    return sorted(found | {"passwd"} | TO_BUILD)


def root_make(folder, packages):
    """A tar of a fresh root, made anew when it shall have other packages."""
    tar, listed = folder / "root.tar", folder / "list"
    words = " ".join(packages)
    if tar.exists() and listed.exists() and listed.read_text() == words:
        return tar
    folder.mkdir(exist_ok=True)
    made = sh("mmdebstrap", "--variant=minbase", f"--include={','.join(packages)}", "bookworm", tar, ok=False, timeout=1200)
    if made.returncode:
        tar.unlink(missing_ok=True)
        skip(f"no fresh root: {made.stdout.strip().splitlines()[-1]}")
    listed.write_text(words)
    return tar


class Root:
    """A host: a root, and a namespace of the network."""

    def __init__(self, where, name, base, debs):
        self.at = where / name
        for part in ("", "-up", "-work"):
            (where / f"{name}{part}").mkdir()
        sh("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={base},upperdir={self.at}-up,workdir={self.at}-work", self.at)
        for part in ("proc", "sys", "dev", "debs"):
            (self.at / part).mkdir(exist_ok=True)
        sh("mount", "--rbind", "/dev", self.at / "dev")
        sh("mount", "-t", "tmpfs", "tmpfs", self.at / "dev/shm")
        sh("mount", "--bind", "-o", "ro", debs, self.at / "debs")
        self.net = subprocess.Popen(["unshare", "-n", "sleep", "1200"], stdin=subprocess.DEVNULL)
        for _ in range(100):
            if os.readlink(f"/proc/{self.net.pid}/ns/net") != os.readlink("/proc/self/ns/net"):
                break
            time.sleep(0.05)

    def words(self, *words):
        inside = 'mount -t proc proc /proc 2>/dev/null; exec "$@"'
        return ["nsenter", "-t", str(self.net.pid), "-n", "unshare", "-p", "-f", "--kill-child", "-m", "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
                "HOME=/root", "LANG=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", "chroot", str(self.at), "sh", "-c", inside, "sh", *map(str, words)]

    def run(self, *words, **more):
        return sh(*self.words(*words), **more)

    def files(self):
        """{path: what}: of all files, and of those in /etc what is in them."""
        found = {}
        for folder, dirs, names in os.walk(self.at):
            for name in dirs + names:
                path = os.path.join(folder, name)
                short = os.path.relpath(path, self.at)
                if KEPT.match(short):
                    continue
                mode = os.lstat(path).st_mode
                found[short] = f"{stat.filemode(mode)}"
                if short.startswith("etc/") and stat.S_ISREG(mode):
                    found[short] += hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
            dirs[:] = [d for d in dirs if not KEPT.match(os.path.relpath(os.path.join(folder, d), self.at))]
        return found

    def install(self):
        self.run("sh", "-c", "dpkg -i /debs/*.deb")

    def purge(self, packages):
        self.run("dpkg", "--purge", *packages)


def started(root, name):
    """What systemd does to start gxd@NAME: the command of the unit, as its user, with its credential. Return: the process."""
    unit = (root.at / "lib/systemd/system/gxd@.service").read_text()
    command = shlex.split(re.search(r"^ExecStart=(.*)$", unit, re.M)[1].replace("%i", name))
    user = re.search(r"^User=(.*)$", unit, re.M)[1]
    folder = f"/run/credentials/gxd@{name}.service"
    root.run("install", "-d", "-o", user, "-g", user, "-m", "0500", folder)
    root.run("install", "-o", user, "-g", user, "-m", "0400", f"/etc/gx/{name}.key", f"{folder}/{name}.key")
    proc = subprocess.Popen(root.words("env", f"CREDENTIALS_DIRECTORY={folder}", "setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups",
                                       "--no-new-privs", "--bounding-set=-all", *command),
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = proc.stdout.readline()
    if not line.startswith("gxperf put"):
        sys.exit(f"gxd does not serve: {line}{proc.communicate(timeout=10)}")
    return proc


def joined(a, b):
    """The hosts' network: two ends of a pair."""
    sh("ip", "link", "add", "gxa", "netns", a.net.pid, "type", "veth", "peer", "name", "gxb", "netns", b.net.pid)
    for root, name, addr in ((a, "gxa", HERE), (b, "gxb", THERE)):
        inside = ("nsenter", "-t", root.net.pid, "-n", "ip")
        for words in (("addr", "add", addr, "dev", name), ("link", "set", name, "up"), ("link", "set", "lo", "up")):
            sh(*inside, *words)


def served(a, b):
    """Start, put from the other root, counters, stop."""
    (a.at / "etc/gx/kv.conf").write_text(f"--listen {ADDR}\n--cores 0\n--key %d/kv.key\n--mem kv=host:32M\n")
    a.run("sh", "-c", "cd /etc/gx && gxd keygen kv && chown root:gx kv.key kv.conf && chmod 0640 kv.conf && chmod 0600 kv.key")
    shutil.copy(a.at / "etc/gx/kv.key", b.at / "root/kv.key")
    (b.at / "root/file").write_bytes(os.urandom(3_000_001))
    gxd = started(a, "kv")
    try:
        put = b.run("gxperf", "put", ADDR, "--cores", "1", "--key", "/root/kv.key", "--mem", "kv", "--file", "/root/file")
        told = a.run(*AS_GX, "gxd", "stats").stdout
        exporter = subprocess.Popen(a.words(*AS_GX, "gxd", "metrics", "--listen", METRICS), stdin=subprocess.DEVNULL)
        metrics = b.run("python3", "-c", SCRAPE).stdout
    finally:
        inner = sh("pgrep", "-f", "^(/usr/bin/gxd --config|gxd metrics)", ok=False).stdout.split()
        for pid in inner:
            os.kill(int(pid), 15)
    said = gxd.communicate(timeout=30)[1]
    exporter.wait(30)
    shutil.rmtree(a.at / "run/credentials")  # as systemd does
    if gxd.returncode or "drained" not in said:
        sys.exit(f"gxd: exit status {gxd.returncode}\n{said}")
    if "SHA-256" not in put.stdout and "sha256" not in put.stdout:
        sys.exit(f"the file is not proved: {put.stdout}")
    if not re.search(r"rx_bytes|rx_b", told):
        sys.exit(f"no counters: {told[:500]}")
    if not re.search(r'^gx_\w+{.*name="gxd".*} \d', metrics, re.M):
        sys.exit(f"no metrics of gxd: {metrics[:2000]}")
    print("served, put from the other root, counters and metrics read, stopped", flush=True)


def inside(source, debs, base):
    sh("mount", "--make-rprivate", "/")
    with tempfile.TemporaryDirectory() as tmp:
        where = pathlib.Path(tmp)
        sh("mount", "-t", "tmpfs", "tmpfs", where)
        (where / "base").mkdir()
        sh("tar", "-xf", base, "-C", where / "base")
        a, b = (Root(where, name, where / "base", debs) for name in "ab")
        try:
            joined(a, b)
            before = a.files()
            for root in (a, b):
                root.install()
            packages = [d.name.split("_")[0] for d in sorted(debs.glob("*.deb"))]
            print(f"installed: {' '.join(packages)}", flush=True)
            a.run("python3", "-c", "import gx")
            a.run("gxperf", "info")
            served(a, b)
            shutil.copy(source / "debian/tests/build", a.at / "tmp")
            a.run("sh", "/tmp/build")
            print("built shared and static, and run against gxd", flush=True)
            if os.environ.get("GX_TEST_DEMO") != "":
                a.run("gxperf", "demo")
                print("demo: done", flush=True)
            for root in (a, b):
                root.purge(packages)
            after = a.files()
        finally:
            for root in (a, b):
                root.net.kill()
                root.net.wait()
            sh("umount", "-R", "-l", where, ok=False)
    left = sorted(p for p in set(before) | set(after) if before.get(p) != after.get(p))
    print(*(f"{p}: {before.get(p, 'was not there')[:20]}, now {after.get(p, 'gone')[:20]}" for p in left[:40]),
          f"purged: {len(left)} of {len(before)} files differ", sep="\n")
    return 1 if left else 0


def main(source):
    source = pathlib.Path(source).resolve()
    if os.environ.get(INSIDE):
        return inside(source, *map(pathlib.Path, os.environ[INSIDE].split(":")))
    missing = [t for t in TOOLS if not shutil.which(t)]
    if missing or os.geteuid():
        skip(f"{missing[0]} is not installed" if missing else "it wants root, for a namespace of mounts")
    if sh("unshare", "-m", "-n", "-p", "-f", "true", ok=False).returncode:
        skip("no namespaces here")
    folder = packages_made(source)
    debs = source / "build-root/debs"
    shutil.rmtree(debs, ignore_errors=True)
    debs.mkdir(parents=True)
    for deb in folder.glob("*.deb"):
        if "-dbgsym_" not in deb.name:
            shutil.copy(deb, debs)
    tar = root_make(source / "build-root", needs(sorted(debs.glob("*.deb"))))
    env = dict(os.environ, **{INSIDE: f"{debs}:{tar}"})
    return subprocess.run(["unshare", "-m", "-n", "-p", "-f", "--mount-proc", "--kill-child", sys.executable, __file__, str(source)], env=env,
                          timeout=900, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
