"""A kernel of a loaded module: decoded once, launched as often as one likes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from lowerkit.runtimes.cuda.simulated.control_flow import build_blocks
from lowerkit.runtimes.cuda.simulated.coverage import Coverage, Unexecuted
from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader, Slots
from lowerkit.runtimes.cuda.simulated.faults import UnknownPtx
from lowerkit.runtimes.cuda.simulated.text.syntax import Instruction, KernelText, ModuleText, Parameter, Variable
from lowerkit.runtimes.cuda.simulated.text.tokens import shown

MOST_SHARED = 227 << 10  # bytes of a block
MOST_LOCAL = 512 << 10  # bytes of a thread
_LONGEST_TEXT = 120


class Kernel:
    """One kernel.

    Attributes:
        name: as in the text.
        parameters: in the order of the arguments of a launch.
        required_block: threads in x, y, z that a launch must have, None for any.
        most_threads: the most threads that a block may have, None for what the device allows.
        shared_bytes: static shared memory of a block; what a launch asks for lies behind it.
        local_bytes: local memory of a thread.
        target: what the module is made for, such as sm_90a.
        slots, readers, blocks: the decoded instructions.
        coverage: which of them ran, as far as devices recorded it.
    """

    def __init__(self, module: ModuleText, text: KernelText, symbols: Mapping[str, int]) -> None:
        """``symbols`` has the addresses of the module's variables in global memory.

        Raises:
            UnknownPtx: LK8018, an instruction is not known.
        """
        self.name = text.name
        self.target = module.target
        self.parameters: Sequence[Parameter] = text.parameters
        self.required_block = text.required_block
        self.most_threads = text.most_threads
        self._module = module
        shared = [variable for variable in module.variables if variable.space == "shared"]
        shared += [variable for variable in text.variables if variable.space == "shared"]
        places, self.shared_bytes = _laid_out(shared, MOST_SHARED)
        local = [variable for variable in text.variables if variable.space == "local"]
        local_places, self.local_bytes = _laid_out(local, MOST_LOCAL)
        sizes = {parameter.name: parameter.size for parameter in text.parameters}
        parameter_places = _parameter_places(text.parameters)
        self.slots = Slots({**symbols, **places, **local_places, **parameter_places}, sizes, parameter_places)
        if not text.instructions:
            raise UnknownPtx(f"kernel {shown(text.name)} has no instructions", text.line)
        readers = [InstructionReader(instruction, self.slots, self._origin) for instruction in text.instructions]
        self.blocks = build_blocks(readers)
        self.coverage = Coverage()
        self.readers = readers

    def unexecuted(self) -> Sequence[Unexecuted]:
        """Returns the instructions that no launch ran on a device that records them, in the order of the text."""
        return self.coverage.unexecuted(self.blocks, self.readers)

    def _origin(self, instruction: Instruction) -> tuple[str, str | None]:
        """Returns what an error says of an instruction: the kernel and the PTX, and the place in the source."""
        place = instruction.place
        text = " ".join(self._module.lines[place.line - 1].split("//")[0].split())[:_LONGEST_TEXT]
        op = f"kernel {self.name}, PTX line {place.line}: {text}"
        if not place.source_line:
            return op, None
        name = self._module.files.get(place.file, f"file {place.file}")
        return op, f"{PurePosixPath(name).name}:{place.source_line}"


def _parameter_places(parameters: Sequence[Parameter]) -> dict[str, int]:
    """Returns where each parameter lies among all."""
    places: dict[str, int] = {}
    end = 0
    for parameter in parameters:
        places[parameter.name] = -(-end // parameter.alignment) * parameter.alignment
        end = places[parameter.name] + parameter.size
    return places


def _laid_out(variables: Sequence[Variable], most: int) -> tuple[dict[str, int], int]:
    """Returns the offset of each variable and the bytes of all; those whose size a launch decides lie at the end."""
    offsets: dict[str, int] = {}
    end = 0
    for variable in sorted(variables, key=lambda variable: variable.size == 0):
        start = -(-end // variable.alignment) * variable.alignment
        if variable.name in offsets:
            raise UnknownPtx(f"variable {shown(variable.name)} is there twice", variable.line)
        offsets[variable.name] = start
        end = start + variable.size
        if end > most:
            raise UnknownPtx(f"more than {most} bytes of {variable.space} memory", variable.line)
    return offsets, end
