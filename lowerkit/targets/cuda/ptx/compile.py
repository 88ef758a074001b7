"""Compiles many kernels to PTX: known ones from the disk, the rest in processes of their own.

LLVM's back end for NVIDIA ends its process over what it has no code for; a worker that dies fails its kernel alone.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path

import msgspec

from lowerkit.errors import CodegenError
from lowerkit.reproducers import file_name, write_reproducer
from lowerkit.targets.cpu.objects import lower
from lowerkit.targets.cpu.objects.cache import KernelCache
from lowerkit.targets.cuda.ptx import emit
from lowerkit.targets.plan import LinkSettings
from lowerkit.worker_process import TaskError, WorkerDiedError, call_in_worker

EMIT_TASK = "lowerkit.targets.cuda.ptx.emit:emit_bytes"
KERNEL_SECONDS = 240.0


def compile_to_ptx(
    kernels: Mapping[str, str], level: str, settings: LinkSettings, cache: KernelCache | None
) -> dict[str, str]:
    """Returns the PTX module of each kernel by its name.

    Args:
        kernels: their text by name.
        level: to compile for.
        settings: how many processes, and whom to tell.
        cache: where modules are looked up and kept.

    Raises:
        CodegenError: LK5001, a kernel does not compile, or its worker died; names the reproducer.
    """
    keys = {name: _key(text, level) for name, text in kernels.items()}
    found: dict[str, str] = {}
    for name, key in keys.items():
        data = cache.get(key) if cache is not None else None
        if data is not None:
            found[name] = data.decode()
    missing = sorted((name for name in kernels if name not in found), key=lambda name: (-len(kernels[name]), name))
    workers = min(settings.workers or len(os.sched_getaffinity(0)), len(missing))

    def compile_one(name: str) -> str:
        request = emit.Request(kernels[name], level)
        try:
            reply = call_in_worker(EMIT_TASK, msgspec.msgpack.encode(request), KERNEL_SECONDS)
        except (WorkerDiedError, TaskError) as error:
            raise _failure(name, kernels[name], str(error)) from error
        answer = msgspec.msgpack.decode(reply, type=emit.Reply)
        if answer.error:
            raise _failure(name, kernels[name], answer.error)
        return answer.ptx

    if missing:
        with ThreadPoolExecutor(workers) as pool:
            running = {pool.submit(compile_one, name): name for name in missing}
            try:
                for done in as_completed(running):
                    name = running[done]
                    found[name] = done.result()
                    if cache is not None:
                        cache.put(keys[name], found[name].encode())
                    _tell(settings.on_progress, len(found), len(kernels))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        if cache is not None:
            cache.trim()
    return found


def _tell(on_progress: Callable[[str], None] | None, done: int, count: int) -> None:
    if on_progress is not None:
        on_progress(f"compiling kernels for the GPU {done}/{count}")


def _key(text: str, level: str) -> str:
    """The cache key of a kernel: everything that its PTX depends on."""
    return hashlib.sha256(json.dumps([text, level, *_versions()]).encode()).hexdigest()


@lru_cache(maxsize=1)
def _versions() -> tuple[str, ...]:
    """The tools between text and PTX, and the code of our own lowering."""
    folder = Path(str(lower.__file__)).parent
    files = [
        *sorted(folder.glob("*.py")),
        Path(str(emit.__file__)),
        Path(str(emit.__file__)).parent.parent / "levels.py",
    ]
    own = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    return (importlib.metadata.version("llvmlite"), importlib.metadata.version("torch-mlir"), own)


def _failure(name: str, text: str, reason: str) -> CodegenError:
    try:
        path = write_reproducer(file_name(f"kernel-{name[:32]}", text), f"// {reason.splitlines()[0]}\n{text}", None)
        hint = f"the text of the kernel is in {path}; please report it"
    except OSError as error:
        hint = f"the text of the kernel could not be written: {error}"
    return CodegenError("LK5001", f"the kernel {name} could not be compiled for the GPU: {reason}", hint=hint)
