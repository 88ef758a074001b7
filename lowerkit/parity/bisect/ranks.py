"""The ranks of a mesh, searched for the first op that computes something else, and on which of them.

A bisection of a program for a mesh is that of one device until its split. From there on
    1. the programs of the ranks are interpreted side by side in float64: each on its parts of the weights, collectives
       on what all ranks bring. Their outputs are those of the model;
    2. the compiled ranks run step by step, simulated, each step judged by itself (:mod:`.recorded_run`): from the very
       bytes that this rank has, its part of a value or its terms of a sum, so an error is that of its own rank and op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from lowerkit.compiler import CompileOptions, compile_program, lower_stages
from lowerkit.dialect.interpreter.interpreter import Combine
from lowerkit.dialect.interpreter.mesh import on_all_ranks
from lowerkit.dialect.reference.numeric import Array
from lowerkit.errors import LowerkitError
from lowerkit.parity.bisect.evaluation import Evaluation, RankOf, evaluate
from lowerkit.parity.bisect.finding import Bisection, Finding, StageRow, StepRow
from lowerkit.parity.bisect.locate import kernel_finding, memory_finding, step_finding
from lowerkit.parity.bisect.recorded_run import KernelFault, MemoryFault, RecordedRun, StepFault, recorded_run
from lowerkit.parity.bisect.reproducer import kernel_reproducer
from lowerkit.program.program import Program
from lowerkit.runtimes.collective.failures import CollectiveFault
from lowerkit.runtimes.manifest import ProgramSpec
from lowerkit.runtimes.mesh.places import place_of, rank_with_place
from lowerkit.runtimes.session import Session
from lowerkit.spmd.simulated_session import SimulatedSession

RANKS = "ranks"
"""The stage in which all ranks are interpreted."""


@dataclass(frozen=True)
class Judge:
    """What outputs are held to: their decibels to the reference (None: other shapes), and whether they are the same."""

    decibels: Callable[[Sequence[Array]], float | None]
    same: Callable[[Sequence[Array]], bool]


def search_ranks(
    program: Program,
    inputs: Sequence[Array],
    options: CompileOptions,
    judge: Judge,
    result: Bisection,
    show: Callable[[str], None],
) -> None:
    """Searches the ranks of a program, and adds what it finds to ``result``.

    Args:
        program: canonical, not yet split; it is lowered and compiled.
        inputs: in the order of the signature, the same for all ranks.
        options: with a sharding.
        judge: of the outputs.
        result: gets the rows of the stages ``ranks`` and ``compiled``, the steps, and a finding where it has none.
        show: is called with a line for people.

    Raises:
        LowerkitError: the program cannot be split, compiled or run.
    """
    split = program.copy()
    stages = [stage for stage, _ in lower_stages(split, options, show)[0]]
    show("interpreting all ranks")
    values, note = _interpreted(stages, split, inputs, judge, result)
    runner = compile_program(program, options, show).runner
    assert isinstance(runner, SimulatedSession), "a program for a mesh runs in all ranks"
    if values is None:
        outputs = runner.run_ranks(*inputs)
        result.stages.append(StageRow("compiled", _least(judge, outputs), None, note))
        result.doubts.append(f"the compiled ranks were not run step by step: the stage {RANKS} was {note}")
        return
    show("running all ranks step by step")
    recorded = _recorded(runner, inputs, values, options)
    outputs = [each.outputs for each in recorded.values() if each.outputs]
    notes = dict.fromkeys(note for each in recorded.values() for note in each.notes)
    result.stages.append(StageRow("compiled", _least(judge, outputs), None, "; ".join(notes)))
    programs = runner.on_ranks(lambda session, _rank: session.program, alike=False)
    result.steps = _worst_steps(recorded, programs)
    if result.finding is None:
        _name(recorded, programs, split, options, result)


def _interpreted(
    stages: Sequence[Program], split: Program, inputs: Sequence[Array], judge: Judge, result: Bisection
) -> tuple[list[Evaluation] | None, str]:
    """Interprets all ranks; returns their values in the element types of the model, or why there are none."""
    try:
        exact = evaluate_ranks(stages, split, inputs, float64=True)
        own = evaluate_ranks(stages, split, inputs, float64=False, keep=True)
    except LowerkitError as error:
        note = f"not interpreted: {error.message}"
        result.stages.append(StageRow(RANKS, None, None, note))
        return None, note
    by_rank = [each.outputs for each in exact]
    row = StageRow(RANKS, _least(judge, [each.outputs for each in own]), _least(judge, by_rank))
    result.stages.append(row)
    other = [rank_with_place(split.mesh, rank) for rank, outputs in enumerate(by_rank) if not judge.same(outputs)]
    if other and result.finding is None:
        distance = "other shapes" if row.exact is None else f"{row.exact:.1f} dB"
        text = "the split, or a pass behind it, computes something else"
        result.doubts.append(f"{', '.join(other)} differ from the graph in float64 ({distance}): {text}")
    return own, ""


def evaluate_ranks(
    stages: Sequence[Program], split: Program, inputs: Sequence[Array], *, float64: bool, keep: bool = False
) -> list[Evaluation]:
    """Runs the modules of all ranks side by side; returns by rank what :func:`evaluate` does.

    Args:
        stages: the programs, one for each stage.
        split: has the mesh.
        inputs: in the order of the signature, the same for all ranks.
        float64, keep: as for :func:`evaluate`.

    Raises:
        LowerkitError: the interpreter does not know an op.
        VerifyError: LK3002, ranks compute different things together, or wait for each other in a circle.
    """

    def run(rank: int, combine: Combine) -> Evaluation:
        place = place_of(split.mesh, rank)
        own = next(stage for stage in stages if all(place[axis] == at for axis, at in stage.place.items()))
        return evaluate(own, inputs, float64=float64, keep=keep, rank=RankOf(place, combine))

    return on_all_ranks({axis.name: axis.size for axis in split.mesh}, run)


def _recorded(
    runner: SimulatedSession, inputs: Sequence[Array], values: Sequence[Evaluation], options: CompileOptions
) -> Mapping[int, RecordedRun]:
    """Runs all ranks step by step; returns what was recorded of those that no other rank ended.

    Raises:
        LowerkitError: what ended the run of a rank, where no rank has a fault of its own.
    """
    failures: list[CollectiveFault] = []

    def run(session: Session, rank: int) -> RecordedRun | None:
        try:
            return recorded_run(session, inputs, values[rank], options.allow)
        except CollectiveFault as error:
            failures.append(error)
            return None

    found = runner.on_ranks(run, alike=False)
    recorded = {rank: each for rank, each in enumerate(found) if each is not None}
    if failures and not any(each.fault for each in recorded.values()):
        raise failures[0]
    return recorded


def _name(
    recorded: Mapping[int, RecordedRun],
    programs: Sequence[ProgramSpec],
    split: Program,
    options: CompileOptions,
    result: Bisection,
) -> None:
    """Names the first fault: of stages the first, in it of steps."""

    def place(rank: int) -> tuple[tuple[int, ...], int]:
        return tuple(programs[rank].place.values()), _step(recorded[rank].fault)

    faulty = [rank for rank, each in recorded.items() if each.fault is not None]
    if not faulty:
        return
    first = min(faulty, key=place)
    alike = [rank_with_place(split.mesh, rank) for rank in faulty if place(rank) == place(first)]
    alone, fault, of_rank = replace(options, sharding=None), recorded[first].fault, programs[first]
    finding: Finding
    details: list[str] = []
    if isinstance(fault, KernelFault):
        finding, piece = kernel_finding(fault, of_rank, alone)
        if piece is None and any(fault.is_weight):
            details.append("what the rank has of a weight that it reads may be wrong: lowerkit verify reads them")
        result.reproducer_note = "no part of the region shows it when it is compiled by itself"
        if piece is not None:
            result.reproducer = kernel_reproducer(piece, finding, alone)
            result.reproducer_note = "one region, cut behind the op, with the very bytes that the rank read"
    elif isinstance(fault, StepFault):
        finding = step_finding(fault, of_rank, alone)
        result.reproducer_note = "the step ends the run of its rank: the model is the reproducer"
    else:
        assert isinstance(fault, MemoryFault), "there is no other fault"
        finding = memory_finding(fault, of_rank)
        result.reproducer_note = "a memory plan of a rank cannot be cut: the model is the reproducer"
    result.finding = replace(finding, ranks=tuple(alike), details=(*finding.details, *details))


def _step(fault: KernelFault | MemoryFault | StepFault | None) -> int:
    if isinstance(fault, MemoryFault):
        return fault.writer
    return -1 if fault is None else fault.step


def _worst_steps(recorded: Mapping[int, RecordedRun], programs: Sequence[ProgramSpec]) -> list[StepRow]:
    """Returns the steps of all programs, each of the rank that loses most."""
    by_program: dict[tuple[int, ...], list[StepRow]] = {}
    for rank, each in recorded.items():
        rows = by_program.setdefault(tuple(programs[rank].place.values()), each.steps)
        worse = [min(pair, key=lambda row: (row.sound, row.local)) for pair in zip(rows, each.steps, strict=False)]
        longer = max(rows, each.steps, key=len)
        by_program[tuple(programs[rank].place.values())] = [*worse, *longer[len(worse) :]]
    return [row for place in sorted(by_program) for row in by_program[place]]


def _least(judge: Judge, by_rank: Sequence[Sequence[Array]]) -> float | None:
    """Returns the fewest decibels of the outputs of all ranks; None where those of one have other shapes."""
    found = [judge.decibels(outputs) for outputs in by_rank]
    known = [each for each in found if each is not None]
    return min(known) if known and len(known) == len(found) else None
