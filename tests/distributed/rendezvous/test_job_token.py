"""Where the job token comes from, and which ones are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lowerkit.errors import LowerkitError, UsageError
from lowerkit.runtimes.collective.rendezvous.job_token import (
    ENVIRONMENT_VARIABLE,
    draw_token,
    given_token,
    shared_token,
)
from lowerkit.runtimes.collective.rendezvous.store import MemoryStore
from tests.support.ranks import succeed


def test_the_argument_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    assert given_token(None) is None
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "e" * 32)
    assert given_token(None) == b"e" * 32
    assert given_token(b"a" * 16) == b"a" * 16
    path = tmp_path / "token"
    path.write_text("f" * 40 + "\n")
    path.chmod(0o600)
    assert given_token(path) == b"f" * 40


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_files_that_others_can_read_are_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    path.write_text("f" * 40)
    path.chmod(mode)
    with pytest.raises(UsageError, match=f"LK1010.*mode {mode:o}"):
        given_token(path)


@pytest.mark.parametrize("length", [0, 15, 1025])
def test_lengths_are_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, length: int) -> None:
    with pytest.raises(UsageError, match=f"LK1010.* {length} bytes"):
        given_token(b"x" * length)
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "x" * length)
    with pytest.raises(UsageError, match="LK1010"):
        given_token(None)
    path = tmp_path / "token"
    path.write_bytes(b"x" * length)
    path.chmod(0o600)
    with pytest.raises(UsageError, match="LK1010"):
        given_token(path)


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="LK1010"):
        given_token(tmp_path / "none")
    with pytest.raises((UsageError, OSError)):
        given_token(tmp_path)


def test_rank_0_draws_a_token_for_all() -> None:
    store = MemoryStore()
    tokens = succeed(3, lambda rank: shared_token(store, "world", rank, 10.0))
    assert len(set(tokens)) == 1
    assert len(tokens[0]) == 64


def test_without_rank_0_there_is_none() -> None:
    with pytest.raises(LowerkitError, match=r"LK8007.*rank 0 published no job token"):
        shared_token(MemoryStore(), "world", 1, 0.05)


def test_tokens_differ() -> None:
    assert len({draw_token() for _ in range(100)}) == 100


def test_what_is_no_text_or_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, os.fsdecode(b"\xff" * 20))
    assert given_token(None) == b"\xff" * 20
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "none", "a\0b"):
        with pytest.raises(UsageError, match="LK1010"):
            given_token(path)
