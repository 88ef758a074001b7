"""What a program with many alike layers takes, from two short ones: one with a few of them, and one with one more.

Vocabulary
    segment  steps that the longer program has and the short one lacks: those of one layer
    ago      of a step that ends a collective: how many collectives were begun since that one, itself included

Steps, for the ranks of one stage:
    1. hold the steps of both against each other, but for their names: the longer one must be the short one with
       segments in between;
    2. repeat each segment as often as there are layers that the short program lacks;
    3. bytes of weights, states and arguments grow by as much with each layer; all other bytes must be equal in both.
Where a step says otherwise there is no answer: the program has to be planned whole.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from lowerkit.spmd.cost.memory import RankMemory
from lowerkit.spmd.cost.planned_steps import Piece
from lowerkit.spmd.cost.stage_cost import StageCost


def stretch(short: StageCost, longer: StageCost, layers: int) -> StageCost | None:
    """Returns the cost of a stage that has ``layers`` more than the short one; None where the two do not say it.

    Args:
        short: with a few of the alike layers.
        longer: with one more.
        layers: how many the short one lacks, 0 or more.
    """
    memory = _memory(short.memory, longer.memory, layers)
    pieces = _pieces(short.pieces, longer.pieces, layers)
    return None if memory is None or pieces is None else StageCost(memory, pieces)


def _memory(short: RankMemory, longer: RankMemory, layers: int) -> RankMemory | None:
    grown = {
        name: getattr(short, name) + layers * (getattr(longer, name) - getattr(short, name))
        for name in ("weights", "states", "arguments")
    }
    found = replace(short, **grown)
    once = replace(longer, weights=short.weights, states=short.states, arguments=short.arguments)
    return found if once == short else None


def _pieces(short: Sequence[Piece], longer: Sequence[Piece], layers: int) -> list[Piece] | None:
    ours, theirs = _linked(short), _linked(longer)
    matcher = SequenceMatcher(None, list(map(_key, ours)), list(map(_key, theirs)), autojunk=False)
    found: list[_Linked] = []
    for tag, first, end, other_first, other_end in matcher.get_opcodes():
        if tag == "equal":
            found += ours[first:end]
        elif tag == "insert":
            found += theirs[other_first:other_end] * layers
        else:
            return None
    return _with_buffers(found)


@dataclass(frozen=True)
class _Linked:
    """A piece; of one that ends a collective, how long ago that was begun."""

    piece: Piece
    ago: int = 0


def _linked(pieces: Sequence[Piece]) -> list[_Linked]:
    begun: dict[tuple[int, ...], int] = {}
    starts = 0
    found: list[_Linked] = []
    for piece in pieces:
        exchange = piece.exchange
        if exchange is not None and exchange.phase != "done":
            begun[exchange.buffers] = starts
            starts += 1
        ends = exchange is not None and exchange.phase == "done"
        found.append(_Linked(piece, starts - begun[exchange.buffers] if exchange is not None and ends else 0))
    return found


def _key(linked: _Linked) -> Hashable:
    piece = linked.piece
    exchange = None if piece.exchange is None else replace(piece.exchange, buffers=())
    return (piece.kind, piece.flops, piece.moved, piece.seconds, exchange, linked.ago)


def _with_buffers(found: Sequence[_Linked]) -> list[Piece]:
    """Gives every collective buffers of its own again, by which its end finds it: segments that repeat share theirs."""
    starts = 0
    pieces: list[Piece] = []
    for each in found:
        exchange = each.piece.exchange
        if exchange is None:
            pieces.append(each.piece)
            continue
        starts += exchange.phase != "done"
        pieces.append(replace(each.piece, exchange=replace(exchange, buffers=(starts - max(each.ago, 1),))))
    return pieces
