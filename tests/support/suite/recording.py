"""Records which lines each test executes, in its own process, in children and in ranks: ``pytest --record``.

``tools/suite/record.py`` runs the suite under coverage.py with this switched on. Coverage.py keeps the lines; what is
needed beside it is that nothing hides a line from the test that needs it:

* Kernels and programs are made again by each test. A hit in the cache of the run would hide the lines that make them.
* Work for a worker process is done in the test's own process: a worker serves several tests and is killed at the end,
  with what it had recorded.
* What functions of the package remember (``functools.cache``) is forgotten before each test, for the same reason.
* A rank is forked from a server that an earlier test started, so it is told which test it belongs to.
* Files that a test opens are its dependencies too, for example the page whose examples it runs.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
OF_WORKERS = ("test_worker_process.py", "test_compile_pool.py", "test_hostile_packages.py")
"""Tests of the worker processes themselves, which need real ones."""

_IN_PROCESS = threading.Lock()
_Remembering: Any = type(functools.cache(len))


def current_test() -> str:
    """Return the test that is running, as pytest writes it for child processes: its name and its phase."""
    return os.environ.get("PYTEST_CURRENT_TEST", "")


def continue_test(test: str) -> None:
    """Attribute what this process executes from now on to ``test``; does nothing where nothing is recorded."""
    os.environ["PYTEST_CURRENT_TEST"] = test
    coverage = sys.modules.get("coverage")
    running = coverage.Coverage.current() if coverage is not None else None
    if running is not None:
        running.switch_context(test)


class Recorder:
    """A plugin of pytest: see above.

    Args:
        folder: where each worker of the run writes ``opened-WORKER.json``, the files of the project by test, and
            ``seconds-WORKER.json``, the time of the tests of each file.
        workers: how many processes run tests for this one; 0 where it runs them itself.
    """

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder = folder
        self.workers = workers
        self.opened: defaultdict[str, set[str]] = defaultdict(set)
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.test = ""
        self.patches = pytest.MonkeyPatch()
        self._do_not_read_caches(Path(os.environ["XDG_CACHE_HOME"]))
        self._do_work_here()
        sys.addaudithook(self._note)

    def _do_not_read_caches(self, home: Path) -> None:
        from lowerkit.disk_cache import DiskCache

        read = DiskCache.get

        def get(cache: DiskCache, key: str) -> bytes | None:
            return None if home in cache.folder.parents else read(cache, key)

        self.patches.setattr(DiskCache, "get", get)

    def _do_work_here(self) -> None:
        from lowerkit.worker_process import TaskError, Worker

        call = Worker.call

        def call_here(worker: Worker, task: str, data: bytes, seconds: float = 0.0) -> bytes:
            if self.test.partition("::")[0].endswith(OF_WORKERS):
                return call(worker, task, data, seconds)
            module, _, function = task.partition(":")
            with _IN_PROCESS:
                try:
                    return getattr(importlib.import_module(module), function)(data)
                except Exception as error:
                    raise TaskError(f"{type(error).__name__}: {error}") from error

        self.patches.setattr(Worker, "call", call_here)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not self.test or not isinstance(arguments[0], str):
            return
        path = arguments[0]
        if path.endswith((".py", ".pyc")):
            return  # what Python imports is not what a test reads
        if path.startswith(str(ROOT)):
            self.opened[self.test].add(path)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        test = nodeid.partition("[")[0]
        if test != self.test:
            _forget()
        self.test = test

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self) -> None:
        self.test = ""
        worker = os.environ.get("PYTEST_XDIST_WORKER")
        if worker is None and self.workers:
            return  # it ran no test itself, and heard of those of all workers
        opened = {test: sorted(filter(None, map(_in_project, paths))) for test, paths in self.opened.items()}
        for name, content in (("opened", opened), ("seconds", self.seconds)):
            (self.folder / f"{name}-{worker or 'main'}.json").write_text(json.dumps(content))


def _forget() -> None:
    """Empty the caches of the package's functions; contexts and machines of LLVM and MLIR have users, and stay."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "lowerkit":
            for value in list(vars(module).values()):
                if isinstance(value, _Remembering) and value.__name__ not in ("_context", "_machine"):
                    value.cache_clear()


def _in_project(path: str) -> str:
    """Return the path of a file from the root; nothing for one outside of the project or made by a run."""
    resolved = Path(path).resolve()
    if not resolved.is_file() or not resolved.is_relative_to(ROOT):
        return ""
    parts = resolved.relative_to(ROOT).parts
    made = any(part.startswith(".") or part in ("build", "__pycache__") for part in parts)
    return "" if made else "/".join(parts)
