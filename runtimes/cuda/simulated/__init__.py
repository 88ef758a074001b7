"""A CUDA device in software: it runs PTX text on the CPU, with numpy, and holds every access against its allocations.

Vocabulary
    batch       the blocks of a grid that run together; a register of a batch is an array [blocks, threads], or any
                shape that broadcasts to it: [1, threads], [blocks, 1] or [1, 1] for a value that does not differ there
    group       the threads of a batch that stand at one instruction
    active      the threads that an instruction runs for
    slot        the number of a register, a constant or a special register in the list of a batch
    step        an instruction, decoded to a function of the batch

``async_proxy`` has what bulk copies, mbarriers and wgmma do while threads go on, ``ordering_lint`` looks in the text
for the fences that these need and no value shows.

``text`` makes a module of PTX; ``decoder`` and ``opcodes`` make slots and steps of its instructions, ``control_flow``
basic blocks of those. A launch (``launch``) runs the blocks batch by batch (``scheduler``), on ``device_memory`` and
``block_memory``. ``device`` is the door.

An opcode or a modifier that is not known is refused with its line (LK8018), never guessed at. What a kernel must not do
ends its launch with LK8017.
"""

from lowerkit.runtimes.cuda.launch_buffer import LaunchBuffer, LaunchTensorMap
from lowerkit.runtimes.cuda.simulated.async_proxy.tensor_map import encode_tiled
from lowerkit.runtimes.cuda.simulated.device import Module, SimulatedGpu
from lowerkit.runtimes.cuda.simulated.kernel import Kernel
from lowerkit.runtimes.cuda.simulated.launch import LaunchStatistics

__all__ = ["Kernel", "LaunchBuffer", "LaunchStatistics", "LaunchTensorMap", "Module", "SimulatedGpu", "encode_tiled"]
