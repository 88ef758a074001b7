"""The manifest of an artifact: what ``manifest.json`` holds, as frozen structs.

The compiler writes it, the runtime reads it; nothing else is shared between the two. All sizes are bytes. Every
number that may depend on a symbolic dim is an :data:`~lowerkit.runtimes.expressions.Expr`.

Version rule: a reader refuses another ``format_major`` and any name in ``features`` it does not know. A newer
``format_minor`` only adds fields that may be ignored.

An artifact holds programs over one entry of weights: a model for several levels or places of a mesh, or several models.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec.structs import force_setattr

from lowerkit.runtimes.conditions import Condition, normalize_condition
from lowerkit.runtimes.expressions import Expr, normalize
from lowerkit.runtimes.mesh.structs import CollectiveCall, MeshAxis, StateCut

FORMAT_MAJOR, FORMAT_MINOR = 2, 0
KNOWN_FEATURES = frozenset([
    "states", "control_flow", "guards", "index_checks", "devices", "mesh", "device_states", "places", "collectives",
    "state_cuts",
])  # fmt: skip
"""The required features that this runtime can serve."""

COPY_KERNEL = -1
"""``Step.kernel`` of the built-in copy: bytes of ``buffers[0]`` to ``buffers[1]``, of equal size."""

JUMP_KERNEL = -2
"""``Step.kernel`` of a jump to step ``Step.target``, unless the bool in ``buffers[0]``, if there is one, is true."""

CHECK_KERNEL = -3
"""``Step.kernel`` of a check of indices: ends the run unless ``Step.check`` holds of the integers in ``buffers[0]``."""

COLLECTIVE_KERNEL = -4
"""``Step.kernel`` of a collective: ``Step.collective`` of ``buffers[0]`` to ``buffers[1]``, in all ranks of an axis."""

INDEX_DTYPES = ("i64", "i32", "i16", "i8")

HOST = ""
"""The memory of the host, as buffers name it."""

MANIFEST_ENTRY, WEIGHTS_ENTRY = "manifest.json", "weights.safetensors"
GOLDEN_INPUTS_ENTRY = "golden/inputs.safetensors"
MAIN_PROGRAM = "main"

ITEM_SIZES: dict[str, int] = {
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1, "i1": 1,
    "u64": 8, "u32": 4, "u16": 2,
}  # fmt: skip
"""The dtypes of a signature and their bytes per element. ``i1`` is one byte per element, 0 or 1 (numpy bool)."""

BufferKind = Literal["arena", "weight", "input", "output", "state", "alias"]


class _WithExpressions(msgspec.Struct, frozen=True):
    """Base of the structs that hold expressions: JSON arrays inside become tuples, and are checked."""

    def __post_init__(self) -> None:
        for name in type(self).__struct_fields__:
            value: Any = getattr(self, name)
            if isinstance(value, tuple):
                force_setattr(self, name, normalize(value))


class Dim(msgspec.Struct, frozen=True):
    """A symbolic dim and its inclusive range; ``maximum`` None means unbounded."""

    name: str
    minimum: int = 1
    maximum: int | None = None


class TensorSpec(msgspec.Struct, frozen=True):
    """Name, dtype (a key of :data:`ITEM_SIZES`) and shape of an input, output or state."""

    name: str
    dtype: str
    shape: list[Expr]

    def __post_init__(self) -> None:
        force_setattr(self, "shape", [normalize(entry) for entry in self.shape])


class Guard(msgspec.Struct, frozen=True):
    """A condition on dims of the signature without which the artifact is not right; no run goes on where it fails.

    ``location`` is ``file:line`` of what depends on it, ``operator`` the operator that needs it, where they are known.
    """

    condition: Condition
    location: str = ""
    operator: str = ""

    def __post_init__(self) -> None:
        force_setattr(self, "condition", normalize_condition(self.condition))


class Signature(msgspec.Struct, frozen=True):
    """What a model takes and gives. ``states`` live between runs and are no arguments.

    ``guards`` are checked whenever the dims are bound.
    """

    inputs: list[TensorSpec] = []
    outputs: list[TensorSpec] = []
    states: list[TensorSpec] = []
    dims: list[Dim] = []
    guards: list[Guard] = []


class Buffer(_WithExpressions, frozen=True):
    """A run of bytes that steps read and write.

    Attributes:
        kind: where it lives. ``arena``: planned by the runtime from liveness; ``alias``: inside ``target``.
        size: bytes.
        index: number of the input, output or state.
        weight: name of the tensor in ``weights.safetensors``.
        target: the buffer that an alias lies in (never an alias of a later buffer).
        offset: first byte of an alias within its target.
        first_step, last_step: the steps from which to which the contents matter, inclusive; -1: as the steps say.
            The runtime takes the union of this interval and the one it derives from the steps.
        memory: where it lies: :data:`HOST`, or the name of a device (``arena``, ``weight``, ``state`` and ``alias``
            only); all buffers of a state name one.
        shard: of a weight, the axes of the mesh whose ranks share it (``dp,tp``): the stored tensor holds their parts
            one behind the other, row-major in this order of the axes, and the buffer is the rank's own part.
    """

    kind: BufferKind
    size: Expr
    index: int = -1
    weight: str = ""
    target: int = -1
    offset: Expr = 0
    first_step: int = -1
    last_step: int = -1
    memory: str = HOST
    shard: str = ""


class IndexCheck(msgspec.Struct, frozen=True):
    """Which values indices may have.

    Attributes:
        dtype: of the indices: one of :data:`INDEX_DTYPES`.
        extents: how many elements there are: element ``p`` of the indices is into ``extents[p % len(extents)]``.
        wraps: whether an index from ``-extent`` to -1 counts from the end; without, it is out of range.
        exempt: a value that is in range whatever the extent.
        operator: the op that looks up, for messages.
    """

    dtype: str
    extents: list[Expr]
    wraps: bool = False
    exempt: int | None = None
    operator: str = ""

    def __post_init__(self) -> None:
        force_setattr(self, "extents", [normalize(entry) for entry in self.extents])


class Step(msgspec.Struct, frozen=True):
    """One kernel call, the launch of a device (a kernel of its own), a copy, a jump, a check or a collective.

    Attributes:
        kernel: index into ``ProgramSpec.kernels``, or one of the ``KERNEL`` constants here.
        buffers: buffer ids in the kernel's order: operands, then results.
        dims: the kernel's dims array.
        tasks, scratch_bytes: number of tasks, split over the threads; scratch of one thread.
        check, collective: what a check of indices asks for; what a collective does.
        target: where a jump leads; the number of steps is the end of the run.
        name, kind, family, location: for people: profile, inspect, messages. ``location`` is ``file:line``.
        flops, bytes: work of the step, for reports.
    """

    kernel: int
    buffers: list[int]
    dims: list[Expr] = []
    tasks: Expr = 1
    scratch_bytes: Expr = 0
    target: int = -1
    name: str = ""
    kind: str = ""
    family: str = ""
    location: str = ""
    flops: Expr = 0
    bytes: Expr = 0
    check: IndexCheck | None = None
    collective: CollectiveCall | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "dims", [normalize(entry) for entry in self.dims])
        for name in ("tasks", "scratch_bytes", "flops", "bytes"):
            value: Any = getattr(self, name)
            if isinstance(value, tuple):
                force_setattr(self, name, normalize(value))


class KernelEntry(msgspec.Struct, frozen=True):
    """Where a kernel starts in the code image; with ``device``, the bytes of that device's code that it is."""

    offset: int
    symbol: str
    device: str = HOST
    size: int = 0


class DeviceSpec(msgspec.Struct, frozen=True):
    """A device that a program runs on beside the host: its name among the devices, and the level of its code."""

    name: str
    level: str = ""


class ImportSite(msgspec.Struct, frozen=True):
    """A reference of the code to the import table, for linkers that put the table elsewhere.

    The four bytes at ``offset`` hold the distance from there to slot number ``slot``, plus ``addend``.
    """

    offset: int
    slot: int
    addend: int


class EntryInfo(msgspec.Struct, frozen=True):
    """Size and sha-256 (hex) of an entry of the zip."""

    size: int
    sha256: str


class GoldenSpec(msgspec.Struct, frozen=True):
    """The golden outputs of a program, and how ``verify`` compares them; the inputs are those of the artifact.

    ``bitwise``: equal bytes. ``tolerance``: ``|a - b| <= absolute + relative * |b|`` of each element, NaN equal NaN.
    """

    entry: str
    comparison: Literal["bitwise", "tolerance"] = "bitwise"
    relative: float = 0.0
    absolute: float = 0.0


class ProgramSpec(msgspec.Struct, frozen=True):
    """One program: what runs, and for which machine.

    Attributes:
        signature, buffers, steps, kernels: the model.
        name: what it does in the artifact; :data:`MAIN_PROGRAM` is what a session runs unless it is told otherwise.
        target, level: of the host's code, ``cpu`` and such as ``x86-64-v4``. Programs of one name differ in these.
        requires: LLVM names of the CPU features that the code uses (``avx512f``, ``amx-tile``).
        devices: those that steps run on beside the host.
        mesh: the axes of the ranks that run the program together; one rank where there are none.
        place: where the ranks that run it are along some of these axes; the others run programs of the same name.
        code: the entry with the code of the host (:data:`HOST`) and of each device, by name of the memory.
        imports: names of C math library functions whose addresses the loader writes, 8 bytes each, into the table
            at ``import_table_offset`` of the code image: a multiple of 4096, and the last part of the image.
        import_sites: where the code refers to the table; for ``lowerkit emit-c``, the loader does not need it.
        state_initials: state name to the weight tensor that it starts from; zeros where a state is not named.
        state_cuts: of a state that ranks share, each cut of the parts before it; it has the shape of a part then.
        output_tree, input_tree: how the model nests its outputs and its arguments (JSON; see ``nesting.py``).
        golden: its golden outputs, None where there are none.
        metadata: further facts for people, opaque to the runtime.
    """

    signature: Signature
    buffers: list[Buffer]
    steps: list[Step]
    kernels: list[KernelEntry]
    name: str = MAIN_PROGRAM
    target: str = "cpu"
    level: str = "x86-64-v3"
    requires: list[str] = []
    devices: list[DeviceSpec] = []
    mesh: list[MeshAxis] = []
    place: dict[str, int] = {}
    code: dict[str, str] = {}
    imports: list[str] = []
    import_table_offset: int = 0
    import_sites: list[ImportSite] = []
    state_initials: dict[str, str] = {}
    state_cuts: dict[str, list[StateCut]] = {}
    output_tree: Any = None
    input_tree: Any = None
    golden: GoldenSpec | None = None
    metadata: dict[str, Any] = {}

    @property
    def label(self) -> str:
        """What a user names it by: ``acme_npu+cpu:x86-64-v4``."""
        parts = [(spec.name, spec.level) for spec in self.devices] + [(self.target, self.level)]
        return "+".join(f"{name}:{level}" if level else name for name, level in parts)


class Manifest(msgspec.Struct, frozen=True):
    """The root of ``manifest.json``.

    Attributes:
        format_major, format_minor: version of the artifact format.
        programs: at least one; of one name, the best for its machine first.
        features: required features; a reader that does not know one refuses.
        producer: tool name to version.
        entries: every entry of the zip but the manifest.
        content_id: sha-256 (hex) of the manifest with this field empty: names the artifact, guards the manifest.
    """

    programs: list[ProgramSpec]
    format_major: int = FORMAT_MAJOR
    format_minor: int = FORMAT_MINOR
    features: list[str] = []
    producer: dict[str, str] = {}
    entries: dict[str, EntryInfo] = {}
    content_id: str = ""
