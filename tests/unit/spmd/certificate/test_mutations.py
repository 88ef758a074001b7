"""Every change of what the ranks run is refused, but where all ranks still give what one device gives."""

from __future__ import annotations

from collections import Counter

import pytest

from lowerkit.errors import VerifyError
from tests.support.mesh.mutants import mutants
from tests.support.mesh.split_programs import PROGRAMS, split

MOST = 24
REFUSED = {
    "mlp": {"operand": 18, "dropped": 1, "reduction": 1, "axis": 1, "symbol": 2, "swapped": 2},
    "gathered": {"operand": 20, "dropped": 1, "reduction": 2, "axis": 3, "symbol": 2},
    "look-up": {"operand": 15, "dropped": 1, "reduction": 1, "axis": 2, "number": 20, "swapped": 9},
    "attention": {"operand": 18, "axis": 3, "symbol": 2, "permutation": 2},
    "decode": {"operand": 20, "axis": 3, "symbol": 2, "dropped": 1, "reduction": 1},
}
"""At least so many changes of each kind are refused."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_accepted_gives_the_same(name: str) -> None:
    program = split(*PROGRAMS[name])
    program.prove()
    assert program.is_right(program.module)
    refused: Counter[str] = Counter()
    for mutant in mutants(program.module, MOST):
        try:
            program.prove(mutant.module)
        except VerifyError:
            refused[mutant.kind] += 1
        else:
            assert program.is_right(mutant.module), f"{mutant.kind}: {mutant.text} was accepted"
    assert all(refused[kind] >= count for kind, count in REFUSED[name].items()), dict(refused)
