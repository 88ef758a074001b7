"""Types of the native collectives; runtimes/native/collective/bindings/module.cpp defines it over the C interface.

Addresses are integers; counts are in elements; timeouts in nanoseconds, 0: the group's. A part is (address, count).
Failures raise ``CollectiveError`` with the arguments (status, message); statuses are those of lowerkit_collective.h.
"""

from collections.abc import Sequence

class CollectiveError(RuntimeError):
    """args: status (int), message (str)."""

class Work:
    """An operation that runs behind the caller. Keeps nothing alive: the caller holds the buffers."""

    def test(self) -> bool: ...
    def wait(self, timeout: int = 0) -> None: ...
    @property
    def received(self) -> tuple[int, int]:
        """Source rank and bytes of a finished receive."""

class Simulation:
    """Ranks that are threads of this process, with a network and a clock of their own; moments in nanoseconds."""

    def __init__(
        self,
        size: int,
        seed: int,
        latency: int,
        jitter: int,
        overtaking: float,
        hold_up: int,
        loss: float,
        dies_at: Sequence[int],
        island: Sequence[int],
        cut_at: int,
        patience: int,
        bandwidth: float = 0.0,
        held_back: bool = False,
    ) -> None: ...
    @property
    def now(self) -> int: ...
    def sleep(self, rank: int, until: int) -> None: ...
    def begin(self, rank: int) -> None:
        """From now on the rules hold for what the rank sends, where they were held back."""

    def sent(self, rank: int) -> tuple[int, int]:
        """Messages that a rank sent since the rules hold, and their bytes."""

    def absent(self) -> list[int]:
        """Ranks that time ever went on without."""

    def group(self, name: str, members: Sequence[int], rank: int, timeout: int) -> Group: ...

class Group:
    """One group. Takes the descriptors over when construction succeeds."""

    def __init__(
        self,
        name: str,
        rank: int,
        size: int,
        local_ranks: Sequence[int],
        segment_descriptor: int,
        connections: Sequence[int],
        processes: Sequence[int],
        timeout: int,
        first_sequence: int = 0,
        tuning: Sequence[int] = (),
    ) -> None: ...
    def run(
        self,
        operation: int,
        dtype: int,
        count: int,
        input: int,
        output: int,
        reduction: int = 0,
        root: int = 0,
        factor: float = 1.0,
        tag: int = 0,
        timeout: int = 0,
        shape: Sequence[int] = (),
    ) -> None: ...
    def start(
        self,
        operation: int,
        dtype: int,
        count: int,
        input: int,
        output: int,
        reduction: int = 0,
        root: int = 0,
        factor: float = 1.0,
        tag: int = 0,
        timeout: int = 0,
        shape: Sequence[int] = (),
    ) -> Work: ...
    def run_parts(
        self,
        operation: int,
        dtype: int,
        count: int,
        input: int,
        output: int,
        input_parts: Sequence[tuple[int, int]],
        parts: Sequence[tuple[int, int]],
        reduction: int = 0,
        root: int = 0,
        factor: float = 1.0,
        timeout: int = 0,
        shape: Sequence[int] = (),
    ) -> None: ...
    def start_parts(
        self,
        operation: int,
        dtype: int,
        count: int,
        input: int,
        output: int,
        input_parts: Sequence[tuple[int, int]],
        parts: Sequence[tuple[int, int]],
        reduction: int = 0,
        root: int = 0,
        factor: float = 1.0,
        timeout: int = 0,
        shape: Sequence[int] = (),
    ) -> Work: ...
    def run_tensors(
        self, operation: int, output: object, input: object, reduction: int = 0, root: int = 0, timeout: int = 0
    ) -> bool:
        """Runs an operation between tensors of a framework that ``serve_tensors`` knows.

        Each side is a tensor, a list with one for each rank, or None where the operation has nothing there (gather and
        scatter on ranks that are not the root). Both sides are one object where the operation is in place (broadcast,
        reduce, all_reduce). A tensor in place of a list holds equal parts one after another.

        False, with nothing done: the tensors are not contiguous, on the CPU and of one native type, or do not fit.
        """

    def attach_arena(self, descriptor: int, size: int) -> int: ...
    def share_arena(self, owner: Group, ranks: Sequence[int]) -> None:
        """Lets operations find their buffers in the owner's arena, where rank r has the number ``ranks[r]``."""

    def look(self) -> None:
        """Reads what other ranks have told; raises where one of them aborted the group. Waits for nothing."""
    def abort(self, reason: str) -> None: ...
    @property
    def aborted(self) -> str | None: ...
    def dead(self) -> list[int]: ...
    def records(self) -> list[dict[str, int | list[int]]]: ...
    def close(self) -> None: ...

class Plan:
    """Operations recorded once and run by one call."""

    def add(
        self,
        group: Group,
        operation: int,
        dtype: int,
        count: int,
        input: int,
        output: int,
        input_parts: Sequence[tuple[int, int]] = (),
        parts: Sequence[tuple[int, int]] = (),
        reduction: int = 0,
        root: int = 0,
        factor: float = 1.0,
        tag: int = 0,
        timeout: int = 0,
        shape: Sequence[int] = (),
    ) -> None: ...
    def run(self) -> None: ...

class Step:
    """The collectives of the runs of one compiled program, which follow each other in one thread.

    ``address`` is what the executor hands to the function at ``step_call_address``. From ``begin`` to ``end`` the group
    and its memory are there, also where it is closed meanwhile.
    """

    def __init__(self, group: Group) -> None: ...
    @property
    def address(self) -> int: ...
    def begin(self) -> None: ...
    def end(self) -> None: ...
    def settle(self, reason: str | None) -> None:
        """After a failed run: returns when nothing that it started goes on.

        With a reason the group is aborted first if anything does; without, this waits for the other ranks.
        """

def step_call_address() -> int: ...
def last_error() -> str:
    """Why the last call of the executor in this thread failed."""

def serve_tensors(tensor: type, parameter: type) -> bool:
    """Makes ``run_tensors`` read objects of exactly these types, over DLPack's C exchange interface.

    False: the types do not offer it.
    """

def segment_bytes(local_count: int, tile_bytes: int = 0) -> int: ...
