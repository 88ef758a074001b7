"""Each lowering computes what the numpy reference says, for static and dynamic shapes, and reaches the LLVM dialect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lowerkit.dialect import (
    AttentionOp,
    AvgPoolOp,
    ConvOp,
    ConvTransposeOp,
    CumulativeOp,
    GatherOp,
    GroupNormOp,
    LayerNormOp,
    MatmulOp,
    MaxPoolOp,
    ReduceOp,
    ResizeOp,
    RmsNormOp,
    RopeOp,
    ScatterOp,
    SoftmaxOp,
    SortOp,
    TopkOp,
)

# One rounding of the result type, and a few of the f32 arithmetic before it.
BUDGET = {"float64": 1e-13, "float32": 4e-6, "float16": 1.1e-3, "bfloat16": 8e-3}

FLOATS = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]


@dataclass
class Case:
    name: str
    build: Callable[..., Any]
    shapes: tuple[Any, ...]
    dynamic: Any = True
    """Which dimensions are unknown in the dynamic variant."""


CASES = [
    Case("matmul", MatmulOp.build, ((3, 4, 5), (5, 6))),
    Case("matmul batched", MatmulOp.build, ((2, 3, 4, 5), (2, 3, 5, 7))),
    Case("matmul vector", MatmulOp.build, ((1, 33), (33, 1))),
    Case(
        "matmul broadcast",
        lambda a, b: MatmulOp.build(a, b, transpose_lhs=True, transpose_rhs=True),
        ((3, 1, 5, 4), (2, 6, 5)),
        (2, 3),
    ),
    Case("softmax", lambda x: SoftmaxOp.build(x, axis=1), ((3, 7, 5),)),
    Case("log softmax", lambda x: SoftmaxOp.build(x, axis=-1, log=True), ((3, 7),)),
    Case("layer_norm", LayerNormOp.build, ((3, 4, 9), (9,), (9,))),
    Case("layer_norm over two", lambda x, s: LayerNormOp.build(x, s, normalized_rank=2), ((3, 4, 5), (4, 5))),
    Case("layer_norm bias only", lambda x, b: LayerNormOp.build(x, None, b), ((3, 9), (9,))),
    Case("layer_norm plain", LayerNormOp.build, ((2, 3, 9),)),
    Case("rms_norm", RmsNormOp.build, ((3, 4, 9), (9,))),
    Case("rms_norm plain", lambda x: RmsNormOp.build(x, epsilon=1e-3), ((3, 9),)),
    Case("group_norm", lambda x, s, b: GroupNormOp.build(x, s, b, groups=2), ((3, 4, 5, 6), (4,), (4,))),
    Case("instance_norm", lambda x: GroupNormOp.build(x, groups=4), ((3, 4, 7),)),
    Case(
        "group_norm channels last",
        lambda x, s, b: GroupNormOp.build(x, s, b, groups=3, channels_last=True),
        ((2, 5, 3, 6), (6,), (6,)),
    ),
    Case("conv", ConvOp.build, ((2, 4, 9, 8), (6, 4, 3, 3)), ((0, 1, 2, 3), ())),
    Case(
        "conv channels dynamic", lambda x, f: ConvOp.build(x, f, groups=2), ((2, 4, 9, 8), (6, 2, 3, 3)), ((0, 1), (0,))
    ),
    Case("conv padded", lambda x, f: ConvOp.build(x, f, strides=2, padding=1), ((2, 4, 9, 8), (6, 4, 3, 3)), (0,)),
    Case(
        "conv dilated",
        lambda x, f: ConvOp.build(x, f, dilation=[2, 1], padding=[2, 1, 0, 3]),
        ((1, 3, 9, 8), (4, 3, 3, 2)),
        (0,),
    ),
    Case("conv depthwise", lambda x, f: ConvOp.build(x, f, groups=6, padding=1), ((2, 6, 7, 5), (6, 1, 3, 3)), (0,)),
    Case(
        "conv grouped channels last",
        lambda x, f: ConvOp.build(x, f, groups=2, channels_last=True, padding=1),
        ((2, 9, 8, 4), (6, 2, 3, 3)),
        ((0, 1, 3), ()),
    ),
    Case("conv 1d", lambda x, f: ConvOp.build(x, f, strides=3), ((2, 3, 17), (5, 3, 4)), ((0, 2), ())),
    Case("conv 3d", ConvOp.build, ((1, 2, 5, 6, 7), (3, 2, 2, 3, 2)), (0,)),
    Case("conv_transpose", ConvTransposeOp.build, ((2, 4, 5, 6), (4, 6, 3, 3)), ((0, 2, 3), (1,))),
    Case(
        "conv_transpose strided",
        lambda x, f: ConvTransposeOp.build(x, f, strides=2, padding=[1, 2, 0, 1], output_padding=1, dilation=[1, 2]),
        ((2, 4, 5, 6), (4, 3, 3, 2)),
        ((0, 3), ()),
    ),
    Case(
        "conv_transpose grouped channels last",
        lambda x, f: ConvTransposeOp.build(x, f, groups=2, channels_last=True, strides=2),
        ((2, 5, 6, 4), (4, 3, 3, 3)),
        (0,),
    ),
    Case("conv_transpose 1d", lambda x, f: ConvTransposeOp.build(x, f, strides=4), ((2, 3, 5), (3, 2, 3)), (0,)),
    Case("max_pool", lambda x: MaxPoolOp.build(x, kernel=3, strides=2, padding=1), ((2, 3, 9, 8),)),
    Case("max_pool dilated", lambda x: MaxPoolOp.build(x, kernel=[2, 3], dilation=2, strides=1), ((2, 3, 9, 8),)),
    Case("max_pool 3d", lambda x: MaxPoolOp.build(x, kernel=2, channels_last=True), ((1, 4, 5, 6, 2),)),
    Case("avg_pool", lambda x: AvgPoolOp.build(x, kernel=3, strides=2, padding=1), ((2, 3, 9, 8),)),
    Case(
        "avg_pool without padding in the count",
        lambda x: AvgPoolOp.build(x, kernel=3, strides=2, padding=[1, 1, 1, 2], count_include_pad=False),
        ((2, 3, 9, 8),),
    ),
    Case("avg_pool divisor", lambda x: AvgPoolOp.build(x, kernel=2, divisor=3), ((2, 3, 9),)),
    Case(
        "avg_pool ceil",
        lambda x: AvgPoolOp.build(x, kernel=3, strides=2, padding=[1, 2, 1, 2], ceil_extra=1),
        ((2, 3, 8, 10),),
    ),
    Case("mean", lambda x: ReduceOp.build(x, kind="mean", axes=[0, 2]), ((3, 4, 5),)),
    Case("sum of all", lambda x: ReduceOp.build(x, kind="sum"), ((3, 4),)),
    Case("sum of all, kept", lambda x: ReduceOp.build(x, kind="sum", keep_dims=True), ((3, 4, 2),)),
    Case("prod", lambda x: ReduceOp.build(x, kind="prod", axes=[-1]), ((3, 4),)),
    Case("max", lambda x: ReduceOp.build(x, kind="max", axes=[1], keep_dims=True), ((3, 4, 5),)),
    Case("min", lambda x: ReduceOp.build(x, kind="min", axes=[0]), ((3, 4, 5),)),
    Case("argmax", lambda x: ReduceOp.build(x, kind="argmax", axes=[1]), ((3, 4, 5),)),
    Case("argmin", lambda x: ReduceOp.build(x, kind="argmin", axes=[0], keep_dims=True), ((7,),)),
    Case("any", lambda x: ReduceOp.build(x, kind="any", axes=[0]), ((3, 4),)),
    Case("all", lambda x: ReduceOp.build(x, kind="all", axes=[1], keep_dims=True), ((3, 4),)),
    Case("cumulative sum", lambda x: CumulativeOp.build(x, axis=1), ((3, 4, 5),)),
    Case("cumulative prod", lambda x: CumulativeOp.build(x, kind="prod", exclusive=True), ((3, 5),)),
    Case("cumulative max", lambda x: CumulativeOp.build(x, kind="max", axis=0, reverse=True), ((7, 2),)),
    Case("cumulative min", lambda x: CumulativeOp.build(x, kind="min", exclusive=True, reverse=True), ((5,),)),
    Case("sort", lambda x: SortOp.build(x, axis=1), ((3, 7, 2),)),
    Case("sort descending", lambda x: SortOp.build(x, descending=True), ((3, 16),)),
    Case("sort one", SortOp.build, ((3, 1),)),
    Case("topk", lambda x: TopkOp.build(x, k=3, axis=0), ((9, 2),)),
    Case("topk smallest", lambda x: TopkOp.build(x, k=4, largest=False), ((2, 9),)),
    Case("rope", RopeOp.build, ((2, 3, 5, 6), (1, 1, 5, 6), (1, 1, 5, 6)), (2,)),
    Case("rope half table", RopeOp.build, ((2, 3, 5, 6), (5, 3), (5, 3)), ((0, 1), (), ())),
    Case(
        "rope interleaved", lambda x, c, s: RopeOp.build(x, c, s, interleaved=True), ((2, 3, 5, 6), (5, 6), (5, 6)), ()
    ),
    Case(
        "rope interleaved half table",
        lambda x, c, s: RopeOp.build(x, c, s, interleaved=True),
        ((2, 3, 5, 6), (2, 1, 5, 3), (2, 1, 5, 3)),
        (2,),
    ),
    Case(
        "attention", lambda q, k, v: AttentionOp.build(q, k, v, scale=0.4), ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6))
    ),
    Case(
        "attention grouped, causal",
        lambda q, k, v: AttentionOp.build(q, k, v, causal=True),
        ((2, 6, 5, 4), (2, 2, 7, 4), (2, 2, 7, 3)),
        (0, 2),
    ),
    Case(
        "attention float mask",
        lambda q, k, v, m: AttentionOp.build(q, k, v, m, scale=0.5),
        ((2, 4, 5, 4), (2, 2, 7, 4), (2, 2, 7, 4), (4, 5, 7)),
        (0,),
    ),
    Case(
        "attention mask of one row",
        lambda q, k, v, m: AttentionOp.build(q, k, v, m, scale=0.5),
        ((2, 4, 5, 4), (2, 2, 7, 4), (2, 2, 7, 4), (2, 1, 1, 7)),
        (0,),
    ),
]


def arrays_of(case: Case, random: np.random.Generator, dtype: Any) -> list[Any]:
    return [random.standard_normal(shape).astype(dtype) for shape in case.shapes]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_static(case: Case, check_lowering: Any, random: np.random.Generator) -> None:
    check_lowering(case.build, arrays_of(case, random, np.float32), relative=4e-6, absolute=4e-6)


@pytest.mark.parametrize("case", [case for case in CASES if case.dynamic != ()], ids=lambda case: case.name)
def test_dynamic(case: Case, check_lowering: Any, random: np.random.Generator) -> None:
    arrays = arrays_of(case, random, np.float32)
    check_lowering(case.build, arrays, dynamic=case.dynamic, relative=4e-6, absolute=4e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16], ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_float_types(case: Case, dtype: Any, check_lowering: Any, random: np.random.Generator) -> None:
    budget = BUDGET[np.dtype(dtype).name]
    check_lowering(case.build, arrays_of(case, random, dtype), relative=budget, absolute=budget)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"])
@pytest.mark.parametrize("dynamic", [False, (0, 2, 3)], ids=["static", "dynamic"])
def test_resize(mode: str, coordinates: str, dynamic: Any, check_lowering: Any, random: np.random.Generator) -> None:
    for size in ([7, 5], [3, 1], [4, 13]):
        check_lowering(
            lambda x, size=size: ResizeOp.build(x, mode=mode, coordinates=coordinates, size=size),
            [random.standard_normal((2, 3, 5, 6)).astype(np.float32)],
            dynamic=dynamic,
        )


@pytest.mark.parametrize("rounding", ["floor", "round_prefer_floor", "ceil", "round_prefer_ceil"])
def test_resize_nearest_rounding(rounding: str, check_lowering: Any, random: np.random.Generator) -> None:
    for coordinates in ("half_pixel", "asymmetric"):
        check_lowering(
            lambda x, coordinates=coordinates: ResizeOp.build(
                x, mode="nearest", coordinates=coordinates, nearest_rounding=rounding, size=[6], channels_last=True
            ),
            [random.integers(-100, 100, (2, 4, 3))],
        )


def test_resize_given_scale(check_lowering: Any, random: np.random.Generator) -> None:
    check_lowering(
        lambda x: ResizeOp.build(x, mode="linear", size=[7], scales=[1.5]),
        [random.standard_normal((2, 3, 5)).astype(np.float32)],
        dynamic=True,
    )


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "argmax", "argmin", "any", "all"])
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_integer_reduce(kind: str, dtype: Any, check_lowering: Any, random: np.random.Generator) -> None:
    array = random.integers(-9, 9, (3, 4, 5)).astype(dtype)
    check_lowering(lambda x: ReduceOp.build(x, kind=kind, axes=[1]), [array], relative=0, absolute=0)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32])
def test_integer_matmul_sums_in_i32(dtype: Any, check_lowering: Any, random: np.random.Generator) -> None:
    arrays = [random.integers(-100, 100, shape).astype(dtype) for shape in ((4, 50), (50, 3))]
    check_lowering(MatmulOp.build, arrays, relative=0, absolute=0)


def test_integer_conv(check_lowering: Any, random: np.random.Generator) -> None:
    arrays = [random.integers(-100, 100, shape).astype(np.int8) for shape in ((1, 4, 6, 6), (8, 4, 3, 3))]
    check_lowering(lambda x, f: ConvOp.build(x, f, padding=1), arrays, relative=0, absolute=0)


def test_integer_sort_and_cumulative(check_lowering: Any, random: np.random.Generator) -> None:
    array = random.integers(-4, 4, (3, 20)).astype(np.int32)
    check_lowering(SortOp.build, [array], relative=0, absolute=0)
    check_lowering(lambda x: SortOp.build(x, descending=True), [array], relative=0, absolute=0)
    check_lowering(CumulativeOp.build, [array], relative=0, absolute=0)


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gather(index: Any, dynamic: bool, axis: int, check_lowering: Any, random: np.random.Generator) -> None:
    data = random.standard_normal((4, 5, 6)).astype(np.float32)
    indices = random.integers(-4, 4, (2, 3)).astype(index)
    check_lowering(lambda d, i: GatherOp.build(d, i, axis=axis), [data, indices], dynamic=dynamic)


def test_gather_by_scalar(check_lowering: Any, random: np.random.Generator) -> None:
    check_lowering(lambda d, i: GatherOp.build(d, i), [random.standard_normal((4, 5)), np.array(-2)])


def test_gather_clamps_what_the_reference_rejects(module_of: Any, random: np.random.Generator) -> None:
    from lowerkit.dialect.interpreter.interpreter import interpret

    arrays = [random.standard_normal((4, 3)), np.array([7, -9])]
    with pytest.raises(IndexError):
        interpret(module_of(GatherOp.build, arrays), arrays)
    (clamped,) = interpret(module_of(GatherOp.build, arrays, lower=True), arrays)
    np.testing.assert_array_equal(clamped, arrays[0][[3, 0]])


@pytest.mark.parametrize("kind", ["set", "add", "mul", "max", "min"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_scatter(kind: str, dynamic: bool, axis: int, check_lowering: Any, random: np.random.Generator) -> None:
    data = random.standard_normal((4, 5, 6)).astype(np.float32)
    indices = random.integers(-4, 4, (2, 3))  # six into four places: some are met twice
    updates = random.standard_normal((*data.shape[:axis], 2, 3, *data.shape[axis + 1 :])).astype(np.float32)
    updates.flat[random.integers(0, updates.size, 5)] = (np.nan, np.inf, -np.inf, 0.0, -0.0)
    arrays = [data, indices, updates]
    check_lowering(lambda d, i, u: ScatterOp.build(d, i, u, axis=axis, kind=kind), arrays, dynamic=dynamic)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.int32, np.int64])
def test_scatter_rounds_after_each_term(dtype: Any, check_lowering: Any, random: np.random.Generator) -> None:
    arrays = [np.zeros((3, 2), dtype), random.integers(0, 3, 40), (random.standard_normal((40, 2)) * 9).astype(dtype)]
    check_lowering(lambda d, i, u: ScatterOp.build(d, i, u, kind="add"), arrays, relative=0, absolute=0)


def test_scatter_leaves_out_what_the_reference_rejects(module_of: Any, random: np.random.Generator) -> None:
    from lowerkit.dialect.interpreter.interpreter import interpret

    arrays = [random.standard_normal((4, 3)), np.array([7, -9, 4, -5, 2]), random.standard_normal((5, 3))]
    with pytest.raises(IndexError):
        interpret(module_of(ScatterOp.build, arrays), arrays)
    (written,) = interpret(module_of(ScatterOp.build, arrays, lower=True), arrays)
    expected = arrays[0].copy()
    expected[2] = arrays[2][4]
    np.testing.assert_array_equal(written, expected)


EXTREMES = np.array(
    [
        [np.nan, 1.0, -np.inf, np.inf, 0.0, -0.0],
        [-np.inf] * 6,
        [3.0, 3.0, np.nan, np.nan, -1.0, 3.0],
        [1e38, 3e38, -3e38, 1e-40, 2.0, 88.0],
    ],
    np.float32,
)


@pytest.mark.parametrize(
    "build",
    [
        *[lambda x, kind=kind: ReduceOp.build(x, kind=kind, axes=[1]) for kind in ("max", "min", "argmax", "argmin")],
        *[lambda x, kind=kind: ReduceOp.build(x, kind=kind, axes=[0]) for kind in ("any", "all", "sum")],
        SoftmaxOp.build,
        lambda x: SoftmaxOp.build(x, log=True),
        SortOp.build,
        lambda x: SortOp.build(x, descending=True),
        lambda x: TopkOp.build(x, k=4),
        lambda x: TopkOp.build(x, k=4, largest=False),
        *[lambda x, kind=kind: CumulativeOp.build(x, kind=kind) for kind in ("max", "min")],
    ],
)
def test_extremes(build: Any, check_lowering: Any) -> None:
    check_lowering(build, [EXTREMES])


def test_cumulative_sum_extremes(check_lowering: Any) -> None:
    # Not the last row: its running sum leaves the range of f32 and comes back, which a float64 sum survives.
    check_lowering(CumulativeOp.build, [EXTREMES[:3]])


def test_max_pool_extremes(check_lowering: Any) -> None:
    check_lowering(lambda x: MaxPoolOp.build(x, kernel=2, strides=1, padding=1), [EXTREMES.reshape(1, 2, 2, 6)])


def test_attention_row_without_keys_is_zero(check_lowering: Any, reference: Any, random: np.random.Generator) -> None:
    arrays = [random.standard_normal((1, 2, 3, 4)).astype(np.float32) for _ in range(3)]
    mask = np.array([[True, False, True], [False, False, False], [True, True, True]])
    (found,) = reference(AttentionOp.build, *arrays, mask)
    assert not np.any(found[:, :, 1])
    assert np.all(found[:, :, 0] != 0)
    check_lowering(AttentionOp.build, [*arrays, mask])
    additive = np.where(mask, 0.25, -np.inf).astype(np.float32)
    check_lowering(AttentionOp.build, [*arrays, additive])


def test_scale_that_varies_between_row_and_table_types(check_lowering: Any, random: np.random.Generator) -> None:
    """bf16 rows with an f32 scale, as some norms keep it."""
    arrays = [random.standard_normal((3, 8)).astype(ml_dtypes.bfloat16), random.standard_normal(8).astype(np.float32)]
    check_lowering(RmsNormOp.build, arrays, relative=8e-3, absolute=8e-3)
