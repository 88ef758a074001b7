"""The global memory of the simulated device: allocations far apart, and accesses that must lie inside of them.

Addresses are never given out twice, so that what was freed stays known as freed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lowerkit.errors import ResourceError
from lowerkit.runtimes.cuda.launch_buffer import LaunchBuffer
from lowerkit.runtimes.cuda.simulated.byte_store import BadAccess, ByteStore
from lowerkit.runtimes.cuda.simulated.faults import KernelFault
from lowerkit.runtimes.cuda.simulated.scalar_types import Array

GLOBAL_BASE = 0x7000_0000_0000
_LAUNCH_BASE = 0x7800_0000_0000
_ALIGNMENT = 256
_GAP = 4096  # bytes between allocations at least: what runs over its end meets nothing
_REMEMBERED = 4096  # freed allocations


@dataclass(frozen=True)
class Allocation:
    """``size`` bytes at address ``base``; ``name`` is what messages call it.

    Attributes:
        store: where the bytes are.
        origin: the address of the first byte of ``store``: ``base``, but where a part of it is shown.
        is_variable: whether it belongs to a module.
    """

    base: int
    size: int
    store: ByteStore
    name: str
    writable: bool
    origin: int
    is_variable: bool = False

    @property
    def end(self) -> int:
        """The address behind the last byte."""
        return self.base + self.size


class DeviceMemory:
    """All allocations.

    Attributes:
        track_written: whether a read of bytes that nothing has written is a fault.
    """

    def __init__(self, capacity: int, track_written: bool) -> None:
        self.track_written = track_written
        self._capacity = capacity
        self._free = capacity
        self._top = GLOBAL_BASE
        self._bases: list[int] = []
        self._allocations: list[Allocation] = []
        self._freed: deque[tuple[int, int, str]] = deque(maxlen=_REMEMBERED)
        self._count = 0

    @property
    def allocations(self) -> Sequence[Allocation]:
        """All live allocations."""
        return self._allocations

    def allocate(
        self,
        size: int,
        name: str = "",
        *,
        writable: bool = True,
        alignment: int = _ALIGNMENT,
        is_variable: bool = False,
    ) -> Allocation:
        """Returns a new allocation.

        Raises:
            ResourceError: LK7002, the capacity does not suffice.
        """
        if size > self._free:
            raise ResourceError(
                "LK7002",
                f"the simulated device has {self._capacity} bytes, {self._free} are free, {size} were asked for",
            )
        self._count += 1
        alignment = max(alignment, _ALIGNMENT)
        base = -(-self._top // alignment) * alignment
        self._top = base + size + _GAP
        self._free -= size
        store = ByteStore(size, self.track_written)
        allocation = Allocation(base, size, store, name or f"allocation {self._count}", writable, base, is_variable)
        self._bases.append(base)
        self._allocations.append(allocation)
        return allocation

    def showing(self, buffers: Sequence[LaunchBuffer]) -> tuple[DeviceMemory, list[int]]:
        """Returns the memory of one launch, which holds nothing but ``buffers`` and the variables of modules.

        Each buffer lies far from the others there, at another address than here, aligned alike: what runs over its end
        meets nothing, whatever lies behind it in the allocation that it is a part of.

        Returns:
            The memory, and the address of each buffer in it.

        Raises:
            KernelFault: LK8017, a buffer does not lie in one allocation.
        """
        shown = DeviceMemory(self._capacity, self.track_written)
        shown._allocations = [each for each in self._allocations if each.is_variable]
        shown._top = _LAUNCH_BASE
        addresses: list[int] = []
        for buffer in buffers:
            store, start = self.span(buffer.address, buffer.size)
            base = -(-shown._top // _ALIGNMENT) * _ALIGNMENT + buffer.address % _ALIGNMENT
            store = store.without(start, buffer.stale)
            shown._allocations.append(Allocation(base, buffer.size, store, buffer.name, buffer.writable, base - start))
            shown._top = base + buffer.size + _GAP
            addresses.append(base)
        shown._bases = [each.base for each in shown._allocations]
        return shown, addresses

    def free(self, address: int) -> None:
        """Ends the allocation at ``address``.

        Raises:
            KernelFault: LK8017, none begins there.
        """
        allocation = self.find(address)
        if allocation is None or allocation.base != address:
            raise KernelFault(f"free of 0x{address:x}, where no allocation begins: {self.describe(address)}")
        at = bisect_right(self._bases, address) - 1
        del self._bases[at], self._allocations[at]
        self._free += allocation.size
        self._freed.append((allocation.base, allocation.end, allocation.name))

    def find(self, address: int) -> Allocation | None:
        """Returns the last allocation that begins at or before ``address``."""
        at = bisect_right(self._bases, address) - 1
        return self._allocations[at] if at >= 0 else None

    def holder(self, addresses: Array, width: int) -> Allocation | None:
        """Returns the allocation that all accesses lie in, if there is one and they are aligned; None otherwise.

        Args:
            addresses: int64, not empty.
            width: bytes of one access, a power of two.
        """
        if int(np.bitwise_or.reduce(addresses, None)) & (width - 1):
            return None
        allocation = self.find(int(addresses.min()))
        return allocation if allocation is not None and int(addresses.max()) + width <= allocation.end else None

    def span(self, address: int, size: int) -> tuple[ByteStore, int]:
        """Returns the bytes around ``address`` and the offset in there, for ``size`` bytes that the host asks for.

        Raises:
            KernelFault: LK8017, they do not lie in one allocation.
        """
        if size == 0:
            return ByteStore(0, False), 0
        allocation = self.find(address)
        if size < 0 or allocation is None or address + size > allocation.end:
            of_device = GLOBAL_BASE <= address < self._top  # the host's heap lies below, what it maps above
            raise KernelFault(
                f"the host asks for {size} bytes at 0x{address:x}: {self.describe(address + max(size, 0) - 1)}",
                hint=None if of_device else "a host address is not a device address",
            )
        return allocation.store, address - allocation.origin

    def pieces(self, addresses: Array, width: int, write: bool) -> Iterator[tuple[ByteStore, Array, Array | None]]:
        """Yields for each allocation that is met its bytes, the offsets, and which of ``addresses`` these are.

        Args:
            addresses: int64, not empty.
            width: bytes of one access, a power of two.
            write: whether the accesses write.

        Raises:
            BadAccess: an access is not aligned, outside of the live allocations, or writes what is read-only.
        """
        holder = self.holder(addresses, width)
        if holder is not None:  # nearly always: one instruction, one allocation
            self._check_writable(holder, write, addresses)
            yield holder.store, addresses - holder.origin, None
            return
        check_alignment(addresses, width)
        bases = np.array(self._bases, np.int64)
        ends = np.array([allocation.end for allocation in self._allocations], np.int64)
        owners = np.searchsorted(bases, addresses, side="right") - 1
        bad = owners < 0 if len(bases) else np.ones(addresses.shape, np.bool_)
        if len(bases):
            bad |= addresses > ends[owners] - width
        if bad.any():
            raise BadAccess(self.describe(int(addresses[bad][0])), bad)
        for number in np.unique(owners):
            allocation = self._allocations[number]
            mine = owners == number
            self._check_writable(allocation, write, mine)
            yield allocation.store, addresses[mine] - allocation.origin, mine

    @staticmethod
    def _check_writable(allocation: Allocation, write: bool, which: Array) -> None:
        if write and not allocation.writable:
            bad = which if which.dtype == np.bool_ else np.ones(which.shape, np.bool_)
            raise BadAccess(f"{allocation.name} is read-only", bad)

    def describe(self, address: int) -> str:
        """Returns where ``address`` lies, in words: in which allocation, freed or not, or how far from the nearest."""
        before = self.find(address)
        if before is not None and address < before.end:
            return f"byte {address - before.base} of {_shown(before.name, before.base, before.end)}"
        for base, end, name in reversed(self._freed):
            if base <= address < max(end, base + 1):
                return f"byte {address - base} of {_shown(name, base, end)}, which was freed"
        at = bisect_right(self._bases, address)
        after = self._allocations[at] if at < len(self._allocations) else None
        if before is None and after is None:
            return "outside of every allocation; there is none"
        if before is not None and (after is None or address - before.end < after.base - address):
            distance = address - before.end
            where = "right behind the end" if distance == 0 else f"{distance} bytes behind the end"
            return f"outside of every allocation, {where} of {_shown(before.name, before.base, before.end)}"
        assert after is not None, "one of the two is there"
        distance = after.base - address
        return f"outside of every allocation, {distance} bytes before {_shown(after.name, after.base, after.end)}"


def check_alignment(addresses: Array, width: int) -> None:
    """Checks that all addresses are multiples of ``width``, a power of two.

    Raises:
        BadAccess: one is not.
    """
    if width > 1 and int(np.bitwise_or.reduce(addresses, axis=None)) & (width - 1):
        raise BadAccess(f"not a multiple of {width}", (addresses & (width - 1)) != 0)


def _shown(name: str, base: int, end: int) -> str:
    return f"{name} ({end - base} bytes at 0x{base:x})"
