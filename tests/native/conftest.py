"""The native programs are built and run beside all other tests, from the moment it is known which are wanted."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.native_programs import NativeRun, require_success, start_runs

FOLDER = pytest.StashKey[Path]()


def pytest_collection_finish(session: pytest.Session) -> None:
    wanted = dict.fromkeys(run for item in session.items for run in _runs_of(item))
    if not wanted or session.config.option.collectonly or shutil.which("c++") is None:
        return
    worker: dict[str, str] = getattr(session.config, "workerinput", {})  # of pytest-xdist
    if not worker:
        folder, watched = Path(tempfile.mkdtemp(prefix="lowerkit-native-")), os.getpid()
    else:  # all workers of a session collect the same before any of them runs a test
        folder, watched = Path(tempfile.gettempdir(), f"lowerkit-native-{worker['testrunuid']}"), os.getppid()
    session.config.stash[FOLDER] = folder
    if worker.get("workerid", "gw0") == "gw0":
        folder.mkdir(mode=0o700, exist_ok=not worker)
        start_runs(folder, list(wanted), watched)


def _runs_of(item: pytest.Item) -> list[NativeRun]:
    specification = getattr(item, "callspec", None)
    return [value for value in specification.params.values() if isinstance(value, NativeRun)] if specification else []


@pytest.fixture
def require_native(request: pytest.FixtureRequest) -> Callable[[NativeRun], None]:
    """Returns a function that waits for a program and fails as it did."""
    return partial(require_success, request.config.stash[FOLDER])
