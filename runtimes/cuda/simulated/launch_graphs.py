"""Launches and copies that were captured once and are replayed: a graph keeps addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lowerkit.runtimes.cuda.launch_buffer import LaunchBuffer
from lowerkit.runtimes.cuda.simulated.device_memory import Allocation
from lowerkit.runtimes.cuda.simulated.kernel import Kernel


@dataclass(frozen=True)
class CapturedLaunch:
    """A launch as it was captured; ``held`` has the allocation of each of its buffers at that time."""

    kernel: Kernel
    blocks: int
    threads: int
    shared: int
    arguments: Sequence[LaunchBuffer | int]
    held: Sequence[Allocation | None]


@dataclass(frozen=True)
class CapturedCopy:
    """A copy within the device's memory; ``held`` has the allocations of the two addresses when it was captured."""

    target: int
    source: int
    size: int
    held: Sequence[Allocation | None]


@dataclass(frozen=True)
class Forgotten:
    """Bytes whose content does not matter any more at this point."""

    address: int
    size: int


@dataclass
class CapturedGraph:
    """What was put into a queue between the beginning and the end of a capture.

    Attributes:
        steps: in order.
        destroyed: whether it was given back.
    """

    steps: list[CapturedLaunch | CapturedCopy | Forgotten] = field(
        default_factory=list["CapturedLaunch | CapturedCopy | Forgotten"]
    )
    destroyed: bool = False
