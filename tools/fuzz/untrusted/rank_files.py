"""The files of ranks that users hand on, flight records and tuning tables: targets of files.py."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np

from lowerkit.errors import LowerkitError
from lowerkit.runtimes.collective.rendezvous.store import MemoryStore
from lowerkit.runtimes.collective.tuning.table import SCHEMA, TuningTable, processor_name, processors
from untrusted.mutations import mutate, mutate_document


def flight_records() -> list[bytes]:
    """Records of ranks that met, parted and failed."""
    from lowerkit.runtimes.collective.group import Group
    from lowerkit.runtimes.collective.simulation.simulation import simulate

    def main(group: Group) -> dict[str, Any]:
        try:
            group.run(group.calls.all_reduce(np.ones((2, 3), np.float32), "max"))
            if group.rank == 0:
                group.run(group.calls.receive(np.empty(2), tag=4))
            if group.rank == 1:
                group.run(group.calls.send(np.ones(2), 0, tag=4))
            for _ in range(4):
                group.run(group.calls.broadcast(np.ones(3, np.int8), 1))
            if group.rank:
                group.run(group.calls.barrier())
            else:
                group.run(group.calls.all_gather(np.ones(2)))
        except LowerkitError:
            pass
        return group.flight_record()

    with simulate(3, latency=50e-6, seed=3) as simulation:
        return [json.dumps(record).encode() for record in simulation.run(main)]


def mutated_document(rng: np.random.Generator, corpus: list[bytes]) -> bytes:
    chosen = corpus[int(rng.integers(len(corpus)))]
    return mutate_document(rng, chosen) if rng.random() < 0.6 else mutate(rng, chosen, corpus)


def trace_records(path: Path) -> str:
    """`lowerkit comm trace`, as a table, as JSON and for Perfetto, beside the sound record of another rank."""
    from click.testing import CliRunner

    from lowerkit.cli.main import cli
    from lowerkit.runtimes.collective.tracing.flight_record_file import read_flight_record

    read_flight_record(path)  # raises what the command would show
    other = path.with_suffix(".sound")
    if not _sound_record:
        _sound_record.append(flight_records()[1])
    other.write_bytes(_sound_record[0])
    shown = ""
    for arguments in ([], ["--json"], ["--chrome", str(path.with_suffix(".chrome"))]):
        result = CliRunner().invoke(cli, ["comm", "trace", str(path), str(other), *arguments])
        if result.exit_code not in (0, 3) or (result.exception and not isinstance(result.exception, SystemExit)):
            if isinstance(result.exception, LowerkitError):
                return result.exception.code
            raise AssertionError(f"exit code {result.exit_code}: {result.exception!r}")
        shown += result.stdout
    if any(not (character.isprintable() or character == "\n") for character in shown):
        raise AssertionError("what a terminal obeys was printed")
    return "of two groups" if shown.count('"missing"') > 1 else "merged"


_sound_record: list[bytes] = []


def tuning_tables() -> list[bytes]:
    head = {"schema": SCHEMA, "version": 1, "processor": processor_name(), "processors": processors()}
    values = {"one_shot_limit": 32768, "tile_bytes": 131072, "streaming_limit": 1 << 22, "spin_nanoseconds": 2000}
    return [
        json.dumps({**head, "ranks": ranks}).encode()
        for ranks in ({"2": values}, {"2": {}, "3": {"tile_bytes": 65536}}, {})
    ]


def use_table(path: Path) -> str:
    """A table that loads must serve a group, and that group give right numbers."""
    from lowerkit.runtimes.collective.group import Group
    from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions

    table = TuningTable.load(path)
    tuning = table.for_ranks(2)
    if tuning.numbers in _used:
        return "used before"
    _used.add(tuning.numbers)
    store, found = MemoryStore(), list[int]()

    def run(rank: int) -> None:
        options = RendezvousOptions(b"t" * 32, timeout=20.0)
        with Group.join(store, "world", rank, 2, options, timeout=20.0, tuning=table) as group:
            for count in (3, 5000, 100_000):
                total = group.run(group.calls.all_reduce(np.full(count, rank + 1.0, np.float32)))
                found.append(int((total == 3).all()))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if found != [1] * 6:
        raise AssertionError(f"a table that loads gives wrong numbers: {tuning}")
    return "used"


_used: set[tuple[int, ...]] = set()
