"""A test draws the same numbers in every run of a seed, and others than its neighbours."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from tests.support.suite.randomness import RANDOM, restart


def drawn() -> list[float]:
    return [RANDOM.random(), random.random(), float(np.random.random()), float(torch.rand(()))]


@pytest.mark.parametrize("other", [(2, "a test"), (1, "another test")])
def test_seed_and_name_decide(other: tuple[int, str]) -> None:
    restart(1, "a test")
    first = drawn()
    restart(1, "a test")
    assert drawn() == first
    restart(*other)
    assert not set(drawn()) & set(first)
