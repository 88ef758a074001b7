"""Memory that ranks of one host share: a memfd, made by the lowest of them and passed over their Unix sockets.

It has no name, so nothing outlives a crash; it is allocated when it is made, so that no page is missing later (that
would be a SIGBUS); and it is sealed, so that no rank can take pages away from the others.
"""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress

from lowerkit.errors import ResourceError
from lowerkit.runtimes.collective.available_memory import available_bytes
from lowerkit.runtimes.collective.failures import no_memory, not_formed
from lowerkit.runtimes.collective.rendezvous.deadline import Deadline

_SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_MESSAGE = struct.Struct("<8sQ")
_MAGIC = b"LKMEMORY"
_NONE = b"LKNOROOM"
_HINT = (
    "a limit of the container or of files (ulimit -f) may be too low; fewer ranks or a smaller arena need less, and "
    "RendezvousOptions(shared_memory=False) does without"
)


def create_memory(label: str, size: int) -> int:
    """Returns a descriptor of ``size`` bytes of zeros, all of them allocated.

    Raises:
        ResourceError: LK7004, out of memory or descriptors.
    """
    # The kernel would go on allocating until it ends a process.
    if (free := available_bytes()) < size:
        raise no_memory(
            f"{size} bytes of shared memory for {label!r} are wanted and {free} are free",
            hint=_HINT,
        )
    try:
        descriptor = os.memfd_create(label[:200], os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(descriptor, 0, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        except OSError:
            os.close(descriptor)
            raise
    except OSError as error:
        raise no_memory(
            f"{size} bytes of shared memory for {label!r} could not be allocated: {error.strerror}", hint=_HINT
        ) from error
    return descriptor


def send_memory(streams: Iterable[socket.socket], descriptor: int, size: int, deadline: Deadline) -> None:
    """Passes the memory to the ranks at the other ends of Unix streams.

    Raises:
        OSError: a stream broke or the deadline passed (TimeoutError).
    """
    for stream in streams:
        stream.settimeout(max(deadline.remaining(), 0.001))
        sent = socket.send_fds(stream, [_MESSAGE.pack(_MAGIC, size)], [descriptor])
        assert sent == _MESSAGE.size, "sixteen bytes fit into every socket"


def share_memory(label: str, streams: Sequence[socket.socket], size: int, deadline: Deadline) -> int:
    """Makes memory and passes it on; where there is none, the others learn that too.

    Raises:
        ResourceError: LK7004, out of memory or descriptors.
        OSError: a stream broke or the deadline passed (TimeoutError).
    """
    try:
        descriptor = create_memory(label, size)
    except ResourceError:
        for stream in streams:
            with suppress(OSError):  # that rank has its own failure
                stream.settimeout(max(deadline.remaining(), 0.001))
                stream.sendall(_MESSAGE.pack(_NONE, size))
        raise
    try:
        send_memory(streams, descriptor, size, deadline)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def receive_memory(stream: socket.socket, size: int, deadline: Deadline, giver: int) -> int:
    """Returns the descriptor that rank ``giver``, the lowest local one, passed; takes no byte beyond its message.

    Raises:
        ResourceError: LK7004, that rank got none.
        CollectiveFault: LK8007, it is not the memory expected.
        OSError: the stream broke or the deadline passed (TimeoutError).
    """
    stream.settimeout(max(deadline.remaining(), 0.001))
    room = socket.CMSG_SPACE(array.array("i", [0]).itemsize)
    data, ancillary, _, _ = stream.recvmsg(_MESSAGE.size, room, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(payload[: len(payload) - len(payload) % descriptors.itemsize])
    try:
        if data == _MESSAGE.pack(_NONE, size):
            raise no_memory(f"rank {giver} could not allocate {size} bytes of memory to share", hint=_HINT)
        if not data:
            raise not_formed(f"rank {giver} ended before it passed {size} bytes of shared memory")
        if len(descriptors) != 1 or data != _MESSAGE.pack(_MAGIC, size):
            raise not_formed(f"rank {giver} passed no memory of {size} bytes, but {data!r}")
        if (
            os.fstat(descriptors[0]).st_size != size
            or fcntl.fcntl(descriptors[0], fcntl.F_GET_SEALS) & _SEALS != _SEALS
        ):
            raise not_formed(f"the memory that rank {giver} passed does not have {size} bytes for good")
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return descriptors[0]
