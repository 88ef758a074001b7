"""The ledger of a compilation for people: where each op runs, what crosses, and why no accelerator took it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click
import msgspec

from lowerkit.cli.output import print_table
from lowerkit.errors import ArtifactError
from lowerkit.percent import share_text


class _Entry(msgspec.Struct):
    op: str
    node: str
    location: str
    flops: int
    crossing_bytes: int
    target: str
    function: str
    refusals: list[tuple[str, str]]


def read_placements(metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns where each op runs, out of the metadata of a manifest.

    Raises:
        ArtifactError: LK8001, it is not of the form that the compiler writes, or cannot be printed.
    """
    try:
        entries = msgspec.convert(metadata.get("placements", []), list[_Entry])
    except msgspec.ValidationError as error:
        raise ArtifactError("LK8001", f"the ledger of the artifact is damaged: {error}") from None
    found: list[dict[str, Any]] = [msgspec.to_builtins(entry) for entry in entries]
    if not all(text.isprintable() for entry in entries for text in _texts(entry)):
        raise ArtifactError("LK8001", "the ledger of the artifact cannot be printed")
    return found


def _texts(entry: _Entry) -> list[str]:
    reasons = [text for refusal in entry.refusals for text in refusal]
    return [entry.op, entry.node, entry.location, entry.target, entry.function, *reasons]


def print_ledger(placements: Sequence[Mapping[str, Any]]) -> None:
    """Prints a row for each op that no accelerator took, most FLOPs first, behind the sums of those that were.

    Args:
        placements: ``metadata.placements`` of a manifest; empty where nothing was offered to anybody.
    """
    if not placements:
        click.echo("ledger: no accelerator was asked; everything runs on the CPU")
        return
    total = sum(entry["flops"] for entry in placements) or 1
    targets = dict.fromkeys(entry["target"] for entry in placements if entry["target"])
    rows = [_sums(target, [entry for entry in placements if entry["target"] == target], total) for target in targets]
    rows.append(_sums("the host", [entry for entry in placements if not entry["target"]], total))
    print_table("ledger: who runs what", ["target", "functions", "ops", "FLOPs", "share"], rows)
    left = sorted((entry for entry in placements if not entry["target"]), key=lambda entry: -entry["flops"])
    columns = ["op", "node", "source", "FLOPs", "share", "bytes that cross", "why not"]
    print_table("on the host", columns, [_row(entry, total) for entry in left])


def _sums(name: str, entries: Sequence[Mapping[str, Any]], total: int) -> list[object]:
    flops = sum(entry["flops"] for entry in entries)
    functions = len({entry["function"] for entry in entries if entry["function"]})
    return [name, functions, len(entries), flops, share_text(flops / total)]


def _row(entry: Mapping[str, Any], total: int) -> list[object]:
    reasons = "; ".join(f"{target}: {reason}" for target, reason in entry["refusals"])
    share = share_text(entry["flops"] / total)
    return [entry["op"], entry["node"], entry["location"], entry["flops"], share, entry["crossing_bytes"], reasons]
