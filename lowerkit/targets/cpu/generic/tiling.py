"""The tensor half of the generic family: buffers at the boundary, fusion, tiling for the thread pool.

Vocabulary
    root   the linalg op whose results the region returns.
    tile   what one task computes: a slice of the root along one parallel dim, with all its producers fused in.

Steps
    1. rebuild the function over memrefs: operands become tensors, results are materialized in result buffers
       (``i1`` is a byte in memory, so it is truncated and extended at the boundary);
    2. fuse elementwise ops;
    3. tile the root and fuse its producers into the loop, so that tasks share nothing but their operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowerkit.errors import CodegenError
from lowerkit.mlir import ir, run_pipeline, transform_interpreter, walk
from lowerkit.targets.region_view import REGION_FUNCTION

BODY_FUNCTION = "generic_body"
TASK_LOOP = "lowerkit.task_loop"
_ROOT = "lowerkit.root"

# A task below this many points of the root costs more to hand out than to compute.
_POINTS_PER_TASK = 8192
_ASSUMED_DYNAMIC_EXTENT = 64

_FUSE = (
    "builtin.module(func.func(convert-elementwise-to-linalg,linalg-generalize-named-ops),convert-tensor-to-linalg,"
    "func.func(linalg-generalize-named-ops),canonicalize,cse,linalg-fuse-elementwise-ops,canonicalize,cse,"
    "func.func(linalg-inline-scalar-operands),canonicalize)"
)


@dataclass(frozen=True)
class Tiling:
    """How the root was cut: ``size`` iterations of its loop ``dimension`` make a task."""

    dimension: int
    size: int


def make_body_function(module: ir.Module) -> ir.Operation:
    """Turns ``@region`` over tensors into ``@generic_body`` over memrefs, operands then results; fuses; returns it."""
    region = next(
        op.operation
        for op in module.body.operations
        if op.operation.name == "func.func" and ir.StringAttr(op.attributes["sym_name"]).value == REGION_FUNCTION
    )
    old = region.regions[0].blocks[0]
    operations = [op.operation for op in old.operations]
    results = [value.type for value in operations[-1].operands]
    tensors = [argument.type for argument in old.arguments]
    memrefs = [_memref_of(type_) for type_ in (*tensors, *results)]
    with module.context, ir.Location.unknown():
        with ir.InsertionPoint(module.body):
            function = ir.Operation.create(
                "func.func",
                attributes={
                    "sym_name": ir.StringAttr.get(BODY_FUNCTION),
                    "function_type": ir.TypeAttr.get(ir.FunctionType.get(memrefs, [])),
                },
                regions=1,
            )
        block = function.regions[0].blocks.append(*memrefs, arg_locs=[ir.Location.unknown()] * len(memrefs))
        with ir.InsertionPoint(block):
            for argument, tensor_type, memref in zip(old.arguments, tensors, block.arguments, strict=False):
                argument.replace_all_uses_with(_read(memref, tensor_type))
            end = ir.Operation.create("func.return")
        for op in operations[:-1]:
            op.move_before(end)
        with ir.InsertionPoint(end):
            for number, memref in enumerate(list(block.arguments)[len(tensors) :]):
                _write(operations[-1].operands[number], memref)  # read anew: a write may replace the others' op
        operations[-1].erase()
        region.erase()
    run_pipeline(module, _FUSE)
    return _function(module)


def tile_root(module: ir.Module) -> Tiling | None:
    """Tiles the root for the thread pool and fuses its producers; None where the body stays one task."""
    function = _function(module)
    root = _root(function)
    if root is None or _has_empty_tensor(function):
        return None
    tiling = _choose_tiling(root)
    if tiling is None:
        return None
    sizes = [tiling.size if index == tiling.dimension else 0 for index in range(tiling.dimension + 1)]
    script = f"""module attributes {{transform.with_named_sequence}} {{
      transform.named_sequence @__transform_main(%module: !transform.any_op) {{
        %root = transform.structured.match attributes {{{_ROOT}}} in %module : (!transform.any_op) -> !transform.any_op
        %tiled, %loop = transform.structured.fuse %root tile_sizes {sizes}
          : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
        transform.annotate %loop "{TASK_LOOP}" : !transform.any_op
        %function = transform.structured.match ops{{["func.func"]}} in %module
          : (!transform.any_op) -> !transform.any_op
        transform.apply_patterns to %function {{
          transform.apply_patterns.tensor.fold_tensor_empty
          transform.apply_patterns.canonicalization
        }} : !transform.any_op
        transform.yield
      }}
    }}"""
    with module.context, ir.Location.unknown():
        root.attributes[_ROOT] = ir.UnitAttr.get()
        transforms = ir.Module.parse(script)
        try:
            transform_interpreter.apply_named_sequence(
                module.operation, transforms.body.operations[0].operation, transforms.operation
            )
        except (ir.MLIRError, ValueError) as error:
            raise CodegenError("LK5001", f"tiling failed: {error}") from error
    run_pipeline(module, "builtin.module(canonicalize,cse)")
    return tiling


def _function(module: ir.Module) -> ir.Operation:
    return next(
        op.operation
        for op in module.body.operations
        if op.operation.name == "func.func" and ir.StringAttr(op.attributes["sym_name"]).value == BODY_FUNCTION
    )


def _memref_of(type_: ir.Type) -> ir.MemRefType:
    tensor = ir.RankedTensorType(type_)
    return ir.MemRefType.get(tensor.shape, _stored_element(tensor.element_type), loc=ir.Location.unknown())


def _stored_element(element: ir.Type) -> ir.Type:
    return ir.IntegerType.get_signless(8) if str(element) == "i1" else element


def _with_element(type_: ir.Type, element: ir.Type) -> ir.RankedTensorType:
    return ir.RankedTensorType.get(ir.RankedTensorType(type_).shape, element, loc=ir.Location.unknown())


def _read(memref: ir.Value, tensor_type: ir.Type) -> ir.Value:
    """Returns ``memref`` as a tensor of ``tensor_type``."""
    stored = _with_element(tensor_type, ir.MemRefType(memref.type).element_type)
    unit = ir.UnitAttr.get()
    value = ir.Operation.create(
        "bufferization.to_tensor", results=[stored], operands=[memref], attributes={"restrict": unit}
    ).result
    if stored == tensor_type:
        return value
    return ir.Operation.create("arith.trunci", results=[tensor_type], operands=[value]).result


def _write(value: ir.Value, memref: ir.Value) -> None:
    """Materializes ``value`` in ``memref``."""
    stored = _with_element(value.type, ir.MemRefType(memref.type).element_type)
    if stored != value.type:
        value = (
            _widened_in_place(value) or ir.Operation.create("arith.extui", results=[stored], operands=[value]).result
        )
    unit = ir.UnitAttr.get()
    ir.Operation.create(
        "bufferization.materialize_in_destination",
        operands=[value, memref],
        attributes={"restrict": unit, "writable": unit},
    )


def _widened_in_place(value: ir.Value) -> ir.Value | None:
    """Lets the ``linalg.generic`` that computes an ``i1`` result compute bytes; None where that is not possible.

    An extension after an op with further results would not be fused into it.
    """
    if isinstance(value.owner, ir.Block) or value.owner.name != "linalg.generic":
        return None
    op = value.owner.operation
    number = list(op.results).index(value)
    position = len(op.operands) - len(op.results) + number
    destination = op.operands[position].owner
    block = op.regions[0].blocks[0]
    argument = block.arguments[position]
    shared = len(list(value.uses)) > 1 or len(list(argument.uses)) > 0
    if shared or isinstance(destination, ir.Block) or destination.name != "tensor.empty":
        return None
    byte = ir.IntegerType.get_signless(8)
    wide = _with_element(value.type, byte)
    with ir.InsertionPoint(op):
        operands = list(op.operands)
        operands[position] = ir.Operation.create(
            "tensor.empty", results=[wide], operands=list(destination.operation.operands)
        ).result
        results = [result.type for result in op.results]
        results[number] = wide
        copy = ir.Operation.create(
            "linalg.generic",
            results=results,
            operands=operands,
            attributes={name: op.attributes[name] for name in op.attributes},
            regions=1,
        )
    block.append_to(copy.regions[0])
    argument.set_type(byte)
    end = list(block.operations)[-1].operation
    with ir.InsertionPoint(end):
        bit = end.operands[number]
        end.operands[number] = ir.Operation.create("arith.extui", results=[byte], operands=[bit]).result
    # The only user of `value` is the return of the region, which is about to go: its type may be wrong until then.
    for result, replacement in zip(op.results, copy.results, strict=True):
        result.replace_all_uses_with(replacement)
    op.erase()
    return copy.results[number]


def _root(function: ir.Operation) -> ir.Operation | None:
    """Returns the one ``linalg.generic`` that computes every result; None where there is no such op."""
    sources: set[ir.Operation] = set()
    for op in function.regions[0].blocks[0].operations:
        if op.operation.name == "bufferization.materialize_in_destination":
            owner = op.operation.operands[0].owner
            if isinstance(owner, ir.Block) or owner.name != "linalg.generic":
                return None
            sources.add(owner.operation)
    return sources.pop() if len(sources) == 1 else None


def _has_empty_tensor(function: ir.Operation) -> bool:
    """Whether a tensor has a static extent of 0: tiling crashes on loops without iterations, the producers' too."""
    found: list[ir.Operation] = []
    walk(function, found.append)
    types = [value.type for op in found for value in (*op.operands, *op.results)]
    return any(isinstance(type_, ir.RankedTensorType) and 0 in type_.shape for type_ in types)


def _choose_tiling(root: ir.Operation) -> Tiling | None:
    """Cuts the outermost parallel loop that has iterations to share out."""
    extents = loop_extents(root)
    kinds = ["parallel" in str(kind) for kind in ir.ArrayAttr(root.attributes["iterator_types"])]
    total = _points(root)
    if total < 2 * _POINTS_PER_TASK and None not in extents:
        return None
    for dimension, (extent, parallel) in enumerate(zip(extents, kinds, strict=True)):
        if not parallel or extent == 1:
            continue
        count = _ASSUMED_DYNAMIC_EXTENT if extent is None else extent
        inner = max(total // count, 1)
        size = -(-_POINTS_PER_TASK // inner)
        if dimension == len(extents) - 1:
            size = -(-size // 64) * 64  # the vectorized loop: whole vectors, whole cache lines
        if extent is not None and size >= extent:
            continue
        return Tiling(dimension, size)
    return None


def _points(op: ir.Operation) -> int:
    """How many iterations the loops of ``op`` have, or those of an op that feeds it, where they have more."""
    feeding = [operand.owner for operand in op.operands if not isinstance(operand.owner, ir.Block)]
    points = [1]
    for each in [op, *(owner.operation for owner in feeding if owner.name == "linalg.generic")]:
        points.append(1)
        for extent in loop_extents(each):
            points[-1] *= _ASSUMED_DYNAMIC_EXTENT if extent is None else extent
    return max(points)


def loop_extents(root: ir.Operation) -> list[int | None]:
    """Returns the extent of each loop of a ``linalg.generic``; None where it is dynamic."""
    maps = [ir.AffineMapAttr(entry).value for entry in ir.ArrayAttr(root.attributes["indexing_maps"])]
    extents: list[int | None] = [None] * maps[0].n_dims
    for operand, indexing in zip(root.operands, maps, strict=True):
        if not isinstance(operand.type, ir.RankedTensorType):
            continue
        shape: Sequence[int] = operand.type.shape
        for axis, result in enumerate(indexing.results):
            if isinstance(result, ir.AffineDimExpr) and not operand.type.is_dynamic_dim(axis):
                extents[result.position] = shape[axis]
    return extents
