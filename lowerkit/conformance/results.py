"""What a conformance run found: one result for each case, and the file that holds them.

Vocabulary
    passed     compiled, ran, and every output is within the tolerances that the case states
    rejected   refused with a diagnostic of its own before it ran: bad input or not supported
    wrong      ran, and an output differs in value, shape or element type
    crashed    the process died, ran out of memory, or an internal error showed
    hung       took longer than the limit
    skipped    no case, as its suite found when it looked closer; in no total
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import msgspec

from lowerkit.artifact.atomic_file import replace_file
from lowerkit.errors import InputError

Verdict = Literal["passed", "rejected", "wrong", "crashed", "hung", "skipped"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


class CaseResult(msgspec.Struct, frozen=True):
    """The verdict on one case.

    Attributes:
        name: the case, as its suite names it.
        verdict: see the vocabulary.
        reason: one line that says why it is not ``passed``, empty otherwise.
        seconds: from the request to the reply.
        family: the group that the case counts to in tables, such as an operator.
        notes: what a reader must know to judge a pass, such as inputs whose values were compiled in.
    """

    name: str
    verdict: Verdict
    reason: str = ""
    seconds: float = 0.0
    family: str = ""
    notes: list[str] = []


class _Document(msgspec.Struct):
    """The fields that are read back from a result file; others are ignored."""

    cases: list[CaseResult]


def summarize(results: Sequence[CaseResult]) -> dict[str, int]:
    """Returns ``total`` (without ``skipped``) and the number of cases of each verdict."""
    counts = dict.fromkeys(VERDICTS, 0)
    for result in results:
        counts[result.verdict] += 1
    return {"total": len(results) - counts["skipped"], **counts}


def to_json(results: Sequence[CaseResult]) -> dict[str, object]:
    """Returns the document that ``--json`` prints and result files hold."""
    return {"summary": summarize(results), "cases": [msgspec.to_builtins(result) for result in results]}


def write_results(path: Path, results: Sequence[CaseResult]) -> None:
    """Writes a result file; it appears whole or not at all.

    Raises:
        InputError: LK1005, the path cannot be written.
        ResourceError: LK7001, the disk is full.
    """
    with replace_file(path) as file:
        file.write((json.dumps(to_json(results), indent=1) + "\n").encode())


def read_results(path: Path) -> list[CaseResult]:
    """Reads a result file.

    Raises:
        InputError: LK1001, the file cannot be read; LK1002, it is no result file.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Document).cases
    except OSError as error:
        raise InputError("LK1001", f"{path} cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise InputError("LK1002", f"{path} is no result file of `lowerkit conformance`: {error}") from error
