"""The mbarriers of a batch, in the bytes of shared memory, and the bytes that are on their way to them.

The word of an mbarrier, from the lowest bit: 20 bits of arrivals that its phase still waits for, 20 of those of a whole
phase, 21 of bytes it waits for (biased, because they may arrive before they are announced), the parity of the phase,
and two that mark an mbarrier. A card's layout is not published.

What an asynchronous copy brings is there when somebody polls the mbarrier, not before: who reads without a wait reads
bytes that nothing has written.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lowerkit.runtimes.cuda.simulated.batch import Batch
from lowerkit.runtimes.cuda.simulated.scalar_types import Array
from lowerkit.runtimes.cuda.simulated.waiting import Waiting

MOST_ARRIVALS = (1 << 20) - 1
_EXPECTED, _BYTES, _PARITY, _MARK = 20, 40, 61, 62
_BIAS = 1 << 20
# Delivers, or arrives by itself; returns how many bytes came.
Delivery = Callable[[], int]


class BadBarrier(Exception):
    """An mbarrier cannot do what is asked. It never leaves the package.

    Attributes:
        problem: what is wrong, behind the name of the thread.
        bad: bool, for which of the places.
    """

    def __init__(self, problem: str, bad: Array) -> None:
        super().__init__(problem)
        self.problem = problem
        self.bad = bad


class MemoryBarriers:
    """All mbarriers of a batch, by their offset in the bytes of shared memory."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._waiting = batch.state(Waiting)
        self._deliveries: dict[int, list[Delivery]] = {}

    def begin(self, offsets: Array, counts: Array) -> None:
        """Makes mbarriers.

        Args:
            offsets: int64.
            counts: arrivals of a phase, from 1 on.
        """
        counts = counts.astype(np.uint64)
        zero = np.uint64(1 << _MARK | _BIAS << _BYTES)
        self._batch.shared.store.store(offsets, (zero | counts << np.uint64(_EXPECTED) | counts)[:, None])
        self._waiting.advance()

    def end(self, offsets: Array) -> None:
        """Ends mbarriers; their bytes are free.

        Raises:
            BadBarrier: one is none.
        """
        self._words(offsets)
        for offset in offsets.tolist():
            self._deliveries.pop(offset, None)
        self._batch.shared.store.forget_at(offsets, 8)

    def bring(self, offset: int, delivery: Delivery) -> None:
        """Lets a copy complete at an mbarrier, when that is polled."""
        self._deliveries.setdefault(offset, []).append(delivery)
        self._waiting.advance()

    def arrive(self, offsets: Array, counts: Array, expected_bytes: Array) -> Array:
        """Announces bytes, then arrives; of several threads at one mbarrier one after another.

        Args:
            offsets: int64 [threads].
            counts: how often each thread arrives, int64; 0 to announce alone.
            expected_bytes: how many bytes each of them announces, int64.

        Returns:
            The words before, uint64 [threads]: what ``mbarrier.arrive`` returns.

        Raises:
            BadBarrier: one is no mbarrier, or its phase waits for fewer arrivals.
        """
        places, which = np.unique(offsets, return_inverse=True)
        before = self._words(offsets)
        words = self._words(places)
        left = np.bincount(which, counts, places.size).astype(np.int64)
        announced = np.bincount(which, expected_bytes, places.size).astype(np.int64)
        words = words + (announced.astype(np.uint64) << np.uint64(_BYTES))  # what is less than 0 wraps, and back
        while True:
            now = np.minimum(left, _pending(words))
            left = left - now
            words = _settled(words - now.astype(np.uint64))
            stuck = (left > 0) & (_pending(words) == 0)
            if stuck.any():
                raise BadBarrier("arrives once more at a phase that waits for bytes alone", stuck[which])
            if not left.any():
                break
        self._put(places, words)
        self._waiting.advance()
        return before

    def complete(self, offsets: Array, nbytes: Array) -> None:
        """Takes bytes as arrived.

        Raises:
            BadBarrier: one is no mbarrier.
        """
        places, which = np.unique(offsets, return_inverse=True)
        came = np.bincount(which, nbytes, places.size).astype(np.uint64)
        self._put(places, _settled(self._words(places) - (came << np.uint64(_BYTES))))
        self._waiting.advance()

    def poll(self, offsets: Array, parities: Array) -> Array:
        """Returns whether the phases of ``parities`` are complete, bool; delivers what is on its way to open ones.

        Args:
            offsets: int64 [threads].
            parities: 0 or 1, int64.

        Raises:
            BadBarrier: one is no mbarrier.
        """
        parities_now = _parity(self._words(offsets))
        if self._deliveries and (parities_now == parities).any():
            for offset in np.unique(offsets[parities_now == parities]).tolist():
                self._deliver(np.array([offset]))
            parities_now = _parity(self._words(offsets))
        return parities_now != parities

    def _deliver(self, place: Array) -> None:
        """Delivers what is on its way to one mbarrier, until its phase is complete: the rest is of later phases."""
        left = self._deliveries.pop(int(place[0]), [])
        parity = _parity(self._words(place))[0]
        while left and _parity(self._words(place))[0] == parity:
            came = left.pop(0)()
            if came:
                self.complete(place, np.array([came]))
        if left:
            self._deliveries[int(place[0])] = left

    def describe(self, offset: int) -> str:
        """Returns what the open phase of an mbarrier waits for, in words."""
        word = self._words(np.array([offset]))
        nbytes = int(word[0] >> np.uint64(_BYTES)) % (1 << 21) - _BIAS
        return f"its phase waits for {int(_pending(word)[0])} arrivals and {nbytes} bytes"

    def _put(self, places: Array, words: Array) -> None:
        ended = _parity(words) != _parity(self._words(places))
        if self._batch.races is not None and ended.any():
            self._batch.races.end_phase(self._batch.shared.store, places[ended], 8)
        self._batch.shared.store.store(places, words[:, None])

    def _words(self, offsets: Array) -> Array:
        words = self._batch.shared.store.data.view(np.uint64)[offsets >> 3]
        bad = words >> np.uint64(_MARK) != 1
        if bad.any():
            raise BadBarrier("uses an mbarrier where none is: none was made there, or it was ended or overwritten", bad)
        return words

    @staticmethod
    def parity_of(words: Array) -> Array:
        """Returns the parity of the phase that a word was read in, int64."""
        return _parity(words)


def _pending(words: Array) -> Array:
    return (words & np.uint64(MOST_ARRIVALS)).astype(np.int64)


def _parity(words: Array) -> Array:
    return (words >> np.uint64(_PARITY) & np.uint64(1)).astype(np.int64)


def _settled(words: Array) -> Array:
    """Returns words with the next phase begun where nothing is waited for."""
    none = np.uint64(_BIAS)
    done = (_pending(words) == 0) & (words >> np.uint64(_BYTES) & np.uint64((1 << 21) - 1) == none)
    expected = words >> np.uint64(_EXPECTED) & np.uint64(MOST_ARRIVALS)
    return np.where(done, (words ^ np.uint64(1 << _PARITY)) | expected, words)
