"""A worker of torchrun for the test of nodes that join and leave: trains the example, and waits for them where told to.

python -m torch.distributed.run ... -m tests.support.membership_worker FOLDER

Alone it waits after step 3, and with another after step 6, until FOLDER/beyond3 or FOLDER/beyond6 is there, or its
agent ends it. Each step is a line of FOLDER/steps: the step and the number of ranks, once for each rank.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch.distributed as dist

from tests.support.examples import example


def main(folder: Path) -> None:
    def after_step(step: int) -> None:
        with (folder / "steps").open("a") as log:
            log.write(f"{step} {dist.get_world_size()}\n")
        if step == {1: 3, 2: 6}[dist.get_world_size()]:
            (folder / f"at{step}").touch()
            while not (folder / f"beyond{step}").exists():
                time.sleep(0.05)

    dist.init_process_group("lowerkit")
    loss = example("elastic").train(folder, after_step=after_step)
    (folder / "loss").write_text(f"{loss!r}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
