"""The store of a simulation's ranks: they wait on their own clock, and see what another one set at later moments."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from lowerkit.runtimes import _collective
from lowerkit.runtimes.collective.failures import from_native

_FIRST_PAUSE = 1_000_000
_LONGEST_PAUSE = 20_000_000


@dataclass
class SharedValues:
    """What all ranks' stores of one simulation hold: of each key who set it when, to what (None: deleted)."""

    simulation: _collective.Simulation
    size: int
    entries: dict[str, list[tuple[int, int, bytes | None]]] = field(
        default_factory=dict[str, list[tuple[int, int, bytes | None]]]
    )
    lock: threading.Lock = field(default_factory=threading.Lock)


class SimulatedStore:
    """One rank's view: see :class:`lowerkit.runtimes.collective.rendezvous.store.Store`.

    All methods raise RankDied in a rank that died.
    """

    def __init__(self, values: SharedValues, rank: int) -> None:
        self._values = values
        self._rank = rank

    def set(self, key: str, value: bytes) -> None:
        """See :class:`Store`."""
        self._append(key, value)

    def get(self, key: str, timeout: float) -> bytes:
        """See :class:`Store`; the seconds are those of the simulation."""
        until = self._now + int(timeout * 1e9)
        pause = _FIRST_PAUSE
        while (value := self._seen(key)) is None:
            if self._now >= until:
                raise TimeoutError(f"no value of {key!r} within {timeout:.3g} s")
            self._sleep(min(until, self._now + pause))
            pause = min(2 * pause, _LONGEST_PAUSE)
        return value

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """See :class:`Store`."""
        # At a moment at which no other rank compares: which of two is first must not depend on the machine.
        size = self._values.size
        self._sleep((self._now // size + 1) * size + self._rank)
        if (self._seen(key) or b"") == expected:
            self._append(key, desired)
        return self._seen(key) or b""

    def delete(self, key: str) -> bool:
        """See :class:`Store`."""
        present = self._seen(key) is not None
        self._append(key, None)
        return present

    @property
    def _now(self) -> int:
        return self._values.simulation.now

    def _sleep(self, until: int) -> None:
        try:
            self._values.simulation.sleep(self._rank, until)
        except _collective.CollectiveError as error:
            raise from_native(*error.args) from error

    def _append(self, key: str, value: bytes | None) -> None:
        with self._values.lock:
            self._values.entries.setdefault(key, []).append((self._now, self._rank, value))

    def _seen(self, key: str) -> bytes | None:
        now = self._now
        with self._values.lock:
            entries = list(self._values.entries.get(key, ()))
        seen = [entry for entry in entries if entry[0] < now or entry[1] == self._rank]
        return max(seen, key=lambda entry: entry[0])[2] if seen else None
