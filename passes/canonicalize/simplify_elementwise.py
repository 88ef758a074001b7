"""Lets elementwise ops read what is stored, once, and nothing else.

An input of an elementwise ``linalg.generic`` is replaced by what it was made from:
    a splat (``linalg.fill``, a constant of equal elements)   by the scalar inside the body
    ``linalg.broadcast`` and copies that broadcast            by their source, through a smaller index map
    views that add or drop extents of one                     by their source, the extent of one dropped from the map
    a scalar that the body takes out of a rank-0 tensor       by that tensor
Inputs that the body does not use are dropped, inputs that are equal become one, an op that only copies its input
vanishes, one that computes the same scalar everywhere becomes ``linalg.fill``, and a destination that is read for
its shape only becomes ``tensor.empty``.

Bytes: a broadcast that was stored is neither written nor read any more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from lowerkit.mlir import arith, ir, linalg
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.elementwise import (
    Elementwise,
    IndexMap,
    as_elementwise,
    build_elementwise,
    compose,
    destination,
    identity_map,
)
from lowerkit.passes.fuse.anchors import is_anchor
from lowerkit.passes.layout.transposed_views import reassociation_of
from lowerkit.passes.rewriting import (
    captured_values,
    constant_of,
    defined_by,
    defining_op,
    element_of,
    erase_dead,
    is_used,
    main_block,
    operations,
    remap_operands,
    replace,
    shape_of,
    tensor_type,
)


@dataclass(frozen=True)
class SimplifyElementwise(Pass):
    """Folds broadcasts, splats and unit views into the elementwise ops that read them.

    Precondition: stage raised, canonical or layout (no regions yet).
    """

    name: ClassVar[str] = "simplify-elementwise"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Transforms in place; see :class:`Pass`."""
        block = main_block(module)
        changed = False
        for op in operations(block):
            view = as_elementwise(op)
            if view is not None and op.name in ("linalg.generic", "linalg.broadcast"):
                changed = _simplify(view) or changed
        return erase_dead(block) > 0 or changed


@dataclass
class _Reading:
    """How the rewritten op gets the element that one block argument stands for: a scalar, or an input by a map."""

    scalar: ir.Value | None = None
    source: ir.Value | None = None
    index_map: IndexMap = field(default=())


def _simplify(view: Elementwise) -> bool:
    op = view.op
    if op.name == "linalg.broadcast" and any(as_elementwise(use.owner.operation) is None for use in op.results[0].uses):
        return False  # somebody needs it stored; folding its source further would gain nothing
    arguments = list(view.body.arguments)[: len(view.inputs)]
    with ir.InsertionPoint(op), op.location:
        readings = [_reading(value, index_map) for value, index_map in zip(view.inputs, view.maps, strict=True)]
        extracted = _extracted_scalars(op)
        if _copies(op, view, readings):
            source = readings[0].source
            assert source is not None
            replace(op, [source])
            return True
    if op.name == "linalg.broadcast":
        return False  # its readers fold it
    kept = [index for index, argument in enumerate(arguments) if is_used(argument)]
    inputs: dict[tuple[ir.Value, IndexMap], int] = {}
    for index in kept:
        reading = readings[index]
        if reading.source is not None:
            inputs.setdefault((reading.source, reading.index_map), len(inputs))
    for source in extracted.values():
        inputs.setdefault((source, ()), len(inputs))
    same_inputs = list(inputs) == list(zip(view.inputs, view.maps, strict=True))
    owned = all(defined_by(init, "tensor.empty") is not None for init in view.inits)
    fills = _fill_scalar(view, readings)
    if same_inputs and owned and fills is None:
        return False
    with ir.InsertionPoint(op), op.location:
        inits = [
            init if defined_by(init, "tensor.empty") is not None else destination(view, element_of(init))
            for init in view.inits
        ]
        if fills is not None:
            replace(op, [_fill(fills, inits[0])])
            return True

        def write(scalars: list[ir.Value]) -> list[ir.Value]:
            elements: list[ir.Value] = []
            for index, reading in enumerate(readings):
                if reading.source is None:
                    assert reading.scalar is not None
                    elements.append(reading.scalar)
                elif index in kept:
                    elements.append(scalars[inputs[reading.source, reading.index_map]])
                else:
                    elements.append(scalars[0] if scalars else reading.source)  # unused by the body
            return view.write_body(elements, identity_map(view.rank))

        rewritten = build_elementwise(
            [source for source, _ in inputs], [index_map for _, index_map in inputs], inits, write, op.location
        )
        body = rewritten.regions[0].blocks[0]
        mapping = {scalar: body.arguments[inputs[source, ()]] for scalar, source in extracted.items()}
        for inner in operations(body):
            remap_operands(inner, mapping)
    replace(op, list(rewritten.results))
    return True


def _reading(value: ir.Value, index_map: IndexMap) -> _Reading:
    """Follows ``value`` to what is stored. Builds scalars at the current insertion point."""
    while True:
        op = defining_op(value)
        if op is None:
            return _Reading(source=value, index_map=index_map)
        scalar = _splat_scalar(op, value)
        if scalar is not None:
            return _Reading(scalar=scalar)
        step = _one_step(op, index_map)
        if step is None or (is_anchor(defining_op(step[0])) and _keeps_order(value, index_map)):
            # An anchor's value in its own order stays behind its view: the view sinks and fusion can follow.
            return _Reading(source=value, index_map=index_map)
        value, index_map = step


def _keeps_order(value: ir.Value, index_map: IndexMap) -> bool:
    """Whether loops read every element of ``value``, in the order in which it is stored."""
    wide = [loop for loop, extent in zip(index_map, shape_of(value), strict=True) if extent != 1]
    return None not in wide and wide == sorted(loop for loop in wide if loop is not None)


def _splat_scalar(op: ir.Operation, value: ir.Value) -> ir.Value | None:
    """Returns the scalar that every element of ``value`` equals."""
    if op.name == "linalg.fill":
        return op.operands[0] if element_of(value) == op.operands[0].type else None
    attribute = constant_of(value)
    if attribute is None or not isinstance(attribute, ir.DenseElementsAttr) or not attribute.is_splat:
        return None
    return arith.ConstantOp(element_of(value), attribute.get_splat_value()).result


def _one_step(op: ir.Operation, index_map: IndexMap) -> tuple[ir.Value, IndexMap] | None:
    """Returns what a broadcast or a view of unit extents was made from, and how to read it."""
    if op.name == "tensor.expand_shape":
        return _through_expand(op, index_map)
    if op.name == "tensor.collapse_shape":
        return _through_collapse(op, index_map)
    if op.name != "linalg.broadcast" and not _only_yields_input(op):
        return None
    view = as_elementwise(op)
    if view is None or len(view.inputs) != 1:
        return None
    if op.name != "linalg.broadcast" and len(view.maps[0]) == view.rank and None not in view.maps[0]:
        return None  # a transpose or copy that moves everything is worth storing once; fusion decides
    return view.inputs[0], compose(view.maps[0], index_map)


def _only_yields_input(op: ir.Operation) -> bool:
    if op.name != "linalg.generic" or len(op.results) != 1:
        return False
    body = op.regions[0].blocks[0]
    inner = operations(body)
    return len(inner) == 1 and inner[0].operands[0] == body.arguments[0]


def _through_expand(op: ir.Operation, index_map: IndexMap) -> tuple[ir.Value, IndexMap] | None:
    shape = shape_of(op.results[0])
    found: list[int | None] = []
    for group in reassociation_of(op):
        wide = [axis for axis in group if shape[axis] != 1]
        if len(wide) > 1:
            return None
        found.append(index_map[(wide or group)[0]])
    return op.operands[0], tuple(found)


def _through_collapse(op: ir.Operation, index_map: IndexMap) -> tuple[ir.Value, IndexMap] | None:
    shape = shape_of(op.operands[0])
    if not index_map:  # to rank 0: there are no groups, and every extent is one
        return op.operands[0], (None,) * len(shape)
    found: list[int | None] = []
    for group, loop in zip(reassociation_of(op), index_map, strict=True):
        wide = [axis for axis in group if shape[axis] != 1]
        if len(wide) > 1:
            return None
        found.extend(loop if axis in wide else None for axis in group)
    return op.operands[0], tuple(found)


def _extracted_scalars(op: ir.Operation) -> dict[ir.Value, ir.Value]:
    """Returns scalars that the body captures -> the rank-0 tensors they are taken from."""
    found: dict[ir.Value, ir.Value] = {}
    for value in captured_values(op):
        extract = defined_by(value, "tensor.extract")
        if extract is not None and len(extract.operands) == 1:
            found[value] = extract.operands[0]
    return found


def _copies(op: ir.Operation, view: Elementwise, readings: list[_Reading]) -> bool:
    """Whether the op stores its input again as it is."""
    if not _only_yields_input(op) or not readings or readings[0].source is None:
        return False
    source = tensor_type(readings[0].source)
    return readings[0].index_map == identity_map(view.rank) and source == tensor_type(op.results[0])


def _fill_scalar(view: Elementwise, readings: list[_Reading]) -> ir.Value | None:
    """Returns the scalar that the op stores everywhere, if the body does not compute it."""
    body = view.body
    inner = operations(body)
    if view.op.name != "linalg.generic" or len(inner) != 1 or len(view.op.results) != 1:
        return None
    yielded = inner[0].operands[0]
    for argument, reading in zip(body.arguments, readings, strict=False):
        if yielded == argument:
            return reading.scalar
    is_scalar_constant = defined_by(yielded, "arith.constant") is not None
    return yielded if is_scalar_constant else None


def _fill(scalar: ir.Value, init: ir.Value) -> ir.Value:
    op = linalg.FillOp([init.type], [scalar], [init])
    block = op.regions[0].blocks.append(scalar.type, element_of(init))
    with ir.InsertionPoint(block):
        linalg.YieldOp([block.arguments[0]])
    return op.results[0]
