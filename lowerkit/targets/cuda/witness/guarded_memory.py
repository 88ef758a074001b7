"""Memory of a launch in Triton's interpreter, which reads and writes wherever a pointer points: here each access is
held against the buffers of the launch, and against what was written.

Imported in the interpreter's process alone.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from triton.runtime import interpreter

Array = np.ndarray[Any, Any]

_BUILDER: Any = interpreter.InterpreterBuilder
_ALIGNMENT = 16
_POISON = 0xFF
"""In memory that nothing has written: floats of it are NaN."""


class StrayAccess(Exception):
    """An access that a kernel must not make.

    Attributes:
        line: of the kernel's text, 0 where it is not known.
    """

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


@dataclass
class GuardedBuffer:
    """Bytes at an aligned address, which of them were written, and whether a kernel may."""

    name: str
    size: int
    writable: bool
    memory: Array = field(init=False)
    written: Array = field(init=False)
    address: int = field(init=False)

    def __post_init__(self) -> None:
        self.memory = np.full(self.size + _ALIGNMENT, _POISON, np.uint8)
        start = int(self.memory.ctypes.data)
        self.address = -(-start // _ALIGNMENT) * _ALIGNMENT
        self.written = np.full(self.size, not self.writable)

    @property
    def data(self) -> Array:
        """Its bytes."""
        first = self.address - int(self.memory.ctypes.data)
        return self.memory[first : first + self.size]


class Guard:
    """Stands between the interpreter and the memory of the launch that runs."""

    def __init__(self, file: str) -> None:
        """Takes the place of the interpreter's loads and stores.

        Args:
            file: name of the text of kernels, as their frames have it.
        """
        self.file = file
        self.buffers: list[GuardedBuffer] = []
        right_load, right_store = _BUILDER.create_masked_load, _BUILDER.create_masked_store

        def load(builder: Any, pointers: Any, mask: Any, *rest: Any, **options: Any) -> Any:
            self._look_at(pointers, mask, writes=False)
            return right_load(builder, pointers, mask, *rest, **options)

        def store(builder: Any, pointers: Any, value: Any, mask: Any, *rest: Any, **options: Any) -> Any:
            self._look_at(pointers, mask, writes=True)
            return right_store(builder, pointers, value, mask, *rest, **options)

        def refuse(*_arguments: Any) -> Any:
            raise NotImplementedError("atomic accesses are not interpreted: their order is not that of a card")

        _BUILDER.create_masked_load, _BUILDER.create_masked_store = load, store
        for name in ("create_atomic_cas", "create_atomic_rmw"):
            setattr(_BUILDER, name, refuse)

    def _look_at(self, pointers: Any, mask: Any, *, writes: bool) -> None:
        size = max(pointers.get_element_ty().primitive_bitwidth // 8, 1)
        addresses, active = np.broadcast_arrays(pointers.data, mask.data)
        left = np.asarray(addresses[active], np.uint64).astype(np.int64)
        for buffer in self.buffers:
            inside = (left >= buffer.address) & (left <= buffer.address + buffer.size - size)
            if not inside.any():
                continue
            offsets = left[inside] - buffer.address
            self._touch(buffer, offsets, size, writes)
            left = left[~inside]
        if left.size:
            self._refuse(f"{self._near(int(left[0]), size, writes)}")

    def _touch(self, buffer: GuardedBuffer, offsets: Array, size: int, writes: bool) -> None:
        if writes and not buffer.writable:
            self._refuse(f"writes {size} bytes at byte {int(offsets[0])} of {buffer.name}, which is only read")
        if offsets.size and int((offsets % size).max()):
            self._refuse(f"accesses {size} bytes at byte {int(offsets[0])} of {buffer.name}, which is not aligned")
        for byte in range(size):
            if writes:
                buffer.written[offsets + byte] = True
            elif not buffer.written[offsets + byte].all():
                first = int(offsets[~buffer.written[offsets + byte]][0])
                self._refuse(f"reads {size} bytes at byte {first} of {buffer.name}, which nothing has written")

    def _near(self, address: int, size: int, writes: bool) -> str:
        verb = "writes" if writes else "reads"
        nearest = min(
            self.buffers,
            key=lambda each: max(each.address - address, address - each.address - each.size, 0),
            default=None,
        )
        if nearest is None:
            return f"{verb} {size} bytes, and the launch has no buffers"
        at = address - nearest.address
        return f"{verb} {size} bytes at byte {at} of {nearest.name}, which has {nearest.size} bytes"

    def _refuse(self, message: str) -> None:
        frame = inspect.currentframe()
        line = 0
        while frame is not None:
            if frame.f_code.co_filename == self.file:
                line = frame.f_lineno
                break
            frame = frame.f_back
        raise StrayAccess(message, line)
