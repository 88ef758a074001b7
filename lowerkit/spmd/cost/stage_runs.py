"""One run of all stages of a pipeline beside each other, in simulated time.

Vocabulary
    stage   what one rank of the pipeline runs; the ranks along the other axes are all alike, so one stands for them
    meeting a collective along the pipeline's axis: it begins when the last stage has come to it

Steps: each stage goes on until it needs what another one has not sent or reached yet; then it is the turn of the next
one. A receive ends when the message of the peer has come; a message leaves when the sender's lane is free. Collectives
along other axes are between ranks that are all at the same place.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from lowerkit.spmd.cost.planned_steps import Exchange, Piece
from lowerkit.spmd.cost.timeline import Clock, Span


@dataclass(frozen=True)
class Event:
    """A piece of work in time; of a collective, ``span.waited`` is how long its stage stood still for it."""

    piece: Piece
    span: Span


@dataclass
class StageRun:
    """What one stage did.

    Attributes:
        compute: in order.
        exchanges: collectives, in the order of their ends.
        seconds: until its last step.
    """

    compute: list[Event] = field(default_factory=list[Event])
    exchanges: list[Event] = field(default_factory=list[Event])
    seconds: float = 0.0


def run_stages(stages: Sequence[Sequence[Piece]], axis: str = "") -> list[StageRun]:
    """Runs stages beside each other.

    Args:
        stages: the pieces of each.
        axis: of the pipeline; empty where there is one stage.

    Raises:
        ValueError: the stages wait for each other in a circle, or for a message that nobody sends.
    """
    wire = _Wire(len(stages), axis)
    runners = [_Runner(number, pieces, wire) for number, pieces in enumerate(stages)]
    while any(not runner.ended for runner in runners):
        moved = [runner.go_on() for runner in runners]  # each has its turn
        if not any(moved):
            waiting = next(runner for runner in runners if not runner.ended)
            raise ValueError(f"stage {waiting.number} waits for ever in step {waiting.at.name!r}")
    return [runner.run for runner in runners]


class _Wire:
    """What stages send to each other, and where they meet."""

    def __init__(self, stages: int, axis: str) -> None:
        self.stages, self.axis = stages, axis
        self.messages: defaultdict[tuple[int, int], deque[Span]] = defaultdict(deque)
        self.arrivals: defaultdict[int, dict[int, float]] = defaultdict(dict)


class _Runner:
    """One stage on its way."""

    def __init__(self, number: int, pieces: Sequence[Piece], wire: _Wire) -> None:
        self.number = number
        self.run = StageRun()
        self._pieces, self._wire = pieces, wire
        self._clock = Clock()
        self._next = 0
        self._meetings = 0
        self._begun: dict[tuple[int, ...], Piece] = {}

    @property
    def ended(self) -> bool:
        return self._next == len(self._pieces)

    @property
    def at(self) -> Piece:
        """The piece that comes next."""
        return self._pieces[self._next]

    def go_on(self) -> bool:
        """Runs until something is missing; returns whether it ran anything."""
        before = self._next
        while not self.ended and self._step(self.at):
            self._next += 1
        self.run.seconds = self._clock.now
        return self._next > before

    def _step(self, piece: Piece) -> bool:
        exchange = piece.exchange
        if exchange is None:
            self.run.compute.append(Event(piece, self._clock.compute(piece.seconds)))
            return True
        if exchange.phase != "done" and not self._begin(piece, exchange):
            return False
        if exchange.phase != "start":
            begun = self._begun.pop(exchange.buffers)
            self.run.exchanges.append(Event(begun, self._clock.wait(exchange.buffers)))
        return True

    def _begin(self, piece: Piece, exchange: Exchange) -> bool:
        """Begins an exchange; returns False where another stage has to come first."""
        lane, seconds, ready, wire = exchange.axis, piece.seconds, 0.0, self._wire
        if exchange.kind == "receive":
            messages = wire.messages[exchange.peer, self.number]
            if not messages:
                return False
            message = messages.popleft()
            # The message is on its way while this stage computes: the time is the sender's.
            ready, seconds, lane = message.end, 0.0, f"{exchange.axis} in"
        elif exchange.kind != "send" and exchange.axis == wire.axis:
            arrivals = wire.arrivals[self._meetings]
            arrivals[self.number] = self._clock.now
            if len(arrivals) < wire.stages:
                return False
            ready = max(arrivals.values())
            self._meetings += 1
        span = self._clock.begin(exchange.buffers, lane, seconds, ready)
        if exchange.kind == "send":
            wire.messages[self.number, exchange.peer].append(span)
        self._begun[exchange.buffers] = piece
        return True
