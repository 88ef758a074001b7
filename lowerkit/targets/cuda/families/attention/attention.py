"""``lk.attention``: blocks of queries over tiles of keys and values, with the keys dealt out where queries are few.

How many queries there are may be open, as in a decoder that takes a prompt and then each token alone. Then there are
launches for few and for many, and the number decides which of them have blocks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from lowerkit.targets.cuda.families.attention.combine_kernel import combining_warps, write_combine
from lowerkit.targets.cuda.families.attention.flash_kernel import write_attention
from lowerkit.targets.cuda.families.attention.places import Pass
from lowerkit.targets.cuda.families.attention.problem import Attention, read_attention
from lowerkit.targets.cuda.families.attention.tiles import asked_attention, choose_tile, count_splits, power
from lowerkit.targets.cuda.family import KernelFamily
from lowerkit.targets.cuda.model.measured_tiles import asked_text
from lowerkit.targets.cuda.planned import PlannedLaunch, PlannedRegion, planned_region
from lowerkit.targets.cuda.triton.epilogue import Epilogue, read_epilogue
from lowerkit.targets.cuda.triton.kernel import TritonKernel
from lowerkit.targets.cuda.triton.tensors import Frame, pointer_types
from lowerkit.targets.plan import KernelExpr, Refusal, expression, product, total
from lowerkit.targets.region_view import RegionView

FEW = 16
"""Up to so many queries those of a group are one matrix."""


class AttentionFamily(KernelFamily):
    """``lk.attention`` of f32, f16 and bf16; heads and features are static, batch, queries and keys may be open."""

    name: ClassVar[str] = "attention"

    def plan(self, region: RegionView, level: str) -> PlannedRegion | Refusal:
        """See :meth:`KernelFamily.plan`."""
        frame = Frame(region)
        problem = read_attention(region, frame)
        if isinstance(problem, Refusal):
            return problem
        assert region.anchor is not None, "it was read"
        epilogue = read_epilogue(region, frame, region.anchor.operation)
        if isinstance(epilogue, Refusal):
            return epilogue
        plan = _Plan(self.name, frame, problem, epilogue)
        queries = problem.queries
        if isinstance(queries, int):
            plan.add(choose_pass(problem, queries <= FEW, level), 1)
        else:
            many = expression("min", expression("floordiv", queries, FEW + 1), 1)
            plan.notes.append(f"up to {FEW} queries:")
            plan.add(choose_pass(problem, True, level), expression("sub", 1, many))
            plan.notes.append("more:")
            plan.add(choose_pass(problem, False, level), many)
        return planned_region(frame, plan.launches, plan.temporaries, note=" ".join(plan.notes))


def choose_pass(problem: Attention, few: bool, level: str) -> Pass:
    """Returns how to go over an attention; ``few`` where there are no more than :data:`FEW` queries."""
    stacked = few and problem.group > 1
    outer = product([problem.batch, problem.key_heads if stacked else problem.heads])
    queries = problem.queries
    if few and not isinstance(queries, int):
        queries = 1 if stacked else FEW
    rows = expression("mul", queries, problem.group if stacked else 1)
    features = power(max(problem.depth, problem.value_depth))
    element, masked = problem.query.element, problem.mask is not None
    asked = asked_attention(element, rows, problem.keys, outer, features, masked)
    going = Pass(problem, choose_tile(asked, level), stacked, asked)
    if (not few and not isinstance(problem.queries, int)) or (few and problem.causal):
        return going
    seen = expression("min", problem.queries, problem.keys) if problem.causal else problem.keys
    return replace(going, splits=count_splits(product([going.matrices, going.tiles]), seen))


class _Plan:
    """Gathers launches and temporaries."""

    def __init__(self, family: str, frame: Frame, problem: Attention, epilogue: Epilogue) -> None:
        self.family, self.frame, self.problem, self.epilogue = family, frame, problem, epilogue
        self.launches: list[PlannedLaunch] = []
        self.temporaries: list[KernelExpr] = []
        self.notes: list[str] = []

    def add(self, going: Pass, times: KernelExpr) -> None:
        """Adds the launches of a pass; ``times`` is 0 at run time where it is another's turn."""
        tile, problem = going.tile, self.problem
        asked = asked_text(going.asked) if going.asked is not None else ""
        self.notes.append(f"tiles of {tile.rows} x {tile.keys}, {tile.warps} warps, {tile.stages} stages")
        scores = product([problem.batch, problem.heads, problem.seen_pairs, times])
        flops = product([scores, 2 * (problem.depth + problem.value_depth) + 5])
        count = len(self.frame.region.operands)
        read = product([total([buffer.bytes for buffer in self.frame.buffers[:count]]), times])
        written = product([total([buffer.bytes for buffer in self.frame.results]), times])
        rows = product([problem.batch, problem.heads, problem.queries, times])
        blocks = product([going.blocks, times])
        numbers, types = list(range(len(self.frame.buffers))), pointer_types(self.frame)
        if going.splits == 1:
            kernel = self._kernel(write_attention(self.frame, going, self.epilogue), types, tile.warps, tile.stages)
            self.launches.append(PlannedLaunch(kernel, numbers, blocks, flops, read, written, scores, asked=asked))
            return
        self.notes.append(f"with keys over {going.splits if isinstance(going.splits, int) else 'several'} blocks")
        parts = product([rows, going.splits])
        numbers += [len(numbers) + len(self.temporaries) + each for each in range(3)]
        types += ("fp32",) * 3
        self.temporaries += [product([parts, size]) for size in (4, 4, 4 * problem.value_depth)]
        moved = product([parts, 4 * (problem.value_depth + 2)])
        kernel = self._kernel(write_attention(self.frame, going, self.epilogue), types, tile.warps, tile.stages)
        self.launches.append(PlannedLaunch(kernel, numbers, blocks, flops, read, moved, scores, asked=asked))
        kernel = self._kernel(write_combine(self.frame, going, self.epilogue), types, combining_warps(going), 1)
        sums = product([parts, 2 * problem.value_depth])
        self.launches.append(PlannedLaunch(kernel, numbers, rows, sums, moved, written))

    def _kernel(self, source: str, types: tuple[str, ...], warps: int, stages: int) -> TritonKernel:
        return TritonKernel(self.family, source, types, self.frame.dims, warps, stages)
