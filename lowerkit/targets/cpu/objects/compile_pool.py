"""Compiles many kernels: equal ones once, known ones from the disk, the rest in parallel processes.

Steps
    1. equal texts share one key (:func:`kernel_key`);
    2. keys found in the cache are done;
    3. a few misses of hand-written families are compiled here; more of them, and plain loops, in worker processes
       (:mod:`lowerkit.worker_process`), longest text first. A worker that dies (LLVM may crash on a kernel) or uses
       more than :data:`KERNEL_SECONDS` fails that kernel alone;
    4. new objects go to the cache.

The result depends on the plans only: not on the number of workers, nor on what was cached.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec

from lowerkit.errors import CodegenError
from lowerkit.reproducers import file_name, write_reproducer
from lowerkit.targets.cpu.levels import CpuFeatures
from lowerkit.targets.cpu.objects.cache import KernelCache
from lowerkit.targets.cpu.objects.compile_worker import Reply, Request, compile_request
from lowerkit.targets.plan import DeviceCode
from lowerkit.worker_process import Worker, WorkerDiedError, borrowed_worker

# Starting a worker costs about a second of imports: what this many kernels cost in this process.
MISSES_WORTH_WORKERS = 8
COMPILE_TASK = "lowerkit.targets.cpu.objects.compile_worker:compile_bytes"
KERNEL_SECONDS = 240.0
"""Processor time for one kernel; the largest of ours takes a few seconds."""
_FAMILIES_APART = ("generic",)
"""Their text comes out of the model's own ops through the upstream passes: combinations that nobody has tried."""


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
    plans: Sequence[DeviceCode],
    cpu: CpuFeatures,
    cache: KernelCache | None = None,
    workers: int | None = None,
    *,
    report: CompileReport | None = None,
    reproducer_folder: Path | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> list[bytes]:
    """Returns the object of each plan.

    Args:
        plans: the kernels; equal texts are compiled once and share one bytes object.
        cpu: the level to compile for.
        cache: where objects are looked up and kept; None compiles everything.
        workers: processes; None is one for each core this process may use, 1 compiles everything here.
        report: filled with counts and times.
        reproducer_folder: where the text of a failing kernel is written; None is :func:`reproducers.default_folder`.
        on_progress: called with a line for people as kernels are done.

    Raises:
        CodegenError: LK5001, a kernel does not compile, or its worker crashed; names the reproducer.
    """
    report = report if report is not None else CompileReport()
    keys = [kernel_key(plan.text, cpu) for plan in plans]
    unique = dict(zip(reversed(keys), reversed(plans), strict=True))
    order = list(dict.fromkeys(keys))
    objects: dict[str, bytes] = {}
    for key in order:
        found = cache.get(key) if cache is not None else None
        if found is not None:
            objects[key] = found
    report.kernels, report.cached = len(order), len(objects)
    missing = [key for key in order if key not in objects]
    missing.sort(key=lambda key: (-len(unique[key].text), key))
    count = min(workers if workers is not None else len(os.sched_getaffinity(0)), len(missing))
    requests = [Request(unique[key].text, cpu) for key in missing]

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
            apart = workers != 1 and unique[missing[index]].family in _FAMILIES_APART
            on_reply(index, _compile_apart(request) if apart else compile_request(request))
    else:
        _compile_in_workers(requests, count, on_reply)
    if cache is not None and missing:
        cache.trim_if_due()
    return [objects[key] for key in keys]


def kernel_key(mlir: str, cpu: CpuFeatures) -> str:
    """Returns the cache key of a kernel: everything that its object depends on."""
    parts = [mlir, cpu.llvm_cpu, cpu.llvm_features, *_versions()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@lru_cache(maxsize=1)
def _versions() -> tuple[str, ...]:
    """The tools between text and object, and the code of our own lowering (which changes between releases too)."""
    folder = Path(__file__).parent
    files = ("guarded_division.py", "integer_conversions.py", "library_functions.py", "llvm_compat.py", "lower.py")
    own = hashlib.sha256(b"".join((folder / name).read_bytes() for name in files)).hexdigest()
    return (importlib.metadata.version("llvmlite"), importlib.metadata.version("torch-mlir"), own)


def _failure(plan: DeviceCode, reason: str, folder: Path | None) -> CodegenError:
    first = reason.splitlines()[0]
    text = f"// a kernel of family {plan.family} that does not compile: {first}\n{plan.text}"
    try:
        path = write_reproducer(file_name(f"kernel-{plan.family}", plan.text), text, folder)
        hint = f"the text of the kernel is in {path}; please report it"
    except OSError as error:
        hint = f"the text of the kernel could not be written: {error}"
    return CodegenError("LK5001", f"a kernel of family {plan.family} could not be compiled: {reason}", hint=hint)


def _compile_in_workers(requests: Sequence[Request], count: int, on_reply: Callable[[int, Reply], None]) -> None:
    """Compiles ``requests`` with ``count`` processes; ``on_reply`` runs here, in the caller's thread."""
    todo: SimpleQueue[int] = SimpleQueue()
    done: SimpleQueue[tuple[int, Reply]] = SimpleQueue()
    for index in range(len(requests)):
        todo.put(index)
    busy: set[Worker] = set()
    stopping = threading.Event()

    def serve() -> None:
        while not stopping.is_set():
            index = -1
            try:
                with borrowed_worker() as worker:
                    busy.add(worker)
                    while not stopping.is_set():
                        try:
                            index = todo.get_nowait()
                        except Empty:
                            return
                        done.put((index, _reply_of(worker, requests[index])))
            except WorkerDiedError as error:
                done.put((index, Reply(error=str(error))))

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        for _ in requests:
            on_reply(*_next_reply(done, threads))
    except BaseException:
        stopping.set()
        for worker in list(busy):
            worker.close()
        raise
    finally:
        for thread in threads:
            thread.join(timeout=5)


def _reply_of(worker: Worker, request: Request) -> Reply:
    data = worker.call(COMPILE_TASK, msgspec.msgpack.encode(request), KERNEL_SECONDS)
    return msgspec.msgpack.decode(data, type=Reply)


def _compile_apart(request: Request) -> Reply:
    try:
        with borrowed_worker() as worker:
            return _reply_of(worker, request)
    except WorkerDiedError as error:
        return Reply(error=str(error))


def _next_reply(done: SimpleQueue[tuple[int, Reply]], threads: Sequence[threading.Thread]) -> tuple[int, Reply]:
    """Waits in short steps, so that Ctrl-C is seen, and not for ever when no thread is left to answer."""
    while True:
        try:
            return done.get(timeout=0.2)
        except Empty:
            if not any(thread.is_alive() for thread in threads) and done.empty():
                raise CodegenError("LK5001", "the compiler processes could not be started") from None
