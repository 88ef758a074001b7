"""Equations of ``einsum``: many operands, diagonals, ellipses; with extents that are known, and open ones."""

from __future__ import annotations

import random
import string

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import lowerkit

EQUATIONS = [
    "bi,bi,bi->b", "ij,jk,kl->il", "ij,j,i->i", "ij,ij,ij->j", "b,b,b->", "bhi,bhj,bh->bij", "abb,abc->ab", "ii->i",
    "ii->", "iij->j", "iii->i", "iijj->ij", "...ij,...jk->...ik", "...i,i->...", "...ij->...ji", "i...,...j->...",
    "a,b,c->abc", "abcd,d,c,b->a", "i,i", "ij,jk", "ba", "bn,anm,bm->ba", "...,...->...", "b...c,c...->b",
    "ab,bc,cd,de->ea", "ij,ik->", "bhwc,hkc,wkc->bhwk", "ijk,lkj->il", "a...,b...->ab...", "...ab,...b->...a",
]  # fmt: skip


class Equations(nn.Module):
    """All equations, each on operands of its own."""

    def __init__(self, equations: list[str]) -> None:
        super().__init__()
        self.equations = equations

    def forward(self, operands: list[list[Tensor]]) -> list[Tensor]:
        return [torch.einsum(equation, *values) for equation, values in zip(self.equations, operands, strict=True)]


def drawn(equation: str, rng: random.Random) -> list[Tensor]:
    """Operands that fit; one dim in ten has one element."""
    extents = {letter: rng.randint(2, 5) for letter in string.ascii_letters}
    hidden = [rng.randint(2, 3), rng.randint(2, 3)]
    operands: list[Tensor] = []
    for term in equation.partition("->")[0].replace("...", ".").split(","):
        shape: list[int] = []
        for letter in term:
            if letter == ".":
                shape += hidden[rng.randint(0, 2) :]
            else:
                shape.append(1 if rng.random() < 0.1 and term.count(letter) == 1 else extents[letter])
        operands.append(torch.randn(shape))
    return operands


def random_equation(rng: random.Random) -> str:
    """One to four operands of one to three labels out of five."""
    count = rng.randint(1, 4)
    terms = ["".join(rng.choices("abcde", k=rng.randint(1, 3))) for _ in range(count)]
    terms = [term[:1] + "..." + term[1:] if rng.random() < 0.2 else term for term in terms]
    used = sorted(set("".join(terms)) - {"."})
    output = "".join(rng.sample(used, rng.randint(0, len(used))))
    return ",".join(terms) + "->" + ("..." if "..." in "".join(terms) else "") + output


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "open"])
@pytest.mark.parametrize("listed", [True, pytest.param(False, marks=pytest.mark.exhaustive)], ids=["listed", "random"])
def test_equations(listed: bool, symbolic: bool) -> None:
    rng = random.Random(5)
    equations = EQUATIONS if listed else [random_equation(rng) for _ in range(30)]
    operands = [drawn(equation, rng) for equation in equations]
    model = Equations(equations)
    dims = None
    if symbolic:
        dims = ([[{a: Dim.AUTO for a, n in enumerate(v.shape) if n > 1} for v in values] for values in operands],)
    wanted = model(operands)
    program = torch.export.export(model, (operands,), dynamic_shapes=dims, strict=False)
    found = lowerkit.compile(program).session(operands)
    for equation, ours, eager in zip(equations, found, wanted, strict=True):
        np.testing.assert_allclose(ours, eager, rtol=1e-4, atol=1e-5, err_msg=equation)
