"""The default tier runs every value of every parameter; the nightly tier every combination."""

from __future__ import annotations

import itertools

import pytest

from tests.support.suite.tiers import choose_cases

pytest_plugins = ["pytester"]

CONFTEST = """
import pytest
from tests.support.suite.tiers import MARKS, split_tier

def pytest_configure(config):
    for mark in MARKS:
        config.addinivalue_line("markers", mark)

def pytest_collection_modifyitems(config, items):
    items[:], left = split_tier(items)
    config.hook.pytest_deselected(items=left)
"""


def names_of_default_tier(pytester: pytest.Pytester, text: str) -> list[str]:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(text)
    result = pytester.runpytest_inprocess("--collect-only", "-q", "-p", "no:cacheprovider")
    return [line.partition("::")[2] for line in result.outlines if "::" in line]


def test_every_value_of_every_axis_is_in_some_case() -> None:
    cases = list(itertools.product(range(3), "ab", range(5)))
    chosen = [cases[place] for place in choose_cases(cases)]
    assert len(chosen) == 5
    assert set().union(*map(enumerate, chosen)) == set().union(*map(enumerate, cases))


def test_the_values_of_a_longer_axis_meet_different_values_of_a_shorter_one() -> None:
    cases = list(itertools.product(range(6), "ab"))
    assert {cases[place][1] for place in choose_cases(cases)[3:]} == {"a", "b"}


def test_a_value_that_only_some_combinations_have_is_kept() -> None:
    cases = [("conv", "f32"), ("conv", "bf16"), ("pool", "f32"), ("pool", "i8")]
    assert {cases[place] for place in choose_cases(cases)} >= {("conv", "bf16"), ("pool", "i8")}


def test_one_axis_keeps_all_its_values(pytester: pytest.Pytester) -> None:
    text = """
    import pytest

    @pytest.mark.parametrize("size", [1, 2, 3])
    def test_size(size): ...
    """
    assert names_of_default_tier(pytester, text) == ["test_size[1]", "test_size[2]", "test_size[3]"]


def test_the_values_of_a_parametrized_fixture_are_an_axis(pytester: pytest.Pytester) -> None:
    text = """
    import pytest

    @pytest.fixture(params=["shm", "tcp"])
    def transport(request): ...

    @pytest.mark.parametrize("size", [1, 2])
    def test_size(transport, size): ...
    """
    assert names_of_default_tier(pytester, text) == ["test_size[shm-1]", "test_size[tcp-2]"]


@pytest.mark.parametrize(
    ("mark", "kept"),
    [
        ("every_combination", ["1-a", "1-b", "2-a", "2-b"]),
        ("exhaustive", []),
        ("filterwarnings('error')", ["1-a", "2-b"]),
    ],
)
def test_marks_change_what_the_default_tier_runs(pytester: pytest.Pytester, mark: str, kept: list[str]) -> None:
    text = f"""
    import pytest

    @pytest.mark.{mark}
    @pytest.mark.parametrize("letter", ["a", "b"])
    @pytest.mark.parametrize("size", [1, 2])
    def test_size(size, letter): ...
    """
    assert names_of_default_tier(pytester, text) == [f"test_size[{case}]" for case in kept]


def test_a_parameter_that_is_set_with_others_can_be_an_axis_of_its_own(pytester: pytest.Pytester) -> None:
    text = """
    import pytest

    CASES = [("conv", "v3"), ("conv", "v4"), ("pool", "v3"), ("pool", "v4")]

    @pytest.mark.variants("level")
    @pytest.mark.parametrize(("name", "level"), CASES)
    def test_name(name, level): ...

    @pytest.mark.parametrize(("name", "level"), CASES)
    def test_pair(name, level): ...
    """
    pairs = ["conv-v3", "conv-v4", "pool-v3", "pool-v4"]
    kept = [f"test_name[{name}]" for name in ("conv-v3", "pool-v4")] + [f"test_pair[{name}]" for name in pairs]
    assert names_of_default_tier(pytester, text) == kept


def test_one_case_of_a_list_can_be_left_to_the_nightly_tier(pytester: pytest.Pytester) -> None:
    text = """
    import pytest

    @pytest.mark.parametrize("size", [1, pytest.param(4096, marks=pytest.mark.exhaustive)])
    def test_size(size): ...
    """
    assert names_of_default_tier(pytester, text) == ["test_size[1]"]
