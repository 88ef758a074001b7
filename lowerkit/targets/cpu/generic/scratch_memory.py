"""Temporaries of a kernel body at fixed places: row-major memrefs in the scratch of the thread, or on the stack."""

from __future__ import annotations

from lowerkit.mlir import ir
from lowerkit.targets.plan import KernelExpr

ALIGNMENT = 64


def replace_allocation(allocation: ir.Operation, place: KernelExpr | None, block: ir.Block, dim_count: int) -> None:
    """Puts a temporary on the stack or at its place in scratch.

    Args:
        allocation: the ``memref.alloc``; it is erased.
        place: its offset in scratch over the kernel's dims; None puts it on the stack.
        block: the entry block of the body function, whose last argument is the scratch pointer.
        dim_count: number of the kernel's dims, which are arguments of the function.
    """
    type_ = allocation.results[0].type
    if place is None:
        with ir.InsertionPoint.at_block_begin(block):
            value = ir.Operation.create(
                "memref.alloca",
                results=[type_],
                attributes={
                    "operandSegmentSizes": ir.DenseI32ArrayAttr.get([0, 0]),
                    "alignment": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), ALIGNMENT),
                },
            ).result
        allocation.results[0].replace_all_uses_with(value)
        allocation.erase()
        return
    arguments = list(block.arguments)
    scratch = arguments[-1]
    dims = arguments[len(arguments) - 3 - dim_count : len(arguments) - 3]
    with ir.InsertionPoint(allocation):
        offset = _emit(place, dims)
        address = _offset_pointer(scratch, offset)
        value = descriptor(address, ir.MemRefType(type_), list(allocation.operands))
    allocation.results[0].replace_all_uses_with(value)
    allocation.erase()


def _emit(expr: KernelExpr, dims: list[ir.Value]) -> ir.Value:
    """Builds the i64 value of an expression over the kernel's dims."""
    i64 = ir.IntegerType.get_signless(64)
    if isinstance(expr, int):
        return ir.Operation.create(
            "arith.constant", results=[i64], attributes={"value": ir.IntegerAttr.get(i64, expr)}
        ).result
    if expr[0] == "dim":
        return dims[expr[1]]
    names = {
        "add": "arith.addi", "sub": "arith.subi", "mul": "arith.muli", "floordiv": "arith.floordivsi",
        "ceildiv": "arith.ceildivsi", "mod": "arith.remsi", "min": "arith.minsi", "max": "arith.maxsi",
    }  # fmt: skip
    left, right = _emit(expr[1], dims), _emit(expr[2], dims)
    return ir.Operation.create(names[expr[0]], results=[i64], operands=[left, right]).result


def _offset_pointer(pointer: ir.Value, offset: ir.Value) -> ir.Value:
    return ir.Operation.create(
        "llvm.getelementptr",
        results=[pointer.type],
        operands=[pointer, offset],
        attributes={
            "rawConstantIndices": ir.DenseI32ArrayAttr.get([-(2**31)]),
            "elem_type": ir.TypeAttr.get(ir.IntegerType.get_signless(8)),
        },
    ).result


def descriptor(pointer: ir.Value, type_: ir.MemRefType, sizes: list[ir.Value]) -> ir.Value:
    """Builds the memref of a temporary, row-major at ``pointer``; ``sizes`` are its dynamic extents."""
    rank = type_.rank
    i64 = ir.IntegerType.get_signless(64)
    arrays = f", array<{rank} x i64>, array<{rank} x i64>" if rank else ""
    struct = ir.Type.parse(f"!llvm.struct<(ptr, ptr, i64{arrays})>")

    def constant(value: int) -> ir.Value:
        return ir.Operation.create(
            "llvm.mlir.constant", results=[i64], attributes={"value": ir.IntegerAttr.get(i64, value)}
        ).result

    dynamic = iter(sizes)
    extents = [
        ir.Operation.create("arith.index_cast", results=[i64], operands=[next(dynamic)]).result
        if type_.is_dynamic_dim(axis)
        else constant(type_.get_dim_size(axis))
        for axis in range(rank)
    ]
    strides: list[ir.Value] = []
    running = constant(1)
    for extent in reversed(extents):
        strides.append(running)
        running = ir.Operation.create("llvm.mul", results=[i64], operands=[running, extent]).result
    strides.reverse()
    parts: list[tuple[list[int], ir.Value]] = [([0], pointer), ([1], pointer), ([2], constant(0))]
    parts += [([3, axis], extent) for axis, extent in enumerate(extents)]
    parts += [([4, axis], stride) for axis, stride in enumerate(strides)]
    value = ir.Operation.create("llvm.mlir.poison", results=[struct]).result
    for position, part in parts:
        value = ir.Operation.create(
            "llvm.insertvalue",
            results=[struct],
            operands=[value, part],
            attributes={"position": ir.DenseI64ArrayAttr.get(position)},
        ).result
    return ir.Operation.create("builtin.unrealized_conversion_cast", results=[type_], operands=[value]).result
