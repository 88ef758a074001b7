"""The witness of the ops of an ONNX model: each distinct node alone, ours beside ONNX Runtime.

A node is told apart by its type, the element types, ranks and small extents of its operands, its attributes and small
constants. It is captured as a model of its own, lowered and interpreted. ONNX Runtime and ONNX's evaluator are each
other's second opinion: what agrees with one of the two is right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
import torch
from onnx import AttributeProto, NodeProto, TypeProto, numpy_helper
from onnx.inliner import inline_local_functions

from lowerkit.capture.onnx.capture import capture_onnx
from lowerkit.capture.onnx.eager import load_with_data, onnx_evaluator
from lowerkit.dialect.reference.numeric import Array
from lowerkit.parity.witness.distinct_op import Extent, Operand
from lowerkit.parity.witness.distinct_ops import LeftOutError, Occurrence, number_for, small_numbers
from lowerkit.parity.witness.onnx_op import ELEMENT_TYPES, OnnxOp, declared
from lowerkit.parity.witness.op_cases import drawn
from lowerkit.parity.witness.ops import Lowering, witness_each
from lowerkit.parity.witness.raised_alone import LoweredOp, RaisedProgram
from lowerkit.parity.witness.verdicts import VerdictCache, Witnessed
from lowerkit.program.dtypes import to_numpy, torch_dtype
from lowerkit.program.program import Program
from lowerkit.runtimes.manifest import Dim

_CONSTANT = 64
"""Elements of a constant of integers that comes with its node: axes, shapes, paddings."""

_FOLDED = 4096
"""Elements of constants that are computed with here."""

_MOST_ELEMENTS = 1 << 22


def witness_onnx_ops(
    program: Program, cache: VerdictCache | None, on_progress: Callable[[str], None] | None = None
) -> list[Witnessed]:
    """Returns a verdict for each distinct node of a captured ONNX model, in its order; see :func:`witness_ops`."""
    return witness_each(_occurrences(program), cache, _lowering, on_progress)


def _lowering(_ops: Sequence[OnnxOp]) -> Lowering[OnnxOp]:
    return _raised


def _raised(op: OnnxOp, tensors: Sequence[torch.Tensor]) -> LoweredOp:
    dims = [Dim(name, low, high) for name, (_, low, high) in op.sizes.items()]
    return RaisedProgram(capture_onnx(op.model(), dims=dims, example_inputs=[to_numpy(each) for each in tensors]))


def _occurrences(program: Program) -> list[Occurrence[OnnxOp]]:
    model = load_with_data(program.onnx_model)
    if model.functions:
        model = inline_local_functions(model)
    typed = onnx.shape_inference.infer_shapes(model, data_prop=True)
    reader = _Reader(typed, {dim.name: dim for dim in program.signature.dims})
    found: dict[str, Occurrence[OnnxOp]] = {}
    for number, node in enumerate(typed.graph.node):
        if not reader.varies(node):
            continue
        try:
            op = reader.op(node)
        except LeftOutError as reason:
            key, made = f"{node.op_type} {reason}", Occurrence[OnnxOp](None, node.op_type, [], str(reason))
        else:
            key, made = op.key, Occurrence(op, op.name, [])
        found.setdefault(key, made).places.append(node.name or f"node {number}, {node.op_type}")
    return list(found.values())


class _Reader:
    """Reads nodes: operands become tensors with small or open extents, small constants stay what they are."""

    def __init__(self, model: onnx.ModelProto, dims: Mapping[str, Dim]) -> None:
        graph = model.graph
        self.dims = dims
        self.opsets = [(each.domain, each.version) for each in model.opset_import]
        self.types = {value.name: value.type for value in (*graph.input, *graph.value_info, *graph.output)}
        self.folded: set[str] = set()
        self.constants: dict[str, Array] = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                self.constants[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)

    def varies(self, node: NodeProto) -> bool:
        """Whether a node reads what varies between runs; what does not is computed at capture, and here, if small."""
        if node.op_type == "Shape" and node.output[0] not in self.constants:
            extents = self._static_shape(node.input[0])
            if extents is not None:
                given = {each.name: each.i for each in node.attribute}
                self.constants[node.output[0]] = np.array(extents[given.get("start", 0) : given.get("end")], np.int64)
                return False
        read = [name for name in node.input if name]
        if any(name not in self.constants and name not in self.folded for name in read):
            return True
        if node.output[0] not in self.constants:
            self._fold(node, read)
        return False

    def _fold(self, node: NodeProto, read: Sequence[str]) -> None:
        self.folded.update(node.output)
        if any(name in self.folded or self.constants[name].size > _FOLDED for name in read):
            return
        graph = onnx.helper.make_graph(
            [node],
            "folded",
            [onnx.ValueInfoProto(name=name) for name in read],
            [onnx.ValueInfoProto(name=name) for name in node.output if name],
        )
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid(*each) for each in self.opsets])
        try:
            values = onnx_evaluator(model)([self.constants[name] for name in read])
        except Exception:  # the evaluator raises what it likes
            return
        for name, value in zip([name for name in node.output if name], values, strict=True):
            self.constants[name] = np.asarray(value)
            self.folded.discard(name)

    def _static_shape(self, name: str) -> list[int] | None:
        kind = self.types.get(name)
        if kind is None or not kind.tensor_type.HasField("shape"):
            return None
        dims = list(kind.tensor_type.shape.dim)
        return [dim.dim_value for dim in dims] if all(dim.HasField("dim_value") for dim in dims) else None

    def op(self, node: NodeProto) -> OnnxOp:
        """Returns a node alone.

        Raises:
            LeftOutError: it cannot be.
        """
        if any(each.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for each in node.attribute):
            raise LeftOutError("control flow")
        alone = NodeProto()
        alone.CopyFrom(node)
        alone.name = ""
        constants: dict[str, Array] = {}
        names: dict[str, str] = {}
        operands: list[Operand] = []
        sizes: dict[str, tuple[int, int, int | None]] = {}
        for place, name in enumerate(node.input):
            if not name:
                continue
            known = self.constants.get(name)
            if known is not None and (known.size == 1 or (known.dtype.kind in "iu" and known.size <= _CONSTANT)):
                constants[f"c{place}"] = known
                alone.input[place] = f"c{place}"
                continue
            if name not in names:
                names[name] = f"x{len(operands)}"
                operands.append(self._operand(name, sizes))
            alone.input[place] = names[name]
        for place, name in enumerate(node.output):
            alone.output[place] = f"y{place}" if name else ""
        kind = self.types.get(node.output[0])
        if not sizes and (kind is None or not kind.tensor_type.HasField("shape")):  # inference does not find out all
            whole = OnnxOp(alone, tuple(operands), constants, self.opsets)
            for name, result in zip(filter(None, node.output), _results(whole, None) or (), strict=False):
                self.types[name] = declared(name, result).type
        return self._small(alone, operands, constants, sizes, self.types.get(node.output[0]))

    def _small(
        self,
        node: NodeProto,
        operands: Sequence[Operand],
        constants: Mapping[str, Array],
        sizes: Mapping[str, tuple[int, int, int | None]],
        result: TypeProto | None,
    ) -> OnnxOp:
        """The node at small extents, its constants along, where it takes them so; else at its own."""
        numbers = small_numbers([extent for operand in operands for extent in operand.shape])
        smaller = [Operand(each.dtype, tuple(number_for(e, numbers) for e in each.shape)) for each in operands]
        along = {name: _mapped(array, numbers) for name, array in constants.items()}
        forms = [(smaller, along), (smaller, constants), (operands, constants)] if numbers else [(operands, constants)]
        for tensors, given in forms:
            op = OnnxOp(node, tuple(tensors), given, self.opsets, sizes)
            results = _results(op, result)
            if results is not None:
                return op if sizes else replace(op, results=tuple(results))
        raise LeftOutError("ONNX Runtime refuses it alone, or its tensors are too large to run it beside")

    def _operand(self, name: str, sizes: dict[str, tuple[int, int, int | None]]) -> Operand:
        known = self.constants.get(name)
        if known is not None and name not in self.types:
            element, shape = onnx.helper.np_dtype_to_tensor_dtype(known.dtype), list[Extent](known.shape)
        else:
            kind = self.types.get(name)
            if kind is None or not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
                raise LeftOutError("an operand of unknown type or rank")
            element = kind.tensor_type.elem_type
            shape = [self._extent(dim, sizes) for dim in kind.tensor_type.shape.dim]
        dtype = next((text for text, number in ELEMENT_TYPES.items() if number == element), None)
        if dtype is None:
            raise LeftOutError(f"a tensor of ONNX's element type {element}")
        return Operand(torch_dtype(dtype), tuple(shape))

    def _extent(self, dim: onnx.TensorShapeProto.Dimension, sizes: dict[str, tuple[int, int, int | None]]) -> Extent:
        if dim.HasField("dim_value"):
            return dim.dim_value
        known = self.dims.get(dim.dim_param)
        if known is None:
            raise LeftOutError("an extent that ONNX's inference does not know")
        name, low, high = f"n_{known.name}", known.minimum, known.maximum
        value = max(low, 4 + len(sizes))
        sizes.setdefault(name, (value if high is None else min(high, value), low, high))
        return name


def _mapped(array: Array, numbers: Mapping[int, int]) -> Array:
    if array.dtype.kind not in "iu":
        return array
    return np.array([number_for(int(each), numbers) for each in array.reshape(-1)], array.dtype).reshape(array.shape)


def _results(op: OnnxOp, wanted: TypeProto | None) -> list[Operand] | None:
    """What ONNX Runtime gives for zeros; None where it refuses, or the first has not the rank that it has there."""
    shapes = op.shapes()
    if sum(int(np.prod(shape)) for shape in shapes) > _MOST_ELEMENTS:
        return None
    pairs = zip(op.operands, shapes, strict=True)
    try:
        found = op.call([torch.zeros(shape, dtype=operand.dtype) for operand, shape in pairs])
    except Exception:  # the runtime raises what it likes
        return None
    values = drawn(op)
    if values is not None and [value.shape for value in op.call(values)] != [value.shape for value in found]:
        raise LeftOutError("its extents depend on data")
    kind = wanted.tensor_type if wanted is not None and wanted.HasField("tensor_type") else None
    if kind is not None and kind.HasField("shape") and found[0].dim() != len(kind.shape.dim):
        return None
    return [Operand(value.dtype, tuple(value.shape)) for value in found]
