"""What carries a group's operations out: the native engine, or another one with the same methods.

Addresses are integers, counts are in elements, timeouts in nanoseconds (0: the group's); see ``_collective.pyi``.
Failures are ``_collective.CollectiveError`` with a ``Status`` (``failures.py``) and a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from lowerkit.runtimes.collective.failures import usage

EngineName = Literal["lowerkit", "mpi"]
Part = tuple[int, int]


class EngineWork(Protocol):
    """An operation that runs behind the caller."""

    def test(self) -> bool:
        """Tells whether it is done; raises what it failed with."""
        ...

    def wait(self, timeout: int = 0) -> None:
        """Waits for its end; when ``timeout`` passes it goes on."""
        ...

    @property
    def received(self) -> tuple[int, int]:
        """Source rank and bytes of a finished receive."""
        ...


class EngineGroup(Protocol):
    """The ranks of a group, connected."""

    def run(
        self, operation: int, dtype: int, count: int, input: int, output: int, reduction: int = 0, root: int = 0,
        factor: float = 1.0, tag: int = 0, timeout: int = 0, shape: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """Runs an operation to its end."""
        ...

    def start(
        self, operation: int, dtype: int, count: int, input: int, output: int, reduction: int = 0, root: int = 0,
        factor: float = 1.0, tag: int = 0, timeout: int = 0, shape: Sequence[int] = (),
    ) -> EngineWork:  # fmt: skip
        """Starts an operation."""
        ...

    def run_parts(
        self, operation: int, dtype: int, count: int, input: int, output: int, input_parts: Sequence[Part],
        parts: Sequence[Part], reduction: int = 0, root: int = 0, factor: float = 1.0, timeout: int = 0,
        shape: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """Runs an operation with a part for each rank to its end."""
        ...

    def start_parts(
        self, operation: int, dtype: int, count: int, input: int, output: int, input_parts: Sequence[Part],
        parts: Sequence[Part], reduction: int = 0, root: int = 0, factor: float = 1.0, timeout: int = 0,
        shape: Sequence[int] = (),
    ) -> EngineWork:  # fmt: skip
        """Starts an operation with a part for each rank."""
        ...

    def run_tensors(
        self, operation: int, output: object, input: object, reduction: int = 0, root: int = 0, timeout: int = 0
    ) -> bool:
        """Runs an operation between a framework's tensors; False, with nothing done: it has to go by addresses."""
        ...

    def abort(self, reason: str) -> None:
        """Fails everything that runs or will run."""
        ...

    @property
    def aborted(self) -> str | None:
        """Why the group was aborted, or None."""
        ...

    def dead(self) -> list[int]:
        """The ranks known to have ended."""
        ...

    def records(self) -> list[dict[str, int | list[int]]]:
        """The last operations, oldest first."""
        ...

    def close(self) -> None:
        """Ends this rank's part."""
        ...


class PlanGroup(Protocol):
    """A group as a plan sees it: who carries its calls out, and who is told when one fails."""

    native: EngineGroup

    def note_failure(self, message: str) -> None:
        """Keeps what went wrong."""
        ...


@dataclass(frozen=True)
class Connected:
    """The ranks of a group, connected, and what was learnt of them.

    Attributes:
        engine: carries operations out.
        local_ranks: ascending, with the rank itself: those of the same host.
        token: the job token that the ranks agreed on, or None: the engine needs none.
        identity: the same on all ranks, and of no other group, under the same name or another.
    """

    engine: EngineGroup
    local_ranks: tuple[int, ...]
    token: bytes | None
    identity: str


def refuse_unused(engine: str, **given: bool) -> None:
    """Refuses options that an engine has no use for.

    Args:
        engine: its name.
        given: name of an option -> whether the caller gave it.

    Raises:
        UsageError: LK1010, with all of them.
    """
    unused = [name for name, is_given in given.items() if is_given]
    if unused:
        raise usage(f"engine={engine!r} has no use for {', '.join(unused)}", hint="these are options of 'lowerkit'")
