"""Runs the cases of a suite in worker processes that live long, so that most cases pay for no start.

Steps
    1. each of ``workers`` threads starts a process (:mod:`lowerkit.conformance.worker`) and waits until it is ready;
    2. it hands it one case after another from a common queue, and waits for the reply up to the time limit;
    3. a process that dies or takes too long is ended; that case alone is ``crashed`` or ``hung``, and a new process
       takes the next one.

A process that cannot even start is no verdict on a case: it ends the run with an error.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec

from lowerkit.conformance.results import CaseResult
from lowerkit.conformance.suite import Case, SuiteReference
from lowerkit.conformance.worker import Reply, Request
from lowerkit.errors import ResourceError, UsageError
from lowerkit.worker_process import read_message, write_message

WORKER_COMMAND: tuple[str, ...] = ("-m", "lowerkit.conformance.worker")
_SHOWN_OF_STDERR = 300


@dataclass(frozen=True)
class RunOptions:
    """How to run.

    Attributes:
        workers: processes at a time.
        time_limit: seconds for one case.
        memory_limit: bytes of data of one process; 0 is no limit.
        start_limit: seconds for a process to start.
    """

    workers: int = 1
    time_limit: float = 60.0
    memory_limit: int = 8 << 30
    start_limit: float = 300.0

    def check(self) -> None:
        """Raises UsageError LK1009 for values out of their ranges."""
        if self.workers < 1:
            raise UsageError("LK1009", f"--workers is {self.workers}, expected at least 1")
        if not self.time_limit > 0:
            raise UsageError("LK1009", f"--time-limit is {self.time_limit}, expected more than 0 seconds")


class _Worker:
    """One process, ready for cases."""

    def __init__(self, suite: SuiteReference, options: RunOptions, folder: str) -> None:
        paths = [str(Path(entry).resolve()) for entry in sys.path if entry]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        # Cases are small and run beside each other: threads inside a case would only wait for one another.
        environment["OMP_NUM_THREADS"] = "1"
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        # A session of its own: Ctrl-C goes to the caller alone, who then ends its workers.
        self._process = subprocess.Popen(  # noqa: S603 (our own interpreter and module)
            [sys.executable, *WORKER_COMMAND, suite.module, suite.argument, str(options.memory_limit)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            cwd=folder,  # where a failing pass leaves its reproducer
            start_new_session=True,
        )
        if self._reply(options.start_limit) is None:
            reason = self.cause_of_death()
            self.close()
            raise ResourceError("LK7003", f"a worker of the conformance run did not start: {reason}")

    def run(self, name: str, limit: float) -> Reply:
        """Runs one case; ``hung`` and ``crashed`` mean that the process is gone."""
        assert self._process.stdin is not None
        self._errors.seek(0)
        self._errors.truncate()
        try:
            write_message(self._process.stdin, Request(name))  # type: ignore[arg-type]
        except BrokenPipeError:
            return Reply("crashed", f"the process died before the case ({self.cause_of_death()})")
        started = time.monotonic()
        reply = self._reply(limit)
        if reply is not None:
            return reply
        if time.monotonic() - started >= limit:
            return Reply("hung", f"no reply in {limit:g} seconds")
        return Reply("crashed", f"the process died ({self.cause_of_death()})")

    def _reply(self, limit: float) -> Reply | None:
        assert self._process.stdout is not None
        timer = threading.Timer(limit, self.end)
        timer.start()
        try:
            data = read_message(self._process.stdout)  # type: ignore[arg-type]
        except ValueError:
            data = None
        finally:
            timer.cancel()
        return None if data is None else msgspec.msgpack.decode(data, type=Reply)

    @property
    def alive(self) -> bool:
        """Whether the process can take a case."""
        return self._process.poll() is None

    def cause_of_death(self) -> str:
        """Says how the process ended, with the end of what it printed."""
        self._end_later()
        code = self._process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self._errors.seek(0)
        printed = " ".join(self._errors.read().decode(errors="replace").split())
        return f"{how}: ...{printed[-_SHOWN_OF_STDERR:]}" if printed else how

    def _end_later(self) -> None:
        """Ends a process whose stdout is closed but that does not leave."""
        timer = threading.Timer(5.0, self.end)
        timer.daemon = True
        timer.start()

    def end(self) -> None:
        """Ends the process and whatever it started, now; a call that waits for its reply returns."""
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Ends the process and closes its streams."""
        self.end()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        self._process.wait()
        self._errors.close()


def run_suite(
    suite: SuiteReference,
    cases: Sequence[Case],
    options: RunOptions | None = None,
    *,
    known: Sequence[CaseResult] = (),
    on_result: Callable[[CaseResult], None] | None = None,
) -> list[CaseResult]:
    """Runs ``cases`` and returns their results in the same order.

    Args:
        suite: where the cases come from.
        cases: what to run.
        options: processes and limits.
        known: results of an earlier run, taken over for the cases that they name.
        on_result: called in this thread with each new result.

    Raises:
        UsageError: LK1009, an option is out of its range.
        ResourceError: LK7003, a worker process cannot be started.
    """
    options = options or RunOptions()
    options.check()
    by_name = {result.name: result for result in known}
    found = {case.name: by_name[case.name] for case in cases if case.name in by_name}
    todo: SimpleQueue[Case] = SimpleQueue()
    missing = [case for case in cases if case.name not in found]
    for case in missing:
        todo.put(case)
    done: SimpleQueue[CaseResult | Exception] = SimpleQueue()
    stopping = threading.Event()
    started_workers: list[_Worker] = []
    folder = tempfile.TemporaryDirectory(prefix="lowerkit-conformance-")

    def serve() -> None:
        worker: _Worker | None = None
        try:
            while not stopping.is_set():
                try:
                    case = todo.get_nowait()
                except Empty:
                    return
                if worker is None:
                    worker = _Worker(suite, options, folder.name)
                    started_workers.append(worker)
                started = time.perf_counter()
                reply = worker.run(case.name, options.time_limit)
                seconds = time.perf_counter() - started
                if reply.verdict == "hung" or not worker.alive:
                    worker.close()
                    worker = None
                done.put(
                    CaseResult(case.name, reply.verdict, reply.reason, round(seconds, 3), case.family, reply.notes)
                )
        except Exception as error:  # handed to the caller's thread
            done.put(error)
        finally:
            if worker is not None:
                worker.close()

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(min(options.workers, len(missing)))]
    for thread in threads:
        thread.start()
    try:
        for _ in missing:
            result = _next(done)
            found[result.name] = result
            if on_result is not None:
                on_result(result)
    finally:
        stopping.set()
        if len(found) < len(cases):
            for worker in list(started_workers):
                worker.end()
        for thread in threads:
            thread.join(timeout=options.time_limit + 10)
        folder.cleanup()
    return [found[case.name] for case in cases]


def _next(done: SimpleQueue[CaseResult | Exception]) -> CaseResult:
    """Waits in short steps, so that Ctrl-C is seen."""
    while True:
        try:
            found = done.get(timeout=0.2)
        except Empty:
            continue
        if isinstance(found, Exception):
            raise found
        return found
