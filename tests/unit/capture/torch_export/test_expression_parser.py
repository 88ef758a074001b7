"""Symbolic expressions of files: read by a grammar, never evaluated; the same as sympy reads where torch wrote them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import sympy
import torch
from torch.utils._sympy import functions

from lowerkit.capture.torch_export.pt2.expression_parser import parse_symbolic
from lowerkit.capture.torch_export.pt2.expression_tree import Call, Number, Source
from lowerkit.capture.torch_export.pt2.sympy_builder import to_sympy

S0 = "Symbol('s0', positive=True, integer=True)"
WRITTEN = [
    S0,
    f"Add(Mul(Integer(3), {S0}), Integer(-2))",
    f"FloorDiv({S0}, Integer(2))",
    f"Max(Integer(1), TruncToInt(Mul(Float('1.5', precision=53), ToFloat({S0}))))",
    f"Mod(Mul({S0}, {S0}), Integer(7))",
    f"Pow({S0}, Integer(2))",
    f"And(Equality({S0}, Integer(4)), Not(StrictLessThan({S0}, Integer(2))))",
    "Rational(1, 2)",
    "s0 + 2*s1 - s0//3",
]
REFUSED = [
    "__import__('os').system('x')", "Symbol('x', commutative=True)", "(lambda: 1)()", "exec('x')", "s0.__class__",
    "[1]",
    "Pow(10, 10**9)", "((((2**64)**64)**64)**64)", "PowByNatural(Integer(2), Integer(10000000))",
    "LShift(1, 10**12)",
    "1 if 2", "Integer(1", "L['x'].size()[0]", "Max()", "9" * 100, "Add(1, 2", "x" * 300, "math.inf.x", "1 1",
    "Symbol('os.x')", "f'{1}'", "Max(*x)", "Pow(2, x=3)", "Mod(1, 0)", "1/0", "Integer(True)", "'a' + 'b'", "",
    "(" * 100_000, "+".join(["1"] * 5000), "s0 := 1", "`x`", "s0;s1", "Float('nan', precision=53)",
]  # fmt: skip


@pytest.mark.parametrize("text", WRITTEN)
def test_expressions_are_those_that_sympy_reads(text: str) -> None:
    names = "FloorDiv Mod TruncToInt ToFloat"
    known = {name: getattr(functions, name) for name in names.split(" ")}
    expected = sympy.sympify(text.replace("s0//3", "FloorDiv(s0, 3)"), locals=known)  # pyright: ignore
    assert to_sympy(text) == expected


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:24])
def test_refused(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="."):
        to_sympy(text)
    assert not list(tmp_path.iterdir())


def test_guards() -> None:
    size = Source(("x",), "size", 0)
    assert parse_symbolic("(L['x'].size()[0] // 2) != 1") == Call(
        "Ne", (Call("FloorDiv", (size, Number(2))), Number(1))
    )
    assert parse_symbolic("L['kw']['k'][3].storage_offset()") == Source(("kw", "k", 3), "storage_offset")
    both = parse_symbolic("L['x'].size()[0] > 1 and not (L['n'] < 2)")
    assert both == Call("And", (Call("Gt", (size, Number(1))), Call("Not", (Call("Lt", (Source(("n",)), Number(2))),))))


@pytest.mark.parametrize("text", ["L['x'].__class__", "L['x'].size()", "L['x'].resize_()[0]", "L['x'].f()", "L[x]"])
def test_sources_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="."):
        parse_symbolic(text)


def test_mutated_texts_are_read_or_refused() -> None:
    """Whatever the text: a tree or ``ValueError``, and sympy is never asked to evaluate it."""
    generator = random.Random(5)
    pieces = [
        *"()[],.=+-*/%<>'\"01 ",
        "Symbol",
        "Integer",
        "Pow",
        "L['x']",
        ".size()[0]",
        "__class__",
        "**",
        "if",
        "else",
    ]
    found = 0
    for _ in range(3000):
        text = list(generator.choice(WRITTEN))
        for _ in range(generator.randrange(1, 4)):
            place = generator.randrange(len(text))
            text[place : place + generator.randrange(3)] = generator.choice(pieces)
        try:
            to_sympy("".join(text))
            found += 1
        except ValueError:
            pass
    assert 0 < found < 3000


def test_torch_names_of_the_functions_are_known() -> None:
    """Each function that torch's deserializer knows is known here too."""
    from torch._export.serde.serialize import GraphModuleDeserializer

    code = GraphModuleDeserializer.deserialize.__code__.co_consts
    named = {name for name in vars(functions) if name in {text for text in code if isinstance(text, str)}}
    from lowerkit.capture.torch_export.pt2.expression_tree import FUNCTIONS

    assert torch.__version__ and named - FUNCTIONS.keys() <= {"IsNonOverlappingAndDenseIndicator"}
