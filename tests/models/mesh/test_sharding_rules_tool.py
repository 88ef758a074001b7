"""tools/sharding_rules.py: our rules and DTensor's own strategies, where both are known."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from lowerkit.passes.shard.shardings import WHOLE, Sharding, Split

_SPEC = importlib.util.spec_from_file_location("sharding_rules", Path(__file__).parents[3] / "tools/sharding_rules.py")
assert _SPEC is not None
assert _SPEC.loader is not None
TOOL: Any = importlib.util.module_from_spec(_SPEC)
sys.modules["sharding_rules"] = TOOL
_SPEC.loader.exec_module(TOOL)


@pytest.fixture(scope="module")
def mesh() -> Generator[Any]:
    store: Any = FakeStore()
    dist.init_process_group("fake", rank=0, world_size=2, store=store)
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("name", "way", "result"),
    [
        ("add", (Split(0), Split(0)), "Split(axis=0)"),
        ("mm", (Split(1), Split(0)), "Partial(reduction='sum')"),
        ("mm", (WHOLE, Split(1)), "Split(axis=1)"),
        ("softmax", (Split(1),), None),
        ("layer_norm", (Split(0), WHOLE, WHOLE), "Split(axis=0)"),
        ("sum of one dimension", (Split(1),), "Partial(reduction='sum')"),
        ("transpose", (Split(1),), "Split(axis=0)"),
        ("cat", (Split(1), Split(1)), None),
    ],
)
def test_both_say_so(name: str, way: tuple[Sharding, ...], result: str | None, mesh: Any) -> None:
    function, shapes = TOOL.CASES[name]
    assert TOOL.ours(function, shapes, way).result == result
    assert TOOL.theirs(function, shapes, way, mesh).result == result


def test_each_way_but_all_whole() -> None:
    assert TOOL.ways([(4, 6), (3, 2)]) == [
        (WHOLE, Split(1)), (Split(0), WHOLE), (Split(0), Split(1)), (Split(1), WHOLE), (Split(1), Split(1))
    ]  # fmt: skip
