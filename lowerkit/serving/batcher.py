"""Requests that come one by one, run together: dynamic batching along a model's symbolic batch dim.

Vocabulary
    rows   of a request: what it has along the batch dim.
    lane   the requests that can be joined: one model version, equal extents beside the batch, equal shared inputs.
    wait   seconds that the first request of a lane waits for others.

Steps
    1. A request goes to the end of its lane.
    2. When nothing runs, the lane whose first request waits longest is run, as soon as it has waited for ``wait`` or
       the lane has rows for a whole batch: requests from its front on, up to the most rows of a batch.
    3. Their inputs are joined, run by one call, and the outputs cut into those of each request.
    4. Where a batch of several requests fails, each is run alone: the error is that of the request that it is due to.

Bytes
    The joined inputs and the outputs are copied once each; a request that runs alone is not copied.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from lowerkit.runtimes.arguments import Array
from lowerkit.serving.version import ModelVersion


@dataclass(frozen=True)
class Answer:
    """What became of a request.

    Attributes:
        outputs: in the order of the signature.
        version: of the model that gave them.
        batch_rows: rows that ran together, those of other requests included; 0 for a model without a batch.
    """

    outputs: list[Array]
    version: ModelVersion
    batch_rows: int


@dataclass
class _Waiting:
    arrays: list[Array]
    rows: int
    since: float
    future: asyncio.Future[Answer]


@dataclass
class _Lane:
    version: ModelVersion
    waiting: deque[_Waiting]
    rows: int = 0


class Batcher:
    """Joins requests of one event loop; runs are made in a thread, one at a time."""

    def __init__(self, most_rows: int, wait: float) -> None:
        """Makes a batcher without requests.

        Args:
            most_rows: of a batch; a request with more rows runs alone.
            wait: seconds that a request waits for others.
        """
        self._most_rows, self._wait = most_rows, wait
        self._lanes: OrderedDict[object, _Lane] = OrderedDict()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lowerkit-run")
        self._worker: asyncio.Task[None] | None = None

    async def run(self, version: ModelVersion, arrays: list[Array]) -> Answer:
        """Returns the outputs for inputs that fit the signature of ``version``; other requests may run with them.

        Raises:
            LowerkitError: as the run of this request alone.
        """
        loop = asyncio.get_running_loop()
        rows = version.rows(arrays)
        request = _Waiting(arrays, rows, loop.time(), loop.create_future())
        lane = self._lanes.setdefault(version.lane(arrays), _Lane(version, deque()))
        lane.waiting.append(request)
        lane.rows += rows
        self._arrived.set()
        if self._worker is None or self._worker.done():
            self._worker = loop.create_task(self._work())
        return await request.future

    def close(self) -> None:
        """Ends the thread of the runs, when the one that goes on is over."""
        self._thread.shutdown(wait=False)

    async def _work(self) -> None:
        """Runs lanes until there are none; the next request starts it again."""
        loop = asyncio.get_running_loop()
        while self._lanes:
            key, lane = min(self._lanes.items(), key=lambda item: item[1].waiting[0].since)
            ready = lane.waiting[0].since + self._wait
            if lane.rows < self._limit(lane) and not lane.version.alone and (pause := ready - loop.time()) > 0:
                full = [item for item in self._lanes.items() if item[1].rows >= self._limit(item[1])]
                if not full:
                    self._arrived.clear()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._arrived.wait(), pause)
                    continue
                key, lane = full[0]
            await self._run_front(key, lane)

    def _limit(self, lane: _Lane) -> int:
        return min(self._most_rows, lane.version.most_rows)

    async def _run_front(self, key: object, lane: _Lane) -> None:
        requests: list[_Waiting] = []
        rows = 0
        while lane.waiting and (not requests or rows + lane.waiting[0].rows <= self._limit(lane)):
            request = lane.waiting.popleft()
            lane.rows -= request.rows
            if not request.future.done():  # its client may have gone
                requests.append(request)
                rows += request.rows
        if not lane.waiting:
            del self._lanes[key]
        if not requests:
            return
        loop = asyncio.get_running_loop()
        outcomes = await loop.run_in_executor(self._thread, _outcomes, lane.version, requests)
        for request, outcome in zip(requests, outcomes, strict=True):
            if request.future.done():
                continue
            if isinstance(outcome, Answer):
                request.future.set_result(outcome)
            else:
                request.future.set_exception(outcome)


def _outcomes(version: ModelVersion, requests: Sequence[_Waiting]) -> list[Answer | Exception]:
    """Runs requests together, and each alone where that fails."""
    try:
        return list(_together(version, requests))
    except Exception as error:
        if len(requests) == 1:
            return [error]
    return [outcome for request in requests for outcome in _outcomes(version, [request])]


def _together(version: ModelVersion, requests: Sequence[_Waiting]) -> list[Answer]:
    if version.batch is None:
        (request,) = requests
        return [Answer(version.session.run(*request.arrays), version, 0)]
    outputs = version.session.run(*version.batch.join([request.arrays for request in requests]))
    rows = sum(request.rows for request in requests)
    answers: list[Answer] = []
    first = 0
    for request in requests:
        last = first + request.rows
        answers.append(Answer([array[first:last] for array in outputs], version, rows))
        first = last
    return answers
