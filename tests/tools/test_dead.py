#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ways that are dead: a router between two hosts drops UDP in silence, all of it or some ports, one way or both, and passes TCP. A
connection comes up by link tcp then, and says why and which ports; who wants UDP alone hears it as an error; doctor refuses that way.

usage: test_dead.py BUILD_DIR
Two namespaces and a third one between them. Exit status 77 where these are refused.
"""
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import cli
from cli import CLIENT_CPU, LOST, OK, SERVER_CPU, USAGE, FAILED, expect
from test_veth import CALL_S, Other, enter, sh, skip

HERE, THERE = "10.73.1.2", "10.73.2.2"
PORT = 7700 # of the server's first core: data, and control is the next one


def must(*words):
    ran = sh(*words)
    expect(ran.returncode == 0, *words, ran.stdout)


class Net:
    """This namespace is the server's host; .router and .other are processes in the two others."""

    def __init__(self):
        self.router, self.other = Other(), Other()
        for name, ns, host in (("gxa", None, HERE), ("gxb", self.other, THERE)):
            near = host[:-1] + "1"
            made = sh("ip", "link", "add", name, "type", "veth", "peer", "name", name + "r")
            if made.returncode:
                skip(f"no veth pair can be made here: {made.stdout.strip()}")
            must("ip", "link", "set", name + "r", "netns", str(self.router.proc.pid))
            must(*self.router.words("ip", "addr", "add", near + "/24", "dev", name + "r"))
            must(*self.router.words("ip", "link", "set", name + "r", "up"))
            if ns:
                must("ip", "link", "set", name, "netns", str(ns.proc.pid))
            at = ns.words if ns else lambda *w: w
            for words in (("ip", "link", "set", "lo", "up"), ("ip", "addr", "add", host + "/24", "dev", name), ("ip", "link", "set", name, "up"),
                          ("ip", "route", "add", "default", "via", near)):
                must(*at(*words))
        must(*self.router.words("sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"))

    def drops(self, *what):
        """A context: packets that the router has no way for."""
        return Dropped(self, what)

    def end(self):
        self.router.end()
        self.other.end()


class Dropped:
    def __init__(self, net, what):
        self.net, self.what = net, what

    def rule(self, verb):
        ran = sh(*self.net.router.words("ip", "rule", verb, "pref", "10", *self.what, "blackhole"))
        if verb == "add" and ran.returncode:
            skip(f"no rule that drops: {ran.stdout.strip()}")

    def __enter__(self):
        self.rule("add")

    def __exit__(self, *_):
        self.rule("del")


class Client:
    def __init__(self, tools, net, server, *more):
        self.tools, self.net, self.server, self.more = tools, net, server, more

    def run(self, command, *args, cores=CLIENT_CPU):
        words = [*self.net.other.words(self.tools.gxperf_path), command, self.server.addr, *self.more, "--timeout", "60", "--cores", cores, *map(str, args)]
        return self.tools.run(words[0], *words[1:], timeout=CALL_S)

    def put(self, *args, **kw):
        """Between hosts gx takes link tcp first, unless an integrity is named, or a port."""
        args = args or ("--integrity", "none")
        return self.run("put", "--mem", "kv", "-s", "64K", "-n", "20", "--format", "json", *args, **kw)


def by_packets(ran):
    ran.clean()
    expect(ran.doc["path"]["link"] == "packet" and ran.doc["path"]["port"] == "udp" and "no link" not in ran.err, ran)


def by_tcp(ran, *words):
    """Every byte is compared; the reason is in the path, and in one line of the log."""
    ran.clean()
    path = ran.doc["path"]
    expect(path["link"] == "tcp" and path["reason"] == "last-resort", ran)
    lines = [line for line in ran.err.splitlines() if "no link packet" in line]
    expect(len(lines) == 1 and "no port that both ends" not in ran.err, ran)
    for word in ("no UDP packet of ", "open these UDP ports", *words):
        expect(word in path["why"] and word in lines[0], word, ran)


def ports(net, client):
    by_packets(client.put())
    here = f"to {HERE} ports {PORT}-{PORT + 1}"
    for what, words in (((), (here, "is known to arrive")), # both ways
                        (("to", "10.73.2.0/24"), (f"comes to {THERE} ports ", f"while those {here} arrive")),
                        (("to", "10.73.1.0/24"), (f"comes {here}, while those to {THERE} ports ",)),
                        (("dport", str(PORT + 1)), ("comes " + here,)), # control alone, ...
                        (("dport", str(PORT)), ("comes " + here,))): # ... data alone
        with net.drops("ipproto", "udp", *what):
            ran = client.put()
        by_tcp(ran, *words)
        by_packets(client.put())


def named(net, client):
    """Who wants this way hears that it is dead, at once, and not that the server is."""
    for want in (("--port", "udp"), ("--link", "packet"), ("--integrity", "crc32c")):
        start = time.monotonic()
        with net.drops("ipproto", "udp"):
            ran = client.put(*want)
        expect(ran.rc in (FAILED, LOST) and "is lost" not in ran.err and time.monotonic() - start < 50, ran)
        for word in ("no UDP packet of ", f"{HERE} ports {PORT}-{PORT + 1}", "open these UDP ports, or take --link tcp"):
            expect(word in ran.err, word, ran)


def doctor(net, client):
    def found():
        return {f["check"]: f for f in client.run("doctor", "--format", "json").doc["doctor"]}

    good = found()
    for way in ("way-udp", "way-tcp"):
        expect(good[way]["level"] in ("ok", "slow") and "round trip" in good[way]["what"] and "GB/s back" in good[way]["what"], good)
    expect("packets of 1392 bytes there and 1392 back; lost " in good["way-udp"]["what"], good)
    with net.drops("ipproto", "udp"):
        bad = found()
    expect(bad["way-udp"]["level"] == "refused" and f"ports {PORT}-{PORT + 1}" in bad["way-udp"]["what"], bad)
    expect("open the UDP ports" in bad["way-udp"]["cure"] and bad["way-tcp"]["level"] == "ok", bad)
    expect("way-mtu" not in bad and not any(f["level"] == "ok" and "udp" in f["what"] for f in bad.values()), bad)


def lanes(net, tools, more):
    """Two lanes, and the ports of the second one are shut. Without: by packets."""
    if os.cpu_count() < 2:
        return
    cores = f"{SERVER_CPU},{CLIENT_CPU}"
    with cli.Server(tools, "--insecure", "--port", f"udp:port={PORT}", "--cores", cores, listen=HERE + ":0") as server:
        client = Client(tools, net, server, *more)
        by_packets(client.put(cores=cores))
        with net.drops("ipproto", "udp", "dport", f"{PORT + 2}-{PORT + 3}"):
            by_tcp(client.put(cores=cores), f"comes to {HERE} ports {PORT + 2}-{PORT + 3}, while")


def ranges(net, tools, more):
    """Data ports out of a range: each core takes the first two that are free."""
    cores = SERVER_CPU if os.cpu_count() < 2 else f"{SERVER_CPU},{CLIENT_CPU}"
    last = PORT + 3 + 2 * (len(cores.split(",")) - 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind((HERE, PORT + 1))
        args = ("--insecure", "--cores", cores, "--port", f"udp:port={PORT}-{last}")
        with cli.Server(tools, *args, listen=HERE + ":0") as server:
            client = Client(tools, net, server, *more)
            by_packets(client.put(cores=cores))
            with net.drops("ipproto", "udp", "to", HERE):
                by_tcp(client.put(cores=cores), f"comes to {HERE} ports {PORT + 2}-{last}, while")
            tools.gxd("--listen", HERE + ":0", "--mem", "kv=host:1M", *args).must(FAILED, "two consecutive UDP ports")
    for bad in (f"{PORT}-{PORT}", f"{PORT}-65536", f"{PORT}-", "-"):
        ran = tools.gxd("--listen", HERE + ":0", "--mem", "kv=host:1M", "--insecure", "--port", f"udp:port={bad}")
        expect(ran.rc == USAGE and "port=N-M" in ran.err, ran)


def stands(net, client):
    """A server that stands still is no dead way: the client waits for it, and comes up by packets."""
    words = [*net.other.words(client.tools.gxperf_path), "put", client.server.addr, *client.more, "--cores", CLIENT_CPU, "--mem", "kv", "-s", "64K", "-n", "20",
             "--timeout", "60", "--integrity", "none", "--format", "json"]
    os.kill(client.server.proc.pid, signal.SIGSTOP)
    proc = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=client.tools.env)
    try:
        proc.wait(3)
    except subprocess.TimeoutExpired:
        pass
    os.kill(client.server.proc.pid, signal.SIGCONT)
    by_packets(cli.Ran(proc, *proc.communicate(timeout=CALL_S)))


def listens(tools, net):
    """gxd serves somebody, or says whom it would not; without an address its data ports take one that others reach."""
    for command in ((), ("check",)):
        ran = tools.gxd(*command, "--listen", HERE + ":0", "--mem", "kv=host:1M")
        expect(ran.rc == (FAILED if command else USAGE) and "would serve nobody" in ran.err and "--key FILE" in ran.err, ran)
    with cli.Server(tools, "--insecure", listen="0.0.0.0:0") as server:
        expect(f"data ports take the address {HERE}" in server.log(), server.log())
        port = server.addr.rpartition(":")[2]
        words = [*net.other.words(tools.gxperf_path), "put", f"{HERE}:{port}", "--insecure", "--cores", CLIENT_CPU, "--mem", "kv", "-s", "64K", "-n", "20"]
        by_packets(tools.run(words[0], *words[1:], "--port", "udp", "--format", "json", timeout=CALL_S))
    with cli.Server(tools, listen="0.0.0.0:0") as server:
        expect(server.addr.startswith("127.0.0.1:"), server.addr)
        tools.gxperf("put", server.addr, "--cores", CLIENT_CPU, "--mem", "kv", "-s", "64K", "-n", "3").must(OK)


def main():
    enter()
    tools, net = cli.Tools(pathlib.Path(sys.argv[1]).resolve()), Net()
    try:
        with cli.Server(tools, "--insecure", "--port", f"udp:port={PORT}", listen=HERE + ":0") as server:
            client = Client(tools, net, server, "--insecure")
            for case in (ports, named, doctor, stands):
                case(net, client)
                print(f"ok     {case.__name__}", flush=True)
        lanes(net, tools, ("--insecure",))
        print("ok     lanes", flush=True)
        ranges(net, tools, ("--insecure",))
        print("ok     ranges", flush=True)
        listens(tools, net)
        print("ok     listens", flush=True)
    finally:
        net.end()


if __name__ == "__main__":
    main()
