"""What the CUDA target writes and its devices read: how each function is launched, and one image of all kernels.

The code of an artifact is one block of bytes: the description of each function, one behind the other, then the modules
that hold the kernels of all of them. The bytes of one function reach from its description to the end of the block::

    magic, length of the description, description (JSON), ..., PTX, cubin

so that a device finds the modules at the end, and loads them once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import force_setattr

from lowerkit.runtimes.expressions import Expr, normalize, symbols

_MAGIC = b"lkcu\x01\0\0\0"
_HEAD = len(_MAGIC) + 8


class ImageError(ValueError):
    """The bytes are not what the target wrote."""


class Launch(msgspec.Struct, frozen=True):
    """One launch of a kernel.

    Attributes:
        kernel: its name in the module.
        pointers: which buffers its first parameters are: operands, then results, then temporaries of the function.
        threads: how many threads have work, an expression over the function's dims; none are started for 0.
        block: threads of a block, a multiple of 32.
    """

    kernel: str
    pointers: list[int]
    threads: Expr
    block: int

    def __post_init__(self) -> None:
        force_setattr(self, "threads", normalize(self.threads))


class Function(msgspec.Struct, frozen=True):
    """A function as launches in order. Every kernel takes its pointers, then all ``dims``, as 64 bits each.

    Attributes:
        operands, results, temporaries: their bytes, expressions over the dims.
        dims: how many there are: the open extents of operands, then of results.
        launches: in order.
    """

    operands: list[Expr]
    results: list[Expr]
    temporaries: list[Expr]
    dims: int
    launches: list[Launch]

    def __post_init__(self) -> None:
        for name in ("operands", "results", "temporaries"):
            force_setattr(self, name, [normalize(entry) for entry in getattr(self, name)])


class Modules(msgspec.Struct, frozen=True):
    """Where the modules lie before the end of the block, and what they are.

    Attributes:
        level: what they were compiled for, such as ``sm_90``.
        ptx, cubin: bytes of each; a cubin of 0 bytes is none.
        digest: sha-256 of both, hex.
    """

    level: str
    ptx: int
    cubin: int
    digest: str


class Description(msgspec.Struct, frozen=True):
    """A function and the modules of its kernels."""

    function: Function
    modules: Modules


class Code(msgspec.Struct, frozen=True):
    """The code of one function, read."""

    function: Function
    modules: Modules
    ptx: bytes
    cubin: bytes


def pack(functions: Sequence[Function], level: str, ptx: bytes, cubin: bytes) -> tuple[bytes, list[int]]:
    """Returns the block of bytes, and where the bytes of each function begin."""
    modules = Modules(level, len(ptx), len(cubin), hashlib.sha256(ptx + cubin).hexdigest())
    data = bytearray()
    starts: list[int] = []
    for function in functions:
        text = msgspec.json.encode(Description(function, modules))
        starts.append(len(data))
        data += _MAGIC + len(text).to_bytes(8, "little") + text
    return bytes(data + ptx + cubin), starts


def unpack(data: bytes, known: Mapping[str, tuple[bytes, bytes]]) -> Code:
    """Reads the code of one function.

    Args:
        data: from its description to the end of the block.
        known: modules that were read before, by digest.

    Raises:
        ImageError: they are not what :func:`pack` wrote.
    """
    if data[: len(_MAGIC)] != _MAGIC:
        raise ImageError("the code does not begin as code for CUDA does")
    size = int.from_bytes(data[len(_MAGIC) : _HEAD], "little")
    try:
        described = msgspec.json.decode(data[_HEAD : _HEAD + size], type=Description)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ImageError(f"the description of a function cannot be read: {error}") from error
    modules = described.modules
    if min(modules.ptx, modules.cubin) < 0 or _HEAD + size + modules.ptx + modules.cubin > len(data):
        raise ImageError(f"the modules of {modules.ptx} and {modules.cubin} bytes do not fit into {len(data)} bytes")
    _check(described.function)
    if modules.digest not in known:
        start = len(data) - modules.ptx - modules.cubin
        ptx, cubin = data[start : start + modules.ptx], data[start + modules.ptx :]
        if hashlib.sha256(ptx + cubin).hexdigest() != modules.digest:
            raise ImageError("the sha-256 of the modules is not what their description says")
        return Code(described.function, modules, ptx, cubin)
    return Code(described.function, modules, *known[modules.digest])


def _check(function: Function) -> None:
    sizes = [*function.operands, *function.results, *function.temporaries]
    if any(True for size in (*sizes, *(launch.threads for launch in function.launches)) for _ in symbols(size)):
        raise ImageError("a size of a function is an expression over what is no dim of it")
    buffers = len(sizes)
    for launch in function.launches:
        if any(not 0 <= pointer < buffers for pointer in launch.pointers):
            raise ImageError(f"kernel {launch.kernel!r} takes buffers {launch.pointers} of {buffers}")
        if launch.block % 32 or not 0 < launch.block <= 1024:
            raise ImageError(f"kernel {launch.kernel!r} has blocks of {launch.block} threads")
