"""Which file reads a tcgen05 instruction.

Two blocks that multiply together (``cta_group::2``), block scales, sparse factors, stationary weights (``mma.ws``), and
copies from shared memory (``tcgen05.cp``, ``tcgen05.shift``) are not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader
from lowerkit.runtimes.cuda.simulated.opcodes.tcgen05 import allocation, completion, multiplication, transfers
from lowerkit.runtimes.cuda.simulated.steps import Step

_FORMS: Mapping[str, Callable[[InstructionReader], Step]] = {
    **allocation.FORMS,
    **transfers.FORMS,
    **multiplication.FORMS,
    **completion.FORMS,
}


def _tcgen05(read: InstructionReader) -> Step:
    return _FORMS[read.required(*_FORMS)](read)


OPCODES: Mapping[str, Callable[[InstructionReader], Step]] = {"tcgen05": _tcgen05}
