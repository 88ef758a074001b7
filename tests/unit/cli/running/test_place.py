"""Where a rank is told its place: by `--nproc` in an option, by a launcher in variables that are all there."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowerkit.cli.running.place import LocalPlace
from lowerkit.errors import UsageError
from lowerkit.launching.torchrun import LauncherPlace

VARIABLES = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "fe80::1", "MASTER_PORT": "29500"}


def told(monkeypatch: pytest.MonkeyPatch, **changes: str) -> LauncherPlace | None:
    for name, value in (VARIABLES | changes).items():
        monkeypatch.setenv(name, value)
    return LauncherPlace.of_environment()


def test_a_local_place_reads_what_it_wrote() -> None:
    place = LocalPlace(Path("/tmp/a:b"), 3, 12, 7)
    option, text = place.options()
    assert option == "--rank-place" and LocalPlace.of(text) == place


@pytest.mark.parametrize("text", ["", "1", "1:2:3", "1:2:3:", "a:2:3:/tmp", "-1:2:3:/tmp"])
def test_a_local_place_of_somebody_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--nproc writes it"):
        LocalPlace.of(text)


def test_a_launcher_names_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    place = told(monkeypatch)
    assert place == LauncherPlace(1, 4, "fe80::1", 29500)


def test_without_a_launcher_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert LauncherPlace.of_environment() is None
    monkeypatch.setenv("MASTER_ADDR", "host")  # a machine's, not a rank's
    assert LauncherPlace.of_environment() is None


@pytest.mark.parametrize("name", list(VARIABLES))
def test_a_variable_that_is_missing_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=f"and not {name}"):
        told(monkeypatch, **{name: ""})


@pytest.mark.parametrize("changes", [{"RANK": "4"}, {"RANK": "-1"}, {"WORLD_SIZE": "two"}, {"MASTER_PORT": "x"}])
def test_variables_that_are_no_place_are_refused(changes: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="expected 0 <= RANK < WORLD_SIZE and a port"):
        told(monkeypatch, **changes)
