"""22 to 35: ONNX graphs that contradict themselves, or ask for more than there is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.bad_inputs.case import BadInput, compile_commands
from tests.support.bad_inputs.files import onnx_model

Models = dict[str, onnx.ModelProto]
node = helper.make_node


def _compiled(models: Callable[[], Models]) -> Callable[[Path], list[list[str]]]:
    def make(folder: Path) -> list[list[str]]:
        for name, model in models().items():
            (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
        return compile_commands(*[f"{name}.onnx" for name in models()])

    return make


def _weight(name: str, dims: list[int], elements: int = 1, raw: bytes = b"") -> TensorProto:
    return TensorProto(name=name, data_type=elements, dims=dims, raw_data=raw)


def _product(dims: list[int], raw: bytes = bytes(128), elements: int = 1) -> onnx.ModelProto:
    return onnx_model([node("MatMul", ["input", "w"], ["y"])], weights=[_weight("w", dims, elements, raw)])


def products() -> Models:
    return {
        "weight": _product([1 << 40, 1 << 40]),
        "wrapped": _product([1 << 32, 1 << 32, 8, 4]),
        "input": onnx_model([node("Relu", ["input"], ["y"])], {"input": [1 << 40, 1 << 40]}, {"y": [1 << 40, 1 << 40]}),
    }


def product_of_a_shape() -> Models:
    shape = numpy_helper.from_array(np.array([1 << 62, 1 << 62, 2, 8]), "s")
    return {"expand": onnx_model([node("Expand", ["input", "s"], ["y"])], weights=[shape])}


def dims_and_ranks() -> Models:
    return {
        "negative": _product([-8, -4]),
        "minus": onnx_model([node("Relu", ["input"], ["y"])], {"input": [2, -8]}, {"y": [2, -8]}),
        "rank": _product([1] * 10_000),
        "input_rank": onnx_model([node("Relu", ["input"], ["y"])], {"input": [1] * 10_000}, {"y": [1] * 10_000}),
    }


def terabytes() -> Models:
    size = numpy_helper.from_array(np.array([1 << 20, 1 << 20]), "s")
    shape = {"y": [1 << 20, 1 << 20]}
    one = numpy_helper.from_array(np.ones((1, 1), np.float32), "one")
    return {
        "constant_of_shape": onnx_model(
            [node("ConstantOfShape", ["s"], ["c"]), node("Add", ["input", "c"], ["y"])], {"input": [1]}, shape, [size]
        ),
        "expand": onnx_model(
            [node("Expand", ["one", "s"], ["c"]), node("Add", ["input", "c"], ["y"])],
            {"input": [1]},
            shape,
            [size, one],
        ),
        "tile": onnx_model(
            [node("Tile", ["one", "s"], ["c"]), node("Add", ["input", "c"], ["y"])], {"input": [1]}, shape, [size, one]
        ),
        "range": onnx_model(
            [node("Range", ["a", "b", "d"], ["c"]), node("Add", ["input", "c"], ["y"])],
            {"input": [1]},
            {"y": [1 << 40]},
            [numpy_helper.from_array(np.array(v, np.float32), n) for n, v in (("a", 0), ("b", 2.0**40), ("d", 1))],
        ),
    }


def cycles() -> Models:
    return {
        "two": onnx_model([node("Add", ["input", "b"], ["a"]), node("Relu", ["a"], ["b"]), node("Relu", ["b"], ["y"])]),
        "self": onnx_model([node("Add", ["input", "y"], ["y"])]),
    }


def duplicates() -> Models:
    relu = node("Relu", ["input"], ["y"])
    twice = onnx_model()
    twice.graph.initializer.append(twice.graph.initializer[0])
    inputs = onnx_model([relu])
    inputs.graph.input.append(inputs.graph.input[0])
    return {
        "outputs": onnx_model([relu, relu]),
        "initializers": twice,
        "inputs": inputs,
        "input_and_output": onnx_model([node("Relu", ["input"], ["input"]), relu]),
        "one_node": onnx_model([node("Split", ["input"], ["y", "y"], axis=1, num_outputs=2)]),
    }


def dangling() -> Models:
    return {
        "input": onnx_model([node("Relu", ["nobody"], ["y"])]),
        "initializer": onnx_model([node("MatMul", ["input", "w"], ["y"])]),
        "output": onnx_model([node("Relu", ["input"], ["z"])]),
        "arity": onnx_model([node("MatMul", ["input"], ["y"])]),
        "none": onnx_model([]),
    }


def deep(folder: Path) -> list[list[str]]:
    """If in If in If, 90 deep (what protobuf parses) and 10,000 deep (what it does not)."""
    names: list[str] = []
    for depth in (20, 10_000):
        branch = _graph_bytes(node("Identity", ["input"], ["r0"]).SerializeToString(), "r0")
        for level in range(1, depth):
            # Field 5 of a node is an attribute; its field 1 the name, 6 a graph, 20 the type (5: GRAPH).
            attributes = b"".join(
                _field(5, _field(1, name) + _field(6, branch if which == 0 else _leaf(level)) + b"\xa0\x01\x05")
                for which, name in enumerate((b"then_branch", b"else_branch"))
            )
            body = _field(1, b"c") + _field(2, f"r{level}".encode()) + _field(4, b"If") + attributes
            branch = _graph_bytes(body, f"r{level}")
        model = onnx_model([], outputs={f"r{depth - 1}": [2, 8]})
        model.graph.initializer.append(numpy_helper.from_array(np.array(True), "c"))
        outer = model.graph.SerializeToString()
        model.ClearField("graph")
        names.append(f"deep{depth}.onnx")
        inner_node = branch[: branch.rindex(_field(12, _value(f"r{depth - 1}")))]
        (folder / names[-1]).write_bytes(model.SerializeToString() + _field(7, inner_node + outer))
    return compile_commands(*names[1:])


def _leaf(level: int) -> bytes:
    return _graph_bytes(node("Identity", ["input"], [f"e{level}"]).SerializeToString(), f"e{level}")


def _graph_bytes(one_node: bytes, output: str) -> bytes:
    return _field(1, one_node) + _field(2, b"g") + _field(12, _value(output))


def _value(name: str) -> bytes:
    return helper.make_tensor_value_info(name, 1, [2, 8]).SerializeToString()


def _field(number: int, data: bytes) -> bytes:
    head, size = bytearray(), len(data)
    head += _varint(number << 3 | 2) + _varint(size)
    return bytes(head) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while True:
        out.append(value & 0x7F | (0x80 if value > 0x7F else 0))
        value >>= 7
        if not value:
            return bytes(out)


def million(folder: Path) -> list[list[str]]:
    last = 999_999
    parts = [
        _field(1, _field(1, b"input" if n == 0 else b"v%d" % (n - 1)) + _field(2, b"v%d" % n) + _field(4, b"Relu"))
        for n in range(last + 1)
    ]
    model = onnx_model([], outputs={f"v{last}": [2, 8]})
    graph = model.graph.SerializeToString()
    model.ClearField("graph")
    (folder / "million.onnx").write_bytes(model.SerializeToString() + _field(7, b"".join(parts) + graph))
    return compile_commands("million.onnx")


def opsets() -> Models:
    ancient = onnx_model()
    ancient.opset_import[0].version = 0
    none = onnx_model()
    del none.opset_import[:]
    return {
        "future": onnx_model(opset=1000),
        "huge": onnx_model(opset=2**62),
        "negative": onnx_model(opset=-3),
        "zero": ancient,
        "none": none,
    }


def unknown_ops() -> Models:
    return {
        "op": onnx_model([node("NoSuchOp", ["input"], ["y"])]),
        "domain": onnx_model([node("Fancy", ["input"], ["y"], domain="com.example")]),
        "empty": onnx_model([node("", ["input"], ["y"])]),
    }


def unsupported_ops() -> Models:
    return {"domain": onnx_model([node("Fancy", ["input"], ["y"], domain="com.example")], domains=("com.example",))}


def raw_data() -> Models:
    return {"short": _product([8, 4], bytes(127)), "long": _product([8, 4], bytes(129)), "none": _product([8, 4], b"")}


def dtypes() -> Models:
    integers = numpy_helper.from_array(np.ones((8, 4), np.int64), "w")
    declared = onnx_model()
    declared.graph.output[0].type.tensor_type.elem_type = TensorProto.INT32
    inner = onnx_model([node("Relu", ["input"], ["a"]), node("Relu", ["a"], ["y"])], outputs={"y": [2, 8]})
    inner.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.INT8, [2, 8]))
    unknown = onnx_model()
    unknown.graph.initializer[0].data_type = 99
    return {
        "operands": onnx_model([node("MatMul", ["input", "w"], ["y"])], weights=[integers]),
        "output": declared,
        "value": inner,
        "unknown": unknown,
    }


def half_bytes() -> Models:
    """Three int4 take two bytes; stated are one, and three."""
    nodes = [
        node("DequantizeLinear", ["q", "s"], ["d"]),
        node("Add", ["input", "d"], ["y"]),
    ]
    scale = numpy_helper.from_array(np.array(0.5, np.float32), "s")
    return {
        name: onnx_model(nodes, {"input": [3]}, {"y": [3]}, [_weight("q", [3], TensorProto.INT4, bytes(size)), scale])
        for name, size in (("short", 1), ("long", 3))
    }


def scales() -> Models:
    def quantized(scale: float, zero: np.ndarray[tuple[()], np.dtype[np.generic]]) -> onnx.ModelProto:
        nodes = [
            node("QuantizeLinear", ["input", "s", "z"], ["q"]),
            node("DequantizeLinear", ["q", "s", "z"], ["y"]),
        ]
        weights = [
            numpy_helper.from_array(np.array(scale, np.float32), "s"),
            numpy_helper.from_array(zero, "z"),
        ]
        return onnx_model(nodes, outputs={"y": [2, 8]}, weights=weights)

    zero = np.array(0, np.int8)
    models = {
        name: quantized(value, zero)
        for name, value in (("nan", np.nan), ("inf", np.inf), ("zero", 0.0), ("denormal", 1e-40))
    }
    models["zero_point_type"] = quantized(0.5, np.array(300, np.int32))
    return models


CASES = [
    BadInput(22, "dimension-product", _compiled(products), says=("LK2003", "LK1003", "LK7002", "LK1002")),
    BadInput(22, "dimension-product-of-a-shape", _compiled(product_of_a_shape), exit_code=4, says=("LK4001",)),
    BadInput(23, "negative-dims-and-rank", _compiled(dims_and_ranks), says=("LK2003", "LK1003")),
    BadInput(24, "terabytes-while-folding", _compiled(terabytes), exit_code=7, says=("LK7002",), megabytes=1024),
    BadInput(25, "cyclic-graph", _compiled(cycles), says=("LK2003",)),
    BadInput(26, "duplicate-names", _compiled(duplicates), says=("LK2003",)),
    BadInput(27, "dangling-names", _compiled(dangling), says=("LK2003", "LK1002")),
    BadInput(28, "if-10000-deep", deep, says=("LK1002", "LK2003")),
    BadInput(29, "a-million-nodes", million, says=("LK2003",), seconds=60.0),
    BadInput(30, "opsets", _compiled(opsets), says=("LK2003", "LK1002")),
    BadInput(31, "unknown-ops", _compiled(unknown_ops), says=("LK2003",)),
    BadInput(31, "unsupported-domain", _compiled(unsupported_ops), exit_code=4, says=("LK4001",)),
    BadInput(32, "raw-data-length", _compiled(raw_data), says=("LK2003",)),
    BadInput(33, "dtype-mismatch", _compiled(dtypes), says=("LK2003",)),
    BadInput(34, "odd-int4-count", _compiled(half_bytes), says=("LK2003",)),
    BadInput(35, "scales-and-zero-points", _compiled(scales), says=("LK2003",)),
]
