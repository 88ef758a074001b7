"""A group whose operations gloo carries out, and how its ranks are connected."""

# torch's stubs do not export what torch.distributed imports.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import hashlib
import os
import secrets
import select
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions

from lowerkit.distributed.gloo.operations import Operations, lie_in_one
from lowerkit.distributed.gloo.reductions import KNOWN
from lowerkit.distributed.gloo.work import GlooWork
from lowerkit.distributed.torch_store import TorchStore
from lowerkit.runtimes import _collective
from lowerkit.runtimes.collective.call_engine import CallEngine, Record
from lowerkit.runtimes.collective.calls import REDUCTIONS, Call, Operation
from lowerkit.runtimes.collective.engine import Connected
from lowerkit.runtimes.collective.failures import Status, not_formed
from lowerkit.runtimes.collective.group_settings import GroupSettings
from lowerkit.runtimes.collective.rendezvous.deadline import NANOSECONDS
from lowerkit.runtimes.collective.rendezvous.host import host_identity
from lowerkit.runtimes.collective.rendezvous.store import Store

_OWN = struct.Struct("32sqq16s")  # identity of the host, namespace and number of the process, a nonce
_LOOK_SECONDS = 0.5
_ROLL_CALL_SECONDS = 1.5
_LONGER = 5.0
"""Seconds that gloo itself waits longer than ranks here do: they say who is missing."""

_REDUCING = {Operation.REDUCE, Operation.ALL_REDUCE, Operation.REDUCE_SCATTER}
_UNKNOWN = {Operation.SCATTER, Operation.GATHER}


class GlooGroup(CallEngine):
    """See :class:`lowerkit.runtimes.collective.engine.EngineGroup`, and ``_collective.pyi`` for the arguments.

    It has what steps of compiled programs need: parts are equally long and lie one behind the other.

    gloo does not tell which rank it waits for, nor that one has given up. So ranks watch the processes of their host,
    and who gives up says why in the store, where those that wait look; who waited too long says so there as well, and
    those that do not are the ones that are missing.

    Args:
        name: of the group.
        backend: ``ProcessGroupGloo`` of its ranks; taken over.
        rank, size: of this rank and of the group.
        timeout: nanoseconds that an operation may take where it does not name its own.
        store: where the ranks met.
        world: name of the group that this one was made of, or its own.
        processes: by rank a pidfd, or -1: of this rank, and of those that cannot be watched; taken over.
    """

    def __init__(
        self, name: str, backend: Any, rank: int, size: int, timeout: int, store: Store, world: str,
        processes: Sequence[int],
    ) -> None:  # fmt: skip
        super().__init__(name, rank, timeout)
        self._backend: Any = backend
        self._size, self._store = size, store
        self._operations: Operations | None = Operations(backend, rank, size, timeout / NANOSECONDS + _LONGER)
        self._key = f"lowerkit/{world}/aborted"
        self._processes = list(processes)
        self._unfinished: list[tuple[GlooWork, Any]] = []
        self._looked = time.monotonic()

    def check(self, call: Call[Any], what: str) -> None:
        """Raises CollectiveError where a call cannot be made."""
        problem = ""
        if call.operation in _UNKNOWN or call.root < 0 or call.root >= self._size:
            problem = (
                f"the engine gloo has no {call.operation.name.lower()} with root {call.root} of {self._size} ranks"
            )
        elif call.operation in _REDUCING and REDUCTIONS[call.reduction] not in KNOWN:
            problem = f"the engine gloo has no reduction {REDUCTIONS[call.reduction]}: it has {', '.join(KNOWN)}"
        elif not (lie_in_one(call.parts, call.dtype) and lie_in_one(call.input_parts, call.dtype)):
            problem = "the engine gloo needs parts of one length that lie one behind the other"
        if problem:
            raise _collective.CollectiveError(int(Status.INVALID), f"{what}: {problem}")

    def begin(self, call: Call[Any], what: str, record: Record, timeout: int) -> GlooWork:
        """Begins an operation."""
        assert self._operations is not None, "it is not closed"
        try:
            begun = self._operations.begin(call)
        except RuntimeError as error:
            status, text = self.blame(Status.PEER_LOST, f"gloo failed: {error}")
            raise _collective.CollectiveError(int(status), f"{what}: {text}") from error
        work = GlooWork(what, begun, timeout, record, self)
        self._unfinished = [one for one in self._unfinished if one[0].pending]
        self._unfinished.append((work, begun))
        return work

    def abort(self, reason: str) -> None:
        """Fails everything that runs or will run, on all ranks: those that wait look in the store."""
        super().abort(reason)
        with suppress(RuntimeError):  # the store may be gone, with the rank that kept it
            self._store.compare_set(self._key, b"", reason.encode())

    def look(self, *, now: bool = False) -> str | None:
        """Returns why the group was aborted, as far as this rank knows; asks the store now and then, or now."""
        if self._aborted is None and (now or time.monotonic() >= self._looked + _LOOK_SECONDS):
            with suppress(TimeoutError):
                self._aborted = self._store.get(self._key, 0.0).decode()
            self._looked = time.monotonic()
        return self._aborted

    def failed(self, reason: str) -> None:
        """Notes that an operation failed: the group is of no use on this rank."""
        super().abort(reason)

    def blame(self, status: Status, otherwise: str) -> tuple[Status, str]:
        """Returns whose fault it is that an operation failed, as a status and in words.

        Args:
            status: TIMEOUT, or PEER_LOST where gloo said something.
            otherwise: what is known without the others: how long this rank waited, or what gloo said.
        """
        key, end = f"lowerkit/{self._name}/waits", time.monotonic() + _ROLL_CALL_SECONDS
        with suppress(RuntimeError):
            self._store.set(f"{key}/{self._rank}", b"1")
        silent = [rank for rank in range(self._size) if rank != self._rank]
        while True:
            if (reason := self.look(now=True)) is not None:
                return Status.ABORTED, f"the group was aborted: {reason}"
            if dead := self.dead():
                return Status.PEER_LOST, f"{_named(dead)} {'has' if len(dead) == 1 else 'have'} ended (no process)"
            silent = [rank for rank in silent if not self._waits(f"{key}/{rank}")]
            if not silent or time.monotonic() > end:
                break
            time.sleep(_ROLL_CALL_SECONDS / 30)
        if status == Status.TIMEOUT:
            who = f"{_named(silent)} did not come" if silent else "it is not done, and all ranks wait for it"
            return status, f"{who} {otherwise}"
        return status, otherwise + (f"; {_named(silent)} did not say that it failed there, too" if silent else "")

    def dead(self) -> list[int]:
        """Returns the ranks of this host whose processes have ended."""
        watched = {process: rank for rank, process in enumerate(self._processes) if process >= 0}
        return sorted(watched[process] for process in select.select(list(watched), [], [], 0)[0])

    def close(self) -> None:
        """Ends this rank's part in the group; unfinished operations fail."""
        if self._closed:
            return
        self._closed = True
        unfinished = [one for one in self._unfinished if one[0].pending]
        if unfinished:
            _abandoned.append((self._backend, unfinished))
        if unfinished or self._aborted is not None:
            self._backend.abort()  # else the end of a process whose connections are broken is a crash
        for process in self._processes:
            if process >= 0:
                os.close(process)
        self._processes = []
        self._backend: Any = None
        self._operations, self._unfinished = None, []

    def _waits(self, key: str) -> bool:
        try:
            return bool(self._store.get(key, 0.0))
        except TimeoutError:
            return False


@dataclass(frozen=True)
class GlooSettings(GroupSettings):
    """How groups whose operations gloo carries out are connected.

    Attributes:
        torch_store: reached by all ranks.
        world: name of the group of all ranks.
    """

    torch_store: dist.Store
    world: str

    def connect(self, store: Store, name: str, rank: int, size: int) -> Connected:
        """Connects the ranks of a group.

        Raises:
            CollectiveFault: LK8007, ranks did not come.
        """
        limit = timedelta(seconds=self.timeout + _LONGER)
        try:
            backend: Any = dist.ProcessGroupGloo(
                dist.PrefixStore(f"lowerkit/{name}/gloo/", self.torch_store), rank, size, timeout=limit
            )
            own = _OWN.pack(
                hashlib.sha256(host_identity().encode()).digest(), Path("/proc/self/ns/pid").stat().st_ino, os.getpid(),
                secrets.token_bytes(16),
            )  # fmt: skip
            given = torch.frombuffer(bytearray(own), dtype=torch.uint8)
            taken = [torch.empty_like(given) for _ in range(size)]
            backend.allgather([taken], [given], AllgatherOptions()).wait(limit)
        except RuntimeError as error:
            raise not_formed(
                f"group {name!r}, rank {rank}: gloo does not connect its ranks: {error}",
                hint="see the output of the other ranks; GLOO_SOCKET_IFNAME names the network interface",
            ) from error
        rows = [_OWN.unpack(bytes(row.numpy())) for row in taken]
        local = tuple(one for one in range(size) if rows[one][0] == rows[rank][0])
        watched = [one in local and one != rank and rows[one][1] == rows[rank][1] for one in range(size)]
        processes = [_opened(row[2]) if is_watched else -1 for row, is_watched in zip(rows, watched, strict=True)]
        nanoseconds = int(self.timeout * NANOSECONDS)
        engine = GlooGroup(name, backend, rank, size, nanoseconds, TorchStore(self.torch_store), self.world, processes)
        return Connected(engine, local, None, rows[0][3].hex())


def _opened(process: int) -> int:
    try:
        return os.pidfd_open(process)
    except OSError:  # an old kernel, or it has ended already: gloo says so
        return -1


def _named(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


# Groups with operations that never ended, and their memory: gloo may write to it until the process ends.
_abandoned: list[tuple[Any, Any]] = []
