"""How long a run of a mesh takes, and why: its ranks simulated, with the time of steps and of messages on one clock.

Vocabulary
    clock    of the simulation: it goes on where all ranks compute or wait
    compute  what the steps of a rank take, one after the other, on a device of its own
    waited   the rest of its run: what collectives do not hide behind the steps between their start and their done

Steps: load a session for each rank in a simulation whose network is perfect at first; bind the program; let all ranks
meet at one moment; from there on the rules of the network hold, and each rank runs its steps one by one: the kernels
really run, and before each collective and at the end the rank sleeps, on the clock, for what its steps since the last
one take. With given times two runs are alike to the nanosecond. Measured times are found in a simulation before, in
which one rank computes at a time: medians over some runs.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from lowerkit.runtimes.arguments import Array
from lowerkit.runtimes.artifact_reader import Artifact
from lowerkit.runtimes.collective.failures import CollectiveFault, RankDied
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.rendezvous.deadline import NANOSECONDS
from lowerkit.runtimes.collective.simulation.simulation import Simulation, simulate
from lowerkit.runtimes.cpu.requirements import choose_program
from lowerkit.runtimes.manifest import COLLECTIVE_KERNEL, JUMP_KERNEL, MAIN_PROGRAM
from lowerkit.runtimes.mesh.fit import ranks_of
from lowerkit.runtimes.mesh.groups import axis_groups
from lowerkit.runtimes.mesh.run_time import Network, RankTime, StepTime, TimedRun
from lowerkit.runtimes.mesh.simulated import first_failure
from lowerkit.runtimes.mesh.step_seconds import MeasuredSeconds, StepSeconds, computes
from lowerkit.runtimes.run_faults import endless
from lowerkit.runtimes.session import Session
from lowerkit.runtimes.stepwise import StepwiseRun

_PATIENCE = 24 * 3600.0
_MEETING = 1_000_000
"""Nanoseconds on the clock after which ranks begin that have told each other their moments."""
_MOST_TURNS = 1 << 20
"""Of the loops of a run: each is a call from here."""
_MEASURED_RUNS = 7
_WARM_UP_RUNS = 2


def time_run(
    artifact: Artifact,
    inputs: Sequence[Any],
    network: Network,
    steps: StepSeconds | None = None,
    *,
    threads: int = 1,
    target: str | None = None,
    program: str = MAIN_PROGRAM,
    device: str | None = None,
) -> TimedRun:
    """Runs a program for a mesh once in all of its ranks, simulated, and tells what that takes.

    Args:
        artifact: open.
        inputs: arrays in the order of the signature, the same ones for all ranks.
        network: between them.
        steps: what their steps take; None: they are measured.
        threads: of each rank.
        target, program, device: as for :meth:`Session.load`.

    Raises:
        CollectiveFault: LK8009, a rank died, with what the others say; LK8008 to LK8012 of the first rank that failed.
        UsageError: LK8021, the program is for one rank; LK1009, the times of some steps are not known.
        LowerkitError: as :meth:`Session.load` and :meth:`Session.run`.
    """
    how = (threads, target, program, device)
    if steps is None:
        steps = measured_steps(artifact, inputs, *how)
    return timed_with(artifact, inputs, network, steps, *how)


def timed_with(
    artifact: Artifact,
    inputs: Sequence[Any],
    network: Network,
    steps: StepSeconds,
    threads: int = 1,
    target: str | None = None,
    program: str = MAIN_PROGRAM,
    device: str | None = None,
) -> TimedRun:
    """As :func:`time_run`, with times that are known."""

    def run_rank(simulation: Simulation, session: Session, group: Group) -> tuple[list[Array], RankTime]:
        return _TimedRank(simulation, session, group).run(inputs, steps)

    with _sessions(artifact, network, threads, target, program, device) as (simulation, sessions):
        found = simulation.run(lambda group: run_rank(simulation, sessions[group.rank], group))
    results = [result for result in found if not isinstance(result, BaseException)]
    if len(results) < len(found):
        raise _failure(found)
    return TimedRun([outputs for outputs, _ in results], [time for _, time in results])


def measured_steps(
    artifact: Artifact,
    inputs: Sequence[Any],
    threads: int = 1,
    target: str | None = None,
    program: str = MAIN_PROGRAM,
    device: str | None = None,
) -> MeasuredSeconds:
    """Returns by rank the median seconds of each step over some runs, while nothing else of the simulation computes.

    Args and Raises: as :func:`time_run`.
    """
    alone = threading.Lock()

    def run_rank(session: Session) -> list[float]:
        steps = session.program.steps
        found: list[list[int]] = [[] for _ in steps]
        for number in range(_WARM_UP_RUNS + _MEASURED_RUNS):
            session.reset()
            run = StepwiseRun(session, *inputs)
            if number == _WARM_UP_RUNS:
                found = [[] for _ in steps]
            for step in steps_taken(session, run):
                if computes(steps[step]):
                    with alone:
                        found[step].append(run.time_step(step))
                else:
                    run.run_step(step)
        return [statistics.median(times) / NANOSECONDS if times else 0.0 for times in found]

    with _sessions(artifact, Network(), threads, target, program, device) as (simulation, sessions):
        outcomes = simulation.run(lambda group: run_rank(sessions[group.rank]))
    results = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    if len(results) < len(outcomes):
        raise first_failure(outcomes)
    return MeasuredSeconds(results)


@contextmanager
def _sessions(
    artifact: Artifact, network: Network, threads: int, target: str | None, program: str, device: str | None
) -> Generator[tuple[Simulation, list[Session]]]:
    """Loads a program once for each rank; the rules of the network do not hold yet."""
    size = ranks_of(artifact.path, choose_program(artifact.manifest, target, program))
    with simulate(
        size,
        latency=network.latency,
        bandwidth=network.bandwidth,
        jitter=network.jitter,
        loss=network.loss,
        death=network.death,
        seed=network.seed,
        timeout=network.timeout,
        patience=_PATIENCE,
        held_back=True,
    ) as simulation:
        yield (
            simulation,
            [Session(artifact, threads, "structure", target, program, device, group) for group in simulation.groups],
        )


class _TimedRank:
    """One rank's run, in a thread of its own."""

    def __init__(self, simulation: Simulation, session: Session, group: Group) -> None:
        self._simulation, self._session, self._group = simulation, session, group
        self._compute = self._owed = 0  # nanoseconds
        self._times: list[StepTime] = []

    def run(self, inputs: Sequence[Any], seconds: StepSeconds) -> tuple[list[Array], RankTime]:
        """Runs all steps; returns the outputs, and what that took."""
        rank, simulation = self._group.rank, self._simulation
        run = StepwiseRun(self._session, *inputs)
        taken = seconds.of_steps(rank, self._session.program.steps, run.dims)
        self._meet()
        simulation.begin(rank)
        start = simulation.moment
        for number in steps_taken(self._session, run):
            self._run_step(run, number, taken[number])
        self._pay()
        messages, size = simulation.sent(rank)
        total = simulation.moment - start
        whole, compute, waited = (value / NANOSECONDS for value in (total, self._compute, total - self._compute))
        return run.outputs, RankTime(whole, compute, waited, messages, size, self._times)

    def _run_step(self, run: StepwiseRun, number: int, seconds: float) -> None:
        step = self._session.program.steps[number]
        axis = ""
        if step.kernel == COLLECTIVE_KERNEL:
            assert step.collective is not None, "it is a collective"
            axis = step.collective.axis
            self._pay()
            before = self._simulation.moment
            run.run_step(number)
            seconds = (self._simulation.moment - before) / NANOSECONDS
        else:
            run.run_step(number)
            self._owed += round(seconds * NANOSECONDS)
        self._times.append(StepTime(step.name, step.kind, step.location, axis, seconds))

    def _pay(self) -> None:
        """Lets the clock go on by what the steps since the last collective take."""
        self._simulation.sleep_until(self._group.rank, self._simulation.moment + self._owed)
        self._compute += self._owed
        self._owed = 0

    def _meet(self) -> None:
        """Returns at the same moment in all ranks."""
        group, simulation = self._group, self._simulation
        # In its first operation a group learns who is where: that is no part of a run.
        for along in axis_groups(group, self._session.program.mesh).by_axis.values():
            along.run(along.calls.barrier())
        moments = group.run(group.calls.all_gather(np.array([simulation.moment])))
        simulation.sleep_until(group.rank, int(np.max(moments)) + _MEETING)


def steps_taken(session: Session, run: StepwiseRun) -> Generator[int]:
    """Yields the numbers of steps in the order of a run, jumps followed; each must run before the next is asked for.

    Raises:
        RuntimeFault: LK8014, its loops do not end.
    """
    steps = session.program.steps
    number = turns = 0
    while number < len(steps):
        step = steps[number]
        if step.kernel != JUMP_KERNEL:
            yield number
            number += 1
            continue
        taken = not step.buffers or not run.read(step.buffers[0])[0]
        following = step.target if taken else number + 1
        turns += following <= number
        if turns > _MOST_TURNS:
            raise endless(OverflowError(f"its loops have not ended after {_MOST_TURNS} turns"))
        number = following


def _failure(outcomes: Sequence[object]) -> BaseException:
    """Returns why a run failed: a rank that died is named first, with what the others say."""
    dead = [rank for rank, outcome in enumerate(outcomes) if isinstance(outcome, RankDied)]
    if not dead:
        return first_failure(outcomes)
    said = [
        f"rank {rank}: {outcome.message}" + (f" (at {outcome.location})" if outcome.location else "")
        for rank, outcome in enumerate(outcomes)
        if isinstance(outcome, CollectiveFault)
    ]
    return CollectiveFault(
        "LK8009", f"rank {dead[0]} died in the simulation", details=said, hint="the simulation was told to let it die"
    )
