"""``capture``: from a model in memory to a Program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lowerkit.capture.example_inputs import nested_in_order, refuse_dynamic_shapes
from lowerkit.errors import UsageError
from lowerkit.program.program import Program
from lowerkit.torch_version import require_torch


def capture(
    model: Any,
    example_inputs: Sequence[Any] | None = None,
    dynamic_shapes: Any = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Program:
    """Captures an ``nn.Module``, an ``ExportedProgram``, a ``ScriptModule`` or an ``onnx.ModelProto``.

    Args:
        model: the model, on the CPU, in the mode it is to be compiled for.
        example_inputs: positional arguments of ``forward``; they fix every dim that is not dynamic. Not needed for an
            ExportedProgram (it brings its own) and an ONNX model (it declares its inputs).
        dynamic_shapes: as for ``torch.export.export``; for a module only.
        kwargs: keyword arguments of ``forward``, or inputs by name.

    Raises:
        UsageError: LK1003, a module comes without example inputs; LK1004, ``dynamic_shapes`` for a model that has its
            shapes; LK1007, this version of torch is not supported; LK2001, ``model`` is of another kind.
        InputError: LK1003, the example inputs do not fit an ExportedProgram or an ONNX model.
        CaptureError, UnsupportedError: see the front ends.
    """
    require_torch()
    if hasattr(example_inputs, "__dlpack__"):  # a tensor is a sequence, too: of its rows
        raise UsageError(
            "LK1003",
            f"example_inputs is a {type(example_inputs).__name__}, not a tuple of the arguments of forward",
            hint="for a model of one input, write (x,)",
        )
    kind = type(model)
    if any(base.__name__ == "ModelProto" and base.__module__.startswith("onnx") for base in kind.__mro__):
        from lowerkit.capture.onnx.capture import capture_onnx

        refuse_dynamic_shapes(dynamic_shapes, "an ONNX model", "declare the dims in the model")
        program = capture_onnx(model)
        if example_inputs is not None or kwargs:
            program.example_inputs = nested_in_order(program, example_inputs or (), kwargs or {})
        return program
    import torch

    from lowerkit.capture.torch_export.capture import capture_exported, capture_module

    if isinstance(model, torch.export.ExportedProgram):
        refuse_dynamic_shapes(dynamic_shapes, "an ExportedProgram")
        program = capture_exported(model)
        if example_inputs is not None or kwargs:
            program.example_inputs = nested_in_order(program, example_inputs or (), kwargs or {})
        return program
    if not isinstance(model, torch.nn.Module):
        raise UsageError(
            "LK2001",
            f"{kind.__module__}.{kind.__qualname__} is not an nn.Module, ExportedProgram, ScriptModule or ONNX model",
            hint="for a file give its path as a string; wrap a function in an nn.Module",
        )
    if example_inputs is None and not kwargs:
        raise UsageError(
            "LK1003",
            f"example inputs are needed to capture {kind.__qualname__}",
            hint="pass example_inputs=(tensor, ...) in the order of forward",
        )
    if isinstance(model, torch.jit.ScriptModule):
        refuse_dynamic_shapes(
            dynamic_shapes, "a TorchScript model", "capture the original module to have dynamic shapes"
        )
        from lowerkit.capture.torchscript.capture import capture_script

        return capture_script(model, tuple(example_inputs or ()), kwargs)
    return capture_module(model, tuple(example_inputs or ()), dynamic_shapes, kwargs)
