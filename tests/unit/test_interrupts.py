"""A Ctrl-C within a held block comes right after it, once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Generator

import pytest

from lowerkit.interrupts import heed_interrupts, hold_interrupts


@pytest.fixture
def heeded() -> Generator[None]:
    """A process that was started in the background ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeded")
def test_an_interrupt_comes_after_the_block() -> None:
    finished: list[bool] = []

    def interrupted() -> None:
        with hold_interrupts():
            signal.raise_signal(signal.SIGINT)
            finished.append(True)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert finished == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_nothing_is_raised_without_one_nor_held_in_another_thread() -> None:
    with hold_interrupts():
        pass
    reached: list[bool] = []

    def run() -> None:
        with hold_interrupts():
            reached.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert reached == [True]


@pytest.mark.usefixtures("heeded")
def test_an_interrupt_that_was_lost_is_raised_at_the_next_look() -> None:
    with heed_interrupts() as check:
        check()
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            check()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_interrupts_that_are_ignored_stay_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with heed_interrupts() as check:
            signal.raise_signal(signal.SIGINT)
            check()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
