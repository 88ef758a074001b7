"""The tiers of the suite: which cases of a test the default runs, and which are left to ``--all``.

Vocabulary
    axis     one parameter of a test, or several that one ``parametrize`` sets together; a parametrized fixture too.
    case     a test with one value on each of its axes.
    variant  a case that differs from the others only in how the values are combined.

Where a test has several axes, the default tier runs cases in which every value of every axis appears at least once, and
the nightly tier (``--all``) runs every combination. These marks change that:

    every_combination  the default runs the whole product: the combinations are what is tested.
    variants(names)    the named parameters, set together with others by one ``parametrize``, are axes of their own.
    exhaustive         the test, or the case of a ``pytest.param``, is left to the nightly tier.

``tools/suite/record.py`` proves from a recorded run that no line is reached only by the nightly tier.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import pytest

Case = tuple[Hashable, ...]
"""The values of a case, one for each axis."""

MARKS = (
    "every_combination: the default tier runs every combination of this test's parameters",
    "variants(*names): these parameters are axes of their own, though one parametrize sets them with others",
    "exhaustive: only the nightly tier (tools/test.sh --all) runs this test or case",
)


def choose_cases(cases: Sequence[Case]) -> list[int]:
    """Return the places of cases in which every value of every axis appears at least once, in their order.

    Greedy: the next case is the one with the most values that have not appeared; among equals, the one whose values
    were used least, so that the values of the longer axes meet different values of the shorter ones.
    """
    left = {place: set(enumerate(case)) for place, case in enumerate(cases)}
    missing: set[tuple[int, Hashable]] = set().union(*left.values())
    used: Counter[tuple[int, Hashable]] = Counter()
    chosen: list[int] = []
    while missing:
        gains = {place: (len(own & missing), -sum(used[value] for value in own)) for place, own in left.items()}
        best = max(gains, key=gains.__getitem__)
        used.update(left[best])
        missing -= left.pop(best)
        chosen.append(best)
    return sorted(chosen)


def split_tier(items: Iterable[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the items of the default tier, in their order, and those that are left to the nightly tier."""
    groups: defaultdict[str, list[tuple[pytest.Item, Case]]] = defaultdict(list)
    ordered = list(items)
    for item in ordered:
        if item.get_closest_marker("exhaustive") is None:
            groups[item.nodeid.partition("[")[0]].append((item, _axes(item)))
    kept: set[pytest.Item] = set()
    for group in groups.values():
        if len(group) == 1 or group[0][0].get_closest_marker("every_combination") is not None:
            kept.update(item for item, _ in group)
        else:
            kept.update(group[place][0] for place in choose_cases([case for _, case in group]))
    return [item for item in ordered if item in kept], [item for item in ordered if item not in kept]


def _axes(item: pytest.Item) -> Case:
    """Return the case of an item: its values by axis, each as something to compare by."""
    specification = getattr(item, "callspec", None)
    if specification is None:
        return ()
    values: dict[str, Any] = dict(specification.params)
    apart = {name for mark in item.iter_markers("variants") for name in mark.args}
    axes: list[Hashable] = []
    for mark in item.iter_markers("parametrize"):
        names = _argument_names(mark.args[0] if mark.args else mark.kwargs["argnames"])
        together = [name for name in names if name not in apart]
        for axis in [together, *([name] for name in names if name in apart)]:
            axes.append(tuple(_comparable(values.pop(name)) for name in axis))
    return (*axes, *((_comparable(value),) for value in values.values()))


def _argument_names(stated: str | Sequence[str]) -> list[str]:
    return [name.strip() for name in stated.split(",")] if isinstance(stated, str) else list(stated)


def _comparable(value: Any) -> Hashable:
    """Return the value where it can be compared, else which object it is: one list gives all cases the same object."""
    try:
        hash(value)
    except TypeError:
        return id(value)
    return type(value), value
