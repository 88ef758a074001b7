"""A rank of torchrun for the tests of elastic meshes: the example, which dies or waits where it is told to.

torchrun ... -m tests.support.scale_out.mesh_worker FOLDER

While FOLDER/kill is there and names this rank, it takes the file away and kills itself before its third request.
Before its third request in a mesh of N ranks it makes FOLDER/atN and waits until FOLDER/beyondN is there.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.support.examples import example
from tests.support.mesh.processes import await_value


def main(folder: Path) -> None:
    def before_request(number: int, ranks: int) -> None:
        if number != 2:
            return
        kill = folder / "kill"
        if kill.exists() and kill.read_text() == os.environ["RANK"]:
            kill.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if (folder / "waits").exists():
            (folder / f"at{ranks}").touch()
            await_value((folder / f"beyond{ranks}").exists, "the test does not let this rank go on")

    count = example("elastic_mesh").answer(folder, before_request)
    restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
    sys.stdout.write(f"rank {os.environ['RANK']}, restarts {restarts}: {count} requests\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
