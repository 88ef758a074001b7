"""Proves one case at one level: every run holds with all checks on, every instruction runs, mutants are found."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.runtimes.cuda.launch_arguments import arguments_of, shaped_maps
from lowerkit.runtimes.cuda.simulated import Kernel, LaunchBuffer, SimulatedGpu
from lowerkit.targets.cpu.objects.cache import KernelCache
from lowerkit.targets.cuda.planned import FastKernel, PlannedRegion
from lowerkit.targets.cuda.ptx.compile import Compiled, compile_kernels
from lowerkit.targets.cuda.ptx.link import assemblers_for, launch_with_code
from lowerkit.targets.cuda.select import select_kernels
from lowerkit.targets.cuda.witness.placed import PlacedRegion, place_region
from lowerkit.targets.cuda.witness.ptx_alone import source_line
from lowerkit.targets.plan import LinkSettings
from lowerkit.targets.region_view import RegionView
from tests.support.cuda.equivalence import Equivalence
from tests.support.cuda.mutants import Mutant, instructions, run_mutants
from tests.support.cuda.proofs.case import Array, Case
from tests.support.cuda.proofs.divisions import slow_divisions

MOST_BLOCKS = (1 << 31) - 1  # of a launch in x


class KernelProof(msgspec.Struct):
    """What is known of one kernel of a case.

    Attributes:
        family, case, level, kernel: which one.
        runs: of the sweep that launch it.
        instructions: of its text; ``unexecuted`` those that no run ran, ``explained`` those of them that the case has a
            reason for.
        killed, equivalent, survived: mutants, the last two in words.
        seconds: of it all.
    """

    family: str
    case: str
    level: str
    kernel: str
    runs: int = 0
    instructions: int = 0
    unexecuted: list[str] = []
    explained: list[str] = []
    killed: int = 0
    equivalent: list[str] = []
    survived: list[str] = []
    seconds: float = 0.0

    @property
    def coverage(self) -> float:
        """Which part of the instructions ran, those with a reason left out."""
        return 1 - len(self.unexecuted) / max(1, self.instructions)

    @property
    def score(self) -> float:
        """Which part of the mutants that are not equivalent was killed."""
        return self.killed / max(1, self.killed + len(self.survived))


@dataclass
class _Run:
    """One set of operands, placed, and what the region must give."""

    placed: PlacedRegion
    wanted: Sequence[Array]
    kernels: set[str] = field(default_factory=set[str])


class Proof:
    """The kernels of a case, compiled for a level, and its sweep."""

    def __init__(self, case: Case, level: str) -> None:
        """Plans, compiles, and works out what each run must give.

        Raises:
            AssertionError: another family takes the region.
        """
        self.case, self.level = case, level
        self.view = case.view()
        self.planned = case.plan(self.view, level) if case.plan else select_kernels(self.view, level)[0]
        assert self.planned.family == case.family, f"{case.title}: {self.planned.family}: {self.planned.note}"
        self.compiled = compiled_kernels(self.planned, level)
        self.runs = [self._placed(self.view, inputs) for inputs in case.sweep()]

    def _placed(self, view: RegionView, inputs: Sequence[Array]) -> _Run:
        placed = place_region(view, self.planned, inputs)
        known = self.case.wanted
        wanted = known(inputs) if known else interpret(view.clone_module(), inputs, function="region")
        return _Run(placed, wanted, {each.launch.kernel for each in placed.launches})

    def prove(self, every: int) -> list[KernelProof]:
        """Returns what is known of each kernel; mutants are each ``every``-th one, none at 0.

        Raises:
            KernelFault, AssertionError: a run of the kernels as they are does not hold.
        """
        gpu = SimulatedGpu(check_races=True, refuse_unwritten=True, record_coverage=True)
        kernels = {name: load(gpu, name, code.ptx) for name, code in self.compiled.items()}
        longest = 0
        for run in self.runs:
            longest = max(longest, self._check(gpu, run, kernels))
        limited = SimulatedGpu(check_races=True, refuse_unwritten=True, instruction_limit=2 * longest + 2000)
        return [self._prove_kernel(limited, name, kernels[name], every) for name in self.compiled]

    def _prove_kernel(self, gpu: SimulatedGpu, name: str, ran: Kernel, every: int) -> KernelProof:
        start = time.perf_counter()
        compiled = self.compiled[name]
        runs = [run for run in self.runs if name in run.kernels]
        found = KernelProof(self.planned.family, self.case.name, self.level, name, len(runs))
        found.instructions = len(instructions(compiled.ptx))
        slow = slow_divisions(compiled.ptx)
        never: set[int] = set()
        for each in ran.unexecuted():
            reason = next((why for part, why in self.case.not_run.items() if part in each.instruction), "")
            reason = slow.get(each.line, reason)
            text = f"{each.instruction} ({self._line(name, each.source)})"
            if reason and "bra " in each.instruction:
                never.add(each.line - 1)
            (found.explained if reason else found.unexecuted).append(f"{text}: {reason}" if reason else text)
        if every and runs:
            others = {key: load(gpu, key, code.ptx) for key, code in self.compiled.items() if key != name}

            def check(ptx: str) -> None:
                kernels = {**others, name: load(gpu, name, ptx)}
                for place, run in enumerate(runs):
                    try:
                        self._check(gpu, run, kernels)
                    except BaseException:
                        runs.insert(0, runs.pop(place))  # what found one mutant finds others
                        raise

            launched = [each.blocks for each in self.planned.function.launches if each.kernel == name]
            blocks = max(each if isinstance(each, int) else MOST_BLOCKS for each in launched)
            equivalence = Equivalence(compiled.ptx, compiled.threads, never, blocks)

            def argument(mutant: Mutant) -> str | None:
                return slow.get(mutant.line.number + 1) or equivalence.argument(mutant)

            score = run_mutants(compiled.ptx, check, argument, every)
            found.killed = len(score.killed)
            found.equivalent = [f"{mutant}: {why}" for mutant, why in score.equivalent]
            found.survived = [self._described(name, mutant) for mutant in score.survived]
        found.seconds = time.perf_counter() - start
        return found

    def _check(self, gpu: SimulatedGpu, run: _Run, kernels: Mapping[str, Kernel]) -> int:
        """Runs the launches and holds the results; returns the instructions of the longest launch."""
        contents, longest = launch(gpu, run.placed, kernels, self.compiled)
        for found, wanted, type_ in zip(run.placed.arrays(contents), run.wanted, self.view.results, strict=True):
            assert found.shape == wanted.shape, "another shape"
            self.case.compare(found, wanted, str(type_.element_type))
        return longest

    def _line(self, name: str, source: str | None) -> str:
        kernel = self.planned.kernels[name]
        own = isinstance(kernel, FastKernel) and source is not None and source.startswith("kernel.py:")
        text = kernel.kernel.source if own and isinstance(kernel, FastKernel) else ""
        return source_line(source, text, source.rpartition(":")[2]) if source else "no line"

    def _described(self, name: str, mutant: Mutant) -> str:
        """A mutant with the line of the kernel that it stands for."""
        lines = self.compiled[name].ptx.splitlines()
        files = {words[1]: words[2].strip('"') for words in map(str.split, lines) if words[:1] == [".file"]}
        places = [words for words in map(str.split, lines[: mutant.line.number]) if words[:1] == [".loc"]]
        found = [f"{files.get(words[1], words[1])}:{words[2]}" for words in places if words[2] != "0"]
        source = found[-1] if found else None
        return f"{mutant} ({self._line(name, source)})"


def compiled_kernels(planned: PlannedRegion, level: str) -> dict[str, Compiled]:
    """Returns the kernels of a region as an artifact has them, from the cache where they lie there."""
    keyed = {(level, name): kernel for name, kernel in planned.kernels.items()}
    found = compile_kernels(keyed, LinkSettings(workers=1), KernelCache(), assemblers_for([level])[0])
    return {name: code for (_, name), code in found.items()}


def load(gpu: SimulatedGpu, name: str, ptx: str) -> Kernel:
    """Returns a kernel of a text."""
    return gpu.load(ptx).kernels[name]


def launch(
    gpu: SimulatedGpu, placed: PlacedRegion, kernels: Mapping[str, Kernel], compiled: Mapping[str, Compiled]
) -> tuple[list[bytes], int]:
    """Runs the launches of a region, each buffer in an allocation of its own.

    Args:
        gpu: where.
        placed: the region.
        kernels: loaded there.
        compiled: what launches must know of them.

    Returns:
        The bytes of each result, and the instructions that the longest launch issued.
    """
    buffers: list[LaunchBuffer] = []
    operands = len(placed.planned.function.operands)
    longest = 0
    try:
        for buffer in placed.buffers:
            address = gpu.allocate(max(buffer.size, 1))
            buffers.append(LaunchBuffer(address, buffer.size, buffer.name, buffer.writable))
            if buffer.data:
                gpu.write(address, np.frombuffer(buffer.data, np.uint8))
        for each in placed.launches:
            code = compiled[each.launch.kernel]
            taken = launch_with_code(each.launch, code)
            maps = shaped_maps(taken, placed.dims, [buffer.size for buffer in placed.buffers])
            arguments = arguments_of(taken, buffers, maps, placed.dims, lambda described: described)
            grid, block = (each.blocks,), (taken.block,)
            done = gpu.launch(kernels[taken.kernel], grid, block, arguments, taken.shared, early=taken.early)
            longest = max(longest, done.issued)
        results = buffers[operands : operands + len(placed.results)]
        return [gpu.read(each.address, each.size).tobytes() for each in results], longest
    finally:
        for each in buffers:
            gpu.free(each.address)
