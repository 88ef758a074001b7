"""What runs the steps that are not the host's code: the run side of a target, which needs numpy only.

Vocabulary
    device     a memory and the queues that work on it; one artifact may name several
    address    an integer that the device understands, as :meth:`Device.allocate` gave it, plus an offset in bytes
    program    what a device made of the code that its target compiled
    queue      work in order; number 0 is always there

A package adds a device by the entry point group ``lowerkit.devices``: ``acme_npu = "acme_npu.device:AcmeNpu"``, a class
whose instances are made with the level that the artifact was compiled for (``""`` where none was named). Every method
may raise whatever it likes: a run ends with RuntimeFault LK8016, which names the step, the op, the line and the device.
"""

from __future__ import annotations

import difflib
import sys
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from lowerkit.errors import LowerkitError, RuntimeFault, UsageError
from lowerkit.runtimes.supervised.record import foreign_call

Bytes = npt.NDArray[np.uint8]
GROUP = "lowerkit.devices"


class Device(ABC):
    """One device. Not thread-safe: its session holds a lock while it runs.

    Attributes:
        numbered: whether a machine may have several: ``acme_npu:1`` is the second one, whose class is made with the
            level and that number.
        captures: whether launches can be captured as a graph: the four methods around :meth:`begin_capture` are there.
        captures_copies: whether a capture keeps copies by :meth:`copy`, too.
        epoch: counts how often memory of the device's own, which graphs hold addresses of, has moved.
    """

    numbered: ClassVar[bool] = False
    captures: ClassVar[bool] = False
    captures_copies: ClassVar[bool] = False
    epoch: int = 0

    def __init__(self, level: str = "") -> None:
        self.level = level

    @abstractmethod
    def allocate(self, size: int) -> int:
        """Returns the address of ``size`` bytes (1 or more), aligned to 256.

        Raises:
            MemoryError: there are not that many.
        """

    @abstractmethod
    def free(self, address: int) -> None:
        """Gives back what :meth:`allocate` gave."""

    @abstractmethod
    def copy_in(self, address: int, data: Bytes, queue: int) -> None:
        """Copies bytes of the host to the device, in the order of ``queue``; ``data`` may change afterwards."""

    @abstractmethod
    def copy_out(self, data: Bytes, address: int, queue: int) -> None:
        """Copies bytes of the device into ``data``, after all that was put into ``queue``; they are there on return."""

    def copy(self, target: int, source: int, size: int, queue: int) -> None:
        """Copies bytes within the device's memory, in the order of ``queue``; the two do not overlap.

        It goes through the host unless a device has a way of its own.
        """
        data = np.empty(size, np.uint8)
        self.copy_out(data, source, queue)
        self.copy_in(target, data, queue)

    @abstractmethod
    def load(self, code: Bytes) -> Any:
        """Returns the program of ``code``, the bytes that the target compiled."""

    @abstractmethod
    def launch(self, program: Any, addresses: Sequence[int], dims: Sequence[int], queue: int) -> None:
        """Puts one call of ``program`` into ``queue``.

        Args:
            program: what :meth:`load` returned.
            addresses: of the operands, then of the results; a result that changes an operand in place may have its
                address.
            dims: the extents that the code does not know, in the order of operands and results, then the indices that
                the function takes.
            queue: where to.
        """

    def record(self, queue: int) -> Any:
        """Returns an event that is over when everything put into ``queue`` so far is done."""
        self.synchronize(queue)
        return None

    def wait(self, event: Any, queue: int) -> None:  # noqa: B027
        """Lets what is put into ``queue`` from now on start after ``event``."""

    def synchronize(self, queue: int) -> None:  # noqa: B027
        """Returns when everything in ``queue`` is done."""

    def begin_capture(self, queue: int) -> None:
        """Begins to keep launches that are put into ``queue`` instead of making them; copies likewise."""
        raise NotImplementedError

    def end_capture(self, queue: int) -> Any:
        """Returns a graph of what was kept since :meth:`begin_capture`, with its addresses."""
        raise NotImplementedError

    def launch_graph(self, graph: Any, queue: int) -> None:
        """Puts all launches of a graph into ``queue``."""
        raise NotImplementedError

    def destroy_graph(self, graph: Any) -> None:
        """Gives a graph back, when its launches are done."""
        raise NotImplementedError

    def error_text(self, error: BaseException) -> str:
        """Returns what went wrong, in words for the user."""
        return f"{type(error).__name__}: {error}".removesuffix(": ")

    def close(self) -> None:  # noqa: B027
        """Gives everything back."""


class HostMemoryDevice(Device):
    """A device whose memory is the host's and whose queues are empty on return: simulators, and units on the same bus.

    A subclass adds :meth:`load` and :meth:`launch`; :meth:`array` gives it tensors where they lie.
    """

    def __init__(self, level: str = "") -> None:
        super().__init__(level)
        self._allocations: dict[int, Bytes] = {}
        self._starts: list[int] = []

    def allocate(self, size: int) -> int:
        """See :meth:`Device.allocate`."""
        whole = np.zeros(size + 256, np.uint8)
        start = -whole.ctypes.data % 256
        memory = whole[start : start + size]
        self._allocations[memory.ctypes.data] = memory
        self._starts = sorted(self._allocations)
        return memory.ctypes.data

    def free(self, address: int) -> None:
        """See :meth:`Device.free`."""
        del self._allocations[address]
        self._starts = sorted(self._allocations)

    def copy_in(self, address: int, data: Bytes, queue: int) -> None:
        """See :meth:`Device.copy_in`."""
        self.array(address, data.shape, np.uint8)[...] = data

    def copy_out(self, data: Bytes, address: int, queue: int) -> None:
        """See :meth:`Device.copy_out`."""
        data[...] = self.array(address, data.shape, np.uint8)

    def copy(self, target: int, source: int, size: int, queue: int) -> None:
        """See :meth:`Device.copy`."""
        self.array(target, (size,), np.uint8)[...] = self.array(source, (size,), np.uint8)

    def array(self, address: int, shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Returns the tensor of ``shape`` and ``dtype`` at ``address``, not copied.

        Raises:
            IndexError: it does not lie in memory that was allocated and not given back.
        """
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        place = bisect_right(self._starts, address) - 1
        start = self._starts[place] if place >= 0 else 0
        memory = self._allocations.get(start)
        if memory is None or address + size > start + memory.size:
            raise IndexError(f"{size} bytes at {address:#x} lie in no allocation of the device")
        return memory[address - start : address - start + size].view(dtype).reshape(tuple(shape))


def known_devices() -> dict[str, EntryPoint]:
    """Returns the entry points of the devices that packages here bring, by name."""
    return {point.name: point for point in entry_points_of(GROUP)}


def entry_points_of(group: str) -> tuple[EntryPoint, ...]:
    """Returns the entry points of a group; the folders of packages are read once for each path of imports."""
    return _read_entry_points(group, tuple(sys.path))


@cache
def _read_entry_points(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=group))


def open_device(name: str, level: str) -> Device:
    """Makes the device ``name``, of which ``name:1`` is the second one of this machine.

    Raises:
        RuntimeFault: LK8005, no package here brings it, or several do; LK8016, it cannot be imported or made, or is no
            device.
        UsageError: LK1009, there is one device of that name alone.
    """
    points = known_devices()
    name, number = numbered_name(name)
    if name not in points:
        raise RuntimeFault(
            "LK8005",
            f"the artifact runs on the device {name!r}, which no package here brings",
            hint=f"install the package that brings it (entry point group {GROUP}); {_there_are(name, points)}",
        )
    rivals = packages_of(GROUP, name)
    if len(rivals) > 1:
        raise RuntimeFault(
            "LK8005",
            f"{len(rivals)} packages bring a device {name!r}: {' and '.join(rivals)}",
            hint="uninstall all but one of them",
        )
    point = points[name]
    try:
        with foreign_call("device", name, "making it"):
            made = point.load()
            if number and not getattr(made, "numbered", False):
                raise UsageError(
                    "LK1009", f"{name}:{number}: devices of that name have no numbers", hint=f"write {name}"
                )
            device = made(level, number) if number else made(level)
    except LowerkitError:
        raise
    except (Exception, SystemExit) as error:
        raise failed_device(name, f"it cannot be made: {type(error).__name__}: {error}") from error
    if not isinstance(device, Device):
        raise failed_device(name, f"it gave {type(device).__name__}, which is no lowerkit.runtimes.device.Device")
    return device


def numbered_name(text: str) -> tuple[str, int]:
    """Returns the name and the number that ``cuda:1`` is; 0 where there is none."""
    name, colon, number = text.rpartition(":")
    return (name, int(number)) if colon and number.isdecimal() else (text, 0)


def packages_of(group: str, name: str) -> list[str]:
    """Returns the packages that bring an entry point, each with its version, in order of their names."""
    dists = [point.dist for point in entry_points_of(group) if point.name == name and point.dist is not None]
    return sorted(f"{dist.name} {dist.version}" for dist in dists)


def stand_ins(device: str | None, names: Sequence[str]) -> dict[str, str]:
    """Returns which device takes the place of which.

    Args:
        device: ``DEVICE`` for an artifact of one device, else ``NAME=DEVICE``, separated by commas; None for none.
        names: of the devices that the artifact was compiled for.

    Raises:
        UsageError: LK1009, the artifact has no such device, or there is none to take its place.
    """
    points = known_devices()
    found: dict[str, str] = {}
    for part in device.split(",") if device is not None else ():
        old, equals, new = part.partition("=")
        old, new = (old.strip(), new.strip()) if equals else (names[0] if len(names) == 1 else "", old.strip())
        if numbered_name(new)[0] not in points:
            raise UsageError("LK1009", f"there is no device {new!r}", hint=_there_are(new, points))
        if old not in names:
            has = (
                f"the artifact was compiled for {' and '.join(names)}"
                if names
                else "the artifact runs on the CPU only; compile the model with --target to run it elsewhere"
            )
            raise UsageError(
                "LK1009",
                f"--device {part}: the artifact has no code for a device that {new!r} could stand for"
                if not old
                else f"--device {part}: the artifact was not compiled for a device called {old!r}",
                hint=f"{has}; write NAME=DEVICE" if len(names) > 1 else has,
            )
        found[old] = new
    return found


def _there_are(name: str, points: Mapping[str, EntryPoint]) -> str:
    near = difflib.get_close_matches(name, points, 1)
    guess = f"did you mean {near[0]!r}? " if near else ""
    return f"{guess}the known devices are: {', '.join(sorted(points)) or 'none'}"


def package_of(name: str) -> str:
    """Returns the package that brings a device, for messages; ``""`` where that is unknown."""
    point = known_devices().get(numbered_name(name)[0])
    return f" (package {point.dist.name} {point.dist.version})" if point is not None and point.dist is not None else ""


def failed_device(name: str, reason: str) -> RuntimeFault:
    """Returns LK8016: the package that brings the device ``name`` is at fault."""
    return RuntimeFault(
        "LK8016",
        f"the device {name!r}{package_of(name)} failed: {reason}",
        hint="the fault is in that package: report it there",
    )
