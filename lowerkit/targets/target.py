"""What a vendor writes: which ops a target takes, and the code that its device runs for them.

A package adds a target by the entry point group ``lowerkit.targets``: ``acme_npu = "acme_npu.target:AcmeNpu"``. The
CPU is written against the same class. The device that runs the code is the other half
(:mod:`lowerkit.runtimes.device`); it bears the same name.

Steps of a compilation: each op of stage ``canonical`` is offered to :meth:`Target.accepts`; what it takes becomes
functions, as large as can be, which go to :meth:`Target.compile` (of a target by regions, first through
:meth:`Target.passes`); at the end :meth:`Target.link` makes one block of bytes of it all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from lowerkit.runtimes.device import known_devices
from lowerkit.targets.capabilities import Capabilities, Throughput
from lowerkit.targets.op_view import OpView
from lowerkit.targets.plan import DeviceCode, LinkedCode, LinkSettings, Refusal
from lowerkit.targets.region_view import RegionView
from lowerkit.targets.witness import Array, Witness

if TYPE_CHECKING:
    from lowerkit.passes.base import Pass

__all__ = ["Accept", "DeviceCode", "LinkSettings", "LinkedCode", "OpView", "Refusal", "RegionView", "Target", "Witness"]


@dataclass(frozen=True)
class Accept:
    """The target takes an op."""


class Target(ABC):
    """A target at one level. Stateless: equal questions get equal answers.

    Attributes:
        name: of the target and of its device.
        levels: the levels it can be asked for; the first one where none is named.
        unit: what :meth:`compile` is given: a whole ``function``, or each fused ``region`` of it, which then are
            launched one after the other.
        permits: what may be computed less exactly than the model says where a user allows it: name and words for it.
        allowed: which of these the user allowed.
        several_levels: whether one code may be for several levels: ``level`` is then their names with commas between.
    """

    name: ClassVar[str]
    levels: ClassVar[tuple[str, ...]] = ()
    several_levels: ClassVar[bool] = False
    permits: ClassVar[Mapping[str, str]] = {}
    allowed: frozenset[str] = frozenset()
    unit: ClassVar[Literal["function", "region"]] = "function"

    def __init__(self, level: str = "") -> None:
        self.level = level or next(iter(self.levels), "")

    @abstractmethod
    def capabilities(self, level: str) -> Capabilities:
        """Returns what the hardware of ``level`` can do."""

    def accepts(self, op: OpView) -> Accept | Refusal:
        """Returns whether the target takes ``op``, else why not, in words for the ledger."""
        reason = self.capabilities(self.level).refusal(op)
        return Accept() if reason is None else Refusal(reason)

    def passes(self, stage: str) -> Sequence[Pass]:
        """Returns the passes of a target by regions that lead its functions to ``stage`` (``layout``, ``fused``)."""
        return []

    @abstractmethod
    def compile(self, function: RegionView) -> DeviceCode | Refusal:
        """Returns the code of a function whose ops were accepted, or why there is none after all.

        ``OpList.of(function.block)`` reads it without MLIR.
        """

    def link(self, codes: Sequence[DeviceCode], settings: LinkSettings) -> LinkedCode:
        """Makes one block of bytes of all codes: one after the other."""
        entries: list[int] = []
        sizes: list[int] = []
        data = bytearray()
        for code in codes:
            payload = code.payload.encode() if isinstance(code.payload, str) else code.payload
            entries.append(len(data))
            sizes.append(len(payload))
            data += payload
        return LinkedCode(bytes(data), entries, sizes)

    def witnesses(self, region: RegionView, inputs: Sequence[Array]) -> Sequence[Witness]:
        """Returns what each layer of the target gives for a region alone, so that a bisection can name the wrong one.

        Args:
            region: what :meth:`compile` was given.
            inputs: an array for each operand, as the region says.
        """
        return ()

    def features(self) -> Sequence[str]:
        """Returns what the machine that runs the code must have, in the words of its loader."""
        return ()

    def runs_here(self) -> bool:
        """Returns whether this machine can run the code."""
        return self.name in known_devices()

    def cost(self, ops: Sequence[OpView], transfer_bytes: int) -> float:
        """Returns the seconds that a function of ``ops`` takes here, its inputs and outputs on the way included."""
        speed = self.capabilities(self.level).throughput or Throughput()
        moved = sum(value.nbytes for op in ops for value in op.results)
        work = max(sum(op.flops for op in ops) / speed.flops, moved / speed.bytes)
        return speed.launch + work + transfer_bytes / speed.link_bytes
