"""What the kernels of a compiled program take of a card, launch by launch: read from the image, priced by the model.

Operations and bytes of a launch are those that its writer states. Where it states none, they are those of its step,
if that is one launch; else the bytes are those of its buffers, and the operations of the step are dealt out by them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from lowerkit.runtimes.cuda.image import Code, Function, ImageError, Launch, Variant, unpack
from lowerkit.runtimes.cuda.levels import capability_of, choose_level, levels_of
from lowerkit.runtimes.expressions import evaluate
from lowerkit.runtimes.manifest import ProgramSpec, Step
from lowerkit.targets.cuda.model.arithmetic import arithmetic_of
from lowerkit.targets.cuda.model.cards import Card, card_of
from lowerkit.targets.cuda.model.estimate import TERMS, Prediction, Work, estimate
from lowerkit.targets.cuda.model.products import ELEMENTS, GemmTile, Product, operand_bytes, product_work

DEVICE = "cuda"


class LaunchReport(msgspec.Struct, frozen=True, kw_only=True):
    """One launch on a card.

    Attributes:
        step, location: of the program.
        kernel, family: which one, and what wrote it.
        arithmetic: see :func:`~.arithmetic.arithmetic_of`.
        registers, spills: of a thread; 0 where ptxas was not asked.
        shared: bytes of a block, static and dynamic.
        blocks, threads: of the grid, of a block.
        flops, bytes: operations, and bytes of device memory.
        stated: who says so: ``launch``, ``step`` or ``buffers``.
        prediction: on the card.
    """

    step: str
    location: str
    kernel: str
    family: str
    arithmetic: str
    registers: int
    spills: int
    shared: int
    blocks: int
    threads: int
    flops: int
    bytes: int
    stated: str
    prediction: Prediction


class ProgramReport(msgspec.Struct, frozen=True):
    """All launches of a program on a card, each step once, at one choice of the open extents.

    Attributes:
        card: it; level: of the code that it runs.
        launches: in order.
        elsewhere: steps that are no launch: on the host, copies between both.
    """

    card: Card
    level: str
    launches: Sequence[LaunchReport]
    elsewhere: int

    @property
    def floor(self) -> float:
        """Seconds of all rooflines."""
        return sum(each.prediction.floor for each in self.launches)

    @property
    def predicted(self) -> float:
        """Predicted seconds of all launches, one after the other."""
        return sum(each.prediction.total for each in self.launches)

    @property
    def terms(self) -> dict[str, float]:
        """Predicted seconds by term."""
        shares = [each.prediction.shares() for each in self.launches]
        return {name: sum(each[name] for each in shares) for name in TERMS}


def default_card(level: str) -> Card:
    """Returns the card that stands for the latest of some levels, ``sm_80,sm_90``."""
    return card_of(max(levels_of(level), key=capability_of))


def report_program(program: ProgramSpec, data: bytes, values: Mapping[str, int], card: Card) -> ProgramReport:
    """Returns the launches of a program.

    Args:
        program: one with steps for CUDA.
        data: its code for CUDA.
        values: of the symbolic dims.
        card: where it is to run.

    Raises:
        ImageError: the code is not what the target wrote.
        ExpressionError: a size in it cannot be worked out.
        RuntimeFault: LK8020, the card runs none of the levels.
        ValueError: a block does not fit on the card.
    """
    blobs: dict[str, bytes] = {}
    launches: list[LaunchReport] = []
    level, elsewhere = "", 0
    for step in program.steps:
        entry = program.kernels[step.kernel] if step.kernel >= 0 else None
        if entry is None or entry.device != DEVICE:
            elsewhere += 1
            continue
        code = unpack(data[entry.offset : entry.offset + entry.size], blobs)
        blobs[code.digest] = code.blob
        bound = {each.level: any(place.kernel.bound for place in each.kernels.values()) for each in code.variants}
        level = choose_level(bound, capability_of(card.level))
        variant = next(each for each in code.variants if each.level == level)
        launches += _launches(step, code, variant, values, card)
    return ProgramReport(card, level, launches, elsewhere)


def _launches(step: Step, code: Code, variant: Variant, values: Mapping[str, int], card: Card) -> list[LaunchReport]:
    dims = [evaluate(each, values) for each in step.dims]
    function = variant.function
    started = [(each, blocks) for each in function.launches if (blocks := evaluate(each.blocks, {}, dims)) > 0]
    buffers = [sum(_buffer_bytes(function, each, dims)) for each, _ in started]
    flops, moved = evaluate(step.flops, values), evaluate(step.bytes, values)
    left = flops - sum(evaluate(each.flops, {}, dims) for each, _ in started)
    silent = sum(size for (each, _), size in zip(started, buffers, strict=True) if not evaluate(each.flops, {}, dims))
    reports: list[LaunchReport] = []
    for (launch, blocks), size in zip(started, buffers, strict=True):
        own, bytes_ = evaluate(launch.flops, {}, dims), evaluate(("add", launch.read, launch.written), {}, dims)
        stated = "launch"
        if not bytes_:
            stated, bytes_ = ("step", moved) if len(started) == 1 and moved else ("buffers", size)
        if not own and left > 0:
            own = left if len(started) == 1 else left * size // max(silent, 1)
        reports.append(_report(step, code, variant, launch, dims, (own, bytes_, blocks, stated), card))
    return reports


def _report(
    step: Step, code: Code, variant: Variant, launch: Launch, dims: Sequence[int], amounts: tuple[int, int, int, str],
    card: Card,
) -> LaunchReport:  # fmt: skip
    flops, moved, blocks, stated = amounts
    kernel = variant.kernels[launch.kernel].kernel
    arithmetic, old = arithmetic_of(code.compiled(variant, launch.kernel).ptx.decode(errors="replace"))
    shared = kernel.shared + launch.shared
    work = Work(
        kind=arithmetic,
        flops=flops,
        exponentials=evaluate(launch.exponentials, {}, dims),
        moved=moved,
        between=min(_between(variant.function, launch, dims), moved),
        blocks=blocks,
        threads=launch.block,
        registers=kernel.registers,
        shared=shared,
        serial=kernel.family == "threads",
        old_matrix=old,
    )
    if launch.product is not None:
        work = _of_product(work, launch, dims, card)
    return LaunchReport(
        step=step.name,
        location=step.location,
        kernel=launch.kernel,
        family=kernel.family,
        arithmetic=arithmetic,
        registers=kernel.registers,
        spills=kernel.spills,
        shared=shared,
        blocks=blocks,
        threads=launch.block,
        flops=flops,
        bytes=moved,
        stated=stated,
        prediction=estimate(card, work),
    )


def _of_product(work: Work, launch: Launch, dims: Sequence[int], card: Card) -> Work:
    """Returns the work with what tiles of a product add to it; what is known of the launch stays."""
    assert launch.product is not None, "the launch is of a product"
    if launch.product.element not in ELEMENTS:
        raise ImageError(f"a product of elements {launch.product.element!r}")
    rows, columns, depth, batch = (evaluate(size, {}, dims) for size in launch.product.sizes)
    tiles = batch * -(-rows // launch.product.tile[0]) * -(-columns // launch.product.tile[1])
    split = max(1, work.blocks // max(tiles, 1))
    described, several = bool(launch.maps), bool(launch.maps) and work.blocks < tiles
    tile = GemmTile(
        *launch.product.tile, launch.block // 32, launch.product.stages, split, tma=described, persistent=several
    )
    product = Product(rows, columns, depth, batch, launch.product.element)
    planned = product_work(product, tile, card, min(operand_bytes(product), evaluate(launch.read, {}, dims)) or None)
    return msgspec.structs.replace(
        work,
        blocks=planned.blocks if several else work.blocks,
        issued=planned.issued,
        fetched=max(planned.fetched, work.moved),
        loaded=max(planned.loaded, work.moved),
        stored=planned.stored,
        staged=planned.staged,
        steps=planned.steps,
        stages=planned.stages,
        persistent=planned.persistent,
    )


def _between(function: Function, launch: Launch, dims: Sequence[int]) -> int:
    """Returns the bytes of temporaries that a launch has."""
    first = len(function.operands) + len(function.results)
    numbers = sorted(each for each in launch.buffers if each >= first)
    return sum(evaluate(function.temporaries[number - first], {}, dims) for number in numbers)


def _buffer_bytes(function: Function, launch: Launch, dims: Sequence[int]) -> list[int]:
    sizes = [*function.operands, *function.results, *function.temporaries]
    return [evaluate(sizes[number], {}, dims) for number in sorted(launch.buffers)]
