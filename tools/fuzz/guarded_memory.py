"""Memory between pages that nobody may touch: a read or write outside of it ends the process at once."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_PAGE = mmap.PAGESIZE
_NO_ACCESS = 0

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class GuardedMemory:
    """``size`` bytes that end (``at_end``) or begin at a page without access; there is one on the other side too.

    ``alignment`` is that of the address, in bytes; with ``at_end`` up to ``alignment - 1`` bytes lie behind.
    """

    def __init__(self, size: int, *, at_end: bool, alignment: int = 1) -> None:
        room = -(-max(size, 1) // _PAGE) * _PAGE
        self._map = mmap.mmap(-1, room + 2 * _PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        for guard in (start, start + _PAGE + room):
            if _libc.mprotect(guard, _PAGE, _NO_ACCESS):
                raise OSError(ctypes.get_errno(), "mprotect")
        first = start + _PAGE
        self.address = first if not at_end else (first + room - size) // alignment * alignment
        self.size = size

    def bytes(self) -> Array:
        """The memory as writable bytes."""
        return np.ctypeslib.as_array((ctypes.c_uint8 * max(self.size, 1)).from_address(self.address))[: self.size]

    def poison(self) -> None:
        """Fills the memory with bytes that are NaN in every float type and -1 in every integer type."""
        self.bytes()[:] = 0xFF


def guarded_copy(array: Array, *, at_end: bool) -> tuple[Array, GuardedMemory]:
    """Returns an equal, C-contiguous array between guard pages, and what keeps its memory."""
    memory = GuardedMemory(array.nbytes, at_end=at_end, alignment=array.dtype.itemsize)
    memory.bytes()[:] = np.frombuffer(array.tobytes(), np.uint8)
    return memory.bytes().view(array.dtype).reshape(array.shape), memory


def guarded_results(session: Any, arrays: Iterable[Array], *, at_end: bool) -> list[Array]:
    """Runs ``session`` once with inputs, outputs and arena between guard pages, all but the inputs poisoned."""
    held = [guarded_copy(np.asarray(array), at_end=at_end) for array in arrays]
    inputs = session.collect(*[array for array, _ in held])
    bound, outputs, bases = session._prepare(inputs)
    arena = GuardedMemory(bound.arena_size, at_end=at_end, alignment=64)
    session._scratch.bytes()[:] = 0xFF
    places = [GuardedMemory(o.nbytes, at_end=at_end, alignment=o.dtype.itemsize) for o in outputs]
    for memory in (arena, *places):
        memory.poison()
    # Behind the outputs stand the arena and the weights of each device.
    last_output = len(bases) - 2 * len(session._calls.memories)
    before, behind = bases[1 : last_output - len(outputs)], bases[last_output:]
    bases = [arena.address, *before, *(place.address for place in places), *behind]
    bound.run(session._pool, bases, session._scratch)
    return [
        place.bytes().view(output.dtype).reshape(output.shape).copy()
        for place, output in zip(places, outputs, strict=True)
    ]
