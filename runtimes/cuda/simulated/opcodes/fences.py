"""fence and membar: which forms there are. Accesses of the simulated device are in order already.

What orders the proxies (``fence.proxy``) shows in no value; ``ordering_lint`` looks for where it is missing.
"""

from __future__ import annotations

from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader
from lowerkit.runtimes.cuda.simulated.text.syntax import Address

_SEMANTICS = ("sc", "acq_rel", "acquire", "release")
_SCOPES = ("cta", "cluster", "gpu", "sys")
_PROXIES = ("alias", "async", "tensormap::generic")
_TENSOR_MAP_BYTES = 128


def check_fence(read: InstructionReader) -> None:
    """Reads a fence.

    Raises:
        UnknownPtx: LK8018, there is none of this form.
    """
    if read.instruction.opcode == "membar":
        read.required("cta", "gl", "sys")
        read.finish()
        read.count(0)
    elif read.flag("proxy"):
        _between_proxies(read)
    elif read.flag("mbarrier_init"):
        read.required("release")
        read.required("cluster")
        read.finish()
        read.count(0)
    else:
        read.choice(*_SEMANTICS)
        read.required(*_SCOPES)
        read.finish()
        read.count(0)


def _between_proxies(read: InstructionReader) -> None:
    proxy = read.required(*_PROXIES)
    if proxy == "async":
        read.choice("global", "shared::cta", "shared::cluster")
    takes_address = False
    if proxy == "tensormap::generic":
        takes_address = read.required("acquire", "release") == "acquire"
        read.required(*_SCOPES)
    read.finish()
    read.count(2 if takes_address else 0)
    if takes_address and (not isinstance(read.operand(0), Address) or read.immediate(1) != _TENSOR_MAP_BYTES):
        raise read.unknown("the tensor map")
