"""The simulated time of a run of a mesh beside the measured one, on this machine, interleaved.

    lowerkit compile tools/bench/models.py:llama --mesh tp=2 --shard plan.json -o two.lk
    python tools/bench/collective/simulated_time.py two.lk --turns 9

In each turn: the ranks, processes of one thread, run the model; they time an all_reduce of few and one of many bytes;
and each step is timed alone in this process. In the end a link is fitted to the medians, so that the simulated
all_reduces take as long, and the run is simulated with that link and the medians of the steps. Prints simulated by
measured time.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import workers

from lowerkit.runtimes.mesh.run_time import Network
from lowerkit.runtimes.mesh.step_seconds import MeasuredSeconds
from lowerkit.runtimes.mesh.timed_run import measured_steps, time_run

FEW = 16
"""Bytes."""
BATCH = 32


def all_reduce_seconds(session: Any, size: int) -> float:
    """Returns what an all_reduce of f32 takes in the group of a rank's session: one of a batch behind each other."""
    from lowerkit.runtimes.collective.work import Plan

    group, plan = session.group, Plan()
    source, target = (np.zeros(size // 4, np.float32) for _ in range(2))
    for _ in range(BATCH):
        plan.add(group, group.calls.all_reduce(source, output=target))
    plan.run()
    started = time.perf_counter()
    plan.run()
    return (time.perf_counter() - started) / BATCH


def simulated_all_reduce(ranks: int, size: int, latency: float, bandwidth: float) -> float:
    """Returns the seconds that an all_reduce of f32 takes in a simulation."""
    from lowerkit.runtimes.collective.group import Group
    from lowerkit.runtimes.collective.simulation.simulation import simulate

    def run(group: Group) -> float:
        group.run(group.calls.barrier())  # the first operation of a group takes longer
        started = simulation.moment
        group.run(group.calls.all_reduce(np.zeros(size // 4, np.float32)))
        return (simulation.moment - started) / 1e9

    with simulate(ranks, latency=latency, bandwidth=bandwidth) as simulation:
        outcomes = simulation.run(run)
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if failures:
        raise failures[0]
    return max(outcome for outcome in outcomes if not isinstance(outcome, BaseException))


def fitted(ranks: int, sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Returns latency (s) and bandwidth (bytes/s) with which all_reduces of two sizes take so long in a simulation.

    Raises:
        click.ClickException: there are none: the larger one took no longer than its messages alone.
    """
    latency, rate = 1e-3, 1e6  # coarse ones: the clock counts nanoseconds
    rows = [
        [
            simulated_all_reduce(ranks, size, latency, 0.0) / latency,
            simulated_all_reduce(ranks, size, 0.0, rate) * rate,
        ]
        for size in sizes
    ]
    found = np.linalg.solve(np.array(rows), np.array(seconds))
    if found.min() <= 0:
        raise click.ClickException(f"no link fits all_reduces of {list(sizes)} bytes in {list(seconds)} s")
    return float(found[0]), 1 / float(found[1])


def median_of(found: Sequence[MeasuredSeconds]) -> MeasuredSeconds:
    """Returns for each rank and step the median of several measurements."""
    ranks = [[one.by_rank[rank] for one in found] for rank in range(len(found[0].by_rank))]
    return MeasuredSeconds([[statistics.median(each) for each in zip(*rank, strict=True)] for rank in ranks])


def example_inputs(artifact: Any) -> list[Any]:
    """Returns random inputs of a program whose shapes are fixed."""
    from lowerkit.cli.session_inputs import read_inputs

    signature = artifact.manifest.programs[0].signature
    given = [f"{spec.name}:{'x'.join(map(str, spec.shape))}:{spec.dtype}" for spec in signature.inputs]
    named = read_inputs(signature, given, 0)
    return [named[spec.name] for spec in signature.inputs]


@click.command()
@click.argument("path", metavar="ARTIFACT", type=click.Path(exists=True, path_type=Path))
@click.option("--turns", default=9, show_default=True)
@click.option("--runs", default=5, show_default=True, help="Measured runs of a turn.")
@click.option("--many", default=256 << 10, show_default=True, help="Bytes of the larger all_reduce.")
def main(path: Path, turns: int, runs: int, many: int) -> None:
    """Simulate and measure a run of ARTIFACT, which is for a mesh."""
    from lowerkit.runtimes.artifact_reader import open_artifact
    from lowerkit.runtimes.mesh.fit import ranks_of

    artifact = open_artifact(path)
    ranks, inputs = ranks_of(path, artifact.manifest.programs[0]), example_inputs(artifact)
    measured: list[float] = []
    reduced: dict[int, list[float]] = {FEW: [], many: []}
    steps: list[MeasuredSeconds] = []
    with ExitStack() as stack:
        store = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "store"
        asked = stack.enter_context(workers.workers(ranks, workers.mesh_rank, path, store, ranks))
        asked.ask(workers.times, inputs, 1)
        for _ in range(turns):
            measured += workers.slowest(asked.ask(workers.times, inputs, runs))
            for size, took in reduced.items():
                took.append(max(asked.ask(all_reduce_seconds, size)))
            steps.append(measured_steps(artifact, inputs))
        shares = asked.ask(workers.collective_share, inputs)
    latency, bandwidth = fitted(ranks, list(reduced), [statistics.median(took) for took in reduced.values()])
    run = time_run(artifact, inputs, Network(latency=latency, bandwidth=bandwidth), median_of(steps))
    artifact.close()
    last = max(run.ranks, key=lambda rank: rank.seconds)
    total, compute, waited = (value * 1e3 for value in (run.seconds, last.compute, last.waited))
    middle = statistics.median(measured)
    click.echo(f"{path.name}, {ranks} ranks: link {bandwidth / 1e9:.2f} GB/s, {latency * 1e6:.2f} us")
    click.echo(f"measured   median {middle:8.3f} ms   min {min(measured):8.3f}   max {max(measured):8.3f}")
    click.echo(f"simulated  median {total:8.3f} ms   compute {compute:8.3f}   communication waited {waited:8.3f}")
    click.echo(f"simulated by measured {total / middle:.3f}")
    click.echo(f"collectives, of a measured rank's time: {', '.join(f'{share:.1%}' for share in shares)}")


if __name__ == "__main__":
    main()
