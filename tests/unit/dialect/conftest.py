"""Builds small modules of lk ops, as they are or lowered to linalg, and runs them in the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import pytest

from lowerkit.dialect.base import Array, LkOperation
from lowerkit.dialect.context import new_context
from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.dialect.types import element_type
from lowerkit.mlir import func, ir, run_pipeline

DYNAMIC = ir.ShapedType.get_dynamic_size()

TO_LLVM = (
    "builtin.module(one-shot-bufferize{bufferize-function-boundaries},convert-linalg-to-loops,convert-scf-to-cf,"
    "expand-strided-metadata,lower-affine,convert-to-llvm,reconcile-unrealized-casts)"
)


@pytest.fixture(scope="session")
def session_context() -> ir.Context:
    return new_context()


@pytest.fixture
def context(session_context: ir.Context) -> Iterator[ir.Context]:
    with session_context, ir.Location.unknown():
        yield session_context


Dynamic = bool | tuple[int, ...] | tuple[tuple[int, ...], ...]
"""Which dimensions are unknown: none or all, the same axes of every array, or axes for each array."""


class Build(Protocol):
    def __call__(
        self,
        build: Callable[..., Any],
        arrays: Sequence[Array],
        *,
        dynamic: Dynamic = False,
        lower: bool = False,
    ) -> ir.Module: ...


def tensor_of(array: Array, axes: Sequence[int]) -> ir.Type:
    """The type of an array, with some dimensions unknown."""
    shape = [DYNAMIC if axis in axes else size for axis, size in enumerate(array.shape)]
    return ir.RankedTensorType.get(shape, element_type(array.dtype))


def dynamic_axes(dynamic: Dynamic, index: int) -> Sequence[int]:
    """The unknown dimensions of one array."""
    if isinstance(dynamic, bool):
        return range(8) if dynamic else ()
    axes: list[int] = []
    for position, item in enumerate(dynamic):
        if isinstance(item, int):
            axes.append(item)
        elif position == index:
            axes.extend(item)
    return axes


@pytest.fixture
def module_of(context: ir.Context) -> Build:
    def make(
        build: Callable[..., Any],
        arrays: Sequence[Array],
        *,
        dynamic: Dynamic = False,
        lower: bool = False,
    ) -> ir.Module:
        types = [tensor_of(array, dynamic_axes(dynamic, index)) for index, array in enumerate(arrays)]
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            function = func.FuncOp("main", (types, []))
            block = function.add_entry_block()
        with ir.InsertionPoint(block):
            built = build(*block.arguments)
            values = list(built) if isinstance(built, tuple) else [built]
            func.ReturnOp(values)
        kind = ir.FunctionType.get(types, [value.type for value in values])
        function.attributes["function_type"] = ir.TypeAttr.get(kind)
        if lower:
            lower_block(block)
        assert module.operation.verify()
        return module

    return make


def lower_block(block: ir.Block) -> None:
    """Replaces the computing lk ops of a block by their lowerings."""
    for op in list(block.operations):
        if isinstance(op, LkOperation) and op.operation.name not in ("lk.weight", "lk.state_read", "lk.state_write"):
            for old, new in zip(op.operation.results, op.to_linalg(), strict=True):
                assert old.type == new.type
                old.replace_all_uses_with(new)
            op.operation.erase()


@pytest.fixture
def reference(module_of: Build) -> Callable[..., list[Array]]:
    """Runs the numpy reference of the ops that ``build`` makes."""

    def run(build: Callable[..., Any], *arrays: Array) -> list[Array]:
        return interpret(module_of(build, arrays), arrays)

    return run


@pytest.fixture
def check_lowering(module_of: Build) -> Callable[..., None]:
    """Checks that the lowering computes what the reference does, and that it reaches the LLVM dialect."""

    def check(
        build: Callable[..., Any],
        arrays: Sequence[Array],
        *,
        dynamic: Dynamic = False,
        relative: float = 2e-6,
        absolute: float = 2e-6,
    ) -> None:
        wanted = interpret(module_of(build, arrays, dynamic=dynamic), arrays)
        lowered = module_of(build, arrays, dynamic=dynamic, lower=True)
        assert "lk." not in str(lowered)
        found = interpret(lowered, arrays)
        for left, right in zip(wanted, found, strict=True):
            assert left.dtype == right.dtype
            assert left.shape == right.shape
            np.testing.assert_allclose(right.astype(np.float64), left.astype(np.float64), rtol=relative, atol=absolute)
        run_pipeline(lowered, TO_LLVM)
        names = {op.operation.name.split(".")[0] for op in all_operations(lowered.operation)}
        assert names <= {"llvm", "builtin"}, names

    return check


def all_operations(operation: ir.Operation) -> Iterator[ir.Operation]:
    for region in operation.regions:
        for block in region.blocks:
            for op in block.operations:
                yield op.operation
                yield from all_operations(op.operation)


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(20261120)


@pytest.fixture
def run(context: ir.Context) -> Any:
    def run(text: str, *inputs: Any, **options: Any) -> list[Any]:
        module = ir.Module.parse(text)
        before = str(module)
        results = interpret(module, inputs, **options)
        assert str(module) == before, "the interpreter changed the module"
        return results

    return run
