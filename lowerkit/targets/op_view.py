"""One op as a target is asked about it, without MLIR: name, types, parameters, the scalar body of elementwise ops.

Vocabulary
    name      ``lk.conv``, ``lk.matmul``, ...; ``elementwise`` for whatever computes each element from elements;
              ``reshape`` for views; else the name in the IR (``tensor.extract_slice``)
    value     a tensor inside a function, by number: the arguments first, then the results of each op in order
    scalar    one step of an elementwise body. Its numbers are: the inputs first, then the results of each step.
              ``relu`` is a step that stands for the comparison and the choice which the IR writes it with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lowerkit.dialect.base import LkOperation
from lowerkit.mlir import ir
from lowerkit.passes.elementwise import IndexMap, as_elementwise
from lowerkit.program.locations import origin_of
from lowerkit.targets.scalar_body import Scalar, read_scalars

RESHAPES = ("tensor.collapse_shape", "tensor.expand_shape")


@dataclass(frozen=True)
class TensorType:
    """Element type, in the spelling of MLIR, and extents, None where one is known at run time only."""

    dtype: str
    shape: tuple[int | None, ...]

    @classmethod
    def of(cls, value: ir.Value) -> TensorType:
        """Reads the type of a tensor; anything else has no extents."""
        if not isinstance(value.type, ir.RankedTensorType):
            return cls(str(value.type), ())
        type_ = ir.RankedTensorType(value.type)
        extents = (None if type_.is_dynamic_dim(axis) else type_.get_dim_size(axis) for axis in range(type_.rank))
        return cls(str(type_.element_type), tuple(extents))

    @property
    def is_open(self) -> bool:
        """Whether an extent is known at run time only."""
        return None in self.shape

    @property
    def elements(self) -> int:
        """How many elements there are; an open extent counts as 1."""
        count = 1
        for extent in self.shape:
            count *= 1 if extent is None else extent
        return count

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, at least one each; an ``index`` has eight."""
        bits = int("".join(letter for letter in self.dtype if letter.isdigit()) or 64)
        return self.elements * max(bits // 8, 1)

    def __str__(self) -> str:
        return "x".join([*("?" if extent is None else str(extent) for extent in self.shape), self.dtype])


@dataclass(frozen=True)
class OpView:
    """An op.

    Attributes:
        name: see the vocabulary.
        operands, results: their types.
        parameters: the attributes of an lk op as Python values; ``shape`` of a reshape.
        location: ``file:line`` in the user's code, ``""`` where it is unknown.
        inputs, outputs: the values, by number, where the op is read as part of a function.
        maps: of an elementwise op, for each input which loop indexes each of its dims (None: index 0).
        scalars: of an elementwise op, the steps of its body.
        yields: of an elementwise op, the scalar that each result is.
        operation: the op itself, for whoever needs more.
    """

    name: str
    operands: tuple[TensorType, ...]
    results: tuple[TensorType, ...]
    parameters: Mapping[str, Any]
    location: str
    operation: ir.Operation
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    maps: tuple[IndexMap, ...] = ()
    scalars: tuple[Scalar, ...] = ()
    yields: tuple[int, ...] = ()

    @property
    def flops(self) -> int:
        """Floating-point or integer operations; an open extent counts as 1."""
        if self.name == "elementwise":
            return sum(scalar.name != "constant" for scalar in self.scalars) * self.results[0].elements
        if isinstance(self.operation.opview, LkOperation):
            count = self.operation.opview.flops()
            return count if isinstance(count, int) else 0
        return 0

    @classmethod
    def of(cls, op: ir.Operation, numbers: Mapping[ir.Value, int] | None = None) -> OpView:
        """Reads an op.

        Args:
            op: of stage ``canonical`` or ``partitioned``.
            numbers: of the values of the function that the op is a part of.
        """
        view = as_elementwise(op)
        values = list(op.operands) if view is None else list(view.inputs)
        values = [value for value in values if isinstance(value.type, ir.RankedTensorType)]
        known = numbers or {}
        shared: dict[str, Any] = {
            "operands": tuple(map(TensorType.of, values)),
            "results": tuple(map(TensorType.of, op.results)),
            "location": origin_of(op.location).source_line or "",
            "operation": op,
            "inputs": tuple(known[value] for value in values) if numbers is not None else (),
            "outputs": tuple(known[value] for value in op.results) if numbers is not None else (),
        }
        if view is not None:
            scalars, yields = read_scalars(view)
            return cls("elementwise", parameters={}, maps=view.maps, scalars=scalars, yields=yields, **shared)
        if op.name in RESHAPES:
            return cls("reshape", parameters={"shape": TensorType.of(op.results[0]).shape}, **shared)
        opview = op.opview
        given = opview.parameters() if isinstance(opview, LkOperation) else {}
        parameters = {name: str(value) if isinstance(value, ir.Type) else value for name, value in given.items()}
        return cls(op.name, parameters=parameters, **shared)


IGNORED = ("tensor.empty", "tensor.dim", "func.return")
"""Ops of a function that compute nothing of a tensor's content."""


@dataclass(frozen=True)
class OpList:
    """The ops of a function in order.

    Attributes:
        arguments: the types of its arguments.
        ops: what it computes, in program order.
        returned: the values that it returns.
        types: of every value.
    """

    arguments: tuple[TensorType, ...]
    ops: tuple[OpView, ...]
    returned: tuple[int, ...]
    types: tuple[TensorType, ...]

    @classmethod
    def of(cls, block: ir.Block) -> OpList:
        """Reads the body of a function."""
        arguments = [value for value in block.arguments if isinstance(value.type, ir.RankedTensorType)]
        numbers = {value: number for number, value in enumerate(arguments)}
        ops: list[OpView] = []
        returned: Sequence[ir.Value] = ()
        for op in (op.operation for op in block.operations):
            if op.name == "func.return":
                returned = list(op.operands)
            elif op.name not in IGNORED and not op.name.startswith(("arith.", "affine.")):
                for value in op.results:
                    numbers[value] = len(numbers)
                ops.append(OpView.of(op, numbers))
        return cls(
            tuple(map(TensorType.of, arguments)),
            tuple(ops),
            tuple(numbers[value] for value in returned),
            tuple(map(TensorType.of, numbers)),
        )
