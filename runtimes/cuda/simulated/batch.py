"""The state of the blocks that run together: registers, memory, and which threads are active."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from lowerkit.runtimes.cuda.simulated.arithmetic import Arithmetic
from lowerkit.runtimes.cuda.simulated.block_memory import BlockMemory
from lowerkit.runtimes.cuda.simulated.device_memory import DeviceMemory
from lowerkit.runtimes.cuda.simulated.pending_copies import PendingCopies
from lowerkit.runtimes.cuda.simulated.scalar_types import Array
from lowerkit.runtimes.cuda.simulated.watchers import AccessWatcher, InstructionWatcher

WARP = 32
WARPGROUP = 4 * WARP
State = TypeVar("State")


@dataclass(frozen=True)
class Geometry:
    """Blocks of a grid and threads of a block, in x, y, z."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return math.prod(self.grid)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return math.prod(self.block)

    @property
    def width(self) -> int:
        """Threads of a block, filled up to whole warps: how many columns a register has."""
        return -(-self.threads // WARP) * WARP


@dataclass
class Batch:
    """Some blocks of a launch.

    Attributes:
        geometry: of the launch.
        first_block: the number of the first block.
        blocks: how many there are.
        memory, shared, local: what instructions access; one owner for each block of shared memory, and one for each
            column of each block of local memory.
        parameters: the bytes of each parameter, uint8.
        registers: by slot, arrays that broadcast to :attr:`shape`. They are replaced, never written into, because two
            slots may hold one array.
        alive: bool [blocks, width], the threads that have not left.
        active: the threads that the current step runs for, bool [blocks, width]; None for all.
        arithmetic: what tensor cores and approximations give.
        copies: what asynchronous copies are under way.
        merge: as active, but None also when no other thread will look at its old values: what a step writes for the
            threads that are not active is then of no account.
        states: what families of opcodes remember between instructions; see :meth:`state`.
        leaving: what is asked whether threads (bool [blocks, width]) may leave.
        races: who is told of every access; None: races are not looked for.
        coverage: who is told of every instruction; None: nobody.
    """

    geometry: Geometry
    first_block: int
    blocks: int
    memory: DeviceMemory
    shared: BlockMemory
    local: BlockMemory
    parameters: Mapping[str, Array]
    registers: list[Array] = field(default_factory=list[Array])
    active: Array | None = None
    merge: Array | None = None
    arithmetic: Arithmetic = field(default_factory=Arithmetic)
    copies: PendingCopies = field(default_factory=PendingCopies)
    states: dict[Callable[[Batch], Any], Any] = field(default_factory=dict[Callable[["Batch"], Any], Any])
    leaving: list[Callable[[Array], None]] = field(default_factory=list[Callable[[Array], None]])
    races: AccessWatcher | None = None
    coverage: InstructionWatcher | None = None

    def __post_init__(self) -> None:
        width = self.geometry.width
        self.shape = self.blocks, width
        self.alive: Array = np.broadcast_to(np.arange(width) < self.geometry.threads, self.shape).copy()
        self._first: tuple[Array | None, int, int] = None, 0, 0

    def state(self, make: Callable[[Batch], State]) -> State:
        """Returns what a family of opcodes remembers of this batch: ``make(batch)``, made at the first use."""
        if make not in self.states:
            self.states[make] = make(self)
        return self.states[make]

    @cached_property
    def threads(self) -> Array:
        """The number of each thread in the batch, int64 [blocks, width]."""
        return np.arange(self.blocks * self.shape[1]).reshape(self.shape)

    @cached_property
    def block_numbers(self) -> Array:
        """The number of each block in the batch, int64 [blocks, 1]."""
        return np.arange(self.blocks)[:, None]

    def full(self, array: Array) -> Array:
        """Returns ``array`` in the shape of the batch."""
        return array if array.shape == self.shape else np.broadcast_to(array, self.shape)

    def warps(self, array: Array) -> Array:
        """Returns ``array`` as [warps, lanes]."""
        return self.full(array).reshape(-1, WARP)

    def mask(self, active: Array | None) -> Array:
        """Returns which threads ``active`` stands for, bool [blocks, width]."""
        return np.ones(self.shape, np.bool_) if active is None else active

    def active_threads(self) -> Array:
        """Returns the numbers of the active threads, int64, in order."""
        return np.arange(self.blocks * self.shape[1]) if self.active is None else np.flatnonzero(self.active)

    def repeat_active(self, array: Array) -> Array:
        """Returns ``array`` with the value of the first active thread where a thread is not active."""
        active = self.active
        if active is None or array.size == 1:
            return array
        if self._first[0] is not active:
            block, thread = divmod(int(np.argmax(active)), self.shape[1])
            self._first = active, block, thread
        _, block, thread = self._first
        first = array[block if array.shape[0] > 1 else 0, thread if array.shape[1] > 1 else 0]
        return np.where(active, array, first)

    def write(self, slot: int, value: Array) -> None:
        """Sets a register for the active threads; ``value`` has its type and a shape that broadcasts."""
        merge = self.merge
        self.registers[slot] = value if merge is None else np.where(merge, value, self.registers[slot])

    def thread_name(self, number: int) -> str:
        """Returns the words for the thread of a number in the batch."""
        block, thread = divmod(number, self.shape[1])
        x, y, _ = self.geometry.block
        grid_x, grid_y, _ = self.geometry.grid
        block += self.first_block
        return (
            f"thread ({thread % x}, {thread // x % y}, {thread // (x * y)}) of block "
            f"({block % grid_x}, {block // grid_x % grid_y}, {block // (grid_x * grid_y)})"
        )

    def special_register(self, name: str) -> Array:
        """Returns the values of a special register, uint32; ``name`` is a key of :data:`SPECIAL_REGISTERS`."""
        thread = np.arange(self.shape[1])[None]
        block = self.first_block + self.block_numbers
        stem, _, axis = name.partition(".")
        sizes = self.geometry.block if stem in ("%tid", "%ntid") else self.geometry.grid
        number = {"%laneid": thread % WARP, "%warpid": thread // WARP}.get(stem)
        if number is None:
            at = "xyz".index(axis)
            inner = math.prod(sizes[:at])
            if stem in ("%ntid", "%nctaid"):
                number = np.full((1, 1), sizes[at])
            elif stem == "%tid":
                number = thread // inner % sizes[at]
            else:
                number = block // inner % sizes[at]
        return number.astype(np.uint32)


SPECIAL_REGISTERS = frozenset(
    {"%laneid", "%warpid"} | {f"{stem}.{axis}" for stem in ("%tid", "%ntid", "%ctaid", "%nctaid") for axis in "xyz"}
)
