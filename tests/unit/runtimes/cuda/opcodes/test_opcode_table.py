"""Every opcode of the table stands in an instruction of the tests, and the table is not empty by accident."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from lowerkit.runtimes.cuda.simulated.opcodes.table import known_opcodes

FOLDER = Path(__file__).parents[1]


@cache
def texts() -> str:
    """All constant strings of the tests of this device but what documents them, one on a line."""
    found: list[str] = []
    for path in sorted(FOLDER.rglob("test_*.py")):
        if path.name == Path(__file__).name:
            continue
        tree = ast.parse(path.read_text())
        documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
                found.append(node.value)
    return "\n".join(found)


@pytest.mark.parametrize("opcode", sorted(known_opcodes()))
def test_opcode_has_a_row(opcode: str) -> None:
    assert re.search(rf"(^|[\s;]){opcode}([.\s;]|$)", texts(), re.MULTILINE), f"no test runs {opcode}"


def test_table() -> None:
    assert len(known_opcodes()) > 60
    assert {"fma", "mma", "cp", "atom", "prmt", "shfl"} <= known_opcodes()
