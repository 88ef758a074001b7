"""What a file says of its witness, and the refusal of what differs."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from lowerkit.compiled import CompileOptions
from lowerkit.errors import ParityError
from lowerkit.parity.witness.kernels import witness_kernels
from lowerkit.parity.witness.onnx_ops import witness_onnx_ops
from lowerkit.parity.witness.ops import witness_ops
from lowerkit.parity.witness.verdicts import VerdictCache, Witnessed
from lowerkit.program.program import Program

_COMPARED = ("same", "known")


class Record(msgspec.Struct, frozen=True):
    """How much of a model was witnessed, and when.

    Attributes:
        ops: verdicts of its distinct ops.
        kernels: those of its distinct regions.
        date: of the run, as ``2026-12-01``.
        left_out: what has no witness at all, empty where all has one.
    """

    ops: list[Witnessed] = []
    kernels: list[Witnessed] = []
    date: str = ""
    left_out: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns the ``witness`` of an artifact's metadata: counts, and what was not compared, with the reason."""
        reasons = [
            f"{each.name}({each.operands}): {each.reason}"
            for each in (*self.ops, *self.kernels)
            if each.verdict not in _COMPARED
        ]
        return {
            "ops": len(self.ops),
            "witnessed_ops": _compared(self.ops),
            "kernels": len(self.kernels),
            "witnessed_kernels": _compared(self.kernels),
            "date": self.date,
            "not_compared": [self.left_out] * bool(self.left_out) + reasons,
        }


def _compared(found: Sequence[Witnessed]) -> int:
    return sum(each.verdict in _COMPARED for each in found)


def require_alike(found: Sequence[Witnessed], witness: str) -> None:
    """Raises ParityError, LK6005, where anything differs from its witness, all of it at once.

    Args:
        found: the verdicts.
        witness: who it was compared with: ``eager``, ``ONNX Runtime`` or ``the interpreter``.
    """
    wrong = [each for each in found if each.verdict == "differs"]
    if not wrong:
        return
    details = [
        f"{each.name}({each.operands}), {difference.case}: {difference.text}; at {'; '.join(each.places[:3])}"
        for each in wrong
        for difference in each.differences
    ]
    raise ParityError(
        "LK6005",
        f"{len(wrong)} of {len(found)} differ from {witness}; the first, {wrong[0].name}: "
        f"{wrong[0].differences[0].text}",
        op=f"{wrong[0].name}({wrong[0].operands})",
        location=next(iter(wrong[0].places), None),
        details=details,
        hint="values are ours for the witness's; nothing was written: report it, or compile without --witness",
    )


def owner_of(captured: Program) -> str:
    """Returns whose word the witness of a model's ops is."""
    return "eager" if captured.exported is not None else "ONNX Runtime"


def witness_ops_in(
    captured: Program, cache: VerdictCache | None, on_progress: Callable[[str], None] | None = None
) -> list[Witnessed]:
    """Returns a verdict for each distinct op of a captured model; none of a module in memory that is neither."""
    if captured.exported is not None:
        return witness_ops(captured.exported, cache, on_progress)
    return [] if captured.onnx_model is None else witness_onnx_ops(captured, cache, on_progress)


def witness_ops_of(
    captured: Program, options: CompileOptions, on_progress: Callable[[str], None] | None = None
) -> list[Witnessed]:
    """Witnesses the ops of a captured model.

    Args:
        captured: the model.
        options: what it is compiled with; without caches every op is run.
        on_progress: called with what runs now.

    Raises:
        ParityError: LK6005, an op differs from eager.
    """
    ops = witness_ops_in(captured, _cache(options), on_progress)
    require_alike(ops, owner_of(captured))
    return ops


def witness_kernels_of(
    captured: Program,
    lowered: Sequence[Program],
    ops: Sequence[Witnessed],
    options: CompileOptions,
    on_progress: Callable[[str], None] | None = None,
) -> Record:
    """Witnesses the kernels of a model behind its ops, and says what was compared.

    Args:
        captured: the model.
        lowered: the programs whose regions were compiled: one, or one for each stage of a pipeline.
        ops: the verdicts of its ops.
        options: what it is compiled with; without caches every kernel is run.
        on_progress: called with what runs now.

    Raises:
        ParityError: LK6005, a kernel differs from the interpreter.
    """
    cache = _cache(options)
    kernels = witness_kernels(lowered, options, cache, on_progress)
    require_alike(kernels, "the interpreter")
    if cache is not None:
        cache.trim()
    left_out = "" if ops or captured.exported is not None else "the ops of the model have no witness"
    return Record(list(ops), kernels, datetime.datetime.now(tz=datetime.UTC).date().isoformat(), left_out)


def _cache(options: CompileOptions) -> VerdictCache | None:
    return VerdictCache() if options.use_cache else None
