"""Triton's interpreter on the kernels of a region, as a task of :mod:`lowerkit.worker_process`.

The process is one that has not imported Triton yet: what makes Triton interpret is read when it is imported.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from lowerkit.targets.cuda.triton.kernel import KERNEL, TritonKernel

if TYPE_CHECKING:
    from lowerkit.targets.cuda.witness.guarded_memory import GuardedBuffer

FILE = "kernel.py"
"""The text of a kernel, as messages have it: that of the compiler."""
_DESCRIPTOR = re.compile(r"tensordesc<(\w+)\[([\d, ]+)\]>")
_LIBRARY = "from triton.language.extra.cuda import libdevice"
_OWN_LIBRARY = "from lowerkit.targets.cuda.witness import libdevice"


class Buffer(msgspec.Struct):
    """A buffer of the region; ``data`` is None where it holds nothing before."""

    name: str
    size: int
    data: bytes | None
    writable: bool


class Described(msgspec.Struct):
    """A tensor that a kernel takes as a descriptor: see :class:`~lowerkit.runtimes.cuda.tensor_maps.TensorMap`."""

    buffer: int
    sizes: list[int]
    strides: list[int]
    offset: int


class Start(msgspec.Struct):
    """A launch: its kernel, the numbers of its buffers, its tensors, its blocks."""

    kernel: str
    pointers: list[int]
    maps: list[Described]
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
            guard.buffers = [buffers[each] for each in {*start.pointers, *(tensor.buffer for tensor in start.maps)}]
            _launch(request.kernels[start.kernel], start, buffers, request.dims)
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


def _launch(kernel: TritonKernel, start: Start, buffers: list[GuardedBuffer], dims: list[int]) -> None:
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    language: Any = tl

    def number(value: int, kind: Any, stored: Any) -> Any:
        return tl.tensor(TensorHandle(np.array([value], stored), kind), kind)

    def pointer(type_: str, address: int) -> Any:
        return number(address, language.str_to_ty(f"*{type_}", None), np.uint64)

    def tensor(type_: str, described: Described) -> Any:
        from triton.runtime.interpreter import interpreter_semantic

        semantic: Any = interpreter_semantic
        found = _DESCRIPTOR.fullmatch(type_)
        assert found is not None, f"{type_} is no descriptor"
        base = pointer(found[1], buffers[described.buffer].address + described.offset)
        width = base.dtype.element_ty.primitive_bitwidth // 8
        steps: list[Any] = [number(step // width, tl.int64, np.int64) for step in described.strides[::-1]]
        return semantic.make_tensor_descriptor(
            base,
            [number(size, tl.int32, np.int32) for size in described.sizes[::-1]],
            [*steps, tl.constexpr(1)],
            [tl.constexpr(int(extent)) for extent in found[2].split(",")],
        )

    pairs = zip(kernel.pointers, start.pointers, strict=True)
    arguments = [pointer(type_, buffers[each].address) for type_, each in pairs]
    arguments += [tensor(type_, each) for type_, each in zip(kernel.descriptors, start.maps, strict=True)]
    arguments += [number(extent, tl.int64, np.int64) for extent in dims]
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
