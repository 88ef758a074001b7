"""The steps of a session that devices run: launches, and copies between memories.

The native executor makes a call (``step_table.h``) with a number; the number names an action here. What a device raises
is kept until the run is over, since nothing may be raised through the executor.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from lowerkit.runtimes.artifact_reader import Artifact
from lowerkit.runtimes.device import Bytes, open_device, stand_ins
from lowerkit.runtimes.manifest import HOST, KernelEntry, ProgramSpec, Step
from lowerkit.runtimes.mapping.mapped_weights import MappedWeights
from lowerkit.runtimes.on_device.memory import DeviceFailure, DeviceMemory, raise_failure
from lowerkit.runtimes.on_device.values import FollowsValues, NamedCall, named_call

_CALL = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_uint64, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int64)
)
_DONE, _FAILED = 0, 1


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
        self, artifact: Artifact, program: ProgramSpec, weights: MappedWeights, device: str | None = None
    ) -> None:
        """Opens the devices that ``program`` of an artifact names, and copies to each the weights that its steps read.

        Args:
            artifact: what runs on them.
            program: of the artifact.
            weights: of the program.
            device: which ones take their places, see :func:`~lowerkit.runtimes.device.stand_ins`.

        Raises:
            UsageError: LK1009, ``device`` names none, or the program has none whose place it could take.
            RuntimeFault: LK8005, LK8016, as for :func:`~lowerkit.runtimes.device.open_device`.
            ResourceError: LK7002, a device has not the memory.
        """
        others = stand_ins(device, [spec.name for spec in program.devices])
        self.memories = {
            spec.name: DeviceMemory(
                others.get(spec.name, spec.name), open_device(others.get(spec.name, spec.name), spec.level)
            )
            for spec in program.devices
        }
        for name, memory in self.memories.items():
            here = [buffer for buffer in program.buffers if buffer.weight and buffer.memory == name]
            keys = sorted({(buffer.weight, buffer.shard) for buffer in here})
            memory.store({key: weights.part(key) for key in keys})
        self._artifact, self._program = artifact, program
        self._programs: dict[int, Any] = {}
        self._actions: list[_Action] = []
        self._contexts: dict[tuple[object, ...], int] = {}
        self._failure: BaseException | None = None
        self._function = _CALL(self._enter)
        self.address = ctypes.cast(self._function, ctypes.c_void_p).value or 0

    def launch(self, number: int, kernel: KernelEntry, buffers: int, dims: int, step: int) -> int:
        """Returns the context of a call that launches kernel ``number`` with so many buffers and dims, at a step.

        Raises:
            RuntimeFault: LK8016, the device does not take the code.
        """
        memory = self.memories[kernel.device]
        if number not in self._programs:
            entry = self._artifact.entry_bytes(self._program.code[kernel.device])
            code = entry[kernel.offset : kernel.offset + kernel.size]
            try:
                self._programs[number] = memory.ask(memory.device.load, code)
            except DeviceFailure as failure:
                raise_failure(failure)
        program = self._programs[number]

        def run(addresses: list[int], extents: list[int]) -> None:
            memory.sequences.launch(number, program, addresses, extents, named)

        named = self._named(step, kernel.device)
        at = -1 if named is None else step
        return self._context(("launch", number, buffers, dims, at), _Action(run, buffers, dims))

    def copy(self, source: str, target: str, size: int, step: int) -> int:
        """Returns the context of a call that copies ``size`` bytes from one memory to another, at a step."""
        named = self._named(step, source, target)

        def run(addresses: list[int], _dims: list[int]) -> None:
            if not size:
                return
            if source == HOST:
                self.memories[target].write(addresses[1], host_bytes(addresses[0], size), named)
            elif target == HOST:
                self.memories[source].read(host_bytes(addresses[1], size), addresses[0], named)
            elif source == target:
                self.memories[source].sequences.copy(addresses[1], addresses[0], size, named)
            else:
                data = np.empty(size, np.uint8)
                self.memories[source].read(data, addresses[0], named)
                self.memories[target].write(addresses[1], data, named)

        at = -1 if named is None else step
        return self._context(("copy", source, target, size, at), _Action(run, 2, 0))

    def _named(self, step: int, *memories: str) -> NamedCall | None:
        """Returns what a step is, where a device among ``memories`` follows values."""
        devices = (self.memories[name].device for name in memories if name != HOST)
        return named_call(self._program, step) if any(isinstance(each, FollowsValues) for each in devices) else None

    def finish(self) -> None:
        """Makes what is left of a run.

        Raises:
            RuntimeFault: LK8016, a device failed.
        """
        try:
            for memory in self.memories.values():
                memory.sequences.flush()
        except DeviceFailure as failure:
            raise_failure(failure)

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
        if isinstance(failure, DeviceFailure):
            raise_failure(failure, step)
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
