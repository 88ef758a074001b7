"""Keeps the memory of started operations alive until they are done, also where nobody holds their handles any more."""

from __future__ import annotations

import threading
from itertools import islice
from typing import TYPE_CHECKING

from lowerkit.runtimes import _collective

if TYPE_CHECKING:
    from lowerkit.runtimes.collective.engine import EngineWork

_LOOKS = 2


class Unfinished:
    """What started operations of a group read and write.

    Args:
        survives_failure: the engine may go on with the memory of an operation that failed: it is kept until the
            process ends.
    """

    def __init__(self, *, survives_failure: bool) -> None:
        self._survives_failure = survives_failure
        self._kept: dict[int, tuple[EngineWork, object]] = {}
        self._lock = threading.Lock()

    def keep(self, work: EngineWork, memory: object) -> None:
        """Keeps objects until an operation is done, and looks whether those kept for longest still have to be.

        It looks at two of them for each one that comes, which is a constant cost, and puts those that are not done
        behind all others: however many handles are dropped, what is kept is hardly more than what is under way.
        """
        with self._lock:
            for key in list(islice(self._kept, _LOOKS)):
                old = self._kept.pop(key)
                if not self._ended(*old):
                    self._kept[key] = old
            self._kept[id(work)] = (work, memory)

    def under_way(self) -> list[tuple[EngineWork, object]]:
        """Returns operations that nobody saw end, in the order of :meth:`keep` or nearly so, and what they keep."""
        with self._lock:
            return list(self._kept.values())

    def forget(self, work: EngineWork) -> None:
        """Lets the objects of an operation go: somebody saw it end well."""
        with self._lock:
            self._kept.pop(id(work), None)

    def keep_failed(self, memory: object) -> None:
        """Keeps objects of an operation that failed before there was a handle, where the engine may go on with them."""
        if self._survives_failure:
            _forever.append(memory)

    def close(self) -> None:
        """Forgets everything once the group is closed, and with that the native engine done."""
        with self._lock:
            for _, memory in self._kept.values():
                self.keep_failed(memory)
            self._kept.clear()

    def _ended(self, work: EngineWork, memory: object) -> bool:
        try:
            return work.test()
        except _collective.CollectiveError:
            self.keep_failed(memory)
            return True


_forever: list[object] = []
