"""Processes of our own for work that may crash or never end: compilers of others on input that nobody has tried.

Vocabulary
    task     ``module:function`` inside lowerkit; the function takes bytes and returns bytes.
    worker   a child process that runs one task after another. A crash (a failed assertion in MLIR, a fault in LLVM)
             ends the worker, not the caller; so does a task that uses more processor time than it was given. Elapsed
             time is no measure: a busy machine would turn good work into failures.
    idle     a worker that waits for its next task. Some are kept until the caller's process ends: starting one costs a
             second of processor time.

A message is its length (8 bytes, little endian) and msgpack. A process of its own and not a fork: the caller has
threads, and its ``__main__`` is not imported again.
"""

from __future__ import annotations

import importlib
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import BinaryIO

import msgspec

WORKER_COMMAND: tuple[str, ...] = ("-m", "lowerkit.worker_process")
_MOST_IDLE = 2


class Call(msgspec.Struct):
    """One task, what it takes, and the most processor time it may use, in seconds; 0 is no limit."""

    task: str
    data: bytes
    seconds: float = 0.0


class Answer(msgspec.Struct):
    """What a task returned, or the error that it raised."""

    data: bytes = b""
    error: str = ""


class WorkerDiedError(Exception):
    """The worker ended within a task; the text says how.

    Attributes:
        timed_out: whether it had used the processor time that it was given.
    """

    def __init__(self, text: str, *, timed_out: bool = False) -> None:
        super().__init__(text)
        self.timed_out = timed_out


class TaskError(Exception):
    """The task raised an error, whose text this is."""


def write_message(stream: BinaryIO, message: msgspec.Struct) -> None:
    """Writes one message."""
    data = msgspec.msgpack.encode(message)
    stream.write(struct.pack("<Q", len(data)) + data)
    stream.flush()


def read_message(stream: BinaryIO) -> bytes | None:
    """Returns the bytes of one message; None where the stream ends."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    size = struct.unpack("<Q", head)[0]
    data = stream.read(size)
    return data if len(data) == size else None


class Worker:
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

    def call(self, task: str, data: bytes, seconds: float = 0.0) -> bytes:
        """Runs one task and returns what it returns.

        Raises:
            WorkerDiedError: the process ended; this worker is of no further use.
            TaskError: the task raised an error; the worker goes on.
        """
        assert self.process.stdin is not None, "it was asked for"
        assert self.process.stdout is not None, "it was asked for"
        try:
            write_message(self.process.stdin, Call(task, data, seconds))  # type: ignore[arg-type]
            reply = read_message(self.process.stdout)  # type: ignore[arg-type]
        except (BrokenPipeError, ValueError):
            reply = None
        if reply is None:
            raise self._death(seconds)
        answer = msgspec.msgpack.decode(reply, type=Answer)
        if answer.error:
            raise TaskError(answer.error)
        return answer.data

    def _death(self, seconds: float) -> WorkerDiedError:
        code = self.process.wait()
        if code == -signal.SIGPROF:
            return WorkerDiedError(f"more than {seconds:g} s of processor time were used", timed_out=True)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return WorkerDiedError(f"the compiler process died ({how})")

    def close(self) -> None:
        """Ends the process now."""
        with suppress(OSError):
            self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        self.process.wait()


_idle: list[tuple[int, Worker]] = []
"""With the process that started each: a fork of it must leave them alone."""
_lock = threading.Lock()


@contextmanager
def borrowed_worker() -> Generator[Worker]:
    """Lends an idle worker, or a new one; whatever is raised inside, other than a task's own error, ends it."""
    worker = _take_idle() or Worker()
    try:
        yield worker
    except TaskError:
        _give_back(worker)
        raise
    except BaseException:
        worker.close()
        raise
    _give_back(worker)


def _take_idle() -> Worker | None:
    with _lock:
        while _idle:
            process, worker = _idle.pop()
            if process == os.getpid() and worker.process.poll() is None:
                return worker
    return None


def _give_back(worker: Worker) -> None:
    with _lock:
        if len(_idle) < _MOST_IDLE:
            _idle.append((os.getpid(), worker))
            return
    worker.close()


def end_idle_workers() -> None:
    """Ends the workers that wait for their next task."""
    while (worker := _take_idle()) is not None:
        worker.close()


def call_in_worker(task: str, data: bytes, seconds: float = 0.0) -> bytes:
    """Runs one task in an idle or a new worker: see :meth:`Worker.call`."""
    with borrowed_worker() as worker:
        return worker.call(task, data, seconds)


def _answer(call: Call) -> Answer:
    try:
        module, _, function = call.task.partition(":")
        # SIGPROF ends the process where no handler is installed, in the middle of C++ too.
        signal.setitimer(signal.ITIMER_PROF, call.seconds)
        data = getattr(importlib.import_module(module), function)(call.data)
    except Exception as error:
        return Answer(error=f"{type(error).__name__}: {error}")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
    return Answer(data)


def main() -> None:
    """Serves calls until stdin ends."""
    # Whatever a library prints on stdout must not get between the messages.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while (data := read_message(sys.stdin.buffer)) is not None:
        write_message(replies, _answer(msgspec.msgpack.decode(data, type=Call)))


if __name__ == "__main__":
    main()
