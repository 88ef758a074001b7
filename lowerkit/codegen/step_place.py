"""The name of a step and where in the user's source it comes from, the same on every machine."""

from __future__ import annotations

from lowerkit.mlir import ir
from lowerkit.program.locations import inside_packages, origin_of

__all__ = ["portable_location", "step_place"]


def step_place(op: ir.Operation) -> tuple[str, str]:
    """Returns the name of a step and the user's ``file:line``, without the folders of this machine."""
    origin = origin_of(op.location)
    return origin.node, portable_location(origin.source_line or "")


def portable_location(source_line: str) -> str:
    """Returns ``file:line`` so that it is the same wherever the model's source lies.

    A file of an installed package is named from the package on, any other by its name: an artifact says nothing of the
    machine it was made on, and two compilations in other folders give the same bytes.
    """
    return inside_packages(source_line) or source_line.rpartition("/")[2]
