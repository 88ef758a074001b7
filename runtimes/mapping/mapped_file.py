"""A file of which only what is wanted is mapped: each view is a mapping of its own, of whole pages, read-only.

Python's ``mmap`` keeps a descriptor for each mapping, and a rank of a large model has one mapping a weight: so the
system is called here without it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

import numpy as np
import numpy.typing as npt

_PAGE = mmap.ALLOCATIONGRANULARITY
_FAILED = ctypes.c_void_p(-1).value

_library = ctypes.CDLL(None, use_errno=True)
_map = _library.mmap
_map.restype = ctypes.c_void_p
_map.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_unmap = _library.munmap
_unmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class MappedFile:
    """An open file; it keeps a descriptor of its own as long as it lives, and views of it live without it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = os.dup(descriptor)
        weakref.finalize(self, os.close, self._descriptor)

    def view(self, offset: int, size: int) -> npt.NDArray[np.uint8]:
        """Returns ``size`` bytes at ``offset``, which lie inside the file; they are unmapped with their last view.

        The address is congruent to ``offset`` modulo the page size, so what is aligned in the file is in memory.

        Raises:
            OSError: they cannot be mapped; ENOMEM: there is no room in the address space.
        """
        if size == 0:
            return np.empty(0, np.uint8)
        first = offset - offset % _PAGE
        length = offset + size - first
        address = _map(None, length, mmap.PROT_READ, mmap.MAP_PRIVATE, self._descriptor, first)
        if address == _FAILED:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        pages = (ctypes.c_uint8 * length).from_address(address)
        # At the end of the process other threads may still read: the kernel unmaps then.
        weakref.finalize(pages, _unmap, address, length).atexit = False
        data = np.ctypeslib.as_array(pages)[offset - first :]
        data.flags.writeable = False
        return data

    def read_into(self, buffer: npt.NDArray[np.uint8], offset: int) -> None:
        """Reads as many bytes at ``offset`` as the buffer has; nothing is mapped.

        Raises:
            OSError: they cannot be read.
            EOFError: the file ends before them.
        """
        rest = buffer.data
        while rest:
            count = os.preadv(self._descriptor, [rest], offset)
            if not count:
                raise EOFError(f"the file ends at {offset}")
            rest, offset = rest[count:], offset + count
