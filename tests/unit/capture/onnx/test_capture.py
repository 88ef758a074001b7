from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from lowerkit.capture.capture import capture
from lowerkit.capture.load_model import capture_path
from lowerkit.capture.onnx.capture import capture_onnx
from lowerkit.capture.onnx.constant_folding import replace_constants_of_shape
from lowerkit.errors import CaptureError, InputError, ResourceError, UnsupportedError
from lowerkit.program.locations import origin_of
from lowerkit.runtimes.manifest import Dim, TensorSpec
from tests.unit.capture.running import assert_same_as_eager, op_counts, operations

LIGHT = Path(str(onnx.__file__)).parent / "backend/test/data/light"
GENERATOR = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


def make_model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, Any],
    outputs: dict[str, Any],
    weights: dict[str, np.ndarray] | None = None,
    opset: int = 18,
    **fields: Any,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10, **fields)


def linear_model(**fields: Any) -> onnx.ModelProto:
    weight = GENERATOR.standard_normal((4, 3), np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "/head/MatMul"),
        helper.make_node("Relu", ["h"], ["y"], "act"),
    ]
    return make_model(nodes, {"x": [2, 4]}, {"y": [2, 3]}, {"w": weight}, **fields)


def test_weights_by_reference_locations_and_values() -> None:
    program = capture(linear_model())
    assert program.signature.inputs == [TensorSpec("x", "f32", [2, 4])]
    assert program.signature.outputs == [TensorSpec("y", "f32", [2, 3])]
    assert program.weights.names() == ["w"]
    (weight,) = [operation for operation in operations(program) if operation.name == "lk.weight"]
    assert weight.attributes["symbol"].value == "w"  # type: ignore[attr-defined]
    (product,) = [operation for operation in operations(program) if "matmul" in operation.name]
    assert (origin_of(product.location).node, origin_of(product.location).module) == ("/head/MatMul", "head")
    assert_same_as_eager(program, [GENERATOR.standard_normal((2, 4), np.float32)])


@pytest.mark.parametrize("path", sorted(LIGHT.glob("*.onnx")), ids=lambda path: path.stem)
def test_light_models_import_with_static_shapes(path: Path) -> None:
    program = capture_path(path)
    for operation in operations(program):
        for result in operation.results:
            assert "?" not in str(result.type), operation.name
            assert "unk" not in str(result.type), operation.name
    assert op_counts(program)["torch.operator"] == 0
    assert program.weights.names()
    assert program.module.operation.verify()


def test_constant_of_shape_is_a_weight_that_takes_no_memory() -> None:
    program = capture_path(LIGHT / "light_vgg19.onnx")
    large = max(program.weights.names(), key=program.weights.nbytes)
    assert program.weights.nbytes(large) == 4096 * 25088 * 4
    assert program.weights.get(large).strides == (0, 0)


def test_random_weights_in_place_of_constants_of_shape() -> None:
    model = onnx.load(LIGHT / "light_squeezenet.onnx")

    def make(name: str, shape: tuple[int, ...]) -> np.ndarray:
        return np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32)

    changed = replace_constants_of_shape(model, make)
    assert not [node for node in changed.graph.node if node.op_type == "ConstantOfShape"]
    assert [node for node in model.graph.node if node.op_type == "ConstantOfShape"]
    program = capture(changed)
    assert program.weights.get("conv1_w_0").std() > 0.5


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(nn.functional.max_pool2d(self.layers(x), 2).mean((2, 3))).softmax(-1)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, steps, _ = x.shape
        q, k, v = self.qkv(self.first(x)).view(batch, steps, 3, 2, 8).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, steps, 16))
        return x + self.mlp(self.second(x))


@pytest.mark.parametrize("dynamo", [True, False])
@pytest.mark.parametrize(("module", "shape"), [(Convolutional, (2, 3, 16, 16)), (Transformer, (2, 6, 16))])
def test_exports_of_torch(module: type[nn.Module], shape: tuple[int, ...], dynamo: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    path = tmp_path / "model.onnx"
    x = torch.randn(shape)
    torch.onnx.export(module().eval(), (x,), str(path), dynamo=dynamo, verbose=False, input_names=["x"])
    program = capture_path(path)
    assert not [name for name in op_counts(program) if name == "torch.operator"]
    assert_same_as_eager(program, [x.numpy()])


def test_old_opsets_are_converted() -> None:
    model = linear_model(opset=9)
    model.graph.node.append(helper.make_node("Softmax", ["y"], ["z"], axis=1))
    model.graph.output[0].name = "z"
    assert_same_as_eager(capture(model), [GENERATOR.standard_normal((2, 4), np.float32)])


def test_initializers_that_are_inputs_too() -> None:
    model = linear_model()
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 3]))
    program = capture(model)
    assert [spec.name for spec in program.signature.inputs] == ["x"]
    assert_same_as_eager(program, [GENERATOR.standard_normal((2, 4), np.float32)])


def test_functions_of_the_model_are_inlined() -> None:
    body = [
        helper.make_node("Constant", [], ["two"], value=helper.make_tensor("", TensorProto.FLOAT, (), [2.0])),
        helper.make_node("Mul", ["a", "two"], ["b"]),
    ]
    double = helper.make_function("mine", "Double", ["a"], ["b"], body, [helper.make_opsetid("", 18)])
    nodes = [helper.make_node("Double", ["x"], ["y"], domain="mine")]
    model = make_model(nodes, {"x": [3]}, {"y": [3]}, functions=[double])
    model.opset_import.append(helper.make_opsetid("mine", 1))
    model_as_file = onnx.load_from_string(model.SerializeToString())
    assert_same_as_eager(capture(model_as_file), [GENERATOR.standard_normal(3, np.float32)])


def test_shape_arithmetic_is_folded() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "first"], ["n"]),
        helper.make_node("Unsqueeze", ["n", "axis"], ["n1"]),
        helper.make_node("Concat", ["n1", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    weights = {"first": np.array(0), "axis": np.array([0]), "rest": np.array([2, -1])}
    program = capture(make_model(nodes, {"x": [3, 4]}, {"y": [3, 2, 2]}, weights))
    assert program.signature.outputs[0].shape == [3, 2, 2]
    assert not [name for name in op_counts(program) if "select" in name or "size" in name]
    assert_same_as_eager(program, [GENERATOR.standard_normal((3, 4), np.float32)])


def test_symbolic_dims_by_name_and_by_option(tmp_path: Path) -> None:
    model = linear_model()
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    program = capture(model)
    assert program.signature.dims == [Dim("batch")]
    assert program.signature.outputs[0].shape == ["batch", 3]
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    fixed = capture_path(path, ["x:5x4:f32"])
    assert fixed.signature.dims == []
    assert fixed.signature.outputs[0].shape == [5, 3]
    ranged = capture_path(path, dynamic=["x:0=n:1..8"])
    assert ranged.signature.dims == [Dim("n", 1, 8)]


def test_shapes_that_the_file_fixes_are_not_changed(tmp_path: Path) -> None:
    model = make_model([helper.make_node("Relu", ["x"], ["y"], "r")], {"x": [3, 4]}, {"y": [3, 4]})
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(InputError, match=r"LK1003.*fixes the shapes(.|\n)*dim 0 of 'x' is 3 in the file"):
        capture_path(tmp_path / "model.onnx", dynamic=["x:0=1..8"])
    with pytest.raises(InputError, match="dim 1 of 'x' is 4 in the file, 7 was asked for"):
        capture_onnx(model, input_shapes={"x": [3, 7]})
    assert capture_path(tmp_path / "model.onnx", ["x:3x4:f32"]).signature.outputs[0].shape == [3, 4]


def test_all_unsupported_nodes_are_listed() -> None:
    nodes = [
        helper.make_node("Foo", ["x"], ["a"], "one", domain="custom"),
        helper.make_node("Relu", ["a"], ["b"], "two"),
        helper.make_node("Bar", ["b"], ["y"], "three", domain="custom"),
    ]
    model = make_model(nodes, {"x": [3]}, {"y": [3]})
    model.opset_import.append(helper.make_opsetid("custom", 1))
    with pytest.raises(UnsupportedError) as caught:
        capture(model)
    assert caught.value.code == "LK4001"
    text = "\n".join(caught.value.details)
    assert "custom.Foo (node 'one')" in text
    assert "custom.Bar (node 'three')" in text


def test_standard_nodes_without_a_conversion_are_all_listed() -> None:
    nodes = [
        helper.make_node("STFT", ["x", "step"], ["a"], "first"),
        helper.make_node("Relu", ["a"], ["b"], "fine"),
        helper.make_node("STFT", ["x", "step"], ["c"], "second"),
        helper.make_node("Add", ["b", "c"], ["y"], "sum"),
    ]
    model = make_model(nodes, {"x": [1, 16, 1], "step": []}, {"y": [1, 2, 5, 2]})
    model.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64
    with pytest.raises(UnsupportedError) as caught:
        capture(model)
    text = "\n".join(caught.value.details)
    assert "STFT (node 'first')" in text
    assert "STFT (node 'second')" in text
    assert "fine" not in text


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("Swish", {"x": [2, 3]}, {}),
        ("Attention", {"q": [1, 2, 4, 8], "k": [1, 2, 5, 8], "v": [1, 2, 5, 8]}, {"scale": 0.25}),
        ("RMSNormalization", {"x": [2, 4, 8], "s": [8]}, {}),
    ],
)
def test_ops_without_a_conversion_are_expanded(op: str, inputs: dict[str, Any], attributes: dict[str, Any]) -> None:
    node = helper.make_node(op, list(inputs), ["y"], "node", **attributes)
    program = capture(make_model([node], inputs, {"y": next(iter(inputs.values()))}, opset=24))
    arrays = [GENERATOR.standard_normal(shape, np.float32) for shape in inputs.values()]
    assert_same_as_eager(program, arrays)


def test_random_ops_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="random"):
        capture(make_model([helper.make_node("Bernoulli", ["x"], ["y"], "coin")], {"x": [3]}, {"y": [3]}))


def test_branches_whose_values_have_one_name() -> None:
    branch = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["r"])], "branch", [], [helper.make_tensor_value_info("r", 1, [3])]
    )
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["t"], keepdims=0),
        helper.make_node("Cast", ["t"], ["c"], to=TensorProto.BOOL),
        helper.make_node("If", ["c"], ["y"], "choice", then_branch=branch, else_branch=branch),
    ]
    for x in (np.zeros(3, np.float32), np.array([-1, 0, 3], np.float32)):
        program = capture(make_model(nodes, {"x": [3]}, {"y": [3]}))
        assert_same_as_eager(program, [x])


@pytest.mark.parametrize("elements", [TensorProto.UINT4, TensorProto.FLOAT8E4M3FN, TensorProto.STRING])
def test_element_types_that_are_not_supported(elements: int) -> None:
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    model = make_model(nodes, {"x": [2]}, {"y": [2]}, opset=21)
    model.graph.input[0].type.tensor_type.elem_type = elements
    model.graph.output[0].type.tensor_type.elem_type = elements
    with pytest.raises(UnsupportedError) as caught:
        capture(model)
    assert caught.value.code == "LK4001"


def damaged(change: Any) -> onnx.ModelProto:
    model = linear_model()
    change(model)
    return model


@pytest.mark.parametrize(
    "model",
    [
        damaged(lambda m: m.graph.node[0].input.__setitem__(0, "nobody")),
        damaged(lambda m: m.graph.node.append(helper.make_node("Relu", ["x"], ["y"]))),
        damaged(lambda m: m.graph.node.append(helper.make_node("NoSuchOp", ["x"], ["z"]))),
        damaged(lambda m: setattr(m.opset_import[0], "version", 1000)),
        damaged(lambda m: m.graph.initializer[0].dims.__setitem__(0, 5)),
        damaged(lambda m: m.graph.initializer[0].dims.__setitem__(0, -4)),
        damaged(lambda m: m.graph.initializer[0].dims.extend([1 << 40, 1 << 40])),
        damaged(lambda m: setattr(m.graph.initializer[0], "raw_data", b"123")),
    ],
    ids=["dangling", "twice", "unknown op", "future opset", "short data", "negative", "overflow", "cut data"],
)
def test_invalid_models(model: onnx.ModelProto) -> None:
    with pytest.raises(CaptureError) as caught:
        capture(model)
    assert caught.value.code == "LK2003"


def test_constants_that_no_machine_holds() -> None:
    nodes = [helper.make_node("ConstantOfShape", ["s"], ["c"]), helper.make_node("Add", ["x", "c"], ["y"])]
    model = make_model(nodes, {"x": [1]}, {"y": [1 << 20, 1 << 20]}, {"s": np.array([1 << 20, 1 << 20])})
    with pytest.raises(ResourceError):
        capture(model)


def test_every_cut_of_a_file_is_refused(tmp_path: Path) -> None:
    data = linear_model().SerializeToString()
    path = tmp_path / "cut.onnx"
    for sixteenth in range(16):
        path.write_bytes(data[: len(data) * sixteenth // 16])
        with pytest.raises((InputError, CaptureError)) as caught:
            capture_path(path)
        assert caught.value.code in {"LK1002", "LK2003"}


def test_an_input_that_is_declared_as_an_output_of_another_shape_is_refused() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        g (float[3, 8] x) => (float[3, 4] x) <float[8, 4] w = {
          0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
          16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31}> { y = MatMul (x, w) }""")
    with pytest.raises(CaptureError) as caught:
        capture_onnx(model)
    assert caught.value.code == "LK2003"
