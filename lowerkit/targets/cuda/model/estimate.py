"""How long a launch takes, term by term, and how long at least.

The floor is the roofline of the data sheet: operations over peak or bytes over bandwidth, whichever is more. The
prediction adds what keeps a kernel from it:

    compute   the operations, at the share of the peak that was ever measured
    padding   operations on what lies beyond the result: tails of tiles
    shared    operands of tensor cores come out of shared memory at 128 bytes a clock
    latency   a block that is alone on its SM waits: for its first loads, at the barrier of each step, for its stores
    waves     the last wave of blocks leaves SMs idle
    l2, dram  bytes, at the share of the bandwidth that was ever measured

The first five add up; memory runs beside them, so that the longest of the sum, ``l2`` and ``dram`` counts, behind the
gap between two launches. Of what runs beside the longest a twentieth counts: it is in the way now and then.
"""

from __future__ import annotations

import msgspec

from lowerkit.targets.cuda.model.cards import MATRIX_SHARE, MEMORY_SHARE, Card
from lowerkit.targets.cuda.model.occupancy import Occupancy, occupancy

# Clocks. A load that misses L2 takes 600 to 1000 on these cards by published microbenchmarks, one that hits it 250 or
# so; a barrier and the turn of a pipelined loop about 100; the result of an addition is there after 4.
FILL = 1000
STEP = 100
TURN = 20  # of these, what other blocks of the SM do not hide: instructions that are issued
LOAD = 800
DEPENDENT = 4
SHARED_CLOCK = 128  # bytes that shared memory delivers in a clock
PORT_CLOCK = 64  # bytes between an SM and L2 in a clock
EXPONENTIALS_CLOCK = 16  # of the special function units of an SM
_SOFTMAX_OPERATIONS = 6  # of f32 around each exponential: scale, maximum, difference, sum, rounding
_LANES = 128
_BESIDE = 0.05
L2_KEPT = 0.5  # share of L2 in which what is used again stays
_OVERLAP = 0.5  # share of the shorter of tensor cores and exponentials that runs under the longer

_BUSY = ("compute", "padding", "shared", "latency", "waves")
TERMS = ("launch", *_BUSY, "l2", "dram")


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What a launch does.

    Attributes:
        kind: of arithmetic: ``f32``, ``f64`` or ``matrix bf16`` and the like, see :meth:`Card.peak`.
        flops: operations that the result needs.
        issued: operations that are done, padding included; 0: as ``flops``.
        exponentials: of softmax, in a loop with the tensor cores.
        moved: bytes of device memory, each once; fetched: those that are really moved, 0: as ``moved``.
        between: of both, what goes from one launch of a function to the next: no floor counts it, and where it stays in
            L2 it comes from there.
        loaded: bytes between L2 and the SMs; 0: as ``moved``.
        stored: bytes that a block writes at its end.
        staged: bytes that a block moves through shared memory.
        blocks, threads, registers, shared: of the launch, see :func:`~.occupancy.occupancy`.
        steps: trips of the main loop of a block; stages: loads of it under way.
        serial: whether each thread does its operations one after the other: plain loops.
        old_matrix: whether tensor cores are used by ``mma.sync``.
        persistent: whether ``blocks`` are tiles that as many blocks as there are SMs make one after the other: loads
            of the next one are under way while one is stored, so that only the first waits for them; its warps store
            what they multiplied, so that they do not multiply meanwhile.
    """

    kind: str
    flops: int
    issued: int = 0
    exponentials: int = 0
    moved: int
    fetched: int = 0
    between: int = 0
    loaded: int = 0
    stored: int = 0
    staged: int = 0
    blocks: int
    threads: int
    registers: int = 0
    shared: int = 0
    steps: int = 1
    stages: int = 1
    serial: bool = False
    old_matrix: bool = False
    persistent: bool = False


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a launch by terms, see the head of this file; ``floor`` is the roofline."""

    launch: float
    compute: float
    padding: float
    shared: float
    latency: float
    waves: float
    l2: float
    dram: float
    floor: float
    occupancy: Occupancy

    @property
    def busy(self) -> float:
        """Seconds in which the SMs compute or wait for themselves."""
        return self.compute + self.padding + self.shared + self.latency + self.waves

    @property
    def total(self) -> float:
        """Predicted seconds."""
        return sum(self.shares().values())

    @property
    def ratio(self) -> float:
        """How many times the floor the prediction is; 0 where the floor is nothing."""
        return self.total / self.floor if self.floor else 0.0

    def shares(self) -> dict[str, float]:
        """Returns seconds by term so that they add up to the total: of what runs beside a longer one a little."""
        longest = max(self.busy, self.l2, self.dram)
        computes, loads = self.busy == longest, self.busy < longest and self.l2 == longest
        counted = {name: (1.0 if computes else _BESIDE) * getattr(self, name) for name in _BUSY}
        l2, dram = (1.0 if loads else _BESIDE) * self.l2, (1.0 if not computes and not loads else _BESIDE) * self.dram
        return {"launch": self.launch, **counted, "l2": l2, "dram": dram}

    @property
    def limit(self) -> str:
        """The term that takes longest."""
        counted = self.shares()
        return max(TERMS, key=lambda name: counted[name])


def floor_seconds(card: Card, kind: str, flops: int, moved: int) -> float:
    """Returns the roofline: peaks of the data sheet, whatever was reached of them."""
    return max(flops / card.peak(kind), moved / card.memory)


def estimate(card: Card, work: Work) -> Prediction:
    """Returns the prediction of a launch.

    Raises:
        ValueError: the card has no such arithmetic, or a block does not fit on an SM.
    """
    started = min(work.blocks, card.sms) if work.persistent else work.blocks
    filled = occupancy(card, started, work.threads, work.registers, work.shared)
    if not filled.resident:
        raise ValueError(f"a block does not fit on an SM of {card.title}: {filled.limit}")
    floor = floor_seconds(card, work.kind, work.flops, max(work.moved - work.between, 0))
    kept = work.between if work.between <= card.l2 * L2_KEPT else 0
    fetched = max((work.fetched or work.moved) - kept, 0)
    blocks = max(work.blocks, 1)
    issued = work.issued or work.flops
    rate = card.peak(work.kind) * MATRIX_SHARE * (card.old_matrix_share if work.old_matrix else 1.0)
    clocks = issued * card.sms * card.clock / (rate * blocks)  # of one block, alone on its SM
    if work.exponentials:
        others = work.exponentials / blocks * (1 / EXPONENTIALS_CLOCK + _SOFTMAX_OPERATIONS / _LANES)
        clocks += others - _OVERLAP * min(clocks, others)
    work_clocks = max(clocks, work.staged / SHARED_CLOCK)
    alone = FILL + _alone(work, work_clocks, blocks)
    if work.persistent:
        turns = -(-blocks // card.sms)
        busy = FILL + turns * (alone - FILL)
    else:
        whole, rest = divmod(blocks, filled.resident * card.sms)
        last = min(filled.resident, -(-rest // card.sms))
        shared_out = work_clocks + TURN * work.steps * (work.steps > 1)
        busy = whole * max(filled.resident * shared_out, alone) + (max(last * shared_out, alone) if rest else 0.0)
        turns = whole * filled.resident + last  # blocks that the busiest SM runs
    even = blocks * work_clocks / card.sms  # clocks where all SMs work to the end
    uneven = turns * work_clocks - even
    active = min(card.sms, blocks)
    loaded = work.loaded or work.moved
    wide = min(card.l2_clock * MEMORY_SHARE, active * PORT_CLOCK)
    useful = min(1.0, work.flops / issued) if issued else 1.0
    seconds = 1 / card.clock
    computed = blocks * clocks / card.sms * seconds
    return Prediction(
        launch=card.launch,
        compute=computed * useful,
        padding=computed * (1 - useful),
        shared=blocks * (work_clocks - clocks) / card.sms * seconds,
        latency=max(busy - turns * work_clocks, 0.0) * seconds,
        waves=uneven * seconds,
        l2=loaded / (wide * card.clock),
        dram=fetched / min(card.memory * MEMORY_SHARE, active * PORT_CLOCK * card.clock),
        floor=floor,
        occupancy=filled,
    )


def _alone(work: Work, clocks: float, blocks: int) -> float:
    """Returns the clocks of a block that has its SM for itself, behind its first loads."""
    each = clocks / work.steps + STEP * (work.steps > 1)
    if work.stages > 1:
        each = max(each, LOAD / (work.stages - 1))
    serial = work.flops / (blocks * work.threads) / 2 * DEPENDENT if work.serial else 0.0
    return max(each * work.steps, serial) + work.stored / PORT_CLOCK
