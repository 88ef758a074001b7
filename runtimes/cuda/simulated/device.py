"""The door: a device with memory, modules and launches, all in software."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lowerkit.runtimes.cuda.launch_buffer import LaunchBuffer, LaunchTensorMap
from lowerkit.runtimes.cuda.simulated.arithmetic import Arithmetic, TensorCores
from lowerkit.runtimes.cuda.simulated.async_proxy.tensor_map import encoded
from lowerkit.runtimes.cuda.simulated.batch import Geometry
from lowerkit.runtimes.cuda.simulated.device_memory import Allocation, DeviceMemory
from lowerkit.runtimes.cuda.simulated.faults import UnknownPtx
from lowerkit.runtimes.cuda.simulated.kernel import Kernel
from lowerkit.runtimes.cuda.simulated.launch import Argument, LaunchStatistics, run_launch
from lowerkit.runtimes.cuda.simulated.scalar_types import Array
from lowerkit.runtimes.cuda.simulated.tensor_core.rules import Generation
from lowerkit.runtimes.cuda.simulated.text.parser import parse_module
from lowerkit.runtimes.cuda.simulated.text.tokens import shown


@dataclass(frozen=True)
class Module:
    """A loaded module.

    Attributes:
        kernels: by name.
        variables: the address of each variable in global or constant memory.
    """

    kernels: Mapping[str, Kernel]
    variables: Mapping[str, int]


class SimulatedGpu:
    """One device. A fault leaves it usable; what the launch had written until then stays written.

    Memory that nothing has written holds 0xFF in every byte: NaN as a float, -1 as an integer.
    """

    def __init__(
        self,
        *,
        capacity: int = 1 << 33,
        refuse_unwritten: bool = False,
        instruction_limit: int = 100_000_000,
        generation: Generation | None = None,
        tensor_cores: TensorCores = "card",
        approximate: int | None = None,
        check_races: bool = False,
        record_coverage: bool = False,
    ) -> None:
        """Makes a device.

        Args:
            capacity: bytes of global memory; they are taken from the host when they are allocated.
            refuse_unwritten: whether a kernel that reads bytes that nothing has written ends with LK8017.
            instruction_limit: how many instructions the blocks that run together may issue: a launch that does not end
                is ended.
            generation: whose tensor cores these are; None: of the generation that the ``.target`` of a module names.
            tensor_cores: ``card`` for its arithmetic, ``float64`` for sums that are rounded once.
            approximate: None for the nearest value where an instruction approximates; a seed for others that its
                documented error allows, the same ones for the same operands.
            check_races: whether a launch ends with LK8017 where nothing orders two accesses to one place, one of them a
                write.
            record_coverage: whether kernels take note of which instructions ran; see :meth:`Kernel.unexecuted`.
        """
        self._memory = DeviceMemory(capacity, refuse_unwritten)
        self._limit = instruction_limit
        self._arithmetic = Arithmetic(generation, tensor_cores, approximate)
        self._check_races = check_races
        self._record_coverage = record_coverage

    def allocate(self, nbytes: int, name: str = "") -> int:
        """Returns the address of new memory, a multiple of 256; ``name`` is what messages call it.

        Raises:
            ResourceError: LK7002, the capacity does not suffice.
        """
        assert nbytes >= 0, "a size"
        return self._memory.allocate(nbytes, name).base

    def free(self, address: int) -> None:
        """Ends an allocation; its address is never given out again.

        Raises:
            KernelFault: LK8017, none begins at ``address``.
        """
        self._memory.free(address)

    def write(self, address: int, data: bytes | Array) -> None:
        """Copies the bytes of ``data`` to ``address``; an array in the order of its elements.

        Raises:
            KernelFault: LK8017, they do not fit into the allocation.
        """
        values = np.frombuffer(data if isinstance(data, bytes) else data.tobytes(), np.uint8)
        store, start = self._memory.span(address, values.size)
        store.data[start : start + values.size] = values
        store.mark_written(start, values.size)

    def read(self, address: int, nbytes: int) -> Array:
        """Returns a copy of ``nbytes`` bytes, uint8.

        Raises:
            KernelFault: LK8017, they do not lie in one allocation.
        """
        store, start = self._memory.span(address, nbytes)
        return store.data[start : start + nbytes].copy()

    def forget(self, address: int, nbytes: int) -> None:
        """Makes bytes what memory is that nothing has written.

        Raises:
            KernelFault: LK8017, they do not lie in one allocation.
        """
        store, start = self._memory.span(address, nbytes)
        store.forget(start, nbytes)

    def allocation(self, address: int) -> Allocation | None:
        """Returns the allocation that a byte lies in, None if it lies in none."""
        found = self._memory.find(address)
        return found if found is not None and address < found.end else None

    def load(self, ptx: str) -> Module:
        """Parses and decodes a module, and puts its variables into memory.

        Raises:
            UnknownPtx: LK8018, something in it is not known.
            ResourceError: LK7002, its variables do not fit.
        """
        text = parse_module(ptx)
        variables: dict[str, int] = {}
        try:
            for variable in text.variables:
                if variable.space == "shared":
                    continue
                if variable.name in variables:
                    raise UnknownPtx(f"variable {shown(variable.name)} is there twice", variable.line)
                allocation = self._memory.allocate(
                    variable.size,
                    variable.name,
                    writable=variable.space != "const",
                    alignment=variable.alignment,
                    is_variable=True,
                )
                variables[variable.name] = allocation.base
                data = (variable.data or b"").ljust(variable.size, b"\0")  # as C does, what has no value is zero
                self.write(allocation.base, data)
            kernels = {name: Kernel(text, kernel, variables) for name, kernel in text.kernels.items()}
        except BaseException:
            for address in variables.values():
                self.free(address)
            raise
        return Module(kernels, variables)

    def unload(self, module: Module) -> None:
        """Frees the variables of a module; its kernels must not be launched afterwards.

        Raises:
            KernelFault: LK8017, it was unloaded before.
        """
        for address in module.variables.values():
            self.free(address)

    def launch(
        self,
        kernel: Kernel,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[Argument | LaunchBuffer | LaunchTensorMap],
        shared_bytes: int = 0,
        *,
        early: bool = False,
    ) -> LaunchStatistics:
        """Runs a kernel to its end.

        Args:
            kernel: of a module that this device has loaded.
            grid: blocks in x, y, z; what is left out is 1.
            block: threads in x, y, z.
            arguments: one for each parameter: an int (an address, or a number of the parameter's size, signed or not),
                a float for a float parameter, bytes for an array; a buffer, or the tensor map of one. With one of these
                at least, buffers are all that the kernel may touch, at addresses of this launch alone.
            shared_bytes: dynamic shared memory of a block.
            early: whether it may start before the launch in front of it has ended; each of its threads must wait for
                that by griddepcontrol.wait before it touches global memory.

        Raises:
            KernelFault: LK8017, sizes or arguments do not fit the kernel, or a thread does what it must not.
        """
        geometry = Geometry(_three(grid), _three(block))
        memory = self._memory
        buffers = [
            each.buffer if isinstance(each, LaunchTensorMap) else each
            for each in arguments
            if isinstance(each, LaunchBuffer | LaunchTensorMap)
        ]
        plain: list[Argument] = []
        if buffers:
            memory, addresses = memory.showing(buffers)
            places = iter(addresses)
        else:
            places = iter(())
        for each in arguments:
            if isinstance(each, LaunchTensorMap):
                plain.append(encoded(each, next(places)))
            else:
                plain.append(next(places) if isinstance(each, LaunchBuffer) else each)
        return run_launch(
            kernel,
            memory,
            geometry,
            plain,
            shared_bytes,
            self._limit,
            self._arithmetic,
            check_races=self._check_races,
            record_coverage=self._record_coverage,
            early=early,
        )


def _three(sizes: Sequence[int]) -> tuple[int, int, int]:
    assert 0 < len(sizes) <= 3, "sizes in x, y, z"
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z
