#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gxperf doctor: faults are planted in a /proc and a /sys of this test, on the way between two namespaces, and in the server's version;
each must be found, with its cure, and a host without them has none.

usage: test_doctor.py BUILD_DIR
Exit status 77 where namespaces are refused.
"""
import os
import pathlib
import socket
import sys
import tempfile
import threading

import cli
from cli import CLIENT_CPU, FAILED, LOST, OK, START_S, USAGE, expect
from test_veth import Other, There, enter, links_make, mtu_set, sh

HERE = "10.90.0.1"
LIMITS = "Limit   Soft  Hard  Units\nMax open files  {files}  {files}  files\nMax locked memory  {locked}  {locked}  bytes\n"
HOST = { # without a fault
    "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "512",
    "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "500",
    "proc/self/limits": LIMITS.format(files=65536, locked="unlimited"),
    "proc/self/cgroup": "0::/kv.slice\n",
    "sys/fs/cgroup/kv.slice/cpu.max": "max 100000\n",
    f"sys/devices/system/cpu/cpu{CLIENT_CPU}/cpufreq/scaling_governor": "performance\n",
    "sys/devices/system/cpu/isolated": f"62,0-{CLIENT_CPU}\n",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
    "proc/sys/kernel/io_uring_disabled": "0\n",
    "sys/devices/system/node/node0/cpulist": f"0-{CLIENT_CPU}\n",
    "sys/devices/system/node/node1/cpulist": "64-127\n",
    "sys/class/net/gxap/mtu": "9000\n",
    "sys/class/net/gxap/operstate": "up\n",
    "sys/class/net/gxap/device/numa_node": "0\n",
    "sys/class/net/gxap/device/msi_irqs/45": "msi\n",
    "proc/irq/45/effective_affinity_list": "63\n",
}
# check: (file, what it says, level, a word of the finding, a word of the cure)
FAULTS = {
    "hugepages": ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0", "slow", "none", "vm.nr_hugepages"),
    "hugepages ": ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "0", "slow", "all 512 are in use", "vm.nr_hugepages"),
    "memlock": ("proc/self/limits", LIMITS.format(files=65536, locked=65536), "slow", "64 KiB", "LimitMEMLOCK=infinity"),
    "files": ("proc/self/limits", LIMITS.format(files=1024, locked="unlimited"), "slow", "1024 descriptors", "ulimit -n"),
    "quota": ("sys/fs/cgroup/kv.slice/cpu.max", "50000 100000\n", "slow", "0.50 CPUs", "CPUQuota"),
    "governor": (f"sys/devices/system/cpu/cpu{CLIENT_CPU}/cpufreq/scaling_governor", "schedutil\n", "slow", "1 of 1", "cpupower"),
    "isolated": ("sys/devices/system/cpu/isolated", "62-63\n", "hint", "1 of 1", "isolcpus"),
    "clock": ("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n", "slow", "hpet", "clocksource=tsc"),
    "io_uring": ("proc/sys/kernel/io_uring_disabled", "2\n", "hint", "forbids", "io_uring_disabled=0"),
    "gpu": ("proc/driver/nvidia/version", "NVRM version: 570.1\n", "refused", "sees no GPU", "libcuda.so.1"),
    "mps": ("proc/driver/nvidia/version", "NVRM version: 570.1\n", "hint", "does not run", "nvidia-cuda-mps-control"),
}
WAY_FAULTS = {
    "nic": ("sys/class/net/gxap/operstate", "down\n", "refused", "gxap is down", "up"),
    "mtu": ("sys/class/net/gxap/mtu", "1500\n", "slow", "1500", "mtu 9000"),
    "numa": ("sys/class/net/gxap/device/numa_node", "1\n", "slow", "node 1, and 1 of 1", "64-127"),
    "irqs": ("proc/irq/45/effective_affinity_list", f"{CLIENT_CPU},63\n", "slow", "1 interrupts of gxap (45)", "smp_affinity_list"),
}
STATUS = {"ok": OK, "hint": OK, "slow": FAILED, "refused": LOST}


def plant(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def found(ran):
    return {f["check"]: f for f in ran.doc["doctor"]}


def faults_tried(table, root, call):
    """First none, then each: no other finding may change but those of the same file."""
    plant(root, HOST)
    ran = call().must(OK)
    good = found(ran)
    expect(all(f["level"] == "ok" and f["cure"] is None for f in good.values()), ran)
    for check, (name, text, level, word, cure) in table.items():
        plant(root, {name: text})
        ran = call()
        f = found(ran)[check.strip()]
        expect(f["level"] == level and word in f["what"] and cure in f["cure"], check, f)
        worst = max((STATUS[x["level"]] for x in found(ran).values()), key=lambda rc: (OK, FAILED, LOST).index(rc))
        expect(ran.rc == worst and ran.rc >= STATUS[level], check, ran)
        (root / name).unlink()
        plant(root, HOST)
    return good


def host(tools, folder):
    tools.env = {**tools.env, "GX_DOCTOR_ROOT": str(folder)}
    good = faults_tried(FAULTS, folder, lambda: tools.perf("doctor"))
    expect({"hugepages", "memlock", "files", "governor", "isolated", "clock"} <= set(good), good)
    text = tools.gxperf("doctor").must(OK).out
    expect("ok       hugepages" in text, text)
    tools.gxperf("doctor", "a", "b").must(USAGE)
    tools.gxperf("doctor", "127.0.0.1:1").must(LOST, "nothing listens")


def way(tools, folder):
    other = Other()
    try:
        links_make(other)
        mtu_set(other, 9000)
        tools.env = {**tools.env, "GX_DOCTOR_ROOT": str(folder)}
        with cli.Server(tools, "--insecure", "--port", "udp", listen=HERE + ":0") as server:
            there = There(tools, other, server, "udp")
            words = [*other.words(tools.gxperf_path), "doctor", server.addr, "--insecure", "--cores", CLIENT_CPU, "--port", "udp",
                     "--format", "json"]
            good = faults_tried(WAY_FAULTS, folder, lambda: tools.run(words[0], *words[1:]))
            expect({"version", "link", "way-mtu", "numa", "irqs", "mtu", "nic"} <= set(good), good)
            # The server's end alone takes less: this end's interface does not tell.
            ran = sh("ip", "link", "set", "gxa", "mtu", "1500")
            expect(ran.returncode == 0, ran.stdout)
            ran = tools.run(words[0], *words[1:]).must(FAILED)
            f = found(ran)["way-mtu"]
            expect(f["level"] == "slow" and "tracepath" in f["cure"], f)
    finally:
        other.end()


def answer_older(sock):
    """A server of the version before: its hello is the client's, with a smaller number."""
    conn, _ = sock.accept()
    with conn:
        hello = bytearray(conn.recv(65536))
        at = hello.index(cli.HELLO_MAGIC.to_bytes(4, "little")) + 4
        hello[at:at + 4] = (int.from_bytes(hello[at:at + 4], "little") - 1).to_bytes(4, "little")
        conn.sendall(hello)
        conn.settimeout(START_S)
        conn.recv(65536)


def older(tools, folder):
    plant(folder, HOST)
    tools.env = {**tools.env, "GX_DOCTOR_ROOT": str(folder)}
    with socket.create_server(("127.0.0.1", 0)) as sock:
        thread = threading.Thread(target=answer_older, args=(sock,))
        thread.start()
        ran = tools.gxperf("doctor", f"127.0.0.1:{sock.getsockname()[1]}")
        thread.join()
    ran.must(LOST, "version")
    expect("refused  connect" in ran.out, ran)


def main():
    enter()
    build = pathlib.Path(sys.argv[1]).resolve()
    sh("ip", "link", "set", "lo", "up")
    for case in (host, older, way):
        with tempfile.TemporaryDirectory() as tmp:
            case(cli.Tools(build), pathlib.Path(tmp))
        print(f"ok     {case.__name__}", flush=True)


if __name__ == "__main__":
    main()
