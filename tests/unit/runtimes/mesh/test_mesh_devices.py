"""Accelerators in the ranks of a mesh: each holds its rank's weights, and one that fails ends the group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lowerkit.errors import RuntimeFault
from lowerkit.runtimes.collective.failures import CollectiveFault
from lowerkit.runtimes.collective.group import Group
from lowerkit.runtimes.collective.simulation.simulation import simulate
from lowerkit.runtimes.device import Bytes, HostMemoryDevice
from lowerkit.runtimes.manifest import Buffer, CollectiveCall, DeviceSpec, ProgramSpec, Signature
from lowerkit.runtimes.mesh.simulated import first_failure
from lowerkit.runtimes.session import load
from tests.support.handmade_code import f32
from tests.support.mesh.collective_programs import collective, copy, mesh_program, write_programs
from tests.support.suite.randomness import RANDOM
from tests.support.targets.accelerators import installed


class Memory(HostMemoryDevice):
    """A device that runs nothing, and whose second copy to the host may fail."""

    fails = False
    copies = 0

    def load(self, code: Bytes) -> Any:
        raise AssertionError("there is no code")

    def launch(self, program: Any, addresses: Any, dims: Any, queue: int) -> None:
        raise AssertionError("there is no code")

    def synchronize(self, queue: int) -> None:
        pass

    def copy_out(self, data: Bytes, address: int, queue: int) -> None:
        super().copy_out(data, address, queue)
        self.copies += 1
        if self.copies == 2 and Memory.fails:
            Memory.fails = False
            raise OSError("the bus is on fire")


def gathered() -> ProgramSpec:
    """``y``: the ranks' parts of ``w``, which lie on devices, one behind the other."""
    buffers = [
        Buffer("weight", 24, weight="w", shard="tp", memory="memory"),
        Buffer("arena", 24),
        Buffer("output", 72, index=0),
    ]
    gather = collective(1, 2, CollectiveCall("all_gather", "tp", "f32"))
    return mesh_program(
        Signature(outputs=[f32("y", 3, 6)]), buffers, [copy(0, 1), gather], 3, devices=[DeviceSpec("memory")]
    )


def test_devices_hold_their_ranks_weights_and_end_the_group_where_they_fail(tmp_path: Path) -> None:
    w = RANDOM.standard_normal((3, 6)).astype(np.float32)
    path = write_programs(tmp_path / "model.lk", [gathered()], {"w": w})

    def run(group: Group) -> None:
        session = load(path, threads=1, group=group)
        np.testing.assert_array_equal(session.run()[0], w)
        session.run()

    with installed({}, {"memory": Memory}), simulate(3, patience=3600.0) as simulation:
        Memory.fails = True
        outcomes = simulation.run(run)
    failure = first_failure(outcomes)
    assert isinstance(failure, RuntimeFault) and failure.code == "LK8016"
    assert "the bus is on fire" in failure.message and "of tp=3" in failure.message
    assert failure.hint is not None and "cannot run again" in failure.hint
    failed = outcomes.index(failure)
    for other in (*outcomes[:failed], *outcomes[failed + 1 :]):
        assert isinstance(other, CollectiveFault), other
        assert f"rank {failed}" in other.message, other
