"""Writes the text of a kernel: the nests of a group, one thread for each iteration of their parallel loops.

``void kernel(void *buffer..., void *temporary..., int64_t dim...)``

The parameters are the buffers of the region and the temporaries that the kernel touches, none of which overlap, then
all dims of the region. A thread finds its iterations from its number: the innermost loop runs fastest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowerkit.errors import CodegenError
from lowerkit.mlir import ir
from lowerkit.targets.cpu.generic.math import expand_math
from lowerkit.targets.cpu.generic.scratch_memory import descriptor, replace_allocation
from lowerkit.targets.cpu.objects.guarded_division import guard_divisions
from lowerkit.targets.cpu.text import abi
from lowerkit.targets.cuda.planner.accesses import operations_in
from lowerkit.targets.cuda.planner.grouping import Group
from lowerkit.targets.cuda.planner.nests import loops_of
from lowerkit.targets.cuda.planner.scalars import ScalarOps
from lowerkit.targets.cuda.planner.whole_powers import whole_powers

KERNEL = "lk_kernel"
_REGISTERS = ("ctaid", "ntid", "tid")
_MOST_NARROW = 1 << 30


@dataclass(frozen=True)
class OutlinedKernel:
    """Text of a kernel, and which buffers and which allocations of the body its pointers are."""

    text: str
    buffers: tuple[int, ...]
    allocations: tuple[int, ...]


def outline(body_text: str, group: Group, buffers: Sequence[abi.Shaped]) -> OutlinedKernel:
    """Writes one kernel.

    Args:
        body_text: a module with one function over memrefs, and globals.
        group: of that function's nests.
        buffers: operands then results of the region.

    Raises:
        CodegenError: LK5001, a thread needs a temporary whose size is known at run time only.
    """
    module = ir.Module.parse(body_text)
    body = next(op.operation for op in module.body.operations if op.operation.name == "func.func")
    block = body.regions[0].blocks[0]
    operations = [op.operation for op in block.operations]
    nests = [operations[at] for at in group.positions]
    every = _allocations(operations)
    _remove_others(operations, nests)
    arguments = list(block.arguments)
    used = tuple(n for n, argument in enumerate(arguments) if any(not _is_dim(use.owner) for use in argument.uses))
    allocations = [(n, op) for n, op in enumerate(every) if list(op.results[0].uses)]
    target = ir.Module.parse(_frame(buffers, used, len(allocations)))
    for op in list(module.body.operations):
        if op.operation.name == "memref.global":
            op.operation.move_before(target.body.operations[0].operation)
    function = target.body.operations[-1].operation
    entry = function.regions[0].blocks[0]
    casts = [op.operation for op in entry.operations if op.operation.name == "builtin.unrealized_conversion_cast"]
    end = list(entry.operations)[-1].operation
    for argument, cast in zip(arguments, casts, strict=True):
        argument.replace_all_uses_with(cast.results[0])
    for op in [op.operation for op in block.operations][:-1]:
        op.move_before(end)
    for pointer, (_, op) in zip(list(entry.arguments)[len(used) :], allocations, strict=False):
        with ir.InsertionPoint(op):
            value = descriptor(pointer, ir.MemRefType(op.results[0].type), list(op.operands))
        op.results[0].replace_all_uses_with(value)
    for op in _allocations([op.operation for op in entry.operations]):
        op.erase()
    _deal_out(nests, group, end)
    for nest_op in list(operations_in(function)):
        if nest_op.name == "memref.alloc":
            _own(nest_op, entry)
    guard_divisions(target)  # before a division that rounds down is taken apart
    whole_powers(target)
    text = target.operation.get_asm(enable_debug_info=False)
    return OutlinedKernel(_rename_globals(expand_math(text, powers=True)), used, tuple(n for n, _ in allocations))


def _remove_others(operations: Sequence[ir.Operation], nests: Sequence[ir.Operation]) -> None:
    for op in reversed(operations):
        unused = not any(len(list(result.uses)) for result in op.results)
        if op not in nests and op.name not in ("memref.alloc", "func.return") and unused:
            op.erase()


def _allocations(operations: Sequence[ir.Operation]) -> list[ir.Operation]:
    return [op for op in operations if op.name == "memref.alloc"]


def _is_dim(op: ir.Operation | ir.OpView) -> bool:
    return op.operation.name == "memref.dim"


def _frame(buffers: Sequence[abi.Shaped], used: Sequence[int], temporaries: int) -> str:
    """Text of a kernel that does nothing yet: its parameters, and the buffers as memrefs."""
    pointers = [f"%pointer{index}" for index in used] + [f"%temporary{number}" for number in range(temporaries)]
    dims = sum(extent is None for shaped in buffers for extent in shaped.shape)
    parameters = [f"{pointer}: !llvm.ptr {{llvm.noalias}}" for pointer in pointers]
    parameters += [f"%dim{number}: i64" for number in range(dims)]
    text = "  %nowhere = llvm.mlir.zero : !llvm.ptr\n"
    number = 0
    for index, shaped in enumerate(buffers):
        shape: list[int | str] = []
        for extent in shaped.shape:
            shape.append(f"%dim{number}" if extent is None else extent)
            number += extent is None
        pointer = f"%pointer{index}" if index in used else "%nowhere"
        text += abi.memref_from_pointer(f"buffer{index}", pointer, shape, abi.stored_type(shaped.element))[0]
    registers = "".join(
        f"func.func private @llvm.nvvm.read.ptx.sreg.{register}.x() -> i32\n" for register in _REGISTERS
    )
    return f"module {{\n{registers}func.func @{KERNEL}({', '.join(parameters)}) {{\n{text}  return\n}}\n}}\n"


def _deal_out(nests: Sequence[ir.Operation], group: Group, end: ir.Operation) -> None:
    """Puts the nests under the condition that there is work for the thread, and binds their parallel loops."""
    with ir.InsertionPoint(end):
        scalars = ScalarOps()
        number = scalars.thread_number()
        parallel = [
            [loops_of(op)[loop.depth] for loop in nest.parallel] for op, nest in zip(nests, group.nests, strict=True)
        ]
        bounds = [list(loop.operands)[:3] for loop in parallel[0]]
        counts = [scalars.iterations(*each) for each in bounds]
        known = [scalars.number_of(count) for count in counts]
        narrow = all(count is not None for count in known) and _product(known) < _MOST_NARROW
        total = scalars.product(counts)
        branch = scalars.branch(scalars.is_below(number, total), end)
    then = branch.regions[0].blocks[0]
    with ir.InsertionPoint(list(then.operations)[-1].operation):
        steps = scalars.unravel(number, counts, narrow)
        iterations = [scalars.at(lower, step, each) for (lower, _, step), each in zip(bounds, steps, strict=True)]
    last = list(then.operations)[-1].operation
    _move_into(nests, last)
    for loops in parallel:
        for loop, iteration in reversed(list(zip(loops, iterations, strict=True))):
            _unwrap(loop, iteration)


def _move_into(nests: Sequence[ir.Operation], last: ir.Operation) -> None:
    """Moves the nests into the branch, in order, with what is computed from their results between them."""
    inside: set[ir.Value] = set()
    for op in [op.operation for op in nests[0].block.operations][:-1]:
        if op in nests or not inside.isdisjoint(op.operands):
            op.move_before(last)
            inside.update(op.results)


def _unwrap(loop: ir.Operation, iteration: ir.Value) -> None:
    """Puts the body of a loop in its place, for one iteration."""
    block = loop.regions[0].blocks[0]
    block.arguments[0].replace_all_uses_with(iteration)
    for op in [op.operation for op in block.operations][:-1]:
        op.move_before(loop)
    loop.erase()


def _product(numbers: Sequence[int | None]) -> int:
    total = 1
    for number in numbers:
        total *= number or 0
    return total


def _own(allocation: ir.Operation, entry: ir.Block) -> None:
    """Gives a temporary inside a nest to each thread."""
    if not ir.MemRefType(allocation.results[0].type).has_static_shape:
        raise CodegenError("LK5001", "a thread needs a temporary whose size is known at run time only")
    replace_allocation(allocation, None, entry, 0)


def _rename_globals(text: str) -> str:
    """Globals of several kernels go into one image: their names begin with that of the kernel."""
    return text.replace("@__constant", f"@{KERNEL}_constant")
