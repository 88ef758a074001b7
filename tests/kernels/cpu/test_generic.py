"""The generic family against the interpreter: every op of the dialect, odd and dynamic shapes, all float types."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lowerkit.codegen.shapes import result_shapes
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
from lowerkit.dialect.context import new_context
from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.mlir import arith, func, ir, linalg
from lowerkit.mlir import tensor as tensor_dialect
from lowerkit.runtimes.expressions import evaluate
from lowerkit.targets.cpu.families import select_kernel
from lowerkit.targets.cpu.generic.generic import GenericFamily
from lowerkit.targets.cpu.harness import LoadedKernel
from lowerkit.targets.cpu.levels import cpu_features, host_features, runs_on_host
from lowerkit.targets.plan import DeviceCode
from lowerkit.targets.region_view import RegionView

Array = np.ndarray[Any, Any]
Build = Callable[..., Any]
DTYPES: dict[str, Any] = {
    "f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "i1": np.bool_,
    "i8": np.int8, "i32": np.int32, "i64": np.int64,
}  # fmt: skip
# Sums are in another order than numpy's: a few units in the last place of the type, scaled by the sum's length.
TOLERANCE = {"f64": 1e-13, "f32": 2e-5, "f16": 4e-3, "bf16": 3e-2}


def tensor(shape: Sequence[int | None], element: str) -> ir.RankedTensorType:
    dynamic = ir.ShapedType.get_dynamic_size()
    return ir.RankedTensorType.get([dynamic if extent is None else extent for extent in shape], ir.Type.parse(element))


def region(operands: Sequence[tuple[Sequence[int | None], str]], build: Build, kind: str = "generic") -> RegionView:
    context = new_context()
    with context, ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            function = func.FuncOp("region", ([tensor(*operand) for operand in operands], []))
            block = function.add_entry_block()
            with ir.InsertionPoint(block):
                values = build(*block.arguments)
                values = list(values) if isinstance(values, (list, tuple)) else [values]
                func.ReturnOp(values)
            types = ir.FunctionType.get([a.type for a in block.arguments], [value.type for value in values])
            function.attributes["function_type"] = ir.TypeAttr.get(types)
        return RegionView(module, kind)


def arrays_for(operands: Sequence[tuple[Sequence[int | None], str]], sizes: Sequence[Sequence[int]]) -> list[Array]:
    generator = np.random.default_rng(7)
    made: list[Array] = []
    for (_, element), shape in zip(operands, sizes, strict=True):
        if element.startswith("i"):
            made.append(generator.integers(0, 2 if element == "i1" else 3, shape).astype(DTYPES[element]))
        else:
            made.append(generator.standard_normal(shape).astype(np.float32).astype(DTYPES[element]))
    return made


def run(view: RegionView, plan: DeviceCode, inputs: Sequence[Array], pieces: int = 1, cpu: str = "host") -> list[Array]:
    shapes = result_shapes(view, [array.shape for array in inputs])
    results = [
        np.full([evaluate(extent, {}) for extent in shape], 77, DTYPES[str(type_.element_type)])
        for shape, type_ in zip(shapes, view.results, strict=True)
    ]
    buffers = [*inputs, *results]
    dims = [
        size
        for array, type_ in zip(buffers, view.buffer_types, strict=True)
        for axis, size in enumerate(array.shape)
        if type_.is_dynamic_dim(axis)
    ]
    call, count = LoadedKernel(plan, cpu_features(cpu)).bind(buffers, dims)
    bounds = [count * piece // pieces for piece in range(pieces + 1)]
    for begin, end in reversed(list(itertools.pairwise(bounds))):
        call(begin, end)
    return results


def check(view: RegionView, inputs: Sequence[Array], pieces: int = 1, cpu: str = "host") -> DeviceCode:
    plan = GenericFamily().plan(view, cpu_features(cpu))
    assert isinstance(plan, DeviceCode)
    expected = interpret(view.clone_module(), inputs, function="region")
    for actual, wanted, type_ in zip(run(view, plan, inputs, pieces, cpu), expected, view.results, strict=True):
        assert actual.shape == wanted.shape
        limit = TOLERANCE.get(str(type_.element_type))
        if limit is None:
            np.testing.assert_array_equal(actual, wanted)
        else:
            np.testing.assert_allclose(actual.astype(np.float64), wanted.astype(np.float64), rtol=limit, atol=limit * 2)
    return plan


F = "f32"
CASES: dict[str, tuple[list[tuple[Sequence[int | None], str]], list[Sequence[int]], Build]] = {
    "matmul": ([((5, 7), F), ((7, 3), F)], [(5, 7), (7, 3)], MatmulOp.build),
    "matmul_dynamic": ([((None, None), F), ((None, 3), F)], [(13, 9), (9, 3)], MatmulOp.build),
    "matmul_batched": (
        [((2, 1, 5, 7), F), ((3, 4, 7), F)],
        [(2, 1, 5, 7), (3, 4, 7)],
        lambda a, b: MatmulOp.build(a, b, transpose_rhs=True),
    ),
    "matmul_bf16": ([((5, 33), "bf16"), ((33, 3), "bf16")], [(5, 33), (33, 3)], MatmulOp.build),
    "matmul_f16": ([((5, 33), "f16"), ((33, 3), "f16")], [(5, 33), (33, 3)], MatmulOp.build),
    "matmul_f64": ([((5, 33), "f64"), ((33, 3), "f64")], [(5, 33), (33, 3)], MatmulOp.build),
    "conv": (
        [((1, 3, 9, 7), F), ((4, 3, 3, 3), F)],
        [(1, 3, 9, 7), (4, 3, 3, 3)],
        lambda x, w: ConvOp.build(x, w, padding=[1, 1, 0, 2], strides=[2, 1]),
    ),
    "conv_dynamic_channels_last": (
        [((None, None, 7, 4), F), ((6, 2, 3, 3), F)],
        [(2, 9, 7, 4), (6, 2, 3, 3)],
        lambda x, w: ConvOp.build(x, w, padding=1, groups=2, channels_last=True),
    ),
    "conv_1d_dilated": (
        [((2, 4, 17), F), ((4, 1, 3), F)],
        [(2, 4, 17), (4, 1, 3)],
        lambda x, w: ConvOp.build(x, w, groups=4, dilation=2, padding=2),
    ),
    "conv_3d": (
        [((1, 2, 5, 4, 3), F), ((3, 2, 2, 2, 2), F)],
        [(1, 2, 5, 4, 3), (3, 2, 2, 2, 2)],
        ConvOp.build,
    ),
    "conv_transpose": (
        [((1, 3, 4, 5), F), ((3, 2, 3, 3), F)],
        [(1, 3, 4, 5), (3, 2, 3, 3)],
        lambda x, w: ConvTransposeOp.build(x, w, strides=2, padding=1, output_padding=1),
    ),
    "attention": (
        [((1, 4, 5, 8), F), ((1, 2, 7, 8), F), ((1, 2, 7, 6), F)],
        [(1, 4, 5, 8), (1, 2, 7, 8), (1, 2, 7, 6)],
        AttentionOp.build,
    ),
    "attention_causal_dynamic": (
        [((1, 2, None, 8), F), ((1, 2, None, 8), F), ((1, 2, None, 8), F)],
        [(1, 2, 6, 8)] * 3,
        lambda q, k, v: AttentionOp.build(q, k, v, causal=True),
    ),
    "attention_mask": (
        [((1, 2, 5, 8), F), ((1, 2, 7, 8), F), ((1, 2, 7, 8), F), ((1, 1, 5, 7), F)],
        [(1, 2, 5, 8), (1, 2, 7, 8), (1, 2, 7, 8), (1, 1, 5, 7)],
        AttentionOp.build,
    ),
    "softmax": ([((5, 33), F)], [(5, 33)], lambda x: SoftmaxOp.build(x, axis=1)),
    "softmax_axis0_dynamic": ([((None, 3), F)], [(11, 3)], lambda x: SoftmaxOp.build(x, axis=0)),
    "log_softmax_bf16": ([((3, 19), "bf16")], [(3, 19)], lambda x: SoftmaxOp.build(x, axis=-1, log=True)),
    "layer_norm": ([((4, 31), F), ((31,), F), ((31,), F)], [(4, 31), (31,), (31,)], LayerNormOp.build),
    "layer_norm_dynamic": ([((None, 31), F)], [(9, 31)], lambda x: LayerNormOp.build(x)),
    "rms_norm_bf16": ([((4, 31), "bf16"), ((31,), "bf16")], [(4, 31), (31,)], RmsNormOp.build),
    "group_norm": (
        [((2, 6, 5), F), ((6,), F), ((6,), F)],
        [(2, 6, 5), (6,), (6,)],
        lambda x, s, b: GroupNormOp.build(x, s, b, groups=3),
    ),
    "max_pool": (
        [((1, 3, 9, 7), F)],
        [(1, 3, 9, 7)],
        lambda x: MaxPoolOp.build(x, kernel=[3, 2], strides=2, padding=[1, 1, 0, 1]),
    ),
    "avg_pool": (
        [((None, 3, 8, 7), F)],
        [(2, 3, 8, 7)],
        lambda x: AvgPoolOp.build(x, kernel=[3, 3], strides=2, padding=1, count_include_pad=False),
    ),
    "reduce_sum": ([((5, 7, 3), F)], [(5, 7, 3)], lambda x: ReduceOp.build(x, kind="sum", axes=[0, 2])),
    "reduce_mean_dynamic": (
        [((None, None), F)],
        [(5, 70)],
        lambda x: ReduceOp.build(x, kind="mean", axes=[1], keep_dims=True),
    ),
    "reduce_argmax": ([((5, 70), F)], [(5, 70)], lambda x: ReduceOp.build(x, kind="argmax", axes=[1])),
    "reduce_any": ([((5, 9), "i1")], [(5, 9)], lambda x: ReduceOp.build(x, kind="any", axes=[1])),
    "gather": ([((9, 5), F), ((4, 2), "i64")], [(9, 5), (4, 2)], GatherOp.build),
    "gather_dynamic": (
        [((3, 9), F), ((None,), "i32")],
        [(3, 9), (6,)],
        lambda x, i: GatherOp.build(x, i, axis=1),
    ),
    "scatter": (
        [((9, 5), F), ((4, 2), "i64"), ((4, 2, 5), F)],
        [(9, 5), (4, 2), (4, 2, 5)],
        lambda x, i, u: ScatterOp.build(x, i, u, kind="add"),
    ),
    "scatter_dynamic": (
        [((3, 9), F), ((None,), "i32"), ((3, None), F)],
        [(3, 9), (6,), (3, 6)],
        lambda x, i, u: ScatterOp.build(x, i, u, axis=1),
    ),
    "resize_linear": (
        [((1, 2, 5, 4), F)],
        [(1, 2, 5, 4)],
        lambda x: ResizeOp.build(x, mode="linear", size=[9, 7]),
    ),
    "resize_nearest": (
        [((1, 2, 5, 4), F)],
        [(1, 2, 5, 4)],
        lambda x: ResizeOp.build(x, mode="nearest", coordinates="asymmetric", size=[10, 3]),
    ),
    "topk": ([((3, 17), F)], [(3, 17)], lambda x: list(TopkOp.build(x, k=4))),
    "sort": ([((3, 17), F)], [(3, 17)], lambda x: list(SortOp.build(x, axis=1, descending=True))),
    # Values and indices of one type: their spare buffers were one buffer once.
    "topk_integer": ([((3, 17), "i64")], [(3, 17)], lambda x: list(TopkOp.build(x, k=4))),
    "sort_integer": ([((3, 17), "i64")], [(3, 17)], lambda x: list(SortOp.build(x, axis=1, descending=True))),
    "rope": (
        [((1, 2, 5, 8), F), ((5, 8), F), ((5, 8), F)],
        [(1, 2, 5, 8), (5, 8), (5, 8)],
        RopeOp.build,
    ),
    "cumulative": ([((3, 9), F)], [(3, 9)], lambda x: CumulativeOp.build(x, kind="sum", axis=1)),
    "cumulative_dynamic": (
        [((None, 9), F)],
        [(4, 9)],
        lambda x: CumulativeOp.build(x, kind="max", axis=0, reverse=True),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_op_matches_the_interpreter(name: str) -> None:
    operands, sizes, build = CASES[name]
    check(region(operands, build), arrays_for(operands, sizes))


ELEMENTWISE = """
#map = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d1)>
func.func @region(%a: tensor<?x{n}x{t}>, %b: tensor<{n}x{t}>) -> (tensor<?x{n}x{t}>, tensor<?x{n}xi1>) {{
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.25 : {t}
  %d = tensor.dim %a, %c0 : tensor<?x{n}x{t}>
  %e = tensor.empty(%d) : tensor<?x{n}x{t}>
  %p = tensor.empty(%d) : tensor<?x{n}xi1>
  %r:2 = linalg.generic {{indexing_maps = [#map, #row, #map, #map], iterator_types = ["parallel", "parallel"]}}
    ins(%a, %b : tensor<?x{n}x{t}>, tensor<{n}x{t}>) outs(%e, %p : tensor<?x{n}x{t}>, tensor<?x{n}xi1>) {{
  ^bb0(%x: {t}, %y: {t}, %o: {t}, %q: i1):
    %s = arith.addf %x, %y : {t}
    %t = math.tanh %s : {t}
    %g = arith.cmpf ogt, %t, %zero : {t}
    %u = math.exp %t : {t}
    linalg.yield %u, %g : {t}, i1
  }} -> (tensor<?x{n}x{t}>, tensor<?x{n}xi1>)
  return %r#0, %r#1 : tensor<?x{n}x{t}>, tensor<?x{n}xi1>
}}"""


@pytest.mark.parametrize("element", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("rows", [0, 1, 300])
def test_elementwise_in_tasks(element: str, rows: int) -> None:
    view = RegionView.from_text(ELEMENTWISE.format(n=129, t=element), "elementwise")
    inputs = arrays_for([((None, 129), element), ((129,), element)], [(rows, 129), (129,)])
    plan = check(view, inputs, pieces=3)
    assert plan.task_count == ("ceildiv", ("dim", 0), 64)


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (1, 1, 0)], ids=str)
def test_what_a_result_begins_from_is_returned_too(order: tuple[int, ...]) -> None:
    """The zeros of a product and zeros that are a result are one value: it was read where the product had been put."""

    def build(a: ir.Value, b: ir.Value) -> list[ir.Value]:
        product = MatmulOp.build(a, b)
        type_ = ir.RankedTensorType(product.type)
        zero = arith.ConstantOp(type_.element_type, 0.0).result
        zeros = linalg.fill(zero, outs=[tensor_dialect.empty(type_.shape, type_.element_type)])
        return [(zeros, product)[place] for place in order]

    check(region([((5, 7), F), ((7, 3), F)], build), arrays_for([((5, 7), F), ((7, 3), F)], [(5, 7), (7, 3)]))


def test_producers_are_fused_into_tasks() -> None:
    view = region([((300, 200), F)], lambda x: SoftmaxOp.build(x, axis=1))
    plan = check(view, arrays_for([((300, 200), F)], [(300, 200)]), pieces=4)
    assert plan.task_count == 8
    assert isinstance(plan.scratch_bytes, int)
    assert plan.scratch_bytes <= 4 * 41 * 200 * 4, "temporaries are as large as a task, not as the tensor"


def test_a_chain_that_cannot_be_tiled_is_one_task() -> None:
    """Two results of which one feeds the other: tiles of the second would all write the first."""
    view = RegionView.from_text(
        """
        #id = affine_map<(d0, d1) -> (d0, d1)>
        #t = affine_map<(d0, d1) -> (d1, d0)>
        func.func @region(%a: tensor<200x200xf32>) -> (tensor<200x200xf32>, tensor<200x200xf32>) {
          %e = tensor.empty() : tensor<200x200xf32>
          %f = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
            ins(%a : tensor<200x200xf32>) outs(%e : tensor<200x200xf32>) {
          ^bb0(%x: f32, %o: f32):
            %s = arith.addf %x, %x : f32
            linalg.yield %s : f32
          } -> tensor<200x200xf32>
          %c = "lk.cumulative"(%f) {axis = 1 : i64, exclusive = false, kind = "sum", reverse = false}
            : (tensor<200x200xf32>) -> tensor<200x200xf32>
          %g = linalg.generic {indexing_maps = [#t, #id], iterator_types = ["parallel", "parallel"]}
            ins(%c : tensor<200x200xf32>) outs(%e : tensor<200x200xf32>) {
          ^bb0(%x: f32, %o: f32):
            linalg.yield %x : f32
          } -> tensor<200x200xf32>
          return %f, %g : tensor<200x200xf32>, tensor<200x200xf32>
        }""",
        "generic",
    )
    plan = check(view, arrays_for([((200, 200), F)], [(200, 200)]))
    assert plan.task_count == 1


@pytest.mark.parametrize("level", [name for name in ("x86-64-v3", "x86-64-v4") if runs_on_host(name)])
def test_every_level_agrees(level: str) -> None:
    for element in ("f32", "bf16", "f16"):
        view = RegionView.from_text(ELEMENTWISE.format(n=33, t=element), "elementwise")
        check(view, arrays_for([((None, 33), element), ((33,), element)], [(5, 33), (33,)]), cpu=level)


def test_the_text_is_the_same_every_time() -> None:
    plans = [
        GenericFamily().plan(region(*_case("attention")), host_features()),
        GenericFamily().plan(region(*_case("attention")), host_features()),
    ]
    assert [isinstance(plan, DeviceCode) for plan in plans] == [True, True]
    assert plans[0] == plans[1]


def _case(name: str) -> tuple[list[tuple[Sequence[int | None], str]], Build]:
    operands, _, build = CASES[name]
    return operands, build


def test_results_without_elements_take_no_task() -> None:
    view = region([((0, 5), F)], lambda x: SoftmaxOp.build(x))
    chosen = select_kernel(view, host_features())
    assert (chosen.family, chosen.task_count) == ("empty", 0)
    view = region([((0, 5), F)], lambda x: ReduceOp.build(x, kind="sum", axes=[0]))
    assert select_kernel(view, host_features()).family != "empty"
