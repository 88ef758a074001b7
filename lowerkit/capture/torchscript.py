"""Capture of TorchScript: torch's own converter makes an ExportedProgram of it.

A TorchScript file is code; loading it runs none of it, tracing it with example inputs does, inside TorchScript's own
interpreter. The file says the names of its inputs and not their shapes, so example inputs are needed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from lowerkit.capture.archives import require_sums
from lowerkit.capture.dtypes import torch_name_of
from lowerkit.capture.input_spec import Expected
from lowerkit.capture.program import Program
from lowerkit.capture.torch_eager import eager_callable, flat_arrays, quiet
from lowerkit.capture.torch_export import capture_exported
from lowerkit.capture.torch_states import live_states, stateful_eager
from lowerkit.errors import CaptureError, InputError, LowerkitError, UnsupportedError


def load_script(path: Path) -> torch.jit.ScriptModule:
    """Loads a TorchScript file onto the CPU.

    Raises:
        InputError: LK1002, torch cannot read it, or its bytes are not those that were written.
    """
    with quiet():
        try:
            require_sums(path)
            return torch.jit.load(str(path), map_location="cpu").eval()
        except LowerkitError:
            raise
        except Exception as error:  # torch raises RuntimeError, IndexError, UnicodeDecodeError, ... for damaged files
            first = next(iter(str(error).splitlines()), type(error).__name__)
            raise InputError(
                "LK1002", f"{path} is a TorchScript file that torch cannot load: {first}", hint="export it again"
            ) from error


@dataclass(frozen=True)
class ScriptArguments:
    """The arguments of a script's ``forward`` as flat tensors: ``pair_0`` and ``pair_1`` for a tuple ``pair``.

    Attributes:
        expected: the tensors, in order.
        shapes: for each argument how many tensors it takes, and ``tensor``, ``tuple`` or ``list``.
    """

    expected: list[Expected]
    shapes: list[tuple[str, int]]

    @staticmethod
    def of(script: torch.jit.ScriptModule, given: Sequence[str] = ()) -> ScriptArguments:
        """Reads the arguments off ``script``; a list has as many tensors as ``given`` names (``items_0``, ...).

        Raises:
            UnsupportedError: LK4001, an argument without default is neither a tensor nor made of tensors.
        """
        forward: Any = script.forward
        arguments = forward.schema.arguments[1:]
        expected: list[Expected] = []
        shapes: list[tuple[str, int]] = []
        foreign: list[str] = []
        for name, argument in zip(_names(arguments), arguments, strict=True):
            kind = argument.type
            if _is_tensor(argument):
                expected.append(Expected(name, required=not argument.has_default_value()))
                shapes.append(("tensor", 1))
                continue
            count = 0
            if isinstance(kind, torch.TupleType) and all(isinstance(e, torch.TensorType) for e in kind.elements()):
                count, form = len(kind.elements()), "tuple"
            elif isinstance(kind, torch.ListType) and isinstance(kind.getElementType(), torch.TensorType):
                count, form = sum(bool(re.fullmatch(rf"{re.escape(name)}_[0-9]+", text)) for text in given), "list"
            else:
                form = ""
            if count:
                expected += [Expected(f"{name}_{index}") for index in range(count)]
                shapes.append((form, count))
            elif not argument.has_default_value():
                foreign.append(f"{name}: {kind}" + (f" (give {name}_0, {name}_1, ...)" if form == "list" else ""))
        if foreign:
            raise UnsupportedError(
                "LK4001",
                "the TorchScript model takes inputs that are no tensors",
                details=foreign,
                hint="name each tensor of a list with --input; wrap other inputs in a module that takes tensors only",
            )
        return ScriptArguments(expected, shapes)

    def nest(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """Returns the arguments of ``forward``."""
        rest = list(tensors)
        arguments: list[Any] = []
        for form, count in self.shapes:
            taken, rest = rest[:count], rest[count:]
            if form == "tensor":
                arguments += taken
            else:
                arguments.append(tuple(taken) if form == "tuple" else taken)
        return arguments


def capture_script(script: Any, example_inputs: Sequence[Any], *, source: str = "ScriptModule") -> Program:
    """Captures a ScriptModule (traced or scripted).

    Raises:
        CaptureError: LK2001, torch's converter refuses it or it fails on the inputs.
        UnsupportedError: see :func:`lowerkit.capture.torch_export.capture_exported`.
    """
    arguments: tuple[Any, ...] = tuple(example_inputs)
    formal = script.forward.schema.arguments[1:]
    # The converter wants a value for every argument, those with defaults included.
    arguments += tuple(argument.default_value for argument in formal[len(arguments) :] if argument.has_default_value())
    with quiet(), torch.no_grad():
        try:
            script(*arguments)
        except Exception as error:
            raise CaptureError(
                "LK2001",
                f"the TorchScript model fails on these inputs ({_text(arguments)}): {_reason(error)}",
                hint="give inputs that it accepts; values that matter (token ids) with --input NAME=@FILE.npy",
            ) from error
        try:
            from lowerkit.capture.torchscript_graph import ScriptConverter

            exported = ScriptConverter(script, arguments).convert()
        except Exception as error:
            raise CaptureError(
                "LK2001",
                f"torch's converter from TorchScript refuses the model: {_reason(error)}",
                hint="capture the original module: lowerkit compile path/to/file.py:factory",
            ) from error
    names = [name for pair in zip(_names(formal), arguments, strict=False) for name in _leaf_names(*pair)]
    program = capture_exported(exported, source=source, input_names=names, eager_module=script)
    if program.input_tree is not None:
        program.input_tree["names"] = _names(formal)[: len(arguments)]
    live = live_states(program.signature.states, script, {**exported.constants, **exported.state_dict})
    program.eager = stateful_eager(eager_callable(script, arguments, {}), live)
    program.example_inputs = flat_arrays((arguments, {}))
    return program


def _names(arguments: Sequence[Any]) -> list[str]:
    """Returns a name for each argument: a trace of ``forward(*inputs)`` may give several of them one name."""
    found: list[str] = []
    for argument in arguments:
        name, number = argument.name, 1
        while name in found:
            name, number = f"{argument.name}_{number}", number + 1
        found.append(name)
    return found


def _leaf_names(name: str, value: Any) -> list[str]:
    """The names of the tensors of one argument."""
    if isinstance(value, torch.Tensor):
        return [name]
    leaves = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    return [f"{name}_{index}" for index in range(len(leaves))]


def _is_tensor(argument: Any) -> bool:
    kind = argument.type
    return isinstance(kind, torch.TensorType) or (
        isinstance(kind, torch.OptionalType) and isinstance(kind.getElementType(), torch.TensorType)
    )


def _text(arguments: Sequence[Any]) -> str:
    return ", ".join(
        f"{'x'.join(map(str, argument.shape)) or 'scalar'}:{torch_name_of(argument.dtype) or argument.dtype}"
        for argument in arguments
        if isinstance(argument, torch.Tensor)
    )


def _reason(error: Exception) -> str:
    """The last line that says something: TorchScript's errors begin with a traceback of the interpreter."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [
        line for line in lines if line.startswith(("RuntimeError", "IndexError", "ValueError", "NotImplemented"))
    ]
    return (telling or lines or [type(error).__name__])[-1]
