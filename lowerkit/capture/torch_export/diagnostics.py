"""What cannot be captured, said with the user's line: failures of the exporter, and graphs beyond expression."""

# torch tells ops and their schemas apart by private names only.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import traceback
from collections.abc import Collection
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    InputKind,
    OutputKind,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
)
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from lowerkit.capture.torch_export.graph.control_flow import CONTROL_FLOW
from lowerkit.capture.torch_export.symbolic.dims import is_static
from lowerkit.errors import CaptureError, LowerkitError, UnsupportedError
from lowerkit.program.dtypes import torch_name_of
from lowerkit.program.functional_program import FunctionalProgram
from lowerkit.program.locations import frames_of_trace, is_users_file, users_line

_TRAINING_OPS = frozenset(
    {"aten.native_dropout.default", "aten.bernoulli.p", "aten._native_batch_norm_legit_functional.default"}
)
_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
"""PyTorch computes next to nothing with them, and the torch dialect has no such types; ONNX has."""
_IMPORTED_HIGHER_ORDER = CONTROL_FLOW | {"wrap_with_set_grad_enabled"}


def capture_error(error: Exception, what: str) -> LowerkitError:
    """Returns the error for what ``torch.export`` raised; ``what`` says what was tried."""
    kind = type(error).__name__
    raised = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    frames = [frame for frame in [*raised, *frames_of_trace(str(error))] if is_users_file(frame[0])]
    place = f"{frames[-1][0]}:{frames[-1][1]}" if frames else None
    message = f"{what}: {kind}: {first_line(error)}"
    if kind in ("GuardOnDataDependentSymNode", "DataDependentOutputException", "PendingUnbackedSymbolNotFound"):
        return UnsupportedError(
            "LK4002",
            f"{what}: a branch or a size depends on the values of a tensor",
            location=place,
            details=[f"{kind}: {first_line(error)}"],
            hint="use torch.where to select, torch.cond to branch, or a size that does not depend on data",
        )
    details = [line.strip()[2:] for line in str(error).splitlines()[1:] if line.strip().startswith("- ")][:8]
    hint = "run the model with these inputs in eager PyTorch; if that works, torch.export does not support the model"
    if kind in ("ConstraintViolationError", "UserError") and "onstraint" in str(error):
        hint = (
            "the model contradicts a dim that is declared dynamic: give dims that are always equal one name, and "
            "example inputs a size of 2 or more"
        )
    return CaptureError("LK2001", message, op=_refusing(error), location=place, details=details, hint=hint)


def _refusing(error: Exception) -> str | None:
    """The operator that refused its arguments while it was traced."""
    frames = [frame.f_locals.get("func") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return next((str(func) for func in frames if isinstance(func, torch._ops.OpOverload)), None)


def first_line(error: BaseException) -> str:
    """Returns the first line of an exception's text that says something."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def refuse_training(exported: ExportedProgram) -> None:
    """Raises CaptureError for what only training does: random drops, and norms that change the model's statistics."""
    found: list[str] = []
    buffers = set(exported.graph_signature.inputs_to_buffers)

    def visit(graph: fx.Graph) -> None:
        for node in graph.nodes:
            if node.op == "get_attr" and isinstance(
                body := getattr(graph.owning_module, str(node.target)), fx.GraphModule
            ):
                visit(body.graph)
            if node.op == "call_function" and (_drops_at_random(node) or _changes_statistics(node, buffers)):
                frames = [frame for frame in frames_of_trace(node.meta.get("stack_trace")) if is_users_file(frame[0])]
                found.append(f"{node.name}: {node.target}" + (f" at {frames[-1][0]}:{frames[-1][1]}" if frames else ""))

    visit(exported.graph)
    if found:
        raise _in_training_mode(found)


def _arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of a call by their names; those left out are missing."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return {}
    names = [argument.name for argument in node.target._schema.arguments]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _changes_statistics(node: fx.Node, buffers: Collection[str]) -> bool:
    """Whether ``node`` is a norm that changes statistics: an instance norm, whose schema does not say so; a batch norm
    where they are buffers of the model: those that a caller passes are the caller's."""
    given = _arguments(node)
    statistics = [given.get("running_mean"), given.get("running_var")]
    if str(node.target) == "aten.instance_norm.default" and given.get("use_input_stats"):
        return any(value is not None for value in statistics)
    if str(node.target) == "aten.batch_norm.default" and given.get("training"):
        return any(isinstance(value, fx.Node) and value.name in buffers for value in statistics)
    return False


def _drops_at_random(node: fx.Node) -> bool:
    """Whether ``node`` is a recurrent layer of several levels with dropout between them, in training mode."""
    given = _arguments(node)
    if not {"num_layers", "dropout", "train"} <= given.keys():
        return False
    dropped, layers = given.get("dropout", 0.0), given.get("num_layers", 1)
    return bool(given.get("train")) and bool(dropped != 0.0) and bool(layers != 1)


def _in_training_mode(found: list[str]) -> CaptureError:
    return CaptureError(
        "LK2001",
        "the model was captured in training mode: its outputs are random, or statistics change at each call",
        details=found,
        hint="call model.eval() before capturing it",
    )


def _is_static_view(node: fx.Node) -> bool:
    """Whether the extents and strides of an ``as_strided`` and of what it reads are known."""
    tensors = [node.meta["val"], *(arg.meta["val"] for arg in node.args if isinstance(arg, fx.Node))]
    numbers = [*pytree.tree_leaves(node.args[1:]), *node.kwargs.values()]
    extents = [extent for value in tensors if isinstance(value, torch.Tensor) for extent in value.shape]
    return not any(isinstance(number, fx.Node) for number in numbers) and all(is_static(extent) for extent in extents)


def refuse_unsupported(exported: FunctionalProgram) -> None:
    """Raises CaptureError for a graph in training mode, UnsupportedError with all that is not supported."""
    found: dict[str, str] = {}
    dependent: dict[str, str] = {}
    training: dict[str, str] = {}

    def visit(graph: fx.Graph) -> None:
        for node in graph.nodes:
            if node.op != "call_function":
                continue
            line = users_line(node.meta.get("stack_trace"))
            place = f" at {line}" if line else ""
            if isinstance(node.target, torch._ops.HigherOrderOperator):
                if node.target.name() not in _IMPORTED_HIGHER_ORDER:
                    found[f"{node.name}: control flow {node.target.name()}{place}"] = ""
                    continue
                for body in node.args:
                    if isinstance(body, fx.Node) and body.op == "get_attr":
                        visit(getattr(graph.owning_module, str(body.target)).graph)
            if str(node.target) == "aten.as_strided.default" and not _is_static_view(node):
                found[f"{node.name}: as_strided of open extents, or to them{place}"] = ""
            if str(node.target) in _TRAINING_OPS:
                training[f"{node.name}: {node.target}{place}"] = ""
            for value in pytree.tree_leaves(node.meta.get("val")):
                if isinstance(value, torch.Tensor) and (torch_name_of(value.dtype) is None or value.dtype in _UNSIGNED):
                    found[f"{node.name}: {node.target} gives element type {value.dtype}{place}"] = ""
                elif isinstance(value, torch.Tensor) and value.layout != torch.strided:
                    found[f"{node.name}: {node.target} gives a sparse tensor{place}"] = ""
                elif isinstance(value, torch.Tensor) and any(free_unbacked_symbols(extent) for extent in value.shape):
                    dependent[f"{node.name}: {node.target}{place}"] = ""

    visit(exported.graph)
    for spec in exported.graph_signature.output_specs:
        if spec.kind == OutputKind.USER_INPUT_MUTATION:
            found[f"{spec.arg.name}: input {spec.target!r} is changed in place"] = ""
        elif isinstance(spec.arg, (SymIntArgument, SymFloatArgument, SymBoolArgument)):
            found[f"{spec.arg.name}: a number that is computed is returned as an output"] = ""
    for spec in exported.graph_signature.input_specs:
        if spec.kind == InputKind.CUSTOM_OBJ or isinstance(spec.arg, SymIntArgument):
            found[f"{spec.arg.name}: an input that is no tensor and not constant"] = ""
    for node in exported.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.layout != torch.strided:
            found[f"{node.name}: an input of layout {value.layout}"] = ""
        elif isinstance(value, torch.Tensor) and value.dtype in _UNSIGNED:
            found[f"{node.name}: an input of element type {value.dtype}"] = ""
    if training:
        raise _in_training_mode(list(training))
    if found:
        parts = "1 part of the model is" if len(found) == 1 else f"{len(found)} parts of the model are"
        raise UnsupportedError("LK4001", f"{parts} not supported", details=list(found), hint=None)
    if dependent:
        raise UnsupportedError(
            "LK4002",
            "a shape depends on the values of a tensor",
            details=list(dependent),
            hint="use torch.where instead of indexing by a mask, or give the result a fixed shape",
        )
