"""Compiles one kernel for :mod:`compile_pool`, here or as a task of a worker process."""

from __future__ import annotations

import msgspec

from lowerkit.errors import LowerkitError
from lowerkit.targets.cpu.levels import CpuFeatures


class Request(msgspec.Struct):
    """A kernel to compile."""

    mlir: str
    cpu: CpuFeatures


class Reply(msgspec.Struct):
    """The object, or why there is none; and the seconds it took."""

    data: bytes = b""
    error: str = ""
    seconds: float = 0.0


def compile_request(request: Request) -> Reply:
    """Compiles one kernel; an error becomes text."""
    import time

    from lowerkit.targets.cpu.objects.lower import lower_to_object

    started = time.perf_counter()
    try:
        data = lower_to_object(request.mlir, request.cpu)
    except LowerkitError as error:
        return Reply(error=error.message)
    except Exception as error:
        return Reply(error=f"{type(error).__name__}: {error}")
    return Reply(data=data, seconds=time.perf_counter() - started)


def compile_bytes(data: bytes) -> bytes:
    """The same as a task of :mod:`lowerkit.worker_process`."""
    return msgspec.msgpack.encode(compile_request(msgspec.msgpack.decode(data, type=Request)))
