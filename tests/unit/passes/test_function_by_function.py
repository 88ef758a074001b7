"""A pass runs on @main and on every body, each alone in a module, and finds them in their old order afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import pytest

from lowerkit.dialect.context import new_context
from lowerkit.errors import PassError
from lowerkit.mlir import ir
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.function_by_function import run_on_functions
from lowerkit.program.weights import WeightStore

TEXT = """
func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> { return %x : tensor<?xf32> }
func.func @main.one(%x: tensor<?xf32>) -> tensor<?xf32> { return %x : tensor<?xf32> }
func.func @main.two(%x: tensor<?xf32>) -> tensor<?xf32> { return %x : tensor<?xf32> }
"""


def names(module: ir.Module) -> list[str]:
    return [ir.StringAttr(op.operation.attributes["sym_name"]).value for op in module.body.operations]


@dataclass(frozen=True)
class Watches(Pass):
    name: ClassVar[str] = "watches"
    changes: str = ""
    fails: str = ""
    seen: list[tuple[list[str], Mapping[tuple[int, int], tuple[int, int | None]]]] = field(default_factory=list)

    def run(self, module: ir.Module, context: PassContext) -> bool:
        self.seen.append((names(module), context.extent_ranges))
        context.remark(self.name, names(module)[0])
        if names(module) == [self.fails]:
            raise PassError("LK3001", "as asked")
        return names(module) == [self.changes]


def context_of(weights: WeightStore) -> PassContext:
    return PassContext(weights, extent_ranges={(0, 0): (1, 9)})


def test_each_function_alone() -> None:
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(TEXT)
        context, watcher = context_of(WeightStore()), Watches(changes="main.two")
        assert run_on_functions(watcher, module, context)
        assert [seen for seen, _ in watcher.seen] == [["main"], ["main.one"], ["main.two"]]
        assert [bool(ranges) for _, ranges in watcher.seen] == [True, False, False], "ranges are of main's arguments"
        assert len(context.remarks) == 3
        assert names(module) == ["main", "main.one", "main.two"]
        assert not run_on_functions(Watches(changes="none"), module, context)


def test_functions_come_back_when_a_pass_fails() -> None:
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(TEXT)
        with pytest.raises(PassError):
            run_on_functions(Watches(fails="main.one"), module, context_of(WeightStore()))
        assert names(module) == ["main", "main.one", "main.two"]
        assert module.operation.verify()
