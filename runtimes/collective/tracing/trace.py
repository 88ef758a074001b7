"""Merges the flight records of a group's ranks: who waited for whom, who was last, where the ranks parted.

Vocabulary
    step      one collective on all ranks: the entries with one sequence number of one group
    culprit   the rank that a wait is laid on: the one at the end of those who wait for each other (``wait_chains.py``)
    caused    the sum of the waits laid on a rank
    last      the rank that started a step last, by the clocks of the hosts: durations are exact, moments are as good as
              those clocks agree

Sends and receives have no sequence number; their waits count like others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from lowerkit.errors import InputError
from lowerkit.runtimes.collective.tracing.flight_record_file import Entry, FlightRecord
from lowerkit.runtimes.collective.tracing.wait_chains import WaitChains

# Operations whose ranks may give different counts; all else that a descriptor holds must agree.
_UNEQUAL = {"scatter", "gather", "all_gather", "reduce_scatter", "all_to_all"}


@dataclass(frozen=True)
class Step:
    """One collective of a group.

    Attributes:
        sequence: its number.
        entries: by rank; a rank that had not come so far, or whose recorder has forgotten it, has none.
        behind: ranks with a record that ends before this step.
        culprits: by rank that waited: the rank that its wait is laid on.
        last: the rank that started last, None if fewer than two did.
        spread: nanoseconds between the first and the last start.
        mismatch: the calls that differ, each with its ranks; empty: all agree.
    """

    sequence: int
    entries: dict[int, Entry]
    behind: tuple[int, ...]
    culprits: dict[int, int]
    last: int | None
    spread: int
    mismatch: tuple[str, ...]

    @property
    def longest_wait(self) -> int:
        """Nanoseconds that the rank that waited longest did."""
        return max(entry.waited for entry in self.entries.values())

    @property
    def text(self) -> str:
        """The call of the lowest rank."""
        return self.entries[min(self.entries)].text


@dataclass
class RankRow:
    """What one rank did.

    Attributes:
        rank: which.
        host: its host's name.
        process: its number.
        operations: entries of the recorder.
        waited: nanoseconds spent waiting for others.
        caused: nanoseconds that others' waits are laid on it.
        last: what it did last, None: nothing.
        running: nanoseconds that its last entry had been running when the record was written, 0: it had ended.
        aborted: why its group was aborted, or None.
    """

    rank: int
    host: str
    process: int
    operations: int
    waited: int
    last: Entry | None
    running: int
    aborted: str | None
    caused: int = 0


@dataclass
class Trace:
    """The merged records of one group.

    Attributes:
        group: its name.
        size: its ranks.
        ranks: a row for each record given.
        missing: ranks without a record.
        dead: ranks that any of the others knew to be dead.
        steps: by sequence.
        messages: by rank: sends and receives, in order.
    """

    group: str
    size: int
    ranks: list[RankRow]
    missing: tuple[int, ...]
    dead: tuple[int, ...]
    steps: list[Step] = field(default_factory=list[Step])
    messages: dict[int, list[Entry]] = field(default_factory=dict[int, list[Entry]])

    @property
    def first_mismatch(self) -> Step | None:
        """The step at which ranks first called different operations."""
        return next((step for step in self.steps if step.mismatch), None)

    @staticmethod
    def of(records: Iterable[FlightRecord]) -> Trace:
        """Merges the records of one group.

        Raises:
            InputError: LK1002, they are of different groups or two are of one rank.
        """
        by_rank: dict[int, FlightRecord] = {}
        for record in records:
            first = next(iter(by_rank.values()), record)
            if (record.group, record.size) != (first.group, first.size):
                raise InputError(
                    "LK1002",
                    f"records of different groups: {first.group!r} of {first.size} ranks and "
                    f"{record.group!r} of {record.size}",
                )
            if record.rank in by_rank:
                raise InputError(
                    "LK1002",
                    f"group {record.group!r}: two records are of rank {record.rank}",
                    hint="give the files of one run, one for each rank",
                )
            by_rank[record.rank] = record
        assert by_rank, "at least one record"
        ordered = [by_rank[rank] for rank in sorted(by_rank)]
        chains = WaitChains(ordered)
        trace = Trace(
            ordered[0].group,
            ordered[0].size,
            [_row(record) for record in ordered],
            tuple(rank for rank in range(ordered[0].size) if rank not in by_rank),
            tuple(sorted({rank for record in ordered for rank in record.dead})),
            _steps(ordered, chains),
            {record.rank: [entry for entry in record.records if entry.sequence == 0] for record in ordered},
        )
        trace._lay_waits(chains)
        return trace

    def _lay_waits(self, chains: WaitChains) -> None:
        caused: Counter[int] = Counter()
        for step in self.steps:
            for rank, culprit in step.culprits.items():
                caused[culprit] += step.entries[rank].waited
        for rank, entries in self.messages.items():
            for entry in entries:
                if entry.waited_for is not None:
                    caused[chains.culprit(rank, entry)] += entry.waited
        for row in self.ranks:
            row.caused = caused[row.rank]


def group_records(records: Iterable[FlightRecord]) -> list[Trace]:
    """Returns one trace for each group, by the groups' names."""
    groups: dict[str, list[FlightRecord]] = {}
    for record in records:
        groups.setdefault(record.group, []).append(record)
    return [Trace.of(groups[name]) for name in sorted(groups)]


def _row(record: FlightRecord) -> RankRow:
    last = record.records[-1] if record.records else None
    running = max(0, record.written - last.started) if last is not None and not last.finished else 0
    waited = sum(entry.waited for entry in record.records)
    return RankRow(record.rank, record.host, record.process, len(record.records), waited, last, running, record.aborted)


def _steps(records: list[FlightRecord], chains: WaitChains) -> list[Step]:
    entries: dict[int, dict[int, Entry]] = {}
    ends: dict[int, int] = {}
    for record in records:
        for entry in record.records:
            if entry.sequence:
                entries.setdefault(entry.sequence, {})[record.rank] = entry
        ends[record.rank] = max((entry.sequence for entry in record.records), default=0)
    return [_step(sequence, entries[sequence], ends, chains) for sequence in sorted(entries)]


def _step(sequence: int, entries: dict[int, Entry], ends: dict[int, int], chains: WaitChains) -> Step:
    starts = {rank: entry.started for rank, entry in entries.items()}
    last = max(starts, key=lambda rank: starts[rank]) if len(starts) > 1 else None
    behind = tuple(rank for rank in sorted(ends) if rank not in entries and ends[rank] < sequence)
    culprits = {rank: chains.culprit(rank, one) for rank, one in entries.items() if one.waited_for is not None}
    spread = max(starts.values()) - min(starts.values())
    return Step(sequence, entries, behind, culprits, last, spread, _mismatch(entries))


def _mismatch(entries: dict[int, Entry]) -> tuple[str, ...]:
    groups: dict[tuple[object, ...], list[int]] = {}
    for rank in sorted(entries):
        entry = entries[rank]
        sizes = () if entry.operation in _UNEQUAL else (entry.count, tuple(entry.shape))
        groups.setdefault((entry.operation, entry.dtype, entry.reduction, entry.root, *sizes), []).append(rank)
    if len(groups) < 2:
        return ()
    return tuple(
        f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}: {entries[ranks[0]].text}"
        for ranks in groups.values()
    )
