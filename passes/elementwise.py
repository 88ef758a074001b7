"""What elementwise fusion knows about an op: its inputs, how loops index them, and how to write its scalar body.

Vocabulary
    loops      one parallel loop for each dimension of the result.
    index map  for each dimension of an operand the loop that indexes it, or None where index 0 is read (an extent of
               one that is broadcast). ``(1, 0)`` reads transposed, ``(1,)`` broadcasts a vector along loop 0.
    elementwise op   ``linalg.generic`` with parallel loops, identity results and inputs read through index maps;
               ``linalg.transpose``, ``linalg.broadcast`` and ``linalg.fill`` are the same with a trivial body.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from lowerkit.mlir import ir, linalg, tensor
from lowerkit.passes.rewriting import clone_op, constant_index, dimension, operations, shape_of

IndexMap: TypeAlias = tuple[int | None, ...]

_EXPENSIVE_ARITH = frozenset({"arith.divf", "arith.remf", "arith.divsi", "arith.divui", "arith.remsi", "arith.remui"})
_SCALAR_OPS = ("arith.", "math.", "linalg.yield", "linalg.index")
_CHEAP_MATH = frozenset({"math.absf", "math.absi", "math.copysign", "math.fma", "math.floor", "math.ceil"})


def identity_map(rank: int) -> IndexMap:
    """Returns the map that reads dimension i by loop i."""
    return tuple(range(rank))


def compose(inner: IndexMap, outer: IndexMap) -> IndexMap:
    """Returns ``inner`` with its loops replaced: loop i of ``inner`` runs as ``outer[i]``."""
    return tuple(None if loop is None else outer[loop] for loop in inner)


def read_index_map(attribute: ir.Attribute) -> IndexMap | None:
    """Returns the index map of an affine map, or None when it is more than loops and zeros."""
    affine = ir.AffineMapAttr(attribute).value
    found: list[int | None] = []
    for expression in affine.results:
        if isinstance(expression, ir.AffineDimExpr):
            found.append(expression.position)
        elif isinstance(expression, ir.AffineConstantExpr) and expression.value == 0:
            found.append(None)
        else:
            return None
    return tuple(found)


def write_index_map(rank: int, index_map: IndexMap) -> ir.Attribute:
    """Returns an index map as an affine map attribute over ``rank`` loops."""
    results = [ir.AffineExpr.get_constant(0) if loop is None else ir.AffineExpr.get_dim(loop) for loop in index_map]
    return ir.AffineMapAttr.get(ir.AffineMap.get(rank, 0, results))


@dataclass(frozen=True, eq=False)
class Elementwise:
    """An elementwise op, taken apart.

    Attributes:
        op: the op itself.
        inputs: tensors read (for ``linalg.fill`` none).
        maps: how each input is read.
        inits: the destination operands, which give the result its shape and nothing else.
        shape: extent of each loop, DYNAMIC where unknown.
    """

    op: ir.Operation
    inputs: tuple[ir.Value, ...]
    maps: tuple[IndexMap, ...]
    inits: tuple[ir.Value, ...]
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        """The number of loops."""
        return len(self.shape)

    @property
    def body(self) -> ir.Block:
        """The scalar body. The named ops have one too."""
        return self.op.regions[0].blocks[0]

    def is_expensive(self) -> bool:
        """Whether computing an element again would cost more than loading it."""
        names = [inner.name for inner in operations(self.body)] if self.op.name == "linalg.generic" else []
        return any(name in _EXPENSIVE_ARITH or (name.startswith("math.") and name not in _CHEAP_MATH) for name in names)

    def inputs_read_through(self, value: ir.Value) -> list[IndexMap]:
        """Returns the index maps by which ``value`` is read."""
        return [index_map for operand, index_map in zip(self.inputs, self.maps, strict=True) if operand == value]

    def write_body(self, scalars: Sequence[ir.Value], loops: IndexMap) -> list[ir.Value]:
        """Writes the body at the current insertion point for one element; returns one scalar for each result.

        Args:
            scalars: the elements of the inputs.
            loops: which loop of the surrounding op runs as loop i of this one.
        """
        if self.op.name == "linalg.fill":
            return [self.op.operands[0]]
        if self.op.name != "linalg.generic":
            return list(scalars)
        mapping: dict[ir.Value, ir.Value] = dict(zip(self.body.arguments, scalars, strict=False))
        for inner in operations(self.body):
            if inner.name == "linalg.yield":
                return [mapping.get(value, value) for value in inner.operands]
            if inner.name == "linalg.index":
                with inner.location:
                    mapping[inner.result] = _loop_index(loops[ir.IntegerAttr(inner.attributes["dim"]).value])
                continue
            clone_op(inner, mapping)
        raise AssertionError("a linalg body ends in linalg.yield")


def _loop_index(loop: int | None) -> ir.Value:
    return constant_index(0) if loop is None else linalg.IndexOp(loop).result


def as_elementwise(op: ir.Operation) -> Elementwise | None:
    """Takes ``op`` apart if it is elementwise on tensors."""
    reader = _READERS.get(op.name)
    if reader is None or not len(op.results) or not isinstance(op.results[0].type, ir.RankedTensorType):
        return None
    return reader(op)


def _read_generic(op: ir.Operation) -> Elementwise | None:
    shape = tuple(shape_of(op.results[0]))
    rank = len(shape)
    attributes = op.attributes
    iterators = str(attributes["iterator_types"])  # one conversion: an attribute each would cost more than the rest
    if iterators.count("parallel") != rank or "reduction" in iterators:
        return None
    maps = [read_index_map(attribute) for attribute in attributes["indexing_maps"]]
    count = ir.DenseI32ArrayAttr(attributes["operandSegmentSizes"])[0]
    if any(index_map != identity_map(rank) for index_map in maps[count:]):
        return None
    checked = tuple(index_map for index_map in maps if index_map is not None)
    if len(checked) != len(maps):
        return None
    block = op.regions[0].blocks[0]
    if any(next(iter(argument.uses), None) is not None for argument in list(block.arguments)[count:]):
        return None  # accumulates into its destination
    if any(not inner.name.startswith(_SCALAR_OPS) for inner in operations(block)):
        return None  # tensor.extract, loops: not one value per element
    operands = list(op.operands)
    if any(not isinstance(operand.type, ir.RankedTensorType) for operand in operands):
        return None
    return Elementwise(op, tuple(operands[:count]), checked[:count], tuple(operands[count:]), shape)


def _read_transpose(op: ir.Operation) -> Elementwise:
    permutation = list(ir.DenseI64ArrayAttr(op.attributes["permutation"]))
    index_map: list[int | None] = [None] * len(permutation)
    for loop, axis in enumerate(permutation):
        index_map[axis] = loop
    source, init = op.operands
    return Elementwise(op, (source,), (tuple(index_map),), (init,), tuple(shape_of(op.results[0])))


def _read_broadcast(op: ir.Operation) -> Elementwise:
    added = set(ir.DenseI64ArrayAttr(op.attributes["dimensions"]))
    source, init = op.operands
    shape = tuple(shape_of(op.results[0]))
    index_map = tuple(loop for loop in range(len(shape)) if loop not in added)
    return Elementwise(op, (source,), (index_map,), (init,), shape)


def _read_fill(op: ir.Operation) -> Elementwise:
    return Elementwise(op, (), (), (op.operands[1],), tuple(shape_of(op.results[0])))


_READERS: dict[str, Callable[[ir.Operation], Elementwise | None]] = {
    "linalg.generic": _read_generic,
    "linalg.transpose": _read_transpose,
    "linalg.broadcast": _read_broadcast,
    "linalg.fill": _read_fill,
}


def build_elementwise(
    inputs: Sequence[ir.Value],
    maps: Sequence[IndexMap],
    inits: Sequence[ir.Value],
    write: Callable[[list[ir.Value]], Sequence[ir.Value]],
    location: ir.Location,
) -> ir.Operation:
    """Builds a parallel ``linalg.generic`` at the current insertion point.

    Args:
        inputs: tensors read.
        maps: how loops index them.
        inits: one destination for each result; their shape is the loops' extent.
        write: writes the scalar body, given the elements of the inputs; returns one scalar for each result.
        location: of the op and its yield.
    """
    rank = len(shape_of(inits[0]))
    identity = write_index_map(rank, identity_map(rank))
    with location:
        generic = linalg.GenericOp(
            [init.type for init in inits],
            list(inputs),
            list(inits),
            ir.ArrayAttr.get([*(write_index_map(rank, index_map) for index_map in maps), *([identity] * len(inits))]),
            ir.ArrayAttr.get([ir.Attribute.parse("#linalg.iterator_type<parallel>")] * rank),
        ).operation
        elements = [ir.RankedTensorType(value.type).element_type for value in (*inputs, *inits)]
        block = generic.regions[0].blocks.append(*elements)
        with ir.InsertionPoint(block):
            linalg.YieldOp(list(write(list(block.arguments)[: len(inputs)])))
    return generic


def destination(loops_of: Elementwise, element: ir.Type) -> ir.Value:
    """Builds a ``tensor.empty`` with the extents of the loops of an op, at the current insertion point."""
    sizes: list[int | ir.Value] = list(loops_of.shape)
    init = loops_of.inits[0]
    for axis, extent in enumerate(sizes):
        if extent == ir.ShapedType.get_dynamic_size():
            sizes[axis] = dimension(init, axis)
    return tensor.EmptyOp(sizes, element).result
