"""A device and the links between devices, each described by a few numbers: the roofline, and latency and bandwidth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lowerkit.errors import UsageError
from lowerkit.spmd.cost.quantities import parse_rate, parse_seconds


@dataclass(frozen=True)
class DeviceModel:
    """One device of a mesh.

    Attributes:
        flops: operations per second that products reach.
        bandwidth: bytes per second between the device and its memory.
        memory: bytes.
    """

    flops: float
    bandwidth: float
    memory: int

    def seconds(self, flops: float, moved: float) -> float:
        """Returns the time of work that computes and moves bytes at once: the longer of the two."""
        return max(flops / self.flops, moved / self.bandwidth)


@dataclass(frozen=True)
class LinkModel:
    """What joins a rank to the others.

    Attributes:
        bandwidth: bytes per second that a rank sends while it receives as many.
        latency: seconds from a send to the arrival of its first byte.
    """

    bandwidth: float
    latency: float

    @classmethod
    def parse(cls, text: str) -> LinkModel:
        """Reads ``450GB/s,2us``: bandwidth, and latency.

        Raises:
            UsageError: LK1009, it is something else; the message says what.
        """
        parts = text.split(",")
        if len(parts) != 2:
            raise UsageError(
                "LK1009",
                f"the link {text!r} has {len(parts)} parts, expected 2: bandwidth and latency",
                hint="write it as --link 450GB/s,2us",
            )
        bandwidth = parse_rate(parts[0].strip(), f"the bandwidth of the link {text!r}")
        return cls(bandwidth, parse_seconds(parts[1].strip(), f"the latency of the link {text!r}"))


@dataclass(frozen=True)
class Links:
    """The links along the axes of a mesh.

    Attributes:
        default: along every axis that has none of its own.
        of_axis: by the name of an axis.
    """

    default: LinkModel
    of_axis: Mapping[str, LinkModel] = field(default_factory=dict[str, LinkModel])

    def along(self, axis: str) -> LinkModel:
        """Returns the link between ranks along an axis."""
        return self.of_axis.get(axis, self.default)


@dataclass(frozen=True)
class MachineModel:
    """What a rank runs on where a user says no more than a target.

    Attributes:
        name: for people.
        device: of each rank.
        link: between any two.
    """

    name: str
    device: DeviceModel
    link: LinkModel


H100 = DeviceModel(flops=990e12, bandwidth=3.35e12, memory=80 << 30)
"""An H100 SXM5 as its data sheet has it: dense bf16, HBM3, 80 GB."""
NVLINK4 = LinkModel(bandwidth=450e9, latency=2e-6)
"""The fourth NVLink, each direction."""
CORE = DeviceModel(flops=200e9, bandwidth=28e9, memory=64 << 30)
"""A core with AVX-512: products of f32 from L2, and what it reads of memory (89 to 254 GFLOP/s, by level)."""
SHARED_MEMORY = LinkModel(bandwidth=25e9, latency=0.2e-6)
"""Between two ranks of a host, as ``tools/bench/collective/step.py`` measures collectives of 16 bytes and of 1 MiB."""


def machine_of(target: str) -> MachineModel:
    """Returns what the ranks of a target run on: an H100 for CUDA, a core each for all others."""
    if any(part.partition(":")[0] == "cuda" for part in target.replace(",", "+").split("+")):
        return MachineModel("an H100", H100, NVLINK4)
    return MachineModel("a core of a processor", CORE, SHARED_MEMORY)
