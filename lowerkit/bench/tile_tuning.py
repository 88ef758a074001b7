"""Measures tiles of a model on a card: products, convolutions, attention. It is compiled with one candidate after the
other.

Each round gives everything its next candidate, so that kernels are measured as they are: with the layouts, batches
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
from lowerkit.targets.cuda.families.gemm_tiles import OPEN
from lowerkit.targets.cuda.model.launches import DEVICE
from lowerkit.targets.cuda.model.measured_tiles import MeasuredTile, asked_of, using_tiles
from lowerkit.targets.cuda.model.shortlists import AnyCandidate, Asked, Tile, candidates_of

if TYPE_CHECKING:
    from lowerkit.codegen.assemble import CompiledParts
    from lowerkit.program.program import Program

_WARM, _ROUNDS, _ROUND_SECONDS = 2, 3, 0.01
_LEAST, _MOST = 3, 200  # launches of a round


class Trial(msgspec.Struct, frozen=True):
    """A tile, measured; ``seconds`` is 0 where it did not run, ``problem`` says why; ``predicted`` is 0 for none."""

    level: str
    asked: Asked
    tile: Tile
    predicted: float
    seconds: float
    problem: str = ""


class _Place(msgspec.Struct, frozen=True):
    """A function: its code, its launches, and its dims."""

    code: bytes
    function: Function
    dims: tuple[int, ...]


_Key = tuple[str, Asked]


def tune_tiles(
    program: Program, options: CompileOptions, device: CudaDevice, count: int, show: Callable[[str], None]
) -> list[Trial]:
    """Measures candidates for each product, convolution and attention of a program.

    Args:
        program: captured; it is lowered in place.
        options: how to compile; the accelerators hold CUDA.
        device: where to measure.
        count: candidates of each, the one that is taken without measuring included.
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

    def compiled(tiles: Mapping[_Key, Tile]) -> dict[_Key, _Place]:
        with using_tiles(tiles):
            return _places(compile_parts(program, hosts, accelerators, settings, context.placements), device)

    places = compiled({})
    lists = {key: candidates_of(key[1], key[0])[:count] for key in places}
    trials: list[Trial] = []
    for number in range(max(map(len, lists.values()), default=0)):
        chosen = {key: entries[number] for key, entries in lists.items() if number < len(entries)}
        show(f"candidate {number + 1} of {count} for {len(chosen)} kernels")
        try:
            places = compiled({key: each.tile for key, each in chosen.items()})
        except CodegenError as error:
            trials += [_failed(key, each, error.message) for key, each in chosen.items()]
            continue
        trials += [_measured(key, each, places[key], device) for key, each in chosen.items()]
    return trials


def best_of(trials: list[Trial]) -> list[MeasuredTile]:
    """Returns the fastest tile of each that ran at all."""
    found: dict[_Key, Trial] = {}
    for trial in trials:
        key = trial.level, trial.asked
        if not trial.problem and (key not in found or trial.seconds < found[key].seconds):
            found[key] = trial
    return [MeasuredTile(each.level, each.asked, each.tile, each.seconds, each.predicted) for each in found.values()]


def _failed(key: _Key, each: AnyCandidate, problem: str) -> Trial:
    return Trial(*key, each.tile, each.seconds, 0.0, problem)


def _measured(key: _Key, each: AnyCandidate, place: _Place, device: CudaDevice) -> Trial:
    try:
        return Trial(*key, each.tile, each.seconds, seconds_of(device, place.code, place.function, place.dims))
    except MemoryError as error:
        return _failed(key, each, f"its buffers do not fit on the card: {error}")


def seconds_of(device: CudaDevice, code: bytes, function: Function, dims: tuple[int, ...]) -> float:
    """Returns the seconds of one run of a function: the least mean of three rounds.

    Args:
        device: where.
        code: of the function, as the device loads it.
        function: its launches.
        dims: its open extents.

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

        def mean(launches: int) -> float:
            first = device.driver.mark(0)
            for _ in range(launches):
                device.launch(loaded, addresses, dims, 0)
            return device.driver.seconds_between(first, device.driver.mark(0)) / launches

        device.launch(loaded, addresses, dims, 0)
        launches = max(_LEAST, min(_MOST, int(_ROUND_SECONDS / max(mean(_WARM), 1e-9))))
        return min(mean(launches) for _ in range(_ROUNDS))
    finally:
        device.synchronize(0)
        for address in addresses:
            device.free(address)


def _places(parts: CompiledParts, device: CudaDevice) -> dict[_Key, _Place]:
    """Returns a function for each choice of a compiled program."""
    program = parts.program
    values = {dim.name: max(dim.minimum, min(OPEN, dim.maximum or OPEN)) for dim in program.signature.dims}
    found: dict[_Key, _Place] = {}
    for step in program.steps:
        if step.kernel >= 0 and program.kernels[step.kernel].device == DEVICE:
            for key, place in _places_of(program, step, parts.code[program.code[DEVICE]], values, device):
                found.setdefault(key, place)
    return found


def _places_of(
    program: ProgramSpec, step: Step, data: bytes, values: Mapping[str, int], device: CudaDevice
) -> list[tuple[_Key, _Place]]:
    entry = program.kernels[step.kernel]
    code = data[entry.offset : entry.offset + entry.size]
    read = unpack(code, {})
    bound = {each.level: any(place.kernel.bound for place in each.kernels.values()) for each in read.variants}
    level = choose_level(bound, device.driver.capability)
    function = next(each.function for each in read.variants if each.level == level)
    dims = tuple(evaluate(each, values) for each in step.dims)
    place = _Place(code, function, dims)
    started = (each for each in function.launches if each.asked and evaluate(each.blocks, {}, dims) > 0)
    return [((level, asked_of(each.asked)), place) for each in started]
