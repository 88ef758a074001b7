"""Options of the backend: what is unknown or out of range is refused by name, all of it at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lowerkit.errors import UnsupportedError, UsageError
from lowerkit.torch_backend.settings import Settings
from tests.support.torch_backend.beside_eager import compiled


def test_the_defaults() -> None:
    assert Settings.of(None) == Settings.of({}) == Settings()
    assert Settings.of({"target": "cpu:x86-64-v3", "threads": 1}).compile_options().spec.hosts == ("x86-64-v3",)


def test_all_problems_at_once_and_the_nearest_name() -> None:
    with pytest.raises(UsageError) as caught:
        Settings.of({"traget": "cpu", "threads": 0, "freeze": 1, "on_refusal": "stop", "nothing_alike": 1})
    text = str(caught.value)
    assert caught.value.code == "LK1009"
    for part in ("did you mean 'target'?", "threads is 0", "freeze is 1", "'break' or 'error'", "'nothing_alike'"):
        assert part in text


@pytest.mark.parametrize("options", [{"target": "cup"}, {"target": "cpu:x86-64-v9"}])
def test_an_unknown_target_has_its_nearest_name(options: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="did you mean"):
        Settings.of(options)


def test_torch_compile_shows_them() -> None:
    with pytest.raises(Exception, match="did you mean 'target'"):
        compiled(lambda x: x + 1, traget="cpu")(torch.ones(2))
    with pytest.raises(Exception, match="LK1009.*mode"):
        torch.compile(lambda x: x + 2, backend="lowerkit", mode="max-autotune")(torch.ones(2))
