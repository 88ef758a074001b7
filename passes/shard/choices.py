"""What a plan chooses for an op with weights, and why it cannot be so."""

from __future__ import annotations

from lowerkit.dialect.types import is_float
from lowerkit.errors import UnsupportedError
from lowerkit.mlir import ir
from lowerkit.passes.rewriting import element_of, shape_of, weight_symbol
from lowerkit.passes.shard.invariance import is_chunked
from lowerkit.passes.shard.plan import PlanEntry, ShardingPlan
from lowerkit.passes.shard.rules import product_axes
from lowerkit.passes.shard.shardings import PARTIAL, WHOLE, Placed, Split, divides
from lowerkit.passes.source_location import describe
from lowerkit.program.weights import WeightStore

_WITH_WEIGHTS = frozenset({"lk.conv", "lk.conv_transpose", "lk.integer_matmul", "lk.integer_conv"})
"""Ops with weights that a plan may name and that cannot be split."""


class Choices:
    """Asks a plan about the ops of a program, and writes down in its report what was found."""

    def __init__(self, plan: ShardingPlan, weights: WeightStore) -> None:
        self._plan = plan
        self._weights = weights
        self._problems: list[str] = []

    def require_possible(self) -> None:
        """Raises where the plan asks for what cannot be.

        Raises:
            UnsupportedError: LK4007, with every op that cannot be split as the plan says.
        """
        if self._problems:
            raise UnsupportedError(
                "LK4007",
                f"the plan splits {len(self._problems)} ops among {self._plan.ranks} ranks of {self._plan.axis!r} that "
                f"cannot be split: {self._problems[0]}",
                details=self._problems[1:],
                hint="give these modules the choice replicate, ahead of the pattern that names them, or another mesh",
            )

    def entry(self, op: ir.Operation) -> PlanEntry | None:
        """Returns the entry that names the module of an op, or one inside that owns a weight which the op reads.

        A weight that two modules share is that of whoever reads it.
        """
        module = describe(op).module_path
        symbols = [symbol for operand in op.operands if (symbol := weight_symbol(operand)) is not None]
        owners = [root.rpartition(".")[0] for symbol in symbols for root in self._roots(symbol)]
        paths = [module, *(owner for owner in owners if not module or owner.startswith(f"{module}."))]
        self._plan.report.modules.update(dict.fromkeys(path for path in paths if path))
        if not symbols:
            return None
        entry = self._plan.entry_for(paths)
        if entry is not None and entry.choice != "replicate" and op.name in _WITH_WEIGHTS:
            self._problem(op, f"{op.name} is not a product of floats or a table", entry)
        return entry

    def _roots(self, symbol: str) -> list[str]:
        parents = self._weights.parents(symbol)
        return [root for parent in parents for root in self._roots(parent)] if parents else [symbol]

    def product(self, op: ir.Operation, entry: PlanEntry | None) -> Placed | None:
        """How a product runs whose weight the plan splits."""
        weight = op.operands[1]
        if weight_symbol(weight) is None:
            return None
        (_, left_depth), (depth, columns) = product_axes(op)
        if entry is None or entry.choice == "replicate":
            self._plan.report.whole.append(describe(op).module_path)
            return None
        chunked = is_chunked(op)
        axis = columns if entry.choice != "row" else 0 if chunked else depth
        if len(shape_of(weight)) != 2 and not chunked:
            self._problem(op, f"its weight has {len(shape_of(weight))} dimensions", entry)
            return None
        if not self._may_split(op, weight, axis, entry):
            return None
        if entry.choice == "row" and chunked:
            return Placed((Split(0), Split(0)), Split(0))
        if entry.choice == "row":
            return Placed((Split(left_depth), Split(depth)), PARTIAL)
        return Placed((WHOLE, Split(columns)), Split(len(shape_of(op.results[0])) - 1))

    def splits_table(self, op: ir.Operation, entry: PlanEntry | None) -> bool:
        """Whether an op looks up in a table that the plan splits."""
        if (
            op.name != "lk.gather"
            or entry is None
            or entry.choice == "replicate"
            or weight_symbol(op.operands[0]) is None
        ):
            return False
        if entry.choice != "vocabulary":
            self._problem(op, "a table is split along its vocabulary", entry)
            return False
        if ir.IntegerAttr(op.attributes["axis"]).value != 0 or not is_float(element_of(op.operands[0])):
            self._problem(op, "only the rows of a table of floats are shared", entry)
            return False
        return self._may_split(op, op.operands[0], 0, entry)

    def _may_split(self, op: ir.Operation, weight: ir.Value, axis: int, entry: PlanEntry) -> bool:
        padded = entry.choice == "vocabulary" and shape_of(weight)[axis] >= self._plan.ranks
        if not padded and not divides(weight, axis, self._plan.ranks):
            self._problem(op, f"{shape_of(weight)[axis]} does not divide by {self._plan.ranks}", entry)
            return False
        self._note(op, entry)
        return True

    def _note(self, op: ir.Operation, entry: PlanEntry) -> None:
        self._plan.report.used.add(entry)
        self._plan.report.split.append((describe(op).module_path, entry.choice))

    def _problem(self, op: ir.Operation, reason: str, entry: PlanEntry) -> None:
        self._plan.report.used.add(entry)
        self._problems.append(f"{describe(op)}: {reason} ({entry.pattern!r}: {entry.choice})")
