"""The table of loops: what slices of an op give is a slice of the whole, or a term of it, for each loop of each op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from lowerkit.dialect.context import new_context, parse_module
from lowerkit.dialect.examples import EXAMPLES
from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.mlir import ir
from lowerkit.passes.rewriting import main_block, operations
from lowerkit.passes.shard.local_copy import localize
from lowerkit.passes.shard.loops.nest import Nest
from lowerkit.passes.shard.loops.table import TABLE, WHOLE_ONLY, nest_of
from lowerkit.passes.shard.shardings import Partial, Sharding, Split, local_type
from tests.unit.passes.shard.loop_cases import CASES

Array = np.ndarray[Any, Any]
RANKS = 2
JOIN = {"sum": np.sum, "product": np.prod, "min": np.min, "max": np.max}
FLOATS = {"f32": np.float32, "f64": np.float64}
INTEGERS = {"i8": np.int8, "i32": np.int32, "i64": np.int64, "i1": np.bool_}
WHOLE_KINDS = ("lk.state_read", "lk.state_write", "lk.collective_start", "lk.collective_done")
"""Ops whose content is not theirs alone to compute; see the tests of ``shard-program``."""


LETTERS = {"parallel": "P", "sum": "S", "product": "R", "max": "X", "min": "N"}


def one_op(module: ir.Module) -> tuple[ir.Operation, list[int | None]]:
    """Returns the op of a case, and for each operand the argument that it is."""
    block = main_block(module)
    op = operations(block)[-2]
    arguments = list(block.arguments)
    return op, [arguments.index(value) if value in arguments else None for value in op.operands]


def values(module: ir.Module) -> list[Array]:
    random = np.random.default_rng(7)
    found: list[Array] = []
    for number, argument in enumerate(main_block(module).arguments):
        kind = ir.RankedTensorType(argument.type)
        name, shape = str(kind.element_type), list(kind.shape)
        if name in FLOATS:
            found.append((random.random(shape) + 0.5 if number else random.standard_normal(shape)).astype(FLOATS[name]))
        else:
            found.append(
                random.integers(0, 2 if name == "i1" or number == 0 else 3, shape).astype(INTEGERS[name])
                + (name == "i32")
            )
    return found


def part(value: Array, held: Sharding, rank: int) -> Array:
    return np.split(value, RANKS, held.axis)[rank] if isinstance(held, Split) else value


def on_rank(text: str, loop: int, inputs: Sequence[Array], rank: int) -> list[Array]:
    """Runs one rank's slice of a loop."""
    module = parse_module(text, new_context())
    with module.context, ir.Location.unknown():
        op, arguments = one_op(module)
        nest = nest_of(op)
        assert nest is not None
        placed = nest.along(loop, RANKS)
        assert placed is not None
        held: Mapping[int, Sharding] = {
            argument: placed.results[nest.destinations[number]]
            if number in nest.destinations
            else placed.operands[number]
            for number, argument in enumerate(arguments)
            if argument is not None
        }
        block = main_block(module)
        for number, argument in enumerate(block.arguments):
            argument.set_type(local_type(argument, held.get(number, Partial()), RANKS))
        made = operations(block)[:-2]
        for number, value in enumerate(op.operands):  # destinations that the function makes itself
            if arguments[number] is None and number in nest.destinations:
                value.set_type(local_type(value, placed.results[0], RANKS))
        if made and not isinstance(placed.results[0], Partial):
            for each in made[1:]:
                each.results[0].set_type(local_type(each.results[0], placed.results[0], RANKS))
        localize(op, nest, placed, RANKS)
        types = [value.type for value in block.arguments], [value.type for value in operations(block)[-1].operands]
        block.owner.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*types))
        assert module.operation.verify()
    return interpret(
        module, [part(value, held.get(number, Partial()), rank) for number, value in enumerate(inputs)], {}.__getitem__
    )


def shared_loops(nest: Nest) -> list[int]:
    return [number for number in range(len(nest.loops)) if nest.along(number, RANKS) is not None]


@pytest.mark.parametrize("name", CASES)
def test_slices_of_a_loop_give_slices_or_terms(name: str) -> None:
    text, letters = CASES[name]
    module = parse_module(text, new_context())
    inputs = values(module)
    whole = interpret(module, inputs, {}.__getitem__)
    nest = nest_of(one_op(module)[0])
    assert nest is not None
    loops = shared_loops(nest)
    assert "".join(sorted(LETTERS[nest.loops[loop].kind] for loop in loops)) == "".join(sorted(letters))
    for loop in loops:
        placed = nest.along(loop, RANKS)
        assert placed is not None
        ranks = [on_rank(text, loop, inputs, rank) for rank in range(RANKS)]
        for number, (wanted, held) in enumerate(zip(whole, placed.results, strict=True)):
            found = [results[number] for results in ranks]
            if isinstance(held, Partial):
                np.testing.assert_allclose(JOIN[held.reduction](np.stack(found), axis=0), wanted, rtol=1e-5, atol=1e-6)
            else:
                assert isinstance(held, Split)
                np.testing.assert_allclose(np.concatenate(found, held.axis), wanted, rtol=1e-6, atol=1e-6)


def test_every_op_of_the_dialect_has_loops_or_is_known_to_have_none() -> None:
    names = {kind.OPERATION_NAME for kind in EXAMPLES}
    assert names == {name for name in {*TABLE, *WHOLE_ONLY} if name.startswith("lk.")}


def test_every_entry_of_the_table_is_proved() -> None:
    proved = {one_op(parse_module(text, new_context()))[0].name for text, _ in CASES.values()}
    assert set(TABLE) - proved == {*WHOLE_KINDS, "lk.check_indices"}
