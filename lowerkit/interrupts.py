"""Ctrl-C held back while code runs that does not survive an exception from nowhere."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Generator


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
