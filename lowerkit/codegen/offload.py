"""What a compilation gave to accelerators: one line for each, and the ledger of what they did not take."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lowerkit.codegen.step_place import portable_location
from lowerkit.errors import UnsupportedError, UsageError
from lowerkit.passes.partition.accelerator import KEPT, Placement
from lowerkit.percent import share_text

_SHOWN = 3


@dataclass(frozen=True)
class Missing:
    """Ops of one kind that an accelerator did not take.

    Attributes:
        op: their name; ``reason`` why; ``node`` and ``location`` of the first one.
        count: how many; ``flops`` of all of them; ``crossing_bytes`` that taking them would save.
    """

    op: str
    reason: str
    node: str
    location: str
    count: int
    flops: int
    crossing_bytes: int

    def render(self) -> str:
        """Returns the op and its line for people: an elementwise op by what its body does, else by its node."""
        name = self.op.removeprefix("lk.").removeprefix("elementwise ")
        return f"{self.node if name == 'elementwise' and self.node else name} ({self.location or 'unknown line'})"


@dataclass(frozen=True)
class OffloadSummary:
    """What one accelerator took.

    Attributes:
        target: its name.
        ops, all_ops: how many it took, of how many.
        functions: in how many functions.
        flops, all_flops: likewise.
        missing: what it did not take, most FLOPs first.
    """

    target: str
    ops: int
    all_ops: int
    functions: int
    flops: int
    all_flops: int
    missing: tuple[Missing, ...]

    @property
    def share(self) -> float:
        """The share of the FLOPs that it took."""
        return self.flops / self.all_flops if self.all_flops else float(self.ops == self.all_ops)

    def render(self) -> str:
        """Returns the line for people."""
        functions = "1 function" if self.functions == 1 else f"{self.functions} functions"
        line = f"{self.target}: {self.ops} of {self.all_ops} ops in {functions}, {share_text(self.share)} of FLOPs"
        if not self.missing:
            return line
        more = share_text(sum(each.flops for each in self.missing) / max(self.all_flops, 1))
        count = sum(each.count for each in self.missing)
        named = list(dict.fromkeys(each.render() for each in self.missing))
        rest = ", ..." if len(named) > _SHOWN else ""
        return f"{line}; {_ops(count)} would bring {more} more: {', '.join(named[:_SHOWN])}{rest}"

    def to_json(self) -> dict[str, Any]:
        """Returns the document of ``--json``."""
        return {
            "target": self.target,
            "ops": self.ops,
            "all_ops": self.all_ops,
            "functions": self.functions,
            "flops": self.flops,
            "all_flops": self.all_flops,
            "missing": [
                {
                    "op": each.op,
                    "reason": each.reason,
                    "location": each.location,
                    "count": each.count,
                    "flops": each.flops,
                    "crossing_bytes": each.crossing_bytes,
                }
                for each in self.missing
            ],
        }


def _ops(count: int) -> str:
    return "1 op" if count == 1 else f"{count} ops"


def summaries(placements: Sequence[Placement], targets: Sequence[str]) -> list[OffloadSummary]:
    """Returns a summary for each accelerator."""
    return [_summary(placements, target) for target in targets]


def require_offload(
    placements: Sequence[Placement], found: Sequence[OffloadSummary], share: float | None, kept: Iterable[str]
) -> None:
    """Makes sure that the accelerators together take ``share`` of the FLOPs, and that what is kept on the host exists.

    Raises:
        UnsupportedError: LK4006, with everything that was not taken; or nobody knows, or was asked.
        UsageError: LK1009, no op has a name of ``kept``; with the nearest name.
    """
    _require_known(placements, kept)
    if share is None:
        return
    if not found:
        raise UnsupportedError(
            "LK4006",
            f"{share_text(share)} of the FLOPs were asked for, and no op was offered to an accelerator",
            hint="name one with --target, and begin at the model or a stage before partitioned",
        )
    total = sum(placement.flops for placement in placements)
    taken = sum(placement.flops for placement in placements if placement.target)
    if taken < share * total or (not total and share > 0):
        raise UnsupportedError(
            "LK4006",
            f"{' and '.join(each.target for each in found)}: {share_text(taken / max(total, 1))} of the FLOPs, "
            f"{share_text(share)} were asked for",
            details=[
                f"{each.op} at {each.location or 'no line'} ({_ops(each.count)}, {each.flops} FLOPs): {each.reason}"
                for summary in found
                for each in summary.missing
            ],
            hint="ask for less with --require-offload, or let the target accept these ops",
        )


def placement_entry(placement: Placement) -> dict[str, Any]:
    """Returns a placement as it stands in the metadata of an artifact."""
    return {
        "op": placement.op,
        "node": placement.node,
        "location": portable_location(placement.location),
        "flops": placement.flops,
        "crossing_bytes": placement.crossing_bytes,
        "target": placement.target,
        "function": placement.function,
        "refusals": [list(refusal) for refusal in placement.refusals],
    }


def _require_known(placements: Sequence[Placement], names: Iterable[str]) -> None:
    """Makes sure that each of ``names`` is that of an op."""
    known = {name for each in placements for name in (each.op, each.op.removeprefix("lk."), each.node) if name} | {
        reason for each in placements for _, reason in each.refusals if reason.startswith(KEPT)
    }
    problems: list[str] = []
    for name in sorted(set(names)):
        if name not in known and KEPT + name not in known:
            near = difflib.get_close_matches(name, known, 1)
            problems.append(f"{name!r}" + (f": did you mean {near[0]!r}?" if near else ""))
    if problems:
        raise UsageError(
            "LK1009",
            "what is to be kept on the host is no op that was offered to an accelerator",
            details=problems,
            hint="lowerkit inspect MODEL --ledger --target NAME lists what was not taken, --json all ops and nodes",
        )


def _summary(placements: Sequence[Placement], target: str) -> OffloadSummary:
    taken = [placement for placement in placements if placement.target == target]
    missing: dict[tuple[str, str], list[Placement]] = {}
    for placement in placements:
        reason = dict(placement.refusals).get(target)
        if reason is not None and not placement.target:
            missing.setdefault((placement.op, reason), []).append(placement)
    rows = [
        Missing(
            _short(op, reason),
            reason,
            next((each.node for each in rows if each.location), rows[0].node),
            next((portable_location(each.location) for each in rows if each.location), ""),
            len(rows),
            sum(each.flops for each in rows),
            sum(each.crossing_bytes for each in rows),
        )
        for (op, reason), rows in missing.items()
    ]
    return OffloadSummary(
        target,
        len(taken),
        len(placements),
        len({placement.function for placement in taken}),
        sum(placement.flops for placement in taken),
        sum(placement.flops for placement in placements),
        tuple(sorted(rows, key=lambda row: (-row.flops, -row.crossing_bytes, row.op))),
    )


def _short(op: str, reason: str) -> str:
    """The name of an op for the line: of an elementwise one, what its body does."""
    return reason if op == "elementwise" and reason.startswith("elementwise ") else op
