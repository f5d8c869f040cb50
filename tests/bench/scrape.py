#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long `gxd metrics` takes for a page of a server with many connections (crowd.c), and what turns of the server's core took of its
CPU time meanwhile, and without scrapes.

usage: scrape.py BUILD_DIR [LINK [CONNECTIONS [ROUNDS [SECONDS [MOST_MS]]]]]   default: tcp 1000 10 2. `ninja -C BUILD_DIR tests/crowd` first.
Rounds of so many seconds, in turns without scrapes and with four a second. On a busy machine the least time says more than the median:
with MOST_MS it must not be longer than that.
"""
import os
import re
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time

APART_S = 0.26 # a page is new for 0.25 s
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: application/openmetrics-text;version=1.0.0\r\n\r\n"
OVER_US = (10, 20, 50, 100)


def scrape(port):
    begin, got = time.monotonic(), 0
    with socket.create_connection(("127.0.0.1", port)) as s:
        s.sendall(REQUEST)
        while part := s.recv(1 << 20):
            got += len(part)
    return (time.monotonic() - begin) * 1e3, got


def turns(crowd):
    crowd.stdin.write("\n")
    crowd.stdin.flush()
    return [int(word) for word in crowd.stdout.readline().split()]


def main(build, link="tcp", connections="1000", rounds="10", seconds="2", most_ms="inf"):
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    pages, told = [], {"without": [], "with": []}
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "GX_RUN_DIR": folder}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": env}
        with subprocess.Popen([f"{build}/tests/crowd", connections, link, "turns"], **pipes) as crowd, \
                subprocess.Popen([f"{build}/tools/gxd", "metrics", "--listen", "127.0.0.1:0", "--dir", folder], **pipes) as exporter:
            crowd.stdout.readline() # ready
            port = int(re.search(r"port (\d+)", exporter.stdout.readline()).group(1))
            scrape(port)
            turns(crowd)
            for i in range(2 * int(rounds)):
                end = time.monotonic() + float(seconds)
                while time.monotonic() < end:
                    time.sleep(APART_S)
                    if i % 2:
                        pages.append(scrape(port))
                told["with" if i % 2 else "without"].append(turns(crowd))
            exporter.terminate()
            crowd.stdin.close()
    took, sizes = zip(*pages)
    print(f"{link}, {connections} connections: {len(took)} pages of {statistics.median(sizes) / 1e3:.0f} kB, median {statistics.median(took):.2f} ms, "
          f"least {min(took):.2f}")
    for when, rows in told.items():
        total = sum(row[0] for row in rows)
        over = ", ".join(f"{us} us {1e6 * sum(row[2 + k] for row in rows) / total:.0f}" for k, us in enumerate(OVER_US))
        print(f"{when} scrapes: longest turn of a round {statistics.median(row[1] for row in rows) / 1e3:.0f} us (median), of a million "
              f"turns took longer than {over}")
    return min(took) > float(most_ms)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
