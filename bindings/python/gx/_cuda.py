# SPDX-License-Identifier: Apache-2.0
"""__cuda_array_interface__, for objects without DLPack."""


def place(obj):
    """(pointer, bytes, device, read only)"""
    cai = obj.__cuda_array_interface__
    size = int(cai["typestr"][2:])
    want, n = [], size
    for dim in reversed(cai["shape"]):
        want.insert(0, n)
        n *= dim
    strides = cai.get("strides")
    if strides is not None and any(s != w for s, w, d in zip(strides, want, cai["shape"]) if d > 1):
        raise BufferError(f"gx moves contiguous memory; this has strides {tuple(strides)} in bytes")
    device = getattr(obj, "device", None)
    ordinal = getattr(device, "index", None)
    if not isinstance(ordinal, int):
        ordinal = getattr(device, "id", 0)
    pointer, readonly = cai["data"]
    return pointer, n, ordinal, bool(readonly)
