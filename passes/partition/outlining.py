"""Makes a function of a set of ops, and a call of it: what crosses is passed, extents are computed again.

Vocabulary
    member    an op of the set
    operand   a tensor that a member reads and none makes; an index that members need and that cannot be computed inside
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lowerkit.dialect import CallOp
from lowerkit.dialect.ragged import OPERAND_RUNS, RESULT_RUNS, fits
from lowerkit.mlir import ir
from lowerkit.passes.function_by_function import TARGET
from lowerkit.passes.partition.dependencies import data_values, is_transparent, read_values
from lowerkit.passes.rewriting import clone_op, defining_op, fused_location, users


@dataclass(frozen=True)
class Outlined:
    """A function of a target, and what it takes and gives in the function that it comes out of."""

    function: ir.Operation
    operands: list[ir.Value]
    results: list[ir.Value]


def boundary(members: Sequence[ir.Operation]) -> tuple[list[ir.Value], list[ir.Value]]:
    """Returns the tensors that a set reads from outside, and those of its own that others read."""
    made = [result for op in members for result in op.results]
    inner = set(made)
    read = dict.fromkeys(value for op in members for value in _tensors_read(op) if value not in inner)
    results = [value for value in made if any(_outside(user, inner) for user in users(value))]
    return _by_type(read), _by_type(results)


def _by_type(values: Iterable[ir.Value]) -> list[ir.Value]:
    """Equal types side by side: a call has room for a number of runs of them."""
    return sorted(values, key=lambda value: str(value.type))


def too_many_types(members: Sequence[ir.Operation]) -> str | None:
    """Returns why a set cannot be called as one function; None where it can."""
    operands, results = boundary(members)
    if fits([value.type for value in operands], OPERAND_RUNS - 1) and fits([v.type for v in results], RESULT_RUNS):
        return None
    return f"{len(operands)} operands and {len(results)} results are of more types than a call has room for"


def outline(
    module: ir.Module, members: Sequence[ir.Operation], name: str, target: str, *, takes_indices: bool
) -> Outlined:
    """Adds a function of a set to ``module``; the set itself stays as it is.

    Args:
        module: where to.
        members: in program order.
        name: of the function.
        target: the accelerator that it belongs to.
        takes_indices: whether extents of tensors that no member reads are passed as indices; else those tensors are,
            since a region takes its extents from tensors.
    """
    tensors, results = boundary(members)
    if not takes_indices:
        tensors = _by_type(dict.fromkeys([*tensors, *_lent(members)]))
    with module.context, fused_location(members):
        with ir.InsertionPoint(module.body):
            function = ir.Operation.create("func.func", attributes=_attributes(name, target, [], []), regions=1)
        block = function.regions[0].blocks.append()
        mapping: dict[ir.Value, ir.Value] = {}
        for value in tensors:
            mapping[value] = block.add_argument(value.type, ir.Location.current)
        indices: list[ir.Value] = []
        with ir.InsertionPoint(block):
            for op in members:
                for value in read_values(op):
                    _materialize(value, mapping, block, indices)
                clone_op(op, mapping)
            ir.Operation.create("func.return", operands=[mapping[value] for value in results])
        operands = [*tensors, *indices]
        types = [value.type for value in operands], [value.type for value in results]
        for key, attribute in _attributes(name, target, *types).items():
            function.attributes[key] = attribute
    return Outlined(function, operands, results)


def call(
    outlined: Outlined, members: Sequence[ir.Operation], replaced: Mapping[ir.Value, ir.Value]
) -> dict[ir.Value, ir.Value]:
    """Lets a call of the function stand for the set, behind its last member; the set is left without readers.

    Args:
        outlined: the function.
        members: the set. It must not be erased before all sets are called: a value that is made then may lie where one
            of its values lay, and be taken for it.
        replaced: values of sets that were replaced before -> what stands for them.

    Returns:
        the same of this set.
    """
    last = members[-1]
    name = ir.StringAttr(outlined.function.attributes["sym_name"]).value
    with ir.InsertionPoint(last), fused_location(members):
        operands = [replaced.get(value, value) for value in outlined.operands]
        values = CallOp.build(operands, name, [value.type for value in outlined.results])
    for result, value in zip(outlined.results, values, strict=True):
        result.replace_all_uses_with(value)
    return dict(zip(outlined.results, values, strict=True))


def _attributes(name: str, target: str, inputs: list[ir.Type], results: list[ir.Type]) -> dict[str, ir.Attribute]:
    return {
        "sym_name": ir.StringAttr.get(name),
        "function_type": ir.TypeAttr.get(ir.FunctionType.get(inputs, results)),
        TARGET: ir.StringAttr.get(target),
    }


def _materialize(value: ir.Value, mapping: dict[ir.Value, ir.Value], block: ir.Block, indices: list[ir.Value]) -> None:
    """Writes what states ``value`` again inside, or passes it, where it is an extent of a tensor that is not there."""
    if value in mapping:
        return
    owner = defining_op(value)
    known = owner is not None and is_transparent(owner)
    if owner is None or not known or (owner.name == "tensor.dim" and owner.operands[0] not in mapping):
        mapping[value] = block.add_argument(value.type, ir.Location.current)
        indices.append(value)
        return
    for operand in read_values(owner):
        _materialize(operand, mapping, block, indices)
    clone_op(owner, mapping)


def _tensors_read(op: ir.Operation) -> list[ir.Value]:
    """The tensors whose content an op reads: not those that only lend their extents."""
    found: list[ir.Value] = []
    for value in read_values(op):
        owner = defining_op(value)
        if isinstance(value.type, ir.RankedTensorType) and not (owner is not None and is_transparent(owner)):
            found.append(value)
    return found


def _lent(members: Sequence[ir.Operation]) -> list[ir.Value]:
    """The tensors from outside that a set takes extents of."""
    made = {result for op in members for result in op.results}
    values = [value for op in members for value in data_values(op) if value not in made]
    return [value for value in values if isinstance(value.type, ir.RankedTensorType)]


def _outside(user: ir.Operation, inner: set[ir.Value]) -> bool:
    """Whether an op that reads a value is no member; one that only takes extents counts where its readers are not."""
    place = user
    while place.parent is not None and place.parent.operation.name != "func.func":
        place = place.parent.operation
    if is_transparent(place):
        return any(_outside(reader, inner) for result in place.results for reader in users(result))
    return not (len(place.results) and place.results[0] in inner)
