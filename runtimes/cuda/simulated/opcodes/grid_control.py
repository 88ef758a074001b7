"""griddepcontrol: launches that overlap those in front of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lowerkit.runtimes.cuda.simulated.batch import Batch
from lowerkit.runtimes.cuda.simulated.decoder import InstructionReader, Step
from lowerkit.runtimes.cuda.simulated.queues.grid_dependency import GridDependency


def _control(read: InstructionReader) -> Step:
    """``wait`` is taken note of; ``launch_dependents`` changes nothing: launches run one after the other here."""
    action = read.required("wait", "launch_dependents")
    read.finish()
    read.count(0)

    def wait(batch: Batch) -> None:
        batch.state(GridDependency).wait()

    return wait if action == "wait" else lambda batch: None


OPCODES: Mapping[str, Callable[[InstructionReader], Step]] = {"griddepcontrol": _control}
