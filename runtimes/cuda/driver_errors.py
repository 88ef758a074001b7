"""What goes wrong in the driver of a card, in its numbers and words, and the way out of each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from ctypes import CDLL, byref, c_char_p, c_int

from lowerkit.errors import RuntimeFault

OUT_OF_MEMORY = 2
OUT_OF_RESOURCES = 701
UNSUPPORTED_PTX = 222
INVALID_VALUE = 1
# After these nothing can be done with the device by this process until it is opened again.
LOST = frozenset({4, 46, 214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999})
_CAPTURE = frozenset(range(900, 909))

WORDS: Mapping[int, str] = {
    INVALID_VALUE: "CUDA_ERROR_INVALID_VALUE: invalid argument",
    OUT_OF_MEMORY: "CUDA_ERROR_OUT_OF_MEMORY: out of memory",
    214: "CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered",
    UNSUPPORTED_PTX: "CUDA_ERROR_UNSUPPORTED_PTX_VERSION: the provided PTX was compiled with an unsupported toolchain.",
    700: "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered",
    OUT_OF_RESOURCES: "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many resources requested for launch",
    702: "CUDA_ERROR_LAUNCH_TIMEOUT: the launch timed out and was terminated",
    716: "CUDA_ERROR_MISALIGNED_ADDRESS: misaligned address",
    719: "CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure",
    999: "CUDA_ERROR_UNKNOWN: unknown error",
}

# The CUDA version whose driver first took PTX of a version.
_CUDA_OF_PTX: Mapping[tuple[int, int], tuple[int, int]] = {
    **{(7, minor): (11, minor) for minor in range(9)},
    **{(8, minor): (12, minor) for minor in range(6)},
    (8, 6): (12, 7),
    (8, 7): (12, 8),
    (8, 8): (12, 9),
    (9, 0): (13, 0),
    (9, 1): (13, 1),
}


class CudaError(Exception):
    """A call of the driver failed.

    Attributes:
        number: the driver's ``CUresult``.
        hint: the way out, None where there is none to tell.
    """

    def __init__(self, call: str, number: int, words: str) -> None:
        super().__init__(f"{call} failed: {words}")
        self.number = number
        self.hint = _hint(call, number)


def words_of(library: CDLL, number: int) -> str:
    """Returns the name and the words that the driver library has for an error."""
    name, text = c_char_p(), c_char_p()
    library.cuGetErrorName(c_int(number), byref(name))
    library.cuGetErrorString(c_int(number), byref(text))
    words = [value.decode(errors="replace") for value in (name.value, text.value) if value]
    return ": ".join(words) or f"error {number}"


def _hint(call: str, number: int) -> str | None:
    if number in LOST:
        return (
            "the device is lost to this session: close it and open another one; "
            "--device cuda-sim runs the same code and names the instruction"
        )
    if number == INVALID_VALUE and call == "cuTensorMapEncodeTiled":
        return (
            "address and strides must be multiples of 16 bytes, a box has up to 256 elements in each dimension, and up "
            "to the span of its swizzle in the innermost one; --device cuda-sim says which of them it is"
        )
    if number == INVALID_VALUE and "cpy" in call:
        return "is the address one that the device gave? one of the host is none"
    if number == OUT_OF_RESOURCES:
        return "the kernel asks for more registers or shared memory than the card has: compile for its level"
    if number in _CAPTURE:
        return "between begin_capture and end_capture only launches may be put into a queue"
    return None


def no_card(reason: str, hint: str = "--device cuda-sim runs it on the simulated device") -> RuntimeFault:
    """Returns LK8020: there is no device that can run the artifact."""
    return RuntimeFault("LK8020", f"no CUDA device can run the artifact: {reason}", hint=hint)


def no_symbol(library: str, name: str) -> RuntimeFault:
    """Returns LK8020: the driver library does not have a function."""
    return no_card(
        f"the driver library {library} has no function {name}",
        hint="install a newer driver; --device cuda-sim runs it on the simulated device",
    )


def no_library(library: str, reason: object) -> RuntimeFault:
    """Returns LK8020: the driver library cannot be loaded."""
    return no_card(f"the driver library {library} cannot be loaded: {reason}")


def check_driver(ptx: bytes, version: tuple[int, int]) -> None:
    """Checks that a driver of a CUDA version takes a PTX text.

    Raises:
        RuntimeFault: LK8020, it is too old.
    """
    found = re.search(rb"^\s*\.version\s+(\d+)\.(\d+)", ptx, re.MULTILINE)
    if found is None:
        return
    wanted = int(found[1]), int(found[2])
    needed = _CUDA_OF_PTX.get(wanted)
    if needed is not None and version < needed:
        raise no_card(
            f"its PTX is of version {wanted[0]}.{wanted[1]}, which drivers of CUDA {needed[0]}.{needed[1]} and later "
            f"take; this driver is of CUDA {version[0]}.{version[1]}",
            hint=f"install a driver of CUDA {needed[0]}.{needed[1]} or later; --device cuda-sim runs it without one",
        )
