"""What becomes of one op when a program is split among ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lowerkit.passes.shard.shardings import Placed

Action = Literal["data", "extent", "whole", "run", "look_up", "share_heads", "pad"]


@dataclass(frozen=True)
class Step:
    """What becomes of one op.

    Attributes:
        action: ``data``: nothing, its parts are made where they are read; ``extent``: of a tensor that may be split;
            ``whole``: every rank computes all of it; ``run``: as ``placed`` says; ``look_up``: each rank in its rows;
            ``share_heads``: several ranks share a key head; ``pad``: as ``placed`` says, then made whole and cut.
        placed: how it runs.
    """

    action: Action
    placed: Placed | None = None
