"""The kernel cache and the compile pool under faults: poisoned, cut, raced, full, read-only, crashing compilers."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lowerkit import worker_process
from lowerkit.errors import CodegenError
from lowerkit.targets.cpu.levels import cpu_features
from lowerkit.targets.cpu.objects import compile_pool
from lowerkit.targets.cpu.objects.cache import KernelCache
from lowerkit.targets.cpu.objects.compile_pool import CompileReport, compile_kernels, kernel_key
from lowerkit.targets.plan import DeviceCode
from tests.support.scalar_kernels import add_constant, unary_plan

CPU = cpu_features("x86-64-v3")
KEY = "ab" * 32


def test_roundtrip_and_clear(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    assert cache.get(KEY) is None
    cache.put(KEY, b"object")
    assert cache.get(KEY) == b"object"
    assert cache.info().entries == 1
    assert cache.clear() == 1
    assert cache.info().entries == 0
    assert cache.get(KEY) is None


@pytest.mark.parametrize("fault", ["empty", "cut", "flipped", "foreign", "longer"])
def test_a_damaged_entry_is_dropped_and_rebuilt(tmp_path: Path, fault: str) -> None:
    cache = KernelCache(tmp_path)
    plan = add_constant(1)
    (good,) = compile_kernels([plan], CPU, cache, 1)
    path = next(tmp_path.glob("??/*"))
    data = path.read_bytes()
    broken = {
        "empty": b"",
        "cut": data[:-1],
        "flipped": data[:-5] + bytes([data[-5] ^ 1]) + data[-4:],
        "foreign": b"\x7fELF" + data,
        "longer": data + b"x",
    }[fault]
    path.write_bytes(broken)
    report = CompileReport()
    assert compile_kernels([plan], CPU, cache, 1, report=report) == [good]
    assert cache.rejected == 1
    assert report.cached == 0
    assert path.read_bytes() == data


@pytest.mark.parametrize("open_to_all", ["entry", "folder"])
def test_what_everybody_may_write_is_not_read(tmp_path: Path, open_to_all: str) -> None:
    """A checksum that fits is no proof of who wrote an entry, and kernels are executed."""
    cache = KernelCache(tmp_path / "kernels")
    cache.put(KEY, b"object")
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    path = next(cache.folder.glob("??/*"))
    (path if open_to_all == "entry" else cache.folder).chmod(0o777)
    assert cache.get(KEY) is None
    assert cache.rejected == 1
    (path if open_to_all == "entry" else cache.folder).chmod(0o700)
    assert cache.get(KEY) == b"object"


def test_sixteen_writers_of_one_key(tmp_path: Path) -> None:
    """Processes, so that the renames race; each reads what it or another wrote, whole."""
    code = (
        "import sys; from pathlib import Path; from lowerkit.targets.cpu.objects.cache import KernelCache\n"
        "c = KernelCache(Path(sys.argv[1])); body = b'z' * 300000\n"
        "for i in range(20):\n"
        "    c.put('cd' * 32, body); assert c.get('cd' * 32) == body\n"
        "assert c.problem is None and c.rejected == 0\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(16)]
    assert [process.wait(timeout=120) for process in processes] == [0] * 16
    assert KernelCache(tmp_path).info().entries == 1
    assert not list(tmp_path.glob("??/.*"))


def test_threads_share_a_cache(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: cache.put(f"{number:064x}", bytes([number]) * 100), range(64)))
    assert all(cache.get(f"{number:064x}") == bytes([number]) * 100 for number in range(64))


def test_the_oldest_entries_go_first(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path, limit=3000)
    for number in range(5):
        cache.put(f"{number:064x}", b"x" * 900)
        os.utime(next(tmp_path.glob(f"??/{number:064x}")), (number + 1, number + 1))
    assert cache.get(f"{0:064x}") is not None  # used now: no longer the oldest
    assert cache.trim() == 2
    kept = [number for number in range(5) if cache.get(f"{number:064x}") is not None]
    assert kept == [0, 3, 4]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    cache = KernelCache(tmp_path)
    assert len(compile_kernels([add_constant(1)], CPU, cache, 1)) == 1
    assert cache.problem is not None


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    cache = KernelCache(tmp_path / "file")
    assert len(compile_kernels([add_constant(1)], CPU, cache, 1)) == 1
    assert cache.problem is not None
    assert str(cache.folder) in cache.problem


def test_keys_depend_on_text_and_level() -> None:
    first, second = add_constant(1).text, add_constant(2).text
    keys = {kernel_key(text, cpu_features(level)) for text in (first, second) for level in ("x86-64-v3", "x86-64-v4")}
    assert len(keys) == 4


def test_equal_texts_are_compiled_once() -> None:
    report = CompileReport()
    objects = compile_kernels([add_constant(1), add_constant(2), add_constant(1)], CPU, None, 1, report=report)
    assert objects[0] is objects[2]
    assert report.kernels == 2
    assert len(report.seconds) == 2


def test_workers_give_the_same_objects() -> None:
    plans = [add_constant(value) for value in range(compile_pool.MISSES_WORTH_WORKERS + 1)]
    lines: list[str] = []
    parallel = compile_kernels(plans, CPU, None, 2, on_progress=lines.append)
    assert parallel == compile_kernels(plans, CPU, None, 1)
    assert lines[-1] == f"compiling kernels {len(plans)}/{len(plans)}"


def test_a_failing_kernel_leaves_a_reproducer(tmp_path: Path) -> None:
    bad = unary_plan("%y = math.nonsense %x : f32")
    with pytest.raises(CodegenError) as caught:
        compile_kernels([bad], CPU, None, 1, reproducer_folder=tmp_path)
    assert caught.value.code == "LK5001"
    (file,) = tmp_path.iterdir()
    assert str(file) in (caught.value.hint or "")
    assert file.read_text().endswith(bad.text)


def test_a_crashing_compiler_fails_its_kernel_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker dies by a signal on one text; the caller lives and says which kernel it was."""
    stand_in = tmp_path / "crash.py"
    stand_in.write_text(
        "import os, signal, lowerkit.targets.cpu.objects.compile_worker as worker\n"
        "from lowerkit.worker_process import main\n"
        "original = worker.compile_request\n"
        "def compile_request(request):\n"
        "    if 'constant 3.0' in request.mlir: os.kill(os.getpid(), signal.SIGSEGV)\n"
        "    return original(request)\n"
        "worker.compile_request = compile_request\n"
        "main()\n"
    )
    worker_process.end_idle_workers()
    monkeypatch.setattr(worker_process, "WORKER_COMMAND", (str(stand_in),))
    plans = [add_constant(value) for value in range(compile_pool.MISSES_WORTH_WORKERS + 1)]
    with pytest.raises(CodegenError, match="SIGSEGV"):
        compile_kernels(plans, CPU, None, 2, reproducer_folder=tmp_path)
    (reproducer,) = tmp_path.glob("lowerkit-kernel-*.mlir")
    assert "constant 3.0" in reproducer.read_text()


def test_ctrl_c_ends_the_workers(tmp_path: Path) -> None:
    """Whatever the caller raises while kernels are compiled, no worker is left."""
    seen: list[int] = []
    plans = [add_constant(value) for value in range(compile_pool.MISSES_WORTH_WORKERS + 2)]

    def interrupt(_: str) -> None:
        seen.extend(_workers())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile_kernels(plans, CPU, None, 2, on_progress=interrupt)
    assert seen
    assert not set(seen) & set(_workers())


def _workers() -> list[int]:
    """The compile workers among the children of this process: earlier tests may have left others.

    By the parents that the processes name: the lists of children that the threads of this process have lose an entry
    where a thread of another test ends in between.
    """
    ours = (f"PPid:\t{os.getpid()}\n", worker_process.WORKER_COMMAND[-1])
    return [int(folder.name) for folder in Path("/proc").iterdir() if _is_worker(folder, *ours)]


def _is_worker(folder: Path, parent: str, command: str) -> bool:
    try:
        return (
            folder.name.isdecimal()
            and parent in (folder / "status").read_text()
            and command in (folder / "cmdline").read_text()
        )
    except OSError:  # it ended in between
        return False


def test_a_worker_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    worker_process.end_idle_workers()
    monkeypatch.setattr(worker_process, "WORKER_COMMAND", ("-c", "raise SystemExit(9)"))
    plans: list[DeviceCode] = [add_constant(value) for value in range(compile_pool.MISSES_WORTH_WORKERS + 1)]
    with pytest.raises(CodegenError, match="exit code 9"):
        compile_kernels(plans, CPU, None, 2, reproducer_folder=tmp_path)
