"""``lk.attention``: blocks of queries over tiles of keys and values, with the keys dealt out where queries are few.

How many queries there are may be open, as in a decoder that takes a prompt and then each token alone. Then there are
launches for few and for many, and the number decides which of them have blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from lowerkit.runtimes.cuda.image import Function, Launch
from lowerkit.targets.cuda.families.attention.combine_kernel import combining_warps, write_combine
from lowerkit.targets.cuda.families.attention.flash_kernel import Pass, write_attention
from lowerkit.targets.cuda.families.attention.problem import Attention, read_attention
from lowerkit.targets.cuda.families.attention.tiles import AttentionTile, choose_tile, count_splits, power
from lowerkit.targets.cuda.family import KernelFamily
from lowerkit.targets.cuda.planned import FastKernel, Kernel, PlannedRegion, kernel_name
from lowerkit.targets.cuda.triton.epilogue import Epilogue, read_epilogue
from lowerkit.targets.cuda.triton.kernel import TritonKernel
from lowerkit.targets.cuda.triton.tensors import Frame, pointer_types
from lowerkit.targets.plan import KernelExpr, Refusal, expression, product
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
        return _Planner(self.name, region, frame, problem, epilogue, level).plan()


class _Planner:
    """Gathers kernels and launches of a region."""

    def __init__(
        self, family: str, region: RegionView, frame: Frame, problem: Attention, epilogue: Epilogue, level: str
    ) -> None:
        self.family, self.region, self.frame, self.level = family, region, frame, level
        self.problem, self.epilogue = problem, epilogue
        self.temporaries: list[KernelExpr] = []
        self.launches: list[Launch] = []
        self.kernels: dict[str, Kernel] = {}
        self.notes: list[str] = []

    def plan(self) -> PlannedRegion:
        queries = self.problem.queries
        if isinstance(queries, int):
            self._add(queries <= FEW, 1)
        else:
            many = expression("min", expression("floordiv", queries, FEW + 1), 1)
            self._add(True, expression("sub", 1, many))
            self._add(False, many)
        sizes = [buffer.bytes for buffer in self.frame.buffers]
        count = len(self.region.operands)
        function = Function(sizes[:count], sizes[count:], self.temporaries, self.frame.dims, self.launches)
        return PlannedRegion(function, self.kernels, self.family, "; ".join(self.notes))

    def _add(self, few: bool, times: KernelExpr) -> None:
        """Adds the launches for few queries or for many; ``times`` is 0 at run time where it is the other's turn."""
        going = self._choose(few)
        tile, problem = going.tile, self.problem
        shares = "" if going.splits == 1 else f", keys dealt out to {_said(going.splits)} blocks"
        which = "" if times == 1 else f"up to {FEW} queries: " if few else "more: "
        self.notes.append(
            f"{which}tiles of {tile.rows} x {tile.keys}, {tile.warps} warps, {tile.stages} stages{shares}"
        )
        pairs = product([problem.batch, problem.heads, problem.queries, problem.keys, times])
        flops = product([pairs, 2 * (problem.depth + problem.value_depth) + 5])
        buffers = self.frame.buffers
        read = _sum([buffer.bytes for buffer in buffers[: len(self.region.operands)]])
        written = _sum([buffer.bytes for buffer in self.frame.results])
        if going.partial is None:
            source = write_attention(self.frame, going, self.epilogue)
            self._launch(
                going,
                source,
                tile.warps,
                tile.stages,
                product([going.blocks, times]),
                {"flops": flops, "read": product([read, times]), "written": product([written, times])},
            )
            return
        rows = product([going.matrices, going.rows, times])
        parts = product([rows, going.splits])
        self.temporaries += [product([parts, size]) for size in (4, 4, 4 * problem.value_depth)]
        moved = product([parts, 4 * (problem.value_depth + 2)])
        source = write_attention(self.frame, going, self.epilogue)
        self._launch(
            going,
            source,
            tile.warps,
            tile.stages,
            product([going.blocks, times]),
            {"flops": flops, "read": product([read, times]), "written": moved},
        )
        source = write_combine(self.frame, going, self.epilogue)
        self._launch(
            going,
            source,
            combining_warps(going),
            1,
            rows,
            {"flops": product([parts, 2 * problem.value_depth]), "read": moved, "written": product([written, times])},
        )

    def _choose(self, few: bool) -> Pass:
        problem = self.problem
        stacked = few and problem.group > 1
        outer = product([problem.batch, problem.key_heads if stacked else problem.heads])
        queries = (
            problem.queries if isinstance(problem.queries, int) or not few else FEW // 2 if problem.group > 1 else FEW
        )
        rows = expression("mul", queries, problem.group if stacked else 1)
        features = power(max(problem.depth, problem.value_depth))
        tile = choose_tile(
            problem.query.element, rows, problem.keys, outer, features, problem.mask is not None, self.level
        )
        going = Pass(problem, tile, stacked)
        if not few and not isinstance(problem.queries, int):
            return going
        splits = count_splits(product([going.matrices, going.tiles]), problem.keys)
        if splits == 1 or (problem.causal and few):
            return going
        first = len(self.frame.buffers)
        return Pass(problem, tile, stacked, splits, (first, first + 1, first + 2))

    def _launch(
        self, going: Pass, source: str, warps: int, stages: int, blocks: KernelExpr, costs: Mapping[str, KernelExpr]
    ) -> None:
        pointers = pointer_types(self.frame)
        numbers = list(range(len(pointers)))
        if going.partial is not None:
            numbers += [len(pointers) + len(self.temporaries) - 3 + each for each in range(3)]
            pointers += ("fp32",) * 3
        kernel = TritonKernel(self.family, source, pointers, self.frame.dims, warps, stages)
        name = kernel_name(kernel)
        self.kernels[name] = FastKernel(kernel)
        self.launches.append(Launch(name, numbers, blocks, 32 * warps, **costs))


def _said(splits: KernelExpr) -> str:
    return str(splits) if isinstance(splits, int) else "some"


def _sum(sizes: list[KernelExpr]) -> KernelExpr:
    total: KernelExpr = 0
    for size in sizes:
        total = expression("add", total, size)
    return total


__all__ = ["FEW", "AttentionFamily", "AttentionTile"]
