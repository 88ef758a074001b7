"""What a session holds on one device, and how it asks the device for anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from lowerkit.errors import ResourceError, RuntimeFault
from lowerkit.runtimes.device import Bytes, Device, package_of
from lowerkit.runtimes.launch_sequences import LaunchSequences
from lowerkit.runtimes.manifest import Step
from lowerkit.runtimes.on_device.values import NamedCall, naming
from lowerkit.runtimes.supervised.record import foreign_call

QUEUE = 0
"""Where a session puts all that it asks a device for."""

_ALIGNMENT = 256


class DeviceFailure(Exception):
    """What a device raised, with its name; :func:`raise_failure` makes it an error for users."""

    def __init__(self, device: str, error: BaseException, words: str) -> None:
        super().__init__(words)
        self.device = device
        self.error = error


@dataclass
class DeviceMemory:
    """What a session holds on one device: arena and weights, by address; those by name and shard; known sequences."""

    name: str
    device: Device
    arena: int = 0
    arena_size: int = 0
    weights: int = 0
    weight_offsets: Mapping[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])

    def __post_init__(self) -> None:
        self.sequences = LaunchSequences(self.device, self.ask, QUEUE)

    def ask(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a method of the device, whose errors bear its name then."""
        try:
            with foreign_call("device", self.name, method.__name__):
                return method(*arguments)
        except (Exception, SystemExit) as error:
            raise DeviceFailure(self.name, error, _words(self.device, error)) from error

    def allocate(self, size: int) -> int:
        """Returns the address of ``size`` bytes.

        Raises:
            DeviceFailure: there are not that many, or the device fails.
        """
        address: Any = self.ask(self.device.allocate, size)
        if not isinstance(address, int) or address % _ALIGNMENT or not 0 <= address < 1 << 64:
            words = f"allocate returned {address!r}, which is no address at a multiple of {_ALIGNMENT}"
            raise DeviceFailure(self.name, TypeError(words), words)
        return address

    def reserve(self, size: int) -> None:
        """Makes the arena at least ``size`` bytes; its content is lost where it grows.

        Raises:
            RuntimeFault: LK8016, the device fails.
            ResourceError: LK7002, it has not that much memory.
        """
        if size <= self.arena_size:
            return
        try:
            if self.arena:
                self.sequences.clear()
                self.ask(self.device.free, self.arena)
                self.arena = self.arena_size = 0
            self.arena, self.arena_size = self.allocate(size), size
        except DeviceFailure as failure:
            raise_failure(failure)

    def read(self, data: Bytes, address: int, named: NamedCall | None = None) -> None:
        """Copies bytes of the device into ``data``, after all that it has to do; ``named`` is the step that asks.

        Raises:
            DeviceFailure: the device fails.
        """
        self.sequences.flush()
        with naming(self.device, named):
            self.ask(self.device.copy_out, data, address, QUEUE)

    def write(self, address: int, data: Bytes, named: NamedCall | None = None) -> None:
        """Copies bytes to the device, after all that it has to do; ``named`` is the step that asks.

        Raises:
            DeviceFailure: the device fails.
        """
        self.sequences.flush()
        with naming(self.device, named):
            self.ask(self.device.copy_in, address, data, QUEUE)

    def store(self, weights: Mapping[tuple[str, str], Bytes]) -> None:
        """Copies weights to the device, each at a multiple of 256 bytes.

        Raises:
            RuntimeFault, ResourceError: as :meth:`reserve`.
        """
        offsets: dict[tuple[str, str], int] = {}
        end = 0
        for name, data in weights.items():
            offsets[name] = end
            end += -(-data.size // _ALIGNMENT) * _ALIGNMENT
        self.weight_offsets = offsets
        try:
            self.weights = self.allocate(end) if end else 0
            for name, data in weights.items():
                if data.size:
                    self.ask(self.device.copy_in, self.weights + offsets[name], data, QUEUE)
            self.ask(self.device.synchronize, QUEUE)
        except DeviceFailure as failure:
            raise_failure(failure)


def _words(device: Device, error: BaseException) -> str:
    try:
        words: Any = device.error_text(error)
        return words if isinstance(words, str) else f"{type(error).__name__}: {error}"
    except Exception as other:
        return f"{type(error).__name__}: {error} (and error_text raised {type(other).__name__})"


def raise_failure(failure: DeviceFailure, step: Step | None = None) -> NoReturn:
    """Raises what a device raised, at a step of a run or beside one.

    Raises:
        RuntimeFault: LK8016.
        ResourceError: LK7002, it ran out of memory.
    """
    where = f" in step {step.name!r}" if step is not None and step.name else ""
    text = f"the device {failure.device!r}{package_of(failure.device)} failed{where}: {failure}"
    op = f"{step.kind} ({step.family})" if step is not None else None
    location = (step.location or None) if step is not None else None
    own = getattr(failure.error, "hint", None)
    if isinstance(failure.error, MemoryError):
        raise ResourceError("LK7002", text, op=op, location=location) from failure.error
    hint = "the session can run again" if step is not None else "the fault is in that package: report it there"
    hint = own if isinstance(own, str) else hint
    raise RuntimeFault(
        "LK8016",
        text,
        op=op,
        location=location,
        hint=hint,
    ) from failure.error
