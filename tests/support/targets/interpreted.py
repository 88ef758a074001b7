"""A target that takes whatever ops it is told, and a device that runs their IR with the interpreter of the dialect.

Its memory has addresses of its own, so that nothing of it can be read without a copy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from lowerkit.dialect.context import parse_module
from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.mlir import ir
from lowerkit.passes.base import Pass
from lowerkit.program.dtypes import NUMPY_DTYPES
from lowerkit.runtimes.device import Bytes, Device
from lowerkit.targets.capabilities import Capabilities
from lowerkit.targets.cpu.passes import host_passes
from lowerkit.targets.op_view import OpView
from lowerkit.targets.plan import DeviceCode, Refusal
from lowerkit.targets.region_view import RegionView
from lowerkit.targets.target import Accept, Target


def target_that(
    name: str, takes: Callable[[OpView], bool], by: Literal["function", "region"] = "function"
) -> type[Target]:
    """Returns the class of a target that takes the ops for which ``takes`` holds, by functions or by regions."""
    given = name

    class Interpreted(Target):
        name: ClassVar[str] = given
        unit: ClassVar[Literal["function", "region"]] = by

        def passes(self, stage: str) -> Sequence[Pass]:
            return host_passes(stage)

        def capabilities(self, level: str) -> Capabilities:
            return Capabilities(open_extents=True)

        def accepts(self, op: OpView) -> Accept | Refusal:
            return Accept() if takes(op) else Refusal(f"{given} does not want {op.name}")

        def compile(self, function: RegionView) -> DeviceCode | Refusal:
            return DeviceCode(given, function.text, note="interpreted")

    return Interpreted


@dataclass
class Behaviour:
    """How a device behaves: ``before`` each launch something may raise; ``change`` may spoil the results of a function.

    ``launches`` counts them.
    """

    before: Callable[[int], None] = lambda _launches: None
    change: Callable[[str, list[Any]], list[Any]] = lambda _program, results: results
    launches: int = 0


_one_at_a_time = threading.Lock()
"""Simulated ranks are threads, and a dialect is loaded by one thread at a time."""


class InterpretedDevice(Device):
    """Runs functions as text."""

    behaviour: ClassVar[Behaviour] = Behaviour()

    def __init__(self, level: str = "") -> None:
        super().__init__(level)
        self._next = 1 << 40
        self._memory: dict[int, Bytes] = {}

    def allocate(self, size: int) -> int:
        address = self._next
        self._next += -(-size // 256) * 256 + 4096
        self._memory[address] = np.zeros(size, np.uint8)
        return address

    def free(self, address: int) -> None:
        del self._memory[address]

    def copy_in(self, address: int, data: Bytes, queue: int) -> None:
        self._bytes(address, data.size)[...] = data

    def copy_out(self, data: Bytes, address: int, queue: int) -> None:
        data[...] = self._bytes(address, data.size)

    def load(self, code: Bytes) -> Any:
        return code.tobytes().decode()

    def launch(self, program: Any, addresses: Sequence[int], dims: Sequence[int], queue: int) -> None:
        with _one_at_a_time:
            self._launch(program, addresses, dims)

    def _launch(self, program: Any, addresses: Sequence[int], dims: Sequence[int]) -> None:
        self.behaviour.launches += 1
        self.behaviour.before(self.behaviour.launches)
        module = parse_module(program)
        block = module.body.operations[0].regions[0].blocks[0]
        returned = list(list(block.operations)[-1].operands)
        types = [value.type for value in block.arguments if isinstance(value.type, ir.RankedTensorType)]
        open_dims = iter(dims)
        arrays = [
            self._tensor(address, ir.RankedTensorType(kind), open_dims)
            for address, kind in zip(addresses, [*types, *(value.type for value in returned)], strict=True)
        ]
        given = iter(arrays)
        inputs = [
            next(given) if isinstance(value.type, ir.RankedTensorType) else np.asarray(next(open_dims))
            for value in block.arguments
        ]
        assert next(open_dims, None) is None, "every dim is an extent or an index"
        found = interpret(module, inputs)
        found = self.behaviour.change(program, found)
        for target, value in zip(arrays[len(types) :], found, strict=True):
            target[...] = value.astype(target.dtype).reshape(target.shape)

    def _tensor(self, address: int, kind: ir.RankedTensorType, dims: Any) -> Any:
        shape = [next(dims) if kind.is_dynamic_dim(axis) else kind.get_dim_size(axis) for axis in range(kind.rank)]
        dtype = np.dtype(NUMPY_DTYPES[str(kind.element_type)])
        return self._bytes(address, int(np.prod(shape)) * dtype.itemsize).view(dtype).reshape(shape)

    def _bytes(self, address: int, size: int) -> Bytes:
        for start, memory in self._memory.items():
            if start <= address and address + size <= start + memory.size:
                return memory[address - start : address - start + size]
        raise IndexError(f"{size} bytes at {address:#x} are not allocated")
