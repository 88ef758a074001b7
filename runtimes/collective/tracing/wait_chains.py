"""Whom the wait of a rank is laid on: waits are followed along those who wait, through a step and into earlier ones.

A waits for B in step n. Where B itself waited for C for at least half as long, in step n or, while A waited, in an
earlier operation, B only passes the delay on: the wait is C's, unless C waits as well.

Within a step no clock is needed. Which operations overlap is told by the hosts' clocks: on one host exactly, between
hosts as well as those agree; where they differ by more than the wait it stays with B.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable

from lowerkit.runtimes.collective.tracing.flight_record_file import Entry, FlightRecord


class WaitChains:
    """The operations of all ranks of a group, by time and by number."""

    def __init__(self, records: Iterable[FlightRecord]) -> None:
        self._timelines: dict[int, _Timeline] = {record.rank: _Timeline(record) for record in records}

    def culprit(self, rank: int, entry: Entry) -> int:
        """Returns the rank that a wait is laid on.

        Args:
            rank: who waited.
            entry: in what; it names a rank that was waited for.
        """
        assert entry.waited_for is not None, "who waited for nobody blames nobody"
        begin, end = entry.started, self._timelines[rank].end(entry)
        least = entry.waited // 2
        sequence = entry.sequence or None
        seen, at = {rank}, entry.waited_for
        while at not in seen and at in self._timelines:
            seen.add(at)
            held_up = self._timelines[at].held_up(begin, end, sequence, least)
            if held_up is None or held_up[0] in seen:
                break
            at, sequence = held_up
        return at


class _Timeline:
    """One rank's operations by their start."""

    def __init__(self, record: FlightRecord) -> None:
        self._written = record.written
        self._entries = sorted(record.records, key=lambda entry: entry.started)
        self._starts = [entry.started for entry in self._entries]
        self._steps = {entry.sequence: entry for entry in self._entries if entry.sequence}
        self._latest_ends: list[int] = []  # of the entries up to each: operations behind the caller overlap
        for entry in self._entries:
            self._latest_ends.append(max(self.end(entry), self._latest_ends[-1] if self._latest_ends else 0))

    def end(self, entry: Entry) -> int:
        """Returns when it ended, or when the record was written."""
        return entry.finished or self._written

    def held_up(self, begin: int, end: int, sequence: int | None, least: int) -> tuple[int, int | None] | None:
        """Returns for whom this rank waited ``least`` between two moments, and the last operation in which it did.

        Args:
            begin: nanoseconds since 1970.
            end: likewise.
            sequence: later operations do not count; None: all do.
            least: nanoseconds.
        """
        step = self._steps.get(sequence) if sequence is not None else None
        if step is not None and step.waited_for is not None and step.waited >= least:
            return step.waited_for, sequence
        waited: Counter[int] = Counter()
        last: dict[int, int | None] = {}
        for index in range(bisect_right(self._starts, end) - 1, -1, -1):
            if self._latest_ends[index] <= begin:
                break
            entry = self._entries[index]
            if entry.waited_for is None or (sequence is not None and entry.sequence > sequence):
                continue
            overlap = min(end, self.end(entry)) - max(begin, entry.started)
            waited[entry.waited_for] += max(0, min(overlap, entry.waited))
            last.setdefault(entry.waited_for, entry.sequence or sequence)
        for rank, nanoseconds in waited.most_common(1):
            if nanoseconds >= max(least, 1):
                return rank, last[rank]
        return None
