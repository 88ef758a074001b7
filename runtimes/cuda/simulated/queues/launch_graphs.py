"""Launches and copies that were captured once and are replayed: a graph keeps addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lowerkit.runtimes.cuda.launch_buffer import LaunchBuffer, LaunchTensorMap
from lowerkit.runtimes.cuda.simulated.device_memory import Allocation
from lowerkit.runtimes.cuda.simulated.kernel import Kernel
from lowerkit.runtimes.on_device.values import NamedCall


@dataclass(frozen=True)
class CapturedLaunch:
    """A launch as it was captured.

    Attributes:
        buffers: that it takes, also by tensor maps; held: the allocation of each at that time.
        named: the step that it is a part of, where that is known.
    """

    kernel: Kernel
    blocks: int
    threads: int
    shared: int
    arguments: Sequence[LaunchBuffer | LaunchTensorMap | int]
    buffers: Sequence[LaunchBuffer]
    held: Sequence[Allocation | None]
    early: bool = False
    named: NamedCall | None = None


@dataclass(frozen=True)
class CapturedCopy:
    """A copy within the device's memory; ``held`` has the allocations of the two addresses when it was captured.

    ``named`` is the step that it is, where that is known; of its values the source is the first.
    """

    target: int
    source: int
    size: int
    held: Sequence[Allocation | None]
    named: NamedCall | None = None


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
