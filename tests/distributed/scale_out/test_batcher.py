"""Dynamic batching without a cluster: what is joined, who gets which error, and how a model is replaced."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowerkit.errors import RuntimeFault, UnsupportedError
from lowerkit.runtimes.session import load
from lowerkit.serving.batcher import Answer, Batcher
from lowerkit.serving.model import ModelReplica
from lowerkit.serving.version import ModelVersion, Runner, load_session
from tests.support.ranks import PATIENCE
from tests.support.scale_out.artifacts import numbers, write_counter, write_fixed, write_rows


class Recording:
    """A session that keeps how many rows each run had, and fails where a row of ``x`` starts with -7."""

    def __init__(self, path: Path) -> None:
        self._session = load(path, threads=1)
        self.program, self.manifest, self.collect = (
            self._session.program, self._session.manifest, self._session.collect,
        )  # fmt: skip
        self.runs: list[tuple[int, ...]] = []

    def run(self, *inputs: Any) -> list[Any]:
        self.runs.append(inputs[0].shape)
        if inputs[0].ndim > 1 and (inputs[0][:, 0] == -7).any():
            raise RuntimeFault("LK8015", "an index is out of range")
        return self._session.run(*inputs)


def version_of(path: Path) -> tuple[ModelVersion, Recording]:
    recording = Recording(path)
    return ModelVersion.load(path, recording.manifest.content_id, 1, lambda *_: recording), recording


def together(batcher: Batcher, *requests: Coroutine[Any, Any, Answer]) -> list[Any]:
    async def main() -> list[Any]:
        return await asyncio.wait_for(asyncio.gather(*requests, return_exceptions=True), PATIENCE)

    try:
        return asyncio.run(main())
    finally:
        batcher.close()


def request(batcher: Batcher, version: ModelVersion, *arrays: Any) -> Coroutine[Any, Any, Answer]:
    return batcher.run(version, list(arrays))


def test_requests_run_together_and_get_their_own_rows(tmp_path: Path) -> None:
    version, recording = version_of(write_rows(tmp_path / "m.lk"))
    batcher = Batcher(16, 0.2)
    sizes = [1, 3, 2, 4]
    inputs = [(numbers(rows, seed=rows), numbers(rows, seed=9 + rows)) for rows in sizes]
    answers = together(batcher, *(request(batcher, version, *pair) for pair in inputs))
    assert recording.runs == [(10, 4)]
    for (x, z), answer in zip(inputs, answers, strict=True):
        assert np.array_equal(answer.outputs[0], x + z) and answer.batch_rows == 10 and answer.version is version


@pytest.mark.parametrize(("most", "runs"), [(4, [(4, 4), (4, 4), (1, 4)]), (2, [(2, 4)] * 4 + [(1, 4)])])
def test_batches_have_a_largest_number_of_rows(most: int, runs: list[Any], tmp_path: Path) -> None:
    version, recording = version_of(write_rows(tmp_path / "m.lk"))
    batcher = Batcher(most, 0.01)
    x = numbers(1)
    together(batcher, *(request(batcher, version, x, x) for _ in range(9)))
    assert recording.runs == runs


def test_the_range_of_the_model_limits_batches_and_large_requests_run_alone(tmp_path: Path) -> None:
    version, recording = version_of(write_rows(tmp_path / "m.lk", most=5))
    batcher = Batcher(3, 0.01)
    sizes = [2, 5, 1]
    together(batcher, *(request(batcher, version, numbers(rows), numbers(rows)) for rows in sizes))
    assert recording.runs == [(2, 4), (5, 4), (1, 4)]
    version, recording = version_of(write_rows(tmp_path / "m.lk", most=5))
    batcher = Batcher(100, 0.01)
    together(batcher, *(request(batcher, version, numbers(rows), numbers(rows)) for rows in sizes))
    assert recording.runs == [(2, 4), (5, 4), (1, 4)]


def test_requests_of_unlike_shapes_are_batched_apart(tmp_path: Path) -> None:
    version, recording = version_of(write_rows(tmp_path / "m.lk"))
    batcher = Batcher(16, 0.05)
    inputs = [numbers(1 + number % 2, (4, 6)[number % 3 == 0], seed=number) for number in range(6)]
    answers = together(batcher, *(request(batcher, version, x, x) for x in inputs))
    assert sorted(recording.runs) == [(3, 6), (6, 4)]
    assert all(np.array_equal(answer.outputs[0], x + x) for answer, x in zip(answers, inputs, strict=True))


def test_a_request_that_fails_fails_alone(tmp_path: Path) -> None:
    version, recording = version_of(write_rows(tmp_path / "m.lk"))
    batcher = Batcher(16, 0.05)
    inputs = [numbers(2, seed=number) for number in range(3)]
    inputs[1][1, 0] = -7
    answers = together(batcher, *(request(batcher, version, x, x) for x in inputs))
    assert recording.runs == [(6, 4), (2, 4), (2, 4), (2, 4)]
    assert isinstance(answers[1], RuntimeFault) and answers[1].code == "LK8015"
    assert all(np.array_equal(answers[one].outputs[0], 2 * inputs[one]) for one in (0, 2))


def test_a_client_that_goes_does_not_take_others_along(tmp_path: Path) -> None:
    version, recording = version_of(write_rows(tmp_path / "m.lk"))
    batcher = Batcher(16, 0.1)

    async def main() -> Answer:
        x = numbers(1)
        gone = asyncio.create_task(batcher.run(version, [x, x]))
        stays = asyncio.create_task(batcher.run(version, [x, x]))
        await asyncio.sleep(0)
        gone.cancel()
        return await asyncio.wait_for(stays, PATIENCE)

    assert np.array_equal(asyncio.run(main()).outputs[0], 2 * numbers(1)) and recording.runs == [(1, 4)]
    batcher.close()


def test_one_request_does_not_wait_longer_than_it_must(tmp_path: Path) -> None:
    version, _ = version_of(write_rows(tmp_path / "m.lk"))
    batcher = Batcher(1, 60.0)  # a full batch waits for nobody
    assert together(batcher, request(batcher, version, numbers(1), numbers(1)))[0].batch_rows == 1
    version, recording = version_of(write_fixed(tmp_path / "fixed.lk"))
    assert version.alone and "no input has a symbolic first dim" in version.obstacle
    batcher = Batcher(32, 60.0)
    x = numbers(1)[0]
    answers = together(batcher, *(request(batcher, version, x, x) for _ in range(3)))
    assert recording.runs == [(4,)] * 3 and [answer.batch_rows for answer in answers] == [0] * 3


def body(x: Any, z: Any, **fields: Any) -> bytes:
    inputs = [
        {"name": name, "datatype": "FP32", "shape": list(array.shape), "data": array.ravel().tolist()}
        for name, array in (("x", x), ("z", z))
    ]
    return json.dumps({"inputs": inputs, **fields}).encode()


def test_a_replica_goes_from_one_version_to_the_next(tmp_path: Path) -> None:
    first, second = write_rows(tmp_path / "1.lk"), write_rows(tmp_path / "2.lk", twice=True)
    ids = [load(path, threads=1).manifest.content_id for path in (first, second)]
    x, z = numbers(2), numbers(2, seed=1)

    async def main() -> None:
        replica = ModelReplica("m", 16, 0.05, 1, load_session)
        assert (await replica.infer(body(x, z), None)).status == 503
        await replica.reconfigure({"path": str(first), "content_id": ids[0]})
        waiting = asyncio.create_task(replica.infer(body(x, z, id="a"), None))
        await asyncio.sleep(0)
        await replica.reconfigure({"path": str(second), "content_id": ids[1]})
        later = json.loads((await replica.infer(body(x, z), None)).body)
        before = json.loads((await waiting).body)
        assert (before["id"], before["model_version"], later["model_version"]) == ("a", ids[0][:12], ids[1][:12])
        assert before["outputs"][0]["data"] == (x + z).ravel().tolist()
        assert later["outputs"][0]["data"] == (x + x).ravel().tolist() and later["parameters"] == {"batch_rows": 2}
        with pytest.raises(RuntimeFault, match="LK8024"):
            await replica.reconfigure({"path": str(first), "content_id": ids[1]})
        assert (await replica.metadata(ids[1][:12])).status == 200
        old = await replica.infer(body(x, z), None, ids[0][:12])
        assert old.status == 404 and b"has no version" in old.body
        wrong = await replica.infer(body(x, numbers(3)), None)
        assert wrong.status == 400 and json.loads(wrong.body)["code"] == "LK8004"

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


def test_models_with_states_are_refused(tmp_path: Path) -> None:
    path = write_counter(tmp_path / "m.lk")
    runner: Runner = load_session(path, 1)
    with pytest.raises(UnsupportedError, match="it keeps the state 'sum', which requests would share"):
        ModelVersion.load(path, runner.manifest.content_id, 1, load_session)
