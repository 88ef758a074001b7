"""Capture of TorchScript: its program is run under ``torch.export`` (:mod:`torchscript_interpreter`).

A TorchScript file is code; loading it runs none of it, tracing it with example inputs does, inside TorchScript's own
interpreter. The file says the names of its inputs and not their shapes, so example inputs are needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
from lowerkit.capture.torchscript_interpreter import export_script
from lowerkit.errors import CaptureError, InputError, LowerkitError, UnsupportedError, UsageError


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
        arguments = _formal_arguments(script)
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


def capture_script(
    script: Any, example_inputs: Sequence[Any], kwargs: Mapping[str, Any] | None = None, *, source: str = "ScriptModule"
) -> Program:
    """Captures a ScriptModule (traced or scripted).

    Args:
        script: the module.
        example_inputs: positional arguments of its ``forward``.
        kwargs: keyword arguments.
        source: what was captured, in the user's words.

    Raises:
        CaptureError: LK2001, it cannot be exported, or it fails on the inputs.
        UsageError: LK1003, arguments are missing or unknown.
        UnsupportedError: see :func:`lowerkit.capture.torch_export.capture_exported`.
    """
    formal = _formal_arguments(script)
    arguments = _bound(formal, example_inputs, kwargs or {})
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
            exported = export_script(script, arguments)
        except LowerkitError:
            raise
        except Exception as error:
            raise CaptureError(
                "LK2001",
                f"the TorchScript model cannot be captured: {_reason(error)}",
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


def _formal_arguments(script: Any) -> list[Any]:
    """What ``forward`` takes, behind ``self``."""
    if not hasattr(script, "forward"):
        raise UnsupportedError(
            "LK4001",
            "the TorchScript model has no forward: PyTorch overloads that of some of its modules (nn.LSTM, nn.GRU)",
            hint="script a module that calls it",
        )
    return list(script.forward.schema.arguments[1:])


def _bound(formal: Sequence[Any], positional: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """Returns a value for every argument: given, or its default."""
    names = [argument.name for argument in formal]
    problems = [
        f"{name!r} is no argument of forward, or given twice" for name in named if name not in names[len(positional) :]
    ]
    if len(positional) > len(formal):
        problems.append(f"{len(positional)} positional arguments, forward takes {len(formal)}")
    found = list(positional)
    for argument in formal[len(positional) :]:
        if argument.name in named:
            found.append(named[argument.name])
        elif argument.has_default_value():
            found.append(argument.default_value)
        else:
            problems.append(f"{argument.name!r} ({argument.type}) is missing")
    if problems:
        raise UsageError("LK1003", "the arguments do not fit the TorchScript model", details=problems)
    return tuple(found)


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
