"""What the partitioner asks of an accelerator, and what it writes down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from lowerkit.mlir import ir

KEPT = "--keep-on-host "
"""What the reason of an op begins with that the user keeps on the host; its name, as the user wrote it, follows."""


class Accelerator(Protocol):
    """One target beside the host, as the partitioner sees it."""

    @property
    def name(self) -> str:
        """Of the target."""
        ...

    @property
    def by_regions(self) -> bool:
        """Whether its functions are compiled region by region."""
        ...

    def refusal(self, op: ir.Operation) -> str | None:
        """Returns why the target does not take an op; None where it does."""
        ...

    def unprofitable(self, ops: Sequence[ir.Operation], transfer_bytes: int) -> str | None:
        """Returns why a function of ``ops`` is better left to the host; None where it is not."""
        ...

    def function_refusal(self, function: ir.Operation) -> str | None:
        """Returns why the target does not compile a function of ops that it takes; None where it does."""
        ...


@dataclass(frozen=True)
class Placement:
    """Where one op runs, and why.

    Attributes:
        op: what people call it (``elementwise``, ``reshape``, else its name in the IR).
        node: its name in the captured graph.
        location: the user's ``file:line``.
        flops: of the op; an open extent counts as 1.
        crossing_bytes: of its operands and results that go from one memory to another; open extents likewise.
        target: the accelerator, ``""`` for the host.
        function: the function of the accelerator.
        refusals: (accelerator, reason) of those that were asked before, or that gave it back.
    """

    op: str
    node: str
    location: str
    flops: int
    crossing_bytes: int = 0
    target: str = ""
    function: str = ""
    refusals: tuple[tuple[str, str], ...] = ()
