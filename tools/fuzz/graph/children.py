"""Runs a function in a forked child with a deadline and a limit of memory."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import time
from collections.abc import Callable

from graph.run import Outcome

_MEMORY = 12 << 30


def in_child(work: Callable[[], Outcome], seconds: float) -> Outcome:
    """The outcome of ``work``, of its process's death (crashed), or of its deadline (hung).

    ``seconds`` bounds its time on a processor; it may wait six times as long, as other work may hold the cores.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _work(work, writer, seconds)
    os.close(writer)
    data, deadline, hung = b"", time.monotonic() + 6 * seconds, False
    while True:
        ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            hung = True
            os.kill(child, signal.SIGKILL)
            break
        part = os.read(reader, 1 << 16)
        if not part:
            break
        data += part
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if hung or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
        return Outcome("hung", "", f"no result after {(6 if hung else 1) * seconds:.0f} s")
    if not data:
        number = os.waitstatus_to_exitcode(status)
        return Outcome("crashed", signal.Signals(-number).name if number < 0 else f"exit {number}")
    return Outcome(**json.loads(data))


def _work(work: Callable[[], Outcome], writer: int, seconds: float) -> None:
    """The child's whole life."""
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        used = resource.getrusage(resource.RUSAGE_SELF)
        limit = int(used.ru_utime + used.ru_stime + seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        outcome = work()
        text = json.dumps({"kind": outcome.kind, "code": outcome.code, "detail": outcome.detail}).encode()
        while text:
            text = text[os.write(writer, text) :]
        code = 0
    finally:
        os._exit(code)
