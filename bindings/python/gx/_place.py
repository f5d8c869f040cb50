# SPDX-License-Identifier: Apache-2.0
"""Memory of objects that give neither a buffer nor DLPack: tensors of torch that need a gradient, are of another GPU than its
current one, or of a type that DLPack has not; arrays of bfloat16; those of __cuda_array_interface__."""
from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, TypeAlias


Place: TypeAlias = tuple[int, int, int, bool, Any, int, Sequence[int], Sequence[int] | None]


def _tensor(t: Any) -> Place:
    if t.device.type not in ("cpu", "cuda") or t.is_conj() or t.is_neg() or "strided" not in str(t.layout):
        raise BufferError(f"gx moves memory of the host and of CUDA as it lies there, and this is a tensor on {t.device}, {t.layout}"
                          + ", conjugated or negated when it is read" * (t.is_conj() or t.is_neg()))
    # Its memory as it is now: t itself may get other memory, by t.data = x, or half() of its module.
    own = t.detach() if hasattr(t, "detach") else t
    item = t.element_size()
    return (own.data_ptr(), t.nbytes, -1 if t.device.type == "cpu" else t.device.index, False, own, item, t.shape,
            [s * item for s in t.stride()])


def _array(face: dict[str, Any], device: int, obj: Any) -> Place | None:
    if re.search(r"'\|O\d*'", str([face["typestr"], face.get("descr")])):
        raise BufferError("gx moves bytes, and these are references to objects of this process: pickle them")
    kind, size = re.findall(r"^.(\w)(\d*)", face["typestr"])[0]
    item, data, shape = int(size) * (4 if kind == "U" else 1), face.get("data"), face["shape"]
    return (data[0], item * math.prod(shape), device, bool(data[1]), obj, item, shape, face.get("strides")) if data else None


def place(obj: Any) -> Place | None:
    """(pointer, bytes, device, read only, what holds the memory, bytes of an element, shape, strides in bytes)"""
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
