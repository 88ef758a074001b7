"""What the CUDA target writes and its devices read: how each function is launched, and one image of all kernels.

Vocabulary
    variant   a function planned for one level: its launches, and where the code of their kernels lies
    blob      the PTX and the machine code of all kernels, equal ones once

The code of an artifact is one block of bytes: the description of each function, one behind the other, then the blob.
The bytes of one function reach from its description to the end of the block::

    magic, length of the description, description (JSON), ..., blob

so that a device finds the blob at the end, and checks it once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import force_setattr

from lowerkit.runtimes.cuda.tensor_maps import BadMap, TensorMap, check_maps
from lowerkit.runtimes.expressions import Expr, normalize, symbols

_MAGIC = b"lkcu\x03\0\0\0"
_HEAD = len(_MAGIC) + 8


class ImageError(ValueError):
    """The bytes are not what the target wrote."""


class Product(msgspec.Struct, frozen=True):
    """A matrix product in tiles, for reports: ``batch`` times ``rows x depth`` by ``depth x columns``.

    Attributes:
        element: of both operands, such as ``bf16``.
        tile: rows, columns and depth of a block's step.
        stages: steps that are loaded ahead.
    """

    rows: Expr
    columns: Expr
    depth: Expr
    batch: Expr
    element: str
    tile: tuple[int, int, int]
    stages: int

    def __post_init__(self) -> None:
        for name in ("rows", "columns", "depth", "batch"):
            force_setattr(self, name, normalize(getattr(self, name)))

    @property
    def sizes(self) -> tuple[Expr, Expr, Expr, Expr]:
        """Rows, columns, depth and batch."""
        return self.rows, self.columns, self.depth, self.batch


class Launch(msgspec.Struct, frozen=True):
    """One launch of a kernel, which takes pointers, then tensor maps, then the dims, then null pointers.

    Attributes:
        kernel: its name.
        pointers: which buffers its first parameters are: operands, then results, then temporaries of the function.
        maps: the tensor maps that follow, each with its sizes and strides behind it.
        blocks: of the grid, an expression over the function's dims; nothing is started for 0.
        block: threads of a block, a multiple of 32.
        shared: bytes of dynamic shared memory of a block.
        nulls: null pointers that the kernel takes behind the dims.
        flops, read, written: operations, and bytes of device memory, at least; expressions likewise.
        exponentials: of softmax between products; an expression likewise.
        product: what it computes, where that is one product in tiles.
        asked: what its tile was chosen for, JSON, for tuning.
        shared_out: whether fewer blocks do, which then do more each: no more are started than the card has SMs.
        early: whether it may start before the launch in front of it has ended: its kernel waits by itself.
    """

    kernel: str
    pointers: list[int]
    blocks: Expr
    block: int
    shared: int = 0
    nulls: int = 0
    flops: Expr = 0
    read: Expr = 0
    written: Expr = 0
    exponentials: Expr = 0
    product: Product | None = None
    asked: str = ""
    shared_out: bool = False
    maps: list[TensorMap] = []
    early: bool = False

    def __post_init__(self) -> None:
        for name in ("blocks", "flops", "read", "written", "exponentials"):
            force_setattr(self, name, normalize(getattr(self, name)))

    @property
    def buffers(self) -> set[int]:
        """The numbers of all buffers that it takes."""
        return {*self.pointers, *(each.buffer for each in self.maps)}


class Function(msgspec.Struct, frozen=True):
    """A function as launches in order. All ``dims`` are 64 bits each.

    Attributes:
        operands, results, temporaries: their bytes, expressions over the dims.
        dims: how many there are: the open extents of operands, then of results.
        launches: in order.
        in_place: result number -> the operand whose content that result holds before; the two may be the same memory,
            and no kernel reads the operand.
    """

    operands: list[Expr]
    results: list[Expr]
    temporaries: list[Expr]
    dims: int
    launches: list[Launch]
    in_place: dict[int, int] = {}

    def __post_init__(self) -> None:
        for name in ("operands", "results", "temporaries"):
            force_setattr(self, name, [normalize(entry) for entry in getattr(self, name)])


class Kernel(msgspec.Struct, frozen=True):
    """A compiled kernel, as what is known of it without a card says.

    Attributes:
        family: what wrote it.
        bound: whether its PTX is for the architecture of its level alone, not for later ones.
        registers: of a thread; 0 where there was no ptxas to ask.
        spills: bytes that a thread keeps in local memory because registers ran out.
        shared: bytes of shared memory of a block, those that a launch adds not counted.
    """

    family: str = "threads"
    bound: bool = False
    registers: int = 0
    spills: int = 0
    shared: int = 0


class CompiledKernel(msgspec.Struct, frozen=True):
    """A kernel and its code; a cubin of 0 bytes is none."""

    kernel: Kernel
    ptx: bytes
    cubin: bytes


class _Place(msgspec.Struct, frozen=True):
    """A kernel, and where its code lies in the blob: start and size of each."""

    kernel: Kernel
    ptx: tuple[int, int]
    cubin: tuple[int, int]


class Variant(msgspec.Struct, frozen=True):
    """A function as it is launched at one level.

    Attributes:
        level: such as ``sm_90``.
        function: the launches.
        kernels: by name.
    """

    level: str
    function: Function
    kernels: dict[str, _Place]


class Description(msgspec.Struct, frozen=True):
    """A function at each level, and the blob: its bytes and its sha-256, hex."""

    variants: list[Variant]
    blob: int
    digest: str


class Code(msgspec.Struct, frozen=True):
    """The code of one function, read."""

    variants: list[Variant]
    blob: bytes
    digest: str

    def compiled(self, variant: Variant, name: str) -> CompiledKernel:
        """Returns the code of a kernel of a variant."""
        place = variant.kernels[name]
        ptx, cubin = (self.blob[start : start + size] for start, size in (place.ptx, place.cubin))
        return CompiledKernel(place.kernel, ptx, cubin)


def pack(
    functions: Sequence[Mapping[str, Function]], kernels: Mapping[tuple[str, str], CompiledKernel]
) -> tuple[bytes, list[int]]:
    """Returns the block of bytes, and where the bytes of each function begin.

    Args:
        functions: each by level.
        kernels: by level and name.
    """
    blob = bytearray()
    known: dict[bytes, tuple[int, int]] = {}

    def place(data: bytes) -> tuple[int, int]:
        if data not in known:
            known[data] = len(blob), len(data)
            blob.extend(data)
        return known[data]

    places = {key: _Place(each.kernel, place(each.ptx), place(each.cubin)) for key, each in sorted(kernels.items())}
    digest = hashlib.sha256(blob).hexdigest()
    data = bytearray()
    starts: list[int] = []
    for variants in functions:
        described = [
            Variant(level, function, {launch.kernel: places[level, launch.kernel] for launch in function.launches})
            for level, function in variants.items()
        ]
        text = msgspec.json.encode(Description(described, len(blob), digest))
        starts.append(len(data))
        data += _MAGIC + len(text).to_bytes(8, "little") + text
    return bytes(data + blob), starts


def unpack(data: bytes, known: Mapping[str, bytes]) -> Code:
    """Reads the code of one function.

    Args:
        data: from its description to the end of the block.
        known: blobs that were read before, by digest.

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
    if described.blob < 0 or _HEAD + size + described.blob > len(data):
        raise ImageError(f"a blob of {described.blob} bytes does not fit into {len(data)} bytes")
    if not described.variants:
        raise ImageError("a function has no variant")
    for variant in described.variants:
        _check(variant, described.blob)
    blob = known.get(described.digest)
    if blob is None:
        blob = data[len(data) - described.blob :]
        if hashlib.sha256(blob).hexdigest() != described.digest:
            raise ImageError("the sha-256 of the kernels is not what their description says")
    return Code(described.variants, blob, described.digest)


def _check(variant: Variant, blob: int) -> None:
    function = variant.function
    sizes = [*function.operands, *function.results, *function.temporaries]
    numbers = [
        each
        for launch in function.launches
        for each in (
            *(launch.blocks, launch.flops, launch.read, launch.written, launch.exponentials),
            *(launch.product.sizes if launch.product is not None else ()),
        )
    ]
    if any(True for size in (*sizes, *numbers) for _ in symbols(size)):
        raise ImageError("a size of a function is an expression over what is no dim of it")
    for result, operand in function.in_place.items():
        if not (0 <= result < len(function.results) and 0 <= operand < len(function.operands)):
            raise ImageError(f"result {result} of a function changes operand {operand}: one of them does not exist")
    for start, size in (span for place in variant.kernels.values() for span in (place.ptx, place.cubin)):
        if min(start, size) < 0 or start + size > blob:
            raise ImageError(f"code at {start} of {size} bytes does not lie in a blob of {blob} bytes")
    for launch in function.launches:
        if launch.kernel not in variant.kernels:
            raise ImageError(f"there is no kernel {launch.kernel!r}")
        if any(not 0 <= pointer < len(sizes) for pointer in launch.pointers):
            raise ImageError(f"kernel {launch.kernel!r} takes buffers {launch.pointers} of {len(sizes)}")
        try:
            check_maps(launch.maps, len(sizes))
        except BadMap as error:
            raise ImageError(f"kernel {launch.kernel!r} takes {error}") from None
        if launch.block % 32 or not 0 < launch.block <= 1024:
            raise ImageError(f"kernel {launch.kernel!r} has blocks of {launch.block} threads")
        if launch.product is not None and min(*launch.product.tile, launch.product.stages) < 1:
            raise ImageError(f"kernel {launch.kernel!r} makes tiles of {launch.product.tile}")
        if not 0 <= launch.nulls <= 8 or not 0 <= launch.shared <= 1 << 20:
            raise ImageError(f"kernel {launch.kernel!r} takes {launch.nulls} null pointers, {launch.shared} bytes")
