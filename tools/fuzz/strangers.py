"""Strangers at the sockets of ranks that wait for each other, while another group of the process exchanges numbers.

    python tools/fuzz/strangers.py --count 5000 --seed 1

Rounds: ranks 0 and 1 of a group of three wait for rank 2. Strangers come to their sockets, by TCP and by Unix sockets:
port scanners, hellos that are damaged, cut, replayed, reflected, of another token or start, too long or byte by byte,
connections that are reset, and some that say nothing and stay. Then rank 2 comes: all must meet in time, share memory
and reduce right numbers. All the while another group, formed before, runs all_reduce and compares. In the end the
process must hold as many descriptors and threads as after the first round, and no more memory to speak of.

What stranger number N of a seed does depends on both alone. Exit code 1 when anything went wrong.
"""

from __future__ import annotations

import collections
import gc
import logging
import sys
import threading
import time
from pathlib import Path

import click
import numpy as np

from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.rendezvous.address_exchange import RankAddress, digest
from lowerkit.runtimes.collective.rendezvous.connections import RendezvousOptions
from lowerkit.runtimes.collective.rendezvous.store import MemoryStore
from untrusted.stranger_kinds import Strangers

TOKEN = b"t" * 32
OPTIONS = RendezvousOptions(TOKEN, timeout=60.0)
_ROUND = 500
_MOST_SILENT = 200
_MOST_GROWTH = 16 << 20


class LiveGroup:
    """A group that exchanges numbers until it is told to stop.

    Attributes:
        rounds: how often it did.
        failures: wrong numbers, errors.
    """

    def __init__(self) -> None:
        self.rounds = 0
        self.failures: list[str] = []
        self._stop = threading.Event()
        store = MemoryStore()
        self._threads = [threading.Thread(target=self._run, args=(store, rank)) for rank in range(3)]
        for thread in self._threads:
            thread.start()

    def _run(self, store: MemoryStore, rank: int) -> None:
        try:
            with Group.join(store, "live", rank, 3, OPTIONS, timeout=60.0) as group:
                rng = np.random.default_rng(0)
                while True:
                    rows = rng.integers(-1000, 1000, (3, int(rng.integers(1, 5000)))).astype(np.float64)
                    if not (group.run(group.calls.all_reduce(rows[rank])) == rows.sum(0)).all():
                        self.failures.append(f"wrong numbers on rank {rank}")
                    # All stop in the same round: rank 0 says when.
                    if group.run(group.calls.broadcast(np.array([self._stop.is_set()])))[0]:
                        return
                    self.rounds += rank == 0
                    time.sleep(0.002)
        except Exception as error:
            self.failures.append(f"rank {rank}: {error}")

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def one_round(seed: int, first: int, count: int, outcomes: collections.Counter[str]) -> list[str]:
    """Lets ``count`` strangers come before rank 2 does. Returns what went wrong."""
    store, name, failures = MemoryStore(), f"round {first}", list[str]()
    ends = threading.Barrier(3, timeout=120.0)

    def run(rank: int) -> None:
        try:
            with Group.join(store, name, rank, 3, OPTIONS, timeout=60.0) as group:
                total = group.run(group.calls.all_reduce(np.full(1000, rank + 1.0)))
                if not (total == 6).all() or group.local_ranks != (0, 1, 2):
                    failures.append(f"rank {rank}: wrong numbers, or no shared memory")
                ends.wait()
        except Exception as error:
            failures.append(f"rank {rank}: {error}")

    # Rank 2 has published, so the others listen for it; it comes to none of them yet.
    early = threading.Event()
    late = HeldBack(store, f"lowerkit/{name}/", early)
    ranks = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]

    def run_late() -> None:
        try:
            with Group.join(late, name, 2, 3, OPTIONS, timeout=60.0) as group:
                total = group.run(group.calls.all_reduce(np.full(1000, 3.0)))
                if not (total == 6).all():
                    failures.append("rank 2: wrong numbers")
                ends.wait()
        except Exception as error:
            failures.append(f"rank 2: {error}")

    ranks.append(threading.Thread(target=run_late))
    for thread in ranks:
        thread.start()
    lines = {rank: RankAddress.from_bytes(rank, store.get(f"lowerkit/{name}/{rank}", 30.0)) for rank in range(3)}
    strangers = Strangers(name, lines, digest(lines), [])
    time.sleep(0.05)
    for number in range(first, first + count):
        strangers.visit(seed, number)
    # The silent ones are still there when the rank comes.
    start = time.monotonic()
    early.set()
    for thread in ranks:
        thread.join(90.0)
    if any(thread.is_alive() for thread in ranks):
        failures.append("the ranks did not meet")
    outcomes["longest meeting, ms"] = max(outcomes["longest meeting, ms"], int(1e3 * (time.monotonic() - start)))
    strangers.close()
    outcomes.update(strangers.outcomes)
    return failures + strangers.failures


class HeldBack(MemoryStore):
    """A store whose rank reads the others' lines only when it is let go."""

    def __init__(self, store: MemoryStore, prefix: str, event: threading.Event) -> None:
        super().__init__()
        self._store, self._prefix, self._event = store, prefix, event

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def get(self, key: str, timeout: float) -> bytes:
        self._event.wait(60.0)
        return self._store.get(key, timeout)

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        return self._store.compare_set(key, expected, desired)

    def delete(self, key: str) -> bool:
        return self._store.delete(key)


def held() -> tuple[int, int]:
    """Returns this process's descriptors and threads."""
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@click.command()
@click.option("--count", default=5000, show_default=True, help="Strangers.")
@click.option("--seed", default=0, show_default=True)
@click.option("--first", default=0, show_default=True, help="Number of the first one: to go on where a run ended.")
def main(count: int, seed: int, first: int) -> None:
    """Lets COUNT strangers come; exit code 1 when they did harm."""
    logging.getLogger("lowerkit.collective").setLevel(logging.ERROR)
    outcomes: collections.Counter[str] = collections.Counter()
    failures = one_round(seed, first, min(50, count), outcomes)
    before, memory = held(), resident()
    live = LiveGroup()
    started = time.monotonic()
    for number in range(first + 50, first + count, _ROUND):
        failures += one_round(seed, number, min(_ROUND, first + count - number), outcomes)
    live.stop()
    failures += live.failures
    seconds = time.monotonic() - started
    after, growth = held(), resident() - memory
    if after != before:
        failures.append(f"descriptors and threads were {before} and are {after}")
    if growth > _MOST_GROWTH:
        failures.append(f"{growth >> 20} MiB more memory")
    click.echo(f"{count} strangers in {seconds:.0f} s with seed {seed} from {first} on")
    click.echo("  " + ", ".join(f"{name} {times}" for name, times in sorted(outcomes.items())))
    click.echo(f"  beside them a live group ran {live.rounds} all_reduces; {growth / 1024:.0f} KiB more memory")
    for failure in failures[:20]:
        click.echo(f"  {failure}")
    click.echo(f"{len(failures)} failures")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
