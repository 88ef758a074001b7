"""How long a collective takes: a few algorithms, each as messages one behind the other and bytes through a rank's link.

Vocabulary
    p         ranks along the axis
    n         bytes of the operand of one rank
    a, B      latency and bandwidth of the link: a message of m bytes takes a + m/B
    ring      each rank sends to the next one, in p - 1 steps, slices of which every rank owns one
    direct    every rank exchanges with all others at once, through a switch or shared memory: one latency a phase
    one shot  as direct, of whole operands instead of slices

Steps: the time of an algorithm is ``messages * a + bytes / B``; a collective takes the fastest one that it has.

Bytes of a rank, and messages:
    all_reduce       ring 2n(p-1)/p, 2(p-1); direct 2n(p-1)/p, 2; one shot n(p-1), 1
    all_gather       ring n(p-1), p-1; direct n(p-1), 1                   (the result has pn bytes)
    reduce_scatter   ring n(p-1)/p, p-1; direct n(p-1)/p, 1               (the result has n/p bytes)
    all_to_all       direct n(p-1)/p, 1
    broadcast        tree n*ceil(log2 p), ceil(log2 p); direct 2n(p-1)/p, 2 (scatter, then all_gather)
    reduce           as broadcast, turned round
    send, receive    n, 1

The rings and the tree are those of Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations
in MPICH" (2005), section 3; that no all_reduce moves less than 2n(p-1)/p is shown by Patarasuk and Yuan, "Bandwidth
optimal all-reduce algorithms" (2009). The arithmetic of reductions is left out, as is contention between axes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lowerkit.spmd.cost.machine import LinkModel


@dataclass(frozen=True)
class Algorithm:
    """One way of carrying a collective out.

    Attributes:
        name: ``ring``, ``direct``, ``one_shot`` or ``tree``.
        messages: one behind the other.
        moved: bytes that the busiest rank sends, or receives if these are more.
    """

    name: str
    messages: int
    moved: float

    def seconds(self, link: LinkModel) -> float:
        """Returns the time over a link."""
        return self.messages * link.latency + self.moved / link.bandwidth


def algorithms(kind: str, ranks: int, operand_bytes: int) -> list[Algorithm]:
    """Returns the ways of carrying out a collective of ``kind`` whose operand has ``operand_bytes`` on each rank.

    Raises:
        ValueError: there is no such kind.
    """
    p, n = ranks, operand_bytes
    slices, others, rounds = n * (p - 1) / p, p - 1, max(0, math.ceil(math.log2(p)))
    match kind:
        case _ if p == 1:
            return [Algorithm("direct", 0, 0)]
        case "all_reduce":
            return [
                Algorithm("ring", 2 * others, 2 * slices),
                Algorithm("direct", 2, 2 * slices),
                Algorithm("one_shot", 1, n * others),
            ]
        case "all_gather":
            return [Algorithm("ring", others, n * others), Algorithm("direct", 1, n * others)]
        case "reduce_scatter":
            return [Algorithm("ring", others, slices), Algorithm("direct", 1, slices)]
        case "all_to_all":
            return [Algorithm("direct", 1, slices)]
        case "broadcast" | "reduce":
            return [Algorithm("tree", rounds, n * rounds), Algorithm("direct", 2, 2 * slices)]
        case "send" | "receive":
            return [Algorithm("direct", 1, n)]
        case _:
            raise ValueError(f"no algorithm is known for a collective of kind {kind!r}")


def fastest(kind: str, ranks: int, operand_bytes: int, link: LinkModel) -> Algorithm:
    """Returns the algorithm that takes the least time; of equal ones the first.

    Args:
        kind: of ``lk.collective_start``.
        ranks: along the axis.
        operand_bytes: of one rank.
        link: between ranks along the axis.

    Raises:
        ValueError: there is no such kind.
    """
    return min(algorithms(kind, ranks, operand_bytes), key=lambda algorithm: algorithm.seconds(link))
