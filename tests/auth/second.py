#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A second implementation of sealed packets and records, written from docs/wire.md. `second.py answers` prints the known answers of
tests/packet/test_seal.c and tests/tcp/test_tcp_seal.c. `second.py HOST PORT NAME SECRET OWN-HOST MODE [PID]` puts to a gxd, and gets; with its
process, also looks in its memory for what opens the data of the connection, once that has ended."""
import hashlib
import hmac
import json
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
import time

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

DATA, CTL, ACK, PROBE = 1, 2, 3, 4
MAC, GCM, HDR_B, AAD_B = 2, 3, 38, 22

def expand_label(secret, label, length, context=b""):  # HKDF-Expand-Label of RFC 8446 7.1, of at most one block.
    label = b"tls13 " + label
    info = struct.pack(">HB", length, len(label)) + label + bytes([len(context)]) + context
    return hmac.new(secret, info + b"\1", hashlib.sha256).digest()[:length]

def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF

class Keys:  # of one direction, phase by phase
    def __init__(self, secret):
        self.secrets = [secret]
    def phase(self, number):
        while len(self.secrets) <= number:
            self.secrets.append(expand_label(self.secrets[-1], b"gx ku", 32))
        secret = self.secrets[number]
        return AESGCM(expand_label(secret, b"gx key", 16)), expand_label(secret, b"gx iv", 12)

def nonce_of(salt, kind, number):
    mask = bytes(3) + bytes([kind]) + struct.pack(">Q", number)
    return bytes(a ^ b for a, b in zip(salt, mask))

def header(kind, flags, plen, cid, psn, mid, moff, phase):
    return struct.pack("<BBHIIIIBB", 4 << 4 | kind, flags, plen, cid, psn & 0xFFFFFFFF, mid, moff // 16, HDR_B, phase & 0xFF)

def seal(mode, keys, phase, kind, number, payload, *, cid, flags=0, mid=0, moff=0):  # A packet: header and payload.
    key, salt = keys.phase(phase)
    head = header(kind, flags, len(payload), cid, number, mid, moff, phase)
    nonce = nonce_of(salt, kind, number)
    if (mode, kind) == (MAC, DATA):
        return head + key.encrypt(nonce, b"", head + struct.pack("<I", crc32c(payload))) + payload
    sealed = key.encrypt(nonce, payload, head)
    return head + sealed[-16:] + sealed[:-16]

def unseal(mode, keys, phase, number, packet):  # Its payload; raises InvalidTag.
    key, salt = keys.phase(phase)
    head, tag, body = packet[:AAD_B], packet[AAD_B:HDR_B], packet[HDR_B:]
    nonce = nonce_of(salt, head[0] & 15, number)
    if (mode, head[0] & 15) == (MAC, DATA):
        key.decrypt(nonce, tag, head + struct.pack("<I", crc32c(body)))
        return body
    return key.decrypt(nonce, body + tag, head)

def tcp_record(keys, phase, number, data):  # A record of a data socket of link tcp.
    key, salt = keys.phase(phase)
    head = struct.pack("<HBB", len(data), phase & 0xFF, 0)
    return head + key.encrypt(nonce_of(salt, 1, number), data, head)

def exporter(master, context):  # RFC 8446 7.5, out of TLS's exporter master secret.
    secret = expand_label(master, b"EXPORTER-gx-data", 32, hashlib.sha256(b"").digest())
    return expand_label(secret, b"exporter", 32, hashlib.sha256(context).digest())

def mix(secret, shared):  # HKDF-Extract of RFC 5869 2.2, with what both ends have by X25519.
    return hmac.new(secret, shared, hashlib.sha256).digest()

class Client:  # one lane of link packet over udp, to a gxd of another host; openssl does the TLS
    silence_ns, ports = 5 * 10**9, (47000, 47001)
    def __init__(self, host, port, name, secret, own, mode):
        log = tempfile.mktemp()
        self.tls = subprocess.Popen(
            ["openssl", "s_client", "-connect", f"{host}:{port}", "-tls1_3", "-ciphersuites", "TLS_AES_128_GCM_SHA256", "-groups", "X25519",
             "-psk_identity", name, "-psk", secret, "-quiet", "-keylogfile", log],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.data, self.ctl = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        self.data.bind((own, self.ports[0]))
        self.ctl.bind((own, self.ports[1]))
        self.send_frame(1, struct.pack("<4I16sB16sQ6I", 0x31307867, 10, os.getpid(), 0, os.urandom(16), 0, os.urandom(16), 7, 1, 524288, 16,
                                       15, 1, 1) + b"\3udp" + struct.pack("<3IBIBH", 256, 1280, 1280, 0, 0, 0, 0))
        hello = self.hello = self.frame(1)
        with open(log, encoding="ascii") as f:
            master = bytes.fromhex(next(line.split()[2] for line in f if line.startswith("EXPORTER_SECRET")))
        os.unlink(log)
        self.token, _ = self.region("kv") or (0, 0)
        addr = struct.pack("<BBHI16s16x", 4, 0, self.ports[0], 0, socket.inet_aton(own))
        own_half = X25519PrivateKey.generate()
        self.send_frame(2, b"\3udp" + struct.pack("<BB32s4IQI", 0, 0, own_half.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw), 1280, 524288, 16, mode, self.silence_ns, 1) + struct.pack("<H", len(addr))
                        + addr + struct.pack("<BIIQIBH", 0, 5, 8, 1000, 0, 0, 0))
        accept = self.frame(3)
        self.own_half, self.shared = own_half.public_key(), own_half.exchange(X25519PublicKey.from_public_bytes(accept[6:38]))
        self.out, self.into = (Keys(mix(exporter(master, struct.pack("<BIB", 0, 0, way)), self.shared)) for way in range(2))
        at = accept.index(struct.pack("<H", 40)) + 42
        to, = struct.unpack_from("<H", accept, at - 38)
        self.cid, self.credit, self.next, _ = struct.unpack_from("<IIQI", accept, at + 1)
        self.to = {DATA: (host, to), CTL: (host, to + 1)}
        self.mode, self.psn, self.acks, self.rsn, self.seen, self.done, self.our_done = mode, 1000, 0, 0, set(), 0, 0
        self.slots, self.rsns, self.sent = {}, set(), []
        self.frame(4)
        self.send_frame(4, b"")
    def region(self, name):  # Token and length, as HELLO says them.
        at = self.hello.find(bytes([len(name)]) + name.encode())
        return struct.unpack_from("<QQ", self.hello, at + 1 + len(name)) if at >= 0 else None
    def ask(self, op, **fields):  # A request of gxd's; the answer.
        self.asked = getattr(self, "asked", 0) + 1
        self.send_frame(6, json.dumps({"id": self.asked, "op": op, **fields}).encode())
        while True:
            answer = json.loads(self.frame(6))
            if answer.get("id") == self.asked and "ok" in answer:
                return answer
    def close(self):
        self.tls.kill()
        self.tls.wait()
        self.data.close()
        self.ctl.close()
    def send_frame(self, kind, body):
        self.tls.stdin.write(struct.pack("<IHH", len(body) + 4, kind, 0) + body)
        self.tls.stdin.flush()
    def frame(self, kind):
        size, is_kind, _ = struct.unpack("<IHH", self.tls.stdout.read(8))
        body = self.tls.stdout.read(size - 4)
        assert is_kind == kind, (is_kind, body)
        return body
    def send(self, kind, payload, **fields):
        number = self.acks if kind == ACK else self.psn
        self.acks, self.psn = (self.acks + 1, self.psn) if kind == ACK else (self.acks, self.psn + 1)
        packet = seal(self.mode, self.out, 0, kind, number, payload, cid=self.cid, **fields)
        self.sent += [] if kind == ACK else [(kind, payload, fields)]
        (self.data if kind == DATA else self.ctl).sendto(packet, self.to[DATA if kind == DATA else CTL])
    def record(self, kind, flags, body):
        self.rsn += 1
        self.send(CTL, struct.pack("<BBHI", kind, flags, 0, self.rsn - 1) + body)
    def acked(self, b):
        words, = struct.unpack_from("<H", b, 22)
        self.credit, = struct.unpack_from("<I", b, 12)
        if words & 1:
            self.done, = struct.unpack_from("<Q", b, 32)
    def records(self, b):
        while b:
            kind, flags, rsn, mid, _, token, _, size = struct.unpack_from("<BBxxIIIQQQ", b.ljust(40, b"\0"))
            if (kind, rsn in self.rsns) == (1, False):  # OPEN with SLOT and INLINE: the answer to a GET, again once it was sent again
                assert flags == 10
                self.slots[token], self.our_done = b[48:48 + size], self.our_done ^ 1 << mid % 1024
            self.rsns.add(rsn)
            b = b[48 + (size + 7 & -8) * (flags >> 1 & 1) if kind == 1 else (40, 40, 32, 24, 24, 0, 0, 16, 16)[kind - 2]:]
    def take(self, packet):
        kind, psn = packet[0] & 15, struct.unpack_from("<I", packet, 8)[0]
        ack_bytes, = struct.unpack_from("<I", packet, 12)
        number = psn if kind == ACK else self.next + ((psn - self.next + 2**31) % 2**32 - 2**31)
        payload = unseal(self.mode, self.into, packet[21], number, packet)
        if kind == ACK:
            self.acked(payload)
            return
        self.seen.add(number)
        self.next = max(self.seen) + 1
        if kind == CTL:
            if ack_bytes:
                self.acked(payload[-ack_bytes:])
            self.records(payload[:len(payload) - ack_bytes])
        word = sum(1 << i for i in range(64) if self.next - 1 - i in self.seen)
        self.send(ACK, struct.pack("<QIIIHHIIQQ", self.next - 1, 0, 8, self.acks + 1, 1, 1, 0, 0, self.our_done, word))
    def until(self, what):
        end, again = (time.monotonic() + s for s in (10, 0.3))
        while not what():
            assert time.monotonic() < end, "gxd says nothing"
            if time.monotonic() > again:
                sent, self.sent, again = self.sent, [], time.monotonic() + 1
                for kind, payload, fields in sent:
                    self.send(kind, payload, **fields)
            for sock in select.select([self.data, self.ctl], [], [], 0.1)[0]:
                try:
                    self.take(sock.recv(9000))
                except InvalidTag:
                    pass  # dropped in silence
        self.sent = []

def memory(pid):  # pages that are not all zero
    with open(f"/proc/{pid}/maps", encoding="ascii") as maps, open(f"/proc/{pid}/mem", "rb", 0) as mem:
        for line in maps:
            low, high = (int(x, 16) for x in line.split()[0].split("-"))
            if line.split()[1][:2] != "rw" or high - low > 1 << 28:
                continue
            for at in range(low, high, 1 << 20):
                mem.seek(at)
                try:
                    part = mem.read(min(1 << 20, high - at))
                except OSError:
                    break
                if part.count(0) != len(part):
                    yield part

def halves(part):  # what may be a private half: bytes that look random, where an allocator puts them
    for page in range(0, len(part), 4096):
        if part.count(0, page, page + 4096) < 4000:
            for at in range(page, min(page + 4096, len(part) - 31), 8):
                if len(set(part[at:at + 32])) > 20:
                    yield part[at:at + 32]

def opens(pid, client, deep):  # What in the memory of @pid opens data of the connection? @deep: also private halves.
    secrets = {"shared": client.shared}
    for way, keys in (("in", client.out), ("out", client.into)):
        keys.phase(3)
        for phase, secret in enumerate(keys.secrets):
            secrets |= {f"{way} {phase}": secret, f"key {way} {phase}": expand_label(secret, b"gx key", 16)}
    found, tried = set(), set()
    for part in memory(pid):
        found |= {name for name, secret in secrets.items() if secret in part}
        tried |= set(halves(part)) if deep else set()
    found |= {"half" for half in tried if X25519PrivateKey.from_private_bytes(half).exchange(client.own_half) == client.shared}
    return found

def ended(client, pid):  # While it is up its keys are there. Then nothing is.
    up = opens(pid, client, False)
    assert {"key in 0", "key out 0"} <= up and "shared" not in up, up
    client.send_frame(7, b"")
    end = time.monotonic() + 20
    while opens(pid, client, False):
        assert time.monotonic() < end, opens(pid, client, False)
    assert not opens(pid, client, True)
    print("nothing in memory opens what was said")

def talk(host, port, name, secret, own, mode, pid=0):  # Puts 100 bytes in an OPEN and 2,560 in packets, and gets them back.
    c = Client(host, port, name, secret, own, mode)
    small, large = os.urandom(100), os.urandom(2560)
    c.record(1, 2, struct.pack("<IIQQQQ", 0, 1280, c.token, 0, len(small), 0) + small + bytes(4))
    c.until(lambda: c.done & 1)
    c.record(1, 0, struct.pack("<IIQQQQ", 1, 1280, c.token, 4096, len(large), 0))
    c.until(lambda: c.credit >= 2)
    for i in range(2):
        c.send(DATA, large[1280 * i:1280 * (i + 1)], mid=1, moff=1280 * i, flags=i)
    c.until(lambda: c.done & 2)
    for slot, off, want in ((1 << 63 | 1, 0, small), (1 << 63 | 2, 4096 + 1000, large[1000:1600])):
        c.record(3, 0, struct.pack("<QQQQ", c.token, off, len(want), slot))
        c.until(lambda: slot in c.slots)
        assert c.slots[slot] == want
    if pid:
        ended(c, pid)
    c.tls.kill()
    print("mode", mode, "put and got")

def answers():
    print("tcp", tcp_record(Keys(b"\1" + bytes(31)), 0, 1, bytes(range(20))).hex())
    secret = bytes([0, 1, 0]) + b"\x5a" * 29  # packets, from server to client, lane 0
    for mode in (MAC, GCM):
        for phase, kind, number, payload in ((0, DATA, 0x123456789ABC, b"the bytes of a packet, 37 of them, so"),
                                             (2, ACK, 7, b""), (1, CTL, (1 << 33) + 5, bytes(range(64)))):
            packet = seal(mode, Keys(secret), phase, kind, number, payload, cid=0x00100002, flags=1, mid=1025, moff=4096)
            assert unseal(mode, Keys(secret), phase, number, packet) == payload
            print(mode, phase, kind, hex(number), packet[:HDR_B].hex(), packet[HDR_B:].hex())

if __name__ == "__main__":
    if sys.argv[1:] == ["answers"]:
        answers()
    else:
        talk(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5], *(int(x) for x in sys.argv[6:]))
