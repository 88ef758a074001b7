"""Triton's compiler, behind this one module: source to PTX, without a GPU, in a worker process.

It is called stage by stage, since its own entry point assembles, too, and keeps files of its own. Nothing is fused to
``fma`` unless a kernel asks for it, denormals are kept, and the PTX is of the oldest version that knows the level.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import linecache
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from lowerkit.runtimes.cuda.levels import capability_of
from lowerkit.runtimes.cuda.tensor_maps import ELEMENTS_OF_PTX, SWIZZLES, MapForm
from lowerkit.targets.cuda.levels import PTX_VERSIONS
from lowerkit.targets.cuda.triton.kernel import TritonKernel

PINNED = "3.9.0"  # its compiler has no stable interface
_LEAST_PTX = 80
_LOADS_TO_BLOCK = 86
_HOPPER = (9, 0)
_WAIT = "\tgriddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;\n"
_DECLARED = re.compile(r"\s*(\.(reg|local|shared|param)\b|//|$)")
_FILE = "kernel.py"
_INLINE = re.compile(r"// begin inline asm\n.*?// end inline asm", re.DOTALL)


class Request(msgspec.Struct):
    """A kernel to compile under a name, for a level."""

    kernel: TritonKernel
    name: str
    level: str


class Reply(msgspec.Struct):
    """The PTX and what launches must know, or why there is none.

    Attributes:
        shared: bytes of dynamic shared memory of a block.
        nulls: pointers behind the parameters that Triton adds; all may be null.
        maps: what it says of the tensor map of each descriptor.
    """

    ptx: str = ""
    shared: int = 0
    nulls: int = 0
    maps: list[MapForm] = []
    error: str = ""


@lru_cache(maxsize=1)
def version() -> str:
    """Returns the version of Triton; ``""`` where it is not installed or another than the pinned one."""
    if importlib.util.find_spec("triton") is None:
        return ""
    found = importlib.metadata.version("triton")
    return found if found == PINNED else ""


@lru_cache(maxsize=1)
def bundled_ptxas() -> Path | None:
    """Returns the assembler that comes with Triton; None without Triton."""
    spec = importlib.util.find_spec("triton") if version() else None
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / "ptxas"
    return path if path.is_file() else None


@lru_cache(maxsize=1)
def bundled_libdevice() -> Path | None:
    """Returns the library of functions of floats that comes with Triton, as bitcode; None without Triton."""
    spec = importlib.util.find_spec("triton") if version() else None
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "backends" / "nvidia" / "lib" / "libdevice.10.bc"
    return path if path.is_file() else None


def compile_bytes(data: bytes) -> bytes:
    """Compiles a :class:`Request`, as a task of :mod:`lowerkit.worker_process`; an error becomes text."""
    request = msgspec.msgpack.decode(data, type=Request)
    try:
        reply = compile_to_ptx(request.kernel, request.name, request.level)
    except Exception as error:
        reply = Reply(error=f"{type(error).__name__}: {error}"[-2000:])
    return msgspec.msgpack.encode(reply)


def compile_to_ptx(kernel: TritonKernel, name: str, level: str) -> Reply:
    """Compiles a kernel; whatever Triton raises goes on."""
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend

    if kernel.descriptors and capability_of(level) < _HOPPER:
        raise ValueError(f"descriptors of tensors need sm_90 or later, not {level}")
    jitted = _load(kernel, name)
    target = GPUTarget("cuda", int(level.removeprefix("sm_")), 32)
    backend: Any = make_backend(target)
    divisible = {(number,): [["tt.divisibility", 16]] for number in range(len(kernel.pointers))}
    source: Any = ASTSource(jitted, kernel.signature, {}, divisible)
    options = backend.parse_options(
        {
            "num_warps": kernel.warps,
            "num_stages": kernel.stages,
            "enable_fp_fusion": False,
            "enable_reflect_ftz": False,
            "ptx_version": max(_LEAST_PTX, PTX_VERSIONS[level]),
        }
    )
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, source.language)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    metadata: dict[str, Any] = {"target": target, **options.__dict__}
    module: Any = source.make_ir(
        target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context
    )
    for stage in ("ttir", "ttgir", "llir", "ptx"):
        module = stages[stage](module, metadata)
    if metadata.get("global_scratch_size", 0) or metadata.get("profile_scratch_size", 0):
        raise ValueError("the kernel needs scratch memory")
    maps = [_map_form(each) for each in metadata.get("tensordesc_meta") or ()]
    if len(maps) != len(kernel.descriptors):
        raise ValueError(f"{len(maps)} tensor maps for {len(kernel.descriptors)} descriptors")
    own = len(kernel.signature) + sum(2 * len(each.box) for each in maps)  # each map with its sizes and strides
    nulls = _parameters(str(module)) - own
    ptx = _tidy(_of_old_version(str(module), options.ptx_version))
    return Reply(_waiting(ptx) if capability_of(level) >= _HOPPER else ptx, int(metadata["shared"]), nulls, maps)


def _map_form(meta: Any) -> MapForm:
    """Returns what launches must know of a tensor map; types have the numbers of the PTX here."""
    element = ELEMENTS_OF_PTX.get(meta["elem_type"])
    if element is None or meta["fp4_padded"] or meta["is_im2col"]:
        raise ValueError(f"a tensor map of another kind: {meta}")
    spans = {number: span for span, number in SWIZZLES.items()}
    return MapForm(element, list(meta["block_size"][::-1]), spans[meta["swizzle"]])


def _load(kernel: TritonKernel, name: str) -> Any:
    """Returns the function of the source; Triton reads its text again through ``linecache``."""
    source = kernel.source.replace("lk_kernel", name)
    linecache.cache[_FILE] = len(source), None, source.splitlines(keepends=True), _FILE
    scope: dict[str, Any] = {"__name__": "lowerkit_kernel", "__file__": _FILE}
    exec(compile(source, _FILE, "exec"), scope)  # noqa: S102 (a kernel that a family of ours wrote)
    return scope[name]


def _parameters(ptx: str) -> int:
    entry = ptx[ptx.index(".entry") :]
    return entry[: entry.index(")")].count(".param")


def _waiting(ptx: str) -> str:
    """Returns the text with a wait for the launch in front at its top, and leave for the one behind to start.

    It stands in the PTX, not in the source: there Triton would let only some of the warps run it where warps have
    roles, and the lines of a kernel would be others than those of its source.
    """
    lines = ptx.splitlines(keepends=True)
    entry = next(number for number, line in enumerate(lines) if ".entry" in line)
    body = next(number for number in range(entry, len(lines)) if lines[number].strip() == "{")
    first = next(number for number in range(body + 1, len(lines)) if not _DECLARED.match(lines[number]))
    return "".join([*lines[:first], _WAIT, *lines[first:]])


def _of_old_version(ptx: str, version: int) -> str:
    """Returns the text with loads of tensors as versions before 8.6 have them: a block is a cluster of its own."""
    if version >= _LOADS_TO_BLOCK:
        return ptx
    return re.sub(r"(cp\.async\.bulk\.tensor\.\dd)\.shared::cta\.global\.", r"\1.shared::cluster.global.", ptx)


def _tidy(ptx: str) -> str:
    """Leaves out what is for debuggers alone, and where the compiler ran."""
    ptx = re.sub(r"^\s*\.section\s+\.debug\w*\s*\{.*?^\s*\}\n", "", ptx, flags=re.MULTILINE | re.DOTALL)
    # A line of a function that Triton put in place names it in one of those sections: the call stands for it.
    ptx = re.sub(r"(\.loc\s+)\d+ \d+ \d+, function_name \S+, inlined_at (\d+ \d+ \d+)", r"\1\2", ptx)
    ptx = _INLINE.sub(_of_one_line, ptx)
    return re.sub(r'(\.file\s+\d+\s+)"[^"]*/([^"/]+)"', r'\1"\2"', ptx)


def _of_one_line(block: re.Match[str]) -> str:
    """Leaves the first place in a block of inline assembly: LLVM counts its lines on as if they were the source's."""
    first, *others = re.split(r"^\s*\.loc\s[^\n]*\n", block[0], flags=re.MULTILINE)
    place = re.search(r"^\s*\.loc\s[^\n]*\n", block[0], flags=re.MULTILINE)
    return first + (place[0] if place is not None else "") + "".join(others)
