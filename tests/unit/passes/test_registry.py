"""Textual pipelines: names, options, and what is said about mistakes."""

from __future__ import annotations

import pytest

from lowerkit.errors import UsageError
from lowerkit.passes.registry import find_pass, parse_pipeline, pass_names


def test_names_and_options() -> None:
    pipeline = parse_pipeline("simplify, fold-constants{bound=4096},simplify")
    assert [one_pass.name for one_pass in pipeline] == ["simplify", "fold-constants", "simplify"]
    assert vars(pipeline[1])["bound"] == 4096


def test_every_pass_can_be_built_from_its_name() -> None:
    for name in pass_names():
        assert parse_pipeline(name) == [find_pass(name)()]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no-such-pass", "no pass named"),
        ("simplify{nothing=1}", "no option"),
        ("fold-constants{bound=many}", "must be a int"),
        ("fold-constants{bound}", "no option"),
        ("simplify fold-constants", "cannot be read"),
        ("simplify{", "cannot be read"),
    ],
)
def test_mistakes_are_named(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        parse_pipeline(text)
    assert caught.value.code == "LK3003"
