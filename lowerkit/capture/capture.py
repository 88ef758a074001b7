"""``capture``: from a model in memory to a Program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lowerkit.capture.program import Program
from lowerkit.errors import UsageError


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
        kwargs: keyword arguments of ``forward``.

    Raises:
        UsageError: LK1003, a module comes without example inputs; LK2001, ``model`` is of another kind.
        CaptureError, UnsupportedError: see the front ends.
    """
    kind = type(model)
    if any(base.__name__ == "ModelProto" and base.__module__.startswith("onnx") for base in kind.__mro__):
        from lowerkit.capture.onnx import capture_onnx

        return capture_onnx(model, example_inputs=example_inputs)
    import torch

    from lowerkit.capture.torch_export import capture_exported, capture_module

    if isinstance(model, torch.export.ExportedProgram):
        program = capture_exported(model)
        if example_inputs is not None:
            from lowerkit.capture.torch_eager import flat_arrays

            program.example_inputs = flat_arrays((tuple(example_inputs), dict(kwargs or {})))
        return program
    if not isinstance(model, torch.nn.Module):
        raise UsageError(
            "LK2001",
            f"{kind.__module__}.{kind.__qualname__} is no nn.Module, ExportedProgram, ScriptModule or ONNX model",
            hint="for a file give its path as a string; wrap a function in an nn.Module",
        )
    if example_inputs is None and not kwargs:
        raise UsageError(
            "LK1003",
            f"example inputs are needed to capture {kind.__qualname__}",
            hint="pass example_inputs=(tensor, ...) in the order of forward",
        )
    if isinstance(model, torch.jit.ScriptModule):
        if dynamic_shapes is not None:
            raise UsageError(
                "LK2001",
                "a TorchScript model is captured with the shapes of its example inputs",
                hint="capture the original module to have dynamic shapes",
            )
        from lowerkit.capture.torchscript import capture_script

        return capture_script(model, tuple(example_inputs or ()), kwargs)
    return capture_module(model, tuple(example_inputs or ()), dynamic_shapes, kwargs)
