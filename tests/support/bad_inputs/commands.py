"""The client of :mod:`tests.support.bad_inputs.server`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Outcome:
    """What a command left. ``code`` is negative after a signal, ``"timeout"`` when it did not end in time.

    ``seconds`` are of processor time.
    """

    code: int | str
    out: str
    err: str
    seconds: float
    megabytes: int


class CommandServer:
    """Runs commands in forked processes."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-m", "tests.support.bad_inputs.server"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def run(self, commands: list[list[str]], folder: Path, logs: Path, **limits: Any) -> list[Outcome]:
        """Runs all ``commands`` at the same time, in ``folder``.

        Args:
            commands: command lines without ``lowerkit``.
            folder: the folder they run in.
            logs: where their output and their caches and temporary files go.
            limits: ``megabytes``, ``file_bytes``, ``kill_at``, ``change``; see the server.
        """
        (logs / "temporary").mkdir(parents=True, exist_ok=True)
        requests = [
            {
                "arguments": arguments,
                "folder": str(folder),
                "stdout": str(logs / f"{number}.out"),
                "stderr": str(logs / f"{number}.err"),
                "environment": {"TMPDIR": str(logs / "temporary"), "XDG_CACHE_HOME": str(logs / "cache")},
                "megabytes": limits.get("megabytes", 2048),
                "file_bytes": limits.get("file_bytes"),
                "kill_at": limits.get("kill_at"),
                "change": limits.get("change"),
            }
            for number, arguments in enumerate(commands)
        ]
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(requests) + "\n")
        self._process.stdin.flush()
        answers = json.loads(self._process.stdout.readline())
        return [
            Outcome(
                answer["code"],
                (logs / f"{number}.out").read_text(errors="replace"),
                (logs / f"{number}.err").read_text(errors="replace"),
                answer["seconds"],
                answer["megabytes"],
            )
            for number, answer in enumerate(answers)
        ]

    def close(self) -> None:
        """Ends the server."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
