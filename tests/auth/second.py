#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A second implementation of sealed packets and records, written from docs/wire.md. With `answers` it prints the known answers of
tests/packet/test_seal.c and tests/tcp/test_tcp_seal.c."""
import hashlib
import hmac
import struct
import sys

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

DATA, CTL, ACK, PROBE = 1, 2, 3, 4
MAC, GCM = 2, 3
HDR_B, AAD_B = 38, 22


def expand_label(secret, label, length, context=b""):
    """HKDF-Expand-Label of RFC 8446 7.1, of at most one block."""
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


class Keys:
    """Of one direction: phase by phase."""

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
    return struct.pack("<BBHIIIIBB", 3 << 4 | kind, flags, plen, cid, psn & 0xFFFFFFFF, mid, moff // 16, HDR_B, phase & 0xFF)


def seal(mode, keys, phase, kind, number, payload, *, cid, flags=0, mid=0, moff=0):
    """A packet: header and payload."""
    key, salt = keys.phase(phase)
    head = header(kind, flags, len(payload), cid, number, mid, moff, phase)
    nonce = nonce_of(salt, kind, number)
    if mode == MAC:
        return head + key.encrypt(nonce, b"", head + struct.pack("<I", crc32c(payload))) + payload
    sealed = key.encrypt(nonce, payload, head)
    return head + sealed[-16:] + sealed[:-16]


def unseal(mode, keys, phase, number, packet):
    """Its payload; raises InvalidTag."""
    key, salt = keys.phase(phase)
    head, tag, body = packet[:AAD_B], packet[AAD_B:HDR_B], packet[HDR_B:]
    nonce = nonce_of(salt, head[0] & 15, number)
    if mode == MAC:
        key.decrypt(nonce, tag, head + struct.pack("<I", crc32c(body)))
        return body
    return key.decrypt(nonce, body + tag, head)


def tcp_record(keys, phase, number, data):
    """A record of a data socket of link tcp."""
    key, salt = keys.phase(phase)
    head = struct.pack("<HBB", len(data), phase & 0xFF, 0)
    return head + key.encrypt(nonce_of(salt, 1, number), data, head)


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
