# SPDX-License-Identifier: Apache-2.0
"""Errors of gx: OSErrors with .errno, .strerror and .reason (the name of a gx_reason)."""
from __future__ import annotations

import errno


class Error(OSError):
    """Of gx: an OSError."""
    reason: str = "none"


class Timeout(Error, TimeoutError):
    """Not in time."""


class PeerLost(Error, ConnectionError):
    """The connection is down, or its peer is gone."""


class Refused(PeerLost, ConnectionRefusedError):
    """Nobody listens there, or the peer does not serve us."""


class Stale(Error):
    """The region was withdrawn: freed, its key withdrawn, its lease over."""


class Denied(Error, PermissionError):
    """The region, its key or its owner does not allow this."""


class NotFound(Error, LookupError):
    """No such region, or no such device."""


class OutOfRange(Error, IndexError):
    """Outside of the region."""


class Canceled(Error):
    """Ended by this process before it was done."""


class Closed(Error):
    """The context is closed."""


class Forked(Error):
    """The context is of a parent process."""


CLASSES = {
    errno.ETIMEDOUT: Timeout, errno.ENOTCONN: PeerLost, errno.ECONNRESET: PeerLost, errno.ENETUNREACH: PeerLost,
    errno.EPIPE: PeerLost, errno.ECONNREFUSED: Refused, errno.ESTALE: Stale, errno.EACCES: Denied, errno.EPERM: Denied,
    errno.EXDEV: Denied, errno.ENOENT: NotFound, errno.ENODEV: NotFound, errno.ERANGE: OutOfRange,
    errno.ECANCELED: Canceled, errno.EBADF: Closed, errno.ECHILD: Forked, errno.ENOKEY: Denied, errno.EKEYREVOKED: Denied,
}


def make(number: int, text: str, reason: str) -> Error:
    error = CLASSES.get(number, Error)(number, text)
    error.reason = reason
    return error
