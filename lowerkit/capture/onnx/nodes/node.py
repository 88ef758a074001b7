"""What a rule reads of an ONNX node, beside the builders of ``passes/raising/torch_dialect``, with which it writes.

Vocabulary
    sizes      what is known of an integer tensor of rank 0 or 1: each element a number, or an int value of the IR.
               Shapes, and what is computed from them, are sizes: a reshape reads them as they are.
    declared   the type that ONNX's own inference gives a result; it and what a rule builds are two views of one tensor.

A rule is a function of a :class:`Node` that builds ops at the current insertion point and returns the results, one for
each output that the node names. It raises ``RefusalError`` for a node that it does not take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import onnx
from onnx import NodeProto, TypeProto, helper

from lowerkit.capture.onnx.nodes.sizes import LARGEST_SIZES, Sizes
from lowerkit.capture.onnx.tensors import DTYPE_NAMES
from lowerkit.errors import CaptureError
from lowerkit.mlir import ir
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    RefusalError,
    TensorInfo,
    build,
    constant_int,
    from_builtin,
    tensor_info,
    to_builtin,
)
from lowerkit.program.weights import Array

Results: TypeAlias = ir.Value | Sequence[ir.Value]
Rule: TypeAlias = Callable[["Node"], Results]


class Node:
    """One node under import.

    Attributes:
        proto: the node.
        version: the opset of the model.
        op_type: the name of its operator.
        declared: for each output, what ONNX's inference says of it; None where it says nothing of the rank.
    """

    def __init__(
        self,
        proto: NodeProto,
        version: int,
        operands: Mapping[str, ir.Value],
        declared: Sequence[TensorInfo | None],
        constant: Callable[[str], Array | None],
        sizes: Mapping[str, Sizes],
    ) -> None:
        self.proto = proto
        self.version = version
        self.op_type = proto.op_type
        self.declared = declared
        self._operands = operands
        self._constant = constant
        self._sizes = sizes
        self._attributes = {item.name: helper.get_attribute_value(item) for item in proto.attribute}

    def name(self, index: int) -> str:
        """Returns the name of an operand, empty where it is absent."""
        return self.proto.input[index] if index < len(self.proto.input) else ""

    def has(self, index: int) -> bool:
        """Whether an operand is there."""
        return bool(self.name(index))

    def operand(self, index: int) -> ir.Value:
        """Returns an operand that is there, of known rank and element type."""
        value = self._operands[self.name(index)]
        tensor_info(value)
        return value

    def info(self, index: int) -> TensorInfo:
        """Returns shape and element type of an operand."""
        return tensor_info(self.operand(index))

    def wants(self, index: int) -> bool:
        """Whether the node names a result."""
        return index < len(self.proto.output) and bool(self.proto.output[index])

    def operands(self) -> list[ir.Value]:
        """Returns all operands that are there."""
        return [self.operand(index) for index in range(len(self.proto.input)) if self.has(index)]

    def attribute(self, name: str, default: Any = None) -> Any:
        """Returns an attribute, by default that of the standard, or else ``default``; texts as str."""
        value = self._attributes.get(name)
        if value is None:
            value = _standard(self.op_type, self.version, name)
        if value is None:
            return default
        if isinstance(value, bytes):
            return value.decode()
        if isinstance(value, list):
            return [item.decode() if isinstance(item, bytes) else item for item in value]
        return value

    def constant(self, index: int) -> Array | None:
        """Returns the value of an operand that is a constant; None for what is computed, or absent."""
        return self._constant(self.name(index)) if self.has(index) else None

    def number(self, index: int) -> float | int | None:
        """Returns the value of an operand that is a constant of one element; None for any other."""
        found = self.constant(index)
        return found.reshape(()).item() if found is not None and found.size == 1 else None

    def sizes(self, index: int) -> Sizes:
        """Returns what an integer operand of rank 0 or 1 holds: numbers, sizes, or elements read at run time."""
        known = self.known_sizes(index)
        if known is not None:
            return known
        value = self.operand(index)
        info = tensor_info(value)
        if info.rank > 1 or info.dtype not in ("si64", "si32"):
            raise RefusalError(f"{info} is no list of sizes")
        count = info.static_dim(0) if info.rank else 1
        return Sizes([_element(value, place) for place in range(count)], info.rank)

    def is_followed(self, index: int) -> bool:
        """Whether an operand is computed from shapes alone."""
        return self.name(index) in self._sizes

    def known_sizes(self, index: int) -> Sizes | None:
        """As :meth:`sizes`, but only of constants and what is computed from shapes; None for others."""
        name = self.name(index)
        if name in self._sizes:
            return self._sizes[name]
        info = tensor_info(self.operand(index))
        if info.rank > 1 or info.dtype not in ("si64", "si32", "i1") or (info.shape and info.shape[0] is None):
            return None
        if info.rank and info.static_dim(0) > LARGEST_SIZES:
            return None
        found = self.constant(index)
        return None if found is None else Sizes([int(item) for item in found.reshape(-1)], found.ndim)

    def integers(self, index: int) -> list[int]:
        """Returns the elements of an integer operand that are all numbers.

        Raises:
            RefusalError: one of them is computed.
        """
        found = self.constant(index)
        if found is not None:
            return [int(item) for item in found.reshape(-1)]
        known = self.known_sizes(index)
        numbers = known.numbers if known is not None else None
        if numbers is None:
            raise RefusalError(f"operand {index} of {self.op_type} is not a constant")
        return numbers

    def axes(self, index: int, name: str = "axes") -> list[int] | None:
        """Returns axes that are an attribute in older opsets and an operand in newer ones; None where neither is."""
        if self.has(index):
            return self.integers(index)
        found = self.attribute(name, None)
        return None if found is None else [int(item) for item in found]

    @property
    def dtype(self) -> str:
        """The element type of the first output."""
        declared = self.declared[0]
        return tensor_info(self.operand(0)).dtype if declared is None else declared.dtype

    @property
    def size_dtype(self) -> str:
        """The element type of a result that is sizes: that of a shape is int64."""
        declared = self.declared[0]
        return "si64" if declared is None else declared.dtype

    def fitted(self, results: Results) -> list[ir.Value]:
        """Returns the results of the rule with all that they, and what is declared of them, say of their shapes.

        Raises:
            CaptureError: LK2003, both contradict each other.
        """
        values = [results] if isinstance(results, ir.Value) else list(results)
        names = [name for name in self.proto.output if name]
        return [
            self._fitted(name, value, declared)
            for name, value, declared in zip(names, values, self.declared, strict=False)
        ]

    def _fitted(self, name: str, value: ir.Value, declared: TensorInfo | None) -> ir.Value:
        if declared is None:
            return value
        built = tensor_info(value)
        pairs = list(zip(built.shape, declared.shape, strict=False))
        known = [(one, other) for one, other in pairs if one is not None and other is not None]
        if built.rank != declared.rank or built.dtype != declared.dtype or any(one != other for one, other in known):
            raise CaptureError(
                "LK2003",
                f"{name!r} is declared as {declared}, and {self.op_type} computes {built}",
                op=self.proto.name or name,
                hint="the model contradicts itself: export it again",
            )
        wanted = built.with_shape([other if one is None else one for one, other in pairs])
        return _refined(value, wanted, own=value not in self._operands.values())


@cache
def _standard(op_type: str, version: int, name: str) -> Any:
    """Returns the default of an attribute, rounded to float32 as the standard holds it; None where it has none."""
    schema: Any = onnx.defs.get_schema(op_type, version, "")
    known = schema.attributes.get(name)
    return None if known is None or not known.default_value.name else helper.get_attribute_value(known.default_value)


def _element(value: ir.Value, place: int) -> ir.Value:
    info = tensor_info(value)
    if info.rank:
        operands = [value, constant_int(0), constant_int(place)]
        value = build("torch.aten.select.int", operands, [TensorInfo((), info.dtype).torch_type()])[0]
    return build("torch.aten.Int.Tensor", [value], [ir.Type.parse("!torch.int")])[0]


def _refined(value: ir.Value, wanted: TensorInfo, *, own: bool) -> ir.Value:
    """Returns ``value`` with a type that says more of its shape: ``own``, if nothing else has it yet, it is changed."""
    kind = wanted.torch_type()
    if value.type == kind:
        return value
    if own and not isinstance(value.owner, ir.Block) and value.owner.operation.name.startswith("torch.aten."):
        value.set_type(kind)
        return value
    return from_builtin(to_builtin(value), wanted)


def declared_info(declared: TypeProto | None) -> TensorInfo | None:
    """Returns what ONNX says of a tensor; None where it does not know the element type or the rank.

    Of a name that nothing declares torch-mlir's importer gives an empty text.
    """
    if not isinstance(declared, TypeProto) or not declared.tensor_type.HasField("shape"):
        return None
    name = DTYPE_NAMES.get(declared.tensor_type.elem_type)
    if name is None:
        return None
    dims = declared.tensor_type.shape.dim
    shape = tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in dims)
    return TensorInfo(shape, torch_name(name))


def torch_name(dtype: str) -> str:
    """Returns what the torch dialect calls an element type of the signature."""
    if dtype.startswith("u"):
        return f"ui{dtype[1:]}"
    return f"s{dtype}" if dtype.startswith("i") and dtype != "i1" else dtype
