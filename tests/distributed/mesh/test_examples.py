"""The examples of meshes in docs/distributed do what they say."""

from __future__ import annotations

import pytest

from tests.support.examples import example


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pipeline", "4 stages, 4 micro-batches: largest error"),
        ("experts", "1 all_to_all"),
        ("beyond_memory", "tp=2,pp=2: largest error"),
    ],
    ids=["pipeline", "experts", "beyond-memory"],
)
def test_an_example(name: str, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    example(name).main()  # in this process, which has loaded torch; the examples start their ranks as processes
    printed = capfd.readouterr().out
    assert said in printed
    assert "largest error" in printed
