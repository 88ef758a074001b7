"""A collective as a step of a compiled program beside the same call of the C interface, interleaved, on two ranks.

    python tools/bench/collective/step.py --turns 200

Both sides run in one native call: a program with one all_reduce step and one with many more, through ``session.run``,
and plans of as many ``lk_run``. What one costs is the slope: the difference of the two, divided by the further
operations; so neither the call from Python nor what a run does once is part of it. All operands lie in memory that the
ranks share, as those of a program do. Prints microseconds per operation, the slower rank's, medians over the turns.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import workers

FEW, MANY = 1, 65
SIZES = (16, 1024, 16 << 10, 64 << 10, 256 << 10, 1 << 20)


def write_artifact(path: Path, size: int, ranks: int) -> Path:
    """Writes a program of ``FEW`` and one of ``MANY`` sums of f32, from one buffer of ``size`` bytes to another."""
    from lowerkit.runtimes.manifest import Buffer, CollectiveCall, Signature
    from tests.support.handmade_code import f32
    from tests.support.mesh.collective_programs import collective, copy, mesh_program, write_programs

    signature = Signature(inputs=[f32("x", size // 4)], outputs=[f32("y", size // 4)])
    kinds: list[Any] = ["input", "output", "arena", "arena"]
    buffers = [Buffer(kind, size, index=0) for kind in kinds]
    call = CollectiveCall("all_reduce", "tp", "f32")
    programs = [
        mesh_program(
            signature,
            buffers,
            [copy(0, 2), copy(0, 3), *(collective(2, 3, call) for _ in range(count)), copy(3, 1)],
            ranks,
            name=str(count),
        )
        for count in (FEW, MANY)
    ]
    return write_programs(path, programs)


@dataclass
class Rank:
    """What one rank measures: by the number of operations a session, and for each size a plan.

    Attributes:
        sessions: by size and number of operations.
        plans: the same of the C interface.
        kept: what the plans read and write.
    """

    sessions: dict[tuple[int, int], Any] = field(default_factory=dict[tuple[int, int], Any])
    plans: dict[tuple[int, int], Any] = field(default_factory=dict[tuple[int, int], Any])
    kept: list[Any] = field(default_factory=list[Any])

    def seconds(self, size: int, count: int, native: bool) -> float:
        """Returns what one run takes."""
        if native:
            run = self.plans[size, count].run
            started = time.perf_counter()
            run()
        else:
            session, x = self.sessions[size, count], self.kept[0][size]
            started = time.perf_counter()
            session.run(x)
        return time.perf_counter() - started


def make_rank(rank: int, folder: Path, ranks: int, sizes: Sequence[int]) -> Rank:
    """Meets the others, and makes sessions and plans."""
    from lowerkit.runtimes.artifact_reader import open_artifact
    from lowerkit.runtimes.collective.group import Group
    from lowerkit.runtimes.collective.rendezvous.store import DirectoryStore
    from lowerkit.runtimes.collective.work import Plan
    from lowerkit.runtimes.session import Session

    made, store = Rank(), DirectoryStore(folder / "store")
    program, direct = (Group.join(store, name, rank, ranks) for name in ("program", "direct"))
    made.kept += [{size: np.zeros(size // 4, np.float32) for size in sizes}, program, direct]
    address = direct.workspace(2 * max(sizes))
    for size in sizes:
        artifact = open_artifact(folder / f"{size}.lk")
        places = [(ctypes.c_uint8 * size).from_address(address + number * max(sizes)) for number in range(2)]
        arrays = [np.ctypeslib.as_array(place).view(np.float32) for place in places]
        for count in (FEW, MANY):
            made.sessions[size, count] = Session(artifact, 1, "structure", None, str(count), None, program)
            plan = made.plans[size, count] = Plan()
            for _ in range(count):
                plan.add(direct, direct.calls.all_reduce(arrays[0], output=arrays[1]))
        artifact.close()
    return made


def measure(made: Rank, size: int, turns: int) -> dict[tuple[bool, int], list[float]]:
    """Returns the seconds of each run by (whether it is the C interface, number of operations), in turns."""
    found: dict[tuple[bool, int], list[float]] = {
        (native, count): [] for native in (False, True) for count in (FEW, MANY)
    }
    kinds = list(found)
    for kind in kinds:
        made.seconds(size, kind[1], kind[0])
    for turn in range(turns):
        for number in range(len(kinds)):
            native, count = kinds[(turn + number) % len(kinds)]
            found[native, count].append(made.seconds(size, count, native))
    return found


def slope(by_rank: Sequence[dict[tuple[bool, int], list[float]]], native: bool) -> float:
    """Returns the microseconds of one operation: the slower rank's, median over the turns."""
    few, many = (
        statistics.median(workers.slowest([found[native, count] for found in by_rank])) for count in (FEW, MANY)
    )
    return (many - few) / (MANY - FEW) * 1e6


@click.command()
@click.option("--ranks", default=2, show_default=True)
@click.option("--turns", default=200, show_default=True)
@click.option("--sizes", default=",".join(map(str, SIZES)), show_default=True, help="Bytes, comma-separated.")
def main(ranks: int, turns: int, sizes: str) -> None:
    """Time steps and calls of an all_reduce of f32."""
    wanted = [int(text) for text in sizes.split(",")]
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        for size in wanted:
            write_artifact(folder / f"{size}.lk", size, ranks)
        with workers.workers(ranks, make_rank, folder, ranks, wanted) as asked:
            click.echo(f"all_reduce of f32, {ranks} ranks, microseconds; {turns} turns")
            for size in wanted:
                by_rank = asked.ask(measure, size, turns)
                step, call = slope(by_rank, False), slope(by_rank, True)
                click.echo(f"{size:9} B   a step {step:8.2f}   lk_run {call:8.2f}   difference {step - call:+7.2f}")


if __name__ == "__main__":
    main()
