"""An ONNX model made ready for import: checked, flat, of a known opset, shapes inferred, constants folded.

Vocabulary
    skeleton   the model without the data of its weights: each weight is a graph input with a type. Everything that
               works on whole protobufs (checker, inliner, version converter, shape inference) works on the skeleton,
               so a model of 100 GB costs as much as one of 100 kB.
    literal    a constant that stays in the graph: shapes, axes, scales. The conversions need their values.

Steps: skeleton -> checker -> local functions inlined -> user's input shapes -> opset >= 17 -> shapes, constants,
functions of the standard, control flow and rewrites in turns, until nothing changes -> signed integers for unsigned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner
import onnx.shape_inference
import onnx.version_converter
from onnx import GraphProto, ModelProto, NodeProto

from lowerkit.capture.onnx.collectives import inferable
from lowerkit.capture.onnx.constant_folding import fold_constants
from lowerkit.capture.onnx.control_flow.scan_outputs import carry_collected
from lowerkit.capture.onnx.control_flow.static_control_flow import inline_control_flow
from lowerkit.capture.onnx.declared_shapes import believe_inferred
from lowerkit.capture.onnx.eager import holds_bfloat16
from lowerkit.capture.onnx.functions import defined_by_others, expand_functions
from lowerkit.capture.onnx.legacy_hardmax import HARDMAX_OPSET, flatten_before_hardmax
from lowerkit.capture.onnx.legacy_prelu import PRELU_OPSET, keep_slopes_of_channels
from lowerkit.capture.onnx.legacy_resize import RESIZE_OPSET, keep_old_coordinates
from lowerkit.capture.onnx.limits import require_sound_scales
from lowerkit.capture.onnx.nodes import RULES
from lowerkit.capture.onnx.rewrites import ALWAYS, rewrite_nodes
from lowerkit.capture.onnx.skeleton import OnnxGraph, extract_constant_nodes, is_literal, make_skeleton, move_folded
from lowerkit.errors import CaptureError, InputError, UnsupportedError

OLDEST_OPSET = 17
"""Older models are converted to this version: the importer's patterns know ops from about here on."""
SCAN_OPSET = 9
"""The converter takes older Scans for those of this version, which they are not."""
NEWER_OPSET = 22
"""Models that hold bfloat16 are converted to this version, from which on convolutions and others know that type; those
with pools that round up too: older versions count windows that begin behind the input, which nobody computes."""
_BFLOAT16_HINT = (
    "PyTorch folds batch norms into float32 filters between bfloat16 values when it optimizes: "
    "export with torch.onnx.export(..., opset_version=22, optimize=False)"
)

_ROUNDS = 24
_EXPANDED = defined_by_others(but=frozenset({*RULES, *ALWAYS, "Bernoulli"}))
"""Operators that no rule takes; of Bernoulli the error is to speak, and not of what its body draws."""


def ready_graph(
    model: ModelProto, folder: Path | None, input_shapes: Mapping[str, Sequence[int | str | None]] | None = None
) -> OnnxGraph:
    """Takes ``model`` (which is changed) through the steps of the module docstring.

    Args:
        model: as parsed.
        folder: where external data may lie.
        input_shapes: shapes that replace what the model declares for an input; a str is a symbolic dim, None any.

    Raises:
        CaptureError: LK2003, the model is invalid: all damaged tensors, or what ONNX's checker says.
        InputError: LK1003, ``input_shapes`` contradicts a shape that the model fixes.
    """
    ready = make_skeleton(model, folder)
    try:
        onnx.checker.check_model(ready.model)
        if ready.model.functions:
            ready.model = onnx.inliner.inline_local_functions(ready.model)
            onnx.checker.check_model(ready.model)
    except (
        onnx.checker.ValidationError,
        UnicodeDecodeError,
    ) as error:  # what it says may quote a name that is no UTF-8
        raise invalid_model(error) from error
    extract_constant_nodes(ready, folder)
    require_sound_scales(ready)
    _set_shapes(ready, input_shapes or {})
    _convert_opset(ready)
    _simplify(ready)
    return ready


def expand_ops(ready: OnnxGraph, wanted: set[tuple[str, str]]) -> bool:
    """Replaces nodes of the (domain, op) by the standard's functions; returns whether it did."""
    if not expand_functions(ready.model, wanted):
        return False
    extract_constant_nodes(ready, None)
    _simplify(ready)
    return True


def _simplify(ready: OnnxGraph) -> None:
    for _ in range(_ROUNDS):
        _name_skipped_outputs(ready.graph)
        with inferable(ready):
            _infer(ready)
        _read_through_identities(ready.graph)
        changed = fold_constants(ready, keep=is_literal)
        changed = expand_functions(ready.model, _EXPANDED) or changed
        changed = inline_control_flow(ready) or changed
        changed = rewrite_nodes(ready, ALWAYS) or changed
        # Only what could not be written out.
        changed = changed or carry_collected(ready)
        if not changed:
            break
        extract_constant_nodes(ready, None)
    move_folded(ready)


def _read_through_identities(graph: GraphProto) -> None:
    """Lets nodes read what an Identity copies, so that one value has one name; bodies read by the copy's name."""
    sources: dict[str, str] = {}
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name in sources:
                node.input[index] = sources[name]
        if node.op_type == "Identity" and node.domain in ("", "ai.onnx"):
            sources[node.output[0]] = node.input[0]


def _name_skipped_outputs(graph: GraphProto) -> None:
    """Names the outputs that a node leaves out before others: an op's results are told apart by their place."""
    for number, node in enumerate(graph.node):
        last = max((index for index, name in enumerate(node.output) if name), default=-1)
        for index in range(last):
            if not node.output[index]:
                node.output[index] = f"{node.output[last]}.{number}.skipped{index}"


def invalid_model(error: Exception) -> CaptureError:
    """Returns the error for what an ONNX tool says of an invalid model."""
    text = [line.strip() for line in str(error).splitlines() if line.strip()]
    return CaptureError(
        "LK2003",
        f"the ONNX model is invalid: {text[0] if text else type(error).__name__}",
        details=text[1:6],
        hint=_BFLOAT16_HINT
        if "inconsistent type" in str(error)
        else "export it again; onnx.checker.check_model says the same",
    )


def _set_shapes(ready: OnnxGraph, shapes: Mapping[str, Sequence[int | str | None]]) -> None:
    """Replaces the shapes of inputs; a dim whose name changes changes it, or gets its number, everywhere."""
    graph = ready.graph
    renamed: dict[str, int | str] = {}
    for value in graph.input:
        shape = shapes.get(value.name)
        if shape is None:
            continue
        target = value.type.tensor_type.shape
        for dim, extent in zip(target.dim, shape, strict=False):
            if dim.dim_param and extent is not None and extent != dim.dim_param:
                renamed[dim.dim_param] = extent
        _require_fit(value.name, target.dim, shape)
        del target.dim[:]
        for extent in shape:
            _set_dim(target.dim.add(), extent)
    for value in [*graph.input[: len(ready.inputs)], *graph.output, *graph.value_info]:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in renamed:
                _set_dim(dim, renamed[dim.dim_param])


def _require_fit(name: str, declared: Sequence[Any], shape: Sequence[int | str | None]) -> None:
    """Refuses to change an extent that the file fixes: its outputs, and what lies in between, are fixed with it."""
    wrong = [
        f"dim {axis} of {name!r} is {dim.dim_value} in the file, {extent!r} was asked for"
        for axis, (dim, extent) in enumerate(zip(declared, shape, strict=False))
        if dim.dim_value > 0 and extent not in (None, dim.dim_value)
    ]
    if wrong:
        raise InputError(
            "LK1003",
            "the ONNX file fixes the shapes of its inputs",
            details=wrong,
            hint="export the model again with dynamic shapes",
        )


def _set_dim(dim: Any, extent: int | str | None) -> None:
    dim.Clear()
    if isinstance(extent, int):
        dim.dim_value = extent
    elif extent is not None:
        dim.dim_param = extent


def _rounds_up(node: NodeProto) -> bool:
    return any(entry.name == "ceil_mode" and entry.i for entry in node.attribute)


def _forget_extents(graph: GraphProto) -> None:
    """Forgets declared extents of what a pool that rounds up gives, and of what is made of it: they may count more."""
    made: set[str] = set()
    for node in graph.node:
        if _rounds_up(node) or made.intersection(node.input):
            made.update(node.output)
    for value in [*graph.value_info, *graph.output]:
        for dim in value.type.tensor_type.shape.dim if value.name in made else ():
            dim.Clear()


def _convert_opset(ready: OnnxGraph) -> None:
    version = next((entry.version for entry in ready.model.opset_import if entry.domain in ("", "ai.onnx")), 1)
    newest = onnx.defs.onnx_opset_version()
    if version > newest:
        raise CaptureError(
            "LK2003",
            f"the model is of opset {version}; onnx {onnx.__version__} knows up to {newest}",
            hint="pip install --upgrade onnx, or export with an older opset",
        )
    rounds_up = any(_rounds_up(node) for node in ready.graph.node)
    target = NEWER_OPSET if rounds_up or holds_bfloat16(ready.model) else OLDEST_OPSET
    if version >= target:
        return
    if all(node.domain not in ("", "ai.onnx") for node in ready.graph.node):
        ready.model.opset_import.append(onnx.helper.make_opsetid("", newest))
        return
    if version < SCAN_OPSET and any(node.op_type == "Scan" for node in ready.graph.node):
        raise UnsupportedError(
            "LK4001", "Scan of opset 8 has an axis of batches that later ones lack", hint="export with opset 9 or newer"
        )
    try:
        ready.model = onnx.version_converter.convert_version(ready.model, target)
    except (RuntimeError, ValueError, onnx.version_converter.ConvertError) as error:
        raise CaptureError(
            "LK2003",
            f"the model is of opset {version} and cannot be converted to {target}: "
            f"{next(iter(str(error).splitlines()), '')}",
            hint=f"export it again with opset {target} or newer",
        ) from error
    if rounds_up:
        _forget_extents(ready.graph)
    if version < HARDMAX_OPSET:
        flatten_before_hardmax(ready.graph)
    if version < PRELU_OPSET:
        keep_slopes_of_channels(ready.graph)
    if version < RESIZE_OPSET:
        keep_old_coordinates(ready.graph)
    extract_constant_nodes(ready, None)


def _infer(ready: OnnxGraph) -> None:
    try:
        ready.model = onnx.shape_inference.infer_shapes(ready.model, check_type=True, strict_mode=True, data_prop=True)
    except (onnx.shape_inference.InferenceError, ValueError) as contradiction:
        if "differs from existing elem type" in str(contradiction):
            raise invalid_model(contradiction) from contradiction
        # Strict mode also fails where inference merely gives up; then what it finds without is enough.
        try:
            believe_inferred(ready)
            ready.model = onnx.shape_inference.infer_shapes(ready.model, check_type=True, data_prop=True)
        except (onnx.shape_inference.InferenceError, ValueError) as error:
            raise invalid_model(error) from error
