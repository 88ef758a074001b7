"""What a plan chooses for an op with weights, for modules and for inputs, and why it cannot be so."""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.dialect.types import is_float
from lowerkit.errors import UnsupportedError
from lowerkit.mlir import ir
from lowerkit.passes.rewriting import element_of, shape_of, tensor_type, weight_symbol
from lowerkit.passes.shard.invariance import is_chunked
from lowerkit.passes.shard.loops.nest import Nest
from lowerkit.passes.shard.loops.table import PRODUCTS
from lowerkit.passes.shard.plan import PlanEntry, ShardingPlan
from lowerkit.passes.shard.shardings import WHOLE, Sharding, Split, divides
from lowerkit.passes.shard.steps import Step
from lowerkit.passes.source_location import describe
from lowerkit.program.weights import WeightStore

_OF_WEIGHTS = frozenset({"column", "row", "vocabulary", "expert"})
_PADDED = frozenset({"vocabulary"})
"""Choices whose weights get zeros behind their end where an extent does not divide."""


class Choices:
    """Asks a plan about the ops of a program, and writes down in its report what was found."""

    def __init__(self, plan: ShardingPlan, weights: WeightStore) -> None:
        self.plan = plan
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
                f"the plan splits {len(self._problems)} ops among {self.plan.ranks} ranks of {self.plan.axis!r} that "
                f"cannot be split: {self._problems[0]}",
                details=self._problems[1:],
                hint="give these modules the choice replicate, ahead of the pattern that names them, or another mesh",
            )

    def entry(self, op: ir.Operation) -> PlanEntry | None:
        """Returns the entry that names the module of an op, one inside that owns a weight which the op reads, or this.

        A weight that two modules share is that of whoever reads it.
        """
        paths, names = self.named(op)
        self.plan.report.modules.update(dict.fromkeys(path for path in paths if path))
        return self.plan.entry_for([*paths, *names]) if names else None

    def named(self, op: ir.Operation) -> tuple[list[str], list[str]]:
        """Returns what a plan may call an op: paths of modules, outer ones first, and the weights that it reads."""
        module = describe(op).module_path
        symbols = [symbol for operand in op.operands if (symbol := weight_symbol(operand)) is not None]
        names = [root for symbol in symbols for root in self._roots(symbol)]
        owners = [name.rpartition(".")[0] for name in names]
        return [module, *(owner for owner in owners if not module or owner.startswith(f"{module}."))], names

    def _roots(self, symbol: str) -> list[str]:
        parents = self._weights.parents(symbol)
        return [root for parent in parents for root in self._roots(parent)] if parents else [symbol]

    def inputs(self, arguments: Sequence[ir.Value], names: Sequence[str]) -> dict[ir.Value, Sharding]:
        """Returns how inputs are held that the plan splits along their first dimension."""
        found: dict[ir.Value, Sharding] = {}
        for argument, name in zip(arguments, names, strict=False):
            self.plan.report.inputs.append(name)
            entry = next((each for each in self.plan.entries if each.choice == "batch" and each.names(name)), None)
            if entry is None:
                continue
            self.plan.report.used.add(entry)
            shape = shape_of(argument)
            if shape and divides(argument, 0, self.plan.ranks):
                found[argument] = Split(0)
            else:
                why = f"{_extent(shape[0])} does not divide by {self.plan.ranks}" if shape else "it has no dimensions"
                self._problems.append(f"input {name}: {why} ({entry.pattern!r}: {entry.choice})")
        return found

    def fixed(self, op: ir.Operation, nest: Nest | None) -> Step | None:
        """Returns what becomes of an op of which the plan says something; None for all others.

        A product whose weight is to stay whole is ``whole``: it may still run on slices of what is no weight.
        """
        entry = self.entry(op)
        if entry is not None and entry.choice == "replicate" and op.name in PRODUCTS:
            return Step("whole")
        if op.name == "lk.gather" and entry is not None and self._splits_table(op, entry):
            return Step("look_up")
        if entry is not None and entry.choice in _OF_WEIGHTS and op.name in PRODUCTS and nest is not None:
            return self._product(op, nest, entry)
        if nest is not None and any(each.choice == "sequence" for each in self.plan.entries):
            return self._along_sequence(op, nest)
        return None

    def _product(self, op: ir.Operation, nest: Nest, entry: PlanEntry) -> Step | None:
        """How a product runs whose weight the plan splits."""
        weight = op.operands[1]
        if weight_symbol(weight) is None:
            return None
        if self.plan.ranks == 1:
            self._note(op, entry)
            return None
        loop = self._loop(op, nest, entry)
        axis = None if loop is None else nest.axis_in(1, loop)
        found = None if loop is None else nest.placed_along(loop)
        if loop is None or axis is None or found is None:
            kind = "x".join(map(_extent, shape_of(weight)))
            self._problem(op, f"its weight of {kind} has no dimension that {entry.choice} splits", entry)
            return None
        # A convolution is split by its groups; then its input is, too, and that has no padding.
        if not self._may_split(op, nest.loops[loop].extent, entry, may_pad=found.operands[0] == WHOLE):
            return None
        return Step("run", found)

    def _loop(self, op: ir.Operation, nest: Nest, entry: PlanEntry) -> int | None:
        """The loop of a product that a choice shares among the ranks."""
        if entry.choice == "row":
            if is_chunked(op):
                return nest.loop_of(1, 0)
            summed = [number for number, loop in enumerate(nest.loops) if loop.kind == "sum"]
            return summed[0] if summed else None
        if entry.choice == "expert":
            return nest.loop_of(1, 0) if len(shape_of(op.operands[1])) > 2 and op.name.endswith("matmul") else None
        rank = len(shape_of(op.results[0]))
        second = "channels_last" in op.attributes and not ir.BoolAttr(op.attributes["channels_last"]).value
        return nest.loop_of_result(0, 1 if second else rank - 1)

    def _splits_table(self, op: ir.Operation, entry: PlanEntry) -> bool:
        """Whether an op looks up in a table that the plan splits."""
        if entry.choice not in _OF_WEIGHTS or weight_symbol(op.operands[0]) is None:
            return False
        if entry.choice != "vocabulary":
            self._problem(op, "a table is split along its vocabulary", entry)
            return False
        if ir.IntegerAttr(op.attributes["axis"]).value != 0 or not is_float(element_of(op.operands[0])):
            self._problem(op, "only the rows of a table of floats are shared", entry)
            return False
        return self._may_split(op, shape_of(op.operands[0])[0], entry)

    def _along_sequence(self, op: ir.Operation, nest: Nest) -> Step | None:
        """How an op runs of a module that runs on slices along the sequence, which stands before the features."""
        path = describe(op).module_path
        entry = self.plan.entry_for([path]) if path else None
        if entry is None or entry.choice != "sequence" or not len(op.operands):
            return None
        if op.name in ("lk.collective_start", "lk.collective_done"):
            return None  # along another axis, on what the ops around it are given
        kind = tensor_type(op.operands[0])
        loop = nest.loop_of(0, kind.rank - 2) if kind is not None and kind.rank > 1 else None
        if loop is None or nest.loops[loop].kind != "parallel":
            return None
        found = nest.along(loop, self.plan.ranks)
        if found is None:
            self._problem(op, f"{_extent(nest.loops[loop].extent)} does not divide by {self.plan.ranks}", entry)
            return None
        self._note(op, entry)
        return Step("run", found)

    def _may_split(self, op: ir.Operation, extent: int, entry: PlanEntry, *, may_pad: bool = True) -> bool:
        padded = may_pad and entry.choice in _PADDED and extent >= self.plan.ranks
        if not padded and not (extent > 0 and extent % self.plan.ranks == 0):
            self._problem(op, f"{_extent(extent)} does not divide by {self.plan.ranks}", entry)
            return False
        self._note(op, entry)
        return True

    def _note(self, op: ir.Operation, entry: PlanEntry) -> None:
        self.plan.report.used.add(entry)
        self.plan.report.split.append((describe(op).module_path, entry.choice))

    def _problem(self, op: ir.Operation, reason: str, entry: PlanEntry) -> None:
        self.plan.report.used.add(entry)
        self._problems.append(f"{describe(op)}: {reason} ({entry.pattern!r}: {entry.choice})")


def _extent(extent: int) -> str:
    return str(extent) if extent >= 0 else "an unknown extent"
