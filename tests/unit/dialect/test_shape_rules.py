"""Properties of the shape rules: they agree with what the references compute, and know less only where told less."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowerkit.dialect import (
    DYNAMIC,
    AttentionOp,
    ConvOp,
    ConvTransposeOp,
    GatherOp,
    GroupNormOp,
    MatmulOp,
    MaxPoolOp,
    ReduceOp,
    ResizeOp,
    ScatterOp,
    TopkOp,
)
from lowerkit.dialect.context import new_context
from lowerkit.dialect.shapes import broadcast_shapes, compatible_shapes
from lowerkit.errors import VerifyError
from lowerkit.mlir import ir

CONTEXT = new_context()

# The first example pays for imports.
FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

sizes = st.integers(1, 7)


def tensor(shape: Any, element: str = "f32") -> ir.Type:
    with CONTEXT, ir.Location.unknown():
        return ir.RankedTensorType.get(list(shape), ir.Type.parse(element))


def shapes(types: list[Any]) -> list[list[int]]:
    return [list(kind.shape) for kind in types]


def hide(data: st.DataObject, shape: Any) -> list[int]:
    """The shape with some dimensions unknown."""
    return [DYNAMIC if data.draw(st.booleans()) else size for size in shape]


def agrees(weaker: list[Any], exact: list[Any]) -> bool:
    """Every dimension is either unknown or what it is when all are known."""
    return all(
        compatible_shapes(left.shape, right.shape) and left.element_type == right.element_type
        for left, right in zip(weaker, exact, strict=True)
    )


@FEW
@given(st.lists(sizes, max_size=3), st.lists(st.booleans(), min_size=6, max_size=6), sizes, sizes, sizes, st.data())
def test_matmul(batch: list[int], ones: list[bool], m: int, n: int, k: int, data: st.DataObject) -> None:
    left = [*[1 if one else size for size, one in zip(batch, ones, strict=False)], m, k]
    right = [*[1 if one else size for size, one in zip(batch, ones[3:], strict=False)], k, n]
    right = right[data.draw(st.integers(0, len(right) - 2)) :]
    expected = np.matmul(np.zeros(left), np.zeros(right)).shape
    exact = MatmulOp.infer_result_types(tensor(left), tensor(right))
    assert shapes(exact) == [list(expected)]
    # A dimension of 1 that is hidden no longer broadcasts: hide the others.
    hidden = [hide(data, [size])[0] if size != 1 else 1 for size in left]
    assert agrees(MatmulOp.infer_result_types(tensor(hidden), tensor(right)), exact)
    transposed = [*right[:-2], right[-1], right[-2]]
    assert MatmulOp.infer_result_types(tensor(left), tensor(transposed), transpose_rhs=True) == exact


@FEW
@given(st.lists(sizes, max_size=4), st.lists(sizes, max_size=4))
def test_broadcast_is_numpys(left: list[int], right: list[int]) -> None:
    try:
        expected = list(np.broadcast_shapes(tuple(left), tuple(right)))
    except ValueError:
        with pytest.raises(VerifyError, match="do not broadcast"):
            broadcast_shapes("a", left, "b", right)
        return
    assert broadcast_shapes("a", left, "b", right) == expected


windows = st.fixed_dictionaries(
    {
        "kernel": st.integers(1, 3),
        "stride": st.integers(1, 3),
        "padding": st.integers(0, 2),
        "dilation": st.integers(1, 3),
    }
)


@FEW
@given(st.integers(1, 3), st.integers(1, 3), windows, st.integers(1, 12), st.booleans(), st.data())
def test_conv(
    dimensions: int, groups: int, window: dict[str, int], size: int, channels_last: bool, data: st.DataObject
) -> None:
    x, w = [2, 2 * groups, *[size] * dimensions], [3 * groups, 2, *[window["kernel"]] * dimensions]
    parameters: dict[str, Any] = {
        "strides": [window["stride"]] * dimensions,
        "padding": [window["padding"]] * 2 * dimensions,
        "dilation": [window["dilation"]] * dimensions,
        "groups": groups,
        "channels_last": channels_last,
    }
    function = (torch.conv1d, torch.conv2d, torch.conv3d)[dimensions - 1]
    order = [0, *range(2, dimensions + 2), 1] if channels_last else list(range(dimensions + 2))
    given_shape = [x[axis] for axis in order]
    try:
        meta = (torch.empty(x, device="meta"), torch.empty(w, device="meta"))
        wanted = function(*meta, None, window["stride"], window["padding"], window["dilation"], groups).shape
    except RuntimeError:
        with pytest.raises(VerifyError, match="spans"):
            ConvOp.infer_result_types(tensor(given_shape), tensor(w), **parameters)
        return
    exact = ConvOp.infer_result_types(tensor(given_shape), tensor(w), **parameters)
    assert shapes(exact) == [[wanted[axis] for axis in order]]
    assert agrees(ConvOp.infer_result_types(tensor(hide(data, given_shape)), tensor(w), **parameters), exact)


@FEW
@given(st.integers(1, 3), st.integers(1, 2), windows, st.integers(1, 6), st.data())
def test_conv_transpose(dimensions: int, groups: int, window: dict[str, int], size: int, data: st.DataObject) -> None:
    extra = data.draw(st.integers(0, max(window["stride"], window["dilation"]) - 1))
    x, w = [2, 2 * groups, *[size] * dimensions], [2 * groups, 3, *[window["kernel"]] * dimensions]
    parameters: dict[str, Any] = {
        "strides": [window["stride"]] * dimensions,
        "padding": [window["padding"]] * 2 * dimensions,
        "dilation": [window["dilation"]] * dimensions,
        "output_padding": [extra] * dimensions,
        "groups": groups,
    }
    single = (size - 1) * window["stride"] - 2 * window["padding"] + window["dilation"] * (window["kernel"] - 1)
    expected = single + extra + 1
    if expected < 1:
        with pytest.raises(VerifyError, match="cuts the whole result away"):
            ConvTransposeOp.infer_result_types(tensor(x), tensor(w), **parameters)
        return
    exact = ConvTransposeOp.infer_result_types(tensor(x), tensor(w), **parameters)
    assert shapes(exact) == [[2, 3 * groups, *[expected] * dimensions]]
    assert agrees(ConvTransposeOp.infer_result_types(tensor(hide(data, x)), tensor(w), **parameters), exact)


@FEW
@given(windows, st.integers(1, 12), st.data())
def test_max_pool(window: dict[str, int], size: int, data: st.DataObject) -> None:
    window = {**window, "padding": min(window["padding"], window["kernel"] // 2)}
    parameters: dict[str, Any] = {
        "kernel": [window["kernel"]],
        "strides": [window["stride"]],
        "padding": [window["padding"]] * 2,
        "dilation": [window["dilation"]],
    }
    try:
        wanted = torch.max_pool1d(
            torch.zeros(2, 3, size), window["kernel"], window["stride"], window["padding"], window["dilation"]
        ).shape
    except RuntimeError:
        with pytest.raises(VerifyError, match="spans"):
            MaxPoolOp.infer_result_types(tensor([2, 3, size]), **parameters)
        return
    exact = MaxPoolOp.infer_result_types(tensor([2, 3, size]), **parameters)
    assert shapes(exact) == [list(wanted)]
    assert agrees(MaxPoolOp.infer_result_types(tensor(hide(data, [2, 3, size])), **parameters), exact)


@FEW
@given(st.lists(sizes, min_size=1, max_size=4), st.booleans(), st.data())
def test_reduce(shape: list[int], keep: bool, data: st.DataObject) -> None:
    axes = sorted(data.draw(st.sets(st.integers(0, len(shape) - 1))))
    exact = ReduceOp.infer_result_types(tensor(shape), kind="sum", axes=axes, keep_dims=keep)
    assert shapes(exact) == [list(np.sum(np.zeros(shape), axis=tuple(axes), keepdims=keep).shape)]
    hidden = tensor(hide(data, shape))
    assert agrees(ReduceOp.infer_result_types(hidden, kind="sum", axes=axes, keep_dims=keep), exact)


@FEW
@given(st.lists(sizes, min_size=1, max_size=4), st.lists(sizes, max_size=3), st.data())
def test_gather(shape: list[int], indices: list[int], data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    exact = GatherOp.infer_result_types(tensor(shape), tensor(indices, "i64"), axis=axis)
    assert shapes(exact) == [list(np.take(np.zeros(shape), np.zeros(indices, int), axis).shape)]
    hidden = GatherOp.infer_result_types(tensor(hide(data, shape)), tensor(hide(data, indices), "i64"), axis=axis)
    assert agrees(hidden, exact)


@FEW
@given(st.lists(sizes, min_size=1, max_size=4), st.lists(sizes, max_size=3), st.data())
def test_scatter(shape: list[int], indices: list[int], data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    updates = [*shape[:axis], *indices, *shape[axis + 1 :]]
    operands = (tensor(shape), tensor(indices, "i64"), tensor(updates))
    assert shapes(ScatterOp.infer_result_types(*operands, axis=axis, kind="add")) == [shape]
    hidden = (tensor(shape), tensor(hide(data, indices), "i64"), tensor(hide(data, updates)))
    assert shapes(ScatterOp.infer_result_types(*hidden, axis=axis, kind="set")) == [shape]


@FEW
@given(st.lists(sizes, min_size=1, max_size=4), st.data())
def test_topk(shape: list[int], data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    k = data.draw(st.integers(1, shape[axis]))
    values, indices = TopkOp.infer_result_types(tensor(shape), k=k, axis=axis)
    assert list(values.shape) == [*shape[:axis], k, *shape[axis + 1 :]]
    assert list(indices.shape) == list(values.shape)
    with pytest.raises(VerifyError, match="attribute k"):
        TopkOp.infer_result_types(tensor(shape), k=shape[axis] + 1, axis=axis)


def test_what_one_operand_does_not_know_comes_from_another() -> None:
    (kind,) = AttentionOp.infer_result_types(
        tensor([DYNAMIC, 4, 5, 8]), tensor([2, 2, 7, 8]), tensor([DYNAMIC, 2, 7, 6]), scale=1.0
    )
    assert list(kind.shape) == [2, 4, 5, 6]
    (kind,) = MatmulOp.infer_result_types(tensor([DYNAMIC, 3, 4]), tensor([5, 4, 6]))
    assert list(kind.shape) == [5, 3, 6]


def test_group_norm_and_resize_keep_what_is_dynamic() -> None:
    (kind,) = GroupNormOp.infer_result_types(tensor([DYNAMIC, 8, DYNAMIC]), groups=2)
    assert list(kind.shape) == [DYNAMIC, 8, DYNAMIC]
    (kind,) = ResizeOp.infer_result_types(tensor([DYNAMIC, DYNAMIC, 3]), mode="nearest", size=[9], channels_last=True)
    assert list(kind.shape) == [DYNAMIC, 9, 3]


@pytest.mark.parametrize(
    ("element", "result"),
    [("f16", "f16"), ("bf16", "bf16"), ("f64", "f64"), ("i8", "i32"), ("i32", "i32"), ("i64", "i64")],
)
def test_element_type_of_products(element: str, result: str) -> None:
    (kind,) = MatmulOp.infer_result_types(tensor([2, 3], element), tensor([3, 4], element))
    assert str(kind.element_type) == result
