"""Proves that the stages of a pipeline together compute the program that was cut, and that none waits for ever.

Vocabulary
    stage     the ranks at one place along the pipeline axis; they run one program
    meeting   of stages: a message that one sends and another receives, or a broadcast to all of them

Steps: run all stages abstractly, each up to the next meeting; a message is passed when its sender and its receiver both
stand at it, a broadcast when all do. Each stage waits at every meeting until it is over: what ends without a stage
waiting for ever under this rule does so under any that lets a stage go on earlier, and in any order of the stages,
since none has a choice. What a stage computes is known as in :mod:`.values`: it must be a value of the program that
was cut, and what is received is what was sent. Ranks at one place run one program with the same control flow, so
that one of them stands for all: the proof does not hang on their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lowerkit.errors import VerifyError
from lowerkit.runtimes.expressions import Expr
from lowerkit.spmd.certificate.graph import Form, Graph, shape_of, without_numbers
from lowerkit.spmd.certificate.meetings import Meeting, Sizes, meeting_of
from lowerkit.spmd.certificate.values import EFFECTS, Known, read_classes

_STATES = ("lk.state_read", "lk.state_write")


@dataclass
class StagesProof:
    """What was proved of the stages.

    Attributes:
        values: by stage, of each value its class before, -1 of what only says that a message is on its way.
        meetings: by stage its collectives along all axes, in order.
        order: of the meetings of stages: ``0 -> 1``, ``0 -> all``.
    """

    values: list[list[int]] = field(default_factory=list[list[int]])
    meetings: list[list[Meeting]] = field(default_factory=list[list[Meeting]])
    order: list[str] = field(default_factory=list[str])


def prove_stages(before: Graph, stages: Sequence[Graph], axis: str, inputs: Sequence[Sequence[Expr]]) -> StagesProof:
    """Proves the programs of the stages along ``axis``, in their order, against the one that was cut.

    Args:
        before: the program that was cut.
        stages: what each stage runs.
        axis: of the pipeline.
        inputs: the shapes of the arguments, over the dims of a signature.

    Raises:
        VerifyError: LK3006, a stage computes something else; LK3007, stages wait for each other.
    """
    known = read_classes(before)
    running = [_Stage(number, graph, known, axis) for number, graph in enumerate(stages)]
    proof = StagesProof()
    for stage in running:
        stage.go_on()
    while any(stage.waits for stage in running):
        meeting = _next_meeting(running)
        if meeting is None:
            raise VerifyError(
                "LK3007",
                f"the stages of {axis!r} wait for each other for ever",
                details=[stage.told() for stage in running],
            )
        proof.order.append(meeting)
    for stage in running:
        stage.require_end(before)
    done = {number for stage in running for number in stage.done}
    left = [form.name for number, (form, _) in enumerate(known.effects) if number not in done]
    if left:
        raise VerifyError("LK3006", f"no stage of {axis!r} does {left[0]}, an effect of the program")
    sizes = Sizes(known.classes, inputs)
    for stage in running:
        proof.values.append(stage.values)
        proof.meetings.append(stage.meetings(sizes))
    return proof


def _next_meeting(stages: Sequence[_Stage]) -> str | None:
    """Lets the stages go on that stand at one meeting; returns it, None where none can."""
    for number, stage in enumerate(stages):
        if stage.kind == "send":
            peer = stage.attribute("peer")
            other = stages[peer] if 0 <= peer < len(stages) else None
            if other is not None and other.kind == "receive" and other.attribute("peer") == number:
                other.take(stage)
                stage.go_on()
                return f"{number} -> {peer}"
    roots = {stage.attribute("root") if stage.kind == "broadcast" else -1 for stage in stages}
    if len(roots) == 1 and 0 <= min(roots) < len(stages):
        (root,) = roots
        source = stages[root].sent
        for stage in stages:
            stage.take_value(*source)
        return f"{root} -> all"
    return None


class _Stage:
    """One stage, at its next meeting."""

    def __init__(self, number: int, graph: Graph, known: Known, axis: str) -> None:
        self.number, self.graph, self.known, self.axis = number, graph, known, axis
        classes = known.classes
        self.values = [classes.argument(place, graph.types[kind]) for place, kind in enumerate(graph.arguments)]
        self.at = 0
        self.waits = False
        self.done: list[int] = []
        self._begun: set[int] = set()

    @property
    def form(self) -> Form:
        """Of the op that it stands at."""
        return self.graph.forms[self.graph.ops[self.at].form]

    @property
    def kind(self) -> str:
        """Of the meeting that it stands at; ``""`` where it has ended."""
        return str(self.form.attributes["kind"]) if self.waits else ""

    @property
    def sent(self) -> tuple[int, str]:
        """The class and the type of the operand of the meeting."""
        operand = self.graph.ops[self.at].operands[0]
        return self.values[operand], self.graph.value_types[operand]

    def attribute(self, name: str) -> int:
        """Returns a number of the meeting."""
        return int(self.form.attributes.get(name, -1))

    def told(self) -> str:
        """Returns where the stage stands, for people."""
        if not self.waits:
            return f"stage {self.number} has ended"
        role = {"broadcast": "root"}.get(self.kind, "peer")
        return f"stage {self.number} waits in {self.kind} ({role} {self.attribute(role)}): {self._place()}"

    def take(self, sender: _Stage) -> None:
        """Receives what another stage sends, and goes on."""
        self.take_value(*sender.sent)

    def take_value(self, value: int, kind: str) -> None:
        """Gets a value at the end of a meeting, and goes on."""
        result = self.graph.results(self.at)[0]
        if self.graph.value_types[result] != kind:
            raise self._error(f"it gets {kind}, and takes it for {self.graph.value_types[result]}")
        self.values.append(value)
        self.at += 1
        self.waits = False
        self.go_on()

    def go_on(self) -> None:
        """Computes up to the next meeting of stages, or to the end."""
        if self.waits and self.kind == "send":
            self.values.append(-1)
            self.at += 1
        while self.at < len(self.graph.ops):
            if self.form.name == "lk.collective_start" and self.form.attributes["axis"] == self.axis:
                self._begun.update(self.graph.results(self.at))
                self.waits = True
                return
            self._compute()
            self.at += 1
        self.waits = False

    def _compute(self) -> None:
        op, form = self.graph.ops[self.at], self.form
        operands = [self.values[operand] for operand in op.operands]
        if form.name == "lk.collective_done" and op.operands[0] in self._begun:
            self.values.append(operands[0])
            return
        if -1 in operands:
            raise self._error("it reads what only says that a message is on its way")
        version = self._effect(form, operands) if form.name in EFFECTS else 0
        kinds = [self.graph.types[kind] for kind in op.results]
        self.values += self.known.classes.computes(form, operands, kinds, version, self._place())

    def _effect(self, form: Form, operands: list[int]) -> int:
        """Returns the version of an effect: its number among those of the program, behind the one before it."""
        first = self.done[-1] + 1 if self.done else 0
        for number in range(first, len(self.known.effects)):
            if self.known.effects[number] == (form, tuple(operands)):
                self.done.append(number)
                return number + 1
        raise self._error("effects come in another order than in the program")

    def require_end(self, before: Graph) -> None:
        """Raises where the stage returns something else, or has not done all that concerns a state of its own."""
        returned = [self.values[value] for value in self.graph.returned]
        wanted = [self.known.values[value] for value in before.returned]
        functions = [without_numbers(graph).functions for graph in (self.graph, before)]
        if returned != wanted or functions[0] != functions[1]:
            raise VerifyError("LK3006", f"stage {self.number} of {self.axis!r} returns other results than the program")
        own = {self._state(number) for number in self.done} - {""}
        for number in range(len(self.known.effects)):
            if self._state(number) in own and number not in self.done:
                raise VerifyError(
                    "LK3006",
                    f"stage {self.number} of {self.axis!r} uses the state {self._state(number)!r} with another stage",
                )

    def _state(self, number: int) -> str:
        form, _ = self.known.effects[number]
        return str(form.attributes["symbol"]) if form.name in _STATES else ""

    def meetings(self, sizes: Sizes) -> list[Meeting]:
        """Returns the collectives of the stage, in order."""
        found: list[Meeting] = []
        for number, op in enumerate(self.graph.ops):
            if self.graph.forms[op.form].name == "lk.collective_start":
                counts = [self._count(value, sizes) for value in (op.operands[0], self.graph.results(number)[0])]
                found.append(meeting_of(self.graph, number, *counts))
        return found

    def _count(self, value: int, sizes: Sizes) -> Expr | None:
        own = self.values[value]
        shape = shape_of(self.graph.value_types[value]) or ()
        return sizes.count(shape if own < 0 or min(shape, default=0) >= 0 else self.known.classes.extents[own] or ())

    def _place(self) -> str:
        return self.graph.describe(self.at)

    def _error(self, reason: str) -> VerifyError:
        return VerifyError("LK3006", f"stage {self.number} of {self.axis!r}: {self._place()}: {reason}")
