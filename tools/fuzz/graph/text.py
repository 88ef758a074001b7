"""A failing function as the text of a test."""

from __future__ import annotations

from graph.function import Function
from graph.run import Outcome, Way


def as_test(function: Function, way: Way, outcome: Outcome, name: str) -> str:
    """A file for ``pytest``, run in the folder that holds ``tools``: what failed, the module as it reads, the test."""
    told = [f"{outcome.kind} {outcome.code}".strip(), *outcome.detail.splitlines()[-14:]]
    given = "".join(f"        {entry!r},\n" for entry in function.given)
    return f'''"""Program {name} of tools/fuzz/graphs.py."""

{_comment(told)}
#
{_comment(function.body().splitlines())}

import sys

sys.path.insert(0, "tools/fuzz")

from graph.children import in_child
from graph.function import Function, Given
from graph.run import Way, outcome_of

WAY = {way!r}
FUNCTION = Function(
    given=[
{given}    ],
    lines={function.lines!r},
    returns={function.returns!r},
)


def test_it() -> None:
    outcome = in_child(lambda: outcome_of([FUNCTION], WAY), 90)
    assert not outcome.failed, outcome
'''


def _comment(lines: list[str]) -> str:
    return "\n".join(f"# {line}".rstrip() for line in lines)
