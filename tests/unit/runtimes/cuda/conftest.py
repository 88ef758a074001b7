"""The libcuda of our own, for all tests of the driver of a card."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.support.cuda.fake_driver import Fake, compile_fake


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compile_fake(tmp_path_factory.mktemp("libcuda"))


@pytest.fixture
def fake(fake_library: str) -> Generator[Fake]:
    made = Fake(fake_library)
    yield made
    made.library.fake_reset()
