"""A link as it was measured: out of what ``lowerkit comm tune`` printed with ``--json``, or wrote as its table.

Vocabulary
    a, B   latency and bandwidth
    p, n   ranks, and bytes of the tensor

The medians are of an all_reduce, which the runtime carries out in one shot where it is small, ``a + n(p-1)/B``, and in
slices where it is large, ``2a + 2n(p-1)/(pB)``; two ranks move as much either way, and one shot is taken to be what
they do. The smallest and the largest size give two equations for a and 1/B.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from lowerkit.errors import InputError
from lowerkit.spmd.cost.machine import LinkModel

_MOST_BYTES = 1 << 20
_SCHEMA = "lowerkit.comm_tune"
_TABLE = "lowerkit.collective_tuning"


class _Trial(msgspec.Struct):
    median_seconds: dict[int, float]
    chosen: bool


class _Ranks(msgspec.Struct):
    trials: list[_Trial]


class _Head(msgspec.Struct):
    schema: str


class _Document(msgspec.Struct):
    ranks: dict[int, _Ranks]


class _Table(msgspec.Struct):
    seconds: dict[int, dict[int, float]] = {}


def read_link(path: Path) -> LinkModel:
    """Reads a link from a file of ``lowerkit comm tune``, of the most ranks that were measured.

    Args:
        path: what it printed with ``--json``, or the table that it wrote.

    Raises:
        InputError: LK1001, it cannot be read; LK1002, it is no such document, or its times give no link.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        hint = "write a link as --link 450GB/s,2us, or name a file of `lowerkit comm tune --json`"
        raise InputError("LK1001", f"the link {path} cannot be read: {error.strerror}", hint=hint) from error
    try:
        medians = _medians(data)
        if not medians:
            raise ValueError("it holds no times; a table of version 1 has none")
        ranks = max(medians)
        return link_of(medians[ranks], ranks)
    except (ValueError, RecursionError) as error:
        raise InputError(
            "LK1002", f"{path} is no measurement of `lowerkit comm tune`: {error}", hint="run it for this machine"
        ) from error


def _medians(data: bytes) -> dict[int, dict[int, float]]:
    """Returns the seconds of an all_reduce, by ranks and bytes."""
    schema = msgspec.json.decode(data, type=_Head).schema
    if schema == _TABLE:
        return msgspec.json.decode(data, type=_Table, strict=False).seconds
    if schema != _SCHEMA:
        raise ValueError(f"its schema is {schema!r}")
    found: dict[int, dict[int, float]] = {}
    for ranks, measured in msgspec.json.decode(data, type=_Document, strict=False).ranks.items():
        own = found[ranks] = {}
        for trial in measured.trials:
            own.update(trial.median_seconds if trial.chosen else {})
    return found


def link_of(medians: Mapping[int, float], ranks: int) -> LinkModel:
    """Returns the link that explains the times of an all_reduce between ``ranks`` ranks, seconds by bytes.

    Raises:
        ValueError: there are fewer than two sizes, or no latency and bandwidth above zero explain them.
    """
    if len(medians) < 2 or ranks < 2:
        raise ValueError(f"a link takes two sizes between two ranks, found {len(medians)} sizes, {ranks} ranks")
    small, large = min(medians), max(medians)
    own, sliced, phases = small * (ranks - 1), 2 * large * (ranks - 1) / ranks, 1 if ranks == 2 else 2
    # medians[small] = a + own / B; medians[large] = phases * a + sliced / B
    inverse = (medians[large] - phases * medians[small]) / (sliced - phases * own)
    latency = medians[small] - own * inverse
    if not (inverse > 0 and latency > 0):
        shown = ", ".join(f"{medians[size] * 1e6:.1f} us for {size} bytes" for size in (small, large))
        raise ValueError(f"no link explains {shown}")
    return LinkModel(1 / inverse, latency)
