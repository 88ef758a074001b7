"""Measures tiles of a model's products on a card: the model is compiled with one candidate after the other.

Each round gives every product its next candidate, so that kernels are measured as they are: with the layouts, batches
and epilogues of the model. Open extents have the size that tiles are chosen for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from lowerkit.compiled import CompileOptions
from lowerkit.errors import CodegenError
from lowerkit.runtimes.cuda.device import CudaDevice
from lowerkit.runtimes.cuda.image import Function, unpack
from lowerkit.runtimes.cuda.levels import choose_level
from lowerkit.runtimes.expressions import evaluate
from lowerkit.runtimes.manifest import ProgramSpec, Step
from lowerkit.targets.cuda.families.gemm_tiles import OPEN, asked_product
from lowerkit.targets.cuda.model.launches import DEVICE
from lowerkit.targets.cuda.model.measured_tiles import MeasuredTile, using_tiles
from lowerkit.targets.cuda.model.products import Candidate, GemmTile, Product, shortlist

if TYPE_CHECKING:
    from lowerkit.codegen.assemble import CompiledParts
    from lowerkit.program.program import Program

_WARM, _ROUNDS, _ROUND_SECONDS = 2, 3, 0.01
_LEAST, _MOST = 3, 200  # launches of a round


class Trial(msgspec.Struct, frozen=True):
    """A tile of a product, measured; ``seconds`` is 0 where it did not run, ``problem`` says why."""

    level: str
    product: Product
    tile: GemmTile
    predicted: float
    seconds: float
    problem: str = ""


class _Place(msgspec.Struct, frozen=True):
    """A function of a product: its code, its launches, and its dims."""

    code: bytes
    function: Function
    dims: tuple[int, ...]
    split: bool


def tune_products(
    program: Program, options: CompileOptions, device: CudaDevice, count: int, show: Callable[[str], None]
) -> list[Trial]:
    """Measures candidates of each product of a program.

    Args:
        program: captured; it is lowered in place.
        options: how to compile; the accelerators hold CUDA.
        device: where to measure.
        count: candidates of a product, the predicted best included.
        show: told what runs.

    Raises:
        LowerkitError: the program does not compile, or a buffer does not fit on the card.
    """
    from lowerkit.codegen.assemble import compile_parts
    from lowerkit.compiler import lower_program
    from lowerkit.targets.plan import LinkSettings

    context = lower_program(program, "fused", options, show)
    hosts, accelerators = options.spec.host_targets, options.spec.accelerator_targets
    settings = LinkSettings(options.workers, options.use_cache, show)

    def compiled(tiles: Mapping[tuple[str, Product], GemmTile]) -> dict[tuple[str, Product], _Place]:
        with using_tiles(tiles):
            return _places(compile_parts(program, hosts, accelerators, settings, context.placements), device)

    places = compiled({})
    lists = {key: shortlist(key[1], key[0], place.split)[:count] for key, place in places.items()}
    trials: list[Trial] = []
    for number in range(max(map(len, lists.values()), default=0)):
        chosen = {key: entries[number] for key, entries in lists.items() if number < len(entries)}
        show(f"candidate {number + 1} of {count} for {len(chosen)} products")
        try:
            places = compiled({key: each.tile for key, each in chosen.items()})
        except CodegenError as error:
            trials += [_failed(key, each, error.message) for key, each in chosen.items()]
            continue
        trials += [_measured(key, each, places[key], device) for key, each in chosen.items()]
    return trials


def best_of(trials: list[Trial]) -> list[MeasuredTile]:
    """Returns the fastest tile of each product that ran at all."""
    found: dict[tuple[str, Product], Trial] = {}
    for trial in trials:
        key = trial.level, trial.product
        if not trial.problem and (key not in found or trial.seconds < found[key].seconds):
            found[key] = trial
    return [MeasuredTile(each.level, each.product, each.tile, each.seconds, each.predicted) for each in found.values()]


def _failed(key: tuple[str, Product], each: Candidate, problem: str) -> Trial:
    return Trial(*key, each.tile, each.seconds, 0.0, problem)


def _measured(key: tuple[str, Product], each: Candidate, place: _Place, device: CudaDevice) -> Trial:
    try:
        return Trial(
            *key, each.tile, each.seconds, seconds_of(device, place.code, place.function, place.dims, each.seconds)
        )
    except MemoryError as error:
        return _failed(key, each, f"its buffers do not fit on the card: {error}")


def seconds_of(device: CudaDevice, code: bytes, function: Function, dims: tuple[int, ...], predicted: float) -> float:
    """Returns the seconds of one run of a function: the least mean of three rounds.

    Args:
        device: where.
        code: of the function, as the device loads it.
        function: its launches.
        dims: its open extents.
        predicted: how long a run takes, about.

    Raises:
        MemoryError: its buffers do not fit.
    """
    loaded = device.load(np.frombuffer(code, np.uint8))
    sizes = [evaluate(size, {}, dims) for size in (*function.operands, *function.results)]
    addresses: list[int] = []
    random = np.random.default_rng(0)
    try:
        for number, size in enumerate(sizes):
            addresses.append(device.allocate(max(size, 1)))
            if number < len(function.operands):  # bytes that are finite numbers of every type
                device.copy_in(addresses[-1], random.integers(0, 0x40, size, np.uint8), 0)
        for _ in range(_WARM):
            device.launch(loaded, addresses, dims, 0)
        launches = max(_LEAST, min(_MOST, int(_ROUND_SECONDS / predicted)))
        rounds: list[float] = []
        for _ in range(_ROUNDS):
            first = device.driver.mark(0)
            for _ in range(launches):
                device.launch(loaded, addresses, dims, 0)
            rounds.append(device.driver.seconds_between(first, device.driver.mark(0)) / launches)
        return min(rounds)
    finally:
        device.synchronize(0)
        for address in addresses:
            device.free(address)


def _places(parts: CompiledParts, device: CudaDevice) -> dict[tuple[str, Product], _Place]:
    """Returns a function for each product of a compiled program."""
    program = parts.program
    values = {dim.name: max(dim.minimum, min(OPEN, dim.maximum or OPEN)) for dim in program.signature.dims}
    found: dict[tuple[str, Product], _Place] = {}
    for step in program.steps:
        if step.kernel >= 0 and program.kernels[step.kernel].device == DEVICE:
            for key, place in _places_of(program, step, parts.code[program.code[DEVICE]], values, device):
                found.setdefault(key, place)
    return found


def _places_of(
    program: ProgramSpec, step: Step, data: bytes, values: Mapping[str, int], device: CudaDevice
) -> list[tuple[tuple[str, Product], _Place]]:
    entry = program.kernels[step.kernel]
    code = data[entry.offset : entry.offset + entry.size]
    read = unpack(code, {})
    bound = {each.level: any(place.kernel.bound for place in each.kernels.values()) for each in read.variants}
    level = choose_level(bound, device.driver.capability)
    function = next(each.function for each in read.variants if each.level == level)
    dims = tuple(evaluate(each, values) for each in step.dims)
    products = [launch.product for launch in function.launches if launch.product is not None]
    return [
        (
            (level, asked_product(each.element, each.rows, each.columns, each.depth, each.batch)),
            _Place(code, function, dims, isinstance(each.depth, int)),
        )
        for each in products
    ]
