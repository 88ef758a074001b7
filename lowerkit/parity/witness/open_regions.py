"""Regions whose extents are open: the small extents that they are run at, and what one takes and gives alone.

Vocabulary
    sizes    a value of each dim of the model that its ranges and guards allow; every extent in the program is an
             expression over the dims, so sizes say all of them.
    name     of an extent that is open in a region: the dim that it is, or one of its own for an expression. Extents
             that are one expression in the model have one name, so the region is compiled as it is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowerkit.codegen.shapes import Shape, ShapeTable, result_shapes
from lowerkit.dialect.reference.numeric import Array
from lowerkit.mlir import ir
from lowerkit.parity.bisect.evaluation import main_block
from lowerkit.parity.bisect.units import Unit
from lowerkit.parity.symbolic_sizes import sizes_of
from lowerkit.program.program import Program
from lowerkit.runtimes.conditions import holds
from lowerkit.runtimes.expression_bounds import bounds, ranges_of
from lowerkit.runtimes.expressions import Expr, ExpressionError, evaluate
from lowerkit.runtimes.manifest import Dim, Signature, TensorSpec
from lowerkit.targets.region_view import RegionView

_FIRST = 4
"""The first dim of the first sizes; the others follow, so that one that stands for another shows."""

_FURTHER = ((0, 0), (1, 0), (2, 1), (3, 1), (5, 2), (8, 1))
"""The first dim of further sizes, and by how much each following one is larger."""


@dataclass(frozen=True)
class OpenExtents:
    """The extents of one region.

    Attributes:
        operands, results: shapes over :attr:`names`.
        names: of the open extents, each with its expression over the dims of the model.
        sizes: those of the model that the region is run at, the first with special values.
    """

    operands: list[Shape]
    results: list[Shape]
    names: dict[str, Expr]
    sizes: list[dict[str, int]]
    dims: dict[str, Dim]

    @property
    def text(self) -> str:
        """What a verdict hangs on beside the region's text."""
        return f"{self.operands} {self.results} {list(self.dims.values())} {self.sizes}"

    def shapes(self, sizes: dict[str, int]) -> list[tuple[int, ...]]:
        """Returns the operands' shapes at sizes of the model."""
        values = {name: evaluate(expression, sizes) for name, expression in self.names.items()}
        return [tuple(evaluate(extent, values) for extent in shape) for shape in self.operands]

    def signature(self, known: Signature, stored: Sequence[bool]) -> Signature:
        """Returns the signature of the region alone, given that of static extents; what is stored is no input."""
        shapes = [shape for shape, is_stored in zip(self.operands, stored, strict=True) if not is_stored]
        dims = [self._dim(name, expression) for name, expression in self.names.items()]
        return Signature(_shaped(known.inputs, shapes), _shaped(known.outputs, self.results), dims=dims)

    def _dim(self, name: str, expression: Expr) -> Dim:
        if name in self.dims:
            return self.dims[name]
        try:
            least, _ = bounds(expression, ranges_of(self.dims.values()))
        except ExpressionError:  # a division whose divisor may be 0
            least = 1
        return Dim(name, max(least, 0))


def _shaped(specs: Sequence[TensorSpec], shapes: Sequence[Shape]) -> list[TensorSpec]:
    return [TensorSpec(spec.name, spec.dtype, list(shape)) for spec, shape in zip(specs, shapes, strict=True)]


class OpenRegions:
    """Reads the extents of a program's regions."""

    def __init__(self, program: Program) -> None:
        self._signature = program.signature
        arguments = main_block(program.module).arguments
        pairs = zip(arguments, program.signature.inputs, strict=True)
        self._table = ShapeTable({value: tuple(spec.shape) for value, spec in pairs})
        self._sizes = small_sizes(program.signature, program.example_inputs)

    def extents(self, unit: Unit) -> OpenExtents:
        """Returns the extents of a region.

        Raises:
            UnsupportedError: LK4002, one of them depends on data.
        """
        names: dict[str, Expr] = {}
        operands: list[Shape] = []
        for value in unit.op.operands:
            kind, shape = ir.RankedTensorType(value.type), self._table.shape(value)
            operands.append(
                tuple(
                    _name(extent, names) if kind.is_dynamic_dim(axis) else kind.get_dim_size(axis)
                    for axis, extent in enumerate(shape)
                )
            )
        results = result_shapes(RegionView.from_region(unit.op), operands)
        dims = {dim.name: dim for dim in self._signature.dims}
        possible = [sizes for sizes in self._sizes if _are_possible(names, sizes)]
        return OpenExtents(operands, results, names, possible, dims)


def small_sizes(signature: Signature, example: Sequence[Array] | None) -> list[dict[str, int]]:
    """Returns small sizes that ranges and guards allow, or those of the example; none where no value is known."""
    chosen = [
        {dim.name: _inside(dim, first + step * place) for place, dim in enumerate(signature.dims)}
        for first, step in ((_FIRST, 1), *_FURTHER)
    ]
    if example is not None:
        chosen.append(sizes_of(signature, example))
    allowed = [sizes for sizes in chosen if len(sizes) == len(signature.dims) and _are_allowed(signature, sizes)]
    unique = [sizes for number, sizes in enumerate(allowed) if sizes not in allowed[:number]]
    return unique[: len(_FURTHER) + 1]


def _inside(dim: Dim, value: int) -> int:
    return max(dim.minimum, value if dim.maximum is None else min(dim.maximum, value))


def _are_allowed(signature: Signature, sizes: dict[str, int]) -> bool:
    try:
        return all(holds(guard.condition, sizes) for guard in signature.guards)
    except ExpressionError:
        return False


def _are_possible(names: dict[str, Expr], sizes: dict[str, int]) -> bool:
    try:
        return all(evaluate(expression, sizes) >= 0 for expression in names.values())
    except ExpressionError:
        return False


def _name(extent: Expr, names: dict[str, Expr]) -> Expr:
    """The name of an open extent; of one that turns out to be known, the number."""
    if isinstance(extent, int):
        return extent
    for name, expression in names.items():
        if expression == extent:
            return name
    name = extent if isinstance(extent, str) else f"extent_{len(names)}"
    names[name] = extent
    return name
