# SPDX-License-Identifier: Apache-2.0
"""A long path between two network namespaces: a rate, a delay, a queue that drops its tail, and loss, in a process of its own.

The kernel's netem does this where it is built. This does it where only TUN devices are: what leaves one namespace is read from
its TUN device, held, and written to the other's. A packet may be a bundle of segments (offloads stay on), up to 64 KiB.
"""
import fcntl
import heapq
import os
import random
import select
import struct
import time

# linux/if_tun.h
TUNSETIFF = 0x400454ca
TUNSETOFFLOAD = 0x400454d0
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6 = 0x01, 0x02, 0x04
PACKET_MAX_B = 65536 + 64
HDR_B = 10  # linux/virtio_net.h: struct virtio_net_hdr
IP_TCP_B = 52


def tun_open(name):
    """A device that lives as long as the descriptor. OSError: this host has none."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI | IFF_VNET_HDR))
        fcntl.ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)
    except OSError:
        os.close(fd)
        raise
    return fd


class Way:
    """One direction."""

    def __init__(self, source, sink, rate_mb_s, delay_s, queue_s, loss, seed):
        self.source, self.sink = source, sink
        self.s_per_b = 8 / (rate_mb_s * 1e6)
        self.delay_s, self.queue_s, self.loss = delay_s, queue_s, loss
        self.free_at, self.held, self.random = 0.0, [], random.Random(seed)
        self.number = self.dropped = 0

    def take(self):
        """All that waits at the source."""
        while True:
            try:
                packet = os.read(self.source, PACKET_MAX_B)
            except BlockingIOError:
                return
            now = time.monotonic()
            # The path carries segments: each has its own headers.
            size, segment = len(packet) - HDR_B, struct.unpack_from("<H", packet, 4)[0]
            nr = -(-size // segment) if segment else 1
            at = max(now, self.free_at)
            if at - now > self.queue_s or (self.loss and self.random.random() < 1 - (1 - self.loss) ** nr):
                self.dropped += 1
                continue
            self.free_at = at + (size + (nr - 1) * IP_TCP_B) * self.s_per_b
            self.number += 1
            heapq.heappush(self.held, (self.free_at + self.delay_s, self.number, packet))

    def give(self, now):
        while self.held and self.held[0][0] <= now:
            packet = heapq.heappop(self.held)[2]
            try:
                os.write(self.sink, packet)
            except OSError:
                self.dropped += 1


def carry(a, b, rate_mb_s, delay_s, queue_s, loss=0.0, seed=1):
    """Between two TUN descriptors, until the process is ended. Delay, queue: of each direction."""
    ways = [Way(a, b, rate_mb_s, delay_s, queue_s, loss, seed), Way(b, a, rate_mb_s, delay_s, queue_s, loss, seed + 1)]
    while True:
        now = time.monotonic()
        for way in ways:
            way.give(now)
        due = min((way.held[0][0] for way in ways if way.held), default=now + 1)
        ready, _, _ = select.select([way.source for way in ways], [], [], max(0.0, due - time.monotonic()))
        for way in ways:
            if way.source in ready:
                way.take()
