"""Ctrl-C held back while code runs that does not survive an exception from nowhere, and never lost."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Generator
from types import FrameType


@contextlib.contextmanager
def hold_interrupts() -> Generator[None]:
    """Delivers a Ctrl-C that comes within the block right after it.

    Loading the MLIR bindings calls Python from C++ in places where an exception ends the process. Signals reach the
    main thread alone, so in others nothing is held.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, _: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
        if held:
            signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def heed_interrupts() -> Generator[Callable[[], None]]:
    """Gives a function that raises KeyboardInterrupt again where one was lost.

    Python drops an exception that meets it in a callback of a weak reference, of an import among others: a Ctrl-C would
    do nothing. Nothing is changed where interrupts are ignored, or handled by somebody else.
    """
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        signal.default_int_handler(number, frame)

    def check() -> None:
        if noted:
            raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield check
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
