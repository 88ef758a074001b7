"""What the tests put into the processes of Ray: a session with a gate, and a predictor that looks at its memory."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from lowerkit.runtimes.session import load
from lowerkit.serving import LowerkitPredictor
from lowerkit.serving.version import Runner
from tests.support.mesh.processes import await_value

Array = np.ndarray[Any, Any]


class GatedSession:
    """A session whose runs end when there is a file beside the artifact, ``.go`` in the place of ``.lk``."""

    def __init__(self, path: Path, threads: int) -> None:
        session = load(path, threads=threads)
        self.program, self.manifest, self.collect = session.program, session.manifest, session.collect
        self._run, self._gate = session.run, path.with_suffix(".go")

    def run(self, *inputs: Any) -> list[Array]:
        await_value(self._gate.exists, "nobody opened the gate")
        return self._run(*inputs)


def load_gated(path: Path, threads: int) -> Runner:
    return GatedSession(path, threads)


class LookingPredictor(LowerkitPredictor):
    """Writes down, once two processes have the artifact, how much of it lies in this one's memory: ``PID.kb``."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        folder = Path(path).parent
        (folder / f"{os.getpid()}.here").touch()
        await_value(lambda: len(list(folder.glob("*.here"))) == 2, "the other process did not come")
        (folder / f"{os.getpid()}.kb").write_text("{} {}".format(*mapped(path)))


def mapped(path: str) -> tuple[int, int]:
    """Returns how many kilobytes of a file are mapped and present, and how many of them are this process's alone."""
    present = own = 0
    within = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            within = line.endswith(path)
        elif within and line.startswith("Rss:"):
            present += int(line.split()[1])
        elif within and line.startswith(("Private_Dirty:", "Anonymous:")):
            own += int(line.split()[1])
    return present, own
