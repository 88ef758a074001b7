"""Capture of TorchScript: its program is run under ``torch.export`` (:mod:`interpreter`).

A TorchScript file is a program; all that it can name is looked at before it is loaded (:mod:`source_checks`), so
that running it on the example inputs computes on tensors and does nothing else. The file says the names of its inputs
and not their shapes, so example inputs are needed."""

# torch loads TorchScript, and tells its types apart, under private names.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.jit._recursive import wrap_cpp_module
from torch.utils import _pytree as pytree

from lowerkit.capture.archives import read_archive, require_sums
from lowerkit.capture.input_spec import Expected
from lowerkit.capture.torch_export.capture import capture_exported
from lowerkit.capture.torch_export.eager import eager_callable, flat_arrays, nested_arguments, quiet
from lowerkit.capture.torch_export.states import live_states, stateful_eager
from lowerkit.capture.torchscript.inlined_size import note_unit, require_bounded_expansion
from lowerkit.capture.torchscript.interpreter import export_script
from lowerkit.capture.torchscript.source_checks import require_harmless_script
from lowerkit.errors import CaptureError, InputError, LowerkitError, UnsupportedError, UsageError
from lowerkit.program.dtypes import torch_name_of
from lowerkit.program.program import Program


def load_script(path: Path) -> torch.jit.ScriptModule:
    """Loads a TorchScript file onto the CPU.

    Raises:
        InputError: LK1002, torch cannot read it, or its bytes are not those that were written.
        CaptureError: LK2002, it does more than compute on tensors; LK2003, its calls multiply beyond bounds.
    """
    with quiet():
        try:
            require_sums(path)
            require_harmless_script(path, read_archive(path))
            script = _loaded(path)
            require_bounded_expansion(script, str(path))
            return script
        except LowerkitError:
            raise
        except Exception as error:  # torch raises RuntimeError, IndexError, UnicodeDecodeError, ... for damaged files
            first = next(iter(str(error).splitlines()), type(error).__name__)
            raise InputError(
                "LK1002", f"{path} is a TorchScript file that torch cannot load: {first}", hint="export it again"
            ) from error


def _loaded(path: Path) -> torch.jit.ScriptModule:
    """``torch.jit.load``, which does not give away where a program's functions are."""
    unit = torch._C.CompilationUnit()
    native: Any = torch._C  # its stubs know one argument less
    loaded = native.import_ir_module(unit, str(path), torch.device("cpu"), {}, False)
    script: torch.jit.ScriptModule = wrap_cpp_module(loaded).eval()
    note_unit(script, unit)
    return script


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
        CaptureError: LK2001, it cannot be exported, or it fails on the inputs; LK2003, its calls multiply beyond
            bounds.
        UsageError: LK1003, arguments are missing or unknown.
        UnsupportedError: see :func:`lowerkit.capture.torch_export.capture.capture_exported`.
    """
    require_bounded_expansion(script, source)
    formal = _formal_arguments(script)
    arguments = _bound(formal, example_inputs, kwargs or {})
    with quiet(), torch.no_grad():
        try:
            exported = export_script(script, arguments)
        except Exception as error:
            if not script.inlined_graph.findAllNodes("prim::Loop", True):
                _require_running(script, arguments)  # what the program itself says of these inputs tells more
            if isinstance(error, LowerkitError):
                raise
            raise CaptureError(
                "LK2001",
                f"the TorchScript model cannot be captured: {_reason(error)}",
                hint="capture the original module: lowerkit compile path/to/file.py:factory",
            ) from error
        if not any(node.target is torch.ops.higher_order.while_loop for node in exported.graph.nodes):
            _require_running(script, arguments)
    names = [name for pair in zip(_names(formal), arguments, strict=False) for name in _leaf_names(*pair)]
    program = capture_exported(exported, source=source, input_names=names, eager_module=script)
    if program.input_tree is not None:
        program.input_tree["names"] = _names(formal)[: len(arguments)]
    live = live_states(program.signature.states, script, {**exported.constants, **exported.state_dict})
    program.eager = stateful_eager(eager_callable(script, arguments, {}), live)
    program.example_inputs = flat_arrays((arguments, {}))
    program.arguments = nested_arguments(arguments, {})
    return program


def _require_running(script: Any, arguments: tuple[Any, ...]) -> None:
    """Runs the program on its example inputs: not for one with a loop that could run for ever.

    Raises:
        CaptureError: LK2001, it fails on them.
    """
    before = [(value, value.detach().clone()) for _, value in script.named_buffers()]
    owners = _buffer_owners(script)
    try:
        script(*arguments)
    except Exception as error:
        raise CaptureError(
            "LK2001",
            f"the TorchScript model fails on these inputs ({_text(arguments)}): {_reason(error)}",
            hint="give inputs that it accepts; values that matter (token ids) with --input NAME=@FILE.npy",
        ) from error
    finally:
        # A state that the run changed, or replaced by another tensor, is as it was.
        for (owner, name), (value, content) in zip(owners, before, strict=True):
            value.copy_(content)
            if getattr(owner, name) is not value:
                setattr(owner, name, value)


def _buffer_owners(script: Any) -> list[tuple[Any, str]]:
    """The module and the attribute of each of ``script.named_buffers()``, in that order."""
    owners: list[tuple[Any, str]] = []
    for path, _ in script.named_buffers():
        *modules, name = path.split(".")
        owner = script
        for module in modules:
            owner = getattr(owner, module)
        owners.append((owner, name))
    return owners


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
