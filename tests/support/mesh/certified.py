"""Certificates of small programs, and how to change them: for tests of what is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from lowerkit.dialect.context import new_context, parse_module
from lowerkit.passes.base import PassContext
from lowerkit.passes.shard.plan import PlanEntry, ShardingPlan
from lowerkit.passes.shard.shard_program import ShardProgram
from lowerkit.program.weights import WeightStore
from lowerkit.runtimes.manifest import Signature
from lowerkit.runtimes.mesh.structs import MeshAxis
from lowerkit.spmd.certificate.certificate import Certificate
from lowerkit.spmd.certificate.recorder import Recorder

_WEIGHT = re.compile(r'"lk.weight"\(\) \{symbol = "([\w.]+)"\} : \(\) -> tensor<((?:\d+x)*)(\w+)>')


def certified(text: str, plan: Mapping[str, Any], mesh: Mapping[str, int]) -> Certificate:
    """Splits a program along each axis by the same plan; its weights have no data."""
    module = parse_module(text, new_context())
    store = WeightStore()
    for name, shape, dtype in _WEIGHT.findall(text):
        if name not in store:
            store.declare(name, dtype, [int(size) for size in shape.split("x") if size])
    recorder = Recorder(store, Signature())
    entries = tuple(PlanEntry(pattern, choice) for pattern, choice in plan.items())
    for axis, ranks in mesh.items():
        recorder.before(module)
        ShardProgram().run(module, PassContext(store, sharding=ShardingPlan(axis, ranks, entries)))
        recorder.after(module, axis, ranks)
    return recorder.certificate([MeshAxis(name, size) for name, size in mesh.items()])


def changed(certificate: Certificate, path: str, value: Any) -> Certificate:
    """Returns a certificate with another value at ``path``, such as ``graphs.1.ops.3``."""
    document = msgspec.to_builtins(certificate)
    *outer, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    inner: Any = document
    for part in outer:
        inner = inner[part]
    assert inner[last] != value, "it is changed"
    inner[last] = value
    return msgspec.convert(document, Certificate)
