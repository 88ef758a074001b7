"""Accelerators for tests, without a package: targets and devices that entry points could bring."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

from lowerkit.mlir import ir


@dataclass
class Takes:
    """An accelerator that takes ops by their names; ``functions`` are those that it was asked to compile."""

    ops: Sequence[str]
    name: str = "npu"
    gives_back: str = ""
    not_worth: str = ""
    by_regions: bool = False
    functions: list[str] = field(default_factory=list[str])

    def refusal(self, op: ir.Operation) -> str | None:
        return None if op.name in self.ops else f"no {op.name}"

    def unprofitable(self, ops: Sequence[ir.Operation], transfer_bytes: int) -> str | None:
        return self.not_worth or None

    def function_refusal(self, function: ir.Operation) -> str | None:
        self.functions.append(ir.StringAttr(function.attributes["sym_name"]).value)
        return self.gives_back or None


@contextmanager
def installed(targets: dict[str, Any], devices: dict[str, Any]) -> Generator[None]:
    """Lets entry points of the groups of targets and devices give these, beside the CPU."""

    def point(name: str, value: Any) -> Any:
        def load() -> Any:
            if isinstance(value, BaseException):
                raise value
            return value

        dist = SimpleNamespace(name=f"{name}-package", version="1.0")
        return SimpleNamespace(name=name, load=load, dist=dist)

    from lowerkit.runtimes import device
    from lowerkit.targets import registry

    def points(given: dict[str, Any], real: Any) -> Any:
        return lambda: {**real(), **{name: point(name, value) for name, value in given.items()}}

    with (
        mock.patch.object(registry, "known_targets", points(targets, registry.known_targets)),
        mock.patch.object(device, "known_devices", points(devices, device.known_devices)),
        mock.patch("lowerkit.targets.target.known_devices", points(devices, device.known_devices)),
    ):
        yield
