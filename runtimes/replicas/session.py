"""Several sessions of one artifact that share the rows of each batch, in one process.

Each replica has its own threads, temporary memory and calls; the weights are the mapped file, once for all of them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lowerkit.errors import ResourceError, UsageError
from lowerkit.runtimes.arguments import Array
from lowerkit.runtimes.artifact_reader import open_artifact
from lowerkit.runtimes.cpu.topology import threads_of_rank
from lowerkit.runtimes.manifest import MAIN_PROGRAM, Manifest, ProgramSpec, Signature
from lowerkit.runtimes.mapping.address_space import limit_lines
from lowerkit.runtimes.nesting import rebuild_outputs
from lowerkit.runtimes.replicas.batch import Batch, join_outputs
from lowerkit.runtimes.session import Integrity, Session

MOST_REPLICAS = 1024


class ReplicatedSession:
    """An artifact whose batches run in parts, one a replica, all at the same time.

    Make one with ``lowerkit.load(path, replicas=N)``. Calls and results are those of a
    :class:`~lowerkit.runtimes.session.Session`; safe to use from several threads, and in the child after ``fork()``.
    """

    def __init__(self, sessions: Sequence[Session]) -> None:
        self._sessions = tuple(sessions)
        self._batch = Batch.of(sessions[0].program)

    @staticmethod
    def load(
        path: str | os.PathLike[str],
        replicas: int,
        *,
        threads: int | None = None,
        integrity: Integrity = "checksum",
        target: str | None = None,
        program: str = MAIN_PROGRAM,
        device: str | None = None,
    ) -> ReplicatedSession:
        """Loads an artifact once and makes replicas of it.

        Args:
            path: the ``.lk`` file.
            replicas: how many.
            threads: of each replica; None: the physical cores this process may use, divided by the replicas.
            integrity, target, program, device: as for :meth:`Session.load`. The weights are checked once.

        Raises:
            UsageError: LK1009, ``replicas`` or ``threads`` is out of range.
            UnsupportedError: LK4008, the model has no batch that can be cut into parts.
            LowerkitError: as :meth:`Session.load`.
        """
        if not 1 <= replicas <= MOST_REPLICAS:
            raise UsageError("LK1009", f"replicas is {replicas}, expected 1 to {MOST_REPLICAS}")
        threads_here = threads_of_rank(threads, replicas)
        artifact = open_artifact(path)
        try:
            first = Session(artifact, threads_here, integrity, target, program, device)
            Batch.of(first.program)
            rest = [
                Session(artifact, threads_here, "structure", first.program.label, program, device)
                for _ in range(replicas - 1)
            ]
            return ReplicatedSession([first, *rest])
        except MemoryError as error:
            raise ResourceError("LK7002", f"no memory to load {path}", details=limit_lines()) from error
        finally:
            artifact.close()

    @property
    def signature(self) -> Signature:
        """Names, dtypes, shapes and dim ranges of inputs and outputs."""
        return self._sessions[0].signature

    @property
    def manifest(self) -> Manifest:
        """Everything the artifact says about itself."""
        return self._sessions[0].manifest

    @property
    def program(self) -> ProgramSpec:
        """The program of the artifact that all replicas run."""
        return self._sessions[0].program

    @property
    def path(self) -> Path:
        """The file that the replicas were loaded from."""
        return self._sessions[0].path

    @property
    def replicas(self) -> int:
        """How many there are."""
        return len(self._sessions)

    @property
    def threads(self) -> int:
        """Threads of each replica."""
        return self._sessions[0].threads

    def run(self, *inputs: Any, **named: Any) -> list[Array]:
        """Runs the model once, each replica on its share of the rows.

        The shares differ by one row at most. Where there are fewer rows than replicas, or shares would be smaller than
        the model takes, fewer replicas run. A batch that is larger than the model takes runs in more shares, in turns.

        Args:
            inputs, named: as for :meth:`Session.run`. Inputs without the batch dim go to every replica.

        Returns:
            New arrays in the order of the signature's outputs, with the rows of all shares in their order.

        Raises:
            LowerkitError: as :meth:`Session.run`; of several replicas that failed, the error of the first rows.
        """
        arrays = self._sessions[0].collect(*inputs, **named)
        shares = self._batch.cut(arrays, self.replicas)
        outcomes: list[list[Array] | BaseException | None] = [None] * len(shares)

        def work(replica: int) -> None:
            for number in range(replica, len(shares), self.replicas):
                try:
                    outcomes[number] = self._sessions[replica].run(*shares[number])
                except BaseException as error:
                    outcomes[number] = error
                    return

        # Threads of this call alone: there are none that a fork could lose.
        others = [threading.Thread(target=work, args=(one,)) for one in range(1, min(self.replicas, len(shares)))]
        for other in others:
            other.start()
        work(0)
        for other in others:
            other.join()
        outputs: list[list[Array]] = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            if outcome is not None:
                outputs.append(outcome)
        return join_outputs(outputs)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Runs the model once, as :meth:`run`; the arrays that it returns are nested as the model's own results."""
        return rebuild_outputs(self.program.output_tree, self.run(*inputs, **named))

    def __repr__(self) -> str:
        return f"ReplicatedSession({self.replicas} x {self._sessions[0]!r})"
