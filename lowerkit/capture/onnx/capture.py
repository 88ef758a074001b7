"""Capture of an ONNX model.

Steps: parse -> a checked, flat, folded skeleton (``prepare.py``) -> the torch dialect (``importer.py``) ->
signature. Weights stay in the file or its external files until they are asked for.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import ModelProto

from lowerkit.capture.input_spec import Expected
from lowerkit.capture.onnx.collectives import mesh_of_collectives, note_mesh
from lowerkit.capture.onnx.contracts import asserted_guards, needed_guards
from lowerkit.capture.onnx.declared_shapes import agree
from lowerkit.capture.onnx.eager import onnx_eager
from lowerkit.capture.onnx.importer import import_onnx
from lowerkit.capture.onnx.inline import node_reads
from lowerkit.capture.onnx.limits import require_bounds
from lowerkit.capture.onnx.prepare import ready_graph
from lowerkit.capture.onnx.shape_parameters import fix_inputs
from lowerkit.capture.onnx.skeleton import OnnxGraph
from lowerkit.capture.onnx.tensors import DTYPE_NAMES, LazyTensor, bytes_by_type, element_type_name, external_files
from lowerkit.dialect.context import new_context
from lowerkit.errors import CaptureError, InputError, UnsupportedError, UsageError
from lowerkit.mlir import ir
from lowerkit.program.files import SourceFile, read_file
from lowerkit.program.program import Array, Program
from lowerkit.program.weights import WeightStore
from lowerkit.runtimes.expressions import Expr, simplify, symbols
from lowerkit.runtimes.manifest import Dim, Guard, Signature, TensorSpec

MAXIMUM_BYTES = (1 << 31) - 1
"""What a protobuf may hold."""


def parse_model(data: bytes, what: str) -> ModelProto:
    """Parses a model.

    Raises:
        InputError: LK1002, the bytes are no ONNX model, or a part of one.
        CaptureError: LK2003, it has too many nodes, or names or ranks that no model has.
    """
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, ValueError, RecursionError) as error:
        raise InputError(
            "LK1002", f"{what} is not a complete ONNX model: {error}", hint="copy or export the file again"
        ) from error
    if not model.HasField("graph") or not model.graph.output or not model.opset_import:
        raise InputError(
            "LK1002",
            f"{what} parses as a protobuf but holds no ONNX graph with outputs and an opset",
            hint="copy or export the file again",
        )
    require_bounds(model, what)
    return model


def capture_onnx(
    model: str | Path | ModelProto,
    *,
    input_shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    dims: Sequence[Dim] = (),
    example_inputs: Sequence[Array] | None = None,
    fixed_inputs: Mapping[str, Array] | None = None,
) -> Program:
    """Captures an ONNX model.

    Args:
        model: a path, or a model in memory (it is copied).
        input_shapes: shapes that fix or name dims of inputs; a str is a symbolic dim.
        dims: ranges of the symbolic dims.
        example_inputs: arrays in the order of the inputs that are left.
        fixed_inputs: for a model in memory, values of inputs that are compiled in; the program has no such inputs.

    Raises:
        UsageError: LK1003, ``fixed_inputs`` names what is no input, or the model is a path.
        InputError: the file cannot be read or is no ONNX model.
        CaptureError: LK2003, the model is invalid.
        UnsupportedError: LK4001 with all nodes that are not supported; LK4002, a shape is not known.
    """
    if isinstance(model, ModelProto):
        require_bounds(model, model.graph.name or "the model")
        copy = ModelProto()
        copy.CopyFrom(model)
        folder, source, eager_from = None, model.graph.name or "ONNX model", model
    else:
        path = Path(model)
        copy = parse_model(read_file(path, MAXIMUM_BYTES), str(path))
        folder, source, eager_from = path.resolve().parent, str(path), path
    if fixed_inputs:
        if folder is not None:
            raise UsageError(
                "LK1003", "inputs can be fixed for a model in memory only", hint="onnx.load the file first"
            )
        fix_inputs(copy.graph, fixed_inputs)
        eager_from = ModelProto()
        eager_from.CopyFrom(copy)
    external = external_files(copy, folder)
    given = bytes_by_type(copy.graph)
    ready = ready_graph(copy, folder, input_shapes)
    _refuse_inputs(ready)
    _name_free_dims(ready)
    mesh = mesh_of_collectives(ready)
    context = new_context()
    needed = list(needed_guards(ready, _shapes(ready)))
    module = import_onnx(ready, context)
    note_mesh(module, mesh)
    weights, added = WeightStore(given), dict[str, LazyTensor]()
    for graph in (ready, *ready.bodies):
        used = {name for node in graph.graph.node for name in node_reads(node)}
        used.update(value.name for value in graph.graph.output)
        for name, tensor in graph.weights.items():
            # A body reads the weights of the graph around it; what is its own has its name before it.
            assert added.get(name, tensor) is tensor, f"weight {name!r} has two values"
            if name in used and name not in added:
                weights.add(name, tensor.read, dtype=tensor.dtype, shape=tensor.shape)
                added[name] = tensor
    return Program(
        context=context,
        module=module,
        weights=weights,
        signature=_signature(ready, module, dims, needed),
        source=source,
        remarks=ready.remarks,
        output_tree=None,
        # No runtime that is there runs collectives of ONNX.
        eager=None if mesh else onnx_eager(eager_from),
        onnx_model=eager_from,
        example_inputs=None if example_inputs is None else list(example_inputs),
        sources=[SourceFile.of(file) for file in external if file.is_file()],
        mesh=mesh,
    )


def declared_inputs(path: Path) -> list[Expected]:
    """Returns what the model declares of its inputs; dims that are no numbers are symbols or None."""
    graph = parse_model(read_file(path, MAXIMUM_BYTES), str(path)).graph
    initialized = {tensor.name for tensor in graph.initializer}
    found: list[Expected] = []
    for value in graph.input:
        if value.name in initialized:
            continue
        tensor_type = value.type.tensor_type
        shape = tuple(
            dim.dim_value if dim.HasField("dim_value") else (dim.dim_param or None) for dim in tensor_type.shape.dim
        )
        found.append(
            Expected(
                value.name, DTYPE_NAMES.get(tensor_type.elem_type), shape if tensor_type.HasField("shape") else None
            )
        )
    return found


def _refuse_inputs(ready: OnnxGraph) -> None:
    declared = {value.name: value.type for value in ready.graph.input}
    problems: list[str] = []
    for name in ready.inputs:
        kind = declared[name].WhichOneof("value")
        if kind != "tensor_type":
            raise UnsupportedError("LK4001", f"input {name!r} is a {kind}, only tensors are supported")
        tensor_type = declared[name].tensor_type
        if tensor_type.elem_type not in DTYPE_NAMES:
            raise UnsupportedError(
                "LK4001",
                f"input {name!r} has element type {element_type_name(tensor_type.elem_type)}, which is not supported",
            )
        if not tensor_type.HasField("shape"):
            problems.append(f"input {name!r} declares no shape, not even its rank")
    for value in ready.graph.output:
        given = declared.get(value.name)
        if given is not None and not agree(given, value.type):
            raise CaptureError(
                "LK2003", f"{value.name!r} is an input, and declared as an output of another type or shape"
            )
    if problems:
        raise InputError(
            "LK1003",
            f"{len(problems)} inputs need a shape",
            details=problems,
            hint="give it: --input " + " --input ".join(f"{name}:1x3x224x224" for name in ready.inputs[:1]),
        )


def _name_free_dims(ready: OnnxGraph) -> None:
    """Gives a name to each dim of an input that is neither a number nor named."""
    for value in ready.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.HasField("dim_param"):
                if not dim.dim_param.isidentifier():
                    dim.dim_param = re.sub(r"[^A-Za-z0-9_]", "_", f"_{dim.dim_param}")
            elif not dim.HasField("dim_value"):
                dim.dim_param = f"{re.sub(r'[^A-Za-z0-9_]', '_', value.name)}_{axis}"


def _signature(ready: OnnxGraph, module: ir.Module, dims: Sequence[Dim], needed: Sequence[Guard]) -> Signature:
    declared = {value.name: value.type.tensor_type for value in ready.graph.input}
    inputs = [
        TensorSpec(
            name,
            DTYPE_NAMES[declared[name].elem_type],
            [_extent(dim) for dim in declared[name].shape.dim],
        )
        for name in ready.inputs
    ]
    names = {symbol: None for spec in inputs for extent in spec.shape for symbol in symbols(extent)}
    ranges = {dim.name: dim for dim in dims}
    function = ir.SymbolTable(module.operation)["main"]
    results = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).results
    _require_declared_types(ready, results)
    outputs = [
        TensorSpec(value.name, DTYPE_NAMES[value.type.tensor_type.elem_type], _output_shape(value, result, names))
        for value, result in zip(ready.graph.output, results, strict=True)
    ]
    return Signature(
        inputs=inputs,
        outputs=outputs,
        dims=[ranges.get(name, Dim(name)) for name in names],
        guards=list({guard.condition: guard for guard in (*asserted_guards(module, inputs), *needed)}.values()),
    )


def _shapes(ready: OnnxGraph) -> dict[str, list[Expr | None]]:
    """The extents of values in the dims of the inputs, None for others."""
    declared = {value.name: value.type.tensor_type for value in ready.graph.input}
    names = {symbol for name in ready.inputs for dim in declared[name].shape.dim for symbol in symbols(_extent(dim))}

    def extent(dim: Any) -> Expr | None:
        found = dim.dim_value if dim.HasField("dim_value") else _parse_dim(dim.dim_param)
        return found if found is not None and all(symbol in names for symbol in symbols(found)) else None

    values = [*ready.graph.input, *ready.graph.value_info]
    return {value.name: [extent(dim) for dim in value.type.tensor_type.shape.dim] for value in values}


def _require_declared_types(ready: OnnxGraph, results: Sequence[ir.Type]) -> None:
    """An output that is computed in another element type than it declares would be read as other numbers."""
    problems: list[str] = []
    for value, result in zip(ready.graph.output, results, strict=True):
        declared = DTYPE_NAMES.get(value.type.tensor_type.elem_type, "")
        computed = str(result).rpartition(",")[2].rstrip(">").replace("si", "i").replace("ui", "u")
        if declared and computed != declared:
            problems.append(f"output {value.name!r} is declared as {declared} and computed in {computed}")
    if problems:
        raise CaptureError("LK2003", "the ONNX model contradicts itself", details=problems, hint="export it again")


def _extent(dim: Any) -> Expr:
    return dim.dim_value if dim.HasField("dim_value") else dim.dim_param


def _output_shape(value: onnx.ValueInfoProto, result: ir.Type, names: Mapping[str, Any]) -> list[Expr]:
    """Takes each extent from the refined type, and where that is dynamic from what the model declares."""
    sizes = re.fullmatch(r"!torch\.vtensor<\[([0-9?,]*)\],.*>", str(result))
    declared = list(value.type.tensor_type.shape.dim)
    texts = [text for text in sizes.group(1).split(",") if text] if sizes else []
    if sizes is None or (len(declared) != len(texts) and "?" in texts):
        raise UnsupportedError("LK4002", f"the rank of output {value.name!r} is not known")
    shape: list[Expr] = []
    for axis, text in enumerate(texts):
        expression = int(text) if text != "?" else _parse_dim(declared[axis].dim_param)
        if expression is None or any(symbol not in names for symbol in symbols(expression)):
            raise UnsupportedError(
                "LK4002",
                f"dim {axis} of output {value.name!r} ({declared[axis].dim_param or 'unnamed'}) is no expression of "
                f"the inputs' dims ({', '.join(names) or 'none'})",
                hint="give the inputs fixed shapes with --input NAME:SHAPE",
            )
        shape.append(expression)
    return shape


_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
}


def _parse_dim(text: str) -> Expr | None:
    """Parses ``s0``, ``2*s0 + 1``, ``(batch // 2)``: torch's exporter writes such dims."""

    def convert(node: ast.expr) -> Expr | None:
        match node:
            case ast.Name(id=name):
                return name
            case ast.Constant(value=int(number)):
                return number
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
                one, two = convert(left), convert(right)
                return None if one is None or two is None else (_OPERATORS[type(operator)], one, two)
            case _:
                return None

    try:
        found = convert(ast.parse(text.strip(), mode="eval").body) if len(text) < 500 else None
    except (SyntaxError, ValueError, RecursionError):
        return None
    return None if found is None else simplify(found)
