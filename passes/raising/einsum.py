"""Spells an einsum of one or two operands as a matrix product between permutations and reshapes.

Vocabulary: a *label* is a letter of the equation. With two operands a label is *batch* (in both operands and in the
result), *contracted* (in both, not in the result), *row* (in the left operand and the result), *column* (in the right
operand and the result), or *summed* (in one operand only).

Steps: sum over summed labels; bring the operands to [batch..., rows, contracted] and [batch..., contracted,
columns]; multiply; split the groups again; permute to the order of the result. Each operand is moved at most once,
and not at all where its dims already stand in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lowerkit.errors import UnsupportedError
from lowerkit.mlir import ir
from lowerkit.passes.raising.torch_build import permute, squeeze, unsqueeze, view
from lowerkit.passes.raising.torch_ir import (
    RefusalError,
    build,
    constant_bool,
    constant_none,
    int_list,
    tensor_info,
)

Product = Callable[[ir.Value, ir.Value], ir.Value]


def einsum_product(equation: str, operands: Sequence[ir.Value], product: Product) -> ir.Value:
    """Builds the einsum ``equation`` over ``operands``, with ``product`` for the matrix product.

    Refuses ellipses, repeated labels in one operand, more than two operands, and dynamic dims in a group that has to
    be reshaped.
    """
    inputs, output = parse_equation(equation)
    if len(inputs) != len(operands):
        raise RefusalError(f"equation {equation!r} has {len(inputs)} terms for {len(operands)} operands")
    for labels, operand in zip(inputs, operands, strict=True):
        if len(set(labels)) != len(labels) or len(labels) != tensor_info(operand).rank:
            raise RefusalError(f"equation {equation!r} does not fit {tensor_info(operand)} or takes a diagonal")
    if len(operands) == 1:
        value, labels = _sum_labels(operands[0], inputs[0], output)
        return permute(value, [labels.index(label) for label in output])
    try:
        if len(operands) != 2:
            raise RefusalError(f"an einsum of {len(operands)} operands")
        return _two_operands(inputs, output, operands, product)
    except RefusalError as refusal:
        _require_equal_extents(equation, inputs, operands, str(refusal))
        raise


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


def parse_equation(equation: str) -> tuple[list[str], str]:
    """Splits an equation into the labels of each operand and of the result (PyTorch's rule where it has no arrow)."""
    text = equation.replace(" ", "")
    if "." in text:
        raise RefusalError(f"equation {equation!r} has an ellipsis")
    left, arrow, output = text.partition("->")
    inputs = left.split(",")
    if not arrow:
        output = "".join(sorted(label for label in set(left) - {","} if left.count(label) == 1))
    return inputs, output


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
    sizes = dict(zip(left, tensor_info(lhs).shape, strict=True)) | dict(zip(right, tensor_info(rhs).shape, strict=True))
    lhs = _grouped(lhs, left, batch, [rows, contracted], sizes)
    rhs = _grouped(rhs, right, batch, [contracted, columns], sizes)
    result = product(lhs, rhs)
    order = [*batch, *rows, *columns]
    if len(rows) <= 1 and len(columns) <= 1:
        result = result if columns else squeeze(result, len(batch) + 1)
        result = result if rows else squeeze(result, len(batch))
    else:
        result = view(result, [_known(sizes, label) for label in order])
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
    sizes: dict[str, int | None],
) -> ir.Value:
    order = [*batch, *(label for group in groups for label in group)]
    value = permute(value, [labels.index(label) for label in order])
    if all(len(group) <= 1 for group in groups):
        for position, group in enumerate(groups):
            value = value if group else unsqueeze(value, len(batch) + position)
        return value
    merged: list[int | ir.Value] = [_known(sizes, label) for label in batch]
    for group in groups:
        count = 1
        for label in group:
            count *= _known(sizes, label)
        merged.append(count)
    return view(value, merged)


def _known(sizes: dict[str, int | None], label: str) -> int:
    found = sizes[label]
    if found is None:
        raise RefusalError(f"label {label!r} of an einsum has a size that is not known at compile time")
    return found


def _sum_labels(value: ir.Value, labels: str, kept: str) -> tuple[ir.Value, str]:
    """Sums over the labels that occur nowhere else."""
    axes = [axis for axis, label in enumerate(labels) if label not in kept]
    if not axes:
        return value, labels
    info = tensor_info(value)
    shape = [size for axis, size in enumerate(info.shape) if axis not in axes]
    operands = [value, int_list(axes), constant_bool(False), constant_none()]
    value = build("torch.aten.sum.dim_IntList", operands, [info.with_shape(shape).torch_type()])[0]
    return value, "".join(label for axis, label in enumerate(labels) if axis not in axes)
