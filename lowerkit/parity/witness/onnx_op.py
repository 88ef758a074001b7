"""One ONNX node apart from where it stands: a model of its own, run by ONNX Runtime, and by ONNX's evaluator.

It has what :class:`~lowerkit.parity.witness.distinct_op.DistinctOp` has for an op of PyTorch.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import onnx
import torch
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from lowerkit.capture.onnx.eager import onnx_evaluator, silent_session
from lowerkit.dialect.reference.numeric import Array
from lowerkit.parity.judge.operators import PARTIAL_SUMS
from lowerkit.parity.witness.distinct_op import Extent, Operand, shapes_at, sizes_text
from lowerkit.program.dtypes import name_of, to_numpy, to_torch, torch_dtype, torch_name_of
from lowerkit.runtimes.expressions import to_text

Run: TypeAlias = Callable[[Sequence[Array]], list[Array]]

ELEMENT_TYPES: Mapping[str, int] = {
    "f64": TensorProto.DOUBLE, "f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16,
    "i64": TensorProto.INT64, "i32": TensorProto.INT32, "i16": TensorProto.INT16, "i8": TensorProto.INT8,
    "u64": TensorProto.UINT64, "u32": TensorProto.UINT32, "u16": TensorProto.UINT16, "u8": TensorProto.UINT8,
    "i1": TensorProto.BOOL,
}  # fmt: skip
"""ONNX's element types by the names of the signature."""


@dataclass(frozen=True)
class OnnxOp:
    """A node whose operands are inputs ``x0``, ``x1``, ..., and whose small constants come with it.

    Attributes:
        node: with the names of ``operands`` and ``constants``; outputs are ``y0``, ``y1``, ...
        operands: the tensors.
        constants: by the name that the node has for them.
        opsets: of the model that it stands in.
        sizes: as those of a DistinctOp.
        results: what it gives, where that is known; inference does not always find out.
    """

    node: NodeProto
    operands: tuple[Operand, ...]
    constants: Mapping[str, Array]
    opsets: Sequence[tuple[str, int]]
    sizes: Mapping[str, tuple[int, int, int | None]] = field(default_factory=dict[str, tuple[int, int, int | None]])
    results: tuple[Operand, ...] = ()
    _runs: dict[tuple[str, ...], Run] = field(default_factory=dict[tuple[str, ...], Run], repr=False)

    @property
    def name(self) -> str:
        """``Add``; of another domain than ONNX's with it."""
        return ".".join(filter(None, (self.node.domain, self.node.op_type)))

    @property
    def text(self) -> str:
        """Its operands, constants and attributes."""
        operands = {f"x{number}": operand.text for number, operand in enumerate(self.operands)}
        constants = {name: _short(array) for name, array in self.constants.items()}
        read = [{**operands, **constants}.get(name, "") for name in self.node.input]
        given = [
            str(helper.printable_attribute(each)) for each in sorted(self.node.attribute, key=lambda each: each.name)
        ]
        return ", ".join([*read, *given])

    @property
    def key(self) -> str:
        """What tells it apart from other ops, as text."""
        # The text of an attribute that is a tensor does not have its elements.
        tensors = [each.SerializeToString() for each in self.node.attribute if each.HasField("t")]
        elements = hashlib.sha256(b"".join(tensors)).hexdigest() if tensors else ""
        return f"onnx {self.opsets} {self.name}({self.text}) {sizes_text(self.sizes)} {elements}"

    @property
    def spread(self) -> float:
        """Elementwise ops have no partial sums."""
        try:
            doc = onnx.defs.get_schema(self.node.op_type, domain=self.node.domain).doc or ""
        except onnx.defs.SchemaError:
            doc = ""
        return 1.0 if re.search("element-?wise", doc) else PARTIAL_SUMS

    def shapes(self, sizes: Mapping[str, int] | None = None) -> list[tuple[int, ...]]:
        """Returns the operands' shapes at the given sizes, or those of the example."""
        return shapes_at(self, sizes)

    def model(self, dtypes: Sequence[str] | None = None) -> ModelProto:
        """Returns the node as a model; with ``dtypes`` its operands are of these element types."""
        names = dtypes or [torch_name_of(operand.dtype) or "" for operand in self.operands]
        inputs = [
            declared(f"x{number}", Operand(torch_dtype(name), operand.shape))
            for number, (name, operand) in enumerate(zip(names, self.operands, strict=True))
        ]
        given = [name for name in self.node.output if name]
        outputs = [onnx.ValueInfoProto(name=name) for name in given]
        if self.results and dtypes is None:
            outputs = [declared(*each) for each in zip(given, self.results, strict=True)]
        constants = [numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        graph = helper.make_graph([self.node], "alone", inputs, outputs, constants)
        opsets = [helper.make_opsetid(domain, number) for domain, number in self.opsets]
        whole = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        return onnx.shape_inference.infer_shapes(whole, data_prop=True)

    def call(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Runs it by ONNX Runtime; in wider element types than its own, where that has no kernels, by the evaluator."""
        arrays = [to_numpy(tensor) for tensor in tensors]
        dtypes = tuple(name_of(array.dtype) for array in arrays)
        if dtypes not in self._runs:
            self._runs[dtypes] = self._runner(dtypes)
        return [to_torch(np.array(value)) for value in self._runs[dtypes](arrays)]

    def _runner(self, dtypes: Sequence[str]) -> Run:
        model = self.model(dtypes)
        is_wide = list(dtypes) != [torch_name_of(operand.dtype) for operand in self.operands]
        try:
            return silent_session(model)
        except Exception:  # the runtime raises what it likes
            if not is_wide:
                raise
        evaluator = onnx_evaluator(model)

        def run(arrays: Sequence[Array]) -> list[Array]:
            found = [np.asarray(value) for value in evaluator(arrays)]
            if any(value.dtype.kind == "f" and value.dtype != np.float64 for value in found):
                raise TypeError("the evaluator fell back to a narrower type")
            return found

        return run

    def second_opinion(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Runs it by ONNX's own evaluator: what agrees with one of the two is right."""
        evaluator = onnx_evaluator(self.model())
        return [to_torch(np.array(value)) for value in evaluator([to_numpy(tensor) for tensor in tensors])]


def declared(name: str, operand: Operand) -> onnx.ValueInfoProto:
    """Returns a tensor's name and type as ONNX has them."""
    element = ELEMENT_TYPES[torch_name_of(operand.dtype) or ""]
    return helper.make_tensor_value_info(name, element, [_dim(extent) for extent in operand.shape])


def _dim(extent: Extent) -> int | str:
    return extent if isinstance(extent, int | str) else to_text(extent)


def _short(array: Array) -> str:
    return f"{name_of(array.dtype)} {array.tolist()}"
