"""How far the loops of a TorchScript program are written out."""

# torch names the nodes of TorchScript graphs in private modules only.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch

from lowerkit.errors import UnsupportedError

MOST_TURNS = 1024
"""Turns of a loop that are written out at most."""
MOST_OPERATIONS = 1024
"""Operations on tensors in the turns of one loop that are written out where it can go on as a loop by data."""
MOST_OF_ALL = 20_000
"""Operations on tensors that a program has where its loops are written out."""

_FOREVER = (1 << 63) - 1
_CHANGES = {
    *(f"aten::{name}" for name in ("append", "extend", "insert", "pop", "Delete", "clear", "reverse", "_set_item")),
    *("aten::update", "prim::SetAttr"),
}


class LoopBounds:
    """Those of one loop, which is met after so many operations on tensors.

    Raises:
        UnsupportedError: LK4001, the loop is ``while True`` without a way out.
    """

    def __init__(self, node: torch._C.Node, turns: Any, going: Any, operations: int) -> None:
        self.node = node
        self.first = operations
        (block,) = node.blocks()
        decision = next(iter(block.outputs())).node()
        value: Any = decision.output().toIValue() if decision.kind() == "prim::Constant" else None
        if isinstance(turns, int) and turns >= _FOREVER and going is True and value is True:
            raise UnsupportedError(
                "LK4001",
                "a loop of the TorchScript program never ends: it is `while True` without a way out",
                location=_place(node),
                hint="leave it by break or return, or give it a condition",
            )
        self.changes_objects = any(inner.kind() in _CHANGES for inner in nodes_of(block))

    def are_passed(self, turns: int, operations: int) -> bool:
        """Whether the loop should go on as one by data, if it can.

        Raises:
            UnsupportedError: LK4001, the program has more than :data:`MOST_OF_ALL` operations.
        """
        if operations > MOST_OF_ALL:
            raise UnsupportedError(
                "LK4001",
                f"the loops of the TorchScript program are more than {MOST_OF_ALL} operations where they are written "
                f"out, and one goes on after {turns} turns",
                location=_place(self.node),
                hint="let it carry tensors and numbers only, of fixed shape: then it is compiled as a loop",
            )
        return operations - self.first > MOST_OPERATIONS and not self.changes_objects


def nodes_of(block: Any, kind: str | None = None) -> Iterator[torch._C.Node]:
    """Yields the nodes of a block and of the blocks in it, those of one kind where one is given."""
    for node in block.nodes():
        if kind is None or node.kind() == kind:
            yield node
        for inner in node.blocks():
            yield from nodes_of(inner, kind)


def _place(node: torch._C.Node) -> str | None:
    match = re.search(r'File "(.+?)", line ([0-9]+)', str(node.sourceRange()))
    return f"{match[1]}:{match[2]}" if match else None
