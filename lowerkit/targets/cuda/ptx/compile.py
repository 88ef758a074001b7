"""Compiles many kernels to PTX and machine code: known ones from the disk, the rest in processes of their own.

LLVM's back end for NVIDIA ends its process over what it has no code for; a worker that dies fails its kernel alone.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path

import msgspec

from lowerkit.errors import CodegenError
from lowerkit.reproducers import file_name, write_reproducer
from lowerkit.runtimes.cuda import image
from lowerkit.runtimes.cuda.tensor_maps import MapForm
from lowerkit.targets.cpu.objects import lower
from lowerkit.targets.cpu.objects.cache import KernelCache
from lowerkit.targets.cuda.model.cards import card_of
from lowerkit.targets.cuda.planned import FastKernel, Kernel, LoopKernel
from lowerkit.targets.cuda.ptx import emit, ptxas
from lowerkit.targets.cuda.triton import toolchain
from lowerkit.targets.plan import LinkSettings
from lowerkit.worker_process import TaskError, WorkerDiedError, call_in_worker

WAIT = "griddepcontrol.wait;"
EMIT_TASK = "lowerkit.targets.cuda.ptx.emit:emit_bytes"
TRITON_TASK = "lowerkit.targets.cuda.triton.toolchain:compile_bytes"
KERNEL_SECONDS = 240.0
_MOST_WARPS = 16
# Instructions that are for one architecture alone; without them PTX for ``sm_90a`` is PTX for ``sm_90``.
_BOUND = re.compile(r"\b(wgmma|setmaxnreg|tcgen05)\b|\.multicast::cluster|\btensormap\.|\bredux\.sync\.[\w.]+\.f32\b")


class Compiled(msgspec.Struct, frozen=True):
    """A compiled kernel, and what its launches must know: see :class:`~lowerkit.runtimes.cuda.image.Launch`.

    Attributes:
        threads: of a block, where the compiler says so; 0 where its launches do.
        maps: what the compiler says of its tensor maps.
    """

    family: str
    ptx: str
    threads: int = 0
    shared: int = 0
    nulls: int = 0
    cubin: bytes = b""
    registers: int = 0
    spills: int = 0
    static_shared: int = 0
    maps: tuple[MapForm, ...] = ()

    @property
    def waits(self) -> bool:
        """Whether the kernel itself waits for the launch in front of it, so that it may start early."""
        return WAIT in self.ptx

    @property
    def in_image(self) -> image.CompiledKernel:
        """The kernel as an image holds it."""
        bound = _BOUND.search(self.ptx) is not None
        kernel = image.Kernel(self.family, bound, self.registers, self.spills, self.static_shared)
        return image.CompiledKernel(kernel, self.ptx.encode(), self.cubin)


def compile_kernels(
    kernels: Mapping[tuple[str, str], Kernel],
    settings: LinkSettings,
    cache: KernelCache | None,
    assemblers: Mapping[str, Path],
) -> dict[tuple[str, str], Compiled]:
    """Returns each kernel compiled.

    Args:
        kernels: by level and name.
        settings: how many processes, and whom to tell.
        cache: where kernels are looked up and kept.
        assemblers: for each level the ptxas that makes machine code; none where a level is left out.

    Raises:
        CodegenError: LK5001, a kernel does not compile, its worker died, or ptxas does not take it; names the
            reproducer.
    """
    keys = {each: _key(kernel, each[0], assemblers.get(each[0])) for each, kernel in kernels.items()}
    found: dict[tuple[str, str], Compiled] = {}
    for each, key in keys.items():
        data = cache.get(key) if cache is not None else None
        if data is not None:
            found[each] = msgspec.msgpack.decode(data, type=Compiled)
    missing = sorted(
        (each for each in kernels if each not in found), key=lambda each: (-len(_text(kernels[each])), each)
    )
    workers = min(settings.workers or len(os.sched_getaffinity(0)), len(missing))

    def compile_one(each: tuple[str, str]) -> Compiled:
        level, name = each
        return _without_spills(kernels[each], name, level, assemblers.get(level))

    if missing:
        with ThreadPoolExecutor(workers) as pool:
            running = {pool.submit(compile_one, each): each for each in missing}
            try:
                for done in as_completed(running):
                    each = running[done]
                    found[each] = done.result()
                    if cache is not None:
                        cache.put(keys[each], msgspec.msgpack.encode(found[each]))
                    _tell(settings.on_progress, len(found), len(kernels))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        if cache is not None:
            cache.trim_if_due()
    return found


def _without_spills(kernel: Kernel, name: str, level: str, assembler: Path | None) -> Compiled:
    """Compiles a kernel; one in Triton that runs out of registers, with more warps, which have fewer values each."""
    first = _assembled(_compile(kernel, name, level), level, assembler)
    found = first
    while found.spills and isinstance(kernel, FastKernel) and kernel.kernel.warps < _MOST_WARPS:
        kernel = FastKernel(msgspec.structs.replace(kernel.kernel, warps=2 * kernel.kernel.warps))
        found = _assembled(_compile(kernel, name, level), level, assembler)
    fits = found.shared + found.static_shared <= card_of(level).block_shared  # more warps may exchange more at a time
    return found if not found.spills and fits else first


def _assembled(compiled: Compiled, level: str, assembler: Path | None) -> Compiled:
    if assembler is None:
        return compiled
    code = ptxas.assemble(assembler, compiled.ptx, level)
    return msgspec.structs.replace(
        compiled, cubin=code.cubin, registers=code.registers, spills=code.spills, static_shared=code.shared
    )


def _compile(kernel: Kernel, name: str, level: str) -> Compiled:
    try:
        if isinstance(kernel, LoopKernel):
            request = msgspec.msgpack.encode(emit.Request(kernel.mlir, level))
            answer = msgspec.msgpack.decode(call_in_worker(EMIT_TASK, request, KERNEL_SECONDS), type=emit.Reply)
            if not answer.error:
                return Compiled("threads", answer.ptx)
            raise _failure(name, kernel, answer.error)
        request = msgspec.msgpack.encode(toolchain.Request(kernel.kernel, name, level))
        reply = msgspec.msgpack.decode(call_in_worker(TRITON_TASK, request, KERNEL_SECONDS), type=toolchain.Reply)
    except (WorkerDiedError, TaskError) as error:
        raise _failure(name, kernel, str(error)) from error
    if reply.error:
        raise _failure(name, kernel, reply.error)
    ptx = reply.ptx
    if _BOUND.search(ptx) is None:
        ptx = re.sub(r"^(\.target sm_\d+)[af]$", r"\1", ptx, flags=re.MULTILINE)
    return Compiled(
        kernel.kernel.family, ptx, 32 * kernel.kernel.warps, reply.shared, reply.nulls, maps=tuple(reply.maps)
    )


def _tell(on_progress: Callable[[str], None] | None, done: int, count: int) -> None:
    if on_progress is not None:
        on_progress(f"compiling kernels for the GPU {done}/{count}")


def _text(kernel: Kernel) -> str:
    return kernel.mlir if isinstance(kernel, LoopKernel) else kernel.kernel.source


def _key(kernel: Kernel, level: str, assembler: Path | None) -> str:
    """The cache key of a kernel: everything that its code depends on."""
    tools = [ptxas.version(assembler), assembler.stat().st_size] if assembler is not None else []
    text = msgspec.json.encode(kernel).decode()
    return hashlib.sha256(json.dumps([text, level, *tools, *_versions()]).encode()).hexdigest()


@lru_cache(maxsize=1)
def _versions() -> tuple[str, ...]:
    """The tools between text and PTX, and the code of our own lowering."""
    folder = Path(str(lower.__file__)).parent
    here = Path(__file__).parent
    files = [*sorted(folder.glob("*.py")), *sorted(here.glob("*.py")), here.parent / "levels.py"]
    files.append(Path(str(toolchain.__file__)))
    own = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    versions = (importlib.metadata.version("llvmlite"), importlib.metadata.version("torch-mlir"))
    return (*versions, toolchain.version(), own)


def _failure(name: str, kernel: Kernel, reason: str) -> CodegenError:
    mark = "#" if isinstance(kernel, FastKernel) else "//"
    text = _text(kernel)
    try:
        path = write_reproducer(
            file_name(f"kernel-{name[:32]}", text), f"{mark} {reason.splitlines()[0]}\n{text}", None
        )
        hint = f"the text of the kernel is in {path}; please report it"
    except OSError as error:
        hint = f"the text of the kernel could not be written: {error}"
    return CodegenError("LK5001", f"the kernel {name} could not be compiled for the GPU: {reason}", hint=hint)
