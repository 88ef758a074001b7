"""What the ranks of a target run on, where a user says no more."""

from __future__ import annotations

import pytest

from lowerkit.spmd.cost.machine import CORE, H100, machine_of


@pytest.mark.parametrize(
    ("target", "device"),
    [
        ("cpu", CORE),
        ("cpu:x86-64-v3", CORE),
        ("cuda", H100),
        ("cuda:sm_90+cpu:x86-64-v3", H100),
        ("cpu:x86-64-v4,cuda:sm_80", H100),
        ("acme_npu+cpu", CORE),
    ],
)
def test_the_machine_of_a_target(target: str, device: object) -> None:
    assert machine_of(target).device == device
