"""The body of an elementwise op as a list of scalar steps, without MLIR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowerkit.mlir import ir
from lowerkit.passes.elementwise import Elementwise
from lowerkit.passes.rewriting import operations

CMPF = (
    "false", "oeq", "ogt", "oge", "olt", "ole", "one", "ord", "ueq", "ugt", "uge", "ult", "ule", "une", "uno", "true",
)  # fmt: skip
CMPI = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")


@dataclass(frozen=True)
class Scalar:
    """One step of a body.

    Attributes:
        name: the op (``arith.addf``, ``math.exp``), with its predicate where it compares (``arith.cmpf olt``);
            ``constant``; ``relu``; ``outside`` for a number that something else computes.
        inputs: the scalars that it reads, by number.
        dtype: of its result.
        value: of a constant.
    """

    name: str
    inputs: tuple[int, ...]
    dtype: str
    value: float | int | None = None


def read_scalars(view: Elementwise) -> tuple[tuple[Scalar, ...], tuple[int, ...]]:
    """Returns the steps of a body, and the scalar that each result is.

    ``relu`` is read where a body chooses 0 for what is below 0 and the element itself else: NaN and -0 stay.
    """
    return _Reader(view).read()


class _Reader:
    def __init__(self, view: Elementwise) -> None:
        self.view = view
        self.steps: list[Scalar] = []
        self.numbers: dict[ir.Value, int] = {}

    def read(self) -> tuple[tuple[Scalar, ...], tuple[int, ...]]:
        view = self.view
        if view.op.name == "linalg.fill":
            return self._done([self._number(view.op.operands[0])])
        if view.op.name != "linalg.generic":
            return (), tuple(range(len(view.op.results)))
        self.numbers.update(
            (value, number) for number, value in enumerate(list(view.body.arguments)[: len(view.inputs)])
        )
        body = operations(view.body)
        for op in body[:-1]:
            self._step(op)
        return self._done([self._number(value) for value in body[-1].operands])

    def _done(self, yields: Sequence[int]) -> tuple[tuple[Scalar, ...], tuple[int, ...]]:
        """Leaves out what nobody reads: the comparison behind a ``relu``."""
        count = len(self.view.inputs)
        needed, todo = set[int](), [number for number in yields if number >= count]
        while todo:
            number = todo.pop()
            if number not in needed:
                needed.add(number)
                todo += [other for other in self.steps[number - count].inputs if other >= count]
        kept = sorted(needed)
        new = {number: number for number in range(count)} | {old: count + place for place, old in enumerate(kept)}
        steps = [self.steps[number - count] for number in kept]
        renumbered = (
            Scalar(step.name, tuple(new[number] for number in step.inputs), step.dtype, step.value) for step in steps
        )
        return tuple(renumbered), tuple(new[number] for number in yields)

    def _step(self, op: ir.Operation) -> None:
        if op.name == "arith.constant":
            self._number(op.result)
            return
        inputs = tuple(self._number(value) for value in op.operands)
        name = op.name
        if name == "arith.cmpf":
            name += f" {CMPF[ir.IntegerAttr(op.attributes['predicate']).value]}"
        elif name == "arith.cmpi":
            name += f" {CMPI[ir.IntegerAttr(op.attributes['predicate']).value]}"
        elif name == "arith.select" and self._is_relu(inputs):
            name, inputs = "relu", inputs[2:]
        self._add(op.result, Scalar(name, inputs, str(op.result.type)))

    def _is_relu(self, inputs: tuple[int, ...]) -> bool:
        condition, below, value = inputs
        compared = self._step_of(condition)
        if compared is None or compared.name != "arith.cmpf olt" or compared.inputs[0] != value:
            return False
        return self._is_zero(below) and self._is_zero(compared.inputs[1])

    def _is_zero(self, number: int) -> bool:
        step = self._step_of(number)
        return step is not None and step.name == "constant" and step.value == 0

    def _step_of(self, number: int) -> Scalar | None:
        place = number - len(self.view.inputs)
        return self.steps[place] if place >= 0 else None

    def _number(self, value: ir.Value) -> int:
        if value not in self.numbers:
            owner = value.owner
            constant = None if isinstance(owner, ir.Block) else _constant(owner.operation)
            name = "outside" if constant is None else "constant"
            self._add(value, Scalar(name, (), str(value.type), constant))
        return self.numbers[value]

    def _add(self, value: ir.Value, step: Scalar) -> None:
        self.numbers[value] = len(self.view.inputs) + len(self.steps)
        self.steps.append(step)


def _constant(op: ir.Operation) -> float | int | None:
    if op.name != "arith.constant":
        return None
    attribute = op.attributes["value"]
    if isinstance(attribute, ir.FloatAttr):
        return attribute.value
    return ir.IntegerAttr(attribute).value if isinstance(attribute, ir.IntegerAttr) else None
