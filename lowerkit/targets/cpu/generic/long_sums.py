"""Long sums of the generic family are carried in f64, and rounded once at the end.

Plain loops add one element after the other: the error of a sum of n elements of f32 grows like n units in the last
place, where PyTorch adds in blocks and pairs and keeps it near log n. A chain of dependent additions is bound by their
latency, which is the same in both types. Sums of up to ``_SHORT`` elements stay as they are.

Bytes: the accumulators of a task are twice as wide.
"""

from __future__ import annotations

from lowerkit.mlir import ir, run_pipeline
from lowerkit.targets.cpu.generic.tiling import loop_extents

_SHORT = 128
_FUSE = "builtin.module(linalg-fuse-elementwise-ops,canonicalize,cse)"


def widen_sums(module: ir.Module, function: ir.Operation) -> None:
    """Changes each ``linalg.generic`` over tensors that adds up many elements of f32."""
    changed = False
    with module.context, ir.Location.unknown():
        for op in list(function.regions[0].blocks[0].operations):
            if op.operation.name == "linalg.generic" and _is_long(op.operation):
                numbers = [n for n in range(len(op.operation.results)) if _is_sum(op.operation, n)]
                changed |= bool(numbers)
                if numbers:
                    _widen(op.operation, numbers)
    if changed:
        run_pipeline(module, _FUSE)


def _is_long(op: ir.Operation) -> bool:
    elements = 1
    for extent, kind in zip(loop_extents(op), ir.ArrayAttr(op.attributes["iterator_types"]), strict=True):
        if "reduction" in str(kind):
            elements *= _SHORT + 1 if extent is None else extent
    return elements > _SHORT


def _is_sum(op: ir.Operation, number: int) -> bool:
    """Whether result ``number`` is of f32 and each element is added to what is there, which nothing else reads."""
    if str(ir.RankedTensorType(op.results[number].type).element_type) != "f32":
        return False
    block = op.regions[0].blocks[0]
    carried = block.arguments[len(op.operands) - len(op.results) + number]
    added = list(block.operations)[-1].operands[number].owner
    uses = list(carried.uses)
    return (
        not isinstance(added, ir.Block)
        and added.name == "arith.addf"
        and len(uses) == 1
        and uses[0].owner == added
        and len(list(added.operation.results[0].uses)) == 1
    )


def _widen(op: ir.Operation, numbers: list[int]) -> None:
    """Carries the results ``numbers`` in f64, without the axes of extent 1 that ``keep_dims`` leaves: tiling
    takes no op whose result is indexed by constants."""
    wide, narrow = ir.F64Type.get(), ir.F32Type.get()
    first = len(op.operands) - len(op.results)
    operands, types = list(op.operands), [result.type for result in op.results]
    maps = [ir.AffineMapAttr(entry).value for entry in ir.ArrayAttr(op.attributes["indexing_maps"])]
    kept = {number: _indexed_axes(maps[first + number]) for number in numbers}
    with ir.InsertionPoint(op):
        for number, axes in kept.items():
            place = first + number
            operands[place] = _widened(operands[place], wide, axes)
            types[number] = operands[place].type
            results = [maps[place].results[axis] for axis in axes]
            maps[place] = ir.AffineMap.get(maps[place].n_dims, 0, results)
        attributes = {name: op.attributes[name] for name in op.attributes}
        attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(entry) for entry in maps])
        copy = ir.Operation.create("linalg.generic", results=types, operands=operands, attributes=attributes, regions=1)
    block = op.regions[0].blocks[0]
    block.append_to(copy.regions[0])
    end = list(block.operations)[-1].operation
    for number in numbers:
        _widen_addition(block.arguments[first + number], end, number, wide)
    with ir.InsertionPoint(op):
        for number, (old, new) in enumerate(zip(op.results, copy.results, strict=True)):
            like = op.operands[first + number]
            old.replace_all_uses_with(_narrowed(new, narrow, kept[number], like) if number in kept else new)
    op.erase()


def _indexed_axes(indexing: ir.AffineMap) -> list[int]:
    return [axis for axis, result in enumerate(indexing.results) if not isinstance(result, ir.AffineConstantExpr)]


def _widen_addition(carried: ir.BlockArgument, end: ir.Operation, number: int, wide: ir.Type) -> None:
    added = end.operands[number].owner
    assert not isinstance(added, ir.Block), "_is_sum looked"
    (element,) = [operand for operand in added.operation.operands if operand != carried]
    carried.set_type(wide)
    with ir.InsertionPoint(added):
        element = ir.Operation.create("arith.extf", results=[wide], operands=[element]).result
        total = ir.Operation.create("arith.addf", results=[wide], operands=[carried, element]).result
    end.operands[number] = total
    added.operation.erase()


def _widened(value: ir.Value, element: ir.Type, axes: list[int]) -> ir.Value:
    """``value`` in another float type, at the first place of all axes but ``axes``."""
    rank = ir.RankedTensorType(value.type).rank
    zero = ir.AffineConstantExpr.get(0)
    places = [ir.AffineDimExpr.get(axes.index(axis)) if axis in axes else zero for axis in range(rank)]
    return _converted(value, value, axes, ir.AffineMap.get(len(axes), 0, places), element, "arith.extf")


def _narrowed(value: ir.Value, element: ir.Type, axes: list[int], like: ir.Value) -> ir.Value:
    """``value``, whose axes are the ``axes`` of ``like``, in another float type and with all axes."""
    rank = ir.RankedTensorType(like.type).rank
    indexing = ir.AffineMap.get(rank, 0, [ir.AffineDimExpr.get(axis) for axis in axes])
    return _converted(value, like, list(range(rank)), indexing, element, "arith.truncf")


def _converted(
    value: ir.Value, like: ir.Value, axes: list[int], indexing: ir.AffineMap, element: ir.Type, conversion: str
) -> ir.Value:
    """An elementwise conversion; the result has the extents of ``axes`` of ``like``."""
    source = ir.RankedTensorType(like.type)
    shape = [source.shape[axis] for axis in axes]
    result = ir.RankedTensorType.get(shape, element, loc=ir.Location.unknown())
    extents = [_extent(like, axis) for axis in axes if source.is_dynamic_dim(axis)]
    empty = ir.Operation.create("tensor.empty", results=[result], operands=extents).result
    parallel = ir.Attribute.parse("#linalg.iterator_type<parallel>")
    identity = ir.AffineMap.get_identity(len(axes))
    generic = ir.Operation.create(
        "linalg.generic",
        results=[result],
        operands=[value, empty],
        attributes={
            "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(entry) for entry in (indexing, identity)]),
            "iterator_types": ir.ArrayAttr.get([parallel] * len(axes)),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 1]),
        },
        regions=1,
    )
    given = ir.RankedTensorType(value.type).element_type
    block = generic.regions[0].blocks.append(given, element, arg_locs=[ir.Location.unknown()] * 2)
    with ir.InsertionPoint(block):
        other = ir.Operation.create(conversion, results=[element], operands=[block.arguments[0]]).result
        ir.Operation.create("linalg.yield", operands=[other])
    return generic.result


def _extent(value: ir.Value, axis: int) -> ir.Value:
    index = ir.IndexType.get()
    place = ir.Operation.create(
        "arith.constant", results=[index], attributes={"value": ir.IntegerAttr.get(index, axis)}
    ).result
    return ir.Operation.create("tensor.dim", results=[index], operands=[value, place]).result
