#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What gxd serves under which key: each request, with each right, by second.py, which is not gxperf and keeps nothing back. The
tables of docs/security.md and of tools/gxd/serve/service.c are the same, and gxd does what they say.

usage: tests/auth/test_served.py BUILD
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import test_second

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parents[1]
LEN, BIG, MANY, SHORT = 1 << 20, 64 << 20, 900, 200
SLOTS = {"off": 4096, "size": 64, "stride": 64, "n": 64, "seed": 1, "iter": 1}
RANGE = {"off": 4096, "len": 4096}
# What a request says beside its region. Two regions: shared, which keys name, and priv, which none but "all" reaches.
# HELLO has random bytes, so a name of two letters would be found there by chance.
FIELDS = {"hello": None, "cpu": None, "answer": None, "recv_stop": {"lane": 0}, "sha256": RANGE, "poison": RANGE, "fill": SLOTS, "verify": SLOTS,
          "poll": SLOTS, "echo": {"base": 0}, "lease": {**RANGE, "write": True, "content": ""},
          "recv": {**SLOTS, "lane": 0, "depth": 1, "slots": 64, "group_bits": 0, "sample": False, "apart": False}}
KEYS = {"all": {}, "get": {"access": "get"}, "put": {"access": "put"}, "shared": {"regions": "shared"},
        "shared-get": {"access": "get", "regions": "shared"}, "shared-put": {"access": "put", "regions": "shared"}, "none": {"regions": "nothing"}}
BOTH = "get,put"


def page():
    """{request: (accesses, who)} of docs/security.md."""
    rows = re.findall(r"^\| `(\w+)` \|\s?([^|]*?) ?\| (any key|no limits) \|", (TOP / "docs/security.md").read_text(encoding="utf-8"), re.M)
    return {name: (frozenset(re.findall("get|put", access)), who) for name, access, who in rows}


def code():
    rows = re.findall(r'\{"(\w+)", SERVES_(\w+), ([^,]*), \w+}', (TOP / "tools/gxd/serve/service.c").read_text(encoding="utf-8"))
    return {name: (frozenset(a.lower() for a in re.findall("GET|PUT", access)), {"ANY": "any key", "FULL": "no limits"}[who])
            for name, who, access in rows}


def rights(key, region):
    """Accesses that a key has there."""
    key = KEYS[key]
    return set(key.get("access", BOTH).split(",")) if region in key.get("regions", region).split(",") else set()


def is_served(key, request, region, access):
    """By the page."""
    asks, who = page()[request]
    if who == "no limits" and KEYS[key]:
        return False
    return not asks or (asks & access if request == "lease" else asks) <= rights(key, region)


def digest(all_, region):
    return all_.ask("sha256", region=region, off=0, len=LEN)["sha256"]


def is_refused(answer):
    """By its rights: not for another reason."""
    return not answer["ok"] and bool(re.match(r"'\w+' is for clients whose key has no limits|no region '\w+' here that", answer["error"]))


def requests(region):
    """(request, its fields, what it asks for where it may choose)"""
    for name, more in FIELDS.items():
        where = {} if more is None or name == "recv_stop" else {"region": region}
        yield name, {**where, **(more or {})}, {"get", "put"} if name != "lease" else {"put"}
    yield "lease", {"region": region, **RANGE, "write": False, "content": "x"}, {"get"}


def key_asks(client, key, all_):
    """Each request of one key; nothing of what is refused has an effect, or tells more than that of a region that is not there."""
    for region in ("shared", "priv"):
        before = digest(all_, region)
        for name, fields, access in requests(region):
            answer = client.ask(name, **fields)
            served = is_served(key, name, region, access)
            assert is_refused(answer) != served, (key, name, region, answer)
            if not served and "region" in fields:
                nowhere = client.ask(name, **{**fields, "region": "nowhere"})
                assert nowhere["error"].replace("nowhere", region) == answer["error"], (answer, nowhere)
            if not served:
                assert digest(all_, region) == before, (key, name, region)
                outside = client.ask(name, **{**fields, "off": 1 << 40})
                assert outside["error"] == answer["error"], (answer, outside)
            before = digest(all_, region)
    client.ask("lease", region="shared", off=0, len=0, write="put" in rights(key, "shared"), content="")


def key_hears(client, key, all_, word):
    """Of the regions of others, and of other clients, no word."""
    for region in ("shared", "priv"):
        token = client.region(region)
        assert bool(token) == bool(rights(key, region)), (key, region)
        assert (region.encode() in client.hello) == bool(rights(key, region)), (key, region)
    described = client.ask("hello")["describe"]
    assert bool(described) == (not KEYS[key]) and ("priv" in described) == (not KEYS[key]), described
    assert all_.ask("lease", region="shared", off=0, len=LEN, write=True, content="")["ok"]
    held = client.ask("lease", region="shared", off=0, len=16, write="put" in rights(key, "shared"), content="y")
    if rights(key, "shared") and key != "all":
        assert "another client" in held["held"] and word not in held["held"], held
    assert all_.ask("lease", region="shared", off=0, len=0, write=True, content="")["ok"]


def key_holds(client, key, all_):
    """Who may not write holds nobody off."""
    lease = {"region": "shared", "off": 0, "len": LEN, "write": "put" in rights(key, "shared"), "content": "x"}
    assert client.ask("lease", **lease)["ok"] == bool(rights(key, "shared")), key
    held = all_.ask("lease", region="shared", off=0, len=16, write=True, content="")
    assert ("held" in held) == ("put" in rights(key, "shared")), (key, held)
    all_.ask("lease", region="shared", off=0, len=0, write=True, content="")


def answers(client):
    """Answers to sha256 that have come."""
    os.set_blocking(client.tls.stdout.fileno(), False)
    data = client.tls.stdout.read() or b""
    os.set_blocking(client.tls.stdout.fileno(), True)
    return data.count(b'"sha256"')


def turns(greedy, other):
    """One client has asked for more than can be done in minutes; another one is served meanwhile, also in what takes long."""
    for i in range(MANY):
        greedy.send_frame(6, json.dumps({"id": i, "op": "sha256", "region": "big", "off": 0, "len": BIG}).encode())
    greedy.frame(6) # it is at work
    for i in range(SHORT): # each waits for a piece of a long one, not for all of it
        other.send_frame(6, json.dumps({"id": -i, "op": "cpu"}).encode())
    for i in range(SHORT):
        assert json.loads(other.frame(6))["id"] == -i
    came = answers(greedy)
    assert came < SHORT / 2, came
    for op in ("sha256", "poison"):
        assert other.ask(op, region="big", off=0, len=BIG)["ok"]
    greedy.close() # in the middle
    assert other.ask("sha256", region="big", off=0, len=BIG)["ok"]
    return came


def inside(folder):
    sys.path.insert(0, str(HERE))
    import second

    second.Client.silence_ns = 60 * 10**9
    secrets = {name: re.search(r"^secret (\w+)", (pathlib.Path(folder) / f"{name}.key").read_text(encoding="ascii"), re.M)[1] for name in KEYS}
    all_ = second.Client("10.9.0.1", 4791, "all", secrets["all"], "10.9.0.2", second.GCM)
    second.Client.ports = (47002, 47003)
    for key in KEYS:
        client = second.Client("10.9.0.1", 4791, key, secrets[key], "10.9.0.2", second.GCM)
        key_hears(client, key, all_, "10.9.0.2")
        if key != "all":
            key_holds(client, key, all_)
        key_asks(client, key, all_)
        client.close()
        print("key", key, "is held to its rights", flush=True)
    greedy = second.Client("10.9.0.1", 4791, "get", secrets["get"], "10.9.0.2", second.GCM)
    print("another client was served behind", turns(greedy, all_), "of", MANY, "long requests", flush=True)
    all_.close()


def main():
    build = os.path.abspath(sys.argv[1])
    if "--client" in sys.argv:
        inside(sys.argv[3])
        return
    assert code() == page() and set(page()) == set(FIELDS), (sorted(code().items()), sorted(page().items()))
    test_second.enter(__file__, build)
    with tempfile.TemporaryDirectory() as folder:
        gxd = os.path.join(build, "tools", "gxd")
        for name, limits in KEYS.items():
            more = [w for k, v in limits.items() for w in (f"--{k}", v)]
            subprocess.run([gxd, "keygen", name, *more, "-o", os.path.join(folder, f"{name}.key")], check=True, stdout=subprocess.DEVNULL)
        with subprocess.Popen([gxd, "--key", folder, "--listen", "10.9.0.1:4791", "--mem", "shared=host:1M", "--mem", "priv=host:1M", "--mem",
                               "big=host:64M"],
                              stdout=subprocess.PIPE, text=True) as server:
            assert "gxperf" in server.stdout.readline() # it serves
            ended = subprocess.run(["ip", "netns", "exec", "far", sys.executable, __file__, build, "--client", folder], check=False).returncode
            server.terminate()
            sys.exit(ended != 0 or server.wait(20) != 0)


if __name__ == "__main__":
    main()
