"""For every test: its tier, the seed of its random numbers, golden texts, and the switch that rewrites them."""

from __future__ import annotations

import gc
import json
import logging
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.suite.randomness import SEED, restart
from tests.support.suite.recording import Recorder
from tests.support.suite.tiers import MARKS, split_tier

# How long an example takes is the machine's affair: one that has much else to do must not fail a test by it.
settings.register_profile("lowerkit", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("lowerkit")

RUN_SEED = pytest.StashKey[int]()
CACHE_HOME = pytest.StashKey[str]()
GOLDEN_FOLDER = Path(__file__).parent / "golden"
SECONDS = Path(__file__).parent / "seconds.json"
"""How long the tests of each file took when ``tools/suite/record.py`` ran last."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden texts instead of comparing")
    parser.addoption(
        "--tier",
        choices=("default", "all"),
        default="all",
        help="default: every value of every parameter of a test is in some case; all: every combination",
    )
    parser.addoption("--record", type=Path, metavar="FOLDER", help="see tests/support/suite/recording.py")
    parser.addoption("--seed", type=int, help="seed of all random numbers (0 draws one)")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    given = config.getoption("--seed")
    for mark in MARKS:
        config.addinivalue_line("markers", mark)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # A shell lets what it runs in the background ignore Ctrl-C; commands that tests interrupt would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        # One cache of kernels and programs for the run, empty at its start: workers and child processes inherit it.
        config.stash[CACHE_HOME] = os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="lowerkit-test-cache-")
    folder: Path | None = config.getoption("--record")
    if folder is not None:
        config.pluginmanager.register(Recorder(folder, workers=config.getoption("numprocesses", None) or 0))
    seed = SEED if given is None else given or secrets.randbelow((1 << 32) - 1) + 1
    config.option.seed = config.stash[RUN_SEED] = seed  # an option, so that the workers of pytest-xdist get the same
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(seed)


def pytest_unconfigure(config: pytest.Config) -> None:
    if (home := config.stash.get(CACHE_HOME, None)) is not None:
        shutil.rmtree(home, ignore_errors=True)


def pytest_report_header(config: pytest.Config) -> str:
    return f"random numbers: --seed {config.stash[RUN_SEED]}"


@pytest.hookimpl(trylast=True)  # after -k and -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--tier") == "default":
        items[:], left = split_tier(items)
        config.hook.pytest_deselected(items=left)
    if "PYTEST_XDIST_WORKER" in os.environ:
        # The longest files first: no worker is left with one when the others are done.
        seconds: dict[str, float] = json.loads(SECONDS.read_text())
        items.sort(key=lambda item: -seconds.get(item.nodeid.partition("::")[0], 0.0))


def do_not_listen_to_the_trace() -> None:
    """Keep pytest, which listens to every logger that does not propagate, away from PyTorch's trace.

    For a listener PyTorch writes out each graph and each guard.
    """
    logging.getLogger("torch.__trace").propagate = True


def pytest_collection_finish() -> None:
    do_not_listen_to_the_trace()
    # What collection made stays to the end: no later collection of garbage looks at it.
    gc.collect()
    gc.freeze()


def pytest_runtest_logstart() -> None:
    do_not_listen_to_the_trace()  # PyTorch may have been imported by the test before


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    restart(item.config.stash[RUN_SEED], item.nodeid)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Returns ``golden(name, text)``, which compares ``text`` with ``tests/golden/<name>``."""
    update = bool(request.config.getoption("--update-golden"))

    def compare(name: str, text: str) -> None:
        path = GOLDEN_FOLDER / name
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return
        assert path.exists(), f"{path} does not exist; run pytest with --update-golden and look at the difference"
        assert text == path.read_text(), f"{name} differs from the golden text; --update-golden rewrites it"

    return compare
