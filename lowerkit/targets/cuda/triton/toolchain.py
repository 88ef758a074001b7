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

from lowerkit.targets.cuda.levels import PTX_VERSIONS
from lowerkit.targets.cuda.triton.kernel import TritonKernel

PINNED = "3.9.0"  # its compiler has no stable interface
_LEAST_PTX = 80
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
    """

    ptx: str = ""
    shared: int = 0
    nulls: int = 0
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
    return Reply(_tidy(str(module)), int(metadata["shared"]), _parameters(str(module)) - len(kernel.signature))


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
