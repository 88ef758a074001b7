"""Says where an op came from and what it is, for diagnostics and remarks of every pass."""

from __future__ import annotations

from dataclasses import dataclass

from lowerkit.mlir import ir
from lowerkit.program.locations import origin_of


@dataclass(frozen=True)
class SourceInfo:
    """The user's side of an op.

    Attributes:
        node: the name of the graph node, ``""`` where unknown.
        module_path: the path of the module in the model, such as ``encoder.layer.0``; ``""`` at the top.
        file: the user's file, ``""`` where unknown.
        line: the line in ``file``, 0 where unknown.
    """

    node: str
    module_path: str
    file: str
    line: int

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file else "unknown source"
        return f"{place} (in {self.module_path})" if self.module_path else place


def describe(op: ir.Operation | ir.OpView) -> SourceInfo:
    """Returns where ``op`` came from, out of its location."""
    origin = origin_of(op.operation.location)
    file, _, line = (origin.source_line or "").rpartition(":")
    return SourceInfo(origin.node, origin.module, file, int(line) if line else 0)


def op_name(op: ir.Operation | ir.OpView) -> str:
    """Returns the name of an op; for an opaque ``torch.operator``, the name of the operator inside it."""
    operation = op.operation
    if operation.name == "torch.operator":
        return ir.StringAttr(operation.attributes["name"]).value
    return operation.name


def signature_text(op: ir.Operation | ir.OpView) -> str:
    """Returns ``aten.foo (f32 1x3x4, si64 7)``: the op's name and the tensors that it takes, or else gives."""
    operation = op.operation
    tensors = [text for value in operation.operands if (text := _tensor_text(value.type))]
    tensors = tensors or [text for value in operation.results if (text := _tensor_text(value.type))]
    name = op_name(operation).removeprefix("torch.")
    return f"{name} ({', '.join(tensors)})" if tensors else name


def _tensor_text(kind: ir.Type) -> str | None:
    if isinstance(kind, ir.RankedTensorType):
        sizes = ["?" if kind.is_dynamic_dim(axis) else str(kind.get_dim_size(axis)) for axis in range(kind.rank)]
        shape = "x".join(sizes)
        return f"{kind.element_type} {shape}".strip()
    text = str(kind)
    if not text.startswith(("!torch.vtensor<[", "!torch.tensor<[")):
        return None
    shape, _, dtype = text[text.index("[") + 1 : -1].partition("],")
    return f"{dtype} {shape.replace(',', 'x')}".strip()
