"""The steps of a session that devices run: launches, and copies between memories.

The native executor makes a call (``step_table.h``) with a number; the number names an action here. What a device raises
is kept until the run is over, since nothing may be raised through the executor.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from lowerkit.errors import ResourceError, RuntimeFault
from lowerkit.runtimes.artifact_reader import Artifact, WeightPlace, own_part
from lowerkit.runtimes.device import Bytes, Device, open_device, package_of, stand_ins
from lowerkit.runtimes.launch_sequences import LaunchSequences
from lowerkit.runtimes.manifest import HOST, WEIGHTS_ENTRY, KernelEntry, ProgramSpec, Step
from lowerkit.runtimes.supervised.record import foreign_call

_CALL = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_uint64, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int64)
)
_DONE, _FAILED = 0, 1
_QUEUE = 0
_ALIGNMENT = 256


class _DeviceFailure(Exception):
    """What a device raised, with its name."""

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
        self.sequences = LaunchSequences(self.device, self.ask, _QUEUE)

    def ask(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a method of the device, whose errors bear its name then."""
        try:
            with foreign_call("device", self.name, method.__name__):
                return method(*arguments)
        except (Exception, SystemExit) as error:
            raise _DeviceFailure(self.name, error, _words(self.device, error)) from error

    def _allocate(self, size: int) -> int:
        address: Any = self.ask(self.device.allocate, size)
        if not isinstance(address, int) or address % _ALIGNMENT or not 0 <= address < 1 << 64:
            words = f"allocate returned {address!r}, which is no address at a multiple of {_ALIGNMENT}"
            raise _DeviceFailure(self.name, TypeError(words), words)
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
            self.arena, self.arena_size = self._allocate(size), size
        except _DeviceFailure as failure:
            _raise(failure, None)

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
            self.weights = self._allocate(end) if end else 0
            for name, data in weights.items():
                if data.size:
                    self.ask(self.device.copy_in, self.weights + offsets[name], data, _QUEUE)
            self.ask(self.device.synchronize, _QUEUE)
        except _DeviceFailure as failure:
            _raise(failure, None)


@dataclass(frozen=True)
class _Action:
    """Runs one kind of step, given the addresses of its buffers and its dims."""

    run: Callable[[list[int], list[int]], None]
    buffers: int
    dims: int


class DeviceCalls:
    """The devices of one session, and the calls that its step table makes.

    Attributes:
        memories: by the name of the device.
        address: of the function that the executor calls.
    """

    def __init__(
        self, artifact: Artifact, program: ProgramSpec, ranks: Mapping[str, int], device: str | None = None
    ) -> None:
        """Opens the devices that ``program`` of an artifact names, and copies to each the weights that its steps read.

        Args:
            artifact: what runs on them.
            program: of the artifact.
            ranks: of this process, by axis of the mesh.
            device: which ones take their places, see :func:`~lowerkit.runtimes.device.stand_ins`.

        Raises:
            UsageError: LK1009, ``device`` names none, or the program has none whose place it could take.
            RuntimeFault: LK8005, LK8016, as for :func:`~lowerkit.runtimes.device.open_device`.
            ResourceError: LK7002, a device has not the memory.
        """
        blob = artifact.entry_bytes(WEIGHTS_ENTRY)
        others = stand_ins(device, [spec.name for spec in program.devices])
        self.memories = {
            spec.name: DeviceMemory(
                others.get(spec.name, spec.name), open_device(others.get(spec.name, spec.name), spec.level)
            )
            for spec in program.devices
        }
        for name, memory in self.memories.items():
            here = [buffer for buffer in program.buffers if buffer.weight and buffer.memory == name]
            stored: dict[tuple[str, str], Bytes] = {}
            for weight, shard in sorted({(buffer.weight, buffer.shard) for buffer in here}):
                tensor = artifact.weights[weight]
                part = own_part(WeightPlace(tensor.begin, tensor.end - tensor.begin), shard, program, ranks)
                stored[weight, shard] = blob[part.offset : part.offset + part.size]
            memory.store(stored)
        self._artifact, self._program = artifact, program
        self._programs: dict[int, Any] = {}
        self._actions: list[_Action] = []
        self._contexts: dict[tuple[object, ...], int] = {}
        self._failure: BaseException | None = None
        self._function = _CALL(self._enter)
        self.address = ctypes.cast(self._function, ctypes.c_void_p).value or 0

    def launch(self, number: int, kernel: KernelEntry, buffers: int, dims: int) -> int:
        """Returns the context of a call that launches kernel ``number`` with so many buffers and dims.

        Raises:
            RuntimeFault: LK8016, the device does not take the code.
        """
        memory = self.memories[kernel.device]
        if number not in self._programs:
            entry = self._artifact.entry_bytes(self._program.code[kernel.device])
            code = entry[kernel.offset : kernel.offset + kernel.size]
            try:
                self._programs[number] = memory.ask(memory.device.load, code)
            except _DeviceFailure as failure:
                _raise(failure, None)
        program = self._programs[number]

        def run(addresses: list[int], extents: list[int]) -> None:
            memory.sequences.launch(number, program, addresses, extents)

        return self._context(("launch", number, buffers, dims), _Action(run, buffers, dims))

    def copy(self, source: str, target: str, size: int) -> int:
        """Returns the context of a call that copies ``size`` bytes from one memory to another."""

        def run(addresses: list[int], _dims: list[int]) -> None:
            if size:
                data = np.empty(size, np.uint8)
                if source == HOST:
                    data = host_bytes(addresses[0], size)
                elif target == HOST:
                    data = host_bytes(addresses[1], size)
                if source != HOST:
                    self.read(source, addresses[0], data)
                if target != HOST:
                    memory = self.memories[target]
                    memory.sequences.flush()
                    memory.ask(memory.device.copy_in, addresses[1], data, _QUEUE)

        return self._context(("copy", source, target, size), _Action(run, 2, 0))

    def read(self, name: str, address: int, data: Bytes) -> None:
        """Copies bytes of a device into ``data``, after all that it has to do."""
        memory = self.memories[name]
        memory.sequences.flush()
        memory.ask(memory.device.copy_out, data, address, _QUEUE)

    def finish(self) -> None:
        """Makes what is left of a run.

        Raises:
            RuntimeFault: LK8016, a device failed.
        """
        try:
            for memory in self.memories.values():
                memory.sequences.flush()
        except _DeviceFailure as failure:
            _raise(failure, None)

    def one_by_one(self, *, enabled: bool) -> None:
        """Lets each launch be made by itself, so that its time can be told, or no more."""
        for memory in self.memories.values():
            memory.sequences.flush()
            memory.sequences.enabled = memory.device.captures and not enabled

    def raise_failure(self, step: Step) -> NoReturn:
        """Raises what ended a run at ``step``.

        Raises:
            RuntimeFault: LK8016, a device failed.
            ResourceError: LK7002, a device ran out of memory.
            BaseException: an interruption that came while a device was at work, as it is.
        """
        failure, self._failure = self._failure, None
        for memory in self.memories.values():
            memory.sequences.drop()
        if isinstance(failure, _DeviceFailure):
            _raise(failure, step)
        assert failure is not None, "the executor reports what an action left here"
        raise failure

    def close(self) -> None:
        """Gives the memory of all devices back."""
        for memory in self.memories.values():
            with suppress(Exception):  # the session is gone: nobody is left to be told
                memory.device.close()

    def _context(self, key: tuple[object, ...], action: _Action) -> int:
        if key not in self._contexts:
            self._contexts[key] = len(self._actions)
            self._actions.append(action)
        return self._contexts[key]

    def _enter(self, context: int, buffers: Any, dims: Any) -> int:
        action = self._actions[context]
        try:
            action.run([pointer or 0 for pointer in buffers[: action.buffers]], dims[: action.dims])
        except BaseException as error:  # an interruption too: it is raised again behind the executor
            self._failure = error
            return _FAILED
        return _DONE


def host_bytes(address: int, size: int) -> Bytes:
    """Returns ``size`` bytes of the host's memory, not copied."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


def _words(device: Device, error: BaseException) -> str:
    try:
        words: Any = device.error_text(error)
        return words if isinstance(words, str) else f"{type(error).__name__}: {error}"
    except Exception as other:
        return f"{type(error).__name__}: {error} (and error_text raised {type(other).__name__})"


def _raise(failure: _DeviceFailure, step: Step | None) -> NoReturn:
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
