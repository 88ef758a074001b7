"""The buffer half of the generic family: bufferization, loops, tasks and scratch.

Vocabulary
    task loop  the outermost loop of a tiled body: its iterations are dealt out as tasks.
    scratch    per-thread memory of the kernel call; every temporary of the body gets a fixed place in it.

Steps
    1. one-shot bufferization, results written straight into the result buffers;
    2. linalg to scf loops;
    3. the body moves under the kernel's prologue, where each buffer is a pointer that aliases no other;
    4. temporaries go to scratch (small static ones to the stack), the task loop runs from ``task_begin`` to
       ``task_end``.

No call of ``malloc`` is left: a temporary whose size has no bound over the kernel's dims is an error.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowerkit.mlir import ir, linalg, run_pipeline, walk
from lowerkit.targets.cpu.generic.scratch_memory import ALIGNMENT, replace_allocation
from lowerkit.targets.cpu.generic.size_bounds import SizeBounds
from lowerkit.targets.cpu.generic.tiling import BODY_FUNCTION, TASK_LOOP
from lowerkit.targets.cpu.text import abi
from lowerkit.targets.cpu.text.text_builder import element_bytes
from lowerkit.targets.plan import KernelExpr, expression, product

_STACK_BYTES = 512  # a temporary up to this size lives on the stack, where LLVM may turn it into registers

_REUSE_DESTINATIONS = "builtin.module(eliminate-empty-tensors,canonicalize)"
_BUFFERIZE = "builtin.module(empty-tensor-to-alloc-tensor,one-shot-bufferize,canonicalize,cse)"
_TO_LOOPS = (
    "builtin.module(resolve-ranked-shaped-type-result-dims,convert-linalg-to-loops,fold-memref-alias-ops,"
    "canonicalize,cse)"
)
_STORE_RESULT = "bufferization.materialize_in_destination"
_PURE_VIEWS = ("memref.dim", "memref.subview", "memref.cast", "memref.expand_shape", "memref.collapse_shape")


@dataclass(frozen=True)
class BufferizedKernel:
    """Text of the kernel, its task count and the scratch it needs."""

    mlir: str
    task_count: KernelExpr
    scratch_bytes: KernelExpr


def bufferize(module: ir.Module) -> None:
    """Brings ``@generic_body`` from tensors to loops over memrefs, in place."""
    if not _is_result_begun_from(module):
        run_pipeline(module, _REUSE_DESTINATIONS)
    _separate_destinations(module)
    run_pipeline(module, _BUFFERIZE)
    _copies_to_linalg(module)
    run_pipeline(module, _TO_LOOPS)


def assemble(
    module: ir.Module, buffers: list[abi.Shaped], operand_count: int, tile_size: int | None
) -> BufferizedKernel:
    """Puts the loops of ``@generic_body`` under the kernel ABI.

    Args:
        module: what :func:`bufferize` left.
        buffers: operands then results as the region has them.
        operand_count: how many of them are operands.
        tile_size: iterations of the task loop that make a task; None where there is none.

    Raises:
        CodegenError: LK5001, a temporary has no bounded size.
    """
    body = next(
        op.operation
        for op in module.body.operations
        if op.operation.name == "func.func" and ir.StringAttr(op.attributes["sym_name"]).value == BODY_FUNCTION
    )
    arguments = list(body.regions[0].blocks[0].arguments)
    assert len(arguments) == len(buffers), "one memref for each buffer"
    loop = _task_loop(body, arguments[operand_count:])
    bounds = SizeBounds(arguments)
    task_count: KernelExpr = 1
    if loop is not None:
        assert tile_size is not None, "a task loop comes from a tiling"
        task_count = expression("ceildiv", bounds.exact(loop.operands[1]), tile_size)
    temporaries, scratch = _place_temporaries(body, bounds)
    with module.context, ir.Location.unknown():
        target = ir.Module.parse(_frame(buffers))
        _move_globals(module, target)
        _move_body(body, target, buffers)
        function = target.body.operations[-2].operation
        block = function.regions[0].blocks[0]
        if loop is not None:
            _deal_out(loop, tile_size or 1)
        for allocation, place in temporaries:
            replace_allocation(allocation, place, block, bounds.dim_count)
        text = target.operation.get_asm(enable_debug_info=False)
    return BufferizedKernel(text, task_count, scratch)


def _is_result_begun_from(module: ir.Module) -> bool:
    """Whether another op writes over what the region returns, as a product over the zeros that it begins from.

    Both would be put into that op's result buffer, and the returned value be read there once the op has ended: how
    results reach their buffers is nothing that bufferization sees.
    """
    found = False

    def visit(op: ir.Operation) -> None:
        nonlocal found
        if op.name == _STORE_RESULT:
            found |= any(_is_destination(use.owner, use.operand_number) for use in op.operands[0].uses)

    walk(module.operation, visit)
    return found


def _is_destination(op: ir.Operation | ir.OpView, operand: int) -> bool:
    op = op.operation
    if op.name.startswith("linalg."):
        return operand >= ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])[0]
    return op.name.startswith("scf.") or (op.name in ("tensor.insert", "tensor.insert_slice") and operand == 1)


def _separate_destinations(module: ir.Module) -> None:
    """Gives each operand of an op an empty tensor of its own.

    As nothing reads an empty tensor, bufferization would put two results that start from one into the same buffer.
    """
    taken: set[tuple[ir.Operation, ir.Value]] = set()
    shared: list[tuple[ir.Operation, int]] = []

    def collect(op: ir.Operation) -> None:
        for index, operand in enumerate(op.operands):
            if not isinstance(operand.owner, ir.Block) and operand.owner.name == "tensor.empty":
                if (op, operand) in taken:
                    shared.append((op, index))
                taken.add((op, operand))

    walk(module.operation, collect)
    for op, index in shared:
        with ir.InsertionPoint(op), op.location:
            op.operands[index] = op.operands[index].owner.clone().results[0]


def _copies_to_linalg(module: ir.Module) -> None:
    """A ``memref.copy`` between strided buffers is a library call; as a linalg op it becomes loops."""
    copies: list[ir.Operation] = []
    walk(module.operation, lambda op: copies.append(op) if op.name == "memref.copy" else None)
    for copy in copies:
        source, destination = copy.operands
        if source != destination:  # a slice that was computed in place is copied onto itself
            with ir.InsertionPoint(copy), copy.location:
                linalg.copy(source, outs=[destination])
        copy.erase()


def _task_loop(body: ir.Operation, results: list[ir.Value]) -> ir.Operation | None:
    """Returns the task loop if tasks are independent: nothing outside the loop touches a result buffer.

    What else runs outside the loop fills scratch, which every thread has for itself.
    """
    block = body.regions[0].blocks[0]
    loops = [op.operation for op in block.operations if TASK_LOOP in op.attributes]
    if len(loops) != 1 or loops[0].name != "scf.for" or len(loops[0].results):
        return None
    written: set[ir.Value] = set(results)
    for op in block.operations:
        operation = op.operation
        if operation == loops[0]:
            continue
        touches = any(operand in written for operand in operation.operands)
        if operation.name in _PURE_VIEWS:
            if touches:
                written.update(operation.results)
        elif not _is_pure(operation):
            inside: list[ir.Operation] = []
            walk(operation, inside.append)
            stores = [one for one in inside if one.name in ("memref.store", "vector.store", "memref.copy")]
            if any(operand in written for one in stores for operand in one.operands):
                return None
    return loops[0]


def _is_pure(operation: ir.Operation) -> bool:
    return operation.name.startswith(("arith.", "affine.", "math.")) or operation.name in (
        "memref.alloc",
        "memref.get_global",
        "func.return",
    )


def _place_temporaries(
    body: ir.Operation, bounds: SizeBounds
) -> tuple[list[tuple[ir.Operation, KernelExpr | None]], KernelExpr]:
    """Returns each allocation with its offset in scratch (None: on the stack) and the bytes of scratch."""
    allocations: list[ir.Operation] = []
    walk(body, lambda op: allocations.append(op) if op.name == "memref.alloc" else None)
    placed: list[tuple[ir.Operation, KernelExpr | None]] = []
    total: KernelExpr = 0
    stack = 0
    for allocation in allocations:
        type_ = ir.MemRefType(allocation.results[0].type)
        sizes = iter(allocation.operands)
        extents = [
            bounds.upper(next(sizes)) if type_.is_dynamic_dim(axis) else type_.get_dim_size(axis)
            for axis in range(type_.rank)
        ]
        size = product([*extents, element_bytes(str(type_.element_type))])
        if isinstance(size, int) and type_.has_static_shape and stack + size <= _STACK_BYTES:
            stack += size
            placed.append((allocation, None))
            continue
        placed.append((allocation, total))
        padded = expression("mul", expression("ceildiv", size, ALIGNMENT), ALIGNMENT)
        total = expression("add", total, padded)
    return placed, total


def _frame(buffers: list[abi.Shaped]) -> str:
    """Text of the kernel: it loads pointers and dims and hands them to ``@generic_body``.

    The body is a function of its own so that its pointers can be declared not to alias.
    """
    dims = sum(extent is None for shaped in buffers for extent in shaped.shape)
    loads = "".join(abi.load_pointer(f"pointer{index}", index) for index in range(len(buffers)))
    loads += "".join(abi.load_dim(f"dim{number}", number) for number in range(dims))
    pointers = [f"%pointer{index}" for index in range(len(buffers))]
    numbers = [f"%dim{number}" for number in range(dims)]
    parameters = ", ".join(
        [f"{pointer}: !llvm.ptr {{llvm.noalias}}" for pointer in pointers]
        + [f"{number}: i64" for number in numbers]
        + ["%task_begin: i64", "%task_end: i64", "%scratch: !llvm.ptr {llvm.noalias}"]
    )
    types = ", ".join(["!llvm.ptr"] * len(buffers) + ["i64"] * (dims + 2) + ["!llvm.ptr"])
    values = ", ".join([*pointers, *numbers, "%task_begin", "%task_end", "%scratch"])
    text = ""
    number = 0
    for index, shaped in enumerate(buffers):
        shape: list[int | str] = []
        for extent in shaped.shape:
            shape.append(f"%dim{number}" if extent is None else extent)
            number += extent is None
        text += abi.memref_from_pointer(f"buffer{index}", f"%pointer{index}", shape, abi.stored_type(shaped.element))[0]
    call = f"  func.call @{BODY_FUNCTION}({values}) : ({types}) -> ()\n"
    helper = f"func.func private @{BODY_FUNCTION}({parameters}) {{\n{text}  return\n}}\n"
    return abi.kernel_module(loads + call, helper)


def _move_globals(source: ir.Module, target: ir.Module) -> None:
    first = target.body.operations[0]
    for op in list(source.body.operations):
        if op.operation.name == "memref.global":
            op.operation.move_before(first.operation)


def _move_body(body: ir.Operation, target: ir.Module, buffers: list[abi.Shaped]) -> None:
    """Moves the ops of ``body`` to the end of the frame's body function and binds its arguments."""
    block = target.body.operations[-2].operation.regions[0].blocks[0]
    casts = [op.operation for op in block.operations if op.operation.name == "builtin.unrealized_conversion_cast"]
    source = body.regions[0].blocks[0]
    for argument, cast in zip(source.arguments, casts, strict=True):
        argument.replace_all_uses_with(cast.results[0])
    operations = list(block.operations)
    end = operations[-1].operation
    for op in list(source.operations)[:-1]:
        op.operation.move_before(end)
    assert len(casts) == len(buffers), "one descriptor for each buffer"


def _deal_out(loop: ir.Operation, tile_size: int) -> None:
    """Sets the bounds of the task loop to the tasks of this call."""
    function_arguments = list(loop.block.arguments)
    begin, end = function_arguments[-3], function_arguments[-2]
    index = ir.IndexType.get()
    with ir.InsertionPoint(loop):
        size = ir.Operation.create(
            "arith.constant", results=[index], attributes={"value": ir.IntegerAttr.get(index, tile_size)}
        ).result

        def point(task: ir.Value) -> ir.Value:
            number = ir.Operation.create("arith.index_cast", results=[index], operands=[task]).result
            return ir.Operation.create("arith.muli", results=[index], operands=[number, size]).result

        lower = point(begin)
        upper = ir.Operation.create("arith.minsi", results=[index], operands=[point(end), loop.operands[1]]).result
    loop.operands[0] = lower
    loop.operands[1] = upper
    del loop.attributes[TASK_LOOP]
