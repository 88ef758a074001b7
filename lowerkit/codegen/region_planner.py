"""Chooses a kernel for each region of a module, and for equal regions once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lowerkit.codegen.shared_tables import SharedTables
from lowerkit.codegen.step_place import step_place
from lowerkit.mlir import ir
from lowerkit.targets.ledger import Select, Selection
from lowerkit.targets.region_view import RegionView

if TYPE_CHECKING:
    from lowerkit.targets.cpu.levels import CpuFeatures


class RegionPlanner:
    """Remembers the views and selections of one module."""

    def __init__(self, operations: Sequence[ir.Operation], select: Select, cpu: CpuFeatures) -> None:
        self._select = select
        self._cpu = cpu
        self._tables = SharedTables(operations)
        self._selections: dict[tuple[object, ...], Selection] = {}
        self._views: dict[tuple[str, str], RegionView] = {}

    def plan(self, op: ir.Operation, names: Sequence[str]) -> tuple[RegionView, Selection]:
        """Returns a region as families see it, and what was chosen for it.

        Args:
            op: an ``lk.region``.
            names: for each operand the weight that it is, ``""`` for an activation.
        """
        view = RegionView.from_region(op, names, location=step_place(op)[1], known=self._views)
        view = view.with_layouts(self._tables.layouts(view, lambda other, weights: self.plan(other, weights)[1]))
        if view.key not in self._selections:
            self._selections[view.key] = self._select(view, self._cpu)
        return view, self._selections[view.key]
