"""Spells an einsum as matrix products between permutations and reshapes.

Vocabulary: a *label* is a letter of the equation. With two operands a label is *batch* (in both operands and in the
result), *contracted* (in both, not in the result), *row* (in the left operand and the result), *column* (in the right
operand and the result), or *summed* (in one operand only).

More operands are multiplied from left to right, as PyTorch does without a library for better orders. Dims of an
ellipsis become labels, aligned at the right; of a label that an operand has twice the diagonal is taken.

Steps: sum over summed labels; bring the operands to [batch..., rows, contracted] and [batch..., contracted,
columns]; multiply; split the groups again; permute to the order of the result. Each operand is moved at most once,
and not at all where its dims already stand in that order.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence

from lowerkit.errors import UnsupportedError
from lowerkit.mlir import ir
from lowerkit.passes.raising.torch_dialect.torch_build import permute, size, squeeze, unsqueeze, view
from lowerkit.passes.raising.torch_dialect.torch_build import product as product_of
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    RefusalError,
    build,
    constant_bool,
    constant_int,
    constant_none,
    int_list,
    tensor_info,
)

Product = Callable[[ir.Value, ir.Value], ir.Value]


def einsum_product(equation: str, operands: Sequence[ir.Value], product: Product) -> ir.Value:
    """Builds the einsum ``equation`` over ``operands``, with ``product`` for the matrix product.

    Refuses what does not fit the equation.
    """
    inputs, output = parse_equation(equation, [tensor_info(operand).rank for operand in operands])
    pairs = [_diagonal(value, labels) for value, labels in zip(operands, inputs, strict=True)]
    values, terms = [value for value, _ in pairs], [labels for _, labels in pairs]
    if len(values) == 1:
        value, labels = _sum_labels(values[0], terms[0], output)
        return permute(value, [labels.index(label) for label in output])
    try:
        while len(values) > 2:
            wanted = set(output).union(*terms[2:])
            kept = "".join(dict.fromkeys(label for label in terms[0] + terms[1] if label in wanted))
            values[:2] = [_two_operands(terms[:2], kept, values[:2], product)]
            terms[:2] = [kept]
        return _two_operands(terms, output, values, product)
    except RefusalError as refusal:
        _require_equal_extents(equation, inputs, operands, str(refusal))
        raise


def _diagonal(value: ir.Value, labels: str) -> tuple[ir.Value, str]:
    """The diagonal over the dims of each label that is there twice; its dim is the last."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            info = tensor_info(value)
            first = labels.index(label)
            second = labels.index(label, first + 1)
            labels = "".join(other for axis, other in enumerate(labels) if axis not in (first, second)) + label
            shape = [extent for axis, extent in enumerate(info.shape) if axis not in (first, second)]
            operands = [value, *map(constant_int, (0, first, second))]
            result = info.with_shape([*shape, info.shape[first]]).torch_type()
            value = build("torch.aten.diagonal", operands, [result])[0]
    return value, labels


def _require_equal_extents(equation: str, inputs: Sequence[str], operands: Sequence[ir.Value], reason: str) -> None:
    """What is not raised goes to a conversion that takes the extents of a label to be equal.

    Raises:
        UnsupportedError: LK4001, an operand has one element where another has more.
    """
    extents: dict[str, set[int | None]] = {}
    for labels, operand in zip(inputs, operands, strict=True):
        for label, extent in zip(labels, tensor_info(operand).shape, strict=True):
            extents.setdefault(label, set()).add(extent)
    broadcast = [label for label, found in extents.items() if 1 in found and len(found) > 1]
    if broadcast:
        raise UnsupportedError(
            "LK4001",
            f"einsum {equation!r} repeats the label {broadcast[0]!r} of one element: {reason}",
            op="aten.einsum",
            hint="sum or squeeze the operand that has one element there",
        )


def parse_equation(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Splits an equation into the labels of each operand and of the result (PyTorch's rule where it has no arrow).

    Args:
        equation: the equation.
        ranks: of the operands.
    """
    text = equation.replace(" ", "").replace("...", ".")
    left, arrow, output = text.partition("->")
    terms = left.split(",")
    hidden = [rank - len(term) + 1 for term, rank in zip(terms, ranks, strict=False) if "." in term]
    unused = [letter for letter in string.ascii_letters if letter not in text]
    if len(terms) != len(ranks) or min(hidden, default=0) < 0 or max(hidden, default=0) > len(unused):
        raise RefusalError(f"equation {equation!r} does not fit operands of ranks {list(ranks)}")
    ellipsis = "".join(unused[: max(hidden, default=0)])
    inputs: list[str] = []
    for term, rank in zip(terms, ranks, strict=True):
        count = rank - len(term) + 1
        inputs.append(term.replace(".", ellipsis[len(ellipsis) - count :]))
        if len(inputs[-1]) != rank:
            raise RefusalError(f"equation {equation!r} does not fit operands of ranks {list(ranks)}")
    if not arrow:
        once = sorted(label for label in set(left) - {",", "."} if left.count(label) == 1)
        return inputs, ellipsis + "".join(once)
    return inputs, output.replace(".", ellipsis)


def _two_operands(inputs: Sequence[str], output: str, operands: Sequence[ir.Value], product: Product) -> ir.Value:
    extents = [
        dict(zip(labels, tensor_info(value).shape, strict=True)) for labels, value in zip(inputs, operands, strict=True)
    ]
    lhs, left = _without_broadcast(operands[0], inputs[0], extents[1])
    rhs, right = _without_broadcast(operands[1], inputs[1], extents[0])
    shared = [label for label in left if label in right]
    lhs, left = _sum_labels(lhs, left, output + "".join(shared))
    rhs, right = _sum_labels(rhs, right, output + "".join(shared))
    batch = [label for label in output if label in shared]
    contracted = [label for label in shared if label not in output]
    rows = [label for label in output if label in left and label not in batch]
    columns = [label for label in output if label in right and label not in batch]
    sizes = {label: (value, axis) for value, labels in ((rhs, right), (lhs, left)) for axis, label in enumerate(labels)}
    lhs = _grouped(lhs, left, batch, [rows, contracted], sizes)
    rhs = _grouped(rhs, right, batch, [contracted, columns], sizes)
    result = product(lhs, rhs)
    order = [*batch, *rows, *columns]
    if len(rows) <= 1 and len(columns) <= 1:
        result = result if columns else squeeze(result, len(batch) + 1)
        result = result if rows else squeeze(result, len(batch))
    else:
        result = view(result, [size(*sizes[label]) for label in order])
    return permute(result, [order.index(label) for label in output])


def _without_broadcast(value: ir.Value, labels: str, other: dict[str, int | None]) -> tuple[ir.Value, str]:
    """Drops the dims of one element that the other operand has more of: the label is that operand's alone."""
    shape = tensor_info(value).shape
    axes = [axis for axis, label in enumerate(labels) if shape[axis] == 1 and other.get(label, 1) != 1]
    for axis in reversed(axes):
        value = squeeze(value, axis)
    return value, "".join(label for axis, label in enumerate(labels) if axis not in axes)


def _grouped(
    value: ir.Value,
    labels: str,
    batch: Sequence[str],
    groups: Sequence[Sequence[str]],
    sizes: Mapping[str, tuple[ir.Value, int]],
) -> ir.Value:
    """``value`` with its labels in the order of the groups, each joined to one dim; ``sizes`` says who has a label."""
    order = [*batch, *(label for group in groups for label in group)]
    value = permute(value, [labels.index(label) for label in order])
    if all(len(group) <= 1 for group in groups):
        for position, group in enumerate(groups):
            value = value if group else unsqueeze(value, len(batch) + position)
        return value
    merged = [size(*sizes[label]) for label in batch]
    return view(value, [*merged, *(product_of([size(*sizes[label]) for label in group]) for group in groups)])


def _sum_labels(value: ir.Value, labels: str, kept: str) -> tuple[ir.Value, str]:
    """Sums over the labels that occur nowhere else."""
    axes = [axis for axis, label in enumerate(labels) if label not in kept]
    if not axes:
        return value, labels
    info = tensor_info(value)
    shape = [extent for axis, extent in enumerate(info.shape) if axis not in axes]
    operands = [value, int_list(axes), constant_bool(False), constant_none()]
    value = build("torch.aten.sum.dim_IntList", operands, [info.with_shape(shape).torch_type()])[0]
    return value, "".join(label for axis, label in enumerate(labels) if axis not in axes)
