"""Triton's interpreter on the kernels of a region, as a task of :mod:`lowerkit.worker_process`.

The process is one that has not imported Triton yet: what makes Triton interpret is read when it is imported.
"""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from lowerkit.targets.cuda.triton.kernel import KERNEL, TritonKernel

if TYPE_CHECKING:
    from lowerkit.targets.cuda.witness.guarded_memory import Guard, GuardedBuffer

FILE = "kernel.py"
"""The text of a kernel, as messages have it: that of the compiler."""
_LIBRARY = "from triton.language.extra.cuda import libdevice"
_OWN_LIBRARY = "from lowerkit.targets.cuda.witness import libdevice"


class Buffer(msgspec.Struct):
    """A buffer of the region; ``data`` is None where it holds nothing before."""

    name: str
    size: int
    data: bytes | None
    writable: bool


class Start(msgspec.Struct):
    """A launch: its kernel, the numbers of its buffers, its blocks."""

    kernel: str
    pointers: list[int]
    blocks: int


class Request(msgspec.Struct):
    """A region to run: kernels by name, launches in order, numbers of the results among the buffers."""

    kernels: dict[str, TritonKernel]
    launches: list[Start]
    buffers: list[Buffer]
    dims: list[int]
    results: list[int]


class Reply(msgspec.Struct):
    """The bytes of each result; or what a kernel must not do, and in which line; or why it cannot be interpreted."""

    results: list[bytes] = []
    offence: str = ""
    kernel: str = ""
    line: int = 0
    missing: str = ""


def interpret_bytes(data: bytes) -> bytes:
    """Runs a :class:`Request`; an error of the interpreter becomes text."""
    return msgspec.msgpack.encode(_interpret(msgspec.msgpack.decode(data, type=Request)))


def _interpret(request: Request) -> Reply:
    assert "triton" not in sys.modules, "Triton would compile here, not interpret"
    os.environ["TRITON_INTERPRET"] = "1"
    from lowerkit.targets.cuda.witness import guarded_memory, interpreter_arithmetic

    interpreter_arithmetic.install()
    guard = guarded_memory.Guard(FILE)
    buffers = [guarded_memory.GuardedBuffer(each.name, each.size, each.writable) for each in request.buffers]
    for buffer, described in zip(buffers, request.buffers, strict=True):
        if described.data:
            buffer.data[...] = memoryview(described.data)
            buffer.written[...] = True
    for start in request.launches:
        try:
            _launch(request.kernels[start.kernel], start, [buffers[each] for each in start.pointers], request, guard)
        except Exception as error:
            stray = next((e for e in _causes(error) if isinstance(e, guarded_memory.StrayAccess)), None)
            if stray is not None:
                return Reply(offence=str(stray), kernel=start.kernel, line=stray.line)
            first = list(_causes(error))[-1]
            return Reply(missing=f"{start.kernel}: {type(first).__name__}: {first}"[:500])
    for number in request.results:
        if not buffers[number].written.all():
            byte = int((~buffers[number].written).argmax())
            offence = f"nothing writes byte {byte} of {buffers[number].name}, which has {buffers[number].size} bytes"
            return Reply(offence=offence, kernel=request.launches[-1].kernel if request.launches else "")
    return Reply([buffers[number].data.tobytes() for number in request.results])


def _launch(kernel: TritonKernel, start: Start, buffers: list[GuardedBuffer], request: Request, guard: Guard) -> None:
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    language: Any = tl
    guard.buffers = buffers
    arguments: list[Any] = []
    for type_, buffer in zip(kernel.pointers, buffers, strict=True):
        kind = language.str_to_ty(f"*{type_}", None)
        arguments.append(tl.tensor(TensorHandle(np.array([buffer.address], np.uint64), kind), kind))
    for extent in request.dims:
        arguments.append(tl.tensor(TensorHandle(np.array([extent], np.int64), tl.int64), tl.int64))
    with np.errstate(all="ignore"):
        _load(kernel.source)[(start.blocks,)](*arguments)


def _load(source: str) -> Any:
    """Returns the function of a text; Triton reads it again through ``linecache``, lines are those of the kernel."""
    from lowerkit.targets.cuda.witness.interpreter_arithmetic import counted

    text = source.replace(_LIBRARY, _OWN_LIBRARY)
    linecache.cache[FILE] = len(text), None, text.splitlines(keepends=True), FILE
    scope: dict[str, Any] = {"__name__": "lowerkit_kernel", "__file__": FILE, "range": counted}
    exec(compile(text, FILE, "exec"), scope)  # noqa: S102 (a kernel that a family of ours wrote)
    return scope[KERNEL]


def _causes(error: BaseException | None) -> Iterable[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
