"""What a proof of a program of the ranks has shown."""

from __future__ import annotations

from dataclasses import dataclass, field

from lowerkit.spmd.certificate.meetings import Meeting
from lowerkit.spmd.certificate.sums.trees import Tree


@dataclass
class Proof:
    """What was proved of the program after.

    Attributes:
        lemmas: of each op.
        relations: of each value, as a certificate states them.
        meetings: its collectives, along all axes, in order.
        trees: the sums that are made as trees of chunks.
        ordered: the collectives that add floats in an order that is that of the ranks.
        asked: how many questions z3 has answered.
    """

    lemmas: list[str] = field(default_factory=list[str])
    relations: list[str] = field(default_factory=list[str])
    meetings: list[Meeting] = field(default_factory=list[Meeting])
    trees: list[Tree] = field(default_factory=list[Tree])
    ordered: list[str] = field(default_factory=list[str])
    asked: int = 0
