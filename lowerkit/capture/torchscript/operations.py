"""What the nodes of a TorchScript program compute: operators of PyTorch, and what TorchScript has for itself."""

# torch names the nodes of TorchScript graphs in private modules only.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from lowerkit.capture.torch_export.operators import aten
from lowerkit.capture.torchscript.quantized import compute_quantized, computes_quantized
from lowerkit.capture.torchscript.values import (
    CONTAINERS,
    Known,
    apply,
    arithmetic,
    dtype_number,
    is_container,
    known,
    lifted,
    logical_not,
    number,
    python_constant,
)
from lowerkit.errors import UnsupportedError
from lowerkit.program.locations import inside_torch

_TRACED = re.compile(r"^(?P<file>\S.*?)\((?P<line>[0-9]+)\): (?P<name>.+)$", re.MULTILINE)
_SCRIPTED = re.compile(r'^ *File "(?P<file>.+?)", line (?P<line>[0-9]+)(?:, in (?P<name>.+))?$', re.MULTILINE)
_MACHINERY = ("nn/modules/module.py", "jit/", "_trace", "utils/")
_NOTHING = {"prim::Print", "prim::Enter", "prim::Exit", "aten::warn"}


def compute(node: torch._C.Node, inputs: list[Any]) -> Any:
    """Returns the only output of a node, or a sequence of all.

    Raises:
        UnsupportedError: LK4001, it cannot be captured.
    """
    kind = node.kind()
    if kind in _NOTHING:
        return None
    if kind == "prim::Constant":
        value = node.output().toIValue()
        return Known(value) if isinstance(value, torch.Tensor) and value.ndim == 0 else value
    if kind.startswith(("aten::", "quantized::")) and computes_quantized(kind, inputs):
        found = compute_quantized(kind, inputs, lambda given: compute(node, given))
        if found is None:
            raise _unsupported(node)
        return found
    if kind in _SPECIAL:
        return _SPECIAL[kind](node, *inputs)
    computes = arithmetic(node)
    if computes is not None:
        return apply(computes, inputs)
    kinds = [value.type() for value in node.inputs()]
    # The sum of a tensor takes a list of dims.
    if kind in CONTAINERS and any(map(is_container, kinds)) and not isinstance(kinds[0], torch.TensorType):
        return CONTAINERS[kind](*inputs)
    return _call(node, inputs)


def _call(node: torch._C.Node, inputs: list[Any]) -> Any:
    """Calls the operator that a node names."""
    schema = torch._C.parse_schema(node.schema()) if node.schema() != "(no schema)" else None
    namespace, _, name = node.kind().partition("::")
    packet = getattr(getattr(torch.ops, namespace), name, None) if schema is not None else None
    overload = None if packet is None or schema is None else getattr(packet, schema.overload_name or "default", None)
    if overload is None or schema is None or namespace == "quantized":
        raise _unsupported(node)
    formal = overload._schema.arguments
    given = [python_constant(*pair) for pair in zip(inputs, (str(one.real_type) for one in formal), strict=True)]
    if any(
        isinstance(value, Known) and one.alias_info is not None and one.alias_info.is_write
        for value, one in zip(given, formal, strict=True)
    ):
        raise UnsupportedError("LK4001", f"{node.kind()} changes a constant in place", location=_place(node))
    names = [one.name for one in formal if one.kwarg_only]

    def call(*values: Any) -> Any:
        count = len(values) - len(names)
        found = overload(*values[:count], **dict(zip(names, values[count:], strict=True)))
        # What works in place returns its operand; told apart by identity.
        return values[0] if returns_first else found

    returns_first = node.kind().endswith("_") and len(overload._schema.returns) == 1 and overload._schema.is_mutable
    return apply(call, given)


def _unsupported(node: torch._C.Node) -> UnsupportedError:
    quantized = "quantize" in node.kind() or any("quantize" in value.node().kind() for value in node.inputs())
    return UnsupportedError(
        "LK4001",
        f"the TorchScript program uses {node.kind()} ({node.schema()}), which cannot be captured",
        location=_place(node),
        hint="quantize the float model: lowerkit quantize, or PT2E" if quantized else None,
    )


def _place(node: torch._C.Node) -> str | None:
    lines = stack_trace(str(node.sourceRange())).splitlines()
    match = _SCRIPTED.match(lines[-1]) if lines else None
    return f"{match['file']}:{match['line']}" if match else None


def stack_trace(source: str) -> str:
    """Writes TorchScript's stack (innermost first) as Python does, without the machinery of module calls."""
    found = [*_TRACED.finditer(source), *_SCRIPTED.finditer(source)]
    frames = [
        f'  File "{match["file"]}", line {match["line"]}, in {match["name"] or "forward"}'
        for match in found
        if not (inside_torch(match["file"]) or "").startswith(_MACHINERY)
    ]
    return "\n".join(reversed(frames))


def module_path(node: torch._C.Node) -> str:
    """Returns where a node's module is, such as ``encoder.0``.

    A trace says ``a.Model::/b.Encoder::encoder/c.Linear::0``, a script ``encoder(Encoder).0(Linear)``.
    """
    scope = node.scopeName()
    names = (
        [part.rpartition("::")[2] for part in scope.split("/")]
        if scope
        else re.findall(r"(?:^|\.)(?!SELF|UNKNOWN_INSTANCE)(\w+)\(", node.getModuleHierarchy())
    )
    return ".".join(name for name in names if name)


def _raise(node: torch._C.Node, *said: Any) -> None:
    raise UnsupportedError(
        "LK4001",
        f"the TorchScript program raises an exception: {said[0] if said else ''}",
        location=_place(node),
        hint="an exception that data decides cannot be compiled; take it out, or give inputs that do not meet it",
    )


def _tensor(node: torch._C.Node, data: Any, dtype: Any = None, *_: Any) -> Any:
    """``torch.tensor`` of numbers, some of which may be data."""
    kind = None if dtype is None else python_constant(dtype, "ScalarType")
    data = lifted(data)
    if isinstance(data, torch.Tensor):
        return data.clone() if kind is None else data.to(kind)
    if isinstance(data, list) and any(isinstance(item, torch.Tensor) for item in data):  # pyright: ignore[reportUnknownVariableType]
        return torch.stack([torch.as_tensor(item) for item in data]).to(kind)  # pyright: ignore[reportUnknownVariableType]
    return torch.tensor(data, dtype=kind)


def _shape(node: torch._C.Node, value: Any, axis: int | None = None) -> Any:
    shape = (value.tensor if isinstance(value, Known) else value).shape
    return list(shape) if axis is None else shape[axis]


def _length(node: torch._C.Node, value: Any) -> int:
    return value.shape[0] if isinstance(value, torch.Tensor) else len(value)


def _selected(node: torch._C.Node, value: Any, axis: int, place: Any) -> Any:
    """``x[i]``, where ``i`` may be data."""
    place = number(place, None)
    if not isinstance(place, torch.Tensor):
        return aten.select.int(value, axis, place)
    inside = torch.where(place < 0, place + value.shape[axis], place)
    return torch.index_select(value, axis, inside.reshape(1)).squeeze(axis)


def _converted(node: torch._C.Node, value: Any, *others: Any) -> Any:
    """``x.to(...)``: to another type; there is but one device."""
    kinds = [str(one.type()) for one in node.inputs()][1:]
    if "prim_" not in node.schema().partition("(")[0]:
        return _call(node, [value, *others])
    numbers = [one for one, kind in zip(others, kinds, strict=True) if kind == "int" and one is not None]
    return value if not numbers else apply(aten.to.dtype, [value, python_constant(numbers[0], "ScalarType")])


_SPECIAL: dict[str, Callable[..., Any]] = {
    "prim::ListConstruct": lambda node, *items: list(items),
    "prim::TupleConstruct": lambda node, *items: tuple(items),
    "prim::DictConstruct": lambda node, *items: dict(zip(items[::2], items[1::2], strict=True)),
    "prim::TupleIndex": lambda node, items, place: items[place],
    "prim::TupleSlice": lambda node, items: items[node.i("beg") : node.i("end")],
    "prim::CreateObject": lambda node: SimpleNamespace(),
    "prim::Uninitialized": lambda node: None,
    "prim::unchecked_cast": lambda node, value: value,
    "prim::unchecked_unwrap_optional": lambda node, value: value,
    "aten::_unwrap_optional": lambda node, value: value,
    "prim::data": lambda node, value: value,
    "prim::RaiseException": _raise,
    "prim::NumToTensor": lambda node, value: value if isinstance(value, torch.Tensor) else known(value),
    "prim::device": lambda node, value: torch.device("cpu"),
    "prim::dtype": lambda node, value: dtype_number((value.tensor if isinstance(value, Known) else value).dtype),
    "prim::layout": lambda node, value: 0,
    "prim::is_cuda": lambda node, value: False,
    # As if trained: modules of PyTorch then take the ops that they are made of, not one that is made for them.
    "prim::requires_grad": lambda node, value: True,
    "aten::is_grad_enabled": lambda node: True,
    "aten::Int": lambda node, value: number(value, torch.int64),
    "aten::IntImplicit": lambda node, value: number(value, torch.int64),
    "aten::Float": lambda node, value: number(value, torch.float64),
    "aten::FloatImplicit": lambda node, value: number(value, torch.float64),
    "aten::Bool": lambda node, value: number(value, torch.bool),
    "aten::ScalarImplicit": lambda node, value: number(value, None),
    "aten::item": lambda node, value: number(value, None),
    "aten::__not__": lambda node, value: logical_not(value),
    "aten::__is__": lambda node, one, other: one is other,
    "aten::__isnot__": lambda node, one, other: one is not other,
    "aten::tensor": _tensor,
    "aten::as_tensor": _tensor,
    "aten::to": _converted,
    "aten::dim": lambda node, value: (value.tensor if isinstance(value, Known) else value).dim(),
    "aten::size": _shape,
    "aten::len": _length,
    "aten::select": _selected,
    "aten::_convolution": lambda node, *inputs: aten.convolution.default(*inputs[:9]),
    "aten::__range_length": lambda node, low, high, step: len(range(low, high, step)),
    "aten::__derive_index": lambda node, place, start, step: start + place * step,
}
