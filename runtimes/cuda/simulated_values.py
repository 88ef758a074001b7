"""Which value was written last at each byte of the simulated device's memory, as far as a session says.

A kernel that reads bytes of one value over which another one was written since is at fault, whatever the numbers are:
the memory plan gives both the same place while the first is still needed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lowerkit.runtimes.cuda.launch_buffer import LaunchBuffer, LaunchTensorMap, StaleBytes
from lowerkit.runtimes.cuda.simulated.faults import KernelFault
from lowerkit.runtimes.on_device.values import NamedCall, NamedValue


@dataclass(frozen=True)
class _Written:
    """What lies in some bytes, and words for the step that wrote it."""

    value: NamedValue
    step: str


class ValuePlaces:
    """The bytes of a device, cut where what they hold changes."""

    def __init__(self) -> None:
        self._starts: list[int] = [0]
        self._written: list[_Written | None] = [None]

    def launch(
        self,
        arguments: Sequence[LaunchBuffer | LaunchTensorMap | int],
        buffers: Sequence[LaunchBuffer],
        named: NamedCall | None,
    ) -> list[LaunchBuffer | LaunchTensorMap | int]:
        """Returns the arguments of a launch, which know what of them no kernel may read; its results are noted.

        Args:
            arguments: of the launch.
            buffers: among them.
            named: the step that it is a part of, where that is known.
        """
        found = [self._fresh(each) for each in arguments]
        for each in buffers:
            if each.writable and each.value is not None and named is not None:
                self._put(each.address, each.address + each.size, _Written(each.value, named.text))
        return found

    def copy_from(self, address: int, size: int, what: str, named: NamedCall | None) -> None:
        """Holds a copy to what its source is: the first of its values.

        Raises:
            KernelFault: LK8017, another value was written over it.
        """
        value = None if named is None else named.values[0]
        stale = [] if value is None else self._strangers(address, address + size, value)
        if stale:
            raise KernelFault(
                f"{what}{words_of(named)} reads {stale[0].words}",
                hint="the memory plan gives both values one place while the first is still needed",
            )

    def copy_to(self, address: int, size: int, named: NamedCall | None) -> None:
        """Notes what a copy wrote: the second of its values."""
        value = None if named is None else named.values[1]
        if value is not None and named is not None:
            self._put(address, address + size, _Written(value, named.text))

    def forget(self, start: int, end: int) -> None:
        """Says that nothing is known of bytes ``start`` to ``end``."""
        self._put(start, end, None)

    def _strangers(self, start: int, end: int, value: NamedValue) -> list[StaleBytes]:
        """Returns which bytes from ``start`` to ``end`` hold another value, counted from ``start``."""
        found: list[StaleBytes] = []
        place = bisect_right(self._starts, start) - 1
        while place < len(self._starts) and self._starts[place] < end:
            written = self._written[place]
            after = self._starts[place + 1] if place + 1 < len(self._starts) else end
            if written is not None and written.value.number != value.number:
                words = f"{value.text}, over which {written.step} wrote {_own(written)}"
                found.append(StaleBytes(max(self._starts[place], start) - start, min(after, end) - start, words))
            place += 1
        return found

    def _fresh(self, argument: LaunchBuffer | LaunchTensorMap | int) -> LaunchBuffer | LaunchTensorMap | int:
        if isinstance(argument, LaunchTensorMap):
            buffer = self._fresh(argument.buffer)
            assert isinstance(buffer, LaunchBuffer), "a buffer again"
            return replace(argument, buffer=buffer)
        if isinstance(argument, int) or argument.value is None:
            return argument
        stale = self._strangers(argument.address, argument.address + argument.size, argument.value)
        return replace(argument, stale=tuple(stale)) if stale else argument

    def _put(self, start: int, end: int, written: _Written | None) -> None:
        if start >= end:
            return
        for at in (start, end):
            place = bisect_right(self._starts, at) - 1
            if self._starts[place] != at:
                self._starts.insert(place + 1, at)
                self._written.insert(place + 1, self._written[place])
        first, last = bisect_left(self._starts, start), bisect_left(self._starts, end)
        self._starts[first:last] = [start]
        self._written[first:last] = [written]


def _own(written: _Written) -> str:
    return "its own" if written.value.text.endswith(written.step) else written.value.text


def words_of(named: NamedCall | None) -> str:
    """Returns words for the step that a piece of work is a part of, to stand behind it; none where none is known."""
    return "" if named is None else f" of {named.text}"
