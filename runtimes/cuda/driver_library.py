"""The functions of a driver library by name, and what they return as errors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from lowerkit.runtimes.cuda.driver_errors import CudaError, no_library, no_symbol, words_of


class DriverLibrary:
    """A libcuda."""

    def __init__(self, path: str) -> None:
        """Loads the library.

        Raises:
            RuntimeFault: LK8020, it cannot be loaded.
        """
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise no_library(path, error) from error
        self._path = path

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function; arguments are values of ctypes, of the types that its prototype has.

        Raises:
            RuntimeFault: LK8020, the library does not have it.
            CudaError: it returned an error.
        """
        try:
            function: Callable[..., int] = getattr(self._library, name)
        except AttributeError as error:
            raise no_symbol(self._path, name) from error
        number = function(*arguments)
        if number:
            raise CudaError(name, number, words_of(self._library, number))
