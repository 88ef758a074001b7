"""The step table while it is written: buffers, steps, kernels and stored weights, each by number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from lowerkit.codegen.shapes import Shape
from lowerkit.codegen.step_place import step_place
from lowerkit.codegen.weight_table import WeightTable
from lowerkit.errors import CodegenError, UnsupportedError
from lowerkit.mlir import ir
from lowerkit.runtimes.expressions import Expr, ExpressionError, simplify
from lowerkit.runtimes.manifest import COPY_KERNEL, HOST, ITEM_SIZES, JUMP_KERNEL, Buffer, Step
from lowerkit.targets.ledger import LedgerEntry
from lowerkit.targets.plan import DeviceCode


@dataclass(frozen=True)
class Source:
    """Where a value lives: a buffer, or a weight that has no buffer before somebody reads it."""

    buffer: int = -1
    weight: str = ""


@dataclass(frozen=True)
class PlannedCode:
    """Code that steps call, and the accelerator that runs it (:data:`HOST` where it is none)."""

    code: DeviceCode
    device: str = HOST


class StepDraft:
    """Collects what an artifact runs, in program order.

    Attributes:
        loops: first and last step of each loop, inner loops before those that hold them.
    """

    def __init__(self, weights: WeightTable) -> None:
        self.weights = weights
        self.buffers: list[Buffer] = []
        self.steps: list[Step] = []
        self.plans: list[PlannedCode] = []
        self.ledger: list[LedgerEntry] = []
        self.loops: list[tuple[int, int]] = []
        self._weight_buffers: dict[tuple[str, str], int] = {}
        self._plan_numbers: dict[tuple[str, str | bytes], int] = {}

    def add(self, buffer: Buffer) -> int:
        """Adds a buffer; returns its number."""
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def size(self, buffer: int) -> Expr:
        """Returns the bytes of a buffer."""
        return self.buffers[buffer].size

    def stored(self, name: str, memory: str = HOST) -> int:
        """Returns the buffer of a stored weight in a memory, made at the first time."""
        if (name, memory) not in self._weight_buffers:
            entry = self.weights.entries[name]
            size, axis = (
                (entry.nbytes, "") if entry.shard is None else (entry.nbytes // entry.shard.ranks, entry.shard.label)
            )
            buffer = Buffer("weight", size, weight=name, memory=memory, shard=axis)
            self._weight_buffers[name, memory] = self.add(buffer)
        return self._weight_buffers[name, memory]

    def packed(self, source: Source, shape: Shape, plan: DeviceCode, operand: int, memory: str) -> int:
        """Returns the buffer of a weight in the layout in which ``plan`` wants its operand."""
        if not source.weight:
            raise CodegenError("LK5002", f"family {plan.family} packs operand {operand}, which is no weight")
        extents = [extent for extent in shape if isinstance(extent, int)]
        return self.stored(self.weights.packed(source.weight, extents, plan.packings[operand]), memory)

    def kernel(self, code: DeviceCode, device: str) -> int:
        """Returns the number of a kernel; equal payloads of a device are one."""
        number = self._plan_numbers.setdefault((device, code.payload), len(self.plans))
        if number == len(self.plans):
            self.plans.append(PlannedCode(code, device))
        return number

    def copy(self, source: int, destination: int, op: ir.Operation) -> None:
        """Adds a step that copies a whole buffer."""
        name, location = step_place(op)
        self.steps.append(
            Step(
                kernel=COPY_KERNEL,
                buffers=[source, destination],
                name=name,
                kind="copy",
                family="copy",
                location=location,
                bytes=simplify(("mul", self.size(destination), 2)),
            )
        )

    def jump(self, op: ir.Operation, kind: str, *, unless: int | None = None, target: int = 0) -> int:
        """Adds a jump to step ``target``, taken always or where the bool in buffer ``unless`` is false.

        Returns:
            its number, for :meth:`land`.
        """
        name, location = step_place(op)
        buffers = [] if unless is None else [unless]
        self.steps.append(
            Step(
                kernel=JUMP_KERNEL,
                buffers=buffers,
                target=target,
                name=name,
                kind=kind,
                family="jump",
                location=location,
            )
        )
        return len(self.steps) - 1

    def land(self, jump: int) -> None:
        """Lets a jump lead to the step that is added next."""
        self.steps[jump] = replace(self.steps[jump], target=len(self.steps))


def total(sizes: Sequence[Expr]) -> Expr:
    """Returns the sum of ``sizes``."""
    result: Expr = 0
    for size in sizes:
        result = simplify(("add", result, size))
    return result


def byte_size(type_: ir.Type, shape: Sequence[Expr]) -> Expr:
    """Returns the bytes of a tensor of ``type_`` whose extents are ``shape``.

    Raises:
        UnsupportedError: LK4001, there are more than 64 bits count.
    """
    size: Expr = ITEM_SIZES[str(ir.RankedTensorType(type_).element_type)]
    try:
        for extent in shape:
            size = simplify(("mul", size, extent))
    except ExpressionError as error:
        raise UnsupportedError(
            "LK4001", f"the model computes a tensor of type {type_}, whose bytes 64 bits do not count: {error}"
        ) from error
    return size
