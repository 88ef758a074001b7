"""The flight recorder: a group's last operations as JSON, one file for each rank, to be merged by ``comm trace``.

A document: ``schema`` (``lowerkit.flight_record``), ``version`` 1, ``group``, ``rank``, ``size``, ``host``,
``process``, ``written`` (when, nanoseconds since 1970), ``aborted`` (null or the reason), ``dead`` (ranks) and
``records``, oldest first. A record: ``sequence`` (0: a message), ``operation``, ``dtype``, ``reduction`` and ``root``
(null where the operation has none), ``count`` (elements), ``tag``, ``shape``, ``started`` and ``finished`` (nanoseconds
since 1970; 0: still running), ``waited`` (nanoseconds spent waiting for others), ``waited_for`` (the rank that cost the
longest wait, or null), ``status``.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import time
from pathlib import Path
from typing import Any

from lowerkit.errors import UsageError
from lowerkit.runtimes.collective.calls import DTYPES, REDUCTIONS, Operation
from lowerkit.runtimes.collective.engine import EngineGroup
from lowerkit.runtimes.collective.failures import Status, usage

logger = logging.getLogger("lowerkit.collective")

_REDUCING = {Operation.REDUCE, Operation.ALL_REDUCE, Operation.REDUCE_SCATTER}
_ROOTED = {
    Operation.BROADCAST,
    Operation.REDUCE,
    Operation.SCATTER,
    Operation.GATHER,
    Operation.SEND,
    Operation.RECEIVE,
}


def flight_record(group: EngineGroup, name: str, rank: int, size: int, written: int | None = None) -> dict[str, Any]:
    """Returns the document of one rank; ``written``: when, None: now."""
    return {
        "schema": "lowerkit.flight_record",
        "version": 1,
        "group": name,
        "rank": rank,
        "size": size,
        "host": socket.gethostname(),
        "process": os.getpid(),
        "written": time.time_ns() if written is None else written,
        "aborted": group.aborted,
        "dead": group.dead(),
        "records": [_readable(record) for record in group.records()],
    }


def write_flight_record(path: str | os.PathLike[str], document: dict[str, Any]) -> None:
    """Writes a document, over an earlier one, whole or not at all.

    Raises:
        UsageError: LK1010, the file cannot be written.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(document) + "\n", encoding="utf-8")
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise usage(f"the flight record cannot be written to {target}: {error.strerror}") from error


def keep_flight_record(folder: Path, document: dict[str, Any]) -> None:
    """Writes the document of a group that was aborted into a folder, and logs where, or why not."""
    name, rank = document["group"], document["rank"]
    path = folder / f"{re.sub(r'[^A-Za-z0-9.-]+', '_', name)}.rank{rank}.json"
    try:
        write_flight_record(path, document)
    except UsageError as error:  # must not hide the failure that it tells of
        logger.warning("group %r, rank %d: %s", name, rank, error.message)
    else:
        logger.warning("group %r, rank %d was aborted; its flight record is %s", name, rank, path)


def _readable(record: dict[str, int | list[int]]) -> dict[str, Any]:
    operation = Operation(_number(record["operation"]))
    plain: dict[str, Any] = dict(record)
    root, waited_for, reduction = (_number(record[name]) for name in ("root", "waited_for", "reduction"))
    plain["operation"] = operation.name.lower()
    plain["dtype"] = None if operation is Operation.BARRIER else DTYPES[_number(record["dtype"])]
    plain["reduction"] = REDUCTIONS[reduction] if operation in _REDUCING else None
    plain["root"] = root if operation in _ROOTED and root >= 0 else None
    plain["waited_for"] = waited_for if waited_for >= 0 else None
    plain["status"] = Status(_number(record["status"])).name.lower()
    return plain


def _number(value: int | list[int]) -> int:
    assert isinstance(value, int)
    return value
