"""The process that compiles kernels for :mod:`lowerkit.codegen.cpu.compile_pool`: requests on stdin, replies on stdout.

A message is its length (8 bytes, little endian) and msgpack. A process of its own and not a fork: LLVM may crash on a
kernel without taking the caller along, and the caller's ``__main__`` is not imported again.
"""

from __future__ import annotations

import os
import struct
import sys
from typing import BinaryIO

import msgspec

from lowerkit.codegen.cpu.features import CpuFeatures
from lowerkit.errors import LowerkitError


class Request(msgspec.Struct):
    """A kernel to compile."""

    mlir: str
    cpu: CpuFeatures


class Reply(msgspec.Struct):
    """The object, or why there is none; and the seconds it took."""

    data: bytes = b""
    error: str = ""
    seconds: float = 0.0


def write_message(stream: BinaryIO, message: msgspec.Struct) -> None:
    """Writes one message."""
    data = msgspec.msgpack.encode(message)
    stream.write(struct.pack("<Q", len(data)) + data)
    stream.flush()


def read_message(stream: BinaryIO) -> bytes | None:
    """Returns the bytes of one message; None where the stream ends."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    size = struct.unpack("<Q", head)[0]
    data = stream.read(size)
    return data if len(data) == size else None


def compile_request(request: Request) -> Reply:
    """Compiles one kernel; an error becomes text."""
    import time

    from lowerkit.codegen.cpu.lower import lower_to_object

    started = time.perf_counter()
    try:
        data = lower_to_object(request.mlir, request.cpu)
    except LowerkitError as error:
        return Reply(error=error.message)
    except Exception as error:
        return Reply(error=f"{type(error).__name__}: {error}")
    return Reply(data=data, seconds=time.perf_counter() - started)


def main() -> None:
    """Serves requests until stdin ends."""
    # Whatever a library prints on stdout must not get between the messages.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while (data := read_message(sys.stdin.buffer)) is not None:
        write_message(replies, compile_request(msgspec.msgpack.decode(data, type=Request)))


if __name__ == "__main__":
    main()
