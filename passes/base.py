"""What a pass is: a frozen dataclass with a kebab-case name, typed options and one method.

A pass lives in its own file; file, pass name and test share one stem::

    passes/canonicalize/fold_constants.py   FoldConstants.name == "fold-constants"
    tests/filecheck/canonicalize/test_fold_constants.py

Options are the dataclass's fields and become ``fold-constants{bound=4096}`` on the command line. ``run`` checks the
pass's precondition, changes the module in place and says whether it changed anything.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from lowerkit.mlir import ir
    from lowerkit.passes.partition.accelerator import Accelerator, Placement
    from lowerkit.passes.shard.plan import ShardingPlan
    from lowerkit.program.weights import WeightStore


@dataclass
class PassContext:
    """What a pass may know beside the module.

    Attributes:
        weights: the store that ``lk.weight`` symbols name.
        remarks: lines for the user: what was refused or left alone, and why. Never dropped silently.
        refusals: op and location -> why the last rule that was offered the op did not take it.
        accelerators: whom ``partition`` offers ops to, in this order.
        keep_on_host: ops, by their name in the IR or in the captured graph, that no accelerator is offered.
        placements: where each op runs, as ``partition`` has decided.
        sharding: the plan by which the program is split among the ranks of a mesh; None: it is for one device.
        input_names: of the arguments of ``@main``, as the user knows them; empty where nobody named them.
        extent_ranges: (argument of ``@main``, axis) -> (minimum, maximum or None) of an extent that is a symbolic dim.
    """

    weights: WeightStore
    remarks: list[str] = field(default_factory=list[str])
    refusals: dict[str, str] = field(default_factory=dict[str, str])
    accelerators: Sequence[Accelerator] = ()
    keep_on_host: frozenset[str] = frozenset()
    placements: list[Placement] = field(default_factory=list["Placement"])
    sharding: ShardingPlan | None = None
    input_names: Sequence[str] = ()
    extent_ranges: Mapping[tuple[int, int], tuple[int, int | None]] = field(
        default_factory=dict[tuple[int, int], tuple[int, int | None]]
    )

    def remark(self, pass_name: str, text: str) -> None:
        """Records a line that the user sees with ``-v`` and in ``lowerkit inspect``."""
        self.remarks.append(f"{pass_name}: {text}")


@dataclass(frozen=True)
class Pass(ABC):
    """One transformation of a module. Subclasses are frozen dataclasses; their fields are the options."""

    name: ClassVar[str]

    @abstractmethod
    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Transforms ``module`` in place; returns whether anything changed.

        Raises:
            PassError: the precondition does not hold (LK3004), or the pass failed (LK3001).
            UnsupportedError: the module holds what cannot be compiled.
        """
