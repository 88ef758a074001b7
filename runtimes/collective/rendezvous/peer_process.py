"""The processes at the other ends of Unix streams: they are watched beside the streams.

A stream ends when the last process that has it ends, and a child that a rank forked has it until it closes it.
"""

from __future__ import annotations

import errno
import os
import socket
import struct

_SO_PEERPIDFD = 77  # Linux 6.5; not in the socket module
_CREDENTIALS = struct.Struct("3i")
# Older kernels, processes of a namespace that this one does not see, and such as have ended.
_UNTOLD = {errno.ENOPROTOOPT, errno.EINVAL, errno.ENOSYS, errno.ESRCH, errno.EPERM, errno.ENODATA}


def process_of(stream: socket.socket) -> int:
    """Returns a pidfd of the process that made the other end of a Unix stream, or -1: the kernel does not tell it.

    Raises:
        OSError: descriptors ran out.
    """
    try:
        return stream.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        if error.errno not in _UNTOLD:
            raise
    credentials = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process = _CREDENTIALS.unpack(credentials)[0]
    if process <= 0:
        return -1
    try:
        descriptor = os.pidfd_open(process)
    except OSError as error:
        if error.errno not in _UNTOLD:
            raise
        return -1
    if _has_ended(stream):  # then the number may be another's by now
        os.close(descriptor)
        return -1
    return descriptor


def _has_ended(stream: socket.socket) -> bool:
    try:
        return not stream.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
