"""An op of the dialect is complete: each table and each test that goes op by op has it."""

from __future__ import annotations

import re
from pathlib import Path

from lowerkit import dialect
from lowerkit.dialect import Lk, LkOperation
from lowerkit.dialect.context import new_context
from lowerkit.dialect.examples import EXAMPLES
from lowerkit.mlir import ir
from lowerkit.passes.canonicalize.origins import SHAPE_KEEPING
from lowerkit.passes.fuse.anchors import region_names
from lowerkit.spmd.certificate.loop_nests.table import NESTS

FOLDER = Path(__file__).resolve().parent
COMPUTING = [op for op in Lk.operations if op.reference is not LkOperation.reference]
"""Ops with a meaning of their own, unlike weights, states, calls and regions."""

QUANTIZATION = {"lk.quantize", "lk.dequantize", "lk.requant"}
"""Ops that are scalar arithmetic by the time regions form."""


FIRST_OPERAND_BY_CHANCE = {"lk.attention", "lk.integer_conv"}
"""Ops whose example has a result like the first operand, though they need not have one."""


def built_in(*files: str) -> set[str]:
    texts = [(FOLDER / file).read_text(encoding="utf-8") for file in files]
    return {op.OPERATION_NAME for op in COMPUTING if any(re.search(rf"\b{op.__name__}\.build", text) for text in texts)}


def names() -> set[str]:
    return {op.OPERATION_NAME for op in COMPUTING}


def test_every_op_is_exported() -> None:
    assert {op.__name__ for op in Lk.operations} - set(dialect.__all__) == set()


def test_every_computing_op_has_a_loop_nest_in_the_certificate() -> None:
    assert names() - set(NESTS) == set()


def test_every_computing_op_names_the_region_around_it() -> None:
    assert names() - region_names().keys() == QUANTIZATION


def test_the_linalg_lowering_of_every_computing_op_is_compared_with_its_reference() -> None:
    assert names() - built_in("test_to_linalg.py", "test_quantize.py") == set()


def test_flops_and_bytes_of_every_computing_op_are_stated() -> None:
    assert names() - built_in("test_costs.py") == set()


def test_ops_that_keep_the_extents_of_their_first_operand_are_known_to() -> None:
    keeping: set[str] = set()
    with new_context(), ir.Location.unknown():
        for op in COMPUTING:
            module = EXAMPLES[op].module()
            for inner in module.body.operations[0].regions[0].blocks[0].operations:
                if inner.name == op.OPERATION_NAME and len(inner.results) == 1:
                    shapes = [list(ir.ShapedType(value.type).shape) for value in (inner.operands[0], inner.results[0])]
                    if shapes[0] == shapes[1]:
                        keeping.add(inner.name)
    assert keeping - FIRST_OPERAND_BY_CHANCE == SHAPE_KEEPING
