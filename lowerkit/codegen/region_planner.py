"""Gets the code of each region of a module, and of equal regions once."""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.codegen.shared_tables import SharedTables
from lowerkit.codegen.step_place import step_place
from lowerkit.mlir import ir
from lowerkit.passes.shard.invariance import is_invariant
from lowerkit.targets.ledger import Compile
from lowerkit.targets.plan import DeviceCode
from lowerkit.targets.region_view import RegionView


class RegionPlanner:
    """Remembers the views and the code of one module."""

    def __init__(self, operations: Sequence[ir.Operation], compile_region: Compile) -> None:
        self._compile = compile_region
        self._tables = SharedTables(operations)
        self._codes: dict[tuple[object, ...], DeviceCode] = {}
        self._views: dict[tuple[str, str], RegionView] = {}
        self._invariant = any(is_invariant(op) for op in operations[:1])

    def plan(self, op: ir.Operation, names: Sequence[str]) -> tuple[RegionView, DeviceCode]:
        """Returns a region as families see it, and the code for it.

        Args:
            op: an ``lk.region``.
            names: for each operand the weight that it is, ``""`` for an activation.
        """
        view = RegionView.from_region(op, names, location=step_place(op)[1], known=self._views)
        view = view.as_invariant() if self._invariant else view
        view = view.with_layouts(self._tables.layouts(view, lambda other, weights: self.plan(other, weights)[1]))
        if view.key not in self._codes:
            self._codes[view.key] = self._compile(view)
        return view, self._codes[view.key]
