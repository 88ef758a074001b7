"""What is said and kept when a pass fails: which op, which line of the user's, and a file that repeats it.

MLIR's own diagnostics know the op. Of another exception the innermost frame knows it that holds an op in a variable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from lowerkit.errors import LowerkitError, PassError, VerifyError
from lowerkit.reproducers import file_name, write_reproducer

if TYPE_CHECKING:
    from lowerkit.mlir import ir
    from lowerkit.passes.base import Pass

_NAMED = re.compile(r"'([a-z_]+\.[\w.]+)' op ")


@dataclass(frozen=True)
class Blame:
    """What failed.

    Attributes:
        reason: one line.
        op: the op with the types of its operands; None where unknown.
        location: the user's ``file:line``; None where unknown.
    """

    reason: str
    op: str | None
    location: str | None


def failure_of(one_pass: Pass, error: Exception, module: ir.Module, hint: str) -> LowerkitError:
    """Returns the error to raise for what a pass raised: ``error`` itself, completed, if it is one of ours."""
    blame = blame_for(error, module)
    if isinstance(error, LowerkitError):
        error.op, error.location = error.op or blame.op, error.location or blame.location
        error.hint = hint
        error.args = (error.render(),)
        return error
    return PassError(
        "LK3001", f"pass {one_pass.name} failed: {blame.reason}", op=blame.op, location=blame.location, hint=hint
    )


def invalid_after(one_pass: Pass, error: Exception | None, module: ir.Module) -> VerifyError:
    """Returns the error for IR that does not verify."""
    message = f"the IR after pass {one_pass.name} does not verify"
    if error is None:
        return VerifyError("LK3002", message)
    blame = blame_for(error, module)
    return VerifyError("LK3002", f"{message}: {blame.reason}", op=blame.op, location=blame.location)


def blame_for(error: Exception, module: ir.Module) -> Blame:
    """Finds the op at fault, and its line."""
    from lowerkit.passes.source_location import signature_text
    from lowerkit.program.locations import origin_of

    diagnostics: list[Any] = getattr(error, "error_diagnostics", [])
    if diagnostics:
        first = diagnostics[0]
        reason = next(iter(first.message.splitlines()), type(error).__name__)
        named = _NAMED.search(reason)
        op = _op_at(module, first.location, named.group(1) if named else None)
        text = signature_text(op) if op is not None else (named.group(1) if named else None)
        # The location of a diagnostic does not know of which kind it is; that of an op does.
        return Blame(reason, text, origin_of(op.location if op is not None else first.location).source_line)
    reason = str(error) or type(error).__name__
    for op in _ops_in_frames(error.__traceback__):
        try:
            place = origin_of(op.location).source_line
            if place is not None:
                return Blame(reason, signature_text(op), place)
        except Exception:  # noqa: S112 (an op that the pass has erased cannot be asked; any error says so)
            continue
    return Blame(reason, None, None)


def leave_reproducer(before: ir.OpView, one_pass: Pass, folder: Path | None) -> str:
    """Writes the IR before the pass, headed by the command that repeats the failure; returns a hint that names it."""
    settings = " ".join(f"{key}={value}" for key, value in vars(one_pass).items())
    pipeline = one_pass.name + (f"{{{settings}}}" if settings else "")
    text = before.operation.get_asm(enable_debug_info=True)
    name = file_name(f"reproducer-{one_pass.name}", text)
    try:
        path = write_reproducer(name, f"// lowerkit opt {name} --passes '{pipeline}'\n{text}\n", folder)
    except OSError as error:
        return f"the reproducer could not be written: {error}"
    return f"repeat it with: lowerkit opt {path} --passes '{pipeline}'"


def _op_at(module: ir.Module, location: ir.Location, name: str | None) -> ir.Operation | None:
    """Returns the op of that location, and of that name where several share it."""
    from lowerkit.mlir import walk

    found: list[ir.Operation] = []
    walk(module.operation, lambda op: found.append(op) if op.location == location else None)
    named = [op for op in found if op.name == name]
    return next(iter(named or found), None)


def _ops_in_frames(traceback: TracebackType | None) -> Iterator[ir.Operation]:
    """Yields the ops that variables of the frames hold, those of the innermost frame first."""
    from lowerkit.mlir import ir

    frames: list[dict[str, object]] = []
    while traceback is not None:
        frames.append(traceback.tb_frame.f_locals)
        traceback = traceback.tb_next
    for variables in reversed(frames):
        for value in reversed(variables.values()):
            if isinstance(value, (ir.Operation, ir.OpView)):
                yield cast("ir.Operation", value).operation
