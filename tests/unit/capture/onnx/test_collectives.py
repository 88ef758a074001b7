"""ONNX Runtime's collectives against numpy, on simulated ranks that are given the same inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

import lowerkit
from lowerkit.capture.onnx.capture import capture_onnx
from lowerkit.errors import CaptureError, UnsupportedError, UsageError
from lowerkit.parity.check import check_program

_DOMAIN = "com.microsoft"
_RANKS = 2


def collective(op_type: str, operand: str, result: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op_type, [operand], [result], name=f"{op_type}.{result}", domain=_DOMAIN, **attributes)


def model_of(
    nodes: Sequence[NodeProto],
    shape: Sequence[int | str] = (4, 6),
    *,
    dtype: Any = np.float32,
    result: Sequence[int | str] | None = None,
    constants: Sequence[TensorProto] = (),
    opset: int = 21,
) -> onnx.ModelProto:
    """Returns a model of ``x`` of a shape, which gives ``y`` of the same type and rank; ``result`` is its shape."""
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info("x", element, list(shape))],
        [helper.make_tensor_value_info("y", element, result or [None] * len(shape))],
        list(constants),
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(_DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_all_reduce_adds_up_what_the_ranks_have(tmp_path: Path, dtype: type) -> None:
    # The count of ranks is written into an AllReduce that has no AllGather beside it.
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(dtype)
    onnx.save(
        model_of([collective("AllReduce", "x", "y", group_size=3)], x.shape, dtype=dtype), tmp_path / "model.onnx"
    )
    compiled = lowerkit.compile(str(tmp_path / "model.onnx"))
    assert [(axis.name, axis.size) for axis in compiled.program.mesh] == [("world", 3)]
    assert [step.collective.operation for step in compiled.parts.program.steps if step.collective] == ["all_reduce"]
    np.testing.assert_allclose(compiled(x), x + x + x, rtol=1e-3 if dtype == np.float16 else 1e-6)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_])
def test_all_gather_joins_along_its_axis(axis: int, dtype: type) -> None:
    x = np.random.default_rng(0).integers(0, 2, (2, 3, 4)).astype(dtype)
    node = collective("AllGather", "x", "y", group_size=_RANKS, axis=axis)
    compiled = lowerkit.compile(model_of([node], x.shape, dtype=dtype))
    np.testing.assert_array_equal(compiled(x), np.concatenate([x] * _RANKS, axis=axis))


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_all_to_all_sends_parts_of_the_first_dimension(dtype: type) -> None:
    # Rank r is left with part r of each rank; the ranks hold the same only when that is gathered.
    nodes = [
        collective("AllToAll", "x", "parts", group_size=_RANKS),
        collective("AllGather", "parts", "y", group_size=_RANKS, axis=0),
    ]
    x = (np.random.default_rng(0).standard_normal((4, 5)) * 9).astype(dtype)
    compiled = lowerkit.compile(model_of(nodes, x.shape, dtype=dtype))
    called = [step.collective.operation for step in compiled.parts.program.steps if step.collective]
    assert called == ["all_to_all", "all_gather"]
    first, second = np.split(x, _RANKS)
    np.testing.assert_array_equal(compiled(x), np.concatenate([first, first, second, second]))


def test_layers_split_over_ranks(tmp_path: Path) -> None:
    """A chain of more collectives than the graph is simplified in rounds; each is seen through at once."""
    random = np.random.default_rng(0)
    weight = (random.standard_normal((8, 8)) / 8).astype(np.float32)
    nodes: list[NodeProto] = []
    name = "x"
    for layer in range(30):
        nodes.append(helper.make_node("MatMul", [name, "weight"], [f"part{layer}"]))
        nodes.append(collective("AllReduce", f"part{layer}", f"sum{layer}"))
        nodes.append(helper.make_node("Tanh", [f"sum{layer}"], [f"layer{layer}"]))
        name = f"layer{layer}"
    nodes.append(collective("AllGather", name, "y", group_size=_RANKS, axis=1))
    model = model_of(nodes, (3, 8), constants=[numpy_helper.from_array(weight, "weight")], opset=13)
    onnx.save(model, tmp_path / "layers.onnx")
    compiled = lowerkit.compile(str(tmp_path / "layers.onnx"))
    x = random.standard_normal((3, 8)).astype(np.float32)
    want = x
    for _ in range(30):
        want = np.tanh(_RANKS * (want @ weight))
    np.testing.assert_allclose(compiled(x), np.concatenate([want, want], axis=1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("axis", "result"), [(0, ["2*n", 6]), (1, ["n", 12])])
def test_symbolic_extents(axis: int, result: list[int | str]) -> None:
    nodes = [
        collective("AllReduce", "x", "sum"),
        collective("AllGather", "sum", "y", group_size=_RANKS, axis=axis),
    ]
    compiled = lowerkit.compile(model_of(nodes, ("n", 6), result=result))
    for rows in (1, 5):
        x = np.random.default_rng(rows).standard_normal((rows, 6)).astype(np.float32)
        np.testing.assert_array_equal(compiled(x), np.concatenate([x + x] * _RANKS, axis=axis))


def test_a_constant_is_gathered_when_the_program_runs() -> None:
    nodes = [helper.make_node("Shape", ["x"], ["sizes"]), collective("AllGather", "sizes", "y", group_size=2, axis=0)]
    compiled = lowerkit.compile(model_of(nodes, (4,), dtype=np.int64, result=(2,)))
    assert [step.collective.operation for step in compiled.parts.program.steps if step.collective] == ["all_gather"]
    np.testing.assert_array_equal(compiled(np.zeros(4, np.int64)), [4, 4])


@pytest.mark.parametrize("op_type", ["AllReduce", "AllGather"])
def test_shape_inference_believes_no_value_of_a_collective(op_type: str) -> None:
    """Each rank may give another: a shape that is made of it is not known."""
    named = {"group_size": 2} | ({"axis": 0} if op_type == "AllGather" else {})
    element = TensorProto.FLOAT if op_type == "AllReduce" else TensorProto.INT64
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"], start=0, end=1),
        helper.make_node("Cast", ["sizes"], ["wide"], to=element),
        collective(op_type, "wide", "all", **named),
        helper.make_node("Cast", ["all"], ["whole"], to=TensorProto.INT64),
        helper.make_node("ConstantOfShape", ["whole"], ["y"]),
    ]
    shape: list[int | str | None] = [None] * (1 if op_type == "AllReduce" else 2)
    model = model_of(nodes, (4,))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, shape))
    with pytest.raises(UnsupportedError) as caught:
        capture_onnx(model)
    assert caught.value.code == "LK4002"


def test_what_a_file_calls_its_values_makes_no_difference() -> None:
    """Neither do names that the shape inference makes up meanwhile, nor what is noted on a node make a collective."""
    marked = helper.make_node("Identity", ["x"], ["0.own"])
    for key in ("lk.axis", "lk.ranks", "collective"):
        marked.metadata_props.add(key=key, value="world")
    nodes = [marked, collective("AllGather", "0.own", "1.own", group_size=2, axis=0)]
    compiled = lowerkit.compile(model_of([*nodes, helper.make_node("Neg", ["1.own"], ["y"])]))
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    np.testing.assert_array_equal(compiled(x), -np.concatenate([x, x]))
    alone = capture_onnx(model_of([marked, helper.make_node("Neg", ["0.own"], ["y"])]))
    assert alone.mesh == []
    assert alone.eager is not None


def test_a_function_of_the_model_means_what_the_model_says() -> None:
    model = model_of([collective("AllReduce", "x", "y")])
    body = [helper.make_node("Neg", ["a"], ["b"])]
    model.functions.append(
        helper.make_function(_DOMAIN, "AllReduce", ["a"], ["b"], body, [helper.make_opsetid("", 21)])
    )
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    np.testing.assert_array_equal(lowerkit.compile(model)(x), -x)


def two_sizes() -> list[NodeProto]:
    return [
        collective("AllToAll", "x", "parts", group_size=2),
        collective("AllGather", "parts", "y", group_size=4, axis=0),
    ]


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([collective("AllReduce", "x", "y")], "of its 1 collectives all are AllReduce"),
        ([collective("AllToAll", "x", "y")], "states no group_size"),
        ([collective("AllToAll", "x", "y", group_size=0)], "states no group_size"),
        ([collective("AllGather", "x", "z", axis=0), helper.make_node("Neg", ["z"], ["y"])], "states no group_size"),
        (two_sizes(), "groups of 2, 4 ranks"),
    ],
)
def test_how_many_ranks_there_are_must_be_stated(nodes: list[NodeProto], message: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        capture_onnx(model_of(nodes))
    assert caught.value.code == "LK4007"
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("node", "dtype", "message"),
    [
        (collective("AllGather", "x", "y", group_size=2), np.float32, "states no axis"),
        (collective("AllGather", "x", "y", group_size=2, axis=2), np.float32, "axis 2, which the operand does not"),
        (collective("AllReduce", "x", "y", group_size=2), np.int64, "elements of type i64"),
        (collective("AllToAll", "x", "y", group_size=2), np.uint8, "elements of type u8"),
        (
            helper.make_node("AllReduce", [], ["y"], domain=_DOMAIN, group_size=2),
            np.float32,
            "several tensors, or none",
        ),
        (
            helper.make_node("AllReduce", ["x", "x"], ["y", "z"], domain=_DOMAIN, group_size=2),
            np.float32,
            "several tensors",
        ),
    ],
)
def test_what_is_not_supported_is_named(node: NodeProto, dtype: type, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message) as caught:
        capture_onnx(model_of([node], dtype=dtype))
    assert caught.value.code == "LK4001"


def test_a_scalar_cannot_be_gathered() -> None:
    with pytest.raises(UnsupportedError, match="an operand of rank 0"):
        capture_onnx(model_of([collective("AllToAll", "x", "y", group_size=2)], ()))


def test_parts_must_be_of_one_size() -> None:
    with pytest.raises(UnsupportedError, match="cannot be cut into 3 slices"):
        lowerkit.compile(model_of([collective("AllToAll", "x", "y", group_size=3)]))


def test_a_branch_may_not_communicate() -> None:
    """Ranks that take other branches would wait for ever."""

    def branch(node: NodeProto) -> onnx.GraphProto:
        result = helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, [4, 6])
        return helper.make_graph([node], node.output[0], [], [result])

    branches: dict[str, Any] = {
        "then_branch": branch(collective("AllReduce", "x", "one", group_size=2)),
        "else_branch": branch(helper.make_node("Neg", ["x"], ["two"])),
    }
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["is"], to=TensorProto.BOOL),
        helper.make_node("If", ["is"], ["y"], **branches),
    ]
    with pytest.raises(UnsupportedError, match="a collective in a branch or a loop"):
        capture_onnx(model_of(nodes))


def test_more_parts_than_any_model_has() -> None:
    node = collective("AllGather", "x", "y", group_size=1 << 40, axis=0)
    with pytest.raises(CaptureError, match="the AllGather nodes of the model join 1099511627776 tensors"):
        capture_onnx(model_of([node]))


def test_there_is_no_one_device_to_compare_with() -> None:
    program = capture_onnx(model_of([collective("AllToAll", "x", "y", group_size=2)]))
    assert program.eager is None
    with pytest.raises(UsageError, match="communicates by itself"):
        check_program(program)
