"""A worker of torchrun for the tests of elastic restarts: trains the example, and dies where it is told to.

python -m torch.distributed.run ... -m tests.support.elastic_worker FOLDER RANK STEP
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch.distributed as dist

from tests.support.examples import example


def main(folder: str, rank: int, fatal_step: int) -> None:
    def after_step(step: int) -> None:
        if dist.get_rank() == rank and step == fatal_step and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)

    dist.init_process_group("lowerkit")
    loss = example("elastic").train(Path(folder), after_step=after_step)
    restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
    print(
        f"rank {dist.get_rank()} of {dist.get_world_size()}, restarts {restarts}: loss {loss!r}\n", end="", flush=True
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
