"""What a file says of its witness, and the refusal of what differs."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from lowerkit.compiled import CompileOptions
from lowerkit.errors import ParityError
from lowerkit.parity.witness.kernels import witness_kernels
from lowerkit.parity.witness.ops import witness_ops
from lowerkit.parity.witness.verdicts import VerdictCache, Witnessed
from lowerkit.program.program import Program

_COMPARED = ("same", "known")


class Record(msgspec.Struct, frozen=True):
    """How much of a model was witnessed, and when.

    Attributes:
        ops: verdicts of its distinct ops; empty of a model whose ops are not witnessed (ONNX).
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
        witness: who it was compared with: ``eager`` or ``the interpreter``.
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


def witness_ops_of(
    captured: Program, options: CompileOptions, on_progress: Callable[[str], None] | None = None
) -> list[Witnessed]:
    """Witnesses the ops of a captured model; of an ONNX model there are none.

    Args:
        captured: the model.
        options: what it is compiled with; without caches every op is run.
        on_progress: called with what runs now.

    Raises:
        ParityError: LK6005, an op differs from eager.
    """
    if captured.exported is None:
        return []
    ops = witness_ops(captured.exported, _cache(options), on_progress)
    require_alike(ops, "eager")
    return ops


def witness_kernels_of(
    fused: Program,
    ops: Sequence[Witnessed],
    options: CompileOptions,
    on_progress: Callable[[str], None] | None = None,
) -> Record:
    """Witnesses the kernels of a model behind its ops, and says what was compared.

    Args:
        fused: the model with the regions that were compiled.
        ops: the verdicts of its ops.
        options: what it is compiled with; without caches every kernel is run.
        on_progress: called with what runs now.

    Raises:
        ParityError: LK6005, a kernel differs from the interpreter.
    """
    cache = _cache(options)
    kernels = witness_kernels(fused, options, cache, on_progress)
    require_alike(kernels, "the interpreter")
    if cache is not None:
        cache.trim()
    left_out = "the ops of an ONNX model have no witness" if fused.exported is None else ""
    return Record(list(ops), kernels, datetime.datetime.now(tz=datetime.UTC).date().isoformat(), left_out)


def _cache(options: CompileOptions) -> VerdictCache | None:
    return VerdictCache() if options.use_cache else None
