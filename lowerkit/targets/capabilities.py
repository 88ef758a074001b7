"""What a target says of its hardware: the ops that it takes, and how fast it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lowerkit.targets.op_view import OpView, TensorType

ANY_RANK = (0, 32)


@dataclass(frozen=True)
class OpSupport:
    """Under which conditions a target takes an op.

    Attributes:
        dtypes: element types of every operand and result, in the spelling of MLIR (``f32``, ``i8``).
        ranks: least and greatest rank of every operand and result.
        parameters: attribute name -> the values that the op may have there, such as ``{"channels_last": (False,)}``;
            attributes that are not named may have any.
    """

    dtypes: frozenset[str]
    ranks: tuple[int, int] = ANY_RANK
    parameters: Mapping[str, tuple[object, ...]] = field(default_factory=dict[str, tuple[object, ...]])

    def refusal(self, op: OpView) -> str | None:
        """Returns why ``op`` is not taken, in words; None where it is."""
        for value in (*op.operands, *op.results):
            if value.dtype not in self.dtypes:
                return f"{value}, not {' or '.join(sorted(self.dtypes))}"
            if not self.ranks[0] <= len(value.shape) <= self.ranks[1]:
                return f"rank {len(value.shape)} of {value}, not {self.ranks[0]} to {self.ranks[1]}"
        for name, allowed in self.parameters.items():
            if op.parameters.get(name) not in allowed:
                return f"{name} = {op.parameters.get(name)}, not {' or '.join(map(str, allowed))}"
        return None


@dataclass(frozen=True)
class Throughput:
    """How fast a target is, for the decision what is worth a transfer; the defaults are a small accelerator's.

    Attributes:
        flops: floating-point or integer operations per second.
        bytes: of its own memory per second.
        link_bytes: to and from the host per second.
        launch: seconds for each launch.
    """

    flops: float = 1e12
    bytes: float = 1e11
    link_bytes: float = 1e10
    launch: float = 5e-6


@dataclass(frozen=True)
class Capabilities:
    """What one level of a target can do.

    Attributes:
        ops: by name (``lk.conv``, ``reshape``; the names of :class:`~lowerkit.targets.op_view.OpView`).
        scalars: the scalar ops that elementwise ops may consist of (``arith.addf``, ``relu``).
        elementwise: under which conditions elementwise ops are taken.
        open_extents: whether extents may be known at run time only.
        throughput: for decisions; None takes whatever holds a product or another lk op.
    """

    ops: Mapping[str, OpSupport] = field(default_factory=dict[str, OpSupport])
    scalars: frozenset[str] = frozenset()
    elementwise: OpSupport = OpSupport(frozenset({"f32"}))
    open_extents: bool = False
    throughput: Throughput | None = None

    def refusal(self, op: OpView) -> str | None:
        """Returns why ``op`` is not taken, in words; None where it is."""
        support = self.ops.get(op.name)
        if op.name == "elementwise":
            missing = sorted({scalar.name for scalar in op.scalars if scalar.name != "constant"} - self.scalars)
            if missing:
                return f"elementwise {', '.join(missing)}"
            support = self.elementwise
        elif support is None:
            return f"no {op.name}"
        if not self.open_extents and any(value.is_open for value in (*op.operands, *op.results)):
            return f"open extents: {_first_open(op)}"
        return support.refusal(op)


def _first_open(op: OpView) -> TensorType:
    return next(value for value in (*op.operands, *op.results) if value.is_open)
