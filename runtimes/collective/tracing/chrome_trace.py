"""Traces as JSON that Perfetto and chrome://tracing open: a row for each group in each process, a bar an operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowerkit.runtimes.collective.tracing.flight_record_file import Entry
from lowerkit.runtimes.collective.tracing.trace import Trace


def chrome_trace(traces: Sequence[Trace]) -> dict[str, Any]:
    """Returns the document. Moments are microseconds since the earliest operation, on each host's own clock."""
    entries = [
        entry
        for trace in traces
        for one in (*(step.entries.values() for step in trace.steps), *trace.messages.values())
        for entry in one
    ]
    origin = min((entry.started for entry in entries), default=0)
    events: list[dict[str, Any]] = []
    processes: dict[tuple[str, int], int] = {}
    for row_of_groups, trace in enumerate(traces, 1):
        for row in trace.ranks:
            place = (row.host, row.process)
            if place not in processes:
                processes[place] = len(processes) + 1
                name = f"rank {row.rank} ({row.host}, process {row.process})"
                events.append({"ph": "M", "pid": processes[place], "name": "process_name", "args": {"name": name}})
            at = {"pid": processes[place], "tid": row_of_groups}
            events.append({"ph": "M", **at, "name": "thread_name", "args": {"name": f"group {trace.group}"}})
            for step in trace.steps:
                if row.rank in step.entries:
                    extra: dict[str, Any] = {"culprit": step.culprits.get(row.rank)}
                    if step.mismatch:
                        extra["mismatch"] = list(step.mismatch)
                    events.append(_event(step.entries[row.rank], origin, at, extra))
            events.extend(_event(entry, origin, at, {}) for entry in trace.messages[row.rank])
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def _event(entry: Entry, origin: int, at: dict[str, int], extra: dict[str, Any]) -> dict[str, Any]:
    number = f" #{entry.sequence}" if entry.sequence else ""
    arguments = {
        "call": entry.text, "status": entry.status, "waited_us": entry.waited / 1e3, "waited_for": entry.waited_for,
        **extra,
    }  # fmt: skip
    begun = {"name": entry.operation + number, "cat": entry.status, "ts": (entry.started - origin) / 1e3, **at}
    if not entry.finished:  # a bar without an end
        return {"ph": "B", **begun, "args": arguments}
    return {"ph": "X", "dur": max(0, entry.finished - entry.started) / 1e3, **begun, "args": arguments}
