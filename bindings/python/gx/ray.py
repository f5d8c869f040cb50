# SPDX-License-Identifier: Apache-2.0
"""A tensor transport of Ray: what an actor returns stays in its memory, and the actor that is given it reads it there by gx.

    gx.ray.register(torch.Tensor)  # before classes that name it

    @ray.remote
    class Trainer:
        @ray.method(tensor_transport="gx")
        def weights(self): ...

Within a host; between hosts with GX_KEY_FILE in the actors' environment, a key file that all nodes have, or GX_RAY_INSECURE=1: in
clear, and whoever reaches the port may connect.
"""
import os
import threading
from dataclasses import dataclass, field

import ray
from ray.experimental import CommunicatorMetadata, TensorTransportManager, TensorTransportMetadata, register_tensor_transport
from ray.experimental.rdt.tensor_transport_manager import FetchRequest

import gx


@dataclass
class GxMetadata(TensorTransportMetadata):
    """Where the tensors are: the address of the actor's context, and a key for each."""
    address: str = ""
    keys: list = field(default_factory=list)

    __eq__ = object.__eq__
    __hash__ = object.__hash__


@dataclass
class GxFetch(FetchRequest):
    op: object = None


def _empty(shape, dtype):
    if type(dtype).__module__.partition(".")[0] == "torch":
        import torch
        return torch.empty(shape, dtype=dtype)
    import numpy
    return numpy.empty(shape, dtype)


class GxTransport(TensorTransportManager):
    """Of a process. Its context is made when it first has or reads a tensor."""

    def __init__(self):
        self._lock = threading.Lock()
        self._context = self._address = None
        self._peers = {}  # by address
        self._memory = {}  # by object, what is registered for it
        self._aborted = set()

    def tensor_transport_backend(self):
        return "GX"

    @staticmethod
    def is_one_sided():
        return True

    @staticmethod
    def can_abort_transport():
        return True

    def actor_has_tensor_transport(self, actor):
        return ray.get(actor.__ray_call__.remote(lambda _: bool(gx.__version__)))

    def get_communicator_metadata(self, src_actor, dst_actor, backend=None):
        return CommunicatorMetadata()

    def _open(self):
        """Under the lock."""
        if not self._context:
            key, insecure = os.environ.get("GX_KEY_FILE"), os.environ.get("GX_RAY_INSECURE") == "1"
            hosts = (gx.host_addresses() if os.environ.get("GX_ADDR") else [ray.util.get_node_ip_address()]) if key or insecure else []
            self._context = gx.Context(insecure=insecure, key_file=key, bind_host=hosts[0] if hosts else None, on_lost=self._lost)
            hosts = [f"[{h}]" if ":" in h else h for h in hosts or ["127.0.0.1"]]
            port = self._context.listen(",".join(f"{h}:0" for h in hosts))
            self._address = ",".join(f"{h}:{port}" for h in hosts)
        return self._context

    def _lost(self, conn):
        with self._lock:
            self._peers = {address: peer for address, peer in self._peers.items() if peer is not conn}

    def _peer(self, address):
        with self._lock:
            peer = self._peers.get(address)
            if peer and peer.info()["state"] != "up":
                self._peers.pop(address).close()
                peer = None
            if not peer:
                peer = self._peers[address] = self._open().connect(address)
            return peer

    def extract_tensor_transport_metadata(self, obj_id, rdt_object):
        meta = GxMetadata([(t.shape, t.dtype) for t in rdt_object], "cpu" if rdt_object else None)
        for device in (str(t.device) for t in rdt_object):
            if device != "cpu":
                raise ValueError(f"gx carries tensors of the host for Ray, and this one is on {device}")
        with self._lock:
            context, memory = self._open(), []
            try:
                for tensor in rdt_object:
                    if tensor.nbytes:
                        memory.append(context.register(getattr(tensor, "detach", lambda t=tensor: t)()))
                    meta.keys.append(memory[-1].key(gx.GET) if tensor.nbytes else b"")
            except BaseException:
                for mem in memory:
                    mem.free()
                raise
            self._memory.setdefault(obj_id, []).extend(memory)
            meta.address = self._address
        return meta

    def fetch_multiple_tensors(self, obj_id, tensor_transport_metadata, communicator_metadata, target_buffers=None):
        meta = tensor_transport_metadata
        tensors = target_buffers or [_empty(shape, dtype) for shape, dtype in meta.tensor_meta]
        blocks = [(t, key) for t, key in zip(tensors, meta.keys) if key]
        op = None
        if blocks:
            peer = self._peer(meta.address)
            op = peer.get_many([t for t, _ in blocks], [peer.region(key) for _, key in blocks], [0] * len(blocks))
        return GxFetch(obj_id, tensors, op)

    def wait_fetch_complete(self, fetch_request, timeout=-1):
        if fetch_request.op:
            fetch_request.op.wait(None if timeout < 0 else timeout)
        return fetch_request.tensors

    def recv_multiple_tensors(self, obj_id, tensor_transport_metadata, communicator_metadata, target_buffers=None):
        fetch = self.fetch_multiple_tensors(obj_id, tensor_transport_metadata, communicator_metadata, target_buffers)
        while True:
            try:
                return self.wait_fetch_complete(fetch, 0.1)
            except gx.Timeout:
                if obj_id in self._aborted:
                    self._aborted.discard(obj_id)
                    raise

    def send_multiple_tensors(self, tensors, tensor_transport_metadata, communicator_metadata):
        raise NotImplementedError("the reader gets them")

    def garbage_collect(self, obj_id, tensor_transport_meta, tensors):
        """From here on a late reader ends with gx.Stale."""
        with self._lock:
            memory = self._memory.pop(obj_id, [])
        for mem in memory:
            mem.free()

    def abort_transport(self, obj_id, communicator_metadata):
        self._aborted.add(obj_id)


def register(data_type: type) -> None:
    """Make the transport "gx" known to Ray, for tensors of the host of one type: torch.Tensor, numpy.ndarray."""
    register_tensor_transport("gx", ["cpu"], GxTransport, data_type)
