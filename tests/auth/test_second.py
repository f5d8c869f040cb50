#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""second.py against a real gxd in another network namespace, in modes mac and gcm.

usage: tests/auth/test_second.py BUILD
"""
import hashlib
import hmac
import importlib.util
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
SKIP = 77
NETS = ("mount -t tmpfs none /run && mkdir /run/netns && ip link set lo up && ip netns add far && "
        "ip link add near type veth peer name far netns far && ip addr add 10.9.0.1/24 dev near && ip link set near up && "
        "ip -n far addr add 10.9.0.2/24 dev far && ip -n far link set far up")


def skip(why):
    print(why)
    sys.exit(SKIP)


def serve(gxd, folder, *more):
    key = os.path.join(folder, "kv.key")
    subprocess.run([gxd, "keygen", "kv", "-o", key], check=True, stdout=subprocess.DEVNULL)
    with open(key, encoding="ascii") as f:
        secret = next(line.split()[1] for line in f if line.startswith("secret"))
    server = subprocess.Popen([gxd, "--key", key, *more, "--listen", "10.9.0.1:4791", "--mem", "kv=host:1M"], stdout=subprocess.PIPE,
                              env={name: value for name, value in os.environ.items() if name != "MALLOC_PERTURB_"}) # it would overwrite what is freed
    assert server.stdout.readline(), "gxd does not serve"
    return server, secret


def enter(script, build):
    """Two network namespaces: the script goes on in the one with 10.9.0.1, the other is named far and has 10.9.0.2."""
    if os.geteuid():
        skip("network namespaces need root")
    if not importlib.util.find_spec("cryptography"):
        skip("Python has no package cryptography")
    if "inside" not in sys.argv:
        os.execvp("unshare", ["unshare", "-n", "-m", sys.executable, script, build, "inside"])
    if subprocess.run(NETS, shell=True, check=False).returncode:
        skip("this machine makes no network namespaces")


def bound(secret, name):
    """Of a key for the server of that name, docs/wire.md."""
    return hmac.new(bytes.fromhex(secret), name.encode(), hashlib.sha256).hexdigest()


def main():
    build = os.path.abspath(sys.argv[1])
    enter(__file__, build)
    with tempfile.TemporaryDirectory() as folder:
        server, secret = serve(os.path.join(build, "tools", "gxd"), folder, "--name", "home")
        ended = [subprocess.run(["ip", "netns", "exec", "far", sys.executable, os.path.join(HERE, "second.py"), "10.9.0.1", "4791", key,
                                 of_key, "10.9.0.2", mode, str(server.pid)], check=False, timeout=100).returncode
                 for key, of_key, mode in (("kv", secret, "3"), ("kv", secret, "2"), ("kv+", bound(secret, "home"), "3"),
                                           ("kv+", bound(secret, "away"), "3"))] # the last one wants another server
        server.terminate()
        sys.exit(ended[:3] != [0, 0, 0] or not ended[3] or server.wait(20) != 0)


if __name__ == "__main__":
    main()
