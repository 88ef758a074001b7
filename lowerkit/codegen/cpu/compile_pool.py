"""Compiles many kernels: equal ones once, known ones from the disk, the rest in parallel processes.

Steps
    1. equal texts share one key (:func:`kernel_key`);
    2. keys found in the cache are done;
    3. a few misses are compiled here; more of them in worker processes, longest text first. A worker that dies (LLVM
       may crash on a kernel) fails that kernel alone;
    4. new objects go to the cache.

The result depends on the plans only: not on the number of workers, nor on what was cached.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec

from lowerkit.codegen.cpu.cache import KernelCache
from lowerkit.codegen.cpu.compile_worker import Reply, Request, compile_request, read_message, write_message
from lowerkit.codegen.cpu.features import CpuFeatures
from lowerkit.codegen.kernel import KernelPlan
from lowerkit.errors import CodegenError

# Starting a worker costs about half a second of imports: what this many kernels cost in this process.
MISSES_WORTH_WORKERS = 8
WORKER_COMMAND: tuple[str, ...] = ("-m", "lowerkit.codegen.cpu.compile_worker")


@dataclass
class CompileReport:
    """What a compilation did.

    Attributes:
        kernels: kernels that differ.
        cached: those found on disk.
        seconds: for each kernel compiled now, family and compile time.
    """

    kernels: int = 0
    cached: int = 0
    seconds: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])


def compile_kernels(
    plans: Sequence[KernelPlan],
    cpu: CpuFeatures,
    cache: KernelCache | None = None,
    workers: int | None = None,
    *,
    report: CompileReport | None = None,
    reproducer_folder: Path = Path(),
    on_progress: Callable[[str], None] | None = None,
) -> list[bytes]:
    """Returns the object of each plan.

    Args:
        plans: the kernels; equal texts are compiled once and share one bytes object.
        cpu: the level to compile for.
        cache: where objects are looked up and kept; None compiles everything.
        workers: processes; None is one for each core this process may use, 1 compiles here.
        report: filled with counts and times.
        reproducer_folder: where the text of a failing kernel is written.
        on_progress: called with a line for people as kernels are done.

    Raises:
        CodegenError: LK5001, a kernel does not compile, or its worker crashed; names the reproducer.
    """
    report = report if report is not None else CompileReport()
    keys = [kernel_key(plan.mlir, cpu) for plan in plans]
    unique = dict(zip(reversed(keys), reversed(plans), strict=True))
    order = list(dict.fromkeys(keys))
    objects: dict[str, bytes] = {}
    for key in order:
        found = cache.get(key) if cache is not None else None
        if found is not None:
            objects[key] = found
    report.kernels, report.cached = len(order), len(objects)
    missing = [key for key in order if key not in objects]
    missing.sort(key=lambda key: (-len(unique[key].mlir), key))
    count = min(workers if workers is not None else len(os.sched_getaffinity(0)), len(missing))
    requests = [Request(unique[key].mlir, cpu) for key in missing]

    def on_reply(index: int, reply: Reply) -> None:
        key = missing[index]
        if reply.error:
            raise _failure(unique[key], reply.error, reproducer_folder)
        objects[key] = reply.data
        report.seconds.append((unique[key].family, reply.seconds))
        if cache is not None:
            cache.put(key, reply.data)
        if on_progress is not None:
            on_progress(f"compiling kernels {len(report.seconds)}/{len(missing)}")

    if count <= 1 or len(missing) < MISSES_WORTH_WORKERS:
        for index, request in enumerate(requests):
            on_reply(index, compile_request(request))
    else:
        _compile_in_workers(requests, count, on_reply)
    if cache is not None and missing:
        cache.trim()
    return [objects[key] for key in keys]


def kernel_key(mlir: str, cpu: CpuFeatures) -> str:
    """Returns the cache key of a kernel: everything that its object depends on."""
    parts = [mlir, cpu.llvm_cpu, cpu.llvm_features, *_versions()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@lru_cache(maxsize=1)
def _versions() -> tuple[str, ...]:
    """The tools between text and object, and the code of our own lowering (which changes between releases too)."""
    folder = Path(__file__).parent
    files = ("guarded_division.py", "llvm_compat.py", "lower.py")
    own = hashlib.sha256(b"".join((folder / name).read_bytes() for name in files)).hexdigest()
    return (importlib.metadata.version("llvmlite"), importlib.metadata.version("torch-mlir"), own)


def _failure(plan: KernelPlan, reason: str, folder: Path) -> CodegenError:
    digest = hashlib.sha256(plan.mlir.encode()).hexdigest()[:12]
    path = folder / f"lowerkit-kernel-{plan.family}-{digest}.mlir"
    try:
        first = reason.splitlines()[0]
        path.write_text(f"// a kernel of family {plan.family} that does not compile: {first}\n{plan.mlir}")
        hint = f"the text of the kernel is in {path}; please report it"
    except OSError as error:
        hint = f"the text of the kernel could not be written to {path}: {error.strerror}"
    return CodegenError("LK5001", f"a kernel of family {plan.family} could not be compiled: {reason}", hint=hint)


class _Worker:
    """One child process."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
        # A session of its own: Ctrl-C goes to the caller alone, who then ends its workers.
        self.process = subprocess.Popen(  # noqa: S603 (our own interpreter and module)
            [sys.executable, *WORKER_COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )

    def compile(self, request: Request) -> Reply | None:
        """Returns the reply; None when the process died."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            write_message(self.process.stdin, request)  # type: ignore[arg-type]
            data = read_message(self.process.stdout)  # type: ignore[arg-type]
        except (BrokenPipeError, ValueError):
            data = None
        return None if data is None else msgspec.msgpack.decode(data, type=Reply)

    def cause_of_death(self) -> str:
        """Says how the process ended."""
        code = self.process.wait()
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def close(self) -> None:
        """Ends the process now."""
        with suppress(OSError):
            self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        self.process.wait()


def _compile_in_workers(requests: Sequence[Request], count: int, on_reply: Callable[[int, Reply], None]) -> None:
    """Compiles ``requests`` with ``count`` processes; ``on_reply`` runs here, in the caller's thread."""
    todo: SimpleQueue[int] = SimpleQueue()
    done: SimpleQueue[tuple[int, Reply]] = SimpleQueue()
    for index in range(len(requests)):
        todo.put(index)
    workers: list[_Worker] = []
    stopping = threading.Event()

    def serve() -> None:
        worker = _Worker()
        workers.append(worker)
        while not stopping.is_set():
            try:
                index = todo.get_nowait()
            except Empty:
                return
            reply = worker.compile(requests[index])
            if reply is None:
                reply = Reply(error=f"the compiler process died ({worker.cause_of_death()})")
                worker.close()
                worker = _Worker()
                workers.append(worker)
            done.put((index, reply))

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        for _ in requests:
            on_reply(*_next_reply(done, threads))
    finally:
        stopping.set()
        for worker in list(workers):
            worker.close()
        for thread in threads:
            thread.join(timeout=5)
        for worker in list(workers):
            worker.close()


def _next_reply(done: SimpleQueue[tuple[int, Reply]], threads: Sequence[threading.Thread]) -> tuple[int, Reply]:
    """Waits in short steps, so that Ctrl-C is seen, and not for ever when no thread is left to answer."""
    while True:
        try:
            return done.get(timeout=0.2)
        except Empty:
            if not any(thread.is_alive() for thread in threads) and done.empty():
                raise CodegenError("LK5001", "the compiler processes could not be started") from None
