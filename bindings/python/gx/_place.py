# SPDX-License-Identifier: Apache-2.0
"""Memory of objects that give neither a buffer nor DLPack: tensors of torch that need a gradient, are of another GPU than its
current one, or of a type that DLPack has not; arrays of bfloat16; those of __cuda_array_interface__."""
from __future__ import annotations

import re
from typing import Any


GAPS = "gx moves contiguous memory, and this has gaps or another order: make a contiguous copy, or use put_many() with its rows"


def _tensor(t: Any) -> tuple[int, int, int, bool, Any]:
    if t.device.type not in ("cpu", "cuda") or t.is_conj() or t.is_neg():
        raise BufferError(f"gx moves memory of the host and of CUDA as it lies there, and this is a tensor on {t.device}"
                          + ", conjugated or negated when it is read" * (t.is_conj() or t.is_neg()))
    if not t.is_contiguous():
        raise BufferError(GAPS)
    # Its memory as it is now: t itself may get other memory, by t.data = x, or half() of its module.
    own = t.detach() if hasattr(t, "detach") else t
    return own.data_ptr(), t.nbytes, -1 if t.device.type == "cpu" else t.device.index, False, own


def _array(face: dict[str, Any], device: int, obj: Any) -> tuple[int, int, int, bool, Any] | None:
    if re.search(r"'\|O\d*'", str([face["typestr"], face.get("descr")])):
        raise BufferError("gx moves bytes, and these are references to objects of this process: pickle them")
    kind, size = re.findall(r"^.(\w)(\d*)", face["typestr"])[0]
    want: list[int] = []
    n = int(size) * (4 if kind == "U" else 1)
    for dim in reversed(face["shape"]):
        want.insert(0, n)
        n *= dim
    strides = face.get("strides")
    if strides is not None and any(s != w for s, w, d in zip(strides, want, face["shape"]) if d > 1):
        raise BufferError(GAPS)
    data = face.get("data")
    return (data[0], n, device, bool(data[1]), obj) if data else None


def place(obj: Any) -> tuple[int, int, int, bool, Any] | None:
    """(pointer, bytes, device, read only, what holds the memory)"""
    if hasattr(obj, "data_ptr") and hasattr(obj, "is_neg"):
        return _tensor(obj)
    face = getattr(obj, "__cuda_array_interface__", None)
    if face is not None:
        device = getattr(obj, "device", 0)
        for name in ("index", "id"):  # as torch and as cupy have it
            device = getattr(device, name, device)
        return _array(face, device if isinstance(device, int) else 0, obj)
    face = getattr(obj, "__array_interface__", None)
    return None if face is None else _array(face, -1, obj)
